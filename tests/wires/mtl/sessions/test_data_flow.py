"""The data flow of MTL: the answer to each command, dropped commands, and the order of output.

Tests are named after the rows of tests/contract/test_mtl_conformance.py. Rows that a client can tell are tested over
sockets, in tests/integration/test_mtl_data.py and test_mtl_queues.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.wires.mtl.codec import data_messages as wire
from broker.wires.mtl.codec.data_messages import Pong, Response
from broker.wires.mtl.profiles.topic_profile import RESOURCE
from broker.wires.mtl.sessions import data_clients, data_flow
from broker.wires.mtl.sessions.access_policy import ConfirmMode, Principal, Side
from broker.wires.mtl.sessions.data_leases import SharedSocket
from broker.wires.mtl.sessions.profile_interface import ProfileReader
from tests.recording.logs import nothing_fails
from tests.wires.mtl.data_recording import Keeping, MtlFarm, MtlPeer


@pytest.fixture
def farm() -> Iterator[MtlFarm]:
    with nothing_fails():
        yield MtlFarm()


def ok(sequence: int) -> list[wire.Command]:
    return [Response(sequence, b"200")]


def bad(sequence: int) -> list[wire.Command]:
    return [Response(sequence, b"400")]


def forbidden(sequence: int) -> list[wire.Command]:
    return [Response(sequence, b"403")]


def keeper(farm: MtlFarm, *resources: str, confirm: ConfirmMode = ConfirmMode.NONE) -> MtlPeer:
    """A reader of the profile that takes any resource."""
    return farm.reader(*resources, profile=farm.keeping, confirm=confirm)


# Lease and Response


@pytest.mark.parametrize("side", Side)
def test_D08_but_no_second_one_for_the_same_side(farm: MtlFarm, side: Side) -> None:
    peer, other = farm.peer(), farm.peer()
    peer.lease(farm.lease(side))
    second = farm.lease(side)
    assert peer.ask(*wire.lease(2, second)) == forbidden(2)
    assert peer.ask(*wire.PING) == [Pong()]
    assert other.ask(*wire.lease(3, second)) == forbidden(3), "it was used up"
    assert len(farm.data_leases) == 1


class Heard:
    """A conversation that keeps what it is told."""

    def __init__(self) -> None:
        self.messages: list[tuple[bytes, list[bytes], int]] = []
        self.ended: list[int] = []
        self.rooms: list[bytes] = []
        self.needed: set[int] = set()

    def receive(self, identity: bytes, frames: list[bytes], connection: int) -> None:
        self.messages.append((identity, frames, connection))

    def closed(self, connection: int) -> None:
        self.ended.append(connection)

    def needs(self, connection: int) -> bool:
        return connection in self.needed

    def room(self, identity: bytes) -> None:
        self.rooms.append(identity)


def test_D12_one_socket_can_carry_both_flows() -> None:
    control, data = Heard(), Heard()
    both = SharedSocket(control, data)
    request = [b"", b"Connection.Open", b"{}"]
    for frames in (list(wire.PING), request, [b"\1", *request], [b"", b"x"], [b"\x08"], [b"\x08", b"", b""]):
        both.receive(b"me", frames, 12)
    assert data.messages == [(b"me", list(wire.PING), 12)]
    assert [message[1] for message in control.messages] == [
        request, [b"\1", *request], [b"", b"x"], [b"\x08"], [b"\x08", b"", b""],
    ]  # fmt: skip
    both.closed(12)
    assert control.ended == data.ended == [12]
    both.room(b"me")
    assert (data.rooms, control.rooms) == ([b"me"], [])


def test_the_profile_knows_where_a_writer_is(farm: MtlFarm) -> None:
    peer = farm.peer(address="192.0.2.99")
    peer.lease(farm.lease(Side.WRITER, "a", profile=farm.keeping))
    assert farm.keeping.flow["writer"].address == "192.0.2.99"


# Summon and Dismiss


@pytest.mark.parametrize("one_by_one", [False, True])
def test_S06_also_when_the_answer_has_to_wait_for_room(farm: MtlFarm, one_by_one: bool) -> None:
    farm.keeping.snapshot = 3
    farm.keeping.one_by_one = one_by_one
    peer, writer = keeper(farm, "a"), farm.writer("a", profile=farm.keeping)
    peer.stop_reading()
    peer.say(*wire.summon(5, "a"))
    for number in range(10):
        writer.put(number, resource="a")
    peer.stop_reading(after=1)
    writer.put(11, resource="a")
    peer.read_on()
    writer.put(12, b"at last", resource="a")
    first, last = peer.take()
    assert [first] == ok(5)
    assert isinstance(last, wire.Content)
    assert last.body == b"at last"
    assert last.sequence == 3 + 12, "those that it missed have used their numbers up"
    assert ("room",) in farm.keeping.calls


@pytest.mark.parametrize("one_by_one", [False, True])
def test_S07_nor_when_the_answer_has_to_wait_for_room(farm: MtlFarm, one_by_one: bool) -> None:
    farm.keeping.one_by_one = one_by_one
    peer, writer = keeper(farm, "a"), farm.writer("a", profile=farm.keeping)
    peer.say(*wire.summon(5, "a"))
    peer.take()
    peer.stop_reading(after=2)
    for number in range(5):
        writer.put(number, b"%d" % number, resource="a")
    peer.say(*wire.dismiss(6, "a"))
    writer.put(9, resource="a")
    peer.read_on()
    farm.wait(1)
    *contents, last = peer.take()
    assert [each.body for each in contents if isinstance(each, wire.Content)] == [b"0", b"1"]
    assert [last] == ok(6)


def test_S06_S07_a_profile_hears_of_a_summon_after_its_answer_and_of_a_dismiss_before(farm: MtlFarm) -> None:
    """So it may send at once, and what it keeps for the resource is gone in time."""

    class Looking(Keeping):
        def summon(self, reader: ProfileReader, resource: str, body: bytes = b"") -> None:
            assert peer.take() == ok(5)
            super().summon(reader, resource)

        def dismiss(self, reader: ProfileReader, resource: str) -> None:
            assert peer.take() == []
            super().dismiss(reader, resource)

    profile = Looking(farm.data)
    peer = farm.reader("a", profile=profile)
    peer.say(*wire.summon(5, "a"))
    peer.say(*wire.dismiss(6, "a"))
    assert peer.take() == ok(6)
    assert profile.calls == [("joined", "reader"), ("summon", "a"), ("dismiss", "a")]


def test_the_number_of_summoned_resources_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(data_flow, "MAX_SUMMONED", 3)
    farm = MtlFarm()
    peer = keeper(farm)
    assert [peer.ask(*wire.summon(number, f"r{number}")) for number in range(3)] == [ok(0), ok(1), ok(2)]
    assert peer.ask(*wire.summon(5, "r5")) == bad(5)
    assert peer.ask(*wire.dismiss(6, "r0")) == ok(6)
    assert peer.ask(*wire.summon(7, "r5")) == ok(7)


# Contents


def test_the_resources_of_a_writer_for_all_are_asked_for_once_and_a_bounded_number_is_remembered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(data_flow, "MAX_NAMES", 3)

    class Asked(Keeping):
        def check(self, principal: Principal, side: Side, resource: str) -> None:
            self.calls.append(("check", resource))

    farm = MtlFarm()
    profile = Asked(farm.data)
    peer = farm.writer(profile=profile)
    for name in "aabbccddaa":
        peer.put(1, resource=name)
        assert len(peer.writing.names) <= 3
    assert [call[1] for call in profile.calls if call[0] == "check"] == ["a", "b", "c", "d", "a"]
    assert len([call for call in profile.calls if call[0] == "content"]) == 10
    only = farm.writer()
    only.writing.names.update({"x": "x", "y": "y"})
    only.put(1, resource="")
    assert only.take() == []


def test_what_strangers_say_is_not_remembered_beside_what_writers_do(farm: MtlFarm) -> None:
    writer, stranger = farm.writer(), farm.peer()
    writer.put(1)
    for number in range(100):
        stranger.put(1, resource=f"r{number}")
    assert farm.data._tails.kept[0] == 1


# Confirm and Reject


def test_K01_without_confirmation_good_contents_are_answered_by_nothing(farm: MtlFarm) -> None:
    reader, writer = farm.reader(), farm.writer()
    keeping = farm.writer("a", profile=farm.keeping)
    for number in (5, 5, 4, 0, 2**64 - 1):
        writer.put(number)
        keeping.put(number, resource="a")
    assert (writer.take(), keeping.take()) == ([], [])
    assert len(reader.bodies()) == 5


def test_K03_every_content_of_a_confirmed_writer_is_confirmed_once(farm: MtlFarm) -> None:
    peer = farm.writer("a", profile=farm.keeping, confirm=ConfirmMode.FULL)
    for number in (0, 1, 2, 7, 2**64 - 1):
        peer.put(number, resource="a")
        assert peer.take() == [wire.Confirm(number, False)]
    farm.keeping.confirming = False
    late = farm.writer("a", profile=farm.keeping, confirm=ConfirmMode.FULL)
    for number in range(5):
        late.put(number, resource="a")
    late.writing.confirm(3, multiple=True)
    late.writing.reject(4, recycle=True)
    assert late.take() == [wire.Confirm(3, True), wire.Reject(4, False, True)]


def test_K03_a_sequence_that_does_not_rise_is_rejected(farm: MtlFarm) -> None:
    peer = farm.writer("a", profile=farm.keeping, confirm=ConfirmMode.FULL)
    for number, rises in ((5, True), (5, False), (4, False), (6, True), (0, False)):
        peer.put(number, resource="a")
        assert peer.take() == [wire.Confirm(number, False) if rises else wire.Reject(number, False, False)]
    peer.put(7, resource="b")
    peer.put(7, resource="a")
    assert peer.take() == [wire.Reject(7, False, False)] * 2, "what was rejected has used its number up"


def test_a_profile_that_refuses_a_content_where_none_are_confirmed_is_heard_if_it_is_for_good(farm: MtlFarm) -> None:
    peer = farm.writer("a", profile=farm.keeping)
    peer.writing.confirm(1)
    peer.writing.reject(2, recycle=True)
    peer.writing.reject(3, recycle=False)
    assert peer.take() == bad(3)


# encodings, and what is wrong


EVERY_COMMAND: dict[str, Callable[[], tuple[bytes, bytes]]] = {
    "lease": lambda: wire.lease(7, "t" * 32),
    "response": lambda: wire.response(7, b"200"),
    "summon": lambda: wire.summon(7, RESOURCE),
    "dismiss": lambda: wire.dismiss(7, RESOURCE),
    "content": lambda: (wire.content_header(7, wire.make_tail(RESOURCE, b"\0\0\0\3\1aV")), b""),
    "confirm": lambda: wire.confirm(7, True),
    "reject": lambda: wire.reject(7, True, True),
    "ping": lambda: wire.PING,
    "pong": lambda: wire.PONG,
}


def everybody(farm: MtlFarm) -> list[MtlPeer]:
    """A peer of each kind: without a lease, with one for reading, for writing, and for both."""
    both = farm.reader()
    both.lease(farm.lease(Side.WRITER))
    return [farm.peer(), farm.reader(), farm.writer(), both]


# heartbeats that the client begins


# whatever comes

HEADERS = st.one_of(
    st.binary(max_size=30),
    st.builds(
        lambda command, at, byte: command[:at] + bytes([byte]) + command[at + 1 :],
        st.sampled_from([command()[0] for command in EVERY_COMMAND.values()]),
        st.integers(0, 30),
        st.integers(0, 255),
    ),
)


@given(st.lists(st.tuples(st.integers(0, 3), HEADERS, st.binary(max_size=4)), max_size=20))
def test_Z01_nothing_that_comes_makes_it_fail_and_a_good_peer_is_served(
    messages: list[tuple[int, bytes, bytes]],
) -> None:
    with nothing_fails(), pytest.MonkeyPatch.context() as patch:
        patch.setattr(data_clients, "MAX_DROPS", 5)
        farm = MtlFarm()
        peers = everybody(farm)
        reader, writer = farm.reader(), farm.writer()
        for number, header, body in messages:
            peers[number].say(header, body)
        reader.take()
        writer.put(1, b"still there")
        assert reader.bodies() == [b"still there"]
        assert len(farm.data) == 5
