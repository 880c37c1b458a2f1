"""Control flow: the server side of RFC 11's Connection requests. Each request gets one reply.

The states of a session, and the events that change them, are in `broker.wires.mtl.sessions.control_sessions`. Requests
by state; other commands of RFC 11 do not exist:

    request    NEW, or no session  REFUSED   OPENED, AUTHENTICATING,    AUTHORIZED
                                             REAUTHENTICATING
    Open       201, 401 or 403     as NEW    as NEW                     as NEW
    Authorize  400 "open"          400       201, 401 or 402            201, 401 or 402
    Profile    400 "open"          400       401                        200, or 400 if there is no such profile
    Reader,    400 "open"          400       401                        202; 400 before a profile is chosen; 421 or 503
    Writer                                                              if the profile cannot serve a resource here

Rules:
- An Open is answered 201 if the virtual host is open, or if the CURVE key proves the user; else 401, and exchanges
  of Connection.Authorize follow. An unknown virtual host and a forbidden one are refused alike, by 403, once the user
  is known.
- A further Open starts over: the profile is reset, and the user has to authenticate again. The data flows continue.
- An Authorize is accepted at any time. If it fails, the session loses its access, its leases and its data flows; so it
  does if another user authenticates. Without a users file, it has no effect.
- A Profile that names an unknown profile leaves the chosen one in place.
- A user who loses rights (by a change of the users file) gets 401 to the next request; their data flows end.
- Ill-formed requests are dropped and counted. Well-formed ones are answered once, in order. While an answer waits (for
  a password check, a delay, or a resource that the profile prepares), further requests of the session wait behind it, a
  bounded number of them; more are dropped and counted, since RFC 11 has requests and replies take turns. Other sessions
  do not wait.
- Replies to a peer that does not read wait in the transport, a bounded number of them; further ones are dropped and
  counted. When a connection closes, its sessions end without replies.
- A defect of the broker is answered with 500 and logged. While the broker drains or stops, requests are
  answered with 503.

The file is longer than others: its methods are the cells of the table above.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from typing import Any

from twisted.internet.defer import Deferred, fail
from twisted.logger import Logger
from twisted.python.failure import Failure

from broker.core.errors import Reason, Refusal
from broker.net.peer_interfaces import Part, Router, envelope_size
from broker.net.peer_interfaces import Sent as Outcome
from broker.wires.mtl.codec import control_messages as wire
from broker.wires.mtl.codec.control_messages import EncodedReply
from broker.wires.mtl.codec.data_messages import split_request
from broker.wires.mtl.codec.field_table import MAX_TABLE, IllFormed
from broker.wires.mtl.mtl_settings import Mtl
from broker.wires.mtl.sessions.access_policy import ConfirmMode, Permissions, Principal, Side
from broker.wires.mtl.sessions.control_sessions import (
    DEFECT,
    DRAINING,
    NO_PROFILE,
    NO_SUCH_PROFILE,
    NOT_ASKED,
    NOT_IMPLEMENTED,
    NOT_OPEN,
    STOPPING,
    ControlSession,
    ControlSessionTable,
    Pipeline,
    ReplyPath,
    SessionEvent,
    SessionState,
    key_of,
    refused,
)
from broker.wires.mtl.sessions.data_leases import DEAD_AFTER, SESSION_LEASES, FlowContext, ProfileAccess
from broker.wires.mtl.sessions.login_exchange import Authentication, AuthenticationContext
from broker.wires.mtl.sessions.profile_interface import Grant
from broker.wires.mtl.sessions.sasl import FailureReason, LoginChallenge, LoginDone, LoginFailed

WIRE = "mtl"
"""The name of the wire in counters and logs."""

MAX_BEHIND = 100
"""Requests of one session that may wait behind an unanswered one: clients may pipeline, and 64 at once fit."""

MAX_BEHIND_BYTES = 4 * 1024 * 1024
"""Bytes of the bodies of all requests that wait behind an unanswered one, of all sessions together: those of thousands
with usual bodies."""

MAX_WINDOW = 1_000
"""Unconfirmed Contents that a reader may ask for: as many as a key may set for all."""

BRIDGED = ("registry",)
"""Profiles that exist only in the virtual host that shares topics and registry with other wires."""

REQUEST_BYTES = 500
"""Bytes that a waiting request takes beside its body."""

MAX_HOST = 255
"""Characters of the name of a virtual host. The session stores it even if there is no such host."""

_NO_HOST = "\0"
"""Replaces the name of a virtual host that is too long. No host has this name: it is not printable."""


class ControlFlow:
    """The control flow of all peers: the `broker.net.peer_interfaces.Conversation` of its ROUTER."""

    log = Logger()

    def __init__(
        self, router: Router, context: FlowContext, authentication: AuthenticationContext, access: ProfileAccess
    ) -> None:
        self._router = router
        self._access = access
        self._data_leases = context.data_leases
        self._refusal_log = context.refusal_log
        self._config = context.config
        self._bridge = context.config.hosts[0]
        """The virtual host of the other wires: it stays as it was at the start, since their topics cannot move."""
        self._name_of = authentication.name_of
        self._sessions = ControlSessionTable(context.config.sessions, self._ended)
        self._logins = Authentication(authentication, context.leases, context.config.plain, self._late)
        self._behind = 0
        """Bytes of all requests that wait behind others."""
        self._unavailable: EncodedReply | None = None
        """The answer to all requests, while the broker drains or stops."""
        self._methods: dict[type, Callable[[ControlSession, Any], EncodedReply]] = {
            wire.OpenRequest: self._open,
            wire.ProfileRequest: self._choose,
            wire.ReaderRequest: self._read,
            wire.WriterRequest: self._write,
        }
        self.answered = 0

    def __len__(self) -> int:
        return len(self._sessions)

    # from the transport

    def receive(self, identity: bytes, frames: list[Part], connection: int) -> None:
        """Process one message: the frames after the identity, and the number of its connection."""
        sender = self._router.sender()
        try:
            request = split_request(frames, envelope_size(frames))
            asked = self._decoded(request.command, request.body)
        except IllFormed as fault:
            self._refusal_log.count("mtl_ill_formed", fault.fault.value)
            self._refusal_log.add(WIRE, sender.address, fault)
            return
        back = ReplyPath(identity, request.envelope)
        key = key_of(connection, request.envelope, sender)
        session = self._sessions.find(key)
        if session is not None and session.turn is not None:
            # RFC 11 replies have no request number: clients match them by order alone.
            self._queue(session.turn, back, asked, len(request.body))
        elif session is not None and type(asked) is wire.AuthorizeRequest and self._unavailable is None:
            self._begin(session, Pipeline(back), asked, None)
        elif session is not None and (waits := self._preparation(session, asked)) is not None:
            self._begin(session, Pipeline(back), asked, waits)
        else:
            if session is None and type(asked) is wire.OpenRequest:
                session = ControlSession(key, connection, sender)
            self._reply(back, self._answer(session, asked))

    def closed(self, connection: int) -> None:
        """End the sessions of a connection that closed."""
        self._sessions.closed(connection)

    def needs(self, connection: int) -> bool:
        """Return True while a session of the connection has data leases."""
        return any(self._data_leases.held(session) for session in self._sessions.of(connection))

    def room(self, identity: bytes) -> None:
        """No-op: the control flow sends replies only, which wait in the transport."""

    # from the operator

    def use(self, config: Mtl) -> None:
        """Apply the section of a reload. Sessions over a lower limit end when the next one begins."""
        self._config = self._data_leases.config = config
        self._sessions.most = config.sessions
        self._logins.plain = config.plain

    def revoke_users(self, users: Collection[str]) -> None:
        """End the access and the leases of users who were removed, or whose passwords changed."""
        self._revoke(lambda principal: principal.user in users)

    def revoke_keys(self, keys: Collection[str]) -> None:
        """End access and leases obtained by CURVE keys that were removed, or that authenticate other users now."""
        self._revoke(lambda principal: principal.key in keys)

    def review(self) -> None:
        """End access and leases of users whose permissions differ since the users file or the hosts changed."""

        def has_other_rights(principal: Principal) -> bool:
            try:
                return self._access.policy.allowed(principal.user, principal.host) != principal.allowed
            except Refusal:
                return True

        self._revoke(has_other_rights)

    def stop(self) -> None:
        """Answer 503 from now on, also to the requests that wait."""
        self._refuse_all(STOPPING)

    def drain(self) -> None:
        """Answer 503 to all requests until `undrain`, also to those that wait. All sessions lose access and leases."""
        if self._unavailable is None:
            self._refuse_all(DRAINING)
        self._revoke(lambda principal: True)

    def undrain(self) -> None:
        """Serve requests again, unless the broker stops."""
        if self._unavailable is DRAINING:
            self._unavailable = None

    def _refuse_all(self, answer: EncodedReply) -> None:
        self._unavailable = answer
        for session in self._sessions:
            self._abandon(session, answer)

    def counts(self) -> dict[str, int]:
        """Return the counters of this flow."""
        return {"mtl_requests.answered": self.answered}

    def sessions(self) -> Iterable[ControlSession]:
        """Return all sessions."""
        return self._sessions

    # requests and replies

    def _decoded(self, command: Part, body: Part) -> wire.ControlRequest | EncodedReply:
        """Return the request, or the reply to a well-formed message that is none. Raises `IllFormed`."""
        try:
            return wire.decode(command, body)
        except wire.InvalidRequest as invalid:
            self._refusal_log.add(WIRE, self._router.sender().address, invalid)
            return invalid.reply
        except IllFormed:
            raise
        except Exception:
            self.log.failure("a request could not be decoded")
            return DEFECT

    def _queue(self, turn: Pipeline, back: ReplyPath, asked: wire.ControlRequest | EncodedReply, size: int) -> None:
        """Add a request to those that wait, or drop it."""
        size += REQUEST_BYTES
        if len(turn.behind) < MAX_BEHIND and self._behind + size <= MAX_BEHIND_BYTES:
            turn.behind.append((back, asked, size))
            self._behind += size
        else:
            self._refusal_log.count("mtl_dropped", "behind")

    def _begin(
        self,
        session: ControlSession,
        turn: Pipeline,
        asked: wire.ControlRequest | EncodedReply,
        waits: Deferred[None] | None,
    ) -> None:
        """Begin to serve a request that has to wait."""
        session.turn = turn
        Deferred.fromCoroutine(self._serve(session, turn, asked, waits)).addErrback(self._failed, session)

    def _preparation(self, session: ControlSession, asked: wire.ControlRequest | EncodedReply) -> Deferred[None] | None:
        """Return the preparation of the resources of a request; None if there is nothing to wait for."""
        if not isinstance(asked, wire.ReaderRequest | wire.WriterRequest) or self._unavailable is not None:
            return None
        profile, principal = session.profile, session.principal
        if session.state is not SessionState.AUTHORIZED or profile is None or principal is None:
            return None
        side = Side.READER if isinstance(asked, wire.ReaderRequest) else Side.WRITER
        try:
            return profile.prepare(principal, side, asked.resources, principal.payer(session.address))
        except Exception as error:
            return fail(error)

    async def _serve(
        self,
        session: ControlSession,
        turn: Pipeline,
        asked: wire.ControlRequest | EncodedReply,
        waits: Deferred[None] | None,
    ) -> None:
        """Answer that request, then those that have arrived in the meantime."""
        while True:
            if type(asked) is wire.AuthorizeRequest and self._unavailable is None:
                answer = await self._authorize(session, turn, asked)
            elif waits is not None:
                answer = await self._prepared(session, turn, asked, waits)
            else:
                answer = self._answer(session, asked)
            if turn.over:
                return  # `_abandon` has answered them all
            self._reply(turn.back, answer)
            if not turn.behind:
                session.turn = None
                return
            turn.back, asked, size = turn.behind.popleft()
            self._behind -= size
            waits = self._preparation(session, asked)

    async def _prepared(
        self,
        session: ControlSession,
        turn: Pipeline,
        asked: wire.ControlRequest | EncodedReply,
        waits: Deferred[None],
    ) -> EncodedReply:
        """Return the reply to a request after the preparation of its resources."""
        try:
            await waits
        except Refusal as refusal:
            return self._refused(session, refusal)
        except Exception:
            self.log.failure("the preparation of resources failed")
            return DEFECT
        if turn.over:
            return NOT_OPEN  # not sent: `_serve` drops it
        return self._answer(session, asked)

    def _failed(self, failure: Failure, session: ControlSession) -> None:
        self.log.failure("a reply could not be sent", failure)
        self._abandon(session, None)

    def _answer(self, session: ControlSession | None, asked: wire.ControlRequest | EncodedReply) -> EncodedReply:
        """Return the reply to any request but an Authorize, which may have to wait."""
        if isinstance(asked, tuple):
            return asked
        if self._unavailable is not None:
            return self._unavailable
        if session is None:
            return NOT_OPEN
        try:
            return self._methods[type(asked)](session, asked)
        except Refusal as refusal:
            return self._refused(session, refusal)
        except Exception:
            self.log.failure("a {request} made the broker fail", request=type(asked).__name__)
            return DEFECT

    def _refused(self, session: ControlSession, refusal: Refusal) -> EncodedReply:
        if session.principal is not None and session.principal.user:
            refusal.summary = f"{session.principal.user}: {refusal.summary}"
        self._refusal_log.add(WIRE, session.address, refusal)
        return refused(refusal)

    def _reply(self, back: ReplyPath, answer: EncodedReply) -> None:
        self.answered += 1
        outcome = self._router.reply(back.identity, (*back.envelope, *answer))
        if outcome is not Outcome.SENT:
            self._refusal_log.count("mtl_dropped", outcome.value)

    def _ended(self, session: ControlSession, there: bool) -> None:
        """Clean up after a session that made room while its peer is ``there``, or whose connection closed."""
        self._abandon(session, NOT_OPEN if there else None)
        self._refusal_log.count("mtl_sessions", "ended")

    def _abandon(self, session: ControlSession, answer: EncodedReply | None) -> None:
        """End the exchange and the requests of a session. All waiting requests get that answer, if there is one."""
        self._logins.forget(session)
        turn, session.turn = session.turn, None
        if turn is None:
            return
        turn.over = True
        backs = [turn.back, *(back for back, _, _ in turn.behind)]
        self._behind -= sum(size for _, _, size in turn.behind)
        for back in backs:
            if answer is None:
                self._refusal_log.count("mtl_dropped", "gone")
            else:
                self._reply(back, answer)
        # Last: the cancellation resumes `_serve` at once, which must find the session ended.
        if turn.pending is not None:
            turn.pending.cancel()

    # authentication

    def _open(self, session: ControlSession, asked: wire.OpenRequest) -> EncodedReply:
        self._logins.forget(session)
        session.profile = None
        session.host = asked.virtual_host if len(asked.virtual_host) <= MAX_HOST else _NO_HOST
        self._sessions.on(session, SessionEvent.OPENED)
        user = self._user_at_once(session)
        if user is not None:
            try:
                allowed = self._access.policy.allowed(user, session.host)
            except Refusal as refusal:
                self._sessions.on(session, SessionEvent.REFUSED)
                return self._refused(session, refusal)
        # A session that is refused at once gets no place: peers cannot fill the table with such Opens.
        if session not in self._sessions:
            self._sessions.add(session)
            self._refusal_log.count("mtl_sessions", "begun")
        return self._unauthorized(session) if user is None else self._welcome(session, user, allowed)

    def _user_at_once(self, session: ControlSession) -> str | None:
        """Return the user of a session that needs no exchange, "" if anonymous; None if it has to authenticate."""
        if session.curve and (user := self._name_of(session.curve)):
            return user
        policy = self._access.policy
        return "" if policy.is_open(session.host) or not policy.has_passwords else None

    async def _authorize(self, session: ControlSession, turn: Pipeline, asked: wire.AuthorizeRequest) -> EncodedReply:
        turn.stale = False
        try:
            if session.state is SessionState.REFUSED:
                return NOT_OPEN
            if self._access.policy.unlimited:
                return NOT_ASKED
            outcome = await self._logins.take(session, turn, asked.mechanism, asked.response)
            if turn.over:
                return NOT_OPEN  # not sent: `_serve` drops it
            if isinstance(outcome, LoginChallenge):
                return wire.challenged(asked.mechanism, outcome.data)
            if isinstance(outcome, LoginDone):
                return self._let_in(session, outcome.user)
            text = "the mechanism is not offered"
            if outcome is not None:
                text = outcome.text
                self._complain_of(session, outcome)
            self._lose(session)
            return self._unauthorized(session, text)
        except Refusal as refusal:
            return self._refused(session, refusal)
        except Exception:
            self.log.failure("an Authorize made the broker fail")
            return DEFECT

    def _complain_of(self, session: ControlSession, failed: LoginFailed) -> None:
        self._refusal_log.count("mtl_logins", failed.why.value)
        reason = Reason.WRONG_CREDENTIALS if failed.why is FailureReason.CREDENTIALS else Reason.PARAMETER
        refusal = Refusal(reason, failed.text)
        refusal.summary = f"a login failed: {failed.why.value}"
        self._refusal_log.add(WIRE, session.address, refusal)

    def _let_in(self, session: ControlSession, user: str) -> EncodedReply:
        """Admit a user that an exchange has authenticated."""
        self._refusal_log.count("mtl_logins", "done")
        try:
            allowed = self._access.policy.allowed(user, session.host)
        except Refusal:
            self._lose(session)
            raise
        return self._welcome(session, user, allowed)

    def _welcome(self, session: ControlSession, user: str, allowed: Permissions) -> EncodedReply:
        """Give access to a session."""
        before = session.principal
        if before is None or (before.user, before.host, before.allowed) != (user, session.host, allowed):
            # Another user, host or set of permissions: the data flows of the former one end.
            self._lose(session)
            session.principal = Principal(user, session.host, allowed, session.curve)
        self._sessions.on(session, SessionEvent.ADMITTED)
        return wire.ready(self._offered(session.host), self._limits())

    def _unauthorized(self, session: ControlSession, reason: str | None = None) -> EncodedReply:
        return wire.unauthorized(self._logins.names(session), reason)

    def _late(self, session: ControlSession) -> None:
        """Take the access away after an exchange that took too long, and whose client has no answer to wait for."""
        self._refusal_log.count("mtl_logins", FailureReason.LATE.value)
        self._lose(session)

    def _lose(self, session: ControlSession) -> None:
        """Take the access of a session away, and end its leases with their data flows."""
        principal = session.principal
        self._take_access(session)
        if principal is not None:
            self._data_leases.revoke([principal])

    def _take_access(self, session: ControlSession) -> None:
        self._logins.forget(session)
        session.principal = session.profile = None
        self._sessions.on(session, SessionEvent.LOST)

    def _revoke(self, lost: Callable[[Principal], bool]) -> None:
        for session in self._sessions:
            # Of all sessions: which user an exchange concerns is known only when it ends.
            if session.turn is not None:
                session.turn.stale = True
            if session.principal is not None and lost(session.principal):
                self._take_access(session)
        # By their principals, since leases outlast a session that made room for another; and all together.
        self._data_leases.revoke([principal for principal in self._data_leases.principals() if lost(principal)])

    # profiles and leases

    def _shut(self, session: ControlSession) -> EncodedReply | None:
        """Return the reply to a request that the state of the session does not allow, None if it does."""
        if session.state is SessionState.REFUSED:
            return NOT_OPEN
        if session.state is not SessionState.AUTHORIZED:
            return self._unauthorized(session, "authenticate first")
        return None

    def _offered(self, host: str) -> list[str]:
        """Return the names of the profiles of a virtual host."""
        shares = host == self._bridge
        return [name for name in self._access.profiles if shares or name not in BRIDGED]

    def _limits(self) -> dict[str, int]:
        """Return the limits that a client is sent with 201. Times in milliseconds."""
        config = self._config
        return {
            "request": wire.MAX_REQUEST,
            "depth": wire.MAX_DEPTH,
            "resources": wire.MAX_RESOURCES,
            "leases": SESSION_LEASES,
            "flows": config.flows,
            "lease-ttl": round(config.lease * 1000),
            "heartbeat": round(config.heartbeat * 1000),
            "dead-after": DEAD_AFTER,
            "window": config.window,
            "most-window": MAX_WINDOW,
            "window-bytes": config.window_bytes,
            "properties": MAX_TABLE,
            "body": config.max_message,
        }

    def _choose(self, session: ControlSession, asked: wire.ProfileRequest) -> EncodedReply:
        shut = self._shut(session)
        if shut is not None:
            return shut
        if asked.profile not in self._offered(session.host):
            return NO_SUCH_PROFILE
        session.profile = self._access.profiles[asked.profile]
        return wire.OK

    def _read(self, session: ControlSession, asked: wire.ReaderRequest) -> EncodedReply:
        window = min(asked.window or self._config.window, MAX_WINDOW)
        return self._lease(session, Side.READER, asked, window)

    def _write(self, session: ControlSession, asked: wire.WriterRequest) -> EncodedReply:
        return self._lease(session, Side.WRITER, asked, self._config.window)

    def _lease(
        self, session: ControlSession, side: Side, asked: wire.ReaderRequest | wire.WriterRequest, window: int
    ) -> EncodedReply:
        shut = self._shut(session)
        if shut is not None:
            return shut
        profile, principal = session.profile, session.principal
        if profile is None:
            return NO_PROFILE
        assert principal is not None
        confirms = profile.confirms.get(side, ())
        if asked.confirm is not None:
            confirms = tuple(confirm for confirm in confirms if confirm.value == asked.confirm)
        if not confirms:
            return NOT_IMPLEMENTED
        confirm = confirms[0]  # the profile's own choice comes first
        for resource in asked.resources:
            profile.check(principal, side, resource)
        grant = Grant(principal, side, profile, asked.resources, confirm, window)
        token = self._data_leases.issue(grant, session)
        port = self._access.data_port()
        shown_window = window if side is Side.READER and confirm is ConfirmMode.FULL else None
        return wire.data_lease(port, token, shown_window, self._config.data_endpoint, profile.granted(grant))
