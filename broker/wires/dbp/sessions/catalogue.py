"""Catalogue of the services registered by DBP: registration, heartbeat contract, expiry. The registry has them too.

Rules (the document has "agreed-upon intervals", but does not define the agreement):
- Each service is a provider of its own in the registry. A name belongs to one service: a new registration replaces the
  old one if that is under no contract or came from the same address, and is refused otherwise.
- A service is under contract if it registered an interval, or has ever sent a heartbeat, by UDP or over the ROUTER.
  Its interval is the registered one, clamped to the configured bounds, or else the configured one.
- Under contract, it expires after the agreed number of intervals without a sign of life: any message of its own, over
  either transport, or an answer to a probe. Stalls of the broker itself do not count (`broker.core.liveness`).
- If many peers are silent at once, it is doubtful before it expires (`broker.core.silence`).
- After one missed heartbeat it is probed at its own address, repeatedly until it expires. A service whose address is
  not permitted is not probed (`broker.net.outgoing_addresses`); the registry has the reason.
- Without a contract it stays, also across a restart of the broker: Hermes' services register only once. They may be
  probed periodically; then one that has ever answered expires after as many consecutive failures.
- A service that an operator withdraws in the registry is dismissed: it is sent a DISCONNECT, and may register again.
- A service that has moved to another broker of the cluster is given up quietly: see `other_brokers`.
- Messages about a service count only from the address that registered it, unless the configuration disables that.

A service has a lease exactly while it is to be checked: under contract, or where services without one are probed. See
docs/protocols/dbp.md, "Registration", "Heartbeats" and "Expiry".

The file is longer than others: registration, heartbeats and expiry change the same entries.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import suppress

import attrs
from twisted.logger import Logger

from broker.access.identity import network_of, same_host
from broker.core.errors import Reason, Refusal, at_limit, no_right
from broker.core.interfaces import ILeases, IRegistry
from broker.core.model import (
    Change,
    Check,
    CheckState,
    Kind,
    Owner,
    Provider,
    Rights,
    Service,
    description,
    load_details,
)
from broker.core.silent_peers import Silence
from broker.net.peer_interfaces import RefusalLog
from broker.wires.dbp.codec.dbp_messages import Form
from broker.wires.dbp.codec.listings import Details, details, labels, merge_infos
from broker.wires.dbp.dbp_settings import Dbp
from broker.wires.dbp.sessions.other_brokers import RemoteServices
from broker.wires.dbp.sessions.outbound import DbpOutbound, is_broker
from broker.wires.dbp.sessions.service_state import RouterConnection, ServiceEntry, Source, hostport

WIRE = "dbp"
"""The name of the wire in the registry, in counters and in logs."""

MISSED = 1.5
"""Intervals of silence after which a heartbeat counts as missed. Heartbeats are regularly late by a little."""

ASK_FOR = 0.75
"""Intervals for the answer to a probe: two probes fit between a missed heartbeat and the end of three intervals."""

LEAST_TO_ASK = 0.25
"""Intervals that must remain until the expiry for another probe to be of use."""

ASK_AGAIN = 0.1
"""Intervals until the next attempt to probe a service that cannot be probed now, because another name at the same
address is being probed."""

MOVE_SECONDS = 5.0
"""Seconds after which a service that has moved to another broker is given up, if the registry does not show it there
by then. Usually it does in a fraction of a second."""

REASONS = {"expired": "expired", "drained": "left"}
"""The reasons for which providers leave the registry, by the event of the service; "withdrawn" for all others."""

LEAST_LIVENESS, MOST_LIVENESS = 3, 5
"""Bounds of the intervals of silence that a service may register: "usually 3-5" in the document."""


class Catalogue:
    """All registered services, in the order of their registration. The leases of entries call `check`."""

    log = Logger()

    def __init__(
        self,
        registry: IRegistry,
        leases: ILeases,
        outbound: DbpOutbound,
        refusal_log: RefusalLog,
        dbp: Dbp,
        rights: Rights,
        silence: Silence,
    ) -> None:
        self._silence = silence
        self._silence.follow(self._under_contract)
        self._registry = registry
        self._leases = leases
        self._outbound = outbound
        self._refusal_log = refusal_log
        self.dbp = dbp
        self._rights = rights
        self.elsewhere: RemoteServices | None = None
        """The services of other brokers; None without a cluster."""
        self._entries: dict[str, ServiceEntry] = {}
        self._sources: dict[Source, dict[ServiceEntry, None]] = {}
        self._updated: ServiceEntry | None = None
        """The service that is withdrawn only to be offered at another address."""
        self._watch = registry.watch(self._withdrawn, (Kind.WITHDRAWN,), own=True)

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[ServiceEntry]:
        return iter(self._entries.values())

    def get(self, name: str) -> ServiceEntry | None:
        """Return the service of that name."""
        return self._entries.get(name)

    def sources(self) -> Collection[Source]:
        """Return the sources of the last datagrams of all services."""
        return self._sources.keys()

    def at(self, source: Source) -> list[ServiceEntry]:
        """Return the services whose last datagram came from that source."""
        return list(self._sources.get(source, ()))

    def trusts(self, entry: ServiceEntry, address: str) -> bool:
        """Return True if messages about a service count from that address."""
        return not self.dbp.check_address or same_host(entry.address, address)

    # registrations and signs of life

    def register(
        self,
        name: str,
        info: bytes,
        address: str,
        form: Form,
        connection: RouterConnection | None,
        restored: bool = False,
    ) -> ServiceEntry:
        """Register a service, which may replace the old one of that name. Raises `Refusal`, with no change.

        ``restored``: the info is from before a restart of the broker, and the requests in it were reported then.
        """
        dbp = self.dbp
        old = self._entries.get(name)
        if old is not None and old.contract and not same_host(old.address, address):
            raise Refusal(Reason.NAME_TAKEN, f"the name {name} is in use by a service at another address")
        if old is None and len(self._entries) >= dbp.services:
            raise at_limit(f"there are {dbp.services} services already, and no more are taken", "dbp.services")
        self._permit(name)
        held = None if self.elsewhere is None else self.elsewhere.check_move(name, address)
        entry = ServiceEntry(self, name, address, info, details(info))
        entry.restored = restored
        entry.form = form
        self._agree(entry)
        entry.contract = entry.details.interval is not None
        if old is not None:
            # Before the old one ends: a refusal afterwards would leave none.
            service = attrs.evolve(self._service(entry), provider=old.provider)
            payer = "" if network_of(old.address) == network_of(address) else address
            self._registry.check(service, self._rights, old.provider, payer)
            self._replace(old, connection)
        self._join(entry, restored)
        self.bind(entry, connection)
        self._refusal_log.count("dbp_services", "registered")
        if held is not None and self.elsewhere is not None:
            self.elsewhere.moved(held, name, address)
        return entry

    def restore(self, providers: Iterable[Provider]) -> None:
        """Register the recorded services that do not register again after a restart of the broker.

        One that another broker holds by now stays there: an offer here would take it from that one."""
        for provider in providers:
            for service in provider.services:
                if provider.wire != WIRE or not service.lasting or service.info is None:
                    continue
                if self.elsewhere is not None and self.elsewhere.held(service.name) is not None:
                    continue
                try:
                    self.register(service.name, service.info.encode(), provider.address, Form.TEXT, None, restored=True)
                except Refusal as refusal:
                    self.log.warn("{name} was not restored: {why}", name=service.name, why=refusal.text)

    def update(self, entry: ServiceEntry, changes: bytes) -> None:
        """Update the info of a service. Raises `Refusal`, with no change."""
        info = merge_infos(entry.info, changes)
        self._permit(entry.name)
        before, old = entry.details, entry.info
        terms = entry.interval, entry.liveness, entry.contract
        entry.info, entry.details = info, details(info)
        moved = hostport(before, entry.address) != hostport(entry.details, entry.address)
        try:
            self._registry.check(self._service(entry), self._rights, entry.provider if moved else None)
            if entry.details.interval != before.interval or entry.details.liveness != before.liveness:
                self._agree(entry)
                entry.contract = entry.contract or entry.details.interval is not None
            if not moved:
                self._registry.amend(self._service(entry))  # may find no memory for it
        except Refusal:
            entry.info, entry.details = old, before
            entry.interval, entry.liveness, entry.contract = terms
            raise
        if moved:
            # A moved service is another one to its watchers, which connect to the hostport of an offer.
            self._updated = entry
            try:
                self._registry.withdraw(entry.provider, [entry.name])
                self._offer(entry)
            finally:
                self._updated = None
        self._report(entry, details(changes))
        self.live(entry)
        self._look(entry)

    def live(self, entry: ServiceEntry) -> None:
        """Record a sign of life of a service."""
        self._heard(entry)
        entry.failures = 0

    def beat(self, entry: ServiceEntry, source: Source | None, form: Form, sent: float | None) -> None:
        """Process a heartbeat of a service: by UDP from ``source``, or over a connection. ``sent`` is its time, which
        had that form."""
        self._heard(entry)
        entry.form = form
        if source is not None:
            if entry.source != source:
                self._move(entry, source)
            entry.source = source  # an equal one may have asked another address of the broker, which answers it
        if not entry.contract:
            entry.contract = True
            self._amend(entry)
            self._look(entry)
        # A time in single precision has an error of up to a minute, so that it is no evidence about the peer's clock.
        self._registry.beat(entry.provider, None if form is Form.FLOAT32 else sent)

    def bind(self, entry: ServiceEntry, connection: RouterConnection | None, beaten: bool = False) -> None:
        """Bind a service to a connection, unless it has one already through which it can be sent messages.

        A connection over which it has ``beaten`` replaces the one before: that may be half-open, and messages to it
        would be lost.
        """
        if connection is None or connection.entry not in (None, entry) or connection is entry.connection:
            return
        # A REQ socket cannot be sent unsolicited messages, so any other connection is better.
        if entry.connection is not None and entry.connection.req:
            entry.connection.release()
        if entry.connection is None or beaten:
            connection.bind(entry)

    def disconnect(self, entry: ServiceEntry) -> None:
        """Process a DISCONNECT of a service, over either transport: no more messages are sent to it over any."""
        if entry.source is not None:
            self._outbound.hush(entry.source)
        if entry.connection is not None and not entry.connection.req:
            self._outbound.end(entry.connection)
        self.remove(entry, "disconnected")

    def give_up(self, entry: ServiceEntry) -> None:
        """Process that a service has registered at another broker: it is sent nothing more, and removed.

        It stays in the registry until that shows the new one, so that finds never miss it.
        """
        entry.parted = entry.moved = True
        while entry.connection is not None:
            entry.connection.release()  # the older one takes its place
        if self.elsewhere is None or self.elsewhere.held(entry.name) is not None:
            self.remove(entry, "moved")
        else:
            self._look(entry)

    def found_elsewhere(self, entry: ServiceEntry) -> None:
        """Process that another broker offers a service of that name, or that it is found for a moment as this broker
        withdraws its own one for an offer with another endpoint."""
        if entry is self._updated:
            return
        # One that was restored has given no sign of life here since the start, and does so there. One that the registry
        # does not find any more was replaced by the other.
        if entry.moved or entry.restored or not self._registry.services_of(entry.provider):
            self.remove(entry, "moved")

    def remove(self, entry: ServiceEntry, why: str) -> None:
        """Remove a service, also from the registry. ``why`` is the event in the counter ``dbp_services``."""
        if self._entries.get(entry.name) is not entry:
            return  # replaced already
        del self._entries[entry.name]
        entry.removed = True
        self._silence.ended(entry)
        if entry.lease is not None:
            entry.lease.cancel()
            entry.lease = None
        self._move(entry, None)
        while entry.connection is not None:
            entry.connection.release()  # the older one takes its place
        self._registry.leave(entry.provider, REASONS.get(why, "withdrawn"))
        self._refusal_log.count("dbp_services", why)
        self.log.debug("dbp service {name} removed: {why}", name=entry.name, why=why)

    def ping(self, provider: int, seconds: float, answered: Callable[[bool | None], object]) -> bool:
        """Probe a service for a health check. An answer is a sign of life, as that to any other probe.

        See `broker.core.checks.check_rules.Pinger`.
        """
        entry = self._of(provider)
        if entry is None:
            return False

        def ended(alive: bool | None) -> None:
            if alive and self._entries.get(entry.name) is entry:
                entry.proved = True
                self.live(entry)
            answered(alive)

        return self._outbound.probe(entry, seconds, ended)

    def unreachable(self, peer: int) -> bool:
        """Return False: probes have connections of their own."""
        return False

    def left(self, provider: int) -> float | None:
        """Return the seconds until a service under contract expires without a further sign of life; else None."""
        entry = self._of(provider)
        return None if entry is None or not entry.contract else max(0.0, self._dead_at(entry) - self._leases.moment())

    # administration

    def use(self, dbp: Dbp, rights: Rights) -> None:
        """Apply other settings, and ``rights`` to register. The settings hold for later registrations; the interval of
        probes holds for all services. Those whose names may not be offered any more are sent a DISCONNECT, and removed.
        """
        self.dbp = dbp
        self._rights = rights
        for entry in list(self._entries.values()):
            if rights.permits(entry.name):
                self._look(entry)
            else:
                self._outbound.part(entry)
                self.remove(entry, "revoked")

    def part_all(self) -> None:
        """Send all services a DISCONNECT, since the broker stops. They stay in the registry, and so in its record."""
        self._watch.cancel()
        for entry in self._entries.values():
            self._outbound.part(entry)
            if entry.lease is not None:
                entry.lease.cancel()
                entry.lease = None

    def send_away(self) -> Iterator[None]:
        """Send all services a DISCONNECT, and remove them, in steps until there is none: the broker drains.

        20,000 take 0.9 s. One that registers meanwhile is sent away too.
        """
        while self._entries:
            entry = next(iter(self._entries.values()))
            self._outbound.part(entry)
            self.remove(entry, "drained")
            yield

    def dismiss(self, entry: ServiceEntry) -> None:
        """Send one service a DISCONNECT, and remove it, by order of an operator."""
        self._outbound.part(entry)
        self.remove(entry, "withdrawn")

    def _withdrawn(self, change: Change) -> None:
        """Dismiss a service that the registry does not have any more, though it was not removed here."""
        service = change.subject
        assert isinstance(service, Service)
        entry = self._entries.get(service.name)
        if entry is None or entry is self._updated or entry.provider != change.provider:
            return
        # One of another broker that has replaced it was announced before: see `found_elsewhere`.
        if not self._registry.services_of(entry.provider):
            self.dismiss(entry)

    # periodic checks

    def check(self, entry: ServiceEntry, now: float) -> float | None:
        """Expire, probe or send a heartbeat to a service, as is due. Returns the time of the next check, or None."""
        if entry.moved or self._missed_at_home(entry, now):
            entry.lease = None  # this check is the lease's, and ends it
            self.remove(entry, "moved")
            return None
        if not entry.contract:
            return self._check_lasting(entry, now)
        again = self._silence.review(entry, now, self._leases.slack_exact)
        if again is None:
            self._expire(entry)
            return None
        # A doubtful service is sent heartbeats all the same: its network may carry them again.
        if now >= entry.beat_at:
            self._outbound.beat(entry)
            # The phase is kept, but missed heartbeats are not sent in a burst.
            entry.beat_at = max(entry.beat_at + entry.interval, now)
        due = min(again, entry.beat_at)
        if self.dbp.fall_back and not entry.probing:
            ask_at = entry.heard + MISSED * entry.interval
            left = max(again, self._dead_at(entry)) - now
            if now < ask_at:
                due = min(due, ask_at)
            elif left >= LEAST_TO_ASK * entry.interval:
                self._ask(entry, min(ASK_FOR * entry.interval, left))
                if not (entry.probing or entry.unprobed):
                    due = min(due, now + ASK_AGAIN * entry.interval)
        return due

    def confirm(self, entry: ServiceEntry) -> None:
        """Process a connection that a doubtful service accepted."""
        self.live(entry)
        self._look(entry)

    def discard(self, entry: ServiceEntry) -> None:
        """Remove a doubtful service at whose address nothing listens."""
        self._outbound.part(entry)
        self.remove(entry, "expired")

    def _heard(self, entry: ServiceEntry) -> None:
        entry.heard = self._leases.moment()
        if self._silence.suspects:
            self._silence.heard(entry)
        entry.restored = False

    def _under_contract(self) -> Iterator[ServiceEntry]:
        return (entry for entry in self._entries.values() if entry.contract)

    def _of(self, provider: int) -> ServiceEntry | None:
        known = self._registry.wire_and_label(provider)
        entry = None if known is None else self._entries.get(known[1])
        return entry if entry is not None and entry.provider == provider else None

    def _dead_at(self, entry: ServiceEntry) -> float:
        # The exact slack, since an agreed interval may be shorter than the coarse one.
        return entry.heard + entry.patience + self._leases.slack_exact

    def _missed_at_home(self, entry: ServiceEntry, now: float) -> bool:
        """Return True if a service under contract is silent, and another broker has it."""
        if self.elsewhere is None or not entry.contract or now < entry.heard + MISSED * entry.interval:
            return False
        return self.elsewhere.held(entry.name) is not None

    def _check_lasting(self, entry: ServiceEntry, now: float) -> float | None:
        if not self.dbp.probe:
            entry.lease = None
            return None
        if entry.proved and entry.failures >= entry.liveness:
            self._expire(entry)
            return None
        if not entry.probing:
            self._ask(entry, min(self.dbp.probe, entry.interval))
        return now + self.dbp.probe

    def _expire(self, entry: ServiceEntry) -> None:
        """Remove a silent service. It is sent a DISCONNECT, since only its own messages may have been lost."""
        entry.lease = None  # this check is the lease's, and ends it
        self._outbound.part(entry)
        self.remove(entry, "expired")

    def _ask(self, entry: ServiceEntry, seconds: float) -> None:
        def answered(lives: bool | None) -> None:
            entry.probing = False
            if self._entries.get(entry.name) is not entry:
                return  # removed or replaced in the meantime
            if lives:
                entry.proved = True
                self.live(entry)
            elif lives is not None and (entry.contract or self.dbp.probe):
                entry.failures += 1
                if entry.proved and not entry.contract:
                    self._silence.missed(entry, "no answer to a probe")
            if entry.contract:
                self._look(entry)

        try:
            entry.probing = self._outbound.probe(entry, seconds, answered)
        except Refusal as refusal:
            self._explain(entry, f"not checked: {refusal.text}")
        else:
            self._explain(entry, "")

    def _explain(self, entry: ServiceEntry, why: str) -> None:
        """Record the reason why a service is not probed; empty if it is probed. The registry gets it as well, unless
        the service has a health check."""
        before, entry.unprobed = entry.unprobed, why
        if why and why != before:
            self._refusal_log.add(WIRE, entry.address, Refusal(Reason.ADDRESS_NOT_ALLOWED, f"{entry.name}: {why}"))
        provider = self._registry.provider(entry.provider) if why or before else None
        for service in () if provider is None else provider.services:
            check = self._registry.check_of(service)
            if check is None and why:
                self._registry.set_check(service, Check(CheckState.UNTESTED, why, self._outbound.clock.seconds()))
            elif check is not None and check.reason == before and not why:
                self._registry.set_check(service, None)

    # helpers

    def _permit(self, name: str) -> None:
        if is_broker(name) or not self._rights.permits(name):
            raise no_right("offer", name)

    def _agree(self, entry: ServiceEntry) -> None:
        """Set the agreed interval, and the number of intervals that may pass in silence."""
        dbp, wanted = self.dbp, entry.details
        interval = dbp.interval if wanted.interval is None else wanted.interval
        entry.interval = min(max(interval, dbp.least_interval), dbp.most_interval)
        liveness = dbp.liveness if wanted.liveness is None else wanted.liveness
        entry.liveness = min(max(liveness, LEAST_LIVENESS), MOST_LIVENESS)

    def _replace(self, old: ServiceEntry, connection: RouterConnection | None) -> None:
        """Remove the service that another registration replaces, and send it a DISCONNECT over its connection."""
        if old.connection is not None and old.connection is not connection:
            # Not by UDP: the new service may have the same source, and would receive the DISCONNECT too.
            self._move(old, None)
            self._outbound.part(old)
        self.remove(old, "replaced")

    def _join(self, entry: ServiceEntry, restored: bool) -> None:
        # A name belongs to one service, so that the name is its entry.
        owner = Owner(entry=entry.name)
        entry.provider = self._registry.join(entry.name, WIRE, entry.address, owner, entry.address)
        try:
            self._offer(entry)
        except Refusal:
            self._registry.leave(entry.provider)
            raise
        self._report(entry, entry.details, counted=restored)
        self._entries[entry.name] = entry
        self.live(entry)
        entry.restored = restored
        self._look(entry)

    def _offer(self, entry: ServiceEntry) -> None:
        """Offer a service in the registry, which refuses a service that was permitted here only if it is full."""
        self._registry.offer([self._service(entry)], self._rights)

    def _report(self, entry: ServiceEntry, details: Details, counted: bool = False) -> None:
        """Report the load of a registration or an update, if it has one, with its details unless they are
        ``counted`` already."""
        if details.load is not None:
            about = (
                None
                if counted
                else load_details(details.requests, details.errors, details.in_flight, details.latency_ms)
            )
            self._registry.load(entry.provider, details.load, about)

    def _amend(self, entry: ServiceEntry) -> None:
        """Amend a service in the registry after a change of its contract."""
        # The contract was approved, and takes no memory: a registry that refuses must not end the service.
        with suppress(Refusal):
            self._registry.amend(self._service(entry))

    def _service(self, entry: ServiceEntry) -> Service:
        return Service(
            entry.name,
            hostport(entry.details, entry.address),
            entry.provider,
            info=entry.info.decode(),
            lasting=not entry.contract,
            interval=entry.interval if entry.contract else None,
            **{name: description(name, value) for name, value in labels(entry.info).items()},
        )

    def _move(self, entry: ServiceEntry, source: Source | None) -> None:
        """Set the source of a service's datagrams, None for none, and keep the index by source consistent."""
        if entry.source is not None:
            there = self._sources[entry.source]
            del there[entry]
            if not there:
                del self._sources[entry.source]
        entry.source = source
        if source is not None:
            self._sources.setdefault(source, {})[entry] = None

    def _look(self, entry: ServiceEntry) -> None:
        """Schedule the checks of a service from now on, by the current agreement and settings."""
        before, entry.lease = entry.lease, None
        now = self._leases.moment()  # not `now`, which is of the last quantum: the end of a probe leads here too
        if entry.moved:
            entry.lease = self._leases.hold(entry, now + MOVE_SECONDS)
        elif entry.contract:
            entry.beat_at = min(max(entry.beat_at, now), now + entry.interval)
            entry.lease = self._leases.hold(entry, now)
        elif self.dbp.probe:
            entry.lease = self._leases.hold(entry, now + self.dbp.probe)
        else:
            # A doubt by an earlier probe would stay: no later one could end it.
            entry.failures = 0
            self._silence.heard(entry)
            self._explain(entry, "")
        # Cancelled last: while no lease is held at all, the lifetime clock stops.
        if before is not None:
            before.cancel()
