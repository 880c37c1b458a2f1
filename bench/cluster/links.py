"""The cost and the latency of a hop between two brokers, with the broker's own ZMTP and with libzmq as connecting side.

    python -m bench.cluster.links [--seconds S] [--runs N] [--json FILE]

Two processes, each with a reactor, and a link with CURVE between them over the loopback interface:

- ``own``: `broker.cluster.links` on both sides.
- ``txzmq``: a DEALER of txZMQ connects to the listener of `broker.cluster.links`. libzmq listens in no variant: it
  gives a listener no defence (docs/adr/0025).

Columns: a hop is half a round trip of one message at a time, through the reactors of both; the rest is CPU time of
the connecting process for a message of 100 bytes that it sends, in bursts of a hundred for each turn of its reactor,
and of the listening process that receives it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from statistics import median, quantiles
from typing import Any

import attrs

from bench.common import command
from bench.common.processes import InProcess
from bench.common.report import table

PORT = 25_900
"""Port of the listener, on the loopback interface."""

BODY = bytes(100)
BURST = 100
"""Messages sent in one turn of the reactor, as for a burst of publications."""

WAITING = 2_000
"""Messages that may be unacknowledged: less than the high-water mark of a link."""

GOAL = 0.001
"""Seconds of a hop in the median."""

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

    def watch_members(self, changed: Callable[..., None]) -> Any:
        return None


def connect_links(name: str, port: int, receiver: Any) -> Any:
    """Open the links of a broker on the reactor."""
    from twisted.internet import reactor as _reactor

    reactor: Any = _reactor

    from broker.cluster.links.link_messages import LinkSettings
    from broker.cluster.links.links import LinkContext, Links
    from broker.config import zmq_endpoint
    from broker.core.counters import Counters
    from broker.core.liveness import Leases
    from broker.core.place_table import Pool
    from broker.net.rate_limits import Complaints
    from broker.net.scheduler import Scheduler

    leases = Leases(reactor)
    context = LinkContext(Pool(100), Scheduler(reactor, leases.look), Complaints(Counters(), reactor), reactor, leases)
    links = Links(LinkSettings(zmq_endpoint.parse(f"tcp://127.0.0.1:{port}"), SECRETS[name]), context)
    links.serve("bench", receiver)
    links.bind()
    table: Any = _Table(name)
    links.start(table)
    return links


def listen() -> Side:
    """The listening broker: echoes ``trip``, counts ``flow`` and acknowledges each burst; ends by ``end``."""
    from twisted.internet import reactor as _reactor

    reactor: Any = _reactor

    class Receiver:
        began = 0.0
        cpu = 0.0
        messages = 0

        def up(self, broker: str) -> None:
            pass

        def down(self, broker: str) -> None:
            if reactor.running:
                reactor.stop()

        def receive(self, broker: str, frames: Sequence[bytes]) -> None:
            if frames[0] == b"flow":
                if not self.messages:
                    self.began = time.process_time()
                self.messages += 1
                if not self.messages % BURST:
                    links.send(broker, "bench", [b"ack"])
                self.cpu = time.process_time() - self.began
            else:
                links.send(broker, "bench", frames)

    receiver = Receiver()
    links = connect_links("b", PORT, receiver)
    reactor.run()
    return Side(receiver.cpu, receiver.messages)


class _Load:
    """The load of the connecting side: round trips first, then the flow. ``send`` takes the frames of a message."""

    def __init__(self, seconds: float, send: Callable[[list[bytes]], object], end: Callable[[], object]) -> None:
        self._seconds = seconds
        self._send = send
        self._end = end
        self._until = 0.0
        self._sent_at = 0.0
        self.trips: list[float] = []
        self.sent = 0
        self._acknowledged = 0
        self._flowing = False
        self.cpu = 0.0

    def begin(self) -> None:
        self._until = time.perf_counter() + self._seconds
        self._trip()

    def _trip(self) -> None:
        self._sent_at = time.perf_counter()
        self._send([b"trip", BODY])

    def receive(self, frames: Sequence[bytes]) -> None:
        if not self._flowing:
            now = time.perf_counter()
            self.trips.append(now - self._sent_at)
            if now < self._until:
                self._trip()
                return
            self._flowing = True
            self._until = now + self._seconds
            self.began = time.process_time()
            self._flow()
        else:
            self._acknowledged += BURST

    def _flow(self) -> None:
        from twisted.internet import reactor as _reactor

        reactor: Any = _reactor
        if time.perf_counter() >= self._until:
            self.cpu = time.process_time() - self.began
            self._end()
            return
        if self.sent - self._acknowledged <= WAITING:
            for _ in range(BURST):
                self._send([b"flow", BODY])
            self.sent += BURST
        reactor.callLater(0, self._flow)

    def side(self) -> Side:
        return Side(self.cpu, self.sent, self.trips[len(self.trips) // 10 :])


def connect_own(seconds: float) -> Side:
    """The connecting broker."""
    from twisted.internet import reactor as _reactor

    reactor: Any = _reactor

    class Receiver:
        def up(self, broker: str) -> None:
            load.begin()

        def down(self, broker: str) -> None:
            pass

        def receive(self, broker: str, frames: Sequence[bytes]) -> None:
            load.receive(frames)

    load = _Load(seconds, lambda frames: links.send("b", "bench", frames), lambda: reactor.callLater(0.2, reactor.stop))
    links = connect_links("a", 0, Receiver())
    reactor.run()
    return load.side()


def connect_txzmq(seconds: float) -> Side:
    """A DEALER of txZMQ that speaks the protocol of links."""
    import zmq
    from twisted.internet import reactor as _reactor

    reactor: Any = _reactor
    from txzmq import ZmqConnection, ZmqEndpoint, ZmqFactory

    from broker.cluster.links.link_messages import HELLO, PING, WELCOME, Introduction, introduction

    members = _members()

    class Dealer(ZmqConnection):  # type: ignore[misc]
        socketType = zmq.DEALER

        def messageReceived(self, frames: list[bytes]) -> None:
            if frames[0]:
                load.receive(frames[1:])
            elif frames[1] == PING:
                self.send([b"", b"PONG", frames[2]])
            elif frames[1] == WELCOME:
                load.begin()

    dealer = Dealer(ZmqFactory())
    dealer.socket.curve_serverkey = members["b"].key.encode()
    dealer.socket.curve_publickey = members["a"].key.encode()
    dealer.socket.curve_secretkey = SECRETS["a"].encode()
    dealer.addEndpoints([ZmqEndpoint("connect", f"tcp://127.0.0.1:{PORT}")])
    load = _Load(
        seconds,
        lambda frames: dealer.send([b"bench", *frames]),
        lambda: reactor.callLater(0.2, reactor.stop),
    )
    dealer.send(introduction(HELLO, Introduction("a", "1", "b", "1")))
    reactor.run()
    return load.side()


VARIANTS: dict[str, Callable[[float], Side]] = {"own": connect_own, "txzmq": connect_txzmq}


def run(variant: str, seconds: float) -> tuple[Side, Side]:
    """One run. Returns the connecting and the listening side."""
    there = InProcess(listen)
    here = InProcess(VARIANTS[variant], seconds)
    try:
        return here.result(BROAD), there.result(BROAD)
    finally:
        here.stop()
        there.stop()


def main() -> int:
    """Run the benchmark. Returns its exit code: 1 if the goal of the hop is not met."""
    options = command.whole("The cost and the latency of a hop between two brokers.", runs=3, seconds=3.0)
    about = command.begin()
    results: dict[str, dict[str, float]] = {}
    for variant in VARIANTS:
        sides = [run(variant, options.seconds) for _ in range(options.runs)]
        hops = [median(here.trips) / 2 for here, _ in sides]
        slow = [quantiles(here.trips, n=100)[98] / 2 for here, _ in sides]
        results[variant] = {
            "hop_ms": median(hops) * 1e3,
            "hop_99_ms": median(slow) * 1e3,
            "send_us": median(here.cpu / here.messages for here, _ in sides) * 1e6,
            "receive_us": median(there.cpu / there.messages for _, there in sides) * 1e6,
            "messages_a_second": median(here.messages / options.seconds for here, _ in sides),
        }
    rows = [[name, *(f"{value:.3g}" for value in row.values())] for name, row in results.items()]
    print(table(["connecting side", "hop, ms", "99 %, ms", "send, µs", "receive, µs", "messages/s"], rows))
    met = results["own"]["hop_ms"] < GOAL * 1e3
    print(f"hop in the median: {results['own']['hop_ms']:.2f} ms, goal {GOAL * 1e3:g}: {'met' if met else 'NOT MET'}")
    command.write(options.json, about, links=results)
    return 0 if met else 1


if __name__ == "__main__":
    raise SystemExit(main())
