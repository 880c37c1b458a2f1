"""Log events as lines of text or JSON, and the levels of the log.

Log events as lines: as text, or as JSON objects.

Rules:
- A message may contain input of peers. Unprintable characters are escaped, so that no input begins a line or controls
  a terminal. A traceback follows its line of text, each of its lines after a tab.
- Times are UTC with milliseconds, so that logs of several machines can be compared.
- ``conversation`` is the id of the connection that an event is about, ``request_id`` that of the request: all its lines
  have the same one.

The format and the levels of the log, which can change at any time.

Rules:
- An event is written if its level is at least the one that applies: that of its wire, else that of the longest module
  that its namespace begins with, else the general one.
- The wire of an event is its field ``wire``, else the wire of its conversation, else that of its module.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from threading import get_ident
from typing import Any, Literal

from twisted.logger import ILogFilterPredicate, LogEvent, LogLevel, PredicateResult, formatEvent
from zope.interface import implementer

from broker.core.errors import Reason, Refusal
from broker.core.operator_interfaces import LevelName, LogLevels
from broker.logs.log_writer import LogWriter, RotatingFile

MAX_MESSAGE = 8_000
"""Characters of a message, and of a field, that are written: a long line of a launched program fits, twice, and with
the longest traceback it is still less than the 48 KiB at which journald breaks a line."""

MAX_TRACEBACK = 16_000
"""Characters of a traceback that are written, those of its end: some hundred frames."""

_NOT_FIELDS = {"time", "level", "namespace", "message", "traceback"}
_LEGACY = "log_legacy"


def text_lines(event: LogEvent) -> str:
    """Return the event as ``TIME LEVEL NAMESPACE MESSAGE``, and its traceback in lines that begin with a tab.

    The namespace of an event about a conversation or a request is followed by its ids in brackets.
    """
    ids = [visible(str(event[field])) for field in ("conversation", "request_id") if event.get(field)]
    about = f" [{' '.join(ids)}]" if ids else ""
    source = f"{level_of(event)} {visible(namespace_of(event))}{about}"
    head = f"{time_of(event) or '-'} {source} {visible(message_of(event))}\n"
    return head + "".join(f"\t{visible(line)}\n" for line in traceback_of(event).splitlines())


def json_line(event: LogEvent) -> str:
    """Return the event as one JSON object.

    It has ``time`` (ISO 8601, or null), ``level``, ``namespace`` and ``message``; then the event's own fields, those
    that are strings, numbers, booleans or null; then ``traceback``, if there is one. All of it is ASCII.
    """
    record: dict[str, object] = {
        "time": time_of(event),
        "level": level_of(event),
        "namespace": namespace_of(event),
        "message": cut(message_of(event)),
    }
    record.update(fields_of(event))
    traceback = traceback_of(event)
    if traceback:
        record["traceback"] = traceback
    # Not msgspec: ASCII passes any terminal, and a lone surrogate must not cost the event.
    return json.dumps(record, separators=(",", ":")).replace("\x7f", "\\u007f") + "\n"


def visible(text: str) -> str:
    """Return the text truncated, with each unprintable character and line end escaped as in Python."""
    text = cut(text)
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text)


def cut(text: str) -> str:
    """Return a text truncated to `MAX_MESSAGE` characters."""
    more = len(text) - MAX_MESSAGE
    return text if more <= 0 else f"{text[:MAX_MESSAGE]}... ({more} more)"


def time_of(event: LogEvent) -> str | None:
    """Return the time of an event in UTC, ISO 8601 with milliseconds; None without one."""
    seconds = event.get("log_time")
    if seconds is None:
        return None
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%S.%f")[:-3] + "Z"


def level_of(event: LogEvent) -> str:
    """Return the name of the level of an event."""
    level = event.get("log_level")
    return "info" if level is None else str(level.name)


def namespace_of(event: LogEvent) -> str:
    """Return the namespace of an event, "-" without one."""
    return str(event.get("log_namespace") or "-")


def message_of(event: LogEvent) -> str:
    """Return the message of an event, in full."""
    if namespace_of(event) == _LEGACY and "failure" in event:
        # The text that Twisted makes of an old-style failure repeats the traceback.
        return str(event.get("why") or "Unhandled Error")
    return formatEvent(event)


def traceback_of(event: LogEvent) -> str:
    """Return the end of the traceback of an event, empty without one."""
    failure = event.get("log_failure", event.get("failure") if namespace_of(event) == _LEGACY else None)
    if failure is None:
        return ""
    try:
        text = str(failure.getTraceback())
    except Exception:
        # The repr of an object may raise; the event matters more than its traceback.
        return "(its traceback could not be made)"
    return text[-MAX_TRACEBACK:]


def fields_of(event: LogEvent) -> dict[str, object]:
    """Return the event's own fields that are strings, numbers, booleans or null."""
    if namespace_of(event) == _LEGACY:
        return {}
    return {
        key: cut(value) if isinstance(value, str) else value
        for key, value in event.items()
        if key not in _NOT_FIELDS and not key.startswith("log_") and _is_plain(value)
    }


def _is_plain(value: object) -> bool:
    if isinstance(value, float):
        return math.isfinite(value)  # JSON has no other types.
    if isinstance(value, int):
        return value.bit_length() <= 64  # Readers of the log have no longer integers.
    return value is None or isinstance(value, str)


Format = Literal["text", "json"]

MAX_EXCEPTIONS = 100
"""Exceptions to the general level: more than there are folders of modules."""

_MODULE = re.compile(r"(?:broker|twisted|program)(?:\.[A-Za-z0-9_-]+)*")
"""A module, as namespaces of events begin with. ``program.NAME`` has the output of launched programs."""

_WIRE = re.compile(r"broker\.wires\.([a-z0-9]+)(?:\.|\Z)")


@implementer(ILogFilterPredicate)
class LogControl:
    """The present format and levels: a predicate of events.

    ``wires`` are the names that may stand for a wire in `change`.
    """

    def __init__(
        self,
        format: Format = "text",
        level: LevelName = "info",
        modules: Mapping[str, LevelName] | None = None,
        wires: Iterable[str] = (),
    ) -> None:
        self.format: Format = format
        self.file_bytes, self.files = 0, 0
        """See `limit`. Until then the log file is not rotated."""
        self.writer: LogWriter | None = None
        """The writer, once twistd logs in the format of the broker."""
        self._ids: Mapping[str, Callable[[], str]] = {}
        self._thread = 0
        self._wires = frozenset(wires)
        self.use(format, level, modules or {})

    def follow(self, conversation: Callable[[], str], request_id: Callable[[], str] = lambda: "") -> None:
        """Add the ids that these return to the events of this thread: those of the conversation and of the request
        whose input is being handled, "" without one."""
        self._ids = {"conversation": conversation, "request_id": request_id}
        self._thread = get_ident()

    @property
    def levels(self) -> LogLevels:
        """The levels in use."""
        return self._levels

    def use(self, format: Format, level: LevelName, modules: Mapping[str, LevelName]) -> None:
        """Use this format and these levels from now on, whatever `change` did before."""
        self.format = format
        self._set(level, dict(modules))

    def limit(self, file_bytes: int, files: int) -> None:
        """Rotate the log file at this size from now on, and keep this number of former ones."""
        self.file_bytes, self.files = file_bytes, files
        destination = None if self.writer is None else self.writer.destination
        if isinstance(destination, RotatingFile):
            destination.limit, destination.kept = file_bytes, files

    def reopen(self) -> None:
        """Reopen the log file, which another program has renamed. No-op for any other destination."""
        if self.writer is not None:
            self.writer.reopen()

    def finish(self) -> None:
        """Write the lines that wait, before the process ends. Blocks for a bounded time."""
        if self.writer is not None:
            self.writer.finish()

    def counts(self) -> Mapping[str, int]:
        """Return the counters of the log."""
        return {"log_dropped": 0 if self.writer is None else self.writer.dropped}

    def change(self, level: LevelName | None, modules: Mapping[str, LevelName | None]) -> LogLevels:
        """Change levels; see `broker.app.operations.Operations.log`. Raises `Refusal`."""
        changed = dict(self._levels.modules)
        for name, each in modules.items():
            if name not in self._wires and not is_module(name):
                raise Refusal(Reason.PARAMETER, f"{name[:80]!r} is neither a wire nor a module")
            if each is None:
                changed.pop(name, None)
            else:
                changed[name] = each
        if len(changed) > MAX_EXCEPTIONS:
            raise Refusal(Reason.LIMIT, f"there may be {MAX_EXCEPTIONS} exceptions to the log level")
        self._set(self._levels.level if level is None else level, changed)
        return self._levels

    def __call__(self, event: LogEvent) -> Any:
        """See `ILogFilterPredicate`. Adds the field ``conversation`` to an event in a conversation, and ``request_id``
        to one in a request."""
        if self._thread == get_ident():
            for field, present in self._ids.items():
                found = "" if field in event else present()
                if found:
                    event[field] = found
        level = event.get("log_level")
        least = self._least if not self._exceptions else self._least_of(event)
        return PredicateResult.no if level is not None and level < least else PredicateResult.yes

    def _set(self, level: LevelName, modules: Mapping[str, LevelName]) -> None:
        self._levels = LogLevels(level, modules)
        self._least = LogLevel.levelWithName(level)
        # The longest module first: it applies.
        longest = sorted(modules, key=len, reverse=True)
        self._exceptions = {name: LogLevel.levelWithName(modules[name]) for name in longest}

    def _least_of(self, event: LogEvent) -> Any:
        namespace = str(event.get("log_namespace") or "")
        module = _WIRE.match(namespace)
        conversation = str(event.get("conversation") or "")
        for wire in (event.get("wire"), conversation.rpartition("-")[0], module and module[1]):
            if wire in self._wires and wire in self._exceptions:
                return self._exceptions[wire]
        for name, least in self._exceptions.items():
            if namespace == name or namespace.startswith(f"{name}."):
                return least
        return self._least


def is_module(name: str) -> bool:
    """Return True if events may have namespaces that begin with this name."""
    return _MODULE.fullmatch(name) is not None
