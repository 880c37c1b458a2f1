"""The gate of logins: the limit on guesses of passwords, one for all listeners and wires.

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
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable

import attrs

from broker.access.identity import network_of
from broker.access.password_verifiers import is_user
from broker.core.errors import Reason, Refusal
from broker.core.limits import ADDRESSES, Rates

GUESSES = 3
"""Wrong passwords for one name at one address, at once: people mistype."""

GUESS_EVERY = 4.0
"""Seconds for each further one. A longer time would let a stranger behind the same address keep the name out for
longer."""

ADDRESS_GUESSES = 30
"""Wrong passwords from one address for all names together, at once: the people of an office behind one address."""

ADDRESS_GUESS_EVERY = 1.0
"""Seconds for each further one: some 86,000 guesses a day, spread over as many names as the address likes."""

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
        """Return the names that have logged in from an address, the one unused for longest first."""
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
