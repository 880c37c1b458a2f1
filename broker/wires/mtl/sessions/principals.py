"""Who a client is, and what a data lease lets it do."""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING, Protocol

import attrs

from broker.core.model import Rights

if TYPE_CHECKING:
    from broker.wires.mtl.sessions.profile_interface import Profile


class Side(enum.Enum):
    """What a data lease is for."""

    READER = "reader"
    """Contents go to the client."""
    WRITER = "writer"
    """Contents come from the client."""


class Confirm(enum.Enum):
    """Whether Contents of a flow are confirmed."""

    NONE = "none"
    FULL = "full"


class Allowed(Protocol):
    """What one user may do in one virtual host."""

    def may(self, side: Side, profile: str, resource: str) -> bool:
        """Whether the user may read that resource of that profile, or write to it."""

    @property
    def offers(self) -> Rights:
        """Which services the user may offer."""


@attrs.frozen(eq=False)
class Principal:
    """Who a session acts for.

    ``user`` is "" for somebody who did not have to say who it is. ``host`` is the virtual host. ``key`` is the CURVE
    public key of the connection that it authenticated by, "" without CURVE: its flows must have the same.
    """

    user: str
    host: str
    allowed: Allowed
    key: str = ""


@attrs.frozen(eq=False)
class Grant:
    """What a data lease gives.

    No ``resources``: all of the profile's. ``window`` counts for readers whose Contents are confirmed.
    """

    principal: Principal
    side: Side
    profile: Profile
    resources: tuple[str, ...]
    confirm: Confirm
    window: int

    def covers(self, resource: str) -> bool:
        """Whether the lease is for that resource, as far as its own list says."""
        return not self.resources or resource in self.resources
