"""Unknown and lost records: records of unknown kinds, and the numbers of all the others.

Rules:
- Added and removed records are listed in the truth.
- Only records of times at which the broker is there have numbers.
"""

import attrs
import numpy as np
from numpy.typing import NDArray

from tests.spark.generator.broker_lives import ALIVE, DAY, SECOND, Floats, Ints
from tests.spark.generator.farm import Faults
from tests.spark.generator.records import Stream
from tests.spark.generator.truth import Loss

# Reasons why a line cannot be taken.
VERSION = "version"
EVENT = "event"
JSON = "json"
DATE = "future"
TORN = "torn"
TRUNCATED = "truncated"

UNWRITTEN = 5
"""Seconds before a kill of which nothing is on the disk."""

WRONG = 900
"""Seconds for which the broker's clock is wrong after a jump."""

JUMP = 600
"""Seconds by which it is slow then."""


def add_strange(stream: Stream, chance: np.random.Generator, until: int, faults: Faults) -> None:
    """Add records that a reader does not know, at times at which the broker is there."""
    members = {"wire": "elko", "service": "strange", "provider": 1, "endpoint": "10.99.0.1:1"}
    version = stream.template("load", members | {"weight": {"cpu": 3}}, version=3)
    event = stream.template("moved", members)
    future = stream.template("unregister", members | {"why": "left"})
    # The year is written over the time's place; it takes the same number of values.
    stream.templates[future] = stream.templates[future].replace('"ts":%d', '"ts":%.0s' + str(until + 400 * DAY))
    garbage = stream.template("hb", members)
    stream.templates[garbage] = "\ufffd" + 7 * "%.0s" + "{{{ \n"
    stream.unknown = stream.template("alive", {"wire": "elkobroker", "colour": "blue"})
    stream.unreadable = {version: VERSION, event: EVENT, future: DATE, garbage: JSON}
    for template, count in (
        (version, faults.unknown_versions),
        (event, faults.unknown_events),
        (future, faults.future_dates),
        (garbage, faults.garbage),
        (stream.unknown, faults.unknown_members),
    ):
        for _ in range(count):
            boot = stream.boots[int(chance.integers(len(stream.boots)))]
            stream.add(int(chance.uniform(boot.start + ALIVE * SECOND, boot.end - ALIVE * SECOND)), template)


@attrs.define
class Numbered:
    """The records in order, with their numbers, and which of them reach the disk."""

    at: Ints
    template: Ints
    value: Floats
    seq: Ints
    keep: NDArray[np.bool_]
    shown: Ints
    """The time that the broker's clock showed."""
    lost: list[Loss]
    unacknowledged: int
    jumps: list[tuple[int, int, int]]
    ranges: list[tuple[int, int]]
    """Of each boot, from and to."""


def number(stream: Stream, chance: np.random.Generator, faults: Faults) -> Numbered:
    """Number the records of each boot, and let the broker lose some: when it is killed, and when its queue is full."""
    drop = stream.template("drop", {"wire": "elkobroker", "why": "queue"}, ',"dropped":%d%.0s')
    at, template, value = stream.sorted()
    got = Numbered(at, template, value, np.zeros_like(at), np.ones(len(at), np.bool_), at.copy(), [], 0, [], [])
    boots = stream.boots
    for boot in boots:
        low, high = np.searchsorted(at, (boot.start, boot.end)).tolist()
        got.ranges.append((low, high))
        got.seq[low:high] = np.arange(1, high - low + 1)
        if boot.how == "killed":
            cut = int(np.searchsorted(at, boot.end - UNWRITTEN * SECOND))
            got.keep[cut:high] = False
            got.unacknowledged += high - cut
    # Events during an absence of the broker have no records.
    got.keep &= got.seq > 0
    special = [*stream.unreadable, stream.unknown]
    for turn in range(faults.drops):
        boot, (low, high) = boots[turn % len(boots)], got.ranges[turn % len(boots)]
        length = int(chance.integers(5, 60))
        first = low + int((high - low) * chance.uniform(0.3, 0.6))
        tells = first + length
        if not got.keep[first : tells + 1].all() or np.isin(template[first : tells + 1], special).any():
            continue
        got.keep[first:tells] = False
        template[tells], value[tells] = drop, length
        got.lost.append(Loss(stream.broker, boot.name, int(got.seq[first]), int(got.seq[tells]) - 1, True))
    for turn in range(faults.clock_jumps):
        boot = boots[turn % len(boots)]
        begin = boot.start + int((boot.end - boot.start) * chance.uniform(0.35, 0.6))
        stop, by = min(begin + WRONG * SECOND, boot.end), -JUMP * SECOND
        got.shown[(at >= begin) & (at < stop)] += by
        got.jumps.append((begin, stop, by))
    return got
