"""A ROUTER in memory, which records the messages that sessions send: the double of `broker.net.peer_interfaces`."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from itertools import count

from broker.access.identity import owner_of
from broker.net.peer_interfaces import NUMBER, Conversation, N, Part, R, Sender, Sent

Frames = list[Part]


class Line:
    """One connection.

    ``room`` is the number of messages for which there is room; None for any number. ``replies`` is the number of
    answers that may still wait once there is none. ``starved`` says that a message was refused since there was room.
    """

    def __init__(self, number: int, sender: Sender | None, max_replies: float) -> None:
        self.number = number
        self.sender = sender
        self.inbox: list[Frames] = []
        """Messages that the peer can read."""
        self.waiting: deque[Frames] = deque()
        """Answers that wait for room."""
        self.room: int | None = None
        self.replies = max_replies
        self.starved = False
        self._max_replies = max_replies

    def put(self, frames: Frames) -> bool:
        """Take a message. Returns False if there is no room for it."""
        if self.room is not None:
            if self.room == 0:
                return False
            self.room -= 1
        self.inbox.append(frames)
        return True

    def put_reply(self, frames: Frames) -> bool:
        """Take an answer, or let it wait. Returns False if too many wait."""
        if not self.put(frames):
            if self.replies == 0:
                return False
            self.replies -= 1
            self.waiting.append(frames)
        return True

    def have_room(self, room: int | None) -> None:
        """Set the room for further messages, and fill it with answers that wait."""
        self.room = room
        while self.waiting and (self.room is None or self.room > 0):
            self.put(self.waiting.popleft())
        if self.room != 0:
            self.replies = self._max_replies - len(self.waiting)

    def read(self) -> list[Frames]:
        """Take the messages that the peer can read."""
        taken = self.inbox[:]
        self.inbox.clear()
        return taken

    def take(self) -> list[Frames]:
        """Take all messages that were sent, also answers that wait for room."""
        taken = [*self.inbox, *self.waiting]
        self.inbox.clear()
        self.waiting.clear()
        return taken


class RecordingRouter:
    """The ROUTER. Its connections are in ``lines``, by identity; ``refused`` counts messages that found no room.

    An identity belongs to one connection at a time, and a new one replaces it. If the peer gives a `Sender`, only one
    with the same owner does, and ``owner`` returns that; any other is refused, and so is one that ``claim`` does not
    accept for a free identity.

    ``max_replies`` answers wait for a connection without room; ``check`` is called with each message that is sent, and
    ``fan_out`` is False for a wire that never sends one message to many.
    """

    def __init__(
        self,
        *,
        max_replies: float = float("inf"),
        fan_out: bool = False,
        check: Callable[[Frames], object] = list,
        claim: Callable[[bytes, Sender], bool] | None = None,
        owner: Callable[[Sender], str] = lambda sender: owner_of("", sender.address, sender.key),
    ) -> None:
        self.lines: dict[bytes, Line] = {}
        self.ended: dict[int, Line] = {}
        """The connections that the sessions closed, by number: their peers can read what was sent before."""
        self.refused = 0
        self.claim = claim
        self.owner = owner
        self._max_replies = max_replies
        self._fan_out = fan_out
        self._check = check
        self._conversation: Conversation
        self._opened: Callable[[bytes, int], object] = lambda *_: None
        self._numbers = count(1)
        self._sender: Sender | None = None

    def serve(
        self,
        conversation: Conversation,
        claim: Callable[[bytes, Sender], bool] = lambda *_: True,
        opened: Callable[[bytes, int], object] = lambda *_: None,
    ) -> None:
        """Pass the ends of connections, and new room, to that conversation from now on, and new connections of a known
        sender to ``opened``. The claims are those of the constructor."""
        self._conversation = conversation
        self._opened = opened

    # connections

    def connect(self, identity: bytes, sender: Sender | None = None) -> Line | None:
        """Open a connection. Returns None if it is refused."""
        old = self.lines.get(identity)
        if old is not None:
            if sender is not None and old.sender is not None and self.owner(sender) != self.owner(old.sender):
                return None
            self.close(identity)
        elif sender is not None and self.claim is not None and not self.claim(identity, sender):
            return None
        line = self.lines[identity] = Line(next(self._numbers), sender, self._max_replies)
        self._open(identity, line)
        return line

    def reopen(self) -> None:
        """All peers have connected again, to a broker that was restarted. The connections keep their numbers."""
        for identity, line in self.lines.items():
            self._open(identity, line)

    def _open(self, identity: bytes, line: Line) -> None:
        if line.sender is not None:
            with self.receiving(line.sender):
                self._opened(identity, line.number)

    def close(self, identity: bytes) -> None:
        """End the connection with that identity. Messages that wait in it are lost."""
        line = self.lines.pop(identity)
        line.inbox.clear()
        line.waiting.clear()
        self._conversation.closed(line.number)

    def read(self, identity: bytes, room: int | None = None) -> None:
        """Let a peer read until there is room for so many more messages, or for any number."""
        line = self.lines[identity]
        line.have_room(room)
        if line.starved and line.room != 0:
            line.starved = False
            self._conversation.room(identity)

    @contextmanager
    def receiving(self, sender: Sender) -> Iterator[None]:
        """Receive a message of that sender in the meantime."""
        self._sender = sender
        try:
            yield
        finally:
            self._sender = None

    # what sessions call

    def end(self, identity: bytes, number: int) -> None:
        line = self.lines.get(identity)
        if line is not None and line.number == number:
            self.ended[number] = self.lines.pop(identity)
            self._conversation.closed(number)

    def send(self, identity: bytes, frames: Sequence[Part]) -> Sent:
        message = self._checked(frames)
        line = self.lines.get(identity)
        if line is None:
            return Sent.GONE
        if line.put(message):
            return Sent.SENT
        line.starved = True
        self.refused += 1
        return Sent.FULL

    def reply(self, identity: bytes, frames: Sequence[Part]) -> Sent:
        message = self._checked(frames)
        line = self.lines.get(identity)
        if line is None:
            return Sent.GONE
        return Sent.SENT if line.put_reply(message) else Sent.FULL

    def send_all(self, receivers: Collection[R], frames: Sequence[Part], now: float) -> list[tuple[R, Sent]]:
        assert self._fan_out, "this wire sends no message to many"
        failed: list[tuple[R, Sent]] = []
        for receiver in receivers:
            sent = self.send(receiver.identity, frames)
            if sent is Sent.SENT:
                receiver.sent = now
            else:
                failed.append((receiver, sent))
        return failed

    def send_each(
        self, receivers: Collection[N], before: bytes, after: bytes, body: Part, now: float
    ) -> list[tuple[N, Sent]]:
        failed: list[tuple[N, Sent]] = []
        for receiver in receivers:
            receiver.sequence += 1
            header = before + receiver.sequence.to_bytes(NUMBER) + after
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

    def _checked(self, frames: Sequence[Part]) -> Frames:
        assert len(frames) >= 2
        assert all(type(frame) is bytes for frame in frames)
        message = list(frames)
        self._check(message)
        return message
