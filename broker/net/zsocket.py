"""ZeroMQ sockets in the reactor: one subclass of txzmq's connection for all of them.

What it does otherwise than txzmq, and why:
- It reads a bounded number of messages in one turn of the reactor (`broker.net.turns`): txzmq reads until there are
  none, and under a flood nothing else would ever run.
- It sends whole messages, and says what became of each: a queue that is full and a peer that is gone are no errors but
  answers. libzmq refuses a message at its first frame only, so one is never cut short.
- Nothing takes it out of the reactor: a failing read is logged, and tried again after `RETRY`.

libzmq's descriptor is edge-triggered, and sending (also what is refused) may take away its signal: so whoever sends
outside of a read has one scheduled. Frames of `SHARED` bytes or more stay libzmq's own, so that what is passed on to
many is not copied.

Open sockets after the process has forked: libzmq's threads do not survive that.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import socket
import stat
import struct
from collections import deque
from collections.abc import Callable, Collection, Sequence
from typing import Any

import attrs
import zmq
from twisted.internet.interfaces import IDelayedCall
from twisted.logger import Logger
from txzmq import ZmqConnection, ZmqFactory
from zmq.backend import Socket as BackendSocket

from broker.net.backlogs import LARGE, Backlogs
from broker.net.turns import Turns
from broker.net.zap import address_of
from broker.net.zoptions import Option
from broker.net.zvectors import SEVERAL, Vectors
from broker.session.router import N, Part, R, Sender, Sent

SHARED = 256
"""Bytes from which a frame is shared instead of copied: below, counting who holds it costs more than the copy."""

FEW = 32
FRAME = 64
"""Bytes that a frame takes in libzmq's queues beside its content; they count in messages of more than a few frames."""

LINGER = 100
"""Milliseconds for which the last answers may still go out when the broker stops; it stands still meanwhile."""

SOCKETS = 4_096
"""Sockets that libzmq lets the process have: a few for each wire, those of probes, and those that it has not quite
closed yet. It costs eight bytes for each."""

BATCH = 64
"""Messages that are received before the first of them is handled. What is sent then comes so closely that libzmq's
thread, once it is awake, finds the next message before it sleeps again: that halves its work."""

BATCH_SHIFT = 12
"""Each 4 KiB of a long frame count as one more message of a batch, so that it holds a quarter of a megabyte, or one
message."""

FRAMES_SHIFT = 5
"""And so do each 32 frames."""

MANY = 64
"""Deliveries, or eight messages, after which a look at the clock costs nothing by comparison: some 100 µs."""

RETRY = 1.0
"""Seconds until a socket whose read failed is read again."""

KEEPALIVE_IDLE = 60
"""Seconds of silence after which the kernel asks whether the other side is still there."""

KEEPALIVE_INTERVAL = 15
KEEPALIVE_COUNT = 4
"""So a peer that vanished without a word is known to be gone after two minutes."""

BACKLOG = 1_024
"""Connections that may wait for being accepted, as for the other listeners."""

# As plain numbers, since the enumerations of pyzmq cost more than the call.
_NOW = int(zmq.NOBLOCK)
_MORE = int(zmq.NOBLOCK | zmq.SNDMORE)
_SOURCE = int(zmq.SRCFD)
_READABLE = int(zmq.POLLIN)

_write_number = struct.Struct(">Q").pack_into
"""Over `broker.session.router.NUMBER` bytes."""

_FILLED = b"."
"""Stands for a frame that is not empty."""

_Receive = Callable[[bytes, list[Part], int], object]


@attrs.frozen
class Options:
    """How a socket behaves.

    ``high_water`` is how many messages may wait for one peer, or from it; ``max_message`` the bytes of one frame.
    ``handover`` lets a new connection take an identity over from an old one. ``secret_key`` (Z85) makes it a CURVE
    server; ``domain`` names its rules at the ZAP handler, ``handshake`` is the time that a handshake may take, in
    seconds. ``linger`` is how long what was sent may still go out after a close, in milliseconds. ``identified`` says
    that messages begin with the identity of their peer: those of a ROUTER do.
    """

    kind: int = zmq.ROUTER
    high_water: int = 1_000
    max_message: int = 16 * 1024 * 1024
    handover: bool = False
    secret_key: str | None = attrs.field(default=None, repr=False)
    domain: str = ""
    handshake: float = 30.0
    linger: int = LINGER

    @property
    def identified(self) -> bool:
        """Whether messages begin with an identity."""
        return self.kind == zmq.ROUTER


class ZContext:
    """libzmq's context, with the one thread that does its input and output. Made when something is to be opened."""

    def __init__(self, reactor: Any) -> None:
        # libzmq numbers peers that have no identity from rand() on, which nobody seeds; and ends the process when one
        # of them comes with a number before it was given.
        ctypes.CDLL(None).srand(int.from_bytes(os.urandom(4), "little"))
        self.factory = ZmqFactory()
        self.factory.reactor = reactor
        self.factory.context.set(zmq.MAX_SOCKETS, SOCKETS)

    def close(self) -> None:
        """Close all sockets. Waits `LINGER` at most for what is still to be sent."""
        if self.factory.context is not None:
            self.factory.shutdown()


class ZSocket(ZmqConnection):  # type: ignore[misc]
    """One socket. Nothing comes in before it is bound or connected, and then goes to who was named there.

    ``receive`` is given each message: identity, frames, and the descriptor of its connection. The identity is empty,
    and the descriptor -1, where the kind of socket has none.
    """

    log = Logger()

    def __init__(self, context: ZContext, options: Options, turns: Turns, name: str) -> None:
        self.socketType = options.kind
        self.highWaterMark = options.high_water
        self._identified = options.identified
        self._curve = options.secret_key is not None
        self._receive: _Receive = _lose
        self._turns = turns
        self._name = name
        self._clock = context.factory.reactor
        self._queued = True
        self._reading = False
        self._wakeup: IDelayedCall | None = None
        self._inbox: deque[tuple[zmq.Frame, bytes, list[Part]]] = deque()
        self._frame: zmq.Frame | None = None
        self._deliveries = 0
        self._large: tuple[Part, Part] = (b"", b"")
        """The last large frame that was sent, and what libzmq shares of it."""
        self._backlogs = Backlogs()
        super().__init__(context.factory)
        # The methods of the extension itself: those of the class over it take three times as long.
        self._recv: Any = BackendSocket.recv.__get__(self.socket)
        self._send: Any = BackendSocket.send.__get__(self.socket)
        self._vectors = Vectors(self.socket)
        self._more = Option(self.socket, zmq.RCVMORE)
        self._events = Option(self.socket, zmq.EVENTS)
        try:
            self._configure(options)
        except BaseException:
            self.shutdown()
            raise
        self._queued = False

    def _configure(self, options: Options) -> None:
        set_option = self.socket.set
        set_option(zmq.LINGER, options.linger)  # over txzmq's, which is the same for all
        set_option(zmq.MAXMSGSIZE, options.max_message)
        set_option(zmq.HANDSHAKE_IVL, int(options.handshake * 1000))
        set_option(zmq.BACKLOG, BACKLOG)
        set_option(zmq.TCP_KEEPALIVE, 1)
        set_option(zmq.TCP_KEEPALIVE_IDLE, KEEPALIVE_IDLE)
        set_option(zmq.TCP_KEEPALIVE_INTVL, KEEPALIVE_INTERVAL)
        set_option(zmq.TCP_KEEPALIVE_CNT, KEEPALIVE_COUNT)
        if options.kind == zmq.ROUTER:
            set_option(zmq.ROUTER_MANDATORY, 1)
            set_option(zmq.ROUTER_HANDOVER, int(options.handover))
        if options.domain:
            set_option(zmq.ZAP_DOMAIN, options.domain.encode())
            set_option(zmq.ZAP_ENFORCE_DOMAIN, 1)  # or everybody comes in while nobody answers
        if options.secret_key is not None:
            set_option(zmq.CURVE_SERVER, 1)
            set_option(zmq.CURVE_SECRETKEY, options.secret_key.encode())

    # opening and closing

    def bind(self, address: str, receive: _Receive) -> str:
        """Listen. Returns the address with the port that it got. Raises `zmq.ZMQError` or OSError."""
        self._receive = receive
        kind, _, path = address.partition("://")
        if kind == "ipc" and not path.startswith("@"):
            _check_free(path)
        if "[" in address:
            self.socket.set(zmq.IPV6, 1)
        self.socket.bind(address)
        self._read_soon()
        return str(self.socket.get(zmq.LAST_ENDPOINT).decode())

    def connect(self, address: str, receive: _Receive) -> None:
        """Connect, now or whenever the other side is there."""
        self._receive = receive
        self.socket.connect(address)
        self._read_soon()

    def shutdown(self) -> None:
        """Close. Nothing is received any more."""
        if self.factory is None:
            return
        if self._wakeup is not None:
            self._wakeup.cancel()
            self._wakeup = None
        self._inbox.clear()
        self._frame = None
        super().shutdown()

    # receiving

    def doRead(self) -> None:
        """There may be something to read."""
        if not self._queued:
            self._queued = True
            self._turns.serve_shared(self)

    def serve(self) -> bool:
        """Receive and handle the next quantum. Returns whether there may be more."""
        turns, inbox, events = self._turns, self._inbox, self._events
        left = turns.quantum(queued=False)
        self._reading, self._queued = True, False
        try:
            while self.factory is not None:
                if not inbox:
                    left -= BATCH
                    self._fill()
                    if not inbox:
                        return False
                self._handle()
                if self.factory is None:
                    return False  # it was closed meanwhile, and must not be asked anything
                if inbox or left <= 0 or turns.over():
                    self._queued = True
                    return True
                # Sending may have taken away the signal of what came meanwhile.
                events.ask()
                if not events.answer.value & _READABLE:
                    return False
        except zmq.ZMQError as error:
            if self.factory is not None:
                self.log.error("the socket of {name} failed: {error}", name=self._name, error=str(error))
                self._rest()
        finally:
            self._reading = False
        return False

    def _fill(self) -> None:
        """Receive a batch, or as much as there is."""
        recv, identified, inbox = self._recv, self._identified, self._inbox
        ask, answer, events = self._more.ask, self._more.answer, self._events
        identity, left = b"", BATCH
        try:
            while left > 0:
                left -= 1
                if identified:
                    identity = recv(_NOW)
                first = recv(_NOW, False)
                more = first.more
                frames: list[Part] = [first.bytes]
                part: Part = _FILLED
                while more:
                    if part:
                        part = recv(_NOW)
                        frames.append(part)
                        ask()
                        more = answer.value
                        if len(part) >= SHARED:
                            left -= len(part) >> BATCH_SHIFT
                    else:  # behind an empty frame there is often a long one
                        frame = recv(_NOW, False)
                        more = frame.more
                        part = frame if len(frame) >= SHARED else frame.bytes
                        frames.append(part)
                        left -= len(part) >> BATCH_SHIFT
                inbox.append((first, identity, frames))
                left -= len(frames) >> FRAMES_SHIFT
                # One alone is frequent, and to find out by being refused the next costs ten times as much.
                if left == BATCH - 1:
                    events.ask()
                    if not events.answer.value & _READABLE:
                        return
        except zmq.Again:
            pass

    def _handle(self) -> None:
        """Handle the batch, until the time is up."""
        receive, inbox = self._receive, self._inbox
        self._deliveries = 0
        while inbox:
            self._frame, identity, frames = inbox.popleft()
            try:
                connection = self._frame.get(_SOURCE)
            except zmq.ZMQError:
                connection = -1  # inside the process
            try:
                receive(identity, frames, connection)
            except Exception:
                self.log.failure("a message to {name} made the broker fail", name=self._name)
            self._deliveries += MANY // 8
            if self._deliveries >= MANY:
                self._deliveries = 0
                if self._turns.over():
                    return

    def took(self, seconds: float) -> None:
        """How long that took says nothing: many peers share it."""

    def flush(self) -> None:
        """Nothing is gathered: libzmq does that."""

    def abort(self) -> None:
        """A defect of ours must not end it: it goes on."""
        self._rest()

    def _rest(self) -> None:
        """Read nothing for a while: it may seem to be readable all the time."""
        if self.factory is not None:
            self._queued = False
            self._clock.removeReader(self)
            self._read_soon(RETRY)

    def sender(self) -> Sender:
        """Who sent the message that is being received."""
        address = address_of(self._property(b"Peer-Address"))
        return Sender(address, self.key(), self._property(b"Socket-Type"))

    def key(self) -> str:
        """The CURVE public key of that sender, empty without CURVE, where peers may call themselves what they like."""
        return self._property(b"User-Id") if self._curve else ""

    def _property(self, name: bytes) -> str:
        assert self._frame is not None
        try:
            return self._frame.get(name)
        except (zmq.ZMQError, UnicodeDecodeError):
            return ""

    # sending

    def send(self, identity: bytes, frames: Sequence[Part]) -> Sent:
        """Send one message, whole or not at all. ``identity`` counts where the kind of socket has any."""
        if self.factory is None:
            return Sent.GONE
        if not self._reading:
            self._read_soon()
        size, handle = sum(map(len, frames)), None
        if size >= LARGE or len(frames) > FEW:
            size = _size(frames)
            if size >= LARGE:
                if not self._backlogs.has_room(identity, size):
                    return Sent.FULL
                size = self._backlogs.follow(identity, size)
                if size:
                    frames, handle = _handled(frames)
                else:
                    frames = self._with_shared(frames)
        send = self._send
        *head, last = frames
        begun = False
        try:
            if self._identified:
                send(identity, _MORE)
                begun = True
            for part in head:
                send(part, _MORE)
                begun = True
            send(last, _NOW)
        except BaseException as error:
            if begun:
                send(b"", _NOW)  # what was begun would otherwise become the beginning of the next message
            elif isinstance(error, zmq.ZMQError):
                return _refused(error)
            raise
        if handle is not None:
            self._backlogs.add(identity, handle.tracker, size)
        return Sent.SENT

    def _with_shared(self, frames: Sequence[Part]) -> Sequence[Part]:
        """The same frames, the largest of them shared: also with those who were sent the same one just before."""
        own = list(frames)
        largest = max(range(len(own)), key=lambda index: len(own[index]))
        part = own[largest]
        if self._large[0] is not part:
            self._large = (part, _shared(part))
        own[largest] = self._large[1]
        return own

    def send_all(self, receivers: Collection[R], frames: Sequence[Part], now: float) -> list[tuple[R, Sent]]:
        """Send the same message to many, and stamp their ``sent``. Returns those who did not get it, and why."""
        if self.factory is None:
            return [(receiver, Sent.GONE) for receiver in receivers]
        if not self._reading:
            self._read_soon()
        send = self._send
        failed: list[tuple[R, Sent]] = []
        size = sum(map(len, frames))
        if size >= SHARED or len(frames) > FEW:
            size = _size(frames)
            if size >= LARGE:
                return self._send_large(receivers, frames, now)
            frames = list(map(_shared, frames))
        self._deliveries += len(receivers)
        if len(receivers) >= SEVERAL and self._vectors.suit(frames, size):
            return self._vectors.send(receivers, frames, now)
        *head, last = frames
        try:
            for receiver in receivers:
                if receiver.held:
                    failed.append((receiver, Sent.HELD))
                    continue
                try:
                    send(receiver.identity, _MORE)
                except zmq.ZMQError as error:
                    failed.append((receiver, _refused(error)))
                    continue
                for part in head:
                    send(part, _MORE)
                send(last, _NOW)
                receiver.sent = now
        except BaseException:
            send(b"", _NOW)
            raise
        return failed

    def _send_large(self, receivers: Collection[R], frames: Sequence[Part], now: float) -> list[tuple[R, Sent]]:
        """The same for a message whose bytes are counted: each receiver gets a handle of its own on what they share."""
        failed: list[tuple[R, Sent]] = []
        frames = list(map(_shared, frames))
        for receiver in receivers:
            sent = Sent.HELD if receiver.held else self.send(receiver.identity, frames)
            if sent is Sent.SENT:
                receiver.sent = now
            else:
                failed.append((receiver, sent))
        return failed

    def send_each(
        self, receivers: Collection[N], frame: bytes, at: int, body: Part, now: float
    ) -> list[tuple[N, Sent]]:
        """See `broker.session.router.NumberingRouter`.

        Two frames are so few that `broker.net.zvectors` would save nothing.
        """
        own = bytearray(frame)
        size = len(own) + len(body)
        self._deliveries += len(receivers)
        if len(receivers) > 1:
            body = _shared(body)
        if size >= LARGE or self.factory is None:
            return self._send_each_large(receivers, own, at, body, now)
        if not self._reading:
            self._read_soon()
        send, write = self._send, _write_number
        failed: list[tuple[N, Sent]] = []
        begun = False
        try:
            for receiver in receivers:
                receiver.sequence = sequence = receiver.sequence + 1
                if receiver.held:
                    failed.append((receiver, Sent.HELD))
                    continue
                write(own, at, sequence)
                try:
                    send(receiver.identity, _MORE)
                except zmq.ZMQError as error:
                    failed.append((receiver, _refused(error)))
                    continue
                begun = True
                send(own, _MORE)
                send(body, _NOW)
                begun = False
                receiver.sent = now
        except BaseException:
            if begun:
                send(b"", _NOW)
            raise
        return failed

    def _send_each_large(
        self, receivers: Collection[N], frame: bytearray, at: int, body: Part, now: float
    ) -> list[tuple[N, Sent]]:
        """The same for a message whose bytes are counted, as in `_send_large`."""
        failed: list[tuple[N, Sent]] = []
        for receiver in receivers:
            receiver.sequence += 1
            _write_number(frame, at, receiver.sequence)
            sent = Sent.HELD if receiver.held else self.send(receiver.identity, (bytes(frame), body))
            if sent is Sent.SENT:
                receiver.sent = now
            else:
                failed.append((receiver, sent))
        return failed

    def forget(self, identity: bytes) -> None:
        """That identity is not used any more."""
        self._backlogs.forget(identity)
        self._vectors.forget(identity)

    def _read_soon(self, seconds: float = 0) -> None:
        if self._wakeup is None and self.factory is not None:
            self._wakeup = self._clock.callLater(seconds, self._wake)

    def _wake(self) -> None:
        self._wakeup = None
        self._clock.addReader(self)
        self.doRead()


def _shared(part: Part) -> Part:
    """A part that is sent to many: a long one as libzmq's own, which is not copied for each."""
    return part if type(part) is not bytes or len(part) < SHARED else zmq.Frame(part)


def _check_free(path: str) -> None:
    """Raise OSError if there is something at that path other than what a dead broker left: libzmq would remove it."""
    try:
        mode = os.lstat(path).st_mode
    except OSError:
        return  # there is nothing, or libzmq will say what is wrong
    if not stat.S_ISSOCK(mode):
        raise FileExistsError(errno.EEXIST, "there is a file that is no socket", path)
    with socket.socket(socket.AF_UNIX) as probe, contextlib.suppress(ConnectionRefusedError):
        probe.setblocking(False)
        probe.connect(path)
        raise OSError(errno.EADDRINUSE, os.strerror(errno.EADDRINUSE), path)


def _handled(frames: Sequence[Part]) -> tuple[Sequence[Part], zmq.Frame]:
    """The same frames, the largest of them as one that tells when libzmq is done with it. That frame is given too."""
    own = list(frames)
    largest = max(range(len(own)), key=lambda index: len(own[index]))
    own[largest] = handle = zmq.Frame(own[largest], track=True, copy=False)
    return own, handle


def _size(frames: Sequence[Part]) -> int:
    """The bytes that a message takes in a queue."""
    size = sum(map(len, frames))
    return size if len(frames) <= FEW else size + FRAME * len(frames)


def _refused(error: zmq.ZMQError) -> Sent:
    """What the refusal of a first frame means."""
    if error.errno == errno.EAGAIN:
        return Sent.FULL
    if error.errno == errno.EHOSTUNREACH:
        return Sent.GONE
    raise error


def _lose(identity: bytes, frames: list[Part], connection: int) -> None:
    """What comes in before anybody wants it: there is none."""
