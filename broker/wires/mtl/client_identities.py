"""Identities of clients: CURVE keys, passwords, and the means of SASL."""

from __future__ import annotations

import os
from pathlib import Path

import attrs

from broker.access.principal import Access
from broker.blocking import blocking
from broker.core.disk import is_full
from broker.wires.common.known_keys import KnownKeys
from broker.wires.interface import WireContext
from broker.wires.mtl.mtl_settings import Mtl
from broker.wires.mtl.sessions.access_policy import AccessPolicy, titles
from broker.wires.mtl.sessions.authentication import AuthenticationContext, CurveKeys
from broker.wires.mtl.sessions.control_flow import ControlFlow
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
        keys = KnownKeys(context.access, *titles(config.hosts)) if config.curve else None
        return cls(keys, context.access, secret)

    def authentication(self, context: WireContext, policy: AccessPolicy) -> AuthenticationContext:
        """Return the means of authentication for the control flow."""
        keys = self.keys
        curve = CurveKeys()
        if keys is not None:
            name_of = keys.name_of
            curve = CurveKeys(name_of, lambda key: name_of(key) is not None)
        mechanisms = Mechanisms(self.access, context.logins, self.secret, curve.user_of)
        return AuthenticationContext(mechanisms, curve, policy.serves_anonymous)

    def revoke_from(self, control: ControlFlow) -> None:
        """Have the control flow revoke the access of users and keys that are removed or changed."""
        KnownPasswords(self.access).revoke_from(control)
        # The permissions of users change with their rights.
        self.access.changed.append(control.review)
        if self.keys is not None:
            # First, before the ROUTER closes their connections: sessions and leases are then counted as revoked.
            self.keys.changed.insert(0, control.revoke_keys)


class KnownPasswords:
    """The passwords of the users file, of which each change ends the sessions of its user."""

    def __init__(self, access: Access) -> None:
        self._access = access
        self._before = access.verifiers

    def revoke_from(self, control: ControlFlow) -> None:
        """Have the control flow revoke the access of users who are removed, or have another password."""

        def changed() -> None:
            before, self._before = self._before, self._access.verifiers
            control.revoke_users({name for name, kept in before.items() if self._before.get(name) != kept})

        self._access.changed.append(changed)


@blocking
def _secret(state: str) -> bytes:
    """Return the secret of the file, which is made if it is absent. On a full disk it lasts for this run.

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
