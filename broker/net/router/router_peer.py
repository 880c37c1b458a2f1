"""One connection of a ROUTER. Path of a message: `dataReceived` -> `Machine.feed` -> `Conversation.receive`.

Rules, in addition to those of every connection (`broker.net.connection`):
- Until its handshake is complete, a peer is a stranger: reads are small, and a deadline applies.
- A refused key, and an identity of another connection, get no reply: the deadline closes the connection. Permanent
  errors get an ERROR, if the protocol has it, and an orderly close.
- Input is handled also while the peer does not read: its heartbeats count, and its answers are bounded.
- Output is queued in `out`, in order, and written once per turn of the reactor (`FlushOrder`). Under backpressure,
  messages stay in `out` within the ROUTER's limits.

The file is longer than others: input, output and heartbeats change the state of one connection.
"""

from __future__ import annotations

import secrets
import socket
import struct
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from twisted.internet.protocol import connectionDone
from twisted.python.failure import Failure

from broker import curve_keys
from broker.core.errors import Reason, Refusal
from broker.core.memory_budget import SHORT
from broker.net.connection import CHEAP, NOT_READING, UNWATCHED, StreamConnection
from broker.net.connection_output import BATCH
from broker.net.connection_states import BLOCKED
from broker.net.epoll_streams import await_room, nothing_waits, send_now
from broker.net.peer_interfaces import Sender, Sent
from broker.net.router.backlog import Pieces
from broker.net.scheduled_input import Seen
from broker.net.zmtp.frames import IDENTITY, SOCKET_TYPE, Command, Encoder, Fault, ZmtpError
from broker.net.zmtp.machine import Claim, Output

if TYPE_CHECKING:
    from broker.net.router.router import Router

PIECES = 512
"""Pieces in one call of the kernel, which takes at most 1,024."""

LONG_PIECES = 2_048
"""Average bytes of a piece from which a vectored write costs less than a join."""

_REASONS = {Fault.TOO_LARGE: Reason.TOO_LARGE, Fault.FRAME: Reason.SYNTAX}
"""The refusal reasons of faults outside the handshake."""

UNTYPED = b"DEALER"
"""The socket type of a peer that names none: it is served as the most general one."""

PIECE = 2 * BATCH
"""Bytes of a join of queued pieces."""

_CREDENTIALS = struct.Struct("3i")
"""Process, user and group of a peer at a Unix socket (SO_PEERCRED)."""


class RouterPeer(StreamConnection):
    """One peer. ``number`` identifies the connection: never reused, 0 before admission."""

    factory: Router

    number = 0
    identity = b""
    key = ""
    """The CURVE public key in Z85; empty without CURVE."""
    owner = ""
    """Owner of the identity: see `broker.access.identity`. Empty before admission."""
    socket_type = ""
    replied = False
    """An answer is queued: it is written after the messages of other connections."""
    ahead = 0
    """The number of messages queued before the first answer."""
    full = False
    """A message was refused, and `Conversation.room` is still to be called."""
    weight = 0
    """Bytes of output, counted while the peer does not read."""
    pieces: Pieces = {}  # noqa: RUF012
    """Pieces of ``out`` that are counted, while the peer does not read. The empty one is replaced, not changed."""
    unweighed = 0
    """Messages queued since the last exact weighing; see `Backlog`."""
    unfinished = False
    """A message is incomplete, and its deadline runs."""
    turned_down = False
    """The claim was refused for now: no input is decoded, and the deadline of the handshake closes the connection."""
    silence = 0
    """Idle checks since the last input; see `IdleCheck`."""

    def __init__(self, factory: Router, host: str, port: int, local: bool, turned_away: Refusal | None) -> None:
        super().__init__(factory, host, port, local, turned_away)
        self.reader = self.machine = factory.new_machine()
        self.out = self._out
        """Encoded messages in the queue, in order."""
        self.bodies: list[int] = []
        """The ids of those pieces in ``out`` that are last frames, each behind another piece of its message."""
        self.encoder: Encoder

    @property
    def sender(self) -> Sender:
        """The peer as the sessions see it."""
        return Sender(self.host, self.key, self.socket_type)

    @property
    def queued(self) -> int:
        """The number of messages in the queue."""
        return len(self.out) - len(self.bodies)

    # from the transport

    def connection_ready(self) -> None:
        """Connection set up: send the signature and version."""
        if not self.port:
            self.host = _user(self.transport) or self.host
        self.factory.refusal_log.count(f"{self.factory.wire}_connections", "accepted")
        self.write_now(self.machine.begin())

    @property
    def needed(self) -> bool:
        """See `StreamConnection`."""
        return bool(self.number) and self.factory.conversation.needs(self.number)

    def lost(self) -> None:
        """Connection lost or about to close."""
        self.machine.fail()
        self.factory.left(self)

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        super().connectionLost(reason)
        if self.turned_away is None:
            self.factory.refusal_log.count(f"{self.factory.wire}_connections", "closed")

    def pauseProducing(self) -> None:
        """Backpressure from the transport."""
        self.output = self.output.on_pause
        self.factory.blocked(self)

    def resumeProducing(self) -> None:
        """End of the transport's backpressure."""
        self.output = self.output.on_resume
        self.factory.unblocked(self)

    # from the scheduler

    def held_up(self) -> bool:
        """Return False: input is handled also while the peer does not read."""
        return False

    def serve(self) -> bool:
        """Handle input until the quantum ends. Returns True if input remains."""
        rest = self._rest
        if rest is None or self.life.closing:
            self._queued = False
            if self.life.closing:
                self.transport.resumeProducing()
            return False
        factory = self.factory
        if self.replied:
            # messages go out before the answers to further input: see the rules of `FlushOrder`
            factory.order.flush_one(self)
        receive, identity, number = factory.conversation.receive, self.identity, self.number
        turns = factory.turns
        # The first clock read comes after two messages: most reads have one.
        before, step, unwatched = turns.given, 2, 2
        completed = False
        factory.current = self
        self.silence = 0
        try:
            for item in rest:
                if item.__class__ is list:
                    completed = True
                    try:
                        receive(identity, item, number)
                    except Exception:
                        self.failed()
                elif item is not None:
                    self._take_event(item)
                    identity, number = self.identity, self.number
                if self.life.closing:
                    break
                unwatched -= 1
                if not unwatched:
                    now = turns.left()
                    if now <= 0:
                        break
                    step = unwatched = UNWATCHED if before - now < step * CHEAP else 1
                    before = now
            else:
                self._rest = self.reader.feed(self._held) if self._held else None
                self._held = b""
        except ZmtpError as error:
            self._rest = None
            self._malformed(error)
        factory.current = None
        if completed:
            self.heard = turns.end
            self.served = True
        pending = self.reader.pending
        if pending or self._pending or self.unfinished:
            self._watch(pending, completed)
        if self._rest is None:
            self._queued = False
            if (self._stopped_reading or self.life.input_ended) and not self.life.closing:
                self._read_on()
            return False
        self._stop_reading()
        self._queued = True
        return True

    def _watch(self, pending: int, completed: bool) -> None:
        """Account for an unfinished message, and set its deadline. Each read is progress, and renews the deadline."""
        self.unfinished = bool(pending)
        if pending:
            self.factory.stalls.add(self, self.factory.limits.stalled_after)
        else:
            self.factory.stalls.discard(self)
        if pending > SHORT or self._pending:
            self._account(pending, completed)

    def _take_event(self, event: Output | Claim | Command) -> None:
        """Handle an event other than a message: output, a claim, or a command."""
        if isinstance(event, Claim):
            self._take_claim(event)
            return
        output = self.machine.heartbeat(event) if isinstance(event, Command) else event
        if output is not None and self.factory.answer(self, output.data) is Sent.FULL:
            self.factory.refusal_log.count(f"{self.factory.wire}_dropped", "pong")

    def _take_claim(self, event: Claim) -> None:
        """Decide on the claim of the peer."""
        self.key = curve_keys.encode(event.key) if event.key else ""
        self.socket_type = event.properties.get(SOCKET_TYPE, UNTYPED).decode()
        if self.factory.let_in(self, event.properties.get(IDENTITY, b"")):
            # READY goes out before any message of the traffic, so that it is queued first.
            self.factory.answer(self, self.machine.accept())
            assert self.machine.encoder is not None
            assert self.machine.decoder is not None
            self.encoder = self.machine.encoder
            self.reader = self.machine.decoder
            self._out = self.out = self.machine.output(self.out)
            self.authenticated()
        else:
            self.turned_down = True
            self.machine.fail()  # no further input is decoded

    def _malformed(self, error: ZmtpError) -> None:
        self.machine.fail()
        self.refuse(Refusal(_REASONS.get(error.fault, Reason.HANDSHAKE), error.text), error.reply)

    # from a trace

    def tap(self, seen: Seen) -> None:
        """Report each received message. The ROUTER reports those that are sent, before they are encoded."""
        self.tap_input(seen)

    # closing

    def end_input(self) -> None:
        """Receive nothing more, until a later turn closes the connection. Not for the peer whose quantum it is."""
        self._rest = None
        self._held = b""
        self._let_go()

    def refuse(self, refusal: Refusal, reply: bytes = b"") -> None:
        """Close because of a peer's error, which is counted, and logged within the rate limit."""
        if self.life.closing:
            return
        self.factory.refusal_log.add(self.factory.wire, self.host, refusal, self)
        if reply:
            self.out.append(reply)
        self.close()

    def evict(self, refusal: Refusal) -> None:
        """See `StreamConnection`. The connection is cut, and its end follows in a later turn: a fan-out, which may be
        the cause, goes through the receivers, of which an end removes some."""
        self.not_reading(refusal)

    def not_reading(self, refusal: Refusal = NOT_READING) -> None:
        """See `StreamConnection`."""
        self.factory.discarded(self)
        super().not_reading(refusal)

    def too_slow(self) -> None:
        """Handle the handshake deadline. A refused claim was counted and logged before."""
        if self.turned_down:
            self.close()
            return
        self.refuse(Refusal(Reason.HANDSHAKE, "a handshake was not completed in time"))

    def stalled(self) -> None:
        """Handle the deadline of an incomplete message."""
        self.refuse(Refusal(Reason.TOO_SLOW, "a message was begun and not continued in time"))

    def close(self) -> None:
        """Write queued output, and close in order.

        The queue of a blocked peer is discarded, except in a shutdown, which does not count it any more.
        """
        if self.output is BLOCKED and not self.factory.stopping:
            self.out.clear()
        super().close()

    # output

    def write_now(self, data: bytes) -> None:
        """Send octets of the handshake, before any output is queued."""
        rest = send_now(self.transport, data)
        if rest:
            self.transport.write(rest)

    def flush(self) -> None:
        """Write queued output, as far as the transport takes it."""
        self.replied = False
        out = self.out
        while out and self.output is not BLOCKED and not self.life.closing:
            if len(out) == 1:
                self._write(out.pop())
            elif sum(map(len, out)) < LONG_PIECES * len(out) or not self._direct or not nothing_waits(self.transport):
                self._write(self._take())
            else:
                data = self._send_pieces()
                if data:
                    self._write(data)
        if self.bodies:
            # Not by their length: messages in one piece, and first frames, may be as long.
            bodies = set(self.bodies)
            self.bodies = [id(piece) for piece in out if id(piece) in bodies]
        if (self.output is BLOCKED or self.weight or self.full) and not self.life.closing:
            self.factory.relieved(self)

    def flush_ahead(self) -> None:
        """Write the messages before the first answer, as far as the transport takes them."""
        ahead, self.ahead = self.ahead, 0
        if ahead and self.output is not BLOCKED and not self.life.closing:
            data = b"".join(self.out[:ahead])
            del self.out[:ahead]
            self._write(data)

    def _write(self, data: bytes) -> None:
        """Write octets. A long rest stays in ``out`` until the transport has room; a memoryview saves its copy."""
        if len(data) > PIECE:
            data = memoryview(data)  # type: ignore[assignment]
        if not self._direct:
            self.transport.write(bytes(data))
            return
        rest = send_now(self.transport, data)
        if len(rest) > SHORT:
            later = rest[SHORT:]
            self.out.insert(0, later if len(later) > PIECE else bytes(later))
            self.transport.write(bytes(rest[:SHORT]))
            await_room(self.transport)
        elif rest:
            self.transport.write(bytes(rest))

    def _send_pieces(self) -> bytes:
        """Send output by a vectored write, without a copy. Returns the rest of a partly sent piece, or b""."""
        out = self.out
        try:
            sent = self.transport.socket.sendmsg(out[:PIECES])
        except OSError:
            sent = 0  # no room, or connection lost: the transport's write detects which
        count = 0
        for piece in out:
            if sent < len(piece):
                break
            sent -= len(piece)
            count += 1
        del out[:count]
        if not out:
            return b""
        piece = out.pop(0)
        return memoryview(piece)[sent:] if len(piece) > PIECE else piece[sent:]  # type: ignore[return-value]

    def _take(self) -> bytes:
        """Take a batch of queued output, or all of it if it is small: a slow reader costs no copy of the rest."""
        out = self.out
        if len(out) == 1 or len(out[0]) > PIECE:
            return out.pop(0)
        if sum(map(len, out)) <= PIECE:
            data = b"".join(out)
            out.clear()
            return data
        count = size = 0
        while size < BATCH and len(out[count]) <= PIECE:
            size += len(out[count])
            count += 1
        data = b"".join(out[:count])
        del out[:count]
        return data


def _user(transport: Any) -> str:
    """Return the user of a peer at a Unix socket, as an address: all processes of one user are one peer."""
    try:
        credentials = transport.socket.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    except (AttributeError, OSError):
        return ""
    return f"uid {_CREDENTIALS.unpack(credentials)[1]} here"


# Identity table of a ROUTER: connections by identity, and the takeover rule.
#
# Rules:
# - An identity belongs to one connection at a time. A peer without one gets five octets with a leading zero. Such
#   identities are reserved (RFC 28): one that a peer chooses is replaced.
# - A new connection takes an identity over if it has the same owner (`broker.access.identity`): the user or name of its
#   CURVE key, the key itself if it has none, the host without keys. The older connection is closed.
# - Any other new connection is refused until the owner is gone: otherwise a stranger would receive its messages.

GENERATED = b"\0"
"""The first octet of a generated identity."""


class Owner(Protocol):
    """A connection that may have an identity, with its owner."""

    owner: str


O = TypeVar("O", bound=Owner)  # noqa: E741


class Identities(dict[bytes, O], Generic[O]):
    """Connections by identity."""

    def __init__(self) -> None:
        super().__init__()
        # A random start: after a restart, a peer must not get an identity that another peer had before.
        self._next = secrets.randbits(32)

    def generate(self) -> bytes:
        """Return an identity without an owner."""
        while True:
            self._next = (self._next + 1) & 0xFFFFFFFF
            identity = GENERATED + self._next.to_bytes(4, "big")
            if identity not in self:
                return identity

    def may_take(self, identity: bytes, newcomer: O) -> bool:
        """Return True if a new connection may have that identity: it is free, or may be taken over."""
        older = self.get(identity)
        return older is None or older.owner == newcomer.owner
