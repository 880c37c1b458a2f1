"""``bench``: what is counted, and what is told about it."""

from __future__ import annotations

import json
import re
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from broker.brokerctl import bench_command
from broker.brokerctl.bench_command import Samples, cpu_seconds, summary
from tests.brokerctl.server import Server, ctl, problem


def test_percentiles_are_nearest_ranks() -> None:
    samples = Samples()
    for milliseconds in range(100, 0, -1):
        samples.answered(milliseconds / 1000)
    found = summary("x", samples, 2.0, 4, 1.9, 0.5)
    assert (found.p50_ms, found.p90_ms, found.p99_ms, found.max_ms) == (50.0, 90.0, 99.0, 100.0)
    assert (found.answered, found.per_second, found.client_cpu, found.broker_cpu) == (100, 50.0, 0.95, 0.25)
    assert found.limited_by_client
    assert not summary("x", samples, 2.0, 4, 1.0, None).limited_by_client


def test_nothing_answered_has_no_percentiles() -> None:
    found = summary("x", Samples(), 2.0, 4, 0.0, None)
    assert (found.p50_ms, found.max_ms, found.per_second) == (None, None, 0.0)


def test_different_errors_are_bounded() -> None:
    samples = Samples()
    for number in range(1_000):
        samples.failed(f"error {number}")
    assert len(samples.errors) <= 21
    assert sum(samples.errors.values()) == 1_000


@pytest.mark.parametrize(
    ("metrics", "seconds"),
    [
        ("# TYPE x\nprocess_cpu_seconds_total 1.5\n", 1.5),
        ("process_cpu_seconds_total\n", None),
        ("process_cpu_seconds_total x\n", None),
        ("other 1\n", None),
    ],
)
def test_the_cpu_time_of_the_broker_is_in_its_metrics(metrics: str, seconds: float | None) -> None:
    assert cpu_seconds(metrics) == seconds


def test_finds_are_measured(server: Server) -> None:
    server.answer("/v1/services/bank", {"name": "bank", "services": []})
    result = ctl("--url", server.url, "bench", "find", "bank", "--seconds", 0.3, "--connections", 2, "--json")
    assert result.exit_code == 0
    found = json.loads(result.stdout)
    asked = [request for request in server.requests if request.path == "/v1/services/bank"]
    # The first request of each connection is no sample.
    assert found["answered"] == len(asked) - 2 > 0
    assert (found["connections"], found["errors"], found["broker_cpu"]) == (2, {}, None)
    assert 0 < found["p50_ms"] <= found["p99_ms"] <= found["max_ms"]
    assert found["seconds"] >= 0.3


def test_a_rate_is_kept(server: Server) -> None:
    server.answer("/healthz", {"status": "ok"})
    result = ctl("--url", server.url, "bench", "--seconds", 1, "--rate", 20, "--json")
    assert 4 <= json.loads(result.stdout)["answered"] <= 20


def test_a_broker_that_refuses_is_not_loaded(server: Server) -> None:
    server.answer("/v1/services/bank", problem(403, "no"))
    result = ctl("--url", server.url, "bench", "find", "bank", "--seconds", 5)
    assert (result.exit_code, result.stderr) == (5, "brokerctl: no\n")
    assert len(server.requests) <= 2


@contextmanager
def elko(answer: bytes, host: str = "127.0.0.1") -> Iterator[str]:
    """The address of a server that answers each ping."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.create_server((host.strip("[]"), 0), family=family)

    def serve(connection: socket.socket) -> None:
        with connection:
            buffer = b""
            while data := connection.recv(65536):
                buffer += data
                while b"\n\n" in buffer:
                    message, _, buffer = buffer.partition(b"\n\n")
                    if json.loads(message)["op"] == "ping":
                        connection.sendall(answer)

    def accept() -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            threading.Thread(target=serve, args=(connection,), daemon=True).start()

    thread = threading.Thread(target=accept)
    thread.start()
    try:
        yield f"{host}:{listener.getsockname()[1]}"
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        thread.join()


def test_pings_are_measured(server: Server) -> None:
    with elko(b'{"to":"client","op":"pong"}\n\n') as where:
        result = ctl("--url", server.url, "bench", "ping", where, "--seconds", 0.3)
    assert result.exit_code == 0
    lines = result.stdout.splitlines()
    assert lines[0] == f"Elko pings to {where}"
    assert re.fullmatch(r"[\d,]+ answers in \d+\.\d s on 4 connections: [\d,]+ a second", lines[1])
    assert lines[2].startswith("latency: 50 % within ")
    assert lines[3].startswith("CPU, of one core: brokerctl ")
    assert "broker unknown" in lines[3]


@pytest.mark.parametrize("host", ["[::1]", "127.0.0.1"])
def test_pings_go_to_the_host_of_the_broker_by_default(host: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with elko(b'{"to":"client","op":"pong"}\n\n', host) as where:
        monkeypatch.setattr(bench_command, "ELKO_PORT", int(where.rpartition(":")[2]))
        result = ctl("--url", f"http://{host}:1", "bench", "ping", "--seconds", 0.1)
    assert (result.exit_code, result.stderr) == (0, "")
    assert result.stdout.splitlines()[0] == f"Elko pings to {where}"
    result = ctl("--url", f"http://{host}:1", "bench", "ping")
    assert (result.exit_code, result.stderr) == (3, f"brokerctl: {where} cannot be reached: Connection refused\n")


def test_a_listener_that_does_not_answer_pings_is_an_error(server: Server) -> None:
    with elko(b'{"to":"error","op":"debug"}\n\n') as where:
        result = ctl("--url", server.url, "bench", "ping", where, "--seconds", 5)
    assert result.exit_code == 1
    assert "no answer to a ping" in result.stderr
    assert ctl("--url", server.url, "bench", "ping", "127.0.0.1:1").exit_code == 3
    assert ctl("--url", server.url, "bench", "ping", "nowhere").exit_code == 2
