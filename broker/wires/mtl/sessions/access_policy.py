"""Access policy: the virtual hosts that a user may open, and the resources that they may read, write and offer there.

Rules:
- The first virtual host is the listener ``mtl`` of the users file, each other one ``mtl HOST``.
- An unknown virtual host is refused like one where the user may do nothing.
- Readers of topics and queues subscribe, their writers publish. Writers of registry and readers of service offer; the
  other two find. A reader of all services, or of all loads, is shown those that the user may find.
- Resources of the broker itself may be read as others. No user may write to them, process their requests or offer them.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from typing import Protocol

import attrs

from broker.access.principal import Access
from broker.access.principal import Principal as Known
from broker.access.rights import KINDS, OTHER, Grants, RegistryReading
from broker.core.errors import Reason, Refusal, no_right
from broker.core.model import OWN_PREFIX, Rights

# Principals: the user that a session or a data lease belongs to, with their permissions.


class Side(enum.Enum):
    """Direction of a data lease."""

    READER = "reader"
    """Contents go to the client."""
    WRITER = "writer"
    """Contents come from the client."""


class ConfirmMode(enum.Enum):
    """Confirmation of the Contents of a flow."""

    NONE = "none"
    """Contents are not confirmed."""
    FULL = "full"
    """Each Content is confirmed or rejected."""


class Permissions(Protocol):
    """Permissions of one user in one virtual host."""

    def may(self, side: Side, profile: str, resource: str) -> bool:
        """Return True if the user may read that resource of that profile, or write to it."""

    @property
    def reading(self) -> RegistryReading:
        """The entries of the registry that the user is shown in lists of all services or loads."""

    @property
    def offers(self) -> Rights:
        """Services that the user may offer."""


@attrs.frozen(eq=False)
class Principal:
    """A user in a virtual host, with their permissions.

    ``user`` is "" for an anonymous user. ``key`` is the CURVE public key of the connection that authenticated, ""
    without CURVE: only data flows with the same key may use its leases.
    """

    user: str
    host: str
    allowed: Permissions
    key: str = ""

    def payer(self, address: str) -> str:
        """Return the address that what a peer there has stored counts for; empty for a user: see `StoredMemory`."""
        return "" if self.user else address


TITLE = "mtl"
"""The first virtual host, and the sockets of all, as a listener of the users file."""

_SERVICE = "service"
"""The profile whose readers process requests: they offer the services that they read."""

_OF_SERVICES = ("registry", "service")
"""The profiles whose resources are services, as PROFILE:KIND/NAME."""

_OWN = tuple(prefix + OWN_PREFIX for prefix in ("", "service/", "load/"))
"""Prefixes of the broker's own resources: topics and queues have the bare name, services and loads a prefix."""


def _operation(side: Side, profile: str) -> str:
    """Return the operation that a lease of that side needs a right to."""
    reads = side is Side.READER
    if profile not in _OF_SERVICES:
        return "subscribe" if reads else "publish"
    return "offer" if reads == (profile == _SERVICE) else "find"


def no_lease(principal: Principal, side: Side, profile: str, resource: str) -> Refusal:
    """Return the refusal of a lease that a user has no right to."""
    return no_right(_operation(side, profile), resource, principal.user)


@attrs.frozen
class GrantedPermissions:
    """Permissions of one user in one virtual host, by their grants. Equal values allow the same: a change of the users
    file compares them."""

    grants: Grants

    def may(self, side: Side, profile: str, resource: str) -> bool:
        """Return True if the user may read that resource of that profile, or write to it."""
        reads = side is Side.READER
        if resource.startswith(_OWN) and (not reads or profile == _SERVICE):
            return False
        if profile not in _OF_SERVICES:
            if resource.startswith(OWN_PREFIX) and not self.grants.may_some("find"):
                return False
            kind = profile if profile in KINDS else OTHER
            return self.grants.may(_operation(side, profile), resource, kind)
        _, slash, name = resource.partition("/")
        if slash:
            return self.grants.may(_operation(side, profile), name)
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
        return Rights(self.grants.patterns("offer"))


class AccessPolicy:
    """The virtual hosts, and the users file. The hosts may be replaced at any time, except ``bridge``, the first one
    of the start: the other wires share it until a restart."""

    def __init__(self, hosts: Sequence[str], bridge: str, access: Access) -> None:
        self._bridge = bridge
        self._access = access
        self.use(hosts)

    def use(self, hosts: Sequence[str]) -> None:
        """Apply other hosts. Access given before is revoked by `ControlFlow.review`, not here."""
        self._hosts = frozenset((self._bridge, *hosts))

    @property
    def titles(self) -> tuple[str, ...]:
        """The listeners of the virtual hosts."""
        return tuple(map(self._title, self._hosts))

    def has(self, host: str) -> bool:
        """Return True if there is a virtual host of that name."""
        return host in self._hosts

    def allowed(self, user: str, host: str) -> GrantedPermissions:
        """Return the permissions of the user in that virtual host. Raises `Refusal` if it is unknown or forbidden."""
        if host in self._hosts:
            grants = self._access.grants(Known(user), self._title(host))
            if grants.acts:
                return GrantedPermissions(grants)
        raise Refusal(Reason.FORBIDDEN, "there is no such virtual host for this user")

    @property
    def unlimited(self) -> bool:
        """True without a users file: every client may do everything."""
        return not self._access.users

    def serves_anonymous(self, host: str) -> bool:
        """Return True if the anonymous user may do anything in that virtual host."""
        return host in self._hosts and self._access.grants(Known(), self._title(host)).acts

    def is_open(self, host: str) -> bool:
        """Return True if clients without a key are the anonymous user at once: no user with a password may do anything
        in that virtual host. Clients with passwords expect to be asked for them."""
        return self.serves_anonymous(host) and not self._access.logs_in(self._title(host))

    @property
    def has_passwords(self) -> bool:
        """True if any user has a password: a client that is no user yet may become one."""
        return bool(self._access.verifiers)

    def _title(self, host: str) -> str:
        return TITLE if host == self._bridge else f"{TITLE} {host}"
