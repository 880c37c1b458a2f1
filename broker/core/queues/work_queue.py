"""Work queue: at-least-once delivery to competing consumers, until one of them confirms.

Rules:
- A queue exists from its first use until it has been empty and without consumers for a while, and all messages that
  were moved out of it are safe.
- Messages are numbered in order of arrival, and delivered in that order, round-robin, to the consumers that have room.
  The receiver decides whether it has room (backpressure), for all queues that it consumes together.
- A delivered message belongs to the receiver until it is confirmed, rejected or given back, even if the receiver no
  longer consumes the queue.
- A returned message goes to its old position: it is delivered before all later ones.
- A message that is rejected for redelivery goes to another consumer with room at once. If there is none, and the
  rejecting consumer stays, the message is set aside with an exponential back-off, so that a message that no worker can
  process does not circulate. Others overtake it meanwhile, and another consumer that gets room may have it.
- A message that has reached the limit of deliveries is dead-lettered when it returns. So is a message that is rejected
  without requeueing, one whose TTL has expired when it returns or reaches the front, and the oldest one when a new one
  displaces it. If the cause of its death is in `QueueSettings.dead_letters`, it moves to the dead-letter queue; there
  it is the newest message, and its deliveries are counted from 0.
- A delayed message is delivered from its time on, by its order of arrival. Its TTL begins at that time.
- A durable message is in the queue at once, and its author is notified later that it is safe (`MessageKeeper`). If it
  cannot be kept it is removed; if it is with a receiver by then it may still be confirmed, but does not return. Until
  its receiver answers, a message with the same id is refused; once it is confirmed, that one is a duplicate.
- A message counts as memory of its payer until it is removed; beyond the limit of that address, further ones are
  refused. After a restart it counts for no address, and neither does a message in a queue whose limit the operator has
  set (`QueueSettings.by_address`).
- Nothing is kept of a message that is refused for lack of room.
- A queue that another broker has taken is given up: its messages leave memory without being removed from the store,
  the delivered ones as soon as their receivers answer or end.

Times are those of the clock of leases (`broker.core.liveness`). A step costs at most the logarithm of the number of
returned messages.

The file is longer than others: the rules above concern one state, that of a queue, and each method keeps several of
them.
"""

from __future__ import annotations

from collections.abc import Callable
from heapq import nsmallest
from itertools import chain
from math import inf
from operator import attrgetter
from typing import Any

from broker.backoff import Backoff
from broker.core.errors import Reason, Refusal, at_limit
from broker.core.interfaces import ILease
from broker.core.queues.consumer_ring import Consumer, ConsumerRing
from broker.core.queues.queue_interfaces import Author, MessageKeeper, MessageReceiver, QueueTable, RestoredMessage
from broker.core.queues.queue_messages import (
    DEAD,
    GONE,
    ID_BYTES,
    KEPT,
    NOT_KEPT,
    OUT,
    OVERHEAD,
    READY,
    RESTORED,
    WAITING,
    WRITING,
    AsideMessages,
    Death,
    Message,
    QueueSettings,
    ReadyMessages,
    RecentIds,
)

FIRST_PAUSE = 0.1
"""First back-off of a rejected message, in seconds. It doubles with each delivery."""

LONGEST_PAUSE = 30.0
"""Longest back-off, in seconds: enough for a worker's resource to recover."""

_order = attrgetter("order")

_BACKOFF = Backoff(FIRST_PAUSE, LONGEST_PAUSE)

SIZE_KEY = "mtl.queues.size"
"""Name of the limit of a queue's bytes in the configuration, for `at_limit`."""

EXPIRE_AT_ONCE = 500
"""Messages that expire in one step: a few milliseconds' work. The rest follows at the next tick."""


class Queue:
    """Work queue. Created by `broker.core.queues.queues.Queues.open`."""

    def __init__(self, queues: QueueTable, space: str, name: str, settings: QueueSettings) -> None:
        self.space = space
        self.name = name
        self.settings = settings
        self.number = 0
        """Number of the queue at the keeper; 0 if it has none yet."""
        self.given_up = False
        """True if another broker has the queue: its messages leave memory, and nothing of them is written."""
        self.payer = ""
        """The address that the queue itself counts for; empty for an authenticated user."""
        self.messages = 0
        """Messages, the delivered ones included."""
        self.out = 0
        self.leaving = 0
        """Messages moved to other queues that are not written there yet: they may return, so the queue is kept."""
        self.bytes = 0
        self.consumers: dict[MessageReceiver, Consumer] = {}
        self._queues = queues
        self._ring = ConsumerRing()
        self._serving = False
        self._ready = ReadyMessages()
        self._aside = AsideMessages()
        self._delayed = AsideMessages()
        self._ids = RecentIds(queues.memory)
        self._idle_since = 0.0
        self._lease: ILease | None = None
        self._due = inf
        """Lifetime of the next check."""
        self._rest()

    def __repr__(self) -> str:
        return f"<queue {self.name!r} of {self.space!r}>"

    def waiting(self, most: int | None = None) -> list[Message]:
        """Return the messages that are not delivered, in order: the oldest ``most``, or all."""
        if most is None:
            return sorted((*self._ready, *self._aside, *self._delayed), key=_order)
        return nsmallest(most, (*self._ready.first(most), *self._aside, *self._delayed), _order)

    def unkept(self) -> int:
        """Return the number of messages that are not delivered, and that no store has or is to have."""
        return sum(each.kept == NOT_KEPT for each in chain(self._ready, self._aside, self._delayed))

    # publishing

    def put(
        self,
        head: bytes,
        body: Any,
        ttl: float | None = None,
        user: str = "",
        id: str | None = None,
        author: Author | None = None,
        token: Any = None,
        payer: str = "",
        delay: float = 0.0,
        death: Death | None = None,
        count: int = 0,
    ) -> bool:
        """Queue a message. Returns True if it is as safe as it gets; if False, ``author`` is notified of ``token``
        later.

        ``body`` is bytes, or an object with a length that can be turned into bytes. ``ttl`` is in seconds, and so is
        ``delay``, before which it is not delivered. ``id`` is the message id of ``user``; ``payer`` the address that
        the message counts for. ``death`` and ``count``, its deliveries, are those of a message from another store.
        Raises `Refusal`: LIMIT if the message cannot be taken now, PARAMETER if it never can be.
        """
        queues = self._queues
        settings = self.settings
        key = None
        if id is not None and settings.duplicates:
            key = RecentIds.key(user, id)
            if self._is_known(key):
                queues.duplicates += 1
                return True
        keeper = self._taking_keeper()
        size = len(head) + len(body) + OVERHEAD
        if not settings.by_address:
            payer = ""
        queues.admit(payer, size if key is None else size + ID_BYTES)
        if self._is_full(size) or not queues.has_room(size):
            self._make_room(size)
        deadline, due = inf, queues.leases.now + max(0.0, delay)
        if ttl is not None or settings.ttl is not None:
            deadline = due + min(each for each in (ttl, settings.ttl) if each is not None)
        message = Message(self, queues.next_order(), head, body, deadline, death, payer)
        message.count = count
        self._add(message, due)
        queues.put += 1
        if keeper is not None:
            keeper.add(message, author, token)
        if key is not None:
            self._remember(key, message if keeper is not None else None, payer)
        self.serve()
        return keeper is None

    def bury(self, message: Message, death: Death) -> None:
        """Add the dead letter of a message of another queue."""
        settings = self.settings
        while self._is_full(message.size):
            oldest = self._pop_oldest()
            if oldest is None:
                break  # all are delivered
            self._die(oldest, Death.TOO_MANY)
        queues = self._queues
        letter = Message(self, queues.next_order(), message.head, message.body, inf, death, message.payer)
        message.successor = letter
        self._add(letter)
        if settings.durable and queues.keeper is not None:
            queues.keeper.add(letter, None, None)
        self.serve()

    def restore(self, row: RestoredMessage) -> None:
        """Add a message from before a restart, behind the earlier ones. A damaged one becomes a dead letter at once."""
        deadline = self._queues.leases.now + row.seconds
        # Only the head of a damaged message is certain to be readable, not its content.
        user, id, due = ("", None, 0.0) if row.damaged else self._queues.identify(row.head)
        payer = RESTORED if self.settings.by_address and not user else ""
        message = Message(self, row.order, row.head, row.body, deadline, row.death, payer)
        message.count = row.count
        message.kept = KEPT
        # A shared store gives none, and the queue keeps its own: what waits to be written has that number.
        self.number = row.number or self.number
        if row.damaged:
            self._count_in(message)
            self._die(message, Death.DAMAGED)
            return
        self._add(message, self._lifetime_at(due) if row.death is None else 0.0)
        if self.settings.duplicates and row.death is None and id is not None:
            # Its writer may not have got the confirm before the end of the broker that had it, and repeats it here.
            self._remember(RecentIds.key(user, id), None)

    # for operators

    def discard(self) -> bool:
        """Remove the oldest message that is not delivered. Returns False if there is none."""
        message = self._pop_oldest()
        if message is not None:
            self._drop(message)
        return message is not None

    def move(
        self,
        target: Queue,
        readdressed: Callable[[Message], bytes],
        decided: Callable[[bool], object] = lambda safe: None,
    ) -> bool:
        """Move the oldest message that is not delivered to another queue, as its newest. Returns False without one.

        ``readdressed`` returns the head that it has there. Its deliveries are counted from 0. ``decided`` is called
        with True when it is as safe there as it gets, and with False if another broker took the target before; then it
        has returned, unless its own queue was taken too. Raises `Refusal` as `put` does, with the message in its place.
        """
        message = self._pop_oldest()
        if message is None:
            return False
        settings, queues = target.settings, self._queues
        try:
            keeper = target._taking_keeper()
            if target._is_full(message.size):
                target._make_room(message.size)
        except Refusal:
            self._return(message)
            raise
        # As for a dead letter, there is no TTL in a dead-letter queue.
        deadline = inf if target.name.endswith(DEAD) else message.deadline
        due = message.again if not message.count else 0.0
        if message.death is not None:
            due = self._lifetime_at(queues.identify(message.head)[2])  # it may have been displaced before its time
        if settings.ttl is not None:
            deadline = min(deadline, max(due, queues.leases.now) + settings.ttl)
        payer = message.payer if settings.by_address else ""
        moved = Message(target, queues.next_order(), readdressed(message), message.body, deadline, payer=payer)
        message.successor = moved
        # Added before the other is removed, so that the keeper writes both in one transaction.
        target._add(moved, due)
        if keeper is not None:
            keeper.add(moved, None, None)
            keeper.replaces(moved, message, decided)
        self._drop(message)
        target.serve()
        if keeper is None:
            decided(True)
        return True

    def _remember(self, key: bytes, message: Message | None, payer: str = "") -> None:
        queues = self._queues
        before = len(self._ids)
        self._ids.add(key, queues.leases.now, message, queues.room_for_ids(), payer)
        queues.remembered += len(self._ids) - before

    def _add(self, message: Message, due: float = 0.0) -> None:
        """Add the newest message, which is delivered from the lifetime ``due`` on."""
        if due > self._queues.leases.now:
            self._delay(message, due)
        else:
            self._ready.add(message)
        self._count_in(message)

    def _lifetime_at(self, seconds: float) -> float:
        """Return the lifetime at a time in seconds since the epoch."""
        return self._queues.leases.now + seconds - self._queues.wall()

    def _delay(self, message: Message, due: float) -> None:
        self._delayed.add(message, None, due)
        self._wake(due)

    def _return(self, message: Message) -> None:
        """Return a message that `_pop_oldest` removed."""
        if message.again > self._queues.leases.now and not message.count:
            self._delay(message, message.again)
        else:
            self._ready.insert(message)

    def _count_in(self, message: Message) -> None:
        self.messages += 1
        self.bytes += message.size
        queues = self._queues
        queues.messages += 1
        queues.bytes += message.size
        if message.payer:
            queues.memory.store(message.payer, message.size)

    def _taking_keeper(self) -> MessageKeeper | None:
        """Return the keeper of a durable queue, None for another one. Raises `Refusal` while it takes no messages."""
        keeper = self._queues.keeper if self.settings.durable else None
        if keeper is not None and not keeper.takes:
            raise self._refused("store", Refusal(Reason.LIMIT, "the queue cannot be written to the disk now"))
        return keeper

    def _is_full(self, size: int) -> bool:
        """Return True if a message of that size is more than the queue may have."""
        settings = self.settings
        return self.messages >= settings.max_messages or self.bytes + size > settings.max_bytes

    def _make_room(self, size: int) -> None:
        """Displace old messages if `drop_oldest` is set. Raises `Refusal` if there is no room for a message of that
        size."""
        settings = self.settings
        if size > settings.max_bytes:
            raise self._refused(
                "large", at_limit("the message is larger than the queue may be", SIZE_KEY, Reason.PARAMETER)
            )
        if not self._queues.has_room(size):
            raise self._refused("all", Refusal(Reason.LIMIT, "all queues together are full"))
        while self._is_full(size):
            oldest = self._pop_oldest() if settings.drop_oldest else None
            if oldest is None:
                key = "mtl.queues.messages" if self.messages >= settings.max_messages else SIZE_KEY
                raise self._refused("full", at_limit("the queue is full", key))
            self._die(oldest, Death.TOO_MANY)

    def _is_known(self, key: bytes) -> bool:
        """Return True if a message with that id came lately and is safe. Raises `Refusal` while the outcome is
        pending."""
        known = self._ids.find(key, self._queues.leases.now)
        if known is None:
            return False
        message = known[1]
        if message is None:
            return True
        if message.last.kept in (WAITING, WRITING) and not message.is_confirmed:
            raise self._refused(
                "undecided", Refusal(Reason.LIMIT, "a message with the same id is being written to the disk")
            )
        if message.refused and message.state == OUT:
            raise self._refused("undecided", Refusal(Reason.LIMIT, "a reader has a message with the same id"))
        return not message.refused

    def _refused(self, why: str, refusal: Refusal) -> Refusal:
        self._queues.refused[why] += 1
        return refusal

    # acknowledgements

    def settle(self, message: Message) -> None:
        """Confirm a delivered message."""
        self.out -= 1
        self._queues.settled += 1
        message.refused = False  # it is done, although it was not kept: a repetition is a duplicate
        self._drop(message)

    def reject(self, message: Message) -> None:
        """Reject a delivered message without requeueing."""
        self.out -= 1
        self._die(message, Death.REJECTED)

    def recycle(self, message: Message, receiver: MessageReceiver) -> None:
        """Reject a delivered message for redelivery."""
        if not self._is_back(message) or self._hand_on(message, receiver):
            return
        if receiver in self.consumers:
            again = min(self._queues.leases.now + _BACKOFF.after(message.count), message.deadline)
            self._aside.add(message, receiver, again)
            self._wake(again)
        else:
            self._ready.put_back(message)
            self.serve()

    def give_back(self, message: Message) -> None:
        """Take back a message whose receiver is gone. Call `serve` after the last one."""
        if self._is_back(message):
            self._ready.put_back(message)

    def _is_back(self, message: Message) -> bool:
        """Process the return of a message. Returns True if it may be delivered again."""
        self.out -= 1
        self._queues.returned += 1
        most = self.settings.max_deliveries
        # Its author publishes it again after the negative confirm: a redelivery would be a duplicate.
        if message.refused or self.given_up:
            self._drop(message)
            return False
        if most and message.count >= most:
            self._die(message, Death.DELIVERIES)
            return False
        if message.deadline < self._queues.leases.now:
            self._die(message, Death.EXPIRED)
            return False
        message.state = READY
        if message.kept:
            self._keeper.amend(message)
        return True

    # from the keeper

    def withdraw(self, message: Message) -> None:
        """Remove a message that could not be kept, and whose author gets a negative confirm."""
        message.refused = True
        if message.state == READY:
            self._aside.discard(message)
            self._delayed.discard(message)
            self._drop(message)
            self._wake(self._first_deadline())

    def take_back(self, message: Message, head: bytes, body: Any) -> bool:
        """Return a moved message, with its head and body, to its place. Returns False if the queue was given up
        meanwhile. The keeper of a durable queue has to keep the message again."""
        if self.given_up:
            return False
        message.head, message.body, message.successor, message.state = head, body, None, READY
        self._count_in(message)
        self._return(message)
        return True

    def end_move(self) -> None:
        """Process the end of the move of one message to another queue, where it is safe, or from which it returned."""
        self.leaving -= 1
        self._rest()

    # consumers

    def join(self, receiver: MessageReceiver) -> Consumer:
        """Add a consumer, once for each receiver. The first messages are delivered before this returns."""
        consumer = self.consumers[receiver] = Consumer(self, receiver)
        if not self.settings.single or len(self.consumers) == 1:
            self.resume(consumer)
        return consumer

    def leave(self, consumer: Consumer) -> None:
        """Remove a consumer. Its delivered messages stay with it."""
        if self.consumers.pop(consumer.receiver, None) is None:
            return  # the queue was given up
        self._ring.discard(consumer)
        if self.settings.single and self.consumers:
            first = next(iter(self.consumers.values()))
            if not self._ring.serves(first):
                self.resume(first)
        self._rest()

    def resume(self, consumer: Consumer) -> None:
        """Return a consumer to the ring: it may have room again."""
        receiver = consumer.receiver
        # First the messages that are set aside because of other receivers, in order with the ready ones.
        for _ in range(EXPIRE_AT_ONCE):
            aside = self._aside.oldest()
            if aside is None or aside.avoid is receiver or not receiver.room:
                break
            front = self._ready.front()
            if front is not None and front.order < aside.order:
                self._ready.pop()
                self._give(front, receiver)
            else:
                self._aside.discard(aside)
                self._give(aside, receiver)
        self._ring.add(consumer)
        self.serve()

    def use(self, settings: QueueSettings) -> None:
        """Apply new settings. Messages in the queue stay."""
        before, self.settings = self.settings, settings
        if settings.single and not before.single:
            for consumer in list(self.consumers.values())[1:]:
                self._ring.discard(consumer)
        elif before.single and not settings.single:
            for consumer in list(self.consumers.values()):
                if not self._ring.serves(consumer):
                    self.resume(consumer)
        self._wake(self._end_of_rest())

    # delivery

    def serve(self) -> None:
        """Deliver messages until none are left, or no consumer has room."""
        if self._serving:
            return  # a nested call from a receiver: the loop below continues
        self._serving = True
        ready = self._ready
        try:
            expired = 0
            while ready and expired < EXPIRE_AT_ONCE:
                consumer = self._ring.next()
                if consumer is None:
                    break
                message = ready.pop()
                if message is None:
                    break
                if not self._give(message, consumer.receiver):
                    expired += 1
        finally:
            self._serving = False
        if ready:
            self._wake(self._first_deadline())

    def _pop_oldest(self) -> Message | None:
        """Remove and return the oldest message that is not delivered: ready, set aside or delayed."""
        places = (self._aside, self._delayed)
        oldest = [each for each in (place.oldest() for place in places) if each is not None]
        message = self._ready.pop()
        if not oldest:
            return message
        first = min(oldest, key=_order)
        if message is not None:
            if message.order < first.order:
                return message
            self._ready.put_back(message)
        for place in places:
            place.discard(first)
        return first

    def _give(self, message: Message, receiver: MessageReceiver) -> bool:
        """Deliver a ready message, or put it back if it is not taken. Returns False if it expires instead."""
        if message.deadline != inf and message.deadline < self._queues.leases.now:
            self._die(message, Death.EXPIRED)
            return False
        if not self._hand(message, receiver):
            self._ready.put_back(message)
        return True

    def _hand(self, message: Message, receiver: MessageReceiver) -> bool:
        """Deliver a message. Returns True if it was taken; if not, it is in no collection."""
        # The state changes first: the receiver may confirm or reject the message before `take` returns.
        message.state = OUT
        message.count += 1
        self.out += 1
        taken = False
        try:
            taken = receiver.take(message)
        except BaseException:
            self._untake(message)
            self._ready.put_back(message)
            raise
        if taken:
            self._queues.delivered += 1
        else:
            self._untake(message)
        return taken

    def _untake(self, message: Message) -> None:
        message.state = READY
        message.count -= 1
        self.out -= 1

    def _hand_on(self, message: Message, but: MessageReceiver) -> bool:
        """Deliver a message to the next consumer with room, except that receiver. Returns True if there was one."""
        while (other := self._ring.next(but)) is not None:
            if self._hand(message, other.receiver):
                return True
        return False

    # removal

    def _drop(self, message: Message) -> None:
        """Remove a message for good."""
        message.state = GONE
        self.messages -= 1
        self.bytes -= message.size
        queues = self._queues
        queues.messages -= 1
        queues.bytes -= message.size
        if message.payer:
            queues.memory.store(message.payer, -message.size)
        message.head = message.body = b""
        if message.kept:
            self._keeper.remove(message)
        if not self.messages:
            self._rest()

    def _die(self, message: Message, death: Death) -> None:
        """Process the death of a message that is in no collection."""
        if self.given_up:
            self._drop(message)
            return
        queues = self._queues
        queues.deaths[death] += 1
        try:
            # The dead letter is added before the message is removed, so that the keeper writes both in one transaction.
            if death in self.settings.dead_letters:
                queues.dead_letter_queue(self).bury(message, death)
            elif death is Death.DAMAGED:
                # Its content is not what its author sent, so it may neither be delivered as such nor vanish.
                dead = self if self.name.endswith(DEAD) else queues.dead_letter_queue(self)
                dead.bury(message, death)
            else:
                queues.lost[death] += 1
        finally:
            # Also if the dead-letter queue fails: the message is in no collection, so its place must be freed.
            message.death = death
            self._drop(message)

    @property
    def _keeper(self) -> MessageKeeper:
        keeper = self._queues.keeper
        assert keeper is not None
        return keeper

    # deadlines

    def check(self, now: float) -> float | None:
        """Process everything due. Returns the next deadline; None if there is none."""
        self._due = -inf  # `_wake` is a no-op during the check
        due = inf
        try:
            self._look(now)
            due = min(self._aside.due(), self._delayed.due(), self._first_deadline(), self._end_of_rest())
        finally:
            self._due = due
            if due == inf:
                self._lease = None
        if due <= now and not self.messages:
            self._queues.forget(self)
            return None
        return None if due == inf else due

    def _look(self, now: float) -> None:
        """End pauses and expire messages, in the order of their times.

        A message that expires before the pause of an older one ends is dead-lettered even if one tick finds both: the
        result does not depend on the moments of ticks.
        """
        for _ in range(EXPIRE_AT_ONCE):
            delayed = self._delayed.over(now)
            if delayed is None:
                break
            self._delayed.discard(delayed)
            self._ready.insert(delayed)
        expired = 0
        while expired < EXPIRE_AT_ONCE:
            until = min(self._aside.due(), now)
            if self._first_deadline() < until:
                message = self._ready.pop()
                assert message is not None
                self._die(message, Death.EXPIRED)
                expired += 1
                continue
            paused = self._aside.over(until)
            if paused is None:
                break
            avoid = paused.avoid
            self._aside.discard(paused)
            if paused.deadline < now or not self._hand_on(paused, avoid):
                self._ready.put_back(paused)
        self.serve()

    def _first_deadline(self) -> float:
        """Return the deadline of the message at the front."""
        front = self._ready.front()
        return inf if front is None else front.deadline

    def _rest(self) -> None:
        """Start the idle time if the queue is empty and without consumers."""
        if not self.messages and not self.consumers and not self.given_up:
            self._idle_since = self._queues.leases.now
            self._wake(self._end_of_rest())

    def _end_of_rest(self) -> float:
        """Return the time at which an idle queue is to be deleted; infinity if it is in use."""
        if self.messages or self.consumers or self.leaving:
            return inf
        # Not before the window of deduplication ends: a new queue of this name would accept duplicates.
        return max(self._idle_since + self.settings.expires, self._ids.until())

    def _wake(self, due: float) -> None:
        """Set the lease to that time, unless an earlier check is due."""
        if due < self._due:
            if self._lease is not None:
                self._lease.cancel()
            self._due = due
            self._lease = self._queues.leases.hold(self, due)

    def give_up(self) -> int:
        """Forget all messages that are not delivered, and all consumers. Returns the number of those messages.

        The keeper has given the queue up before.
        """
        self.given_up = True
        for consumer in self.consumers.values():
            self._ring.discard(consumer)
        self.consumers.clear()
        count = 0
        while (message := self._pop_oldest()) is not None:
            self._drop(message)
            count += 1
        return count

    def close(self) -> int:
        """End the lease of a deleted queue. Returns the number of ids that it remembered."""
        if self._lease is not None:
            self._lease.cancel()
            self._lease = None
        return self._ids.clear()
