"""The state of the daemon in one value, as operators are shown it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from importlib import metadata

from twisted.internet.interfaces import IListeningPort

from broker.app.journal import JournalWriter
from broker.app.listeners import OpenListener
from broker.app.parts import Parts
from broker.net.lines import LineFactory
from broker.net.listen import bound


def version() -> str:
    """The version of the installed package, "unknown" in a checkout that is not installed."""
    try:
        return metadata.version("elkobroker")
    except metadata.PackageNotFoundError:
        return "unknown"


def place(wire: str, name: str, port: IListeningPort, lines: LineFactory) -> dict[str, object]:
    """One listener of lines. It takes no connection while it is ``full``: further ones wait in the kernel."""
    full = len(lines.connections) >= lines.limits.connections
    about: dict[str, object] = {"wire": wire, "name": name, "address": bound(port)}
    return about | {"connections": len(lines.connections), "full": full}


def elko_places(wire: str, listeners: Iterable[OpenListener]) -> Iterator[dict[str, object]]:
    """The open listeners of an Elko protocol."""
    for listener in listeners:
        yield place(wire, listener.name, listener.port, listener.lines)


def status(
    parts: Parts,
    journal: JournalWriter | None,
    started: float,
    now: float,
    places: Iterable[dict[str, object]],
) -> dict[str, object]:
    """The daemon's state. ``started`` and ``now`` are seconds of the epoch, ``places`` the open listeners.

    ``failures`` are writes that failed in a row: 0 is good. ``pending`` are providers still to be written to
    the store.
    """
    about: dict[str, object] = {
        "version": version(),
        "started": datetime.fromtimestamp(started, UTC).isoformat(timespec="seconds"),
        "uptime": round(max(0.0, now - started)),
        "listeners": list(places),
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
