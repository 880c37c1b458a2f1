"""State of the cluster's parts for operators: members of etcd, expected brokers, and links.

Rules:
- Each member of etcd is asked for its state every `POLL` seconds, over a connection of its own: the client of the
  membership uses one of them, and does not notice that another one is away.
- The brokers of ``cluster.members`` are expected; one that is no member of the cluster is missing.
- A link to a member that has not been open for `CUT` seconds is cut.
- All are reasons of the degraded state. A single member of etcd that is away is none: the membership says so.
- A clock is compared by the time in etcd's answers, and only shown: nothing but certificates depends on it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import attrs
from twisted.internet.defer import Deferred, DeferredList
from twisted.internet.interfaces import IReactorTime
from twisted.internet.task import LoopingCall
from twisted.logger import Logger
from twisted.python.failure import Failure

from broker.cluster.etcd.etcd_client import EtcdClient
from broker.cluster.etcd.etcd_interface import EtcdError, Status
from broker.cluster.links.link_messages import LinkState, Neighbour
from broker.core.cluster.cluster_interfaces import IMembers, Member
from broker.core.model import NotReady
from broker.wall_clock import wall
from broker.wires.tables import Column, Counter, Row, View

POLL = 10.0
"""Seconds between two questions to a member of etcd: an operator who looks sees the state of this minute."""

CUT = 10.0
"""Seconds after which a link that is not open counts as cut: a broker that restarts is back within fewer."""

FRAGMENTED = 0.5
"""Part of a database in use below which a defragmentation is worth its seconds of pause, if it has `LARGE` MiB."""

LARGE = 256
"""MiB below which a database is no matter: etcd's default quota is 2,048."""

MEBIBYTE = 1024 * 1024

COLUMNS = (
    Column("endpoint", "URL of the member of etcd"),
    Column("state", "healthy; away, without an answer; or faulty, by its own words"),
    Column("since", "Time in that state", "seconds"),
    Column("version", "Version of etcd"),
    Column("size", "Size of its database", "MiB"),
    Column("used", "Part of it that is in use: the rest goes by a defragmentation", "MiB"),
    Column("defragment", "True if less than half of a large database is in use: etcdctl defrag"),
    Column("leases", "Leases: one for each broker, besides those of other users", "leases"),
    Column("clock", "Time by which its clock is ahead of this machine's, or behind if negative", "seconds"),
    Column("reason", "Reason, where it is not healthy"),
)


@attrs.define(eq=False)
class EtcdMember:
    """A member of etcd: ``status`` is None while it does not answer; ``since`` is the time of the last change, and
    ``clock`` the time in seconds by which its clock is ahead."""

    url: str
    client: EtcdClient
    since: float
    status: Status | None = None
    reason: str = "it was not asked yet"
    asked: bool = False
    clock: float | None = None

    @property
    def state(self) -> str:
        """The state in one word."""
        return "away" if self.status is None else "faulty" if self.reason else "healthy"


COUNTERS = (
    Counter("cluster.missing", "Expected brokers that are not there", "brokers", gauge=True),
    Counter("cluster.links-cut", "Links that have not been open for ten seconds", "links", gauge=True),
    Counter("cluster.etcd-unhealthy", "Members of etcd that are away or faulty", "members", gauge=True),
)


class ClusterHealth:
    """The state. ``connect`` makes a client of one URL; ``expected`` are the names of brokers that should be there;
    ``links`` returns the links to the other members."""

    log = Logger()

    def __init__(
        self,
        clock: IReactorTime,
        members: IMembers,
        urls: Sequence[str],
        expected: Sequence[str],
        connect: Callable[[str], EtcdClient],
        links: Callable[[], Sequence[Neighbour]],
    ) -> None:
        self._clock = clock
        self._links = links
        self._members = members
        now = clock.seconds()
        self.etcd = [EtcdMember(url, connect(url), now) for url in urls]
        self._missing = dict.fromkeys(expected, (now, "it has not been seen since this broker started"))
        """Expected brokers that are no members, with the time since which that is so, and the reason."""
        self._expected = frozenset(expected)
        self._draining = frozenset[str]()
        """Names of the members that drained when one changed last."""
        self._closed: dict[str, float] = {}
        """Links that are not open, with the time since which that is known: an attempt is a change of their state."""
        self._poll = LoopingCall(self._ask)
        self._poll.clock = clock

    def start(self) -> None:
        """Begin to ask, once this broker is a member."""
        for each in self._members.members():
            self._missing.pop(each.name, None)
        self._watch = self._members.watch_members(self._changed)
        self._poll.start(POLL)

    def stop(self) -> Deferred[Any]:
        """Stop asking. Fires when the connections are closed."""
        if self._poll.running:
            self._poll.stop()
            self._watch.cancel()
        return DeferredList([each.client.close() for each in self.etcd])

    def degradations(self) -> Iterator[NotReady]:
        """Yield the members of etcd that are not healthy, and the brokers that are missing."""
        if not self._poll.running:
            return
        now = self._clock.seconds()
        for each in self._unhealthy():
            if len(self.etcd) > 1 or each.status is not None:
                for_ = f"since {now - each.since:.0f} s: {each.reason}"
                yield NotReady(f"etcd {each.url}", f"{each.url} is {each.state} {for_}")
        for name, (since, why) in sorted(self._missing.items()):
            yield NotReady(f"broker {name}", f"the broker {name} is missing since {now - since:.0f} s: {why}")
        for link in self._cut():
            why = f": {link.reason}" if link.reason else ""
            yield NotReady(f"link to {link.name}", f"it is not open since {now - self._closed[link.name]:.0f} s{why}")

    def counts(self) -> dict[str, int]:
        """Return the gauges, by the names of `COUNTERS`."""
        if not self._poll.running:
            return {}
        return {
            "cluster.missing": len(self._missing),
            "cluster.links-cut": len(self._cut()),
            "cluster.etcd-unhealthy": len(self._unhealthy()),
        }

    def _unhealthy(self) -> list[EtcdMember]:
        return [each for each in self.etcd if each.asked and each.state != "healthy"]

    def _cut(self) -> list[Neighbour]:
        now = self._clock.seconds()
        closed = [each for each in self._links() if each.state is not LinkState.UP]
        self._closed = {each.name: self._closed.get(each.name, now) for each in closed}
        return [each for each in closed if now - self._closed[each.name] >= CUT]

    def view(self) -> View[EtcdMember]:
        """Return the table of the members of etcd."""
        return View(
            "cluster etcd",
            "Shows the members of etcd. A pattern selects URLs.",
            COLUMNS,
            lambda: self.etcd,
            self._row,
            lambda each: (each.url,),
        )

    def _row(self, each: EtcdMember) -> Row:
        row: dict[str, object] = {
            "endpoint": each.url,
            "state": each.state,
            "since": round(max(0.0, self._clock.seconds() - each.since), 1),
        }
        if each.status is not None:
            row["version"] = each.status.version
            row["size"] = round(each.status.size / MEBIBYTE, 1)
            row["used"] = round(each.status.used / MEBIBYTE, 1)
            row["defragment"] = LARGE * MEBIBYTE <= each.status.size > each.status.used / FRAGMENTED
            if each.status.leases is not None:
                row["leases"] = each.status.leases
            if each.clock is not None:
                row["clock"] = round(each.clock, 1)
        if each.reason:
            row["reason"] = each.reason
        return row

    def _changed(self, name: str, member: Member | None) -> None:
        if name in self._expected:
            if member is not None:
                self._missing.pop(name, None)
            else:
                drained = "it drained, and left" if name in self._draining else "it was stopped, or its lease has ended"
                self._missing[name] = self._clock.seconds(), drained
        self._draining = frozenset(each.name for each in self._members.members() if each.draining)

    def _ask(self) -> Deferred[Any]:
        self._cut()
        return DeferredList([self._status(each) for each in self.etcd])

    def _status(self, each: EtcdMember) -> Deferred[Any]:
        return each.client.examine().addCallbacks(self._answered, self._away, (each,), {}, (each,), {})

    def _answered(self, status: Status, each: EtcdMember) -> None:
        # The time in an answer has whole seconds.
        each.clock = None if status.time is None else status.time + 0.5 - wall(self._clock)
        self._set(each, status, "; ".join(status.errors))

    def _away(self, failure: Failure, each: EtcdMember) -> None:
        failure.trap(EtcdError)
        self._set(each, None, str(failure.value))

    def _set(self, each: EtcdMember, status: Status | None, reason: str) -> None:
        before = each.state if each.asked else ""
        each.asked, each.status, each.reason = True, status, reason
        if each.state == before:
            return
        each.since = self._clock.seconds()
        if before or each.state != "healthy":
            self.log.info("etcd: {url} is {state}{why}", url=each.url, state=each.state, why=reason and f": {reason}")
