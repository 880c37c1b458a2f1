"""The two sides of a link's connection: a ROUTER that listens, and connections to the listeners of other brokers.

Both are connections of `broker.net`, with its scheduler, limits and backpressure; a connection that this broker opens
has the client's side of ZMTP's handshake. Until a connection is introduced by HELLO or WELCOME, it is a stranger: reads
are small, and the deadline of the handshake applies.

CURVE keys of links: the pair of this broker, and the keys of the members that may connect.

The secret key is in a file of the state directory, `KEY_FILE`, which is created at the first start; the public key is
published as `broker.core.cluster.cluster_interfaces.Member.key`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol

import attrs
from nacl.bindings import crypto_box_keypair, crypto_scalarmult_base
from twisted.internet.interfaces import IAddress, IConnector
from twisted.internet.protocol import ClientFactory
from twisted.python.failure import Failure

from broker import curve_keys, small_file
from broker.blocking import blocking
from broker.config.files import BadFile, curve_secret
from broker.core.cluster.cluster_interfaces import Member
from broker.core.errors import Refusal
from broker.net.peer_interfaces import Part
from broker.net.router.router import Router
from broker.net.router.router_peer import RouterPeer
from broker.net.zmtp.frames import FrameLimits
from broker.net.zmtp.machine import Machine, Mechanism

ROUTERS = frozenset((b"ROUTER",))
"""The socket type to which this broker connects."""


class LinkPeer(RouterPeer):
    """A connection of a link. ``neighbour`` is the member at the other end; None while it is unknown. ``attempt`` is
    the attempt that made the connection, if this broker opened it."""

    factory: LinkRouter
    neighbour: Any = None
    attempt: Attempt | None = None

    @property
    def needed(self) -> bool:
        """True for a connection of a known member."""
        return self.neighbour is not None

    def authenticated(self) -> None:
        """Handshake of ZMTP complete. The peer remains a stranger until it is `introduced`."""
        self.factory.ends.opened(self)

    def introduced(self) -> None:
        """Mark the peer as authenticated."""
        super().authenticated()

    def lost(self) -> None:
        """Connection lost or about to close. May be called twice."""
        super().lost()
        self.factory.ends.gone(self)


class OpenedPeer(LinkPeer):
    """A connection that this broker opened."""

    def connection_ready(self) -> None:
        """Connection established: send the signature and version."""
        self.transport.setTcpNoDelay(True)
        self.factory.refusal_log.count(f"{self.factory.wire}_connections", "opened")
        self.write_now(self.machine.begin())


class Ends(Protocol):
    """User of the connections."""

    def opened(self, peer: LinkPeer) -> None:
        """Handle a connection whose handshake is complete."""

    def received(self, peer: LinkPeer, frames: list[Part]) -> None:
        """Handle a message."""

    def gone(self, peer: LinkPeer) -> None:
        """Handle a connection that is lost or about to close. May be called twice."""

    def failed(self, attempt: Attempt, reason: str) -> None:
        """Handle an attempt that did not become a connection."""


class LinkRouter(Router):
    """The connections that other brokers open."""

    ends: Ends
    kind: type[LinkPeer] = LinkPeer

    def use_ends(self, ends: Ends) -> None:
        """Pass all events to ``ends``. To be called before the first connection."""
        self.ends = ends
        self.serve(_Received(self))

    def make(self, host: str, port: int, local: bool, turned_away: Refusal | None) -> LinkPeer:
        """See `ConnectionFactory`."""
        return self.kind(self, host, port, local, turned_away)


class Attempts(LinkRouter):
    """The connections that this broker opens."""

    kind = OpenedPeer
    frame_limits = FrameLimits()
    _next: Mechanism

    def connect(self, attempt: Attempt, host: str, port: int, within: float) -> None:
        """Begin to connect. Either `Ends.failed` or `Ends.gone` follows, the latter with the neighbour set."""
        try:
            attempt.connector = self.clock.connectTCP(host, port, attempt, timeout=within)  # type: ignore[attr-defined]
        except OSError as error:  # an address of IPv6 whose zone this host does not have
            self.ends.failed(attempt, error.strerror or str(error))

    def new_machine(self) -> Machine:
        """See `Router`."""
        return Machine(self._next, "DEALER", self.frame_limits, peers=ROUTERS)

    def let_in(self, peer: RouterPeer, identity: bytes) -> bool:
        """See `Router`. An identity that a listener claims is ignored: the connection is known by its number."""
        return super().let_in(peer, b"")

    def build(self, attempt: Attempt, addr: IAddress | None) -> LinkPeer:
        """Create the protocol of an attempt."""
        self._next = attempt.mechanism
        peer = self.buildProtocol(addr)
        assert isinstance(peer, LinkPeer)
        peer.attempt = attempt
        peer.neighbour = attempt.neighbour
        return peer


class Attempt(ClientFactory):
    """One attempt to connect to a neighbour, with a handshake of its own."""

    noisy = False
    connector: IConnector | None = None

    def __init__(self, attempts: Attempts, neighbour: Any, mechanism: Mechanism) -> None:
        self._attempts = attempts
        self.neighbour = neighbour
        self.mechanism = mechanism
        self.stopped = False
        """The result does not matter any more."""

    def stop(self) -> None:
        """End the attempt, without a report. No-op for an established connection."""
        self.stopped = True
        if self.connector is not None and self.connector.state == "connecting":  # type: ignore[attr-defined]
            self.connector.stopConnecting()

    def buildProtocol(self, addr: IAddress | None) -> LinkPeer | None:  # type: ignore[override]
        return None if self.stopped else self._attempts.build(self, addr)

    def clientConnectionFailed(self, connector: IConnector, reason: Failure) -> None:
        if not self.stopped:
            self._attempts.ends.failed(self, reason.getErrorMessage().rstrip("."))


class _Received:
    """Conversation of a ROUTER that reports the connection of each message."""

    def __init__(self, router: LinkRouter) -> None:
        self._router = router

    def receive(self, identity: bytes, frames: list[Part], connection: int) -> None:
        """See `broker.net.peer_interfaces.Conversation`."""
        peer = self._router.current
        assert isinstance(peer, LinkPeer)
        self._router.ends.received(peer, frames)

    def closed(self, connection: int) -> None:
        """Do nothing: the connection reports its own end."""

    def needs(self, connection: int) -> bool:
        """Return False: only a connection that is not `introduced` is asked about, and it is no link yet."""
        return False

    def room(self, identity: bytes) -> None:
        """Do nothing: nothing waits for room."""


KEY_FILE = "cluster-link.private"
"""Name of the file in the state directory."""


@attrs.frozen
class LinkKey:
    """A pair of keys in Z85."""

    public: str
    secret: str = attrs.field(repr=False)

    @classmethod
    def of(cls, secret: str) -> LinkKey:
        """Return the pair of a secret key in Z85."""
        return cls(curve_keys.encode(crypto_scalarmult_base(curve_keys.decode(secret))), secret)


@blocking
def kept_key(path: str) -> LinkKey:
    """Return the pair whose secret key is in a file. A missing file is created with a new key, readable by its owner.

    Raises OSError with a sentence if the file has no key, or cannot be read or created.
    """
    try:
        if not os.path.lexists(path):
            _create(path)
        return LinkKey.of(curve_secret(Path(path)))
    except BadFile as error:
        raise OSError(f"the key of links in {path}: {error}") from None
    except OSError as error:
        raise OSError(f"the key of links in {path} cannot be created: {error.strerror or error}") from None


@blocking
def _create(path: str) -> None:
    """Create the file, whole or not at all."""
    _, secret = crypto_box_keypair()
    # If the file exists by now, another process was faster: its key counts.
    with suppress(FileExistsError), small_file.written(path, create=True) as file:
        file.write(curve_keys.encode(secret).encode("ascii") + b"\n")


class MemberKeys:
    """The allowed keys: those of the other members that are present."""

    def __init__(self) -> None:
        self.changed: list[Callable[[Collection[str]], object]] = []
        """Callbacks for keys (Z85) that are not allowed any more."""
        self._names: dict[str, set[str]] = {}
        """Names of members by key: members may share a key."""
        self._keys: dict[str, str] = {}

    def name_of(self, key: str) -> str | None:
        """Return the name of a member with that key; None if there is none."""
        names = self._names.get(key)
        return min(names) if names else None

    def set(self, name: str, member: Member | None) -> None:
        """Allow the key of a member, and that key only; None if the member is gone."""
        new = member.key if member is not None else ""
        old = self._keys.pop(name, "")
        if new:
            self._keys[name] = new
            self._names.setdefault(new, set()).add(name)
        if old and old != new:
            names = self._names[old]
            names.discard(name)
            if not names:
                del self._names[old]
                for call in tuple(self.changed):
                    call(frozenset([old]))
