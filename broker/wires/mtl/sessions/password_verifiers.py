"""What is kept of a password: enough to check it, and not enough to log in with.

It is a line of text in the form that PostgreSQL uses, ``SCRAM-SHA-256$ITERATIONS:SALT$STOREDKEY:SERVERKEY``, the last
three in BASE64.
"""

from __future__ import annotations

import binascii
import hmac
import re
import secrets
from base64 import b64decode, b64encode

import attrs
from scramp import ScramException, ScramMechanism  # type: ignore[import-untyped]

NAME = "SCRAM-SHA-256"
"""The mechanism that this is made for, and what the text begins with."""

ITERATIONS = 100_000
"""How slowly a key is made of a password, for new ones. To check a password that comes in the clear (PLAIN) costs the
broker 25 to 30 ms of a thread, and who tries passwords against a stolen file as much for each. SCRAM costs the broker
nothing of it: there the client does that work."""

MIN_ITERATIONS = 4_096
"""Fewer are not taken: RFC 7677 wants so many at least, and clients refuse fewer."""

MAX_ITERATIONS = 1_000_000
"""More are not taken: each check of PLAIN would keep a thread busy for 0.3 s."""

SALT = 16
"""Bytes of a new salt: as PostgreSQL has them."""

MIN_SALT = 12
"""Shorter salts are not taken: some clients refuse them."""

MAX_SALT = 64
"""Longer salts are not taken: they go out in a challenge, which is kept until it is answered."""

MAX_PASSWORD = 512
"""Bytes of a password. Longer ones would not get through in one response of PLAIN."""

KEY = 32
"""Bytes of either key: a SHA-256."""

MAX_USER = 200
"""Characters of a user's name: as many as a key's name may have, since a key may stand for a user."""

_USER = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.@+=:,-]*")
"""As for the names of keys: no blanks, and nothing that rules would read as a pattern. Being ASCII, a name is the same
for everybody, however it was typed."""

_BASE64 = "[A-Za-z0-9+/]+={0,2}"
_TEXT = re.compile(rf"{re.escape(NAME)}\$([1-9][0-9]{{0,9}}):({_BASE64})\$({_BASE64}):({_BASE64})")

_SCRAM = ScramMechanism(NAME)


class BadPassword(ValueError):
    """A password that cannot be used; the text says why, and does not show it."""


def is_user(name: str) -> bool:
    """Whether a user may have this name."""
    return len(name) <= MAX_USER and _USER.fullmatch(name) is not None


@attrs.frozen
class PasswordVerifier:
    """What is kept of one password."""

    iterations: int
    salt: bytes = attrs.field(repr=False)
    stored_key: bytes = attrs.field(repr=False)
    server_key: bytes = attrs.field(repr=False)

    def check(self, password: str) -> bool:
        """Whether this is the password. It takes its time: for a thread."""
        try:
            _, stored_key, _, _ = _SCRAM.make_auth_info(password, self.iterations, self.salt)
        except ScramException:
            return False  # no password has these characters
        return hmac.compare_digest(stored_key, self.stored_key)

    def text(self) -> str:
        """As it stands in a file."""
        salt, stored, server = (b64encode(part).decode() for part in (self.salt, self.stored_key, self.server_key))
        return f"{NAME}${self.iterations}:{salt}${stored}:{server}"


def of(password: str, iterations: int = ITERATIONS) -> PasswordVerifier:
    """What to keep of a new password. It takes its time. Raises `BadPassword`."""
    try:
        size = len(password.encode())
        salt = secrets.token_bytes(SALT)
        # SASL leaves some characters out, perhaps all that there are.
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
    """What a text says. Raises ValueError with a reason that shows nothing of it."""
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
    """The bytes of a BASE64 text that is just as we would write it."""
    try:
        data = b64decode(part, validate=True)
    except binascii.Error:
        data = b""
    if b64encode(data).decode() != part:
        raise ValueError("has a part that is not BASE64")
    return data
