"""The blocking client: a `broker.client.mtl.Client` in a thread of its own."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import TracebackType
from typing import Any

from broker.client import mtl
from broker.client.aside import aside
from broker.client.blocking.blocking_profiles import Caller, Offer, Reader, Watch, Worker, Writer
from broker.client.credentials import Credentials
from broker.client.errors import Closed
from broker.client.profiles import registry, service
from broker.client.reactor_thread import ReactorThread
from broker.client.settings import Keys, OnEvent, Settings
from broker.client.transport import Transport
from broker.wires.mtl.codec.client_messages import Ready
from broker.wires.mtl.codec.control_messages import DEFAULT_HOST, Confirm


class Client:
    """A client of one broker at a time; its arguments are those of `broker.client.mtl.Client`. It runs until `close`.

    A call raises TimeoutError after its ``timeout``, by default `Settings.call_timeout`. ``on_event`` callbacks run in
    the client's thread and must not block: a call raises RuntimeError there.
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
        self._thread = ReactorThread((settings or Settings()).call_timeout)
        self.client = mtl.Client(
            self._thread.reactor,
            endpoint,
            credentials,
            virtual_host=virtual_host,
            keys=keys,
            settings=settings,
            in_thread=partial(aside, self._thread.soon),
            transport=transport,
        )
        """The client in the thread. Use it only by `wait`."""
        self._thread.start()

    def __enter__(self) -> Client:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Close the client and all of its flows. Unanswered Contents are returned to the broker."""
        try:
            self._thread.call(self.client.close)
        except Closed:
            return  # closed before
        self._thread.stop()

    def wait(self, function: Callable[..., Any], *arguments: Any, timeout: float | None = None, **named: Any) -> Any:
        """Call a function in the client's thread and return its result, or that of its Deferred or coroutine."""
        return self._thread.call(function, *arguments, timeout=timeout, **named)

    def open(self, timeout: float | None = None) -> Ready:
        """Open a session. Returns the broker's profiles and limits. The call is optional."""
        ready: Ready = self._thread.limited(self.client.open, timeout=timeout)
        return ready

    def read(
        self,
        profile: str,
        resources: Sequence[str],
        *,
        confirm: Confirm | None = None,
        window: int | None = None,
        on_event: OnEvent | None = None,
        timeout: float | None = None,
    ) -> Reader:
        """Open a reader of these resources."""
        reader = Reader(self._thread)
        reader.reader = self._thread.limited(
            self.client.read, profile, resources, reader.receive, confirm=confirm, window=window, on_event=on_event,
            timeout=timeout,
        )  # fmt: skip
        self._thread.soon(lambda: reader.end_with(reader.reader.ended))
        return reader

    def write(
        self,
        profile: str,
        resources: Sequence[str],
        *,
        confirm: Confirm = "full",
        resend: bool = True,
        on_event: OnEvent | None = None,
        timeout: float | None = None,
    ) -> Writer:
        """Open a writer to these resources. By default Contents are confirmed, and sent again until they are."""
        writer = self._thread.limited(
            self.client.writer, profile, resources, confirm=confirm, resend=resend, on_event=on_event, timeout=timeout
        )
        return Writer(self._thread, writer)

    def serve(
        self,
        name: str,
        *,
        window: int | None = None,
        loads: bool = False,
        on_event: OnEvent | None = None,
        timeout: float | None = None,
    ) -> Worker:
        """Open a worker of a service. The program serves requests in its own threads: see `Worker.work`.

        ``window`` is the number of requests that this worker may have at a time. ``loads`` permits `Worker.load`.
        """
        worker = Worker(self._thread)
        worker.worker = self._thread.limited(
            service.worker, self.client, name, worker.receive, window=window, loads=loads, on_event=on_event,
            timeout=timeout,
        )  # fmt: skip
        self._thread.soon(lambda: worker.end_with(worker.worker.ended))
        return worker

    def caller(
        self, names: Sequence[str] = (), *, on_event: OnEvent | None = None, timeout: float | None = None
    ) -> Caller:
        """Open a caller of these services, or of any."""
        caller = self._thread.limited(service.caller, self.client, names, on_event=on_event, timeout=timeout)
        return Caller(self._thread, caller)

    def services(
        self, name: str | None = None, timeout: float | None = None, filter: str = ""
    ) -> list[registry.Service]:
        """Return the services that are registered now, or those with that name, to which the filter applies."""

        async def look() -> list[registry.Service]:
            view = await registry.services(self.client, name, filter=filter)
            view.close()
            return list(view.entries.values())

        services: list[registry.Service] = self._thread.limited(look, timeout=timeout)
        return services

    def watch(self, name: str | None = None, *, on_event: OnEvent | None = None, timeout: float | None = None) -> Watch:
        """Watch all services, or those with a name. Returns when the first snapshot is complete."""
        watch = Watch(self._thread)
        watch.view = self._thread.limited(
            registry.services, self.client, name, watch.changed, on_event=on_event, timeout=timeout
        )
        self._thread.soon(lambda: watch.end_with(watch.view.ended))
        return watch

    def offer(
        self,
        name: str,
        hostport: str,
        *,
        protocol: str = "tcp",
        label: str = "",
        zone: str = "",
        tags: Sequence[str] = (),
        meta: Mapping[str, str] | None = None,
        load: float | None = None,
        on_event: OnEvent | None = None,
        timeout: float | None = None,
    ) -> Offer:
        """Offer a service of the program's own. Returns when the broker has registered it."""
        offer = self._thread.limited(
            registry.offer, self.client, name, hostport, protocol=protocol, label=label, zone=zone, tags=tags,
            meta=meta, load=load, on_event=on_event, timeout=timeout,
        )  # fmt: skip
        return Offer(self._thread, offer)
