"""Back-off after wrong passwords, for all wires with passwords.

Rules:
- The first `FREE` failures cause no pause, each further one a pause of `BACKOFF`. After `FORGET` without a failure, the
  count starts again at zero.
- MTL, whose exchanges are verified in a thread, delays the reply (`ReplyDelays`). It has users, and counts failures for
  both the user and the address.
- Elko listeners and the console, which have one password for all, refuse attempts from the address for that time
  (`GuessLimit`), without a comparison. An attempt that is refused so does not count as a failure.
"""

from __future__ import annotations

import hmac
from collections import OrderedDict
from collections.abc import Callable

from broker.access.identity import network_of
from broker.core.backoff import Backoff
from broker.core.errors import Reason, Refusal

FREE = 3
"""Failures without a pause: people mistype."""

BACKOFF = Backoff(first=1.0, most=4.0)
"""Seconds of back-off after the failures that follow. A longer one would let an attacker lock out a user, or a server
on the same machine."""

FORGET = 600.0
"""Seconds after the last failure of a user or an address until its count is discarded."""

MAX_REMEMBERED = 10_000
"""Users, and addresses, whose failures are stored: as many as there are sessions."""


place = network_of


class ReplyDelays:
    """Delays of replies that reveal if the credentials of a client were right.

    Replies to right and to wrong credentials are delayed alike, since the time would reveal the verdict too. Failures
    count for the user and for the address, so that neither many addresses nor many users avoid the back-off. A success
    clears the count of the user only: a client with a password of its own must not gain attempts at those of others.
    """

    def __init__(self) -> None:
        self._users = _Failures()
        self._addresses = _Failures()

    def reply(self, user: str, address: str, verdict: bool | None, now: float) -> float:
        """Return the delay in seconds, from ``now``, of the reply to one step of an exchange. Call it once a step.

        ``user`` and ``address`` are empty where they are unknown. A ``verdict`` of None is a step that decides nothing,
        and whose reply is not delayed.
        """
        if verdict is None:
            return 0.0
        # The counts before this verdict decide, so that a right and a wrong password wait equally long.
        failures = max(self._users.count(user, now), self._addresses.count(address, now))
        if verdict:
            self._users.clear(user)
        else:
            self._users.add(user, now)
            self._addresses.add(address, now)
        return _step(failures)


class GuessLimit:
    """Failed attempts at one password, by address. ``seconds`` returns the time of a clock, in seconds."""

    def __init__(self, seconds: Callable[[], float]) -> None:
        self._seconds = seconds
        self._failures = _Failures()

    def wait(self, address: str) -> float:
        """Return the seconds for which attempts from this address are refused; 0 if an attempt may be compared."""
        now, key = self._seconds(), network_of(address)
        step = _step(self._failures.count(key, now))
        return max(0.0, step - self._failures.since(key, now)) if step else 0.0

    def failed(self, address: str) -> None:
        """Count an attempt from this address that was compared, and was wrong."""
        self._failures.add(network_of(address), self._seconds())

    def admit(self, address: str) -> None:
        """Raise `Refusal` TOO_MANY_GUESSES if attempts from this address are refused now."""
        wait = self.wait(address)
        if wait:
            text = f"too many wrong passwords from this address: refused for {wait:.1f} s"
            raise Refusal(Reason.TOO_MANY_GUESSES, text)

    def check(self, address: str, code: str, password: str) -> None:
        """Compare a code with the password, in constant time. Raises `Refusal` if it is wrong or comes too early."""
        self.admit(address)
        if not hmac.compare_digest(code.encode(), password.encode()):
            self.failed(address)
            raise Refusal(Reason.WRONG_CREDENTIALS, "wrong password")


def _step(failures: int) -> float:
    return 0.0 if failures < FREE else BACKOFF.after(failures - FREE + 1)


class _Failures:
    """Consecutive failures by name, each with the time of the last one: a table bounded by `MAX_REMEMBERED`, from which
    the name with the oldest failure is evicted."""

    def __init__(self) -> None:
        self._failures: OrderedDict[str, tuple[int, float]] = OrderedDict()

    def count(self, name: str, now: float) -> int:
        count, last = self._failures.get(name, (0, now))
        # A clock that was set back gives a negative age, which must not keep a name locked out.
        return count if 0 <= now - last < FORGET else 0

    def since(self, name: str, now: float) -> float:
        """Return the seconds since the last failure; 0 if there was none."""
        return now - self._failures.get(name, (0, now))[1]

    def add(self, name: str, now: float) -> None:
        if name:
            self._failures[name] = (self.count(name, now) + 1, now)
            self._failures.move_to_end(name)
            if len(self._failures) > MAX_REMEMBERED:
                self._failures.popitem(last=False)

    def clear(self, name: str) -> None:
        self._failures.pop(name, None)
