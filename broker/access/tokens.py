"""Bearer tokens: random texts that authenticate a user, and their hashes in the users file.

A token has 256 random bits, so that a plain SHA-256 of it reveals nothing, and needs no salt and no slow function.
"""

from __future__ import annotations

import hashlib
import re
import secrets
from datetime import UTC, datetime

PREFIX = "ebt_"
"""Prefix of a token, by which scanners for secrets and people recognize it."""

BYTES = 32
"""Random bytes of a token."""

LENGTH = len(PREFIX) + 43
"""Characters of a new token: those of BASE64 after the prefix, without padding."""

MAX_TOKEN = 512
"""Characters of a token that is hashed: a code that was the password of a listener may have as many."""

_HASH = re.compile(r"sha256:[0-9a-f]{64}")


def new() -> str:
    """Return a new token."""
    return PREFIX + secrets.token_urlsafe(BYTES)


def is_random(text: str) -> bool:
    """Return True for the form of `new`. Other tokens, such as codes that people chose, can be guessed."""
    return len(text) == LENGTH and text.startswith(PREFIX)


def hashed(token: str) -> str:
    """Return the hash of a token, as in the users file."""
    return "sha256:" + hashlib.sha256(token.encode(errors="replace")).hexdigest()


def is_hash(text: str) -> bool:
    """Return True for the form of `hashed`."""
    return _HASH.fullmatch(text) is not None


def expiry(text: str) -> float:
    """Return the seconds of the epoch that an RFC 3339 text names. Raises ValueError."""
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise ValueError("is no time of RFC 3339, such as 2027-01-31T00:00:00Z") from None
    if moment.tzinfo is None:
        raise ValueError("has no time zone; Z stands for UTC")
    try:
        return moment.timestamp()
    except (OverflowError, ValueError):
        raise ValueError("is out of range") from None


def expiry_text(seconds: float) -> str:
    """Return seconds of the epoch as the text for the file."""
    return datetime.fromtimestamp(int(seconds), UTC).isoformat().replace("+00:00", "Z")
