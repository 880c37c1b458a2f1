"""The wiring of mc0: its ROUTER, its admission rules, its sessions. The ROUTER listens last, and is closed first."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import attrs
from twisted.internet.defer import Deferred

from broker.app.parts import Parts
from broker.config import values
from broker.config.validate import effective_mc0_auth
from broker.config.zmq_endpoint import parse
from broker.core.model import KnownSession
from broker.net.allowed_keys import AllowedKeys
from broker.wires.common.router_listener import RouterListener, RouterSettings, make_router
from broker.wires.common.topic_rules import TopicRule
from broker.wires.mc0.sessions.admission import Admission
from broker.wires.mc0.sessions.conversation import Mc0

WIRE = "mc0"
"""The name of the wire in counters and logs."""


@attrs.define
class Mc0Listener:
    """The wire. ``address`` is where it listens, empty before."""

    config: values.Mc0
    listener: RouterListener
    room: int
    keys: AllowedKeys | None
    sessions: Mc0
    admission: Admission

    @property
    def address(self) -> str:
        """The address of the listener."""
        return self.listener.address

    def bind(self) -> str:
        """Listen. Returns the address. Raises `CannotListen`; it may be tried again."""
        return self.listener.bind(parse(self.config.endpoint))

    def use(self, config: values.Mc0) -> None:
        """Take the keys of the configuration that a reload may change, and look for new client keys."""
        self.admission.use(_rules(config))
        self.sessions.use(config.sessions, config.subscriptions)
        self.listener.router.limit(_settings(config).limits(self.room))
        if self.keys is not None:
            self.keys.refresh()

    def close(self) -> Deferred[None]:
        """Stop. Fires when all connections are closed."""
        if self.keys is not None:
            self.keys.stop()
        return self.listener.close()

    def abandon(self) -> None:
        """Stop where the reactor does not run."""
        self.close()


def make_mc0(config: values.Mc0, known: Sequence[KnownSession], parts: Parts, clock: Any, room: int) -> Mc0Listener:
    """Make the wire, for ``room`` connections at most, without opening it. Raises OSError.

    ``known`` are the sessions from before this start.
    """
    curve = effective_mc0_auth(config) == "curve"
    keys = None
    if curve and config.client_keys is not None:
        keys = AllowedKeys(config.client_keys, clock, parts.in_thread)
    admission = Admission(None if keys is None else keys.name_of, _rules(config))
    router = make_router(WIRE, _settings(config), keys, parts, clock, room)
    sessions = Mc0(
        router,
        parts.topics,
        parts.leases,
        admission,
        parts.complaints,
        parts.recorder,
        config.sessions,
        config.subscriptions,
    )
    router.serve(sessions, sessions.claim)
    if keys is not None:
        # Sessions end as revoked before their connections are closed.
        keys.changed.insert(0, sessions.revoke)
    sessions.restore(known, curve)
    return Mc0Listener(config, RouterListener(router, clock), room, keys, sessions, admission)


def _settings(config: values.Mc0) -> RouterSettings:
    return RouterSettings.of(config, config.secret_key if effective_mc0_auth(config) == "curve" else None)


def _rules(config: values.Mc0) -> list[TopicRule]:
    return [TopicRule(rule.keys, rule.publish, rule.subscribe) for rule in config.rules]
