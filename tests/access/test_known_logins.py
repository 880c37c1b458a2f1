"""The file of names that have logged in: what it keeps over a restart, and what harms it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from twisted.internet.defer import maybeDeferred
from twisted.internet.task import Clock
from twisted.logger import capturedLogs

from broker.access.logins import WRITE_AFTER, KnownLogins, LoginGate

HERE = "192.0.2.1:4000"


class Opened:
    """A gate with its file."""

    def __init__(self, path: Path, in_thread: Callable[..., Any] = maybeDeferred) -> None:
        self.clock = Clock()
        self.gate = LoginGate(self.clock.seconds)
        self.file = KnownLogins(str(path), self.gate, self.clock, in_thread)

    def log_in(self, name: str, address: str = HERE) -> None:
        self.gate.begin(address, name).right()


def test_names_are_known_after_a_restart(tmp_path: Path) -> None:
    path = tmp_path / "known"
    first = Opened(path)
    for name in ("ann", "bob"):
        first.log_in(name)
        first.log_in(name, "2001:db8::1")
    first.gate.begin_token(HERE).right()  # a token is no name
    first.clock.advance(WRITE_AFTER)
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.read_text() == "192.0.2.1 ann\n2001:db8::/64 ann\n192.0.2.1 bob\n2001:db8::/64 bob\n"
    again = Opened(path)
    assert again.gate.knows("192.0.2.1:5", "ann")
    assert again.gate.knows("2001:db8::2", "bob")
    assert not again.gate.knows("192.0.2.2", "ann")
    assert again.clock.getDelayedCalls() == []


def test_many_new_names_are_one_write_and_known_ones_none(tmp_path: Path) -> None:
    writes: list[object] = []

    def in_thread(*call: Any) -> Any:
        writes.append(call)
        return maybeDeferred(*call)

    opened = Opened(tmp_path / "known", in_thread)
    for _ in range(2):
        for number in range(1_000):
            opened.log_in(f"server-{number}")
        opened.clock.advance(WRITE_AFTER)
    assert len(writes) == 1
    opened.gate.begin_token(HERE).right()
    assert opened.clock.getDelayedCalls() == []
    opened.log_in("another")
    opened.file.stop()
    assert opened.clock.getDelayedCalls() == []


@pytest.mark.parametrize("content", [b"", b"\0\xff\n", b"192.0.2.1\n", b"192.0.2.1 no name\n", b"x" * 10_000 + b" ann"])
def test_a_damaged_file_is_a_help_less(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "known"
    path.write_bytes(content + b"\n192.0.2.1 ann\n")
    opened = Opened(path)
    assert list(opened.gate.known()) == [("192.0.2.1", "ann")]


def test_a_disk_that_fails_is_logged(tmp_path: Path) -> None:
    opened = Opened(tmp_path / "nowhere" / "known")
    opened.log_in("ann")
    with capturedLogs() as logged:
        opened.clock.advance(WRITE_AFTER)
    assert ["No such file" in str(event["why"]) for event in logged] == [True]
    opened.log_in("bob")
    assert len(opened.clock.getDelayedCalls()) == 1
