"""Grants: the operations that one user may do at one listener, and the names that each operation may concern.

Grants are resolved once for a session from the rights of the users file, and again when these change.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from fnmatch import filter as filter_by_pattern
from fnmatch import fnmatchcase, translate
from glob import escape

import attrs

from broker.access.identity import ANONYMOUS
from broker.access.principal import LOGIN, OPERATIONS

USER = "{user}"
"""Placeholder of the user's name in the patterns of names."""

SERVICE, TOPIC, QUEUE = KINDS = ("service", "topic", "queue")
"""Kinds of names. A pattern that begins with a kind and a colon, such as ``queue:jobs-*``, is one of names of that
kind; others are patterns of all names."""

OTHER = ""
"""The kind of names that have none, such as the resources of MTL's profile ``test``: patterns without a kind match."""


@attrs.frozen
class Right:
    """A right of the users file: all ``users`` may do all ``operations`` with all ``names`` at all ``listeners``.

    All are shell patterns (``*``, ``?``, ``[...]``, case-sensitive). The anonymous user matches ``anonymous`` only, and
    no pattern.
    """

    users: tuple[str, ...]
    operations: tuple[str, ...]
    listeners: tuple[str, ...] = ("*",)
    names: tuple[str, ...] = ("*",)

    def concerns(self, user: str, listener: str) -> bool:
        """Return True if the right is one of that user at the listener of that title."""
        mine = any(fnmatchcase(user, pattern) for pattern in self.users) if user else ANONYMOUS in self.users
        return mine and any(fnmatchcase(listener, pattern) for pattern in self.listeners)

    def concerns_any(self, users: Mapping[str, object], listener: str) -> bool:
        """Return True if the right is one of any of these users at the listener of that title."""
        if not any(fnmatchcase(listener, pattern) for pattern in self.listeners):
            return False
        # Without a look at each user, where the pattern is a name.
        return any(pattern in users or bool(filter_by_pattern(users, pattern)) for pattern in self.users)

    def operations_meant(self) -> Iterator[str]:
        """Yield the operations that the patterns match."""
        for operation in OPERATIONS:
            if any(fnmatchcase(operation, pattern) for pattern in self.operations):
                yield operation


def _regex(names: NameSet) -> re.Pattern[str]:
    return re.compile("|".join(f"(?:{translate(pattern)})" for pattern in sorted(names.patterns)) or "(?!)")


@attrs.frozen
class NameSet:
    """A set of names by shell patterns. Equal sets have equal patterns."""

    patterns: frozenset[str]
    every: bool = attrs.field(init=False, eq=False)
    _matches: re.Pattern[str] = attrs.field(
        init=False, eq=False, repr=False, default=attrs.Factory(_regex, takes_self=True)
    )

    @every.default
    def _every(self) -> bool:
        return "*" in self.patterns

    def __contains__(self, name: str) -> bool:
        """Return True if the name is in the set. The empty name stands for all names at once."""
        return self.every or (name != "" and self._matches.match(name) is not None)


NOTHING = NameSet(frozenset())
"""No name."""

_ALL = NameSet(frozenset("*"))


@attrs.frozen
class Grants:
    """The grants of one user at one listener. Equal values allow the same."""

    names: Mapping[tuple[str, str], NameSet] = attrs.field(factory=dict)
    """The names that each granted operation may concern, by operation and kind of names."""

    def may(self, operation: str, name: str = "", kind: str = SERVICE) -> bool:
        """Return True if the operation is granted for that name; without a name, if it is granted for all names."""
        names = self.names.get((operation, kind))
        return names is not None and name in names

    def may_some(self, operation: str) -> bool:
        """Return True if the operation is granted for any name of any kind."""
        return any(granted == operation for granted, _ in self.names)

    def named(self, operation: str, kind: str = SERVICE) -> NameSet:
        """Return the names that the operation is granted for."""
        return self.names.get((operation, kind), NOTHING)

    def patterns(self, operation: str) -> tuple[str, ...]:
        """Return the shell patterns of the names of services that the operation is granted for."""
        names = self.named(operation)
        return ("*",) if names.every else tuple(sorted(names.patterns))

    @property
    def administers(self) -> bool:
        """True if the state of the daemon may be read, or any administrative operation is granted."""
        return any(operation == "view" or operation.startswith("admin.") for operation, _ in self.names)

    @property
    def some(self) -> bool:
        """True if any operation is granted."""
        return bool(self.names)

    @property
    def acts(self) -> bool:
        """True if any operation but ``login`` is granted."""
        return any(operation != LOGIN for operation, _ in self.names)

    @property
    def unlimited(self) -> bool:
        """True if there is no users file: nothing needs a check."""
        return False


@attrs.frozen
class _Unlimited(Grants):
    """Grants of all users without a users file."""

    def may(self, operation: str, name: str = "", kind: str = SERVICE) -> bool:
        """Return True."""
        return True

    def may_some(self, operation: str) -> bool:
        """Return True."""
        return True

    def named(self, operation: str, kind: str = SERVICE) -> NameSet:
        """Return all names."""
        return _ALL

    def patterns(self, operation: str) -> tuple[str, ...]:
        """Return the pattern of all names."""
        return ("*",)

    @property
    def administers(self) -> bool:
        """True always."""
        return True

    @property
    def some(self) -> bool:
        """True always."""
        return True

    @property
    def acts(self) -> bool:
        """True always."""
        return True

    @property
    def unlimited(self) -> bool:
        """True always."""
        return True


EVERYTHING: Grants = _Unlimited()
"""The grants of all users without a users file."""


def grants_of(user: str, listener: str, rights: Iterable[Right]) -> Grants:
    """Return the grants of a user at the listener of that title. All rights that concern the user add up."""
    patterns: dict[tuple[str, str], set[str]] = {}
    for right in rights:
        if right.concerns(user, listener):
            # A pattern with the user's name matches nothing for the anonymous user.
            names = [of_kind(name) for name in right.names if user or USER not in name]
            for operation in right.operations_meant():
                for kinds, pattern in names:
                    for kind in kinds:
                        patterns.setdefault((operation, kind), set()).add(pattern.replace(USER, escape(user)))
    return Grants({key: NameSet(frozenset(names)) for key, names in patterns.items()})


def of_kind(pattern: str) -> tuple[tuple[str, ...], str]:
    """Return the kinds of names that a pattern matches, and the pattern of the names."""
    kind, colon, rest = pattern.partition(":")
    return ((kind,), rest) if colon and kind in KINDS else ((*KINDS, OTHER), pattern)
