"""Multimaps for tables in which a key usually has one value. They serve the tables of `presence` and `reservations`."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Iterator
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V", bound=Hashable)


class MultiMap(Generic[K, V]):
    """Values by key: each value once, in insertion order; the first one is found in constant time.

    A single value is stored without a container, which takes a fifth of the memory.
    """

    __slots__ = ("_values",)

    def __init__(self) -> None:
        self._values: dict[K, V | OrderedDict[V, None]] = {}

    def __len__(self) -> int:
        """Return the number of keys."""
        return len(self._values)

    def __iter__(self) -> Iterator[K]:
        """Iterate over the keys."""
        return iter(self._values)

    def add(self, key: K, value: V) -> bool:
        """Add a value that the key does not have. Returns True if it is the key's first."""
        values = self._values.setdefault(key, value)
        if values is value:
            return True
        if isinstance(values, OrderedDict):
            values[value] = None
        else:
            self._values[key] = OrderedDict(((values, None), (value, None)))
        return False

    def remove(self, key: K, value: V) -> bool:
        """Remove a value that the key has. Returns True if it was the key's last."""
        values = self._values[key]
        if not isinstance(values, OrderedDict):
            del self._values[key]
            return True
        del values[value]
        if len(values) == 1:
            self._values[key] = next(iter(values))
        return False

    def count(self, key: K) -> int:
        """Return the number of values of the key."""
        values = self._values.get(key)
        if values is None:
            return 0
        return len(values) if isinstance(values, OrderedDict) else 1

    def first(self, key: K) -> V | None:
        """Return the value that was added first, or None."""
        values = self._values.get(key)
        return next(iter(values)) if isinstance(values, OrderedDict) else values

    def all(self, key: K) -> tuple[V, ...]:
        """Return all values of the key."""
        values = self._values.get(key)
        if values is None:
            return ()
        return tuple(values) if isinstance(values, OrderedDict) else (values,)


class CountedMultiMap(Generic[K, V]):
    """A multimap that counts: a value may be added several times, and remains until it is removed as often."""

    __slots__ = ("_values",)

    def __init__(self) -> None:
        self._values: dict[K, V | dict[V, int]] = {}

    def __iter__(self) -> Iterator[K]:
        """Iterate over the keys."""
        return iter(self._values)

    def add(self, key: K, value: V) -> None:
        """Add a value once more."""
        values = self._values.get(key)
        if values is None:
            self._values[key] = value
        elif isinstance(values, dict):
            values[value] = values.get(value, 0) + 1
        elif values == value:
            self._values[key] = {value: 2}
        else:
            self._values[key] = {values: 1, value: 1}

    def remove(self, key: K, value: V) -> None:
        """Remove one occurrence of a value that the key has."""
        values = self._values[key]
        if not isinstance(values, dict):
            del self._values[key]
            return
        values[value] -= 1
        if not values[value]:
            del values[value]
            if not values:
                del self._values[key]

    def count(self, key: K) -> int:
        """Return the number of different values of the key."""
        values = self._values.get(key)
        if values is None:
            return 0
        return len(values) if isinstance(values, dict) else 1

    def all(self, key: K) -> tuple[V, ...]:
        """Return the different values of the key, in the order in which they were added first."""
        values = self._values.get(key)
        if values is None:
            return ()
        return tuple(values) if isinstance(values, dict) else (values,)
