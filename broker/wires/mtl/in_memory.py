"""MTL without sockets: flows, profiles, queues and registry of a broker over a ROUTER in memory.

`broker.client.testing.FakeBroker` runs it for the tests of programs. The caller serialises all calls, and lets the time
pass by `InMemoryMtl.turn`.

Rules:
- Messages for a client are passed to its `Line`, which delivers them later, never in the same call.
- A line for which `HIGH_WATER` messages wait takes no more, as a connection at its high-water mark.
- Queues are in memory. What a restart or another broker takes over are rows of messages (`InMemoryMtl.rows`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from itertools import count
from typing import Any

from twisted.internet.defer import Deferred, fail, maybeDeferred
from twisted.internet.task import Clock

from broker.access.logins import Logins
from broker.access.passwords import MIN_ITERATIONS, PasswordVerifier, of
from broker.access.principal import Principal
from broker.access.rights import EVERYTHING, AnonymousAccess, Grants
from broker.core.errors import Elsewhere
from broker.core.liveness import Leases
from broker.core.memory_budget import MemoryBudget
from broker.core.queues.queue_interfaces import Author, RestoredMessage
from broker.core.queues.queue_messages import Message
from broker.core.queues.queues import Queues
from broker.core.registered_services import Restored
from broker.core.registry import Registry
from broker.core.topics import Topics
from broker.net.peer_interfaces import NUMBER, Conversation, N, Part, R, Sender, Sent
from broker.net.refusal_log import Counters, RefusalLog
from broker.wires.mtl.codec.control_messages import DEFAULT_HOST
from broker.wires.mtl.mtl_settings import Mtl
from broker.wires.mtl.profiles.queue_profile import QueueProfile, identity_of
from broker.wires.mtl.profiles.registry_profile import RegistryProfile
from broker.wires.mtl.profiles.service_profile import ServiceProfile
from broker.wires.mtl.profiles.topic_profile import FanOutProfile, TopicProfile
from broker.wires.mtl.sessions.access_policy import AccessPolicy
from broker.wires.mtl.sessions.control_flow import ControlFlow
from broker.wires.mtl.sessions.data_flow import DataFlow
from broker.wires.mtl.sessions.data_leases import DataLeases, FlowContext, ProfileAccess, SharedSocket
from broker.wires.mtl.sessions.login_exchange import AuthenticationContext
from broker.wires.mtl.sessions.profile_interface import Profile
from broker.wires.mtl.sessions.sasl import Mechanisms

HIGH_WATER = 10_000
"""Messages that may wait for one client: what the buffers of libzmq and of the kernel take of small ones."""

HERE = Sender("127.0.0.1", socket_type="DEALER")
"""The origin of all messages."""

SALT_KEY = b"in memory"
"""Key of the salts that unknown users are shown: no names are guessed here."""


class Line:
    """The connection of a client. ``deliver`` takes the frames of a message, to be received later."""

    def __init__(self, deliver: Callable[[list[Part]], object]) -> None:
        self.deliver = deliver
        self.identity = b""
        self.number = 0
        self.waiting = 0
        """Messages that the client has not received yet."""
        self.starved = False
        """True if a message was refused since there was room."""


class MemoryRouter:
    """A ROUTER in memory: `broker.net.peer_interfaces.NumberingRouter`."""

    def __init__(self) -> None:
        self._lines: dict[bytes, Line] = {}
        self._numbers = count(1)
        self._conversation: Conversation

    def serve(self, conversation: Conversation) -> None:
        """Pass messages and ends of connections to that conversation."""
        self._conversation = conversation

    def connect(self, line: Line) -> None:
        """Open a connection."""
        line.number = next(self._numbers)
        line.identity = b"\0%d" % line.number
        self._lines[line.identity] = line

    def disconnect(self, line: Line) -> None:
        """End a connection."""
        del self._lines[line.identity]
        self._conversation.closed(line.number)

    def receive(self, line: Line, frames: list[Part]) -> None:
        """Process a message of a client."""
        self._conversation.receive(line.identity, frames, line.number)

    def received(self, line: Line) -> None:
        """Process that a client has received a message."""
        line.waiting -= 1
        if line.starved and line.waiting <= HIGH_WATER // 2:
            line.starved = False
            self._conversation.room(line.identity)

    # what sessions call

    def send(self, identity: bytes, frames: Sequence[Part]) -> Sent:
        """See `Router`."""
        line = self._lines.get(identity)
        if line is None:
            return Sent.GONE
        if line.waiting >= HIGH_WATER:
            line.starved = True
            return Sent.FULL
        line.waiting += 1
        line.deliver([bytes(frame) for frame in frames])
        return Sent.SENT

    def reply(self, identity: bytes, frames: Sequence[Part]) -> Sent:
        """See `Router`."""
        return self.send(identity, frames)

    def send_all(self, receivers: Collection[R], frames: Sequence[Part], now: float) -> list[tuple[R, Sent]]:
        """See `Router`."""
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
        """See `NumberingRouter`."""
        failed: list[tuple[N, Sent]] = []
        for receiver in receivers:
            receiver.sequence += 1
            sent = self.send(receiver.identity, (before + receiver.sequence.to_bytes(NUMBER) + after, body))
            if sent is Sent.SENT:
                receiver.sent = now
            else:
                failed.append((receiver, sent))
        return failed

    def end(self, identity: bytes, number: int) -> None:
        """See `Router`. The client connects again at once, as libzmq does."""
        line = self._lines.get(identity)
        if line is not None and line.number == number:
            line.number = next(self._numbers)
            self._conversation.closed(number)

    def sender(self) -> Sender:
        """See `Router`."""
        return HERE

    def key(self) -> str:
        """See `Router`."""
        return HERE.key


class Passwords(AnonymousAccess):
    """Users with passwords, who may do everything; the anonymous user may do nothing."""

    users = True

    def __init__(self, passwords: Mapping[str, str]) -> None:
        super().__init__()
        self.verifiers = {name: of(password, MIN_ITERATIONS) for name, password in passwords.items()}
        self.shapes = tuple((each.iterations, len(each.salt)) for each in self.verifiers.values())
        self.work = MIN_ITERATIONS

    def verifier(self, user: str) -> PasswordVerifier | None:
        """Return the verifier of that user, None if unknown."""
        return self.verifiers.get(user)

    def logs_in(self, listener: str) -> bool:
        """Return True."""
        return True

    def grants(self, principal: Principal, listener: str) -> Grants:
        """Return the grants of everything for a user."""
        return EVERYTHING if principal.name else Grants()


class MovedQueues:
    """The queues that other brokers have: `broker.wires.mtl.profiles.queue_profile.Owners`.

    ``endpoints`` is by name.
    """

    def __init__(self, endpoints: Mapping[str, str]) -> None:
        self.lost: Callable[[str, str], object]
        self._endpoints = endpoints

    def require(self, space: str, name: str, payer: str) -> Deferred[None] | None:
        """Return a Deferred that fails if another broker has the queue, None otherwise."""
        endpoint = self._endpoints.get(name)
        if endpoint is None:
            return None
        return fail(Elsewhere(f"the queue {name} is at another broker", endpoint, endpoint))


class NoStore:
    """Keeper of queues that are not durable: `broker.core.queues.queue_interfaces.MessageKeeper`.

    Restored messages alone are shown to it.
    """

    takes = False

    def add(self, message: Message, author: Author | None, token: Any) -> None:
        """Raise AssertionError."""
        raise AssertionError("no queue is durable")

    def replaces(self, moved: Message, former: Message, decided: Callable[[bool], object]) -> None:
        """Raise AssertionError."""
        raise AssertionError("no queue is durable")

    def remove(self, message: Message) -> None:
        """Ignore that a restored message left its queue."""

    def amend(self, message: Message) -> None:
        """Ignore another delivery count."""

    def forget(self, queue: Any) -> None:
        """Ignore the end of a queue."""


class InMemoryMtl:
    """A broker from start to stop, with one virtual host.

    ``users`` maps names to passwords; without it no client authenticates. ``moved`` maps the queues that other brokers
    have to the endpoints of those. ``rows`` are messages from before.
    """

    def __init__(
        self,
        clock: Clock,
        users: Mapping[str, str] | None,
        moved: Mapping[str, str],
        rows: Iterable[RestoredMessage] = (),
    ) -> None:
        self._clock = clock
        self.leases = leases = Leases(clock)
        self.router = MemoryRouter()
        refusal_log, memory = RefusalLog(Counters(), clock), MemoryBudget()
        config = Mtl()
        flows = FlowContext(leases, DataLeases(leases, config), refusal_log, config)
        self.data = data = DataFlow(self.router, flows)
        registry = Registry(clock, count(1).__next__, Restored((), 0, clock, lambda ids: None))
        topics = Topics(memory=memory)
        self.queues = Queues(leases, (), NoStore(), identity_of, memory=memory)
        self.owners = MovedQueues(moved)
        self.queue = QueueProfile(self.queues, data, clock, config.window_bytes, self.owners)
        profiles: tuple[Profile, ...] = (
            FanOutProfile(data),
            RegistryProfile(data, registry, leases, refusal_log),
            TopicProfile(data, lambda host: topics, refusal_log, topics),
            self.queue,
            ServiceProfile(data, registry, leases, refusal_log, DEFAULT_HOST, config.window_bytes, memory),
        )
        logins = Logins.open(clock.seconds, maybeDeferred)
        known = AnonymousAccess() if users is None else Passwords(users)
        mechanisms = Mechanisms(known, logins, SALT_KEY)
        policy = AccessPolicy((DEFAULT_HOST,), DEFAULT_HOST, known)
        access = ProfileAccess(policy, {each.name: each for each in profiles}, lambda: 0)
        self.control = ControlFlow(self.router, flows, AuthenticationContext(mechanisms), access)
        self.router.serve(SharedSocket(self.control, data))
        self.queues.restore(rows)

    def receive(self, line: Line, frames: list[Part]) -> None:
        """Process a message of a client."""
        self.leases.look()
        self.router.receive(line, frames)

    def waiting(self, name: str) -> list[Message]:
        """Return the messages of a queue that no reader has, in order."""
        queue = self.queues.present(DEFAULT_HOST, name)
        return [] if queue is None else queue.waiting()

    def unsettled(self, name: str) -> list[Message]:
        """Return the messages of a queue that readers have and have not answered, in order."""
        found = [
            message
            for client in self.data.clients()
            if client.reader is not None and client.reader.grant.profile is self.queue
            for message in getattr(client.reader.place, "window", ())
            if message.queue.name == name
        ]
        return sorted(found, key=lambda message: message.order)

    def rows(self, name: str) -> list[RestoredMessage]:
        """Return all messages of a queue and of its dead-letter queues, in order, for another broker."""
        now = self.leases.moment()
        return [
            RestoredMessage(
                queue.space, queue.name, 0, message.order, message.count, message.deadline - now, message.death,
                message.head, bytes(message.body),
            )
            for queue in self.queues.family(DEFAULT_HOST, name)
            for message in sorted(
                (*queue.waiting(), *self.unsettled(queue.name)), key=lambda message: message.order
            )
        ]  # fmt: skip

    def lose(self, name: str) -> None:
        """Give a queue up, which another broker has now, and end the flows that use it."""
        for queue in self.queues.family(DEFAULT_HOST, name):
            queue.given_up = True
            self.queues.give_up(queue)
        self.owners.lost(DEFAULT_HOST, name)
