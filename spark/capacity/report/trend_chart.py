"""The 13-week trend of a service: its weekly peaks, their growth, and the load that its providers carry.

The line that meets the limit is the trend with the headroom of the plan on top, so that the drawing and the date of
the plan agree. A week is drawn at its begin.
"""

from __future__ import annotations

from datetime import datetime
from math import isinf
from typing import Literal

import attrs

from spark.capacity.planning.growth import FEWEST, WEEK, WEEKS, Growth
from spark.capacity.planning.needs import needs_of, policy_of
from spark.capacity.planning.peak_bound import A_WEEK
from spark.capacity.report.chart import Drawing, Line, Mark, chart
from spark.capacity.report.row_values import Row, number_of, time_of


@attrs.frozen
class Outlook:
    """The time at which the trend exceeds the load that the providers carry.

    Of services without a trend or a full load nothing is claimed. `week` is set for a date only.
    """

    kind: Literal["unclaimed", "already", "date", "enough"]
    week: datetime | None = None


@attrs.frozen
class Trend:
    """The weekly growth as a share of the level, with its drawing; None for both where too few weeks are known."""

    growth: float | None
    drawing: Drawing | None
    outlook: Outlook
    fewest: int = FEWEST
    """Weeks with a known load that a trend needs."""


def trend_of(plan: Row) -> Trend | None:
    """Return the trend from a row of gold_plan; None where the row has no weekly peaks."""
    issued, peaks = time_of(plan, "issued"), plan.get("weekly_peaks")
    if issued is None or not isinstance(peaks, list):
        return None
    trend = _growth(plan)
    if trend is None:
        return Trend(None, None, outlook(plan))
    began = next(number for number, peak in enumerate(peaks, -WEEKS) if peak is not None)
    # Week 0 is the first of the coming ones; the level of the trend is that of the week before it.
    headroom = policy_of(plan).headroom or A_WEEK.least
    drawn = [(_begin(issued, week), trend.in_weeks(week + 1)) for week in range(began, WEEKS)]
    lines = [
        Line(
            "weekly peak",
            "demand",
            [(_begin(issued, week), peak) for week, peak in enumerate(peaks, -WEEKS) if week >= began],
        ),
        Line("trend", "p50", drawn),
        Line(
            f"trend x {headroom:g}",
            "bound",
            [(at, headroom * value) for at, value in drawn if at >= issued.timestamp()],
        ),
    ]
    if limit := limit_of(plan):
        lines.append(Line("limit of the providers now", "capacity", [(drawn[0][0], limit), (drawn[-1][0], limit)]))
    marks = [("now", "now", issued), ("too few by the trend", "crossed", time_of(plan, "exhaust_trend"))]
    drawing = chart(lines, marks=[Mark(label, kind, at.timestamp()) for label, kind, at in marks if at])
    return Trend(number_of(plan, "growth_per_week"), drawing, outlook(plan))


def _growth(plan: Row) -> Growth | None:
    level, share = number_of(plan, "trend_level"), number_of(plan, "growth_per_week")
    return None if level is None or share is None else Growth(level, share * level)


def _begin(issued: datetime, week: int) -> float:
    return (issued + week * WEEK).timestamp()


def limit_of(plan: Row) -> float | None:
    """Return the load up to which the providers of now are enough by the policy; None where there is no such load."""
    providers = number_of(plan, "providers_now")
    limit = None if providers is None else needs_of(plan).carried(int(providers))
    return None if limit is None or isinf(limit) else limit


def outlook(plan: Row) -> Outlook:
    issued, short = time_of(plan, "issued"), time_of(plan, "exhaust_trend")
    if number_of(plan, "growth_per_week") is None or limit_of(plan) is None:
        return Outlook("unclaimed")
    if short is None:
        return Outlook("enough")
    return Outlook("already") if issued is not None and short <= issued else Outlook("date", short)
