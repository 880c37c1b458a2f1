"""The admission of mc0 sessions: allowed client keys, the identities bound to them, topic rights.

An identity is chosen by the client, and the peer that has it gets its messages. So with a list of allowed keys it
belongs to the first key that used it, also while its session is over; until that key is not allowed any more, or
`MAX_BOUND` others have come since.

Where any key is allowed, a key says nothing of its holder, and costs nothing to make: the binding lasts as long as the
session. A table that outlives it would only let strangers reserve names, and lock out clients with a new key.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Collection, Sequence

from broker.core.errors import Reason, Refusal
from broker.wires.common.topic_rules import TopicRights, TopicRule, rights_of

MAX_BOUND = 100_000
"""Identities whose keys are remembered: several for each node of the largest farm, since the real connector takes a new
one with each of its processes and threads. The least recently used one is forgotten."""


class Admission:
    """The rules of the wire.

    ``name_of`` gives the name of a client key, None for one that is not allowed. Where it is None itself, any key is
    allowed, and none has a name. ``max_bound`` is the number of identities whose keys are remembered.
    """

    def __init__(
        self,
        name_of: Callable[[str], str | None] | None,
        rules: Sequence[TopicRule] = (),
        max_bound: int = MAX_BOUND,
    ) -> None:
        self._max_bound = max_bound
        self._name_of = name_of
        self._rules = rules
        self._bound: OrderedDict[bytes, str] = OrderedDict()

    def use(self, rules: Sequence[TopicRule]) -> None:
        """Take other topic rules."""
        self._rules = rules

    @property
    def binds(self) -> bool:
        """True if identities belong to keys: only with a list of allowed keys."""
        return self._name_of is not None

    def may_use(self, identity: bytes, key: str) -> bool:
        """True if that key is the one to which the identity belongs, or there is none."""
        return self._bound.get(identity, key) == key

    def admit(self, identity: bytes, key: str) -> str:
        """The name of the key that an identity comes with, empty where it has none. Raises `Refusal`."""
        if not key or self._name_of is None:
            return ""
        name = self._name_of(key)
        if name is None:
            raise Refusal(Reason.KEY_NOT_ALLOWED, f"the client key {key} is not allowed any more")
        owner = self._bound.setdefault(identity, key)
        if owner != key:
            raise Refusal(Reason.IDENTITY_TAKEN, f"the client key {key} ({name}) uses an identity of the key {owner}")
        self._bound.move_to_end(identity)
        if len(self._bound) > self._max_bound:
            self._bound.popitem(last=False)
        return name

    def release(self, keys: Collection[str]) -> None:
        """These keys are not allowed any more: what they were bound to is free."""
        for identity in [identity for identity, key in self._bound.items() if key in keys]:
            del self._bound[identity]

    def rights(self, key_name: str) -> TopicRights:
        """What the holder of that key may do with topics."""
        return rights_of(key_name, self._rules)
