"""Data flows: the lease, commands and their answers, life and death. What Contents do is in `reader` and `writer`.

Rules:
- A flow begins with a Lease, over a socket of its own; one that goes in both directions has two. When it is lost the
  client gets new leases by the control flow, from Connection.Open on, after a pause that becomes longer as long as it
  does not help; and takes up what it was about. The application hears of both.
- It is lost when the broker says 403 to anything, also to a Ping: then it does not know the lease, or not any more. It
  is lost too when a command has no answer in time, or when the broker is silent for some heartbeats although it was
  asked.
- Commands and Contents are numbered by one counter, which never begins anew: so an answer is always to one thing.
- A Ping is answered by a Pong. What is ill-formed is dropped, and counted. So is what makes no sense: answers to what
  was never sent, commands that no broker sends.
- What cannot become better ends the flow for good (`Flow.ended`).
"""

from __future__ import annotations

import enum
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import attrs
from twisted.internet.defer import CancelledError, Deferred, DeferredList, FirstError, fail, gatherResults
from twisted.internet.interfaces import IDelayedCall
from twisted.internet.task import deferLater
from twisted.logger import Logger
from twisted.python.failure import Failure

from broker.client.control import Connect, Control
from broker.client.dealer import LINGER, Dealer, data_endpoint
from broker.client.errors import Closed, Lost
from broker.client.heart import Heart
from broker.client.pauses import Pauses
from broker.client.settings import Settings
from broker.wires.mtl.codec import client as requests
from broker.wires.mtl.codec import data as wire
from broker.wires.mtl.codec.faults import IllFormed

ConnectTo = Callable[[str], Connect]
"""What makes sockets to an endpoint."""


class Event(enum.Enum):
    """What an application hears of a flow, beside its Contents."""

    LOST = "lost"
    """The flow is over, and the client starts over."""
    BACK = "back"
    """It has started over: what was summoned is summoned again, what was not confirmed is sent again where that was
    asked for. What came between the two is missing where Contents are not confirmed."""
    REFUSED = "refused"
    """The broker did not take a Content that is not confirmed."""


Told = Callable[[Event, str], object]
"""What hears of events, with words for people."""


@attrs.frozen(eq=False)
class Link:
    """What the flows of a client share."""

    clock: Any
    endpoint: str
    connect_to: ConnectTo
    control: Control
    settings: Settings
    tails: wire.Tails


class Part:
    """One direction of a flow. Those with a leading "on" are called by the flow."""

    takes: tuple[type[wire.Command], ...] = ()
    """The commands of the broker that are for this direction."""

    def __init__(self, profile: str, request: requests.Request) -> None:
        self.profile = profile
        self.request = request
        self.lease: requests.DataLease | None = None
        """The latest lease."""
        self.flow: Flow

    @property
    def up(self) -> bool:
        """Whether there is a flow just now."""
        return self.flow.up

    @property
    def ended(self) -> Deferred[None]:
        """Fires when the flow is closed, fails when it is over for another reason."""
        return self.flow.ended

    @property
    def counts(self) -> Counter[str]:
        """What was dropped, by the reason."""
        return self.flow.counts

    @property
    def generation(self) -> int:
        """How many flows there were, one after the other."""
        return self.flow.generation

    def close(self) -> None:
        """End the flow, in both directions. What is not settled fails with `Closed`."""
        self.flow.close()

    async def on_lease(self) -> None:
        """The broker has answered the lease: do again what is not done yet. Raises `Lost`."""

    def on_up(self) -> None:
        """The flow is there."""

    def on_down(self) -> None:
        """It is not there any more. May be called more than once."""

    def on_farewell(self) -> None:
        """It is about to be closed."""

    def on_end(self, failure: Failure) -> None:
        """It is over for good: nothing will be settled any more."""

    def on_room(self) -> None:
        """There is room to send again."""

    def on_command(self, command: Any) -> None:
        """One of those commands came."""

    def on_refusal(self, sequence: int, code: bytes) -> bool:
        """The broker answered something that is no command. Returns whether it was something of this direction."""
        return False


class Flow:
    """One data flow. `start` begins it, `close` ends it; in between it comes back by itself when it is lost."""

    log = Logger()

    def __init__(self, link: Link, parts: Sequence[Part], told: Told | None) -> None:
        self.ended: Deferred[None] = Deferred()
        """Fires when it is closed, fails when it is over for another reason."""
        self.counts: Counter[str] = Counter()
        """What was dropped, by the reason."""
        self.generation = 0
        """How many flows there were, one after the other."""
        self.why = ""
        """Why the last one was lost."""
        self.link = link
        self.closed = False
        self._parts = tuple(parts)
        self._told = told
        self._dealer: Dealer | None = None
        self._heart: Heart | None = None
        self._up = False
        self._listens = True
        self._over: Deferred[None] = Deferred()
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
        """Whether there is a flow just now."""
        return self._up

    @property
    def lost(self) -> bool:
        """Whether it is lost, and the client about to start over."""
        return self._over.called

    def start(self) -> Deferred[None]:
        """Begin. Fires when it is there, however long that takes; cancel it to close the flow."""
        self._life = Deferred.fromCoroutine(self._live())
        self._life.addErrback(self._ended)
        return self._started

    def close(self) -> None:
        """End it. What is not settled fails with `Closed`."""
        if self._stop(Failure(Closed("the flow is closed"))):
            self.ended.callback(None)

    def fail(self, failure: Failure) -> None:
        """End it for a reason of the application's."""
        if self._stop(failure):
            self.ended.errback(failure)

    def _stop(self, failure: Failure) -> bool:
        """End it, if that was not done before."""
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

    # the course of its life

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
                self.tell(Event.LOST, self.why)
            if self.closed:
                return
            if clock.seconds() - began >= settings.most_pause:
                pauses.reset()
            pause = pauses.next()
            self.log.info(
                "a data flow of {profile} is lost: {why}; again in {pause:.1f} s",
                profile=profile,
                why=self.why,
                pause=pause,
            )
            await deferLater(clock, pause)

    async def _once(self) -> None:
        """From the lease until it is lost. Raises `Lost`, or what is for good."""
        control = self.link.control
        for part in self._parts:
            granted = await control.lease(part.profile, part.request)
            part.lease = granted.lease
        try:
            await self._begin()
            for part in self._parts:
                await part.on_lease()
            if not self.lost:
                self._up = True
                for part in self._parts:
                    part.on_up()
                if self._started.called:
                    self.tell(Event.BACK, "")
                else:
                    self._started.callback(None)
            if self.closed:
                raise Closed("the flow is closed")
            await self._over
            raise Lost(self.why)
        except Lost:
            control.doubt(granted.session)
            raise

    async def _begin(self) -> None:
        """Use the leases."""
        link = self.link
        self._over = Deferred()
        self.why = ""
        leases = [part.lease for part in self._parts if part.lease is not None]
        endpoint, *others = {data_endpoint(link.endpoint, lease.port, lease.endpoint) for lease in leases}
        if others:
            raise Lost("the broker gives two places for one flow")
        try:
            self._dealer = link.connect_to(endpoint)(self._receive, self._room, self.lose)
        except ValueError as error:
            raise Lost(str(error)) from None
        self._heart = Heart(link.clock, link.settings.heartbeat, link.settings.dead_after, self._beat, self._dead)
        self.generation += 1
        answers = [self.ask(wire.lease, lease.lease) for lease in leases]
        for answered, code in await DeferredList(answers, consumeErrors=True):
            if not answered:
                raise Lost(self.why)
            if code != wire.OK:
                raise Lost(f"the broker says {code.decode()} to the lease that it gave")

    def _drop(self, linger: int = 0) -> None:
        """Let go of what is lost."""
        self._up = False
        self._listens = True
        if self._heart is not None:
            self._heart.stop()
            self._heart = None
        dealer, self._dealer = self._dealer, None
        if dealer is not None:
            dealer.close(linger)
        self._fail_commands()
        for part in self._parts:
            part.on_down()

    def lose(self, why: str) -> None:
        """The flow is lost."""
        if not self.lost:
            self.why = why
            self._fail_commands()
            self._over.callback(None)

    def _ended(self, failure: Failure) -> None:
        """It cannot be taken up again."""
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
            # Who waits for the beginning hears it there.
            self.ended.addErrback(_nothing)

    def tell(self, event: Event, why: str) -> None:
        """Let the application hear of an event."""
        if self._told is not None:
            try:
                self._told(event, why)
            except Exception:
                self.log.failure("the application failed to hear that a flow is {event}", event=event.value)

    # messages

    def next(self) -> int:
        """A number for a command or a Content."""
        self._sequence += 1
        return self._sequence

    def send(self, frames: tuple[bytes, bytes]) -> bool:
        """Send a message. Returns whether there was room."""
        assert self._dealer is not None
        assert self._heart is not None
        if not self._dealer.send(frames):
            return False
        self._heart.said()
        return True

    def say(self, frames: tuple[bytes, bytes]) -> None:
        """Send what must not get lost. A broker that has taken nothing for a thousand messages is none."""
        if self._dealer is not None and not self.send(frames):
            self.lose("the broker does not take what it is sent")

    def ask(self, make: Callable[[int, str], tuple[bytes, bytes]], name: str) -> Deferred[bytes]:
        """Send a command. Fires with the code of the answer, fails with `Lost`."""
        if self.lost:
            return fail(Lost(self.why))
        sequence = self.next()
        command = self._commands[sequence] = _Command()
        self._wait(sequence, command)
        self.say(make(sequence, name))
        return command.answer

    def _wait(self, sequence: int, command: _Command) -> None:
        command.timeout = self.link.clock.callLater(self.link.settings.timeout, self._late, sequence, command)

    def _late(self, sequence: int, command: _Command) -> None:
        command.timeout = None
        if self._listens:
            self.lose(f"no answer to a command in {self.link.settings.timeout} s")
        else:
            self._wait(sequence, command)

    def _fail_commands(self) -> None:
        commands, self._commands = self._commands, {}
        for command in commands.values():
            command.over()
            command.answer.errback(Lost(self.why))

    def listen(self, listens: bool) -> None:
        """Whether to receive anything."""
        self._listens = listens
        if self._dealer is not None and self._heart is not None:
            self._heart.listens(listens)
            if listens:
                self._dealer.resume()
            else:
                self._dealer.pause()

    def _room(self) -> None:
        for part in self._parts:
            part.on_room()

    def _beat(self) -> None:
        if self._dealer is not None:
            self.send(wire.PING)

    def _dead(self) -> None:
        self.lose("the broker is silent")

    def _receive(self, frames: list[bytes]) -> None:
        if self.lost:
            return
        assert self._heart is not None
        self._heart.heard()
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
        self.say(wire.PONG)

    def _response(self, response: wire.Response) -> None:
        if response.code == wire.FORBIDDEN:
            self.lose("the broker does not know the lease")
            return
        command = self._commands.pop(response.sequence, None)
        if command is None:
            if not any(part.on_refusal(response.sequence, response.code) for part in self._parts):
                self.counts["response"] += 1
        else:
            command.over()
            command.answer.callback(response.code)


class _Command:
    """A command that is to be answered."""

    def __init__(self) -> None:
        self.answer: Deferred[bytes] = Deferred()
        self.timeout: IDelayedCall | None = None

    def over(self) -> None:
        """It is answered, or will not be."""
        if self.timeout is not None:
            self.timeout.cancel()
            self.timeout = None


async def all_of(waiting: Sequence[Deferred[None]]) -> None:
    """Wait for all of them, or for the first that fails."""
    try:
        await gatherResults(waiting, consumeErrors=True)
    except FirstError as error:
        error.subFailure.raiseException()


def _nothing(_: object) -> None:
    """All that matters of it was its coming."""
