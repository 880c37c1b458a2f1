"""The state of one registered service, and of one connection to the ROUTER."""

from __future__ import annotations

from typing import Protocol

from broker.core.interfaces import ILease
from broker.net.interfaces.router import Sender
from broker.wires.dbp.codec.details import Details
from broker.wires.dbp.codec.times import Form

Source = tuple[str, int]
"""Where datagrams come from: an address and a port."""

_REQ = "REQ"


class Connection:
    """One connection to the ROUTER, from a message that needs state until its end.

    ``number`` is the ROUTER's. ``form`` is the one in which the peer wrote its last time. ``entry`` is the service that
    speaks through it; ``registered`` says that one registered through it, and so none may any more. One that is
    ``deaf`` was sent away, or is not to be trusted: nothing of it is read, nothing is sent to it. ``told`` is the
    leases' time at which it was last sent something.
    """

    __slots__ = ("address", "deaf", "entry", "form", "identity", "number", "registered", "req", "told")

    def __init__(self, identity: bytes, number: int, sender: Sender) -> None:
        self.identity = identity
        self.number = number
        self.address = sender.address
        self.req = sender.socket_type == _REQ
        self.form = Form.TEXT
        self.entry: Entry | None = None
        self.registered = False
        self.deaf = False
        self.told = 0.0

    @property
    def hermes(self) -> bool:
        """Whether this is a node of Hermes, which needs a frame behind the time."""
        return self.req and self.form is Form.FLOAT32

    def release(self) -> None:
        """Separate it from its service.

        The end of a connection is not the end of its service: ZeroMQ connects again by itself, and Hermes uses each
        connection once.
        """
        entry = self.entry
        if entry is not None:
            self.entry, entry.connection, entry.beaten = None, None, False


class Owner(Protocol):
    """Where an entry belongs."""

    def check(self, entry: Entry, now: float) -> float | None:
        """Do what is due for it."""


class Entry:
    """One registered service. A lease is held on it while it is to be looked after.

    ``address`` is where the registration came from; ``interval`` is in seconds. A service is under *contract* when it
    registered an interval, or has sent a heartbeat: then it must go on. ``heard`` is when it last gave a sign of life,
    ``beat_at`` when the broker gives it the next one: both in the leases' time.
    """

    __slots__ = (
        "address",
        "beat_at",
        "beaten",
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
        "name",
        "owner",
        "parted",
        "probing",
        "proved",
        "provider",
        "source",
    )

    def __init__(self, owner: Owner, name: str, address: str, info: bytes, details: Details) -> None:
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
        self.connection: Connection | None = None
        """A DEALER through which it registered, or beats."""
        self.source: Source | None = None
        """Where its last datagram came from."""
        self.beaten = False
        """It has sent a heartbeat over its connection."""
        self.parted = False
        """It was sent away, and is not spoken to until it registers again. It may live for all that."""
        self.probing = False
        self.proved = False
        """It has answered a probe."""
        self.failures = 0
        """Probes in a row that it has not answered."""

    def check(self, now: float) -> float | None:
        """Do what is due."""
        return self.owner.check(self, now)
