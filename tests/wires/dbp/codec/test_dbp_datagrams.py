"""Which datagrams are messages of a service, which are ignored, and what the broker sends by UDP."""

from __future__ import annotations

import struct

import pytest

from broker.core.errors import Malformed
from broker.wires.dbp.codec.dbp_datagrams import (
    MAX_DATAGRAM,
    Datagram,
    Ignored,
    ack,
    beacon,
    disconnect,
    heartbeat,
    read,
)
from broker.wires.dbp.codec.dbp_messages import Ack, Beat, Bye, Form
from broker.wires.dbp.codec.listings import MAX_NAME
from tests.wires.dbp.codec.examples import SECONDS, TIME

NOW = 1795246621.35
TEXT = Form.TEXT


def binary(*frames: bytes) -> bytes:
    """Frames as ZMTP has them on the wire."""
    last = len(frames) - 1
    return b"".join(bytes([at < last, len(frame)]) + frame for at, frame in enumerate(frames))


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b" <3 1795246621.350000 Rohan", Beat(TEXT, NOW, "Rohan")),
        (b"<3 1795246621.350000 Rohan", Beat(TEXT, NOW, "Rohan")),
        (b" <3 1795246621 The Riders of Rohan ", Beat(TEXT, 1795246621.0, "The Riders of Rohan ")),
        (b" <3 1795246621  Rohan", Beat(TEXT, 1795246621.0, " Rohan")),
        (b" <3 1795246621 Th\xc3\xa9oden", Beat(TEXT, 1795246621.0, "Théoden")),
        (b" <3 1795246621 Rohan\n", Beat(TEXT, 1795246621.0, "Rohan\n")),
        (b" <3 1795246621", Beat(TEXT, 1795246621.0, None)),
        (b" <3 1795246621 ", Beat(TEXT, 1795246621.0, None)),
        (b" <3 1234 Rohan", Beat(TEXT, 1234.0, "Rohan")),
        (b" <3 12345678 Rohan", Beat(TEXT, 12345678.0, "Rohan")),
        (b" </3 1795246621", Bye(TEXT, 1795246621.0, None)),
        (b"</3 1795246621 Rohan", Bye(TEXT, 1795246621.0, "Rohan")),
        (b" </3 1795246621 \xff", Bye(TEXT, 1795246621.0, None)),
        (b" u.u 1795246621", Ack(TEXT, 1795246621.0)),
        (b"u.u 1795246621 Rohan", Ack(TEXT, 1795246621.0)),
        (b"Rohan <3", Beat(TEXT, None, "Rohan")),
        (b"R <3", Beat(TEXT, None, "R")),
        (b"Rohan <3 1795246621.35", Beat(TEXT, NOW, "Rohan")),
        (b"The Riders of Rohan <3", Beat(TEXT, None, "The Riders of Rohan")),
        (b"The Riders\nof Rohan <3", Beat(TEXT, None, "The Riders\nof Rohan")),
        (b"SHALOM <3", None),
        (b"SHALOMS <3", Beat(TEXT, None, "SHALOMS")),
        (binary(b"", b"<3", b"1795246621.35", b"Rohan"), Beat(TEXT, NOW, "Rohan")),
        (binary(b"", b"<3", TIME, b"Rohan"), Beat(Form.FLOAT32, SECONDS, "Rohan")),
        (binary(b"", b"<3", struct.pack("<d", NOW), b"Rohan"), Beat(Form.FLOAT64, NOW, "Rohan")),
        (binary(b"", b"<3", TIME), Beat(Form.FLOAT32, SECONDS, None)),
        (binary(b"", b"</3", TIME, b""), Bye(Form.FLOAT32, SECONDS, None)),
        (binary(b"", b"u.u", TIME), Ack(Form.FLOAT32, SECONDS)),
        (b" <3 1795246621 " + b"n" * MAX_NAME, Beat(TEXT, 1795246621.0, "n" * MAX_NAME)),
    ],
)
def test_a_datagram_is_read(data: bytes, expected: Datagram | None) -> None:
    if expected is None:
        assert ignored(data).beacon
    else:
        result = read(data)
        assert type(result) is type(expected)
        assert result == expected


def ignored(data: bytes) -> Ignored:
    with pytest.raises(Malformed) as caught:
        read(data)
    assert isinstance(caught.value, Ignored)
    assert not caught.value.reason.fatal
    return caught.value


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"", "unknown datagram ''"),
        (b"Rohan", "unknown datagram 'Rohan'"),
        (b"  <3 1795246621 Rohan", "unknown datagram '  <3 1795246621 Rohan'"),
        (b" Rohan <3", "unknown datagram ' Rohan <3'"),
        (b"\xff\x00\n", r"unknown datagram '\xff\x00\n'"),
        (b"ping 1795246621", "unknown datagram 'ping 1795246621'"),
        (b" UwU 1795246621 {}", "unknown datagram ' UwU 1795246621 {}'"),
        (b" <3", "the datagram has no time"),
        (b"<3", "the datagram has no time"),
        (b"</3", "the datagram has no time"),
        (b" <3 Rohan", "the time is neither a float nor a decimal number"),
        (b" <3  Rohan", "the time is neither a float nor a decimal number"),
        (b" <3 " + TIME + b" Rohan", "the time is neither a float nor a decimal number"),
        (b"Rohan <3 now", "the time is neither a float nor a decimal number"),
        (b" <3 1795246621 \xff", "the name in the heartbeat is none that a service can have"),
        (b"\xff <3", "the name in the heartbeat is none that a service can have"),
        (b" <3 1 " + b"n" * (MAX_NAME + 1), "the name in the heartbeat is none that a service can have"),
        (b" <3 1 " + b"n" * MAX_DATAGRAM, "the datagram has more than 1024 bytes"),
        (b"x" * 65_507, "the datagram has more than 1024 bytes"),
        (b"\x01\x00", "the datagram ends in a frame"),
        (b"\x01\x00\x00", "the datagram ends in a frame"),
        (binary(b"", b"<3", TIME, b"Rohan")[:-1], "the datagram ends in a frame"),
        (binary(b"", b"<3", TIME, b"Rohan") + b"x", "the datagram does not end with its last frame"),
        (b"\x01\x00\x02\x023c", "the datagram does not end with its last frame"),
        (binary(b"", b"<3"), "the message has fewer than three frames"),
        (binary(b"", b"x", TIME), "unknown command 'x'"),
        (binary(b"", b"UwU", TIME, b'{"name": "a"}'), "the command is none for a datagram"),
        (binary(b"", b"ping", TIME), "the command is none for a datagram"),
    ],
    ids=lambda value: repr(value)[:40],
)
def test_everything_else_is_ignored(data: bytes, text: str) -> None:
    malformed = ignored(data)
    assert (malformed.text, malformed.beacon) == (text, False)


@pytest.mark.parametrize(
    "data",
    [
        b"SHALOM 5246",
        b"SHALOM 5246 <3 1618818051.123456 CoreCatalogService",
        b"SHALOM 5246 <3 1618818051.123456",
        b"GONDOR_CALLS_FOR_AID",
    ],
)
def test_beacons_of_other_brokers_are_told_from_nonsense(data: bytes) -> None:
    assert ignored(data).beacon


def test_the_beacon_is_hermes_own() -> None:
    assert beacon(5246) == bytes.fromhex("5348414c4f4d2035323436")
    assert beacon(65535).decode().split(" ") == ["SHALOM", "65535"]


def test_what_is_sent_is_frames_joined_by_spaces() -> None:
    assert heartbeat(1795246621.35, "Rohan") == bytes.fromhex("203c3320313739353234363632312e33353030303020526f68616e")
    assert heartbeat(1.5, "é\ud800") == b" <3 1.500000 \xc3\xa9\\ud800"
    assert disconnect(NOW) == b" </3 1795246621.350000"
    assert ack(NOW) == b" u.u 1795246621.350000"


def test_what_is_sent_is_read_by_another_broker() -> None:
    assert read(heartbeat(NOW, "The Riders of Rohan")) == Beat(TEXT, NOW, "The Riders of Rohan")
    assert read(disconnect(NOW)) == Bye(TEXT, NOW, None)
    assert read(ack(NOW)) == Ack(TEXT, NOW)
    assert ignored(beacon(5246)).beacon


def test_nothing_but_the_beacon_looks_like_one_to_hermes() -> None:
    # Its nodes connect to whatever port stands behind the first space.
    for sent in (heartbeat(NOW, "Rohan"), disconnect(NOW), ack(NOW)):
        assert not sent.split(b" ")[1].isdigit()
