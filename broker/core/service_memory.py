"""Memory of registered services, as far as strangers pay for it: see `broker.core.memory_budget`.

A provider counts while it takes more than `SHORT` bytes, as a connection does: the limits of connections and of
instances bound those with one short service. Services may take a larger part of the limit of an address than messages.
"""

from __future__ import annotations

from collections.abc import Iterable

from broker.core.interfaces import SERVICES_PART, StoredMemory
from broker.core.memory_budget import SHORT
from broker.core.model import INFO_COPIES, Service

SERVICE_BYTES = 3_800
"""Bytes that a service takes, besides its texts: in the registry, in its record, in the views of the wires, and in the
table of its wire. Measured with the overhead of the allocator."""

TEXT_COPIES = 2
"""Copies of the texts of a service: as they are, and encoded."""


def service_bytes(service: Service) -> int:
    """Return the bytes that a service takes."""
    texts = len(service.name) + len(service.hostport) + len(service.label or "")
    if service.tags or service.meta:
        texts += sum(map(len, (*(service.tags or ()), *(service.meta or {}), *(service.meta or {}).values())))
    return SERVICE_BYTES + TEXT_COPIES * texts + INFO_COPIES * len(service.info or "")


class ServicePayer:
    """The services of one provider, which ``payer`` pays for."""

    __slots__ = ("_held", "_memory", "_payer")

    def __init__(self, memory: StoredMemory, payer: str) -> None:
        self._memory = memory
        self._payer = payer
        self._held = 0

    def take(self, service: Service) -> None:
        """Add a service. Raises `Refusal` LIMIT if it does not fit."""
        self._change(service_bytes(service))

    def give(self, services: Iterable[Service]) -> None:
        """Remove services."""
        self._change(-sum(map(service_bytes, services)))

    def exchange(self, old: Service, new: Service) -> None:
        """Replace a service. Raises `Refusal` LIMIT if the new one does not fit."""
        self._change(service_bytes(new) - service_bytes(old))

    def end(self) -> None:
        """Remove all services. Idempotent."""
        self._change(-self._held)

    def _change(self, size: int) -> None:
        held = self._held + size
        more = _counted(held) - _counted(self._held)
        if more > 0:
            self._memory.admit_stored(self._payer, more, SERVICES_PART)
        if more:
            self._memory.store(self._payer, more)
        self._held = held


def _counted(size: int) -> int:
    return size if size > SHORT else 0
