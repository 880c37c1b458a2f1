"""The queue profile over real flows and queues; where they are durable, a real store in a thread that tests drive."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from broker.core.memory_budget import MemoryBudget
from broker.core.queues.queue_interfaces import RestoredMessage
from broker.core.queues.queue_messages import QueueRule, QueueSettings
from broker.core.queues.queue_recorder import QueueRecorder
from broker.core.queues.queues import Queues
from broker.core.queues.sqlite_store import QueueStore
from broker.wires.mtl.codec import data_messages as wire
from broker.wires.mtl.mtl_settings import Mtl
from broker.wires.mtl.profiles.queue_profile import QueueProfile, identity_of
from broker.wires.mtl.sessions.access_policy import ConfirmMode, Principal, Side
from broker.wires.mtl.sessions.profile_interface import Grant, Profile
from tests.core.queues.farm import commit
from tests.threads import Thread
from tests.wires.mtl.data_recording import DEFAULTS, MtlFarm, MtlPeer
from tests.wires.mtl.profiles_recording import Got, as_got, summon


class Only:
    """Rights to read some queues and to write to some."""

    def __init__(self, read: Collection[str] = (), write: Collection[str] = ()) -> None:
        self._may = {Side.READER: read, Side.WRITER: write}

    def may(self, side: Side, profile: str, resource: str) -> bool:
        assert profile == "queue"
        return resource in self._may[side]


class QueueFarm(MtlFarm):
    """The data flow with queues of these settings. With a ``directory`` those that are durable are kept there."""

    def __init__(
        self,
        settings: QueueSettings | None = None,
        directory: str | None = None,
        rules: Collection[QueueRule] = (),
        config: Mtl = DEFAULTS,
    ) -> None:
        self.rules = [*rules, QueueRule(("*",), settings or QueueSettings())]
        self.directory = directory
        super().__init__(config)

    def start(self) -> None:
        super().start()
        self.thread = Thread()
        self.recorder: QueueRecorder | None = None
        rows: list[RestoredMessage] = []
        if self.directory is not None:
            self.store = QueueStore(self.directory)
            rows = self.store.open(self.clock.seconds())
            self.recorder = QueueRecorder(self.store, self.leases, self.clock, self.thread, rows)
        self.memory = MemoryBudget()
        self.queues = Queues(self.leases, self.rules, self.recorder, identity_of, memory=self.memory)
        self.queues.restore(rows)
        self.queue = QueueProfile(self.queues, self.data, self.clock, self.config.window_bytes)

    def lease(
        self,
        side: Side,
        *resources: str,
        profile: Profile | None = None,
        confirm: ConfirmMode = ConfirmMode.FULL,
        principal: Principal | None = None,
        window: int = 100,
    ) -> str:
        """As the control flow gives it for the queue profile."""
        principal = principal or self.principal("ann")
        for resource in resources:
            self.queue.check(principal, side, resource)
        return self.data_leases.issue(Grant(principal, side, self.queue, resources, confirm, window), "session")

    def worker(self, *resources: str, **lease: Any) -> MtlPeer:
        """One that has summoned these queues, "q" if none is given, and has got nothing yet."""
        peer = self.peer()
        peer.lease(self.lease(Side.READER, *(resources or ("q",)), **lease))
        for resource in resources or ("q",):
            assert summon(peer, resource) == []
        return peer

    def sender(self, *resources: str, **lease: Any) -> MtlPeer:
        """One that may write to these queues, or to "q"."""
        return self.writer(*(resources or ("q",)), **lease)

    def turn(self) -> None:
        """Let the reactor go round once."""
        self.clock.advance(0)

    def commit(self) -> None:
        """Let the time until a write pass, and the thread do its work."""
        commit(self.clock, self.thread)


def answers(peer: MtlPeer) -> list[tuple[Any, ...]]:
    """The answers to a writer: ("confirm", sequence, multiple) and ("reject", sequence, recycle); nothing else."""
    told: list[tuple[Any, ...]] = []
    for command in peer.take():
        if isinstance(command, wire.Confirm):
            told.append(("confirm", command.sequence, command.multiple))
        else:
            assert isinstance(command, wire.Reject)
            assert not command.multiple
            told.append(("reject", command.sequence, command.recycle))
    return told


def got(peer: MtlPeer) -> list[Got]:
    """The Contents that came since the last time. Nothing else did."""
    return [as_got(content) for content in peer.take()]


def bodies(peer: MtlPeer) -> list[bytes]:
    """Their bodies."""
    return [content.body for content in got(peer)]
