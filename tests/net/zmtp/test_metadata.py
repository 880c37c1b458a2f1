"""Metadata: properties in, properties out, and nothing malformed."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.net.zmtp.frames import MAX_PROPERTIES, Fault, ZmtpError, encode_metadata, own_metadata, parse_metadata

DEALER = b"\x0bSocket-Type\0\0\0\x06DEALER\x08Identity\0\0\0\x02me"


def test_our_own_is_that_of_libzmq() -> None:
    assert own_metadata("DEALER", b"me") == DEALER
    assert own_metadata("ROUTER") == b"\x0bSocket-Type\0\0\0\x06ROUTER\x08Identity\0\0\0\0"
    assert own_metadata("SUB", b"me") == b"\x0bSocket-Type\0\0\0\x03SUB"


def test_properties_are_read() -> None:
    assert parse_metadata(b"") == {}
    assert parse_metadata(DEALER) == {"socket-type": b"DEALER", "identity": b"me"}
    assert parse_metadata(b"\x01a\0\0\0\0") == {"a": b""}


def test_unknown_properties_are_kept_and_names_compare_without_case() -> None:
    properties = [(b"SOCKET-TYPE", b"DEALER"), (b"X-Version", b"1.2"), (b"Resource", b""), (b"\xc4\xff", b"\0")]
    assert parse_metadata(encode_metadata(properties)) == {
        "socket-type": b"DEALER",
        "x-version": b"1.2",
        "resource": b"",
        "\xe4\xff": b"\0",
    }


@pytest.mark.parametrize("end", [end for end in range(1, len(DEALER)) if end != 22])
def test_what_is_cut_off_is_refused(end: int) -> None:
    with pytest.raises(ZmtpError) as refusal:
        parse_metadata(DEALER[:end])
    assert refusal.value.fault is Fault.HANDSHAKE


@pytest.mark.parametrize(
    "data",
    [
        b"\0\0\0\0\0",  # no name
        DEALER + b"\0",
        DEALER + b"\x01",
        b"\x01a\0\0\0\x01",  # a length beyond the end
        b"\x01a\xff\xff\xff\xffb",
        b"\x01a\x80\0\0\0b",
        b"\xffa\0\0\0\0",
    ],
)
def test_what_is_malformed_is_refused(data: bytes) -> None:
    with pytest.raises(ZmtpError) as refusal:
        parse_metadata(data)
    assert refusal.value.fault is Fault.HANDSHAKE


@pytest.mark.parametrize("names", [(b"Identity", b"Identity"), (b"Identity", b"identity"), (b"a", b"A")])
def test_a_property_comes_once(names: tuple[bytes, bytes]) -> None:
    with pytest.raises(ZmtpError) as refusal:
        parse_metadata(encode_metadata([(names[0], b"one"), (b"other", b""), (names[1], b"two")]))
    assert refusal.value.fault is Fault.HANDSHAKE


def test_there_may_be_so_many_properties_and_no_more() -> None:
    properties = [(b"%d" % n, b"") for n in range(MAX_PROPERTIES + 1)]
    assert len(parse_metadata(encode_metadata(properties[:-1]))) == MAX_PROPERTIES
    with pytest.raises(ZmtpError) as refusal:
        parse_metadata(encode_metadata(properties))
    assert refusal.value.fault is Fault.HANDSHAKE


names = st.binary(min_size=1, max_size=255)


@given(st.lists(st.tuples(names, st.binary(max_size=300)), max_size=8, unique_by=lambda pair: pair[0].lower()))
def test_properties_come_as_they_were_sent(properties: list[tuple[bytes, bytes]]) -> None:
    expected = {name.decode("latin-1").lower(): value for name, value in properties}
    if len(expected) == len(properties):
        assert parse_metadata(encode_metadata(properties)) == expected


@given(st.binary(max_size=60))
def test_octets_are_properties_or_refused(data: bytes) -> None:
    try:
        properties = parse_metadata(data)
    except ZmtpError as error:
        assert error.fault is Fault.HANDSHAKE
    else:
        assert sum(len(name) + len(value) + 5 for name, value in properties.items()) == len(data)
