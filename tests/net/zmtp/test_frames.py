"""Frames and commands: whatever the reads, the same messages come out, and no more is held than the limits allow."""

from __future__ import annotations

import gc
import tracemalloc
from collections.abc import Iterable, Iterator
from itertools import cycle, islice
from pathlib import Path
from sys import getrefcount
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.net.zmtp import helpers
from broker.net.zmtp.frames import (
    COMMAND,
    ENVELOPE,
    FRAME_COST,
    LONG,
    MAX_COMMAND,
    MORE,
    PARTIAL,
    STEP,
    Command,
    Decoded,
    Fault,
    FrameLimits,
    PlainDecoder,
    ZmtpError,
    command,
    message,
    python_message,
    split_command,
)
from tests.net.zmtp.conversation import bytewise, messages, reads, whole
from tests.net.zmtp.curve_sides import helper
from tests.packages import program

MIB = 1024 * 1024


@pytest.fixture(scope="module", params=["python", "compiled"], autouse=True)
def form(request: pytest.FixtureRequest) -> Iterator[str]:
    """All tests decode in Python alone, and with the compiled helper."""
    path = helper("framing")
    if request.param == "compiled" and path is None:
        program("cc")
    installed = helpers.FRAMING
    helpers.FRAMING = helpers.load_framing({helpers.VARIABLE: request.param}, path)
    assert helpers.FRAMING.name == request.param
    yield request.param
    helpers.FRAMING = installed


EDGES = (0, 1, 2, 254, 255, 256, 257, PARTIAL - 1, PARTIAL, PARTIAL + 1, 65_535, 65_536, 70_000)
"""Sizes of frames at which something changes: the form of the size, how the beginning is kept, the size of a read."""

PING = command(b"PING", b"\0\0")


def decode(pieces: Iterable[bytes], limits: FrameLimits | None = None) -> list[Any]:
    """All that is decoded, without the moments to look at the clock; all of it is complete."""
    decoder = PlainDecoder(limits or FrameLimits())
    decoded = [each for piece in pieces for each in decoder.feed(piece) if each is not None]
    assert decoder.pending == 0
    return decoded


def refused(pieces: Iterable[bytes], limits: FrameLimits | None = None) -> tuple[Fault, int]:
    """The fault of the input, and how many octets of it had been given when it was refused."""
    decoder = PlainDecoder(limits or FrameLimits())
    given = 0
    for piece in pieces:
        given += len(piece)
        try:
            list(decoder.feed(piece))
        except ZmtpError as error:
            assert error.reply == b""
            assert decoder.pending <= (limits or FrameLimits()).message + len(piece)
            return error.fault, given
    raise AssertionError("it was not refused")


def long_form(flags: int, size: int) -> bytes:
    """The header of a frame with a size of eight octets."""
    return bytes((flags | LONG,)) + size.to_bytes(8, "big")


# encoding


@pytest.mark.parametrize(
    ("frames", "octets"),
    [
        ([b""], b"\0\0"),
        ([b"a"], b"\0\x01a"),
        ([b"", b"a"], b"\x01\0\0\x01a"),
        ([b"", b"", b""], b"\x01\0\x01\0\0\0"),
        ([b"x" * 255], b"\0\xff" + b"x" * 255),
        ([b"x" * 256], b"\x02\0\0\0\0\0\0\x01\0" + b"x" * 256),
        ([b"x" * 256, b""], b"\x03\0\0\0\0\0\0\x01\0" + b"x" * 256 + b"\0\0"),
        ([b"x" * 65_536], b"\x02\0\0\0\0\0\x01\0\0" + b"x" * 65_536),
    ],
)
def test_the_octets_of_a_message(frames: list[bytes], octets: bytes) -> None:
    for join in (message, python_message, helpers.FRAMING.join or message):
        assert join(frames) == octets
        assert join(tuple(frames)) == octets
        views: list[Any] = [memoryview(frame) for frame in frames]
        assert join(views) == octets
    assert decode([octets]) == [frames]


@pytest.mark.parametrize(
    ("name", "data", "octets"),
    [
        (b"PING", b"\0\x0a", b"\x04\x07\x04PING\0\x0a"),
        (b"WELCOME", b"", b"\x04\x08\x07WELCOME"),
        (b"A", b"x" * 253, b"\x04\xff\x01A" + b"x" * 253),
        (b"A", b"x" * 254, b"\x06\0\0\0\0\0\0\x01\0\x01A" + b"x" * 254),
    ],
)
def test_the_octets_of_a_command(name: bytes, data: bytes, octets: bytes) -> None:
    assert command(name, data) == octets
    assert decode([octets]) == [Command(name, data)]


# decoding

EXAMPLES: list[list[Any]] = [
    [[b""]],
    [[b"a"], [b"b"]],
    [[b"", b"PUT", b"TOPIC", b"t", b"", b"body"], [b"", b"NOOP"]],
    [[b"x" * 255, b"y" * 256, b""], [b"z" * 300]],
    [[b"", b"", b"", b"", b""]],
    [[b"p" * PARTIAL], [b"q"], [b"r" * (PARTIAL + 1), b"s"]],
    [Command(b"PING", b"\0\0"), [b"a"], Command(b"PONG", b"context")],
    [Command(b"A", b"x" * 300), [b"a"]],
]


def octets_of(decoded: Iterable[Any]) -> bytes:
    return b"".join(command(each.name, each.data) if isinstance(each, Command) else message(each) for each in decoded)


@pytest.mark.parametrize("example", EXAMPLES)
def test_messages_are_the_same_in_one_read_bytewise_and_split_anywhere(example: list[Any]) -> None:
    octets = octets_of(example)
    assert decode(whole(octets)) == example
    assert decode(bytewise(octets)) == example
    for at in range(len(octets) + 1):
        assert decode([octets[:at], octets[at:]]) == example
        assert decode([octets[:at], b"", octets[at:]]) == example


@pytest.mark.parametrize("example", EXAMPLES)
def test_what_comes_behind_a_message_is_kept(example: list[Any]) -> None:
    trailing = message([b"x" * 100])[:-1]
    decoder = PlainDecoder(FrameLimits())
    assert list(decoder.feed(octets_of(example) + trailing)) == example
    assert decoder.pending == len(trailing)
    assert list(decoder.feed(b"x")) == [[b"x" * 100]]
    assert decoder.pending == 0


def test_a_short_frame_may_have_a_size_of_eight_octets() -> None:
    octets = long_form(MORE, 0) + long_form(0, 1) + b"a" + long_form(COMMAND, 2) + b"\x01B"
    for pieces in (whole, bytewise):
        assert decode(pieces(octets)) == [[b"", b"a"], Command(b"B", b"")]


def test_heartbeats_may_come_between_the_frames_of_a_message() -> None:
    frames = [b"", b"a", b"x" * 300, b"y" * 5_000, b"end"]
    parts = [
        b"\x01\0",
        b"\x01\x01a",
        long_form(MORE, 300) + b"x" * 300,
        long_form(MORE, 5_000) + b"y" * 5_000,
        b"\0\x03end",
    ]
    octets = PING.join(parts)
    expected = [Command(b"PING", b"\0\0")] * 4 + [frames]
    for pieces in (whole, bytewise):
        assert decode(pieces(octets)) == expected
    for at in range(len(octets)):
        assert decode([octets[:at], octets[at:]]) == expected


def test_frames_are_bytes_objects_of_the_right_size_at_every_edge() -> None:
    frames = [bytes([n % 251]) * size for n, size in enumerate(EDGES)]
    octets = message(frames) * 2
    for size in (1_000, 4_096, 65_536, len(octets)):
        for decoded in decode(reads(octets, size)):
            assert decoded == frames
            assert {type(frame) for frame in decoded} == {bytes}


sizes = st.one_of(st.sampled_from(EDGES), st.integers(0, 300))
frames = st.lists(sizes.map(lambda size: bytes([size % 251]) * size), min_size=1, max_size=6)
many_frames = st.integers(1, 300).map(lambda count: [b"%d" % n for n in range(count)])
commands = st.builds(Command, st.binary(min_size=1, max_size=20), st.binary(max_size=300))


@given(st.lists(st.one_of(frames, many_frames, commands), max_size=5), st.lists(st.integers(1, 70_000), min_size=1))
def test_messages_and_commands_come_as_they_were_sent_whatever_the_reads(sent: list[Any], cuts: list[int]) -> None:
    octets = octets_of(sent)

    def pieces() -> Iterator[bytes]:
        at = 0
        for size in cycle(cuts):
            if at >= len(octets):
                return
            yield octets[at : at + max(size, len(octets) // 200)]
            at += max(size, len(octets) // 200)

    assert decode(pieces()) == sent


@given(many_frames, st.data())
def test_a_ping_between_any_two_frames_changes_nothing(frames: list[bytes], data: st.DataObject) -> None:
    at = data.draw(st.integers(0, len(frames) - 1))
    head = message([*frames[:at], b""])[:-2]
    assert decode(bytewise(head + PING + message(frames[at:]))) == [Command(b"PING", b"\0\0"), frames]


# what is not well-formed


def test_reserved_flags_and_commands_with_more_are_refused() -> None:
    for flags in set(range(256)) - {0, 1, 2, 3, 4, 6}:
        assert refused([bytes((flags, 0))])[0] is Fault.FRAME, flags
        assert refused([b"\0\x01a\x01\0" + bytes((flags, 9)) + b"x" * 9])[0] is Fault.FRAME, flags


@pytest.mark.parametrize("body", [b"", b"\0", b"\0PING", b"\x05PING", b"\xffA"])
def test_a_command_without_a_name_is_refused(body: bytes) -> None:
    assert refused([bytes((COMMAND, len(body))) + body])[0] is Fault.FRAME
    with pytest.raises(ZmtpError) as refusal:
        split_command(body, Fault.HANDSHAKE)
    assert refusal.value.fault is Fault.HANDSHAKE


# bounds


def test_a_frame_may_have_the_size_of_the_limit_and_one_that_announces_more_is_refused_by_its_header() -> None:
    limits = FrameLimits.of_frame(10_000)
    assert decode([message([b"x" * 10_000])], limits) == [[b"x" * 10_000]]
    for flags in (0, MORE):
        header = long_form(flags, 10_001)
        assert refused(bytewise(header + bytes(20)), limits) == (Fault.TOO_LARGE, len(header))


@pytest.mark.parametrize("size", [2**32, 2**63 - 1, 2**63, 2**64 - 1])
def test_an_absurd_size_is_refused_by_its_header(size: int) -> None:
    for flags in (0, MORE, COMMAND):
        assert refused(bytewise(long_form(flags, size) + b"x")) == (Fault.TOO_LARGE, 9)


def test_a_command_may_have_the_size_of_its_limit_and_one_that_announces_more_is_refused_by_its_header() -> None:
    data = b"x" * (MAX_COMMAND - 2)
    assert decode([command(b"A", data)]) == [Command(b"A", data)]
    octets = command(b"A", data + b"x")
    assert refused(bytewise(octets)) == (Fault.TOO_LARGE, 9)


@pytest.mark.parametrize("frame", [b"", b"a", b"x" * 33])
def test_a_message_may_have_so_many_frames_and_no_more(frame: bytes) -> None:
    limits = FrameLimits(frame=255, message=MIB, frames=50)
    good = message([frame] * 50)
    for pieces in (whole, bytewise):
        assert decode(pieces(good), limits) == [[frame] * 50]
        assert decode(pieces(good * 2), limits) == [[frame] * 50] * 2
        assert refused(pieces(message([frame] * 51)), limits)[0] is Fault.TOO_LARGE
    # The limit holds for frames before, between, or behind.
    assert decode([message([b"a"]) + PING.join([good[: 25 * (2 + len(frame))], good[25 * (2 + len(frame)) :]])], limits)
    assert refused([message([b"a"]) * 9 + message([frame] * 51) + message([b"a"])], limits)[0] is Fault.TOO_LARGE


@pytest.mark.parametrize("size", [0, 1, 33, 255, 256, 3_000, PARTIAL])
@pytest.mark.parametrize("last", [0, 255, 300, 5_000])
def test_a_message_may_cost_so_much_and_not_one_more(size: int, last: int) -> None:
    frames = [b"x" * size] * 3 + [b"y" * last]
    cost = sum(map(len, frames)) + FRAME_COST * len(frames)
    octets = message(frames)
    for pieces in (whole, bytewise):
        assert decode(pieces(octets), FrameLimits(10_000, cost)) == [frames]
        assert refused(pieces(octets), FrameLimits(10_000, cost - 1))[0] is Fault.TOO_LARGE
    for at in range(0, len(octets), max(1, len(octets) // 25)):
        assert decode([octets[:at], octets[at:]], FrameLimits(10_000, cost)) == [frames]
        assert refused([octets[:at], octets[at:]], FrameLimits(10_000, cost - 1))[0] is Fault.TOO_LARGE


@given(
    st.lists(st.one_of(st.sampled_from((0, 1, 33, 255, 256, PARTIAL)), st.integers(0, 600)), min_size=1, max_size=12),
    st.integers(0, 12),
    st.integers(1, 9_000),
)
def test_the_bounds_are_exact_however_the_message_is_made_and_read(sizes: list[int], at: int, read: int) -> None:
    frames = [b"x" * size for size in sizes]
    cost = sum(sizes) + FRAME_COST * len(sizes)
    head = message([*frames[:at], b""])[:-2] if at < len(frames) else b""
    octets = head + PING + message(frames[at:]) if head or at < len(frames) else message(frames)
    for limits in (FrameLimits(PARTIAL, cost, 99), FrameLimits(PARTIAL, 99 * MIB, len(frames))):
        assert messages(decode(reads(octets, read), limits)) == [frames]
    for limits in (FrameLimits(PARTIAL, cost - 1, 99), FrameLimits(PARTIAL, 99 * MIB, len(frames) - 1)):
        assert refused(reads(octets, read), limits)[0] is Fault.TOO_LARGE


def test_what_a_message_will_cost_is_refused_by_the_header_of_the_frame_that_is_too_much() -> None:
    limits = FrameLimits(frame=10_000, message=20_000)
    first = long_form(MORE, 10_000) + bytes(10_000)
    fits = 20_000 - 10_000 - 2 * FRAME_COST
    assert decode([first + long_form(0, fits) + bytes(fits)], limits) == [[bytes(10_000), bytes(fits)]]
    assert refused([first, *bytewise(long_form(0, fits + 1))], limits) == (Fault.TOO_LARGE, len(first) + 9)


def test_what_is_pending_is_what_is_held() -> None:
    decoder = PlainDecoder(FrameLimits())
    two = 2 * FRAME_COST + 5
    for piece, pending in (
        (b"\x01", 1),
        (b"\0", FRAME_COST),
        (b"\x01\x05ab", FRAME_COST + 4),
        (b"cde", two),
        (PING, two),
        (long_form(MORE, 10_000), two),
        (bytes(9_999), two + 9_999),
        (b"x", two + 10_000 + FRAME_COST),
        (long_form(0, 300), two + 10_000 + FRAME_COST + 9),
        (b"z" * 299, two + 10_000 + FRAME_COST + 9 + 299),
    ):
        list(decoder.feed(piece))
        assert decoder.pending == pending
    assert [len(frames) for frames in messages(decoder.feed(b"z"))] == [4]
    assert decoder.pending == 0


def test_a_refused_message_is_not_kept() -> None:
    decoder = PlainDecoder(FrameLimits(frame=MIB, message=2 * MIB))
    big = long_form(MORE, MIB - 200) + bytes(MIB - 200)
    tracemalloc.start()
    try:
        assert list(decoder.feed(big)) == list(decoder.feed(big)) == []
        with pytest.raises(ZmtpError) as refusal:  # whose traceback keeps the variables of the decoder alive
            list(decoder.feed(big))
        assert refusal.value.fault is Fault.TOO_LARGE
        assert tracemalloc.get_traced_memory()[0] < MIB + MIB // 2  # one of the frames is the last read
    finally:
        tracemalloc.stop()


# memory and work


def endless(frame: bytes) -> Iterator[bytes]:
    """A message without an end, in reads of 64 KiB."""
    one = message([frame, b""])[:-2]
    piece = one * max(1, 65_536 // len(one) + 1)
    rest = b""
    while True:
        rest += piece
        while len(rest) >= 65_536:
            yield rest[:65_536]
            rest = rest[65_536:]


@pytest.mark.parametrize("frame", [b"", b"a", b"x" * 33, b"y" * 8_192, b"z" * 1_000_000])
@pytest.mark.parametrize(
    "limits",
    [
        FrameLimits(),
        FrameLimits.of_frame(MIB),
        pytest.param(FrameLimits(MIB, 3 * MIB, 10**9), marks=pytest.mark.long),
    ],
)
def test_an_endless_message_takes_no_more_memory_than_the_limit(frame: bytes, limits: FrameLimits) -> None:
    source = endless(frame)
    given_at_most = list(islice(source, (limits.message + MIB) // 65_536))
    tracemalloc.start()
    try:
        assert refused(given_at_most, limits)[0] is Fault.TOO_LARGE
        assert tracemalloc.get_traced_memory()[1] <= limits.message + MIB
    finally:
        tracemalloc.stop()


def test_a_large_frame_is_in_memory_once() -> None:
    size = 16 * MIB
    header, piece = long_form(0, size), bytes(65_536)
    decoder = PlainDecoder(FrameLimits())
    tracemalloc.start()
    try:
        list(decoder.feed(header))
        for _ in range(size // len(piece) - 1):
            list(decoder.feed(piece))
        [[frame]] = messages(decoder.feed(piece))
        assert len(frame) == size
        # A buffer that grows has an eighth to spare, which is not touched before it is used.
        assert tracemalloc.get_traced_memory()[1] <= size + size // 8 + MIB
        assert tracemalloc.get_traced_memory()[0] <= size + MIB // 8
    finally:
        tracemalloc.stop()


class Copied(bytes):
    """Octets that count how many of them were cut out or put together, of all such objects."""

    octets = 0

    def __getitem__(self, key: Any) -> Any:
        result = super().__getitem__(key)
        if isinstance(key, slice):
            Copied.octets += len(result)
            return Copied(result)
        return result

    def __add__(self, other: Any) -> Copied:
        Copied.octets += len(self) + len(other)
        return Copied(super().__add__(other))

    def __radd__(self, other: bytes) -> Copied:
        Copied.octets += len(self) + len(other)
        return Copied(other + bytes(self))


@pytest.mark.parametrize("size", [PARTIAL, 65_536, pytest.param(MIB // 4, marks=pytest.mark.long)])
def test_a_frame_that_comes_byte_by_byte_is_not_copied_for_each_of_them(size: int) -> None:
    decoder = PlainDecoder(FrameLimits())
    Copied.octets = 0
    octets = long_form(0, size) + bytes(size)
    piece = Copied(b"\0")
    for at in range(9):
        list(decoder.feed(Copied(octets[at : at + 1])))
    got: list[Decoded] = []
    for _ in range(size):
        got += decoder.feed(piece)
    assert messages(got) == [[bytes(size)]]
    assert Copied.octets < 200


def test_a_short_frame_that_comes_byte_by_byte_is_copied_as_often_as_it_is_short() -> None:
    decoder = PlainDecoder(FrameLimits())
    Copied.octets = 0
    size = PARTIAL - 1
    for piece in bytewise(long_form(0, size) + bytes(size)):
        list(decoder.feed(Copied(piece)))
    assert Copied.octets <= 2 * PARTIAL**2


def test_many_frames_in_one_read_leave_moments_to_look_at_the_clock() -> None:
    count = 10 * len(STEP)
    decoded = list(PlainDecoder(FrameLimits(frames=2 * count)).feed(message([b""] * count)))
    assert decoded.count(None) == count // len(STEP)
    assert messages(decoded) == [[b""] * count]


@pytest.mark.parametrize("taken", [0, 1, 2, 5])
def test_decoding_may_be_abandoned(taken: int) -> None:
    decoder = PlainDecoder(FrameLimits())
    decoding = decoder.feed(message([b"a", b"b"]) * 5 + b"\xff\xff")
    assert list(islice(decoding, taken)) == [[b"a", b"b"]] * taken
    del decoding


def test_the_limits_of_a_frame_leave_room_for_its_envelope() -> None:
    limits = FrameLimits.of_frame(MIB)
    frames = [b"identity", b"", *[b"header"] * 1_000, bytes(MIB)]
    assert sum(map(len, frames)) + FRAME_COST * len(frames) <= MIB + ENVELOPE
    assert decode(reads(message(frames)), limits) == [frames]


# the helper


@given(st.lists(st.binary(max_size=600), min_size=1, max_size=40))
def test_joined_messages_are_those_of_python(frames: list[bytes]) -> None:
    join = helpers.FRAMING.join or python_message
    assert join(frames) == join(tuple(frames)) == python_message(frames)


@pytest.mark.parametrize("frames", [[], (), None, 1, [1.5], [b"a", "b"], {b"a": b"b"}])
def test_what_is_no_message_is_refused_by_the_helper(form: str, frames: Any) -> None:
    if form == "compiled":
        assert helpers.FRAMING.join is not None
        for _ in range(3):
            with pytest.raises((TypeError, KeyError)):
                helpers.FRAMING.join(frames)


def test_the_helper_keeps_no_references(form: str) -> None:
    """Memory of many calls, those that fail included."""
    split, join = helpers.FRAMING.split, helpers.FRAMING.join
    if split is None or join is None:
        return
    frames = [bytes(size) for size in (3, 300, 30)] * 10
    octets = join(frames) * 3 + b"\xff\xff"
    long_frame: Any = memoryview(bytes(1_000))

    def use() -> None:
        assert split(octets, 0, 1 << 20, 1 << 20) == ([frames] * 3, len(octets) - 2)
        assert split(octets, 0, 10, 1 << 20) == ([], 0)
        join([long_frame, *frames])
        with pytest.raises(TypeError):
            join([*frames[:20], 1.5])  # type: ignore[list-item]
        with pytest.raises(TypeError):
            split(b"", 0, 0)  # type: ignore[call-arg]

    use()
    tracemalloc.start()
    try:
        use()
        before = tracemalloc.get_traced_memory()[0]
        for _ in range(300):
            use()
        gc.collect()
        assert tracemalloc.get_traced_memory()[0] - before < 10_000
    finally:
        tracemalloc.stop()
    references = [getrefcount(frame) for frame in frames]
    for _ in range(100):
        use()
    assert [getrefcount(frame) for frame in frames] == references


@pytest.mark.parametrize("content", [None, b"", b"no library"])
def test_a_helper_that_cannot_be_loaded_is_left_out_with_the_reason(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "_framing.so"
    if content is not None:
        path.write_bytes(content)
    found = helpers.load_framing({}, path)
    assert (found.name, found.split, found.join) == ("python", None, None)
    assert "_framing.so cannot be loaded" in found.reason
