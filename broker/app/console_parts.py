"""The operators' console: its listener."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any
from weakref import WeakSet

from twisted.internet.defer import Deferred
from twisted.logger import Logger

from broker.app.core_parts import Core, OpenAccess
from broker.config import daemon_settings
from broker.config import endpoint as endpoints
from broker.core.place_table import Pool
from broker.net.admission import ConnectionFactory
from broker.net.connection_limits import ConnectionLimits
from broker.net.line_protocol import LineFactory
from broker.net.listeners import StreamListener, listener_row
from broker.net.peer_interfaces import MessageReader, Peer, PeerSession
from broker.net.tls import Certificates
from broker.operate.console import ConsoleSession, Shown
from broker.operate.console_input import ConsoleReader
from broker.wires.tables import Dialect

LIMITS = ConnectionLimits(connections=500, rate=1, burst=20, authenticate_within=30)
"""Operators are few, but one that comes among hostile peers needs a place until its login. A password is not guessed at
one connection a second."""


SHOWN_FOR = 1.0
"""Seconds for which operators that connect share the tables and dialects of the open wires. To make them takes over a
millisecond, which a crowd of connections would multiply."""


class ConsoleListener:
    """The listener of operators. ``dialects`` and ``shown`` are asked for operators that connect."""

    log = Logger()

    def __init__(
        self,
        config: daemon_settings.Console,
        core: Core,
        reactor: Any,
        dialects: Callable[[], Sequence[Dialect]],
        shown: Callable[[], Shown],
        access: OpenAccess,
        pool: Pool,
    ) -> None:
        self._access = access.access
        self._requests = access.logins.requests
        self._sessions: WeakSet[ConsoleSession] = WeakSet()
        self._access.changed.append(self._review)
        self._dialects = dialects
        self._shown = shown
        self._clock = reactor
        self._made: tuple[float, Sequence[Dialect], Shown] | None = None
        endpoint = endpoints.parse(config.endpoint)
        self._lines = LineFactory(
            "console",
            self._converse,
            LIMITS,
            core.scheduler,
            core.refusal_log,
            reactor,
            half_close=endpoint.kind != "tls",
            pool=pool,
            guarded=False,  # The console's decoder detects HTTP requests itself, among telnet commands.
        )
        self._listener = StreamListener(reactor, endpoint, self._lines, self._lines, core.scheduler, core.refusal_log)
        self.where = endpoint.where

    def bind(self) -> str:
        """Listen, and log that. Returns the address. Raises `broker.net.listeners.CannotListen`."""
        where = self._listener.open()
        self.log.info("console on {where}", where=where)
        return where

    def listener_rows(self) -> list[dict[str, object]]:
        """Return the listener as operators see it, if it is open."""
        return listener_row("console", "console", self._listener)

    def connection_factory(self) -> ConnectionFactory:
        """Return the connections, for traces."""
        return self._lines

    def certificates(self) -> list[Certificates]:
        """Return the certificates of a listener over TLS, if it is open."""
        return [] if self._listener.certificates is None else [self._listener.certificates]

    def stop_listening(self) -> Deferred[Any]:
        """Stop accepting connections. Fires when that is done."""
        return self._listener.stop_listening()

    def close(self) -> Deferred[None]:
        """Close all connections in order. Fires when they are closed."""
        return self._lines.close()

    def _parts(self) -> tuple[Sequence[Dialect], Shown]:
        """Return the dialects and the state for operators, which are made again after `SHOWN_FOR`."""
        now = self._clock.seconds()
        if self._made is None or not 0 <= now - self._made[0] < SHOWN_FOR:
            self._made = now, self._dialects(), self._shown()
        return self._made[1:]

    def _converse(self, peer: Peer) -> tuple[MessageReader, PeerSession]:
        session = ConsoleSession(*self._parts(), peer, self._access, self._requests)
        self._sessions.add(session)
        return ConsoleReader(lambda: not session.entered), session

    def _review(self) -> None:
        for session in tuple(self._sessions):
            session.review()
