"""Readers of the profile "registry" that resume: they get the changes that they missed, else a snapshot."""

from __future__ import annotations

from typing import Any

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.core.model import Rights, Service
from broker.core.watches import FULL_RING
from broker.wires.mtl.codec import data_messages as wire
from broker.wires.mtl.codec import field_table
from broker.wires.mtl.profiles.entries import MAX_SUMMON
from tests.wires.mtl.data_recording import MtlPeer
from tests.wires.mtl.profiles_recording import Got, ProfilesFarm, as_got, summon

RESOURCES = ("services", "service/bank", "load", "load/bank")


class Farm:
    """The profile over a registry, and providers of another wire."""

    def __init__(self) -> None:
        self.mtl = ProfilesFarm()
        self.core = self.mtl.core

    def reader(self) -> MtlPeer:
        return self.mtl.reader(profile=self.mtl.registry)

    def provider(self, *names: str) -> int:
        id = self.core.join("p", "test", "192.0.2.1")
        for name in names:
            self.offer(id, name)
        return id

    def offer(self, provider: int, name: str, **more: Any) -> None:
        self.core.offer([Service(name, "h:1", provider, **more)], Rights())


@attrs.define
class Copy:
    """A client's copy of a resource, as its documentation says that it is kept."""

    resource: str
    position: tuple[int, int] = (0, 0)
    entries: dict[object, object] = attrs.field(factory=dict)
    snapshots: int = 0
    _loading: dict[object, object] | None = None

    @property
    def body(self) -> bytes:
        """That of the Summon by which it resumes."""
        return field_table.encode({"epoch": self.position[0], "revision": self.position[1]})

    def summoned(self, got: list[Got]) -> None:
        self._loading = {}
        for each in got:
            self.take(each)

    def take(self, got: Got) -> None:
        says, event = got.says, got.event
        if event == "synced":
            if not says.get("resumed", False):
                self.snapshots += 1
                assert self._loading is not None
                self.entries = self._loading
            self._loading = None
        else:
            key = (says["provider"], says.get("service"), got.json.get("protocol") if got.body else None)
            entries = self.entries if self._loading is None else self._loading
            if event == "down":
                entries.pop((says["provider"], None, None) if not got.body else key, None)
            else:
                entries[key if "service" in says else (says["provider"], None, None)] = got.json
        if "epoch" in says:
            self.position = says["epoch"], says["revision"]


def contents(peer: MtlPeer) -> list[Got]:
    """The Contents that came; Pings and answers do not count."""
    return [as_got(each) for each in peer.take() if type(each) is wire.Content]


@pytest.fixture
def farm() -> Farm:
    return Farm()


def test_a_reader_that_resumes_gets_what_changed_and_no_snapshot(farm: Farm) -> None:
    stays, leaves = farm.provider("bank"), farm.provider("bank")
    copy = Copy("services")
    copy.summoned(summon(farm.reader(), "services"))
    farm.core.leave(leaves)
    comes = farm.provider("shop")
    farm.core.leave(farm.provider("gone again"))
    synced, down, up = summon(farm.reader(), "services", body=copy.body)
    epoch = farm.core.epoch
    assert synced.says == {"event": "synced", "revision": copy.position[1], "epoch": epoch, "resumed": True}
    assert (down.event, down.says["provider"], down.json["service"]) == ("down", leaves, "bank")
    assert (up.event, up.says["provider"], up.json["service"]) == ("up", comes, "shop")
    assert stays not in (down.says["provider"], up.says["provider"])
    # Only the last one says that nothing before it is missing.
    assert ["epoch" in each.says for each in (down, up)] == [False, True]


def test_a_known_service_that_was_offered_again_is_an_update(farm: Farm) -> None:
    id = farm.provider("bank")
    copy = Copy("service/bank")
    copy.summoned(summon(farm.reader(), "service/bank"))
    farm.core.withdraw(id, ["bank"])
    farm.offer(id, "bank", label="New")
    [_, update] = summon(farm.reader(), "service/bank", body=copy.body)
    assert (update.event, update.json["label"]) == ("update", "New")


@pytest.mark.parametrize("resource", RESOURCES)
def test_a_reader_that_missed_nothing_gets_nothing_but_synced(farm: Farm, resource: str) -> None:
    farm.core.load(farm.provider("bank"), 0.5)
    copy = Copy(resource)
    copy.summoned(summon(farm.reader(), resource))
    [synced] = summon(farm.reader(), resource, body=copy.body)
    assert synced.says["resumed"] is True


@pytest.mark.parametrize(
    "body",
    [
        b"x",
        field_table.encode({}),
        field_table.encode({"epoch": 1}),
        field_table.encode({"epoch": "1", "revision": 1}),
        field_table.encode({"epoch": True, "revision": True}),
        field_table.encode({"epoch": 2**60, "revision": 0}),
        bytes(MAX_SUMMON + 1),
    ],
)
def test_a_body_that_names_no_position_brings_a_snapshot(farm: Farm, body: bytes) -> None:
    farm.provider("bank")
    assert [each.event for each in summon(farm.reader(), "services", body=body)] == ["snapshot", "synced"]


@pytest.mark.parametrize("revision", [-1, 1_000])
def test_a_revision_that_was_never_reached_brings_a_snapshot(farm: Farm, revision: int) -> None:
    farm.provider("bank")
    body = field_table.encode({"epoch": farm.core.epoch, "revision": revision})
    assert [each.event for each in summon(farm.reader(), "services", body=body)] == ["snapshot", "synced"]


def test_a_revision_of_another_epoch_brings_a_snapshot(farm: Farm) -> None:
    farm.provider("bank")
    body = field_table.encode({"epoch": farm.core.epoch + 1, "revision": farm.core.revision})
    snapshot, synced = summon(farm.reader(), "services", body=body)
    assert (snapshot.event, "resumed" in synced.says) == ("snapshot", False)


def test_loads_push_no_change_of_a_service_out_of_memory(farm: Farm) -> None:
    id = farm.provider("bank")
    services, loads = Copy("services"), Copy("load")
    for copy in (services, loads):
        copy.summoned(summon(farm.reader(), copy.resource))
    for number in range(FULL_RING):
        farm.core.load(id, float(number))
    farm.offer(id, "shop")
    assert [each.event for each in summon(farm.reader(), "services", body=services.body)] == ["synced", "up"]
    assert [each.event for each in summon(farm.reader(), "load", body=loads.body)] == ["snapshot", "synced"]


def test_a_slow_reader_resumes_before_what_it_was_not_sent(farm: Farm) -> None:
    one, two = farm.provider("bank"), farm.provider("bank")
    copy = Copy("load")
    reader = farm.reader()
    copy.summoned(summon(reader, "load"))
    reader.stop_reading()
    farm.core.load(one, 1.0)
    farm.core.load(two, 2.0)
    farm.core.load(one, 3.0)
    reader.read_on(1)
    for each in contents(reader):
        copy.take(each)
    reader.drop()
    copy.summoned(summon(farm.reader(), "load", body=copy.body))
    assert copy.snapshots == 1
    assert {key[0]: entry["load"] for key, entry in copy.entries.items()} == {one: 3.0, two: 2.0}  # type: ignore[index]


NAMES = st.sampled_from(["bank", "shop"])
OPERATIONS = st.one_of(
    st.tuples(st.just("join")),
    st.tuples(st.just("offer"), st.integers(0, 3), NAMES, st.sampled_from(["tcp", "udp"]), st.sampled_from("ab")),
    st.tuples(st.just("withdraw"), st.integers(0, 3), NAMES),
    st.tuples(st.just("leave"), st.integers(0, 3)),
    st.tuples(st.just("load"), st.integers(0, 3), st.sampled_from([0.0, 0.5])),
    st.tuples(st.just("reconnect")),
)


def perform(farm: Farm, name: str, *arguments: Any) -> None:
    providers = [provider.id for provider in farm.core.providers()]
    if name == "join":
        farm.provider()
    elif arguments and arguments[0] < len(providers):
        id = providers[arguments[0]]
        if name == "offer":
            farm.offer(id, arguments[1], protocol=arguments[2], label=arguments[3])
        elif name == "withdraw":
            farm.core.withdraw(id, [arguments[1]])
        elif name == "leave":
            farm.core.leave(id)
        else:
            farm.core.load(id, arguments[1])


@pytest.mark.parametrize("resource", RESOURCES)
@given(st.lists(OPERATIONS, max_size=25))
def test_a_copy_that_resumes_again_and_again_is_the_same_as_a_snapshot(
    resource: str, operations: list[tuple[Any, ...]]
) -> None:
    farm = Farm()
    copy = Copy(resource)
    reader: MtlPeer | None = farm.reader()
    assert reader is not None
    copy.summoned(summon(reader, resource))
    for name, *arguments in [*operations, ("reconnect",)]:
        if name != "reconnect":
            perform(farm, name, *arguments)
        elif reader is not None:
            for each in contents(reader):
                copy.take(each)
            reader.drop()
            reader = None
        else:
            reader = farm.reader()
            copy.summoned(summon(reader, resource, body=copy.body))
    if reader is None:
        copy.summoned(summon(farm.reader(), resource, body=copy.body))
    fresh = Copy(resource)
    fresh.summoned(summon(farm.reader(), resource))
    assert copy.entries == fresh.entries
    assert copy.snapshots == 1
