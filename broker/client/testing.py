"""In-memory broker for the tests of programs that use the client: no daemon, no sockets, no ports.

    broker = FakeBroker()
    with broker.blocking_client() as client:
        client.write("queue", ["jobs"]).send(b"resize")
        work_on(client)
    assert broker.queued("jobs") == []

`FakeBroker` replaces the transport below the real client, and runs the broker's own MTL behind it: sessions, leases,
all profiles, queues and windows are those of the daemon. docs/clients.md lists the differences that remain.

Rules:
- The broker runs in the thread of the client that sends, under a lock. Messages to a client are scheduled in its own
  reactor, so clients in several threads, each with a reactor, may share one broker.
- The broker's timers run in the reactor of one of its clients.
- A `task.Clock` will do as a reactor: messages and timers then wait until it is advanced.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

from twisted.internet.defer import maybeDeferred
from twisted.internet.interfaces import IDelayedCall
from twisted.internet.task import Clock
from twisted.logger import Logger

from broker.client import mtl
from broker.client.credentials import Credentials

if TYPE_CHECKING:
    from broker.client import asyncio_client, blocking

ENDPOINT = "inproc://fake-broker"
"""Endpoint of clients of a fake. The transport ignores it; "inproc" counts as secure, so PLAIN is permitted."""

STOPPED = "the fake broker is stopped"


class FakeBroker:
    """A broker in memory, and the transport of its clients (`broker.client.transport.Transport`).

    ``users`` maps names to passwords; without it clients need no credentials. ``durable`` queues keep their messages
    over `stop`. Any number of clients, also in several threads, may share one fake. Several fakes with different
    ``endpoint``s are the brokers of a cluster, between which `move_queue` moves queues.
    """

    def __init__(
        self, users: Mapping[str, str] | None = None, durable: Collection[str] = (), endpoint: str = ENDPOINT
    ) -> None:
        # Here: a program that only imports the module does not load the broker.
        from broker.wires.mtl import in_memory

        self.endpoint = endpoint
        self._wire = in_memory
        self._users = users
        self._durable = tuple(durable)
        self._brokers: dict[str, FakeBroker] = {}
        """Other brokers of the cluster, by endpoint."""
        self._moved: dict[str, str] = {}
        """Endpoints of the owners of queues that are not here."""
        self._lock = threading.RLock()
        self._seconds: Callable[[], float] | None = None
        """The time of the first client."""
        self._clock = Clock()
        self._mtl: in_memory.InMemoryMtl | None = in_memory.InMemoryMtl(self._clock, users, self._moved)
        """None while the broker is stopped."""
        self._kept: list[Any] = []
        """Messages of durable queues, while it is stopped."""
        self._connections: dict[Connection, None] = {}
        self._armed: tuple[Connection, float] | None = None
        """The connection in whose reactor a timer is set, and its time."""

    # for tests

    def client(self, reactor: Any, credentials: Credentials | None = None, **more: Any) -> mtl.Client:
        """Return a client for a reactor; a `task.Clock` will do."""
        if not hasattr(reactor, "getThreadPool"):
            more.setdefault("in_thread", maybeDeferred)
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
        with self._turn():
            if self._mtl is None:
                return [row.body for row in self._kept if row.name == queue]
            return [bytes(message.body) for message in self._mtl.waiting(queue)]

    def unsettled(self, queue: str) -> list[bytes]:
        """Return the bodies of a queue's messages that readers have and have not answered, in order."""
        with self._turn():
            return [] if self._mtl is None else [bytes(message.body) for message in self._mtl.unsettled(queue)]

    def move_queue(self, queue: str, to: FakeBroker) -> None:
        """Give a queue with its messages to another fake, as a cluster does when the owner of a queue dies.

        Flows that use the queue end, and further ones are referred to the other broker. Messages that readers have
        not answered are delivered again there.
        """
        with self._turn(), to._turn():
            brokers = {**self._brokers, **to._brokers, self.endpoint: self, to.endpoint: to}
            for broker in brokers.values():
                broker._brokers = brokers
                broker._moved[queue] = to.endpoint
            del to._moved[queue]
            rows = self._take(queue)
            if to._mtl is None:
                to._kept += rows
            else:
                to._mtl.queues.restore(rows)

    def stop(self) -> None:
        """Stop: drop all sessions, flows and state but durable queues, and fail all connections."""
        with self._turn():
            if self._mtl is not None:
                self._kept = [row for queue in self._durable for row in self._mtl.rows(queue)]
                self._mtl = None
            self._clock.calls.clear()
            for connection in self._connections:
                connection.fail(STOPPED)

    def start(self) -> None:
        """Start again after `stop`. Clients return by themselves, after their backoff."""
        with self._turn():
            if self._mtl is None:
                self._mtl = self._wire.InMemoryMtl(self._clock, self._users, self._moved, self._kept)
                self._kept = []
                for connection in self._connections:
                    self._mtl.router.connect(connection.line)

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
        connection.line = self._wire.Line(connection.deliver)
        if self._seconds is None:
            self._seconds = reactor.seconds if isinstance(reactor, Clock) else time.monotonic
            self._clock.rightNow = self._seconds()
        with self._turn():
            self._connections[connection] = None
            if self._mtl is not None:
                self._mtl.router.connect(connection.line)
        return connection

    def fault(self, endpoint: str, seconds: float) -> str:
        """Return no fault: the fake is at every endpoint."""
        return ""

    def close(self) -> None:
        """Ignore the end of a client: the fake serves others."""

    # for connections

    def handle(self, connection: Connection, frames: list[bytes]) -> None:
        """Handle a message of a client."""
        with self._turn():
            if self._mtl is None:
                connection.fail(STOPPED)
            else:
                self._mtl.receive(connection.line, frames)

    def received(self, connection: Connection) -> None:
        """Handle that a client has received a message."""
        with self._turn():
            if self._mtl is not None and connection in self._connections:
                self._mtl.router.received(connection.line)

    def disconnected(self, connection: Connection) -> None:
        """Handle the end of a connection."""
        with self._turn():
            if self._connections.pop(connection, self) is None and self._mtl is not None:
                self._mtl.router.disconnect(connection.line)

    def look(self) -> None:
        """Run the timers that are due."""
        with self._turn():
            self._armed = None

    @contextmanager
    def _turn(self) -> Iterator[None]:
        """Let the time pass until now, before and after a call, and have the next timer run."""
        with ExitStack() as stack:
            stack.enter_context(self._lock)
            self._pass()
            yield
            self._pass()
            self._arm()

    def _pass(self) -> None:
        if self._seconds is not None:
            self._clock.advance(max(0.0, self._seconds() - self._clock.seconds()))

    def _arm(self) -> None:
        calls, carrier = self._clock.getDelayedCalls(), next(iter(self._connections), None)
        if not calls or carrier is None:
            self._armed = None
            return
        due = min(call.getTime() for call in calls)
        if self._armed is None or self._armed[0] is not carrier or due < self._armed[1]:
            self._armed = carrier, due
            carrier.look_after(max(0.0, due - self._clock.seconds()))

    def _take(self, queue: str) -> list[Any]:
        """Remove a queue, and return its messages."""
        if self._mtl is None:
            rows = [row for row in self._kept if row.name == queue]
            self._kept = [row for row in self._kept if row.name != queue]
            return rows
        rows = self._mtl.rows(queue)
        self._mtl.lose(queue)
        return rows


class Connection:
    """A connection of a client; its side of `broker.client.transport.FrameSocket`."""

    log = Logger()
    line: Any
    """Its end at the broker."""

    def __init__(
        self,
        broker: FakeBroker,
        reactor: Any,
        receive: Callable[[list[bytes]], object],
        failed: Callable[[str], object],
    ) -> None:
        self._broker = broker
        self._reactor = reactor
        self._receive = receive
        self._failed = failed
        self._paused = False
        self._backlog: list[list[bytes]] = []
        self._look: IDelayedCall | None = None
        self._closed = False

    # the client's side

    def send(self, frames: Sequence[bytes]) -> bool:
        """Send a message to the broker. There is always room."""
        self._broker.handle(self, [bytes(frame) for frame in frames])
        return True

    def pause(self) -> None:
        """Stop receiving."""
        self._paused = True

    def resume(self) -> None:
        """Receive again."""
        self._paused = False
        if self._backlog:
            self._soon(self._flush)

    def close(self, linger: int = 0) -> None:
        """Close the connection."""
        self._closed = True
        self._forget_look()
        self._broker.disconnected(self)

    # the broker's side, in any thread

    def deliver(self, frames: list[bytes]) -> None:
        """Send a message to the client."""
        self._soon(self._deliver, frames)

    def fail(self, why: str) -> None:
        """Report a broken connection to the client."""
        self._soon(lambda: None if self._closed else self._failed(why))

    def look_after(self, seconds: float) -> None:
        """Advance the time of the broker, and fire the timers that are due."""
        self._soon(self._set_look, seconds)

    def _set_look(self, seconds: float) -> None:
        self._forget_look()
        if not self._closed:
            self._look = self._reactor.callLater(seconds, self._run_look)

    def _run_look(self) -> None:
        self._look = None
        self._broker.look()

    def _forget_look(self) -> None:
        look, self._look = self._look, None
        if look is not None:
            look.cancel()

    def _soon(self, function: Callable[..., object], *arguments: object) -> None:
        # A Clock has no callFromThread: its tests have one thread.
        schedule = getattr(self._reactor, "callFromThread", None)
        if schedule is None:
            self._reactor.callLater(0, function, *arguments)
        else:
            schedule(function, *arguments)

    def _deliver(self, frames: list[bytes]) -> None:
        self._backlog.append(frames)
        self._flush()

    def _flush(self) -> None:
        while self._backlog and not self._paused and not self._closed:
            frames = self._backlog.pop(0)
            self._broker.received(self)
            try:
                self._receive(frames)
            except Exception:
                self.log.failure("the handler of a message from the fake broker failed")
