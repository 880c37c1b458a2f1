"""Identities of clients: CURVE keys, passwords, and the means of SASL."""

from __future__ import annotations

import os
from pathlib import Path

import attrs

from broker.access.principal import Access
from broker.blocking import blocking
from broker.core.disk import is_full
from broker.wires.common.router_listener import KnownKeys
from broker.wires.interface import WireContext
from broker.wires.mtl.mtl_settings import Mtl
from broker.wires.mtl.sessions.access_policy import AccessPolicy, titles
from broker.wires.mtl.sessions.control_flow import ControlFlow
from broker.wires.mtl.sessions.login_exchange import AuthenticationContext
from broker.wires.mtl.sessions.sasl import Mechanisms

SECRET = "mtl.secret"
"""File in the state directory: the key of the salts that unknown users are shown. Kept, since other salts after a
restart would distinguish unknown users from known ones."""

SECRET_BYTES = 32


@attrs.frozen(eq=False)
class ClientIdentities:
    """Users and keys while the wire runs. ``keys`` is None without CURVE."""

    keys: KnownKeys | None
    access: Access
    secret: bytes = attrs.field(repr=False)

    @classmethod
    def open(cls, config: Mtl, context: WireContext) -> ClientIdentities:
        """Read the secret. Raises OSError."""
        secret = _secret(context.state)
        keys = KnownKeys(context.accounts.access, *titles(config.hosts)) if config.curve else None
        return cls(keys, context.accounts.access, secret)

    def authentication(self, context: WireContext, policy: AccessPolicy) -> AuthenticationContext:
        """Return the means of authentication for the control flow."""
        name_of = (lambda key: "") if self.keys is None else self.keys.name_of
        mechanisms = Mechanisms(self.access, context.accounts.logins, self.secret, name_of)
        return AuthenticationContext(mechanisms, name_of, policy.serves_anonymous)

    def revoke_from(self, control: ControlFlow) -> None:
        """Revoke the access of users and keys that are removed or changed, in the control flow."""
        verifiers = self.access.verifiers

        def passwords_changed() -> None:
            nonlocal verifiers
            before, verifiers = verifiers, self.access.verifiers
            control.revoke_users({name for name, kept in before.items() if verifiers.get(name) != kept})

        self.access.changed.append(passwords_changed)
        # The permissions of users change with their rights.
        self.access.changed.append(control.review)
        if self.keys is not None:
            # First, before the ROUTER closes their connections: sessions and leases are then counted as revoked.
            self.keys.changed.insert(0, control.revoke_keys)


@blocking
def _secret(state: str) -> bytes:
    """Return the secret in the file, which is created if it does not exist. On a full disk the secret is kept in memory
        only.

    Raises OSError for any other error.
    """
    path = Path(state) / SECRET
    try:
        secret = path.read_bytes()
    except FileNotFoundError:
        secret = b""
    if len(secret) != SECRET_BYTES:
        secret = os.urandom(SECRET_BYTES)
        new = path.with_suffix(".new")
        try:
            new.unlink(missing_ok=True)
            descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            try:
                os.write(descriptor, secret)
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
            # Atomic: a crash leaves the old file or the new one, never half of one.
            new.rename(path)
        except OSError as error:
            if not is_full(error, state):
                raise
    return secret
