"""The wires over ZeroMQ: which of them there are, and in which order they open and close."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from twisted.internet.defer import Deferred, succeed
from twisted.logger import Logger

from broker.admin import dbp as dbp_views
from broker.admin import mc0 as mc0_views
from broker.admin import mtl as mtl_views
from broker.app.dbp import DbpListener, open_dbp
from broker.app.handshakes import open_gate
from broker.app.mc0 import Mc0Listener, open_mc0
from broker.app.mtl import MtlListener, open_mtl
from broker.app.parts import Parts
from broker.config import values
from broker.config.validate import effective_mc0_auth, effective_mtl_auth, mtl_curve, mtl_data_place
from broker.core.counters import Counters
from broker.core.database import StateError
from broker.core.interfaces import Beats
from broker.core.model import KnownSession, Provider, Snapshot
from broker.net.zap import Gate
from broker.net.zcontext import ZContext
from broker.net.zsocket import ZSocket


def sockets(config: values.Config) -> int:
    """How many sockets take connections."""
    mtl = config.mtl
    return config.mc0.enabled + config.dbp.enabled + mtl.enabled + (mtl.enabled and mtl_data_place(mtl) is not None)


class ZmqWires:
    """Those that are open."""

    log = Logger()

    def __init__(self, reactor: Any, counters: Counters) -> None:
        self._reactor = reactor
        self._counters = counters
        self._context: ZContext | None = None
        self._handshakes: ZSocket | None = None
        self._parts: Parts
        self.mc0: Mc0Listener | None = None
        self.dbp: DbpListener | None = None
        self.mtl: MtlListener | None = None

    def start(
        self,
        config: values.Config,
        known: Snapshot,
        state: str,
        parts: Parts,
        beats: Beats | None,
        room: int,
    ) -> None:
        """Open them, for ``room`` connections of each socket. ``known`` is what was stored before a restart.

        Raises OSError; then `abandon` closes what is open.
        """
        if not sockets(config):
            return
        self._parts = parts
        self._context = ZContext(self._reactor)
        gate, self._handshakes = open_gate(self._context, parts.complaints, self._reactor, parts.turns)
        if config.mc0.enabled:
            self._open_mc0(config.mc0, self._context, gate, known.sessions, room)
        if config.dbp.enabled:
            self._open_dbp(config, self._context, known.providers, beats)
        if config.mtl.enabled:
            self._open_mtl(config.mtl, state, self._context, gate, room)

    def use(self, config: values.Config) -> None:
        """Take what may change while they run."""
        if self.mc0 is not None:
            self.mc0.use(config.mc0)
        if self.dbp is not None:
            self.dbp.use(config.dbp)
        if self.mtl is not None:
            self.mtl.use(config.mtl)

    def views(self) -> dict[str, Callable[[str], object]]:
        """What the console can show of them."""
        shown: dict[str, Callable[[str], object]] = {}
        if self.mc0 is not None:
            shown |= mc0_views.views(self.mc0.sessions, self._parts.topics, self._parts.leases)
        if self.dbp is not None:
            shown |= dbp_views.views(self.dbp.catalogue, self._parts.leases)
        if self.mtl is not None:
            mtl = self.mtl
            shown |= mtl_views.views(mtl.control, mtl.data, mtl.queues.describe, self._parts.leases)
        return shown

    def places(self) -> Iterator[dict[str, object]]:
        """The open sockets, as `broker.app.status` lists them."""
        if self.mc0 is not None:
            yield {"wire": "mc0", "address": self.mc0.address}
        if self.dbp is not None:
            yield {"wire": "dbp", "address": self.dbp.address}
            yield {"wire": "dbp", "name": "heartbeats", "address": self.dbp.udp_address}
        if self.mtl is not None:
            yield {"wire": "mtl", "address": self.mtl.address}
            if self.mtl.data_address != self.mtl.address:
                yield {"wire": "mtl", "name": "data", "address": self.mtl.data_address}

    def close(self) -> Deferred[None]:
        """Close them in good order. Fires when what they keep is on the disk."""
        done = succeed(None) if self.mtl is None else self.mtl.close()
        self.mtl = None
        self._shut_others()
        return done.addBoth(lambda _: self._shut())

    def abandon(self) -> None:
        """Close them where the reactor does not run: the start failed."""
        if self.mtl is not None:
            self.mtl.abandon()
            self.mtl = None
        self._shut()

    def _shut(self) -> None:
        self._shut_others()
        if self._handshakes is not None:
            self._handshakes.shutdown()
            self._handshakes = None
        if self._context is not None:
            self._context.close()
            self._context = None

    def _shut_others(self) -> None:
        """Close the wires that keep nothing."""
        if self.mc0 is not None:
            self.mc0.close()
            self.mc0 = None
        if self.dbp is not None:
            self.dbp.close()
            self.dbp = None

    def _open_mc0(
        self, config: values.Mc0, context: ZContext, gate: Gate, known: Sequence[KnownSession], room: int
    ) -> None:
        parts = self._parts
        try:
            self.mc0 = open_mc0(
                config,
                context,
                gate,
                parts.topics,
                parts.leases,
                parts.complaints,
                parts.recorder,
                known,
                parts.turns,
                self._reactor,
                parts.in_thread,
                room,
            )
        except OSError as error:
            raise OSError(f"mc0: {error}") from None
        self._counters.include(self.mc0.sessions.counts)
        self.log.info("mc0 on {where} ({auth})", where=self.mc0.address, auth=effective_mc0_auth(config))

    def _open_dbp(
        self, config: values.Config, context: ZContext, known: Sequence[Provider], beats: Beats | None
    ) -> None:
        parts = self._parts
        try:
            self.dbp = open_dbp(
                config.dbp,
                config.broker.service,
                context,
                parts.registry,
                parts.leases,
                parts.complaints,
                parts.turns,
                self._reactor,
                known,
                beats,
            )
        except OSError as error:
            raise OSError(f"dbp: {error}") from None
        self._counters.include(self.dbp.counts)
        self.log.info("dbp on {where} (udp {udp}; open)", where=self.dbp.address, udp=self.dbp.udp_address)

    def _open_mtl(self, config: values.Mtl, state: str, context: ZContext, gate: Gate, room: int) -> None:
        parts = self._parts
        try:
            self.mtl = open_mtl(
                config,
                state,
                context,
                gate,
                parts.registry,
                parts.topics,
                parts.leases,
                parts.complaints,
                parts.turns,
                self._reactor,
                parts.in_thread,
                room,
            )
        except (OSError, ValueError, StateError) as error:
            raise OSError(f"mtl: {error}") from None
        self._counters.include(self.mtl.counts)
        self.log.info(
            "mtl on {where} (data {data}; {auth}{curve})",
            where=self.mtl.address,
            data=self.mtl.data_address,
            auth=effective_mtl_auth(config),
            curve=", curve" if mtl_curve(config) else "",
        )
