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

import errno
import struct
import time
from collections import deque
from collections.abc import Callable, Collection, Sequence
from typing import Any

import zmq
from twisted.internet.interfaces import IDelayedCall
from twisted.logger import Logger
from txzmq import ZmqConnection
from zmq.backend import Socket as BackendSocket

from broker.net.backlogs import LARGE, Backlogs
from broker.net.listen import CannotListen
from broker.net.turns import Turns
from broker.net.unixpath import check_free
from broker.net.zap import address_of
from broker.net.zcontext import Options, ZContext, configure
from broker.net.zoptions import Option
from broker.net.zvectors import SEVERAL, Vectors
from broker.session.router import N, Part, R, Sender, Sent

SHARED = 256
"""Bytes from which a frame is shared instead of copied: below, counting who holds it costs more than the copy."""

FEW = 32
FRAME = 64
"""Bytes that a frame takes in libzmq's queues beside its content; they count in messages of more than a few frames."""

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

BREATH = 0.001
"""Seconds in which libzmq's thread, which has the processor then, sends hundreds of messages."""

RETRY = 1.0
"""Seconds until a socket whose read failed is read again."""

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
        self._receive: _Receive = lose
        self._turns = turns
        self._name = name
        self._clock = context.factory.reactor
        self._queued = True
        self._reading = False
        self._long = False
        """The frame that was received last is a long one. The next message is often like it."""
        self._wakeup: IDelayedCall | None = None
        self._inbox: deque[tuple[zmq.Frame, bytes, list[Part]]] = deque()
        self._frame: zmq.Frame | None = None
        self.known: dict[int, bytes] = {}
        """Whose messages come through which connection, by descriptor, as far as ``place`` knows."""
        self.place: Callable[[bytes, int], int] | None = None
        """Says which descriptor to give with a message of somebody else: see `broker.net.zmonitor.Connections`."""
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
            configure(self.socket, options)
        except BaseException:
            self.shutdown()
            raise
        self._queued = False

    # opening and closing

    def bind(self, address: str, receive: _Receive) -> str:
        """Listen. Returns the address with the port that it got. Raises `zmq.ZMQError` or OSError."""
        self._receive = receive
        kind, _, path = address.partition("://")
        if kind == "ipc" and not path.startswith("@"):
            check_free(path)
        if "[" in address:
            self.socket.set(zmq.IPV6, 1)
        self.socket.bind(address)
        self._read_soon()
        return str(self.socket.get(zmq.LAST_ENDPOINT).decode())

    def unbind(self, address: str) -> None:
        """Listen no more at an address that `bind` gave."""
        self.socket.unbind(address)

    def connect(self, address: str, receive: _Receive) -> None:
        """Connect, now or whenever the other side is there."""
        self._receive = receive
        self.socket.connect(address)
        self._read_soon()

    def hand_to(self, receive: _Receive) -> None:
        """From now on what comes in goes there."""
        self._receive = receive

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
        left = turns.messages()
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

    def read_all(self) -> None:
        """Receive and handle all that has come, however long that takes."""
        while self.factory is not None:
            if not self._inbox:
                self._fill()
            if not self._inbox:
                return
            self._handle()

    def _fill(self) -> None:
        """Receive a batch, or as much as there is."""
        recv, identified, inbox = self._recv, self._identified, self._inbox
        ask, answer, events = self._more.ask, self._more.answer, self._events
        identity, left = b"", BATCH
        long = self._long
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
                    if part and not long:
                        part = recv(_NOW)
                        frames.append(part)
                        ask()
                        more = answer.value
                        if len(part) >= SHARED:
                            long = True
                            left -= len(part) >> BATCH_SHIFT
                    else:  # behind an empty frame there is often a long one, as where the last message had one
                        frame = recv(_NOW, False)
                        more = frame.more
                        long = len(frame) >= SHARED
                        part = frame if long else frame.bytes
                        frames.append(part)
                        left -= len(part) >> BATCH_SHIFT
                inbox.append((first, identity, frames))
                left -= len(frames) >> FRAMES_SHIFT
                # One alone is frequent, and to find out by being refused the next costs ten times as much.
                if len(inbox) == 1:
                    events.ask()
                    if not events.answer.value & _READABLE:
                        return
        except zmq.Again:
            pass
        finally:
            self._long = long

    def _handle(self) -> None:
        """Handle the batch, until the time is up."""
        receive, inbox, place, known = self._receive, self._inbox, self.place, self.known
        self._deliveries = 0
        while inbox:
            self._frame, identity, frames = inbox.popleft()
            try:
                connection = self._frame.get(_SOURCE)
            except zmq.ZMQError:
                connection = -1  # inside the process
            else:
                if place is not None and known.get(connection) != identity:
                    connection = place(identity, connection)
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

    def breathe(self, wait: bool) -> None:
        """See `broker.session.router.NumberingRouter`."""
        if wait:
            time.sleep(BREATH)
        if self.factory is not None:
            if not self._reading:
                self._read_soon()
            self._events.ask()  # sending itself looks once in a millisecond only

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


def unbound(where: str, error: OSError | zmq.ZMQError) -> CannotListen:
    """The failure of a `ZSocket.bind`, or of what a wire binds with it, at ``where``."""
    return CannotListen(f"cannot listen on {where}: {zmq.strerror(error.errno or 0)}")


def _shared(part: Part) -> Part:
    """A part that is sent to many: a long one as libzmq's own, which is not copied for each."""
    return part if type(part) is not bytes or len(part) < SHARED else zmq.Frame(part)


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


def lose(identity: bytes, frames: list[Part], connection: int) -> None:
    """For what comes in and nobody wants."""
