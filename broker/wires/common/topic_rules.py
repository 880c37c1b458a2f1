"""Topic access rules: the topics on which the holder of a key may publish, and to which they may subscribe.

Rules:
- The first rule whose key patterns match the key's name applies, and no other. A peer without a key has the empty name.
- A topic pattern is a topic, or a prefix that ends with ``*``; ``{key}`` in it stands for the key's name. A pattern
  with ``{key}`` matches nothing where there is no key.
- With rules, a topic that no rule allows is refused. Without rules, every topic is allowed.
- The broker's own topics (``elkobroker.``) may be subscribed to as any other, by peers who may find any service: they
  have changes of the registry (`broker.access.registry_reading`). No peer may publish on them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase

import attrs

from broker.access.grants import Grants
from broker.access.registry_reading import EVERY_ENTRY, RegistryReading
from broker.core.model import OWN_PREFIX, is_own

_OWN = OWN_PREFIX.encode()


@attrs.frozen
class TopicRule:
    """Topics for the holders of some keys. ``keys`` are shell patterns of key names; the others are topic patterns."""

    keys: tuple[str, ...]
    publish: tuple[str, ...]
    subscribe: tuple[str, ...]


class TopicSet:
    """A set of topics, by exact names and by prefixes. ``key`` is the name that replaces ``{key}`` in the patterns."""

    def __init__(self, patterns: Iterable[str], key: str) -> None:
        names: list[bytes] = []
        prefixes: list[bytes] = []
        for pattern in patterns:
            if not key and "{key}" in pattern:
                continue  # with an empty name, "{key}*" would match every topic
            # Tested before the substitution, since a key's name may end with "*" itself.
            prefix = pattern.endswith("*")
            name = pattern.removesuffix("*").replace("{key}", key).encode("utf-8", "surrogateescape")
            (prefixes if prefix else names).append(name)
        self._names = frozenset(names)
        self._prefixes = tuple(prefixes)

    def __contains__(self, topic: bytes) -> bool:
        return topic.startswith(self._prefixes) or topic in self._names


NONE = TopicSet((), "")


class TopicRights:
    """Topics of one peer: those on which it may publish, and those to which it may subscribe."""

    def __init__(self, publish: TopicSet, subscribe: TopicSet) -> None:
        self._publish = publish
        self._subscribe = subscribe

    @property
    def reading(self) -> RegistryReading:
        """The entries of the registry that the peer is shown on the broker's own topics."""
        return EVERY_ENTRY

    def may_publish(self, topic: bytes) -> bool:
        """Return True if the peer may publish on that topic."""
        return topic in self._publish and not is_own(topic)

    def may_subscribe(self, topic: bytes) -> bool:
        """Return True if the peer may subscribe to that topic."""
        return topic in self._subscribe


class _Free(TopicRights):
    """Every topic, without a test of patterns: this is on the path of each PUT."""

    def may_publish(self, topic: bytes) -> bool:
        return not topic.startswith(_OWN)

    def may_subscribe(self, topic: bytes) -> bool:
        return True


FREE = _Free(NONE, NONE)
"""Rights of every peer where there are no rules."""

NOTHING = TopicRights(NONE, NONE)
"""Rights of a peer to which no rule applies."""


class _Granted(TopicRights):
    """Topics that both the rules of the wire and the grants of the users file permit."""

    def __init__(self, rules: TopicRights, grants: Grants) -> None:
        super().__init__(NONE, NONE)
        self._rules = rules
        self._grants = grants
        self._reading = RegistryReading.of(grants)

    @property
    def reading(self) -> RegistryReading:
        return self._reading

    def may_publish(self, topic: bytes) -> bool:
        return self._rules.may_publish(topic) and self._grants.may("publish", _text(topic))

    def may_subscribe(self, topic: bytes) -> bool:
        if is_own(topic) and not self._grants.may_some("find"):
            return False
        return self._rules.may_subscribe(topic) and self._grants.may("subscribe", _text(topic))


def _text(topic: bytes) -> str:
    return topic.decode("utf-8", "surrogateescape")


def rights_of(key: str, rules: Sequence[TopicRule], grants: Grants | None = None) -> TopicRights:
    """Return the rights of the holder of the key with that name. ``grants`` are those of the users file, if any."""
    found = _rights_by_rules(key, rules)
    return found if grants is None else _Granted(found, grants)


def _rights_by_rules(key: str, rules: Sequence[TopicRule]) -> TopicRights:
    if not rules:
        return FREE
    for rule in rules:
        if any(fnmatchcase(key, pattern) for pattern in rule.keys):
            return TopicRights(TopicSet(rule.publish, key), TopicSet(rule.subscribe, key))
    return NOTHING
