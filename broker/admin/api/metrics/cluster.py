"""Metrics of the cluster: its members, as this broker sees them. A broker that runs alone has none."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.core import GaugeMetricFamily, Metric

from broker.core.cluster.interfaces import IMembers


def collect(members: IMembers) -> Iterator[Metric]:
    """Yield the metrics. The label ``member`` has names of the configurations of brokers."""
    if not members.clustered:
        return
    health = members.health()
    yield GaugeMetricFamily("elkobroker_cluster_members", "Brokers of the cluster now.", len(health))
    lag = _family("member_lag_seconds", "Time from a write to etcd until the member sees it, as it measures it.")
    linked = _family("member_linked", "1 if the link to the member is open; this broker itself has none.")
    draining = _family("member_draining", "1 while the member sends its peers away.")
    providers = _family("member_providers", "Providers that are registered at the member.")
    for each in health:
        labels = [each.member.name]
        if each.lag is not None:
            lag.add_metric(labels, each.lag)
        if not each.here:
            linked.add_metric(labels, float(each.linked))
        draining.add_metric(labels, float(each.member.draining))
        providers.add_metric(labels, each.providers)
    yield from (lag, linked, draining, providers)


def _family(name: str, help: str) -> GaugeMetricFamily:
    return GaugeMetricFamily(f"elkobroker_cluster_{name}", help, labels=["member"])
