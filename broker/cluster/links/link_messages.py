"""Control messages of links, as values; the settings and limits of links; and the link to one other member.

A message of a link has the name of its channel in the first frame. An empty name is that of control messages, whose
second frame is one of the words below::

    HELLO    VERSION NAME INSTANCE PEER-NAME PEER-INSTANCE    the connecting side introduces itself
    WELCOME  VERSION NAME INSTANCE PEER-NAME PEER-INSTANCE    the accepting side agrees: the link is open
    REFUSED  REASON                                           the accepting side does not agree, and closes
    PING     STAMP                                            both sides, each second
    PONG     STAMP                                            the answer

VERSION is that of the protocol in decimal digits. The names and instances are those of
`broker.core.cluster.cluster_interfaces.Member`, in UTF-8; PEER-NAME and PEER-INSTANCE are those of the receiver, as its
sender knows them. Unknown words and additional frames are ignored: a newer broker may send some.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Callable, Sequence

import attrs
from twisted.internet.interfaces import IDelayedCall

from broker.access.identity import is_local
from broker.backoff import Backoff
from broker.cluster.links.link_wire import Attempt, LinkPeer
from broker.config.endpoint import ZEndpoint
from broker.config.files import is_curve_key
from broker.core.cluster.cluster_interfaces import Member
from broker.core.errors import Malformed, Reason
from broker.core.interfaces import ILease
from broker.net.connection_limits import RouterLimits
from broker.wires.tables import Counter, connection_counters

CONTROL = b""
"""The channel of control messages."""

VERSION = 1
"""Version of the protocol."""

HELLO, WELCOME, REFUSED, PING, PONG = b"HELLO", b"WELCOME", b"REFUSED", b"PING", b"PONG"

MAX_WORD = 256
"""Bytes of a name, of an instance and of a reason. Names have at most 64 characters, instances fewer."""

STAMP = 8
"""Bytes of a stamp."""


@attrs.frozen
class Introduction:
    """Introduction of a side, by HELLO or WELCOME: ``name`` and ``instance`` of the sender, ``peer`` and
    ``peer_instance`` of the receiver as the sender knows it."""

    name: str
    instance: str
    peer: str
    peer_instance: str
    version: int = VERSION


def introduction(word: bytes, values: Introduction) -> list[bytes]:
    """Return the frames of HELLO or WELCOME."""
    texts = (values.name, values.instance, values.peer, values.peer_instance)
    return [CONTROL, word, b"%d" % values.version, *(text.encode() for text in texts)]


def read_introduction(frames: Sequence[bytes]) -> Introduction:
    """Decode HELLO or WELCOME. Raises `Malformed`."""
    if len(frames) < 7 or max(map(len, frames[:7])) > MAX_WORD:
        raise Malformed(Reason.SYNTAX, "an introduction has version, name, instance, and name and instance of its peer")
    version = frames[2]
    if not (version.isdigit() and len(version) < 10):
        raise Malformed(Reason.SYNTAX, "the version of the protocol is no number")
    try:
        name, instance, peer, peer_instance = (bytes(frame).decode() for frame in frames[3:7])
    except UnicodeDecodeError:
        raise Malformed(Reason.SYNTAX, "a name that is not UTF-8") from None
    return Introduction(name, instance, peer, peer_instance, int(version))


def refused(reason: str) -> list[bytes]:
    """Return the frames of REFUSED."""
    return [CONTROL, REFUSED, reason.encode()[:MAX_WORD]]


def read_refused(frames: Sequence[bytes]) -> str:
    """Return the reason of REFUSED, of any bytes."""
    return bytes(frames[2][:MAX_WORD]).decode("utf-8", "replace") if len(frames) > 2 else ""


def stamped(word: bytes, stamp: bytes) -> list[bytes]:
    """Return the frames of PING or PONG."""
    return [CONTROL, word, stamp]


def read_stamp(frames: Sequence[bytes]) -> bytes:
    """Return the stamp of PING or PONG. Raises `Malformed`."""
    if len(frames) < 3 or len(frames[2]) != STAMP:
        raise Malformed(Reason.SYNTAX, f"a stamp has {STAMP} bytes")
    return bytes(frames[2])


# Settings and limits of links.

WIRE = "cluster_links"
"""Name of the listener in counters and logs."""

PING_EVERY = 1.0
"""Seconds between two PINGs of each side."""

SILENCE = 3.0
"""Seconds without any message after which a link ends, on the clock that excludes stalls of this broker: three PINGs
are lost. With the pause of that clock a stopped broker is noticed within five seconds."""

CONNECT_WITHIN = 3.0
"""Seconds for a connection of TCP: a host that is off does not answer at all."""

AGAIN = Backoff(first=0.1, most=5.0, jitter=0.5)
"""Pauses between two attempts. The first one is short: after the start of a member, its neighbours may try before their
watch has shown each other's keys. The longest one delays a link after a partition by as much at most."""

ALIVE = 15.0
"""Seconds after a sign of life in which a neighbour without a link counts as alive: three of the longest pauses. A
member that etcd does not show may not have a link, but it connects, or accepts connections."""

STEADY = 10.0
"""Seconds after which an open link is taken for a success: a link that ends earlier counts as one more failure, so that
a pair that cannot agree does not connect ten times a second."""

MAX_CHANNEL = 32
"""Bytes of the name of a channel."""

LIMITS = RouterLimits(
    # Members, their replacements after a loss, and strangers until their handshake fails.
    connections=1_000,
    # A broker has one connection to each other. More come from one address if several brokers are on one machine.
    connections_per_address=100,
    # A burst of messages of topics, of one turn of the reactor or of a short pause of the neighbour.
    high_water=10_000,
)
"""Limits of the listener. The frame has the size of the largest one of all wires, 16 MiB: a message that a peer may
publish can travel."""


@attrs.frozen
class LinkSettings:
    """Settings of the links of a broker.

    ``endpoint`` is where the other brokers connect; None without a listener. ``secret_key`` is the CURVE secret key in
    Z85; without one, links are neither encrypted nor authenticated, which is possible on the loopback interface only.
    ``wire`` is the name in counters and logs. ``by_name``: of two members, the one with the lower name connects;
    otherwise the one that knows the endpoint of the other does.
    """

    endpoint: ZEndpoint | None
    secret_key: str | None = attrs.field(default=None, repr=False)
    limits: RouterLimits = LIMITS
    again: Backoff = AGAIN
    wire: str = WIRE
    by_name: bool = True


# The link to one other member: its state, and its figures for operators.

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

    ``since`` is the time of the last change of state, on the clock. ``heard`` is the time of the last message, or
    of the last proof of its key, in lifetime. ``rtt`` is the last measured round trip in seconds; None if unknown.
    ``reason`` says why the last link or attempt ended.
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
    heard: float = -math.inf
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
        return 0 if self.peer is None else self.peer.queued

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
    try:
        host.encode("idna")  # as the resolver does, whose exception would reach nobody
    except UnicodeError:
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


# Documentation of the counters of links, and of topics across brokers.


def link_counters(wire: str) -> tuple[Counter, ...]:
    """Return the documentation of the counters of the links of that name."""
    return (
        *connection_counters(wire),
        Counter(f"{wire}_dropped", "Dropped answers to PINGs: pong", "messages"),
        Counter(f"{wire}.up", "Open links", "links", gauge=True),
        Counter(f"{wire}.opened", "Opened links", "links"),
        Counter(f"{wire}.ended", "Ended links", "links"),
        Counter(f"{wire}.sent", "Messages sent by links", "messages"),
        Counter(f"{wire}.received", "Messages received by links", "messages"),
        Counter(f"{wire}.dropped", "Messages not sent, because the queue of the link was full", "messages"),
        Counter(f"{wire}.too_large", "Messages not sent, because they are too large", "messages"),
        Counter(f"{wire}.unknown", "Messages of unknown channels", "messages"),
    )


LINK_COUNTERS = (
    *link_counters(WIRE),
    Counter("remote_topics.sent", "Messages of topics sent to brokers", "messages"),
    Counter("remote_topics.dropped", "Messages of topics not sent, because the link had no room", "messages"),
    Counter("remote_topics.received", "Messages of topics received from brokers", "messages"),
    Counter("remote_topics.malformed", "Malformed messages of other brokers on topics", "messages"),
    Counter("remote_topics.beyond", "Topics beyond the bounds", "topics"),
    Counter("remote_topics.announced", "Topics that this broker has announced", "topics", gauge=True),
    Counter("remote_topics.wanted", "Topics that all other brokers have announced", "topics", gauge=True),
)
