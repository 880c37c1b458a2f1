"""Files named by the configuration: secrets, certificates, keys."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from broker import small_file

MAX_SIZE = 1024 * 1024
"""Bytes of a configuration file. A large one has some 10 KB; the bound keeps a device or a wrong file out of memory."""

MAX_SECRET = 1_024
"""Bytes of a secret in a file: the longest that a peer may send."""


MAX_KEY_FILE = 4_096
"""Bytes of a file with a CURVE key: 40 characters, and perhaps a comment behind them."""

PUBLIC = ".public"
"""Suffix of a file with a client's public key."""

Z85 = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#"
"""The characters of Z85, the text form of binary keys (RFC 32), in the order of their values: five for four bytes."""

KEY_LENGTH = 40
"""Characters of a CURVE key: its 32 bytes in Z85."""


class BadFile(ValueError):
    """A file that cannot be used; the message gives the reason, and none of the content."""


def text(path: Path, most: int = MAX_SIZE) -> str:
    """Return the text of a file of at most ``most`` bytes, without a byte order mark. Raises `BadFile`."""
    try:
        data = small_file.read(path, most)
    except ValueError as error:
        raise BadFile(str(error)) from error
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise BadFile(f"is not UTF-8: line {line} has the byte 0x{data[error.start]:02x}") from error


def secret(path: Path) -> str:
    """Return the secret in a file, without the newline at its end. Raises `BadFile`."""
    found = text(path, MAX_SECRET).removesuffix("\n").removesuffix("\r")
    if not found:
        raise BadFile("is empty")
    if "\n" in found:
        raise BadFile("has more than one line; a secret is one")
    return found


def curve_secret(path: Path) -> str:
    """Return the CURVE secret key at the beginning of a file. Raises `BadFile`."""
    word = next(iter(text(path, MAX_KEY_FILE).split()), "")
    if not is_curve_key(word):
        raise BadFile(f"has no secret key: its first word must be {KEY_LENGTH} Z85 characters")
    return word


def is_curve_key(word: str) -> bool:
    """Return True for a CURVE key: 40 characters of Z85 that stand for 32 bytes."""
    if len(word) != KEY_LENGTH or not set(Z85).issuperset(word):
        return False
    return all(_value(word[at : at + 5]) < 2**32 for at in range(0, KEY_LENGTH, 5))


def _value(group: str) -> int:
    value = 0
    for character in group:
        value = value * len(Z85) + Z85.index(character)
    return value


class Named:
    """The files that a configuration names, relative to the directory ``base``.

    ``wrong`` gets the problems of unreadable ones, as pairs of dotted key and text.
    """

    def __init__(self, base: Path) -> None:
        self._base = base
        self.wrong: list[tuple[str, str]] = []

    def secret(self, key: str, given: str | None, path: str | None, read: Callable[[Path], str] = secret) -> str | None:
        """Return ``given``, or the secret in the file ``path``, the value of ``key``. A failure is a problem of
        ``key``, and the result None."""
        if path is None:
            return given
        if given is not None:
            other = key.rpartition(".")[2].removesuffix("_file")
            self.wrong.append((key, f"{other} is given too; give one of them"))
            return given
        try:
            return read(self._base / path)
        except BadFile as error:
            self.wrong.append((key, f"{self._base / path} {error}"))
            return None

    def absolute(self, path: str | None) -> str | None:
        """Return the path made absolute; None and the empty path stay."""
        # An empty path would become the directory of the configuration.
        return str((self._base / path).absolute()) if path else path
