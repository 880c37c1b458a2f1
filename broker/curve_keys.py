"""CURVE keys of clients in files: NAME.public, with one key of 40 Z85 characters.

Z85 writes four bytes as five printable characters, so that the 32 bytes of a key become 40.
"""

from __future__ import annotations

import re

from broker import small_file
from broker.config.files import KEY_LENGTH, MAX_KEY_FILE, Z85, is_curve_key

KEY_BYTES = 32
"""Length of a binary key."""

MAX_NAME = 200
"""Characters of a key's name: a file name has 255 at most, with the ending and the addition of a temporary file."""

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.@+=:,-]*")
"""No separators, no blanks, and no character with a meaning in shells or in patterns of names and topics."""

_CERTIFICATE = re.compile(r'^[ \t]*public-key[ \t]*=[ \t]*"([^"\n]*)"', re.MULTILINE)
"""The line of the public key in a pyzmq certificate."""


def encode(key: bytes) -> str:
    """Encode a key of `KEY_BYTES` bytes in Z85."""
    characters = []
    for at in range(0, len(key), 4):
        value = int.from_bytes(key[at : at + 4], "big")
        characters += [Z85[value // 85**place % 85] for place in (4, 3, 2, 1, 0)]
    return "".join(characters)


def decode(text: str) -> bytes:
    """Decode a key of `KEY_LENGTH` Z85 characters."""
    key = b""
    for at in range(0, len(text), 5):
        value = 0
        for character in text[at : at + 5]:
            value = 85 * value + Z85.index(character)
        key += value.to_bytes(4, "big")
    return key


def public_key(text: str) -> str:
    """Return the public key in the text of a key file. Raises ValueError if there is none.

    It is in the line ``public-key = "..."`` of a certificate of pyzmq, or else the first word that is a key.
    """
    named = _CERTIFICATE.search(text)
    for word in ([] if named is None else [named[1]]) + text.split():
        if is_curve_key(word):
            return word
    raise ValueError(f"has no public key: a word of {KEY_LENGTH} Z85 characters")


def is_name(name: str) -> bool:
    """Return True if a key may have this name."""
    return len(name) <= MAX_NAME and _NAME.fullmatch(name) is not None


def read(path: str) -> str:
    """Return the text of a key file. Raises OSError, and ValueError for a file that cannot be one.

    Bytes that are no UTF-8 become a character that occurs in no key.
    """
    with small_file.opened(path) as file:
        data = file.read(MAX_KEY_FILE + 1)
    if len(data) > MAX_KEY_FILE:
        raise ValueError(f"is larger than {MAX_KEY_FILE} bytes")
    return data.decode("utf-8-sig", "replace")
