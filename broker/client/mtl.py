"""A client of MTL (RFC 11), for programs with a reactor.

    client = Client(reactor, "tcp://broker.example:5975", Password("worker", "secret"))
    reader = await client.read("queue", ["jobs"], work, confirm="full")

`broker.client.profiles` says that, and more, in a line for each profile. `broker.client.blocking` is for programs
without a reactor.

Rules (those of the control flow are in `broker.client.control`, those of data flows in `broker.client.flow`, `reader`
and `writer`):
- A client has one control flow, and any number of data flows, in any profiles.
- Nothing is opened before it is needed.
- The broker may be away, or started again, at any time: the client comes back by itself.
- Whoever closes the client closes all its flows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import zmq
from twisted.internet.defer import Deferred
from twisted.internet.threads import deferToThreadPool

from broker.client.control import Control, is_secure
from broker.client.credentials import Anonymous, Credentials, External, Password
from broker.client.dealer import Dealer
from broker.client.errors import Closed
from broker.client.flow import Event, Flow, Link, Part, Told, all_of
from broker.client.reader import Delivery, Reader, Receive
from broker.client.settings import Keys, Settings
from broker.client.writer import Writer
from broker.wires.mtl.codec.client import Ready
from broker.wires.mtl.codec.control import DEFAULT_HOST, Confirm
from broker.wires.mtl.codec.data import Tails
from broker.wires.mtl.codec.table import MAX_EXTENDED

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


class Client:
    """A client of one broker, as one user in one virtual host.

    ``endpoint`` is that of the broker's control flow. ``context`` is pyzmq's, to be shared with others; without one the
    client has its own, and ends it. ``in_thread`` runs a function with arguments in a thread (a password is slow to
    prove), and gives a Deferred of the result; without it there are the reactor's own threads.
    """

    def __init__(
        self,
        reactor: Any,
        endpoint: str,
        credentials: Credentials | None = None,
        *,
        virtual_host: str = DEFAULT_HOST,
        keys: Keys | None = None,
        settings: Settings | None = None,
        context: zmq.Context[Any] | None = None,
        in_thread: Callable[..., Deferred[Any]] | None = None,
    ) -> None:
        self.endpoint = endpoint
        self.settings = settings = settings or Settings()
        self.reactor = reactor
        self._keys = keys
        self._own_context = context is None
        self._context: zmq.Context[Any] | None = context
        self._closed = False
        self._flows: dict[Flow, None] = {}
        self._opening: dict[Deferred[Ready], None] = {}
        in_thread = in_thread or self._in_thread
        secure = is_secure(endpoint, keys is not None)
        self._control = Control(
            reactor, endpoint, self._connect_to(endpoint), settings, credentials, virtual_host, secure, in_thread
        )
        self._link = Link(reactor, endpoint, self._connect_to, self._control, settings, Tails(MAX_EXTENDED))

    @property
    def credentials(self) -> Credentials | None:
        """What is shown the next time that the broker asks."""
        return self._control.credentials

    @credentials.setter
    def credentials(self, credentials: Credentials | None) -> None:
        self._control.credentials = credentials

    @property
    def sessions(self) -> int:
        """How often the broker let this client in."""
        return self._control.session

    def open(self) -> Deferred[Ready]:
        """Be let in by the broker, if that is not so already. Fires with what it offers, however long that takes.

        Fails with `broker.client.errors.MtlError` where trying again would not help. Nobody has to call this: flows are
        opened without it as well.
        """
        if self._closed:
            raise ValueError("the client is closed")
        opened = Deferred.fromCoroutine(self._control.ready())
        self._opening[opened] = None

        def done(result: Any) -> Any:
            self._opening.pop(opened, None)
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
        told: Told | None = None,
    ) -> Deferred[Reader]:
        """Begin a flow of Contents to ``receive``: see `broker.client.reader`. No resources: all of the profile's.

        Fires when it is there; it has to summon what it wants. Without ``confirm`` it is the profile's own way.
        ``told`` hears when it is lost, and when it is back.
        """
        reader = Reader(profile, resources, receive, confirm, window, self.settings)
        return self._start(reader, (reader,), told)

    async def read(self, profile: str, resources: Sequence[str], receive: Receive, **more: Any) -> Reader:
        """The same as `reader`, and summon all of these resources."""
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
        again: bool = False,
        told: Told | None = None,
    ) -> Deferred[Writer]:
        """Begin a flow of Contents to the broker: see `broker.client.writer`. No resources: all of the profile's.

        Fires when it is there. ``again``: what is not confirmed is sent again.
        """
        writer = Writer(profile, resources, confirm, again, self.reactor, self.settings)
        return self._start(writer, (writer,), told)

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
        again: bool = False,
        told: Told | None = None,
    ) -> Deferred[tuple[Reader, Writer]]:
        """Begin a flow in both directions: they come, are lost, and end together. Else as `reader` and `writer`."""
        reader = Reader(profile, read, receive, read_confirm, window, self.settings)
        writer = Writer(profile, write, write_confirm, again, self.reactor, self.settings)
        return self._start((reader, writer), (reader, writer), told)

    def close(self) -> None:
        """Close all flows, and the control flow. What is not settled fails with `Closed`."""
        if self._closed:
            return
        self._closed = True
        for flow in list(self._flows):
            flow.close()
        for opening in list(self._opening):
            opening.cancel()
        self._control.close()
        if self._own_context and self._context is not None:
            self._context.term()

    def _start(self, result: Any, parts: Sequence[Part], told: Told | None) -> Deferred[Any]:
        if self._closed:
            raise ValueError("the client is closed")
        flow = Flow(self._link, parts, told)
        self._flows[flow] = None

        def over(outcome: Any) -> Any:
            self._flows.pop(flow, None)
            return outcome

        flow.ended.addBoth(over)
        return flow.start().addCallback(lambda _: result)

    def _connect_to(self, endpoint: str) -> Callable[..., Dealer]:
        def connect(
            receive: Callable[[list[bytes]], object],
            room: Callable[[], object],
            failed: Callable[[str], object],
        ) -> Dealer:
            if self._closed:
                raise Closed("the client is closed")
            if self._context is None:
                self._context = zmq.Context()
            return Dealer(self.reactor, self._context, endpoint, self._keys, self.settings, receive, room, failed)

        return connect

    def _in_thread(self, function: Callable[..., Any], *arguments: Any) -> Deferred[Any]:
        done: Deferred[Any] = deferToThreadPool(self.reactor, self.reactor.getThreadPool(), function, *arguments)
        return done
