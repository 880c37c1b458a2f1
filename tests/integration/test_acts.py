"""Topics, queues and requests to services by people, over HTTP and brokerctl, at the real daemon."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import closing
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import pytest

from tests.access.users import put
from tests.brokerctl.server import ctl
from tests.integration.daemon import Daemon
from tests.integration.http_api import ask
from tests.integration.mtl_peers import ends_in_order, peers_of
from tests.integration.test_access import USERS
from tests.integration.test_access_keys_and_http import basic
from tests.patience import PATIENCE, until, written

CONFIG = """\
[http]
endpoint = "tcp:0:interface=127.0.0.1"
[mtl]
endpoint = "tcp://127.0.0.1:0"
hosts = ["/", "/test"]
[[mtl.queues]]
queues = ["kept*"]
durable = true
dead_letters = ["rejected"]
[[mtl.queues]]
queues = ["small*"]
messages = 2
[mc0]
enabled = false
[dbp]
enabled = false
[[elko.listeners]]
endpoint = "tcp:0:interface=127.0.0.1"
"""


def running(folder: Path, config: str = CONFIG) -> Daemon:
    (folder / "x.toml").write_text(config)
    return Daemon(folder, "--config", "x.toml")


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    with running(tmp_path_factory.mktemp("acts")) as started:
        yield started
        ends_in_order(started)


def act(daemon: Daemon, name: str, **given: Any) -> Any:
    """The answer of an action that succeeds."""
    status, answer = ask(daemon, "POST", f"/v1/actions/{name}", given)
    assert status == 200, answer
    return answer


def refused(daemon: Daemon, name: str, **given: Any) -> tuple[int, str]:
    """The status and the sentence of an action that is refused."""
    status, answer = ask(daemon, "POST", f"/v1/actions/{name}", given)
    return status, answer["detail"]


LONG = 600_000
"""Bytes of a long message: two of them are more than an answer has."""


def bodies(answer: Any) -> list[str]:
    return [each["text"] for each in answer["messages"]]


def test_messages_are_put_seen_and_taken_in_order(daemon: Daemon) -> None:
    for text in ("one", "two", "three"):
        act(daemon, "queue-put", queue="order", text=text)
    assert bodies(act(daemon, "queue-peek", queue="order", count=2)) == ["one", "two"]
    assert bodies(act(daemon, "queue-get", queue="order")) == ["one"]
    assert bodies(act(daemon, "queue-get", queue="order", count=9)) == ["two", "three"]
    assert act(daemon, "queue-get", queue="order") == act(daemon, "queue-peek", queue="unknown") == {"messages": []}
    act(daemon, "queue-put", queue="order", text="/w==", base64=True)
    [message] = act(daemon, "queue-get", queue="order")["messages"]
    assert (message["base64"], message["text"], message["size"]) == ("/w==", None, 1)
    assert refused(daemon, "queue-put", queue="order", text="?", base64=True)[0] == 400
    assert refused(daemon, "queue-put", queue="q" * 251, text="")[1] == "the name of a queue has more than 250 bytes"


def test_an_answer_with_messages_ends_where_they_are_long(daemon: Daemon) -> None:
    with peers_of(daemon) as peers:
        writer = peers.writer("queue", "long")
        for number in range(4):
            writer.write(b"%d" % number + bytes(LONG), "long")
        until(lambda: bodies(act(daemon, "queue-peek", queue="long", count=1)))
    texts = [f"{number}{chr(0) * LONG}" for number in range(4)]
    assert bodies(act(daemon, "queue-peek", queue="long", count=9)) == texts[:1]
    assert bodies(act(daemon, "queue-get", queue="long", count=9)) == texts[:1]
    assert bodies(act(daemon, "queue-get", queue="long", count=9)) == texts[1:2]
    assert act(daemon, "queue-purge", queue="long") == {"messages": 2}


def test_a_stream_has_long_messages_whole(daemon: Daemon) -> None:
    texts = ["\1" * LONG, "short", "\U0001f600" * (LONG // 4)]
    with peers_of(daemon) as peers, closing(HTTPConnection("127.0.0.1", daemon.http_port(), PATIENCE)) as stream:
        writer = peers.writer("topic", "long")
        stream.request("GET", "/v1/topics/long/messages")
        answer = stream.getresponse()
        assert answer.readline() == b":\n"
        assert answer.readline() == b"\n"
        for text in texts:
            writer.write(text.encode(), "long")
            line = answer.readline()
            assert json.loads(line.removeprefix(b"data: ")) == {"topic": "long", "text": text}
            assert answer.readline() == b"\n"


def test_readers_of_the_wire_get_what_was_put_and_keep_what_they_have(daemon: Daemon) -> None:
    with peers_of(daemon) as peers:
        reader = peers.reader("queue", "shared", window=1)
        act(daemon, "queue-put", queue="shared", text="mine")
        act(daemon, "queue-put", queue="shared", text="other")
        [content] = reader.contents(1)
        assert content.body == b"mine"
        assert bodies(act(daemon, "queue-peek", queue="shared")) == ["other"]
        assert act(daemon, "queue-purge", queue="shared") == {"messages": 1}
        reader.confirm(content.sequence)
    assert act(daemon, "queue-peek", queue="shared") == {"messages": []}
    assert refused(daemon, "queue-purge", queue="nothing") == (404, "there is no queue 'nothing'")


def test_a_move_stops_where_there_is_no_room(daemon: Daemon) -> None:
    for number in range(5):
        act(daemon, "queue-put", queue="wide", text=str(number))
    moved = act(daemon, "queue-move", queue="wide", target="small")
    assert (moved["messages"], moved["stopped"]) == (2, "the queue is full (mtl.queues.messages)")
    assert bodies(act(daemon, "queue-peek", queue="wide")) == ["2", "3", "4"]
    assert refused(daemon, "queue-move", queue="wide", target="small")[0] == 429
    assert act(daemon, "queue-move", queue="wide", target="wider", count=1)["messages"] == 1
    with peers_of(daemon) as peers:
        [content] = peers.reader("queue", "wider").contents(1)
        assert (content.resource, content.body) == ("wider", b"2"), "with the name of its queue"
    assert refused(daemon, "queue-move", queue="wide", target="wide")[0] == 400


def test_many_messages_are_purged_and_moved_in_slices(daemon: Daemon) -> None:
    with peers_of(daemon) as peers:
        writer = peers.writer("queue", "many")
        assert writer.settled(*(writer.write(b"%d" % number) for number in range(1_000))) == []
    assert act(daemon, "queue-move", queue="many", target="more")["messages"] == 1_000
    assert bodies(act(daemon, "queue-peek", queue="more", count=3)) == ["0", "1", "2"]
    assert act(daemon, "queue-purge", queue="more") == {"messages": 1_000}


def test_dead_letters_are_delivered_again(daemon: Daemon) -> None:
    act(daemon, "queue-put", queue="kept-dead", text="poison")
    with peers_of(daemon) as peers:
        reader = peers.reader("queue", "kept-dead")
        [content] = reader.contents(1)
        reader.reject(content.sequence, recycle=False)
        until(lambda: bodies(act(daemon, "queue-peek", queue="kept-dead.dead")) == ["poison"])
        [dead] = act(daemon, "queue-peek", queue="kept-dead.dead")["messages"]
        assert dead["death"] == "rejected"
        assert act(daemon, "queue-requeue-dead", queue="kept-dead")["messages"] == 1
        [content] = reader.contents(1)
        assert content.body == b"poison"
        assert content.properties["delivery-count"] == 1
        assert "death-reason" not in content.properties


def test_a_durable_queue_has_its_messages_after_a_restart(tmp_path: Path) -> None:
    with running(tmp_path) as daemon:
        act(daemon, "queue-put", queue="kept-late", text="late", delay=3_600)
        act(daemon, "queue-put", queue="kept-late", text="in 2050", at="2050-01-01T00:00:00Z")
        assert "time zone" in refused(daemon, "queue-put", queue="kept-late", text="x", at="2050-01-01T00:00:00")[1]
        act(daemon, "queue-put", queue="kept", text="one")
        act(daemon, "queue-put", queue="kept", text="two")
        act(daemon, "queue-move", queue="kept", target="kept-2", count=1)
        daemon.signal(signal.SIGTERM)
        daemon.ended()
    with running(tmp_path) as daemon:
        assert bodies(act(daemon, "queue-get", queue="kept", count=9)) == ["two"]
        assert bodies(act(daemon, "queue-get", queue="kept-2", count=9)) == ["one"]
        assert bodies(act(daemon, "queue-get", queue="kept-late", count=9)) == []
        late, later = act(daemon, "queue-peek", queue="kept-late", count=9)["messages"]
        assert 3_000 < late["due"] <= 3_600 < later["due"]


def test_a_queue_whose_name_no_client_could_use_is_refused(daemon: Daemon) -> None:
    why = "the name of a queue is not printable: 'a\\nb'"
    for name, more in (
        ("queue-put", {"text": "x"}),
        ("queue-get", {}),
        ("queue-peek", {}),
        ("queue-purge", {}),
        ("queue-move", {"target": "other"}),
    ):
        assert refused(daemon, name, queue="a\nb", **more) == (400, why)
    assert refused(daemon, "queue-move", queue="other", target="a\nb") == (400, why)


def test_a_queue_of_another_virtual_host_is_another_queue(daemon: Daemon) -> None:
    act(daemon, "queue-put", queue="hosted", text="there", host="/test")
    assert act(daemon, "queue-peek", queue="hosted") == {"messages": []}
    assert bodies(act(daemon, "queue-get", queue="hosted", host="/test")) == ["there"]
    assert refused(daemon, "queue-peek", queue="hosted", host="nowhere")[0] == 404


def test_a_message_reaches_subscribers_of_the_wire_and_over_http(daemon: Daemon) -> None:
    url = f"http://127.0.0.1:{daemon.http_port()}"
    command = [sys.executable, "-m", "broker.brokerctl", "--url", url]
    sub = subprocess.Popen([*command, "sub", "news", "-n", "2", "--json"], stdout=subprocess.PIPE, text=True)
    with peers_of(daemon) as peers:
        reader = peers.reader("topic", "news", confirm="none")
        until(lambda: act(daemon, "publish", topic="news", text="first")["subscribers"] == 2)
        assert ctl("--url", url, "pub", "news", "second", "one").exit_code == 0
        assert {content.body for content in reader.contents(2)} >= {b"first"}
    texts = [json.loads(line)["text"] for line in sub.communicate(timeout=PATIENCE)[0].splitlines()]
    assert texts[0] == "first"
    assert (len(texts), sub.returncode) == (2, 0)
    assert refused(daemon, "publish", topic="elkobroker.services", text="")[0] == 403
    assert ask(daemon, "GET", "/v1/topics/elkobroker.services/messages")[0] == 403


def test_a_call_is_answered_by_a_worker(daemon: Daemon) -> None:
    assert refused(daemon, "call", service="none")[0] == 404
    with peers_of(daemon) as peers:
        worker = peers.reader("service", "service/echo")
        replies = peers.writer("service", "reply")
        answers: list[Any] = []
        asking = threading.Thread(target=lambda: answers.append(act(daemon, "call", service="echo", text="hello")))
        asking.start()
        [request] = worker.contents(1)
        worker.confirm(request.sequence)
        said = {key: request.properties[key] for key in ("reply-to", "correlation-id")}
        replies.write(b"hello yourself", "reply", said)
        asking.join()
        assert answers == [{"text": "hello yourself", "base64": None}]
        failing = threading.Thread(target=lambda: answers.append(refused(daemon, "call", service="echo")))
        failing.start()
        [request] = worker.contents(1)
        worker.reject(request.sequence, recycle=False)
        failing.join()
        status, why = answers[-1]
        assert status == 409
        assert why.startswith("the request failed: ")
        late = refused(daemon, "call", service="echo", seconds=0.2)
        assert late == (503, "no reply came within 0.2 s")


def test_a_program_is_started_when_its_service_is_there(daemon: Daemon) -> None:
    command = [sys.executable, "-m", "broker.brokerctl", "--url", f"http://127.0.0.1:{daemon.http_port()}", "wait"]
    program = ["sh", "-c", "echo $LATE_COMER_ADDRESS $LATE_COMER_PORT"]
    waiting = subprocess.Popen([*command, "late-comer", "--", *program], stdout=subprocess.PIPE, text=True)
    late = subprocess.run([*command, "nobody", "--within", "0.1"], capture_output=True, text=True, timeout=PATIENCE)
    assert (late.returncode, late.stderr) == (4, "brokerctl: no service is called nobody after 0.1 s\n")
    status, answer = ask(daemon, "PUT", "/v1/services/late-comer/1", {"hostport": "127.0.0.1:7", "ttl": 60})
    assert status == 201
    assert "loopback" in answer["warnings"][0]
    assert waiting.communicate(timeout=PATIENCE)[0] == "127.0.0.1:7 7\n"


def test_why_of_a_service_that_has_ended_says_when_and_why(daemon: Daemon) -> None:
    assert ask(daemon, "PUT", "/v1/services/ended/1", {"hostport": "192.0.2.1:7", "ttl": 60})[0] == 201
    assert ask(daemon, "DELETE", "/v1/services/ended/1")[0] == 204
    status, problem = ask(daemon, "GET", "/v1/why/ended")
    assert status == 404
    assert "there is no service 'ended' now: the last one, 192.0.2.1:7 of provider " in problem["detail"]
    assert problem["detail"].endswith("since it was withdrawn")
    assert ask(daemon, "GET", "/v1/why/never")[1]["detail"] == "there is no service 'never'"


RIGHTS = """
[[rights]]
users = ["bob"]
operations = ["publish", "subscribe", "admin.queues"]
names = ["queue:bob-*", "topic:bob-*"]
"""

ACTS: list[tuple[str, dict[str, Any], str]] = [
    ("publish", {"topic": "NAME", "text": "x"}, "publish"),
    ("queue-put", {"queue": "NAME", "text": "x"}, "publish"),
    ("queue-peek", {"queue": "NAME"}, "subscribe"),
    ("queue-get", {"queue": "NAME"}, "subscribe"),
    ("queue-put", {"queue": "NAME", "text": "x"}, "publish"),
    ("queue-move", {"queue": "NAME", "target": "bob-2"}, "admin.queues"),
    ("queue-move", {"queue": "bob-2", "target": "NAME"}, "admin.queues"),
    ("queue-purge", {"queue": "NAME"}, "admin.queues"),
    ("call", {"service": "NAME"}, "find"),
]


def test_each_act_needs_its_right_for_the_name(tmp_path: Path) -> None:
    put(tmp_path / "users.toml", USERS + RIGHTS)
    with running(tmp_path, f'{CONFIG}[access]\nfile = "users.toml"\n') as daemon:
        bob, robot = basic("bob", "crayon"), basic("ann", "pencil")
        for name, given, right in ACTS:
            asked = {key: value.replace("NAME", "bob-1") for key, value in given.items()}
            status, answer = ask(daemon, "POST", f"/v1/actions/{name}", asked, **bob)
            assert status in (200, 404), (name, answer)
            asked = {key: value.replace("NAME", "other") for key, value in given.items()}
            status, answer = ask(daemon, "POST", f"/v1/actions/{name}", asked, **bob)
            assert (status, answer["detail"]) == (403, f"bob has no right to {right} 'other' here")
            assert ask(daemon, "POST", f"/v1/actions/{name}", asked, **robot)[0] in (200, 404, 429)
            assert ask(daemon, "POST", f"/v1/actions/{name}", asked)[0] == 401
        assert ask(daemon, "GET", "/v1/topics/other/messages", **bob)[0] == 403
        shown = ask(daemon, "GET", "/v1/actions", **bob)[1]["actions"]
        assert {each["name"] for each in shown} >= {name for name, _, _ in ACTS}
        log = tmp_path / "state" / "audit.jsonl"
        until(lambda: written(log).count("\n") >= 9)
        acts = [json.loads(line) for line in log.read_text().splitlines()]
    assert {act["operation"] for act in acts} == {"admin.queues"}, "and none of what clients do"
    assert {act["result"] for act in acts if act["user"] == "bob"} >= {"done", "refused: forbidden"}
