"""Members of a cluster, as tests of the operators' side need them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import attrs
from zope.interface import implementer

from broker.core.cluster.cluster_interfaces import Member, MemberHealth, QueueClaim, Single
from broker.core.interfaces import IWait
from broker.core.model import NotReady


@implementer(IWait)
class Watch:
    def __init__(self, cancel: Callable[[], object]) -> None:
        self.cancel = cancel  # type: ignore[method-assign, assignment]

    def cancel(self) -> None:
        raise AssertionError


@attrs.define(eq=False, slots=False)
class Members(Single):
    """A cluster whose state a test sets. ``name`` is this broker's."""

    name: str = "a"
    clustered: bool = True
    states: list[MemberHealth] = attrs.field(factory=list)
    degraded: list[NotReady] = attrs.field(factory=list)
    owned: list[tuple[str, str, QueueClaim]] = attrs.field(factory=list)
    watchers: list[Callable[[str, Member | None], None]] = attrs.field(factory=list)

    def members(self) -> Sequence[Member]:
        return [each.member for each in self.states]

    def member(self, name: str) -> Member | None:
        return next((each for each in self.members() if each.name == name), None)

    def watch_members(self, changed: Callable[[str, Member | None], None]) -> IWait:
        self.watchers.append(changed)
        watch: IWait = Watch(lambda: self.watchers.remove(changed))
        return watch

    def changed(self, name: str, member: Member | None) -> None:
        """Report a change of a member to the watchers."""
        for watcher in list(self.watchers):
            watcher(name, member)

    def health(self) -> Sequence[MemberHealth]:
        return self.states

    def degradations(self) -> Sequence[NotReady]:
        return self.degraded

    def claims(self) -> Sequence[tuple[str, str, QueueClaim]]:
        return self.owned


def two() -> Members:
    """A cluster of this broker, a, and another one, b."""
    here = Member("a", "i1", "h1:9002", "key", {"mtl": "tcp://h1:5975"}, "1.2")
    there = Member("b", "i2", version="1.1", draining=True)
    return Members(
        states=[MemberHealth(here, True, False, 0.01234, 3, 4), MemberHealth(there, False, True, None, 1, 1)],
        owned=[("/", "jobs", QueueClaim("b", "tcp://h2:5975")), ("/", "mail", QueueClaim("a"))],
    )
