"""Rights to topics: the topics on which a peer may publish, and those to which it may subscribe.

Rules:
- The users file gives them, by the operations ``publish`` and ``subscribe`` and names of topics. Without a users file,
  every topic is allowed.
- The broker's own topics (``elkobroker.``) may be subscribed to as any other, by peers who may find any service: they
  have changes of the registry (`broker.access.registry_reading`). No peer may publish on them.
"""

from __future__ import annotations

from broker.access.grants import TOPIC, Grants
from broker.access.registry_reading import RegistryReading
from broker.core.model import OWN_PREFIX, is_own

_OWN = OWN_PREFIX.encode()


class TopicRights:
    """Topics of one peer, by the grants of its user."""

    def __init__(self, grants: Grants) -> None:
        self._grants = grants
        self.reading = RegistryReading.of(grants)
        """The entries of the registry that the peer is shown on the broker's own topics."""

    def may_publish(self, topic: bytes) -> bool:
        """Return True if the peer may publish on that topic."""
        return not is_own(topic) and self._grants.may("publish", _text(topic), TOPIC)

    def may_subscribe(self, topic: bytes) -> bool:
        """Return True if the peer may subscribe to that topic."""
        if is_own(topic) and not self._grants.may_some("find"):
            return False
        return self._grants.may("subscribe", _text(topic), TOPIC)


class _Free(TopicRights):
    """Every topic, without a test of patterns: this is on the path of each PUT."""

    def may_publish(self, topic: bytes) -> bool:
        return not topic.startswith(_OWN)

    def may_subscribe(self, topic: bytes) -> bool:
        return True


def rights_of(grants: Grants) -> TopicRights:
    """Return the rights of a user with these grants."""
    return _Free(grants) if grants.unlimited else TopicRights(grants)


def _text(topic: bytes) -> str:
    return topic.decode("utf-8", "surrogateescape")
