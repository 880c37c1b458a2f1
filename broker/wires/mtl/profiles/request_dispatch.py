"""Dispatch of requests to workers: load balancing, waiting requests, redelivery, failures.

States of a request:

    WAITING     no worker has room; it has a time to live. The deadline ends it as failed (504)
    DELIVERED   a worker has it. Confirmed: over. Rejected for good: failed (500). Rejected with recycle, or worker
                gone: DELIVERED again, WAITING again, or failed (503)
    OVER        confirmed, or given to a worker that confirms nothing, or failed

Rules:
- A request is given to the worker of its service with the fewest unconfirmed requests, among those with room; then to
  the one with the lowest load, then to the least recently used one. Workers that confirm nothing come last: how many
  requests they have is unknown.
- If no worker has room, a request with a time to live waits, within bounds; others are refused.
- A worker that gets room is given the oldest waiting request of any of its services; returned requests come first.
- A request returns when its worker rejects it with recycle, or is gone, and no reply was seen. If it may be retried,
  another worker gets it, never one that had it before; without room, it waits for the rest of its time. Otherwise it
  has failed.
- A request ends when it is confirmed. The body of a request that will not be sent again is released.

The file is longer than others: the rules above concern one state, that of a request.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice
from math import inf
from typing import Protocol

import attrs

from broker.core.errors import Reason, Refusal
from broker.core.interfaces import ILease, ILeases, StoredMemory
from broker.net.peer_interfaces import Part, Sent
from broker.wires.mtl.codec.data_messages import make_tail
from broker.wires.mtl.codec.field_table import with_members
from broker.wires.mtl.sessions.profile_interface import ProfileReader, SendWindow

# Bounds of the profile "service": one value for requests, workers and reply inboxes.


@attrs.frozen
class ServiceBounds:
    """Bounds of all virtual hosts together, where no other scope is given. Beyond one, a request is refused."""

    requests: int = 100_000
    """Requests that wait, or that workers have: 90 MB beside their bodies. A thousand workers with usual windows have
    that many; a caller that expects more replies does not get them in time."""

    waiting: int = 10_000
    """Waiting requests of one service: more than its workers can process before callers give up."""

    kept: int = 128 * 1024 * 1024
    """Bytes of all requests that wait or may be sent again, and of replies that wait for their callers to read."""

    workers: int = 1_000
    """Workers of one service: each request compares all of them, which takes a fifth of a millisecond then."""

    jobs: int = 100_000
    """Pairs of worker and service: some 50 MB."""

    tries: int = 20
    """Deliveries of one request: a request that breaks every worker that takes it has broken few by then."""

    look_ahead: int = 100
    """Returned requests that are searched for one that a worker has not had before."""

    backlog: int = 1_000
    """Replies that wait for one reader, behind the messages that wait for it in the transport."""


SERVICE = "service/"
"""Prefix of the resources that are services."""

OVERHEAD = 900
"""Bytes that a request takes beside its own: the object, its deadline, and its entries in tables."""

MISDIRECTED, FAILED, UNAVAILABLE, TOO_LATE = 421, 500, 503, 504
"""Codes that callers are sent: the workers are at another broker; rejected for good by a worker; processed by no
worker; no worker had room in time."""


class ByteBudget:
    """Bytes of stored requests and replies, with a bound for all, and that of ``memory`` for each payer."""

    def __init__(self, most: int, memory: StoredMemory) -> None:
        self._most = most
        self.memory = memory
        self.bytes = 0

    def take(self, size: int, payer: str, paid: int = 0) -> bool:
        """Reserve bytes, of which ``paid`` count for the payer already. Returns False if there is no room."""
        if self.bytes + size > self._most or not self.memory.may_store(payer, size - paid):
            return False
        self.bytes += size
        self.memory.store(payer, size - paid)
        return True

    def give(self, size: int, payer: str, paid: int = 0) -> None:
        """Release bytes; see `take`."""
        self.bytes -= size
        self.memory.store(payer, paid - size)


class ReplySink(Protocol):
    """Destination of replies."""

    def expect(self, request: ServiceRequest) -> None:
        """Expect a reply to a request."""

    def forget(self, request: ServiceRequest) -> None:
        """Expect no reply to a request any more."""


class ServiceRequest:
    """Request for a service.

    - ``box``: destination of its reply, None without one; ``correlation``: its correlation-id.
    - ``ttl``: seconds that it may wait. ``retry``: it may go to another worker after a first one has received it.
    - ``properties``: encoded properties that it is sent with. ``payer``: the account of its writer (`StoredMemory`).
    """

    __slots__ = (
        "_expire",
        "body",
        "box",
        "correlation",
        "count",
        "deadline",
        "had",
        "kept",
        "key",
        "lease",
        "order",
        "payer",
        "properties",
        "replied",
        "retry",
        "size",
        "ttl",
    )

    def __init__(
        self,
        key: tuple[str, str],
        properties: bytes,
        body: Part,
        box: ReplySink | None = None,
        correlation: str = "",
        ttl: float = 0.0,
        retry: bool = False,
        payer: str = "",
    ) -> None:
        self.key = key
        """The virtual host and the name of the service."""
        self.properties = properties
        self.body = body
        self.box = box
        self.correlation = correlation
        self.ttl = ttl
        self.retry = retry
        self.payer = payer
        self.size = len(properties) + len(body) + OVERHEAD
        self.order = 0
        self.count = 0
        """Number of deliveries."""
        self.had: set[ServiceWorker] = set()
        """Workers that must not get it again."""
        self.replied = False
        self.kept = False
        """True if its bytes are reserved."""
        self.deadline = inf
        self.lease: ILease | None = None
        """Its deadline while it waits."""
        self._expire: Callable[[ServiceRequest], None] | None = None

    def wait(self, leases: ILeases, expire: Callable[[ServiceRequest], None]) -> None:
        """Call ``expire`` at its deadline."""
        self._expire = expire
        self.lease = leases.hold(self, self.deadline)

    def waited(self) -> None:
        """Cancel its deadline."""
        if self.lease is not None:
            self.lease.cancel()
            self.lease = None

    def check(self, now: float) -> None:
        """Expire at the deadline."""
        assert self._expire is not None
        self._expire(self)


class ServiceWorker:
    """A reader that processes requests. ``window`` has its unconfirmed requests; None if it confirms nothing."""

    def __init__(self, reader: ProfileReader, window: SendWindow[ServiceRequest] | None) -> None:
        self._reader = reader
        self._last = 0
        """Sequence of the last request: replies may have used later sequences of the same flow."""
        self.window = window
        self.host = reader.grant.principal.host
        self.services: dict[str, _ServiceQueue] = {}
        """By name."""
        self.blocked = False
        """True if a request found no room in the transport, or the reader is gone."""
        self.load = 0.0
        self.turn = 0
        """Number of the last delivery to it: the order of use."""

    @property
    def room(self) -> bool:
        """True if it can be given a request."""
        return not self.blocked and (self.window is None or self.window.room)

    @property
    def rank(self) -> tuple[bool, int, float, int]:
        """Sort key: the lowest is given the next request."""
        return self.window is None, 0 if self.window is None else len(self.window), self.load, self.turn

    def take(self, request: ServiceRequest) -> bool:
        """Deliver a request. Returns False if the transport refused it."""
        # Counted only if it is sent: a refused attempt is no delivery.
        count = request.count + 1
        properties = with_members(request.properties, {"redelivered": count > 1, "delivery-count": count})
        if self._reader.send(make_tail(SERVICE + request.key[1], properties), request.body) is not Sent.SENT:
            self.blocked = True
            return False
        request.count = count
        if self.window is not None:
            self._last = self._reader.sequence
            self.window.add(self._last, request)
        return True

    def answered(self, sequence: int, multiple: bool) -> list[ServiceRequest]:
        """Process an answer. Returns the requests that it is the first answer to."""
        if self.window is None:
            return []
        return self.window.answered(min(sequence, self._last) if multiple else sequence, multiple)


class _ServiceQueue:
    """A service with workers or waiting requests."""

    __slots__ = ("again", "fresh", "workers")

    def __init__(self) -> None:
        self.workers: dict[ServiceWorker, None] = {}
        self.fresh: dict[int, ServiceRequest] = {}
        """Waiting requests that were never delivered, by their order."""
        self.again: dict[int, ServiceRequest] = {}
        """Waiting requests that returned."""

    def best(self, had: set[ServiceWorker]) -> ServiceWorker | None:
        """Return the worker for a request, except those that ``had`` it; None without room."""
        able = (worker for worker in self.workers if worker.room and worker not in had)
        return min(able, key=_rank, default=None)

    def first(self, worker: ServiceWorker, look_ahead: int) -> ServiceRequest | None:
        """The waiting request that the worker is given next, after a search of that many returned ones."""
        for request in islice(self.again.values(), look_ahead):
            if worker not in request.had:
                return request
        return next(iter(self.fresh.values()), None)


def _rank(worker: ServiceWorker) -> tuple[bool, int, float, int]:
    return worker.rank


class Dispatcher:
    """All requests and workers. ``failed`` is called with each failed request, a code and the reason."""

    def __init__(
        self,
        leases: ILeases,
        store: ByteBudget,
        failed: Callable[[ServiceRequest, int, str], None],
        bounds: ServiceBounds,
    ) -> None:
        self._leases = leases
        self._bounds = bounds
        self._store = store
        self._failed = failed
        self._services: dict[tuple[str, str], _ServiceQueue] = {}
        self._order = 0
        self._turn = 0
        self.jobs = 0
        self.requests = 0
        """Number of requests that wait, or that workers have to confirm."""
        self.waiting = 0

    # callers

    def ask(self, request: ServiceRequest) -> None:
        """Deliver or queue a request. Raises `Refusal` LIMIT, which ends the request."""
        bounds = self._bounds
        if self.requests >= bounds.requests:
            raise Refusal(Reason.LIMIT, f"there are {bounds.requests} requests on their way")
        memory, payer = self._store.memory, request.payer
        memory.admit_stored(payer, OVERHEAD)
        if request.retry and not self._keep(request):
            raise Refusal(Reason.LIMIT, "there is no room for a request that may be sent again")
        self._order += 1
        request.order = self._order
        if request.ttl:
            request.deadline = self._leases.moment() + request.ttl
        self.requests += 1
        memory.store(payer, OVERHEAD)
        if request.box is not None:
            request.box.expect(request)
        if self._give(request):
            return
        service = self._services.get(request.key)
        # Without time to live it must not wait: the caller may ask elsewhere at once.
        if not request.ttl:
            why = "no worker has room"
        elif service is not None and len(service.fresh) + len(service.again) >= bounds.waiting:
            why = f"{bounds.waiting} requests wait for this service"
        elif not self._keep(request):
            why = "too much waits"
        else:
            self._service(request.key).fresh[request.order] = request
            self._wait(request)
            return
        self.over(request)
        raise Refusal(Reason.LIMIT, why)

    def replied(self, request: ServiceRequest) -> None:
        """Note that a reply was seen: the request will not be sent again."""
        request.replied = True
        self._release(request)

    def has_workers(self, key: tuple[str, str]) -> bool:
        """Return True if a service, by virtual host and name, has workers."""
        service = self._services.get(key)
        return service is not None and bool(service.workers)

    # workers

    def join(self, worker: ServiceWorker, name: str) -> None:
        """Add a worker to a service. Raises `Refusal` LIMIT."""
        service = self._services.get((worker.host, name))
        if self.jobs >= self._bounds.jobs or (service is not None and len(service.workers) >= self._bounds.workers):
            raise Refusal(Reason.LIMIT, "there are too many workers")
        service = self._service((worker.host, name))
        service.workers[worker] = None
        worker.services[name] = service
        self.jobs += 1
        self.serve(worker)

    def leave(self, worker: ServiceWorker, name: str) -> None:
        """Remove a worker from a service. It keeps its requests. No-op if it is not in the service."""
        service = worker.services.pop(name, None)
        if service is not None:
            del service.workers[worker]
            self.jobs -= 1
            self._tidy((worker.host, name), service)

    def gone(self, worker: ServiceWorker) -> None:
        """Remove a worker that is gone. Its unconfirmed requests return."""
        for name in list(worker.services):
            self.leave(worker, name)
        if worker.window is not None:
            for request in worker.window.clear():
                self.back(request, worker, "the worker is gone")

    def serve(self, worker: ServiceWorker) -> None:
        """Deliver waiting requests to a worker while it has room."""
        look_ahead = self._bounds.look_ahead
        while worker.room:
            able = filter(None, (service.first(worker, look_ahead) for service in worker.services.values()))
            request = min(able, key=_age, default=None)
            if request is None or not worker.take(request):
                return
            self._waited(request)
            self._given(request, worker)

    def refused(self, request: ServiceRequest) -> None:
        """Fail a request that its worker has rejected for good."""
        self._end(request, FAILED, "the worker refused the request")

    def back(self, request: ServiceRequest, worker: ServiceWorker, why: str) -> None:
        """Redeliver a request that its worker has not processed, if it may be retried."""
        if request.replied:
            self.over(request)
            return
        if not request.retry or request.count >= self._bounds.tries:
            self._end(request, UNAVAILABLE, why)
            return
        request.had.add(worker)
        if self._give(request):
            return
        if request.deadline == inf:
            self._end(request, UNAVAILABLE, f"{why}, and no other has room")
        else:
            self._service(request.key).again[request.order] = request
            self._wait(request)

    # deliveries

    def _give(self, request: ServiceRequest) -> bool:
        """Deliver a request. Returns False if no worker has room."""
        service = self._services.get(request.key)
        while service is not None:
            worker = service.best(request.had)
            if worker is None:
                break
            # A worker that is refused by the transport counts as without room: the loop tries each one once.
            if worker.take(request):
                self._given(request, worker)
                return True
        return False

    def _given(self, request: ServiceRequest, worker: ServiceWorker) -> None:
        self._turn += 1
        worker.turn = self._turn
        # Without confirmation the delivery is the end. Without retry, the body is not needed again.
        if worker.window is None:
            self.over(request)
        elif not request.retry:
            self._release(request)

    def _wait(self, request: ServiceRequest) -> None:
        self.waiting += 1
        request.wait(self._leases, self._expire)

    def _waited(self, request: ServiceRequest) -> None:
        """Remove a request from those that wait."""
        service = self._services[request.key]
        if service.fresh.pop(request.order, None) is None:
            del service.again[request.order]
        self.waiting -= 1
        request.waited()
        self._tidy(request.key, service)

    def _expire(self, request: ServiceRequest) -> None:
        self._waited(request)
        self._end(request, TOO_LATE, "no worker had room in time")

    def _end(self, request: ServiceRequest, code: int, why: str) -> None:
        """End a request as failed, unless a reply was seen."""
        self.over(request)
        if not request.replied:
            self._failed(request, code, why)

    def over(self, request: ServiceRequest) -> None:
        """End a request, and release all that is stored of it."""
        self.requests -= 1
        self._store.memory.store(request.payer, -OVERHEAD)
        self._release(request)
        if request.box is not None:
            request.box.forget(request)

    def _keep(self, request: ServiceRequest) -> bool:
        """Reserve the bytes of a request. Returns False if there is no room."""
        if not request.kept:
            request.kept = self._store.take(request.size, request.payer, OVERHEAD)
        return request.kept

    def _release(self, request: ServiceRequest) -> None:
        """Release the body of a request that will not be sent again."""
        if request.kept:
            request.kept = False
            self._store.give(request.size, request.payer, OVERHEAD)
        request.properties = request.body = b""

    def _service(self, key: tuple[str, str]) -> _ServiceQueue:
        service = self._services.get(key)
        if service is None:
            service = self._services[key] = _ServiceQueue()
        return service

    def _tidy(self, key: tuple[str, str], service: _ServiceQueue) -> None:
        """Remove a service without workers and requests."""
        if not service.workers and not service.fresh and not service.again:
            del self._services[key]

    # for the broker

    def all_waiting(self) -> Iterator[ServiceRequest]:
        """Yield all waiting requests."""
        for service in self._services.values():
            yield from service.fresh.values()
            yield from service.again.values()

    def close(self) -> None:
        """Cancel all deadlines."""
        for request in self.all_waiting():
            request.waited()


def _age(request: ServiceRequest) -> int:
    return request.order
