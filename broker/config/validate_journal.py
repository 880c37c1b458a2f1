"""Whether the values of the metrics journal make sense, and what its name comes to where none is given."""

from __future__ import annotations

import re
from collections.abc import Iterator

from broker.config.problem import Problem, in_range, in_ranges
from broker.config.values import FullLoad, Journal

MAX_NAME = 64
"""Characters of a broker's name in the journal: with the rest of a file's name it must stay under 255 bytes."""

UNNAMED = "broker"
"""What a broker is called whose host has no name."""

JOURNAL_RANGES: dict[str, tuple[float, float]] = {
    # each segment is a file, and a file costs its readers as much as some thousand records; compressing one, and
    # reading it again, is work for a single core
    "segment_bytes": (64 * 1024, 1024**3),
    # only sealed segments are read; and later than a day nobody waits for one
    "segment_seconds": (1, 86_400),
    # the jobs that read them run once a day; the most is a century
    "keep_seconds": (86_400, 36_525 * 86_400),
    # the least is under an hour of a small farm; the most is a hundred years of the busiest
    "keep_bytes": (1024 * 1024, 100 * 1024**4),
}
"""The least and the most of each number of the journal, in the units of `Journal`."""

LEAST_LOAD = 1e-9
"""Less is no measure of anything: what a provider reports, divided by that, must stay a number that can be read."""

MOST_LOAD = 1e15
"""Integers above nine times that are not exact any more, in what is added up over all providers."""

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_UNFIT = re.compile(r"[^A-Za-z0-9._-]+")
_HIDDEN = "._"
"""How the names of files begin that readers of the journal do not look at."""
_NOT_FIRST = _HIDDEN + "-"
"""A hyphen neither: to the commands of a shell such a name would be an option."""


def effective_journal_name(journal: Journal, host: str) -> str:
    """What the broker is called in the journal: as it says, else ``host``, the host's name, as far as it is fit."""
    if journal.name is not None:
        return journal.name
    return _UNFIT.sub("-", host).lstrip(_NOT_FIRST)[:MAX_NAME] or UNNAMED


def journal_problems(journal: Journal) -> Iterator[Problem]:
    """What is wrong with the values of the journal. Reads nothing."""
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
