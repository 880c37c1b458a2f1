"""The services that all bridges of this broker receive: a table of routes, and what is registered of it.

Rules:
- Each received service is a *route*. Routes with the same origin, name, protocol and address lead to one service: the
  shortest one with an open link is registered, as a provider of its own on the wire `bridge`.
- The routes of a bridge whose link has ended are *lost*: what is registered by one is doubtful, and gone after the time
  `keep` of the bridge. A link that opens again refreshes the routes that it brings; the others go after that time, or
  as soon as a new one needs their place: after a restart of the neighbour the same services have other idents.
- Refused services are not in the table. If the reason may pass, as a limit or a lack of provider ids, the neighbour is
  asked for all services again after `ASKS`, once there is room.
- Changes of routes are worked off in slices, so that a link with thousands of services stops nothing else.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence

import attrs
from twisted.internet.interfaces import IDelayedCall, IReactorTime

from broker.backoff import Backoff
from broker.bridge.exports import WIRE
from broker.bridge.paths import Path
from broker.cluster import layout
from broker.config.bridge_settings import BridgeTo
from broker.core.detail_sums import without_counts
from broker.core.errors import Malformed, Reason, Refusal, at_limit
from broker.core.interfaces import IRegistry
from broker.core.model import BRIDGE_PATH, MAX_NAME, MAX_TEXT, FailingService, LoadDetails, Rights, Service, is_amended
from broker.core.turns import Turns

MAX_IDENT = 12 * (2 * MAX_NAME + MAX_TEXT) + 64
"""Bytes of an ident: the id of the provider, the wire, and escaped name, protocol and address, of which a character has
up to four bytes of UTF-8, and each of these is three characters."""

ASK_AFTER = 10.0
"""Seconds until the neighbour is asked for services that were refused."""

ASKS = Backoff(ASK_AFTER, 160.0)
"""Pauses between such requests while services are refused again: each answer has all services of the neighbour."""

PASSING = (Reason.LIMIT, Reason.UNAVAILABLE)
"""Reasons of refusals that may pass."""

Origin = tuple[str, str, str, str]
"""First site of a path; name, protocol and address of the service here. It outlasts a restart of the provider."""


@attrs.frozen(eq=False)
class Route:
    """A received service. ``provider`` is the id of its provider at the neighbour, ``label`` that one's label."""

    source: Source
    ident: bytes
    path: Path
    service: Service
    provider: int
    label: str
    failing: FailingService | None

    @property
    def origin(self) -> Origin:
        """The key of the table of routes."""
        each = self.service
        return self.path.sites[0], each.name, each.protocol, each.hostport


@attrs.define(eq=False)
class Source:
    """The received services of one bridge. ``refused`` counts those that were not taken, ``error`` is the last
    reason. ``ask`` asks the neighbour for all services."""

    config: BridgeTo
    may_offer: Callable[[str], bool]
    ask: Callable[[], object]
    address: str = ""
    routes: dict[bytes, Route] = attrs.field(factory=dict)
    lost: set[bytes] = attrs.field(factory=set)
    providers: dict[int, dict[bytes, Route]] = attrs.field(factory=dict)
    """The routes to the services of each provider of the neighbour."""
    loads: dict[int, tuple[float, LoadDetails | None]] = attrs.field(factory=dict)
    expiry: IDelayedCall | None = None
    asks: int = 0
    """Requests for all services in a row after which some were refused again."""
    asked: float = -ASK_AFTER
    """Time of the last one."""
    refused: int = 0
    error: str = ""

    def is_lost(self, route: Route) -> bool:
        """Return True if the link of a route has ended since the neighbour sent it."""
        return route.ident in self.lost


@attrs.define(eq=False)
class _Shown:
    """A registered service: its route, and the id of its provider here."""

    route: Route
    provider: int


class Imports:
    """The table of routes. ``here`` is the name of this site."""

    def __init__(self, here: str, registry: IRegistry, clock: IReactorTime, turns: Turns) -> None:
        self._here = here
        self._registry = registry
        self._clock = clock
        self._turns = turns
        self._routes: dict[Origin, list[Route]] = {}
        self._shown: dict[Origin, _Shown] = {}
        # Taken from the front: a plain dict skips all that was taken before, each time.
        self._dirty: OrderedDict[Origin, str] = OrderedDict()
        """Services to settle, with the reason for the end of one without a route."""
        self._asking: dict[Source, IDelayedCall] = {}
        """The bridges over which services were refused for a reason that may pass."""
        self._timer: IDelayedCall | None = None

    def take(self, source: Source, frames: Sequence[bytes]) -> None:
        """Handle pairs of an ident and a value. Raises `Malformed`."""
        if len(frames) % 2 or any(len(ident) > MAX_IDENT for ident in frames[::2]):
            raise Malformed(Reason.SYNTAX, "services are pairs of an ident and a value")
        for ident, value in zip(frames[::2], frames[1::2], strict=True):
            before = source.routes.get(bytes(ident))
            load = None if before is None else source.loads.get(before.provider)
            self._remove(source, bytes(ident))
            try:
                route = self._route(source, bytes(ident), bytes(value))
                self._make_room(source, route.origin)
            except Refusal as refusal:
                self._refuse(source, refusal)
                continue
            source.routes[route.ident] = route
            source.providers.setdefault(route.provider, {})[route.ident] = route
            if load is not None:  # a change of its service: the load is as it was
                source.loads[route.provider] = load
            self._routes.setdefault(route.origin, []).append(route)
            self._settle_soon(route.origin)

    def withdraw(self, source: Source, idents: Sequence[bytes]) -> None:
        """Handle the end of services at the neighbour."""
        for ident in idents:
            self._remove(source, bytes(ident))

    def loaded(self, source: Source, loads: layout.Loads) -> None:
        """Handle reports of loads."""
        for provider, load in loads.items():
            routes = source.providers.get(provider)
            if routes is None:
                continue
            source.loads[provider] = load
            for route in routes.values():
                shown = self._shown.get(route.origin)
                if shown is not None and shown.route is route:
                    self._registry.load(shown.provider, *load)

    def lose(self, source: Source) -> None:
        """Handle the end of the link: all services are doubtful, and go after a while."""
        asking = self._asking.pop(source, None)
        if asking is not None:
            asking.cancel()
        source.lost.update(source.routes)
        for route in source.routes.values():
            self._settle_soon(route.origin)
        self.expire_later(source)

    def expire_later(self, source: Source) -> None:
        """Begin the time anew after which lost services go: the link has ended, or is open again."""
        if source.expiry is not None:
            source.expiry.cancel()
        source.expiry = self._clock.callLater(source.config.keep, self._expire, source) if source.lost else None

    def stop(self) -> None:
        """Change nothing any more."""
        for asking in self._asking.values():
            asking.cancel()
        self._asking.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _refuse(self, source: Source, refusal: Refusal) -> None:
        """Count a service that is not taken."""
        source.refused += 1
        source.error = refusal.text
        if refusal.reason in PASSING and source not in self._asking:
            source.asks = source.asks + 1 if self._clock.seconds() < source.asked + ASK_AFTER else 1
            self._asking[source] = self._clock.callLater(ASKS.after(source.asks), self._ask, source)

    def _ask(self, source: Source) -> None:
        """Ask for services that were refused, once there is room."""
        if len(source.routes) < source.config.services:
            del self._asking[source]
            source.asked = self._clock.seconds()
            source.ask()
        else:
            self._asking[source] = self._clock.callLater(ASK_AFTER, self._ask, source)

    def _expire(self, source: Source) -> None:
        source.expiry = None
        for ident in list(source.lost):
            self._remove(source, ident, "expired")

    def _route(self, source: Source, ident: bytes, text: bytes) -> Route:
        """Return the route of a value. Raises `Refusal` for a service that is not taken."""
        try:
            raw = layout.registration(layout.registration_of(ident.partition(b"/")[2]), text)
        except layout.Foreign as error:
            raise Refusal(Reason.SYNTAX, f"a service is malformed: {error}") from None
        name = source.config.prefix + raw.service.name
        path = Path.parse((raw.service.meta or {}).get(BRIDGE_PATH))
        objection = "malformed" if path is None else path.objection(self._here, source.config.name, source.config.hops)
        if path is None or objection:
            raise Refusal(Reason.PARAMETER, f"service {name!r} is not taken: {_OBJECTIONS[objection]}")
        if not source.may_offer(raw.service.name):
            raise Refusal(Reason.FORBIDDEN, f"service {name!r} is not taken: no pattern or right permits it")
        service = attrs.evolve(raw.service, name=name, lasting=False, interval=None)
        return Route(source, ident, path, service, raw.provider.id, raw.provider.label, raw.failing)

    def _make_room(self, source: Source, origin: Origin) -> None:
        """Remove a route of a bridge that has no room for another one: one to the same service, or a lost one. Raises
        `Refusal` if there is neither."""
        if len(source.routes) < source.config.services:
            return
        same = (each for each in self._routes.get(origin, ()) if each.source is source)
        former = min(same, key=lambda each: not source.is_lost(each), default=None)
        lost = next(iter(source.lost), None) if former is None else former.ident
        if lost is None:
            many = f"more than {source.config.services} services come from {source.config.name}"
            raise at_limit(many, "bridges.to.services")
        self._remove(source, lost, "expired")

    def _remove(self, source: Source, ident: bytes, why: str = "withdrawn") -> None:
        route = source.routes.pop(ident, None)
        source.lost.discard(ident)
        if route is None:
            return
        same = source.providers[route.provider]
        del same[ident]
        if not same:
            del source.providers[route.provider]
            source.loads.pop(route.provider, None)
        routes = self._routes[route.origin]
        routes.remove(route)
        if not routes:
            del self._routes[route.origin]
        self._settle_soon(route.origin, why)

    def _settle_soon(self, origin: Origin, why: str = "withdrawn") -> None:
        self._dirty[origin] = why
        if self._timer is None:
            self._timer = self._clock.callLater(0, self._work)

    def _work(self) -> None:
        self._timer = None
        with self._turns:
            while self._dirty:
                origin, why = self._dirty.popitem(last=False)
                self._settle(origin, why)
                if self._turns.over():
                    break
        if self._dirty and self._timer is None:
            self._timer = self._clock.callLater(0, self._work)

    def _settle(self, origin: Origin, why: str) -> None:
        """Register the best route to a service, in place of the one that is registered."""
        routes = self._routes.get(origin, ())
        best = min(routes, key=lambda each: (each.source.is_lost(each), len(each.path.sites)), default=None)
        shown = self._shown.get(origin)
        if best is None:
            if shown is not None:
                del self._shown[origin]
                self._registry.leave(shown.provider, why)
            return
        try:
            if shown is not None and self._same(shown, best):
                shown.route = best
            else:
                # The new one first: a find never misses both.
                self._show(origin, best)
                if shown is not None:
                    self._registry.leave(shown.provider)
        except Refusal as refusal:
            # The next route is settled. What is registered stays if that one leads to it.
            self._refuse(best.source, refusal)
            self._remove(best.source, best.ident)
            return
        self._judge(self._shown[origin])

    def _same(self, shown: _Shown, best: Route) -> bool:
        """Return True if the registered service is that of a route, or became it by an amendment, or by a change of its
        provider's label. Raises `Refusal` if that change is refused."""
        if shown.route.source is not best.source or shown.route.path.id != best.path.id:
            return False  # a provider here has the address of one neighbour, and the load of one provider
        old = attrs.evolve(shown.route.service, provider=shown.provider)
        new = attrs.evolve(best.service, provider=shown.provider)
        if not is_amended(old, new):
            return False
        if old != new:
            self._registry.amend(new)
        self._registry.relabel(shown.provider, best.label)
        return True

    def _show(self, origin: Origin, route: Route) -> None:
        """Register a route. Raises `Refusal`."""
        source = route.source
        provider = self._registry.join(route.label, WIRE, source.address)
        try:
            self._registry.offer([attrs.evolve(route.service, provider=provider)], Rights())
        except Refusal:
            self._registry.leave(provider)
            raise
        self._shown[origin] = _Shown(route, provider)
        if route.provider in source.loads:
            load, details = source.loads[route.provider]
            # Its requests were counted when it came, for what was registered then.
            self._registry.load(provider, load, without_counts(details))

    def _judge(self, shown: _Shown) -> None:
        """Mark a registered service as doubtful if its route is lost, or its neighbour says that it fails."""
        route = shown.route
        reason = None
        if route.source.is_lost(route):
            reason = f"the bridge to {route.source.config.name} is down"
        elif route.failing is not None:
            reason = f"at {route.source.config.name}: {route.failing.reason}"
        self._registry.doubt(shown.provider, reason)


_OBJECTIONS = {
    "malformed": "its path is not one that ends at the neighbour",
    "loop": "it has left this site before",
    "hops": "it crossed more bridges than `hops` permits",
}
