"""Answers to info requests: a cached view of the whole registry, with the services of every wire.

Rules:
- The list of all has one key for each name, in the order in which the names were first offered. A name that was
  withdrawn and offered again is at the end.
- A service with an info is listed by exactly that. If several services of a name have one, the first offered counts.
- A name without an info is listed by a mapping: address and provider of its first offered service, with the load. If
  several providers offer it, ``providers`` has the same for each of them: those of one provider and protocol together,
  and `MAX_PROVIDERS` at most. Credentials are never shown.
- The broker's own services are not in the list of all. They are found by name, unless a peer offers that name.
- No service named "Error" is listed or found: Hermes takes that key for a failure.
- The answer for a name contains restored services, after the live ones, until they are replaced. The list of all has
  live services only.
- The answer for a name without any service is an error. It has the time of the end if the name was active before.
- Services with a failing health check come after the others, or are left out, by the policy of their check. A name
  whose services are all left out is in no list, and the answer for it is an error.
- The answer for several names lists those found, with one error for all others together.
- A body that would be too long is replaced by an error.

Caching: encoded answers are stored until a service of the name changes, so that a request for one name, or for all
without a change, costs a lookup. Loads change often, and only mappings contain them. So loads are watched from a
request that used a mapping until no mapping is cached, or for `LOADS` loads without a further such request:
without requests, a report of a load costs nothing here.

See docs/protocols/dbp.md, "Requests" and "Other wires". `broker.wires.dbp.codec.listings` has the encoding.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import islice

import msgspec
from twisted.internet.interfaces import IReactorTime

from broker.access.rights import EVERY_ENTRY, RegistryReading
from broker.core.gone_names import GoneNames
from broker.core.interfaces import IRegistry, ITopics, IWait
from broker.core.model import BROKER, Change, Kind, Service
from broker.wall_clock import wall
from broker.wires.common.registry_topics import TopicRights
from broker.wires.dbp.codec.listings import (
    ERROR,
    LVC,
    MAX_BODY,
    ROOM,
    SEPARATOR,
    TOO_LONG,
    ListedOffer,
    body,
    entry,
    harmless,
    inactive,
    listing,
    mapping,
    place,
    unknown,
    unlistable,
)

DEFAULT_PROTOCOL = "tcp"
"""Protocol of DBP's own services, and of nearly all others: the one for which restored services are found."""

MAX_PROVIDERS = 1_000
"""Offers in one mapping: more than a client chooses from, encoded in a few milliseconds. ``omitted`` counts the others.
"""

GONE = 10_000
"""Departed names that are stored: as many as a farm has. They take 16 bytes each."""

KEPT_SIZE = 2_048
"""Bytes of an answer that is cached: over ten times the usual size."""

KEPT = 4_096
"""Cached answers of either kind: several times the names that a farm requests. They take 8 MB at most."""

LOADS = 1_000
"""Loads that are processed after a request: some milliseconds in all, and a second of a busy farm."""


class _NamedServices:
    """The services of one name, in the order in which they were offered, but grouped by provider and protocol."""

    __slots__ = ("_added", "_count", "_sources")

    def __init__(self) -> None:
        self._sources: dict[tuple[int, str], list[tuple[int, Service]]] = {}
        """By provider and protocol. Each service has the number of services that were added before it."""
        self._added = 0
        self._count = 0

    def add(self, service: Service) -> None:
        self._sources.setdefault((service.provider, service.protocol), []).append((self._added, service))
        self._added += 1
        self._count += 1

    def amend(self, service: Service) -> None:
        """Replace the first service of the same provider and protocol."""
        services = self._sources[service.provider, service.protocol]
        services[0] = (services[0][0], service)

    def remove(self, service: Service) -> bool:
        """Remove a service. Returns True if none is left."""
        source = (service.provider, service.protocol)
        services = self._sources[source]
        del services[next(n for n, (_, each) in enumerate(services) if each is service or each == service)]
        if not services:
            del self._sources[source]
        self._count -= 1
        return not self._count

    def info(self) -> str | None:
        """Return the info of the first offered service that has one; None if none has."""
        infos = ((place, each.info) for same in self._sources.values() for place, each in same if each.info is not None)
        return min(infos, default=(0, None))[1]

    def __iter__(self) -> Iterator[Service]:
        for services in self._sources.values():
            for _, service in services:
                yield service

    def __len__(self) -> int:
        return self._count


_KINDS = (Kind.OFFERED, Kind.WITHDRAWN, Kind.AMENDED, Kind.CHECKED, Kind.HIDDEN, Kind.SHOWN)
"""Changes that concern the listing."""

_Services = _NamedServices | tuple[Service, ...]

_Table = dict[str, Service | _NamedServices]
"""Services by name: the only one, as in most cases, or all."""


def _services(table: _Table, name: str) -> _Services | None:
    same = table.get(name)
    return (same,) if isinstance(same, Service) else same


class Listing:
    """Cached answers to info requests about ``registry``. ``clock`` gives the time of day at which a name ended."""

    def __init__(self, registry: IRegistry, clock: IReactorTime, reading: RegistryReading = EVERY_ENTRY) -> None:
        self.reading = reading
        """The services that peers are shown. `use` replaces it."""
        self._registry = registry
        self._clock = clock
        self._peers: _Table = {}
        self._own: _Table = {}
        self._gone = GoneNames(GONE)

        self._entries: dict[str, bytes] = {}
        """Encoded entry of each name in the list of all, in its order; empty if it is to be encoded, or not shown."""
        self._to_make: dict[str, None] = {}
        """Names whose entries are to be encoded."""
        self._length = 0
        """Length of all encoded entries, each with its separator: never more than `ROOM`."""
        self._all: bytes | None = None
        """The encoded list of all, until a change."""

        self._infos: dict[str, bytes] = {}
        self._mappings: dict[str, bytes] = {}
        """Encoded answers for one name: those with an info, and those with a mapping."""
        self._mapped: set[str] = set()
        """Names with a cached mapping, as an entry or as an answer. While there is one, loads are watched."""
        self._loads = 0
        """Loads since a request that used a mapping."""
        self._load_watch: IWait | None = None

        seen: set[tuple[str, str]] = set()
        for service in registry.services():
            key = (service.name, service.protocol)
            if key not in seen:
                seen.add(key)
                # `services` is not in the order of the offers, but `find` is.
                for same in registry.find(*key):
                    self._offered(same)
        self._watch = registry.watch(self._service_changed, _KINDS)

    @property
    def gone(self) -> int:
        """The number of departed names whose end is stored."""
        return len(self._gone)

    def use(self, reading: RegistryReading) -> None:
        """Show the services of another reading from now on."""
        if reading == self.reading:
            return
        self.reading = reading
        self._entries = dict.fromkeys(self._entries, b"")
        self._to_make = dict.fromkeys(self._entries)
        self._length = 0
        self._all = None

    def all(self) -> bytes:
        """Return the body of the answer to a request without names: of the services that `reading` shows."""
        if self._mapped:
            self._loads = 0
        if self._all is None:
            self._all = self._list_all()
        return self._all

    def named(self, names: Sequence[str]) -> bytes:
        """Return the body of the answer to a request for these names: one or more, each once."""
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
        """Return True if a request for this name is answered with a service."""
        if name == ERROR:
            return False
        return self._live(name) is not None or bool(self._restored(name))

    def close(self) -> None:
        """Stop watching the registry."""
        self._watch.cancel()
        self._stop_loads()

    # answers

    def _list_all(self) -> bytes:
        shows = self.reading.shows
        # From the end: to delete the first keys of a dict one by one takes quadratic time.
        while self._to_make:
            name = next(reversed(self._to_make))
            shown = self._shown(_services(self._peers, name)) if shows(name) else None
            if not shown:
                del self._to_make[name]  # it is in `_entries`, empty, until it is shown again
                continue
            self._make(name, shown)
            if name in self._to_make:
                return TOO_LONG
        return body(made for name, made in self._entries.items() if made and shows(name))

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
        # Cleared as a whole: entries are cheap to encode again, and an LRU order would cost each lookup.
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

    def _live(self, name: str) -> _Services | None:
        """Return the live services of a name in the order of the answer; None if there are none, or all are hidden."""
        return self._shown(_services(self._peers, name)) or _services(self._own, name)

    def _shown(self, services: _Services | None) -> _Services | None:
        if services is None:
            return None
        same = tuple(services)
        shown = self._registry.by_check(same)
        return services if shown is same else tuple(shown)

    def _restored(self, name: str) -> tuple[Service, ...]:
        """Return the restored services of a name, which are not replaced yet."""
        known = self._registry.find(name, DEFAULT_PROTOCOL, restored=True)
        if not known or not known[-1].restored:  # they follow the live ones
            return ()
        return tuple(service for service in known if service.restored)

    def _make_with(self, name: str, restored: tuple[Service, ...]) -> bytes:
        """Return the entry of live and restored services. It is not cached: the end of restored ones is not watched."""
        live = self._live(name)
        info = None if live is None else _info(live)
        if info is None:
            info = next((service.info for service in restored if service.info is not None), None)
        return entry(name, self._mapping((*(live or ()), *restored)) if info is None else _encoded(info))

    def _make(self, name: str, services: _Services) -> bytes:
        """Return the entry of live services. It is cached if it belongs to the list of all, and there is room."""
        info = _info(services)
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

    def _offer(self, service: Service) -> ListedOffer:
        provider = self._registry.provider(service.provider)
        hostport = harmless(service.hostport)
        where = place(hostport)
        return ListedOffer(
            ip=None if where is None else where.ip,
            port=None if where is None else where.port,
            hostport=hostport,
            protocol=harmless(service.protocol),
            label=harmless(service.label) if service.label else None,
            wire=None if provider is None else provider.wire,
            provider=service.provider,
            load=None if provider is None else provider.load,
            restored=service.restored,
            zone=harmless(service.zone) if service.zone else None,
            tags=tuple(map(harmless, service.tags)) if service.tags else None,
            meta={harmless(key): harmless(text) for key, text in service.meta.items()} if service.meta else None,
        )

    # changes

    def _service_changed(self, change: Change) -> None:
        service = change.subject
        assert isinstance(service, Service)
        if change.kind is Kind.OFFERED:
            self._offered(service)
        elif change.kind is Kind.WITHDRAWN:
            self._withdrawn(service)
        elif change.kind is not Kind.AMENDED:
            self._outdate(service.name)
        else:
            name, table = service.name, self._table(service)
            same = table[name]
            if isinstance(same, Service):
                table[name] = service
            else:
                same.amend(service)
            self._outdate(name)

    def _table(self, service: Service) -> _Table:
        return self._own if service.provider == BROKER else self._peers

    def _offered(self, service: Service) -> None:
        name, table = service.name, self._table(service)
        same = table.get(name)
        if same is None:
            table[name] = service
            self._gone.discard(name)
            if table is self._peers and name != ERROR:
                self._entries[name] = b""
        elif isinstance(same, Service):
            table[name] = several = _NamedServices()
            several.add(same)
            several.add(service)
        else:
            same.add(service)
        self._outdate(name)

    def _withdrawn(self, service: Service) -> None:
        name, table = service.name, self._table(service)
        same = table[name]
        last = isinstance(same, Service) or same.remove(service)
        self._outdate(name)
        if not last:
            return
        del table[name]
        if table is self._peers:
            self._entries.pop(name, None)
            self._to_make.pop(name, None)
        if name not in self._peers and name not in self._own:
            self._gone.add(name, wall(self._clock))

    def _outdate(self, name: str) -> None:
        """Invalidate the cache for this name."""
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
            # No request used a mapping for so many loads: all of them are discarded, which ends the watch below.
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


def _info(services: _Services) -> str | None:
    """Return the info of the first service that has one; None if none has."""
    if isinstance(services, _NamedServices):
        return services.info()
    return next((service.info for service in services if service.info is not None), None)


def _encoded(info: str) -> bytes:
    # A lone surrogate becomes its JSON escape.
    return info.encode("utf-8", "backslashreplace")


MAX_BODIES = 1024 * 1024
"""Bytes of the bodies of one answer: their encoding takes 3 to 20 ms of one turn."""


class TopicValues:
    """Answers to info requests of the last values of ``topics``: ``lvc:TOPIC`` is the newest message that was kept.

    Each value is listed like a service, by an object with the topic, its body as ``text`` (``base64`` where that is not
    UTF-8), the headers that are text, and ``time``, when it was published. Topics without a value, and those that the
    users file does not let peers without a user subscribe to, are an error. See docs/protocols/dbp.md, "Last values".

    ``rights`` are those of peers without a user; a reload may replace them. ``shown`` returns a message as JSON:
    `broker.core.operator_interfaces.topic_message`.
    """

    def __init__(
        self,
        topics: ITopics,
        rights: TopicRights,
        shown: Callable[[bytes, Sequence[bytes], bytes], dict[str, object]],
    ) -> None:
        self._topics = topics
        self._shown = shown
        self.rights = rights

    def named(self, names: Sequence[str]) -> bytes:
        """Return the body of the answer to a request for these names."""
        found: dict[str, bytes] = {}
        missing: list[str] = []
        room = MAX_BODIES
        for name in names:
            topic = name.removeprefix(LVC).encode("utf-8", "surrogateescape")
            value = self._topics.last(topic) if name.startswith(LVC) and self.rights.may_subscribe(topic) else None
            size = 0 if value is None else sum(map(len, value.body))
            if value is None:
                missing.append(f"No Last Value of the Topic {name.removeprefix(LVC)}")
            elif size > room:
                missing.append(f"No Room for the Last Value of the Topic {name.removeprefix(LVC)}")
            else:
                room -= size
                about = self._shown(topic, value.headers, b"".join(value.body))
                found[name] = msgspec.json.encode({**about, "time": value.stamp})
        return listing(iter(found.items()), {ERROR: "; ".join(missing)} if missing else None)
