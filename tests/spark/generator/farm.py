"""The generated farm: its services, and the faults of its broker and its files."""

import attrs

TARGET = 0.7
"""The part of a provider's full load up to which it is meant to be used; only the truth's dates depend on it."""


@attrs.frozen
class Service:
    """One service of the farm. Times are seconds, ratios are of 1."""

    name: str
    wire: str = "elko"
    """``elko``: judged by the connection; ``dbp``: by heartbeats, if there is an `interval`."""
    providers: int = 8
    level: float = 300.0
    """The mean of the whole service's load."""
    full_load: float | None = 100.0
    interval: float | None = None
    report: float = 300.0
    daily: float = 0.4
    """Amplitude of the daily wave."""
    peak_hour: float = 19.0
    weekend: float = 1.0
    """Saturdays and Sundays have so many times the load."""
    trend: float = 0.0
    """Growth a day, as a part of the level."""
    runs_out: float | None = None
    """Instead of a trend: so many days after the end, demand first exceeds `TARGET` of all providers' capacity."""
    noise: float = 0.04
    burst: float = 0.0
    """In one minute of each hour the load is higher by so much of it."""
    failover: bool = False
    hours: float | None = None
    """The service is so young; None: as old as the journal."""
    outages: float = 0.5
    """Outages of each provider in 30 days, on average."""
    flapping: int = 0
    """So many of the providers, counted from the last, come and go for some hours twice in the time."""
    flaky: tuple[float, ...] = ()
    """The ratios of beats that the first providers miss."""
    losses: float = 0.0
    """Every other provider misses some beats as well: each has a ratio of its own between nothing and this."""
    skew: float = 0.0
    """The first provider gets so much more than its share."""
    labelled: bool = False
    """Providers have a label and no endpoint."""
    deployments: int = 0
    """Rolling deployments, spread over the time: each replaces all providers one after the other, by new endpoints."""
    deploy_step: float = 60.0
    """Between the replacements of two providers."""
    lifetime: float | None = None
    """Each instance is replaced by one with a new endpoint after so long; None: it is not."""
    replaced_by: str = "withdrawn"
    """End of a replaced instance: ``withdrawn``, or ``left`` where the process is killed."""
    service_s: float | None = None
    """Seconds that a request takes: providers report how many they had and how many are being handled, and each handles
    one at a time. A provider at its full load has no time between two."""
    failed: float = 0.0
    """The part of these requests that fails."""
    once: int = 0
    """So many more providers, each of which leaves exactly one record, just before the end."""


@attrs.frozen
class Faults:
    """Faults of the broker and the files. Each number is a count."""

    kills: int = 0
    restarts: int = 0
    drops: int = 0
    clock_jumps: int = 0
    future_dates: int = 0
    unknown_versions: int = 0
    unknown_events: int = 0
    unknown_members: int = 0
    garbage: int = 0
    torn: int = 0
    truncated: int = 0
    duplicates: int = 0
    late: int = 0


NONE = Faults()

BELIEVABLE = Faults(kills=1, restarts=2, drops=1)
"""Faults of a month of a well-kept farm."""

ALL = Faults(2, 1, 2, 2, 3, 3, 3, 3, 3, 2, 2, 2, 2)
"""Everything, for tests."""

FARM = (
    Service("auth", providers=8, level=330.0, weekend=0.8, service_s=0.25, failed=0.02),
    Service("chat", providers=12, level=480.0, runs_out=9.0, noise=0.03),
    Service("directory", providers=10, level=300.0, skew=1.6, daily=0.3),
    Service("gamehost", providers=14, level=450.0, weekend=1.35, failover=True, flapping=1),
    Service("preview", providers=2, level=60.0, hours=1.0, report=60.0, outages=0.0),
    Service(
        "render", "dbp", providers=10, level=420.0, interval=60.0, report=600.0, flaky=(0.02, 0.06), weekend=0.6, once=1
    ),
    Service("transcode", "dbp", providers=8, level=90.0, full_load=None, interval=120.0, report=600.0, daily=0.7),
    Service("telemetry", "dbp", providers=8, level=120.0, interval=120.0, report=600.0, daily=0.1, flaky=(0.12,)),
)
"""A small farm: 72 providers that come and go, and one that was seen once."""
