"""Services of one name and protocol in a cluster: all members order them alike."""

from __future__ import annotations

from collections.abc import Sequence

from broker.core.model import Service
from broker.core.service_group import ServiceGroup


class OrderedGroup(ServiceGroup):
    """Services of one name and protocol, ordered by provider id, and then by the order of offering."""

    __slots__ = ("_sorted",)

    def __init__(self) -> None:
        super().__init__()
        self._sorted = True

    def all(self) -> tuple[Service, ...]:
        """Return all services in that order."""
        self._sort()
        return super().all()

    def gather(self) -> tuple[Service, ...]:
        """Return the services of a find, and cache them."""
        self._sort()
        return super().gather()

    def arrange(self, services: Sequence[Service]) -> None:
        """Put services of one provider, which are in the group, into this order."""
        for service in services:
            self._services[id(service)] = self._services.pop(id(service))
        self._changed()

    def _sort(self) -> None:
        # At a read and not at each change: a group of thousands is filled one by one.
        if not self._sorted:
            # Stable: the services of one provider keep their order.
            self._services = dict(sorted(self._services.items(), key=lambda each: each[1].provider))
            self._sorted = True

    def _changed(self) -> None:
        self._sorted = False
        super()._changed()
