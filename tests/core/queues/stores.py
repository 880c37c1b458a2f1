"""The stores of queues for tests that hold for both: SQLite in a directory, and a schema of a real PostgreSQL."""

from __future__ import annotations

from typing import Any, Protocol

import attrs

from broker.core.queues.queue_interfaces import IQueueStore, ISharedQueueStore, RestoredMessage
from broker.core.queues.sqlite_store import QueueStore
from tests.cluster.real_postgres import PASSWORD


class Stores(Protocol):
    """A place of messages, and the stores over it. ``place`` opens it in another process (`opened`)."""

    place: str

    def store(self) -> IQueueStore:
        """Return a new store that may write to the queues "orders" of "/" and of "other"."""

    def messages(self, now: float) -> list[RestoredMessage]:
        """Return all messages as the next run reads them, by order, without the numbers of their queues."""


@attrs.define
class OnDisk:
    """SQLite in a directory."""

    place: str

    def store(self) -> IQueueStore:
        store = QueueStore(self.place)
        store.open(0.0)
        return store  # type: ignore[return-value]

    def messages(self, now: float) -> list[RestoredMessage]:
        store = QueueStore(self.place)
        rows = store.open(now)
        store.close()
        return [attrs.evolve(row, number=0) for row in rows]


@attrs.define
class InPostgres:
    """A schema of a PostgreSQL database, whose URL is ``place``."""

    place: str
    queues: tuple[tuple[str, str], ...]

    def store(self) -> IQueueStore:
        store: IQueueStore = shared(self.place, 1_000_000.0)
        for queue in self.queues:
            store.take(*queue, "test")  # type: ignore[attr-defined]
        return store

    def messages(self, now: float) -> list[RestoredMessage]:
        store = shared(self.place, now)
        rows = [row for queue in store.names() for row in taken(store, *queue)]
        store.close()
        return sorted(rows, key=lambda row: row.order)


def shared(url: str, now: float | None = None) -> Any:
    """Return a store in PostgreSQL; ``now`` is its clock."""
    from broker.core.queues.postgres_store import PostgresStore

    return PostgresStore(url, PASSWORD) if now is None else PostgresStore(url, PASSWORD, lambda: now)


def taken(store: ISharedQueueStore, space: str, name: str) -> list[RestoredMessage]:
    """Take a queue, and return all of its messages."""
    store.take(space, name, "test")
    rows: list[RestoredMessage] = []
    piece = store.read(space, name, None)
    while piece.last is not None:
        rows += piece.messages
        piece = store.read(space, name, piece.last)
    return rows


def opened(place: str, now: float) -> tuple[Any, list[RestoredMessage]]:
    """Open a store at a place, for the queue "q" of "/". Returns it with its messages."""
    if place.startswith("postgresql:"):
        store = shared(place)
        return store, taken(store, "/", "q")
    store = QueueStore(place)
    return store, store.open(now)
