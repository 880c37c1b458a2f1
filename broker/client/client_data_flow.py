"""Data flows: leases, commands and responses, loss and recovery. `reader` and `writer` handle the Contents.

Rules:
- A flow begins with a Lease over a socket of its own; a flow in both directions has two leases. When it is lost the
  client requests new leases by the control flow, from Connection.Open on, after a delay that grows with each failed
  attempt, and restores the flow: Summons and unconfirmed Contents are sent again. The application is notified of loss
  and recovery (`broker.client.settings`).
- A flow is lost when the broker responds 403 to any command, also to a Ping: the lease is unknown or has ended. It is
  lost too when a command has no response in time, and when the broker is silent for some heartbeats in spite of Pings.
- In a cluster the lease may be refused because another broker has the resource: the client requests it there, a
  bounded number of times in a row (`MAX_HOPS`). After a loss it begins with its own broker again.
- One counter numbers commands and Contents and never restarts, so a response belongs to exactly one of them.
- A Ping is answered by a Pong. Ill-formed messages are dropped and counted, and so are meaningless ones: responses to
  nothing, commands that only clients send.
- A permanent error ends the flow (`Flow.ended`).

The file is longer than others: requests, loss and recovery are transitions of one state, that of a `Flow`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import attrs
from twisted.internet.defer import CancelledError, Deferred, DeferredList, FirstError, fail, gatherResults
from twisted.internet.interfaces import IDelayedCall
from twisted.internet.task import deferLater
from twisted.logger import Logger
from twisted.python.failure import Failure

from broker.backoff import Pauses
from broker.client.client_control_flow import Connect, Control
from broker.client.dealer import LINGER
from broker.client.errors import Closed, Elsewhere, Lost
from broker.client.heartbeat import Heartbeat
from broker.client.settings import Event, OnEvent, Settings
from broker.client.transport import FrameSocket, data_endpoint
from broker.wires.mtl.codec import client_messages as requests
from broker.wires.mtl.codec import data_messages as wire
from broker.wires.mtl.codec.field_table import IllFormed

MAX_HOPS = 4
"""Brokers to which a client is sent in a row for one lease. One is usual, two while a resource moves; more are brokers
that disagree, or resources of several brokers in one lease."""

ConnectTo = Callable[[str], Connect]
"""Factory of socket factories: takes an endpoint."""


@attrs.frozen(eq=False)
class Link:
    """Dependencies that the flows of a client share. ``control_at`` returns the control flow with another broker."""

    clock: Any
    connect_to: ConnectTo
    control: Control
    control_at: Callable[[str], Control]
    settings: Settings
    tails: wire.Tails


class Direction:
    """One direction of a flow. The flow calls the methods that begin with ``on_``."""

    takes: tuple[type[wire.Command], ...] = ()
    """Commands of the broker that this direction handles."""

    def __init__(self, profile: str, request: requests.Request, resources: Sequence[str]) -> None:
        self.profile = profile
        self.resources = tuple(resources)
        """Resources of the lease; empty for all."""
        self.request = request
        self.lease: requests.DataLease | None = None
        """The latest lease."""
        self.flow: Flow

    @property
    def up(self) -> bool:
        """True while the flow is established."""
        return self.flow.up

    @property
    def ended(self) -> Deferred[None]:
        """Fires when the flow is closed, fails when a permanent error ends it."""
        return self.flow.ended

    @property
    def counts(self) -> Counter[str]:
        """Number of dropped messages, by reason."""
        return self.flow.counts

    @property
    def generation(self) -> int:
        """Number of flows so far, this one included: it rises with each recovery."""
        return self.flow.generation

    def close(self) -> None:
        """Close the flow in both directions. Contents that are not settled fail with `Closed`."""
        self.flow.close()

    async def on_lease(self) -> None:
        """Restore the state after the broker has accepted the lease. Raises `Lost`."""

    def on_up(self) -> None:
        """Handle that the flow is established."""

    def on_down(self) -> None:
        """Handle that the flow is lost. May be called more than once."""

    def on_farewell(self) -> None:
        """Send last messages before the flow is closed."""

    def on_end(self, failure: Failure) -> None:
        """Handle the end of the flow: nothing is settled any more."""

    def on_room(self) -> None:
        """Handle that there is room to send again."""

    def on_command(self, command: Any) -> None:
        """Handle a command of a type in `takes`."""

    def on_refusal(self, sequence: int, code: bytes) -> bool:
        """Handle a response that belongs to no command. Returns True if it belongs to a Content of this direction."""
        return False


class Flow:
    """One data flow. `start` opens it, `close` ends it; in between it recovers from every loss."""

    log = Logger()

    def __init__(self, link: Link, parts: Sequence[Direction], on_event: OnEvent | None) -> None:
        self.ended: Deferred[None] = Deferred()
        """Fires when the flow is closed, fails when a permanent error ends it."""
        self.counts: Counter[str] = Counter()
        """Number of dropped messages, by reason."""
        self.generation = 0
        """Number of flows so far, this one included."""
        self.why = ""
        """Reason of the last loss."""
        self.link = link
        self.closed = False
        self._parts = tuple(parts)
        self._on_event = on_event
        self._socket: FrameSocket | None = None
        self._heart: Heartbeat | None = None
        self._up = False
        self._receiving = True
        self._loss: Deferred[None] = Deferred()
        self._sequence = 0
        self._commands: dict[int, _Command] = {}
        self._started: Deferred[None] = Deferred(lambda _: self.close())
        self._life: Deferred[None] | None = None
        self._takers: dict[type, Callable[[Any], object]] = {
            wire.Response: self._response,
            wire.Ping: self._ping,
            wire.Pong: _nothing,
        }
        for part in self._parts:
            part.flow = self
            self._takers.update(dict.fromkeys(part.takes, part.on_command))

    @property
    def up(self) -> bool:
        """True while the flow is established."""
        return self._up

    @property
    def lost(self) -> bool:
        """True if the flow is lost and recovery is pending."""
        return self._loss.called

    def start(self) -> Deferred[None]:
        """Open the flow. Fires when it is established, however long that takes. Cancelling closes the flow."""
        self._life = Deferred.fromCoroutine(self._live())
        self._life.addErrback(self._ended)
        return self._started

    def close(self) -> None:
        """Close the flow. Contents that are not settled fail with `Closed`."""
        if self._stop(Failure(Closed("the flow is closed"))):
            self.ended.callback(None)

    def fail(self, failure: Failure) -> None:
        """End the flow with a failure."""
        if self._stop(failure):
            self.ended.errback(failure)

    def _stop(self, failure: Failure) -> bool:
        """End the flow. Returns False if it has ended before."""
        if self.closed:
            return False
        self.closed = True
        if self._up:
            for part in self._parts:
                part.on_farewell()
        if self._life is not None:
            self._life.cancel()
        self._finish(failure)
        return True

    # life cycle

    async def _live(self) -> None:
        clock, settings = self.link.clock, self.link.settings
        profile = self._parts[0].profile
        pauses = Pauses(settings.least_pause, settings.most_pause)
        while True:
            began = clock.seconds()
            try:
                await self._once()
            except Lost as lost:
                self.why = str(lost)
            was_up = self._up
            self._drop()
            if was_up and not self.closed:
                self.notify(Event.LOST, self.why)
            if self.closed:
                return
            # A flow that lasted is no failed attempt: start again with the shortest delay.
            if clock.seconds() - began >= settings.most_pause:
                pauses.reset()
            pause = pauses.next()
            self.log.info(
                "data flow of profile {profile} lost: {why}; next attempt in {pause:.1f} s",
                profile=profile,
                why=self.why,
                pause=pause,
            )
            await deferLater(clock, pause)

    async def _once(self) -> None:
        """Run one flow from the lease to its loss. Raises `Lost`, or a permanent error."""
        control, session = await self._request()
        try:
            await self._begin(control.endpoint)
            for part in self._parts:
                await part.on_lease()
            if not self.lost:
                self._up = True
                for part in self._parts:
                    part.on_up()
                if self._started.called:
                    self.notify(Event.BACK, "")
                else:
                    self._started.callback(None)
            if self.closed:
                raise Closed("the flow is closed")
            await self._loss
            raise Lost(self.why)
        except Lost:
            # The broker may have restarted: its control flow has to begin with Open again.
            control.invalidate(session)
            raise

    async def _request(self) -> tuple[Control, int]:
        """Request the leases, at the broker that has the resources. Returns the control flow and its session."""
        control = self.link.control
        for _ in range(MAX_HOPS + 1):
            try:
                for part in self._parts:
                    granted = await control.lease(part.profile, part.request)
                    part.lease = granted.lease
            except ValueError as error:
                if control is self.link.control:
                    raise
                raise Lost(f"the broker refers to an endpoint that is none: {error}") from None
            except Elsewhere as elsewhere:
                self.log.debug("{why}: trying {endpoint}", why=str(elsewhere), endpoint=elsewhere.endpoint)
                control = self.link.control_at(elsewhere.endpoint)
            else:
                return control, granted.session
        raise Lost("the brokers refer to each other; a lease must not name queues of several brokers")

    async def _begin(self, control: str) -> None:
        """Connect and send the leases. ``control`` is the endpoint of the control flow that granted them."""
        link = self.link
        self._loss = Deferred()
        self.why = ""
        leases = [part.lease for part in self._parts if part.lease is not None]
        endpoint, *others = {data_endpoint(control, lease.port, lease.endpoint) for lease in leases}
        if others:
            raise Lost("the broker gives two endpoints for one flow")
        try:
            self._socket = link.connect_to(endpoint)(self._receive, self._room, self.lose)
        except ValueError as error:
            raise Lost(str(error)) from None
        self._heart = Heartbeat(link.clock, link.settings.heartbeat, link.settings.dead_after, self._beat, self._dead)
        self.generation += 1
        answers = [self.ask(wire.lease, lease.lease) for lease in leases]
        for answered, code in await DeferredList(answers, consumeErrors=True):
            if not answered:
                raise Lost(self.why)
            if code != wire.OK:
                raise Lost(f"the broker responded {code.decode()} to its own lease")

    def _drop(self, linger: int = 0) -> None:
        """Release the socket, timers and pending commands of a lost flow."""
        self._up = False
        self._receiving = True
        if self._heart is not None:
            self._heart.stop()
            self._heart = None
        dealer, self._socket = self._socket, None
        if dealer is not None:
            dealer.close(linger)
        self._fail_commands()
        for part in self._parts:
            part.on_down()

    def lose(self, why: str) -> None:
        """Mark the flow as lost."""
        if not self.lost:
            self.why = why
            # Before the failures of the commands: who waits for one must find the flow lost.
            self._loss.callback(None)
            self._fail_commands()

    def _ended(self, failure: Failure) -> None:
        """Handle a permanent error."""
        if self.closed and failure.check(CancelledError, Closed):
            return
        closed, self.closed = self.closed, True
        self._finish(failure)
        if closed:
            self.log.failure("a closed flow failed", failure)
        else:
            self.ended.errback(failure)

    def _finish(self, failure: Failure) -> None:
        self.why = failure.getErrorMessage()
        for part in self._parts:
            part.on_end(failure)
        self._drop(LINGER if self._up else 0)
        if not self._started.called:
            self._started.errback(failure)
            # The failure is reported by `start`: do not log it as unhandled a second time.
            self.ended.addErrback(_nothing)

    def notify(self, event: Event, why: str) -> None:
        """Notify the application of an event."""
        if self._on_event is not None:
            try:
                self._on_event(event, why)
            except Exception:
                self.log.failure("the application's callback for the event {event} failed", event=event.value)

    # messages

    def next(self) -> int:
        """Return the next sequence number, for a command or a Content."""
        self._sequence += 1
        return self._sequence

    def send(self, frames: tuple[bytes, bytes]) -> bool:
        """Send a message. Returns False if there is no room."""
        assert self._socket is not None
        assert self._heart is not None
        if not self._socket.send(frames):
            return False
        self._heart.sent()
        return True

    def send_or_lose(self, frames: tuple[bytes, bytes]) -> None:
        """Send a message that must not be dropped. Without room the flow is lost: a broker that accepts nothing for a
        full queue of messages is not alive."""
        if self._socket is not None and not self.send(frames):
            self.lose("the broker does not read")

    def ask(self, make: Callable[[int, str], tuple[bytes, bytes]], name: str) -> Deferred[bytes]:
        """Send a command. Fires with the code of the response, fails with `Lost`."""
        if self.lost:
            return fail(Lost(self.why))
        sequence = self.next()
        command = self._commands[sequence] = _Command()
        self._wait(sequence, command)
        self.send_or_lose(make(sequence, name))
        return command.answer

    def _wait(self, sequence: int, command: _Command) -> None:
        command.timeout = self.link.clock.callLater(self.link.settings.timeout, self._timed_out, sequence, command)

    def _timed_out(self, sequence: int, command: _Command) -> None:
        command.timeout = None
        if self._receiving:
            self.lose(f"no response to a command in {self.link.settings.timeout} s")
        else:
            self._wait(sequence, command)

    def _fail_commands(self) -> None:
        commands, self._commands = self._commands, {}
        for command in commands.values():
            command.settle()
            command.answer.errback(Lost(self.why))

    def set_receiving(self, receiving: bool) -> None:
        """Stop or resume receiving, for backpressure."""
        self._receiving = receiving
        if self._socket is not None and self._heart is not None:
            self._heart.set_receiving(receiving)
            if receiving:
                self._socket.resume()
            else:
                self._socket.pause()

    def _room(self) -> None:
        for part in self._parts:
            part.on_room()

    def _beat(self) -> None:
        if self._socket is not None:
            self.send(wire.PING)

    def _dead(self) -> None:
        self.lose("the broker is silent")

    def _receive(self, frames: list[bytes]) -> None:
        if self.lost:
            return
        assert self._heart is not None
        self._heart.received()
        try:
            command = wire.parse(frames, self.link.tails)
        except IllFormed as fault:
            self.counts[fault.fault.value] += 1
            return
        take = self._takers.get(type(command))
        if take is None:
            self.counts[type(command).__name__.lower()] += 1
        else:
            take(command)

    def _ping(self, ping: wire.Ping) -> None:
        self.send_or_lose(wire.PONG)

    def _response(self, response: wire.Response) -> None:
        if response.code == wire.FORBIDDEN:
            self.lose("the broker does not know the lease (403)")
            return
        if response.code == wire.UNAVAILABLE:
            self.lose("the broker cannot serve a resource now (503)")
            return
        if response.code == wire.MISDIRECTED and all(part.resources for part in self._parts):
            self.lose("a resource belongs to another broker now (421)")
            return
        command = self._commands.pop(response.sequence, None)
        if command is None:
            if not any(part.on_refusal(response.sequence, response.code) for part in self._parts):
                self.counts["response"] += 1
        else:
            command.settle()
            command.answer.callback(response.code)


class _Command:
    """A command that awaits its response."""

    def __init__(self) -> None:
        self.answer: Deferred[bytes] = Deferred()
        self.timeout: IDelayedCall | None = None

    def settle(self) -> None:
        """Cancel the timeout."""
        if self.timeout is not None:
            self.timeout.cancel()
            self.timeout = None


async def all_of(waiting: Sequence[Deferred[None]]) -> None:
    """Wait for all Deferreds, or for the first failure."""
    try:
        await gatherResults(waiting, consumeErrors=True)
    except FirstError as error:
        error.subFailure.raiseException()


def _nothing(_: object) -> None:
    """Ignore the message: its arrival alone matters, as a sign of life."""
