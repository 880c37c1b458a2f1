"""Servers with an MTL wire and their loads, which take turns: how a stretch is measured."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import attrs

from bench.common.figures import median
from bench.common.processes import Load, Remote
from bench.mtl.servers import Keys, MtlServer

WARM_UP = 0.3
"""Seconds of the same load before the first measured stretch."""

IDLE = 0.3
"""Seconds for which a server is watched before the load: what it takes doing nothing is not counted."""

SIZES = {"100": ("100 B", 100), "10k": ("10 KiB", 10 * 1024)}

Started = Callable[[Keys | None], AbstractContextManager[MtlServer]]


@attrs.frozen
class Options:
    """The extent of a measurement: ``runs`` with fresh processes, in each of them ``turns`` of so many ``seconds``."""

    runs: int
    turns: int
    seconds: float
    subject: Started
    before: Path | None = None
    """A checkout of the earlier version, where a row needs it."""


class Side:
    """A server and its load, taking turns with others."""

    def __init__(self, server: MtlServer, prepare: Callable[..., Load], *arguments: Any) -> None:
        before = server.cpu()
        time.sleep(IDLE)
        self._idle = (server.cpu() - before) / IDLE
        self._server = server
        self._load = Remote(prepare, server, *arguments)
        self.stop = self._load.stop
        self._load.run(WARM_UP)

    def measure(self, seconds: float) -> Result:
        """Run the load for so long."""
        before = self._server.cpu()
        sample, own = self._load.run(seconds)
        used = self._server.cpu() - before - self._idle * sample.seconds
        each = 1e6 / sample.messages
        return Result(used * each, own * each, sample.messages / sample.seconds)


@attrs.frozen
class Result:
    """One measured stretch: microseconds of CPU for each message, of the server and of its generator; and the rate."""

    cost: float
    generator: float
    rate: float

    @property
    def busy(self) -> float:
        """The share of a core that the generator took."""
        return self.generator * self.rate / 1e6


def shares(results: Sequence[Result]) -> str:
    """The share of a core that the generators took."""
    return f"{median(results, 'busy'):.0%}"


def spread(values: Sequence[float], form: str) -> str:
    """The least and the most."""
    return f"{min(values):{form}}-{max(values):{form}}"
