"""A bare ROUTER loop that answers what DBP's peers ask with frames that were made beforehand.

    python -m bench.references.dbp

It binds a ROUTER to a free port of 127.0.0.1, and prints its number. It receives any message whole, and answers a
request for one of a thousand services, or for all of them, and every registration; to those it listens no further. It
keeps nothing, checks nothing, and trusts its peers. It is pyzmq as fast as it goes: see `bench.references.router`; the
list of all is shared by all answers.
"""

from __future__ import annotations

import struct
import time
from typing import Any

import zmq

from bench.peers.dbp import AGREED, SERVICES, listed, name
from bench.references.router import BACKLOG, LAST, MORE, bound, more_of


def answer(router: zmq.Socket[bytes]) -> None:
    """Answer for ever."""
    extension: Any = super(zmq.Socket, router)
    send, recv = extension.send, extension.recv
    more, ask, question = more_of(router)
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
        send(identity, MORE)
        send(b"", MORE)
        if command == b"u_U":
            send(b"o_O", MORE)
            send(pack(clock()), MORE)
            send(bodies[body], LAST)
        else:
            send(b"OwO", MORE)
            send(pack(clock()), MORE)
            if b'"interfaces"' in body:
                send(b"", LAST)
            else:
                send(AGREED, MORE)
                send(b"", MORE)
                send(b"", LAST)


if __name__ == "__main__":
    answer(bound({zmq.BACKLOG: BACKLOG}))
