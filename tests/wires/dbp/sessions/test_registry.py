"""DBP services in the one registry: what servers and administrators on the Elko wire see of them, and the reverse.

The file is longer than others: all its tests concern the same services on two wires.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any

import pytest

from broker.core.errors import Refusal
from broker.core.memory_budget import MemoryBudget, MemoryLimits
from broker.core.model import MAX_LABELS, Change, Kind, LoadDetails, Service
from broker.wires.dbp.codec.dbp_messages import Form
from broker.wires.dbp.dbp_settings import Dbp
from tests.recording.farm import START
from tests.recording.logs import nothing_fails
from tests.wires.dbp.recording import ELSEWHERE, FLOAT32, HERE, TEXT, THERE, DbpFarm, T
from tests.wires.recording import Client, ElkoFarm, desc, found, nothing, told

HERMES = {"interfaces": {"router": {"ip": "127.0.0.1", "port": 5247}}, "reg_time": "Sat Nov 21 07:37:01 2026"}

SECRET = {"type": "auth", "mode": "password", "code": "sesame"}


class Both:
    """Two wires over one registry, and a client and an administrator on the Elko wire."""

    def __init__(self, dbp: Dbp | None = None) -> None:
        self.elko = ElkoFarm()
        self.dbp = DbpFarm(dbp, clock=self.elko.clock, registry=self.elko.registry)
        self.client = self.elko.client("client")
        self.admin = self.elko.admin()
        self.changes: list[Change] = []
        self.elko.registry.watch(self.changes.append)

    def watching(self) -> Client:
        """An administrator that watches services from now on."""
        self.admin.ask("admin", "watch", services=True)
        return self.admin

    def heard(self) -> list[tuple[str, str, bool]]:
        """Service, hostport, and whether it came, of each notice since the last call."""
        return [
            (each["service"], each["hostport"], notice["on"]) for notice in self.admin.take() for each in notice["desc"]
        ]

    def loads(self) -> dict[str, float]:
        """The loads of all providers but the client, by label."""
        [answer] = self.admin.ask("admin", "loaddesc")
        return {each["label"]: each["load"] for each in answer["desc"] if each["label"] != "client"}


@pytest.fixture
def both() -> Iterator[Both]:
    with nothing_fails():
        yield Both()


# where a service is


@pytest.mark.parametrize(
    ("address", "said", "hostport"),
    [
        (THERE, {"ip": "198.51.100.9", "port": 6000}, "198.51.100.9:6000"),
        (THERE, {"ip_addr": "198.51.100.9", "port": 6000}, "198.51.100.9:6000"),
        (THERE, {"ip": "198.51.100.9", "port": "6000"}, "198.51.100.9:6000"),
        (THERE, {"ip": "127.0.0.1", "port": 6000}, f"{THERE}:6000"),
        (THERE, {"ip": "127.1.2.3", "port": 6000}, f"{THERE}:6000"),
        (THERE, {"ip": "localhost", "port": 6000}, f"{THERE}:6000"),
        (THERE, {"ip": "::1", "port": 6000}, f"{THERE}:6000"),
        (THERE, {"ip": "0.0.0.0", "port": 6000}, f"{THERE}:6000"),
        (THERE, {"ip": "::", "port": 6000}, f"{THERE}:6000"),
        (THERE, {"ip": "*", "port": 6000}, f"{THERE}:6000"),
        (THERE, {"port": 6000}, f"{THERE}:6000"),
        (THERE, {"ip": "", "port": 6000}, f"{THERE}:6000"),
        (THERE, {"ip": 7, "port": 6000}, f"{THERE}:6000"),
        (THERE, {"ip": "2001:db8::1", "port": 6000}, "[2001:db8::1]:6000"),
        (THERE, {"ip": "rohan.example", "port": 6000}, "rohan.example:6000"),
        (THERE, {"ip": "198.51.100.9"}, "198.51.100.9:0"),
        (THERE, {"ip": "198.51.100.9", "port": 0}, "198.51.100.9:0"),
        (THERE, {"ip": "198.51.100.9", "port": 65_536}, "198.51.100.9:0"),
        (THERE, {}, f"{THERE}:0"),
        (THERE, HERMES, f"{THERE}:5247"),
        (HERE, HERMES, "127.0.0.1:5247"),
        (HERE, {"ip": "127.0.0.2", "port": 6000}, "127.0.0.2:6000"),
        (HERE, {"ip": "0.0.0.0", "port": 6000}, "127.0.0.1:6000"),
        (HERE, {"ip": "::1", "port": 6000}, "[::1]:6000"),
    ],
)
def test_a_service_is_found_where_others_can_reach_it(
    both: Both, address: str, said: dict[str, Any], hostport: str
) -> None:
    both.dbp.dealer(address).registered("Rohan", **said)
    assert both.client.find("Rohan") == [found(told("Rohan", 2, hostport))]
    assert both.dbp.dealer().find("Rohan") == {"Rohan": said}, "and listed as it was said"


def test_a_service_is_one_provider_with_its_name_as_the_label(both: Both) -> None:
    both.dbp.dealer().registered("Rohan", port=6000, function="riders", topics=None)
    [_, provider] = both.elko.registry.providers()
    assert (provider.label, provider.wire, provider.address) == ("Rohan", "dbp", THERE)
    [service] = provider.services
    assert service == Service(
        "Rohan",
        f"{THERE}:6000",
        provider.id,
        info='{"port": 6000, "function": "riders", "topics": null}',
        lasting=True,
    )


def test_who_waits_for_a_service_on_another_wire_is_told_when_it_registers(both: Both) -> None:
    both.client.say("broker", "find", service="Rohan", wait=30, tag="x")
    both.dbp.wait(10)
    both.dbp.dealer().registered("Rohan", port=6000)
    assert both.client.take() == [found(told("Rohan", 2, f"{THERE}:6000"), tag="x")]


def test_a_monitor_hears_each_registration(both: Both) -> None:
    both.client.say("broker", "find", service="Rohan", wait=-1, monitor=True)
    for port in (6001, 6002):
        both.dbp.dealer().registered("Rohan", port=port)
    assert [answer["desc"][0]["hostport"] for answer in both.client.take()] == [f"{THERE}:6001", f"{THERE}:6002"]


def test_broker_names_and_denied_ones_are_not_registered(both: Both) -> None:
    for name in ("elkobroker.x", "elkobroker", "Error", "mmi.service"):
        assert both.dbp.dealer().register(name)[0][0] == b"(O_O)"
        assert both.client.find(name) == [nothing(name)]
    assert [provider.label for provider in both.elko.registry.providers()] == ["client"]


# loads


def test_the_load_of_a_service_is_told(both: Both) -> None:
    peer = both.dbp.dealer().registered("Rohan", load=0.25)
    both.dbp.dealer().registered("Gondor")
    assert both.loads() == {"Rohan": 0.25, "Gondor": 0.0}
    peer.send("UoU", T, {"load": 3})
    assert both.loads() == {"Rohan": 3.0, "Gondor": 0.0}
    peer.send("UoU", T, {"topics": []})
    assert both.loads() == {"Rohan": 3.0, "Gondor": 0.0}


def test_a_load_that_makes_no_sense_changes_nothing(both: Both) -> None:
    peer = both.dbp.dealer().registered("Rohan", load=0.25)
    loads: list[Any] = [-1, "much", None, True, [], 10**400]
    for load in loads:
        assert peer.ask("UoU", T, {"load": load})[0][0] == b"u.u"
        assert both.loads() == {"Rohan": 0.25}


def test_invalid_details_of_a_load_count_as_missing(both: Both) -> None:
    peer = both.dbp.dealer().registered("Rohan", load=0.25, requests="12", errors=-1, in_flight=0.5, latency_ms=1e300)
    [_, provider] = both.elko.registry.providers()
    assert provider.details == LoadDetails(requests=12)
    peer.send("UoU", T, {"requests": 7})
    [_, provider] = both.elko.registry.providers()
    assert provider.details == LoadDetails(requests=12), "an update without a load is no report"


def test_requests_from_before_a_restart_are_not_reported_again(both: Both) -> None:
    both.dbp.dealer().registered("Rohan", load=0.25, requests=12)
    known = both.elko.registry.providers()
    again = DbpFarm(known=known)
    [provider] = again.registry.providers()
    assert (provider.load, provider.details) == (0.25, None)


def test_who_watches_loads_hears_of_each_that_is_reported_also_of_the_same_again(both: Both) -> None:
    both.admin.ask("admin", "watch", load=True)
    peer = both.dbp.dealer().registered("Rohan", load=0.25)
    for load in (0.25, 0.5, 0.5):
        peer.send("UoU", T, {"load": load})
    peer.send("UoU", T, {"topics": []})
    told = [each["load"] for notice in both.admin.take() for each in notice["desc"]]
    assert told == [0.25, 0.25, 0.5, 0.5]


# changes


def test_an_update_that_changes_only_what_is_said_amends_the_service_and_wakes_nobody(both: Both) -> None:
    peer = both.dbp.dealer().registered("Rohan", port=6000)
    both.watching()
    both.client.say("broker", "find", service="Rohan", wait=-1, monitor=True)
    both.client.take()
    both.changes.clear()
    peer.send("UoU", T, {"topics": ["a", "b"]})
    assert both.heard() == []
    assert both.client.take() == []
    [change] = both.changes
    assert change.kind is Kind.AMENDED
    assert isinstance(change.subject, Service)
    assert change.subject.info == '{"port": 6000, "topics": ["a", "b"]}'
    assert both.client.find("Rohan") == [found(told("Rohan", 2, f"{THERE}:6000"))]


def test_an_update_that_says_the_same_again_changes_nothing(both: Both) -> None:
    peer = both.dbp.dealer().registered("Rohan", port=6000)
    both.changes.clear()
    assert peer.ask("UoU", T, {"port": 6000})[0][0] == b"u.u"
    assert both.changes == []


@pytest.mark.parametrize("changes", [{"port": 7000}, {"ip": "198.51.100.9", "port": 7000}])
def test_an_update_that_moves_a_service_is_heard_by_watchers_and_its_provider_stays(
    both: Both, changes: dict[str, Any]
) -> None:
    peer = both.dbp.dealer().registered("Rohan", port=6000)
    both.watching()
    peer.send("UoU", T, changes)
    there = f"{changes.get('ip', THERE)}:7000"
    assert both.heard() == [("Rohan", f"{THERE}:6000", False), ("Rohan", there, True)]
    assert both.client.find("Rohan") == [found(told("Rohan", 2, there))]
    assert both.dbp.dealer().find("Rohan") == {"Rohan": {"port": 6000, **changes}}


def test_an_update_that_says_the_same_place_in_other_words_moves_nothing(both: Both) -> None:
    peer = both.dbp.dealer().registered("Rohan", port=6000)
    both.watching()
    peer.send("UoU", T, {"ip": "127.0.0.1", "interfaces": {"router": {"ip": "0.0.0.0", "port": 1}}})
    assert both.heard() == []


def test_a_heartbeat_or_a_request_is_no_change(both: Both) -> None:
    peer = both.dbp.dealer().registered("Rohan", heartbeat=1)
    both.changes.clear()
    both.dbp.datagram(b" <3 %b Rohan" % TEXT)
    peer.send("<3", T)
    peer.send("u_U", T, "")
    assert both.changes == []


def test_the_first_heartbeat_amends_a_service_that_said_no_interval_once(both: Both) -> None:
    both.dbp.dealer().registered("Rohan")
    both.changes.clear()
    for _ in range(3):
        both.dbp.datagram(b" <3 %b Rohan" % TEXT)
    assert [change.kind for change in both.changes] == [Kind.AMENDED]
    [service] = both.elko.registry.find("Rohan", "tcp")
    assert not service.lasting


def test_a_registration_in_the_place_of_another_is_another_provider(both: Both) -> None:
    both.dbp.hermes().registered("Rohan", **HERMES)
    both.watching()
    both.dbp.hermes().registered("Rohan", **{**HERMES, "interfaces": {"router": {"ip": "127.0.0.1", "port": 5248}}})
    assert both.heard() == [("Rohan", "127.0.0.1:5247", False), ("Rohan", "127.0.0.1:5248", True)]
    assert both.client.find("Rohan") == [found(told("Rohan", 3, "127.0.0.1:5248"))]
    assert len(both.elko.registry.providers()) == 2


@pytest.mark.parametrize("way", ["silence", "router", "udp", "address"])
def test_however_a_service_goes_watchers_hear_it_once(both: Both, way: str) -> None:
    peer = both.dbp.dealer().registered("Rohan", port=6000, heartbeat=1)
    both.watching()
    if way == "silence":
        both.dbp.wait(3.2)
    elif way == "router":
        peer.send("</3", T)
    elif way == "udp":
        both.dbp.datagram(b" </3 %b Rohan" % TEXT)
    else:
        both.dbp.datagram(b" <3 %b Rohan" % TEXT, (THERE, 7))
        both.dbp.datagram(b" </3 %b" % TEXT, (THERE, 7))
    both.dbp.wait(5)
    assert both.heard() == [("Rohan", f"{THERE}:6000", False)]
    assert both.client.find("Rohan") == [nothing("Rohan")]
    assert "status" in both.dbp.dealer().find("Rohan")
    assert both.loads() == {}


def test_the_end_of_a_connection_is_no_end_of_a_service(both: Both) -> None:
    both.watching()
    both.dbp.hermes().registered("Rohan", **HERMES).close()
    assert [each[2] for each in both.heard()] == [True]
    assert both.client.find("Rohan")[0]["desc"][0]["hostport"] == "127.0.0.1:5247"


def test_several_providers_of_one_name_on_both_wires_are_all_found_in_their_order(both: Both) -> None:
    first, last = both.elko.client("a"), both.elko.client("b")
    first.offer(desc("Rohan", "h:1"))
    both.dbp.dealer().registered("Rohan", port=6000)
    last.offer(desc("Rohan", "h:2"))
    [answer] = both.client.find("Rohan")
    assert [each["hostport"] for each in answer["desc"]] == ["h:1", f"{THERE}:6000", "h:2"]
    assert both.dbp.dealer().find("Rohan") == {"Rohan": {"port": 6000}}, "the one that says something of itself"


# heartbeats


class Beating:
    """Keeps each heartbeat that the registry tells: of which provider, and the time that it gave."""

    def __init__(self, dbp: DbpFarm) -> None:
        self.told: list[tuple[int, float | None]] = []
        dbp.registry.watch_beats(lambda provider, sent: self.told.append((provider, sent)))


@pytest.mark.parametrize(
    ("time", "sent"),
    [(TEXT, START), (b"1.5e3", 1_500.0), (struct.pack("<d", START + 0.5), START + 0.5), (FLOAT32, None)],
)
def test_each_heartbeat_over_the_router_is_told_with_its_time_if_that_is_exact(
    both: Both, time: bytes, sent: float | None
) -> None:
    beating = Beating(both.dbp)
    peer = both.dbp.dealer(time=time).registered("Rohan", port=6000, heartbeat=1)
    assert beating.told == [], "a registration is none"
    for _ in range(2):
        peer.send("<3", T, "Rohan")
    assert beating.told == [(both.dbp.entry("Rohan").provider, sent)] * 2


def test_heartbeats_by_udp_are_told_for_each_service_at_their_source(both: Both) -> None:
    peers = [both.dbp.dealer().registered(name, heartbeat=1) for name in ("Rohan", "Gondor")]
    beating = Beating(both.dbp)
    ids = [both.dbp.entry(name).provider for name in ("Rohan", "Gondor")]
    for name in (b"Rohan", b"Gondor"):
        both.dbp.datagram(b" <3 %b %b" % (TEXT, name))
    assert beating.told == [(id, START) for id in ids]
    beating.told.clear()
    both.dbp.datagram(b" <3 %b" % TEXT)
    assert beating.told == [(id, START) for id in ids]
    assert len(peers) == 2


def test_a_heartbeat_that_is_refused_or_of_nobody_is_not_told(both: Both) -> None:
    both.dbp.dealer().registered("Rohan", heartbeat=1)
    both.elko.client("bank server").offer(desc("bank", "h:1"))
    beating = Beating(both.dbp)
    both.dbp.datagram(b" <3 %b Rohan" % TEXT, (ELSEWHERE, 40_000))
    both.dbp.dealer(ELSEWHERE).send("<3", T, "Rohan")
    for name in (b"bank", b"nobody"):
        both.dbp.datagram(b" <3 %b %b" % (TEXT, name))
    assert beating.told == []


def test_the_first_heartbeat_of_a_service_without_a_contract_is_told_and_agrees_on_an_interval(both: Both) -> None:
    both.dbp.dealer().registered("Rohan", port=6000)
    id = both.dbp.entry("Rohan").provider
    [service] = both.elko.registry.find("Rohan", "tcp")
    assert (service.interval, service.lasting) == (None, True)
    beating = Beating(both.dbp)
    both.dbp.datagram(b" <3 %b Rohan" % TEXT)
    [service] = both.elko.registry.find("Rohan", "tcp")
    assert (service.interval, service.lasting) == (Dbp().interval, False)
    assert beating.told == [(id, START)]


def test_the_agreed_interval_is_the_registrys_also_after_an_update(both: Both) -> None:
    settings = both.dbp.catalogue.dbp
    peer = both.dbp.dealer().registered("Rohan", port=6000, heartbeat=2)
    assert [service.interval for service in both.elko.registry.find("Rohan", "tcp")] == [2]
    for wanted, agreed in ((0.5, 0.5), (0.001, settings.least_interval), (1e5, 100.0)):
        peer.ask("UoU", T, {"heartbeat": wanted})
        assert [service.interval for service in both.elko.registry.find("Rohan", "tcp")] == [agreed]


@pytest.mark.parametrize(
    ("way", "why"),
    [("silence", "expired"), ("goodbye", "withdrawn"), ("replaced", "withdrawn"), ("moved", "withdrawn")],
)
def test_why_a_service_went(both: Both, way: str, why: str) -> None:
    peer = both.dbp.dealer().registered("Rohan", port=6000, heartbeat=1)
    both.changes.clear()
    if way == "silence":
        both.dbp.wait(5)
    elif way == "goodbye":
        peer.send("</3", T)
    elif way == "replaced":
        both.dbp.dealer().registered("Rohan", port=6000, heartbeat=1)
    else:
        peer.ask("UoU", T, {"port": 6001})
    assert [change.why for change in both.changes if change.kind is Kind.WITHDRAWN] == [why]


@pytest.mark.parametrize("way", ["replaced", "moved"])
def test_a_service_outlives_a_change_that_a_lower_limit_refuses(both: Both, way: str) -> None:
    peer = both.dbp.dealer().registered("Rohan", port=6000)
    both.dbp.dealer().registered("Gondor", port=6000)
    both.elko.registry.most_services = 1
    if way == "replaced":
        [reply] = both.dbp.dealer().register("Rohan", port=6001)
        assert reply[0] != b"OwO"
    else:
        peer.ask("UoU", T, {"port": 6001})
    assert [service.hostport for service in both.elko.registry.find("Rohan", "tcp")] == [f"{THERE}:6000"]
    assert both.dbp.catalogue.get("Rohan") is not None


@pytest.mark.parametrize("size", [8_000, 600])
@pytest.mark.parametrize(("address", "other"), [(THERE, ELSEWHERE), (HERE, "127.0.0.2")])
def test_a_service_outlives_another_address_that_has_no_memory(both: Both, size: int, address: str, other: str) -> None:
    registry, catalogue = both.elko.registry, both.dbp.catalogue
    info = b'{"port": 6000, "about": "%b"}' % (b"x" * size)
    catalogue.register("Rohan", info, address, Form.TEXT, None)
    memory = registry._memory = MemoryBudget(MemoryLimits(address=30_000))
    memory.store(other, 20_000)
    with pytest.raises(Refusal):
        catalogue.register("Rohan", info, other, Form.TEXT, None)
    assert [service.hostport for service in registry.find("Rohan", "tcp")] == [f"{address}:6000"]


def test_a_service_outlives_labels_for_which_its_address_has_no_memory(both: Both) -> None:
    registry, catalogue = both.elko.registry, both.dbp.catalogue
    memory = registry._memory = MemoryBudget(MemoryLimits(address=30_000))
    catalogue.register("Rohan", b'{"port": 6000, "about": "%b"}' % (b"x" * 700), THERE, Form.TEXT, None)
    memory.store(THERE, 22_000 - memory.of(THERE))
    info = b'{"port": 6000, "meta": {"a": "%b", "b": "%b", "c": "%b"}}' % ((b"x" * 200,) * 3)
    with pytest.raises(Refusal):
        catalogue.register("Rohan", info, THERE, Form.TEXT, None)
    assert [service.hostport for service in registry.find("Rohan", "tcp")] == [f"{THERE}:6000"]


def test_an_update_for_which_the_address_has_no_memory_is_denied_and_changes_nothing(both: Both) -> None:
    registry, catalogue = both.elko.registry, both.dbp.catalogue
    memory = registry._memory = MemoryBudget(MemoryLimits(address=30_000))
    peer = both.dbp.dealer().registered("Rohan", port=6000, heartbeat=1.0)
    memory.store(THERE, 20_000)
    # Short services are not counted. This one would be counted as a whole, though it grows by a little only.
    about = {"about": "x" * 300, "heartbeat": 5.0, "liveness": 5, "load": 7}
    [[command, _, reason]] = peer.ask("UoU", T, about)
    assert (command, b"memory" in reason) == (b"(O_O)", True)
    assert peer.find("Rohan") == {"Rohan": {"port": 6000, "heartbeat": 1.0}}
    assert both.loads() == {"Rohan": 0.0}
    entry = catalogue.get("Rohan")
    assert entry is not None
    assert (entry.interval, entry.liveness) == (1.0, 3)
    memory.store(THERE, -20_000)
    assert peer.ask("UoU", T, about)[0][0] == b"u.u"
    assert peer.find("Rohan") == {"Rohan": {"port": 6000, **about}}


def test_short_services_cost_an_address_without_memory_nothing(both: Both) -> None:
    memory = both.elko.registry._memory = MemoryBudget(MemoryLimits(address=30_000))
    memory.store(THERE, 30_000)
    peer = both.dbp.dealer().registered("Rohan", port=6000, load=1)
    assert peer.ask("UoU", T, {"load": 0.25})[0][0] == b"u.u"
    assert both.loads() == {"Rohan": 0.25}
    both.dbp.dealer().registered("Rohan", port=6000, load=0.125)


# the reverse


def test_a_service_of_elko_is_listed_without_its_password(both: Both) -> None:
    server = both.elko.client("bank server")
    server.offer(desc("bank", "198.51.100.9:6000", auth=SECRET, label="the bank"))
    server.say("client", "load", factor=0.5)
    peer = both.dbp.dealer(ELSEWHERE).registered("Rohan", port=6000)
    listed = peer.find()
    assert list(listed) == ["bank", "Rohan"]
    assert listed["Rohan"] == {"port": 6000}
    bank = listed["bank"]
    assert (bank["ip"], bank["port"], bank["hostport"]) == ("198.51.100.9", 6000, "198.51.100.9:6000")
    assert (bank["label"], bank["load"], bank["wire"]) == ("the bank", 0.5, "elko")
    assert bank["interfaces"]["tcp"] == {"ip": "198.51.100.9", "port": 6000}
    for names in ((), ("bank",), ("bank", "Rohan")):
        [reply] = peer.ask("u_U", T, *(names or ("",)))
        assert b"sesame" not in reply[2]
        assert b"password" not in reply[2]


def test_a_service_that_left_the_other_wire_is_inactive(both: Both) -> None:
    server = both.elko.client("bank server")
    server.offer(desc("bank", "h:1"))
    server.drop()
    answer = both.dbp.dealer().find("bank")
    assert answer["status"] == "inactive"
    assert both.dbp.dealer().find() == {}


def test_a_name_of_the_other_wire_may_be_registered_too_and_neither_expires_for_the_other(both: Both) -> None:
    server = both.elko.client("bank server")
    server.offer(desc("bank", "h:1"))
    both.dbp.dealer().registered("bank", port=6000, heartbeat=1)
    both.dbp.wait(4)
    assert both.client.find("bank") == [found(told("bank", 2, "h:1"))]
    assert both.dbp.dealer().find("bank")["bank"]["hostport"] == "h:1"


def test_a_heartbeat_or_a_disconnect_of_a_service_of_the_other_wire_does_nothing_to_it(both: Both) -> None:
    both.elko.client("bank server").offer(desc("bank", "h:1"))
    both.dbp.datagram(b" <3 %b bank" % TEXT)
    both.dbp.datagram(b" </3 %b bank" % TEXT)
    both.dbp.dealer().send("</3", T, "bank")
    assert both.dbp.dealer().ask("UoU", T, {"name": "bank", "port": 1})[0][0] == b"(O_O)"
    both.dbp.wait(5)
    assert both.client.find("bank") == [found(told("bank", 2, "h:1"))]


# bounds


def test_no_more_services_than_configured_are_taken_and_those_there_are_may_come_again() -> None:
    with nothing_fails():
        both = Both(Dbp(services=3))
        for number in range(3):
            both.dbp.dealer().registered(f"s{number}", heartbeat=1)
        [[command, _, reason]] = both.dbp.dealer().register("s3")
        assert command == b"(O_O)"
        assert b"3" in reason
        both.dbp.dealer().registered("s1", heartbeat=1)
        both.dbp.wait(4)
        both.dbp.dealer().registered("s3")


def test_a_refused_update_changes_nothing(both: Both) -> None:
    peer = both.dbp.dealer().registered("Rohan", port=6000)
    both.changes.clear()
    big = {"a": "x" * 9_000}
    assert peer.ask("UoU", T, big)[0][0] == b"u.u"
    both.changes.clear()
    assert peer.ask("UoU", T, {"b": "x" * 9_000, "port": 7000, "heartbeat": 1, "load": 7})[0][0] == b"(O_O)"
    assert both.changes == []
    assert peer.find("Rohan") == {"Rohan": {"port": 6000, **big}}
    assert both.loads() == {"Rohan": 0.0}
    both.dbp.wait(10)
    assert both.client.find("Rohan") == [found(told("Rohan", 2, f"{THERE}:6000"))]


REFUSED = {"white space": {"ip": "h h"}, "labels": {"tags": [f"t{number}" for number in range(MAX_LABELS + 1)]}}
"""Members of an info that the registry refuses."""


@pytest.mark.parametrize("info", REFUSED.values(), ids=list(REFUSED))
@pytest.mark.parametrize("address", [THERE, ELSEWHERE])
def test_a_refused_registration_takes_no_name_from_the_service_that_has_it(
    both: Both, info: dict[str, Any], address: str
) -> None:
    peer = both.dbp.dealer().registered("Rohan", port=6000)
    both.changes.clear()
    assert both.dbp.dealer(address).register("Rohan", port=7000, **info)[0][0] == b"(O_O)"
    assert both.changes == []
    assert not peer.closed
    assert peer.find("Rohan") == {"Rohan": {"port": 6000}}
    assert both.client.find("Rohan") == [found(told("Rohan", 2, f"{THERE}:6000"))]


@pytest.mark.parametrize("info", REFUSED.values(), ids=list(REFUSED))
def test_an_update_that_the_registry_refuses_is_denied(both: Both, info: dict[str, Any]) -> None:
    peer = both.dbp.dealer().registered("Rohan", port=6000)
    both.changes.clear()
    assert peer.ask("UoU", T, {"heartbeat": 1, "load": 7, **info})[0][0] == b"(O_O)"
    assert both.changes == []
    assert peer.ask("UoU", T, {"topics": ["a"]})[0][0] == b"u.u"
    assert peer.find("Rohan") == {"Rohan": {"port": 6000, "topics": ["a"]}}
    assert both.loads() == {"Rohan": 0.0}
