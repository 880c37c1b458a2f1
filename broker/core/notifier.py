"""Notifier: delivers each change to its listeners, one after the other, in the order of the changes.

A listener may change the registry during a notification. The notifications of that change are queued behind all pending
ones, so every listener receives changes in order. A cancelled listener receives nothing more. An exception in a
listener is a defect of the broker: it is logged, and the others are still notified.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any, Protocol

from twisted.logger import Logger


class Listener(Protocol):
    """Receiver of notifications."""

    def hear(self, news: Any) -> None:
        """Process one notification. No-op once the listener is cancelled."""


class Notifier:
    """Queue of pending notifications."""

    log = Logger()

    def __init__(self) -> None:
        self._queue: deque[tuple[Sequence[Listener], Any]] = deque()
        self._busy = False

    def add(self, listener: Listener, news: object) -> None:
        """Queue a notification for one listener."""
        self._queue.append(((listener,), news))

    def add_all(self, listeners: Sequence[Listener], news: object) -> None:
        """Queue a notification for several listeners, in their order."""
        self._queue.append((listeners, news))

    def deliver(self) -> None:
        """Deliver all pending notifications. A nested call from a listener returns at once: the outer call
        continues."""
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
                    # Log the type only: the notification itself may contain a password.
                    self.log.failure("a listener of the registry failed on a {news}", news=type(news).__name__)
        self._busy = False
