"""Faults of a farm: a schedule from a seed. The same seed gives the same schedule."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Literal

import attrs

Kind = Literal[
    "kill broker", "pause broker", "cut broker", "split brokers", "kill etcd", "kill leader", "pause etcd", "cut etcd",
    "kill all etcd", "cut all etcd", "pause all etcd", "start without etcd", "restart broker",
]  # fmt: skip

KINDS: tuple[Kind, ...] = (
    "kill broker", "pause broker", "cut broker", "split brokers", "kill etcd", "kill leader", "pause etcd", "cut etcd",
    "kill all etcd",
)  # fmt: skip
"""The kinds of a schedule by chance."""

OUTAGES: tuple[Kind, ...] = ("kill all etcd", "cut all etcd", "pause all etcd", "start without etcd")
"""The kinds that leave all brokers without etcd: every second round has one of them."""


STARTS = 12.0
"""Seconds, at least, of an outage in which a broker starts: it goes on without etcd after five."""

RECORDED = 1.0
"""Seconds, at least, until a broker is killed that starts by its record: that is up to half a second older."""


@attrs.frozen
class Fault:
    """A fault that begins ``at`` seconds after the begin of its round, and ends ``lasts`` seconds later.

    - "kill broker", "kill etcd": kill -9 of ``target``, and its start at the end. "kill leader": of etcd's leader at
      that moment. "kill all etcd": of all members. "pause all etcd": SIGSTOP of all members.
    - "cut all etcd": no packet between brokers and members of etcd; the brokers reach each other. "start without etcd":
      the same, and ``target`` is killed, and started at once.
    - "restart broker": SIGTERM, and its start at the end, as for an upgrade.
    - "pause broker", "pause etcd": SIGSTOP, and SIGCONT at the end.
    - "cut broker": no packet between ``target`` and all members of etcd and all other brokers; its clients reach it.
    - "split brokers": no packet between ``target`` and the other brokers.
    - "cut etcd": no packet between ``target`` and the other members; brokers reach it.
    """

    at: float
    kind: Kind
    target: str
    lasts: float


@attrs.frozen
class Round:
    """A round: its number, and its faults in order."""

    number: int
    faults: tuple[Fault, ...]

    @property
    def lasts(self) -> float:
        """Seconds until the last fault has ended."""
        return max(each.at + each.lasts for each in self.faults)


def schedule(seed: int, rounds: int, brokers: Sequence[str], etcds: Sequence[str], ttl: float) -> list[Round]:
    """Return the rounds of a seed: one to three faults each, no two of them at the same host."""
    rng = random.Random(seed)
    return [Round(number, _faults(rng, list(brokers), list(etcds), ttl)) for number in range(1, rounds + 1)]


def upgrade(brokers: Sequence[str], ttl: float) -> list[Round]:
    """Return the rounds of an upgrade: one broker after the other is stopped, and started again within the TTL."""
    return [
        Round(number, (Fault(1.0, "restart broker", broker, ttl / 3),))
        for number, broker in enumerate(brokers, start=1)
    ]


def _faults(rng: random.Random, brokers: list[str], etcds: list[str], ttl: float) -> tuple[Fault, ...]:
    faults: list[Fault] = []
    etcd_fault = False
    outage = rng.random() < 0.5
    for number in range(rng.choice((1, 2, 2, 3))):
        kind = rng.choice(OUTAGES if outage and number == 0 else KINDS)
        # Shorter than the TTL, about as long, and longer.
        lasts = round(rng.uniform(0.5, 2.0) * ttl if rng.random() < 0.5 else rng.uniform(0.2, 1.0) * ttl, 2)
        at = round(rng.uniform(0.0, 3.0), 2)
        if "etcd" in kind or kind == "kill leader":
            # A second fault of etcd would leave it without a quorum for long; an outage is that case.
            if etcd_fault:
                continue
            etcd_fault = True
            target = "" if kind == "kill leader" or kind in OUTAGES else rng.choice(etcds)
            if kind in OUTAGES:
                lasts = round(rng.uniform(0.5, 3.0) * ttl, 2)
            if kind == "start without etcd":
                target = brokers.pop(rng.randrange(len(brokers)))
                at, lasts = max(at, RECORDED), max(lasts, STARTS)
        elif brokers:
            target = brokers.pop(rng.randrange(len(brokers)))
        else:
            continue
        faults.append(Fault(at, kind, target, lasts))
    return tuple(sorted(faults, key=lambda each: each.at))
