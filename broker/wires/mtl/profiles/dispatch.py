"""Requests on their way to workers: who gets which, which wait, and what becomes of those that come to nothing.

Rules:
- A request goes to the worker of its service that has the fewest requests it has not confirmed, of those with room; of
  equals to the one with the lowest load, and then to the one that has had none for the longest time. Workers that
  confirm nothing get only what no other has room for: nobody knows how much they have to do.
- Where none has room it waits, if it has a time to live and there is room for it; else it is refused.
- A worker that gets room is given what has waited longest for any of its services; but what came back goes first.
- A request comes back when its worker rejects it to be sent again, or is gone, and no reply was seen. If it may be
  tried again, another worker gets it, never one that had it before; if none has room it waits for what is left of its
  time. Else it has failed.
- A request that was replied to, or confirmed, is over. Nothing is kept of the body of one that will not be sent again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice
from math import inf
from typing import Protocol

from broker.core.errors import Reason, Refusal
from broker.core.interfaces import ILease, ILeases
from broker.net.interfaces.router import Part, Sent
from broker.wires.mtl.codec.data import make_tail
from broker.wires.mtl.codec.table import with_members
from broker.wires.mtl.profiles.service_bounds import ServiceBounds
from broker.wires.mtl.sessions.profile_interface import ProfileReader
from broker.wires.mtl.sessions.send_window import SendWindow

SERVICE = "service/"
"""How the resources begin that are services."""

OVERHEAD = 900
"""Bytes that a request takes beside its own: itself, its deadline, and its places in tables."""

FAILED, UNAVAILABLE, TOO_LATE = 500, 503, 504
"""What callers are told: a worker refused the request for good; no worker did it; no worker had room in time."""


class ByteBudget:
    """Bytes that are kept, with a bound."""

    def __init__(self, most: int) -> None:
        self._most = most
        self.bytes = 0

    def take(self, size: int) -> bool:
        """Keep so many more, if there is room."""
        if self.bytes + size > self._most:
            return False
        self.bytes += size
        return True

    def give(self, size: int) -> None:
        """So many are not kept any more."""
        self.bytes -= size


class ReplySink(Protocol):
    """Where replies go."""

    def expect(self, request: ServiceRequest) -> None:
        """A reply to that may come."""

    def forget(self, request: ServiceRequest) -> None:
        """None is expected any more."""


class ServiceRequest:
    """One request. ``box`` is where its reply goes, if it wants one, and ``correlation`` what it is called there.

    ``ttl`` is how many seconds it may wait, ``retry`` says whether it may be given to another worker after one has had
    it. ``properties`` are those that it is sent with.
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
    ) -> None:
        self.key = key
        """The virtual host and the name of the service."""
        self.properties = properties
        self.body = body
        self.box = box
        self.correlation = correlation
        self.ttl = ttl
        self.retry = retry
        self.size = len(properties) + len(body) + OVERHEAD
        self.order = 0
        self.count = 0
        """How often it was given out."""
        self.had: set[ServiceWorker] = set()
        """Workers that shall not get it again."""
        self.replied = False
        self.kept = False
        """Its bytes are counted as kept."""
        self.deadline = inf
        self.lease: ILease | None = None
        """Holds it to its deadline while it waits."""
        self._expire: Callable[[ServiceRequest], None] | None = None

    def wait(self, leases: ILeases, expire: Callable[[ServiceRequest], None]) -> None:
        """Have ``expire`` called when its time is up."""
        self._expire = expire
        self.lease = leases.hold(self, self.deadline)

    def waited(self) -> None:
        """It does not wait any more."""
        if self.lease is not None:
            self.lease.cancel()
            self.lease = None

    def check(self, now: float) -> None:
        """Its time is up."""
        assert self._expire is not None
        self._expire(self)


class ServiceWorker:
    """A reader that works. ``window`` is what it has not confirmed yet, None if it confirms nothing."""

    def __init__(self, reader: ProfileReader, window: SendWindow[ServiceRequest] | None) -> None:
        self._reader = reader
        self._last = 0
        """The sequence of the last request: other Contents may have gone the same way since."""
        self.window = window
        self.host = reader.grant.principal.host
        self.services: dict[str, _ServiceQueue] = {}
        """By name."""
        self.blocked = False
        """It reads too slowly, or is gone."""
        self.load = 0.0
        self.turn = 0
        """When it was last given something, as a number that rises."""

    @property
    def room(self) -> bool:
        """Whether it can be given a request."""
        return not self.blocked and (self.window is None or self.window.room)

    @property
    def rank(self) -> tuple[bool, int, float, int]:
        """The lower, the sooner it is given something."""
        return self.window is None, 0 if self.window is None else len(self.window), self.load, self.turn

    def take(self, request: ServiceRequest) -> bool:
        """Be given a request. Returns whether that was possible."""
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
        """It has confirmed or rejected something. Returns what that was for the first time."""
        if self.window is None:
            return []
        return self.window.answered(min(sequence, self._last) if multiple else sequence, multiple)


class _ServiceQueue:
    """A service that has workers, or for which something waits."""

    __slots__ = ("again", "fresh", "workers")

    def __init__(self) -> None:
        self.workers: dict[ServiceWorker, None] = {}
        self.fresh: dict[int, ServiceRequest] = {}
        """What waits and was never given out, by its order."""
        self.again: dict[int, ServiceRequest] = {}
        """What waits and came back."""

    def best(self, had: set[ServiceWorker]) -> ServiceWorker | None:
        """Who is to be given a request, but none of those."""
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
    """All requests and workers. ``failed`` is told what has come to nothing, with a code and the reason."""

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
        """How many wait, or are with workers that will confirm them."""
        self.waiting = 0

    # callers

    def ask(self, request: ServiceRequest) -> None:
        """A request came. It is given to a worker, or waits; else raises `Refusal` LIMIT, and it is not kept."""
        bounds = self._bounds
        if self.requests >= bounds.requests:
            raise Refusal(Reason.LIMIT, f"there are {bounds.requests} requests on their way")
        if request.retry and not self._keep(request):
            raise Refusal(Reason.LIMIT, "there is no room for a request that may be sent again")
        self._order += 1
        request.order = self._order
        if request.ttl:
            request.deadline = self._leases.moment() + request.ttl
        self.requests += 1
        if request.box is not None:
            request.box.expect(request)
        if self._give(request):
            return
        service = self._services.get(request.key)
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
        """A reply to it was seen: it will not be sent again."""
        request.replied = True
        self._release(request)

    # workers

    def join(self, worker: ServiceWorker, name: str) -> None:
        """A worker begins to work for a service. Raises `Refusal` LIMIT."""
        service = self._services.get((worker.host, name))
        if self.jobs >= self._bounds.jobs or (service is not None and len(service.workers) >= self._bounds.workers):
            raise Refusal(Reason.LIMIT, "there are too many workers")
        service = self._service((worker.host, name))
        service.workers[worker] = None
        worker.services[name] = service
        self.jobs += 1
        self.serve(worker)

    def leave(self, worker: ServiceWorker, name: str) -> None:
        """It ceases to. What it was given before it still has. Harmless if it does not work for it."""
        service = worker.services.pop(name, None)
        if service is not None:
            del service.workers[worker]
            self.jobs -= 1
            self._tidy((worker.host, name), service)

    def gone(self, worker: ServiceWorker) -> None:
        """It is gone, and what it has not confirmed comes back."""
        for name in list(worker.services):
            self.leave(worker, name)
        if worker.window is not None:
            for request in worker.window.clear():
                self.back(request, worker, "the worker is gone")

    def serve(self, worker: ServiceWorker) -> None:
        """It has room: give it what waits."""
        look_ahead = self._bounds.look_ahead
        while worker.room:
            able = filter(None, (service.first(worker, look_ahead) for service in worker.services.values()))
            request = min(able, key=_age, default=None)
            if request is None or not worker.take(request):
                return
            self._waited(request)
            self._given(request, worker)

    def refused(self, request: ServiceRequest) -> None:
        """Its worker has rejected it for good."""
        self._end(request, FAILED, "the worker refused the request")

    def back(self, request: ServiceRequest, worker: ServiceWorker, why: str) -> None:
        """Its worker does not do it. Another one may."""
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

    # inside

    def _give(self, request: ServiceRequest) -> bool:
        """Give it to a worker, if one has room."""
        service = self._services.get(request.key)
        while service is not None:
            worker = service.best(request.had)
            if worker is None:
                break
            if worker.take(request):
                self._given(request, worker)
                return True
        return False

    def _given(self, request: ServiceRequest, worker: ServiceWorker) -> None:
        self._turn += 1
        worker.turn = self._turn
        if worker.window is None:
            self.over(request)
        elif not request.retry:
            self._release(request)

    def _wait(self, request: ServiceRequest) -> None:
        self.waiting += 1
        request.wait(self._leases, self._expire)

    def _waited(self, request: ServiceRequest) -> None:
        """It does not wait any more."""
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
        """It has come to nothing, if nobody has replied to it."""
        self.over(request)
        if not request.replied:
            self._failed(request, code, why)

    def over(self, request: ServiceRequest) -> None:
        """Nothing more becomes of it: its worker has confirmed it, for example."""
        self.requests -= 1
        self._release(request)
        if request.box is not None:
            request.box.forget(request)

    def _keep(self, request: ServiceRequest) -> bool:
        """Keep its bytes. Returns whether there is room."""
        if not request.kept:
            request.kept = self._store.take(request.size)
        return request.kept

    def _release(self, request: ServiceRequest) -> None:
        """Its bytes are not needed any more."""
        if request.kept:
            request.kept = False
            self._store.give(request.size)
        request.properties = request.body = b""

    def _service(self, key: tuple[str, str]) -> _ServiceQueue:
        service = self._services.get(key)
        if service is None:
            service = self._services[key] = _ServiceQueue()
        return service

    def _tidy(self, key: tuple[str, str], service: _ServiceQueue) -> None:
        """Forget a service that is none any more."""
        if not service.workers and not service.fresh and not service.again:
            del self._services[key]

    # for the broker

    def all_waiting(self) -> Iterator[ServiceRequest]:
        """What waits."""
        for service in self._services.values():
            yield from service.fresh.values()
            yield from service.again.values()

    def close(self) -> None:
        """No time is up any more."""
        for request in self.all_waiting():
            request.waited()


def _age(request: ServiceRequest) -> int:
    return request.order
