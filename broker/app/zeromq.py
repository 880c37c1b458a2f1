"""The wiring of the wires that speak ZMTP: their list, and the order in which they are made and closed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

from twisted.internet.defer import Deferred, DeferredList
from twisted.logger import Logger

from broker.app.parts import Parts
from broker.app.status import occupied
from broker.config import values
from broker.config.validate import effective_mc0_auth, effective_mtl_auth, mtl_curve, mtl_data_place
from broker.config.zmq_endpoint import parse
from broker.core.counters import Counters
from broker.core.database import StateError
from broker.core.interfaces import Beats
from broker.core.model import KnownSession, Provider, Snapshot
from broker.net.endpoints import CannotListen
from broker.net.listener_retry import Openings
from broker.wires.common.router_listener import RouterListener
from broker.wires.dbp import views as dbp_views
from broker.wires.dbp.open import DbpListener, make_dbp
from broker.wires.mc0 import views as mc0_views
from broker.wires.mc0.open import Mc0Listener, make_mc0
from broker.wires.mtl import views as mtl_views
from broker.wires.mtl.open import MtlListener, make_mtl


def sockets(config: values.Config) -> int:
    """The number of sockets that take connections."""
    mtl = config.mtl
    return config.mc0.enabled + config.dbp.enabled + mtl.enabled + (mtl.enabled and mtl_data_place(mtl) is not None)


class ZmqWires:
    """The wires that are made, bound or not."""

    log = Logger()

    def __init__(self, reactor: Any, counters: Counters) -> None:
        self._reactor = reactor
        self._counters = counters
        self._parts: Parts
        self._config: values.Config
        self.mc0: Mc0Listener | None = None
        self.dbp: DbpListener | None = None
        self.mtl: MtlListener | None = None

    def add(
        self,
        openings: Openings,
        config: values.Config,
        known: Snapshot,
        state: str,
        parts: Parts,
        beats: Beats | None,
        room: int,
    ) -> None:
        """Have ``openings`` open them, for ``room`` connections of each socket.

        ``known`` has the sessions and providers from before a restart. If that fails, `abandon` closes what is open.
        """
        if not sockets(config):
            return
        self._parts = parts
        self._config = config
        if config.mc0.enabled:
            make = partial(self._make_mc0, known.sessions, room)
            openings.add("mc0", parse(config.mc0.endpoint).where, self._bind_mc0, make)
        if config.dbp.enabled:
            make = partial(self._make_dbp, known.providers, beats, room)
            openings.add("dbp", parse(config.dbp.endpoint).where, self._bind_dbp, make)
        if config.mtl.enabled:
            make = partial(self._make_mtl, state, room)
            openings.add("mtl", parse(config.mtl.endpoint).where, self._bind_mtl, make)

    def use(self, config: values.Config) -> None:
        """Take the keys of the configuration that a reload may change, also for wires that are not made yet."""
        self._config = config
        if self.mc0 is not None:
            self.mc0.use(config.mc0)
        if self.dbp is not None:
            self.dbp.use(config.dbp)
        if self.mtl is not None:
            self.mtl.use(config.mtl)

    def views(self) -> dict[str, Callable[[str], object]]:
        """The views of the console."""
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
        if self.mc0 is not None and self.mc0.address:
            yield _place("mc0", self.mc0.listener)
        if self.dbp is not None and self.dbp.address:
            yield _place("dbp", self.dbp.listener)
            yield {"wire": "dbp", "name": "heartbeats", "address": self.dbp.udp_address}
        if self.mtl is not None and self.mtl.address:
            yield _place("mtl", self.mtl.control_listener)
            if self.mtl.data_listener is not self.mtl.control_listener:
                yield _place("mtl", self.mtl.data_listener, name="data")

    def close(self) -> Deferred[None]:
        """Close them in good order. Fires when their state is on the disk, and all connections are closed."""
        closing = [wire.close() for wire in (self.mtl, self.mc0, self.dbp) if wire is not None]
        self.mtl = self.mc0 = self.dbp = None
        return DeferredList(closing, consumeErrors=True).addCallback(lambda _: None)

    def abandon(self) -> None:
        """Close them where the reactor does not run: the start failed."""
        for wire in (self.mtl, self.mc0, self.dbp):
            if wire is not None:
                wire.abandon()
        self.mtl = self.mc0 = self.dbp = None

    # Each wire is made once, and bound as often as it takes.

    def _make_mc0(self, known: Sequence[KnownSession], room: int) -> None:
        if self.mc0 is not None:
            return
        try:
            self.mc0 = make_mc0(self._config.mc0, known, self._parts, self._reactor, room)
        except OSError as error:
            raise CannotListen(str(error)) from None
        self._counters.include(self.mc0.sessions.counts)

    def _bind_mc0(self) -> str:
        assert self.mc0 is not None
        where = self.mc0.bind()
        self.log.info("mc0 on {where} ({auth})", where=where, auth=effective_mc0_auth(self._config.mc0))
        return where

    def _make_dbp(self, known: Sequence[Provider], beats: Beats | None, room: int) -> None:
        if self.dbp is not None:
            return
        config = self._config
        self.dbp = make_dbp(config.dbp, known, config.broker.service, beats, self._parts, self._reactor, room)
        self._counters.include(self.dbp.counts)

    def _bind_dbp(self) -> str:
        assert self.dbp is not None
        where = self.dbp.bind()
        self.log.info("dbp on {where} (udp {udp}; open)", where=where, udp=self.dbp.udp_address)
        return where

    def _make_mtl(self, state: str, room: int) -> None:
        if self.mtl is not None:
            return
        try:
            self.mtl = make_mtl(self._config.mtl, state, self._parts, self._reactor, room)
        except (OSError, ValueError, StateError) as error:
            raise CannotListen(str(error)) from None
        self._counters.include(self.mtl.counts)

    def _bind_mtl(self) -> str:
        assert self.mtl is not None
        where = self.mtl.bind()
        config = self._config.mtl
        self.log.info(
            "mtl on {where} (data {data}; {auth}{curve})",
            where=where,
            data=self.mtl.data_address,
            auth=effective_mtl_auth(config),
            curve=", curve" if mtl_curve(config) else "",
        )
        return where


def _place(wire: str, listener: RouterListener, **name: str) -> dict[str, object]:
    return {"wire": wire, **name, "address": listener.address, **occupied(listener.router)}
