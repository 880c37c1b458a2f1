"""A flow of Contents to the client.

Rules:
- Only what the lease is for is summoned, nothing twice, and only what was summoned is dismissed: else it is a defect of
  the application (ValueError), and the broker does not hear of it.
- Where Contents are confirmed, each is confirmed when the application is done with it, or rejected if it failed. It is
  done when the function that it gave returns, or the Deferred or coroutine that this returned is.
- A Content of what is not summoned is not given to the application. It is rejected, with recycle.
- Answers belong to the flow that the Content came by. When that is lost they mean nothing, since the broker gives the
  Content to somebody again.
- When the application is busy with more than it said, nothing is received until it has done half of it. The client
  still sends Pings then.
- A flow that is closed gives back what was not answered. `Reader.drain` lets the application finish before.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from typing import Any

from twisted.internet.defer import Deferred, fail, maybeDeferred
from twisted.logger import Logger
from twisted.python.failure import Failure

from broker.client.errors import Closed, Lost, NotTaken, Refused
from broker.client.flow import Part, all_of
from broker.client.settings import Settings
from broker.wires.mtl.codec import client as requests
from broker.wires.mtl.codec import data as wire
from broker.wires.mtl.codec import table
from broker.wires.mtl.codec.control import Confirm

MOST_PENDING = 10_000
"""Contents that the application may be busy with, however large the window that the broker set."""


class Delivery:
    """A Content that came.

    ``missed`` is how many the broker could not send before this one. ``generation`` is that of the flow
    (`Flow.generation`): another one than before says that what came before may not go on here.
    """

    __slots__ = ("_properties", "_reader", "_table", "answered", "body", "generation", "missed", "resource", "sequence")

    def __init__(self, reader: Reader, resource: str, content: wire.Content, missed: int, generation: int) -> None:
        self.resource = resource
        self.body = bytes(content.body)
        self.sequence = content.sequence
        self.missed = missed
        self.generation = generation
        self.answered = False
        """It is confirmed or rejected, or nobody wants to know any more."""
        self._reader = reader
        self._table = content.table
        self._properties: dict[str, table.Value] | None = None

    @property
    def properties(self) -> dict[str, table.Value]:
        """Its properties."""
        if self._properties is None:
            self._properties = table.decode(self._table, table.MAX_EXTENDED)
        return self._properties

    def text(self, name: str) -> str:
        """A property that is a text, "" if there is none such."""
        value = self.properties.get(name)
        return value if isinstance(value, str) else ""

    def number(self, name: str) -> int:
        """A property that is a whole number, 0 if there is none such."""
        value = self.properties.get(name)
        return value if type(value) is int else 0

    def confirm(self, multiple: bool = False) -> None:
        """It is safe; with ``multiple`` all are that came before it, too. Nothing happens the second time."""
        self._reader.answer(self, multiple, None)

    def reject(self, *, recycle: bool, multiple: bool = False) -> None:
        """It is not taken; with ``recycle`` it is to be sent again, perhaps to somebody else."""
        self._reader.answer(self, multiple, recycle)


Receive = Callable[[Delivery], "Deferred[Any] | Coroutine[Any, Any, Any] | object"]
"""What an application does with a Content. It is done when the Deferred or the coroutine is."""


class Reader(Part):
    """A flow of Contents to ``receive``."""

    takes = (wire.Content,)

    log = Logger()

    def __init__(
        self,
        profile: str,
        resources: Sequence[str],
        receive: Receive,
        confirm: Confirm | None,
        window: int | None,
        settings: Settings,
    ) -> None:
        super().__init__(profile, requests.reader(resources, confirm, window))
        self.missed = 0
        """Contents that the broker could not send."""
        self._resources = tuple(resources)
        self._receive = receive
        self._settings = settings
        self._confirm_asked = confirm
        self._wanted: dict[str, Deferred[None] | None] = {}
        """What is to be summoned, with what fires when it is for the first time."""
        self._leaving: dict[str, int] = {}
        """What is being dismissed, and how often."""
        self._unanswered: dict[int, Delivery] = {}
        self._leased = False
        """The broker has answered the lease: it can be asked for resources."""
        self._listening = True
        self._last = 0
        self._busy = 0
        self._busy_bytes = 0
        self._done: list[Deferred[None]] = []

    @property
    def summoned(self) -> list[str]:
        """What is summoned, or will be."""
        return list(self._wanted)

    @property
    def busy(self) -> int:
        """How many Contents the application is not done with."""
        return self._busy

    def summon(self, resource: str) -> Deferred[None]:
        """Have Contents of a resource come. Fires when the broker has said that they will, and fails if they will not.

        When the flow is lost it is summoned again by itself.
        """
        if self.flow.closed:
            return fail(Closed("the flow is closed"))
        if not wire.is_name(resource) or (self._resources and resource not in self._resources):
            raise ValueError(f"the lease is not for {resource!r}")
        if resource in self._wanted:
            raise ValueError(f"{resource!r} is summoned already")
        done: Deferred[None] = Deferred()
        self._wanted[resource] = done
        if self._leased:
            self._summon(resource)
        return done

    def dismiss(self, resource: str) -> Deferred[None]:
        """Have no more Contents of a resource. Some may still come, until it fires."""
        if resource not in self._wanted:
            raise ValueError(f"{resource!r} is not summoned")
        waiting = self._wanted.pop(resource)
        if waiting is not None:
            waiting.errback(Closed("it was dismissed before it was summoned"))
        done: Deferred[None] = Deferred()
        if not self._leased:
            done.callback(None)
            return done
        self._leaving[resource] = self._leaving.get(resource, 0) + 1

        def left(_: object) -> None:
            # also when the flow is lost: then nothing more comes either
            count = self._leaving.pop(resource, 1) - 1
            if count:
                self._leaving[resource] = count
            done.callback(None)

        self.flow.ask(wire.dismiss, resource).addBoth(left)
        return done

    def drain(self) -> Deferred[None]:
        """Take nothing new, finish what was begun, and close. Fires when that is done."""
        return Deferred.fromCoroutine(self._drain())

    async def _drain(self) -> None:
        for leaving in [self.dismiss(resource) for resource in list(self._wanted)]:
            await leaving
        if self._busy and not self.flow.closed:
            done: Deferred[None] = Deferred(self._done.remove)
            self._done.append(done)
            await done
        self.close()

    # the flow

    async def on_lease(self) -> None:
        self._last = 0
        self._leased = True
        await all_of([self._summon(resource) for resource in self._wanted])
        if self.flow.lost:
            raise Lost(self.flow.why)

    def _summon(self, resource: str) -> Deferred[None]:
        """Send a Summon. Fires when it is answered, or will not be; fails if what was summoned before cannot be."""

        done = self._wanted[resource]

        def answered(code: bytes) -> None:
            if resource not in self._wanted or self._wanted[resource] is not done:
                return  # it was dismissed meanwhile
            self._wanted[resource] = None
            if code == wire.OK:
                if done is not None:
                    done.callback(None)
                return
            del self._wanted[resource]
            refused = Refused(int(code), f"{resource} cannot be summoned")
            if done is None:
                raise refused
            done.errback(refused)

        answer = self.flow.ask(wire.summon, resource).addCallback(answered)
        return answer.addErrback(_trap_lost)

    def on_down(self) -> None:
        self._leased = False
        self._listening = True
        for delivery in self._unanswered.values():
            delivery.answered = True
        self._unanswered.clear()
        self._leaving.clear()

    def on_farewell(self) -> None:
        if self._unanswered:
            self.flow.say(wire.reject(max(self._unanswered), multiple=True, recycle=True))

    def on_end(self, failure: Failure) -> None:
        for waiting in self._wanted.values():
            if waiting is not None:
                waiting.errback(failure)
        self._wanted.clear()
        done, self._done = self._done, []
        for each in done:
            each.callback(None)

    # Contents

    @property
    def _most(self) -> int:
        """How many Contents the application may be busy with."""
        if self.lease is None or self.lease.window is None:
            return self._settings.pending
        return min(self.lease.window, MOST_PENDING)

    @property
    def _confirmed(self) -> bool:
        """Whether Contents are to be confirmed. Ours gives a window where they are, unless the client said."""
        if self._confirm_asked is not None:
            return self._confirm_asked == "full"
        return self.lease is not None and self.lease.window is not None

    def on_command(self, content: wire.Content) -> None:
        missed = max(content.sequence - self._last - 1, 0)
        self._last = max(content.sequence, self._last)
        self.missed += missed
        resource = content.resource
        if not resource and len(self._resources) == 1:
            resource = self._resources[0]
        if resource not in self._wanted and resource not in self._leaving:
            self.counts["not-summoned"] += 1
            if self._confirmed:
                self.flow.say(wire.reject(content.sequence, recycle=True))
            return
        delivery = Delivery(self, resource, content, missed, self.generation)
        if self._confirmed:
            self._unanswered[content.sequence] = delivery
        else:
            delivery.answered = True
        self._busy += 1
        self._busy_bytes += len(delivery.body)
        if self._busy > self._most or self._busy_bytes > self._settings.pending_bytes:
            self._listen(False)
        outcome(self._receive, delivery).addCallbacks(
            self._taken, self._failed, callbackArgs=(delivery,), errbackArgs=(delivery,)
        ).addBoth(self._finished, delivery)

    def _taken(self, _: object, delivery: Delivery) -> None:
        delivery.confirm()

    def _failed(self, failure: Failure, delivery: Delivery) -> None:
        if isinstance(failure.value, NotTaken):
            delivery.reject(recycle=failure.value.recycle)
            return
        self.log.failure("the application failed over a Content of {resource}", failure, resource=delivery.resource)
        delivery.reject(recycle=True)

    def _finished(self, result: object, delivery: Delivery) -> None:
        self._busy -= 1
        self._busy_bytes -= len(delivery.body)
        if isinstance(result, Failure):
            self.log.failure("a Content could not be answered", result)
        if (
            not self._listening
            and self._busy <= self._most // 2
            and self._busy_bytes <= self._settings.pending_bytes // 2
        ):
            self._listen(True)
        if not self._busy:
            done, self._done = self._done, []
            for each in done:
                each.callback(None)

    def _listen(self, listens: bool) -> None:
        self._listening = listens
        self.flow.listen(listens)

    def answer(self, delivery: Delivery, multiple: bool, recycle: bool | None) -> None:
        """Confirm a Content (``recycle`` is None) or reject it; for `Delivery`."""
        if delivery.answered:
            return
        sequence = delivery.sequence
        covered = self._unanswered.values() if multiple else (delivery,)
        for each in [each for each in covered if each.sequence <= sequence]:
            each.answered = True
            self._unanswered.pop(each.sequence, None)  # a broker may use a number twice
        if recycle is None:
            self.flow.say(wire.confirm(sequence, multiple))
        else:
            self.flow.say(wire.reject(sequence, multiple, recycle))


def outcome(receive: Receive, delivery: Delivery) -> Deferred[Any]:
    """What the application makes of a Content, when it is done with it."""

    def call() -> Any:
        result = receive(delivery)
        return Deferred.fromCoroutine(result) if isinstance(result, Coroutine) else result

    return maybeDeferred(call)


def _trap_lost(failure: Failure) -> None:
    """The flow is lost, and what was asked will be asked again."""
    failure.trap(Lost)
