"""Login at the console: the lines before an operator may give commands.

States, and what a line is in each:
- ``PASSWORD``: the console's own password, without a users file.
- ``USER``: with a users file: ``login NAME``, or ``token TOKEN``.
- ``SECRET``: the password of that user; an empty line returns to ``USER``.
- ``CHECKING``: none; lines wait for the check of the password.
- ``ENTERED``: none here; all lines are commands.

A console without a password, without a users file, enters at once. So does one whose peer has a client certificate of a
user, or rights without a user.
"""

from __future__ import annotations

import enum
from collections.abc import Callable

from twisted.internet.defer import CancelledError, Deferred
from twisted.python.failure import Failure

from broker.access.login_gate import LoginGate
from broker.access.principal import Access, Principal
from broker.core.errors import Reason, Refusal
from broker.net.interfaces.peer import Peer

MAX_HELD = 1_000
"""Lines that wait for the check of a password."""

LISTENER = "console"
"""Title of the listener in rights and in the audit log."""


class LoginState(enum.Enum):
    """State of a login; see the module."""

    PASSWORD = "password"
    USER = "user"
    SECRET = "secret"
    CHECKING = "checking"
    ENTERED = "entered"


class ConsoleLogin:
    """The login of one operator. ``password`` is the console's own, or None.

    ``say`` prints a line, ``refuse`` a refusal. ``entered`` is called once with the user.
    """

    def __init__(
        self,
        access: Access,
        password: str | None,
        gate: LoginGate,
        peer: Peer,
        say: Callable[[str], None],
        refuse: Callable[[Refusal], None],
        entered: Callable[[Principal], None],
    ) -> None:
        self._access = access
        self._password = password
        self._gate = gate
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
        if self._access.users:
            nobody = Principal(address=self._peer.address)
            known = self._access.by_certificate(self._peer.certificate, self._peer.address) or nobody
            if self._access.grants(known, LISTENER).administers:
                self._enter(known)
            else:
                self._say("login NAME, or token TOKEN:")
        elif self._password is None:
            self._enter(Principal(address=self._peer.address))
        else:
            self.state = LoginState.PASSWORD
            self._say("password:")

    def take(self, line: str) -> None:
        """Take a line before the login is complete."""
        if self.state is LoginState.CHECKING:
            if len(self._held) < MAX_HELD:
                self._held.append(line)
            else:
                self._refuse(Refusal(Reason.LIMIT, f"more than {MAX_HELD} lines before the answer to a password"))
            return
        try:
            if self.state is LoginState.PASSWORD:
                assert self._password is not None
                self._gate.check(self._peer.address, line, self._password)
                self._enter(Principal(address=self._peer.address))
            elif self.state is LoginState.SECRET:
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
        if not password:
            self.state = LoginState.USER
            self._say("login NAME, or token TOKEN:")
            return
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
