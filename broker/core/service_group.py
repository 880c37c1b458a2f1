"""Services of one name and protocol, in the order of finds.

Rules:
- Finds return the services in the order in which they were offered. While no health check fails, that is all.
- A service with a failing check is *judged* by the policy of the check: it comes after the others, or it is hidden.
- Panic: if more than a share of the group is judged, no service is hidden, and all judged ones come last. A failure of
  so many at once is more likely one of the network, or of the check, than of each service; a find that returns nothing
  would turn it into an outage. (Envoy's panic threshold has the same reason, and the same default.)
- The order is computed at a change and cached: a find costs the same with and without failing services.
"""

from __future__ import annotations

from broker.core.model import Policy, Service

PANIC = 0.5
"""Default share of judged services above which none is hidden."""


class ServiceGroup:
    """The services of one name and protocol.

    The tuples are caches: finds are far more frequent than changes.
    """

    __slots__ = ("_behind", "_hidden", "_hides", "_judged", "_services", "_with_restored", "found")

    def __init__(self) -> None:
        self._services: dict[int, Service] = {}
        self.found: tuple[Service, ...] | None = None
        """The services of a find; None if they have to be gathered."""
        self._with_restored: tuple[Service, ...] = ()
        """The same, followed by the restored services."""
        self._behind: tuple[Service, ...] = ()
        """The restored services from which ``_with_restored`` was built."""
        self._judged: dict[int, Policy] | None = None
        """Policy of each service with a failing check, if that is not SHOW. None saves memory in most groups."""
        self._hidden: dict[int, int] = {}
        """Each hidden service, with the number that `settle` got when it was hidden."""
        self._hides = 0
        """Number of services with the policy HIDE, hidden or not."""

    def __contains__(self, service: Service) -> bool:
        return self._services.get(id(service)) is service

    @property
    def judged(self) -> bool:
        """True if a failing check changes the order of finds: then `settle` is due after each change."""
        return self._judged is not None

    def add(self, service: Service) -> None:
        """Add a service at the end."""
        self._services[id(service)] = service
        self._changed()

    def remove(self, service: Service) -> bool:
        """Remove a service. Returns True if none is left."""
        del self._services[id(service)]
        self._hidden.pop(id(service), None)
        self.judge(service, Policy.SHOW)
        self._changed()
        return not self._services

    def replace(self, old: Service, new: Service) -> None:
        """Put ``new`` in the place of ``old``."""
        self._services = {id(each): each for each in (new if s is old else s for s in self._services.values())}
        if self._judged is not None and id(old) in self._judged:
            self._judged[id(new)] = self._judged.pop(id(old))
        if id(old) in self._hidden:
            self._hidden[id(new)] = self._hidden.pop(id(old))
        self._changed()

    def judge(self, service: Service, policy: Policy) -> None:
        """Set the policy of a service with a failing check; SHOW for any other. `settle` has to follow."""
        judged = self._judged
        if policy is not Policy.SHOW:
            if judged is None:
                judged = self._judged = {}
            before = judged.get(id(service))
            if before is not policy:
                self._hides += (policy is Policy.HIDE) - (before is Policy.HIDE)
                judged[id(service)] = policy
                self._changed()
        elif judged is not None and (before := judged.pop(id(service), None)) is not None:
            self._hides -= before is Policy.HIDE
            if not judged:
                self._judged = None
            self._changed()

    def settle(self, panic: float, number: int) -> tuple[list[Service], list[tuple[Service, int]]]:
        """Hide and show services. Returns those that are hidden from now on, and those that are shown again.

        ``panic`` is the share, 0 to 1, of judged services above which none is hidden. The ``number`` is returned with a
        service when it is shown again.
        """
        if not self._hides and not self._hidden:
            return [], []  # without this, many changes of one large group would take quadratic time
        judged = self._judged or {}
        wanted: list[int] = []
        if len(judged) <= panic * len(self._services):
            wanted = [key for key, policy in judged.items() if policy is Policy.HIDE]
        services = self._services
        new = [key for key in wanted if key not in self._hidden]
        old = self._hidden.keys() - wanted if self._hidden else ()
        if not new and not old:
            return [], []
        shown = [(services[key], self._hidden.pop(key)) for key in list(self._hidden) if key in old]
        self._hidden.update(dict.fromkeys(new, number))
        self._changed()
        return [services[key] for key in new], shown

    def judgement(self, service: Service) -> Policy:
        """Return the policy that `judge` has set; `policy_of` returns what follows from it."""
        return Policy.SHOW if self._judged is None else self._judged.get(id(service), Policy.SHOW)

    def policy_of(self, service: Service) -> Policy:
        """Return the effective place of a service in finds."""
        if self._judged is None or id(service) not in self._judged:
            return Policy.SHOW
        if id(service) in self._hidden:
            return Policy.HIDE
        return Policy.LAST

    def all(self) -> tuple[Service, ...]:
        """Return all services, the hidden ones included, in the order in which they were offered."""
        if self._judged is None:
            return self.gather() if self.found is None else self.found
        return tuple(self._services.values())

    def gather(self) -> tuple[Service, ...]:
        """Return the services of a find, and cache them."""
        judged = self._judged
        if judged is None:
            self.found = tuple(self._services.values())
        else:
            last = [each for key, each in self._services.items() if key in judged and key not in self._hidden]
            self.found = (*(each for key, each in self._services.items() if key not in judged), *last)
        return self.found

    def with_restored(self, restored: tuple[Service, ...]) -> tuple[Service, ...]:
        """Return the services of a find, followed by those of ``restored`` at other endpoints than all of the group."""
        if not self._with_restored or self._behind is not restored:
            places = {service.hostport for service in self._services.values()}
            live = self.gather() if self.found is None else self.found
            self._with_restored = (*live, *(service for service in restored if service.hostport not in places))
            self._behind = restored
        return self._with_restored

    def _changed(self) -> None:
        self.found = None
        self._with_restored = ()
