"""The profile "registry": who serves what, and how loaded. A view that is kept, and offers that are.

Rules:
- A view is a copy of what the broker knows, from the first snapshot on. Every change is told.
- While the flow is lost the view stays as it was (`View.synced` says so). When the next snapshot is there, it is
  compared with the view, and the differences are told: so nobody has to begin anew.
- An offer lasts until it is withdrawn, also over restarts of the broker: it is made again by each flow.
- What cannot be read is left out, and counted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable
from contextlib import suppress
from typing import Any, Generic, TypeVar

import attrs
import msgspec
from twisted.internet.defer import Deferred
from twisted.internet.task import deferLater
from twisted.logger import Logger
from twisted.python.failure import Failure

from broker.client.backoff import Backoff
from broker.client.data_flow import Event, OnEvent
from broker.client.errors import Closed, MtlError, Rejected, Unsettled
from broker.client.mtl import Client, Reader, Writer
from broker.client.reader import Delivery

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

    @property
    def key(self) -> Hashable:
        """What it is known by."""
        return self.provider, self.name, self.protocol


@attrs.frozen
class Load:
    """How loaded a provider is."""

    provider: int
    label: str
    load: float

    @property
    def key(self) -> Hashable:
        """What it is known by."""
        return self.provider


Entry = TypeVar("Entry", bound="Service | Load")

OnChange = Callable[[str, Entry], object]
"""What hears of changes: "up", "update" or "down", and the entry; that of "down" is as it was."""


class View(Generic[Entry]):
    """A copy of what the broker knows. ``entries`` are as they are now, by their keys."""

    log = Logger()

    def __init__(
        self, read: Callable[[Delivery], Entry], key: Callable[[Delivery], Hashable], on_change: OnChange[Entry] | None
    ) -> None:
        self.entries: dict[Hashable, Entry] = {}
        self.revision = 0
        """Of the registry, as far as the view knows: it rises with each change there."""
        self.counts: Counter[str] = Counter()
        self.first: Deferred[None] = Deferred()
        """Fires when the first snapshot is there."""
        self._read = read
        self._key = key
        self._on_change = on_change
        self._generation = 0
        self._fresh: dict[Hashable, Entry] | None = None
        """A snapshot that is coming."""
        self.reader: Reader

    @property
    def synced(self) -> bool:
        """Whether it is as the broker knows it, but for what is on the way."""
        return self.reader.up and self._fresh is None and self._generation == self.reader.generation

    @property
    def ended(self) -> Deferred[None]:
        """Fires when the view is closed, fails when it cannot be kept any more."""
        return self.reader.ended

    def close(self) -> None:
        """Keep it no longer."""
        self.reader.close()

    def receive(self, delivery: Delivery) -> None:
        """Something came."""
        if delivery.generation != self._generation:
            self._generation = delivery.generation
            self._fresh = {}
        self.revision = max(self.revision, delivery.number("revision"))
        event = delivery.text("event")
        if event == "synced":
            self._adopt()
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
        """The snapshot is complete."""
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
                self._tell("down", before)
        elif entry != before:
            self.entries[key] = entry
            self._tell("up" if before is None else "update", entry)

    def _tell(self, event: str, entry: Entry) -> None:
        if self._on_change is not None:
            try:
                self._on_change(event, entry)
            except Exception:
                self.log.failure("the application failed to hear of a change")


async def services(
    client: Client, name: str | None = None, on_change: OnChange[Service] | None = None, on_event: OnEvent | None = None
) -> View[Service]:
    """A view of all services, or of those of a name; there when the first snapshot is."""
    resource = "services" if name is None else f"service/{name}"
    return await _view(client, resource, View(_service, _service_key, on_change), on_event)


async def loads(
    client: Client, name: str | None = None, on_change: OnChange[Load] | None = None, on_event: OnEvent | None = None
) -> View[Load]:
    """A view of the loads of all providers, or of those of a service."""
    resource = "load" if name is None else f"load/{name}"
    return await _view(client, resource, View(_load, _provider, on_change), on_event)


async def _view(client: Client, resource: str, view: View[Entry], on_event: OnEvent | None) -> View[Entry]:
    view.reader = reader = await client.reader(PROFILE, [resource], view.receive, confirm="none", on_event=on_event)

    def ended(outcome: Any) -> Any:
        if not view.first.called:
            failed = isinstance(outcome, Failure)
            view.first.errback(outcome if failed else Closed("the view was closed before it was there"))
            return None
        return outcome

    reader.ended.addBoth(ended)
    try:
        await reader.summon(resource)
        await view.first
    except BaseException:
        view.first.addErrback(_known)
        reader.close()
        raise
    return view


def _known(failure: Failure) -> None:
    """Whoever waited for it has heard of another failure already."""


class _ServiceDesc(msgspec.Struct):
    service: str
    hostport: str = ""
    protocol: str = "tcp"
    label: str | None = None


class _LoadDesc(msgspec.Struct):
    load: float
    label: str = ""


_read_service = msgspec.json.Decoder(_ServiceDesc).decode
_read_load = msgspec.json.Decoder(_LoadDesc).decode


def _provider(delivery: Delivery) -> int:
    provider = delivery.properties.get("provider")
    if type(provider) is not int:
        raise ValueError("there is no provider")
    return provider


def _service(delivery: Delivery) -> Service:
    desc = _read_service(delivery.body)
    return Service(desc.service, desc.hostport, desc.protocol, _provider(delivery), desc.label or "")


def _service_key(delivery: Delivery) -> Hashable:
    return _service(delivery).key


def _load(delivery: Delivery) -> Load:
    desc = _read_load(delivery.body)
    return Load(_provider(delivery), desc.label, desc.load)


# offers


class Offer:
    """A service that is offered for as long as this is."""

    def __init__(self, clock: Any, pauses: Backoff, descriptor: dict[str, str], load: float | None) -> None:
        self.writer: Writer
        self.first: Deferred[None] = Deferred()
        """Fires when it was made for the first time."""
        self._clock = clock
        self._pauses = pauses
        self._resource = f"service/{descriptor['service']}"
        self._body = msgspec.json.encode(descriptor)
        self._load = load

    @property
    def ended(self) -> Deferred[None]:
        """Fires when the offer is withdrawn, fails when it cannot be made any more."""
        return self.writer.ended

    def load(self, load: float) -> Deferred[None]:
        """Tell how loaded the service is. Only where a load was told when it was offered."""
        if self._load is None:
            raise ValueError("the lease is not for loads: tell one with the offer")
        self._load = load
        return self._report()

    async def withdraw(self) -> None:
        """Offer it no longer."""
        if self.writer.up:
            # Where that does not succeed the end of the flow says the same.
            with suppress(MtlError):
                await self.writer.send(b"", self._resource, {"type": "withdraw"})
        self.writer.close()

    def make(self) -> None:
        """Make the offer, by the flow that there is now."""
        Deferred.fromCoroutine(self._make()).addErrback(self._not_made)

    def flow_changed(self, event: Event, why: str) -> None:
        """The flow is lost, or back."""
        if event is Event.BACK:
            self.make()

    async def _make(self) -> None:
        generation = self.writer.generation
        while self.writer.generation == generation:
            try:
                await self.writer.send(self._body, self._resource, {"type": "offer", "content-type": JSON})
                if self._load is not None:
                    await self._report()
            except Rejected as rejected:
                if not rejected.recycle:
                    raise
                await deferLater(self._clock, self._pauses.next())
            else:
                self._pauses.reset()
                if not self.first.called:
                    self.first.callback(None)
                return

    def _report(self) -> Deferred[None]:
        return self.writer.send(msgspec.json.encode({"load": self._load}), "load")

    def _not_made(self, failure: Failure) -> None:
        if not failure.check(Closed, Unsettled):  # the next flow will make it
            self.writer.flow.fail(failure)

    def end(self, outcome: Any) -> Any:
        """The flow is over."""
        if not self.first.called:
            failed = isinstance(outcome, Failure)
            self.first.errback(outcome if failed else Closed("the offer was withdrawn before it was made"))
            return None
        return outcome


async def offer(
    client: Client,
    name: str,
    hostport: str,
    *,
    protocol: str = "tcp",
    label: str = "",
    load: float | None = None,
    on_event: OnEvent | None = None,
) -> Offer:
    """Offer a service. There when the broker has registered it; fails with `Rejected` if it does not."""
    descriptor = {"service": name, "hostport": hostport, "protocol": protocol}
    if label:
        descriptor["label"] = label
    settings = client.settings
    offer = Offer(client.reactor, Backoff(settings.least_resend_pause, settings.most_resend_pause), descriptor, load)

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
