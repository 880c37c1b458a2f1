"""The back-off after wrong passwords, for all wires on which there are passwords.

Rules:
- The first `FREE` failures cost nothing, each further one a pause of `BACKOFF`, until nothing has failed for `FORGET`.
- MTL, whose exchanges are checked in a thread, holds back the reply (`Delays`): it knows users, and counts for both the
  user and the address.
- Elko listeners and the console, which have one password for all, refuse attempts from the address for that time
  (`Guesses`), without comparing. An attempt that is refused so does not count as a failure.
"""

from __future__ import annotations

import hmac
from collections import OrderedDict
from collections.abc import Callable
from ipaddress import IPv6Address, IPv6Network, ip_address

from broker.core.backoff import Backoff
from broker.core.errors import Reason, Refusal

FREE = 3
"""Failures that cost no time: people mistype."""

BACKOFF = Backoff(first=1.0, most=4.0)
"""Seconds of back-off after the failures that follow. With more, anybody could keep a user out, or a server on the same
machine."""

FORGET = 600.0
"""Seconds after the last failure of a user or an address until they are forgotten."""

SITE = 64
"""Bits of an IPv6 address that attempts are counted by: a site has at least that network, and all addresses in it."""

MAX_REMEMBERED = 10_000
"""Users, and addresses, whose failures are remembered: as many as there are sessions."""


class Delays:
    """The time for which replies wait that tell a client whether its credentials were right.

    Both kinds wait, or the time alone would tell. Failures count for the user and for the address, so that neither
    many addresses nor many users help. A success clears those of the user only: somebody who has a password of his own
    must not get more tries for those of others.
    """

    def __init__(self) -> None:
        self._users = _Failures()
        self._addresses = _Failures()

    def reply(self, user: str, address: str, verdict: bool | None, now: float) -> float:
        """The seconds that a reply with this verdict waits, from now on. "" for a user or an address that is not known.

        For each outcome of a step this is to be called once.
        """
        if verdict is None:
            return 0.0
        failures = max(self._users.count(user, now), self._addresses.count(address, now))
        if verdict:
            self._users.clear(user)
        else:
            self._users.add(user, now)
            self._addresses.add(address, now)
        return _step(failures)


class Guesses:
    """The failed attempts at one password, by address. ``seconds`` gives the time of a clock."""

    def __init__(self, seconds: Callable[[], float]) -> None:
        self._seconds = seconds
        self._failures = _Failures()

    def wait(self, address: str) -> float:
        """The seconds for which attempts from this address are refused; 0 if one may be compared."""
        now, place = self._seconds(), _place(address)
        step = _step(self._failures.count(place, now))
        return max(0.0, step - self._failures.since(place, now)) if step else 0.0

    def failed(self, address: str) -> None:
        """An attempt from this address was compared, and was wrong."""
        self._failures.add(_place(address), self._seconds())

    def check(self, address: str, code: str, password: str) -> None:
        """Compare a code with the password, in constant time. Raises `Refusal` if it is wrong or comes too early."""
        wait = self.wait(address)
        if wait:
            text = f"too many wrong passwords from this address: refused for {wait:.1f} s"
            raise Refusal(Reason.TOO_MANY_GUESSES, text)
        if not hmac.compare_digest(code.encode(), password.encode()):
            self.failed(address)
            raise Refusal(Reason.WRONG_CREDENTIALS, "wrong password")


def _place(address: str) -> str:
    """The part of a ``host:port``, or of a host, for which failures count: of IPv6 the network that one site has."""
    host, colon, port = address.rpartition(":")
    if not colon or not port.isdecimal():
        host = address
    try:
        ip = ip_address(host)
    except ValueError:
        return host
    if isinstance(ip, IPv6Address):
        return str(ip.ipv4_mapped or IPv6Network((ip, SITE), strict=False))
    return host


def _step(failures: int) -> float:
    return 0.0 if failures < FREE else BACKOFF.after(failures - FREE + 1)


class _Failures:
    """Failures in a row, and when the last one was, of the names that failed last."""

    def __init__(self) -> None:
        self._failures: OrderedDict[str, tuple[int, float]] = OrderedDict()

    def count(self, name: str, now: float) -> int:
        count, last = self._failures.get(name, (0, now))
        return count if 0 <= now - last < FORGET else 0

    def since(self, name: str, now: float) -> float:
        """The seconds since the last failure, 0 if there was none."""
        return now - self._failures.get(name, (0, now))[1]

    def add(self, name: str, now: float) -> None:
        if name:
            self._failures[name] = (self.count(name, now) + 1, now)
            self._failures.move_to_end(name)
            if len(self._failures) > MAX_REMEMBERED:
                self._failures.popitem(last=False)

    def clear(self, name: str) -> None:
        self._failures.pop(name, None)
