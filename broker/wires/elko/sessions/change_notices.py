"""Change notices for administrators that watch services or loads: each notice is encoded once for all watchers.

The registry is watched only while there are watchers.
"""

from __future__ import annotations

from typing import Protocol

from broker.access.registry_reading import RegistryReading
from broker.core.interfaces import IRegistry, IWait
from broker.core.model import Change, Kind, Load, Service
from broker.wires.elko.codec.blocks import encode
from broker.wires.elko.codec.broker import LoadDescs, ServiceDescs
from broker.wires.elko.sessions.descriptors import load_desc, service_desc


class NoticeRecipient(Protocol):
    """Recipient of notices; see `BrokerSession`."""

    @property
    def trusted(self) -> bool:
        """True if it may receive the credentials of services."""

    @property
    def reading(self) -> RegistryReading:
        """The entries of the registry that it is shown."""

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

    def watched_by(self, watcher: NoticeRecipient) -> bool:
        """Return True if the watcher gets notices of services or of loads."""
        return watcher in self._services or watcher in self._loads

    def _service_changed(self, change: Change) -> None:
        service = change.subject
        assert isinstance(service, Service)
        on = change.kind is Kind.OFFERED
        # At most two encodings: with the credentials, and without.
        notices: list[bytes | None] = [None, None]
        for watcher in tuple(self._services):
            if not watcher.reading.shows(service.name):
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
        for watcher in tuple(self._loads):
            if watcher.reading.shows_any(service.name for service in services):
                watcher.write(notice)
