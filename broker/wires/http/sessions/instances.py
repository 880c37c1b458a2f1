"""Instances of services that were registered by HTTP: each is a provider with one service, and ends with its lease.

Rules:
- An instance is named by its service and an instance name, which its owner chooses. Its owner is that of
  `broker.access.identity`: a user or a host. The answer to a registration has a random owner token. A request of
  another owner is refused, unless it has that token: an instance that moved to another machine goes on so. The table
  has the token, the registry, its record and the cluster have a digest of it.
- A registration of an unknown instance with a token keeps that token, from before a restart or from another broker.
- A registration with the token by another owner is a new provider of that owner. Renewals and withdrawals by the token
  leave the owner as it is.
- After a restart, restored instances still belong to their owners until the end of the grace period. Their owners
  register them again, or withdraw them.
- It ends with the credential of its latest registration or renewal, and with its owner's right to offer the name.
- It expires when it was not renewed within its TTL. A stall of the broker itself does not count (`ILeases`). If many
  peers are silent at once, it is doubtful before that (`broker.core.silence`).
- If an administrator withdraws the provider or its service, the instance is unknown at its next renewal.
- Reaching a limit refuses new instances only.
- An instance that its owner registers at another broker of the cluster, by its name or at its endpoint, has *moved*: it
  ends here, and its next renewal here finds it unknown, so that its client registers it again where it is. Another
  owner is refused, as at one broker.
"""

from __future__ import annotations

import hashlib
import re
import secrets
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import quote, unquote

import attrs

from broker.access.identity import owner_of
from broker.access.principal import Access, Principal
from broker.core.errors import Elsewhere, Reason, Refusal, at_limit
from broker.core.interfaces import ILease, ILeases, IRegistry, IWait
from broker.core.model import (
    MAX_NAME,
    Change,
    Kind,
    LoadDetails,
    Owner,
    Provider,
    Rights,
    Service,
    check_segment,
    checked_load,
)
from broker.core.silent_peers import DOUBTFUL, Silence, silent_for
from broker.core.turns import for_each
from broker.wires.http.http_settings import Http

RENEWALS = 3
"""Renewals in a TTL: clients renew after a third of it (docs/protocols/http.md)."""

WIRE = "http"
"""The name of the wire in the registry."""

TOKEN = 32
"""Random bytes of an owner token: it cannot be guessed."""

_TOKEN = re.compile(r"[A-Za-z0-9_-]{43}")
"""An owner token in base64url."""


@attrs.frozen
class Offer:
    """Offer of an instance. ``texts`` are those of `broker.core.model.DESCRIPTIONS` that it has; ``info`` is a JSON
    object as text; ``ttl`` in seconds."""

    hostport: str
    protocol: str
    texts: Mapping[str, Any]
    info: str | None
    ttl: float

    @property
    def label(self) -> str | None:
        """The label of the provider, too."""
        label: str | None = self.texts.get("label")
        return label


@attrs.define(eq=False)
class Instance:
    """A registered instance."""

    name: str
    instance: str
    principal: Principal
    """The client that registered or renewed it last."""
    owner: Owner
    token: str = attrs.field(repr=False)
    """The owner token."""
    provider: int
    offer: Offer
    heard: float
    """The last renewal, in lifetime."""
    table: Instances
    lease: ILease | None = None

    def check(self, now: float) -> float | None:
        """End the instance if it is silent; see `broker.core.interfaces.Leased`."""
        again = self.table.silence.review(self, now, self.table.slack)
        if again is None:
            self.table.expired(self)
        return again

    @property
    def pace(self) -> float:
        """A third of the TTL; see `broker.core.silent_peers.Silent`, as for the members below."""
        return self.offer.ttl / RENEWALS

    @property
    def patience(self) -> float:
        """The TTL."""
        return self.offer.ttl

    @property
    def providers(self) -> tuple[int, ...]:
        """The id of the instance in the registry."""
        return (self.provider,)

    def confirm(self) -> None:
        """Renew the instance, since a connection to it was accepted."""
        self.table.confirm(self)

    def discard(self) -> None:
        """End the instance, since nothing listens at its hostport."""
        self.table.expired(self)

    @property
    def due(self) -> float:
        """The end of the lease without a renewal, in lifetime."""
        return self.heard + self.offer.ttl + self.table.slack


class Instances:
    """The table of instances."""

    def __init__(self, registry: IRegistry, leases: ILeases, http: Http, silence: Silence) -> None:
        self.http = http
        self.silence = silence
        self.silence.follow(self._all_instances)
        self.counts: Counter[str] = Counter()
        """Events: registered, renewed, replaced, withdrawn, expired, moved, revoked."""
        self.watch: IWait | None = None
        """The watch of other brokers; None without a cluster."""
        self._registry = registry
        self._leases = leases
        self._all: dict[tuple[str, str], Instance] = {}
        self._by_provider: dict[int, Instance] = {}
        self._by_owner: Counter[str] = Counter()
        self._replacing: Instance | None = None
        """The instance whose service is withdrawn for another one."""

    def __len__(self) -> int:
        return len(self._all)

    def __iter__(self) -> Iterator[Instance]:
        return iter(self._all.values())

    @property
    def slack(self) -> float:
        """Seconds to add to a TTL: see `ILeases.slack_exact`."""
        return self._leases.slack_exact

    def left(self, instance: Instance) -> float:
        """Return the seconds to the end of an instance without a renewal."""
        return max(0.0, instance.due - self._leases.moment())

    def left_of(self, provider: int) -> float | None:
        """Return the same of the instance of a provider; None if it has none."""
        known = self._by_provider.get(provider)
        return None if known is None else self.left(known)

    def put(
        self, name: str, instance: str, principal: Principal, offer: Offer, token: str = ""
    ) -> tuple[Instance, bool]:
        """Register an instance, or renew and replace it. Returns it, and True if it is new. Raises `Refusal`."""
        if len(instance) > MAX_NAME:
            raise Refusal(Reason.PARAMETER, f"an instance has a name of at most {MAX_NAME} characters")
        check_segment("service instance", instance)
        claim = _claim(name, instance, principal, token)
        known = self._known(name, instance)
        if known is None:
            _check_owner(self._registry.remembered_owner(WIRE, claim.entry), claim)
            for holder in self._holders_elsewhere(name, claim.entry):
                _check_owner(holder.owner, claim)
            if not _TOKEN.fullmatch(token):
                token = secrets.token_urlsafe(TOKEN)
            return self._register(name, instance, principal, offer, token), True
        _check_owner(known.owner, claim)
        if known.owner.name == claim.name:
            self._replace(known, offer)
            known.principal = principal
            return known, False
        made = self._register(name, instance, principal, offer, known.token, known)
        self.counts["moved"] += 1
        return made, False

    def renew(self, name: str, instance: str, principal: Principal, token: str = "") -> Instance:
        """Renew an instance. Raises `Refusal` NO_SUCH_SERVICE if it is unknown or has expired."""
        known = self._own(name, instance, principal, token)
        known.principal = principal
        self._heard(known)
        self.counts["renewed"] += 1
        return known

    def report(self, instance: Instance, load: float | None, details: LoadDetails | None) -> None:
        """Report the load of an instance and its details; without a load, the one before. No-op without both.

        Raises `Refusal` for an invalid load.
        """
        if load is None:
            provider = None if details is None else self._registry.provider(instance.provider)
            if provider is None:
                return
            load = provider.load
        self._registry.load(instance.provider, checked_load(load), details)

    def withdraw(self, name: str, instance: str, principal: Principal, token: str = "") -> None:
        """End an instance, also a restored one. Raises `Refusal` NO_SUCH_SERVICE if it is unknown, ELSEWHERE if it is
        at another broker."""
        if self._known(name, instance) is None:
            claim = _claim(name, instance, principal, token)
            _check_owner(self._registry.remembered_owner(WIRE, claim.entry), claim)
            if self._registry.end_remembered(WIRE, claim.entry):
                self.counts["withdrawn"] += 1
                return
            holder = next(self._holders_elsewhere(name, claim.entry), None)
            if holder is not None:
                _check_owner(holder.owner, claim)
            broker = self._registry.remembered_holder(WIRE, claim.entry) if holder is None else holder.broker
            if broker:
                text = f"the instance {instance!r} of {name!r} is at the broker {broker!r}: withdraw it there"
                raise Elsewhere(text, broker, "")
        self._end(self._own(name, instance, principal, token), "withdrawn")

    def review(self, access: Access, listener: str) -> Iterator[None]:
        """Return the steps that end the instances of owners whose credential, or right to offer the name at that
        listener, has ended: 10,000 take 0.2 s. Their requests are refused meanwhile."""

        def end_revoked(instance: Instance) -> None:
            if instance.provider in self._by_provider and not (
                access.stands(instance.principal)
                and access.allows(instance.principal, listener, "offer", instance.name)
            ):
                self._end(instance, "revoked")

        return for_each(list(self._all.values()), end_revoked)

    def expired(self, instance: Instance) -> None:
        """End an instance that was not renewed."""
        self._end(instance, "expired")

    def confirm(self, instance: Instance) -> None:
        """Process a check of a doubtful instance that succeeded: its lease begins again."""
        self._heard(instance)
        self._hold(instance)

    def follow(self) -> None:
        """Give up instances that are registered at other brokers of the cluster."""
        self.watch = self._registry.watch(self._offered, (Kind.OFFERED,))

    def stop(self) -> None:
        """End all leases. The instances stay in the registry: the store records them as present."""
        if self.watch is not None:
            self.watch.cancel()
        for instance in self._all.values():
            if instance.lease is not None:
                instance.lease.cancel()
        self._all.clear()
        self._by_provider.clear()
        self._by_owner.clear()

    # inside

    def _offered(self, change: Change) -> None:
        service = change.subject
        assert isinstance(service, Service)
        if service.provider in self._by_provider or not self._by_provider:
            return
        holder = self._holder_elsewhere(service)
        if holder is None:
            return
        same = {
            self._by_provider[each.provider]: None
            for each in self._registry.services(service.name, service.protocol)
            if each.provider in self._by_provider and each.hostport == service.hostport
        }
        _, _, instance = _entry(holder).rpartition("/")
        known = self._all.get((service.name, unquote(instance)))
        if known is not None:
            same[known] = None
        for each in same:
            # Two owners may register one instance at the same moment, or have different ones at one endpoint.
            if holder.owner.admits(each.owner) and each is not self._replacing:
                self._end(each, "moved")

    def _holders_elsewhere(self, name: str, entry: str) -> Iterator[Provider]:
        """Yield the providers of an instance at other brokers."""
        if self.watch is None:
            return
        for service in self._registry.services(name):
            holder = self._holder_elsewhere(service)
            if holder is not None and _entry(holder) in (entry, unquote(entry)):
                yield holder

    def _holder_elsewhere(self, service: Service) -> Provider | None:
        """Return the provider of a service if it is an instance at another broker."""
        holder = self._registry.provider(service.provider)
        return holder if holder is not None and holder.broker and holder.wire == WIRE else None

    def _end(self, instance: Instance, event: str) -> None:
        """Remove an instance from this table and the registry, and count that as ``event``."""
        self._forget(instance)
        self._registry.leave(instance.provider, "expired" if event == "expired" else "withdrawn")
        self.counts[event] += 1

    def _register(
        self,
        name: str,
        instance: str,
        principal: Principal,
        offer: Offer,
        token: str,
        before: Instance | None = None,
    ) -> Instance:
        """Add an instance, in place of that of another owner if there is one. Raises `Refusal`."""
        owner = _claim(name, instance, principal, token)
        self._check_room(owner.name, before)
        rights = Rights()
        instead_of = None if before is None else before.provider
        self._registry.check(_service(name, 0, offer), rights, instead_of)
        label = offer.label or f"{name}/{instance}"
        provider = self._registry.join(label, WIRE, principal.address, owner, principal.payer)
        try:
            self._registry.offer([_service(name, provider, offer)], rights, instead_of)
        except Refusal:
            self._registry.leave(provider, "withdrawn")
            raise
        if before is not None:
            # Not earlier, so that no watcher sees the service without an instance.
            self._end(before, "replaced")
        made = Instance(name, instance, principal, owner, token, provider, offer, self._leases.moment(), self)
        self._all[name, instance] = self._by_provider[provider] = made
        self._by_owner[owner.name] += 1
        self._hold(made)
        if before is None:
            self.counts["registered"] += 1
        return made

    def _own(self, name: str, instance: str, principal: Principal, token: str) -> Instance:
        known = self._known(name, instance)
        if known is None:
            raise Refusal(Reason.NO_SUCH_SERVICE, f"there is no instance {instance!r} of {name!r}, or it has expired")
        _check_owner(known.owner, _claim(name, instance, principal, token))
        return known

    def _known(self, name: str, instance: str) -> Instance | None:
        """Return an instance whose service is in the registry."""
        known = self._all.get((name, instance))
        if known is None:
            return None
        provider = self._registry.provider(known.provider)
        if provider is not None and provider.services:
            return known
        self._forget(known)
        self._registry.leave(known.provider, "withdrawn")
        return None

    def _check_room(self, owner: str, before: Instance | None) -> None:
        http = self.http
        if before is None and len(self._all) >= http.services:
            text = f"{http.services} instances are registered by HTTP, which is the limit"
            raise at_limit(text, "http.services")
        if http.services_per_user and self._by_owner[owner] >= http.services_per_user:
            text = f"{owner} has {http.services_per_user} instances, which is the limit"
            raise at_limit(text, "http.services_per_user")

    def _replace(self, known: Instance, offer: Offer) -> None:
        """Renew an instance with another offer, or the same."""
        before, known.offer = known.offer, offer
        service = _service(known.name, known.provider, offer)
        try:
            if _place(before) == _place(offer):
                if before != offer:
                    self._registry.amend(service)
                self._heard(known)
            else:
                rights = Rights()
                self._registry.check(service, rights, known.provider)
                # Before the other place is offered: a doubt is one of the former place.
                self._heard(known)
                # In between, what another broker has of the instance is found: this act is later than that.
                self._replacing = known
                self._registry.withdraw(known.provider, [known.name])
                self._replacing = None
                self._registry.offer([service], rights)
        except Refusal:
            known.offer = before
            raise
        if before != offer:
            self.counts["replaced"] += 1
            if before.label != offer.label:
                self._registry.relabel(known.provider, offer.label or f"{known.name}/{known.instance}")
        else:
            self.counts["renewed"] += 1
        if offer.ttl < before.ttl:
            # The check of the longer lease would come too late.
            self._hold(known)

    def _all_instances(self) -> Iterator[Instance]:
        return iter(self._all.values())

    def _heard(self, known: Instance) -> None:
        known.heard = self._leases.moment()
        self.silence.heard(known)
        self._registry.beat(known.provider)

    def _hold(self, known: Instance) -> None:
        """Begin the lease of an instance, or begin it again."""
        if known.lease is not None:
            known.lease.cancel()
        known.lease = self._leases.hold(known, known.heard + self.slack + silent_for(known, DOUBTFUL))

    def _forget(self, known: Instance) -> None:
        self.silence.ended(known)
        if known.lease is not None:
            known.lease.cancel()
            known.lease = None
        del self._all[known.name, known.instance]
        del self._by_provider[known.provider]
        self._by_owner[known.owner.name] -= 1
        if not self._by_owner[known.owner.name]:
            del self._by_owner[known.owner.name]


def _place(offer: Offer) -> tuple[str, str, str | None]:
    """Return the part of an offer that cannot be amended."""
    return offer.hostport, offer.protocol, offer.label


def _claim(name: str, instance: str, principal: Principal, token: str) -> Owner:
    """Return the owner that a request is from, with the digest of the token that it gave."""
    proof = hashlib.sha256(token.encode(errors="replace")).hexdigest() if token else ""
    entry = f"{quote(name, safe='', errors='replace')}/{quote(instance, safe='', errors='replace')}"
    return Owner(owner_of(principal.name, principal.address), entry, proof)


def _check_owner(owner: Owner, claim: Owner) -> None:
    """Raise `Refusal` NAME_TAKEN unless the claim is that of the owner."""
    if not owner.admits(claim):
        name, _, instance = map(unquote, claim.entry.partition("/"))
        besides = ", and this is not its owner token" if claim.proof else ""
        raise Refusal(Reason.NAME_TAKEN, f"the instance {instance!r} of {name!r} has another owner{besides}")


def _entry(holder: Provider) -> str:
    """Return service and instance of a provider at another broker; those of older versions have only the label."""
    return holder.owner.entry or holder.label


def _service(name: str, provider: int, offer: Offer) -> Service:
    return Service(
        name=name,
        hostport=offer.hostport,
        provider=provider,
        protocol=offer.protocol,
        info=offer.info,
        interval=offer.ttl,
        **offer.texts,
    )
