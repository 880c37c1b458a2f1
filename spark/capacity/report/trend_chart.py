"""The 13-week trend of a service: its weekly peaks, their growth, and the load that its providers carry.

The line that meets the limit is the trend with the headroom of the plan on top, so that the drawing and the date of
the plan agree. A week is drawn at its begin.
"""

from __future__ import annotations

from datetime import datetime

from spark.capacity.planning.growth import FEWEST, WEEK, WEEKS, Growth
from spark.capacity.planning.peak_bound import HEADROOM
from spark.capacity.planning.plan import carried
from spark.capacity.report.chart import Line, Mark, chart, escape
from spark.capacity.report.markup import Row, bdi, number_of, para, percent, time_of


def trend_figure(ident: str, service: str, plan: Row) -> str:
    """Return the figure as HTML, from a row of gold_plan; a note in its place where fewer than four weeks are known."""
    issued, peaks = time_of(plan, "issued"), plan.get("weekly_peaks")
    if issued is None or not isinstance(peaks, list):
        return ""
    trend = _growth(plan)
    if trend is None:
        return para(f"There is no 13-week trend: it needs {FEWEST} weeks with a known load.", "empty")
    began = next(number for number, peak in enumerate(peaks, -WEEKS) if peak is not None)
    # Week 0 is the first of the coming ones; the level of the trend is that of the week before it.
    drawn = [(_begin(issued, week), trend.in_weeks(week + 1)) for week in range(began, WEEKS)]
    lines = [
        Line(
            "weekly peak",
            "demand",
            [(_begin(issued, week), peak) for week, peak in enumerate(peaks, -WEEKS) if week >= began],
        ),
        Line("trend", "p50", drawn),
        Line(
            f"trend x {HEADROOM}", "bound", [(at, HEADROOM * value) for at, value in drawn if at >= issued.timestamp()]
        ),
    ]
    if limit := limit_of(plan):
        lines.append(Line("the providers carry", "capacity", [(drawn[0][0], limit), (drawn[-1][0], limit)]))
    marks = [("now", "now", issued), ("too few by the trend", "crossed", time_of(plan, "exhaust_trend"))]
    said = _said(plan)
    figure = chart(
        f"{ident}w",
        f"Weekly peaks and trend of {service}",
        f"Highest five minutes of each week, 13 weeks back and ahead. {said}",
        "load (as reported)",
        lines,
        marks=[Mark(label, kind, at.timestamp()) for label, kind, at in marks if at],
    )
    caption = f"<figcaption>Weekly peaks of {bdi(service)} and their trend, 13 weeks ahead. {escape(said)}</figcaption>"
    return f'<figure class="wide" tabindex="0">{figure}{caption}</figure>'


def _growth(plan: Row) -> Growth | None:
    level, share = number_of(plan, "trend_level"), number_of(plan, "growth_per_week")
    return None if level is None or share is None else Growth(level, share * level)


def _begin(issued: datetime, week: int) -> float:
    return (issued + week * WEEK).timestamp()


def limit_of(plan: Row) -> float | None:
    """Return the load up to which the providers of now are enough, spares included."""
    providers, full_load, target = (
        number_of(plan, name) for name in ("providers_now", "full_load", "target_utilisation")
    )
    if providers is None or full_load is None or target is None:
        return None
    return carried(int(providers), full_load * target)


def _said(plan: Row) -> str:
    """Say when the trend exceeds what the providers carry."""
    share, issued, short = number_of(plan, "growth_per_week"), time_of(plan, "issued"), time_of(plan, "exhaust_trend")
    grows = f"The peaks change by {percent(share)} of their level a week."
    if limit_of(plan) is None:
        return f"{grows} Without a full load nothing is claimed about when the providers are too few."
    if short is None:
        return f"{grows} By this trend the providers are enough for {WEEKS} weeks."
    if issued is not None and short <= issued:
        return f"{grows} By this trend the providers are too few already."
    return f"{grows} If that goes on, the providers are too few from the week of {short:%Y-%m-%d}."
