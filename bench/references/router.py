"""A bare ROUTER of pyzmq, as fast as it goes: what the references of the ZeroMQ wires have in common.

They use the methods of the extension itself with plain numbers for flags, and ask libzmq directly for further frames.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable
from pathlib import Path

import zmq
from zmq.backend.cython import _zmq

MORE = int(zmq.SNDMORE | zmq.NOBLOCK)
LAST = int(zmq.NOBLOCK)

SHARED = 256
"""Bytes from which a body is shared by its receivers: copying a shorter one costs less than counting who has it."""

BACKLOG = 1_024
"""Connections that wait to be accepted: the broker has as many, and with fewer connects are measured in seconds."""

_lib = ctypes.PyDLL(_zmq.__file__)  # the symbols of libzmq are found through the extension that needs it


def bound(options: dict[int, int]) -> zmq.Socket[bytes]:
    """Bind a ROUTER to a free port of 127.0.0.1, and print its number. If the command line names a file with a secret
    key, it wants CURVE."""
    router = zmq.Context().socket(zmq.ROUTER)
    for option, value in options.items():
        router.set(option, value)
    if len(sys.argv) > 1:
        router.curve_server = True
        router.curve_secretkey = Path(sys.argv[1]).read_bytes().split()[0]
    print(router.bind_to_random_port("tcp://127.0.0.1"), flush=True)
    return router


def more_of(router: zmq.Socket[bytes]) -> tuple[ctypes.c_int, Callable[..., object], tuple[object, ...]]:
    """The flag of the last frame that says if another follows, and the function and arguments that set it."""
    more, size = ctypes.c_int(), ctypes.c_size_t(ctypes.sizeof(ctypes.c_int))
    question = ctypes.c_void_p(router.underlying), int(zmq.RCVMORE), ctypes.byref(more), ctypes.byref(size)
    return more, _lib.zmq_getsockopt, question
