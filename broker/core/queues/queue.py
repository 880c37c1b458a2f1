"""One work queue: each message is given to one consumer after the other, until one of them confirms it.

Rules:
- A queue is there from its first use on, until it was empty and without consumers for a while.
- Messages are numbered in the order in which they came, and given out in that order, in turns, to the consumers that
  have room. Whether one has room is for its taker to say, for all that it consumes together.
- A message that was given out is the taker's until it is confirmed, rejected or given back: also when the taker does
  not consume the queue any more.
- What comes back goes to its old place: it is given out before all that came after it.
- What is rejected to be given out again goes to another consumer that has room, at once. If there is none, and who
  rejected it goes on consuming, it is set aside for a while, longer each time, so that a message that nobody can work
  with does not go round and round. Others overtake it meanwhile; and another consumer that gets room may have it.
- A message that was given out as often as it may be dies when it comes back. So does one that is rejected for good, one
  whose time is over when it comes back or it is its turn, and the oldest where a new one pushes it out. Which deaths
  lead to the queue of dead messages is set (`broker.core.queues.settings`); there it is the newest, and is counted
  afresh.
- A durable message is in the queue at once, and its author is told later that it is safe (`MessageKeeper`). If it
  cannot be kept it is taken out again; one that is with a taker by then may still be confirmed, but does not come back.
- Of a message for which there is no room nothing is kept.

Times are in life time (`broker.core.liveness`). A step costs the logarithm of the messages that came back at most.

The file is longer than others: the rules above concern one state, that of a queue, and each method keeps several of
them.
"""

from __future__ import annotations

from math import inf
from typing import Any

from broker.core.backoff import Backoff
from broker.core.errors import Reason, Refusal
from broker.core.interfaces import ILease
from broker.core.queues.consumer_turns import Consumer, ConsumerRing
from broker.core.queues.interfaces import Author, MessageKeeper, QueueTable, RestoredMessage, Taker
from broker.core.queues.messages import (
    GONE,
    KEPT,
    OUT,
    OVERHEAD,
    READY,
    WAITING,
    WRITING,
    AsideMessages,
    Ids,
    Message,
    ReadyMessages,
)
from broker.core.queues.settings import Death, QueueSettings

FIRST_PAUSE = 0.1
"""Seconds for which a message that was rejected once is set aside. It doubles with each delivery."""

LONGEST_PAUSE = 30.0
"""Seconds; see `FIRST_PAUSE`. Whatever a worker waits for may be back by then."""

_BACKOFF = Backoff(FIRST_PAUSE, LONGEST_PAUSE)

EXPIRE_AT_ONCE = 500
"""Messages that die in one go because their time is over: a few milliseconds' work. More follow with the next tick."""


class Queue:
    """One queue. `broker.core.queues.queues.Queues.open` makes it."""

    def __init__(self, queues: QueueTable, space: str, name: str, settings: QueueSettings) -> None:
        self.space = space
        self.name = name
        self.settings = settings
        self.number = 0
        """Its number at the keeper; 0 if it has none yet."""
        self.messages = 0
        """Those that are given out, too."""
        self.out = 0
        self.bytes = 0
        self.consumers: dict[Taker, Consumer] = {}
        self._queues = queues
        self._ring = ConsumerRing()
        self._serving = False
        self._ready = ReadyMessages()
        self._aside = AsideMessages()
        self._ids = Ids()
        self._idle_since = 0.0
        self._lease: ILease | None = None
        self._due = inf
        """When it will be checked."""
        self._rest()

    def __repr__(self) -> str:
        return f"<queue {self.name!r} of {self.space!r}>"

    # messages come

    def put(
        self,
        head: bytes,
        body: Any,
        ttl: float | None = None,
        user: str = "",
        id: str | None = None,
        author: Author | None = None,
        token: Any = None,
    ) -> bool:
        """Queue a message. Returns whether it is as safe as it gets; if not, ``author`` will hear of ``token``.

        ``body`` are bytes, or what has a length and can be turned into bytes. ``id`` is what ``user`` calls the
        message. Raises `Refusal`: LIMIT if it cannot be taken now, PARAMETER if it never can be.
        """
        queues = self._queues
        settings = self.settings
        key = None
        if id is not None and settings.duplicates:
            key = Ids.key(user, id)
            if self._is_known(key):
                queues.duplicates += 1
                return True
        keeper = queues.keeper if settings.durable else None
        if keeper is not None and not keeper.takes:
            raise self._refusal("store", Reason.LIMIT, "the queue cannot be written to the disk now")
        size = len(head) + len(body) + OVERHEAD
        if (
            self.messages >= settings.max_messages
            or self.bytes + size > settings.max_bytes
            or not queues.has_room(size)
        ):
            self._make_room(size)
        deadline = inf
        if ttl is not None or settings.ttl is not None:
            deadline = queues.leases.now + min(each for each in (ttl, settings.ttl) if each is not None)
        message = Message(self, queues.next_order(), head, body, deadline)
        self._add(message)
        queues.put += 1
        if keeper is not None:
            keeper.add(message, author, token)
        if key is not None:
            before = len(self._ids)
            self._ids.add(key, queues.leases.now, message if keeper is not None else None, queues.room_for_ids())
            queues.remembered += len(self._ids) - before
        self.serve()
        return keeper is None

    def bury(self, message: Message, death: Death) -> None:
        """Take a message that died in another queue."""
        settings = self.settings
        while self.messages >= settings.max_messages or self.bytes + message.size > settings.max_bytes:
            oldest = self._pop_oldest()
            if oldest is None:
                break  # takers have them all
            self._die(oldest, Death.TOO_MANY)
        queues = self._queues
        letter = Message(self, queues.next_order(), message.head, message.body, inf, death)
        self._add(letter)
        if settings.durable and queues.keeper is not None:
            queues.keeper.add(letter, None, None)
        self.serve()

    def restore(self, row: RestoredMessage) -> None:
        """Take a message from before a restart, after those before it."""
        message = Message(self, row.order, row.head, row.body, self._queues.leases.now + row.seconds, row.death)
        message.count = row.count
        message.kept = KEPT
        self.number = row.number
        self._add(message)

    def _add(self, message: Message) -> None:
        self._ready.add(message)
        self.messages += 1
        self.bytes += message.size
        queues = self._queues
        queues.messages += 1
        queues.bytes += message.size

    def _make_room(self, size: int) -> None:
        """Let old messages go, if that is how it is set. Raises `Refusal` if there is no room for one of that size."""
        settings = self.settings
        if size > settings.max_bytes:
            raise self._refusal("large", Reason.PARAMETER, "the message is larger than the queue may be")
        if not self._queues.has_room(size):
            raise self._refusal("all", Reason.LIMIT, "all queues together are full")
        while self.messages >= settings.max_messages or self.bytes + size > settings.max_bytes:
            oldest = self._pop_oldest() if settings.drop_oldest else None
            if oldest is None:
                raise self._refusal("full", Reason.LIMIT, "the queue is full")
            self._die(oldest, Death.TOO_MANY)

    def _is_known(self, key: bytes) -> bool:
        """Return whether a message with that id came lately and is safe. Raises `Refusal` while this is undecided."""
        known = self._ids.find(key, self._queues.leases.now)
        if known is None:
            return False
        message = known[1]
        if message is None:
            return True
        is_confirmed = message.state == GONE and message.death is None
        if message.kept in (WAITING, WRITING) and not is_confirmed:
            raise self._refusal("undecided", Reason.LIMIT, "a message with the same id is being written to the disk")
        return not message.refused

    def _refusal(self, why: str, reason: Reason, text: str) -> Refusal:
        self._queues.refused[why] += 1
        return Refusal(reason, text)

    # answers of takers

    def settle(self, message: Message) -> None:
        """A message that was given out is confirmed."""
        self.out -= 1
        self._queues.settled += 1
        self._drop(message)

    def reject(self, message: Message) -> None:
        """A message that was given out is not wanted, and never again."""
        self.out -= 1
        self._die(message, Death.REJECTED)

    def recycle(self, message: Message, taker: Taker) -> None:
        """A message that was given out is not wanted by that taker now."""
        if not self._is_back(message) or self._hand_on(message, taker):
            return
        if taker in self.consumers:
            again = min(self._queues.leases.now + _BACKOFF.after(message.count), message.deadline)
            self._aside.add(message, taker, again)
            self._wake(again)
        else:
            self._ready.put_back(message)
            self.serve()

    def give_back(self, message: Message) -> None:
        """Take back a message whose taker is gone. When all are given back, call `serve`."""
        if self._is_back(message):
            self._ready.put_back(message)

    def _is_back(self, message: Message) -> bool:
        """A message was returned. Returns whether it may be given out again."""
        self.out -= 1
        self._queues.returned += 1
        most = self.settings.max_deliveries
        if message.refused:
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
        """Take out a message that could not be kept, and whose author hears so."""
        message.refused = True
        if message.state == READY:
            self._aside.discard(message)
            self._drop(message)
            self._wake(self._first_deadline())

    # consumers

    def join(self, taker: Taker) -> Consumer:
        """From now on the taker is given messages, the first ones before this returns. Once for each taker."""
        consumer = self.consumers[taker] = Consumer(self, taker)
        if not self.settings.single or len(self.consumers) == 1:
            self.resume(consumer)
        return consumer

    def leave(self, consumer: Consumer) -> None:
        """It is given no more messages. What it was given, it keeps."""
        del self.consumers[consumer.taker]
        self._ring.discard(consumer)
        if self.settings.single and self.consumers:
            first = next(iter(self.consumers.values()))
            if not self._ring.serves(first):
                self.resume(first)
        self._rest()

    def resume(self, consumer: Consumer) -> None:
        """A consumer that was out of the ring may have room."""
        taker = consumer.taker
        for _ in range(EXPIRE_AT_ONCE):
            aside = self._aside.oldest()
            if aside is None or aside.avoid is taker or not taker.room:
                break
            front = self._ready.front()
            if front is not None and front.order < aside.order:
                self._ready.pop()
                self._give(front, taker)
            else:
                self._aside.discard(aside)
                self._give(aside, taker)
        self._ring.add(consumer)
        self.serve()

    def use(self, settings: QueueSettings) -> None:
        """Take new settings. What is in the queue already stays there."""
        before, self.settings = self.settings, settings
        if settings.single and not before.single:
            for consumer in list(self.consumers.values())[1:]:
                self._ring.discard(consumer)
        elif before.single and not settings.single:
            for consumer in list(self.consumers.values()):
                if not self._ring.serves(consumer):
                    self.resume(consumer)
        self._rest()

    # giving out

    def serve(self) -> None:
        """Give out messages until there are none, or no consumers with room."""
        if self._serving:
            return  # a taker led here: the loop below goes on
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
                if not self._give(message, consumer.taker):
                    expired += 1
        finally:
            self._serving = False
        if ready:
            self._wake(self._first_deadline())

    def _pop_oldest(self) -> Message | None:
        """Take out the oldest message that no taker has, be it set aside or not."""
        aside = self._aside.oldest()
        message = self._ready.pop()
        if aside is None or (message is not None and message.order < aside.order):
            return message
        if message is not None:
            self._ready.put_back(message)
        self._aside.discard(aside)
        return aside

    def _give(self, message: Message, taker: Taker) -> bool:
        """Give out a message that was ready, or put it back if it is not taken. Returns False if it expires instead."""
        if message.deadline != inf and message.deadline < self._queues.leases.now:
            self._die(message, Death.EXPIRED)
            return False
        if not self._hand(message, taker):
            self._ready.put_back(message)
        return True

    def _hand(self, message: Message, taker: Taker) -> bool:
        """Give a message out. If it is not taken, which this returns, it is in none of the collections."""
        message.state = OUT
        message.count += 1
        self.out += 1
        taken = False
        try:
            taken = taker.take(message)
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

    def _hand_on(self, message: Message, but: Taker) -> bool:
        """Give a message to the next consumer that has room and is not that one; returns whether there was any."""
        while (other := self._ring.next(but)) is not None:
            if self._hand(message, other.taker):
                return True
        return False

    # the end of messages

    def _drop(self, message: Message) -> None:
        """A message is gone."""
        message.state = GONE
        self.messages -= 1
        self.bytes -= message.size
        queues = self._queues
        queues.messages -= 1
        queues.bytes -= message.size
        message.head = message.body = b""
        if message.kept:
            self._keeper.remove(message)
        if not self.messages:
            self._rest()

    def _die(self, message: Message, death: Death) -> None:
        """The end of a message that is in none of the collections any more."""
        queues = self._queues
        queues.deaths[death] += 1
        try:
            if death in self.settings.dead_letters:
                queues.graveyard(self).bury(message, death)
            else:
                queues.lost[death] += 1
        finally:
            message.death = death
            self._drop(message)

    @property
    def _keeper(self) -> MessageKeeper:
        keeper = self._queues.keeper
        assert keeper is not None
        return keeper

    # times

    def check(self, now: float) -> float | None:
        """Do what is due. Returns when to be checked again; None if there is nothing to wait for."""
        self._due = -inf  # no need to be woken meanwhile
        due = inf
        try:
            self._look(now)
            due = min(self._aside.due(), self._first_deadline(), self._end_of_rest())
        finally:
            self._due = due
            if due == inf:
                self._lease = None
        if due <= now and not self.messages:
            self._queues.forget(self)
            return None
        return None if due == inf else due

    def _look(self, now: float) -> None:
        """See to the messages whose time has come."""
        while (message := self._aside.over(now)) is not None:
            avoid = message.avoid
            self._aside.discard(message)
            if message.deadline < now or not self._hand_on(message, avoid):
                self._ready.put_back(message)
        for _ in range(EXPIRE_AT_ONCE):
            if self._first_deadline() >= now:
                break
            message = self._ready.pop()
            if message is not None:
                self._die(message, Death.EXPIRED)
        self.serve()

    def _first_deadline(self) -> float:
        """When the time of that message is over."""
        front = self._ready.front()
        return inf if front is None else front.deadline

    def _rest(self) -> None:
        """If there is nothing in the queue, and nobody who waits for it: it is not needed from now on."""
        if not self.messages and not self.consumers:
            self._idle_since = self._queues.leases.now
            self._wake(self._end_of_rest())

    def _end_of_rest(self) -> float:
        """When the queue is to be forgotten, as things are."""
        if self.messages or self.consumers:
            return inf
        return max(self._idle_since + self.settings.expires, self._ids.until())

    def _wake(self, due: float) -> None:
        """Be checked at that time, if not before."""
        if due < self._due:
            if self._lease is not None:
                self._lease.cancel()
            self._due = due
            self._lease = self._queues.leases.hold(self, due)

    def close(self) -> int:
        """It is not there any more. Returns how many ids it remembered."""
        if self._lease is not None:
            self._lease.cancel()
            self._lease = None
        return len(self._ids)
