"""The servers of the farm: their links, the reports of these, and the choice between conflicting reports.

Rules:
- A link that reports an address of another server, and no address that contradicts that server's, belongs to that
  server, unless its own server has other links. Its earlier reports move along.
- A report of a link is valid until the same link withdraws it or ends. A context or user is gone when no link reports
  it any more.
- When two servers report one context, the one with the lower key (`Server.key`) loses; of equal ones the newcomer. The
  loser's context is hidden; if a reservation of this director opened it, the server receives `Close` once. When the
  winner's context closes, the hidden one with the highest key becomes visible.
- A server without an address receives no such `Close`: it may turn out to be a link of the winner.
- When the last link of a server ends, first its users leave, then its contexts close, then its reservations end. For a
  large server that takes several turns of the reactor (`farm_tables.Cleanup`). No user is sent there meanwhile, and a
  context of it that is requested or reported is closed at once.
"""

from __future__ import annotations

from collections.abc import Iterator

from twisted.internet.interfaces import IReactorTime

from broker.core.director.director_interfaces import Close
from broker.core.director.farm_state import MAX_LATE_REPORTS, MAX_LINKS, LinkReport, OpenContext, Server
from broker.core.director.farm_tables import CapacityHints, Cleanup
from broker.core.director.presence import Presence
from broker.core.director.reservations import Reservations
from broker.core.director.server_selection import ServerSelection
from broker.core.errors import Reason, Refusal
from broker.core.model import Policy
from broker.core.turns import all_at_once
from broker.core.watches import Notifier


class Farm:
    """All servers and the tables about them. Notices are only queued: the caller of a method delivers them."""

    def __init__(self, clock: IReactorTime, notifier: Notifier, reservations: Reservations, load_bump: float) -> None:
        self.notifier = notifier
        self.reservations = reservations
        self.presence = Presence(clock, notifier)
        self._cleanup = Cleanup(clock, notifier)
        self.selection = ServerSelection(load_bump)
        self.servers: dict[Server, None] = {}
        self.changes = 0
        """Number of changes of servers and open contexts, for the record."""
        self.links = 0
        self._numbers = 0
        self._addresses: dict[tuple[str, str], dict[Server, None]] = {}
        self.capacity_hints = CapacityHints()

    # Links

    def join(self, report: LinkReport) -> Server:
        """Add a new link, at first as a server of its own."""
        self.links += 1
        return self._new_server(report)

    def leave(self, server: Server, report: LinkReport) -> None:
        """Remove a link that has ended, and schedule the cleanup of its reports."""
        self.links -= 1
        self.clean_up(self._withdraw(server, report))

    def clean_up(self, work: Iterator[None]) -> None:
        """Withdraw users and contexts, one in each step, over as many turns of the reactor as that takes."""
        self._cleanup.add(work)

    def settle(self, server: Server, report: LinkReport) -> Server:
        """Assign a link that has reported an address. Returns the server that it belongs to.

        Raises `Refusal` TOO_MANY_CONNECTIONS if that server has `MAX_LINKS` links, or if the link has more than
        `MAX_LATE_REPORTS` reports that would have to move.
        """
        if len(server.links) == 1:
            same = self._same(server, report)
            if same is not None:
                if len(same.links) >= MAX_LINKS:
                    raise Refusal(Reason.TOO_MANY_CONNECTIONS, f"this server has {MAX_LINKS} connections here already")
                if len(server.contexts) + server.users > MAX_LATE_REPORTS:
                    raise Refusal(
                        Reason.TOO_MANY_CONNECTIONS,
                        "this server is connected already, and has too many reports to move",
                    )
                return self._move(server, same, report)
        # Duplicates of a server without an address are not closed. With its first address it is a distinct server, and
        # the postponed `Close` messages are due.
        unknown = not server.addresses
        self._settle(server)
        if unknown:
            for context in server.contexts.values():
                self.end_duplicate(context)
        return server

    def server_at(self, protocol: str, hostport: str) -> Server | None:
        """Return the server with that address, or None."""
        return next(iter(self._addresses.get((protocol, hostport), ())), None)

    def judge(self, server: Server, report: LinkReport, policy: Policy) -> None:
        """Apply the result of the health check of a link."""
        report.policy = policy
        self._settle(server)

    def serves(self, server: Server, capacity: int) -> None:
        """Apply the families and the capacity that a link has reported."""
        # The capacity is that of the whole server: the last value counts, over whichever link it came.
        for report in server.links:
            report.capacity = capacity
        self._settle(server)

    # Contexts

    def open_context(self, name: str) -> OpenContext | None:
        """Return the open context of that name, or None. One of a departed server is closed first."""
        # A loop, since removing the context may make a hidden one of the same name visible.
        while (context := self.presence.contexts.get(name)) is not None and not context.server.links:
            for user in tuple(context.users):
                self.exited(context, user, context.users[user])
            self._remove(context)
        return context

    def opened(self, context: OpenContext) -> None:
        """Add a context that its server did not report before, and resolve a conflict with another server's."""
        self.changes += 1
        context.server.contexts[context.name] = context
        rival = self.open_context(context.name)
        if rival is None:
            self._show(context)
        elif context.server.key > rival.server.key:
            self._hide(rival)
            self._show(context)
        else:
            context.hidden = True
            self.presence.hidden.add(context.name, context)
            self.end_duplicate(context)

    def end_duplicate(self, context: OpenContext) -> None:
        """Queue `Close` for a hidden context that this director had opened and whose server is known to be distinct."""
        server = context.server
        if context.hidden and context.yours and not context.closing and server.addresses:
            context.closing = True
            self.notifier.add(server.newest, Close(context.name, None, dup=True))

    def taken_back(self, context: OpenContext, bit: int) -> None:
        """Withdraw the report of one link (``bit``) about a context and its users."""
        for user in tuple(context.users):
            self.exited(context, user, bit)
        self._unreported(context, bit)

    # Users

    def entered(self, context: OpenContext, user: str, bit: int) -> None:
        """Add a user who was not in the context before."""
        context.users[user] = bit
        context.server.users += 1
        self.reservations.claim(context, user)
        if not context.hidden:
            self.presence.enter(context, user)
        context.changed()

    def exited(self, context: OpenContext, user: str, bit: int) -> None:
        """Withdraw the report of one link (``bit``) about a user."""
        reporters = context.users[user] & ~bit
        if reporters:
            context.users[user] = reporters
            return
        del context.users[user]
        context.server.users -= 1
        if not context.hidden:
            self.presence.leave(context, user)
        context.changed()
        context.server.room_made()

    # Internals

    def _new_server(self, report: LinkReport) -> Server:
        self._numbers += 1
        server = Server(self._numbers)
        server.admit(report)
        self.servers[server] = None
        self._settle(server)
        return server

    def _settle(self, server: Server) -> None:
        self.changes += 1
        before = server.addresses
        policy = server.policy
        server.settle()
        for address in before.items() - server.addresses.items():
            servers = self._addresses[address]
            del servers[server]
            if not servers:
                del self._addresses[address]
        for address in server.addresses.items() - before.items():
            self._addresses.setdefault(address, {})[server] = None
        self.selection.settle(server)
        if server.policy is not policy:
            self.selection.judged(server)
        if server.links:
            server.room_made()

    def _heir(self, name: str) -> OpenContext | None:
        """Return the hidden context of that name that is visible next, or None."""
        # Hidden contexts of departed servers, which await their cleanup, are not eligible.
        heir: OpenContext | None = None
        for each in self.presence.hidden.all(name):
            if each.server.links and (heir is None or each.server.key > heir.server.key):
                heir = each
        return heir

    def _same(self, server: Server, report: LinkReport) -> Server | None:
        """Return another server that this link belongs to by its addresses, or None."""
        for address in report.addresses.items():
            for other in self._addresses.get(address, ()):
                if other is not server and all(other.addresses.get(p, h) == h for p, h in report.addresses.items()):
                    return other
        return None

    def _move(self, server: Server, same: Server, report: LinkReport) -> Server:
        """Move the only link of ``server``, with all its reports, to ``same``."""
        # Copied before the withdrawal, which empties the contexts.
        reports = [(context, tuple(context.users)) for context in server.contexts.values()]
        # All steps at once: the reports are added again below, and must not be withdrawn by a later turn.
        all_at_once(self._withdraw(server, report))
        same.admit(report)
        self._settle(same)
        for before, users in reports:
            context = same.contexts.get(before.name)
            if context is None:
                context = OpenContext(before.name, same)
                context.maxcap, context.basecap = before.maxcap, before.basecap
                context.restricted, context.gate = before.restricted, before.gate
            context.reporters |= report.bit
            context.yours = context.yours or before.yours
            if context.name not in same.contexts:
                self.opened(context)
            for user in users:
                if user in context.users:
                    context.users[user] |= report.bit
                else:
                    self.entered(context, user, report.bit)
        return same

    def _withdraw(self, server: Server, report: LinkReport) -> Iterator[None]:
        """Detach a link at once, and with the last link its server; return the steps that clean up its reports."""
        server.dismiss(report)
        # The bit stays reserved until the cleanup is done: a new link with the same bit would lose its reports.
        server.retiring |= report.bit
        self._settle(server)
        if not server.links:
            self.selection.remove(server)
            del self.servers[server]
        return self._put_away(server, report.bit)

    def _put_away(self, server: Server, bit: int) -> Iterator[None]:
        """Withdraw all reports of a link that has ended, one user, context or reservation in each step."""
        own = [context for context in server.contexts.values() if context.reporters & bit]
        for context in own:
            for user in tuple(context.users):
                # The user may have left between two steps.
                if context.users.get(user, 0) & bit:
                    self.exited(context, user, bit)
                    yield
        own.reverse()
        # Contexts are popped so that each is freed in its own step: freeing ten thousand at once would stall the
        # reactor, too.
        while own:
            context = own.pop()
            if server.contexts.get(context.name) is context:
                self._unreported(context, bit)
                yield
        server.retiring &= ~bit
        if not server.links:
            # Last: the reservations of placements, which belong to no open context.
            yield from self.reservations.server_left(server)

    def _unreported(self, context: OpenContext, bit: int) -> None:
        """Clear one link's bit, and remove the context if it was the last one."""
        context.reporters &= ~bit
        if not context.reporters:
            self._remove(context)

    def _remove(self, context: OpenContext) -> None:
        """Remove a context from all tables, and make the best hidden one of its name visible."""
        self.changes += 1
        name = context.name
        del context.server.contexts[name]
        if context.hidden:
            self.presence.hidden.remove(name, context)
        else:
            self.presence.close(context)
            heir = self._heir(name)
            if heir is not None:
                self.presence.hidden.remove(name, heir)
                self._show(heir)
        self.reservations.closed(context)

    def _show(self, context: OpenContext) -> None:
        """Make a context visible: users are sent there, and administrators see it."""
        context.hidden = context.closing = False
        self.presence.open(context)
        for user in context.users:
            self.presence.enter(context, user)
        self.reservations.opened(context)
        context.changed()

    def _hide(self, context: OpenContext) -> None:
        """Hide a context that has lost against another server's."""
        for user in context.users:
            self.presence.leave(context, user)
        self.presence.close(context)
        context.hidden = True
        self.presence.hidden.add(context.name, context)
        self.end_duplicate(context)
