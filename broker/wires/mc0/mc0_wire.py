"""Assembly and lifecycle of mc0: its ROUTER, its admission rules, its sessions.

Invariant: the ROUTER listens last and is closed first, so that no message arrives without sessions to process it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import islice

import attrs
from twisted.internet.defer import Deferred, succeed
from twisted.logger import Logger

from broker.access.principal import Principal
from broker.config.daemon_settings import Broker
from broker.core.interfaces import ILeases, ITopics
from broker.core.model import TopicInfo
from broker.net.admission import ConnectionFactory
from broker.net.listeners import CannotListen
from broker.wires.common.router_listener import KnownKeys, RouterListener, make_router
from broker.wires.common.routes import Routes
from broker.wires.interface import PlainWire, WireContext
from broker.wires.mc0.codec.mc0_messages import begins
from broker.wires.mc0.mc0_settings import Mc0
from broker.wires.mc0.sessions.conversation import Mc0Conversation
from broker.wires.mc0.sessions.mc0_session import Mc0Session, shown
from broker.wires.mc0.sessions.session_table import Admission
from broker.wires.tables import AnyView, Column, Row, View

# Views of mc0: its sessions, and the topics of all wires.

MAX_TOPICS = 50
"""Topics shown of one session: a real node has 10 to 20."""

SESSION_COLUMNS = (
    Column("identity", "Routing id of the peer, chosen by the peer"),
    Column("address", "Address of the connection; empty while the session has none"),
    Column("key", "CURVE public key of the peer, Z85"),
    Column("name", "User of that key"),
    Column("ttl", "Silence after which the session ends; 0 for never", "milliseconds"),
    Column("heard", "Time since the last message of the peer", "seconds"),
    Column("doubtful", "True while it is silent for longer than its TTL; absent otherwise"),
    Column("subscriptions", "Topics that the session is subscribed to", "topics"),
    Column("topics", f"The first {MAX_TOPICS} of them"),
    Column("refused", f"The first {MAX_TOPICS} topics whose subscription was refused"),
    Column("dropped", "Messages dropped because the peer does not read", "messages"),
)

TOPIC_COLUMNS = (
    Column("topic", "Name of the topic"),
    Column("subscribers", "Subscribers on all wires, at this broker", "subscribers"),
    Column("published", "Messages published since the topic has subscribers", "messages"),
    Column("brokers", "Other brokers with subscribers, in a cluster", "brokers"),
)


def views(mc0: Mc0Conversation, topics: ITopics, leases: ILeases) -> Sequence[AnyView]:
    """Return the views of the wire."""
    return [
        View(
            "mc0 sessions",
            "Shows the sessions, the oldest first. A pattern selects identities or names of keys.",
            SESSION_COLUMNS,
            lambda: list(mc0.table),
            partial(_session, mc0, leases),
            lambda session: (str(session), session.key_name),
            title="mc0 sessions",
        ),
        View(
            "mc0 topics",
            "Shows the topics of all wires that have subscribers, by name.",
            TOPIC_COLUMNS,
            lambda: _present(topics),
            _topic,
            lambda topic: (shown(topic.name),),
            order="topic",
            title="mc0 topics",
        ),
    ]


def _present(topics: ITopics) -> Iterator[TopicInfo]:
    """Yield the present topics, without those that end before their turn."""
    return (topic for name in topics.names() if (topic := topics.info(name)) is not None)


def _topic(topic: TopicInfo) -> Row:
    row: dict[str, object] = {
        "topic": shown(topic.name),
        "subscribers": topic.subscribers,
        "published": topic.published,
    }
    if topic.brokers:
        row["brokers"] = topic.brokers
    return row


def _session(mc0: Mc0Conversation, leases: ILeases, session: Mc0Session) -> Row:
    about: dict[str, object] = {"identity": str(session), "address": session.address if session.connection else ""}
    if session.key:
        about |= {"key": session.key, "name": session.key_name}
    about["ttl"] = round(session.ttl * 1000)
    about["heard"] = round(leases.now - session.heard, 1)
    if mc0.table.silence.doubtful(session):
        about["doubtful"] = True
    about["subscriptions"] = len(session.topics)
    about["topics"] = [shown(topic) for topic in islice(session.topics, MAX_TOPICS)]
    if session.refused:
        about["refused"] = [shown(topic) for topic in islice(session.refused, MAX_TOPICS)]
    about["dropped"] = session.dropped
    return about


WIRE = "mc0"
"""Name of the wire in counters and logs."""


@attrs.define(eq=False)
class OpenMc0(PlainWire):
    """The running wire, an `broker.wires.interface.OpenWire`. ``address`` is empty before `bind`."""

    log = Logger()

    config: Mc0
    listener: RouterListener
    sessions: Mc0Conversation
    topics: ITopics
    leases: ILeases

    @property
    def address(self) -> str:
        """The address of the listener."""
        return self.listener.address

    def bind(self, title: str) -> str:
        """Listen. Returns the address. Raises `CannotListen`."""
        where = self.listener.bind(self.config.place)
        self.log.info("mc0 on {where} ({kind})", where=where, kind="curve" if self.config.secret_key else "null")
        return where

    def listener_rows(self) -> Sequence[Mapping[str, object]]:
        """Return the row of the listener, if it is open."""
        return [self.listener.place(WIRE)] if self.address else []

    def counts(self) -> Mapping[str, int]:
        """Return the counters that the sessions keep themselves."""
        return self.sessions.counts()

    def views(self) -> Sequence[AnyView]:
        """Return the views of sessions and topics."""
        return views(self.sessions, self.topics, self.leases)

    def connection_factories(self) -> Sequence[ConnectionFactory]:
        """Return the ROUTER."""
        return [self.listener.router]

    def drain(self) -> None:
        """Close all connections, and refuse new ones. Sessions wait for the end of the drain, or for a restart."""
        self.sessions.drain()
        super().drain()

    def undrain(self) -> None:
        """Accept connections again, also of the peers whose sessions wait."""
        super().undrain()
        self.sessions.undrain()

    def disconnect(self, key: str) -> bool:
        """End the session of an identity, and close its connection; or close the connections from an address.

        The protocol has no message for that: a client notices the closed connection, and begins another session.
        """
        number = self.sessions.disconnect(key)
        if number is None:
            return super().disconnect(key)
        self.listener.router.disconnect_number(number)
        return True

    def reload(self, config: Mc0, broker: Broker) -> None:
        """Apply new limits."""
        router = self.listener.router
        router.turns.background.run(self.sessions.use(config.sessions, config.subscriptions))
        router.use(config)

    def stop_listening(self) -> Deferred[None]:
        """Do nothing: the ROUTER stops listening in `close`, so that no connection is accepted only to be dropped."""
        return succeed(None)

    def close(self) -> Deferred[None]:
        """Close the wire. Fires when all connections are closed."""
        return self.listener.close()

    def abandon(self) -> None:
        """Close the wire where the reactor does not run."""
        self.close()


def open_mc0(config: Mc0, context: WireContext) -> OpenMc0:
    """Return the wire, not listening yet. Raises `CannotListen`."""
    try:
        return _make(config, context)
    except OSError as error:
        raise CannotListen(str(error)) from None


def _make(config: Mc0, context: WireContext) -> OpenMc0:
    access = context.accounts.access
    keys = None if config.secret_key is None else KnownKeys(access, WIRE)
    admission = Admission(
        (lambda key: None) if keys is None else keys.name_of, lambda user: access.grants(Principal(user), WIRE)
    )
    router = make_router(WIRE, config, config.secret_key, keys, context.network)
    routes = Routes(router, WIRE, begins, context.network.refusal_log)
    sessions = Mc0Conversation(
        routes,
        context.core.topics,
        context.core.leases,
        admission,
        context.network.refusal_log,
        context.core.recorder,
        config.sessions,
        config.subscriptions,
        context.checks.silence,
    )
    routes.serve(sessions, sessions.table.claim, sessions.table.opened)
    if keys is not None:
        # After the ROUTER's own, which ends the service of these peers at once.
        keys.changed.append(lambda gone: router.turns.background.run(sessions.table.revoke(gone)))
    access.changed.append(lambda: router.turns.background.run(sessions.review()))
    sessions.table.restore(context.known.sessions, keyed=keys is not None)
    listener = RouterListener(router, context.network.clock)
    return OpenMc0(config, listener, sessions, context.core.topics, context.core.leases)
