"""A bare mc0 server that does no more than forward messages: what the broker is compared with.

    python -m bench.references.mc0 [SECRET-KEY-FILE]

It binds a ROUTER to a free port of 127.0.0.1, and prints its number. It receives any message whole, answers commands
that have an ID, keeps who subscribed to which topic, and forwards what is published. It forgets nobody, checks nothing,
and trusts its peers. If there is nothing to do it waits inside libzmq.

It is pyzmq as fast as it goes: the methods of the extension itself with plain numbers for flags, libzmq asked directly
whether there is more, long bodies shared by all receivers, and a way of its own for each usual message.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import zmq
from zmq.backend.cython import _zmq

SHARED = 256
"""Bytes from which a body is shared by its receivers: copying a shorter one costs less than counting who has it."""

HOST = "tcp://127.0.0.1"

_MORE = int(zmq.SNDMORE | zmq.NOBLOCK)
_LAST = int(zmq.NOBLOCK)

_lib = ctypes.PyDLL(_zmq.__file__)  # the symbols of libzmq are found through the extension that needs it


class Topics(dict[bytes, list[bytes]]):
    """The subscribers of each topic."""

    def handle(self, identity: bytes, frames: list[Any]) -> Iterator[tuple[bytes, list[Any]]]:
        """The messages that result from one message (without its delimiter), by receiver."""
        end = frames.index(b"") if b"" in frames else len(frames)
        verb, body = frames[0], frames[end + 1 :]
        headers = dict(zip(frames[1:end:2], frames[2:end:2], strict=False))
        answered = headers.pop(b"ID", None)
        if verb == b"PUT":
            message = [b"", b"MESSAGE", *(part for header in headers.items() for part in header), b"", *body]
            for receiver in self.get(headers[b"TOPIC"], ()):
                yield receiver, message
        elif verb == b"SUB":
            for topic in body:
                receivers = self.setdefault(topic, [])
                if identity not in receivers:
                    receivers.append(identity)
        elif verb == b"UNSUB":
            for topic in body:
                if identity in self.get(topic, ()):
                    self[topic].remove(identity)
        if answered is not None:
            yield identity, [b"", b"OK", b"ID", answered]


def tuned(router: zmq.Socket[bytes]) -> None:
    """Forward for ever."""
    extension: Any = super(zmq.Socket, router)
    send, recv = extension.send, extension.recv
    topics = Topics()
    socket = ctypes.c_void_p(router.underlying)
    more, size = ctypes.c_int(), ctypes.c_size_t(ctypes.sizeof(ctypes.c_int))
    ask, question = _lib.zmq_getsockopt, (socket, int(zmq.RCVMORE), ctypes.byref(more), ctypes.byref(size))
    while True:
        identity = recv(0)
        recv(0)
        frames: list[Any] = []
        append = frames.append
        ask(*question)
        while more.value:
            frame = recv(0)
            append(frame)
            ask(*question)
            if not frame:  # the body is next
                while more.value:
                    frame = recv(0, False)
                    append(frame if len(frame) >= SHARED else frame.bytes)
                    more.value = frame.more
        if len(frames) == 5 and frames[0] == b"PUT":
            _, key, topic, _, body = frames
            receivers = topics.get(topic, ())
            for receiver in receivers:
                send(receiver, _MORE)
                send(b"", _MORE)
                send(b"MESSAGE", _MORE)
                send(key, _MORE)
                send(topic, _MORE)
                send(b"", _MORE)
                send(body, _LAST)
        elif len(frames) == 7 and frames[1] == b"ID" and frames[4] not in topics:
            send(identity, _MORE)
            send(b"", _MORE)
            send(b"OK", _MORE)
            send(b"ID", _MORE)
            send(frames[2], _LAST)
        else:
            for receiver, message in topics.handle(identity, frames):
                router.send_multipart([receiver, *message], _LAST)


def main() -> None:
    """Run it until it is killed."""
    files = sys.argv[1:]
    router = zmq.Context().socket(zmq.ROUTER)
    if files:
        router.curve_server = True
        router.curve_secretkey = Path(files[0]).read_bytes().split()[0]
    print(router.bind_to_random_port(HOST), flush=True)
    tuned(router)


if __name__ == "__main__":
    main()
