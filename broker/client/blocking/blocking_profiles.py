"""Contents, the registry and services for blocking programs.

Services for blocking programs: workers serve requests in the program's threads, and callers send requests.

A handler may block for any time: the client's own thread sends the heartbeats meanwhile.
"""

from __future__ import annotations

import queue
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator, Mapping
from threading import Condition
from time import monotonic
from typing import Any, Generic, TypeVar

import attrs
from twisted.internet.defer import Deferred
from twisted.python.failure import Failure

from broker.client import mtl
from broker.client.errors import Closed, NotTaken
from broker.client.profiles import registry, service
from broker.client.profiles.registry import Service
from broker.client.reactor_thread import ReactorThread
from broker.client.reader import Delivery, has_run
from broker.wires.mtl.codec.field_table import Value

# Contents for blocking programs: readers take them, and writers send them.


class Content:
    """A Content that was received. Its attributes are those of `broker.client.reader.Delivery`."""

    def __init__(self, thread: ReactorThread, delivery: Delivery, done: Deferred[Any]) -> None:
        self.body = delivery.body
        self.resource = delivery.resource
        self.missed = delivery.missed
        self.properties = delivery.properties
        self._thread = thread
        self._confirmed = not delivery.answered
        self._delivery = delivery
        self._done = done

    @property
    def stale(self) -> bool:
        """True if an answer would be void: the flow was lost, and the broker delivers the Content again."""
        return self._confirmed and self._delivery.answered

    def take(self) -> None:
        """Record that the program has the Content. Without confirmation that settles it."""
        if not self._confirmed:
            self.confirm()

    def confirm(self) -> None:
        """Confirm the Content."""
        self.settle(None)

    def reject(self, *, recycle: bool) -> None:
        """Reject the Content; with ``recycle`` the broker delivers it again."""
        self.settle(Failure(NotTaken(recycle=recycle)))

    def settle(self, result: bytes | Failure | None) -> None:
        """Settle the Content with the result of its handler. The first result counts."""
        self._thread.soon(self._settle, result)

    def _settle(self, result: bytes | Failure | None) -> None:
        # In the client's thread: Deferreds are not thread-safe.
        if self._done.called:
            return
        if isinstance(result, Failure):
            self._done.errback(result)
        else:
            self._done.callback(result)


Item = TypeVar("Item", bound=Content)


class Inbox(Generic[Item]):
    """Received Contents, in order, until the flow ends.

    Several threads may take from one inbox; each Content goes to one of them.
    """

    def __init__(self, thread: ReactorThread, make: Callable[[ReactorThread, Delivery, Deferred[Any]], Item]) -> None:
        self._thread = thread
        self._make = make
        # Unbounded here: the reader bounds the number of Contents that are not settled, and stops receiving.
        self._contents: queue.SimpleQueue[Item | Exception] = queue.SimpleQueue()

    def __iter__(self) -> Iterator[Item]:
        """Iterate over the Contents until the flow is closed. Raises the error that ends it otherwise."""
        while True:
            try:
                yield self.take()
            except Closed:
                return

    def take(self, timeout: float | None = None) -> Item:
        """Return the next Content. Raises TimeoutError, `Closed`, or the error that has ended the flow."""
        end = None if timeout is None else monotonic() + timeout
        while True:
            try:
                content = self._contents.get(timeout=None if end is None else max(0.0, end - monotonic()))
            except queue.Empty:
                raise TimeoutError(f"no Content in {timeout} s") from None
            if isinstance(content, Exception):
                self._contents.put(content)  # for the next caller
                raise content
            if not content.stale:
                content.take()
                return content
            # The flow was lost while the Content waited here. Its answer is void; it only frees the reader's slot. No
            # confirm: that of a request is a reply, which the next flow would send to a caller that waits for another.
            content.reject(recycle=True)

    # in the client's thread

    def receive(self, delivery: Delivery) -> Deferred[Any]:
        """Queue a Content. The Deferred fires when the program settles it."""
        done: Deferred[Any] = Deferred()
        self._contents.put(self._make(self._thread, delivery, done))
        return done

    def end_with(self, ended: Deferred[None]) -> None:
        """End the inbox when the flow ends."""
        ended.addBoth(self._end)

    def _end(self, outcome: Failure | None) -> None:
        error = Closed("the flow is closed") if outcome is None else outcome.value
        self._contents.put(error if isinstance(error, Exception) else Closed(str(error)))


class Reader(Inbox[Content]):
    """Reader of Contents."""

    def __init__(self, thread: ReactorThread) -> None:
        super().__init__(thread, Content)
        self.reader: mtl.Reader

    def work(self, function: Callable[[Content], object]) -> None:
        """Call a function for each Content and answer it: confirm when the function returns, reject when it raises.

        `broker.client.errors.NotTaken` chooses between redelivery and discarding; any other exception is redelivered.
        Returns when the reader is closed. Several threads may call it to process Contents concurrently.
        """
        for content in self:
            try:
                has_run(function(content))
            except Exception as error:
                content.settle(Failure(error))
            else:
                content.confirm()

    def drain(self) -> None:
        """Stop delivery. `take`, `work` and iteration end after the Contents that have arrived are settled."""
        self._thread.soon(self.reader.drain)

    def close(self) -> None:
        """Close the reader. Unanswered Contents are returned to the broker."""
        self._thread.soon(self.reader.close)


class Writer:
    """Writer of Contents."""

    def __init__(self, thread: ReactorThread, writer: mtl.Writer) -> None:
        self.writer = writer
        self._thread = thread
        self._error: BaseException | None = None

    def send(
        self,
        body: bytes,
        resource: str = "",
        properties: Mapping[str, Value] | None = None,
        timeout: float | None = None,
    ) -> None:
        """Send a Content and wait until it is confirmed. After TimeoutError it may still arrive."""
        self._thread.call(self._send, body, resource, properties, timeout=timeout)

    def post(
        self,
        body: bytes,
        resource: str = "",
        properties: Mapping[str, Value] | None = None,
        timeout: float | None = None,
    ) -> None:
        """Send a Content and wait only for room. `flush` waits for the confirms."""
        self._thread.call(self._post, body, resource, properties, timeout=timeout)

    def flush(self, timeout: float | None = None) -> None:
        """Wait until all posted Contents are settled. Raises the first error since the last flush."""
        self._thread.call(self.writer.settled, timeout=timeout)
        error, self._error = self._error, None
        if error is not None:
            raise error

    def close(self) -> None:
        """Close the writer."""
        self._thread.call(self.writer.close)

    async def _send(self, *content: Any) -> None:
        await self.writer.room()
        await self.writer.send(*content)

    async def _post(self, *content: Any) -> None:
        await self.writer.room()
        self.writer.send(*content).addErrback(self._failed)

    def _failed(self, failure: Failure) -> None:
        self._error = self._error or failure.value


# The registry for blocking programs: a watch returns changes one by one, and an offer lasts until it is withdrawn.


@attrs.frozen
class Change:
    """A change of a service: ``event`` is "up", "update" or "down". For "down" the service is as it was last."""

    event: str
    service: Service


class Watch:
    """A watch of services, which begins with an "up" for each service that is there.

    Changes that the program has not taken are merged: at most one waits for each service, so a slow program receives
    the newest state and needs a bounded amount of memory.
    """

    def __init__(self, thread: ReactorThread) -> None:
        self.view: registry.View[Service]
        self._thread = thread
        self._condition = Condition()
        # Taken from the front: a plain dict skips all that was taken before, each time.
        self._changes: OrderedDict[Hashable, Change] = OrderedDict()
        self._error: Exception | None = None

    @property
    def services(self) -> list[Service]:
        """The services that are there now."""
        services: list[Service] = self._thread.call(lambda: list(self.view.entries.values()))
        return services

    def __iter__(self) -> Iterator[Change]:
        """Iterate over the changes until the watch is closed. Raises the error that ends it otherwise."""
        while True:
            try:
                yield self.take()
            except Closed:
                return

    def take(self, timeout: float | None = None) -> Change:
        """Return the next change. Raises TimeoutError, `Closed`, or the error that has ended the watch."""
        end = None if timeout is None else monotonic() + timeout
        with self._condition:
            while not self._changes:
                if self._error is not None:
                    raise self._error
                if not self._condition.wait(None if end is None else max(0.0, end - monotonic())):
                    raise TimeoutError(f"no change in {timeout} s")
            return self._changes.popitem(last=False)[1]

    def close(self) -> None:
        """Close the watch."""
        self._thread.soon(self.view.close)

    # in the client's thread

    def changed(self, event: str, service: Service) -> None:
        """Queue a change, merged with the one that waits for the same service."""
        with self._condition:
            waiting = self._changes.get(service.key)
            if waiting is not None and waiting.event == "up":
                # The program does not know the service yet.
                if event == "down":
                    del self._changes[service.key]
                    return
                event = "up"
            elif waiting is not None and waiting.event == "down" and event == "up":
                event = "update"
            self._changes[service.key] = Change(event, service)
            self._condition.notify()

    def end_with(self, ended: Deferred[None]) -> None:
        """End the watch when the flow ends."""
        ended.addBoth(self._end)

    def _end(self, outcome: Failure | None) -> None:
        error = Closed("the watch is closed") if outcome is None else outcome.value
        with self._condition:
            self._error = error if isinstance(error, Exception) else Closed(str(error))
            self._condition.notify_all()


class LoadReporter:
    """Reports loads of an offer or of a worker."""

    _thread: ReactorThread

    @property
    def _reporter(self) -> registry.LoadReporter:
        """The reporter in the client's thread."""
        raise NotImplementedError

    def load(
        self,
        load: float,
        timeout: float | None = None,
        *,
        requests: int | None = None,
        errors: int | None = None,
        in_flight: int | None = None,
        latency_ms: float | None = None,
    ) -> None:
        """Report a load, with optional details (`broker.client.profiles.registry.LoadReport`)."""
        report = registry.LoadReport(load, requests, errors, in_flight, latency_ms)
        self._thread.limited(lambda: self._reporter.report(report), timeout=timeout)


class Offer(LoadReporter):
    """An offer of a service, until it is withdrawn or the client is closed. `load` requires that it has a load."""

    def __init__(self, thread: ReactorThread, offer: registry.Offer) -> None:
        self.offer = offer
        self._thread = thread

    @property
    def _reporter(self) -> registry.LoadReporter:
        return self.offer

    def withdraw(self, timeout: float | None = None) -> None:
        """Withdraw the offer."""
        self._thread.limited(self.offer.withdraw, timeout=timeout)


class Request(Content):
    """A request. `reply` answers it; `reject` refuses it, and with ``recycle`` offers it to another worker."""

    def reply(self, body: bytes) -> None:
        """Send the reply."""
        self.settle(body)

    def confirm(self) -> None:
        """Confirm the request with an empty reply."""
        self.settle(b"")


class Worker(Inbox[Request], LoadReporter):
    """A worker of one service: requests go to the least loaded. `load` requires ``loads`` when it was opened."""

    def __init__(self, thread: ReactorThread) -> None:
        super().__init__(thread, Request)
        self.worker: service.Worker

    @property
    def _reporter(self) -> registry.LoadReporter:
        return self.worker

    def work(self, function: Callable[[Request], bytes]) -> None:
        """Call a function for each request, and reply with the bytes that it returns.

        If it raises, the request fails with code 500. `broker.client.errors.NotTaken` with ``recycle`` offers it to
        another worker, where the caller allowed a retry. Returns when the worker is closed. Several threads may call
        it to serve requests concurrently.
        """
        for request in self:
            try:
                body = function(request)
            except Exception as error:
                request.settle(Failure(error))
            else:
                request.reply(body)

    def drain(self) -> None:
        """Accept no further requests. `take`, `work` and iteration end after the current ones are settled."""
        self._thread.soon(self.worker.drain)

    def close(self) -> None:
        """Close the worker. Unfinished requests are returned to the broker."""
        self._thread.soon(self.worker.close)


class Caller:
    """Sends requests to services. Any number of threads may use it."""

    def __init__(self, thread: ReactorThread, caller: service.Caller) -> None:
        self.caller = caller
        self._thread = thread

    def call(
        self,
        name: str,
        body: bytes,
        properties: Mapping[str, Value] | None = None,
        *,
        retry: bool = False,
        wait: bool = False,
        timeout: float | None = None,
    ) -> Delivery:
        """Send a request to a service and return the reply. Errors and arguments are those of `service.Caller.call`,
        whose default time limit applies where `Settings.call_timeout` is None."""
        if timeout is None:
            timeout = service.DEFAULT_TIMEOUT if self._thread.limit is None else self._thread.limit

        def call() -> object:
            return self.caller.call(name, body, properties, retry=retry, wait=wait, timeout=timeout)

        reply: Delivery = self._thread.call(call)
        return reply

    def close(self) -> None:
        """Close the caller. Pending requests raise `broker.client.errors.Closed`."""
        self._thread.soon(self.caller.close)
