"""The control flow: requests in, one reply out for each.

Rules:
- A Connection.Open comes first. A peer that has no session, or lost it, is answered 400 "open" to anything else.
- An Open in a virtual host is answered 201 where nobody has to say who it is, or the CURVE key said it; else 401, and
  then by an exchange of Connection.Authorize. A host that is not there, and one that is not for this user, are refused
  alike, by 403, when it is known who asks.
- An Open begins anew: the profile is gone, and who was known must say it again. The data flows go on.
- An Authorize is taken at any time. One that fails takes away what the session had: its access, its leases, the data
  flows. So does one by which it becomes somebody else. Where nobody has to say who it is, and nobody can, it does
  nothing.
- Until there is access, and while an exchange goes on, anything else is answered 401. The flows go on meanwhile.
- A profile is one of those that 201 named. Who asks for another keeps what it had.
- Whoever loses its rights (a user, a key, a rule is changed) hears 401 to the next request, and its data flows end.
- What is ill-formed is dropped, and counted. What is well-formed is answered once, in order also when an answer waits:
  then the requests behind it in the same session wait too, a bounded number of them. More are dropped and counted:
  requests and replies should take turns. Other sessions do not wait.
- Answers wait in the transport for a peer that does not read, a bounded number of them; what finds no room there is
  dropped and counted. When a connection closes its sessions end, and nothing is answered to what it asked.
- A defect of ours is answered 500, and logged. While the broker stops, the answer is 503.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IReactorTime
from twisted.logger import Logger
from twisted.python.failure import Failure

from broker.core.errors import Reason, Refusal
from broker.core.interfaces import ILeases
from broker.net.interfaces.router import Complaints, Part, Router
from broker.net.interfaces.router import Sent as Outcome
from broker.wires.common.password_backoff import Delays
from broker.wires.mtl.codec import control as wire
from broker.wires.mtl.codec.control import Sent, Status
from broker.wires.mtl.codec.faults import IllFormed
from broker.wires.mtl.codec.frames import split
from broker.wires.mtl.sessions.grants import Allowed, Confirm, Grant, Principal, Side
from broker.wires.mtl.sessions.leases import DataLeases
from broker.wires.mtl.sessions.logins import Logins
from broker.wires.mtl.sessions.profile_interface import Profile
from broker.wires.mtl.sessions.rights import Rulebook
from broker.wires.mtl.sessions.sasl import Challenge, Done, Failed, Mechanisms, Why
from broker.wires.mtl.sessions.sessions import Back, Session, Sessions, Turn, key_of
from broker.wires.mtl.sessions.settings import Settings

WIRE = "mtl"
"""The name of the wire in counters and logs."""

MAX_BEHIND = 100
"""Requests of one session that may wait behind one whose answer waits: clients may pipeline, and 64 at once fit."""

REQUEST_BYTES = 500
"""What one that waits takes beside its body."""

MAX_HOST = 255
"""Characters of a virtual host that are kept: it is kept with the session, also if there is none such."""

NOT_OPEN = wire.error(Status.BAD_REQUEST, "open")
NO_PROFILE = wire.error(Status.BAD_REQUEST, "no profile is chosen")
NO_SUCH_PROFILE = wire.error(Status.BAD_REQUEST, "there is no such profile")
NOT_ASKED = wire.error(Status.BAD_REQUEST, "nobody has to say who it is here")
NOT_IMPLEMENTED = wire.error(Status.NOT_IMPLEMENTED)
STOPPING = wire.error(Status.UNAVAILABLE, "the broker is stopping")
DEFECT = wire.error(Status.INTERNAL_ERROR, "a defect of the broker, which was logged")

_STATUS = {
    Reason.LIMIT: Status.TOO_MANY,
    Reason.FORBIDDEN: Status.FORBIDDEN,
    Reason.NAME_NOT_ALLOWED: Status.FORBIDDEN,
    Reason.TOPIC_NOT_ALLOWED: Status.FORBIDDEN,
}
"""How refusals are answered; others by 400."""

_NO_HOST = "\0"
"""Stands for the name of a virtual host that is too long for any."""


class Control:
    """The control flow of all peers: the `broker.net.interfaces.router.Conversation` of its ROUTER.

    ``port`` is that of the data flow, 0 where it has none. ``key_user`` gives the user that a CURVE key stands for, and
    ``key_allowed`` says whether a peer with that key may still come in.
    """

    log = Logger()

    def __init__(
        self,
        router: Router,
        mechanisms: Mechanisms,
        delays: Delays,
        rights: Rulebook,
        profiles: Mapping[str, Profile],
        data_leases: DataLeases,
        port: int | Callable[[], int],
        complaints: Complaints,
        settings: Settings,
        leases: ILeases,
        clock: IReactorTime,
        key_user: Callable[[str], str | None] = lambda key: None,
        key_allowed: Callable[[str], bool] = lambda key: True,
    ) -> None:
        self._router = router
        self._rights = rights
        self._profiles = profiles
        self._data_leases = data_leases
        self._port = port
        self._complaints = complaints
        self._settings = settings
        self._leases = leases
        self._key_user = key_user
        self._key_allowed = key_allowed
        self._sessions = Sessions(settings.sessions, self._ended)
        self._logins = Logins(mechanisms, delays, leases, clock, settings.plain, key_allowed, self._late)
        self._behind = 0
        """What all requests take that wait behind others."""
        self._stopping = False
        self._methods: dict[type, Callable[[Session, Any], Sent]] = {
            wire.Open: self._open,
            wire.Profile: self._choose,
            wire.Reader: self._read,
            wire.Writer: self._write,
        }
        self.answered = 0

    def __len__(self) -> int:
        return len(self._sessions)

    # from the transport

    def receive(self, identity: bytes, frames: list[Part], connection: int) -> None:
        """Take one message: the frames after the identity, and the number of its connection."""
        sender = self._router.sender()
        try:
            request = split(frames)
            asked = self._decoded(request.command, request.body)
        except IllFormed as fault:
            self._complaints.count("mtl_ill_formed", fault.fault.value)
            self._complaints.add(WIRE, sender.address, fault)
            return
        back = Back(identity, request.envelope)
        key = key_of(connection, request.envelope, sender)
        session = self._sessions.find(key)
        if session is not None and session.turn is not None:
            self._queue(session.turn, back, asked, len(request.body))
        elif session is not None and type(asked) is wire.Authorize and not self._stopping:
            session.turn = turn = Turn(back)
            Deferred.fromCoroutine(self._serve(session, turn, asked)).addErrback(self._failed, session)
        else:
            if session is None and type(asked) is wire.Open:
                session = Session(key, connection, sender)
            self._reply(back, self._answer(session, asked))

    def closed(self, connection: int) -> None:
        """A connection ended, and its sessions with it."""
        self._sessions.closed(connection)

    def room(self, identity: bytes) -> None:
        """A peer has room again. Nothing is sent that is no answer, and answers wait in the transport."""

    # from the operator

    def use(self, settings: Settings) -> None:
        """Take what was set."""
        self._settings = self._data_leases.settings = settings
        self._sessions.most = settings.sessions
        self._logins.plain = settings.plain

    def revoke_users(self, users: Collection[str]) -> None:
        """These users are gone, or have other passwords: what they had ends."""
        self._revoke(lambda principal: principal.user in users)

    def revoke_keys(self, keys: Collection[str]) -> None:
        """These CURVE keys are gone, or stand for other users: what was had through them ends."""
        self._revoke(lambda principal: principal.key in keys)

    def review(self) -> None:
        """The rules have changed: who may not do the same as before loses what it had."""

        def has_other_rights(principal: Principal) -> bool:
            try:
                return self._rights.allowed(principal.user, principal.host) != principal.allowed
            except Refusal:
                return True

        self._revoke(has_other_rights)

    def stop(self) -> None:
        """The broker stops: from now on everybody hears that."""
        self._stopping = True
        for session in self._sessions:
            self._abandon(session, STOPPING)

    def counts(self) -> dict[str, int]:
        """What is too frequent to be counted elsewhere."""
        return {"mtl_requests.answered": self.answered}

    def sessions(self) -> Iterable[Session]:
        """All sessions."""
        return self._sessions

    # requests and replies

    def _decoded(self, command: Part, body: Part) -> wire.Request | Sent:
        """What is asked, or the answer if that is no request. Raises `IllFormed`."""
        try:
            return wire.decode(command, body)
        except wire.Invalid as invalid:
            self._complaints.add(WIRE, self._router.sender().address, invalid)
            return invalid.reply
        except IllFormed:
            raise
        except Exception:
            self.log.failure("a request could not be decoded")
            return DEFECT

    def _queue(self, turn: Turn, back: Back, asked: wire.Request | Sent, size: int) -> None:
        """Let a request wait for those before it."""
        size += REQUEST_BYTES
        if len(turn.behind) < MAX_BEHIND and self._behind + size <= self._settings.max_behind_bytes:
            turn.behind.append((back, asked, size))
            self._behind += size
        else:
            self._complaints.count("mtl_dropped", "behind")

    async def _serve(self, session: Session, turn: Turn, asked: wire.Request | Sent) -> None:
        """Answer that request, and those that wait behind it meanwhile."""
        while True:
            if type(asked) is wire.Authorize and not self._stopping:
                answer = await self._authorize(session, turn, asked)
            else:
                answer = self._answer(session, asked)
            if turn.over:
                return
            self._reply(turn.back, answer)
            if not turn.behind:
                session.turn = None
                return
            turn.back, asked, size = turn.behind.popleft()
            self._behind -= size

    def _failed(self, failure: Failure, session: Session) -> None:
        self.log.failure("a reply could not be sent", failure)
        self._abandon(session, None)

    def _answer(self, session: Session | None, asked: wire.Request | Sent) -> Sent:
        """The answer to what can be answered at once."""
        if isinstance(asked, tuple):
            return asked
        if self._stopping:
            return STOPPING
        if session is None:
            return NOT_OPEN
        try:
            return self._methods[type(asked)](session, asked)
        except Refusal as refusal:
            return self._refused(session, refusal)
        except Exception:
            self.log.failure("a {request} made the broker fail", request=type(asked).__name__)
            return DEFECT

    def _refused(self, session: Session, refusal: Refusal) -> Sent:
        if session.principal is not None and session.principal.user:
            refusal.summary = f"{session.principal.user}: {refusal.summary}"
        self._complaints.add(WIRE, session.address, refusal)
        return wire.error(_STATUS.get(refusal.reason, Status.BAD_REQUEST), refusal.text)

    def _reply(self, back: Back, answer: Sent) -> None:
        self.answered += 1
        outcome = self._router.reply(back.identity, (*back.envelope, *answer))
        if outcome is not Outcome.SENT:
            self._complaints.count("mtl_dropped", outcome.value)

    def _ended(self, session: Session, there: bool) -> None:
        """A session ended: it made room while its peer is ``there``, or its connection closed."""
        self._abandon(session, NOT_OPEN if there else None)
        self._complaints.count("mtl_sessions", "ended")

    def _abandon(self, session: Session, answer: Sent | None) -> None:
        """Nothing that goes on in a session matters any more. All requests that wait get that answer, if any."""
        self._logins.forget(session)
        turn, session.turn = session.turn, None
        if turn is None:
            return
        turn.over = True
        backs = [turn.back, *(back for back, _, _ in turn.behind)]
        self._behind -= sum(size for _, _, size in turn.behind)
        for back in backs:
            if answer is None:
                self._complaints.count("mtl_dropped", "gone")
            else:
                self._reply(back, answer)
        if turn.pending is not None:
            turn.pending.cancel()

    # who is let in

    def _open(self, session: Session, asked: wire.Open) -> Sent:
        self._logins.forget(session)
        session.profile = None
        session.host = asked.virtual_host if len(asked.virtual_host) <= MAX_HOST else _NO_HOST
        self._sessions.admit(session, False)
        user = self._user_at_once(session)
        if user is not None:
            try:
                allowed = self._rights.allowed(user, session.host)
            except Refusal as refusal:
                session.host = None
                return self._refused(session, refusal)
        if session not in self._sessions:
            self._sessions.add(session)
            self._complaints.count("mtl_sessions", "begun")
        return self._unauthorized(session) if user is None else self._welcome(session, user, allowed)

    def _user_at_once(self, session: Session) -> str | None:
        """Whom a session acts for without being asked; None if it has to be asked."""
        if session.curve and self._key_allowed(session.curve):
            user = self._key_user(session.curve)
            if user is not None:
                return user
        return "" if self._settings.open else None

    async def _authorize(self, session: Session, turn: Turn, asked: wire.Authorize) -> Sent:
        turn.stale = False
        try:
            if session.host is None:
                return NOT_OPEN
            if self._settings.open and not self._logins.names(session):
                return NOT_ASKED
            outcome = await self._logins.take(session, turn, asked.mechanism, asked.response)
            if turn.over:
                return NOT_OPEN
            if isinstance(outcome, Challenge):
                return wire.challenged(asked.mechanism, outcome.data)
            if isinstance(outcome, Done):
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

    def _complain_of(self, session: Session, failed: Failed) -> None:
        self._complaints.count("mtl_logins", failed.why.value)
        reason = Reason.WRONG_CREDENTIALS if failed.why is Why.CREDENTIALS else Reason.PARAMETER
        refusal = Refusal(reason, failed.text)
        refusal.summary = f"a login failed: {failed.why.value}"
        self._complaints.add(WIRE, session.address, refusal)

    def _let_in(self, session: Session, user: str) -> Sent:
        """A user has proved who it is."""
        assert session.host is not None
        self._complaints.count("mtl_logins", "done")
        try:
            allowed = self._rights.allowed(user, session.host)
        except Refusal:
            self._lose(session)
            raise
        return self._welcome(session, user, allowed)

    def _welcome(self, session: Session, user: str, allowed: Allowed) -> Sent:
        """A session has access from now on."""
        assert session.host is not None
        before = session.principal
        if before is None or (before.user, before.host, before.allowed) != (user, session.host, allowed):
            self._lose(session)
            session.principal = Principal(user, session.host, allowed, session.curve)
        self._sessions.admit(session, True)
        return wire.ready(self._offered(session.host), self._settings.limits())

    def _unauthorized(self, session: Session, reason: str | None = None) -> Sent:
        return wire.unauthorized(self._logins.names(session), reason)

    def _late(self, session: Session) -> None:
        """An exchange took too long."""
        self._complaints.count("mtl_logins", "late")
        self._lose(session)

    def _lose(self, session: Session) -> None:
        """A session has no access any more, and all that it was given ends."""
        self._logins.forget(session)
        principal, session.principal = session.principal, None
        session.profile = None
        self._sessions.admit(session, False)
        if principal is not None:
            self._data_leases.revoke([principal])

    def _revoke(self, lost: Callable[[Principal], bool]) -> None:
        for session in self._sessions:
            if session.turn is not None:
                session.turn.stale = True
            if session.principal is not None and lost(session.principal):
                self._lose(session)
        # Leases stay when the session makes room for another.
        self._data_leases.revoke([principal for principal in self._data_leases.principals() if lost(principal)])

    # profiles and leases

    def _shut(self, session: Session) -> Sent | None:
        """The answer to who has to do something else first."""
        if session.host is None:
            return NOT_OPEN
        if not session.ready or session.running is not None:
            return self._unauthorized(session, "authenticate first")
        return None

    def _offered(self, host: str) -> list[str]:
        """The names of the profiles that there are in a virtual host."""
        settings = self._settings
        return [name for name in self._profiles if host == settings.bridge or name not in settings.bridged]

    def _choose(self, session: Session, asked: wire.Profile) -> Sent:
        shut = self._shut(session)
        if shut is not None:
            return shut
        assert session.host is not None
        if asked.profile not in self._offered(session.host):
            return NO_SUCH_PROFILE
        session.profile = self._profiles[asked.profile]
        return wire.OK

    def _read(self, session: Session, asked: wire.Reader) -> Sent:
        window = min(asked.window or self._settings.window, self._settings.most_window)
        return self._lease(session, Side.READER, asked, window)

    def _write(self, session: Session, asked: wire.Writer) -> Sent:
        return self._lease(session, Side.WRITER, asked, self._settings.window)

    def _lease(self, session: Session, side: Side, asked: wire.Reader | wire.Writer, window: int) -> Sent:
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
        confirm = confirms[0]
        for resource in asked.resources:
            profile.check(principal, side, resource)
        grant = Grant(principal, side, profile, asked.resources, confirm, window)
        token = self._data_leases.issue(grant, session)
        port = self._port if isinstance(self._port, int) else self._port()
        told = window if side is Side.READER and confirm is Confirm.FULL else None
        return wire.data_lease(port, token, told, self._settings.endpoint, profile.granted(grant))
