"""The commands that change something: what they send, and what they tell."""

from __future__ import annotations

import csv
import io
import json
import os
import signal
import sys

import pytest

from broker.brokerctl.cli import cli
from tests.brokerctl.server import Canned, Recorded, Server, ctl, problem


@pytest.mark.parametrize(
    ("words", "path", "body"),
    [
        (["shutdown", "--yes"], "shutdown", {}),
        (["shutdown", "--kill", "-y"], "shutdown", {"kill": True}),
        (["reinit"], "reinit", {}),
        (["reinit", "web1"], "reinit", {"server": "web1"}),
        (["say", "context-inn", "Hello", "there"], "say", {"context": "context-inn", "text": "Hello there"}),
        (
            ["say", "user-joe", "Hi", "--in", "context-a"],
            "say",
            {"user": "user-joe", "context": "context-a", "text": "Hi"},
        ),
        (["launch", "chat"], "launch", {"name": "chat"}),
        (["disconnect", "mc0", "1f2e"], "disconnect", {"wire": "mc0", "session": "1f2e"}),
        (["withdraw", "7", "-y"], "withdraw", {"provider": 7}),
        (["withdraw", "7", "bank", "-y"], "withdraw", {"provider": 7, "name": "bank"}),
    ],
)
def test_an_action_is_sent_and_its_answer_told(server: Server, words: list[str], path: str, body: object) -> None:
    server.answer(f"/v1/actions/{path}", {"text": "it is \x1b done"}, "POST")
    result = ctl("--url", server.url, *words)
    assert (result.exit_code, result.stdout) == (0, "it is \\x1b done\n")
    assert server.last.body == body
    assert server.last.headers["content-type"].startswith("application/json")
    assert json.loads(ctl("--url", server.url, *words, "--json").stdout) == {"text": "it is \x1b done"}


@pytest.mark.parametrize(
    ("words", "path", "answer", "rows"),
    [
        (
            ["shutdown", "-y"],
            "POST /v1/actions/shutdown",
            {"text": "it ends,\nat once"},
            [["text"], ["it ends,\\nat once"]],
        ),
        (
            ["pub", "news", "hi"],
            "POST /v1/actions/publish",
            {"subscribers": 3, "meta": None},
            [["subscribers", "meta"], ["3", ""]],
        ),
        (
            ["log", "info"],
            "POST /v1/actions/log",
            {"level": "info", "modules": {"a": "debug"}},
            [["level", "modules"], ["info", '{"a":"debug"}']],
        ),
        (
            ["scale", "bank"],
            "GET /v1/plan/bank/replicas",
            {"has": 2, "replicas": 2, "made": "now"},
            [["has", "replicas", "made", "launch", "withdraw", "dry_run"], ["2", "2", "now", "0", "", "true"]],
        ),
        (
            ["offer", "bank", "h:1", "--once"],
            "PUT /v1/services/bank/h:1",
            {"provider": 7, "expires": None},
            [["provider", "expires"], ["7", ""]],
        ),
        (
            ["cluster"],
            "GET /v1/cluster",
            {"clustered": False, "degraded": []},
            [["clustered", "degraded", "queues", "etcd"], ["false", "", "", ""]],
        ),
    ],
)
def test_an_answer_is_a_row_of_csv(
    server: Server, words: list[str], path: str, answer: object, rows: list[list[str]]
) -> None:
    method, _, where = path.partition(" ")
    server.answer(where, answer, method)
    result = ctl("--url", server.url, *words, "-o", "csv")
    assert (result.exit_code, list(csv.reader(io.StringIO(result.stdout)))) == (0, rows)


def test_an_action_that_is_refused_is_told(server: Server) -> None:
    server.answer("/v1/actions/launch", problem(403, "you have no right to admin.launch"), "POST")
    result = ctl("--url", server.url, "launch", "chat")
    assert (result.exit_code, result.stdout) == (5, "")
    assert result.stderr == "brokerctl: you have no right to admin.launch\n"


@pytest.mark.parametrize("words", [["shutdown"], ["withdraw", "7"], ["drain"]])
def test_what_cannot_be_undone_is_not_done_without_a_confirmation(server: Server, words: list[str]) -> None:
    result = ctl("--url", server.url, *words)
    assert (result.exit_code, server.requests) == (2, [])
    assert "--yes" in result.stderr


@pytest.mark.parametrize("word", ["get", "peek"])
@pytest.mark.parametrize(
    ("format", "none", "some"),
    [
        ("json", '{\n  "messages": []\n}\n', '{\n  "messages": [\n    {\n      "text": "=a"\n    }\n  ]\n}\n'),
        ("csv", "text,size,deliveries,death,user,id,expires,base64\n", "text\n'=a\n"),
    ],
)
def test_messages_of_a_queue_are_data_in_each_format(
    server: Server, word: str, format: str, none: str, some: str
) -> None:
    server.answer(f"/v1/actions/queue-{word}", {"messages": []}, "POST")
    result = ctl("--url", server.url, "queue", word, "jobs", "-o", format)
    assert (result.exit_code, result.stdout, result.stderr) == (4, none, "there are no messages\n")
    server.answer(f"/v1/actions/queue-{word}", {"messages": [{"text": "=a"}]}, "POST")
    result = ctl("--url", server.url, "queue", word, "jobs", "-o", format)
    assert (result.exit_code, result.stdout, result.stderr) == (0, some, "")


@pytest.mark.parametrize("errors", ["strict", "surrogateescape"])
def test_standard_input_that_is_no_text_is_refused(
    server: Server, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], errors: str
) -> None:
    """A locale such as C decodes any byte."""
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"\xff"), "utf-8", errors))
    with pytest.raises(SystemExit) as ended:
        cli.main(["--url", server.url, "pub", "news", "-"])
    assert (ended.value.code, server.requests) == (2, [])
    assert capsys.readouterr().err == "brokerctl: the standard input is no text in UTF-8\n"


CHANGED = {"key": "broker.grace", "old": "60", "new": "30"}
RELOADED = {
    "changed": [CHANGED],
    "refused": [],
    "restart": [],
    "problems": [],
    "warnings": ["odd"],
    "text": "warning: odd\nchanged: broker.grace: 60 -> \x1b30",
}


def test_reload_tells_the_diagnostics_of_the_broker(server: Server) -> None:
    server.answer("/v1/actions/reload", RELOADED, "POST")
    result = ctl("--url", server.url, "reload")
    assert (result.exit_code, result.stdout) == (0, "warning: odd\nchanged: broker.grace: 60 -> \\x1b30\n")
    assert json.loads(ctl("--url", server.url, "reload", "--json").stdout) == RELOADED


def test_a_reload_with_problems_fails(server: Server) -> None:
    text = "error: x.toml:2: bad\nrefused: broker.grace: 60 -> 30\nnothing was changed"
    answer = RELOADED | {"changed": [], "refused": [CHANGED], "problems": ["x.toml:2: bad"], "text": text}
    server.answer("/v1/actions/reload", answer, "POST")
    result = ctl("--url", server.url, "reload")
    assert (result.exit_code, result.stdout) == (1, f"{text}\n")


@pytest.mark.parametrize(
    ("states", "code", "said"),
    [
        (["draining", "draining", "drained"], 0, "drained: all peers have left\n"),
        (["draining", "overdue"], 1, "overdue: 3 peers are left: mtl=3\n"),
    ],
)
def test_drain_waits_until_it_is_over(server: Server, states: list[str], code: int, said: str) -> None:
    waiting = list(states)

    def state(request: Recorded) -> Canned:
        now = waiting.pop(0)
        return Canned({"state": now, "seconds": 5.0, "remaining": {} if now == "drained" else {"mtl": 3}})

    server.answer("/v1/actions/drain", state, "POST")
    server.answer("/v1/drain", state)
    result = ctl("--url", server.url, "drain", "--deadline", "5", "--yes")
    assert (result.exit_code, result.stdout) == (code, said)
    assert server.requests[0].body == {"deadline": 5.0}
    assert len(server.requests) == len(states)


def test_a_drain_is_undone(server: Server) -> None:
    server.answer("/v1/actions/drain", {"state": "off", "seconds": 0.0, "remaining": {}}, "POST")
    result = ctl("--url", server.url, "drain", "--undo")
    assert (result.exit_code, result.stdout.split()) == (0, ["state", "off", "seconds", "0", "remaining", "-"])
    assert server.last.body == {"undo": True}


def test_log_levels_are_shown_and_changed(server: Server) -> None:
    server.answer("/v1/log", {"level": "info", "modules": {"mc0": "debug"}})
    assert ctl("--url", server.url, "log").stdout.split() == ["level", "info", "modules", "mc0", "debug"]
    server.answer("/v1/actions/log", {"level": "warn", "modules": {}}, "POST")
    assert ctl("--url", server.url, "log", "warn", "broker.net=debug", "mc0=default").exit_code == 0
    assert server.last.body == {"level": "warn", "modules": {"broker.net": "debug", "mc0": None}}
    assert ctl("--url", server.url, "log", "loud").exit_code == 2
    assert ctl("--url", server.url, "log", "info", "warn").exit_code == 2


def test_a_peer_is_traced(server: Server) -> None:
    server.answer("/v1/actions/trace", {"address": "10.1.2.3", "seconds": 30.0}, "POST")
    assert ctl("--url", server.url, "trace", "10.1.2.3", "--seconds", 30).exit_code == 0
    assert server.last.body == {"address": "10.1.2.3", "seconds": 30.0}
    assert ctl("--url", server.url, "trace", "10.1.2.3", "--off").exit_code == 0
    assert server.last.body == {"address": "10.1.2.3", "off": True}
    assert ctl("--url", server.url, "trace", "--off").exit_code == 2
    server.answer("/v1/trace", {"traces": [{"address": "10.1.2.3", "seconds": 30.0, "lines": 5, "dropped": 0}]})
    assert ctl("--url", server.url, "trace").stdout.splitlines()[1].split() == ["10.1.2.3", "30.0s", "5", "0"]
    server.answer("/v1/trace", {"traces": []})
    assert ctl("--url", server.url, "trace", "-o", "csv").stdout == ""


class Pressed(io.StringIO):
    """An output at whose first line Ctrl-C is pressed."""

    def write(self, text: str) -> int:
        written = super().write(text)
        if written == len(self.getvalue()):
            signal.raise_signal(signal.SIGINT)
        return written


@pytest.mark.parametrize("early", [True, False])
def test_an_offer_is_withdrawn_by_its_owner_token(server: Server, monkeypatch: pytest.MonkeyPatch, early: bool) -> None:
    path = "/v1/services/bank/h:1"

    def renewed(request: Recorded) -> Canned:
        os.kill(os.getpid(), signal.SIGINT)
        return Canned({})

    server.answer(path, {"provider": 7, "owner_token": "secret"}, "PUT")
    server.answer(f"{path}/renew", renewed, "POST")
    server.answer(path, Canned(None, 204), "DELETE")
    monkeypatch.setattr(sys, "stdout", Pressed() if early else io.StringIO())
    with pytest.raises(SystemExit) as ended:
        cli.main(["--url", server.url, "offer", "bank", "h:1", "--ttl", "1"])
    assert ended.value.code == 0
    methods = ["PUT", "DELETE"] if early else ["PUT", "POST", "DELETE"]
    assert [each.method for each in server.requests] == methods
    assert [each.headers.get("owner-token") for each in server.requests] == [None, *["secret"] * (len(methods) - 1)]
