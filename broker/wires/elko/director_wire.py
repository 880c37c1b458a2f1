"""The running Elko Director: its listeners, its sessions, and its names in the registry.

It is a wire beside the broker. Therefore `shut_down` ends the director only, and the broker continues; and
`reinitialize` reads the configuration of the whole daemon, as that of the broker does. It then announces the director
again: real Context Servers that lost their connection reconnect only when they find the director again. Those that are
connected open another connection each, which is harmless.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import attrs
from twisted.internet.defer import Deferred, DeferredList
from twisted.logger import Logger

from broker.config.daemon_settings import Broker
from broker.core.checks.check_rules import Pinger
from broker.core.director.director import Director
from broker.core.director.director_interfaces import ContextDump, DirectorSettings, IDirector, ProviderDump, UserPlace
from broker.core.director.linked_director import LinkedDirector
from broker.core.director.returning import WITHIN
from broker.core.model import Service
from broker.net.peer_interfaces import MessageReader, Peer, PeerSession
from broker.wires.elko.codec import blocks
from broker.wires.elko.codec.director_messages import VOCABULARY
from broker.wires.elko.console_commands import director_dialect
from broker.wires.elko.elko_listeners import ElkoWire, base_policy
from broker.wires.elko.elko_settings import Director as Config
from broker.wires.elko.elko_settings import DirectorListener, title
from broker.wires.elko.server_checks import ServerChecks
from broker.wires.elko.sessions.authentication import AccessControl, Policy
from broker.wires.elko.sessions.director_session import DirectorSession, DirectorWiring
from broker.wires.interface import WireContext
from broker.wires.tables import AnyView, Column, Dialect, Row, View

# Views of the director for operators: Context Servers, contexts and users.

MAX_CONTEXTS = 50
"""Contexts shown of one user: a user is in one or two."""

PROVIDER_COLUMNS = (
    Column("label", "Label of the Context Server"),
    Column("load", "Load that it reported last"),
    Column("capacity", "Users that it takes; -1 for no limit", "users"),
    Column("contexts", "Open contexts", "contexts"),
    Column("users", "Users in them", "users"),
    Column("hostports", "Its addresses"),
    Column("protocols", "The protocol of each address"),
    Column("serving", "Families of contexts that it serves"),
)

CONTEXT_COLUMNS = (
    Column("context", "Name of the context"),
    Column("provider", "Label of its Context Server"),
    Column("users", "Users in it", "users"),
)

USER_COLUMNS = (
    Column("user", "Name of the user"),
    Column("contexts", f"The first {MAX_CONTEXTS} contexts that the user is in"),
)


def director_views(director: IDirector) -> Sequence[AnyView]:
    """Return the views of the director."""

    def users() -> Iterator[UserPlace]:
        """Yield the present users, without those that leave before their turn."""
        return (place for name in director.users() if (place := director.find_user(name)).on)

    return [
        View(
            "director providers",
            "Shows the Context Servers in the order of their loads. A pattern selects labels or addresses.",
            PROVIDER_COLUMNS,
            lambda: director.dump(1, None, None).pieces,
            _provider,
            lambda server: (server.label, *server.hostports),
        ),
        View(
            "director contexts",
            "Shows the open contexts, by their servers. A pattern selects names.",
            CONTEXT_COLUMNS,
            lambda: _contexts(director),
            lambda found: {"context": found[1].context, "provider": found[0], "users": found[1].count},
            lambda found: (found[1].context,),
            sums=("users",),
        ),
        View(
            "director users",
            "Shows the users that are in a context. A pattern selects names.",
            USER_COLUMNS,
            users,
            lambda place: {"user": place.user, "contexts": list(place.contexts[:MAX_CONTEXTS])},
            lambda place: (place.user,),
        ),
    ]


def _contexts(director: IDirector) -> Iterator[tuple[str, ContextDump]]:
    """Yield the contexts with the labels of their servers."""
    label = ""
    for piece in director.dump(2, None, None).pieces:
        if isinstance(piece, ProviderDump):
            label = piece.label
        else:
            yield label, piece


def _provider(server: ProviderDump) -> Row:
    return {
        "label": server.label,
        "load": server.load,
        "capacity": server.capacity,
        "contexts": server.contexts,
        "users": server.users,
        "hostports": list(server.hostports),
        "protocols": list(server.protocols),
        "serving": list(server.serving),
    }


WIRE = "director"
"""The name of the wire in counters and logs."""


RECORD = "director.json"
"""File name of the record of the farm, in the state directory."""


class OpenDirector(ElkoWire[DirectorListener]):
    """The running director; see `broker.wires.interface.OpenWire`."""

    log = Logger()

    def __init__(self, config: Config, context: WireContext) -> None:
        self._config = config
        self._broker = context.broker
        self._context = context
        self._announced = True
        self._ending = False
        self._checks = context.checks.schedule
        self._server_checks = ServerChecks(context.checks.schedule, context.core.leases)
        self._linked: LinkedDirector | None = None
        within = min(WITHIN, context.broker.grace)
        if context.cluster.members.clustered:
            self._linked = LinkedDirector(
                context.network.clock,
                self._settings(),
                context.cluster.members,
                context.cluster.owners,
                context.cluster.links,
                context.offer_own,
                within,
            )
        self._director = self._linked or Director(context.network.clock, self._settings())
        if context.state:
            path = os.path.join(context.state, RECORD)
            self._director.keep_record(context.network.clock, context.core.in_thread, path, within)
        self._closing: list[Deferred[Any]] = []
        self.wiring = DirectorWiring.of(self._director, self, context.network.clock, self._server_checks)
        super().__init__(WIRE, context, config.listeners)

    def views(self) -> Sequence[AnyView]:
        """Return the views of Context Servers, contexts and users."""
        return director_views(self._director)

    def pinger(self) -> Pinger:
        """Return the ping of Context Servers, by the numbers of their connections."""
        return self._server_checks

    def actions(self) -> Mapping[str, Callable[..., Any]]:
        """Return the text to contexts and users."""
        return {"say": self._director.say}

    def dialects(self) -> Sequence[Dialect]:
        """Return the console commands."""
        return [director_dialect(self.wiring, self._context.accounts.access, self._context.accounts.audit)]

    def counts(self) -> dict[str, int]:
        """Return counters and present numbers, by ``director.REASON``."""
        return {f"{WIRE}.{name}": count for name, count in self._director.counts().items()}

    def services(self) -> Iterable[Service]:
        """Return the listeners as services, with the names that the original director uses; none after its shutdown.

        Those of the other directors of a cluster are among them: real Context Servers connect to all that they find.
        """
        own = list(self.services_of(self._service_name)) if self._announced else []
        if self._linked is None:
            return own
        self._linked.announce([each for service in own if (each := self._reached(service)) is not None])
        return [*own, *self._linked.elsewhere()]

    def reload(self, config: Config, broker: Broker) -> None:
        """Apply new settings, policies and limits."""
        self._config, self._broker = config, broker
        self._director.use(self._settings())
        self._server_checks.refresh()
        self.reload_listeners(config.listeners)

    # Requested by administrators

    def reinitialize(self) -> None:
        """Read the configuration again, and announce the director again."""
        self._context.control.reload()
        self._announced = False
        self._context.offer_own()
        # Withdrawn and offered again: the finds of real servers (with ``monitor``) are answered by each new offer only.
        self._announced = not self._ending
        self._context.offer_own()

    def shut_down(self) -> None:
        """End the director, in the next turn of the reactor, after the present message is handled."""
        if self._ending:
            return
        self._ending = True
        self.log.info("the director was shut down by an administrator")
        self._context.network.clock.callLater(0, self._end)

    # Shutdown

    def stop_listening(self) -> Deferred[Any]:
        """Accept no more connections. Fires when all ports are closed."""
        self._director.stop_record()
        if self._linked is not None and not self._ending:
            self._linked.stop()
        return super().stop_listening()

    def close(self) -> Deferred[Any]:
        """Close all connections in order. Fires when they are closed."""
        self._closing.append(super().close())
        return DeferredList(self._closing)

    def _end(self) -> None:
        self._announced = False
        self._context.offer_own()
        for listener in self._config.listeners:
            self._context.forget(title(WIRE, listener))
        if self._linked is not None:
            self._linked.retire()
        # Ports first: a peer that reconnects at once must be refused, not accepted and dropped.
        self.stop_listening().addCallback(lambda _: self.close())

    def _service_name(self, role: str) -> str:
        suffix = self._config.service or self._broker.service
        return f"director-{role}-{suffix}" if suffix else f"director-{role}"

    def _reached(self, service: Service) -> Service | None:
        """Return a service at the address by which other machines reach it; None if they cannot."""
        reached = self._context.cluster.reached(service.hostport)
        return None if reached is None else attrs.evolve(service, hostport=reached)

    def policy(self, listener: DirectorListener) -> Policy:
        """See `ElkoWire`."""
        limits = listener.limits
        policy = base_policy(listener, self._broker.diagnostics)
        return attrs.evolve(policy, waits=limits.watches, reservations=limits.reservations)

    def converse(self, access: AccessControl, peer: Peer) -> tuple[MessageReader, PeerSession]:
        """See `ElkoWire`."""
        return blocks.BlockReader(VOCABULARY), DirectorSession(self.wiring, access, peer)

    def _settings(self) -> DirectorSettings:
        config, panic = self._config, self._checks.settings.panic
        return DirectorSettings(config.load_bump, config.reservation, config.providers, config.user_reservations, panic)
