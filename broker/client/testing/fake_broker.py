"""The fake broker: the control flow, leases and the dispatch of data commands, in memory.

Rules (docs/protocols/mtl.md has the protocol):
- A request needs an open session, and a lease a chosen profile. A lease is used once.
- Commands of a connection without a lease are answered by 403, so clients recover after a restart.
- Ill-formed messages are dropped.
"""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING, Any

from broker.client import mtl
from broker.client.credentials import Credentials
from broker.client.testing.connection import Connection, Grant, ReaderFlow, WriterFlow
from broker.client.testing.profile import Profile, Refusal, TestProfile, Topics
from broker.client.testing.queues import Queues
from broker.client.testing.registry import Registry
from broker.client.testing.services import Services
from broker.wires.mtl.codec import control, data
from broker.wires.mtl.codec.control import EncodedReply, ReplyStatus
from broker.wires.mtl.codec.faults import IllFormed

if TYPE_CHECKING:
    from broker.client import asyncio_client, blocking

ENDPOINT = "inproc://fake-broker"
"""Endpoint of clients of a fake. The transport ignores it; "inproc" counts as secure, so PLAIN is permitted."""

WINDOW, MOST_WINDOW = 100, 1_000
"""Window of a reader by default, and at most: the broker's defaults."""

STOPPED = "the fake broker is stopped"

_STATUS = {400: ReplyStatus.BAD_REQUEST, 403: ReplyStatus.FORBIDDEN}


class FakeBroker:
    """A broker in memory, and the transport of its clients (`broker.client.transport.Transport`).

    ``users`` maps names to passwords; without it clients need no credentials. ``durable`` queues keep their messages
    over `stop`. Any number of clients, also in several threads, may share one fake. Several fakes with different
    ``endpoint``s are the brokers of a cluster, between which `move_queue` moves queues.
    """

    def __init__(
        self, users: Mapping[str, str] | None = None, durable: Collection[str] = (), endpoint: str = ENDPOINT
    ) -> None:
        self.endpoint = endpoint
        self._users = users
        self._brokers: dict[str, FakeBroker] = {}
        """Other brokers of the cluster, by endpoint."""
        self._elsewhere: dict[str, FakeBroker] = {}
        """Owners of queues that are not here."""
        self._queues = Queues(time.monotonic, durable)
        self._registry = registry = Registry()
        self._profiles: dict[str, Profile] = {
            "test": TestProfile(),
            "registry": registry,
            "topic": Topics(),
            "queue": self._queues,
            "service": Services(registry),
        }
        self._lock = threading.RLock()
        self._running = True
        self._connections: dict[Connection, None] = {}
        self._leases: dict[str, Grant] = {}
        self._tails = data.Tails()

    # for tests

    def client(self, reactor: Any, credentials: Credentials | None = None, **more: Any) -> mtl.Client:
        """Return a client for a reactor; a `task.Clock` will do."""
        return mtl.Client(reactor, self.endpoint, credentials, transport=self, **more)

    def blocking_client(self, credentials: Credentials | None = None, **more: Any) -> blocking.Client:
        """Return a blocking client."""
        from broker.client import blocking

        return blocking.Client(self.endpoint, credentials, transport=self, **more)

    def asyncio_client(self, credentials: Credentials | None = None, **more: Any) -> asyncio_client.Client:
        """Return a client for the running asyncio loop."""
        from broker.client import asyncio_client

        return asyncio_client.Client(self.endpoint, credentials, transport=self, **more)

    def queued(self, queue: str) -> list[bytes]:
        """Return the bodies of a queue's messages that no reader has, in order."""
        with self._lock:
            return self._queues.waiting(queue)

    def unsettled(self, queue: str) -> list[bytes]:
        """Return the bodies of a queue's messages that readers have and have not answered, in order."""
        with self._lock:
            return self._queues.unsettled(queue)

    def move_queue(self, queue: str, to: FakeBroker) -> None:
        """Give a queue with its messages to another fake, as a cluster does when the owner of a queue dies.

        Flows that use the queue end, and further ones are referred to the other broker. Messages that readers have
        not answered are delivered again there.
        """
        with self._lock, to._lock:
            brokers = {**self._brokers, **to._brokers, self.endpoint: self, to.endpoint: to}
            for broker in brokers.values():
                broker._brokers = brokers
                broker._elsewhere[queue] = to
            to._elsewhere.pop(queue, None)
            to._queues.adopt(queue, self._queues.remove(queue))
            for connection in self._connections:
                flows = [flow for flow in (connection.reader, connection.writer) if flow is not None]
                if any(flow.grant.profile is self._queues and flow.grant.covers(queue) for flow in flows):
                    for flow in flows:
                        flow.grant.profile.left(flow)
                    connection.reader = connection.writer = None
                    connection.deliver(*data.response(0, data.FORBIDDEN))

    def stop(self) -> None:
        """Stop: drop all sessions, flows and state but durable queues, and fail all connections."""
        with self._lock:
            self._running = False
            for profile in self._profiles.values():
                profile.reset()
            self._leases.clear()
            for connection in self._connections:
                connection.reader = connection.writer = connection.host = None
                connection.fail(STOPPED)

    def start(self) -> None:
        """Start again after `stop`. Clients return by themselves, after their backoff."""
        with self._lock:
            self._running = True

    def restart(self) -> None:
        """Stop and start."""
        self.stop()
        self.start()

    # the transport

    def connect(
        self,
        reactor: Any,
        endpoint: str,
        receive: Callable[[list[bytes]], object],
        room: Callable[[], object],
        failed: Callable[[str], object],
    ) -> Connection:
        """Connect a client to this broker, or to another one of its cluster."""
        other = self._brokers.get(endpoint, self)
        if other is not self:
            return other.connect(reactor, endpoint, receive, room, failed)
        connection = Connection(self, reactor, receive, failed)
        with self._lock:
            self._connections[connection] = None
        return connection

    def close(self) -> None:
        """Ignore the end of a client: the fake serves others."""

    # for connections

    def handle(self, connection: Connection, frames: list[bytes]) -> None:
        """Handle a message of a client."""
        with self._lock:
            if not self._running:
                connection.fail(STOPPED)
            elif len(frames) == 3 and not frames[0]:
                self._control(connection, frames[1], frames[2])
            else:
                try:
                    command = data.parse(frames, self._tails)
                except IllFormed:
                    return
                self._command(connection, command)

    def disconnected(self, connection: Connection) -> None:
        """Handle the end of a connection."""
        with self._lock:
            if connection not in self._connections:
                return
            del self._connections[connection]
            for flow in (connection.reader, connection.writer):
                if flow is not None:
                    flow.grant.profile.left(flow)
            connection.reader = connection.writer = None

    def run(self, function: Callable[[], object]) -> None:
        """Run a delayed call."""
        with self._lock:
            function()

    # the control flow

    def _control(self, connection: Connection, command: bytes, body: bytes) -> None:
        try:
            reply = self._answer(connection, control.decode(command, body))
        except control.InvalidRequest as invalid:
            reply = invalid.reply
        except IllFormed:
            return
        except Refusal as refusal:
            reply = control.error(_STATUS[refusal.code], refusal.reason)
        connection.deliver(b"", *reply)

    def _answer(self, connection: Connection, request: control.ControlRequest) -> EncodedReply:
        if isinstance(request, control.OpenRequest):
            return self._open(connection, request)
        if connection.host is None:
            return control.error(ReplyStatus.BAD_REQUEST, "open")
        if isinstance(request, control.AuthorizeRequest):
            return self._authorize(connection, request)
        if self._users is not None and connection.user is None:
            return control.unauthorized(["PLAIN"], "authenticate first")
        if isinstance(request, control.ProfileRequest):
            profile = self._profiles.get(request.profile)
            if profile is None:
                raise Refusal(400, "there is no such profile")
            connection.profile = profile
            return control.OK
        return self._lease(connection, request)

    def _open(self, connection: Connection, request: control.OpenRequest) -> EncodedReply:
        connection.user = connection.profile = None
        if request.virtual_host != control.DEFAULT_HOST:
            connection.host = None
            raise Refusal(403, "there is no such virtual host, or not for this user")
        connection.host = request.virtual_host
        if self._users is not None:
            return control.unauthorized(["PLAIN"])
        return self._ready()

    def _authorize(self, connection: Connection, request: control.AuthorizeRequest) -> EncodedReply:
        if self._users is None:
            raise Refusal(400, "authentication is not required")
        _, user, password = [*(request.response or b"").decode(errors="replace").split("\0"), "", "", ""][:3]
        known = self._users.get(user)
        if request.mechanism != "PLAIN" or known is None or known != password:
            return control.unauthorized(["PLAIN"], "wrong user or password")
        connection.user = user
        return self._ready()

    def _ready(self) -> EncodedReply:
        return control.ready(list(self._profiles), {"window": WINDOW, "most-window": MOST_WINDOW})

    def _lease(self, connection: Connection, request: control.ReaderRequest | control.WriterRequest) -> EncodedReply:
        profile = connection.profile
        if profile is None:
            raise Refusal(400, "no profile is chosen")
        side = "reader" if isinstance(request, control.ReaderRequest) else "writer"
        modes = profile.modes[side]
        if request.confirm is not None and request.confirm not in modes:
            return control.error(ReplyStatus.NOT_IMPLEMENTED)
        for resource in request.resources:
            profile.check(side, resource)
            owner = self._elsewhere.get(resource) if profile is self._queues else None
            if owner is not None:
                place = {"owner": owner.endpoint, "endpoint": owner.endpoint}
                return control.error(ReplyStatus.MISDIRECTED, f"the queue {resource} is at another broker", place)
        confirmed = (request.confirm or modes[0]) == "full"
        wanted = request.window if isinstance(request, control.ReaderRequest) else None
        window = min(wanted or WINDOW, MOST_WINDOW)
        grant = Grant(side, profile, request.resources, confirmed, window, connection.user or "")
        profile.granted(grant)
        token = secrets.token_urlsafe(24)
        self._leases[token] = grant
        granted = window if confirmed and side == "reader" else None
        # Port 0 is the endpoint of the control flow itself.
        return control.data_lease(0, token, granted, None, {"reply": grant.reply} if grant.reply else None)

    # data flows

    def _command(self, connection: Connection, command: data.Command) -> None:
        if isinstance(command, data.Lease):
            self._use(connection, command)
        elif isinstance(command, data.Confirm | data.Reject):
            if connection.reader is not None:
                recycle = command.recycle if isinstance(command, data.Reject) else None
                connection.reader.answered(command.sequence, command.multiple, recycle)
        elif connection.reader is None and connection.writer is None:
            if isinstance(command, data.Summon | data.Dismiss | data.Content):
                connection.deliver(*data.response(command.sequence, data.FORBIDDEN))
            elif isinstance(command, data.Ping):
                connection.deliver(*data.response(0, data.FORBIDDEN))
        elif isinstance(command, data.Ping):
            connection.deliver(*data.PONG)
        elif isinstance(command, data.Summon | data.Dismiss):
            self._summon(connection, command)
        elif isinstance(command, data.Content):
            self._content(connection, command)

    def _use(self, connection: Connection, command: data.Lease) -> None:
        grant = self._leases.pop(command.lease, None)
        used = grant is not None and getattr(connection, grant.side) is not None
        if grant is None or used:
            connection.deliver(*data.response(command.sequence, data.FORBIDDEN))
            return
        if grant.side == "reader":
            connection.reader = ReaderFlow(connection, grant)
            grant.profile.joined(connection.reader)
        else:
            connection.writer = WriterFlow(connection, grant)
        connection.deliver(*data.response(command.sequence, data.OK))

    def _summon(self, connection: Connection, command: data.Summon | data.Dismiss) -> None:
        reader, resource = connection.reader, command.resource
        begins = isinstance(command, data.Summon)
        valid = reader is not None and reader.grant.covers(resource) and begins != (resource in reader.summoned)
        if valid and begins:
            try:
                reader.grant.profile.check("reader", resource)  # type: ignore[union-attr]
            except Refusal:
                valid = False
        if reader is None or not valid:
            connection.deliver(*data.response(command.sequence, data.BAD_REQUEST))
        elif begins:
            reader.summoned[resource] = None
            # The response precedes the first Content.
            connection.deliver(*data.response(command.sequence, data.OK))
            reader.grant.profile.summon(reader, resource)
        else:
            del reader.summoned[resource]
            reader.grant.profile.dismiss(reader, resource)
            connection.deliver(*data.response(command.sequence, data.OK))

    def _content(self, connection: Connection, content: data.Content) -> None:
        writer = connection.writer
        if writer is None:
            connection.deliver(*data.response(content.sequence, data.FORBIDDEN))
            return
        grant = writer.grant
        resource = content.resource or grant.profile.sole
        if not resource and len(grant.resources) == 1:
            resource = grant.resources[0]
        try:
            if not resource or not grant.covers(resource):
                raise Refusal(400, "the lease does not cover the resource")
            grant.profile.check("writer", resource)
        except Refusal:
            writer.reject(content.sequence)
        else:
            grant.profile.write(writer, resource, content)
