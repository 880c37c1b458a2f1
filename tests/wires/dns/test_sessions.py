"""DNS sessions: datagrams with their rate limit, and connections."""

from __future__ import annotations

import struct

import dns.flags
import dns.message
import dns.opcode
import dns.rcode
import pytest

from broker.core.errors import Reason, Refusal
from broker.wires.dns.codec.dns_query import MAX_QUERY, framed
from broker.wires.dns.dns_settings import Dns
from broker.wires.dns.sessions.responder import ANSWERING_PORTS, NETWORK_SHARE, SLIP, network
from tests.wires.dns.recording import SOURCE, DnsFarm, Stream, code, shown
from tests.wires.recording import desc

NAME = "bank.service.elkobroker."
QUERY = dns.message.make_query(NAME, "A", id=7)


def offering(places: int = 1, **options: object) -> DnsFarm:
    farm = DnsFarm(**options)  # type: ignore[arg-type]
    farm.client().offer(*(desc("bank", f"192.0.2.{number}:80") for number in range(1, places + 1)))
    return farm


# datagrams


def test_a_long_answer_is_cut_by_udp_and_whole_by_tcp() -> None:
    farm = offering(24)
    cut = farm.ask(NAME, "SRV")
    assert cut.flags & dns.flags.TC
    assert len(cut.to_wire()) <= 512
    assert 0 < len(cut.answer) < 24
    wide = farm.ask(NAME, "SRV", use_edns=0, payload=1232)
    assert (len(shown(wide)), wide.flags & dns.flags.TC) == (24, 0)
    whole = farm.ask(NAME, "SRV", udp=False)
    assert (len(shown(whole)), len(shown(whole, "additional")), whole.flags & dns.flags.TC) == (24, 24, 0)
    assert farm.count("dns_responses.truncated") == 1


def test_no_datagram_is_longer_than_1232_bytes() -> None:
    farm = offering(24)
    farm.client().offer(*(desc("bank", f"{'h' * 60}.{number}.example.com:1") for number in range(20)))
    query = dns.message.make_query(NAME, "SRV", use_edns=0, payload=4096)
    [data] = farm.datagram(query.to_wire())
    assert 1100 < len(data) <= 1232


def test_another_opcode_and_version_are_answered() -> None:
    farm = offering()
    for opcode in (dns.opcode.STATUS, dns.opcode.NOTIFY, dns.opcode.UPDATE):
        query = dns.message.make_query(NAME, "A")
        query.set_opcode(opcode)
        [data] = farm.datagram(query.to_wire())
        assert dns.message.from_wire(data).rcode() == dns.rcode.NOTIMP
    assert farm.ask(NAME, use_edns=1).rcode() == dns.rcode.BADVERS
    assert farm.count("dns_responses.notimp") == 3


def test_the_unreadable_is_answered_by_formerr_and_counted() -> None:
    farm = offering()
    data = struct.pack("!6H", 7, 0, 3, 0, 0, 0) + b"x"
    [answer] = farm.datagram(data)
    assert dns.message.from_wire(answer).rcode() == dns.rcode.FORMERR
    assert farm.counters.get("dns_refused", "syntax") == 1
    assert farm.count("dns_responses.formerr") == 1


@pytest.mark.parametrize("data", [b"", b"short", struct.pack("!6H", 7, 0x8000, 1, 0, 0, 0), bytes(MAX_QUERY + 1)])
def test_unanswerable_datagrams_are_ignored(data: bytes) -> None:
    farm = offering()
    assert farm.datagram(data) == []
    assert farm.count("dns_ignored.unanswerable") + farm.count("dns_ignored.oversized") == 1


def test_a_response_sent_back_to_it_is_not_answered() -> None:
    farm = offering()
    [answer] = farm.datagram(QUERY.to_wire())
    assert farm.datagram(answer) == []


@pytest.mark.parametrize("port", sorted(ANSWERING_PORTS))
def test_services_that_answer_everything_are_not_answered(port: int) -> None:
    farm = offering()
    assert farm.datagram(QUERY.to_wire(), ("192.0.2.7", port)) == []
    assert farm.count("dns_ignored.port") == 1


# the rate limit


RATES = Dns(response_rate=10.0, response_burst=20)


def verdicts(farm: DnsFarm, sources: list[str]) -> str:
    """Return the result of each query of these addresses: an answer (a), TC (t) or nothing (-)."""
    seen = ""
    for host in sources:
        answers = farm.datagram(QUERY.to_wire(), (host, 4000))
        seen += "-" if not answers else "t" if dns.message.from_wire(answers[0]).flags & dns.flags.TC else "a"
    return seen


def test_over_the_rate_each_second_query_is_answered_by_tc() -> None:
    farm = offering(dns=RATES)
    assert SLIP == 2
    assert verdicts(farm, ["192.0.2.7"] * 26) == "a" * 20 + "-t-t-t"
    assert (farm.count("dns_limited.dropped"), farm.count("dns_limited.slipped")) == (3, 3)
    # another network has its own
    assert verdicts(farm, ["198.51.100.7"]) == "a"
    # a second brings as many as the rate
    farm.clock.advance(1)
    assert verdicts(farm, ["192.0.2.7"] * 11).rstrip("-t") == "a" * 10


def test_forged_addresses_of_one_network_share_its_rate() -> None:
    farm = offering(dns=RATES)
    seen = verdicts(farm, [f"192.0.2.{number}" for number in range(256)])
    assert seen.count("a") == RATES.response_burst * NETWORK_SHARE
    assert verdicts(farm, ["2001:db8:0:1::1"] * 20) == "a" * 20
    seen = verdicts(farm, [f"2001:db8:0:{number:x}::1" for number in range(256)])
    assert seen.count("a") == RATES.response_burst * (NETWORK_SHARE - 1)


def test_unreadable_queries_over_the_rate_are_not_answered() -> None:
    farm = offering(dns=Dns(response_rate=1.0, response_burst=2))
    data = struct.pack("!6H", 7, 0, 3, 0, 0, 0)
    assert [len(farm.datagram(data)) for _ in range(6)] == [1, 1, 0, 0, 0, 0]


def test_loopback_is_limited_only_if_it_is_said() -> None:
    local = ["127.0.0.1", "::1", "::ffff:127.0.0.1"] * 20
    assert verdicts(offering(dns=RATES), local) == "a" * 60
    assert "-" in verdicts(offering(dns=Dns(response_rate=10.0, response_burst=5, limit_loopback=True)), local)


def test_a_rate_of_0_is_no_limit() -> None:
    assert verdicts(offering(dns=Dns(response_rate=0.0, response_burst=1)), [SOURCE[0]] * 100) == "a" * 100


def test_a_victim_gets_no_more_than_the_attacker_sends() -> None:
    farm = offering(24, dns=Dns(response_rate=1.0, response_burst=1))
    query = dns.message.make_query(NAME, "SRV", use_edns=0, payload=4096).to_wire()
    farm.datagram(query)
    sent = sum(len(data) for _ in range(1_000) for data in farm.datagram(query))
    assert sent <= len(query) * 1_000 / SLIP


@pytest.mark.parametrize(
    ("host", "same", "other"),
    [
        ("192.0.2.7", "192.0.2.254", "192.0.3.7"),
        ("2001:db8:1:200::1", "2001:db8:1:2ff:ffff::1", "2001:db8:1:300::1"),
        ("::ffff:192.0.2.7", "::ffff:192.0.2.8", "::ffff:192.0.3.7"),
        ("fe80::1%eth0", "fe80::2%eth0", "fe81::1"),
    ],
)
def test_networks(host: str, same: str, other: str) -> None:
    assert network(host) == network(same) != network(other)


# connections


def test_several_queries_on_a_connection_are_answered_in_order() -> None:
    farm = offering()
    stream = Stream(farm)
    queries = [dns.message.make_query(NAME, kind, id=number) for number, kind in enumerate(["A", "SRV", "TXT"])]
    stream.send(b"".join(framed(query.to_wire()) for query in queries))
    answers = [dns.message.from_wire(data) for data in stream.take()]
    assert [query.is_response(answer) for query, answer in zip(queries, answers, strict=True)] == [True] * 3
    stream.send(framed(queries[0].to_wire()))
    assert len(stream.take()) == 1
    assert not stream.closed


def test_a_connection_survives_an_unreadable_query() -> None:
    farm = offering()
    stream = Stream(farm)
    stream.send(framed(struct.pack("!6H", 7, 0, 3, 0, 0, 0)) + framed(QUERY.to_wire()))
    first, second = (dns.message.from_wire(data) for data in stream.take())
    assert (first.rcode(), code(second)) == (dns.rcode.FORMERR, "NOERROR")
    assert stream.reasons == ["syntax"]


@pytest.mark.parametrize("data", [b"\0\0", b"\xff\xff", framed(struct.pack("!6H", 7, 0x8000, 1, 0, 0, 0))])
def test_a_connection_ends_over_a_wrong_length_and_a_response(data: bytes) -> None:
    stream = Stream(offering())
    stream.send(data)
    assert (stream.take(), stream.closed) == ([], True)


def test_a_connection_ends_over_a_failure_of_the_broker() -> None:
    stream = Stream(offering())
    stream.client.session.refuse(Refusal(Reason.INTERNAL, "the broker failed"))
    assert (stream.reasons, stream.closed) == (["internal"], True)


def test_a_connection_ends_over_too_many_unreadable_queries() -> None:
    stream = Stream(offering(), patience=3)
    stream.send(framed(struct.pack("!6H", 7, 0, 3, 0, 0, 0)) * 5)
    assert (len(stream.take()), stream.closed) == (4, True)


def test_a_draining_broker_refuses_each_query_so_that_another_server_is_asked() -> None:
    farm = DnsFarm()
    farm.responder.draining = True
    for udp in (True, False):
        assert code(farm.ask("bank.service.elkobroker.", "SRV", udp=udp)) == "REFUSED"
    farm.responder.draining = False
    assert code(farm.ask("bank.service.elkobroker.", "SRV")) != "REFUSED"
