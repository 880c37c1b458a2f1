"""Tables of the peak bound on recorded series: misses and costs beside other rules, and promised misses.

Rules:
- `seen` are the horizons in the first part of each series, on which the rules were chosen; `held out` are the others.
- Misses stand with the interval that 95 % of such counts have (Clopper and Pearson), as if horizons were independent.
- Bound by peak is shown as median and mean; the mean takes no ratio for more than `MOST`, which a series of little but
  one spike can have.
- The whole cost is the providers bought over those that the peak needs at full load: headroom, target utilisation and
  spares, for a service whose peak is `FARM` full loads.
- Calibration: horizons by the rate that the record printed at most; the rate of misses must not be higher.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from math import ceil

import numpy as np

from spark.capacity.planning.needs import Needs
from spark.capacity.planning.peak_bound import upper_limit
from tests.spark.benchmark.back_test import HELD_OUT, SEEN, Step
from tests.spark.benchmark.rival_rules import RULES

MOST = 10.0

FARM = 10
"""Full loads of the peak for which the whole cost is shown: spares cost small services more."""

NEEDS = Needs(1.0)
"""Of a service whose providers are full at a load of 1."""

ODDS = (0.0, 0.005, 0.01, 0.02, 0.04, 0.08, 1.0)
"""Edges of the groups of odds."""

PRINTED = ((0.0, 0.2), (0.2, 0.35), (0.35, 0.6), (0.6, 0.999), (0.999, 1.0))
"""Groups of printed limits; the last is of those that say nothing."""


def lower_limit(missed: int, trials: int, level: float) -> float:
    """Return the lowest rate with which so many misses are not rarer than 1 - level."""
    return 1.0 - upper_limit(trials - missed, trials, level)


def interval(missed: int, trials: int) -> str:
    """Say the share of misses, with its two-sided 95 % interval."""
    low, high = lower_limit(missed, trials, 0.975), upper_limit(missed, trials, 0.975)
    return f"{missed} of {trials} ({missed / trials:.1%}; {low:.1%} to {high:.1%})"


def costs(steps: Sequence[Step]) -> str:
    """Return the table of rules."""
    lines = [
        "| part | rule of the bound | missed | bound / peak: median | mean | whole cost |",
        "|---|---|--:|--:|--:|--:|",
    ]
    for part in (SEEN, HELD_OUT):
        for rule in RULES:
            ratios = np.array([step.rivals[rule] for step in steps if step.part == part and rule in step.rivals])
            if len(ratios):
                bought = [(NEEDS.of(FARM * min(ratio, MOST)) or 0) / FARM for ratio in ratios]
                lines.append(
                    f"| {part} | {rule} | {interval(int((ratios < 1.0).sum()), len(ratios))} |"
                    f" {np.median(ratios):.2f} | {np.minimum(ratios, MOST).mean():.2f} | {np.median(bought):.2f} |"
                )
    return "\n".join(lines) + "\n"


def odds(pairs: Sequence[tuple[float, bool]]) -> str:
    """Return the table of odds of a day ahead, as they were said and as they came."""
    lines = ["| odds | days | said, mean | came |", "|---|--:|--:|--:|"]
    for low, high in pairwise(ODDS):
        mine = [(said, missed) for said, missed in pairs if low <= said < high]
        if mine:
            said, missed = float(np.mean([said for said, _ in mine])), sum(missed for _, missed in mine)
            lines.append(f"| {low:.1%} to {high:.1%} | {len(mine)} | {said:.2%} | {interval(missed, len(mine))} |")
    return "\n".join(lines) + "\n"


def calibration(steps: Sequence[Step]) -> str:
    """Return the table of promises and outcomes."""
    lines = [
        "| part | printed: missed at most | horizons | printed, mean | came: missed |",
        "|---|---|--:|--:|--:|",
    ]
    for part in (SEEN, HELD_OUT):
        for low, high in PRINTED:
            mine = [step for step in steps if step.part == part and low < step.promised <= high]
            if mine:
                name = "never tried" if low == PRINTED[-1][0] else f"{low:.0%} to {high:.0%}"
                missed = sum(step.missed for step in mine)
                printed = float(np.mean([step.promised for step in mine]))
                lines.append(
                    f"| {part} | {name} | {len(mine)} | {ceil(100 * printed)}% | {interval(missed, len(mine))} |"
                )
    return "\n".join(lines) + "\n"
