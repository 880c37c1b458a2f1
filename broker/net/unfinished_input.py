"""Memory limit for unfinished messages of one listener, with eviction of the oldest.

Rules:
- A connection counts while it holds more than `SHORT` bytes of an incomplete message. The connection limit bounds
  shorter pieces.
- Over a limit, the connection with the oldest unfinished message is closed: among those of the address for
  `UNFINISHED_BY_ADDRESS`, among all for `UNFINISHED`. Hostile peers hold old messages, others complete theirs soon;
  closing the connection that grew would let the former lock the latter out.
- The age of a message counts from its first `SHORT` bytes, and starts again after a completed message.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Protocol

from twisted.logger import Logger

from broker.access.identity import network_of
from broker.core.errors import Reason, Refusal

SHORT = 4_096
"""Bytes of a read of an ordinary peer: a registration or some finds. A larger read waits for the rounds, and a
connection that holds more of an unfinished message is accounted for."""

UNFINISHED = 160 * 1024 * 1024
"""Bytes of unfinished messages of all connections of a listener; ordinary connections hold none. The process grows by
more: growing buffers exceed their content, and the allocator keeps freed memory. With 256 MiB by this count, 330 to 400
were resident; 160 keep the growth of the process at 256."""

UNFINISHED_BY_ADDRESS = 64 * 1024 * 1024
"""The same for one address: enough for 64 of the largest lines at once, and no single address can reach the common
limit."""

_ADDRESS = Refusal(Reason.TOO_LARGE, "too much unfinished input is held for this address: closing")
_ALL = Refusal(Reason.TOO_LARGE, "too much unfinished input is held for all peers together: closing")


class Holder(Protocol):
    """A connection with held input."""

    @property
    def host(self) -> str:
        """The address of the peer, without its port."""

    def evict(self, refusal: Refusal) -> None:
        """Refuse, close, and free held input. The holder is not counted any more at this call."""

    def abort(self) -> None:
        """Close at once, after a failure of `evict`."""


class _Queue:
    """Holders in the order of their messages' ages, with the bytes of each and their sum."""

    __slots__ = ("held", "sizes")

    def __init__(self) -> None:
        self.held = 0
        self.sizes: OrderedDict[Holder, int] = OrderedDict()

    def put(self, holder: Holder, size: int, another: bool) -> None:
        """Set the bytes of a holder; ``another`` marks a new message."""
        self.held += size - self.sizes.get(holder, 0)
        self.sizes[holder] = size
        if another:
            self.sizes.move_to_end(holder)

    def remove(self, holder: Holder) -> None:
        """Remove a holder."""
        self.held -= self.sizes.pop(holder)

    def first(self) -> Holder:
        """Return the holder of the oldest message."""
        return next(iter(self.sizes))


class UnfinishedInput:
    """The unfinished messages of one listener. Each operation and each eviction takes constant time."""

    log = Logger()

    def __init__(self) -> None:
        self._all = _Queue()
        self._addresses: dict[str, _Queue] = {}

    @property
    def held(self) -> int:
        """Bytes held by all counted connections."""
        return self._all.held

    def hold(self, holder: Holder, size: int, another: bool = False) -> None:
        """Set the bytes that ``holder`` holds; ``another`` marks a new message since the last call.

        May call `Holder.evict` of any holder, including this one.
        """
        if size <= SHORT:
            self.drop(holder)
            return
        grown = another or size > self._all.sizes.get(holder, 0)
        network = network_of(holder.host)
        address = self._addresses.get(network)
        if address is None:
            address = self._addresses[network] = _Queue()
        address.put(holder, size, another)
        self._all.put(holder, size, another)
        if grown:
            while address.held > UNFINISHED_BY_ADDRESS:
                self._evict(address, _ADDRESS)
            while self._all.held > UNFINISHED:
                self._evict(self._all, _ALL)

    def drop(self, holder: Holder) -> None:
        """Remove a holder from the account. Idempotent."""
        if holder in self._all.sizes:
            self._all.remove(holder)
            network = network_of(holder.host)
            address = self._addresses[network]
            address.remove(holder)
            if not address.sizes:
                del self._addresses[network]

    def _evict(self, queue: _Queue, refusal: Refusal) -> None:
        holder = queue.first()
        self.drop(holder)
        try:
            holder.evict(refusal)
        except Exception:  # must not affect the connection that is being served
            self.log.failure("the eviction of unfinished input failed")
            holder.abort()
