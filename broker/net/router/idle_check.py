"""Idle check of a ROUTER: a PING to silent peers, and a close without an answer.

ZMTP 3.1 introduced PING. Older peers are ended with their host alone (`broker.net.silent_hosts`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection

from twisted.internet.interfaces import IDelayedCall, IReactorTime

from broker.core.errors import Reason, Refusal
from broker.net.router.peer import RouterPeer

IDLE = 120.0
"""Seconds of silence before a PING, and seconds allowed for the answer."""

ASKED = 2
"""The round at which a silent peer gets a PING: it was silent for at least one `IDLE`."""


class IdleCheck:
    """A check of all connections every `IDLE` seconds, while there are any.

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
        """Start the rounds. Idempotent."""
        if self._next is None:
            self._next = self._clock.callLater(IDLE, self._round)

    def stop(self) -> None:
        """Stop the rounds."""
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
