"""The reader of Elko bytes: whatever comes, in whatever pieces, only messages and Malformed come out, and the same."""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from broker.core.errors import Malformed, Reason
from broker.wires.elko.codec.blocks import END, MAX_BLOCK, BlockReader, Message, PongOut, encode
from broker.wires.elko.codec.broker_messages import VOCABULARY

# Bytes. Those of the syntax, and pieces of messages, are likelier than chance would have it.

TOKENS = [
    b"{", b"}", b"[", b"]", b'"', b"'", b":", b",", b"\\", b"\n", b"\n\n", b"\r\n", b"\0", b" ", b"/*", b"*/", b"//",
    b"to", b"op", b"broker", b"ping", b"find", b"service", b"wait", b"-1", b"0x1F", b"1e9", b".", b"true", b"null",
    b'{"to":"broker","op":"ping"}', b"{to:'broker',op:'ping'}", b'{"to":"broker","op":"load","factor":',
    b"\\u", b"\\ud83d", b"\xc3\xa9", b"\xf0\x9f\x98\x80", b"\xed\xa0\xbd\xed\xb8\x80", b"\xc1\x81", b"\xc0\xa2",
    b"\xff", b"\xe4\xb8", b"\xc2\xa0",
]  # fmt: skip
tokens = st.lists(st.sampled_from(TOKENS), max_size=30).map(b"".join)
streams = st.one_of(
    st.binary(max_size=80), tokens, st.lists(st.one_of(tokens, st.binary(max_size=8)), max_size=5).map(b"".join)
)

# Messages, right and nearly right.

words = st.sampled_from(["broker", "client", "admin", "x", "", "\u00e9", "\U0001f600", "a\nb", "\0"])
ops = st.sampled_from([str(m.__struct_config__.tag) for m in VOCABULARY.messages] + ["dance"])
names = [
    "tag",
    "service",
    "services",
    "wait",
    "monitor",
    "factor",
    "auth",
    "label",
    "msg",
    "self",
    "load",
    "name",
    "op",
]
scalars = st.one_of(
    st.none(), st.booleans(), st.integers(-(2**70), 2**70), st.floats(allow_nan=False, allow_infinity=False), words
)
things = st.recursive(
    scalars,
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["service", "mode", "x"]), inner, max_size=3)
    ),
    max_leaves=5,
)
messages = st.builds(
    lambda to, op, more: {"to": to, "op": op, **more},
    words | scalars,
    ops | scalars,
    st.dictionaries(st.sampled_from(names), things, max_size=4),
)


def read(pieces: Sequence[bytes]) -> list[object]:
    """The messages of a connection that sends these pieces; after what is fatal nothing is read."""
    reader = BlockReader(VOCABULARY)
    results: list[object] = []
    for piece in pieces:
        for item in reader.feed(piece):
            if isinstance(item, Malformed):
                results.append((item.reason, item.text, item.op))
            elif item is not None:
                assert isinstance(item, Message)
                results.append(item)
    fatal = [at for at, result in enumerate(results) if isinstance(result, tuple) and result[0].fatal]
    assert fatal in ([], [len(results) - 1])
    return results


def pieces(data: bytes, cuts: Sequence[int]) -> list[bytes]:
    places = sorted({0, len(data), *(cut % (len(data) + 1) for cut in cuts)})
    return [data[start:end] for start, end in pairwise(places)] or [b""]


@given(streams, st.lists(st.integers(0, 1_000), max_size=8))
def test_the_cuts_between_reads_mean_nothing(data: bytes, cuts: list[int]) -> None:
    whole = read([data])
    assert read(pieces(data, cuts)) == whole
    assert read([data[at : at + 1] for at in range(len(data))]) == whole


@given(streams)
def test_what_went_before_is_over_with_the_empty_line(data: bytes) -> None:
    before = read([data + b"\n\n"])
    if not any(isinstance(result, tuple) and result[0].fatal for result in before):
        after = read([data + b"\n\n", b'{"to":"broker","op":"ping"}\n'])
        assert after[: len(before)] == before
        assert len(after) == len(before) + 1


@given(streams)
def test_returns_and_zeros_mean_nothing(data: bytes) -> None:
    plain = data.translate(None, b"\r\0")
    assert read([b"\r".join(data[at : at + 1] for at in range(len(data)))]) == read([plain])


@given(messages)
def test_the_fast_and_the_lenient_way_agree(message: dict[str, object]) -> None:
    text = json.dumps(message).encode()
    assert read([text + b"\n"]) == read([b"/**/ " + text + b"\n"])
    assert read([text + b"\n"]) == read([text.replace(b'", "', b'",\n"') + b"\n"])


@given(st.lists(messages, max_size=4), st.sampled_from([b"\n", b"\n\n", b"\r\n\r\n", b"", b" "]))
def test_every_message_gives_one_result(sent: list[dict[str, object]], between: bytes) -> None:
    data = between.join(json.dumps(message).encode() for message in sent)
    results = read([data + b"\n\n"])
    assert len(results) == len(sent)


@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_what_is_sent_is_one_block_that_the_original_can_read(tag: str) -> None:
    data = encode(PongOut("broker", tag=tag))
    assert data.endswith(END)
    assert data.count(b"\n") == 2
    assert not any(byte >= 0xF0 for byte in data)
    assert json.loads(data)["tag"] == tag
    assert read([data]) == read([data.replace(b"{", b"{ ", 1)])
    [pong] = read([data])
    assert pong.tag == tag  # type: ignore[attr-defined]


@given(st.integers(-3, 3), st.integers(0, 70_000), st.booleans())
def test_the_limit_is_the_same_in_whatever_pieces(over: int, cut: int, lenient: bool) -> None:
    head = b"/**/" * lenient + b'{"to":"broker","op":"ping","tag":"'
    line = head + b"x" * (MAX_BLOCK + over - len(head) - 2) + b'"}'
    assert len(line) == MAX_BLOCK + over
    for parts in ([line + b"\n"], [line[:cut], line[cut:], b"\n"], [line[:-cut], line[-cut:] + b"\n"]):
        [result] = read(parts)
        if over > 0:
            assert isinstance(result, tuple)
            assert result[0] is Reason.TOO_LARGE
        else:
            assert isinstance(result, Message)
