"""A hop between two brokers: a link with CURVE between two processes, each with a reactor, over the loopback interface.

A hop is half a round trip of one message at a time, through the reactors of both. The rest is CPU time for a message of
100 bytes: of the connecting process, which sends bursts of a hundred, one in each turn of its reactor, and of the
listening process.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from statistics import median, quantiles
from typing import Any

import attrs

from bench.harness import Figure, Scenario, at_most
from bench.processes import InProcess, own_reactor

PORT = 25_900
"""Port of the listener, on the loopback interface."""

BODY = bytes(100)
BURST = 100
"""Messages sent in one turn of the reactor, as for a burst of publications."""

WAITING = 2_000
"""Messages that may be unacknowledged: less than the high-water mark of a link."""

GOAL = 1.0
"""Milliseconds of a hop in the median."""

BROAD = 120.0
"""Seconds after which a run has failed."""

SECRETS = {"a": "a" * 40, "b": "b" * 40}
"""Secret keys in Z85. Any 32 bytes are one."""


@attrs.frozen
class Side:
    """The measurements of one process: CPU seconds and messages of the flow, and seconds of round trips."""

    cpu: float
    messages: int
    trips: Sequence[float] = ()


def _members() -> Any:
    from broker.cluster.links.link_wire import LinkKey
    from broker.core.cluster.cluster_interfaces import Member

    ends = {"a": "127.0.0.1:1", "b": f"127.0.0.1:{PORT}"}
    return {name: Member(name, "1", ends[name], LinkKey.of(SECRETS[name]).public) for name in "ab"}


class _Table:
    """Members that do not change."""

    def __init__(self, name: str) -> None:
        self.name = name

    def members(self) -> Sequence[Any]:
        return list(_members().values())

    def member(self, name: str) -> Any:
        return _members().get(name)

    def watch_members(self, changed: Callable[..., None]) -> Any:
        return None


def connect_links(name: str, port: int, receiver: Any) -> Any:
    """Open the links of a broker on the reactor."""
    from broker.cluster.links.link_messages import LinkSettings
    from broker.cluster.links.links import LinkContext, Links
    from broker.config import endpoint
    from broker.core.liveness import Leases
    from broker.core.place_table import Pool
    from broker.net.refusal_log import Counters, RefusalLog
    from broker.net.scheduler import Scheduler

    reactor = own_reactor()
    leases = Leases(reactor)
    context = LinkContext(Pool(100), Scheduler(reactor, leases.look), RefusalLog(Counters(), reactor), reactor, leases)
    links = Links(LinkSettings(endpoint.parse_zmq(f"tcp://127.0.0.1:{port}"), SECRETS[name]), context)
    links.serve("bench", receiver)
    links.bind()
    table: Any = _Table(name)
    links.start(table)
    return links


class _Listener:
    """The listening broker: echoes ``trip``, counts ``flow`` and acknowledges each burst, until the link is lost."""

    def __init__(self) -> None:
        self._began = 0.0
        self.cpu = 0.0
        self.messages = 0
        self._links = connect_links("b", PORT, self)

    def up(self, broker: str) -> None:
        pass

    def down(self, broker: str) -> None:
        if own_reactor().running:
            own_reactor().stop()

    def receive(self, broker: str, frames: Sequence[bytes]) -> None:
        if frames[0] == b"flow":
            if not self.messages:
                self._began = time.process_time()
            self.messages += 1
            if not self.messages % BURST:
                self._links.send(broker, "bench", [b"ack"])
            self.cpu = time.process_time() - self._began
        else:
            self._links.send(broker, "bench", frames)


def listen() -> Side:
    """Run the listening broker."""
    listener = _Listener()
    own_reactor().run()
    return Side(listener.cpu, listener.messages)


class _Connector:
    """The connecting broker, and its load: round trips first, then the flow."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._until = 0.0
        self._sent_at = 0.0
        self.trips: list[float] = []
        self.sent = 0
        self._acknowledged = 0
        self._flowing = False
        self._began = 0.0
        self.cpu = 0.0
        self._links = connect_links("a", 0, self)

    def up(self, broker: str) -> None:
        self._until = time.perf_counter() + self._seconds
        self._trip()

    def down(self, broker: str) -> None:
        pass

    def _send(self, *frames: bytes) -> None:
        self._links.send("b", "bench", frames)

    def _trip(self) -> None:
        self._sent_at = time.perf_counter()
        self._send(b"trip", BODY)

    def receive(self, broker: str, frames: Sequence[bytes]) -> None:
        if self._flowing:
            self._acknowledged += BURST
            return
        now = time.perf_counter()
        self.trips.append(now - self._sent_at)
        if now < self._until:
            self._trip()
            return
        self._flowing = True
        self._until = now + self._seconds
        self._began = time.process_time()
        self._flow()

    def _flow(self) -> None:
        reactor = own_reactor()
        if time.perf_counter() >= self._until:
            self.cpu = time.process_time() - self._began
            reactor.callLater(0.2, reactor.stop)
            return
        if self.sent - self._acknowledged <= WAITING:
            for _ in range(BURST):
                self._send(b"flow", BODY)
            self.sent += BURST
        reactor.callLater(0, self._flow)


def connect(seconds: float) -> Side:
    """Run the connecting broker."""
    connector = _Connector(seconds)
    own_reactor().run()
    trips = connector.trips
    return Side(connector.cpu, connector.sent, trips[len(trips) // 10 :])


def hops(seconds: float) -> list[Figure]:
    """One run."""
    there, here = InProcess(listen), InProcess(connect, seconds)
    try:
        sender, receiver = here.result(BROAD), there.result(BROAD)
    finally:
        here.stop()
        there.stop()
    return [
        at_most("a hop in the median, ms", 1e3 * median(sender.trips) / 2, GOAL, "{:.2f}"),
        Figure("a hop, 99 %, ms", f"{1e3 * quantiles(sender.trips, n=100)[98] / 2:.2f}"),
        Figure("CPU of sending a message, µs", f"{1e6 * sender.cpu / sender.messages:.1f}"),
        Figure("CPU of receiving a message, µs", f"{1e6 * receiver.cpu / receiver.messages:.1f}"),
        Figure("messages a second", f"{sender.messages / seconds:,.0f}"),
    ]


ROWS = {"hop": Scenario("A hop between two brokers", 3.0, hops)}
