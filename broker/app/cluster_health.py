"""State of the cluster's parts for operators: each member of etcd, and the brokers that should be there.

Rules:
- Each member of etcd is asked for its state every `POLL` seconds, over a connection of its own: the client of the
  membership uses one of them, and does not notice that another one is away.
- The brokers of ``cluster.members`` are expected; one that is no member of the cluster is missing.
- Both are reasons of the degraded state. A single member of etcd is none: without it the membership says so.
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

from broker.cluster.etcd.etcd_interface import EtcdError, IEtcd, Status
from broker.core.cluster.cluster_interfaces import IMembers, Member
from broker.core.model import NotReady
from broker.wires.tables import Column, Row, View

POLL = 10.0
"""Seconds between two questions to a member of etcd: an operator who looks sees the state of this minute."""

MEBIBYTE = 1024 * 1024

COLUMNS = (
    Column("endpoint", "URL of the member of etcd"),
    Column("state", "healthy; away, without an answer; or faulty, by its own words"),
    Column("since", "Time in that state", "seconds"),
    Column("version", "Version of etcd"),
    Column("size", "Size of its database", "MiB"),
    Column("used", "Part of it that is in use: the rest goes by a defragmentation", "MiB"),
    Column("reason", "Reason, where it is not healthy"),
)


@attrs.define(eq=False)
class EtcdMember:
    """A member of etcd: ``status`` is None while it does not answer; ``since`` is the time of the last change."""

    url: str
    client: IEtcd
    since: float
    status: Status | None = None
    reason: str = "it was not asked yet"
    asked: bool = False

    @property
    def state(self) -> str:
        """The state in one word."""
        return "away" if self.status is None else "faulty" if self.reason else "healthy"


class ClusterHealth:
    """The state. ``connect`` makes a client of one URL; ``expected`` are the names of brokers that should be there."""

    log = Logger()

    def __init__(
        self,
        clock: IReactorTime,
        members: IMembers,
        urls: Sequence[str],
        expected: Sequence[str],
        connect: Callable[[str], IEtcd],
    ) -> None:
        self._clock = clock
        self._members = members
        now = clock.seconds()
        self.etcd = [EtcdMember(url, connect(url), now) for url in urls]
        self._missing = dict.fromkeys(expected, now)
        """Expected brokers that are no members, with the time since which that is so."""
        self._expected = frozenset(expected)
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
        for each in self.etcd if len(self.etcd) > 1 else ():
            if each.asked and each.state != "healthy":
                yield NotReady("etcd", f"{each.url} is {each.state} since {now - each.since:.0f} s: {each.reason}")
        for name, since in sorted(self._missing.items()):
            yield NotReady("cluster", f"the broker {name} is missing since {now - since:.0f} s")

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
        if each.reason:
            row["reason"] = each.reason
        return row

    def _changed(self, name: str, member: Member | None) -> None:
        if name in self._expected:
            if member is not None:
                self._missing.pop(name, None)
            else:
                self._missing[name] = self._clock.seconds()

    def _ask(self) -> Deferred[Any]:
        return DeferredList([self._status(each) for each in self.etcd])

    def _status(self, each: EtcdMember) -> Deferred[Any]:
        return each.client.status().addCallbacks(self._answered, self._away, (each,), {}, (each,), {})

    def _answered(self, status: Status, each: EtcdMember) -> None:
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
