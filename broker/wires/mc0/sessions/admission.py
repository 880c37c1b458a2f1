"""Admission of mc0 sessions: admitted client keys, the identities bound to them, topic rights.

A client chooses its identity, and the peer with that identity receives its messages. So an identity has an owner, as
`broker.access.identity` defines it: the user, the key or the host of the first peer that used it. That of a user
belongs to the user also after the end of its session, until the key that used it last is revoked or `MAX_BOUND` other
identities were used since.

A key without a user proves nothing about its holder and costs nothing to make: the binding lasts as long as the
session. A longer one would only let strangers reserve names, and lock out clients with a new key. See
docs/protocols/mc0.md, "Security".
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Collection

from broker.access.grants import EVERYTHING, Grants
from broker.access.identity import owner_of
from broker.core.errors import Reason, Refusal
from broker.net.interfaces.router import Sender
from broker.wires.common.topic_rights import TopicRights, rights_of

MAX_BOUND = 100_000
"""Identities bound to users: several for each node of the largest farm, since the real connector uses a new one for
each of its processes and threads. The least recently used one is evicted."""


class Admission:
    """Admission rules of the wire.

    ``name_of`` returns the user of a client key, empty for the anonymous one, None if the key is not admitted.
    ``max_bound`` is the maximal number of identities bound to users. ``grants`` returns the grants of a user.
    """

    def __init__(
        self,
        name_of: Callable[[str], str | None],
        grants: Callable[[str], Grants] = lambda user: EVERYTHING,
        max_bound: int = MAX_BOUND,
    ) -> None:
        self._max_bound = max_bound
        self._name_of = name_of
        self._grants = grants
        self._bound: OrderedDict[bytes, tuple[str, str]] = OrderedDict()
        """Owner and last key of each identity."""

    def owner(self, sender: Sender) -> str:
        """Return the owner of what a peer has."""
        name = self._name_of(sender.key) if sender.key else None
        return owner_of(name or "", sender.address, sender.key)

    def keeps(self, sender: Sender) -> bool:
        """Return True if the identity of a peer without a connection stays its own: it has a user, or no key."""
        return not sender.key or bool(self._name_of(sender.key))

    def may_use(self, identity: bytes, owner: str) -> bool:
        """Return True if the identity is bound to that owner, or to none."""
        return self._bound.get(identity, (owner, ""))[0] == owner

    def admit(self, identity: bytes, sender: Sender) -> str:
        """Bind an identity to the user of its peer. Returns the user, empty for the anonymous one.

        Raises `Refusal` if the key is not admitted, or the identity is bound to another owner.
        """
        key = sender.key
        name = self._name_of(key) if key else ""
        if name is None:
            raise Refusal(Reason.KEY_NOT_ALLOWED, f"the client key {key} is not allowed any more")
        owner = self.owner(sender)
        if not self.may_use(identity, owner):
            before, old = self._bound[identity]
            text = f"the client key {key} ({name}) uses an identity of the key {old} ({before})"
            raise Refusal(Reason.IDENTITY_TAKEN, text)
        if name:
            self._bound[identity] = owner, key
            self._bound.move_to_end(identity)
            if len(self._bound) > self._max_bound:
                self._bound.popitem(last=False)
        return name

    def release(self, keys: Collection[str]) -> None:
        """Release the identities that are bound to these revoked keys."""
        for identity in [identity for identity, (_, key) in self._bound.items() if key in keys]:
            del self._bound[identity]

    def rights(self, user: str) -> TopicRights:
        """Return the topic rights of a user."""
        return rights_of(self._grants(user))
