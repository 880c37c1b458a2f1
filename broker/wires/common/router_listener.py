"""Factory and listener of a wire's ROUTER: `make_router` assembles one from its limits, keys and the wire's context,
`RouterListener` binds and closes it.

The ROUTER itself is in `broker.net.router`.

Client keys that a ROUTER admits, by the users file.

Rules:
- The key of a user is admitted, with the user's name.
- Any other key is that of the anonymous user, and admitted while that user has any right there. Without a users file
  these are all keys.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from functools import cache, partial
from time import monotonic
from typing import Any, Protocol, TypeVar

import attrs
from nacl.bindings import crypto_scalarmult_base
from twisted.internet.defer import Deferred, succeed
from twisted.internet.interfaces import IListeningPort
from twisted.logger import Logger

from broker import curve_keys
from broker.access.principal import Access, Principal
from broker.config.endpoint import ZEndpoint
from broker.core.place_table import Pool
from broker.net.connection_limits import RouterLimits
from broker.net.listeners import bound, close_now, listen, occupancy
from broker.net.refusal_log import RefusalLog
from broker.net.router.backlog import BacklogLimits
from broker.net.router.router import KeyGate, Router
from broker.net.scheduler import Scheduler
from broker.net.zmtp.curve import Cookies, CurveServer, Security
from broker.net.zmtp.curve_frames import Sealing
from broker.net.zmtp.frames import FrameLimits
from broker.net.zmtp.helpers import FRAMING
from broker.net.zmtp.machine import Mechanism, Null
from broker.net.zmtp.sealing import SODIUM, SealingError, choose

log = Logger()

R = TypeVar("R", bound=Router)


class ClientKeys(Protocol):
    """The admitted client keys, which change. ``changed`` has callbacks for keys (Z85) that are no longer admitted."""

    changed: list[Callable[[Collection[str]], object]]

    def name_of(self, key: str) -> str | None:
        """Return the name of a key (Z85), or None if it is not allowed."""


class RouterContext(Protocol):
    """The environment of a ROUTER, such as `broker.wires.interface.NetworkParts`."""

    @property
    def pool(self) -> Pool: ...
    @property
    def scheduler(self) -> Scheduler: ...
    @property
    def refusal_log(self) -> RefusalLog: ...
    @property
    def clock(self) -> Any: ...


def make_router(
    wire: str, limits: RouterLimits, secret_key: str | None, keys: ClientKeys | None, context: RouterContext
) -> Router:
    """Return a ROUTER, whose connections take descriptors of the context's pool. Those of revoked keys are closed.

    ``secret_key`` (Z85) is the key of the mechanism CURVE; None selects the mechanism NULL. ``keys`` are the allowed
    client keys; None allows any. Raises OSError if the implementation of CURVE's encryption that the environment
    selects is not available.
    """
    return make_kind(Router, wire, limits, secret_key, keys, context)


def make_kind(
    kind: type[R],
    wire: str,
    limits: RouterLimits,
    secret_key: str | None,
    keys: ClientKeys | None,
    context: RouterContext,
) -> R:
    """Return a ROUTER of the class ``kind``; see `make_router`."""
    mechanism: Callable[[], Mechanism] = partial(Null, as_server=True)
    sealing = None
    if secret_key is None:
        why = f": {FRAMING.reason}" if FRAMING.reason else ""
        log.info("{wire}: ZMTP messages by {name}{why}", wire=wire, name=FRAMING.name, why=why)
    else:
        security = make_security(secret_key)
        sealing = security.sealing
        why = f": {sealing.reason}" if sealing.reason else ""
        log.info("{wire}: CURVE encryption by {name}{why}", wire=wire, name=sealing.name, why=why)
        mechanism = partial(CurveServer, security, Cookies(SODIUM, monotonic))
    router = kind(
        wire,
        mechanism,
        KeyGate(wire, keys, context.refusal_log, context.clock),
        limits.connection_limits(),
        FrameLimits.of_frame(limits.max_message),
        context.scheduler,
        context.refusal_log,
        context.clock,
        BacklogLimits(messages=limits.high_water),
        sealing,
        context.pool,
    )
    if keys is not None:
        keys.changed.append(router.revoke)
    return router


def make_security(secret_key: str) -> Security:
    """Return the keys and the encryption of CURVE for a secret key in Z85. Raises OSError as `make_router`."""
    secret = curve_keys.decode(secret_key)
    return Security(SODIUM, _sealing(), crypto_scalarmult_base(secret), secret)


@cache
def _sealing() -> Sealing:
    """Return the sealing that the environment selects, one for all ROUTERs. Raises OSError if it is not available.

    It is cached, because the compiled one has 330 kB of buffers, which only one call at a time uses.
    """
    try:
        return choose()
    except SealingError as error:
        raise OSError(str(error)) from None


@attrs.define(eq=False)
class RouterListener:
    """A ROUTER and the port where its peers connect. ``address`` is the bound address, empty before."""

    router: Router
    reactor: Any
    address: str = ""
    port: IListeningPort | None = None

    def bind(self, where: ZEndpoint) -> str:
        """Listen at ``where``. Returns the address, such as ``tcp://127.0.0.1:61616``. Raises `CannotListen`."""
        shown = where.where if where.kind == "systemd" else f"{where.kind}://{where.where}"
        port: Any = listen(self.reactor, where.stream, self.router, self.router.turns.proxies, shown)
        self.port = port
        order = self.router.order
        # Only the broker's own reactor can run calls at the end of an iteration.
        order.at_end = getattr(port.reactor, "at_end", order.at_end)
        self.address = f"{'tcp' if hasattr(port.getHost(), 'port') else 'ipc'}://{bound(port)}"
        return self.address

    def place(self, wire: str, name: str | None = None) -> Mapping[str, object]:
        """Return its row of `broker.wires.interface.OpenWire.listener_rows`."""
        named = {} if name is None else {"name": name}
        return {"wire": wire, **named, "address": self.address, **occupancy(self.router)}

    def unbind(self) -> None:
        """Stop listening; connections remain."""
        if self.port is not None:
            close_now(self.port)
        self.port = None
        self.address = ""

    def close(self) -> Deferred[None]:
        """Stop listening, and close all connections in order. Fires when they are closed."""
        if self.port is None:
            return succeed(None)
        self.unbind()
        return self.router.close()


Changed = Callable[[Collection[str]], object]
"""Is called with the keys (Z85) that are no longer admitted, or have another name."""


@attrs.frozen
class _Admitted:
    """The keys that are admitted at one moment."""

    users: Mapping[str, str]
    others: bool
    """True if keys without a user are admitted too."""

    def name_of(self, key: str) -> str | None:
        return self.users.get(key, "" if self.others else None)


@attrs.frozen
class _Gone(Collection[str]):
    """The keys with a name before, and another one or none now. There are endless ones without a user, which only
    membership shows."""

    before: _Admitted
    now: _Admitted

    def __contains__(self, key: object) -> bool:
        assert isinstance(key, str)
        name = self.before.name_of(key)
        return name is not None and self.now.name_of(key) != name

    def __iter__(self) -> Iterator[str]:
        return (key for key in {**self.before.users, **self.now.users} if key in self)

    def __len__(self) -> int:
        return sum(1 for _ in self)


class KnownKeys:
    """The admitted keys of a ROUTER, which is the listener, or listeners, with these titles in the users file."""

    def __init__(self, access: Access, *titles: str) -> None:
        self.changed: list[Changed] = []
        """Callbacks for changes."""
        self._access = access
        self._titles = titles
        self._admitted = self._look()
        access.changed.append(self._review)

    def name_of(self, key: str) -> str | None:
        """Return the user of a key (Z85), empty for the anonymous one; None if the key is not admitted."""
        return self._admitted.name_of(key)

    def use(self, *titles: str) -> None:
        """Take other listeners of the users file."""
        self._titles = titles
        self._review()

    def _look(self) -> _Admitted:
        others = any(self._access.grants(Principal(), title).some for title in self._titles)
        return _Admitted(dict(self._access.keys), others)

    def _review(self) -> None:
        before, self._admitted = self._admitted, self._look()
        if before != self._admitted:
            gone = _Gone(before, self._admitted)
            for call in tuple(self.changed):
                call(gone)
