"""The audit log: its lines, its rotation, and a disk that fails."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import attrs
import pytest
from twisted.internet.defer import Deferred, fail, maybeDeferred
from twisted.internet.task import Clock
from twisted.logger import capturedLogs

from broker.access.principal import Act, Method, Principal
from broker.operate.audit import MAX_TEXT, AuditLog
from broker.operate.line_file import BATCH, MAX_WAITING, RETRY, append

ANN = Principal("ann", Method.TOKEN, "192.0.2.1:4000")


class Disk:
    """A thread that works at once, or fails while ``full``."""

    def __init__(self) -> None:
        self.full = False

    def __call__(self, function: Callable[..., Any], *arguments: Any) -> Deferred[Any]:
        if self.full:
            return fail(OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)))
        return maybeDeferred(function, *arguments)


class Rig:
    def __init__(self, path: Path, size: int = 10_000) -> None:
        self.path = path
        self.clock = Clock()
        self.disk = Disk()
        self.audit = AuditLog(str(path), size, 3, self.clock, self.disk)

    def acts(self) -> list[dict[str, str]]:
        return [json.loads(line) for line in self.path.read_text().splitlines()]


@pytest.fixture
def rig(tmp_path: Path) -> Rig:
    return Rig(tmp_path / "audit.jsonl")


def test_a_line_has_who_did_what_where_and_the_result(rig: Rig) -> None:
    rig.clock.advance(1.5)
    rig.audit.record(Act(ANN, "console", "admin.launch", "chat"))
    assert rig.acts() == [
        {
            "time": "1970-01-01T00:00:01.500+00:00",
            "user": "ann",
            "method": "token",
            "address": "192.0.2.1:4000",
            "listener": "console",
            "operation": "admin.launch",
            "object": "chat",
            "result": "done",
            "request_id": "",
        }
    ]
    assert rig.path.stat().st_mode & 0o777 == 0o600


def test_a_request_over_http_has_its_id(rig: Rig) -> None:
    with capturedLogs() as events:
        rig.audit.record(Act(attrs.evolve(ANN, request_id="mine"), "http", "admin.launch", "chat"))
        rig.audit.record(Act(ANN, "console", "admin.launch", "chat"))
    assert [act["request_id"] for act in rig.acts()] == ["mine", ""]
    assert [event.get("request_id") for event in events] == ["mine", None]


def test_text_of_peers_makes_neither_lines_nor_long_ones(rig: Rig) -> None:
    rig.audit.record(Act(ANN, "console", "admin.say", 'a\n{"user":"root"}' + "x" * 5_000))
    (act,) = rig.acts()
    assert act["user"] == "ann"
    assert len(act["object"]) == MAX_TEXT


def test_while_the_disk_fails_acts_wait_and_further_ones_are_lost_and_counted(rig: Rig) -> None:
    rig.disk.full = True
    for number in range(MAX_WAITING + 3):
        rig.audit.record(Act(ANN, "console", "admin.say", str(number)))
    assert rig.audit.failure == "No space left on device"
    assert rig.audit.counts() == {"audit.written": 0, "audit.lost": 3, "audit.errors": 1, "audit.waiting": MAX_WAITING}
    rig.disk.full = False
    rig.audit.use(rig.audit.path, 2**30, 3)
    rig.clock.advance(RETRY)
    assert rig.audit.failure == ""
    assert [act["object"] for act in rig.acts()] == [str(number) for number in range(MAX_WAITING)]


def test_another_file_takes_later_lines_and_those_that_wait(rig: Rig, tmp_path: Path) -> None:
    rig.audit.record(Act(ANN, "console", "admin.say", "1"))
    rig.disk.full = True
    rig.audit.record(Act(ANN, "console", "admin.say", "2"))
    rig.disk.full = False
    rig.audit.use(str(tmp_path / "other.jsonl"), 10_000, 3)
    rig.audit.record(Act(ANN, "console", "admin.say", "3"))
    assert [act["object"] for act in rig.acts()] == ["1"]
    rig.path = tmp_path / "other.jsonl"
    assert [act["object"] for act in rig.acts()] == ["2", "3"]
    assert (rig.audit.failure, rig.clock.getDelayedCalls()) == ("", [])


def test_the_stop_writes_what_waits_and_leaves_no_timer(rig: Rig) -> None:
    rig.disk.full = True
    rig.audit.record(Act(ANN, "console", "admin.say", "x"))
    rig.disk.full = False
    done: list[object] = []
    rig.audit.stop().addCallback(done.append)
    assert done == [None]
    assert len(rig.acts()) == 1
    assert not rig.clock.getDelayedCalls()


def test_the_stop_waits_for_the_lines_of_further_writes(tmp_path: Path) -> None:
    writes: list[tuple[Deferred[Any], Callable[[], Any]]] = []

    def in_thread(function: Callable[..., Any], *arguments: Any) -> Deferred[Any]:
        writes.append((Deferred(), partial(function, *arguments)))
        return writes[-1][0]

    rig = Rig(tmp_path / "audit.jsonl", 2**30)
    audit = AuditLog(str(rig.path), 2**30, 3, rig.clock, in_thread)
    for number in range(2 * BATCH):
        audit.record(Act(ANN, "console", "admin.say", str(number)))
    done: list[object] = []
    audit.stop().addCallback(done.append)
    while not done:
        result, write = writes.pop(0)
        result.callback(write())
    assert [act["object"] for act in rig.acts()] == [str(number) for number in range(2 * BATCH)]


def test_the_file_is_rotated_at_its_size_and_the_oldest_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    for number in range(6):
        append(str(path), f"{number:09}\n".encode(), 10, 3)
    assert path.read_text() == "000000005\n"
    assert [(tmp_path / f"audit.jsonl.{number}").read_text() for number in (1, 2, 3)] == [
        "000000004\n",
        "000000003\n",
        "000000002\n",
    ]
    assert len(list(tmp_path.iterdir())) == 4


def test_a_line_that_was_cut_spoils_no_other(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    append(str(path), b"one\ntw", 100, 1)
    append(str(path), b"three\n", 100, 1)
    assert path.read_text() == "one\ntw\nthree\n"


def test_a_file_that_cannot_be_rotated_is_closed_once(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    append(str(path), b"0123456789", 10, 1)
    (tmp_path / "audit.jsonl.1").mkdir()
    with pytest.raises(IsADirectoryError):
        append(str(path), b"0123456789", 10, 1)
    assert path.read_text() == "0123456789"


def test_a_link_is_not_followed(tmp_path: Path) -> None:
    target = tmp_path / "target"
    target.touch()
    (tmp_path / "audit.jsonl").symlink_to(target)
    with pytest.raises(OSError):
        append(str(tmp_path / "audit.jsonl"), b"x\n", 10, 3)
    assert target.read_text() == ""
