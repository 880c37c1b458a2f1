"""The wiring of ROUTERs: making one for a wire, opening its listener, closing it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache, partial
from time import monotonic
from typing import Any, Protocol

import attrs
from nacl.bindings import crypto_scalarmult_base
from twisted.internet.defer import Deferred, succeed
from twisted.internet.interfaces import IListeningPort
from twisted.logger import Logger

from broker import curve
from broker.config.zmq_endpoint import ZEndpoint
from broker.net.admission import Limits
from broker.net.allowed_keys import AllowedKeys
from broker.net.endpoints import bound, close_now, listen
from broker.net.router.gate import Gate
from broker.net.router.router import Router
from broker.net.zmtp.boxes import SODIUM
from broker.net.zmtp.curve import Cookies, CurveServer, Security
from broker.net.zmtp.curve_frames import Sealing
from broker.net.zmtp.limits import Limits as ZmtpLimits
from broker.net.zmtp.mechanism import Mechanism
from broker.net.zmtp.null import Null
from broker.net.zmtp.sealing import SealingError, choose
from broker.wires.common.places import occupied
from broker.wires.interface import Context

log = Logger()


class RouterConfig(Protocol):
    """The keys that a section has for ROUTERs."""

    @property
    def connections(self) -> int: ...
    @property
    def connections_per_address(self) -> int: ...
    @property
    def handshake(self) -> float: ...
    @property
    def stalled_after(self) -> float: ...
    @property
    def high_water(self) -> int: ...
    @property
    def max_message(self) -> int: ...


@attrs.frozen
class RouterSettings:
    """The part of a wire's configuration that its ROUTERs take."""

    connections: int
    connections_per_address: int
    handshake: float
    stalled_after: float
    high_water: int
    max_message: int
    secret_key: str | None = attrs.field(default=None, repr=False)
    """None for the mechanism NULL, else that of CURVE."""

    @classmethod
    def of(cls, config: RouterConfig, secret_key: str | None = None) -> RouterSettings:
        """The part of that configuration; with ``secret_key`` (Z85) for CURVE."""
        return cls(
            config.connections,
            config.connections_per_address,
            config.handshake,
            config.stalled_after,
            config.high_water,
            config.max_message,
            secret_key,
        )

    def limits(self, room: int) -> Limits:
        """The limits of a listener that has descriptors for ``room`` connections."""
        return Limits(
            connections=min(self.connections, room),
            connections_per_address=self.connections_per_address,
            authenticate_within=self.handshake,
            stalled_after=self.stalled_after,
        )


def make_router(wire: str, settings: RouterSettings, keys: AllowedKeys | None, context: Context) -> Router:
    """A ROUTER for the connections that the context has room for. Revoked keys lose their connections.

    Raises OSError if CURVE cannot be sealed as the environment asks.
    """
    mechanism: Callable[[], Mechanism] = partial(Null, as_server=True)
    sealing = None
    if settings.secret_key is not None:
        sealing = _sealing()
        why = f": {sealing.reason}" if sealing.reason else ""
        log.info("{wire}: the sealing of CURVE is {name}{why}", wire=wire, name=sealing.name, why=why)
        secret = curve.decode(settings.secret_key)
        security = Security(SODIUM, sealing, crypto_scalarmult_base(secret), secret)
        mechanism = partial(CurveServer, security, Cookies(SODIUM, monotonic))
    router = Router(
        wire,
        mechanism,
        Gate(wire, keys, context.complaints, context.clock),
        settings.limits(context.room),
        ZmtpLimits.of_frame(settings.max_message),
        context.scheduler,
        context.complaints,
        context.clock,
        settings.high_water,
        sealing,
    )
    if keys is not None:
        keys.changed.append(router.revoke)
    return router


@cache
def _sealing() -> Sealing:
    """The sealing of all ROUTERs, as the environment asks. Raises OSError if it cannot be used.

    It is chosen once: the compiled one has 330 kB of buffers, which one call at a time uses.
    """
    try:
        return choose()
    except SealingError as error:
        raise OSError(str(error)) from None


@attrs.define(eq=False)
class RouterListener:
    """A ROUTER and the port where its peers connect. ``address`` is where it is bound, empty before."""

    router: Router
    reactor: Any
    address: str = ""
    port: IListeningPort | None = None

    def bind(self, where: ZEndpoint) -> str:
        """Listen. Returns the address, such as ``tcp://127.0.0.1:61616``. Raises `CannotListen`."""
        shown = where.where if where.kind == "systemd" else f"{where.kind}://{where.where}"
        port: Any = listen(self.reactor, where.stream, self.router, shown)
        self.port = self.router.port = port
        self.router.at_end = getattr(port.reactor, "at_end", self.router.at_end)
        self.address = f"{'tcp' if hasattr(port.getHost(), 'port') else 'ipc'}://{bound(port)}"
        return self.address

    def place(self, wire: str, name: str | None = None) -> Mapping[str, object]:
        """Return its row of `broker.wires.interface.OpenWire.places`."""
        named = {} if name is None else {"name": name}
        return {"wire": wire, **named, "address": self.address, **occupied(self.router)}

    def unbind(self) -> None:
        """Listen no more; connections stay."""
        if self.port is not None:
            close_now(self.port)
        self.port = self.router.port = None
        self.address = ""

    def close(self) -> Deferred[None]:
        """Listen no more, and close all connections in good order. Fires when they are closed."""
        if self.port is None:
            return succeed(None)
        self.unbind()
        return self.router.close()
