"""Identities of clients: CURVE keys, the users file, and the means of SASL."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import attrs

from broker.access.password_verifiers import PasswordVerifier
from broker.access.principal import Access
from broker.blocking import blocking
from broker.core.disk import is_full
from broker.net.allowed_keys import AllowedKeys
from broker.wires.common.known_keys import KnownKeys
from broker.wires.interface import WireContext
from broker.wires.mtl.config import Mtl
from broker.wires.mtl.sessions.authentication import AuthenticationContext, CurveKeys
from broker.wires.mtl.sessions.control_flow import ControlFlow
from broker.wires.mtl.sessions.sasl import Mechanisms
from broker.wires.mtl.sessions.users_file import UsersFile
from broker.wires.mtl.validation import effective_mtl_auth, mtl_curve

SECRET = "mtl.secret"
"""File in the state directory: the key of the salts that unknown users are shown. Kept, since other salts after a
restart would distinguish unknown users from known ones."""

SECRET_BYTES = 32


@attrs.frozen(eq=False)
class ClientIdentities:
    """Users and keys while the wire runs. ``users`` and ``keys`` are None where the configuration has none."""

    users: UsersFile | None
    keys: KnownKeys | None
    access: Access
    """The users of all listeners, whose passwords count with the mode "users"."""
    shares: bool
    """True for the mode "users"."""
    secret: bytes = attrs.field(repr=False)

    @classmethod
    def open(cls, config: Mtl, context: WireContext) -> ClientIdentities:
        """Read users and keys. Raises OSError or ValueError, with nothing left open."""
        clock, in_thread = context.clock, context.in_thread
        secret = _secret(context.state)
        shares = effective_mtl_auth(config) == "users"
        directory = keys = None
        if mtl_curve(config) and config.client_keys is not None:
            directory = AllowedKeys(config.client_keys, clock, in_thread)
        if directory is not None or (shares and mtl_curve(config)):
            keys = KnownKeys(directory, context.access if shares else None)
        try:
            users = None if config.users is None else UsersFile(config.users, clock, in_thread)
        except BaseException:
            if keys is not None:
                keys.stop()
            raise
        return cls(users, keys, context.access, shares, secret)

    def authentication(self, config: Mtl, context: WireContext) -> AuthenticationContext:
        """Return the means of authentication for the control flow."""
        keys = self.keys
        curve = CurveKeys()
        if keys is not None:
            name_of = keys.name_of
            curve = CurveKeys(name_of, lambda key: name_of(key) is not None)
        users = KnownUsers(self.users, self.access) if self.shares else self.users
        mechanisms = Mechanisms(users, context.logins, self.secret, curve.user_of, config.anonymous)
        return AuthenticationContext(mechanisms, curve)

    def revoke_from(self, control: ControlFlow) -> None:
        """Have the control flow revoke the access of users and keys that are removed or changed."""
        if self.users is not None:
            self.users.changed.append(control.revoke_users)
        if self.shares:
            KnownPasswords(self.access).revoke_from(control)
        if self.access.users:
            # The permissions of users change with their rights.
            self.access.changed.append(control.review)
        if self.keys is not None:
            # First, before the ROUTER closes their connections: sessions and leases are then counted as revoked.
            self.keys.changed.insert(0, control.revoke_keys)

    def refresh(self) -> None:
        """Read users and keys again now."""
        for watched in (self.keys, self.users):
            if watched is not None:
                watched.refresh()

    def stop(self) -> None:
        """Watch the files no more."""
        for watched in (self.keys, self.users):
            if watched is not None:
                watched.stop()


@attrs.frozen(eq=False)
class KnownUsers:
    """Users with a password, of the wire's own file or of the users file: see `broker.wires.mtl.sessions.sasl.Users`.

    A user in both has the password of the users file.
    """

    own: UsersFile | None
    access: Access

    def find(self, name: str) -> PasswordVerifier | None:
        """Return the verifier of that user, None if unknown."""
        return self.access.verifier(name) or (None if self.own is None else self.own.find(name))

    @property
    def shapes(self) -> Sequence[tuple[int, int]]:
        """Iterations and length of the salt of each user."""
        return (*self.access.shapes, *(() if self.own is None else self.own.shapes))

    @property
    def work(self) -> int:
        """Iterations of a check of a password of any of them."""
        return max(self.access.work, 0 if self.own is None else self.own.work)


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
