"""The client of MTL for programs without a reactor: everything waits until it is done.

    with Client("tcp://broker.example:5975", Password("worker", "secret")) as client:
        for work in client.read("queue", ["jobs"], confirm="full"):
            do(work.body)
            work.confirm()

Rules:
- The client has a thread of its own, which answers Pings and comes back after restarts of the broker, while the program
  does something else. Any threads of the program may use it.
- A Content of a reader waits until the program takes it; where Contents are confirmed, until the program has answered
  it. When too many wait, no further ones are received.
- What takes longer than ``timeout`` raises TimeoutError. Without one it waits for as long as it takes: brokers come
  back.
- `Client.wait` makes all that `broker.client.mtl` and `broker.client.profiles` have usable here.
"""

from __future__ import annotations

import queue
from collections.abc import Callable, Iterator, Mapping, Sequence
from time import monotonic
from types import TracebackType
from typing import Any

from twisted.internet.defer import Deferred, execute
from twisted.python.failure import Failure

from broker.client import mtl
from broker.client.credentials import Credentials
from broker.client.errors import Closed, NotTaken
from broker.client.flow import Told
from broker.client.loop import Loop
from broker.client.profiles import registry
from broker.client.reader import Delivery
from broker.client.settings import Keys, Settings
from broker.wires.mtl.codec.client import Ready
from broker.wires.mtl.codec.control import DEFAULT_HOST, Confirm
from broker.wires.mtl.codec.table import Value


class Client:
    """A client of one broker: see `broker.client.mtl.Client`. It is there from the beginning on, until `close`."""

    def __init__(
        self,
        endpoint: str,
        credentials: Credentials | None = None,
        *,
        virtual_host: str = DEFAULT_HOST,
        keys: Keys | None = None,
        settings: Settings | None = None,
    ) -> None:
        self._loop = Loop()
        self.client = mtl.Client(
            self._loop.reactor,
            endpoint,
            credentials,
            virtual_host=virtual_host,
            keys=keys,
            settings=settings,
            in_thread=execute,  # it has a thread of its own
        )
        """The client that does it. It must be used in its own thread only, by `wait`."""
        self._loop.start()

    def __enter__(self) -> Client:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Close everything. What is not answered is given back."""
        try:
            self._loop.call(self.client.close)
        except Closed:
            return  # it was closed before
        self._loop.stop()

    def wait(self, function: Callable[..., Any], *arguments: Any, timeout: float | None = None, **named: Any) -> Any:
        """Call a function in the client's thread, and wait for what it, its Deferred or its coroutine gives."""
        return self._loop.call(function, *arguments, timeout=timeout, **named)

    def open(self, timeout: float | None = None) -> Ready:
        """Be let in by the broker. Returns what it offers."""
        ready: Ready = self.wait(self.client.open, timeout=timeout)
        return ready

    def read(
        self,
        profile: str,
        resources: Sequence[str],
        *,
        confirm: Confirm | None = None,
        window: int | None = None,
        told: Told | None = None,
        timeout: float | None = None,
    ) -> Reader:
        """Have the Contents of these resources come. ``told`` is called in the client's thread."""
        reader = Reader(self._loop)
        reader.reader = self.wait(
            self.client.read, profile, resources, reader.receive, confirm=confirm, window=window, told=told,
            timeout=timeout,
        )  # fmt: skip
        self._loop.soon(reader.begin)
        return reader

    def write(
        self,
        profile: str,
        resources: Sequence[str],
        *,
        confirm: Confirm = "full",
        again: bool = True,
        told: Told | None = None,
        timeout: float | None = None,
    ) -> Writer:
        """Send Contents to these resources. By default they are confirmed, and sent until they are."""
        writer = self.wait(
            self.client.writer, profile, resources, confirm=confirm, again=again, told=told, timeout=timeout
        )
        return Writer(self._loop, writer)

    def services(self, name: str | None = None, timeout: float | None = None) -> list[registry.Service]:
        """Who serves what now, or who serves that."""

        async def look() -> list[registry.Service]:
            view = await registry.services(self.client, name)
            view.close()
            return list(view.entries.values())

        services: list[registry.Service] = self.wait(look, timeout=timeout)
        return services


class Content:
    """A Content that came. Its attributes are those of `broker.client.reader.Delivery`."""

    def __init__(self, loop: Loop, delivery: Delivery, done: Deferred[None]) -> None:
        self.body = delivery.body
        self.resource = delivery.resource
        self.missed = delivery.missed
        self.properties = delivery.properties
        self._loop = loop
        self._confirmed = not delivery.answered
        self._delivery = delivery
        self._done = done

    @property
    def stale(self) -> bool:
        """Whether an answer would come too late: the flow was lost, and the broker gives it to somebody again."""
        return self._confirmed and self._delivery.answered

    def take(self) -> None:
        """The program has it. Where Contents are not confirmed, that is all."""
        if not self._confirmed:
            self.confirm()

    def confirm(self) -> None:
        """It is safe."""
        self._loop.soon(self.finish, None)

    def reject(self, *, recycle: bool) -> None:
        """It is not taken; with ``recycle`` it is to be sent again."""
        self._loop.soon(self.finish, Failure(NotTaken(recycle=recycle)))

    def finish(self, failure: Failure | None) -> None:
        """In the client's thread: the program is done with it."""
        if self._done.called:
            return
        if failure is None:
            self._done.callback(None)
        else:
            self._done.errback(failure)


class Reader:
    """Contents that come, one after the other."""

    def __init__(self, loop: Loop) -> None:
        self.reader: mtl.Reader
        self._loop = loop
        self._contents: queue.SimpleQueue[Content | Exception] = queue.SimpleQueue()

    def __iter__(self) -> Iterator[Content]:
        """All that come, until it is closed. Raises what else ends it."""
        while True:
            try:
                yield self.take()
            except Closed:
                return

    def take(self, timeout: float | None = None) -> Content:
        """The next Content. Raises TimeoutError, `Closed`, or what else has ended the flow."""
        end = None if timeout is None else monotonic() + timeout
        while True:
            try:
                content = self._contents.get(timeout=None if end is None else max(0.0, end - monotonic()))
            except queue.Empty:
                raise TimeoutError(f"nothing came in {timeout} s") from None
            if isinstance(content, Exception):
                self._contents.put(content)  # for whoever asks next
                raise content
            if not content.stale:
                content.take()
                return content
            content.confirm()

    def work(self, function: Callable[[Content], object]) -> None:
        """Give all that come to a function, and answer for it: a Content is confirmed when it returns.

        If it raises, the Content is rejected: with recycle, unless it is `broker.client.errors.NotTaken`, which says.
        Returns when the reader is closed.
        """
        for content in self:
            try:
                function(content)
            except Exception as error:
                self._loop.soon(content.finish, Failure(error))
            else:
                content.confirm()

    def close(self) -> None:
        """End it. What is not answered is given back."""
        self._loop.soon(self.reader.close)

    # in the client's thread

    def receive(self, delivery: Delivery) -> Deferred[None]:
        """A Content came."""
        done: Deferred[None] = Deferred()
        self._contents.put(Content(self._loop, delivery, done))
        return done

    def begin(self) -> None:
        """It is there; hear of its end."""
        self.reader.ended.addBoth(self._end)

    def _end(self, outcome: Failure | None) -> None:
        error = Closed("the flow is closed") if outcome is None else outcome.value
        self._contents.put(error if isinstance(error, Exception) else Closed(str(error)))


class Writer:
    """Sends Contents."""

    def __init__(self, loop: Loop, writer: mtl.Writer) -> None:
        self.writer = writer
        self._loop = loop
        self._error: BaseException | None = None

    def send(
        self,
        body: bytes,
        resource: str = "",
        properties: Mapping[str, Value] | None = None,
        timeout: float | None = None,
    ) -> None:
        """Send a Content, and wait until it is confirmed. It may arrive even if this raises TimeoutError."""
        self._loop.call(self._send, body, resource, properties, timeout=timeout)

    def post(
        self,
        body: bytes,
        resource: str = "",
        properties: Mapping[str, Value] | None = None,
        timeout: float | None = None,
    ) -> None:
        """Send a Content, and wait only until there is room for it. `flush` says what became of all."""
        self._loop.call(self._post, body, resource, properties, timeout=timeout)

    def flush(self, timeout: float | None = None) -> None:
        """Wait until everything is settled that was posted. Raises the first error since the last flush."""
        self._loop.call(self.writer.settled, timeout=timeout)
        error, self._error = self._error, None
        if error is not None:
            raise error

    def close(self) -> None:
        """End it."""
        self._loop.call(self.writer.close)

    async def _send(self, *content: Any) -> None:
        await self.writer.room()
        await self.writer.send(*content)

    async def _post(self, *content: Any) -> None:
        await self.writer.room()
        self.writer.send(*content).addErrback(self._failed)

    def _failed(self, failure: Failure) -> None:
        self._error = self._error or failure.value
