"""Fail-over of clients among brokers: the pieces of the client guide for each wire, and the examples."""

from __future__ import annotations

import re
import socket
import struct
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from broker.client.http_services import HttpClient
from tests.cluster.brokers import Broker, Brokers
from tests.integration.daemon import ROOT, environment
from tests.patience import PATIENCE, until

GUIDE = (ROOT / "docs" / "clients.md").read_text()

CONFIG = '[dns]\nenabled = true\nendpoint = "tcp:0:interface=127.0.0.1"\n[mtl]\nendpoint = "tcp://127.0.0.1:0"\n'


def piece(name: str) -> Any:
    """A function or class of the guide."""
    texts = re.findall(r"^```python\n(?!# )(.*?)^```", GUIDE, re.M | re.S)
    [text] = [each for each in texts if re.search(rf"^(def|class) {name}\b", each, re.M)]
    assert len([line for line in text.splitlines() if line and not line.startswith("import")]) <= 16
    found: dict[str, Any] = {}
    exec(text, found)
    return found[name]


@pytest.fixture
def brokers(tmp_path: Path) -> Iterator[Brokers]:
    with Brokers(tmp_path) as farm:
        for name in "ab":
            farm.start(name, config=CONFIG)
        yield farm


def mtl(broker: Broker) -> str:
    return "tcp://127.0.0.1:" + broker.wait_for(r"mtl on tcp://127\.0\.0\.1:(\d+) ").group(1)


def run(name: str, *words: str) -> str:
    command = [sys.executable, str(ROOT / "examples" / name), *words]
    ended = subprocess.run(command, capture_output=True, text=True, env=environment(), timeout=PATIENCE)
    assert ended.returncode == 0, (ended.stdout, ended.stderr)
    return ended.stdout


@contextmanager
def running(name: str, *words: str) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, str(ROOT / "examples" / name), *words]
    program = subprocess.Popen(command, env=environment(), stdout=subprocess.PIPE, text=True)
    try:
        yield program
    finally:
        program.kill()
        program.communicate()


def test_the_pieces_of_the_guide(brokers: Brokers) -> None:
    a, b = brokers["a"], brokers["b"]
    servers = HttpClient(f"http://127.0.0.1:{a.http_port()}")

    def listed() -> bool:
        servers.find("bank")
        return len(servers.urls) == 2

    until(listed, "both are in the list")
    b.offer("bank", "10.0.0.1:80")
    until(lambda: a.found("bank"), "a finds")
    elko = piece("connections")([("127.0.0.1", each.port()) for each in (a, b)])
    dealers = piece("dealers")([f"tcp://127.0.0.1:{each.mc0_port()}" for each in (a, b)], b"guide")
    dns = [("127.0.0.1", int(each.wait_for(r"dns on \S+:(\d+) ")[1])) for each in (a, b)]
    brokers.kill("a")
    assert [each["hostport"] for each in servers.find("bank")] == ["10.0.0.1:80"]
    with closing(next(elko)) as connection:
        assert connection.getpeername() == ("127.0.0.1", b.port())
    answers = []
    for dealer in dealers:
        dealer.send_multipart([b"", b"CONNECT", b"TTL", b"3000", b"ID", b"1"])
        if dealer.poll(1_000):
            answers = dealer.recv_multipart()
            break
    assert answers[1] == b"OK"
    question = b"\4bank\7service\12elkobroker\0" + struct.pack(">HH", 33, 1)
    response = piece("ask")(dns, struct.pack(">6H", 7, 0, 1, 0, 0, 0) + question)
    assert struct.unpack_from(">6H", response)[3] == 1
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        with pytest.raises(ConnectionError):
            piece("ask")([dns[0]], b"x" * 12)


@pytest.mark.long
def test_the_examples_go_on_at_the_next_broker(brokers: Brokers) -> None:
    a, b = brokers["a"], brokers["b"]
    elko = ",".join(f"127.0.0.1:{each.port()}" for each in (a, b))
    both = f"{mtl(a)},{mtl(b)}"
    with running("provider.py", "--broker", elko, "--service", "shop") as provider:
        until(lambda: b.found("shop") == ["127.0.0.1:7000"], "b finds the one of a")
        brokers.kill("a")
        assert provider.stdout is not None
        lines = [provider.stdout.readline() for _ in range(3)]
        assert lines[0] == lines[2] == "offering shop at 127.0.0.1:7000\n"
        until(lambda: [row["broker"] for row in b.get("/v1/services?pattern=shop")["rows"]] == ["b"], "it is at b")
        assert "shop at 127.0.0.1:7000" in run("find.py", "shop", "--broker", elko)
        assert run("mtl_jobs.py", "--broker", both, "put", "one") == "1 pieces are in the queue\n"
