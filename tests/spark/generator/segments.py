"""The files: segments of an hour each, and those of them that are broken, doubled or late.

Rules:
- Segments hold an hour each, and are named by their first record.
- The first and the last stay whole: they say when the run begins and ends.
"""

import gzip
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

import attrs
import numpy as np

from tests.spark.generator.broker_lives import HOUR, SECOND, Boot, Floats, Ints
from tests.spark.generator.farm import Faults
from tests.spark.generator.faults import TORN, TRUNCATED, Numbered, number
from tests.spark.generator.records import NO_REQUESTS, Stream
from tests.spark.generator.truth import Bad, Loss

LEVEL = 1
"""Compression level of gzip: 1 is thrice as fast as the broker's 6, and readers cannot tell."""

COPY = 90_000
"""Offset of the number of a duplicated segment."""

GOLDEN, PLASTIC = 0.6180339887, 0.7548776662
"""Steps whose multiples lie evenly between whole numbers, and independently of each other."""

Told = Callable[[int, int], None]
"""Called with the hours that are written, and with how many there are."""


def _pieces(got: Numbered, boots: Sequence[Boot]) -> Iterator[tuple[Boot, int, Ints]]:
    """The segments: the boot, the number in it, and which records. Hours without a record have none."""
    for boot, (low, high) in zip(boots, got.ranges, strict=True):
        hours = np.arange(boot.start - boot.start % HOUR + HOUR, boot.end + HOUR, HOUR)
        cuts = [low, *np.searchsorted(got.at[low:high], hours) + low]
        count = 0
        for left, right in pairwise(cuts):
            where = np.flatnonzero(got.keep[left:right]) + left
            if len(where):
                count += 1
                yield boot, count, where


def write(
    stream: Stream, chance: np.random.Generator, directory: Path, faults: Faults, told: Told | None
) -> dict[str, Any]:
    """Write the segments, damaged ones among them. Returns the rest of the truth."""
    got = number(stream, chance, faults)
    pieces = list(_pieces(got, stream.boots))
    inner = chance.permutation(np.arange(1, max(1, len(pieces) - 1))).tolist()
    torn, truncated, twice, late = (
        {inner.pop() for _ in range(min(count, len(inner)))}
        for count in (faults.torn, faults.truncated, faults.duplicates, faults.late)
    )
    segments, duplicates, delayed = [], [], []
    bad: list[Bad] = []
    records = 0
    known = {
        boot.name: [text.replace('"boot":"BOOT"', f'"boot":"{boot.name}"', 1) for text in stream.templates]
        for boot in stream.boots
    }
    # The provider's clock is some milliseconds behind the broker's.
    sent = got.at - got.at % 7919 - 500
    for done, (boot, count, where) in enumerate(pieces):
        texts = known[boot.name]
        templates = got.template[where].tolist()
        seqs = got.seq[where].tolist()
        counts = _requests(stream, templates, got.value[where], got.seq[where])
        values = (got.shown[where], got.value[where], sent[where], *counts)
        shown, value, clock, *asked = (column.tolist() for column in values)
        columns = (shown, seqs, value, clock, *asked)
        lines = [texts[one] % row for one, row in zip(templates, zip(*columns, strict=True), strict=True)]
        reasons = {row: stream.unreadable[one] for row, one in enumerate(templates) if one in stream.unreadable}
        if done in torn:
            lines[-1] = lines[-1][: len(lines[-1]) // 2]
            reasons[len(lines) - 1] = TORN
        data = gzip.compress("".join(lines).encode(), LEVEL, mtime=0)
        folder = datetime.fromtimestamp(columns[0][0] // SECOND, UTC).strftime("segments/date=%Y-%m-%d/hour=%H/")
        name = f"{folder}{stream.broker}-{boot.name}-{count}.jsonl.gz"
        if done in truncated:
            data = data[: len(data) * 3 // 5]
            bad.append(Bad(name, TRUNCATED, len(lines)))
            reasons = dict.fromkeys(range(len(lines)), TRUNCATED)
        else:
            bad.extend(Bad(name, reason, lines_of) for reason, lines_of in Counter(reasons.values()).items())
        got.lost.extend(Loss(stream.broker, boot.name, seqs[row], seqs[row], False) for row in reasons)
        records += len(lines) - len(reasons)
        segments.append(name)
        if done in late:
            delayed.append(name)
        _put((directory.parent / "late" if done in late else directory) / name, data)
        if done in twice:
            copy = f"{folder}{stream.broker}-{boot.name}-{COPY + count}.jsonl.gz"
            duplicates.append(copy)
            _put(directory / copy, data)
        if told is not None:
            told(done + 1, len(pieces))
    (directory / "open").mkdir(parents=True, exist_ok=True)
    return {
        "records": records,
        "lost": tuple(_merged(got.lost)),
        "bad": tuple(bad),
        "unacknowledged": got.unacknowledged,
        "clock_jumps": tuple(got.jumps),
        "unknown_members": int((got.keep & (got.template == stream.unknown)).sum()),
        "segments": tuple(segments),
        "duplicates": tuple(duplicates),
        "late": tuple(delayed),
    }


def _requests(stream: Stream, templates: Sequence[int], load: Floats, seq: Ints) -> tuple[Ints, Ints, Ints]:
    """Return the numbers of requests, of failed ones, and of those being handled, in each report."""
    if not stream.requests:
        nothing = np.zeros(len(load), np.int64)
        return nothing, nothing, nothing
    of = np.array([stream.requests.get(one, NO_REQUESTS) for one in templates]).reshape(-1, 3)
    number = np.rint(of[:, 0] * load).astype(np.int64)
    # Small numbers are rounded up or down by turns, so that their mean is right.
    failed, in_flight = (
        np.floor(mean + seq * turn % 1.0).astype(np.int64)
        for mean, turn in ((of[:, 1] * number, GOLDEN), (of[:, 2] * load, PLASTIC))
    )
    return number, np.minimum(failed, number), in_flight


def _merged(lost: list[Loss]) -> Iterator[Loss]:
    """Losses that touch each other are one, unless only one of them is told of."""
    last: Loss | None = None
    for loss in sorted(lost, key=lambda loss: (loss.boot, loss.seq_from)):
        if last is not None and (last.boot, last.known) == (loss.boot, loss.known) and last.seq_to + 1 == loss.seq_from:
            last = attrs.evolve(last, seq_to=loss.seq_to)
            continue
        if last is not None:
            yield last
        last = loss
    if last is not None:
        yield last


def _put(path: Path, data: bytes) -> None:
    """As the broker does it: under a name that is not read, until it is whole."""
    path.parent.mkdir(parents=True, exist_ok=True)
    hidden = path.with_name("." + path.name)
    hidden.write_bytes(data)
    hidden.replace(path)
