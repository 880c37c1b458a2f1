"""Password verifiers (RFC 5803): they allow to check a password, but not to log in.

A verifier is a line of text in the form that PostgreSQL uses, ``SCRAM-SHA-256$ITERATIONS:SALT$STOREDKEY:SERVERKEY``,
the last three in BASE64.
"""

from __future__ import annotations

import binascii
import hmac
import re
import secrets
from base64 import b64decode, b64encode
from collections.abc import Iterable, Sequence
from hashlib import pbkdf2_hmac

import attrs
from scramp import ScramException, ScramMechanism  # type: ignore[import-untyped]
from scramp.utils import saslprep  # type: ignore[import-untyped]

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

_SCRAM = ScramMechanism(NAME)


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
            _, stored_key, _, _ = _SCRAM.make_auth_info(password, self.iterations, self.salt)
        except ScramException:
            return False  # no password has these characters
        return hmac.compare_digest(stored_key, self.stored_key)

    def text(self) -> str:
        """Return the text for a file."""
        salt, stored, server = (b64encode(part).decode() for part in (self.salt, self.stored_key, self.server_key))
        return f"{NAME}${self.iterations}:{salt}${stored}:{server}"


def matching(verifiers: Sequence[PasswordVerifier], password: str, work: int) -> list[PasswordVerifier]:
    """Return those verifiers that a usable password fits. Slow: call it in a thread.

    The time is that of ``work`` iterations (see `work_of`), however many verifiers there are: also for none, which is
    a user who does not exist.
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
    try:
        saslprep(password).encode()
    except (ScramException, UnicodeEncodeError):
        return False
    return True


def of(password: str, iterations: int = ITERATIONS) -> PasswordVerifier:
    """Return a verifier of a new password. Slow (see `ITERATIONS`). Raises `BadPassword`."""
    try:
        size = len(password.encode())
        salt = secrets.token_bytes(SALT)
        # SASLprep (RFC 4013) removes some characters, perhaps all: such a password equals the empty one.
        nothing = _SCRAM.make_auth_info("", MIN_ITERATIONS, salt)
        if _SCRAM.make_auth_info(password, MIN_ITERATIONS, salt) == nothing:
            raise BadPassword("is empty")
        if size > MAX_PASSWORD:
            raise BadPassword(f"has more than {MAX_PASSWORD} bytes")
        _, stored_key, server_key, _ = _SCRAM.make_auth_info(password, iterations, salt)
    except (ScramException, UnicodeEncodeError):
        raise BadPassword("has characters that SASL (RFC 4013) does not allow, or not together") from None
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
