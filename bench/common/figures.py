"""Figures of scenarios, each with its goal if it has one; and the command line that runs scenarios."""

from __future__ import annotations

import statistics
import sys
from argparse import ArgumentParser
from collections.abc import Callable, Mapping, Sequence

import attrs

from bench.common import command
from bench.common.machine import load_average
from bench.common.report import table

KIB, MIB = 1024, 1024 * 1024


@attrs.frozen
class Figure:
    """One thing that was measured. ``met`` is None where there is no goal."""

    what: str
    value: str
    goal: str = "-"
    met: bool | None = None

    def cells(self) -> list[str]:
        return [self.what, self.value, self.goal if self.met is None else f"{self.goal}: {judged(self.met)}"]


def judged(met: bool) -> str:
    """A goal's outcome, in the word that one looks for."""
    return "met" if met else "MISSED"


def at_most(what: str, value: float, most: float, form: str) -> Figure:
    """A figure that may not be larger."""
    return Figure(what, form.format(value), f"<= {form.format(most)}", value <= most)


def at_least(what: str, value: float, least: float, form: str) -> Figure:
    """A figure that may not be smaller."""
    return Figure(what, form.format(value), f">= {form.format(least)}", value >= least)


def exactly(what: str, value: object, wanted: object) -> Figure:
    """A figure that must be this."""
    return Figure(what, str(value), str(wanted), value == wanted)


def median(results: Sequence[object], figure: str) -> float:
    """The median of one attribute of them."""
    values: list[float] = [getattr(result, figure) for result in results]
    return statistics.median(values)


@attrs.frozen
class Scenario:
    """One scenario, and how long it goes on: by default, with ``--quick``, and with ``--long``, where these differ."""

    title: str
    seconds: float
    run: Callable[[float], list[Figure]]
    long: float | None = None
    quick: float | None = None

    def measured(self, seconds: float | None, quick: bool, long: bool) -> list[Figure]:
        """Run it for so long, or for its own time."""
        own = self.long if long else self.quick if quick else None
        return self.run(seconds or own or self.seconds)


def figure_table(figures: Sequence[Figure]) -> str:
    """The figures of one scenario as Markdown."""
    return table(["figure", "value", "goal"], [figure.cells() for figure in figures])


def run_scenarios(description: str, scenarios: Mapping[str, Scenario]) -> int:
    """Run those that the command line selects. Returns the exit status: 1 if a goal was missed."""
    arguments = ArgumentParser(description=description)
    arguments.add_argument("--seconds", type=float, help="of each scenario, instead of its own")
    arguments.add_argument("--quick", action="store_true", help="less of those that go on for long")
    titles = {name: scenario.title for name, scenario in scenarios.items()}
    options, names = command.parsed(arguments, "scenarios", titles)
    about = command.begin()
    outcomes: dict[str, list[Figure]] = {}
    for name in names:
        print(f"{name} ...", file=sys.stderr, flush=True)
        outcomes[name] = scenarios[name].measured(options.seconds, options.quick, False)
    print(f"load average at the end: {load_average()}\n")
    for name, figures in outcomes.items():
        print(f"{titles[name]}\n\n{figure_table(figures)}\n")
    results = {name: [attrs.asdict(figure) for figure in figures] for name, figures in outcomes.items()}
    command.write(options.json, about, scenarios=results)
    return 1 if any(figure.met is False for figures in outcomes.values() for figure in figures) else 0
