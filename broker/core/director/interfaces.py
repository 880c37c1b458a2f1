"""What the director promises to its sessions, what it asks of them, and the values that pass between.

Rules:
- A *link* is one connection of a Context Server. A *server* is one or more links: links that have an address in common,
  and none that contradicts, are of one server. It is listed once, told things over its newest link, and a context or
  user that several links report is one, until the last of them takes it back or ends.
- A context is open at one server only. Where two servers report the same one, the second is *hidden*: nobody is sent
  there and no administrator sees it, until the first one closes.
- Every method first makes its changes and collects who must hear of them, then tells them, in order, by `hear`. What
  is called in a `hear` is told after what is still to be told.
- Whoever hears gets the same object as all others who hear the same, so that it can be encoded once.
- All methods are for the reactor thread. Only `Refusal` is raised; then nothing has changed.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from typing import Protocol

import attrs
from zope.interface import Interface

from broker.core.errors import Reason, Refusal

UNLIMITED = -1
"""A capacity that is none, as the protocol writes it."""

ALL = "all"
"""In place of a server's label: every server."""

# What a server is told


@attrs.frozen
class DoReserve:
    """Let this user, or an anonymous one, enter this context with that reservation."""

    context: str
    user: str | None
    reservation: str


@attrs.frozen
class Say:
    """Say something to a context, or to a user, or to the user in that context."""

    context: str | None
    user: str | None
    text: str


@attrs.frozen
class Relay:
    """Pass a message on. ``msg`` is whatever was given to `IDirector.relay`."""

    context: str | None
    user: str | None
    msg: object


@attrs.frozen
class Close:
    """Close a context, or disconnect a user. ``dup``: because another server has the context open, and keeps it."""

    context: str | None
    user: str | None
    dup: bool = False


@attrs.frozen
class Reinit:
    """Reinitialize."""


@attrs.frozen
class Shutdown:
    """End, at once with ``kill``."""

    kill: bool = False


Order = DoReserve | Say | Relay | Close | Reinit | Shutdown


class ProviderLink(Protocol):
    """One connection of a Context Server, as the director sees it."""

    def hear(self, order: Order) -> None:
        """Send this to the server. An order that came too late, after the end of the connection, is ignored."""


# What an administrator is told


@attrs.frozen
class ContextPlace:
    """Where a context is.

    ``provider`` is the label of its server, None if none has a context of this very name open; ``clones`` are the names
    of its open clones, in the order in which they opened, where the name is that of a clone set.
    """

    context: str
    provider: str | None = None
    clones: tuple[str, ...] = ()

    @property
    def open(self) -> bool:
        """Whether it, or a clone of it, is open."""
        return self.provider is not None or bool(self.clones)


@attrs.frozen
class UserPlace:
    """Where a user is, or all clones of one: the names of the contexts, each once; none if he is nowhere."""

    user: str
    contexts: tuple[str, ...] = ()

    @property
    def on(self) -> bool:
        """Whether he is anywhere."""
        return bool(self.contexts)


class PlaceWatcher(Protocol):
    """Who watches contexts and users: one administrator's connection. Two are the same if they are one object."""

    def hear(self, place: ContextPlace | UserPlace) -> None:
        """A context that it watches opened or closed, or a user came or went."""


# Answers


@attrs.frozen
class Granted:
    """A reservation: enter ``context`` (a clone's name may stand for its set's) at ``hostport``."""

    context: str
    hostport: str
    reservation: str = attrs.field(repr=False)


class Denied(Refusal):
    """No reservation, since no place takes the user. It is no fault of the peer that asked.

    ``context`` is the one that was chosen, or the requested one; ``text`` a sentence for people.
    """

    def __init__(self, context: str, text: str) -> None:
        super().__init__(Reason.FORBIDDEN, text)
        self.context = context


@attrs.frozen
class ProviderDump:
    """A server, as a dump shows it. ``hostports`` and ``protocols`` are parallel.

    ``contexts`` and ``users`` are how many of each this dump describes.
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
    """A context of the server that the dump named last. ``users`` are all in it, empty unless the depth is over 2."""

    context: str
    count: int
    users: tuple[str, ...]


@attrs.frozen
class Dump:
    """The answer to a dump: what is counted at once, and the rest piece by piece.

    ``pieces`` gives, where the depth is over 0, a `ProviderDump` for each server in the order of their loads, and,
    where it is over 1, after each of them its contexts. No piece costs more than a context's users. Take as many as
    there is time for, and the others later: what changes meanwhile may or may not be seen, what closed is left out.
    """

    providers: int
    contexts: int
    users: int
    pieces: Iterator[ProviderDump | ContextDump]


@attrs.frozen
class DirectorSettings:
    """What of the director is configured.

    ``load_bump`` is added to a server's load for each new context that is placed there, until it reports its load.
    ``reservation_seconds`` is how long a reservation counts before its user has come: as long as the Context Server
    keeps it. ``providers`` is how many links there may be, ``user_reservations`` how many reservations that nobody has
    used yet one user may have.
    """

    load_bump: float = 0.0008
    reservation_seconds: float = 30.0
    providers: int = 10_000
    user_reservations: int = 10


class IContextServer(Interface):
    """One link of a Context Server. Every method may raise `Refusal`: PARAMETER for a name that is empty or too long,
    LIMIT for a full table, NOT_REGISTERED for what is not known."""

    def address(protocol: str, hostport: str) -> None:
        """It speaks ``protocol`` at ``hostport``, and no longer elsewhere. This is what tells that two links are of one
        server. Raises `Refusal` TOO_MANY_CONNECTIONS when that server has too many links: this one should be closed.
        """

    def will_serve(family: str, capacity: int, restricted: bool) -> None:
        """It serves contexts of that family. ``capacity`` is the server's, for all families: the last one counts.

        A family once restricted remains so.
        """

    def load(factor: float) -> None:
        """Its load; a negative one counts as 0.0, one that is no number is refused with PARAMETER."""

    def opened(context: str, yours: bool, maxcap: int, basecap: int, restricted: bool) -> None:
        """A context is open. ``yours``: a reservation of this director opened it. Said again, the new values count."""

    def closed(context: str) -> None:
        """A context is closed, and nobody is in it any more."""

    def gate(context: str, open: bool, reason: str | None) -> None:
        """The context's gate is open, or closed for that reason: nobody gets a reservation for it."""

    def entered(context: str, user: str) -> None:
        """A user is in one of its contexts. He uses up his reservation, if there is one."""

    def exited(context: str, user: str) -> None:
        """A user has left one of its contexts."""

    def relabel(label: str) -> None:
        """The link's label is another from now on; that of its server is the label of its newest link."""

    def leave() -> None:
        """The link is gone; with the last link its server, and all that is there. Harmless when it is gone already."""


class IDirector(Interface):
    """Contexts and users on a farm of Context Servers."""

    def join(label: str, link: ProviderLink) -> IContextServer:
        """A Context Server has connected. Raises `Refusal` LIMIT when there are too many.

        Until `IContextServer.leave`, ``link`` is told what the server is to do.
        """

    def reserve(
        requester: Hashable, protocol: str, context: str, user: str | None, internal: bool, most: int
    ) -> Granted:
        """A place for a user, or an anonymous one. Before it is granted, the server has been told of it.

        It replaces the reservation that this user has for this context; an anonymous user is the same as another if the
        ``requester`` is, unless that is a Context Server (``internal``), which may also enter what is restricted.
        ``requester`` is the connection that asks, and may have up to ``most`` reservations that nobody has used yet; a
        Context Server may have more. Raises `Refusal`: PARAMETER for a name that is empty or too long, LIMIT where the
        connection, the user, or all together have too many; `Denied` where no place takes the user.
        """

    def find_context(context: str) -> ContextPlace:
        """Where a context is, or the clones of one. For a name that is neither, a place that is not open."""

    def find_user(user: str) -> UserPlace:
        """Where a user is, or the clones of one."""

    def watch_context(watcher: PlaceWatcher, context: str) -> ContextPlace:
        """The same, and from now on each change of it. Raises `Refusal` LIMIT or PARAMETER.

        Watched twice, a change is still told once; it then takes two `unwatch_context` to end it.
        """

    def watch_user(watcher: PlaceWatcher, user: str) -> UserPlace:
        """The same for a user."""

    def unwatch_context(watcher: PlaceWatcher, context: str) -> None:
        """Undo one `watch_context`. Harmless for what is not watched."""

    def unwatch_user(watcher: PlaceWatcher, user: str) -> None:
        """Undo one `watch_user`. Harmless for what is not watched."""

    def forget(watcher: PlaceWatcher) -> None:
        """End all its watches: it is gone."""

    def say(context: str | None, user: str | None, text: str) -> int:
        """Have each server concerned told `Say`. Returns how many were.

        Concerned is the server of the context, or those of its clones; or, without a context, those where the user is,
        or his clones; with both, those where that user is in that context. Raises `Refusal`: PARAMETER if neither is
        given, NOT_REGISTERED if there is none.
        """

    def close(context: str | None, user: str | None) -> int:
        """The same with `Close`."""

    def relay(context: str | None, user: str | None, msg: object, sender: IContextServer | None) -> int:
        """The same with `Relay`, without the server of the ``sender``, whichever of its links that is.

        No refusal if it is the only one concerned.
        """

    def reinit(provider: str) -> int:
        """Tell `Reinit` to the servers with that label or hostport, or to `ALL`. Returns how many there were."""

    def shutdown(provider: str, kill: bool) -> int:
        """The same with `Shutdown`."""

    def contexts() -> Sequence[str]:
        """The names of all open contexts."""

    def users() -> Sequence[str]:
        """The names of all users that are anywhere, each once."""

    def providers() -> Sequence[str]:
        """The labels of all servers, in the order of their loads."""

    def dump(depth: int, provider: str | None, context: str | None) -> Dump:
        """The state of the farm, or of the servers with that label or hostport.

        With ``context``, only of that context or its clones; servers without it are then left out.
        """

    def counts() -> Mapping[str, int]:
        """How many reservations were granted, denied, used and expired, and how many of each thing there are now."""
