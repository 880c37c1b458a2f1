"""The input of an operator's connection: lines of text, with telnet commands (RFC 854) among them."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import attrs

from broker.core.errors import Malformed, Reason
from broker.net.http_guard import Opening, is_text, opening

MAX_LINE = 65_536
"""Bytes of one line: more than a person types."""

_IAC, _SB, _SE, _WILL, _WONT, _DO, _DONT = 255, 250, 240, 251, 252, 253, 254


@attrs.frozen(repr=False)
class Line:
    """A line of input. ``secret``: it may be a password or a token, which a trace must not show."""

    text: str
    secret: bool = attrs.field(default=False, eq=False)

    def __repr__(self) -> str:
        """Return the line as a trace shows it."""
        if self.secret:
            return "Line (hidden)"
        return "Line " + "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in self.text)


@attrs.frozen
class Negotiation:
    """An option that a telnet client requested; ``answer`` refuses it."""

    answer: bytes


class ConsoleReader:
    """A decoder from bytes to lines, which removes telnet commands.

    Every option is refused (RFC 854), so that a telnet client stays in line mode. After an interrupt, a telnet client
    waits for that refusal and displays nothing before it.

    A connection that begins with an HTTP request, or contains control characters, ends with a `Malformed`: a web page
    can make a browser on the operator's machine send such bytes, with commands among them. Nothing is yielded before
    the first line is complete and no HTTP request, and nothing of a read that contains control characters.

    ``secret`` returns True while lines may be credentials.
    """

    def __init__(self, secret: Callable[[], bool] = lambda: False) -> None:
        self._secret = secret
        self._line = bytearray()
        self._telnet = bytearray()
        self._in_option = False
        self._returned = False
        """The last byte was a CR: a NUL after it is part of the line's end (RFC 854)."""
        self._opened = False
        """The first line was text, and no HTTP request."""
        self._ended = False

    def feed(self, data: bytes) -> Iterator[Line | Negotiation | Malformed]:
        """Yield the lines that ``data`` completes, and requested options; nothing more after a `Malformed`."""
        if self._ended:
            return
        plain, answer = self._without_telnet(data)
        plain = self._without_padding(plain)
        if not is_text(plain):
            yield self._end(Reason.UNEXPECTED, "control characters, as arrow keys send them: closing")
            return
        if not self._opened:
            plain = bytes(self._line) + plain
            self._line.clear()
            verdict = opening(plain)
            if verdict in (Opening.HTTP, Opening.PROXY, Opening.BINARY):
                yield self._end(Reason.UNEXPECTED, f"{verdict.value}: closing")
                return
            self._opened = verdict is Opening.TEXT
        if answer:
            yield Negotiation(answer)
        if not self._opened:
            plain = plain.lstrip()
        for line in plain.splitlines(keepends=True):
            self._line += line
            if len(self._line) > MAX_LINE:
                yield self._end(Reason.TOO_LARGE, f"a line has more than {MAX_LINE} bytes")
                return
            if line.endswith((b"\n", b"\r")):
                text = self._line.decode("utf-8", "replace").strip("\r\n \t")
                self._line.clear()
                if text:
                    yield Line(text, self._secret())

    @property
    def pending(self) -> int:
        """Buffered bytes of an incomplete line."""
        return len(self._line)

    def _end(self, reason: Reason, text: str) -> Malformed:
        self._ended = True
        self._line.clear()
        return Malformed(reason, text)

    def _without_padding(self, plain: bytes) -> bytes:
        """Remove the NUL by which a telnet client ends a line after CR."""
        if self._returned and plain.startswith(b"\0"):
            plain = plain[1:]
            self._returned = False
        if plain:
            self._returned = plain.endswith(b"\r")
        return plain.replace(b"\r\0", b"\r")

    def _without_telnet(self, data: bytes) -> tuple[bytes, bytes]:
        """Return ``data`` without telnet commands, and the answers to them. A command may span several reads."""
        if _IAC not in data and not self._telnet and not self._in_option:
            return data, b""
        plain, answer = bytearray(), bytearray()
        for byte in data:
            if self._telnet:
                command = self._telnet
                command.append(byte)
                if len(command) == 2 and _WILL <= byte <= _DONT:
                    continue
                if len(command) == 2 and byte == _IAC and not self._in_option:
                    plain.append(_IAC)
                if len(command) == 3 and command[1] in (_WILL, _DO):
                    answer += bytes((_IAC, _DONT if command[1] == _WILL else _WONT, byte))
                self._in_option = byte == _SB if len(command) == 2 and byte in (_SB, _SE) else self._in_option
                self._telnet.clear()
            elif byte == _IAC:
                self._telnet.append(byte)
            elif not self._in_option:
                plain.append(byte)
        return bytes(plain), bytes(answer)
