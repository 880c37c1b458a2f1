"""The folders of a journal: on this machine, and in an object store."""

import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from spark.capacity.tables.object_store import Listed, ObjectFolder, Place, listing, need_bucket

SEGMENTS = "segments"
"""The folder of a journal that has the sealed segments."""

HIDDEN = (".", "_")
"""Beginnings of names that are not the broker's."""


class JournalError(Exception):
    """There is no journal to read."""


@dataclass(frozen=True)
class Hour:
    """A folder of an hour, named below `segments`; its key in the table of folders, and its state (when names in it
    last changed, in nanoseconds), which a store does not tell."""

    name: str
    key: str
    state: int | None


@dataclass(frozen=True)
class Entry:
    """A name in an hour: its size in bytes and the time of its last change in nanoseconds, if it is a file."""

    name: str
    size: int
    changed: int
    is_file: bool


class Folders(Protocol):
    """The folders of a journal."""

    root: str
    """Path or URI of `segments`."""

    def hours(self) -> Iterator[Hour]:
        """List the hours."""

    def entries(self, hour: str) -> list[Entry]:
        """List an hour, in order of names; hidden names are left out."""


def need_journal(journal: Place) -> None:
    """Raise `JournalError` or `StoreError` where no journal can be, without listing it."""
    if isinstance(journal, ObjectFolder):
        need_bucket(journal)
    elif not (journal / SEGMENTS).is_dir():
        raise JournalError(f"{journal} is no journal: it has no folder named {SEGMENTS}")


def folders_of(journal: Place) -> Folders:
    """Open a journal; raise `JournalError` if it is none."""
    return LocalFolders(journal) if isinstance(journal, Path) else StoredFolders(journal)


class LocalFolders:
    """The folders of a journal on this machine."""

    def __init__(self, journal: Path) -> None:
        need_journal(journal)
        self._root = journal.absolute() / SEGMENTS
        self.root = str(self._root)

    def hours(self) -> Iterator[Hour]:
        """List the hours."""
        for folder in self._root.glob("*/*"):
            if folder.is_dir() and not folder.name.startswith(HIDDEN):
                # Its state before it is listed: what comes meanwhile changes it.
                yield Hour(folder.relative_to(self._root).as_posix(), folder.as_posix(), folder.stat().st_mtime_ns)

    def entries(self, hour: str) -> list[Entry]:
        """List an hour, in order of names; hidden names are left out."""
        found = []
        with os.scandir(self._root / hour) as entries:
            for entry in sorted(entries, key=lambda entry: entry.name):
                if entry.name.startswith(HIDDEN):
                    continue
                if entry.is_file():
                    status = entry.stat()
                    found.append(Entry(entry.name, status.st_size, status.st_ctime_ns, True))
                else:
                    found.append(Entry(entry.name, 0, 0, False))
        return found


@dataclass
class _StoredHour:
    files: list[Listed] = field(default_factory=list)
    folders: set[str] = field(default_factory=set)


class StoredFolders:
    """The folders of a journal in an object store: all of it is listed at once, a thousand names a request."""

    def __init__(self, journal: ObjectFolder) -> None:
        place = journal / SEGMENTS
        self.root = str(place)
        self._hours: dict[str, _StoredHour] = {}
        for one in listing(place):
            parts = one.name.split("/")
            if len(parts) < 3 or parts[1].startswith(HIDDEN):
                continue
            hour = self._hours.setdefault("/".join(parts[:2]), _StoredHour())
            if len(parts) == 3:
                hour.files.append(one)
            else:
                hour.folders.add(parts[2])
        if not self._hours:
            raise JournalError(f"{journal} is no journal: it has no folder named {SEGMENTS} with an hour in it")

    def hours(self) -> Iterator[Hour]:
        """List the hours."""
        for name in self._hours:
            yield Hour(name, f"{self.root}/{name}", None)

    def entries(self, hour: str) -> list[Entry]:
        """List an hour, in order of names; hidden names are left out."""
        held = self._hours[hour]
        found = [Entry(one.name.rpartition("/")[2], one.size, one.changed, True) for one in held.files]
        found += [Entry(name, 0, 0, False) for name in held.folders]
        return sorted((entry for entry in found if not entry.name.startswith(HIDDEN)), key=lambda entry: entry.name)
