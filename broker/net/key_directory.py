"""Incremental reader for a directory of key files, NAME.public for each key.

Rules:
- If the directory's own modification time is unchanged and the previous pass settled, nothing is read, except in a full
  pass, which reads the files with changed stamps.
- Stamps are coarse, and a pass may meet files during a write or exchange. So a changed file is read again in the next
  pass, and a key is removed after two consecutive passes without it.
- An invalid file is skipped, with one warning until the file changes; the first pass warns at once, later ones at the
  second meeting. Files with a leading dot, and those without the suffix ``.public``, are ignored.
- If two files have the same key, the first name in sort order counts.
"""

from __future__ import annotations

import heapq
import operator
import os
from collections.abc import Iterator

import attrs

from broker import curve
from broker.blocking import blocking
from broker.config.files import PUBLIC

MAX_KEYS = 100_000
"""Upper bound of files, ten times the default session limit. The first ones in sort order are read."""

MAX_WARNINGS = 20
"""Warnings of one pass: a directory full of other files must not flood the log."""

Stamp = tuple[int, int, int, int]
"""Times of modification and change, size, and inode."""

_UNKNOWN: Stamp = (0, 0, 0, 0)


@attrs.frozen
class _File:
    """The state of one file at the last pass."""

    stamp: Stamp
    key: str | None
    problem: str | None = None
    sure: bool = False
    """Two reads had this stamp."""
    doubtful: bool = False
    """The last pass did not find the key."""
    told: bool = False
    """Its problem was logged."""


@attrs.frozen
class DirectoryScan:
    """The result of one pass. Immutable, since the next pass reads it in a thread."""

    stamp: Stamp
    files: dict[str, _File]
    """By name, without the ending."""
    names: dict[str, str]
    """The name of each allowed key."""
    doubles: dict[str, str]
    """Duplicate names: each with the name that its key counts under."""
    too_many: bool
    settled: bool
    """No file needs another read."""
    gone: frozenset[str]
    """Keys that no longer have the name that they had before."""
    warnings: tuple[str, ...]


@blocking
def look(directory: str, before: DirectoryScan | None, full: bool, most: int = MAX_KEYS) -> DirectoryScan:
    """Read at most ``most`` files of the directory. Returns ``before`` itself if nothing changed. Raises OSError.

    With ``full``, files are checked even if the directory is unchanged.
    """
    stamp = _stamp(os.stat(directory))
    if before is not None and not full and before.settled and stamp == before.stamp:
        return before
    found = heapq.nsmallest(most + 1, _names(directory))
    too_many = len(found) > most
    files = _files(directory, found[:most], before)
    settled = before is not None and stamp == before.stamp and all(file.sure for file in files.values())
    if before is not None and settled and before.settled and _same(files, before.files):
        return before
    names, doubles = _table(files)
    gone: frozenset[str] = frozenset()
    if before is not None:
        if names == before.names:
            names = before.names
        gone = frozenset(key for key, name in before.names.items() if names.get(key) != name)
    warnings = list(_warnings(files, doubles, before))
    if len(warnings) > MAX_WARNINGS:
        warnings[MAX_WARNINGS:] = [f"there is more of this kind: {len(warnings) - MAX_WARNINGS} files"]
    if too_many and (before is None or not before.too_many):
        warnings.append(f"there are more than {most} files, and those after {found[-2]!r} are left out")
    return DirectoryScan(
        stamp=stamp,
        files=files,
        names=names,
        doubles=doubles,
        too_many=too_many,
        settled=settled,
        gone=gone,
        warnings=tuple(warnings),
    )


def _stamp(status: os.stat_result) -> Stamp:
    return (status.st_mtime_ns, status.st_ctime_ns, status.st_size, status.st_ino)


@blocking
def _names(directory: str) -> Iterator[str]:
    with os.scandir(directory) as entries:
        for entry in entries:
            if entry.name.endswith(PUBLIC) and not entry.name.startswith("."):
                yield entry.name.removesuffix(PUBLIC)


def _files(directory: str, found: list[str], before: DirectoryScan | None) -> dict[str, _File]:
    known = {} if before is None else before.files
    files: dict[str, _File] = {}
    for name in found:
        file = _file(f"{directory}/{name}{PUBLIC}", name, known.get(name), before is None)
        if file is not None:
            files[name] = file
    for name, old in known.items():
        if name not in files and old.key is not None and not old.doubtful:
            files[name] = attrs.evolve(old, sure=False, doubtful=True)
    return files


def _same(files: dict[str, _File], others: dict[str, _File]) -> bool:
    """Return True if both have the identical values: unchanged files keep their objects."""
    return len(files) == len(others) and all(map(operator.is_, files.values(), others.values()))


@blocking
def _file(path: str, name: str, old: _File | None, start: bool) -> _File | None:
    """Read a file; ``old`` is its last known state. Returns None if the file does not exist."""
    try:
        stamp = _stamp(os.stat(path))
    except FileNotFoundError:
        return None
    except OSError:
        stamp = _UNKNOWN
    same = old is not None and old.stamp == stamp
    if old is not None and same and old.sure:
        return old
    told = start or same
    try:
        if not curve.is_name(name):
            raise ValueError("has a name that no key may have")
        return _File(stamp, curve.public_key(curve.read(path)), sure=same)
    except FileNotFoundError:
        return None
    except PermissionError:
        problem = "may not be read by the broker"
    except ValueError as error:
        problem = str(error)
    except OSError as error:
        # The cause may be outside the file, such as exhausted descriptors or a failing disk: the next pass retries.
        return _File(stamp, None if old is None else old.key, f"cannot be read: {error.strerror or error}", told=told)
    if old is not None and old.key is not None and not old.doubtful:
        return _File(stamp, old.key, doubtful=True)
    return _File(stamp, None, problem, sure=same, told=told)


def _table(files: dict[str, _File]) -> tuple[dict[str, str], dict[str, str]]:
    """Return the name of each key, and the duplicate names."""
    names: dict[str, str] = {}
    doubles: dict[str, str] = {}
    for name, file in sorted(files.items(), key=lambda item: (item[1].doubtful, item[0])):
        if file.key is not None:
            first = names.setdefault(file.key, name)
            if first != name and not file.doubtful:
                doubles[name] = first
    return names, doubles


def _warnings(files: dict[str, _File], doubles: dict[str, str], before: DirectoryScan | None) -> Iterator[str]:
    for name, file in files.items():
        if file.told:
            old = None if before is None else before.files.get(name)
            if old is None or not old.told:
                yield f"{name + PUBLIC!r} {file.problem}"
    for name, first in doubles.items():
        if before is None or before.doubles.get(name) != first:
            yield f"{name!r} has the same key as {first!r}, and is taken for it"
