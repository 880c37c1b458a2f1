"""A director without sockets: the real core, real sessions and codecs, peers that record, a clock that tests turn."""

from __future__ import annotations

from typing import Any

from twisted.internet.task import Clock

from broker.access.rights import AnonymousAccess
from broker.core.director.director import Director
from broker.core.director.director_interfaces import DirectorSettings
from broker.wires.elko.codec.blocks import BlockReader
from broker.wires.elko.codec.director_messages import VOCABULARY
from broker.wires.elko.sessions.authentication import AccessControl, Policy
from broker.wires.elko.sessions.director_session import DirectorSession, DirectorWiring
from tests.recording.farm import CoreFarm
from tests.wires.recording import Client, RecordingPeer

ROLES = frozenset(("user", "provider", "admin"))


def policy(**rules: Any) -> Policy:
    """The policy of a listener of the director."""
    return Policy(**{"roles": ROLES, **rules})


class Turning(Clock):
    """A clock of which each turn can be looked at."""

    def turn(self) -> None:
        """Run the calls that are due now, without those that they schedule."""
        for call in [call for call in self.calls if call.getTime() <= self.seconds()]:
            self.calls.remove(call)
            call.called = 1
            call.func(*call.args, **call.kw)


class DirectorControl:
    """The commands for the director itself."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    def reinitialize(self) -> None:
        self.calls.append("reinitialize")

    def shut_down(self) -> None:
        self.calls.append("shut_down")


class DirectorFarm(CoreFarm):
    """A director and its peers."""

    def __init__(self, settings: DirectorSettings | None = None) -> None:
        self.clock: Turning
        super().__init__(Turning())
        self.director = Director(self.clock, settings)
        self.access = AnonymousAccess()
        self.control = DirectorControl()
        self.wiring = DirectorWiring.of(self.director, self.control, self.clock)

    def connect(self, rules: Policy | None = None, local: bool = True, **peer: Any) -> Client:
        """A peer connects to a listener with these rules, by default an open one."""
        door = AccessControl(policy() if rules is None else rules, self.access)
        return Client(
            lambda to: (BlockReader(VOCABULARY), DirectorSession(self.wiring, door, to)), RecordingPeer(local, **peer)
        )

    def authenticated(self, to: str, label: str | None = None, **connection: Any) -> Client:
        """A peer that has authenticated to that object."""
        client = self.connect(**connection)
        client.say(to, "auth", **({} if label is None else {"label": label}))
        assert not client.closed
        assert client.take() == []
        return client

    def user(self, label: str | None = None, **connection: Any) -> Client:
        """A user."""
        return self.authenticated("director", label, **connection)

    def admin(self, label: str | None = None, **connection: Any) -> Client:
        """An administrator."""
        return self.authenticated("admin", label, **connection)

    def server(
        self, label: str, hostport: str = "", family: str = "context", protocol: str = "tcp", **willserve: Any
    ) -> Client:
        """A Context Server, at an address that is called after it by default."""
        server = self.authenticated("provider", label)
        server.say("provider", "address", protocol=protocol, hostport=hostport or f"{label}:9000")
        server.say("provider", "willserve", context=family, **willserve)
        assert server.take() == []
        return server

    def settle(self) -> None:
        """Let everything happen that waits for the next turns of the reactor."""
        while any(call.getTime() <= self.clock.seconds() for call in self.clock.getDelayedCalls()):
            self.clock.advance(0)


def opens(server: Client, context: str, *users: str, **report: Any) -> None:
    """A server reports that a context is open, and who is in it."""
    server.say("provider", "context", context=context, open=True, **{"yours": False, **report})
    for user in users:
        server.say("provider", "user", context=context, user=user, on=True)
    assert server.take() == []


def closes(server: Client, context: str) -> None:
    """A server reports that a context is closed."""
    server.say("provider", "context", context=context, open=False, yours=False)


def reserve(client: Client, context: str, to: str = "director", **parameters: Any) -> dict[str, Any]:
    """The answer to a request for a reservation."""
    [answer] = client.ask(to, "reserve", **{"protocol": "tcp", "context": context, **parameters})
    assert isinstance(answer, dict)
    return answer
