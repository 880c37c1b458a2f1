"""Access by a users file, which is watched: authentication and rights of all listeners.

Rules:
- A wrong password, a right one of an unknown user, and a wrong token have the same answer.
- Passwords are checked in a thread. After wrong ones, an address is refused without a check for a time, and the answers
  for the user are delayed (`broker.access.password_backoff`).
- A principal keeps its rights as long as its credential is in the file, and the credential is no expired token.
- When the file changes, or a token expires, all sessions are notified at once.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from twisted.internet.defer import Deferred, fail
from twisted.internet.interfaces import IDelayedCall, IReactorTime
from twisted.logger import Logger

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
from broker.access.identity import network_of
from broker.access.logins import Logins
from broker.access.password_verifiers import ITERATIONS, KEY, MAX_PASSWORD, SALT, PasswordVerifier
from broker.access.principal import Method, Principal
from broker.core.errors import Reason, Refusal

NOBODY = PasswordVerifier(ITERATIONS, bytes(SALT), bytes(KEY), bytes(KEY))
"""The verifier that passwords of unknown users are compared with: the comparison takes as long as for a known user."""

LONGEST = 86_400.0
"""Seconds of the longest timer for the expiry of a token: the clock may be set meanwhile."""

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
        self._timer: IDelayedCall | None = None
        self._file: GuardedFile[UserDirectory] = GuardedFile(path, document.parse, clock, in_thread, self._take)
        self.log.info(
            "{users} users with {tokens} tokens are in {path}",
            users=len(self.directory.users),
            tokens=len(self.directory.tokens),
            path=path,
        )
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
        try:
            self._logins.guesses.admit(address)
            known = self.directory.users.get(user)
            verifiers = known.passwords if known is not None and known.passwords else (NOBODY,)
            if len(password.encode(errors="replace")) > MAX_PASSWORD:
                password = ""  # no verifier has it; the work is that of any other wrong password
            checked = self._logins.checks.run(_right_ones, verifiers, password, address=network_of(address))
        except Refusal as refusal:
            self._count("access_refused", refusal.reason.code)
            return fail(refusal)
        return checked.addCallback(partial(self._decide, user, address))

    def _decide(self, user: str, address: str, right: Sequence[PasswordVerifier]) -> Principal | Deferred[Principal]:
        # The file may have changed during the check.
        known = self.directory.users.get(user)
        still = [] if known is None else [verifier for verifier in right if verifier in known.passwords]
        delay = self._logins.delays.reply(user, "", bool(still), self._clock.seconds())
        result: Principal | Refusal
        if still:
            result = self._known(Principal(user, Method.PASSWORD, address, password_credential(still[0])))
        else:
            self._logins.guesses.failed(address)
            result = self._refused("the user or the password is wrong")
        if not delay:
            return _outcome(result)
        later: Deferred[Principal] = Deferred(lambda _: timer.cancel())
        timer = self._clock.callLater(delay, _fire, later, result)
        return later

    def by_token(self, token: str, address: str) -> Principal:
        """See `broker.access.principal.Access`."""
        self._logins.guesses.admit(address)
        hash = tokens.hashed(token[: tokens.MAX_TOKEN])
        found = self.directory.tokens.get(hash)
        if found is None or len(token) > tokens.MAX_TOKEN:
            self._logins.guesses.failed(address)
            raise self._refused("the token is unknown or revoked")
        if found.expires <= self._clock.seconds():
            # No guess: the token was right once, and its client may repeat it for days.
            raise self._refused(f"the token {found.label!r} of {found.user} has expired")
        return self._known(Principal(found.user, Method.TOKEN, address, token_credential(hash)))

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
        return token.expires > self._clock.seconds()

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
        now = self._clock.seconds()
        due = min((each.expires for each in self.directory.tokens.values() if each.expires > now), default=math.inf)
        if due < math.inf:
            self._timer = self._clock.callLater(min(due - now, LONGEST), self._expired)

    def _expired(self) -> None:
        self._timer = None
        self._await_expiry()
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


def _right_ones(verifiers: Sequence[PasswordVerifier], password: str) -> list[PasswordVerifier]:
    """Return those verifiers that the password fits. Slow: runs in a thread."""
    return [verifier for verifier in verifiers if verifier.check(password)]


def _outcome(result: Principal | Refusal) -> Principal:
    if isinstance(result, Refusal):
        raise result
    return result


def _fire(later: Deferred[Principal], result: Principal | Refusal) -> None:
    if isinstance(result, Refusal):
        later.errback(result)
    else:
        later.callback(result)
