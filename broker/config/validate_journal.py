"""Checks of the metrics journal's section, and the default of its name."""

from __future__ import annotations

import re
from collections.abc import Iterator

from broker.config.problem import Problem, in_range, in_ranges
from broker.config.values import FullLoad, Journal

MAX_NAME = 64
"""Characters of a broker's name in the journal: with the rest of a file's name it must stay under 255 bytes."""

UNNAMED = "broker"
"""Name of a broker on a host without a name."""

JOURNAL_RANGES: dict[str, tuple[float, float]] = {
    # Each segment is a file, which costs its readers as much as some thousand records; one core compresses it, and one
    # core reads it.
    "segment_bytes": (64 * 1024, 1024**3),
    # Only sealed segments are read: a longer one would delay capacity plans by more than a day.
    "segment_seconds": (1, 86_400),
    # The capacity jobs run once a day; the upper bound is a century.
    "keep_seconds": (86_400, 36_525 * 86_400),
    # The lower bound is under an hour of a small farm, the upper one a hundred years of the busiest.
    "keep_bytes": (1024 * 1024, 100 * 1024**4),
}
"""The least and the most of each number of the journal, in the units of `Journal`."""

LEAST_LOAD = 1e-9
"""A smaller one measures nothing: a reported load, divided by it, must stay a readable number."""

MOST_LOAD = 1e15
"""Sums over all providers must stay exact: integers of a float are exact up to nine times that."""

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_UNFIT = re.compile(r"[^A-Za-z0-9._-]+")
_HIDDEN = "._"
"""First characters of the file names that readers of the journal skip."""
_NOT_FIRST = _HIDDEN + "-"
"""A hyphen as well: for shell commands such a name would be an option."""


def effective_journal_name(journal: Journal, host: str) -> str:
    """Return the name of the broker in the journal: the given one, else the valid part of ``host``, the host's name."""
    if journal.name is not None:
        return journal.name
    return _UNFIT.sub("-", host).lstrip(_NOT_FIRST)[:MAX_NAME] or UNNAMED


def journal_problems(journal: Journal) -> Iterator[Problem]:
    """Yield the problems of the section. Reads nothing."""
    if journal.directory is not None and (not journal.directory or "\0" in journal.directory):
        yield Problem("journal.directory", "is no path")
    if journal.name is not None:
        yield from _name(journal.name)
    outside = list(in_ranges("journal", journal, JOURNAL_RANGES))
    yield from outside
    if not outside and journal.keep_bytes < journal.segment_bytes:
        text = f"{journal.keep_bytes} is less than segment_bytes, {journal.segment_bytes}"
        yield Problem("journal.keep_bytes", text, "journal.segment_bytes")
    for index, entry in enumerate(journal.full_load):
        yield from _full_load(f"journal.full_load[{index}]", entry)


def _name(name: str) -> Iterator[Problem]:
    if not name:
        yield Problem("journal.name", "is empty")
    elif name.startswith(tuple(_HIDDEN)):
        yield Problem("journal.name", "begins with a dot or an underscore: readers do not look at such files")
    elif len(name) > MAX_NAME or not _NAME.fullmatch(name):
        text = (
            f"may have up to {MAX_NAME} letters, digits, dots, hyphens and underscores, the first a letter or digit, "
            "as a part of file names"
        )
        yield Problem("journal.name", text)


def _full_load(here: str, entry: FullLoad) -> Iterator[Problem]:
    if not entry.services:
        yield Problem(f"{here}.services", 'is for no service; "*" is every one')
    for number, pattern in enumerate(entry.services):
        if not pattern:
            yield Problem(f"{here}.services[{number}]", 'is empty; "*" is every name')
    if entry.load <= 0:
        yield Problem(f"{here}.load", f"must be above 0, not {entry.load:.15g}")
    else:
        yield from in_range(f"{here}.load", entry.load, LEAST_LOAD, MOST_LOAD)
