"""The rows of the MTL wire that are measured beside an earlier version: queues, and one Content at a time."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any

import attrs

from bench.common.figures import judged, median
from bench.common.processes import Load
from bench.mtl import servers as mtl_servers
from bench.mtl.sides import SIZES, Options, Result, Side, shares, spread
from bench.mtl.traffic import FanOut, Queue

QUEUE_GOAL = 1.3
"""The least that a queue confirms, as a ratio to the earlier version."""

SINGLE_GOAL = 0.7
"""The most that a Content may cost where there is one at a time, as a ratio to the earlier version."""


def _beside_earlier(
    options: Options, prepare: Callable[..., Load], *arguments: Any
) -> tuple[list[Result], list[Result]]:
    """Stretches of the broker, and of the earlier version beside it, in turns."""
    results: tuple[list[Result], list[Result]] = [], []
    for _ in range(options.runs):
        with ExitStack() as stack:
            servers = [stack.enter_context(mtl_servers.broker(None, checkout)) for checkout in (None, options.before)]
            sides = [Side(server, prepare, *arguments) for server in servers]
            for side in sides:
                stack.callback(side.stop)
            both = list(zip(sides, results, strict=True))
            for turn in range(options.turns):
                for side, came in both if turn % 2 else reversed(both):
                    came.append(side.measure(options.seconds))
    return results


@attrs.frozen
class QueueRow:
    """A queue: one writer that is confirmed, so many readers that confirm.

    With ``single`` the goal is about what a Content costs, and else about how many are confirmed.
    """

    name: str
    title: str
    queue: str
    readers: int
    window: int
    size: int
    multiple: bool = False
    single: bool = False
    earlier = True

    def run(self, options: Options) -> EarlierOutcome:
        """Measure the broker and the earlier version in turns."""
        arguments = self.queue, self.readers, self.window, self.size, self.multiple
        return EarlierOutcome(self, *_beside_earlier(options, Queue, *arguments))


@attrs.frozen
class SingleRow:
    """The test profile: one writer, one reader, one Content of 100 B at a time."""

    name: str
    title: str
    single = True
    earlier = True

    def run(self, options: Options) -> EarlierOutcome:
        """Measure the broker and the earlier version in turns."""
        return EarlierOutcome(self, *_beside_earlier(options, FanOut, 1, SIZES["100"][1], 1))


@attrs.frozen
class EarlierOutcome:
    """All stretches of such a row: of the broker, and of the earlier version."""

    row: QueueRow | SingleRow
    results: Sequence[Result]
    before: Sequence[Result]

    def _ratio(self, figure: str) -> float:
        """The median of the turns' own ratios: what slows the machine down slows down both."""
        pairs = zip(self.results, self.before, strict=True)
        ratios: list[float] = [getattr(one, figure) / getattr(other, figure) for one, other in pairs]
        return statistics.median(ratios)

    @property
    def met(self) -> bool:
        return self._ratio("cost") <= SINGLE_GOAL if self.row.single else self._ratio("rate") >= QUEUE_GOAL

    def said(self) -> str:
        return f"{self._ratio('rate'):.2f}, CPU {self._ratio('cost'):.2f}"

    def lines(self) -> list[list[str]]:
        goal = f"CPU <= {SINGLE_GOAL:g}" if self.row.single else f"a second >= {QUEUE_GOAL:g}"
        return [
            [
                self.row.title,
                f"{median(self.results, 'rate'):,.0f}",
                spread([result.rate for result in self.results], ",.0f"),
                f"{median(self.before, 'rate'):,.0f}",
                f"{self._ratio('rate'):.2f}",
                f"{median(self.results, 'cost'):.1f}",
                f"{median(self.before, 'cost'):.1f}",
                f"{self._ratio('cost'):.2f}",
                shares(self.results),
                f"{goal}: {judged(self.met)}",
            ]
        ]

    def plain(self) -> dict[str, object]:
        return {
            "broker": [attrs.asdict(each) for each in self.results],
            "earlier": [attrs.asdict(each) for each in self.before],
            "met": self.met,
        }
