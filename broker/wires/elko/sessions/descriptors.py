"""The core's values as Elko descriptors."""

from __future__ import annotations

from collections.abc import Iterable

from broker.core.model import Auth, Launcher, Load, Service
from broker.wires.elko.codec.blocks import encode_part
from broker.wires.elko.codec.broker import AuthDescOut, LauncherOut, LoadDescOut, ServiceDesc, ServiceDescOut
from broker.wires.elko.codec.common import AuthDesc

DEFAULT_PROTOCOL = "tcp"
"""What a descriptor or a find without ``protocol`` means."""


def offered(desc: ServiceDesc, provider: int) -> Service | None:
    """The service that a peer offers by a descriptor; None if it has no hostport or tells of a failure."""
    if desc.hostport is None or desc.failure is not None:
        return None
    return Service(
        desc.service,
        desc.hostport,
        provider,
        DEFAULT_PROTOCOL if desc.protocol is None else desc.protocol,
        desc.label,
        None if desc.auth is None else auth(desc.auth),
    )


def auth(desc: AuthDesc) -> Auth | None:
    """The core's value; None for mode ``open``, which is the same as no descriptor."""
    return None if desc.mode == "open" else Auth(desc.mode, desc.code, desc.id)


def service_desc(service: Service, trusted: bool) -> ServiceDescOut:
    """A descriptor of a service; ``auth`` is shown to trusted peers only."""
    shown = service.auth if trusted else None
    return ServiceDescOut(
        service.name,
        service.hostport,
        service.protocol,
        service.label,
        None if shown is None else AuthDescOut(shown.mode, shown.id, shown.code),
        None,
        service.provider,
        service.restored,
    )


def service_descs(services: Iterable[Service], trusted: bool) -> list[ServiceDescOut]:
    """The same for several."""
    return [service_desc(service, trusted) for service in services]


MAX_CACHED_SIZE = 2_048
"""Bytes of an answer that is kept encoded: about ten services of the usual kind."""

MAX_CACHED = 4_096
"""Answers kept: the names that a farm asks for, some times over; at most 8 MB, usually less than one."""


class DescriptorCache:
    """Descriptors of services, kept encoded for as long as the registry gives the very same tuple of them."""

    def __init__(self) -> None:
        self._kept: dict[tuple[int, bool], tuple[tuple[Service, ...], bytes]] = {}

    def descs(self, services: tuple[Service, ...], trusted: bool) -> bytes:
        """The array of their descriptors."""
        key = (id(services), trusted)
        kept = self._kept.get(key)
        if kept is not None and kept[0] is services:
            return kept[1]
        encoded = encode_part(service_descs(services, trusted))
        if len(encoded) <= MAX_CACHED_SIZE:
            if len(self._kept) >= MAX_CACHED:
                self._kept.clear()
            self._kept[key] = (services, encoded)
        return encoded


def failure_desc(name: str, failure: str) -> ServiceDescOut:
    """The descriptor that says why no service can be told."""
    return ServiceDescOut(name, failure=failure)


def load_desc(load: Load) -> LoadDescOut:
    """A descriptor of a load."""
    return LoadDescOut(load.label, load.load, load.provider)


def launcher_desc(launcher: Launcher) -> LauncherOut:
    """A row of the launcher table."""
    return LauncherOut(launcher.name, launcher.script, launcher.on, launcher.initial)
