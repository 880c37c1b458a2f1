"""A journal of a farm that never was, as a broker would have written it, and the truth about it.

The jobs are tried on it, and the demo shows it. The truth is known: the load that there was and will be, all failures
with their times, the numbers of lost heartbeats, and every line that is damaged. `generate` returns that and writes it
to ``truth.json`` beside the journal.

| module | subject |
|---|---|
| `farm` | services, and faults of the broker and the files |
| `truth` | the truth as values |
| `broker_lives` | units, and the broker's lives |
| `records` | records, before they have numbers |
| `demand` | the load of a service |
| `behaviour` | providers: times of presence, missed beats |
| `faults` | records that are strange or lost, and numbers |
| `segments` | the files |

Rules:
- The same arguments give the same bytes: all chance comes from the seed, and no clock is read.
- Each module's rules stand at its head.

The records of a whole run are in memory as arrays: about 80 bytes for each.
"""

import json
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path

import attrs
import numpy as np

from tests.spark.generator.behaviour import add_service
from tests.spark.generator.broker_lives import DAY, END, SECOND, boots_of
from tests.spark.generator.demand import demand_of
from tests.spark.generator.farm import ALL, BELIEVABLE, FARM, NONE, Faults, Service
from tests.spark.generator.faults import add_strange
from tests.spark.generator.records import Stream, add_alive
from tests.spark.generator.segments import Told, write
from tests.spark.generator.truth import ProviderTruth, ServiceTruth, Truth

__all__ = [
    "ALL",
    "BELIEVABLE",
    "END",
    "FARM",
    "NONE",
    "Faults",
    "ProviderTruth",
    "Service",
    "ServiceTruth",
    "Truth",
    "deliver",
    "generate",
    "series",
]


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

    Late segments are kept in the folder ``late`` beside the journal; `deliver` brings them. Brokers of other names may
    share a journal; then ``truth.json`` is that of the last.
    """
    until = int(end.timestamp()) * SECOND
    start = until - int(days * DAY)
    chance = np.random.default_rng(seed)
    boots = boots_of(chance, start, until, faults)
    stream = Stream(broker, boots)
    add_alive(stream, boots)
    truths: list[ServiceTruth] = []
    providers: list[ProviderTruth] = []
    for number, service in enumerate(services):
        truth, members = add_service(stream, seed, service, number, start, until)
        truths.append(truth)
        providers.extend(members)
    add_strange(stream, chance, until, faults)
    written = write(stream, chance, directory, faults, told)
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


def series(
    seed: int = 1, days: float = 30, services: Sequence[Service] = FARM, *, end: datetime = END
) -> dict[str, tuple[float, ...]]:
    """Return the hourly demand of the same services without a journal: of these days, and of `FUTURE` after them."""
    until = int(end.timestamp()) * SECOND
    made = {}
    for number, service in enumerate(services):
        demand, _ = demand_of(seed, service, number, until - int(days * DAY), until)
        made[service.name] = demand.hourly() + demand.came()
    return made


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
