"""The shape of the journal's records and of every table: names, columns and the folders that a table is made of.

Rules:
- `instance` names a provider across its restarts: its endpoint, or else its label, or else "provider-" and its number.
- A table of which `dated` is true has one folder for each date, and is replaced date by date.
- The columns have their types, units and meanings in `columns`; the page docs/tables.md has all of them.
"""

from collections.abc import Mapping

import attrs
from pyspark.sql.types import StructType

from spark.capacity.tables.columns import COLUMNS, LOAD, Column, field

VERSIONS = (1, 2)
"""The versions of the records that these jobs read (docs/export.md). Version 2 adds `latency_ms`, and says that
`requests`, `errors` and `in_flight` are reported by providers."""

EVENTS = ("register", "unregister", "expire", "hb", "load", "alive", "drop")
"""The events of version 1."""

OF_BROKER = ("alive", "drop")
"""Events of a broker; all others are of a provider, and name it and its service."""


@attrs.frozen
class Table:
    """A table: its purpose, the names of its columns in their order, and the columns that are others in it than by
    their names."""

    name: str
    purpose: str
    names: str
    dated: bool = False
    own: Mapping[str, Column] = attrs.field(factory=dict, eq=False)
    schema: StructType = attrs.field(init=False, eq=False)

    @schema.default
    def _columns(self) -> StructType:
        return StructType([field(name, self.own[name][0] if name in self.own else None) for name in self.names.split()])

    def meaning(self, column: str) -> tuple[str, str]:
        """Return unit and meaning of a column."""
        return (self.own.get(column) or COLUMNS[column])[1:]


MEMBERS = """v ts broker boot seq event wire service provider label endpoint protocol interval_ms hb_seq load full_load
    in_flight requests errors latency_ms rtt_ms sent_ts dropped coalesced why"""

UNUSED = {"zone": "string"}
"""Members that records may have and no table has, with their types."""

RECORD = StructType(
    [
        *(field(name, "long" if name in ("ts", "sent_ts", "in_flight") else None) for name in MEMBERS.split()),
        *(field(name, kind) for name, kind in UNUSED.items()),
    ]
)
"""A record as it is in a segment: times are microseconds since 1970.

`coalesced` counts for nothing but bronze: a load holds until the next one, however many came between them, and
heartbeats that coalesce are more than any interval expects.
"""

BRONZE_RECORDS = Table(
    "bronze_records",
    "every good record of the journal once, by (broker, boot, seq)",
    f"date {MEMBERS} instance segment",
    dated=True,
    own={
        "in_flight": ("long", "requests", "requests being handled"),
        "requests": ("long", "requests", "completed since the provider's record before that had them"),
        "errors": ("long", "requests", "those of them that failed"),
    },
)

BRONZE_RUNS = Table(
    "bronze_runs",
    "unbroken runs of record numbers, and their times",
    "date broker boot seq_from seq_to ts_from ts_to earliest latest dropped",
)
"""In a row with `dropped` this is the count of the drop record at `seq_to`. `ingest/runs.py` has the rules."""

BRONZE_PAIRS = Table(
    "bronze_pairs",
    "registrations, with their instances, in the file of bronze_records that has the same name",
    """date broker boot service provider instance records seq at ended interval interval_seq load load_seq full_load
    full_load_seq""",
    dated=True,
    own={
        "seq": ("long", "", "number of the last record"),
        "load": ("double", LOAD, "load that was reported last"),
        "full_load": ("double", LOAD, "full load that was reported last"),
    },
)

QUARANTINE = Table("quarantine", "lines and segments that are no records, and why", "segment line reason raw run")

LEDGER = Table(
    "ledger",
    "segments that were read",
    "segment size changed digest records quarantined broker boot reach run ingested_at",
)
"""`broker`, `boot` and `reach` are those of a segment with unreadable parts at its end."""

FOLDERS = Table("folders", "folders of the journal that were read", "folder state")

LOSS = Table("loss", "records that were numbered and are not there", "broker boot seq_from seq_to records known")

UNKNOWN_MEMBERS = Table("unknown_members", "members of records that this version does not have", "run member records")

SILVER_PROVIDER_5M = Table(
    "silver_provider_5m",
    "five-minute windows of each provider",
    """date service instance w hb hb_expected connected_s up_s load_mean load_max full_load requests errors busy_s timed
    in_flight rtt_max broker_up_s down_s awaited_s outages gap_max load_1 load_2 load_3 load_4 load_5""",
    dated=True,
    own={"in_flight": ("double", "requests", "mean of the numbers that it reported")},
)
"""`load_1` to `load_5` are null also in windows for which the provider was not up all the time, or its load not known
(`rollup/up_intervals.py`). They have four digits. `requests` and `errors` are its reports for that time."""

OF_HOUR = """date service h demand_mean demand_p95 demand_max demand_peak capacity full_load providers_mean
    providers_min util cov max_mean gini requests errors service_s in_flight observed_s"""

GOLD_SERVICE_1H = Table("gold_service_1h", "hours of each service", OF_HOUR, dated=True)
"""`demand_peak` is never less than `demand_max`, nor unknown where the demand is known (`service/demand.py`)."""

OWN_PROVIDERS, OWN_PEAK = "own_providers", "own_peak"

GOLD_POOL_1H = Table(
    "gold_pool_1h",
    "hours of all servers of services that share some, under each of these services",
    f"{OF_HOUR} pool {OWN_PROVIDERS} {OWN_PEAK}",
    dated=True,
)
"""`service/pools.py` has the rules."""

GOLD_PROVIDER_DAY = Table(
    "gold_provider_day",
    "reliability of each provider on a day",
    "date service instance judged miss_ratio outages downtime_s mtbf_s mttr_s flap_pct phi_max score flaky",
    dated=True,
)

GOLD_BALANCE_DAY = Table(
    "gold_balance_day",
    "how evenly the load of a service lay on its providers on a day",
    "date service cov max_mean gini hot_instances unbalanced",
    dated=True,
)

ODDS = """bound_trials bound_missed bound_miss_most bound_ahead_h odds_day odds_trials odds_missed odds_said odds_week
    odds_week_trials odds_week_missed odds_week_said hours_tried hours_missed weeks_tried weeks_missed"""
"""Columns of the record and the odds of a bound, which the plan has from its forecast."""

ISSUED_ON: Column = ("date", "UTC date", "date of `issued`")

GOLD_FORECAST = Table(
    "gold_forecast",
    "demand of the hours to come, by the run that forecast it",
    f"""date service issued h model p50 hour_bound peak_bound highest highest_at headroom factor {ODDS}
    over_provision seasons flag""",
    dated=True,
    own={"date": ISSUED_ON},
)
"""`p50` is of hourly means, `hour_bound` and `peak_bound` of `demand_peak`. The bound is `highest` times
`headroom` where that is a peak of the last week or the policy has a headroom, and `highest` as it is where an older
peak is higher than that. The plan takes `factor` times the values of an hour."""

GOLD_PLAN = Table(
    "gold_plan",
    "providers that each service needs, by the run that planned it",
    f"""date service issued state providers_now need_now need_horizon add free spare rule exhaust_p50 exhaust_bound
    growth_per_week weekly_peaks trend_level exhaust_trend demand_now demand_day demand_mean peak_bound highest
    highest_at known_hours full_load policy headroom target_utilisation spares n_plus providers_least providers_most
    cost erlangs service_s {ODDS} shared_providers pool note""",
    dated=True,
    own={
        "date": ISSUED_ON,
        "state": ("string", "", "overloaded, no N+1, below policy, can free, enough, too little history or unknown"),
    },
)
"""The columns from `policy` to `cost` are the policy that decided. In the rows of the services of a pool the numbers
are those of its union: the same in each."""

EVALUATION = Table(
    "evaluation",
    "past forecasts, compared with the outcome",
    """date service issued horizon_h mape peak_missed promised_miss_most""",
    dated=True,
    own={"date": ISSUED_ON},
)

SILVER_SIGNS = Table("silver_signs", "times in which a broker gave signs of life", "date broker first last", dated=True)

SILVER_SET_BACK = Table(
    "silver_set_back",
    "records that show that a broker's clock was set back",
    "date broker boot seq since before after",
    dated=True,
)

SILVER_CARRY = Table(
    "silver_carry",
    "state of each registration at the end of a date, for the next date",
    "date broker boot service provider instance seq at ended interval load full_load last_sign",
    dated=True,
)
"""The last record of each registration, with the values of those before it that still hold. Times are microseconds."""

SNAPSHOT = Table(
    "snapshot",
    "versions of the tables in the lake that one run published: each version of this table has one set",
    "name version run snapshot layout to_do",
)
"""It is in the lake only."""

TABLES = tuple(one for one in list(globals().values()) if isinstance(one, Table) and one is not SNAPSHOT)
"""Every table of the out directory."""
