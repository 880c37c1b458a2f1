"""The mc0 codec: whatever frames come, only messages and BadMessage come out, and all that is sent back can be read."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from broker.core.errors import Malformed, Reason
from broker.wires.mc0.codec.mc0_messages import (
    MAX_TOPIC,
    MAX_TTL,
    BadMessage,
    Connect,
    Disconnect,
    Message,
    Noop,
    Put,
    Sub,
    TooShort,
    Unsub,
    error,
    message,
    ok,
    parse,
)
from tests.wires.mc0.codec.examples import CONVERSATIONS, read_as_the_connector

VERBS = [b"CONNECT", b"DISCONNECT", b"SUB", b"UNSUB", b"PUT", b"NOOP"]
KEYS = [b"ID", b"TOPIC", b"TTL", b"VERSION", b"X-REPLY-TO", b"X-A", b"id", b"ID\0x"]

# Lists of frames. Those that mean something are likelier than chance would have it.

numbers = st.integers(-(10**12), 10**12).map(lambda number: b"%d" % number)
words = st.sampled_from([b"", b"t", b"mcollective nodes web1", b"1000abc", b" 5", b"\0", b"x" * 256, b"T" * 5_000])
values = st.one_of(words, numbers, st.binary(max_size=12))
keys = st.one_of(st.sampled_from(KEYS), st.sampled_from(KEYS), st.binary(max_size=3))
pairs = st.lists(st.tuples(keys, values).map(list), max_size=6).map(
    lambda some: [frame for pair in some for frame in pair]
)
verbs = st.one_of(st.sampled_from(VERBS), st.binary(max_size=8), st.just(b"x" * 300))
bodies: st.SearchStrategy[list[bytes]] = st.one_of(
    st.just([]), st.lists(values, max_size=4).map(lambda body: [b"", *body])
)


def messages_of(verbs: st.SearchStrategy[bytes]) -> st.SearchStrategy[list[bytes]]:
    """Messages whose headers are in pairs; many of them are refused for another reason."""
    return st.builds(lambda verb, pairs, body: [b"", verb, *pairs, *body], verbs, pairs, bodies)


anything = st.lists(st.one_of(values, keys, verbs), max_size=12)
recorded = st.sampled_from(
    [frames for said in CONVERSATIONS.values() for direction, _, frames in said if direction == ">"]
)


@st.composite
def mutated(draw: st.DrawFn) -> list[bytes]:
    """A recorded message in which frames were dropped, doubled, swapped, cut or replaced."""
    frames = list(draw(recorded))
    for _ in range(draw(st.integers(1, 3))):
        if not frames:
            break
        at = draw(st.integers(0, len(frames) - 1))
        match draw(st.integers(0, 5)):
            case 0:
                del frames[at]
            case 1:
                frames.insert(at, frames[at])
            case 2:
                to = draw(st.integers(0, len(frames) - 1))
                frames[at], frames[to] = frames[to], frames[at]
            case 3:
                frames[at] = frames[at][: draw(st.integers(0, 3))]
            case 4:
                frames[at] = draw(st.one_of(values, keys))
            case _:
                frames.insert(at, draw(st.one_of(values, keys)))
    return frames


common = st.builds(
    lambda before, topic, body: [b"", b"PUT", *before, b"TOPIC", topic, b"", *body],
    st.one_of(st.just([]), values.map(lambda id: [b"ID", id])),
    values,
    st.lists(values, max_size=2),
)
"""Nearly all real ones: a PUT with a topic, or an ID and a topic, and no other header."""

frame_lists = st.one_of(
    common, messages_of(st.just(b"PUT")), messages_of(st.sampled_from(VERBS)), mutated(), messages_of(verbs), anything
)

# A second reading of the grammar, step by step.


def read_slowly(frames: Sequence[bytes]) -> tuple[bool, list[tuple[bytes, bytes]], list[bytes]]:
    """True if every key has a value; the pairs; and the frames after the headers."""
    rest = list(frames[2:])
    found: list[tuple[bytes, bytes]] = []
    while rest and rest[0] != b"":
        if len(rest) == 1:
            return False, found, []
        found.append((rest.pop(0), rest.pop(0)))
    return True, found, rest[1:]


def last(found: Sequence[tuple[bytes, bytes]], key: bytes) -> bytes | None:
    """The last value of a key."""
    return next((value for name, value in reversed(found) if name == key), None)


def result_of(frames: Sequence[bytes]) -> Message | BadMessage:
    try:
        return parse(frames)
    except BadMessage as malformed:
        return malformed


def plain(result: Message | BadMessage) -> object:
    """A result as a value that can be compared."""
    if isinstance(result, BadMessage):
        return type(result), result.reason, result.text, result.reply, result.op, result.id
    return result


@given(frame_lists)
def test_frames_are_a_message_or_malformed_and_all_of_it_is_bytes(frames: list[bytes]) -> None:
    result = result_of(frames)
    assert isinstance(result, Connect | Disconnect | Sub | Unsub | Put | Noop | Malformed)
    assert result.id is None or (type(result.id) is bytes and result.id)
    assert isinstance(result, TooShort) == (len(frames) < 2)
    if isinstance(result, BadMessage):
        assert not result.reason.fatal
        assert result.text.isascii()
        assert result.text.isprintable()
        assert len(result.text) < 600


@given(frame_lists)
def test_a_slow_reading_finds_the_same(frames: list[bytes]) -> None:
    result = result_of(frames)
    if len(frames) < 2:
        return
    verb = frames[1]
    even, found, rest = read_slowly(frames)
    id = last(found, b"ID")
    assert result.id == (id or None)
    if verb not in VERBS:
        assert isinstance(result, BadMessage)
        assert result.reason is Reason.UNKNOWN_OP
        assert result.reply == b"Unknown command verb '" + verb[:100] + b"'"
    elif not even:
        assert isinstance(result, BadMessage)
        assert result.reason is Reason.SYNTAX
    elif isinstance(result, BadMessage):
        assert result.reason is Reason.PARAMETER
        assert id == b"" or why_not(verb, found, rest)
    else:
        assert id != b""
        assert not why_not(verb, found, rest)
        check(result, verb, found, rest)


def why_not(verb: bytes, found: list[tuple[bytes, bytes]], rest: list[bytes]) -> bool:
    """True if there is a reason, other than the ID, to refuse a message of a known verb."""
    if verb == b"PUT":
        topic = last(found, b"TOPIC")
        empty = any(last(found, key) == b"" for key, _ in found)
        return not topic or len(topic) > MAX_TOPIC or empty
    if verb in (b"SUB", b"UNSUB"):
        return any(len(topic) > MAX_TOPIC for topic in rest)
    ttl = last(found, b"TTL")
    return verb == b"CONNECT" and bool(ttl) and (number(ttl or b"") is None or (number(ttl or b"") or 0) < 0)


def number(text: bytes) -> int | None:
    """The number at the start of a text, found without a pattern."""
    text = text.lstrip(b" \t\n\v\f\r")
    sign, text = (text[:1], text[1:]) if text[:1] in (b"+", b"-") else (b"", text)
    digits = text[: len(text) - len(text.lstrip(b"0123456789"))]
    return int(sign + digits) if digits else None


def check(result: Message, verb: bytes, found: list[tuple[bytes, bytes]], rest: list[bytes]) -> None:
    """A well-formed message is decoded to its own content."""
    assert type(result).__name__.upper().encode() == verb
    match result:
        case Put():
            order = list(dict.fromkeys(key for key, _ in found if key not in (b"ID", b"TOPIC")))
            assert result.topic == last(found, b"TOPIC")
            assert result.headers == [frame for key in order for frame in (key, last(found, key))]
            assert result.body == rest
        case Sub() | Unsub():
            assert result.topics == rest
        case Connect():
            assert result.version == (last(found, b"VERSION") or None)
            ttl = last(found, b"TTL")
            assert result.ttl == (min(number(ttl) or 0, MAX_TTL) if ttl else None)
            assert result.ttl is None or 0 <= result.ttl <= MAX_TTL


@given(frame_lists)
def test_what_a_put_becomes_is_read_by_the_connector_as_it_was_meant(frames: list[bytes]) -> None:
    result = result_of(frames)
    if isinstance(result, Put):
        sent = [bytes(frame) for frame in message(result.topic, result.headers, result.body)]
        verb, headers, body = read_as_the_connector(sent)
        _, found, rest = read_slowly(frames)
        assert verb == b"MESSAGE"
        assert headers == {key: value for key, value in dict(found).items() if key != b"ID"}
        assert body == rest


names = st.one_of(st.sampled_from(KEYS[4:]), st.binary(min_size=1, max_size=3))
filled = st.one_of(st.just(b"r" * 256), st.binary(min_size=1, max_size=8))


@given(
    filled, st.dictionaries(names, filled, max_size=5), st.lists(values, max_size=5), st.none() | filled, st.randoms()
)
def test_a_good_put_is_handed_on_whole(
    topic: bytes, headers: dict[bytes, bytes], body: list[bytes], id: bytes | None, random: Any
) -> None:
    headers = {key: value for key, value in headers.items() if key not in (b"ID", b"TOPIC")}
    sent = [(b"TOPIC", topic), *headers.items(), *([(b"ID", id)] if id else [])]
    random.shuffle(sent)
    result = parse([b"", b"PUT", *(frame for pair in sent for frame in pair), b"", *body])
    assert isinstance(result, Put)
    assert result.id == id
    made = [bytes(frame) for frame in message(result.topic, result.headers, result.body)]
    assert read_as_the_connector(made) == (b"MESSAGE", {b"TOPIC": topic, **headers}, body)


@given(frame_lists)
def test_every_answer_is_read_by_the_connector(frames: list[bytes]) -> None:
    result = result_of(frames)
    if isinstance(result, BadMessage):
        answer = list(error(result.reply, result.id))
        expected = {b"MESSAGE": result.reply} | ({b"ID": result.id} if result.id else {})
        assert read_as_the_connector(answer) == (b"ERROR", expected, [])
    elif result.id is not None:
        assert read_as_the_connector(list(ok(result.id))) == (b"OK", {b"ID": result.id}, [])


@given(frame_lists, st.binary(max_size=4))
def test_the_delimiter_means_nothing(frames: list[bytes], delimiter: bytes) -> None:
    if frames:
        assert plain(result_of([delimiter, *frames[1:]])) == plain(result_of(frames))


@given(frame_lists)
def test_what_was_given_is_left_as_it_was(frames: list[bytes]) -> None:
    before = list(frames)
    result_of(frames)
    assert frames == before
