"""Grants: the operations that one user may do at one listener, and the names that each operation may concern.

Grants are resolved once for a session from the rights of the users file, and again when these change.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from fnmatch import fnmatchcase, translate
from glob import escape

import attrs

from broker.access.principal import OPERATIONS

USER = "{user}"
"""Placeholder of the user's name in the patterns of names."""


@attrs.frozen
class Right:
    """A right of the users file: all ``users`` may do all ``operations`` with all ``names`` at all ``listeners``.

    All are shell patterns (``*``, ``?``, ``[...]``, case-sensitive). The anonymous user matches the empty pattern only.
    """

    users: tuple[str, ...]
    operations: tuple[str, ...]
    listeners: tuple[str, ...] = ("*",)
    names: tuple[str, ...] = ("*",)

    def concerns(self, user: str, listener: str) -> bool:
        """Return True if the right is one of that user at the listener of that title."""
        mine = any(fnmatchcase(user, pattern) if user else not pattern for pattern in self.users)
        return mine and any(fnmatchcase(listener, pattern) for pattern in self.listeners)

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


@attrs.frozen
class Grants:
    """The grants of one user at one listener. Equal values allow the same."""

    names: Mapping[str, NameSet] = attrs.field(factory=dict)
    """The names that each granted operation may concern."""

    def may(self, operation: str, name: str = "") -> bool:
        """Return True if the operation is granted for that name; without a name, if it is granted for all names."""
        names = self.names.get(operation)
        return names is not None and name in names

    def may_some(self, operation: str) -> bool:
        """Return True if the operation is granted for any name."""
        return operation in self.names

    def patterns(self, operation: str) -> tuple[str, ...]:
        """Return the shell patterns of the names that the operation is granted for."""
        names = self.names.get(operation)
        return () if names is None else ("*",) if names.every else tuple(sorted(names.patterns))

    @property
    def administers(self) -> bool:
        """True if the state of the daemon may be read, or any administrative operation is granted."""
        return any(operation == "view" or operation.startswith("admin.") for operation in self.names)

    @property
    def unlimited(self) -> bool:
        """True if there is no users file: nothing needs a check."""
        return False


@attrs.frozen
class _Unlimited(Grants):
    """Grants of all users without a users file."""

    def may(self, operation: str, name: str = "") -> bool:
        """Return True."""
        return True

    def may_some(self, operation: str) -> bool:
        """Return True."""
        return True

    def patterns(self, operation: str) -> tuple[str, ...]:
        """Return the pattern of all names."""
        return ("*",)

    @property
    def administers(self) -> bool:
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
    patterns: dict[str, set[str]] = {}
    for right in rights:
        if right.concerns(user, listener):
            # A pattern with the user's name matches nothing for the anonymous user.
            names = [name.replace(USER, escape(user)) for name in right.names if user or USER not in name]
            for operation in right.operations_meant():
                patterns.setdefault(operation, set()).update(names)
    return Grants({operation: NameSet(frozenset(names)) for operation, names in patterns.items()})
