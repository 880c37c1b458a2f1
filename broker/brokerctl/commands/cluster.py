"""The command ``cluster``: the brokers that share one registry, their lag, and the owners of queues."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import click

from broker.brokerctl.commands.lists import Selection, fetch
from broker.brokerctl.failures import Exit
from broker.brokerctl.http.answers import mapping, rows
from broker.brokerctl.http.client import Client
from broker.brokerctl.options import remote, session_of
from broker.brokerctl.output.tables import Column
from broker.brokerctl.output.units import text

MEMBERS = [
    Column("member"),
    Column("here"),
    Column("linked"),
    Column("draining"),
    Column("lag_ms"),
    Column("providers"),
    Column("services"),
    Column("version"),
    Column("listeners", wide=True),
    Column("link", wide=True),
    Column("instance", wide=True),
]

CLAIMS = [Column("queue"), Column("space"), Column("owner"), Column("endpoint")]


@click.command()
@remote
@click.pass_context
def cluster(context: click.Context) -> int:
    """Show the brokers of the cluster: links, lag, providers and services of each, owners of durable queues.

    The exit code is 1 if the broker that answers is degraded: it cannot reach etcd, for example.
    """
    session = session_of(context)

    async def ask(client: Client) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
        about = mapping(await client.get("/v1/cluster"))
        if about.get("clustered") is not True:
            return about, {}
        return about, await fetch(client, "/v1/views/cluster/claims", Selection(limit=None))

    about, claims = session.run(ask)
    output = session.output
    degraded = rows(about, "degraded")
    owned = rows(claims) if claims else []
    if not output.for_people:
        output.json({**about, "queues": owned})
    elif about.get("clustered") is not True:
        output.note("this broker runs alone: its configuration has no etcd")
    else:
        output.say(f"{text(about.get('name'))} of the farm {text(about.get('farm'))}", "bold")
        output.rows(rows(about, "members"), MEMBERS)
        if owned:
            output.say("")
            output.rows(owned, CLAIMS)
        for each in degraded:
            output.say(f"degraded: {text(each.get('what'))}: {text(each.get('reason'))}", "bold yellow")
    return Exit.FAILED if degraded else Exit.OK
