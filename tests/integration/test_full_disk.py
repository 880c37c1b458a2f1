"""Starts of the real daemon on a full disk: files that cannot be written stand for one."""

from __future__ import annotations

import re
import resource
import signal
from pathlib import Path
from typing import Any

import pytest

from tests.full_disk import small_disk
from tests.integration.conftest import MTL, OTHERS
from tests.integration.daemon import Daemon
from tests.integration.mc0_clients import whole_log
from tests.integration.mtl_peers import configured, peers_of
from tests.integration.test_dbp import stored
from tests.integration.test_lifecycle import find, provide
from tests.patience import until

pytestmark = pytest.mark.skipif(
    not hasattr(resource, "prlimit"), reason="the size of another process's files cannot be limited"
)


def give_room(daemon: Daemon) -> None:
    """From now on it can write files."""
    (_, hard) = resource.prlimit(daemon.process.pid, resource.RLIMIT_FSIZE)
    resource.prlimit(daemon.process.pid, resource.RLIMIT_FSIZE, (hard, hard))


@pytest.mark.long
def test_a_full_disk_starts_a_broker_that_stores_when_there_is_room(tmp_path: Path) -> None:
    with Daemon(tmp_path) as before, provide(before, "kept", label="keeper"):
        known = find(before, "kept")
        until(lambda: stored(tmp_path, "kept"))
        before.signal(signal.SIGKILL)
        before.ended()
    (tmp_path / "state" / "reserve").unlink()
    for old in (tmp_path / "state").glob("*-shm"):
        old.unlink()
    given: list[Any] = [known["provider"]]
    for _ in range(2):  # nothing of the first one is on the disk
        with Daemon(tmp_path, full=True) as daemon, provide(daemon, "new"):
            daemon.wait_for("error .* the state could not be stored: the disk is full")
            assert find(daemon, "kept") == {**known, "restored": True}
            given.append(find(daemon, "new")["provider"])
            daemon.signal(signal.SIGKILL)
            daemon.ended()
    with Daemon(tmp_path, full=True) as daemon, provide(daemon, "new"):
        assert find(daemon, "kept") == {**known, "restored": True}
        given.append(find(daemon, "new")["provider"])
        give_room(daemon)
        daemon.wait_for("the state is being stored again")
        until(lambda: stored(tmp_path, "new"))
        daemon.signal(signal.SIGKILL)
        log = whole_log(daemon)
        assert len(re.findall("the state (could not|is being) ", log)) == 2
        assert "Traceback" not in log
    with Daemon(tmp_path) as daemon, provide(daemon, "last"):
        assert find(daemon, "new")["restored"] is True
        given.append(find(daemon, "last")["provider"])
    assert given == sorted(set(given)), "no id is given out twice"


@pytest.mark.long
def test_a_first_start_on_a_full_disk_serves_all_wires_and_keeps_messages_when_there_is_room(tmp_path: Path) -> None:
    options = ("--config", configured(tmp_path, MTL, OTHERS))
    with Daemon(tmp_path, *options, full=True) as daemon, peers_of(daemon) as peers:
        daemon.wait_for("error .* the state could not be stored: the disk is full")
        daemon.wait_for("error .* messages of durable queues could not be kept: the disk is full")
        daemon.wait_for("error .* the metrics journal cannot be written")
        with provide(daemon, "bank"):
            assert find(daemon, "bank")["hostport"] == "h:1"
        writer = peers.writer("queue", "durable-q", confirm="full")
        assert len(writer.settled(refused := writer.write(b"1", "durable-q"))) == 1, refused
        give_room(daemon)
        for again in ("the state is being stored again", "messages of queues are kept again", "no longer, after"):
            daemon.wait_for(again)
        assert writer.settled(writer.write(b"2", "durable-q")) == []
        until(lambda: list((tmp_path / "state" / "journal" / "open").glob("*.jsonl")))
        daemon.signal(signal.SIGTERM)
        log = whole_log(daemon)
        assert "Traceback" not in log
    with Daemon(tmp_path, *options) as daemon, peers_of(daemon) as peers:
        assert peers.reader("queue", "durable-q").bodies(1) == [b"2"]
    sealed = list((tmp_path / "state" / "journal" / "segments").glob("*/*/*.gz"))
    assert sealed


@pytest.mark.long
def test_a_disk_that_a_durable_queue_has_filled_has_room_again_when_it_is_drained(tmp_path: Path) -> None:
    (tmp_path / "state").mkdir()
    options = ("--config", configured(tmp_path, '[[mtl.queues]]\nqueues = ["q"]\ndurable = true\nsize = 100_000_000'))
    with (
        Daemon(tmp_path, *options, runner=small_disk(tmp_path / "state", 64)) as daemon,
        peers_of(daemon) as peers,
    ):
        writer, body = peers.writer("queue", "q", confirm="full"), bytes(400_000)

        def fill() -> int:
            for taken in range(1_000):
                if writer.settled(writer.write(body, "q")):
                    return taken
            raise AssertionError("the disk has no end")

        taken = fill()
        daemon.wait_for("messages of durable queues could not be kept: the disk is full")
        reader = peers.reader("queue", "q", window=1)
        for sequence in range(1, taken + 1):
            assert reader.content().body == body
            reader.confirm(sequence)
        daemon.wait_for("messages of queues are kept again")
        until(lambda: not writer.settled(writer.write(body, "q")))
        assert fill() > taken / 2
        assert "Traceback" not in "".join(daemon.log)
