"""Make the journal that spark.py measures with: a farm whose providers beat, of so many records.

    python -P bench/references/spark_journal.py JOURNAL RECORDS DAYS

It prints how many records there are. The package `spark` must be found before bench/rows/spark.py, thus the `-P`.
"""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path

SERVICES = 10
INTERVAL = 10.0
"""Seconds between two beats of a provider, as most services have them."""

REPORT = 60.0
"""Seconds between two reports of its load."""

DAY = 86_400


def main() -> None:
    journal, records, days = Path(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])
    # By name: to a type checker that is shown this folder, `spark` is the benchmark.
    generator = import_module("tests.spark.generator")
    each = days * DAY * (1 / INTERVAL + 1 / REPORT)
    providers = max(SERVICES, round(records / each))
    services = tuple(
        generator.Service(
            f"service-{number}",
            "dbp",
            providers=providers // SERVICES + (number < providers % SERVICES),
            interval=INTERVAL,
            report=REPORT,
            outages=1.0,
        )
        for number in range(SERVICES)
    )
    truth = generator.generate(journal, seed=1, days=days, services=services, faults=generator.NONE)
    print(truth.records)


if __name__ == "__main__":
    main()
