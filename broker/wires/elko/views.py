"""The view of the Elko Broker for operators: its connected peers."""

from __future__ import annotations

from collections.abc import Callable
from fnmatch import fnmatchcase
from itertools import islice

from broker.core.model import Provider
from broker.wires.elko.sessions.broker import PeerInfo, Wiring

MAX_LISTED = 1_000
"""Sessions of one answer: more than anybody reads. A pattern finds more."""


def sessions(wiring: Wiring, pattern: str = "*") -> list[dict[str, object]]:
    """The sessions whose label or address matches a shell pattern, the oldest first. Each operator has one."""

    def wanted(info: PeerInfo) -> bool:
        return fnmatchcase(info.label, pattern) or fnmatchcase(info.address, pattern)

    found = filter(wanted, (session.info for session in wiring.sessions))
    return [_session(info, wiring) for info in islice(found, MAX_LISTED)]


def views(wiring: Wiring) -> dict[str, Callable[[str], object]]:
    """The console's commands, by name. Each is given a pattern."""
    return {"elko sessions": lambda pattern: sessions(wiring, pattern)}


def _session(info: PeerInfo, wiring: Wiring) -> dict[str, object]:
    about: dict[str, object] = {
        "address": info.address,
        "label": info.label,
        "roles": list(info.roles),
        "trusted": info.trusted,
        "waits": info.waits,
    }
    provider: Provider | None = None if info.provider is None else wiring.registry.provider(info.provider)
    if provider is not None:
        about |= {"provider": provider.id, "services": len(provider.services), "load": provider.load}
    return about
