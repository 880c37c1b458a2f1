"""Make the journal that spark.py measures with: a farm whose providers beat, of so many records.

    python -P bench/references/spark_journal.py JOURNAL RECORDS DAYS [INTERVAL]

INTERVAL is the number of seconds between two beats of a provider, a sixth of those between two reports of its load.
It prints how many records there are. The package `spark` must be found before bench/rows/spark.py, thus the `-P`.
"""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path

SERVICES = 10
INTERVAL = 10.0
"""Seconds between two beats of a provider, as most services have them."""

REPORT = 6
"""Beats between two reports of its load."""

DAY = 86_400


def main() -> None:
    journal, records, days = Path(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])
    interval = float(sys.argv[4]) if len(sys.argv) > 4 else INTERVAL
    # By name: to a type checker that is shown this folder, `spark` is the benchmark.
    generator = import_module("tests.spark.generator")
    each = days * DAY / interval * (1 + 1 / REPORT)
    providers = max(SERVICES, round(records / each))
    services = tuple(
        generator.Service(
            f"service-{number}",
            "dbp",
            providers=providers // SERVICES + (number < providers % SERVICES),
            interval=interval,
            report=interval * REPORT,
            outages=1.0,
        )
        for number in range(SERVICES)
    )
    truth = generator.generate(journal, seed=1, days=days, services=services, faults=generator.NONE)
    print(truth.records)


if __name__ == "__main__":
    main()
