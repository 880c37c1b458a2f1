"""Connections of clients to the fake broker, and the two directions of their data flows.

Rules:
- The broker runs in the thread of the client that sends. Messages to a client are scheduled in its own reactor, so
  clients in several threads, each with a reactor, may share one broker. A lock guards the broker's state.
- A `task.Clock` will do as a reactor: messages then arrive when it is advanced.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import attrs
from twisted.internet.interfaces import IDelayedCall
from twisted.logger import Logger

from broker.client.testing.profile import Profile
from broker.wires.mtl.codec import data

if TYPE_CHECKING:
    from broker.client.testing.fake_broker import FakeBroker

Settled = Callable[["bool | None", bool], object]
"""Callback for the answer to a Content: None for a Confirm, else the reject's ``recycle``; and True if the reader is
gone."""


@attrs.define(eq=False)
class Grant:
    """A data lease, and the direction of a flow that uses it."""

    side: str
    """ "reader" or "writer"."""
    profile: Profile
    resources: tuple[str, ...]
    """The resources that the lease covers; none for all of the profile's."""
    confirmed: bool
    window: int
    user: str
    reply: str = ""
    """The address for replies to a reader of the profile "service"."""

    def covers(self, resource: str) -> bool:
        """Return True if the lease is for that resource."""
        return not self.resources or resource in self.resources


class Connection:
    """A connection of a client; its side of `broker.client.transport.FrameSocket`."""

    log = Logger()

    def __init__(
        self,
        broker: FakeBroker,
        reactor: Any,
        receive: Callable[[list[bytes]], object],
        failed: Callable[[str], object],
    ) -> None:
        self.host: str | None = None
        """The virtual host of the session; None before Open."""
        self.user: str | None = None
        """The authenticated user, or None."""
        self.profile: Profile | None = None
        self.reader: ReaderFlow | None = None
        self.writer: WriterFlow | None = None
        self._broker = broker
        self._reactor = reactor
        self._receive = receive
        self._failed = failed
        self._paused = False
        self._backlog: list[list[bytes]] = []
        self.timers: dict[Timer, None] = {}
        """Timers that run in the reactor of this client."""
        self.closed = False

    # the client's side

    def send(self, frames: Sequence[bytes]) -> bool:
        """Send a message to the broker. There is always room."""
        self._broker.handle(self, [bytes(frame) for frame in frames])
        return True

    def pause(self) -> None:
        """Stop receiving."""
        self._paused = True

    def resume(self) -> None:
        """Receive again."""
        self._paused = False
        if self._backlog:
            self._soon(self._flush)

    def close(self, linger: int = 0) -> None:
        """Close the connection."""
        self._broker.disconnected(self)
        self.closed = True
        for timer in list(self.timers):
            timer.stop()

    # the broker's side

    def deliver(self, *frames: bytes) -> None:
        """Send a message to the client."""
        if not self.closed:
            self._soon(self._deliver, list(frames))

    def fail(self, why: str) -> None:
        """Report a broken connection to the client."""

        def report() -> None:
            if not self.closed:
                self._failed(why)

        self._soon(report)

    def later(self, seconds: float, function: Callable[[], object]) -> Timer:
        """Call a function of the broker after a delay, unless the connection is closed before."""
        timer = Timer(self._reactor, seconds, partial(self._broker.run, function))
        self.timers[timer] = None
        timer.done = partial(self.timers.pop, timer, None)
        self._soon(timer.start)
        return timer

    def _soon(self, function: Callable[..., object], *arguments: object) -> None:
        # A Clock has no callFromThread: its tests have one thread.
        schedule = getattr(self._reactor, "callFromThread", None)
        if schedule is None:
            self._reactor.callLater(0, function, *arguments)
        else:
            schedule(function, *arguments)

    def _deliver(self, frames: list[bytes]) -> None:
        self._backlog.append(frames)
        self._flush()

    def _flush(self) -> None:
        while self._backlog and not self._paused and not self.closed:
            try:
                self._receive(self._backlog.pop(0))
            except Exception:
                self.log.failure("the handler of a message from the fake broker failed")


class Timer:
    """A delayed call in the reactor of a client."""

    def __init__(self, reactor: Any, seconds: float, function: Callable[[], object]) -> None:
        self.done: Callable[[], object] = lambda: None
        self._reactor = reactor
        self._seconds = seconds
        self._function = function
        self._call: IDelayedCall | None = None
        self._stopped = False

    def start(self) -> None:
        """Start the timer, in the reactor's thread."""
        if not self._stopped:
            self._call = self._reactor.callLater(self._seconds, self._fire)

    def stop(self) -> None:
        """Stop the timer, in the reactor's thread."""
        self._stopped = True
        self.done()
        if self._call is not None:
            self._call.cancel()
            self._call = None

    def cancel(self) -> None:
        """Stop the timer, in any thread."""
        self._stopped = True
        schedule = getattr(self._reactor, "callFromThread", None)
        if schedule is None:
            self.stop()
        else:
            schedule(self.stop)

    def _fire(self) -> None:
        self._call = None
        self.done()
        if not self._stopped:
            self._function()


class ReaderFlow:
    """The direction of a flow from the broker to a client."""

    def __init__(self, connection: Connection, grant: Grant) -> None:
        self.connection = connection
        self.grant = grant
        self.summoned: dict[str, None] = {}
        self.unanswered: dict[int, Settled] = {}
        self._sequence = 0

    @property
    def room(self) -> bool:
        """True if the window permits another Content."""
        return not self.grant.confirmed or len(self.unanswered) < self.grant.window

    def give(self, resource: str, table: bytes, body: bytes, settled: Settled | None = None) -> None:
        """Send a Content. ``settled`` is called with the answer; without confirmation that is at once."""
        self._sequence += 1
        if settled is not None and self.grant.confirmed:
            self.unanswered[self._sequence] = settled
        self.connection.deliver(*data.content(self._sequence, resource, table, body))
        if settled is not None and not self.grant.confirmed:
            settled(None, False)

    def answered(self, sequence: int, multiple: bool, recycle: bool | None) -> None:
        """Handle a Confirm or a Reject. Answers to nothing are ignored."""
        if not multiple:
            numbers = [sequence] if sequence in self.unanswered else []
        else:
            numbers = [number for number in self.unanswered if number <= sequence]
        for settled in [self.unanswered.pop(number) for number in numbers]:
            settled(recycle, False)

    def give_back(self) -> None:
        """Return all unanswered Contents, in order, at the end of the flow."""
        unanswered, self.unanswered = self.unanswered, {}
        for settled in unanswered.values():
            settled(True, True)


class WriterFlow:
    """The direction of a flow from a client to the broker."""

    def __init__(self, connection: Connection, grant: Grant) -> None:
        self.connection = connection
        self.grant = grant

    def confirm(self, sequence: int) -> None:
        """Confirm a Content, where that was agreed."""
        if self.grant.confirmed:
            self.connection.deliver(*data.confirm(sequence))

    def reject(self, sequence: int, recycle: bool = False) -> None:
        """Reject a Content. Without confirmation a permanent refusal is a Response 400, a temporary one is silent."""
        if self.grant.confirmed:
            self.connection.deliver(*data.reject(sequence, recycle=recycle))
        elif not recycle:
            self.connection.deliver(*data.response(sequence, data.BAD_REQUEST))
