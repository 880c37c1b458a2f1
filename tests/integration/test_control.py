"""Operating the real daemon: drain with real clients, reload, log levels, traces, and notifications."""

from __future__ import annotations

import hmac
import json
import re
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import sha256
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from queue import Queue

from broker.core.silence import LEAST
from tests.integration.daemon import Daemon
from tests.integration.http_api import call
from tests.integration.mc0_clients import clients_of, console
from tests.integration.mtl_peers import peers_of
from tests.patience import PATIENCE, until, written


def test_a_drain_sends_real_clients_away_and_can_be_undone(tmp_path: Path) -> None:
    with (
        Daemon(tmp_path) as daemon,
        clients_of(daemon) as mc0,
        peers_of(daemon) as mtl,
        daemon.connect(label="bank") as elko,
    ):
        elko.send(to="client", op="willserve", services=[{"service": "bank", "hostport": "h:1"}])
        elko.done()
        client = mc0.new(b"client")
        assert client.ask("CONNECT|VERSION|0.3|TTL|30000|ID|c") == "OK|ID|c"
        control = mtl.control()
        assert control.open("/").code == "201"

        status, drain, _ = call(daemon, "POST", "/v1/actions/drain", {"deadline": 60})
        assert (status, drain["state"]) == (200, "draining")
        assert "draining" in elko.receive()["msg"]
        elko.closed()
        elko.sock.close()
        # A client of MTL is connected again by its library, and told by the protocol.
        assert control.open("/").code == "503"
        with daemon.connect(None) as late:
            assert "draining" in late.receive()["msg"]
            late.closed()
        status, problem, headers = call(daemon, "GET", "/v1/services/bank")
        assert (status, problem["code"], headers["Retry-After"]) == (503, "draining", "60")
        status, ready, _ = call(daemon, "GET", "/readyz")
        assert (status, [each["what"] for each in ready["reasons"]]) == (503, ["drain"])
        until(lambda: call(daemon, "GET", "/v1/drain")[1]["state"] == "drained")
        assert "drain: drained" in console(daemon, "drain state")

        assert "drain: off" in console(daemon, "drain undo")
        with daemon.connect() as again:
            again.done()
        assert control.open("/").code == "201"
        assert client.ask("CONNECT|VERSION|0.3|TTL|30000|ID|d") == "OK|ID|d"
        assert call(daemon, "GET", "/readyz")[0] == 200
        assert not any("Traceback" in line for line in daemon.log)


def test_a_session_is_disconnected_by_its_key(tmp_path: Path) -> None:
    with Daemon(tmp_path) as daemon, daemon.connect(label="one") as one, daemon.connect(label="two") as two:
        one.done()
        two.done()
        host, port = one.sock.getsockname()[:2]
        order = {"wire": "elko", "session": f"{host}:{port}"}
        assert call(daemon, "POST", "/v1/actions/disconnect", order)[0] == 200
        assert "an operator" in one.receive()["msg"]
        one.closed()
        one.sock.close()
        until(lambda: call(daemon, "POST", "/v1/actions/disconnect", order)[0] == 404)
        assert call(daemon, "POST", "/v1/actions/disconnect", {"wire": "x", "session": "y"})[0] == 400
        two.done()


def test_the_console_serves_operators_who_trace_it_and_others(tmp_path: Path) -> None:
    with Daemon(tmp_path) as daemon:
        assert "trace of 127.0.0.1" in console(daemon, "trace peer 127.0.0.1")
        assert "trace of 10.0.0.7" in console(daemon, "trace peer 10.0.0.7")
        daemon.wait_for("trace in console .*10.0.0.7")
        assert "Traceback" not in "".join(daemon.log)


def test_instances_of_http_expire_in_a_drain_and_are_not_taken_for_silent_ones(tmp_path: Path) -> None:
    with Daemon(tmp_path) as daemon, socket.create_server(("127.0.0.1", 0)) as server:
        offer = {"hostport": f"127.0.0.1:{server.getsockname()[1]}", "ttl": 1}
        for number in range(LEAST + 1):
            assert call(daemon, "PUT", f"/v1/services/bank/{number}", offer)[0] == 201
        call(daemon, "POST", "/v1/actions/drain", {"deadline": 60})
        until(lambda: call(daemon, "GET", "/v1/services?pattern=bank")[1]["total"] == 0)
        assert call(daemon, "GET", "/v1/events?kinds=checked")[1]["events"] == []
        assert not any("peers are silent" in line for line in daemon.log)


def test_a_trace_and_log_levels_change_while_it_runs(tmp_path: Path) -> None:
    with Daemon(tmp_path) as daemon, daemon.connect() as peer:
        peer.done()
        address = f"127.0.0.1:{peer.sock.getsockname()[1]}"
        assert call(daemon, "PUT", f"/v1/trace/{address}", {"seconds": 60})[0] == 200
        service = {"service": "s", "hostport": "h:1", "auth": {"mode": "password", "code": "geheim"}}
        peer.send(to="client", op="willserve", services=[service])
        assert "nonsense" in peer.ask(to="client", op="nonsense")["msg"]
        peer.done()
        traced = daemon.wait_for(r'\[(elko-\d+)\] trace in elko \S+: .*"code":\(hidden\)')
        refused = daemon.wait_for(r"\[(elko-\d+)\] elko peer 127.0.0.1: unknown-op")
        assert traced[1] == refused[1]
        daemon.wait_for(r"trace out elko \S+: .*pong")
        assert call(daemon, "DELETE", f"/v1/trace/{address}")[0] == 204
        assert not any("geheim" in line for line in daemon.log)
        status, levels, _ = call(daemon, "PUT", "/v1/log", {"level": "warn", "modules": {"mtl": "debug"}})
        assert (status, levels) == (200, {"level": "warn", "modules": {"mtl": "debug"}})
        assert "mtl=debug" in console(daemon, "log")


CONFIG = """
[[elko.listeners]]
endpoint = "tcp:0:interface=127.0.0.1"
[mc0]
enabled = false
[dbp]
enabled = false
"""


def test_a_reload_prints_the_same_text_everywhere(tmp_path: Path) -> None:
    path = tmp_path / "elkobroker.toml"
    path.write_text(CONFIG)
    with Daemon(tmp_path, "--config", str(path)) as daemon:
        daemon.port()
        path.write_text(CONFIG + '[broker]\ngrace = 5.0\nstate = "/x"\n')
        status, result, _ = call(daemon, "POST", "/v1/actions/reload", {})
        lines = result["text"].split("\n")
        assert (status, lines[1:]) == (
            200,
            ["changed: broker.grace: 60.0 -> 5.0", 'restart needed: broker.state: (not set) -> "/x"'],
        )
        for line in lines:
            daemon.wait_for(f"reload: {re.escape(line)}")
        path.write_text(CONFIG + "[broker]\ngrace = 7.0\n")
        assert "changed: broker.grace: 5.0 -> 7.0" in console(daemon, "reload")
        path.write_text(CONFIG + "[broker]\ngrace = -1.0\n")
        status, result, _ = call(daemon, "POST", "/v1/actions/reload", {})
        problem = f"{path}:9: broker.grace: must be between 0 and 86400, not -1"
        assert result["problems"] == [problem]
        assert problem in console(daemon, "reload")
        daemon.wait_for(f"not reloaded: {re.escape(problem)}")
        keys = {each["key"]: each["value"] for each in call(daemon, "GET", "/v1/config")[1]["keys"]}
        assert keys["broker.grace"] == "7.0"
        audit = tmp_path / "state" / "audit.jsonl"
        until(lambda: audit.read_text().count("\n") == 4)
    acts = [json.loads(line) for line in audit.read_text().splitlines()]
    assert [(act["operation"], act["listener"], act["result"]) for act in acts] == [
        ("admin.reload", "http", "done"),
        ("admin.reload", "console", "done"),
        ("admin.reload", "http", "refused: parameter"),
        ("admin.reload", "console", "refused: parameter"),
    ]


def test_command_lines_are_shown_nowhere(tmp_path: Path) -> None:
    path = tmp_path / "elkobroker.toml"
    hidden = (
        '[[launchers.table]]\nname = "bank"\nscript = "/bin/false --password s1e2c3"\n'
        '[[notify.rules]]\nname = "page"\ncommand = ["/bin/false", "s1e2c3"]\n'
    )
    path.write_text(CONFIG + hidden)
    with Daemon(tmp_path, "--config", str(path)) as daemon:
        daemon.port()
        shown = json.dumps(call(daemon, "GET", "/v1/config")[1])
        assert "launchers.table[bank].script" in shown
        shown += console(daemon, "config") + console(daemon, "notifications")
        path.write_text(CONFIG + hidden.replace("s1e2c3", "s1e2c3 other"))
        call(daemon, "POST", "/v1/actions/reload", {})
        daemon.wait_for(r"reload: .*launchers\.table\[bank\]\.script: \(hidden\) -> \(hidden\)")
        call(daemon, "POST", "/v1/actions/launch", {"name": "bank"})
        daemon.wait_for("bank.*ended")
    assert "s1e2c3" not in shown + "".join(daemon.log)


@contextmanager
def hooks(statuses: list[int]) -> Iterator[tuple[int, Queue[tuple[dict[str, str], bytes]]]]:
    """A server of webhooks, which answers with these statuses, then with 204: its port, and its requests."""
    requests: Queue[tuple[dict[str, str], bytes]] = Queue()

    class Hook(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            self.send_response(statuses.pop(0) if statuses else 204)
            self.end_headers()
            requests.put((dict(self.headers), body))

        def log_message(self, format: str, *args: object) -> None: ...

    with HTTPServer(("127.0.0.1", 0), Hook) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield server.server_port, requests
        finally:
            server.shutdown()
            thread.join()


def test_events_are_sent_to_webhooks_and_commands_and_repeated(tmp_path: Path) -> None:
    path, out = tmp_path / "elkobroker.toml", tmp_path / "out"
    with hooks([503]) as (port, requests):
        path.write_text(
            f"""{CONFIG}[notify]
settle = 0.0
[[notify.rules]]
name = "hook"
events = ["service-gone"]
url = "http://127.0.0.1:{port}/secret-path"
secret = "geheim"
[[notify.rules]]
name = "script"
events = ["service-gone"]
command = ["sh", "-c", "cat >{out}.new; mv {out}.new {out}"]
"""
        )
        with Daemon(tmp_path, "--config", str(path)) as daemon:
            with daemon.connect(label="bank") as peer:
                peer.send(to="client", op="willserve", services=[{"service": "bank", "hostport": "h:1"}])
                peer.done()
            first, second = requests.get(timeout=PATIENCE), requests.get(timeout=PATIENCE)
            assert first[1] == second[1]
            headers, body = second
            event = json.loads(body)
            assert (event["event"], event["name"], event["about"]) == ("service-gone", "bank", {"why": "left"})
            # A compressed answer would have no limit.
            assert "Accept-Encoding" not in headers
            signed = headers["X-Elkobroker-Timestamp"].encode() + b"." + body
            assert headers["X-Elkobroker-Signature"] == f"sha256={hmac.new(b'geheim', signed, sha256).hexdigest()}"
            assert json.loads(written(out)) == event
            daemon.wait_for("notify hook: works again")
            shown = console(daemon, "broker notifications") + console(daemon, "config")
            assert "secret-path" not in shown
            assert "geheim" not in shown


def test_a_listener_that_cannot_be_opened_is_an_event(tmp_path: Path) -> None:
    path = tmp_path / "elkobroker.toml"
    with socket.create_server(("127.0.0.1", 0)) as taken, hooks([]) as (port, requests):
        where = f"tcp://127.0.0.1:{taken.getsockname()[1]}"
        rule = f'[[notify.rules]]\nname = "hook"\nurl = "http://127.0.0.1:{port}/"\n'
        mtl = f'[mtl]\nendpoint = "{where}"\n'
        path.write_text(CONFIG + rule + mtl)
        with Daemon(tmp_path, "--config", str(path)) as daemon:
            event = json.loads(requests.get(timeout=PATIENCE)[1])
            assert (event["event"], event["name"]) == ("listener-not-ready", "mtl")
            assert "Address already in use" in event["about"]["reason"]
            status, ready, _ = call(daemon, "GET", "/readyz")
            assert (status, ready["reasons"][0]["what"]) == (503, "listener mtl")
