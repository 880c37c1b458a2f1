"""Settings of the flows, and the limits that clients are sent."""

from __future__ import annotations

import attrs

from broker.wires.mtl.codec import control_messages, field_table


@attrs.frozen
class MtlSettings:
    """Settings of both flows. Times in seconds, sizes in bytes.

    Those with a key of the configuration are copies of its values: `broker.wires.mtl.in_memory` runs the flows in
    programs of clients, which may lack the packages that the checks of the section need.

    - ``heartbeat``: silence after which a data peer is sent a Ping. After ``dead_after`` heartbeats without a frame,
      its flows end. An unused lease ends after ``lease_ttl``.
    - ``window``: unconfirmed Contents that a reader may have; it may ask for up to ``most_window``. All of them have
      about ``window_bytes`` together.
    - ``drops``: missed Contents after which a reader is ended. ``stuck``: time without room after which it is.
    - ``max_message``: size of one frame.
    - ``sessions``: control sessions. ``leases``: data leases of one session. ``flows``: data leases of one user.
    - ``bridge``: the virtual host that shares topics and registry with other wires; the profiles ``bridged`` exist only
      there.
    - ``endpoint``: address of the data flow for clients, None for the host of the control flow.
    - ``plain``: PLAIN is offered on connections that third parties can read.
    """

    heartbeat: float = 5.0
    dead_after: int = 3
    lease_ttl: float = 30.0
    window: int = 100
    most_window: int = 1_000
    window_bytes: int = 4 * 1024 * 1024
    drops: int = 10_000
    stuck: float = 60.0
    max_message: int = 16 * 1024 * 1024
    sessions: int = 10_000
    leases: int = 100
    flows: int = 1_000
    bridge: str = control_messages.DEFAULT_HOST
    bridged: tuple[str, ...] = ("registry",)
    endpoint: str | None = None
    plain: bool = False

    # Bounds that no configuration key sets.

    max_unused: int = 10_000
    """Unused leases of all sessions together: a second's worth of requests, some 10 MB. Clients use a lease at once, so
    a flood of requests ends only leases of clients that are very slow."""

    max_summoned: int = 1_000
    """Resources that one reader may have summoned: as many as a lease may name."""

    max_names: int = 1_000
    """Resources in the cache of those that a writer with a lease for all may use. Beyond it, the cache starts empty."""

    max_behind_bytes: int = 4 * 1024 * 1024
    """Bytes of the bodies of all requests that wait behind an unanswered one, of all sessions together: those of
    thousands with usual bodies."""

    def limits(self) -> dict[str, int]:
        """Return the limits that a client is sent with 201. Times in milliseconds."""
        return {
            "request": control_messages.MAX_REQUEST,
            "depth": control_messages.MAX_DEPTH,
            "resources": control_messages.MAX_RESOURCES,
            "leases": self.leases,
            "flows": self.flows,
            "lease-ttl": round(self.lease_ttl * 1000),
            "heartbeat": round(self.heartbeat * 1000),
            "dead-after": self.dead_after,
            "window": self.window,
            "most-window": self.most_window,
            "window-bytes": self.window_bytes,
            "properties": field_table.MAX_TABLE,
            "body": self.max_message,
        }
