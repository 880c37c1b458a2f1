"""What a socket must be asked all the time: whether its message goes on, and whether there is another one.

pyzmq's own way looks the option up in an enumeration, which costs four times what receiving a frame does. So libzmq is
asked directly where the extension of pyzmq gives access to it, and through pyzmq elsewhere.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import partial

import zmq

from broker.net import zlibrary


class Option:
    """A number that one socket has. After ``ask()`` it is in ``answer.value``."""

    def __init__(self, socket: zmq.Socket[bytes], option: zmq.SocketOption) -> None:
        self.answer = ctypes.c_int()
        self.ask: Callable[[], object] = _direct(socket, option, self.answer) or partial(
            _through_pyzmq, socket, option, self.answer
        )


def _direct(socket: zmq.Socket[bytes], option: int, answer: ctypes.c_int) -> Callable[[], object] | None:
    """libzmq's own function for that, if it can be found."""
    getsockopt = zlibrary.function("zmq_getsockopt")
    if getsockopt is None:
        return None
    handle, number = ctypes.c_void_p(socket.underlying), ctypes.c_int(int(option))
    size = ctypes.c_size_t(ctypes.sizeof(answer))
    return partial(getsockopt, handle, number, ctypes.byref(answer), ctypes.byref(size))


def _through_pyzmq(socket: zmq.Socket[bytes], option: int, answer: ctypes.c_int) -> None:
    answer.value = int(socket.get(option))
