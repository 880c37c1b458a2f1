"""Owners of queues that a test drives: the claims of several brokers in one table."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from twisted.internet.defer import Deferred, fail, succeed
from zope.interface import implementer

from broker.core.cluster.cluster_interfaces import IQueueOwners, QueueClaim
from broker.core.errors import Reason, Refusal
from broker.core.interfaces import IWait

Changed = Callable[[str, str, QueueClaim | None], None]


class Claims:
    """The claims of all brokers."""

    def __init__(self) -> None:
        self.owners: dict[tuple[str, str], str] = {}
        self.lasting: set[tuple[str, str]] = set()
        self.brokers: dict[str, Owners] = {}
        self.away: set[str] = set()
        """Brokers that cannot reach the claims: they see no change, and cannot claim."""
        self.waiting: list[Deferred[None]] | None = None
        """Claims that a test lets pass by firing them; None while they pass at once."""

    def set(self, queue: tuple[str, str], owner: str | None) -> None:
        """Change the owner of a queue, and notify the brokers that are not away."""
        if owner is None:
            self.owners.pop(queue, None)
            self.lasting.discard(queue)
        else:
            self.owners[queue] = owner
        for name, broker in list(self.brokers.items()):
            if name not in self.away:
                broker.tell(queue)

    def expire(self, name: str) -> None:
        """End the lease of a broker."""
        for queue, owner in list(self.owners.items()):
            if owner == name and queue not in self.lasting:
                self.set(queue, None)

    def die(self, name: str) -> None:
        """A broker is killed, and its lease ends."""
        self.brokers[name].changed = None
        self.expire(name)

    def back(self, name: str) -> None:
        """A broker that was away sees all claims."""
        self.away.discard(name)
        for queue in {**self.brokers[name].known, **self.owners}:
            self.brokers[name].tell(queue)


@implementer(IWait)
class _Watch:
    def __init__(self, owners: Owners) -> None:
        self._owners = owners

    def cancel(self) -> None:
        self._owners.changed = None


@implementer(IQueueOwners)
class Owners:
    """`IQueueOwners` of one broker."""

    def __init__(self, claims: Claims, name: str) -> None:
        self.name = name
        self.changed: Changed | None = None
        self.known: dict[tuple[str, str], str] = {}
        self.releasing: Deferred[None] | None = None
        """Fires when releases end; None while they end at once."""
        self._claims = claims
        claims.brokers[name] = self

    def tell(self, queue: tuple[str, str]) -> None:
        owner = self._claims.owners.get(queue)
        if self.known.get(queue) == owner:
            return
        if owner is None:
            del self.known[queue]
        else:
            self.known[queue] = owner
        if self.changed is not None:
            self.changed(*queue, self.claim_of(*queue))

    def claim(self, space: str, name: str, lasting: bool = False, shared: bool = False) -> Deferred[QueueClaim]:
        if self.name in self._claims.away:
            return fail(Refusal(Reason.UNAVAILABLE, "etcd cannot be reached"))
        if self._claims.waiting is not None:
            waits: Deferred[None] = Deferred()
            self._claims.waiting.append(waits)
            return waits.addCallback(lambda _: self._claim(space, name, lasting))
        return self._claim(space, name, lasting)

    def _claim(self, space: str, name: str, lasting: bool) -> Deferred[QueueClaim]:
        queue = (space, name)
        if lasting:
            self._claims.lasting.add(queue)
        if queue not in self._claims.owners:
            self._claims.set(queue, self.name)
        return succeed(self._value(queue, self._claims.owners[queue]))

    def claim_of(self, space: str, name: str) -> QueueClaim | None:
        owner = self.known.get((space, name))
        return None if owner is None else self._value((space, name), owner)

    def claims(self) -> Sequence[tuple[str, str, QueueClaim]]:
        return [(*queue, self._value(queue, owner)) for queue, owner in sorted(self.known.items())]

    def release(self, space: str, name: str) -> Deferred[None]:
        if self._claims.owners.get((space, name)) == self.name:
            if self.name in self._claims.away:
                return fail(Refusal(Reason.UNAVAILABLE, "etcd cannot be reached"))
            self._claims.set((space, name), None)
        return self.releasing or succeed(None)

    def watch_claims(self, changed: Changed) -> IWait:
        self.changed = changed
        watch: Any = _Watch(self)
        return watch  # type: ignore[no-any-return]

    def _value(self, queue: tuple[str, str], owner: str) -> QueueClaim:
        return QueueClaim(owner, f"tcp://{owner}:5975", queue in self._claims.lasting)
