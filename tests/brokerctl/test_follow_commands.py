"""``watch`` and ``events``: the stream is parsed, resumed, and bounded."""

from __future__ import annotations

import json
import threading
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.brokerctl.answers import Failure
from broker.brokerctl.follow_commands import KINDS, MAX_EVENT, Event, Parser
from broker.core.model import Kind
from tests.brokerctl.server import Canned, Recorded, Server, ctl, problem

STREAM = (
    ": comment\r\nretry: 5\rid: 7-1\n\nevent: resync\nid: 7-2\ndata: {}\n\n"
    'data: {"kind":\ndata: "ä"}\nid: 7-3\r\n\r\ndata: unfinished'
).encode()


@given(st.lists(st.integers(0, len(STREAM)), max_size=8))
def test_a_stream_is_parsed_however_it_is_cut(cuts: Sequence[int]) -> None:
    parser = Parser()
    places = [0, *sorted(cuts), len(STREAM)]
    found = [event for a, b in pairwise(places) for event in parser.feed(STREAM[a:b])]
    assert found == [Event("resync", "{}"), Event("message", '{"kind":\n"ä"}')]
    assert parser.id == "7-3"


def test_the_id_counts_with_its_event_only() -> None:
    parser = Parser()
    assert list(parser.feed(b"id: 7-1\n\nid: 7-2\n")) == []
    assert parser.id == "7-1"


@pytest.mark.parametrize("line", [b"data: " + b"x" * 1000, b"x" * 1000, b"data: " + b"x" * 1000 + b"\n"])
def test_an_endless_event_is_refused(line: bytes) -> None:
    parser = Parser()

    def feed() -> None:
        for _ in range(MAX_EVENT // 900):
            list(parser.feed(line))

    with pytest.raises(Failure):
        feed()


def change(revision: int, service: str) -> dict[str, Any]:
    return {
        "revision": revision,
        "at": "2026-11-23T09:14:02.118Z",
        "kind": "offered",
        "provider": 1,
        "service": service,
        "hostport": "h:1",
    }


def streams(server: Server, *pieces: bytes, path: str = "/v1/watch") -> threading.Event:
    """Let each request for the stream get one of the pieces, and then its end; the last one stays open."""
    left = list(pieces)
    over = threading.Event()

    def answer(request: Recorded, handler: Any) -> None:
        handler.send_response(200)
        handler.send_header("Content-Type", "text/event-stream")
        handler.send_header("Connection", "close")
        handler.end_headers()
        handler.wfile.write(left.pop(0))
        handler.wfile.flush()
        if not left:
            over.wait(60)

    server.answer(path, answer)
    return over


def sse(id: str, *changes: object) -> bytes:
    return f"id: {id}\ndata: {json.dumps({'epoch': 7, 'events': changes})}\n\n".encode()


def test_watch_resumes_where_the_stream_ended(server: Server) -> None:
    over = streams(
        server, sse("7-1", change(1, "bank")) + b"id: 7-5\n\n", sse("7-6", change(6, "in\x1bn"), change(7, "x"))
    )
    result = ctl("--url", server.url, "watch", "b*", "--kind", "offered", "--since", "7-0", "--count", 3, "--json")
    over.set()
    assert result.exit_code == 0
    assert [json.loads(line) for line in result.stdout.splitlines()] == [
        change(1, "bank"), change(6, "in\x1bn"), change(7, "x")
    ]  # fmt: skip
    assert "\x1b" not in result.stdout
    assert "the stream has ended; the next attempt is in" in result.stderr
    assert [request.headers["last-event-id"] for request in server.requests] == ["7-0", "7-5"]
    assert server.last.query == {"pattern": ["b*"], "kinds": ["offered"]}


def test_watch_prints_lines_for_people_and_tells_a_gap(server: Server) -> None:
    gap = b'event: resync\nid: 8-1\ndata: {"epoch":8,"revision":1}\n\n'
    over = streams(server, gap + sse("8-2", change(2, "in\x1bn")))
    result = ctl("--url", server.url, "watch", "-n", 1)
    over.set()
    assert result.stdout == "2026-11-23T09:14:02.118Z        2 offered    in\\x1bn  provider=1  hostport=h:1\n"
    assert result.stderr == "resync: changes may be missing here; services lists the present state\n"


def test_watch_prints_csv_below_one_header(server: Server) -> None:
    gap = b'event: resync\nid: 8-1\ndata: {"epoch":8,"revision":1}\n\n'
    over = streams(server, gap + sse("8-2", change(2, "bank")), sse("8-3", {**change(3, "a,b"), "unknown": 1}))
    result = ctl("--url", server.url, "watch", "-n", 2, "-o", "csv")
    over.set()
    assert result.stdout.splitlines() == [
        "revision,at,kind,service,why,provider,hostport,label,wire,load",
        "2,2026-11-23T09:14:02.118Z,offered,bank,,1,h:1,,,",
        '3,2026-11-23T09:14:02.118Z,offered,"a,b",,1,h:1,,,',
    ]
    assert result.stderr.startswith("resync: changes may be missing here")


def test_messages_of_a_topic_are_csv_below_one_header(server: Server) -> None:
    message = {"topic": "news", "headers": {"X-Unit": "m"}, "text": "hello, you"}
    over = streams(server, f"data: {json.dumps(message)}\n\n".encode(), path="/v1/topics/news/messages")
    result = ctl("--url", server.url, "sub", "news", "-n", 1, "-o", "csv")
    over.set()
    assert result.stdout == 'topic,text,base64,headers,retained\nnews,"hello, you",,"{""X-Unit"":""m""}",\n'


def test_logs_are_csv_below_one_header(server: Server) -> None:
    record = {"id": 1, "time": "2026-11-23T09:14:02.118Z", "node": "n", "level": "info", "text": "-x", "fields": {}}
    server.answer("/v1/logs", {"last": 2, "missed": 0, "records": [record, {**record, "id": 2, "fields": {"a": 1}}]})
    result = ctl("--url", server.url, "logs", "-o", "csv")
    assert result.stdout.splitlines() == [
        "id,time,level,node,text,fields",
        "1,2026-11-23T09:14:02.118Z,info,n,'-x,{}",
        '2,2026-11-23T09:14:02.118Z,info,n,\'-x,"{""a"":1}"',
    ]


@pytest.mark.parametrize("data", [b"data: [1]\n\n", b"data: {\n\n", b'data: {"events":5}\n\n'])
def test_a_stream_of_something_else_ends_the_command(server: Server, data: bytes) -> None:
    over = streams(server, data)
    result = ctl("--url", server.url, "watch")
    over.set()
    assert result.exit_code == 6
    assert result.stderr.startswith("brokerctl: the server sends events ")


def test_a_refused_watch_is_told_and_not_repeated(server: Server) -> None:
    server.answer("/v1/watch", problem(403, "no"))
    assert ctl("--url", server.url, "watch").exit_code == 5
    server.answer("/v1/watch", {"rows": []})
    result = ctl("--url", server.url, "watch")
    assert (result.exit_code, result.stderr) == (6, f"brokerctl: {server.url} answers with no stream of events\n")
    assert len(server.requests) == 2


def test_events_are_a_table(server: Server) -> None:
    server.answer("/v1/events", {"epoch": 7, "revision": 9, "resync": False, "events": [change(9, "bank")]})
    result = ctl("--url", server.url, "events", "--since", "7-8", "b*", "-n", 5)
    assert result.stdout.splitlines()[1].split() == ["9", "2026-11-23T09:14:02.118Z", "offered", "bank", "1", "h:1"]
    assert server.last.query == {"since": ["7-8"], "pattern": ["b*"], "limit": ["5"]}
    server.answer("/v1/events", {"epoch": 7, "revision": 9, "resync": True, "events": []})
    assert ctl("--url", server.url, "events").stderr == "the broker has forgotten the changes after that revision\n"
    assert ctl("--url", server.url, "events", "--since", "yesterday").exit_code == 2


def test_each_kind_of_change_may_be_selected() -> None:
    assert set(KINDS) == {kind.value for kind in Kind}


def test_logs_are_followed_over_a_restart_of_the_broker(server: Server) -> None:
    def record(id: int) -> dict[str, object]:
        return {"id": id, "time": "2026-11-23T09:14:02.118Z", "node": "n", "level": "info", "text": f"line {id}"}

    answers: list[Canned] = [
        Canned({"last": 1, "missed": 0, "records": [record(1)]}),
        problem(503, "the broker stops"),
        Canned({"last": 2, "missed": 0, "records": [record(2)]}),
        problem(403, "no"),
    ]
    server.answer("/v1/logs", lambda request: answers.pop(0))
    result = ctl("--url", server.url, "logs", "-f", "--json")
    assert [json.loads(line)["id"] for line in result.stdout.splitlines()] == [1, 2]
    assert result.stderr.startswith("the broker stops; the next attempt is in ")
    assert result.exit_code == 5
    assert [request.query.get("after") for request in server.requests] == [None, ["1"], ["1"], ["2"]]
