"""The operators' view of the daemon's listeners: the address of each, and the reason why one is not open."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from twisted.internet.interfaces import IReactorTime

from broker.core.model import Listening


def views(states: Callable[[str], Sequence[Listening]], clock: IReactorTime) -> dict[str, Callable[[str], object]]:
    """The console's commands, by name. Each is given a pattern of names."""
    return {"broker listeners": lambda pattern: [_listener(each, clock.seconds()) for each in states(pattern)]}


def _listener(listening: Listening, now: float) -> dict[str, object]:
    """The listener ``listening``, with the seconds for which it has been in its state."""
    about: dict[str, object] = {
        "name": listening.name,
        "where": listening.where,
        "ready": listening.ready,
        "seconds": round(now - listening.since, 1),
    }
    if listening.reason is not None:
        about["reason"] = listening.reason
    return about
