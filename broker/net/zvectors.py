"""Short messages to many receivers, with one call of libzmq for each instead of one for each frame.

libzmq has the function, `zmq_sendiov`, and no manual page for it. It copies each frame, so it is for short ones. It
refuses a message at its first frame or not at all, as single sends do. Where it cannot be found it is not used.
"""

from __future__ import annotations

import ctypes
import errno
from collections.abc import Collection, Sequence

import zmq

from broker.net import zlibrary
from broker.session.router import R, Sent

SHORT = 1_024
"""Bytes of a message that is short: beyond, the copies cost what the calls save."""

SEVERAL = 4
"""Receivers from which on it pays to prepare the message for that."""

_FLAGS = int(zmq.NOBLOCK | zmq.SNDMORE)
"""libzmq takes the SNDMORE off for the last frame."""

_REFUSED = {errno.EAGAIN: Sent.FULL, errno.EHOSTUNREACH: Sent.GONE}


class _Vector(ctypes.Structure):
    """Where a frame is, and its length: libzmq's (the system's) iovec."""

    _fields_ = (("base", ctypes.c_char_p), ("length", ctypes.c_size_t))


class Vectors:
    """Sends through one socket. Keeps where the identities of receivers are, until they are forgotten."""

    def __init__(self, socket: zmq.Socket[bytes]) -> None:
        self._send = zlibrary.function("zmq_sendiov")
        self._handle = ctypes.c_void_p(socket.underlying)
        self._targets: dict[bytes, _Vector] = {}

    def suit(self, frames: Sequence[object], size: int) -> bool:
        """Whether a message of that size can be sent this way."""
        return self._send is not None and size < SHORT and all(type(frame) is bytes for frame in frames)

    def send(self, receivers: Collection[R], frames: Sequence[bytes], now: float) -> list[tuple[R, Sent]]:
        """See `broker.session.router.Router.send_all`."""
        send, targets = self._send, self._targets
        assert send is not None
        failed: list[tuple[R, Sent]] = []
        vectors = (_Vector * (len(frames) + 1))(_Vector(), *map(_vector, frames))
        call = (self._handle, ctypes.byref(vectors), ctypes.c_size_t(len(vectors)), _FLAGS)
        for receiver in receivers:
            if receiver.held:
                failed.append((receiver, Sent.HELD))
                continue
            target = targets.get(receiver.identity)
            if target is None:
                target = targets[receiver.identity] = _vector(receiver.identity)
            vectors[0] = target
            if send(*call) < 0:
                failed.append((receiver, _refusal()))
            else:
                receiver.sent = now
        return failed

    def forget(self, identity: bytes) -> None:
        """That receiver is not sent anything any more."""
        self._targets.pop(identity, None)


def _vector(data: bytes) -> _Vector:
    return _Vector(data, len(data))


def _refusal() -> Sent:
    """Why the last message was refused."""
    number = ctypes.get_errno()
    if number not in _REFUSED:
        raise zmq.ZMQError(number)
    return _REFUSED[number]
