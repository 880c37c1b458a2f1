"""Principals: the user that a session or a data lease belongs to, with their permissions."""

from __future__ import annotations

import enum
from typing import Protocol

import attrs

from broker.access.registry_reading import RegistryReading
from broker.core.model import Rights


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
