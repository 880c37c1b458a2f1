"""Traces of peers: messages in and out, bounds, secrets, and connections without a tap."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from twisted.internet.address import IPv4Address
from twisted.internet.task import Clock
from twisted.internet.testing import StringTransport
from twisted.logger import ILogObserver, LogEvent, formatEvent, globalLogPublisher
from zope.interface import implementer

from broker.core.errors import Malformed, Reason, Refusal
from broker.net.connection_limits import ConnectionLimits
from broker.net.line_protocol import LineFactory, LineProtocol
from broker.net.refusal_log import Counters, RefusalLog
from broker.net.scheduler import Scheduler
from broker.net.traces import LINES_PER_SECOND, MAX_SECONDS, MAX_SHOWN, MAX_TRACES, Traces, text_of
from broker.net.udp import UdpSocket

PEER, OTHER = "10.0.0.1", "10.0.0.2"


class Words:
    """A reader of lines, and the session that repeats them."""

    pending = 0

    def __init__(self, peer: LineProtocol) -> None:
        self._peer = peer

    def begin(self) -> None: ...

    def feed(self, data: bytes) -> Iterator[Any]:
        yield from data.splitlines()

    def receive(self, line: bytes) -> None:
        self._peer.write(b"echo " + line)

    def refuse(self, refusal: Refusal) -> None: ...

    def lost(self) -> None: ...


def converse(peer: LineProtocol) -> Any:
    words = Words(peer)
    return words, words


@implementer(ILogObserver)
class Net:
    """A listener with its traces. ``lines`` are the lines of the log."""

    def __init__(self) -> None:
        self.clock = Clock()
        turns = Scheduler(self.clock)
        refusal_log = RefusalLog(Counters(), self.clock)
        self.factory = LineFactory("elko", converse, ConnectionLimits(), turns, refusal_log, self.clock, guarded=False)
        self.udp = UdpSocket(self.clock, turns, "dbp", 100)
        self.traces = Traces(self.clock, lambda: [self.factory], lambda: [self.udp])
        self.lines: list[str] = []

    def __call__(self, event: LogEvent) -> None:
        self.lines.append(formatEvent(event))

    def connect(self, host: str, port: int = 1) -> Any:
        line: Any = self.factory.buildProtocol(IPv4Address("TCP", host, port))
        line.makeConnection(StringTransport())
        return line

    def traced(self) -> list[str]:
        """The traced messages so far."""
        found = [line for line in self.lines if line.startswith(("trace in", "trace out"))]
        self.lines.clear()
        return found


@pytest.fixture
def net() -> Iterator[Net]:
    net = Net()
    globalLogPublisher.addObserver(net)
    yield net
    globalLogPublisher.removeObserver(net)


def test_messages_of_present_and_later_connections_are_logged(net: Net) -> None:
    present, other = net.connect(PEER), net.connect(OTHER)
    net.traces.trace(PEER, 60)
    later = net.connect(PEER, 2)
    for line in (present, other, later):
        line.dataReceived(b"one\ntwo\n")
    assert net.traced() == [
        "trace in elko 10.0.0.1:1: one",
        "trace out elko 10.0.0.1:1: echo one",
        "trace in elko 10.0.0.1:1: two",
        "trace out elko 10.0.0.1:1: echo two",
        "trace in elko 10.0.0.1:2: one",
        "trace out elko 10.0.0.1:2: echo one",
        "trace in elko 10.0.0.1:2: two",
        "trace out elko 10.0.0.1:2: echo two",
    ]
    assert other.transport.value() == present.transport.value() == b"echo oneecho two"


def test_one_connection_is_traced_by_its_port(net: Net) -> None:
    one, two = net.connect(PEER, 1), net.connect(PEER, 2)
    net.traces.trace(f"{PEER}:2", 60)
    one.dataReceived(b"a")
    two.dataReceived(b"b")
    assert net.traced() == ["trace in elko 10.0.0.1:2: b", "trace out elko 10.0.0.1:2: echo b"]


def test_a_trace_ends_by_itself_and_leaves_no_tap(net: Net) -> None:
    line = net.connect(PEER)
    reader, out = type(line.reader), type(line._out)
    net.traces.trace(PEER, 60)
    assert (type(line.reader), type(line._out)) != (reader, out)
    net.clock.advance(60)
    line.dataReceived(b"x")
    assert (net.traces.describe(), net.traced()) == ([], [])
    assert (type(line.reader), type(line._out)) == (reader, out)
    assert line.transport.value() == b"echo x"


def test_a_further_order_renews_the_time(net: Net) -> None:
    net.traces.trace(PEER, 60)
    net.clock.advance(50)
    assert net.traces.trace(PEER, 60).seconds == 60
    net.clock.advance(50)
    assert [each.seconds for each in net.traces.describe()] == [10]
    assert net.traces.untrace(PEER)
    assert not net.traces.untrace(PEER)
    assert not net.clock.getDelayedCalls()


def test_lines_are_bounded_and_the_rest_is_counted(net: Net) -> None:
    line = net.connect(PEER)
    net.traces.trace(PEER, 60)
    line.dataReceived(b"x\n" * 500)
    assert len(net.traced()) == LINES_PER_SECOND
    net.clock.advance(1)
    line.dataReceived(b"y\n")
    assert "trace 10.0.0.1: 900 messages were left out: at most 100 a second are logged" in net.lines
    [trace] = net.traces.describe()
    assert (trace.lines, trace.dropped) == (LINES_PER_SECOND + 2, 900)


def test_datagrams_are_traced_by_their_address(net: Net) -> None:
    received: list[bytes] = []
    net.udp._receive = lambda data, source: received.append(data)
    net.traces.trace(PEER, 60)
    net.udp._take(b"beat", (PEER, 5))
    net.udp._take(b"other", (OTHER, 5))
    net.udp.send(b"answer", (PEER, 5))
    net.traces.stop()
    net.udp._take(b"late", (PEER, 5))
    assert net.traced() == ["trace in dbp 10.0.0.1:5: beat", "trace out dbp 10.0.0.1:5: answer"]
    assert received == [b"beat", b"other", b"late"]


@pytest.mark.parametrize("address", ["2001:DB8::7", "[2001:db8::7]", "[2001:0db8::7]:5", "[2001:db8::7]:5"])
def test_an_ipv6_address_is_that_of_the_connection_in_any_spelling(net: Net, address: str) -> None:
    line = net.connect("2001:db8::7", 5)
    net.udp._receive = lambda data, source: None
    net.traces.trace(address, 60)
    line.dataReceived(b"a\n")
    net.udp._take(b"beat", ("2001:db8::7", 5))
    assert net.traced() == [
        "trace in elko [2001:db8::7]:5: a",
        "trace out elko [2001:db8::7]:5: echo a",
        "trace in dbp [2001:db8::7]:5: beat",
    ]
    assert net.traces.untrace(address)


@pytest.mark.parametrize("address", ["", "a b", "x" * 301, "a\n"])
def test_an_address_that_is_none_is_refused(net: Net, address: str) -> None:
    with pytest.raises(Refusal) as refused:
        net.traces.trace(address, 60)
    assert refused.value.reason is Reason.PARAMETER


@pytest.mark.parametrize("seconds", [0, -1, MAX_SECONDS + 1, float("nan")])
def test_a_time_out_of_range_is_refused(net: Net, seconds: float) -> None:
    with pytest.raises(Refusal) as refused:
        net.traces.trace(PEER, seconds)
    assert (refused.value.reason, net.traces.describe()) == (Reason.PARAMETER, [])


def test_traces_are_bounded(net: Net) -> None:
    for number in range(MAX_TRACES):
        net.traces.trace(f"10.1.0.{number}", 60)
    with pytest.raises(Refusal) as refused:
        net.traces.trace(PEER, 60)
    assert refused.value.reason is Reason.LIMIT
    net.traces.stop()


@pytest.mark.parametrize(
    ("sent", "shown"),
    [
        (b'{"auth":{"mode":"password","code":"geheim"}}', '{"auth":{"mode":"password","code":(hidden)}}'),
        (b'{"code" : "gehe\\"im","x":1}', '{"code" : (hidden),"x":1}'),
        (b'{"code":"geheim', '{"code":(hidden)'),
        ([b"Connection.Authorize", b'{"mechanism":"PLAIN","response":"AGdlaGVpbQ=="}'],
         'Connection.Authorize | {"mechanism":"PLAIN","response":(hidden)}'),
        (b"GET / HTTP/1.1\r\nAuthorization: Bearer geheim\r\nHost: x", None),
        (b"GET /plan/ticket/geheim/report.html", "GET /plan/ticket/(hidden)/report.html"),
        (b"\x00\xff\n\x1b[0m", "\\x00\\xff\\n\\x1b[0m"),
        (Malformed(Reason.SYNTAX, "not JSON"), "malformed: not JSON"),
    ],
)  # fmt: skip
def test_a_message_is_shown_without_secrets_and_control_characters(sent: Any, shown: str | None) -> None:
    text = text_of(sent)
    assert text.isprintable()
    assert "geheim" not in text
    assert shown is None or text == shown


def test_a_long_message_is_cut() -> None:
    assert text_of(b"x" * 10 * MAX_SHOWN) == "x" * MAX_SHOWN + f"... ({7 * MAX_SHOWN} more)"


def test_an_item_that_cannot_be_shown_costs_nothing() -> None:
    class Odd:
        def __repr__(self) -> str:
            raise RuntimeError

    assert text_of(Odd()) == "(Odd cannot be shown: RuntimeError)"
