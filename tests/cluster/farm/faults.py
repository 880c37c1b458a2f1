"""Faults of a farm: a schedule from a seed. The same seed gives the same schedule."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Literal

import attrs

Kind = Literal[
    "kill broker", "pause broker", "cut broker", "split brokers", "kill etcd", "kill leader", "pause etcd", "cut etcd",
    "kill all etcd", "restart broker",
]  # fmt: skip

KINDS: tuple[Kind, ...] = (
    "kill broker", "pause broker", "cut broker", "split brokers", "kill etcd", "kill leader", "pause etcd", "cut etcd",
    "kill all etcd",
)  # fmt: skip
"""The kinds of a schedule by chance."""


@attrs.frozen
class Fault:
    """A fault that begins ``at`` seconds after the begin of its round, and ends ``lasts`` seconds later.

    - "kill broker", "kill etcd": kill -9 of ``target``, and its start at the end. "kill leader": of etcd's leader at
      that moment. "kill all etcd": of all members.
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
    for _ in range(rng.choice((1, 2, 2, 3))):
        kind = rng.choice(KINDS)
        # Shorter than the TTL, about as long, and longer.
        lasts = round(rng.uniform(0.5, 2.0) * ttl if rng.random() < 0.5 else rng.uniform(0.2, 1.0) * ttl, 2)
        at = round(rng.uniform(0.0, 3.0), 2)
        if "etcd" in kind or kind == "kill leader":
            # A second fault of etcd would leave it without a quorum for long; "kill all etcd" is that case, and short.
            if etcd_fault:
                continue
            etcd_fault = True
            target = "" if kind in ("kill leader", "kill all etcd") else rng.choice(etcds)
            lasts = min(lasts, 3.0) if kind == "kill all etcd" else lasts
        elif brokers:
            target = brokers.pop(rng.randrange(len(brokers)))
        else:
            continue
        faults.append(Fault(at, kind, target, lasts))
    return tuple(sorted(faults, key=lambda each: each.at))
