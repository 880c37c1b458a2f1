"""One link of a Context Server: validates its reports, and applies them to the farm.

The links of one server share its `farm_state.Server`; `farm` decides which server a link belongs to.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from math import isfinite
from sys import getsizeof

from zope.interface import implementer

from broker.core.director.director_interfaces import IContextServer, ProviderLink, unlimited
from broker.core.director.farm import Farm
from broker.core.director.farm_state import (
    MAX_CONTEXTS,
    MAX_FAMILIES,
    MAX_PROTOCOLS,
    MAX_USERS,
    MAX_USERS_IN_CONTEXT,
    SHORT_REASON,
    LinkReport,
    OpenContext,
    Server,
    context_bytes,
    user_bytes,
)
from broker.core.errors import PER_ADDRESS, Reason, Refusal, at_limit
from broker.core.hostports import check_hostport
from broker.core.model import MAX_TEXT, Policy, check_name, check_text

GATE_CLOSED = "context closed to new entries"
"""The reason to deny a reservation if a server closes a gate without a reason."""


@implementer(IContextServer)
class ServerLink:
    """The implementation of `IContextServer`, which documents each method."""

    __slots__ = ("_bytes", "_farm", "_gates", "_gone", "_report", "_room", "server")

    def __init__(
        self,
        farm: Farm,
        label: str,
        link: ProviderLink,
        room: Callable[[int], bool] = unlimited,
    ) -> None:
        self._farm = farm
        self._report = LinkReport(label[:MAX_TEXT], link)
        self._gone = False
        self._gates: dict[str, int] = {}
        """Bytes of the long reasons of closed gates, by context."""
        self._bytes = 0
        self._room = room
        self.server: Server = farm.join(self._report)

    # The server

    def relabel(self, label: str) -> None:
        self._check_here()
        self._report.label = label[:MAX_TEXT]
        # The newest link gives the label, even if an older one is relabelled.
        self.server.label = next(reversed(self.server.links)).label

    def address(self, protocol: str, hostport: str) -> None:
        check_name("protocol", protocol)
        check_text("a host and port", hostport)
        if not hostport:
            raise Refusal(Reason.PARAMETER, "a host and port is empty")
        check_hostport(hostport)
        self._check_here()
        addresses = self._report.addresses
        before = addresses.get(protocol)
        if before is None and len(addresses) >= MAX_PROTOCOLS:
            raise Refusal(Reason.LIMIT, f"a server may speak {MAX_PROTOCOLS} protocols, and this is one more")
        addresses[protocol] = hostport
        try:
            self.server = self._farm.settle(self.server, self._report)
        except Refusal:
            if before is None:
                del addresses[protocol]
            else:
                addresses[protocol] = before
            raise
        self._farm.notifier.deliver()

    def will_serve(self, family: str, capacity: int, restricted: bool) -> None:
        check_name("family", family)
        self._check_here()
        families = self._report.families
        if family not in families and len(families) >= MAX_FAMILIES:
            raise Refusal(Reason.LIMIT, f"a server may serve {MAX_FAMILIES} families, and this is one more")
        families[family] = restricted or families.get(family, False)
        self._report.capacity = capacity
        self._farm.serves(self.server, capacity)

    def load(self, factor: float) -> None:
        self._check_here()
        if not isfinite(factor):
            raise Refusal(Reason.PARAMETER, "a load is not a finite number")
        self._farm.selection.load(self.server, max(0.0, factor))

    def judged(self, policy: Policy) -> None:
        if not self._gone:
            self._farm.judge(self.server, self._report, policy)

    # Contexts

    def opened(self, context: str, yours: bool, maxcap: int, basecap: int, restricted: bool) -> None:
        check_name("context", context)
        self._check_here()
        farm = self._farm
        server = self.server
        found = server.contexts.get(context)
        new = found is None
        if found is None:
            if len(server.contexts) >= MAX_CONTEXTS:
                raise Refusal(Reason.LIMIT, f"a server may have {MAX_CONTEXTS} contexts, and this is one more")
            found = OpenContext(context, server)
        if not found.reporters & self._report.bit:
            self._count(context_bytes(context))
            found.reporters |= self._report.bit
        found.yours = found.yours or yours
        found.maxcap = maxcap
        found.basecap = basecap
        found.restricted = restricted
        # Before `Farm.opened`, which moves reservations by the capacity of the clone.
        farm.capacity_hints.remember(found)
        if new:
            farm.opened(found)
        else:
            found.changed()
            farm.end_duplicate(found)
        farm.notifier.deliver()

    def closed(self, context: str) -> None:
        found, bit = self._own(context), self._report.bit
        users = sum(user_bytes(user) for user, reporters in found.users.items() if reporters & bit)
        self._count(-context_bytes(context) - self._gates.pop(context, 0) - users)
        self._farm.taken_back(found, bit)
        self._farm.notifier.deliver()

    def gate(self, context: str, open: bool, reason: str | None) -> None:
        check_text("a reason", reason or "")
        found = self._own(context)
        size = 0 if open or reason is None or len(reason) <= SHORT_REASON else getsizeof(reason)
        self._count(size - self._gates.get(context, 0))
        if size:
            self._gates[context] = size
        else:
            self._gates.pop(context, None)
        if open:
            found.gate = None
        else:
            found.gate = GATE_CLOSED if reason is None else reason
        found.changed()

    # Users

    def entered(self, context: str, user: str) -> None:
        check_name("user", user)
        found = self._own(context)
        bit = self._report.bit
        if user in found.users:
            if not found.users[user] & bit:
                self._count(user_bytes(user))
                found.users[user] |= bit
            return
        if len(found.users) >= MAX_USERS_IN_CONTEXT:
            raise Refusal(Reason.LIMIT, f"a context may have {MAX_USERS_IN_CONTEXT} users, and this is one more")
        if found.server.users >= MAX_USERS:
            raise Refusal(Reason.LIMIT, f"a server may have {MAX_USERS} users, and this is one more")
        self._count(user_bytes(user))
        self._farm.entered(found, user, bit)
        self._farm.notifier.deliver()

    def exited(self, context: str, user: str) -> None:
        found = self._own(context)
        bit = self._report.bit
        if not found.users.get(user, 0) & bit:
            check_name("user", user)
            raise Refusal(Reason.NOT_REGISTERED, f"user {user!r} is not in context {context!r}")
        self._count(-user_bytes(user))
        self._farm.exited(found, user, bit)
        self._farm.notifier.deliver()

    def restrict(self, may: Callable[[str], bool]) -> None:
        if self._gone:
            return
        report = self._report
        families = {family: restricted for family, restricted in report.families.items() if may(family)}
        if len(families) < len(report.families):
            report.families = families
            self._farm.serves(self.server, report.capacity)
        own = [each.name for each in self.server.contexts.values() if each.reporters & report.bit]
        forbidden = [name for name in own if not may(name)]
        if forbidden:
            self._farm.clean_up(self._close(forbidden))
        self._farm.notifier.deliver()

    def leave(self) -> None:
        if not self._gone:
            self._gone = True
            self._farm.leave(self.server, self._report)
            self._farm.notifier.deliver()

    # Internals

    def _count(self, size: int) -> None:
        """Add bytes to those of the reports, or subtract them. Raises `Refusal` LIMIT if there is no room for them."""
        if not self._room(self._bytes + size) and size > 0:
            text = "the contexts and users of the servers at this address take too much memory"
            raise at_limit(text, PER_ADDRESS)
        self._bytes += size

    def _close(self, contexts: Iterable[str]) -> Iterator[None]:
        """Take the reports about contexts back, one user or context in each step."""
        for name in contexts:
            # It, or the link, may have ended between two steps; a user may have left, or be another link's.
            with suppress(Refusal):
                for user in tuple(self._own(name).users):
                    with suppress(Refusal):
                        self.exited(name, user)
                    yield
                self.closed(name)
                yield

    def _check_here(self) -> None:
        if self._gone:
            raise Refusal(Reason.NOT_REGISTERED, "this server has left")

    def _own(self, context: str) -> OpenContext:
        """Return the context of that name that this link reports. Raises `Refusal` NOT_REGISTERED."""
        found = self.server.contexts.get(context)
        if found is None or not found.reporters & self._report.bit or self._gone:
            check_name("context", context)
            raise Refusal(Reason.NOT_REGISTERED, f"context {context!r} is not open at this server")
        return found
