"""Conversion between values of the core and Elko descriptors, and a cache of encoded ones."""

from __future__ import annotations

from collections.abc import Iterable

from broker.core.model import Auth, Launcher, Load, Service
from broker.wires.elko.codec.blocks import encode_part
from broker.wires.elko.codec.broker import AuthDescOut, LauncherOut, LoadDescOut, ServiceDesc, ServiceDescOut
from broker.wires.elko.codec.common import AuthDesc

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
        desc.label,
        None if desc.auth is None else auth(desc.auth),
    )


def auth(desc: AuthDesc) -> Auth | None:
    """Convert credentials; None for mode ``open``, which is the same as no descriptor."""
    return None if desc.mode == "open" else Auth(desc.mode, desc.code, desc.id)


def service_desc(service: Service, trusted: bool) -> ServiceDescOut:
    """Return the descriptor of a service. Only trusted peers get ``auth``."""
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
    """Return the descriptors of several services."""
    return [service_desc(service, trusted) for service in services]


MAX_CACHED_SIZE = 2_048
"""Bytes of a cached answer: about ten services of the usual kind."""

MAX_CACHED = 4_096
"""Cached answers: several times the names that a farm requests; at most 8 MB, usually less than one."""


class DescriptorCache:
    """Cache of encoded descriptors.

    An entry is valid as long as the registry returns the identical tuple of services.
    """

    def __init__(self) -> None:
        self._kept: dict[tuple[int, bool], tuple[tuple[Service, ...], bytes]] = {}

    def descs(self, services: tuple[Service, ...], trusted: bool) -> bytes:
        """Return the encoded array of their descriptors."""
        key = (id(services), trusted)
        kept = self._kept.get(key)
        # The entry keeps its tuple alive, so that no other tuple can have the same id.
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
