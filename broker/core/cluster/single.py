"""Single mode: the interfaces of a cluster for a broker without one."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from twisted.internet.defer import Deferred, succeed
from zope.interface import implementer

from broker.core.cluster.interfaces import (
    ILinks,
    IMembers,
    IQueueOwners,
    LinkReceiver,
    Member,
    MemberHealth,
    QueueClaim,
)
from broker.core.interfaces import IWait
from broker.core.model import NotReady


@implementer(IWait)
class _Nothing:
    """Watch of what never changes."""

    def cancel(self) -> None:
        """Do nothing."""


@implementer(IMembers, IQueueOwners, ILinks)
class Single:
    """`IMembers`, `IQueueOwners` and `ILinks` without any other broker: this broker owns every queue."""

    name = ""
    clustered = False

    def members(self) -> Sequence[Member]:
        return ()

    def member(self, name: str) -> Member | None:
        return None

    def watch_members(self, changed: Callable[[str, Member | None], None]) -> IWait:
        return _Nothing()

    def health(self) -> Sequence[MemberHealth]:
        return ()

    def describe(self, listeners: Mapping[str, str], draining: bool) -> None:
        pass

    def troubles(self) -> Sequence[NotReady]:
        return ()

    def counts(self) -> Mapping[str, int]:
        return {}

    def claim(self, space: str, name: str, lasting: bool = False) -> Deferred[QueueClaim]:
        return succeed(QueueClaim(""))

    def claim_of(self, space: str, name: str) -> QueueClaim | None:
        return QueueClaim("")

    def claims(self) -> Sequence[tuple[str, str, QueueClaim]]:
        return ()

    def release(self, space: str, name: str) -> Deferred[None]:
        return succeed(None)

    def watch_claims(self, changed: Callable[[str, str, QueueClaim | None], None]) -> IWait:
        return _Nothing()

    def serve(self, channel: str, receiver: LinkReceiver, lossy: bool = False) -> None:
        pass

    def send(self, broker: str, channel: str, frames: Sequence[bytes]) -> bool:
        return False

    def broadcast(self, channel: str, frames: Sequence[bytes]) -> None:
        pass

    def brokers(self) -> Sequence[str]:
        return ()


SINGLE: Any = Single()
"""The one instance: it has no state."""
