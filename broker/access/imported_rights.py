"""Users and rights that an import gathers from the listeners of a former configuration, and their text in a users file.

Rules:
- A rule of the former version applied to its first match only, while rights add up. Where an earlier rule permits less
  than a later one to a name that both may match, the later one is written as a comment (`Gathered.conflicts`).
- With a users file (``access.file``), its text is kept, and rights of the empty user become those of ``anonymous``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path
from typing import Any

import attrs

from broker.access import users_document
from broker.access.identity import ANONYMOUS
from broker.access.users_file import EditFailed
from broker.config import files
from broker.config.files import BadFile
from broker.config.toml_values import toml


@attrs.frozen
class ImportedRight:
    """A right, or a part of one, for these users: patterns of names, among those of one wire."""

    users: tuple[str, ...]
    operations: tuple[str, ...]
    listener: str
    names: tuple[str, ...] = ("*",)
    comment: str = ""
    realm: tuple[str, ...] = ()
    """The users whom the listener knew, if ``users`` has patterns."""


@attrs.frozen
class FormerRule:
    """A rule of a wire: its user patterns, and its rights as triples of operation, listener and name."""

    key: str
    users: tuple[str, ...]
    permits: tuple[tuple[str, str, str], ...]
    lost: tuple[str, ...] = ()
    """Parts that cannot be carried over."""


@attrs.define
class Gathered:
    """The users and rights so far."""

    base: Path
    credentials: dict[str, dict[str, list[str]]] = attrs.field(factory=dict)
    """Lines of passwords, keys and codes, by user."""
    owners: dict[tuple[str, str], str] = attrs.field(factory=dict)
    """The user of each key and each code."""
    rights: list[ImportedRight] = attrs.field(factory=list)
    comments: list[tuple[str, ...]] = attrs.field(factory=list)
    conflicts: list[str] = attrs.field(factory=list)
    coded: list[tuple[str, str]] = attrs.field(factory=list)
    """Users for codes and console passwords, each with its listener."""
    needed: bool = False
    """True if any listener had credentials or rules, or was reached by other machines."""

    def user(self, name: str, kind: str, value: str, where: str) -> str:
        """Add a credential to a user. Returns the user who has it, who may be another one."""
        self.needed = True
        if kind != "passwords":
            owner = self.owners.setdefault((kind, value), name)
            if owner != name:
                if kind == "keys":
                    self.conflicts.append(f"{where}: the key of {name} is that of {owner} too, and a key has one user")
                return owner
        values = self.credentials.setdefault(name, {}).setdefault(kind, [])
        if value not in values:
            values.append(value)
        return name

    def permit(self, users: Iterable[str], operations: Sequence[str], listener: str, *names: str) -> None:
        """Add a right."""
        self.rights.append(ImportedRight(tuple(users), tuple(operations), listener, names or ("*",)))

    def secret(self, table: dict[str, Any], key: str) -> str | None:
        """Return a secret that a table has, or has in a file. Raises `EditFailed`."""
        if table.get(f"{key}_file") is None:
            found = table.get(key)
            return None if found is None else str(found)
        path = self.base / str(table[f"{key}_file"])
        try:
            return files.secret(path)
        except BadFile as error:
            raise EditFailed(f"{key}_file: {path} {error}") from None


# rules


def add_rules(gathered: Gathered, rules: Sequence[FormerRule], realm: Sequence[str], nameless: bool) -> None:
    """Add the rights of rules, of which only the first one that matched a name applied."""
    for number, rule in enumerate(rules):
        users = tuple(_users(rule.users, realm, nameless))
        for part in rule.lost:
            gathered.conflicts.append(f"{rule.key}: {part} has no counterpart among rights")
        if any(_hides(before, rule) for before in rules[:number]):
            continue  # it never applied
        narrower = [
            before
            for before in rules[:number]
            if _share(before.users, rule.users, nameless)
            and not all(any(_covers(some, each) for some in before.permits) for each in rule.permits)
        ]
        parts = [attrs.evolve(part, realm=tuple(realm)) for part in _parts(users, rule)]
        if narrower:
            keys = ", ".join(before.key for before in narrower)
            gathered.conflicts.append(f"{rule.key} may give more than {keys}, which came first, to the same users")
            gathered.comments.append(
                (
                    f"{rule.key}: not in force. {keys} came first and gave less to the users that both match, while",
                    "rights add up. Write names of users that none of the earlier rules matches, and remove the marks.",
                    *(line for part in parts for line in _right(part)),
                )
            )
        elif users:
            gathered.rights += parts


def _users(patterns: Iterable[str], realm: Sequence[str], nameless: bool) -> Iterator[str]:
    for pattern in patterns:
        if pattern:
            yield pattern
        if nameless and not pattern.strip("*"):
            yield ANONYMOUS


def _parts(users: tuple[str, ...], rule: FormerRule) -> Iterator[ImportedRight]:
    """Yield the rights of a rule, as few as possible."""
    by_names: dict[tuple[str, tuple[str, ...]], list[str]] = {}
    for listener in dict.fromkeys(listener for _, listener, _ in rule.permits):
        for operation in dict.fromkeys(operation for operation, _, _ in rule.permits):
            names = tuple(name for one, at, name in rule.permits if (one, at) == (operation, listener))
            if names:
                by_names.setdefault((listener, ("*",) if "*" in names else names), []).append(operation)
    for (listener, names), operations in by_names.items():
        yield ImportedRight(users, tuple(operations), listener, names, rule.key)


def _hides(before: FormerRule, rule: FormerRule) -> bool:
    """Return True if the later rule never applied."""
    return all(any(_matches_all(one, other) for one in before.users) for other in rule.users)


def _covers(one: tuple[str, str, str], other: tuple[str, str, str]) -> bool:
    return one[0] == other[0] and all(map(_matches_all, one[1:], other[1:]))


def _matches_all(pattern: str, other: str) -> bool:
    """Return True if all that the other pattern matches is matched by this one; False also where that is not clear."""
    prefix = pattern.removesuffix("*")
    return pattern == other or (pattern.endswith("*") and not set("*?[") & set(prefix) and other.startswith(prefix))


def _share(some: Iterable[str], others: Iterable[str], nameless: bool) -> bool:
    return any(_meet(one, other) and (nameless or bool(one and other)) for one in some for other in others)


def _meet(one: str, other: str) -> bool:
    """Return True if a text may match both shell patterns."""
    first, second = (re.findall(r"\[[^\]]*\]|.", pattern, re.DOTALL) for pattern in (one, other))

    @cache
    def meet(i: int, j: int) -> bool:
        if i == len(first) or j == len(second):
            return all(part == "*" for part in (*first[i:], *second[j:]))
        if first[i] == "*":
            return meet(i + 1, j) or meet(i, j + 1)
        if second[j] == "*":
            return meet(i, j + 1) or meet(i + 1, j)
        return (len(first[i]) > 1 or len(second[j]) > 1 or "?" in (first[i], second[j]) or first[i] == second[j]) and (
            meet(i + 1, j + 1)
        )

    return meet(0, 0)


# the text


def users_text(gathered: Gathered) -> str:
    lines = ["# Users and rights, imported from the listeners of a configuration. docs/security.md describes the file."]
    if not gathered.credentials:
        lines.append("nobody = true")
    lines += _entries(gathered)
    for right in _merged(_narrowed(right, gathered.credentials) for right in gathered.rights):
        lines += ["", *([f"# {right.comment}"] if right.comment else []), *_right(right)]
    return _text([*lines, *_comments(gathered)])


def extended_text(text: str, gathered: Gathered) -> str:
    """Return the text of a users file with the users of listeners, which had the rights of the empty user there."""
    names = [name for name, _ in gathered.coded]
    everybody = ", ".join(map(toml, [ANONYMOUS, *dict.fromkeys(names)]))
    text = re.sub(
        r"(?m)^(\s*users\s*=\s*\[[^\]]*?)(\"\"|'')", lambda match: f"{match[1]}{everybody}", text.replace("\r\n", "\n")
    )
    gathered.conflicts += [
        f"{right.comment}: restricted the rights of the users file, which rights cannot do"
        for right in gathered.rights
        if right.comment
    ]
    return text.rstrip("\n") + "\n" + _text([*_entries(gathered), *_comments(gathered)])


def _entries(gathered: Gathered) -> Iterator[str]:
    for name, kinds in gathered.credentials.items():
        yield from ("", "[[users]]", f"name = {toml(name)}")
        for kind in ("passwords", "keys"):
            if kind in kinds:
                yield f"{kind} = {toml(kinds[kind])}"
        for code in kinds.get("tokens", ()):
            yield from ("[[users.tokens]]", f"label = {toml('the former code')}")
            yield f"hash = {toml(users_document.token_hash(code))}"


def _merged(rights: Iterable[ImportedRight]) -> Iterator[ImportedRight]:
    """Yield the rights, those of the same users and names at one listener as one."""
    found: dict[tuple[tuple[str, ...], str, tuple[str, ...], str], list[str]] = {}
    for right in rights:
        if right.users:
            found.setdefault((right.users, right.listener, right.names, right.comment), []).extend(right.operations)
    for (users, listener, names, comment), operations in found.items():
        yield ImportedRight(users, tuple(dict.fromkeys(operations)), listener, names, comment)


def _narrowed(right: ImportedRight, users: Iterable[str]) -> ImportedRight:
    """Return a right whose patterns match no user whom the listener did not know."""

    def meant(pattern: str) -> Iterator[str]:
        matching = [user for user in users if fnmatchcase(user, pattern)]
        known = [user for user in matching if user in right.realm]
        return iter(known if known != matching else [pattern])

    if not right.realm:
        return right
    return attrs.evolve(right, users=tuple(dict.fromkeys(user for pattern in right.users for user in meant(pattern))))


def _right(right: ImportedRight) -> list[str]:
    lines = ["[[rights]]"]
    for key, values in (("users", right.users), ("operations", right.operations), ("listeners", (right.listener,))):
        lines.append(f"{key} = {toml(values)}")
    if right.names != ("*",):
        lines.append(f"names = {toml(right.names)}")
    return lines


def _comments(gathered: Gathered) -> Iterator[str]:
    for block in gathered.comments:
        yield ""
        yield from (f"# {line}" for line in block)


def _text(lines: Iterable[str]) -> str:
    return "".join(f"{line}\n" for line in lines)
