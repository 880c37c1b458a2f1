"""The data flow of MTL: the answer to each command, dropped commands, and the order of output.

Tests are named after the rows of tests/contract/test_mtl_conformance.py.

The file is longer than others: it has all tests of `broker.wires.mtl.sessions.data_flow`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.wires.mtl.codec import data_messages as wire
from broker.wires.mtl.codec.data_messages import Pong, Response
from broker.wires.mtl.codec.field_table import EMPTY
from broker.wires.mtl.profiles.topic_profile import RESOURCE
from broker.wires.mtl.sessions.access_policy import ConfirmMode, Principal, Side
from broker.wires.mtl.sessions.flow_context import SharedSocket
from broker.wires.mtl.sessions.profile_interface import ProfileReader
from tests.recording.logs import nothing_fails
from tests.wires.mtl.data_recording import Keeping, MtlFarm, MtlPeer
from tests.wires.mtl.flow_values import flow_values

NUMBERS = [0, 1, 2**31, 2**32, 2**53 + 1, 2**63, 2**64 - 1]
TOKEN = "t" * 32


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


def test_D01_a_lease_is_answered_with_200(farm: MtlFarm) -> None:
    peer = farm.peer()
    assert peer.ask(*wire.lease(7, farm.lease(Side.READER))) == ok(7)
    assert peer.ask(*wire.summon(8, RESOURCE)) == ok(8)
    assert farm.counted("mtl_flows.reader") == 1


@pytest.mark.parametrize("token", ["", "unknown", "x" * 255])
def test_D02_a_lease_that_is_none_is_answered_with_403(farm: MtlFarm, token: str) -> None:
    peer = farm.peer()
    assert peer.ask(*wire.lease(7, token)) == forbidden(7)
    assert peer.client is None
    peer.lease(farm.lease(Side.WRITER))
    assert peer.ask(*wire.lease(8, token)) == forbidden(8)
    assert peer.ask(*wire.PING) == [Pong()]


def test_D03_a_response_is_a_header_of_nine_bytes_and_three_digits(farm: MtlFarm) -> None:
    peer = farm.peer()
    peer.say(*wire.lease(258, "unknown"))
    assert peer.take_frames() == [(b"\x02\0\0\0\0\0\0\1\2", b"403")]


@pytest.mark.parametrize("number", NUMBERS)
def test_D04_the_sequence_of_a_command_comes_back_bit_for_bit(farm: MtlFarm, number: int) -> None:
    peer = farm.peer()
    assert peer.ask(*wire.lease(number, "unknown")) == forbidden(number)
    assert peer.ask(*wire.lease(number, farm.lease(Side.READER))) == ok(number)
    assert peer.ask(*wire.summon(number, RESOURCE)) == ok(number)
    assert peer.ask(*wire.summon(number, RESOURCE)) == bad(number)
    assert peer.ask(*wire.dismiss(number, RESOURCE)) == ok(number)
    assert peer.ask(*wire.dismiss(number, RESOURCE)) == bad(number)
    assert peer.ask(*wire.content(number, RESOURCE, EMPTY, b"")) == forbidden(number)


def test_D05_commands_may_come_without_waiting_for_answers(farm: MtlFarm) -> None:
    peer = farm.peer()
    peer.say(*wire.lease(1, farm.lease(Side.READER)))
    peer.say(*wire.summon(2, RESOURCE))
    peer.say(*wire.dismiss(3, RESOURCE))
    peer.say(*wire.summon(4, RESOURCE))
    assert peer.take() == ok(1) + ok(2) + ok(3) + ok(4)


@pytest.mark.parametrize(
    "frames", [wire.summon(7, RESOURCE), wire.dismiss(7, RESOURCE), wire.content(7, RESOURCE, EMPTY, b"x")]
)
def test_D06_without_a_lease_commands_are_answered_with_403(farm: MtlFarm, frames: tuple[bytes, bytes]) -> None:
    reader = farm.reader()
    peer = farm.peer()
    assert peer.ask(*frames) == forbidden(7)
    assert reader.take() == []
    assert len(farm.data) == 1, "nothing is kept of it"
    assert farm.counted("mtl_refused.forbidden") == 1


def test_D07_a_lease_in_use_is_refused_to_a_second_peer_and_the_first_is_undisturbed(farm: MtlFarm) -> None:
    first, second, writer = farm.peer(), farm.peer(), farm.writer()
    token = farm.lease(Side.READER)
    first.lease(token)
    first.say(*wire.summon(2, RESOURCE))
    first.take()
    assert second.ask(*wire.lease(1, token)) == forbidden(1)
    writer.put(1)
    assert first.bodies() == [b"x"]
    assert second.take() == []


def test_D08_one_peer_may_have_a_lease_for_reading_and_one_for_writing(farm: MtlFarm) -> None:
    peer = farm.peer()
    peer.lease(farm.lease(Side.WRITER))
    peer.lease(farm.lease(Side.READER))
    assert peer.ask(*wire.summon(2, RESOURCE)) == ok(2)
    peer.put(3, b"to myself")
    assert peer.bodies() == [b"to myself"]


@pytest.mark.parametrize("side", Side)
def test_D08_but_no_second_one_for_the_same_side(farm: MtlFarm, side: Side) -> None:
    peer, other = farm.peer(), farm.peer()
    peer.lease(farm.lease(side))
    second = farm.lease(side)
    assert peer.ask(*wire.lease(2, second)) == forbidden(2)
    assert peer.ask(*wire.PING) == [Pong()]
    assert other.ask(*wire.lease(3, second)) == forbidden(3), "it was used up"
    assert len(farm.data_leases) == 1


def test_D09_a_lease_that_was_not_used_in_time_is_refused(farm: MtlFarm) -> None:
    peer, late = farm.peer(), farm.peer()
    token, too_late = farm.lease(Side.READER), farm.lease(Side.READER)
    farm.wait(29)
    peer.lease(token)
    farm.wait(2)
    assert late.ask(*wire.lease(1, too_late)) == forbidden(1)


def test_D10_the_holder_may_use_its_lease_again(farm: MtlFarm) -> None:
    peer, writer = farm.peer(), farm.writer()
    token = farm.lease(Side.READER)
    peer.lease(token)
    peer.say(*wire.summon(2, RESOURCE))
    peer.take()
    assert peer.ask(*wire.lease(3, token)) == ok(3)
    writer.put(1)
    assert peer.bodies() == [b"x"], "nothing has changed"


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


def test_a_lease_belongs_to_the_key_of_the_session_that_got_it(farm: MtlFarm) -> None:
    token = farm.lease(Side.READER, principal=farm.principal("alice", key="K1"))
    thief, owner = farm.peer(key="K2"), farm.peer(key="K1")
    assert thief.ask(*wire.lease(1, token)) == forbidden(1)
    owner.lease(token)


# Summon and Dismiss


def test_S01_a_summon_and_a_dismiss_are_answered_with_200(farm: MtlFarm) -> None:
    peer = keeper(farm, "é", "b")
    for sequence, frames in enumerate((wire.summon, wire.dismiss), 5):
        assert peer.ask(*frames(sequence, "é")) == ok(sequence)
    assert farm.keeping.calls == [("joined", "reader"), ("summon", "é"), ("dismiss", "é")]


@pytest.mark.parametrize("name", ["c", "", "A", "a" * 255])
def test_S02_a_resource_that_the_lease_is_not_for_is_answered_with_400(farm: MtlFarm, name: str) -> None:
    peer = keeper(farm, "a", "b")
    assert peer.ask(*wire.summon(5, name)) == bad(5)
    assert peer.ask(*wire.dismiss(6, name)) == bad(6)
    assert farm.keeping.calls == [("joined", "reader")]


def test_S03_a_second_summon_is_answered_with_400_and_doubles_nothing(farm: MtlFarm) -> None:
    reader, writer = farm.reader(), farm.writer()
    assert reader.ask(*wire.summon(5, RESOURCE)) == bad(5)
    writer.put(1)
    assert reader.bodies() == [b"x"]


def test_S04_a_dismiss_without_a_summon_and_a_second_one_are_answered_with_400(farm: MtlFarm) -> None:
    peer = keeper(farm, "a")
    assert peer.ask(*wire.dismiss(5, "a")) == bad(5)
    peer.say(*wire.summon(6, "a"))
    peer.say(*wire.dismiss(7, "a"))
    assert peer.take() == ok(6) + ok(7)
    assert peer.ask(*wire.dismiss(8, "a")) == bad(8)


def test_S05_nothing_comes_before_a_summon(farm: MtlFarm) -> None:
    writer, peer = farm.writer(), farm.peer()
    writer.put(1)
    peer.lease(farm.lease(Side.READER))
    writer.put(2)
    assert peer.take() == []


def test_S06_the_answer_to_a_summon_comes_before_any_content(farm: MtlFarm) -> None:
    farm.keeping.snapshot = 3
    peer = keeper(farm, "a")
    first, *contents = peer.ask(*wire.summon(5, "a"))
    assert [first] == ok(5)
    assert [content.body for content in contents if isinstance(content, wire.Content)] == [b"0", b"1", b"2"]


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


def test_S07_after_the_answer_to_a_dismiss_no_content_comes(farm: MtlFarm) -> None:
    reader, writer = farm.reader(), farm.writer()
    for sequence in range(10, 20):
        writer.put(1)
        reader.say(*wire.dismiss(sequence, RESOURCE))
        writer.put(2)
        first, last = reader.take()
        assert isinstance(first, wire.Content)
        assert [last] == ok(sequence)
        assert reader.ask(*wire.summon(sequence, RESOURCE)) == ok(sequence)


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


def test_S08_what_was_dismissed_can_be_summoned_again(farm: MtlFarm) -> None:
    reader, writer = farm.reader(), farm.writer()
    assert reader.ask(*wire.dismiss(5, RESOURCE)) == ok(5)
    assert reader.ask(*wire.summon(6, RESOURCE)) == ok(6)
    writer.put(1)
    assert reader.bodies() == [b"x"]


def test_S09_a_summon_with_a_lease_for_writing_only_is_answered_with_400(farm: MtlFarm) -> None:
    peer = farm.writer()
    assert peer.ask(*wire.summon(5, RESOURCE)) == bad(5)
    assert peer.ask(*wire.dismiss(6, RESOURCE)) == bad(6)


def test_S10_with_a_lease_for_all_any_resource_that_may_be_can_be_summoned(farm: MtlFarm) -> None:
    peer = keeper(farm)
    assert peer.ask(*wire.summon(5, "any")) == ok(5)
    assert peer.ask(*wire.summon(6, "not-allowed")) == bad(6)
    assert peer.ask(*wire.summon(7, "")) == bad(7)
    assert farm.reader().ask(*wire.summon(8, "unknown")) == bad(8)


def test_the_number_of_summoned_resources_is_bounded() -> None:
    farm = MtlFarm(flow_values(max_summoned=3))
    peer = keeper(farm)
    assert [peer.ask(*wire.summon(number, f"r{number}")) for number in range(3)] == [ok(0), ok(1), ok(2)]
    assert peer.ask(*wire.summon(5, "r5")) == bad(5)
    assert peer.ask(*wire.dismiss(6, "r0")) == ok(6)
    assert peer.ask(*wire.summon(7, "r5")) == ok(7)


# Contents


def test_W03_with_one_resource_the_name_may_be_left_out(farm: MtlFarm) -> None:
    peer = farm.writer("a", profile=farm.keeping)
    peer.put(1, resource="")
    peer.put(2, resource="a")
    assert farm.keeping.calls[1:] == [("content", "a", 1), ("content", "a", 2)]


@pytest.mark.parametrize("resources", [("a", "b"), ()])
def test_W04_with_several_the_name_is_needed(farm: MtlFarm, resources: tuple[str, ...]) -> None:
    peer = farm.writer(*resources, profile=farm.keeping)
    peer.put(5, resource="")
    assert peer.take() == bad(5)
    full = farm.writer(*resources, profile=farm.keeping, confirm=ConfirmMode.FULL)
    full.put(5, resource="")
    assert full.take() == [wire.Reject(5, False, False)]
    assert not [call for call in farm.keeping.calls if call[0] == "content"]


def test_W06_a_content_outside_the_lease_is_answered_and_not_delivered(farm: MtlFarm) -> None:
    reader = keeper(farm)
    for sequence, name in enumerate(("a", "b", "not-allowed")):
        if name != "not-allowed":
            reader.say(*wire.summon(sequence, name))
    reader.take()
    for name, resources in (("b", ("a",)), ("not-allowed", ())):
        peer = farm.writer(*resources, profile=farm.keeping)
        full = farm.writer(*resources, profile=farm.keeping, confirm=ConfirmMode.FULL)
        peer.put(5, resource=name)
        assert peer.take() == bad(5)
        full.put(5, resource=name)
        assert full.take() == [wire.Reject(5, False, False)]
    assert reader.take() == []


def test_the_resources_of_a_writer_for_all_are_asked_for_once_and_a_bounded_number_is_remembered() -> None:
    class Asked(Keeping):
        def check(self, principal: Principal, side: Side, resource: str) -> None:
            self.calls.append(("check", resource))

    farm = MtlFarm(flow_values(max_names=3))
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


def test_W07_a_content_with_a_lease_for_reading_only_is_answered_with_403_and_not_delivered(farm: MtlFarm) -> None:
    reader = farm.reader()
    assert reader.ask(*wire.content(5, RESOURCE, EMPTY, b"x")) == forbidden(5)


@pytest.mark.parametrize("one_by_one", [False, True])
def test_W09_contents_are_numbered_from_one_on_in_each_flow(farm: MtlFarm, one_by_one: bool) -> None:
    farm.keeping.one_by_one = one_by_one
    first, writer = keeper(farm), farm.writer("a", profile=farm.keeping)
    first.say(*wire.summon(5, "a"))
    for number in range(3):
        writer.put(1_000 - number, resource="a")
    second = keeper(farm)
    second.say(*wire.summon(5, "a"))
    writer.put(0, resource="a")
    for peer, expected in ((first, [1, 2, 3, 4]), (second, [1])):
        assert [each.sequence for each in peer.take() if isinstance(each, wire.Content)] == expected


def test_W10_the_order_of_each_writer_is_kept(farm: MtlFarm) -> None:
    reader, writers = farm.reader(), [farm.writer() for _ in range(3)]
    for number in range(300):
        for name, writer in enumerate(writers):
            writer.put(number, b"%d %d" % (name, number))
    bodies = [body.split() for body in reader.bodies()]
    for name in range(3):
        assert [int(body[1]) for body in bodies if int(body[0]) == name] == list(range(300))


MALFORMED = {
    "too long": b"\0\0\0\5",
    "too short": b"\0\0\0\1\1aV",
    "cut": b"\0\0",
    "unknown type": b"\0\0\0\3\1aZ",
    "overrun": b"\0\0\0\x08\1aS\0\0\0\x09x",
    "boolean": b"\0\0\0\4\1at\2",
    "empty key": b"\0\0\0\2\0V",
    "key twice": b"\0\0\0\6\1aV\1aV",
    "key not UTF-8": b"\0\0\0\3\1\xffV",
    "text not UTF-8": b"\0\0\0\x08\1aS\0\0\0\1\xff",
    "left over": EMPTY + b"x",
}


@pytest.mark.parametrize("table", MALFORMED.values(), ids=MALFORMED.keys())
def test_W11_a_malformed_table_is_dropped_and_the_flow_goes_on(farm: MtlFarm, table: bytes) -> None:
    reader, writer = farm.reader(), farm.writer()
    writer.put(1, table=table)
    assert (reader.take(), writer.take()) == ([], [])
    writer.put(2, b"good")
    assert reader.bodies() == [b"good"]
    assert sum(number for name, number in farm.counters.all().items() if name.startswith("mtl_ill_formed.")) == 1


# Confirm and Reject


def test_K01_without_confirmation_good_contents_are_answered_by_nothing(farm: MtlFarm) -> None:
    reader, writer = farm.reader(), farm.writer()
    keeping = farm.writer("a", profile=farm.keeping)
    for number in (5, 5, 4, 0, 2**64 - 1):
        writer.put(number)
        keeping.put(number, resource="a")
    assert (writer.take(), keeping.take()) == ([], [])
    assert len(reader.bodies()) == 5


@pytest.mark.parametrize("frames", [wire.confirm(1), wire.confirm(0, True), wire.reject(1), wire.reject(9, True, True)])
def test_K02_confirms_and_rejects_that_make_no_sense_are_ignored(farm: MtlFarm, frames: tuple[bytes, bytes]) -> None:
    unconfirmed, confirmed = keeper(farm, "a"), keeper(farm, "a", confirm=ConfirmMode.FULL)
    unconfirmed.say(*wire.summon(2, "a"))
    farm.keeping.give("a", b"x")
    unconfirmed.take()
    before = list(farm.keeping.calls)
    for peer in (farm.peer(), farm.writer(), unconfirmed, confirmed):
        assert peer.ask(*frames) == []
    assert farm.keeping.calls == before
    assert farm.counted("mtl_ignored.confirm") + farm.counted("mtl_ignored.reject") == 4


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


def test_K04_what_was_sent_can_be_confirmed_or_rejected(farm: MtlFarm) -> None:
    peer = keeper(farm, "a", confirm=ConfirmMode.FULL)
    peer.say(*wire.summon(2, "a"))
    for _ in range(5):
        farm.keeping.give("a", b"x")
    before = len(farm.keeping.calls)
    for frames in (wire.confirm(5), wire.confirm(3, True), wire.reject(4, recycle=True), wire.reject(1, True)):
        peer.say(*frames)
    peer.say(*wire.confirm(6))
    peer.say(*wire.reject(0))
    assert farm.keeping.calls[before:] == [
        ("confirmed", 5, False), ("confirmed", 3, True), ("rejected", 4, False, True), ("rejected", 1, True, False),
    ]  # fmt: skip


def test_a_profile_that_refuses_a_content_where_none_are_confirmed_is_heard_if_it_is_for_good(farm: MtlFarm) -> None:
    peer = farm.writer("a", profile=farm.keeping)
    peer.writing.confirm(1)
    peer.writing.reject(2, recycle=True)
    peer.writing.reject(3, recycle=False)
    assert peer.take() == bad(3)


# encodings, and what is wrong


def test_F01_names_of_255_bytes_can_be_used(farm: MtlFarm) -> None:
    name = "é" * 127 + "x"
    peer = keeper(farm, name)
    assert peer.ask(*wire.summon(5, name)) == ok(5)


EVERY_COMMAND: dict[str, Callable[[], tuple[bytes, bytes]]] = {
    "lease": lambda: wire.lease(7, TOKEN),
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


def is_dropped(farm: MtlFarm, *frames: bytes) -> None:
    """That message is answered by nothing, counted, and the flow goes on."""
    for peer in everybody(farm):
        before = farm.counted("mtl_refused.syntax")
        assert peer.ask(*frames) == []
        assert farm.counted("mtl_refused.syntax") == before + 1
        assert peer.ask(*wire.PING) == ([Pong()] if peer.client is not None else forbidden(0))


@pytest.mark.parametrize("name", ["a\nb", "\0", "\x7f", b"\xff", b"\xc3"])
def test_F02_a_short_string_that_is_not_printable_is_dropped(farm: MtlFarm, name: str | bytes) -> None:
    data = name if isinstance(name, bytes) else name.encode()
    for kind in (1, 3, 4):
        is_dropped(farm, bytes([kind]) + bytes(8) + bytes([len(data)]) + data, b"")
    is_dropped(farm, b"\5" + bytes(8) + bytes([len(data)]) + data + EMPTY, b"")


def test_F03_a_boolean_that_is_neither_0_nor_1_is_dropped(farm: MtlFarm) -> None:
    is_dropped(farm, b"\6" + bytes(8) + b"\2", b"")
    is_dropped(farm, b"\7" + bytes(8) + b"\0\xff", b"")
    assert farm.counted("mtl_ill_formed.boolean") == 8


@pytest.mark.parametrize(
    "frames", [[], [b"\x08"], [b"\x08", b"", b""], [b"", b""], [b"", b"\x08", b""], [b"\x08", *[b""] * 200]]
)
def test_X01_other_than_two_frames_or_an_empty_header_is_dropped(farm: MtlFarm, frames: list[bytes]) -> None:
    is_dropped(farm, *frames)


def test_X02_unknown_types_are_dropped(farm: MtlFarm) -> None:
    peers = everybody(farm)
    for kind in (0, *range(10, 256)):
        for rest in (b"", bytes(8), bytes(9)):
            for peer in peers:
                assert peer.ask(bytes([kind]) + rest, b"") == []
    assert farm.counted("mtl_ill_formed.type") == 247 * 3 * 4


@pytest.mark.parametrize("command", EVERY_COMMAND.values(), ids=EVERY_COMMAND.keys())
def test_X03_every_truncation_of_every_command_is_dropped(
    farm: MtlFarm, command: Callable[[], tuple[bytes, bytes]]
) -> None:
    header, body = command()
    peers = everybody(farm)
    for length in range(len(header)):
        for peer in peers:
            assert peer.ask(header[:length], body) == []
    assert farm.counted("mtl_refused.syntax") == len(header) * 4


@pytest.mark.parametrize("command", EVERY_COMMAND.values(), ids=EVERY_COMMAND.keys())
def test_X04_bytes_behind_the_last_field_are_dropped_with_their_command(
    farm: MtlFarm, command: Callable[[], tuple[bytes, bytes]]
) -> None:
    header, body = command()
    is_dropped(farm, header + b"\0", body)


def test_X05_a_response_is_dropped(farm: MtlFarm) -> None:
    for peer in everybody(farm):
        assert peer.ask(*wire.response(7, b"200")) == []
    assert farm.counted("mtl_ignored.response") == 4


def test_X06_a_body_where_none_is_used_does_not_matter(farm: MtlFarm) -> None:
    peer = farm.peer()
    for header, answer in (
        (wire.lease(1, farm.lease(Side.READER))[0], ok(1)),
        (wire.summon(2, RESOURCE)[0], ok(2)),
        (wire.confirm(3)[0], []),
        (wire.reject(3)[0], []),
        (wire.dismiss(4, RESOURCE)[0], ok(4)),
        (wire.PONG[0], []),
    ):
        assert peer.ask(header, b"whatever\xff") == answer


# heartbeats that the client begins


def test_H01_a_ping_is_answered_with_a_pong(farm: MtlFarm) -> None:
    peer = farm.reader()
    peer.say(b"\x08", b"")
    assert peer.take_frames() == [(b"\x09", b"")]


def test_H02_each_ping_has_its_pong(farm: MtlFarm) -> None:
    for peer in (farm.reader(), farm.writer()):
        for _ in range(200):
            peer.say(*wire.PING)
        assert peer.take() == [Pong()] * 200


def test_H03_a_stray_pong_is_answered_by_nothing(farm: MtlFarm) -> None:
    for peer in everybody(farm):
        assert peer.ask(*wire.PONG) == []


def test_H04_the_body_of_a_ping_does_not_come_back(farm: MtlFarm) -> None:
    peer = farm.reader()
    peer.say(b"\x08", b"body")
    assert peer.take_frames() == [(b"\x09", b"")]


def test_H05_a_ping_without_a_lease_is_answered_with_403_and_no_pong(farm: MtlFarm) -> None:
    assert farm.peer().ask(*wire.PING) == forbidden(0)


def test_H09_after_a_restart_a_client_can_tell_that_its_flow_is_gone(farm: MtlFarm) -> None:
    peer = farm.reader()
    farm.start()
    assert peer.ask(*wire.PING) == forbidden(0)
    assert peer.ask(*wire.summon(9, RESOURCE)) == forbidden(9)
    peer.lease(farm.lease(Side.READER))
    assert peer.ask(*wire.PING) == [Pong()]


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
    with nothing_fails():
        farm = MtlFarm(flow_values(drops=5))
        peers = everybody(farm)
        reader, writer = farm.reader(), farm.writer()
        for number, header, body in messages:
            peers[number].say(header, body)
        reader.take()
        writer.put(1, b"still there")
        assert reader.bodies() == [b"still there"]
        assert len(farm.data) == 5
