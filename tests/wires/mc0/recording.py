"""mc0 without sockets: real sessions, topics, leases and codec over a ROUTER of lists, and a clock that tests turn.

Messages are written as in `tests.wires.mc0.codec.examples`: frames between bars, each character one byte, no delimiter.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import count
from typing import Any

from twisted.internet.task import Clock
from twisted.logger import ILogObserver, LogEvent, LogLevel, formatEvent, globalLogPublisher
from twisted.python.failure import Failure
from zope.interface import provider

from broker.core.counters import Counters
from broker.core.liveness import Leases
from broker.core.model import KnownSession
from broker.core.registry import Registry
from broker.core.restored_services import Restored
from broker.core.topics import Topics
from broker.net.interfaces.router import Part, R, Sender, Sent
from broker.net.rate_limits import Complaints
from broker.wires.common.registry_topics import FarmTopics
from broker.wires.common.topic_rules import TopicRule
from broker.wires.mc0.sessions.admission import Admission
from broker.wires.mc0.sessions.conversation import Mc0
from broker.wires.mc0.sessions.session import Session
from tests.wires.mc0.codec.examples import read_as_the_connector

STEP = 0.05
"""Seconds that the clock goes on at a time: a busy broker's turns are shorter."""

REPLIES = 3
"""Answers that may wait for a peer beyond the messages: few, so that tests come to the end of them."""


class Line:
    """One connection as the ROUTER has it, and what was sent through it, whether its peer has read that or not.

    ``room`` is how many more messages may wait in it, None while the peer reads all; ``replies`` is the same for
    answers, once there is no room for messages.
    """

    def __init__(self, number: int, sender: Sender) -> None:
        self.number = number
        self.sender = sender
        self.room: int | None = None
        self.replies = REPLIES
        self.inbox: list[list[Part]] = []
        self.refused = False
        """True if a message was refused for want of room."""


class RecordingRouter:
    """A ROUTER that keeps what it is given, by connection.

    An identity belongs to one connection at a time. Another one with the same key (without keys, from the same host)
    replaces it; any other is refused, and so is one whose key ``claim`` does not accept for a free identity.
    """

    def __init__(self) -> None:
        self.lines: dict[bytes, Line] = {}
        self.sessions: Mc0
        self.claims = True
        """False for a ROUTER that does not ask."""
        self._sender: Sender | None = None
        self._numbers = count(1)

    # connections

    def open(self, identity: bytes, sender: Sender) -> Line | None:
        """A connection's handshake. Returns None if it is refused."""
        old = self.lines.get(identity)
        if old is None:
            if self.claims and not self.sessions.claim(identity, sender.key):
                return None
        elif (old.sender.key or old.sender.address) != (sender.key or sender.address):
            return None
        else:
            self.close(identity)
        line = self.lines[identity] = Line(next(self._numbers), sender)
        return line

    def close(self, identity: bytes) -> None:
        """The connection with that identity ends, and what waits in it is lost."""
        line = self.lines.pop(identity)
        line.inbox.clear()
        self.sessions.closed(line.number)

    def read(self, identity: bytes) -> None:
        """The peer reads all that waits, and all that follows."""
        line = self.lines[identity]
        line.room = None
        line.replies = REPLIES
        if line.refused:
            line.refused = False
            self.sessions.room(identity)

    # messages

    def send(self, identity: bytes, frames: Sequence[Part]) -> Sent:
        line = self.lines.get(identity)
        if line is None:
            return Sent.GONE
        if line.room == 0:
            line.refused = True
            return Sent.FULL
        if line.room is not None:
            line.room -= 1
        self._keep(line, frames)
        return Sent.SENT

    def reply(self, identity: bytes, frames: Sequence[Part]) -> Sent:
        line = self.lines.get(identity)
        if line is None or line.room != 0:
            return self.send(identity, frames)
        if line.replies == 0:
            return Sent.FULL
        line.replies -= 1
        self._keep(line, frames)
        return Sent.SENT

    def _keep(self, line: Line, frames: Sequence[Part]) -> None:
        """Keep a message. Nothing may be sent that the real connector cannot read: an empty header value, above all."""
        assert all(type(frame) is bytes for frame in frames)
        verb, headers, _ = read_as_the_connector(list(frames))
        assert verb in (b"OK", b"ERROR", b"MESSAGE", b"NOOP"), verb
        assert b"" not in headers
        line.inbox.append(list(frames))

    def send_all(self, receivers: Collection[R], frames: Sequence[Part], now: float) -> list[tuple[R, Sent]]:
        failed: list[tuple[R, Sent]] = []
        for receiver in receivers:
            sent = self.send(receiver.identity, frames)
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

    @contextmanager
    def receiving(self, sender: Sender) -> Iterator[None]:
        """A message of that sender is received."""
        self._sender = sender
        try:
            yield
        finally:
            self._sender = None


class SessionRecord:
    """Keeps how to describe the sessions that are to outlast a restart."""

    def __init__(self) -> None:
        self._sessions: dict[bytes, Callable[[], KnownSession | None]] = {}
        self.changes = 0
        """The number of times that something was to be written."""

    def remember_session(self, identity: bytes, describe: Callable[[], KnownSession | None]) -> None:
        self.changes += 1
        self._sessions[identity] = describe

    def forget_session(self, identity: bytes) -> None:
        self._sessions.pop(identity, None)

    def known(self) -> list[KnownSession]:
        """The sessions that the next start finds."""
        described = [describe() for describe in self._sessions.values()]
        return [each for each in described if each is not None]


class Mc0Farm:
    """The wire over its real neighbours.

    ``keys`` has the names of the allowed client keys; with ``any_key`` every key is allowed.
    """

    def __init__(
        self,
        *rules: TopicRule,
        keys: Mapping[str, str] | None = None,
        any_key: bool = False,
        sessions: int = 100,
        subscriptions: int = 100,
        clock: Clock | None = None,
        registry: Registry | None = None,
    ) -> None:
        self.clock = _clock() if clock is None else clock
        self.counters = Counters()
        self.complaints = Complaints(self.counters, self.clock)
        self.router = RecordingRouter()
        self.keys = dict(keys or {})
        self._any_key = any_key
        self._rules = rules
        self._limits = (sessions, subscriptions)
        self._start(_registry(self.clock) if registry is None else registry)

    def restart(self, known: Iterable[KnownSession] = ()) -> None:
        """The broker starts again, and knows nothing of its peers but this; their connections are there again."""
        for call in self.clock.getDelayedCalls():
            call.cancel()
        known = list(known)
        self._start(_registry(self.clock))
        self.wire.restore(known, keyed=self._any_key or bool(self.keys))

    def _start(self, registry: Registry) -> None:
        self.registry = registry
        self.leases = Leases(self.clock)
        self.topics = Topics()
        FarmTopics(registry, self.topics, self.leases)
        self.record = SessionRecord()
        self.admission = Admission(None if self._any_key else self.keys.get, self._rules)
        self.wire = Mc0(
            self.router,
            self.topics,
            self.leases,
            self.admission,
            self.complaints,
            self.record,
            *self._limits,
        )
        self.router.sessions = self.wire

    # from the operator

    def use(self, *rules: TopicRule, sessions: int | None = None, subscriptions: int | None = None) -> None:
        """Take other rules, and other limits if they are given."""
        self._rules = rules
        self._limits = (sessions or self._limits[0], subscriptions or self._limits[1])
        self.admission.use(rules)
        self.wire.use(*self._limits)

    def revoke(self, key: str) -> None:
        """That key is not allowed any more."""
        del self.keys[key]
        self.wire.revoke({key})

    # what there is

    def peer(self, identity: bytes | str = "A", key: str = "", address: str = "192.0.2.7") -> Mc0Peer:
        """A peer that has connected, and has said nothing."""
        return Mc0Peer(self, identity.encode() if isinstance(identity, str) else identity, key, address)

    def session(self, peer: Mc0Peer) -> Session | None:
        """The session of that peer's identity."""
        found = [session for session in self.wire.sessions() if session.identity == peer.identity]
        assert len(found) <= 1
        return found[0] if found else None

    def counted(self, name: str) -> int:
        """The counter NAME.REASON."""
        return {**self.counters.all(), **self.wire.counts()}.get(name, 0)

    def subscribers(self) -> dict[bytes, int]:
        """How many subscribers each topic has."""
        return {each.name: each.subscribers for each in self.topics.describe()}

    # time

    def wait(self, seconds: float, step: float = STEP) -> None:
        """Let the time pass as it does for a loop that is never busy for longer than ``step``."""
        self.clock.pump([step] * round(seconds / step))


class Mc0Peer:
    """A client with one DEALER: what it sends, and what it is sent."""

    def __init__(self, farm: Mc0Farm, identity: bytes, key: str, address: str) -> None:
        self._farm = farm
        self.identity = identity
        self.sender = Sender(address, key)
        self.connect()

    # its connection

    def connect(self) -> None:
        """Connect, once more if it is connected. The ROUTER may refuse that."""
        self.line = self._farm.router.open(self.identity, self.sender)

    def drop(self) -> None:
        """The connection ends, and what waited in it is lost."""
        assert self.line is not None
        assert self.connected
        self._farm.router.close(self.identity)

    @property
    def connected(self) -> bool:
        return self.line is not None and self._farm.router.lines.get(self.identity) is self.line

    def stop_reading(self, after: int = 0) -> None:
        """From now on it reads nothing, and so many more messages may wait for it."""
        if self.line is not None:
            self.line.room = after

    def read_on(self) -> None:
        """It reads again."""
        if self.connected:
            self._farm.router.read(self.identity)

    # what it says and hears

    def say(self, line: str) -> None:
        """Send one message."""
        self.send(b"", *line.encode("latin-1").split(b"|"))

    def send(self, *frames: Part) -> None:
        """Send frames, the delimiter included."""
        assert self.line is not None
        assert self.connected
        self._farm.leases.look()  # as the scheduler does
        with self._farm.router.receiving(self.sender):
            self._farm.wire.receive(self.identity, list(frames), self.line.number)

    def ask(self, line: str) -> list[str]:
        """Send one message; what came back, and whatever had come before."""
        self.say(line)
        return self.take()

    def take(self) -> list[str]:
        """The messages that were sent to it since the last call."""
        return [b"|".join(frames[1:]).decode("latin-1") for frames in self.take_frames()]

    def take_frames(self) -> list[list[bytes]]:
        """The same as the frames that the ROUTER was given."""
        if self.line is None:
            return []
        taken = self.line.inbox[:]
        self.line.inbox.clear()
        return taken

    def wait_for(self, line: str, seconds: float, step: float = 0.01) -> float:
        """Let time pass until that message comes, and nothing else before. Returns the time that it took."""
        start = self._farm.clock.seconds()
        while self._farm.clock.seconds() - start <= seconds:
            if taken := self.take():
                assert taken == [line]
                return self._farm.clock.seconds() - start
            self._farm.clock.advance(step)
        raise AssertionError(f"nothing came in {seconds} s")


@contextmanager
def nothing_fails() -> Iterator[list[str]]:
    """Nothing may fail meanwhile: topics, leases and the registry log what fails in them, and go on.

    Gives the texts of the warnings.
    """
    failures: list[Failure] = []
    warnings: list[str] = []

    @provider(ILogObserver)
    def observe(event: LogEvent) -> None:
        if "log_failure" in event:
            failures.append(event["log_failure"])
        elif event["log_level"] >= LogLevel.warn:
            warnings.append(formatEvent(event))

    globalLogPublisher.addObserver(observe)
    try:
        yield warnings
    finally:
        globalLogPublisher.removeObserver(observe)
    assert failures == []


def rule(keys: str = "*", publish: str = "", subscribe: str = "") -> TopicRule:
    """A topic rule, of patterns between spaces."""
    return TopicRule(tuple(keys.split()), tuple(publish.split()), tuple(subscribe.split()))


def _clock() -> Clock:
    clock = Clock()
    clock.advance(1_700_000_000)  # like the reactor's, which is the time of day
    return clock


def _registry(clock: Clock) -> Registry:
    def forget(*_: Any) -> None:
        """Nothing is recorded here."""

    return Registry(clock, count(1).__next__, Restored((), 60.0, clock, forget))
