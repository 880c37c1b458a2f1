"""mc0 without sockets: real sessions, topics, leases and codec over a ROUTER of lists, and a clock that tests turn.

Messages are written as in `tests.wires.mc0.codec.examples`: frames between bars, each character one byte, no delimiter.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from glob import escape
from itertools import chain

from twisted.internet.task import Clock

from broker.access.rights import EVERYTHING, Grants, Right, grants_of
from broker.core.memory_budget import MemoryBudget
from broker.core.model import KnownSession
from broker.core.registry import Registry
from broker.core.topics import Topics, TopicsBounds
from broker.core.turns import all_at_once
from broker.net.peer_interfaces import Part, Sender
from broker.wires.common.registry_topics import RegistryTopics
from broker.wires.common.routes import Routes
from broker.wires.mc0.codec.mc0_messages import begins
from broker.wires.mc0.sessions.conversation import Mc0Conversation
from broker.wires.mc0.sessions.mc0_session import Mc0Session
from broker.wires.mc0.sessions.session_table import Admission
from tests.recording.farm import CoreFarm, registry_at
from tests.recording.router import RecordingRouter
from tests.wires.mc0.codec.examples import read_as_the_connector

REPLIES = 3
"""Answers that may wait for a peer beyond the messages: few, so that tests come to the end of them."""

TOPICS = TopicsBounds()


def _check(frames: list[Part]) -> None:
    """Assert that the real connector can read a message: above all, no header has an empty value."""
    # The frames before the first empty one are those of a REQ or a proxy, which takes them off.
    verb, headers, _ = read_as_the_connector(frames[frames.index(b"") :])
    assert verb in (b"OK", b"ERROR", b"MESSAGE", b"NOOP"), verb
    assert b"" not in headers


class SessionRecord:
    """Keeps the sessions that are to outlast a restart."""

    def __init__(self) -> None:
        self._sessions: dict[bytes, KnownSession] = {}
        self.changes = 0
        """The number of times that something was to be written."""

    def remember_session(self, session: KnownSession) -> None:
        self.changes += 1
        self._sessions[session.identity] = session

    def forget_session(self, identity: bytes) -> None:
        self._sessions.pop(identity, None)

    def known(self) -> list[KnownSession]:
        """The sessions that the next start finds."""
        return list(self._sessions.values())


Rule = tuple[Right, ...]
"""Rights that belong together: see `rule`."""


class Mc0Farm(CoreFarm):
    """The wire over its real neighbours.

    ``keys`` has the users of client keys; with ``any_key`` keys without a user are admitted as well. Without ``rules``
    there is no users file.
    """

    def __init__(
        self,
        *rules: Rule,
        keys: Mapping[str, str] | None = None,
        any_key: bool = False,
        sessions: int = 100,
        subscriptions: int = 100,
        clock: Clock | None = None,
        registry: Registry | None = None,
        topics: TopicsBounds = TOPICS,
    ) -> None:
        self._topics_bounds = topics
        super().__init__(clock)
        self.router = RecordingRouter(
            max_replies=REPLIES,
            fan_out=True,
            check=_check,
            claim=lambda identity, sender: self.wire.table.claim(identity, sender),
            owner=lambda sender: self.admission.owner(sender),
        )
        self.keys = dict(keys or {})
        self._any_key = any_key
        self._rules = rules
        self._limits = (sessions, subscriptions)
        self._start(registry_at(self.clock) if registry is None else registry)

    def restart(self, known: Iterable[KnownSession] = ()) -> None:
        """The broker starts again, and knows nothing of its peers but this; their connections are there again."""
        known = list(known)
        self.restart_core()
        self._start(registry_at(self.clock))
        self.wire.table.restore(known, keyed=self._any_key or bool(self.keys))
        self.router.reopen()

    def _start(self, registry: Registry) -> None:
        self.registry = registry
        self.memory = MemoryBudget()
        self.topics = Topics(self._topics_bounds, self.memory)
        RegistryTopics(registry, self.topics, self.leases)
        self.record = SessionRecord()
        self.silence = self.make_silence(registry, self.leases, self.clock)
        self.admission = Admission(lambda key: self.keys.get(key, "" if self._any_key else None), self.grants)
        self.routes = Routes(self.router, "mc0", begins, self.refusal_log)
        self.wire = Mc0Conversation(
            self.routes,
            self.topics,
            self.leases,
            self.admission,
            self.refusal_log,
            self.record,
            *self._limits,
            self.silence,
        )
        self.routes.serve(self.wire, opened=self.wire.table.opened)

    # from the operator

    def grants(self, user: str) -> Grants:
        """The grants of a user by the rules."""
        return grants_of(user, "mc0", chain(*self._rules)) if self._rules else EVERYTHING

    def use(self, *rules: Rule, sessions: int | None = None, subscriptions: int | None = None) -> None:
        """Take other rules, and other limits if they are given."""
        self._rules = rules
        self._limits = (sessions or self._limits[0], subscriptions or self._limits[1])
        all_at_once(self.wire.use(*self._limits))
        all_at_once(self.wire.review())

    def revoke(self, key: str) -> None:
        """That key is not allowed any more."""
        del self.keys[key]
        all_at_once(self.wire.table.revoke({key}))

    # what there is

    def peer(self, identity: bytes | str = "A", key: str = "", address: str = "192.0.2.7") -> Mc0Peer:
        """A peer that has connected, and has said nothing."""
        return Mc0Peer(self, identity.encode() if isinstance(identity, str) else identity, key, address)

    def session(self, peer: Mc0Peer) -> Mc0Session | None:
        """The session of that peer's identity."""
        found = [session for session in self.wire.table if session.identity == peer.identity]
        assert len(found) <= 1
        return found[0] if found else None

    def counts(self) -> Mapping[str, int]:
        return self.wire.counts()

    def subscribers(self) -> dict[bytes, int]:
        """The number of subscribers of each topic."""
        return {each.name: each.subscribers for each in self.topics.describe()}


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
        self.line = self._farm.router.connect(self.identity, self.sender)

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
            self.line.have_room(after)

    def read_on(self) -> None:
        """It reads again."""
        if self.connected:
            self._farm.router.read(self.identity)

    # messages sent and received

    def say(self, line: str) -> None:
        """Send one message."""
        self.send(b"", *line.encode("latin-1").split(b"|"))

    def send(self, *frames: Part) -> None:
        """Send frames, the delimiter included."""
        assert self.line is not None
        assert self.connected
        self._farm.leases.look()  # as the scheduler does
        with self._farm.router.receiving(self.sender):
            self._farm.routes.receive(self.identity, list(frames), self.line.number)

    def ask(self, line: str) -> list[str]:
        """Send one message. Returns the answers, and all messages before them."""
        self.say(line)
        return self.take()

    def take(self) -> list[str]:
        """The messages that were sent to it since the last call."""
        return [b"|".join(frames[1:]).decode("latin-1") for frames in self.take_frames()]

    def take_frames(self) -> list[list[bytes]]:
        """The same as the frames that the ROUTER was given."""
        return [] if self.line is None else self.line.take()

    def wait_for(self, line: str, seconds: float, step: float = 0.01) -> float:
        """Let time pass until that message comes, and nothing else before. Returns the time that it took."""
        start = self._farm.clock.seconds()
        while self._farm.clock.seconds() - start <= seconds:
            if taken := self.take():
                assert taken == [line]
                return self._farm.clock.seconds() - start
            self._farm.clock.advance(step)
        raise AssertionError(f"nothing came in {seconds} s")


def rule(users: str = "*", publish: str = "", subscribe: str = "") -> Rule:
    """The rights of some users: their patterns between spaces, and topics, or prefixes with an asterisk."""
    named = (*users.split(), *(["anonymous"] if users == "*" else []))
    every = [("find", ("*",)), ("publish", _topics(publish)), ("subscribe", _topics(subscribe))]
    return tuple(Right(named, (operation,), names=names) for operation, names in every if names)


def _topics(patterns: str) -> tuple[str, ...]:
    return tuple(
        f"topic:{escape(pattern.removesuffix('*'))}{'*' if pattern.endswith('*') else ''}"
        for pattern in patterns.split()
    )
