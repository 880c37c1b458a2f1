"""The traffic of CURVE, opened and sealed in Python and by the compiled helper: one suite for both."""

from __future__ import annotations

import tracemalloc

import pytest

from broker.net.zmtp.curve_frames import BOXED_COMMAND, LAST_COUNTER, OVERHEAD
from broker.net.zmtp.frames import FRAME_COST, MAX_COMMAND, Command, Decoder, Fault, FrameLimits, ZmtpError
from broker.net.zmtp.machine import Output
from broker.net.zmtp.sealing import SODIUM
from tests.net.zmtp.curve_sides import FROM_CLIENT, FROM_SERVER, connected, encoder_of, forms, received, sealing_of

KEY = bytes(range(32))

MESSAGES = [
    [b"a"],
    [b""],
    [b"", b"PUT", b"", b"x" * 100],
    [b"y" * size for size in (221, 222, 223, 224, 255, 256, 257)],
    [b"z" * 5_000, b"", b"z" * 70_000],
]
"""At 222 bytes a frame on the wire begins to be long."""


def box(content: bytes, counter: int, prefix: bytes = FROM_CLIENT) -> bytes:
    """The body of a frame on the wire, whatever it contains."""
    octets = counter.to_bytes(8, "big")
    return b"\x07MESSAGE" + octets + SODIUM.seal(content, prefix + octets, KEY)


def framed(body: bytes, flags: int = 0) -> bytes:
    """A frame on the wire."""
    if len(body) < 256 and not flags & 2:
        return bytes((flags, len(body))) + body
    return bytes((flags | 2,)) + len(body).to_bytes(8, "big") + body


def decoder_of(form: str, limits: FrameLimits | None = None, counter: int = 0) -> Decoder:
    return sealing_of(form).decoder(limits or FrameLimits(), KEY, FROM_CLIENT, counter)


def refused(decoder: Decoder, data: bytes, fault: Fault = Fault.FRAME) -> str:
    """The reason why some input is refused."""
    with pytest.raises(ZmtpError) as caught:
        list(decoder.feed(data))
    assert caught.value.fault is fault
    return caught.value.text


# whole


@forms
def test_messages_are_what_they_were(form):
    server, client = connected(form)
    for one, other in ((server, client), (client, server)):
        data = b"".join(encoder_of(one).message(message) for message in MESSAGES)
        assert received(other, data) == MESSAGES


@pytest.mark.parametrize(("one", "other"), [("python", "compiled"), ("compiled", "python")])
def test_both_forms_make_the_same_octets(one, other):
    made = [sealing_of(form).encoder(KEY, FROM_SERVER, 7) for form in (one, other)]
    for message in MESSAGES:
        first, second = (encoder.message(message) for encoder in made)
        assert first == second
    assert made[0].command(b"PING", b"\0\0") == made[1].command(b"PING", b"\0\0")


@forms
def test_a_message_has_the_layout_of_the_specification(form):
    data = sealing_of(form).encoder(KEY, FROM_CLIENT, 7).message([b"a" * 10, b"b" * 300])
    expected = framed(box(b"\1" + b"a" * 10, 8)) + framed(box(b"\0" + b"b" * 300, 9))
    assert data == expected


@forms
def test_a_command_has_a_flag_of_its_own_in_the_box(form):
    data = sealing_of(form).encoder(KEY, FROM_CLIENT, 7).command(b"PING", b"\0\0ctx")
    assert data == framed(box(bytes((BOXED_COMMAND,)) + b"\x04PING\0\0ctx", 8))


@forms
def test_a_short_frame_may_have_a_long_header(form):
    assert list(decoder_of(form).feed(framed(box(b"\0abc", 1), 2))) == [[b"abc"]]


@forms
def test_a_ping_is_answered_between_messages_and_between_frames(form):
    server, client = connected(form)
    frames = encoder_of(client)
    one, ping, other = frames.message([b"1"]), frames.command(b"PING", b"\0\0ctx"), frames.message([b"2"])
    events = list(server.feed(one + ping + other))
    assert [event for event in events if isinstance(event, list)] == [[b"1"], [b"2"]]
    [pong] = [event for event in events if isinstance(event, Output)]
    assert list(client.feed(pong.data)) == [None]

    decoder = decoder_of(form)
    data = framed(box(b"\1a", 1)) + framed(box(b"\2\x04PING\0\0", 2)) + framed(box(b"\0b", 3))
    assert list(decoder.feed(data)) == [Command(b"PING", b"\0\0"), [b"a", b"b"]]


# in pieces


@forms
@pytest.mark.parametrize("size", [1, 2, 9, 50, 1_000, 4_097])
def test_input_may_come_in_pieces_of_any_size(form, size):
    server, client = connected(form)
    data = b"".join(encoder_of(client).message(message) for message in MESSAGES)
    found = []
    for at in range(0, len(data), size):
        found += received(server, data[at : at + size])
    assert found == MESSAGES
    assert server.pending == 0


@forms
def test_input_may_be_split_at_every_position(form):
    messages = [[b"", b"PUT", b"x" * 230], [b"y" * 40]]
    encoder = sealing_of(form).encoder(KEY, FROM_CLIENT, 0)
    data = b"".join(encoder.message(message) for message in messages)
    for at in range(len(data) + 1):
        decoder = decoder_of(form)
        found = [event for piece in (data[:at], data[at:]) for event in decoder.feed(piece) if event]
        assert found == messages
        assert decoder.pending == 0


@forms
def test_what_is_incomplete_is_pending(form):
    decoder = decoder_of(form)
    whole = framed(box(b"\1" + b"a" * 10, 1))
    assert list(decoder.feed(whole + whole[:20])) == []
    assert decoder.pending == 10 + FRAME_COST + 20
    decoder = decoder_of(form)
    long = framed(box(b"\0" + bytes(10_000), 1))
    assert list(decoder.feed(long[:5_000])) == []
    assert 4_900 < decoder.pending <= 5_000
    assert list(decoder.feed(long[5_000:])) == [[bytes(10_000)]]


@forms
def test_connections_take_turns_while_their_input_is_decoded(form):
    """The buffers are those of all connections: each must have its own content when it goes on."""
    data = [
        b"".join(framed(box(b"\0" + bytes((letter,)) * 20, counter)) for counter in range(1, 400)) for letter in b"ab"
    ]
    feeds = [decoder_of(form).feed(each) for each in data]
    found: list[list[object]] = [[], []]
    for first, second in zip(*feeds, strict=True):
        found[0] += [first] if first else []
        found[1] += [second] if second else []
    assert found == [[[b"a" * 20]] * 399, [[b"b" * 20]] * 399]


@forms
def test_a_long_read_is_interrupted_to_look_at_the_clock(form):
    data = b"".join(framed(box(b"\1", counter)) for counter in range(1, 2_000))
    moments = list(decoder_of(form).feed(data))
    assert moments.count(None) == len(moments) >= 2_000 // 256


# refused


@forms
@pytest.mark.parametrize("counter", [0, 4, 5])
def test_a_counter_that_does_not_grow_is_refused(form, counter):
    decoder = decoder_of(form, counter=3)
    assert list(decoder.feed(framed(box(b"\0a", 5)))) == [[b"a"]]
    assert refused(decoder, framed(box(b"\0a", counter))) == "a counter that does not grow"


@forms
def test_a_counter_that_goes_back_is_refused_within_one_read(form):
    data = framed(box(b"\0a", 5)) + framed(box(b"\0b", 6)) + framed(box(b"\0c", 6)) + framed(box(b"\0d", 7))
    found: list[object] = []
    with pytest.raises(ZmtpError, match="a counter that does not grow"):
        # A list that is extended by an iterator keeps what came before the error.
        found.extend(decoder_of(form).feed(data))
    assert found == [[b"a"], [b"b"]]


@forms
def test_a_counter_may_leave_some_out(form):
    data = framed(box(b"\0a", 5)) + framed(box(b"\0b", LAST_COUNTER))
    assert list(decoder_of(form).feed(data)) == [[b"a"], [b"b"]]


@forms
def test_a_counter_that_is_used_up_is_not_begun_again(form):
    sealing = sealing_of(form)
    encoder = sealing.encoder(KEY, FROM_SERVER, LAST_COUNTER - 2)
    with pytest.raises(OverflowError):
        encoder.message([b"a", b"b", b"c"])


@forms
def test_a_message_cannot_be_played_twice(form):
    server, client = connected(form)
    data = encoder_of(client).message([b"pay"])
    assert received(server, data) == [[b"pay"]]
    with pytest.raises(ZmtpError, match="a counter that does not grow"):
        received(server, data)


@forms
def test_what_a_side_sent_cannot_be_sent_back_to_it(form):
    _server, client = connected(form)
    encoder_of(client).message([b"a"])
    with pytest.raises(ZmtpError, match="a box that does not open"):
        received(client, encoder_of(client).message([b"a"]))


@forms
@pytest.mark.parametrize("at", [10, 17, 18, 33, 34, -1])
@pytest.mark.parametrize("size", [5, 300, 70_000])
def test_an_altered_frame_is_refused(form, at, size):
    header = 2 if size == 5 else 9
    data = bytearray(framed(box(b"\0" + bytes(size), 1)))
    data[at - 2 + header if at > 0 else at] ^= 0x80
    assert refused(decoder_of(form), bytes(data)) == "a box that does not open"


@forms
@pytest.mark.parametrize("size", [0, 1, 8, 16, 32])
def test_a_frame_too_short_for_a_box_is_refused(form, size):
    assert "is no MESSAGE of CURVE" in refused(decoder_of(form), framed(box(b"\0a", 1)[:size]))


@forms
@pytest.mark.parametrize("body", [b"\x07MESSAGF" + bytes(40), b"\x05READY" + bytes(40), b"GET / HTTP/1.1\r\n" * 3])
def test_a_frame_that_is_no_message_is_refused(form, body):
    assert "is no MESSAGE of CURVE" in refused(decoder_of(form), framed(body))


@forms
@pytest.mark.parametrize("flags", [1, 3, 4, 5, 6, 8, 0x80])
def test_flags_outside_of_the_box_are_refused(form, flags):
    assert "the flags" in refused(decoder_of(form), framed(box(b"\0a", 1), flags))


@forms
@pytest.mark.parametrize("flags", [3, 4, 5, 8, 0x80])
def test_unknown_flags_in_a_box_are_refused(form, flags):
    assert refused(decoder_of(form), framed(box(bytes((flags,)) + b"\x04PING\0\0", 1))) == (
        f"a box with the flags {flags:#04x}"
    )


@forms
def test_a_command_without_a_name_is_refused(form):
    assert refused(decoder_of(form), framed(box(b"\2", 1))) == "a command has no name"


@forms
def test_a_command_that_is_too_long_is_refused(form):
    body = b"\x04PING" + bytes(MAX_COMMAND - 5)
    assert list(decoder_of(form).feed(framed(box(b"\2" + body, 1)))) == [Command(b"PING", body[5:])]
    assert "a command has more than 512 bytes" in refused(
        decoder_of(form), framed(box(b"\2" + body + b"\0", 1)), Fault.TOO_LARGE
    )


# limits


@forms
@pytest.mark.parametrize("limit", [256, 1_000, 100_000])
def test_a_frame_beyond_the_limit_is_refused_by_its_header(form, limit):
    limits = FrameLimits.of_frame(limit)
    assert list(decoder_of(form, limits).feed(framed(box(b"\0" + bytes(limit), 1)))) == [[bytes(limit)]]
    data = framed(box(b"\0" + bytes(limit + 1), 1))[:9]  # the body need not come
    assert f"a frame has more than {limit} bytes" in refused(decoder_of(form, limits), data, Fault.TOO_LARGE)


@forms
def test_a_size_of_64_bits_takes_no_memory(form):
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        assert "has more than " in refused(decoder_of(form), b"\x02" + b"\xff" * 8 + bytes(100), Fault.TOO_LARGE)
        assert tracemalloc.get_traced_memory()[0] - before < 50_000
    finally:
        tracemalloc.stop()


@forms
@pytest.mark.parametrize("size", [0, 100, 60_000])
def test_an_endless_message_is_refused(form, size):
    limits = FrameLimits(frame=100_000, message=200_000, frames=1_000_000)
    decoder = decoder_of(form, limits)
    most = 200_000 // (size + FRAME_COST)
    with pytest.raises(ZmtpError, match="a message has more than 200000 bytes") as caught:  # noqa: PT012
        for counter in range(1, most + 2):
            assert set(decoder.feed(framed(box(b"\1" + bytes(size), counter)))) <= {None}
            assert decoder.pending <= 200_000
    assert caught.value.fault is Fault.TOO_LARGE
    assert counter == most + 1


@forms
def test_a_long_frame_is_in_memory_once_while_it_is_opened(form):
    size = 4_000_000
    data = framed(box(b"\0" + bytes(size), 1))
    pieces = [data[start : start + 65_536] for start in range(0, len(data), 65_536)]
    decoder = decoder_of(form)
    found: list[object] = []
    tracemalloc.start()
    try:
        for piece in pieces:
            found += decoder.feed(piece)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert found == [[bytes(size)]]
    assert peak < 1.5 * size  # a buffer that grows is an eighth too large


@forms
@pytest.mark.parametrize("at", [0, 5, 12, 16, 40, 9_000, -1])
def test_an_altered_frame_is_refused_that_comes_in_pieces(form, at):
    data = bytearray(framed(box(b"\0" + bytes(20_000), 1)))
    data[at if at < 0 else 9 + at] ^= 1
    decoder = decoder_of(form, counter=1 << 40 if at == 12 else 0)
    assert list(decoder.feed(bytes(data[:10_000]))) == []
    refused(decoder, bytes(data[10_000:]))


@forms
def test_the_last_frame_of_a_message_counts_as_well(form):
    limits = FrameLimits(frame=1_000, message=1_000 + FRAME_COST, frames=10)
    assert list(decoder_of(form, limits).feed(framed(box(b"\0" + bytes(1_000), 1)))) == [[bytes(1_000)]]
    data = framed(box(b"\1", 1)) + framed(box(b"\0" + bytes(1_000), 2))
    assert "more than 1064 bytes" in refused(decoder_of(form, limits), data, Fault.TOO_LARGE)


@forms
def test_a_message_of_too_many_frames_is_refused(form):
    limits = FrameLimits(frames=10)
    data = b"".join(framed(box(b"\1", counter)) for counter in range(1, 10))
    decoder = decoder_of(form, limits)
    assert list(decoder.feed(data + framed(box(b"\0", 10)))) == [[b""] * 10]
    for flags in (b"\0", b"\1"):
        decoder = decoder_of(form, limits)
        assert list(decoder.feed(data + framed(box(b"\1", 10)))) == []
        assert "10 frames" in refused(decoder, framed(box(flags, 11)), Fault.TOO_LARGE)


@forms
def test_the_smallest_frame_on_the_wire_holds_an_empty_one(form):
    data = framed(box(b"\0", 1))
    assert len(data) == 2 + OVERHEAD
    assert list(decoder_of(form).feed(data)) == [[b""]]
