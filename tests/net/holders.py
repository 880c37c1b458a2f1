"""Connections that hold unfinished input, as far as `MemoryBudget` knows them: numbers, and no bytes."""

from __future__ import annotations

from broker.core.errors import Refusal
from broker.core.memory_budget import BY_ADDRESS, BY_ALL, MemoryBudget, Share


class Holding:
    """A connection that keeps what is done to it."""

    def __init__(self, memory: MemoryBudget, host: str = "192.0.2.1", trusted: bool = False) -> None:
        self.host = host
        self.trusted = trusted
        self.refusals: list[Refusal] = []
        self.aborted = False
        self._memory = memory

    def hold(self, size: int, another: bool = False, share: Share = Share.INPUT) -> None:
        self._memory.hold(self, share, size, another)

    def drop(self) -> None:
        self._memory.forget(self)

    @property
    def evicted(self) -> bool:
        return bool(self.refusals)

    def evict(self, refusal: Refusal) -> None:
        self.refusals.append(refusal)

    def abort(self) -> None:
        self.aborted = True


def fill(memory: MemoryBudget) -> list[Holding]:
    """Connections of other addresses hold from now on all that is left of the budget."""
    holders = []
    number = 0
    while rest := BY_ALL - memory.held:
        number += 1
        holder = Holding(memory, f"198.51.100.{number}")
        holder.hold(min(rest, BY_ADDRESS))
        holders.append(holder)
    assert not any(holder.evicted for holder in holders)
    return holders
