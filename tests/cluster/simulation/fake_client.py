"""Client of the fake etcd for one broker: `IEtcd` with delays and losses from a seeded source of chance.

It behaves as `broker.cluster.etcd.etcd_client`: a call is tried at each endpoint at most once, a write whose result is
unknown is not repeated unless that does no harm, and every call ends within a bounded time.

Requests travel on the clock of etcd, answers and events arrive on the clock of the broker: a broker that is paused
receives them late, and what it sent before takes effect nevertheless.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import attrs
from twisted.internet.defer import CancelledError, Deferred
from twisted.internet.interfaces import IDelayedCall, IReactorTime
from zope.interface import implementer

from broker.cluster.etcd.etcd_interface import (
    Compacted,
    Compare,
    Delete,
    Ended,
    EtcdError,
    Event,
    FutureRevision,
    Granted,
    IEtcd,
    IEtcdWatch,
    Nested,
    Operation,
    Put,
    RangeResult,
    Status,
    TxnResult,
    Unavailable,
    Watcher,
)
from tests.cluster.simulation.fake_etcd import MEMBERS, FakeEtcd

TIMEOUT = 5.0
"""Seconds for a call at one endpoint."""

RENEWAL_TIMEOUT = 2.0
"""Seconds for a renewal at one endpoint."""

CREATED = 5.0
"""Seconds within which etcd confirms a watch."""

HEAL = (0.1, 3.0)
"""Seconds after which the events arrive that a cut connection held back."""

ORDERS = [tuple((first + number) % MEMBERS for number in range(MEMBERS)) for first in range(MEMBERS)]
"""The members in the order in which a call tries them, by the preferred one."""

CLOSED = "the client of etcd is closed"


@attrs.define
class Chances:
    """Chances of each call, 0 to 1, and delays in seconds.

    - ``lost``: the request is lost before it takes effect. ``unanswered``: the answer is lost.
    - ``late``: the request takes effect after its caller was told that its result is unknown.
    - ``broken``: a watch ends when it has events.
    - ``delay``: least and most time of one way.
    """

    lost: float = 0.0
    unanswered: float = 0.0
    late: float = 0.0
    broken: float = 0.0
    delay: tuple[float, float] = (0.0005, 0.004)


SPLIT = 0.3
"""Chance that a client passes on the events of a message in two slices."""


@implementer(IEtcd)
class FakeClient:
    """`IEtcd` at a `FakeEtcd`. ``clock`` is the broker's, ``chances`` may be changed at any time."""

    def __init__(self, etcd: FakeEtcd, clock: IReactorTime, rng: random.Random, name: str = "") -> None:
        self.etcd = etcd
        self.name = name
        self.chances = Chances()
        self.cut: set[int] = set()
        """Members that cannot be reached, silently; see `disconnect`."""
        self.overloaded = False
        """True while etcd answers renewals of leases only, as with a backlog of requests that are to be applied."""
        self._clock = clock
        self.rng = rng
        self._preferred = rng.randrange(MEMBERS)
        self._running: dict[_Call, None] = {}
        self._watches: dict[FakeWatch, None] = {}
        self._closed = False
        self.renewals: list[float] = []
        """Times of the grants and renewals whose answers have arrived."""

    # faults

    def disconnect(self, *members: int) -> None:
        """Cut the connections to some members, or to all: they become silent."""
        self.etcd.trace("cut from etcd", self.name, members)
        self.cut |= set(members or range(MEMBERS))

    def connect(self) -> None:
        """Heal all connections to members."""
        self.etcd.trace("connected to etcd", self.name)
        self.cut = set()
        for watch in list(self._watches):
            watch.flush(self.rng.uniform(*HEAL))

    def abandon(self) -> None:
        """End as the process of the broker does when it is killed: what was sent may still take effect, and nobody
        receives an answer."""
        self._closed = True
        for watch in list(self._watches):
            watch.cancel()
        for call in list(self._running):
            call.abandon()

    # IEtcd

    def range(self, key: bytes, end: bytes | None = None, limit: int = 0, revision: int = 0) -> Deferred[RangeResult]:
        return self._call(lambda _: self.etcd.range(key, end, limit, revision))

    def txn(
        self, compare: Sequence[Compare], success: Sequence[Operation], failure: Sequence[Operation] = ()
    ) -> Deferred[TxnResult]:
        compare, success, failure = tuple(compare), tuple(success), tuple(failure)
        writes = any(isinstance(each, Put | Delete | Nested) for each in (*success, *failure))
        return self._call(lambda _: self.etcd.txn(compare, success, failure), writes, not writes)

    def grant(self, ttl: int) -> Deferred[Granted]:
        return self._call(lambda _: self.etcd.grant(ttl), True, False).addCallback(self._renewed)

    def keep_alive(self, lease: int) -> Deferred[int]:
        def renew(member: int) -> int:
            if self.etcd.clock.seconds() < self.etcd.members[member].stale_until and lease in self.etcd.leases:
                return self.etcd.leases[lease].ttl
            self._quorum(member)
            return self.etcd.keep_alive(lease)

        return self._call(renew, True, seconds=RENEWAL_TIMEOUT, quorum=False).addCallback(self._renewed)

    def _renewed(self, answer: Any) -> Any:
        self.renewals.append(self.etcd.clock.seconds())
        return answer

    def revoke(self, lease: int) -> Deferred[None]:
        return self._call(lambda _: self.etcd.revoke(lease), True)

    def time_to_live(self, lease: int) -> Deferred[int]:
        return self._call(lambda _: self.etcd.time_to_live(lease))

    def status(self) -> Deferred[Status]:
        return self._call(lambda _: self.etcd.status(), quorum=False)

    def compact(self, revision: int) -> Deferred[None]:
        return self._call(lambda _: self.etcd.compact(revision), True)

    def watch(self, key: bytes, end: bytes, revision: int, watcher: Watcher) -> IEtcdWatch:
        watch = FakeWatch(self, self._clock, self._preferred, (key, end, revision), watcher)
        if not self._closed:
            self._watches[watch] = None
        return watch

    def change_endpoint(self, watch: IEtcdWatch | None = None) -> None:
        if not isinstance(watch, FakeWatch) or watch.member == self._preferred:
            self._preferred = (self._preferred + 1) % MEMBERS

    def close(self) -> Deferred[None]:
        self._closed = True
        for watch in list(self._watches):
            watch.fail(CLOSED)
        for call in list(self._running):
            call.fail(Unavailable(CLOSED, call.writes))
        done: Deferred[None] = Deferred()
        done.callback(None)
        return done

    # for the calls and watches

    def failed(self, member: int) -> None:
        """Prefer another endpoint than this one."""
        if self._preferred == member:
            self.change_endpoint()

    def silent(self, member: int) -> bool:
        """Return True if nothing comes from a member, and no refusal either."""
        return member in self.cut or self.etcd.members[member].paused

    def forget(self, watch: FakeWatch) -> None:
        """Forget a watch that has ended."""
        self._watches.pop(watch, None)

    def done(self, call: _Call) -> None:
        """Forget a call that has ended."""
        self._running.pop(call, None)

    def delay(self) -> float:
        """Return the time of one way."""
        # As `random.uniform`, which is called for most events.
        least, most = self.chances.delay
        return least + (most - least) * self.rng.random()

    def _quorum(self, member: int) -> None:
        if self.etcd.leader is None or not self.etcd.members[member].healthy:
            raise Unavailable("etcdserver: no leader")

    def _call(
        self,
        effect: Callable[[int], Any],
        writes: bool = False,
        repeatable: bool = True,
        seconds: float = TIMEOUT,
        quorum: bool = True,
    ) -> Deferred[Any]:
        def checked(member: int) -> Any:
            if quorum:
                if self.overloaded:
                    raise Unavailable("etcdserver: too many requests")
                self._quorum(member)
            return effect(member)

        call = _Call(self, self._clock, checked, ORDERS[self._preferred], writes, repeatable, seconds)
        if self._closed:
            call.fail(Unavailable(CLOSED))
        else:
            self._running[call] = None
            call.attempt()
        return call.result


class _Call:
    """One call, which is tried at one endpoint after the other."""

    def __init__(
        self,
        client: FakeClient,
        clock: IReactorTime,
        effect: Callable[[int], Any],
        order: Sequence[int],
        writes: bool,
        repeatable: bool,
        seconds: float,
    ) -> None:
        self.writes = writes
        self.result: Deferred[Any] = Deferred(lambda _: self.fail(CancelledError()))
        self._client = client
        self._etcd = client.etcd
        self._clock = clock
        self._effect = effect
        self._order = order
        self._repeatable = repeatable
        self._seconds = seconds
        self._tries = 0
        self._unknown = False
        self._over = False
        self._timers: list[IDelayedCall] = []

    def attempt(self) -> None:
        """Send the request to the next endpoint."""
        client, number = self._client, self._tries
        member = self._order[number]
        chances = client.chances
        if client.silent(member):
            self._later(self._seconds, self._failed, number, self.writes and client.rng.random() < 0.5)
        elif not self._etcd.members[member].up:
            self._later(client.delay(), self._failed, number, False)
        elif chances.late and self.writes and client.rng.random() < chances.late:
            self._later(self._seconds, self._failed, number, True)
            late = self._seconds + client.rng.uniform(0, self._seconds)
            self._etcd.clock.callLater(late, self._take_effect, member)
        else:
            self._etcd.clock.callLater(client.delay(), self._arrive, member, number)

    def fail(self, error: Exception) -> None:
        """End with a failure."""
        if self._end():
            self.result.errback(error)

    def abandon(self) -> None:
        """End without a result."""
        self._end()

    def _end(self) -> bool:
        if self._over:
            return False
        self._over = True
        self._client.done(self)
        for timer in self._timers:
            if timer.active():
                timer.cancel()
        return True

    def _later(self, seconds: float, call: Callable[..., object], *args: Any) -> None:
        if not self._over:
            if self._timers:
                self._timers = [timer for timer in self._timers if timer.active()]
            self._timers.append(self._clock.callLater(seconds, call, *args))

    def _take_effect(self, member: int) -> tuple[bool, Any]:
        try:
            return True, self._effect(member)
        except EtcdError as error:
            return False, error

    def _arrive(self, member: int, number: int) -> None:
        """The request arrives at the member. The broker may have ended by now."""
        client = self._client
        rng, chances = client.rng, client.chances
        if not self._etcd.members[member].up or client.silent(member):
            self._later(self._seconds, self._failed, number, self.writes)
            return
        if chances.lost and rng.random() < chances.lost:
            self._later(rng.choice((0.01, self._seconds)), self._failed, number, self.writes)
            return
        succeeded, result = self._take_effect(member)
        if not succeeded and isinstance(result, Unavailable):
            # At once, or when the request has waited for a leader in vain.
            waits = rng.random() < 0.2
            self._later(self._seconds if waits else client.delay(), self._failed, number, waits and self.writes)
        elif chances.unanswered and rng.random() < chances.unanswered:
            self._later(rng.choice((0.01, self._seconds)), self._failed, number, self.writes)
        else:
            self._later(client.delay(), self._answered, member, number, succeeded, result)

    def _answered(self, member: int, number: int, succeeded: bool, result: Any) -> None:
        if self._client.silent(member):
            self._later(self._seconds, self._failed, number, self.writes)
        elif self._end():
            if succeeded:
                self.result.callback(result)
            else:
                self.result.errback(result)

    def _failed(self, number: int, unknown: bool) -> None:
        self._client.failed(self._order[number])
        self._unknown = self._unknown or unknown
        self._tries += 1
        if self._tries == len(self._order) or (self._unknown and not self._repeatable):
            self.fail(Unavailable("no endpoint of etcd answers", self._unknown))
        else:
            self.attempt()


@implementer(IEtcdWatch)
class FakeWatch:
    """A watch at one member."""

    def __init__(
        self,
        client: FakeClient,
        clock: IReactorTime,
        member: int,
        watched: tuple[bytes, bytes, int],
        watcher: Watcher,
    ) -> None:
        self.key, self.end, self._start = watched
        self.member = member
        self._client = client
        self._etcd = client.etcd
        self._clock = clock
        self._watcher = watcher
        self._queue: deque[tuple[int, Sequence[Event]]] = deque()
        self._over = False
        self._open = False
        self._timer = clock.callLater(client.delay(), self._begin)

    def cancel(self) -> None:
        self._finish()

    def fail(self, text: str) -> None:
        """End, as a watch whose connection fails."""
        self._ended(Ended.FAILED, text)

    def push(self, revision: int, events: Sequence[Event]) -> None:
        """See `Stream`."""
        self._queue.append((revision, events))
        if not self._timer.active():
            self._timer = self._clock.callLater(self._client.delay(), self._deliver)

    def broken(self) -> None:
        """See `Stream`. A cut connection does not show it."""
        if not self._over and self.member not in self._client.cut:
            self._clock.callLater(self._client.delay(), self.fail, "the watch ended")

    def flush(self, seconds: float) -> None:
        """Send what was held back, after some seconds."""
        if self._open and not self._over:
            if self._timer.active():
                self._timer.cancel()
            self._timer = self._clock.callLater(seconds, self._deliver)

    def _begin(self) -> None:
        if self._client.silent(self.member):
            self._timer = self._clock.callLater(CREATED, self.fail, "etcd does not confirm the watch")
            return
        if not self._etcd.members[self.member].up:
            self.fail("connection refused")
            return
        try:
            self._open = True
            self._etcd.open(self, self._start)
        except (Compacted, FutureRevision) as error:
            self._ended(Ended.COMPACTED, str(error))

    def _deliver(self) -> None:
        client = self._client
        if self.member in client.cut:
            return
        member = self._etcd.members[self.member]
        if not member.healthy:
            # A member that has left the others, or stands still, sends its events when it is back.
            self._timer = self._clock.callLater(0.5, self._deliver)
            return
        if client.chances.broken and client.rng.random() < client.chances.broken:
            self.fail("the connection was lost")
            return
        # One revision, or several, in a message.
        waiting = len(self._queue)
        count = waiting if waiting < 2 else client.rng.randint(1, waiting)
        if count:
            parts = [self._queue.popleft() for _ in range(count)]
            events = parts[0][1] if count == 1 else [event for _, some in parts for event in some]
            revision = parts[-1][0]
            if len(events) > 1 and client.rng.random() < SPLIT:
                left = client.rng.randrange(1, len(events))
                self._queue.appendleft((revision, events[left:]))
                events = events[:left]
                revision = events[-1].revision - 1
            if self._queue or not self._etcd.has(self):
                self._timer = self._clock.callLater(client.delay(), self._deliver)
            self._watcher.events(revision, events)
        elif not self._etcd.has(self):
            self.fail("the watch ended")

    def _ended(self, reason: Ended, text: str) -> None:
        if not self._over:
            self._finish()
            if reason is Ended.FAILED:
                self._client.failed(self.member)
            self._watcher.ended(reason, text)

    def _finish(self) -> None:
        if self._over:
            return
        self._over = True
        self._queue.clear()
        if self._timer.active():
            self._timer.cancel()
        self._etcd.close(self)
        self._client.forget(self)
