"""Metrics in the text format of Prometheus."""

from __future__ import annotations

import os
import re
import resource
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from heapq import nsmallest
from itertools import islice, takewhile
from operator import itemgetter

import attrs
from prometheus_client import (
    CONTENT_TYPE_PLAIN_0_0_4,
    CollectorRegistry,
    GCCollector,
    Histogram,
    PlatformCollector,
    disable_created_metrics,
)
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import generate_latest

from broker.access.rights import EVERY_ENTRY, RegistryReading
from broker.core.cluster.cluster_interfaces import IMembers
from broker.core.model import NotReady
from broker.core.plan import IPlan
from broker.rest.http_endpoint import Call, Endpoint
from broker.rest.messages import Response
from broker.wires.tables import ITEMS, ROWS, AnyView, Column, Counter, Documentation

# The endpoint ``/metrics``, rendered family by family in turns of the reactor by `prometheus_client`.

Collect = Callable[[], Iterable[Metric | None]]
"""Yields metrics, and None for a unit of work without a result."""


class _One:
    """One metric in the form of a registry."""

    def __init__(self, metric: Metric) -> None:
        self._metric = metric

    def collect(self) -> Iterable[Metric]:
        return [self._metric]


def endpoints(
    collectors: Sequence[Collect], of_services: Callable[[RegistryReading], Iterable[Metric | None]]
) -> list[Endpoint]:
    """Return the endpoint of all metrics. ``of_services`` yields those with samples of services, as a user may find."""

    def metrics(call: Call) -> Response:
        headers = [("Cache-Control", "no-store")]
        named = partial(of_services, RegistryReading.of(call.grants))
        return Response(body=render([*collectors, named]), content_type=CONTENT_TYPE_PLAIN_0_0_4, headers=headers)

    return [
        Endpoint(
            "GET",
            "/metrics",
            "get_metrics",
            "Returns all metrics in the text format of Prometheus.",
            metrics,
            tag="health",
        )
    ]


def render(collectors: Sequence[Collect]) -> Iterator[bytes]:
    """Yield the text of each metric, and empty pieces for work without a result."""
    for collect in collectors:
        for metric in collect():
            yield b"" if metric is None else generate_latest(_One(metric))


# Metrics of counters: the mapping from a counter's name to a metric and its labels.
#
# Rules, for a counter ``NAME.REASON`` (`broker.wires.tables`):
# - ``NAME`` is ``WIRE`` and the name of its subject, joined by an underscore. The subjects of `SHARED` mean the same on
#   every wire, so that they are one metric with the wire as a label: ``mc0_dropped`` is
#   ``elkobroker_dropped_total{wire="mc0"}``. Any other name stays as it is: ``mtl_contents`` is
#   ``elkobroker_mtl_contents_total``.
# - The reason is a label if the family is documented, and a part of the name if the counter or gauge itself is.
# - Values of labels come from the code, never from a peer.

PREFIX = "elkobroker_"

SHARED = frozenset({"accept", "connections", "datagrams", "debug", "dropped", "refused", "sessions", "unsent"})
"""Subjects of counters that several wires have, with the same meaning."""

BASE_UNITS = ("bytes", "seconds")
"""Units that end the name of a metric, by the conventions of Prometheus."""

_OTHER = re.compile("[^a-zA-Z0-9_]")


@attrs.frozen
class Family:
    """A metric: its name with the suffix, its help, its labels in order, and True for a gauge."""

    name: str
    help: str
    labels: tuple[str, ...] = ()
    gauge: bool = False

    def metric(self) -> Metric:
        """Return the metric without samples."""
        kind = GaugeMetricFamily if self.gauge else CounterMetricFamily
        return kind(self.name, self.help, labels=self.labels)

    def of(self, *samples: tuple[Sequence[str], float]) -> Metric:
        """Return the metric with samples: the values of the labels, and the value."""
        metric = self.metric()
        for labels, value in samples:
            metric.add_metric(labels, value)  # type: ignore[attr-defined]
        return metric


def _gauge(name: str, help: str, *labels: str) -> Family:
    return Family(f"{PREFIX}{name}", help, labels, gauge=True)


class CounterMetrics:
    """The metrics of all documented counters."""

    def __init__(self, documentation: Documentation) -> None:
        self._documentation = documentation
        helps: dict[str, dict[str, list[str]]] = {}
        self._families: dict[str, Family] = {}
        for counter in documentation:
            for family in self._all_of(counter):
                self._families[family.name] = family
                wire = self._subject(counter.name.partition(".")[0])[0]
                helps.setdefault(family.name, {}).setdefault(counter.help, []).append(wire)
        for name, texts in helps.items():
            self._families[name] = attrs.evolve(self._families[name], help=_joined(texts))

    def families(self) -> Sequence[Family]:
        """Return the metrics of all counters. A family of gauges is one, with KIND in its name."""
        found: dict[str, Family] = {}
        for counter in self._documentation:
            kinds = counter.gauge and "." not in counter.name
            for each in [self._family(f"{counter.name}.KIND", counter)] if kinds else self._all_of(counter):
                found[each.name] = self._families.get(each.name, each)
        return list(found.values())

    def collect(self, counts: Mapping[str, int]) -> Iterator[Metric]:
        """Yield the metrics with their values. Metrics without a value are yielded too, for their help."""
        metrics = {name: family.metric() for name, family in self._families.items()}
        for name, count in counts.items():
            family, values = self.place(name)
            metric = metrics.get(family.name)
            if metric is None:
                metric = metrics[family.name] = family.metric()
            metric.add_metric(values, count)  # type: ignore[attr-defined]
        yield from (metrics[name] for name in sorted(metrics))

    def place(self, name: str) -> tuple[Family, list[str]]:
        """Return the metric of a counter, and the values of its labels."""
        about = self._documentation.of(name) or Counter(name, "A counter without documentation")
        _, _, reason = name.partition(".")
        family = self._family(name, about)
        wire, _ = self._subject(name.partition(".")[0])
        values = {"wire": wire, "reason": reason}
        return self._families.get(family.name, family), [values[label] for label in family.labels]

    def _all_of(self, counter: Counter) -> Iterable[Family]:
        """Return the metrics of a documented counter that are known by name; those of a gauge's family are not."""
        if "." in counter.name:
            return [self._family(counter.name, counter)]
        return [] if counter.gauge else [self._family(counter.name + ".", counter)]

    def _family(self, name: str, about: Counter) -> Family:
        first, _, reason = name.partition(".")
        wire, subject = self._subject(first)
        labels = ["wire"] if wire else []
        parts = [subject]
        if "." in about.name or about.gauge:
            parts.append(reason)
        else:
            labels.append("reason")
        stem = _OTHER.sub("_", "_".join(parts))
        if about.unit in BASE_UNITS and not stem.endswith(about.unit):
            stem = f"{stem}_{about.unit}"
        suffix = "" if about.gauge else "_total"
        return Family(f"{PREFIX}{stem}{suffix}", f"{about.help}.", tuple(labels), about.gauge)

    @staticmethod
    def _subject(name: str) -> tuple[str, str]:
        """Return the wire of a counter's name and its shared subject, or else an empty text and the name."""
        wire, _, subject = name.rpartition("_")
        return (wire, subject) if wire and subject in SHARED else ("", name)


def _joined(helps: Mapping[str, Sequence[str]]) -> str:
    """Return the help of a metric that several wires have. A text of most wires is the first, without their names."""
    every = sum(map(len, helps.values()))
    texts = sorted(helps.items(), key=lambda each: 2 * len(each[1]) <= every)
    named = [text if 2 * len(wires) > every else f"{', '.join(wires)}: {text}" for text, wires in texts]
    return "; ".join(named) + "."


# Metrics of the cluster: its members, as this broker sees them. A broker that runs alone has none.

MEMBERS = _gauge("cluster_members", "Brokers of the cluster.")
MEMBER_LAG = _gauge(
    "cluster_member_lag_seconds", "Time from a write to etcd until the member sees it, as it measures it.", "member"
)
MEMBER_LINKED = _gauge(
    "cluster_member_linked", "1 if the link to the member is open; this broker itself has none.", "member"
)
MEMBER_DRAINING = _gauge("cluster_member_draining", "1 while the member sends its peers away.", "member")
MEMBER_PROVIDERS = _gauge("cluster_member_providers", "Providers that are registered at the member.", "member")
OF_CLUSTER = (MEMBERS, MEMBER_LAG, MEMBER_LINKED, MEMBER_DRAINING, MEMBER_PROVIDERS)


def cluster_metrics(members: IMembers) -> Iterator[Metric]:
    """Yield the metrics. The label ``member`` has names of the configurations of brokers."""
    if not members.clustered:
        return
    health = members.health()
    yield MEMBERS.of(((), len(health)))
    yield MEMBER_LAG.of(*(([each.member.name], each.lag) for each in health if each.lag is not None))
    yield MEMBER_LINKED.of(*(([each.member.name], float(each.linked)) for each in health if not each.here))
    yield MEMBER_DRAINING.of(*(([each.member.name], float(each.member.draining)) for each in health))
    yield MEMBER_PROVIDERS.of(*(([each.member.name], each.providers) for each in health))


# Metrics of the capacity plan.
#
# The label ``service`` has names that peers chose. So there is one sample for each of the services that are short
# first, `SERVICES` at most, and the number of the others is a metric. A user is shown samples of services that they may
# find.

SERVICES = 100
"""Services with a sample: those that are short first. More than an operator can look after."""

PLAN_AGE = _gauge("plan_age_seconds", "Time since the moment for which the plan was made.")
DAYS_UNTIL_SHORT = _gauge(
    "plan_days_until_short",
    f"Days until the service has too few providers, of the {SERVICES} services that are short first.",
    "service",
)
URGENT = _gauge(
    "plan_urgent",
    f"1 for each of {SERVICES} services at most that are overloaded, or that one failure overloads, as measured.",
    "service",
    "state",
)
SHORT_SERVICES = _gauge("plan_short_services", "Services that are foreseen to have too few providers.")
OF_PLAN = (PLAN_AGE, DAYS_UNTIL_SHORT, URGENT, SHORT_SERVICES)


def plan_metrics(plan: IPlan, reading: RegistryReading = EVERY_ENTRY) -> Iterator[Metric | None]:
    """Yield the metrics that a user with that reading of the registry is shown; nothing without a plan."""
    age = plan.age()
    if age is None:
        return
    yield PLAN_AGE.of(((), age))
    days = plan.days_until_short()
    yield None
    first = nsmallest(SERVICES, (each for each in days.items() if reading.shows(each[0])), key=itemgetter(1))
    yield None
    yield DAYS_UNTIL_SHORT.of(*(([name], left) for name, left in first))
    current = plan.current()
    # The worst stand first.
    services = () if current is None else current.services.values()
    worst = takewhile(lambda service: service.verdict.is_urgent, services)
    shown = islice((each for each in worst if reading.shows(each.name)), SERVICES)
    yield URGENT.of(*(([service.name, service.verdict.value], 1) for service in shown))
    yield SHORT_SERVICES.of(((), len(days)))


# Metrics of the process, of the garbage collector and of the Python version.
#
# `prometheus_client.ProcessCollector` lists the directory of all descriptors, which takes more than 10 ms with 50,000
# connections; the kernel gives their number as the size of that directory (since Linux 6.2).

_PAGE_SIZE = resource.getpagesize()
_registry = CollectorRegistry()
_OTHERS = (PlatformCollector(_registry), GCCollector(_registry))


def process_metrics(started: float) -> Iterator[Metric]:
    """Yield the metrics. ``started`` is the time of the start in seconds since the epoch."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    yield CounterMetricFamily(
        "process_cpu_seconds_total", "Total user and system CPU time spent in seconds.", used.ru_utime + used.ru_stime
    )
    yield GaugeMetricFamily(
        "process_start_time_seconds", "Start time of the process since unix epoch in seconds.", started
    )
    yield GaugeMetricFamily(
        "process_max_fds", "Maximum number of open file descriptors.", resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    )
    try:
        with open("/proc/self/statm", "rb") as file:
            virtual, resident = (int(each) * _PAGE_SIZE for each in file.read().split()[:2])
        descriptors = os.stat("/proc/self/fd").st_size
    except (OSError, ValueError):
        pass
    else:
        yield GaugeMetricFamily("process_virtual_memory_bytes", "Virtual memory size in bytes.", virtual)
        yield GaugeMetricFamily("process_resident_memory_bytes", "Resident memory size in bytes.", resident)
        if descriptors:
            yield GaugeMetricFamily("process_open_fds", "Number of open file descriptors.", descriptors)
    for collector in _OTHERS:
        yield from collector.collect()


# Metrics of the daemon's state: its listeners, the health of its files, its readiness and its plan.

INFO = _gauge("info", "Version of the broker.", "version")
UPTIME = _gauge("uptime_seconds", "Time since the start.")
READY = _gauge("ready", "1 if the broker is ready; /readyz has the reasons.")
DEGRADED = _gauge("degraded", "1 if the broker is degraded although it serves; /readyz has the reasons.")
LISTENER_READY = _gauge("listener_ready", "1 if the listener is open.", "listener")
LISTENER_CONNECTIONS = _gauge("listener_connections", "Connections of the listener.", "wire", "listener")
LISTENER_FULL = _gauge(
    "listener_full", "1 if a new connection gets a place only if another one gives way.", "wire", "listener"
)
CERTIFICATE_EXPIRY = _gauge(
    "certificate_expiry_timestamp_seconds",
    "Time at which a TLS certificate of a listener, or the first one of its chain, expires.",
    "certificate",
)
STORE_FAILURES = _gauge("store_consecutive_failures", "Writes of the state that failed in a row; 0 is good.")
STORE_PENDING = _gauge("store_pending_providers", "Providers still to be written to the state.")
JOURNAL_FAILURES = _gauge(
    "journal_consecutive_failures", "Writes of the metrics journal that failed in a row; 0 is good."
)
OF_STATE = (
    INFO, UPTIME, READY, DEGRADED, LISTENER_READY, LISTENER_CONNECTIONS, LISTENER_FULL, CERTIFICATE_EXPIRY,
    STORE_FAILURES, STORE_PENDING, JOURNAL_FAILURES,
)  # fmt: skip


def state_metrics(
    status: Mapping[str, object],
    states: Iterable[tuple[str, bool]],
    reasons: Sequence[NotReady],
    degraded: Sequence[NotReady],
    certificates: Iterable[tuple[str, float]] = (),
) -> Iterator[Metric]:
    """Yield the metrics. ``status`` is the state of `broker.app.process`, ``states`` the name of each listener with
    True if it is open, ``reasons`` what is not ready, ``degraded`` for which reasons the daemon is degraded, and
    ``certificates`` the file of each certificate with the time of its expiry, in seconds since the epoch."""
    yield INFO.of(([str(status.get("version", ""))], 1))
    yield READY.of(((), float(not reasons)))
    yield DEGRADED.of(((), float(bool(degraded))))
    yield UPTIME.of(((), _number(status, "uptime")))
    yield LISTENER_READY.of(*(([name], float(open)) for name, open in states))
    # Two listeners may have one certificate, and a metric has each set of labels once.
    yield CERTIFICATE_EXPIRY.of(*(([path], expires) for path, expires in sorted(set(certificates))))
    yield from _listeners(status)
    store = status.get("store")
    if isinstance(store, Mapping):
        yield STORE_FAILURES.of(((), _number(store, "failures")))
        yield STORE_PENDING.of(((), _number(store, "pending")))
    journal = status.get("journal")
    if isinstance(journal, Mapping):
        yield JOURNAL_FAILURES.of(((), _number(journal, "failures")))


def _listeners(status: Mapping[str, object]) -> Iterator[Metric]:
    listeners = status.get("listeners")
    shown = [
        ([str(each.get("wire", "")), str(each.get("name", ""))], each)
        for each in (listeners if isinstance(listeners, list) else ())
        if isinstance(each, Mapping) and "connections" in each
    ]
    yield LISTENER_CONNECTIONS.of(*((labels, _number(each, "connections")) for labels, each in shown))
    yield LISTENER_FULL.of(*((labels, _number(each, "full")) for labels, each in shown))


def _number(about: Mapping[str, object], key: str) -> float:
    value = about.get(key)
    return float(value) if isinstance(value, int | float) else 0.0


# Metrics of tables: the number of rows of each view of a wire, and the sums of the columns that views name.

OWN = "broker"
"""The first word of the daemon's own views: their sizes are gauges of the registry and metrics of listeners."""


def table_families(view: AnyView) -> dict[str, Family]:
    """Return the metrics of a table: of its rows by "", and of the sum of each column by the name of the column."""
    found = {"": _gauge(f"active_{view.table}", "Rows of the table at the end of the name.", "wire")}
    for each in view.columns:
        if each.name in view.sums:
            about = f"Sum: {each.help[:1].lower()}{each.help[1:]}."
            found[each.name] = _gauge(_column_name(view.table, each), about, "wire")
    return found


def _column_name(table: str, column: Column) -> str:
    stem = f"{table}_{column.name}"
    return f"{stem}_{column.unit}" if column.unit in BASE_UNITS and column.name != column.unit else stem


def table_metrics(views: Iterable[AnyView]) -> Iterator[Metric | None]:
    """Yield the metrics, and None for work without a result."""
    metrics: dict[str, Metric] = {}
    for view in views:
        if view.wire == OWN:
            continue
        values = dict.fromkeys(["", *view.sums], 0.0)
        items = iter(view.items())
        while some := list(islice(items, ROWS if view.sums else ITEMS)):
            values[""] += len(some)
            for row in map(view.row, some) if view.sums else ():
                for column in view.sums:
                    values[column] += _number(row, column)
            yield None
        for column, family in table_families(view).items():
            metric = metrics.setdefault(family.name, family.metric())
            metric.add_metric([view.wire], values[column])  # type: ignore[attr-defined]
    yield from metrics.values()


# Histograms of the loop: the reactor's lag and the scheduler's delay, as `broker.app.process` and
# `broker.net.scheduler` measure them.

BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5)
"""Bounds in seconds: from the scheduler's quantum to a stall. Peers are to be answered within 0.05 s."""

disable_created_metrics()  # type: ignore[no-untyped-call]

LAG = Family(f"{PREFIX}reactor_lag_seconds", "Histogram: lateness of a timer, sampled ten times a second.")
DELAY = Family(
    f"{PREFIX}scheduler_delay_seconds",
    "Histogram: time for which queued input waits to be served, sampled ten times a second.",
)
OF_TIMES = (LAG, DELAY)


class LoopTimes:
    """The two histograms."""

    def __init__(self) -> None:
        self._lag = Histogram(LAG.name, LAG.help, buckets=BUCKETS, registry=None)
        self._delay = Histogram(DELAY.name, DELAY.help, buckets=BUCKETS, registry=None)
        self.lag = self._lag.observe
        """Takes a lateness in seconds."""
        self.delay = self._delay.observe
        """Takes a delay in seconds."""

    def collect(self) -> Iterator[Metric]:
        """Yield the two metrics."""
        yield from self._lag.collect()
        yield from self._delay.collect()
