"""The examples of docs/protocols/mtl.md are real: its program works, and its bytes are those of the commands."""

from __future__ import annotations

import re
import subprocess
import sys
from queue import SimpleQueue
from threading import Thread

import pytest

from tests.integration.daemon import ROOT, Daemon, environment
from tests.integration.mc0_clients import shown
from tests.integration.mtl_peers import CONFIRM, CONTENT, LEASE, REJECT, Peers, head, short, tail
from tests.patience import PATIENCE, until

DOCUMENT = (ROOT / "docs" / "protocols" / "mtl.md").read_text()

[PROGRAM] = re.findall(r"^```python\n(.*?)^```$", DOCUMENT, re.MULTILINE | re.DOTALL)

TOKEN = "jVq1qjhZ1XJBWIxvI46Ichl9Nw2OANbK"

SHOWN = {
    "Lease": head(LEASE, 1, short(TOKEN)),
    "Content": head(CONTENT, 7, short("jobs") + b"\0\0\0\x0d\x03ttll" + (60_000).to_bytes(8)),
    "Confirm": head(CONFIRM, 7, b"\1"),
    "Reject": head(REJECT, 8, b"\0\1"),
}


def bytes_of(text: str) -> bytes:
    """Hexadecimal words, and text in quotes."""
    words = re.findall(r'"([^"]*)"|([0-9a-f]+)', text)
    return b"".join(quoted.encode() if quoted else bytes.fromhex(digits) for quoted, digits in words)


def test_the_program_works(mtl: Daemon, peers: Peers) -> None:
    program = PROGRAM.replace("tcp://127.0.0.1:5975", peers.address)
    assert program != PROGRAM
    command = [sys.executable, "-u", "-c", program]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment()) as running:
        assert running.stdout is not None
        output, lines = running.stdout, SimpleQueue[str]()

        def read() -> None:
            for line in output:
                lines.put(line.strip())

        reading = Thread(target=read)
        reading.start()
        try:
            for code in ("201", "200"):
                assert lines.get(timeout=PATIENCE).startswith(f"('{code}', ")
            for _ in range(2):
                assert lines.get(timeout=PATIENCE) == "Response 200"
            until(lambda: any(flow.get("summoned") == ["news"] for flow in shown(mtl, "mtl flows topic")))
            peers.writer("topic", "news").write(b"it rains")
            assert lines.get(timeout=PATIENCE) == "Content it rains"
        finally:
            running.kill()
            reading.join()


@pytest.mark.parametrize("name", SHOWN)
def test_commands_are_those_bytes(name: str) -> None:
    [line] = re.findall(rf'^{name} +([^|]*) \| "', DOCUMENT, re.MULTILINE)
    assert bytes_of(line) == SHOWN[name]


def test_so_are_tables() -> None:
    [empty, pair] = re.findall(r"`(00000000|00000009 [^`]*)`", DOCUMENT)
    assert bytes_of(empty) == tail()[1:]
    assert bytes_of(pair) == tail("", {"a": "bc"})[1:]
