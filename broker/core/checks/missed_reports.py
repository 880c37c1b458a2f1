"""Load reports that are missed: a peer that reports its load regularly, and then does not, is checked early.

A peer is regular once it has reported `REGULAR` times; its period is the longest of the last two. No report costs more
than a few arithmetic operations: one lease for each regular peer finds those that are late.
"""

from __future__ import annotations

from collections.abc import Callable

from broker.core.interfaces import ILease, ILeases

REGULAR = 3
"""Reports after which a peer is regular: two periods."""

MISSED = 1.5
"""Periods without a report after which one is missed."""

LEAST_PERIOD, MOST_PERIOD = 1.0, 120.0
"""Seconds of a period that is observed. Bursts of reports have shorter ones; with longer ones the ordinary checks come
earlier."""


class _Reporter:
    """One peer. Its lease calls `check`."""

    __slots__ = ("_table", "before", "heard", "id", "lease", "period", "reports")

    def __init__(self, table: MissedReports, id: int, heard: float) -> None:
        self._table = table
        self.id = id
        self.heard = heard
        self.reports = 1
        self.before = self.period = 0.0
        self.lease: ILease | None = None

    def check(self, now: float) -> float | None:
        """Report a missed report, once; see `broker.core.interfaces.Leased`."""
        due = self.due
        if now < due:
            return due
        self.lease = None
        # A peer that stops reporting, such as an idle one, is regular again after `REGULAR` further reports.
        self.reports = 0
        self._table.missed(self.id)
        return None

    @property
    def regular(self) -> bool:
        """True if the last two periods are those of regular reports."""
        return min(self.before, self.period) >= LEAST_PERIOD and max(self.before, self.period) <= MOST_PERIOD

    @property
    def due(self) -> float:
        """The lifetime at which a report is missed."""
        return self.heard + MISSED * max(self.before, self.period) + self._table.slack


class MissedReports:
    """The peers that report, by their ids. ``missed`` is called with a regular one that has missed a report."""

    def __init__(self, leases: ILeases, missed: Callable[[int], None]) -> None:
        self.missed = missed
        self.slack = leases.slack_exact
        self._leases = leases
        self._reporters: dict[int, _Reporter] = {}

    def reported(self, id: int) -> None:
        """Process a report of a peer."""
        now = self._leases.moment()
        known = self._reporters.get(id)
        if known is None:
            self._reporters[id] = _Reporter(self, id, now)
            return
        known.before, known.period, known.heard = known.period, now - known.heard, now
        known.reports += 1
        if known.lease is None and known.reports >= REGULAR and known.regular:
            known.lease = self._leases.hold(known, known.due)

    def forget(self, id: int) -> None:
        """Forget a peer that has gone."""
        known = self._reporters.pop(id, None)
        if known is not None and known.lease is not None:
            known.lease.cancel()

    def stop(self) -> None:
        """Forget all peers."""
        for id in list(self._reporters):
            self.forget(id)
