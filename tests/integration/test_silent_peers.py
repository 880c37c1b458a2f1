"""Peers that fall silent, in the real daemon: a server that hangs, and many instances without renewals."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path

import pytest

from bench.machine import waited_seconds
from tests.integration.daemon import Daemon
from tests.integration.http_api import ask
from tests.patience import until

MANY = 12


def _states(daemon: Daemon, name: str) -> list[str]:
    """The states of the services of a name, in the order of finds."""
    services = ask(daemon, "GET", f"/v1/services/{name}")[1]["services"]
    return [each.get("check", {}).get("state", "") for each in services]


def test_instances_that_fall_silent_together_are_verified_by_real_connections(tmp_path: Path) -> None:
    with ExitStack() as stack:
        daemon = stack.enter_context(Daemon(tmp_path))
        alive = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(2)]
        free = stack.enter_context(socket.socket())
        free.bind(("127.0.0.1", 0))  # nothing listens there
        for number in range(MANY):
            server = alive[number] if number < len(alive) else free
            path = f"/v1/services/{'alive' if number < len(alive) else 'killed'}/{number}"
            offer = {"hostport": f"127.0.0.1:{server.getsockname()[1]}", "ttl": 2}
            assert ask(daemon, "PUT", path, offer)[0] == 201
        assert len(_states(daemon, "killed")) == MANY - len(alive)
        # Refused connections end the entries at once, accepted ones begin the lease again.
        until(lambda: not _states(daemon, "killed"))
        rows = ask(daemon, "GET", "/v1/counters?pattern=silent_peers.*")[1]["rows"]
        counters = {row["name"]: row["value"] for row in rows}
        # Those whose lease ends when most others are gone already end as single ones.
        assert counters["silent_peers.refused"] > 0
        assert counters["silent_peers.proved"] > 0


HUNG = '''
"""An Elko server that answers pings, as the original does."""
import json, socket, sys
sock = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
def send(**message):
    sock.sendall(json.dumps(message).encode() + b"\\n\\n")
send(to="broker", op="auth", label="hung")
send(to="broker", op="willserve", services=[{"type": "servicedesc", "service": "hung", "hostport": "h:1"}])
print("ready", flush=True)
for line in sock.makefile():
    if '"ping"' in line:
        send(to="broker", op="pong", tag=json.loads(line).get("tag"))
'''


HUNG_JAVA = """
import java.io.*;
import java.net.Socket;
import java.util.regex.*;

class Hung {
    static OutputStream out;

    static void send(String message) throws IOException {
        out.write((message + "\\n\\n").getBytes("UTF-8"));
        out.flush();
    }

    public static void main(String[] words) throws IOException {
        Socket socket = new Socket("127.0.0.1", Integer.parseInt(words[0]));
        out = socket.getOutputStream();
        send("{\\"to\\":\\"broker\\", \\"op\\":\\"auth\\", \\"label\\":\\"hung\\"}");
        send("{\\"to\\":\\"broker\\", \\"op\\":\\"willserve\\", \\"services\\":"
            + "[{\\"type\\":\\"servicedesc\\", \\"service\\":\\"hung\\", \\"hostport\\":\\"h:1\\"}]}");
        System.out.println("ready");
        Pattern tag = Pattern.compile("\\"tag\\": *(\\"[^\\"]*\\")");
        BufferedReader lines = new BufferedReader(new InputStreamReader(socket.getInputStream(), "UTF-8"));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            if (line.contains("\\"ping\\"")) {
                Matcher found = tag.matcher(line);
                String tagged = found.find() ? ", \\"tag\\":" + found.group(1) : "";
                send("{\\"to\\":\\"broker\\", \\"op\\":\\"pong\\"" + tagged + "}");
            }
        }
    }
}
"""
"""The same for the virtual machine of the original servers, whose threads and garbage collection stop as well."""

WITHIN = 45.0
"""Seconds until a server that hangs is marked. Time in which the daemon was ready to run, but other processes ran
instead, does not count."""


def _compiles_java() -> bool:
    java = shutil.which("java")
    listed = [] if java is None else [java, "--list-modules"]
    return bool(listed) and "jdk.compiler" in subprocess.run(listed, capture_output=True, text=True).stdout


def _command(language: str, folder: Path) -> list[str]:
    if language == "python":
        return [sys.executable, "-c", HUNG]
    if not _compiles_java():
        pytest.skip("there is no Java with a compiler")
    source = folder / "Hung.java"
    source.write_text(HUNG_JAVA)
    return ["java", str(source)]


@pytest.mark.long
@pytest.mark.parametrize("language", ["python", "java"])
def test_a_server_that_hangs_is_marked_within_45_seconds(tmp_path: Path, language: str) -> None:
    command = _command(language, tmp_path)
    with (
        Daemon(tmp_path) as daemon,
        subprocess.Popen([*command, str(daemon.port())], stdout=subprocess.PIPE, text=True) as server,
    ):
        pid = daemon.process.pid
        try:
            assert server.stdout is not None
            assert server.stdout.readline() == "ready\n"
            until(lambda: _states(daemon, "hung") == ["passing"])
            os.kill(server.pid, signal.SIGSTOP)
            began = time.monotonic() - waited_seconds(pid)
            until(lambda: _states(daemon, "hung") == ["doubtful"])
            until(lambda: _states(daemon, "hung") == ["failing"])
            assert time.monotonic() - waited_seconds(pid) - began < WITHIN
        finally:
            server.kill()
