"""Providers on all wires that register, report loads, notice that their broker is gone, and come back through another.

Each has one service at a place of its own. Those of Elko, HTTP and MTL share service names; a name of DBP belongs to
one service. If its broker is silent, a provider does as the clients' guides recommend.
"""

from __future__ import annotations

import json
import random
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import msgspec
import treq
import zmq
from twisted.internet import reactor as _reactor
from twisted.internet.defer import Deferred
from twisted.internet.endpoints import TCP4ClientEndpoint
from twisted.internet.protocol import Factory, connectionDone
from twisted.internet.task import LoopingCall
from twisted.protocols.basic import LineOnlyReceiver
from twisted.python.failure import Failure
from twisted.web.client import Agent, HTTPConnectionPool

from broker.client.mtl import Client, Settings
from broker.client.profiles import registry
from broker.client.settings import Event
from tests.cluster.farm.hosts import DBP, ELKO, HTTP, MTL, Broker

reactor: Any = _reactor

SILENCE = 2.0
"""Seconds without an answer after which a provider takes its broker for gone."""

ASK = 0.7
"""Seconds between two pings of a server of Elko."""

NAMES = 10
"""Service names that the providers of a wire share."""


class Provider:
    """One provider. ``place`` identifies it; ``holder`` is the broker at which it is registered, None if none.

    ``last_holder`` is the last one, ``previous_holder`` the one before.
    ``since`` is the time of its registration there, ``lost`` that at which its last one ended, ``first`` that of the
    first one of all. The one that ended had lasted for ``held`` seconds; ``left`` is True if the provider ended it.
    ``unanswered`` is the time at which it gave up a registration before the answer: that may have replaced the one
    before, and has ended.
    """

    wire = ""

    def __init__(self, number: int, brokers: Sequence[Broker], rng: random.Random) -> None:
        self.number = number
        self.name = f"{self.wire}-{number % NAMES}"
        self.place = f"192.0.2.{number % 250}:{number + 1000}"
        self.holder: str | None = None
        self.last_holder = self.previous_holder = ""
        self.since = self.lost = self.held = self.first = self.unanswered = 0.0
        self.left = self._leaving = False
        self.moves = 0
        self._brokers = list(brokers)
        self._rng = rng
        self._at = rng.randrange(len(brokers))
        self._ended = False
        self._several = len(brokers) > 1

    @property
    def broker(self) -> Broker:
        """The broker that it uses now."""
        return self._brokers[self._at]

    def next_broker(self) -> None:
        """Use another broker."""
        self._at = (self._at + self._rng.randrange(1, len(self._brokers))) % len(self._brokers) if self._several else 0

    def leave(self) -> None:
        """End the registration without a farewell, and come back at another broker."""
        self._leaving = self.holder is not None
        self.end()

    def end(self) -> None:
        """End the session."""
        raise NotImplementedError

    def registered(self) -> None:
        """Note that it is registered."""
        if self.holder is None:
            self.previous_holder = self.last_holder
            self.holder = self.last_holder = self.broker.name
            self.since = time.monotonic()
            self.first = self.first or self.since
            self.moves += 1

    def gone(self, offered: bool) -> None:
        """Note that it is not registered any more, as far as it knows. ``offered`` tells whether it had asked its
        broker for a registration."""
        if self.holder is not None:
            self.holder = None
            self.lost = time.monotonic()
            self.held = self.lost - self.since
            self.left, self._leaving = self._leaving, False
        elif offered:
            self.unanswered = time.monotonic()

    def start(self) -> None:
        """Begin."""
        raise NotImplementedError

    def stop(self) -> None:
        """Withdraw, and end."""
        raise NotImplementedError


class _ElkoProtocol(LineOnlyReceiver):
    transport: Any
    delimiter = b"\n"
    MAX_LENGTH = 1_000_000

    def __init__(self, provider: ElkoProvider) -> None:
        self.provider = provider

    def connectionMade(self) -> None:
        provider = self.provider
        self.unheard = 0
        self.say(to="client", op="auth", label=f"elko-{provider.number}")
        services = [{"service": provider.name, "hostport": provider.place}]
        self.say(to="client", op="willserve", services=services)
        self.say(to="client", op="ping", tag="registered")
        self.asking = LoopingCall(self.ask)
        self.asking.start(ASK, now=False)

    def say(self, **message: Any) -> None:
        self.transport.write(json.dumps(message).encode() + b"\n\n")

    def ask(self) -> None:
        # Not by the clock: where this process is late, the answers have arrived and are not read yet.
        if self.unheard * ASK > SILENCE:
            self.transport.abortConnection()
            return
        self.unheard += 1
        self.say(to="client", op="load", factor=round(self.provider._rng.random(), 3))
        self.say(to="client", op="ping", tag="alive")

    def lineReceived(self, line: bytes) -> None:
        if not line:
            return
        self.unheard = 0
        message = msgspec.json.decode(line)
        if message["op"] == "ping":
            self.say(to=message["to"], op="pong", tag=message.get("tag"))
        elif message.get("tag") == "registered":
            self.provider.registered()
        elif message["op"] in ("reinit", "disconnect"):
            self.transport.loseConnection()

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        if self.asking.running:
            self.asking.stop()
        self.provider.lost_connection(offered=True)


class ElkoProvider(Provider):
    """A server of Elko: its connection is its registration."""

    wire = "elko"
    connection: Any = None

    def start(self) -> None:
        endpoint = TCP4ClientEndpoint(reactor, self.broker.address, ELKO, timeout=1.5)

        def connected(protocol: Any) -> None:
            self.connection = protocol
            if self._ended:
                protocol.transport.loseConnection()

        endpoint.connect(Factory.forProtocol(lambda: _ElkoProtocol(self))).addCallbacks(connected, self._failed)

    def _failed(self, _failure: Any) -> None:
        self.lost_connection(offered=False)

    def end(self) -> None:
        if self.connection is not None:
            self.connection.transport.abortConnection()

    def lost_connection(self, offered: bool) -> None:
        self.gone(offered)
        self.connection = None
        if not self._ended:
            self.next_broker()
            reactor.callLater(self._rng.uniform(0.05, 0.4), self.start)

    def stop(self) -> None:
        self._ended = True
        if self.connection is not None:
            self.connection.transport.loseConnection()


class HttpProvider(Provider):
    """A program that repeats its PUT: that is its registration and its renewal."""

    wire = "http"
    ttl = 8
    _client: Any = None

    def start(self) -> None:
        if HttpProvider._client is None:
            pool = HTTPConnectionPool(reactor)
            pool.maxPersistentPerHost = 50
            pool.retryAutomatically = False
            HttpProvider._client = treq.client.HTTPClient(Agent(reactor, pool=pool, connectTimeout=1.5))
        self._renewed = time.monotonic()
        self._again(0.0)

    def _again(self, pause: float) -> None:
        if not self._ended:
            reactor.callLater(pause, self._put)

    def _put(self) -> None:
        if not self._ended:
            Deferred.fromCoroutine(self._request("PUT")).addTimeout(SILENCE, reactor).addCallbacks(
                self._done, self._failed, callbackArgs=(self.broker,)
            )

    async def _request(self, method: str) -> int:
        url = f"http://{self.broker.address}:{HTTP}/v1/services/{self.name}/{self.number}"
        load = round(self._rng.random(), 3)
        body = json.dumps({"hostport": self.place, "ttl": self.ttl, "load": load}).encode() if method == "PUT" else None
        answer = await self._client.request(method, url, data=body, headers={"Content-Type": "application/json"})
        await answer.content()
        return int(answer.code)

    def end(self) -> None:
        # The next PUT goes to another broker: no instance ends before its TTL.
        self.gone(offered=False)
        self.next_broker()

    def _done(self, code: int, broker: Broker) -> None:
        if code not in (200, 201):
            self._failed(code)
        elif broker is self.broker:
            if code == 201:
                # The one before has expired, as it does when this process is late.
                self.gone(offered=False)
            self.registered()
            self._again(self._rng.uniform(1.0, 1.6))
        else:
            # It has left that broker since the request.
            self._again(self._rng.uniform(0.05, 0.4))

    def _failed(self, _failure: Any) -> None:
        self.gone(offered=True)
        self.next_broker()
        self._again(self._rng.uniform(0.05, 0.4))

    def stop(self) -> None:
        self._ended = True
        if self.holder is not None:
            Deferred.fromCoroutine(self._request("DELETE")).addTimeout(SILENCE, reactor).addErrback(lambda _: None)


class MtlProvider(Provider):
    """An offer of the client library; a lost flow makes it take another broker."""

    wire = "mtl"
    context: Any = None
    client: Client | None = None
    settings = Settings(timeout=2.0, heartbeat=0.7, dead_after=2)

    def start(self) -> None:
        if MtlProvider.context is None:
            MtlProvider.context = zmq.Context(io_threads=1)
            MtlProvider.context.max_sockets = 8000
        self.client = client = Client(
            reactor, f"tcp://{self.broker.address}:{MTL}", settings=self.settings, context=MtlProvider.context
        )
        self._watchdog = reactor.callLater(SILENCE + 1.0, self._move, client)

        def event(event: Event, _why: str) -> None:
            if event is Event.LOST:
                self._move(client)

        offered = Deferred.fromCoroutine(
            registry.offer(client, self.name, self.place, label=f"mtl-{self.number}", load=0.5, on_event=event)
        )
        offered.addCallbacks(lambda offer: self._offered(client, offer), lambda _: self._move(client))

    def _offered(self, client: Client, offer: Any) -> None:
        if client is not self.client:
            return
        self._watchdog.cancel()
        self.registered()
        self._report(client, offer)

    def _report(self, client: Client, offer: Any) -> None:
        if client is self.client:
            offer.load(round(self._rng.random(), 3)).addErrback(lambda _: None)
            reactor.callLater(1.0, self._report, client, offer)

    def end(self) -> None:
        if self.client is not None:
            self._move(self.client)

    def _move(self, client: Client) -> None:
        if client is not self.client:
            return
        self.client = None
        if self._watchdog.active():
            self._watchdog.cancel()
        # The client does not tell whether it had sent the offer.
        self.gone(offered=True)
        client.close()
        if not self._ended:
            self.next_broker()
            reactor.callLater(self._rng.uniform(0.05, 0.4), self.start)

    def stop(self) -> None:
        self._ended = True
        if self.client is not None:
            self._move(self.client)


class DbpProvider(Provider):
    """A node of DBP. Nodes live in a thread of their own (`DbpThread`)."""

    wire = "dbp"
    socket: Any = None
    heard = 0.0
    spoke = 0.0
    _ending = False

    def __init__(self, number: int, brokers: Sequence[Broker], rng: random.Random) -> None:
        super().__init__(number, brokers, rng)
        self.name = f"dbp-{number}"

    def start(self) -> None:
        DbpThread.add(self)

    def end(self) -> None:
        self._ending = True

    def stop(self) -> None:
        self._ended = True

    # in the thread

    def connect(self, context: zmq.Context[Any]) -> None:
        """Open a connection and register."""
        self.socket = context.socket(zmq.DEALER)
        self.socket.linger = 0
        self.socket.connect(f"tcp://{self.broker.address}:{DBP}")
        host, _, port = self.place.partition(":")
        info = {"name": self.name, "ip": host, "port": int(port), "heartbeat_ms": 500, "liveness": 4}
        self.say(b"UwU", json.dumps(info).encode())
        self.heard = self.spoke = time.monotonic()

    def say(self, command: bytes, *frames: bytes) -> None:
        """Send a command."""
        with suppress(zmq.Again):
            self.socket.send_multipart([b"", command, b"%.3f" % time.time(), *frames], zmq.NOBLOCK)

    def turn(self, now: float) -> bool:
        """Read, write a heartbeat if it is due. False once the connection is useless."""
        while True:
            try:
                frames = self.socket.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                break
            self.heard = now
            match frames[1]:
                case b"OwO":
                    self.registered()
                case b"</3" | b"(O_O)":
                    return False
        if self._ending:
            self._ending = False
            return False
        if now - self.spoke > 0.4 and self.holder is not None:
            self.spoke = now
            self.say(b"<3", self.name.encode())
        return now - self.heard < SILENCE

    def disconnect(self, farewell: bool) -> None:
        """Close the connection."""
        if farewell:
            self.say(b"</3", self.name.encode())
            self.socket.linger = 500
        self.gone(offered=True)
        self.socket.close()
        self.socket = None


class DbpThread(threading.Thread):
    """The thread of all nodes of DBP."""

    one: DbpThread | None = None

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.nodes: list[DbpProvider] = []
        self.over = False

    @classmethod
    def add(cls, node: DbpProvider) -> None:
        """Add a node."""
        if cls.one is None:
            cls.one = cls()
            cls.one.start()
        cls.one.nodes.append(node)

    def run(self) -> None:
        context = zmq.Context(io_threads=1)
        context.max_sockets = 4000
        due: dict[DbpProvider, float] = {}
        while not self.over:
            now = time.monotonic()
            for node in list(self.nodes):
                if node._ended:
                    if node.socket is not None:
                        node.disconnect(farewell=True)
                    self.nodes.remove(node)
                elif node.socket is None:
                    if now >= due.get(node, 0.0):
                        node.connect(context)
                elif not node.turn(now):
                    node.disconnect(farewell=False)
                    node.next_broker()
                    due[node] = now + node._rng.uniform(0.05, 0.4)
            time.sleep(0.05)


WIRES: list[Callable[[int, Sequence[Broker], random.Random], Provider]] = [
    ElkoProvider,
    HttpProvider,
    MtlProvider,
    DbpProvider,
]


def providers(count: int, brokers: Sequence[Broker], rng: random.Random) -> list[Provider]:
    """Make that many providers, the wires in turn."""
    return [WIRES[number % len(WIRES)](number, brokers, random.Random(rng.random())) for number in range(count)]
