"""The description of every table and column: `python -m spark.capacity.tables.document` prints docs/tables.md.

Rules:
- A column of one name means the same in each table, unless `OF_TABLE` says otherwise.
- A test holds docs/tables.md to the output of this, and every column of the schema to a meaning.
"""

import textwrap
from collections.abc import Sequence

from spark.capacity.rollup.broker_presence import SILVER_SIGNS
from spark.capacity.rollup.clock_jumps import SILVER_SET_BACK
from spark.capacity.rollup.end_state import SILVER_CARRY
from spark.capacity.tables.schema import SNAPSHOT, TABLES, Table
from spark.capacity.tables.time_windows import MINUTES

WORKED_ON: Sequence[Table] = (*TABLES.values(), SILVER_SIGNS, SILVER_SET_BACK, SILVER_CARRY)
"""All tables of the out directory."""

EVERY: Sequence[Table] = (*WORKED_ON, SNAPSHOT)
"""The same, and the one that is in the lake only."""

PURPOSES = {
    "bronze_records": "every good record of the journal once, by (broker, boot, seq)",
    "bronze_runs": "unbroken runs of record numbers, and their times",
    "bronze_pairs": "registrations, with their instances, in the file of bronze_records that has the same name",
    "quarantine": "lines and segments that are no records, and why",
    "ledger": "segments that were read",
    "folders": "folders of the journal that were read",
    "loss": "records that were numbered and are not there",
    "unknown_members": "members of records that this version does not have",
    "silver_provider_5m": "five-minute windows of each provider",
    "gold_service_1h": "hours of each service",
    "gold_pool_1h": "hours of all servers of services that share some, under each of these services",
    "gold_provider_day": "reliability of each provider on a day",
    "gold_balance_day": "how evenly the load of a service lay on its providers on a day",
    "gold_forecast": "demand of the hours to come, by the run that forecast it",
    "gold_plan": "providers that each service needs, by the run that planned it",
    "evaluation": "past forecasts, compared with the outcome",
    "silver_signs": "times in which a broker gave signs of life",
    "silver_set_back": "records that show that a broker's clock was set back",
    "snapshot": "versions of the tables in the lake that one run published: each version of this table has one set",
    "silver_carry": "state of each registration at the end of a date, for the next date",
}

MEANINGS = {
    "name": ("", "name of the table"),
    "version": ("", "its version in the lake"),
    "snapshot": ("", "random name of the set"),
    "layout": ("", "version of the layout of the out directory"),
    "to_do": ("UTC dates", "dates with records that are not in the tables made of them yet"),
    "date": ("UTC date", "date of the row; the folder of a dated table"),
    "v": ("", "version of the record"),
    "ts": ("UTC", "time of the record by the broker's clock"),
    "broker": ("", "name of the broker in the journal"),
    "boot": ("", "start of the broker that wrote the record"),
    "seq": ("", "number of the record since that boot, from 1"),
    "event": ("", "register, unregister, expire, hb, load, alive or drop"),
    "wire": ("", "protocol of the connection"),
    "service": ("", "name of the service"),
    "provider": ("", "registry's id of the provider, another one for each registration"),
    "label": ("", "label of the provider"),
    "endpoint": ("host:port", "address at which the provider offers the service"),
    "protocol": ("", "protocol of the service"),
    "interval_ms": ("ms", "agreed time between heartbeats"),
    "hb_seq": ("", "number of the heartbeat since the registration"),
    "load": ("as reported", "load of the provider"),
    "full_load": ("as reported", "load at which a provider is full; null: nothing is claimed about capacity"),
    "in_flight": ("requests", "requests being handled"),
    "requests": ("requests", "requests completed"),
    "errors": ("requests", "requests that failed"),
    "latency_ms": ("ms", "mean time in service of the record's requests"),
    "rtt_ms": ("ms", "time of a question to the provider and back"),
    "sent_ts": ("UTC", "time of the message by the provider's clock"),
    "dropped": ("records", "records that the broker gave up before this one"),
    "coalesced": ("reports", "reports that this record stands for beside its own"),
    "why": ("", "reason of an event"),
    "instance": ("", "provider across its restarts: endpoint, else label, else its number"),
    "segment": ("", "name of the segment under `segments`"),
    "seq_from": ("", "first number"),
    "seq_to": ("", "last number"),
    "ts_from": ("µs since 1970", "time of the first record"),
    "ts_to": ("µs since 1970", "time of the last record"),
    "earliest": ("µs since 1970", "earliest time of a record"),
    "latest": ("µs since 1970", "latest time of a record"),
    "line": ("", "number of the line; 0: the whole segment"),
    "reason": ("", "why it is no record"),
    "raw": ("", "beginning of the line"),
    "run": ("", "run that wrote the row, by its start"),
    "folder": ("", "folder below `segments`"),
    "state": ("ns since 1970", "last change of the names in it"),
    "size": ("bytes", "size of the file"),
    "changed": ("ns since 1970", "ctime of the file"),
    "digest": ("", "BLAKE2 digest of the file"),
    "records": ("records", "number of records"),
    "quarantined": ("lines", "lines in quarantine; 1 for a whole segment"),
    "reach": ("", "highest number that unreadable records at the end are known to have"),
    "ingested_at": ("UTC", "start of the run that read it"),
    "known": ("", "a drop record has the loss"),
    "member": ("", "name of the member"),
    "w": ("UTC", "start of the window"),
    "hb": ("heartbeats", "heartbeats received"),
    "hb_expected": ("heartbeats", "heartbeats due; null where none were agreed"),
    "connected_s": ("s", "time registered while the broker was up"),
    "up_s": ("s", "time with signs of life"),
    "load_mean": ("as reported", "mean load over the time up"),
    "load_max": ("as reported", "highest reported load"),
    "busy_s": ("s", "sum of the service times of the `timed` requests"),
    "timed": ("requests", "requests with a known latency"),
    "rtt_max": ("ms", "longest time of a question and back"),
    "broker_up_s": ("s", "time for which the broker was up"),
    "down_s": ("s", "time that counts as down"),
    "awaited_s": ("s", "time in which it need not have returned after its broker did"),
    "outages": ("", "outages that began"),
    "gap_max": ("s", "longest silence of a provider judged by heartbeats"),
    **{
        f"load_{number}": ("as reported", f"mean load in minute {number}; null: the same in all, or one is unknown")
        for number in range(1, MINUTES + 1)
    },
    "h": ("UTC", "start of the hour"),
    "demand_mean": ("as reported", "mean demand of the service, absent providers filled in"),
    "demand_p95": ("as reported", "95 % quantile of the demand of its windows"),
    "demand_max": ("as reported", "demand of its highest window"),
    "demand_peak": ("as reported", "demand of its highest minute; of its highest window where no minutes are known"),
    "capacity": ("as reported", "mean full load of the providers that were up"),
    "providers_mean": ("providers", "mean number of providers, by their time up"),
    "providers_min": ("providers", "least number of providers in a window, rounded"),
    "util": ("share", "demand by capacity"),
    "cov": ("", "standard deviation of the providers' loads by their mean"),
    "max_mean": ("", "highest load of a provider by the mean"),
    "gini": ("", "Gini coefficient of the loads"),
    "service_s": ("s", "mean time that a request took"),
    "judged": ("", "beats or connection: the sign of life by which the provider is judged"),
    "miss_ratio": ("share", "share of the expected heartbeats that did not come"),
    "downtime_s": ("s", "time down"),
    "mtbf_s": ("s", "mean time up between outages"),
    "mttr_s": ("s", "mean length of an outage"),
    "flap_pct": ("%", "highest share of changes among 21 windows in a row"),
    "phi_max": ("", "surprise of the longest silence: 8 is one in 10^8"),
    "score": ("share", "share of time up, times share of beats that came"),
    "flaky": ("", "misses more heartbeats than chance explains, or flaps"),
    "hot_instances": ("", "instances with one and a half times the even share of load"),
    "unbalanced": ("", "it has a hot instance, or uneven ones"),
    "issued": ("UTC", "hour as of which the run forecast and planned"),
    "model": ("", "model of the forecast"),
    "p50": ("as reported", "forecast of the hour's mean demand"),
    "p95": ("as reported", "value that one hour in twenty exceeds"),
    "hour_bound": ("as reported", "bound of the peaks, of a minute or five, of that hour"),
    "peak_bound": ("as reported", "bound of the peaks, of a minute or five, of the horizon"),
    "factor": ("", "factor of the demand in that hour, by growth and events of the policy file; null: 1"),
    "mase": ("", "mean error on past folds by that of the seasonal naive model in the history"),
    "mase_naive": ("", "the same of the seasonal naive model"),
    "coverage": ("share", "share of past hours at or below p95"),
    "bound_trials": ("", "past moments at which the bound was tried"),
    "bound_missed": ("", "those of them at which the peak was above it"),
    "bound_miss_most": ("share", "rate of misses that this leaves possible, with 95 % confidence"),
    "bound_ahead_h": ("h", "horizon of those moments; 0: it was never tried"),
    "odds_day": ("share", "odds that the peak of the next day is above the bound"),
    "odds_trials": ("days", "past days on which such odds would have been stated"),
    "odds_missed": ("days", "those of them with a peak above the bound"),
    "odds_said": ("share", "mean of the odds on these days; null: none was tried"),
    "odds_week": ("share", "odds that the peak of the next week is above the bound; null: less than a week is known"),
    "odds_week_trials": ("weeks", "past weeks for which such odds would have been stated"),
    "odds_week_missed": ("weeks", "those of them with a peak above the bound"),
    "odds_week_said": ("share", "mean of the odds for these weeks; null: none was tried"),
    "hours_tried": ("h", "hours of past weeks at which the bound of an hour was tried"),
    "hours_missed": ("h", "those of them with a peak above it"),
    "weeks_tried": ("weeks", "those past weeks"),
    "weeks_missed": ("weeks", "those of them with such an hour"),
    "over_provision": ("", "bound by true peak at those moments, median"),
    "seasons": ("", "days or weeks of history"),
    "flag": ("", "a reason to trust the forecast less, as a sentence"),
    "providers_now": ("providers", "providers of the last full hour"),
    "need_now": ("providers", "providers needed for the bound of the hour of the plan, by the policy"),
    "need_horizon": ("providers", "providers needed for the peak bound, by the policy"),
    "add": ("providers", "providers missing in the horizon"),
    "free": ("providers", "providers that may go, where the state is `can free`"),
    "spare": ("providers", "providers in `need_horizon` beyond those that the bound keeps busy"),
    "rule": ("", "rule that decided on the number"),
    "exhaust_p50": ("UTC", "first hour whose need by p50 is more than there are: as expected"),
    "exhaust_bound": ("UTC", "first hour whose need by its bound is more than there are: at the earliest"),
    "growth_per_week": ("share", "growth of the weekly peaks"),
    "weekly_peaks": (
        "as reported",
        "peaks of the 13 weeks before the plan, oldest first: by the minute if all have minutes",
    ),
    "trend_level": ("as reported", "peak of the last week by the trend of the weekly peaks"),
    "exhaust_trend": ("UTC", "week from which that growth makes the providers of now too few, within 13 weeks"),
    "demand_now": ("as reported", "highest demand of the last full hour, by the minute where minutes are known"),
    "demand_day": ("as reported", "highest demand of the last day"),
    "highest": ("as reported", "highest peak of the last eight weeks, of which the peak bound is made"),
    "highest_at": ("UTC", "hour of that peak"),
    "known_hours": ("h", "hours with a known load"),
    "policy": ("", "pattern of the policy of the service"),
    "headroom": ("", "factor of the bound over the highest peak, by the policy or the length of the history"),
    "target_utilisation": ("share", "part of the full load that a provider may carry, by the policy"),
    "spares": ("providers", "providers beyond those, by the policy"),
    "n_plus": ("providers", "providers that may fail at the bound without an overload, by the policy"),
    "providers_least": ("providers", "least number of providers, by the policy"),
    "providers_most": ("providers", "largest number of providers, by the policy; null: no limit"),
    "cost": ("", "cost of a provider, by the policy"),
    "erlangs": ("requests", "mean number of requests in service in the last full hour"),
    "shared_providers": ("providers", "providers that offer other services as well"),
    "pool": ("", "pool of services that share servers, by the name of the first; null: it shares none"),
    "own_providers": ("providers", "mean number of the providers of the service itself"),
    "own_peak": ("as reported", "finest peak of the loads of these"),
    "note": ("", "a restriction of the plan, as a sentence"),
    "horizon_h": ("h", "hours of the forecast that are over and known"),
    "mape": ("share", "mean absolute error of p50 by the mean demand"),
    "peak_missed": ("", "the highest demand, by the minute where minutes are known, was above the peak bound"),
    "promised_coverage": ("share", "`coverage` as it was promised"),
    "promised_miss_most": ("share", "`bound_miss_most` as it was promised"),
    "promised_mase": ("", "`mase` as it was promised"),
    "at": ("µs since 1970", "time of the last record"),
    "ended": ("", "how that record ended the registration: 0 closed, 3 withdrawn; null: it did not"),
    "interval": ("µs", "agreed time between heartbeats"),
    "interval_seq": ("", "number of the record that had it"),
    "load_seq": ("", "number of the record that had it"),
    "full_load_seq": ("", "number of the record that had it"),
    "last_sign": ("µs since 1970", "last sign of the broker's boot"),
    "first": ("UTC", "first sign"),
    "last": ("UTC", "last sign before a silence of more than 90 s, or midnight"),
    "since": ("", "number of the record before"),
    "before": ("UTC", "time that the record before showed"),
    "after": ("UTC", "time that this record showed"),
}

OF_TABLE = {
    ("bronze_records", "requests"): ("requests", "completed since the provider's record before that had them"),
    ("bronze_records", "errors"): ("requests", "those of them that failed"),
    ("bronze_pairs", "seq"): ("", "number of the last record"),
    ("bronze_pairs", "load"): ("as reported", "load that was reported last"),
    ("bronze_pairs", "full_load"): ("as reported", "full load that was reported last"),
    ("silver_provider_5m", "in_flight"): ("requests", "mean of the numbers that it reported"),
    **{
        (name, column): told
        for name in ("gold_service_1h", "gold_pool_1h")
        for column, told in {
            "in_flight": ("requests", "mean number of requests that all providers were handling"),
            "observed_s": ("s", "time for which the broker was up; requests are those of that time"),
        }.items()
    },
    ("gold_plan", "state"): (
        "",
        "overloaded, no N+1, below policy, can free, enough, too little history or unknown",
    ),
    ("silver_carry", "provider"): ("", "registry's id of the provider"),
    **{(name, "date"): ("UTC date", "date of `issued`") for name in ("gold_forecast", "gold_plan", "evaluation")},
    ("evaluation", "coverage"): ("share", "share of the hours at or below p95"),
}


def meaning(table: Table, column: str) -> tuple[str, str]:
    """Return unit and meaning of a column."""
    return OF_TABLE.get((table.name, column)) or MEANINGS[column]


def _described(table: Table, name: str) -> str:
    """Return the text of a column: type, unit and meaning."""
    unit, text = meaning(table, name)
    kind = table.schema[name].dataType.simpleString()
    return f"`{name}` ({', '.join(filter(None, (kind, unit)))}): {text}."


def markdown() -> str:
    """Return docs/tables.md: the tables with their columns, and each meaning once."""
    lines = [
        "# Tables of the capacity jobs",
        "",
        "Made by `python -m spark.capacity.tables.document`. A table is a folder of Parquet files; a dated one has a",
        "folder `date=YYYY-MM-DD` for each UTC date. Times are timestamps in UTC. Loads are in the unit",
        "that the providers report. Unknown values are null.",
        "",
        "## Tables",
        "",
    ]
    columns: dict[str, str] = {}
    for table in EVERY:
        names = []
        for name in table.schema.names:
            text = _described(table, name)
            exception = (table.name, name) in OF_TABLE or columns.setdefault(name, text) != text
            names.append(text[:-1] if exception else f"`{name}`")
        dated = ", dated" if table.dated else ""
        item = f"**{table.name}**: {PURPOSES[table.name]}{dated}. {'; '.join(names)}."
        lines += textwrap.wrap(item, 120, initial_indent="- ", subsequent_indent="  ", break_on_hyphens=False)
    lines += ["", "## Columns", ""]
    for item in columns.values():  # In the order of the tables, since a meaning may refer to the column before.
        lines += textwrap.wrap(item, 120, initial_indent="- ", subsequent_indent="  ", break_on_hyphens=False)
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    print(markdown(), end="")
