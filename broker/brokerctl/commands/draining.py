"""The command ``drain``: the broker accepts no new peers and sends the present ones away."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import click
from rich.progress import BarColumn, Progress, TextColumn

from broker.brokerctl.commands.actions import ACTIONS, YES, confirm
from broker.brokerctl.failures import Exit, Failure
from broker.brokerctl.http.answers import mapping
from broker.brokerctl.http.client import Client
from broker.brokerctl.options import remote, session_of
from broker.brokerctl.output.output import Output
from broker.brokerctl.output.tables import Column
from broker.brokerctl.output.units import duration, text
from broker.brokerctl.running import sleep

POLL = 0.5
"""Seconds between questions about the state of the drain."""


@click.command()
@click.option("--deadline", type=click.FloatRange(0, 86_400), default=60.0, show_default=True, help="Seconds.")
@click.option("--undo", is_flag=True, help="End the drain: accept peers again.")
@click.option("--state", is_flag=True, help="Show the state of the drain only.")
@click.option("--no-wait", is_flag=True, help="Return at once.")
@YES
@remote
@click.pass_context
def drain(context: click.Context, deadline: float, undo: bool, state: bool, no_wait: bool, yes: bool) -> int:
    """Accept no new peers, and send the present ones away, each by the means of its wire.

    The command waits until all have gone, or until the deadline, and shows the progress. The exit code is 1 if peers
    are left then. Ctrl-C ends the waiting, and not the drain; drain --undo does that.
    """
    session = session_of(context)
    output = session.output
    if state:
        output.values(mapping(session.run(lambda client: client.get("/v1/drain"))), [Column("seconds", "seconds")])
        return Exit.OK
    if undo:
        answer = session.run(lambda client: client.post(ACTIONS + "drain", {"undo": True}))
        if output.for_people:
            output.say("the broker accepts peers again")
        else:
            output.json(answer)
        return Exit.OK
    confirm(f"Drain the broker at {session.chosen()[1].url}?", yes)

    async def work(client: Client) -> Mapping[str, Any]:
        found = mapping(await client.post(ACTIONS + "drain", {"deadline": deadline}))
        if no_wait:
            return found
        return await _followed(client, output, found)

    found = session.run(work)
    left = remaining(found)
    if output.for_people:
        if no_wait:
            output.say("the broker drains; drain --state shows the progress")
        elif left:
            output.say(f"{found.get('state')}: {left} peers are left: {text(found.get('remaining'))}", "bold red")
        else:
            output.say("drained: all peers have left", "green")
    else:
        output.json(found)
    return Exit.FAILED if left and not no_wait else Exit.OK


async def _followed(client: Client, output: Output, found: Mapping[str, Any]) -> Mapping[str, Any]:
    """Show the progress until the drain is over. Returns its last state."""
    first = remaining(found)
    with Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.fields[left]}"),
        console=output.errors,
        transient=True,
        auto_refresh=False,
        disable=not (output.for_people and output.errors.is_terminal),
    ) as progress:
        task = progress.add_task("draining", total=max(first, 1), left="")
        while True:
            left = remaining(found)
            first = max(first, left)
            time = found.get("seconds")
            until = f", {duration(time)} to the deadline" if isinstance(time, int | float) else ""
            shown = f"{left} peers left{until}"
            progress.update(task, total=max(first, 1), completed=first - left, left=shown)
            progress.refresh()
            if found.get("state") != "draining":
                return found
            await sleep(client.reactor, POLL)
            try:
                found = mapping(await client.get("/v1/drain"))
            except Failure as failure:
                # The broker may end once it is empty.
                if failure.code is Exit.UNREACHABLE:
                    raise Failure(f"the state of the drain is unknown: {failure}", Exit.UNREACHABLE) from None
                raise


def remaining(state: Mapping[str, Any]) -> int:
    """Return the number of peers that are still connected."""
    found = state.get("remaining")
    return sum(count for count in found.values() if isinstance(count, int)) if isinstance(found, dict) else 0
