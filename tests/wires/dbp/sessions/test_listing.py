"""Answers to info requests: infos unchanged, mappings for all else, errors; and their cache.

The file is longer than others: it has all tests of `broker.wires.dbp.sessions.listing`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import attrs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from broker.access.rights import EVERY_ENTRY, NameSet, RegistryReading
from broker.core.model import BROKER, Auth, Change, Kind, Provider, Rights, Service
from broker.wires.dbp.codec.listings import ERROR, MAX_BODY, TOO_LONG, listing
from broker.wires.dbp.sessions.listing import GONE, KEPT, KEPT_SIZE, LOADS, MAX_PROVIDERS, Listing
from tests.examples import examples
from tests.recording.farm import GRACE
from tests.recording.logs import nothing_fails
from tests.wires.recording import CountingRegistry, ElkoFarm, desc

NOW = 1795246621.35
RIGHTS = Rights(services=1_000_000)


class Catalogue:
    """A registry with a listing, and providers on two wires."""

    def __init__(self, *restored: Provider) -> None:
        self.farm = ElkoFarm(restored, NOW + GRACE)
        self.farm.clock.advance(NOW)
        self.registry = CountingRegistry(self.farm)
        self.listing = Listing(self.registry, self.farm.clock)

    def provider(self, wire: str = "elko") -> int:
        return self.registry.join("label", wire, "192.0.2.7")

    def offer(self, name: str, hostport: str = "10.0.0.1:6000", provider: int | None = None, **more: Any) -> int:
        provider = self.provider() if provider is None else provider
        self.registry.offer([Service(name, hostport, provider, **more)], RIGHTS)
        return provider

    def register(self, name: str, info: str = '{"x": 1}') -> int:
        """As the DBP wire does it."""
        return self.offer(name, provider=self.provider("dbp"), info=info)

    def amend(self, provider: int, name: str, info: str) -> None:
        service = next(s for s in self.registry.services(name) if s.provider == provider)
        self.registry.amend(attrs.evolve(service, info=info))

    def own(self, *names: str) -> None:
        self.registry.offer_own([Service(name, "10.0.0.9:9000", BROKER) for name in names])

    def all(self) -> Any:
        return json.loads(self.listing.all())

    def named(self, *names: str) -> Any:
        return json.loads(self.listing.named(names))


@pytest.fixture
def catalogue() -> Iterator[Catalogue]:
    with nothing_fails():
        yield Catalogue()


def mapped(provider: int, load: float = 0.0, host: str = "10.0.0.1", port: int = 6000, **more: Any) -> dict[str, Any]:
    """The listing of a name that one service offers."""
    place = {"ip": host, "port": port}
    rest = {"protocol": "tcp", "wire": "elko", "provider": provider, "load": load}
    return {**place, "interfaces": {"tcp": place}, "hostport": f"{host}:{port}", **rest, **more}


def row(*args: Any, **more: Any) -> dict[str, Any]:
    """The same among others."""
    return {key: value for key, value in mapped(*args, **more).items() if key != "interfaces"}


def unknown(name: str) -> str:
    return f"No Registered Service With the Name {name}"


def gone(name: str) -> str:
    return f"The Registered Service With the Name {name} Is Inactive"


# Listed services


def test_an_empty_registry_is_an_empty_object(catalogue: Catalogue) -> None:
    assert catalogue.listing.all() == b"{}"


def test_an_info_is_listed_byte_by_byte(catalogue: Catalogue) -> None:
    catalogue.register("Rohan", '{"x":  1.0e+00, "é": "é"}')
    assert catalogue.listing.all() == '{"Rohan": {"x":  1.0e+00, "é": "é"}}'.encode()
    assert catalogue.listing.named(["Rohan"]) == catalogue.listing.all()


def test_of_several_infos_the_first_offered_counts_wherever_its_provider_stands(catalogue: Catalogue) -> None:
    early = catalogue.offer("bank")
    catalogue.register("bank", '{"x": 1}')
    catalogue.offer("bank", provider=early, info='{"x": 2}')
    assert catalogue.named("bank") == {"bank": {"x": 1}}
    assert catalogue.all() == {"bank": {"x": 1}}


def test_a_name_without_an_info_is_a_mapping(catalogue: Catalogue) -> None:
    provider = catalogue.offer("bank", label="a bank", auth=Auth("password", "sesame", "user"))
    expected = {"bank": mapped(provider, label="a bank")}
    assert catalogue.all() == expected
    assert catalogue.named("bank") == expected
    assert b"sesame" not in catalogue.listing.all()
    assert b"auth" not in catalogue.listing.all()


def test_an_empty_label_is_none(catalogue: Catalogue) -> None:
    provider = catalogue.offer("bank", label="")
    assert catalogue.named("bank") == {"bank": mapped(provider)}


def test_what_a_server_offers_on_the_elko_wire_is_found(catalogue: Catalogue) -> None:
    farm = catalogue.farm
    listed = Listing(farm.registry, farm.clock)
    server = farm.client("server")
    server.offer(desc("bank", "10.0.0.1:6000"))
    assert json.loads(listed.named(["bank"])) == {"bank": mapped(1)}
    server.drop()
    assert json.loads(listed.named(["bank"]))[ERROR] == gone("bank")


@pytest.mark.parametrize(
    ("hostport", "host", "port"),
    [
        ("h:1", "h", 1),
        ("[::1]:65535", "::1", 65535),
        ("[fe80::1%eth0]:80", "fe80::1%eth0", 80),
        ("münchen.example:80", "münchen.example", 80),
    ],
)
def test_the_place_is_split(catalogue: Catalogue, hostport: str, host: str, port: int) -> None:
    provider = catalogue.offer("bank", hostport)
    assert catalogue.named("bank") == {"bank": {**mapped(provider, host=host, port=port), "hostport": hostport}}


@pytest.mark.parametrize(
    "hostport",
    ["h", ":1", "h:", "h:0", "h:x", "h:-1", "h:1:2", "::1", "[::1]", "[]:1", "[x]:1", "h:٣"],
)
def test_what_is_no_host_and_port_is_only_told(catalogue: Catalogue, hostport: str) -> None:
    provider = catalogue.offer("bank", hostport)
    rest = {"hostport": hostport, "protocol": "tcp", "wire": "elko", "provider": provider, "load": 0.0}
    assert catalogue.named("bank") == {"bank": rest}


def test_several_providers_are_all_told_and_the_first_one_counts(catalogue: Catalogue) -> None:
    first = catalogue.offer("bank", "h:1")
    second = catalogue.offer("bank", "h:2", protocol="ws")
    catalogue.offer("bank", "nowhere", provider=first)
    rows = [
        row(first, host="h", port=1),
        {"hostport": "nowhere", "protocol": "tcp", "wire": "elko", "provider": first, "load": 0.0},
        {**row(second, host="h", port=2), "protocol": "ws"},
    ]
    assert catalogue.named("bank") == {"bank": {**mapped(first, host="h", port=1), "providers": rows}}
    catalogue.registry.leave(first)
    place = {"ip": "h", "port": 2}
    assert catalogue.all() == {"bank": {**rows[2], "interfaces": {"ws": place}}}


def test_a_mapping_has_a_bounded_number_of_providers_and_tells_of_the_others(catalogue: Catalogue) -> None:
    first = catalogue.provider()
    services = [Service("bank", f"h:{port + 1}", first) for port in range(MAX_PROVIDERS + 3)]
    catalogue.registry.offer(services[:MAX_PROVIDERS], RIGHTS)
    assert "omitted" not in catalogue.named("bank")["bank"]
    catalogue.registry.offer(services[MAX_PROVIDERS:], RIGHTS)
    told = catalogue.named("bank")["bank"]
    assert told["omitted"] == 3
    assert [each["port"] for each in told["providers"]] == list(range(1, MAX_PROVIDERS + 1))


def test_a_service_with_an_info_is_listed_instead_of_those_without(catalogue: Catalogue) -> None:
    bare = catalogue.offer("bank")
    first = catalogue.register("bank", '{"x": 1}')
    second = catalogue.register("bank", '{"x": 2}')
    assert catalogue.all() == catalogue.named("bank") == {"bank": {"x": 1}}
    catalogue.amend(first, "bank", '{"x": 3}')
    assert catalogue.all() == catalogue.named("bank") == {"bank": {"x": 3}}
    catalogue.registry.leave(first)
    assert catalogue.all() == {"bank": {"x": 2}}
    catalogue.registry.leave(second)
    assert catalogue.all() == {"bank": mapped(bare)}


def test_names_are_in_the_order_in_which_they_came(catalogue: Catalogue) -> None:
    a, b = catalogue.register("b"), catalogue.register("a")
    catalogue.offer("c")
    catalogue.offer("a")
    catalogue.amend(a, "b", '{"y": 1}')
    assert list(catalogue.all()) == ["b", "a", "c"]
    catalogue.registry.leave(b)
    assert list(catalogue.all()) == ["b", "a", "c"]
    catalogue.registry.leave(a)
    catalogue.register("b")
    assert list(catalogue.all()) == ["a", "c", "b"]


@pytest.mark.parametrize("name", ['"', "\\", "é", "😀", "x" * 255, " ", "elko"])
def test_any_name_is_harmless(catalogue: Catalogue, name: str) -> None:
    catalogue.register("before")
    catalogue.offer(name, label="a\udce9b")
    catalogue.register("after")
    for body in (catalogue.listing.all(), catalogue.listing.named(["before", name, "after"])):
        assert list(json.loads(body)) == ["before", name, "after"]
        assert json.loads(body)[name]["label"] == "a?b"


def test_a_service_called_error_is_never_listed(catalogue: Catalogue) -> None:
    catalogue.offer(ERROR)
    catalogue.register("a")
    assert catalogue.all() == {"a": {"x": 1}}
    assert not catalogue.listing.has(ERROR)
    assert catalogue.named(ERROR) == {ERROR: "No Service With the Name Error Can Be Listed"}
    assert list(catalogue.named("a", ERROR)) == ["a", ERROR]


def test_the_brokers_own_services_answer_by_name_only(catalogue: Catalogue) -> None:
    catalogue.own("broker-client", "broker-admin")
    assert catalogue.all() == {}
    told = mapped(BROKER, host="10.0.0.9", port=9000, wire="elkobroker")
    assert catalogue.named("broker-client") == {"broker-client": told}
    assert catalogue.listing.has("broker-client")
    other = catalogue.offer("broker-client")
    assert catalogue.all() == catalogue.named("broker-client") == {"broker-client": mapped(other)}
    catalogue.registry.leave(other)
    assert catalogue.all() == {}
    assert catalogue.named("broker-client") == {"broker-client": told}
    catalogue.own("broker-admin")
    assert catalogue.named("broker-client")[ERROR] == gone("broker-client")


def test_what_was_there_before_is_listed_in_the_order_in_which_it_was_offered() -> None:
    catalogue = Catalogue()
    early = catalogue.provider()
    late = catalogue.offer("bank", "h:1")
    catalogue.offer("bank", "h:2", provider=early)
    catalogue.register("Rohan")
    catalogue.own("broker-client")
    catalogue.listing.close()
    catalogue.listing = Listing(catalogue.registry, catalogue.farm.clock)
    assert sorted(catalogue.all()) == ["Rohan", "bank"]
    assert [each["provider"] for each in catalogue.all()["bank"]["providers"]] == [late, early]
    catalogue.registry.leave(late)
    assert catalogue.named("bank") == {"bank": mapped(early, host="h", port=2)}
    assert catalogue.listing.has("broker-client")


# Absent services


def test_a_name_that_never_was_is_unknown(catalogue: Catalogue) -> None:
    assert catalogue.listing.named(["Rohan"]) == b'{"Error": "No Registered Service With the Name Rohan"}'
    assert not catalogue.listing.has("Rohan")


def test_a_name_that_went_is_inactive_since_then(catalogue: Catalogue) -> None:
    provider = catalogue.register("Rohan")
    catalogue.farm.clock.advance(10)
    catalogue.registry.leave(provider)
    catalogue.farm.clock.advance(10)
    assert catalogue.named("Rohan") == {ERROR: gone("Rohan"), "status": "inactive", "last_seen": NOW + 10}
    assert not catalogue.listing.has("Rohan")
    assert catalogue.all() == {}
    again = catalogue.register("Rohan")
    assert catalogue.named("Rohan") == {"Rohan": {"x": 1}}
    catalogue.registry.leave(again)
    assert catalogue.named("Rohan")["last_seen"] == NOW + 20


def test_a_name_is_inactive_since_a_time_of_day(catalogue: Catalogue) -> None:
    provider = catalogue.register("Rohan")
    clock: Any = catalogue.farm.clock
    clock.wall = lambda: clock.seconds() + 3_600  # the system clock was set since the start
    catalogue.registry.leave(provider)
    assert catalogue.named("Rohan")["last_seen"] == NOW + 3_600


def test_of_several_names_one_error_speaks_of_all_that_are_not_there(catalogue: Catalogue) -> None:
    catalogue.registry.leave(catalogue.register("gone"))
    catalogue.register("a")
    provider = catalogue.offer("b")
    assert list(catalogue.named("b", "gone", "a", "never").items()) == [
        ("b", mapped(provider)),
        ("a", {"x": 1}),
        (ERROR, f"{gone('gone')}; {unknown('never')}"),
    ]
    assert catalogue.named("gone", "a") == {"a": {"x": 1}, ERROR: gone("gone")}
    assert catalogue.named("a", "b") == catalogue.all()


def test_the_oldest_of_too_many_gone_names_are_forgotten(catalogue: Catalogue) -> None:
    catalogue.registry.leave(catalogue.register("first"))
    for number in range(3 * GONE // 2):
        catalogue.registry.leave(catalogue.register(f"n{number}"))
        if not number % 100:
            catalogue.registry.leave(catalogue.register("kept"))
    assert catalogue.named("first")[ERROR] == unknown("first")
    assert catalogue.named("kept")[ERROR] == gone("kept")


def test_a_name_is_answered_from_before_a_restart() -> None:
    services = (
        Service("Rohan", "10.0.0.1:1", 7, info='{"x": 1}'),
        Service("bank", "10.0.0.1:6000", 7, label="old"),
        Service("twice", "h:1", 7),
        Service("twice", "h:2", 7),
        Service(ERROR, "h:3", 7),
    )
    catalogue = Catalogue(Provider(7, "p", "elko", "192.0.2.9", 0.5, 0.0, services))
    place = {"ip": "10.0.0.1", "port": 6000}
    old = {**place, "interfaces": {"tcp": place}, "hostport": "10.0.0.1:6000", "protocol": "tcp", "label": "old"}
    assert catalogue.named("Rohan") == {"Rohan": {"x": 1}}
    assert catalogue.named("bank") == {"bank": {**old, "provider": 7, "restored": True}}
    assert [each["port"] for each in catalogue.named("twice")["twice"]["providers"]] == [1, 2]
    assert catalogue.listing.has("bank")
    assert not catalogue.listing.has(ERROR)
    assert ERROR in catalogue.named(ERROR)
    assert catalogue.all() == {}
    provider = catalogue.offer("bank")
    assert catalogue.named("bank") == {"bank": mapped(provider)}
    assert catalogue.named("Rohan") == {"Rohan": {"x": 1}}
    catalogue.registry.leave(provider)
    assert catalogue.named("bank")[ERROR] == gone("bank")
    assert catalogue.named("Rohan")[ERROR] == unknown("Rohan"), "who was back and left has left with all"


def test_behind_the_live_services_of_a_name_stand_those_from_before_a_restart() -> None:
    old = [Provider(n, f"p{n}", "elko", "192.0.2.9", 0.5, 0.0, (Service("bank", f"h:{n}", n),)) for n in (1, 2, 3)]
    catalogue = Catalogue(*old)

    def offered() -> list[tuple[int, bool]]:
        offers = catalogue.named("bank")["bank"].get("providers") or [catalogue.named("bank")["bank"]]
        return [(each["port"], each.get("restored", False)) for each in offers]

    provider = catalogue.registry.join("p2", "elko", "192.0.2.9:1")
    catalogue.registry.offer([Service("bank", "h:2", provider)], Rights())
    assert [each["hostport"] for each in catalogue.all().values()] == ["h:2"], "the list of all has what is live"
    assert offered() == [(2, False), (1, True), (3, True)]
    assert offered() == [(2, False), (1, True), (3, True)]
    catalogue.farm.clock.advance(GRACE)
    assert offered() == [(2, False)]


def test_an_answer_from_before_a_restart_ends_with_the_grace() -> None:
    catalogue = Catalogue(Provider(7, "p", "elko", "192.0.2.9", 0.5, 0.0, (Service("bank", "h:1", 7),)))
    assert catalogue.named("bank")["bank"]["restored"] is True
    catalogue.farm.clock.advance(GRACE)
    assert catalogue.named("bank") == {ERROR: unknown("bank")}


# Cached answers


def test_an_answer_is_the_same_object_until_something_changes(catalogue: Catalogue) -> None:
    info, bare = catalogue.register("a"), catalogue.offer("b")
    whole, one, other = (catalogue.listing.all(), catalogue.listing.named(["a"]), catalogue.listing.named(["b"]))
    assert catalogue.listing.all() is whole
    assert catalogue.listing.named(["a"]) is one
    assert catalogue.listing.named(["b"]) is other
    catalogue.register("c")
    assert catalogue.listing.all() is not whole
    assert catalogue.listing.named(["a"]) is one
    assert catalogue.listing.named(["b"]) is other
    catalogue.registry.load(bare, 0.5)
    catalogue.amend(info, "a", '{"x": 2}')
    assert catalogue.all() == {"a": {"x": 2}, "b": mapped(bare, 0.5), "c": {"x": 1}}
    assert catalogue.named("a") == {"a": {"x": 2}}
    assert catalogue.named("b") == {"b": mapped(bare, 0.5)}


def test_a_bounded_number_of_short_answers_is_kept(catalogue: Catalogue) -> None:
    catalogue.register("long", '{"x": "%s"}' % ("x" * KEPT_SIZE))
    assert catalogue.listing.named(["long"]) is not catalogue.listing.named(["long"])
    assert catalogue.listing.named(["long"]) == catalogue.listing.all()
    for number in range(KEPT + 1):
        catalogue.register(f"n{number}")
    kept = [catalogue.listing.named([f"n{number}"]) for number in range(KEPT + 1)]
    assert catalogue.listing.named([f"n{KEPT}"]) is kept[KEPT]
    assert catalogue.listing.named(["n0"]) is not kept[0]
    assert catalogue.listing.named(["n0"]) == kept[0]


def test_a_list_that_would_be_too_long_is_an_error_until_it_is_short_enough(catalogue: Catalogue) -> None:
    info = '{"x": "%s"}' % ("x" * 16_000)
    most = (MAX_BODY - 2) // (len(info) + len('"n0000": ') + 2)
    providers = [catalogue.register(f"n{number:04}", info) for number in range(most)]
    entries = [(f"n{number:04}", info.encode()) for number in range(most)]
    assert catalogue.listing.all() == listing(entries)
    last = catalogue.register("last", info)
    assert catalogue.listing.all() == TOO_LONG
    assert catalogue.listing.all() is catalogue.listing.all()
    assert catalogue.named("last") == {"last": json.loads(info)}
    catalogue.amend(providers[0], "n0000", info.replace("x", "y"))
    assert catalogue.listing.all() == TOO_LONG
    assert catalogue.listing.named([f"n{number:04}" for number in range(most)]) == listing(
        [("n0000", info.replace("x", "y").encode()), *entries[1:]]
    )
    assert catalogue.listing.named([f"n{number:04}" for number in range(most)] + ["last"]) == TOO_LONG
    never = ["never " * 40 + str(number) for number in range(100)]
    assert catalogue.listing.named([f"n{number:04}" for number in range(most)] + never) == TOO_LONG
    catalogue.registry.leave(providers[0])
    assert catalogue.listing.all() == listing([*entries[1:], ("last", info.encode())])
    catalogue.amend(last, "last", "{}")
    assert catalogue.listing.all() == listing([*entries[1:], ("last", b"{}")])


def test_services_that_are_not_shown_take_no_room_in_a_list(catalogue: Catalogue) -> None:
    large = '{"x": "%s"}' % ("x" * 16_000)
    for number in range(MAX_BODY // 16_000 + 1):
        catalogue.register(f"large{number}", large)
    catalogue.register("gondor", "{}")
    assert catalogue.listing.all() == TOO_LONG
    catalogue.listing.use(RegistryReading(NameSet(frozenset({"gondor", "rohan"}))))
    assert catalogue.all() == {"gondor": {}}
    catalogue.register("rohan", "{}")
    assert catalogue.all() == {"gondor": {}, "rohan": {}}
    catalogue.listing.use(RegistryReading(NameSet(frozenset({"large0", "gondor"}))))
    assert catalogue.all() == {"large0": json.loads(large), "gondor": {}}
    catalogue.listing.use(EVERY_ENTRY)
    assert catalogue.listing.all() == TOO_LONG


# Loads


def test_loads_are_not_watched_before_a_request_nor_for_infos(catalogue: Catalogue) -> None:
    provider = catalogue.offer("bank")
    catalogue.register("Rohan")
    catalogue.registry.load(provider, 0.5)
    catalogue.named("Rohan", "never")
    catalogue.named("Rohan")
    assert not catalogue.registry.watches[Kind.LOAD]
    assert catalogue.named("bank") == {"bank": mapped(provider, 0.5)}
    assert len(catalogue.registry.watches[Kind.LOAD]) == 1


def test_a_load_outdates_the_names_of_its_provider_and_no_others(catalogue: Catalogue) -> None:
    one, other = catalogue.offer("a"), catalogue.offer("b")
    catalogue.offer("c", provider=one)
    catalogue.offer("info", provider=one, info="{}")
    kept, info = catalogue.listing.named(["b"]), catalogue.listing.named(["info"])
    for load in (0.25, 0.5, 0.5, 3.0):
        catalogue.registry.load(one, load)
        assert catalogue.all() == {"a": mapped(one, load), "b": mapped(other), "c": mapped(one, load), "info": {}}
        assert catalogue.named("a") == {"a": mapped(one, load)}
    assert catalogue.listing.named(["b"]) is kept
    assert catalogue.listing.named(["info"]) is info
    assert len(catalogue.registry.watches[Kind.LOAD]) == 1
    catalogue.offer("a", provider=other)
    catalogue.registry.load(other, 7.0)
    assert catalogue.named("a")["a"]["providers"] == [row(one, 3.0), row(other, 7.0)]


def test_the_watch_of_loads_ends_when_no_mapping_is_kept(catalogue: Catalogue) -> None:
    provider = catalogue.offer("a")
    catalogue.offer("b")
    catalogue.named("a")
    assert len(catalogue.registry.watches[Kind.LOAD]) == 1
    catalogue.registry.load(provider, 0.5)
    assert not catalogue.registry.watches[Kind.LOAD]
    assert catalogue.named("a") == {"a": mapped(provider, 0.5)}
    assert len(catalogue.registry.watches[Kind.LOAD]) == 1


@pytest.mark.parametrize("request_", ["all", "one", "several"])
def test_the_watch_of_loads_ends_after_many_loads_without_a_request(catalogue: Catalogue, request_: str) -> None:
    kept, busy = catalogue.offer("kept"), catalogue.provider()
    catalogue.register("Rohan")
    ask = {"all": lambda: catalogue.all(), "one": lambda: catalogue.named("kept")}.get(
        request_, lambda: catalogue.named("kept", "Rohan")
    )
    ask()
    for _ in range(2):
        for _ in range(LOADS - 1):
            catalogue.registry.load(busy, 1.0)
        assert len(catalogue.registry.watches[Kind.LOAD]) == 1
        ask()
    for _ in range(LOADS):
        catalogue.named("Rohan")
        catalogue.registry.load(busy, 1.0)
    assert not catalogue.registry.watches[Kind.LOAD]
    catalogue.registry.load(kept, 0.75)
    assert ask()["kept"] == mapped(kept, 0.75)
    assert len(catalogue.registry.watches[Kind.LOAD]) == 1


def test_after_close_nothing_is_watched(catalogue: Catalogue) -> None:
    catalogue.offer("a")
    before = catalogue.all()
    catalogue.listing.close()
    assert not any(catalogue.registry.watches.values())
    catalogue.offer("b")
    assert catalogue.all() == before


def test_a_request_in_the_middle_of_the_telling_is_right_afterwards(catalogue: Catalogue) -> None:
    asked: list[bytes] = []

    def ask(change: Change) -> None:
        asked.append(catalogue.listing.all() + catalogue.listing.named(["a", "b"]))

    catalogue.listing.close()
    catalogue.registry.watch(ask)
    catalogue.listing = Listing(catalogue.registry, catalogue.farm.clock)
    one = catalogue.offer("a")
    catalogue.offer("b", provider=one)
    for load in (1.0, 2.0):
        catalogue.registry.load(one, load)
        assert catalogue.all() == {"a": mapped(one, load), "b": mapped(one, load)}
    catalogue.registry.leave(one)
    assert catalogue.all() == {}
    assert catalogue.named("a")[ERROR] == gone("a")
    assert len(asked) == 8


def test_a_provider_that_is_gone_before_its_offer_is_told_is_no_failure(catalogue: Catalogue) -> None:
    registry = catalogue.registry
    told: list[Any] = []

    def ask_late(change: Change) -> None:
        told.append(catalogue.named("a"))

    catalogue.listing.close()
    registry.watch(lambda change: registry.leave(change.provider), (Kind.OFFERED,))
    catalogue.listing = Listing(registry, catalogue.farm.clock)
    registry.watch(ask_late, (Kind.OFFERED,))
    provider = catalogue.offer("a")
    place = {"ip": "10.0.0.1", "port": 6000}
    rest = {"hostport": "10.0.0.1:6000", "protocol": "tcp", "provider": provider}
    assert told == [{"a": {**place, "interfaces": {"tcp": place}, **rest}}]
    assert catalogue.all() == {}


# Any sequence

NAMES = ["a", "b", 'é"', ERROR]
INFOS = [None, '{"x": 1}', '{"x": 2}']
_wheres = st.sampled_from(["h:1", "h:2", "[::1]:3", "nowhere"])
_who = st.integers(0, 3)
_steps = st.one_of(
    st.tuples(
        st.just("offer"), _who, st.sampled_from(NAMES), _wheres, st.sampled_from(["tcp", "ws"]), st.sampled_from(INFOS)
    ),
    st.tuples(st.just("withdraw"), _who, st.sampled_from(NAMES)),
    st.tuples(st.just("leave"), _who),
    st.tuples(st.just("amend"), _who, st.sampled_from(NAMES), st.sampled_from(["tcp", "ws"]), st.sampled_from(INFOS)),
    st.tuples(st.just("load"), _who, st.sampled_from([0.0, 0.5, 2.0])),
    st.tuples(st.just("own"), st.sets(st.sampled_from(NAMES))),
    st.tuples(st.just("all")),
    st.tuples(st.just("named"), st.lists(st.sampled_from(NAMES), min_size=1, unique=True)),
)


class Naive:
    """The same registry as plain lists, and the listing made from scratch each time."""

    def __init__(self) -> None:
        self.order: list[str] = []
        self.services: list[Service] = []
        self.loads: dict[int, float] = {}
        self.went: set[str] = set()

    def settle(self) -> None:
        """Bring the names up to date with the services, after each change."""
        theirs = [service.name for service in self.services if service.provider != BROKER]
        self.order = [name for name in self.order if name in theirs]
        self.order += [name for name in dict.fromkeys(theirs) if name not in self.order]

    def body(self, name: str) -> Any:
        same = [s for s in self.services if s.name == name and s.provider != BROKER]
        same = same or [s for s in self.services if s.name == name]
        info = next((s.info for s in same if s.info is not None), None)
        if info is not None:
            return json.loads(info)
        sources = list(dict.fromkeys((s.provider, s.protocol) for s in same))
        rows = [self.row(s) for s in sorted(same, key=lambda s: sources.index((s.provider, s.protocol)))]
        first = dict(rows[0])
        if "ip" in first:
            first["interfaces"] = {first["protocol"]: {"ip": first["ip"], "port": first["port"]}}
        return {**first, "providers": rows} if len(rows) > 1 else first

    def row(self, service: Service) -> dict[str, Any]:
        host, _, port = service.hostport.rpartition(":")
        place = {"ip": host.strip("[]"), "port": int(port)} if host else {}
        wire = "elkobroker" if service.provider == BROKER else "elko"
        rest = {"hostport": service.hostport, "protocol": service.protocol, "wire": wire}
        return {**place, **rest, "provider": service.provider, "load": self.loads.get(service.provider, 0.0)}

    def all(self) -> Any:
        return [(name, self.body(name)) for name in self.order if name != ERROR]

    def named(self, names: list[str]) -> Any:
        active = {service.name for service in self.services} - {ERROR}
        found = [(name, self.body(name)) for name in names if name in active]
        errors = [
            "No Service With the Name Error Can Be Listed"
            if name == ERROR
            else gone(name)
            if name in self.went
            else unknown(name)
            for name in names
            if name not in active
        ]
        if not errors:
            return found
        inactive = len(names) == 1 and names[0] in self.went and names[0] != ERROR
        return [
            *found,
            (ERROR, "; ".join(errors)),
            *([("status", "inactive"), ("last_seen", NOW)] if inactive else []),
        ]


@pytest.mark.long
@settings(max_examples=examples(300), deadline=None)
@given(st.lists(_steps, max_size=40))
def test_after_any_changes_the_answers_are_those_made_from_scratch(steps: list[tuple[Any, ...]]) -> None:
    catalogue, naive = Catalogue(), Naive()
    registry = catalogue.registry
    ids = [catalogue.provider() for _ in range(4)]

    def keep(services: list[Service]) -> None:
        before = {service.name for service in naive.services}
        naive.services = services
        now = {service.name for service in services}
        naive.went = (naive.went | before) - now
        naive.settle()

    def check(names: list[str]) -> None:
        assert list(json.loads(catalogue.listing.all()).items()) == naive.all()
        assert list(json.loads(catalogue.listing.named(names)).items()) == naive.named(names)

    with nothing_fails():
        for step, *rest in steps:
            if step == "offer":
                who, name, where, protocol, info = rest
                service = Service(name, where, ids[who], protocol, info=info)
                registry.offer([service], RIGHTS)
                keep([*naive.services, service])
            elif step == "withdraw":
                who, name = rest
                registry.withdraw(ids[who], [name])
                keep([s for s in naive.services if (s.provider, s.name) != (ids[who], name)])
            elif step == "leave":
                registry.leave(ids[rest[0]])
                keep([s for s in naive.services if s.provider != ids[rest[0]]])
                ids[rest[0]] = catalogue.provider()
            elif step == "amend":
                who, name, protocol, info = rest
                key = (ids[who], name, protocol)
                places = [n for n, s in enumerate(naive.services) if (s.provider, s.name, s.protocol) == key]
                if places:
                    new = attrs.evolve(naive.services[places[0]], info=info)
                    registry.amend(new)
                    naive.services[places[0]] = new
            elif step == "load":
                registry.load(ids[rest[0]], rest[1])
                naive.loads[ids[rest[0]]] = rest[1]
            elif step == "own":
                catalogue.own(*sorted(rest[0]))
                kept = [s for s in naive.services if s.provider != BROKER or s.name in rest[0]]
                there = {s.name for s in kept if s.provider == BROKER}
                added = [Service(name, "10.0.0.9:9000", BROKER) for name in sorted(rest[0]) if name not in there]
                keep([*kept, *added])
            elif step == "all":
                assert list(json.loads(catalogue.listing.all()).items()) == naive.all()
            else:
                assert list(json.loads(catalogue.listing.named(rest[0])).items()) == naive.named(rest[0])
        check(NAMES)
        for name in NAMES:
            check([name])
