"""Listeners of both flows: two ROUTERs on two ports, or one that carries both."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import attrs
from twisted.internet.defer import Deferred, DeferredList

from broker.net.listeners import CannotListen
from broker.net.router.router import SILENCE
from broker.wires.common.known_keys import KnownKeys
from broker.wires.common.router_listener import RouterListener, make_router
from broker.wires.interface import WireContext
from broker.wires.mtl.mtl_settings import Mtl
from broker.wires.mtl.sessions.control_flow import WIRE, ControlFlow
from broker.wires.mtl.sessions.data_flow import DataFlow
from broker.wires.mtl.sessions.shared_socket import SharedSocket

DATA = "mtl-data"
"""Name of the data flow's ROUTER in counters and logs."""


@attrs.frozen(eq=False)
class MtlListeners:
    """The listeners of the control flow and the data flow: the same one where a socket carries both."""

    control: RouterListener
    data: RouterListener

    @classmethod
    def make(cls, config: Mtl, keys: KnownKeys | None, context: WireContext) -> MtlListeners:
        """Make the ROUTERs without binding them. Raises OSError."""
        secret_key = config.secret_key if config.curve else None
        control = RouterListener(make_router(WIRE, config, secret_key, keys, context), context.clock)
        if config.data_place is None:
            return cls(control, control)
        return cls(control, RouterListener(make_router(DATA, config, secret_key, keys, context), context.clock))

    @property
    def shared(self) -> bool:
        """True if one socket carries both flows."""
        return self.data is self.control

    @property
    def all(self) -> Sequence[RouterListener]:
        """Each listener once."""
        return [self.control] if self.shared else [self.control, self.data]

    def data_port(self) -> int:
        """Return the TCP port of the data flow, 0 for a unix socket: clients use the endpoint of the control flow."""
        address = self.data.address
        return int(address.rpartition(":")[2]) if address.startswith("tcp://") else 0

    def serve(self, control: ControlFlow, data: DataFlow) -> None:
        """Pass received messages to the flows."""
        if self.shared:
            self.control.router.serve(SharedSocket(control, data))
        else:
            self.control.router.serve(control)
            self.data.router.serve(data)

    def silence_data(self, control: ControlFlow) -> None:
        """Drop what comes for the data flow. Messages are still sent on it."""
        self.data.router.serve(SharedSocket(control, SILENCE) if self.shared else SILENCE)

    def bind(self, config: Mtl) -> str:
        """Listen. Returns the address of the control flow. Raises `CannotListen`, with neither open."""
        # The data flow first: replies of the control flow have its port.
        where = config.data_place
        if where is not None:
            self.data.bind(where)
        try:
            return self.control.bind(config.place)
        except CannotListen:
            self.data.unbind()
            raise

    def places(self) -> Sequence[Mapping[str, object]]:
        """Return the rows of open listeners: see `broker.wires.interface.OpenWire.places`."""
        if not self.control.address:
            return []
        data = [] if self.shared else [self.data.place(WIRE, "data")]
        return [self.control.place(WIRE), *data]

    def limit(self, config: Mtl) -> None:
        """Apply other limits of connections."""
        for listener in self.all:
            listener.router.use(config)

    def close(self) -> Deferred[Any]:
        """Close the listeners and all connections. Fires when they are closed."""
        return DeferredList([listener.close() for listener in self.all])
