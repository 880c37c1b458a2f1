"""The check of a ROUTER for connections whose peers are silent: a PING, and a close if nothing answers it.

Only ZMTP 3.1 has a PING; TCP's own keep-alive covers the other peers.
"""

from __future__ import annotations

from collections.abc import Callable, Collection

from twisted.internet.interfaces import IDelayedCall, IReactorTime

from broker.core.errors import Reason, Refusal
from broker.net.router.peer import RouterPeer

IDLE = 120.0
"""Seconds of silence after which a peer is sent a PING, and seconds that it may take to answer."""

ASKED = 2
"""Rounds at which a silent peer is sent a PING: it was silent for one `IDLE` at least."""


class IdleCheck:
    """A round every `IDLE` seconds over all connections, while there are any.

    A counter in each connection, which input resets, costs less than a timer for each.
    """

    def __init__(
        self,
        clock: IReactorTime,
        peers: Callable[[], Collection[RouterPeer]],
        answer: Callable[[RouterPeer, bytes], object],
    ) -> None:
        self._clock = clock
        self._peers = peers
        self._answer = answer
        self._next: IDelayedCall | None = None

    def start(self) -> None:
        """There is a connection. May be called at any time."""
        if self._next is None:
            self._next = self._clock.callLater(IDLE, self._round)

    def stop(self) -> None:
        """Check no more."""
        if self._next is not None and self._next.active():
            self._next.cancel()
        self._next = None

    def _round(self) -> None:
        """Close connections that were silent for two rounds; send a PING to those that were silent for one."""
        self._next = None
        for peer in list(self._peers()):
            peer.silence += 1
            if peer.silence < ASKED:
                continue
            if peer.silence > ASKED:
                peer.refuse(Refusal(Reason.SILENT, "nothing was heard of it, not even the answer to a PING"))
            elif ping := peer.machine.ping():
                self._answer(peer, ping)
            else:
                peer.silence = 0
        if self._peers():
            self.start()
