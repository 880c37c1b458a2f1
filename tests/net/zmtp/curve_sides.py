"""Both sides of CURVE connections in memory, and the helper of sealing, built from its source."""

from __future__ import annotations

import atexit
import functools
import shutil
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

import attrs
import pytest
from nacl.bindings import crypto_box_keypair, crypto_scalarmult_base

from broker.net.zmtp import sealing as sealings
from broker.net.zmtp.build import build
from broker.net.zmtp.curve import Cookies, CurveClient, CurveServer, Security
from broker.net.zmtp.curve_frames import Boxes, PythonSealing, Sealing
from broker.net.zmtp.frames import Command, Encoder, FrameLimits
from broker.net.zmtp.helpers import VARIABLE
from broker.net.zmtp.machine import Claim, Machine, Output
from broker.net.zmtp.sealing import SODIUM
from tests.packages import program

SOURCE = Path(sealings.__file__).with_name("sealing.c")

SERVER, SERVER_SECRET = crypto_box_keypair()
CLIENT, CLIENT_SECRET = crypto_box_keypair()

FROM_CLIENT, FROM_SERVER = b"CurveZMQMESSAGEC", b"CurveZMQMESSAGES"

forms = pytest.mark.parametrize("form", ["python", "compiled"])
"""A test of both ways of sealing; see `sealing_of`."""


@functools.cache
def helper(name: str = "sealing") -> Path | None:
    """A compiled helper; None where there is no C compiler."""
    if shutil.which("cc") is None:
        return None
    folder = tempfile.mkdtemp()
    atexit.register(shutil.rmtree, folder)
    built = Path(folder) / f"_{name}.so"
    build(name, built, ["-Wall", "-Wextra", "-Werror"])
    return built


@functools.cache
def sealing_of(form: str) -> Sealing:
    """A way of sealing by its name. Skips the test where it cannot be had."""
    if form == "python":
        return PythonSealing(SODIUM)
    if helper() is None:
        program("cc")
    return sealings.choose({VARIABLE: "compiled"}, helper())


def fixed_boxes() -> Boxes:
    """The boxes of libsodium with numbers in place of what is random."""
    numbers = iter(range(1, 256))

    def random(size: int) -> bytes:
        return bytes((next(numbers),)) * size

    def keypair() -> tuple[bytes, bytes]:
        secret = random(32)
        return crypto_scalarmult_base(secret), secret

    return attrs.evolve(SODIUM, random=random, keypair=keypair)


def security(form: str = "python", server: bool = True, boxes: Boxes = SODIUM) -> Security:
    """The values that the connections of our server, or our client, share."""
    keys = (SERVER, SERVER_SECRET) if server else (CLIENT, CLIENT_SECRET)
    return Security(boxes, sealing_of(form), *keys)


def server_side(form: str = "python", cookies: Cookies | None = None, limits: FrameLimits | None = None) -> Machine:
    """The server of a connection."""
    mechanism = CurveServer(security(form), cookies or Cookies(SODIUM, lambda: 0.0))
    return Machine(mechanism, "ROUTER", limits or FrameLimits())


def client_side(form: str = "python", limits: FrameLimits | None = None, server: bytes = SERVER) -> Machine:
    """The client of a connection, with the identity "me"."""
    return Machine(CurveClient(security(form, server=False), server), "DEALER", limits or FrameLimits(), b"me")


def connect(
    server: Machine, client: Machine, cut: Callable[[bytes], Sequence[bytes]] = lambda data: [data]
) -> tuple[Claim, Claim]:
    """Let both sides complete their handshake, and return what server and client learn of each other."""
    claims: dict[Machine, Claim] = {}
    waiting = {server: client.begin(), client: server.begin()}
    while any(waiting.values()):
        for side, other in ((server, client), (client, server)):
            data, waiting[side] = waiting[side], b""
            for piece in cut(data):
                for event in side.feed(piece):
                    if isinstance(event, Output):
                        waiting[other] += event.data
                    elif isinstance(event, Claim):
                        claims[side] = event
                        waiting[other] += side.accept()
    return claims[server], claims[client]


def connected(form: str, limits: FrameLimits | None = None) -> tuple[Machine, Machine]:
    """A server and a client after their handshake."""
    server, client = server_side(form, limits=limits), client_side(form, limits)
    connect(server, client)
    return server, client


def encoder_of(side: Machine) -> Encoder:
    """The encoder of a connection after its handshake."""
    assert side.encoder is not None
    return side.encoder


def received(side: Machine, data: bytes) -> list[list[bytes]]:
    """The messages in some bytes."""
    return [event for event in side.feed(data) if isinstance(event, list)]


def command_of(data: bytes) -> Command:
    """The command in a frame of the handshake."""
    start = 2 if data[0] == 4 else 9
    end = start + 1 + data[start]
    return Command(data[start + 1 : end], data[end:])
