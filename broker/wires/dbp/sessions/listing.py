"""What info requests are answered from: the whole registry, whatever wire a service came by.

Rules:
- A list of all has one key for each name, in the order in which the names were first offered. A name that went and came
  again is at the end.
- A service with an info is listed by exactly that, nothing added. If several services of a name have one, the first
  offered counts.
- A name without an info is listed by a mapping: where its first offered service is, and who offers it, with the load.
  If several offer it, ``providers`` has the same of each of them: those of one provider and protocol together, and not
  more than `MAX_PROVIDERS`. How to authenticate is never shown.
- The broker's own services are not in the list of all. They answer by name, where no peer offers that name.
- No service named "Error" is listed or found: Hermes takes that key for a failure.
- A request for a name is answered from before a restart too: behind its live services stand those that are not
  replaced yet. The list of all has live services only.
- The answer for a name without any service is an error; it says if the name was active, and since when it is not.
- Of several names those found are listed, and one error speaks of all others together.
- A body that would be too long is an error.

What is encoded is kept until something about that name changes, so that a request for one name, or for all while
nothing changes, costs a lookup. Loads change often, and only mappings have them. So they are watched from a request
that used a mapping until no mapping is kept, at the latest for `LOADS` loads without a further such request: a
catalogue that nobody asks costs those who report loads nothing.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from itertools import islice

from twisted.internet.interfaces import IReactorTime

from broker.core.interfaces import IRegistry, IWait
from broker.core.model import BROKER, Change, Kind, Service
from broker.wires.dbp.codec.info import ERROR
from broker.wires.dbp.codec.listings import (
    MAX_BODY,
    ROOM,
    SEPARATOR,
    TOO_LONG,
    Offer,
    body,
    entry,
    harmless,
    inactive,
    mapping,
    place,
    unknown,
    unlistable,
)

DEFAULT_PROTOCOL = "tcp"
"""The protocol of DBP's own services, and of nearly all others: what is asked for from before a restart."""

MAX_PROVIDERS = 1_000
"""Offers in one mapping: more than anybody chooses from, and encoded in a few milliseconds. It tells how many more."""

GONE = 10_000
"""Names remembered that were active: as many as a farm has; at most some 10 MB, usually one."""

KEPT_SIZE = 2_048
"""Bytes of an answer that is kept: over ten times the usual."""

KEPT = 4_096
"""Answers kept of either kind: the names that a farm asks for, some times over; at most 8 MB, usually less than one."""

LOADS = 1_000
"""Loads that are listened to after a request: some milliseconds in all, and a second of a busy farm."""


class _Same:
    """The services of one name, in the order in which they were offered, but those of one source together."""

    __slots__ = ("_added", "_count", "_sources")

    def __init__(self) -> None:
        self._sources: dict[tuple[int, str], list[tuple[int, Service]]] = {}
        """With each service how many were added before it."""
        self._added = 0
        self._count = 0

    def add(self, service: Service) -> None:
        self._sources.setdefault((service.provider, service.protocol), []).append((self._added, service))
        self._added += 1
        self._count += 1

    def amend(self, service: Service) -> None:
        """The first of its source is now this one."""
        services = self._sources[service.provider, service.protocol]
        services[0] = (services[0][0], service)

    def remove(self, service: Service) -> bool:
        """Returns whether none is left."""
        source = (service.provider, service.protocol)
        services = self._sources[source]
        del services[next(n for n, (_, each) in enumerate(services) if each == service)]
        if not services:
            del self._sources[source]
        self._count -= 1
        return not self._count

    def info(self) -> str | None:
        """The info of the first offered that has one; None if none has."""
        infos = ((place, each.info) for same in self._sources.values() for place, each in same if each.info is not None)
        return min(infos, default=(0, None))[1]

    def __iter__(self) -> Iterator[Service]:
        for services in self._sources.values():
            for _, service in services:
                yield service

    def __len__(self) -> int:
        return self._count


_Services = _Same | tuple[Service, ...]


class Listing:
    """Answers info requests with what ``registry`` has. ``clock`` tells when a name went, in seconds of the epoch."""

    def __init__(self, registry: IRegistry, clock: IReactorTime) -> None:
        self._registry = registry
        self._clock = clock
        self._peers: dict[str, _Same] = {}
        self._own: dict[str, _Same] = {}
        self._gone: OrderedDict[str, float] = OrderedDict()

        self._entries: dict[str, bytes] = {}
        """Of each name in the list of all, in its order; empty where it is to be made."""
        self._to_make: dict[str, None] = {}
        """Which these are."""
        self._length = 0
        """Of all entries that are made, each with its separator: never more than `ROOM`."""
        self._all: bytes | None = None
        """The list of all, until something changes."""

        self._infos: dict[str, bytes] = {}
        self._mappings: dict[str, bytes] = {}
        """Answers for one name: those that are infos, and those that are mappings."""
        self._mapped: set[str] = set()
        """Names of which a mapping is kept, as an entry or as an answer. While there is one, loads are watched."""
        self._loads = 0
        """Loads since a request that used a mapping."""
        self._load_watch: IWait | None = None

        seen: set[tuple[str, str]] = set()
        for service in registry.services():
            key = (service.name, service.protocol)
            if key not in seen:
                seen.add(key)
                # Only these are in the order in which they were offered.
                for same in registry.find(*key):
                    self._offered(same)
        self._watch = registry.watch(self._service_changed, (Kind.OFFERED, Kind.WITHDRAWN, Kind.AMENDED))

    @property
    def gone(self) -> int:
        """The number of departed services whose last sign of life is remembered."""
        return len(self._gone)

    def all(self) -> bytes:
        """The body of the answer to a request without names."""
        if self._mapped:
            self._loads = 0
        if self._all is None:
            self._all = self._list_all()
        return self._all

    def named(self, names: Sequence[str]) -> bytes:
        """The body of the answer to a request for these names: one or more, each once."""
        if len(names) == 1:
            kept = self._infos.get(names[0])
            if kept is not None:
                return kept
            kept = self._mappings.get(names[0])
            if kept is not None:
                self._loads = 0
                return kept
        return self._answer(names)

    def has(self, name: str) -> bool:
        """Whether a request for this name is answered with a service."""
        if name == ERROR:
            return False
        return name in self._peers or name in self._own or bool(self._restored(name))

    def close(self) -> None:
        """Listen to the registry no more."""
        self._watch.cancel()
        self._stop_loads()

    # answers

    def _list_all(self) -> bytes:
        while self._to_make:
            name = next(reversed(self._to_make))
            self._make(name, self._peers[name])
            if name in self._to_make:
                return TOO_LONG
        return body(self._entries.values())

    def _answer(self, names: Sequence[str]) -> bytes:
        entries: list[bytes] = []
        errors: list[dict[str, str | float]] = []
        length = 0
        for name in names:
            made = self._entry(name)
            if made is None:
                errors.append(self._error(name))
                continue
            length += len(made) + SEPARATOR
            if length > ROOM:
                return TOO_LONG
            entries.append(made)
        if errors:
            together: dict[str, str | float] = {ERROR: "; ".join(str(error[ERROR]) for error in errors)}
            answer = body(entries, errors[0] if len(names) == 1 else together)
            return answer if len(answer) <= MAX_BODY else TOO_LONG
        answer = body(entries)
        if len(names) == 1:
            self._keep(names[0], answer)
        return answer

    def _keep(self, name: str, answer: bytes) -> None:
        if len(answer) > KEPT_SIZE or self._live(name) is None or self._restored(name):
            return
        kept = self._mappings if name in self._mapped else self._infos
        if len(kept) >= KEPT:
            kept.clear()
        kept[name] = answer

    def _entry(self, name: str) -> bytes | None:
        if name == ERROR:
            return None
        restored = self._restored(name)
        if restored:
            return self._make_with(name, restored)
        made = self._entries.get(name)
        if made:
            if name in self._mapped:
                self._loads = 0
            return made
        live = self._live(name)
        return None if live is None else self._make(name, live)

    def _error(self, name: str) -> dict[str, str | float]:
        if name == ERROR:
            return unlistable()
        last_seen = self._gone.get(name)
        return unknown(name) if last_seen is None else inactive(name, last_seen)

    def _live(self, name: str) -> _Same | None:
        return self._peers.get(name) or self._own.get(name)

    def _restored(self, name: str) -> tuple[Service, ...]:
        """The remembered services of a name that are not replaced yet."""
        known = self._registry.find(name, DEFAULT_PROTOCOL, restored=True)
        if not known or not known[-1].restored:  # they are behind the live ones
            return ()
        return tuple(service for service in known if service.restored)

    def _make_with(self, name: str, restored: tuple[Service, ...]) -> bytes:
        """The entry of live services and of those from before a restart. It is not kept: nobody tells when these go."""
        live = self._live(name)
        info = None if live is None else live.info()
        if info is None:
            info = next((service.info for service in restored if service.info is not None), None)
        return entry(name, self._mapping((*(live or ()), *restored)) if info is None else _encoded(info))

    def _make(self, name: str, services: _Same) -> bytes:
        """The entry of live services. It is kept if it is one of the list of all, and there is room."""
        info = services.info()
        if info is None:
            self._mapped.add(name)
            self._watch_loads()
        made = entry(name, self._mapping(services) if info is None else _encoded(info))
        if name in self._to_make and self._length + len(made) + SEPARATOR <= ROOM:
            del self._to_make[name]
            self._entries[name] = made
            self._length += len(made) + SEPARATOR
        return made

    def _mapping(self, services: _Services) -> bytes:
        offers = [self._offer(service) for service in islice(services, MAX_PROVIDERS)]
        return mapping(offers, len(services) - len(offers))

    def _offer(self, service: Service) -> Offer:
        provider = self._registry.provider(service.provider)
        hostport = harmless(service.hostport)
        where = place(hostport)
        return Offer(
            ip=None if where is None else where.ip,
            port=None if where is None else where.port,
            hostport=hostport,
            protocol=harmless(service.protocol),
            label=harmless(service.label) if service.label else None,
            wire=None if provider is None else provider.wire,
            provider=service.provider,
            load=None if provider is None else provider.load,
            restored=service.restored,
        )

    # changes

    def _service_changed(self, change: Change) -> None:
        service = change.subject
        assert isinstance(service, Service)
        if change.kind is Kind.OFFERED:
            self._offered(service)
        elif change.kind is Kind.WITHDRAWN:
            self._withdrawn(service)
        else:
            self._table(service)[service.name].amend(service)
            self._outdate(service.name)

    def _table(self, service: Service) -> dict[str, _Same]:
        return self._own if service.provider == BROKER else self._peers

    def _offered(self, service: Service) -> None:
        name, table = service.name, self._table(service)
        same = table.get(name)
        if same is None:
            same = table[name] = _Same()
            self._gone.pop(name, None)
            if table is self._peers and name != ERROR:
                self._entries[name] = b""
        same.add(service)
        self._outdate(name)

    def _withdrawn(self, service: Service) -> None:
        name, table = service.name, self._table(service)
        last = table[name].remove(service)
        self._outdate(name)
        if not last:
            return
        del table[name]
        if table is self._peers:
            self._entries.pop(name, None)
            self._to_make.pop(name, None)
        if name not in self._peers and name not in self._own:
            if len(self._gone) >= GONE:
                self._gone.popitem(last=False)
            self._gone[name] = self._clock.seconds()

    def _outdate(self, name: str) -> None:
        """Nothing that is kept of this name is right any more."""
        self._infos.pop(name, None)
        self._mappings.pop(name, None)
        self._mapped.discard(name)
        made = self._entries.get(name)
        if made is None:
            return
        if made:
            self._length -= len(made) + SEPARATOR
            self._entries[name] = b""
        self._to_make[name] = None
        self._all = None

    # loads

    def _watch_loads(self) -> None:
        self._loads = 0
        if self._load_watch is None:
            self._load_watch = self._registry.watch(self._load_changed, (Kind.LOAD,))

    def _load_changed(self, change: Change) -> None:
        self._loads += 1
        if self._loads >= LOADS:
            names = list(self._mapped)
        else:
            provider = self._registry.provider(change.provider)
            services = () if provider is None else provider.services
            names = [service.name for service in services if service.name in self._mapped]
        for name in names:
            self._outdate(name)
        if not self._mapped:
            self._stop_loads()

    def _stop_loads(self) -> None:
        if self._load_watch is not None:
            self._load_watch.cancel()
            self._load_watch = None


def _encoded(info: str) -> bytes:
    # Where a surrogate stands alone, that is how JSON writes it.
    return info.encode("utf-8", "backslashreplace")
