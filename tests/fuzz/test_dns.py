"""DNS: whatever comes, only queries and Malformed come out of the codec, and every response can be read."""

from __future__ import annotations

import dns.exception
import dns.flags
import dns.message
import dns.name
import dns.rdatatype
import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.core.errors import Malformed, Reason, Refusal
from broker.core.hostports import check_hostport
from broker.core.model import Rights, Service
from broker.wires.dns.codec.dns_query import HEADER, MAX_QUERY, Frames, decode, framed
from broker.wires.dns.codec.dns_response import MAX_PAYLOAD, failed, limit_of
from broker.wires.dns.zone import host_port
from tests.wires.dns.recording import DnsFarm, Stream

pytestmark = pytest.mark.long

labels = st.one_of(
    st.sampled_from([b"service", b"SERVICE", b"addr", b"ns", b"elkobroker", b"_tcp", b"_bank", b"bank", b"7f000001"]),
    st.binary(min_size=1, max_size=63),
)
domain = st.sampled_from([(b"elkobroker",), (b"service", b"elkobroker"), (b"addr", b"ELKObroker"), ()])
names = st.tuples(st.lists(labels, max_size=3), domain).map(lambda pair: [*pair[0], *pair[1]])
kinds = st.sampled_from([1, 2, 5, 6, 12, 15, 16, 28, 33, 41, 64, 65, 250, 251, 252, 255]) | st.integers(0, 0xFFFF)
small = st.integers(0, 3) | st.integers(0, 0xFFFF)


@st.composite
def messages(draw: st.DrawFn) -> bytes:
    """Messages that begin like queries, with anything behind; some are whole."""
    flags = draw(st.sampled_from([0, 0x0100]) | st.integers(0, 0xFFFF))
    numbers = [draw(st.integers(0, 0xFFFF)), flags, draw(st.just(1) | small), *(draw(st.just(0) | small) for _ in "ab")]
    records = draw(
        st.lists(st.tuples(kinds, st.integers(0, 0xFFFF), st.integers(0, 0xFFFFFFFF), st.binary(max_size=9)))
    )
    numbers.append(draw(st.just(len(records)) | small))
    data = b"".join(number.to_bytes(2, "big") for number in numbers)
    data += b"".join(bytes([len(label)]) + label for label in draw(names)) + b"\0"
    data += draw(kinds).to_bytes(2, "big") + draw(st.just(1) | small).to_bytes(2, "big")
    for kind, cls, ttl, body in records:
        data += draw(st.sampled_from([b"\0", b"\xc0\x0c", b"\1x\0"]))
        data += kind.to_bytes(2, "big") + cls.to_bytes(2, "big") + ttl.to_bytes(4, "big")
        data += len(body).to_bytes(2, "big") + body
    end = draw(st.just(len(data)) | st.integers(0, len(data)))
    return data[:end] + draw(st.just(b"") | st.binary(max_size=20))


def accepted(hostport: str) -> bool:
    """Return True for an address that the registry takes."""
    try:
        check_hostport(hostport)
    except Refusal:
        return False
    return True


services = st.builds(
    Service,
    name=st.sampled_from(["bank", "Bank", "a.bank"]) | st.text(min_size=1, max_size=70).filter(str.isprintable),
    hostport=st.sampled_from(["192.0.2.1:80", "[::1]:1", "h.example:1", "0.0.0.0:1"])
    | st.text(min_size=1, max_size=40).filter(accepted),
    provider=st.just(1),
    protocol=st.sampled_from(["tcp", "ws"]) | st.text(min_size=1, max_size=20).filter(str.isprintable),
    label=st.none() | st.text(max_size=20),
)


@given(st.binary(max_size=100) | messages())
def test_only_queries_and_malformed_come_out(data: bytes) -> None:
    try:
        query = decode(data)
    except Malformed as malformed:
        answer = failed(data)
        assert (answer is None) == (len(data) < HEADER or malformed.reason is Reason.UNEXPECTED)
        assert answer is None or len(answer) == HEADER
    else:
        assert (query.question is None) == (query.opcode != 0)
        assert query.question is None or data[HEADER:].startswith(query.question.raw)


@given(messages())
def test_dnspython_reads_the_same_question(data: bytes) -> None:
    """Names that are accepted here have the same labels in dnspython."""
    try:
        query = decode(data)
    except Malformed:
        return
    if query.question is None:
        return
    name, end = dns.name.from_wire(data, HEADER)
    assert (name.labels[:-1], end + 4) == (query.question.labels, len(query.question.raw))


@given(st.lists(services, max_size=6), st.lists(messages() | st.binary(max_size=40), max_size=6))
def test_every_response_can_be_read(offered: list[Service], datagrams: list[bytes]) -> None:
    farm = DnsFarm()
    registry = farm.farm.registry
    registry.join("x", "elko", "")
    registry.offer(offered, Rights())
    for data in datagrams:
        for answer in farm.datagram(data):
            limit = MAX_PAYLOAD if len(answer) <= HEADER else limit_of(decode(data).edns)
            assert len(answer) <= limit
            _readable(answer)
    registry.leave(1)
    assert len(farm.names) == 0


@given(services, st.sampled_from(["A", "AAAA", "SRV", "TXT", "ANY"]))
def test_every_service_is_answered(service: Service, kind: str) -> None:
    farm = DnsFarm()
    registry = farm.farm.registry
    registry.join("x", "elko", "")
    registry.offer([service], Rights())
    folded = service.name.encode().lower()
    if len(folded) > 63 or service.name.lower().startswith("elkobroker.") or folded.startswith(b"_"):
        return
    query = dns.message.make_query(dns.name.Name([folded, b"service", b"elkobroker", b""]), kind, use_edns=0)
    message = _readable(farm.datagram(query.to_wire())[0])
    assert query.is_response(message)
    assert message.rcode() == 0
    assert message.answer or kind not in ("TXT", "ANY")


@given(st.lists(messages().filter(lambda data: HEADER <= len(data) <= MAX_QUERY) | st.binary(max_size=20), max_size=5))
def test_a_stream_in_any_pieces_gives_the_same(parts: list[bytes]) -> None:
    data = b"".join(framed(part) for part in parts)
    whole, bytewise = Stream(DnsFarm()), Stream(DnsFarm())
    whole.send(data)
    for at in range(len(data)):
        bytewise.send(data[at : at + 1])
    assert whole.take() == bytewise.take()
    assert (whole.reasons, whole.closed) == (bytewise.reasons, bytewise.closed)


@given(st.binary(max_size=60))
def test_any_bytes_on_a_stream_are_harmless(data: bytes) -> None:
    reader = Frames()
    for item in reader.feed(data):
        assert isinstance(item, bytes | Malformed)
    assert reader.pending <= len(data)


@given(st.text(max_size=40) | st.from_regex(r"\A\[?[0-9a-f:.%]{1,20}\]?(:[0-9]{1,6})?\Z"))
def test_any_hostport_is_a_place_or_none(hostport: str) -> None:
    where = host_port(hostport)
    assert where is None or where.port is None or 0 < where.port < 65_536


def _readable(answer: bytes) -> dns.message.Message:
    try:
        message = dns.message.from_wire(answer)
    except dns.exception.DNSException as error:  # the message of the failed test has the bytes
        raise AssertionError(f"{error!r}: {answer!r}") from None
    assert message.flags & dns.flags.QR
    return message
