"""The section ``[journal]``: keys, checks, and the lines of ``--check``."""

from __future__ import annotations

import re
from collections.abc import Iterator

import attrs

from broker.config import key_checks
from broker.config.key import REQUIRED, Resolves, Section, Settings, bytes_key, key, seconds_key
from broker.config.key_checks import Problem

MAX_NAME = 64
"""Characters of a broker's name in the journal: with the rest of a file's name it must stay under 255 bytes."""


UNNAMED = "broker"
"""Name of a broker on a host without a name."""


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


_DAY = 86_400


_UNITS = ((1024**4, "TiB"), (1024**3, "GiB"), (1024**2, "MiB"))


def _load(here: str, load: float) -> Iterator[Problem]:
    if load <= 0:
        yield Problem(here, f"must be above 0, not {load:.15g}")
    else:
        yield from key_checks.in_range(here, load, LEAST_LOAD, MOST_LOAD)


def _name(here: str, name: str) -> Iterator[Problem]:
    if not name:
        yield Problem(here, "is empty")
    elif name.startswith(tuple(_HIDDEN)):
        yield Problem(here, "begins with a dot or an underscore: readers ignore such files")
    elif len(name) > MAX_NAME or not _NAME.fullmatch(name):
        text = (
            f"may have up to {MAX_NAME} letters, digits, dots, hyphens and underscores, the first a letter or digit, "
            "as a part of file names"
        )
        yield Problem(here, text)


@attrs.frozen
class FullLoad(Settings):
    """Load at which a provider is full, for some services. The first entry with a matching pattern applies. Plans have
    no capacity for services that match none."""

    services: tuple[str, ...] = key(
        REQUIRED, "Names of services, as patterns (*, ?, [...]).", check=key_checks.services, example=("context-*",)
    )
    load: float = key(REQUIRED, "In the measure of their reports, above 0.", check=_load, example=400.0)


@attrs.frozen
class Journal(Settings):
    """The metrics journal: recorded loads and signs of life in files, for capacity planning. docs/export.md has its
    format."""

    enabled: bool = key(True, "Enables the journal.")
    directory: str | None = key(
        None,
        'Directory, relative to this file. By default "journal" in the state directory.',
        path=True,
        example="/var/lib/elkobroker/journal",
    )
    name: str | None = key(
        None,
        "Name of this broker in the journal: up to 64 letters, digits, dots, hyphens, underscores; a letter or digit"
        " first. By default the name of the host. Brokers whose journals are read together need different names.",
        check=_name,
        example="east",
    )
    # Each segment is a file, which costs its readers as much as some thousand records; one core compresses it, and one
    # core reads it.
    segment_bytes: int = bytes_key(
        64 * 1024**2, "Size of a file's records, before compression, at which it is sealed.", within=(65_536, 1024**3)
    )
    # Only sealed segments are read: a longer one would delay capacity plans by more than a day.
    segment_seconds: float = seconds_key(
        3600.0, "Time after which a file is sealed in any case. Only sealed files are read.", within=(1, 86_400)
    )
    # The capacity jobs run once a day; the upper bound is a century.
    keep_seconds: float = seconds_key(
        400 * 86_400.0,
        "Time for which sealed files are kept. Loads have yearly seasons: this is a year and a month.",
        within=(86_400, 36_525 * 86_400),
    )
    # The lower bound is under an hour of a small farm, the upper one a hundred years of the busiest.
    keep_bytes: int = bytes_key(
        20 * 1024**3,
        "Size of all sealed files that are kept; beyond them, the oldest are deleted.",
        within=(1024**2, 100 * 1024**4),
    )
    full_load: tuple[FullLoad, ...] = key((), reload=True)

    def problems(self, here: str) -> Iterator[Problem]:
        """Yield room for less than one segment."""
        if self.keep_bytes < self.segment_bytes:
            text = f"{self.keep_bytes} is less than segment_bytes, {self.segment_bytes}"
            yield Problem(f"{here}.keep_bytes", text, f"{here}.segment_bytes")

    def effective_name(self, host: str) -> str:
        """Return the name of the broker in the journal: the given one, else the valid part of ``host``, the host's
        name."""
        if self.name is not None:
            return self.name
        return _UNFIT.sub("-", host).lstrip(_NOT_FIRST)[:MAX_NAME] or UNNAMED

    def summary(self) -> Iterator[str]:
        """Yield a line."""
        if not self.enabled:
            yield "journal: off"
            return
        days = self.keep_seconds / _DAY
        size = next(((unit, name) for unit, name in _UNITS if self.keep_bytes >= unit), _UNITS[-1])
        parts = [
            self.directory or "in the state directory",
            *(() if self.name is None else (f"as {self.name}",)),
            f"kept {days:.4g} {'day' if days == 1 else 'days'}",
            f"{self.keep_bytes / size[0]:.4g} {size[1]}",
        ]
        yield f"journal: {', '.join(parts)}; full_load {len(self.full_load) or 'none'}"

    def warnings(self, resolves: Resolves) -> Iterator[str]:
        """Yield the lack of full loads, and entries that never apply."""
        if not self.enabled:
            return
        if not self.full_load:
            yield "journal.full_load is empty: plans have no capacity for any service"
        for_all: str | None = None
        for index, entry in enumerate(self.full_load):
            here = f"journal.full_load[{index}]"
            if for_all is not None:
                yield f"{here}: never counts, since {for_all} is for every service"
            elif not all(pattern.strip("*") for pattern in entry.services):
                for_all = here


JOURNAL = Section("journal", Journal())
"""The section."""
