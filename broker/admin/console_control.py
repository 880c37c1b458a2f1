"""Control words of the console: reload, drain, disconnect, log levels, and traces of peers.

Each word that changes something needs its right, and is an act in the audit log.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, cast

import attrs
from twisted.internet.defer import Deferred

from broker.access.acts import Act, Audit, NoAudit, Rejected, audited
from broker.access.principal import Principal
from broker.core.control import Drain, IOperations, LevelName, LogLevels, ReloadResult, Trace
from broker.core.errors import Malformed, Reason

DRAIN_SECONDS = 30.0
TRACE_SECONDS = 60.0
"""Seconds of a drain and of a trace without a time."""

LEVELS = ("debug", "info", "warn", "error")
RESET = "default"
"""Typed in the place of a level: it removes an exception."""


@attrs.frozen
class Word:
    """A word: its parameters and its effect for the help, the right that it needs, and the right to only look."""

    usage: str
    help: str
    operation: str


WORDS = {
    "config": Word("config", "Shows the running configuration, and which keys need a restart.", "view"),
    "disconnect": Word(
        "disconnect WIRE KEY", "Closes a session, by its key in the view of sessions.", "admin.disconnect"
    ),
    "drain": Word(
        "drain [SECONDS | undo | state]",
        "Refuses new peers and sends the present ones away, for at most so many seconds (30); undo serves them again.",
        "admin.drain",
    ),
    "log": Word(
        "log [LEVEL] [NAME=LEVEL ...]",
        "Shows or changes the log level, and those of wires and modules; NAME=default removes one.",
        "admin.log",
    ),
    "reload": Word(
        "reload", "Reads the configuration again: shows what changed, and what needs a restart.", "admin.reload"
    ),
    "trace": Word(
        "trace [peer ADDRESS [SECONDS | off]]",
        "Shows the traces, or logs all messages of a peer, HOST or HOST:PORT, for so many seconds (60).",
        "admin.log",
    ),
}
"""The words, with their help."""


@attrs.frozen(eq=False)
class ControlWords:
    """The words over the operations of the daemon."""

    operations: IOperations
    audit: Audit

    def run(
        self, word: str, arguments: Sequence[str], principal: Principal, permit: Callable[[str], object]
    ) -> str | Deferred[str]:
        """Carry out a word. Returns the text to print. Raises `Refusal`; ``permit`` raises it without the right."""
        looks = word == "config" or (word in ("log", "trace") and not arguments) or list(arguments) == ["state"]
        operation = "view" if looks else WORDS[word].operation
        methods: dict[str, Callable[[Sequence[str]], str | Deferred[Any]]] = {
            "config": self._config,
            "disconnect": self._disconnect,
            "drain": self._drain,
            "log": self._log,
            "reload": self._reload,
            "trace": self._trace,
        }

        def carry_out() -> str | Deferred[Any]:
            permit(operation)
            return methods[word](arguments)

        audit = NoAudit() if operation == "view" else self.audit
        act = Act(principal, "console", operation, " ".join((word, *arguments)))
        text: str | Deferred[str] = audited(audit, act, carry_out)
        return text

    def _config(self, arguments: Sequence[str]) -> str:
        _none("config", arguments)
        lines = [
            f"{each.key} = {each.value}{'' if each.reloadable else '  (restart)'}"
            for each in self.operations.settings()
        ]
        lines += [f"not ready: {each.what}: {each.reason}" for each in self.operations.not_ready()]
        lines += [f"degraded: {each.what}: {each.reason}" for each in self.operations.degraded()]
        return "\n".join(lines)

    def _reload(self, arguments: Sequence[str]) -> Deferred[Any]:
        _none("reload", arguments)

        def shown(result: ReloadResult) -> str | Rejected[str]:
            return Rejected(result.text, Reason.PARAMETER) if result.problems else result.text

        return self.operations.reload().addCallback(shown)

    def _drain(self, arguments: Sequence[str]) -> str:
        if len(arguments) > 1:
            raise _wrong("drain")
        order = arguments[0] if arguments else str(DRAIN_SECONDS)
        if order == "state":
            return _drain_text(self.operations.drained())
        if order == "undo":
            return _drain_text(self.operations.undrain())
        return _drain_text(self.operations.drain(_seconds(order, "drain")))

    def _disconnect(self, arguments: Sequence[str]) -> str:
        if len(arguments) != 2:
            raise _wrong("disconnect")
        found = self.operations.disconnect(arguments[0], arguments[1])
        return "the session was closed" if found else "error: there is no such session"

    def _log(self, arguments: Sequence[str]) -> str:
        if not arguments:
            return _levels_text(self.operations.log_levels())
        level: LevelName | None = None
        modules: dict[str, LevelName | None] = {}
        for argument in arguments:
            name, equals, value = argument.rpartition("=")
            if value not in LEVELS and not (equals and value == RESET):
                raise Malformed(Reason.PARAMETER, f"{value[:40]!r} is no level: {', '.join(LEVELS)}")
            if equals:
                modules[name] = None if value == RESET else cast(LevelName, value)
            else:
                level = cast(LevelName, value)
        return _levels_text(self.operations.set_log_levels(level, modules))

    def _trace(self, arguments: Sequence[str]) -> str:
        if not arguments:
            return "\n".join(map(_trace_text, self.operations.traces())) or "no peer is traced"
        if arguments[0] != "peer" or not 2 <= len(arguments) <= 3:
            raise _wrong("trace")
        address = arguments[1]
        if arguments[2:] == ["off"]:
            return "the trace has ended" if self.operations.untrace(address) else "error: no such peer is traced"
        seconds = _seconds(arguments[2], "trace") if arguments[2:] else TRACE_SECONDS
        return _trace_text(self.operations.trace(address, seconds))


def _drain_text(drain: Drain) -> str:
    left = ", ".join(f"{wire} {count}" for wire, count in drain.remaining.items())
    time = f", {drain.seconds:.0f} s left" if drain.state == "draining" else ""
    return f"drain: {drain.state}{time}{f'; peers: {left}' if left else ''}"


def _levels_text(levels: LogLevels) -> str:
    return "\n".join([f"level {levels.level}", *(f"{name}={level}" for name, level in levels.modules.items())])


def _trace_text(trace: Trace) -> str:
    return f"trace of {trace.address}: {trace.seconds:.0f} s left, {trace.lines} lines, {trace.dropped} left out"


def _seconds(text: str, word: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise _wrong(word) from None


def _none(word: str, arguments: Sequence[str]) -> None:
    if arguments:
        raise Malformed(Reason.PARAMETER, f"{word} takes no parameters")


def _wrong(word: str) -> Malformed:
    return Malformed(Reason.PARAMETER, f"not so, but: {WORDS[word].usage}")
