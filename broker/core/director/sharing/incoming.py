"""The incoming side of the exchange: the servers that are connected to one other broker.

Rules:
- Each connection of a server there is a link of the same server here, besides those that it may have here: `farm`
  recognises it by its addresses.
- A snapshot adds new links, to which the links from before are kept until its end: so what both report stays without
  any notice, and the remainder ends.
- When the link between the brokers ends, the servers stay known for `HELD_SECONDS`, without new users: their broker may
  be back by then, or they may connect elsewhere.
- A director that was restarted has no servers yet: for the rest of that time theirs are kept, until they connect again.
- A report that is refused changes nothing, and is counted.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from twisted.internet.interfaces import IDelayedCall, IReactorTime

from broker.core.director.farm import Farm
from broker.core.director.server_link import ServerLink
from broker.core.director.sharing import records
from broker.core.director.sharing.limits import HELD_SECONDS, MAX_REMOTE_LINKS
from broker.core.director.sharing.orders import Orders, RemoteServer
from broker.core.director.sharing.records import Record
from broker.core.errors import Reason, Refusal
from broker.core.model import Policy


class RemoteLink(ServerLink):
    """A connection of a Context Server to another broker."""

    __slots__ = ()

    def __init__(self, farm: Farm, label: str, link: RemoteServer, broker: str) -> None:
        super().__init__(farm, label, link, broker, remote=True)

    def reach(self, reachable: bool) -> None:
        """Apply that the broker can be reached, or cannot."""
        if not self._gone:
            self._farm.reach(self.server, self._report, reachable)


class Incoming:
    """The servers of one other broker, from the records of its director."""

    def __init__(self, clock: IReactorTime, farm: Farm, orders: Orders, broker: str) -> None:
        self._clock = clock
        self._farm = farm
        self._orders = orders
        self._broker = broker
        self._links: dict[int, RemoteLink] = {}
        self._old: list[RemoteLink] = []
        """Links from before the present snapshot, or before the end of the link between the brokers."""
        self._timer: IDelayedCall | None = None
        self._instance: int | None = None
        self._restarted = False
        self.refused = 0
        self._takers: dict[type[Record], Callable[[Any], None]] = {
            records.Joined: self._joined,
            records.Relabelled: lambda each: self._link(each).relabel(each.label),
            records.Address: lambda each: self._link(each).address(each.protocol, each.hostport),
            records.Serves: lambda each: self._link(each).will_serve(each.family, each.capacity, each.restricted),
            records.LoadReport: lambda each: self._link(each).load(each.factor),
            records.Judged: self._judged,
            records.Opened: self._opened,
            records.Closed: lambda each: self._link(each).closed(each.context),
            records.Gate: lambda each: self._link(each).gate(each.context, each.open, each.reason),
            records.Entered: self._entered,
            records.Exited: lambda each: self._link(each).exited(each.context, each.user),
            records.Left: self._left,
        }

    def __len__(self) -> int:
        return len(self._links) + len(self._old)

    def take(self, record: Record) -> bool:
        """Apply a report. Returns False if the record is none."""
        taker = self._takers.get(type(record))
        if taker is None:
            return False
        try:
            taker(record)
        except Refusal:
            self.refused += 1
        return True

    def hello(self, instance: int) -> None:
        """Take the number of the director's start."""
        self._restarted = self._instance not in (None, instance)
        self._instance = instance

    def begin(self) -> None:
        """Begin a snapshot."""
        self._old += self._links.values()
        self._links = {}

    def end(self) -> None:
        """End a snapshot: what it did not repeat is gone, unless the director was restarted."""
        if not self._restarted or self._timer is None:
            self.stop()
            self._leave_old()

    def down(self) -> None:
        """Keep the servers for a while without new users."""
        self.begin()
        for link in self._old:
            link.reach(False)
        if self._old and self._timer is None:
            self._timer = self._clock.callLater(HELD_SECONDS, self._over)

    def clear(self) -> None:
        """Remove all servers now."""
        self.begin()
        self.stop()
        self._leave_old()

    def stop(self) -> None:
        """Stop the timer."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    # Reports

    def _link(self, record: Any) -> RemoteLink:
        link = self._links.get(record.link)
        if link is None:
            raise Refusal(Reason.NOT_REGISTERED, f"no connection {record.link} of a server at {self._broker}")
        return link

    def _joined(self, record: records.Joined) -> None:
        if record.link in self._links:
            raise Refusal(Reason.NAME_TAKEN, f"connection {record.link} at {self._broker} is known")
        if len(self._links) >= MAX_REMOTE_LINKS:
            raise Refusal(Reason.LIMIT, f"{self._broker} shares {MAX_REMOTE_LINKS} connections, and no more are taken")
        server = RemoteServer(self._orders, self._broker, record.link)
        self._links[record.link] = RemoteLink(self._farm, record.label, server, self._broker)

    def _judged(self, record: records.Judged) -> None:
        try:
            policy = Policy(record.policy)
        except ValueError:
            raise Refusal(Reason.PARAMETER, "an unknown policy") from None
        self._link(record).judged(policy)

    def _opened(self, record: records.Opened) -> None:
        link = self._link(record)
        link.opened(record.context, record.yours, record.maxcap, record.basecap, record.restricted)
        if record.gate is not None:
            link.gate(record.context, False, record.gate)

    def _entered(self, record: records.Entered) -> None:
        link = self._link(record)
        for user in record.users:
            link.entered(record.context, user)

    def _left(self, record: records.Left) -> None:
        link = self._link(record)
        del self._links[record.link]
        link.leave()

    # Internals

    def _over(self) -> None:
        self._timer = None
        self._leave_old()

    def _leave_old(self) -> None:
        old, self._old = self._old, []
        for link in old:
            link.leave()
