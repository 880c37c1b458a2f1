"""A bare mc0 server that does no more than forward messages: what the broker is compared with.

    python -m bench.references.mc0 [SECRET-KEY-FILE]

It binds a ROUTER to a free port of 127.0.0.1, and prints its number. It receives any message whole, answers commands
that have an ID, keeps who subscribed to which topic, and forwards what is published. It forgets nobody, checks nothing,
and trusts its peers. If there is nothing to do it waits inside libzmq.

It is pyzmq as fast as it goes: see `bench.references.router`; long bodies are shared by all receivers, and each usual
message has a way of its own.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import zmq

from bench.references.router import LAST, MORE, SHARED, bound, more_of


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
    more, ask, question = more_of(router)
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
                send(receiver, MORE)
                send(b"", MORE)
                send(b"MESSAGE", MORE)
                send(key, MORE)
                send(topic, MORE)
                send(b"", MORE)
                send(body, LAST)
        elif len(frames) == 7 and frames[1] == b"ID" and frames[4] not in topics:
            send(identity, MORE)
            send(b"", MORE)
            send(b"OK", MORE)
            send(b"ID", MORE)
            send(frames[2], LAST)
        else:
            for receiver, message in topics.handle(identity, frames):
                router.send_multipart([receiver, *message], LAST)


if __name__ == "__main__":
    tuned(bound({}))
