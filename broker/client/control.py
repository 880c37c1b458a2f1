"""The control flow of a client: one request at a time, each with its answer or a timeout.

Rules:
- A DEALER with the empty frame of a REQ socket. Requests and replies take turns. A request without an answer in time
  ends the connection, and the next one is sent over a new one: a late answer can never be taken for another's.
- Nothing is asked before Connection.Open, and no lease before Connection.Profile. Both are said again by themselves
  when they may have been forgotten.
- 401 may come at any time: then the client authenticates, and goes on with what it was about.
- 400 with the reason "open", silence, and what is no reply: the broker may have been started again. The client begins
  with Open once more, after a pause if it did not answer, and does so until there is an answer. So it does after 429
  and 5xx but 501: these may be over soon.
- Any other error is an answer: asking again would not help. So is 401 to a whole exchange, and a broker that does not
  prove that it knows the user.
- Members of replies that are not known do not matter.
"""

from __future__ import annotations

from collections.abc import Callable
from ipaddress import ip_address
from typing import Any

import attrs
from twisted.internet.defer import Deferred, DeferredLock, TimeoutError
from twisted.internet.task import deferLater
from twisted.logger import Logger

from broker.client.credentials import Credentials
from broker.client.dealer import Dealer
from broker.client.errors import Closed, Lost, MtlError, NotLetIn, Refused, Unproven
from broker.client.pauses import Pauses
from broker.client.settings import Settings
from broker.wires.mtl.codec import client as wire

MAX_STEPS = 10
"""Requests of one exchange: SCRAM has three. A broker that never comes to an end is none."""

MAX_ROUNDS = 3
"""How often one request is begun anew because the broker does not know the client any more. That happens once, when
the broker is started again; a broker that forgets at once is left alone for a while."""

_SOON_OVER = frozenset((429, 500, 502, 503, 504))
"""Codes that may be others after a while."""

Connect = Callable[[Callable[[list[bytes]], object], Callable[[], object], Callable[[str], object]], Dealer]
"""What makes the socket, given who receives, who is told of room, and who of failures."""


@attrs.frozen
class Granted:
    """A data lease. ``session`` is for `Control.doubt`."""

    lease: wire.DataLease
    session: int


class Control:
    """The control flow. ``secure`` says that nobody else can read the connection.

    ``in_thread`` runs what is slow: a function with arguments; it returns a Deferred of the result.
    """

    log = Logger()

    def __init__(
        self,
        clock: Any,
        endpoint: str,
        connect: Connect,
        settings: Settings,
        credentials: Credentials | None,
        virtual_host: str,
        secure: bool,
        in_thread: Callable[..., Deferred[Any]],
    ) -> None:
        self.credentials = credentials
        self.session = 0
        """How often the client was let in."""
        self.unasked = 0
        """Messages that came when nothing was asked."""
        self._clock = clock
        self._endpoint = endpoint
        self._connect = connect
        self._settings = settings
        self._opening = wire.opening(virtual_host)
        self._secure = secure
        self._in_thread = in_thread
        self._pauses = Pauses(settings.least_pause, settings.most_pause)
        self._lock = DeferredLock()
        self._dealer: Dealer | None = None
        self._answer: Deferred[wire.Reply] | None = None
        self._ready: wire.Ready | None = None
        self._unauthorized: wire.Unauthorized | None = None
        """The last 401, if the session is open but for that."""
        self._profile = ""
        self._closed = False

    async def ready(self) -> wire.Ready:
        """Be let in, if that is not so already, however long it takes. Raises `MtlError` where it cannot be."""
        await self._lock.acquire()
        try:
            return await self._enter()
        finally:
            self._lock.release()

    async def lease(self, profile: str, request: wire.Request) -> Granted:
        """Get a data lease in that profile.

        Raises `Lost` if another attempt might help, and any other `MtlError` if not.
        """
        profile = profile.lower()
        await self._lock.acquire()
        try:
            for _ in range(MAX_ROUNDS):
                await self._enter()
                if self._profile != profile:
                    reply = await self._ask(wire.profile(profile))
                    if self._is_anew(reply):
                        continue
                    if not isinstance(reply, wire.Ok):
                        raise _refusal(reply)
                    self._profile = profile
                reply = await self._ask(request)
                if self._is_anew(reply):
                    continue
                if not isinstance(reply, wire.DataLease):
                    raise _refusal(reply)
                return Granted(reply, self.session)
            self._forget()
            raise Lost("the broker forgets the client again and again")
        finally:
            self._lock.release()

    def doubt(self, session: int) -> None:
        """That session may be over: begin with Open before anything else."""
        if session == self.session:
            self._ready = self._unauthorized = None

    def close(self) -> None:
        """Nothing is asked any more."""
        self._closed = True
        self._forget()
        if self._answer is not None and not self._answer.called:
            self._answer.errback(Closed("the client is closed"))

    # being let in

    async def _enter(self) -> wire.Ready:
        while self._ready is None:
            try:
                reply = self._unauthorized or await self._ask(self._opening)
                self._unauthorized = None
                if isinstance(reply, wire.Unauthorized):
                    reply = await self._authorize(reply)
                if not isinstance(reply, wire.Ready):
                    raise _refusal(reply)
            except Lost as lost:
                self._forget()
                pause = self._pauses.next()
                self.log.info(
                    "the broker at {endpoint} does not let the client in: {why}; again in {pause:.1f} s",
                    endpoint=self._endpoint,
                    why=str(lost),
                    pause=pause,
                )
                await deferLater(self._clock, pause)
            except MtlError:
                self._forget()
                raise
            else:
                self._pauses.reset()
                self._ready = reply
                self._profile = ""
                self.session += 1
        return self._ready

    async def _authorize(self, asked: wire.Unauthorized) -> wire.Reply:
        if self.credentials is None:
            raise NotLetIn("the broker wants to know who this is, and the client has no credentials")
        exchange = self.credentials.exchange(asked.mechanisms, self._secure)
        response = exchange.begin()
        for _ in range(MAX_STEPS):
            reply = await self._ask(wire.authorization(exchange.mechanism, response))
            if isinstance(reply, wire.Ready):
                exchange.end()
                return reply
            if isinstance(reply, wire.Unauthorized):
                raise NotLetIn(reply.reason)
            if not isinstance(reply, wire.Challenged):
                return reply
            if reply.mechanism != exchange.mechanism:
                raise Unproven("the broker goes on with another mechanism than it began with")
            response = await self._in_thread(exchange.answer, reply.challenge)
        raise Unproven("the broker has questions without end")

    def _is_anew(self, reply: wire.Reply) -> bool:
        """Whether the client has to be let in once more. Then that is what happens next."""
        if isinstance(reply, wire.Unauthorized):
            self._unauthorized = reply
        elif not isinstance(reply, wire.Error) or not reply.not_open:
            return False
        self._ready = None
        return True

    # requests and replies

    async def _ask(self, request: wire.Request) -> wire.Reply:
        """Send a request, and wait for its reply. Raises `Lost`."""
        if self._closed:
            raise Closed("the client is closed")
        try:
            if self._dealer is None:
                self._dealer = self._connect(self._receive, _nothing, self._failed)
            self._answer = Deferred()
            # A new socket has room for more than one message, and there is never more than one.
            self._dealer.send((b"", *request))
            return await self._answer.addTimeout(self._settings.timeout, self._clock)
        except TimeoutError:
            self._forget()
            raise Lost(f"no answer from {self._endpoint} in {self._settings.timeout} s") from None
        except BaseException:
            self._forget()
            raise
        finally:
            self._answer = None

    def _receive(self, frames: list[bytes]) -> None:
        answer = self._answer
        if answer is None or answer.called:
            self.unasked += 1
            return
        if len(frames) != 3 or frames[0]:
            answer.errback(Lost("the broker sends what is no reply: its frames are others"))
            return
        try:
            reply = wire.decode(frames[1], frames[2])
        except wire.BadReply as error:
            answer.errback(Lost(f"the broker sends what is no reply: {error.text}"))
        else:
            answer.callback(reply)

    def _failed(self, why: str) -> None:
        if self._answer is not None and not self._answer.called:
            self._answer.errback(Lost(why))

    def _forget(self) -> None:
        """The session is over, as far as the client is concerned."""
        self._ready = self._unauthorized = None
        dealer, self._dealer = self._dealer, None
        if dealer is not None:
            dealer.close()


def is_secure(endpoint: str, encrypted: bool) -> bool:
    """Whether nobody else can read a connection to that endpoint."""
    scheme, _, where = endpoint.partition("://")
    if encrypted or scheme in ("ipc", "inproc"):
        return True
    host = where.rpartition(":")[0].strip("[]")
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _refusal(reply: wire.Reply) -> MtlError:
    """What a reply means that is not the one that was hoped for."""
    if isinstance(reply, wire.Error):
        text = reply.reason or reply.status
        if reply.not_open or reply.code in _SOON_OVER:
            return Lost(f"the broker says {reply.code} {text}")
        return Refused(reply.code, text)
    return Lost(f"the broker answers what was not asked: {type(reply).__name__}")


def _nothing() -> None:
    """Room matters to nobody here."""
