"""The outgoing side of the exchange: the reports of the servers that are connected here, sent to the other directors.

Rules:
- Reports are gathered for one turn of the reactor, and encoded once for all brokers.
- Another director that says `Hello` gets a snapshot, in pieces, each with whole contexts as they are at that moment.
  From its first report on, a link is *announced*: later reports of it are sent at once. A report of a context whose
  turn has not come yet is refused by the recipient, and contained in its later piece.
- The next piece is made in a later turn, and only while at most `WINDOW` are not acknowledged.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

from twisted.internet.interfaces import IReactorTime
from twisted.logger import Logger

from broker.core.cluster.cluster_interfaces import ILinks
from broker.core.director.sharing.records import (
    CHANNEL,
    MESSAGE_WORK,
    WINDOW,
    Begin,
    End,
    Piece,
    Record,
    frames,
    line,
    size,
)

Described = Callable[[str], Iterator[tuple[int, Sequence[Record]]]]
"""Yields the snapshot for a broker: numbers of links, 0 for none, with records that are made at that moment."""


class OutgoingExchange:
    """The exchange with one other director, outgoing."""

    def __init__(self, pieces: Iterator[tuple[int, Sequence[Record]]]) -> None:
        self.pieces: Iterator[tuple[int, Sequence[Record]]] | None = pieces
        """The remainder of the snapshot; None if it is complete."""
        self.announced: set[int] = set()
        self.count = 0
        self.acknowledged = 0
        self.due = False


class Outgoing:
    """The reports to all other directors. ``describe`` makes the snapshot."""

    log = Logger()

    def __init__(self, clock: IReactorTime, links: ILinks, describe: Described) -> None:
        self._clock = clock
        self._links = links
        self._describe = describe
        self._feeds: dict[str, OutgoingExchange] = {}
        self._gathered: list[tuple[int, Record]] = []
        self._due = False
        self.unencodable = 0

    def brokers(self) -> Sequence[str]:
        """Return the brokers that reports are sent to."""
        return tuple(self._feeds)

    def add(self, link: int, record: Record) -> None:
        """Send a report of a link, or with 0 another record, in this turn of the reactor."""
        if self._feeds:
            self._gathered.append((link, record))
            if not self._due:
                self._due = True
                self._clock.callLater(0, self._turn)

    def begin(self, broker: str) -> None:
        """Send a broker the snapshot, and all reports from now on."""
        self.flush()
        feed = self._feeds[broker] = OutgoingExchange(self._describe(broker))
        self._send(broker, [Begin()])
        self._schedule(broker, feed)

    def end(self, broker: str) -> None:
        """Send a broker no more reports."""
        self._feeds.pop(broker, None)

    def taken(self, broker: str, number: int) -> None:
        """Take the acknowledgement of a piece."""
        feed = self._feeds.get(broker)
        if feed is not None and feed.acknowledged < number <= feed.count:
            feed.acknowledged = number
            self._schedule(broker, feed)

    def send(self, broker: str, record: Record) -> bool:
        """Send one record now, after all that was gathered. Returns False without a link."""
        self.flush()
        return self._send(broker, [record])

    def flush(self) -> None:
        """Send what was gathered."""
        gathered, self._gathered = self._gathered, []
        if not gathered:
            return
        whole = [broker for broker, feed in self._feeds.items() if feed.pieces is None]
        if whole:
            for message in self._messages(record for _, record in gathered):
                for broker in whole:
                    self._links.send(broker, CHANNEL, message)
        for broker, feed in self._feeds.items():
            if feed.pieces is not None:
                announced = feed.announced
                self._send(broker, [record for link, record in gathered if not link or link in announced])

    # Internals

    def _turn(self) -> None:
        self._due = False
        self.flush()

    def _send(self, broker: str, records: Iterable[Record]) -> bool:
        sent = True
        for message in self._messages(records):
            sent = self._links.send(broker, CHANNEL, message) and sent
        return sent

    def _messages(self, records: Iterable[Record]) -> Iterator[list[bytes]]:
        """Yield messages of at most `MESSAGE_WORK`, unless a single record has more."""
        lines: list[bytes] = []
        work = 0
        for record in records:
            try:
                lines.append(line(record))
            except (ValueError, OverflowError, RecursionError):
                # Nothing that a peer sends leads here, as far as is known; one report less is better than a stop.
                self.unencodable += 1
                self.log.warn("a report of kind {kind} cannot be shared", kind=type(record).__name__)
                continue
            work += size(record)
            if work >= MESSAGE_WORK:
                yield frames(lines)
                lines, work = [], 0
        if lines:
            yield frames(lines)

    def _schedule(self, broker: str, feed: OutgoingExchange) -> None:
        if feed.pieces is not None and not feed.due and feed.count - feed.acknowledged < WINDOW:
            feed.due = True
            self._clock.callLater(0, self._piece, broker, feed)

    def _piece(self, broker: str, feed: OutgoingExchange) -> None:
        feed.due = False
        if self._feeds.get(broker) is not feed or feed.pieces is None:
            return  # the link has ended, or another snapshot has begun
        # Gathered reports are older than the piece, which includes them.
        self.flush()
        records: list[Record] = []
        work = 0
        for link, described in feed.pieces:
            if link:
                feed.announced.add(link)
            records += described
            work += sum(map(size, described))
            if work >= MESSAGE_WORK:
                break
        else:
            feed.pieces = None
            records.append(End())
        feed.count += 1
        records.append(Piece(feed.count))
        self._send(broker, records)
        self._schedule(broker, feed)
