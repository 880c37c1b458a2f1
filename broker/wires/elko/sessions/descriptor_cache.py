"""Elko descriptors of values of the core: their conversion, a cache of encoded ones, and change notices.

Administrators that watch services or loads are sent change notices, each encoded once for all of them. The registry is
watched only while there are watchers.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from broker.access.rights import EVERY_ENTRY, RegistryReading
from broker.core.interfaces import IRegistry, IWait
from broker.core.model import DESCRIPTIONS, Auth, Change, Kind, Launcher, Load, Service, description
from broker.wires.elko.codec.blocks import AuthDesc, encode, encode_part
from broker.wires.elko.codec.broker_messages import (
    AuthDescOut,
    LauncherOut,
    LoadDescOut,
    LoadDescs,
    ServiceDesc,
    ServiceDescOut,
    ServiceDescs,
)

DEFAULT_PROTOCOL = "tcp"
"""The protocol of a descriptor or find without ``protocol``."""


def offered(desc: ServiceDesc, provider: int) -> Service | None:
    """Return the service that a peer offers by a descriptor; None if it has no hostport or describes a failure."""
    if desc.hostport is None or desc.failure is not None:
        return None
    return Service(
        desc.service,
        desc.hostport,
        provider,
        DEFAULT_PROTOCOL if desc.protocol is None else desc.protocol,
        auth=None if desc.auth is None else auth(desc.auth),
        **{name: description(name, getattr(desc, name)) for name in DESCRIPTIONS},
    )


def auth(desc: AuthDesc) -> Auth | None:
    """Convert credentials; None for mode ``open``, which is equivalent to no descriptor."""
    return None if desc.mode == "open" else Auth(desc.mode, desc.code, desc.id)


def service_desc(service: Service, trusted: bool) -> ServiceDescOut:
    """Return the descriptor of a service. Only trusted peers get ``auth``."""
    shown = service.auth if trusted else None
    return ServiceDescOut(
        service.name,
        service.hostport,
        service.protocol,
        auth=None if shown is None else AuthDescOut(shown.mode, shown.id, shown.code),
        provider=service.provider,
        restored=service.restored,
        **service.descriptions,
    )


def service_descs(services: Iterable[Service], trusted: bool) -> list[ServiceDescOut]:
    """Return the descriptors of several services."""
    return [service_desc(service, trusted) for service in services]


MAX_CACHED_SIZE = 2_048
"""Bytes of a cached answer: about ten services of the usual kind."""

MAX_CACHED = 4_096
"""Cached answers: several times the names that a farm requests; at most 8 MB, usually less than one."""


class DescriptorCache:
    """Cache of encoded descriptors: the last answer for each name and protocol.

    An entry is valid as long as the registry returns the identical tuple of services.
    """

    def __init__(self) -> None:
        self._kept: dict[tuple[str, str, bool], tuple[tuple[Service, ...], bytes]] = {}

    def descs(self, services: tuple[Service, ...], trusted: bool) -> bytes:
        """Return the encoded array of the descriptors of services of one name and protocol: one or more."""
        first = services[0]
        # By name, so that an answer takes the place of the former one: services that left would stay in memory.
        key = (first.name, first.protocol, trusted)
        kept = self._kept.get(key)
        if kept is not None and kept[0] is services:
            return kept[1]
        encoded = encode_part(service_descs(services, trusted))
        if len(encoded) <= MAX_CACHED_SIZE:
            # A full cache is cleared as a whole: the names in use are encoded again within a few finds.
            if len(self._kept) >= MAX_CACHED:
                self._kept.clear()
            self._kept[key] = (services, encoded)
        return encoded


def failure_desc(name: str, failure: str) -> ServiceDescOut:
    """Return the descriptor of a find that found no service, with the reason."""
    return ServiceDescOut(name, failure=failure)


def load_desc(load: Load) -> LoadDescOut:
    """Return the descriptor of a load."""
    return LoadDescOut(load.label, load.load, load.provider)


def launcher_desc(launcher: Launcher) -> LauncherOut:
    """Return a row of the launcher table."""
    return LauncherOut(launcher.name, launcher.script, launcher.on, launcher.initial)


class NoticeRecipient(Protocol):
    """Recipient of notices; see `BrokerSession`."""

    reading: RegistryReading
    """The entries of the registry that it is shown."""

    @property
    def trusted(self) -> bool:
        """True if it may receive the credentials of services."""

    def write(self, data: bytes) -> None:
        """Send one encoded message."""


class ChangeNotices:
    """The watchers of services and of loads."""

    def __init__(self, registry: IRegistry) -> None:
        self._registry = registry
        self._services: dict[NoticeRecipient, None] = {}
        self._loads: dict[NoticeRecipient, None] = {}
        self._service_watch: IWait | None = None
        self._load_watch: IWait | None = None

    def watch_services(self, watcher: NoticeRecipient, on: bool) -> None:
        """Start or stop the notices of services for a watcher."""
        if on:
            self._services[watcher] = None
            if self._service_watch is None:
                self._service_watch = self._registry.watch(self._service_changed, (Kind.OFFERED, Kind.WITHDRAWN))
        elif self._services.pop(watcher, self) is None and not self._services and self._service_watch is not None:
            self._service_watch.cancel()
            self._service_watch = None

    def watch_loads(self, watcher: NoticeRecipient, on: bool) -> None:
        """Start or stop the notices of loads for a watcher."""
        if on:
            self._loads[watcher] = None
            if self._load_watch is None:
                self._load_watch = self._registry.watch(self._load_changed, (Kind.LOAD,))
        elif self._loads.pop(watcher, self) is None and not self._loads and self._load_watch is not None:
            self._load_watch.cancel()
            self._load_watch = None

    @property
    def service_watchers(self) -> int:
        """The number of watchers of services: each gets a notice of every change."""
        return len(self._services)

    def watched_by(self, watcher: NoticeRecipient) -> bool:
        """Return True if the watcher gets notices of services or of loads."""
        return watcher in self._services or watcher in self._loads

    def _service_changed(self, change: Change) -> None:
        service = change.subject
        assert isinstance(service, Service)
        on = change.kind is Kind.OFFERED
        # At most two encodings: with the credentials, and without.
        notices: list[bytes | None] = [None, None]
        reading, shown = EVERY_ENTRY, True
        for watcher in tuple(self._services):
            if watcher.reading is not reading:  # most watchers have the same one
                reading = watcher.reading
                shown = reading.shows(service.name)
            if not shown:
                continue
            trusted = watcher.trusted and service.auth is not None
            notice = notices[trusted]
            if notice is None:
                notice = notices[trusted] = encode(ServiceDescs(desc=[service_desc(service, trusted)], on=on))
            watcher.write(notice)

    def _load_changed(self, change: Change) -> None:
        assert isinstance(change.subject, Load)
        notice = encode(LoadDescs(desc=[load_desc(change.subject)]))
        services = self._registry.services_of(change.provider)
        reading, shown = EVERY_ENTRY, True
        for watcher in tuple(self._loads):
            if watcher.reading is not reading:
                reading = watcher.reading
                shown = reading.shows_any(service.name for service in services)
            if shown:
                watcher.write(notice)
