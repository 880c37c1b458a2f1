"""The wiring of the operators' HTTP API: its endpoints, the watchers of events, the load history and the loop's times.

Nothing here listens: the endpoints are served by the wire ``http``, and by every other listener that takes the
endpoints of `broker.wires.interface.WireContext`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NoReturn

import attrs
from prometheus_client.core import Metric
from twisted.python.failure import Failure

from broker.access.principal import Access, Audit
from broker.access.rights import RegistryReading
from broker.app.core_parts import Core
from broker.app.process import machine
from broker.core.database import StateError
from broker.core.errors import Reason, Refusal
from broker.core.load_history import LoadHistory
from broker.core.model import Listening
from broker.core.operator_interfaces import IOperations
from broker.core.plan import IPlan
from broker.net.scheduler import SchedulerProbe
from broker.net.tls import Certificates
from broker.operate import (
    action_endpoints,
    daemon_endpoints,
    event_endpoints,
    metrics,
    plan_endpoints,
    table_endpoints,
    topic_endpoints,
    why,
)
from broker.operate.action_endpoints import Actions
from broker.operate.collected_log import CollectedLog, log_endpoints
from broker.operate.console import Shown
from broker.operate.event_endpoints import WatchHub
from broker.operate.metrics import CounterMetrics, LoopTimes
from broker.operate.plan_endpoints import ReportTickets
from broker.rest.http_endpoint import Endpoint
from broker.wires.tables import AnyView

LISTENER = "http"
"""The title of the listener in rights and in the audit log."""


@attrs.frozen(eq=False, kw_only=True)
class Sources:
    """The state that the API shows, and its controls.

    ``shown`` returns the state for operators, ``left`` the rest of a provider's lease, ``listeners`` the states of the
    listeners, ``ready`` what is not ready and ``degraded`` what works less well, with reasons; ``plan`` is the capacity
    plan. ``lag`` has the functions that are called with each lag of the reactor. ``endpoints`` returns all endpoints,
    for the document, and ``certificates`` those of the open listeners. ``farm`` is the name of the cluster.
    """

    core: Core
    farm: str
    state: str
    clock: Any
    started: float
    shown: Callable[[], Shown]
    left: why.Left
    listeners: Callable[[], Sequence[Listening]]
    ready: daemon_endpoints.Reasons
    degraded: daemon_endpoints.Reasons
    control: IOperations
    plan: IPlan
    access: Access
    audit: Audit
    collected: CollectedLog
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
        self.streams = topic_endpoints.TopicStreams(core.topics, clock)
        self.history = LoadHistory(registry, clock, core.turns)
        self.times = LoopTimes()
        self._probe = SchedulerProbe(clock, core.scheduler, self.times.delay)
        shown = sources.shown()
        self._counters = CounterMetrics(shown.documentation)
        self.endpoints: Sequence[Endpoint] = [
            *daemon_endpoints.health_endpoints(sources.ready, sources.degraded, self._status, registry, registry.sizes),
            *daemon_endpoints.machine_endpoints(lambda: core.files.run(machine, sources.state)),
            *table_endpoints.verification_endpoints(lambda: core.damages.verify().addErrback(_unreadable)),
            *table_endpoints.cluster_endpoints(core.cluster.members, sources.farm, sources.degraded),
            *table_endpoints.table_endpoints(self._views, registry),
            *why.endpoints(registry, clock, self.history, sources.left, core.cluster.members.name),
            *table_endpoints.history_endpoints(registry, self.history),
            *event_endpoints.event_endpoints(registry),
            *event_endpoints.watch_endpoints(self.hub),
            *topic_endpoints.topic_endpoints(self.streams),
            *log_endpoints(sources.collected),
            *plan_endpoints.plan_endpoints(sources.plan, registry, clock),
            *plan_endpoints.report_endpoints(
                lambda: sources.plan.path, core.files.run, ReportTickets(sources.access, clock, LISTENER)
            ),
            *action_endpoints.action_endpoints(Actions(sources.control, sources.audit, LISTENER)),
            *metrics.endpoints(
                (self._counts, self.times.collect, self._tables, self._state, self._cluster, self._process), self._plan
            ),
            *daemon_endpoints.identity_endpoints(
                sources.access, LISTENER, shown.version, sources.endpoints, core.cluster.members
            ),
        ]

    def start(self) -> None:
        """Begin to measure and to sample."""
        self._sources.lag.append(self._measured)
        self.history.start()

    def stop(self) -> None:
        """End the watches and the load history. Idempotent."""
        self.history.stop()
        self.hub.stop()
        self.streams.stop()

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
        return metrics.table_metrics(self._views().values())

    def _state(self) -> Iterator[Metric]:
        states = [(each.name, each.ready) for each in self._sources.listeners()]
        certificates = [(each.path, each.expires) for each in self._sources.certificates()]
        return metrics.state_metrics(
            self._status(), states, self._sources.ready(), self._sources.degraded(), certificates
        )

    def _cluster(self) -> Iterator[Metric]:
        return metrics.cluster_metrics(self._sources.core.cluster.members)

    def _plan(self, reading: RegistryReading) -> Iterator[Metric | None]:
        return metrics.plan_metrics(self._sources.plan, reading)

    def _process(self) -> Iterator[Metric]:
        return metrics.process_metrics(self._sources.started)


def _unreadable(failure: Failure) -> NoReturn:
    """Refuse a verification whose store cannot be read."""
    failure.trap(StateError)
    raise Refusal(Reason.UNAVAILABLE, f"the stores cannot be read: {failure.value}")
