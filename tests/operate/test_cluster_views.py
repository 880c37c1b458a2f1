"""The views and the endpoint of the cluster, and its metrics."""

from __future__ import annotations

from broker.core.cluster.cluster_interfaces import SINGLE
from broker.core.model import NotReady
from broker.operate import metrics, table_endpoints
from broker.operate.broker_tables import cluster_views
from tests.operate.calls import Site
from tests.operate.members import two
from tests.operate.test_metrics import samples
from tests.wires.contexts import page

A = {
    "member": "a",
    "here": True,
    "linked": False,
    "draining": False,
    "lag_ms": 12.3,
    "providers": 3,
    "services": 4,
    "version": "1.2",
    "link": "h1:9002",
    "listeners": ["mtl tcp://h1:5975"],
    "instance": "i1",
}
B = {
    "member": "b",
    "here": False,
    "linked": True,
    "draining": True,
    "providers": 1,
    "services": 1,
    "version": "1.1",
    "listeners": [],
    "instance": "i2",
}


def test_the_members_are_shown_with_lag_and_numbers() -> None:
    members = two()
    assert page(cluster_views(members, members), "cluster members") == [A, B]
    assert page(cluster_views(members, members), "cluster members", "b*") == [B]


def test_the_owners_of_queues_are_found_by_queue_or_owner() -> None:
    members = two()
    jobs = {"queue": "jobs", "space": "/", "owner": "b", "endpoint": "tcp://h2:5975"}
    mail = {"queue": "mail", "space": "/", "owner": "a"}
    assert page(cluster_views(members, members), "cluster claims") == [jobs, mail]
    assert page(cluster_views(members, members), "cluster claims", "m*") == [mail]
    assert page(cluster_views(members, members), "cluster claims", "b") == [jobs]


def test_a_broker_that_runs_alone_has_none_of_these_views_and_metrics() -> None:
    assert cluster_views(SINGLE, SINGLE) == []
    assert list(metrics.cluster_metrics(SINGLE)) == []


def test_the_endpoint_describes_the_cluster_and_its_troubles() -> None:
    members = two()
    site = Site(table_endpoints.cluster_endpoints(members, "default", members.degradations))
    about = {"clustered": True, "name": "a", "farm": "default", "members": [A, B], "degraded": []}
    assert site.get("/v1/cluster") == about
    members.degraded.append(NotReady("cluster", "etcd is away"))
    assert site.get("/v1/cluster") == {**about, "degraded": [{"what": "cluster", "reason": "etcd is away"}]}


def test_the_endpoint_of_a_broker_that_runs_alone_is_empty() -> None:
    empty = {"clustered": False, "name": "", "farm": "", "members": [], "degraded": []}
    assert Site(table_endpoints.cluster_endpoints(SINGLE, "default", SINGLE.degradations)).get("/v1/cluster") == empty


def test_the_metrics_have_a_sample_for_each_member() -> None:
    assert samples(metrics.cluster_metrics(two())) == {
        "elkobroker_cluster_members": 2,
        "elkobroker_cluster_member_lag_seconds[('member', 'a')]": 0.01234,
        "elkobroker_cluster_member_linked[('member', 'b')]": 1,
        "elkobroker_cluster_member_draining[('member', 'a')]": 0,
        "elkobroker_cluster_member_draining[('member', 'b')]": 1,
        "elkobroker_cluster_member_providers[('member', 'a')]": 3,
        "elkobroker_cluster_member_providers[('member', 'b')]": 1,
    }
