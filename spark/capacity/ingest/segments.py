"""The sealed segments of a journal, as files: which there are, and whether one can be read at all."""

import gzip
import re
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

NAME = re.compile(r"date=\d{4}-\d\d-\d\d/hour=\d\d/[A-Za-z0-9][A-Za-z0-9._-]*\.jsonl\.gz")
"""Names of sealed segments under `segments`; other names are not ours, and are told about."""

SMALLEST_GZIP = 18
"""Bytes of the header and trailer of gzip: a smaller file holds nothing, not even nothing."""

CHUNK = 1 << 20
"""Bytes that a check of a segment decompresses at a time."""

CUT_OFF = "the file is cut off"


class JournalError(Exception):
    """There is no journal to read."""


@dataclass(frozen=True)
class Segment:
    """A sealed segment: its name under `segments`, and its size in bytes."""

    name: str
    size: int


def find_segments(journal: Path) -> tuple[list[Segment], list[str]]:
    """List the sealed segments, in the order of their names, and the names that are none."""
    root = journal / "segments"
    if not root.is_dir():
        raise JournalError(f"{journal} is no journal: it has no folder named segments")
    segments, strange = [], []
    for path in sorted(root.glob("*/*/*")):
        name = path.relative_to(root).as_posix()
        if path.name.startswith((".", "_")):
            continue
        if NAME.fullmatch(name) and path.is_file():
            segments.append(Segment(name, path.stat().st_size))
        else:
            strange.append(name)
    return segments, strange


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


@dataclass(frozen=True)
class Look:
    """What a segment is as bytes: what is wrong with it, and how many names of members it seems to have."""

    damage: str | None
    names: int


def look(path: str) -> Look:
    """Decompress a segment. A name is counted by the quote and the colon behind it."""
    names, last = 0, b""
    try:
        if Path(path).stat().st_size < SMALLEST_GZIP:
            return Look(CUT_OFF, 0)
        with gzip.open(path) as file:
            while chunk := file.read(CHUNK):
                names += chunk.count(b'":') + (last == b'"' and chunk.startswith(b":"))
                last = chunk[-1:]
    except EOFError:
        return Look(CUT_OFF, names)
    except (OSError, zlib.error) as error:
        return Look(f"the file cannot be read: {error}", names)
    return Look(None, names)
