"""State of one registered service (`ServiceEntry`), and of one connection to the ROUTER (`RouterConnection`).

Invariant: an entry and a connection refer to each other, or neither refers to the other.
`broker.wires.dbp.sessions.catalogue` owns the entries, `broker.wires.dbp.sessions.commands` the connections.

Rules of the address of a service, as the hostport for the registry and for probes:
- A service registers its own address. Hermes' services always register 127.0.0.1, which is wrong for clients on other
  machines: a loopback or wildcard address stands for the address from which the service was registered.
- So does a missing address. A missing port becomes 0, to which no client can connect.
- A peer at a unix socket is on this machine, whose address is a loopback one then.

See docs/protocols/dbp.md, "Into the registry".
"""

from __future__ import annotations

from functools import lru_cache
from ipaddress import ip_address
from typing import Protocol

from broker.access.identity import KEPT, LOCAL, is_local, is_unix, joined
from broker.core.interfaces import ILease
from broker.net.peer_interfaces import REQ, Sender
from broker.wires.dbp.codec.dbp_messages import Form
from broker.wires.dbp.codec.listings import Details

Source = tuple[str, int]
"""Source of datagrams: an address and a port."""


class RouterConnection:
    """One connection to the ROUTER, from a message that needs state until its end.

    ``number`` is the ROUTER's. ``form`` is the form of the peer's last time. ``registered`` is true after a
    registration through it, which permits no second one. ``last_sent`` is the time of the last message to it, on the
    clock of the leases. ``beaten`` is true if its service has sent a heartbeat over it.
    """

    __slots__ = ("_entry", "address", "beaten", "form", "identity", "last_sent", "number", "registered", "req")

    def __init__(self, identity: bytes, number: int, sender: Sender) -> None:
        self.identity = identity
        self.number = number
        self.address = sender.address
        self.req = sender.socket_type == REQ
        self.form = Form.TEXT
        self._entry: ServiceEntry | None = None
        self.registered = False
        self.beaten = False
        self.last_sent = 0.0

    @property
    def entry(self) -> ServiceEntry | None:
        """The service for which the peer speaks, while it is registered. Messages to the service use another connection
        if a later heartbeat came over that one."""
        if self._entry is not None and self._entry.removed:
            self._entry = None
        return self._entry

    def bind(self, entry: ServiceEntry) -> None:
        """Use the connection for messages to a service, in place of the one before, which is used again after it."""
        entry.older = entry.connection
        self._entry, entry.connection = entry, self

    @property
    def hermes(self) -> bool:
        """True for a node of Hermes, which needs a frame after the time."""
        return self.req and self.form is Form.FLOAT32

    def release(self) -> None:
        """Unbind the connection from its service.

        The end of a connection does not end its service: ZeroMQ reconnects by itself, and Hermes uses each connection
        once.
        """
        entry, self._entry, self.beaten = self._entry, None, False
        if entry is None:
            return
        if entry.connection is self:
            entry.connection, entry.older = entry.older, None
        elif entry.older is self:
            entry.older = None


class EntryOwner(Protocol):
    """Owner of an entry: the catalogue, which does its periodic work."""

    def check(self, entry: ServiceEntry, now: float) -> float | None:
        """Do the work that is due. Returns the time of the next check; None ends the lease."""

    def confirm(self, entry: ServiceEntry) -> None:
        """Process a check of a doubtful entry that succeeded."""

    def discard(self, entry: ServiceEntry) -> None:
        """Process that nothing listens at the address of a doubtful entry."""


class ServiceEntry:
    """One registered service, the subject of a lease while it is to be checked.

    ``address`` is the address from which it was registered; ``interval`` is in seconds. A service is under *contract*
    if it registered an interval, or has sent a heartbeat: then it must go on sending them. ``heard`` is the time of
    its last sign of life, ``beat_at`` that of the broker's next heartbeat to it, both on the clock of the leases.
    """

    __slots__ = (
        "address",
        "beat_at",
        "connection",
        "contract",
        "details",
        "failures",
        "form",
        "heard",
        "info",
        "interval",
        "lease",
        "liveness",
        "moved",
        "name",
        "older",
        "owner",
        "parted",
        "probing",
        "proved",
        "provider",
        "removed",
        "restored",
        "source",
        "unprobed",
    )

    def __init__(self, owner: EntryOwner, name: str, address: str, info: bytes, details: Details) -> None:
        self.owner = owner
        self.name = name
        self.address = address
        self.info = info
        self.details = details
        self.provider = 0
        self.form = Form.TEXT
        self.contract = False
        self.interval = 0.0
        self.liveness = 0
        self.heard = 0.0
        self.beat_at = 0.0
        self.lease: ILease | None = None
        self.connection: RouterConnection | None = None
        """The connection of its last heartbeat, or the one through which it registered; None after that has ended."""
        self.older: RouterConnection | None = None
        """The one before, while it is open: it is used after the end of the other."""
        self.source: Source | None = None
        """Source of its last datagram."""
        self.parted = False
        """True after a DISCONNECT for an unexpected message: no more messages are sent to it until it registers again.
        It may be alive all the same."""
        self.removed = False
        """True after it has left the catalogue."""
        self.moved = False
        """True after it has registered at another broker of the cluster."""
        self.restored = False
        """True if it was restored after a restart, and has given no sign of life since."""
        self.probing = False
        """True while a probe is unanswered."""
        self.proved = False
        """True if it has ever answered a probe."""
        self.failures = 0
        """Consecutive probes that it has not answered."""
        self.unprobed = ""
        """Reason for which it is not probed: its address is not permitted."""

    @property
    def pace(self) -> float:
        """The interval; see `broker.core.silent_peers.Silent`, as for the members below."""
        return self.interval

    @property
    def patience(self) -> float:
        """The intervals of silence after which it expires, in seconds."""
        return self.liveness * self.interval

    @property
    def providers(self) -> tuple[int, ...]:
        """The id of the service in the registry."""
        return (self.provider,)

    def confirm(self) -> None:
        """Process a check that succeeded."""
        self.owner.confirm(self)

    def discard(self) -> None:
        """Process that nothing listens at the address."""
        self.owner.discard(self)

    def check(self, now: float) -> float | None:
        """Do the work that is due. Returns the time of the next check; None ends the lease."""
        return self.owner.check(self, now)


def hostport(details: Details, address: str) -> str:
    """Return the hostport of a service that was registered from ``address``."""
    return joined(host_of(details, address), details.port or 0)


def host_of(details: Details, address: str) -> str:
    """Return the host of a service that was registered from ``address``."""
    host = details.host
    # A peer that is on loopback itself means this machine by a loopback address, so that it is right as it stands.
    if host is None or _is_wildcard(host) or (is_local(host) and not is_local(address)):
        return LOCAL if is_unix(address) else address
    return host


def probed(details: Details, address: str) -> tuple[str, int] | None:
    """Return the IPv4 address and port for probes of a service; None if it registered no port.

    A host name is not resolved, since that would block all ZeroMQ traffic. Such a service is probed at the address from
    which it was registered.
    """
    if details.port is None:
        return None
    host = host_of(details, address)
    return (host if _version(host) == 4 else address), details.port


@lru_cache(KEPT)
def _is_wildcard(host: str) -> bool:
    try:
        return ip_address(host).is_unspecified
    except ValueError:
        return host == "*"


@lru_cache(KEPT)
def _version(host: str) -> int:
    try:
        return ip_address(host).version
    except ValueError:
        return 0
