"""Who a client is, and what a data lease lets it do."""

from __future__ import annotations

import enum
from typing import Protocol

import attrs

from broker.core.model import Rights


class Side(enum.Enum):
    """What a data lease is for."""

    READER = "reader"
    """Contents go to the client."""
    WRITER = "writer"
    """Contents come from the client."""


class ConfirmMode(enum.Enum):
    """Whether Contents of a flow are confirmed."""

    NONE = "none"
    FULL = "full"


class Permissions(Protocol):
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
    allowed: Permissions
    key: str = ""
