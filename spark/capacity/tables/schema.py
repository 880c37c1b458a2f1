"""The shape of the journal's records and of every table: names, types and the columns that the folders are made of.

Rules:
- Time is a timestamp in UTC; a date is the UTC date. Seconds, milliseconds and shares are doubles.
- `instance` names a provider across its restarts: its endpoint, or else its label, or else "provider-" and its number.
- A table of which `dated` is true has one folder for each date, and is replaced date by date.
"""

import attrs
import pyarrow as pa
from pyspark.sql.types import (
    ArrayType,
    BooleanType,
    DataType,
    DateType,
    DoubleType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

VERSIONS = (1, 2)
"""The versions of the records that these jobs read (docs/export.md). Version 2 adds `latency_ms`, and says that
`requests`, `errors` and `in_flight` are reported by providers."""

EVENTS = ("register", "unregister", "expire", "hb", "load", "alive", "drop")
"""The events of version 1."""

TYPES: dict[str, DataType] = {
    "boolean": BooleanType(),
    "date": DateType(),
    "double": DoubleType(),
    "doubles": ArrayType(DoubleType()),
    "long": LongType(),
    "string": StringType(),
    "strings": ArrayType(StringType()),
    "timestamp": TimestampType(),
}
"""The types that tables have."""


ARROW: dict[DataType, pa.DataType] = {
    BooleanType(): pa.bool_(),
    DateType(): pa.date32(),
    DoubleType(): pa.float64(),
    LongType(): pa.int64(),
    StringType(): pa.string(),
    TimestampType(): pa.timestamp("us", "UTC"),
    ArrayType(DoubleType()): pa.list_(pa.float64()),
    ArrayType(StringType()): pa.list_(pa.string()),
}
"""The types of columns that are written without Spark."""


def arrow_schema(schema: StructType) -> pa.Schema:
    """Say a schema as Arrow does."""
    return pa.schema([pa.field(column.name, ARROW[column.dataType]) for column in schema])


def columns(**types: str) -> StructType:
    """Make a schema of names and types."""
    return StructType([StructField(name, TYPES[type_]) for name, type_ in types.items()])


@attrs.frozen
class Table:
    """A table of the out directory."""

    name: str
    schema: StructType
    dated: bool = False


RECORD = columns(
    v="long",
    ts="long",
    broker="string",
    boot="string",
    seq="long",
    event="string",
    wire="string",
    service="string",
    provider="long",
    label="string",
    endpoint="string",
    protocol="string",
    interval_ms="long",
    hb_seq="long",
    load="double",
    full_load="double",
    in_flight="long",
    requests="long",
    errors="long",
    latency_ms="double",
    rtt_ms="double",
    sent_ts="long",
    dropped="long",
    coalesced="long",
    why="string",
)
"""A record as it is in a segment: times are microseconds since 1970.

`coalesced` counts for nothing but bronze: a load holds until the next one, however many came between them, and
heartbeats that coalesce are more than any interval expects.
"""

BRONZE_RECORDS = Table(
    "bronze_records",
    columns(
        date="date",
        v="long",
        ts="timestamp",
        broker="string",
        boot="string",
        seq="long",
        event="string",
        wire="string",
        service="string",
        provider="long",
        label="string",
        endpoint="string",
        protocol="string",
        interval_ms="long",
        hb_seq="long",
        load="double",
        full_load="double",
        in_flight="long",
        requests="long",
        errors="long",
        latency_ms="double",
        rtt_ms="double",
        sent_ts="timestamp",
        dropped="long",
        coalesced="long",
        why="string",
        instance="string",
        segment="string",
    ),
    dated=True,
)
"""Every good record once, by (broker, boot, seq)."""

BRONZE_RUNS = Table(
    "bronze_runs",
    columns(
        date="date",
        broker="string",
        boot="string",
        seq_from="long",
        seq_to="long",
        ts_from="long",
        ts_to="long",
        earliest="long",
        latest="long",
        dropped="long",
    ),
)
"""The records of a date, as unbroken runs of numbers, with the times of the first and the last record, and the earliest
and the latest of all; `dropped`: those that the drop record at `seq_to` counts. `ingest/runs.py` has the rules."""

BRONZE_PAIRS = Table(
    "bronze_pairs",
    columns(
        date="date",
        broker="string",
        boot="string",
        service="string",
        provider="long",
        instance="string",
        records="long",
        seq="long",
        at="long",
        ended="long",
        interval="long",
        interval_seq="long",
        load="double",
        load_seq="long",
        full_load="double",
        full_load_seq="long",
    ),
    dated=True,
)
"""The registrations in a file of bronze, each with an instance of it: how many records the file has of it, and what the
last of them tells. The file that tells of a file has the same name.

`seq` and `at` are the number and the time of the last record, and `ended` is the end that it tells of, if any: 0 for a
close, 3 for a withdrawal. `interval` of beats, `load` and `full_load` are those that were told last, each with the
number of its record. Times are microseconds, since 1970 where they are not lengths."""

QUARANTINE = Table("quarantine", columns(segment="string", line="long", reason="string", raw="string", run="string"))
"""Lines that are no records, and why. Line 0 is a whole segment."""

LEDGER = Table(
    "ledger",
    columns(
        segment="string",
        size="long",
        changed="long",
        digest="string",
        records="long",
        quarantined="long",
        broker="string",
        boot="string",
        reach="long",
        run="string",
        ingested_at="timestamp",
    ),
)
"""The segments that were read: `changed` is the ctime of the file in nanoseconds, `digest` is of its bytes. If a
segment has unreadable parts at its end, `reach` is the highest number that its records of a boot are known to have."""

FOLDERS = Table("folders", columns(folder="string", state="long"))
"""The folders of the journal whose segments were all read, and the time of the last change of names in each."""

LOSS = Table(
    "loss", columns(broker="string", boot="string", seq_from="long", seq_to="long", records="long", known="boolean")
)
"""Records that were numbered and are not there; known: a drop record tells of it."""

UNKNOWN_MEMBERS = Table("unknown_members", columns(run="string", member="string", records="long"))
"""Members that version 1 does not have, and how many records had them."""

SILVER_PROVIDER_5M = Table(
    "silver_provider_5m",
    columns(
        date="date",
        service="string",
        instance="string",
        w="timestamp",
        hb="long",
        hb_expected="double",
        connected_s="double",
        up_s="double",
        load_mean="double",
        load_max="double",
        full_load="double",
        requests="long",
        errors="long",
        busy_s="double",
        timed="long",
        in_flight="double",
        rtt_max="double",
        broker_up_s="double",
        down_s="double",
        awaited_s="double",
        outages="long",
        gap_max="double",
        load_1="double",
        load_2="double",
        load_3="double",
        load_4="double",
        load_5="double",
    ),
    dated=True,
)
"""A provider's five-minute window, which starts at `w`: with the time that counts as down, the time for which it was
awaited after its broker's return, the outages that began, and the longest silence of a provider judged by its beats.

`load_1` to `load_5` are the mean loads of its minutes. They are null where these are all the same, and in windows for
which the provider was not up all the time, or its load not known (`rollup/minutes.py`). They have four digits.

`requests` and `errors` are its reports for that time. Of `timed` requests the latency is known: `busy_s` is the
sum of their service times in seconds. `in_flight` is the mean number of requests that it reported to be handling."""

OF_HOUR = {
    "date": "date",
    "service": "string",
    "h": "timestamp",
    "demand_mean": "double",
    "demand_p95": "double",
    "demand_max": "double",
    "demand_peak": "double",
    "capacity": "double",
    "full_load": "double",
    "providers_mean": "double",
    "providers_min": "long",
    "util": "double",
    "cov": "double",
    "max_mean": "double",
    "gini": "double",
    "requests": "long",
    "errors": "long",
    "service_s": "double",
    "in_flight": "double",
    "observed_s": "double",
}

GOLD_SERVICE_1H = Table("gold_service_1h", columns(**OF_HOUR), dated=True)
"""A service's hour, which starts at `h`. `demand_p95` and `demand_max` are of its five-minute windows, `demand_peak` is
of its highest minute, and never less than `demand_max` (`service/demand.py`).

`service_s` is the mean time in seconds that a request took, where providers report requests with their latency;
`in_flight` the mean number of requests that all providers together were handling, where they report that;
`observed_s` the seconds of the hour for which the broker was up, null in an older table: requests are those of that
time."""

OWN_PROVIDERS, OWN_PEAK = "own_providers", "own_peak"

GOLD_POOL_1H = Table(
    "gold_pool_1h", columns(**OF_HOUR, pool="string", **{OWN_PROVIDERS: "double", OWN_PEAK: "double"}), dated=True
)
"""An hour of all servers of a pool together, for each service of it: services that share servers (`service/pools.py`).

`pool` is the name of the pool. `own_providers` and `own_peak` are the mean number of the service's own providers and
the finest peak of their loads."""

PEAKS = ("demand_peak", "demand_max", "demand_mean")
"""Columns of an hour that tell its peak, the finest first. An older table has no `demand_peak`."""

GOLD_PROVIDER_DAY = Table(
    "gold_provider_day",
    columns(
        date="date",
        service="string",
        instance="string",
        judged="string",
        miss_ratio="double",
        outages="long",
        downtime_s="double",
        mtbf_s="double",
        mttr_s="double",
        flap_pct="double",
        phi_max="double",
        score="double",
        flaky="boolean",
    ),
    dated=True,
)
"""Reliability of a provider on a day, judged by "beats" or by "connection"."""

GOLD_BALANCE_DAY = Table(
    "gold_balance_day",
    columns(
        date="date",
        service="string",
        cov="double",
        max_mean="double",
        gini="double",
        hot_instances="strings",
        unbalanced="boolean",
    ),
    dated=True,
)
"""Balance of the load of a service between its providers on a day."""

ODDS = {
    "bound_trials": "long",
    "bound_missed": "long",
    "bound_miss_most": "double",
    "bound_ahead_h": "long",
    "odds_day": "double",
    "odds_trials": "long",
    "odds_missed": "long",
    "odds_said": "double",
    "odds_week": "double",
    "odds_week_trials": "long",
    "odds_week_missed": "long",
    "odds_week_said": "double",
    "hours_tried": "long",
    "hours_missed": "long",
    "weeks_tried": "long",
    "weeks_missed": "long",
}
"""Columns of the record and the odds of a bound, which the plan has from its forecast."""

GOLD_FORECAST = Table(
    "gold_forecast",
    columns(
        date="date",
        service="string",
        issued="timestamp",
        h="timestamp",
        model="string",
        p50="double",
        p95="double",
        hour_bound="double",
        peak_bound="double",
        highest="double",
        highest_at="timestamp",
        headroom="double",
        factor="double",
        mase="double",
        mase_naive="double",
        coverage="double",
        **ODDS,
        over_provision="double",
        seasons="double",
        flag="string",
    ),
    dated=True,
)
"""The demand of a service in the hours to come, as it was forecast at `issued`, with the record of the model on past
folds. `date` is that of `issued`.

`p50` and `p95` are of hourly means, `hour_bound` and `peak_bound` of peaks (`PEAKS`): of that hour, and of the whole
horizon. The bound is `headroom` times the `highest` peak, which came in the hour `highest_at`, if no p50 is above
it. It would have been missed at `bound_missed` of `bound_trials` past moments, `bound_ahead_h` hours ahead; with 95
% confidence its rate of misses is at most `bound_miss_most`. `odds_day` are the odds that the peak of the next day
is above it; on `odds_trials` past days, of which `odds_missed` had such a peak, they were `odds_said` on average.
`odds_week` and its kin are those of the next week. `hours_missed` of `hours_tried` hours of past weeks, in
`weeks_missed` of `weeks_tried` weeks, had a peak above the bound of the hour. The plan takes `factor` times the values
of an hour."""

GOLD_PLAN = Table(
    "gold_plan",
    columns(
        date="date",
        service="string",
        issued="timestamp",
        state="string",
        providers_now="long",
        need_now="long",
        need_horizon="long",
        add="long",
        free="long",
        spare="long",
        rule="string",
        exhaust_p50="timestamp",
        exhaust_bound="timestamp",
        growth_per_week="double",
        weekly_peaks="doubles",
        trend_level="double",
        exhaust_trend="timestamp",
        demand_now="double",
        demand_day="double",
        demand_mean="double",
        peak_bound="double",
        highest="double",
        highest_at="timestamp",
        known_hours="long",
        full_load="double",
        policy="string",
        headroom="double",
        target_utilisation="double",
        spares="long",
        n_plus="long",
        providers_least="long",
        providers_most="long",
        cost="double",
        erlangs="double",
        service_s="double",
        **ODDS,
        shared_providers="long",
        pool="string",
        note="string",
    ),
    dated=True,
)
"""Number of providers that a service needs by its policy, the rule that decided, and the time from which on those of
now are too few.

`state` is one of `State` in `planning/needs.py`. `add` is the number of missing providers, `free` the number that may
go. The members from `policy`, the pattern of the policy, to `cost` are the policy that decided. `demand_day` is the
highest load of the last day, and the load of `known_hours` hours is known. `growth_per_week` is that of the weekly
peaks, as a share of them, from `trend_level` on, and `exhaust_trend` the week in which it makes the providers of now
too few, within 13. `weekly_peaks` are those of the 13 weeks before the plan, oldest first. `demand_now` is the highest
minute of the last full hour, `demand_mean` its mean. `erlangs` is the mean number of requests in service in that hour,
where providers report requests. So many `shared_providers` offer other services as well. Then `pool` is the name of the
pool of these services, and the numbers of the row are those of its union: the same in the row of each of them."""

EVALUATION = Table(
    "evaluation",
    columns(
        date="date",
        service="string",
        issued="timestamp",
        horizon_h="long",
        mape="double",
        coverage="double",
        peak_missed="boolean",
        promised_coverage="double",
        promised_miss_most="double",
        promised_mase="double",
    ),
    dated=True,
)
"""Past forecasts beside the values that came."""

SNAPSHOT = Table(
    "snapshot",
    columns(name="string", version="long", run="string", snapshot="string", layout="long", to_do="strings"),
)
"""The versions of all tables in the lake that belong together. It is in the lake only."""

TABLES = {
    table.name: table
    for table in (
        BRONZE_RECORDS,
        BRONZE_RUNS,
        BRONZE_PAIRS,
        QUARANTINE,
        LEDGER,
        FOLDERS,
        LOSS,
        UNKNOWN_MEMBERS,
        SILVER_PROVIDER_5M,
        GOLD_SERVICE_1H,
        GOLD_POOL_1H,
        GOLD_PROVIDER_DAY,
        GOLD_BALANCE_DAY,
        GOLD_FORECAST,
        GOLD_PLAN,
        EVALUATION,
    )
}
"""Every table of the out directory, by name."""
