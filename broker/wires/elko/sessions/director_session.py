"""Session of the Elko Director protocol: one for each connection.

Rules (the Director document; where real peers differ, see docs/protocols/elko-director.md):
- `session` handles authentication and the ops common to all objects.
- The objects are ``director`` (users), ``provider`` (Context Servers, which may call it ``session``; answers are from
  ``provider``) and ``admin``. `reserve` is for all three roles, at ``director`` and ``provider``.
- A provider joins the farm at `auth`, and leaves it at the end of its connection or input. The director determines by
  its addresses whether its server is connected already. Its reports have no answers.
- A provider is not disconnected for refusals, unless they are fatal: real servers do not reconnect by themselves.
- A request for a reservation is always answered: an invalid one is denied, with the reason.
- A message concerns a context or a user: exactly one of them must be present.
- Objects of a peer without a user count for its address: contexts and users of a
  provider, unused reservations, watches.
- Long answers are written page by page (`director_pages`); later messages to the same peer wait until they are sent.

The file is longer than others: it has one method for each operation of the protocol.
"""

from __future__ import annotations

from collections import Counter
from functools import partial
from typing import Protocol

import attrs
from msgspec import UNSET
from twisted.internet.defer import CancelledError, Deferred
from twisted.internet.interfaces import IReactorTime
from twisted.python.failure import Failure

from broker.core.director import director_interfaces as core
from broker.core.director.director_interfaces import IContextServer, IDirector
from broker.core.errors import PER_ADDRESS, Reason, Refusal, at_limit
from broker.core.model import check_text
from broker.net.peer_interfaces import Peer
from broker.wires.elko.codec import director_messages as wire
from broker.wires.elko.codec.blocks import Auth, Disconnect, encode
from broker.wires.elko.sessions.authentication import AccessControl, Role
from broker.wires.elko.sessions.director_pages import Outbox, PageWriter, Parts, dump_parts, list_parts
from broker.wires.elko.sessions.session import (
    COMMON,
    ElkoSession,
    ObjectTables,
    OperationRoles,
    Operations,
    administering,
    viewing,
)

# Messages of the Elko Director protocol for the orders and notices of the core.

Notification = core.Order | core.ContextPlace | core.UserPlace

Message = (
    wire.DoReserve
    | wire.SayOut
    | wire.RelayOut
    | wire.CloseOut
    | wire.ReinitOut
    | wire.ShutdownOut
    | wire.ContextFound
    | wire.UserFound
)


class MessageCache:
    """Encodes notifications. Consecutive recipients of the same object share one encoding."""

    def __init__(self) -> None:
        self._notice: Notification | None = None
        self._data = b""

    def of(self, notice: Notification) -> bytes:
        """Return the encoded message of a notification."""
        if notice is not self._notice:
            self._data = encode(notification_message(notice))
            self._notice = notice
        return self._data


def notification_message(notice: Notification) -> Message:
    """Return the message of a notification."""
    if isinstance(notice, core.UserPlace):
        return user_found(notice)
    if isinstance(notice, core.ContextPlace):
        return context_found(notice)
    if isinstance(notice, core.DoReserve):
        return wire.DoReserve(context=notice.context, user=notice.user or UNSET, reservation=notice.reservation)
    if isinstance(notice, core.Say):
        return wire.SayOut(context=notice.context or UNSET, user=notice.user or UNSET, text=notice.text)
    if isinstance(notice, core.Relay):
        assert isinstance(notice.msg, dict), "only objects are given to be relayed"
        return wire.RelayOut(context=notice.context or UNSET, user=notice.user or UNSET, msg=notice.msg)
    if isinstance(notice, core.Close):
        dup = True if notice.dup else UNSET
        return wire.CloseOut(context=notice.context or UNSET, user=notice.user or UNSET, dup=dup)
    if isinstance(notice, core.Shutdown):
        return wire.ShutdownOut(kill=True if notice.kill else UNSET)
    return wire.ReinitOut()


def context_found(place: core.ContextPlace) -> wire.ContextFound:
    """Return the message with the place of a context. The document has a clone set itself as not open."""
    provider = place.provider
    return wire.ContextFound(
        context=place.context,
        open=provider is not None,
        provider=UNSET if provider is None else provider,
        clones=place.clones or UNSET,
    )


def user_found(place: core.UserPlace) -> wire.UserFound:
    """Return the message with the contexts of a user."""
    return wire.UserFound(user=place.user, on=place.on, contexts=place.contexts or UNSET)


_NONE: dict[Deferred[core.Granted], wire.Reserve] = {}
"""The reservations that are answered later of a session without any: most have none, ever."""

RESERVATION_BYTES = 1_000
"""Bytes that an unused reservation takes, with the names of its context and user."""

WATCH_BYTES = 1_000
"""Bytes that a watch takes beside the name."""

CONTEXT, USER = "context", "user"
"""The kinds of places."""


class DirectorControl(Protocol):
    """Control of the director itself, for its administrators; `broker.wires.elko.director_wire` implements it."""

    def reinitialize(self) -> None:
        """Read the configuration again, and announce the director again: servers that lost it reconnect."""

    def shut_down(self) -> None:
        """End the director with its listeners and connections. The rest of the daemon continues."""


class LinkChecks(Protocol):
    """Health checks of servers; `broker.wires.elko.server_checks` implements it."""

    def begin(self, session: DirectorSession, server: IContextServer, label: str, peer: str) -> None:
        """Check a server over a new connection, whose peer has that address."""

    def relabel(self, session: DirectorSession, label: str) -> None:
        """Check a server by the rule for its new label."""

    def address(self, session: DirectorSession, protocol: str, hostport: str) -> None:
        """Take an address that a server has reported."""

    def reported(self, session: DirectorSession) -> None:
        """Process a load report."""

    def end(self, session: DirectorSession) -> None:
        """Check a connection no longer. No-op for one that is not checked."""


@attrs.frozen
class DirectorWiring:
    """Dependencies that all sessions of the director share. Without ``checks``, no server is checked."""

    director: IDirector
    control: DirectorControl
    page_writer: PageWriter
    checks: LinkChecks | None = None
    messages: MessageCache = attrs.field(factory=MessageCache)

    @classmethod
    def of(
        cls, director: IDirector, control: DirectorControl, clock: IReactorTime, checks: LinkChecks | None = None
    ) -> DirectorWiring:
        """Create the wiring of a director."""
        return cls(director, control, PageWriter(clock), checks)


class DirectorSession(ElkoSession):
    """The session of one peer of the director."""

    __slots__ = ("_asked", "_outbox", "_reported", "_server", "_watched", "_watched_bytes", "_watcher", "_wiring")

    def __init__(self, wiring: DirectorWiring, access: AccessControl, peer: Peer) -> None:
        super().__init__(_OBJECTS, access, peer)
        self._wiring = wiring
        # Only providers and administrators need these; None saves memory in the many sessions of users.
        self._outbox: Outbox | None = None
        self._server: IContextServer | None = None
        self._asked: dict[Deferred[core.Granted], wire.Reserve] = _NONE
        """Reservations that are answered later, with their requests."""
        self._watcher: _Receiver | None = None
        self._watched: Counter[tuple[str, str]] | None = None
        self._watched_bytes = 0
        self._reported = 0
        """Bytes of the reports of the server."""

    # Called by the connection

    def input_ended(self) -> bool:
        """Handle the end of the peer's input. Returns True if answers are pending, which the peer may still read."""
        if self._waits_for_login():
            return True
        self._withdraw()
        self._ended = True
        return self._awaits()

    @property
    def needed(self) -> bool:
        """True for a Context Server, and while the peer has a watch or awaits an answer."""
        return self._server is not None or bool(self._watched) or self._awaits()

    def _awaits(self) -> bool:
        """Return True while the peer awaits an answer."""
        return bool(self._asked) or (self._outbox is not None and self._outbox.asked > 0)

    def lost(self) -> None:
        """Handle the end of the connection."""
        self._give_up_login()
        self._withdraw()
        self._ended = True
        for each in tuple(self._asked):
            each.cancel()
        if self._outbox is not None:
            self._outbox.end()

    def review(self) -> bool:
        """Check the user and the rights again, and end activities that are no longer permitted.

        Denies reservations that wait, withdraws families and contexts of a server, and ends the watches of an
        administrator.
        """
        stays = super().review()
        if stays and self._server is not None and self._grants is not None:
            self._server.restrict(partial(self._grants.may, "offer"))
        if stays and self._grants is not None:
            for granted, message in tuple(self._asked.items()):
                if not self._grants.may("find", message.context):
                    self._deny(message, self._forbidden("find", message.context))
                    granted.cancel()
        if stays and self._watched and self._grants is not None and not self._grants.may("view"):
            watcher, watched = self._watching()
            watched.clear()
            self._watched_bytes = 0
            self._count()
            self._wiring.director.forget(watcher)
            self.refuse(self._forbidden("view", ""))
        return stays

    # Authentication

    def _admit(self, role: Role, message: Auth) -> None:
        if self._server is not None:
            self._server.relabel(self._label)
            if self._wiring.checks is not None:
                self._wiring.checks.relabel(self, self._label)
        if role == "provider":
            try:
                self._server = self._wiring.director.join(self._label, _Receiver(self), self._room_for_reports)
            except Refusal as refusal:
                if refusal.reason.fatal:
                    raise
                # A Context Server that stayed connected would assume that users are sent to it.
                raise Refusal(Reason.TOO_MANY_CONNECTIONS, f"auth: {refusal.text}") from None
            if self._wiring.checks is not None:
                self._wiring.checks.begin(self, self._server, self._label, self._peer.address)
        elif role == "admin":
            self._watcher = _Receiver(self)
            self._watched = Counter()
            self._outbox = Outbox(self._wiring.page_writer, self._peer, self._emptied)
            # All messages to an administrator pass the outbox, which keeps their order.
            self.write = self._outbox.write

    def _spared(self) -> bool:
        """Return True for a provider: see the rules."""
        return self._server is not None

    def _disconnect(self, message: Disconnect) -> None:
        """Close the connection, after the pending long answers."""
        if self.input_ended():
            self._objects = _NOTHING
        else:
            self._peer.close()

    def _ignore(self, message: object) -> None:
        """Ignore a message behind "disconnect"."""

    # Any role

    def _reserve(self, message: wire.Reserve) -> None:
        try:
            self.permit("find", message.context)
            check_text("reserve: tag", message.tag or "")
            self._room("reserve", RESERVATION_BYTES)
            internal, most = self._server is not None, self._access.policy.reservations
            granted = self._wiring.director.reserve(
                core.Request(self, message.protocol, message.context, message.user, internal, most)
            )
        except Refusal as refusal:
            self._deny(message, refusal)
            return
        if isinstance(granted, core.Granted):
            self._grant(message, granted)
            return
        if self._asked is _NONE:
            self._asked = {}
        self._asked[granted] = message
        granted.addCallback(partial(self._grant, message)).addErrback(self._denied, message).addBoth(
            self._answered, granted
        )

    def _grant(self, message: wire.Reserve, granted: core.Granted) -> None:
        self.write(
            encode(
                wire.Reserved(
                    to=self._answers_as(message),
                    context=granted.context,
                    user=UNSET if message.user is None else message.user,
                    hostport=granted.hostport,
                    reservation=granted.reservation,
                    tag=UNSET if message.tag is None else message.tag,
                )
            )
        )

    def _deny(self, message: wire.Reserve, refusal: Refusal) -> None:
        # A gatekeeper with a burst of users exceeds its limit without any fault in the protocol: it is not
        # disconnected.
        denied = isinstance(refusal, core.Denied)
        patient = denied or self._peer.refused(refusal) or refusal.reason is Reason.LIMIT
        self.write(
            encode(
                wire.Denied(
                    to=self._answers_as(message),
                    context=refusal.context if isinstance(refusal, core.Denied) else message.context,
                    user=UNSET if message.user is None else message.user,
                    deny=refusal.text,
                    tag=UNSET if message.tag is None else message.tag,
                )
            )
        )
        if not patient and not self._spared():
            self._peer.close()

    def _denied(self, failure: Failure, message: wire.Reserve) -> None:
        """Answer a request that is refused later. Nothing is answered to a peer that has gone."""
        if not failure.check(CancelledError):
            failure.trap(Refusal)
            refusal = failure.value
            assert isinstance(refusal, Refusal), "it was just found to be one"
            self._deny(message, refusal)

    def _answered(self, result: object, granted: Deferred[core.Granted]) -> object:
        """End a connection whose input has ended, after its last answer."""
        del self._asked[granted]
        if self._ended and not self._awaits():
            self._peer.close()
        return result

    # Object `provider`

    def _address(self, message: wire.Address) -> None:
        self._serving().address(message.protocol, message.hostport)
        if self._wiring.checks is not None:
            self._wiring.checks.address(self, message.protocol, message.hostport)

    def _will_serve(self, message: wire.WillServe) -> None:
        self.permit("offer", message.context)
        self._serving().will_serve(message.context, _capacity(message.capacity), message.restricted is True)

    def _load(self, message: wire.LoadReport) -> None:
        self._serving().load(message.factor)
        if self._wiring.checks is not None:
            self._wiring.checks.reported(self)

    def _context(self, message: wire.ContextReport) -> None:
        self.permit("offer", message.context)
        server = self._serving()
        if not message.open:
            server.closed(message.context)
            return
        maxcap = _capacity(message.maxcap)
        # An absent ``basecap`` is ``maxcap``: the next clone opens when the context is full.
        basecap = maxcap if message.basecap is None else _capacity(message.basecap)
        server.opened(message.context, message.yours, maxcap, basecap, message.restricted is True)

    def _gate(self, message: wire.Gate) -> None:
        self._serving().gate(message.context, message.open, message.reason)

    def _user(self, message: wire.UserReport) -> None:
        server = self._serving()
        if message.on:
            server.entered(message.context, message.user)
        else:
            server.exited(message.context, message.user)

    def _relay(self, message: wire.Relay) -> None:
        """Forward a message of a provider, except to its own server, or of an administrator."""
        _one_of("relay", message.context, message.user)
        sender = None if message.to == "admin" else self._serving()
        self._wiring.director.relay(message.context, message.user, message.msg, sender)

    # Object `admin`

    def _close(self, message: wire.Close) -> None:
        _one_of("close", message.context, message.user)
        self._wiring.director.close(message.context, message.user)

    def _write_say(self, message: wire.Say) -> None:
        _one_of("say", message.context, message.user)
        self._wiring.director.say(message.context, message.user, message.text)

    def _find(self, message: wire.Find) -> None:
        kind, name = _one_of("find", message.context, message.user)
        director = self._wiring.director
        if kind == CONTEXT:
            self.write(encode(context_found(director.find_context(name))))
        else:
            self.write(encode(user_found(director.find_user(name))))

    def _watch(self, message: wire.Watch) -> None:
        place = _one_of("watch", message.context, message.user)
        watcher, watched = self._watching()
        most = self._access.policy.waits
        if watched.total() >= most:
            text = f"watch: this peer watches {most} contexts and users, and may watch no more"
            raise at_limit(text, "director.listeners.limits.watches")
        director = self._wiring.director
        kind, name = place
        size = WATCH_BYTES + len(name)
        self._room("watch", size)
        self._watched_bytes += size
        try:
            if kind == CONTEXT:
                found = encode(context_found(director.watch_context(watcher, name)))
            else:
                found = encode(user_found(director.watch_user(watcher, name)))
        except Refusal:
            self._watched_bytes -= size
            self._count()
            raise
        watched[place] += 1
        self.write(found)

    def _unwatch(self, message: wire.Unwatch) -> None:
        place = _one_of("unwatch", message.context, message.user)
        watcher, watched = self._watching()
        if place not in watched:
            return
        watched[place] -= 1
        self._watched_bytes -= WATCH_BYTES + len(place[1])
        self._count()
        if not watched[place]:
            del watched[place]
        director = self._wiring.director
        kind, name = place
        if kind == CONTEXT:
            director.unwatch_context(watcher, name)
        else:
            director.unwatch_user(watcher, name)

    def _list_contexts(self, message: wire.ListContexts) -> None:
        self._answer(list_parts("contexts", self._wiring.director.contexts))

    def _list_providers(self, message: wire.ListProviders) -> None:
        self._answer(list_parts("providers", self._wiring.director.providers))

    def _list_users(self, message: wire.ListUsers) -> None:
        self._answer(list_parts("users", self._wiring.director.users))

    def _dump(self, message: wire.DumpRequest) -> None:
        # Peers may send a number with a fraction.
        depth = int(message.depth)
        ask = partial(self._wiring.director.dump, depth, message.provider, message.context)
        self._answer(dump_parts(ask, depth))

    def _reinit(self, message: wire.Reinit) -> None:
        if message.provider is not None:
            self._reached("reinit", message.provider, self._wiring.director.reinit(message.provider))
        if message.director:
            self._wiring.control.reinitialize()

    def _shutdown(self, message: wire.Shutdown) -> None:
        if message.provider is not None:
            notice = self._wiring.director.shutdown(message.provider, message.kill is True)
            self._reached("shutdown", message.provider, notice)
        if message.director:
            self._wiring.control.shut_down()

    # Internals

    def _serving(self) -> IContextServer:
        assert self._server is not None, "only providers are let here"
        return self._server

    def _watching(self) -> tuple[_Receiver, Counter[tuple[str, str]]]:
        """Return the watcher of this session, and the number of its watches of each place."""
        assert self._watcher is not None, "only administrators are let here"
        assert self._watched is not None
        return self._watcher, self._watched

    def _room(self, op: str, more: int) -> None:
        """Raise `Refusal` if the director may not keep so many more bytes for this peer."""
        if not self._count(more):
            raise at_limit(f"{op}: what the director keeps for this address takes too much memory", PER_ADDRESS)

    def _count(self, more: int = 0) -> bool:
        """Count what the director keeps for this peer, and ``more`` bytes. Returns False if these are too many."""
        return bool(self.principal.name) or self._peer.hold(self._kept() + more)

    def _kept(self) -> int:
        if self.principal.name:
            return 0
        return self._reported + self._watched_bytes + RESERVATION_BYTES * self._wiring.director.reserved(self)

    def _room_for_reports(self, size: int) -> bool:
        """Count the bytes of the reports of the server. Returns False if these are too many."""
        grown = size - self._reported
        if not self._count(grown):
            return False
        self._reported = size
        return True

    def _answer(self, parts: Parts) -> None:
        """Send an answer that may be long."""
        assert self._outbox is not None, "only administrators are let here"
        self._outbox.answer(parts)

    def _emptied(self) -> None:
        """Close a connection whose input has ended, after its last long answer."""
        if self._ended:
            self._peer.close()

    def _withdraw(self) -> None:
        """Leave the farm and end all watches."""
        server, self._server = self._server, None
        if server is not None:
            if self._wiring.checks is not None:
                self._wiring.checks.end(self)
            server.leave()
        watcher, self._watcher = self._watcher, None
        if watcher is not None:
            self._watched = None
            self._watched_bytes = 0
            self._wiring.director.forget(watcher)


class _Receiver:
    """Adapter of a session for the director: a link of a server, or a watcher."""

    __slots__ = ("_session",)

    def __init__(self, session: DirectorSession) -> None:
        self._session = session

    def receive(self, notice: core.Order | core.ContextPlace | core.UserPlace) -> None:
        """Send a message.

        A reservation is sent before all later output of other peers: its user may reach the server at once.
        """
        session = self._session
        write = session.write_first if isinstance(notice, core.DoReserve) else session.write
        write(session._wiring.messages.of(notice))


def _one_of(op: str, context: str | None, user: str | None) -> tuple[str, str]:
    """Return the kind and name of the place that a message concerns. Raises `Refusal` unless exactly one is given."""
    if context is not None and user is not None:
        raise Refusal(Reason.PARAMETER, f"{op}: context and user are mutually exclusive")
    if context is not None:
        return CONTEXT, context
    if user is not None:
        return USER, user
    raise Refusal(Reason.PARAMETER, f"{op}: context or user is missing")


def _capacity(given: int | float | None) -> int:
    return core.UNLIMITED if given is None else int(given)


def _ordered(message: wire.Reinit | wire.Shutdown) -> str:
    """Return the servers that an order is for, and "director" for the director."""
    return " ".join(filter(None, (message.provider, "director" if message.director else None)))


def _place(message: wire.Close | wire.Say | wire.Relay) -> str:
    """Return the context or user that a message concerns."""
    return message.context or message.user or ""


_RESERVE = (DirectorSession._reserve, ("user", "provider", "admin"))

_ALL: OperationRoles = {**COMMON, Disconnect: (DirectorSession._disconnect, ())}
_DIRECTOR: OperationRoles = {**_ALL, wire.Reserve: _RESERVE}
_PROVIDER: OperationRoles = {
    **_ALL,
    wire.Reserve: _RESERVE,
    wire.Address: (DirectorSession._address, ("provider",)),
    wire.ContextReport: (DirectorSession._context, ("provider",)),
    wire.Gate: (DirectorSession._gate, ("provider",)),
    wire.LoadReport: (DirectorSession._load, ("provider",)),
    wire.Relay: (DirectorSession._relay, ("provider",)),
    wire.UserReport: (DirectorSession._user, ("provider",)),
    wire.WillServe: (DirectorSession._will_serve, ("provider",)),
}
_ADMIN: OperationRoles = {
    **_ALL,
    wire.Close: (administering("admin.disconnect", DirectorSession._close, _place), ("admin",)),
    wire.DumpRequest: (viewing(DirectorSession._dump), ("admin",)),
    wire.Find: (viewing(DirectorSession._find), ("admin",)),
    wire.ListContexts: (viewing(DirectorSession._list_contexts), ("admin",)),
    wire.ListProviders: (viewing(DirectorSession._list_providers), ("admin",)),
    wire.ListUsers: (viewing(DirectorSession._list_users), ("admin",)),
    wire.Reinit: (administering("admin.reload", DirectorSession._reinit, _ordered), ("admin",)),
    wire.Relay: (administering("admin.say", DirectorSession._relay, _place), ("admin",)),
    wire.Say: (administering("admin.say", DirectorSession._write_say, _place), ("admin",)),
    wire.Shutdown: (administering("admin.shutdown", DirectorSession._shutdown, _ordered), ("admin",)),
    wire.Unwatch: (viewing(DirectorSession._unwatch), ("admin",)),
    wire.Watch: (viewing(DirectorSession._watch), ("admin",)),
}
_OBJECTS = ObjectTables(
    {"director": _DIRECTOR, "provider": _PROVIDER, "session": _PROVIDER, "admin": _ADMIN, "error": _ALL},
    {"director": "user", "provider": "provider", "session": "provider", "admin": "admin"},
    answers_as={"session": "provider"},
)
_NOTHING: dict[str, Operations] = {
    name: dict.fromkeys(operations, DirectorSession._ignore) for name, operations in _OBJECTS.all.items()
}
"""Operations of a peer that has sent "disconnect" and still awaits its answers: all messages are ignored."""
