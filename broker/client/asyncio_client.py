"""The client under asyncio: it runs in the program's own event loop, without a thread and without a global reactor.

    async with Client("tcp://broker.example:5975", Password("worker", "secret")) as client:
        writer = await client.wait(queue.writer, client.client, ["jobs"])
        await client.wait(queue.put, writer, "jobs", b"first")

Rules:
- `Client.wait` calls a function of `broker.client.profiles` or a method of `broker.client.mtl.Client`, and awaits its
  Deferred. Cancelling the await cancels the Deferred.
- A handler that is an ``async def`` of asyncio is wrapped by `Client.handler`. Plain functions need no wrapper.
- All objects belong to the event loop, as everything in asyncio: use them from its thread only.
- The loop needs ``add_reader``: the default loop on POSIX and uvloop have it, Windows' proactor loop does not.

Twisted has a reactor on top of asyncio. Only its timers and readers are used here, so it is neither installed nor run.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import suppress
from functools import partial
from types import TracebackType
from typing import Any, TypeVar

from twisted.internet.asyncioreactor import AsyncioSelectorReactor
from twisted.internet.defer import Deferred, maybeDeferred

from broker.client import mtl
from broker.client.aside import aside
from broker.client.credentials import Credentials
from broker.client.reader import Delivery
from broker.client.settings import Keys, Settings
from broker.client.transport import Transport
from broker.wires.mtl.codec.control_messages import DEFAULT_HOST

Result = TypeVar("Result")


class Client:
    """A client of one broker at a time; its arguments are those of `broker.client.mtl.Client`.

    It must be made in a coroutine.
    """

    def __init__(
        self,
        endpoint: str | Sequence[str],
        credentials: Credentials | None = None,
        *,
        virtual_host: str = DEFAULT_HOST,
        keys: Keys | None = None,
        settings: Settings | None = None,
        transport: Transport | None = None,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._reactor: Any = AsyncioSelectorReactor(self._loop)
        self.client = mtl.Client(
            self._reactor,
            endpoint,
            credentials,
            virtual_host=virtual_host,
            keys=keys,
            settings=settings,
            in_thread=partial(aside, self._soon),
            transport=transport,
        )
        """The client itself. Deferreds that it returns are awaited by `wait`."""

    async def __aenter__(self) -> Client:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the client and all of its flows. Unanswered Contents are returned to the broker."""
        self.client.close()
        waker, self._reactor.waker = self._reactor.waker, None
        if waker is not None:
            # The reactor would keep its waker's descriptors, and the loop would go on watching them.
            self._reactor.removeReader(waker)
            waker.connectionLost(None)

    async def wait(self, function: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
        """Call a function and await its result, or that of its Deferred or of its coroutine over Deferreds."""

        def call() -> Any:
            result = function(*arguments, **named)
            return Deferred.fromCoroutine(result) if isinstance(result, Coroutine) else result

        return await maybeDeferred(call).asFuture(self._loop)

    def handler(self, function: Callable[[Delivery], Awaitable[Result]]) -> Callable[[Delivery], Deferred[Result]]:
        """Make a handler for readers and workers from an ``async def`` of asyncio."""

        def handle(delivery: Delivery) -> Deferred[Result]:
            return Deferred.fromFuture(asyncio.ensure_future(function(delivery), loop=self._loop))

        return handle

    def _soon(self, function: Callable[..., Any], *arguments: Any) -> None:
        with suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(function, *arguments)
