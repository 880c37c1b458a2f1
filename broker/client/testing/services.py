"""Profile "service" of the fake broker: requests go to the least loaded worker, and replies back to the caller."""

from __future__ import annotations

import secrets
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

import attrs

from broker.client.testing.profile import Profile, Refusal, by_user
from broker.client.testing.registry import LABEL, SERVICE, Provider, Registry, ServiceBody, read_load
from broker.wires.mtl.codec import table
from broker.wires.mtl.codec.data import Content

if TYPE_CHECKING:
    from broker.client.testing.connection import Grant, ReaderFlow, Timer, WriterFlow

REPLY, REPLIES, LOAD = "reply", "reply/", "load"
"""Resources beside service/NAME: a name, the prefix of addresses, and a name."""

ADDRESS = "127.0.0.1"
"""The hostport of workers in the registry."""

MAX_CORRELATION = 255
"""Characters of a correlation id."""

MAX_TRIES = 20
"""Workers that may return one request: the broker's default."""

FAILED, UNAVAILABLE, TIMED_OUT = 500, 503, 504
"""Codes of failed requests."""


@attrs.define(eq=False)
class Inbox:
    """Replies to one caller, by its address. ``resource`` is empty until the caller has summoned it."""

    reader: ReaderFlow
    resource: str = ""
    pending: list[tuple[bytes, bytes]] = attrs.field(factory=list)
    expected: dict[str, Request] = attrs.field(factory=dict)
    """Requests without a reply, by correlation id."""

    def post(self, properties: bytes, body: bytes) -> None:
        """Send a reply, as soon as the caller has summoned the inbox."""
        if self.resource:
            self.reader.give(self.resource, properties, body)
        else:
            self.pending.append((properties, body))


@attrs.define(eq=False)
class Request:
    """A request that has no outcome yet."""

    name: str
    properties: bytes
    body: bytes
    inbox: Inbox | None
    correlation: str
    ttl: int
    retry: bool
    count: int = 0
    returned_by: set[Any] = attrs.field(factory=set)
    replied: bool = False
    timer: Timer | None = None


@attrs.define(eq=False)
class Worker:
    """A worker: the services that it has summoned, and its load."""

    reader: ReaderFlow
    provider: Provider
    services: dict[str, None] = attrs.field(factory=dict)
    load: float = 0.0
    turn: int = 0

    @property
    def rank(self) -> tuple[int, float, int]:
        """The lowest rank receives the next request."""
        return len(self.reader.unanswered), self.load, self.turn


class Services(Profile):
    """The profile."""

    modes: ClassVar[dict[str, tuple[str, ...]]] = {"reader": ("full", "none"), "writer": ("full", "none")}

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self._inboxes: dict[str, Inbox] = {}
        self._workers: dict[Any, Worker] = {}
        """Workers by connection."""
        self._waiting: list[Request] = []
        self._turn = 0

    # leases

    def check(self, side: str, resource: str) -> None:
        """Check the name of a resource."""
        if resource.startswith(REPLIES):
            if side == "reader" and resource not in self._inboxes:
                raise Refusal(400, "there is no such address")
        elif not _name(resource) and resource != REPLY and (resource != LOAD or side == "reader"):
            raise Refusal(400, "there is no such resource: service/NAME, reply, load for writers")

    def granted(self, grant: Grant) -> None:
        """Give an address to a reader of replies."""
        if grant.side == "reader" and grant.covers(REPLY):
            grant.reply = REPLIES + secrets.token_urlsafe(24)

    def joined(self, reader: ReaderFlow) -> None:
        """Make the inbox of a reader of replies."""
        if reader.grant.reply:
            self._inboxes[reader.grant.reply] = Inbox(reader)

    def left(self, flow: Any) -> None:
        """Remove an inbox and a worker, whose requests go to others or fail."""
        if flow.grant.side == "writer":
            return
        self._inboxes.pop(flow.grant.reply, None)
        worker = self._workers.pop(flow.connection, None)
        if worker is not None:
            self._registry.leave(worker.provider)
            flow.give_back()
        for request in [each for each in self._waiting if each.timer in flow.connection.timers]:
            # The timer belonged to the connection of the caller, which is gone too.
            self._waiting.remove(request)

    def reset(self) -> None:
        """Forget everything."""
        for request in self._waiting:
            if request.timer is not None:
                request.timer.cancel()
        self._waiting.clear()
        self._inboxes.clear()
        self._workers.clear()

    # readers

    def summon(self, reader: ReaderFlow, resource: str) -> None:
        """Open an inbox, or add a worker."""
        name = _name(resource)
        if not name:
            inbox = self._inboxes[reader.grant.reply]
            inbox.resource = resource
            pending, inbox.pending = inbox.pending, []
            for reply in pending:
                inbox.post(*reply)
            return
        worker = self._workers.get(reader.connection)
        if worker is None:
            provider = self._registry.join(reader.grant.user or LABEL)
            worker = self._workers[reader.connection] = Worker(reader, provider)
        worker.services[name] = None
        self._registry.offer(worker.provider, ServiceBody(name, ADDRESS, LABEL, reader.grant.user or None))
        self._pump()

    def dismiss(self, reader: ReaderFlow, resource: str) -> None:
        """Remove a worker, which keeps the requests that it has."""
        worker = self._workers.get(reader.connection)
        name = _name(resource)
        if worker is not None and name:
            worker.services.pop(name, None)
            self._registry.withdraw(worker.provider, name)

    # writers

    def write(self, writer: WriterFlow, resource: str, content: Content) -> None:
        """Handle a request, a reply or a load."""
        try:
            if name := _name(resource):
                self._ask(writer, name, content)
            elif resource == LOAD:
                worker = self._workers.get(writer.connection)
                if worker is None:
                    raise Refusal(400, "only a worker has a load")
                report = read_load(content.body)
                worker.load = report.load
                self._registry.report(worker.provider, report)
            else:
                self._reply(writer, resource, content)
        except Refusal as refusal:
            writer.reject(content.sequence, recycle=refusal.code == UNAVAILABLE)
        else:
            writer.confirm(content.sequence)

    def _ask(self, writer: WriterFlow, name: str, content: Content) -> None:
        members = table.members(content.table, "reply-to", "correlation-id", "ttl", "retry")
        correlation, ttl = members.get("correlation-id", ""), members.get("ttl", 0)
        retry = members.get("retry", False)
        if not isinstance(correlation, str) or len(correlation) > MAX_CORRELATION:
            raise Refusal(400, "a correlation id is text")
        if type(ttl) is not int or ttl < 0 or type(retry) is not bool:
            raise Refusal(400, "a ttl is a number of milliseconds, and retry is a Boolean")
        inbox = None
        if "reply-to" in members:
            inbox = self._inboxes.get(str(members["reply-to"]))
            if inbox is None:
                raise Refusal(400, "there is no such address")
        properties = by_user(writer.grant.user, content.table)
        request = Request(name, properties, content.body, inbox, correlation, ttl, retry)
        if inbox is not None:
            inbox.expected[correlation] = request
        if self._give(request):
            return
        if ttl:
            self._wait(request, writer)
            return
        self._end(request)
        if inbox is not None and not writer.grant.confirmed:
            self._fail(request, UNAVAILABLE, "no worker has room")
        raise Refusal(UNAVAILABLE, "no worker has room")

    def _reply(self, writer: WriterFlow, resource: str, content: Content) -> None:
        members = table.members(content.table, "reply-to", "correlation-id")
        address = members.get("reply-to") if resource == REPLY else resource
        inbox = self._inboxes.get(str(address))
        if inbox is None:
            raise Refusal(400, "there is no such address")
        unwanted = ("event", "reply-to") if resource == REPLY else ("event",)
        inbox.post(by_user(writer.grant.user, content.table, *unwanted), content.body)
        request = inbox.expected.pop(str(members.get("correlation-id", "")), None)
        if request is not None:
            request.replied = True

    # dispatch

    def _give(self, request: Request) -> bool:
        able = [
            worker
            for worker in self._workers.values()
            if request.name in worker.services and worker.reader.room and worker not in request.returned_by
        ]
        if not able:
            return False
        worker = min(able, key=lambda worker: worker.rank)
        self._turn += 1
        worker.turn = self._turn
        request.count += 1
        more: dict[str, table.Value] = {"redelivered": request.count > 1, "delivery-count": request.count}
        properties = table.with_members(request.properties, more)
        settled = partial(self._settled, request, worker)
        worker.reader.give(SERVICE + request.name, properties, request.body, settled)
        return True

    def _settled(self, request: Request, worker: Worker, recycle: bool | None, gone: bool) -> None:
        why = "the worker is gone" if gone else "the worker gave the request back"
        if recycle is None or request.replied:
            self._end(request)
        elif not recycle:
            self._end(request)
            self._fail(request, FAILED, "the worker refused the request")
        elif not request.retry or request.count >= MAX_TRIES:
            self._end(request)
            self._fail(request, UNAVAILABLE, why)
        else:
            request.returned_by.add(worker)
            if not self._give(request):
                if request.ttl and request.inbox is not None:
                    self._wait(request, request.inbox.reader)
                else:
                    self._end(request)
                    self._fail(request, UNAVAILABLE, f"{why}, and no other has room")
        self._pump()

    def _wait(self, request: Request, flow: ReaderFlow | WriterFlow) -> None:
        """Keep a request until a worker has room, or until its time is up."""

        def expired() -> None:
            if request in self._waiting:
                self._waiting.remove(request)
                self._end(request)
                self._fail(request, TIMED_OUT, "no worker had room in time")

        self._waiting.append(request)
        request.timer = flow.connection.later(request.ttl / 1000, expired)

    def _pump(self) -> None:
        for request in list(self._waiting):
            if self._give(request):
                self._waiting.remove(request)
                if request.timer is not None:
                    request.timer.cancel()

    def _end(self, request: Request) -> None:
        if request.inbox is not None and request.inbox.expected.get(request.correlation) is request:
            del request.inbox.expected[request.correlation]

    def _fail(self, request: Request, code: int, reason: str) -> None:
        if request.inbox is None or request.replied:
            return
        members: dict[str, table.Value] = {"event": "error", "code": code, "reason": reason, "service": request.name}
        if request.correlation:
            members["correlation-id"] = request.correlation
        request.inbox.post(table.encode(members), b"")


def _name(resource: str) -> str:
    return resource.removeprefix(SERVICE) if resource.startswith(SERVICE) else ""
