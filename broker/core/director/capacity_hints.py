"""How many a context is meant for, remembered while it is not open.

Without this, a burst of reservations for a context that is not open could not be counted against its capacity.
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
    """``room``: how many go into a context, or into one clone before the next one is opened (``cloned``)."""

    cloned: bool
    room: int


class CapacityHints:
    """The shapes of the contexts, and of the clone sets, that were reported last."""

    def __init__(self) -> None:
        self._shapes: OrderedDict[str, CapacityHint] = OrderedDict()

    def get(self, name: str) -> CapacityHint | None:
        """What is remembered of a context, or of the clones of one."""
        return self._shapes.get(name)

    def remember(self, context: OpenContext) -> None:
        """A context is open."""
        base = context_set(context.name)
        name = base or context.name
        cloned = base is not None and context.basecap >= 0
        rooms = [room for room in (context.maxcap, context.basecap) if room >= 0] if cloned else [context.maxcap]
        self._shapes[name] = CapacityHint(cloned, min(rooms, default=UNLIMITED))
        self._shapes.move_to_end(name)
        if len(self._shapes) > MAX_CAPACITY_HINTS:
            self._shapes.popitem(last=False)
