"""The servers of the farm: their links, what these report, and which of two reports of one context counts.

Rules:
- A link that gives an address which another server has, and none that contradicts that server's, is a link of that
  server, unless its own server has other links. What it has said before, it then says there.
- What a link reports stands until this link takes it back or ends. A context, or a user, is gone when no link reports
  it any more.
- Of two servers that report one context, the one with the lower key (`Server.key`) loses; of equal ones the newcomer.
  The loser's context is hidden; if this director had it opened, the server is told once to close it. When the winner's
  closes, the hidden one with the highest key shows.
- A server without an address is told to close nothing: it may turn out to be a link of the winner.
- A server whose last link ends is gone: first its users leave, then its contexts close, then its reservations end. Of a
  large one, that takes some turns (`clearing`); nobody is sent there meanwhile, and a context of it that somebody asks
  for, or reports, closes before that.
"""

from __future__ import annotations

from collections.abc import Iterator

from twisted.internet.interfaces import IReactorTime

from broker.core.director.capacity_hints import CapacityHints
from broker.core.director.cleanup import Cleanup
from broker.core.director.interfaces import Close
from broker.core.director.limits import MAX_LATE_REPORTS, MAX_LINKS
from broker.core.director.presence import Presence
from broker.core.director.reservations import Reservations
from broker.core.director.server_selection import ServerSelection
from broker.core.director.state import LinkReport, OpenContext, Server
from broker.core.errors import Reason, Refusal
from broker.core.notifier import Telling


class Farm:
    """All servers, and the tables about them. Nobody is told before `Telling.tell`, which is the caller's."""

    def __init__(self, clock: IReactorTime, telling: Telling, reservations: Reservations, load_bump: float) -> None:
        self.telling = telling
        self.reservations = reservations
        self.presence = Presence(clock, telling)
        self._cleanup = Cleanup(clock, telling)
        self.selection = ServerSelection(load_bump)
        self.servers: dict[Server, None] = {}
        self.links = 0
        self._numbers = 0
        self._addresses: dict[tuple[str, str], dict[Server, None]] = {}
        self.capacity_hints = CapacityHints()

    # links

    def join(self, report: LinkReport) -> Server:
        """A new link, and so far a new server."""
        self.links += 1
        return self._new_server(report)

    def leave(self, server: Server, report: LinkReport) -> None:
        """A link is gone."""
        self.links -= 1
        self._cleanup.add(self._withdraw(server, report))

    def settle(self, server: Server, report: LinkReport) -> Server:
        """A link has given another address. Returns the server that it is of."""
        if len(server.links) == 1:
            same = self._same(server, report)
            if same is not None:
                if len(same.links) >= MAX_LINKS:
                    raise Refusal(Reason.TOO_MANY_CONNECTIONS, f"this server has {MAX_LINKS} connections here already")
                if len(server.contexts) + server.users > MAX_LATE_REPORTS:
                    raise Refusal(Reason.TOO_MANY_CONNECTIONS, "this server has a connection here, and much to move")
                return self._move(server, same, report)
        unknown = not server.addresses
        self._settle(server)
        if unknown:
            for context in server.contexts.values():
                self.end_duplicate(context)
        return server

    def serves(self, server: Server, capacity: int) -> None:
        """A link has said what its server serves, and how many."""
        for report in server.links:
            report.capacity = capacity
        self._settle(server)

    # contexts

    def open_context(self, name: str) -> OpenContext | None:
        """The context of that name that is open, and not only because its server is still put away."""
        while (context := self.presence.contexts.get(name)) is not None and not context.server.links:
            for user in tuple(context.users):
                self.exited(context, user, context.users[user])
            self._remove(context)
        return context

    def opened(self, context: OpenContext) -> None:
        """A server reports a context that it did not report before."""
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
        """Have a hidden context closed, if this director had it opened, and its server is known to be another."""
        if context.hidden and context.yours and not context.closing and context.server.addresses:
            context.closing = True
            self.telling.add(context.server.newest, Close(context.name, None, dup=True))

    def taken_back(self, context: OpenContext, bit: int) -> None:
        """A link does not report a context any more, nor who is in it."""
        for user in tuple(context.users):
            self.exited(context, user, bit)
        self._unreported(context, bit)

    # users

    def entered(self, context: OpenContext, user: str, bit: int) -> None:
        """A user is in a context in which he was not."""
        context.users[user] = bit
        context.server.users += 1
        self.reservations.claim(context, user)
        if not context.hidden:
            self.presence.enter(context, user)
        context.changed()

    def exited(self, context: OpenContext, user: str, bit: int) -> None:
        """A link does not report a user any more."""
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

    # inside

    def _new_server(self, report: LinkReport) -> Server:
        self._numbers += 1
        server = Server(self._numbers)
        server.admit(report)
        self.servers[server] = None
        self._settle(server)
        return server

    def _settle(self, server: Server) -> None:
        before = server.addresses
        server.settle()
        for address in before.items() - server.addresses.items():
            servers = self._addresses[address]
            del servers[server]
            if not servers:
                del self._addresses[address]
        for address in server.addresses.items() - before.items():
            self._addresses.setdefault(address, {})[server] = None
        self.selection.settle(server)
        if server.links:
            server.room_made()

    def _same(self, server: Server, report: LinkReport) -> Server | None:
        """The other server that this link is of, going by its addresses."""
        for address in report.addresses.items():
            for other in self._addresses.get(address, ()):
                if other is not server and all(other.addresses.get(p, h) == h for p, h in report.addresses.items()):
                    return other
        return None

    def _move(self, server: Server, same: Server, report: LinkReport) -> Server:
        """A link of ``server``, its only one, is of ``same``."""
        reports = [(context, tuple(context.users)) for context in server.contexts.values()]
        for _ in self._withdraw(server, report):
            pass
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
        """A link is the server's no longer, with the last one the server is gone: at once. The steps do the rest."""
        server.dismiss(report)
        server.retiring |= report.bit
        self._settle(server)
        if not server.links:
            self.selection.remove(server)
            del self.servers[server]
        return self._put_away(server, report.bit)

    def _put_away(self, server: Server, bit: int) -> Iterator[None]:
        """End what only a link that is gone has reported."""
        own = [context for context in server.contexts.values() if context.reporters & bit]
        for context in own:
            for user in tuple(context.users):
                if context.users.get(user, 0) & bit:
                    self.exited(context, user, bit)
                    yield
        own.reverse()
        while own:  # and let go of each, since to free ten thousand at once takes its time, too
            context = own.pop()
            if server.contexts.get(context.name) is context:
                self._unreported(context, bit)
                yield
        server.retiring &= ~bit
        if not server.links:
            yield from self.reservations.server_left(server)

    def _unreported(self, context: OpenContext, bit: int) -> None:
        context.reporters &= ~bit
        if not context.reporters:
            self._remove(context)

    def _remove(self, context: OpenContext) -> None:
        name = context.name
        del context.server.contexts[name]
        if context.hidden:
            self.presence.hidden.remove(name, context)
        else:
            self.presence.close(context)
            heirs = [each for each in self.presence.hidden.all(name) if each.server.links]
            if heirs:
                heir = max(heirs, key=lambda each: each.server.key)
                self.presence.hidden.remove(name, heir)
                self._show(heir)
        self.reservations.closed(context)

    def _show(self, context: OpenContext) -> None:
        context.hidden = context.closing = False
        self.presence.open(context)
        for user in context.users:
            self.presence.enter(context, user)
        self.reservations.opened(context)
        context.changed()

    def _hide(self, context: OpenContext) -> None:
        for user in context.users:
            self.presence.leave(context, user)
        self.presence.close(context)
        context.hidden = True
        self.presence.hidden.add(context.name, context)
        self.end_duplicate(context)
