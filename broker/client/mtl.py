"""MTL client (RFC 11) for programs that run a Twisted reactor.

    client = Client(reactor, "tcp://broker.example:5975", Password("worker", "secret"))
    reader = await client.read("queue", ["jobs"], work, confirm="full")

`broker.client.profiles` has one function for each task of a profile. `broker.client.blocking` is for programs without
an event loop, `broker.client.asyncio_client` for asyncio.

Rules (those of the control flow are in `broker.client.client_control_flow`, those of data flows in
`broker.client.client_data_flow`, `reader` and `writer`):
- A client has one control flow and any number of data flows, in any profiles.
- Connections are opened on demand.
- A queue may belong to another broker of a cluster: the client goes there by itself, with the same credentials and
  keys, and has one more control flow for each such broker.
- The client reconnects automatically whenever the broker is away or restarts; with several brokers, to the next one.
- Closing the client closes all of its flows.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any

import zmq
from twisted.internet.defer import CancelledError, Deferred
from twisted.internet.threads import deferToThreadPool
from twisted.python.failure import Failure

from broker.client.client_control_flow import Connect, Control, is_secure
from broker.client.client_data_flow import Direction, Flow, Link, all_of
from broker.client.credentials import Anonymous, Credentials, External, Password
from broker.client.dealer import ZeroMQ
from broker.client.errors import Closed, Lost
from broker.client.reader import Delivery, Reader, Receive
from broker.client.settings import Event, Keys, OnEvent, Settings
from broker.client.transport import Endpoints, FrameSocket, Transport
from broker.client.writer import Writer
from broker.wires.mtl.codec.client_messages import Ready
from broker.wires.mtl.codec.control_messages import DEFAULT_HOST, Confirm
from broker.wires.mtl.codec.data_messages import Tails
from broker.wires.mtl.codec.field_table import MAX_EXTENDED

__all__ = [
    "Anonymous",
    "Client",
    "Credentials",
    "Delivery",
    "Event",
    "External",
    "Keys",
    "Password",
    "Reader",
    "Settings",
    "Writer",
]


MAX_BROKERS = 100
"""Other brokers with which a client keeps a control flow: more than a cluster has at a time."""


class Client:
    """A client of one broker at a time, as one user in one virtual host.

    ``endpoint`` is the endpoint of the broker's control flow, or several, of brokers of a cluster. A host name with
    several addresses stands for all of them. With ``keys``, all brokers have the same public key.

    ``context`` is a shared pyzmq context; without one the client creates its own and terminates it. ``in_thread`` runs
    a function with arguments in a thread (SCRAM is slow) and returns a Deferred of the result; the default is the
    reactor's thread pool. ``transport`` replaces the ZeroMQ sockets: tests pass a
    `broker.client.testing.FakeBroker`.
    """

    def __init__(
        self,
        reactor: Any,
        endpoint: str | Sequence[str],
        credentials: Credentials | None = None,
        *,
        virtual_host: str = DEFAULT_HOST,
        keys: Keys | None = None,
        settings: Settings | None = None,
        context: zmq.Context[Any] | None = None,
        in_thread: Callable[..., Deferred[Any]] | None = None,
        transport: Transport | None = None,
    ) -> None:
        self.settings = settings = settings or Settings()
        self.reactor = reactor
        self.transport = transport or ZeroMQ(keys, settings, context)
        self._closed = False
        self._flows: dict[Flow, None] = {}
        self._opening: dict[Deferred[Ready], None] = {}
        in_thread = in_thread or self._in_thread

        def control(endpoint: str | Sequence[str], patient: bool) -> Control:
            endpoints = Endpoints(endpoint, in_thread)
            secure = all(is_secure(each, keys is not None) for each in endpoints.given)
            return Control(
                reactor, endpoints, self._connect_to, self.transport.fault, settings, self._credentials, virtual_host,
                secure, in_thread, patient,
            )  # fmt: skip

        self._credentials = credentials
        self._make_control = control
        self._control = control(endpoint, True)
        self._others: OrderedDict[str, Control] = OrderedDict()
        """Control flows with other brokers, by endpoint, the least recently used one first."""
        self._link = Link(reactor, self._connect_to, self._control, self._control_at, settings, Tails(MAX_EXTENDED))

    @property
    def endpoint(self) -> str:
        """The endpoint in use, or the next one to be tried."""
        return self._control.endpoint

    @property
    def credentials(self) -> Credentials | None:
        """Credentials for the next authentication."""
        return self._credentials

    @credentials.setter
    def credentials(self, credentials: Credentials | None) -> None:
        self._credentials = credentials
        for control in (self._control, *self._others.values()):
            control.credentials = credentials

    @property
    def sessions(self) -> int:
        """Number of sessions that the broker has opened for this client."""
        return self._control.session

    def open(self) -> Deferred[Ready]:
        """Open a session unless there is one. Fires with the broker's profiles and limits, however long that takes.

        Fails with `broker.client.errors.MtlError` for a permanent failure. The call is optional: flows open the session
        themselves.
        """
        if self._closed:
            raise ValueError("the client is closed")
        opened = Deferred.fromCoroutine(self._control.ready())
        self._opening[opened] = None

        def done(result: Any) -> Any:
            self._opening.pop(opened, None)
            if self._closed and isinstance(result, Failure) and result.check(CancelledError):
                return Failure(Closed("the client is closed"))
            return result

        return opened.addBoth(done)

    def reader(
        self,
        profile: str,
        resources: Sequence[str],
        receive: Receive,
        *,
        confirm: Confirm | None = None,
        window: int | None = None,
        on_event: OnEvent | None = None,
    ) -> Deferred[Reader]:
        """Open a flow of Contents to the handler ``receive``: see `broker.client.reader`. Without
        resources it reads all of the profile's.

        Fires when the flow is established; the caller then summons resources. Without ``confirm`` the profile's default
        mode applies. ``on_event`` is called on loss and recovery.
        """
        reader = Reader(profile, resources, receive, confirm, window, self.settings)
        return self._start(reader, (reader,), on_event)

    async def read(self, profile: str, resources: Sequence[str], receive: Receive, **more: Any) -> Reader:
        """Open a reader and summon all of these resources. The arguments are those of `reader`."""
        reader = await self.reader(profile, resources, receive, **more)
        try:
            await all_of([reader.summon(resource) for resource in resources])
        except BaseException:
            reader.close()
            raise
        return reader

    def writer(
        self,
        profile: str,
        resources: Sequence[str],
        *,
        confirm: Confirm = "none",
        resend: bool = False,
        on_event: OnEvent | None = None,
    ) -> Deferred[Writer]:
        """Open a flow of Contents to the broker: see `broker.client.writer`. Without resources it writes to all of
        the profile's.

        Fires when the flow is established. ``resend``: send unconfirmed Contents again.
        """
        writer = Writer(profile, resources, confirm, resend, self.reactor, self.settings)
        return self._start(writer, (writer,), on_event)

    def both(
        self,
        profile: str,
        read: Sequence[str],
        write: Sequence[str],
        receive: Receive,
        *,
        read_confirm: Confirm | None = None,
        window: int | None = None,
        write_confirm: Confirm = "none",
        resend: bool = False,
        on_event: OnEvent | None = None,
    ) -> Deferred[tuple[Reader, Writer]]:
        """Open a flow in both directions, which are established, lost and closed together. The arguments are those of
        `reader` and `writer`."""
        reader = Reader(profile, read, receive, read_confirm, window, self.settings)
        writer = Writer(profile, write, write_confirm, resend, self.reactor, self.settings)
        return self._start((reader, writer), (reader, writer), on_event)

    def close(self) -> None:
        """Close all flows and the control flow. Contents that are not settled fail with `Closed`."""
        if self._closed:
            return
        self._closed = True
        for flow in list(self._flows):
            flow.close()
        for opening in list(self._opening):
            opening.cancel()
        for control in (self._control, *self._others.values()):
            control.close()
        self.transport.close()

    def _start(self, result: Any, parts: Sequence[Direction], on_event: OnEvent | None) -> Deferred[Any]:
        if self._closed:
            raise ValueError("the client is closed")
        flow = Flow(self._link, parts, on_event)
        self._flows[flow] = None

        def over(outcome: Any) -> Any:
            self._flows.pop(flow, None)
            return outcome

        flow.ended.addBoth(over)
        return flow.start().addCallback(lambda _: result)

    def _control_at(self, endpoint: str) -> Control:
        """Return the control flow with another broker, to which a broker referred. Raises `Lost`."""
        if endpoint == self.endpoint:
            return self._control
        control = self._others.get(endpoint)
        if control is None:
            if len(self._others) >= MAX_BROKERS:
                # Brokers come and go with their endpoints, and data flows do not need the control flow any more.
                unused = next((each for each, other in self._others.items() if not other.busy), None)
                if unused is None:
                    raise Lost(f"the brokers refer to more than {MAX_BROKERS} others")
                self._others.pop(unused).close()
            control = self._others[endpoint] = self._make_control(endpoint, False)
        self._others.move_to_end(endpoint)
        return control

    def _connect_to(self, endpoint: str) -> Connect:
        def connect(
            receive: Callable[[list[bytes]], object],
            room: Callable[[], object],
            failed: Callable[[str], object],
        ) -> FrameSocket:
            if self._closed:
                raise Closed("the client is closed")
            return self.transport.connect(self.reactor, endpoint, receive, room, failed)

        return connect

    def _in_thread(self, function: Callable[..., Any], *arguments: Any) -> Deferred[Any]:
        done: Deferred[Any] = deferToThreadPool(self.reactor, self.reactor.getThreadPool(), function, *arguments)
        return done
