"""Providers: their times of presence, their missed beats, and the share of each in the load.

Rules:
- A service's demand is shared out among its providers by their weights. Without `Service.failover` the share of a
  provider that is down is lost for that time, as with players that are pinned to their server; with it, the others
  take it over.
- A provider registers, is heard, and goes. A provider with an interval beats, and is expired three intervals after its
  last beat; one without is connected, and its connection ends. Each time it registers it has another provider id.
- Each beat is missed with the provider's own chance, so how many are missed is luck as well; how many were is in the
  truth. No provider misses three beats in a row, since it would then have been down, which is another defect.
- A provider that flaps is lost and comes back, again and again for some hours.
- A rolling deployment, or the end of an instance's lifetime, replaces an instance: it withdraws, or its connection
  ends, and another one with a new endpoint takes its place and its share of the load at the same moment.
"""

import math
from bisect import bisect_right
from collections.abc import Sequence
from itertools import pairwise

import attrs
import numpy as np
from numpy.typing import NDArray

from tests.spark.generator.broker_lives import DAY, HOUR, RETURN, SECOND, Boot, Floats, Ints
from tests.spark.generator.demand import demand_of
from tests.spark.generator.farm import TARGET, Service
from tests.spark.generator.records import Stream, agreed, load_template, members_of
from tests.spark.generator.truth import ProviderTruth, ServiceTruth

MISSED = 3
"""Intervals of silence after which a provider is expired."""


@attrs.frozen
class _Down:
    start: int
    end: int
    short: bool
    """One of many: its connection ends, and it is not expired."""


@attrs.frozen
class _Session:
    start: int
    end: int
    how: str
    """``down``, ``flap``, ``broker``, ``runs``; ``withdrawn`` or ``left`` where another instance replaces this one."""
    generation: int = 0
    """The number of instances that had this provider's place before."""


def add_service(
    stream: Stream, seed: int, service: Service, number: int, start: int, until: int
) -> tuple[ServiceTruth, list[ProviderTruth]]:
    """Add all records of a service. Returns the truth about it and its providers."""
    demand, chance = demand_of(seed, service, number, start, until)
    since = demand.since
    losses = np.random.default_rng([seed, number, 2]).uniform(0.0, service.losses, service.providers).tolist()
    instances = [_instance(service, number, index) for index in range(service.providers)]
    flappers = range(service.providers - service.flapping, service.providers)
    downs = [_downs(chance, service, since, until, index in flappers) for index in range(service.providers)]
    switches = [_switches(service, index, since, until) for index in range(service.providers)]
    sessions = [
        _replaced(_sessions(chance, own, since, stream.boots), at, service.replaced_by)
        for (own, _), at in zip(downs, switches, strict=True)
    ]
    weights = chance.normal(1.0, 0.03, service.providers).clip(0.8, 1.2)
    weights[0] *= 1 + service.skew
    # A broker that is away takes no provider along: its players, or requests, go on.
    alive = [_alive(own, since, until) for own, _ in downs]
    present = _Present(weights, alive) if service.failover else None
    providers = []
    for index, first in enumerate(instances):
        flaky = index < len(service.flaky) and service.flaky[index] > 0
        ratio = service.flaky[index] if flaky else losses[index]
        beats = dict.fromkeys(range(len(switches[index]) + 1), (0, 0))
        for turn, session in enumerate(sessions[index]):
            ident = 1 + number * 1_000_000 + index * 10_000 + turn
            instance = _generation(service, first, session.generation)
            due, missed = _session(stream, chance, service, instance, ident, session, ratio)
            so_far = beats[session.generation]
            beats[session.generation] = (so_far[0] + due, so_far[1] + missed)
            times = np.arange(session.start + SECOND // 2, session.end, int(service.report * SECOND), dtype=np.int64)
            # Reports are not in step with each other, but each comes before the next is due.
            times[1:] += chance.integers(0, int(service.report * SECOND) // 4, max(0, len(times) - 1))
            times = times[times < session.end]
            share = weights[index] / (present.total(times) if present else weights.sum())
            load = demand.at(times) * share * chance.normal(1.0, 0.02, len(times)).clip(0.9, 1.1)
            stream.extend(times, load_template(stream, service, instance, ident), load)
        own, episodes = downs[index]
        edges = [since, *switches[index], until]
        providers += [
            ProviderTruth(
                service=service.name,
                instance=_generation(service, first, generation),
                judged="beats" if service.interval else "connection",
                due=due,
                missed=missed,
                ratio=ratio,
                flaky=flaky,
                flapping=index in flappers,
                outages=tuple((down.start, down.end) for down in own if begin <= down.start < end),
                episodes=tuple(episode for episode in episodes if begin <= episode[0] < end),
            )
            for (generation, (due, missed)), (begin, end) in zip(beats.items(), pairwise(edges), strict=True)
        ]
    for extra in range(service.once):
        instance = _instance(service, number, service.providers + extra)
        members = members_of(service, instance, 1 + number * 1_000_000 + 900_000 + extra) | agreed(service)
        # So near to the end that nothing more is expected of it.
        stream.add(until - 20 * SECOND, stream.template("register", members))
    capacity = None if service.full_load is None else service.full_load * service.providers
    truth = ServiceTruth(
        service=service.name,
        instances=tuple(one.instance for one in providers),
        capacity=capacity,
        since=since,
        demand=demand.hourly(),
        peaks=demand.peaks(),
        future=demand.future(),
        came=demand.came(),
        over_target=None if capacity is None else demand.first_over(capacity * TARGET),
        over_capacity=None if capacity is None else demand.first_over(capacity),
        hot=(instances[0],) if service.skew > 0 else (),
    )
    return truth, providers


def _instance(service: Service, number: int, index: int) -> str:
    if service.labelled:
        return f"{service.name} {index + 1}"
    return f"10.{number // 250}.{number % 250}.{index + 10}:{9000 + number}"


def _generation(service: Service, first: str, generation: int) -> str:
    """Name the instance that has a provider's place after so many others."""
    if not generation:
        return first
    return f"{first} v{generation + 1}" if service.labelled else f"{first.rpartition(':')[0]}:{20_000 + generation}"


def _switches(service: Service, index: int, since: int, until: int) -> list[int]:
    """Return the times at which the instance in a provider's place is replaced."""
    times = [
        since + (until - since) * (number + 1) // (service.deployments + 1) + int(index * service.deploy_step * SECOND)
        for number in range(service.deployments)
    ]
    if service.lifetime is not None:
        times += range(since + int(service.lifetime * SECOND), until, int(service.lifetime * SECOND))
    return sorted({at for at in times if since < at < until})


def _replaced(sessions: Sequence[_Session], switches: Sequence[int], how: str) -> list[_Session]:
    """Cut the sessions where the instance is replaced."""
    made = []
    for session in sessions:
        at = session.start
        for generation, switch in enumerate(switches):
            if at < switch < session.end:
                made.append(_Session(at, switch, how, generation))
                at = switch
        made.append(_Session(at, session.end, session.how, bisect_right(switches, at)))
    return made


class _Present:
    """Weights that share the load at a time: a step function."""

    def __init__(self, weights: Floats, alive: Sequence[Sequence[tuple[int, int]]]) -> None:
        steps = sorted(
            (at, change)
            for weight, own in zip(weights.tolist(), alive, strict=True)
            for begin, end in own
            for at, change in ((begin, weight), (end, -weight))
        )
        self.times = np.array([at for at, _ in steps], dtype=np.int64)
        self.totals = np.cumsum([change for _, change in steps])

    def total(self, at: Ints) -> Floats:
        return np.asarray(self.totals[np.searchsorted(self.times, at, side="right") - 1])


def _alive(downs: Sequence[_Down], since: int, until: int) -> list[tuple[int, int]]:
    """Return the times in which a provider works, whether the broker is there or not."""
    edges = [since, *(at for down in downs for at in (down.start, down.end)), until]
    return list(zip(edges[::2], edges[1::2], strict=True))


def _downs(
    chance: np.random.Generator, service: Service, since: int, until: int, flaps: bool
) -> tuple[list[_Down], list[tuple[int, int]]]:
    """Return the absences of a provider by its own fault: in the order of time, and apart from each other.

    The times in which it comes and goes are told as well.
    """
    wanted = []
    episodes = []
    for _ in range(chance.poisson(service.outages * (until - since) / (30 * DAY))):
        at = since + int(chance.uniform(0.02, 0.95) * (until - since))
        seconds = float(np.exp(chance.normal(math.log(1500), 0.7)))
        # Long enough for the broker to see it, and not half of a short run.
        seconds = max(4 * MISSED * (service.interval or 10.0) / 3, min(seconds, (until - since) / SECOND / 20))
        wanted.append(_Down(at, at + int(seconds * SECOND), short=False))
    if flaps:
        for part in (0.3, 0.7):
            at = first = since + int((part + chance.uniform(0, 0.05)) * (until - since))
            stop = at + min(6 * HOUR, (until - since) // 10)
            while at < stop:
                gap = int(chance.uniform(40, 90)) * SECOND
                wanted.append(_Down(at, at + gap, short=True))
                at += gap + int(chance.uniform(200, 500)) * SECOND
            episodes.append((first, at))
    downs: list[_Down] = []
    for down in sorted(wanted, key=lambda down: down.start):
        if down.end < until and (not downs or down.start > downs[-1].end + 60 * SECOND):
            downs.append(down)
    return downs, episodes


def _sessions(chance: np.random.Generator, downs: Sequence[_Down], since: int, boots: Sequence[Boot]) -> list[_Session]:
    """Return the times at which a provider is registered: the broker is there, and the provider is not down."""
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
    stream: Stream,
    chance: np.random.Generator,
    service: Service,
    instance: str,
    ident: int,
    session: _Session,
    ratio: float,
) -> tuple[int, int]:
    """Register, beat and end. Returns the beats that were due, and those of them that were missed."""
    members = members_of(service, instance, ident)
    stream.add(session.start, stream.template("register", members | agreed(service)))
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
        place = stream.template("hb", members | agreed(service), ',"hb_seq":%d,"sent_ts":%d')
        stream.extend(times, place, np.arange(1, len(times) + 1, dtype=np.int64))
        last = int(times[-1]) if len(times) else last
    if session.how in ("withdrawn", "left"):
        stream.add(session.end, stream.template("unregister", members | {"why": session.how}))
    elif session.how == "flap" or (session.how == "down" and service.interval is None):
        stream.add(session.end, stream.template("unregister", members | {"why": "left"}))
    elif session.how == "down":
        gone = last + MISSED * step
        # A broker that was killed meanwhile does not tell.
        if any(boot.start <= last and gone < boot.end for boot in stream.boots):
            stream.add(gone, stream.template("expire", members | agreed(service) | {"why": "silent"}))
    return due, missed


def _misses(chance: np.random.Generator, count: int, ratio: float) -> NDArray[np.bool_]:
    """Return a mask of missed beats: each with a chance of ``ratio``, and never `MISSED` in a row."""
    missed = np.zeros(count, dtype=np.bool_)
    if not ratio or not count:
        return missed
    wanted = chance.binomial(count, ratio)
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
