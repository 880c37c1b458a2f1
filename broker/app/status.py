"""The state of the daemon in one value, for operators."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from functools import cache
from importlib import metadata

from broker.app.core import Core
from broker.app.journal import JournalWriter
from broker.blocking import blocking
from broker.core.plan import PlanFile


@cache
@blocking
def version() -> str:
    """Return the version of the installed package, "unknown" in a checkout that is not installed."""
    try:
        return metadata.version("elkobroker")
    except metadata.PackageNotFoundError:
        return "unknown"


def status(
    core: Core,
    journal: JournalWriter | None,
    plan: PlanFile,
    started: float,
    now: float,
    listeners: Iterable[Mapping[str, object]],
) -> dict[str, object]:
    """Return the daemon's state. ``started`` and ``now`` are seconds of the epoch, ``listeners`` their state.

    ``failures`` are writes that failed in a row: 0 is good. ``pending`` are providers still to be written to
    the store.
    """
    about: dict[str, object] = {
        "version": version(),
        "started": datetime.fromtimestamp(started, UTC).isoformat(timespec="seconds"),
        "uptime": round(max(0.0, now - started)),
        "listeners": list(listeners),
        "registry": {"revision": core.registry.revision, **core.registry.sizes()},
        "store": {"failures": core.recorder.failures, "pending": core.recorder.pending},
    }
    if journal is not None:
        counts = journal.counts()
        about["journal"] = {
            "directory": journal.where,
            "failures": journal.journal.failures,
            "written": counts["journal_records.written"],
            "dropped": counts["journal_records.dropped"],
        }
    current = plan.current()
    if plan.path is not None:
        about["plan"] = {
            "file": plan.path,
            **({} if current is None else {"age": round(plan.age() or 0.0), "services": len(current.services)}),
            **({} if plan.problem() is None else {"problem": plan.problem()}),
        }
    return about
