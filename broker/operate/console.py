"""The operators' console: telnet-style lines in, pretty-printed JSON out.

Rules:
- A line that begins with ``{`` is a message of the dialect without a prefix, the Elko Broker's; ``to`` may be left out.
- Any other line is a command: ``help``, ``status``, ``version``, ``config``, ``counters``, ``quit``, a view such as
  ``elko sessions``, an action of `broker.operate.actions`, or an op with parameters: ``find service=bank wait=5``.
- A line that begins with the prefix of a dialect is for that one: a message, or an op with parameters:
  ``director find user=user-bob``.
- Each connection is an administrator's, after the login (`broker.operate.console_input`). With a users file, each
  command needs a right of the operator: "view" for views, that of an action, and what the sessions of the dialects
  demand.
- An order that matches no server is an error here; on the wire it has no answer.
- Notices of a watch are printed when they happen, between the answers.
"""

from __future__ import annotations

import shlex
import textwrap
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import partial
from itertools import chain
from typing import Any

import attrs
import msgspec
from twisted.internet.defer import Deferred
from twisted.logger import Logger
from twisted.python.failure import Failure

from broker.access.logins import RequestLimits, unlimited
from broker.access.principal import Access, Principal, forbidden
from broker.access.rights import AnonymousAccess, RegistryReading
from broker.core.errors import Malformed, Reason, Refusal
from broker.net.peer_interfaces import Peer
from broker.operate.action_endpoints import Actions
from broker.operate.actions import ACTIONS, BY_NAME, Action
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
from broker.rest.messages import PIECE, in_steps
from broker.wires.tables import ID, AnyView, Column, Dialect, Dialogue, Documentation

WIDTH = 100
"""Width of a line of help, in characters."""

PRETTY = 1024 * 1024
"""Bytes of a message that is pretty-printed; a larger one is a dump for programs, and printed verbatim."""

_PRINTABLE = {
    **{code: f"\\u{code:04x}" for code in (*range(0x09), *range(0x0B, 0x20), *range(0x7F, 0xA0))},
    0x0A: "\r\n",
}
"""Escapes of control characters, some of which terminals interpret as commands."""

WORDS = {
    "config": "Shows the running configuration, and which keys need a restart.",
    "counters": "Shows what was counted, and how many connections and services there are now.",
    "help": "Shows all commands, or what a command does: help find, help director dump.",
    "quit": "Ends the session.",
    "status": "Shows how long the broker runs, its listeners, the size of its tables, and the health of its files.",
    "version": "Shows the version of the broker.",
}
"""The commands that are no ops, with their help."""

BUILT_IN = frozenset((*WORDS, "exit"))
"""The same, and another word for ``quit``."""

OPS_FIRST = ("launch", "reinit", "shutdown")
"""Actions whose names are ops of the Elko Broker: the words are those ops, which have more parameters."""


def _nothing() -> Mapping[str, int]:
    return {}


@attrs.frozen
class Shown:
    """The state that the console displays besides messages.

    ``actions`` are those of operators. ``counts`` gives the broker's counters, by name; ``status`` its
    state, as JSON. ``views`` are tables, by the words to type; ``later`` calls a function in the next turn of the
    reactor, since a long table is read in many.
    """

    counts: Callable[[], Mapping[str, int]] = _nothing
    documentation: Documentation = attrs.field(factory=lambda: Documentation(()), kw_only=True)
    status: Callable[[], Mapping[str, object]] = _nothing
    version: str = ""
    views: Mapping[str, AnyView] = attrs.field(factory=dict)
    actions: Actions | None = attrs.field(default=None, kw_only=True)
    later: Later = attrs.field(default=at_once, kw_only=True)


class ConsoleSession:
    """One operator's conversation with the console, in the dialects of the wires."""

    log = Logger()

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

    # called by the connection

    def begin(self) -> None:
        """Ask for credentials, or enter without."""
        self._login.begin()

    def receive(self, line: Line | Negotiation) -> None:
        """Take one line. No-op after the end, for lines that were held."""
        if self._over:
            return
        if isinstance(line, Negotiation):
            self._peer.write(line.answer)
            return
        # One that waits for a login counts when it is carried out, for the user of the login.
        if not self._login.pending:
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
            raise forbidden(self.principal, operation)

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
                if self._over:
                    return  # a message before has ended the session
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
        elif (action := self._action(word)) is not None and (arguments or word not in self._unprefixed_ops()):
            self._act(action, arguments)
        elif word and word in self._dialects:
            if not arguments:
                raise Malformed(Reason.UNKNOWN_OP, f"{word} is the beginning of commands; try help {word}")
            self._dialogues[word].say(self._dialects[word].typed(arguments[0], arguments[1:]))
        elif near := self._near(word):
            typed = " ".join((word, *arguments))[:40]
            raise Malformed(Reason.UNKNOWN_OP, f"there is no command {typed!r}, but {' and '.join(near)}")
        elif word not in BUILT_IN:
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
        elif word == "config":
            self.permit("view")
            self._print(self._config())
        elif word == "version":
            self._print(f"elkobroker {self._shown.version}")
        else:
            self._peer.close()

    def _near(self, word: str) -> list[str]:
        """Return the views that have a word as their first one, or as their last one if it is no command."""
        command = word in BUILT_IN or word in self._unprefixed_ops()
        views = [(name, name.split()) for name in self._shown.views]
        return sorted(name for name, words in views if word == words[0] or (word == words[-1] and not command))

    def _unprefixed_ops(self) -> Collection[str]:
        """Return the ops that are typed without a prefix: one without parameters comes before an action."""
        dialect = self._dialects.get("")
        return () if dialect is None else dialect.ops

    def _action(self, word: str) -> Action | None:
        """Return the action of that name; None if there is none, or the word is an op."""
        if self._shown.actions is None or (word in OPS_FIRST and word in self._unprefixed_ops()):
            return None
        return BY_NAME.get(word)

    def _act(self, action: Action, words: Sequence[str]) -> None:
        """Carry out an action, or show the state that it changes."""
        actions = self._shown.actions
        assert actions is not None
        if action.state is not None and action.shows(words):
            self.permit("view")
            self._print_answer(getattr(actions.operations, action.state.method)())
            return
        result = actions.typed(action, words, self.principal, self._access.grants(self.principal, LISTENER))
        if isinstance(result, Deferred):
            self._reading.wait(result, self._print_answer, self._failed)
        else:
            self._print_answer(result)

    def _failed(self, failure: Failure) -> None:
        """Print the reason why an action has no answer."""
        error = failure.value
        if not isinstance(error, Refusal):
            self.log.failure("an action of the console failed", failure)
            error = Refusal(Reason.INTERNAL, "the broker failed on this command; its log has the reason")
        self.refuse(error)

    def _config(self) -> str:
        """Return all keys, and what is not ready."""
        assert self._shown.actions is not None
        operations = self._shown.actions.operations
        keys = operations.settings()
        lines = [f"{each.key} = {each.value}{'' if each.reloadable else '  (restart)'}" for each in keys]
        lines += [f"not ready: {each.what}: {each.reason}" for each in operations.not_ready()]
        lines += [f"degraded: {each.what}: {each.reason}" for each in operations.degraded()]
        return "\n".join(lines)

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
        action = self._action(name)
        if action is not None:
            return "\n".join((action.usage, *_filled(action.text)))
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
        lines += [f"  {each.usage}" for each in sorted(ACTIONS, key=lambda each: each.name) if self._action(each.name)]
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

    def _print_answer(self, value: Any) -> None:
        """Print the answer of an action: its text, if it has one. One that takes several steps is printed verbatim."""
        text = getattr(value, "text", None)
        if text is not None and len(text) <= PRETTY:
            self._print(text)
            return
        pieces = _sliced(text) if text is not None else map(bytes.decode, in_steps(msgspec.to_builtins(value)))
        first, second = next(pieces), next(pieces, None)
        if second is None:
            self._print(_pretty(first.encode()))
        else:
            self._reading.encode(map(_printable, chain((first, second), pieces)), self._print_pieces)

    def _print_pieces(self, pieces: Sequence[bytes]) -> None:
        for piece in pieces:
            self._peer.write(piece)
        self._peer.write(b"\r\n")

    def _print(self, text: str) -> None:
        self._peer.write(_printable(text) + b"\r\n")


class _Printer:
    """The peer of an inner session: it prints the messages of the session."""

    def __init__(self, peer: Peer, close: Callable[[], None]) -> None:
        self._peer = peer
        self.address = f"console {peer.address}"
        self.host = peer.host
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
        text = data.rstrip().decode() if len(data) > PRETTY else _pretty(data.rstrip())
        self._peer.write(_printable(text) + b"\r\n")

    def write_first(self, data: bytes) -> None:
        """Print one message: the output of a console has no order relative to other connections."""
        self.write(data)

    def refused(self, refusal: Refusal) -> bool:
        """Print a refusal."""
        self._peer.write(_printable(f"error: {refusal.text}") + b"\r\n")
        return self._peer.refused(refusal)

    def go_on_with(self, steps: Iterator[None]) -> None:
        """Make all steps: the prompt comes after them."""
        for _ in steps:
            pass

    def authenticated(self) -> None:
        """Do nothing: the deadline for authentication is the console's own."""


def _filled(text: str) -> list[str]:
    """Return the paragraphs of a text as indented lines."""
    return [
        textwrap.fill(each, WIDTH, initial_indent="  ", subsequent_indent="  ", break_long_words=False)
        for each in text.split("\n\n")
    ]


def _view_help(view: AnyView) -> str:
    lines = [f"{view.name} [PATTERN]", f"  {view.help} A pattern is a shell pattern such as a*."]
    lines += [f"  {each.name}: {each.help}{_unit_help(each)}." for each in view.columns]
    return "\n".join(lines)


def _unit_help(column: Column) -> str:
    return f" ({column.unit})" if column.unit not in ("", ID) else ""


def _pretty(data: bytes) -> str:
    """Pretty-print JSON."""
    return msgspec.json.format(data, indent=2).decode()


def _sliced(text: str) -> Iterator[str]:
    return (text[at : at + PIECE] for at in range(0, len(text), PIECE))


def _printable(text: str) -> bytes:
    """Encode a text for a terminal."""
    return text.translate(_PRINTABLE).encode()
