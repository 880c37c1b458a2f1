"""The profile "registry" of MTL: events of services and loads of any wire for readers, and offers of writers.

The file is longer than others: it has all tests of `broker.wires.mtl.profiles.registry_profile`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import attrs
import pytest

from broker.access.rights import Grants, NameSet
from broker.core.errors import Reason, Refusal
from broker.core.model import MAX_TEXT, Auth, Change, Kind, Rights, Service
from broker.wires.mtl.codec import data_messages as wire
from broker.wires.mtl.codec import field_table
from broker.wires.mtl.profiles.flow_provider import MAX_BODY
from broker.wires.mtl.profiles.registry_profile import RegistryBounds
from broker.wires.mtl.sessions.access_policy import ConfirmMode, GrantedPermissions, Principal, Side
from tests.recording.logs import nothing_fails
from tests.wires.mtl.data_recording import MtlPeer
from tests.wires.mtl.profiles_recording import (
    Bounds,
    Got,
    Permits,
    ProfilesFarm,
    as_got,
    confirmed,
    dismiss,
    got,
    put,
    refused,
    rejected,
    summon,
)
from tests.wires.recording import ElkoFarm, desc, found, nothing, told

ADDRESS = "192.0.2.7"
"""The address of the peers of these tests."""


class RegistryFarm:
    """MTL and Elko over one registry."""

    def __init__(self, **bounds: int) -> None:
        self.elko = ElkoFarm()
        self.core = self.elko.registry
        self.mtl = ProfilesFarm(registry=self.core, bounds=Bounds(registry=RegistryBounds(**bounds)))
        self.profile = self.mtl.registry

    def reader(self, *resources: str) -> MtlPeer:
        """A reader with a lease for these resources, or for all if there are none."""
        return self.mtl.reader(*resources, profile=self.profile)

    def watching(self, resource: str) -> MtlPeer:
        """A reader that has summoned a resource, and has received its snapshot."""
        peer = self.reader(resource)
        assert summon(peer, resource)[-1].event == "synced"
        return peer

    def writer(
        self, *resources: str, confirm: ConfirmMode = ConfirmMode.FULL, principal: Principal | None = None
    ) -> MtlPeer:
        return self.mtl.writer(*resources, profile=self.profile, confirm=confirm, principal=principal)

    def provider(self, *services: Service, label: str = "p") -> int:
        """A provider of any other wire, with these services."""
        id = self.core.join(label, "test", "192.0.2.1")
        for service in services:
            self.offer(id, service)
        return id

    def offer(self, provider: int, service: Service) -> None:
        self.core.offer([attrs.evolve(service, provider=provider)], Rights())


@pytest.fixture
def bounded() -> Iterator[Callable[..., RegistryFarm]]:
    """Makes a farm with these bounds."""
    with nothing_fails():
        yield RegistryFarm


@pytest.fixture
def farm(bounded: Callable[..., RegistryFarm]) -> RegistryFarm:
    return bounded()


def service(name: str, hostport: str = "h:1", **more: Any) -> Service:
    """A service, which is nobody's yet."""
    return Service(name, hostport, 0, **more)


def brief(contents: list[Got]) -> list[tuple[str, str, int, str]]:
    """Of each its event, service, provider and hostport."""
    return [
        (each.event, each.says["service"], each.says["provider"], each.json["hostport"])
        if each.event != "synced"
        else ("synced", "", 0, "")
        for each in contents
    ]


SYNCED = ("synced", "", 0, "")


def loads(contents: list[Got]) -> list[tuple[str, int, float | None]]:
    """Of each its event, provider and load."""
    return [(each.event, each.says.get("provider", 0), each.json["load"] if each.body else None) for each in contents]


# snapshots and changes


def test_a_summon_brings_what_there_is_then_synced_then_what_changes(farm: RegistryFarm) -> None:
    one = farm.provider(service("bank", label="Bank"))
    revision = farm.core.revision
    reader = farm.reader("services")
    says = {"event": "snapshot", "revision": revision, "provider": one, "service": "bank"}
    snapshot, synced = summon(reader, "services")
    assert snapshot == Got("services", {**says, "content-type": "application/json"}, snapshot.body, 1)
    assert snapshot.json == told("bank", one, label="Bank")
    assert synced == Got("services", {"event": "synced", "revision": revision, "epoch": farm.core.epoch}, b"", 2)
    other = farm.provider(service("post", "h:2"))
    farm.core.withdraw(one, ["bank"])
    farm.core.leave(other)
    live = got(reader)
    assert brief(live) == [("up", "post", other, "h:2"), ("down", "bank", one, "h:1"), ("down", "post", other, "h:2")]
    revisions = [each.says["revision"] for each in live]
    assert revision < revisions[0] < revisions[1] < revisions[2] < farm.core.revision
    assert [each.sequence for each in live] == [3, 4, 5]


def test_an_empty_snapshot_is_one_too(farm: RegistryFarm) -> None:
    for resource in ("services", "service/none", "load", "load/none"):
        [content] = summon(farm.reader(), resource)
        assert (content.resource, content.event) == (resource, "synced")


def test_one_service_has_a_resource_of_its_own(farm: RegistryFarm) -> None:
    one = farm.provider(service("bank"), service("post", "h:2"))
    reader = farm.reader("service/bank")
    assert brief(summon(reader, "service/bank")) == [("snapshot", "bank", one, "h:1"), SYNCED]
    farm.offer(one, service("bankers", "h:4"))
    farm.offer(one, service("bank", "h:3", protocol="udp"))
    farm.core.leave(one)
    assert brief(got(reader)) == [
        ("up", "bank", one, "h:3"),
        ("down", "bank", one, "h:1"),
        ("down", "bank", one, "h:3"),
    ]


def test_what_is_said_of_a_service_changes_by_update(farm: RegistryFarm) -> None:
    one = farm.provider(service("bank"))
    reader = farm.watching("services")
    farm.core.amend(Service("bank", "h:1", one, info='{"a":1}'))
    assert brief(got(reader)) == [("update", "bank", one, "h:1")]


def test_the_same_service_offered_twice_is_one_entry(farm: RegistryFarm) -> None:
    one = farm.provider(service("bank", "h:1"), service("bank", "h:2"))
    reader = farm.reader()
    assert brief(summon(reader, "services")) == [("snapshot", "bank", one, "h:2"), SYNCED]
    farm.offer(one, service("bank", "h:3"))
    farm.core.amend(Service("bank", "h:1", one, info='{"a":1}'))  # the first one, which nobody sees
    assert brief(got(reader)) == [("update", "bank", one, "h:3")]
    farm.core.withdraw(one, ["bank"])
    assert brief(got(reader))[-1] == ("down", "bank", one, "h:3")
    assert brief(summon(reader, "service/bank")) == [SYNCED]


def test_no_reader_sees_how_to_authenticate_with_a_service(farm: RegistryFarm) -> None:
    farm.provider(service("bank", auth=Auth("password", "sesame", "me")))
    reader = farm.reader()
    told = summon(reader, "services")
    farm.provider(service("post", auth=Auth("password", "sesame", "me")))
    for content in (*told, *got(reader)):
        assert b"sesame" not in content.body
        assert b"auth" not in content.body


def test_the_brokers_own_services_are_there(farm: RegistryFarm) -> None:
    farm.core.offer_own([Service("elkobroker.broker", "h:9000", 0)])
    reader = farm.reader()
    assert brief(summon(reader, "services")) == [("snapshot", "elkobroker.broker", 0, "h:9000"), SYNCED]
    assert loads(summon(reader, "load/elkobroker.broker")) == [("synced", 0, None)]
    farm.core.offer_own([Service("elkobroker.broker", "h:9001", 0)])
    assert {each.resource for each in got(reader)} == {"services"}


def test_what_was_there_before_the_profile_is_told(farm: RegistryFarm) -> None:
    one = farm.provider(service("bank"))
    late = ProfilesFarm(registry=farm.core)
    assert brief(summon(late.reader(profile=late.registry), "services")) == [("snapshot", "bank", one, "h:1"), SYNCED]


def test_texts_that_are_no_utf8_are_told_with_question_marks(farm: RegistryFarm) -> None:
    reader = farm.watching("services")
    farm.provider(service("bank", label="b\ud800nk"))
    [entry] = got(reader)
    assert entry.json["label"] == "b?nk"


def test_changes_that_listeners_make_are_told_in_their_order(farm: RegistryFarm) -> None:
    def leave(change: Change) -> None:
        if change.kind is Kind.OFFERED:
            farm.core.leave(change.provider)

    farm.core.watch(leave)
    mtl = ProfilesFarm(registry=farm.core)  # which is notified after that
    readers = [mtl.reader(profile=mtl.registry) for _ in range(3)]
    for reader, resource in zip(readers, ("services", "load", "load/bank"), strict=True):
        summon(reader, resource)
    one = farm.provider(service("bank"))
    assert brief(got(readers[0])) == [("up", "bank", one, "h:1"), ("down", "bank", one, "h:1")]
    assert loads(got(readers[1])) == [("load", one, 0.0), ("down", one, None)]
    assert loads(got(readers[2])) == [("load", one, 0.0), ("down", one, None)]


# loads


def test_a_load_is_not_told_before_its_provider_belongs_there(farm: RegistryFarm) -> None:
    def offer(change: Change) -> None:
        farm.offer(change.provider, service("bank"))

    farm.core.watch(offer, [Kind.LOAD])
    reader = farm.watching("load/bank")
    one = farm.provider()
    farm.core.load(one, 0.5)
    assert loads(got(reader)) == [("load", one, 0.5)]


def test_loads_have_a_snapshot_too_and_change(farm: RegistryFarm) -> None:
    one, other = farm.provider(service("bank"), label="one"), farm.provider(label="other")
    farm.core.load(one, 0.5)
    reader = farm.reader("load")
    contents = summon(reader, "load")
    assert loads(contents) == [("snapshot", one, 0.5), ("snapshot", other, 0.0), ("synced", 0, None)]
    assert contents[0].json == {"type": "loaddesc", "label": "one", "load": 0.5, "provider": one}
    farm.core.load(other, 0.25)
    third = farm.provider()
    farm.core.leave(one)
    assert loads(got(reader)) == [("load", other, 0.25), ("load", third, 0.0), ("down", one, None)]


def test_the_loads_of_those_who_offer_a_service(farm: RegistryFarm) -> None:
    one, other = farm.provider(service("bank")), farm.provider(service("post"))
    farm.core.load(one, 0.5)
    reader = farm.reader("load/bank")
    assert loads(summon(reader, "load/bank")) == [("snapshot", one, 0.5), ("synced", 0, None)]
    farm.core.load(other, 0.9)
    farm.core.load(one, 0.6)
    farm.offer(other, service("bank", "h:2"))
    farm.offer(other, service("bank", "h:2", protocol="udp"))
    farm.core.load(other, 0.7)
    farm.core.withdraw(one, ["bank"])
    farm.core.load(one, 0.1)
    farm.core.leave(other)
    expected = [("load", one, 0.6), ("load", other, 0.9), ("load", other, 0.7), ("down", one, None)]
    assert loads(got(reader)) == [*expected, ("down", other, None)]


def test_loads_show_a_change_of_a_label(farm: RegistryFarm) -> None:
    one = farm.provider(service("bank"))
    epoch, revision = farm.core.epoch, farm.core.revision
    readers = [farm.watching("load"), farm.watching("load/bank"), farm.watching("load/post")]
    farm.core.relabel(one, "other")
    entry = {"type": "loaddesc", "label": "other", "load": 0.0, "provider": one}
    assert [[each.json for each in got(reader)] for reader in readers] == [[entry], [entry], []]
    body = field_table.encode({"epoch": epoch, "revision": revision})
    for resource in ("load", "load/bank"):
        synced, missed = summon(farm.reader(resource), resource, body=body)
        assert (missed.json, synced.event) == (entry, "synced")


def test_a_provider_is_gone_from_the_loads_of_a_service_with_its_last_protocol(farm: RegistryFarm) -> None:
    one = farm.provider(service("bank"), service("bank", protocol="udp"))
    reader = farm.watching("load/bank")
    farm.core.withdraw(one, ["bank"])
    assert loads(got(reader)) == [("down", one, None)]


def limited(farm: RegistryFarm, resource: str) -> MtlPeer:
    """A reader of a list whose user may find what begins with "b", and has received its snapshot."""
    grants = Grants({("find", "service"): NameSet(frozenset({"b*"}))})
    principal = Principal("bob", "/", GrantedPermissions(grants))
    return farm.mtl.reader(resource, profile=farm.profile, principal=principal)


def test_a_reader_of_all_services_is_sent_those_that_its_user_may_find(farm: RegistryFarm) -> None:
    one = farm.provider(service("bank"), service("shop"))
    revision, epoch = farm.core.revision, farm.core.epoch
    reader = limited(farm, "services")
    assert brief(summon(reader, "services")) == [("snapshot", "bank", one, "h:1"), SYNCED]
    farm.offer(one, service("secret"))
    farm.offer(one, service("book"))
    farm.core.leave(one)
    events = [(each.event, each.says["service"]) for each in got(reader)]
    assert events == [("up", "book"), ("down", "bank"), ("down", "book")]
    back = limited(farm, "services")
    body = field_table.encode({"epoch": epoch, "revision": revision})
    assert [each.says.get("service") for each in summon(back, "services", body=body)] == [None, "bank"]


def test_a_reader_of_all_loads_is_sent_those_of_providers_of_what_its_user_may_find(farm: RegistryFarm) -> None:
    shop = farm.provider(service("shop"))
    bank = farm.provider(service("bank"), service("book"), service("shop"))
    revision, epoch = farm.core.revision, farm.core.epoch
    reader = limited(farm, "load")
    assert loads(summon(reader, "load")) == [("snapshot", bank, 0.0), ("synced", 0, None)]
    farm.core.load(shop, 0.5)
    farm.core.load(bank, 0.25)
    assert loads(got(reader)) == [("load", bank, 0.25)]
    farm.offer(shop, service("bus"))
    farm.offer(shop, service("bike"))
    farm.core.load(shop, 0.75)
    assert loads(got(reader)) == [("load", shop, 0.5), ("load", shop, 0.75)]
    farm.core.withdraw(shop, ["bus"])
    assert loads(got(reader)) == []
    farm.core.withdraw(shop, ["bike"])
    farm.core.load(shop, 0.0)
    farm.core.leave(bank)
    farm.core.leave(shop)
    assert loads(got(reader)) == [("down", shop, None), ("down", bank, None)]
    # The services of a departed provider are not known any more.
    body = field_table.encode({"epoch": epoch, "revision": revision})
    assert loads(summon(limited(farm, "load"), "load", body=body)) == [("synced", 0, None)]


def test_loads_are_watched_only_while_somebody_reads_them(farm: RegistryFarm) -> None:
    readers = [farm.watching("load"), farm.watching("load/bank"), farm.watching("services")]
    watchers = farm.core._watches._watchers
    assert len(watchers[Kind.LOAD]) == 1
    dismiss(readers[0], "load")
    assert len(watchers[Kind.LOAD]) == 1
    readers[1].drop()
    farm.mtl.wait(2)
    assert len(watchers[Kind.LOAD]) == 0
    one = farm.provider(service("bank"))
    farm.core.load(one, 0.5)
    assert brief(got(readers[2])) == [("up", "bank", one, "h:1")]
    assert loads(summon(farm.reader("load"), "load")) == [("snapshot", one, 0.5), ("synced", 0, None)]


def test_a_service_whose_name_looks_like_a_resource_is_no_other(farm: RegistryFarm) -> None:
    reader = farm.watching("load/service/bank")
    dismiss(farm.watching("service/bank"), "service/bank")
    one = farm.provider(service("service/bank"), service("load/bank"))
    farm.core.load(one, 0.5)
    assert loads(got(reader)) == [("load", one, 0.0), ("load", one, 0.5)]


# slow readers


@pytest.mark.long
def test_a_snapshot_of_ten_thousand_for_a_reader_with_room_for_a_thousand(farm: RegistryFarm) -> None:
    providers = [farm.provider(*(service(f"s{number}-{n}") for n in range(100))) for number in range(100)]
    reader = farm.reader("services")
    reader.stop_reading(1_000)
    reader.say(*wire.summon(1, "services"))
    farm.mtl.wait(1)
    assert len(reader.line.inbox) == 1_000
    now = {(one, f"s{number}-{n}"): "h:1" for number, one in enumerate(providers) for n in range(100)}
    for number, one in enumerate(providers[:10]):  # meanwhile
        farm.core.leave(one)
        for n in range(100):
            del now[one, f"s{number}-{n}"]
    new = farm.provider(service("new"))
    now[new, "new"] = "h:1"
    farm.offer(new, service("gone"))
    farm.core.withdraw(new, ["gone"])
    known: dict[tuple[int, str], str] = {}
    events: list[str] = []
    rounds = 0
    while "synced" not in events or len(reader.line.inbox):
        reader.read_on(room=1_000)
        for content in contents(reader):
            events.append(content.event)
            key = (content.says.get("provider", 0), content.says.get("service", ""))
            if content.event == "down":
                del known[key]
            elif content.event != "synced":
                known[key] = content.json["hostport"]
        farm.mtl.wait(0.5)
        rounds += 1
        assert rounds < 30
    assert known == now
    assert "gone" not in {name for _, name in known}
    assert events.count("up") == 1  # of the new one
    assert events.index("synced") == events.count("snapshot")
    assert farm.mtl.ends() == {}


def contents(peer: MtlPeer) -> list[Got]:
    """The Contents that came; Pings and answers do not count."""
    return [as_got(each) for each in peer.take() if type(each) is wire.Content]


def test_a_slow_reader_is_told_the_newest_of_each_entry_and_is_not_ended(farm: RegistryFarm) -> None:
    one, other = farm.provider(service("bank")), farm.provider(service("post"))
    reader = farm.watching("load")
    reader.stop_reading()
    for number in range(1, 20_001):
        farm.core.load(one if number % 2 else other, number)
    third = farm.provider()
    farm.core.leave(third)
    farm.core.leave(other)
    reader.read_on()
    farm.mtl.wait(0.3)
    assert loads(contents(reader)) == [("load", one, 19_999.0), ("down", other, None)]
    assert farm.mtl.ends() == {}


def test_long_snapshots_go_out_in_pieces_by_turns(bounded: Callable[..., RegistryFarm]) -> None:
    farm = bounded(at_once=5, per_tick=10, per_turn=2)
    for number in range(4):
        farm.provider(*(service(f"s{number}-{n}") for n in range(10)))
    readers = [farm.reader("services") for _ in range(2)]
    assert [len(summon(reader, "services")) for reader in readers] == [5, 5]
    farm.mtl.wait(0.025, 0.025)
    assert [len(got(reader)) for reader in readers] == [6, 4]
    farm.provider(service("new"))
    farm.mtl.wait(0.025, 0.025)
    assert [len(got(reader)) for reader in readers] == [4, 6]
    farm.mtl.wait(1)
    rest = [[each.event for each in got(reader)] for reader in readers]
    assert rest == [["snapshot"] * 25 + ["synced", "up"]] * 2
    farm.mtl.wait(1)
    assert [got(reader) for reader in readers] == [[], []]


def test_nothing_goes_out_after_a_dismiss_and_a_summon_brings_a_new_snapshot(
    bounded: Callable[..., RegistryFarm],
) -> None:
    farm = bounded(at_once=5)
    one = farm.provider(*(service(f"s{n}") for n in range(10)))
    reader = farm.reader()
    assert len(summon(reader, "services")) == 5
    dismiss(reader, "services")
    farm.offer(one, service("new"))
    farm.mtl.wait(1)
    assert got(reader) == []
    assert len(summon(reader, "services")) == 5
    farm.mtl.wait(1)
    again = got(reader)
    assert [each.event for each in again] == ["snapshot"] * 6 + ["synced"]
    assert again[-1].says["revision"] == farm.core.revision


def test_what_waits_for_a_full_reader_is_forgotten_with_a_dismiss(farm: RegistryFarm) -> None:
    reader = farm.watching("services")
    reader.stop_reading()
    farm.provider(service("bank"))
    reader.say(*wire.dismiss(5, "services"))
    reader.read_on()
    farm.mtl.wait(0.3)
    assert contents(reader) == []


def test_a_slow_reader_of_many_resources_is_told_of_each_by_turns(farm: RegistryFarm) -> None:
    one = farm.provider(service("a"), service("b"))
    reader, resources = farm.reader(), ["load", "load/a", "load/b"]
    for resource in resources:
        summon(reader, resource)
    reader.stop_reading()
    told = []
    for number in range(9):
        farm.core.load(one, number)  # something new of all three, for which there is no room
        reader.read_on(room=1)
        told += [each.resource for each in contents(reader)]
    assert len(told) == 9
    assert [told.count(resource) for resource in resources] == [3, 3, 3]


def test_a_reader_that_is_gone_is_not_told(farm: RegistryFarm) -> None:
    readers = [farm.watching("services") for _ in range(3)]
    readers[0].drop()
    farm.provider(service("bank"))
    readers[1].drop()
    farm.provider(service("post"))
    farm.mtl.wait(2)
    assert [each.says["service"] for each in got(readers[2])] == ["bank", "post"]
    assert farm.mtl.counted("mtl_registry.summoned") == 1


def test_the_number_of_summoned_resources_is_bounded(bounded: Callable[..., RegistryFarm]) -> None:
    farm = bounded(views=2)
    farm.watching("services")
    reader = farm.reader()
    summon(reader, "load")
    assert reader.ask(*wire.summon(5, "services")) == [wire.Response(5, b"200")]
    assert reader.ask(*wire.PING) == [wire.Response(0, b"403")]
    assert farm.mtl.counted("mtl_registry.summoned") == 1
    farm.watching("load")


# writers


def test_an_offer_is_found_by_everybody_and_ends_with_the_flow(farm: RegistryFarm) -> None:
    reader, client = farm.watching("services"), farm.elko.client()
    writer = farm.writer("service/bank", principal=farm.mtl.principal("ann"))
    put(writer, 1, "service/bank", desc("bank", "h:7", label="Bank"), type="offer")
    assert writer.take() == confirmed(1)
    [up] = got(reader)
    one = up.says["provider"]
    assert up.json == told("bank", one, "h:7", label="Bank")
    assert client.find("bank") == [found(told("bank", one, "h:7", label="Bank"))]
    provider = farm.core.provider(one)
    assert provider is not None
    assert (provider.label, provider.wire, provider.address) == ("Bank", "mtl", ADDRESS)
    writer.drop()
    farm.mtl.wait(2)
    assert brief(got(reader)) == [("down", "bank", one, "h:7")]
    assert client.find("bank") == [nothing("bank")]
    assert farm.core.provider(one) is None


def test_a_withdrawal_takes_the_offer_back(farm: RegistryFarm) -> None:
    writer = farm.writer()
    put(writer, 1, "service/bank", desc("bank"), type="offer")
    put(writer, 2, "service/post", desc("post"), type="offer")
    put(writer, 3, "service/bank", type="withdraw")
    put(writer, 4, "service/bank", type="withdraw")
    put(writer, 5, "service/other", type="withdraw")
    assert writer.take() == confirmed(1, 2, 3, 4, 5)
    assert [each.name for each in farm.core.services()] == ["post"]


def test_who_takes_back_what_it_never_offered_is_no_provider(farm: RegistryFarm) -> None:
    writer = farm.writer()
    put(writer, 1, "service/bank", type="withdraw")
    assert writer.take() == confirmed(1)
    assert farm.core.providers() == []


def test_a_second_offer_takes_the_place_of_the_first(farm: RegistryFarm) -> None:
    reader, writer = farm.watching("services"), farm.writer()
    put(writer, 1, "service/bank", desc("bank", "h:1"), type="offer")
    put(writer, 2, "service/bank", desc("bank", "h:2"), type="offer")
    one = farm.core.providers()[0].id
    assert brief(got(reader)) == [("up", "bank", one, "h:1"), ("down", "bank", one, "h:1"), ("up", "bank", one, "h:2")]
    assert [each.hostport for each in farm.core.services("bank")] == ["h:2"]


def test_a_second_offer_that_says_the_same_changes_nothing(farm: RegistryFarm) -> None:
    reader, writer = farm.watching("services"), farm.writer()
    for number in (1, 2):
        put(writer, number, "service/bank", desc("bank", "h:1", label="Bank"), type="offer")
    assert writer.take() == confirmed(1, 2)
    assert [each.event for each in got(reader)] == ["up"]


LONG = "x" * (MAX_TEXT + 1)


@pytest.mark.parametrize(
    "body",
    [
        desc("bank", LONG),
        desc("bank", "h:2", label=LONG),
        desc("bank", "h:2", protocol="x" * 256),
        desc("bank", "h:2", auth={"type": "auth", "mode": LONG}),
        desc("bank", "h:2", auth={"type": "auth", "mode": "password", "id": LONG}),
        desc("bank", "h:2", auth={"type": "auth", "mode": "password", "code": "sesame"}),
        desc("bank", None),
        desc("bank", "h:2", failure="none"),
        desc("post", "h:2"),
        {"hostport": "h:2"},
        {"service": "bank", "hostport": 7},
        [desc("bank", "h:2")],
        b"",
        b"\xff",
        b"not json",
        b'{"service":"bank","hostport":"\\ud800"}',
        b'{"x":' + b"[" * 30_000 + b"]" * 30_000 + b"}",
        b'{"x":"' + b"x" * MAX_BODY + b'"}',
    ],
)
def test_an_offer_that_is_refused_leaves_the_first_one_alone(farm: RegistryFarm, body: Any) -> None:
    reader, writer = farm.watching("services"), farm.writer()
    put(writer, 1, "service/bank", desc("bank", "h:1"), type="offer")
    assert [each.event for each in got(reader)] == ["up"]
    put(writer, 2, "service/bank", body, type="offer")
    assert writer.take() == [*confirmed(1), *rejected(2)]
    assert got(reader) == []
    assert [each.hostport for each in farm.core.services("bank")] == ["h:1"]
    assert farm.mtl.counted("mtl_registry.parameter") == 1


@pytest.mark.parametrize("type", ["", "OFFER", "snapshot", 1, True, None])
def test_a_content_that_neither_offers_nor_withdraws_is_refused(farm: RegistryFarm, type: Any) -> None:
    writer, unconfirmed = farm.writer(), farm.writer(confirm=ConfirmMode.NONE)
    put(writer, 1, "service/bank", desc("bank"), **({} if type is None else {"type": type}))
    put(unconfirmed, 1, "service/bank", desc("bank"), **({} if type is None else {"type": type}))
    assert (writer.take(), unconfirmed.take()) == (rejected(1), refused(1))
    assert farm.core.providers() == []


def test_who_offers_too_much_is_refused_for_now(farm: RegistryFarm) -> None:
    rights = Permits(offers=Rights(("*",), services=2))
    writer = farm.writer(principal=farm.mtl.user("ann", rights))
    for number, name in enumerate("abc", 1):
        put(writer, number, f"service/{name}", desc(name), type="offer")
    assert writer.take() == [*confirmed(1, 2), *rejected(3, recycle=True)]
    put(writer, 4, "service/b", desc("b", "h:2"), type="offer")
    put(writer, 5, "service/a", type="withdraw")
    put(writer, 6, "service/c", desc("c"), type="offer")
    assert writer.take() == confirmed(4, 5, 6)
    assert [(each.name, each.hostport) for each in farm.core.services()] == [("b", "h:2"), ("c", "h:1")]


def test_a_load_is_told_by_its_provider(farm: RegistryFarm) -> None:
    reader, writer = farm.watching("load"), farm.writer(principal=farm.mtl.principal("ann"))
    put(writer, 1, "load", {"load": 0.7})
    put(writer, 2, "service/bank", desc("bank"), type="offer")
    put(writer, 3, "load", {"load": 0.0, "unknown": []})
    put(writer, 4, "load", {"load": -1})
    assert writer.take() == [*confirmed(1, 2, 3), *rejected(4)]
    [provider] = farm.core.providers()
    assert (provider.label, provider.load, [each.name for each in provider.services]) == ("ann", 0.0, ["bank"])
    assert loads(got(reader)) == [("load", provider.id, load) for load in (0.0, 0.7, 0.0)]


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"1",
        b"{}",
        b'{"load":"1"}',
        b'{"load":null}',
        b'{"load":true}',
        b'{"load":NaN}',
        b'{"load":1e999}',
        b'{"load":-1}',
        b'{"load":' + b"9" * 5_000 + b"}",
        b'{"load":1,"x":"' + b"x" * MAX_BODY + b'"}',
        b"\xff",
    ],
)
def test_what_is_no_load_is_refused(farm: RegistryFarm, body: bytes) -> None:
    writer = farm.writer("load")
    put(writer, 1, "load", body)
    assert writer.take() == rejected(1)
    assert farm.core.providers() == []


def test_each_flow_is_a_provider_of_its_own(farm: RegistryFarm) -> None:
    writers = [farm.writer() for _ in range(2)]
    for number, writer in enumerate(writers):
        put(writer, 1, "service/bank", desc("bank", f"h:{number}"), type="offer")
    writers[0].drop()
    farm.mtl.wait(2)
    assert [each.hostport for each in farm.core.services("bank")] == ["h:1"]


# leases


def test_readers_and_writers_confirm_as_they_may(farm: RegistryFarm) -> None:
    assert farm.profile.confirms == {
        Side.READER: (ConfirmMode.NONE,),
        Side.WRITER: (ConfirmMode.NONE, ConfirmMode.FULL),
    }
    reader = farm.watching("services")
    reader.say(*wire.confirm(1))
    reader.say(*wire.reject(1))
    assert reader.take() == []


@pytest.mark.parametrize("resource", ["", "service", "service/", "load/", "Services", "loads", "other", "services/a"])
@pytest.mark.parametrize("side", Side)
def test_there_are_no_other_resources(farm: RegistryFarm, side: Side, resource: str) -> None:
    with pytest.raises(Refusal) as caught:
        farm.profile.check(farm.mtl.principal(), side, resource)
    assert caught.value.reason is Reason.PARAMETER


@pytest.mark.parametrize("resource", ["services", "load/bank"])
def test_what_is_only_for_reading_is_not_for_writing(farm: RegistryFarm, resource: str) -> None:
    farm.profile.check(farm.mtl.principal(), Side.READER, resource)
    with pytest.raises(Refusal) as caught:
        farm.profile.check(farm.mtl.principal(), Side.WRITER, resource)
    assert caught.value.reason is Reason.PARAMETER
    writer = farm.writer()
    put(writer, 1, resource)
    assert writer.take() == rejected(1)


def test_users_read_write_and_offer_what_they_may(farm: RegistryFarm) -> None:
    rights = Permits(("registry:service/b*",), offers=Rights(("b*",)))
    some = farm.mtl.user("ann", rights)
    check = farm.profile.check
    check(some, Side.READER, "service/bank")
    check(some, Side.WRITER, "service/bank")
    check(some, Side.WRITER, "load")
    for side, resource in ((Side.READER, "services"), (Side.READER, "load"), (Side.WRITER, "service/post")):
        with pytest.raises(Refusal) as caught:
            check(some, side, resource)
        assert caught.value.reason is Reason.FORBIDDEN
    for name in ("elkobroker.x", "elkobroker."):
        with pytest.raises(Refusal) as caught:
            check(farm.mtl.principal(), Side.WRITER, f"service/{name}")
        assert caught.value.reason is Reason.FORBIDDEN


# other wires


def test_a_restart_begins_a_new_snapshot(farm: RegistryFarm) -> None:
    farm.provider(service("bank"))
    reader = farm.watching("services")
    farm.mtl.start()
    assert reader.ask(*wire.PING) == [wire.Response(0, b"403")]
    again = farm.mtl.reader("services", profile=farm.mtl.registry)
    assert [each.event for each in summon(again, "services")] == ["snapshot", "synced"]


def test_after_a_stop_nothing_is_told(bounded: Callable[..., RegistryFarm]) -> None:
    farm = bounded(at_once=3)
    one = farm.provider(service("a"), service("b"))
    readers = [farm.watching("services"), farm.watching("load"), farm.reader()]
    assert len(summon(readers[2], "services")) == 3
    farm.profile.close()
    farm.core.load(farm.provider(service("bank")), 0.5)
    farm.core.leave(one)
    farm.mtl.wait(1)
    assert [contents(reader) for reader in readers] == [[], [], []]


def test_a_change_outside_of_a_quantum_is_stamped_with_the_time_at_which_it_is_told() -> None:
    farm = RegistryFarm()
    peer = farm.watching("services")
    farm.mtl.clock.advance(2.0)
    farm.elko.client("server").say("client", "willserve", services=[desc("chat")])
    assert [event.event for event in got(peer)] == ["up"]
    assert peer.reading.sent == farm.mtl.leases.moment()


def test_a_load_that_ends_outside_of_a_quantum_is_stamped_with_the_time_at_which_it_is_told() -> None:
    farm = RegistryFarm()
    shop = farm.provider(service("shop"), service("bank"))
    peer = limited(farm, "load")
    summon(peer, "load")
    farm.mtl.clock.advance(2.0)
    farm.core.withdraw(shop, ["bank"])
    assert loads(got(peer)) == [("down", shop, None)]
    assert peer.reading.sent == farm.mtl.leases.moment()


def test_pings_and_pongs_of_a_writer_are_heartbeats_of_its_provider(farm: RegistryFarm) -> None:
    beats: list[int] = []
    farm.core.watch_beats(lambda provider, sent: beats.append(provider))
    writer = farm.writer("service/bank")
    writer.say(*wire.PING)
    assert beats == [], "it is no provider yet"
    put(writer, 1, "service/bank", desc("bank", "h:1"), type="offer")
    [service] = farm.core.services("bank")
    for frames in (wire.PING, wire.PONG):
        writer.say(*frames)
    assert beats == [service.provider] * 2
