"""One request of HTTP/1.1: its bounds, the parser of its head and body, and its answer.

Rules of the parser (RFC 9112), which works on complete heads:
- Anything that two readers could take for different requests is refused: a line end that is not CRLF, a space before a
  colon, a folded line, a control character, a Transfer-Encoding other than ``chunked``, one with HTTP/1.0 or with a
  Content-Length, a second Content-Length.
- A head has at most `MAX_HEAD` bytes and `MAX_FIELDS` fields. One empty line before it is ignored.
- Fields of one name are joined by a comma (RFC 9110, 5.3). Values are decoded as ISO 8859-1.
"""

from __future__ import annotations

import re
import secrets
import time
from collections.abc import Callable, Iterable
from email.utils import formatdate
from http import HTTPStatus
from operator import methodcaller
from typing import TYPE_CHECKING, Any

import attrs
from twisted.internet.interfaces import IReactorTime

from broker.core.errors import Reason, Refusal, at_limit
from broker.core.memory_budget import Share
from broker.net.connection_limits import ConnectionLimits
from broker.net.pieces import Pieces
from broker.net.refusal_log import Deadlines
from broker.net.web_origins import FROM_ELSEWHERE
from broker.rest.messages import REQUEST_ID_PATTERN

if TYPE_CHECKING:
    from broker.net.http.channel import HttpChannel

# Bounds, and the deadlines of the connections of one listener.


@attrs.frozen
class RequestBounds:
    """Bounds of requests. Sizes in bytes, times in seconds."""

    body: int = 1_048_576
    """Size of a request's body."""
    body_key: str = ""
    """Name of that limit in the configuration; empty if it is a constant."""
    within: float = 30.0
    """Time from the first byte of a request to its last: a slow sender holds its connection no longer."""
    kept_open: float = 75.0
    """Time for which a connection without a request stays open. Load balancers keep theirs for 60 s by default, and one
    that sends a request as the other side closes gets no answer."""
    stalled_after: float = 30.0
    """Time for which output may be pending while the peer reads none of it."""


@attrs.frozen
class HttpLimits:
    """Limits of an HTTP listener: of its connections, of requests, and of answers that wait.

    ``waiting`` is the number of answers that may wait at once, for an event or as a stream; ``waiting_per_address`` the
    same for one address, 0 for no limit.
    """

    connections: ConnectionLimits
    requests: RequestBounds = attrs.Factory(RequestBounds)
    waiting: int = 1_000
    waiting_per_address: int = 200


class HttpDeadlines:
    """The deadlines of a listener's connections. ``idle`` has all of them, and asks each for its last request."""

    def __init__(self, clock: IReactorTime, bounds: Callable[[], RequestBounds]) -> None:
        self._bounds = bounds
        self.idle: Deadlines[Any] = Deadlines(clock, methodcaller("idle_over"))
        self.arriving: Deadlines[Any] = Deadlines(clock, methodcaller("too_slow"))
        self.leaving: Deadlines[Any] = Deadlines(clock, methodcaller("abort"))
        self.stalls: Deadlines[Any] = Deadlines(clock, methodcaller("stalled"))

    @property
    def bounds(self) -> RequestBounds:
        """The present bounds."""
        return self._bounds()

    def forget(self, connection: object) -> None:
        """Cancel all deadlines of a connection."""
        for each in (self.idle, self.arriving, self.leaving, self.stalls):
            each.discard(connection)


# The ids of requests.

_GIVEN = re.compile(REQUEST_ID_PATTERN)

START_BYTES = 4
"""Random bytes of `RequestIds.fresh`: of a thousand starts, two are alike in one case of 8,600."""


class RequestIds:
    """Ids of one listener. ``start`` distinguishes them from those of other listeners, brokers and starts.

    They are that word and a number: a random id for each request would cost several times as much.
    """

    def __init__(self, start: str) -> None:
        self._start = start
        self._made = 0

    @classmethod
    def fresh(cls) -> RequestIds:
        """Return the ids of a listener that starts now, with a random word."""
        return cls(secrets.token_hex(START_BYTES))

    def choose(self, given: str | None) -> str:
        """Return the id of a request whose field ``X-Request-ID`` has that value.

        A malformed id, or several of them, are ignored: it is for diagnosis only, and no reason for a refusal.
        """
        if given is not None and _GIVEN.fullmatch(given):
            return given
        self._made += 1
        return f"{self._start}-{self._made}"


# The parser.

MAX_HEAD, MAX_FIELDS = 16_384, 500
"""Bytes of a head, and its fields: as the defaults of common servers."""

LENGTH_DIGITS = 15
"""Digits of a Content-Length: a petabyte. Longer numbers are refused unread."""

MAX_SIZE_LINE = 1_024
"""Bytes of the line with the size of a chunk, extensions included."""

_TOKEN = rb"[!#$%&'*+\-.^_`|~0-9A-Za-z]+"
_FIRST = rb"(%b) ([!-~\x80-\xff]+) HTTP/1\.([01])\r\n" % _TOKEN
_FIRST_LINE = re.compile(_FIRST)
_HEAD = re.compile(rb"%b((?:%b:[^\r\n\0]*\r\n)*)\r\n" % (_FIRST, _TOKEN))
_LONE_LF = re.compile(rb"(?<!\r)\n")
_SIZE_LINE = re.compile(rb"([0-9A-Fa-f]{1,16})[ \t]*(?:;[^\r\n\0]*)?\r\n")
_TRAILER_LINE = re.compile(rb"(?:%b:[^\r\n\0]*)?\r\n" % _TOKEN)


class NoRequest(ValueError):
    """Input that is not a valid HTTP/1.1 request."""


class HeadTooLong(ValueError):
    """A head beyond `MAX_HEAD` or `MAX_FIELDS`."""


def head_end(data: bytes, searched: int) -> int:
    """Return the end of the head at the start of ``data``, or 0 if it is not complete.

    No end is before ``searched``. Raises `NoRequest` for a start that no head has, and `HeadTooLong`.
    """
    end = data.find(b"\r\n\r\n", searched)
    if max(end, len(data) if end < 0 else 0) > MAX_HEAD:
        raise HeadTooLong
    if end >= 0:
        return end + 4
    if _LONE_LF.search(data, searched) or (b"\r\n" in data and not _FIRST_LINE.match(data)):
        raise NoRequest
    return 0


class Chunks:
    """The decoder of a body in chunks. ``done`` is True after the last one and its trailers."""

    def __init__(self) -> None:
        self.done = False
        self._left = 0
        """Bytes of the present chunk that are still to come."""
        self._ended = True
        """True between chunks, where the next size stands; False until the CRLF behind the data of one."""
        self._trailers = -1
        """Bytes of trailers so far; -1 before the last chunk."""

    def read(self, data: bytes, content: Pieces) -> int:
        """Append the part of the body in ``data`` to ``content``. Returns the number of bytes that were used."""
        at = 0
        while not self.done:
            if self._left:
                piece = data[at : at + self._left]
                if not piece:
                    break
                content.write(piece)
                at += len(piece)
                self._left -= len(piece)
            elif not self._ended:
                if data[at : at + 2] != b"\r\n":
                    if b"\r\n".startswith(data[at:]):
                        break
                    raise NoRequest
                at += 2
                self._ended = True
            else:
                end = data.find(b"\n", at) + 1
                if not end:
                    if len(data) - at > (MAX_SIZE_LINE if self._trailers < 0 else MAX_HEAD):
                        raise NoRequest
                    break
                self._line(data, at, end)
                at = end
        return at

    def _line(self, data: bytes, at: int, end: int) -> None:
        """Read the line with a size, or a trailer, which is ignored."""
        if self._trailers < 0:
            size = _SIZE_LINE.fullmatch(data, at, end)
            if size is None or end - at > MAX_SIZE_LINE:
                raise NoRequest
            self._left = int(size[1], 16)
            self._ended = not self._left
            self._trailers = -1 if self._left else 0
            return
        self._trailers += end - at
        if self._trailers > MAX_HEAD or _TRAILER_LINE.fullmatch(data, at, end) is None:
            raise NoRequest
        self.done = end - at == 2

    @property
    def announced(self) -> int:
        """Bytes of the present chunk that are still to come."""
        return self._left


BODILESS = (204, 304)
"""Statuses of responses without a body, and so without its length (RFC 9110, 8.6)."""

PHRASES = {status.value: status.phrase for status in HTTPStatus}

_LOCAL = frozenset(map(str.lower, FROM_ELSEWHERE))


class HttpRequest:
    """One request. The factory of its channel serves it when it is complete, and answers it by `reply`.

    ``target`` is what the first line has; ``fields`` the header fields by name in lower case, and ``repeated`` the
    names of those that were given more than once. ``length`` is that of the body, None if it is in chunks.
    ``persistent``: the connection stays open after the answer. ``fields_out`` are further fields of the answer.
    """

    __slots__ = (
        "__weakref__",
        "_body",
        "_chunked",
        "_ended",
        "_lost",
        "channel",
        "chunks",
        "content",
        "fields",
        "fields_out",
        "length",
        "method",
        "minor",
        "over",
        "persistent",
        "refused",
        "repeated",
        "target",
    )

    def __init__(self, channel: HttpChannel, head: bytes) -> None:
        """Parse a complete head. Raises `NoRequest` and `HeadTooLong`."""
        match = _HEAD.fullmatch(head)
        if match is None:
            raise NoRequest
        method, target, minor, lines = match.groups()
        self.channel = channel
        self.method = method.decode("ascii")
        self.target = target.decode("latin-1")
        self.minor = 1 if minor == b"1" else 0
        self.fields: dict[str, str] = {}
        self.repeated: set[str] | tuple[()] = ()
        fields = self.fields
        texts = lines.decode("latin-1").split("\r\n")
        if len(texts) > MAX_FIELDS + 1:
            raise HeadTooLong
        for text in texts[:-1]:
            name, _, value = text.partition(":")
            name, value = name.lower(), value.strip(" \t")
            if name in fields:
                self.repeated = {name, *self.repeated}
                value = f"{fields[name]}, {value}"
            fields[name] = value
        self.persistent = self.minor == 1
        connection = fields.get("connection")
        if connection is not None and "close" in map(str.strip, connection.lower().split(",")):
            self.persistent = False
        self.length: int | None = 0
        self.chunks: Chunks | None = None
        self.content: Pieces | None = None
        self._body = b""
        self.over = False
        """True if it is answered, or its connection is lost."""
        self.refused = False
        """True if it was refused before it was complete."""
        self._chunked = False  # the answer
        self._lost: Callable[[], object] | None = None
        self._ended: Callable[[], object] | None = None
        self.fields_out: list[tuple[str, str]] = []
        coding, length = fields.get("transfer-encoding"), fields.get("content-length")
        if coding is not None:
            if coding.lower() != "chunked" or length is not None or not self.minor:
                raise NoRequest
            self.length, self.chunks, self.content = None, Chunks(), Pieces()
        elif length is not None:
            if not length.isascii() or not length.isdigit() or len(length) > LENGTH_DIGITS:
                raise NoRequest
            self.length = int(length)

    def read(self, data: bytes) -> int:
        """Read the body from ``data``. Returns the number of bytes that were used. Raises `NoRequest`.

        A body that is complete at once is not copied piece by piece.
        """
        if self.chunks is not None:
            assert self.content is not None
            return self.chunks.read(data, self.content)
        assert self.length is not None
        if self.content is None:
            if len(data) >= self.length:
                self._body = data[: self.length]
                return self.length
            self.content = Pieces()
        piece = data[: self.length - self.content.tell()]
        self.content.write(piece)
        return len(piece)

    @property
    def complete(self) -> bool:
        """True if all of the body has arrived."""
        if self.content is None:
            return self.length == len(self._body)
        return self.chunks.done if self.chunks is not None else self.content.tell() == self.length

    def body(self) -> bytes:
        """Return the body, which is freed here."""
        return self._body if self.content is None else self.content.getvalue()

    @property
    def waits_for_permission(self) -> bool:
        """True if the peer sends the body after a 100 (Continue) only."""
        return bool(self.minor and self.length != 0 and self.fields.get("expect", "").lower() == "100-continue")

    @property
    def local(self) -> bool:
        """True if no header indicates a web page or a proxy."""
        return _LOCAL.isdisjoint(self.fields)

    # the answer

    def when_lost(self, call: Callable[[], object]) -> None:
        """Call ``call`` if the connection is lost before the answer is complete."""
        self._lost = call

    def when_over(self, call: Callable[[], object]) -> None:
        """Call ``call`` when the answer is complete, or the connection is lost."""
        self._lost = self._ended = call

    def lost(self) -> None:
        """The connection is lost."""
        self.over = True
        call, self._lost = self._lost, None
        if call is not None:
            call()

    def reply(
        self, status: int, body: bytes, content_type: str = "text/plain", headers: Iterable[tuple[str, str]] = ()
    ) -> None:
        """Answer, unless the connection is lost."""
        if self.over:
            return
        head = self._head(status, content_type, headers, len(body))
        self.channel.send(head if self.method == "HEAD" or status in BODILESS else head + body)
        self._done()

    def head(self, status: int, content_type: str, headers: Iterable[tuple[str, str]] = ()) -> None:
        """Send the head of an answer whose body follows by `write`, in chunks, or with HTTP/1.0 until the end of the
        connection."""
        self._chunked = bool(self.minor) and self.method != "HEAD"
        self.persistent &= bool(self.minor)
        self.channel.send(self._head(status, content_type, headers, None))

    def write(self, data: bytes) -> None:
        """Send a piece of the body."""
        if data and not self.over and self.method != "HEAD":
            self.channel.send(b"%x\r\n%b\r\n" % (len(data), data) if self._chunked else data)

    def end(self) -> None:
        """Complete the answer. The next request of the connection is handled in a later step."""
        if self._chunked:
            self.channel.send(b"0\r\n\r\n")
        self._done()

    def last(self) -> None:
        """Close the connection after the answer."""
        self.persistent = False

    def refuse_body(self, refusal: Refusal, status: int = 413, phrase: str = "Content Too Large") -> None:
        """Free the incomplete body, and close."""
        self.refused = True
        self.content, self.chunks, self._body = Pieces(), None, b""
        channel = self.channel
        channel.memory.drop(channel, Share.INPUT)
        channel.last_words(status, phrase, refusal)

    def too_large(self) -> None:
        """Refuse a body over the limit."""
        bounds = self.channel.bounds
        text = f"the body of a request has more than {bounds.body} bytes"
        self.refuse_body(at_limit(text, bounds.body_key, Reason.TOO_LARGE))

    def _done(self) -> None:
        self.over = True
        ended, self._lost, self._ended = self._ended, None, None
        if ended is not None:
            ended()
        self.channel.answered(self)

    def _head(self, status: int, content_type: str, headers: Iterable[tuple[str, str]], length: int | None) -> bytes:
        """Return the first line and the fields of the answer. ``length`` is that of the body, None if unknown.

        ``Connection: close`` among the headers closes the connection after the answer.
        """
        lines = [f"HTTP/1.{self.minor} {status} {PHRASES.get(status, 'Unknown')}"]
        for name, value in (*self.fields_out, *headers):
            if name.lower() == "connection" and value == "close":
                self.persistent = False
            else:
                lines.append(f"{name}: {value}")
        if status not in BODILESS:
            lines.append(f"Content-Type: {content_type}")
            if length is not None:
                lines.append(f"Content-Length: {length}")
            elif self._chunked:
                lines.append("Transfer-Encoding: chunked")
        if not self.persistent:
            lines.append("Connection: close")
        text = "\r\n".join(lines)
        if text.count("\n") != len(lines) - 1 or text.count("\r") != len(lines) - 1:
            # A line end in a value would begin another field.
            text = "\r\n".join(" ".join(line.split()) for line in lines)
        return f"{text}\r\n\r\n".encode("latin-1", "replace")


_date = (0, "")
"""The present second, and its text."""


def date() -> str:
    """Return the present time as the field ``Date`` has it."""
    global _date
    now = int(time.time())
    if _date[0] != now:
        _date = now, formatdate(now, usegmt=True)
    return _date[1]
