"""The collected log: messages of the topics ``log.NODE``, in a file and for readers."""

from __future__ import annotations

import json
import tracemalloc
from pathlib import Path
from typing import Any

import msgspec
import pytest
from twisted.internet.defer import Deferred, maybeDeferred, succeed
from twisted.internet.task import Clock

from broker.access.rights import EVERYTHING, Grants, Right, grants_of
from broker.core.topics import Topics
from broker.operate import collected_log
from broker.operate.collected_log import CollectedLog
from broker.operate.line_file import MAX_WAITING_BYTES, RETRY


class Rig:
    """Topics with a collected log, on a disk that answers at once."""

    def __init__(self, path: Path, clock: Clock | None = None) -> None:
        self.path = path
        self.clock = Clock() if clock is None else clock
        self.topics = Topics()
        self.collected = CollectedLog(str(path), self.clock, self.disk)
        self.topics.observer = self.collected.publish

    def disk(self, function: Any, *arguments: Any) -> Deferred[Any]:
        return maybeDeferred(function, *arguments)

    def publish(self, topic: str, body: str = "x", *headers: str, wire: str = "mc0") -> None:
        self.topics.publish(topic.encode(), [each.encode() for each in headers], (body.encode(),), wire=wire)

    def records(self, after: int = 0, most: int = 100) -> list[collected_log.LogRecord]:
        lines = self.collected.records(after, lambda record: True, most)[0]
        return [msgspec.json.decode(line, type=collected_log.LogRecord) for line in lines]

    def answer(self, grants: Grants = EVERYTHING, **query: Any) -> collected_log.Logs:
        answer = collected_log.shown(self.collected, collected_log.LogsQuery(**query), grants)
        return msgspec.json.decode(msgspec.json.encode(answer), type=collected_log.Logs)

    def shown(self, grants: Grants = EVERYTHING, **query: Any) -> list[collected_log.LogRecord]:
        return self.answer(grants, **query).records


@pytest.fixture
def rig(tmp_path: Path) -> Rig:
    return Rig(tmp_path / "collected.jsonl")


@pytest.mark.parametrize(
    ("topic", "body", "headers", "node", "level", "text", "fields"),
    [
        ("log.rohan", "rides", (), "rohan", "info", "rides", None),
        ("log.rohan.WARN", "rides", (), "rohan", "warning", "rides", None),
        ("log.rohan.edoras", "rides", (), "rohan.edoras", "info", "rides", None),
        ("log.error", "rides", (), "error", "info", "rides", None),
        ("log.rohan", "rides", ("X-Level", "fatal"), "rohan", "critical", "rides", None),
        ("log.rohan", '{"level":"err","message":"rides","n":1}', (), "rohan", "error", "rides", {"n": 1}),
        ("log.rohan.debug", '{"level":"err","msg":"rides"}', (), "rohan", "debug", "rides", None),
        ("log.rohan", '{"level":7,"message":8}', (), "rohan", "info", '{"level":7,"message":8}', None),
        ("log.rohan", '{"a"', (), "rohan", "info", '{"a"', None),
        ("log.rohan", "[" * 9_000, (), "rohan", "info", "[" * 8_192, None),
    ],
)
def test_a_message_is_a_record(
    rig: Rig, topic: str, body: str, headers: tuple[str, ...], node: str, level: str, text: str, fields: object
) -> None:
    rig.publish(topic, body, *headers)
    [record] = rig.records()
    assert (record.node, record.level, record.text, record.fields, record.wire) == (node, level, text, fields, "mc0")
    [line] = rig.path.read_text().splitlines()
    assert json.loads(line)["time"] == "1970-01-01T00:00:00.000+00:00"


def test_other_topics_and_messages_of_other_brokers_are_not_collected(rig: Rig) -> None:
    for topic in ("log", "log.", "logs.a", "a.log.b"):
        rig.publish(topic)
    rig.topics.publish(b"log.a", (), (b"x",), source=object())  # type: ignore[arg-type]
    assert rig.records() == []
    assert not rig.path.exists()


def test_the_newest_records_are_kept_and_others_are_missed(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(collected_log, "MAX_KEPT", 3)
    for number in range(5):
        rig.publish("log.a", str(number))
    assert [record.text for record in rig.records()] == ["2", "3", "4"]
    assert [record.text for record in rig.records(most=2)] == ["3", "4"]
    assert rig.collected.records(1, lambda record: True, 100)[1] == 1
    assert rig.records(after=4)[0].text == "4"
    monkeypatch.setattr(collected_log, "KEPT_BYTES", 1_000)
    rig.publish("log.a", "x" * 900)
    assert [len(record.text) for record in rig.records()] == [900]
    assert len(rig.path.read_text().splitlines()) == 6


def test_new_records_beyond_the_limit_are_missed(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(6):
        rig.publish(f"log.{'ab'[number % 2]}", str(number))
    for query, texts, missed in (
        ({"limit": 2}, ["4", "5"], 0),
        ({"after": 1, "limit": 2}, ["4", "5"], 3),
        ({"after": 1, "limit": 2, "node": "b"}, ["3", "5"], 1),
        ({"after": 1, "limit": 5}, ["1", "2", "3", "4", "5"], 0),
    ):
        answer = rig.answer(**query)
        assert ([record.text for record in answer.records], answer.missed) == (texts, missed), query
    monkeypatch.setattr(collected_log, "MAX_KEPT", 4)
    rig.publish("log.a", "6")
    assert rig.answer(after=1, limit=3).missed == 3


def test_a_reader_gets_the_records_since_a_restart_whatever_their_number(rig: Rig, tmp_path: Path) -> None:
    rig.clock.advance(1_767_225_600)
    for text in ("a", "b"):
        rig.publish("log.a", text)
    last = rig.answer().last
    rig.clock.advance(1)
    again = Rig(tmp_path / "collected.jsonl", rig.clock)
    assert again.answer(after=last).records == []
    for text in ("c", "d", "e"):
        again.publish("log.a", text)
    answer = again.answer(after=last)
    assert ([record.text for record in answer.records], answer.missed) == (["c", "d", "e"], 0)
    assert answer.last < 2**53, "a page has its numbers as doubles"
    assert again.answer(after=last, limit=2).missed == 1


def test_a_flood_is_counted(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(collected_log, "RATE", 2)
    for _ in range(5):
        rig.publish("log.a")
    rig.clock.advance(1)
    rig.publish("log.a")
    assert len(rig.records()) == 3
    assert rig.collected.counts()["collected.beyond"] == 3


def test_a_user_reads_the_nodes_to_whose_topics_it_may_subscribe(rig: Rig) -> None:
    for node in ("rohan", "gondor"):
        rig.publish(f"log.{node}")
    grants = grants_of("ann", "http", [Right(("ann",), ("subscribe",), ("*",), ("log.rohan",))])
    for given, nodes in ((EVERYTHING, ["rohan", "gondor"]), (grants, ["rohan"])):
        assert [record.node for record in rig.shown(grants=given)] == nodes
    assert [record.node for record in rig.shown(node="g*", after=99)] == ["gondor"]
    assert rig.shown(level="warning") == []


@pytest.mark.long
def test_a_body_takes_the_memory_of_its_line_whatever_it_has(rig: Rig) -> None:
    def deep(levels: int) -> str:
        return '{"a":' + "[" * levels + "]" * levels + "}"

    for body in (*map(deep, range(900, 1_100)), '{"a":[' + "[]," * 2_700 + "[]]}", "\x01" * 8_000):
        rig.publish("log.a", body)
    assert rig.collected.last == 202
    tracemalloc.start()
    for _ in range(100):
        rig.publish("log.a", '{"a":[' + "[]," * 2_700 + "[]]}")
    assert tracemalloc.get_traced_memory()[0] <= 100 * 20_000
    tracemalloc.stop()
    rig.publish("log.a", "x" * 16 * 1024 * 1024 + "y")
    assert rig.records()[-1].text == "x" * collected_log.MAX_TEXT


def test_lines_that_wait_for_the_disk_are_bounded(rig: Rig) -> None:
    down: Deferred[None] = Deferred()
    rig.disk = lambda function, *arguments: down  # type: ignore[method-assign]
    collected = CollectedLog(str(rig.path), rig.clock, lambda function, *arguments: rig.disk(function, *arguments))
    line = b"x" * 40_000
    for _ in range(1_000):
        collected.append(line)
    lost = collected.counts()["collected.lost"]
    assert lost == 1_000 - MAX_WAITING_BYTES // (len(line) + 1)
    down.errback(OSError(28, "No space left on device"))
    collected.append(line)
    assert collected.counts()["collected.lost"] == lost + 1
    rig.disk = lambda function, *arguments: succeed(None)  # type: ignore[method-assign]
    rig.clock.advance(RETRY)
    for _ in range(100):
        collected.append(line)
    assert collected.counts()["collected.lost"] == lost + 1
