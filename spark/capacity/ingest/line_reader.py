"""Lines: incomplete segments, read by Spark record by record; other lines are reported with their reason.

Rules:
- Segments are parsed once: by the fixed schema, good and bad records to a staging folder in one pass.
- Empty lines are passed over, and not counted in the numbers of lines.

`fast_reader` shares the rules of a good record, which are constants here.
"""

from collections.abc import Sequence
from datetime import UTC, date, datetime, timedelta
from pathlib import Path

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import IntegerType, LongType, StringType, StructField, StructType

from spark.capacity.tables.columns import field
from spark.capacity.tables.schema import BRONZE_RECORDS, EVENTS, RECORD, VERSIONS
from spark.capacity.tables.store import readable, url

REQUIRED = ("v", "ts", "broker", "boot", "seq", "event")
"""Members that each record has."""

OF_BROKER = ("alive", "drop")
"""Events of a broker; all others are of a provider, and name it and its service."""

MEASURES = ("load", "full_load", "latency_ms", "rtt_ms", "requests", "errors", "in_flight")
"""Members that are no less than 0, and not infinite."""

POSITIVE = ("interval_ms", "full_load", "dropped")
"""Members that say nothing if they are 0 or less."""

DISTINCT = ("ts", "seq", "hb_seq", "sent_ts")
"""Columns that have another value in each record: Parquet would make a dictionary of them first, and throw it away."""

EARLIEST = datetime(2001, 1, 1, tzinfo=UTC)
"""No broker is older; a clock that says so was never set."""

FUTURE = timedelta(days=1)
"""Tolerance for a broker's clock that is ahead: more than this is a wrong clock, and would move every forecast."""

LATEST_SENT = datetime(2200, 1, 1, tzinfo=UTC)
"""A provider's own clock may be wrong, but not so that later readers cannot show the date."""

LINE_LIMIT = 1 << 20
"""Bytes of a line that are surely read: a record has some hundred. A longer one may be passed over, which shows as
loss."""


def micros(when: datetime) -> int:
    """Return a time in microseconds since 1970, as records have it."""
    return (when - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)


RAW_LIMIT = 2000
"""Letters of a bad line that are kept: enough to recognise it."""

OPEN = 64 << 10
"""Bytes that to open a file counts for: Spark's own 4 MB makes one core wait for the other."""

SHARE = 1 << 20
"""The least compressed bytes of a task, where there are many small segments."""

CORRUPT = "_corrupt"
"""Column in which Spark puts a line that does not parse."""

NOTHING = date(1970, 1, 1)
"""The folder of staged lines that are no records; no real date, as EARLIEST shows."""


def why_bad(latest: datetime) -> Column:
    """Return the fault of a parsed line, or null."""
    reason = F.when(~F.col("v").isin(*VERSIONS), F.concat(F.lit("unknown version "), F.col("v")))
    reason = reason.when(F.col(CORRUPT).isNotNull(), "no JSON object, or a member of a wrong type")
    for member in REQUIRED:
        reason = reason.when(F.col(member).isNull(), f"{member} is missing")
    reason = reason.when(~F.col("event").isin(*EVENTS), F.concat(F.lit("unknown event "), F.left("event", F.lit(40))))
    reason = reason.when(F.col("seq") < 1, "seq is less than 1")
    reason = reason.when(F.col("ts") < micros(EARLIEST), "a date before 2001")
    reason = reason.when(F.col("ts") > micros(latest), "a date in the future")
    of_provider = ~F.col("event").isin(*OF_BROKER)
    for member in ("service", "provider"):
        reason = reason.when(of_provider & F.col(member).isNull(), f"{member} is missing")
    reason = reason.when((F.col("event") == "load") & F.col("load").isNull(), "load is missing")
    for member in MEASURES:
        reason = reason.when((F.col(member) < 0) | (F.col(member) == float("inf")), f"{member} is no measure")
    return reason


def parse(lines: DataFrame, latest: datetime) -> DataFrame:
    """Make staged rows of parsed lines: the columns of bronze, and those about bad lines.

    `row` grows along each segment, so that `seq - row` is the same in an unbroken run of records. `members` is how many
    members were understood.
    """
    parsed = lines.select("*", why_bad(latest).alias("reason"), F.monotonically_increasing_id().alias("row"))
    good = F.col("reason").isNull()

    def positive(name: str) -> Column:
        return F.when(F.col(name) > 0, F.col(name))

    sent = F.col("sent_ts").between(micros(EARLIEST), micros(LATEST_SENT))
    made = {
        "date": F.when(good, F.to_date(F.timestamp_micros("ts"))).otherwise(F.lit(NOTHING)),
        "ts": F.timestamp_micros("ts"),
        "sent_ts": F.when(sent, F.timestamp_micros("sent_ts")),
        **{name: positive(name) for name in POSITIVE},
        "instance": F.coalesce("endpoint", "label", F.concat(F.lit("provider-"), F.col("provider"))),
    }
    columns = [made.get(name, F.col(name)).alias(name) for name in BRONZE_RECORDS.schema.names]
    # The line itself is there only where it did not parse; else its parsed members are shown.
    line = F.coalesce(CORRUPT, F.to_json(F.struct(*RECORD.names)))
    raw = F.when(~good, F.left(line, F.lit(RAW_LIMIT))).alias("raw")
    members = sum((F.col(name).isNotNull().cast("int") for name in RECORD.names), F.lit(0)).alias("members")
    return parsed.select(*columns, "reason", raw, "row", members)


STAGED = StructType(
    [
        *(column for column in BRONZE_RECORDS.schema if column.name != "date"),
        field("reason"),
        field("raw"),
        StructField("row", LongType()),
        StructField("members", IntegerType()),
        field("date"),
    ]
)
"""Columns of staged files; bronze readers see the first columns of it only."""


def segment_of() -> Column:
    """Return the column with the name of the segment that a row is read from."""
    return F.substring_index("_metadata.file_path", "/", -3).alias("segment")


def stage(spark: SparkSession, paths: Sequence[Path], latest: datetime, place: Path) -> None:
    """Read segments, and write their rows to a folder."""
    total = sum(path.stat().st_size for path in paths)
    share = max(SHARE, total // (2 * spark.sparkContext.defaultParallelism))
    spark.conf.set("spark.sql.files.openCostInBytes", str(OPEN))
    spark.conf.set("spark.sql.files.maxPartitionBytes", str(share))
    schema = StructType([*RECORD.fields, StructField(CORRUPT, StringType())])
    try:
        lines = (
            spark.read.schema(schema)
            .options(
                mode="PERMISSIVE",
                columnNameOfCorruptRecord=CORRUPT,
                allowNonNumericNumbers="false",
                allowSingleQuotes="false",
            )
            .option("mapreduce.input.linerecordreader.line.maxlength", str(LINE_LIMIT))
            .json([readable(path) for path in paths])
            .select("*", segment_of())
        )
        writer = parse(lines, latest).write.mode("append").partitionBy("date")
        plain = {f"parquet.enable.dictionary#{name}": "false" for name in (*DISTINCT, "row")}
        writer.options(**plain).parquet(url(place))
    finally:
        spark.conf.unset("spark.sql.files.openCostInBytes")
        spark.conf.unset("spark.sql.files.maxPartitionBytes")
