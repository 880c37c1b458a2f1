"""Starting, stopping, reloading and dying of the real daemon."""

from __future__ import annotations

import json
import os
import signal
import socket
import sqlite3
import ssl
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from broker.net.admission import STOP_WITHIN
from tests.access.users import OPEN
from tests.config.certificates import certificate
from tests.integration.daemon import Daemon, Peer, environment, twistd
from tests.integration.forked_daemons import start
from tests.patience import PATIENCE, takes_less_than, until


def provide(daemon: Daemon, name: str, **auth: Any) -> Peer:
    """A provider of one service, which the broker has registered."""
    peer = daemon.connect(**auth)
    peer.send(to="client", op="willserve", services=[{"service": name, "hostport": "h:1", "protocol": "tcp"}])
    peer.done()
    return peer


def find(daemon: Daemon, name: str) -> dict[str, object]:
    """The first descriptor of a plain find."""
    with daemon.connect() as peer:
        desc: dict[str, object] = peer.ask(to="client", op="find", service=name)["desc"][0]
        return desc


def run(directory: Path, *options: str, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    """A daemon that is expected to end by itself."""
    if "--config" not in options:
        options = ("--dbp-port", "0", "--mtl-port", "0", "--http-port", "0", *options)
        if "--mc0-port" not in options:
            options = ("--mc0-port", "0", *options)
    process = start(["-n", "--pidfile=", "elkobroker", *options], directory, environment(**(env or {})))
    assert process.stdout is not None
    with process.stdout:
        output = process.stdout.read()
    return subprocess.CompletedProcess(options, process.wait(PATIENCE), output)


def test_sigterm_closes_peers_in_good_order(tmp_path: Path) -> None:
    with Daemon(tmp_path) as daemon:
        with daemon.connect() as peer:
            peer.done()
            daemon.signal(signal.SIGTERM)
            peer.closed()
        assert daemon.ended() == -signal.SIGTERM
        daemon.wait_for("stopped")


def test_a_peer_over_tls_that_does_not_close_does_not_hold_up_the_stop(tmp_path: Path) -> None:
    shown, key = certificate(tmp_path, "broker")
    (tmp_path / "broker.toml").write_text(
        f'[[elko.listeners]]\nendpoint = "tls:0:certificate={shown}:key={key}:interface=127.0.0.1"\n'
        "[mc0]\nenabled = false\n[dbp]\nenabled = false\n"
    )
    context = ssl.create_default_context(cafile=str(shown))
    context.check_hostname = False

    def attempt() -> float:
        with (
            Daemon(tmp_path, "--config", str(tmp_path / "broker.toml")) as daemon,
            Peer(context.wrap_socket(socket.create_connection(("127.0.0.1", daemon.port()), PATIENCE))) as held,
        ):
            held.send(to="client", op="auth")
            held.done()
            daemon.signal(signal.SIGTERM)
            began = time.monotonic()
            daemon.ended()
            return time.monotonic() - began

    takes_less_than(STOP_WITHIN - 1, attempt)


def test_a_stopping_broker_accepts_nobody_while_it_still_has_connections(tmp_path: Path) -> None:
    with Daemon(tmp_path) as daemon, daemon.connect() as peer:
        peer.done()
        port = daemon.port()
        daemon.signal(signal.SIGTERM)
        peer.closed()
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", port), PATIENCE)


def test_signals_of_tools_do_not_end_it_and_sigquit_stops_it_in_order(tmp_path: Path) -> None:
    with Daemon(tmp_path) as daemon, daemon.connect() as peer:
        for stray in (signal.SIGUSR2, signal.SIGALRM, signal.SIGVTALRM, signal.SIGPROF, signal.SIGIO, signal.SIGPWR):
            daemon.signal(stray)
            daemon.wait_for(f"{signal.Signals(stray).name} has no effect")
        daemon.signal(signal.SIGUSR1)
        daemon.wait_for("the log was opened again")
        peer.done()
        daemon.signal(signal.SIGQUIT)
        peer.closed()
        assert daemon.ended() == 0
        daemon.wait_for("Server Shut Down")


@pytest.mark.long
def test_signals_during_the_stop_change_nothing(tmp_path: Path) -> None:
    with Daemon(tmp_path, *_reloadable(tmp_path)) as daemon, daemon.connect() as lazy:
        lazy.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
        for _ in range(20):  # so much that its connection cannot be closed at once
            lazy.send(to="client", op="ping", tag="x" * 200_000)
        daemon.wait_for("elko listener 'main' on ")
        until(lambda: _waits(lazy.sock))
        daemon.signal(signal.SIGTERM)
        daemon.wait_for("Received SIGTERM")
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            daemon.signal(number)
        for told in ("SIGTERM: the broker stops already", "SIGINT: the broker stops already", "is not read again"):
            daemon.wait_for(told)
        assert daemon.ended() == -signal.SIGTERM
        daemon.wait_for("stopped")
        assert not any("Traceback" in line for line in daemon.log)


def _waits(sock: socket.socket) -> bool:
    """True if something came and was not read."""
    sock.setblocking(False)
    try:
        return bool(sock.recv(1, socket.MSG_PEEK))
    except BlockingIOError:
        return False
    finally:
        sock.settimeout(PATIENCE)


def _reloadable(directory: Path) -> tuple[str, str]:
    config = directory / "elkobroker.toml"
    config.write_text(
        '[[elko.listeners]]\nendpoint = "tcp:0:interface=127.0.0.1"\n[mc0]\nenabled = false\n[dbp]\nenabled = false\n'
    )
    return "--config", str(config)


@pytest.mark.long
def test_signals_that_come_together_stop_it_once(tmp_path: Path) -> None:
    with Daemon(tmp_path, *_reloadable(tmp_path)) as daemon, daemon.connect() as peer:
        peer.done()
        for number in (signal.SIGSTOP, signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGCONT):
            daemon.signal(number)
        assert daemon.ended() in (-signal.SIGTERM, -signal.SIGINT)
        daemon.wait_for("stopped")
        assert not any("Traceback" in line for line in daemon.log)


@pytest.mark.long
def test_a_signal_after_an_administrators_shutdown_changes_nothing(tmp_path: Path) -> None:
    with Daemon(tmp_path) as daemon, daemon.connect("admin") as admin, daemon.connect("admin") as other:
        other.done()
        for peer in (admin, other):
            peer.send(to="admin", op="shutdown", self=True)
        daemon.wait_for("shut down by an administrator")
        daemon.signal(signal.SIGTERM)
        assert daemon.ended() in (0, -signal.SIGTERM)  # the latter where the reactor was gone by then
        daemon.wait_for("stopped")
        assert not any("Traceback" in line for line in daemon.log)


def test_find_goes_on_answering_after_a_kill_and_ids_go_on(tmp_path: Path) -> None:
    with Daemon(tmp_path) as daemon:
        provider = provide(daemon, "kept", label="keeper")
        known = find(daemon, "kept")
        database = tmp_path / "state" / "elkobroker.sqlite3"
        until(lambda: _stored(database) > 0)
        daemon.signal(signal.SIGKILL)
        daemon.ended()
        provider.sock.close()
    with Daemon(tmp_path) as daemon:
        restored = find(daemon, "kept")
        assert restored == {**known, "restored": True}
        with provide(daemon, "kept", label="keeper"):
            live = find(daemon, "kept")
            assert "restored" not in live
            assert isinstance(live["provider"], int)
            assert live["provider"] > 2


def _stored(database: Path) -> int:
    with sqlite3.connect(database, timeout=PATIENCE) as connection:
        [count] = connection.execute("SELECT count(*) FROM provider WHERE described LIKE '%kept%'").fetchone()
    return int(count)


def test_after_an_orderly_stop_ids_rise_and_find_answers(tmp_path: Path) -> None:
    with Daemon(tmp_path) as daemon:
        with provide(daemon, "kept") as provider:
            kept: Any = find(daemon, "kept")["provider"]
            daemon.signal(signal.SIGTERM)
            provider.closed()
        daemon.ended()
    with Daemon(tmp_path) as daemon:
        restored = find(daemon, "kept")
        assert (restored["provider"], restored["restored"]) == (kept, True)
        with provide(daemon, "other"):
            other: Any = find(daemon, "other")["provider"]
            assert other > kept


def test_shutdown_by_an_administrator_ends_with_status_0(tmp_path: Path) -> None:
    with Daemon(tmp_path) as daemon, daemon.connect("admin") as admin:
        admin.send(to="admin", op="shutdown", self=True)
        admin.closed()
        assert daemon.ended() == 0


def test_shutdown_kill_ends_at_once(tmp_path: Path) -> None:
    with Daemon(tmp_path) as daemon, daemon.connect("admin") as admin, daemon.connect() as idle:
        idle.done()
        admin.send(to="admin", op="shutdown", self=True, kill=True)
        assert daemon.ended() == 0
        assert not any("stopped" in line for line in daemon.log)


def test_the_first_listeners_port_in_use_fails_the_whole_start_and_is_named(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        ended = run(tmp_path, "--port", str(port), "--console-port", "0", "--state", str(tmp_path / "state"))
        assert ended.returncode == 1
        assert f"elko listener 'main': cannot listen on 127.0.0.1:{port}: Address already in use" in ended.stdout
        assert "Traceback" not in ended.stdout


def test_a_state_directory_has_one_broker(tmp_path: Path) -> None:
    with Daemon(tmp_path) as daemon:
        daemon.port()
        ended = run(tmp_path, "--port", "0", "--console-port", "off", "--state", str(tmp_path / "state"))
        assert ended.returncode == 1
        assert str(tmp_path / "state") in ended.stdout
        assert str(daemon.process.pid) in ended.stdout
        assert find(daemon, "nothing")["failure"] == "no such service"


def test_an_unusable_state_directory_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a directory")
    ended = run(tmp_path, "--port", "0", "--console-port", "off", "--state", str(tmp_path / "file" / "state"))
    assert ended.returncode == 1
    assert str(tmp_path / "file") in ended.stdout


def test_the_state_directory_of_systemd_counts_first(tmp_path: Path) -> None:
    given = tmp_path / "given"
    with Daemon(tmp_path, "--state", str(tmp_path / "unused"), env={"STATE_DIRECTORY": str(given)}) as daemon:
        daemon.port()
        assert given.is_dir()
        assert not (tmp_path / "unused").exists()


def test_a_bad_configuration_is_refused_with_line_and_key(tmp_path: Path) -> None:
    config = tmp_path / "bad.toml"
    config.write_text('[broker]\ngrace = "long"\n\n[[elko.listeners]]\nname = "a"\nendpoint = "tcp:70000"\n')
    for check in (("--check",), ()):
        ended = run(tmp_path, "--config", str(config), *check)
        assert ended.returncode == 1
        assert f"{config}:2: broker.grace: " in ended.stdout
        assert "Traceback" not in ended.stdout


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (("--bind", "0.0.0.0"), "elko.listeners[0].endpoint: 0.0.0.0:9000 can be reached from other machines"),
        (("--bind", "nowhere"), "elko.listeners[0].endpoint: "),
        (("--port", "99999"), "elko.listeners[0].endpoint: port must be a number between 0 and 65535"),
        (("--console-port", "x"), "--console-port: 'x' is no port, nor 'off'"),
        (("--mc0-port", "x"), "--mc0-port: 'x' is no port, nor 'off'"),
        (("--mc0-port", "65536"), "mc0.endpoint: port must be a number between 0 and 65535"),
    ],
)
def test_a_bad_command_line_is_refused(tmp_path: Path, options: tuple[str, ...], told: str) -> None:
    ended = run(tmp_path, *options, "--check")
    assert ended.returncode == 1
    assert told in ended.stdout


def test_check_says_that_all_is_well_and_starts_nothing(tmp_path: Path) -> None:
    config = tmp_path / "good.toml"
    config.write_text('[[elko.listeners]]\nname = "a"\nendpoint = "tcp:9000:interface=127.0.0.1"\n')
    ended = run(tmp_path, "--config", str(config), "--check", "--state", str(tmp_path / "state"))
    assert ended.returncode == 0, ended.stdout
    assert "127.0.0.1:9000" in ended.stdout
    assert not (tmp_path / "state").exists()


CONFIG = """
[broker]
diagnostics = true
[[elko.listeners]]
name = "main"
endpoint = "tcp:0:interface=127.0.0.1"
allow = ["{role}"]
{more}
[console]
enabled = false
[mc0]
enabled = false
[dbp]
enabled = false
"""


def test_reload_takes_good_files_and_leaves_bad_ones(tmp_path: Path) -> None:
    config = tmp_path / "elkobroker.toml"
    config.write_text(CONFIG.format(role="client", more=""))
    with Daemon(tmp_path, "--config", str(config), console="off") as daemon:
        with daemon.connect() as peer:
            peer.done()
        config.write_text(CONFIG.format(role="admin", more=""))
        daemon.signal(signal.SIGHUP)
        daemon.wait_for("the configuration was reloaded")
        with daemon.connect() as refused:
            assert refused.receive()["msg"] == "auth: the role 'client' is not served on this listener"
            refused.closed()
        config.write_text(CONFIG.format(role="client", more="nonsense = 1"))
        daemon.signal(signal.SIGHUP)
        daemon.wait_for(r"not reloaded: .*elkobroker.toml:8: elko.listeners\[0\].nonsense")
        config.write_text(CONFIG.format(role="client", more='path = "/x"\ntransport = "websocket"'))
        daemon.signal(signal.SIGHUP)
        daemon.wait_for(r'reload: changed: elko.listeners\[main\].allow: \["admin"\] -> \["client"\]')
        daemon.wait_for(r'reload: restart needed: elko.listeners\[main\].transport: "tcp" -> "websocket"')
        with daemon.connect() as peer:
            peer.done()


OTHER_PORTS = ["--mc0-port", "0", "--dbp-port", "0", "--mtl-port", "0", "--http-port", "0", "--console-port", "off"]


@pytest.mark.long
def test_it_runs_in_the_background_too(tmp_path: Path) -> None:
    """Nothing is opened before twistd forks."""
    command = [twistd(), "--pidfile", "broker.pid", "--logfile", "broker.log", "elkobroker", "--port", "0"]
    command += [*OTHER_PORTS, "--state", str(tmp_path / "state")]
    subprocess.run(command, cwd=tmp_path, env=environment(), check=True, timeout=PATIENCE)
    log = tmp_path / "broker.log"
    until(lambda: "elko listener 'main' on" in log.read_text())
    port = int(log.read_text().split("elko listener 'main' on 127.0.0.1:")[1].split()[0])
    pid = int((tmp_path / "broker.pid").read_text())
    try:
        with Peer(socket.create_connection(("127.0.0.1", port), PATIENCE)) as peer:
            peer.send(to="client", op="auth")
            peer.done()
    finally:
        os.kill(pid, signal.SIGTERM)
    until(lambda: not (tmp_path / "broker.pid").exists())


@pytest.mark.long
def test_a_failed_start_in_the_background_is_told_on_the_terminal(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        command = [twistd(), "--pidfile", "b.pid", "--logfile", "b.log", "elkobroker", "--port", str(port)]
        command += [*OTHER_PORTS, "--state", str(tmp_path / "state")]
        ended = subprocess.run(
            command, cwd=tmp_path, env=environment(), capture_output=True, text=True, timeout=PATIENCE
        )
    assert ended.returncode == 1
    assert f"cannot listen on 127.0.0.1:{port}" in ended.stdout + ended.stderr


def test_systemd_hears_of_start_reload_and_stop(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as notify:
        notify.bind(str(tmp_path / "notify"))
        notify.settimeout(PATIENCE)
        env = {"NOTIFY_SOCKET": str(tmp_path / "notify"), "WATCHDOG_USEC": "200000"}
        with Daemon(tmp_path, env=env) as daemon:

            def told(what: bytes) -> None:
                while what not in notify.recv(4096).split(b"\n"):
                    pass

            told(b"READY=1")
            told(b"WATCHDOG=1")
            daemon.signal(signal.SIGTERM)
            told(b"STOPPING=1")
            daemon.ended()


@pytest.mark.long
def test_sockets_that_systemd_passes(tmp_path: Path) -> None:
    config = tmp_path / "elkobroker.toml"
    config.write_text(
        '[[elko.listeners]]\nname = "main"\nendpoint = "systemd:domain=INET:index=0"\n'
        f"{OPEN}"
        "[mc0]\nenabled = false\n[dbp]\nenabled = false\n"
    )
    with socket.create_server(("127.0.0.1", 0)) as listening:
        script = (
            "import os, sys; os.dup2(int(sys.argv[1]), 3); os.set_inheritable(3, True); "
            "os.environ.update(LISTEN_FDS='1', LISTEN_FDNAMES='elko', LISTEN_PID=str(os.getpid())); "
            "os.execv(sys.argv[2], sys.argv[2:])"
        )
        command = [sys.executable, "-c", script, str(listening.fileno()), twistd(), "-n", "--pidfile=", "elkobroker"]
        command += ["--config", str(config), "--console-port", "off", "--state", str(tmp_path / "state")]
        process = subprocess.Popen(
            command, cwd=tmp_path, env=environment(), pass_fds=[listening.fileno()], stdout=subprocess.DEVNULL
        )
        try:
            with Peer(socket.create_connection(listening.getsockname(), PATIENCE)) as peer:
                peer.send(to="client", op="auth")
                peer.done()
        finally:
            process.terminate()
            process.wait(PATIENCE)


def test_a_socket_that_systemd_did_not_pass_is_named(tmp_path: Path) -> None:
    config = tmp_path / "elkobroker.toml"
    config.write_text(
        '[[elko.listeners]]\nname = "main"\nendpoint = "systemd:domain=INET:index=0"\n'
        f"{OPEN}"
        "[mc0]\nenabled = false\n[dbp]\nenabled = false\n"
    )
    ended = run(tmp_path, "--config", str(config), "--console-port", "off", "--state", str(tmp_path / "state"))
    assert ended.returncode == 1
    assert "elko listener 'main': cannot listen on" in ended.stdout
    assert "systemd passed no such socket" in ended.stdout


@pytest.mark.long
def test_launched_programs_and_their_switches_survive_a_restart(tmp_path: Path) -> None:
    config = tmp_path / "elkobroker.toml"
    program = tmp_path / "program.py"
    program.write_text("print('hello from the program', flush=True)\n")
    config.write_text(
        '[[elko.listeners]]\nendpoint = "tcp:0:interface=127.0.0.1"\n[mc0]\nenabled = false\n[dbp]\nenabled = false\n'
        '[launchers]\nstart = "recover"\n'
        f'[[launchers.table]]\nname = "context"\nscript = "{sys.executable} {program}"\n'
    )
    with Daemon(tmp_path, "--config", str(config)) as daemon, daemon.connect("admin") as admin:
        assert admin.ask(to="admin", op="launch", name="nobody")["status"] == "fail nobody not found"
        assert admin.ask(to="admin", op="launch", name="context")["status"] == "start context"
        daemon.wait_for("hello from the program")
        [launcher] = admin.ask(to="admin", op="launcherdesc")["launchers"]
        assert launcher == {"type": "launcher", "name": "context", "script": f"{sys.executable} {program}", "on": True}
        daemon.signal(signal.SIGTERM)
        daemon.ended()
    with Daemon(tmp_path, "--config", str(config)) as daemon:
        daemon.wait_for("hello from the program")


def test_logs_as_json_lines(tmp_path: Path) -> None:
    with Daemon(tmp_path, "--log-format", "json") as daemon:
        line = daemon.wait_for("elko listener 'main' on").string
        assert "elko listener" in json.loads(line)["message"]
