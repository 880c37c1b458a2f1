"""The profile "service": requests and replies, over the services of the registry.

Rules:
- Resources are ``service/NAME``, ``reply``, and ``load`` for writers.
- A reader that summons ``service/NAME`` is a *worker* of the service: it is sent requests, and confirms each. The rules
  of distribution are in `broker.wires.mtl.profiles.request_dispatch`. A worker that confirms nothing is given a request
  once, and its outcome is unknown.
- In the virtual host that is shared with other wires, a worker is a provider of the registry: it offers NAME by the
  protocol "mtl" while it has it summoned. It needs the permission to offer that name, in every host.
- A writer of ``service/NAME`` is a *caller*. Each Content is a request. The broker reads its properties ``reply-to``
  (address of the reply), ``correlation-id`` (text), ``ttl`` (milliseconds that it may wait), ``retry`` (another worker
  may get it after one has had it) and ``wait`` (false: without any worker it fails at once, by 503). A Confirm means
  that a worker has the request, or that it waits.
- A request that may not wait, and finds no worker with room, is rejected with recycle. A caller without confirmation is
  sent an error instead, if there is a ``reply-to``.
- A reader whose lease covers ``reply`` is issued an address with the lease, ``reply/TOKEN``: the ``reply-to`` of its
  requests. It summons ``reply``, or the address itself if its lease covers all. Replies are not confirmed.
- A worker writes its reply to ``reply`` with the ``reply-to`` of the request, or to that address. The reply is passed
  on with its ``correlation-id``. A Confirm means that it was sent or waits for room; a Reject without recycle, that
  the address has no reader.
- If a confirmed request will get no reply, the caller is sent a Content with the ``event`` "error", a ``code``, a
  ``reason``, the ``service`` and the ``correlation-id``. Codes are 500 (rejected for good), 503 (the worker is gone or
  returned it, and no other takes it), 504 (no worker had room in time). The broker removes ``event`` from replies, so
  that no worker can send such a Content.
- Requests do not travel between the brokers of a cluster. A request for a service whose workers are all at other
  brokers is rejected with recycle; with a ``reply-to``, the caller is also sent the error 421, with ``owner``, the name
  of a broker that has a worker, and its control ``endpoint`` where it is known.
- ``user-id`` is the writer of a request or reply, where it is known. Requests have ``redelivered`` and
  ``delivery-count``, from 1 on.
- A worker reports its load by a Content to ``load`` on the writer flow of the same client: ``{"load": NUMBER}``.
- Virtual hosts are separate.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from weakref import WeakKeyDictionary

import attrs
from twisted.internet.defer import Deferred

from broker.core.errors import Elsewhere, Reason, Refusal, no_right
from broker.core.interfaces import ILeases, IRegistry, StoredMemory
from broker.core.model import Service
from broker.net.peer_interfaces import RefusalLog
from broker.wires.mtl.codec import data_messages, field_table
from broker.wires.mtl.profiles.flow_provider import WIRE, FlowProvider, read_load
from broker.wires.mtl.profiles.reply_inboxes import OneReply, ReplyInbox
from broker.wires.mtl.profiles.request_dispatch import (
    MISDIRECTED,
    SERVICE,
    UNAVAILABLE,
    ByteBudget,
    Dispatcher,
    ServiceBounds,
    ServiceRequest,
    ServiceWorker,
)
from broker.wires.mtl.sessions.access_policy import ConfirmMode, Principal, Side, no_lease
from broker.wires.mtl.sessions.profile_interface import (
    DataFlows,
    Grant,
    Profile,
    ProfileReader,
    ProfileWriter,
    SendWindow,
    payer_of,
)

NAME = "service"

REPLY, REPLIES, LOAD = "reply", "reply/", "load"
"""The other resources: a name, the prefix of addresses, and a name."""

TOKEN_BYTES = 24
"""Random bytes of an address: 192 bits cannot be guessed."""

MAX_CORRELATION = 255
"""Characters of a correlation-id, which is stored until the reply comes. A UUID has 36."""

MAX_TTL = 3_600_000
"""Milliseconds: the longest time to live of a request. No caller waits an hour for a reply."""

NOTHING_MORE: Mapping[str, field_table.Value] = MappingProxyType({})
"""Members of an error besides those of all errors."""

_COUNTS = "mtl_services"
_BOUNDS = ServiceBounds()


@attrs.define(eq=False)
class _ReaderPlace:
    """State of a reader: a worker, an inbox, or both. ``provider`` is the worker in the registry."""

    box: ReplyInbox | None
    worker: ServiceWorker | None = None
    provider: FlowProvider | None = None


class ServiceProfile(Profile):
    """The profile. See `broker.wires.mtl.sessions.profile_interface.Profile`.

    ``bridge`` is the virtual host of the registry. ``window_bytes`` limits the unconfirmed requests of one worker; a
    change applies to workers that begin later. ``endpoint_of`` returns the control endpoint of another broker by its
    name, empty if it is unknown.
    """

    name = NAME
    confirms: Mapping[Side, tuple[ConfirmMode, ...]] = {
        Side.READER: (ConfirmMode.FULL, ConfirmMode.NONE),
        Side.WRITER: (ConfirmMode.FULL, ConfirmMode.NONE),
    }

    def __init__(
        self,
        flows: DataFlows,
        registry: IRegistry,
        leases: ILeases,
        refusal_log: RefusalLog,
        bridge: str,
        window_bytes: int,
        memory: StoredMemory,
        bounds: ServiceBounds = _BOUNDS,
        endpoint_of: Callable[[str], str] = lambda broker: "",
    ) -> None:
        self._endpoint_of = endpoint_of
        self._flows = flows
        self._registry = registry
        self._refusal_log = refusal_log
        self._bridge = bridge
        self.window_bytes = window_bytes
        self._bounds = bounds
        self._store = ByteBudget(bounds.kept, memory)
        self._calls = Dispatcher(leases, self._store, self._failed, bounds)
        self._tokens: WeakKeyDictionary[Grant, str] = WeakKeyDictionary()
        """Tokens of unused leases. Weak, since profiles are not notified when an unused lease ends."""
        self._boxes: dict[str, ReplyInbox] = {}
        """By token."""
        self._workers: dict[bytes, _ReaderPlace] = {}
        """By the identity of their client."""
        self._asked = 0
        self._replied = 0

    # leases

    def check(self, principal: Principal, side: Side, resource: str) -> None:
        name = resource
        if resource.startswith(REPLIES):
            name = REPLY
            box = self._boxes.get(resource.removeprefix(REPLIES))
            if side is Side.READER and (box is None or box.principal is not principal):
                raise Refusal(
                    Reason.PARAMETER, "the address does not exist, or belongs to another user: summon reply instead"
                )
        elif not (_service(resource) or resource == REPLY or (resource == LOAD and side is Side.WRITER)):
            raise Refusal(Reason.PARAMETER, "there is no such resource: service/NAME, reply, load for writers")
        if not principal.allowed.may(side, NAME, name):
            raise no_lease(principal, side, NAME, _service(resource) or name)
        service = _service(resource)
        if service and side is Side.READER and not principal.allowed.offers.permits(service):
            raise no_right("offer", service, principal.user)

    def granted(self, grant: Grant) -> Mapping[str, str]:
        if grant.side is not Side.READER or not grant.covers(REPLY):
            return {}
        token = self._tokens[grant] = secrets.token_urlsafe(TOKEN_BYTES)
        return {"reply": REPLIES + token}

    def joined(self, flow: ProfileReader | ProfileWriter) -> None:
        if flow.grant.side is Side.WRITER:
            return
        token = self._tokens.pop(flow.grant, None)
        box = None
        if token is not None:
            box = self._boxes[token] = ReplyInbox(
                flow,  # type: ignore[arg-type]
                token,
                self._store,
                self._bounds.backlog,
            )
        flow.place = _ReaderPlace(box)

    def left(self, flow: ProfileReader | ProfileWriter) -> None:
        if flow.grant.side is Side.WRITER:
            return
        place: _ReaderPlace = flow.place
        if place.box is not None:
            del self._boxes[place.box.token]
            self._lost(place.box.clear())
        if place.worker is not None:
            del self._workers[flow.identity]
            # Before its requests return: lookups of other wires must not find the worker any more.
            if place.provider is not None:
                place.provider.leave()
            self._calls.gone(place.worker)

    def heartbeat(self, flow: ProfileReader | ProfileWriter) -> None:
        if flow.grant.side is Side.READER and flow.place.provider is not None:
            flow.place.provider.heartbeat()

    def provider(self, flow: ProfileReader | ProfileWriter) -> int | None:
        if flow.grant.side is not Side.READER or flow.place.provider is None:
            return None
        id: int | None = flow.place.provider.id
        return id

    # readers

    def summon(self, reader: ProfileReader, resource: str, body: bytes = b"") -> None:
        place: _ReaderPlace = reader.place
        name = _service(resource)
        if name:
            self._work(reader, place, name)
        elif place.box is not None and resource in (REPLY, REPLIES + place.box.token):
            place.box.open(resource)

    def dismiss(self, reader: ProfileReader, resource: str) -> None:
        place: _ReaderPlace = reader.place
        name = _service(resource)
        if name and place.worker is not None:
            self._calls.leave(place.worker, name)
            if place.provider is not None:
                place.provider.withdraw(name)
        elif place.box is not None:
            self._lost(place.box.close(resource))

    def room(self, reader: ProfileReader) -> None:
        place: _ReaderPlace = reader.place
        if place.box is not None:
            place.box.flush()
        if place.worker is not None:
            place.worker.blocked = False
            self._calls.serve(place.worker)

    def confirmed(self, reader: ProfileReader, sequence: int, multiple: bool) -> None:
        worker = reader.place.worker
        if worker is not None:
            for request in worker.answered(sequence, multiple):
                self._calls.over(request)
            self._calls.serve(worker)

    def rejected(self, reader: ProfileReader, sequence: int, multiple: bool, recycle: bool) -> None:
        worker = reader.place.worker
        if worker is not None:
            for request in worker.answered(sequence, multiple):
                if recycle:
                    self._calls.back(request, worker, "the worker gave the request back")
                else:
                    self._calls.refused(request)
            self._calls.serve(worker)

    def _work(self, reader: ProfileReader, place: _ReaderPlace, name: str) -> None:
        """Make a reader a worker of a service."""
        grant = reader.grant
        if place.worker is None:
            window: SendWindow[ServiceRequest] | None = None
            if grant.confirm is ConfirmMode.FULL:
                window = SendWindow(grant.window, self.window_bytes)
            place.worker = ServiceWorker(reader, window)
            self._workers[reader.identity] = place
            if grant.principal.host == self._bridge:
                place.provider = FlowProvider(self._registry, grant.principal.allowed.offers, reader)
        try:
            if place.provider is not None:
                place.provider.offer(Service(name, reader.address, 0, WIRE, grant.principal.user or None))
            self._calls.join(place.worker, name)
        except Refusal as refusal:
            # The Summon has been answered with 200 already: ending the flow is the only way to report it.
            self._refusal_log.count(_COUNTS, refusal.reason.code)
            self._flows.end(reader, "full")

    # writers

    def content(self, writer: ProfileWriter, resource: str, content: data_messages.Content) -> None:
        try:
            if name := _service(resource):
                self._ask(writer, name, content)
            elif resource == LOAD:
                self._report(writer, content)
            else:
                self._reply(writer, resource, content)
        except Refusal as refusal:
            self._refusal_log.count(_COUNTS, refusal.reason.code)
            # A reply that is too late is normal: a worker without confirmation need not know.
            if refusal.reason is not Reason.UNKNOWN_TARGET or writer.grant.confirm is ConfirmMode.FULL:
                writer.reject(content.sequence, recycle=refusal.reason in (Reason.LIMIT, Reason.ELSEWHERE))
        else:
            writer.confirm(content.sequence)

    def _ask(self, writer: ProfileWriter, name: str, content: data_messages.Content) -> None:
        principal = writer.grant.principal
        said = field_table.members(content.table, "reply-to", "correlation-id", "ttl", "retry", "wait")
        correlation, ttl, retry = said.get("correlation-id", ""), said.get("ttl", 0), said.get("retry", False)
        if not isinstance(correlation, str) or len(correlation) > MAX_CORRELATION:
            raise Refusal(Reason.PARAMETER, f"a correlation-id is text of up to {MAX_CORRELATION} characters")
        # bool is a subclass of int in Python.
        wait = said.get("wait", True)
        if type(ttl) is not int or ttl < 0 or type(retry) is not bool or type(wait) is not bool:
            raise Refusal(Reason.PARAMETER, "a ttl is a number of milliseconds, and retry and wait are Booleans")
        box = None
        if "reply-to" in said:
            box = self._box(principal.host, said["reply-to"])
            if box is None:
                raise Refusal(Reason.PARAMETER, "the reply-to has no reader")
        properties = _by(principal.user, content.table)
        request = ServiceRequest(
            (principal.host, name), properties, content.body, box, correlation, min(ttl, MAX_TTL) / 1000, retry,
            payer_of(writer),
        )  # fmt: skip
        if not self._calls.has_workers(request.key):
            self._check_elsewhere(request)
            if not wait:
                text = f"no responders: no worker serves {name[:80]!r}"
                if box is not None:
                    self._failed(request, UNAVAILABLE, text)
                raise Refusal(Reason.NO_SUCH_SERVICE, text)
        try:
            self._calls.ask(request)
        except Refusal as refusal:
            if box is not None and writer.grant.confirm is ConfirmMode.NONE:
                self._failed(request, UNAVAILABLE, refusal.text)
            raise
        self._asked += 1

    def call(self, name: str, body: bytes, seconds: float, principal: Principal, address: str) -> Deferred[bytes]:
        """Send a request of the broker itself, and return its reply. It waits ``seconds`` for a worker with room.

        ``principal`` is its author in the first virtual host, at that address. Raises `Refusal`, or the Deferred fails
        with one; the caller bounds the time of the reply by cancelling it.
        """
        token = secrets.token_urlsafe(TOKEN_BYTES)

        def over() -> None:
            self._lost(self._boxes.pop(token).clear())

        grant = Grant(principal, Side.READER, self, (), ConfirmMode.NONE, 0)
        caller = OneReply(grant, address, over)
        box = self._boxes[token] = ReplyInbox(caller, token, self._store, 1)
        box.open(REPLY)
        table = field_table.encode({"reply-to": REPLIES + token, "correlation-id": token})
        request = ServiceRequest(
            (principal.host, name), _by(principal.user, table), body, box, token, seconds, payer=payer_of(caller)
        )
        try:
            if not self._calls.has_workers(request.key):
                self._check_elsewhere(request)
                raise Refusal(Reason.NO_SUCH_SERVICE, f"no worker of MTL serves {name[:80]!r} at this broker")
            self._calls.ask(request)
        except Refusal:
            if not caller.reply.called:
                caller.reply.cancel()
            caller.reply.addErrback(lambda _: None)
            raise
        self._asked += 1
        return caller.reply

    def _check_elsewhere(self, request: ServiceRequest) -> None:
        """Raise `Elsewhere` if workers of a service without any here are at another broker."""
        host, name = request.key
        if host != self._bridge:
            return
        for service in self._registry.find(name, WIRE):
            provider = self._registry.provider(service.provider)
            if provider is not None and provider.broker:
                owner, endpoint = provider.broker, self._endpoint_of(provider.broker)
                text = f"the workers of this service are at the broker {owner}"
                self._failed(
                    request, MISDIRECTED, text, {"owner": owner, **({"endpoint": endpoint} if endpoint else {})}
                )
                raise Elsewhere(text, owner, endpoint)

    def _reply(self, writer: ProfileWriter, resource: str, content: data_messages.Content) -> None:
        principal = writer.grant.principal
        said = field_table.members(content.table, "reply-to", "correlation-id")
        unwanted = ["event"]
        address: field_table.Value = resource
        if resource == REPLY:
            address = said.get("reply-to")
            unwanted.append("reply-to")
            if not isinstance(address, str) or not address.startswith(REPLIES):
                raise Refusal(Reason.PARAMETER, "a reply has the reply-to of its request")
        box = self._box(principal.host, address)
        if box is None:
            raise Refusal(Reason.UNKNOWN_TARGET, "the address has no reader")
        box.post(_by(principal.user, content.table, *unwanted), content.body)
        self._replied += 1
        correlation = said.get("correlation-id", "")
        request = box.expected(correlation) if isinstance(correlation, str) else None
        if request is not None:
            box.forget(request)
            self._calls.replied(request)

    def _report(self, writer: ProfileWriter, content: data_messages.Content) -> None:
        place = self._workers.get(writer.identity)
        if place is None or place.worker is None:
            raise Refusal(Reason.PARAMETER, "only a worker has a load")
        load, details = read_load(content.body)
        place.worker.load = load
        if place.provider is not None:
            place.provider.load(load, details)

    def _box(self, host: str, address: field_table.Value) -> ReplyInbox | None:
        """Return the inbox of that address, None if it is unknown, or in another virtual host."""
        if not isinstance(address, str) or not address.startswith(REPLIES):
            return None
        box = self._boxes.get(address.removeprefix(REPLIES))
        return box if box is not None and box.principal.host == host else None

    # failures

    def _failed(
        self, request: ServiceRequest, code: int, why: str, more: Mapping[str, field_table.Value] = NOTHING_MORE
    ) -> None:
        self._refusal_log.count(_COUNTS, f"error-{code}")
        box = request.box
        if not isinstance(box, ReplyInbox):
            return
        members: dict[str, field_table.Value] = {
            "event": "error",
            "code": code,
            "reason": why,
            "service": request.key[1],
        }
        members |= more
        if request.correlation:
            members["correlation-id"] = request.correlation
        try:
            box.post(field_table.encode(members), b"")
        except Refusal as refusal:
            self._refusal_log.count(_COUNTS, refusal.reason.code)

    def _lost(self, replies: int) -> None:
        if replies:
            self._refusal_log.count(_COUNTS, "lost", replies)

    # for the broker

    def counts(self) -> Mapping[str, int]:
        return {
            f"{_COUNTS}.requests": self._asked,
            f"{_COUNTS}.replies": self._replied,
            f"{_COUNTS}.open": self._calls.requests,
            f"{_COUNTS}.waiting": self._calls.waiting,
            f"{_COUNTS}.kept-bytes": self._store.bytes,
        }

    @property
    def jobs(self) -> int:
        """The number of pairs of worker and service."""
        return self._calls.jobs

    @property
    def addresses(self) -> int:
        """The number of reply addresses, of leases that are not used yet and of readers."""
        return len(self._tokens) + len(self._boxes)

    @property
    def expecting(self) -> int:
        """The number of requests for which an inbox expects a reply."""
        return sum(box.expecting for box in self._boxes.values())

    def waiting(self) -> Iterator[ServiceRequest]:
        """The requests that wait for a worker."""
        return self._calls.all_waiting()

    def close(self) -> None:
        self._calls.close()


def _service(resource: str) -> str:
    """Return the name of the service in a resource, "" if it is none."""
    return resource.removeprefix(SERVICE) if resource.startswith(SERVICE) else ""


def _by(user: str, properties: bytes, *unwanted: str) -> bytes:
    """Return properties to pass on: with the ``user-id`` of that user, and without the unwanted ones."""
    shown = field_table.without_members(properties, "user-id", *unwanted)
    return field_table.with_members(shown, {"user-id": user}) if user else shown
