"""Log events as lines: as text, or as JSON objects.

Rules:
- A message may contain input of peers. Unprintable characters are escaped, so that no input begins a line or controls
  a terminal. A traceback follows its line of text, each of its lines after a tab.
- Times are UTC with milliseconds, so that logs of several machines can be compared.
- ``conversation`` is the id of the connection that an event is about, ``request_id`` that of the request: all its lines
  have the same one.
"""

from __future__ import annotations

import json
import math
from datetime import UTC, datetime

from twisted.logger import LogEvent, formatEvent

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
