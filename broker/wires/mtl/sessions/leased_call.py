"""A function that a lease calls when it is due."""

from __future__ import annotations

from collections.abc import Callable


class LeasedCall:
    """The `broker.core.interfaces.Leased` of a function.

    ``check`` is called with the time. It returns the time of the next call, None for no further one.
    """

    def __init__(self, check: Callable[[float], float | None]) -> None:
        self.check = check
