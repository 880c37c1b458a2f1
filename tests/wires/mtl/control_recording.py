"""The control flow of MTL without sockets: real sessions, logins, rights, leases and codec over a ROUTER of lists.

Threads are done by hand (`Threads`), and the time is turned by tests.
"""

from __future__ import annotations

import json
from base64 import b64decode, b64encode
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import cache
from itertools import count
from typing import Any, cast

from scramp import ScramClient  # type: ignore[import-untyped]
from twisted.internet.defer import Deferred

from broker.access.logins import Logins
from broker.access.passwords import MIN_ITERATIONS, PasswordVerifier, of
from broker.access.rights import AnonymousAccess, Right
from broker.core.errors import Reason, Refusal
from broker.core.liveness import TICK
from broker.net.peer_interfaces import Part, Sender
from broker.wires.mtl.codec.data_messages import Content
from broker.wires.mtl.mtl_settings import Mtl
from broker.wires.mtl.profiles.topic_profile import FanOutProfile
from broker.wires.mtl.sessions.access_policy import AccessPolicy, ConfirmMode, Principal, Side
from broker.wires.mtl.sessions.control_flow import ControlFlow
from broker.wires.mtl.sessions.control_sessions import ControlSession
from broker.wires.mtl.sessions.data_leases import DataLeases, FlowContext, ProfileAccess
from broker.wires.mtl.sessions.login_exchange import AuthenticationContext
from broker.wires.mtl.sessions.profile_interface import Grant, Profile, ProfileReader, ProfileWriter
from broker.wires.mtl.sessions.sasl import PLAIN, SCRAM, Mechanisms
from tests.access.memory import ALL_USERS, MemoryAccess
from tests.recording.farm import CoreFarm
from tests.recording.router import Line, RecordingRouter
from tests.wires.mtl.data_recording import REPLIES

HERE = "127.0.0.1"
THERE = "192.0.2.7"
PORT = 5976
KEY = "k" * 40
OTHER_KEY = "o" * 40

PROTOCOL = {"name": "MTL", "version": 1}

Reply = tuple[int, dict[str, Any]]


@cache
def kept(password: str) -> PasswordVerifier:
    """The verifier of a password."""
    return of(password, MIN_ITERATIONS)


class Users(MemoryAccess):
    """Users and their passwords, which tests change."""

    def __init__(self, **passwords: str) -> None:
        super().__init__({name: kept(password) for name, password in passwords.items()})

    def set(self, name: str, password: str | None) -> None:
        if password is None:
            del self.passwords[name]
        else:
            self.passwords[name] = kept(password)


ANYBODY = Right(("anonymous",), ("*",))
"""The anonymous user may do everything."""


class Threads:
    """Threads that do nothing until they are told to."""

    def __init__(self) -> None:
        self.waiting: deque[Callable[[], None]] = deque()

    def __call__(self, function: Callable[..., Any], *arguments: Any) -> Deferred[Any]:
        done: Deferred[Any] = Deferred()
        self.waiting.append(lambda: done.callback(function(*arguments)))
        return done

    def run(self) -> None:
        """Do what was asked, and what is asked meanwhile."""
        while self.waiting:
            self.waiting.popleft()()


class Shelf(Profile):
    """A profile with any number of resources and both ways to confirm; readers confirm if they do not say.

    Names that begin with "no " are there for nobody, "not " for nobody who asks, "full " for nobody more.
    """

    confirms: Mapping[Side, tuple[ConfirmMode, ...]] = {
        Side.READER: (ConfirmMode.FULL, ConfirmMode.NONE),
        Side.WRITER: (ConfirmMode.NONE, ConfirmMode.FULL),
    }

    def __init__(self, name: str) -> None:
        self.name = name
        self.asked: list[tuple[str, Side, str]] = []
        self.grants: list[Grant] = []
        self.members: dict[str, str] = {}
        self.preparing: list[Deferred[None]] = []

    def check(self, principal: Principal, side: Side, resource: str) -> None:
        self.asked.append((principal.user, side, resource))
        refusals = {"no": Reason.PARAMETER, "not": Reason.FORBIDDEN, "full": Reason.LIMIT}
        reason = refusals.get(resource.partition(" ")[0])
        if reason is not None:
            raise Refusal(reason, f"not {resource}")
        if resource == "defect":
            raise RuntimeError(resource)

    def prepare(
        self, principal: Principal, side: Side, resources: Collection[str], payer: str
    ) -> Deferred[None] | None:
        """A resource whose name begins with "late " waits in ``preparing``."""
        if not any(resource.startswith("late ") for resource in resources):
            return None
        waits: Deferred[None] = Deferred()
        self.preparing.append(waits)
        return waits

    def granted(self, grant: Grant) -> Mapping[str, str]:
        self.grants.append(grant)
        return self.members

    def joined(self, flow: ProfileReader | ProfileWriter) -> None: ...

    def left(self, flow: ProfileReader | ProfileWriter) -> None: ...

    def summon(self, reader: ProfileReader, resource: str, body: bytes = b"") -> None: ...

    def dismiss(self, reader: ProfileReader, resource: str) -> None: ...

    def content(self, writer: ProfileWriter, resource: str, content: Content) -> None: ...


class ControlFarm(CoreFarm):
    """The control flow over its real neighbours.

    Without ``users`` and ``keys`` there is no users file. ``keys`` has the users of CURVE keys, "" for a key of nobody.
    ``rights`` are those of the users file; without any, users may do everything, and so may the anonymous one if
    ``anonymous``.
    """

    step = TICK

    def __init__(
        self,
        users: Users | None = None,
        *rights: Right,
        keys: Mapping[str, str] | None = None,
        hosts: Sequence[str] = ("/", "other"),
        anonymous: bool = False,
        port: int | Callable[[], int] = PORT,
        **settings: Any,
    ) -> None:
        super().__init__()
        self.router = RecordingRouter(max_replies=REPLIES)
        self.users = users
        self.keys = dict(keys or {})
        self.hosts = hosts
        self.threads = Threads()
        self.access: AnonymousAccess = users or Users()
        if users is None and keys is None and not anonymous and not rights:
            self.access = AnonymousAccess()
        if isinstance(self.access, Users):
            self.access.rights = rights or (*ALL_USERS, *([ANYBODY] if anonymous else []))
        self.mechanisms = Mechanisms(
            self.access, Logins.open(self.clock.seconds, self.threads), b"s" * 32, self.keys.get
        )
        self.policy = AccessPolicy(hosts, hosts[0], self.access)
        self.config = Mtl(hosts=tuple(hosts), **settings)
        self.data = DataLeases(self.leases, self.config)
        self.ended: list[str] = []
        self.data.ended = self.ended.extend
        self.shelf = Shelf("shelf")
        fan_out = FanOutProfile(cast(Any, None))  # no flow ever joins it
        self.profiles: dict[str, Profile] = {"test": fan_out, "shelf": self.shelf, "registry": Shelf("registry")}
        self.control = ControlFlow(
            self.router,
            FlowContext(self.leases, self.data, self.refusal_log, self.config),
            AuthenticationContext(self.mechanisms, self.keys.get, self.policy.serves_anonymous),
            ProfileAccess(self.policy, self.profiles, port if callable(port) else lambda: port),
        )
        self.router.serve(self.control)
        self._identities = count(1)

    def peer(
        self, address: str = THERE, key: str = "", identity: bytes | None = None, socket_type: str = "DEALER"
    ) -> ControlPeer:
        """A new peer, connected."""
        identity = identity or b"\0%04d" % next(self._identities)
        return ControlPeer(self, identity, Sender(address, key, socket_type))

    def permit(self, *rights: Right) -> None:
        """Other rights count from now on."""
        assert isinstance(self.access, Users)
        self.access.rights = rights
        self.control.review()

    def counts(self) -> Mapping[str, int]:
        return self.control.counts()

    def session(self) -> ControlSession:
        """The only session."""
        [session] = self.control.sessions()
        return session


class ControlPeer:
    """One socket: what it sends, and what it is sent. ``routing`` is put before the empty frame."""

    def __init__(self, farm: ControlFarm, identity: bytes, sender: Sender) -> None:
        self.farm = farm
        self.identity = identity
        self.sender = sender
        self.routing: tuple[bytes, ...] = ()
        self.line = self.connect()

    def connect(self) -> Line:
        """Connect."""
        line = self.farm.router.connect(self.identity)
        assert line is not None
        self.line = line
        return line

    def close(self) -> None:
        """The connection ends."""
        self.farm.router.close(self.identity)

    def behind(self, *routing: bytes) -> ControlPeer:
        """A client that comes through this peer, which is a proxy."""
        client = object.__new__(ControlPeer)
        client.farm, client.identity, client.sender, client.line = self.farm, self.identity, self.sender, self.line
        client.routing = routing
        return client

    # what it says

    def send(self, *frames: Part) -> None:
        """Send just these frames."""
        self.farm.leases.look()  # as the scheduler does
        with self.farm.router.receiving(self.sender):
            self.farm.control.receive(self.identity, list(frames), self.line.number)

    def say(self, command: str | bytes, body: object) -> None:
        """Send a request. A body that is not bytes is encoded as JSON."""
        command = command if isinstance(command, bytes) else f"Connection.{command}".encode()
        self.send(*self.routing, b"", command, body if isinstance(body, bytes) else json.dumps(body).encode())

    # messages received

    def take(self) -> list[Reply]:
        """The replies that came since the last call, with the envelopes of the last request."""
        replies: list[Reply] = []
        for frames in self.take_frames():
            *envelope, code, body = frames
            assert tuple(envelope) == (*self.routing, b"")
            replies.append(_read(code, body))
        return replies

    def take_frames(self) -> list[tuple[bytes, ...]]:
        return [tuple(frames) for frames in self.line.read()]

    def reply(self) -> Reply:
        """The one reply that came."""
        [reply] = self.take()
        return reply

    def ask(self, command: str | bytes, body: object) -> Reply:
        """Send a request; the one reply to it."""
        self.say(command, body)
        return self.reply()

    # requests

    def open(self, host: str | None = None) -> Reply:
        return self.ask("Open", {"protocol": PROTOCOL} | ({} if host is None else {"virtual-host": host}))

    def authorize(self, mechanism: str, response: bytes | None) -> Reply:
        return self.ask("Authorize", authorize(mechanism, response))

    def plain(self, user: str, password: str) -> Reply:
        """Log in by PLAIN; the thread checks the password at once."""
        self.say("Authorize", plain(user, password))
        self.farm.threads.run()
        return self.reply()

    def scram(self, user: str, password: str) -> Reply:
        """Log in by SCRAM, and check that the broker proves that it knows the user too."""
        client = ScramClient([SCRAM], user, password)
        code, said = self.authorize(SCRAM, client.get_client_first().encode())
        if code != 402:
            return code, said
        client.set_server_first(challenge(said))
        code, said = self.authorize(SCRAM, client.get_client_final().encode())
        if code != 402:
            return code, said
        client.set_server_final(challenge(said))
        return self.authorize(SCRAM, b"")

    def profile(self, name: str) -> Reply:
        return self.ask("Profile", {"profile": name})

    def reader(self, *resources: str, **more: object) -> Reply:
        return self.ask("Reader", {"resources": resources, **more})

    def writer(self, *resources: str, **more: object) -> Reply:
        return self.ask("Writer", {"resources": resources, **more})

    # where it has come to

    def opened(self, host: str | None = None) -> ControlPeer:
        """Open, and be let in at once."""
        assert self.open(host)[0] == 201
        return self

    def logged_in(self, user: str, password: str, host: str | None = None) -> ControlPeer:
        """Open, and log in."""
        assert self.open(host)[0] == 401
        assert self.scram(user, password)[0] == 201
        return self

    def working(self, profile: str) -> ControlPeer:
        """Choose a profile."""
        assert self.profile(profile)[0] == 200
        return self

    def lease(self, *resources: str, **more: object) -> str:
        """The token of a lease for a reader."""
        code, said = self.reader(*resources, **more)
        assert code == 202
        return cast(str, said["lease"])

    def used_lease(self) -> str:
        """The token of a lease for a reader, whose data flow has begun."""
        token = self.lease()
        assert self.farm.data.take(token, b"data", self.sender.key) is not None
        return token


def _read(code: bytes, body: bytes) -> Reply:
    """Decode a reply, and assert that it has the form of RFC 11."""
    assert len(code) == 3
    assert code.isdigit()
    assert b"2" <= code[:1] <= b"5"
    said = json.loads(body)
    assert isinstance(said, dict)
    assert isinstance(said["status"], str)
    assert said["status"]
    return int(code), said


def authorize(mechanism: str, response: bytes | None) -> dict[str, Any]:
    """The members of an Authorize."""
    return {"mechanism": mechanism, "response": None if response is None else b64encode(response).decode()}


def plain(user: str, password: str) -> dict[str, Any]:
    """The members of an Authorize by PLAIN."""
    return authorize(PLAIN, f"\0{user}\0{password}".encode())


def challenge(said: Mapping[str, Any]) -> str:
    """The challenge of a 402."""
    assert said["status"] == "Challenged"
    assert said["mechanism"] == SCRAM
    return b64decode(said["challenge"], validate=True).decode()
