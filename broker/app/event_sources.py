"""Sources of events for notifications: services of the registry, health checks, listeners, stores, and the plan.

Rules:
- A service name is *gone* when its last service has left, for the time ``settle``: a server that reconnects in between
  is no event. It is *back* when one is offered again after that. Restored services count: finds return them.
- The broker's own services are no events: listeners have their own.
- A full listener is reported when it begins to be full, and again after it had room for a while.
- A service is short of capacity once for each plan that finds it so and follows one that did not; for the first plan
  after a start, too.
- Names that are gone are remembered, up to `MAX_GONE`; a name that is forgotten has no "back".

Events of the cluster for notifications: brokers that have gone, and those that are back.

Rules:
- A member is *gone* when it leaves or when its lease ends: an orderly stop is an event, too. ``draining`` is true if
  the broker had sent its peers away before.
- It is *back* when a member of that name joins after that. A new member is no event.
- Names that are gone are remembered, up to `MAX_GONE_MEMBERS`; a name that is forgotten has no "back".
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Set
from itertools import islice

import attrs
from twisted.internet.defer import CancelledError, Deferred
from twisted.internet.interfaces import IDelayedCall, IReactorTime
from twisted.python.failure import Failure

from broker.core.cluster.cluster_interfaces import IMembers, Member
from broker.core.damage import Damage
from broker.core.gone_names import GoneNames
from broker.core.interfaces import INotifications, IRegistry, IWait
from broker.core.model import BROKER, Change, Check, CheckState, Kind, Listening, NotReady, Service
from broker.core.plan import PlanChange
from broker.core.registered_services import Restored
from broker.core.turns import PIECE, Turns

MAX_GONE = 10_000
"""Names that are gone, or about to be: as many as a farm has. The oldest is forgotten."""

EVERY = 5.0
"""Seconds between two checks of stores and full listeners. Both stay in their state for longer."""

KINDS = (Kind.OFFERED, Kind.WITHDRAWN, Kind.CHECKED)


_BAD: dict[str, str] = {CheckState.DOUBTFUL: "service-doubtful", CheckState.FAILING: "service-failing"}
"""The events of states of a check."""


class EventSources:
    """The sources. ``check_of`` returns the health check of a service; ``listeners`` the states of all listeners,
    ``degradations`` the stores that cannot be written, ``full`` the listeners without a free place, ``cluster`` what is
    missing of the cluster. Many events at once are background work of ``turns``."""

    def __init__(
        self,
        notifications: INotifications,
        registry: IRegistry,
        restored: Restored,
        clock: IReactorTime,
        turns: Turns,
        check_of: Callable[[Service], Check | None],
        listeners: Callable[[], Iterable[Listening]],
        degradations: Callable[[], Iterable[NotReady]],
        full: Callable[[], Iterable[NotReady]],
        cluster: Callable[[], Iterable[NotReady]] = tuple,
    ) -> None:
        self._notifications = notifications
        self._registry = registry
        self._restored = restored
        self._clock = clock
        self._turns = turns
        self._check_of = check_of
        self._listeners = listeners
        self._looks = (
            _Looks(degradations, "store-degraded", "store-restored"),
            _Looks(full, "listener-full", "listener-has-room"),
            _Looks(cluster, "cluster-degraded", "cluster-restored"),
        )
        self._settle_seconds = 0.0
        self._leaving: OrderedDict[str, tuple[float, str]] = OrderedDict()
        """Names without services, with the time at which they left, and the reason."""
        self._gone = GoneNames(MAX_GONE)
        self._failing: dict[tuple[int, str, str], str] = {}
        """The state of services that were reported as failing or doubtful, and not as passing since."""
        self._closed: dict[str, str] = {}
        self._watch: IWait | None = None
        self._settling: IDelayedCall | None = None
        self._reporting: Deferred[None] | None = None
        self._looking: IDelayedCall | None = None

    def use(self, settle: float) -> None:
        """Set the seconds for which a service must be gone, also of services that have left already."""
        self._settle_seconds = settle
        if self._settling is not None:
            self._settling.cancel()
            self._settle()

    def start(self) -> None:
        """Begin to watch."""
        self._watch = self._registry.watch(self._changed, KINDS)
        self._restored.ended = self._restored_ended
        self.listeners_changed()
        self._look()

    def stop(self) -> None:
        """End. To be called before the stop closes connections, whose services are not gone."""
        if self._watch is not None:
            self._watch.cancel()
            self._watch = None
            self._restored.ended = None
        for timer in (self._settling, self._looking):
            if timer is not None and timer.active():
                timer.cancel()
        self._settling = self._looking = None
        if self._reporting is not None:
            self._reporting.cancel()

    def listeners_changed(self) -> None:
        """Report listeners whose state has changed."""
        for each in self._listeners():
            before = self._closed.get(each.name)
            if each.reason is not None and each.reason != before:
                self._closed[each.name] = each.reason
                self._notifications.event("listener-not-ready", each.name, {"reason": each.reason, "where": each.where})
            elif each.reason is None and before is not None:
                del self._closed[each.name]
                self._notifications.event("listener-ready", each.name, {"where": each.where})

    def _changed(self, change: Change) -> None:
        service = change.subject
        if change.provider == BROKER:
            return
        assert isinstance(service, Service)
        if change.kind is Kind.OFFERED:
            name = service.name
            if name in self._leaving:
                del self._leaving[name]
            if self._gone.discard(name):
                self._notifications.event("service-back", name, _about(service))
        elif change.kind is Kind.WITHDRAWN:
            if self._failing:
                self._failing.pop(_key(service), None)
            if self._has_none(service.name):
                self._leave(service.name, change.why)
        else:
            self._checked(service, change.why)

    def _restored_ended(self, names: Iterable[str], why: str) -> None:
        # The end of the grace period is one call for all names of a farm.
        for name in islice(filter(self._has_none, names), MAX_GONE):
            self._leave(name, why)

    def _has_none(self, name: str) -> bool:
        """Return True if a name has neither live services nor restored ones."""
        return not self._registry.protocols(name) and next(self._registry.services_named(name), None) is None

    def _checked(self, service: Service, state: str) -> None:
        key = _key(service)
        before = self._failing.get(key)
        if state in _BAD:
            if state != before:
                self._failing[key] = state
                check = self._check_of(service)
                reason = "" if check is None else check.reason
                self._notifications.event(_BAD[state], service.name, {**_about(service), "reason": reason})
        elif before is not None and (state == CheckState.PASSING or before == CheckState.DOUBTFUL):
            # A service that no rule checks is untested again at the end of a doubt.
            del self._failing[key]
            self._notifications.event("service-passing", service.name, _about(service))
        elif before is not None:
            # A reload has replaced its rule: the next outcome is news, whether it fails again or passes.
            self._failing[key] = state

    def _leave(self, name: str, why: str) -> None:
        self._leaving[name] = (self._clock.seconds(), why)
        if len(self._leaving) > MAX_GONE:
            self._leaving.popitem(last=False)
        if self._settling is None and self._reporting is None:
            self._settling = self._clock.callLater(self._settle_seconds, self._settle)

    def _settle(self) -> None:
        """Report the names that have been gone for long enough."""
        self._settling = None
        self._reporting = self._turns.run(self._report())
        self._reporting.addBoth(self._reported)

    def _report(self) -> Iterator[None]:
        """Report in steps, in order of the time at which the names left."""
        while self._leaving:
            for _ in range(min(PIECE, len(self._leaving))):
                name, (left, why) = next(iter(self._leaving.items()))
                if self._clock.seconds() - left < self._settle_seconds:
                    return
                del self._leaving[name]
                self._gone.add(name, left)
                self._notifications.event("service-gone", name, {"why": why})
            yield

    def _reported(self, result: Failure | None) -> Failure | None:
        self._reporting = None
        if isinstance(result, Failure):
            return None if result.check(CancelledError) else result
        if self._leaving:
            left, _ = next(iter(self._leaving.values()))
            # The clock of another reactor is the time of day, and may be set back: then the wait begins again.
            wait = self._settle_seconds - (self._clock.seconds() - left)
            self._settling = self._clock.callLater(max(0.0, min(wait, self._settle_seconds)), self._settle)
        return None

    def _look(self) -> None:
        self._looking = self._clock.callLater(EVERY, self._look)
        for each in self._looks:
            each.look(self._notifications)


@attrs.define
class _Looks:
    """Obstacles that are polled, and the events of their start and end."""

    obstacles: Callable[[], Iterable[NotReady]]
    begins: str
    ends: str
    _before: Set[str] = frozenset()

    def look(self, notifications: INotifications) -> None:
        """Report the changes since the last call."""
        now = {each.what: each.reason for each in self.obstacles()}
        for what, reason in now.items():
            if what not in self._before:
                notifications.event(self.begins, what, {"reason": reason})
        for what in sorted(self._before - now.keys()):
            notifications.event(self.ends, what)
        self._before = now.keys()


def report_plan(notifications: INotifications, change: PlanChange) -> None:
    """Report a service that a new plan finds to be short of capacity. Other changes of the plan cause no event."""
    service = change.service
    if change.is_alarm:
        about: dict[str, object] = {
            "verdict": service.verdict.value,
            "has": service.has,
            "needs": service.need,
            "add": service.add,
        }
        if service.short_at is not None:
            about["short_at"] = service.short_at
        notifications.event("short-of-capacity", service.name, about)


def report_damage(notifications: INotifications, damage: Damage) -> None:
    """Report a finding of damaged state."""
    notifications.event(
        "state-damaged", damage.what, {"reason": damage.reason, "rows": damage.rows, "files": damage.files}
    )


def _key(service: Service) -> tuple[int, str, str]:
    return service.provider, service.name, service.protocol


def _about(service: Service) -> dict[str, object]:
    return {"provider": service.provider, "hostport": service.hostport, "protocol": service.protocol}


MAX_GONE_MEMBERS = 1_000
"""Names that are gone: more than a cluster has brokers. The oldest is forgotten."""


class MemberEvents:
    """The source. It watches from `start` on; this broker itself is no subject."""

    def __init__(self, notifications: INotifications, members: IMembers) -> None:
        self._notifications = notifications
        self._members = members
        self._present: dict[str, Member] = {}
        self._gone: OrderedDict[str, None] = OrderedDict()
        self._watch: IWait | None = None

    def start(self) -> None:
        """Begin to watch."""
        self._present = {each.name: each for each in self._members.members()}
        self._watch = self._members.watch_members(self._changed)

    def stop(self) -> None:
        """End. No-op if it does not watch."""
        if self._watch is not None:
            self._watch.cancel()
            self._watch = None

    def _changed(self, name: str, member: Member | None) -> None:
        if name == self._members.name:
            return
        if member is None:
            last = self._present.pop(name, None)
            if last is None:
                return
            self._gone[name] = None
            if len(self._gone) > MAX_GONE_MEMBERS:
                self._gone.popitem(last=False)
            self._notifications.event("member-gone", name, _about_member(last))
        else:
            self._present[name] = member
            if self._gone.pop(name, self) is None:
                self._notifications.event("member-back", name, _about_member(member))


def _about_member(member: Member) -> dict[str, object]:
    return {"version": member.version, "draining": member.draining}
