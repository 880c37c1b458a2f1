"""The running Elko Broker: its listeners on all transports, and their sessions.

`broker.wires.interface` defines the methods; `wire` registers the class.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import attrs
from twisted.internet.defer import Deferred
from twisted.logger import Logger

from broker.config.daemon_settings import Broker
from broker.core.checks.check_rules import Pinger
from broker.core.cluster.cluster_interfaces import Member
from broker.core.interfaces import IRegistry
from broker.core.model import Rights, Service
from broker.net.peer_interfaces import MessageReader, Peer, PeerSession
from broker.wires.elko.codec import blocks
from broker.wires.elko.codec.broker_messages import VOCABULARY
from broker.wires.elko.console_commands import broker_dialect
from broker.wires.elko.elko_listeners import ElkoWire, base_policy
from broker.wires.elko.elko_settings import BrokerListener, Elko
from broker.wires.elko.sessions.authentication import AccessControl, Policy
from broker.wires.elko.sessions.broker_session import BrokerSession, BrokerWiring, PeerInfo
from broker.wires.elko.sessions.descriptor_cache import ChangeNotices
from broker.wires.interface import WireContext
from broker.wires.tables import ID, AnyView, Column, Dialect, Row, View

# Views of the Elko Broker for operators: its connected peers.

COLUMNS = (
    Column("address", "Address of the peer"),
    Column("label", "Label that the peer gave"),
    Column("roles", "Roles that the peer authenticated for"),
    Column("trusted", "True if the peer is shown the secrets of services"),
    Column("waits", "Finds of the peer that wait or monitor", "finds"),
    Column("provider", "Id of the peer in the registry", ID),
    Column("services", "Services that it offers", "services"),
    Column("load", "Load that it reported last"),
)


def broker_views(wiring: BrokerWiring) -> Sequence[AnyView]:
    """Return the views of the wire."""
    return [
        View(
            "elko sessions",
            "Shows the sessions, the oldest first, those of operators too. A pattern selects labels or addresses.",
            COLUMNS,
            lambda: (session.info for session in list(wiring.sessions)),
            partial(_session, wiring.registry),
            lambda info: (info.label, info.address),
        )
    ]


def _session(registry: IRegistry, info: PeerInfo) -> Row:
    about: dict[str, object] = {
        "address": info.address,
        "label": info.label,
        "roles": list(info.roles),
        "trusted": info.trusted,
        "waits": info.waits,
    }
    provider = None if info.provider is None else registry.provider(info.provider)
    if provider is not None:
        about |= {"provider": provider.id, "services": len(provider.services), "load": provider.load}
    return about


WIRE = "elko"
"""The name of the wire in counters and logs."""


class OpenElko(ElkoWire[BrokerListener]):
    """The running Elko Broker; see `broker.wires.interface.OpenWire`."""

    log = Logger()

    def __init__(self, config: Elko, context: WireContext) -> None:
        self._broker = context.broker
        self._access = context.accounts.access
        self._audit = context.accounts.audit
        registry = context.core.registry
        self.wiring = BrokerWiring(
            registry, ChangeNotices(registry), context.core.launchers, context.control, silence=context.checks.silence
        )
        self._context = context
        super().__init__(WIRE, context, config.listeners)
        self._watch = context.cluster.members.watch_members(self._member_changed)

    def services(self) -> Iterable[Service]:
        """Return the open listeners as services, with the names that the original broker uses. The listeners of the
        cluster's other brokers come after them, so that a client that finds these names knows where to reconnect if
        this broker is lost."""
        suffix = f"-{self._broker.service}" if self._broker.service else ""

        def name(role: str) -> str:
            return f"broker-{role}{suffix}"

        own = list(self.services_of(name))
        members = self._context.cluster.members
        listeners = [each.listeners for each in members.members() if own and each.name != members.name]
        return [*own, *(each for at in listeners for each in self.services_of(name, at))]

    def stop_listening(self) -> Deferred[Any]:
        """Accept no more connections, and follow the other brokers no longer."""
        self._watch.cancel()
        return super().stop_listening()

    def _member_changed(self, name: str, member: Member | None) -> None:
        if name != self._context.cluster.members.name:
            self._context.offer_own()

    def counts(self) -> Mapping[str, int]:
        """Return the number of connections."""
        return {"elko_connections.open": sum(len(each.connections) for each in self.connection_factories())}

    def views(self) -> Sequence[AnyView]:
        """Return the view of the sessions."""
        return broker_views(self.wiring)

    def pinger(self) -> Pinger:
        """Return the ping of providers, by their ids in the registry."""
        return self

    def ping(self, peer: int, seconds: float, answered: Callable[[bool | None], object]) -> bool:
        """Ping a provider; see `broker.core.checks.check_rules.Pinger`."""
        session = self.wiring.roster.get(peer)
        if session is None:
            return False
        session.check(answered)
        return True

    def unreachable(self, peer: int) -> bool:
        """Return True if the host of a provider acknowledges nothing; see `broker.core.checks.check_rules.Pinger`."""
        session = self.wiring.roster.get(peer)
        return session is not None and session.unreachable

    def actions(self) -> Mapping[str, Callable[..., Any]]:
        """Return the order to servers to reinitialize."""
        return {"reinit": self.wiring.reinit}

    def dialects(self) -> Sequence[Dialect]:
        """Return the console commands."""
        return [broker_dialect(self.wiring, self._access, self._audit)]

    def reload(self, config: Elko, broker: Broker) -> None:
        """Apply new policies and limits."""
        self._broker = broker
        self.reload_listeners(config.listeners)

    def policy(self, listener: BrokerListener) -> Policy:
        """See `ElkoWire`."""
        rights = Rights(services=listener.limits.services, key="elko.listeners.limits.services")
        policy = base_policy(listener, self._broker.diagnostics)
        return attrs.evolve(policy, rights=rights, waits=listener.limits.waits)

    def converse(self, access: AccessControl, peer: Peer) -> tuple[MessageReader, PeerSession]:
        """See `ElkoWire`."""
        return blocks.BlockReader(VOCABULARY), BrokerSession(self.wiring, access, peer)
