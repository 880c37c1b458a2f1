"""Waiting for events while the reactor turns."""

from __future__ import annotations

from collections.abc import Callable, Sized
from typing import Any

from twisted.internet import reactor as _reactor
from twisted.internet.task import deferLater

from tests.patience import PATIENCE

reactor: Any = _reactor

LOOK_EVERY = 0.001
"""Seconds between two looks at whether the event came."""


async def turn() -> None:
    """Let the reactor turn once."""
    await deferLater(reactor, 0)


async def until(condition: Callable[[], object], patience: float = PATIENCE) -> None:
    """Let the reactor turn until the condition holds."""
    end = reactor.seconds() + patience
    while not condition():
        if reactor.seconds() > end:
            raise AssertionError("it did not come")
        await deferLater(reactor, LOOK_EVERY)


def there_are(count: int, things: Sized) -> Callable[[], bool]:
    """The condition that there are so many things, or more."""
    return lambda: len(things) >= count
