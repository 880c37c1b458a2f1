"""Input that is no whole message yet: the bounds on it for one listener, and the connection that is closed beyond them.

Rules:
- A connection counts while it holds more than `SHORT` bytes of a message that is not complete. Shorter pieces are
  bounded by the number of connections.
- Over a bound, the connection is closed whose message began first: among those of the address for
  `UNFINISHED_BY_ADDRESS`, among all for `UNFINISHED`. Hostile peers hold old messages, others complete theirs soon; to
  close the one that grew would let the former lock the latter out.
- A message begins, for this, when it has more than `SHORT` bytes, and again after one that was completed.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Protocol

from twisted.logger import Logger

from broker.core.errors import Reason, Refusal

SHORT = 4_096
"""Bytes of a read that an ordinary peer sends: a registration or some finds. A larger read waits for the rounds, and
a connection that holds more of an unfinished message is accounted for."""

UNFINISHED = 160 * 1024 * 1024
"""Bytes of unfinished messages that a listener's connections may hold together; ordinary ones hold none. The process
grows by more: buffers that grow are longer than their content, and the allocator keeps what it was given back. Of 256
MiB by this count 330 to 400 were resident, so that 160 keep the process at 256 more."""

UNFINISHED_BY_ADDRESS = 64 * 1024 * 1024
"""The same for one address: enough for 64 of the largest lines at once, and no address alone can reach the bound of
all."""

_ADDRESS = Refusal(Reason.TOO_LARGE, "too much unfinished input is held for this address: closing")
_ALL = Refusal(Reason.TOO_LARGE, "too much unfinished input is held for all peers together: closing")


class Holder(Protocol):
    """A connection that holds input."""

    @property
    def host(self) -> str:
        """The address of the peer, without its port."""

    def evict(self, refusal: Refusal) -> None:
        """Refuse and close, and free held input. It is not counted any more when this is called."""

    def abort(self) -> None:
        """Close at once, after `evict` failed."""


class _Queue:
    """Holders in the order in which their messages began, with the bytes of each and their sum."""

    __slots__ = ("held", "sizes")

    def __init__(self) -> None:
        self.held = 0
        self.sizes: OrderedDict[Holder, int] = OrderedDict()

    def put(self, holder: Holder, size: int, another: bool) -> None:
        """``size`` bytes are held by ``holder``, of ``another`` message than before or of the same."""
        self.held += size - self.sizes.get(holder, 0)
        self.sizes[holder] = size
        if another:
            self.sizes.move_to_end(holder)

    def remove(self, holder: Holder) -> None:
        """Nothing is held by ``holder``."""
        self.held -= self.sizes.pop(holder)

    def first(self) -> Holder:
        """The holder whose message began first."""
        return next(iter(self.sizes))


class UnfinishedInput:
    """The unfinished messages of one listener. Each operation takes constant time, and so does each eviction."""

    log = Logger()

    def __init__(self) -> None:
        self._all = _Queue()
        self._addresses: dict[str, _Queue] = {}

    @property
    def held(self) -> int:
        """Bytes that are held by all connections that count."""
        return self._all.held

    def hold(self, holder: Holder, size: int, another: bool = False) -> None:
        """``size`` bytes are held by ``holder`` now, of ``another`` message than at the last call or of the same.

        May call `Holder.evict` of any holder, also of this one.
        """
        if size <= SHORT:
            self.drop(holder)
            return
        grown = another or size > self._all.sizes.get(holder, 0)
        address = self._addresses.get(holder.host)
        if address is None:
            address = self._addresses[holder.host] = _Queue()
        address.put(holder, size, another)
        self._all.put(holder, size, another)
        if grown:
            while address.held > UNFINISHED_BY_ADDRESS:
                self._evict(address, _ADDRESS)
            while self._all.held > UNFINISHED:
                self._evict(self._all, _ALL)

    def drop(self, holder: Holder) -> None:
        """Nothing that counts is held by ``holder`` any more. May be called at any time."""
        if holder in self._all.sizes:
            self._all.remove(holder)
            address = self._addresses[holder.host]
            address.remove(holder)
            if not address.sizes:
                del self._addresses[holder.host]

    def _evict(self, queue: _Queue, refusal: Refusal) -> None:
        holder = queue.first()
        self.drop(holder)
        try:
            holder.evict(refusal)
        except Exception:  # another connection is being served, which this must not cost anything
            self.log.failure("the eviction of unfinished input failed")
            holder.abort()
