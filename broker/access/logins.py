"""Logins: the limits on passwords that all listeners share, so that guesses at one listener count at the others.

Logins by name and password, for all wires: the gate, then the cache of verified passwords, then a check in a thread.

Rules:
- The gate comes first, so that a right password is refused as a wrong one while guesses
  are refused. It is asked again when the check begins: attempts that wait are no guesses that are admitted already.
- A password that was right a short while ago is not checked again: HTTP has it in every request, and a farm with one
  user comes back at once. Only right ones are kept, as a keyed BLAKE2 digest: neither a password nor a digest that
  another process could compare is in memory.
- Logins by one name and password have one check, while it waits and runs: a thousand servers with one user neither wait
  for a thousand checks nor fill the queue.
- An entry counts while its verifier is one of the user's, and no longer than `LIFETIME`.
- In the queue for threads, the names that have logged in from an address take turns with the other names there.

The gate of logins: the limit on guesses of passwords, one for all listeners and wires.

Rules:
- A wrong password takes a token of two buckets: that of the name at the address, and that of the address. An attempt
  is admitted while both have one. A right password takes none, so that a thousand servers with one name may log in at
  once.
- An attempt that is not admitted is refused without a comparison: the answer is the same for right and wrong ones.
- Attempts whose outcome is not known yet count as wrong ones: a thousand attempts at once are no thousand guesses.
- A name that has logged in from an address needs no token of the address's bucket there. So guesses at some names, from
  behind the same proxy or NAT, do not keep the servers behind it from coming back.
- All names that no user can have are one name, so that nothing is stored of them. Other names are treated alike whether
  there is such a user or not: the gate reveals no users.
- Tokens that a person chose pass the gate, under one name for all. Random tokens, keys and certificates do not: their
  256 bits cannot be guessed.

The names that have logged in from each address, in a file: after a restart of the broker, too, guesses at other
names do not keep them out.

Each line has a network and a name. The file is written some seconds after a change, in a thread. It is a help and no
record: a line that cannot be read is left out, and a disk that fails costs the help only.
"""

from __future__ import annotations

import secrets
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from hashlib import blake2b
from typing import Any

import attrs
from twisted.internet.defer import Deferred, fail, succeed
from twisted.internet.interfaces import IDelayedCall, IReactorTime
from twisted.logger import Logger
from twisted.python.failure import Failure

from broker import small_file
from broker.access.identity import network_of
from broker.access.passwords import (
    MAX_USER,
    Checked,
    PasswordChecks,
    PasswordVerifier,
    SameLogins,
    is_usable,
    is_user,
    matching,
)
from broker.blocking import blocking
from broker.core.errors import Reason, Refusal, at_limit
from broker.core.rates import ADDRESSES, Rates

GUESSES = 3
"""Wrong passwords for one name at one address, at once: people mistype."""

GUESS_EVERY = 4.0
"""Seconds for each further one. A longer time would let a stranger behind the same address keep the name out for
longer."""

ADDRESS_GUESSES = 30
"""Wrong passwords from one address for all names together, at once: the people of an office behind one address."""

ADDRESS_GUESS_EVERY = 1.0
"""Seconds for each further one: some 86,000 guesses a day, spread over any number of names."""

OF_NAME, OF_ADDRESS = (1 / GUESS_EVERY, GUESSES), (1 / ADDRESS_GUESS_EVERY, ADDRESS_GUESSES)
"""The rate and the burst of each bucket."""

MAX_REMEMBERED = 10_000
"""Names that have logged in: as many as there are sessions, at some 400 bytes each."""

REFUSED = "too many wrong passwords from this address: try again in a few seconds"
"""The answer to an attempt that is not admitted. It has no time: two answers to attempts at different moments would
differ, and so be no proof that the answer depends on nothing else."""

MAX_ENTRIES = MAX_REMEMBERED + 2 * ADDRESSES
"""Entries of all tables together: 12 MB at most."""

_TOKEN = "a token"
"""The name of all tokens that may be guessed. No name of a user has a blank."""

Key = tuple[str, str]
"""An address, and a name at it."""


class LoginGate:
    """The guesses of all addresses. ``seconds`` returns the time of a clock, in seconds."""

    def __init__(self, seconds: Callable[[], float]) -> None:
        self._names: Rates[Key] = Rates(seconds)
        self._addresses: Rates[str] = Rates(seconds)
        self._known: OrderedDict[Key, None] = OrderedDict()
        """Names that have logged in from an address, the one unused for longest first."""
        self.learned: Callable[[], object] = lambda: None
        """Callback for each name of a user that logs in from an address for the first time."""

    @property
    def entries(self) -> int:
        """The number of entries of all tables, of `MAX_ENTRIES`."""
        return len(self._known) + len(self._names) + len(self._addresses)

    def known(self) -> Iterable[Key]:
        """Return the names that have logged in from an address, the least recently used first."""
        return self._known

    def learn(self, known: Iterable[Key]) -> None:
        """Take names that logged in before a restart."""
        for key in known:
            self._keep(key)

    def admit(self, address: str, name: str) -> None:
        """Raise `Refusal` TOO_MANY_GUESSES unless an attempt would be admitted now."""
        self._admit(_key(address, name))

    def begin(self, address: str, name: str) -> Attempt:
        """Return an attempt, which counts as a wrong password until it is right. Raises `Refusal` as `admit`."""
        return self._begin(_key(address, name))

    def begin_token(self, address: str) -> Attempt:
        """Return an attempt as `begin`, by a token that may be guessed and names no user."""
        return self._begin((network_of(address), _TOKEN))

    def knows(self, address: str, name: str) -> bool:
        """Return True if that name has logged in from that address."""
        return _key(address, name) in self._known

    def _admit(self, key: Key) -> None:
        if not self._names.has(key, *OF_NAME) or not (key in self._known or self._addresses.has(key[0], *OF_ADDRESS)):
            raise Refusal(Reason.TOO_MANY_GUESSES, REFUSED)

    def _begin(self, key: Key) -> Attempt:
        self._admit(key)
        return Attempt(self, key, self._names.take(key, *OF_NAME), self._addresses.take(key[0], *OF_ADDRESS))

    def _give_back(self, attempt: Attempt) -> None:
        if attempt.of_name:
            self._names.give_back(attempt.key, *OF_NAME)
        if attempt.of_address:
            self._addresses.give_back(attempt.key[0], *OF_ADDRESS)

    def _remember(self, key: Key) -> None:
        new = key not in self._known
        self._keep(key)
        if new and is_user(key[1]):
            self.learned()

    def _keep(self, key: Key) -> None:
        """Make a key the last one of those that are known."""
        self._known[key] = None
        self._known.move_to_end(key)
        if len(self._known) > MAX_REMEMBERED:
            self._known.popitem(last=False)


@attrs.define(eq=False)
class Attempt:
    """An attempt that was admitted: a wrong password, unless `right` or `void` is called, once."""

    _gate: LoginGate
    key: Key
    of_name: bool
    of_address: bool
    """True where it took a token."""

    def right(self) -> None:
        """Count a right password."""
        self._gate._give_back(self)
        self._gate._remember(self.key)

    def void(self) -> None:
        """Count nothing: no password was compared."""
        self._gate._give_back(self)


def _key(address: str, name: str) -> Key:
    return network_of(address), name if is_user(name) else ""


KNOWN_LOGINS = "known_logins"
"""Name of the file in the state directory."""

WRITE_AFTER = 5.0
"""Seconds from the first change to the write: a farm that comes back makes one write, and not a thousand."""

MAX_ADDRESS = 100
"""Characters of a network: an IPv6 prefix has under 50."""

MAX_BYTES = MAX_REMEMBERED * (MAX_ADDRESS + MAX_USER + 2)
"""Bytes that are read of the file."""


class KnownLogins:
    """The file at ``path`` with the known logins of a gate. ``in_thread`` runs a function in a thread, and returns a
    Deferred of its result."""

    log = Logger()

    def __init__(
        self, path: str, gate: LoginGate, clock: IReactorTime, in_thread: Callable[..., Deferred[Any]]
    ) -> None:
        self._path = path
        self._gate = gate
        self._clock = clock
        self._in_thread = in_thread
        self._call: IDelayedCall | None = None
        self._stopped = False
        gate.learn(_read(path))
        gate.learned = self._learned

    def stop(self) -> None:
        """Stop writing."""
        self._stopped = True
        if self._call is not None:
            self._call.cancel()
            self._call = None

    def _learned(self) -> None:
        if self._call is None and not self._stopped:
            self._call = self._clock.callLater(WRITE_AFTER, self._write)

    def _write(self) -> None:
        def failed(failure: Failure) -> None:
            self.log.warn("{path} cannot be written: {why}", path=self._path, why=failure.getErrorMessage())

        self._call = None
        self._in_thread(_replace, self._path, tuple(self._gate.known())).addErrback(failed)


@blocking
def _read(path: str) -> list[Key]:
    """Return the names in the file, none if it cannot be read."""
    try:
        text = small_file.read(path, MAX_BYTES).decode("ascii", "replace")
    except ValueError:
        return []
    found = []
    for line in text.split("\n"):
        network, _, name = line.partition(" ")
        if network and len(network) <= MAX_ADDRESS and is_user(name):
            found.append((network, name))
    return found


@blocking
def _replace(path: str, known: Iterable[Key]) -> None:
    text = "".join(f"{network} {name}\n" for network, name in known if is_user(name) and network.isascii())
    small_file.replace(path, text.encode("ascii"))


# Rates of requests by address and by user, which HTTP, the console and Elko listeners share.


@attrs.define(eq=False)
class RequestLimits:
    """The limits, and the recent requests. A rate is in requests a second; 0 is no limit."""

    addresses: Rates[str]
    users: Rates[str]
    per_address: float = 0.0
    per_user: float = 0.0
    burst: float = 1_000
    on: bool = False
    """True if there is any limit: callers on a hot path check it first."""

    def use(self, per_address: float, per_user: float, burst: float) -> None:
        """Apply other limits."""
        self.per_address, self.per_user, self.burst = per_address, per_user, burst
        self.on = bool(per_address or per_user)

    def take(self, user: str, address: str) -> None:
        """Count a request of a user, "" for the anonymous one. Raises `Refusal` LIMIT beyond a rate."""
        if self.per_address and not self.addresses.take(network_of(address), self.per_address, self.burst):
            text = f"this address may make {self.per_address:g} requests a second"
            raise at_limit(text, "access.requests_per_address")
        if self.per_user and user and not self.users.take(user, self.per_user, self.burst):
            text = f"the user {user} may make {self.per_user:g} requests a second"
            raise at_limit(text, "access.requests_per_user")


def unlimited() -> RequestLimits:
    """Return limits that are off, for tests and tools."""
    return RequestLimits(Rates(float), Rates(float))


MOST = 10_000
"""Verified passwords: one for each session, at some 400 bytes each. Beyond it the one unused for longest goes."""

LIFETIME = 300.0
"""Seconds after which a password is checked again."""

Verifiers = Callable[[], Sequence[PasswordVerifier]]
"""Returns the present verifiers of a user; none for an unknown one."""


EACH_TURN = 20
"""Attempts with one check that are answered in one turn of the reactor: some 2 ms of logins."""

Later = Callable[[Callable[[], object]], object]
"""Calls a function in the next turn of the reactor."""


class PasswordLogins:
    """Checks of passwords. ``seconds`` returns the time of a clock, in seconds."""

    def __init__(self, gate: LoginGate, checks: PasswordChecks, seconds: Callable[[], float], later: Later) -> None:
        self._later = later
        self._gate = gate
        self._checks = checks
        self._seconds = seconds
        self._secret = secrets.token_bytes(32)
        self._verified: OrderedDict[bytes, tuple[PasswordVerifier, float]] = OrderedDict()
        self._checking: dict[bytes, SameLogins] = {}
        """Checks that wait or run, by digest."""

    def verify(self, name: str, password: str, address: str, verifiers: Verifiers, work: int) -> Deferred[Checked]:
        """Return a Deferred of the verifier that the password fits; of None if it is wrong.

        ``work`` is `broker.access.passwords.work_of` of all users of that kind. The Deferred fails with
        `Refusal` TOO_MANY_GUESSES, or LIMIT if too many passwords are being checked. It may be cancelled.
        """
        # Bounded before anything is kept: attempts wait for a thread.
        name = name if is_user(name) else ""
        password = password if is_usable(password) else ""  # no verifier has it; the work is that of any wrong one
        digest = self._digest(name, password)

        begin = partial(self._gate.begin, address, name)
        try:
            self._gate.admit(address, name)
            verifier = self._find(digest, verifiers())
            if verifier is not None:
                return succeed(self._right(digest, verifier, begin()))
            same = self._checking.get(digest)
            if same is not None:
                return same.join(begin)
            same = SameLogins()
            login = same.join(begin)
            turn = (network_of(address), self._gate.knows(address, name))
            begins = partial(self._begin, same, digest, verifiers)
            same.check = self._checks.run(matching, verifiers(), password, work, turn=turn, begin=begins)
        except Refusal as refusal:
            return fail(refusal)
        self._checking[digest] = same
        same.check.addBoth(self._checked, same, digest, verifiers)
        return login

    def _begin(
        self, same: SameLogins, digest: bytes, verifiers: Verifiers
    ) -> Callable[[list[PasswordVerifier]], Checked]:
        attempt = same.begin()

        def settle(fitting: list[PasswordVerifier]) -> Checked:
            # The users may have changed during the check.
            present = verifiers()
            verifier = next((each for each in fitting if each in present), None)
            return verifier if verifier is None else self._right(digest, verifier, attempt)

        return settle

    def _checked(self, result: Checked | Failure, same: SameLogins, digest: bytes, verifiers: Verifiers) -> None:
        self._checking.pop(digest, None)
        self._answer(result, same, digest, verifiers)

    def _answer(self, result: Checked | Failure, same: SameLogins, digest: bytes, verifiers: Verifiers) -> None:
        """Answer logins, some in each turn. Each but the one of the check counts for itself, as one after it would."""
        for _ in range(EACH_TURN):
            if not same.waiting:
                return
            login = same.waiting.popleft()
            try:
                if login is not same.leader and not isinstance(result, Failure):
                    attempt = login.begin()
                    if result is not None:
                        self._right(digest, result, attempt)
            except Refusal as refusal:
                login.done.errback(refusal)
            else:
                login.done.callback(result)
        self._later(partial(self._answer_others, result, same, digest, verifiers))

    def _answer_others(self, result: Checked | Failure, same: SameLogins, digest: bytes, verifiers: Verifiers) -> None:
        """Answer logins in a later turn. The users may have changed since the last one."""
        if isinstance(result, PasswordVerifier) and result not in verifiers():
            result = None
        self._answer(result, same, digest, verifiers)

    def _right(self, digest: bytes, verifier: PasswordVerifier, attempt: Attempt) -> PasswordVerifier:
        attempt.right()
        if digest not in self._verified:
            self._verified[digest] = (verifier, self._seconds() + LIFETIME)
            if len(self._verified) > MOST:
                self._verified.popitem(last=False)
        return verifier

    def _find(self, digest: bytes, present: Sequence[PasswordVerifier]) -> PasswordVerifier | None:
        """Return the verifier of a password that was right; None if it has to be checked."""
        verifier, until = self._verified.get(digest, (None, 0.0))
        if verifier is None:
            return None
        # The clock of another reactor may be set back: an entry of the future is too old as well.
        if not 0.0 < until - self._seconds() <= LIFETIME or verifier not in present:
            del self._verified[digest]
            return None
        self._verified.move_to_end(digest)
        return verifier

    def _digest(self, name: str, password: str) -> bytes:
        hashed = blake2b(key=self._secret, digest_size=32)
        for part in (name, password):
            data = part.encode("utf-8", "surrogatepass")
            hashed.update(len(data).to_bytes(8) + data)
        return hashed.digest()


@attrs.frozen(eq=False)
class Logins:
    """One instance of each limit.

    - ``gate``: guesses of passwords, by address and name.
    - ``passwords``: checks of passwords, behind the gate.
    - ``requests``: rates of requests, by address and user.
    """

    gate: LoginGate
    passwords: PasswordLogins
    requests: RequestLimits

    @classmethod
    def open(
        cls,
        seconds: Callable[[], float],
        in_thread: Callable[..., Deferred[Any]],
        requests: RequestLimits | None = None,
        later: Later = lambda call: call(),
    ) -> Logins:
        """Return new limits. ``seconds`` is the time of a clock; ``in_thread`` is as in `PasswordChecks`."""
        gate = LoginGate(seconds)
        passwords = PasswordLogins(gate, PasswordChecks(in_thread), seconds, later)
        return cls(gate, passwords, unlimited() if requests is None else requests)
