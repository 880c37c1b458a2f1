"""Rows of `broker.wires.interface.OpenWire.places`: the open listeners as operators see them."""

from __future__ import annotations

from broker.core.place_table import PlaceTable
from broker.net.admission import ConnectionFactory
from broker.net.listeners import StreamListener, bound


def occupied(factory: ConnectionFactory, *more: PlaceTable) -> dict[str, object]:
    """Return the number of a listener's connections, and ``full``: while true, a new one needs the place of another.

    A listener that was full within the last seconds also has a ``trouble``, and ``refuses`` is true if new peers were
    refused. Over HTTP and RTCP, sessions and connections have places of their own: ``more`` has the latter.
    """
    tables = dict.fromkeys((factory.table, *more))
    row: dict[str, object] = {"connections": len(factory.connections), "full": any(each.full for each in tables)}
    troubles = dict.fromkeys(each.trouble for each in tables if each.trouble)
    if troubles:
        row.update(trouble="; ".join(troubles), refuses=any(each.turns_away for each in tables))
    return row


def place(wire: str, name: str, listener: StreamListener) -> list[dict[str, object]]:
    """Return the row of a stream listener, or no row if it is closed."""
    if listener.port is None:
        return []
    row = occupied(listener.lines, listener.carrier.table)
    return [{"wire": wire, "name": name, "address": bound(listener.port), **row}]
