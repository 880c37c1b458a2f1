"""Who is registered by DBP, under which contract, and whether they live. All of it is in the registry too.

Rules (the document has "agreed-upon intervals", and says nothing of who agreed to what):
- Each service is a provider of its own in the registry. One name is one service: a new registration takes the place of
  the old one if that is under no contract or came from the same address, and is refused otherwise.
- A service is under contract if it registered an interval, or has ever sent a heartbeat, by UDP or over the ROUTER.
  Its interval is what it registered, within the configured bounds, or else the configured one.
- Under contract, it is gone after as many intervals as were agreed without a sign of life: any message of its own, by
  either way, or an answer. Time in which the broker itself stood still does not count (`core.liveness`).
- After one missed heartbeat it is asked at its own address, again and again until the time is over.
- Without a contract it stays, also across a restart of the broker: Hermes' services never say anything twice. They may
  be asked from time to time; then one that has ever answered is gone when it fails to so many times in a row.
- What is said of a service counts only from the address that registered it, unless that is switched off.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from contextlib import suppress

import attrs
from twisted.logger import Logger

from broker.core.errors import Reason, Refusal
from broker.core.interfaces import ILeases, IRegistry
from broker.core.model import Provider, Rights, Service
from broker.net.interfaces.router import Complaints
from broker.wires.dbp.codec.details import details
from broker.wires.dbp.codec.info import merge
from broker.wires.dbp.codec.times import Form
from broker.wires.dbp.sessions.addresses import hostport, same
from broker.wires.dbp.sessions.outbound import Voice, is_broker
from broker.wires.dbp.sessions.service_state import Connection, Entry, Source

WIRE = "dbp"
"""The name of the wire in the registry, in counters and in logs."""

MISSED = 1.5
"""Intervals of silence after which a heartbeat was missed. They come late by a little all the time."""

ASK_FOR = 0.75
"""Intervals that a question may take: two of them fit between a missed heartbeat and three intervals."""

LEAST_TO_ASK = 0.25
"""Intervals that must be left for a question to make sense."""

ASK_AGAIN = 0.1
"""Intervals after which it is tried again to ask one that cannot be asked now: another name at its place is."""

LEAST_LIVENESS, MOST_LIVENESS = 3, 5
"""How many intervals may pass in silence, whatever is registered: the document says "usually 3-5"."""


@attrs.frozen
class Terms:
    """What is configured, as it may change while running. Times in seconds; see `config.values.Dbp`."""

    rights: Rights = attrs.field(factory=Rights)
    services: int = 10_000
    check_address: bool = True
    interval: float = 1.0
    least_interval: float = 0.2
    most_interval: float = 3_600.0
    liveness: int = 3
    fall_back: bool = True
    probe: float = 0.0


class Catalogue:
    """All registered services. Entries' leases call `check`."""

    log = Logger()

    def __init__(
        self,
        registry: IRegistry,
        leases: ILeases,
        voice: Voice,
        complaints: Complaints,
        terms: Terms,
    ) -> None:
        self._registry = registry
        self._leases = leases
        self._voice = voice
        self._complaints = complaints
        self.terms = terms
        self._entries: dict[str, Entry] = {}
        self._sources: dict[Source, dict[Entry, None]] = {}

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[Entry]:
        return iter(self._entries.values())

    def get(self, name: str) -> Entry | None:
        """The service of that name."""
        return self._entries.get(name)

    def sources(self) -> Collection[Source]:
        """The sources of the last datagrams of all services."""
        return self._sources.keys()

    def at(self, source: Source) -> list[Entry]:
        """The services whose last datagram came from there."""
        return list(self._sources.get(source, ()))

    def trusts(self, entry: Entry, address: str) -> bool:
        """Whether that address may speak for a service."""
        return not self.terms.check_address or same(entry.address, address)

    # what services say

    def register(self, name: str, info: bytes, address: str, form: Form, connection: Connection | None) -> Entry:
        """A service registers. Raises `Refusal`, with nothing changed."""
        terms = self.terms
        old = self._entries.get(name)
        if old is not None and old.contract and not same(old.address, address):
            raise Refusal(Reason.NAME_TAKEN, f"the name {name} is in use by a service at another address")
        if old is None and len(self._entries) >= terms.services:
            raise Refusal(Reason.LIMIT, f"there are {terms.services} services already, and no more are taken")
        self._permit(name)
        entry = Entry(self, name, address, info, details(info))
        entry.form = form
        self._agree(entry)
        entry.contract = entry.details.interval is not None
        if old is not None:
            self._replace(old, connection)
        self._join(entry)
        self.bind(entry, connection)
        self._complaints.count("dbp_services", "registered")
        return entry

    def restore(self, providers: Iterable[Provider]) -> None:
        """Take back those that will not register again, from before a restart."""
        for provider in providers:
            for service in provider.services:
                if provider.wire != WIRE or not service.lasting or service.info is None:
                    continue
                try:
                    self.register(service.name, service.info.encode(), provider.address, Form.TEXT, None)
                except Refusal as refusal:
                    self.log.warn("{name} was not restored: {why}", name=service.name, why=refusal.text)

    def update(self, entry: Entry, changes: bytes) -> None:
        """A service changes what it says of itself. Raises `Refusal`, with nothing changed."""
        info = merge(entry.info, changes)
        self._permit(entry.name)
        before, entry.info, entry.details = entry.details, info, details(info)
        if entry.details.interval != before.interval or entry.details.liveness != before.liveness:
            self._agree(entry)
            entry.contract = entry.contract or entry.details.interval is not None
        if hostport(before, entry.address) == hostport(entry.details, entry.address):
            self._amend(entry)
        else:
            self._registry.withdraw(entry.provider, [entry.name])
            self._offer(entry)
        load = details(changes).load
        if load is not None:
            self._registry.load(entry.provider, load)
        self.live(entry)
        self._look(entry)

    def live(self, entry: Entry) -> None:
        """A service gave a sign of life."""
        entry.heard = self._leases.moment()
        entry.failures = 0

    def beat(self, entry: Entry, source: Source | None, form: Form, sent: float | None) -> None:
        """A service sent a heartbeat: from that source by UDP, or over a connection. Its time was in that form."""
        entry.heard = self._leases.moment()
        entry.form = form
        if source is not None and entry.source != source:
            self._move(entry, source)
        if not entry.contract:
            entry.contract = True
            self._amend(entry)
            self._look(entry)
        # A time in single precision is off by up to a minute, so it says nothing of the peer's clock.
        self._registry.beat(entry.provider, None if form is Form.FLOAT32 else sent)

    def bind(self, entry: Entry, connection: Connection | None) -> None:
        """A connection speaks for a service that has none over which it can be told anything."""
        if connection is None or connection.entry is not None:
            return
        if entry.connection is not None and entry.connection.req:
            entry.connection.release()
        if entry.connection is None:
            entry.connection, connection.entry = connection, entry

    def disconnect(self, entry: Entry) -> None:
        """A service says good-bye, by either way: nothing more is said to it by any."""
        if entry.source is not None:
            self._voice.hush(entry.source)
        if entry.connection is not None and not entry.connection.req:
            entry.connection.deaf = True
        self.remove(entry, "disconnected")

    def remove(self, entry: Entry, why: str) -> None:
        """A service is gone."""
        if self._entries.get(entry.name) is not entry:
            return
        del self._entries[entry.name]
        if entry.lease is not None:
            entry.lease.cancel()
            entry.lease = None
        self._move(entry, None)
        if entry.connection is not None:
            entry.connection.release()
        self._registry.leave(entry.provider, "expired" if why == "expired" else "withdrawn")
        self._complaints.count("dbp_services", why)
        self.log.debug("dbp service {name} is {why}", name=entry.name, why=why)

    # from the operator

    def use(self, terms: Terms) -> None:
        """Take other terms. They count for who registers from now on; those about questions, for all."""
        self.terms = terms
        for entry in self._entries.values():
            self._look(entry)

    def part_all(self) -> None:
        """The broker stops: tell everybody. They stay registered, for those who remember the registry."""
        for entry in self._entries.values():
            self._voice.part(entry)
            if entry.lease is not None:
                entry.lease.cancel()
                entry.lease = None

    # from the leases

    def check(self, entry: Entry, now: float) -> float | None:
        """Do what is due for a service; returns when to be asked again, None when there is nothing more to do."""
        if not entry.contract:
            return self._check_lasting(entry, now)
        dead_at = entry.heard + entry.liveness * entry.interval + self._leases.slack_exact
        if now >= dead_at:
            self._expire(entry)
            return None
        if now >= entry.beat_at:
            self._voice.beat(entry)
            entry.beat_at = max(entry.beat_at + entry.interval, now)
        due = min(dead_at, entry.beat_at)
        if self.terms.fall_back and not entry.probing:
            ask_at = entry.heard + MISSED * entry.interval
            left = dead_at - now
            if now < ask_at:
                due = min(due, ask_at)
            elif left >= LEAST_TO_ASK * entry.interval:
                self._ask(entry, min(ASK_FOR * entry.interval, left))
                if not entry.probing:
                    due = min(due, now + ASK_AGAIN * entry.interval)
        return due

    def _check_lasting(self, entry: Entry, now: float) -> float | None:
        if not self.terms.probe:
            entry.lease = None
            return None
        if entry.proved and entry.failures >= entry.liveness:
            self._expire(entry)
            return None
        if not entry.probing:
            self._ask(entry, min(self.terms.probe, entry.interval))
        return now + self.terms.probe

    def _expire(self, entry: Entry) -> None:
        """A service is silent. It is told, in case that it only cannot be heard."""
        entry.lease = None  # the one that is being checked, and ends by itself
        self._voice.part(entry)
        self.remove(entry, "expired")

    def _ask(self, entry: Entry, seconds: float) -> None:
        def answered(lives: bool | None) -> None:
            entry.probing = False
            if self._entries.get(entry.name) is not entry:
                return
            if lives:
                entry.proved = True
                self.live(entry)
            elif lives is not None:
                entry.failures += 1
            if entry.contract:
                self._look(entry)

        entry.probing = self._voice.probe(entry, seconds, answered)

    # inside

    def _permit(self, name: str) -> None:
        if is_broker(name) or not self.terms.rights.permits(name):
            raise Refusal(Reason.NAME_NOT_ALLOWED, f"the service name {name} may not be registered here")

    def _agree(self, entry: Entry) -> None:
        """Agree on an interval, and on how many of them may pass in silence."""
        terms, wanted = self.terms, entry.details
        interval = terms.interval if wanted.interval is None else wanted.interval
        entry.interval = min(max(interval, terms.least_interval), terms.most_interval)
        liveness = terms.liveness if wanted.liveness is None else wanted.liveness
        entry.liveness = min(max(liveness, LEAST_LIVENESS), MOST_LIVENESS)

    def _replace(self, old: Entry, connection: Connection | None) -> None:
        """Another registration takes a service's place."""
        if old.connection is not None and old.connection is not connection:
            # Its datagrams may come from the same place as those of the new one, which would hear it too.
            self._move(old, None)
            self._voice.part(old)
        self.remove(old, "replaced")

    def _join(self, entry: Entry) -> None:
        entry.provider = self._registry.join(entry.name, WIRE, entry.address)
        try:
            self._offer(entry)
        except Refusal:
            self._registry.leave(entry.provider)
            raise
        if entry.details.load is not None:
            self._registry.load(entry.provider, entry.details.load)
        self._entries[entry.name] = entry
        self.live(entry)
        self._look(entry)

    def _offer(self, entry: Entry) -> None:
        """Have the registry offer it. That refuses nothing that was permitted here, unless it is full."""
        self._registry.offer([self._service(entry)], self.terms.rights)

    def _amend(self, entry: Entry) -> None:
        """Have the registry show what the service says of itself now."""
        # The peer was promised its contract, and its info was permitted: it is served even if it cannot be shown.
        with suppress(Refusal):
            self._registry.amend(self._service(entry))

    def _service(self, entry: Entry) -> Service:
        return Service(
            entry.name,
            hostport(entry.details, entry.address),
            entry.provider,
            info=entry.info.decode(),
            lasting=not entry.contract,
            interval=entry.interval if entry.contract else None,
        )

    def _move(self, entry: Entry, source: Source | None) -> None:
        """Datagrams of a service come from elsewhere now, or from nowhere."""
        if entry.source is not None:
            there = self._sources[entry.source]
            del there[entry]
            if not there:
                del self._sources[entry.source]
        entry.source = source
        if source is not None:
            self._sources.setdefault(source, {})[entry] = None

    def _look(self, entry: Entry) -> None:
        """Have a service looked after from now on, by what is agreed now."""
        before, entry.lease = entry.lease, None
        now = self._leases.moment()  # the end of a question to the service leads here, too
        if entry.contract:
            entry.beat_at = min(max(entry.beat_at, now), now + entry.interval)
            entry.lease = self._leases.hold(entry, now)
        elif self.terms.probe:
            entry.lease = self._leases.hold(entry, now + self.terms.probe)
        if before is not None:  # only now: when nothing is held, not even for this moment, life time stands still
            before.cancel()
