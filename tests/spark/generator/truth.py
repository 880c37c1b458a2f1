"""The truth of a generated journal. Times are microseconds since 1970."""

import attrs


@attrs.frozen
class ProviderTruth:
    """One provider, seen from outside."""

    service: str
    instance: str
    judged: str
    due: int
    """Beats that were due while it was registered and the broker was there."""
    missed: int
    ratio: float
    """The chance with which each beat was missed: `missed` by `due`, but for luck."""
    flaky: bool
    """It was made to miss beats; others may miss a few as well (`Service.losses`)."""
    flapping: bool
    outages: tuple[tuple[int, int], ...]
    """From and to of its own outages; those of the broker are not among them."""
    episodes: tuple[tuple[int, int], ...]
    """From and to of the times in which it came and went."""

    @property
    def miss_ratio(self) -> float:
        return self.missed / self.due if self.due else 0.0


@attrs.frozen
class ServiceTruth:
    """The demand of one service, and when it runs out."""

    service: str
    instances: tuple[str, ...]
    capacity: float | None
    since: int
    demand: tuple[float, ...]
    """The mean of each hour since ``since``, without the noise of single reports."""
    peaks: tuple[float, ...]
    """The highest minute of each of these hours, in the same way."""
    future: tuple[float, ...]
    """The same for the hours after the end, without any noise."""
    came: tuple[float, ...]
    """The same as it came, with the noise of hours: the measure of a forecast."""
    over_target: int | None
    """The first hour after the end in which demand exceeds `farm.TARGET` of the capacity."""
    over_capacity: int | None
    hot: tuple[str, ...]


@attrs.frozen
class Loss:
    """Records that were never written, or that cannot be read."""

    broker: str
    boot: str
    seq_from: int
    seq_to: int
    known: bool
    """A record ``drop`` tells of it."""


@attrs.frozen
class Bad:
    """A line that a reader cannot take, or for a truncated segment all its lines."""

    segment: str
    reason: str
    lines: int


@attrs.frozen
class Truth:
    """All of a journal."""

    seed: int
    start: int
    end: int
    broker: str
    boots: tuple[tuple[str, int, int, str], ...]
    """Name, from, to, how it ended: ``killed``, ``stopped``, ``runs``."""
    services: tuple[ServiceTruth, ...]
    providers: tuple[ProviderTruth, ...]
    records: int
    """Good records that are in the journal, each counted once; with those that are late."""
    lost: tuple[Loss, ...]
    bad: tuple[Bad, ...]
    unacknowledged: int
    """Records of the last seconds before kills. Their absence cannot be seen."""
    clock_jumps: tuple[tuple[int, int, int], ...]
    """From, to, by how many microseconds the clock was wrong."""
    unknown_members: int
    segments: tuple[str, ...]
    duplicates: tuple[str, ...]
    late: tuple[str, ...]

    def service(self, name: str) -> ServiceTruth:
        return next(service for service in self.services if service.service == name)
