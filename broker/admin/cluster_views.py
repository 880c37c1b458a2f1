"""The views of the cluster: its members, and the owners of durable queues. The links have a view of their own."""

from __future__ import annotations

from collections.abc import Iterable

from broker.core.cluster.interfaces import IMembers, IQueueOwners, MemberHealth, QueueClaim
from broker.wires.views import AnyView, Column, Row, View

MEMBER_COLUMNS = (
    Column("member", "Name of the broker"),
    Column("here", "True for the broker that answers"),
    Column("linked", "True if a link to it is open, by which topics travel"),
    Column("draining", "True while it sends its peers away"),
    Column("lag_ms", "Time from a write to etcd until the broker sees it, as it measures it itself", "milliseconds"),
    Column("providers", "Providers that are registered there", "providers"),
    Column("services", "Services of these", "services"),
    Column("version", "Version of the broker"),
    Column("link", "Endpoint for links"),
    Column("listeners", "Endpoints for peers, with the titles of the listeners"),
    Column("instance", "Random text, another one after each start with a new lease"),
)

CLAIM_COLUMNS = (
    Column("queue", "Name of the queue"),
    Column("space", "Space of names: the host of the queue"),
    Column("owner", "Name of the broker that owns the queue"),
    Column("endpoint", "Endpoint of the owner for clients"),
)

Claim = tuple[str, str, QueueClaim]


def views(members: IMembers, owners: IQueueOwners) -> list[AnyView]:
    """Return the views; none in single mode."""
    if not members.clustered:
        return []
    return [
        View(
            "cluster members",
            "Shows the brokers of the cluster. A pattern selects names.",
            MEMBER_COLUMNS,
            members.health,
            member_row,
            lambda each: (each.member.name,),
        ),
        View(
            "cluster claims",
            "Shows the owners of durable queues. A pattern selects queues or owners.",
            CLAIM_COLUMNS,
            owners.claims,
            _claim,
            _claim_keys,
        ),
    ]


def member_row(health: MemberHealth) -> Row:
    """Return the row of a member."""
    member = health.member
    return {
        "member": member.name,
        "here": health.here,
        "linked": health.linked,
        "draining": member.draining,
        **({} if health.lag is None else {"lag_ms": round(health.lag * 1_000, 1)}),
        "providers": health.providers,
        "services": health.services,
        "version": member.version,
        **({"link": member.link} if member.link else {}),
        "listeners": [f"{title} {endpoint}" for title, endpoint in member.listeners.items()],
        "instance": member.instance,
    }


def _claim(claim: Claim) -> Row:
    space, name, owner = claim
    row = {"queue": name, "space": space, "owner": owner.owner}
    return {**row, "endpoint": owner.endpoint} if owner.endpoint else row


def _claim_keys(claim: Claim) -> Iterable[str]:
    _, name, owner = claim
    return (name, owner.owner)
