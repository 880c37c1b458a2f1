"""Profile "registry": views of the services and loads of all providers, and offers of own services.

Rules:
- A view is a copy of the broker's registry from the first snapshot on. Each change is passed to the callback.
- During a loss of the flow the view keeps its entries (`View.synced` is False). The next snapshot is compared with the
  view, and the differences are passed to the callback: applications need no recovery code.
- An offer lasts until it is withdrawn, also across restarts of the broker: each flow renews it.
- Unreadable Contents are dropped and counted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Generic, TypeVar

import attrs
import msgspec
from twisted.internet.defer import Deferred
from twisted.internet.task import deferLater
from twisted.logger import Logger
from twisted.python.failure import Failure

from broker.backoff import Pauses
from broker.client.errors import Closed, MtlError, Refused, Rejected, Unsettled
from broker.client.mtl import Client, Reader, Writer
from broker.client.reader import Delivery
from broker.client.settings import Event, OnEvent
from broker.wires.mtl.codec.field_table import encode

# Report of a load: the body of the Content by which a provider or a worker reports its load.


class LoadReport(msgspec.Struct, frozen=True, omit_defaults=True):
    """A load, and optional details for capacity plans; None for those that are not reported.

    ``requests`` and ``errors`` are the numbers of requests completed, and of those that failed, since the report
    before; ``in_flight`` is the number of requests being handled now; ``latency_ms`` is the mean time, in milliseconds,
    for which one of ``requests`` was handled.
    """

    load: float
    requests: int | None = None
    errors: int | None = None
    in_flight: int | None = None
    latency_ms: float | None = None


encode_load_report = msgspec.json.Encoder().encode
"""Encodes a report."""


PROFILE = "registry"

JSON = "application/json"


@attrs.frozen
class Service:
    """A service of a provider."""

    name: str
    hostport: str
    protocol: str
    provider: int
    label: str = ""
    zone: str = ""
    tags: tuple[str, ...] = ()
    meta: Mapping[str, str] = attrs.field(factory=dict, hash=False)

    @property
    def key(self) -> Hashable:
        """Identity of the entry: a provider has one service for each name and protocol."""
        return self.provider, self.name, self.protocol


@attrs.frozen
class Load:
    """The load of a provider, with the details of its last report (`LoadReport`)."""

    provider: int
    label: str
    load: float
    requests: int | None = None
    errors: int | None = None
    in_flight: int | None = None
    latency_ms: float | None = None

    @property
    def key(self) -> Hashable:
        """Identity of the entry: the provider."""
        return self.provider


Entry = TypeVar("Entry", bound="Service | Load")

OnChange = Callable[[str, Entry], object]
"""Callback for changes: "up", "update" or "down", and the entry. For "down" it is the last state of the entry."""


class View(Generic[Entry]):
    """A copy of the broker's registry. ``entries`` are the current entries by key."""

    log = Logger()

    def __init__(
        self, read: Callable[[Delivery], Entry], key: Callable[[Delivery], Hashable], on_change: OnChange[Entry] | None
    ) -> None:
        self.entries: dict[Hashable, Entry] = {}
        self.revision = 0
        """Latest revision of the broker's registry that the view has seen: each change raises it."""
        self.counts: Counter[str] = Counter()
        self.first: Deferred[None] = Deferred()
        """Fires when the first snapshot is complete."""
        self._read = read
        self._key = key
        self._on_change = on_change
        self._generation = 0
        self._fresh: dict[Hashable, Entry] | None = None
        """The snapshot while it is incomplete, else None."""
        self.reader: Reader

    @property
    def synced(self) -> bool:
        """True if the view equals the registry, except for changes in transit."""
        return self.reader.up and self._fresh is None and self._generation == self.reader.generation

    @property
    def ended(self) -> Deferred[None]:
        """Fires when the view is closed, fails when a permanent error ends it."""
        return self.reader.ended

    def close(self) -> None:
        """Stop the view."""
        self.reader.close()

    def receive(self, delivery: Delivery) -> None:
        """Apply one Content."""
        if delivery.generation != self._generation:
            self._generation = delivery.generation
            self._fresh = {}
        self.revision = max(self.revision, delivery.number("revision"))
        event = delivery.text("event")
        if event == "synced":
            self._adopt()
            return
        if event == "error":
            if not self.first.called:
                self.first.errback(Refused(delivery.number("code"), delivery.text("reason")))
            return
        try:
            key = self._key(delivery)
            entry = None if event == "down" else self._read(delivery)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, ValueError):
            self.counts["unreadable"] += 1
            return
        if self._fresh is None:
            self._set(key, entry)
        elif entry is None:
            self._fresh.pop(key, None)
        else:
            self._fresh[key] = entry

    def _adopt(self) -> None:
        """Apply the complete snapshot."""
        fresh, self._fresh = self._fresh, None
        if fresh is not None:
            for key in [key for key in self.entries if key not in fresh]:
                self._set(key, None)
            for key, entry in fresh.items():
                self._set(key, entry)
        if not self.first.called:
            self.first.callback(None)

    def _set(self, key: Hashable, entry: Entry | None) -> None:
        before = self.entries.get(key)
        if entry is None:
            if before is not None:
                del self.entries[key]
                self._notify("down", before)
        elif entry != before:
            self.entries[key] = entry
            self._notify("up" if before is None else "update", entry)

    def _notify(self, event: str, entry: Entry) -> None:
        if self._on_change is not None:
            try:
                self._on_change(event, entry)
            except Exception:
                self.log.failure("the application's callback for changes failed")


async def services(
    client: Client,
    name: str | None = None,
    on_change: OnChange[Service] | None = None,
    on_event: OnEvent | None = None,
    filter: str = "",
) -> View[Service]:
    """Open a view of all services, or of those with a name, and to which the filter applies (docs/protocols/http.md).

    Returns it when the first snapshot is complete. Raises `Refused` for a filter that the broker cannot parse.
    """
    resource = "services" if name is None else f"service/{name}"
    body = encode({"filter": filter}) if filter else b""
    return await _view(client, resource, View(_service, _service_key, on_change), on_event, body)


async def loads(
    client: Client, name: str | None = None, on_change: OnChange[Load] | None = None, on_event: OnEvent | None = None
) -> View[Load]:
    """Open a view of the loads of all providers, or of those of a service."""
    resource = "load" if name is None else f"load/{name}"
    return await _view(client, resource, View(_load, _provider, on_change), on_event)


async def _view(
    client: Client, resource: str, view: View[Entry], on_event: OnEvent | None, body: bytes = b""
) -> View[Entry]:
    view.reader = reader = await client.reader(PROFILE, [resource], view.receive, confirm="none", on_event=on_event)

    def ended(outcome: Any) -> Any:
        if not view.first.called:
            failed = isinstance(outcome, Failure)
            view.first.errback(outcome if failed else Closed("the view was closed before the first snapshot"))
            return None
        return outcome

    reader.ended.addBoth(ended)
    try:
        await reader.summon(resource, body)
        await view.first
    except BaseException:
        view.first.addErrback(_known)
        reader.close()
        raise
    return view


def _known(failure: Failure) -> None:
    """Ignore the failure: the caller gets another one."""


class _ServiceDesc(msgspec.Struct):
    service: str
    hostport: str = ""
    protocol: str = "tcp"
    label: str | None = None
    zone: str | None = None
    tags: tuple[str, ...] | None = None
    meta: dict[str, str] | None = None


class _LoadDesc(msgspec.Struct):
    load: float
    label: str = ""
    requests: int | None = None
    errors: int | None = None
    in_flight: int | None = None
    latency_ms: float | None = None


_read_service = msgspec.json.Decoder(_ServiceDesc).decode
_read_load = msgspec.json.Decoder(_LoadDesc).decode


def _provider(delivery: Delivery) -> int:
    provider = delivery.properties.get("provider")
    if type(provider) is not int:
        raise ValueError("the property provider is missing")
    return provider


def _service(delivery: Delivery) -> Service:
    desc = _read_service(delivery.body)
    return Service(
        desc.service,
        desc.hostport,
        desc.protocol,
        _provider(delivery),
        desc.label or "",
        desc.zone or "",
        desc.tags or (),
        desc.meta or {},
    )


def _service_key(delivery: Delivery) -> Hashable:
    return _service(delivery).key


def _load(delivery: Delivery) -> Load:
    desc = _read_load(delivery.body)
    details = (desc.requests, desc.errors, desc.in_flight, desc.latency_ms)
    return Load(_provider(delivery), desc.label, desc.load, *details)


# offers


class LoadReporter:
    """Reports loads by the writer of its flow."""

    writer: Writer

    def load(
        self,
        load: float,
        *,
        requests: int | None = None,
        errors: int | None = None,
        in_flight: int | None = None,
        latency_ms: float | None = None,
    ) -> Deferred[None]:
        """Report a load, with optional details (`LoadReport`)."""
        return self.report(LoadReport(load, requests, errors, in_flight, latency_ms))

    def report(self, report: LoadReport) -> Deferred[None]:
        """Send a report."""
        return self.writer.send(encode_load_report(report), "load")


class Offer(LoadReporter):
    """An offer of a service, until it is withdrawn.

    `load` requires that it was made with a load. After a recovery of the flow the load is reported again, without
    details: its requests were reported before.
    """

    def __init__(self, clock: Any, pauses: Pauses, descriptor: dict[str, str], load: float | None) -> None:
        self.first: Deferred[None] = Deferred()
        """Fires when the offer is registered for the first time."""
        self._clock = clock
        self._pauses = pauses
        self._resource = f"service/{descriptor['service']}"
        self._body = msgspec.json.encode(descriptor)
        self._load = load

    @property
    def ended(self) -> Deferred[None]:
        """Fires when the offer is withdrawn, fails when a permanent error ends it."""
        return self.writer.ended

    def report(self, report: LoadReport) -> Deferred[None]:
        """Send a report, and remember its load for the recovery of the flow."""
        if self._load is None:
            raise ValueError("the lease does not cover loads: make the offer with a load")
        self._load = report.load
        return super().report(report)

    async def withdraw(self) -> None:
        """Withdraw the offer, also if the call is cancelled."""
        try:
            if self.writer.up:
                # The end of the flow withdraws the offer as well, so a failure here does not matter.
                with suppress(MtlError):
                    await self.writer.send(b"", self._resource, {"type": "withdraw"})
        finally:
            self.writer.close()

    def make(self) -> None:
        """Send the offer by the current flow."""
        Deferred.fromCoroutine(self._make()).addErrback(self._not_made)

    def flow_changed(self, event: Event, why: str) -> None:
        """Renew the offer after a recovery."""
        if event is Event.BACK:
            self.make()

    async def _make(self) -> None:
        generation = self.writer.generation
        while self.writer.generation == generation:
            try:
                # Reports of loads during the loss of the flow may have taken all room.
                await self.writer.room()
                await self.writer.send(self._body, self._resource, {"type": "offer", "content-type": JSON})
                if self._load is not None:
                    await self.writer.room()
                    await super().report(LoadReport(self._load))
            except Rejected as rejected:
                if not rejected.recycle:
                    raise
                await deferLater(self._clock, self._pauses.next())
            else:
                self._pauses.reset()
                if not self.first.called:
                    self.first.callback(None)
                return

    def _not_made(self, failure: Failure) -> None:
        if not failure.check(Closed, Unsettled):  # the next flow renews the offer
            self.writer.flow.fail(failure)

    def end(self, outcome: Any) -> Any:
        """Handle the end of the flow."""
        if not self.first.called:
            failed = isinstance(outcome, Failure)
            self.first.errback(outcome if failed else Closed("the offer was withdrawn before it was registered"))
            return None
        return outcome


async def offer(
    client: Client,
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
) -> Offer:
    """Offer a service. Returns when the broker has registered it; raises `Rejected` if it refuses."""
    descriptor: dict[str, Any] = {"service": name, "hostport": hostport, "protocol": protocol}
    more = {"label": label, "zone": zone, "tags": list(tags), "meta": dict(meta or {})}
    descriptor |= {name: value for name, value in more.items() if value}
    settings = client.settings
    offer = Offer(client.reactor, Pauses(settings.least_resend_pause, settings.most_resend_pause), descriptor, load)

    def both(event: Event, why: str) -> None:
        offer.flow_changed(event, why)
        if on_event is not None:
            on_event(event, why)

    resources = [f"service/{name}", *(() if load is None else ("load",))]
    offer.writer = await client.writer(PROFILE, resources, confirm="full", on_event=both)
    offer.ended.addBoth(offer.end)
    try:
        offer.make()
        await offer.first
    except BaseException:
        offer.writer.close()
        raise
    return offer
