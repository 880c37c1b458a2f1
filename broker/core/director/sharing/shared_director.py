"""A director that shares its servers, users, contexts and reservations with those of other brokers.

Each director sends the reports of its own Context Servers to the others (`outgoing`), and applies theirs (`incoming`)
to the same farm: a server of another broker is a server like any other, except that messages for it go over the link
between the brokers (`orders`). Reservations are shared likewise (`grants`). A broker without a cluster has a plain
`Director`.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence

import attrs
from twisted.internet.interfaces import IReactorTime
from twisted.logger import Logger

from broker.core.cluster.interfaces import ILinks
from broker.core.director.director import Director
from broker.core.director.interfaces import DirectorSettings, Granted, IContextServer, ProviderLink
from broker.core.director.sharing import records
from broker.core.director.sharing.grants import SharedGrants
from broker.core.director.sharing.incoming import Incoming
from broker.core.director.sharing.limits import CHANNEL
from broker.core.director.sharing.orders import Orders, confirmation, order_of
from broker.core.director.sharing.outgoing import Outgoing
from broker.core.director.sharing.records import VERSION, Record, decode
from broker.core.director.sharing.shared_link import SharedLinks
from broker.core.director.state import Reservation


class SharedDirector(Director):
    """The implementation of `IDirector` for a broker of a cluster, whose name is ``here``.

    It is the `broker.core.cluster.interfaces.LinkReceiver` of its channel.
    """

    log = Logger()

    def __init__(self, clock: IReactorTime, settings: DirectorSettings, links: ILinks, here: str) -> None:
        super().__init__(clock, settings, here)
        self._clock = clock
        self._between = links
        self._outgoing = Outgoing(clock, links, self._describe)
        self._own = SharedLinks(self._farm, self._outgoing)
        self._orders = Orders(clock, self._outgoing.send)
        self._grants = SharedGrants(clock, self._farm, self._reservations, self._outgoing)
        self._placer.grants = self._grants
        self._farm.addressed = self._grants.server_known
        self._incoming: dict[str, Incoming] = {}
        self._invalid = 0
        self._ended = False
        self._greeted: set[str] = set()
        links.serve(CHANNEL, self)

    # Of `IDirector`

    def join(self, label: str, link: ProviderLink) -> IContextServer:
        self._check_room(len(self._own))
        return self._own.join(label, link)

    def reserve(
        self, requester: Hashable, protocol: str, context: str, user: str | None, internal: bool, most: int
    ) -> Granted:
        granted = super().reserve(requester, protocol, context, user, internal, most)
        delivered = self._orders.delivery(granted.reservation)
        if delivered is None:
            return granted
        delivered.addCallback(self._end_undelivered, self._grants.latest)
        return attrs.evolve(granted, delivered=delivered)

    def counts(self) -> Mapping[str, int]:
        return {
            **super().counts(),
            "remote_links": sum(map(len, self._incoming.values())),
            "orders_sent": self._orders.sent,
            "orders_lost": self._orders.lost,
            "reports_refused": sum(each.refused for each in self._incoming.values()) + self._grants.dropped,
            "reports_invalid": self._invalid + self._outgoing.unencodable,
        }

    def stop(self, farewell: bool) -> None:
        """End the exchange. With ``farewell`` the others remove the servers of this director at once; without it they
        keep them for a while, since this director may be restarted."""
        if self._ended:
            return
        self._ended = True
        for broker in self._outgoing.brokers():
            if farewell:
                self._outgoing.send(broker, records.Bye())
            self._outgoing.end(broker)
        self._orders.stop()
        for incoming in self._incoming.values():
            incoming.stop()

    # Called by the links

    def up(self, broker: str) -> None:
        """Announce this director to a broker; one that has a director answers alike, and both send a snapshot."""
        if not self._ended:
            self._greeted.add(broker)
            self._outgoing.send(broker, records.Hello(VERSION, self._grants.instance))

    def down(self, broker: str) -> None:
        """Keep the servers of a broker for a while."""
        self._greeted.discard(broker)
        self._outgoing.end(broker)
        self._orders.down(broker)
        incoming = self._incoming.get(broker)
        if incoming is not None and not self._ended:
            incoming.down()
            self._notifier.deliver()

    def receive(self, broker: str, frames: Sequence[bytes]) -> None:
        """Take a message of another director."""
        if self._ended:
            return
        taken, invalid = decode(frames)
        self._invalid += invalid
        for record in taken:
            self._take(broker, record)
        self._notifier.deliver()

    # Internals

    def _end_undelivered(self, done: bool, reservation: Reservation | None) -> bool:
        if not done and reservation is not None:
            self._reservations.end(reservation)
        return done

    def _take(self, broker: str, record: Record) -> None:
        if isinstance(record, records.Hello):
            self._hello(broker, record)
            return
        incoming = self._incoming.get(broker)
        if incoming is None:
            return  # a director of another version
        if incoming.take(record):
            return
        if isinstance(record, records.Grant):
            self._grants.take(record)
        elif isinstance(record, records.Told):
            order = order_of(record)
            done = order is not None and self._own.tell(record.link, order)
            answer = confirmation(record, done)
            if answer is not None:
                self._outgoing.send(broker, answer)
        elif isinstance(record, records.Delivered):
            self._orders.delivered(record.reservation, record.done)
        elif isinstance(record, records.Piece):
            self._outgoing.send(broker, records.Taken(record.number))
        elif isinstance(record, records.Taken):
            self._outgoing.taken(broker, record.number)
        elif isinstance(record, records.Begin):
            incoming.begin()
        elif isinstance(record, records.End):
            incoming.end()
        elif isinstance(record, records.Bye):
            self._outgoing.end(broker)
            self._orders.down(broker)
            incoming.clear()

    def _hello(self, broker: str, record: records.Hello) -> None:
        if record.version != VERSION:
            self.log.warn(
                "the director of {broker} has version {version} of the exchange, this one {own}: they do not share",
                broker=broker,
                version=record.version,
                own=VERSION,
            )
            return
        if broker not in self._incoming:
            self._incoming[broker] = Incoming(self._clock, self._farm, self._orders, broker)
        self._incoming[broker].hello(record.instance)
        if broker not in self._greeted:
            # Its `up` came before that of this side.
            self.up(broker)
        self._outgoing.begin(broker)

    def _describe(self, broker: str) -> Iterator[tuple[int, Sequence[Record]]]:
        yield from self._own.describe()
        for grant in self._grants.describe(broker, self._outgoing.brokers()):
            yield 0, (grant,)
