"""The profile "queue": work queues. Each Content is given to one reader after another until one confirms it.

Rules (the behaviour of queues themselves is in `broker.core.queues.work_queue`):
- A resource is a queue. Its first use creates it, in the virtual host of the user.
- A Content is confirmed to its writer when it is queued; in a durable queue when it is on the disk, or when a reader
  has confirmed it. Confirms are batched: one with ``multiple`` covers many where no earlier Content is undecided.
- A Content that finds no room now is rejected with recycle ("send it again"); one that can never be queued is rejected
  without. From a writer without confirmation, what finds no room is lost, and counted.
- A reader that confirms has a send window. A reader that does not is sent Contents as long as it reads, in bounded
  turns; each Content is settled when the transport accepts it.
- A Content that a reader confirms is settled. One that it rejects with recycle is sent again: to another reader with
  room, or else after a pause. One that it rejects without recycle becomes a dead letter.
- After a Dismiss, the reader keeps the Contents that it was sent, and answers them. When a flow ends, its unanswered
  Contents return to their places.
- A Content is sent with its properties and those of the broker: ``user-id`` if its writer has a name, ``redelivered``,
  ``delivery-count`` from 1 on, and ``death-reason`` of dead letters. The broker removes these properties from Contents
  of writers. It reads ``ttl`` (milliseconds) and ``message-id``.
- A Content with ``delay`` (milliseconds) or ``deliver-at`` (milliseconds since the epoch) is given to no reader before
  that time. It is sent with ``deliver-at``, which is in the store as well.
- In a cluster, or with a shared store, a queue is used at the broker that owns it (`Owners`). A lease names its queues,
  which are claimed and loaded before the lease is issued; it is refused if another broker has one of them. Flows that
  use a queue end when the queue moves, and their clients are notified.
- A slow reader keeps its place; Contents that it has no room for are given to others, or wait for it.

The file is longer than others: its readers and writers implement one profile and share its rules.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Mapping, Sequence
from math import inf
from typing import Any, Protocol

from twisted.internet.defer import Deferred, FirstError, gatherResults
from twisted.internet.interfaces import IDelayedCall, IReactorTime
from twisted.python.failure import Failure

from broker.core.errors import Reason, Refusal
from broker.core.queues.queue_messages import DEAD
from broker.net.peer_interfaces import Sent
from broker.wall_clock import wall
from broker.wires.mtl.codec.data_messages import MAX_STRING, Content, make_tail
from broker.wires.mtl.codec.field_table import MAX_EXTENDED, IllFormed, check, members, with_members, without_members
from broker.wires.mtl.sessions.access_policy import ConfirmMode, Principal, Side, no_lease
from broker.wires.mtl.sessions.profile_interface import (
    DataFlows,
    Profile,
    ProfileReader,
    ProfileWriter,
    SendWindow,
    payer_of,
)

MAX_NAME = 250
"""Bytes of the name of a queue: that of its dead letters is longer by five, and must be a short string, too."""

MOST_AT_ONCE = 100
"""Contents that a reader without window is sent in one turn of the reactor: some milliseconds of work."""

MOST_PREPARED = 32
"""Cached tails of Contents of one writer: it has few queues, and its properties are often the same."""

MAX_PREPARED = 2_048
"""Bytes of a cached tail, as in `broker.wires.mtl.codec.data_messages.MAX_TAIL`."""

DELIVER_AT = "deliver-at"
"""Property: the time before which a Content is not delivered, in milliseconds since the epoch."""

LONGEST_TTL = 10 * 365 * 86_400.0
"""Seconds: a longer time to live counts as unlimited, and a longer delay as none."""


_Prepared = tuple[bytes, float | None, str | None, float]
"""Processed tail of a Content: the tail that it is sent with, its time to live in seconds, its message-id, and the time
before which it is not delivered, in seconds since the epoch, 0 for none."""


class WorkMessage(Protocol):
    """A message of a queue. ``head`` is the tail that it is sent with the first time."""

    head: bytes
    body: Any
    count: int
    death: Any
    queue: Any
    size: int


class WorkQueue(Protocol):
    """A queue: see `broker.core.queues.work_queue.Queue`."""

    def put(
        self,
        head: bytes,
        body: Any,
        ttl: float | None,
        user: str,
        id: str | None,
        author: Any,
        token: Any,
        payer: str,
        delay: float,
    ) -> bool: ...

    def join(self, receiver: Any) -> Any: ...

    def leave(self, consumer: Any) -> None: ...


class WorkQueues(Protocol):
    """All queues: see `broker.core.queues.queues.Queues`."""

    def open(self, space: str, name: str, payer: str) -> WorkQueue: ...

    def serve(self, receiver: Any) -> None: ...

    def give_back(self, messages: Iterable[Any]) -> None: ...

    def counts(self) -> Mapping[str, int]: ...


class Owners(Protocol):
    """Ownership of queues: see `broker.core.queues.ownership.QueueOwnership`."""

    lost: Any

    def require(self, space: str, name: str, payer: str) -> Deferred[None] | None: ...


class QueueProfile(Profile):
    """See `broker.wires.mtl.sessions.profile_interface.Profile`."""

    name = "queue"
    confirms: Mapping[Side, tuple[ConfirmMode, ...]] = {
        Side.READER: (ConfirmMode.FULL, ConfirmMode.NONE),
        Side.WRITER: (ConfirmMode.FULL, ConfirmMode.NONE),
    }

    def __init__(
        self,
        queues: WorkQueues,
        flows: DataFlows,
        clock: IReactorTime,
        window_bytes: int,
        owners: Owners | None = None,
    ) -> None:
        self._queues = queues
        self._owners = owners
        """None where this broker owns all queues."""
        self._users: dict[tuple[str, str], dict[ProfileReader | ProfileWriter, None]] = {}
        """Flows that end when a queue moves, by virtual host and name of the queue. Empty without owners."""
        if owners is not None:
            owners.lost = self._lost
        self._flows = flows
        self._clock = clock
        self.window_bytes = window_bytes
        """Bytes of unconfirmed Contents of one reader. A change applies to flows that begin later."""
        self._unanswered: dict[_WriterPlace, None] = {}
        """Writers with due Confirms."""
        self._answering: IDelayedCall | None = None

    # the profile

    def check(self, principal: Principal, side: Side, resource: str) -> None:
        if len(resource.removesuffix(DEAD).encode()) > MAX_NAME:
            raise Refusal(Reason.PARAMETER, f"the name of a queue has more than {MAX_NAME} bytes")
        if not principal.allowed.may(side, self.name, resource):
            raise no_lease(principal, side, self.name, resource)

    def prepare(
        self, principal: Principal, side: Side, resources: Collection[str], payer: str
    ) -> Deferred[None] | None:
        if self._owners is None:
            return None
        waits = []
        for resource in resources:
            self.check(principal, side, resource)  # only permitted queues are claimed
        for resource in resources:
            ready = self._owners.require(principal.host, resource, payer)
            if ready is not None:
                waits.append(ready)
        return gatherResults(waits, consumeErrors=True).addCallbacks(_nothing, _first) if waits else None

    def joined(self, flow: ProfileReader | ProfileWriter) -> None:
        grant = flow.grant
        for resource in grant.resources:
            self._use(flow, resource)
        if grant.side is Side.WRITER:
            flow.place = _WriterPlace(flow)  # type: ignore[arg-type]
        elif grant.confirm is ConfirmMode.FULL:
            flow.place = _ConfirmingReader(self._queues, flow, SendWindow(grant.window, self.window_bytes))  # type: ignore[arg-type]
        else:
            flow.place = _UnconfirmedReader(self._queues, flow, self._clock)  # type: ignore[arg-type]

    def left(self, flow: ProfileReader | ProfileWriter) -> None:
        grant = flow.grant
        for resource in grant.resources or (flow.place.consumers if grant.side is Side.READER else ()):
            self._use_no_more(flow, resource)
        flow.place.end()

    def _use(self, flow: ProfileReader | ProfileWriter, resource: str) -> None:
        """Note that a flow uses a queue."""
        if self._owners is not None:
            self._users.setdefault((flow.grant.principal.host, resource), {})[flow] = None

    def _use_no_more(self, flow: ProfileReader | ProfileWriter, resource: str) -> None:
        key = (flow.grant.principal.host, resource)
        users = self._users.get(key)
        if users is not None:
            users.pop(flow, None)
            if not users:
                del self._users[key]

    def _lost(self, space: str, name: str) -> None:
        """End the flows that use a queue, or its dead-letter queues, which another broker has now."""
        while len(name) <= MAX_STRING:
            # A copy: the end of a flow removes it, and the other flow of its client.
            for flow in list(self._users.get((space, name), ())):
                self._flows.end(flow, "moved", announce=True)
            name += DEAD

    def summon(self, reader: ProfileReader, resource: str, body: bytes = b"") -> None:
        receiver: _ReaderPlace = reader.place
        try:
            queue = self._queues.open(reader.grant.principal.host, resource, payer_of(reader))
        except Refusal as refusal:
            # The Summon has been answered with 200 already, so the flow ends. The client may try again later.
            moved = refusal.reason is not Reason.LIMIT
            self._flows.end(reader, "moved" if moved else "limit", announce=moved)
            return
        receiver.consumers[resource] = queue.join(receiver)
        if not reader.grant.resources:
            self._use(reader, resource)

    def dismiss(self, reader: ProfileReader, resource: str) -> None:
        if not reader.grant.resources:
            self._use_no_more(reader, resource)
        consumer = reader.place.consumers.pop(resource)
        consumer.queue.leave(consumer)

    def room(self, reader: ProfileReader) -> None:
        receiver: _ReaderPlace = reader.place
        receiver.unblock()
        self._queues.serve(receiver)

    def content(self, writer: ProfileWriter, resource: str, content: Content) -> None:
        author: _WriterPlace = writer.place
        sequence = content.sequence
        now = wall(self._clock)
        head, ttl, id, due = author.prepared.get(content.tail) or author.prepare(resource, content, now)
        try:
            queue = self._queues.open(author.host, resource, author.payer)
            safe = queue.put(head, content.body, ttl, author.user, id, author.waits, sequence, author.payer, due - now)
        except Refusal as refusal:
            if refusal.reason is Reason.ELSEWHERE:
                author.misdirect(sequence)
            else:
                author.refuse(sequence, recycle=refusal.reason in (Reason.LIMIT, Reason.UNAVAILABLE))
            return
        if author.waits is not None:
            if safe:
                author.done.append(sequence)
                if self._answering is None or author not in self._unanswered:
                    self._answer_soon(author)
            else:
                author.undecided.append(sequence)

    def confirmed(self, reader: ProfileReader, sequence: int, multiple: bool) -> None:
        receiver: _ConfirmingReader = reader.place
        for message in receiver.window.answered(sequence, multiple):
            message.queue.settle(message)
        receiver.look()
        if receiver.parked:
            self._queues.serve(receiver)

    def rejected(self, reader: ProfileReader, sequence: int, multiple: bool, recycle: bool) -> None:
        receiver: _ConfirmingReader = reader.place
        messages = receiver.window.answered(sequence, multiple)
        receiver.look()
        for message in messages:
            if recycle:
                message.queue.recycle(message, receiver)
            else:
                message.queue.reject(message)
        if receiver.parked:
            self._queues.serve(receiver)

    def counts(self) -> Mapping[str, int]:
        return {f"mtl_queue.{name}": count for name, count in self._queues.counts().items()}

    def close(self) -> None:
        if self._answering is not None:
            self._answering.cancel()
            self._answer()

    # Confirms to writers

    def _answer_soon(self, author: _WriterPlace) -> None:
        """Send the Confirms of a writer after the messages that have been received already: one Confirm covers many."""
        self._unanswered[author] = None
        if self._answering is None:
            self._answering = self._clock.callLater(0, self._answer)

    def _answer(self) -> None:
        self._answering = None
        unanswered, self._unanswered = self._unanswered, {}
        for author in unanswered:
            author.answer()


class _WriterPlace:
    """State of a writer."""

    __slots__ = ("_writer", "done", "host", "payer", "prepared", "undecided", "user", "waits")

    def __init__(self, writer: ProfileWriter) -> None:
        self._writer: ProfileWriter | None = writer
        self.host = writer.grant.principal.host
        self.user = writer.grant.principal.user
        self.payer = payer_of(writer)
        self.waits = self if writer.grant.confirm is ConfirmMode.FULL else None
        """Receiver of the outcome of durable messages, None if the flow is not confirmed."""
        self.done: list[int] = []
        """Sequences to be confirmed."""
        self.undecided: deque[int] = deque()
        """Sequences of messages that are being written to the disk, in this order."""
        self.prepared: dict[bytes, _Prepared] = {}
        """Cache of processed tails."""

    def prepare(self, resource: str, content: Content, now: float) -> _Prepared:
        """Read the properties of a Content, and make the tail that it is sent with."""
        # A time that counts as none must not count after a restart, when `identity_of` reads the head.
        table = without_members(content.table, "user-id", "death-reason", "delay", DELIVER_AT)
        own: dict[str, Any] = {"redelivered": False, "delivery-count": 1}
        if self.user:
            own["user-id"] = self.user
        said = members(content.table, "ttl", "message-id", "delay", DELIVER_AT)
        seconds, delay, id = _seconds(said.get("ttl")), _seconds(said.get("delay")), said.get("message-id")
        due = now + delay if delay is not None else _due(said, now)
        if due:
            own[DELIVER_AT] = round(due * 1000)
        head = make_tail(resource, with_members(table, own))
        if len(self.prepared) >= MOST_PREPARED:
            self.prepared.clear()
        prepared = head, seconds, id if isinstance(id, str) else None, due
        if len(head) <= MAX_PREPARED and delay is None:
            self.prepared[content.tail] = prepared
        return prepared

    def refuse(self, sequence: int, recycle: bool) -> None:
        """Reject a Content, after the Confirms that are due: answers of a writer are in order."""
        if self._writer is not None:
            self.answer()
            self._writer.reject(sequence, recycle=recycle)

    def misdirect(self, sequence: int) -> None:
        """Refuse a Content for a queue of another broker, after the Confirms that are due."""
        if self._writer is not None:
            self.answer()
            self._writer.misdirect(sequence)

    def kept(self, tokens: Sequence[int]) -> None:
        """Confirm messages that are on the disk."""
        for sequence in tokens:
            self.undecided.remove(sequence)  # near the front: batches are written in order
        self.done += tokens
        self.answer()

    def not_kept(self, tokens: Sequence[int]) -> None:
        """Reject messages that could not be written."""
        lost = set(tokens)
        self.undecided = deque(each for each in self.undecided if each not in lost)
        for sequence in tokens:
            self.refuse(sequence, recycle=True)

    def answer(self) -> None:
        """Send the Confirms that are due."""
        done, self.done = self.done, []
        if not done or self._writer is None:
            return
        # A Confirm with ``multiple`` covers all up to its sequence, so it must end below the first undecided one.
        last = max(done)
        first = self.undecided[0] if self.undecided else last + 1
        if last < first:
            self._writer.confirm(last, len(done) > 1)
            return
        covered = [sequence for sequence in done if sequence < first]
        if covered:
            self._writer.confirm(max(covered), len(covered) > 1)
        for sequence in done:
            if sequence > first:
                self._writer.confirm(sequence)

    def end(self) -> None:
        """Process the end of the flow."""
        self.waits = None  # a reference to itself: without the cycle, no garbage collection is needed
        self._writer = None


class _ReaderPlace:
    """State of a reader: see `broker.core.queues.queue_interfaces.MessageReceiver`."""

    def __init__(self, queues: WorkQueues, reader: ProfileReader) -> None:
        self.room = True
        self.parked: dict[Any, None] = {}
        self.consumers: dict[str, Any] = {}
        """By the names of their queues."""
        self._queues = queues
        self._reader = reader
        self._blocked = False
        """True if a Content found no room in the transport, or the reader is gone."""

    def unblock(self) -> None:
        """Process that the reader has room again."""
        self._blocked = False
        self.look()

    def look(self) -> None:
        """Update ``room``."""
        self.room = not self._blocked

    def _send(self, message: WorkMessage) -> bool:
        """Send a message. Returns False if the transport refused it."""
        tail = message.head if message.count == 1 and message.death is None else _again(message)
        if self._reader.send(tail, message.body) is Sent.SENT:
            return True
        self._blocked = True
        self.room = False
        return False

    def end(self) -> None:
        """Process the end of the flow."""
        self._blocked = True
        self.room = False
        self._give_back()
        for consumer in self.consumers.values():
            consumer.queue.leave(consumer)
        self.consumers.clear()

    def _give_back(self) -> None:
        """Return unanswered messages. Before the consumers leave: the next reader of a queue for a single one begins
        then, and must not be sent later messages first."""


class _ConfirmingReader(_ReaderPlace):
    """A reader that confirms."""

    def __init__(self, queues: WorkQueues, reader: ProfileReader, window: SendWindow[Any]) -> None:
        super().__init__(queues, reader)
        self.window = window

    def look(self) -> None:
        self.room = not self._blocked and self.window.room

    def take(self, message: WorkMessage) -> bool:
        if not self._send(message):
            return False
        self.room = self.window.add(self._reader.sequence, message)
        return True

    def _give_back(self) -> None:
        self._queues.give_back(self.window.clear())


class _UnconfirmedReader(_ReaderPlace):
    """A reader that does not confirm."""

    def __init__(self, queues: WorkQueues, reader: ProfileReader, clock: IReactorTime) -> None:
        super().__init__(queues, reader)
        self._clock = clock
        self._sent = 0
        """Contents sent in the present turn."""
        self._pause: IDelayedCall | None = None

    def look(self) -> None:
        self.room = not self._blocked and self._pause is None

    def take(self, message: WorkMessage) -> bool:
        if not self._send(message):
            return False
        message.queue.settle(message)
        self._sent += 1
        if self._sent == MOST_AT_ONCE:
            self.room = False
            self._pause = self._clock.callLater(0, self._go_on)
        return True

    def _go_on(self) -> None:
        self._pause = None
        self._sent = 0
        self.look()
        self._queues.serve(self)


def _nothing(_: object) -> None:
    """Drop the results of preparations."""


def _first(failure: Failure) -> None:
    """Raise the first refusal."""
    error = failure.value
    if isinstance(error, FirstError):
        error.subFailure.raiseException()
    failure.raiseException()


def _again(message: WorkMessage) -> bytes:
    """Return the tail of a message that was sent before, or that is a dead letter."""
    table = message.head[1 + message.head[0] :]
    own: dict[str, Any] = {"redelivered": message.count > 1, "delivery-count": message.count}
    if message.death is not None:
        own["death-reason"] = str(message.death)
    return make_tail(message.queue.name, with_members(table, **own))


def _seconds(value: object, most: float = LONGEST_TTL) -> float | None:
    """Return a number of milliseconds in seconds; None for another value, and beyond ``most`` seconds."""
    # bool is a subclass of int in Python.
    if isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= most * 1000:
        return value / 1000
    return None


def _due(said: Mapping[str, Any], now: float) -> float:
    """Return the time of ``deliver-at`` in seconds since the epoch, 0 without a valid one."""
    return _seconds(said.get(DELIVER_AT), now + LONGEST_TTL) or 0.0


def identity_of(tail: bytes) -> tuple[str, str | None, float]:
    """Return the user-id, the message-id and the time of delivery in the tail of a kept Content.

    The user is empty without a user-id, and the id None without a message-id. The time is in seconds since the epoch, 0
    without one.
    """
    said = members(tail[1 + tail[0] :], "user-id", "message-id", DELIVER_AT)
    user, id = said.get("user-id", ""), said.get("message-id")
    return user if isinstance(user, str) else "", id if isinstance(id, str) else None, _due(said, inf)


def is_readable(tail: bytes) -> bool:
    """Return True if the tail of a kept Content can be sent with other properties. An altered one may not be."""
    try:
        check(tail[1 + tail[0] :], MAX_EXTENDED)
    except (IllFormed, IndexError):
        return False
    return True
