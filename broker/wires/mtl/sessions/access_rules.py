"""Which virtual hosts a user may open, and what of them the user may read, write and offer.

Rules:
- The first rule whose patterns match the user's name counts, and no other. Who did not have to say who it is has the
  empty name.
- A resource is written ``PROFILE:RESOURCE``. A pattern of one is exact, or a beginning that ends with ``*``. Users,
  virtual hosts and the names of services have shell patterns (``*``, ``?``, ``[...]``), with case.
- ``{user}`` in a pattern of resources, hosts or services stands for the user's name. Such a pattern matches nothing
  where there is no name.
- Where there are rules, what none of them allows is refused. Where there are none, everything is allowed to everybody.
- A virtual host that is not there is refused as one that the user may not open.
- The broker's own names may be read as any others; nobody writes to them, works for them, or offers them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase
from glob import escape

import attrs

from broker.core.errors import Reason, Refusal
from broker.core.model import OWN_PREFIX, Rights
from broker.wires.mtl.sessions.principals import Side

USER = "{user}"
"""What stands for the user's name in patterns."""

_SERVICE = "service"
"""The profile whose readers work for services: what they read they offer."""

_OWN = tuple(prefix + OWN_PREFIX for prefix in ("", "service/", "load/"))
"""How the broker's own resources begin: topics and queues by name, services and their load with what they are."""


@attrs.frozen
class AccessRule:
    """What some users may do."""

    users: tuple[str, ...]
    hosts: tuple[str, ...]
    read: tuple[str, ...]
    write: tuple[str, ...]
    offer: tuple[str, ...]


@attrs.frozen
class ResourceNames:
    """A set of names: some exact, some by how they begin."""

    exact: frozenset[str]
    prefixes: tuple[str, ...]

    @classmethod
    def of(cls, patterns: Iterable[str], user: str) -> ResourceNames:
        """The names that these patterns mean for that user."""
        exact: set[str] = set()
        prefixes: dict[str, None] = {}
        for pattern in patterns:
            if not user and USER in pattern:
                continue  # it would come to mean everybody's
            # before the user's name is put in, which may end with anything
            prefix = pattern.endswith("*")
            name = pattern.removesuffix("*").replace(USER, user)
            if prefix:
                prefixes[name] = None
            else:
                exact.add(name)
        return cls(frozenset(exact), tuple(prefixes))

    def __contains__(self, name: str) -> bool:
        return name in self.exact or name.startswith(self.prefixes)


ALL = ResourceNames.of(["*"], "")


@attrs.frozen
class UserPermissions:
    """What one user may do in the virtual hosts that it may open. Two that allow the same are equal."""

    read: ResourceNames
    write: ResourceNames
    offers: Rights

    def may(self, side: Side, profile: str, resource: str) -> bool:
        """Whether the user may read that resource of that profile, or write to it."""
        if resource.startswith(_OWN) and (side is Side.WRITER or profile == _SERVICE):
            return False
        return f"{profile}:{resource}" in (self.read if side is Side.READER else self.write)


FREE = UserPermissions(ALL, ALL, Rights())
"""What everybody may do where there are no rules."""


class AccessPolicy:
    """The virtual hosts that there are, and the rules. Both may be replaced while it is used."""

    def __init__(self, hosts: Sequence[str], rules: Sequence[AccessRule] = ()) -> None:
        self.use(hosts, rules)

    def use(self, hosts: Sequence[str], rules: Sequence[AccessRule]) -> None:
        """Take other hosts and rules. What was allowed before is not taken back by this."""
        self._hosts = frozenset(hosts)
        self._rules = tuple(rules)

    def allowed(self, user: str, host: str) -> UserPermissions:
        """What the user may do in that virtual host. Raises `Refusal` if it may not open it, or there is none."""
        if host in self._hosts:
            if not self._rules:
                return FREE
            for rule in self._rules:
                if any(fnmatchcase(user, pattern) for pattern in rule.users):
                    if any(fnmatchcase(host, pattern) for pattern in _shell(rule.hosts, user)):
                        offers = Rights(_shell(rule.offer, user))
                        return UserPermissions(
                            ResourceNames.of(rule.read, user), ResourceNames.of(rule.write, user), offers
                        )
                    break
        raise Refusal(Reason.FORBIDDEN, "there is no such virtual host for this user")


def _shell(patterns: Iterable[str], user: str) -> tuple[str, ...]:
    """Shell patterns, as they are for that user."""
    return tuple(pattern.replace(USER, escape(user)) for pattern in patterns if user or USER not in pattern)
