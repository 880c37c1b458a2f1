"""The command: `python -m spark.capacity run|what-if`.

Exit codes: 0 done; 1 it could not be done, with one sentence that says why; 2 wrong arguments.
"""

import argparse
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from datetime import UTC, date, datetime
from functools import partial
from math import inf
from pathlib import Path
from tempfile import TemporaryDirectory
from urllib.parse import unquote, urlsplit

from deltalake.exceptions import DeltaError
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from spark.capacity.ingest.journal_folders import JournalError, need_journal
from spark.capacity.ingest.retention import KEEP
from spark.capacity.last_run import same_plan
from spark.capacity.pipeline import NoRecordsError, Pipeline, Settings
from spark.capacity.planning import what_if
from spark.capacity.planning.forecast import HORIZON, LONGEST_HORIZON
from spark.capacity.planning.plan import Options
from spark.capacity.planning.policy import Assumptions, PolicyError, read_assumptions
from spark.capacity.planning.what_if import QuestionError
from spark.capacity.progress import Progress
from spark.capacity.session import MEMORY, NoJavaError, open_session
from spark.capacity.tables import snapshots
from spark.capacity.tables.object_store import (
    ObjectFolder,
    Place,
    StoreError,
    fetch,
    is_object,
    need_bucket,
    sizes,
)
from spark.capacity.tables.schema import GOLD_FORECAST, GOLD_PLAN, GOLD_POOL_1H, GOLD_SERVICE_1H, Table
from spark.capacity.tables.store import LOG, OutError, Tables, need_publishable
from spark.capacity.tables.time_windows import utc
from spark.capacity.tables.working_copy import LAKE, fill, is_newest, refresh

SAID = (JournalError, NoJavaError, NoRecordsError, OutError, PolicyError, QuestionError, StoreError)
"""Errors whose text is the sentence for the user."""


def moment(text: str) -> datetime:
    """Read a time in ISO form; without a zone it is UTC."""
    return utc(datetime.fromisoformat(text))


def number(
    name: str, kind: Callable[[str], float], holds: Callable[[float], bool], otherwise: str
) -> Callable[[str], float]:
    """Return a reader of numbers for which something holds; argparse says the name of one that is no number."""

    def read(text: str) -> float:
        if not holds(read_ := kind(text)):
            raise argparse.ArgumentTypeError(f"{text} is {otherwise}")
        return read_

    read.__name__ = name
    return read


hours = number("hours", int, lambda of: 1 <= of <= LONGEST_HORIZON, f"not between 1 and {LONGEST_HORIZON}")
# A century: dates before the year 1 would end the second run.
days = number("days", int, lambda of: 1 <= of <= 36_525, "not between 1 and 36525")
share = number("share", float, lambda of: 0 < of <= 1, "not above 0 and at most 1")
factor = number("factor", float, lambda of: 0 < of < inf, "not above 0")


def folder(text: str) -> Path:
    """Read a path, or a URI of the scheme ``file``. Other schemes name no folder that the jobs can use."""
    scheme, separator, _ = text.partition("://")
    if not separator:
        return Path(text)
    parts = urlsplit(text)
    of_this_machine = parts.scheme == "file" and parts.netloc in ("", "localhost")
    if not of_this_machine or not parts.path or parts.query or parts.fragment:
        raise argparse.ArgumentTypeError(f"{text} is no folder of this machine: mount {scheme}:// and name its path")
    return Path(unquote(parts.path))


def place(text: str) -> Place:
    """Read a path, or a URI of the scheme ``file`` or ``s3``."""
    if not is_object(text):
        return folder(text)
    try:
        return ObjectFolder.parse(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def parser() -> argparse.ArgumentParser:
    """Describe the arguments."""
    top = argparse.ArgumentParser(prog="python -m spark.capacity", description=__doc__.splitlines()[0])
    commands = top.add_subparsers(dest="command", required=True)

    told = "make the tables, the plan and the report of a journal"
    run = commands.add_parser("run", help=told, description=told)
    run.add_argument("--master", help="where Spark runs: spark://HOST:7077, or local[2]; all cores of this machine")
    run.add_argument("--memory", default=MEMORY, help=f"heap of Spark on this machine ({MEMORY})")
    run.add_argument("--horizon", type=hours, default=HORIZON, help=f"hours to forecast ({HORIZON})")
    run.add_argument("--policy", type=folder, help="policies, known events and exclusions: a plan.toml")
    run.add_argument(
        "--journal",
        type=place,
        required=True,
        action="append",
        help="the broker's journal, a folder or s3://BUCKET/KEY; repeatable, for the brokers of one farm",
    )
    run.add_argument(
        "--out", type=place, required=True, help="the folder of the tables and the report, or s3://BUCKET/KEY"
    )
    run.add_argument(
        "--work",
        type=folder,
        help="with --out s3://...: the folder to work in, kept for the next run (a temporary one)",
    )
    run.add_argument("--now", type=moment, help="plan as of this time (the end of the last full hour with a broker)")
    run.add_argument(
        "--keep", type=days, default=KEEP, help=f"days of records to keep in the tables, before the last one ({KEEP})"
    )
    run.add_argument("--date-from", type=date.fromisoformat, help="leave older dates for a later run")
    asked = commands.add_parser("what-if", help="the last plan again, with other assumptions; without Spark")
    asked.add_argument("--out", type=place, required=True, help="the --out of a run")
    asked.add_argument("--growth", type=factor, default=1.0, help="the demand is so many times as high (1.3)")
    asked.add_argument("--full-load", type=factor, help="the load at which a provider is full")
    asked.add_argument("--target", type=share, help="part of its full load that a provider may carry (the policy's)")
    asked.add_argument(
        "--without",
        action="append",
        default=[],
        metavar="KIND=VALUE",
        help="without endpoint=, host= or label=; repeatable",
    )
    asked.add_argument("--policy", type=folder, help="policies, known events and exclusions (those of the run)")
    asked.add_argument("--cost", type=factor, help="of a provider (the policy's)")
    return top


def run_jobs(arguments: argparse.Namespace, progress: Progress) -> None:
    """Run all jobs on the journals of a farm."""
    journals: tuple[Place, ...] = tuple(arguments.journal)
    assumed = read_assumptions(arguments.policy) if arguments.policy else Assumptions()
    for journal in journals:
        need_journal(journal)
    out: Place = arguments.out
    work: Path | None = arguments.work
    for each in (out, work):
        if isinstance(each, Path):
            need_publishable(each)
    if isinstance(out, ObjectFolder):
        need_bucket(out)
    elif work is not None:
        raise OutError("--work is for an --out in an object store")
    settings = Settings(
        journals=journals,
        out=out,
        started=datetime.now(UTC),
        now=arguments.now,
        since=arguments.date_from,
        keep=arguments.keep,
        horizon=arguments.horizon,
        options=Options(assumed),
    )
    if (issued := last_plan(settings, work)) is not None:
        with progress.job("ingest") as step:
            step(1.0, f"nothing new since the plan of {issued:%Y-%m-%d %H:%M} UTC: {out / 'report.html'} is up to date")
        return
    folder = work or (out if isinstance(out, Path) else None)
    if folder is not None:
        Tables(None, folder).need_folder()
    log = None if folder is None else folder / LOG
    work_through(open_session(arguments.master, memory=arguments.memory, log=log), settings, work, progress)


def last_plan(settings: Settings, work: Path | None) -> datetime | None:
    """Return the time of the last plan if a run would make it again. A temporary folder has none to compare with."""
    folder = settings.out if isinstance(settings.out, Path) else work
    if folder is None:
        return None
    issued = same_plan(folder, settings.inputs, settings.journals, settings.started, settings.since, settings.keep)
    if issued is None or isinstance(settings.out, Path):
        return issued
    return issued if is_newest(folder, settings.out, snapshots.last(settings.out / LAKE)) else None


def work_through(spark: SparkSession, settings: Settings, work: Path | None, progress: Progress) -> None:
    """Run all jobs in the out directory; for one in an object store in its working copy, or without ``work`` in a
    folder for this run."""
    out = settings.out
    if isinstance(out, ObjectFolder) and work is None:
        need_one_machine(out, str(spark.sparkContext.master))
    with ExitStack() as stack:
        if isinstance(out, Path):
            work = out
        elif work is None:
            work = Path(stack.enter_context(TemporaryDirectory(prefix="capacity-")))
        tables = Tables(spark, work)
        tables.lock()
        stack.callback(tables.close)
        if isinstance(out, ObjectFolder):
            with progress.job("fetch") as step:
                fetched = refresh(tables, out)
                step(1.0, f"the tables of {out}" if fetched else f"nothing: {work} goes on from {out}")
        tables.open()
        Pipeline(tables, settings, progress).run()


def need_one_machine(out: ObjectFolder, master: str) -> None:
    """Raise `OutError` if the workers do not have the temporary folder of the driver."""
    if not master.startswith("local"):
        raise OutError(f"{out} needs --work on a cluster: a folder that driver and workers see under the same path")


def ask(arguments: argparse.Namespace) -> None:
    """Print the last plan beside that of other assumptions."""
    with tables_of(arguments.out, what_if.needed(arguments.without)) as tables:
        policy: Path | None = arguments.policy
        options = Options(
            read_assumptions(policy) if policy else what_if.policy_of_run(tables.out),
            target=arguments.target,
            cost=arguments.cost,
            growth=arguments.growth,
            full_load=arguments.full_load,
            without=what_if.removed(tables, what_if.last_issue(tables), arguments.without),
        )
        print(what_if.table(what_if.answer(tables, options, again=policy is not None)))


@contextmanager
def tables_of(out: Place, of_providers: Sequence[Table]) -> Iterator[Tables]:
    """Yield the tables that a what-if question needs; those of an object store are fetched, with those ``of_providers``
    for the last full hour."""
    if isinstance(out, Path):
        yield Tables(None, out)
        return
    need_bucket(out)
    last = snapshots.last(out / LAKE)
    if last is None:
        raise OutError(f"{out} has no plan yet: run the jobs first")
    with TemporaryDirectory(prefix="capacity-") as folder:
        tables = Tables(None, Path(folder))
        fill(tables, out, last, [GOLD_PLAN, GOLD_SERVICE_1H, GOLD_POOL_1H])
        issued = what_if.last_issue(tables)
        fill(tables, out, last, [GOLD_FORECAST], issued.date())
        if sizes(out, [what_if.POLICY])[what_if.POLICY] is not None:
            fetch(f"{out}/{what_if.POLICY}", tables.out / what_if.POLICY)
        if of_providers:
            fill(tables, out, last, of_providers, what_if.last_hour(issued).date())
        yield tables


def one_line(error: Exception) -> str:
    """Return the text of an error of delta-rs, which has lines and colours, as one line."""
    return " ".join(re.sub(r"\x1b\[[0-9;]*m", "", str(error)).split())


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command of the command line."""
    arguments = parser().parse_args(argv)
    command = partial(run_jobs, arguments, Progress()) if arguments.command == "run" else partial(ask, arguments)
    return ended(command, arguments.command, arguments.out)


def ended(command: Callable[[], None], name: str, out: Place) -> int:
    """Run a command. Return the exit code, after an error is printed as one sentence."""
    try:
        command()
    except SAID as error:
        print(f"capacity: {error}", file=sys.stderr)
        return 1
    except DeltaError as error:
        print(f"capacity: {out}: {one_line(error)}", file=sys.stderr)
        return 1
    except OSError as error:
        told = error.strerror or one_line(error)
        print(f"capacity: {error.filename or name}: {told}", file=sys.stderr)
        return 1
    except (PySparkException, Py4JError) as error:
        lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [type(error).__name__]
        # The last line has the reason for which a worker failed.
        said = lines[0] if len(lines) == 1 else f"{lines[0]} ... {lines[-1]}"
        print(f"capacity: Spark failed: {said}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("capacity: stopped; the next run goes on from here", file=sys.stderr)
        return 1
    return 0
