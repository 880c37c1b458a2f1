"""Memory budget: one account of the memory that peers make the broker hold, with named shares.

Rules:
- A *consumer* is a connection or a session. It counts in a share while it holds more than `SHORT` bytes there; the
  connection limits bound shorter pieces.
- Two limits apply to the sum of all shares: one for the consumers of each address (of a network, over IPv6), one for
  all consumers together. So no single address comes near the common limit.
- Over the limit of an address, one of its own consumers is evicted; over the common limit, one of the address that
  holds the most: consumers that have not authenticated first, then the slowest readers, then the rest. Among these it
  is the one without progress for the longest time: the oldest unfinished message, the output that is unread for the
  longest. Hostile peers hold old messages, others complete theirs soon; to close the consumer that grew would let the
  former lock the latter out.
- State that outlives its connection (`STORED`) is refused to strangers beyond a half of the limit of an address
  (`may_store`), so that a full store leaves room for the connections that empty it. State of authenticated users is
  bounded by the configuration of its kind, and not counted.
- Output that its sender may refuse or drop is admitted first (`admit`): it evicts only readers that made no progress
  for `SLOW` seconds, and is refused otherwise.
- The age of a message counts from its first `SHORT` bytes, and starts again with `hold(..., another=True)`.
- An eviction may end a session, which changes the registry and sends to others. While a message is sent, `postponing`
  is set, and the evicted are refused in `settle`, behind it. Readers are not: their connections are only cut.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping
from enum import Enum
from typing import Protocol

import attrs
from twisted.logger import Logger

from broker.access.identity import network_of
from broker.core.errors import PER_ADDRESS, Reason, Refusal, at_limit
from broker.core.interfaces import SERVICES_PART, StoredMemory
from broker.core.model import INFO_COPIES, Service

SHORT = 4_096
"""Bytes of a read of an ordinary peer: a registration or some finds. A larger read waits for the rounds, and a consumer
that holds more counts."""

SLOW = 10.0
"""Seconds without progress after which a reader is evicted for other readers, if the account is full: much longer than
the pause of a busy program, and shorter than the deadlines of listeners."""

BY_ADDRESS = 36 * 1024 * 1024
"""Bytes held for one address: two of the longest messages of ZeroMQ (16 MiB) in progress at once. The process grows by
up to a half more, since buffers that grow exceed their content, and freed memory is fragmented: 64 MiB in all."""

STORED_PART = 0.5
"""Part of the limit of an address that its stored bytes may take."""

BY_ALL = 256 * 1024 * 1024
"""Bytes held for all addresses together: the budget of a container with half a gigabyte, beside the process itself."""


class Share(Enum):
    """A named part of the account."""

    INPUT = "input"
    """Unfinished messages: JSON blocks, frames, requests with their bodies, fragments."""
    OUTPUT = "output"
    """Messages that a peer has not read, or has not acknowledged."""
    SESSIONS = "sessions"
    """State of connections and sessions themselves: TLS handshakes, standing finds, offered services."""
    STORED = "stored"
    """State that outlives its connection: descriptions of registered services, topics, queues with their messages,
    retained values, requests and replies that wait. No consumer is evicted for it; further ones are refused."""


class Consumer(Protocol):
    """A connection or a session."""

    @property
    def host(self) -> str:
        """The address of the peer, without its port."""

    @property
    def trusted(self) -> bool:
        """True once the peer has authenticated."""

    def evict(self, refusal: Refusal) -> None:
        """Refuse, close, and free the held memory. It is no longer counted at this call."""

    def abort(self) -> None:
        """Close at once, after a failure of `evict`."""


@attrs.frozen
class MemoryLimits:
    """The limits in bytes: ``address`` for the consumers of one address, ``total`` for all of them."""

    address: int = BY_ADDRESS
    total: int = BY_ALL


class _Held:
    """Consumers of a share, in the order of their last progress, with the bytes and the time of each, and their sum."""

    __slots__ = ("bytes", "entries")

    def __init__(self) -> None:
        self.bytes = 0
        self.entries: OrderedDict[Consumer, tuple[int, float]] = OrderedDict()

    def put(self, consumer: Consumer, size: int, now: float, another: bool) -> None:
        before, since = self.entries.get(consumer, (0, now))
        progress = another or size < before
        self.bytes += size - before
        self.entries[consumer] = size, now if progress else since
        if progress:
            self.entries.move_to_end(consumer)

    def remove(self, consumer: Consumer) -> int:
        size, _ = self.entries.pop(consumer)
        self.bytes -= size
        return size

    def oldest(self) -> tuple[Consumer, float]:
        """Return the consumer without progress for the longest time, and the time of its last progress."""
        consumer, (_, since) = next(iter(self.entries.items()))
        return consumer, since


class _Account:
    """The consumers of one address, by share, strangers apart from users."""

    __slots__ = ("held", "parts", "stored", "strange")

    def __init__(self) -> None:
        self.held = 0
        self.stored = 0
        """Bytes without a consumer."""
        self.strange = 0
        """Bytes of strangers."""
        self.parts: dict[tuple[Share, bool], _Held] = {}

    def victims(self) -> Iterator[tuple[Share, _Held]]:
        """Yield the parts in the order in which they give way."""

        def order(part: tuple[tuple[Share, bool], _Held]) -> tuple[bool, bool, int]:
            (share, stranger), held = part
            return stranger, not stranger and share is Share.OUTPUT, held.bytes

        for (share, _), held in sorted(self.parts.items(), key=order, reverse=True):
            yield share, held


class MemoryBudget:
    """The account. ``seconds`` returns the time, in seconds.

    Each operation takes constant time; an eviction because of the common limit compares all addresses.
    """

    log = Logger()

    def __init__(self, limits: MemoryLimits | None = None, seconds: Callable[[], float] = lambda: 0.0) -> None:
        self.limits = limits or MemoryLimits()
        self.held = 0
        """Bytes of all consumers."""
        self.released = 0
        """Bytes that consumers have ceased to hold since the start."""
        self.evicted: Counter[Share] = Counter()
        """Evictions, by the share of the evicted consumer."""
        self.refused = 0
        """Calls of `admit` that returned False."""
        self.denied = 0
        """Calls of `may_store` that returned False."""
        self.postponing = False
        """True while evicted consumers must not be refused yet."""
        self._postponed: OrderedDict[Consumer, Refusal] = OrderedDict()
        """Evicted consumers that are to be refused. They are not counted any more, whatever they hold until then."""
        self._seconds = seconds
        self._peak = 0
        self._evicting = False
        self._grown: dict[str, _Account] = {}
        """Accounts that have grown since they were compared with the limits."""
        self._shares: Counter[Share] = Counter()
        self._accounts: dict[str, _Account] = {}
        self._places: dict[Share, dict[Consumer, tuple[str, bool]]] = {share: {} for share in Share}
        """The address and the kind under which each consumer was counted: both may change."""

    def shares(self) -> Mapping[Share, int]:
        """Return the bytes of each share."""
        return {share: self._shares[share] for share in Share}

    def fallen(self) -> int:
        """Return how many bytes less are held than at the peak since the last call."""
        fallen, self._peak = self._peak - self.held, self.held
        return fallen

    def of(self, host: str) -> int:
        """Return the bytes of all consumers of an address."""
        account = self._accounts.get(network_of(host))
        return 0 if account is None else account.held

    def hold(self, consumer: Consumer, share: Share, size: int, another: bool = False) -> None:
        """Set the bytes that a consumer holds in a share. ``another`` marks progress since the last call, as a
        lower number does: another message.

        May evict any consumer, including this one.
        """
        if size <= SHORT or (self._postponed and consumer in self._postponed):
            self.drop(consumer, share)
            return
        places = self._places[share]
        host, stranger = network_of(consumer.host), not consumer.trusted
        known = places.get(consumer)
        before = 0
        if known is not None and known != (host, stranger):
            self.drop(consumer, share)
            known = None
        account = self._accounts.get(host)
        if account is None:
            account = self._accounts[host] = _Account()
        part = account.parts.get((share, stranger))
        if part is None:
            part = account.parts[share, stranger] = _Held()
        if known is None:
            places[consumer] = host, stranger
        else:
            before = part.entries[consumer][0]
        part.put(consumer, size, self._seconds(), another)
        grown = size - before
        self._add(account, share, stranger, grown)
        if grown <= 0:
            return
        self._grown[host] = account
        # What an evicted consumer causes to be held, as its refusal, is left to the loop of the first eviction.
        while self._grown and not self._evicting:
            _, account = self._grown.popitem()
            limits = self.limits
            while account.held > limits.address and self._evict(account, "for this address"):
                pass
            while self.held > limits.total and self._evict(self._largest(), "for all peers together"):
                pass

    def drop(self, consumer: Consumer, share: Share) -> None:
        """Remove a consumer from a share. Idempotent."""
        place = self._places[share].pop(consumer, None)
        if place is None:
            return
        host, stranger = place
        account = self._accounts[host]
        part = account.parts[share, stranger]
        self._add(account, share, stranger, -part.remove(consumer))
        if not part.entries:
            del account.parts[share, stranger]
            if not account.held:
                del self._accounts[host]

    def may_store(self, payer: str, size: int, part: float = STORED_PART) -> bool:
        """Return True if ``size`` more bytes may be stored for an address, and all that is stored for it are at most
        that ``part`` of its limit. Always True for the empty payer."""
        if not payer:
            return True
        account = self._accounts.get(network_of(payer))
        stored = 0 if account is None else account.stored
        if stored + size <= self.limits.address * part and self.fits(payer, size):
            return True
        self.denied += 1
        return False

    def admit_stored(self, payer: str, size: int, part: float = STORED_PART) -> None:
        """Raise `Refusal` LIMIT unless `may_store`."""
        if not self.may_store(payer, size, part):
            raise at_limit("too much memory is stored for this address", PER_ADDRESS)

    def store(self, payer: str, size: int) -> None:
        """Add bytes to those stored for an address, or subtract them. Ask `may_store` before. No-op for the empty
        payer."""
        if not payer:
            return
        network = network_of(payer)
        account = self._accounts.get(network)
        if account is None:
            account = self._accounts[network] = _Account()
        account.stored += size
        self._add(account, Share.STORED, False, size)
        if not account.held:
            del self._accounts[network]

    def forget(self, consumer: Consumer) -> None:
        """Remove a consumer from all shares. Idempotent."""
        self._postponed.pop(consumer, None)
        for share, places in self._places.items():
            if consumer in places:  # it is in none as a rule, and this is on the path of each connection's end
                self.drop(consumer, share)

    def fits(self, host: str, size: int) -> bool:
        """Return True if ``size`` more bytes for that address are within both limits."""
        return self.of(host) + size <= self.limits.address and self.held + size <= self.limits.total

    def admit(self, host: str, size: int) -> bool:
        """Return True if ``size`` more bytes of output for that address may be held, after the eviction of readers that
        made no progress for `SLOW` seconds."""
        while not self.fits(host, size):
            over_address = self.of(host) + size > self.limits.address
            account = (
                self._accounts.get(network_of(host)) if over_address else self._largest() if self._accounts else None
            )
            if account is None or not self._evict(account, "and is not read", self._seconds() - SLOW, Share.OUTPUT):
                self.refused += 1
                return False
        return True

    @property
    def postponed(self) -> bool:
        """True if `settle` has something to do."""
        return bool(self._postponed)

    def settle(self) -> None:
        """Refuse the consumers that were evicted while `postponing` was set."""
        while self._postponed:
            self._refuse(*self._postponed.popitem(last=False))

    # inside

    def _add(self, account: _Account, share: Share, stranger: bool, size: int) -> None:
        account.held += size
        if stranger:
            account.strange += size
        self._shares[share] += size
        self.held += size
        if size < 0:
            self.released -= size
        elif self.held > self._peak:
            self._peak = self.held

    def _largest(self) -> _Account:
        """Return the account that gives way: the one with the most bytes of strangers, or else with the most bytes."""
        return max(self._accounts.values(), key=lambda account: (account.strange, account.held - account.stored))

    def _evict(self, account: _Account, why: str, before: float | None = None, only: Share | None = None) -> bool:
        """Evict the first consumer of an account, or of one share, that gives way.

        With ``before`` it must not have made any progress since that time. Returns False if there is none.
        """
        for share, part in account.victims():
            if only is not None and share is not only:
                continue
            consumer, since = part.oldest()
            if before is None or since <= before:
                break
        else:
            return False
        self.forget(consumer)
        self.evicted[share] += 1
        reason = Reason.NOT_READING if share is Share.OUTPUT else Reason.TOO_LARGE
        what = {Share.INPUT: "unfinished input", Share.OUTPUT: "output", Share.SESSIONS: "memory"}[share]
        refusal = Refusal(reason, f"too much {what} is held {why}: closing")
        if self.postponing and share is not Share.OUTPUT:
            self._postponed[consumer] = refusal
        else:
            self._refuse(consumer, refusal)
        return True

    def _refuse(self, consumer: Consumer, refusal: Refusal) -> None:
        before, self._evicting = self._evicting, True
        try:
            consumer.evict(refusal)
        except Exception:  # must not affect the connection that is being served
            self.log.failure("the eviction of a consumer of memory failed")
            consumer.abort()
        finally:
            self._evicting = before


# Memory of registered services, as far as strangers pay for it.
#
# A provider counts while it takes more than `SHORT` bytes, as a connection does: the limits of connections and of
# instances bound those with one short service. Services may take a larger part of the limit of an address than
# messages.

SERVICE_BYTES = 3_800
"""Bytes that a service takes, besides its texts: in the registry, in its record, in the views of the wires, and in the
table of its wire. Measured with the overhead of the allocator."""

TEXT_COPIES = 2
"""Copies of the texts of a service: as they are, and encoded."""


def service_bytes(service: Service) -> int:
    """Return the bytes that a service takes."""
    texts = len(service.name) + len(service.hostport) + len(service.label or "") + len(service.zone or "")
    if (auth := service.auth) is not None:
        texts += len(auth.mode) + len(auth.code or "") + len(auth.id or "")
    if service.tags or service.meta:
        texts += sum(map(len, (*(service.tags or ()), *(service.meta or {}), *(service.meta or {}).values())))
    return SERVICE_BYTES + TEXT_COPIES * texts + INFO_COPIES * len(service.info or "")


class ServicePayer:
    """The services of one provider, which ``payer`` pays for."""

    __slots__ = ("_held", "_memory", "_payer")

    def __init__(self, memory: StoredMemory, payer: str) -> None:
        self._memory = memory
        self._payer = payer
        self._held = 0

    def take(self, service: Service) -> None:
        """Add a service. Raises `Refusal` LIMIT if it does not fit."""
        self._change(service_bytes(service))

    def give(self, services: Iterable[Service]) -> None:
        """Remove services."""
        self._change(-sum(map(service_bytes, services)))

    def check(self, gone: Iterable[Service], new: Service) -> None:
        """Raise the `Refusal` of `take` for a service after others are removed. Nothing changes."""
        self._admit(self._held + service_bytes(new) - sum(map(service_bytes, gone)))

    def exchange(self, old: Service, new: Service) -> None:
        """Replace a service. Raises `Refusal` LIMIT if the new one does not fit."""
        self._change(service_bytes(new) - service_bytes(old))

    def end(self) -> None:
        """Remove all services. Idempotent."""
        self._change(-self._held)

    def _change(self, size: int) -> None:
        held = self._held + size
        more = self._admit(held)
        if more:
            self._memory.store(self._payer, more)
        self._held = held

    def _admit(self, held: int) -> int:
        """Return the bytes that are counted beside those of now if the services take so many. Raises `Refusal`."""
        more = _counted(held) - _counted(self._held)
        if more > 0:
            self._memory.admit_stored(self._payer, more, SERVICES_PART)
        return more


def _counted(size: int) -> int:
    return size if size > SHORT else 0
