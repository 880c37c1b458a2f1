"""State of a member that outlives restarts, kept in step with its memory."""

from __future__ import annotations

from typing import Any

import attrs

from broker.cluster.settings import ClusterMemory, Memory


class Kept:
    """The newest `Memory`. ``saved`` is what ``memory`` has, or is being given."""

    def __init__(self, memory: ClusterMemory) -> None:
        self._memory = memory
        self.saved = memory.load()

    def ids(self, next: int, end: int, spare: tuple[int, int]) -> Any:
        """Keep the blocks of provider ids; see `Memory`."""
        return self._save(attrs.evolve(self.saved, next_id=next, end_id=end, spare=spare))

    def membership(self, instance: str, lease: int, epoch: str, revision: int) -> None:
        """Keep name and lease, and the data of etcd that were read last."""
        self._save(attrs.evolve(self.saved, instance=instance, lease=lease, epoch=epoch, revision=revision))

    def _save(self, new: Memory) -> Any:
        if new == self.saved:
            return None
        self.saved = new
        return self._memory.save(new)
