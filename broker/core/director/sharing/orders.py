"""Messages to servers that are connected to other brokers, and the confirmation that a reservation was delivered.

A message goes to the director that holds the link of the server, which passes it to that link and to nothing else: so
no message can circulate.
"""

from __future__ import annotations

from collections.abc import Callable

import attrs
from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IDelayedCall, IReactorTime

from broker.core.director.interfaces import Close, DoReserve, Order, Reinit, Relay, Say, Shutdown
from broker.core.director.sharing.limits import DELIVERY_SECONDS
from broker.core.director.sharing.records import Delivered, Record, Told


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
    """The `broker.core.director.interfaces.ProviderLink` of a server at another broker."""

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
