"""Capacities of contexts, remembered while the contexts are closed.

Without a hint, a burst of reservations for a closed context could not be counted against its capacity: `placement`
would direct them all to one server. The table is bounded by `MAX_CAPACITY_HINTS`; the least recently reported hint is
dropped first.
"""

from __future__ import annotations

from collections import OrderedDict

import attrs

from broker.core.director.interfaces import UNLIMITED
from broker.core.director.limits import MAX_CAPACITY_HINTS
from broker.core.director.names import context_set
from broker.core.director.state import OpenContext


@attrs.frozen
class CapacityHint:
    """The capacity of a context, or of one clone in a clone set (``cloned``), in users; -1 is unlimited."""

    cloned: bool
    room: int


class CapacityHints:
    """The capacities that contexts and clone sets had when they were last reported."""

    def __init__(self) -> None:
        self._shapes: OrderedDict[str, CapacityHint] = OrderedDict()

    def get(self, name: str) -> CapacityHint | None:
        """Return the hint for a context or a clone set, or None if the table has none."""
        return self._shapes.get(name)

    def remember(self, context: OpenContext) -> None:
        """Record the capacity of an open context, under its clone set's name if it is a clone."""
        base = context_set(context.name)
        name = base or context.name
        cloned = base is not None and context.basecap >= 0
        # A clone invites users up to the lower of both: the next clone opens beyond ``basecap``.
        rooms = [room for room in (context.maxcap, context.basecap) if room >= 0] if cloned else [context.maxcap]
        self._shapes[name] = CapacityHint(cloned, min(rooms, default=UNLIMITED))
        self._shapes.move_to_end(name)
        if len(self._shapes) > MAX_CAPACITY_HINTS:
            self._shapes.popitem(last=False)
