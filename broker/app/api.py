"""The wiring of the operators' HTTP API: its endpoints, the watchers of events, the load history and the loop's times.

Nothing here listens: the endpoints are served by the wire ``http``, and by every other listener that takes the
endpoints of `broker.wires.interface.Context`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NoReturn

import attrs
from prometheus_client.core import Metric
from twisted.python.failure import Failure

from broker.access.acts import Audit
from broker.access.principal import Access
from broker.access.registry_reading import RegistryReading
from broker.admin.api import (
    actions,
    cluster,
    control,
    events,
    health,
    history,
    identity,
    plan,
    plan_report,
    tables,
    verification,
    watch,
    why,
)
from broker.admin.api.metrics import cluster as cluster_metrics
from broker.admin.api.metrics import endpoint as metrics
from broker.admin.api.metrics import plan as plan_metrics
from broker.admin.api.metrics import process, state
from broker.admin.api.metrics import tables as table_metrics
from broker.admin.api.metrics.counters import CounterMetrics
from broker.admin.api.metrics.timings import LoopTimes
from broker.admin.api.orders import Orders
from broker.admin.api.report_tickets import ReportTickets
from broker.admin.api.watch_hub import WatchHub
from broker.admin.console import Shown
from broker.app.core import Core
from broker.core.control import IOperations
from broker.core.database import StateError
from broker.core.errors import Reason, Refusal
from broker.core.load_history import LoadHistory
from broker.core.model import Listening
from broker.core.plan import IPlan
from broker.net.scheduler_probe import SchedulerProbe
from broker.net.tls import Certificates
from broker.web.http_endpoint import Endpoint
from broker.wires.dialect import Dialect
from broker.wires.views import AnyView

LISTENER = "http"
"""The title of the listener in rights and in the audit log."""


@attrs.frozen(eq=False, kw_only=True)
class Sources:
    """The state that the API shows, and its controls.

    ``shown`` returns the state for operators, ``dialects`` the commands of the wires, ``left`` the rest of a provider's
    lease, ``listeners`` the states of the listeners, ``ready`` what is not ready and ``degraded`` what works less well,
    with reasons; ``plan`` is the capacity plan. ``lag`` has the functions that are called with each lag of the reactor.
    ``endpoints`` returns all endpoints, for the document, and ``certificates`` those of the open listeners. ``farm`` is
    the name of the cluster.
    """

    core: Core
    farm: str
    clock: Any
    started: float
    shown: Callable[[], Shown]
    dialects: Callable[[], Sequence[Dialect]]
    left: why.Left
    listeners: Callable[[], Sequence[Listening]]
    ready: health.Reasons
    degraded: health.Reasons
    control: IOperations
    plan: IPlan
    access: Access
    audit: Audit
    lag: list[Callable[[float], object]]
    endpoints: Callable[[], Sequence[Endpoint]]
    certificates: Callable[[], Sequence[Certificates]]


class OperatorsApi:
    """The API of the daemon. ``endpoints`` are its endpoints, the same values at each call."""

    def __init__(self, sources: Sources) -> None:
        self._sources = sources
        core, clock = sources.core, sources.clock
        registry = core.registry
        self.hub = WatchHub(registry, clock)
        self.history = LoadHistory(registry, clock)
        self.times = LoopTimes()
        self._probe = SchedulerProbe(clock, core.scheduler, self.times.delay)
        shown = sources.shown()
        self._counters = CounterMetrics(shown.documentation)
        orders = Orders(sources.dialects, LISTENER)
        self.endpoints: Sequence[Endpoint] = [
            *health.endpoints(sources.ready, sources.degraded, self._status, registry, registry.sizes),
            *verification.endpoints(lambda: core.damages.verify().addErrback(_unreadable)),
            *cluster.endpoints(core.members, sources.farm),
            *tables.endpoints(self._views, registry),
            *why.endpoints(registry, clock, self.history, sources.left, core.members.name),
            *history.endpoints(registry, self.history),
            *events.endpoints(registry),
            *watch.endpoints(self.hub),
            *plan.endpoints(sources.plan, registry, clock),
            *plan_report.endpoints(
                lambda: sources.plan.path, core.files.run, ReportTickets(sources.access, clock, LISTENER)
            ),
            *actions.endpoints(registry, sources.control, core.launchers, orders, sources.audit, LISTENER),
            *control.endpoints(sources.control, sources.audit, LISTENER),
            *metrics.endpoints(
                (self._counts, self.times.collect, self._tables, self._state, self._cluster, self._process), self._plan
            ),
            *identity.endpoints(sources.access, LISTENER, shown.version, sources.endpoints),
        ]

    def start(self) -> None:
        """Begin to measure and to sample."""
        self._sources.lag.append(self._measured)
        self.history.start()

    def stop(self) -> None:
        """End the watches and the load history. Idempotent."""
        self.history.stop()
        self.hub.stop()

    def counts(self) -> Mapping[str, int]:
        """Return the counters of the watches."""
        return self.hub.counts()

    def _views(self) -> Mapping[str, AnyView]:
        return self._sources.shown().views

    def _status(self) -> Mapping[str, object]:
        return self._sources.shown().status()

    def _measured(self, lag: float) -> None:
        self.times.lag(lag)
        self._probe.queue()

    # metrics

    def _counts(self) -> Iterator[Metric]:
        return self._counters.collect(self._sources.shown().counts())

    def _tables(self) -> Iterator[Metric | None]:
        return table_metrics.collect(self._views().values())

    def _state(self) -> Iterator[Metric]:
        states = [(each.name, each.ready) for each in self._sources.listeners()]
        certificates = [(each.path, each.expires) for each in self._sources.certificates()]
        return state.collect(self._status(), states, self._sources.ready(), self._sources.degraded(), certificates)

    def _cluster(self) -> Iterator[Metric]:
        return cluster_metrics.collect(self._sources.core.members)

    def _plan(self, reading: RegistryReading) -> Iterator[Metric | None]:
        return plan_metrics.collect(self._sources.plan, reading)

    def _process(self) -> Iterator[Metric]:
        return process.collect(self._sources.started)


def _unreadable(failure: Failure) -> NoReturn:
    """Refuse a verification whose store cannot be read."""
    failure.trap(StateError)
    raise Refusal(Reason.UNAVAILABLE, f"the stores cannot be read: {failure.value}")
