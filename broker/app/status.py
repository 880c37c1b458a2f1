"""The state of the daemon in one value, as operators are shown it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from importlib import metadata

from broker.app.journal import JournalWriter
from broker.app.parts import Parts
from broker.net.admission import ConnectionFactory
from broker.net.endpoints import bound
from broker.wires.elko.listeners import NamedListener, StreamListener


def version() -> str:
    """The version of the installed package, "unknown" in a checkout that is not installed."""
    try:
        return metadata.version("elkobroker")
    except metadata.PackageNotFoundError:
        return "unknown"


def occupied(factory: ConnectionFactory) -> dict[str, object]:
    """The number of its connections. While a listener is ``full``, further connections wait in the kernel."""
    connections = len(factory.connections)
    return {"connections": connections, "full": connections >= factory.limits.connections}


def places(wire: str, name: str, listener: StreamListener) -> Iterator[dict[str, object]]:
    """A listener of streams, if it is open."""
    if listener.port is not None:
        yield {"wire": wire, "name": name, "address": bound(listener.port), **occupied(listener.lines)}


def elko_places(wire: str, listeners: Iterable[NamedListener]) -> Iterator[dict[str, object]]:
    """The open listeners of an Elko protocol."""
    for listener in listeners:
        yield from places(wire, listener.name, listener)


def status(
    parts: Parts,
    journal: JournalWriter | None,
    started: float,
    now: float,
    listeners: Iterable[dict[str, object]],
) -> dict[str, object]:
    """The daemon's state. ``started`` and ``now`` are seconds of the epoch, ``listeners`` their state.

    ``failures`` are writes that failed in a row: 0 is good. ``pending`` are providers still to be written to
    the store.
    """
    about: dict[str, object] = {
        "version": version(),
        "started": datetime.fromtimestamp(started, UTC).isoformat(timespec="seconds"),
        "uptime": round(max(0.0, now - started)),
        "listeners": list(listeners),
        "registry": {"revision": parts.registry.revision, **parts.registry.sizes()},
        "store": {"failures": parts.recorder.failures, "pending": parts.recorder.pending},
    }
    if journal is not None:
        counts = journal.counts()
        about["journal"] = {
            "directory": journal.where,
            "failures": journal.journal.failures,
            "written": counts["journal_records.written"],
            "dropped": counts["journal_records.dropped"],
        }
    return about
