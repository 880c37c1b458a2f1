"""Interfaces of the director: the services it offers to sessions, those it requires of them, and the values exchanged.

Rules:
- A *link* is one connection of a Context Server. A *server* is one or more links: links that have an address in common,
  and none that contradicts, belong to one server. It is listed once and receives each message once, over its newest
  link. A context or user that several links report is one; it ends when the last of them withdraws it or ends.
- A context is open on one server only. When two servers report the same one, the second is *hidden*: no user is sent
  there and no administrator sees it, until the first one closes.
- Every method first makes its changes and queues their notices, then delivers these in order, by `receive`. Notices
  that are caused by a call inside a `receive` are delivered after those already queued.
- All recipients of one notice receive the same object, so that it can be encoded once.
- All methods must be called in the reactor thread. They raise only `Refusal`, and then nothing has changed.

`director` implements `IDirector`, `server_link` implements `IContextServer`; docs/protocols/elko-director.md has the
meaning.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from typing import Protocol

import attrs
from twisted.internet.defer import Deferred
from zope.interface import Interface

from broker.core.errors import Reason, Refusal
from broker.core.model import Policy

UNLIMITED = -1
"""The value of an absent capacity limit in the protocol."""

SERVER_FAILING = "server does not answer"
"""The reason to deny a reservation at a server with a failing health check, or one that cannot be reached."""


def unlimited(size: int) -> bool:
    """Return True: there is room for any number of bytes."""
    return True


ALL = "all"
"""In place of a server's label: every server."""

# Messages to servers


@attrs.frozen
class DoReserve:
    """A reservation with which the user, or an anonymous one, will enter this context. Known from real peers."""

    context: str
    user: str | None
    reservation: str


@attrs.frozen
class Say:
    """Text for a context, for a user, or for the user in that context. Document: "say"."""

    context: str | None
    user: str | None
    text: str


@attrs.frozen
class Relay:
    """A message to forward. ``msg`` is the value that `IDirector.relay` received. Document: "relay"."""

    context: str | None
    user: str | None
    msg: object


@attrs.frozen
class Close:
    """Close a context, or disconnect a user. Document: "close".

    ``dup`` is true if the reason is that another server has the context open and keeps it.
    """

    context: str | None
    user: str | None
    dup: bool = False


@attrs.frozen
class Reinit:
    """Reinitialize. Document: "reinit"."""


@attrs.frozen
class Shutdown:
    """Shut down, at once with ``kill``. Document: "shutdown"."""

    kill: bool = False


Order = DoReserve | Say | Relay | Close | Reinit | Shutdown


class ProviderLink(Protocol):
    """One connection of a Context Server, as the director sees it."""

    def receive(self, order: Order) -> None:
        """Send this to the server. No-op after the end of the connection."""


# Values for administrators


@attrs.frozen
class ContextPlace:
    """The server of a context.

    ``provider`` is the label of its server, or None if no context of this very name is open. ``clones`` are the names
    of its open clones, in the order in which they opened, if the name is that of a clone set.
    """

    context: str
    provider: str | None = None
    clones: tuple[str, ...] = ()

    @property
    def open(self) -> bool:
        """True if the context, or a clone of it, is open."""
        return self.provider is not None or bool(self.clones)


@attrs.frozen
class UserPlace:
    """The contexts of a user, or of all clones of a user: their names, each once; empty if the user is in none."""

    user: str
    contexts: tuple[str, ...] = ()

    @property
    def on(self) -> bool:
        """True if the user is in a context."""
        return bool(self.contexts)


class PlaceWatcher(Protocol):
    """Recipient of notices about contexts and users: one administrator's connection. Compared by identity."""

    def receive(self, place: ContextPlace | UserPlace) -> None:
        """Take the new state of a watched context or user."""


# Reservations


@attrs.frozen
class Request:
    """A request for a place in ``context`` for a user, or for an anonymous one (None).

    ``requester`` is the connection of the request, by which anonymous users are identified, unless that is a Context
    Server (``internal``), whose anonymous users all differ, and which may also enter restricted contexts. A requester
    may have up to ``most`` unused reservations; a Context Server may have more.
    """

    requester: Hashable
    protocol: str
    context: str
    user: str | None
    internal: bool
    most: int


@attrs.frozen
class Granted:
    """A granted reservation, with which the user enters ``context`` at ``hostport``.

    ``context`` is a clone's name if a clone set was requested. Document: "reserve".
    """

    context: str
    hostport: str
    reservation: str = attrs.field(repr=False)


class Denied(Refusal):
    """A reservation is denied because no place admits the user. It does not count as the requester's fault.

    ``context`` is the context that was chosen, or the requested one; ``text`` is the reason for people.
    """

    def __init__(self, context: str, text: str) -> None:
        super().__init__(Reason.FORBIDDEN, text)
        self.context = context


@attrs.frozen
class ProviderDump:
    """A server in a dump. ``hostports`` and ``protocols`` are parallel. Document: "dump".

    ``contexts`` and ``users`` are the numbers of each that this dump describes; ``capacity`` is in users.
    """

    label: str
    contexts: int
    users: int
    load: float
    capacity: int
    hostports: tuple[str, ...]
    protocols: tuple[str, ...]
    serving: tuple[str, ...]


@attrs.frozen
class ContextDump:
    """A context of the preceding server in a dump. ``users`` is empty unless the depth is over 2."""

    context: str
    count: int
    users: tuple[str, ...]


@attrs.frozen
class Dump:
    """The answer to a dump: the counts, and the description as lazy pieces.

    At a depth over 0, ``pieces`` yields a `ProviderDump` for each server in the order of their loads; over 1, after
    each of them its contexts. The cost of one piece is bounded by the users of one context. Pieces may be consumed over
    many turns of the reactor: changes in the meantime may or may not be included, and what has closed is omitted.
    """

    providers: int
    contexts: int
    users: int
    pieces: Iterator[ProviderDump | ContextDump]


@attrs.frozen
class DirectorSettings:
    """Configured values of the director.

    ``load_bump`` is added to a server's load for each new context that is placed there, until the server reports its
    load. ``reservation_seconds`` is the time for which an unused reservation takes up room: as long as a Context Server
    keeps it. ``providers`` is the maximum number of links, ``user_reservations`` the maximum number of unused
    reservations of one user. ``panic`` is the share of servers with a failing health check above which none is hidden.
    """

    load_bump: float = 0.0008
    reservation_seconds: float = 30.0
    providers: int = 10_000
    user_reservations: int = 10
    panic: float = 0.5


class IContextServer(Interface):
    """One link of a Context Server.

    Every method may raise `Refusal`: PARAMETER for a name that is empty or too long, LIMIT for a full table,
    NOT_REGISTERED for an unknown context or user.
    """

    def judged(policy: Policy) -> None:
        """Set the rank of the server among candidates, by the health check of this link: SHOW unless it fails.

        The newest link of a server counts. No-op after `leave`.
        """

    def address(protocol: str, hostport: str) -> None:
        """Set the server's address for ``protocol``. The addresses of a link identify its server.

        Raises `Refusal` TOO_MANY_CONNECTIONS if that server has too many links: the session should close this one.
        """

    def will_serve(family: str, capacity: int, restricted: bool) -> None:
        """Add a family of contexts that the server serves.

        ``capacity`` is in users, for the whole server and all families: the last value counts. A family that was once
        restricted remains so.
        """

    def load(factor: float) -> None:
        """Set the server's load. A negative one counts as 0.0; one that is not finite is refused with PARAMETER."""

    def opened(context: str, yours: bool, maxcap: int, basecap: int, restricted: bool) -> None:
        """Report an open context. A repeated report replaces the values.

        ``yours`` is true if a reservation of this director opened it. ``maxcap`` and ``basecap`` are in users, or
        `UNLIMITED`.
        """

    def closed(context: str) -> None:
        """Report that a context has closed, and that all its users have left it."""

    def gate(context: str, open: bool, reason: str | None) -> None:
        """Report the context's gate. While it is closed, reservations are denied with ``reason``."""

    def entered(context: str, user: str) -> None:
        """Report that a user has entered a context. This uses up the user's reservation, if there is one."""

    def exited(context: str, user: str) -> None:
        """Report that a user has left a context."""

    def restrict(may: Callable[[str], bool]) -> None:
        """Withdraw the families and contexts that this link has reported and whose names ``may`` does not permit.

        Large contexts close over several turns of the reactor. No-op after `leave`.
        """

    def relabel(label: str) -> None:
        """Change the link's label. The label of a server is that of its newest link."""

    def leave() -> None:
        """End the link, and with the last link its server and all its contexts. No-op if it has ended already."""


class IDirector(Interface):
    """Contexts and users on a farm of Context Servers."""

    def join(label: str, link: ProviderLink, room: Callable[[int], bool] = ...) -> IContextServer:
        """Add a link of a Context Server. Raises `Refusal` LIMIT if there are too many.

        Until `IContextServer.leave`, ``link`` receives the messages for the server. ``room`` is called with the bytes
        that the contexts and users take which are reported over this link; if it returns False when they grow, the
        report is refused with LIMIT. By default they have no limit.
        """

    def reserved(requester: Hashable) -> int:
        """Return the number of unused reservations of a requester, and of its requests that wait."""

    def reserve(request: Request) -> Granted | Deferred[Granted]:
        """Reserve a place for a user. The server is notified before the answer.

        It replaces the user's earlier reservation for this context. The answer comes later if the place is on a server
        from before a restart that has not returned yet, or if the director of another broker decides; a requester that
        has gone cancels it. Raises `Refusal`, or fails with it: PARAMETER for a name that is empty or too long, LIMIT
        if the requester, the user, or all together have too many; `Denied` if no place admits the user.
        """

    def find_context(context: str) -> ContextPlace:
        """Return the server of a context, or the clones of a set; for an unknown name, one whose ``open`` is False."""

    def find_user(user: str) -> UserPlace:
        """Return the contexts of a user, or of a user's clones."""

    def watch_context(watcher: PlaceWatcher, context: str) -> ContextPlace:
        """Return the same, and notify ``watcher`` of each change from now on. Raises `Refusal` LIMIT or PARAMETER.

        A repeated watch does not repeat notices; it needs as many `unwatch_context` to end.
        """

    def watch_user(watcher: PlaceWatcher, user: str) -> UserPlace:
        """As `watch_context`, for a user."""

    def unwatch_context(watcher: PlaceWatcher, context: str) -> None:
        """Undo one `watch_context`. No-op if the context is not watched."""

    def unwatch_user(watcher: PlaceWatcher, user: str) -> None:
        """Undo one `watch_user`. No-op if the user is not watched."""

    def forget(watcher: PlaceWatcher) -> None:
        """End all watches of a watcher that is gone."""

    def say(context: str | None, user: str | None, text: str) -> int:
        """Send `Say` to each server concerned. Returns their number.

        Concerned are: with a context only, its server, or those of its clones; with a user only, the servers of the
        contexts in which the user or a clone of the user is; with both, the servers on which that user is in that
        context. Raises `Refusal`: PARAMETER if neither is given, NOT_REGISTERED if there is none.
        """

    def close(context: str | None, user: str | None) -> int:
        """Send `Close` likewise."""

    def relay(context: str | None, user: str | None, msg: object, sender: IContextServer | None) -> int:
        """Send `Relay` likewise, except to the server of ``sender``, over whichever link the request came.

        It is no refusal if that server is the only one concerned.
        """

    def reinit(provider: str) -> int:
        """Send `Reinit` to the servers with that label or hostport, or to `ALL`. Returns their number."""

    def shutdown(provider: str, kill: bool) -> int:
        """Send `Shutdown` likewise."""

    def contexts() -> Sequence[str]:
        """Return the names of all open contexts."""

    def users() -> Sequence[str]:
        """Return the names of all users that are in a context, each once."""

    def providers() -> Sequence[str]:
        """Return the labels of all servers, ordered by load."""

    def dump(depth: int, provider: str | None, context: str | None) -> Dump:
        """Describe the farm, or the servers with that label or hostport.

        With ``context``, only that context or its clones are described, and servers without it are omitted.
        """

    def counts() -> Mapping[str, int]:
        """Return counters (granted, denied, used, expired reservations ...) and the present numbers of all objects."""
