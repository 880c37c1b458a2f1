"""A bare ROUTER that does what the test profile and the queues of MTL do: what the broker is compared with.

    python -m bench.references.mtl [SECRET-KEY-FILE]

It binds a ROUTER to a free port of 127.0.0.1, and prints its number. It grants every Lease, and sends each Content to
all who have sent a Summon, with a sequence of their own; a reader that is gone or full misses it. A Content of another
resource than that of the test profile goes to one reader, by turns, and is confirmed to its writer; nothing of it is
kept, and Confirms of readers are ignored. It forgets no reader, knows no other commands, and trusts its peers. If there
is nothing to do it waits inside libzmq.

It is pyzmq as fast as it goes: three calls for each delivery, of the extension's own method, with plain numbers for
flags; long bodies are shared by all receivers; what follows the sequence is checked once for each distinct value.
"""

from __future__ import annotations

import struct
from typing import Any

import zmq
from zmq.backend import Socket as BackendSocket

from bench.references.router import BACKLOG, LAST, MORE, SHARED, bound

_HEAD = struct.Struct(">BQ")
_LENGTH = struct.Struct(">I")
_CONTENT, _RESPONSE, _SUMMON, _CONFIRM = 5, 2, 3, 6

_FAN_OUT = b"\x08resource"
"""The resource of the test profile, as a short string."""

HIGH_WATER = 10_000
"""Messages that may wait for a peer: more than any load has on their way."""


class Tails(dict[bytes, bytes]):
    """The part of a well-formed Content behind its sequence: a short string and a table."""

    def __missing__(self, tail: bytes) -> bytes:
        at = 1 + tail[0]
        if not tail[1:at].decode().isprintable() or len(tail) != at + 4 + _LENGTH.unpack_from(tail, at)[0]:
            raise ValueError(f"not the tail of a Content: {tail!r}")
        self[tail] = tail
        return tail


def fan_out(router: zmq.Socket[bytes]) -> None:
    """Serve for ever."""
    send: Any = BackendSocket.send.__get__(router)
    recv: Any = BackendSocket.recv.__get__(router)
    unpack, pack = _HEAD.unpack_from, _HEAD.pack
    tails = Tails()
    sequences: dict[bytes, int] = {}
    turns: list[bytes] = []
    at = 0
    while True:
        identity = recv(0)
        header = recv(0)
        frame = recv(0, False)
        kind, sequence = unpack(header)
        if kind == _CONTENT:
            tail = tails[header[9:]]
            body = frame if len(frame) >= SHARED else frame.bytes
            if not tail.startswith(_FAN_OUT):
                if sequences:
                    reader = turns[at % len(turns)]
                    at += 1
                    sequences[reader] = number = sequences[reader] + 1
                    send(reader, MORE)
                    send(pack(_CONTENT, number) + tail, MORE)
                    send(body, LAST)
                send(identity, MORE)
                send(pack(_CONFIRM, sequence) + b"\0", MORE)
                send(b"", LAST)
                continue
            for reader in sequences:
                sequences[reader] = number = sequences[reader] + 1
                try:
                    send(reader, MORE)
                except zmq.ZMQError:
                    continue
                send(pack(_CONTENT, number) + tail, MORE)
                send(body, LAST)
        elif kind != _CONFIRM:
            if kind == _SUMMON:
                sequences[identity] = 0
                turns.append(identity)
            send(identity, MORE)
            send(pack(_RESPONSE, sequence), MORE)
            send(b"200", LAST)


if __name__ == "__main__":
    fan_out(bound({zmq.ROUTER_MANDATORY: 1, zmq.BACKLOG: BACKLOG, zmq.SNDHWM: HIGH_WATER}))
