"""DBP: what a restart of the broker leaves of services: those that will never register again, and no others."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterable, Iterator
from itertools import count
from pathlib import Path
from typing import Any

import attrs
import pytest
from twisted.internet.defer import Deferred, execute
from twisted.internet.task import Clock

from broker.core.model import Provider, Rights, Service, Snapshot
from broker.core.recorder import FLUSH_SECONDS, Recorder
from broker.core.registered_services import Restored
from broker.core.registry import Registry
from broker.core.store import Store
from broker.wires.dbp.dbp_settings import Dbp
from tests.recording.farm import START
from tests.recording.logs import nothing_fails
from tests.threads import TimedThread
from tests.wires.dbp.recording import ALL, HERE, TEXT, THERE, DbpFarm, T

GRACE = 60.0

HERMES = {"interfaces": {"router": {"ip": "127.0.0.1", "port": 5247}}, "reg_time": "Sat Nov 21 07:37:01 2026"}

BEAT = b" <3 %b Rohan" % TEXT


@pytest.fixture(autouse=True)
def warnings() -> Iterator[list[str]]:
    with nothing_fails() as warnings:
        yield warnings


# from providers that are known


def known(*services: Service, address: str = THERE, wire: str = "dbp") -> Iterator[Provider]:
    """Providers from before, each with one service."""
    for service in services:
        yield Provider(service.provider, service.name, wire, address, 0.5, 0.0, (service,))


def lasting(name: str, info: str | None = '{"port": 6000}', provider: int = 900, **more: Any) -> Service:
    """A service that is kept across restarts."""
    return Service(name, f"{THERE}:6000", provider, **{"info": info, "lasting": True, **more})


def names(farm: DbpFarm) -> list[str]:
    return [entry.name for entry in farm.catalogue]


def test_a_service_that_lasts_is_registered_again_with_all_that_it_said() -> None:
    info = '{"port": 6000, "topics": [1.50, "\\u00e9"], "load": 0.25}'
    farm = DbpFarm(known=known(lasting("Rohan", info)))
    [provider] = farm.registry.providers()
    assert provider == Provider(1, "Rohan", "dbp", THERE, 0.25, START, provider.services)
    assert provider.services == (Service("Rohan", f"{THERE}:6000", 1, info=info, lasting=True),)
    assert farm.dealer().ask("u_U", T, "Rohan")[0][2] == b'{"Rohan": %b}' % info.encode()
    assert not farm.entry("Rohan").contract
    farm.wait(600, 1)
    assert names(farm) == ["Rohan"]


def test_services_are_restored_in_their_order() -> None:
    farm = DbpFarm(known=known(*(lasting(f"s{number}", provider=100 - number) for number in range(10))))
    assert names(farm) == [f"s{number}" for number in range(10)]
    assert list(farm.dealer().find()) == names(farm)


@pytest.mark.parametrize(
    "providers",
    [
        [*known(lasting("Rohan", lasting=False))],
        [*known(lasting("Rohan", None))],
        [*known(lasting("Rohan"), wire="elko")],
        [*known(lasting("Rohan"), wire="")],
        [Provider(9, "Rohan", "dbp", THERE, 0.0, 0.0, ())],
    ],
)
def test_others_are_not_restored(providers: list[Provider], warnings: list[str]) -> None:
    farm = DbpFarm(known=providers)
    assert names(farm) == []
    assert farm.registry.providers() == []
    assert warnings == []


def test_a_name_that_may_not_be_registered_any_more_is_left_out_with_a_line_in_the_log(warnings: list[str]) -> None:
    before = known(lasting("Rohan"), lasting("Gondor"), lasting("elkobroker.x"), lasting("elkobroker"))
    farm = DbpFarm(known=before, rights=Rights(("Gon*",)))
    assert names(farm) == ["Gondor"]
    assert len(farm.registry.providers()) == 1
    assert [line.split()[0] for line in warnings] == ["Rohan", "elkobroker.x", "elkobroker"]
    assert all("not restored" in line for line in warnings)


def test_more_services_than_are_taken_now_are_left_out_with_a_line_in_the_log(warnings: list[str]) -> None:
    farm = DbpFarm(Dbp(services=2), known(*(lasting(f"s{number}") for number in range(4))))
    assert names(farm) == ["s0", "s1"]
    assert len(warnings) == 2


@pytest.mark.parametrize("info", ["", "[]", "nonsense", '{"port": "x", "heartbeat": -1}', "{}"])
def test_an_info_that_says_nothing_does_no_harm(info: str) -> None:
    farm = DbpFarm(known=known(lasting("Rohan", info), lasting("Gondor")))
    assert names(farm) == ["Rohan", "Gondor"]


def test_a_restored_service_may_update_beat_and_say_good_bye_from_its_address_only() -> None:
    farm = DbpFarm(known=known(lasting("Rohan")))
    assert farm.dealer(HERE).ask("UoU", T, {"name": "Rohan", "x": 1})[0][0] == b"(O_O)"
    assert farm.dealer(THERE).ask("UoU", T, {"name": "Rohan", "port": 7000})[0][0] == b"u.u"
    assert farm.hostports("Rohan") == [f"{THERE}:7000"]
    farm.datagram(BEAT)
    assert farm.entry("Rohan").contract
    farm.datagram(b" </3 %b Rohan" % TEXT)
    assert names(farm) == []


def test_a_restored_service_that_registers_again_takes_its_own_place() -> None:
    farm = DbpFarm(known=known(lasting("Rohan")))
    farm.dealer(HERE).registered("Rohan", port=7000)
    assert farm.hostports("Rohan") == ["127.0.0.1:7000"]
    assert len(farm.registry.providers()) == 1


def test_restored_services_are_asked_now_and_then_if_that_is_configured() -> None:
    farm = DbpFarm(Dbp(probe=5.0), known(lasting("Rohan")))
    farm.wait(16)
    assert [probe.place for probe in farm.probes.asked] == [(THERE, 6000)] * 3
    assert names(farm) == ["Rohan"]


# the whole way through the store


class Run:
    """One run of a broker on a state directory, with DBP over its real core."""

    def __init__(self, directory: Path, settings: Dbp | None = None, rights: Rights = ALL, dbp: bool = True) -> None:
        self.directory = directory
        self.clock = Clock()
        self.clock.advance(START)
        self.store = Store(str(directory))
        snapshot = self.store.open()
        self.restored = Restored(snapshot.providers, GRACE, self.clock, lambda ids: self.recorder.forget(ids))
        registry = Registry(self.clock, lambda: self.recorder.next_id(), self.restored)
        self.recorder = Recorder(
            registry, self.store, self.clock, execute, TimedThread(self.clock, execute), snapshot.next_provider
        )
        self.registry = registry
        if dbp:
            self.dbp = DbpFarm(settings, snapshot.providers, self.clock, registry, rights=rights)

    def flush(self) -> None:
        """Let what has changed be written."""
        self.clock.advance(FLUSH_SECONDS)

    def stop(self) -> None:
        """The end in good order."""
        self.dbp.catalogue.part_all()
        self.restored.stop()
        ended: list[object] = []
        stopped: Deferred[None] = self.recorder.stop()
        stopped.addBoth(ended.append)
        assert ended == [None]

    def stored(self) -> Snapshot:
        """The state that the next run would find after a kill now."""
        copy = self.directory.parent / f"copy {next(_copies)}"
        shutil.copytree(self.directory, copy)
        store = Store(str(copy))
        try:
            return store.open()
        finally:
            store.close(1)

    def kept(self) -> dict[str, bool]:
        """The ``lasting`` member of the services that a kill would leave, by name."""
        return {service.name: service.lasting for p in self.stored().providers for service in p.services}


_copies = count()

Start = Callable[..., Run]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Starts a run; the one before it is killed."""
    runs: list[Run] = []

    def start(**more: Any) -> Run:
        directory = tmp_path / f"run {len(runs)}"
        if runs:
            shutil.copytree(runs[-1].directory, directory)
            os.remove(directory / "lock")
        runs.append(Run(directory, **more))
        return runs[-1]

    yield start
    for run in runs:
        run.store.close(1)


def test_after_a_kill_services_without_a_contract_are_there_and_others_are_not(start: Start) -> None:
    run = start()
    run.dbp.hermes().registered("Rohan", **HERMES)
    run.dbp.dealer().registered("Gondor", port=6000, topics=["a"])
    run.dbp.dealer().registered("Mordor", port=6001, heartbeat=1)
    before = run.registry.providers()
    run.flush()
    run = start()
    assert names(run.dbp) == ["Rohan", "Gondor"]
    after = run.registry.providers()
    assert min(provider.id for provider in after) > max(provider.id for provider in before), "no id is used again"
    for old, new in zip(before, after, strict=False):
        assert attrs.evolve(old, id=0, heard=0.0, services=()) == attrs.evolve(new, id=0, heard=0.0, services=())
        assert [attrs.evolve(s, provider=0) for s in old.services] == [
            attrs.evolve(s, provider=0) for s in new.services
        ]
    assert len(run.restored) == 1, "the others were taken back"
    assert run.registry.find("Mordor", "tcp") == ()
    [remembered] = run.registry.find("Mordor", "tcp", restored=True)
    assert remembered.restored
    assert run.dbp.dealer().find("Rohan") == {"Rohan": HERMES}


def test_a_kill_before_anything_was_written_leaves_nothing(start: Start) -> None:
    start().dbp.hermes().registered("Rohan", **HERMES)
    assert names(start().dbp) == []


def test_services_last_through_many_restarts(start: Start) -> None:
    run = start()
    run.dbp.hermes().registered("Rohan", **HERMES)
    ids: set[int] = set()
    for number in range(5):
        run.flush()
        if number % 2:
            run.stop()
        run = start()
        assert names(run.dbp) == ["Rohan"]
        [provider] = run.registry.providers()
        assert provider.id not in ids
        ids.add(provider.id)
        run.flush()
        assert len(run.stored().providers) == 1


def test_after_a_stop_in_good_order_it_is_the_same(start: Start) -> None:
    run = start()
    run.dbp.hermes().registered("Rohan", **HERMES)
    mordor = run.dbp.dealer().registered("Mordor", heartbeat=1)
    gondor = run.dbp.dealer().registered("Gondor")
    run.stop()
    assert [frames[0] for frames in (*mordor.take(), *gondor.take())] == [b"</3", b"</3"]
    assert names(start().dbp) == ["Rohan", "Gondor"]


def test_one_that_began_to_beat_is_not_kept_any_more(start: Start) -> None:
    run = start()
    run.dbp.dealer().registered("Rohan", port=6000)
    run.flush()
    assert run.kept() == {"Rohan": True}
    run.dbp.datagram(BEAT)
    run.flush()
    assert run.kept() == {"Rohan": False}
    assert names(start().dbp) == []


def test_one_that_updates_to_an_interval_is_not_kept_any_more(start: Start) -> None:
    run = start()
    peer = run.dbp.dealer().registered("Rohan", port=6000)
    run.flush()
    peer.send("UoU", T, {"heartbeat": 1})
    run.flush()
    assert run.kept() == {"Rohan": False}


def test_what_an_update_said_is_kept(start: Start) -> None:
    run = start()
    peer = run.dbp.dealer().registered("Rohan", port=6000)
    run.flush()
    peer.send("UoU", T, {"topics": ["a", "\u2603"], "port": 7000})
    run.flush()
    run = start()
    assert run.dbp.dealer().find() == {"Rohan": {"port": 7000, "topics": ["a", "\u2603"]}}
    assert run.dbp.hostports("Rohan") == [f"{THERE}:7000"]


@pytest.mark.parametrize("way", ["bye", "replaced"])
def test_one_that_went_does_not_come_back(start: Start, way: str) -> None:
    run = start()
    peer = run.dbp.dealer().registered("Rohan", port=6000)
    run.flush()
    if way == "bye":
        peer.send("</3", T)
    else:
        run.dbp.dealer().registered("Rohan", port=6000, heartbeat=1)
    run.flush()
    assert names(start().dbp) == []


def test_one_that_expired_for_not_answering_does_not_come_back(start: Start) -> None:
    run = start(settings=Dbp(probe=1.0))
    run.dbp.hermes().registered("Rohan", **HERMES)
    run.dbp.probes.alive.add((HERE, 5247))
    run.dbp.wait(5)
    assert run.kept() == {"Rohan": True}
    run.dbp.probes.alive.clear()
    run.dbp.wait(6)
    assert run.kept() == {}


def test_a_wire_that_is_off_for_longer_than_the_grace_loses_nothing(start: Start) -> None:
    run = start()
    run.dbp.hermes().registered("Rohan", **HERMES)
    run.dbp.dealer().registered("Mordor", heartbeat=1)
    run.flush()
    run = start(dbp=False)
    [found] = run.registry.find("Rohan", "tcp", restored=True)
    assert found.restored
    run.clock.advance(GRACE + 1)
    run.flush()
    assert run.registry.find("Rohan", "tcp", restored=True) == ()
    assert run.kept() == {"Rohan": True}
    assert names(start().dbp) == ["Rohan"]


def test_a_name_that_is_denied_now_is_there_again_when_it_is_allowed_again(start: Start, warnings: list[str]) -> None:
    run = start()
    run.dbp.hermes().registered("Rohan", **HERMES)
    run.flush()
    run = start(rights=Rights(()))
    assert names(run.dbp) == []
    assert len(warnings) == 1
    assert "Rohan" in warnings[0]
    run.clock.advance(GRACE + 1)
    run.flush()
    assert run.registry.find("Rohan", "tcp", restored=True) == ()
    assert names(start().dbp) == ["Rohan"]


def test_one_under_contract_is_told_to_register_again_at_its_next_heartbeat(start: Start) -> None:
    run = start()
    run.dbp.dealer().registered("Rohan", heartbeat=1)
    run.dbp.dealer().registered("Gondor", heartbeat=1)
    run.flush()
    run = start()
    [answer] = run.dbp.datagram(BEAT)
    assert answer.startswith(b" </3 ")
    dealer = run.dbp.dealer()
    assert [frames[0] for frames in dealer.ask("<3", T, "Gondor")] == [b"</3"]
    assert dealer.ask("UwU", T, {"name": "Gondor"}) == [], "on a new connection, that is"
    run.dbp.dealer().registered("Rohan", heartbeat=1)
    run.dbp.dealer().registered("Gondor", heartbeat=1)
    assert len(run.restored) == 0, "their providers are back"
    assert names(run.dbp) == ["Rohan", "Gondor"]


def test_a_thousand_services_are_restored_and_stored_once(start: Start) -> None:
    run = start()
    wanted = [f"s{number}" for number in range(1_000)]
    register(run.dbp, wanted)
    run.flush()
    run.flush()
    run = start()
    assert names(run.dbp) == wanted
    run.flush()
    run.flush()
    assert list(run.kept()) == wanted
    assert len(run.stored().providers) == 1_000


def register(farm: DbpFarm, names: Iterable[str]) -> None:
    for name in names:
        peer = farm.dealer().registered(name, port=6000)
        peer.close()
