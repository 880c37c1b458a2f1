"""Peers of a ZeroMQ ROUTER on plain sockets: ZMTP 3.0 by hand, with the NULL or the CURVE mechanism.

libzmq's own sockets would cost the generator more than the server: each frame is decoded, queued and handed over. Here
what comes may simply be counted, since the size on the wire of each message is known. The cryptography of CURVE is that
of the libsodium that comes with pyzmq.
"""

from __future__ import annotations

import ctypes
import socket
import struct
from collections.abc import Sequence
from typing import Protocol

import attrs
import zmq
from zmq.backend.cython import _zmq
from zmq.utils import z85

from bench import traffic
from bench.traffic import STUCK, Stuck, received

Frames = Sequence[bytes]
"""One message."""

MORE, LARGE, COMMAND = 1, 2, 4
"""Flags of a frame: another one follows; its size has eight bytes; it is none of a message."""

SHORT = 255
"""The most bytes of a frame whose size has one byte."""

GREETING = 64

READ = 1 << 18
"""Bytes that are read at once."""


@attrs.frozen
class Keys:
    """A pair of CURVE keys in Z85, as they stand in files."""

    public: bytes
    secret: bytes = attrs.field(repr=False)


def new_keys() -> Keys:
    """A fresh pair."""
    return Keys(*zmq.curve_keypair())


class Mechanism(Protocol):
    """The encoding of frames after the handshake."""

    overhead: int
    """Bytes by which it makes the content of a frame longer."""

    def seal(self, content: bytes, more: bool) -> bytes:
        """One frame, with its flags and size."""

    def open(self, flags: int, content: bytes) -> tuple[bytes, bool]:
        """The content of a frame, and True if another follows."""


class Peer:
    """One connection to a ROUTER, after the handshake."""

    def __init__(self, sock: socket.socket, mechanism: Mechanism, left: bytes = b"") -> None:
        self.sock = sock
        self.mechanism = mechanism
        self._input = bytearray(left)
        self._frames: list[bytes] = []
        self._messages: list[list[bytes]] = []

    def encode(self, frames: Frames) -> bytes:
        """A message as it goes over the wire. With CURVE each is to be sent, once, in the order of these calls."""
        seal, last = self.mechanism.seal, len(frames) - 1
        return b"".join([seal(content, i < last) for i, content in enumerate(frames)])

    def size(self, frames: Frames) -> int:
        """Bytes on the wire of a message with these frames, from any sender."""
        sizes = (len(content) + self.mechanism.overhead for content in frames)
        return sum(size + (2 if size <= SHORT else 9) for size in sizes)

    def send(self, *frames: bytes) -> None:
        """Send one message; waits if it must."""
        self.sock.sendall(self.encode(frames))

    def receive(self) -> list[bytes]:
        """The next message; waits for it. Raises `Stuck`."""
        while not self._messages:
            self._messages += self.feed(received(self.sock))
        return self._messages.pop(0)

    def ask(self, *frames: bytes) -> list[bytes]:
        """Send one message and wait for the next that comes."""
        self.send(*frames)
        return self.receive()

    def feed(self, data: bytes) -> list[list[bytes]]:
        """The messages that these bytes complete."""
        self._input += data
        messages = []
        while (taken := take(self._input)) is not None:
            content, more = self.mechanism.open(*taken)
            self._frames.append(content)
            if not more:
                messages.append(self._frames)
                self._frames = []
        return messages

    def close(self) -> None:
        self.sock.close()


def connect(
    port: int, identity: bytes, server_key: bytes | None = None, source: int = 0, keys: Keys | None = None
) -> Peer:
    """A peer with that identity. ``server_key`` (Z85) makes it a CURVE client, with these keys or fresh ones."""
    sock = traffic.connect(port, source)
    try:
        sock.settimeout(STUCK)
        return _shake_hands(sock, identity, server_key, keys)
    except BaseException:
        sock.close()
        raise


def frame(flags: int, content: bytes) -> bytes:
    """One frame as it goes over the wire."""
    if len(content) <= SHORT:
        return bytes((flags, len(content))) + content
    return struct.pack(">BQ", flags | LARGE, len(content)) + content


def take(data: bytearray) -> tuple[int, bytes] | None:
    """The whole frame at the beginning of ``data``, which is removed from it: its flags and what it holds."""
    if len(data) < 2:
        return None
    flags, size, start = data[0], data[1], 2
    if flags & LARGE:
        if len(data) < 9:
            return None
        size, start = int.from_bytes(data[1:9], "big"), 9
    end = start + size
    if len(data) < end:
        return None
    content = bytes(data[start:end])
    del data[:end]
    return flags, content


# the handshake


def greeting(mechanism: bytes) -> bytes:
    """The first bytes of a connection."""
    return (b"\xff" + bytes(8) + b"\x7f" + b"\x03\x00" + mechanism.ljust(20, b"\0")).ljust(GREETING, b"\0")


def about(kind: bytes, identity: bytes) -> bytes:
    """The metadata of a handshake."""
    return _property(b"Socket-Type", kind) + _property(b"Identity", identity)


def opening(kind: bytes = b"DEALER", identity: bytes = b"") -> bytes:
    """All that a peer without security says before its first message; it need not wait for the other's half."""
    return greeting(b"NULL") + frame(COMMAND, b"\x05READY" + about(kind, identity))


def _shake_hands(sock: socket.socket, identity: bytes, server_key: bytes | None, keys: Keys | None) -> Peer:
    name = b"NULL" if server_key is None else b"CURVE"
    sock.sendall(greeting(name))
    data = bytearray()
    while len(data) < GREETING:
        data += received(sock, data)
    del data[:GREETING]
    metadata = about(b"DEALER", identity)
    if server_key is None:
        sock.sendall(frame(COMMAND, b"\x05READY" + metadata))
        _command(sock, data, b"\x05READY")
        return Peer(sock, Null(), bytes(data))
    curve = Curve(z85.decode(server_key), keys)
    sock.sendall(frame(COMMAND, curve.hello()))
    sock.sendall(frame(COMMAND, curve.initiate(_command(sock, data, b"\x07WELCOME"), metadata)))
    _command(sock, data, b"\x05READY")
    return Peer(sock, curve, bytes(data))


def _command(sock: socket.socket, data: bytearray, name: bytes) -> bytes:
    """The body of the next command, whose name must be this. Later bytes stay in ``data``."""
    while (taken := take(data)) is None:
        data += received(sock, data)
    flags, content = taken
    if not flags & COMMAND or not content.startswith(name):
        raise Stuck(f"{content[:50]!r} instead of {name!r} in the handshake")
    return content[len(name) :]


def _property(name: bytes, value: bytes) -> bytes:
    return bytes((len(name),)) + name + struct.pack(">I", len(value)) + value


class Null:
    """No security."""

    overhead = 0

    def seal(self, content: bytes, more: bool) -> bytes:
        """One frame, with its flags and size."""
        return frame(MORE if more else 0, content)

    def open(self, flags: int, content: bytes) -> tuple[bytes, bool]:
        """The content of a frame, and True if another follows."""
        return content, bool(flags & MORE)


# CURVE, as ZeroMQ RFC 26 has it


_lib = ctypes.PyDLL(_zmq.__file__)  # the symbols of libsodium are found through the extension that needs it

_MAC = 16
_KEY = 32


def _keypair() -> tuple[bytes, bytes]:
    public, secret = ctypes.create_string_buffer(_KEY), ctypes.create_string_buffer(_KEY)
    _lib.crypto_box_keypair(public, secret)
    return public.raw, secret.raw


def _shared_key(public: bytes, secret: bytes) -> bytes:
    key = ctypes.create_string_buffer(_KEY)
    if _lib.crypto_box_beforenm(key, public, secret):
        raise ValueError("no public key")
    return key.raw


MAX_CONTENT = 1 << 20
"""Bytes that can be encrypted at once."""

_sealed = bytearray(MAX_CONTENT + _MAC)  # for all, since a buffer for each would take longer than the cryptography
_sealed_view = memoryview(_sealed)
_sealed_at = (ctypes.c_char * len(_sealed)).from_buffer(_sealed)

_seal = _lib.crypto_box_easy_afternm


def _box(content: bytes, nonce: bytes, key: bytes) -> bytes:
    size = len(content)
    if size > MAX_CONTENT:
        raise ValueError(f"{size} bytes are more than this is made for")
    _seal(_sealed_at, content, ctypes.c_ulonglong(size), nonce, key)
    return bytes(_sealed_view[: size + _MAC])


def _unbox(sealed: bytes, nonce: bytes, key: bytes) -> bytes:
    content = ctypes.create_string_buffer(max(len(sealed) - _MAC, 0))
    if _lib.crypto_box_open_easy_afternm(content, sealed, ctypes.c_ulonglong(len(sealed)), nonce, key):
        raise Stuck("what the server sent does not decrypt")
    return content.raw


class Curve:
    """A CURVE client, and what it says in a handshake."""

    NAME = b"\x07MESSAGE"
    overhead = len(NAME) + 8 + _MAC + 1
    """Its name, the short nonce, what authenticates the content, and the flags within."""

    def __init__(self, server: bytes, keys: Keys | None = None) -> None:
        self._server = server
        self._public, self._secret = _keypair() if keys is None else map(z85.decode, (keys.public, keys.secret))
        self._brief_public, self._brief_secret = _keypair()
        self._hello_key = _shared_key(server, self._brief_secret)
        self._key = b""
        self._sent = 0

    def hello(self) -> bytes:
        """The first command."""
        nonce = self._nonce()
        box = _box(bytes(64), b"CurveZMQHELLO---" + nonce, self._hello_key)
        return b"\x05HELLO\x01\x00" + bytes(72) + self._brief_public + nonce + box

    WELCOME = 2 + 8 + 16 + 144
    """Bytes of the answer to that: a frame with a name, a nonce and a box."""

    def initiate(self, welcome: bytes, about: bytes) -> bytes:
        """The second, from what came with the answer to the first."""
        opened = _unbox(welcome[16:], b"WELCOME-" + welcome[:16], self._hello_key)
        brief_server, cookie = opened[:_KEY], opened[_KEY:]
        self._key = _shared_key(brief_server, self._brief_secret)
        vouched = bytes(16)  # any value will do, once for these keys
        vouch = _box(self._brief_public + self._server, b"VOUCH---" + vouched, _shared_key(brief_server, self._secret))
        nonce = self._nonce()
        box = _box(self._public + vouched + vouch + about, b"CurveZMQINITIATE" + nonce, self._key)
        return b"\x08INITIATE" + cookie + nonce + box

    def seal(self, content: bytes, more: bool) -> bytes:
        """One frame, with its flags and size."""
        nonce = self._nonce()
        box = _box((b"\x01" if more else b"\x00") + content, b"CurveZMQMESSAGEC" + nonce, self._key)
        return frame(0, self.NAME + nonce + box)

    def open(self, flags: int, content: bytes) -> tuple[bytes, bool]:
        """The content of a frame, and True if another follows."""
        head = len(self.NAME)
        nonce, sealed = content[head : head + 8], content[head + 8 :]
        opened = _unbox(sealed, b"CurveZMQMESSAGES" + nonce, self._key)
        return opened[1:], bool(opened[0] & MORE)

    def _nonce(self) -> bytes:
        self._sent += 1
        return self._sent.to_bytes(8, "big")
