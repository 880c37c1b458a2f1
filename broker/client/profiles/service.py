"""The profile "service": requests and their replies, over the registry.

Rules:
- A worker gets requests, and replies by what its function returns. It confirms a request when its reply is on the way.
  If the function fails the caller hears of it; by `broker.client.errors.NotTaken` with ``recycle`` another worker gets
  the request, where the caller allowed that (``retry``).
- A caller gets the reply, or `Unserved` with a code: 500 (a worker refused it), 503 (no worker did it), 504 (no worker
  had room in time). A reply that is too late for it is nobody's.
- When the flow is lost nobody knows what becomes of requests: they fail with `Unsettled`. Those that may be tried again
  (``retry``) are asked once more when it is back; so they may be done twice.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from typing import Any

import msgspec
from twisted.internet.defer import CancelledError, Deferred
from twisted.logger import Logger
from twisted.python.failure import Failure

from broker.client.errors import Closed, Full, MtlError, NotTaken, Rejected, Unsettled
from broker.client.flow import Event, Told
from broker.client.mtl import Client, Reader, Writer
from broker.client.reader import Delivery, outcome
from broker.wires.mtl.codec.table import Value

PROFILE = "service"
REPLY = "reply"

UNAVAILABLE = 503

PATIENCE = 30.0
"""Seconds that a caller waits for a reply, if it does not say so."""


class Unserved(MtlError):
    """A request came to nothing. ``code`` and ``reason`` are the broker's."""

    def __init__(self, code: int, reason: str) -> None:
        super().__init__(f"{code} {reason}")
        self.code = code
        self.reason = reason


# workers

Serve = Callable[[Delivery], "Deferred[bytes] | Coroutine[Any, Any, bytes] | bytes"]
"""What makes replies of requests."""


class Worker:
    """Serves a service."""

    log = Logger()

    def __init__(self, serve: Serve) -> None:
        self.reader: Reader
        self.writer: Writer
        self._serve = serve

    @property
    def ended(self) -> Deferred[None]:
        """Fires when it is closed, fails when it cannot go on."""
        return self.reader.ended

    def load(self, load: float) -> Deferred[None]:
        """Tell how loaded it is. Only where that was asked for at the beginning."""
        return self.writer.send(msgspec.json.encode({"load": load}), "load")

    def drain(self) -> Deferred[None]:
        """Take nothing new, finish what was begun, and close."""
        return self.reader.drain()

    def close(self) -> None:
        """Close. What was begun is given back."""
        self.reader.close()

    async def work(self, request: Delivery) -> None:
        """Serve one request."""
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
        with suppress(Rejected):  # nobody waits for it any more
            await self.writer.send(body, REPLY, properties)


async def worker(
    client: Client,
    name: str,
    serve: Serve,
    *,
    window: int | None = None,
    loads: bool = False,
    told: Told | None = None,
) -> Worker:
    """Serve a service: ``serve`` makes the bodies of replies. With ``loads`` it can say how loaded it is."""
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
        again=True,
        told=told,
    )
    try:
        await worker.reader.summon(resource)
    except BaseException:
        worker.close()
        raise
    return worker


# callers


class _Call:
    """A request that waits for its reply."""

    __slots__ = ("body", "done", "id", "properties", "resource", "retry")

    def __init__(self, id: str, resource: str, body: bytes, properties: dict[str, Value], retry: bool) -> None:
        self.id = id
        self.resource = resource
        self.body = body
        self.properties = properties
        self.retry = retry
        self.done: Deferred[Delivery] = Deferred()


class Caller:
    """Asks services."""

    def __init__(self, clock: Any, most: int) -> None:
        self.reader: Reader
        self.writer: Writer
        self.unexpected = 0
        """Replies that nobody waited for."""
        self._clock = clock
        self._most = most
        self._calls: dict[str, _Call] = {}
        self._count = 0

    @property
    def waiting(self) -> int:
        """How many requests wait for replies."""
        return len(self._calls)

    @property
    def ended(self) -> Deferred[None]:
        """Fires when it is closed, fails when it cannot go on."""
        return self.reader.ended

    def close(self) -> None:
        """Close. What waits fails with `Closed`."""
        self.reader.close()

    def call(
        self,
        name: str,
        body: bytes,
        properties: Mapping[str, Value] | None = None,
        *,
        retry: bool = False,
        timeout: float = PATIENCE,
    ) -> Deferred[Delivery]:
        """Ask a service. Fires with the reply.

        Fails with `Unserved`, `Unsettled`, `Full`, `Closed`, or TimeoutError. ``retry``: it does no harm to do it
        twice. It waits for a worker at most as long as for the reply, ``timeout`` seconds.
        """
        more: dict[str, Value] = {**(properties or {}), "ttl": round(timeout * 1000), "retry": retry}
        self._count += 1
        call = _Call(str(self._count), f"service/{name}", body, more, retry)
        if self.reader.flow.closed:
            call.done.errback(Closed("the caller is closed"))
        elif len(self._calls) >= self._most:
            call.done.errback(Full(f"{self._most} requests wait for replies"))
        else:
            self._calls[call.id] = call
            if self.reader.up:
                self._send(call)
        return call.done.addTimeout(timeout, self._clock, _late).addBoth(self._over, call)

    def _send(self, call: _Call) -> None:
        assert self.reader.lease is not None
        address = self.reader.lease.more.get(REPLY, "")
        try:
            sent = self.writer.send(
                call.body, call.resource, {**call.properties, "reply-to": address, "correlation-id": call.id}
            )
        except ValueError:
            self._end(call.id, Failure())
        else:
            sent.addErrback(self._not_sent, call.id)

    def _not_sent(self, failure: Failure, id: str) -> None:
        if failure.check(Unsettled):
            return  # `told` decides
        if isinstance(failure.value, Rejected):
            reason = "no worker has room" if failure.value.recycle else "the broker does not take the request"
            failure = Failure(Unserved(UNAVAILABLE, reason))
        self._end(id, failure)

    def receive(self, reply: Delivery) -> None:
        """A reply came."""
        id = reply.text("correlation-id")
        if id not in self._calls:
            self.unexpected += 1
        elif reply.text("event") == "error":
            self._end(id, Failure(Unserved(reply.number("code"), reply.text("reason"))))
        else:
            self._end(id, reply)

    def told(self, event: Event, why: str) -> None:
        """The flow is lost, or back."""
        for id, call in list(self._calls.items()):
            if event is Event.BACK:
                self._send(call)
            elif event is Event.LOST and not call.retry:
                self._end(id, Failure(Unsettled("the flow was lost before the reply came")))

    def end(self, outcome: Any) -> Any:
        """The flow is over."""
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

    def _over(self, result: Any, call: _Call) -> Any:
        """It has a reply, or does not wait for one any more."""
        self._calls.pop(call.id, None)
        return result


def _late(result: Any, seconds: float) -> Any:
    """The time is up, or had been if there were no result."""
    if isinstance(result, Failure) and result.check(CancelledError):
        raise TimeoutError(f"no reply in {seconds} s")
    return result


async def caller(client: Client, names: Sequence[str] = (), *, told: Told | None = None) -> Caller:
    """Call these services, or any."""
    caller = Caller(client.reactor, client.settings.window)

    def both(event: Event, why: str) -> None:
        caller.told(event, why)
        if told is not None:
            told(event, why)

    caller.reader, caller.writer = await client.both(
        PROFILE,
        [REPLY],
        [f"service/{name}" for name in names],
        caller.receive,
        read_confirm="none",
        write_confirm="full",
        told=both,
    )
    caller.ended.addBoth(caller.end)
    try:
        await caller.reader.summon(REPLY)
    except BaseException:
        caller.close()
        raise
    return caller
