"""SASL (RFC 4422) for the control flow: mechanisms that authenticate a client as a user.

An exchange takes responses and returns outcomes, step by step. Its states are the methods that take the next response:

    mechanism      states and the outcome of each; every other response is `LoginFailed`, and ends the exchange
    SCRAM-SHA-256  first: challenge; final: challenge with the proof of the broker; end (empty response): done
    PLAIN          first: done
    EXTERNAL       first: done
    ANONYMOUS      first: done
    all            before the first response: an empty challenge, if the client sends no initial response

Rules:
- `LoginDone` and `LoginFailed` end an exchange. A response that is out of order, or too long, is `LoginFailed`.
- In all mechanisms the client begins. No initial response (None) is answered by an empty challenge; b"" is a response.
- SCRAM-SHA-256 (RFC 5802, RFC 7677): the last message of the broker, which proves that it knows the user too, is one
  more challenge, since 201 has no member for it. There is no channel binding: ZeroMQ has no channel to bind. An
  authorization identity is refused.
- PLAIN (RFC 4616) is offered on secure connections. Its check is slow, so it runs in a thread.
- SCRAM-SHA-256 and PLAIN pass the gate of all listeners (`broker.access.logins`). While guesses are refused, they
  fail with `Refusal` TOO_MANY_GUESSES, at the step that would be compared.
- EXTERNAL (RFC 4422, appendix A): the CURVE key of the connection authenticates the user.
- ANONYMOUS (RFC 4505): the trace is logged only.
- PLAIN and EXTERNAL accept an authorization identity, if it is the name of the user.
- An unknown user is answered like a known one with a wrong password: by the same steps and the same work, and each time
  with the same salt and number of iterations, which are those of a plausible user.
- A user who is removed, or gets another password, during an exchange is not authenticated by it.
"""

from __future__ import annotations

import enum
import hmac
from collections.abc import Callable, Sequence
from functools import partial
from typing import Protocol

import attrs
from scramp import ScramException, ScramMechanism  # type: ignore[import-untyped]
from twisted.internet.defer import Deferred, fail, succeed
from twisted.logger import Logger

from broker.access.logins import Logins
from broker.access.passwords import ITERATIONS, KEY, SALT, PasswordVerifier, is_user
from broker.access.principal import Access

SCRAM = "SCRAM-SHA-256"
PLAIN = "PLAIN"
EXTERNAL = "EXTERNAL"
ANONYMOUS = "ANONYMOUS"

EXCHANGE_SECONDS = 30.0
"""Seconds from the first response of an exchange to its last: a program needs milliseconds, a person who types the
password meanwhile needs longer. The owner of the exchange ends it then."""

MAX_RESPONSE = 1_024
"""Bytes of a response: two names and a password (PLAIN), or a trace, fit."""

MAX_SCRAM = 512
"""Bytes of a message of SCRAM: real ones have under 200. The first message and its answer, which repeats most of it,
are stored until the next one: some 2 KiB, 3 KiB at most."""

MAX_TRACE = 255
"""Characters of ANONYMOUS's trace (RFC 4505)."""


class FailureReason(enum.Enum):
    """Reason of a failed exchange. The value names the counter; it is stable."""

    MALFORMED = "malformed"
    """The response is not valid in the mechanism, or is out of order."""
    UNSUPPORTED = "unsupported"
    """An optional part of the mechanism is missing: channel binding, or a mandatory extension."""
    CREDENTIALS = "credentials"
    """An unknown user, a wrong password, or the authorization identity of another user."""
    LATE = "late"
    """The exchange took too long."""


@attrs.frozen
class LoginChallenge:
    """A challenge, which the client has to answer."""

    data: bytes = attrs.field(repr=False)


@attrs.frozen
class LoginDone:
    """The client is authenticated as that user, "" if anonymous. ``trace`` is its trace, in printable characters."""

    user: str
    trace: str = ""


@attrs.frozen
class LoginFailed:
    """The client is not authenticated. ``text`` is for people: it does not reveal if there is such a user."""

    why: FailureReason
    text: str


LoginOutcome = LoginChallenge | LoginDone | LoginFailed

WRONG = LoginFailed(FailureReason.CREDENTIALS, "the user or the password is wrong")
"""Outcome of any wrong name or password: it does not reveal which of them is wrong."""

NOT_YOURS = LoginFailed(FailureReason.CREDENTIALS, "the authorisation id is not the user's own name")


class SaslExchange(Protocol):
    """One attempt to authenticate."""

    mechanism: str

    def step(self, response: bytes | None) -> Deferred[LoginOutcome]:
        """Process the next response. None is the absence of an initial response; later it counts as an empty one.

        Fails with `Refusal` TOO_MANY_GUESSES, or LIMIT if too many passwords are being checked; both end the exchange,
        too. Cancelling the Deferred frees the place of a check that has not begun. A step before the outcome of the
        last one is out of order.
        """


class Mechanisms:
    """The mechanisms on offer, and their exchanges.

    - ``access`` has the users with their passwords.
    - ``logins`` has the gate, and the checks of PLAIN.
    - ``secret`` is the key of the salts of unknown users. It must outlast restarts: other salts would reveal them.
    - ``key_user`` returns the user that a CURVE key authenticates, None or "" without one.
    """

    def __init__(
        self,
        access: Access,
        logins: Logins,
        secret: bytes,
        key_user: Callable[[str], str | None] = lambda key: None,
    ) -> None:
        self._access = access
        self._known = _VerifierLookup(access, secret)
        self._logins = logins
        self._key_user = key_user

    def names(self, secure: bool, key: str, anonymous: bool = False) -> tuple[str, ...]:
        """Return the mechanisms for a connection, the preferred one first. ``secure``: no third party can read it.

        ``key`` is its CURVE key, "" without one. ``anonymous``: its virtual host serves the anonymous user.
        """
        names = []
        passwords = bool(self._access.verifiers)
        if passwords:
            names.append(SCRAM)
        if key and self._key_user(key):
            names.append(EXTERNAL)
        if passwords and secure:
            names.append(PLAIN)
        if anonymous:
            names.append(ANONYMOUS)
        return tuple(names)

    def begin(self, mechanism: str, key: str, address: str = "") -> SaslExchange:
        """Begin an exchange of a mechanism (in capitals) that is offered on the connection.

        ``address`` is that of the client, by which its guesses count.
        """
        if mechanism == EXTERNAL:
            return _ExternalExchange(self._key_user, key)
        if mechanism == ANONYMOUS:
            return _AnonymousExchange()
        exchange = _ScramExchange if mechanism == SCRAM else _PlainExchange
        return exchange(self._known, self._logins, address)


# users, known or not


class _VerifierLookup:
    """Verifiers of all names: of known users, and made-up ones of unknown users."""

    def __init__(self, access: Access, secret: bytes) -> None:
        self._access = access
        self._secret = secret

    def look_up(self, name: str) -> tuple[PasswordVerifier, bool]:
        """Return the verifier for a name, and True if it is that of a known user."""
        # Also for known users: the time must not distinguish them from unknown ones.
        never = self._never(name)
        stored = self._access.verifier(name)
        return (never, False) if stored is None else (stored, True)

    def passwords(self, name: str) -> Sequence[PasswordVerifier]:
        """Return the verifier of that user; none if unknown."""
        stored = self._access.verifier(name)
        return () if stored is None else (stored,)

    @property
    def work(self) -> int:
        """See `broker.access.principal.Access`."""
        return self._access.work

    def stands(self, name: str, stored: PasswordVerifier) -> bool:
        """Return True if this is still the verifier of that user."""
        return self._access.verifier(name) == stored

    def _never(self, name: str) -> PasswordVerifier:
        """Return a made-up verifier, the same for a name each time. No password fits it."""
        iterations, size = ITERATIONS, SALT
        if shapes := self._access.shapes:
            # Like one of the users, and not soon like another one when users come and go.
            fraction = int.from_bytes(self._digest("shape", name)[:4])
            iterations, size = shapes[fraction * len(shapes) >> 32]
        keys = self._digest("keys", name)
        return PasswordVerifier(iterations, self._digest("salt", name)[:size], keys[:KEY], keys[KEY:])

    def _digest(self, what: str, name: str) -> bytes:
        return hmac.digest(self._secret, f"{what} {name}".encode(), "sha512")


# the mechanisms

_Step = Callable[[str], "LoginOutcome | Deferred[LoginOutcome]"]


class _ExchangeSteps:
    """An exchange as a state machine: ``_next`` is the state, the method for the next response; None once it ended."""

    mechanism: str
    most = MAX_RESPONSE

    def __init__(self, first: _Step) -> None:
        self._next: _Step | None = first
        self._may_be_silent = True

    def step(self, response: bytes | None) -> Deferred[LoginOutcome]:
        """See `SaslExchange`."""
        # Ended, unless the step sets a further state: also while an outcome waits for a thread.
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

# Values of server-error (RFC 5802, section 7).

_WRONG = "invalid-proof"

_UNSUPPORTED = ("extensions-not-supported", "channel-binding-not-supported", "unsupported-channel-binding-type")


class _ScramExchange(_ExchangeSteps):
    """SCRAM-SHA-256: client-first, server-first, client-final, server-final, then an empty response."""

    mechanism = SCRAM
    most = MAX_SCRAM

    def __init__(self, known: _VerifierLookup, logins: Logins, address: str) -> None:
        super().__init__(self._first)
        self._known = known
        self._gate = logins.gate
        self._address = address
        self._server = _SERVER.make_server(self._look_up)
        self._user = ""
        """Name that the client claims; empty if no user may have it."""
        self._stored: PasswordVerifier | None = None
        """Verifier of the user, None if unknown."""

    def _look_up(self, name: str) -> tuple[bytes, bytes, bytes, int]:
        stored, known = self._known.look_up(name)
        self._user = name if is_user(name) else ""
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
        attempt = self._gate.begin(self._address, self._user)
        try:
            self._server.set_client_final(response)
            challenge = self._server.get_server_final()
        except ScramException as error:
            failed = _scram_failed(error)
            if failed is not WRONG:
                attempt.void()
            return failed
        if not self._stands():
            return WRONG
        attempt.right()
        self._next = self._end
        return LoginChallenge(challenge.encode())

    def _end(self, response: str) -> LoginOutcome:
        if response:
            return LoginFailed(FailureReason.MALFORMED, "the last challenge is answered by an empty response")
        return LoginDone(self._user) if self._stands() else WRONG

    def _stands(self) -> bool:
        return self._stored is not None and self._known.stands(self._user, self._stored)


def _scram_failed(error: ScramException) -> LoginFailed:
    reason = "" if error.server_error is None else error.server_error.value
    if reason == _WRONG:
        return WRONG
    return LoginFailed(
        FailureReason.UNSUPPORTED if reason in _UNSUPPORTED else FailureReason.MALFORMED, str(error.args[0])
    )


class _PlainExchange(_ExchangeSteps):
    """PLAIN: authorization identity, user and password, separated by zero bytes."""

    mechanism = PLAIN

    def __init__(self, known: _VerifierLookup, logins: Logins, address: str) -> None:
        super().__init__(self._first)
        self._known = known
        self._passwords = logins.passwords
        self._address = address

    def _first(self, response: str) -> LoginOutcome | Deferred[LoginOutcome]:
        parts = response.split("\0")
        if len(parts) != 3 or not all(parts[1:]):
            return LoginFailed(
                FailureReason.MALFORMED, "the response is not an authorisation id, a user and a password"
            )
        wanted, name, password = parts
        if wanted not in ("", name):
            return NOT_YOURS
        verifiers = partial(self._known.passwords, name)
        checked = self._passwords.verify(name, password, self._address, verifiers, self._known.work)
        return checked.addCallback(lambda verifier: WRONG if verifier is None else LoginDone(name))


class _ExternalExchange(_ExchangeSteps):
    """EXTERNAL: the CURVE handshake has authenticated the user."""

    mechanism = EXTERNAL

    def __init__(self, key_user: Callable[[str], str | None], key: str) -> None:
        super().__init__(self._first)
        self._key_user = key_user
        self._key = key

    def _first(self, response: str) -> LoginOutcome:
        user = self._key_user(self._key)
        if not user:
            return LoginFailed(FailureReason.CREDENTIALS, "the key of the connection stands for no user")
        return LoginDone(user) if response in ("", user) else NOT_YOURS


class _AnonymousExchange(_ExchangeSteps):
    """ANONYMOUS: no authentication."""

    mechanism = ANONYMOUS

    log = Logger()

    def __init__(self) -> None:
        super().__init__(self._first)

    def _first(self, response: str) -> LoginOutcome:
        if len(response) > MAX_TRACE:
            return LoginFailed(FailureReason.MALFORMED, f"the trace has more than {MAX_TRACE} characters")
        printable = "".join(character if character.isprintable() else "?" for character in response)
        self.log.debug("an anonymous client logged in, with the trace {trace!r}", trace=printable)
        return LoginDone("", printable)
