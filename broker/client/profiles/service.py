"""Profile "service": requests and replies, over the registry.

Rules:
- A worker's handler returns the body of the reply. The request is confirmed when the reply is sent. If the handler
  fails, the caller's request fails; if it raises `broker.client.errors.NotTaken` with ``recycle``, another worker
  receives the request, provided that the caller allowed it (``retry``).
- A caller receives the reply, or `RequestFailed` with a code: 500 (a worker rejected the request), 503 (no worker), 504
  (no worker had room in time), 421 (all workers are at another broker, whose endpoint the error names). A reply after
  the timeout is dropped and counted.
- A loss of the caller's flow leaves the outcome of its requests unknown: they fail with `Unsettled`. Requests with
  ``retry`` are sent again after the recovery, so they may be processed twice.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any

from twisted.internet.defer import CancelledError, Deferred
from twisted.logger import Logger
from twisted.python.failure import Failure

from broker.client.errors import Closed, Full, MtlError, NotTaken, Rejected, Unsettled
from broker.client.mtl import Client, Reader, Writer
from broker.client.profiles.registry import LoadReporter
from broker.client.reader import Delivery, outcome
from broker.client.settings import Event, OnEvent
from broker.wires.mtl.codec.field_table import Value

PROFILE = "service"
REPLY = "reply"

UNAVAILABLE = 503

DEFAULT_TIMEOUT = 30.0
"""Time that a caller waits for a reply by default, in seconds."""


class RequestFailed(MtlError):
    """A request failed. ``code`` and ``reason`` are the broker's. With the code 421, ``owner`` is the name of a broker
    that has a worker, and ``endpoint`` its control flow, empty if it is unknown."""

    def __init__(self, code: int, reason: str, owner: str = "", endpoint: str = "") -> None:
        super().__init__(f"{code} {reason}")
        self.owner = owner
        self.endpoint = endpoint
        self.code = code
        self.reason = reason


# workers

Serve = Callable[[Delivery], "Deferred[bytes] | Coroutine[Any, Any, bytes] | bytes"]
"""Handler of a worker: makes the body of the reply from the request."""


class Worker(LoadReporter):
    """A worker of one service. `load` requires ``loads`` when it was opened."""

    log = Logger()

    def __init__(self, serve: Serve) -> None:
        self.reader: Reader
        self._serve = serve

    @property
    def ended(self) -> Deferred[None]:
        """Fires when the worker is closed, fails when a permanent error ends it."""
        return self.reader.ended

    def drain(self) -> Deferred[None]:
        """Accept no further requests, finish the current ones, and close."""
        return self.reader.drain()

    def close(self) -> None:
        """Close the worker. Unfinished requests are returned to the broker."""
        self.reader.close()

    async def work(self, request: Delivery) -> None:
        """Process one request."""
        try:
            body = await outcome(self._serve, request)
        except NotTaken:
            raise
        except Exception:
            self.log.failure("a request for {service} failed", service=request.resource)
            raise NotTaken from None
        address = request.text("reply-to")
        if not address:
            return
        properties: dict[str, Value] = {"reply-to": address}
        if "correlation-id" in request.properties:
            properties["correlation-id"] = request.properties["correlation-id"]
        await self.writer.room()
        try:
            await self.writer.send(body, REPLY, properties)
        except Rejected:
            pass  # the caller has gone, or its request has timed out
        except (TypeError, ValueError):  # no other worker is to make such a reply
            self.log.failure("the reply to a request for {service} cannot be sent", service=request.resource)
            raise NotTaken from None


async def worker(
    client: Client,
    name: str,
    serve: Serve,
    *,
    window: int | None = None,
    loads: bool = False,
    on_event: OnEvent | None = None,
) -> Worker:
    """Serve a service: ``serve`` returns the bodies of replies. ``loads`` permits reports of the worker's load."""
    worker = Worker(serve)
    resource = f"service/{name}"
    worker.reader, worker.writer = await client.both(
        PROFILE,
        [resource],
        [REPLY, *(("load",) if loads else ())],
        worker.work,
        read_confirm="full",
        window=window,
        write_confirm="full",
        resend=True,
        on_event=on_event,
    )
    try:
        await worker.reader.summon(resource)
    except BaseException:
        worker.close()
        raise
    return worker


# callers


class _Call:
    """A request that awaits its reply."""

    __slots__ = ("body", "done", "end", "id", "properties", "resource", "retry")

    def __init__(
        self, id: str, end: float, resource: str, body: bytes, properties: dict[str, Value], retry: bool
    ) -> None:
        self.id = id
        self.end = end
        """The time of its timeout, in seconds of the clock."""
        self.resource = resource
        self.body = body
        self.properties = properties
        self.retry = retry
        self.done: Deferred[Delivery] = Deferred()


class Caller:
    """Sends requests to services."""

    def __init__(self, clock: Any, most: int) -> None:
        self.reader: Reader
        self.writer: Writer
        self.unexpected = 0
        """Number of replies that belong to no pending request."""
        self._clock = clock
        self._most = most
        self._calls: dict[str, _Call] = {}
        self._count = 0

    @property
    def waiting(self) -> int:
        """Number of pending requests."""
        return len(self._calls)

    @property
    def ended(self) -> Deferred[None]:
        """Fires when the caller is closed, fails when a permanent error ends it."""
        return self.reader.ended

    def close(self) -> None:
        """Close the caller. Pending requests fail with `Closed`."""
        self.reader.close()

    def call(
        self,
        name: str,
        body: bytes,
        properties: Mapping[str, Value] | None = None,
        *,
        retry: bool = False,
        wait: bool = False,
        timeout: float = DEFAULT_TIMEOUT,
    ) -> Deferred[Delivery]:
        """Send a request to a service. Fires with the reply.

        Fails with `RequestFailed`, `Unsettled`, `Full`, `Closed`, or TimeoutError after ``timeout`` seconds, which also
        bounds the time that the request waits for a worker with room. Without any worker the request fails at once, by
        503, or with ``wait`` when none has come in time. ``retry``: the request is idempotent and may be processed
        twice; it waits as well, since its worker may be reconnecting.
        """
        more: dict[str, Value] = {**(properties or {}), "retry": retry, "wait": wait or retry}
        self._count += 1
        now = self._clock.seconds()
        if isinstance(body, bytearray | memoryview):
            body = bytes(body)  # the program may change it before the request is sent, or sent again
        call = _Call(str(self._count), now + timeout, f"service/{name}", body, more, retry)
        if self.reader.flow.closed:
            call.done.errback(Closed("the caller is closed"))
        elif len(self._calls) >= self._most:
            call.done.errback(Full(f"{self._most} requests are pending"))
        else:
            self._calls[call.id] = call
            if self.reader.up:
                self._send(call, now)
        return call.done.addTimeout(timeout, self._clock, _timed_out).addBoth(self._completed, call)

    def _send(self, call: _Call, now: float) -> None:
        assert self.reader.lease is not None
        # What is left of its time: a request must not reach a worker when nothing waits for the reply any more.
        properties: dict[str, Value] = {
            **call.properties,
            "ttl": round(max(call.end - now, 0.0) * 1000),
            "reply-to": self.reader.lease.more.get(REPLY, ""),
            "correlation-id": call.id,
        }
        try:
            sent = self.writer.send(call.body, call.resource, properties)
        except (TypeError, ValueError):
            self._end(call.id, Failure())
        else:
            sent.addErrback(self._not_sent, call.id)

    def _not_sent(self, failure: Failure, id: str) -> None:
        if failure.check(Unsettled):
            return  # `flow_changed` handles the loss
        if isinstance(failure.value, Rejected):
            reason = "no worker has room" if failure.value.recycle else "the broker refused the request"
            failure = Failure(RequestFailed(UNAVAILABLE, reason))
        self._end(id, failure)

    def receive(self, reply: Delivery) -> None:
        """Handle a reply."""
        id = reply.text("correlation-id")
        if id not in self._calls:
            self.unexpected += 1
        elif reply.text("event") == "error":
            said = reply.text
            self._end(id, Failure(RequestFailed(reply.number("code"), said("reason"), said("owner"), said("endpoint"))))
        else:
            self._end(id, reply)

    def flow_changed(self, event: Event, why: str) -> None:
        """Handle loss and recovery of the flow."""
        for id, call in list(self._calls.items()):
            if event is Event.BACK:
                self._send(call, self._clock.seconds())
            elif event is Event.LOST and not call.retry:
                self._end(id, Failure(Unsettled("the flow was lost before the reply came")))

    def end(self, outcome: Any) -> Any:
        """Handle the end of the flow."""
        failure = outcome if isinstance(outcome, Failure) else Failure(Closed("the caller is closed"))
        for id in list(self._calls):
            self._end(id, failure)
        return outcome

    def _end(self, id: str, result: Delivery | Failure) -> None:
        call = self._calls.pop(id, None)
        if call is None or call.done.called:
            return
        if isinstance(result, Failure):
            call.done.errback(result)
        else:
            call.done.callback(result)

    def _completed(self, result: Any, call: _Call) -> Any:
        """Remove a request that has its result."""
        self._calls.pop(call.id, None)
        return result


def _timed_out(result: Any, seconds: float) -> Any:
    """Turn the cancellation of a timeout into TimeoutError; pass on a result that came first."""
    if isinstance(result, Failure) and result.check(CancelledError):
        raise TimeoutError(f"no reply in {seconds} s")
    return result


async def caller(client: Client, names: Sequence[str] = (), *, on_event: OnEvent | None = None) -> Caller:
    """Open a caller of these services, or of any."""
    caller = Caller(client.reactor, client.settings.window)

    def both(event: Event, why: str) -> None:
        caller.flow_changed(event, why)
        if on_event is not None:
            on_event(event, why)

    caller.reader, caller.writer = await client.both(
        PROFILE,
        [REPLY],
        [f"service/{name}" for name in names],
        caller.receive,
        read_confirm="none",
        write_confirm="full",
        on_event=both,
    )
    caller.ended.addBoth(caller.end)
    try:
        await caller.reader.summon(REPLY)
    except BaseException:
        caller.close()
        raise
    return caller
