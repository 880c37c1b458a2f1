"""The operators' console: telnet-style lines in, pretty-printed JSON out.

Rules:
- A line that begins with ``{`` is one message of the Elko Broker protocol; ``to`` may be left out.
- Any other line is a command: ``help``, ``counters``, ``quit``, a view such as ``mc0 sessions``, or an op with
  parameters: ``find service=bank wait=5``.
- Whoever reaches the console is an administrator; where it has a password, the first line must be that.
- Notices of a watch come as they happen, between the answers.
"""

from __future__ import annotations

import hmac
import re
import shlex
from collections.abc import Callable, Iterator, Mapping

import attrs
import msgspec

from broker.core.errors import Malformed, Reason, Refusal
from broker.session.auth import Door, Policy
from broker.session.elko_broker import BrokerSession, Wiring
from broker.session.peer import Peer
from broker.wire.elko import lenient
from broker.wire.elko.broker import ADMIN, COMMON, VOCABULARY, Auth, LoadReport, WillServe, WontServe
from broker.wire.elko.vocabulary import Message

MAX_LINE = 65_536
"""Bytes of one line: more than anybody types."""

DOOR = Door(Policy(diagnostics=False))
"""The console says itself what was wrong."""

ARGUMENT = {"servicedesc": "service", "loaddesc": "service", "find": "service", "launch": "name", "ping": "tag"}
"""The parameter that a word without ``=`` stands for."""

PROVIDING = (WillServe, WontServe, LoadReport)
"""What only a provider says: the console becomes one when it first does."""

Views = Mapping[str, Callable[[str], object]]
"""What can be looked at besides, by the words to type: each gives JSON for the names that match a shell pattern."""

WATCHES = {"services": True, "load": True}
"""What the command ``watch`` alone means."""

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
    """

    def __init__(self) -> None:
        self._line = bytearray()
        self._telnet = bytearray()
        self._in_option = False

    def feed(self, data: bytes) -> Iterator[Line | Negotiation | Malformed]:
        """The lines that ``data`` completes, and what the telnet asked for."""
        plain, answer = self._without_telnet(data)
        if answer:
            yield Negotiation(answer)
        for line in plain.splitlines(keepends=True):
            self._line += line
            if len(self._line) > MAX_LINE:
                self._line.clear()
                yield Malformed(Reason.TOO_LARGE, f"a line has more than {MAX_LINE} bytes")
                return
            if line.endswith((b"\n", b"\r")):
                text = self._line.decode("utf-8", "replace").strip("\r\n\0 \t")
                self._line.clear()
                if text:
                    yield Line(text)

    @property
    def pending(self) -> int:
        """Bytes held of a line that is not complete."""
        return len(self._line)

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
    """One operator's conversation with the console. ``counts`` gives the broker's counters, by name."""

    def __init__(
        self, wiring: Wiring, counts: Callable[[], Mapping[str, int]], views: Views, password: str | None, peer: Peer
    ) -> None:
        self._peer = peer
        self._counts = counts
        self._views = views
        self._password = password
        self._session = BrokerSession(wiring, DOOR, _Printer(peer))
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
            self._message(line.text)
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
        return self._session.input_ended()

    def lost(self) -> None:
        """The operator is gone."""
        self._session.lost()

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
        self._session.receive(Auth("admin", label="console"))
        self._print('elkobroker console. Type help, or a message such as {op:"servicedesc"}')

    def _message(self, text: str) -> None:
        try:
            messages = list(lenient.objects(text))
            if not messages or not lenient.Balance().feed(text):
                raise Malformed(Reason.SYNTAX, "the line is not one complete message {...}")
            for members in messages:
                self._send(members)
        except Malformed as malformed:
            self.refuse(malformed)

    def _command(self, text: str) -> None:
        try:
            word, *arguments = shlex.split(text)
        except ValueError as error:
            self.refuse(Refusal(Reason.SYNTAX, f"not a command: {error}"))
            return
        view = self._views.get(" ".join((word, *arguments[:1])))
        if word == "help":
            self._print(_help(arguments[0] if arguments else None, self._views))
        elif view is not None:
            self._print(_pretty(msgspec.json.encode(view(*(arguments[1:2] or "*")))))
        elif word in ("quit", "exit"):
            self._peer.close()
        elif word == "counters":
            counts = [f"{name} {count}" for name, count in sorted(self._counts().items())]
            self._print("\n".join(counts or ["nothing was counted yet"]))
        elif word not in _MESSAGES:
            self.refuse(Refusal(Reason.UNKNOWN_OP, f"there is no command {word[:40]!r}; try help"))
        elif word == "watch" and not arguments:
            self._send({"op": word, **WATCHES})
        else:
            try:
                self._send({"op": word, **dict(_parameter(word, argument) for argument in arguments)})
            except Malformed as malformed:
                self.refuse(malformed)

    def _send(self, members: dict[str, object]) -> None:
        op = members.get("op")
        members.setdefault("to", "admin" if not isinstance(op, str) or op in _TO_ADMIN else "client")
        message = VOCABULARY.message(members)
        if isinstance(message, PROVIDING) and message.to != "admin" and not self._session.is_client:
            self._session.receive(Auth("client", label="console"))
        self._session.receive(message)

    def _print(self, text: str) -> None:
        self._peer.write(text.replace("\n", "\r\n").encode() + b"\r\n")


class _Printer:
    """The peer that the inner session speaks to: it prints what that sends."""

    def __init__(self, peer: Peer) -> None:
        self._peer = peer
        self.address = f"console {peer.address}"
        self.local = True
        self.close = peer.close
        self.debug = peer.debug

    def write(self, data: bytes) -> None:
        """Print one message."""
        self._peer.write(_pretty(data.rstrip()).replace("\n", "\r\n").encode() + b"\r\n")

    def refused(self, refusal: Refusal) -> bool:
        """Print what was refused."""
        self._peer.write(f"error: {refusal.text}\r\n".encode())
        return self._peer.refused(refusal)

    def authenticated(self) -> None:
        """Nothing is waiting for that."""


_MESSAGES: dict[str, type[Message]] = {str(m.__struct_config__.tag): m for m in VOCABULARY.messages}
_STRINGS = {
    op: {f.encode_name for f in msgspec.structs.fields(m) if f.type in (str, str | None)} for op, m in _MESSAGES.items()
}
_TO_ADMIN = {str(m.__struct_config__.tag) for m in (*COMMON, *ADMIN)}


def _parameter(op: str, argument: str) -> tuple[str, object]:
    """A word of a command as a parameter: ``name=value``, the value a string, or JSON where another type is wanted."""
    name, equals, value = argument.partition("=")
    if not equals:
        if op not in ARGUMENT:
            raise Malformed(Reason.PARAMETER, f"{op}: {argument[:40]!r} is not NAME=VALUE")
        return ARGUMENT[op], argument
    if name in _STRINGS[op]:
        return name, value
    try:
        return name, msgspec.json.decode(value)
    except msgspec.DecodeError:
        return name, value


def _pretty(data: bytes) -> str:
    """JSON for a terminal."""
    text = msgspec.json.format(data, indent=2).decode()
    return _UNPRINTABLE.sub(lambda m: f"\\u{ord(m[0]):04x}", text)


def _help(op: str | None, views: Views) -> str:
    """What can be typed; or one op with its parameters."""
    if op is not None and op in _MESSAGES:
        return f"{_usage(op)}\n  {' '.join((_MESSAGES[op].__doc__ or '').split())}"
    lines = ['Commands, or the same as JSON: {op:"find", service:"bank"}']
    lines += [f"  {_usage(op)}" for op in sorted(_MESSAGES)]
    lines += [f"  {name} [PATTERN]" for name in sorted(views)]
    return "\n".join([*lines, "  counters", "  help [OP]", "  quit"])


def _usage(op: str) -> str:
    fields = [f for f in msgspec.structs.fields(_MESSAGES[op]) if f.name != "to"]
    shown = [f"{f.encode_name}=..." if f.required else f"[{f.encode_name}=...]" for f in fields]
    return " ".join((op, *shown))
