"""A connection of a Context Server to this broker, whose reports are shared with other directors."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from broker.core.director.farm import Farm
from broker.core.director.interfaces import Order, ProviderLink
from broker.core.director.server_link import ServerLink
from broker.core.director.sharing import records
from broker.core.director.sharing.limits import MESSAGE_WORK
from broker.core.director.sharing.outgoing import Outgoing
from broker.core.director.sharing.records import Record
from broker.core.director.state import OpenContext
from broker.core.model import Policy


class SharedLinks:
    """The connections of Context Servers to this broker, by their numbers here."""

    def __init__(self, farm: Farm, outgoing: Outgoing) -> None:
        self.farm = farm
        self.outgoing = outgoing
        self._links: dict[int, SharedLink] = {}
        self._count = 0

    def __len__(self) -> int:
        return len(self._links)

    def join(self, label: str, link: ProviderLink) -> SharedLink:
        """Add a connection."""
        self._count += 1
        shared = self._links[self._count] = SharedLink(self, self._count, label, link)
        shared.share(records.Joined(self._count, shared.label))
        return shared

    def left(self, number: int) -> None:
        """Remove a connection that has ended."""
        del self._links[number]

    def tell(self, number: int, order: Order) -> bool:
        """Send a message that another director passes on to one connection. Returns False if it has ended."""
        link = self._links.get(number)
        if link is None:
            return False
        self.farm.notifier.add(link.receiver, order)
        self.farm.notifier.deliver()
        return True

    def describe(self) -> Iterator[tuple[int, Sequence[Record]]]:
        """Yield the number and the reports of each connection: a context with its users at once, as it is then."""
        for number, link in tuple(self._links.items()):
            if number not in self._links:
                continue
            yield number, link.head()
            for context in tuple(link.server.contexts.values()):
                if number not in self._links:
                    break
                described = link.describe(context)
                if described:
                    yield number, described


class SharedLink(ServerLink):
    """A connection: each report that is not refused is sent to the other directors."""

    __slots__ = ("_links", "number")

    def __init__(self, links: SharedLinks, number: int, label: str, link: ProviderLink) -> None:
        super().__init__(links.farm, label, link, links.farm.here)
        self._links = links
        self.number = number

    @property
    def label(self) -> str:
        """The label of the connection."""
        return self._report.label

    @property
    def receiver(self) -> ProviderLink:
        """The recipient of messages."""
        return self._report.link

    def share(self, record: Record) -> None:
        """Send a report to the other directors."""
        self._links.outgoing.add(self.number, record)

    # Reports

    def relabel(self, label: str) -> None:
        super().relabel(label)
        self.share(records.Relabelled(self.number, self.label))

    def address(self, protocol: str, hostport: str) -> None:
        super().address(protocol, hostport)
        self.share(records.Address(self.number, protocol, hostport))

    def will_serve(self, family: str, capacity: int, restricted: bool) -> None:
        super().will_serve(family, capacity, restricted)
        self.share(records.Serves(self.number, family, capacity, restricted))

    def load(self, factor: float) -> None:
        super().load(factor)
        self.share(records.LoadReport(self.number, factor))

    def judged(self, policy: Policy) -> None:
        super().judged(policy)
        self.share(records.Judged(self.number, policy.value))

    def opened(self, context: str, yours: bool, maxcap: int, basecap: int, restricted: bool) -> None:
        super().opened(context, yours, maxcap, basecap, restricted)
        self.share(records.Opened(self.number, context, yours, maxcap, basecap, restricted))

    def closed(self, context: str) -> None:
        super().closed(context)
        self.share(records.Closed(self.number, context))

    def gate(self, context: str, open: bool, reason: str | None) -> None:
        super().gate(context, open, reason)
        self.share(records.Gate(self.number, context, open, reason))

    def entered(self, context: str, user: str) -> None:
        super().entered(context, user)
        self.share(records.Entered(self.number, context, (user,)))

    def exited(self, context: str, user: str) -> None:
        super().exited(context, user)
        self.share(records.Exited(self.number, context, user))

    def leave(self) -> None:
        if not self._gone:
            super().leave()
            self._links.left(self.number)
            self.share(records.Left(self.number))

    # Snapshot

    def head(self) -> list[Record]:
        """Return all reports but those of contexts. The addresses come first, by which the server is recognised."""
        number, report = self.number, self._report
        described: list[Record] = [records.Joined(number, report.label)]
        described += [records.Address(number, *address) for address in report.addresses.items()]
        for family, restricted in report.families.items():
            described.append(records.Serves(number, family, report.capacity, restricted))
        described.append(records.LoadReport(number, self.server.load))
        if report.policy is not Policy.SHOW:
            described.append(records.Judged(number, report.policy.value))
        return described

    def describe(self, context: OpenContext) -> list[Record]:
        """Return the reports of this connection about a context and its users; none if it has closed."""
        bit = self._report.bit
        if self.server.contexts.get(context.name) is not context or not context.reporters & bit:
            return []
        number, name = self.number, context.name
        described: list[Record] = [
            records.Opened(
                number, name, context.yours, context.maxcap, context.basecap, context.restricted, context.gate
            )
        ]
        users = [user for user, reporters in context.users.items() if reporters & bit]
        described.extend(
            records.Entered(number, name, users[first : first + MESSAGE_WORK])
            for first in range(0, len(users), MESSAGE_WORK)
        )
        return described
