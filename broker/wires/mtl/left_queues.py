"""Durable messages that are left in the state directory since the queues have another store, and their move into it.

Rules:
- They are found at the start, and are in the log, a reason against readiness and in the table of queues until moved.
- A move takes each queue as a client's request does. A queue of another broker, or one that is not durable any more, is
  left as it is, with the reason.
- A message leaves the disk once the new store has it: a crash in between repeats some. Order is kept within a queue;
  delivery counts begin again, and a message with an id that the new store has got already is not repeated.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IReactorTime
from twisted.logger import Logger

from broker.core.database import StateError
from broker.core.errors import Reason, Refusal
from broker.core.queues.ownership import QueueOwnership
from broker.core.queues.queue_interfaces import Batch, RestoredMessage
from broker.core.queues.queue_messages import living_name
from broker.core.queues.queues import Queues
from broker.core.queues.sqlite_store import QueueStore
from broker.wall_clock import wall
from broker.wires.mtl.profiles.queue_profile import identity_of, is_readable

NAMED = 5
"""Queues that a log line names: the first ones of an operator's work."""

BATCH = 200
"""Messages that are on the way to the new store at a time: some 2 MB."""

Key = tuple[str, str]


class _Written:
    """The author of a batch: fires when the outcome of all of its messages is known."""

    def __init__(self) -> None:
        self.known: Deferred[None] = Deferred()
        self.kept_rows: list[RestoredMessage] = []
        self._pending = 1

    def sent(self) -> None:
        """One more message is under way."""
        self._pending += 1

    def kept(self, tokens: Sequence[RestoredMessage]) -> None:
        """See `Author`."""
        self.kept_rows += tokens
        self.over(len(tokens))

    def not_kept(self, tokens: Sequence[RestoredMessage]) -> None:
        """See `Author`."""
        self.over(len(tokens))

    def over(self, count: int = 1) -> None:
        """That many outcomes are known; the last call is for the end of the batch itself."""
        self._pending -= count
        if not self._pending:
            self.known.callback(None)


class LeftQueues:
    """The messages in the store of ``directory``, which is used no more. ``trouble`` is a sentence about them, empty
    without any; ``counts`` has their number for each space and name."""

    log = Logger()

    def __init__(self, directory: str, clock: IReactorTime) -> None:
        self._directory = directory
        self._clock = clock
        self._moving = False
        self.counts: Mapping[Key, int] = {}
        self.trouble = ""
        store = QueueStore(directory, is_readable)
        try:
            self._found(store.look(wall(clock)))
        except StateError as error:
            self.trouble = f"the former store of queues cannot be read: {error}"
        finally:
            store.close()
        if self.trouble:
            self.log.warn("durable queues: {left}", left=self.trouble)

    def move(
        self, queues: Queues, ownership: QueueOwnership, in_thread: Callable[..., Deferred[Any]]
    ) -> Deferred[tuple[int, Mapping[str, str]]]:
        """Move them into the present store. Fires with their number, and the reason for each queue that is left.

        Fails with `Refusal` FAILED if a move is under way, or if the former store cannot be used.
        """
        return Deferred.fromCoroutine(self._move(queues, ownership, in_thread))

    async def _move(
        self, queues: Queues, ownership: QueueOwnership, in_thread: Callable[..., Deferred[Any]]
    ) -> tuple[int, Mapping[str, str]]:
        if self._moving:
            raise Refusal(Reason.FAILED, "the messages are being moved already")
        self._moving = True
        store = QueueStore(self._directory, is_readable)
        reasons: dict[str, str] = {}
        moved = 0
        try:
            rows: list[RestoredMessage] = await in_thread(store.open, wall(self._clock))
            of_queue: dict[Key, list[RestoredMessage]] = {}
            for row in rows:
                of_queue.setdefault((row.space, living_name(row.name)), []).append(row)
            for key, messages in of_queue.items():
                while messages:
                    try:
                        ready = ownership.require(*key)
                        if ready is not None:
                            await ready
                        gone = await self._put(queues, [each for each in messages[:BATCH] if not each.damaged])
                    except Refusal as refusal:
                        reasons[key[1]] = refusal.text
                        break
                    if not gone:
                        reasons[key[1]] = "its messages are damaged, or could not be written"
                        break
                    await in_thread(store.write, Batch([], [], [], [(each.number, each.order) for each in gone], []))
                    moved += len(gone)
                    done = {each.order for each in gone}
                    messages = [each for each in messages if each.order not in done]
            self._found(await in_thread(store.look, wall(self._clock)))
        except StateError as error:
            raise Refusal(Reason.FAILED, f"the former store of queues cannot be used: {error}") from None
        finally:
            self._moving = False
            await in_thread(store.close)
        self.log.info("durable queues: {moved} messages were moved into the present store", moved=moved)
        return moved, reasons

    async def _put(self, queues: Queues, rows: Sequence[RestoredMessage]) -> list[RestoredMessage]:
        """Put messages into their queues. Returns those that the present store has."""
        batch = _Written()
        safe: list[RestoredMessage] = []
        try:
            for row in rows:
                queue = queues.open(row.space, row.name)
                if not queue.settings.durable:
                    raise Refusal(Reason.PARAMETER, "it is not durable by the present configuration")
                user, id = identity_of(row.head)
                ttl = None if row.seconds == math.inf else max(0.0, row.seconds)
                batch.sent()
                if queue.put(row.head, row.body, ttl, user, id, batch, row):
                    safe.append(row)
                    batch.over()
        except Refusal:
            batch.over()
            if not safe and batch.known.called:
                raise
        batch.over()
        await batch.known
        return [*safe, *batch.kept_rows]

    def _found(self, rows: Sequence[RestoredMessage]) -> None:
        self.counts = Counter((row.space, row.name) for row in rows)
        self.trouble = ""
        if not rows:
            return
        by_name = Counter(row.name for row in rows)
        named = ", ".join(f"{name} ({count})" for name, count in by_name.most_common(NAMED))
        more = "" if len(by_name) <= NAMED else f" and {len(by_name) - NAMED} more queues"
        self.trouble = (
            f"messages are left in {self._directory}, and are not delivered, since mtl.queue_store is another store "
            f"now: {named}{more}. brokerctl queues move carries them over"
        )
