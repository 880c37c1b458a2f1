"""The wiring of ROUTERs: making one for a wire, opening its listener, closing it."""

from __future__ import annotations

from typing import Any

import attrs
from twisted.internet.defer import Deferred, maybeDeferred, succeed
from twisted.internet.interfaces import IListeningPort
from twisted.logger import Logger

from broker.config.zendpoint import ZEndpoint
from broker.core.interfaces import ILeases
from broker.net.admission import Limits
from broker.net.listen import bound, listen
from broker.net.router.router import Router
from broker.session.router import Conversation


@attrs.define(eq=False)
class RouterListener:
    """A ROUTER and the port where its peers connect. ``address`` is where it is bound, empty before."""

    router: Router
    reactor: Any
    address: str = ""
    port: IListeningPort | None = None
    log = Logger()

    def bind(self, where: ZEndpoint) -> str:
        """Listen. Returns the address, such as ``tcp://127.0.0.1:61616``. Raises `CannotListen`."""
        self.port = self.router.port = listen(self.reactor, where.stream, self.router)
        shown = bound(self.port)
        self.address = f"tcp://{shown}" if hasattr(self.port.getHost(), "port") else f"ipc://{shown}"
        return self.address

    def unbind(self) -> None:
        """Listen no more; connections stay."""
        if self.port is not None:
            maybeDeferred(self.port.stopListening)
        self.port = self.router.port = None
        self.address = ""

    def close(self) -> Deferred[None]:
        """Listen no more, and close all connections in good order. Fires when they are closed."""
        if self.port is None:
            return succeed(None)
        self.unbind()
        return self.router.close()
