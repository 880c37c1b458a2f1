"""The table of the links for operators."""

from __future__ import annotations

from broker.cluster.links.links import Links
from broker.cluster.links.neighbour import Neighbour
from broker.wires.views import Column, Row, View

COLUMNS = (
    Column("peer", "Name of the other broker"),
    Column("state", "up; waiting or connecting where this broker connects, else expected; impossible without a key"),
    Column("since", "Time in that state", "seconds"),
    Column("address", "Endpoint of the other broker's links"),
    Column("rtt", "Last measured round trip", "milliseconds"),
    Column("sent", "Messages sent", "messages"),
    Column("received", "Messages received", "messages"),
    Column("dropped", "Messages dropped, because the queue was full or they were too large", "messages"),
    Column("queued", "Messages that wait for the other broker to read", "messages"),
    Column("reason", "Reason for the end of the last link or attempt"),
)


def links_view(links: Links) -> View[Neighbour]:
    """Return the table of the links to all other members."""
    return View(
        "cluster links",
        "Shows the links to the other brokers, by name. A pattern selects names.",
        COLUMNS,
        links.neighbours,
        lambda neighbour: _row(neighbour, links.now()),
        lambda neighbour: (neighbour.name,),
        order="peer",
        sums=("queued",),
    )


def _row(neighbour: Neighbour, now: float) -> Row:
    row: dict[str, object] = {
        "peer": neighbour.name,
        "state": neighbour.state.value,
        "since": round(max(0.0, now - neighbour.since), 1),
        "address": neighbour.member.link,
        "sent": neighbour.sent,
        "received": neighbour.received,
        "dropped": neighbour.dropped,
        "queued": neighbour.queued,
    }
    if neighbour.rtt is not None:
        row["rtt"] = round(neighbour.rtt * 1_000, 2)
    if neighbour.reason:
        row["reason"] = neighbour.reason
    return row
