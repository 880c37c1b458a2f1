"""DBP: messages of the nodes of Hermes, byte for byte, and answers that these nodes survive.

Hermes is the original broker and node library. Its nodes are played here by a small reader that does with a message
what they do: it dies of a time that has not four bytes, repeats its question when a reply has too few frames, and takes
whatever comes between its question and the reply for the reply.

The file is longer than others: all its tests use the recorded bytes of the same nodes.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any

import attrs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from twisted.internet.task import Clock

from broker.wires.dbp.dbp_settings import Dbp
from tests.examples import examples
from tests.recording.farm import START
from tests.recording.logs import nothing_fails
from tests.wires.dbp.recording import ELSEWHERE, FLOAT32, HERE, THERE, DbpFarm, T

TIME = struct.Struct("<f")
ENVELOPE = b"Error: Invalid Message Envelope."
UNKNOWN = b"Error: Invalid command type. Please register command callback with the server."
REGISTRATION = (
    b'{"name": "Rohan", "interfaces": {"router": {"ip": "127.0.0.1", "port": 5247}}, '
    b'"reg_time": "Sat Nov 21 07:37:01 2026", "topics": null}'
)
INFO = {
    "interfaces": {"router": {"ip": "127.0.0.1", "port": 5247}},
    "reg_time": "Sat Nov 21 07:37:01 2026",
    "topics": None,
}
BEACON = ("127.255.255.255", 5245)


class Dead(Exception):
    """The process has ended with a struct.error, or with another exception."""


class Hangs(Exception):
    """The node waits for ever: it knows no time-outs."""


class HermesSocket:
    """A REQ socket of a Hermes node, and how it reads."""

    def __init__(self, farm: DbpFarm, address: str = HERE) -> None:
        self.peer = farm.hermes(address)
        self.repeated = 0
        """The number of repeated questions after replies with too few frames."""
        self.stale: list[list[bytes]] = []
        """The messages that came without a question."""

    def ask(self, *frames: bytes) -> tuple[bytes, bytes]:
        """Send a question, with its empty frame; returns the command and the body of the reply."""
        self.stale += self._inbox()
        self.peer.send_raw(b"", *frames)
        return self._read(self._inbox(), frames)

    def _read(self, inbox: list[list[bytes]], question: tuple[bytes, ...]) -> tuple[bytes, bytes]:
        replies = [frames[1:] for frames in inbox if frames and frames[0] == b""]
        if not replies:
            raise Hangs
        if len(replies) > 1:
            raise AssertionError("a REQ got two replies")
        return self.read(replies[0], question)

    def read(self, frames: Sequence[bytes], question: tuple[bytes, ...]) -> tuple[bytes, bytes]:
        """Handle one reply, without the empty frame."""
        if len(frames) < 3:
            self.repeated += 1
            return self.ask(*question, b"", FLOAT32, ENVELOPE)
        command, time, body = frames[:3]
        try:
            struct.unpack("f", time)
        except struct.error as error:
            raise Dead from error
        return command, body

    def close(self) -> None:
        """Close it; messages that came meanwhile are lost."""
        self.stale += self._inbox()
        self.peer.close()

    def _inbox(self) -> list[list[bytes]]:
        return self.peer.take_raw()


@attrs.define
class HermesService:
    """A service: a new REQ for each operation, closed right after the reply."""

    farm: DbpFarm
    address: str = HERE
    denied: bytes | None = None
    open: bool = True

    def register(self, body: bytes = REGISTRATION) -> bool:
        """Register; returns whether it runs then."""
        command, reason = self._ask(b"UwU", body)
        if command == b"OmO":
            self.denied, self.open = reason, False
        return command == b"OwO"

    def update(self, body: bytes) -> bool:
        """Update; returns whether it was acknowledged. Otherwise it looks for the broker again."""
        return self._ask(b"UoU", body)[0] == b"u.u"

    def _ask(self, command: bytes, body: bytes) -> tuple[bytes, bytes]:
        socket = HermesSocket(self.farm, self.address)
        answer = socket.ask(command, FLOAT32, body)
        socket.close()
        assert socket.stale == []
        assert not socket.repeated
        return answer


def get_services(farm: DbpFarm, name: str = "") -> Any:
    """Decode a reply as Hermes' client does. It never looks at the command."""
    socket = HermesSocket(farm)
    _, body = socket.ask(b"u_U", FLOAT32, name.encode())
    socket.close()
    assert not socket.repeated
    try:
        found = json.loads(body.decode())
        if "Error" in found.keys():  # noqa: SIM118 - of an array that is an exception, as it is there
            return None
        return found[name] if name else found
    except (ValueError, KeyError, AttributeError) as error:
        raise Dead from error


def service_reads(frames: Sequence[bytes]) -> list[list[bytes]]:
    """Answer a message as a service's own ROUTER does; raises `Dead` if it dies of it."""
    if not frames or frames[0]:
        return [[b"", b"", FLOAT32, ENVELOPE]]
    if len(frames) < 4:
        return [[b"", b"", FLOAT32, ENVELOPE], [b"", b"", FLOAT32, ENVELOPE, b"identity", b"", UNKNOWN, FLOAT32, b""]]
    try:
        struct.unpack("f", frames[2])
    except struct.error as error:
        raise Dead from error
    if frames[1] == b"<\\3":
        raise Dead
    return [[b"", b"pong", FLOAT32, b"Rohan"] if frames[1] == b"ping" else [b"", UNKNOWN, FLOAT32, b""]]


def discover(datagram: bytes) -> int:
    """The port that a node reads out of the first datagram that it gets at 5245."""
    try:
        return int(datagram[:1024].decode().split(" ")[1])
    except (IndexError, ValueError) as error:
        raise Dead from error


@pytest.fixture
def farm() -> Iterator[DbpFarm]:
    with nothing_fails():
        yield DbpFarm()


# The reader itself


@pytest.mark.parametrize("time", [b"", b"1795246600.000000", b"\0" * 8, b"123"])
def test_a_node_dies_of_a_time_of_another_length(farm: DbpFarm, time: bytes) -> None:
    """Any time but one of four bytes ends it."""
    with pytest.raises(Dead):
        HermesSocket(farm).read([b"OwO", time, b""], (b"UwU", FLOAT32, REGISTRATION))
    with pytest.raises(Dead):
        service_reads([b"", b"ping", time, b""])


def test_a_node_repeats_its_question_when_the_reply_is_short(farm: DbpFarm) -> None:
    """Of a reply without a frame behind the time it makes its question again, with three frames more."""
    socket = HermesSocket(farm)
    assert socket.read([b"u.u", FLOAT32], (b"u_U", FLOAT32, b"")) == (b"o_O", b"{}")
    assert socket.repeated == 1


def test_a_node_hangs_without_a_reply(farm: DbpFarm) -> None:
    """There are no time-outs, and a message without the empty frame is none."""
    socket = HermesSocket(farm)
    with pytest.raises(Hangs):
        socket.ask(b"junk", FLOAT32, b"")
    with pytest.raises(Hangs):
        socket._read([[b"OwO", FLOAT32, b""]], ())


# Byte for byte


def test_the_recorded_request_gets_the_recorded_reply() -> None:
    """The bytes of a list request and its reply as they were between Hermes' own nodes, at the same time of day."""
    clock = Clock()
    clock.advance(1_795_247_591)
    farm = DbpFarm(clock=clock)
    peer = farm.req()
    peer.send_raw(b"", bytes.fromhex("755f55"), bytes.fromhex("9c02d64e"), b"")
    assert peer.take_raw() == [[b"", bytes.fromhex("6f5f4f"), bytes.fromhex("9c02d64e"), bytes.fromhex("7b7d")]]


def test_an_approval_is_byte_for_byte_that_of_hermes(farm: DbpFarm) -> None:
    """OwO with an empty body, and u.u with one."""
    peer = farm.hermes()
    peer.send_raw(b"", bytes.fromhex("557755"), FLOAT32, REGISTRATION)
    peer.send_raw(b"", bytes.fromhex("556f55"), FLOAT32, b'{"name": "Rohan", "topics": ["a", "b"]}')
    assert peer.take_raw() == [
        [b"", bytes.fromhex("4f774f"), FLOAT32, b""],
        [b"", bytes.fromhex("752e75"), FLOAT32, b""],
    ]


def test_a_listing_is_byte_for_byte_that_of_hermes(farm: DbpFarm) -> None:
    """The registration without its name, with the same separators, keys in the same order; services in theirs."""
    assert HermesService(farm).register()
    assert HermesService(farm).register(REGISTRATION.replace(b"Rohan", b"Gondor"))
    info = REGISTRATION.replace(b'"name": "Rohan", ', b"")
    peer = farm.hermes()
    [[_, _, one]] = peer.ask("u_U", T, "Rohan")
    [[_, _, every]] = peer.ask("u_U", T, "")
    [[_, _, none]] = peer.ask("u_U", T, "Mordor")
    assert one == b'{"Rohan": %b}' % info
    assert every == b'{"Rohan": %b, "Gondor": %b}' % (info, info)
    assert none == b'{"Error": "No Registered Service With the Name Mordor"}'


# Services


def test_a_service_registers_updates_and_is_found(farm: DbpFarm) -> None:
    """The whole dialogue of a service and a client, each operation on a socket of its own."""
    service = HermesService(farm)
    assert get_services(farm) == {}
    assert get_services(farm, "Rohan") is None
    assert service.register()
    assert get_services(farm) == {"Rohan": INFO}
    assert service.update(b'{"name": "Rohan", "topics": ["a", "b"], "liveliness": 500}')
    assert get_services(farm, "Rohan") == {**INFO, "topics": ["a", "b"], "liveliness": 500}


def test_a_service_stays_though_it_never_beats(farm: DbpFarm) -> None:
    """Hermes has no heartbeats, and closes its sockets: neither is the end of a service."""
    assert HermesService(farm).register()
    farm.wait(60.0)
    farm.clock.advance(30 * 86_400)
    assert get_services(farm, "Rohan") == INFO


def test_a_service_registers_again_after_it_was_started_again(farm: DbpFarm) -> None:
    """A restart looks like a second registration from another identity."""
    for _ in range(3):
        assert HermesService(farm).register()
    assert get_services(farm) == {"Rohan": INFO}


def test_a_service_outlives_the_broker() -> None:
    """After the broker's restart a service is there though it says nothing, and can update."""
    before = DbpFarm()
    assert HermesService(before).register()
    before.catalogue.part_all()
    farm = DbpFarm(known=before.registry.providers())
    assert get_services(farm, "Rohan") == INFO
    assert HermesService(farm).update(b'{"name": "Rohan", "topics": ["a"]}')


@pytest.mark.parametrize(
    "name", [b'"Error"', b'""', b"7", b"null", b'"mmi.service"', b'"elkobroker"', b'"%b"' % (b"x" * 300)]
)
def test_a_denied_service_shuts_down_in_order(farm: DbpFarm, name: bytes) -> None:
    """It is told the reason in the word that it knows, whatever the reason is."""
    service = HermesService(farm)
    assert not service.register(REGISTRATION.replace(b'"Rohan"', name))
    assert service.denied
    assert not service.open


@pytest.mark.parametrize(
    "body", [b"", b"{", b"[]", b'"Rohan"', b"\xff", REGISTRATION.replace(b'"name": "Rohan", ', b""), b'{"name": 1}']
)
def test_a_service_never_hangs_with_what_the_original_did_not_answer(farm: DbpFarm, body: bytes) -> None:
    """Hermes' broker leaves it waiting for ever with no reply at all."""
    assert not HermesService(farm).register(body)
    assert not HermesService(farm).update(body)
    assert not HermesService(farm).update(b'{"name": "Gondor"}')


# Clients


@pytest.mark.parametrize(
    "members",
    [
        b'"a": %b' % (b"[" * 90 + b"]" * 90),
        b'"a": %b' % (b"9" * 1000),
        b'"a": "\\ud83d\\ude00\\u0000"',
        '"é": "é\u2764"'.encode(),
        b'"Error": "mine"',
        b'"a": 1, "a": 2',
        b'"": ""',
        b'"a": 1e400, "b": -0.0',
    ],
)
def test_a_client_reads_whatever_was_registered(farm: DbpFarm, members: bytes) -> None:
    """The info of one service must not hide all others from a client."""
    assert HermesService(farm).register()
    assert HermesService(farm).register(b'{"name": "Gondor", %b}' % members)
    assert list(get_services(farm)) == ["Rohan", "Gondor"]
    assert isinstance(get_services(farm, "Gondor"), dict)


@pytest.mark.parametrize(
    "members", [b'"a": %b' % (b"[" * 5000 + b"]" * 5000), b'"a": %b' % (b"9" * 5000), b'"a": NaN', b'"a": "\xff"']
)
def test_a_client_reads_a_list_though_somebody_tried_to_spoil_it(farm: DbpFarm, members: bytes) -> None:
    """Input that Python's decoder rejects is denied."""
    assert HermesService(farm).register()
    assert not HermesService(farm).register(b'{"name": "Gondor", %b}' % members)
    assert list(get_services(farm)) == ["Rohan"]


@pytest.mark.parametrize("name", ["Mordor", "a b", "Error", "é", "mmi.x", "x" * 1000])
def test_a_client_is_told_none_of_what_is_not_there(farm: DbpFarm, name: str) -> None:
    """For each name that is not there the client gets an Error, or dies of nothing else."""
    assert HermesService(farm).register()
    if name.startswith("mmi."):
        assert get_services(farm, name) == "501"
    else:
        assert get_services(farm, name) is None


def test_a_client_is_told_none_of_what_is_gone(farm: DbpFarm) -> None:
    """The inactive warning has more keys, and Hermes looks at Error only."""
    peer = farm.dealer(THERE).registered("Gondor", heartbeat=1)
    peer.send("</3", T)
    assert get_services(farm, "Gondor") is None
    assert get_services(farm) == {}


def test_a_name_that_is_no_text_is_answered(farm: DbpFarm) -> None:
    """Hermes' broker does not answer it, and the client hangs."""
    command, body = HermesSocket(farm).ask(b"u_U", FLOAT32, b"\xff\xfe")
    assert command == b"o_O"
    assert "Error" in json.loads(body)


def test_a_repeated_question_asks_for_the_same(farm: DbpFarm) -> None:
    """Hermes appends an empty frame, a time and a text when it repeats: these are no names."""
    assert HermesService(farm).register()
    for name in (b"Rohan", b""):
        command, body = HermesSocket(farm).ask(b"u_U", FLOAT32, name, b"", FLOAT32, ENVELOPE)
        assert command == b"o_O"
        assert json.loads(body) == {"Rohan": INFO}


def test_a_client_that_takes_the_broker_for_its_service_gets_a_pong(farm: DbpFarm) -> None:
    """A service that says 127.0.0.1 of another host sends the client here."""
    command, name = HermesSocket(farm).ask(b"ping", FLOAT32, b"Hello!")
    assert command == b"pong"
    assert name


# Arbitrary input


BODIES = [
    b"",
    b"Rohan",
    b"Gondor",
    b"mmi.service",
    b"\xff",
    b"{}",
    REGISTRATION,
    REGISTRATION.replace(b"Rohan", b"Error"),
    b'{"name": "Gondor", "heartbeat": 1}',
    b'{"name": "Rohan", "topics": ["a"]}',
    b'{"name": "Mordor"}',
    b"[1, 2]",
    ENVELOPE,
]
COMMANDS = [
    b"u_U", b"UwU", b"UoU", b"<3", b"</3", b"u.u", b"ping", b"o_O", b"OwO", b"OmO", b"(O_O)",
    b"<\\3", b"^o^", b"Bye!", b"pong", b"", UNKNOWN,
]  # fmt: skip
TIMES = [FLOAT32, TIME.pack(0.0), TIME.pack(float("nan")), TIME.pack(-1.0), b"\0\0\0\0", b"1795"]


def survives(messages: list[list[bytes]]) -> None:
    """Assert the form of every message to a REQ with four bytes of time."""
    for frames in messages:
        assert len(frames) >= 4
        assert frames[0] == b""
        assert len(frames[2]) == 4
        if frames[1] == b"o_O":
            assert isinstance(json.loads(frames[3]), dict)


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("registered", [False, True])
def test_every_reply_to_every_command_is_survived(command: bytes, registered: bool) -> None:
    """Four frames or more, the empty one first, four bytes of time, and an object for every request."""
    for body in BODIES:
        farm = DbpFarm()
        node = HermesSocket(farm)
        if registered:
            assert node.ask(b"UwU", FLOAT32, REGISTRATION)[0] == b"OwO"
        node.peer.send_raw(b"", command, FLOAT32, body)
        inbox = node.peer.take_raw()
        assert len(inbox) <= 1
        answered = command not in (b"</3", b"<\\3", b"^o^", b"Bye!", b"pong", b"", UNKNOWN)
        if command == b"<3" and body == b"\xff":
            answered = False
        if command == b"u.u" and registered:
            answered = False
        assert len(inbox) == answered
        survives(inbox)


@pytest.mark.long
@given(
    st.lists(
        st.tuples(
            st.integers(0, 2), st.sampled_from(COMMANDS), st.sampled_from(TIMES), st.sampled_from(BODIES), st.booleans()
        ),
        max_size=12,
    )
)
@settings(max_examples=examples(300), deadline=None)
def test_every_reply_to_every_conversation_is_survived(messages: list[tuple[int, bytes, bytes, bytes, bool]]) -> None:
    """In any order, over several connections of several addresses, and as time passes: never more than one for one."""
    with nothing_fails():
        farm = DbpFarm(Dbp(probe=1.0))
        nodes = [HermesSocket(farm, address).peer for address in (THERE, THERE, ELSEWHERE)]
        for which, command, time, body, passes in messages:
            peer = nodes[which]
            peer.send_raw(b"", command, time, body)
            inbox = peer.take_raw()
            assert len(inbox) <= 1
            survives(inbox)
            if passes:
                farm.wait(1.2)
            assert not any(node.take_raw() for node in nodes)
        farm.wait(4.0)
        farm.catalogue.part_all()
        assert not any(node.take_raw() for node in nodes)


def test_nothing_comes_unasked_to_a_node_that_is_under_contract(farm: DbpFarm) -> None:
    """Even if it registers an interval, expires, is replaced, and the broker stops: it would take it for a reply."""
    service = farm.hermes(THERE).registered("Rohan", **INFO, liveliness=1000)
    farm.wait(5.0)
    assert farm.catalogue.get("Rohan") is None
    replaced = farm.hermes(THERE).registered("Rohan", **INFO)
    farm.dealer(ELSEWHERE).registered("Rohan", heartbeat=1)
    farm.catalogue.part_all()
    assert service.take() == []
    assert replaced.take() == []


# Probes


def test_a_service_survives_every_question() -> None:
    """Asked for a missed heartbeat or from time to time, before and after a restart or an update: it answers pong."""
    asked = []
    before = DbpFarm(Dbp(probe=1.0))
    assert HermesService(before, THERE).register()
    before.wait(3.5)
    asked += before.probes.asked
    farm = DbpFarm(Dbp(probe=1.0), before.registry.providers())
    farm.wait(3.5)
    farm.dealer(THERE).send("UoU", T, {"name": "Rohan", "heartbeat": 1000})
    farm.wait(2.5)
    asked += farm.probes.asked
    assert len(asked) >= 6
    for probe in asked:
        assert probe.place == (THERE, 5247)
        assert [frames[1] for frames in service_reads(probe.frames)] == [b"pong"]


def test_a_service_is_asked_one_question_at_a_time() -> None:
    """Two that overlap end the process: also while it registers and updates again and again."""
    farm = DbpFarm(Dbp(probe=0.3, interval=5.0))
    for _ in range(20):
        assert HermesService(farm, THERE).register()
        farm.wait(0.4)
        assert HermesService(farm, THERE).update(b'{"name": "Rohan", "topics": ["a"]}')
        farm.wait(0.4)
    asked = sorted(farm.probes.asked, key=lambda probe: probe.asked)
    assert len(asked) >= 20
    for one, two in pairwise(asked):
        assert two.asked >= one.asked + one.seconds - 0.001


# The beacon


def test_a_node_finds_the_broker_whatever_else_it_sends() -> None:
    """The first datagram at 5245 wins: all of them are beacons, also when datagrams come from there."""
    farm = DbpFarm(beacon=[BEACON[0]])
    farm.dealer(HERE).registered("Rohan", heartbeat=1)
    for data in (b" <3 1795246600 Rohan", b" <3 1795246600 Gondor", b" </3 1795246600 Mordor", b"SHALOM 5246"):
        farm.datagrams.receive(data, (HERE, 5245))
        farm.datagrams.receive(data, (HERE, 40_000))
    farm.wait(6.0)
    farm.catalogue.part_all()
    at_the_beacons_port = [data for data, (_, port) in farm.udp.sent if port == 5245]
    assert len(at_the_beacons_port) >= 6
    assert {discover(data) for data in at_the_beacons_port} == {5246}
    assert set(at_the_beacons_port) == {b"SHALOM 5246"}


@pytest.mark.parametrize("data", [b"SHALOM", b" <3 1795246600.0 Rohan", b"\xff 5246", b"a  5246"])
def test_a_node_breaks_of_other_datagrams(data: bytes) -> None:
    """Anything whose second token is no port ends its search."""
    with pytest.raises(Dead):
        discover(data)


def test_what_is_sent_is_within_two_minutes_of_the_clock(farm: DbpFarm) -> None:
    """A float32 says the time of our days in steps of 128 seconds."""
    [[_, time, _]] = farm.hermes().ask("u_U", T, "")
    assert abs(TIME.unpack(time)[0] - START) <= 64
