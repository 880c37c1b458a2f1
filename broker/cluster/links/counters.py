"""Documentation of the counters of links, and of topics across brokers."""

from __future__ import annotations

from broker.cluster.links.settings import WIRE
from broker.wires.common.connection_counters import connection_counters
from broker.wires.counter import Counter

COUNTERS = (
    *connection_counters(WIRE),
    Counter(f"{WIRE}_dropped", "Answers to PINGs that were dropped, because the queue was full", "messages"),
    Counter(f"{WIRE}.up", "Links to other brokers that are open now", "links", gauge=True),
    Counter(f"{WIRE}.opened", "Links that were opened", "links"),
    Counter(f"{WIRE}.ended", "Links that ended", "links"),
    Counter(f"{WIRE}.sent", "Messages sent to other brokers", "messages"),
    Counter(f"{WIRE}.received", "Messages received from other brokers", "messages"),
    Counter(f"{WIRE}.dropped", "Messages not sent, because the queue of the link was full", "messages"),
    Counter(f"{WIRE}.too_large", "Messages not sent, because they exceed the size of a message of links", "messages"),
    Counter(f"{WIRE}.unknown", "Messages received of channels that this version does not have", "messages"),
    Counter("remote_topics.sent", "Messages of topics sent to other brokers", "messages"),
    Counter(
        "remote_topics.dropped", "Messages of topics not sent to another broker, whose link had no room", "messages"
    ),
    Counter("remote_topics.received", "Messages of topics received from other brokers", "messages"),
    Counter("remote_topics.malformed", "Malformed messages of other brokers on topics", "messages"),
    Counter("remote_topics.beyond", "Topics beyond the bounds, which are not announced or not accepted", "topics"),
    Counter("remote_topics.announced", "Topics that this broker has announced to the others", "topics", gauge=True),
    Counter("remote_topics.wanted", "Topics that the other brokers have announced", "topics", gauge=True),
)
