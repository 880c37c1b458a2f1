"""The console: whatever an operator types, in whatever pieces, nothing fails and nothing but printable text comes back.

The broker, its director and views are there. If a line ends the session (a fatal refusal, quit), another one begins.
"""

from __future__ import annotations

import shlex
import unicodedata
from collections.abc import Iterator
from itertools import pairwise

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from twisted.logger import LogLevel, capturedLogs

from broker.core.errors import Reason
from broker.core.model import Launcher
from broker.operate.console import WORDS, ConsoleSession, Shown
from broker.operate.console_input import ConsoleReader
from broker.wires.elko.broker_wire import broker_views
from broker.wires.elko.console_commands import BROKER, DIRECTOR, broker_dialect, director_dialect
from tests.wires.elko.director_recording import DirectorFarm, opens
from tests.wires.recording import Client, ElkoFarm, RecordingPeer, desc

IAC = 255

FIELDS = sorted(
    {field for each in (BROKER, DIRECTOR) for m in each.messages_by_op.values() for field in m.__struct_encode_fields__}
)
PLAIN = [*BROKER.ops, *DIRECTOR.ops, *WORDS, "director", "exit", "elko", "sessions", "all", "self", "auth"]
VALUES = [
    "", "1", "-1", "0.5", "1e400", "9" * 400, "true", "null", "[]", "{}", "NaN", "bank", "one", "cs1", "context-a",
    "user-x", "user-", "*", "[!", "x" * 300, '"\\ud800"', "\U0001f600",
    "[" * 3_000, '{"a":' * 3_000, '[{"service":"bank","hostport":"h:1"}]', '["bank"]', '{"op":"x"}',
]  # fmt: skip
OPS = [str(m.__struct_config__.tag) for each in (BROKER, DIRECTOR) for m in each.vocabulary.messages]

words = st.sampled_from(PLAIN) | st.sampled_from(VALUES) | st.text(max_size=5)
parameters = st.builds(lambda name, value: f"{name}={value}", st.sampled_from(FIELDS), words)
quoted = st.builds(lambda quote, word: quote + word + quote, st.sampled_from("'\""), words | parameters)
pieces = st.lists(words | parameters | quoted | st.sampled_from(["{", "}", "[", "'", '"', "\\", "=", "#"]), max_size=5)
typed = st.builds(" ".join, pieces)
OWN = [
    (each.name(op), [field for field in message.__struct_encode_fields__ if field != "to"] or ["to"])
    for each in (BROKER, DIRECTOR)
    for op, message in each.messages_by_op.items()
]
"""All ops as they are typed, with their own parameters."""


@st.composite
def own(draw: st.DrawFn) -> str:
    """An op with parameters that it has, and values of which some fit."""
    op, fields = draw(st.sampled_from(OWN))
    given = draw(st.lists(st.tuples(st.sampled_from(fields), st.sampled_from(VALUES)), max_size=3))
    return " ".join((op, *(shlex.quote(f"{name}={value}") for name, value in given)))


commands = own() | st.builds(
    lambda before, op, rest: f"{before}{op} {rest}",
    st.sampled_from(["", "help "]),
    st.sampled_from([op for op, _ in OWN]),
    st.builds(" ".join, st.lists(words | parameters | quoted, max_size=3)),
)
members = st.dictionaries(st.sampled_from(["to", "op", *FIELDS]), st.sampled_from([*OPS, *VALUES]), max_size=4)
messages = st.builds(
    lambda before, op, more: before + "{op:'" + op + "'," + ",".join(f"{k}:{v}" for k, v in more.items()) + "}",
    st.sampled_from(["", "director "]),
    st.sampled_from(OPS),
    members,
)
lines = st.one_of(typed, commands, messages).map(lambda line: line.encode("utf-8", "replace"))
ENDS = [b"\r\n", b"\n", b"\r\0", b"\r"]
TELNET = [bytes([IAC, *rest]) for rest in ((253, 6), (251, 31), (250, 1, 2, IAC, 240), (IAC,), ())]
STRAYS = [b"GET / HTTP/1.1", b"\x16\x03\x01", b"\x1b[A"]
noise = st.binary(max_size=6) | st.sampled_from([*TELNET, *STRAYS])
streams = st.lists(
    st.builds(lambda line, end: line + end, lines, st.sampled_from(ENDS)) | st.one_of(lines, noise), max_size=6
).map(b"".join)


class Desk:
    """A broker with a director, some peers, and an operator."""

    def __init__(self) -> None:
        self.farm = ElkoFarm(launchers=[Launcher("web", "run web")])
        self.director = DirectorFarm()
        self.farm.client("one").offer(desc("bank"))
        opens(self.director.server("cs1"), "context-a", "user-x")

    def operator(self, password: str | None = None) -> Client:
        shown = Shown(
            lambda: {"elko_connections.open": 1},
            lambda: {"uptime": 1},
            "1.2.3",
            {each.name: each for each in broker_views(self.farm.wiring)},
        )
        dialects = [broker_dialect(self.farm.wiring), director_dialect(self.director.wiring)]
        return Client(
            lambda to: (
                ConsoleReader(),
                ConsoleSession(dialects, shown, to),
            ),
            RecordingPeer(True, "127.0.0.1:7"),
        )


@pytest.fixture(autouse=True)
def nothing_fails() -> Iterator[None]:
    """No failure is logged."""
    with capturedLogs() as logged:
        yield
    assert [event for event in logged if event["log_level"] >= LogLevel.error or "log_failure" in event] == []


def settle(desk: Desk, operator: Client) -> bytes:
    """The bytes that were written, when all that waits is done."""
    desk.farm.clock.advance(0)
    desk.director.settle()
    written = b"".join(operator.peer.written)
    operator.peer.written.clear()
    return written


@given(streams, st.lists(st.integers(0, 10_000), max_size=4), st.sampled_from([None, "figleaf"]))
def test_whatever_is_typed_is_answered_or_refused(data: bytes, places: list[int], password: str | None) -> None:
    desk = Desk()
    operator = desk.operator(password)
    at = sorted({0, len(data), *(place % (len(data) + 1) for place in places)})
    for start, end in pairwise(at):
        operator.send(data[start:end])
        written = settle(desk, operator)
        for answer in (bytes([IAC, 252]), bytes([IAC, 254])):
            while (found := written.find(answer)) >= 0:
                written = written[:found] + written[found + 3 :]
        text = written.decode()
        assert {c for c in text if unicodedata.category(c) == "Cc"} <= {"\r", "\n"}
        assert text.endswith("\r\n") or not text
        if operator.closed:
            operator.drop()
            operator = desk.operator(password)
    assert all(refusal.reason is not Reason.INTERNAL for refusal in operator.peer.refusals)
    if not operator.closed:
        operator.session.input_ended()
    operator.drop()
    settle(desk, operator)
    assert len(desk.farm.wiring.sessions) == 1, "that of the provider"


@example(["find x wait=" + "[" * 3_000])
@example(["director dump depth=" + "[" * 3_000])
@given(st.lists(commands, min_size=1, max_size=4))
def test_a_command_leaves_the_next_one_working(typed: list[str]) -> None:
    desk = Desk()
    operator = desk.operator()
    for line in typed:
        printable = "".join(c for c in line if unicodedata.category(c) not in ("Cc", "Cs"))
        operator.send(printable.encode() + b"\r\n")
        if operator.closed:
            assert "disconnect" in printable
            return
        settle(desk, operator)
        operator.send(b"ping last\r\n")
        assert b'"last"' in settle(desk, operator)
    operator.drop()
