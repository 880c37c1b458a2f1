"""Peers of MTL for tests of the whole daemon: real ZeroMQ sockets, and bytes put together by hand.

Nothing here is the broker's own: what it sends is read, and what it is sent is written, as RFC 11 has it. Field tables
are pamqp's. Each wait lasts `PATIENCE` at most.

The file is longer than others: it has the peers of both flows, which share frames and encodings.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import re
import signal
import struct
import time
from base64 import b64decode, b64encode
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple

import attrs
import pamqp.decode
import pamqp.encode
import zmq
from zmq.utils.monitor import recv_monitor_message

from tests.integration.daemon import Daemon
from tests.integration.mc0_clients import ELKO, Keys, whole_log
from tests.patience import PATIENCE

LEASE, RESPONSE, SUMMON, DISMISS, CONTENT, CONFIRM, REJECT, PING, PONG = range(1, 10)
"""The types of commands."""

MTL = {"name": "MTL", "version": 1}

CANARY = "Canary.Sing"
"""A command that no server has, and that is answered for all that."""


# what is sent


def short(text: str | bytes) -> bytes:
    """A short string."""
    data = text.encode() if isinstance(text, str) else text
    return len(data).to_bytes(1) + data


def head(kind: int, sequence: int, rest: bytes = b"") -> bytes:
    """A header with a sequence."""
    return struct.pack(">BQ", kind, sequence) + rest


def table(properties: Mapping[str, Any] | None = None) -> bytes:
    """A field table."""
    return pamqp.encode.field_table(dict(properties or {}))


def tail(name: str = "", properties: Mapping[str, Any] | None = None) -> bytes:
    """Return the part of a Content's header after the sequence."""
    return short(name) + table(properties)


# what is received


class Reply(NamedTuple):
    """The answer to a request."""

    code: str
    body: dict[str, Any]


@attrs.frozen
class Response:
    sequence: int
    code: str


@attrs.frozen
class Content:
    sequence: int
    resource: str
    table: bytes
    body: bytes

    @property
    def properties(self) -> dict[str, Any]:
        """Return the table as values."""
        size, found = pamqp.decode.field_table(self.table)
        assert size == len(self.table)
        return found


@attrs.frozen
class Confirm:
    sequence: int
    multiple: bool = False


@attrs.frozen
class Reject:
    sequence: int
    multiple: bool
    recycle: bool


@attrs.frozen
class Bare:
    """A Ping or a Pong."""

    kind: int


Command = Response | Content | Confirm | Reject | Bare


def read(frames: list[bytes]) -> Command:
    """Return a server's message of a data flow, which must be well-formed."""
    header, body = frames
    kind = header[0]
    if kind in (PING, PONG):
        assert (len(header), body) == (1, b"")
        return Bare(kind)
    _, sequence = struct.unpack_from(">BQ", header)
    rest = header[9:]
    if kind == CONTENT:
        end = 1 + rest[0]
        return Content(sequence, rest[1:end].decode(), rest[end:], body)
    if kind == RESPONSE:
        assert rest == b""
        assert len(body) == 3
        return Response(sequence, body.decode())
    assert body == b""
    assert set(rest) <= {0, 1}
    if kind == CONFIRM:
        [multiple] = rest
        return Confirm(sequence, bool(multiple))
    assert kind == REJECT
    multiple, recycle = rest
    return Reject(sequence, bool(multiple), bool(recycle))


def reply_of(code: bytes, body: bytes) -> Reply:
    """A reply, which must be in order."""
    assert len(code) == 3
    assert code[:1] in (b"2", b"4", b"5")
    assert code.isdigit()
    members = json.loads(body)
    assert isinstance(members["status"], str)
    return Reply(code.decode(), members)


# peers


class Connection:
    """One socket that is connected to the broker."""

    def __init__(self, context: zmq.Context[Any], address: str, kind: int, keys: Keys | None, **options: Any) -> None:
        self.address = address
        self.socket: zmq.Socket[bytes] = context.socket(kind)
        self.socket.linger = 0
        self.socket.rcvtimeo = self.socket.sndtimeo = int(PATIENCE * 1000)
        if keys is not None:
            self.socket.curve_publickey = keys.public
            self.socket.curve_secretkey = keys.secret
            self.socket.curve_serverkey = keys.server
        for name, value in options.items():
            setattr(self.socket, name, value)
        self.socket.connect(address)

    def hears_nothing(self, seconds: float) -> bool:
        """Return True if nothing comes in that time."""
        return not self.socket.poll(int(seconds * 1000))

    def close(self) -> None:
        """Close it."""
        self.socket.close(0)


class Control(Connection):
    """A peer of the control flow: a DEALER, or a REQ. Messages are sent and received without the empty frame."""

    @property
    def _delimiter(self) -> list[bytes]:
        return [] if self.socket.type == zmq.REQ else [b""]

    def send(self, command: str | bytes, body: object, *routing: bytes) -> None:
        """Send a request. A body that is no bytes becomes JSON."""
        name = command.encode() if isinstance(command, str) else command
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.socket.send_multipart([*routing, *self._delimiter, name, data])

    def receive(self) -> Reply:
        """The next reply."""
        *delimiter, code, body = self.socket.recv_multipart()
        assert delimiter == self._delimiter
        return reply_of(code, body)

    def ask(self, command: str | bytes, body: object) -> Reply:
        """Send a request, and return the reply."""
        self.send(command, body)
        return self.receive()

    def heard(self) -> list[Reply]:
        """All that comes before the answer to a request that is sent now. With what was answered before it is none."""
        self.send(CANARY, {})
        replies = []
        while (reply := self.receive()).code != "501" or reply.body.get("reason") != "there is no such command":
            replies.append(reply)
        return replies

    # requests

    def open(self, host: str | None = None) -> Reply:
        """Connection.Open."""
        return self.ask("Connection.Open", {"protocol": MTL} | ({} if host is None else {"virtual-host": host}))

    def authorize(self, mechanism: str, response: bytes | None) -> Reply:
        """Connection.Authorize."""
        return self.ask(
            "Connection.Authorize",
            {"mechanism": mechanism, "response": None if response is None else b64encode(response).decode()},
        )

    def plain(self, user: str, password: str) -> Reply:
        """Log in by PLAIN."""
        return self.authorize("PLAIN", f"\0{user}\0{password}".encode())

    def scram(self, user: str, password: str) -> Reply:
        """Log in by SCRAM-SHA-256; the broker must prove itself. Returns the last reply."""
        exchange = Scram(user, password)
        reply = self.authorize("SCRAM-SHA-256", exchange.first())
        if reply.code == "402":
            reply = self.authorize("SCRAM-SHA-256", exchange.final(challenge(reply)))
        if reply.code == "402":
            exchange.proved_by(challenge(reply))
            reply = self.authorize("SCRAM-SHA-256", b"")
        return reply

    def profile(self, name: str) -> Reply:
        """Connection.Profile."""
        return self.ask("Connection.Profile", {"profile": name})

    def lease(self, side: str, *resources: str, **more: Any) -> Reply:
        """Connection.Reader or Connection.Writer."""
        return self.ask(f"Connection.{side}", {"resources": resources, **more})

    def opened(self, profile: str, host: str | None = None) -> Control:
        """Open, where nobody has to say who it is, and choose a profile."""
        assert self.open(host).code == "201"
        assert self.profile(profile).code == "200"
        return self

    def token(self, side: str, *resources: str, **more: Any) -> str:
        """A data lease."""
        reply = self.lease(side, *resources, **more)
        assert reply.code == "202", reply
        return str(reply.body["lease"])


def challenge(reply: Reply) -> bytes:
    """Return the challenge of a 402."""
    assert reply.code == "402"
    assert reply.body["status"] == "Challenged"
    return b64decode(reply.body["challenge"], validate=True)


class Flow(Connection):
    """A peer of the data flow: a DEALER. It answers Pings when it receives. Commands and Contents share one counter."""

    sequence = 0

    def send(self, kind: int, rest: bytes = b"", body: bytes = b"", sequence: int | None = None) -> int:
        """Send a command with a sequence, by default the next one; returns that."""
        if sequence is None:
            self.sequence += 1
            sequence = self.sequence
        self.socket.send_multipart([head(kind, sequence, rest), body])
        return sequence

    def say(self, *frames: bytes) -> None:
        """Send just these frames."""
        self.socket.send_multipart(frames)

    def next(self) -> Command:
        """Return the next message."""
        return read(self.socket.recv_multipart())

    def receive(self) -> Command:
        """Return the next message that is no Ping."""
        began = time.monotonic()
        while (command := self.next()) == Bare(PING):
            self.say(bytes([PONG]), b"")
            assert time.monotonic() - began < PATIENCE, "there were Pings only"
        return command

    def lives(self) -> None:
        """Answer the Pings that have come; nothing else may have."""
        while self.socket.poll(0):
            assert self.next() == Bare(PING)
            self.say(bytes([PONG]), b"")

    def heard(self) -> list[Command]:
        """All that comes before the answer to a Ping that is sent now."""
        self.say(bytes([PING]), b"")
        commands = []
        while (command := self.receive()) != Bare(PONG):
            commands.append(command)
        return commands

    def ask(self, kind: int, rest: bytes) -> str:
        """Send a command; returns the code of the Response, which must be what comes next."""
        sequence = self.send(kind, rest)
        response = self.receive()
        assert isinstance(response, Response)
        assert response.sequence == sequence
        return response.code

    def lease(self, token: str) -> str:
        """Lease."""
        return self.ask(LEASE, short(token))

    def summon(self, name: str) -> str:
        """Summon."""
        return self.ask(SUMMON, short(name))

    def dismiss(self, name: str) -> str:
        """Dismiss."""
        return self.ask(DISMISS, short(name))

    def write(
        self,
        body: bytes = b"",
        name: str = "",
        properties: Mapping[str, Any] | None = None,
        sequence: int | None = None,
    ) -> int:
        """Content; returns its sequence."""
        return self.send(CONTENT, tail(name, properties), body, sequence)

    def confirm(self, sequence: int, multiple: bool = False) -> None:
        """Confirm."""
        self.send(CONFIRM, bytes([multiple]), b"", sequence)

    def reject(self, sequence: int, multiple: bool = False, recycle: bool = False) -> None:
        """Reject."""
        self.send(REJECT, bytes([multiple, recycle]), b"", sequence)

    def content(self) -> Content:
        """The next Content, which must be what comes next."""
        content = self.receive()
        assert isinstance(content, Content), content
        return content

    def contents(self, count: int) -> list[Content]:
        """The next Contents."""
        return [self.content() for _ in range(count)]

    def bodies(self, count: int) -> list[bytes]:
        """The bodies of the next Contents."""
        return [content.body for content in self.contents(count)]

    def settled(self, *sequences: int) -> list[Reject]:
        """Wait until each of these Contents is confirmed or rejected, each once. Returns what was rejected."""
        waiting = set(sequences)
        rejected = []
        while waiting:
            answer = self.receive()
            assert isinstance(answer, Confirm | Reject), answer
            covered = {each for each in waiting if each <= answer.sequence} if answer.multiple else {answer.sequence}
            assert answer.sequence in waiting
            waiting -= covered
            if isinstance(answer, Reject):
                rejected.append(answer)
        return rejected

    def cut_off(self, monitor: zmq.Socket[Any]) -> None:
        """Wait until the broker has closed the connection. ``monitor`` is that of the socket."""
        while monitor.poll(int(PATIENCE * 1000)):
            if recv_monitor_message(monitor)["event"] == zmq.EVENT_DISCONNECTED:
                return
        raise AssertionError("it was not closed")


class Peers:
    """Makes peers of the broker at ``address``, and closes them all in the end."""

    def __init__(self, address: str, data: str) -> None:
        self.address = address
        self.data = data
        self._context: zmq.Context[Any] = zmq.Context()
        self._all: list[Connection] = []
        """pyzmq closes what nobody refers to."""

    def __enter__(self) -> Peers:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._context.destroy(0)

    def control(self, kind: int = zmq.DEALER, keys: Keys | None = None, source: str = "", **options: Any) -> Control:
        """A peer of the control flow. ``source`` is the address that it connects from."""
        address = self.address.replace("://", f"://{source}:0;") if source else self.address
        control = Control(self._context, address, kind, keys, **options)
        self._all.append(control)
        return control

    def flow(self, keys: Keys | None = None, **options: Any) -> Flow:
        """A peer of the data flow, without a lease."""
        flow = Flow(self._context, self.data, zmq.DEALER, keys, **options)
        self._all.append(flow)
        return flow

    def leased(self, profile: str, side: str, *resources: str, host: str | None = None, **more: Any) -> Flow:
        """A peer of the data flow that has used a lease, where nobody has to say who it is."""
        flow = self.flow()
        control = self.control()
        assert flow.lease(control.opened(profile, host).token(side, *resources, **more)) == "200"
        control.close()
        return flow

    def reader(self, profile: str, *resources: str, host: str | None = None, **more: Any) -> Flow:
        """A reader that has summoned these resources."""
        flow = self.leased(profile, "Reader", *resources, host=host, **more)
        for name in resources:
            assert flow.summon(name) == "200"
        return flow

    def writer(self, profile: str, *resources: str, host: str | None = None, **more: Any) -> Flow:
        """A writer."""
        return self.leased(profile, "Writer", *resources, host=host, **more)


# SASL


class Scram:
    """The client's part of SCRAM-SHA-256 (RFC 5802)."""

    def __init__(self, user: str, password: str) -> None:
        self._bare = f"n={user},r=fyko+d2lbbFgONRv9qkxdawL"
        self._password = password.encode()
        self._signature = b""

    def first(self) -> bytes:
        """The first response."""
        return f"n,,{self._bare}".encode()

    def final(self, challenge: bytes) -> bytes:
        """The response to the first challenge."""
        fields = dict(part.split("=", 1) for part in challenge.decode().split(","))
        assert fields["r"].startswith(self._bare.partition(",r=")[2])
        salted = hashlib.pbkdf2_hmac("sha256", self._password, b64decode(fields["s"]), int(fields["i"]))
        key = hmac.digest(salted, b"Client Key", "sha256")
        without_proof = f"c=biws,r={fields['r']}"
        message = ",".join([self._bare, challenge.decode(), without_proof]).encode()
        signature = hmac.digest(hashlib.sha256(key).digest(), message, "sha256")
        self._signature = hmac.digest(hmac.digest(salted, b"Server Key", "sha256"), message, "sha256")
        proof = bytes(one ^ other for one, other in zip(key, signature, strict=True))
        return f"{without_proof},p={b64encode(proof).decode()}".encode()

    def proved_by(self, challenge: bytes) -> None:
        """Assert that the broker knows the user too."""
        assert challenge == b"v=" + b64encode(self._signature)


def peers_of(daemon: Daemon) -> Peers:
    """Peers of a daemon, once it listens."""
    found = daemon.wait_for(r"mtl on (\S+) \(data (\S+); ")
    return Peers(found[1], found[2])


def ends_in_order(daemon: Daemon) -> str:
    """Stop a daemon, and assert that it had no defect. Returns all that it logged."""
    daemon.signal(signal.SIGTERM)
    log = whole_log(daemon)
    defect = re.search("Traceback| critical ", log)
    assert defect is None, log[max(0, defect.start() - 500) : defect.start() + 3_000]
    return log


def configured(directory: Path, mtl: str, others: str = "[mc0]\nenabled = false\n[dbp]\nenabled = false\n") -> str:
    """A configuration file with these keys of [mtl]; tables may follow. It takes any free port, unless they say."""
    endpoint = "" if "endpoint" in mtl else 'endpoint = "tcp://127.0.0.1:0"\n'
    path = directory / "elkobroker.toml"
    path.write_text(f"{ELKO}{others}[mtl]\n{endpoint}{mtl}\n")
    return str(path)
