"""The folders of a journal: on this machine, and in an object store.

Rules:
- A folder on this machine has a state: when names in it last changed. An hour with the state that is known is passed
  over: a segment appears in it by a rename, which changes that state.
- A store tells no such state, and lists a thousand names a request. So dates are listed one by one: those that are new,
  those of its last days (`RECENT`), and those to which something leads back (a segment in quarantine, another journal).
- The first run of each UTC date by the wall clock lists all dates, for segments that come late: of a broker that was
  away, or of a copy made by hand. The state of a date in a store is the UTC date on which it was last listed.
- The broker's retention may delete what is listed, at any moment: it is as if it had never been there.
- States are noted after the segments are, in the ledger: a run that is cut off notes nothing, and the next lists again.
"""

import os
from collections.abc import Collection, Iterator, Mapping
from datetime import UTC, date, datetime, time, timedelta
from pathlib import Path

import attrs
import pandas as pd

from spark.capacity.tables.object_store import Listed, ObjectFolder, Place, folders_in, listing, need_bucket
from spark.capacity.tables.schema import FOLDERS
from spark.capacity.tables.store import DATED, Tables

SEGMENTS = "segments"
"""The folder of a journal that has the sealed segments."""

HIDDEN = (".", "_")
"""Beginnings of names that are not the broker's."""

RECENT = timedelta(days=2)
"""Dates before the newest one that each run lists in a store. A segment has the date of its first record, is sealed up
to a day later (`segment_seconds`), and is in the bucket up to a day after that if it is copied daily."""


class JournalError(Exception):
    """There is no journal to read."""


@attrs.frozen
class Hour:
    """A folder of an hour, named below `segments`; its key in the table of folders, and its state (when names in it
    last changed, in nanoseconds), which a store does not tell."""

    name: str
    key: str
    state: int | None


@attrs.frozen
class Entry:
    """A name in an hour: its size in bytes and the time of its last change in nanoseconds, if it is a file."""

    name: str
    size: int
    changed: int
    is_file: bool


def need_journal(journal: Place) -> None:
    """Raise `JournalError` or `StoreError` where no journal can be, without listing it."""
    if isinstance(journal, ObjectFolder):
        need_bucket(journal)
    elif not (journal / SEGMENTS).is_dir():
        raise JournalError(f"{journal} is no journal: it has no folder named {SEGMENTS}")


def folders_of(journal: Place, known: Mapping[str, int], today: date, *, alone: bool) -> "Folders":
    """Open a journal, with the states that are ``known``; raise `JournalError` if it is none.

    ``alone``: it is the only one, so that its folders on this machine may move.
    """
    if isinstance(journal, Path):
        return LocalFolders(journal, known, alone=alone)
    return StoredFolders(journal, known, today)


class LocalFolders:
    """The folders of a journal on this machine."""

    def __init__(self, journal: Path, known: Mapping[str, int], *, alone: bool) -> None:
        need_journal(journal)
        self._root = journal.absolute() / SEGMENTS
        self.root = str(self._root)
        self._known = known
        # Their states before they are listed: what comes meanwhile changes them.
        self._hours = list(self._look(alone))

    def _look(self, alone: bool) -> Iterator[Hour]:
        hours = (hour for day in _entries(self.root) if day.is_dir() for hour in _entries(day.path))
        for folder in hours:
            if folder.is_dir() and not folder.name.startswith(HIDDEN) and (status := _status(folder)) is not None:
                name = Path(folder.path).relative_to(self._root).as_posix()
                yield Hour(name, name if alone else Path(folder.path).as_posix(), status.st_mtime_ns)

    def with_news(self) -> set[str]:
        """Return the dates that may have new segments, by the names of their folders."""
        return {date_of(hour.name) for hour in self._hours if self._known.get(hour.key) != hour.state}

    def hours(self, dates: Collection[str]) -> Iterator[Hour]:
        """List the hours, at least those of some dates."""
        return iter(self._hours)

    def states(self, dates: Collection[str]) -> dict[str, int]:
        """Return the states of the dates themselves: none, since their hours have states."""
        return {}

    def entries(self, hour: str) -> list[Entry]:
        """List an hour, in order of names; hidden names are left out."""
        found = []
        for entry in _entries(os.path.join(self.root, hour)):
            if entry.name.startswith(HIDDEN):
                continue
            if not entry.is_file():
                found.append(Entry(entry.name, 0, 0, False))
            elif (status := _status(entry)) is not None:
                found.append(Entry(entry.name, status.st_size, status.st_ctime_ns, True))
        return found


def _entries(path: str) -> list[os.DirEntry[str]]:
    """List a folder, in order of names; one that the broker has deleted meanwhile is empty."""
    try:
        with os.scandir(path) as entries:
            return sorted(entries, key=lambda entry: entry.name)
    except FileNotFoundError:
        return []


def _status(entry: os.DirEntry[str]) -> os.stat_result | None:
    """Return the status of an entry; None if it has been deleted meanwhile."""
    try:
        return entry.stat()
    except FileNotFoundError:
        return None


def _day_of(name: str) -> date | None:
    """Return the date of a folder, None for another name."""
    try:
        return date.fromisoformat(name.removeprefix("date="))
    except ValueError:
        return None


class StoredFolders:
    """The folders of a journal in an object store."""

    def __init__(self, journal: ObjectFolder, known: Mapping[str, int], today: date) -> None:
        self._place = journal / SEGMENTS
        self.root = str(self._place)
        self._dates = set(folders_in(self._place))
        # One of which all segments were deleted since is a journal still.
        if not self._dates and not any(key.startswith(f"{self.root}/") for key in known):
            raise JournalError(f"{journal} is no journal: it has no folder named {SEGMENTS} with a date in it")
        self._known = known
        newest = max((day for day in map(_day_of, self._dates) if day is not None and day <= today), default=today)
        self._recent, self._last = f"date={newest - RECENT}", f"date={date.max}"
        midnight = datetime.combine(today, time(), UTC)
        self._today = int(midnight.timestamp()) * 1_000_000_000
        self._held: dict[str, dict[tuple[str, bool], Entry]] = {}

    def with_news(self) -> set[str]:
        """Return the dates that may have new segments, by the names of their folders."""
        recent = {name for name in self._dates if self._recent <= name <= self._last}
        return recent | {name for name in self._dates if self._known.get(self._key(name)) != self._today}

    def hours(self, dates: Collection[str]) -> Iterator[Hour]:
        """List the hours of some dates."""
        wanted = self._dates.intersection(dates)
        if wanted == self._dates:
            # A listing of everything has a thousand names in each answer, one of a date those of the date.
            found = [(one.name, one) for one in listing(self._place)]
        else:
            found = [(f"{name}/{one.name}", one) for name in sorted(wanted) for one in listing(self._place / name)]
        for name, one in found:
            self._hold(name, one)
        for name in self._held:
            yield Hour(name, f"{self.root}/{name}", None)

    def _hold(self, name: str, one: Listed) -> None:
        parts = name.split("/")
        if len(parts) >= 3 and not parts[1].startswith(HIDDEN) and not parts[2].startswith(HIDDEN):
            entry = Entry(parts[2], one.size, one.changed, is_file=len(parts) == 3)
            self._held.setdefault("/".join(parts[:2]), {})[entry.name, entry.is_file] = entry

    def states(self, dates: Collection[str]) -> dict[str, int]:
        """Return the states of the dates themselves, by key, once their segments were listed."""
        return {self._key(name): self._today for name in self._dates.intersection(dates)}

    def _key(self, name: str) -> str:
        return f"{self.root}/{name}"

    def entries(self, hour: str) -> list[Entry]:
        """List an hour, in order of names; hidden names are left out."""
        return sorted(self._held[hour].values(), key=lambda entry: entry.name)


Folders = LocalFolders | StoredFolders
"""The folders of a journal. `root` is the path or URI of `segments`."""


def is_kept(name: str, first: date | None) -> bool:
    """Return True if a segment or folder may have records of a date that is kept: of ``first`` or of a later one. A
    segment may end on the date after that of its folder."""
    found = DATED.search(name)
    return first is None or found is None or found[0] >= f"date={first - timedelta(days=1)}"


def date_of(hour: str) -> str:
    """Return the name of the date's folder of an hour."""
    return hour.partition("/")[0]


def known_folders(tables: Tables) -> dict[str, int]:
    """Return the states of the folders whose segments are all in the ledger, by key."""
    rows = tables.rows_of(FOLDERS)
    return dict(zip(rows["folder"].to_pylist(), rows["state"].to_pylist(), strict=True))


def note_folders(tables: Tables, found: Mapping[str, int]) -> None:
    """Store the states of folders, once their segments are in the ledger."""
    known = known_folders(tables)
    if found.items() - known.items():
        tables.put(FOLDERS, pd.DataFrame(sorted({**known, **found}.items()), columns=FOLDERS.schema.names))
