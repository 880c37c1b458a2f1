"""Refusal of new connections, and the end of present ones, at a listener of lines that drains."""

from __future__ import annotations

import itertools
import json
from typing import Any

from twisted.internet.address import IPv4Address
from twisted.internet.testing import StringTransport

from broker.core.turns import SHARE
from broker.net.connection_limits import ConnectionLimits
from broker.net.line_protocol import LineFactory
from broker.net.refusal_log import Counters, RefusalLog
from broker.net.scheduler import Scheduler
from broker.wires.elko.codec.blocks import BlockReader
from broker.wires.elko.codec.broker_messages import VOCABULARY
from broker.wires.elko.sessions.authentication import AccessControl, Policy
from broker.wires.elko.sessions.broker_session import BrokerSession
from tests.ticking_clock import TickingClock
from tests.wires.recording import ElkoFarm

TEXT = "the broker is draining: connect to another one"


class Listener:
    """A listener of the Elko Broker without sockets."""

    def __init__(self) -> None:
        self.clock = TickingClock()
        self.farm = ElkoFarm()
        self.counters = Counters()
        turns = Scheduler(self.clock)
        refusal_log = RefusalLog(self.counters, self.clock)
        access = AccessControl(Policy())
        self.factory = LineFactory(
            "elko",
            lambda peer: (BlockReader(VOCABULARY), BrokerSession(self.farm.wiring, access, peer)),
            ConnectionLimits(),
            turns,
            refusal_log,
            self.clock,
            half_close=False,
        )

    def connect(self, port: int) -> Any:
        line: Any = self.factory.buildProtocol(IPv4Address("TCP", "10.0.0.1", port))
        line.makeConnection(StringTransport())
        return line

    def said(self, line: Any) -> list[str]:
        self.clock.advance(0)
        return [json.loads(each)["msg"] for each in line.transport.value().split(b"\n\n") if each]


def test_present_peers_are_told_and_closed() -> None:
    listener = Listener()
    lines = [listener.connect(1), listener.connect(2)]
    listener.factory.drain()
    for line in lines:
        assert listener.said(line) == [TEXT]
        assert line.transport.disconnecting
    assert listener.counters.get("elko_refused", "draining") == 2


def test_later_peers_are_refused_until_the_drain_is_undone() -> None:
    listener = Listener()
    listener.factory.drain()
    late = listener.connect(1)
    assert (listener.said(late), late.transport.disconnecting) == ([TEXT], True)
    assert late.turned_away is not None
    listener.factory.undrain()
    again = listener.connect(2)
    assert (listener.said(again), again.transport.disconnecting) == ([], False)


def test_a_further_drain_repeats_no_refusal() -> None:
    listener = Listener()
    line = listener.connect(1)
    listener.factory.drain()
    listener.factory.drain()
    assert listener.said(line) == [TEXT]


def test_many_peers_are_sent_away_in_several_turns() -> None:
    listener = Listener()
    lines = [listener.connect(port) for port in range(1, 41)]
    listener.clock.tick = SHARE / 10  # each of them takes that time, or more
    listener.factory.drain()
    counts = [0, sum(line.transport.disconnecting for line in lines)]
    assert listener.connect(99).turned_away is not None, "from the beginning"
    while counts[-1] < len(lines):
        assert len(counts) < 200
        listener.clock.turn()
        counts.append(sum(line.transport.disconnecting for line in lines))
    assert max(later - earlier for earlier, later in itertools.pairwise(counts)) <= 10
    listener.clock.tick = 0.0
    assert {*map(tuple, map(listener.said, lines))} == {(TEXT,)}


def test_an_end_of_the_drain_keeps_none_of_the_peers_that_it_sends_away() -> None:
    listener = Listener()
    lines = [listener.connect(port) for port in range(1, 41)]
    listener.clock.tick = SHARE / 10
    listener.factory.drain()
    listener.factory.undrain()
    newcomer = listener.connect(99)
    listener.clock.tick = 0.0
    assert {*map(tuple, map(listener.said, lines))} == {(TEXT,)}
    assert (listener.said(newcomer), newcomer.transport.disconnecting) == ([], False)


def test_one_connection_is_closed_by_its_address() -> None:
    listener = Listener()
    one, two = listener.connect(1), listener.connect(2)
    assert listener.factory.disconnect("10.0.0.1:1")
    assert listener.said(one) == ["an operator closed this connection"]
    assert (listener.said(two), two.transport.disconnecting) == ([], False)
    assert not listener.factory.disconnect("10.0.0.1:1")
    assert not listener.factory.disconnect("10.0.0.1:3")
