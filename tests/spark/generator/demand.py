"""Load of a service over time: the expected part, and noise from hour to hour.

Rules:
- Demand is level x (1 + daily wave) x (weekend factor) x (1 + trend) x (burst of a minute), all of it known beforehand,
  times noise that lasts for hours.
- A service stays the same when another is added to the farm: its chance is its own.
- The noise goes on after the end: a forecast is judged by the outcome, not by the part of it that could be known.
"""

import math

import numpy as np

from tests.spark.generator.broker_lives import DAY, HOUR, Floats, Ints
from tests.spark.generator.farm import TARGET, Service

FUTURE = 14 * 24
"""Hours after the end for which the truth knows the demand: a horizon of a week, and as much again."""

BURST = 20
"""The minute of an hour in which bursts are: no time that `Demand` looks at for means is in it."""

MINUTES = 60
"""Minutes of an hour."""

SEARCH = 400
"""Days after the end in which the date of running out is looked for."""


class Demand:
    """The demand of one service."""

    def __init__(
        self,
        service: Service,
        chance: np.random.Generator,
        later: np.random.Generator,
        since: int,
        start: int,
        until: int,
    ) -> None:
        """``chance`` makes the noise of the hours that the journal has, ``later`` that of those after the end."""
        self._spec = service
        self._start = start
        self.since = since
        self._until = until
        self._trend = service.trend if service.runs_out is None else self._growth(service.runs_out)
        hours = math.ceil((until - since) / HOUR) + 2
        steps = [*chance.normal(0.0, service.noise, hours), *later.normal(0.0, service.noise, FUTURE)]
        self._noise = np.ones(len(steps))
        drift = 0.0
        for hour, step in enumerate(steps):
            drift = 0.6 * drift + 0.8 * step
            self._noise[hour] = max(0.2, 1.0 + drift)

    def _growth(self, days: float) -> float:
        service = self._spec
        if service.full_load is None:
            raise ValueError(f"{service.name}: without a full load it has no date of running out")
        self._trend = 0.0
        day = self._until + int(days * DAY)
        top = float(self.known(np.arange(day - DAY, day, HOUR // 4, dtype=np.int64)).max())
        return (TARGET * service.full_load * service.providers / top - 1) / ((day - self._start) / DAY)

    def known(self, at: Ints) -> Floats:
        """Return the expected load."""
        service = self._spec
        hour = (at % DAY) / HOUR
        # The first of January 1970 was a Thursday.
        weekend = (at // DAY + 3) % 7 >= 5
        wave = 1 + service.daily * np.cos((hour - service.peak_hour) * (2 * np.pi / 24))
        level = service.level * (1 + self._trend * (at - self._start) / DAY)
        burst = np.where(at % HOUR * MINUTES // HOUR == BURST, 1 + service.burst, 1.0)
        return np.asarray(np.maximum(0.0, level) * wave * np.where(weekend, service.weekend, 1.0) * burst)

    def at(self, at: Ints) -> Floats:
        """Return the load, noise included."""
        return np.asarray(self.known(at) * self._noise[(at - self.since) // HOUR])

    def _means(self, loads: Floats) -> Floats:
        """Return the means of hours from loads at the times of `_hours`, none of which is in a burst."""
        return np.asarray(loads.mean(axis=1) * (1 + self._spec.burst / MINUTES))

    def _hours(self, start: int, count: int) -> Ints:
        """Twelve times in each hour, a row for each."""
        return start + np.arange(count, dtype=np.int64)[:, None] * HOUR + (np.arange(12)[None, :] * 2 + 1) * HOUR // 24

    def hourly(self) -> tuple[float, ...]:
        """The mean of each hour of the journal."""
        return _rounded(self._means(self.at(self._hours(self.since, (self._until - self.since) // HOUR))))

    def peaks(self) -> tuple[float, ...]:
        """The highest minute of each hour of the journal."""
        hours = np.arange((self._until - self.since) // HOUR, dtype=np.int64)[:, None] * HOUR
        minutes = (np.arange(MINUTES, dtype=np.int64)[None, :] * 2 + 1) * HOUR // (2 * MINUTES)
        return _rounded(self.at(self.since + hours + minutes).max(axis=1))

    def future(self) -> tuple[float, ...]:
        """The mean of each hour after the end, as far as it is known beforehand."""
        return _rounded(self._means(self.known(self._hours(self._until, FUTURE))))

    def came(self) -> tuple[float, ...]:
        """The mean of each hour after the end, noise included."""
        return _rounded(self._means(self.at(self._hours(self._until, FUTURE))))

    def first_over(self, bound: float) -> int | None:
        """The first hour after the end of which it is known that it exceeds a bound."""
        means = self._means(self.known(self._hours(self._until, SEARCH * 24)))
        over = np.flatnonzero(means > bound)
        return self._until + int(over[0]) * HOUR if len(over) else None


def demand_of(seed: int, service: Service, number: int, start: int, until: int) -> tuple[Demand, np.random.Generator]:
    """Make the demand of a farm's service of that number, and return the source of its providers' chance."""
    chance = np.random.default_rng([seed, number])
    since = start if service.hours is None else max(start, until - int(service.hours * HOUR))
    return Demand(service, chance, np.random.default_rng([seed, number, 1]), since, start, until), chance


def _rounded(means: Floats) -> tuple[float, ...]:
    return tuple(round(float(mean), 3) for mean in means)
