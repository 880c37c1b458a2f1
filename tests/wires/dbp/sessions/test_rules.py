"""DBP: the 24 rules by which the broker resolves what the document leaves open or says in two ways.

The number of a test is that of its rule. Rules about sockets and files of the running broker (9, 17, 22) are tested
here as far as they are decided by the sessions; the rest is tested where the sockets are. Rules 4 and 22, and what
others repeat of the document, are tested in test_document.py, rule 14 (contracts and questions) in test_liveness.py,
forged addresses in test_spoofing.py.

The file is longer than others: it follows the numbered rules, which refer to each other.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from typing import Any

import pytest
from twisted.internet.task import Clock

from broker.core.model import Kind, Rights
from broker.core.turns import all_at_once
from broker.wires.dbp.dbp_settings import Dbp
from broker.wires.dbp.sessions.outbound import Beacon
from tests.recording.farm import START
from tests.recording.logs import nothing_fails
from tests.wires.dbp.recording import (
    BEACON_PORT,
    ELSEWHERE,
    FLOAT32,
    HERE,
    NAME,
    TEXT,
    THERE,
    DbpFarm,
    DbpPeer,
    RecordingUdp,
    T,
)

SOURCE = (THERE, 40_000)
FLOAT64 = struct.pack("<d", START)
FLOAT64_BIG = struct.pack(">d", START)
OLD = b"1000000000"
HERMES: dict[str, Any] = {
    "interfaces": {"router": {"ip": "127.0.0.1", "port": 5247}},
    "reg_time": "Sat Nov 21 07:37:01 2026",
    "topics": None,
}
TIMED: dict[str, Any] = {"ip": "192.0.2.7", "port": 6000, "function": "x", "heartbeat": 1000, "liveness": 3}
UNTIMED: dict[str, Any] = {"ip": "192.0.2.7", "port": 6000, "function": "x"}


@pytest.fixture
def farm() -> Iterator[DbpFarm]:
    with nothing_fails():
        yield DbpFarm()


def seconds(time: bytes) -> float:
    """The time in a time frame of the broker."""
    if len(time) == 4:
        value: float = struct.unpack("<f", time)[0]
        return value
    return float(time)


def is_deaf(peer: DbpPeer) -> bool:
    """True if the broker does not even answer requests of this connection."""
    return peer.ask("u_U", T, "") == []


def gone(farm: DbpFarm, name: str) -> bool:
    """True if clients are told that there is no such service."""
    return "Error" in farm.dealer(ELSEWHERE).find(name)


def go_on(farm: DbpFarm, name: str, intervals: int, source: tuple[str, int] = SOURCE) -> None:
    """Heartbeats by UDP, one a second."""
    for _ in range(intervals):
        farm.datagram(b" <3 %.6f %b" % (farm.clock.seconds(), name.encode()), source)
        farm.wait(1.0)


def heartbeats(messages: list[list[bytes]]) -> list[list[bytes]]:
    """The heartbeats among messages."""
    return [frames for frames in messages if frames[0] == b"<3"]


# 1: the time frame


@pytest.mark.parametrize(
    "time", [FLOAT32, struct.pack("<f", 0), struct.pack(">f", START), b"\xff\xff\xff\xff", b"1795"]
)
def test_01_four_bytes_are_a_float32_whatever_they_say(farm: DbpFarm, time: bytes) -> None:
    """4 bytes are a little-endian float32, and the answer has such a time."""
    [[command, answer, _]] = farm.req(time=time).ask("u_U", T, "")
    assert command == b"o_O"
    assert answer == FLOAT32


@pytest.mark.parametrize(("time", "form"), [(FLOAT64, "<d"), (FLOAT64_BIG, ">d"), (b"\0" * 8, "<d")])
def test_01_eight_bytes_that_are_no_text_are_a_float64(farm: DbpFarm, time: bytes, form: str) -> None:
    """8 non-text bytes are a float64, little-endian, or big-endian if only that is plausible."""
    [[command, answer, _]] = farm.dealer(time=time).ask("u_U", T, "")
    assert (command, answer) == (b"o_O", struct.pack(form, START))


@pytest.mark.parametrize("time", [b"1795246600", b"1795246600.5", TEXT, b"17952466", b"1.7952e09", b"0"])
def test_01_anything_else_is_a_decimal_number(farm: DbpFarm, time: bytes) -> None:
    """Otherwise the time is an ASCII decimal, also one of eight characters."""
    [[command, answer, _]] = farm.dealer(time=time).ask("u_U", T, "")
    assert (command, answer) == (b"o_O", TEXT)


@pytest.mark.parametrize("command", ["u_U", "UwU", "UoU", "<3", "</3", "u.u", "ping", "o_O"])
@pytest.mark.parametrize("time", [b"", b"now", b"12:00", b"\xff", b"1e999", b"nan", b"1" * 100, b"-1", b" 1795246600"])
def test_01_a_time_that_cannot_be_decoded_makes_the_message_invalid(farm: DbpFarm, command: str, time: bytes) -> None:
    """Not decodable (empty, text) is an invalid message: no answer, and silence."""
    peer = farm.dealer()
    assert peer.ask(command, time, {"name": "Rohan"}) == []
    assert is_deaf(peer)
    assert gone(farm, "Rohan")


@pytest.mark.parametrize("time", [FLOAT32, FLOAT64, FLOAT64_BIG, TEXT])
def test_01_every_answer_has_the_encoding_of_its_message(farm: DbpFarm, time: bytes) -> None:
    """The broker answers in the encoding that the peer used last."""
    peer = farm.req(time=time)
    other = farm.req(time=time)
    replies = [
        *peer.register("Rohan", **TIMED),
        *peer.ask("UoU", T, {"name": "Rohan", "topics": []}),
        *peer.ask("UoU", T, {"name": "Gondor"}),
        *peer.ask("UoU", T, "no JSON"),
        *peer.ask("<3", T, "Rohan"),
        *peer.ask("u_U", T, "Rohan"),
        *peer.ask("u_U", T, b"\xff"),
        *peer.ask("u_U", T, "mmi.service", "Rohan"),
        *peer.ask("ping", T, "Hello!"),
        *peer.register("Rohan"),
        *other.ask("UwU", T, {"name": "Error"}),
        *other.ask("o_O", T, "{}"),
    ]
    commands = [frames[0].replace(b"OmO", b"(O_O)") for frames in replies]
    assert commands == [
        b"OwO", b"u.u", b"(O_O)", b"(O_O)", b"u.u", b"o_O", b"o_O", b"o_O", b"pong", b"</3", b"(O_O)", b"</3"
    ]  # fmt: skip
    assert {frames[1] for frames in replies} == {time}


@pytest.mark.parametrize("command", ["<3", "UoU", "u.u", "u_U"])
def test_01_what_is_not_asked_for_has_the_encoding_used_last(farm: DbpFarm, command: str) -> None:
    """Also heartbeats are in the encoding that the peer used last, whatever command had it."""
    peer = farm.dealer().registered("Rohan", **TIMED)
    peer.ask("<3", T, "Rohan")
    peer.time = FLOAT32
    peer.ask(command, T, {"name": "Rohan"} if command == "UoU" else "Rohan")
    farm.wait(2.2)
    beats = heartbeats(peer.take())
    assert beats
    assert {len(time) for _, time, _ in beats} == {4}


def test_01_what_goes_to_unknown_peers_has_a_decimal_number() -> None:
    """Unsolicited to an unknown peer, the time is ASCII decimal: by UDP, and in questions to restored services."""
    first = DbpFarm()
    first.dealer(THERE, time=FLOAT64).registered("Rohan", **UNTIMED)
    farm = DbpFarm(Dbp(probe=5.0), first.registry.providers(), beacon=("192.0.2.255",))
    [beat] = farm.udp.take(("192.0.2.255", 5246))
    assert float(beat.split(b" ")[2]) == START
    [told] = farm.datagram(b" <3 1795246600 Gondor")
    assert float(told.split(b" ")[2]) == START
    farm.wait(6.0)
    assert float(farm.probes.asked[0].frames[2]) == pytest.approx(START + 5, abs=0.1)


@pytest.mark.parametrize("time", [OLD, b"9999999999", b"0", struct.pack("<f", float("nan")), struct.pack("<d", -1e300)])
def test_01_liveness_does_not_depend_on_what_the_time_says(farm: DbpFarm, time: bytes) -> None:
    """Liveness and staleness are never judged by the time frame."""
    peer = farm.dealer().registered("Rohan", **TIMED)
    peer.time = time
    for _ in range(6):
        farm.wait(1.0)
        peer.send("<3", T, "Rohan")
    assert not gone(farm, "Rohan")
    farm.wait(3.2)
    assert gone(farm, "Rohan")


def test_01_liveness_by_udp_does_not_depend_on_what_the_time_says(farm: DbpFarm) -> None:
    """The same for datagrams: an old one keeps alive, one from the future not for longer, and order does not matter."""
    farm.dealer().registered("Rohan", **TIMED)
    for time in (b"1795249999", b"1000", b"9999999999.9", b"0", b"0"):
        farm.wait(1.0)
        farm.datagram(b" <3 %b Rohan" % time)
    assert not gone(farm, "Rohan")
    farm.wait(3.2)
    assert gone(farm, "Rohan")


# 2: registering


def test_02_after_a_denial_one_may_register_on_the_same_connection(farm: DbpFarm) -> None:
    """Only after OwO is a second UwU unexpected."""
    peer = farm.dealer()
    [frames] = peer.register("Error")
    assert frames[0] == b"(O_O)"
    peer.registered("Rohan")


def test_02_the_same_name_from_a_new_connection_is_a_new_registration(farm: DbpFarm) -> None:
    """The same name from a new connection is a re-registration: OwO, and the new info counts."""
    farm.hermes().registered("Rohan", **HERMES, version=1)
    farm.hermes().registered("Rohan", **HERMES, version=2)
    farm.dealer(HERE).registered("Rohan", **TIMED, version=3)
    assert farm.dealer().find()["Rohan"]["version"] == 3
    assert len(farm.hostports("Rohan")) == 1


@pytest.mark.parametrize("frames", [("UoU", T, {"name": "Rohan"}), ("<3", T, "Rohan")])
def test_02_the_first_registration_of_a_connection_is_expected(farm: DbpFarm, frames: tuple[Any, ...]) -> None:
    """Only after OwO is UwU unexpected: one may have updated a service, or sent its heartbeat, and register another."""
    farm.dealer().registered("Rohan", **TIMED).close()
    peer = farm.dealer()
    peer.ask(*frames)
    [approved] = peer.register("Gondor")
    assert approved[0] == b"OwO"


def test_02_after_approval_the_broker_sends_no_requests(farm: DbpFarm) -> None:
    """After OwO only heartbeats and DISCONNECT follow: the dialog "REQUEST, REPLY" of the document does not exist."""
    peer = farm.dealer().registered("Rohan", **TIMED)
    farm.dealer(ELSEWHERE).find("Rohan")
    farm.wait(5.0)
    assert {frames[0] for frames in peer.take()} == {b"<3", b"</3"}


# 3: DENIED


@pytest.mark.parametrize(
    "info",
    [
        {"name": "Error"},
        {"name": "Error", "interfaces": {}},
        {"name": "Error", "reg_time": "now"},
        {"name": "Error", **TIMED},
        {"function": "x"},
    ],
)
def test_03_denied_is_five_bytes_to_all_but_hermes(farm: DbpFarm, info: dict[str, Any]) -> None:
    """The literal is (O_O), five bytes, also to a REQ, unless the registration has both of Hermes' keys."""
    for peer in (farm.dealer(), farm.req(), farm.hermes()):
        [[command, _, reason]] = peer.ask("UwU", T, info)
        assert command == b"(O_O)"
        assert command.hex() == "284f5f4f29"
        assert reason


@pytest.mark.parametrize("name", ["Error", "", 7, None, ["a"]])
def test_03_a_denied_registration_of_hermes_is_told_so_in_its_word(farm: DbpFarm, name: object) -> None:
    """With the keys interfaces and reg_time OmO is sent: then Hermes logs the reason, and shuts down in order."""
    [[command, time, reason]] = farm.hermes().ask("UwU", T, {"name": name, **HERMES})
    assert command == b"OmO"
    assert time == FLOAT32
    assert reason


def test_03_a_registration_of_hermes_that_is_too_long_is_told_so_in_its_word(farm: DbpFarm) -> None:
    """Its keys are there, so that it can log the reason: a node with thousands of topics would never know it."""
    topics = [f"topic {n}" for n in range(2_000)]
    [[command, _, reason]] = farm.hermes().register("Rohan", **{**HERMES, "topics": topics})
    assert b"bytes" in reason
    assert command == b"OmO"


def test_03_an_update_is_denied_in_the_words_of_the_document(farm: DbpFarm) -> None:
    """OmO is for denied registrations of that shape: a peer of the document that fails to update gets (O_O)."""
    farm.hermes(THERE).registered("Rohan", **HERMES)
    [[command, _, reason]] = farm.dealer(ELSEWHERE).ask("UoU", T, {"name": "Rohan", "topics": []})
    assert command == b"(O_O)"
    assert reason


@pytest.mark.parametrize("body", ["no JSON", '{"name": 7}', json.dumps({"x": "x" * 70_000}), '{"name": "nobody"}'])
def test_03_the_connection_decides_on_the_word_for_an_update(farm: DbpFarm, body: str) -> None:
    """An update that cannot be read is denied in the same word as any other."""
    [[command, _, reason]] = farm.hermes().ask("UoU", T, body)
    assert (command, bool(reason)) == (b"OmO", True)
    for peer in (farm.dealer(), farm.req()):
        [[command, *_]] = peer.ask("UoU", T, body)
        assert command == b"(O_O)"


def test_03_hermes_keys_in_an_update_are_no_sign_of_hermes(farm: DbpFarm) -> None:
    [[command, *_]] = farm.dealer().ask("UoU", T, {"name": 7, **HERMES})
    assert command == b"(O_O)"


# 5: how many frames


def test_05_extra_frames_are_ignored(farm: DbpFarm) -> None:
    """Frames behind those that a command has change nothing."""
    peer = farm.dealer()
    [approved] = peer.ask("UwU", T, {"name": "Rohan", "ip": "192.0.2.7"}, "{}", "", b"\xff" * 100)
    assert approved[0] == b"OwO"
    [ack] = peer.ask("UoU", T, {"name": "Rohan", "topics": ["a"]}, '{"topics": []}', b"\xff")
    assert ack[0] == b"u.u"
    assert peer.ask("<3", T, "Rohan", b"\xff", "") == []
    assert peer.ask("u.u", T, "more", b"\xff") == []
    assert peer.find("Rohan") == {"Rohan": {"ip": "192.0.2.7", "topics": ["a"]}}
    [listed] = peer.ask("u_U", T, "Rohan", "", "Gondor")
    assert "Error" not in json.loads(listed[2])
    assert peer.ask("</3", T, "", b"\xff") == []
    assert gone(farm, "Rohan")


def test_05_a_dealer_with_four_bytes_of_time_is_no_hermes_peer(farm: DbpFarm) -> None:
    """Hermes has no DEALERs: such a peer follows the document."""
    peer = farm.dealer(time=FLOAT32)
    [approved] = peer.register("Rohan", **TIMED)
    assert len(approved) == 5
    [ack] = peer.ask("UoU", T, {"name": "Rohan"})
    assert len(ack) == 2


def test_05_what_hermes_peers_are_sent(farm: DbpFarm) -> None:
    """To a Hermes peer everything has four frames, </3 and u.u with an empty one behind."""
    peer = farm.hermes()
    assert [len(frames) for frames in peer.register("Rohan", **HERMES)] == [3]
    [ack] = peer.ask("UoU", T, {"name": "Rohan"})
    assert ack == [b"u.u", FLOAT32, b""]
    [listed] = peer.ask("u_U", T, "")
    assert len(listed) == 3
    [parted] = peer.ask("o_O", T, "{}")
    assert parted == [b"</3", FLOAT32, b""]


# 6: the empty frame


@pytest.mark.parametrize("first", [b"0", b" ", b"MDPC01", b"\0"])
@pytest.mark.parametrize("command", [b"u_U", b"UwU", b"</3", b"<3"])
def test_06_a_command_behind_a_wrong_delimiter_is_not_executed(farm: DbpFarm, first: bytes, command: bytes) -> None:
    """The first frame must be empty; otherwise the message is invalid, and nothing in it is done."""
    peer = farm.dealer().registered("Rohan", **TIMED)
    peer.send_raw(first, command, TEXT, b'{"name": "Gondor"}')
    assert peer.take() == []
    assert is_deaf(peer)
    assert gone(farm, "Gondor")
    assert not gone(farm, "Rohan")


# 7: the datagrams


def binary(*frames: bytes) -> bytes:
    """Frames as ZMTP has them."""
    last = len(frames) - 1
    return b"".join(bytes([n < last, len(frame)]) + frame for n, frame in enumerate(frames))


@pytest.mark.parametrize(
    "datagram",
    [
        b" <3 1795246600.000000 Rohan",
        b"<3 1795246600 Rohan",
        b"Rohan <3",
        b"Rohan <3 1795246600.5",
        binary(b"", b"<3", TEXT, b"Rohan"),
        binary(b"", b"<3", FLOAT32, b"Rohan"),
        binary(b"", b"<3", FLOAT64, b"Rohan"),
    ],
)
def test_07_a_heartbeat_is_read_in_every_form(farm: DbpFarm, datagram: bytes) -> None:
    """Joined by one space, without the leading space, in the old beacon's style, and as binary frames."""
    farm.dealer().registered("Rohan", **TIMED)
    for _ in range(6):
        farm.wait(1.0)
        farm.datagrams.receive(datagram, SOURCE)
    assert not gone(farm, "Rohan")
    farm.wait(3.2)
    assert gone(farm, "Rohan")


@pytest.mark.parametrize("name", ["Minas Tirith", "a  b", " a", "a ", "<3", "a <3 b", "Edoras é", "x" * 255])
def test_07_a_name_may_have_spaces(farm: DbpFarm, name: str) -> None:
    """At most three splits: the rest of the datagram is the name."""
    farm.dealer().registered(name, **TIMED)
    go_on(farm, name, 5)
    assert not gone(farm, name)


def test_07_a_heartbeat_without_a_name_is_of_the_services_there(farm: DbpFarm) -> None:
    """The sender is found by its source address."""
    for name in ("Rohan", "Gondor"):
        farm.dealer().registered(name, **TIMED)
        farm.datagram(b" <3 1795246600 %b" % name.encode())
    for _ in range(5):
        farm.wait(1.0)
        farm.datagram(b" <3 1795246600")
    assert not gone(farm, "Rohan")
    assert not gone(farm, "Gondor")


@pytest.mark.parametrize(
    "end", [b" </3 1795246600", b" </3 1795246600 Rohan", b"</3 1 Rohan", binary(b"", b"</3", b"1")]
)
def test_07_a_disconnect_is_read_with_and_without_a_name(farm: DbpFarm, end: bytes) -> None:
    """ " </3 TIME" and " </3 TIME NAME"."""
    farm.dealer().registered("Rohan", **TIMED)
    farm.datagram(b" <3 1795246600 Rohan")
    assert farm.datagram(end) == []
    assert gone(farm, "Rohan")


@pytest.mark.parametrize(
    "datagram",
    [
        b"SHALOM 5246",
        b"SHALOM 5246 <3 1618818051.123456 Rohan",
        b"GONDOR_CALLS_FOR_AID",
        b"",
        b" ",
        b"<3",
        b" <3",
        b" <3 ",
        b" <3 now Rohan",
        b" <3 1795246600 rohan",
        b" <3 1795246600 Rohan ",
        b"  <3 1795246600 Rohan",
        b" <3  1795246600 Rohan",
        b" <3 1795246600 \xff",
        b"\0" * 600,
        b" UwU 1795246600 {}",
        b" <3 1795246600 Rohan".ljust(1025, b" "),
        binary(b"x", b"<3", TEXT, b"Rohan"),
        binary(b"", b"<3", TEXT, b"Rohan") + b"\0",
        binary(b"", b"<3", TEXT, b"Rohan")[:-1],
        binary(b"", b"UwU", TEXT, b'{"name": "Gondor"}'),
    ],
)
def test_07_all_else_is_ignored(farm: DbpFarm, datagram: bytes) -> None:
    """Everything else is no sign of life; names are compared with case. A datagram that is no heartbeat has no
    answer."""
    farm.dealer().registered("Rohan", **TIMED)
    farm.datagram(b" <3 1795246600 Rohan")
    answers = []
    for _ in range(2):
        farm.wait(1.5)
        answers += farm.datagram(datagram, (THERE, 41_000))
    farm.wait(0.2)
    assert gone(farm, "Rohan")
    assert gone(farm, "Gondor")
    unknown_name = datagram in (b" <3 1795246600 rohan", b" <3 1795246600 Rohan ", b" <3  1795246600 Rohan")
    assert unknown_name or answers == []


def heartbeat_of(size: int) -> bytes:
    """A heartbeat of so many bytes: frames behind the name are ignored."""
    frames = [b"", b"<3", b"1", b"Rohan", *[b"x" * 240] * 4]
    datagram = binary(*frames, b"x" * (size - len(binary(*frames)) - 2))
    assert len(datagram) == size
    return datagram


def test_07_the_limit_is_1024_bytes(farm: DbpFarm) -> None:
    """A datagram may have 1024 bytes, and no more."""
    farm.dealer().registered("Rohan", **TIMED)
    longest = heartbeat_of(1024)
    for _ in range(5):
        farm.wait(1.0)
        farm.datagram(longest)
    assert not gone(farm, "Rohan")
    for _ in range(4):
        farm.wait(0.8)
        farm.datagram(heartbeat_of(1025))
    assert gone(farm, "Rohan")


def test_07_the_beacon_is_exact_and_comes_every_second() -> None:
    """ "SHALOM <port>" in ASCII, without a newline or a tail, to each address at the beacon's port."""
    farm = DbpFarm(beacon=("255.255.255.255", "127.255.255.255"))
    farm.wait(9.5)
    for address in ("255.255.255.255", "127.255.255.255"):
        assert farm.udp.take((address, 5245)) == [bytes.fromhex("5348414c4f4d2035323436")] * 10


@pytest.mark.parametrize("addresses", [("192.0.2.255", "198.51.100.255"), ()])
def test_07_a_beacon_that_was_stopped_tells_nothing_more(addresses: tuple[str, ...]) -> None:
    clock, udp = Clock(), RecordingUdp()
    beacon = Beacon(udp, clock, addresses, BEACON_PORT, 5246, 5246, NAME)
    beacon.stop()
    beacon.start()
    clock.pump([0.5] * 5)
    assert len(udp.sent) == 3 * 2 * len(addresses)
    udp.sent.clear()
    beacon.stop()
    beacon.stop()
    clock.pump([0.5] * 20)
    assert udp.sent == []
    assert clock.getDelayedCalls() == []
    beacon.start()
    assert len(udp.sent) == 2 * len(addresses)
    beacon.stop()


def test_07_the_heartbeat_to_all_is_in_the_documents_form() -> None:
    """HEARTBEAT is broadcast to the port of heartbeats."""
    farm = DbpFarm(beacon=("192.0.2.255",))
    farm.wait(3.5)
    beats = farm.udp.take(("192.0.2.255", 5246))
    frames = [beat.split(b" ", 3) for beat in beats]
    assert [[empty, command, name] for empty, command, _, name in frames] == [[b"", b"<3", NAME.encode()]] * 4
    assert [float(time) for _, _, time, _ in frames] == pytest.approx([START + n for n in range(4)], abs=0.01)


# 8: two ways of heartbeats


def test_08_heartbeats_count_by_udp_and_over_the_router_in_any_mixture(farm: DbpFarm) -> None:
    """Each refreshes the same service."""
    peer = farm.dealer().registered("Rohan", **TIMED)
    ways = [
        lambda: farm.datagram(b" <3 1795246600 Rohan"),
        lambda: peer.send("<3", T),
        lambda: peer.send("<3", T, "Rohan"),
        lambda: farm.req().send("<3", T, "Rohan"),
        lambda: farm.dealer().send("<3", T, "Rohan"),
    ]
    for n in range(15):
        ways[n % 5]()
        farm.wait(2.0)
        assert farm.catalogue.get("Rohan") is not None
    farm.wait(1.2)
    assert gone(farm, "Rohan")
    assert len(farm.hostports("Rohan")) == 0


def test_08_all_datagrams_leave_through_the_one_socket(farm: DbpFarm) -> None:
    """ "The same sockets": the broker's one UDP socket sends and receives. Answers go to the source."""
    farm.dealer().registered("Rohan", **TIMED)
    farm.datagrams.receive(b" <3 1 Rohan", SOURCE)
    farm.datagrams.receive(b" <3 1 Gondor", (ELSEWHERE, 41_000))
    assert {to for _, to in farm.udp.sent} == {(ELSEWHERE, 41_000)}
    farm.wait(1.2)
    assert {to for _, to in farm.udp.sent} == {(ELSEWHERE, 41_000), SOURCE}


# 9: the sockets


def test_09_the_beacon_announces_the_real_port(farm: DbpFarm) -> None:
    """Ports can be configured, and nodes take the TCP port out of the beacon."""
    Beacon(farm.udp, farm.clock, ["192.0.2.255"], 5300, 7001, 7002, NAME).start()
    assert farm.udp.take(("192.0.2.255", 5300)) == [b"SHALOM 7001"]
    assert len(farm.udp.take(("192.0.2.255", 7002))) == 1
    assert farm.udp.sent == []


# 10: what a request asks for


def test_10_several_names_are_answered_in_one_object(farm: DbpFarm) -> None:
    """More frames after the first name: all of them in the same object. A name with a comma is one name."""
    for name in ("Rohan", "Gondor", "a,b"):
        farm.dealer().registered(name, **UNTIMED)
    peer = farm.dealer()
    assert peer.find("Rohan") == {"Rohan": UNTIMED}
    assert peer.find("Gondor", "Rohan") == {"Gondor": UNTIMED, "Rohan": UNTIMED}
    assert peer.find("a,b") == {"a,b": UNTIMED}
    assert "Error" in peer.find("Rohan,Gondor")
    some = peer.find("Rohan", "Mordor")
    assert some.pop("Error")
    assert some == {"Rohan": UNTIMED}


# 11: what is not available


@pytest.mark.parametrize("name", ["Mordor", "a b", "é", "\u2764", "rohan", '"'])
def test_11_an_unknown_name_is_answered_in_hermes_words(farm: DbpFarm, name: str) -> None:
    """For a name that was never known, exactly the text of Hermes, and nothing else."""
    farm.dealer().registered("Rohan")
    assert farm.dealer().find(name) == {"Error": f"No Registered Service With the Name {name}"}


@pytest.mark.parametrize("how", ["expired", "disconnected", "disconnected by UDP"])
def test_11_a_name_that_was_there_is_inactive(farm: DbpFarm, how: str) -> None:
    """An inactive warning: the key Error, which says so, and more keys."""
    peer = farm.dealer().registered("Rohan", **TIMED)
    if how == "expired":
        farm.wait(4.0)
    elif how == "disconnected":
        peer.send("</3", T)
    else:
        farm.datagram(b" </3 1795246600 Rohan")
    warning = farm.dealer().find("Rohan")
    assert "inactive" in warning["Error"].lower()
    assert "Rohan" in warning["Error"]
    assert warning["status"] == "inactive"
    assert START <= warning["last_seen"] <= START + 4
    farm.dealer().registered("Rohan", **UNTIMED)
    assert farm.dealer().find("Rohan") == {"Rohan": UNTIMED}


@pytest.mark.parametrize("name", ["Error", "", None, 7, 7.5, True, ["Rohan"], {"a": 1}])
def test_11_some_names_are_denied(farm: DbpFarm, name: object) -> None:
    """Registration of the name Error, of empty and of non-string names is denied."""
    [frames] = farm.dealer().ask("UwU", T, {**TIMED, "name": name})
    assert frames[0] == b"(O_O)"
    assert farm.dealer().find() == {}


# 12: the least that a service says


@pytest.mark.parametrize(
    ("info", "hostport"),
    [
        ({"ip": "192.0.2.9", "port": 6000}, "192.0.2.9:6000"),
        ({"ip_addr": "192.0.2.9", "port": 6000}, "192.0.2.9:6000"),
        ({"ip": "192.0.2.9", "port": "6000"}, "192.0.2.9:6000"),
        (HERMES, f"{THERE}:5247"),
        ({"interfaces": {"router": {"ip": "192.0.2.9", "port": 6000}}}, "192.0.2.9:6000"),
        ({"interfaces": {"pub": {"ip": "192.0.2.9", "port": 6001}}}, "192.0.2.9:6001"),
        ({"ip": "127.0.0.1", "port": 6000}, f"{THERE}:6000"),
        ({"ip": "0.0.0.0", "port": 6000}, f"{THERE}:6000"),
        ({"port": 6000}, f"{THERE}:6000"),
    ],
)
def test_12_the_place_is_read_at_the_top_or_in_the_interfaces(
    farm: DbpFarm, info: dict[str, Any], hostport: str
) -> None:
    """ip or ip_addr and port, or interfaces.*; a loopback address of a remote peer means the peer."""
    farm.dealer(THERE).registered("Rohan", **info)
    assert farm.hostports("Rohan") == [hostport]


@pytest.mark.parametrize(
    "info",
    [
        '"b": 1, "a": {"z": [1, 2.50, -0.0, 1e5], "y": null}, "\\u00e9": "\\u00e9\\ud83d\\ude00"',
        '"ip": "127.0.0.1", "port": 5247, "heartbeat": 1000',
        '"x": "é", "load": 12345678901234567890123, "status": "inactive"',
    ],
)
def test_12_an_info_is_returned_unchanged_but_for_the_name(farm: DbpFarm, info: str) -> None:
    """Everything is stored and returned, in its order and spelling, and no key is added."""
    [frames] = farm.dealer().ask("UwU", T, f'{{"name": "Rohan", {info}}}')
    assert frames[0] == b"OwO"
    for name in ("Rohan", ""):
        [[_, _, body]] = farm.dealer().ask("u_U", T, name)
        assert json.loads(body) == {"Rohan": json.loads(f"{{{info}}}")}
        assert info.replace("é", "\\u00e9").encode() in body or info.encode() in body


# 13: the agreed interval


@pytest.mark.parametrize(
    ("info", "milliseconds", "liveness"),
    [
        ({}, 1000, 3),
        ({"heartbeat": 500}, 500, 3),
        ({"heartbeat": 2}, 2000, 3),
        ({"heartbeat": 0.5}, 500, 3),
        ({"heartbeat": 49}, 49_000, 3),
        ({"heartbeat": 1500}, 1500, 3),
        ({"heartbeat": 1500.5}, 1_500_500, 3),
        ({"heartbeat_interval": 3}, 3000, 3),
        ({"heartbeat_interval": 300}, 300, 3),
        ({"interval": 0.25}, 250, 3),
        ({"interval": 2500}, 2500, 3),
        ({"liveliness": 1000}, 1000, 3),
        ({"liveliness": 400, "retry": 4}, 400, 4),
        ({"liveliness": 2}, 200, 3),
        ({"liveliness": 500.5}, 500, 3),
        ({"heartbeat_ms": 2000}, 2000, 3),
        ({"heartbeat_interval_ms": 700}, 700, 3),
        ({"interval_ms": 20}, 200, 3),
        ({"liveliness_ms": 700}, 700, 3),
        ({"heartbeat": 50}, 200, 3),
        ({"heartbeat": 0.01}, 200, 3),
        ({"heartbeat": 1e-300}, 200, 3),
        ({"heartbeat": 10**9}, 3_600_000, 3),
        ({"heartbeat": 1e308}, 3_600_000, 3),
        ({"interval_ms": 10**15}, 3_600_000, 3),
        ({"heartbeat": 1, "liveness": 5}, 1000, 5),
        ({"heartbeat": 1, "liveness": 9}, 1000, 5),
        ({"heartbeat": 1, "retry": 1}, 1000, 3),
        ({"heartbeat": "soon"}, 1000, 3),
        ({"heartbeat": 0}, 1000, 3),
        ({"heartbeat": -1}, 1000, 3),
        ({"heartbeat": None}, 1000, 3),
    ],
)
def test_13_the_interval_is_read_clamped_and_stated(
    farm: DbpFarm, info: dict[str, Any], milliseconds: int, liveness: int
) -> None:
    """OwO states the agreed values; *_ms and liveliness are ms; others are seconds with a fraction or below 50."""
    [[command, _, configuration, *_]] = farm.dealer().register("Rohan", **info)
    assert command == b"OwO"
    assert json.loads(configuration) == {"heartbeat": milliseconds, "liveness": liveness}


def test_13_the_range_and_the_defaults_are_configured() -> None:
    """The interval is clamped to a configured range; who names none gets the configured one."""
    farm = DbpFarm(Dbp(interval=7.0, least_interval=2.0, most_interval=8.0, liveness=4))
    stated = []
    for info in ({}, {"heartbeat": 1}, {"heartbeat": 9}):
        [[_, _, configuration, *_]] = farm.dealer().register("Rohan", **info)
        stated.append(json.loads(configuration))
    assert stated == [
        {"heartbeat": 7000, "liveness": 4},
        {"heartbeat": 2000, "liveness": 4},
        {"heartbeat": 8000, "liveness": 4},
    ]


# 15: valid but unexpected


def test_15_the_same_by_udp(farm: DbpFarm) -> None:
    """A heartbeat by UDP of a service that is not registered is answered by DISCONNECT to its source."""
    assert farm.datagram(b" <3 1795246600 Rohan") == [b" </3 1795246600.000000"]
    assert farm.datagram(b" <3 1795246600", (ELSEWHERE, 41_000)) == [b" </3 1795246600.000000"]


@pytest.mark.parametrize("kind", ["dealer", "req", "hermes"])
def test_15_an_update_of_an_unregistered_service_is_denied(farm: DbpFarm, kind: str) -> None:
    """DENIED is "for unauthorized or unregistered services": not DISCONNECT, and one may go on."""
    peer: DbpPeer = getattr(farm, kind)(THERE)
    updates: list[dict[str, Any]] = [{"name": "Rohan", "topics": []}, {"topics": []}]
    for update in updates:
        [[command, _, reason]] = peer.ask("UoU", T, update)
        assert command in ((b"(O_O)", b"OmO") if kind == "hermes" else (b"(O_O)",))
        assert reason
    assert gone(farm, "Rohan")
    peer.registered("Rohan")


def test_15_a_request_is_never_unexpected(farm: DbpFarm) -> None:
    """u_U is answered to everybody, also to a registered service, and before anything else."""
    peer = farm.dealer()
    assert peer.find() == {}
    peer.registered("Rohan", **UNTIMED)
    for _ in range(3):
        assert peer.find("Rohan") == {"Rohan": UNTIMED}
    [ack] = peer.ask("UoU", T, {"name": "Rohan"})
    assert ack[0] == b"u.u"


# 16: invalid


INVALID: list[tuple[Any, ...]] = [
    ("u_u", T, ""),
    ("UWU", T, "{}"),
    ("u_U ", T, ""),
    ("", T, "Error: Invalid Message Envelope."),
    ("^o^", T, ""),
    ("<\\3", T, ""),
    ("Bye!", T, ""),
    ("pong", T, "Rohan"),
    (b"\xff\x00", T, ""),
    (b"x" * 100_000, T, ""),
    ("Error: Invalid command type. Please register command callback with the server.", T, ""),
    ("<3", T, b"\xff"),
]


@pytest.mark.parametrize("frames", INVALID)
@pytest.mark.parametrize("kind", ["dealer", "req", "hermes"])
def test_16_an_invalid_message_is_dropped_and_the_connection_closed(
    farm: DbpFarm, kind: str, frames: tuple[Any, ...]
) -> None:
    """No reply, and the connection is closed; the next one, and all others, are served."""
    peer: DbpPeer = getattr(farm, kind)(THERE)
    other: DbpPeer = getattr(farm, kind)(THERE)
    assert peer.ask(*frames) == []
    assert peer.closed
    assert not is_deaf(other)
    assert gone(farm, "Gondor")
    peer.close()
    peer.connect()
    peer.registered("Gondor")


BAD = [
    "",
    "{",
    "[]",
    "7",
    "null",
    '"Rohan"',
    b"\xff",
    b'{"name": "\xff"}',
    '{"name": 7}',
    '{"name": ""}',
    '{"name": null, "a": 1} x',
    "{'name': 'Rohan'}",
    '{"name": "%s"}' % ("x" * 256),
    '{"name": "Rohan", "a": %s}' % ("[" * 500 + "]" * 500),
    '{"name": "Rohan", "a": "%s"}' % ("x" * 20_000),
]


@pytest.mark.parametrize("body", BAD)
@pytest.mark.parametrize("kind", ["dealer", "req", "hermes"])
@pytest.mark.parametrize("command", ["UwU", "UoU"])
def test_16_an_object_that_is_not_taken_is_denied_with_the_reason(
    farm: DbpFarm, kind: str, command: str, body: str | bytes
) -> None:
    """UwU and UoU with bad JSON are answered DENIED, not with silence, and the connection goes on."""
    peer: DbpPeer = getattr(farm, kind)(THERE)
    word = {"UwU": b"(O_O)", "UoU": b"OmO" if kind == "hermes" else b"(O_O)"}
    [[denied, _, reason]] = peer.ask(command, T, body)
    assert denied == word[command]
    assert reason.decode()
    peer.registered("Rohan", **UNTIMED)
    [[denied, _, reason]] = peer.ask("UoU", T, body)
    assert denied == word["UoU"]
    assert peer.find() == {"Rohan": UNTIMED}


def test_16_a_registration_without_a_name_is_denied(farm: DbpFarm) -> None:
    """No name: DENIED, with the reason."""
    [[command, _, reason]] = farm.dealer().ask("UwU", T, UNTIMED)
    assert command == b"(O_O)"
    assert b"name" in reason


@pytest.mark.parametrize("kind", ["dealer", "req", "hermes"])
def test_16_a_ping_is_answered_with_the_brokers_name(farm: DbpFarm, kind: str) -> None:
    """Hermes' clients reach a broker by accident: pong, and its name. One may go on."""
    peer: DbpPeer = getattr(farm, kind)(THERE)
    for _ in range(2):
        [[command, time, name]] = peer.ask("ping", T, "Hello!")
        assert (command, name) == (b"pong", NAME.encode())
        assert len(time) == len(peer.time)


# 17: what a connection is


def test_17_a_connection_that_replaces_another_is_another_connection(farm: DbpFarm) -> None:
    """A connection is known by its number, which never comes again, and not by its identity."""
    peer = farm.dealer(identity=b"rohan")
    peer.registered("Rohan")
    peer.send("o_O", T)
    peer.connect()
    assert not is_deaf(peer)
    peer.registered("Rohan")


def test_17_what_is_kept_of_a_connection_ends_with_it(farm: DbpFarm) -> None:
    """However many peers misbehave, there is no more state than open connections."""
    peers = []
    for n in range(50):
        peers += [farm.dealer(), farm.dealer(), farm.dealer()]
        peers[-3].send("junk", T)
        peers[-2].send("</3", T)
        peers[-1].register(f"service {n}")
    assert len(farm.commands) == 50
    assert [peer.closed for peer in peers[:3]] == [True, True, False]
    for peer in peers:
        peer.close()
    assert len(farm.commands) == 0
    assert len(farm.dealer().find()) == 50


def test_17_of_who_only_asks_nothing_is_remembered(farm: DbpFarm) -> None:
    """Clients come and go."""
    for _ in range(20):
        peer = farm.hermes()
        peer.find()
        peer.ask("ping", T, "")
    assert len(farm.commands) == 0


# 18: DISCONNECT of a service


def test_18_a_disconnect_can_name_a_service_of_its_own_address(farm: DbpFarm) -> None:
    """One named in an extra frame is removed too, from the same address only."""
    farm.dealer(THERE).registered("Rohan")
    farm.dealer(THERE).registered("Gondor")
    assert farm.dealer(ELSEWHERE).ask("</3", T, "Rohan") == []
    assert not gone(farm, "Rohan")
    assert farm.req(THERE).ask("</3", T, "Rohan") == []
    assert gone(farm, "Rohan")
    assert not gone(farm, "Gondor")


# 19: DISCONNECT of the broker


def test_19_the_broker_disconnects_all_when_it_stops(farm: DbpFarm) -> None:
    """To DEALERs on orderly shutdown, under contract or not; never unsolicited to a REQ, nor to who said nothing."""
    dealers = [farm.dealer().registered("Rohan", **TIMED), farm.dealer().registered("Gondor", **UNTIMED)]
    others = [farm.req().registered("Mordor", **TIMED), farm.hermes().registered("Shire", **HERMES)]
    others.append(farm.dealer())
    farm.catalogue.part_all()
    assert [[frames[0] for frames in peer.take()] for peer in dealers] == [[b"</3"], [b"</3"]]
    assert [peer.take() for peer in others] == [[], [], []]


def test_19_a_drain_disconnects_all_services_and_removes_them(farm: DbpFarm) -> None:
    dealers = [farm.dealer().registered("Rohan", **TIMED), farm.dealer().registered("Gondor", **UNTIMED)]
    ends: list[str] = []
    farm.registry.watch(lambda change: ends.append(change.why), (Kind.LEFT,))
    all_at_once(farm.catalogue.send_away())
    assert [[frames[0] for frames in peer.take()] for peer in dealers] == [[b"</3"], [b"</3"]]
    assert gone(farm, "Rohan")
    assert gone(farm, "Gondor")
    # Not withdrawn: in a cluster their entries stay until they are found elsewhere.
    assert ends == ["left", "left"]
    assert farm.counted("dbp_services.drained") == 2
    farm.wait(10.0)
    assert [peer.take() for peer in dealers] == [[], []]


def test_19_a_service_that_an_operator_withdraws_is_sent_a_disconnect_and_removed(farm: DbpFarm) -> None:
    rohan, gondor = (farm.dealer().registered(name, **TIMED) for name in ("Rohan", "Gondor"))
    [service] = farm.registry.services("Rohan")
    farm.registry.withdraw(service.provider, ["Rohan"])
    assert [frames[0] for frames in rohan.take()] == [b"</3"]
    assert farm.catalogue.get("Rohan") is None
    assert farm.registry.provider(service.provider) is None
    assert farm.counted("dbp_services.withdrawn") == 1
    assert gondor.take() == []
    farm.dealer().registered("Rohan", **TIMED)
    assert not gone(farm, "Rohan")


def test_19_a_service_whose_name_may_not_be_offered_any_more_is_sent_a_disconnect_and_removed(farm: DbpFarm) -> None:
    rohan, gondor = farm.dealer().registered("Rohan", **TIMED), farm.dealer().registered("Gondor", **UNTIMED)
    farm.hermes().registered("Shire", **HERMES)
    farm.use(Dbp(), Rights(("Gon*",)))
    assert [frames[0] for frames in rohan.take()] == [b"</3"]
    assert [gone(farm, name) for name in ("Rohan", "Gondor", "Shire")] == [True, False, True]
    assert farm.counted("dbp_services.revoked") == 2
    assert gondor.take() == []
    farm.use(Dbp())
    rohan.connect()
    rohan.registered("Rohan", **TIMED)
    assert not gone(farm, "Rohan")


@pytest.mark.parametrize("kind", ["req", "hermes"])
def test_19_a_req_is_sent_nothing_that_it_did_not_ask_for(farm: DbpFarm, kind: str) -> None:
    """Neither heartbeats nor DISCONNECT, also when it is under contract, expires, or is replaced."""
    peer: DbpPeer = getattr(farm, kind)(THERE).registered("Rohan", **TIMED)
    [ack] = peer.ask("<3", T, "Rohan")
    assert ack[0] == b"u.u"
    farm.wait(10.0)
    assert gone(farm, "Rohan")
    assert peer.take() == []
    replaced: DbpPeer = getattr(farm, kind)(THERE).registered("Rohan", **TIMED)
    farm.dealer(THERE).registered("Rohan", **TIMED)
    farm.catalogue.part_all()
    assert replaced.take() == []


# 20: UPDATE


def test_20_an_update_may_come_from_the_registering_connection(farm: DbpFarm) -> None:
    """With the name, or without it."""
    peer = farm.dealer().registered("Rohan", a=1)
    peer.ask("UoU", T, {"name": "Rohan", "b": 2})
    peer.ask("UoU", T, {"a": None})
    assert farm.dealer().find("Rohan") == {"Rohan": {"a": None, "b": 2}}


@pytest.mark.parametrize("kind", ["dealer", "req", "hermes"])
def test_20_an_update_may_come_from_the_same_address(farm: DbpFarm, kind: str) -> None:
    """Hermes always updates from another connection."""
    getattr(farm, kind)(THERE).registered("Rohan", a={"x": 1}, b=1).close()
    [ack] = getattr(farm, kind)(THERE).ask("UoU", T, {"name": "Rohan", "a": {"y": 2}, "liveliness": 500})
    assert ack[0] == b"u.u"
    assert farm.dealer().find("Rohan") == {"Rohan": {"a": {"y": 2}, "b": 1, "liveliness": 500}}


@pytest.mark.parametrize("kind", ["dealer", "req"])
def test_20_an_update_from_another_address_is_denied(farm: DbpFarm, kind: str) -> None:
    """Nothing is changed, and the service does not live on by it."""
    farm.dealer(THERE).registered("Rohan", **TIMED)
    for _ in range(4):
        farm.wait(0.8)
        [[command, _, reason]] = getattr(farm, kind)(ELSEWHERE).ask("UoU", T, {"name": "Rohan", "port": 1})
        assert command == b"(O_O)"
        assert reason
        assert farm.hostports("Rohan") in (["192.0.2.7:6000"], [])
    assert gone(farm, "Rohan")


# 21: a name that is there already


def test_21_who_has_no_contract_is_replaced_from_anywhere(farm: DbpFarm) -> None:
    """The old entry has no contract: the new one takes its place, and an old DEALER is disconnected."""
    old = farm.dealer(THERE).registered("Rohan", version=1)
    farm.dealer(ELSEWHERE).registered("Rohan", version=2)
    assert [frames[0] for frames in old.take()] == [b"</3"]
    assert is_deaf(old)
    assert farm.dealer().find() == {"Rohan": {"version": 2}}


def test_21_who_has_a_contract_is_replaced_from_its_own_address(farm: DbpFarm) -> None:
    """The new one comes from the same address: a restarted service. All addresses of loopback are one."""
    old = farm.dealer(THERE).registered("Rohan", **TIMED)
    new = farm.dealer(THERE).registered("Rohan", **TIMED, version=2)
    assert [frames[0] for frames in old.take()] == [b"</3"]
    farm.wait(2.1)  # a heartbeat is up to a tick late
    assert [frames[0] for frames in new.take()] == [b"<3"] * 2
    assert old.take() == []
    assert farm.dealer().find("Rohan") == {"Rohan": {**TIMED, "version": 2}}


def test_21_all_loopback_addresses_are_one(farm: DbpFarm) -> None:
    """A machine's own services have the same address, whichever of loopback's they use."""
    farm.dealer("127.0.0.1").registered("Rohan", **TIMED)
    farm.dealer("127.0.0.2").registered("Rohan", **TIMED, version=2)
    assert farm.dealer().find("Rohan") == {"Rohan": {**TIMED, "version": 2}}


def test_21_who_has_a_contract_is_not_replaced_from_elsewhere(farm: DbpFarm) -> None:
    """DENIED "name in use", and the old one stays as it is."""
    old = farm.dealer(THERE).registered("Rohan", **TIMED)
    [[command, _, reason]] = farm.dealer(ELSEWHERE).register("Rohan", version=2)
    assert command == b"(O_O)"
    assert b"in use" in reason
    [[command, _, reason]] = farm.hermes(ELSEWHERE).register("Rohan", **HERMES)
    assert command == b"OmO"
    assert b"in use" in reason
    assert old.take() == []
    assert farm.dealer().find("Rohan") == {"Rohan": TIMED}


def test_21_a_heartbeat_protects_a_name_too(farm: DbpFarm) -> None:
    """A service that has sent one is under contract."""
    farm.dealer(THERE).registered("Rohan", **UNTIMED)
    farm.datagram(b" <3 1795246600 Rohan")
    [frames] = farm.dealer(ELSEWHERE).register("Rohan")
    assert frames[0] == b"(O_O)"


def test_21_who_is_dead_is_replaced_from_anywhere(farm: DbpFarm) -> None:
    """After it expired the name is free."""
    farm.dealer(THERE).registered("Rohan", **TIMED)
    farm.wait(4.0)
    farm.dealer(ELSEWHERE).registered("Rohan", version=2)
    assert farm.dealer().find("Rohan") == {"Rohan": {"version": 2}}


# 23: the broker's restart


def test_23_services_without_a_contract_are_restored() -> None:
    """Hermes services never register again: they are kept, with their info and place, and their rights to update."""
    before = DbpFarm()
    before.hermes(THERE).registered("Rohan", **HERMES)
    before.dealer(THERE).registered("Gondor", **TIMED)
    before.dealer(THERE).registered("Mordor", **UNTIMED)
    before.datagram(b" <3 1795246600 Mordor")
    farm = DbpFarm(known=before.registry.providers())
    assert farm.dealer().find() == {"Rohan": HERMES}
    assert farm.hostports("Rohan") == [f"{THERE}:5247"]
    farm.clock.advance(86_400)
    [ack] = farm.hermes(THERE).ask("UoU", T, {"name": "Rohan", "topics": ["a"]})
    assert ack[0] == b"u.u"
    [denied] = farm.hermes(ELSEWHERE).ask("UoU", T, {"name": "Rohan", "topics": ["b"]})
    assert denied[0] in (b"(O_O)", b"OmO")
    assert farm.dealer().find("Rohan") == {"Rohan": {**HERMES, "topics": ["a"]}}
    farm.hermes(THERE).registered("Rohan", **HERMES)


# 24: no heartbeat besides other commands


def test_24_who_gets_no_other_command_gets_heartbeats_again(farm: DbpFarm) -> None:
    """It is skipped only then."""
    peer = farm.dealer().registered("Rohan", **TIMED)
    peer.ask("<3", T)
    peer.ask("UoU", T, {"name": "Rohan"})
    farm.wait(2.2)
    assert [message[0] for message in peer.take()] == [b"<3"] * 2
