"""The demo of the capacity jobs: `python -m tests.spark.demo` generates the journal of a month, and plans for it.

Arguments that are not of this command are those of `python -m spark.capacity run`.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from spark.capacity.command import main as jobs
from spark.capacity.progress import Progress
from tests.spark.generator import ALL, BELIEVABLE, deliver, generate

DAYS = 30
"""A month has enough weeks for a weekly season to be believed."""


def make_journal(journal: Path, *, days: float, seed: int = 1, faults: bool = False) -> None:
    """Make a journal, with everything that can go wrong where ``faults`` is true."""
    with Progress().job("generate") as step:
        truth = generate(
            journal,
            seed=seed,
            days=days,
            faults=ALL if faults else BELIEVABLE,
            told=lambda done, total: step(done / max(1, total), f"{done:,} of {total:,} hours"),
        )
        deliver(journal)
        step(1.0, f"{truth.records:,} records of {days:g} days")


def main(argv: Sequence[str] | None = None) -> int:
    """Make the journal, unless it is there, and run the jobs; return their exit code."""
    command = argparse.ArgumentParser(prog="python -m tests.spark.demo", description=__doc__)
    command.add_argument(
        "--out", type=Path, default=Path("plan"), help="the folder of the tables and the report (plan)"
    )
    command.add_argument("--journal", type=Path, help="the folder of the journal (OUT/journal)")
    command.add_argument("--days", type=float, default=DAYS, help=f"days of the journal ({DAYS})")
    command.add_argument("--seed", type=int, default=1, help="chance begins here (1)")
    command.add_argument("--faults", action="store_true", help="with everything that can go wrong")
    command.add_argument("--journal-only", action="store_true", help="make no plan")
    arguments, others = command.parse_known_args(argv)
    journal: Path = arguments.journal or arguments.out / "journal"
    if not (journal.parent / "truth.json").exists():
        make_journal(journal, days=arguments.days, seed=arguments.seed, faults=arguments.faults)
    if arguments.journal_only:
        return 0
    return jobs(["run", "--journal", str(journal), "--out", str(arguments.out), *others])


if __name__ == "__main__":
    sys.exit(main())
