"""The Elko Director: its wiring, its listeners, and what it is called in the registry.

It is a part of the daemon, beside the broker. So `shut_down` ends the director alone, and the broker goes on; and
`reinitialize` reads the configuration of the daemon, as that of the broker does. It then announces the director anew:
real Context Servers that lost their connection to a director do not come back before they hear of it again. Those that
are connected open another connection each, which does no harm.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import attrs
from twisted.internet.defer import Deferred, DeferredList
from twisted.logger import Logger

from broker.app.parts import Parts
from broker.config import values
from broker.core.director.director import Director
from broker.core.director.interfaces import DirectorSettings
from broker.core.model import Service
from broker.net.admission import Limits
from broker.net.interfaces.peer import Peer, Reader, Session
from broker.net.listener_retry import Openings
from broker.wires.elko.codec import blocks
from broker.wires.elko.codec.director import VOCABULARY
from broker.wires.elko.listeners import add_listeners, base_policy, net_limits, renew, services, title
from broker.wires.elko.sessions.authentication import Door, Policy
from broker.wires.elko.sessions.director import DirectorSession, Wiring

WIRE = "director"
"""How its connections are called in counters and the log."""


class DirectorPart:
    """The director of this daemon.

    ``reread`` reads the configuration again, ``offer`` registers what `services` then gives.
    """

    log = Logger()

    def __init__(
        self,
        config: values.Config,
        reactor: Any,
        parts: Parts,
        openings: Openings,
        room: int,
        reread: Callable[[], None],
        offer: Callable[[], None],
    ) -> None:
        self._config = config
        self._reactor = reactor
        self._parts = parts
        self._openings = openings
        self._room = room
        self._reread = reread
        self._offer = offer
        self._announced = True
        self._ending = False
        self._director = Director(reactor, _settings(config.director))
        self._closing: list[Deferred[Any]] = []
        self.wiring = Wiring.of(self._director, self, reactor)
        self.listeners = add_listeners(
            openings,
            reactor,
            WIRE,
            config.director.listeners,
            self._policy,
            self._converse,
            self._limits,
            parts,
            self.log,
        )

    def counts(self) -> dict[str, int]:
        """What was counted, and how many there are now, by ``director.REASON``."""
        return {f"{WIRE}.{name}": count for name, count in self._director.counts().items()}

    def services(self) -> Iterator[Service]:
        """Its listeners as services of provider 0, named as the original names its own; none once it is shut down."""
        if not self._announced:
            return
        suffix = self._config.director.service or self._config.broker.service
        yield from services(
            self.listeners,
            self._config.director.listeners,
            lambda role: f"director-{role}-{suffix}" if suffix else f"director-{role}",
        )

    def use(self, config: values.Config) -> None:
        """Take what may change while it runs."""
        self._config = config
        self._director.use(_settings(config.director))
        renew(self.listeners, config.director.listeners, self._policy, self._limits)

    # what an administrator may do to it

    def reinitialize(self) -> None:
        """Read the configuration again, and announce the director anew."""
        self._reread()
        self._announced = False
        self._offer()
        self._announced = not self._ending
        self._offer()

    def shut_down(self) -> None:
        """End the director, when what is being handled is done."""
        if self._ending:
            return
        self._ending = True
        self.log.info("the director was shut down by an administrator")
        self._reactor.callLater(0, self._end)

    # the end

    def stop_listening(self) -> Deferred[Any]:
        """Accept no more connections. Fires when that is so."""
        return DeferredList([listener.stop_listening() for listener in self.listeners])

    def close(self) -> Deferred[Any]:
        """Close all connections in good order. Fires when they are closed."""
        self._closing += [listener.carrier.close() for listener in self.listeners]
        self.listeners.clear()
        return DeferredList(self._closing)

    def _end(self) -> None:
        self._announced = False
        self._offer()
        for listener in self._config.director.listeners:
            self._openings.remove(title(WIRE, listener))
        # Only then: a peer that is disconnected and connects again at once is refused, not accepted and dropped.
        self.stop_listening().addCallback(lambda _: self.close())

    def _policy(self, listener: values.DirectorListener) -> Policy:
        limits = listener.limits
        return attrs.evolve(base_policy(listener, self._config), waits=limits.watches, reservations=limits.reservations)

    def _limits(self, listener: values.DirectorListener) -> Limits:
        within = 0.0 if listener.allow_before_auth else listener.limits.authenticate_within
        return net_limits(listener.limits, self._room, within)

    def _converse(self, door: Door, peer: Peer) -> tuple[Reader, Session]:
        return blocks.Reader(VOCABULARY), DirectorSession(self.wiring, door, peer)


def _settings(config: values.Director) -> DirectorSettings:
    return DirectorSettings(config.load_bump, config.reservation, config.providers, config.user_reservations)
