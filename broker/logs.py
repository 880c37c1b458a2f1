"""Log observers: events as text or as JSON, one a line, from a level on that can change at any time.

Rules:
- A message may contain input of peers. Unprintable characters are escaped, so that no input begins a line or controls
  a terminal. A traceback follows its line of text, each of its lines after a tab.
- Times are UTC with milliseconds, so that logs of several machines can be compared.
- twistd chooses the destination: ``--logfile``, ``--syslog`` and ``--logger`` work as usual.
"""

from __future__ import annotations

import io
import json
import math
import signal
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import IO, Any, Literal

from twisted.application.service import IService, IServiceCollection, MultiService
from twisted.logger import (
    FileLogObserver,
    FilteringLogObserver,
    ILogFilterPredicate,
    ILogObserver,
    LogEvent,
    LogLevel,
    PredicateResult,
    formatEvent,
)
from twisted.python.components import Componentized
from twisted.python.logfile import LogFile
from zope.interface import implementer

Format = Literal["text", "json"]
LevelName = Literal["debug", "info", "warn", "error"]

MAX_MESSAGE = 8_000
"""Characters of a message, and of a field, that are written: a long line of a launched program fits, twice, and with
the longest traceback it is still less than the 48 KiB at which journald breaks a line."""

MAX_TRACEBACK = 16_000
"""Characters of a traceback that are written, those of its end: some hundred frames."""

_NOT_FIELDS = {"time", "level", "namespace", "message", "traceback"}
_LEGACY = "log_legacy"


@implementer(ILogFilterPredicate)
class Level:
    """The lowest level that is written."""

    def __init__(self, level: LevelName) -> None:
        self.set(level)

    def set(self, level: LevelName) -> None:
        """Write events of this level and above from now on."""
        self._level = LogLevel.levelWithName(level)

    def __call__(self, event: LogEvent) -> Any:
        """See `ILogFilterPredicate`."""
        level = event.get("log_level")
        return PredicateResult.no if level is not None and level < self._level else PredicateResult.yes


def observer(format: Format, level: Level, out: IO[str]) -> ILogObserver:
    """Return an observer that writes events of ``level`` and above to ``out``."""
    if isinstance(out, io.TextIOWrapper):
        # A character that the terminal's encoding lacks would cost the event.
        out.reconfigure(errors="backslashreplace")
    return FilteringLogObserver(FileLogObserver(out, json_line if format == "json" else text_lines), [level])


def text_lines(event: LogEvent) -> str:
    """Return the event as ``TIME LEVEL NAMESPACE MESSAGE``, and its traceback in lines that begin with a tab."""
    head = f"{_time(event) or '-'} {_level(event)} {visible(_namespace(event))} {visible(_message(event))}\n"
    return head + "".join(f"\t{visible(line)}\n" for line in _traceback(event).splitlines())


def json_line(event: LogEvent) -> str:
    """Return the event as one JSON object.

    It has ``time`` (ISO 8601, or null), ``level``, ``namespace`` and ``message``; then the event's own fields, those
    that are strings, numbers, booleans or null; then ``traceback``, if there is one. All of it is ASCII.
    """
    record: dict[str, object] = {
        "time": _time(event),
        "level": _level(event),
        "namespace": _namespace(event),
        "message": _cut(_message(event)),
    }
    record.update(_fields(event))
    traceback = _traceback(event)
    if traceback:
        record["traceback"] = traceback
    # Not msgspec: ASCII passes any terminal, and a lone surrogate must not cost the event.
    return json.dumps(record, separators=(",", ":")).replace("\x7f", "\\u007f") + "\n"


def visible(text: str) -> str:
    """Return the text truncated, with each unprintable character and line end escaped as in Python."""
    text = _cut(text)
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text)


def _cut(text: str) -> str:
    more = len(text) - MAX_MESSAGE
    return text if more <= 0 else f"{text[:MAX_MESSAGE]}... ({more} more)"


def _time(event: LogEvent) -> str | None:
    seconds = event.get("log_time")
    if seconds is None:
        return None
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%S.%f")[:-3] + "Z"


def _level(event: LogEvent) -> str:
    level = event.get("log_level")
    return "info" if level is None else str(level.name)


def _namespace(event: LogEvent) -> str:
    return str(event.get("log_namespace") or "-")


def _message(event: LogEvent) -> str:
    if _namespace(event) == _LEGACY and "failure" in event:
        # The text that Twisted makes of an old-style failure repeats the traceback.
        return str(event.get("why") or "Unhandled Error")
    return formatEvent(event)


def _traceback(event: LogEvent) -> str:
    failure = event.get("log_failure", event.get("failure") if _namespace(event) == _LEGACY else None)
    if failure is None:
        return ""
    try:
        text = str(failure.getTraceback())
    except Exception:
        # The repr of an object may raise; the event matters more than its traceback.
        return "(its traceback could not be made)"
    return text[-MAX_TRACEBACK:]


def _fields(event: LogEvent) -> dict[str, object]:
    if _namespace(event) == _LEGACY:
        return {}
    return {
        key: _cut(value) if isinstance(value, str) else value
        for key, value in event.items()
        if key not in _NOT_FIELDS and not key.startswith("log_") and _is_plain(value)
    }


def _is_plain(value: object) -> bool:
    if isinstance(value, float):
        return math.isfinite(value)  # JSON has no other types.
    if isinstance(value, int):
        return value.bit_length() <= 64  # Readers of the log have no longer integers.
    return value is None or isinstance(value, str)


# twistd starts logging after `makeService`, with the observer that is a component of the application; without one, it
# makes its own from its options.


class LoggedService(MultiService):
    """The root of a twistd application: it holds ``service``, and has the application log in our format.

    ``twistd`` is twistd's own options (``Options.parent`` of a plugin's options; None if there are none).
    """

    def __init__(self, service: IService, twistd: Mapping[str, Any] | None, format: Format, level: Level) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._logging = ({} if twistd is None else twistd, format, level)
        service.setServiceParent(self)

    def setServiceParent(self, parent: IServiceCollection) -> None:
        """Join an application; raises SystemExit, with a text, if its log file cannot be opened."""
        if isinstance(parent, Componentized):
            install(parent, *self._logging)
        super().setServiceParent(parent)  # type: ignore[no-untyped-call]


def install(application: Componentized, twistd: Mapping[str, Any], format: Format, level: Level) -> None:
    """Make twistd log in our format, to the destination of its options.

    With ``--logger`` or ``--syslog`` nothing is installed, and twistd logs as it would. Call it before twistd starts
    logging, that is from `IService.setServiceParent`. Raises SystemExit, with a text, if the log file cannot be opened.
    """
    if twistd.get("logger") or twistd.get("syslog"):
        return
    path, foreground = twistd.get("logfile"), twistd.get("nodaemon", True)
    if path == "-" and not foreground:
        return  # twistd refuses it.
    out: IO[str] = sys.stdout if path == "-" or (foreground and not path) else _log_file(path or "twistd.log")
    application.setComponent(ILogObserver, observer(format, level, out))


def _log_file(path: str) -> Any:
    try:
        file = LogFile.fromFullPath(path)
    except OSError as error:
        raise SystemExit(f"elkobroker: cannot write the log file {path}: {error.strerror}") from None

    def rotate(signal: int, frame: object) -> None:
        from twisted.internet import reactor

        reactor.callFromThread(file.rotate)  # type: ignore[attr-defined]

    # As twistd does for a log file of its own.
    if not signal.getsignal(signal.SIGUSR1):
        signal.signal(signal.SIGUSR1, rotate)
    return file
