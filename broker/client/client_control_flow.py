"""Control flow of a client: one request at a time, each answered by a reply or a timeout.

Rules:
- The socket is a DEALER that adds the empty delimiter frame of a REQ. Requests and replies alternate. A request without
  a reply in time closes the connection, and the next request uses a new one: a late reply can never be matched to
  another request.
- Connection.Open precedes all requests, and Connection.Profile precedes a lease. The client repeats both when the
  broker may have forgotten them.
- 401 may come at any time: the client authenticates and continues.
- 400 with the reason "open", a timeout, and an invalid reply mean that the broker may have restarted. The client starts
  over from Open, after a delay if there was no reply, until there is one. It does the same after 429 and after 5xx
  except 501: these errors are temporary.
- 421 names another broker that has the resource: `broker.client.client_data_flow` requests the lease there.
- Any other error is final, since a repeated request would fail too. So is 401 to a complete exchange, and a broker that
  does not prove that it knows the user.
- A client that never had a session fails with `Unreachable` once no endpoint has a broker, with the cause of each
  (`broker.address_faults`): what it was given is wrong, or nothing runs there. Later it waits for a broker.
- With several endpoints, the client tries the next one after each failure, and pauses after each round.
- Unknown members of replies are ignored.
"""

from __future__ import annotations

from collections.abc import Callable
from ipaddress import ip_address
from typing import Any

import attrs
from twisted.internet.defer import Deferred, DeferredLock, TimeoutError
from twisted.internet.task import deferLater
from twisted.logger import Logger

from broker.backoff import Pauses
from broker.client.credentials import Credentials
from broker.client.errors import (
    AuthenticationFailed,
    BrokerUnverified,
    Closed,
    Elsewhere,
    Lost,
    MtlError,
    NoBroker,
    Refused,
    Unreachable,
)
from broker.client.settings import Settings
from broker.client.transport import Endpoints, FrameSocket
from broker.wires.mtl.codec import client_messages as wire

MAX_STEPS = 10
"""Requests of one authentication exchange; SCRAM has three. The limit ends an exchange with a broker that sends
challenges without end."""

MAX_REOPENS = 3
"""Attempts of one request after the broker reports that the session is unknown. A restart of the broker causes one;
after a third the client waits before it continues."""

_TEMPORARY = frozenset((429, 500, 502, 503, 504))
"""Codes of errors that may pass."""

Connect = Callable[[Callable[[list[bytes]], object], Callable[[], object], Callable[[str], object]], FrameSocket]
"""Factory of the socket. Its arguments are callbacks: message received, room to send, socket failed."""


@attrs.frozen
class Granted:
    """A data lease. ``session`` is the argument for `Control.invalidate`."""

    lease: wire.DataLease
    session: int


class Control:
    """The control flow of one client with one broker. ``secure`` is True if third parties cannot read the connection.

    A ``patient`` one tries to open a session until it succeeds; any other fails with `Lost`: the client was sent there
    by another broker, and asks that one again.

    ``in_thread`` runs a slow function with arguments in a thread and returns a Deferred of its result.
    """

    log = Logger()

    def __init__(
        self,
        clock: Any,
        endpoints: Endpoints,
        connect_to: Callable[[str], Connect],
        fault: Callable[[str, float], str],
        settings: Settings,
        credentials: Credentials | None,
        virtual_host: str,
        secure: bool,
        in_thread: Callable[..., Deferred[Any]],
        patient: bool = True,
    ) -> None:
        self.credentials = credentials
        self.session = 0
        """Number of sessions that the broker has opened for this client."""
        self.unasked = 0
        """Messages that were no reply to a request."""
        self._clock = clock
        self._patient = patient
        self._failures = 0
        """Failures to open a session, of one that is not patient."""
        self._endpoints = endpoints
        self._connect_to = connect_to
        self._fault = fault
        self._settings = settings
        self._opening = wire.opening(virtual_host)
        self._secure = secure
        self._in_thread = in_thread
        self._pauses = Pauses(settings.least_pause, settings.most_pause)
        self._lock = DeferredLock()
        self._socket: FrameSocket | None = None
        self._answer: Deferred[wire.Reply] | None = None
        self._ready: wire.Ready | None = None
        self._unauthorized: wire.Unauthorized | None = None
        """The last 401, while the session needs nothing but authentication."""
        self._profile = ""
        self._closed = False

    @property
    def endpoint(self) -> str:
        """The endpoint of the present session, or of the next attempt."""
        return self._endpoints.current

    @property
    def busy(self) -> bool:
        """True while a request is in progress."""
        return bool(self._lock.locked)

    async def ready(self) -> wire.Ready:
        """Open a session unless there is one, however long it takes. Raises `MtlError` for a permanent failure."""
        await self._lock.acquire()
        try:
            return await self._enter()
        finally:
            self._lock.release()

    async def lease(self, profile: str, request: wire.Request) -> Granted:
        """Request a data lease in a profile.

        Raises `Lost` if another attempt may succeed, and any other `MtlError` if not.
        """
        profile = profile.lower()
        failures = self._failures
        await self._lock.acquire()
        try:
            # Others found the broker dead meanwhile: each would wait for a whole timeout, one after the other.
            if failures != self._failures:
                raise Lost(f"no reply from {self.endpoint}")
            for _ in range(MAX_REOPENS):
                await self._enter()
                if self._profile != profile:
                    reply = await self._ask(wire.profile(profile))
                    if self._needs_open(reply):
                        continue
                    if not isinstance(reply, wire.Ok):
                        raise _refusal(reply)
                    self._profile = profile
                reply = await self._ask(request)
                if self._needs_open(reply):
                    continue
                if not isinstance(reply, wire.DataLease):
                    raise _refusal(reply)
                return Granted(reply, self.session)
            self._reset()
            raise Lost("the broker reports an unknown session repeatedly")
        finally:
            self._lock.release()

    def invalidate(self, session: int) -> None:
        """Mark a session as possibly ended: the next request begins with Open."""
        if session == self.session:
            self._ready = self._unauthorized = None

    def close(self) -> None:
        """Close the connection and fail the pending request with `Closed`."""
        self._closed = True
        self._reset()
        if self._answer is not None and not self._answer.called:
            self._answer.errback(Closed("the client is closed"))

    # the session

    async def _enter(self) -> wire.Ready:
        faults: dict[str, str] = {}
        while self._ready is None:
            try:
                reply = self._unauthorized or await self._open()
                self._unauthorized = None
                if isinstance(reply, wire.Unauthorized):
                    reply = await self._authorize(reply)
                if not isinstance(reply, wire.Ready):
                    raise _refusal(reply)
            except Lost as lost:
                self._reset()
                if not self._patient:
                    self._failures += 1
                    raise
                tried = self._endpoints.current
                round_over = self._endpoints.next()
                if isinstance(lost, NoBroker):
                    faults[tried] = str(lost)
                    if len(faults) >= len(self._endpoints.all):
                        raise Unreachable("; ".join(faults.values())) from None
                    if not round_over:
                        continue
                else:
                    faults.clear()  # there is a broker, which has no session for the client at present
                pause = self._pauses.next() if round_over else self._settings.least_pause
                self.log.info(
                    "cannot open a session at {endpoint}: {why}; next attempt in {pause:.1f} s",
                    endpoint=tried,
                    why=str(lost),
                    pause=pause,
                )
                await deferLater(self._clock, pause)
            except MtlError:
                self._reset()
                raise
            else:
                self._pauses.reset()
                self._ready = reply
                self._profile = ""
                self.session += 1
        return self._ready

    async def _open(self) -> wire.Reply:
        """Send the first request of a session. Raises `Lost`; at the first contact `NoBroker`, where there is none."""
        limit = self._settings.first_contact
        if limit is None or self.session or not self._patient:
            if self._socket is None:
                await self._endpoints.look_up()
            return await self._ask(self._opening, self._patience())
        try:
            looked_up: Deferred[None] = Deferred.fromCoroutine(self._endpoints.look_up())
            await looked_up.addTimeout(limit, self._clock)
        except TimeoutError:
            raise NoBroker(f"{self.endpoint}: no answer to the look-up of its name in {limit:g} s") from None
        except Lost as lost:
            raise NoBroker(f"{self.endpoint}: {lost}") from None
        try:
            return await self._ask(self._opening, min(limit / 2, self._patience()))
        except Lost:
            fault = await self._in_thread(self._fault, self.endpoint, limit / 2)
            if fault:
                raise NoBroker(f"{self.endpoint}: {fault}") from None
        try:
            return await self._ask(self._opening, self._patience())
        except Lost as lost:
            raise NoBroker(f"{self.endpoint}: {lost}; what answers there may be no MTL broker") from None

    def _patience(self) -> float:
        """Return the time limit of the first request of a session."""
        settings = self._settings
        return min(settings.failover, settings.timeout) if self._endpoints.several else settings.timeout

    async def _authorize(self, asked: wire.Unauthorized) -> wire.Reply:
        if self.credentials is None:
            raise AuthenticationFailed("the broker requires authentication, and the client has no credentials")
        exchange = self.credentials.exchange(asked.mechanisms, self._secure)
        response = exchange.begin()
        for _ in range(MAX_STEPS):
            reply = await self._ask(wire.authorization(exchange.mechanism, response))
            if isinstance(reply, wire.Ready):
                exchange.end()
                return reply
            if isinstance(reply, wire.Unauthorized):
                raise AuthenticationFailed(reply.reason)
            if not isinstance(reply, wire.Challenged):
                return reply
            if reply.mechanism != exchange.mechanism:
                raise BrokerUnverified("the broker changed the mechanism during the exchange")
            response = await self._in_thread(exchange.answer, reply.challenge)
        raise BrokerUnverified(f"the exchange did not end after {MAX_STEPS} steps")

    def _needs_open(self, reply: wire.Reply) -> bool:
        """Return True if the session is unknown by the reply or not authorised; the next step is then Open or
        Authorize."""
        if isinstance(reply, wire.Unauthorized):
            self._unauthorized = reply
        elif not isinstance(reply, wire.Error) or not reply.not_open:
            return False
        self._ready = None
        return True

    # requests and replies

    async def _ask(self, request: wire.Request, timeout: float | None = None) -> wire.Reply:
        """Send a request and wait for its reply, for the time of the settings by default. Raises `Lost`."""
        timeout = self._settings.timeout if timeout is None else timeout
        if self._closed:
            raise Closed("the client is closed")
        try:
            if self._socket is None:
                self._socket = self._connect_to(self.endpoint)(self._receive, _nothing, self._failed)
            self._answer = Deferred()
            # A new socket has room for more than one message, and there is never more than one.
            self._socket.send((b"", *request))
            return await self._answer.addTimeout(timeout, self._clock)
        except TimeoutError:
            self._reset()
            raise Lost(f"no reply from {self.endpoint} in {timeout} s") from None
        except BaseException:
            self._reset()
            raise
        finally:
            self._answer = None

    def _receive(self, frames: list[bytes]) -> None:
        answer = self._answer
        if answer is None or answer.called:
            self.unasked += 1
            return
        if len(frames) != 3 or frames[0]:
            answer.errback(Lost("invalid reply: wrong number of frames"))
            return
        try:
            reply = wire.decode(frames[1], frames[2])
        except wire.BadReply as error:
            answer.errback(Lost(f"invalid reply: {error.text}"))
        else:
            answer.callback(reply)

    def _failed(self, why: str) -> None:
        if self._answer is not None and not self._answer.called:
            self._answer.errback(Lost(why))

    def _reset(self) -> None:
        """Drop the session and the connection."""
        self._ready = self._unauthorized = None
        dealer, self._socket = self._socket, None
        if dealer is not None:
            dealer.close()


def is_secure(endpoint: str, encrypted: bool) -> bool:
    """Return True if third parties cannot read a connection to that endpoint."""
    scheme, _, where = endpoint.partition("://")
    if encrypted or scheme in ("ipc", "inproc"):
        return True
    host = where.rpartition(":")[0].strip("[]")
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _refusal(reply: wire.Reply) -> MtlError:
    """Return the error that an unexpected reply stands for."""
    if isinstance(reply, wire.Misdirected):
        return Elsewhere(reply.endpoint, reply.reason or "the resource belongs to another broker")
    if isinstance(reply, wire.Error):
        text = reply.reason or reply.status
        if reply.not_open or reply.code in _TEMPORARY:
            return Lost(f"the broker replied {reply.code} {text}")
        return Refused(reply.code, text)
    return Lost(f"unexpected reply: {type(reply).__name__}")


def _nothing() -> None:
    """Ignore the event: there is always room for the one request."""
