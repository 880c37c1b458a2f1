"""Last values of topics: the newest message of a topic, for subscribers that come later.

Rules:
- A message whose publisher *retains* it (`PublishedHeaders.retain`) becomes the last value of its topic. One with an
  empty body removes it.
- With `LastValues.every`, each other message becomes the last value as well (a last value cache). Without it no later
  message would replace these, so they end with it.
- A retained value is evicted for no other: no client would notice the loss. A value that was kept without a request of
  its publisher may be: the one that was published first goes. A message that finds no room all the same removes the
  former value, since an outdated one is worse than none.
- Topics of the broker itself have no last value.

`broker.core.recorder.ValueRecorder` keeps them in the store, if the configuration says so.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence

import attrs

from broker.core.interfaces import StoredMemory
from broker.core.model import PIECE_BYTES, LastValue, PublishedHeaders


@attrs.frozen
class LastValuesBounds:
    """Bounds of the last values of all namespaces together."""

    values: int = 10_000
    """Topics of which the last value is kept: a few for each of a thousand servers."""

    bytes: int = 64 * 1024 * 1024
    """Bytes of all those values: 6 KiB each, where last values are a line of JSON."""


Key = tuple[str, bytes]
"""Names of a namespace and of a topic."""


VALUE_BYTES = 1_000
"""Bytes that a value takes beside its contents."""


def size_of(topic: bytes, headers: PublishedHeaders, body: int, pieces: int = 1) -> int:
    """Return the bytes that a message takes whose body has that length, in so many pieces."""
    return VALUE_BYTES + len(topic) + headers.size + PIECE_BYTES * pieces + body


class LastValues:
    """The last values of all namespaces. ``every`` keeps that of each topic, also without a request of publishers."""

    def __init__(self, memory: StoredMemory, bounds: LastValuesBounds, now: Callable[[], float] = time.time) -> None:
        self._every = False
        self._memory = memory
        self._bounds = bounds
        self._now = now
        self._values: dict[Key, LastValue] = {}
        self._unasked: dict[Key, int] = {}
        """Sizes of the values that no publisher requested, in the order of their publication."""
        self._unasked_bytes = 0
        self.bytes = 0
        self.evicted = 0
        """Values that were removed for others."""
        self._changed: Callable[[Key, LastValue | None], None] | None = None

    def __len__(self) -> int:
        return len(self._values)

    @property
    def every(self) -> bool:
        """True while the last value of each topic is kept."""
        return self._every

    @every.setter
    def every(self, every: bool) -> None:
        self._every = every
        if not every:
            for key in list(self._unasked):
                self.drop(key)

    def get(self, key: Key) -> LastValue | None:
        """Return the last value of a topic, or None."""
        return self._values.get(key)

    def fits(self, key: Key, size: int, payer: str) -> bool:
        """Return True if a value of ``size`` bytes finds room, in place of the former one and of those that nobody
        requested."""
        old = self._values.get(key)
        grown = size - old.size if old is not None and old.payer == payer else size
        if grown > 0 and not self._memory.may_store(payer, grown):
            return False
        values, total = len(self._values) - len(self._unasked), self.bytes - self._unasked_bytes
        if old is not None and old.retained:
            values, total = values - 1, total - old.size
        return values < self._bounds.values and total + size <= self._bounds.bytes

    def restore(self, known: Mapping[Key, LastValue], changed: Callable[[Key, LastValue | None], None]) -> None:
        """Add the values of the time before a restart that find room, without `every` only those that were retained,
        and call ``changed`` with each change from then on: None for a value that was removed."""
        self._changed = changed
        for key, value in sorted(known.items(), key=lambda item: item[1].stamp):
            if (value.retained or self._every) and self.fits(key, value.size, value.payer):
                self._add(key, value)
            else:
                changed(key, None)

    def publish(
        self, key: Key, headers: Sequence[bytes], body: Sequence[bytes], payer: str = "", granted: bool = False
    ) -> None:
        """Keep a published message. It counts for ``payer``, unless its headers have another one. ``granted``: it was
        found to fit."""
        retained = isinstance(headers, PublishedHeaders) and headers.retain
        value = tuple(map(bytes, body))
        length = sum(map(len, value))
        self.drop(key)
        if retained and not length:
            return
        if not isinstance(headers, PublishedHeaders):
            # Frames may be views of a buffer of input.
            headers = PublishedHeaders(map(bytes, headers))
        payer, size = headers.payer or payer, size_of(key[1], headers, length, len(value))
        if not granted and not self.fits(key, size, payer):
            self.evicted += 1
            return
        last = LastValue(headers, value, self._now(), payer, retained, size)
        self._add(key, last)
        if self._changed is not None:
            self._changed(key, last)

    def _add(self, key: Key, value: LastValue) -> None:
        """Add a value that `fits`, in place of those that nobody requested."""
        bounds = self._bounds
        while self._unasked and (len(self._values) >= bounds.values or self.bytes + value.size > bounds.bytes):
            self.drop(next(iter(self._unasked)))
            self.evicted += 1
        self._values[key] = value
        if not value.retained:
            self._unasked[key] = value.size
            self._unasked_bytes += value.size
        self.bytes += value.size
        self._memory.store(value.payer, value.size)

    def drop(self, key: Key) -> None:
        """Remove the value of a topic. No-op if it has none."""
        old = self._values.pop(key, None)
        if old is not None:
            self._unasked_bytes -= self._unasked.pop(key, 0)
            self.bytes -= old.size
            self._memory.store(old.payer, -old.size)
            if self._changed is not None:
                self._changed(key, None)
