"""A director that shares its servers, users, contexts and reservations with those of other brokers.

Each director sends the reports of its own Context Servers to the others (`outgoing`), and applies theirs (`incoming`)
to the same farm: a server of another broker is a server like any other, except that messages for it go over the link
between the brokers (`incoming.Orders`). Reservations are shared likewise (`grants`). A broker without a cluster
has a plain `Director`.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence

import attrs
from twisted.internet.interfaces import IReactorTime
from twisted.logger import Logger

from broker.core.cluster.cluster_interfaces import ILinks
from broker.core.director.director import Director
from broker.core.director.director_interfaces import (
    DirectorSettings,
    Granted,
    IContextServer,
    Order,
    ProviderLink,
    unlimited,
)
from broker.core.director.farm import Farm
from broker.core.director.farm_state import OpenContext, Reservation
from broker.core.director.server_link import ServerLink
from broker.core.director.sharing import records
from broker.core.director.sharing.grants import SharedGrants
from broker.core.director.sharing.incoming import Incoming, Orders, confirmation, order_of
from broker.core.director.sharing.outgoing import Outgoing
from broker.core.director.sharing.records import CHANNEL, MESSAGE_WORK, VERSION, Record, decode
from broker.core.model import Policy

# A connection of a Context Server to this broker, whose reports are shared with other directors.


class SharedLinks:
    """The connections of Context Servers to this broker, by their numbers here."""

    def __init__(self, farm: Farm, outgoing: Outgoing) -> None:
        self.farm = farm
        self.outgoing = outgoing
        self._links: dict[int, SharedLink] = {}
        self._count = 0

    def __len__(self) -> int:
        return len(self._links)

    def join(self, label: str, link: ProviderLink, room: Callable[[int], bool]) -> SharedLink:
        """Add a connection."""
        self._count += 1
        shared = self._links[self._count] = SharedLink(self, self._count, label, link, room)
        shared.share(records.Joined(self._count, shared.label))
        return shared

    def left(self, number: int) -> None:
        """Remove a connection that has ended."""
        del self._links[number]

    def tell(self, number: int, order: Order) -> bool:
        """Send a message that another director passes on to one connection. Returns False if it has ended."""
        link = self._links.get(number)
        if link is None:
            return False
        self.farm.notifier.add(link.receiver, order)
        self.farm.notifier.deliver()
        return True

    def describe(self) -> Iterator[tuple[int, Sequence[Record]]]:
        """Yield the number and the reports of each connection: a context with its users at once, as it is then."""
        for number, link in tuple(self._links.items()):
            if number not in self._links:
                continue
            yield number, link.head()
            for context in tuple(link.server.contexts.values()):
                if number not in self._links:
                    break
                described = link.describe(context)
                if described:
                    yield number, described


class SharedLink(ServerLink):
    """A connection: each report that is not refused is sent to the other directors."""

    __slots__ = ("_links", "number")

    def __init__(
        self, links: SharedLinks, number: int, label: str, link: ProviderLink, room: Callable[[int], bool]
    ) -> None:
        super().__init__(links.farm, label, link, links.farm.here, room=room)
        self._links = links
        self.number = number

    @property
    def label(self) -> str:
        """The label of the connection."""
        return self._report.label

    @property
    def receiver(self) -> ProviderLink:
        """The recipient of messages."""
        return self._report.link

    def share(self, record: Record) -> None:
        """Send a report to the other directors."""
        self._links.outgoing.add(self.number, record)

    # Reports

    def relabel(self, label: str) -> None:
        super().relabel(label)
        self.share(records.Relabelled(self.number, self.label))

    def address(self, protocol: str, hostport: str) -> None:
        super().address(protocol, hostport)
        self.share(records.Address(self.number, protocol, hostport))

    def will_serve(self, family: str, capacity: int, restricted: bool) -> None:
        super().will_serve(family, capacity, restricted)
        self.share(records.Serves(self.number, family, capacity, restricted))

    def load(self, factor: float) -> None:
        super().load(factor)
        self.share(records.LoadReport(self.number, factor))

    def judged(self, policy: Policy) -> None:
        super().judged(policy)
        self.share(records.Judged(self.number, policy.value))

    def opened(self, context: str, yours: bool, maxcap: int, basecap: int, restricted: bool) -> None:
        super().opened(context, yours, maxcap, basecap, restricted)
        self.share(records.Opened(self.number, context, yours, maxcap, basecap, restricted))

    def closed(self, context: str) -> None:
        super().closed(context)
        self.share(records.Closed(self.number, context))

    def gate(self, context: str, open: bool, reason: str | None) -> None:
        super().gate(context, open, reason)
        self.share(records.Gate(self.number, context, open, reason))

    def entered(self, context: str, user: str) -> None:
        super().entered(context, user)
        self.share(records.Entered(self.number, context, (user,)))

    def exited(self, context: str, user: str) -> None:
        super().exited(context, user)
        self.share(records.Exited(self.number, context, user))

    def leave(self) -> None:
        if not self._gone:
            super().leave()
            self._links.left(self.number)
            self.share(records.Left(self.number))

    # Snapshot

    def head(self) -> list[Record]:
        """Return all reports but those of contexts. The addresses come first, by which the server is recognised."""
        number, report = self.number, self._report
        described: list[Record] = [records.Joined(number, report.label)]
        described += [records.Address(number, *address) for address in report.addresses.items()]
        for family, restricted in report.families.items():
            described.append(records.Serves(number, family, report.capacity, restricted))
        described.append(records.LoadReport(number, self.server.load))
        if report.policy is not Policy.SHOW:
            described.append(records.Judged(number, report.policy.value))
        return described

    def describe(self, context: OpenContext) -> list[Record]:
        """Return the reports of this connection about a context and its users; none if it has closed."""
        bit = self._report.bit
        if self.server.contexts.get(context.name) is not context or not context.reporters & bit:
            return []
        number, name = self.number, context.name
        described: list[Record] = [
            records.Opened(
                number, name, context.yours, context.maxcap, context.basecap, context.restricted, context.gate
            )
        ]
        users = [user for user, reporters in context.users.items() if reporters & bit]
        described.extend(
            records.Entered(number, name, users[first : first + MESSAGE_WORK])
            for first in range(0, len(users), MESSAGE_WORK)
        )
        return described


class SharedDirector(Director):
    """The implementation of `IDirector` for a broker of a cluster, whose name is ``here``.

    It is the `broker.core.cluster.cluster_interfaces.LinkReceiver` of its channel.
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

    def join(self, label: str, link: ProviderLink, room: Callable[[int], bool] = unlimited) -> IContextServer:
        self._check_room(len(self._own))
        return self._own.join(label, link, room)

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
