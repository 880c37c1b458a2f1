"""Framing: the bytes of one connection to messages and back.

Rules (from the original's behaviour; see docs/protocols/elko-broker.md):
- Lines end with LF. CR and NUL bytes are dropped wherever they stand.
- A block is one or more lines, joined by a space, up to an empty line; it holds any number of messages.
- A line at whose end every object begun so far is complete ends the block too, so that a message typed in telnet, or
  sent by a client that ends each message with one LF, is taken at once.
- After a syntax error the rest of that block is lost; the messages before it count, and so does what follows the block.
- A block, or a line without its LF, over `MAX_BLOCK` ends the connection, and so do bytes that are no UTF-8.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import msgspec

from broker.core.errors import Malformed, Reason
from broker.wires.elko.codec import lenient
from broker.wires.elko.codec.vocabulary import NOT_STRICT, Message, Vocabulary

MAX_BLOCK = 1_048_576
"""Bytes of one line or block: the original's limit, which real peers' largest messages stay far below."""

LINES_PER_STEP = 256
"""Lines taken from what was read in one step: a read of tiny lines would else become tens of thousands of objects."""

MAX_FAST_LINE = 4_096
"""Bytes of a line that may be decoded before its turn to be handled: some 20 µs."""

_LF = 10

END = b"\n\n"
"""What ends every message that is sent."""


class BlockReader:
    """Turns the bytes of one connection into messages, as they come."""

    __slots__ = ("_balance", "_block", "_decode", "_ended", "_tail", "_vocabulary")

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary
        self._decode = vocabulary.decode
        self._tail = bytearray()
        self._block = bytearray()
        self._balance: lenient.BracketBalance | None = None
        self._ended = False

    def feed(self, data: bytes) -> Iterator[Message | Malformed]:
        """The messages that ``data`` completes, in order; a `Malformed` stands where a message could not be read.

        The iterator may be kept and read later, but must be used up before more is fed. After a `Malformed` whose
        reason is fatal there is nothing more.
        """
        # Most reads are one whole message.
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

    def _feed(self, data: bytes) -> Iterator[Message | Malformed]:
        if b"\r" in data or b"\0" in data:
            data = data.translate(None, b"\r\0")
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
                    yield from self._line(line)
                else:
                    try:
                        message = decode(line)
                    except NOT_STRICT:
                        yield from self._line(line)
                    else:
                        yield message
        if self.pending > MAX_BLOCK and not self._ended:
            yield self._end(Reason.TOO_LARGE, f"a line or block has more than {MAX_BLOCK} bytes")

    @property
    def pending(self) -> int:
        """Bytes held of a line or block that is not complete."""
        return len(self._tail) + len(self._block)

    def _line(self, line: bytes) -> Iterator[Message | Malformed]:
        """A line that is not one strict message: take it into the block, and end that if all in it is complete."""
        if len(self._block) + len(line) > MAX_BLOCK:
            yield self._end(Reason.TOO_LARGE, f"a line or block has more than {MAX_BLOCK} bytes")
            return
        try:
            text = _text(line)
        except UnicodeDecodeError as error:
            yield self._end(Reason.ENCODING, f"byte {error.start} of the line is no UTF-8")
            return
        if self._balance is None:
            if not text.strip(_BLANK):
                return
            self._balance = lenient.BracketBalance()
        self._block += line
        self._block += b" "
        if self._balance.feed(text):
            yield from self._end_of_block()

    def _end_of_block(self) -> Iterator[Message | Malformed]:
        text = _text(bytes(self._block))[:-1]
        self._block = bytearray()
        self._balance = None
        try:
            for members in lenient.objects(text):
                try:
                    yield self._vocabulary.message(members)
                except Malformed as malformed:
                    yield malformed
        except Malformed as malformed:
            yield malformed

    def _end(self, reason: Reason, text: str) -> Malformed:
        self._ended = True
        self._tail = bytearray()
        self._block = bytearray()
        return Malformed(reason, text)


_encode = msgspec.json.Encoder().encode

_ASTRAL = re.compile("[\U00010000-\U0010ffff]")


def encode(message: msgspec.Struct) -> bytes:
    """One message as it is sent: one line of JSON and an empty line.

    Characters beyond the Basic Multilingual Plane go out as escapes: the original's peers reset the connection on
    UTF-8 of four bytes.
    """
    return encode_part(message) + END


def encode_part(part: object) -> bytes:
    """A part of a message, as it stands in one."""
    data = _encode(part)
    return data if data.isascii() else _ASTRAL.sub(_escaped, data.decode()).encode()


def _escaped(match: re.Match[str]) -> str:
    pair = match[0].encode("utf-16-be")
    return f"\\u{pair[:2].hex()}\\u{pair[2:].hex()}"


_SURROGATE = re.compile("[\ud800-\udfff]")

_BLANK = " \t\v\f\x1c\x1d\x1e\x1f"
"""White space of ASCII: a line of it is no part of a block yet."""


def _is_utf8(line: bytes) -> bool:
    """Whether all of it is UTF-8: the decoder looks only at what it takes."""
    try:
        line.decode()
    except UnicodeDecodeError:
        return False
    return True


_OVERLONG = re.compile(rb"[\xc0\xc1][\x80-\xbf]")


def _text(line: bytes) -> str:
    """UTF-8, and the two variants of it that the original accepts: CESU-8 surrogate pairs, and overlong two-byte forms.

    A surrogate that stands alone becomes ``?``, as the original writes it.
    """
    try:
        return line.decode()
    except UnicodeDecodeError:
        line = _OVERLONG.sub(lambda m: bytes([(m[0][0] & 1) << 6 | m[0][1] & 0x3F]), line)
        text = line.decode("utf-8", "surrogatepass").encode("utf-16-be", "surrogatepass")
        return _SURROGATE.sub("?", text.decode("utf-16-be", "surrogatepass"))
