"""Checks of the services in the registry: each service has the first rule that matches it.

Rules:
- The services of one provider that a ping checks are one question, and those of one host:port that a connection or
  request checks are another one, whatever provider offers them.
- A provider that reports its load regularly, and misses a report, is pinged at once.
- The broker's own services, and restored ones, are not checked.
- The supervision of a service begins a while after its offer, together with that of others: a first check is not due
  before that, and a client that is gone within that time costs nothing.
- When the rules change, services whose rule stays the same keep their state.

Load reports that are missed: a peer that reports its load regularly, and then does not, is checked early.

A peer is regular once it has reported `REGULAR` times; its period is the longest of the last two. No report costs more
than a few arithmetic operations: one lease for each regular peer finds those that are late.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator

from twisted.internet.interfaces import IDelayedCall, IReactorTime

from broker.access.identity import is_local
from broker.core.checks.check_rules import CheckKind, CheckSettings, Question
from broker.core.checks.check_schedule import Schedule, Target
from broker.core.interfaces import ILease, ILeases, IRegistry
from broker.core.model import BROKER, Change, Check, Kind, LoadDetails, Policy, Provider, Service
from broker.core.turns import Turns

REGULAR = 3
"""Reports after which a peer is regular: two periods."""

MISSED = 1.5
"""Periods without a report after which one is missed."""

LEAST_PERIOD, MOST_PERIOD = 1.0, 120.0
"""Seconds of a period that is observed. Bursts of reports have shorter ones; with longer ones the ordinary checks come
earlier."""


class _Reporter:
    """One peer. Its lease calls `check`."""

    __slots__ = ("_table", "before", "heard", "id", "lease", "period", "reports")

    def __init__(self, table: MissedReports, id: int, heard: float) -> None:
        self._table = table
        self.id = id
        self.heard = heard
        self.reports = 1
        self.before = self.period = 0.0
        self.lease: ILease | None = None

    def check(self, now: float) -> float | None:
        """Report a missed report, once; see `broker.core.interfaces.Leased`."""
        due = self.due
        if now < due:
            return due
        self.lease = None
        # A peer that stops reporting, such as an idle one, is regular again after `REGULAR` further reports.
        self.reports = 0
        self._table.missed(self.id)
        return None

    @property
    def regular(self) -> bool:
        """True if the last two periods are those of regular reports."""
        return min(self.before, self.period) >= LEAST_PERIOD and max(self.before, self.period) <= MOST_PERIOD

    @property
    def due(self) -> float:
        """The lifetime at which a report is missed."""
        return self.heard + MISSED * max(self.before, self.period) + self._table.slack


class MissedReports:
    """The peers that report, by their ids. ``missed`` is called with a regular one that has missed a report."""

    def __init__(self, leases: ILeases, missed: Callable[[int], None]) -> None:
        self.missed = missed
        self.slack = leases.slack_exact
        self._leases = leases
        self._reporters: dict[int, _Reporter] = {}

    def reported(self, id: int) -> None:
        """Process a report of a peer."""
        now = self._leases.moment()
        known = self._reporters.get(id)
        if known is None:
            self._reporters[id] = _Reporter(self, id, now)
            return
        known.before, known.period, known.heard = known.period, now - known.heard, now
        known.reports += 1
        if known.lease is None and known.reports >= REGULAR and known.regular:
            known.lease = self._leases.hold(known, known.due)

    def forget(self, id: int) -> None:
        """Forget a peer that has gone."""
        known = self._reporters.pop(id, None)
        if known is not None and known.lease is not None:
            known.lease.cancel()

    def stop(self) -> None:
        """Forget all peers."""
        for id in list(self._reporters):
            self.forget(id)


BEGIN_AFTER = 1.0
"""Default seconds from the offer of a service to its supervision: short beside the interval of checks, and longer than
a client stays that connects, offers a service and disconnects."""

STEP = 50
"""Services at which one step looks, half a millisecond. A farm that reconnects has thousands, and after a change of the
rules it is all of them."""


_NONE: tuple[int, Service | None] = 0, None
"""None of the services of a provider is supervised."""


class _CheckedService:
    """One service of the registry as a subject."""

    __slots__ = ("_registry", "service", "target")

    def __init__(self, registry: IRegistry, service: Service) -> None:
        self._registry = registry
        self.service = service
        self.target: Target | None = None

    def judged(self, check: Check | None, policy: Policy) -> None:
        self._registry.set_check(self.service, check, policy)

    def __str__(self) -> str:
        return self.service.name


class RegisteredChecks:
    """Checks of the registered services, kept current with the registry. ``begin_after``: see `BEGIN_AFTER`."""

    def __init__(
        self,
        registry: IRegistry,
        schedule: Schedule,
        clock: IReactorTime,
        turns: Turns,
        leases: ILeases,
        begin_after: float = BEGIN_AFTER,
    ) -> None:
        self._registry = registry
        self._schedule = schedule
        self._clock = clock
        self._turns = turns
        self._begin_after = begin_after
        # Taken from the front: a plain dict skips all that was taken before, each time.
        self._due: OrderedDict[int, tuple[int, Service | None]] = OrderedDict()
        """Providers with services that are not supervised yet, or not by the present rules, and some that have left.
        Each has the number of its services, from the first one, that are, and the last one of these."""
        self._looking: IDelayedCall | None = None
        self._providers: dict[int, dict[int, _CheckedService]] = {}
        """By provider and the `id` of the service, which is kept alive by the entry."""
        for provider in self._own():
            local = is_local(provider.address)
            for service in provider.services:
                self._add(service, self._question(service, provider.wire, local))
        self._reports = MissedReports(leases, self._missed)
        self._loads = registry.watch_loads(self._reported, own=True)
        self._watch = registry.watch(self._changed, (Kind.OFFERED, Kind.WITHDRAWN, Kind.AMENDED), own=True)

    def use(self, settings: CheckSettings) -> None:
        """Apply other settings: to the first services at once, to all others in the next turns."""
        self._schedule.use(settings)
        self._due.update(dict.fromkeys(self._registry.ids(), _NONE))
        if self._looking is not None:
            self._looking.cancel()
        self._look()

    def _own(self) -> Iterator[Provider]:
        """Yield the providers that this broker holds: another member checks its own."""
        return (provider for provider in self._registry.providers() if not provider.broker)

    def stop(self) -> None:
        """Follow the registry no longer."""
        self._watch.cancel()
        self._loads.cancel()
        self._reports.stop()
        if self._looking is not None:
            self._looking.cancel()
            self._looking = None

    def _changed(self, change: Change) -> None:
        if change.kind is Kind.OFFERED:
            self._due.setdefault(change.provider, _NONE)
            if self._looking is None:
                self._looking = self._clock.callLater(self._begin_after, self._look)
        elif change.kind is Kind.WITHDRAWN:
            if change.provider in self._due:
                self._due[change.provider] = _NONE  # the others have moved up
            if change.provider in self._providers:
                self._drop(change.provider, id(change.subject))
        else:
            assert isinstance(change.subject, Service)
            self._amended(change.subject)

    def _look(self) -> None:
        """Supervise the next services that are due, as far as they are still offered, by the present rules."""
        with self._turns:
            while self._due:
                number, done = self._due.popitem(last=False)
                self._look_at(number, *done)
                if self._turns.over():
                    break
        self._looking = self._clock.callLater(0, self._look) if self._due else None

    def _look_at(self, number: int, done: int, last: Service | None) -> None:
        """Supervise the next services of a provider, from the place ``done`` on, before which ``last`` was."""
        provider = self._registry.provider(number)
        if provider is None or provider.broker:
            return
        if last is not None and last not in provider.services[done - 1 : done]:
            done = 0  # one came in before it, as one does that another member had for a while
        checked = self._providers.get(number, {})
        services = provider.services[done : done + STEP]
        done += len(services)
        if done < len(provider.services):
            self._due[number] = done, services[-1]
            self._due.move_to_end(number, last=False)
        local = is_local(provider.address)
        for service in services:
            subject = checked.get(id(service))
            before = None if subject is None or subject.target is None else subject.target.question
            question = self._question(service, provider.wire, local)
            if before != question:
                self._drop(number, id(service))
                self._add(service, question)

    def _add(self, service: Service, question: Question | None) -> None:
        if question is None:
            return
        subject = _CheckedService(self._registry, service)
        subject.target = self._schedule.supervise(question, subject)
        if subject.target is not None:
            self._providers.setdefault(service.provider, {})[id(service)] = subject

    def _drop(self, provider: int, key: int) -> None:
        checked = self._providers.get(provider, {})
        subject = checked.pop(key, None)
        if subject is None:
            return
        if not checked:
            del self._providers[provider]
            self._reports.forget(provider)
        if subject.target is not None:
            self._schedule.release(subject.target, subject)

    def _reported(self, provider: int, load: float, details: LoadDetails | None) -> None:
        if provider in self._providers:
            self._reports.reported(provider)

    def _missed(self, provider: int) -> None:
        """Check the services of a provider that has missed a load report."""
        targets = {subject.target: None for subject in self._providers.get(provider, {}).values()}
        for target in targets:
            if target is not None and target.question.rule.kind is CheckKind.PING:
                self._schedule.hasten(target)

    def _amended(self, service: Service) -> None:
        """Take an amended service in the place of the one that it replaced."""
        provider = self._registry.provider(service.provider)
        present = {} if provider is None else {id(each): each for each in provider.services}
        checked = self._providers.get(service.provider, {})
        for key, subject in list(checked.items()):
            old = subject.service
            if key not in present and (old.name, old.protocol, old.hostport) == (
                service.name,
                service.protocol,
                service.hostport,
            ):
                # The endpoint is the same, and so are the question and the state.
                del checked[key]
                subject.service = service
                checked[id(service)] = subject
                return

    def _question(self, service: Service, wire: str, local: bool) -> Question | None:
        """Return the question for a service of a provider on that wire; None if it is not checked. ``local``: the
        provider is on this machine."""
        if service.provider == BROKER:
            return None
        rule = self._schedule.settings.rule_for(service.name, service.protocol, wire, self._schedule.asker.pings)
        if rule is None:
            return None
        if rule.kind is CheckKind.PING:
            return Question(rule, wire, service.provider)
        return Question(rule, hostport=service.hostport, local=local)
