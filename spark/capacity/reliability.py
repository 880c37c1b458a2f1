"""Reliability: how well each provider kept up on each day, by its beats or, where none were agreed, its connection.

Rules:
- The miss ratio is the share of the expected beats that did not come, over the time in which the provider was
  registered and the broker up. Beats beyond those that five minutes can have, and the few that were held up before, do
  not make up for others: a broker's clock that was set back shows the beats of some minutes beside those of others.
- Outages, their lengths and the time between them come from the down time of the rollup: the broker's own downtime
  and a withdrawal are none.
- Flapping is looked for as Naemon does: the share of changes between 21 states in a row, here five minutes with or
  without down time, and the day's highest such share. Another outage that begins in a row of bad ones is a change.
- phi is how surprising the longest silence was, if silences are exponential with the day's own mean: 8 is one in 10^8.
- The score is the share of time that the provider was up, times the share of beats that came while it was.
- A provider is flaky when it misses beats while it is up, more than chance and its service explain, or when it flaps.
  The beats missed on the way into an outage are the outage's. What is left is compared with the service's lower
  quartile, not its median: in a service of three, two may be flaky, and where all come late none is. Services of less
  than four are compared with all providers that beat. Two tests must both agree:
  - the excess over the quartile is at least 0.8 % of the beats: of a provider that misses 2 % among others that miss up
    to 0.5 %, a day of beats each 30 s (2,880 of them) shows 1.3 % or more on 99 days of 100;
  - the number is 3 standard deviations off what the quartile explains, by the square root that makes counts normal. It
    decides where beats are few: three of 288 are no finding.
"""

from collections.abc import Sequence
from datetime import date
from math import log

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F

from spark.capacity.schema import GOLD_PROVIDER_DAY
from spark.capacity.times import DIGITS, LIVENESS

STATES = 21
"""States that flapping is looked for in: an hour and three quarters."""

FLAPPING = 30.0
"""Per cent of changes from which a provider flaps: three outages in an hour and three quarters, of two changes each."""

EXCESS = 0.008
"""The share of beats, over what the service misses anyway, from which a provider may be flaky."""

SIGNIFICANT = 3.0
"""Standard deviations from which a number of missed beats is more than chance."""

HELD_UP = 2.0
"""Beats that five minutes may have in addition, for they were due in those before. Where all were counted, and ten
minutes were there twice, a provider that missed 2 % of its beats each 30 s seemed to miss 1 %."""

NOISE = 0.001
"""The share of beats that any network may lose: a quartile of nothing would make each single miss a wonder."""

COMPARABLE = 4
"""Providers of a service from which its lower quartile is its own."""


def reliability(silver: DataFrame, dates: Sequence[date]) -> DataFrame:
    """Make the days of providers from their five minutes."""
    place = ("date", "service", "instance")
    order = Window.partitionBy(*place).orderBy("w")
    bad = F.col("down_s") > 0
    changed = (F.lag("bad").over(order) != F.col("bad")) | (F.lag("bad").over(order) & (F.col("outages") > 0))
    up_share = F.when(F.col("connected_s") > 0, F.least(F.lit(1.0), F.col("up_s") / F.col("connected_s"))).otherwise(0)
    beats = F.when(F.col("hb_expected").isNull(), F.col("hb")).otherwise(
        F.least(F.col("hb").cast("double"), F.col("hb_expected") + HELD_UP)
    )
    days = (
        silver.where(F.col("date").isin(*dates) & (F.col("connected_s") + F.col("down_s") > 0))
        .withColumn("bad", bad)
        .withColumn("changed", F.when(changed, 1).otherwise(0))
        .withColumn("changes", F.sum("changed").over(order.rowsBetween(2 - STATES, 0)))
        .groupBy(*place)
        .agg(
            F.sum(beats).alias("hb"),
            F.sum("hb_expected").alias("expected"),
            F.sum(F.col("hb_expected") * up_share).alias("expected_up"),
            F.sum("outages").alias("outages"),
            F.sum("up_s").alias("up_s"),
            F.sum("down_s").alias("downtime_s"),
            F.max("gap_max").alias("gap_max"),
            F.max("changes").alias("changes"),
        )
        .withColumn("flap_pct", F.least(F.lit(100.0), F.round(100.0 * F.col("changes") / (STATES - 1), DIGITS)))
    )
    explained = F.col("hb") + LIVENESS * F.col("outages")
    judged = days.withColumn("missed", F.greatest(F.col("expected_up") - explained, F.lit(0.0))).withColumn(
        "share", F.when(F.col("expected_up") > 0, F.round(F.col("missed") / F.col("expected_up"), DIGITS))
    )
    usual = judged.groupBy("date", "service").agg(
        F.percentile("share", F.lit(0.25)).alias("own_usual"), F.count("share").alias("providers")
    )
    farm = judged.groupBy("date").agg(F.percentile("share", F.lit(0.25)).alias("farm_usual"))
    judged = (
        judged.join(F.broadcast(usual), ["date", "service"])
        .join(F.broadcast(farm), "date")
        .withColumn(
            "usual", F.when(F.col("providers") >= COMPARABLE, F.col("own_usual")).otherwise(F.col("farm_usual"))
        )
    )
    chance = F.col("expected_up") * F.greatest("usual", F.lit(NOISE))
    off = 2 * (F.sqrt(F.col("missed") + 0.375) - F.sqrt(chance + 0.375))
    misses = (F.col("share") - F.col("usual") >= EXCESS) & (off >= SIGNIFICANT)
    flaky = F.coalesce(misses, F.lit(False)) | (F.col("flap_pct") >= FLAPPING)
    came = F.greatest(1 - F.col("hb") / F.col("expected"), F.lit(0.0))
    total = F.col("up_s") + F.col("downtime_s")
    had_some = F.col("outages") > 0
    made = {
        "date": F.col("date"),
        "service": F.col("service"),
        "instance": F.col("instance"),
        "judged": F.when(F.col("expected").isNotNull(), "beats").otherwise("connection"),
        "miss_ratio": F.when(F.col("expected") > 0, F.round(came, DIGITS)),
        "outages": F.col("outages"),
        "downtime_s": F.round("downtime_s", DIGITS),
        "mtbf_s": F.when(had_some, F.round(F.col("up_s") / F.col("outages"), DIGITS)),
        "mttr_s": F.when(had_some, F.round(F.col("downtime_s") / F.col("outages"), DIGITS)),
        "flap_pct": F.col("flap_pct"),
        "phi_max": F.when(F.col("up_s") > 0, F.round(F.col("gap_max") * F.col("hb") / F.col("up_s") / log(10), DIGITS)),
        "score": F.when(
            total > 0, F.round(F.col("up_s") / total * (1 - F.coalesce(F.col("share"), F.lit(0.0))), DIGITS)
        ),
        "flaky": flaky,
    }
    return judged.select(*(made[name].alias(name) for name in GOLD_PROVIDER_DAY.schema.names))
