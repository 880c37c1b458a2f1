"""The wiring of mc0: its socket, its admission rules, its sessions. The socket is bound last, and closed first."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import attrs
import zmq
from twisted.internet.defer import Deferred

from broker.config import values
from broker.config.validate import effective_mc0_auth
from broker.config.zendpoint import parse
from broker.core.interfaces import ILeases, ITopics
from broker.core.model import KnownSession
from broker.net.allowed import AllowedKeys
from broker.net.limits import Complaints
from broker.net.turns import Turns
from broker.net.zap import Gate
from broker.net.zcontext import Options, ZContext
from broker.net.zmonitor import Connections
from broker.net.zsocket import ZSocket, unbound
from broker.session.mc0 import Mc0, Record
from broker.session.mc0_admission import Admission
from broker.session.topic_rules import TopicRule

WIRE = "mc0"
"""The name of the wire at the handler of handshakes, and in counters and logs."""


@attrs.define
class Mc0Listener:
    """The wire. ``address`` is where it is bound, empty before."""

    config: values.Mc0
    socket: ZSocket
    connections: Connections
    keys: AllowedKeys | None
    sessions: Mc0
    admission: Admission
    address: str = ""

    def bind(self) -> str:
        """Bind the socket. Returns its address. Raises `CannotListen`; it may be tried again."""
        try:
            self.address = self.socket.bind(parse(self.config.endpoint).address, self.sessions.receive)
        except (OSError, zmq.ZMQError) as error:
            raise unbound(self.config.endpoint, error) from None
        return self.address

    def use(self, config: values.Mc0) -> None:
        """Take what may change while it runs, and look for new keys."""
        self.admission.use(_rules(config))
        self.sessions.use(config.sessions, config.subscriptions)
        if self.keys is not None:
            self.keys.refresh()

    def close(self) -> None:
        """Stop."""
        if self.keys is not None:
            self.keys.stop()
        self.connections.close()
        self.socket.shutdown()


def make_mc0(
    config: values.Mc0,
    context: ZContext,
    gate: Gate,
    topics: ITopics,
    leases: ILeases,
    complaints: Complaints,
    record: Record,
    known: Sequence[KnownSession],
    turns: Turns,
    clock: Any,
    in_thread: Callable[..., Deferred[Any]],
    room: int,
) -> Mc0Listener:
    """Make the wire, for ``room`` connections at most, without binding it.

    ``record`` keeps sessions for the next start, ``known`` are those from before this one.
    """
    curve = effective_mc0_auth(config) == "curve"
    keys = AllowedKeys(config.client_keys, clock, in_thread) if curve and config.client_keys is not None else None
    options = Options(
        high_water=config.high_water,
        max_message=config.max_message,
        handover=True,
        secret_key=config.secret_key if curve else None,
        domain=WIRE if curve else "",
        handshake=config.handshake,
    )
    socket = ZSocket(context, options, turns, WIRE)
    connections = Connections(context, socket, turns, complaints, clock, WIRE, config.handshake)
    admission = Admission(None if keys is None else keys.name_of, _rules(config))
    sessions = Mc0(
        socket, connections, topics, leases, admission, complaints, record, config.sessions, config.subscriptions
    )
    if curve:
        gate.domain(
            WIRE.encode(), keys, keys is None, lambda address: connections.admit(min(room, sessions.most_sessions))
        )
    if keys is not None:
        keys.changed.append(sessions.revoke)
    sessions.restore(known, curve)
    return Mc0Listener(config, socket, connections, keys, sessions, admission)


def _rules(config: values.Mc0) -> list[TopicRule]:
    return [TopicRule(rule.keys, rule.publish, rule.subscribe) for rule in config.rules]
