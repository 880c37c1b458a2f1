"""Metrics: the mapping from counters to names and labels, the names themselves, and the text."""

from __future__ import annotations

import subprocess
from collections.abc import Iterable

from prometheus_client.core import Metric
from prometheus_client.parser import text_string_to_metric_families

from broker.app.process import COUNTERS
from broker.core.model import NotReady
from broker.operate import metrics
from broker.operate.metrics import CounterMetrics, LoopTimes, endpoints, render
from broker.wires.tables import AnyView, Column, Counter, Documentation, View
from tests.operate.calls import Site, content, pieces
from tests.packages import program

STATUS = {
    "version": "1.2",
    "uptime": 5,
    "listeners": [
        {"wire": "elko", "name": "main", "connections": 3, "full": True},
        {"wire": "dbp", "name": "heartbeats", "address": "127.0.0.1:1"},
    ],
    "store": {"failures": 0, "pending": 1},
    "journal": {"directory": "/x", "failures": 2, "written": 1, "dropped": 0},
}


def queues(wire: str, *sizes: int) -> AnyView:
    columns = (
        Column("queue", "Name"),
        Column("bytes", "Size of all messages", "bytes"),
        Column("ready", "Waiting", "messages"),
    )
    rows = [{"queue": str(size), "bytes": size, "ready": 1} for size in sizes]
    return View(f"{wire} queues", "", columns, lambda: rows, dict, lambda row: (), sums=("bytes", "ready"))  # fmt: skip


def samples(*collected: Iterable[Metric | None]) -> dict[str, float]:
    text = b"".join(render([lambda each=each: each for each in collected])).decode()  # type: ignore[misc]
    return {
        f"{sample.name}{sorted(sample.labels.items()) or ''}": sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def counted(*counters: Counter, **counts: int) -> dict[str, float]:
    found = CounterMetrics(Documentation(counters)).collect({k.replace("__", "."): v for k, v in counts.items()})
    return samples(found)


def test_a_reason_of_a_documented_family_is_a_label() -> None:
    assert counted(Counter("journal_records", "Records"), journal_records__written=3) == {
        "elkobroker_journal_records_total[('reason', 'written')]": 3
    }


def test_a_shared_subject_has_the_wire_as_a_label() -> None:
    families = (Counter("mc0_dropped", "Dropped by reason"), Counter("elko_dropped", "Dropped pongs"))
    assert counted(*families, mc0_dropped__full=3, elko_dropped__pong=1) == {
        "elkobroker_dropped_total[('reason', 'full'), ('wire', 'mc0')]": 3,
        "elkobroker_dropped_total[('reason', 'pong'), ('wire', 'elko')]": 1,
    }


def test_a_counter_documented_by_itself_is_a_metric_by_itself() -> None:
    assert counted(Counter("director.granted", "Granted"), director__granted=3) == {
        "elkobroker_director_granted_total": 3
    }


def test_a_gauge_has_its_unit_in_its_name() -> None:
    gauges = (Counter("mtl_topics.retained-bytes", "Size", "bytes", gauge=True), Counter("registry", "Now", gauge=True))
    found = counted(*gauges, **{"mtl_topics__retained-bytes": 9, "registry__providers": 2})
    assert found == {"elkobroker_mtl_topics_retained_bytes": 9, "elkobroker_registry_providers": 2}


def test_a_counter_without_documentation_is_shown() -> None:
    assert counted(strange__thing=1) == {"elkobroker_strange_thing_total": 1}


def test_the_rows_of_tables_and_their_sums_are_metrics() -> None:
    views = [queues("mtl", 10, 5), queues("mc0"), View("broker services", "", (), lambda: [{}], dict, lambda row: ())]
    assert samples(metrics.table_metrics(views)) == {
        "elkobroker_active_queues[('wire', 'mtl')]": 2,
        "elkobroker_active_queues[('wire', 'mc0')]": 0,
        "elkobroker_queues_bytes[('wire', 'mtl')]": 15,
        "elkobroker_queues_bytes[('wire', 'mc0')]": 0,
        "elkobroker_queues_ready[('wire', 'mtl')]": 2,
        "elkobroker_queues_ready[('wire', 'mc0')]": 0,
    }


def test_the_state_of_listeners_and_files_are_metrics() -> None:
    listeners, certificates = [("elko", True), ("mtl", False)], [("/a.pem", 1e9), ("/b.pem", 2e9), ("/a.pem", 1e9)]
    found = samples(metrics.state_metrics(STATUS, listeners, [NotReady("listener mtl", "busy")], [], certificates))
    assert found == {
        "elkobroker_info[('version', '1.2')]": 1,
        "elkobroker_ready": 0,
        "elkobroker_degraded": 0,
        "elkobroker_uptime_seconds": 5,
        "elkobroker_listener_ready[('listener', 'elko')]": 1,
        "elkobroker_listener_ready[('listener', 'mtl')]": 0,
        "elkobroker_certificate_expiry_timestamp_seconds[('certificate', '/a.pem')]": 1e9,
        "elkobroker_certificate_expiry_timestamp_seconds[('certificate', '/b.pem')]": 2e9,
        "elkobroker_listener_connections[('listener', 'main'), ('wire', 'elko')]": 3,
        "elkobroker_listener_full[('listener', 'main'), ('wire', 'elko')]": 1,
        "elkobroker_store_consecutive_failures": 0,
        "elkobroker_store_pending_providers": 1,
        "elkobroker_journal_consecutive_failures": 2,
    }


def test_times_of_the_loop_are_histograms() -> None:
    times = LoopTimes()
    for seconds in (0.0004, 0.03):
        times.lag(seconds)
    times.delay(3.0)
    found = samples(times.collect())
    assert found["elkobroker_reactor_lag_seconds_bucket[('le', '0.025')]"] == 1
    assert found["elkobroker_reactor_lag_seconds_bucket[('le', '0.05')]"] == 2
    assert found["elkobroker_scheduler_delay_seconds_bucket[('le', '2.5')]"] == 0
    assert found["elkobroker_scheduler_delay_seconds_count"] == 1


def everything() -> list[Iterable[Metric | None]]:
    counters = CounterMetrics(COUNTERS)
    counts = {"mc0_dropped.full": 1, "registry.providers": 1, "registry.services": 1, "registry.waits": 1}
    return [
        counters.collect(counts),
        LoopTimes().collect(),
        metrics.table_metrics([queues("mtl", 1)]),
        metrics.state_metrics(STATUS, [("elko", True)], [], [NotReady("cluster", "away")]),
        metrics.process_metrics(1.0),
    ]


def test_the_text_is_rendered_family_by_family() -> None:
    site = Site(endpoints([lambda each=each: each for each in everything()], lambda reading: ()))  # type: ignore[misc]
    response = site.response("GET", "/metrics")
    assert response.content_type.startswith("text/plain; version=0.0.4")
    parts = list(pieces(response))
    assert all(part.count(b"# TYPE") <= 1 for part in parts)
    assert b"" in parts, "work on tables without output"


def test_promtool_finds_nothing_wrong() -> None:
    promtool = program("promtool")
    site = Site(endpoints([lambda each=each: each for each in everything()], lambda reading: ()))  # type: ignore[misc]
    text = content(site.response("GET", "/metrics"))
    checked = subprocess.run([promtool, "check", "metrics"], input=text, capture_output=True, check=False)
    assert (checked.returncode, checked.stdout + checked.stderr) == (0, b"")
