"""Scripted broker: real ROUTER sockets, answers that a test sets, and a record of all requests and commands.

It also checks the client: violations of the protocol (a request before Open, a lease without a profile, a command
before the lease, an ill-formed message, a Content outside of the lease) are recorded in ``wrong``.
"""

from __future__ import annotations

import json
from base64 import b64decode
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

import attrs
import zmq
from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IReadDescriptor
from twisted.internet.task import deferLater
from twisted.logger import Logger
from twisted.trial.unittest import TestCase
from zope.interface import implementer

from broker.client.mtl import Client, Settings
from broker.wires.mtl.codec import data_messages
from broker.wires.mtl.codec.field_table import EMPTY, encode
from tests.net import waiting

LOOK_EVERY = 0.002

QUICK = Settings(
    first_contact=None,
    timeout=20.0,
    heartbeat=1.0,
    dead_after=3,
    least_pause=0.01,
    most_pause=0.1,
    least_resend_pause=0.01,
    most_resend_pause=0.05,
)
"""Settings of clients in tests: they try often to reach a broker that is away."""

PROFILES = ["test", "queue", "topic", "registry", "service"]

Answer = "tuple[int, Mapping[str, Any]] | None"

READY = (201, {"status": "Ready", "profiles": PROFILES})
NOT_OPEN = (400, {"status": "Bad Request", "reason": "open"})
FORBIDDEN = (403, {"status": "Forbidden", "reason": "not yours"})


def unauthorized(*mechanisms: str) -> tuple[int, dict[str, Any]]:
    return 401, {"status": "Unauthorized", "mechanisms": list(mechanisms)}


@implementer(IReadDescriptor)
class Router:
    """A ROUTER in the reactor."""

    log = Logger()

    def __init__(
        self,
        reactor: Any,
        context: zmq.Context[Any],
        receive: Callable[[list[bytes]], object],
        secret_key: str | None = None,
    ) -> None:
        self._reactor = reactor
        self._receive = receive
        self.socket: zmq.Socket[bytes] = context.socket(zmq.ROUTER)
        self.socket.linger = 0
        self.socket.router_mandatory = True
        # While it is deaf, libzmq goes on reading: with the default of 1,000 messages nearly all finds room.
        self.socket.rcvhwm = 4
        if secret_key is not None:
            self.socket.curve_server = True
            self.socket.curve_secretkey = secret_key.encode()
        self._fd = int(self.socket.get(zmq.FD))
        self._open = True
        self.deaf = False
        reactor.addReader(self)

    def send(self, *frames: bytes) -> None:
        """Send, to who is there."""
        with suppress(zmq.ZMQError):
            self.socket.send_multipart(frames, zmq.NOBLOCK)
        self.look_soon()

    def look_soon(self) -> None:
        self._reactor.callLater(0, self.doRead)

    def fileno(self) -> int:
        return self._fd

    def doRead(self) -> None:
        while self._open and not self.deaf and int(self.socket.get(zmq.EVENTS)) & zmq.POLLIN:
            try:
                self._receive(self.socket.recv_multipart(zmq.NOBLOCK))
            except Exception:
                self.log.failure("the scripted broker failed")

    def connectionLost(self, reason: object) -> None:
        self.close()

    def logPrefix(self) -> str:
        return "scripted"

    def close(self) -> None:
        if self._open:
            self._open = False
            self._reactor.removeReader(self)
            self.socket.close(0)


@attrs.define
class Session:
    """State of one peer of the control flow at the broker."""

    open: bool = False
    profile: str | None = None


@attrs.define
class Leased:
    """State of one peer of data flows at the broker."""

    sides: dict[str, dict[str, Any]] = attrs.field(factory=dict)
    """By reader and writer, what was asked for."""
    summoned: list[str] = attrs.field(factory=list)
    sequence: int = 0


class ScriptedBroker:
    """See the module. ``answers`` holds, by command, functions that answer in place of what is usual."""

    def __init__(self, reactor: Any, shared: bool = False, secret_key: str | None = None) -> None:
        self.reactor = reactor
        self.context: zmq.Context[Any] = zmq.Context()
        self.shared = shared
        self._secret_key = secret_key
        self.answers: dict[str, Callable[..., Any]] = {}
        self.requests: list[tuple[str, dict[str, Any]]] = []
        self.commands: list[data_messages.Command] = []
        self.peers: list[bytes] = []
        """The peers that sent them."""
        self.wrong: list[str] = []
        self.mute = False
        """It receives, and says nothing."""
        self.sessions: dict[bytes, Session] = {}
        self.leases: dict[str, tuple[str, dict[str, Any]]] = {}
        self.leased: dict[bytes, Leased] = {}
        self.more: dict[str, Any] = {}
        """Further members of 202."""
        self._tails = data_messages.Tails()
        self._ports = (0, 0)
        self._count = 0
        self.control: Router
        self.data: Router
        self._bind()

    @property
    def endpoint(self) -> str:
        return f"tcp://127.0.0.1:{self._ports[0]}"

    def of(self, kind: type[Any]) -> list[Any]:
        """The commands of one kind that came."""
        return [command for command in self.commands if isinstance(command, kind)]

    def asked(self) -> list[str]:
        """The requests that came, without "Connection."."""
        return [command.partition(".")[2] for command, _ in self.requests]

    # coming and going

    def _bind(self) -> None:
        self.control = Router(self.reactor, self.context, self._receive, self._secret_key)
        self.data = self.control
        if not self.shared:
            self.data = Router(self.reactor, self.context, self._receive_data, self._secret_key)
        ports: list[int] = []
        for router, port in ((self.control, self._ports[0]), (self.data, self._ports[1])):
            if self.shared and ports:
                ports.append(ports[0])
                continue
            router.socket.bind(f"tcp://127.0.0.1:{port or '*'}")
            endpoint: Any = router.socket.last_endpoint
            ports.append(int(endpoint.rpartition(b":")[2]))
            router.look_soon()
        self._ports = (ports[0], ports[1])

    def stop(self) -> None:
        """Go away, and forget everything."""
        self.control.close()
        self.data.close()
        self.sessions.clear()
        self.leases.clear()
        self.leased.clear()

    async def start(self) -> None:
        """Come back, at the same place."""
        while True:
            try:
                self._bind()
            except zmq.ZMQError:
                # libzmq has not quite closed the old ones yet
                self.control.close()
                self.data.close()
                await deferLater(self.reactor, LOOK_EVERY)
            else:
                return

    async def restart(self) -> None:
        self.stop()
        await self.start()

    def close(self) -> None:
        self.stop()
        self.context.destroy(0)

    # control

    def _receive(self, frames: list[bytes]) -> None:
        if self.shared and len(frames) == 3 and frames[1]:
            self._receive_data(frames)
            return
        if len(frames) != 4 or frames[1] != b"":
            self.wrong.append(f"a request of the frames {frames}")
            return
        identity, _, command, body = frames
        name, members = command.decode(), json.loads(body)
        self.requests.append((name, members))
        if self.mute:
            return
        answer = self._answer(identity, name, members)
        if isinstance(answer, Deferred):
            answer.addCallback(lambda result: self.reply(identity, result))
        else:
            self.reply(identity, answer)

    def reply(self, identity: bytes, answer: tuple[int, Mapping[str, Any]] | None) -> None:
        """Answer, if there is an answer."""
        if answer is not None:
            code, reply = answer
            self.control.send(identity, b"", str(code).encode(), json.dumps(reply).encode())

    def _answer(self, identity: bytes, name: str, members: dict[str, Any]) -> Any:
        session = self.sessions.setdefault(identity, Session())
        if name == "Connection.Open":
            session.open, session.profile = True, None
        elif not session.open:
            self.wrong.append(f"{name} before Open")
            return NOT_OPEN
        own = self.answers.get(name.partition(".")[2])
        if own is not None:
            answer = own(members)
            if answer is NOT_OPEN:
                del self.sessions[identity]
            if answer is not ...:
                return answer
        return self._usual(session, name, members)

    def _usual(self, session: Session, name: str, members: dict[str, Any]) -> Any:
        if name == "Connection.Open":
            return READY
        if name == "Connection.Profile":
            session.profile = members["profile"]
            return 200, {"status": "OK"}
        if name in ("Connection.Reader", "Connection.Writer"):
            if session.profile is None:
                self.wrong.append(f"{name} before Profile")
                return 400, {"status": "Bad Request", "reason": "no profile is chosen"}
            self._count += 1
            token = f"lease-{self._count}"
            self.leases[token] = (name.partition(".")[2].lower(), {**members, "profile": session.profile})
            more = dict(self.more)
            if members.get("confirm") == "full" and name == "Connection.Reader":
                more.setdefault("window", 100)
            return 202, {"status": "Data Lease", "port": self._ports[1], "lease": token, **more}
        return 501, {"status": "Not implemented"}

    # data

    def _receive_data(self, frames: list[bytes]) -> None:
        identity, *rest = frames
        try:
            command = data_messages.parse(rest, self._tails)
        except Exception as error:
            self.wrong.append(f"a command that is none: {error}")
            return
        self.commands.append(command)
        self.peers.append(identity)
        if self.mute:
            return
        own = self.answers.get(type(command).__name__)
        if own is not None and own(identity, command) is not ...:
            return
        self._do(identity, command)

    def _do(self, identity: bytes, command: Any) -> None:
        leased = self.leased.get(identity)
        if isinstance(command, data_messages.Lease):
            side = self.leases.pop(command.lease, None)
            if side is not None:
                name, members = side
                leased = self.leased.setdefault(identity, Leased())
                if name in leased.sides:
                    self.wrong.append(f"a second lease for a {name}")
                leased.sides[name] = members
            self.say(
                identity,
                data_messages.response(command.sequence, data_messages.FORBIDDEN if side is None else data_messages.OK),
            )
        elif leased is None:
            if isinstance(
                command, data_messages.Summon | data_messages.Dismiss | data_messages.Content | data_messages.Ping
            ):
                self.say(identity, data_messages.response(getattr(command, "sequence", 0), data_messages.FORBIDDEN))
        elif isinstance(command, data_messages.Ping):
            self.say(identity, data_messages.PONG)
        elif isinstance(command, data_messages.Summon):
            if command.resource in leased.summoned or not _covers(leased, "reader", command.resource):
                self.wrong.append(f"a Summon of {command.resource}")
            leased.summoned.append(command.resource)
            self.say(identity, data_messages.response(command.sequence, data_messages.OK))
        elif isinstance(command, data_messages.Dismiss):
            if command.resource not in leased.summoned:
                self.wrong.append(f"a Dismiss of {command.resource}")
            else:
                leased.summoned.remove(command.resource)
            self.say(identity, data_messages.response(command.sequence, data_messages.OK))
        elif isinstance(command, data_messages.Content):
            if not _covers(leased, "writer", command.resource):
                self.wrong.append(f"a Content of {command.resource}")
            elif leased.sides["writer"].get("confirm") == "full":
                self.say(identity, data_messages.confirm(command.sequence))

    def say(self, identity: bytes, frames: tuple[bytes, Any]) -> None:
        """Send a command."""
        self.data.send(identity, *frames)

    def reader(self) -> bytes:
        """The reader that came last."""
        return [identity for identity, leased in self.leased.items() if "reader" in leased.sides][-1]

    def writer(self) -> bytes:
        return [identity for identity, leased in self.leased.items() if "writer" in leased.sides][-1]

    def give(
        self, resource: str, body: bytes = b"", /, to: bytes | None = None, skip: int = 0, **properties: Any
    ) -> int:
        """Send a Content to a reader. Returns its sequence; ``skip`` are numbers that are left out before it."""
        identity = to or self.reader()
        leased = self.leased[identity]
        leased.sequence += 1 + skip
        named = {name.replace("_", "-"): value for name, value in properties.items()}
        table = encode(named) if named else EMPTY
        self.say(identity, data_messages.content(leased.sequence, resource, table, body))
        return leased.sequence


def _covers(leased: Leased, side: str, resource: str) -> bool:
    if side not in leased.sides:
        return False
    resources = leased.sides[side]["resources"]
    return not resources or resource in resources


def response_of(members: Mapping[str, Any]) -> bytes | None:
    """The response in an Authorize."""
    response = members.get("response")
    return None if response is None else b64decode(response, validate=True)


class Stage(TestCase):
    """A test case with a scripted broker and clients of it, in trial's reactor."""

    def setUp(self) -> None:
        from twisted.internet import reactor

        self.reactor = reactor
        self.broker = ScriptedBroker(reactor)
        self.addCleanup(self.broker.close)
        self.events: list[tuple[str, str]] = []
        self.may_be_wrong = False

    def tearDown(self) -> None:
        if not self.may_be_wrong:
            self.assertEqual(self.broker.wrong, [])

    def client(self, *arguments: Any, settings: Settings = QUICK, **more: Any) -> Client:
        client = Client(self.reactor, self.broker.endpoint, *arguments, settings=settings, **more)
        self.addCleanup(client.close)
        return client

    async def until(self, condition: Callable[[], object]) -> None:
        await waiting.until(condition)

    def told(self, event: Any, why: str) -> None:
        """Record an event, as ``on_event``."""
        self.events.append((event.value, why))
