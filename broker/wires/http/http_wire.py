"""The wiring of HTTP: a listener over the endpoints of the daemon and all wires, and the wire's own endpoints."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol

import attrs
from twisted.internet.defer import Deferred
from twisted.logger import Logger

from broker.config.daemon_settings import Broker
from broker.net.admission import ConnectionFactory
from broker.net.connection_limits import ConnectionLimits
from broker.net.http.http_listener import HttpFactory
from broker.net.http.request import HttpLimits, RequestBounds, RequestIds
from broker.net.listeners import StreamListener, listener_row
from broker.net.tls import Certificates
from broker.rest.dispatch import LISTENER, Dispatch
from broker.rest.http_endpoint import Endpoint
from broker.rest.sites import OtherBrokers
from broker.wires.http.http_settings import Http
from broker.wires.http.sessions.finding import FindingEndpoints
from broker.wires.http.sessions.instances import WIRE, Instance, Instances
from broker.wires.http.sessions.registration import RegistrationEndpoints
from broker.wires.interface import PlainWire, WireContext
from broker.wires.tables import ID, AnyView, Column, Row, View

# Views of HTTP for operators: the connections, and the registered instances.


class HttpConnection(Protocol):
    """A connection, as it is shown."""

    address: str
    requests_served: int

    @property
    def state(self) -> str:
        """Its state."""


def http_views(connections: Iterable[HttpConnection], instances: Instances) -> Sequence[AnyView]:
    """Return the tables of the wire for operators."""

    def instance(each: Instance) -> Row:
        return {
            "service": each.name,
            "instance": each.instance,
            "provider": each.provider,
            "hostport": each.offer.hostport,
            "owner": each.owner.name,
            "address": each.principal.address,
            "ttl": each.offer.ttl,
            "left": round(instances.left(each), 2),
        }

    return [
        View(
            name="http connections",
            help="Shows the open connections of HTTP. A pattern selects addresses.",
            columns=(
                Column("address", "Address of the client"),
                Column("state", "State: idle, reading, answering, waiting, stream or websocket"),
                Column("requests", "Requests so far", "requests"),
            ),
            items=lambda: sorted(connections, key=lambda each: each.address),
            row=lambda each: {"address": each.address, "state": each.state, "requests": each.requests_served},
            keys=lambda each: (each.address,),
            title="HTTP connections",
        ),
        View(
            name="http instances",
            help="Shows the instances registered by HTTP, the oldest first. A pattern selects services and instances.",
            columns=(
                Column("service", "Name of the service"),
                Column("instance", "Name of the instance"),
                Column("provider", "Id of the instance in the registry", ID),
                Column("hostport", "Address of the service"),
                Column("owner", "User or address that registered it"),
                Column("address", "Address from which it was registered"),
                Column("ttl", "Time to live without a renewal", "seconds"),
                Column("left", "Time to its end without a renewal", "seconds"),
            ),
            items=lambda: list(instances),
            row=instance,
            keys=lambda each: (each.name, each.instance),
            title="HTTP instances",
            shown=lambda reading, each: reading.shows(each.name),
        ),
    ]


@attrs.define(eq=False)
class OpenHttp(PlainWire):
    """HTTP as it runs; see `broker.wires.interface.OpenWire`."""

    log = Logger()

    config: Http
    context: WireContext
    instances: Instances
    dispatch: Dispatch
    factory: HttpFactory
    listener: StreamListener
    own: Sequence[Endpoint]

    def __attrs_post_init__(self) -> None:
        self.context.accounts.access.changed.append(self._review)

    def bind(self, title: str) -> str:
        """Open the listener."""
        where = self.listener.open()
        scheme = "https" if self.listener.certificates is not None else "http"
        self.log.info("http on {where} ({scheme})", where=where, scheme=scheme)
        return where

    def listener_rows(self) -> Sequence[Mapping[str, object]]:
        """Return the listener."""
        return listener_row(WIRE, LISTENER, self.listener)

    def counts(self) -> Mapping[str, int]:
        """Return the counters of requests and instances."""
        factory = self.factory
        return {
            "http_requests": factory.served,
            "http_connections.open": len(factory.connections),
            "http_waiting.now": factory.waiting.total(),
            "http_instances.now": len(self.instances),
            **{f"http_services.{event}": count for event, count in self.instances.counts.items()},
        }

    def views(self) -> Sequence[AnyView]:
        """Return connections and instances."""
        return http_views(self.factory.connections, self.instances)

    def left(self, provider: int) -> float | None:
        """Return the rest of the TTL of an instance."""
        return self.instances.left_of(provider)

    def endpoints(self) -> Sequence[Endpoint]:
        """Return the endpoints of registration and finding."""
        return self.own

    def certificates(self) -> Sequence[Certificates]:
        """Return the certificates of the open listener."""
        return [] if self.listener.certificates is None else [self.listener.certificates]

    def connection_factories(self) -> Sequence[ConnectionFactory]:
        """Return the listener."""
        return [self.factory]

    def drain(self) -> None:
        """Refuse registrations, renewals and finds by 503, and end those that wait. The API stays open to operators,
        and to withdrawals."""
        self.dispatch.drain()

    def undrain(self) -> None:
        """Accept registrations and finds again."""
        self.dispatch.draining = False

    def peers(self) -> int:
        """Return 0: an instance has no connection, and nothing can send it away. It expires, since a drain refuses its
        renewal, or ends with the broker."""
        return 0

    def reload(self, config: Http, broker: Broker) -> None:
        """Apply other names and limits."""
        self.config = attrs.evolve(config, endpoint=self.config.endpoint)
        self.instances.http = self.config
        self.dispatch.hosts = frozenset(config.hosts)
        self.factory.use(_limits(config))

    def stop_listening(self) -> Deferred[Any]:
        """Accept no more connections."""
        return self.listener.stop_listening()

    def close(self) -> Deferred[Any]:
        """Close all connections. Fires when they are closed."""
        self.dispatch.stop()
        changed = self.context.accounts.access.changed
        if self._review in changed:
            changed.remove(self._review)
        self.instances.stop()
        return self.factory.close()

    def abandon(self) -> None:
        """Close without a running reactor."""
        self.stop_listening()
        self.close()

    def _review(self) -> None:
        self.factory.turns.background.run(self.instances.review(self.context.accounts.access, LISTENER))


def open_http(config: Http, context: WireContext) -> OpenHttp:
    """Create the wire, without opening its listener."""
    clock, refusal_log = context.network.clock, context.network.refusal_log
    instances = Instances(context.core.registry, context.core.leases, config, context.checks.silence)
    if context.cluster.members.clustered:
        instances.follow()
    own = [
        *RegistrationEndpoints(instances, clock, context.cluster.members).endpoints(),
        *FindingEndpoints(context.core.registry, context.accounts.access, clock, context.cluster.members).endpoints(),
    ]
    dispatch = Dispatch(
        context.routes,
        context.accounts.access,
        lambda address, refusal, request_id: refusal_log.add(WIRE, address, refusal, request_id=request_id),
        lambda address, request_id: refusal_log.failed(WIRE, address, request_id=request_id),
        frozenset(config.hosts),
        context.accounts.audit,
        context.accounts.logins.requests,
        OtherBrokers(context.cluster.members, WIRE) if context.cluster.members.clustered else None,
    )
    limits = _limits(config)
    ids = RequestIds.fresh()
    factory: Any = HttpFactory(
        WIRE,
        dispatch.answer,
        limits,
        context.network.scheduler,
        refusal_log,
        clock,
        ids,
        context.network.pool,
        dispatch.refusal,
    )
    listener = StreamListener(clock, config.place, factory, factory, context.network.scheduler, refusal_log, WIRE)
    return OpenHttp(config, context, instances, dispatch, factory, listener, own)


def _limits(config: Http) -> HttpLimits:
    return HttpLimits(
        ConnectionLimits(
            connections=config.connections,
            connections_per_address=config.connections_per_address,
            rate=config.rate,
        ),
        RequestBounds(config.max_body, "http.max_body"),
        config.waiting,
        config.waiting_per_address,
    )
