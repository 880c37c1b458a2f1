"""A table in which a key may have several values, mostly one."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Iterator
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V", bound=Hashable)


class Multi(Generic[K, V]):
    """The values of each key, each once, in the order in which they were added; the first is found in constant time.

    A single value is kept bare, which costs a fifth of a table of one.
    """

    __slots__ = ("_values",)

    def __init__(self) -> None:
        self._values: dict[K, V | OrderedDict[V, None]] = {}

    def __len__(self) -> int:
        """How many keys have a value."""
        return len(self._values)

    def __iter__(self) -> Iterator[K]:
        """All keys that have a value."""
        return iter(self._values)

    def add(self, key: K, value: V) -> bool:
        """Add a value that the key does not have. Returns whether it is its first."""
        values = self._values.setdefault(key, value)
        if values is value:
            return True
        if isinstance(values, OrderedDict):
            values[value] = None
        else:
            self._values[key] = OrderedDict(((values, None), (value, None)))
        return False

    def remove(self, key: K, value: V) -> bool:
        """Remove a value that the key has. Returns whether it was its last."""
        values = self._values[key]
        if not isinstance(values, OrderedDict):
            del self._values[key]
            return True
        del values[value]
        if len(values) == 1:
            self._values[key] = next(iter(values))
        return False

    def first(self, key: K) -> V | None:
        """The value that was added first; None if the key has none."""
        values = self._values.get(key)
        return next(iter(values)) if isinstance(values, OrderedDict) else values

    def all(self, key: K) -> tuple[V, ...]:
        """All values of the key."""
        values = self._values.get(key)
        if values is None:
            return ()
        return tuple(values) if isinstance(values, OrderedDict) else (values,)
