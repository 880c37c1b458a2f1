"""What is known of one mc0 peer."""

from __future__ import annotations

from typing import Protocol

from broker.core.interfaces import ILease
from broker.core.model import KnownSession
from broker.net.interfaces.router import Sender
from broker.wires.common.topic_rules import TopicRights

MAX_SHOWN = 120
"""Characters of an identity that are shown: the real connector's have about 100."""

MAX_KNOWN_TOPICS = 200
"""Topics, the refused ones included, of a session that outlasts a restart: ten times those of a real node. Bounds what
one SUB of a peer costs the disk."""

MAX_KNOWN_BYTES = 32_768
"""Bytes of their names; a real node's have some 2,000."""


class Wire(Protocol):
    """The side to which a session belongs."""

    def check(self, session: Session, now: float) -> float | None:
        """Do what is due for it."""


class Session:
    """One peer. A receiver of messages (`broker.net.interfaces.router`), and what a lease is held on."""

    __slots__ = (
        "address",
        "connection",
        "dropped",
        "heard",
        "identity",
        "key",
        "key_name",
        "lease",
        "refused",
        "rights",
        "sent",
        "slow",
        "topics",
        "ttl",
        "version",
        "wire",
    )

    def __init__(self, wire: Wire, identity: bytes, sender: Sender, key_name: str, rights: TopicRights) -> None:
        self.wire = wire
        self.identity = identity
        self.address = sender.address
        self.key = sender.key
        self.key_name = key_name
        self.rights = rights
        self.connection = 0
        """The number of its connection; 0 while it has none."""
        self.lease: ILease | None = None
        """None without a TTL, as long as there is a connection."""
        self.version: bytes | None = None
        """What CONNECT said; None before."""
        self.ttl = 0.0
        """Seconds; 0 for none."""
        self.heard = 0.0
        self.sent = 0.0
        """Both in the leases' time."""
        self.topics: dict[bytes, None] = {}
        self.refused: dict[bytes, None] = {}
        """Topics that it asked for and may not have."""
        self.dropped = 0
        self.slow = False
        """True while messages for it are dropped: the log has a line for each time that this begins."""

    def check(self, now: float) -> float | None:
        """Do what is due."""
        return self.wire.check(self, now)

    @property
    def asked(self) -> int:
        """The number of topics that it asked for, and has or may not have."""
        return len(self.topics) + len(self.refused)

    @property
    def lasting(self) -> bool:
        """True if its peer can go on with it after a restart of the broker.

        An identity that begins with a zero byte was made by the ROUTER, and the next broker gives it to another peer.
        """
        return bool(self.ttl or self.asked) and self.asked <= MAX_KNOWN_TOPICS and not self.identity.startswith(b"\0")

    def known(self) -> KnownSession | None:
        """The facts of it that outlast a restart; None for none."""
        topics = (*self.topics, *self.refused)
        if not self.lasting or sum(map(len, topics)) > MAX_KNOWN_BYTES:
            return None
        return KnownSession(self.identity, self.key, self.address, self.ttl, self.version, topics)

    def __str__(self) -> str:
        return shown(self.identity)


def shown(identity: bytes) -> str:
    """An identity, which may be any bytes, for people and logs."""
    text = identity.decode("utf-8", "backslashreplace")
    text = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
    return text if len(text) <= MAX_SHOWN else f"{text[:MAX_SHOWN]}..."
