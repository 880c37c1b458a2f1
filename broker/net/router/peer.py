"""One connection of a ROUTER. The way of a message: `dataReceived` -> `Machine.feed` -> `Conversation.receive`.

Rules, beside those of every connection (`broker.net.connection`):
- Until its handshake is done a peer is a stranger: it is read from in small pieces, and has a deadline.
- A refused key, and an identity that another connection has, are answered by silence: the deadline closes the
  connection. What is wrong for good is answered by ERROR, where the protocol has it, and an orderly close.
- Input is handled also while the peer does not read: its heartbeats count, and its answers are bounded.
- Output waits in `out`, in order. A turn of the reactor ends with one write of all of it (`FlushOrder`). While the
  transport has more than it can send, messages stay in `out`; the bound on them is the ROUTER's.
"""

from __future__ import annotations

import socket
import struct
from typing import TYPE_CHECKING, Any

from twisted.internet.protocol import connectionDone
from twisted.python.failure import Failure

from broker import curve
from broker.core.errors import Reason, Refusal
from broker.net.connection import CHEAP, UNWATCHED, StreamConnection
from broker.net.connection_output import BATCH
from broker.net.connection_states import BLOCKED
from broker.net.fast_write import nothing_waits, send_now
from broker.net.interfaces.router import Sent
from broker.net.unfinished_input import SHORT
from broker.net.zmtp import metadata
from broker.net.zmtp.errors import Fault, ZmtpError
from broker.net.zmtp.frames import Command, Encoder
from broker.net.zmtp.machine import Output
from broker.net.zmtp.mechanism import Claim

if TYPE_CHECKING:
    from broker.net.router.router import Router

APART = 4_096
"""Bytes of a last frame from which it waits as it is, in a piece of its own, and is not copied."""

PIECES = 512
"""Pieces that are given to the kernel at once: it takes 1,024."""

LONG_PIECES = 2_048
"""Bytes of an average piece from which that costs less than to join them."""

_REASONS = {Fault.TOO_LARGE: Reason.TOO_LARGE, Fault.FRAME: Reason.SYNTAX}
"""The reason of a refusal, for faults that are not of the handshake."""

PIECE = 2 * BATCH
"""Bytes that are given to the transport at once. It copies them, and stops us when they are more than `BATCH`. So of a
long message that many receive, and do not read, each has its own copy of so much only."""

_CREDENTIALS = struct.Struct("3i")
"""Process, user and group of a peer at a unix socket (SO_PEERCRED)."""


class RouterPeer(StreamConnection):
    """One peer. ``number`` is that of the connection: never used again, 0 before it is let in."""

    factory: Router

    number = 0
    identity = b""
    key = ""
    """The CURVE public key in Z85; empty without CURVE."""
    socket_type = ""
    replied = False
    """An answer waits: it is written after the messages of other connections."""
    ahead = 0
    """The number of messages that wait before the first answer."""
    bodies = 0
    """Pieces in ``out`` that are the last frames of messages."""
    full = False
    """A message was refused, and `Conversation.room` is still to be called."""
    weight = 0
    """Bytes in ``out``, counted while the peer does not read."""
    unfinished = False
    """A message has begun, and is to go on in time."""
    turned_down = False
    """Its claim was refused, for now: nothing more is received, and the deadline of the handshake closes it."""
    silence = 0
    """Looks for idle connections since the peer was last heard of; see `Router`."""

    def __init__(self, factory: Router, host: str, port: int, local: bool, turned_away: Refusal | None) -> None:
        super().__init__(factory, host, port, local, turned_away)
        self.reader = self.machine = factory.new_machine()
        self.out = self._out
        """Encoded messages that wait, in order."""
        self.encoder: Encoder

    # from the transport

    def connection_ready(self) -> None:
        """The transport is there: show our version."""
        if not self.port:
            self.host = _user(self.transport) or self.host
        self.factory.complaints.count(f"{self.factory.wire}_connections", "accepted")
        self.write_now(self.machine.begin())

    def lost(self) -> None:
        """The connection is gone, or about to be closed."""
        self.machine.fail()
        self.factory.left(self)

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        super().connectionLost(reason)
        if self.turned_away is None:
            self.factory.complaints.count(f"{self.factory.wire}_connections", "closed")

    def pauseProducing(self) -> None:
        """The transport has more than it can send."""
        self.output = self.output.on_pause
        self.factory.blocked(self)

    def resumeProducing(self) -> None:
        """The transport has room."""
        self.output = self.output.on_resume
        self.factory.unblocked(self)

    # from the scheduler

    def held_up(self) -> bool:
        """Input is handled also while the peer does not read."""
        return False

    def serve(self) -> bool:
        """Handle input until the quantum is over. Returns True if there is more."""
        rest = self._rest
        if rest is None or self.life.closing:
            self._queued = False
            if self.life.closing:
                self.transport.resumeProducing()
            return False
        factory = self.factory
        if self.replied:
            factory.order.flush_one(self)  # see the rules of `FlushOrder`
        receive, identity, number = factory.conversation.receive, self.identity, self.number
        turns = factory.turns
        # The first look at the clock comes after two messages: most reads have one.
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
        pending = self.reader.pending
        if pending or self.unfinished:
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
        """Account for an unfinished message, which must go on in time. Each read is progress: the time begins again."""
        self.unfinished = bool(pending)
        if pending:
            self.factory.stalls.add(self, self.factory.limits.stalled_after)
        else:
            self.factory.stalls.discard(self)
        if pending > SHORT or self._pending:
            self._account(pending, completed)

    def _take_event(self, event: Output | Claim | Command) -> None:
        """Take an event other than a message: octets to be sent, a claim, or a command."""
        if isinstance(event, Claim):
            self._take_claim(event)
            return
        output = self.machine.heartbeat(event) if isinstance(event, Command) else event
        if output is not None and self.factory.answer(self, output.data) is Sent.FULL:
            self.factory.complaints.count(f"{self.factory.wire}_dropped", "pong")

    def _take_claim(self, event: Claim) -> None:
        """Decide on the claim of the peer."""
        self.key = curve.encode(event.key) if event.key else ""
        self.socket_type = event.properties[metadata.SOCKET_TYPE].decode()
        if self.factory.let_in(self, event.properties.get(metadata.IDENTITY, b"")):
            self.factory.answer(self, self.machine.accept())
            assert self.machine.encoder is not None
            assert self.machine.decoder is not None
            self.encoder = self.machine.encoder
            self.reader = self.machine.decoder
            self.authenticated()
        else:
            self.turned_down = True
            self.machine.fail()  # nothing more is decoded

    def _malformed(self, error: ZmtpError) -> None:
        self.machine.fail()
        self.refuse(Refusal(_REASONS.get(error.fault, Reason.HANDSHAKE), error.text), error.reply)

    # closing

    def refuse(self, refusal: Refusal, reply: bytes = b"") -> None:
        """Close for something that the peer did wrong: counted, and logged within bounds."""
        if self.life.closing:
            return
        self.factory.complaints.add(self.factory.wire, self.host, refusal)
        if reply:
            self.out.append(reply)
        self.close()

    def too_slow(self) -> None:
        """The handshake was not done in time. A claim that was refused is counted and logged already."""
        if self.turned_down:
            self.close()
            return
        self.refuse(Refusal(Reason.HANDSHAKE, "a handshake was not completed in time"))

    def stalled(self) -> None:
        """A message that had begun did not go on in time."""
        self.refuse(Refusal(Reason.TOO_SLOW, "a message was begun and not continued in time"))

    def close(self) -> None:
        """Send output that waits, and close in good order.

        What waits for a peer that does not read is thrown away, unless the broker stops: it would not count any more.
        """
        if self.output is BLOCKED and not self.factory.stopping:
            self.out.clear()
        super().close()

    # output

    def write_now(self, data: bytes) -> None:
        """Send octets before anything is queued: in the handshake."""
        rest = send_now(self.transport, data)
        if rest:
            self.transport.write(rest)

    def flush(self) -> None:
        """Write the output that waits, as far as the transport takes it."""
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
            self.bodies = sum(len(piece) >= APART for piece in out)
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
        """Write octets. Of many the rest waits in ``out``, as a memoryview, until the transport has room."""
        if len(data) > PIECE:
            data = memoryview(data)  # type: ignore[assignment]
        rest = send_now(self.transport, data) if self._direct else data
        if len(rest) > PIECE:
            self.out.insert(0, rest[PIECE:])
            rest = rest[:PIECE]
        if rest:
            self.transport.write(bytes(rest))

    def _send_pieces(self) -> bytes:
        """Give output to the kernel, without a copy. Returns the rest of a piece that it took a part of, or b""."""
        out = self.out
        try:
            sent = self.transport.socket.sendmsg(out[:PIECES])
        except OSError:
            sent = 0  # there is no room, or the connection is lost: writing finds out
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
        """Take a batch of the output that waits, or all of it: a peer that reads slowly costs no copies of the rest."""
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
    """The user of a peer at a unix socket, as an address: all processes of one user are one peer."""
    try:
        credentials = transport.socket.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    except (AttributeError, OSError):
        return ""
    return f"uid {_CREDENTIALS.unpack(credentials)[1]} here"
