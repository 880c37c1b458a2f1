"""The content of a directory of key files, NAME.public for each key, compared with its content before.

Rules:
- Nothing is read if the directory's own modification time stands and all was settled before, unless every file is to
  be looked at; then those are read whose stamp changed.
- Stamps are coarse, and files are met while they are written or exchanged. So what changed is read again in the next
  pass, and a key is taken away when two passes in a row did not find it.
- A file that is no key file is left out, with a warning that comes once until the file changes; the first pass warns
  at once, later ones when they meet it again. Files whose names begin with a dot, and those that do not end with
  ``.public``, are none of ours.
- Where two files have the same key, the first name in sort order counts.
"""

from __future__ import annotations

import heapq
import operator
import os
from collections.abc import Iterator

import attrs

from broker import curve
from broker.config.files import PUBLIC

MAX_KEYS = 100_000
"""Files that are taken: ten times as many as there are sessions by default. The first ones in sort order are."""

MAX_WARNINGS = 20
"""Warnings of one pass: a directory full of other files must not fill the log."""

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
    """It was read twice with this stamp."""
    doubtful: bool = False
    """The last pass did not find the key any more."""
    told: bool = False
    """Its problem was logged."""


@attrs.frozen
class Seen:
    """The result of one pass. Never changed afterwards, since the next pass reads it in a thread."""

    stamp: Stamp
    files: dict[str, _File]
    """By name, without the ending."""
    names: dict[str, str]
    """The name of each allowed key."""
    doubles: dict[str, str]
    """Names whose key counts under another one, and that one."""
    too_many: bool
    settled: bool
    """Nothing has to be read again."""
    gone: frozenset[str]
    """Keys that stood for a name before, and do not stand for it now."""
    warnings: tuple[str, ...]


def look(directory: str, before: Seen | None, full: bool, most: int = MAX_KEYS) -> Seen:
    """Read the directory, ``most`` files of it; returns ``before`` itself where nothing changed. Raises OSError.

    Only where ``full`` is set, files are looked at although the directory did not change.
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
    return Seen(
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


def _names(directory: str) -> Iterator[str]:
    with os.scandir(directory) as entries:
        for entry in entries:
            if entry.name.endswith(PUBLIC) and not entry.name.startswith("."):
                yield entry.name.removesuffix(PUBLIC)


def _files(directory: str, found: list[str], before: Seen | None) -> dict[str, _File]:
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
    """Return True if these are the very same files: unchanged ones are not made again."""
    return len(files) == len(others) and all(map(operator.is_, files.values(), others.values()))


def _file(path: str, name: str, old: _File | None, start: bool) -> _File | None:
    """Read a file; ``old`` is its last known state. Returns None if it is gone."""
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
        # That may be no fault of the file: no descriptor is left, or the disk fails. It is tried again.
        return _File(stamp, None if old is None else old.key, f"cannot be read: {error.strerror or error}", told=told)
    if old is not None and old.key is not None and not old.doubtful:
        return _File(stamp, old.key, doubtful=True)
    return _File(stamp, None, problem, sure=same, told=told)


def _table(files: dict[str, _File]) -> tuple[dict[str, str], dict[str, str]]:
    """The name of each key, and the names that have the key of another one."""
    names: dict[str, str] = {}
    doubles: dict[str, str] = {}
    for name, file in sorted(files.items(), key=lambda item: (item[1].doubtful, item[0])):
        if file.key is not None:
            first = names.setdefault(file.key, name)
            if first != name and not file.doubtful:
                doubles[name] = first
    return names, doubles


def _warnings(files: dict[str, _File], doubles: dict[str, str], before: Seen | None) -> Iterator[str]:
    for name, file in files.items():
        if file.told:
            old = None if before is None else before.files.get(name)
            if old is None or not old.told:
                yield f"{name + PUBLIC!r} {file.problem}"
    for name, first in doubles.items():
        if before is None or before.doubles.get(name) != first:
            yield f"{name!r} has the same key as {first!r}, and is taken for it"
