"""Names that have gone, each with its time.

Names and times are in a few pieces of memory, not in an object each: after a burst of thousands of services, these
would keep as many pages of the heap in use.
"""

from __future__ import annotations

from array import array

HASH = 8
"""Bytes of the hash of a name, which is stored for it. Of 10,000 names two have the same one once in 4 * 10^11 times,
and no peer can choose them: the hash has a secret of the process."""

BUCKETS = 64
"""Parts of the table, by the hash: a search among 10,000 names takes 2 us."""

SPARE = 1.25
"""Size of each part by that of an even distribution: so few names are forgotten too early."""


class _Bucket:
    """A part of the names, in order of their times."""

    __slots__ = ("hashes", "times")

    def __init__(self) -> None:
        self.hashes = bytearray()
        self.times = array("d")

    def place(self, wanted: bytes) -> int | None:
        found = self.hashes.find(wanted)
        while found >= 0:
            place, inside = divmod(found, HASH)
            if not inside:
                return place
            found = self.hashes.find(wanted, found + 1)
        return None

    def remove(self, place: int) -> None:
        del self.times[place]
        del self.hashes[place * HASH : (place + 1) * HASH]


class GoneNames:
    """Some ``most`` names. The oldest one of a full bucket is forgotten."""

    def __init__(self, most: int) -> None:
        self._most = int(most * SPARE / BUCKETS)
        self._buckets = [_Bucket() for _ in range(BUCKETS)]
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def get(self, name: str) -> float | None:
        """Return the time of a name; None if it is not stored."""
        bucket, wanted = self._of(name)
        place = bucket.place(wanted)
        return None if place is None else bucket.times[place]

    def add(self, name: str, time: float) -> None:
        """Store a name, which is the newest one from now on."""
        bucket, wanted = self._of(name)
        self._forget(bucket, bucket.place(wanted))
        bucket.hashes += wanted
        bucket.times.append(time)
        self._count += 1
        if len(bucket.times) > self._most:
            self._forget(bucket, 0)

    def discard(self, name: str) -> bool:
        """Forget a name. Returns True if it was stored."""
        if not self._count:
            return False  # the usual case, on the path of each offer
        bucket, wanted = self._of(name)
        return self._forget(bucket, bucket.place(wanted))

    def _forget(self, bucket: _Bucket, place: int | None) -> bool:
        if place is None:
            return False
        bucket.remove(place)
        self._count -= 1
        return True

    def _of(self, name: str) -> tuple[_Bucket, bytes]:
        number = hash(name)
        return self._buckets[number % BUCKETS], number.to_bytes(HASH, "little", signed=True)
