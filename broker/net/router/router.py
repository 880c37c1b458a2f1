"""A ROUTER (ZeroMQ's socket type for servers): the connections of a wire, each with its identity.

Rules (`broker.net.peer_interfaces` has the interface to the sessions):
- A peer is admitted at the end of its handshake: it gets a number and its identity, and may receive
  messages from then on, before it sends any.
- `Conversation.closed` is called once for each admitted connection. For a replaced connection the call is immediate,
  and no further input of it is received.

Read on in `router_peer` (one connection, its queue and the table of identities) and `fan_out` (one message to many, and
the order of output).

The file is longer than others: its methods change the table of peers of one socket.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any, Protocol

import attrs
from twisted.internet.defer import CancelledError, Deferred
from twisted.internet.interfaces import IDelayedCall, IReactorTime
from twisted.python.failure import Failure

from broker.access.identity import network_of, owner_of
from broker.core.errors import Reason, Refusal
from broker.core.place_table import Pool
from broker.core.rates import LINE_EVERY, Rates
from broker.net.admission import DISCONNECTED, ConnectionFactory, TapSeen
from broker.net.connection import StreamConnection
from broker.net.connection_limits import ConnectionLimits, RouterLimits
from broker.net.connection_states import BLOCKED
from broker.net.peer_interfaces import NUMBER, Conversation, N, Part, R, Sender, Sent
from broker.net.refusal_log import RefusalLog
from broker.net.router.backlog import ANSWERS, APART, LARGE, Backlog, BacklogLimits
from broker.net.router.fan_out import FanOut, FlushOrder
from broker.net.router.router_peer import GENERATED, Identities, RouterPeer
from broker.net.scheduler import Scheduler
from broker.net.zmtp.curve_frames import Sealing
from broker.net.zmtp.frames import FrameLimits, pieces
from broker.net.zmtp.machine import Machine, Mechanism

# Admission by client key: the decision on a peer's claim at the end of its handshake.
#
# Rules:
# - A key that is not allowed is refused *for now*, since an operator may add it. The peer gets no reply, its handshake
#   times out, and libzmq retries by itself; an immediate close would make it retry ten times a second.
# - A refused key is logged once a minute, so that a farm behind one address can be enrolled from the log. At most
#   `KEYS_LOGGED` keys of one address are logged, so that endless new keys cannot flood it.

KEYS_LOGGED = 20
"""Refused keys of one address logged per minute."""


class AllowList(Protocol):
    """The allow-list of client keys."""

    def name_of(self, key: str) -> str | None:
        """The name of a key (Z85), or None if it is not allowed."""


class KeyGate:
    """The admission rule of one wire. ``keys`` is the allow-list; None admits any key, and peers without one."""

    def __init__(self, wire: str, keys: AllowList | None, refusal_log: RefusalLog, clock: IReactorTime) -> None:
        self._wire = wire
        self._keys = keys
        self._refusal_log = refusal_log
        self._due: Rates[tuple[str, str]] = Rates(clock.seconds)
        self._shown: Rates[str] = Rates(clock.seconds)

    def owner(self, key: str, address: str) -> str:
        """Return the owner of the identities of a peer with that key (Z85, or empty): see `broker.access.identity`."""
        name = None if self._keys is None else self._keys.name_of(key)
        return owner_of(name or "", address, key)

    def admits(self, key: str, address: str) -> bool:
        """Return True if a peer with that key (Z85) is admitted. A refusal is counted, and logged within the rate
        limit."""
        if self._keys is None or self._keys.name_of(key) is not None:
            return True
        # A key logged in the last minute costs no token of the address.
        if self._due.take((address, key), 1 / LINE_EVERY, 1) and self._shown.take(
            network_of(address), KEYS_LOGGED / LINE_EVERY, KEYS_LOGGED
        ):
            refusal = Refusal(Reason.KEY_NOT_ALLOWED, "this client key is not allowed")
            self._refusal_log.add(self._wire, f"{address} with key {key}", refusal)
        else:
            self._refusal_log.count(f"{self._wire}_refused", Reason.KEY_NOT_ALLOWED.code)
        return False


# Idle check of a ROUTER: a PING to silent peers, and a close without an answer.
#
# ZMTP 3.1 introduced PING. Older peers are ended with their host alone (`broker.net.silent_hosts`).

IDLE = 120.0
"""Seconds of silence before a PING, and seconds allowed for the answer."""

ASKED = 2
"""The round at which a silent peer gets a PING: it was silent for at least one `IDLE`."""


Each = Callable[[Iterable[RouterPeer], Callable[[RouterPeer], object]], Deferred[None]]
"""`ConnectionFactory.each`."""


class IdleCheck:
    """A check of all connections, which begins `IDLE` seconds after the last one, while there are any.

    A counter in each connection, which input resets, costs less than a timer for each. The check of many connections
    takes several turns of the reactor.
    """

    def __init__(
        self,
        clock: IReactorTime,
        peers: Callable[[], Collection[RouterPeer]],
        answer: Callable[[RouterPeer, bytes], object],
        each: Each,
    ) -> None:
        self._clock = clock
        self._peers = peers
        self._answer = answer
        self._each = each
        self._next: IDelayedCall | None = None
        self._round: Deferred[None] | None = None
        """The round in progress."""

    def start(self) -> None:
        """Start the rounds. Idempotent."""
        if self._next is None and self._round is None:
            self._next = self._clock.callLater(IDLE, self._begin)

    def stop(self) -> None:
        """Stop the rounds."""
        if self._next is not None and self._next.active():
            self._next.cancel()
        self._next = None
        if self._round is not None:
            self._round.cancel()

    def _begin(self) -> None:
        self._next = None
        self._round = self._each(list(self._peers()), self._check)
        self._round.addCallbacks(self._end, self._stopped)

    def _check(self, peer: RouterPeer) -> None:
        """Close a connection that was silent for two rounds; send a PING to one that was silent for one."""
        if not peer.number:
            return  # it has left since the round began
        peer.silence += 1
        if peer.silence < ASKED:
            return
        if peer.silence > ASKED:
            peer.refuse(Refusal(Reason.SILENT, "nothing was heard of it, not even the answer to a PING"))
        elif ping := peer.machine.ping():
            self._answer(peer, ping)
        else:
            peer.silence = 0

    def _end(self, _: None) -> None:
        self._round = None
        if self._peers():
            self.start()

    def _stopped(self, failure: Failure) -> None:
        failure.trap(CancelledError)
        self._round = None


# Tap of the output of a ROUTER: copies of the messages to some of its peers, before they are encoded.
#
# It shadows the methods by which sessions send, in this one object and until it is removed. A ROUTER without a tap has
# neither a check nor a call for it.

METHODS = ("send", "reply", "send_all", "send_each")


def tap_output(router: Router, seen: Callable[[bytes, Sequence[Part]], object]) -> None:
    """Call ``seen`` with the identity and the frames of each message that is sent, until `untap_output`."""

    def to_one(send: Callable[..., Any]) -> Callable[..., Any]:
        def tapped(identity: bytes, frames: Sequence[Part]) -> Any:
            seen(identity, frames)
            return send(identity, frames)

        return tapped

    def send_all(receivers: Collection[Any], frames: Sequence[Part], now: float) -> Any:
        for receiver in receivers:
            seen(receiver.identity, frames)
        return type(router).send_all(router, receivers, frames, now)

    def send_each(receivers: Collection[Any], before: bytes, after: bytes, body: Part, now: float) -> Any:
        for receiver in receivers:
            number = (receiver.sequence + 1).to_bytes(NUMBER)
            seen(receiver.identity, (before + number + after, body))
        return type(router).send_each(router, receivers, before, after, body, now)

    kind = type(router)
    shadows = (to_one(kind.send.__get__(router)), to_one(kind.reply.__get__(router)), send_all, send_each)
    for name, shadow in zip(METHODS, shadows, strict=True):
        setattr(router, name, shadow)


def untap_output(router: Router) -> None:
    """Remove the tap. No-op without one."""
    for name in METHODS:
        router.__dict__.pop(name, None)


PEERS = frozenset((b"DEALER", b"REQ", b"ROUTER"))
"""The socket types that may connect to a ROUTER (RFC 28)."""

Claim = Callable[[bytes, Sender], bool]
"""Returns True if that peer may have that identity."""

Opened = Callable[[bytes, int], object]
"""Is called with the identity and the number of a connection that is admitted, after the end of the one before."""


class Silence:
    """Null conversation of a closing ROUTER: input is discarded."""

    def receive(self, identity: bytes, frames: list[Part], connection: int) -> None:
        """See `Conversation`."""

    def closed(self, connection: int) -> None:
        """See `Conversation`."""

    def needs(self, connection: int) -> bool:
        """See `Conversation`."""
        return False

    def room(self, identity: bytes) -> None:
        """See `Conversation`."""


SILENCE = Silence()


class Router(ConnectionFactory):
    """The connections of one wire. ``mechanism`` creates the server side of a handshake; ``sealing`` is that of CURVE.

    `serve` must be called before the first connection.
    """

    conversation: Conversation

    def __init__(
        self,
        wire: str,
        mechanism: Callable[[], Mechanism],
        gate: KeyGate,
        limits: ConnectionLimits,
        zmtp: FrameLimits,
        turns: Scheduler,
        refusal_log: RefusalLog,
        clock: IReactorTime,
        backlog: BacklogLimits | None = None,
        sealing: Sealing | None = None,
        pool: Pool | None = None,
    ) -> None:
        super().__init__(wire, limits, turns, refusal_log, clock, pool=pool)
        self._mechanism = mechanism
        self._gate = gate
        self._zmtp = zmtp
        self._sealing = sealing
        self.current: RouterPeer | None = None
        """The peer of the message in progress."""
        self._peers: Identities[RouterPeer] = Identities()
        self._last = 0
        self.order = FlushOrder(turns, clock, self._report_room)
        """Output queued for the end of the turn."""
        self._backlog = Backlog(BacklogLimits() if backlog is None else backlog, self.memory, self.order)
        self._fan_out = FanOut(self._peers, self.order, self._backlog, self.memory, sealing)
        self._high_water = self._backlog.limits.messages
        self._idle_check = IdleCheck(clock, self._peers.values, self.answer, self.each)

    def serve(
        self,
        conversation: Conversation,
        claim: Claim = lambda identity, sender: True,
        opened: Opened = lambda identity, connection: None,
    ) -> None:
        """Pass messages to ``conversation`` from now on.

        ``claim`` decides on identities without a connection, and ``opened`` gets the next one: sessions may outlast
        connections. `sender` returns the peer meanwhile.
        """
        self.conversation = conversation
        self._claim = claim
        self._opened = opened

    # from connections

    def make(self, host: str, port: int, local: bool, turned_away: Refusal | None) -> RouterPeer:
        """See `ConnectionFactory`."""
        return RouterPeer(self, host, port, local, turned_away)

    def new_machine(self) -> Machine:
        """Create the state machine of a new connection."""
        return Machine(self._mechanism(), "ROUTER", self._zmtp, peers=PEERS)

    def let_in(self, peer: RouterPeer, identity: bytes) -> bool:
        """Decide on the claim of a peer with a verified key. Returns False if it is refused, for now."""
        if not self._gate.admits(peer.key, peer.host):
            return False
        peer.owner = self._gate.owner(peer.key, peer.host)
        if not identity or identity.startswith(GENERATED):
            identity = self._peers.generate()
        elif not self._peers.may_take(identity, peer) or (
            identity not in self._peers and not self._claim(identity, peer.sender)
        ):
            text = f"the identity {identity!r} belongs to another peer"
            self.refusal_log.add(self.wire, peer.host, Refusal(Reason.IDENTITY_TAKEN, text))
            return False
        older = self._peers.get(identity)
        if older is not None:
            self._replace(older)
        self._last += 1
        peer.number = self._last
        peer.identity = identity
        self._peers[identity] = peer
        self._idle_check.start()
        self._opened(identity, peer.number)
        return True

    def left(self, peer: RouterPeer) -> None:
        """Deregister a connection that is lost or closing."""
        self._backlog.forget(peer)
        if peer.number:
            if self._peers.get(peer.identity) is peer:
                del self._peers[peer.identity]
            number, peer.number = peer.number, 0
            try:
                self.conversation.closed(number)
            except Exception:  # an exception must not prevent the close
                peer.failed()

    def answer(self, peer: RouterPeer, data: bytes, body: bytes = b"") -> Sent:
        """Queue octets that answer a peer's input, behind its queued output. ``body`` is queued without a copy."""
        out = peer.out
        brink = 1 if body else self._high_water
        if peer.output is BLOCKED or len(out) >= brink:
            backlog = self._backlog
            if not backlog.has_room(peer, backlog.cost(data) + backlog.cost(body), ANSWERS):
                return Sent.FULL
            backlog.queued(peer, data, body)
        if not peer.replied:
            peer.replied = True
            peer.ahead = len(out)
            self.order.answered.append(peer)
            if not self.order.scheduled:
                self.order.soon()
        out.append(data)
        if body:
            out.append(body)
            peer.bodies.append(id(body))
        return Sent.SENT

    def discarded(self, peer: RouterPeer) -> None:
        """Account for a peer whose queue is discarded."""
        self._backlog.forget(peer)

    def blocked(self, peer: RouterPeer) -> None:
        """Account for a peer that stopped reading."""
        self._backlog.weigh(peer)

    def unblocked(self, peer: RouterPeer) -> None:
        """Flush the queue of a peer that reads again."""
        self.order.flush_one(peer)

    def relieved(self, peer: RouterPeer) -> None:
        """Account for the queue of a peer after a write, and report room if it was full."""
        self._backlog.weigh(peer)
        if peer.full and self._backlog.relieved(peer):
            peer.full = False
            self.order.relieved(peer)

    # from sessions

    def send(self, identity: bytes, frames: Sequence[Part]) -> Sent:
        """See `broker.net.peer_interfaces.Router`."""
        peer = self._peers.get(identity)
        if peer is None:
            return Sent.GONE
        out, backlog = peer.out, self._backlog
        apart = self._sealing is None and len(frames[-1]) >= APART
        if peer.output is BLOCKED or len(out) >= self._high_water:
            size = sum(map(len, frames))
            if not backlog.has_room(peer, size - len(frames[-1]) + backlog.cost(frames[-1]) if apart else size, 0):
                return Sent.FULL
        if not out:
            self.order.fanned.append(peer)
            if not self.order.scheduled:
                self.order.soon()
        if apart:
            queued: tuple[bytes, ...] = pieces(frames)
            peer.bodies.append(id(queued[1]))
        else:
            queued = (peer.encoder.message(frames),)
        out += queued
        if peer.output is BLOCKED:
            backlog.queued(peer, *queued)
        return Sent.SENT

    def reply(self, identity: bytes, frames: Sequence[Part]) -> Sent:
        """See `broker.net.peer_interfaces.Router`."""
        peer = self._peers.get(identity)
        if peer is None:
            return Sent.GONE
        if self._sealing is None and len(frames[-1]) >= LARGE:
            return self.answer(peer, *pieces(frames))
        return self.answer(peer, peer.encoder.message(frames))

    def send_all(self, receivers: Collection[R], frames: Sequence[Part], now: float) -> list[tuple[R, Sent]]:
        """See `broker.net.peer_interfaces.Router`."""
        return self._fan_out.send_all(receivers, frames, now)

    def send_each(
        self, receivers: Collection[N], before: bytes, after: bytes, body: Part, now: float
    ) -> list[tuple[N, Sent]]:
        """See `broker.net.peer_interfaces.NumberingRouter`."""
        return self._fan_out.send_each(receivers, before, after, body, now)

    def end(self, identity: bytes, number: int) -> None:
        """See `broker.net.peer_interfaces.Router`."""
        peer = self._peers.get(identity)
        if peer is not None and peer.number == number:
            peer.close()

    def sender(self) -> Sender:
        """See `broker.net.peer_interfaces.Router`."""
        peer = self.current
        assert peer is not None
        return peer.sender

    def key(self) -> str:
        """See `broker.net.peer_interfaces.Router`."""
        assert self.current is not None
        return self.current.key

    # from the operator

    def close(self) -> Deferred[None]:
        """See `ConnectionFactory`. Sessions get no `closed` calls, since they outlast the broker."""
        self.conversation = SILENCE
        self._idle_check.stop()
        self.order.flush()
        return super().close()

    def use(self, limits: RouterLimits) -> None:
        """Apply other limits; ``max_message`` holds for new connections."""
        self.limit(limits.connection_limits())
        self._zmtp = FrameLimits.of_frame(limits.max_message)
        self._high_water = limits.high_water
        self._backlog.limits = attrs.evolve(self._backlog.limits, messages=limits.high_water)

    def dismiss(self, connections: Collection[StreamConnection], refusal: Refusal) -> None:
        """See `ConnectionFactory`. From now on nothing is received from these peers."""
        for peer in connections:
            assert isinstance(peer, RouterPeer)
            if peer is self.current:
                self.send_away(peer, refusal)
            else:
                peer.end_input()
        super().dismiss(connections, refusal)

    def revoke(self, keys: Collection[str]) -> None:
        """End the service of revoked client keys (Z85) at once, and close their connections, many in several turns."""
        gone = [each for each in self._peers.values() if each.key in keys]
        self.dismiss(gone, Refusal(Reason.KEY_NOT_ALLOWED, "the key of this connection was revoked"))
        for peer in gone:
            self.left(peer)

    def tap(self, wanted: Callable[[StreamConnection], bool], seen: TapSeen) -> None:
        """See `ConnectionFactory`."""

        def sent(identity: bytes, frames: Sequence[Part]) -> None:
            peer = self._peers.get(identity)
            if peer is not None and wanted(peer):
                seen(peer, "out", list(frames))

        super().tap(wanted, seen)
        tap_output(self, sent)

    def untap(self) -> None:
        """See `ConnectionFactory`."""
        super().untap()
        untap_output(self)

    def disconnect_number(self, number: int) -> bool:
        """Close the connection of that number in order. Returns False if there is none."""
        found = [each for each in self._peers.values() if number and each.number == number]
        for peer in found:
            self.send_away(peer, Refusal(Reason.DISCONNECTED, DISCONNECTED))
        return bool(found)

    def _report_room(self, peer: RouterPeer) -> None:
        """Report room to the sessions."""
        if not peer.number:
            return  # it has left meanwhile
        try:
            self.conversation.room(peer.identity)
        except Exception:  # an exception must not end the flush of all connections
            peer.failed()

    def _replace(self, older: RouterPeer) -> None:
        """Close a connection whose identity was taken over."""
        older.refuse(Refusal(Reason.REPLACED, "another connection of the same peer took over its identity"))
        self.left(older)  # one that is being cut, since it does not read, leaves only in a later turn
