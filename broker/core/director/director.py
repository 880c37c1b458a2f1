"""The director: places users into contexts on a farm of Context Servers.

This module joins the parts; the rules of each are at the head of its module. `farm` keeps the servers and their
reports, `presence` the open contexts and their users, `placement` chooses the server or context of a reservation, and
`reservations` keeps those that are unused, and limits their number. The interface is `director_interfaces.IDirector`;
the wire is `broker.wires.elko.sessions.director_session`.

Dumps of the farm for administrators, as lazy pieces.

Rules:
- The counts are those of the moment in which the dump begins. Each piece is made when it is consumed.
- A server or context that is gone by then is omitted. Hidden contexts are never included.
- The cost of a piece is bounded by the context names of one server, or by the users of one context.

`broker.wires.elko.sessions.director_pages` consumes the pieces page by page.

Recipients of a message for a context or a user: the servers that it concerns.

Departed servers are excluded, although their contexts may still await cleanup.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence

from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IReactorTime
from zope.interface import implementer

from broker.core.director.director_interfaces import (
    ALL,
    Close,
    ContextDump,
    ContextPlace,
    DirectorSettings,
    Dump,
    Granted,
    IContextServer,
    IDirector,
    Order,
    PlaceWatcher,
    ProviderDump,
    ProviderLink,
    Reinit,
    Relay,
    Request,
    Say,
    Shutdown,
    UserPlace,
    unlimited,
)
from broker.core.director.farm import Farm
from broker.core.director.farm_record import FarmRecorder, read
from broker.core.director.farm_state import OpenContext, Server
from broker.core.director.placement import Placer, check_names
from broker.core.director.presence import Presence
from broker.core.director.reservations import Reservations
from broker.core.director.returning import Returning
from broker.core.director.server_link import ServerLink
from broker.core.errors import Reason, Refusal, at_limit
from broker.core.interfaces import InThread
from broker.core.model import check_name
from broker.core.watches import Notifier
from broker.wall_clock import wall


def by_load(farm: Farm) -> list[Server]:
    """Return all servers, ordered by load, then by the time of their first connection."""
    return sorted(farm.servers, key=lambda server: (server.load, server.number))


def dump(farm: Farm, depth: int, provider: str | None, context: str | None) -> Dump:
    """Implement `IDirector.dump`."""
    servers = [server for server in by_load(farm) if provider is None or server.matches(provider)]
    if context is None:
        return Dump(
            len(servers),
            sum(server.shown for server in servers),
            sum(server.shown_users for server in servers),
            _pieces(farm, servers, depth, None),
        )
    clones = farm.presence.sets.get(context)
    only: dict[Server, list[OpenContext]] = {}
    for found in () if clones is None else clones.clones.values():
        only.setdefault(found.server, []).append(found)
    exact = farm.presence.contexts.get(context)
    if exact is not None:
        only.setdefault(exact.server, []).append(exact)
    servers = [server for server in servers if server in only]
    shown = [found for server in servers for found in only[server]]
    users = sum(len(found.users) for found in shown)
    return Dump(len(servers), len(shown), users, _pieces(farm, servers, depth, only))


def _pieces(
    farm: Farm, servers: Sequence[Server], depth: int, only: dict[Server, list[OpenContext]] | None
) -> Iterator[ProviderDump | ContextDump]:
    if depth <= 0:
        return
    for server in servers:
        if server not in farm.servers:
            continue
        if only is None:
            shown, users = server.shown, server.shown_users
        else:
            shown, users = len(only[server]), sum(len(context.users) for context in only[server])
        yield _server(server, shown, users)
        if depth > 1:
            contexts = tuple(server.contexts.values()) if only is None else only[server]
            for context in contexts:
                # The pieces are consumed over many turns: the context may have closed or become hidden meanwhile.
                if farm.presence.contexts.get(context.name) is context:
                    yield ContextDump(context.name, len(context.users), tuple(context.users) if depth > 2 else ())


def _server(server: Server, contexts: int, users: int) -> ProviderDump:
    return ProviderDump(
        server.label,
        contexts,
        users,
        server.load,
        server.capacity,
        tuple(server.addresses.values()),
        tuple(server.addresses),
        tuple(server.families),
    )


def targets(presence: Presence, context: str | None, user: str | None) -> Sequence[Server]:
    """Return the servers concerned, each once; see `IDirector.say`. Raises `Refusal`."""
    for what, name in (("context", context), ("user", user)):
        if name is not None:
            check_name(what, name)
    if context is None:
        if user is None:
            raise Refusal(Reason.PARAMETER, "request message missing context or user")
        found = _present(place.server for place in presence.contexts_of(user))
        if not found:
            raise Refusal(Reason.NOT_REGISTERED, f"user {user} not found")
        return found
    exact = presence.contexts.get(context)
    clones = presence.sets.get(context)
    concerned = _present(() if clones is None else clones.servers) if exact is None else _present((exact.server,))
    if not concerned:
        raise Refusal(Reason.NOT_REGISTERED, f"context {context} not found")
    if user is not None:

        def meant(place: OpenContext) -> bool:
            return place is exact if exact is not None else clones is not None and place.name in clones.clones

        found = _present(place.server for place in presence.contexts_of(user) if meant(place))
        if not found:
            raise Refusal(Reason.NOT_REGISTERED, f"user {user} is not in context {context}")
        return found
    return concerned


def _present(servers: Iterable[Server]) -> tuple[Server, ...]:
    """Return the servers that have a link, each once."""
    return tuple(dict.fromkeys(server for server in servers if server.links))


@implementer(IDirector)
class Director:
    """The implementation of `IDirector`, which documents each method. ``clock`` gives the time.

    In a cluster it is a `broker.core.director.linked_director.LinkedDirector`.
    """

    def __init__(self, clock: IReactorTime, settings: DirectorSettings | None = None) -> None:
        settings = DirectorSettings() if settings is None else settings
        self._max_links = settings.providers
        self._notifier = Notifier()
        self._reservations = Reservations(clock, settings.reservation_seconds, settings.user_reservations)
        self._farm = Farm(clock, self._notifier, self._reservations, settings.load_bump)
        self._presence = self._farm.presence
        self._farm.selection.panic = settings.panic
        self._placer = Placer(self._farm, self._reservations)
        self._returning: Returning | None = None
        self._recorder: FarmRecorder | None = None

    def keep_record(self, clock: IReactorTime, in_thread: InThread, path: str, within: float) -> None:
        """Read the record of the farm from before this start, and keep it from now on.

        Requests for places on recorded servers that have not returned wait for them, ``within`` seconds at most.
        """
        self._returning = Returning(clock, self._farm, read(path, wall(clock)), within)
        self._recorder = FarmRecorder(clock, in_thread, self._farm, path)

    def stop_record(self) -> None:
        """Stop updating the record and releasing requests that wait, because the broker is stopping. Idempotent."""
        if self._recorder is not None:
            self._recorder.stop()
        if self._returning is not None:
            self._returning.stop()

    def use(self, settings: DirectorSettings) -> None:
        """Apply new settings. Reservations that exist keep their expiry."""
        self._max_links = settings.providers
        self._reservations.use(settings.reservation_seconds, settings.user_reservations)
        self._farm.selection.bump = settings.load_bump
        self._farm.selection.panic = settings.panic

    def join(self, label: str, link: ProviderLink, room: Callable[[int], bool] = unlimited) -> IContextServer:
        self._check_room(self._farm.links)
        return ServerLink(self._farm, label, link, room=room)

    def reserved(self, requester: Hashable) -> int:
        waiting = 0 if self._returning is None else self._returning.of(requester)
        return self._reservations.quotas.of(requester) + waiting

    def reserve(self, request: Request) -> Granted | Deferred[Granted]:
        # Before a wait, which keeps the names.
        check_names(request)
        waiting = None if self._returning is None else self._returning.wait(request)
        if waiting is None:
            return self._placer.reserve(request)
        return waiting.addCallback(lambda _: self._placer.reserve(request))

    # Finds and watches

    def find_context(self, context: str) -> ContextPlace:
        return self._presence.find_context(context)

    def find_user(self, user: str) -> UserPlace:
        return self._presence.find_user(user)

    def watch_context(self, watcher: PlaceWatcher, context: str) -> ContextPlace:
        check_name("context", context)
        self._presence.watched_contexts.add(context, watcher)
        return self._presence.find_context(context)

    def watch_user(self, watcher: PlaceWatcher, user: str) -> UserPlace:
        check_name("user", user)
        self._presence.watched_users.add(user, watcher)
        return self._presence.find_user(user)

    def unwatch_context(self, watcher: PlaceWatcher, context: str) -> None:
        self._presence.watched_contexts.remove(context, watcher)

    def unwatch_user(self, watcher: PlaceWatcher, user: str) -> None:
        self._presence.watched_users.remove(user, watcher)

    def forget(self, watcher: PlaceWatcher) -> None:
        self._presence.watched_contexts.forget(watcher)
        self._presence.watched_users.forget(watcher)

    # Messages to servers

    def say(self, context: str | None, user: str | None, text: str) -> int:
        return self._notify(targets(self._presence, context, user), Say(context, user, text))

    def close(self, context: str | None, user: str | None) -> int:
        return self._notify(targets(self._presence, context, user), Close(context, user))

    def relay(self, context: str | None, user: str | None, msg: object, sender: IContextServer | None) -> int:
        own = sender.server if isinstance(sender, ServerLink) else None
        # A server forwards the message inside itself, so that its own copy would arrive twice.
        concerned = [server for server in targets(self._presence, context, user) if server is not own]
        return self._notify(concerned, Relay(context, user, msg))

    def reinit(self, provider: str) -> int:
        return self._notify(self._named(provider), Reinit())

    def shutdown(self, provider: str, kill: bool) -> int:
        return self._notify(self._named(provider), Shutdown(kill))

    # Lists and counters

    def contexts(self) -> Sequence[str]:
        return list(self._presence.contexts)

    def users(self) -> Sequence[str]:
        return list(self._presence.users)

    def providers(self) -> Sequence[str]:
        return [server.label for server in by_load(self._farm)]

    def dump(self, depth: int, provider: str | None, context: str | None) -> Dump:
        return dump(self._farm, depth, provider, context)

    def counts(self) -> Mapping[str, int]:
        return {
            "granted": self._placer.granted,
            "denied": self._placer.denied,
            "used": self._reservations.used,
            "expired": self._reservations.expired,
            "lost": self._reservations.lost,
            "replaced": self._reservations.replaced,
            "reservations": len(self._reservations),
            "placements": len(self._reservations.placements),
            "links": self._farm.links,
            "providers": len(self._farm.servers),
            "failing": self._farm.selection.failing,
            "waiting": 0 if self._returning is None else len(self._returning),
            "contexts": len(self._presence.contexts),
            "hidden_contexts": len(self._presence.hidden),
            "users": self._presence.present,
        }

    # Internals

    def _check_room(self, links: int) -> None:
        if links >= self._max_links:
            text = f"the director has {self._max_links} connections of servers, and takes no more"
            raise at_limit(text, "director.providers")

    def _named(self, provider: str) -> list[Server]:
        return [server for server in self._farm.servers if provider == ALL or server.matches(provider)]

    def _notify(self, servers: Sequence[Server], order: Order) -> int:
        for server in servers:
            self._notifier.add(server.newest, order)
        self._notifier.deliver()
        return len(servers)
