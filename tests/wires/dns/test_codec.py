"""The codec of DNS, with dnspython for a second opinion."""

from __future__ import annotations

import struct
from typing import Any

import dns.edns
import dns.flags
import dns.message
import dns.rcode
import dns.tsigkeyring
import pytest

from broker.core.errors import Malformed, Reason
from broker.wires.dns.codec.dns_query import (
    HEADER,
    MAX_QUERY,
    MAX_RECORDS,
    Edns,
    Frames,
    Question,
    decode,
    framed,
    host_labels,
)
from broker.wires.dns.codec.dns_response import (
    BADVERS,
    MAX_PAYLOAD,
    MAX_STREAMED,
    NXDOMAIN,
    SRV,
    A,
    Record,
    Response,
    Srv,
    Txt,
    encode,
    failed,
    limit_of,
    truncated,
)

QUERY = dns.message.make_query("Bank.service.elkobroker.", "SRV", id=4711).to_wire()
QNAME = b"\4Bank\7service\12elkobroker\0"


def header(
    id: int = 1, flags: int = 0, questions: int = 1, answers: int = 0, authorities: int = 0, additional: int = 0
) -> bytes:
    return struct.pack("!6H", id, flags, questions, answers, authorities, additional)


def question(name: bytes = QNAME, kind: int = A, cls: int = 1) -> bytes:
    return name + struct.pack("!HH", kind, cls)


def opt(payload: int = 1232, ttl: int = 0, data: bytes = b"", owner: bytes = b"\0") -> bytes:
    return owner + struct.pack("!HHIH", 41, payload, ttl, len(data)) + data


# queries


def test_a_query_is_read() -> None:
    query = decode(QUERY)
    assert (query.id, query.opcode, query.recurse, query.edns) == (4711, 0, True, None)
    assert query.question == Question(QNAME + b"\0\x21\0\1", (b"Bank", b"service", b"elkobroker"), SRV)


def test_edns_is_read() -> None:
    query = dns.message.make_query("x.", "A", use_edns=0, payload=4096, want_dnssec=True)
    assert decode(query.to_wire()).edns == Edns(4096, 0, True)
    options: list[dns.edns.Option] = [dns.edns.GenericOption("COOKIE", b"12345678")]
    padded = dns.message.make_query("x.", "A", use_edns=1, payload=100, options=options, pad=468)
    assert decode(padded.to_wire()).edns == Edns(512, 1, False)


def test_a_signature_behind_the_question_is_skipped() -> None:
    query = dns.message.make_query("x.", "A", use_edns=0)
    query.use_tsig(dns.tsigkeyring.from_text({"key.": "c2VjcmV0"}))
    assert decode(query.to_wire()).edns is not None
    # its owner may be a pointer
    compressed = header(additional=2) + question() + opt() + b"\xc0\x0c" + struct.pack("!HHIH", 250, 255, 0, 3) + b"abc"
    assert decode(compressed).edns == Edns(1232)


def test_a_name_may_have_255_bytes_and_labels_63() -> None:
    longest = b"".join(bytes([63]) + b"a" * 63 for _ in range(3)) + bytes([61]) + b"a" * 61 + b"\0"
    assert len(longest) == 255
    query = decode(header() + question(longest)).question
    assert query is not None
    assert [len(label) for label in query.labels] == [63, 63, 63, 61]
    one_more = longest[:-63] + bytes([62]) + b"a" * 62 + b"\0"
    with pytest.raises(Malformed):
        decode(header() + question(one_more))


def test_the_root_and_labels_with_dots_are_names() -> None:
    for name, labels in ((b"\0", ()), (b"\3a.b\0", (b"a.b",)), (b"\2\0\xff\0", (b"\0\xff",))):
        query = decode(header() + question(name)).question
        assert query is not None
        assert query.labels == labels


@pytest.mark.parametrize("opcode", [1, 2, 4, 5, 6, 15])
def test_another_opcode_has_no_question(opcode: int) -> None:
    query = decode(header(9, opcode << 11 | 0x0100) + b"anything")
    assert (query.opcode, query.recurse, query.question) == (opcode, True, None)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        QUERY[:11],
        header(),
        header(questions=0),
        header(questions=0) + question(),
        header(questions=2) + question() + question(),
        header() + question()[:-1],
        header() + question() + b"x",
        header() + question(b"\xc0\x0c"),
        header() + question(b"\4Bank\xc0\x0c"),
        header() + question(b"\x40" + b"a" * 64 + b"\0"),
        header() + question(b"\x80" + b"a" * 64 + b"\0"),
        header() + b"\4Ban",
        header(additional=1) + question(),
        header(additional=1) + question() + opt()[:-1],
        header(additional=1) + question() + opt(data=b"1234")[:-1],
        header(additional=1) + question() + opt(owner=b"\1x\0"),
        header(additional=2) + question() + opt() + opt(),
        header(answers=1) + question() + opt(),
        header(authorities=1) + question() + opt(),
        header(additional=1) + question() + b"\xc0",
        header(additional=1) + question() + b"\x7f",
        header(additional=65535) + question(),
        header(additional=MAX_RECORDS + 1) + question() + b"\0\0\1\0\1\0\0\0\0\0\0" * (MAX_RECORDS + 1),
        (header(additional=1) + question() + opt(data=bytes(MAX_QUERY))),
    ],
    ids=range(25),
)
def test_a_malformed_query_is_refused(data: bytes) -> None:
    with pytest.raises(Malformed) as raised:
        decode(data)
    assert raised.value.reason is Reason.SYNTAX


def test_a_response_is_never_read() -> None:
    with pytest.raises(Malformed) as raised:
        decode(header(flags=0x8000) + question())
    assert raised.value.reason is Reason.UNEXPECTED


def test_the_answer_to_the_unreadable_is_formerr() -> None:
    answer = failed(header(4711, 5 << 11 | 0x0100) + b"rubbish")
    assert answer is not None
    message = dns.message.from_wire(answer)
    assert (message.id, message.rcode(), message.opcode()) == (4711, dns.rcode.FORMERR, 5)
    assert len(answer) == HEADER
    assert failed(b"x" * 11) is None
    assert failed(header(flags=0x8000)) is None


# responses


def places(count: int, target: bytes = b"h.example") -> list[Record]:
    return [Record(b"bank.service.elkobroker", 5, Srv(1, port, target)) for port in range(1, count + 1)]


def test_a_response_repeats_the_question_byte_by_byte() -> None:
    query = decode(header(7) + question(b"\7bAnK.eU\7SERVICE\12elkobroker\0"))
    owner = b"bank.eu.service.elkobroker"
    data = encode(query, Response(0, True, [Record(owner, 5, Txt((b"x",)))]), 512).data
    assert data[HEADER:].startswith(b"\7bAnK.eU\7SERVICE\12elkobroker\0")
    message = dns.message.from_wire(data)
    assert message.answer[0].name == message.question[0].name
    assert message.answer[0].name.labels[0] == b"bAnK.eU"
    assert data[HEADER + len(query.question.raw if query.question else b"") :].startswith(b"\xc0\x0c")


def test_records_are_whole_or_not_there() -> None:
    query = decode(QUERY)
    seen = set()
    for limit in range(512, 600):
        encoded = encode(query, Response(0, True, places(20)), limit)
        message = dns.message.from_wire(encoded.data, one_rr_per_rrset=True)  # it raises for half a record
        assert len(encoded.data) <= limit
        assert encoded.truncated
        assert message.flags & dns.flags.TC
        seen.add(len(message.answer))
    assert len(seen) > 1
    whole = encode(query, Response(0, True, places(20)), MAX_STREAMED)
    assert not whole.truncated
    assert len(dns.message.from_wire(whole.data, one_rr_per_rrset=True).answer) == 20


def test_additional_records_are_left_out_without_tc() -> None:
    query = decode(dns.message.make_query("bank.service.elkobroker.", "SRV", use_edns=0).to_wire())
    extra = [Record(b"x.example", 5, Txt((b"y" * 255,)))] * 3
    encoded = encode(query, Response(0, True, places(2), (), extra), 512)
    message = dns.message.from_wire(encoded.data, one_rr_per_rrset=True)
    assert (len(message.answer), len(message.additional), encoded.truncated) == (2, 1, False)
    assert message.edns == 0  # the OPT has its room
    assert not message.flags & dns.flags.TC


def test_edns_is_answered_by_edns() -> None:
    query = decode(dns.message.make_query("x.", "A", use_edns=0, payload=4096, want_dnssec=True).to_wire())
    message = dns.message.from_wire(encode(query, Response(NXDOMAIN), 512).data)
    assert (message.edns, message.payload, message.rcode()) == (0, MAX_PAYLOAD, dns.rcode.NXDOMAIN)
    assert message.ednsflags & dns.flags.DO
    bad = dns.message.from_wire(encode(query, Response(BADVERS), 512).data)
    assert bad.rcode() == dns.rcode.BADVERS
    plain = dns.message.from_wire(encode(decode(QUERY), Response(NXDOMAIN), 512).data)
    assert plain.edns == -1


@pytest.mark.parametrize(
    ("edns", "limit"), [(None, 512), (Edns(512), 512), (Edns(1000), 1000), (Edns(4096), MAX_PAYLOAD)]
)
def test_the_limit_of_a_datagram(edns: Edns | None, limit: int) -> None:
    assert limit_of(edns) == limit


@pytest.mark.parametrize("options", [{}, {"use_edns": 0, "payload": 4096}, {"use_edns": 0, "pad": 128}])
def test_a_slipped_response_is_no_longer_than_its_query(options: dict[str, Any]) -> None:
    query = dns.message.make_query("bank.service.elkobroker.", "ANY", **options)
    data = truncated(decode(query.to_wire()))
    message = dns.message.from_wire(data)
    assert query.is_response(message)
    assert message.flags & dns.flags.TC
    assert len(data) <= len(query.to_wire())


# streams


def test_messages_on_a_stream_come_whole_byte_by_byte_and_together() -> None:
    stream = framed(QUERY) + framed(b"x" * HEADER) + framed(QUERY)
    messages = [QUERY, b"x" * HEADER, QUERY]
    assert list(Frames().feed(stream)) == messages
    reader = Frames()
    assert [item for at in range(len(stream)) for item in reader.feed(stream[at : at + 1])] == messages
    assert reader.pending == 0
    assert list(reader.feed(framed(QUERY)[:-1])) == []
    assert reader.pending == len(QUERY) + 1


@pytest.mark.parametrize("length", [0, 1, HEADER - 1, MAX_QUERY + 1, 65_535])
def test_a_length_that_no_query_has_ends_the_stream(length: int) -> None:
    reader = Frames()
    [item] = list(reader.feed(length.to_bytes(2, "big") + framed(QUERY)))
    assert isinstance(item, Malformed)
    assert item.reason.fatal
    assert reader.pending == 0


# names


@pytest.mark.parametrize(
    ("text", "labels"),
    [
        ("Example.COM", (b"example", b"com")),
        ("a-b_c.", (b"a-b_c",)),
        ("", None),
        (".", None),
        ("a..b", None),
        ("-a", None),
        ("a-", None),
        ("a b", None),
        ("é", None),
        ("a\n", None),
        ("a" * 64, None),
    ],
)
def test_host_names(text: str, labels: tuple[bytes, ...] | None) -> None:
    assert host_labels(text) == labels
