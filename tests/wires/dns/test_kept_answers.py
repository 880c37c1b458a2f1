"""Kept responses: sent again as long as the zone would make the same ones, and never longer."""

from __future__ import annotations

import random
from typing import Any

import attrs
import dns.edns
import dns.flags
import dns.message
import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.core.model import Check, CheckState, Policy, Service
from broker.wires.dns.codec.dns_query import decode
from broker.wires.dns.codec.dns_response import limit_of
from broker.wires.dns.dns_settings import Dns
from broker.wires.dns.sessions import responder
from tests.recording.farm import GRACE
from tests.wires.dns.recording import TTL, UNLIMITED, DnsFarm, code, shown
from tests.wires.recording import ElkoFarm, desc, remembered

BANK = "bank.service.elkobroker."


class Rotation:
    """The place that comes first: ``at``, of as many as there are."""

    def __init__(self) -> None:
        self.at = 0

    def __call__(self, count: int) -> int:
        return self.at % count


def query(name: str = BANK, kind: str = "SRV", **options: Any) -> bytes:
    return dns.message.make_query(name, kind, id=7, **options).to_wire()


def is_kept(farm: DnsFarm, data: bytes) -> bool:
    """Ask, and return whether the response to the same question is kept now."""
    farm.datagram(data)
    return farm.responder.kept(data) is not None


@pytest.fixture
def farm() -> DnsFarm:
    farm = DnsFarm(begin=Rotation())
    farm.client().offer(desc("bank", "192.0.2.1:1"), desc("bank", "192.0.2.2:2"))
    return farm


def test_a_response_is_kept_for_any_id_and_counted(farm: DnsFarm) -> None:
    first = farm.ask(BANK, "SRV")
    for _ in range(3):
        again = farm.ask(BANK, "SRV")  # of another id
        assert (shown(again), again.answer[0].ttl) == (shown(first), TTL)
    assert farm.count("dns_responses.noerror") == 4
    assert farm.count("dns_queries.udp") == 4


def test_queries_that_differ_in_a_byte_have_responses_of_their_own(farm: DnsFarm) -> None:
    assert is_kept(farm, query())
    for other in (
        query(BANK.upper()),
        query(kind="A"),
        query(use_edns=0, payload=1232),
        query(use_edns=0, payload=4096),
        query(want_dnssec=True),
        query(flags=0),
    ):
        assert farm.responder.kept(other) is None
        assert is_kept(farm, other)
        [data] = farm.datagram(other)
        assert data[12:41] == other[12:41], "the question is repeated as it was asked"


@pytest.mark.parametrize(
    "options",
    [
        [dns.edns.GenericOption(dns.edns.OptionType.COOKIE, b"12345678")],
        [dns.edns.GenericOption(dns.edns.OptionType.PADDING, b"\0" * 9)],
    ],
)
def test_queries_with_options_are_not_kept(farm: DnsFarm, options: list[Any]) -> None:
    assert not is_kept(farm, query(use_edns=0, options=options))


@pytest.mark.parametrize("name", ["nothing.service.elkobroker.", "elkobroker.", "c0000201.addr.elkobroker.", "com."])
def test_only_responses_about_services_are_kept(farm: DnsFarm, name: str) -> None:
    assert not is_kept(farm, query(name))


def test_each_place_comes_first_as_often_as_the_draw_says(farm: DnsFarm) -> None:
    rotation = farm.responder._begin
    assert isinstance(rotation, Rotation)
    for _ in range(2):
        for rotation.at in (0, 1):
            assert shown(farm.ask(BANK, "A"))[0] == f"A 192.0.2.{rotation.at + 1}"


def test_a_load_changes_the_weights_at_once() -> None:
    farm = DnsFarm()
    busy, idle = farm.client(), farm.client()
    for number, client in enumerate((busy, idle), 1):
        client.offer(desc("bank", f"192.0.2.{number}:1"))
    ids = farm.farm.registry.ids()
    for load in (0.0, 1.0, 3.0):
        farm.farm.registry.load(ids[0], load)
        farm.farm.registry.load(ids[1], 1.0)
        assert is_kept(farm, query())
        before = shown(farm.ask(BANK, "SRV"))
        farm.farm.registry.load(ids[0], load)  # the same load again
        assert farm.responder.kept(query()) is not None
        farm.farm.registry.load(ids[0], load + 9.0)
        assert farm.responder.kept(query()) is None
        assert shown(farm.ask(BANK, "SRV")) != before
        assert is_kept(farm, query(kind="A")), "addresses have no weights"
        farm.farm.registry.load(ids[0], load + 10.0)
        assert farm.responder.kept(query(kind="A")) is not None


def test_a_failing_check_changes_the_order_at_once(farm: DnsFarm) -> None:
    registry = farm.farm.registry
    registry.use_panic(0.9)
    service = registry.find("bank", "tcp")[0]
    farm.ask(BANK, "A")
    registry.set_check(service, Check(CheckState.FAILING, "refused", 0.0), Policy.LAST)
    assert shown(farm.ask(BANK, "A")) == ["A 192.0.2.2", "A 192.0.2.1"]
    registry.set_check(service, Check(CheckState.FAILING, "refused", 0.0), Policy.HIDE)
    assert shown(farm.ask(BANK, "A")) == ["A 192.0.2.2"]
    registry.use_panic(0.1)
    assert shown(farm.ask(BANK, "A")) == ["A 192.0.2.2", "A 192.0.2.1"]
    registry.set_check(service, None)
    assert shown(farm.ask(BANK, "A")) == ["A 192.0.2.1", "A 192.0.2.2"]


def test_rights_that_change_change_the_answer_at_once() -> None:
    farm = DnsFarm()
    allowed = {"bank"}
    zone = attrs.evolve(farm.zone, may=lambda name: name in allowed)
    farm = DnsFarm(farm.farm)
    farm.zone = farm.responder.zone = zone
    farm.responder._kept._zone = zone
    farm.client().offer(desc("bank", "192.0.2.1:1"))
    assert is_kept(farm, query())
    allowed.clear()
    assert code(farm.ask(BANK, "SRV")) == "NXDOMAIN"
    allowed.add("bank")
    assert code(farm.ask(BANK, "SRV")) == "NOERROR"


def test_nothing_kept_is_sent_while_the_broker_drains(farm: DnsFarm) -> None:
    assert is_kept(farm, query())
    farm.responder.draining = True
    assert code(farm.ask(BANK, "SRV")) == "REFUSED"
    farm.responder.draining = False
    assert code(farm.ask(BANK, "SRV")) == "NOERROR"


def test_kept_responses_are_limited_as_others() -> None:
    farm = DnsFarm(dns=Dns(endpoint="tcp:53", response_rate=1.0, response_burst=2))
    farm.client().offer(desc("bank", "192.0.2.1:1"))
    answers = [data for _ in range(6) for data in farm.datagram(query())]
    assert [bool(dns.message.from_wire(data).flags & dns.flags.TC) for data in answers] == [False] * 2 + [True] * 2
    assert farm.count("dns_limited.dropped") == 2


def test_another_ttl_and_domain_count_at_once(farm: DnsFarm) -> None:
    farm.ask(BANK, "SRV")
    farm.responder.dns = attrs.evolve(UNLIMITED, ttl=77)
    assert farm.ask(BANK, "SRV").answer[0].ttl == 77
    farm.responder.dns = attrs.evolve(UNLIMITED, domain="example.")
    assert code(farm.ask(BANK, "SRV")) == "REFUSED"


def test_no_data_has_the_number_of_its_second(farm: DnsFarm) -> None:
    assert is_kept(farm, query(kind="AAAA"))
    serials = []
    for _ in range(3):
        serials += [rdata.serial for rrset in farm.ask(BANK, "AAAA").authority for rdata in rrset]
        farm.clock.advance(1)
    assert serials == [serials[0], serials[0] + 1, serials[0] + 2]


def test_restored_services_go_with_the_end_of_the_grace_period() -> None:
    old = remembered(1)
    old = attrs.evolve(old, services=(Service("bank", "192.0.2.9:1", 1),))
    farm = DnsFarm(ElkoFarm(restored=[old]))
    assert is_kept(farm, query())
    farm.clock.advance(GRACE)
    assert code(farm.ask(BANK, "SRV")) == "NXDOMAIN"


def test_a_label_of_a_provider_is_not_kept() -> None:
    farm = DnsFarm()
    farm.client("blue").offer(desc("bank", "192.0.2.1:1"))
    [provider] = farm.farm.registry.ids()
    name = "_bank._blue.service.elkobroker."
    assert is_kept(farm, query("_bank._tcp.service.elkobroker."))
    assert not is_kept(farm, query(name))
    farm.farm.registry.relabel(provider, "green")
    assert code(farm.ask(name, "SRV")) == "NXDOMAIN"


def test_what_is_kept_is_bounded(farm: DnsFarm, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(responder, "KEPT_BYTES", 20_000)
    rng = random.Random(1)
    names = {"".join(rng.choice((c, c.upper())) for c in BANK) for _ in range(100)}
    for name in names:
        farm.ask(name, "SRV")
        assert farm.responder._kept._bytes < 22_000
        assert len(farm.responder._kept._kept) <= 22_000 / responder.ENTRY_BYTES


# the same as without


_EVENTS = st.lists(
    st.one_of(
        st.tuples(st.just("offer"), st.integers(0, 2), st.sampled_from(["bank", "Bank", "a.bank"]), st.integers(1, 3)),
        st.tuples(st.just("auth"), st.integers(0, 2), st.sampled_from(["bank"]), st.integers(1, 3)),
        st.tuples(st.just("withdraw"), st.integers(0, 2), st.sampled_from(["bank", "Bank", "a.bank"]), st.just(0)),
        st.tuples(st.just("load"), st.integers(0, 2), st.just(""), st.integers(0, 3)),
        st.tuples(st.just("check"), st.integers(0, 2), st.sampled_from(["bank", "Bank"]), st.integers(0, 2)),
        st.tuples(st.just("relabel"), st.integers(0, 2), st.sampled_from(["tcp", "blue"]), st.just(0)),
        st.tuples(st.just("time"), st.just(0), st.just(""), st.integers(0, 2)),
        st.tuples(st.just("first"), st.just(0), st.just(""), st.integers(0, 5)),
    ),
    max_size=25,
)

_QUERIES = [
    query(name, kind)
    for name in (
        BANK,
        "a.bank.service.elkobroker.",
        "_bank._tcp.service.elkobroker.",
        "_bank._blue.service.elkobroker.",
    )
    for kind in ("SRV", "A", "AAAA", "TXT", "ANY")
]


@given(_EVENTS)
def test_each_answer_is_what_it_would_be_without(events: list[tuple[str, int, str, int]]) -> None:
    rotation = Rotation()
    farm = DnsFarm(begin=rotation)
    registry = farm.farm.registry
    clients = [farm.client(f"label {number}") for number in range(3)]
    for what, who, name, number in events:
        provider = registry.ids()[who]
        if what == "offer":
            clients[who].offer(desc(name, f"192.0.2.{number}:{80 + who}"))
        elif what == "auth":
            clients[who].offer(desc(name, f"192.0.2.{number}:9", auth={"type": "auth", "mode": "password"}))
        elif what == "withdraw":
            registry.withdraw(provider, [name])
        elif what == "load":
            registry.load(provider, float(number))
        elif what == "check":
            for service in [each for each in registry.services_of(provider) if each.name == name][:1]:
                check = Check(CheckState.FAILING, "refused", 0.0) if number else None
                registry.set_check(service, check, (Policy.SHOW, Policy.LAST, Policy.HIDE)[number])
        elif what == "relabel":
            registry.relabel(provider, name)
        elif what == "time":
            farm.clock.advance(number / 2)
        else:
            rotation.at = number
        for data in _QUERIES:
            asked = decode(data)
            [answer] = farm.datagram(data)
            assert answer == farm.responder.respond(asked, limit_of(asked.edns))
            assert farm.datagram(data) == [answer]
