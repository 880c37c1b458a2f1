"""The registry for blocking programs: a watch returns changes one by one, and an offer lasts until it is withdrawn."""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from threading import Condition
from time import monotonic

import attrs
from twisted.internet.defer import Deferred
from twisted.python.failure import Failure

from broker.client.errors import Closed
from broker.client.profiles import registry
from broker.client.profiles.registry import Service
from broker.client.reactor_thread import ReactorThread


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
        self._changes: dict[Hashable, Change] = {}
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
            return self._changes.pop(next(iter(self._changes)))

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


class Offer:
    """An offer of a service, until it is withdrawn or the client is closed."""

    def __init__(self, thread: ReactorThread, offer: registry.Offer) -> None:
        self.offer = offer
        self._thread = thread

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
        """Report the load of the provider, as `broker.client.profiles.registry.Offer.load` does."""

        def report() -> Deferred[None]:
            return self.offer.load(load, requests=requests, errors=errors, in_flight=in_flight, latency_ms=latency_ms)

        self._thread.call(report, timeout=timeout)

    def withdraw(self, timeout: float | None = None) -> None:
        """Withdraw the offer."""
        self._thread.call(self.offer.withdraw, timeout=timeout)
