"""Input of the console: lines among telnet commands, the login, and lines that wait for the end of a command.

States of the login, and the meaning of a line in each:
- ``USER``: ``login NAME``, or ``token TOKEN``.
- ``SECRET``: the password of that user, with the blanks at its ends.
- ``CHECKING``: none; lines wait for the check of the password.
- ``ENTERED``: none here; all lines are commands.

Without a users file, a peer enters at once. So does one that has a client certificate of a user, or rights without a
user.

A view is read, and a long answer encoded, in turns of the reactor: a table of 100,000 rows delays no peer. Lines that
the operator types meanwhile, or while an answer is awaited, are held, and carried out in order afterwards.
"""

from __future__ import annotations

import enum
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import attrs
from twisted.internet.defer import CancelledError, Deferred
from twisted.python.failure import Failure

from broker.access.principal import Access, Principal
from broker.access.rights import RegistryReading
from broker.core.errors import Malformed, Reason, Refusal
from broker.net.first_bytes import Opening, is_text, opening
from broker.net.peer_interfaces import Peer
from broker.wires.tables import MAX_ROWS, AnyView, Row, Scan, Selection

MAX_HELD = 1_000
"""Lines that wait for the check of a password."""

LISTENER = "console"
"""Title of the listener in rights and in the audit log."""


class LoginState(enum.Enum):
    """State of a login; see the module."""

    USER = "user"
    SECRET = "secret"
    CHECKING = "checking"
    ENTERED = "entered"


class ConsoleLogin:
    """The login of one operator.

    ``say`` prints a line, ``refuse`` a refusal. ``entered`` is called once with the user.
    """

    def __init__(
        self,
        access: Access,
        peer: Peer,
        say: Callable[[str], None],
        refuse: Callable[[Refusal], None],
        entered: Callable[[Principal], None],
    ) -> None:
        self._access = access
        self._peer = peer
        self._say = say
        self._refuse = refuse
        self._entered = entered
        self._user = ""
        self._checking: Deferred[Principal] | None = None
        self._held: list[str] = []
        self.state = LoginState.USER

    def begin(self) -> None:
        """Ask for credentials, or enter without."""
        nobody = Principal(address=self._peer.address)
        known = self._access.by_certificate(self._peer.certificate, self._peer.address) or nobody
        if self._access.grants(known, LISTENER).administers:
            self._enter(known)
        else:
            self._say("login NAME, or token TOKEN:")

    def take(self, line: str) -> None:
        """Take a line before the login is complete."""
        if self.state is LoginState.CHECKING:
            if len(self._held) < MAX_HELD:
                self._held.append(line.strip())
            else:
                self._refuse(Refusal(Reason.LIMIT, f"more than {MAX_HELD} lines before the answer to a password"))
            return
        try:
            if self.state is LoginState.SECRET:
                self._check(line)
            else:
                self._name(line)
        except Refusal as refusal:
            self._refuse(refusal)

    def lost(self) -> None:
        """Discard a check in progress: the operator has gone."""
        checking, self._checking = self._checking, None
        if checking is not None:
            checking.addErrback(lambda failure: failure.trap(Refusal, CancelledError))
            checking.cancel()
        # They refer to the session: without the cycle, no garbage collection is needed.
        self._say = self._refuse = self._entered = _ignore

    @property
    def pending(self) -> bool:
        """True while a password is checked."""
        return self._checking is not None

    def _name(self, line: str) -> None:
        word, _, rest = line.strip().partition(" ")
        if word == "login" and rest.strip():
            self._user = rest.strip()
            self.state = LoginState.SECRET
            self._say("password:")
        elif word == "token" and rest.strip():
            self._admit(self._access.by_token(rest.strip(), self._peer.address))
        else:
            raise Refusal(Reason.SYNTAX, "type login NAME, or token TOKEN")

    def _check(self, password: str) -> None:
        self.state = LoginState.CHECKING
        self._checking = checking = self._access.by_password(self._user, password, self._peer.address)

        def decided(result: Principal | Failure) -> None:
            if self._checking is not checking:
                return  # the operator has gone
            self._checking = None
            self.state = LoginState.USER
            try:
                if isinstance(result, Failure):
                    result.trap(Refusal)
                    result.raiseException()
                else:
                    self._admit(result)
            except Refusal as refusal:
                refusal.__traceback__ = None  # it has this frame, in a cycle
                self._refuse(refusal)

        checking.addBoth(decided)

    def _admit(self, principal: Principal) -> None:
        if not self._access.grants(principal, LISTENER).administers:
            raise Refusal(Reason.WRONG_CREDENTIALS, f"{principal.name} has no right to use the console")
        self._enter(principal)

    def _enter(self, principal: Principal) -> None:
        self.state = LoginState.ENTERED
        self._entered(principal)

    def held(self) -> list[str]:
        """Return the lines that waited, each once."""
        held, self._held = self._held, []
        return held


def _ignore(_: object) -> None:
    """Do nothing with what comes after the end."""


MAX_HELD_COMMANDS = 100
"""Lines accepted while a command runs: a script that sends more waits for the answers."""

Later = Callable[[Callable[[], None]], object]
"""Calls a function in the next turn of the reactor."""


def at_once(step: Callable[[], None]) -> None:
    """Call the function now, where there is no reactor."""
    step()


class ConsoleReading:
    """The reading of one view after the other. ``show`` prints the rows, ``resume`` carries out a held line."""

    def __init__(self, later: Later, show: Callable[[Sequence[Row]], None], resume: Callable[[str], None]) -> None:
        self._later = later
        self._show = show
        self._resume = resume
        self._pieces: Iterator[Sequence[Row]] | None = None
        self._answer: Deferred[Any] | None = None
        self._encoding: Iterator[bytes] | None = None
        self._rows: list[Row] = []
        self._held: deque[str] = deque()
        self.done: Callable[[], object] = lambda: None
        """Called once nothing is read or held any more."""

    @property
    def busy(self) -> bool:
        """True while a view is read, or an answer is awaited or encoded: lines are to be held."""
        return any(each is not None for each in (self._pieces, self._answer, self._encoding))

    def hold(self, line: str) -> None:
        """Hold a line. Raises `Refusal` LIMIT if there are too many."""
        if len(self._held) >= MAX_HELD_COMMANDS:
            raise Refusal(Reason.LIMIT, f"a command is being carried out, and {MAX_HELD_COMMANDS} wait already")
        self._held.append(line)

    def begin(self, view: AnyView, pattern: str, reading: RegistryReading) -> None:
        """Read the first rows that a pattern selects, of those that ``reading`` shows."""
        self._pieces, self._rows = iter(Scan(view, Selection(pattern), reading)), []
        self._step()

    def wait(self, answer: Deferred[Any], show: Callable[[Any], object], fail: Callable[[Failure], object]) -> None:
        """Show an answer when it is there. If it fails, ``fail`` is called."""
        self._answer = answer

        def come(result: Any) -> None:
            failed = isinstance(result, Failure)
            if self._answer is answer:
                self._answer = None
                (fail if failed else show)(result)
                self._go_on()
            elif failed:
                result.trap(Refusal)  # the operator has gone; a defect is logged all the same

        answer.addBoth(come)

    def encode(self, pieces: Iterator[bytes], show: Callable[[list[bytes]], object]) -> None:
        """Make the pieces of an answer, one in each turn, and show all of them."""
        self._encoding, made = pieces, []

        def step() -> None:
            if self._encoding is not pieces:
                return  # the operator has gone
            piece = next(pieces, None)
            if piece is not None:
                made.append(piece)
                self._later(step)
                return
            self._encoding = None
            show(made)
            self._go_on()

        step()

    def end(self) -> None:
        """Stop: the operator has gone."""
        self._pieces = self._answer = self._encoding = None
        self._held.clear()
        # They refer to the session: without the cycle, no garbage collection is needed.
        self._show = self._resume = _ignore
        self.done = lambda: None

    def _step(self) -> None:
        if self._pieces is None:
            return
        some = next(self._pieces, None)
        if some is not None:
            self._rows += some
            if len(self._rows) < MAX_ROWS:
                self._later(self._step)
                return
        self._pieces = None
        self._show(self._rows)
        self._go_on()

    def _go_on(self) -> None:
        """Carry out the held lines."""
        while self._held and not self.busy:
            self._resume(self._held.popleft())
        if not self.busy:
            self.done()


# The input of an operator's connection: lines of text, with telnet commands (RFC 854) among them.

MAX_LINE = 65_536
"""Bytes of one line: more than a person types."""

_IAC, _SB, _SE, _WILL, _WONT, _DO, _DONT = 255, 250, 240, 251, 252, 253, 254


@attrs.frozen(repr=False)
class Line:
    """A line of input. ``secret``: it may be a password or a token, which a trace must not show."""

    text: str
    secret: bool = attrs.field(default=False, eq=False)

    def __repr__(self) -> str:
        """Return the line as a trace shows it."""
        if self.secret:
            return "Line (hidden)"
        return "Line " + "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in self.text)


@attrs.frozen
class Negotiation:
    """An option that a telnet client requested; ``answer`` refuses it."""

    answer: bytes


class ConsoleReader:
    """A decoder from bytes to lines, which removes telnet commands.

    Every option is refused (RFC 854), so that a telnet client stays in line mode. After an interrupt, a telnet client
    waits for that refusal and displays nothing before it.

    A connection that begins with an HTTP request, or contains control characters, ends with a `Malformed`: a web page
    can make a browser on the operator's machine send such bytes, with commands among them. Nothing is yielded before
    the first line is complete and no HTTP request, and nothing of a read that contains control characters.

    Lines of blanks are left out, and blanks at the ends of others. ``secret`` returns True while lines may be
    credentials, of which all blanks count.
    """

    def __init__(self, secret: Callable[[], bool] = lambda: False) -> None:
        self._secret = secret
        self._line = bytearray()
        self._telnet = bytearray()
        self._in_option = False
        self._returned = False
        """The last byte was a CR: a NUL after it is part of the line's end (RFC 854)."""
        self._opened = False
        """The first line was text, and no HTTP request."""
        self._ended = False

    def feed(self, data: bytes) -> Iterator[Line | Negotiation | Malformed]:
        """Yield the lines that ``data`` completes, and requested options; nothing more after a `Malformed`."""
        if self._ended:
            return
        plain, answer = self._without_telnet(data)
        plain = self._without_padding(plain)
        if not is_text(plain):
            yield self._end(Reason.UNEXPECTED, "control characters, as arrow keys send them: closing")
            return
        if not self._opened:
            plain = bytes(self._line) + plain
            self._line.clear()
            verdict = opening(plain)
            if verdict in (Opening.HTTP, Opening.PROXY, Opening.BINARY):
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
                text = self._line.decode("utf-8", "replace").strip("\r\n")
                self._line.clear()
                if bare := text.strip(" \t"):
                    secret = self._secret()
                    yield Line(text if secret else bare, secret)

    @property
    def pending(self) -> int:
        """Buffered bytes of an incomplete line."""
        return len(self._line)

    def _end(self, reason: Reason, text: str) -> Malformed:
        self._ended = True
        self._line.clear()
        return Malformed(reason, text)

    def _without_padding(self, plain: bytes) -> bytes:
        """Remove the NUL by which a telnet client ends a line after CR."""
        if self._returned and plain.startswith(b"\0"):
            plain = plain[1:]
            self._returned = False
        if plain:
            self._returned = plain.endswith(b"\r")
        return plain.replace(b"\r\0", b"\r")

    def _without_telnet(self, data: bytes) -> tuple[bytes, bytes]:
        """Return ``data`` without telnet commands, and the answers to them. A command may span several reads."""
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
