"""Metrics of the daemon's state: its listeners, the health of its files, its readiness and its plan."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from prometheus_client.core import GaugeMetricFamily, InfoMetricFamily, Metric

from broker.core.model import NotReady


def collect(
    status: Mapping[str, object],
    states: Iterable[tuple[str, bool]],
    reasons: Sequence[NotReady],
    degraded: Sequence[NotReady],
    certificates: Iterable[tuple[str, float]] = (),
) -> Iterator[Metric]:
    """Yield the metrics. ``status`` is the state of `broker.app.status`, ``states`` the name of each listener with True
    if it is open, ``reasons`` what is not ready, ``degraded`` for which reasons the daemon is degraded, and
    ``certificates`` the file of each certificate with the time of its expiry, in seconds of the epoch."""
    yield InfoMetricFamily("elkobroker", "Version of the broker.", {"version": str(status.get("version", ""))})
    yield _gauge("elkobroker_ready", "1 if everything is ready, see /readyz.", float(not reasons))
    yield _gauge(
        "elkobroker_degraded", "1 if the broker is degraded although it serves, see /readyz.", float(bool(degraded))
    )
    yield _gauge("elkobroker_uptime_seconds", "Time since the start.", _number(status, "uptime"))
    ready = GaugeMetricFamily("elkobroker_listener_ready", "1 if the listener is open.", labels=["listener"])
    for name, open in states:
        ready.add_metric([name], float(open))
    yield ready
    expiry = GaugeMetricFamily(
        "elkobroker_certificate_expiry_timestamp_seconds",
        "Time at which the TLS certificate of a listener, or the first one of its chain, expires.",
        labels=["certificate"],
    )
    # Two listeners may have one certificate, and a metric has each set of labels once.
    for path, expires in sorted(set(certificates)):
        expiry.add_metric([path], expires)
    yield expiry
    yield from _listeners(status)
    store = status.get("store")
    if isinstance(store, Mapping):
        yield _gauge(
            "elkobroker_store_consecutive_failures",
            "Writes of the state that failed in a row; 0 is good.",
            _number(store, "failures"),
        )
        yield _gauge(
            "elkobroker_store_pending_providers",
            "Providers still to be written to the state.",
            _number(store, "pending"),
        )
    journal = status.get("journal")
    if isinstance(journal, Mapping):
        yield _gauge(
            "elkobroker_journal_consecutive_failures",
            "Writes of the metrics journal that failed in a row; 0 is good.",
            _number(journal, "failures"),
        )


def _listeners(status: Mapping[str, object]) -> Iterator[Metric]:
    connections = GaugeMetricFamily(
        "elkobroker_listener_connections", "Connections of the listener now.", labels=["wire", "listener"]
    )
    full = GaugeMetricFamily(
        "elkobroker_listener_full",
        "1 if a new connection gets a place only if another one gives way.",
        labels=["wire", "listener"],
    )
    listeners = status.get("listeners")
    for each in listeners if isinstance(listeners, list) else ():
        if isinstance(each, Mapping) and "connections" in each:
            labels = [str(each.get("wire", "")), str(each.get("name", ""))]
            connections.add_metric(labels, _number(each, "connections"))
            full.add_metric(labels, _number(each, "full"))
    yield connections
    yield full


def _gauge(name: str, help: str, value: float) -> Metric:
    return GaugeMetricFamily(name, help, value)


def _number(about: Mapping[str, object], key: str) -> float:
    value = about.get(key)
    return float(value) if isinstance(value, int | float) else 0.0
