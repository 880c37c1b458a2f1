"""What can be set of MTL, and what of it clients are told."""

from __future__ import annotations

import attrs

from broker.wires.mtl.codec import control, json_body, table


@attrs.frozen
class MtlSettings:
    """How the wire behaves. Times are in seconds.

    A data peer that is silent for ``heartbeat`` is sent a Ping, and after ``dead_after`` of them without a word it is
    gone. A lease that nobody uses ends after ``lease_ttl``.

    A reader gets ``window`` Contents that it has not confirmed, or as many as it asks for up to ``most_window``; and
    not more than ``window_bytes``. A reader that missed ``drops`` Contents, or takes nothing for ``stuck``, is ended.
    A frame has ``max_message`` bytes at most.

    There are ``sessions`` at once; each has at most ``leases``, and each user at most ``flows`` of them in all its
    sessions. ``hosts`` are the virtual hosts. What MTL shares with other wires is in ``bridge``; the profiles that are
    about nothing else, ``bridged``, are only there.

    ``shared`` says that both flows go over one socket; ``endpoint`` is where to connect to for data, if that is not the
    host of the control flow. ``open`` says that nobody has to say who it is, ``plain`` that passwords may come in the
    clear from everywhere.
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
    hosts: tuple[str, ...] = (control.DEFAULT_HOST,)
    bridge: str = control.DEFAULT_HOST
    bridged: tuple[str, ...] = ("registry",)
    shared: bool = False
    endpoint: str | None = None
    open: bool = False
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
        """What clients are told when they are ready. Times are in milliseconds here."""
        return {
            "request": control.MAX_REQUEST,
            "depth": json_body.MAX_DEPTH,
            "resources": control.MAX_RESOURCES,
            "leases": self.leases,
            "flows": self.flows,
            "lease-ttl": round(self.lease_ttl * 1000),
            "heartbeat": round(self.heartbeat * 1000),
            "dead-after": self.dead_after,
            "window": self.window,
            "most-window": self.most_window,
            "window-bytes": self.window_bytes,
            "properties": table.MAX_TABLE,
            "body": self.max_message,
        }
