"""Changes of the users file by commands: users, passwords, tokens, certificate names and keys.

Rules:
- Comments, the order, and all that a change does not concern stay as they are. A changed array is written on one line.
- A change replaces the file atomically, under a lock. A file that would be invalid is not written.
- The file is made, with the mode 0600, by the first user.
- Only files with the tables ``[[users]]`` and ``[[users.tokens]]`` as headers are changed; others are valid, but need
  an editor.

Functions raise `EditFailed` or `BadUsers`, with sentences that show no secret.
"""

from __future__ import annotations

import os
import time
import tomllib
from collections.abc import Callable, Sequence

import attrs

from broker.access import passwords as password_verifiers
from broker.access import users_document
from broker.access.identity import ANONYMOUS
from broker.access.passwords import NO_NAME, BadPassword, is_user
from broker.access.users_document import MAX_PASSWORDS, TokenEntry, UserEntry, UsersDocument
from broker.access.users_file import EditFailed, locked, read, replace
from broker.config.toml_values import lines, structure, toml

DAY = 86_400.0

NOBODY = "nobody = true"
"""The line of a file without users."""

TOKEN_DAYS = 365.0
"""Days after which a token expires, by default."""


def add_user(path: str, name: str) -> None:
    """Add a user without credentials. Makes the file if it is missing."""
    if not is_user(name):
        raise EditFailed(f"{name!r} is no name for a user: {NO_NAME}")
    if name == ANONYMOUS:
        raise EditFailed(f"{name} stands for peers without a credential: give it rights, not an entry")

    def change(file: _File) -> None:
        if file.index(name) is not None:
            raise EditFailed(f"{name} is a user already")
        file.mark_without_users(False)
        file.append(["[[users]]", f"name = {toml(name)}"])

    _change(path, change, create=True)


def remove_user(path: str, name: str) -> None:
    """Remove a user with all credentials. Rights that name the user stay."""

    def change(file: _File) -> None:
        file.remove_block(file.known(name))
        if len(file.users) == 1:
            file.mark_without_users(True)

    _change(path, change)


def set_password(path: str, name: str, password: str, keep: bool = False) -> None:
    """Set the password of a user. With ``keep``, the former one stays valid too, until the next change without it.

    Slow: it computes a verifier.
    """
    try:
        verifier = password_verifiers.of(password).text()
    except BadPassword as error:
        raise EditFailed(f"the password {error}") from None

    def change(file: _File) -> None:
        index = file.known(name)
        former = file.users[index].passwords if keep else ()
        if len(former) >= MAX_PASSWORDS:
            raise EditFailed(f"{name} has {len(former)} passwords already")
        file.set(index, "passwords", (verifier, *former))

    _change(path, change)


def add_token(path: str, name: str, label: str, days: float | None = TOKEN_DAYS, now: float | None = None) -> str:
    """Add a token to a user, and return it: it is stored nowhere. ``days`` is its life; None: it does not expire."""
    token = users_document.new_token()
    seconds = time.time() if now is None else now

    def change(file: _File) -> None:
        index = file.known(name)
        if any(each.label == label for each in file.users[index].tokens):
            raise EditFailed(f"{name} has a token {label!r} already")
        block = ["[[users.tokens]]", f"label = {toml(label)}", f"hash = {toml(users_document.token_hash(token))}"]
        if days is not None:
            try:
                block.append(f"expires = {toml(users_document.expiry_text(seconds + days * DAY))}")
            except (ValueError, OverflowError):
                raise EditFailed(f"a token cannot have a life of {days:g} days; it may be valid for ever") from None
        file.insert_table(index, block)

    _change(path, change)
    return token


def revoke_token(path: str, name: str, label: str) -> None:
    """Remove a token of a user."""

    def change(file: _File) -> None:
        index = file.known(name)
        for number, token in enumerate(file.users[index].tokens):
            if token.label == label:
                file.remove_table(f"users[{index}].tokens[{number}]")
                return
        raise EditFailed(f"{name} has no token {label!r}")

    _change(path, change)


def add_key(path: str, name: str, key: str) -> None:
    """Add a CURVE public key (Z85) to a user."""
    _add(path, name, "keys", key)


def remove_key(path: str, name: str, key: str) -> None:
    """Remove a CURVE public key of a user."""
    _remove(path, name, "keys", key)


def add_certificate(path: str, name: str, certificate: str) -> None:
    """Add the name of a client certificate to a user."""
    _add(path, name, "certificates", certificate)


def remove_certificate(path: str, name: str, certificate: str) -> None:
    """Remove the name of a client certificate of a user."""
    _remove(path, name, "certificates", certificate)


def users(path: str) -> tuple[UserEntry, ...]:
    """Return the users of a valid file, as they are written."""
    return _File(path, read(path)).users


def token_list(path: str) -> list[tuple[str, TokenEntry]]:
    """Return the tokens of all users, each with the name of its user."""
    return [(user.name, token) for user in users(path) for token in user.tokens]


def _add(path: str, name: str, kind: str, value: str) -> None:
    def change(file: _File) -> None:
        index = file.known(name)
        present: tuple[str, ...] = getattr(file.users[index], kind)
        if value in present:
            raise EditFailed(f"{name} has it already")
        file.set(index, kind, (*present, value))

    _change(path, change)


def _remove(path: str, name: str, kind: str, value: str) -> None:
    def change(file: _File) -> None:
        index = file.known(name)
        present: tuple[str, ...] = getattr(file.users[index], kind)
        if value not in present:
            raise EditFailed(f"{name} does not have it")
        file.set(index, kind, tuple(each for each in present if each != value))

    _change(path, change)


# the text


@attrs.define
class _File:
    """The lines of a valid file, and the users in them."""

    path: str
    text: str
    users: tuple[UserEntry, ...] = attrs.field(init=False)
    lines: list[str] = attrs.field(init=False)
    _where: dict[str, int] = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        users_document.parse(self.path, self.text)
        self.users = structure(tomllib.loads(self.text), UsersDocument)[0].users
        self.lines = self.text.split("\n")
        if self.lines[-1] == "":
            self.lines.pop()
        self._where = lines(self.text)

    def index(self, name: str) -> int | None:
        """Return the number of a user in the file, None if there is no such user."""
        return next((number for number, user in enumerate(self.users) if user.name == name), None)

    def known(self, name: str) -> int:
        """Return the number of a user in the file. Raises `EditFailed` if there is no such user."""
        index = self.index(name)
        if index is None:
            raise EditFailed(f"there is no user {name!r} in {self.path}")
        return index

    def append(self, block: Sequence[str]) -> None:
        """Append a table."""
        self.lines += [*([""] if self.lines else []), *block]

    def mark_without_users(self, without: bool) -> None:
        """Mark the file as one that has no users on purpose, or remove that mark."""
        if "nobody" in self._where:  # it may be false, too
            del self.lines[self._where["nobody"] - 1]
        if without:
            self.lines[:0] = [NOBODY]

    def set(self, index: int, key: str, values: Sequence[str]) -> None:
        """Set an array of a user; an empty one is removed."""
        start = self._where.get(f"users[{index}].{key}")
        new = [f"{key} = {toml(tuple(values))}"] if values else []
        if start is None:
            self._header(f"users[{index}]")
            name = self._where[f"users[{index}].name"]
            self.lines[name:name] = new
        else:
            self.lines[start - 1 : self._end_of_value(start - 1)] = new

    def insert_table(self, index: int, block: Sequence[str]) -> None:
        """Insert a table at the end of a user."""
        end = self._without_comment(self._header(f"users[{index}]"), self._end_of_block(index))
        while end and not self.lines[end - 1].strip():
            end -= 1
        self.lines[end:end] = block

    def remove_table(self, key: str) -> None:
        """Remove the table with a header."""
        start = self._header(key)
        end = start + 1
        while end < len(self.lines) and not self.lines[end].lstrip().startswith("["):
            end += 1
        end = self._without_comment(start, end)
        while not self.lines[end - 1].strip():
            end -= 1
        del self.lines[start:end]

    def remove_block(self, index: int) -> None:
        """Remove a user with the tables inside."""
        start, end = self._header(f"users[{index}]"), self._end_of_block(index)
        del self.lines[start : self._without_comment(start, end)]

    def _without_comment(self, start: int, end: int) -> int:
        """Return the end of a block without the comment that belongs to the next one."""
        if end < len(self.lines):
            while end - 1 > start and self.lines[end - 1].lstrip().startswith("#"):
                end -= 1
        return end

    def _header(self, key: str) -> int:
        start = self._where.get(key, 0) - 1
        if start < 0 or not self.lines[start].lstrip().startswith("[["):
            raise EditFailed(f"{self.path} is not written with a header [[...]] for each table: change it by an editor")
        return start

    def _end_of_block(self, index: int) -> int:
        """Return the line after a user: that of the next header that is not one inside, or the end of the file."""
        for number in range(self._header(f"users[{index}]") + 1, len(self.lines)):
            line = self.lines[number].lstrip()
            if line.startswith("[") and not line.replace(" ", "").startswith("[[users.tokens]]"):
                return number
        return len(self.lines)

    def _end_of_value(self, start: int) -> int:
        """Return the line after the value that begins in a line."""
        for end in range(start + 1, len(self.lines) + 1):
            try:
                # With the end of the last line, too: a carriage return alone would be a mistake.
                tomllib.loads("".join(f"{line}\n" for line in self.lines[start:end]))
            except ValueError:
                continue
            return end
        raise EditFailed(f"{self.path}: the end of the value in line {start + 1} was not found")


def _change(path: str, change: Callable[[_File], None], create: bool = False) -> None:
    """Carry out a change of the file. The other users must be the same after it."""
    if not os.path.isdir(os.path.dirname(os.path.realpath(path))):
        raise EditFailed(f"{path} would be in no directory")
    with locked(path) as real:
        if not os.path.lexists(real):
            if not create:
                raise EditFailed(f"there is no file {path}")
            file = _File(path, "")
        else:
            file = _File(path, read(real))
        before = file.users
        change(file)
        text = "".join(f"{line}\n" for line in file.lines)
        after = _File(path, text).users  # raises if the file became invalid
        if sum(user not in before for user in after) > 1 or sum(user not in after for user in before) > 1:
            raise EditFailed(f"{path} is written in a form that this command does not change: use an editor")
        replace(real, text)
