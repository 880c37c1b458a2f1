"""Accuracy of the plan, on recorded series and on made journals: `python -m tests.spark.benchmark --traces DIR`.

spark/README.md has the results. Exit codes are those of `spark.capacity.command`.
"""

import argparse
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from spark.capacity.command import ended, folder
from spark.capacity.progress import Progress
from spark.capacity.session import MEMORY, open_session
from spark.capacity.tables.store import OutError
from tests.spark.benchmark import back_test, pipeline_trial, summary
from tests.spark.benchmark.traces import TraceError


def parser() -> argparse.ArgumentParser:
    """Describe the arguments."""
    known = argparse.ArgumentParser(prog="python -m tests.spark.benchmark", description=__doc__.splitlines()[0])
    known.add_argument("--traces", type=Path, required=True, help="a folder of CSV files: a time and a value a line")
    known.add_argument("--out", type=Path, help="write the tables to this file as well")
    known.add_argument("--only-traces", action="store_true", help="make no journals, and start no Spark")
    known.add_argument("--keep", type=folder, help="make the journals and their tables in this folder, and leave them")
    known.add_argument("--master", help="where Spark runs (all cores of this machine)")
    known.add_argument("--memory", default=MEMORY, help=f"heap of Spark on this machine ({MEMORY})")
    return known


def evaluate(arguments: argparse.Namespace, progress: Progress) -> None:
    """Print how well known series are forecast, and planted flaky providers found."""
    if not arguments.traces.exists():
        raise TraceError(f"there is no {arguments.traces}")
    if arguments.out:
        # Better now than after some minutes.
        arguments.out.open("a").close()
    scale = pipeline_trial.Scale()
    weeks: list[list[back_test.Step]] = []
    outcome = None
    with progress.job("traces") as step:
        walked = back_test.walk_all(
            arguments.traces, lambda done, total: step(done / total, f"{done:,} of {total:,} files")
        )
        used = sum(len(series) for series in walked.walks.values())
        step(1.0, f"{used:,} series, {len(walked.left_out):,} files left out")
    if not arguments.only_traces:
        with folder_for(arguments.keep) as place:
            spark = open_session(arguments.master, memory=arguments.memory)
            farms = pipeline_trial.make(place, scale, progress)
            with progress.job("weeks") as step:
                weeks = pipeline_trial.walked(scale)
                step(1.0, f"{len(weeks):,} series of the generator")
            outcome = pipeline_trial.run(spark, farms, place / "tables", progress)
    told = summary.markdown(walked, weeks, outcome)
    print(f"\n{told}")
    if arguments.out:
        arguments.out.write_text(told)


@contextmanager
def folder_for(kept: Path | None) -> Iterator[Path]:
    """Give a folder to work in: an empty one that is kept, or one that is not."""
    if kept is None:
        with TemporaryDirectory(prefix="capacity-") as place:
            yield Path(place)
        return
    kept.mkdir(parents=True, exist_ok=True)
    if any(kept.iterdir()):
        raise OutError(f"{kept} is not empty")
    yield kept


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command."""
    arguments = parser().parse_args(argv)
    try:
        return ended(lambda: evaluate(arguments, Progress()), "evaluate", arguments.out)
    except TraceError as error:
        print(f"capacity: {error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
