"""What operators are shown of DBP: its services, and how they keep their word."""

from __future__ import annotations

from collections.abc import Callable
from fnmatch import fnmatchcase
from itertools import islice

from broker.core.interfaces import ILeases
from broker.wires.dbp.sessions.addresses import hostport
from broker.wires.dbp.sessions.catalogue import Catalogue
from broker.wires.dbp.sessions.service_state import Entry

MAX_LISTED = 1_000
"""Services of one answer: more than anybody reads. A pattern finds more."""


def services(catalogue: Catalogue, leases: ILeases, pattern: str = "*") -> list[dict[str, object]]:
    """The services whose name matches a shell pattern, the oldest first. Times in seconds."""
    found = (entry for entry in catalogue if fnmatchcase(entry.name, pattern))
    return [_service(entry, leases.moment()) for entry in islice(found, MAX_LISTED)]


def views(catalogue: Catalogue, leases: ILeases) -> dict[str, Callable[[str], object]]:
    """The console's commands, by name. Each is given a pattern."""
    return {"dbp services": lambda pattern: services(catalogue, leases, pattern)}


def _service(entry: Entry, now: float) -> dict[str, object]:
    about: dict[str, object] = {
        "service": entry.name,
        "provider": entry.provider,
        "hostport": hostport(entry.details, entry.address),
        "address": entry.address,
        "contract": entry.contract,
    }
    if entry.contract:
        about |= {"interval": entry.interval, "liveness": entry.liveness, "heard": round(now - entry.heard, 2)}
    if entry.source is not None:
        about["udp"] = f"{entry.source[0]}:{entry.source[1]}"
    about["connected"] = entry.connection is not None
    if entry.failures:
        about["unanswered"] = entry.failures
    return about
