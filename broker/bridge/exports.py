"""The services that a bridge sends: those that match its patterns, the ones that the other side receives, and the
rights of its user.

All of them are sent when the other side has said what it receives, then the changes, gathered for a moment. A service
goes as the value of a registration in the layout of a cluster (`broker.cluster.layout`), with these differences: its
owner and the address of its provider stay here, of its authentication only the mode travels, and its meta has the path.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from itertools import islice

import attrs
from twisted.internet.interfaces import IDelayedCall, IReactorTime

from broker.bridge.paths import Path
from broker.cluster.layout import LOADS_PER_KEY, Loads, loads_value, registration_name, registration_value
from broker.core.cluster.cluster_interfaces import Registration, key_of
from broker.core.detail_sums import add_details, without_counts
from broker.core.interfaces import IRegistry
from broker.core.model import (
    BAD_STATES,
    BRIDGE_PATH,
    BROKER,
    NOBODY,
    Auth,
    Change,
    CheckState,
    FailingService,
    Kind,
    LoadDetails,
    Policy,
    Provider,
    Service,
)

GATHER = 0.05
"""Seconds for which changes are gathered."""

LOADS_EVERY = 1.0
"""Seconds between two messages of loads."""

AT_ONCE = 100
"""Services in one message: some milliseconds of encoding."""

READ_AT_ONCE = 500
"""Providers whose services are compared with the patterns in one turn of the reactor: a few milliseconds."""

BATCH_BYTES = 256 * 1024
"""Bytes of one message, which are copied and encrypted in one piece."""

WIRE = "bridge"
"""The wire of received services."""

KINDS = (Kind.OFFERED, Kind.WITHDRAWN, Kind.AMENDED, Kind.CHECKED, Kind.RELABELLED)
"""The changes of the registry that concern bridges."""

SERVICES, GONE, LOADS = b"SERVICES", b"GONE", b"LOADS"
"""First frames of the messages: pairs of an ident and a value follow; idents; loads by the ids of providers."""


def ident_of(service: Service) -> str:
    """Return the text that identifies a service at its broker."""
    return f"{service.provider}/{registration_name(key_of(WIRE, service, NOBODY))}"


def _place(ident: str) -> str:
    return ident.partition("/")[2]


class Exports:
    """The services that one bridge sends. ``here`` and ``there`` are the names of the sites; ``travels`` returns True
    for the names of services to send; ``send`` sends frames, and returns False if the link ends."""

    def __init__(
        self,
        here: str,
        there: str,
        registry: IRegistry,
        clock: IReactorTime,
        travels: Callable[[str], bool],
        send: Callable[[Sequence[bytes]], bool],
    ) -> None:
        self._here, self._there = here, there
        self._registry = registry
        self._clock = clock
        self._travels = travels
        self._send = send
        self._open = False
        self.sent: dict[str, int] = {}
        """The providers of the services that the other side has, by ident."""
        self._providers: Counter[int] = Counter()
        """The number of these services of each provider."""
        self._pending: dict[str, Service | None] = {}
        """Services to send, None for one that is gone."""
        self._loads: Loads = {}
        self._unread: Iterator[int] = iter(())
        """Ids of the providers that `begin` has still to look at."""
        self._timers: dict[Callable[[], None], IDelayedCall] = {}

    def begin(self) -> None:
        """Send all services, then the changes."""
        self.end()
        self._open = True
        self.repeat()

    def repeat(self) -> None:
        """Send all services again, beside the changes. No-op before `begin`."""
        if self._open:
            self._unread = iter(self._registry.ids())
            self._soon(self._read, 0)

    def _read(self) -> None:
        """Offer the services of some more providers, from a list of those that were there at the start."""
        del self._timers[self._read]
        some = list(islice(self._unread, READ_AT_ONCE))
        for provider in some:
            for service in self._registry.services_of(provider):
                self._offer(service)
            self._repeat_load(provider)  # the other side may have ignored it with its services
        if some:
            self._soon(self._read, 0)

    def end(self) -> None:
        """Send nothing any more: the link has ended."""
        self._open = False
        for each in (self.sent, self._providers, self._pending, self._loads):
            each.clear()
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()

    def changed(self, change: Change) -> None:
        """Follow a change of the registry of one of `KINDS`."""
        service = change.subject
        if not self._open:
            return
        if not isinstance(service, Service):
            # A new label of a provider is a part of the value of each of its services.
            for each in self._registry.services_of(change.provider):
                self._offer(each)
        elif change.kind is Kind.WITHDRAWN:
            self._gone(ident_of(service))
        else:
            self._offer(service)

    def restated(self, service: Service) -> None:
        """Follow another reason of a service that fails its check or is doubtful."""
        if self._open:
            self._offer(service)

    def _gone(self, ident: str) -> None:
        """Withdraw a service at the other side, if it has it."""
        self._pending.pop(ident, None)
        if ident in self.sent:
            self._pending[ident] = None
            self._soon(self._flush, GATHER)

    def loaded(self, provider: int, load: float, details: LoadDetails | None) -> None:
        """Follow a report of a load."""
        if provider in self._providers:
            # Those of reports that are gathered: the receiver adds up their counts.
            _, gathered = self._loads.get(provider, (0.0, None))
            self._loads[provider] = (load, add_details(gathered, details))
            self._soon(self._flush_loads, LOADS_EVERY)

    def _repeat_load(self, provider: int) -> None:
        """Send the last load of a provider, also 0: the other side may have one from before the link ended. Its counts
        are not sent again, since those of all reports are added up."""
        if provider in self._loads or provider not in self._providers:
            return
        known = self._registry.provider(provider)
        if known is not None:
            self.loaded(provider, known.load, without_counts(known.details))

    def _offer(self, service: Service) -> None:
        if service.provider == BROKER or not self._travels(service.name):
            return
        known = Path.parse((service.meta or {}).get(BRIDGE_PATH))
        if known is None or known.onward(self._here, self._there) is not None:
            self._pending[ident_of(service)] = service
            self._soon(self._flush, GATHER)
        else:  # a change of its meta: the other side may have it as it was
            self._gone(ident_of(service))

    def _soon(self, call: Callable[[], None], pause: float) -> None:
        if call not in self._timers:
            self._timers[call] = self._clock.callLater(pause, call)

    def _flush(self) -> None:
        del self._timers[self._flush]
        left: list[str] = []
        places: set[str] = set()
        frames: list[bytes] = [SERVICES]
        size = 0
        while self._pending and len(left) + len(frames) // 2 < AT_ONCE and size < BATCH_BYTES:
            ident = next(iter(self._pending))
            service = self._pending.pop(ident)
            value = None if service is None else self._value(service)
            if service is None or value is None:
                if ident in self.sent:
                    self._forget(ident)
                    left.append(ident)
                continue
            places.add(_place(ident))
            if ident not in self.sent:
                self.sent[ident] = service.provider
                self._providers[service.provider] += 1
                self._repeat_load(service.provider)
            frames += (ident.encode(), value)
            size += len(value)
        # One of another provider at the same place replaces its predecessor in one step; the others make room before.
        gone = [GONE, *(ident.encode() for ident in left if _place(ident) not in places)]
        replaced = [GONE, *(ident.encode() for ident in left if _place(ident) in places)]
        for message in (gone, frames, replaced):
            if len(message) > 1 and not self._send(message):
                return  # the link ends, and begins again
        if self._pending:
            self._soon(self._flush, 0)

    def _forget(self, ident: str) -> None:
        provider = self.sent.pop(ident)
        self._providers[provider] -= 1
        if not self._providers[provider]:
            del self._providers[provider]
            self._loads.pop(provider, None)

    def _value(self, service: Service) -> bytes | None:
        """Return the value of a service; None for one that has left."""
        named = self._registry.wire_and_label(service.provider)
        if named is None:
            return None
        meta = dict(service.meta or {})
        path = (Path.parse(meta.get(BRIDGE_PATH)) or Path(str(service.provider))).onward(self._here, self._there)
        sent = attrs.evolve(
            service,
            auth=None if service.auth is None else Auth(service.auth.mode),
            lasting=False,
            interval=None,
            restored=False,
            meta={**meta, BRIDGE_PATH: str(path)},
        )
        check = self._registry.check_of(service)
        failing = None
        if check is not None and check.state in BAD_STATES:
            failing = FailingService(check.reason, Policy.LAST, check.state is CheckState.DOUBTFUL)
        provider = Provider(service.provider, named[1], WIRE, "", 0.0, 0.0, ())
        key = key_of(WIRE, sent, NOBODY)
        return registration_value(Registration(key, provider, sent, 0, failing), self._here)

    def _flush_loads(self) -> None:
        del self._timers[self._flush_loads]
        some = {provider: self._loads.pop(provider) for provider in list(self._loads)[:LOADS_PER_KEY]}
        if some and self._send([LOADS, loads_value(some)]) and self._loads:
            self._soon(self._flush_loads, 0)
