"""Subscriptions of mc0 sessions to the topics of the core: the limits and rights that apply, and the delivery.

Invariants:
- A session's ``topics`` are exactly its subscriptions in the core. Its ``refused`` are topics that it requested and may
  not have; no topic is in both.
- A SUB subscribes to all of its topics or to none, except for the real connector and after a restart or a reload, where
  it subscribes to those that are permitted (`Mc0Subscriptions.subscribe_permitted`).

`broker.core.topics` has the topics, and `broker.wires.common.topic_rights` the rights.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from broker.access.registry_reading import RegistryReading
from broker.core.errors import Reason, Refusal
from broker.core.interfaces import ITopics
from broker.net.interfaces.router import Part
from broker.wires.common.registry_topics import readers
from broker.wires.mc0.sessions.outbound import Mc0Outbound
from broker.wires.mc0.sessions.session import Mc0Session, shown

MAX_REFUSED = 100
"""Refused topics stored with a session: they are shown to operators, and subscribed when a reload allows them."""


class Mc0Subscriptions:
    """Subscriptions of all sessions: an outlet of the core's topics. ``most`` is the limit for one session."""

    def __init__(self, topics: ITopics, outbound: Mc0Outbound, most: int) -> None:
        self._topics = topics
        self._outbound = outbound
        self.most = most

    def deliver(
        self, subscribers: Collection[Mc0Session], topic: bytes, headers: Sequence[Part], body: Sequence[Part]
    ) -> None:
        """Send a published message to these sessions. Called by the core's topics."""
        allowed = readers(subscribers, headers, _reading)
        if allowed:
            self._outbound.fan_out(allowed, topic, headers, body)

    def subscribe(self, session: Mc0Session, topics: Iterable[bytes]) -> None:
        """Subscribe to all of these topics, or raise `Refusal` and subscribe to none."""
        new = [topic for topic in dict.fromkeys(topics) if topic not in session.topics]
        refused = [topic for topic in new if not session.rights.may_subscribe(topic)]
        if refused:
            raise Refusal(Reason.TOPIC_NOT_ALLOWED, f"may not subscribe to {listed(refused)}")
        if len(session.topics) + len(new) > self.most:
            raise Refusal(Reason.LIMIT, f"may have {self.most} subscriptions, and no more")
        for number, topic in enumerate(new):
            try:
                # The core's own copy of the name is stored, so that all subscribers share one.
                session.topics[self._topics.subscribe(topic, self, session, session.payer)] = None
            except Refusal:
                self.unsubscribe(session, new[:number])
                raise

    def subscribe_permitted(self, session: Mc0Session, topics: Iterable[bytes]) -> None:
        """Subscribe to those topics that are permitted, and store the others as refused."""
        refused: dict[Reason, Refusal] = {}
        for topic in topics:
            try:
                self.subscribe(session, (topic,))
            except Refusal as refusal:
                refused.setdefault(refusal.reason, refusal)
                if len(session.refused) < MAX_REFUSED:
                    session.refused[topic] = None
        # One complaint for each reason: the log has no use for a line for each of a thousand topics.
        for first in refused.values():
            self._outbound.complain(session, first)

    def unsubscribe(self, session: Mc0Session, topics: Iterable[bytes]) -> None:
        """End the subscriptions to these topics, and discard them from the refused ones. Idempotent."""
        for topic in topics:
            session.refused.pop(topic, None)
            if topic in session.topics:
                del session.topics[topic]
                self._topics.unsubscribe(topic, self, session)

    def apply_rights(self, session: Mc0Session) -> bool:
        """Apply changed rights of a session to its subscriptions. Returns True if these changed.

        Subscriptions that are no longer permitted end; refused ones that are permitted now begin.
        """
        ended = [topic for topic in session.topics if not session.rights.may_subscribe(topic)]
        permitted = [topic for topic in session.refused if session.rights.may_subscribe(topic)]
        if not ended and not permitted:
            return False
        self.unsubscribe(session, [*ended, *permitted])
        # The ended ones are requested again, only to be stored as refused: a later reload may permit them.
        self.subscribe_permitted(session, [*permitted, *ended])
        return True


def _reading(session: Mc0Session) -> RegistryReading:
    return session.rights.reading


def listed(topics: Sequence[bytes]) -> str:
    """Return the names of up to three topics, and the number of the others, for an error text."""
    names = ", ".join(repr(shown(topic)) for topic in topics[:3])
    return names if len(topics) <= 3 else f"{names} and {len(topics) - 3} others"
