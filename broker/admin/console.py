"""The operators' console: telnet-style lines in, pretty-printed JSON out.

Rules:
- A line that begins with ``{`` is one message of the Elko Broker protocol; ``to`` may be left out.
- Any other line is a command: ``help``, ``counters``, ``quit``, a view such as ``mc0 sessions``, or an op with
  parameters: ``find service=bank wait=5``.
- A line that begins with ``director`` is for the Elko Director, where there is one: a message of its protocol, or an op
  with parameters: ``director find user=user-bob``.
- Whoever reaches the console is an administrator; where it has a password, the first line must be that.
- Notices of a watch come as they happen, between the answers.
"""

from __future__ import annotations

import hmac
import re
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial

import attrs
import msgspec

from broker.admin.commands import BROKER, DIRECTOR, Commands
from broker.core.errors import Malformed, Reason, Refusal
from broker.session.auth import Door, Policy
from broker.session.elko_broker import BrokerSession, Wiring
from broker.session.elko_director import DirectorSession
from broker.session.elko_director import Wiring as DirectorWiring
from broker.session.peer import Peer, Session
from broker.wire.elko import lenient
from broker.wire.elko.broker import LoadReport, WillServe, WontServe
from broker.wire.elko.common import Auth
from broker.wire.elko.vocabulary import Message
from broker.wire.opening import Opening, is_text, opening

MAX_LINE = 65_536
"""Bytes of one line: more than anybody types."""

DOOR = Door(Policy(diagnostics=False))
"""The console says itself what was wrong."""

PROVIDING = (WillServe, WontServe, LoadReport)
"""What only a provider says: the console becomes one when it first does."""

Views = Mapping[str, Callable[[str], object]]
"""What can be looked at besides, by the words to type: each gives JSON for the names that match a shell pattern."""

PRETTY = 1024 * 1024
"""Bytes of a message that is shown in a readable form; a larger one is a dump for programs, shown as it is."""

_IAC, _SB, _SE, _WILL, _WONT, _DO, _DONT = 255, 250, 240, 251, 252, 253, 254

_UNPRINTABLE = re.compile("[\x7f-\x9f]")
"""Control characters that JSON may hold unescaped: a terminal takes some for commands."""


@attrs.frozen
class Line:
    """One line that the operator typed."""

    text: str


@attrs.frozen
class Negotiation:
    """What the operator's telnet asked for; ``answer`` refuses it."""

    answer: bytes


class ConsoleReader:
    """Bytes to lines, without the telnet protocol's own bytes.

    Whatever the telnet offers or asks for is refused (RFC 854): so it goes on line by line, which is what the console
    wants. A telnet that was interrupted waits for that answer and shows nothing before.

    A connection that begins with a request of HTTP, or sends control characters, ends with a `Malformed`: a web page
    can make a browser on the operator's machine send such bytes, with commands among them. Nothing is yielded before
    the first line is complete and known to be none of that, and nothing of a read in which there are control characters.
    """

    def __init__(self) -> None:
        self._line = bytearray()
        self._telnet = bytearray()
        self._in_option = False
        self._returned = False
        """The last byte was a CR: a NUL after it is part of the line's end (RFC 854)."""
        self._opened = False
        """The first line was text, and no request of HTTP."""
        self._ended = False

    def feed(self, data: bytes) -> Iterator[Line | Negotiation | Malformed]:
        """The lines that ``data`` completes, and what the telnet asked for. Nothing more after a `Malformed`."""
        if self._ended:
            return
        plain, answer = self._without_telnet(data)
        plain = self._without_padding(plain)
        if not is_text(plain):
            yield self._end(Reason.UNEXPECTED, f"{Opening.BINARY.value}: closing")
            return
        if not self._opened:
            plain = bytes(self._line) + plain
            self._line.clear()
            verdict = opening(plain)
            if verdict in (Opening.HTTP, Opening.BINARY):
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
                    yield Line(text)

    @property
    def pending(self) -> int:
        """Bytes held of a line that is not complete."""
        return len(self._line)

    def _end(self, reason: Reason, text: str) -> Malformed:
        self._ended = True
        self._line.clear()
        return Malformed(reason, text)

    def _without_padding(self, plain: bytes) -> bytes:
        """``plain`` without the NUL with which a telnet ends a line after CR."""
        if self._returned and plain.startswith(b"\0"):
            plain = plain[1:]
            self._returned = False
        if plain:
            self._returned = plain.endswith(b"\r")
        return plain.replace(b"\r\0", b"\r")

    def _without_telnet(self, data: bytes) -> tuple[bytes, bytes]:
        """``data`` without telnet commands (which several reads may bring), and what is to be answered to them."""
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


class ConsoleSession:
    """One operator's conversation with the console.

    ``counts`` gives the broker's counters, by name; ``director`` is the wiring of the Elko Director, if there is one.
    """

    def __init__(
        self,
        wiring: Wiring,
        counts: Callable[[], Mapping[str, int]],
        views: Views,
        password: str | None,
        peer: Peer,
        director: DirectorWiring | None = None,
    ) -> None:
        self._peer = peer
        self._counts = counts
        self._views = views
        self._password = password
        self._listening: set[Commands] | None = None
        self._session = BrokerSession(wiring, DOOR, _Printer(peer, partial(self._close, BROKER)))
        self._sessions: dict[Commands, Session] = {BROKER: self._session}
        if director is not None:
            self._sessions[DIRECTOR] = DirectorSession(director, DOOR, _Printer(peer, partial(self._close, DIRECTOR)))
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
        if not hmac.compare_digest(text.encode(), self._password.encode()):
            self.refuse(Refusal(Reason.WRONG_CREDENTIALS, "wrong password"))
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
        view = self._views.get(" ".join((word, *arguments[:1])))
        if word == "help":
            self._print(_help(arguments, tuple(self._sessions), self._views))
        elif view is not None:
            self._print(_pretty(msgspec.json.encode(view(*(arguments[1:2] or "*")))))
        elif word in ("quit", "exit"):
            self._peer.close()
        elif word == "counters":
            counts = [f"{name} {count}" for name, count in sorted(self._counts().items())]
            self._print("\n".join(counts or ["nothing was counted yet"]))
        else:
            try:
                if word == DIRECTOR.prefix and DIRECTOR in self._sessions:
                    self._send(DIRECTOR, DIRECTOR.typed(arguments[0] if arguments else "", arguments[1:]))
                else:
                    self._send(BROKER, BROKER.typed(word, arguments))
            except Malformed as malformed:
                self.refuse(malformed)

    def _send(self, dialect: Commands, message: Message) -> None:
        if isinstance(message, PROVIDING) and message.to != "admin" and not self._session.is_client:
            self._session.receive(Auth("client", label="console"))
        self._sessions[dialect].receive(message)

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


def _help(words: Sequence[str], dialects: Sequence[Commands], views: Views) -> str:
    """What can be typed; or one op with its parameters."""
    for dialect in dialects:
        op = " ".join(words).removeprefix(dialect.prefix).strip()
        if " ".join((*dialect.prefix.split(), op)) == " ".join(words) and op in dialect.messages:
            return dialect.help(op)
    lines = ['Commands, or the same as JSON: {op:"find", service:"bank"}']
    lines += [f"  {dialect.usage(op)}" for dialect in dialects for op in sorted(dialect.messages)]
    lines += [f"  {name} [PATTERN]" for name in sorted(views)]
    return "\n".join([*lines, "  counters", "  help [OP]", "  quit"])
