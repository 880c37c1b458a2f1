"""The order of the jobs, and which dates each of them makes again.

Rules:
- Only dates with new records are computed, and those that depend on them: the date after one whose last state became
  another, and for the hours of services the two dates after (an absence is filled in from before it).
- The dates are noted until all their tables are written: a run that was cut off is made up for by the next.
- A run's `now` is given, or is the end of the last full hour with a broker. The same journal and the same `now` give
  the same tables.
- Of each date the forecast and the plan that were made last stay, to be compared with the outcome: those of hourly runs
  overlap so far that their outcomes are not independent, and would make the tables 24 times as large.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, date, datetime, time, timedelta
from pathlib import Path
from typing import Any

import attrs
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame

from spark.capacity.ingest.intake import Ingested, ingest
from spark.capacity.ingest.retention import KEEP
from spark.capacity.last_run import Inputs, jobs_digest, note_begin, note_end
from spark.capacity.planning.forecast import HORIZON, evaluate, forecast, full_hour
from spark.capacity.planning.needs import State as PlanState
from spark.capacity.planning.plan import PLAIN, Options, plan
from spark.capacity.planning.what_if import POLICY
from spark.capacity.progress import Progress
from spark.capacity.report import page, plan_json, service_section
from spark.capacity.report.files import send_report
from spark.capacity.rollup.broker_presence import broker_down
from spark.capacity.rollup.clock_jumps import sentences
from spark.capacity.rollup.date_rollup import rollup
from spark.capacity.rollup.lost_time import Missing
from spark.capacity.service import balance as balance_of
from spark.capacity.service import demand as service_load_of
from spark.capacity.service import reliability as reliability_of
from spark.capacity.service.balance import balance
from spark.capacity.service.bins import each_service
from spark.capacity.service.demand import LOOKBACK, service_load
from spark.capacity.service.pools import find_pools, of_members, planned, planned_rows, shared
from spark.capacity.service.reliability import provider_days, reliability
from spark.capacity.tables.columns import arrow_schema
from spark.capacity.tables.lake import publish
from spark.capacity.tables.object_store import ObjectFolder, Place
from spark.capacity.tables.row_values import Row, RowsByService
from spark.capacity.tables.schema import (
    BRONZE_RECORDS,
    BRONZE_RUNS,
    EVALUATION,
    GOLD_BALANCE_DAY,
    GOLD_FORECAST,
    GOLD_PLAN,
    GOLD_POOL_1H,
    GOLD_PROVIDER_DAY,
    GOLD_SERVICE_1H,
    LEDGER,
    LOSS,
    QUARANTINE,
    SILVER_SET_BACK,
    SILVER_SIGNS,
    UNKNOWN_MEMBERS,
    Table,
)
from spark.capacity.tables.store import State, Tables, put_text
from spark.capacity.tables.time_windows import SECOND
from spark.capacity.tables.working_copy import LAKE

DAY = timedelta(days=1)
HOUR = timedelta(hours=1)

REMEMBERED = timedelta(days=120)
"""Retention of forecasts and plans, in which their outcome is compared."""

HISTORY = timedelta(days=120)
"""Hours that forecasts look at: some seasons of weeks; more would make each run slower than the one before."""

SHOWN_ROWS = 100_000
"""Rows of quarantine and loss that the report counts: a journal of nothing but garbage must not fill its memory."""


class NoRecordsError(Exception):
    """There are no records to plan with."""


@attrs.frozen
class Settings:
    """Parameters of a run."""

    journals: tuple[Place, ...]
    """Of one broker, or of the brokers of a farm."""
    out: Place
    """The out directory: that of the tables, or the object store to which they are published."""
    started: datetime
    """The wall clock at the start, by which dates in the future are judged."""
    now: datetime | None = None
    since: date | None = None
    keep: int = KEEP
    """Retention of records in days."""
    horizon: int = HORIZON
    options: Options = PLAIN

    @property
    def named(self) -> str:
        """The paths of the journals, as one text."""
        return ", ".join(map(str, self.journals))

    @property
    def inputs(self) -> Inputs:
        """All that the plan depends on but the records."""
        return {
            "jobs": jobs_digest(),
            "journals": self.named,
            "now": None if self.now is None else full_hour(self.now).isoformat(),
            "horizon": str(self.horizon),
            "keep": str(self.keep),
            "options": str(self.options),
        }

    @property
    def run(self) -> str:
        """The name of the run."""
        return f"{self.started:%Y%m%dT%H%M%SZ}"


class Pipeline:
    """One run of all jobs."""

    def __init__(self, tables: Tables, settings: Settings, progress: Progress) -> None:
        self._tables = tables
        self._settings = settings
        self._progress = progress

    def run(self) -> list[Path]:
        """Do everything that is to be done; return the files of the report."""
        note_begin(self._tables)
        done = self._ingest()
        touched = {day for day in done.dates if self._settings.since is None or day >= self._settings.since}
        held = set(self._tables.dates(BRONZE_RECORDS))
        if not held:
            why = "no segment is sealed yet"
            if done.quarantined:
                why = f"{done.quarantined:,} lines or segments are in quarantine, see the table of that name"
            raise NoRecordsError(f"{self._settings.named} has no records: {why}")
        # Noted dates of which nothing is there any more have nothing to be computed of.
        rolled = self._rollup(sorted(touched & held))
        hours = self._days(rolled, held)
        now = self._now()
        self._forecast(now, hours)
        # Dates that were left out on purpose are still to be computed.
        self._tables.keep(State(set(), {str(day) for day in done.dates - touched}))
        files = self._report(now)
        self._publish(files)
        hour = full_hour(self._settings.started)
        note_end(self._tables, self._settings.inputs, now, hour + HOUR if self._last_record() >= hour + HOUR else None)
        return files

    def _publish(self, files: Sequence[Path]) -> None:
        """Publish the tables; where the out directory is in an object store, with the files of the report."""
        out = self._settings.out
        origin = out if isinstance(out, ObjectFolder) else None
        with self._progress.job("publish") as step:
            versions = publish(self._tables, self._settings.run, origin=origin)
            if origin is not None:
                send_report(self._tables.out, files, origin)
            step(1.0, f"{len(versions):,} tables have a new version in {out / LAKE}")

    def _ingest(self) -> Ingested:
        with self._progress.job("ingest") as step:
            settings = self._settings
            done = ingest(
                self._tables,
                settings.journals,
                run=settings.run,
                started=settings.started,
                keep=settings.keep,
                tell=lambda part: step(part, ""),
            )
            segments = f"{done.segments:,} new segment" + ("" if done.segments == 1 else "s")
            step(
                1.0,
                f"{segments}   {done.records:,} records   {done.quarantined:,} quarantined   {done.lost:,} lost",
            )
        for reason, number in sorted(done.reasons.items()):
            self._progress.note(f"quarantined: {number:,} x {reason}")
        for member, number in sorted(done.unknown.items()):
            self._progress.note(f"unknown member {member!r} in {number:,} records: not used")
        if done.strange:
            self._progress.note(f"{len(done.strange):,} files are no segments, {done.strange[0]!r} for one: left alone")
        if done.lost:
            known = f"{done.lost_known:,} of the lost records were reported by the broker"
            self._progress.note(f"{known}; after a boot's last readable record at least these are lost")
        if done.damaged:
            segments = f"{done.damaged:,} damaged segment" + ("" if done.damaged == 1 else "s")
            self._progress.note(f"{segments}: their records are lost until they come again; each run tries them")
        if done.lost and done.quarantined:
            self._progress.note("records in quarantine are among the lost: their numbers are in no table")
        return done

    def _rollup(self, touched: Sequence[date]) -> list[date]:
        tables, made = self._tables, list[date]()
        lost = [
            Missing(row.broker, row.boot, int(row.seq_from), int(row.seq_to)) for row in tables.rows(LOSS).itertuples()
        ]
        with self._progress.job("rollup") as step:
            for day, left in rollup(tables, touched, lost):
                made.append(day)
                step(len(made) / (len(made) + left), f"{len(made):,} of {len(made) + left:,} dates")
            step(1.0, f"{len(made):,} dates")
        for sentence in sentences(row for day in made for row in tables.rows_of(SILVER_SET_BACK, day).to_pylist()):
            self._progress.note(sentence)
        return made

    def _days(self, dates: Sequence[date], held: set[date]) -> list[date]:
        """Make the daily tables; return the dates whose hours were made."""
        tables = self._tables
        later = {day + DAY * more for day in dates for more in range(LOOKBACK.days + 1)}
        hours = sorted(later & held)
        loads = each_service(tables, hours, service_load, service_load_of.MEASURES, LOOKBACK)
        self._daily("load", GOLD_SERVICE_1H, hours, loads)
        days = each_service(tables, dates, provider_days, reliability_of.MEASURES)
        self._daily("reliable", GOLD_PROVIDER_DAY, dates, ((day, reliability(rows)) for day, rows in days))
        self._pools(hours)
        shares = each_service(tables, dates, balance, balance_of.MEASURES)
        self._daily("balance", GOLD_BALANCE_DAY, dates, shares)
        return hours

    def _pools(self, dates: Sequence[date]) -> None:
        """Make the hours of services that share servers."""
        tables = self._tables
        pools = find_pools(tables, dates)
        shared = [day for day in dates if pools[day]]
        for day in dates:
            if not pools[day]:
                tables.drop_date(GOLD_POOL_1H, day)
        if not shared:
            return
        loads = each_service(tables, shared, service_load, service_load_of.MEASURES, LOOKBACK, pools)
        rows = ((day, self._of_members(day, rows, pools[day])) for day, rows in loads)
        self._daily("pools", GOLD_POOL_1H, shared, rows)

    def _of_members(self, day: date, rows: Sequence[Row], pools: Mapping[str, str]) -> list[dict[str, Any]]:
        own = arrow_schema(GOLD_SERVICE_1H.schema)
        made = pa.Table.from_pylist(list(rows), own).to_pylist()
        return of_members(made, pools, self._tables.rows_of(GOLD_SERVICE_1H, day).to_pylist())

    def _daily(
        self, name: str, table: Table, dates: Sequence[date], made: Iterable[tuple[date, list[dict[str, Any]]]]
    ) -> None:
        with self._progress.job(name) as step:
            for number, (day, rows) in enumerate(made, 1):
                self._tables.put_date(table, pa.Table.from_pylist(rows, arrow_schema(table.schema)), day)
                step(number / len(dates), f"{number:,} of {len(dates):,} dates")
            step(1.0, f"{len(dates):,} dates")

    def _now(self) -> datetime:
        """Return the time of the plan: the one of the settings, or else the end of the last full hour with a broker. Of
        an hour without one nothing is known: all providers would seem to have gone."""
        if self._settings.now is not None:
            return full_hour(self._settings.now)
        tables, hour = self._tables, self._last_hour()
        for day in reversed([day for day in tables.dates(SILVER_SIGNS) if day <= hour.date()]):
            before = (span for span in tables.rows_of(SILVER_SIGNS, day).to_pylist() if span["first"] < hour)
            if last := max((span["last"] for span in before), default=None):
                # A span may go on in the present hour.
                return min(hour, full_hour(last) + HOUR)
        return hour

    def _last_hour(self) -> datetime:
        """Return the hour of the last record, or that of the wall clock if it is earlier: a broker whose clock is some
        hours ahead would move the plan of all others to hours of which nothing is known."""
        return full_hour(min(self._last_record(), self._settings.started))

    def _last_record(self) -> datetime:
        """Return the time of the last record, in whole seconds. Raises `NoRecordsError`."""
        last = self._tables.dates(BRONZE_RECORDS)[-1]
        runs = self._tables.rows_of(BRONZE_RUNS)
        latest = pc.max(runs["latest"].filter(pc.equal(runs["date"], last))).as_py()
        if latest is None:
            raise NoRecordsError(f"{self._settings.named} has no records of {last}")
        return datetime.fromtimestamp(latest // SECOND, UTC)

    def _keep(self, table: Table, made: DataFrame, now: datetime) -> None:
        """Replace the rows of the date by those that this run issued, and remove dates beyond the retention."""
        tables = self._tables
        tables.write_date(table, made, now.date())
        for old in tables.dates(table):
            if old < (now - REMEMBERED).date():
                tables.drop_date(table, old)

    def _forecast(self, now: datetime, changed: Sequence[date]) -> None:
        tables, settings = self._tables, self._settings
        known = [day for day in tables.dates(GOLD_SERVICE_1H) if day >= (now - HISTORY).date()]
        assumed = settings.options.assumed
        load = planned(tables, known).persist()
        if assumed.named:
            assumed.need_services(row["service"] for row in load.select("service").distinct().collect())
        with self._progress.job("forecast") as step:
            self._keep(GOLD_FORECAST, forecast(load, now, settings.horizon, assumed), now)
            services = len(pc.unique(tables.rows_of(GOLD_FORECAST, now.date())["service"]))
            step(1.0, f"{services:,} services   {settings.horizon} hours from {now:%Y-%m-%d %H:%M} UTC")
        with self._progress.job("plan") as step:
            forecasts = tables.read(GOLD_FORECAST, [now.date()])
            self._keep(GOLD_PLAN, plan(load, forecasts, now, settings.options, self._shared()), now)
            states = Counter(tables.rows_of(GOLD_PLAN, now.date())["state"].to_pylist())
            step(1.0, ", ".join(f"{states[state]:,} {state}" for state in PlanState if states[state]) or "no service")
        with self._progress.job("evaluate") as step:
            # A forecast with an earlier end is over, and none of its hours has changed. Its horizon is that of its run.
            first = datetime.combine(min([now.date(), *changed]) - DAY, time(), UTC)
            days = [day for day in tables.dates(GOLD_FORECAST) if tables.reaches(GOLD_FORECAST, day, "h", first)]
            # A plan for an earlier time must not take back what is known of later forecasts.
            until = max(now, self._last_hour())
            made = evaluate(tables.read(GOLD_FORECAST, days), load, until).toArrow()
            rows = made.cast(arrow_schema(EVALUATION.schema))
            for day in days:
                tables.put_date(EVALUATION, rows.filter(pc.equal(rows["date"], day)), day)
            step(1.0, f"{len(rows):,} past forecasts compared with the outcome")
        load.unpersist()

    def _shared(self) -> dict[str, int]:
        """Count the providers of each service that offered others on the same day, the last one."""
        days = self._tables.dates(GOLD_PROVIDER_DAY)
        return shared(self._tables, days[-1]) if days else {}

    def _document(self, rows: Mapping[str, Any]) -> dict[str, Any]:
        """Make plan.json of this run, with its inputs."""
        dates = self._tables.dates(BRONZE_RECORDS)
        inputs = {
            "journal": self._settings.named,
            "first_date": str(dates[0]),
            "last_date": str(dates[-1]),
            "records": sum(row["records"] for row in rows[LEDGER.name]),
            "records_lost": sum(row["records"] for row in rows[LOSS.name]),
            "damaged_segments": sum(not row["records"] and bool(row["quarantined"]) for row in rows[LEDGER.name]),
            "horizon_h": self._settings.horizon,
        }
        plans, forecasts = rows[GOLD_PLAN.name], rows[GOLD_FORECAST.name]
        return plan_json.document(plans, forecasts, inputs, page.links_of(rows))

    def _report(self, now: datetime) -> list[Path]:
        tables = self._tables
        with self._progress.job("report") as step:
            since = datetime.combine(tables.dates(BRONZE_RECORDS)[-1], time(), UTC) - service_section.SHOWN
            rows: dict[str, Any] = {}
            for table in (GOLD_PROVIDER_DAY, GOLD_BALANCE_DAY, EVALUATION, SILVER_SIGNS, SILVER_SET_BACK):
                days = [day for day in tables.dates(table) if day >= since.date()]
                rows[table.name] = [row for day in days for row in tables.rows_of(table, day).to_pylist()]
            hours = [planned_rows(tables, day) for day in tables.dates(GOLD_SERVICE_1H) if day >= since.date()]
            empty = arrow_schema(GOLD_POOL_1H.schema).empty_table()
            rows[GOLD_SERVICE_1H.name] = RowsByService(pa.concat_tables([empty, *hours]))
            # Those of the date are of this run: it has replaced others.
            rows[GOLD_FORECAST.name] = RowsByService(tables.rows_of(GOLD_FORECAST, now.date()))
            rows[GOLD_PLAN.name] = tables.rows_of(GOLD_PLAN, now.date()).to_pylist()
            for table in (LEDGER, UNKNOWN_MEMBERS):
                rows[table.name] = tables.rows_of(table).to_pylist()
            for table in (QUARANTINE, LOSS):
                rows[table.name] = tables.rows_of(table, most=SHOWN_ROWS).to_pylist()
            rows["set_back"] = rows.pop(SILVER_SET_BACK.name)
            rows["broker_down"] = broker_down(rows[SILVER_SIGNS.name])
            files = page.write(tables.out, rows)
            files += plan_json.write(tables.out, self._document(rows))
            # A question about the plan begins with its policy.
            files.append(tables.out / POLICY)
            put_text(files[-1], self._settings.options.assumed.text)
            step(1.0, str(self._settings.out / "report.html"))
        return files
