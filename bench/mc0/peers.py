"""Messages of mc0 peers before a benchmark begins."""

from __future__ import annotations

from collections.abc import Sequence

from bench.common.traffic import Stuck
from bench.mc0.servers import Mc0Server
from bench.zmtp.peer import Peer, connect

TOPIC = b"mcollective bench"
"""The topic of all messages."""


def opened(server: Mc0Server, identity: bytes) -> Peer:
    """A peer that has said CONNECT."""
    peer = connect(server.port, identity, server.key)
    expect(peer.ask(b"", b"CONNECT", b"ID", b"0", b"VERSION", b"0.3"), b"0")
    return peer


def subscribed(server: Mc0Server, identity: bytes) -> Peer:
    """A peer that gets what is published to `TOPIC`."""
    peer = opened(server, identity)
    expect(peer.ask(b"", b"SUB", b"ID", b"1", b"", TOPIC), b"1")
    return peer


def expect(answer: Sequence[bytes], number: bytes) -> None:
    """Raises `Stuck` unless this is the OK for the command with that ID."""
    if list(answer) != [b"", b"OK", b"ID", number]:
        raise Stuck(f"{answer!r:.300} is no OK for {number!r}")
