"""A farm without sockets: a real registry, real sessions and codecs, peers that record, and a clock that tests turn."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Iterator
from itertools import count
from typing import Any

from twisted.internet.task import Clock
from zope.interface import implementer

from broker.access.principal import Access
from broker.access.rights import AnonymousAccess
from broker.core.errors import Malformed, Refusal
from broker.core.interfaces import IControl, IWait
from broker.core.memory_budget import BY_ADDRESS
from broker.core.model import Auth, Change, Kind, Launcher, Provider, Service
from broker.core.registered_services import Restored
from broker.core.registry import Registry
from broker.net.child_processes import Launchers
from broker.net.peer_interfaces import MessageReader, PeerSession
from broker.wires.elko.codec.blocks import BlockReader
from broker.wires.elko.codec.broker_messages import VOCABULARY
from broker.wires.elko.sessions.authentication import AccessControl, Policy
from broker.wires.elko.sessions.broker_session import BrokerSession, BrokerWiring
from broker.wires.elko.sessions.descriptor_cache import ChangeNotices
from tests.recording.farm import GRACE, CoreFarm


class RecordingPeer:
    """The connection as a session sees it, which records all calls. Output after a close is lost."""

    def __init__(self, local: bool = True, address: str = "192.0.2.7:4000", patience: int = 1_000_000) -> None:
        self.address = address
        self.host = address.rpartition(":")[0]
        self.local = local
        self.patience = patience
        self.session: PeerSession | None = None
        self.written: list[bytes] = []
        self.refusals: list[Refusal] = []
        self.debugs: list[tuple[str, str]] = []
        self.logins = 0
        self.room, self.held = BY_ADDRESS, 0
        self.steps = 0
        """Steps of long messages that ended, after which a turn may end."""
        self.closed = False
        self.behind = False
        self.certificate: tuple[str, ...] = ()
        self.request_id = ""
        self.vanished = False
        self.unacknowledged = False

    def write(self, data: bytes) -> None:
        if not self.closed:
            self.written.append(data)

    write_first = write

    def close(self) -> None:
        if not self.closed:
            self.closed = True
            if self.session is not None:
                self.session.lost()

    def refused(self, refusal: Refusal) -> bool:
        self.refusals.append(refusal)
        return len(self.refusals) <= self.patience

    def debug(self, label: str, text: str) -> None:
        self.debugs.append((label, text))

    def hold(self, size: int) -> bool:
        if size > self.room:
            return False
        self.held = size
        return True

    def go_on_with(self, steps: Iterator[None]) -> None:
        for _ in steps:
            self.steps += 1

    def authenticated(self) -> None:
        self.logins += 1


class Client:
    """One connected peer, with the bytes and the messages that it sends and gets."""

    def __init__(
        self, converse: Callable[[RecordingPeer], tuple[MessageReader, PeerSession]], peer: RecordingPeer
    ) -> None:
        self.peer = peer
        self._reader, self.session = converse(peer)
        peer.session = self.session
        self.session.begin()

    def send(self, data: bytes) -> None:
        """Bytes arrive, and are handled as a connection handles them."""
        for item in self._reader.feed(data):
            if self.peer.closed:
                return
            if isinstance(item, Malformed):
                self.session.malformed(item)
            elif item is not None:
                self.session.receive(item)

    def say(self, to: str, op: str, **parameters: Any) -> None:
        """Send one message."""
        members = {"to": to, "op": op, **{name.rstrip("_"): value for name, value in parameters.items()}}
        self.send(json.dumps(members).encode() + b"\n\n")

    def ask(self, to: str, op: str, **parameters: Any) -> list[dict[str, Any]]:
        """Send one message. Returns the answers, and all messages before them."""
        self.say(to, op, **parameters)
        return self.take()

    def take(self) -> list[dict[str, Any]]:
        """The messages that came since the last call."""
        written = b"".join(self.peer.written)
        self.peer.written.clear()
        blocks = written.split(b"\n\n")
        assert blocks.pop() == b"", "every message ends with an empty line"
        return [json.loads(block) for block in blocks]

    def find(self, service: str, **parameters: Any) -> list[dict[str, Any]]:
        """The immediate answer to a find."""
        return self.ask("broker", "find", service=service, **parameters)

    def offer(self, *services: dict[str, Any]) -> None:
        """Offer services."""
        self.say("broker", "willserve", services=list(services))

    @property
    def closed(self) -> bool:
        return self.peer.closed

    @property
    def reasons(self) -> list[str]:
        """The codes of what was refused."""
        return [refusal.reason.code for refusal in self.peer.refusals]

    def drop(self) -> None:
        """The connection is lost."""
        self.peer.closed = True
        self.session.lost()


@implementer(IControl)
class Control:
    """The commands for the broker itself. ``then`` is called each time."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, bool | None]] = []
        self.then: Callable[[], object] = list

    def reload(self) -> None:
        self.calls.append(("reload", None))
        self.then()

    def shutdown(self, kill: bool) -> None:
        self.calls.append(("shutdown", kill))
        self.then()


class ElkoFarm(CoreFarm):
    """A broker and its peers. ``spawned`` has what launchers started, ``switched`` what was to be remembered."""

    def __init__(
        self,
        restored: Iterable[Provider] = (),
        grace: float = GRACE,
        launchers: Iterable[Launcher] = (),
        missing: Iterable[str] = (),
    ) -> None:
        super().__init__(Clock())
        self.forgotten: set[int] = set()
        self.restored = Restored(restored, grace, self.clock, self.forgotten.update)
        self.registry = Registry(self.clock, count(1).__next__, self.restored)
        self.spawned: list[tuple[str, list[str]]] = []
        self.switched: list[tuple[str, bool]] = []
        self._missing = set(missing)
        self.launchers = Launchers(list(launchers), {}, self._spawn, lambda *switch: self.switched.append(switch))
        self.control = Control()
        self.access: Access = AnonymousAccess()
        self.doors: list[AccessControl] = []
        """The access control of each peer that has connected."""
        self.notices = ChangeNotices(self.registry)
        self.wiring = BrokerWiring(self.registry, self.notices, self.launchers, self.control)

    def connect(self, policy: Policy | None = None, local: bool = True, **peer: Any) -> Client:
        """A peer connects to a listener with that policy, by default an open one."""
        door = AccessControl(Policy() if policy is None else policy, self.access)
        self.access.changed.append(door.review)
        self.doors.append(door)
        return Client(
            lambda to: (BlockReader(VOCABULARY), BrokerSession(self.wiring, door, to)), RecordingPeer(local, **peer)
        )

    def client(self, label: str | None = None, name: str = "broker", **connection: Any) -> Client:
        """A peer that has authenticated as a client, to the object of that name."""
        client = self.connect(**connection)
        client.say(name, "auth", **({} if label is None else {"label": label}))
        assert not client.closed
        assert client.take() == []
        return client

    def admin(self, label: str | None = None, **connection: Any) -> Client:
        """A peer that has authenticated as an administrator."""
        return self.client(label, "admin", **connection)

    def _spawn(self, name: str, words: list[str]) -> None:
        if words[0] in self._missing:
            raise FileNotFoundError(2, "No such file or directory")
        self.spawned.append((name, words))


def desc(service: str, hostport: str | None = "h:1", **more: Any) -> dict[str, Any]:
    """A service descriptor as a peer sends it."""
    return {"type": "servicedesc", "service": service, **({} if hostport is None else {"hostport": hostport}), **more}


def told(service: str, provider: int, hostport: str = "h:1", protocol: str = "tcp", **more: Any) -> dict[str, Any]:
    """A service descriptor as the broker sends it."""
    members = {"type": "servicedesc", "service": service, "hostport": hostport, "protocol": protocol, **more}
    return {**members, "provider": provider}


def found(*descriptors: dict[str, Any], to: str = "broker", **tag: str) -> dict[str, Any]:
    """The answer to a find."""
    return {"to": to, "op": "find", "desc": list(descriptors), **tag}


def nothing(service: str, to: str = "broker", **tag: str) -> dict[str, Any]:
    """The answer to a find that found nothing."""
    return found({"type": "servicedesc", "service": service, "failure": "no such service"}, to=to, **tag)


def remembered(id: int, *services: tuple[str, str], label: str = "old", wire: str = "elko") -> Provider:
    """A provider known from before a restart, with services of these names and hostports."""
    auth = Auth("password", "secret")
    held = tuple(Service(name, hostport, id, auth=auth) for name, hostport in services)
    return Provider(id, label, wire, "192.0.2.9:1", 0.5, 0.0, held)


@implementer(IWait)
class CountedWatch:
    """A watch that is among ``watches`` until it is cancelled."""

    def __init__(self, watch: IWait, watches: set[CountedWatch]) -> None:
        self._watch = watch
        self._watches = watches
        watches.add(self)

    def cancel(self) -> None:
        self._watch.cancel()
        self._watches.discard(self)


class CountingRegistry(Registry):
    """A registry that knows its watches, by the first kind of each."""

    def __init__(self, farm: ElkoFarm) -> None:
        super().__init__(farm.clock, count(1).__next__, farm.restored)
        self.watches: dict[Kind, set[CountedWatch]] = {kind: set() for kind in Kind}

    def watch(
        self, changed: Callable[[Change], None], kinds: Collection[Kind] = tuple(Kind), own: bool = False
    ) -> CountedWatch:
        watch = super().watch(changed, kinds, own)
        return CountedWatch(watch, self.watches[next(iter(kinds))])
