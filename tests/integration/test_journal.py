"""The metrics journal of the real daemon: what peers do is in its files, also after a kill and a full disk.

Tests wait for records in files: the daemon appends the gathered ones once a second.
"""

from __future__ import annotations

import gzip
import json
import re
import resource
import shutil
import signal
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.integration.daemon import Daemon, Peer
from tests.integration.dbp_nodes import Nodes
from tests.integration.mc0_clients import counters, run_to_its_end, whole_log
from tests.patience import until

CONFIG = """
[[elko.listeners]]
name = "main"
endpoint = "tcp:0:interface=127.0.0.1"
[mc0]
enabled = false
[dbp]
enabled = {dbp}
endpoint = "tcp://127.0.0.1:0"
beacon = []
interval = 60
[journal]
name = "test"
{journal}
"""

FULL = """
[[journal.full_load]]
services = ["bank*"]
load = {load}
"""

COUNTERS = {
    "journal_clock.back",
    "journal_records.written",
    "journal_records.coalesced",
    "journal_records.dropped",
    "journal_records.mended",
    "journal_segments.recovered",
    "journal_segments.torn",
    "journal_segments.sealed",
    "journal_segments.deleted",
    "journal_errors.write",
    "journal_errors.seal",
    "journal_errors.retain",
}

Record = dict[str, Any]


def configured(directory: Path, journal: str = "", dbp: bool = False) -> tuple[str, str]:
    """The options of a daemon with these keys of [journal]."""
    path = directory / "elkobroker.toml"
    path.write_text(CONFIG.format(journal=journal, dbp=str(dbp).lower()))
    return "--config", str(path)


# reading


def files_of(journal: Path) -> tuple[list[Path], list[Path]]:
    """The open segments, and the sealed ones."""
    return sorted(journal.glob("open/*.jsonl")), sorted(journal.glob("segments/date=*/hour=*/*.jsonl.gz"))


def whole_lines(data: bytes) -> list[Record]:
    """The records in what there is of a file, without a last line that is not whole yet."""
    return [json.loads(line) for line in data.split(b"\n")[:-1]]


def sealed(journal: Path) -> list[Record]:
    """The records of the sealed segments, by their keys. Nothing in them may be torn."""
    records = []
    for path in files_of(journal)[1]:
        data = gzip.decompress(path.read_bytes())
        assert data.endswith(b"\n")
        records += whole_lines(data)
    return sorted(records, key=lambda record: (record["boot"], record["seq"]))


def written(journal: Path) -> list[Record]:
    """The records of the open segment. Only for a journal of which nothing is being sealed."""
    return [record for path in files_of(journal)[0] for record in whole_lines(path.read_bytes())]


def events(records: Iterable[Record], *names: str) -> list[Record]:
    return [record for record in records if record["event"] in names]


def gaps(records: Sequence[Record]) -> tuple[int, int]:
    """Return how many numbers of one start are missing, and how many losses are recorded. No number may be there
    twice."""
    numbers = sorted(record["seq"] for record in records)
    assert len(set(numbers)) == len(numbers)
    return numbers[-1] - len(numbers), sum(record.get("dropped", 0) for record in records)


def stopped(daemon: Daemon) -> None:
    """Stop it in good order."""
    daemon.signal(signal.SIGTERM)
    assert daemon.ended() == -signal.SIGTERM


def provider(daemon: Daemon, *names: str, label: str = "bank 1") -> Peer:
    """A provider of these services on the Elko wire, which the broker has registered."""
    peer = daemon.connect(label=label)
    services = [{"service": name, "hostport": f"{name.replace(' ', '-')}:1"} for name in names]
    peer.send(to="client", op="willserve", services=services)
    peer.done()
    return peer


# what is told


@pytest.mark.long
def test_what_peers_of_both_wires_do_is_in_the_journal(tmp_path: Path) -> None:
    journal = tmp_path / "state" / "journal"
    with Daemon(tmp_path, *configured(tmp_path, dbp=True)) as daemon, Nodes(daemon) as nodes:
        gone = provider(daemon, "bank", "shop")
        for load in (0.5, 1.5):
            gone.send(to="client", op="load", factor=load)
        gone.send(to="client", op="wontserve", services=["shop"])
        gone.send(to="client", op="load", factor=2)
        gone.done()
        gone.sock.close()
        nodes.dealer().registered("Rohan", port=6000, heartbeat=0.2, load=4)
        udp = nodes.udp()
        for _ in range(3):
            udp.beat("Rohan")
        until(lambda: counters(daemon)["dbp_services.expired"])  # Rohan is silent from now on
        hermes = nodes.hermes().registered("Gondor", port=6001)
        hermes.say("<3", "Gondor")
        hermes.hear()
        with provider(daemon, "stays", label="there at the end"):
            until(lambda: events(written(journal), "register")[3:])
            counts = counters(daemon)
            assert {name for name in counts if name.startswith("journal_")} == COUNTERS
            assert counts["journal_records.dropped"] == 0
            stopped(daemon)
    assert files_of(journal)[0] == [], "an orderly stop leaves nothing open"
    records = sealed(journal)
    assert gaps(records) == (0, 0)
    assert {(record["v"], record["broker"]) for record in records} == {(1, "test")}
    assert len({record["boot"] for record in records}) == 1
    assert [r.get("why") for r in events(records, "alive")] == ["start", "stop"]
    assert (records[0]["event"], records[-1]["event"]) == ("alive", "alive")

    def of(service: str) -> list[tuple[Any, ...]]:
        return [(r["event"], r.get("load", r.get("why"))) for r in records if r.get("service") == service]

    assert of("bank") == [("register", None), ("load", 0.5), ("load", 1.5), ("load", 2.0), ("unregister", "left")]
    assert of("shop") == [("register", None), ("load", 0.5), ("load", 1.5), ("unregister", "withdrawn")]
    assert of("Rohan") == [("register", None), ("load", 4.0), *[("hb", None)] * 3, ("expire", "expired")]
    assert of("Gondor") == [("register", None), ("hb", None)]
    assert of("stays") == [("register", None)], "who is cut off by an orderly stop did not leave"
    assert {r.get("service") for r in records} == {None, "bank", "shop", "Rohan", "Gondor", "stays"}

    bank, rohan = (
        events((r for r in records if r.get("service") == name), "register")[0] for name in ("bank", "Rohan")
    )
    assert (bank["wire"], bank["label"], bank["endpoint"], bank["protocol"]) == ("elko", "bank 1", "bank:1", "tcp")
    assert "interval_ms" not in bank
    assert (rohan["wire"], rohan["label"], rohan["interval_ms"]) == ("dbp", "Rohan", 200)
    beats = events(records, "hb")
    assert [r["hb_seq"] for r in beats] == [1, 2, 3, 1]
    assert ["sent_ts" in r for r in beats] == [True, True, True, False], "a float32 is up to a minute off"
    assert all(abs(r["sent_ts"] - r["ts"]) < 60e6 for r in beats[:3])
    assert all("full_load" not in r for r in records), "nothing is claimed about capacity"


def test_a_load_comes_with_the_full_load_that_is_configured_also_after_a_reload(tmp_path: Path) -> None:
    journal = tmp_path / "state" / "journal"
    options = configured(tmp_path, FULL.format(load=8))
    with Daemon(tmp_path, *options) as daemon, provider(daemon, "bank 1", "shop") as peer:
        peer.send(to="client", op="load", factor=1)
        peer.done()
        configured(tmp_path, FULL.format(load=16.5))
        daemon.signal(signal.SIGHUP)
        daemon.wait_for("the configuration was reloaded")
        peer.send(to="client", op="load", factor=2)
        peer.done()
        stopped(daemon)
    told = [(r["service"], r["load"], r.get("full_load")) for r in events(sealed(journal), "load")]
    assert told == [("bank 1", 1, 8), ("shop", 1, None), ("bank 1", 2, 16.5), ("shop", 2, None)]


def test_a_journal_that_is_switched_off_is_not_there(tmp_path: Path) -> None:
    with Daemon(tmp_path, *configured(tmp_path, "enabled = false", dbp=True)) as daemon, Nodes(daemon) as nodes:
        with provider(daemon, "bank") as peer:
            peer.send(to="client", op="load", factor=1)
            peer.done()
        nodes.dealer().registered("Rohan", heartbeat=5)
        nodes.udp().beat("Rohan")
        until(lambda: counters(daemon)["dbp_heartbeats.udp"])
        assert not [name for name in counters(daemon) if name.startswith("journal")]
        stopped(daemon)
        assert "journal" not in whole_log(daemon)
    assert not (tmp_path / "state" / "journal").exists()


def test_one_provider_that_floods_costs_no_other_its_records(tmp_path: Path) -> None:
    journal = tmp_path / "state" / "journal"
    with (
        Daemon(tmp_path, *configured(tmp_path)) as daemon,
        provider(daemon, *(f"many-{number}" for number in range(1_000))) as flood,
        provider(daemon, "bank") as quiet,
    ):
        for _ in range(20):
            for load in range(25):  # 25,000 records, of which the queue takes 200,000
                flood.send(to="client", op="load", factor=load)
            quiet.send(to="client", op="load", factor=1.5)
        quiet.done()
        flood.done()
        assert until(lambda: counters(daemon)["journal_records.coalesced"])
        assert counters(daemon)["journal_records.dropped"] == 0
        stopped(daemon)
    records = sealed(journal)
    assert gaps(records) == (0, 0)
    assert len([r for r in events(records, "load") if r["service"] == "bank"]) == 20
    of_one = [r for r in events(records, "load") if r["service"] == "many-7"]
    assert sum(1 + r.get("coalesced", 0) for r in of_one) == 500
    assert of_one[-1]["load"] == 24


# directories


@pytest.mark.long
def test_a_directory_that_cannot_be_used_is_named_and_nothing_starts(tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("a file")
    options = configured(tmp_path, f'directory = "{tmp_path}/taken/journal"')
    ended = run_to_its_end(tmp_path, *options, "--state", str(tmp_path / "state"))
    assert ended.returncode == 1
    assert "elkobroker cannot start: journal: " in ended.stdout
    assert f"{tmp_path}/taken" in ended.stdout
    assert "elko listener" not in ended.stdout
    assert "Traceback" not in ended.stdout


@pytest.mark.long
def test_a_journal_has_one_broker(tmp_path: Path) -> None:
    options = configured(tmp_path, 'directory = "shared"')
    with Daemon(tmp_path, *options) as daemon:
        daemon.port()
        ended = run_to_its_end(tmp_path, *options, "--state", str(tmp_path / "other"))
        assert ended.returncode == 1
        assert "journal: " in ended.stdout
        assert f"another broker writes to this journal (process {daemon.process.pid})" in ended.stdout
        with provider(daemon, "bank"):
            stopped(daemon)
    assert [r["service"] for r in events(sealed(tmp_path / "shared"), "register")] == ["bank"]


@pytest.mark.long
def test_a_journal_that_is_removed_under_the_running_broker_begins_again(tmp_path: Path) -> None:
    journal = tmp_path / "state" / "journal"
    options = configured(tmp_path)
    with Daemon(tmp_path, *options) as daemon, provider(daemon, "bank") as peer:
        until(lambda: events(written(journal), "register"))
        shutil.rmtree(journal)
        peer.send(to="client", op="load", factor=1)
        peer.done()
        daemon.wait_for("the metrics journal cannot be written: .*the open file was removed.*-1.jsonl")
        assert counters(daemon)["journal_records.dropped"] >= 3
        peer.send(to="client", op="load", factor=2)
        peer.done()
        [drop] = until(lambda: events(written(journal), "drop"))
        stopped(daemon)
        assert len(re.findall("journal cannot be written", whole_log(daemon))) == 2, "when it begins, and when it ends"
    records = sealed(journal)
    lost = drop["dropped"]
    assert gaps(records) == (lost, lost)
    assert [(r["event"], r.get("load")) for r in records] == [("drop", None), ("load", 2), ("alive", None)]


# kills, and full disks


def test_after_a_kill_all_that_was_in_the_files_is_there_exactly_once(tmp_path: Path) -> None:
    journal = tmp_path / "state" / "journal"
    options = configured(tmp_path)
    with Daemon(tmp_path, *options) as daemon, provider(daemon, "bank") as peer:
        sent = 0
        while len(written(journal)) < 500:  # of several rounds, and in the middle of one
            for _ in range(20):  # fewer than what coalesces
                sent += 1
                peer.send(to="client", op="load", factor=sent)
            peer.done()
        daemon.process.kill()
        assert daemon.ended() == -signal.SIGKILL
    [left] = files_of(journal)[0]
    before = whole_lines(left.read_bytes())
    assert [r["load"] for r in events(before, "load")] == list(range(1, len(before) - 1))
    with left.open("ab") as file:  # as a kill in the middle of a write leaves it
        file.write(b'{"v":1,"broker":"test","boot":"' + before[0]["boot"].encode())
    with Daemon(tmp_path, *options) as again:
        again.port()
        until(lambda: not left.exists())
        assert sealed(journal) == before, "sealed at the start, while the broker serves"
        again.wait_for("left 1 open segments of the metrics journal, which are sealed now; 1 ended in the middle")
        assert [counters(again)[f"journal_segments.{name}"] for name in ("recovered", "torn", "sealed")] == [1, 1, 1]
        with provider(again, "bank"):
            stopped(again)
    records = sealed(journal)
    boots = sorted({record["boot"] for record in records})
    assert boots[0] == before[0]["boot"]
    assert [r for r in records if r["boot"] == boots[0]] == before
    after = [r for r in records if r["boot"] == boots[1]]
    assert gaps(before) == gaps(after) == (0, 0)
    assert [r["event"] for r in after] == ["alive", "register", "alive"]


@pytest.mark.long
@pytest.mark.skipif(not hasattr(resource, "prlimit"), reason="the size of another process's files cannot be limited")
def test_while_the_disk_is_full_the_broker_serves_and_the_journal_resumes_and_tells_what_is_lost(
    tmp_path: Path,
) -> None:
    journal = tmp_path / "journal"
    with Daemon(tmp_path, *configured(tmp_path, 'directory = "journal"')) as daemon, provider(daemon, "bank") as peer:
        until(lambda: events(written(journal), "register"))
        [path] = files_of(journal)[0]
        unlimited = resource.prlimit(daemon.process.pid, resource.RLIMIT_FSIZE)
        room = path.stat().st_size + 50  # for a part of a record
        resource.prlimit(daemon.process.pid, resource.RLIMIT_FSIZE, (room, unlimited[1]))
        for number in range(100):
            peer.send(to="client", op="load", factor=number)
        peer.done()
        daemon.wait_for(f"the metrics journal cannot be written: .*File too large: .*{path.name}")
        with daemon.connect() as customer:
            assert customer.ask(to="client", op="find", service="bank")["desc"][0]["hostport"] == "bank:1"
        assert until(lambda: counters(daemon)["journal_records.dropped"]) >= 100
        resource.prlimit(daemon.process.pid, resource.RLIMIT_FSIZE, unlimited)
        peer.send(to="client", op="load", factor=1_000)
        peer.done()
        [drop] = until(lambda: events(written(journal), "drop"))
        until(lambda: counters(daemon)["journal_records.written"] >= 4)
        counts = counters(daemon)
        stopped(daemon)
        assert len(re.findall("journal cannot be written", whole_log(daemon))) == 2, "when it begins, and when it ends"
    records = sealed(journal)
    lost = drop["dropped"]
    assert lost >= 100, "drop records that were lost themselves are counted too"
    assert drop["why"] == "disk"
    assert (counts["journal_records.dropped"], counts["journal_errors.write"] > 0) == (lost, True)
    assert gaps(records) == (lost, lost)
    assert [(r["event"], r["seq"], r.get("load")) for r in records] == [
        ("alive", 1, None),
        ("register", 2, None),
        ("drop", lost + 3, None),
        ("load", lost + 4, 1_000),
        ("alive", lost + 5, None),
    ]
