"""Access by a users file, which is watched: authentication and rights of all listeners.

Rules:
- A wrong password, a right one of an unknown user, and a wrong token have the same answer.
- Passwords pass the gate of all listeners, and are checked in a thread (`broker.access.logins`). So do tokens
  that a person chose, such as the code of an Elko server. Random tokens, certificates and keys, which cannot be
  guessed, do not pass the gate: guesses of others refuse none of them.
- A principal keeps its rights as long as its credential is in the file, and the credential is no expired token.
- When the file changes, or a token expires, all sessions are notified at once.

Watch of a file with users, which may change at any time.

Rules:
- A file with a mistake anywhere is not used at all. The start fails then. Later errors are not fatal: the last good
  value stays, and the error is logged once.
- A file without users does not replace one with users, unless it is marked as one without users (`IsEmptied`): it is
  rather the rest of a write that failed than the wish to lock out all users.
- Every `CHECK` seconds the stamp of the file is compared. The file is read when two checks in a row find the same new
  stamp, since it may be written during the first. `GuardedFile.refresh` reads it at once.
- Reading and parsing happen in a thread, one check at a time (`broker.core.file_watch`); the reactor thread is given a
  finished value.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Generic, TypeVar

import attrs
from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IDelayedCall, IReactorTime
from twisted.logger import Logger
from twisted.python.failure import Failure

from broker.access import users_document
from broker.access.logins import Attempt, Logins
from broker.access.passwords import PasswordVerifier
from broker.access.principal import Method, Principal
from broker.access.rights import Grants, grants_of
from broker.access.users_document import (
    User,
    UserDirectory,
    certificate_credential,
    password_credential,
    token_credential,
)
from broker.access.users_file import UNKNOWN, BadUsers, Stamp, read_stamped, stamp, unreadable
from broker.core.errors import Reason, Refusal
from broker.core.file_watch import FileWatch
from broker.wall_clock import wall

CHECK = 1.0
"""Seconds between checks of the stamp: a new user can log in two seconds after the file was written."""

V = TypeVar("V")

Parse = Callable[[str, str], V]
"""Parses a file: its path, for sentences, and its text. Raises `BadUsers`. Runs in a thread."""

IsEmptied = Callable[[V, V], bool]
"""Returns True if the second value lacks the users of the first one, and the mark of a file without users."""

EMPTIED = "has no users any more, and lacks the line that permits that"


@attrs.frozen
class FileCheck(Generic[V]):
    """Outcome of a check. Immutable, since the next check reads it in a thread."""

    stamp: Stamp
    """Stamp at the last check, `UNKNOWN` if it could not be found."""
    value: V
    """The last good value."""
    sure: bool = False
    """True if the file was read after two checks in a row had found this stamp."""
    problems: tuple[str, ...] = ()
    """Reasons why the file cannot be used now, as sentences."""


def first(path: str, parse: Parse[V]) -> FileCheck[V]:
    """Read the file at the start. Raises `BadUsers`."""
    text, found = read_stamped(path)
    return FileCheck(found, parse(path, text))


def look(path: str, parse: Parse[V], is_emptied: IsEmptied[V], before: FileCheck[V], now: bool) -> FileCheck[V]:
    """Check the file again. With ``now`` it is read whatever its stamp is."""
    if not now:
        try:
            found = stamp(path)
        except OSError as error:
            return _bad(before, unreadable(path, error))
        if found != before.stamp:
            return attrs.evolve(before, stamp=found, sure=False)
        if before.sure:
            return before
    try:
        text, found = read_stamped(path)
    except BadUsers as error:
        return _bad(before, error)
    if found == UNKNOWN or (found != before.stamp and not now):
        return attrs.evolve(before, stamp=found, sure=False)
    try:
        value = parse(path, text)
        if is_emptied(before.value, value):
            raise BadUsers(f"{path} {EMPTIED}")
    except BadUsers as error:
        return _bad(before, error, found, sure=not now)
    if value == before.value:
        return attrs.evolve(before, stamp=found, sure=not now, problems=())
    return FileCheck(found, value, sure=not now)


def _bad(before: FileCheck[V], error: BadUsers, found: Stamp = UNKNOWN, sure: bool = False) -> FileCheck[V]:
    """Return the outcome of a check that failed. Without a stamp, the next check reads the file again."""
    return attrs.evolve(before, stamp=found, sure=sure, problems=error.args)


class GuardedFile(Generic[V]):
    """The value in the file ``path``, which may change at any time.

    ``in_thread`` runs a function with arguments in a thread and returns a Deferred of its result. ``changed`` is called
    with the former and the new value after a change. Raises `BadUsers` if the file cannot be used.
    """

    log = Logger()

    def __init__(
        self,
        path: str,
        parse: Parse[V],
        is_emptied: IsEmptied[V],
        clock: IReactorTime,
        in_thread: Callable[..., Deferred[Any]],
        changed: Callable[[V, V], object],
    ) -> None:
        self.path = path
        self._parse = parse
        self._is_emptied = is_emptied
        self._in_thread = in_thread
        self._changed = changed
        self._seen = first(path, parse)
        self._watch = FileWatch(clock, CHECK, self._look)

    @property
    def value(self) -> V:
        """The last good value."""
        return self._seen.value

    @property
    def problems(self) -> tuple[str, ...]:
        """Reasons why the present file is not used, as sentences; empty if it is."""
        return self._seen.problems

    def refresh(self) -> Deferred[None]:
        """Read the file now. Fires when it was read, even if it cannot be used."""
        return self._watch.refresh()

    def use(self, path: str) -> Deferred[None]:
        """Watch the file at another path, and read it now. Until then, and if it is bad, the last value stays."""
        self.path = path
        return self.refresh()

    def stop(self) -> None:
        """Stop checking the file. Fires all Deferreds of `refresh`."""
        self._watch.stop()

    def _look(self, now: bool) -> Deferred[Any]:
        def looked(seen: FileCheck[V]) -> None:
            if not self._watch.stopped:
                self._take(seen)

        def failed(failure: Failure) -> None:
            self.log.failure("a defect in reading the users", failure)

        looking = self._in_thread(look, self.path, self._parse, self._is_emptied, self._seen, now)
        return looking.addCallback(looked).addErrback(failed)

    def _take(self, seen: FileCheck[V]) -> None:
        before, self._seen = self._seen, seen
        if seen.problems != before.problems:
            for text in seen.problems:
                self.log.error("the users known so far stay: {text}", text=text)
            if not seen.problems:
                self.log.info("the users in {path} can be read again", path=self.path)
        if seen.value is not before.value:
            self._changed(before.value, seen.value)


LONGEST = 60.0
"""Seconds of the longest timer for the expiry of a token: the time of day may be set meanwhile."""

Count = Callable[[str, str], object]
"""Raises a counter, by family and reason."""


class UsersAccess:
    """Implementation of `broker.access.principal.Access` by the users file at ``path``.

    Raises `broker.access.users_file.BadUsers` if the file cannot be used.
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
            path, users_document.parse, users_document.is_emptied, clock, in_thread, self._take
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
        hash = users_document.token_hash(token[: users_document.MAX_TOKEN])
        attempt = None if users_document.is_random_text(token) else self._attempt(address)
        found = self.directory.tokens.get(hash)
        if found is None or len(token) > users_document.MAX_TOKEN:
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
        """The first verifiers, by user."""
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
        """Read the file now. Fires when it was read, even if it cannot be used."""
        return self._file.refresh()

    def use(self, path: str) -> Deferred[None]:
        """Take the users of the file at that path, and watch it. Fires when it was read, even if it cannot be used."""
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
