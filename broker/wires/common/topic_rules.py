"""Which topics the holder of a key may publish on and subscribe to.

Rules:
- The first rule whose key patterns match the key's name counts, and no other. A peer without a key has the empty name.
- A topic pattern is a topic, or a prefix that ends with ``*``; ``{key}`` in it stands for the key's name. It matches
  nothing where there is no key.
- Where there are rules, what none of them allows is refused. Where there are none, everything is allowed.
- The broker's own topics may be subscribed to as any other, and published on by nobody.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase

import attrs

from broker.core.model import OWN_PREFIX, is_own

_OWN = OWN_PREFIX.encode()


@attrs.frozen
class TopicRule:
    """What the holders of some keys may do."""

    keys: tuple[str, ...]
    publish: tuple[str, ...]
    subscribe: tuple[str, ...]


class Topics:
    """A set of topics: some by name, some by prefix."""

    def __init__(self, patterns: Iterable[str], key: str) -> None:
        names: list[bytes] = []
        prefixes: list[bytes] = []
        for pattern in patterns:
            if not key and "{key}" in pattern:
                continue  # it would come to mean everybody's topics
            # before the key's name is put in, which may have any character
            prefix = pattern.endswith("*")
            name = pattern.removesuffix("*").replace("{key}", key).encode("utf-8", "surrogateescape")
            (prefixes if prefix else names).append(name)
        self._names = frozenset(names)
        self._prefixes = tuple(prefixes)

    def __contains__(self, topic: bytes) -> bool:
        return topic.startswith(self._prefixes) or topic in self._names


NONE = Topics((), "")


class TopicRights:
    """What one peer may do."""

    def __init__(self, publish: Topics, subscribe: Topics) -> None:
        self._publish = publish
        self._subscribe = subscribe

    def may_publish(self, topic: bytes) -> bool:
        """Whether it may publish on that topic."""
        return topic in self._publish and not is_own(topic)

    def may_subscribe(self, topic: bytes) -> bool:
        """Whether it may subscribe to that topic."""
        return topic in self._subscribe


class _Free(TopicRights):
    """Everything, without a look at patterns."""

    def may_publish(self, topic: bytes) -> bool:
        return not topic.startswith(_OWN)

    def may_subscribe(self, topic: bytes) -> bool:
        return True


FREE = _Free(NONE, NONE)
"""What a peer may do where there are no rules."""

NOTHING = TopicRights(NONE, NONE)
"""What a peer may do that no rule speaks of."""


def rights_of(key: str, rules: Sequence[TopicRule]) -> TopicRights:
    """What the holder of the key with that name may do."""
    if not rules:
        return FREE
    for rule in rules:
        if any(fnmatchcase(key, pattern) for pattern in rule.keys):
            return TopicRights(Topics(rule.publish, key), Topics(rule.subscribe, key))
    return NOTHING
