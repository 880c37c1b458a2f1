"""The way back: replies of the control flow, also to peers that do not read.

Rules:
- What finds no room at the peer waits here, and is tried again. Nothing overtakes it on its connection.
- A bounded number waits for one connection, and in all; what is more is dropped and counted, the newest first.
- When a connection is over, so is what waited for it: the next one might have the same descriptor, or be somebody else
  with the same identity.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence

from broker.core.interfaces import ILeases
from broker.session.router import Complaints, Part, Router, Sent

AGAIN = 0.25
"""Seconds after which replies that found no room are tried again."""

MAX_REPLIES = 100
"""Replies that may wait for one connection, behind the thousand messages that libzmq holds for it. Requests and replies
take turns, so real peers have one."""

MAX_ALL = 10_000
"""Replies that may wait in all: some 10 MB."""


class Replies:
    """Sends what the control flow answers."""

    def __init__(self, router: Router, leases: ILeases, complaints: Complaints) -> None:
        self._router = router
        self._leases = leases
        self._complaints = complaints
        self._waiting: dict[int, _Waiting] = {}
        self._count = 0
        self._trying = False

    def __len__(self) -> int:
        return self._count

    def send(self, identity: bytes, connection: int, frames: Sequence[Part]) -> None:
        """Send one reply, or let it wait for room."""
        waiting = self._of(identity, connection)
        if waiting is not None:
            self._try(connection, waiting)
            if waiting.replies:
                self._wait(waiting, frames)
                return
        sent = self._router.send(identity, frames)
        if sent is Sent.FULL:
            self._waiting[connection] = waiting = _Waiting(identity)
            self._wait(waiting, frames)
            if not self._trying:
                self._trying = True
                self._leases.hold(_Again(self._try_all), self._leases.now + AGAIN)
        elif sent is not Sent.SENT:
            self._drop(sent)

    def _of(self, identity: bytes, connection: int) -> _Waiting | None:
        """What waits for that peer. If another one has its connection now, that is over."""
        waiting = self._waiting.get(connection)
        if waiting is not None and waiting.identity != identity:
            self.closed(connection)
            return None
        return waiting

    def closed(self, connection: int) -> None:
        """A connection is over."""
        waiting = self._waiting.pop(connection, None)
        if waiting is not None:
            self._count -= len(waiting.replies)
            self._drop(Sent.GONE, len(waiting.replies))

    def _wait(self, waiting: _Waiting, frames: Sequence[Part]) -> None:
        if len(waiting.replies) < MAX_REPLIES and self._count < MAX_ALL:
            waiting.replies.append(frames)
            self._count += 1
        else:
            self._drop(Sent.FULL)

    def _try_all(self, now: float) -> float | None:
        for connection, waiting in list(self._waiting.items()):
            self._try(connection, waiting)
        self._trying = bool(self._waiting)
        return now + AGAIN if self._trying else None

    def _try(self, connection: int, waiting: _Waiting) -> None:
        """Send what waits, as far as there is room."""
        while waiting.replies:
            sent = self._router.send(waiting.identity, waiting.replies[0])
            if sent is Sent.FULL:
                return
            waiting.replies.popleft()
            self._count -= 1
            if sent is not Sent.SENT:
                self._drop(sent)
        del self._waiting[connection]

    def _drop(self, why: Sent, count: int = 1) -> None:
        self._complaints.count("mtl_dropped", why.value, count)


class _Waiting:
    """What waits for one peer, the oldest first."""

    __slots__ = ("identity", "replies")

    def __init__(self, identity: bytes) -> None:
        self.identity = identity
        self.replies: deque[Sequence[Part]] = deque()


class _Again:
    """Something to be done again, on a lease."""

    def __init__(self, check: Callable[[float], float | None]) -> None:
        self.check = check
