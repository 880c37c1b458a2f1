"""A bare ROUTER loop that answers what DBP's peers ask with frames that were made beforehand.

    python -m bench.references.dbp

It binds a ROUTER to a free port of 127.0.0.1, and prints its number. It receives any message whole, and answers a
request for one of a thousand services, or for all of them, and every registration; to those it listens no further. It
keeps nothing, checks nothing, and trusts its peers. It is pyzmq as fast as it goes: the methods of the extension itself
with plain numbers for flags, libzmq asked directly whether there is more, and the list of all shared by all answers.
"""

from __future__ import annotations

import ctypes
import struct
import time
from typing import Any

import zmq
from zmq.backend.cython import _zmq

from bench.peers.dbp import AGREED, SERVICES, listed, name

HOST = "tcp://127.0.0.1"

_MORE = int(zmq.SNDMORE | zmq.NOBLOCK)
_LAST = int(zmq.NOBLOCK)

_lib = ctypes.PyDLL(_zmq.__file__)  # the symbols of libzmq are found through the extension that needs it


def answer(router: zmq.Socket[bytes]) -> None:
    """Answer for ever."""
    extension: Any = super(zmq.Socket, router)
    send, recv = extension.send, extension.recv
    socket = ctypes.c_void_p(router.underlying)
    more, size = ctypes.c_int(), ctypes.c_size_t(ctypes.sizeof(ctypes.c_int))
    ask, question = _lib.zmq_getsockopt, (socket, int(zmq.RCVMORE), ctypes.byref(more), ctypes.byref(size))
    bodies: dict[bytes, Any] = {name(number).encode(): listed([number]) for number in range(SERVICES)}
    bodies[b""] = zmq.Frame(listed(range(SERVICES)))
    pack, clock = struct.Struct("<f").pack, time.time
    while True:
        identity = recv(0)
        recv(0)
        command = recv(0)
        recv(0)
        body = recv(0)
        ask(*question)
        while more.value:
            recv(0)
            ask(*question)
        send(identity, _MORE)
        send(b"", _MORE)
        if command == b"u_U":
            send(b"o_O", _MORE)
            send(pack(clock()), _MORE)
            send(bodies[body], _LAST)
        else:
            send(b"OwO", _MORE)
            send(pack(clock()), _MORE)
            if b'"interfaces"' in body:
                send(b"", _LAST)
            else:
                send(AGREED, _MORE)
                send(b"", _MORE)
                send(b"", _LAST)


def main() -> None:
    """Run it until it is killed."""
    router = zmq.Context().socket(zmq.ROUTER)
    router.set(zmq.BACKLOG, 1_024)
    print(router.bind_to_random_port(HOST), flush=True)
    answer(router)


if __name__ == "__main__":
    main()
