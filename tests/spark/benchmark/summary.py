"""Output of `evaluate`: the tables of results, and the goals that were met."""

from __future__ import annotations

from tests.spark.benchmark import back_test, bound_tables, flaky_detection
from tests.spark.benchmark.back_test import Walked
from tests.spark.benchmark.pipeline_trial import Outcome

IN_WEEKS = "generator"
"""The group of the generator's demand, walked through a week at a time."""

IN_JOBS = "generator, through the jobs"
"""The group of its journals: a day, forecast by the jobs from the few days that they had."""


def markdown(walked: Walked, weeks: list[list[back_test.Step]], outcome: Outcome | None) -> str:
    """Return it all. Without an outcome no journals were made."""
    walks = dict(walked.walks)
    if weeks:
        walks[IN_WEEKS] = weeks
    if outcome is not None:
        walks[IN_JOBS] = [list(steps) for steps in outcome.forecasts]
    result = back_test.summary(walks)
    told = [back_test.markdown(result)]
    recorded = [step for walk in walked.walks.values() for steps in walk for step in steps]
    if recorded:
        told += [bound_tables.costs(recorded), bound_tables.calibration(recorded), bound_tables.odds(walked.odds)]
    goals = list(result.goals)
    if outcome is not None:
        told.append(flaky_detection.markdown(outcome.days))
        goals += flaky_detection.goals(outcome.days)
    lines = [f"- {'kept' if kept else 'MISSED'}: {goal}" for goal, kept in goals]
    if outcome is not None:
        measured = outcome.measured
        lines.append(
            f"- demand as the jobs measured it, of {measured.hours:,} hours: off by {measured.error:.1%} on average; of"
            f" {measured.hours_down:,} hours in which a provider was down: by {measured.error_down:.1%},"
            f" {abs(measured.bias_down):.1%} too {'high' if measured.bias_down > 0 else 'low'}"
        )
    lines += [f"- used: {name} {what}" for name, what in walked.strange]
    lines += [f"- left out: {name} {reason}" for name, reason in walked.left_out]
    told.append("\n".join(lines) + "\n")
    return "\n".join(told)
