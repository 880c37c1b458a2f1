"""Counters of a running wire: each has a documentation, and what is a number of the present is a gauge."""

from pathlib import Path

from twisted.internet import reactor

from broker.wires.mtl.mtl_entry import COUNTERS
from broker.wires.mtl.mtl_settings import Mtl
from broker.wires.mtl.mtl_wire import open_mtl
from broker.wires.tables import Documentation
from tests.wires.contexts import context

GAUGES = {
    "mtl_disk.failures",
    "mtl_owned.queues",
    "mtl_registry.summoned",
    "mtl_services.kept-bytes",
    "mtl_services.open",
    "mtl_services.waiting",
    "mtl_topics.retained",
    "mtl_topics.retained-bytes",
}


def test_each_counter_of_an_open_wire_is_documented(tmp_path: Path) -> None:
    wire = open_mtl(Mtl(endpoint="tcp://127.0.0.1:0"), context(reactor, state=str(tmp_path)))
    try:
        names = wire.counts().keys()
    finally:
        wire.abandon()
    documentation = Documentation(COUNTERS)
    documented = {name: documentation.of(name) for name in names}
    assert {"mtl_requests.answered", "mtl_contents.received", "mtl_leases.expired", "mtl_disk.kept"} <= names
    assert [name for name, counter in documented.items() if counter is None] == []
    assert {name for name, counter in documented.items() if counter is not None and counter.gauge} == GAUGES
    assert all(counter.help and counter.unit for counter in COUNTERS)


def test_each_documented_member_of_a_family_is_counted(tmp_path: Path) -> None:
    wire = open_mtl(Mtl(endpoint="tcp://127.0.0.1:0"), context(reactor, state=str(tmp_path)))
    try:
        names = wire.counts().keys()
    finally:
        wire.abandon()
    assert {counter.name for counter in COUNTERS if counter.name.startswith("mtl_") and "." in counter.name} <= names
