"""Rights: grants by operation, listener and name; visible entries of the registry; access without a users file.

Grants: the operations that one user may do at one listener, and the names that each operation may concern.

Grants are resolved once for a session from the rights of the users file, and again when these change.

Reading the registry: the entries that a user is shown, by whatever way.

Ways are finds, lists and DNS, the broker's own topics, watches and events, the tables of operators, and the profile
"registry" of MTL. One rule holds for all of them:

- An entry is shown to users with the right `find` for its name. The right to use the way ("subscribe", "view") is
  needed besides, and does not replace it.
- Lists, watches and topics of all names leave out what is not shown. A name that is asked for, and a list whose reader
  may find nothing, is refused.
- An item about several services, such as a provider and its load, is shown to users who may find any of them; an item
  about none that is known, such as the end of a provider, to users who may find all names.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from fnmatch import filter as filter_by_pattern
from fnmatch import fnmatchcase, translate
from glob import escape

import attrs
from twisted.internet.defer import Deferred, fail

from broker.access.identity import ANONYMOUS
from broker.access.passwords import ITERATIONS, PasswordVerifier
from broker.access.principal import LOGIN, OPERATIONS, Principal
from broker.core.errors import Reason, Refusal

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
        """Return True if the right applies to any of these users at the listener of that title."""
        if not any(fnmatchcase(listener, pattern) for pattern in self.listeners):
            return False
        # Without a loop over all users, where the pattern is a name.
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
        """Always True."""
        return True

    @property
    def some(self) -> bool:
        """Always True."""
        return True

    @property
    def acts(self) -> bool:
        """Always True."""
        return True

    @property
    def unlimited(self) -> bool:
        """Always True."""
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


_ALL_NAMES = NameSet(frozenset("*"))


@attrs.frozen
class RegistryReading:
    """The entries that one user is shown. Equal values show the same, so that readers share encoded messages."""

    names: NameSet = _ALL_NAMES

    @classmethod
    def of(cls, grants: Grants | None) -> RegistryReading:
        """Return the reading that the grants permit; everything without a users file (None)."""
        if grants is None or grants.unlimited:
            return EVERY_ENTRY
        return cls(grants.named("find"))

    @property
    def every(self) -> bool:
        """True if all entries are shown: nothing needs a check."""
        return self.names.every

    @property
    def nothing(self) -> bool:
        """True if no entry is shown, whatever its name."""
        return not self.names.patterns

    def shows(self, name: str) -> bool:
        """Return True if a service of that name is shown."""
        return name in self.names

    def shows_any(self, names: Iterable[str]) -> bool:
        """Return True if something that concerns services of these names is shown."""
        return self.names.every or any(name in self.names for name in names)


EVERY_ENTRY = RegistryReading()
"""All entries."""


# Access without a users file: the anonymous user may do everything.


class AnonymousAccess:
    """Implementation of `broker.access.principal.Access` without users: all credentials are refused."""

    users = False
    problems = ()

    def __init__(self) -> None:
        self.changed: list[Callable[[], object]] = []
        """Callbacks, which are never called: nothing changes."""
        self.keys: dict[str, str] = {}
        """No keys."""
        self.verifiers: dict[str, PasswordVerifier] = {}
        """No passwords."""
        self.shapes: tuple[tuple[int, int], ...] = ()
        self.work = ITERATIONS

    def by_password(self, user: str, password: str, address: str) -> Deferred[Principal]:
        """Refuse the password."""
        return fail(self._refusal())

    def by_token(self, token: str, address: str) -> Principal:
        """Refuse the token."""
        raise self._refusal()

    def by_certificate(self, names: tuple[str, ...], address: str) -> Principal | None:
        """Return None: no certificate has a user."""
        return None

    def allows(self, principal: Principal, listener: str, operation: str, name: str = "") -> bool:
        """Return True."""
        return True

    def grants(self, principal: Principal, listener: str) -> Grants:
        """Return the grants of everything."""
        return EVERYTHING

    def logs_in(self, listener: str) -> bool:
        """Return False: there are no users."""
        return False

    def verifier(self, user: str) -> PasswordVerifier | None:
        """Return None: there are no users."""
        return None

    def stands(self, principal: Principal) -> bool:
        """Return True."""
        return True

    def _refusal(self) -> Refusal:
        return Refusal(Reason.WRONG_CREDENTIALS, "no users file is configured, so there are no users")
