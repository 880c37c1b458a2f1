"""The operators' actions on queues: put, get, peek, purge, move.

Rules:
- A message is as safe as one of a client: a put into a durable queue is answered when the message is on the disk.
- A get takes messages that no reader has, in order, and confirms them: an answer that is lost has lost them. Peek
  leaves them. A queue with a single active consumer gives nothing to a get beside it.
- Get and peek return fewer messages than asked for where their bodies have more than `MAX_BODIES` together.
- Purge and move concern the messages that no reader has, at the time of the order, in slices of `SLICE`. A move counts
  what the store has confirmed. It stops where the target has no room, another broker takes a queue, or the store does
  not confirm a slice in time; what was moved stays there.
- The right at the operator's listener is for queues in the first virtual host. For another host, the user needs the
  right at the listener of that host as well, as a client does; administrators do not.
- In a cluster, both queues are claimed first, as by a client.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Generator
from itertools import accumulate
from typing import Any

from twisted.internet.defer import Deferred, inlineCallbacks, succeed
from twisted.internet.interfaces import IReactorTime
from twisted.internet.task import deferLater

from broker.access.principal import Principal, forbidden
from broker.core.errors import Reason, Refusal
from broker.core.model import check_printable
from broker.core.operator_interfaces import MovedMessages, Purged, QueueMessage, QueueMessages, as_text
from broker.core.queues.ownership import QueueOwnership
from broker.core.queues.queue_interfaces import MessageOutcome
from broker.core.queues.queue_messages import DEAD, Message
from broker.core.queues.queues import Queues
from broker.core.queues.work_queue import Queue
from broker.wall_clock import wall
from broker.wires.mtl.codec.data_messages import make_tail
from broker.wires.mtl.codec.field_table import EMPTY, with_members
from broker.wires.mtl.profiles.queue_profile import DELIVER_AT, MAX_NAME, identity_of
from broker.wires.mtl.sessions.access_policy import AccessPolicy, Side

SLICE = 200
"""Messages that are removed or moved in one turn of the reactor: a few milliseconds of work."""

MOVE_SECONDS = 10.0
"""Seconds for which a move waits for the store to confirm a slice: as long as a shared store has for one answer."""

MAX_BODIES = 1024 * 1024
"""Bytes of the bodies of one answer, unless its first message has more: they are decoded in one turn of the reactor."""


class QueueActs:
    """The actions. ``bridge`` is the first virtual host, which is meant where none is named."""

    def __init__(
        self, queues: Queues, owners: QueueOwnership | None, policy: AccessPolicy, bridge: str, clock: IReactorTime
    ) -> None:
        self._queues = queues
        self._owners = owners
        self._policy = policy
        self._bridge = bridge
        self._clock = clock

    def actions(self) -> dict[str, Callable[..., Any]]:
        """Return the functions by the names of their actions."""
        return {
            "queue-put": self.put,
            "queue-get": self.get,
            "queue-peek": self.peek,
            "queue-purge": self.purge,
            "queue-move": self.move,
        }

    @inlineCallbacks
    def put(
        self,
        queue: str,
        host: str | None,
        body: bytes,
        ttl: float | None,
        delay: float,
        due: float | None,
        principal: Principal,
    ) -> Generator[Deferred[Any], Any, None]:
        """Put a message into a queue, to be delivered after ``delay`` seconds, or from ``due`` on, in seconds of the
        epoch. Fires when it is as safe as it gets."""
        if due is not None:
            delay = max(0.0, due - wall(self._clock))
        space = self._space(host, queue, Side.WRITER, principal)
        payer = principal.payer
        yield self._ready(space, queue, payer)
        own: dict[str, Any] = {"redelivered": False, "delivery-count": 1}
        if principal.name:
            own["user-id"] = principal.name
        if delay:
            own[DELIVER_AT] = round((wall(self._clock) + delay) * 1000)
        head = make_tail(queue, with_members(EMPTY, own))
        outcome = MessageOutcome()
        opened = self._queues.open(space, queue, payer)
        safe = opened.put(head, body, ttl, principal.name, None, outcome, 0, payer, delay)
        if not safe and not (yield outcome.known):
            raise Refusal(Reason.UNAVAILABLE, "the message could not be written to the store of queues")

    @inlineCallbacks
    def get(
        self, queue: str, host: str | None, count: int, principal: Principal
    ) -> Generator[Deferred[Any], Any, QueueMessages]:
        """Take messages from a queue."""
        space = self._space(host, queue, Side.READER, principal)
        yield self._ready(space, queue, principal.payer)
        found = self._queues.present(space, queue)
        return QueueMessages([] if found is None else _Taker(found, count, self._now).taken)

    @inlineCallbacks
    def peek(
        self, queue: str, host: str | None, count: int, principal: Principal
    ) -> Generator[Deferred[Any], Any, QueueMessages]:
        """Return messages of a queue, which stay there."""
        space = self._space(host, queue, Side.READER, principal)
        yield self._ready(space, queue, principal.payer)
        found = self._queues.present(space, queue)
        waiting = found.waiting(count) if found is not None else []
        sizes = accumulate(len(each.body) for each in waiting)
        fitting = [each for each, size in zip(waiting, sizes, strict=True) if each is waiting[0] or size <= MAX_BODIES]
        return QueueMessages([_shown(each, self._now) for each in fitting])

    @inlineCallbacks
    def purge(self, queue: str, host: str | None) -> Generator[Deferred[Any], Any, Purged]:
        """Remove the messages of a queue."""
        space = self._space(host, queue)
        yield self._ready(space, queue)
        found = self._queues.present(space, queue)
        if found is None:
            raise _no_queue(queue)
        # A queue that another broker takes meanwhile has no more messages.
        count = yield self._in_slices(found, math.inf, found.discard, lambda: deferLater(self._clock, 0, bool, True))
        return Purged(count)

    @inlineCallbacks
    def move(
        self, queue: str, target: str, host: str | None, count: int | None
    ) -> Generator[Deferred[Any], Any, MovedMessages]:
        """Move messages of a queue to another one."""
        if queue == target:
            raise Refusal(Reason.PARAMETER, "a queue cannot be moved to itself")
        space = self._space(host, queue)
        self._space(host, target)
        yield self._ready(space, queue)
        yield self._ready(space, target)
        found = self._queues.present(space, queue)
        if found is None:
            raise _no_queue(queue)
        # An operator's queue: it counts for no address.
        to = self._queues.open(space, target)

        def readdressed(message: Message) -> bytes:
            head = message.head
            return make_tail(target, head[1 + head[0] :])

        stopped = ""
        outcome = _MoveOutcome(self._clock)

        def step() -> bool:
            nonlocal stopped
            if found.given_up:
                stopped = "another broker has taken the queue"
                return False
            try:
                # A new queue of the name, if the target was deleted as unused between two slices.
                into = to if self._queues.present(space, target) is to else self._queues.open(space, target)
                done = found.move(into, readdressed, outcome.decided)
            except Refusal as refusal:
                stopped = refusal.text
                return False
            outcome.ordered += done
            return done

        yield self._in_slices(found, math.inf if count is None else count, step, outcome.known)
        if outcome.pending:
            stopped = f"{outcome.pending} messages are not written to the store of queues yet"
        elif outcome.returned:
            stopped = f"another broker took the queue before {outcome.returned} messages were written"
        if stopped and not outcome.moved and not outcome.pending:
            raise Refusal(Reason.LIMIT, f"nothing was moved to {target[:80]!r}: {stopped}")
        return MovedMessages(outcome.moved, stopped)

    # inside

    @property
    def _now(self) -> float:
        return self._queues.leases.now

    def _space(self, host: str | None, queue: str, side: Side | None = None, principal: Principal | None = None) -> str:
        """Return the virtual host of a queue. Raises `Refusal` for a name that no queue has, or without the right."""
        if len(queue.removesuffix(DEAD).encode("utf-8", "replace")) > MAX_NAME:
            raise Refusal(Reason.PARAMETER, f"the name of a queue has more than {MAX_NAME} bytes")
        check_printable("queue", queue)
        if host is None or host == self._bridge:
            return self._bridge
        if not self._policy.has(host):
            raise Refusal(Reason.UNKNOWN_TARGET, f"there is no virtual host {host[:80]!r}")
        if side is not None and principal is not None:
            allowed = self._policy.allowed(principal.name, host)
            if not allowed.may(side, "queue", queue):
                raise forbidden(principal, "subscribe" if side is Side.READER else "publish", queue)
        return host

    def _ready(self, space: str, queue: str, payer: str = "") -> Deferred[None]:
        """Claim and load a queue, which counts as memory of ``payer`` if it is new."""
        ready = None if self._owners is None else self._owners.require(space, queue, payer)
        return succeed(None) if ready is None else ready

    @inlineCallbacks
    def _in_slices(
        self, queue: Queue, most: float, step: Callable[[], bool], known: Callable[[], Deferred[bool]]
    ) -> Generator[Deferred[Any], Any, int]:
        """Call ``step`` until it returns False, as often as the queue has messages now, at most ``most`` times.

        ``known`` fires in a later turn, with False to stop, and is called after each slice. Returns the number of calls
        of ``step`` that returned True.
        """
        left = int(min(most, queue.messages - queue.out))
        done = 0
        while done < left and step():
            done += 1
            if done % SLICE == 0 and not (yield known()):
                return done
        yield known()
        return done


class _MoveOutcome:
    """Outcomes of the messages of a move. ``returned`` could not be written, ``pending`` are not yet known."""

    def __init__(self, clock: IReactorTime) -> None:
        self.ordered = 0
        self.moved = 0
        self.returned = 0
        self._clock = clock
        self._known: Deferred[None] | None = None

    @property
    def pending(self) -> int:
        return self.ordered - self.moved - self.returned

    def decided(self, safe: bool) -> None:
        """Count the outcome of one message."""
        self.moved += safe
        self.returned += not safe
        if self._known is not None and not self.pending:
            self._known.callback(None)

    @inlineCallbacks
    def known(self) -> Generator[Deferred[Any], Any, bool]:
        """Wait for all outcomes, for `MOVE_SECONDS` at most. Fires with True if all messages were moved."""
        if self.pending:
            self._known = Deferred()
            yield self._known.addTimeout(MOVE_SECONDS, self._clock, lambda result, seconds: None)
            self._known = None
        yield deferLater(self._clock, 0)  # the outcome comes in the middle of other work of the queues
        return not self.pending and not self.returned


class _Taker:
    """A consumer that takes at most ``most`` messages of a queue at once, and confirms each.

    See `broker.core.queues.queue_interfaces.MessageReceiver`.
    """

    def __init__(self, queue: Queue, most: int, now: float) -> None:
        self.room = True
        self.parked: dict[Any, None] = {}
        self.taken: list[QueueMessage] = []
        self._most = most
        self._left = MAX_BODIES
        self._now = now
        queue.leave(queue.join(self))

    def take(self, message: Message) -> bool:
        """Take a message. Returns False for one that does not fit."""
        self._left -= len(message.body)
        if self.taken and self._left < 0:
            self.room = False
            return False
        self.taken.append(_shown(message, self._now, message.count))
        message.queue.settle(message)
        self.room = len(self.taken) < self._most and self._left > 0
        return True


def _shown(message: Message, now: float, deliveries: int | None = None) -> QueueMessage:
    user, id, _ = identity_of(message.head)
    text, base64 = as_text(bytes(message.body))
    return QueueMessage(
        text=text,
        base64=base64,
        size=len(message.body),
        deliveries=message.count if deliveries is None else deliveries,
        due=round(message.again - now, 3) if message.again > now and not message.count else None,
        expires=None if message.deadline == math.inf else round(max(0.0, message.deadline - now), 3),
        death=None if message.death is None else str(message.death),
        user=user or None,
        id=id,
    )


def _no_queue(name: str) -> Refusal:
    return Refusal(Reason.UNKNOWN_TARGET, f"there is no queue {name[:80]!r}")
