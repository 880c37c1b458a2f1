"""Server-sent events (the HTML standard, section 9.2): bytes to events, with bounds."""

from __future__ import annotations

import codecs
import re
from collections.abc import Iterator

import attrs

from broker.brokerctl.failures import Exit, Failure

MAX_EVENT = 4 * 1024 * 1024
"""Characters of one event: a flush of the broker has some hundred changes, of 200 bytes each."""

_LINE_END = re.compile("\r\n|\n|\r")


@attrs.frozen
class Event:
    """One event: its type, and its data."""

    kind: str
    data: str


class Parser:
    """The parser of one stream. ``id`` is that of the last complete event, those without data included."""

    def __init__(self) -> None:
        self.id = ""
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        # The unfinished line: in pieces, so that a long one is not joined for each of them.
        self._pending: list[str] = []
        self._length = 0
        self._after_return = False
        self._data: list[str] = []
        self._size = 0
        self._kind = ""
        self._next_id = ""

    def feed(self, data: bytes) -> Iterator[Event]:
        """Yield the events that are complete with this piece. Raises `Failure` beyond the bound of an event."""
        text = self._decoder.decode(data)
        if self._after_return and text:
            text = text.removeprefix("\n")
            self._after_return = False
        self._after_return = self._after_return or text.endswith("\r")
        first, *others = _LINE_END.split(text)
        self._pending.append(first)
        self._length += len(first)
        if others:
            lines = ["".join(self._pending), *others]
            self._pending, self._length = [lines[-1]], len(lines[-1])
            for line in lines[:-1]:
                event = self._line(line)
                if event is not None:
                    yield event
        if self._length + self._size > MAX_EVENT:
            raise Failure(f"the server sends an event of more than {MAX_EVENT} characters", Exit.UNINTELLIGIBLE)

    def _line(self, line: str) -> Event | None:
        if not line:
            return self._dispatch()
        name, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if name == "data":
            self._data.append(value)
            self._size += len(value) + 1
        elif name == "event":
            self._kind = value
        elif name == "id" and "\0" not in value:
            self._next_id = value
        return None

    def _dispatch(self) -> Event | None:
        data, kind = "\n".join(self._data), self._kind
        self.id, found = self._next_id, bool(self._data)
        self._data, self._size, self._kind = [], 0, ""
        return Event(kind or "message", data) if found else None
