"""A ROUTER: the connections of a wire, each with its identity, and the output of each.

Meaning (`broker.net.interfaces.router` has the interface):
- A peer is let in at the end of its handshake: it gets a number and its identity (`identities`), and may be sent
  messages from then on, before it says anything.
- `Conversation.closed` is called once for each connection that was let in. When a connection is replaced it is called
  at once, and nothing of that connection is received any more.
- A message is encoded once, however many receive it, and the same bytes object waits for all of them. With CURVE it is
  sealed for each.
- Output is gathered for a turn of the reactor. At its end the messages before the first answer of each connection are
  written first; then, in the order of their first answers, the rest of those with answers. As a connection is
  written before its input is handled again, a message is not later than the answer to the request that caused it.
- `HIGH_WATER` messages, and `BACKLOG` bytes, may wait for a peer that does not read; more are refused (`Sent.FULL`).
  Answers may go beyond the number by `ANSWERS`. One message may wait, however long it is.
- All messages that wait for peers which do not read have `WAITING` bytes together; beyond, each of these peers may
  have its share only.
- A connection of which nothing was heard for `IDLE` seconds is sent a PING, where it speaks ZMTP 3.1, and closed after
  as long again. TCP's own keep-alive covers the others.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable, Sequence
from struct import Struct

from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IDelayedCall, IReactorTime

from broker.core.errors import Reason, Refusal
from broker.net.admission import ConnectionFactory
from broker.net.connection_states import BLOCKED
from broker.net.interfaces.limits import ConnectionLimits
from broker.net.interfaces.router import NUMBER, Conversation, N, Part, R, Sender, Sent
from broker.net.rate_limits import Complaints
from broker.net.router.gate import Gate
from broker.net.router.identities import Identities
from broker.net.router.peer import APART, RouterPeer
from broker.net.scheduler import TURN, Turns
from broker.net.zmtp.curve_frames import Sealing
from broker.net.zmtp.frames import HEADER, LONG_HEADER, SHORT, message, pieces
from broker.net.zmtp.limits import FrameLimits
from broker.net.zmtp.machine import Machine
from broker.net.zmtp.mechanism import Mechanism

HIGH_WATER = 1_000
"""Messages that may wait for one peer; libzmq's own default."""

ANSWERS = 100
"""Answers that may wait beyond that: real peers wait for an answer before they ask again, and have one."""

LARGE = 64 * 1024
"""Bytes from which a message is written at once where it can be, instead of at the end of the turn."""

BACKLOG = 64 * 1024 * 1024
"""Bytes that may wait for one peer: a thousand messages of just under `LARGE`."""

WAITING = 256 * 1024 * 1024
"""Bytes that may wait for all peers which do not read. Shared bytes count for each."""

SEALED = 4 * 1024 * 1024
"""Bytes that are sealed before they are written: one message of 16 MiB for a hundred peers would be 1.6 GB."""

IDLE = 120.0
"""Seconds of silence after which a peer is asked if it is there, and seconds that it may take to answer."""

ASKED = 2
"""Looks at which a silent peer is asked: it was silent for one `IDLE` at least."""

BETWEEN = 16
"""Connections that are written between two looks at the clock: some 50 µs."""

PEERS = frozenset((b"DEALER", b"REQ", b"ROUTER"))
"""The socket types that talk to a ROUTER (RFC 28)."""

Claim = Callable[[bytes, str], bool]
"""Says if a peer with that key (Z85, or empty) may have that identity."""

_pack = Struct(">Q").pack


class Silence:
    """The conversation of a ROUTER that is being closed: nothing is received any more."""

    def receive(self, identity: bytes, frames: list[Part], connection: int) -> None:
        """See `Conversation`."""

    def closed(self, connection: int) -> None:
        """See `Conversation`."""

    def room(self, identity: bytes) -> None:
        """See `Conversation`."""


SILENCE = Silence()


class Router(ConnectionFactory):
    """The connections of one wire. ``mechanism`` makes the server side of a handshake, ``sealing`` is that of CURVE.

    Nothing may connect before `serve`.
    """

    conversation: Conversation

    def __init__(
        self,
        wire: str,
        mechanism: Callable[[], Mechanism],
        gate: Gate,
        limits: ConnectionLimits,
        zmtp: FrameLimits,
        turns: Turns,
        complaints: Complaints,
        clock: IReactorTime,
        high_water: int = HIGH_WATER,
        sealing: Sealing | None = None,
    ) -> None:
        super().__init__(wire, limits, turns, complaints, clock)
        self._mechanism = mechanism
        self._gate = gate
        self._zmtp = zmtp
        self.high_water = high_water
        self._sealing = sealing
        self.current: RouterPeer | None = None
        """The peer whose message is being received."""
        self._peers: Identities[RouterPeer] = Identities()
        self._last = 0
        self._fanned: deque[RouterPeer] = deque()
        """Connections with something to be written."""
        self._answered: deque[RouterPeer] = deque()
        """Those of them that are written last."""
        self._scheduled = False
        self.at_end: Callable[[Callable[[], object]], bool] = lambda call: False
        """Makes a call at the end of a round of reads, or returns False; see `Streams.at_end`."""
        self._slow: set[RouterPeer] = set()
        """Connections whose peers do not read."""
        self._waiting = 0
        """Bytes that wait for these."""
        self._idle: IDelayedCall | None = None

    def serve(self, conversation: Conversation, claim: Claim = lambda identity, key: True) -> None:
        """Hand messages to ``conversation`` from now on.

        ``claim`` is asked if a peer may have an identity that no connection has: sessions may outlast connections.
        """
        self.conversation = conversation
        self._claim = claim

    # from connections

    def make(self, host: str, port: int, local: bool, turned_away: Refusal | None) -> RouterPeer:
        """See `ConnectionFactory`."""
        return RouterPeer(self, host.removeprefix("::ffff:") if "." in host else host, port, local, turned_away)

    def new_machine(self) -> Machine:
        """The state machine of a new connection."""
        return Machine(self._mechanism(), "ROUTER", self._zmtp, peers=PEERS)

    def let_in(self, peer: RouterPeer, identity: bytes) -> bool:
        """Decide on the claim of a peer, whose key is verified. Returns False if it is refused, for now."""
        if not self._gate.admits(peer.key, peer.host):
            return False
        if not identity:
            identity = self._peers.generate()
        elif not self._peers.may_take(identity, peer) or (
            identity not in self._peers and not self._claim(identity, peer.key)
        ):
            text = f"the identity {identity!r} belongs to another peer"
            self.complaints.add(self.wire, peer.host, Refusal(Reason.IDENTITY_TAKEN, text))
            return False
        older = self._peers.get(identity)
        if older is not None:
            self._replace(older)
        self._last += 1
        peer.number = self._last
        peer.identity = identity
        self._peers[identity] = peer
        self._look_for_idle()
        return True

    def left(self, peer: RouterPeer) -> None:
        """A connection is gone, or is being closed."""
        self._slow.discard(peer)
        self._weigh(peer, 0)
        if peer.number:
            if self._peers.get(peer.identity) is peer:
                del self._peers[peer.identity]
            number, peer.number = peer.number, 0
            try:
                self.conversation.closed(number)
            except Exception:  # a defect, which must not keep the connection from being closed
                peer.failed()

    def answer(self, peer: RouterPeer, data: bytes) -> Sent:
        """Send octets that a peer has asked for, behind the output that waits for it."""
        out = peer.out
        if (peer.output is BLOCKED or len(out) >= self.high_water) and not self._has_room(peer, len(data), ANSWERS):
            return Sent.FULL
        if not peer.replied:
            peer.replied = True
            peer.ahead = len(out)
            self._answered.append(peer)
            if not self._scheduled:
                self._flush_soon()
        out.append(data)
        return Sent.SENT

    def weigh(self, peer: RouterPeer) -> None:
        """A peer stopped reading."""
        self._slow.add(peer)
        self._weigh(peer, sum(map(len, peer.out)))

    def resumed(self, peer: RouterPeer) -> None:
        """A peer reads again."""
        self._slow.discard(peer)
        self.flush_one(peer)

    def relieved(self, peer: RouterPeer) -> None:
        """A peer has read something, or more waits for one that does not read."""
        self._weigh(peer, sum(map(len, peer.out)) if peer.output is BLOCKED else 0)
        if peer.full and len(peer.out) - peer.bodies <= self.high_water // 2 and peer.weight <= self._share() // 2:
            peer.full = False
            try:
                self.conversation.room(peer.identity)
            except Exception:  # a defect, which must not end the flush of all connections
                peer.failed()

    # from sessions

    def send(self, identity: bytes, frames: Sequence[Part]) -> Sent:
        """See `broker.net.interfaces.router.Router`."""
        peer = self._peers.get(identity)
        if peer is None:
            return Sent.GONE
        out = peer.out
        if (peer.output is BLOCKED or len(out) >= self.high_water) and not self._has_room(
            peer, sum(map(len, frames)), 0
        ):
            return Sent.FULL
        if not out:
            self._fanned.append(peer)
            if not self._scheduled:
                self._flush_soon()
        if self._sealing is None and len(frames[-1]) >= APART:
            out += pieces(frames)
            peer.bodies += 1
        else:
            out.append(peer.encoder.message(frames))
        return Sent.SENT

    def reply(self, identity: bytes, frames: Sequence[Part]) -> Sent:
        """See `broker.net.interfaces.router.Router`."""
        peer = self._peers.get(identity)
        if peer is None:
            return Sent.GONE
        return self.answer(peer, peer.encoder.message(frames))

    def send_all(self, receivers: Collection[R], frames: Sequence[Part], now: float) -> list[tuple[R, Sent]]:
        """See `broker.net.interfaces.router.Router`."""
        if self._sealing is not None:
            size = sum(map(len, frames))
            failed: list[tuple[R, Sent]] = []
            for part in _parts(receivers, size):
                ready = self._ready_for(part, size, failed)
                sealed = self._sealing.seal_all([peer.encoder for _, peer in ready], frames)
                self._queue_sealed(ready, sealed, now)
            return failed
        body = b""
        if len(frames[-1]) < APART:
            data = message(frames)
        else:
            data, body = pieces(frames)
        size = len(data) + len(body)
        failed = []
        fanned = self._fanned
        # A large message is written before the next one comes.
        brink = self.high_water if size < LARGE else 1
        find = self._peers.get
        for receiver in receivers:
            peer = find(receiver.identity)
            if peer is None:
                failed.append((receiver, Sent.GONE))
                continue
            out = peer.out
            if not out:
                fanned.append(peer)
            elif len(out) >= brink or peer.output is BLOCKED:
                # A peer that was full stays so until it has read half: a slow one costs the others one look each.
                if peer.full or not self._has_room(peer, size, 0):
                    failed.append((receiver, Sent.FULL))
                    continue
                if not out:  # it was written
                    fanned.append(peer)
            out.append(data)
            if body:
                out.append(body)
                peer.bodies += 1
            receiver.sent = now
        if fanned and not self._scheduled:
            self._flush_soon()
        return failed

    def send_each(
        self, receivers: Collection[N], frame: bytes, at: int, body: Part, now: float
    ) -> list[tuple[N, Sent]]:
        """See `broker.net.interfaces.router.NumberingRouter`."""
        if self._sealing is not None:
            size = len(frame) + len(body)
            failed: list[tuple[N, Sent]] = []
            for receiver in receivers:
                receiver.sequence += 1
            for part in _parts(receivers, size):
                ready = self._ready_for(part, size, failed)
                encoders, numbers = [peer.encoder for _, peer in ready], [each.sequence for each, _ in ready]
                self._queue_sealed(ready, self._sealing.seal_each(encoders, frame, at, numbers, body), now)
            return failed
        head, _ = pieces((frame, body))
        at += HEADER if len(frame) < SHORT else LONG_HEADER
        head, tail = head[:at], head[at + NUMBER :]
        apart = len(body) >= APART
        if not apart:
            tail += body
        size = len(head) + NUMBER + len(tail) + (len(body) if apart else 0)
        failed = []
        fanned = self._fanned
        brink = self.high_water if size < LARGE else 1
        find = self._peers.get
        for receiver in receivers:
            receiver.sequence = sequence = receiver.sequence + 1
            peer = find(receiver.identity)
            if peer is None:
                failed.append((receiver, Sent.GONE))
                continue
            out = peer.out
            if not out:
                fanned.append(peer)
            elif len(out) >= brink or peer.output is BLOCKED:
                # A peer that was full stays so until it has read half: a slow one costs the others one look each.
                if peer.full or not self._has_room(peer, size, 0):
                    failed.append((receiver, Sent.FULL))
                    continue
                if not out:
                    fanned.append(peer)
            out.append(head + _pack(sequence) + tail)
            if apart:
                out.append(body)
                peer.bodies += 1
            receiver.sent = now
        if fanned and not self._scheduled:
            self._flush_soon()
        return failed

    def sender(self) -> Sender:
        """See `broker.net.interfaces.router.Router`."""
        peer = self.current
        assert peer is not None
        return Sender(peer.host, peer.key, peer.socket_type)

    def key(self) -> str:
        """See `broker.net.interfaces.router.Router`."""
        assert self.current is not None
        return self.current.key

    # from the operator

    def close(self) -> Deferred[None]:
        """See `ConnectionFactory`. The ends of connections are not reported: sessions outlast the broker."""
        self.conversation = SILENCE
        if self._idle is not None and self._idle.active():
            self._idle.cancel()
        self._idle = None
        self.flush()
        return super().close()

    def revoke(self, keys: Collection[str]) -> None:
        """These client keys (Z85) are not allowed any more: close their connections."""
        for peer in [each for each in self._peers.values() if each.key in keys]:
            peer.refuse(Refusal(Reason.KEY_NOT_ALLOWED, "the key of this connection was revoked"))

    # from the scheduler

    def flush(self) -> None:
        """Write the output of this turn of the reactor, within the quantum of a turn."""
        self._scheduled = False
        if self.turns.first:
            self.turns.flush_first()
        end = self.clock.seconds() + TURN
        fanned, answered = self._fanned, self._answered
        count = BETWEEN
        try:
            while fanned or answered:
                if fanned:
                    self._flush_next()
                else:
                    answered.popleft().flush()
                count -= 1
                if not count:
                    count = BETWEEN
                    if self.clock.seconds() >= end:
                        return
        finally:
            # The time is over, or a defect was met, which is not to cost the other connections anything.
            if (fanned or answered) and not self._scheduled:
                self._flush_soon()

    def flush_one(self, peer: RouterPeer) -> None:
        """Write the output of one peer now, and before it the messages that must not be later than an answer to it."""
        while peer.replied and (self._fanned or self._answered):
            self._flush_next()
        peer.flush()

    def abort(self) -> None:
        """See `broker.net.scheduler.Gathering`: a defect met in a flush costs no connection."""

    # inside

    def _flush_next(self) -> None:
        if not self._fanned:
            self._answered.popleft().flush()
            return
        peer = self._fanned.popleft()
        if not peer.replied:
            peer.flush()
        elif peer.ahead:
            peer.flush_ahead()

    def _flush_soon(self) -> None:
        self._scheduled = True
        if not self.at_end(self.flush):
            self.turns.flush_later(self)

    def _ready_for(
        self, receivers: Collection[R], size: int, failed: list[tuple[R, Sent]]
    ) -> list[tuple[R, RouterPeer]]:
        """The receivers that a message of that size can be sealed for, with their connections; ``failed`` gets others.

        Sealed messages are not shared, so that large ones are refused to any peer while too many bytes wait.
        """
        ready: list[tuple[R, RouterPeer]] = []
        large = size >= LARGE
        brink = 1 if large else self.high_water
        for receiver in receivers:
            peer = self._peers.get(receiver.identity)
            if peer is None:
                failed.append((receiver, Sent.GONE))
            elif (peer.output is BLOCKED or len(peer.out) >= brink) and not self._has_room(peer, size, 0):
                failed.append((receiver, Sent.FULL))
            elif large and self._waiting + size > WAITING and size > WAITING // (len(self._slow) + 1):
                failed.append((receiver, Sent.FULL))
                peer.full = True
                self._fanned.append(peer)  # which tells it that there is room, when there is
            else:
                ready.append((receiver, peer))
        return ready

    def _queue_sealed(self, ready: Sequence[tuple[R, RouterPeer]], sealed: Sequence[bytes], now: float) -> None:
        """Let sealed messages wait for the end of the turn; large ones are written at once, and the rest is weighed."""
        fanned = self._fanned
        for (receiver, peer), data in zip(ready, sealed, strict=True):
            if not peer.out:
                fanned.append(peer)
            peer.out.append(data)
            receiver.sent = now
        if sealed and len(sealed[0]) >= LARGE:
            for _, peer in ready:
                self.flush_one(peer)
        if fanned and not self._scheduled:
            self._flush_soon()

    def _has_room(self, peer: RouterPeer, size: int, extra: int) -> bool:
        """Return True if a message of that size may wait for a peer which does not read, or for which many wait.

        An answer may be one of ``extra`` more; the peer gets no `Conversation.room` for it.
        """
        if peer.output is not BLOCKED:
            self.flush_one(peer)
            if peer.output is not BLOCKED:
                return True
        waits = peer.weight + size
        one = not peer.out and self._waiting + size <= WAITING
        if not one and (len(peer.out) - peer.bodies >= self.high_water + extra or waits > self._share(size)):
            if not extra:
                peer.full = True
            return False
        self._weigh(peer, waits)
        return True

    def _share(self, size: int = 0) -> int:
        """Bytes that may wait for a peer which does not read, where ``size`` more are to wait."""
        if self._waiting + size <= WAITING:
            return BACKLOG
        return min(BACKLOG, WAITING // max(len(self._slow), 1))

    def _weigh(self, peer: RouterPeer, weight: int) -> None:
        self._waiting += weight - peer.weight
        peer.weight = weight

    def _replace(self, older: RouterPeer) -> None:
        """Another connection has the identity of this one."""
        older.refuse(Refusal(Reason.REPLACED, "another connection of the same peer took over its identity"))

    def _look_for_idle(self) -> None:
        if self._idle is None:
            self._idle = self.clock.callLater(IDLE, self._end_idle)

    def _end_idle(self) -> None:
        """Close connections of which nothing was heard for two rounds; ask those that were silent for one."""
        self._idle = None
        for peer in list(self._peers.values()):
            peer.silence += 1
            if peer.silence < ASKED:
                continue
            if peer.silence > ASKED:
                peer.refuse(Refusal(Reason.SILENT, "nothing was heard of it, not even the answer to a PING"))
            elif ping := peer.machine.ping():
                self.answer(peer, ping)
            else:
                peer.silence = 0
        if self._peers:
            self._look_for_idle()


def _parts(receivers: Collection[R], size: int) -> Iterable[Collection[R]]:
    """The receivers of a message, as many at a time as may have a sealed one of that size each, of `SEALED` bytes."""
    count = max(1, SEALED // max(1, size))
    if len(receivers) <= count:
        return (receivers,)
    all_of_them = list(receivers)
    return (all_of_them[first : first + count] for first in range(0, len(all_of_them), count))
