"""Views of mc0: its sessions, and the topics of all wires."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from itertools import islice

from broker.core.interfaces import ILeases, ITopics
from broker.core.model import TopicInfo
from broker.wires.mc0.sessions.conversation import Mc0Conversation
from broker.wires.mc0.sessions.session import Mc0Session, shown
from broker.wires.views import AnyView, Column, Row, View

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
            lambda: list(mc0.sessions()),
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
    about: dict[str, object] = {"identity": str(session), "address": session.address}
    if session.key:
        about |= {"key": session.key, "name": session.key_name}
    about["ttl"] = round(session.ttl * 1000)
    about["heard"] = round(leases.now - session.heard, 1)
    if mc0.is_doubtful(session):
        about["doubtful"] = True
    about["subscriptions"] = len(session.topics)
    about["topics"] = [shown(topic) for topic in islice(session.topics, MAX_TOPICS)]
    if session.refused:
        about["refused"] = [shown(topic) for topic in islice(session.refused, MAX_TOPICS)]
    about["dropped"] = session.dropped
    return about
