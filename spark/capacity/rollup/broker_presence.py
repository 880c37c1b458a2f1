"""Presence: the times of each broker, by its records.

Rules:
- Any record is a sign. Signs of a broker's start more than 90 s apart (docs/export.md), and midnight, divide its
  up-spans: the times in which it lived. There are few, so they are made here and not by Spark.
- A search for signs does not need each record: unbroken rows of records, none more than 90 s after the one before, tell
  as much by their ends.
- A stay is the time for which providers could be with a start of the broker: its up-spans, without the midnights.
- A broker is all its starts together.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from datetime import timedelta
from itertools import groupby, pairwise
from typing import Any, NamedTuple

from spark.capacity.tables.time_windows import BROKER_SILENCE, DAY, FIVE_MINUTES

SILENCE = timedelta(microseconds=BROKER_SILENCE)


class Signs(NamedTuple):
    """A time, by its first and last microsecond, in which a broker's start was never silent for long."""

    broker: str
    boot: str
    first: int
    last: int


class Span(NamedTuple):
    """An up-span; `returned`: a silence was before it, and not just midnight or nothing."""

    broker: str
    boot: str
    span_from: int
    span_to: int
    returned: bool


class Stay(NamedTuple):
    """A time for which providers could be with a start of the broker."""

    stay_from: int
    stay_to: int


def up_spans(signs: Iterable[Signs]) -> list[Span]:
    """Return the up-spans of each start. No two signs of one row are of different dates."""
    spans: list[Span] = []
    for (broker, boot), rows in groupby(sorted(signs), key=lambda row: row[:2]):
        seen: int | None = None
        for row in rows:
            away = seen is not None and row.first - seen > BROKER_SILENCE
            if seen is None or away or row.first // DAY != spans[-1].span_from // DAY:
                spans.append(Span(broker, boot, row.first, row.last, away))
            else:
                spans[-1] = spans[-1]._replace(span_to=max(spans[-1].span_to, row.last))
            seen = row.last if seen is None else max(seen, row.last)
    return spans


def of_brokers(spans: Iterable[Span]) -> list[Span]:
    """Return the up-spans of brokers, all their starts together."""
    return up_spans(Signs(span.broker, "", span.span_from, span.span_to) for span in spans)


def stays(spans: Iterable[Span]) -> dict[str, list[Stay]]:
    """Return the stays with each broker; the spans of a start are in their order."""
    found: dict[str, list[Stay]] = defaultdict(list)
    for (broker, _), mine in groupby(spans, key=lambda span: span[:2]):
        for number, span in enumerate(mine):
            if number == 0 or span.returned:
                found[broker].append(Stay(span.span_from, span.span_to))
            else:
                last = found[broker][-1]
                found[broker][-1] = last._replace(stay_to=max(last.stay_to, span.span_to))
    return found


def in_windows(brokers: Iterable[Span]) -> dict[tuple[str, int], int]:
    """Return for how long each broker was up in each five minutes."""
    up: dict[tuple[str, int], int] = defaultdict(int)
    for span in brokers:
        # A span without length is in some five minutes too.
        for w in range(
            span.span_from - span.span_from % FIVE_MINUTES, max(span.span_to, span.span_from + 1), FIVE_MINUTES
        ):
            up[span.broker, w] += min(span.span_to, w + FIVE_MINUTES) - max(span.span_from, w)
    return up


def broker_down(signs: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the times without a broker, from rows of the table of signs: broker, start, end."""
    found = []
    ordered = sorted(signs, key=lambda row: (row["broker"], row["first"]))
    for before, after in pairwise(ordered):
        if before["broker"] == after["broker"] and after["first"] - before["last"] > SILENCE:
            found.append({"broker": after["broker"], "start": before["last"], "end": after["first"]})
    return found
