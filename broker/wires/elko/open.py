"""The running Elko Broker: its listeners on all transports, and their sessions.

`broker.wires.interface` defines the methods; `wire` registers the class.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import attrs
from twisted.internet.defer import Deferred
from twisted.logger import Logger

from broker.config.values import Broker
from broker.core.checks.interfaces import Pinger
from broker.core.model import Rights, Service
from broker.net.admission import ConnectionFactory
from broker.net.interfaces.peer import MessageReader, Peer, PeerSession
from broker.net.tls import Certificates
from broker.wires.dialect import Dialect
from broker.wires.elko import views
from broker.wires.elko.codec import blocks
from broker.wires.elko.codec.broker import VOCABULARY
from broker.wires.elko.commands import broker_dialect
from broker.wires.elko.config import BrokerListener, Elko
from broker.wires.elko.listeners import ElkoListeners, base_policy
from broker.wires.elko.sessions.authentication import AccessControl, Policy
from broker.wires.elko.sessions.broker import BrokerSession, BrokerWiring
from broker.wires.elko.sessions.change_notices import ChangeNotices
from broker.wires.elko.validation import effective_offer
from broker.wires.interface import Context, PlainWire
from broker.wires.views import AnyView

WIRE = "elko"
"""The name of the wire in counters and logs."""


class OpenElko(PlainWire):
    """The running Elko Broker; see `broker.wires.interface.OpenWire`."""

    log = Logger()

    def __init__(self, config: Elko, context: Context) -> None:
        self._broker = context.broker
        self._access = context.access
        self._audit = context.audit
        registry = context.registry
        self.wiring = BrokerWiring(
            registry, ChangeNotices(registry), context.launchers, context.control, silence=context.silence
        )
        self.listeners = ElkoListeners(WIRE, context, config.listeners, self._policy, self._converse)
        self.listeners.make()

    def bind(self, title: str) -> str:
        """Open the listener."""
        return self.listeners.bind(title)

    def places(self) -> Iterable[Mapping[str, object]]:
        """Return the open listeners."""
        return self.listeners.places()

    def services(self) -> Iterable[Service]:
        """Return the open listeners as services, with the names that the original broker uses."""
        suffix = f"-{self._broker.service}" if self._broker.service else ""
        return self.listeners.services(lambda role: f"broker-{role}{suffix}")

    def counts(self) -> Mapping[str, int]:
        """Return the number of connections."""
        made = self.listeners.made.values()
        return {"elko_connections.open": sum(len(each.lines.connections) for each in made)}

    def views(self) -> Sequence[AnyView]:
        """Return the view of the sessions."""
        return views.views(self.wiring)

    def pinger(self) -> Pinger:
        """Return the ping of providers, by their ids in the registry."""
        return self

    def ping(self, peer: int, seconds: float, answered: Callable[[bool | None], object]) -> bool:
        """Ping a provider; see `broker.core.checks.interfaces.Pinger`."""
        session = self.wiring.roster.get(peer)
        if session is None:
            return False
        session.check(answered)
        return True

    def unreachable(self, peer: int) -> bool:
        """Return True if the host of a provider acknowledges nothing; see `broker.core.checks.interfaces.Pinger`."""
        session = self.wiring.roster.get(peer)
        return session is not None and session.unreachable

    def dialects(self) -> Sequence[Dialect]:
        """Return the console commands."""
        return [broker_dialect(self.wiring, self._access, self._audit)]

    def certificates(self) -> Sequence[Certificates]:
        """Return the certificates of the open TLS listeners."""
        return self.listeners.certificates()

    def carriers(self) -> Iterable[ConnectionFactory]:
        """Return the factories of the sessions, one for each listener."""
        return self.listeners.carriers()

    def reload(self, config: Elko, broker: Broker) -> None:
        """Apply new policies and limits."""
        self._broker = broker
        self.listeners.reload(config.listeners)

    def stop_listening(self) -> Deferred[Any]:
        """Accept no more connections. Fires when all ports are closed."""
        return self.listeners.stop_listening()

    def close(self) -> Deferred[Any]:
        """Close all connections in order. Fires when they are closed."""
        return self.listeners.close()

    def abandon(self) -> None:
        """Close the ports if the reactor does not run."""
        self.listeners.stop_listening()

    def _policy(self, listener: BrokerListener) -> Policy:
        rights = Rights(effective_offer(listener), listener.limits.services)
        policy = base_policy(listener, self._broker.diagnostics)
        return attrs.evolve(policy, rights=rights, waits=listener.limits.waits)

    def _converse(self, access: AccessControl, peer: Peer) -> tuple[MessageReader, PeerSession]:
        return blocks.BlockReader(VOCABULARY), BrokerSession(self.wiring, access, peer)
