"""Memory of a member across restarts, in the database of the state directory.

Rules:
- It belongs to one farm and one name: a broker with another name, or in another farm, begins without any.
- Writes happen in the thread of the disk, one at a time; the newest memory wins. A failed write is tried again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

import attrs
import msgspec
from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IDelayedCall, IReactorTime
from twisted.logger import Logger
from twisted.python.failure import Failure

from broker.cluster.settings import Memory
from broker.core.database import StateError
from broker.core.disk_errors import DiskErrors


class Store(Protocol):
    """The part of `broker.core.store.Store` that the memory uses. It blocks on the disk."""

    def remember_cluster(self, identity: str, memory: str) -> None:
        """Store the memory of a membership."""


class StoredMemory:
    """`ClusterMemory` in ``store``. ``known`` is the one of its snapshot; ``in_thread`` runs a function in the thread
    of the disk, in the order of the calls."""

    log = Logger()

    def __init__(
        self,
        store: Store,
        known: Mapping[str, str],
        farm: str,
        name: str,
        clock: IReactorTime,
        in_thread: Callable[..., Deferred[Any]],
    ) -> None:
        self._store = store
        self._identity = f"{farm}/{name}"
        self._clock = clock
        self._in_thread = in_thread
        self._memory = _decoded(known.get(self._identity, ""))
        self._writing = False
        self._changed = False
        self._waiting: list[Deferred[None]] = []
        """Fire when the newest memory is written, or could not be."""
        self._timer: IDelayedCall | None = None
        self._stopped = False
        self._errors = DiskErrors(
            self.log,
            clock,
            StateError,
            "the memory of the cluster could not be stored: {why}. It is tried again, every {most:g} seconds at the "
            "latest; if the broker is killed before that succeeds, its entries in etcd go before it is back",
            "the memory of the cluster is being stored again, after {failures} failures",
        )

    @property
    def trouble(self) -> str:
        """Reason of the last failed write; empty while writes succeed."""
        return self._errors.why

    def load(self) -> Memory:
        return self._memory

    def save(self, memory: Memory) -> Deferred[None]:
        self._memory = memory
        self._changed = True
        done: Deferred[None] = Deferred()
        self._waiting.append(done)
        self._write()
        return done

    def stop(self) -> Deferred[None]:
        """Write what is not written yet. Fires when that is done, or has failed."""
        self._stopped = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        done: Deferred[None] = Deferred()
        if self._changed or self._writing:
            self._waiting.append(done)
            self._write()
        else:
            done.callback(None)
        return done

    # internal

    def _write(self) -> None:
        if self._writing or not self._changed or self._timer is not None:
            return
        self._writing, self._changed = True, False
        waiting, self._waiting = self._waiting, []

        def written(_: object) -> None:
            self._errors.over()

        def failed(failure: Failure) -> None:
            wait = self._errors.add(failure)
            if not self._stopped:
                self._changed = True
                self._timer = self._clock.callLater(wait, self._again)

        def ended(_: object) -> None:
            self._writing = False
            for each in waiting:
                each.callback(None)
            if self._timer is not None or not self._changed:
                # Nothing is to be written now: a disk that fails is not waited for, and a stop that came during this
                # write has all that it waits for.
                over, self._waiting = self._waiting, []
                for each in over:
                    each.callback(None)
            self._write()

        text = msgspec.json.encode(attrs.asdict(self._memory)).decode()
        writing = self._in_thread(self._store.remember_cluster, self._identity, text)
        writing.addCallbacks(written, failed).addBoth(ended)

    def _again(self) -> None:
        self._timer = None
        self._write()


def _decoded(text: str) -> Memory:
    """Return the memory in a text, an empty one if there is none that can be used."""
    try:
        return msgspec.json.decode(text, type=Memory) if text else Memory()
    except msgspec.DecodeError:
        return Memory()
