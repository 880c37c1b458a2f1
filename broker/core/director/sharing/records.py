"""Codec of the messages between directors: one frame with a record in each line, which is a JSON array.

Pure: bytes and values. A record of an unknown kind, or an invalid one, is left out and counted: a newer broker may send
kinds that an older one ignores. A newer broker may append members, which an older one ignores, too.

A *link* is a connection of a Context Server, by its number at the director that sends the record. Each link is
described by the same reports as the Context Server sends (see
`broker.core.director.director_interfaces.IContextServer`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Union

import msgspec

VERSION = 1
"""Version of the records. Directors with different ones do not share."""


class Record(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """One record. ``tag`` is the first member."""


# Life of the exchange


class Hello(Record, frozen=True, gc=False, tag="hello"):
    """The director is here. ``instance`` is random for each start."""

    version: int
    instance: int


class Bye(Record, frozen=True, gc=False, tag="bye"):
    """The director has ended: its servers are gone."""


class Begin(Record, frozen=True, gc=False, tag="begin"):
    """A snapshot begins: what it repeats stays, all else of this director goes at its end."""


class End(Record, frozen=True, gc=False, tag="end"):
    """The snapshot is complete."""


class Piece(Record, frozen=True, gc=False, tag="piece"):
    """The end of a piece of a snapshot."""

    number: int


class Taken(Record, frozen=True, gc=False, tag="taken"):
    """The answer to `Piece`, by which a snapshot is as fast as its recipient."""

    number: int


# Reports of servers


class Joined(Record, frozen=True, gc=False, tag="joined"):
    """A new link, with its label."""

    link: int
    label: str


class Relabelled(Record, frozen=True, gc=False, tag="label"):
    """Another label."""

    link: int
    label: str


class Address(Record, frozen=True, gc=False, tag="address"):
    """An address for a protocol."""

    link: int
    protocol: str
    hostport: str


class Serves(Record, frozen=True, gc=False, tag="serves"):
    """A family of contexts."""

    link: int
    family: str
    capacity: int
    restricted: bool


class LoadReport(Record, frozen=True, gc=False, tag="load"):
    """The load of the server."""

    link: int
    factor: float


class Judged(Record, frozen=True, gc=False, tag="judged"):
    """The place in choices by the health check: the value of a `broker.core.model.Policy`."""

    link: int
    policy: str


class Opened(Record, frozen=True, gc=False, tag="open"):
    """An open context. ``gate`` is the reason to deny reservations, None while the gate is open."""

    link: int
    context: str
    yours: bool
    maxcap: int
    basecap: int
    restricted: bool
    gate: str | None = None


class Closed(Record, frozen=True, gc=False, tag="closed"):
    """A context has closed."""

    link: int
    context: str


class Gate(Record, frozen=True, gc=False, tag="gate"):
    """The gate of a context."""

    link: int
    context: str
    open: bool
    reason: str | None = None


class Entered(Record, frozen=True, gc=False, tag="entered"):
    """Users are in a context."""

    link: int
    context: str
    users: Sequence[str]


class Exited(Record, frozen=True, gc=False, tag="exited"):
    """A user has left a context."""

    link: int
    context: str
    user: str


class Left(Record, frozen=True, gc=False, tag="left"):
    """The end of a link."""

    link: int


# Reservations


class Grant(Record, frozen=True, gc=False, tag="grant"):
    """A reservation; see `broker.core.director.farm_state.Origin` and `broker.core.director.farm_state.Reservation`.

    ``anonymous`` is true for a user that is identified with the requesting connection; without it and without ``user``
    it is one that a Context Server sends. ``left`` is the time until it expires, in seconds.
    """

    broker: str
    instance: int
    number: int
    stamp: int
    requester: int
    protocol: str
    hostport: str
    name: str
    asked: str
    user: str | None
    anonymous: bool
    left: float


# Messages to servers


class Told(Record, frozen=True, gc=False, tag="told"):
    """A message to the server of a link: `broker.core.director.director_interfaces.Order`, by the name of its class.

    ``text`` is that of `Say` or the reservation, ``flag`` that of `Close` or `Shutdown`, ``msg`` that of `Relay`.
    """

    link: int
    op: str
    context: str | None = None
    user: str | None = None
    text: str = ""
    flag: bool = False
    msg: dict[str, object] | None = None


class Delivered(Record, frozen=True, gc=False, tag="delivered"):
    """The answer to a reservation for a server: ``done`` if it was sent to the server."""

    reservation: str
    done: bool


_KINDS = Union[  # noqa: UP007 - msgspec needs the type itself
    Hello, Bye, Begin, End, Piece, Taken, Joined, Relabelled, Address, Serves, LoadReport, Judged, Opened, Closed, Gate,
    Entered, Exited, Left, Grant, Told, Delivered,
]  # fmt: skip

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(_KINDS).decode


def line(record: Record) -> bytes:
    """Return the line of a record. Values that JSON cannot express raise ValueError."""
    return _encode(record)


def frames(lines: Iterable[bytes]) -> list[bytes]:
    """Return the frames of a message: one, since links limit their number."""
    return [b"\n".join(lines)]


def decode(message: Sequence[bytes]) -> tuple[list[Record], int]:
    """Return the records of a message, and the number of lines that are none."""
    records: list[Record] = []
    invalid = 0
    for frame in message:
        for each in frame.split(b"\n"):
            try:
                records.append(_decode(each))
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
                invalid += 1
    return records, invalid


def size(record: Record) -> int:
    """Return the work that a record causes: the number of its users, at least 1."""
    return len(record.users) or 1 if isinstance(record, Entered) else 1


# Limits of the exchange between directors, each with its unit and reason.

CHANNEL = "director"
"""The channel of the links between brokers. It is not lossy."""

MESSAGE_WORK = 500
"""Users and other reports in one message: some 3 ms at the recipient, and some 40 KB."""

WINDOW = 4
"""Pieces of a snapshot that may be unacknowledged. A link ends when its queue is full, and a snapshot that was sent at
once could fill it each time."""

HELD_SECONDS = 10.0
"""Seconds for which the servers of another broker stay known after the link to it has ended: as long as the entries of
a broker that died stay in etcd by default. Users are found there for as long, and reservations kept."""

DELIVERY_SECONDS = 2.0
"""Seconds within which the director that holds a server must confirm that the server was sent a reservation."""

MAX_REMOTE_LINKS = 20_000
"""Links of one other broker that are shared: twice the default limit of a director."""

MAX_WAITING_GRANTS = 20_000
"""Reservations for servers that are not known yet, after a restart. Some 10 MB; they expire like all others."""
