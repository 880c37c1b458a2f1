"""The format and the levels of the log, which can change at any time.

Rules:
- An event is written if its level is at least the one that applies: that of its wire, else that of the longest module
  that its namespace begins with, else the general one.
- The wire of an event is its field ``wire``, else the wire of its conversation, else that of its module.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from threading import get_ident
from typing import Any, Literal

from twisted.logger import ILogFilterPredicate, LogEvent, LogLevel, PredicateResult
from zope.interface import implementer

from broker.core.control import LevelName, LogLevels
from broker.core.errors import Reason, Refusal
from broker.logs.log_writer import LogWriter, RotatingFile

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
        """The writer, once twistd logs in our format."""
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
        """Open the log file again: another program has renamed it. No-op for any other destination."""
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
        """Change levels; see `broker.core.control.IOperations.set_log_levels`. Raises `Refusal`."""
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
