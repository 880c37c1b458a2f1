"""States of a disk after a power loss, from a record of all changes of a directory (`recording.c`).

The model: what was synced is on the disk. Of the writes and truncations of a file since its last sync, any may be on
the disk, a write also in part, by sectors of 512 bytes. Of the changes of names in a directory since its last sync, the
first few are on the disk: file systems keep their order.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import attrs

from tests import packages
from tests.integration.daemon import ROOT, environment

SECTOR = 512

MARKS = "marks"
"""The file to which the recorded program writes what is confirmed."""


@attrs.frozen
class Step:
    """One change: its kind, the file, the other name of a rename, a place or length, and the data of a write."""

    kind: str
    path: str
    other: str
    number: int
    data: bytes


def recorded(tmp_path: Path, program: str) -> list[Step]:
    """Run a program, whose argument is a new directory, and return all changes below that."""
    compiler = packages.program("cc")
    library, record, below = tmp_path / "recording.so", tmp_path / "record", tmp_path / "recorded"
    source = Path(__file__).with_name("recording.c")
    subprocess.run([compiler, "-shared", "-fPIC", "-O1", "-o", library, source, "-ldl", "-lpthread"], check=True)
    below.mkdir()
    variables = environment(LD_PRELOAD=str(library), DISK_RECORD=str(record), DISK_BELOW=str(below))
    subprocess.run([sys.executable, "-c", program, str(below)], check=True, cwd=ROOT, env=variables)
    return list(_steps(record.read_bytes()))


def _steps(record: bytes) -> Iterator[Step]:
    at = 0
    while at < len(record):
        end = record.index(b"\n", at)
        kind, path, other, number, length = record[at:end].decode().split("\t")
        at = end + 1 + int(length)
        # The shared memory of SQLite is built again after a start of the machine.
        if not path.endswith("-shm"):
            yield Step(kind, path, other, int(number), record[end + 1 : at])


@attrs.define
class _File:
    durable: bytearray = attrs.field(factory=bytearray)
    pending: list[Step] = attrs.field(factory=list)


class Disk:
    """The disk while the steps happen. Files are known by numbers, since names change."""

    def __init__(self) -> None:
        self.marks = b""
        self._files: list[_File] = []
        self._durable: dict[str, int | None] = {}
        """Names that are on the disk; None for a directory."""
        self._names: dict[str, int | None] = {}
        """Names as programs see them."""
        self._renames: dict[str, list[tuple[str, str | None, int | None]]] = {}
        """By directory: changes of names since its last sync, each with the old name if it is removed."""

    def do(self, step: Step) -> None:
        """Apply a step."""
        kind, path = step.kind, step.path
        if path == MARKS:
            self.marks += step.data
        elif kind == "create":
            self._files.append(_File())
            self._name(path, None, len(self._files) - 1)
        elif kind == "directory":
            self._name(path, None, None)
        elif kind == "rename":
            self._name(step.other, path, self._names[path])
        elif kind == "remove":
            if path in self._names:
                self._name(None, path, None)
        elif path == "." or self._names.get(path, 0) is None:
            assert kind == "sync"
            for change in self._renames.pop(path, []):
                _rename(self._durable, *change)
        elif path in self._names:
            number = self._names[path]
            assert number is not None
            file = self._files[number]
            if kind == "sync":
                for each in file.pending:
                    _change(file.durable, each)
                file.pending = []
            else:
                file.pending.append(step)

    @property
    def unsynced(self) -> int:
        """Number of changes that are not on the disk for certain."""
        return sum(len(file.pending) for file in self._files) + sum(map(len, self._renames.values()))

    def lose_power(self, directory: Path, rng: random.Random | None, share: float) -> None:
        """Write what may be on the disk to a new directory.

        Without ``rng`` it is the first part of all unsynced changes, in their order, as large as ``share``; with it any
        of them, each with that probability, and writes also in part.
        """
        names = dict(self._durable)
        for changes in self._renames.values():
            count = round(share * len(changes)) if rng is None else rng.randint(0, len(changes))
            for change in changes[:count]:
                _rename(names, *change)
        directory.mkdir()
        for name in sorted(names):
            number = names[name]
            path = directory / name
            if number is None:
                path.mkdir(parents=True, exist_ok=True)
            elif path.parent.is_dir():  # a name in a directory whose own name is lost
                path.write_bytes(self._content(self._files[number], rng, share))

    def _content(self, file: _File, rng: random.Random | None, share: float) -> bytes:
        content = bytearray(file.durable)
        pending = file.pending
        if rng is None:
            for each in pending[: round(share * len(pending))]:
                _change(content, each)
            return bytes(content)
        for each in pending:
            if rng.random() >= share:
                continue
            if each.kind == "write" and len(each.data) > SECTOR and rng.random() < 0.3:
                cut = rng.randrange(1, -(-len(each.data) // SECTOR)) * SECTOR
                parts = [(0, each.data[:cut]), (cut, each.data[cut:])]
                offset, data = rng.choice(parts)
                each = attrs.evolve(each, number=each.number + offset, data=data)
            _change(content, each)
        return bytes(content)

    def _name(self, new: str | None, old: str | None, number: int | None) -> None:
        place = os.path.dirname(new or old or "") or "."
        self._renames.setdefault(place, []).append((new or "", old, number))
        _rename(self._names, new or "", old, number)


def _rename(names: dict[str, int | None], new: str, old: str | None, number: int | None) -> None:
    if old is not None:
        names.pop(old, None)
    if new:
        names[new] = number


def _change(content: bytearray, step: Step) -> None:
    end = step.number + len(step.data)
    if step.kind == "truncate":
        del content[step.number :]
        end = step.number
    if len(content) < end:
        content.extend(bytes(end - len(content)))
    if step.kind == "write":
        content[step.number : end] = step.data
