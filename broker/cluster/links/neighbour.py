"""The link to one other member: its state, and its figures for operators."""

from __future__ import annotations

import enum
from collections.abc import Callable

import attrs
from twisted.internet.interfaces import IDelayedCall

from broker.access.identity import is_local
from broker.cluster.links.connections import Attempt, LinkPeer
from broker.cluster.links.settings import SILENCE
from broker.config.files import is_curve_key
from broker.core.cluster.interfaces import Member
from broker.core.interfaces import ILease

PORTS = range(1, 65_536)


class LinkState(enum.Enum):
    """State of a link. The member with the lower name connects; the other one expects the connection."""

    WAITING = "waiting"
    """A pause until the next attempt."""
    CONNECTING = "connecting"
    """An attempt, up to the neighbour's WELCOME."""
    EXPECTED = "expected"
    """The neighbour is to connect."""
    UP = "up"
    """The link is open."""
    IMPOSSIBLE = "impossible"
    """One side has no endpoint, or no usable key."""


@attrs.define(eq=False)
class Neighbour:
    """A member other than this broker.

    ``since`` is the time of the last change of state, on the clock. ``heard`` is the time of the last message in
    lifetime. ``rtt`` is the last measured round trip in seconds; None if unknown. ``reason`` says why the last link or
    attempt ended.
    """

    member: Member
    since: float
    silent: Callable[[Neighbour], None]
    slack: float
    state: LinkState = LinkState.EXPECTED
    peer: LinkPeer | None = None
    attempt: Attempt | None = None
    timer: IDelayedCall | None = None
    lease: ILease | None = None
    ending: bool = False
    """The link is to end in the next turn of the reactor: nothing is sent or received any more."""
    heard: float = 0.0
    asked: bytes = b""
    """Stamp of the last PING."""
    rtt: float | None = None
    failures: int = 0
    """Consecutive attempts that failed, and links that ended soon."""
    reason: str = ""
    sent: int = 0
    received: int = 0
    dropped: int = 0

    @property
    def name(self) -> str:
        """The name of the member."""
        return self.member.name

    @property
    def queued(self) -> int:
        """The number of messages that wait for the neighbour to read."""
        return 0 if self.peer is None else len(self.peer.out) - self.peer.bodies

    def enter(self, state: LinkState, now: float) -> None:
        """Change the state."""
        if state is not self.state:
            self.state = state
            self.since = now

    def check(self, now: float) -> float | None:
        """See `broker.core.interfaces.Leased`: end the link of a silent neighbour."""
        due = self.heard + SILENCE + self.slack
        if now < due:
            return due
        self.lease = None
        self.silent(self)
        return None

    def cancel(self) -> None:
        """Cancel timer, lease and attempt."""
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None
        if self.lease is not None:
            self.lease.cancel()
            self.lease = None
        if self.attempt is not None:
            self.attempt.stop()
            self.attempt = None


def address(link: str) -> tuple[str, int] | None:
    """Return host and port of an endpoint ``host:port`` or ``[IPv6]:port``; None for any other text."""
    host, _, port = link.removeprefix("tcp://").rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not host or not (port.isascii() and port.isdigit()) or int(port) not in PORTS:
        return None
    return host, int(port)


def obstacle(member: Member, curve: bool, connects: bool) -> str:
    """Return the reason for which no link to a member is possible; empty if there is none.

    ``curve`` is True if this broker has a key; ``connects`` is True if this broker is the connecting side.
    """
    if curve and not is_curve_key(member.key):
        return "it has published no key" if not member.key else "it has published a key that is none"
    if not curve and member.key:
        return "it has a key, and this broker has none"
    if not connects:
        return ""
    where = address(member.link)
    if where is None:
        return "it has published no endpoint" if not member.link else "it has published an endpoint that is none"
    if not curve and not is_local(where[0]):
        return "a link without keys is possible on the loopback interface only"
    return ""
