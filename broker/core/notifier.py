"""Notifier: delivers each change to its listeners, one after the other, in the order of the changes.

A listener may change the registry again during a notification. The notifications of that change then come after all
those that are still queued, so that every listener gets changes in their order. A listener that ended meanwhile gets
nothing. A listener that fails is a defect of the broker: it is logged, and the others are still notified.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any, Protocol

from twisted.logger import Logger


class Listener(Protocol):
    """One listener."""

    def hear(self, news: Any) -> None:
        """Take the news, or nothing once ended."""


class Telling:
    """Queue of notifications that are still to be delivered."""

    log = Logger()

    def __init__(self) -> None:
        self._queue: deque[tuple[Sequence[Listener], Any]] = deque()
        self._busy = False

    def add(self, listener: Listener, news: object) -> None:
        """This is to be told, after all before it."""
        self._queue.append(((listener,), news))

    def add_all(self, listeners: Sequence[Listener], news: object) -> None:
        """This is to be told to these listeners, in their order, after all before it."""
        self._queue.append((listeners, news))

    def tell(self) -> None:
        """Tell all; in a listener, leave that to the call that is telling it."""
        queue = self._queue
        if self._busy or not queue:
            return
        self._busy = True
        while queue:
            listeners, news = queue.popleft()
            for listener in listeners:
                try:
                    listener.hear(news)
                except Exception:
                    # Not the news itself, which may hold a password.
                    self.log.failure("a listener of the registry failed on a {news}", news=type(news).__name__)
        self._busy = False
