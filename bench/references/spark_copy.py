"""The bare copy that the jobs are compared with: read JSON lines by an explicit schema, write Parquet.

    python bench/references/spark_copy.py SEGMENTS OUT HEAP MASTER

It prints the seconds of the session's start and those of the copy, as JSON.
"""

from __future__ import annotations

import json
import os
import sys
import time

SCHEMA = """
    v int, ts long, broker string, boot string, seq long, event string, wire string, service string, provider long,
    label string, endpoint string, session string, load double, full_load double, requests long, errors long,
    rtt_ms double, interval_ms long, hb_seq long, sent_ts long, dropped long, why string
"""
"""The members of docs/export.md."""


def main() -> None:
    segments, out, heap, master = sys.argv[1:]
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    os.environ["PYSPARK_PYTHON"] = sys.executable
    begin = time.monotonic()
    from pyspark.sql import SparkSession

    session = (
        SparkSession.builder.master(master)
        .config("spark.driver.memory", heap)
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.ui.enabled", "false")
        .config("spark.log.level", "ERROR")
        .config("spark.sql.session.timeZone", "UTC")
        .getOrCreate()
    )
    started = time.monotonic()
    lines = session.read.schema(SCHEMA).option("recursiveFileLookup", "true").json(f"file://{segments}")
    lines.write.parquet(f"file://{out}")
    print(json.dumps({"start": started - begin, "copy": time.monotonic() - started}))


if __name__ == "__main__":
    main()
