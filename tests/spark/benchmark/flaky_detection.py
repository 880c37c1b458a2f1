"""Detection of planted flaky providers: the verdict of the jobs on each provider's days, beside the planted kind.

Rules:
- A day of a provider is judged, for the table of providers' days has a row for each.
- Planted is a provider that was made to miss beats, on every day; and one that comes and goes, on days with `LONG` of
  it at least. Its days with less of it are not judged: there is no right name for them.
- All others are good ones: their own outages, the broker's, and the few beats that any of them misses, are no reason to
  call them flaky.
- Recall is the share of the planted days that were found. Precision is the share of the found days that were planted; a
  row of the table, of those that miss as much, has all false alarms of its interval against it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, date, datetime, timedelta

import attrs

from tests.spark.generator.broker_lives import DAY, HOUR, SECOND
from tests.spark.generator.truth import ProviderTruth, Truth

LONG = HOUR
"""An hour is enough of coming and going to be called that."""

GOAL = 0.95
"""Goals of recall and precision, of all days together."""

FLAPPING = "comes and goes"
GOOD = "good"

Found = Mapping[tuple[date, str, str], bool]
"""True for a provider that was called flaky, by date, service and instance."""


@attrs.frozen
class Judged:
    """A day of a provider: the kind that it was made of, and the verdict of the jobs."""

    kind: str
    """`GOOD`, `FLAPPING`, or the ratio of beats that it was made to miss."""
    ratio: float
    """The same as a number; 0 of those that are no such ratio."""
    beats: int
    """Beats of a day, as agreed; 0 where none were."""
    size: int
    """Providers of its service."""
    found: bool

    @property
    def planted(self) -> bool:
        """True if it should be found."""
        return self.kind != GOOD


@attrs.frozen
class Score:
    """Results of some days."""

    planted: int
    found: int
    false: int

    @property
    def recall(self) -> float | None:
        """The share of the planted that was found."""
        return self.found / self.planted if self.planted else None

    @property
    def precision(self) -> float | None:
        """The share of the found days that were planted."""
        return self.found / (self.found + self.false) if self.found + self.false else None


def days_of(truth: Truth) -> list[date]:
    """Return the dates of a journal of whole days."""
    first = datetime.fromtimestamp(truth.start // SECOND, UTC).date()
    return [first + timedelta(days=number) for number in range((truth.end - truth.start) // DAY)]


def judge(truth: Truth, intervals: Mapping[str, float | None], found: Found) -> list[Judged]:
    """Set the verdict on each day of each provider beside its kind. The intervals are the services'."""
    sizes = {service.service: len(service.instances) for service in truth.services}
    judged = []
    for provider in truth.providers:
        interval = intervals[provider.service]
        for number, day in enumerate(days_of(truth)):
            start = truth.start + number * DAY
            kind = _kind(provider, start)
            if kind is None:
                continue
            judged.append(
                Judged(
                    kind=kind,
                    ratio=provider.ratio if provider.flaky else 0.0,
                    beats=round(DAY / SECOND / interval) if interval else 0,
                    size=sizes[provider.service],
                    found=found.get((day, provider.service, provider.instance), False),
                )
            )
    return judged


def _kind(provider: ProviderTruth, start: int) -> str | None:
    """Return the kind of which a provider was made on the day that begins then; None if that is a matter of taste."""
    if provider.flaky:
        return f"{provider.ratio:.0%}"
    spent = sum(max(0, min(to, start + DAY) - max(since, start)) for since, to in provider.episodes)
    if spent >= LONG:
        return FLAPPING
    return None if spent else GOOD


def score(days: Iterable[Judged]) -> Score:
    """Count planted and found days among some."""
    days = list(days)
    return Score(
        planted=sum(day.planted for day in days),
        found=sum(day.planted and day.found for day in days),
        false=sum(day.found and not day.planted for day in days),
    )


def goals(days: Sequence[Judged]) -> tuple[tuple[str, bool], ...]:
    """Return each promise, and whether it was kept."""
    all_ = score(days)
    missing = [day for day in days if day.kind not in (GOOD, FLAPPING)]
    least = score(day for day in missing if day.ratio == min(one.ratio for one in missing)) if missing else None
    told = [(f"planted flaky days found: {_share(all_.recall)} of {all_.planted:,}", all_.recall)]
    if least is not None:
        told.append((f"those that miss least found: {_share(least.recall)} of {least.planted:,}", least.recall))
    told.append((f"days found that were planted: {_share(all_.precision)}", all_.precision))
    return tuple((f"{text}, at least {GOAL:.0%}", share is not None and share >= GOAL) for text, share in told)


def markdown(days: Sequence[Judged]) -> str:
    """Return the table of planted and found days."""
    lines = [
        "| planted | beats a day | days | planted | found | recall | false alarms | precision |",
        "|---|--:|--:|--:|--:|--:|--:|--:|",
    ]
    for ratio, kind, beats in sorted({(day.ratio, day.kind, day.beats) for day in days}, key=_order):
        own = [day for day in days if (day.kind, day.beats) == (kind, beats)]
        good = [day for day in days if day.kind == GOOD and day.beats == beats]
        one = score(own if kind == GOOD else [*own, *good])
        name = kind if not ratio else f"misses {kind}"
        lines.append(_row(name, f"{beats:,}" if beats else "none", len(own), one))
    for size in sorted({day.size for day in days}):
        own = [day for day in days if day.size == size]
        lines.append(_row(f"services of {size}", "", len(own), score(own)))
    lines.append(_row("all", "", len(days), score(days)))
    return "\n".join(lines) + "\n"


def _order(row: tuple[float, str, int]) -> tuple[bool, bool, float, int]:
    ratio, kind, beats = row
    return kind == GOOD, kind == FLAPPING, ratio, -beats


def _row(name: str, beats: str, days: int, one: Score) -> str:
    return (
        f"| {name} | {beats} | {days:,} | {one.planted:,} | {one.found:,} | {_share(one.recall)} | {one.false:,} |"
        f" {_share(one.precision)} |"
    )


def _share(share: float | None) -> str:
    return "" if share is None else f"{share:.1%}"
