"""The operators' console: telnet-style lines in, pretty-printed JSON out.

Rules:
- A line that begins with ``{`` is a message of the dialect without a prefix, the Elko Broker's; ``to`` may be left out.
- Any other line is a command: ``help``, ``status``, ``version``, ``counters``, ``quit``, a view such as
  ``elko sessions``, or an op with parameters: ``find service=bank wait=5``.
- A line that begins with the prefix of a dialect is for that one: a message, or an op with parameters:
  ``director find user=user-bob``.
- Each connection is an administrator's, after the login (`broker.operate.console_input`). With a users file, each
  command needs a right of the operator: "view" for views, and what the sessions of the dialects demand.
- An order that matches no server is an error here; on the wire it has no answer.
- Notices of a watch are printed when they happen, between the answers.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Any, cast, get_args

import attrs
import msgspec
from twisted.internet.defer import Deferred

from broker.access.login_gate import RequestLimits, unlimited
from broker.access.principal import Access, Act, Audit, NoAudit, Principal, Rejected, audited
from broker.access.rights import AnonymousAccess, RegistryReading
from broker.core.control import Drain, IOperations, LevelName, LogLevels, ReloadResult, Trace
from broker.core.errors import Malformed, Reason, Refusal
from broker.net.peer_interfaces import Peer
from broker.operate.action_endpoints import DRAIN_SECONDS, TRACE_SECONDS
from broker.operate.console_input import (
    LISTENER,
    ConsoleLogin,
    ConsoleReading,
    Later,
    Line,
    LoginState,
    Negotiation,
    at_once,
)
from broker.wires.dialect import Dialect, Dialogue
from broker.wires.tables import AnyView, Documentation

# Control words of the console: reload, drain, disconnect, log levels, and traces of peers.
#
# Each word that changes something needs its right, and is an act in the audit log.

LEVELS: tuple[LevelName, ...] = get_args(LevelName)
RESET = "default"
"""Typed in the place of a level: it removes an exception."""


@attrs.frozen
class Word:
    """A word: its parameters and its effect for the help, and the right that it needs."""

    usage: str
    help: str
    operation: str


CONTROL = {
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
        operation = "view" if looks else CONTROL[word].operation
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
    return Malformed(Reason.PARAMETER, f"not so, but: {CONTROL[word].usage}")


PRETTY = 1024 * 1024
"""Bytes of a message that is pretty-printed; a larger one is a dump for programs, and printed verbatim."""

_UNPRINTABLE = re.compile("[\x7f-\x9f]")
"""Control characters that JSON may contain unescaped: terminals interpret some as commands."""

WORDS = {
    "counters": "Shows what was counted, and how many connections and services there are now.",
    "help": "Shows all commands, or what a command does: help find, help director dump.",
    "quit": "Ends the session.",
    "status": "Shows how long the broker runs, its listeners, the size of its tables, and the health of its files.",
    "version": "Shows the version of the broker.",
}
"""The commands that are no ops, with their help. ``exit`` is the same as ``quit``."""


def _nothing() -> Mapping[str, int]:
    return {}


@attrs.frozen
class Shown:
    """The state that the console displays besides messages.

    ``control`` has the words that control the daemon. ``counts`` gives the broker's counters, by name; ``status`` its
    state, as JSON. ``views`` are tables, by the words to type; ``later`` calls a function in the next turn of the
    reactor, since a long table is read in many.
    """

    counts: Callable[[], Mapping[str, int]] = _nothing
    documentation: Documentation = attrs.field(factory=lambda: Documentation(()), kw_only=True)
    status: Callable[[], Mapping[str, object]] = _nothing
    version: str = ""
    views: Mapping[str, AnyView] = attrs.field(factory=dict)
    control: ControlWords | None = attrs.field(default=None, kw_only=True)
    later: Later = attrs.field(default=at_once, kw_only=True)


class ConsoleSession:
    """One operator's conversation with the console, in the dialects of the wires."""

    def __init__(
        self,
        dialects: Sequence[Dialect],
        shown: Shown,
        peer: Peer,
        access: Access | None = None,
        requests: RequestLimits | None = None,
    ) -> None:
        self._peer = peer
        self._shown = shown
        self._access: Access = AnonymousAccess() if access is None else access
        self._requests = unlimited() if requests is None else requests
        self.principal = Principal(address=peer.address)
        """The operator; the anonymous user before the login."""
        self._half_closed = False
        self._over = False
        self._reading = ConsoleReading(shown.later, self._print_json, self._carry_out)
        self._listening: set[str] | None = None
        self._dialects = {dialect.prefix: dialect for dialect in dialects}
        self._dialogues: dict[str, Dialogue] = {}
        self._login = ConsoleLogin(self._access, peer, self._print, self.refuse, self._enter)
        self._login.begin()

    # called by the connection

    def receive(self, line: Line | Negotiation) -> None:
        """Take one line. No-op after the end, for lines that were held."""
        if self._over:
            return
        if isinstance(line, Negotiation):
            self._peer.write(line.answer)
            return
        try:
            self._requests.take(self.principal.name, self._peer.address)
        except Refusal as refusal:
            self.refuse(refusal)
            return
        if self._login.state is not LoginState.ENTERED:
            self._login.take(line.text)
        elif self._reading.busy:
            try:
                self._reading.hold(line.text)
            except Refusal as refusal:
                self.refuse(refusal)
        else:
            self._carry_out(line.text)

    def malformed(self, malformed: Malformed) -> None:
        """Print the reason why a line could not be read."""
        self.refuse(malformed)

    @property
    def entered(self) -> bool:
        """True after the login: lines before are credentials."""
        return self._login.state is LoginState.ENTERED

    def refuse(self, refusal: Refusal) -> None:
        """Print a refusal; close the connection if it is fatal."""
        patient = self._peer.refused(refusal)
        self._print(f"error: {refusal.text}")
        if refusal.reason.fatal or not patient:
            self._peer.close()

    def input_ended(self) -> bool:
        """Handle the end of input."""
        if self._login.pending or self._reading.busy:
            self._half_closed = True
            self._reading.done = self._end
            return True
        self._listening = {prefix for prefix, dialogue in self._dialogues.items() if dialogue.session.input_ended()}
        return bool(self._listening)

    @property
    def needed(self) -> bool:
        """True while an answer is due, or a command still runs."""
        return (
            self._login.pending or self._reading.busy or any(each.session.needed for each in self._dialogues.values())
        )

    def lost(self) -> None:
        """Handle the loss of the connection."""
        self._over = True
        self._login.lost()
        self._reading.end()
        dialogues, self._dialogues = self._dialogues, {}
        for dialogue in dialogues.values():
            dialogue.session.lost()

    # inside

    def review(self) -> None:
        """Check the operator and the rights again after a change of the users file."""
        if not self._access.stands(self.principal):
            self.refuse(Refusal(Reason.REVOKED, f"the login of {self.principal.name} is not valid any more: closing"))
            return
        for dialogue in self._dialogues.values():
            dialogue.review()

    def permit(self, operation: str) -> None:
        """Raise `Refusal` FORBIDDEN if the operator has no right to the operation."""
        if not self._access.allows(self.principal, LISTENER, operation):
            user = self.principal.name or "a peer without a user"
            raise Refusal(Reason.FORBIDDEN, f"{user} has no right to {operation} here")

    def _enter(self, principal: Principal) -> None:
        self.principal = principal
        self._peer.authenticated()
        for prefix, dialect in self._dialects.items():
            self._dialogues[prefix] = dialect.converse(_Printer(self._peer, partial(self._close, prefix)), principal)
        self._print('elkobroker console. Type help, or a message such as {op:"servicedesc"}')
        for text in self._login.held():
            self.receive(Line(text))
        if self._half_closed and not self.input_ended():
            self._peer.close()

    def _close(self, prefix: str) -> None:
        """Handle the end of one inner session. After the last line of input, another session may still answer."""
        if self._listening is not None:
            self._listening.discard(prefix)
        if not self._listening:
            self._peer.close()

    def _end(self) -> None:
        """End the session after the last held line, unless an inner session still answers."""
        if not self.input_ended():
            self._peer.close()

    def _carry_out(self, text: str) -> None:
        if text.startswith("{"):
            self._message("", text)
        else:
            self._command(text)

    def _message(self, prefix: str, text: str) -> None:
        try:
            for message in self._dialects[prefix].messages(text):
                self._dialogues[prefix].say(message)
        except Malformed as malformed:
            self.refuse(malformed)

    def _command(self, text: str) -> None:
        first, _, rest = text.partition(" ")
        if first and first in self._dialects and rest.lstrip().startswith("{"):
            self._message(first, rest)
            return
        try:
            word, *arguments = shlex.split(text)
        except ValueError as error:
            self.refuse(Refusal(Reason.SYNTAX, f"not a command: {error}"))
            return
        try:
            self._run(word, arguments)
        except Refusal as refusal:
            self.refuse(refusal)

    def _run(self, word: str, arguments: list[str]) -> None:
        view = self._shown.views.get(" ".join((word, *arguments[:1])))
        if view is not None:
            self.permit("view")
            reading = RegistryReading.of(self._access.grants(self.principal, LISTENER))
            self._reading.begin(view, " ".join(arguments[1:]) if arguments[1:] else "*", reading)
        elif word == "help":
            self._print(self._help(arguments))
        elif self._shown.control is not None and word in CONTROL and (arguments or word not in self._unprefixed_ops()):
            text = self._shown.control.run(word, arguments, self.principal, self.permit)
            if isinstance(text, Deferred):
                self._reading.wait(text, self._print)
            else:
                self._print(text)
        elif word and word in self._dialects:
            if not arguments:
                raise Malformed(Reason.UNKNOWN_OP, f"{word} is the beginning of commands; try help {word}")
            self._dialogues[word].say(self._dialects[word].typed(arguments[0], arguments[1:]))
        elif near := sorted(name for name in self._shown.views if name.startswith(f"{word} ")):
            typed = " ".join((word, *arguments))[:40]
            raise Malformed(Reason.UNKNOWN_OP, f"there is no command {typed!r}, but {' and '.join(near)}")
        elif word not in WORDS and word != "exit":
            self._unprefixed(word, arguments)
        elif arguments:
            raise Malformed(Reason.PARAMETER, f"{word} takes no parameters")
        elif word == "counters":
            self.permit("view")
            counts = [f"{name} {count}" for name, count in sorted(self._shown.counts().items())]
            self._print("\n".join(counts or ["nothing was counted yet"]))
        elif word == "status":
            self.permit("view")
            self._print_json(self._shown.status())
        elif word == "version":
            self._print(f"elkobroker {self._shown.version}")
        else:
            self._peer.close()

    def _unprefixed_ops(self) -> Collection[str]:
        """Return the ops that are typed without a prefix: one without parameters comes before a control word."""
        dialect = self._dialects.get("")
        return () if dialect is None else dialect.ops

    def _unprefixed(self, word: str, arguments: list[str]) -> None:
        dialect = self._dialects.get("")
        if dialect is None:
            raise Malformed(Reason.UNKNOWN_OP, f"there is no command {word[:40]!r}; help shows all")
        self._dialogues[""].say(dialect.typed(word, arguments))

    def _help(self, words: Sequence[str]) -> str:
        """Return all commands, or the help of one. Raises `Malformed` if there is no such command."""
        name = " ".join(words)
        dialects = self._dialects.values()
        if name == "counters":
            return self._counters_help()
        if name in WORDS:
            return f"{name}\n  {WORDS[name]}"
        if self._shown.control is not None and name in CONTROL:
            return f"{CONTROL[name].usage}\n  {CONTROL[name].help}"
        view = self._shown.views.get(name)
        if view is not None:
            return _view_help(view)
        for dialect in dialects:
            op = name.removeprefix(dialect.prefix).strip()
            if op in dialect.ops and name == f"{dialect.prefix} {op}".strip():
                return dialect.help(op)
        if name and name in self._dialects:
            return "\n".join(self._dialects[name].list())
        if name:
            raise Malformed(Reason.UNKNOWN_OP, f"there is no command {name[:40]!r}; help alone shows all")
        lines = ['Commands, or the same as JSON: {op:"find", service:"bank"}']
        lines += [f"  {line}" for dialect in dialects for line in dialect.list()]
        lines += [f"  {view} [PATTERN]" for view in sorted(self._shown.views)]
        if self._shown.control is not None:
            lines += [f"  {word.usage}" for word in CONTROL.values()]
        lines += [f"  {word}" if word != "help" else "  help [COMMAND]" for word in sorted(WORDS)]
        return "\n".join(lines)

    def _counters_help(self) -> str:
        """Return the meaning of each counter counted so far."""
        lines = [f"counters\n  {WORDS['counters']}"]
        for name in sorted(self._shown.counts()):
            counter = self._shown.documentation.of(name)
            if counter is not None:
                unit = f" ({counter.unit}{', now' if counter.gauge else ''})" if counter.unit else ""
                lines.append(f"  {name}: {counter.help}{unit}.")
        return "\n".join(lines)

    def _print_json(self, value: object) -> None:
        self._print(_pretty(msgspec.json.encode(value)))

    def _print(self, text: str) -> None:
        self._peer.write(text.replace("\n", "\r\n").encode() + b"\r\n")


class _Printer:
    """The peer of an inner session: it prints the messages of the session."""

    def __init__(self, peer: Peer, close: Callable[[], None]) -> None:
        self._peer = peer
        self.address = f"console {peer.address}"
        self.local = True
        self.certificate: tuple[str, ...] = ()
        self.request_id = ""
        self.vanished = False
        self.unacknowledged = False
        self.close = close
        self.debug = peer.debug
        self.hold = peer.hold

    @property
    def behind(self) -> bool:
        """True while the operator's terminal has unread output."""
        return self._peer.behind

    def write(self, data: bytes) -> None:
        """Print one message."""
        if len(data) > PRETTY:
            self._peer.write(_printable(data.rstrip().decode()).encode() + b"\r\n")
            return
        self._peer.write(_pretty(data.rstrip()).replace("\n", "\r\n").encode() + b"\r\n")

    def write_first(self, data: bytes) -> None:
        """Print one message: output of a console is in no order with that of others."""
        self.write(data)

    def refused(self, refusal: Refusal) -> bool:
        """Print a refusal."""
        self._peer.write(f"error: {refusal.text}\r\n".encode())
        return self._peer.refused(refusal)

    def authenticated(self) -> None:
        """Do nothing: the deadline for authentication is the console's own."""


def _view_help(view: AnyView) -> str:
    lines = [f"{view.name} [PATTERN]", f"  {view.help} A pattern is a shell pattern such as a*."]
    lines += [f"  {each.name}: {each.help}{f' ({each.unit})' if each.unit else ''}." for each in view.columns]
    return "\n".join(lines)


def _pretty(data: bytes) -> str:
    """Pretty-print JSON for a terminal."""
    return _printable(msgspec.json.format(data, indent=2).decode())


def _printable(text: str) -> str:
    """Escape the characters of JSON that a terminal interprets as commands."""
    return _UNPRINTABLE.sub(lambda m: f"\\u{ord(m[0]):04x}", text)
