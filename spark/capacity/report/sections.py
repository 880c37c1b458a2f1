"""Sections of the report that are of all services: providers, balance, promises, data, and what is not claimed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence

from spark.capacity.report.chart import escape
from spark.capacity.report.markup import (
    DASH,
    Row,
    Tables,
    bdi,
    counted,
    highest_of,
    mean_of,
    missing,
    number_of,
    para,
    percent,
    plain,
    section_html,
    span,
    table_html,
    texts_of,
    time_of,
    total_of,
    utc,
    when,
    yes,
)
from spark.capacity.report.service_section import ServiceRows, by_service, in_time

EXAMPLES = 5
"""Segments that are named for each reason of quarantine."""


def reliability(days: Sequence[Row]) -> str:
    found: dict[tuple[str, str], list[Row]] = {}
    for row in days:
        found.setdefault((str(row.get("service")), str(row.get("instance"))), []).append(row)
    flaky = {who: own for who, own in found.items() if any(yes(row, "flaky") for row in own)}

    def worst(own: list[Row]) -> tuple[float, float]:
        return -sum(yes(row, "flaky") for row in own), -(mean_of(number_of(row, "miss_ratio") for row in own) or 0)

    rows = [
        [
            bdi(instance),
            bdi(service),
            escape(" and ".join(sorted({row["judged"] for row in own if row.get("judged")})) or DASH),
            f"{sum(yes(row, 'flaky') for row in own)} of {len(own)}",
            percent(mean_of(number_of(row, "miss_ratio") for row in own)),
            percent(highest_of(number_of(row, "miss_ratio") for row in own)),
            plain(total_of(number_of(row, "outages") for row in own), 0),
            span(total_of(number_of(row, "downtime_s") for row in own)),
            plain(highest_of(number_of(row, "flap_pct") for row in own)),
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
        f"None of {counted(len(found), 'provider')} was found flaky." if found else "No provider has been judged yet."
    )
    return section_html(
        "flaky", "Flaky providers", table_html("Providers that were flaky on some day", heads, rows, empty)
    )


def balance(days: Sequence[Row]) -> str:
    found = by_service(days)
    rows = []
    for service, own in sorted(found.items()):
        bad = [row for row in own if yes(row, "unbalanced")]
        if not bad:
            continue
        hot = Counter(name for row in bad for name in texts_of(row.get("hot_instances")))
        rows.append(
            [
                bdi(service),
                f"{len(bad)} of {len(own)}",
                plain(mean_of(number_of(row, "cov") for row in bad), 2),
                plain(mean_of(number_of(row, "max_mean") for row in bad), 2),
                plain(mean_of(number_of(row, "gini") for row in bad), 2),
                ", ".join(f"{bdi(name)} ({counted(count, 'day')})" for name, count in hot.most_common(EXAMPLES))
                or DASH,
            ]
        )
    heads = ("Service", "Unbalanced days", "CoV", "Highest to mean", "Gini", "Hot providers")
    empty = (
        f"None of {counted(len(found), 'service')} was unbalanced." if found else "No service has been compared yet."
    )
    return section_html(
        "balance", "Unbalanced services", table_html("Services on their unbalanced days", heads, rows, empty)
    )


def promises(services: Sequence[ServiceRows]) -> str:
    rows = []
    for service in services:
        own = service.evaluations
        if not own:
            continue
        missed = [row["peak_missed"] for row in own if not missing(row.get("peak_missed"))]
        rows.append(
            [
                bdi(service.name),
                plain(len(own), 0),
                percent(mean_of(number_of(row, "mape") for row in own)),
                percent(mean_of(number_of(row, "promised_coverage") for row in own)),
                percent(mean_of(number_of(row, "coverage") for row in own)),
                percent(mean_of(number_of(row, "promised_miss_most") for row in own), 0),
                f"{percent(sum(map(bool, missed)) / len(missed))} of {len(missed)}" if missed else DASH,
                f"{plain(number_of(service.told, 'over_provision'), 2)} x",
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
    for service in services:
        # On a first run: what the same rule would have said at past moments.
        if not service.evaluations and number_of(service.plan, "bound_trials"):
            trials = number_of(service.plan, "bound_trials") or 1
            share = (number_of(service.plan, "bound_missed") or 0) / trials
            rows.append(
                [
                    bdi(service.name),
                    f"{plain(trials, 0)} by back-test",
                    DASH,
                    DASH,
                    percent(number_of(service.told, "coverage")),
                    percent(number_of(service.plan, "bound_miss_most"), 0),
                    f"{percent(share)} of {plain(trials, 0)}",
                    f"{plain(number_of(service.told, 'over_provision'), 2)} x",
                ]
            )
    empty = (
        "No past forecast can be judged yet: the hours that were forecast have not been measured. "
        "What the models reached on the past of each series stands with the service."
    )
    return section_html(
        "promises",
        "Promises and what became of them",
        table_html("Past forecasts against what was measured", heads, rows, empty),
    )


def quality(tables: Tables) -> str:
    ledger, quarantine = tables.get("ledger", ()), tables.get("quarantine", ())
    read = total_of(number_of(row, "records") for row in ledger)
    parts = [
        para(f"{counted(len(ledger), 'segment')} read, with {counted(read or 0, 'record')}.")
        if ledger
        else para("No segment has been read.", "empty")
    ]
    reasons: dict[str, list[Row]] = {}
    for row in quarantine:
        reasons.setdefault(str(row.get("reason")), []).append(row)
    rows = []
    for reason, own in sorted(reasons.items(), key=lambda item: (-len(item[1]), item[0])):
        names = sorted({str(row.get("segment")) for row in own})
        more = f" and {len(names) - EXAMPLES} more" if len(names) > EXAMPLES else ""
        rows.append([bdi(reason), plain(len(own), 0), ", ".join(map(bdi, names[:EXAMPLES])) + more])
    parts.append(
        table_html(
            "Quarantined", ("Reason", "Entries", "Segments"), rows, "Nothing is in quarantine: every line was a record."
        )
    )
    rows = [
        [
            bdi(f"{row.get('broker')} {row.get('boot')}"),
            f"{number_of(row, 'seq_from') or 0:.0f} to {number_of(row, 'seq_to') or 0:.0f}",
            plain(number_of(row, "records"), 0),
            "the broker, which dropped them" if yes(row, "known") else "a gap in the numbers alone",
        ]
        for row in tables.get("loss", ())
    ]
    heads = ("Broker and start", "Numbers", "Records", "Told by")
    parts.append(table_html("Lost", heads, rows, "No record is known to be lost: the numbers have no gap."))
    downs = in_time(tables.get("broker_down", ()), "start")
    rows = [
        [
            bdi(row.get("broker")),
            when(time_of(row, "start")),
            when(time_of(row, "end")),
            span((end - utc(row["start"])).total_seconds() if (end := time_of(row, "end")) else None),
        ]
        for row in downs
    ]
    if "broker_down" in tables:
        empty = "The broker was there all the time."
        parts.append(table_html("The broker was not there", ("Broker", "From", "To", "For"), rows, empty))
        if rows:
            parts.append(
                para("Nobody is blamed for silence in these times. A clock that was set forward looks the same.")
            )
    parts += _set_back(tables)
    rows_of = _by("member", tables.get("unknown_members", ()))
    rows = [
        [bdi(member), plain(total_of(number_of(row, "records") for row in own), 0)] for member, own in rows_of.items()
    ]
    empty = "No record had a member that this version does not know."
    parts.append(table_html("Members that are not known here", ("Member", "Records"), rows, empty))
    return section_html("quality", "Quality of the data", *parts)


def _set_back(tables: Tables) -> Iterator[str]:
    told = tables.get("set_back")
    if told is None:
        return
    rows = [
        [
            bdi(f"{row.get('broker')} {row.get('boot')}"),
            plain(number_of(row, "seq"), 0),
            when(time_of(row, "before")),
            when(time_of(row, "after")),
            span((before - after).total_seconds()),
        ]
        for row in sorted(told, key=lambda row: (str(row.get("broker")), str(row.get("boot")), row["seq"]))
        if (before := time_of(row, "before")) and (after := time_of(row, "after"))
    ]
    heads = ("Broker and start", "Record", "From", "To", "By")
    yield table_html("A broker's clock was set back", heads, rows, "No clock of a broker was set back.")
    if rows:
        yield para("What such a clock showed twice counts once, and records are in the order of their numbers.")


def _by(name: str, rows: Sequence[Row]) -> dict[str, list[Row]]:
    found: dict[str, list[Row]] = {}
    for row in sorted(rows, key=lambda row: str(row.get(name))):
        found.setdefault(str(row.get(name)), []).append(row)
    return found


def unclaimed(services: Sequence[ServiceRows], tables: Tables) -> str:
    """List what the report does not have, each with the reason."""
    said: list[tuple[Callable[[ServiceRows], object], str]] = [
        (
            lambda service: service.measured and service.capacity is None,
            "have no full load in the broker's configuration, so nothing is said about their capacity or its end:",
        ),
        (
            lambda service: not service.measured,
            "have no reports of load, so nothing is said about their demand:",
        ),
        (
            lambda service: service.measured and not service.told,
            "have no forecast:",
        ),
        (
            lambda service: not missing(service.told.get("flag")) and service.told["flag"],
            "have a forecast with a flag, which is to be trusted less:",
        ),
        (
            lambda service: service.told and not service.evaluations,
            "have no past forecast that could be judged by now:",
        ),
    ]
    items = []
    for holds, reason in said:
        names = [service.name for service in services if holds(service)]
        if names:
            items.append(f"{counted(len(names), 'service')} {escape(reason)} {', '.join(map(bdi, names))}.")
    by_connection = {
        str(row.get("instance")) for row in tables.get("gold_provider_day", ()) if row.get("judged") == "connection"
    }
    if by_connection:
        items.append(
            f"{counted(len(by_connection), 'provider')} promised no heartbeats and "
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
    return section_html(
        "unclaimed", "What is not claimed", "<ul>" + "".join(f"<li>{item}</li>\n" for item in items) + "</ul>"
    )
