"""The zone: which names exist, what they have, and how a response says that there is nothing."""

from __future__ import annotations

from itertools import count

import dns.flags
import dns.message
import pytest
from twisted.internet.task import Clock
from twisted.logger import capturedLogs

from broker.core.cluster.cluster_interfaces import Registration, key_of
from broker.core.cluster.cluster_registry import ClusterRegistry
from broker.core.model import NOBODY, Auth, Provider, Rights, Service
from broker.core.registered_services import Restored
from broker.wires.dns.codec.dns_query import decode
from broker.wires.dns.dns_settings import Dns
from broker.wires.dns.dns_wire import open_dns
from broker.wires.dns.zone import MAX_BELOW, MAX_DEPTH, MAX_PLACES
from tests.recording.farm import GRACE
from tests.wires.contexts import context
from tests.wires.dns.recording import TTL, UNLIMITED, DnsFarm, code, shown
from tests.wires.recording import ElkoFarm, desc, remembered

SOA = f"SOA ns.elkobroker. hostmaster.elkobroker. 0 3600 600 86400 {TTL}"


@pytest.fixture
def farm() -> DnsFarm:
    return DnsFarm()


# what a service has


def test_an_address_with_a_port_has_all_types(farm: DnsFarm) -> None:
    farm.client("ctx-1").offer(desc("bank", "192.0.2.1:9000"), desc("bank", "[2001:db8::1]:9001"))
    srv = farm.ask("bank.service.elkobroker.", "SRV")
    assert shown(srv) == [
        "SRV 0 1000 9000 c0000201.addr.elkobroker.",
        "SRV 0 1000 9001 20010db8000000000000000000000001.addr.elkobroker.",
    ]
    assert [rrset.to_text() for rrset in srv.additional] == [
        f"c0000201.addr.elkobroker. {TTL} IN A 192.0.2.1",
        f"20010db8000000000000000000000001.addr.elkobroker. {TTL} IN AAAA 2001:db8::1",
    ]
    assert shown(farm.ask("bank.service.elkobroker.", "A")) == ["A 192.0.2.1"]
    assert shown(farm.ask("bank.service.elkobroker.", "AAAA")) == ["AAAA 2001:db8::1"]
    assert shown(farm.ask("bank.service.elkobroker.", "TXT")) == [
        'TXT "name=bank" "protocol=tcp" "hostport=192.0.2.1:9000" "provider=1"',
        'TXT "name=bank" "protocol=tcp" "hostport=[2001:db8::1]:9001" "provider=1"',
    ]
    for rrset in srv.answer:
        assert (rrset.ttl, srv.flags & dns.flags.AA) == (TTL, dns.flags.AA)


def test_the_synthetic_names_have_their_addresses(farm: DnsFarm) -> None:
    assert shown(farm.ask("c0000201.addr.elkobroker.", "A")) == ["A 192.0.2.1"]
    assert shown(farm.ask("20010DB8000000000000000000000001.addr.elkobroker.", "AAAA")) == ["AAAA 2001:db8::1"]
    assert code(farm.ask("c0000201.addr.elkobroker.", "AAAA")) == "NODATA"
    for no in ("c00002", "c000020g", "c00002010", "x", "20010db8"[:7]):
        assert code(farm.ask(f"{no}.addr.elkobroker.")) == "NXDOMAIN", no


def test_a_host_name_is_a_target_and_is_not_resolved(farm: DnsFarm) -> None:
    farm.client().offer(desc("bank", "DB-1.Example.com:80"))
    srv = farm.ask("bank.service.elkobroker.", "SRV")
    assert (shown(srv), srv.additional) == (["SRV 0 1000 80 db-1.example.com."], [])
    assert code(farm.ask("bank.service.elkobroker.", "A")) == "NODATA"


@pytest.mark.parametrize(
    ("hostport", "types"),
    [
        ("192.0.2.1", "A TXT"),
        ("host.example", "TXT"),
        ("::1", "AAAA TXT"),
        ("[::1]", "AAAA TXT"),
        ("[::ffff:192.0.2.1]:80", "A SRV TXT"),
        ("0.0.0.0:80", "TXT"),
        ("[::]:80", "TXT"),
        ("host:0", "TXT"),
        ("host:http", "TXT"),
        ("192.0.2:80", "TXT"),
        ("999.0.2.1:80", "TXT"),
        ("[fe80::1%eth0]:80", "TXT"),
        ("unix:/run/x.sock", "TXT"),
        (":80", "TXT"),
        ("a..b:80", "TXT"),
        ("-a:80", "TXT"),
        ("é:80", "TXT"),
        (f"{'a' * 64}:80", "TXT"),
        (f"{'.'.join(['a' * 63] * 4)}:80", "TXT"),
        ("under_score:80", "SRV TXT"),
        ("host.example.:80", "SRV TXT"),
    ],
)
def test_a_hostport_that_dns_cannot_express_is_in_txt_only(farm: DnsFarm, hostport: str, types: str) -> None:
    farm.client().offer(desc("bank", hostport))
    found = [kind for kind in ("A", "AAAA", "SRV", "TXT") if farm.ask("bank.service.elkobroker.", kind).answer]
    assert " ".join(found) == types
    # all types is an answer in each case
    assert shown(farm.ask("bank.service.elkobroker.", "ANY")) == ['HINFO "RFC8482" ""']


def test_txt_leaves_out_values_too_long_for_a_string(farm: DnsFarm) -> None:
    farm.client("l" * 300).offer(desc("bank", "h" * 250 + ":1", label="l" * 300))
    assert shown(farm.ask("bank.service.elkobroker.", "TXT")) == ['TXT "name=bank" "protocol=tcp" "provider=1"']


def test_services_at_one_place_are_one_record(farm: DnsFarm) -> None:
    for load in (0.5, 2.0):
        client = farm.client()
        client.offer(desc("bank", "192.0.2.1:80"))
        client.say("broker", "load", factor=load)
    assert shown(farm.ask("bank.service.elkobroker.", "A")) == ["A 192.0.2.1"]
    # the weight of the least loaded: 1000 / (1 + 0.5 / 1.25)
    assert shown(farm.ask("bank.service.elkobroker.", "SRV")) == ["SRV 0 714 80 c0000201.addr.elkobroker."]


def test_the_least_loaded_has_the_most_weight(farm: DnsFarm) -> None:
    for number, load in enumerate((0.0, 0.2, 1.0), 1):
        client = farm.client()
        client.offer(desc("bank", f"192.0.2.{number}:80"))
        client.say("broker", "load", factor=load)
    weights = [line.split()[2] for line in shown(farm.ask("bank.service.elkobroker.", "SRV"))]
    assert weights == ["1000", "667", "286"]


def test_a_service_with_a_secret_does_not_exist(farm: DnsFarm) -> None:
    client = farm.client()
    client.offer(desc("vault", "192.0.2.1:1", auth={"type": "auth", "mode": "password", "code": "x"}))
    client.offer(desc("bank", "192.0.2.2:1", auth={"type": "auth", "mode": "reservation"}))
    client.offer(desc("bank", "192.0.2.3:1", auth={"type": "auth", "mode": "open"}))
    assert code(farm.ask("vault.service.elkobroker.", "TXT")) == "NXDOMAIN"
    assert shown(farm.ask("bank.service.elkobroker.")) == ["A 192.0.2.3"]


def test_the_brokers_own_names_do_not_exist(farm: DnsFarm) -> None:
    registry = farm.farm.registry
    registry.offer_own([Service("elkobroker.inner", "192.0.2.1:1", 0), Service("broker-client", "192.0.2.2:1", 0)])
    assert code(farm.ask("elkobroker.inner.service.elkobroker.")) == "NXDOMAIN"
    # its listeners exist, as they do for a find
    assert shown(farm.ask("broker-client.service.elkobroker.")) == ["A 192.0.2.2"]


def test_the_listeners_of_a_wire_have_one_name() -> None:
    farm = DnsFarm(brokers=lambda: [{"elko broker": "tcp://192.0.2.1:9060"}])
    [place] = shown(farm.ask("_elko._tcp.broker.elkobroker.", "SRV"))
    assert place.endswith(" 9060 c0000201.addr.elkobroker.")
    for name in ("xelko", "elko", "_x"):
        assert code(farm.ask(f"{name}._tcp.broker.elkobroker.", "SRV")) == "NXDOMAIN", name


# names


def test_case_is_echoed_and_not_compared(farm: DnsFarm) -> None:
    client = farm.client()
    client.offer(desc("bank", "192.0.2.1:1"), desc("BANK", "192.0.2.2:2"), desc("Bänk", "192.0.2.3:3"))
    response = farm.ask("bAnK.sErViCe.ElKoBrOkEr.")
    assert response.question[0].name.labels == (b"bAnK", b"sErViCe", b"ElKoBrOkEr", b"")
    assert response.answer[0].name.labels == (b"bAnK", b"sErViCe", b"ElKoBrOkEr", b"")
    assert shown(response) == ["A 192.0.2.1", "A 192.0.2.2"]
    assert shown(farm.ask(r"B\195\164NK.service.elkobroker.")) == ["A 192.0.2.3"]


def test_a_protocol_and_a_label_select(farm: DnsFarm) -> None:
    client = farm.client("Blue")
    client.offer(desc("bank", "192.0.2.1:1"), desc("bank", "192.0.2.2:2", protocol="ws"))
    client.offer(desc("bank", "192.0.2.3:3", label="green"))
    farm.client("green").offer(desc("bank", "192.0.2.4:4"))
    assert len(shown(farm.ask("bank.service.elkobroker."))) == 4
    assert shown(farm.ask("_bank._tcp.service.elkobroker.")) == ["A 192.0.2.1", "A 192.0.2.3", "A 192.0.2.4"]
    assert shown(farm.ask("_BANK._WS.service.elkobroker.")) == ["A 192.0.2.2"]
    assert shown(farm.ask("_bank._blue.service.elkobroker.")) == ["A 192.0.2.1", "A 192.0.2.2"]
    assert shown(farm.ask("_bank._green.service.elkobroker.")) == ["A 192.0.2.3", "A 192.0.2.4"]
    for no in ("_bank._udp", "bank._tcp", "_post._tcp", "__bank._tcp"):
        assert code(farm.ask(f"{no}.service.elkobroker.")) == "NXDOMAIN", no


def test_dots_in_a_name_are_labels(farm: DnsFarm) -> None:
    farm.client().offer(desc("eu.bank.v1", "192.0.2.1:1"), desc("odd..name", "192.0.2.2:2"))
    assert shown(farm.ask("EU.bank.v1.service.elkobroker.")) == ["A 192.0.2.1"]
    assert shown(farm.ask("_eu.bank.v1._tcp.service.elkobroker.")) == ["A 192.0.2.1"]
    assert shown(farm.ask(r"eu\.bank.v1.service.elkobroker.")) == ["A 192.0.2.1"]
    assert shown(farm.ask(r"odd\.\.name.service.elkobroker.")) == ["A 192.0.2.2"]
    for parent in ("v1", "bank.v1", "bank.v1._tcp", "_tcp"):
        assert code(farm.ask(f"{parent}.service.elkobroker.")) == "NODATA", parent
    for no in ("eu", "eu.bank", "x.bank.v1", "name"):
        assert code(farm.ask(f"{no}.service.elkobroker.")) == "NXDOMAIN", no


@pytest.mark.parametrize(
    ("name", "asked"),
    [
        ("_x", ("_x", "__x._tcp")),
        ("_tcp", ("_tcp", "__tcp._tcp")),
        ("a._tcp", ("a._tcp", r"a\._tcp", "_a._tcp._tcp")),
        ("_sip._udp", ("_sip._udp", r"_sip\._udp", "__sip._udp._tcp")),
        ("_a.b", ("_a.b", r"_a\.b", "__a.b._tcp")),
    ],
)
def test_own_names_with_labels_of_srv_are_answered(farm: DnsFarm, name: str, asked: tuple[str, ...]) -> None:
    farm.client().offer(desc(name, "192.0.2.1:1"))
    for each in asked:
        assert shown(farm.ask(f"{each}.service.elkobroker.")) == ["A 192.0.2.1"], each
    for no in ("x", "a", "_a._udp", "sip._udp", "_sip._tcp", "c._tcp"):
        assert code(farm.ask(f"{no}.service.elkobroker.")) == "NXDOMAIN", no


def test_an_ambiguous_question_selects_before_it_is_an_own_name(farm: DnsFarm) -> None:
    farm.client().offer(desc("_sip._udp", "192.0.2.1:1"))
    other = farm.client("b")
    for each in ({"protocol": "udp"}, {"label": "udp"}):
        assert shown(farm.ask("_sip._udp.service.elkobroker.")) == ["A 192.0.2.1"]
        other.offer(desc("sip", "192.0.2.2:2", **each))
        assert shown(farm.ask("_sip._udp.service.elkobroker.")) == ["A 192.0.2.2"]
        assert shown(farm.ask(r"_sip\._udp.service.elkobroker.")) == ["A 192.0.2.1"]
        other.say("broker", "wontserve", services=["sip"])


def test_parents_of_own_names_with_labels_of_srv_exist(farm: DnsFarm) -> None:
    farm.client().offer(desc("a.x._tcp", "192.0.2.1:1"))
    for parent in ("x._tcp", "_tcp", "x._tcp._ws"):
        assert code(farm.ask(f"{parent}.service.elkobroker.")) == "NODATA", parent
    for no in ("x", "b.x._tcp", "x._udp"):
        assert code(farm.ask(f"{no}.service.elkobroker.")) == "NXDOMAIN", no


def test_parents_go_with_the_last_name_below_them(farm: DnsFarm) -> None:
    client = farm.client()
    client.offer(desc("a.x", "h:1"), desc("a.x", "h:2"), desc("b.x", "h:3"))
    client.say("broker", "wontserve", services=["a.x"])
    assert code(farm.ask("x.service.elkobroker.")) == "NODATA"
    client.say("broker", "wontserve", services=["b.x"])
    assert code(farm.ask("x.service.elkobroker.")) == "NXDOMAIN"
    assert len(farm.names) == 0


def test_a_parent_exists_only_if_a_name_below_it_is_answered() -> None:
    farm = DnsFarm(may=lambda name: not name.startswith("own."))
    client = farm.client()
    client.offer(desc("safe.vault.eu", "192.0.2.1:1", auth={"type": "auth", "mode": "password", "code": "x"}))
    client.offer(desc("own.vault.eu", "192.0.2.2:1"))
    asked = ("vault.eu", "eu", "vault.eu._tcp", "_safe.vault.eu._tcp", "own.vault.eu", "none.eu")
    for name in asked:
        assert code(farm.ask(f"{name}.service.elkobroker.")) == "NXDOMAIN", name
    client.offer(desc("Open.Vault.eu", "192.0.2.3:1"))
    for name in asked:
        exists = name in ("vault.eu", "eu", "vault.eu._tcp")
        assert code(farm.ask(f"{name}.service.elkobroker.")) == ("NODATA" if exists else "NXDOMAIN"), name
    client.say("broker", "wontserve", services=["Open.Vault.eu"])
    assert code(farm.ask("eu.service.elkobroker.")) == "NXDOMAIN"


def test_a_parent_of_restored_services_ends_with_them() -> None:
    service = Service("bank.eu", "192.0.2.1:80", 1)
    farm = DnsFarm(ElkoFarm(restored=[Provider(1, "b", "elko", "", 0.0, 0.0, (service,))]))
    assert code(farm.ask("eu.service.elkobroker.")) == "NODATA"
    farm.clock.advance(GRACE)
    assert code(farm.ask("eu.service.elkobroker.")) == "NXDOMAIN"
    assert len(farm.names) == 0


def test_a_name_of_too_many_labels_has_no_parents(farm: DnsFarm) -> None:
    name = ".".join("a" * (MAX_DEPTH + 1))
    farm.client().offer(desc(name, "192.0.2.1:1"))
    assert shown(farm.ask(f"{name}.service.elkobroker.")) == ["A 192.0.2.1"]
    assert code(farm.ask("a.service.elkobroker.")) == "NXDOMAIN"


def test_the_names_below_a_parent_that_cost_a_response_are_bounded() -> None:
    considered: list[str] = []

    def may(name: str) -> bool:
        considered.append(name)
        return False

    farm = DnsFarm(may=may)
    farm.client().offer(*(desc(f"s{number}.eu", "192.0.2.1:1") for number in range(MAX_BELOW + 1)))
    assert code(farm.ask("eu.service.elkobroker.")) == "NXDOMAIN"
    assert len(considered) == MAX_BELOW


# the apex, what does not exist, what is refused


def test_the_apex(farm: DnsFarm) -> None:
    assert shown(farm.ask("elkobroker.", "SOA")) == [SOA]
    assert shown(farm.ask("elkobroker.", "NS")) == ["NS ns.elkobroker."]
    assert shown(farm.ask("elkobroker.", "ANY")) == ['HINFO "RFC8482" ""']
    assert code(farm.ask("elkobroker.", "A")) == "NODATA"
    assert code(farm.ask("ns.elkobroker.", "A")) == "NODATA"


def test_the_name_server_has_the_address_that_is_bound() -> None:
    farm = DnsFarm(dns=Dns(endpoint="tcp:53:interface=192.0.2.53"))
    assert shown(farm.ask("ns.elkobroker.", "A")) == ["A 192.0.2.53"]
    assert code(farm.ask("ns.elkobroker.", "AAAA")) == "NODATA"


def test_a_name_server_at_an_address_with_a_scope_has_none() -> None:
    """AAAA has no scope, and the address means nothing to other machines without it."""
    farm = DnsFarm(dns=Dns(endpoint="tcp:53:interface=fe80\\:\\:1%eth0", response_rate=0.0))
    for name in ("ns.elkobroker.", "broker.elkobroker."):
        assert [code(farm.ask(name, kind)) for kind in ("A", "AAAA")] == ["NODATA", "NODATA"]


def test_a_name_server_at_a_mapped_address_has_the_address_of_ipv4() -> None:
    farm = DnsFarm(dns=Dns(endpoint="tcp:53:interface=\\:\\:ffff\\:192.0.2.1", response_rate=0.0))
    assert shown(farm.ask("ns.elkobroker.", "A")) == ["A 192.0.2.1"]


def test_the_serial_number_is_the_time(farm: DnsFarm) -> None:
    farm.clock.advance(1_795_246_621.5)
    assert shown(farm.ask("elkobroker.", "SOA"))[0].split()[3] == "1795246621"


@pytest.mark.parametrize("name", ["x.service", "x", "x.addr", "x.ns", "service.x"])
def test_nxdomain_has_the_soa(farm: DnsFarm, name: str) -> None:
    response = farm.ask(f"{name}.elkobroker.", "SRV")
    assert code(response) == "NXDOMAIN"
    assert (shown(response, "authority"), response.authority[0].name.to_text()) == ([SOA], "elkobroker.")
    assert response.flags & dns.flags.AA


def test_nodata_has_the_soa(farm: DnsFarm) -> None:
    farm.client().offer(desc("bank", "192.0.2.1:1"))
    for name, kind in (("bank.service", "MX"), ("bank.service", "AAAA"), ("service", "A"), ("addr", "A")):
        response = farm.ask(f"{name}.elkobroker.", kind)
        assert (code(response), shown(response, "authority")) == ("NODATA", [SOA]), (name, kind)


@pytest.mark.parametrize(
    ("name", "kind", "cls"),
    [
        (".", "NS", "IN"),
        ("example.com.", "A", "IN"),
        ("broker.", "A", "IN"),
        ("xelkobroker.", "A", "IN"),
        ("elkobroker.com.", "A", "IN"),
        ("version.bind.", "TXT", "CH"),
        ("elkobroker.", "SOA", "CH"),
        ("elkobroker.", "AXFR", "IN"),
        ("elkobroker.", "IXFR", "IN"),
    ],
)
def test_questions_outside_the_zone_are_refused(farm: DnsFarm, name: str, kind: str, cls: str) -> None:
    response = farm.ask(name, kind, rdclass=cls)
    assert (code(response), response.authority, response.flags & dns.flags.AA) == ("REFUSED", [], 0)


def test_another_domain() -> None:
    farm = DnsFarm(dns=Dns(domain="farm.example.com", ttl=60))
    farm.client().offer(desc("bank", "192.0.2.1:80"))
    assert shown(farm.ask("bank.service.Farm.example.com.", "SRV")) == ["SRV 0 1000 80 c0000201.addr.farm.example.com."]
    assert code(farm.ask("bank.service.elkobroker.")) == "REFUSED"
    assert code(farm.ask("example.com.")) == "REFUSED"


# changes, restarts, many


def test_a_withdrawn_service_is_gone(farm: DnsFarm) -> None:
    client = farm.client()
    client.offer(desc("bank", "192.0.2.1:1"), desc("bank", "192.0.2.2:2", protocol="ws"), desc("post", "192.0.2.3:1"))
    client.say("broker", "wontserve", services=["bank"])
    assert code(farm.ask("bank.service.elkobroker.")) == "NXDOMAIN"
    client.drop()
    assert code(farm.ask("post.service.elkobroker.")) == "NXDOMAIN"
    assert len(farm.names) == 0


def test_a_service_from_before_the_opening_is_found() -> None:
    plain = ElkoFarm()
    plain.client().offer(desc("Bank", "192.0.2.1:1"))
    assert shown(DnsFarm(plain).ask("bank.service.elkobroker.")) == ["A 192.0.2.1"]


def test_restored_services_are_answered_during_the_grace() -> None:
    before = remembered(1, ("Bank", "192.0.2.1:80"), ("Post", "192.0.2.2:80"))
    services = [Service(each.name, each.hostport, 1) for each in before.services]
    provider = type(before)(1, "old", "elko", "192.0.2.9:1", 0.5, 0.0, tuple(services))
    farm = DnsFarm(ElkoFarm(restored=[provider]))
    farm.client()
    response = farm.ask("bank.service.elkobroker.", "SRV")
    assert shown(response) == ["SRV 0 1 80 c0000201.addr.elkobroker."]
    assert '"restored=1"' in shown(farm.ask("bank.service.elkobroker.", "TXT"))[0]
    # among live ones it gets the least weight
    live = farm.client()
    live.offer(desc("bank", "192.0.2.3:80"))
    assert shown(farm.ask("bank.service.elkobroker.", "SRV")) == [
        "SRV 0 1 80 c0000201.addr.elkobroker.",
        "SRV 0 1000 80 c0000203.addr.elkobroker.",
    ]
    # what comes and goes meanwhile does not end it
    live.say("broker", "wontserve", services=["bank"])
    assert shown(farm.ask("bank.service.elkobroker.")) == ["A 192.0.2.1"]
    farm.clock.advance(GRACE)
    for name in ("bank", "post"):
        assert code(farm.ask(f"{name}.service.elkobroker.")) == "NXDOMAIN"
    assert len(farm.names) == 0


def test_services_of_other_brokers_are_answered_at_a_start_without_etcd() -> None:
    clock = Clock()
    registry = ClusterRegistry(clock, count(1).__next__, Restored((), GRACE, clock, lambda ids: None))
    service, provider = Service("bank", "192.0.2.1:80", 7), Provider(7, "b", "elko", "", 0.0, 0.0, ())
    registry.serve_recorded([Registration(key_of("elko", service, NOBODY), provider, service, 1)])
    wire = open_dns(UNLIMITED, context(clock, registry=registry))

    def ask() -> dns.message.Message:
        query = dns.message.make_query("bank.service.elkobroker.", "A")
        return dns.message.from_wire(wire.responder.respond(decode(query.to_wire()), 512))

    assert shown(ask()) == ["A 192.0.2.1"]
    registry.serve_read()
    assert code(ask()) == "NXDOMAIN"


def test_a_label_of_the_provider_selects_restored_services() -> None:
    service = Service("bank", "192.0.2.1:80", 1)
    farm = DnsFarm(ElkoFarm(restored=[Provider(1, "Blue", "elko", "", 0.0, 0.0, (service,))]))
    assert shown(farm.ask("_bank._blue.service.elkobroker.")) == ["A 192.0.2.1"]
    assert code(farm.ask("_bank._green.service.elkobroker.")) == "NXDOMAIN"
    farm.clock.advance(GRACE)
    assert code(farm.ask("_bank._blue.service.elkobroker.")) == "NXDOMAIN"


def test_of_many_places_a_window_is_answered() -> None:
    starts: list[int] = []

    def begin(count: int) -> int:
        starts.append(count)
        return count - 2

    farm = DnsFarm(begin=begin)
    farm.client().offer(*(desc("bank", f"192.0.2.{number}:80") for number in range(100)))
    found = [f"A 192.0.2.{number}" for number in [98, 99, *range(MAX_PLACES - 2)]]
    response = farm.ask("bank.service.elkobroker.")
    assert (shown(response), starts) == (found, [100])
    assert not response.flags & dns.flags.TC
    srv = farm.ask("bank.service.elkobroker.", "SRV", use_edns=0, payload=1232)
    assert (len(shown(srv)), srv.flags & dns.flags.TC) == (MAX_PLACES, 0)


def test_a_window_has_places_of_the_asked_type_only(farm: DnsFarm) -> None:
    textual = [desc("bank", f"unix:/run/{number}.sock") for number in range(2 * MAX_PLACES)]
    farm.client().offer(*textual, desc("bank", "[2001:db8::1]:80"), desc("bank", "host.example:81"))
    assert shown(farm.ask("bank.service.elkobroker.", "AAAA")) == ["AAAA 2001:db8::1"]
    assert len(shown(farm.ask("bank.service.elkobroker.", "SRV"))) == 2
    assert len(shown(farm.ask("bank.service.elkobroker.", "TXT", udp=False))) == MAX_PLACES
    assert code(farm.ask("bank.service.elkobroker.", "A")) == "NODATA"


def test_names_that_no_label_can_hold_are_harmless(farm: DnsFarm) -> None:
    registry = farm.farm.registry
    provider = registry.join("x", "elko", "")
    names = ["a" * 255, "...", "_", "_x", "a.", ".a", "é" * 100, "service", "_tcp"]
    registry.offer([Service(name, "192.0.2.1:1", provider) for name in names], Rights())
    assert len(farm.names) == len(names)
    assert shown(farm.ask("_.service.elkobroker.")) == ["A 192.0.2.1"]
    assert shown(farm.ask("__x._tcp.service.elkobroker.")) == ["A 192.0.2.1"]
    assert shown(farm.ask("service.service.elkobroker.")) == ["A 192.0.2.1"]
    with capturedLogs() as events:
        registry.leave(provider)
    assert len(farm.names) == 0
    assert not [each for each in events if "log_failure" in each]


def test_auth_of_any_kind_is_a_secret(farm: DnsFarm) -> None:
    registry = farm.farm.registry
    provider = registry.join("x", "elko", "")
    registry.offer([Service("bank", "192.0.2.1:1", provider, auth=Auth("password"))], Rights())
    assert code(farm.ask("bank.service.elkobroker.")) == "NXDOMAIN"
