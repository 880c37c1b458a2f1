"""Services for blocking programs: workers serve requests in the program's threads, and callers send requests.

A handler may block for as long as it likes: the client's own thread sends the heartbeats meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from twisted.internet.defer import Deferred
from twisted.python.failure import Failure

from broker.client.blocking.contents import Content, Inbox
from broker.client.profiles import service
from broker.client.reactor_thread import ReactorThread
from broker.client.reader import Delivery
from broker.wires.mtl.codec.field_table import Value


class Request(Content):
    """A request. `reply` answers it; `reject` refuses it, and with ``recycle`` offers it to another worker."""

    def reply(self, body: bytes) -> None:
        """Send the reply."""
        self.settle(body)

    def confirm(self) -> None:
        """Confirm the request with an empty reply."""
        self.settle(b"")


class Worker(Inbox[Request]):
    """A worker of one service."""

    def __init__(self, thread: ReactorThread) -> None:
        super().__init__(thread, Request)
        self.worker: service.Worker

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
        """Report the load of this worker: requests go to the least loaded. Requires ``loads`` when it was opened.

        The details are those of `broker.client.profiles.load_report.LoadReport`.
        """

        def report() -> Deferred[None]:
            return self.worker.load(load, requests=requests, errors=errors, in_flight=in_flight, latency_ms=latency_ms)

        self._thread.call(report, timeout=timeout)

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
        timeout: float = service.DEFAULT_TIMEOUT,
    ) -> Delivery:
        """Send a request to a service and return the reply. Errors and arguments are those of `service.Caller.call`."""

        def call() -> object:
            return self.caller.call(name, body, properties, retry=retry, timeout=timeout)

        reply: Delivery = self._thread.call(call)
        return reply

    def close(self) -> None:
        """Close the caller. Pending requests raise `broker.client.errors.Closed`."""
        self._thread.soon(self.caller.close)
