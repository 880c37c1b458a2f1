"""Access by a users file, which is watched: authentication and rights of all listeners.

Rules:
- A wrong password, a right one of an unknown user, and a wrong token have the same answer.
- Passwords pass the gate of all listeners, and are checked in a thread (`broker.access.password_logins`). So do tokens
  that a person chose, such as the code of an Elko server. Random tokens, certificates and keys, which cannot be
  guessed, do not pass the gate: guesses of others refuse none of them.
- A principal keeps its rights as long as its credential is in the file, and the credential is no expired token.
- When the file changes, or a token expires, all sessions are notified at once.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IDelayedCall, IReactorTime
from twisted.logger import Logger
from twisted.python.failure import Failure

from broker.access import document, tokens
from broker.access.document import (
    User,
    UserDirectory,
    certificate_credential,
    key_credential,
    password_credential,
    token_credential,
)
from broker.access.grants import Grants, grants_of
from broker.access.guarded_file import GuardedFile
from broker.access.login_gate import Attempt
from broker.access.logins import Logins
from broker.access.password_verifiers import PasswordVerifier
from broker.access.principal import Method, Principal
from broker.core.errors import Reason, Refusal
from broker.wall_clock import wall

LONGEST = 60.0
"""Seconds of the longest timer for the expiry of a token: the time of day may be set meanwhile."""

Count = Callable[[str, str], object]
"""Raises a counter, by family and reason."""


class UsersAccess:
    """Implementation of `broker.access.principal.Access` by the users file at ``path``.

    Raises `broker.access.guarded_reading.BadUsers` if the file cannot be used.
    """

    log = Logger()

    users = True

    def __init__(
        self,
        path: str,
        clock: IReactorTime,
        in_thread: Callable[..., Deferred[Any]],
        logins: Logins,
        count: Count,
    ) -> None:
        self.changed: list[Callable[[], object]] = []
        self._clock = clock
        self._logins = logins
        self._count = count
        self._grants: dict[tuple[str, str], Grants] = {}
        self._with_passwords: dict[str, bool] = {}
        """Results of `logs_in`, of each listener."""
        self._timer: IDelayedCall | None = None
        self._file: GuardedFile[UserDirectory] = GuardedFile(
            path, document.parse, document.is_emptied, clock, in_thread, self._take
        )
        self.log.info(
            "{users} users with {tokens} tokens are in {path}",
            users=len(self.directory.users),
            tokens=len(self.directory.tokens),
            path=path,
        )
        self._looked = 0.0
        """The time of day at the last look for tokens that have expired."""
        self._await_expiry()

    @property
    def directory(self) -> UserDirectory:
        """The users at present."""
        return self._file.value

    @property
    def problems(self) -> Sequence[str]:
        """Reasons why the present file is not used, as sentences."""
        return self._file.problems

    # authentication

    def by_password(self, user: str, password: str, address: str) -> Deferred[Principal]:
        """See `broker.access.principal.Access`."""
        passwords = partial(self._passwords, user)
        checked = self._logins.passwords.verify(user, password, address, passwords, self.directory.work)
        return checked.addCallbacks(partial(self._decide, user, address), self._not_checked)

    def _passwords(self, user: str) -> Sequence[PasswordVerifier]:
        known = self.directory.users.get(user)
        return () if known is None else known.passwords

    def _decide(self, user: str, address: str, verifier: PasswordVerifier | None) -> Principal:
        if verifier is None:
            raise self._refused("the user or the password is wrong")
        return self._known(Principal(user, Method.PASSWORD, address, password_credential(verifier)))

    def _not_checked(self, failure: Failure) -> Failure:
        if isinstance(failure.value, Refusal):
            self._count("access_refused", failure.value.reason.code)
        return failure

    def by_token(self, token: str, address: str) -> Principal:
        """See `broker.access.principal.Access`."""
        hash = tokens.hashed(token[: tokens.MAX_TOKEN])
        attempt = None if tokens.is_random(token) else self._attempt(address)
        found = self.directory.tokens.get(hash)
        if found is None or len(token) > tokens.MAX_TOKEN:
            raise self._refused("the token is wrong, or revoked")
        if attempt is not None:
            attempt.right()
        if found.expires <= wall(self._clock):
            raise self._refused(f"the token {found.label!r} of {found.user} has expired")
        return self._known(Principal(found.user, Method.TOKEN, address, token_credential(hash)))

    def _attempt(self, address: str) -> Attempt:
        try:
            return self._logins.gate.begin_token(address)
        except Refusal as refusal:
            self._count("access_refused", refusal.reason.code)
            raise

    def by_certificate(self, names: tuple[str, ...], address: str) -> Principal | None:
        """See `broker.access.principal.Access`."""
        for name in names:
            user = self.directory.certificates.get(name.lower())
            if user is not None:
                return self._known(Principal(user, Method.CERTIFICATE, address, certificate_credential(name)))
        return None

    def by_key(self, key: str, address: str) -> Principal | None:
        """See `broker.access.principal.Access`."""
        user = self.directory.keys.get(key)
        return None if user is None else Principal(user, Method.CURVE, address, key_credential(key))

    @property
    def keys(self) -> Mapping[str, str]:
        """The user of each CURVE public key."""
        return self.directory.keys

    def logs_in(self, listener: str) -> bool:
        """See `broker.access.principal.Access`."""
        found = self._with_passwords.get(listener)
        if found is None:
            names = self.directory.verifiers
            found = any(each.concerns_any(names, listener) for each in self.directory.rights)
            self._with_passwords[listener] = found
        return found

    def verifier(self, user: str) -> PasswordVerifier | None:
        """Return the verifier of a user for SCRAM, which has one only: the first; None without any."""
        return self.directory.verifiers.get(user)

    @property
    def verifiers(self) -> Mapping[str, PasswordVerifier]:
        """The first verifier of each user who has one."""
        return self.directory.verifiers

    @property
    def shapes(self) -> Sequence[tuple[int, int]]:
        """Iterations and length of the salt of each of them."""
        return self.directory.shapes

    @property
    def work(self) -> int:
        """Iterations of a check of a password."""
        return self.directory.work

    # rights

    def allows(self, principal: Principal, listener: str, operation: str, name: str = "") -> bool:
        """See `broker.access.principal.Access`."""
        return self.grants(principal, listener).may(operation, name)

    def grants(self, principal: Principal, listener: str) -> Grants:
        """See `broker.access.principal.Access`."""
        found = self._grants.get((principal.name, listener))
        if found is None:
            if principal.credential and principal.name not in self.directory.users:
                return Grants()
            # One entry for each listener, and each user of the file or of a wire's own keys and passwords at most.
            found = grants_of(principal.name, listener, self.directory.rights)
            self._grants[principal.name, listener] = found
        return found

    def stands(self, principal: Principal) -> bool:
        """See `broker.access.principal.Access`."""
        if not principal.name:
            return True
        user: User | None = self.directory.users.get(principal.name)
        if user is None or principal.credential not in user.credentials:
            return False
        if principal.method is not Method.TOKEN:
            return True
        token = self.directory.tokens[principal.credential.removeprefix("token:")]
        return token.expires > wall(self._clock)

    # changes

    def refresh(self) -> Deferred[None]:
        """Read the file now. Fires when it was read, also if it cannot be used."""
        return self._file.refresh()

    def use(self, path: str) -> Deferred[None]:
        """Take the users of the file at that path, and watch it. Fires when it was read, also if it cannot be used."""
        return self._file.use(path)

    def stop(self) -> None:
        """Stop watching the file."""
        self._file.stop()
        self._cancel()

    def _take(self, before: UserDirectory, after: UserDirectory) -> None:
        gone = sorted(before.users.keys() - after.users.keys())
        self.log.info(
            "the users file changed ({path}): {before} users were known, {now} are; removed: {gone}",
            path=self._file.path,
            before=len(before.users),
            now=len(after.users),
            gone=", ".join(gone[:10]) + (", ..." if len(gone) > 10 else "") if gone else "none",
        )
        self._grants.clear()
        self._with_passwords.clear()
        self._await_expiry()
        self._changed()

    def _changed(self) -> None:
        for call in tuple(self.changed):
            try:
                call()
            except Exception:
                self.log.failure("a callback for changed users raised an exception")

    def _await_expiry(self) -> None:
        self._cancel()
        now = self._looked = wall(self._clock)
        due = min((each.expires for each in self.directory.tokens.values() if each.expires > now), default=math.inf)
        if due < math.inf:
            self._timer = self._clock.callLater(min(due - now, LONGEST), self._look)

    def _look(self) -> None:
        self._timer = None
        before = self._looked
        self._await_expiry()
        if any(before < each.expires <= self._looked for each in self.directory.tokens.values()):
            self._changed()

    def _cancel(self) -> None:
        if self._timer is not None and self._timer.active():
            self._timer.cancel()
        self._timer = None

    def _known(self, principal: Principal) -> Principal:
        self._count("access_logins", principal.method.value)
        return principal

    def _refused(self, text: str) -> Refusal:
        self._count("access_refused", Reason.WRONG_CREDENTIALS.code)
        return Refusal(Reason.WRONG_CREDENTIALS, text)
