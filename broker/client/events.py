"""Events of a data flow that an application is notified of: loss, recovery, and refused Contents."""

from __future__ import annotations

import enum
from collections.abc import Callable


class Event(enum.Enum):
    """Changes of a flow that an application is notified of."""

    LOST = "lost"
    """The flow is lost, and the client is reconnecting."""
    BACK = "back"
    """The flow is restored. Resources are summoned again, and unconfirmed Contents are sent again where ``resend`` was
    set. Contents between the two events are missing where they are not confirmed."""
    REFUSED = "refused"
    """The broker refused a Content of a writer without confirmation."""


OnEvent = Callable[[Event, str], object]
"""Callback for events, with a text for people."""
