"""The command line of all benchmarks: the choice of rows, how much is measured, and a file for the results."""

from __future__ import annotations

import json
import time
from argparse import Action, ArgumentParser, Namespace
from collections.abc import Mapping
from fnmatch import fnmatchcase
from pathlib import Path

import zmq

from bench.common import traffic
from bench.common.machine import describe, load_average, raise_descriptor_limit
from bench.common.servers import Subject


def parsed(
    arguments: ArgumentParser, what: str, titles: Mapping[str, str], broker: bool = True
) -> tuple[Namespace, list[str]]:
    """Parse the command line. Returns the options, and the names of what to run: ``what`` is what these are called.

    ``broker`` says whether brokers are started, so that it can be said which.

    Ends the process if they are only to be listed, or none has such a name.
    """
    arguments.add_argument(f"--{what}", default="*", help=f"patterns of the {what} to run, with commas between")
    _add_json(arguments)
    if broker:
        arguments.add_argument(
            "--checkout", type=Path, help="measure the broker of this checkout instead of this one's"
        )
    arguments.add_argument("--list", action="store_true", help=f"list the {what}")
    options = arguments.parse_args()
    if options.list:
        width = max(map(len, titles)) + 2
        print("\n".join(f"{name:{width}}{title}" for name, title in titles.items()))
        arguments.exit()
    if broker and options.checkout is not None:
        Subject.checkout = options.checkout.resolve()
    patterns = getattr(options, what).split(",")
    names = [name for name in titles if any(fnmatchcase(name, pattern) for pattern in patterns)]
    if not names:
        arguments.error(f"no {what.removesuffix('s')} is called {getattr(options, what)}; --list shows them")
    return options, names


def whole(description: str, runs: int, seconds: float) -> Namespace:
    """Parse the command line of a benchmark without a choice of rows. Returns ``runs``, ``seconds`` and ``json``."""
    arguments = ArgumentParser(description=description)
    _add_amount(arguments, runs, seconds)
    _add_json(arguments)
    return arguments.parse_args()


def add_measuring(arguments: ArgumentParser, runs: int, seconds: float, quick: Mapping[str, float]) -> None:
    """The options for how much is measured. ``quick`` is what ``--quick`` sets instead of the defaults."""
    arguments.add_argument(
        "--quick",
        action=_Quick,
        nargs=0,
        const=quick,
        help=f"some 20 s for each row: {', '.join(f'--{name} {value:g}' for name, value in quick.items())}",
    )
    _add_amount(arguments, runs, seconds)


def _add_json(arguments: ArgumentParser) -> None:
    """The option for the file of `write`."""
    arguments.add_argument("--json", metavar="FILE", help="write all results to this file")


def _add_amount(arguments: ArgumentParser, runs: int, seconds: float) -> None:
    arguments.add_argument(
        "--runs", type=int, default=runs, help="how often each is run; the median counts [default: %(default)s]"
    )
    arguments.add_argument(
        "--seconds", type=float, default=seconds, help="of each measured stretch [default: %(default)g]"
    )


class _Quick(Action):
    """Sets several options at once."""

    def __call__(self, parser: ArgumentParser, namespace: Namespace, values: object, option: str | None = None) -> None:
        for name, value in self.const.items():
            setattr(namespace, name, value)


def add_rest(arguments: ArgumentParser) -> None:
    """The option for how the generators on plain sockets wait: see `bench.common.traffic.REST`."""
    arguments.add_argument(
        "--rest",
        type=float,
        default=1e6 * traffic.REST,
        help="microseconds that the generator rests; 0: until something comes",
    )


def begin() -> dict[str, str]:
    """Get ready, and say what the figures depend on. That is returned, too."""
    raise_descriptor_limit()
    about = {
        "date": time.strftime("%Y-%m-%d %H:%M"),
        **describe(),
        "pyzmq": zmq.pyzmq_version(),
        "libzmq": zmq.zmq_version(),
    }
    for key, value in about.items():
        print(f"{key}: {value}")
    return about


def write(path: str | None, about: Mapping[str, str], **results: object) -> None:
    """Write the results, if a file was given for them."""
    if path is not None:
        machine = {**about, "load average at the end": load_average()}
        with open(path, "w") as file:
            json.dump({"machine": machine, **results}, file, indent=1)
