"""The incoming side of the exchange: the servers that are connected to one other broker.

Rules:
- Each connection of a server there is a link of the same server here, besides those that it may have here: `farm`
  recognises it by its addresses.
- A snapshot adds new links, to which the links from before are kept until its end: so what both report stays without
  any notice, and the remainder ends.
- When the link between the brokers ends, the servers stay known for `HELD_SECONDS`, without new users: their broker may
  be back by then, or they may connect elsewhere.
- A director that was restarted has no servers yet: for the rest of that time theirs are kept, until they connect again.
- A report that is refused changes nothing, and is counted.

Messages to servers that are connected to other brokers, and the confirmation that a reservation was delivered.

A message goes to the director that holds the link of the server, which passes it to that link and to nothing else: so
no message can circulate.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import attrs
from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IDelayedCall, IReactorTime

from broker.core.director.director_interfaces import Close, DoReserve, Order, Reinit, Relay, Say, Shutdown
from broker.core.director.farm import Farm
from broker.core.director.server_link import ServerLink
from broker.core.director.sharing import records
from broker.core.director.sharing.records import (
    DELIVERY_SECONDS,
    HELD_SECONDS,
    MAX_REMOTE_LINKS,
    Delivered,
    Record,
    Told,
)
from broker.core.errors import Reason, Refusal
from broker.core.model import Policy


@attrs.frozen(eq=False)
class _Waiting:
    """A reservation that is on its way to a server of another broker."""

    broker: str
    delivered: Deferred[bool]
    timer: IDelayedCall


class Orders:
    """Messages to servers of other brokers. ``send`` sends a record to a broker, and returns False if it cannot."""

    def __init__(self, clock: IReactorTime, send: Callable[[str, Record], bool]) -> None:
        self._clock = clock
        self._send = send
        self._waiting: dict[str, _Waiting] = {}
        self.sent = 0
        self.lost = 0

    def send(self, broker: str, link: int, order: Order) -> None:
        """Send a message to the server of that link at a broker."""
        if isinstance(order, DoReserve):
            timer = self._clock.callLater(DELIVERY_SECONDS, self.delivered, order.reservation, False)
            self._waiting[order.reservation] = _Waiting(broker, Deferred(), timer)
        if self._send(broker, record(link, order)):
            self.sent += 1
        else:
            self.lost += 1
            if isinstance(order, DoReserve):
                # Later: the caller asks for the Deferred after this returns.
                self._waiting[order.reservation].timer.reset(0)

    def delivery(self, reservation: str) -> Deferred[bool] | None:
        """Return the Deferred of a reservation that was just sent; None if its server is connected here."""
        waiting = self._waiting.get(reservation)
        return None if waiting is None else waiting.delivered

    def delivered(self, reservation: str, done: bool) -> None:
        """Take the confirmation, or its absence. No-op for an unknown reservation."""
        waiting = self._waiting.pop(reservation, None)
        if waiting is not None:
            if waiting.timer.active():
                waiting.timer.cancel()
            waiting.delivered.callback(done)

    def down(self, broker: str) -> None:
        """Give up on the confirmations of a broker."""
        for reservation in [each for each, waiting in self._waiting.items() if waiting.broker == broker]:
            self.delivered(reservation, False)

    def stop(self) -> None:
        """Give up on all confirmations."""
        for reservation in tuple(self._waiting):
            self.delivered(reservation, False)


class RemoteServer:
    """The `broker.core.director.director_interfaces.ProviderLink` of a server at another broker."""

    __slots__ = ("_broker", "_number", "_orders")

    def __init__(self, orders: Orders, broker: str, number: int) -> None:
        self._orders = orders
        self._broker = broker
        self._number = number

    def hear(self, order: Order) -> None:
        """Send a message to the server."""
        self._orders.send(self._broker, self._number, order)


def record(link: int, order: Order) -> Told:
    """Return the record of a message to a server."""
    op = type(order).__name__
    if isinstance(order, DoReserve):
        return Told(link, op, order.context, order.user, order.reservation)
    if isinstance(order, Say):
        return Told(link, op, order.context, order.user, order.text)
    if isinstance(order, Relay):
        assert isinstance(order.msg, dict), "only objects are relayed"
        return Told(link, op, order.context, order.user, msg=order.msg)
    if isinstance(order, Close):
        return Told(link, op, order.context, order.user, flag=order.dup)
    if isinstance(order, Shutdown):
        return Told(link, op, flag=order.kill)
    return Told(link, op)


def order_of(told: Told) -> Order | None:
    """Return the message of a record; None for an unknown or invalid one."""
    if told.op == DoReserve.__name__:
        return None if told.context is None else DoReserve(told.context, told.user, told.text)
    if told.op == Say.__name__:
        return Say(told.context, told.user, told.text)
    if told.op == Relay.__name__:
        return None if told.msg is None else Relay(told.context, told.user, told.msg)
    if told.op == Close.__name__:
        return Close(told.context, told.user, told.flag)
    if told.op == Shutdown.__name__:
        return Shutdown(told.flag)
    return Reinit() if told.op == Reinit.__name__ else None


def confirmation(told: Told, done: bool) -> Delivered | None:
    """Return the answer to a message, None for one without an answer."""
    return Delivered(told.text, done) if told.op == DoReserve.__name__ else None


class RemoteLink(ServerLink):
    """A connection of a Context Server to another broker."""

    __slots__ = ()

    def __init__(self, farm: Farm, label: str, link: RemoteServer, broker: str) -> None:
        super().__init__(farm, label, link, broker, remote=True)

    def reach(self, reachable: bool) -> None:
        """Apply that the broker can be reached, or cannot."""
        if not self._gone:
            self._farm.reach(self.server, self._report, reachable)


class Incoming:
    """The servers of one other broker, from the records of its director."""

    def __init__(self, clock: IReactorTime, farm: Farm, orders: Orders, broker: str) -> None:
        self._clock = clock
        self._farm = farm
        self._orders = orders
        self._broker = broker
        self._links: dict[int, RemoteLink] = {}
        self._old: list[RemoteLink] = []
        """Links from before the present snapshot, or before the end of the link between the brokers."""
        self._timer: IDelayedCall | None = None
        self._instance: int | None = None
        self._restarted = False
        self.refused = 0
        self._takers: dict[type[Record], Callable[[Any], None]] = {
            records.Joined: self._joined,
            records.Relabelled: lambda each: self._link(each).relabel(each.label),
            records.Address: lambda each: self._link(each).address(each.protocol, each.hostport),
            records.Serves: lambda each: self._link(each).will_serve(each.family, each.capacity, each.restricted),
            records.LoadReport: lambda each: self._link(each).load(each.factor),
            records.Judged: self._judged,
            records.Opened: self._opened,
            records.Closed: lambda each: self._link(each).closed(each.context),
            records.Gate: lambda each: self._link(each).gate(each.context, each.open, each.reason),
            records.Entered: self._entered,
            records.Exited: lambda each: self._link(each).exited(each.context, each.user),
            records.Left: self._left,
        }

    def __len__(self) -> int:
        return len(self._links) + len(self._old)

    def take(self, record: Record) -> bool:
        """Apply a report. Returns False if the record is none."""
        taker = self._takers.get(type(record))
        if taker is None:
            return False
        try:
            taker(record)
        except Refusal:
            self.refused += 1
        return True

    def hello(self, instance: int) -> None:
        """Take the number of the director's start."""
        self._restarted = self._instance not in (None, instance)
        self._instance = instance

    def begin(self) -> None:
        """Begin a snapshot."""
        self._old += self._links.values()
        self._links = {}

    def end(self) -> None:
        """End a snapshot: what it did not repeat is gone, unless the director was restarted."""
        if not self._restarted or self._timer is None:
            self.stop()
            self._leave_old()

    def down(self) -> None:
        """Keep the servers for a while without new users."""
        self.begin()
        for link in self._old:
            link.reach(False)
        if self._old and self._timer is None:
            self._timer = self._clock.callLater(HELD_SECONDS, self._over)

    def clear(self) -> None:
        """Remove all servers now."""
        self.begin()
        self.stop()
        self._leave_old()

    def stop(self) -> None:
        """Stop the timer."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    # Reports

    def _link(self, record: Any) -> RemoteLink:
        link = self._links.get(record.link)
        if link is None:
            raise Refusal(Reason.NOT_REGISTERED, f"no connection {record.link} of a server at {self._broker}")
        return link

    def _joined(self, record: records.Joined) -> None:
        if record.link in self._links:
            raise Refusal(Reason.NAME_TAKEN, f"connection {record.link} at {self._broker} is known")
        if len(self._links) >= MAX_REMOTE_LINKS:
            raise Refusal(Reason.LIMIT, f"{self._broker} shares {MAX_REMOTE_LINKS} connections, and no more are taken")
        server = RemoteServer(self._orders, self._broker, record.link)
        self._links[record.link] = RemoteLink(self._farm, record.label, server, self._broker)

    def _judged(self, record: records.Judged) -> None:
        try:
            policy = Policy(record.policy)
        except ValueError:
            raise Refusal(Reason.PARAMETER, "an unknown policy") from None
        self._link(record).judged(policy)

    def _opened(self, record: records.Opened) -> None:
        link = self._link(record)
        link.opened(record.context, record.yours, record.maxcap, record.basecap, record.restricted)
        if record.gate is not None:
            link.gate(record.context, False, record.gate)

    def _entered(self, record: records.Entered) -> None:
        link = self._link(record)
        for user in record.users:
            link.entered(record.context, user)

    def _left(self, record: records.Left) -> None:
        link = self._link(record)
        del self._links[record.link]
        link.leave()

    # Internals

    def _over(self) -> None:
        self._timer = None
        self._leave_old()

    def _leave_old(self) -> None:
        old, self._old = self._old, []
        for link in old:
            link.leave()
