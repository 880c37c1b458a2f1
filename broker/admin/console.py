"""The operators' console: telnet-style lines in, pretty-printed JSON out.

Rules:
- A line that begins with ``{`` is one message of the Elko Broker protocol; ``to`` may be left out.
- Any other line is a command: ``help``, ``status``, ``version``, ``counters``, ``quit``, a view such as
  ``elko sessions``, or an op with parameters: ``find service=bank wait=5``.
- A line that begins with ``director`` is for the Elko Director, where there is one: a message of its protocol, or an op
  with parameters: ``director find user=user-bob``.
- Everybody who reaches the console is an administrator; where it has a password, the first line must be that.
- An order to servers that none of them matches is an error here; on the wire it has no answer.
- Notices of a watch come as they happen, between the answers.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from functools import partial

import attrs
import msgspec

from broker.admin.telnet import Line, Negotiation
from broker.core.errors import Malformed, Reason, Refusal
from broker.net.interfaces.peer import Peer, Session
from broker.wires.common.password_backoff import Guesses
from broker.wires.elko.codec import lenient
from broker.wires.elko.codec.broker import LoadReport, WillServe, WontServe
from broker.wires.elko.codec.common import Auth
from broker.wires.elko.codec.vocabulary import Message
from broker.wires.elko.commands import BROKER, DIRECTOR, Commands
from broker.wires.elko.sessions.authentication import Door, Policy
from broker.wires.elko.sessions.broker import BrokerSession, Wiring
from broker.wires.elko.sessions.director import DirectorSession
from broker.wires.elko.sessions.director import Wiring as DirectorWiring

POLICY = Policy(diagnostics=False, orders_must_reach=True)
"""The console itself says what was wrong."""

PROVIDING = (WillServe, WontServe, LoadReport)
"""What only a provider says: the console becomes one when it first does."""

PRETTY = 1024 * 1024
"""Bytes of a message that is shown in a readable form; a larger one is a dump for programs, shown as it is."""

_UNPRINTABLE = re.compile("[\x7f-\x9f]")
"""Control characters that JSON may hold unescaped: a terminal takes some for commands."""

WORDS = {
    "counters": "Shows what was counted, and how many connections and services there are now.",
    "help": "Shows all commands, or what a command does: help find, help director dump.",
    "quit": "Ends the session.",
    "status": "Shows how long the broker runs, its listeners, the size of its tables, and the health of its files.",
    "version": "Shows the version of the broker.",
}
"""The commands that are no ops, with what they do. ``exit`` is the same as ``quit``."""


def _nothing() -> Mapping[str, int]:
    return {}


@attrs.frozen
class Shown:
    """The things that an operator can look at besides messages.

    ``counts`` gives the broker's counters, by name; ``status`` its state, as JSON. ``views`` has more, by the words to
    type: each gives JSON for the names that match a shell pattern.
    """

    counts: Callable[[], Mapping[str, int]] = _nothing
    status: Callable[[], Mapping[str, object]] = _nothing
    version: str = ""
    views: Mapping[str, Callable[[str], object]] = attrs.field(factory=dict)


class ConsoleSession:
    """One operator's conversation with the console.

    ``director`` is the wiring of the Elko Director, if there is one.
    """

    def __init__(
        self,
        wiring: Wiring,
        shown: Shown,
        password: str | None,
        guesses: Guesses,
        peer: Peer,
        director: DirectorWiring | None = None,
    ) -> None:
        self._peer = peer
        self._shown = shown
        self._password = password
        self._guesses = guesses
        self._listening: set[Commands] | None = None
        door = Door(POLICY, guesses)
        self._session = BrokerSession(wiring, door, _Printer(peer, partial(self._close, BROKER)))
        self._sessions: dict[Commands, Session] = {BROKER: self._session}
        if director is not None:
            self._sessions[DIRECTOR] = DirectorSession(director, door, _Printer(peer, partial(self._close, DIRECTOR)))
        if password is None:
            self._enter()
        else:
            self._print("password:")

    # from the connection

    def receive(self, line: Line | Negotiation) -> None:
        """Take one line."""
        if isinstance(line, Negotiation):
            self._peer.write(line.answer)
        elif self._password is not None:
            self._check(line.text)
        elif line.text.startswith("{"):
            self._message(BROKER, line.text)
        else:
            self._command(line.text)

    def malformed(self, malformed: Malformed) -> None:
        """A line that could not be read."""
        self.refuse(malformed)

    def refuse(self, refusal: Refusal) -> None:
        """Say what is refused; close if that is fatal."""
        patient = self._peer.refused(refusal)
        self._print(f"error: {refusal.text}")
        if refusal.reason.fatal or not patient:
            self._peer.close()

    def input_ended(self) -> bool:
        """The operator sends no more."""
        self._listening = {dialect for dialect, session in self._sessions.items() if session.input_ended()}
        return bool(self._listening)

    def lost(self) -> None:
        """The operator is gone."""
        for session in self._sessions.values():
            session.lost()

    # inside

    def _check(self, text: str) -> None:
        assert self._password is not None
        try:
            self._guesses.check(self._peer.address, text, self._password)
        except Refusal as refusal:
            self.refuse(refusal)
            return
        self._password = None
        self._enter()

    def _enter(self) -> None:
        self._peer.authenticated()
        for session in self._sessions.values():
            session.receive(Auth("admin", label="console"))
        self._print('elkobroker console. Type help, or a message such as {op:"servicedesc"}')

    def _close(self, dialect: Commands) -> None:
        """One of the sessions has said all. After the operator's last line, another may have something to say yet."""
        if self._listening is not None:
            self._listening.discard(dialect)
        if not self._listening:
            self._peer.close()

    def _message(self, dialect: Commands, text: str) -> None:
        try:
            messages = list(lenient.objects(text))
            if not messages or not lenient.Balance().feed(text):
                raise Malformed(Reason.SYNTAX, "the line is not one complete message {...}")
            for members in messages:
                self._send(dialect, dialect.message(members))
        except Malformed as malformed:
            self.refuse(malformed)

    def _command(self, text: str) -> None:
        first, _, rest = text.partition(" ")
        if first == DIRECTOR.prefix and DIRECTOR in self._sessions and rest.lstrip().startswith("{"):
            self._message(DIRECTOR, rest)
            return
        try:
            word, *arguments = shlex.split(text)
        except ValueError as error:
            self.refuse(Refusal(Reason.SYNTAX, f"not a command: {error}"))
            return
        try:
            self._run(word, arguments)
        except Malformed as malformed:
            self.refuse(malformed)

    def _run(self, word: str, arguments: list[str]) -> None:
        view = self._shown.views.get(" ".join((word, *arguments[:1])))
        if view is not None:
            self._print_json(view(" ".join(arguments[1:]) if arguments[1:] else "*"))
        elif word == "help":
            self._print(self._help(arguments))
        elif word == DIRECTOR.prefix and DIRECTOR in self._sessions:
            if not arguments:
                raise Malformed(Reason.UNKNOWN_OP, "director is the beginning of commands; try help director")
            self._send(DIRECTOR, DIRECTOR.typed(arguments[0], arguments[1:]))
        elif near := sorted(name for name in self._shown.views if name.startswith(f"{word} ")):
            typed = " ".join((word, *arguments))[:40]
            raise Malformed(Reason.UNKNOWN_OP, f"there is no command {typed!r}, but {' and '.join(near)}")
        elif word not in WORDS and word != "exit":
            self._send(BROKER, BROKER.typed(word, arguments))
        elif arguments:
            raise Malformed(Reason.PARAMETER, f"{word} takes no parameters")
        elif word == "counters":
            counts = [f"{name} {count}" for name, count in sorted(self._shown.counts().items())]
            self._print("\n".join(counts or ["nothing was counted yet"]))
        elif word == "status":
            self._print_json(self._shown.status())
        elif word == "version":
            self._print(f"elkobroker {self._shown.version}")
        else:
            self._peer.close()

    def _send(self, dialect: Commands, message: Message) -> None:
        if isinstance(message, PROVIDING) and message.to != "admin" and not self._session.is_client:
            self._session.receive(Auth("client", label="console"))
        self._sessions[dialect].receive(message)

    def _help(self, words: Sequence[str]) -> str:
        """All that can be typed, or what one command does. Raises `Malformed` if there is no such command."""
        name = " ".join(words)
        dialects = [*self._sessions]
        if name in WORDS:
            return f"{name}\n  {WORDS[name]}"
        if name in self._shown.views:
            return f"{name} [PATTERN]\n  Shows all, or those that match a shell pattern such as a*."
        for dialect in dialects:
            op = name.removeprefix(dialect.prefix).strip()
            if op in dialect.messages and name == dialect.name(op):
                return dialect.help(op)
        if name and name == DIRECTOR.prefix and DIRECTOR in dialects:
            return "\n".join(DIRECTOR.list())
        if name:
            raise Malformed(Reason.UNKNOWN_OP, f"there is no command {name[:40]!r}; help alone shows all")
        lines = ['Commands, or the same as JSON: {op:"find", service:"bank"}']
        lines += [f"  {line}" for dialect in dialects for line in dialect.list()]
        lines += [f"  {view} [PATTERN]" for view in sorted(self._shown.views)]
        lines += [f"  {word}" if word != "help" else "  help [COMMAND]" for word in sorted(WORDS)]
        return "\n".join(lines)

    def _print_json(self, value: object) -> None:
        self._print(_pretty(msgspec.json.encode(value)))

    def _print(self, text: str) -> None:
        self._peer.write(text.replace("\n", "\r\n").encode() + b"\r\n")


class _Printer:
    """The peer that the inner session speaks to: it prints what that sends."""

    def __init__(self, peer: Peer, close: Callable[[], None]) -> None:
        self._peer = peer
        self.address = f"console {peer.address}"
        self.local = True
        self.close = close
        self.write_first = self.write
        self.debug = peer.debug

    @property
    def behind(self) -> bool:
        """Whether the operator's terminal has still to read."""
        return self._peer.behind

    def write(self, data: bytes) -> None:
        """Print one message."""
        if len(data) > PRETTY:
            self._peer.write(_printable(data.rstrip().decode()).encode() + b"\r\n")
            return
        self._peer.write(_pretty(data.rstrip()).replace("\n", "\r\n").encode() + b"\r\n")

    def refused(self, refusal: Refusal) -> bool:
        """Print what was refused."""
        self._peer.write(f"error: {refusal.text}\r\n".encode())
        return self._peer.refused(refusal)

    def authenticated(self) -> None:
        """Nothing is waiting for that."""


def _pretty(data: bytes) -> str:
    """JSON for a terminal."""
    return _printable(msgspec.json.format(data, indent=2).decode())


def _printable(text: str) -> str:
    """The same JSON without what a terminal takes for commands."""
    return _UNPRINTABLE.sub(lambda m: f"\\u{ord(m[0]):04x}", text)
