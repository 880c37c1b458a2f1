"""Access rules: the virtual hosts that a user may open, and the resources that they may read, write and offer there.

Rules:
- The first rule whose patterns match the name of the user applies, and no other. An anonymous user has the empty name.
- A resource is written ``PROFILE:RESOURCE``. Its pattern is exact, or a prefix that ends with ``*``. Users, virtual
  hosts and names of services have shell patterns (``*``, ``?``, ``[...]``), which are case-sensitive.
- ``{user}`` in a pattern of resources, hosts or services is replaced by the name of the user. Such a pattern matches
  nothing for an anonymous user.
- If there are rules, all that none of them allows is refused. Without rules, everything is allowed.
- An unknown virtual host is refused like a forbidden one.
- Resources of the broker itself may be read as others. No user may write to them, process their requests or offer them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from fnmatch import fnmatchcase
from glob import escape

import attrs

from broker.access.grants import Grants
from broker.access.registry_reading import EVERY_ENTRY, RegistryReading
from broker.core.errors import Reason, Refusal
from broker.core.model import OWN_PREFIX, Rights
from broker.wires.mtl.sessions.principals import Side

USER = "{user}"
"""Placeholder of the user's name in patterns."""

_SERVICE = "service"
"""The profile whose readers process requests: they offer the services that they read."""

_OF_SERVICES = ("registry", "service")
"""The profiles whose resources are services, as PROFILE:KIND/NAME."""

_OWN = tuple(prefix + OWN_PREFIX for prefix in ("", "service/", "load/"))
"""Prefixes of the broker's own resources: topics and queues have the bare name, services and loads a prefix."""


@attrs.frozen
class AccessRule:
    """Permissions of some users in some virtual hosts."""

    users: tuple[str, ...]
    hosts: tuple[str, ...]
    read: tuple[str, ...]
    write: tuple[str, ...]
    offer: tuple[str, ...]


@attrs.frozen
class ResourceNames:
    """A set of names: exact ones, and prefixes."""

    exact: frozenset[str]
    prefixes: tuple[str, ...]

    @classmethod
    def of(cls, patterns: Iterable[str], user: str) -> ResourceNames:
        """Return the names that match these patterns for that user."""
        exact: set[str] = set()
        prefixes: dict[str, None] = {}
        for pattern in patterns:
            if not user and USER in pattern:
                continue  # "user.{user}.*" would match the resources of all users
            # Before the name of the user is inserted, which may end with "*".
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
    """Permissions of one user. Equal values allow the same: a reload compares them."""

    read: ResourceNames
    write: ResourceNames
    offers: Rights

    def may(self, side: Side, profile: str, resource: str) -> bool:
        """Return True if the user may read that resource of that profile, or write to it."""
        if resource.startswith(_OWN) and (side is Side.WRITER or profile == _SERVICE):
            return False
        return f"{profile}:{resource}" in (self.read if side is Side.READER else self.write)

    @property
    def reading(self) -> RegistryReading:
        """The entries of the registry that the user is shown."""
        return EVERY_ENTRY


FREE = UserPermissions(ALL, ALL, Rights())
"""Permissions of all users where there are no rules."""


@attrs.frozen
class GrantedPermissions:
    """Permissions that both the access rules and the grants of the users file give.

    Readers of topics and queues subscribe, their writers publish. Writers of registry and readers of service offer; the
    other two find. A reader of all services, or of all loads, is shown those that the user may find.
    """

    rules: UserPermissions
    grants: Grants

    def may(self, side: Side, profile: str, resource: str) -> bool:
        """Return True if the user may read that resource of that profile, or write to it."""
        if not self.rules.may(side, profile, resource):
            return False
        reads = side is Side.READER
        if profile not in _OF_SERVICES:
            if resource.startswith(OWN_PREFIX) and not self.grants.may_some("find"):
                return False
            return self.grants.may("subscribe" if reads else "publish", resource)
        operation = "offer" if reads == (profile == _SERVICE) else "find"
        _, slash, name = resource.partition("/")
        if slash:
            return self.grants.may(operation, name)
        # Without a name: what may be found for a reader of the registry; own replies and own loads for all others.
        found = self.grants.may_some("find")
        return found if reads and profile != _SERVICE else found or self.grants.may_some("offer")

    @property
    def reading(self) -> RegistryReading:
        """The entries of the registry that the user is shown."""
        return RegistryReading.of(self.grants)

    @property
    def offers(self) -> Rights:
        """Services that the user may offer."""
        return attrs.evolve(self.rules.offers, granted=self.grants.patterns("offer"))


class AccessPolicy:
    """The virtual hosts and the access rules. Both may be replaced at any time.

    ``grants`` returns the grants of a user of that name; None without a users file.
    """

    def __init__(
        self,
        hosts: Sequence[str],
        rules: Sequence[AccessRule] = (),
        grants: Callable[[str], Grants] | None = None,
    ) -> None:
        self._grants = grants
        self.use(hosts, rules)

    def use(self, hosts: Sequence[str], rules: Sequence[AccessRule]) -> None:
        """Apply other hosts and rules. Access given before is revoked by `ControlFlow.review`, not here."""
        self._hosts = frozenset(hosts)
        self._rules = tuple(rules)

    def allowed(self, user: str, host: str) -> UserPermissions | GrantedPermissions:
        """Return the permissions of the user in that virtual host. Raises `Refusal` if it is unknown or forbidden."""
        found = self._allowed_by_rules(user, host)
        return found if self._grants is None else GrantedPermissions(found, self._grants(user))

    def _allowed_by_rules(self, user: str, host: str) -> UserPermissions:
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
    """Return shell patterns with the name of the user inserted; its special characters match themselves."""
    return tuple(pattern.replace(USER, escape(user)) for pattern in patterns if user or USER not in pattern)
