"""From real sockets to tables: the daemon under load of each wire that registers, killed twice, stopped once; then the
jobs.

The truth is what plain Python finds in the journal's files, right after each kill and in the end.

Rules:
- The daemon's clock begins at noon, and stands twenty minutes later at its third start. So a run is all in one date,
  and the broker is away for longer than the journal allows, while nobody waits for it.
- The first start ends by a kill in the middle of loads, and so does the second, seconds later; the third one loses
  records to a full disk, tells of them, and is stopped in good order.
- While the disk is full one service beats; those that beat all the time come back after that.

The file is longer than others: it is one run, whose parts share the truth that they are compared with.
"""

from __future__ import annotations

import gzip
import json
import os
import resource
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import zmq
from pyspark.sql import Row, SparkSession

from spark.capacity.ingest.intake import Ingested, ingest
from spark.capacity.rollup.date_rollup import rollup
from spark.capacity.rollup.lost_time import Missing
from spark.capacity.service import demand as service_load_of
from spark.capacity.service import reliability as reliability_of
from spark.capacity.service.bins import each_service
from spark.capacity.service.demand import LOOKBACK, service_load
from spark.capacity.service.reliability import provider_days, reliability
from spark.capacity.tables.schema import (
    BRONZE_RECORDS,
    LOSS,
    QUARANTINE,
    RECORD,
    SILVER_PROVIDER_5M,
)
from spark.capacity.tables.store import Tables
from spark.capacity.tables.time_windows import SECOND
from tests.integration.daemon import ROOT, Daemon, Peer
from tests.integration.dbp_nodes import Node, Nodes, Service
from tests.integration.mc0_clients import counters
from tests.integration.mtl_peers import Flow, peers_of
from tests.patience import until

CONFIG = """
[[elko.listeners]]
name = "main"
endpoint = "tcp:0:interface=127.0.0.1"
[mc0]
enabled = false
[dbp]
endpoint = "tcp://127.0.0.1:0"
beacon = []
[mtl]
endpoint = "tcp://127.0.0.1:0"
heartbeat = 60
[journal]
name = "test"
segment_bytes = 65536
[[journal.full_load]]
services = ["bank"]
load = 10
"""
"""The smallest segments there may be: some are sealed, and one may be half sealed, when the broker is killed."""

CLOCK = """
import os
import time

shift, now = float(os.environ["CLOCK_SHIFT"]), time.time
time.time = lambda: now() + shift
"""
"""Code that Python runs first in the daemon."""

AWAY = timedelta(minutes=20)
"""By how much the clock of the third start is ahead."""

INTERVAL = 0.5
"""Seconds between the heartbeats of services that live."""

BEAT_EVERY = 0.4
"""Seconds after which they send them: a busy machine makes them late."""

SHORTEST = 0.2
"""Seconds between the heartbeats of those of which some will not come."""

MANY = 1_000
"""Records on the disk from which on a kill is in the middle of the load."""

UDP = [f"rohan {number}" for number in range(6)]
ROUTER = ["gondor 1", "gondor 2"]
PORTS = {name: 6000 + number for number, name in enumerate((*UDP, *ROUTER))}
LATE = "rohan 5"
"""A service that is not back when the third start ends."""
KILLED = "mordor"
"""A service whose process is killed while the broker is up."""
FAREWELL = "lorien"
"""A service that ends in good order, by a DISCONNECT."""
FORGE = "smith"
"""A service on the MTL wire, which goes and comes back with the broker."""
UNHEARD = "numenor"
"""A service that beats while the journal's disk is full."""

RecordT = dict[str, Any]
Key = tuple[str, int]


# what peers do


class Beats:
    """A thread that sends heartbeats."""

    def __init__(self) -> None:
        self._all: dict[str, tuple[Callable[[], None], float]] = {}
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._beat, daemon=True)
        self._thread.start()

    def add(self, name: str, beat: Callable[[], None], every: float) -> None:
        """Call this so often."""
        self._all = {**self._all, name: (beat, every)}

    def stop(self) -> None:
        """Send no more."""
        self._over.set()
        self._thread.join()

    def _beat(self) -> None:
        due: dict[str, float] = {}
        while not self._over.wait(0.02):
            now = time.monotonic()
            for name, (beat, every) in self._all.items():
                if now >= due.get(name, 0.0):
                    beat()
                    due[name] = now + every


class Loads:
    """A thread in which a provider reports its load until it is told to stop, or the broker is not there any more."""

    def __init__(self, peer: Peer, load: float) -> None:
        self._peer = peer
        self._load = load
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._report, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Report no more."""
        self._over.set()
        self._thread.join()

    def _report(self) -> None:
        with suppress(OSError):
            while not self._over.wait(0.01):
                for _ in range(20):
                    self._peer.send(to="client", op="load", factor=self._load)


class Reports:
    """A thread in which a provider on the MTL wire offers a service and reports its load, until it is told to stop."""

    def __init__(self, flow: Flow, load: float) -> None:
        self._flow = flow
        self._load = json.dumps({"load": load}).encode()
        self._over = threading.Event()
        offer = json.dumps({"type": "servicedesc", "service": FORGE, "hostport": "forge:1"}).encode()
        assert flow.settled(flow.write(offer, f"service/{FORGE}", {"type": "offer"})) == []
        # A socket belongs to one thread at a time.
        self._thread = threading.Thread(target=self._report, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Report no more."""
        self._over.set()
        self._thread.join()

    def _report(self) -> None:
        with suppress(zmq.ZMQError):
            while not self._over.wait(0.02):
                self._flow.write(self._load, "load")


class Farm:
    """All peers of one start of the daemon."""

    def __init__(self, daemon: Daemon) -> None:
        self.daemon = daemon
        self._stack = ExitStack()
        self.nodes = self._stack.enter_context(Nodes(daemon))
        self._peers = self._stack.enter_context(peers_of(daemon))
        self.beats = Beats()

    def __enter__(self) -> Farm:
        return self

    def __exit__(self, *_: object) -> None:
        self.beats.stop()
        self._stack.close()

    def elko(self, host: str, *services: str, load: float = 2.0) -> Peer:
        """A provider on the Elko wire, at that host."""
        peer = self._stack.enter_context(self.daemon.connect(label=host))
        offered = [{"service": name, "hostport": f"{host}:1"} for name in services]
        peer.send(to="client", op="willserve", services=offered)
        peer.send(to="client", op="load", factor=load)
        peer.done()
        return peer

    def mtl(self, load: float) -> Reports:
        """A provider on the MTL wire."""
        reports = Reports(self._peers.writer("registry", f"service/{FORGE}", "load", confirm="full"), load)
        self._stack.callback(reports.stop)
        return reports

    def dbp(self, *names: str) -> None:
        """Services on the DBP wire that live."""
        for name in names:
            node = self.nodes.dealer().registered(name, port=PORTS[name], heartbeat=INTERVAL, load=1)
            self.beats.add(name, self.way(name, node), BEAT_EVERY)

    def way(self, name: str, node: Node) -> Callable[[], None]:
        """Return the function by which a service sends its heartbeats."""
        if name in ROUTER:
            return lambda: node.say("<3", name)
        udp = self.nodes.udp()
        return lambda: udp.beat(name)

    def killed_service(self) -> Service:
        """A service in a process of its own, which beats."""
        service = self._stack.enter_context(Service(self.nodes.port, KILLED, SHORTEST))
        service.says("registered")
        return service


# what the journal's files hold


def read(journal: Path) -> dict[Key, RecordT]:
    """Every whole record of the files, sealed or not. One that is there twice must be the same both times."""
    found: dict[Key, RecordT] = {}
    paths = [*journal.glob("open/*.jsonl"), *journal.glob("segments/date=*/hour=*/*.jsonl.gz")]
    for path in paths:
        data = path.read_bytes()
        for line in (gzip.decompress(data) if path.suffix == ".gz" else data).split(b"\n")[:-1]:
            record = json.loads(line)
            key = (record["boot"], record["seq"])
            assert found.setdefault(key, record) == record
    return found


@dataclass
class Truth:
    """The events."""

    journal: Path
    acknowledged: list[int] = field(default_factory=list)
    """Numbers of records that the daemon had reported as written, just before each kill."""
    after_kill: list[dict[Key, RecordT]] = field(default_factory=list)
    """Records in the files after each kill."""
    records: dict[Key, RecordT] = field(default_factory=dict)
    """Records in the files at the end."""

    @property
    def boots(self) -> list[str]:
        """The starts, in their order."""
        return sorted({boot for boot, _ in self.records})

    def of(self, service: str, host: str = "") -> list[RecordT]:
        """The records about a service, or one provider of it, in their order."""
        keys = sorted(self.records)
        found = (self.records[key] for key in keys)
        return [r for r in found if r.get("service") == service and r["endpoint"].startswith(host)]

    def last_sign(self, boot: str) -> int:
        """The time of the last sign of a start of the broker."""
        return max(int(record["ts"]) for (of, _), record in self.records.items() if of == boot)

    def connected(self, records: list[RecordT]) -> float:
        """Return the seconds for which a provider was registered while the broker was up."""
        ends = {(r["boot"], r["provider"]): r["ts"] for r in records if r["event"] in ("unregister", "expire")}
        began = [r for r in records if r["event"] == "register"]
        spans = [ends.get((r["boot"], r["provider"]), self.last_sign(r["boot"])) - int(r["ts"]) for r in began]
        return float(sum(spans)) / 1e6

    def gaps(self) -> set[Key]:
        """The numbers that are missing."""
        last = Counter[str]()
        for boot, seq in self.records:
            last[boot] = max(last[boot], seq)
        every = {(boot, seq) for boot, most in last.items() for seq in range(1, most + 1)}
        return every - set(self.records)


def kill(daemon: Daemon, truth: Truth) -> None:
    """Kill it once there is much on the disk, a part of it sealed; then look what is there."""
    until(lambda: counters(daemon)["journal_records.written"] >= MANY and counters(daemon)["journal_segments.sealed"])
    truth.acknowledged.append(counters(daemon)["journal_records.written"])
    daemon.process.kill()
    assert daemon.ended() == -signal.SIGKILL
    truth.after_kill.append(read(truth.journal))


def fill_the_disk(daemon: Daemon, peer: Peer, journal: Path) -> None:
    """Let no file of the daemon grow until records are lost, and wait until it tells of them."""
    [path] = until(lambda: list(journal.glob(f"open/*{boot_of(journal)}*.jsonl")))
    unlimited = resource.prlimit(daemon.process.pid, resource.RLIMIT_FSIZE)
    resource.prlimit(daemon.process.pid, resource.RLIMIT_FSIZE, (path.stat().st_size + 50, unlimited[1]))
    for _ in range(400):
        peer.send(to="client", op="load", factor=4)
    peer.done()
    until(lambda: counters(daemon)["journal_records.dropped"])
    resource.prlimit(daemon.process.pid, resource.RLIMIT_FSIZE, unlimited)
    until(lambda: any(r["event"] == "drop" for r in read_while_sealed(journal)))


def boot_of(journal: Path) -> str:
    """The latest start in the journal."""
    return max(path.name.split("-")[1] for path in journal.glob("open/*.jsonl"))


@pytest.fixture(scope="module")
def truth(tmp_path_factory: pytest.TempPathFactory) -> Truth:
    if not hasattr(resource, "prlimit"):
        pytest.skip("the size of another process's files cannot be limited")
    directory = tmp_path_factory.mktemp("farm")
    (directory / "clock").mkdir()
    (directory / "clock" / "sitecustomize.py").write_text(CLOCK)
    config = directory / "elkobroker.toml"
    config.write_text(CONFIG)
    now = datetime.now(UTC)
    noon = (now.replace(hour=12, minute=0, second=0, microsecond=0) - now).total_seconds()

    def daemon(shift: float) -> Daemon:
        path = f"{directory / 'clock'}{os.pathsep}{ROOT}"
        return Daemon(directory, "--config", str(config), env={"PYTHONPATH": path, "CLOCK_SHIFT": str(shift)})

    truth = Truth(directory / "state" / "journal")
    with daemon(noon) as first, Farm(first) as farm:
        loads = Loads(farm.elko("stays", "bank", load=4), 4)
        farm.mtl(0.75)
        leaves = farm.elko("leaves", "bank")
        withdraws = farm.elko("withdraws", "bank", "shop")
        farm.elko("late", "bank")
        farm.elko("away", "bank")
        farm.dbp(*UDP, *ROUTER)
        service = farm.killed_service()
        farm.nodes.dealer().registered(FAREWELL, port=5998, heartbeat=60).say("</3")
        until(lambda: counters(first)["dbp_heartbeats.udp"] >= 20)
        leaves.sock.close()
        service.process.kill()
        withdraws.send(to="client", op="wontserve", services=["shop"])
        withdraws.done()
        until(lambda: any(r["event"] == "expire" for r in read_while_sealed(truth.journal)))
        farm.elko("leaves", "bank")
        kill(first, truth)
        loads.stop()
    with daemon(noon) as second, Farm(second) as farm:
        loads = Loads(farm.elko("stays", "bank", load=4), 4)
        farm.mtl(0.75)
        for host in ("leaves", "withdraws", "late"):
            farm.elko(host, "bank")
        farm.dbp(*UDP, *ROUTER)
        kill(second, truth)
        loads.stop()
    with daemon(noon + AWAY.total_seconds()) as third, Farm(third) as farm:
        stays = farm.elko("stays", "bank", load=4)
        reports = farm.mtl(0.75)
        for host in ("leaves", "withdraws"):
            farm.elko(host, "bank")
        unheard = farm.nodes.dealer().registered(UNHEARD, port=5999, heartbeat=SHORTEST)
        farm.beats.add(UNHEARD, farm.way(UNHEARD, unheard), SHORTEST / 2)
        # Earlier records are not lost.
        until(lambda: any(r["event"] == "hb" and r["service"] == UNHEARD for r in read_while_sealed(truth.journal)))
        reports.stop()
        fill_the_disk(third, stays, truth.journal)
        farm.dbp(*(name for name in (*UDP, *ROUTER) if name != LATE))
        heard = counters(third)["dbp_heartbeats.udp"]
        until(lambda: counters(third)["dbp_heartbeats.udp"] >= heard + 20)
        third.signal(signal.SIGTERM)
        assert third.ended() == -signal.SIGTERM
    assert not list(truth.journal.glob("open/*.jsonl")), "an orderly stop leaves nothing open"
    truth.records = read(truth.journal)
    return truth


def read_while_sealed(journal: Path) -> list[RecordT]:
    """Content of the files while one may just be moved: nothing, if so."""
    with suppress(FileNotFoundError):
        return list(read(journal).values())
    return []


# the tables


@dataclass
class Made:
    """The results of the jobs."""

    first: Ingested
    again: Ingested
    bronze: list[Row]
    loss: list[Row]
    quarantined: int
    silver: list[Row]
    hours: list[dict[str, Any]]
    days: dict[tuple[str, str], dict[str, Any]]
    hidden: float
    """Seconds of which nothing is known, since what was told of them is lost."""


def hidden(truth: Truth, lost: list[Missing]) -> float:
    """The time from the record before each loss to the one after it, where there are both."""
    sides = [[truth.records.get((gap.boot, seq)) for seq in (gap.seq_from - 1, gap.seq_to + 1)] for gap in lost]
    return float(sum((after["ts"] - before["ts"]) / 1e6 for before, after in sides if before and after))


@pytest.fixture(scope="module")
def made(spark: SparkSession, truth: Truth, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Made]:
    tables = Tables(spark, tmp_path_factory.mktemp("out"))
    tables.open()
    now = datetime.now(UTC)
    first = ingest(tables, [truth.journal], run="first", started=now)
    again = ingest(tables, [truth.journal], run="again", started=now)
    dates = tables.dates(BRONZE_RECORDS)
    lost = [Missing(row["broker"], row["boot"], row["seq_from"], row["seq_to"]) for row in tables.read(LOSS).collect()]
    assert [made[0] for made in rollup(tables, dates, lost)] == dates
    loads = each_service(tables, dates, service_load, service_load_of.MEASURES, LOOKBACK)
    days = each_service(tables, dates, provider_days, reliability_of.MEASURES)
    yield Made(
        first,
        again,
        tables.read(BRONZE_RECORDS).collect(),
        tables.read(LOSS).collect(),
        tables.read(QUARANTINE).count(),
        tables.read(SILVER_PROVIDER_5M).collect(),
        [row for _, rows in loads for row in rows],
        {(row["service"], row["instance"]): row for _, rows in days for row in reliability(rows)},
        hidden(truth, lost),
    )
    tables.close()


def micros(value: Any) -> Any:
    """Value of a record for a column of bronze."""
    return round(value.timestamp() * 1_000_000) if isinstance(value, datetime) else value


@pytest.mark.long
def test_what_was_on_the_disk_outlives_a_kill(truth: Truth) -> None:
    assert len(truth.records) >= 2 * MANY
    assert len(truth.boots) == 3
    for acknowledged, found in zip(truth.acknowledged, truth.after_kill, strict=True):
        assert len(found) >= acknowledged, "what was said to be on the disk is there after the kill"
        assert all(truth.records[key] == record for key, record in found.items()), "and stays there"
    events = Counter(record["event"] for record in truth.records.values())
    assert {"register", "unregister", "expire", "hb", "load", "alive", "drop"} == set(events)


def test_every_record_in_the_files_is_in_bronze_exactly_once_and_unchanged(truth: Truth, made: Made) -> None:
    found = [
        {n: micros(v) for n, v in row.asDict().items() if n in RECORD.names and v is not None} for row in made.bronze
    ]
    found.sort(key=lambda record: (record["boot"], record["seq"]))
    assert found == [truth.records[key] for key in sorted(truth.records)]
    assert made.first.records == len(truth.records)
    assert (made.first.quarantined, made.quarantined, made.first.unknown) == (0, 0, {})
    assert (made.again.segments, made.again.records) == (0, 0)


def test_the_loss_table_names_exactly_the_gaps(truth: Truth, made: Made) -> None:
    lost = [(row["boot"], seq) for row in made.loss for seq in range(row["seq_from"], row["seq_to"] + 1)]
    assert len(lost) == len(set(lost)) == made.first.lost
    assert set(lost) == truth.gaps()
    told = [r for r in truth.records.values() if r["event"] == "drop"]
    assert [(r["boot"], r["seq"] - r["dropped"], r["seq"] - 1, r["dropped"], True) for r in told] == [
        (row["boot"], row["seq_from"], row["seq_to"], row["records"], row["known"]) for row in made.loss
    ]
    assert {boot for boot, _ in lost} == {truth.boots[2]}, "kills lose what has no number yet"


def test_the_time_of_a_provider_is_that_of_its_registrations_while_the_broker_was_up(truth: Truth, made: Made) -> None:
    for (service, instance), day in made.days.items():
        rows = [row for row in made.silver if (row["service"], row["instance"]) == (service, instance)]
        records = truth.of(service, instance)
        connected = truth.connected(records)
        assert 0 < connected < 60, "the broker was away for longer"
        assert sum(row["connected_s"] for row in rows) == pytest.approx(connected, abs=1e-3)
        beats = sum(row["hb"] for row in rows)
        assert beats == sum(r["event"] == "hb" for r in records)
        if day["judged"] == "beats":
            # None is expected while records were lost, which is some part of a second at a time.
            most = connected * 1000 / records[0]["interval_ms"]
            least = (connected - made.hidden) * 1000 / records[0]["interval_ms"]
            expected = sum(row["hb_expected"] for row in rows)
            assert least - 1e-3 <= expected <= most + 1e-3
            assert day["miss_ratio"] == pytest.approx(max(0.0, 1 - beats / expected), abs=1e-5)


@pytest.mark.parametrize("service", [*UDP, *ROUTER])
def test_the_downtime_of_the_broker_is_not_counted_against_who_beats(truth: Truth, made: Made, service: str) -> None:
    [day] = [row for (name, _), row in made.days.items() if name == service]
    assert not [r for r in truth.of(service) if r["event"] == "expire"]
    assert (day["judged"], day["outages"], day["downtime_s"], day["flaky"]) == ("beats", 0, 0.0, False)


def test_connections_are_judged_by_what_became_of_them(truth: Truth, made: Made) -> None:
    days = {host: made.days["bank", f"{host}:1"] for host in ("stays", "leaves", "withdraws", "late", "away")}
    days["shop"] = made.days["shop", "withdraws:1"]
    for day in days.values():
        assert (day["judged"], day["miss_ratio"], day["phi_max"], day["flaky"]) == ("connection", None, None, False)
    rows = [row for row in made.silver if row["service"] in ("bank", "shop")]
    assert {(row["hb"], row["hb_expected"], row["gap_max"]) for row in rows} == {(0, None, None)}
    assert {host: day["outages"] for host, day in days.items()} == {**dict.fromkeys(days, 0), "leaves": 1}
    quiet = {host: day["downtime_s"] for host, day in days.items() if host not in ("leaves", "away")}
    assert set(quiet.values()) == {0.0}, "neither a kill of the broker nor a withdrawal is an outage"
    left, back = [r["ts"] for r in truth.of("bank", "leaves") if r["event"] in ("register", "unregister")][1:3]
    assert days["leaves"]["downtime_s"] == pytest.approx((back - left) / 1e6, abs=1e-3)


def test_who_had_no_minute_to_come_back_is_not_down(made: Made) -> None:
    assert made.days["bank", "away:1"]["downtime_s"] == 0.0


def test_a_service_that_said_good_bye_had_no_outage(made: Made) -> None:
    [day] = [row for (name, _), row in made.days.items() if name == FAREWELL]
    assert (day["outages"], day["downtime_s"]) == (0, 0.0)


def test_a_service_that_was_killed_while_the_broker_was_up_had_an_outage(truth: Truth, made: Made) -> None:
    [day] = [row for (name, _), row in made.days.items() if name == KILLED]
    assert (day["judged"], day["outages"]) == ("beats", 1)
    last = max(r["ts"] for r in truth.of(KILLED) if r["event"] == "hb") / 1e6 + 3 * SHORTEST
    signs = [(min(r["ts"] for (of, _), r in truth.records.items() if of == boot) / 1e6) for boot in truth.boots]
    ends = [truth.last_sign(boot) / 1e6 for boot in truth.boots]
    assert day["downtime_s"] == pytest.approx(ends[1] - last + ends[2] - signs[2], abs=1e-3)


def test_records_that_the_journal_lost_are_not_counted_as_silence(made: Made) -> None:
    [day] = [row for (name, _), row in made.days.items() if name == UNHEARD]
    assert (day["outages"], day["downtime_s"]) == (0, 0.0)


def test_the_load_is_what_was_reported(made: Made) -> None:
    loads = {row["load_mean"] for row in made.silver if row["instance"] == "stays:1"}
    assert loads == {4.0}
    [hour] = [row for row in made.hours if row["service"] == "bank"]
    assert (datetime.fromtimestamp(hour["h"] / SECOND, UTC).hour, hour["full_load"]) == (12, 10.0)
    # One of 4, and four of 2, whether they are back or not; less the time that the broker was there before them.
    assert 0.75 * 12 < hour["demand_mean"] < 1.01 * 12
    assert hour["demand_max"] < 1.01 * 12


def test_a_provider_on_mtl_is_judged_by_its_flow_and_its_load_is_there(truth: Truth, made: Made) -> None:
    records = truth.of(FORGE)
    assert {record["wire"] for record in records} == {"mtl"}
    assert sum(record["event"] == "load" for record in records) > 3
    day = made.days[FORGE, "forge:1"]
    assert (day["judged"], day["outages"], day["downtime_s"], day["flaky"]) == ("connection", 0, 0.0, False)
    assert {row["load_mean"] for row in made.silver if row["service"] == FORGE} == {0.75}
