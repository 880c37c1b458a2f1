"""Turns of DNS clients over TCP, which never authenticate."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import dns.message
from twisted.internet.address import IPv4Address

from broker.net.connection_limits import ConnectionLimits
from broker.net.scheduler import TURN, Scheduler
from broker.wires.dns.codec.dns_query import framed
from broker.wires.dns.dns_wire import DnsFactory
from tests.net.words import Wire
from tests.ticking_clock import TickingClock
from tests.wires.dns.recording import DnsFarm

QUERY = framed(dns.message.make_query("bank.elkobroker", "A").to_wire())


class Resolver:
    """A client. ``order`` has the names of those that were answered."""

    def __init__(self, factory: DnsFactory, name: str, order: list[str]) -> None:
        self._protocol = factory.buildProtocol(IPv4Address("TCP", "192.0.2.1", 4000))

        class Noted(Wire):
            def write(self, data: bytes) -> None:
                order.append(name)
                super().write(data)

        self._protocol.makeConnection(Noted())

    def ask(self) -> None:
        self._protocol.dataReceived(QUERY)


def test_a_client_that_has_asked_before_is_served_before_new_ones() -> None:
    clock, farm = TickingClock(), DnsFarm()
    turns = Scheduler(clock)
    network: Any = SimpleNamespace(scheduler=turns, refusal_log=farm.refusal_log, clock=clock, pool=None)
    factory = DnsFactory(farm.responder, ConnectionLimits(), network)
    order: list[str] = []
    old = Resolver(factory, "old", order)
    old.ask()
    new = [Resolver(factory, f"new {number}", order) for number in range(3)]
    clock.tick = TURN  # the first of them takes all time of this turn
    for each in (*new, old):
        each.ask()
    clock.tick = 0.0
    clock.turn()
    assert order == ["old", "new 0", "old", "new 1", "new 2"]
