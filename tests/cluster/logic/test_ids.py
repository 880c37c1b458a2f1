"""Provider ids over a kill of the broker while its memory is being written."""

from __future__ import annotations

import random
from typing import Any

from twisted.internet.task import Clock

from broker.cluster.ids import BLOCK, RESERVE, Ids
from broker.cluster.layout import Keys
from broker.cluster.settings import Memory
from tests.cluster.logic.members import Farm, KeptMemory
from tests.cluster.simulation.fake_client import FakeClient
from tests.cluster.simulation.fake_etcd import FakeEtcd


class Disk:
    """The memory of ids, of which a kill loses what is not `durable`."""

    def __init__(self, memory: Memory) -> None:
        self.durable = self.newest = memory

    def remember(self, next: int, end: int, spare: tuple[int, int]) -> None:
        self.newest = Memory(next_id=next, end_id=end, spare=spare)

    def write(self) -> None:
        self.durable = self.newest


def ids_of(disk: Disk) -> Ids:
    """Return the ids of a broker that starts with what is durable, and cannot reach etcd."""
    clock = Clock()
    client: Any = FakeClient(FakeEtcd(clock, random.Random(1)), clock, random.Random(1))
    keys = Keys("default")
    ids = Ids(client, clock, random.Random(1), keys, keys.member("a"), disk.durable, disk.remember, lambda: 0)
    ids.prepare()
    disk.write()
    return ids


def test_ids_of_the_spare_block_are_not_used_again_after_a_kill() -> None:
    disk = Disk(Memory(next_id=BLOCK, end_id=2 * BLOCK, spare=(4 * BLOCK, 5 * BLOCK)))
    ids = ids_of(disk)
    issued = set()
    while ids.in_hand > BLOCK:
        issued.add(ids.next_id())
        disk.write()
    # The change of the block, and the ids after it, are not durable.
    issued |= {ids.next_id() for _ in range(100)}
    assert 4 * BLOCK in issued
    again = ids_of(disk)
    fresh = {again.next_id() for _ in range(100)}
    assert not issued & fresh
    assert all(4 * BLOCK < id < 5 * BLOCK for id in fresh)


def test_ids_since_a_copy_of_the_state_directory_are_not_used_again() -> None:
    farm = Farm()
    [a] = farm.joined("a")
    a.register()
    farm.run(2.0)
    copy = a.memory.memory
    issued = set()
    for _ in range(8):  # beyond the ids that the copy leaves out
        issued |= {a.cluster.next_id() for _ in range(RESERVE // 4)}
        farm.run(0.2)
    a.kill()
    farm.run(40.0)
    again = farm.member("a", KeptMemory(copy))
    farm.until(lambda: again.started, "the restart")
    assert not issued & {again.cluster.next_id() for _ in range(RESERVE // 4)}
