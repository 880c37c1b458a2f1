"""SASL (RFC 4422) for the control flow of MTL: who a client is.

Rules:
- An exchange is begun with a mechanism that is offered on the connection, and goes on step by step: a response in, an
  outcome out. `LoginDone` and `LoginFailed` end it; so does a response that is out of order, or too long.
- In all mechanisms the client begins. Who sends no initial response (None) gets an empty challenge; b"" is a response.
- SCRAM-SHA-256 (RFC 5802, RFC 7677): the broker's last message, which proves that it knows the user too, goes out as
  one more challenge, to be answered by an empty response. There is no channel binding: ZeroMQ has no channel to bind.
  An authorisation id is not taken here.
- PLAIN (RFC 4616) is for connections that nobody can listen to. Its check is slow, so it happens in a thread.
- EXTERNAL (RFC 4422, appendix A): the user is the one that the CURVE key of the connection stands for.
- ANONYMOUS (RFC 4505): the trace is for the log.
- In PLAIN and EXTERNAL an authorisation id may be given: it must be the user's own name.
- A user who is not known is answered as one whose password is wrong: by the same steps with the same work, and each
  time with the same salt and number of iterations, which might be those of a user.
- A user who is taken away, or gets another password, in the middle of an exchange does not come in by it.
"""

from __future__ import annotations

import enum
import hmac
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import attrs
from scramp import ScramException, ScramMechanism  # type: ignore[import-untyped]
from twisted.internet.defer import Deferred, fail, maybeDeferred, succeed
from twisted.logger import Logger
from twisted.python.failure import Failure

from broker.core.errors import Reason, Refusal
from broker.wires.mtl.sessions.password_verifiers import ITERATIONS, KEY, MAX_PASSWORD, SALT, PasswordVerifier, is_user

SCRAM = "SCRAM-SHA-256"
PLAIN = "PLAIN"
EXTERNAL = "EXTERNAL"
ANONYMOUS = "ANONYMOUS"

EXCHANGE_SECONDS = 30.0
"""How long an exchange may take from its first response to its last: a program needs milliseconds for it, a person who
is asked for a password in the middle longer. Whoever keeps the exchange forgets it then."""

MAX_RESPONSE = 1_024
"""Bytes of a response: two names and a password (PLAIN), or a trace, fit."""

MAX_SCRAM = 512
"""Bytes of a message of SCRAM: real ones have under 200. The first one and its answer, which may repeat most of it, are
kept until the next one comes: some 2 KiB then, 3 KiB at most."""

MAX_TRACE = 255
"""Characters of ANONYMOUS's trace (RFC 4505)."""

CHECKS = 2
"""Passwords that are checked at once: more would only take the processors from the rest of the broker."""

MAX_WAITING = 100
"""Checks that may wait for that: they take some 1.5 s, and clients do not wait much longer for an answer."""


class FailureReason(enum.Enum):
    """Why an exchange failed. The value names the counter; it is stable."""

    MALFORMED = "malformed"
    """A response that is none of the mechanism, or comes out of order."""
    UNSUPPORTED = "unsupported"
    """Something of the mechanism that is not there: a channel binding, an extension that must be understood."""
    CREDENTIALS = "credentials"
    """An unknown user, a wrong password, or somebody who wants to be somebody else."""


@attrs.frozen
class LoginChallenge:
    """The client has to answer this.

    ``verdict`` is what it tells the client of its credentials: None for nothing, True for right. `Delays` uses it.
    """

    data: bytes = attrs.field(repr=False)
    verdict: bool | None = None


@attrs.frozen
class LoginDone:
    """The client is that user, "" for anybody. ``trace`` is what it says of itself, in characters that print."""

    user: str
    trace: str = ""
    verdict: bool | None = True


@attrs.frozen
class LoginFailed:
    """The client did not prove who it is. ``text`` is for people: it says nothing of whether there is such a user."""

    why: FailureReason
    text: str
    verdict: bool | None = False


LoginOutcome = LoginChallenge | LoginDone | LoginFailed

WRONG = LoginFailed(FailureReason.CREDENTIALS, "the user or the password is wrong")
"""To whoever does not come in by a name and a password, whatever was wrong with them."""

NOT_YOURS = LoginFailed(FailureReason.CREDENTIALS, "the authorisation id is not the user's own name")


class SaslExchange(Protocol):
    """One attempt to authenticate."""

    mechanism: str
    user: str
    """Who the client says it is, as far as that is known and a possible name; else ""."""

    def step(self, response: bytes | None) -> Deferred[LoginOutcome]:
        """Take the next response. None is for no response, as there may be none at first; later it is an empty one.

        Fails with `Refusal` LIMIT where too many passwords are being checked; then the exchange is over too. Cancel it
        when nobody wants the outcome any more: the place of a check that has not begun becomes free. A step that comes
        before the last one's outcome is out of order.
        """


class Users(Protocol):
    """Whose passwords are known."""

    def find(self, name: str) -> PasswordVerifier | None:
        """What is kept of that user's password, None if there is no such user."""

    @property
    def shapes(self) -> Sequence[tuple[int, int]]:
        """For each user the iterations and the length of the salt, in any fixed order."""


class Mechanisms:
    """What is offered, and the exchanges.

    Without ``users`` there are no passwords. ``in_thread`` runs a function with arguments in a thread and returns a
    Deferred of its result. ``secret`` makes the salts of users that there are not; it should be the same after a
    restart, or those users would be known by their salts. ``key_user`` gives the user that a CURVE key stands for.
    ``anonymous`` lets in everybody, and may be changed at any time.
    """

    def __init__(
        self,
        users: Users | None,
        in_thread: Callable[..., Deferred[Any]],
        secret: bytes,
        key_user: Callable[[str], str | None] = lambda key: None,
        anonymous: bool = False,
    ) -> None:
        self._known = None if users is None else _VerifierLookup(users, secret)
        self._checks = PasswordChecks(in_thread)
        self._key_user = key_user
        self.anonymous = anonymous

    def names(self, secure: bool, key: str) -> tuple[str, ...]:
        """What is offered on a connection, the best for most first. ``secure``: nobody else can read it.

        ``key`` is its CURVE key, "" without one.
        """
        names = []
        if self._known is not None:
            names.append(SCRAM)
        if key and self._key_user(key) is not None:
            names.append(EXTERNAL)
        if self._known is not None and secure:
            names.append(PLAIN)
        if self.anonymous:
            names.append(ANONYMOUS)
        return tuple(names)

    def begin(self, mechanism: str, secure: bool, key: str) -> SaslExchange | None:
        """Begin an exchange. None if the mechanism, a name in capitals, is not offered on such a connection."""
        if mechanism not in self.names(secure, key):
            return None
        if mechanism == EXTERNAL:
            return _ExternalExchange(self._key_user, key)
        if self._known is None or mechanism == ANONYMOUS:
            return _AnonymousExchange()
        return _ScramExchange(self._known) if mechanism == SCRAM else _PlainExchange(self._known, self._checks)


# users, known or not


class _VerifierLookup:
    """What there is to check a password against, for every name."""

    def __init__(self, users: Users, secret: bytes) -> None:
        self._users = users
        self._secret = secret

    def look_up(self, name: str) -> tuple[PasswordVerifier, bool]:
        """What is kept of the password, and whether it is that of a user."""
        never = self._never(name)
        stored = self._users.find(name)
        return (never, False) if stored is None else (stored, True)

    def stands(self, name: str, stored: PasswordVerifier) -> bool:
        """Whether this is still the password of that user."""
        return self._users.find(name) == stored

    def _never(self, name: str) -> PasswordVerifier:
        """What might be kept of a password of that user. No password fits it."""
        iterations, size = ITERATIONS, SALT
        if shapes := self._users.shapes:
            # Like one of the users, and not soon like another one when users come and go.
            fraction = int.from_bytes(self._digest("shape", name)[:4])
            iterations, size = shapes[fraction * len(shapes) >> 32]
        keys = self._digest("keys", name)
        return PasswordVerifier(iterations, self._digest("salt", name)[:size], keys[:KEY], keys[KEY:])

    def _digest(self, what: str, name: str) -> bytes:
        return hmac.digest(self._secret, f"{what} {name}".encode(), "sha512")


@attrs.define(eq=False)
class _WaitingCheck:
    """A check that has not begun."""

    function: Callable[..., Any]
    arguments: tuple[Any, ...]
    done: Deferred[Any]


class PasswordChecks:
    """Runs functions in threads, `CHECKS` at once and the others in turn, `MAX_WAITING` of them."""

    def __init__(self, in_thread: Callable[..., Deferred[Any]]) -> None:
        self._in_thread = in_thread
        self._running = 0
        self._waiting: deque[_WaitingCheck] = deque()

    def run(self, function: Callable[..., Any], *arguments: Any) -> Deferred[Any]:
        """Returns a Deferred of the result, which may be cancelled. Raises `Refusal` if too many are waiting."""
        if self._running >= CHECKS and len(self._waiting) >= MAX_WAITING:
            raise Refusal(Reason.LIMIT, "too many passwords are being checked")

        def cancelled(_: Deferred[Any]) -> None:
            if check in self._waiting:
                self._waiting.remove(check)

        check = _WaitingCheck(function, arguments, Deferred(cancelled))
        self._waiting.append(check)
        self._next()
        return check.done

    def _next(self) -> None:
        while self._waiting and self._running < CHECKS:
            self._begin(self._waiting.popleft())

    def _begin(self, check: _WaitingCheck) -> None:
        self._running += 1

        def ended(result: Any) -> None:
            # A thread cannot be stopped: also for a check that was cancelled, this is when it makes room.
            self._running -= 1
            self._next()
            if check.done.called:
                return
            if isinstance(result, Failure):
                check.done.errback(result)
            else:
                check.done.callback(result)

        maybeDeferred(self._in_thread, check.function, *check.arguments).addBoth(ended)


# the mechanisms

_Step = Callable[[str], "LoginOutcome | Deferred[LoginOutcome]"]


class _ExchangeSteps:
    """An exchange: ``_next`` takes the next response, None where none is expected."""

    mechanism: str
    most = MAX_RESPONSE

    def __init__(self, first: _Step) -> None:
        self.user = ""
        self._next: _Step | None = first
        self._may_be_silent = True

    def step(self, response: bytes | None) -> Deferred[LoginOutcome]:
        """See `SaslExchange`."""
        take, self._next = self._next, None
        if take is None:
            return succeed(LoginFailed(FailureReason.MALFORMED, "a response out of order"))
        silent, self._may_be_silent = self._may_be_silent and response is None, False
        if silent:
            self._next = take
            return succeed(LoginChallenge(b""))
        response = response or b""
        if len(response) > self.most:
            return succeed(LoginFailed(FailureReason.MALFORMED, f"the response has more than {self.most} bytes"))
        try:
            outcome = take(response.decode())
        except UnicodeDecodeError:
            return succeed(LoginFailed(FailureReason.MALFORMED, "the response is not UTF-8"))
        except Exception:
            return fail()
        return outcome if isinstance(outcome, Deferred) else succeed(outcome)


_SERVER = ScramMechanism(SCRAM)

# What the standard calls it (RFC 5802, section 7).

_WRONG = "invalid-proof"

_UNSUPPORTED = ("extensions-not-supported", "channel-binding-not-supported", "unsupported-channel-binding-type")


class _ScramExchange(_ExchangeSteps):
    """SCRAM-SHA-256: client-first, server-first, client-final, server-final, and an empty response."""

    mechanism = SCRAM
    most = MAX_SCRAM

    def __init__(self, known: _VerifierLookup) -> None:
        super().__init__(self._first)
        self._known = known
        self._server = _SERVER.make_server(self._look_up)
        self._stored: PasswordVerifier | None = None
        """What is kept of the password of the user, None if there is no such user."""

    def _look_up(self, name: str) -> tuple[bytes, bytes, bytes, int]:
        stored, known = self._known.look_up(name)
        self.user = name if is_user(name) else ""
        self._stored = stored if known else None
        return stored.salt, stored.stored_key, stored.server_key, stored.iterations

    def _first(self, response: str) -> LoginOutcome:
        try:
            self._server.set_client_first(response)
            challenge = self._server.get_server_first()
        except ScramException as error:
            return _scram_failed(error)
        self._next = self._final
        return LoginChallenge(challenge.encode())

    def _final(self, response: str) -> LoginOutcome:
        try:
            self._server.set_client_final(response)
            challenge = self._server.get_server_final()
        except ScramException as error:
            return _scram_failed(error)
        if not self._stands():
            return WRONG
        self._next = self._end
        return LoginChallenge(challenge.encode(), verdict=True)

    def _end(self, response: str) -> LoginOutcome:
        if response:
            return LoginFailed(FailureReason.MALFORMED, "the last challenge is answered by an empty response")
        return LoginDone(self.user, verdict=None) if self._stands() else WRONG

    def _stands(self) -> bool:
        return self._stored is not None and self._known.stands(self.user, self._stored)


def _scram_failed(error: ScramException) -> LoginFailed:
    reason = "" if error.server_error is None else error.server_error.value
    if reason == _WRONG:
        return WRONG
    return LoginFailed(
        FailureReason.UNSUPPORTED if reason in _UNSUPPORTED else FailureReason.MALFORMED, str(error.args[0])
    )


class _PlainExchange(_ExchangeSteps):
    """PLAIN: the authorisation id, the user and the password, with zero bytes between them."""

    mechanism = PLAIN

    def __init__(self, known: _VerifierLookup, checks: PasswordChecks) -> None:
        super().__init__(self._first)
        self._known = known
        self._checks = checks

    def _first(self, response: str) -> LoginOutcome | Deferred[LoginOutcome]:
        parts = response.split("\0")
        if len(parts) != 3 or not all(parts[1:]):
            return LoginFailed(
                FailureReason.MALFORMED, "the response is not an authorisation id, a user and a password"
            )
        wanted, name, password = parts
        self.user = name if is_user(name) else ""
        if wanted not in ("", name):
            return NOT_YOURS
        if len(password.encode()) > MAX_PASSWORD:
            return WRONG
        stored, known = self._known.look_up(name)

        def checked(right: bool) -> LoginOutcome:
            return LoginDone(name) if right and known and self._known.stands(name, stored) else WRONG

        return self._checks.run(stored.check, password).addCallback(checked)


class _ExternalExchange(_ExchangeSteps):
    """EXTERNAL: the key of the connection has proved it all."""

    mechanism = EXTERNAL

    def __init__(self, key_user: Callable[[str], str | None], key: str) -> None:
        super().__init__(self._first)
        self._key_user = key_user
        self._key = key

    def _first(self, response: str) -> LoginOutcome:
        user = self._key_user(self._key)
        if user is None:
            return LoginFailed(FailureReason.CREDENTIALS, "the key of the connection stands for no user")
        self.user = user
        return LoginDone(user) if response in ("", user) else NOT_YOURS


class _AnonymousExchange(_ExchangeSteps):
    """ANONYMOUS: anybody."""

    mechanism = ANONYMOUS

    log = Logger()

    def __init__(self) -> None:
        super().__init__(self._first)

    def _first(self, response: str) -> LoginOutcome:
        if len(response) > MAX_TRACE:
            return LoginFailed(FailureReason.MALFORMED, f"the trace has more than {MAX_TRACE} characters")
        printable = "".join(character if character.isprintable() else "?" for character in response)
        self.log.debug("somebody came in as anonymous, who calls itself {trace!r}", trace=printable)
        return LoginDone("", printable)
