"""Damage of the state directory: the real daemon over changed bits, replaced files and old copies."""

from __future__ import annotations

import json
import random
import re
import shutil
import signal
import sqlite3
import urllib.error
import urllib.request
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tests.brokerctl.server import ctl
from tests.integration.conftest import OTHERS
from tests.integration.daemon import Daemon
from tests.integration.http_api import ask
from tests.integration.mc0_clients import whole_log
from tests.integration.mtl_peers import configured, peers_of
from tests.integration.test_lifecycle import find, provide
from tests.patience import until

QUEUES = """
[[mtl.queues]]
queues = ["durable-*"]
durable = true
"""

BODIES = [b"the first message", b"the second message", b"the third message"]


def written(directory: Path, *more: str) -> tuple[str, str]:
    """Run a daemon that stores a service and some messages, and stop it. Returns the options of the next one."""
    options = ("--config", configured(directory, "\n".join([QUEUES, *more]), OTHERS))
    with Daemon(directory, *options) as daemon, provide(daemon, "bank", label="till"), peers_of(daemon) as peers:
        writer = peers.writer("queue", "durable-q", confirm="full")
        for body in BODIES:
            assert writer.settled(writer.write(body, "durable-q")) == []
        daemon.signal(signal.SIGTERM)
        assert daemon.ended() == -signal.SIGTERM
    return options


def changed(file: Path, before: bytes, after: bytes) -> None:
    """Change bytes of a file that it has once."""
    content = file.read_bytes()
    assert content.count(before) == 1
    file.write_bytes(content.replace(before, after))


def metric(daemon: Daemon, name: str) -> float:
    with urllib.request.urlopen(f"http://127.0.0.1:{daemon.http_port()}/metrics") as answer:
        found = re.search(rf"^{re.escape(name)} (\S+)$", answer.read().decode(), re.MULTILINE)
    assert found is not None, name
    return float(found[1])


def test_a_message_with_a_changed_bit_is_a_dead_letter_of_which_all_faces_tell(tmp_path: Path) -> None:
    told = tmp_path / "told"
    rule = f"""
[[notify.rules]]
name = "file"
events = ["state-damaged"]
command = ["/bin/sh", "-c", "cat >> {told}; echo >> {told}"]
"""
    options = written(tmp_path, rule)
    changed(tmp_path / "state" / "queues.sqlite3", BODIES[1], b"the secone message")
    with Daemon(tmp_path, *options) as daemon, peers_of(daemon) as peers:
        assert peers.reader("queue", "durable-q").bodies(2) == [BODIES[0], BODIES[2]]
        letter = peers.reader("queue", "durable-q.dead").content()
        assert (letter.body, letter.properties["death-reason"]) == (b"the secone message", "damaged")
        daemon.wait_for("error .*queue 'durable-q' of '/' is damaged: 1 messages do not match their checksums")
        daemon.port()
        ready = ask(daemon, "GET", "/readyz")[1]
        assert (ready["ready"], [each["what"] for each in ready["degraded"]]) == (True, ["queue 'durable-q' of '/'"])
        assert metric(daemon, 'elkobroker_state_damaged_total{reason="rows"}') == 1
        assert metric(daemon, 'elkobroker_mtl_queue_total{reason="dead.damaged"}') == 1
        event = json.loads(until(lambda: told.read_text() if told.exists() and "\n" in told.read_text() else ""))
        assert (event["event"], event["name"], event["about"]["rows"]) == (
            "state-damaged",
            "queue 'durable-q' of '/'",
            1,
        )
        doctor = ctl("doctor", "--url", f"http://127.0.0.1:{daemon.http_port()}")
        assert "warning queue 'durable-q' of '/': damaged: 1 messages" in doctor.stdout


def test_doctor_verifies_the_stores_of_a_running_broker(tmp_path: Path) -> None:
    options = written(tmp_path)
    with Daemon(tmp_path, *options) as daemon:
        url = f"http://127.0.0.1:{daemon.http_port()}"
        daemon.port()
        first = ctl("doctor", "--verify", "--json", "--url", url)
        rows = {row["what"]: row for row in json.loads(first.stdout)}
        assert rows["verification of queues"]["text"] == "4 rows match their checksums"
        assert rows["verification of state"]["level"] == "ok"
        with closing(sqlite3.connect(tmp_path / "state" / "queues.sqlite3")) as database, database:
            database.execute("UPDATE message SET body = x'00' WHERE body = ?", (BODIES[0],))
        again = ctl("doctor", "--verify", "--json", "--url", url)
        rows = {row["what"]: row for row in json.loads(again.stdout)}
        assert again.exit_code == 1
        assert rows["verification of queues"]["text"].startswith("1 of 4 rows were changed on the disk (message ")
    assert ctl("doctor", "--verify", "--offline").exit_code == 2


def test_a_damaged_database_and_a_file_in_place_of_the_journal_are_set_aside(tmp_path: Path) -> None:
    options = written(tmp_path)
    state = tmp_path / "state"
    with Daemon(tmp_path, *options) as daemon, provide(daemon, "bank"):
        known: Any = find(daemon, "bank")
        daemon.signal(signal.SIGKILL)
        daemon.ended()
    for companion in state.glob("elkobroker.sqlite3-*"):
        companion.unlink()
    content = random.Random(1).randbytes(40_000)
    (state / "elkobroker.sqlite3").write_bytes(content)
    shutil.rmtree(state / "journal")
    (state / "journal").write_text("mine")
    with Daemon(tmp_path, *options) as daemon, provide(daemon, "shop"), peers_of(daemon) as peers:
        daemon.wait_for(r"error .*elkobroker\.sqlite3 is damaged: it is kept as \S+elkobroker\.sqlite3\.damaged-\d+T")
        daemon.wait_for(r"error .*journal is damaged: it was no directory")
        new: Any = find(daemon, "shop")
        assert new["provider"] > known["provider"]
        assert peers.reader("queue", "durable-q").bodies(3) == BODIES
        degraded = ask(daemon, "GET", "/readyz")[1]["degraded"]
        assert [each["what"].rpartition("/")[2] for each in degraded] == ["elkobroker.sqlite3", "journal"]
        assert metric(daemon, 'elkobroker_state_damaged_total{reason="files"}') == 2
        daemon.signal(signal.SIGTERM)
        assert daemon.ended() == -signal.SIGTERM
    [kept] = state.glob("elkobroker.sqlite3.damaged-*")
    assert kept.read_bytes() == content
    [file] = state.glob("journal.damaged-*")
    assert file.read_text() == "mine"
    assert list((state / "journal" / "segments").rglob("*.gz"))
    with Daemon(tmp_path, *options) as daemon:
        daemon.wait_for("error .*elkobroker.sqlite3 is damaged: an earlier start has kept it as")


def test_an_old_copy_of_the_state_gives_out_no_id_again(tmp_path: Path) -> None:
    given: list[Any] = []

    def run() -> None:
        with Daemon(tmp_path) as daemon, provide(daemon, "a", label="a"), provide(daemon, "b", label="b"):
            given.extend(find(daemon, name)["provider"] for name in "ab")
            daemon.signal(signal.SIGTERM)
            assert daemon.ended() == -signal.SIGTERM

    run()
    shutil.copytree(tmp_path / "state", tmp_path / "copy")
    run()
    shutil.rmtree(tmp_path / "state")
    (tmp_path / "copy").rename(tmp_path / "state")
    run()
    assert given == sorted(set(given))
    assert given[-1] < 2**53


def flipped(state: Path, rng: random.Random) -> str:
    """Change one bit of one of the files in a state directory; large ones are chosen more often. Returns where."""
    files = [file for file in sorted(state.rglob("*")) if file.is_file() and file.stat().st_size]
    # All content that is not zero: free space would be hit most of the time.
    [file] = rng.choices(files, [min(file.stat().st_size, 50_000) if file.name != "reserve" else 1 for file in files])
    content = bytearray(file.read_bytes())
    places = [place for place, byte in enumerate(content) if byte] or [0]
    place, bit = rng.choice(places), rng.randrange(8)
    content[place] ^= 1 << bit
    file.write_bytes(content)
    return f"bit {bit} of byte {place} of {file.relative_to(state)}"


@pytest.fixture(scope="module")
def intact(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A state directory with messages, a provider and journal segments, as after a clean stop."""
    directory = tmp_path_factory.mktemp("intact")
    written(directory)
    return directory / "state"


@pytest.mark.parametrize("seeds", [range(3), pytest.param(range(3, 60), marks=pytest.mark.long)], ids=["few", "many"])
def test_with_any_bit_changed_it_serves_what_is_intact_or_says_in_one_sentence_why_not(
    tmp_path: Path, intact: Path, seeds: range
) -> None:
    for seed in seeds:
        directory = tmp_path / str(seed)
        directory.mkdir()
        options = ("--config", configured(directory, QUEUES, OTHERS))
        shutil.copytree(intact, directory / "state")
        place = flipped(directory / "state", random.Random(seed))
        with Daemon(directory, *options) as daemon:
            log = daemon.wait_for(r"(mtl on|ListenerRetries mtl: |elkobroker cannot start: ).*").group()
            if log.startswith("mtl on"):
                with peers_of(daemon) as peers:
                    log = "".join(daemon.log)
                    dead = sum(int(count) for count in re.findall(r"damaged: (\d+) messages do not match", log))
                    aside = sum(int(count) for count in re.findall(r"(\d+) messages in \S+ is damaged", log))
                    bodies = peers.reader("queue", "durable-q").bodies(len(BODIES) - dead - aside)
                    assert sorted(bodies) == sorted(set(bodies) & set(BODIES)), place
            daemon.signal(signal.SIGTERM)
            log += whole_log(daemon)
            assert "Traceback" not in log, (place, log)
