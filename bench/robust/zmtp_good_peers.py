"""Good peers on the ZeroMQ wires: each asks something that costs little, and counts the answers that it has read."""

from __future__ import annotations

import json
from collections.abc import Mapping

from bench import zmtp as zmtp_peer
from bench.peers import dbp as dbp_peers
from bench.peers import mtl as mtl_peers
from bench.robust.good_peers import Good
from bench.traffic import Stuck
from bench.zmtp import Frames, Peer

SERVICE = 1
"""The number of the service that DBP is asked for."""


class ZmtpPeer(Good):
    """Sends the same message, and gets answers whose frame number ``at`` is ``answer``."""

    def __init__(self, peer: Peer, asked: Frames, at: int, answer: bytes) -> None:
        super().__init__(peer.sock, peer.encode(asked))
        self._peer = peer
        self._at = at
        self._answer = answer
        if peer.ask(*asked)[at] != answer:
            raise Stuck(f"{asked!r} is not answered by {answer!r}")

    def came(self, sock: object, data: bytes) -> None:
        """Count the answers in what has come."""
        self.pongs += sum(message[self._at] == self._answer for message in self._peer.feed(data))


def mc0_peer(ports: Mapping[str, int]) -> Good:
    """NOOPs with an ID."""
    peer = zmtp_peer.connect(ports["mc0"], b"good")
    peer.ask(b"", b"CONNECT", b"ID", b"0", b"VERSION", b"0.3")
    return ZmtpPeer(peer, [b"", b"NOOP", b"ID", b"1"], 1, b"OK")


def dbp_peer(ports: Mapping[str, int]) -> Good:
    """Requests for one service."""
    dbp_peers.register(ports["dbp"], [dbp_peers.registration(SERVICE)])
    return ZmtpPeer(dbp_peers.client(ports["dbp"]), dbp_peers.request(dbp_peers.name(SERVICE)), 1, b"o_O")


def mtl_peer(ports: Mapping[str, int]) -> Good:
    """The choice of a profile, which is chosen already."""
    return ZmtpPeer(_session(ports), PROFILE, 1, b"200")


class MtlDataPeer(ZmtpPeer):
    """Pings on a data flow; the session on the control flow stays open."""

    def __init__(self, ports: Mapping[str, int]) -> None:
        self._session = _session(ports)
        answer = self._session.ask(*mtl_peers.request("Reader", resources=[mtl_peers.RESOURCE], confirm="none"))
        lease = json.loads(answer[2])["lease"]
        peer = zmtp_peer.connect(ports["mtl-data"], b"")
        if (answer := peer.ask(*mtl_peers.command(mtl_peers.LEASE, 1, lease)))[1] != b"200":
            raise Stuck(f"a lease was answered by {answer!r:.300}")
        super().__init__(peer, [mtl_peers.PING, b""], 0, mtl_peers.PONG)


PROFILE = mtl_peers.request("Profile", profile="test")


def _session(ports: Mapping[str, int]) -> Peer:
    """A session on the control flow, with a profile."""
    peer = zmtp_peer.connect(ports["mtl"], b"")
    for asked in (mtl_peers.OPEN, PROFILE):
        if not (answer := peer.ask(*asked))[1].startswith(b"20"):
            raise Stuck(f"{asked[1]!r} was answered by {answer!r:.300}")
    return peer
