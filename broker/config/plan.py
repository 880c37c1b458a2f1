"""The section ``[plan]``: the file of the capacity plan."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import attrs

from broker.config.files import Named as Files
from broker.config.problem import Problem
from broker.config.section import Section


@attrs.frozen
class Plan:
    """The capacity plan that the jobs write."""

    file: str | None = None
    """Path of plan.json. Relative to the configuration file, whose reading makes it absolute. None: no plan."""


def _problems(plan: Plan) -> Iterator[Problem]:
    # A missing file is no problem of the configuration: the jobs write it later.
    if plan.file is not None and (not plan.file or "\0" in plan.file):
        yield Problem("plan.file", "is no path")


def _summary(plan: Plan) -> Iterator[str]:
    if plan.file is not None:
        yield f"plan: {plan.file}"


def _files(plan: Plan, files: Files) -> Plan:
    return attrs.evolve(plan, file=files.absolute(plan.file))


PLAN = Section(
    "plan",
    Plan,
    Plan(),
    _problems,
    summary=_summary,
    reloadable=("file",),
    read=_files,
    example=(Path(__file__).parent / "plan.toml").read_text,
)
"""The section."""
