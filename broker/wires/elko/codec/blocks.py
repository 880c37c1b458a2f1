"""Framing and encoding: the bytes of one connection to messages, and messages to bytes.

Rules (from the original's behaviour; see "Framing" in docs/protocols/elko-broker.md):
- Lines end with LF. CR and NUL bytes are dropped everywhere.
- A block is one or more lines, joined by a space, up to an empty line; it holds any number of messages.
- A line that leaves no object of the block open ends the block, too. Thus a message that is typed in telnet, or comes
  from a client that ends each message with one LF, is decoded at once.
- After a syntax error the rest of that block is discarded. Earlier messages of the block count, and so do later blocks.
- A block, or an unterminated line, over `MAX_BLOCK` is a fatal error, and so are bytes that are not UTF-8.

`lenient` parses a block, `vocabulary` makes its objects messages.

Vocabulary of one Elko protocol: converts JSON objects to typed messages, or explains why an object is invalid.

A message is a JSON object with ``to`` (the object addressed) and ``op`` (the operation); all other members are
parameters, matched by name. Unknown parameters are ignored, ``null`` is the same as absent.

`broker_messages` and `director_messages` define the messages of one protocol; those that both share, and their
answers, are here. Each class names its section of the documents; "(peers)" marks those that only real peers use.
`blocks` calls the conversion.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Iterator, Sequence
from functools import reduce
from typing import Any, Literal

import msgspec

from broker.core.errors import Malformed, Reason
from broker.wires.elko.codec import lenient


# gc=False, here and in all messages: they hold no reference cycles, and the garbage collector need not track them.
class Message(msgspec.Struct, frozen=True, gc=False, tag_field="op"):
    """Base of all messages: ``to`` is the object addressed."""

    to: str


class Vocabulary:
    """The messages of one protocol, each a subclass of `Message` with its op as tag."""

    def __init__(self, messages: Sequence[type[Message]]) -> None:
        self.messages = tuple(messages)
        union: Any = reduce(operator.or_, messages)
        self._union = union
        self._ops = {str(m.__struct_config__.tag) for m in messages}
        self.decode = msgspec.json.Decoder(union).decode
        """Convert strict JSON to a message. Raises one of `NOT_STRICT` if the bytes are not exactly one."""

    def message(self, members: dict[str, object]) -> Message:
        """Convert a JSON object to a message. Raises `Malformed`."""
        try:
            return msgspec.convert(members, self._union)  # type: ignore[no-any-return]
        except msgspec.ValidationError as error:
            raise self._explained(members, str(error)) from None

    def _explained(self, members: dict[str, object], error: str) -> Malformed:
        op = members.get("op")
        if not isinstance(op, str):
            return Malformed(Reason.UNKNOWN_OP, "the message has no op (a string)")
        if not isinstance(members.get("to"), str):
            return Malformed(
                Reason.UNKNOWN_TARGET, f"the message {op[:40]!r} has no target: to (a string) is missing", op
            )
        if op not in self._ops:
            return Malformed(Reason.UNKNOWN_OP, f"there is no op {op[:40]!r}", op)
        text, _, place = error.partition(" - at ")
        where = f" at {place}" if place else ""
        return Malformed(Reason.PARAMETER, f"{op}: {text[:1].lower()}{text[1:]}{where}", op)


NOT_STRICT = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)
"""All exceptions of `Vocabulary.decode` for bytes that are not one strict, valid message."""


class AuthDesc(msgspec.Struct, frozen=True, gc=False):
    """AUTHDESC as peers send it: "Authorization information". Its ``type`` is ignored."""

    mode: str
    code: str | None = None
    id: str | None = None


class Auth(Message, frozen=True, gc=False, tag="auth"):
    """ "Common Protocols: auth"."""

    auth: AuthDesc | None = None
    label: str | None = None


class Disconnect(Message, frozen=True, gc=False, tag="disconnect"):
    """ "disconnect"."""


class Ping(Message, frozen=True, gc=False, tag="ping"):
    """ "ping"."""

    tag: str | None = None


class Pong(Message, frozen=True, gc=False, tag="pong"):
    """The answer to a ping of the broker; any other one is ignored."""

    tag: str | None = None


class Debug(Message, frozen=True, gc=False, tag="debug"):
    """ "debug": a line for the log."""

    msg: str


COMMON: tuple[type[Message], ...] = (Auth, Disconnect, Ping, Pong, Debug)
"""Messages that every object accepts."""


# Replies

Absent = msgspec.UnsetType
"""The type of an optional member that is omitted."""


class PongOut(msgspec.Struct, frozen=True, gc=False):
    """The answer to "ping"."""

    to: str
    op: Literal["pong"] = "pong"
    tag: str | Absent = msgspec.UNSET


class PingOut(msgspec.Struct, frozen=True, gc=False):
    """A ping of the broker, by which it checks a server."""

    to: str
    op: Literal["ping"] = "ping"
    tag: str | Absent = msgspec.UNSET


class Diagnostic(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """The reason why a message was refused, in the original's form (peers)."""

    to: Literal["error"] = "error"
    op: Literal["debug"] = "debug"
    msg: str


MAX_BLOCK = 1_048_576
"""Bytes of one line or block: the original's limit. The largest messages of real peers are far smaller."""

LINES_PER_STEP = 256
"""Lines of one step, some 200 µs in an unfinished block. A read full of tiny lines would also become tens of thousands
of objects."""

DECODING = 4
"""Bytes of memory for each byte of a line or block between two steps: the input, its text, and the objects so far."""

MAX_FAST_LINE = 4_096
"""Bytes of a line that `BlockReader.feed` may decode before its messages are due: some 20 µs."""

_LF = 10

END = b"\n\n"
"""Terminator of every message that is sent: an empty line."""


class BlockReader:
    """Incremental decoder for the input of one connection."""

    __slots__ = ("_balance", "_block", "_decode", "_decoding", "_ended", "_tail", "_vocabulary")

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary
        self._decode = vocabulary.decode
        self._tail = bytearray()
        self._block = bytearray()
        self._balance: lenient.BracketBalance | None = None
        self._decoding = 0
        self._ended = False

    def feed(self, data: bytes) -> Iterator[Message | Malformed | None]:
        """Return an iterator over the messages that ``data`` completes, in order.

        It yields a `Malformed` in place of an invalid message, and nothing after a `Malformed` with a fatal reason. A
        None is a step without a message. Messages are decoded lazily; the iterator must be exhausted before the next
        call.
        """
        # Fast path: most reads are one whole message in one line, which the strict decoder takes without copies.
        end = data.find(b"\n")
        if (
            0 <= end == len(data) - 2 <= MAX_FAST_LINE
            and data[-1] == _LF
            and not (self._tail or self._block or self._ended)
        ):
            try:
                if data.isascii():
                    return iter((self._decode(data),))
            except NOT_STRICT:
                pass
        return self._feed(data)

    def _feed(self, data: bytes) -> Iterator[Message | Malformed | None]:
        if b"\r" in data or b"\0" in data:
            data = data.translate(None, b"\r\0")
        # Checked once for all lines: only others need a check of their UTF-8 each.
        ascii_only = data.isascii() and self._tail.isascii()
        decode = self._decode
        while data:
            lines = data.split(b"\n", LINES_PER_STEP)
            data = lines.pop()
            if not lines:
                self._tail += data
                break
            if self._tail:
                lines[0] = bytes(self._tail) + lines[0]
                self._tail = bytearray()
            for line in lines:
                if self._ended:
                    return
                if not line:
                    if self._block:
                        yield from self._end_of_block()
                elif self._block or len(line) > MAX_BLOCK or not (ascii_only or _is_utf8(line)):
                    # The strict decoder would not check the UTF-8 of members that it skips.
                    yield from self._line(line)
                else:
                    # Strict JSON in one line is decoded directly, many times faster than by the lenient parser.
                    try:
                        message = decode(line)
                    except NOT_STRICT:
                        yield from self._line(line)
                    else:
                        yield message
            if len(lines) == LINES_PER_STEP:
                yield None
        if len(self._tail) + len(self._block) > MAX_BLOCK and not self._ended:
            yield self._end(Reason.TOO_LARGE, f"a line or block has more than {MAX_BLOCK} bytes")

    @property
    def pending(self) -> int:
        """Bytes held of an incomplete line or block, and of a block that is being decoded."""
        return len(self._tail) + len(self._block) + self._decoding

    def _line(self, line: bytes) -> Iterator[Message | Malformed | None]:
        """Append a line to the block, and end the block if all its objects are complete."""
        if len(self._block) + len(line) > MAX_BLOCK:
            yield self._end(Reason.TOO_LARGE, f"a line or block has more than {MAX_BLOCK} bytes")
            return
        try:
            text = _text(line)
        except UnicodeDecodeError as error:
            yield self._end(Reason.ENCODING, f"byte {error.start} of the line is not UTF-8")
            return
        if self._balance is None:
            if not text.strip(_BLANK):
                return
            self._balance = lenient.BracketBalance()
        self._block += line
        self._block += b" "
        self._decoding = DECODING * len(line)
        yield from self._balance.scan(text)
        self._decoding = 0
        del text
        if self._balance.complete:
            yield from self._end_of_block()

    def _end_of_block(self) -> Iterator[Message | Malformed | None]:
        # Without the joining space at its end, which would complete a word that the end of the block cuts off.
        text = _text(bytes(self._block))[:-1]
        self._decoding = DECODING * len(self._block)
        self._block = bytearray()
        self._balance = None
        try:
            for members in lenient.objects_in_steps(text):
                if members is None:
                    yield None
                    continue
                try:
                    yield self._vocabulary.message(members)
                except Malformed as malformed:
                    yield malformed
        except Malformed as malformed:
            yield malformed
        self._decoding = 0

    def _end(self, reason: Reason, text: str) -> Malformed:
        # Input after a fatal error is ignored: the framing is lost, and the session closes the connection.
        self._ended = True
        self._tail = bytearray()
        self._block = bytearray()
        return Malformed(reason, text)


_encode = msgspec.json.Encoder().encode

_ASTRAL = re.compile("[\U00010000-\U0010ffff]")


def encode(message: msgspec.Struct) -> bytes:
    """Encode one message as it is sent: one line of JSON and an empty line.

    Characters beyond the Basic Multilingual Plane are escaped: the original's peers reset the connection on UTF-8 of
    four bytes.
    """
    return encode_part(message) + END


def encode_part(part: object) -> bytes:
    """Encode a part of a message."""
    data = _encode(part)
    return data if data.isascii() else _ASTRAL.sub(_escaped, data.decode()).encode()


def _escaped(match: re.Match[str]) -> str:
    pair = match[0].encode("utf-16-be")
    return f"\\u{pair[:2].hex()}\\u{pair[2:].hex()}"


_SURROGATE = re.compile("[\ud800-\udfff]")

_BLANK = " \t\v\f\x1c\x1d\x1e\x1f"
"""ASCII white space: a line of it does not begin a block."""


def _is_utf8(line: bytes) -> bool:
    """Return True if the whole line is UTF-8: the decoder checks only the members that it converts."""
    try:
        line.decode()
    except UnicodeDecodeError:
        return False
    return True


_OVERLONG = re.compile(rb"[\xc0\xc1][\x80-\xbf]")


def _text(line: bytes) -> str:
    """Decode UTF-8, CESU-8 surrogate pairs and overlong two-byte forms, as the original does.

    An unpaired surrogate becomes ``?``, as in the original's output.
    """
    try:
        return line.decode()
    except UnicodeDecodeError:
        line = _OVERLONG.sub(lambda m: bytes([(m[0][0] & 1) << 6 | m[0][1] & 0x3F]), line)
        text = line.decode("utf-8", "surrogatepass").encode("utf-16-be", "surrogatepass")
        return _SURROGATE.sub("?", text.decode("utf-16-be", "surrogatepass"))
