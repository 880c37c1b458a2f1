"""Reader: a flow of Contents to the client.

Rules:
- A resource is summoned only if the lease covers it, and only once; only a summoned resource is dismissed. Anything
  else is a defect of the application (ValueError) and is not sent.
- Where Contents are confirmed, each is confirmed when the application's handler succeeds, and rejected when it fails.
  The handler succeeds when it returns, or when the Deferred or coroutine that it returned does.
- A Content of a resource that is not summoned is rejected with recycle and not passed to the application.
- An answer belongs to the flow that carried the Content. After a loss answers are void, since the broker delivers the
  Content again.
- Backpressure: while the handlers are busy with more Contents than the limit, nothing is received, until half of them
  are done. Pings are still sent.
- Closing a flow returns its unanswered Contents to the broker. `Reader.drain` lets the handlers finish first.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Coroutine, Generator, Sequence
from functools import partial
from typing import Any

from twisted.internet.defer import Deferred, fail, maybeDeferred
from twisted.logger import Logger
from twisted.python.failure import Failure

from broker.client.client_data_flow import Direction, all_of
from broker.client.errors import Closed, Lost, NotTaken, Refused
from broker.client.settings import Settings
from broker.wires.mtl.codec import client_messages as requests
from broker.wires.mtl.codec import data_messages as wire
from broker.wires.mtl.codec import field_table
from broker.wires.mtl.codec.control_messages import Confirm

MOST_PENDING = 10_000
"""Contents that handlers may be busy with, however large the window that the broker granted."""


class Delivery:
    """A Content that was received.

    ``missed`` is the number of Contents that the broker dropped before this one. ``generation`` is that of the flow
    (`Flow.generation`): a change means that Contents before and after it may not be contiguous.
    """

    __slots__ = ("_properties", "_reader", "_table", "answered", "body", "generation", "missed", "resource", "sequence")

    def __init__(self, reader: Reader, resource: str, content: wire.Content, missed: int, generation: int) -> None:
        self.resource = resource
        self.body = bytes(content.body)
        self.sequence = content.sequence
        self.missed = missed
        self.generation = generation
        self.answered = False
        """True after a confirm or reject, and when an answer would be void."""
        self._reader = reader
        self._table = content.table
        self._properties: dict[str, field_table.Value] | None = None

    @property
    def properties(self) -> dict[str, field_table.Value]:
        """The properties of the Content."""
        if self._properties is None:
            self._properties = field_table.decode(self._table, field_table.MAX_EXTENDED)
        return self._properties

    def text(self, name: str) -> str:
        """Return a text property, or an empty string if it is absent or of another type."""
        value = self.properties.get(name)
        return value if isinstance(value, str) else ""

    def number(self, name: str) -> int:
        """Return an integer property, or 0 if it is absent or of another type."""
        value = self.properties.get(name)
        return value if type(value) is int else 0

    def confirm(self, multiple: bool = False) -> None:
        """Confirm the Content; with ``multiple`` also all before it. No-op after the first answer."""
        self._reader.answer(self, multiple, None)

    def reject(self, *, recycle: bool, multiple: bool = False) -> None:
        """Reject the Content. With ``recycle`` the broker delivers it again, perhaps to another reader. No-op after the
        first answer."""
        self._reader.answer(self, multiple, recycle)


Receive = Callable[[Delivery], "Deferred[Any] | Coroutine[Any, Any, Any] | object"]
"""Handler of an application for Contents."""


class Reader(Direction):
    """A flow of Contents to the handler ``receive``."""

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
        super().__init__(profile, requests.reader(resources, confirm, window), resources)
        self.missed = 0
        """Contents that the broker dropped because the client did not read."""
        self._resources = tuple(resources)
        self._receive = receive
        self._settings = settings
        self._confirm_asked = confirm
        self._wanted: dict[str, Deferred[None] | None] = {}
        """Resources to be summoned, each with the Deferred of the first Summon while that is pending."""
        self._bodies: dict[str, bytes] = {}
        """Bodies of Summons by resource, where they are not empty."""
        self._leaving: dict[str, int] = {}
        """Resources that are being dismissed, with the number of pending Dismisses."""
        self._unanswered: dict[int, Delivery] = {}
        self._leased = False
        """True after the broker has accepted the lease: commands may be sent."""
        self._receiving = True
        self._last = 0
        self._busy = 0
        self._busy_bytes = 0
        self._done: list[Deferred[None]] = []

    @property
    def summoned(self) -> list[str]:
        """Resources that are summoned, or will be."""
        return list(self._wanted)

    @property
    def busy(self) -> int:
        """Contents whose handlers have not finished."""
        return self._busy

    def summon(self, resource: str, body: bytes = b"") -> Deferred[None]:
        """Start delivery of a resource. Fires when the broker accepts the Summon, and fails if it refuses.

        ``body`` is that of the Summon; the profile "registry" reads it.

        After a loss of the flow the resource is summoned again automatically.
        """
        if self.flow.closed:
            return fail(Closed("the flow is closed"))
        if not wire.is_name(resource) or (self._resources and resource not in self._resources):
            raise ValueError(f"the lease does not cover {resource!r}")
        if resource in self._wanted:
            raise ValueError(f"{resource!r} is summoned already")
        done: Deferred[None] = Deferred()
        self._wanted[resource] = done
        if body:
            self._bodies[resource] = body
        if self._leased:
            self._summon(resource)
        return done

    def dismiss(self, resource: str) -> Deferred[None]:
        """Stop delivery of a resource. Contents may still arrive until the Deferred fires."""
        if resource not in self._wanted:
            raise ValueError(f"{resource!r} is not summoned")
        waiting = self._wanted.pop(resource)
        self._bodies.pop(resource, None)
        if waiting is not None:
            waiting.errback(Closed("the resource was dismissed before the Summon was answered"))
        done: Deferred[None] = Deferred()
        if not self._leased:
            done.callback(None)
            return done
        self._leaving[resource] = self._leaving.get(resource, 0) + 1

        def left(_: object) -> None:
            # A lost flow ends the delivery too, so its failure counts as success here.
            count = self._leaving.pop(resource, 1) - 1
            if count:
                self._leaving[resource] = count
            done.callback(None)

        self.flow.ask(wire.dismiss, resource).addBoth(left)
        return done

    def drain(self) -> Deferred[None]:
        """Stop delivery, let the handlers finish, and close. Fires when that is done."""
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
        """Send a Summon. Fires on its response or on loss of the flow; fails if a resource that was summoned before is
        refused."""

        done = self._wanted[resource]

        def answered(code: bytes) -> None:
            if resource not in self._wanted or self._wanted[resource] is not done:
                return  # dismissed meanwhile
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

        answer = self.flow.ask(partial(wire.summon, body=self._bodies.get(resource, b"")), resource).addCallback(
            answered
        )
        return answer.addErrback(_trap_lost)

    def on_down(self) -> None:
        self._leased = False
        self._receiving = True
        for delivery in self._unanswered.values():
            delivery.answered = True
        self._unanswered.clear()
        self._leaving.clear()

    def on_farewell(self) -> None:
        if self._unanswered:
            self.flow.send_or_lose(wire.reject(max(self._unanswered), multiple=True, recycle=True))

    def on_end(self, failure: Failure) -> None:
        wanted, self._wanted = self._wanted, {}
        for waiting in wanted.values():
            if waiting is not None:
                waiting.errback(failure)
        done, self._done = self._done, []
        for each in done:
            each.callback(None)

    # Contents

    @property
    def _most(self) -> int:
        """The number of Contents that handlers may be busy with."""
        if self.lease is None or self.lease.window is None:
            return self._settings.pending
        return min(self.lease.window, MOST_PENDING)

    @property
    def _confirmed(self) -> bool:
        """True if Contents are to be confirmed. Without a mode chosen by the client, a window in the reply indicates
        it."""
        if self._confirm_asked is not None:
            return self._confirm_asked == "full"
        return self.lease is not None and self.lease.window is not None

    def on_command(self, content: wire.Content) -> None:
        # The broker numbers Contents by one: a gap is a loss.
        missed = max(content.sequence - self._last - 1, 0)
        self._last = max(content.sequence, self._last)
        self.missed += missed
        resource = content.resource
        if not resource and len(self._resources) == 1:
            resource = self._resources[0]
        if resource not in self._wanted and resource not in self._leaving:
            self.counts["not-summoned"] += 1
            if self._confirmed:
                self.flow.send_or_lose(wire.reject(content.sequence, recycle=True))
            return
        delivery = Delivery(self, resource, content, missed, self.generation)
        if self._confirmed:
            self._unanswered[content.sequence] = delivery
        else:
            delivery.answered = True
        self._busy += 1
        self._busy_bytes += len(delivery.body)
        if self._busy > self._most or self._busy_bytes > self._settings.pending_bytes:
            self._set_receiving(False)
        outcome(self._receive, delivery).addCallbacks(
            self._taken, self._failed, callbackArgs=(delivery,), errbackArgs=(delivery,)
        ).addBoth(self._finished, delivery)

    def _taken(self, _: object, delivery: Delivery) -> None:
        delivery.confirm()

    def _failed(self, failure: Failure, delivery: Delivery) -> None:
        if isinstance(failure.value, NotTaken):
            delivery.reject(recycle=failure.value.recycle)
            return
        self.log.failure("the handler failed for a Content of {resource}", failure, resource=delivery.resource)
        delivery.reject(recycle=True)

    def _finished(self, result: object, delivery: Delivery) -> None:
        self._busy -= 1
        self._busy_bytes -= len(delivery.body)
        if isinstance(result, Failure):
            self.log.failure("answering a Content failed", result)
        if (
            not self._receiving
            and self._busy <= self._most // 2
            and self._busy_bytes <= self._settings.pending_bytes // 2
        ):
            self._set_receiving(True)
        if not self._busy:
            done, self._done = self._done, []
            for each in done:
                each.callback(None)

    def _set_receiving(self, receiving: bool) -> None:
        self._receiving = receiving
        self.flow.set_receiving(receiving)

    def answer(self, delivery: Delivery, multiple: bool, recycle: bool | None) -> None:
        """Confirm a Content (``recycle`` is None) or reject it; called by `Delivery`."""
        if delivery.answered:
            return
        sequence = delivery.sequence
        covered = self._unanswered.values() if multiple else (delivery,)
        for each in [each for each in covered if each.sequence <= sequence]:
            each.answered = True
            self._unanswered.pop(each.sequence, None)  # absent if the broker used a sequence twice
        if recycle is None:
            self.flow.send_or_lose(wire.confirm(sequence, multiple))
        else:
            self.flow.send_or_lose(wire.reject(sequence, multiple, recycle))


def outcome(receive: Receive, delivery: Delivery) -> Deferred[Any]:
    """Call a handler. Fires with the result of the handler, its Deferred, its coroutine or its Future of asyncio."""

    def call() -> Any:
        result: Any = receive(delivery)
        # As `asyncio.isfuture`: programs without asyncio need not load it.
        if hasattr(result, "_asyncio_future_blocking"):
            return Deferred.fromFuture(result)
        return Deferred.fromCoroutine(result) if isinstance(result, Coroutine) else has_run(result)

    return maybeDeferred(call)


def has_run(result: object) -> object:
    """Return the result of a handler. Raises TypeError for a generator or a coroutine, of which nothing has run: the
    Content is not processed, and a confirm would lose it."""
    if isinstance(result, Generator | AsyncGenerator | Coroutine):
        raise TypeError(f"the handler is no plain function: its result, of type {type(result).__name__}, is not run")
    return result


def _trap_lost(failure: Failure) -> None:
    """Ignore a loss: the recovery sends the command again."""
    failure.trap(Lost)
