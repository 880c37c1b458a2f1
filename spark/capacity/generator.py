"""A journal of a farm that never was, as a broker would have written it, and the truth about it.

The jobs are tried on it, and the demo shows it. What it plants it knows: how much load there was and will be, who
failed when, who lost how many heartbeats, and every line that is damaged. `generate` returns that and writes it to
``truth.json`` beside the journal.

Rules:
- The same arguments give the same bytes: all chance comes from the seed, and no clock is read.
- Demand of a service is level x (1 + daily wave) x (weekend factor) x (1 + trend), all of it known beforehand, times
  noise that lasts for hours. It is shared out among the providers by their weights. Without `Service.failover` the
  share of a provider that is down is lost for that time, as with players that are pinned to their server; with it, the
  others take it over.
- A provider registers, is heard, and goes. Who has an interval beats, and is expired three intervals after its last
  beat; who has none is connected, and its connection ends. Each time it registers it has another provider id.
- A planted miss ratio is exact in the truth: missed by due beats. A flaky provider never misses three beats in a row,
  since it would then have been down, which is another defect.
- A killed broker leaves no last record, and what it had not acknowledged is not there. Everybody registers again within
  `RETURN` after it is back.
- Segments hold an hour each, and are named by their first record. What `Faults` adds to them is listed in the truth.

The records of a whole run are in memory as arrays: about 80 bytes for each.
"""

from __future__ import annotations

import gzip
import json
import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

import attrs
import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

SECOND = 1_000_000
"""Microseconds, the unit of time of the journal."""

HOUR = 3600 * SECOND
DAY = 24 * HOUR

END = datetime(2026, 6, 1, tzinfo=UTC)
"""When a generated month ends unless told otherwise. A fixed date, so that runs can be compared."""

ALIVE = 60
"""Seconds between two signs of life of the broker."""

MISSED = 3
"""Intervals of silence after which a provider is expired."""

RETURN = 30
"""Seconds within which everybody has registered again after the broker came back."""

UNWRITTEN = 5
"""Seconds before a kill of which nothing is on the disk."""

TARGET = 0.7
"""The part of a provider's full load up to which it is meant to be used; only the truth's dates depend on it."""

FUTURE = 14 * 24
"""Hours after the end for which the truth knows the demand: a horizon of a week, and as much again."""

WRONG = 900
"""Seconds for which the broker's clock is wrong after a jump."""

JUMP = 600
"""Seconds by which it is slow then."""

SEARCH = 400
"""Days after the end in which the date of running out is looked for."""

LEVEL = 1
"""How hard gzip works: 1 is thrice as fast as the broker's 6, and readers cannot tell."""


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
    failover: bool = False
    hours: float | None = None
    """The service is so young; None: as old as the journal."""
    outages: float = 0.5
    """Outages of each provider in 30 days, on average."""
    flapping: int = 0
    """So many of the providers, counted from the last, come and go for some hours twice in the time."""
    flaky: tuple[float, ...] = ()
    """The ratios of beats that the first providers miss."""
    skew: float = 0.0
    """The first provider gets so much more than its share."""
    labelled: bool = False
    """Providers have a label and no endpoint."""
    once: int = 0
    """So many more providers, each of which leaves exactly one record, just before the end."""


@attrs.frozen
class Faults:
    """What goes wrong with the broker and the files. Each number is how often."""

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
"""What a month of a well kept farm has."""

ALL = Faults(2, 1, 2, 2, 3, 3, 3, 3, 3, 2, 2, 2, 2)
"""Everything, for tests."""

FARM = (
    Service("auth", providers=8, level=330.0, weekend=0.8),
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


@attrs.frozen
class ProviderTruth:
    service: str
    instance: str
    judged: str
    due: int
    """Beats that were due while it was registered and the broker was there."""
    missed: int
    flaky: bool
    flapping: bool
    outages: tuple[tuple[int, int], ...]
    """From and to, microseconds, of its own outages; those of the broker are not among them."""

    @property
    def miss_ratio(self) -> float:
        return self.missed / self.due if self.due else 0.0


@attrs.frozen
class ServiceTruth:
    service: str
    instances: tuple[str, ...]
    capacity: float | None
    since: int
    demand: tuple[float, ...]
    """The mean of each hour since ``since``, without the noise of single reports."""
    future: tuple[float, ...]
    """The same for the hours after the end, without any noise."""
    over_target: int | None
    """The first hour after the end in which demand exceeds `TARGET` of the capacity."""
    over_capacity: int | None
    hot: tuple[str, ...]


@attrs.frozen
class Loss:
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
    """Records of the last seconds before kills. Nobody can see that they are missing."""
    clock_jumps: tuple[tuple[int, int, int], ...]
    """From, to, by how many microseconds the clock was wrong."""
    unknown_members: int
    segments: tuple[str, ...]
    duplicates: tuple[str, ...]
    late: tuple[str, ...]

    def service(self, name: str) -> ServiceTruth:
        return next(service for service in self.services if service.service == name)


Told = Callable[[int, int], None]
"""Called with the hours that are written, and with how many there are."""


def generate(
    directory: Path,
    seed: int = 1,
    days: float = 30,
    services: Sequence[Service] = FARM,
    *,
    faults: Faults = NONE,
    end: datetime = END,
    broker: str = "demo",
    told: Told | None = None,
) -> Truth:
    """Write a journal to ``directory``, which is made, and ``truth.json`` beside it.

    Late segments are kept in the folder ``late`` beside the journal; `deliver` brings them.
    """
    until = int(end.timestamp()) * SECOND
    start = until - int(days * DAY)
    chance = np.random.default_rng(seed)
    boots = _boots(chance, start, until, faults)
    stream = _Stream(broker, boots)
    _alive(stream, boots)
    truths: list[ServiceTruth] = []
    providers: list[ProviderTruth] = []
    for number, service in enumerate(services):
        # Of its own, so that a service stays the same when another is added.
        own = np.random.default_rng([seed, number])
        truth, members = _service(stream, own, service, number, start, until, boots)
        truths.append(truth)
        providers.extend(members)
    _strange(stream, chance, start, until, faults)
    written = _write(stream, chance, directory, faults, told)
    truth_of_all = Truth(
        seed=seed,
        start=start,
        end=until,
        broker=broker,
        boots=tuple((boot.name, boot.start, boot.end, boot.how) for boot in boots),
        services=tuple(truths),
        providers=tuple(providers),
        **written,
    )
    (directory.parent / "truth.json").write_text(json.dumps(attrs.asdict(truth_of_all), indent=1) + "\n")
    return truth_of_all


def deliver(directory: Path) -> list[str]:
    """Bring the late segments into the journal. Returns their paths in it."""
    late = directory.parent / "late"
    brought = []
    for path in sorted(late.rglob("*.jsonl.gz")):
        name = path.relative_to(late)
        (directory / name).parent.mkdir(parents=True, exist_ok=True)
        path.rename(directory / name)
        brought.append(str(name))
    return brought


# Time of the broker.


@attrs.frozen
class _Boot:
    name: str
    start: int
    end: int
    how: str


def _boots(chance: np.random.Generator, start: int, until: int, faults: Faults) -> list[_Boot]:
    """The broker's lives: it is killed or restarted at times spread over the whole, a minute after a full one."""
    count = faults.kills + faults.restarts
    hows = ["killed"] * faults.kills + ["stopped"] * faults.restarts
    chance.shuffle(hows)
    boots = []
    at = start
    for number, how in enumerate(hows):
        stop = start + (until - start) * (number + 1) // (count + 1) + int(chance.uniform(0, HOUR))
        boots.append(_Boot(_stamp(at), at, stop, how))
        # Somebody has to notice that it was killed.
        at = stop + int(chance.uniform(120, 1200) if how == "killed" else chance.uniform(3, 20)) * SECOND
    boots.append(_Boot(_stamp(at), at, until, "runs"))
    return boots


def _stamp(at: int) -> str:
    return datetime.fromtimestamp(at // SECOND, UTC).strftime("%Y%m%dT%H%M%S")


# Records, before they have numbers.


class _Stream:
    """The records of the run: arrays of when, by which template, and the value that it has.

    A template is the text of a line in which only time, number, value and the provider's clock are open.
    """

    def __init__(self, broker: str, boots: Sequence[_Boot]) -> None:
        self.broker = broker
        self.boots = boots
        self.templates: list[str] = []
        self.unreadable: dict[int, str] = {}
        self.unknown = -1
        self.parts: list[tuple[Ints, int, Floats | Ints | None]] = []
        self.one_by_one: list[tuple[int, int]] = []

    def template(self, event: str, members: dict[str, Any], value: str = "", version: int = 1) -> int:
        """``value`` is the end of the line with one place for the value and one for the provider's clock."""
        middle = "".join(f",{json.dumps(key)}:{_text(member)}" for key, member in members.items() if member is not None)
        start = f'{{"v":{version},"ts":%d,"broker":{_text(self.broker)},"boot":"BOOT","seq":%d,"event":"{event}"'
        self.templates.append(start + middle + (value or "%.0s%.0s") + "}\n")
        return len(self.templates) - 1

    def add(self, at: int, template: int) -> None:
        self.one_by_one.append((at, template))

    def extend(self, at: Ints, template: int, values: Floats | Ints | None = None) -> None:
        if len(at):
            self.parts.append((at, template, values))

    def sorted(self) -> tuple[Ints, Ints, Floats]:
        """Times, templates and values in the order of time."""
        singles = np.array(self.one_by_one, dtype=np.int64).reshape(-1, 2)
        at = np.concatenate([singles[:, 0], *(part[0] for part in self.parts)])
        template = np.concatenate([singles[:, 1], *(np.full(len(part[0]), part[1]) for part in self.parts)])
        value = np.concatenate(
            [np.zeros(len(singles)), *(np.zeros(len(a)) if v is None else v for a, _, v in self.parts)]
        )
        self.parts.clear()
        order = np.argsort(at, kind="stable")
        return at[order], template[order], value[order]


def _text(member: Any) -> str:
    """JSON, in which a percent sign does not look like a place of the template."""
    return json.dumps(member, ensure_ascii=False).replace("%", "%%")


def _alive(stream: _Stream, boots: Sequence[_Boot]) -> None:
    life = {"wire": "elkobroker"}
    plain = stream.template("alive", life)
    first = stream.template("alive", life | {"why": "start"})
    last = stream.template("alive", life | {"why": "stop"})
    for boot in boots:
        stream.add(boot.start, first)
        stream.extend(np.arange(boot.start + ALIVE * SECOND, boot.end, ALIVE * SECOND, dtype=np.int64), plain)
        if boot.how == "stopped":
            stream.add(boot.end - 1, last)


# Services and providers.


@attrs.frozen
class _Down:
    start: int
    end: int
    short: bool
    """One of many: it is withdrawn, and not expired."""


@attrs.frozen
class _Session:
    start: int
    end: int
    how: str
    """``down``, ``flap``, ``broker``, ``runs``."""


def _service(
    stream: _Stream,
    chance: np.random.Generator,
    service: Service,
    number: int,
    start: int,
    until: int,
    boots: Sequence[_Boot],
) -> tuple[ServiceTruth, list[ProviderTruth]]:
    since = start if service.hours is None else max(start, until - int(service.hours * HOUR))
    demand = _Demand(service, chance, since, start, until)
    instances = [_instance(service, number, index) for index in range(service.providers)]
    flappers = range(service.providers - service.flapping, service.providers)
    downs = [_downs(chance, service, since, until, index in flappers) for index in range(service.providers)]
    sessions = [_sessions(chance, own, since, until, boots) for own in downs]
    weights = chance.normal(1.0, 0.03, service.providers).clip(0.8, 1.2)
    weights[0] *= 1 + service.skew
    present = _Present(weights, sessions) if service.failover else None
    providers = []
    for index, instance in enumerate(instances):
        ratio = service.flaky[index] if index < len(service.flaky) else 0.0
        due = missed = 0
        for turn, session in enumerate(sessions[index]):
            ident = 1 + number * 1_000_000 + index * 10_000 + turn
            counts = _session(stream, chance, service, instance, ident, session, ratio)
            due, missed = due + counts[0], missed + counts[1]
            times = np.arange(session.start + SECOND // 2, session.end, int(service.report * SECOND), dtype=np.int64)
            # Reports are not in step with each other, but each comes before the next is due.
            times[1:] += chance.integers(0, int(service.report * SECOND) // 4, max(0, len(times) - 1))
            times = times[times < session.end]
            share = weights[index] / (present.total(times) if present else weights.sum())
            load = demand.at(times) * share * chance.normal(1.0, 0.02, len(times)).clip(0.9, 1.1)
            stream.extend(times, _load(stream, service, instance, ident), load)
        providers.append(
            ProviderTruth(
                service.name,
                instance,
                "beats" if service.interval else "connection",
                due,
                missed,
                ratio > 0,
                index in flappers,
                tuple((down.start, down.end) for down in downs[index]),
            )
        )
    for extra in range(service.once):
        instance = _instance(service, number, service.providers + extra)
        ident = 1 + number * 1_000_000 + 900_000 + extra
        # So near to the end that nothing more is expected of it.
        stream.add(
            until - 20 * SECOND, stream.template("register", _members(service, instance, ident) | _agreed(service))
        )
    capacity = None if service.full_load is None else service.full_load * service.providers
    truth = ServiceTruth(
        service.name,
        tuple(instances),
        capacity,
        since,
        demand.hourly(),
        demand.future(),
        None if capacity is None else demand.first_over(capacity * TARGET),
        None if capacity is None else demand.first_over(capacity),
        (instances[0],) if service.skew > 0 else (),
    )
    return truth, providers


def _instance(service: Service, number: int, index: int) -> str:
    if service.labelled:
        return f"{service.name} {index + 1}"
    return f"10.{number // 250}.{number % 250}.{index + 10}:{9000 + number}"


def _members(service: Service, instance: str, ident: int) -> dict[str, Any]:
    return {
        "wire": service.wire,
        "service": service.name,
        "provider": ident,
        "label": instance if service.labelled else None,
        "endpoint": None if service.labelled else instance,
        "protocol": "tcp",
    }


def _agreed(service: Service) -> dict[str, Any]:
    return {} if service.interval is None else {"interval_ms": round(service.interval * 1000)}


def _load(stream: _Stream, service: Service, instance: str, ident: int) -> int:
    end = "" if service.full_load is None else f',"full_load":{service.full_load!r}'
    return stream.template("load", _members(service, instance, ident), ',"load":%.2f%.0s' + end)


class _Demand:
    """How much load a service has at a time: what is known beforehand, and noise from hour to hour."""

    def __init__(self, service: Service, chance: np.random.Generator, since: int, start: int, until: int) -> None:
        self.spec = service
        self.start = start
        self.since = since
        self.until = until
        self.trend = service.trend if service.runs_out is None else self._growth(service.runs_out)
        hours = math.ceil((until - since) / HOUR) + 2
        self.noise = np.ones(hours)
        drift = 0.0
        for hour, step in enumerate(chance.normal(0.0, service.noise, hours)):
            drift = 0.6 * drift + 0.8 * step
            self.noise[hour] = max(0.2, 1.0 + drift)

    def _growth(self, days: float) -> float:
        service = self.spec
        if service.full_load is None:
            raise ValueError(f"{service.name}: without a full load it has no date of running out")
        self.trend = 0.0
        day = self.until + int(days * DAY)
        top = float(self.known(np.arange(day - DAY, day, HOUR // 4, dtype=np.int64)).max())
        return (TARGET * service.full_load * service.providers / top - 1) / ((day - self.start) / DAY)

    def known(self, at: Ints) -> Floats:
        service = self.spec
        hour = (at % DAY) / HOUR
        # The first of January 1970 was a Thursday.
        weekend = (at // DAY + 3) % 7 >= 5
        wave = 1 + service.daily * np.cos((hour - service.peak_hour) * (2 * np.pi / 24))
        level = service.level * (1 + self.trend * (at - self.start) / DAY)
        return np.asarray(np.maximum(0.0, level) * wave * np.where(weekend, service.weekend, 1.0))

    def at(self, at: Ints) -> Floats:
        return np.asarray(self.known(at) * self.noise[(at - self.since) // HOUR])

    def _hours(self, start: int, count: int) -> Ints:
        """Twelve times in each hour, a row for each."""
        return start + np.arange(count, dtype=np.int64)[:, None] * HOUR + (np.arange(12)[None, :] * 2 + 1) * HOUR // 24

    def hourly(self) -> tuple[float, ...]:
        means = self.at(self._hours(self.since, (self.until - self.since) // HOUR)).mean(axis=1)
        return tuple(round(float(mean), 3) for mean in means)

    def future(self) -> tuple[float, ...]:
        return tuple(round(float(mean), 3) for mean in self.known(self._hours(self.until, FUTURE)).mean(axis=1))

    def first_over(self, bound: float) -> int | None:
        means = self.known(self._hours(self.until, SEARCH * 24)).mean(axis=1)
        over = np.flatnonzero(means > bound)
        return self.until + int(over[0]) * HOUR if len(over) else None


class _Present:
    """Whose weights share the load at a time: a step function."""

    def __init__(self, weights: Floats, sessions: Sequence[Sequence[_Session]]) -> None:
        steps = sorted(
            (at, change)
            for weight, own in zip(weights.tolist(), sessions, strict=True)
            for session in own
            for at, change in ((session.start, weight), (session.end, -weight))
        )
        self.times = np.array([at for at, _ in steps], dtype=np.int64)
        self.totals = np.cumsum([change for _, change in steps])

    def total(self, at: Ints) -> Floats:
        return np.asarray(self.totals[np.searchsorted(self.times, at, side="right") - 1])


def _downs(chance: np.random.Generator, service: Service, since: int, until: int, flaps: bool) -> list[_Down]:
    """When a provider is not there, by its own fault: in the order of time, and apart from each other."""
    wanted = []
    for _ in range(chance.poisson(service.outages * (until - since) / (30 * DAY))):
        at = since + int(chance.uniform(0.02, 0.95) * (until - since))
        seconds = float(np.exp(chance.normal(math.log(1500), 0.7)))
        # Long enough for the broker to see it, and not half of a short run.
        seconds = max(4 * MISSED * (service.interval or 10.0) / 3, min(seconds, (until - since) / SECOND / 20))
        wanted.append(_Down(at, at + int(seconds * SECOND), short=False))
    if flaps:
        for part in (0.3, 0.7):
            at = since + int((part + chance.uniform(0, 0.05)) * (until - since))
            stop = at + min(6 * HOUR, (until - since) // 10)
            while at < stop:
                gap = int(chance.uniform(40, 90)) * SECOND
                wanted.append(_Down(at, at + gap, short=True))
                at += gap + int(chance.uniform(200, 500)) * SECOND
    downs: list[_Down] = []
    for down in sorted(wanted, key=lambda down: down.start):
        if down.end < until and (not downs or down.start > downs[-1].end + 60 * SECOND):
            downs.append(down)
    return downs


def _sessions(
    chance: np.random.Generator, downs: Sequence[_Down], since: int, until: int, boots: Sequence[_Boot]
) -> list[_Session]:
    """When a provider is registered: the broker is there, and the provider is not down."""
    sessions = []
    for boot in boots:
        at = max(since, boot.start) + int(chance.uniform(0.2, RETURN) * SECOND)
        for down in downs:
            if down.end <= at or down.start >= boot.end:
                continue
            if down.start > at:
                sessions.append(_Session(at, down.start, "flap" if down.short else "down"))
            at = down.end
        if at < boot.end:
            sessions.append(_Session(at, boot.end, "runs" if boot.how == "runs" else "broker"))
    return sessions


def _session(
    stream: _Stream,
    chance: np.random.Generator,
    service: Service,
    instance: str,
    ident: int,
    session: _Session,
    ratio: float,
) -> tuple[int, int]:
    """Register, beat and end. Returns the beats that were due, and those of them that were missed."""
    members = _members(service, instance, ident)
    stream.add(session.start, stream.template("register", members | _agreed(service)))
    due = missed = 0
    last = session.start
    if service.interval is not None:
        step = round(service.interval * SECOND)
        beats = np.arange(session.start + step, session.end, step, dtype=np.int64)
        kept = ~_misses(chance, len(beats), ratio)
        due, missed = len(beats), int(len(beats) - kept.sum())
        late = np.abs(chance.normal(0.0, 0.01, len(beats))).clip(0, 0.05) * step
        times = (beats + late.astype(np.int64))[kept]
        times = times[times < session.end]
        place = stream.template("hb", members | _agreed(service), ',"hb_seq":%d,"sent_ts":%d')
        stream.extend(times, place, np.arange(1, len(times) + 1, dtype=np.int64))
        last = int(times[-1]) if len(times) else last
    if session.how == "flap" or (session.how == "down" and service.interval is None):
        why = {"why": "withdrawn" if service.interval else "left"}
        stream.add(session.end, stream.template("unregister", members | why))
    elif session.how == "down":
        gone = last + MISSED * step
        # A broker that was killed meanwhile does not tell.
        if any(boot.start <= last and gone < boot.end for boot in stream.boots):
            stream.add(gone, stream.template("expire", members | _agreed(service) | {"why": "silent"}))
    return due, missed


def _misses(chance: np.random.Generator, count: int, ratio: float) -> NDArray[np.bool_]:
    """Which of the beats are missed: as many as the ratio says, and never `MISSED` in a row."""
    missed = np.zeros(count, dtype=np.bool_)
    if not ratio or not count:
        return missed
    wanted = round(ratio * count)
    for index in chance.permutation(count).tolist():
        if not wanted:
            break
        low, high = index, index
        while low > 0 and missed[low - 1]:
            low -= 1
        while high + 1 < count and missed[high + 1]:
            high += 1
        if high - low + 1 < MISSED:
            missed[index] = True
            wanted -= 1
    return missed


# What is strange, and what is broken.

# Reasons why a line cannot be taken.
VERSION = "version"
EVENT = "event"
JSON = "json"
DATE = "future"
TORN = "torn"
TRUNCATED = "truncated"


def _strange(stream: _Stream, chance: np.random.Generator, start: int, until: int, faults: Faults) -> None:
    """Records that a reader of version 1 does not know, at times at which the broker is there."""
    members = {"wire": "elko", "service": "strange", "provider": 1, "endpoint": "10.99.0.1:1"}
    version = stream.template("load", members | {"weight": {"cpu": 3}}, version=2)
    event = stream.template("moved", members)
    future = stream.template("unregister", members | {"why": "left"})
    # The year is written over the time's place; it takes the same number of values.
    stream.templates[future] = stream.templates[future].replace('"ts":%d', '"ts":%.0s' + str(until + 400 * DAY))
    garbage = stream.template("hb", members)
    stream.templates[garbage] = "\ufffd%.0s%.0s%.0s%.0s{{{ \n"
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
class _Numbered:
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


def _number(stream: _Stream, chance: np.random.Generator, faults: Faults) -> _Numbered:
    """Number the records of each boot, and let the broker lose some: when it is killed, and when its queue is full."""
    drop = stream.template("drop", {"wire": "elkobroker", "why": "queue"}, ',"dropped":%d%.0s')
    at, template, value = stream.sorted()
    got = _Numbered(at, template, value, np.zeros_like(at), np.ones(len(at), np.bool_), at.copy(), [], 0, [], [])
    boots = stream.boots
    for boot in boots:
        low, high = np.searchsorted(at, (boot.start, boot.end)).tolist()
        got.ranges.append((low, high))
        got.seq[low:high] = np.arange(1, high - low + 1)
        if boot.how == "killed":
            cut = int(np.searchsorted(at, boot.end - UNWRITTEN * SECOND))
            got.keep[cut:high] = False
            got.unacknowledged += high - cut
    # What happened while the broker was not there, nobody wrote down.
    got.keep &= got.seq > 0
    special = [*stream.unreadable, stream.unknown]
    for number in range(faults.drops):
        boot, (low, high) = boots[number % len(boots)], got.ranges[number % len(boots)]
        length = int(chance.integers(5, 60))
        first = low + int((high - low) * chance.uniform(0.3, 0.6))
        tells = first + length
        if not got.keep[first : tells + 1].all() or np.isin(template[first : tells + 1], special).any():
            continue
        got.keep[first:tells] = False
        template[tells], value[tells] = drop, length
        got.lost.append(Loss(stream.broker, boot.name, int(got.seq[first]), int(got.seq[tells]) - 1, True))
    for number in range(faults.clock_jumps):
        boot = boots[number % len(boots)]
        begin = boot.start + int((boot.end - boot.start) * chance.uniform(0.35, 0.6))
        stop, by = min(begin + WRONG * SECOND, boot.end), -JUMP * SECOND
        got.shown[(at >= begin) & (at < stop)] += by
        got.jumps.append((begin, stop, by))
    return got


def _pieces(got: _Numbered, boots: Sequence[_Boot]) -> Iterator[tuple[_Boot, int, Ints]]:
    """The segments: the boot, the number in it, and which records. Hours without a record have none."""
    for boot, (low, high) in zip(boots, got.ranges, strict=True):
        hours = np.arange(boot.start - boot.start % HOUR + HOUR, boot.end + HOUR, HOUR)
        cuts = [low, *np.searchsorted(got.at[low:high], hours) + low]
        number = 0
        for left, right in pairwise(cuts):
            where = np.flatnonzero(got.keep[left:right]) + left
            if len(where):
                number += 1
                yield boot, number, where


def _write(
    stream: _Stream,
    chance: np.random.Generator,
    directory: Path,
    faults: Faults,
    told: Told | None,
) -> dict[str, Any]:
    """Write the segments and break what is to break. Returns the rest of the truth."""
    got = _number(stream, chance, faults)
    pieces = list(_pieces(got, stream.boots))
    # The first and last segments stay whole: they say when the run begins and ends.
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
    # The provider's clock is some milliseconds behind what the broker's shows.
    sent = got.at - got.at % 7919 - 500
    for done, (boot, number, where) in enumerate(pieces):
        texts = known[boot.name]
        templates = got.template[where].tolist()
        seqs = got.seq[where].tolist()
        columns = (got.shown[where].tolist(), seqs, got.value[where].tolist(), sent[where].tolist())
        lines = [texts[one] % row for one, row in zip(templates, zip(*columns, strict=True), strict=True)]
        reasons = {row: stream.unreadable[one] for row, one in enumerate(templates) if one in stream.unreadable}
        if done in torn:
            lines[-1] = lines[-1][: len(lines[-1]) // 2]
            reasons[len(lines) - 1] = TORN
        data = gzip.compress("".join(lines).encode(), LEVEL, mtime=0)
        folder = datetime.fromtimestamp(columns[0][0] // SECOND, UTC).strftime("segments/date=%Y-%m-%d/hour=%H/")
        name = f"{folder}{stream.broker}-{boot.name}-{number}.jsonl.gz"
        if done in truncated:
            data = data[: len(data) * 3 // 5]
            bad.append(Bad(name, TRUNCATED, len(lines)))
            reasons = dict.fromkeys(range(len(lines)), TRUNCATED)
        else:
            bad.extend(Bad(name, reason, count) for reason, count in Counter(reasons.values()).items())
        got.lost.extend(Loss(stream.broker, boot.name, seqs[row], seqs[row], False) for row in reasons)
        records += len(lines) - len(reasons)
        segments.append(name)
        if done in late:
            delayed.append(name)
        _put((directory.parent / "late" if done in late else directory) / name, data)
        if done in twice:
            copy = f"{folder}{stream.broker}-{boot.name}-{90_000 + number}.jsonl.gz"
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
    """As the broker does it: under a name that nobody reads, until it is whole."""
    path.parent.mkdir(parents=True, exist_ok=True)
    hidden = path.with_name("." + path.name)
    hidden.write_bytes(data)
    hidden.replace(path)
