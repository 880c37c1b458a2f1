"""Endpoint of the cluster: its members, and the state of this broker among them."""

from __future__ import annotations

from typing import Any

import attrs

from broker.admin.api.health import Obstacle
from broker.admin.api.pieces import answer
from broker.admin.cluster_views import member_row
from broker.core.cluster.interfaces import IMembers
from broker.web.http_endpoint import Call, Endpoint
from broker.web.messages import Response


@attrs.frozen
class ClusterAbout:
    """The cluster as this broker sees it.

    ``clustered`` is False for a broker that runs alone: then the rest is empty. ``name`` is that of this broker,
    ``farm`` that of the cluster. ``members`` has the rows of the view ``cluster members``. ``degraded`` has the reasons
    for which this broker serves with less than everything.
    """

    clustered: bool
    name: str
    farm: str
    members: list[dict[str, Any]]
    degraded: list[Obstacle]


def endpoints(members: IMembers, farm: str) -> list[Endpoint]:
    """Return the endpoint. ``farm`` is the name of the cluster."""

    def cluster(call: Call) -> Response:
        rows = [dict(member_row(each)) for each in members.health()]
        troubles = [Obstacle(each.what, each.reason) for each in members.troubles()]
        name = farm if members.clustered else ""
        return answer(ClusterAbout(members.clustered, members.name, name, rows, troubles))

    return [
        Endpoint(
            "GET",
            "/v1/cluster",
            "get_cluster",
            "Describes the brokers of the cluster, with their lag and the numbers of their providers.",
            cluster,
            answer=ClusterAbout,
        )
    ]
