"""Passwords: their verifiers, and checks in threads.

Password verifiers (RFC 5803): a verifier serves to check a password, and not to log in.

A verifier is a line of text in the form that PostgreSQL uses, ``SCRAM-SHA-256$ITERATIONS:SALT$STOREDKEY:SERVERKEY``,
the last three in BASE64.

Password checks in threads, of all listeners together.

A check takes some 30 ms of a thread. Rules:
- A bounded number runs at once, and a bounded number waits.
- Addresses take turns (`PasswordChecks.run`, ``turn``). In a full queue, an address with fewer waiting checks displaces
  the last one of the address with most: guesses from a few addresses neither delay the logins of others for long nor
  refuse them.
"""

from __future__ import annotations

import binascii
import hmac
import re
import secrets
from base64 import b64decode, b64encode
from collections import OrderedDict, deque
from collections.abc import Callable, Hashable, Iterable, Sequence
from hashlib import pbkdf2_hmac
from typing import Any

import attrs
from twisted.internet.defer import Deferred, maybeDeferred
from twisted.python.failure import Failure

from broker.core.errors import Reason, Refusal

NAME = "SCRAM-SHA-256"
"""The mechanism of the verifier, and the prefix of its text."""

ITERATIONS = 100_000
"""PBKDF2 iterations of a new verifier. Checking a password in the clear (PLAIN) takes the broker 25 to 30 ms of a
thread, and an attacker with a stolen file as much for each guess. SCRAM takes the broker nothing of it: the client
computes the key."""

MIN_ITERATIONS = 4_096
"""Fewer iterations are refused: RFC 7677 requires so many, and clients refuse fewer."""

MAX_ITERATIONS = 1_000_000
"""More iterations are refused: each check of PLAIN would take a thread 0.3 s."""

SALT = 16
"""Bytes of a new salt: as PostgreSQL has them."""

MIN_SALT = 12
"""Shorter salts are refused: some clients refuse them."""

MAX_SALT = 64
"""Longer salts are refused: each is part of a challenge, which is stored until it is answered."""

MAX_PASSWORD = 512
"""Bytes of a password. A longer one would not fit into a response of PLAIN."""

KEY = 32
"""Bytes of either key: a SHA-256."""

MAX_USER = 200
"""Characters of a user's name: as many as a key's name may have, since a key may stand for a user."""

_USER = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.@+=:,-]*")
"""Form of a user's name, as of names of keys: no blanks, and nothing that access rules would read as a pattern. ASCII
names have one encoding only, so they need no normalization."""

NO_NAME = (
    "a user's name has letters, digits and _ . @ + = : , - only, begins with a letter, a digit or _, and has "
    f"{MAX_USER} characters at most"
)
"""The rule for names of users, as a sentence."""

_BASE64 = "[A-Za-z0-9+/]+={0,2}"
_TEXT = re.compile(rf"{re.escape(NAME)}\$([1-9][0-9]{{0,9}}):({_BASE64})\$({_BASE64}):({_BASE64})")


class BadPassword(ValueError):
    """A password that cannot be used. The text gives the reason, and does not show the password."""


def is_user(name: str) -> bool:
    """Return True if a user may have this name."""
    return len(name) <= MAX_USER and _USER.fullmatch(name) is not None


@attrs.frozen
class PasswordVerifier:
    """The verifier of one password."""

    iterations: int
    salt: bytes = attrs.field(repr=False)
    stored_key: bytes = attrs.field(repr=False)
    server_key: bytes = attrs.field(repr=False)

    def check(self, password: str) -> bool:
        """Return True if this is the password. Slow (see `ITERATIONS`): call it in a thread."""
        try:
            stored_key, _ = _keys(password, self.iterations, self.salt)
        except BadPassword:
            return False  # no password has these characters
        return hmac.compare_digest(stored_key, self.stored_key)

    def text(self) -> str:
        """Return the text for a file."""
        salt, stored, server = (b64encode(part).decode() for part in (self.salt, self.stored_key, self.server_key))
        return f"{NAME}${self.iterations}:{salt}${stored}:{server}"


def matching(verifiers: Sequence[PasswordVerifier], password: str, work: int) -> list[PasswordVerifier]:
    """Return the verifiers that match a usable password. Slow: call it in a thread.

    The time is that of ``work`` iterations (see `work_of`), however many verifiers there are: also for none, which is
    an unknown user.
    """
    fitting = [verifier for verifier in verifiers if verifier.check(password)]
    left = work - sum(verifier.iterations for verifier in verifiers)
    if left > 0:
        pbkdf2_hmac("sha256", password.encode(), bytes(SALT), left)
    return fitting


def work_of(users: Iterable[Sequence[PasswordVerifier]]) -> int:
    """Return the iterations that a check of any user takes, so that none is known by its time: those of the user with
    most, of the verifiers of each."""
    return max((sum(each.iterations for each in verifiers) for verifiers in users if verifiers), default=ITERATIONS)


def is_usable(password: str) -> bool:
    """Return True if a password may be checked: it is not too long, and SASLprep accepts it."""
    if len(password) > MAX_PASSWORD or len(password.encode(errors="replace")) > MAX_PASSWORD:
        return False
    from scramp import ScramException  # type: ignore[import-untyped]
    from scramp.utils import saslprep  # type: ignore[import-untyped]

    try:
        saslprep(password).encode()
    except (ScramException, UnicodeEncodeError):
        return False
    return True


def _keys(password: str, iterations: int, salt: bytes) -> tuple[bytes, bytes]:
    """Return the stored key and the server key. Slow. Raises `BadPassword`.

    The library is imported at the first use of a password: the import takes a tenth of the time of ``--check``, and
    most starts use no password.
    """
    from scramp import ScramException, ScramMechanism

    try:
        _, stored_key, server_key, _ = ScramMechanism(NAME).make_auth_info(password, iterations, salt)
    except (ScramException, UnicodeEncodeError):
        raise BadPassword("has characters that SASL (RFC 4013) does not allow, or not together") from None
    return stored_key, server_key


def of(password: str, iterations: int = ITERATIONS) -> PasswordVerifier:
    """Return a verifier of a new password. Slow (see `ITERATIONS`). Raises `BadPassword`."""
    size = len(password.encode(errors="replace"))
    salt = secrets.token_bytes(SALT)
    # SASLprep (RFC 4013) removes some characters, perhaps all: such a password equals the empty one.
    if _keys(password, MIN_ITERATIONS, salt) == _keys("", MIN_ITERATIONS, salt):
        raise BadPassword("is empty")
    if size > MAX_PASSWORD:
        raise BadPassword(f"has more than {MAX_PASSWORD} bytes")
    stored_key, server_key = _keys(password, iterations, salt)
    return PasswordVerifier(iterations, salt, stored_key, server_key)


def parse(text: str) -> PasswordVerifier:
    """Parse the text of a verifier. Raises ValueError, whose reason shows nothing of the text."""
    found = _TEXT.fullmatch(text)
    if found is None:
        raise ValueError(f"is not of the form {NAME}$ITERATIONS:SALT$STOREDKEY:SERVERKEY")
    iterations = int(found[1])
    if not MIN_ITERATIONS <= iterations <= MAX_ITERATIONS:
        raise ValueError(f"has not {MIN_ITERATIONS} to {MAX_ITERATIONS} iterations")
    salt, stored_key, server_key = (_decoded(part) for part in found.groups()[1:])
    if not MIN_SALT <= len(salt) <= MAX_SALT:
        raise ValueError(f"has a salt that has not {MIN_SALT} to {MAX_SALT} bytes")
    if not len(stored_key) == len(server_key) == KEY:
        raise ValueError(f"has a key that has not {KEY} bytes")
    return PasswordVerifier(iterations, salt, stored_key, server_key)


def _decoded(part: str) -> bytes:
    """Decode BASE64 in its canonical form only. Raises ValueError."""
    try:
        data = b64decode(part, validate=True)
    except binascii.Error:
        data = b""
    if b64encode(data).decode() != part:
        raise ValueError("has a part that is not BASE64")
    return data


CHECKS = 2
"""Password checks that run at once: more would take processors from the rest of the broker."""

MAX_WAITING = 100
"""Password checks that may wait: they take some 1.5 s, and clients wait little longer for an answer."""


Begin = Callable[[], Callable[[Any], Any]]
"""Begins a check, or raises `Refusal` if it may not begin. Returns a function for the result of the check, whose own
result is that of the caller. That function is called even if the check was cancelled meanwhile."""


def _at_once() -> Callable[[Any], Any]:
    return lambda result: result


@attrs.define(eq=False)
class _WaitingCheck:
    """A password check that has not begun."""

    function: Callable[..., Any]
    arguments: tuple[Any, ...]
    turn: Hashable
    begin: Begin
    done: Deferred[Any]


class PasswordChecks:
    """Password checks in threads: `CHECKS` at once, and a queue of `MAX_WAITING` further ones.

    ``in_thread`` calls a function with arguments in a thread, and returns a Deferred of its result.
    """

    def __init__(self, in_thread: Callable[..., Deferred[Any]]) -> None:
        self._in_thread = in_thread
        self._running = 0
        self._waiting: OrderedDict[Hashable, deque[_WaitingCheck]] = OrderedDict()
        """Waiting checks by turn, the next one first."""
        self._count = 0
        """Number of all waiting checks."""

    def run(
        self, function: Callable[..., Any], *arguments: Any, turn: Hashable = "", begin: Begin = _at_once
    ) -> Deferred[Any]:
        """Return a Deferred of the result, which may be cancelled.

        ``turn`` stands for the address of the peer: checks of different ones take turns. Raises `Refusal` LIMIT if the
        queue is full. The Deferred fails with it if the check is displaced, and with an exception of ``begin``.
        """
        if self._running >= CHECKS and self._count >= MAX_WAITING:
            self._displace(turn)
        check = _WaitingCheck(function, arguments, turn, begin, Deferred(lambda _: self._remove(check)))
        self._waiting.setdefault(turn, deque()).append(check)
        self._count += 1
        self._next()
        return check.done

    def _displace(self, turn: Hashable) -> None:
        """Make room for a check of an address. Raises `Refusal` if it has its share."""
        most = max(self._waiting.values(), key=len)
        refusal = Refusal(Reason.LIMIT, "too many passwords are being checked")
        if len(self._waiting.get(turn, ())) + 1 >= len(most):
            raise refusal
        last = most[-1]
        self._remove(last)
        last.done.errback(refusal)

    def _remove(self, check: _WaitingCheck) -> None:
        """Remove a check from the queue. No-op for one that has begun."""
        same = self._waiting.get(check.turn)
        if same is not None and check in same:
            same.remove(check)
            self._count -= 1
            if not same:
                del self._waiting[check.turn]

    def _next(self) -> None:
        while self._waiting and self._running < CHECKS:
            turn, same = self._waiting.popitem(last=False)
            check = same.popleft()
            self._count -= 1
            if same:
                self._waiting[turn] = same
            self._begin(check)

    def _begin(self, check: _WaitingCheck) -> None:
        try:
            settle = check.begin()
        except Refusal as refusal:
            if not check.done.called:  # it may have been cancelled because of the refusal
                check.done.errback(refusal)
            return
        self._running += 1

        def ended(result: Any) -> None:
            # A thread cannot be stopped: a cancelled check, too, frees its place only when it ends.
            self._running -= 1
            if not isinstance(result, Failure):
                result = settle(result)
            self._next()
            if check.done.called:
                return
            if isinstance(result, Failure):
                check.done.errback(result)
            else:
                check.done.callback(result)

        maybeDeferred(self._in_thread, check.function, *check.arguments).addBoth(ended)


Checked = PasswordVerifier | None
"""Outcome of a check: the verifier that the password fits, None if it is wrong."""


@attrs.define(eq=False)
class _Login:
    """An attempt that has no outcome yet. ``begin`` admits it at the gate, for its address and name."""

    begin: Callable[[], Any]
    done: Deferred[Checked]


class SameLogins:
    """Logins by one name and password, which have one ``check``: a farm that comes back makes them at once. They are as
    many as sessions at most."""

    def __init__(self) -> None:
        self.check: Deferred[Checked] | None = None
        self.waiting: deque[_Login] = deque()
        self.leader: _Login | None = None
        """The login that the check counts for, once it has begun."""

    def join(self, begin: Callable[[], Any]) -> Deferred[Checked]:
        """Return a Deferred of the outcome. It may be cancelled: the last one cancels the check."""

        def leave(_: object) -> None:
            self.waiting.remove(login)
            if not self.waiting and self.check is not None:
                self.check.cancel()

        login = _Login(begin, Deferred(leave))
        self.waiting.append(login)
        return login.done

    def begin(self) -> Any:
        """Begin the check for the first login that the gate admits, and refuse those before it. Raises `Refusal`."""
        while True:
            self.leader = self.waiting[0]
            try:
                return self.leader.begin()
            except Refusal as refusal:
                if len(self.waiting) == 1:
                    raise
                self.waiting.popleft().done.errback(refusal)
                if not self.waiting:
                    raise  # the others were given up because of that one
