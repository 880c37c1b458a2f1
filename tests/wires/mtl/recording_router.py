"""A ROUTER of lists for the flows of MTL: `broker.net.interfaces.router`, keeping what it is given."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from itertools import count

from broker.net.interfaces.router import NUMBER, Conversation, N, Part, R, Sender, Sent

REPLIES = 100
"""Answers that wait for one connection where there is no room for a message."""


class Line:
    """One connection. ``room`` is the number of messages for which there is room; None for any number."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.inbox: list[tuple[bytes, ...]] = []
        self.waiting: deque[tuple[bytes, ...]] = deque()
        """Answers that wait for room."""
        self.starved = False
        """A message was refused since there was room."""
        self.room: int | None = None

    def put(self, frames: tuple[bytes, ...]) -> bool:
        """Take a message. Returns whether there is room for it."""
        if self.room is not None:
            if self.room == 0:
                return False
            self.room -= 1
        self.inbox.append(frames)
        return True

    def have_room(self, room: int | None) -> None:
        """From now on there is room for so many more messages, and first for answers that wait."""
        self.room = room
        while self.waiting and self.put(self.waiting[0]):
            self.waiting.popleft()


class RecordingRouter:
    """The ROUTER. Its connections are in ``lines``, by identity."""

    def __init__(self) -> None:
        self.lines: dict[bytes, Line] = {}
        self.refused = 0
        """Messages for which there was no room."""
        self._numbers = count(1)
        self._sender: Sender | None = None

    # connections

    def connect(self, identity: bytes, conversation: Conversation) -> Line:
        """A new connection, which takes the place of another one with the same identity."""
        if identity in self.lines:
            self.close(identity, conversation)
        line = self.lines[identity] = Line(next(self._numbers))
        return line

    def close(self, identity: bytes, conversation: Conversation) -> None:
        """A connection ends, and what waits in it is lost."""
        line = self.lines.pop(identity)
        line.inbox.clear()
        line.waiting.clear()
        conversation.closed(line.number)

    def read(self, identity: bytes, conversation: Conversation, room: int | None = None) -> None:
        """A peer reads so much that there is room again, for so many more messages."""
        line = self.lines[identity]
        line.have_room(room)
        if line.starved and line.room != 0:
            line.starved = False
            conversation.room(identity)

    @contextmanager
    def receiving(self, sender: Sender) -> Iterator[None]:
        """A message of that sender is received."""
        self._sender = sender
        try:
            yield
        finally:
            self._sender = None

    # what sessions call

    def send(self, identity: bytes, frames: Sequence[Part]) -> Sent:
        message = _checked(frames)
        line = self.lines.get(identity)
        if line is None:
            return Sent.GONE
        if line.put(message):
            return Sent.SENT
        line.starved = True
        self.refused += 1
        return Sent.FULL

    def reply(self, identity: bytes, frames: Sequence[Part]) -> Sent:
        message = _checked(frames)
        line = self.lines.get(identity)
        if line is None:
            return Sent.GONE
        if not line.put(message):
            if len(line.waiting) == REPLIES:
                return Sent.FULL
            line.waiting.append(message)
        return Sent.SENT

    def send_all(self, receivers: Collection[R], frames: Sequence[Part], now: float) -> list[tuple[R, Sent]]:
        raise AssertionError("no two flows are sent the same header")

    def send_each(
        self, receivers: Collection[N], frame: bytes, at: int, body: Part, now: float
    ) -> list[tuple[N, Sent]]:
        failed: list[tuple[N, Sent]] = []
        for receiver in receivers:
            receiver.sequence += 1
            header = frame[:at] + receiver.sequence.to_bytes(NUMBER) + frame[at + NUMBER :]
            sent = self.send(receiver.identity, (header, body))
            if sent is Sent.SENT:
                receiver.sent = now
            else:
                failed.append((receiver, sent))
        return failed

    def sender(self) -> Sender:
        assert self._sender is not None, "this may only be asked while a message is received"
        return self._sender

    def key(self) -> str:
        return self.sender().key


def _checked(frames: Sequence[Part]) -> tuple[bytes, ...]:
    assert len(frames) >= 2
    assert all(type(frame) is bytes for frame in frames)
    return tuple(frames)
