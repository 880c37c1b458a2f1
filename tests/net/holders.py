"""Connections that hold unfinished input, as far as `UnfinishedInput` knows them: numbers, and no bytes."""

from __future__ import annotations

from broker.core.errors import Refusal
from broker.net.unfinished_input import UNFINISHED, UNFINISHED_BY_ADDRESS, UnfinishedInput


class Holding:
    """A connection that keeps what is done to it."""

    def __init__(self, unfinished: UnfinishedInput, host: str = "192.0.2.1") -> None:
        self.host = host
        self.refusals: list[Refusal] = []
        self.aborted = False
        self._unfinished = unfinished

    def hold(self, size: int, another: bool = False) -> None:
        self._unfinished.hold(self, size, another)

    def drop(self) -> None:
        self._unfinished.drop(self)

    @property
    def evicted(self) -> bool:
        return bool(self.refusals)

    def evict(self, refusal: Refusal) -> None:
        self.refusals.append(refusal)

    def abort(self) -> None:
        self.aborted = True


def fill(unfinished: UnfinishedInput) -> list[Holding]:
    """Connections of other addresses hold from now on all that is left of the bound."""
    holders = []
    number = 0
    while rest := UNFINISHED - unfinished.held:
        number += 1
        holder = Holding(unfinished, f"198.51.100.{number}")
        holder.hold(min(rest, UNFINISHED_BY_ADDRESS))
        holders.append(holder)
    assert not any(holder.evicted for holder in holders)
    return holders
