"""The report: one HTML page that needs nothing else, and two tables as CSV.

It is made of the small tables, as rows. It measures nothing and decides nothing: what it says was decided by the jobs,
and stands in the tables.

Rules:
- The page opens offline: no script, no reference to anything outside of it.
- Every text from the journal is hostile until it is escaped, and is kept apart from the text around it (``bdi``), so
  that a name can neither be markup nor turn the direction of what follows.
- A number that is not known is a dash, and an empty table says why it is empty. Zero is said only where zero was found.
- A time without a zone is UTC. The page has no time of its own, so that the same tables give the same bytes.
- A promise stands beside what became of it.
"""

from __future__ import annotations

import csv
import io
import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import attrs

from spark.capacity.report.chart import Band, Line, Mark, chart, escape

Row = Mapping[str, Any]
Tables = Mapping[str, Sequence[Row]]
"""The rows of each table by its name, as the schema has them. A table that is left out is empty. There are two more
than the schema has: ``broker_down``, with `broker`, `start` and `end`: when the broker was not there; and ``set_back``,
with `broker`, `boot`, `seq`, `before` and `after`: which records show that a broker's clock was set back."""

SHOWN = timedelta(days=35)
"""History in a chart: five weeks, so that the weekly wave is seen and an hour still has a part of a pixel."""

ROWS = 50
"""Rows of a table that could be long; what is left out is counted below it. All of it is in the tables."""

EXAMPLES = 5
"""Segments that are named for each reason of quarantine."""

DASH = "\u2013"

CSV_TABLES = ("gold_plan", "gold_provider_day")


def write(out: Path, tables: Tables) -> list[Path]:
    """Write ``report.html``, ``gold_plan.csv`` and ``gold_provider_day.csv`` to ``out``. Returns their paths."""
    out.mkdir(parents=True, exist_ok=True)
    made = {out / f"{name}.csv": table_csv(tables.get(name, ())) for name in CSV_TABLES}
    made[out / "report.html"] = render(tables)
    for path, text in made.items():
        hidden = path.with_name("." + path.name)
        # Who looks at the report while it is written sees the one before.
        hidden.write_text(text, encoding="utf-8", errors="replace", newline="")
        hidden.replace(path)
    return sorted(made)


def table_csv(rows: Sequence[Row]) -> str:
    """Rows as CSV with a line of names. A text that a spreadsheet would take for a formula gets an apostrophe."""
    names = list(rows[0]) if rows else []
    to = io.StringIO()
    writer = csv.writer(to, lineterminator="\n")
    writer.writerow(names)
    for row in rows:
        writer.writerow([_cell(row.get(name)) for name in names])
    return to.getvalue()


def _cell(value: Any) -> str:
    if _missing(value):
        return ""
    if isinstance(value, datetime):
        return _utc(value).strftime("%Y-%m-%dT%H:%M:%SZ")
    if isinstance(value, str) and value[:1] in ("=", "+", "-", "@", "\t", "\r"):
        return "'" + value
    return str(value)


# Values that may be missing.


def _missing(value: Any) -> bool:
    # NaN and pandas' NaT are not equal to themselves.
    return value is None or (isinstance(value, float | datetime) and value != value)


def _utc(value: datetime) -> datetime:
    return value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)


def _time(row: Row, name: str) -> datetime | None:
    value = row.get(name)
    return None if _missing(value) or not isinstance(value, datetime) else _utc(value)


def _number(row: Row, name: str) -> float | None:
    value = row.get(name)
    if value is None or isinstance(value, str):
        return None
    number = float(value)
    return number if math.isfinite(number) else None


def _yes(row: Row, name: str) -> bool:
    value = row.get(name)
    return not _missing(value) and bool(value)


def _texts(value: Any) -> list[str]:
    """A list of texts, whether it comes as a list, an array, or not at all."""
    if value is None or isinstance(value, float):
        return []
    return [str(one) for one in ([value] if isinstance(value, str) else value)]


def _when(value: datetime | None) -> str:
    return DASH if value is None else value.strftime("%Y-%m-%d %H:%M UTC")


def _plain(value: float | None, digits: int = 1) -> str:
    if value is None:
        return DASH
    text = f"{value:,.{digits}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def _percent(value: float | None, digits: int = 1) -> str:
    return DASH if value is None else f"{_plain(value * 100, digits)} %"


def _span(seconds: float | None) -> str:
    if seconds is None:
        return DASH
    if seconds < 120:
        return f"{_plain(seconds, 0)} s"
    if seconds < 7200:
        return f"{_plain(seconds / 60, 0)} min"
    return f"{_plain(seconds / 3600)} h"


def _mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


def _most(values: Iterable[float | None]) -> float | None:
    return max((value for value in values if value is not None), default=None)


def _total(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) if known else None


def _count(number: float, one: str, many: str | None = None) -> str:
    return f"{_plain(number, 0)} {one if number == 1 else many or one + 's'}"


# Pieces of HTML. What is called ``html`` is markup already; all else is text.


def _name(text: object) -> str:
    return f"<bdi>{escape(text)}</bdi>"


def _para(text: str, kind: str = "") -> str:
    return f'<p class="{kind}">{escape(text)}</p>' if kind else f"<p>{escape(text)}</p>"


def _table(caption: str, heads: Sequence[str], rows: Sequence[Sequence[str]], empty: str, cut: int = ROWS) -> str:
    """A table of cells that are HTML. The first column names the row; columns of names stand left, of numbers right."""
    if not rows:
        return _para(empty, "empty")
    sides = [' class="name"' if any("<bdi>" in row[place] for row in rows[:cut]) else "" for place in range(len(heads))]
    head = "".join(f'<th scope="col"{side}>{escape(one)}</th>' for one, side in zip(heads, sides, strict=True))
    body = "".join(
        f'<tr><th scope="row">{row[0]}</th>'
        + "".join(f"<td{side}>{cell}</td>" for cell, side in zip(row[1:], sides[1:], strict=True))
        + "</tr>\n"
        for row in rows[:cut]
    )
    left_out = f"{_count(len(rows) - cut, 'more row')} in the tables." if len(rows) > cut else ""
    return (
        f'<div class="wide" tabindex="0" role="region" aria-label="{escape(caption)}"><table><caption>{escape(caption)}'
        f"</caption><thead><tr>{head}</tr></thead><tbody>\n{body}</tbody></table></div>"
        + (_para(left_out) if left_out else "")
    )


def _section(ident: str, title_html: str, *parts_html: str) -> str:
    return f'<section id="{ident}"><h2>{title_html}</h2>\n' + "\n".join(filter(None, parts_html)) + "</section>\n"


# What the tables say about one service.


@attrs.frozen
class _Service:
    name: str
    ident: str
    history: list[Row]
    forecast: list[Row]
    """Of the last issue alone."""
    plan: Row
    evaluations: list[Row]

    @property
    def told(self) -> Row:
        """What holds for the whole forecast; each of its rows has it."""
        return self.forecast[0] if self.forecast else {}

    @property
    def capacity(self) -> float | None:
        return next((value for row in reversed(self.history) if (value := _number(row, "capacity")) is not None), None)


def _latest(rows: Sequence[Row]) -> list[Row]:
    """Those of the last issue."""
    issues = [at for row in rows if (at := _time(row, "issued")) is not None]
    return [row for row in rows if _time(row, "issued") == max(issues)] if issues else list(rows)


def _by_service(rows: Sequence[Row]) -> dict[str, list[Row]]:
    found: dict[str, list[Row]] = {}
    for row in rows:
        found.setdefault(str(row.get("service")), []).append(row)
    return found


def _in_time(rows: Sequence[Row], name: str) -> list[Row]:
    return sorted((row for row in rows if _time(row, name) is not None), key=lambda row: _utc(row[name]))


def _services(tables: Tables) -> list[_Service]:
    history, forecast, plan, evaluation = (
        _by_service(tables.get(name, ())) for name in ("gold_service_1h", "gold_forecast", "gold_plan", "evaluation")
    )
    others = (_by_service(tables.get(name, ())) for name in ("gold_provider_day", "gold_balance_day"))
    names = sorted(set(history) | set(forecast) | set(plan) | {name for other in others for name in other})
    return [
        _Service(
            name,
            f"s{number}",
            _in_time(history.get(name, ()), "h"),
            _in_time(_latest(forecast.get(name, ())), "h"),
            (_latest(plan.get(name, ())) or [{}])[-1],
            _in_time(evaluation.get(name, ()), "issued"),
        )
        for number, name in enumerate(names)
    ]


# Sections.


def render(tables: Tables) -> str:
    """The whole page."""
    services = _services(tables)
    body = [
        _head(services),
        _glance(services),
        *(_service(service) for service in services),
        _reliability(tables.get("gold_provider_day", ())),
        _balance(tables.get("gold_balance_day", ())),
        _promises(services),
        _quality(tables),
        _unclaimed(services, tables),
    ]
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8" />'
        '<meta name="viewport" content="width=device-width, initial-scale=1" />'
        '<meta name="color-scheme" content="light dark" />'
        "<title>Capacity plan</title>\n"
        f"<style>{STYLE}</style></head>\n<body>\n<main>\n" + "".join(body) + "</main></body></html>\n"
    )


def _head(services: Sequence[_Service]) -> str:
    times = [at for service in services for row in service.history if (at := _time(row, "h"))]
    issued = [at for service in services if (at := _time(service.plan, "issued") or _time(service.told, "issued"))]
    said = f"{_count(len(services), 'service')}."
    if times:
        said += f" Measured from {_when(min(times))} to {_when(max(times) + timedelta(hours=1))}."
    if issued:
        said += f" Planned as of {_when(max(issued))}."
    links = "".join(
        f'<li><a href="#{ident}">{escape(text)}</a></li>'
        for ident, text in (
            ("glance", "At a glance"),
            ("flaky", "Flaky providers"),
            ("balance", "Unbalanced services"),
            ("promises", "Promises and what became of them"),
            ("quality", "Quality of the data"),
            ("unclaimed", "What is not claimed"),
        )
    )
    return f"<header><h1>Capacity plan</h1>{_para(said)}<nav><ul>{links}</ul></nav></header>\n"


def _crossed(service: _Service) -> tuple[str, str]:
    """When the bound and the middle of the forecast reach what the providers can take."""
    if service.capacity is None or not service.plan:
        return DASH, DASH
    bound, middle = (_time(service.plan, name) for name in ("exhaust_bound", "exhaust_p50"))
    if bound is None and (_number(service.plan, "add") or 0) > 0:
        return "at the highest peak, at no certain hour", _when(middle) if middle else "not in the horizon"
    return (_when(bound) if bound else "not in the horizon"), (_when(middle) if middle else "not in the horizon")


def _marked(need: float | None, now: float | None) -> str:
    """Mark a need that is more than there are."""
    if need is None:
        return DASH
    return f'<strong class="{"bad" if now is not None and need > now else "good"}">{_plain(need, 0)}</strong>'


def _missed(row: Row) -> str:
    """Say how often the bound would have been missed, and what rate that leaves possible."""
    trials, missed = _number(row, "bound_trials"), _number(row, "bound_missed")
    if not trials or missed is None:
        return "never tried"
    most = _percent(_number(row, "bound_miss_most"), 0)
    return f"{_plain(missed, 0)} of {_plain(trials, 0)}; 95 %: at most {most}"


def _glance(services: Sequence[_Service]) -> str:
    rows = []
    for service in services:
        plan = service.plan
        need, now = _number(plan, "need_horizon"), _number(plan, "providers_now")
        add = _number(plan, "add")
        rows.append(
            [
                f'<a href="#{service.ident}">{_name(service.name)}</a>',
                _plain(now, 0),
                _marked(_number(plan, "need_now"), now),
                _marked(need, now),
                DASH if add is None else f"+{_plain(add, 0)}" if add else "none",
                _plain(_number(plan, "spare"), 0),
                _crossed(service)[0],
                _missed(plan),
            ]
        )
    heads = (
        "Service",
        "Providers now",
        "Needed now",
        "Needed in the horizon",
        "To add",
        "Spare in that",
        "Too few from",
        "Bound missed before",
    )
    empty = "There are no services: the journal has no reports of load yet."
    limit = (
        "The limit is what the providers of now can take at the target utilisation. Load is as the providers report it."
    )
    table = _table("Providers and dates", heads, rows, empty, len(rows))
    return _section("glance", "At a glance", _para(limit) if rows else "", table)


def _service(service: _Service) -> str:
    parts = [_chart(service), *_said(service)]
    if service.history or service.forecast:
        parts.append(f"<details><summary>The same in numbers, day by day</summary>{_days(service)}</details>")
    return _section(service.ident, f"Service {_name(service.name)}", *parts)


def _chart(service: _Service) -> str:
    target = _number(service.plan, "target_utilisation")
    ends = [at for row in service.history[-1:] if (at := _time(row, "h"))]
    history = [row for row in service.history if ends and _utc(row["h"]) > ends[0] - SHOWN]

    def points(rows: Sequence[Row], name: str) -> list[tuple[float, float | None]]:
        """With a gap where hours are missing."""
        found: list[tuple[float, float | None]] = []
        for row in rows:
            at = _utc(row["h"]).timestamp()
            if found and at - found[-1][0] > 3600:
                found.append((found[-1][0] + 3600, None))
            found.append((at, _number(row, name)))
        return found

    capacity = points(history, "capacity")
    if service.capacity is not None and service.forecast:
        # What the providers of today can take, as far as the forecast goes.
        capacity += [(_utc(row["h"]).timestamp(), service.capacity) for row in service.forecast]
    lines = [
        Line("demand", "demand", points(history, "demand_mean")),
        Line("forecast (p50)", "p50", points(service.forecast, "p50")),
        Line("bound of the hour", "bound", points(service.forecast, "hour_bound")),
        Line("capacity", "capacity", capacity),
    ]
    if target is not None and service.capacity is not None:
        wanted = [(at, value * target if value is not None else None) for at, value in capacity]
        lines.append(Line(f"{_percent(target, 0)} of it", "target", wanted))
    band = [
        (_utc(row["h"]).timestamp(), low, max(low, high))
        for row in service.forecast
        if (low := _number(row, "p50")) is not None and (high := _number(row, "p95")) is not None
    ]
    dates = [
        ("now", "now", _time(service.plan, "issued") or _time(service.told, "issued")),
        ("bound at the limit", "crossed", _time(service.plan, "exhaust_bound")),
        ("p50 at the limit", "crossed", _time(service.plan, "exhaust_p50")),
    ]
    title = f"Demand and forecast of {service.name}"
    drawn = chart(
        service.ident,
        title,
        f"Load by the hour. The bound reaches the limit: {_crossed(service)[0]}. The numbers follow as a table.",
        "load (as reported)",
        lines,
        [Band("p50 to p95", "band", band)],
        [Mark(label, kind, at.timestamp()) for label, kind, at in dates if at],
    )
    if not drawn:
        return _para("There is no chart: no hour of this service has a known load.", "empty")
    caption = f"<figcaption>Demand and forecast of {_name(service.name)}</figcaption>"
    return f'<figure class="wide" tabindex="0">{drawn}{caption}</figure>'


def _said(service: _Service) -> Iterable[str]:
    plan, told = service.plan, service.told
    if not plan:
        yield _para("There is no plan for this service: it was not planned in the last run.", "empty")
    else:
        bound, middle = _crossed(service)
        facts = [
            ("Providers now", _plain(_number(plan, "providers_now"), 0)),
            ("Needed now", _plain(_number(plan, "need_now"), 0)),
            ("Needed in the horizon", _plain(_number(plan, "need_horizon"), 0)),
            ("Spare in that", _plain(_number(plan, "spare"), 0)),
            ("Rule that decided", _name(plan["rule"]) if not _missing(plan.get("rule")) else DASH),
            ("Highest bound", f"{_plain(_number(plan, 'peak_bound'))} (load)"),
            ("Too few from, by the bound", bound),
            ("Too few from, by p50", middle),
            ("Bound missed before", _missed(plan)),
        ]
        yield '<dl class="facts">' + "".join(f"<div><dt>{k}</dt><dd>{v}</dd></div>" for k, v in facts) + "</dl>"
        if not _missing(plan.get("note")) and plan["note"]:
            yield f'<p class="note">{_name(plan["note"])}</p>'
    if told:
        mase, naive = _number(told, "mase"), _number(told, "mase_naive")
        yield (
            f"<p>Model: {_name(told.get('model'))}, on {_plain(_number(told, 'seasons'))} seasons. On past parts of "
            f"this very series its error (MASE) was {_plain(mase, 2)}, that of the seasonal naive {_plain(naive, 2)}; "
            f"p95 held in {_percent(_number(told, 'coverage'))} of the hours. At past moments the bound was missed: "
            f"{_missed(told)}, {_plain(_number(told, 'bound_ahead_h'), 0)} hours ahead; it stood at "
            f"{_plain(_number(told, 'over_provision'), 2)} times the peak in the median.</p>"
        )
        if not _missing(told.get("flag")) and told["flag"]:
            yield f'<p class="note">Flag: {_name(told["flag"])}</p>'
    else:
        yield _para("There is no forecast for this service.", "empty")


def _days(service: _Service) -> str:
    days: dict[str, tuple[list[Row], list[Row]]] = {}
    for place, rows in enumerate((service.history, service.forecast)):
        for row in rows:
            days.setdefault(_utc(row["h"]).strftime("%Y-%m-%d"), ([], []))[place].append(row)
    cells = [
        [
            day,
            _plain(_mean(_number(row, "demand_mean") for row in past)),
            _plain(_most(_number(row, "demand_mean") for row in past)),
            _plain(_most(_number(row, "capacity") for row in past)),
            _plain(_most(_number(row, "providers_min") for row in past), 0),
            _plain(_most(_number(row, "p50") for row in to_come)),
            _plain(_most(_number(row, "p95") for row in to_come)),
            _plain(_most(_number(row, "hour_bound") for row in to_come)),
        ]
        for day, (past, to_come) in sorted(days.items(), reverse=True)
    ]
    heads = ("Day (UTC)", "Demand, mean", "highest hour", "Capacity", "Providers", "p50, highest", "p95", "Bound")
    return _table("Load by day", heads, cells, "", cut=2 * ROWS)


def _reliability(days: Sequence[Row]) -> str:
    found: dict[tuple[str, str], list[Row]] = {}
    for row in days:
        found.setdefault((str(row.get("service")), str(row.get("instance"))), []).append(row)
    flaky = {who: own for who, own in found.items() if any(_yes(row, "flaky") for row in own)}

    def worst(own: list[Row]) -> tuple[float, float]:
        return -sum(_yes(row, "flaky") for row in own), -(_mean(_number(row, "miss_ratio") for row in own) or 0)

    rows = [
        [
            _name(instance),
            _name(service),
            escape(" and ".join(sorted({row["judged"] for row in own if row.get("judged")})) or DASH),
            f"{sum(_yes(row, 'flaky') for row in own)} of {len(own)}",
            _percent(_mean(_number(row, "miss_ratio") for row in own)),
            _percent(_most(_number(row, "miss_ratio") for row in own)),
            _plain(_total(_number(row, "outages") for row in own), 0),
            _span(_total(_number(row, "downtime_s") for row in own)),
            _plain(_most(_number(row, "flap_pct") for row in own)),
        ]
        for (service, instance), own in sorted(flaky.items(), key=lambda item: (*worst(item[1]), item[0]))
    ]
    heads = (
        "Provider",
        "Service",
        "Judged by",
        "Flaky days",
        "Beats missed, mean",
        "worst day",
        "Outages",
        "Down",
        "Flapping, most (%)",
    )
    empty = (
        f"None of {_count(len(found), 'provider')} was found flaky." if found else "No provider has been judged yet."
    )
    return _section("flaky", "Flaky providers", _table("Providers that were flaky on some day", heads, rows, empty))


def _balance(days: Sequence[Row]) -> str:
    found = _by_service(days)
    rows = []
    for service, own in sorted(found.items()):
        bad = [row for row in own if _yes(row, "unbalanced")]
        if not bad:
            continue
        hot = Counter(name for row in bad for name in _texts(row.get("hot_instances")))
        rows.append(
            [
                _name(service),
                f"{len(bad)} of {len(own)}",
                _plain(_mean(_number(row, "cov") for row in bad), 2),
                _plain(_mean(_number(row, "max_mean") for row in bad), 2),
                _plain(_mean(_number(row, "gini") for row in bad), 2),
                ", ".join(f"{_name(name)} ({_count(count, 'day')})" for name, count in hot.most_common(EXAMPLES))
                or DASH,
            ]
        )
    heads = ("Service", "Unbalanced days", "CoV", "Highest to mean", "Gini", "Hot providers")
    empty = f"None of {_count(len(found), 'service')} was unbalanced." if found else "No service has been compared yet."
    return _section("balance", "Unbalanced services", _table("Services on their unbalanced days", heads, rows, empty))


def _promises(services: Sequence[_Service]) -> str:
    rows = []
    for service in services:
        own = service.evaluations
        if not own:
            continue
        missed = [row["peak_missed"] for row in own if not _missing(row.get("peak_missed"))]
        rows.append(
            [
                _name(service.name),
                _plain(len(own), 0),
                _percent(_mean(_number(row, "mape") for row in own)),
                _percent(_mean(_number(row, "promised_coverage") for row in own)),
                _percent(_mean(_number(row, "coverage") for row in own)),
                _percent(_mean(_number(row, "promised_miss_most") for row in own), 0),
                f"{_percent(sum(map(bool, missed)) / len(missed))} of {len(missed)}" if missed else DASH,
                f"{_plain(_number(service.told, 'over_provision'), 2)} x",
            ]
        )
    heads = (
        "Service",
        "Forecasts judged",
        "Error (MAPE)",
        "p95 holds: promised",
        "came true",
        "Peaks over the bound: at most",
        "came true",
        "Bound to peak",
    )
    empty = (
        "No past forecast can be judged yet: the hours that were forecast have not been measured. "
        "What the models reached on the past of each series stands with the service."
    )
    return _section(
        "promises",
        "Promises and what became of them",
        _table("Past forecasts against what was measured", heads, rows, empty),
    )


def _quality(tables: Tables) -> str:
    ledger, quarantine = tables.get("ledger", ()), tables.get("quarantine", ())
    read = _total(_number(row, "records") for row in ledger)
    parts = [
        _para(f"{_count(len(ledger), 'segment')} read, with {_count(read or 0, 'record')}.")
        if ledger
        else _para("No segment has been read.", "empty")
    ]
    reasons: dict[str, list[Row]] = {}
    for row in quarantine:
        reasons.setdefault(str(row.get("reason")), []).append(row)
    rows = []
    for reason, own in sorted(reasons.items(), key=lambda item: (-len(item[1]), item[0])):
        names = sorted({str(row.get("segment")) for row in own})
        more = f" and {len(names) - EXAMPLES} more" if len(names) > EXAMPLES else ""
        rows.append([_name(reason), _plain(len(own), 0), ", ".join(map(_name, names[:EXAMPLES])) + more])
    parts.append(
        _table(
            "Quarantined", ("Reason", "Entries", "Segments"), rows, "Nothing is in quarantine: every line was a record."
        )
    )
    rows = [
        [
            _name(f"{row.get('broker')} {row.get('boot')}"),
            f"{_number(row, 'seq_from') or 0:.0f} to {_number(row, 'seq_to') or 0:.0f}",
            _plain(_number(row, "records"), 0),
            "the broker, which dropped them" if _yes(row, "known") else "a gap in the numbers alone",
        ]
        for row in tables.get("loss", ())
    ]
    heads = ("Broker and start", "Numbers", "Records", "Told by")
    parts.append(_table("Lost", heads, rows, "No record is known to be lost: the numbers have no gap."))
    downs = _in_time(tables.get("broker_down", ()), "start")
    rows = [
        [
            _name(row.get("broker")),
            _when(_time(row, "start")),
            _when(_time(row, "end")),
            _span((end - _utc(row["start"])).total_seconds() if (end := _time(row, "end")) else None),
        ]
        for row in downs
    ]
    if "broker_down" in tables:
        empty = "The broker was there all the time."
        parts.append(_table("The broker was not there", ("Broker", "From", "To", "For"), rows, empty))
        if rows:
            parts.append(
                _para("Nobody is blamed for silence in these times. A clock that was set forward looks the same.")
            )
    parts += _set_back(tables)
    rows_of = _by("member", tables.get("unknown_members", ()))
    rows = [
        [_name(member), _plain(_total(_number(row, "records") for row in own), 0)] for member, own in rows_of.items()
    ]
    empty = "No record had a member that this version does not know."
    parts.append(_table("Members that are not known here", ("Member", "Records"), rows, empty))
    return _section("quality", "Quality of the data", *parts)


def _set_back(tables: Tables) -> Iterator[str]:
    told = tables.get("set_back")
    if told is None:
        return
    rows = [
        [
            _name(f"{row.get('broker')} {row.get('boot')}"),
            _plain(_number(row, "seq"), 0),
            _when(_time(row, "before")),
            _when(_time(row, "after")),
            _span((before - after).total_seconds()),
        ]
        for row in sorted(told, key=lambda row: (str(row.get("broker")), str(row.get("boot")), row["seq"]))
        if (before := _time(row, "before")) and (after := _time(row, "after"))
    ]
    heads = ("Broker and start", "Record", "From", "To", "By")
    yield _table("A broker's clock was set back", heads, rows, "No clock of a broker was set back.")
    if rows:
        yield _para("What such a clock showed twice counts once, and records are in the order of their numbers.")


def _by(name: str, rows: Sequence[Row]) -> dict[str, list[Row]]:
    found: dict[str, list[Row]] = {}
    for row in sorted(rows, key=lambda row: str(row.get(name))):
        found.setdefault(str(row.get(name)), []).append(row)
    return found


def _unclaimed(services: Sequence[_Service], tables: Tables) -> str:
    """What a reader might look for and not find, each with the reason."""
    said: list[tuple[Callable[[_Service], object], str]] = [
        (
            lambda service: service.history and service.capacity is None,
            "have no full load in the broker's configuration, so nothing is said about their capacity or its end:",
        ),
        (
            lambda service: not service.history,
            "have no reports of load, so nothing is said about their demand:",
        ),
        (
            lambda service: service.history and not service.forecast,
            "have no forecast:",
        ),
        (
            lambda service: service.forecast and not _missing(service.told.get("flag")) and service.told["flag"],
            "have a forecast with a flag, which is to be trusted less:",
        ),
        (
            lambda service: service.forecast and not service.evaluations,
            "have no past forecast that could be judged by now:",
        ),
    ]
    items = []
    for holds, reason in said:
        names = [service.name for service in services if holds(service)]
        if names:
            items.append(f"{_count(len(names), 'service')} {escape(reason)} {', '.join(map(_name, names))}.")
    by_connection = {
        str(row.get("instance")) for row in tables.get("gold_provider_day", ()) if row.get("judged") == "connection"
    }
    if by_connection:
        items.append(
            f"{_count(len(by_connection), 'provider')} promised no heartbeats and "
            f"{'is' if len(by_connection) == 1 else 'are'} judged by the connection: no ratio of missed beats is known."
        )
    items.append(
        "Records that a broker had not yet written when it was killed are missing without a trace: "
        "numbers are given anew at each start."
    )
    items.append(
        "A provider that was heard for a short time only, or once, is not called flaky: a few missed beats are chance."
    )
    items.append("A date at which a limit is reached is known only as far as the forecast goes.")
    return _section(
        "unclaimed", "What is not claimed", "<ul>" + "".join(f"<li>{item}</li>\n" for item in items) + "</ul>"
    )


STYLE = """
:root { color-scheme: light dark; --page: #fff; --text: #1c2330; --faint: #5b6472; --rule: #dfe3ea; --soft: #f4f6f9;
  --demand: #2456a6; --p50: #a04a00; --band: #e8a15a; --bound: #8a2be2; --capacity: #b3261e; --good: #1a7f37; }
@media (prefers-color-scheme: dark) { :root { --page: #12161d; --text: #e4e8ef; --faint: #9aa5b5; --rule: #2c3442;
  --soft: #1a202a; --demand: #7fb0ff; --p50: #ffb06b; --band: #b8742f; --bound: #c79bff; --capacity: #ff8a80;
  --good: #6fd08c; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--page); color: var(--text); font: 16px/1.5 system-ui, sans-serif; }
main { max-width: 62rem; margin: 0 auto; padding: 1rem; }
h1 { margin: .5rem 0; } h2 { margin: 2.2rem 0 .5rem; border-bottom: 1px solid var(--rule); overflow-wrap: anywhere; }
nav ul { display: flex; flex-wrap: wrap; gap: .3rem 1.2rem; list-style: none; padding: 0; margin: 0; }
a { color: var(--demand); } bdi { overflow-wrap: anywhere; }
.wide { overflow-x: auto; margin: .8rem 0; }
table { border-collapse: collapse; width: 100%; font-size: .875rem; font-variant-numeric: tabular-nums; }
caption { text-align: left; color: var(--faint); padding: .2rem 0; }
th, td { padding: .3rem .6rem; border-bottom: 1px solid var(--rule); text-align: right; vertical-align: top; }
th:first-child, .name { text-align: left; } thead th { background: var(--soft); font-weight: 600; }
tbody th { font-weight: 500; min-width: 10rem; } td.name { min-width: 6rem; }
.facts { display: grid; grid-template-columns: repeat(auto-fill, minmax(13rem, 1fr)); gap: .5rem 1rem; }
.facts div { background: var(--soft); padding: .4rem .7rem; border-radius: .4rem; }
dt { color: var(--faint); font-size: .8rem; } dd { margin: 0; font-weight: 600; overflow-wrap: anywhere; }
.note { border-left: .25rem solid var(--p50); padding-left: .8rem; } .empty { color: var(--faint); font-style: italic; }
strong.bad { color: var(--capacity); } strong.good { color: var(--good); }
figure svg { display: block; width: 100%; min-width: 40rem; height: auto; }
figcaption { color: var(--faint); font-size: .875rem; }
svg text { fill: var(--text); font: 11px system-ui, sans-serif; } svg .unit, svg .tick { fill: var(--faint); }
svg .label { paint-order: stroke; stroke: var(--page); stroke-width: 3px; }
svg path { fill: none; stroke-width: 1.4; } .grid { stroke: var(--rule); } .axis { stroke: var(--faint); }
.demand { stroke: var(--demand); } .p50 { stroke: var(--p50); } .bound { stroke: var(--bound); stroke-dasharray: 6 3; }
.capacity { stroke: var(--capacity); } .target { stroke: var(--capacity); stroke-dasharray: 2 3; }
svg path.band { fill: var(--band); fill-opacity: .35; stroke: none; }
.now { stroke: var(--faint); stroke-dasharray: 3 3; } .crossed { stroke: var(--capacity); stroke-width: 2; }
@media print { :root { --page: #fff; --text: #000; --faint: #444; --rule: #bbb; --soft: #eee; --demand: #2456a6;
  --p50: #a04a00; --band: #e8a15a; --bound: #8a2be2; --capacity: #b3261e; --good: #1a7f37; }
  main { max-width: none; padding: 0; } nav { display: none; } h2 { break-after: avoid; }
  figure, tr, .facts { break-inside: avoid; } figure svg { min-width: 0; } .wide { overflow: visible; } }
"""
"""The page's style sheet. No fonts are fetched, and colours have a contrast of 4.5 with their ground."""
