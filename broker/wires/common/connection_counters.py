"""Counters of connections, the same for each wire that listens."""

from __future__ import annotations

from broker.wires.counter import Counter


def connection_counters(wire: str) -> tuple[Counter, ...]:
    """Return the counters of the connections of ``wire``, a wire's name."""
    return (
        Counter(f"{wire}_connections", "Connections by event: accepted, closed", "connections"),
        Counter(f"{wire}_accept", "Newcomers to a full listener: refused, or displaced another peer", "peers"),
        Counter(f"{wire}_refused", "Connections and messages that were refused, by reason", "refusals"),
    )
