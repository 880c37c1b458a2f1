"""Bridges in memory, by a clock: routes, loops, partitions, limits, malformed messages."""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import count
from typing import Any

import attrs
import pytest
from twisted.internet.task import Clock

from broker.access.rights import AnonymousAccess
from broker.bridge.bridges import Bridges
from broker.bridge.imports import ASK_AFTER, ASKS
from broker.bridge.paths import HEADER, Path, split
from broker.cluster.links.link_messages import LinkState, Neighbour
from broker.config.bridge_settings import Bridges as Config
from broker.config.bridge_settings import BridgeTo
from broker.core.errors import Malformed, Reason, Refusal
from broker.core.model import (
    MAX_LABELS,
    MAX_NAME,
    MAX_TEXT,
    MAX_TOPIC,
    Auth,
    Change,
    Check,
    CheckState,
    Kind,
    LoadDetails,
    PublishedHeaders,
    Rights,
    Service,
)
from broker.core.registered_services import Restored
from broker.core.registry import Registry
from broker.core.topics import Topics
from broker.core.turns import Turns
from tests.cluster.links_network import LinksNetwork, SimulatedLinks

EVERY: dict[str, Any] = {f"{way}_{what}": ("*",) for way in ("send", "receive") for what in ("services", "topics")}


class SiteLinks(SimulatedLinks):
    """The links of a site, as `broker.cluster.links.links.Links` has them."""

    public_key = ""

    def start(self, sites: Any) -> None:
        self.others = [each for each in sites.members() if each.name != self.name]

    def neighbours(self) -> Sequence[Neighbour]:
        found = [Neighbour(each, 0.0, lambda _: None, 0.0) for each in self.others]
        for each in found:
            each.state = LinkState.UP if each.name in self.brokers() else LinkState.WAITING
        return found

    def stop(self) -> None:
        self.ended = True


@attrs.define(eq=False)
class Site:
    """A broker of the ring: its registry, its topics, and what its subscriber of the topic ``t`` got."""

    name: str
    registry: Registry
    topics: Topics
    bridges: Bridges
    got: list[tuple[bytes, list[bytes]]] = attrs.field(factory=list)

    def deliver(self, _: object, topic: bytes, headers: Sequence[bytes], body: Sequence[bytes]) -> None:
        self.got.append((bytes(body[0]), list(headers)))

    def offer(self, name: str, **more: Any) -> int:
        id = self.registry.join("label", "elko", "192.0.2.1:9")
        self.registry.offer([Service(name, more.pop("hostport", "192.0.2.1:80"), id, **more)], Rights())
        return id

    def found(self) -> dict[str, Service]:
        services = list(self.registry.services())
        assert len({each.name for each in services}) == len(services), services
        return {each.name: each for each in services}

    def check(self, name: str) -> Check | None:
        return self.registry.check_of(self.found()[name])

    def row(self, name: str) -> dict[str, Any]:
        return next(dict(row) for row in self.bridges.rows() if row["name"] == name)


class Rig:
    """Sites in memory; ``pairs`` are bridged, both ways, with these keys."""

    def __init__(self, *pairs: str, clustered: bool = False, **keys: Any) -> None:
        self.clustered = clustered
        self.clock = Clock()
        self.network = LinksNetwork(self.clock)
        self.ids = count(1)
        self.without_ids = False
        """True for brokers that have no provider ids, as members of a cluster whose etcd is away."""
        self.sites = {name: self.site(name, pairs, keys) for name in sorted(set("".join(pairs)))}
        for one, other in [(a, b) for a in self.sites for b in self.sites if a < b and a + b not in pairs]:
            self.network.cut(one, other)
        self.network.open()
        self.wait()

    def site(self, name: str, pairs: Sequence[str], keys: dict[str, Any]) -> Site:
        others = [pair.replace(name, "") for pair in pairs if name in pair]
        config = Config(name, to=tuple(BridgeTo(other, "key", **{**EVERY, **keys}) for other in others))
        links = self.network._all[name] = SiteLinks(self.network, name)
        registry = Registry(self.clock, self.next_id, Restored((), 0.0, self.clock, lambda ids: None))
        topics = Topics()
        access = AnonymousAccess()
        bridges = Bridges(config, links, registry, topics, access, self.clock, Turns(self.clock), self.clustered)  # type: ignore[arg-type]
        site = Site(name, registry, topics, bridges)
        topics.subscribe(b"t", site, site)
        bridges.start()
        return site

    def next_id(self) -> int:
        if self.without_ids:
            raise Refusal(Reason.UNAVAILABLE, "this broker has no provider ids")
        return next(self.ids)

    def wait(self, seconds: float = 2.0) -> None:
        self.clock.pump([0.01] * round(seconds * 100))

    def __getitem__(self, name: str) -> Site:
        return self.sites[name]


RING = "ab", "ac", "bc"


@pytest.mark.parametrize("hops", [1, 3])
def test_in_a_ring_each_service_and_message_arrives_once(hops: int) -> None:
    rig = Rig(*RING, hops=hops)
    rig["a"].offer("bank")
    # As mc0 has headers, where MTL has `PublishedHeaders`.
    rig["a"].topics.publish(b"t", [b"X-Unit", b"m"], (b"hello",))
    rig.wait()
    for name in "bc":
        meta = rig[name].found()["bank"].meta
        assert meta is not None
        assert meta["elkobroker.path"].split(" ")[1:] == ["a"]
        [(body, headers)] = rig[name].got
        path, rest = split(headers)
        assert (body, rest, path and path.sites) == (b"hello", [b"X-Unit", b"m"], ("a",))
    assert list(rig["a"].found()) == ["bank"]
    assert len(rig["a"].got) == 1


def test_the_longer_way_serves_while_the_shorter_one_is_cut() -> None:
    rig = Rig(*RING, hops=2, keep=5)
    rig["a"].offer("bank")
    rig.wait()
    rig.network.cut("a", "b")
    rig.wait()
    meta = rig["b"].found()["bank"].meta
    assert meta is not None
    assert meta["elkobroker.path"].split(" ")[1:] == ["a", "c"]
    assert rig["b"].check("bank") is None
    rig["a"].topics.publish(b"t", PublishedHeaders(), (b"round",))
    rig.wait()
    assert [body for body, _ in rig["b"].got] == [b"round"]
    rig.network.heal("a", "b")
    rig.wait()
    meta = rig["b"].found()["bank"].meta
    assert meta is not None
    assert meta["elkobroker.path"].split(" ")[1:] == ["a"]


@pytest.mark.parametrize(("hops", "reached"), [(1, ""), (2, "c"), (3, "cd")])
def test_in_a_line_the_hops_bound_the_way(hops: int, reached: str) -> None:
    rig = Rig("ab", "bc", "cd", hops=hops)
    rig["a"].offer("bank")
    rig["a"].topics.publish(b"t", PublishedHeaders(), (b"hello",))
    rig.wait()
    assert [name for name in "bcd" if "bank" in rig[name].found()] == ["b", *reached]
    assert [name for name in "bcd" if rig[name].got] == ["b", *reached]


def test_a_partition_leaves_doubtful_services_then_none() -> None:
    rig = Rig("ab", keep=10)
    kept, left = rig["a"].offer("bank"), rig["a"].offer("shop")
    rig.wait()
    rig.network.cut("a", "b")
    rig.wait(5)
    check = rig["b"].check("bank")
    assert check is not None
    assert (check.state, check.reason) == (CheckState.DOUBTFUL, "the bridge to a is down")
    [reason] = rig["b"].bridges.degradations()
    assert (reason.what, reason.reason) == (
        "bridge a",
        "no connection yet, the link is waiting, 2 services of it are doubtful",
    )
    rig["a"].registry.leave(left)
    rig.network.heal("a", "b")
    rig.wait()
    assert rig["b"].check("bank") is None
    assert rig["b"].check("shop") is not None
    rig.wait(10)
    assert list(rig["b"].found()) == ["bank"]
    rig.network.cut("a", "b")
    rig.wait(11)
    assert rig["b"].found() == {}
    assert rig["a"].registry.provider(kept) is not None


@pytest.mark.parametrize(("load", "details"), [(0.0, None), (5.5, LoadDetails(10, 1, 2, 3.5))])
def test_after_a_return_loads_are_those_of_the_last_report(load: float, details: LoadDetails | None) -> None:
    rig = Rig("ab")
    id = rig["a"].offer("bank")
    rig.wait()
    rig["a"].registry.load(id, 4.5, LoadDetails(20))
    rig.wait()
    rig.network.cut("a", "b")
    rig["a"].registry.load(id, load, details)
    reports: list[tuple[float, LoadDetails | None]] = []
    rig["b"].registry.watch_loads(lambda _, load, details: reports.append((load, details)))
    rig.network.heal("a", "b")
    rig.wait()
    # The requests of a report may have been counted before the end of the link.
    assert reports == [(load, details and LoadDetails(None, None, 2, 3.5))]


def test_after_a_return_no_message_is_sent_before_the_other_side_says_what_it_receives() -> None:
    """The link may have ended since its rights have changed: a topic that was sent before may not be permitted now."""
    rig = Rig("ab")
    rig["a"].topics.publish(b"t", PublishedHeaders(), (b"before",))
    rig.wait()
    rig.network.cut("a", "b")
    rig.network.heal("a", "b")
    rig["a"].topics.publish(b"t", PublishedHeaders(), (b"early",))
    rig.wait()
    rig["a"].topics.publish(b"t", PublishedHeaders(), (b"after",))
    rig.wait()
    assert [body for body, _ in rig["b"].got] == [b"before", b"after"]


def test_changes_of_a_service_travel() -> None:
    rig = Rig("ab")
    id = rig["a"].offer("bank", info="{}", auth=Auth("password", "hush", "me"), tags=("v1",))
    rig.wait()
    before = rig["b"].found()["bank"]
    assert (before.auth, before.tags, before.info) == (Auth("password"), ("v1",), "{}")
    service = rig["a"].found()["bank"]
    rig["a"].registry.amend(attrs.evolve(service, info='{"n":1}'))
    rig["a"].registry.load(id, 4.5)
    rig.wait()
    now = rig["b"].found()["bank"]
    assert (now.info, now.provider) == ('{"n":1}', before.provider)
    assert rig["b"].registry.load_of(now.provider) == 4.5
    [service] = rig["a"].registry.services()
    rig["a"].registry.set_check(service, Check(CheckState.FAILING, "no answer", 0.0))
    rig.wait()
    check = rig["b"].check("bank")
    assert check is not None
    assert check.reason == "at a: no answer"
    rig["a"].registry.set_check(service, Check(CheckState.PASSING, "", 0.0))
    rig.wait()
    assert rig["b"].check("bank") is None
    rig["a"].registry.withdraw(id, ["bank"])
    rig.wait()
    assert rig["b"].registry.providers() == []


def test_reasons_of_a_failing_or_doubtful_service_travel_and_name_each_site() -> None:
    rig = Rig("ab", "bc", hops=2)
    id = rig["a"].offer("bank")
    [service] = rig["a"].registry.services()

    def reasons() -> list[str]:
        rig.wait()
        return [check.reason for check in (rig[site].check("bank") for site in "bc") if check is not None]

    for reason in ("refused", "no answer"):
        rig["a"].registry.set_check(service, Check(CheckState.FAILING, reason, 0.0))
        assert reasons() == [f"at a: {reason}", f"at b: at a: {reason}"]
    rig["a"].registry.set_check(service, None)
    for reason in ("silent for 2 s", "silent for 3 s"):
        rig["a"].registry.doubt(id, reason)
        assert reasons() == [f"at a: {reason}", f"at b: at a: {reason}"]
    # A service that has gone by the time of the message stays away.
    rig["a"].registry.doubt(id, "silent for 4 s")
    rig["a"].registry.leave(id)
    rig.wait()
    assert rig["b"].found() == rig["c"].found() == {}


def test_a_change_of_the_labels_of_a_service_travels_as_one() -> None:
    rig = Rig("ab", "bc", hops=2)
    rig["a"].offer("bank", zone="west", tags=("v1",), meta={"team": "money"})
    rig.wait()
    changes: list[Change] = []
    for site in "bc":
        rig[site].registry.watch(changes.append)
    service = rig["a"].found()["bank"]
    rig["a"].registry.amend(attrs.evolve(service, zone="east", tags=("v2",), meta=None))
    rig.wait()
    assert [change.kind for change in changes] == [Kind.AMENDED, Kind.AMENDED]
    for site in "bc":
        now = rig[site].found()["bank"]
        assert (now.zone, now.tags, list(now.meta or {})) == ("east", ("v2",), ["elkobroker.path"])


def test_a_change_of_a_label_travels() -> None:
    rig = Rig("ab", "bc", hops=2)
    id = rig["a"].offer("bank")
    rig.wait()
    before = [rig[site].found()["bank"].provider for site in "bc"]
    rig["a"].registry.relabel(id, "other")
    rig.wait()
    assert [rig[site].found()["bank"].provider for site in "bc"] == before
    assert [provider.label for site in "bc" for provider in rig[site].registry.providers()] == ["other", "other"]


@pytest.mark.parametrize("way", [False, True], ids=["change", "way"])
def test_a_service_that_is_registered_anew_keeps_its_load(way: bool) -> None:
    """By a change that needs that, or later, by another way."""
    rig = Rig(*RING, hops=2)
    id = rig["a"].offer("bank")
    rig.wait()
    rig["a"].registry.load(id, 4.5)
    rig.wait()
    before = rig["b"].found()["bank"].provider
    auth = None if way else Auth("password")
    rig["a"].registry.offer([attrs.evolve(rig["a"].found()["bank"], auth=auth, info="{}")], Rights())
    rig.wait()
    if way:
        rig.network.cut("a", "b")
        rig.wait()
    now = rig["b"].found()["bank"]
    assert (now.auth, now.provider != before) == (auth, True)
    assert rig["b"].registry.load_of(now.provider) == 4.5


def test_another_provider_of_the_same_place_is_another_one_at_each_site() -> None:
    """It has a load of its own, which came before the one of that place left."""
    rig = Rig("ab", "bc", hops=2)
    first, second = rig["a"].offer("bank"), rig["a"].offer("bank")
    rig["a"].registry.load(first, 4.5)
    rig["a"].registry.load(second, 9.0)
    rig.wait()
    before = [rig[site].found()["bank"].provider for site in "bc"]
    assert [rig[site].registry.load_of(id) for site, id in zip("bc", before, strict=True)] == [4.5, 4.5]
    rig["a"].registry.leave(first)
    rig.wait()
    now = [rig[site].found()["bank"].provider for site in "bc"]
    assert [rig[site].registry.load_of(id) for site, id in zip("bc", now, strict=True)] == [9.0, 9.0]
    assert not set(before) & set(now)


@pytest.mark.parametrize("room", [1, 1000])
def test_a_service_that_another_provider_takes_over_is_never_missing(room: int) -> None:
    rig = Rig("ab", services=room)
    before = rig["a"].offer("bank")
    rig.wait()
    for _ in range(10):
        after = rig["a"].offer("bank")
        rig["a"].registry.leave(before)
        there = rig["b"].found()["bank"].provider
        for _ in range(500):
            rig.clock.advance(0.0002)
            assert rig["b"].registry.find("bank", "tcp")
        assert rig["b"].found()["bank"].provider != there
        before = after
    rig["a"].offer("shop")
    rig["a"].registry.leave(before)
    rig.wait()
    assert list(rig["b"].found()) == ["shop"], "there is room for another one as soon as that has gone"
    assert rig["b"].row("a")["refused"] == 0


def test_a_service_whose_path_comes_to_lead_back_is_withdrawn() -> None:
    """A peer may change the meta of its service."""
    rig = Rig("ab")
    id = rig["a"].offer("bank")
    rig.wait()
    service = rig["a"].found()["bank"]
    rig["a"].registry.amend(attrs.evolve(service, meta={"elkobroker.path": f"{id} b"}))
    rig.wait()
    assert (rig["b"].found(), rig["a"].row("b")["services_out"]) == ({}, 0)
    rig["a"].registry.amend(service)
    rig.wait()
    assert list(rig["b"].found()) == ["bank"]


def counted(site: Site) -> list[LoadDetails]:
    """The reports of loads with details at a site, from now on."""
    reports: list[LoadDetails] = []
    site.registry.watch_loads(lambda _, load, details: reports.append(details) if details else None)
    return reports


def test_requests_of_reports_within_a_second_are_added_up() -> None:
    rig = Rig("ab")
    id = rig["a"].offer("bank")
    rig.wait()
    reports = counted(rig["b"])
    rig["a"].registry.load(id, 1.0, LoadDetails(10, 1, 7, 3.0))
    rig["a"].registry.load(id, 2.0, LoadDetails(30, 2, 5, 1.0))
    rig["a"].registry.load(id, 3.0)
    rig.wait()
    assert reports == [LoadDetails(40, 3, 5, 1.5)]
    [load] = rig["b"].registry.loads()
    assert load.load == 3.0


@pytest.mark.parametrize("way", [False, True], ids=["change", "way"])
def test_requests_are_counted_once_for_a_service_that_is_registered_anew(way: bool) -> None:
    """By a change that needs that, or by another way."""
    rig = Rig(*RING, hops=2)
    id = rig["a"].offer("bank", tags=("v1",))
    rig.wait()
    reports = counted(rig["b"])
    rig["a"].registry.load(id, 4.5, LoadDetails(10, 1, 7, 3.0))
    rig.wait(5)  # it has arrived by both ways
    if way:
        rig.network.cut("a", "b")
    else:
        rig["a"].registry.offer([attrs.evolve(rig["a"].found()["bank"], auth=Auth("password"))], Rights())
    rig.wait()
    assert [each.requests for each in reports] == [10, None]
    assert rig["b"].registry.loads()[0].details == LoadDetails(None, None, 7, 3.0)


def test_prefixes_rename_services_and_topics() -> None:
    rig = Rig("ab", prefix="x.")
    rig["a"].offer("bank")
    rig["b"].topics.subscribe(b"x.t", rig["b"], rig["b"])
    headers = PublishedHeaders()
    headers.tail = b"tail"
    rig["a"].topics.publish(b"t", headers, (b"hello",))
    rig.wait()
    assert list(rig["b"].found()) == ["x.bank"]
    assert [body for body, _ in rig["b"].got] == [b"hello"]


@pytest.mark.parametrize(("prefix", "topic"), [("x.", b"t" * MAX_TOPIC), ("elko", b"broker.t")], ids=["long", "own"])
def test_a_topic_that_is_none_with_the_prefix_is_dropped(prefix: str, topic: bytes) -> None:
    """Any publisher at the other site may choose it, and would end the link."""
    rig = Rig("ab", prefix=prefix)
    rig["b"].topics.subscribe(prefix.encode() + b"t", rig["b"], rig["b"])
    for each in (topic, b"t"):
        rig["a"].topics.publish(each, PublishedHeaders(), (each,))
    rig.wait()
    assert [body for body, _ in rig["b"].got] == [b"t"]
    assert rig["b"].row("a")["dropped"] == 1


def test_services_and_messages_beyond_the_bounds_are_refused_and_counted() -> None:
    rig = Rig("ab", services=2, rate=3)
    for number in range(4):
        rig["a"].offer(f"bank-{number}")
    for _ in range(5):
        rig["a"].topics.publish(b"t", PublishedHeaders(), (b"m",))
    rig.wait()
    row = rig["b"].row("a")
    assert (row["services_in"], row["refused"], row["error"]) == (
        2,
        2,
        "more than 2 services come from a (bridges.to.services)",
    )
    assert len(rig["b"].got) == 3
    assert (rig["a"].row("b")["messages_out"], rig["a"].row("b")["dropped"]) == (3, 2)
    counts = rig["b"].bridges.counts()
    assert (counts["bridges.services_refused"], counts["bridges.messages_in"]) == (2, 3)


def test_a_refused_service_is_taken_once_there_is_room() -> None:
    rig = Rig("ab", services=2)
    ids = [rig["a"].offer(f"bank-{number}") for number in range(4)]
    rig["a"].registry.load(ids[2], 4.5)
    rig.wait(2 * ASK_AFTER)
    before = rig["b"].found()
    assert (list(before), rig["b"].row("a")["refused"]) == (["bank-0", "bank-1"], 2)
    rig["a"].registry.leave(ids[0])
    rig.wait(ASK_AFTER)
    now = rig["b"].found()
    assert sorted(now) == ["bank-1", "bank-2"]
    assert now["bank-1"] == before["bank-1"], "what was taken stays"
    rig.wait()
    assert rig["b"].registry.load_of(now["bank-2"].provider) == 4.5
    rig["a"].registry.leave(ids[1])
    rig["a"].registry.leave(ids[2])
    rig.wait(2 * ASK_AFTER)
    assert list(rig["b"].found()) == ["bank-3"]
    assert rig["b"].row("a")["refused"] == 3
    rig["b"].bridges.stop()


def test_services_are_refused_and_counted_while_there_are_no_provider_ids() -> None:
    rig = Rig("ab")
    for number in range(3):
        rig["a"].offer(f"bank-{number}")
    rig.without_ids = True
    rig.wait()
    rig.without_ids = False
    row = rig["b"].row("a")
    assert (row["refused"], row["error"]) == (3, "this broker has no provider ids")
    rig["a"].offer("shop")
    rig.wait()
    assert "shop" in rig["b"].found()
    rig.wait(ASK_AFTER)
    assert sorted(rig["b"].found()) == ["bank-0", "bank-1", "bank-2", "shop"]


def test_a_neighbour_is_asked_ever_more_rarely_while_services_are_refused() -> None:
    rig = Rig("ab")
    rig["a"].offer("bank")
    rig.without_ids = True
    rig.wait(600)
    assert rig["b"].row("a")["refused"] == 7  # at once, and after 10, 20, 40, 80, 160 and 160 s
    rig.without_ids = False
    rig.wait(ASKS.most)
    assert list(rig["b"].found()) == ["bank"]
    rig.wait(ASK_AFTER)
    rig["a"].offer("pub")
    rig.without_ids = True
    rig.wait()
    rig.without_ids = False
    rig.wait(ASK_AFTER)
    assert sorted(rig["b"].found()) == ["bank", "pub"]


def test_a_service_stays_on_the_longer_way_while_the_shorter_one_is_refused() -> None:
    rig = Rig(*RING, hops=2)
    rig.network.cut("a", "b")
    rig["a"].offer("bank")
    rig.wait()
    before = rig["b"].found()["bank"]
    rig.without_ids = True
    rig.network.heal("a", "b")
    rig.wait()
    assert rig["b"].row("a")["refused"] == 1
    assert rig["b"].found()["bank"] == before
    rig.without_ids = False
    rig.wait(ASK_AFTER)
    meta = rig["b"].found()["bank"].meta
    assert meta is not None
    assert meta["elkobroker.path"].split(" ")[1:] == ["a"]


def test_a_changed_service_that_is_refused_does_not_stay_as_it_was() -> None:
    rig = Rig("ab")
    rig["a"].offer("bank")
    rig.wait()
    rig.without_ids = True
    rig["a"].registry.offer([attrs.evolve(rig["a"].found()["bank"], auth=Auth("password"))], Rights())
    rig.wait()
    assert rig["b"].found() == {}
    rig.without_ids = False
    rig.wait(ASK_AFTER)
    assert rig["b"].found()["bank"].auth == Auth("password")


def test_a_message_that_one_way_has_no_room_for_arrives_by_the_other_one() -> None:
    rig = Rig("ab", "bc", hops=2, rate=1)
    take = rig["b"].bridges.links.receivers["messages"].receive  # type: ignore[attr-defined]
    for way, path in (("a", b"1 a"), ("a", b"2 a"), ("c", b"2 a c"), ("c", b"1 a c")):
        take(way, [b"t", path, b"", b"0", path])
    assert [body for body, _ in rig["b"].got] == [b"1 a", b"2 a c"]
    counts = rig["b"].bridges.counts()
    assert (counts["bridges.messages_dropped"], counts["bridges.messages_looped"]) == (1, 1)


@pytest.mark.parametrize("hostport", ["192.0.2.1:80", "192.0.2.2:80"], ids=["same", "other"])
def test_services_that_return_with_other_ids_take_the_places_of_lost_ones(hostport: str) -> None:
    """As after a restart of the other broker: its providers have other ids, and perhaps other addresses."""
    rig = Rig("ab", services=3, keep=5)
    names = ["bank-0", "bank-1"]
    ids = [rig["a"].offer(each) for each in names]
    rig.wait()
    registry, missing = rig["b"].registry, list[str]()

    def withdrawn(change: Change) -> None:
        assert isinstance(change.subject, Service)
        if not registry.find(change.subject.name, "tcp"):
            missing.append(change.subject.name)

    registry.watch(withdrawn, (Kind.WITHDRAWN,))
    rig.network.cut("a", "b")
    for id in ids:
        rig["a"].registry.leave(id)
    for each in names:
        rig["a"].offer(each, hostport=hostport)
    rig.network.heal("a", "b")
    rig.wait(8)
    assert {name: each.hostport for name, each in rig["b"].found().items()} == dict.fromkeys(names, hostport)
    if hostport == "192.0.2.1:80":  # elsewhere it is not known which one returns
        assert missing == []
    row = rig["b"].row("a")
    assert (row["services_in"], row["lost"], row["refused"]) == (2, 0, 0)


@pytest.mark.parametrize(
    "labels",
    [{"meta": {f"name-{n}": "x" for n in range(MAX_LABELS)}}, {"tags": tuple(c * MAX_TEXT for c in "abcdefgh")}],
    ids=["names", "characters"],
)
def test_a_service_with_as_many_labels_as_are_permitted_crosses(labels: dict[str, Any]) -> None:
    rig = Rig("ab", "bc", hops=2)
    rig["a"].offer("bank", **labels)
    rig.wait()
    assert "bank" in rig["c"].found(), rig["b"].row("a")


def test_a_service_with_the_longest_texts_crosses() -> None:
    longest = "\U0001f600"
    rig = Rig("ab")
    rig["a"].offer(longest * MAX_NAME, protocol=longest * MAX_NAME, hostport=longest * MAX_TEXT)
    rig.wait()
    assert list(rig["b"].found()) == [longest * MAX_NAME]


def test_many_services_are_worked_off_in_slices() -> None:
    rig = Rig("ab")
    for number in range(250):
        rig["a"].offer(f"bank-{number}")
    rig.wait()
    assert len(rig["b"].found()) == 250
    rig.network.cut("a", "b")
    rig.network.heal("a", "b")
    rig.wait()
    assert len(rig["b"].found()) == 250
    assert rig["b"].row("a")["lost"] == 0


def test_the_brokers_own_names_do_not_travel() -> None:
    rig = Rig("ab")
    rig["a"].registry.offer_own([Service("broker-client", "192.0.2.1:1", 0)])
    rig["a"].topics.publish(b"elkobroker.services", PublishedHeaders(), (b"x",))
    rig.wait()
    assert rig["b"].found() == {}
    assert rig["a"].row("b")["messages_out"] == 0


@pytest.mark.parametrize(
    "frames",
    [
        [b"SERVICES", b"1/bridge/x/tcp/h:1"],
        [b"SERVICES", b"1" * 20_000, b"{}"],
        [b"LOADS", b"{"],
        [b"WANTED", b"{"],
        [b"WANTED", b'{"services":[' + b'"a",' * 100 + b'"a"]}'],
    ],
    ids=["odd", "long", "loads", "wanted", "many"],
)
def test_a_malformed_message_about_services_ends_the_link(frames: list[bytes]) -> None:
    rig = Rig("ab")
    with pytest.raises(Malformed):
        rig["a"].bridges.links.receivers["bridge"].receive("b", frames)  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    "frames",
    [
        [],
        [b"t", b"1 b", b"", b"x", b"m"],
        [b"t", b"1 b", b"", b"2", b"m"],
        [b"t", b"1 b", b"", b"1", b"h", b"m"],
        [b"t", b"", b"", b"0", b"m"],
        [b"elkobroker.x", b"1 b", b"", b"0", b"m"],
        [b"t" * 5_000, b"1 b", b"", b"0", b"m"],
    ],
    ids=["empty", "number", "short", "odd", "path", "own", "long"],
)
def test_a_malformed_message_of_a_topic_ends_the_link(frames: list[bytes]) -> None:
    rig = Rig("ab")
    with pytest.raises(Malformed):
        rig["a"].bridges.links.receivers["messages"].receive("b", frames)  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("ident", "value", "why"),
    [
        (b"1/bridge/x/tcp/h:1", b"{", "a service is malformed"),
        (b"1/x", b"{}", "a service is malformed"),
        (b"1/bridge/x/tcp/h:1", b'{"broker":"b","provider":1,"service":{"name":"x","hostport":"h:1"}}', "its path"),
    ],
)
def test_a_malformed_service_is_refused(ident: bytes, value: bytes, why: str) -> None:
    rig = Rig("ab")
    rig["a"].bridges.links.receivers["bridge"].receive("b", [b"SERVICES", ident, value])  # type: ignore[attr-defined]
    rig.wait()
    assert rig["a"].found() == {}
    assert why in rig["a"].row("b")["error"]


def _value(name: str, info: str) -> list[bytes]:
    """A service of the site b on the way, as ident and value."""
    service = {"name": name, "hostport": "h:1", "info": info, "meta": {"elkobroker.path": "1 b"}}
    return [
        f"1/bridge/{name}/tcp/h:1".encode(),
        json.dumps({"broker": "b", "provider": 1, "service": service}).encode(),
    ]


def test_a_change_that_the_registry_refuses_ends_its_service_only() -> None:
    rig = Rig("ab")
    receive = rig["a"].bridges.links.receivers["bridge"].receive  # type: ignore[attr-defined]
    receive("b", [b"SERVICES", *_value("bank", "{}"), *_value("shop", "{}")])
    rig.wait()
    assert sorted(rig["a"].found()) == ["bank", "shop"]
    receive("b", [b"SERVICES", *_value("bank", '{"x":' + "[" * 150 + "]" * 150 + "}"), *_value("shop", '{"n":1}')])
    rig.wait()
    assert {name: each.info for name, each in rig["a"].found().items()} == {"shop": '{"n":1}'}
    row = rig["a"].row("b")
    assert (row["services_in"], row["refused"]) == (1, 1)
    assert "nested deeper" in row["error"]


def test_a_path_that_is_none_is_no_path() -> None:
    texts = (None, "", "1", "1 a/b", "1 " + "a" * 65, "1" + " a" * 9, "x" * 2_000, b"1 \xff")
    assert [text for text in texts if Path.parse(text)] == []
    assert split([HEADER, b"nothing", b"k", b"v"]) == (None, [b"k", b"v"])
    assert Path("1", ("b",)).objection("a", "c", 1) == "malformed"


def test_the_stop_leaves_what_is_registered() -> None:
    rig = Rig("ab", keep=1)
    rig["a"].offer("bank")
    rig.wait()
    rig["b"].bridges.stop()
    rig.network.cut("a", "b")
    rig.wait(5)
    assert list(rig["b"].found()) == ["bank"]


def test_a_member_of_a_cluster_subscribes_to_the_topics_that_it_sends() -> None:
    # Messages of other members come for subscriptions only; a pattern cannot be subscribed to.
    rig = Rig("ab", clustered=True, send_topics=("news", "log.*"))
    assert sorted(rig["a"].topics.names()) == [b"news", b"t"]
    assert Rig("ab", send_topics=("news",))["a"].topics.names() == [b"t"]
