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
    Counter("mc0.published", "Accepted PUTs", "messages"),
    Counter("mc0.delivered", "Sent MESSAGEs", "messages"),
    Counter(
        "mc0_dropped",
        "Messages: full (the peer does not read); pong (answers to PINGs); noop; ok (the OK to a DISCONNECT); gone "
        "(closed connections with a session that lasts)",
        "messages",
    ),
    Counter(
        "mc0_sessions",
        "Sessions: begun; restored after a restart; ends: disconnected, expired (silence), gone (no TTL, connection "
        "closed), revoked (key removed), taken (another key has the identity now), displaced (a client behind a "
        "proxy gave way)",
        "sessions",
    ),
)

WIRE = Wire(SECTION, lambda config: config.enabled, _open, COUNTERS)
"""The Marionette Collective protocol over ZeroMQ."""
