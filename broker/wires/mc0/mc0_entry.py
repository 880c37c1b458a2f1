"""mc0 as a wire of the broker."""

from __future__ import annotations

from broker.wires.interface import OpenWire, Wire, WireContext
from broker.wires.mc0.mc0_settings import SECTION, Mc0
from broker.wires.tables import Counter, connection_counters


def _open(config: Mc0, context: WireContext) -> OpenWire:
    from broker.wires.mc0.mc0_wire import open_mc0

    return open_mc0(config, context)


COUNTERS = (
    *connection_counters("mc0"),
    Counter("mc0.published", "Messages that peers published", "messages"),
    Counter("mc0.delivered", "Copies of messages given to connections", "messages"),
    Counter("mc0_dropped", "Messages and replies dropped, by reason", "messages"),
    Counter("mc0_sessions", "Sessions begun and ended, by event", "sessions"),
)

WIRE = Wire(SECTION, lambda config: config.enabled, _open, COUNTERS)
"""The Marionette Collective protocol over ZeroMQ."""
