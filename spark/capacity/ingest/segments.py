"""The sealed segments of a journal, as files: which there are, and whether one can be read at all.

Of a segment in an object store, only what its bytes say is taken for damage: a store that does not answer is another
error (`StoreError`), and ends the run.
"""

import gzip
import json
import os
import re
import zlib
from collections.abc import Collection, Iterator, Mapping, Sequence
from datetime import date
from hashlib import blake2b
from typing import BinaryIO

import attrs

from spark.capacity.ingest.journal_folders import Folders, date_of, folders_of, is_kept
from spark.capacity.tables.object_store import Place, opened

NAME = re.compile(r"date=\d{4}-\d\d-\d\d/hour=\d\d/[A-Za-z0-9][A-Za-z0-9._-]*\.jsonl\.gz")
"""Names of sealed segments under `segments`; files with other names are not ours, and are reported."""

CHUNK = 1 << 20
"""Bytes that a check of a segment decompresses at a time."""

CUT_OFF = "the file is cut off"

GZIP = b"\x1f\x8b"
"""First octets of a gzip file (RFC 1952)."""

TAIL = 1 << 16
"""Bytes at the end of the readable part of a damaged segment in which its last records are looked for."""

MORSEL = 512
"""Bytes of a damaged segment that are decompressed at a time: an error makes that much unreadable."""

MOST_NUMBER = 2**53 - 1
"""The highest number of a record: no broker counts so far, and sums of such numbers are exact."""

JUMP = 1_000_000
"""From a record to the next one: a number that is higher by more is taken for damaged itself."""


@attrs.frozen
class Segment:
    """A sealed segment: its name under `segments`, its size in bytes, when its file was last changed (ctime, in
    nanoseconds; another file of the same name and size has another one; in an object store the second in which it was
    put), and the folder `segments` that has it, as a path or URI."""

    name: str
    size: int
    changed: int = 0
    root: str = ""

    @property
    def path(self) -> str:
        """The path or URI of the file."""
        return os.path.join(self.root, self.name)


@attrs.frozen
class Found:
    """Content of journals: segments in order of names, names that are none, and the state of each folder that was
    listed (`journal_folders`)."""

    segments: list[Segment]
    strange: list[str]
    folders: dict[str, int]


def find_segments(
    journals: Sequence[Place],
    today: date,
    known: Mapping[str, int] | None = None,
    doubted: Collection[str] = (),
    first: date | None = None,
) -> Found:
    """List the sealed segments of the journals of one or several brokers.

    Folders that cannot have new segments are passed over, by the states that are ``known`` and the UTC date of the wall
    clock (`journal_folders`); not those of which a segment is ``doubted``, given by the folder of its hour. Files of
    one name in several journals are copies of the same segment (docs/export.md): the largest is taken, since a copy may
    be cut off. So an hour is listed in all journals or in none. Hours before the ``first`` kept date are left out.
    """
    known = known or {}
    opened = [folders_of(journal, known, today, alone=len(journals) == 1) for journal in journals]
    dates = {date_of(hour) for hour in doubted}.union(*(folders.with_news() for folders in opened))
    dates = {name for name in dates if is_kept(name, first)}
    found = Found([], [], {})
    hours: dict[str, list[tuple[Folders, str, int | None]]] = {}
    for folders in opened:
        found.folders.update(folders.states(dates))
        for hour in folders.hours(dates):
            hours.setdefault(hour.name, []).append((folders, hour.key, hour.state))
    for name, places in sorted(hours.items()):
        if not is_kept(name, first):
            continue
        seen = all(state is not None and known.get(key) == state for _, key, state in places)
        if seen and name not in doubted:
            continue
        segments: dict[str, Segment] = {}
        for folders, key, state in places:
            if state is not None:
                found.folders[key] = state
            for entry in folders.entries(name):
                path = f"{name}/{entry.name}"
                if not entry.is_file or not NAME.fullmatch(path):
                    found.strange.append(path)
                elif path not in segments or entry.size > segments[path].size:
                    segments[path] = Segment(path, entry.size, entry.changed, folders.root)
        found.segments.extend(segments[name] for name in sorted(segments))
    return found


def batches(segments: Sequence[Segment], size: int) -> Iterator[list[Segment]]:
    """Cut the segments into batches of about so many bytes."""
    batch: list[Segment] = []
    held = 0
    for segment in segments:
        batch.append(segment)
        held += segment.size
        if held >= size:
            yield batch
            batch, held = [], 0
    if batch:
        yield batch


class Digested:
    """An open file with the digest of its bytes, by which a segment is known again: both with one read of the file."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._made = blake2b(digest_size=16)

    def read(self, size: int = -1) -> bytes:
        """Return the next bytes."""
        data = self._file.read(size)
        self._made.update(data)
        return data

    def digest(self) -> str:
        """Return the digest of the whole file; the rest of it is read first."""
        while self.read(CHUNK):
            pass
        return self._made.hexdigest()


def digest(path: str) -> str | None:
    """Return the digest of a file's bytes; None if it has been deleted."""
    try:
        with opened(path) as file:
            return Digested(file).digest()
    except FileNotFoundError:
        return None


@attrs.frozen
class Reach:
    """The highest number of a record that a segment is known to have held, though it cannot be read."""

    broker: str
    boot: str
    seq: int


def damage_of(path: str) -> str | None:
    """Return why a segment cannot be decompressed; None if it can. Raises FileNotFoundError if it has been deleted."""
    try:
        with opened(path) as packed:
            start = packed.read(len(GZIP))
        # To gzip an empty file is an empty text, and one of a byte is no gzip file.
        if start != GZIP and GZIP.startswith(start):
            return CUT_OFF
        with opened(path) as packed, gzip.open(packed) as file:
            while file.read(CHUNK):
                pass
    except FileNotFoundError:
        raise
    except EOFError:
        return CUT_OFF
    except (OSError, zlib.error) as error:
        return f"the file cannot be read: {error}"
    return None


def reach(path: str) -> Reach | None:
    """Return the reach of the records of a damaged segment, by the last lines that can be decompressed."""
    unpack, tail = zlib.decompressobj(wbits=31), b""
    with opened(path) as file:
        try:
            while morsel := file.read(MORSEL):
                tail = (tail + unpack.decompress(morsel))[-TAIL:]
        except zlib.error:
            pass
    *lines, rest = tail.split(b"\n")
    known = [told for line in lines if (told := _told(line)) is not None]
    # A number that is damaged itself does not follow the one before it.
    while len(known) > 1 and not 0 < known[-1].seq - known[-2].seq <= JUMP:
        known.pop()
    if not known:
        return None
    last = known[-1]
    return attrs.evolve(last, seq=last.seq + 1) if rest and _told(lines[-1]) == last else last


def _told(line: bytes) -> Reach | None:
    """Read whose record a line is, and its number; nothing of one that is damaged itself."""
    try:
        record = json.loads(line)
        broker, boot, seq = record["broker"], record["boot"], record["seq"]
    except (ValueError, TypeError, KeyError, RecursionError):
        return None
    named = all(isinstance(name, str) and name.isprintable() for name in (broker, boot))
    return Reach(broker, boot, seq) if named and type(seq) is int and 0 < seq < MOST_NUMBER else None
