"""Selection of the CURVE sealing: the Python implementation, or the compiled helper.

The helper, sealing.c (`broker.net.zmtp.helpers`), opens all frames of a read in one call, and seals a message for a
list of connections in one. ctypes loads it, and PyNaCl's cffi calls it, which takes a quarter less time for a call than
ctypes; both release the GIL.

NaCl boxes by libsodium, through PyNaCl.

The handshake uses PyNaCl's public functions. A box of traffic takes 2.3 to 3.5 µs with them, and 1.2 with the
extension's own function, which has a private name: pyproject.toml bounds the versions, and the import fails if a name
is missing.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import nacl
from nacl import _sodium
from nacl.bindings import crypto_box_beforenm, crypto_box_keypair

from broker.net.zmtp import frames as plain
from broker.net.zmtp.curve_frames import MAC, OVERHEAD, Boxes, CurveDecoder, PythonSealing, Sealing, check_numbers
from broker.net.zmtp.frames import FRAME_COST, MORE, Decoded, Encoder, FrameLimits
from broker.net.zmtp.helpers import NOT_BUILT, VARIABLE, helper_path

SCRATCH = 65_536
"""Bytes of content that fit the preallocated buffer. A longer box has a buffer of its own."""

try:
    ffi = _sodium.ffi
    SEAL = _sodium.lib.crypto_box_easy_afternm
    OPEN = _sodium.lib.crypto_box_open_easy_afternm
    seal_address = ffi.addressof(_sodium.lib, "crypto_box_easy_afternm")
    open_address = ffi.addressof(_sodium.lib, "crypto_box_open_easy_afternm")
except AttributeError as error:
    raise ImportError(f"PyNaCl {nacl.__version__} is of no version that pyproject.toml allows: {error}") from error

_scratch = ffi.new("unsigned char[]", SCRATCH + MAC)
_view = ffi.buffer(_scratch)
"""Not reentrant: used by the reactor thread alone."""


def seal(content: bytes, nonce: bytes, key: bytes) -> bytes:
    """See `Boxes`."""
    size = len(content)
    if size <= SCRATCH:
        SEAL(_scratch, content, size, nonce, key)
        return _view[: size + MAC]  # type: ignore[no-any-return]
    box = ffi.new("unsigned char[]", size + MAC)
    SEAL(box, content, size, nonce, key)
    return bytes(ffi.buffer(box))


def open(box: bytes, nonce: bytes, key: bytes) -> bytes:
    """See `Boxes`."""
    size = len(box) - MAC
    if size <= SCRATCH:
        if size < 0 or OPEN(_scratch, box, len(box), nonce, key):
            raise ValueError("the box does not open")
        return _view[:size]  # type: ignore[no-any-return]
    content = ffi.new("unsigned char[]", size)
    if OPEN(content, box, len(box), nonce, key):
        raise ValueError("the box does not open")
    return bytes(ffi.buffer(content))


def open_within(box: memoryview, nonce: bytes, key: bytes) -> None:
    """See `Boxes`."""
    with ffi.from_buffer(box, require_writable=True) as octets:
        # in-place decryption: libsodium allows a box and its content to overlap
        if len(box) < MAC or OPEN(octets, octets, len(box), nonce, key):
            raise ValueError("the box does not open")


def shared(public: bytes, secret: bytes) -> bytes:
    """See `Boxes`."""
    try:
        return crypto_box_beforenm(public, secret)
    except Exception as error:  # the exception classes differ between versions
        raise ValueError("the key has nothing in common with any") from error


SODIUM = Boxes(os.urandom, crypto_box_keypair, shared, seal, open, open_within)


BATCH = 256
"""Upper bound of frames opened in one call: 1 µs each, so that other connections are not delayed."""

ROOM = 65_536
"""Upper bound of bytes opened in one call. A longer frame is opened by itself."""

OUTPUT = 262_144
"""Upper bound of bytes sealed in one call, unless a single connection's part is longer."""

GROWTH = OVERHEAD + 7
"""Bytes by which a sealed frame exceeds the frame in NULL encoding, at most: its size may need seven bytes more."""

_OPEN = (
    "int64_t(*)(void *, uint64_t *, unsigned char *, uint64_t *, uint64_t, uint64_t, void *, uint64_t, void *, int64_t)"
)
_SEAL = (
    "int64_t(*)(void *, uint64_t **, int64_t, unsigned char *, uint64_t, uint64_t, uint64_t *, uint64_t,"
    " unsigned char *, uint64_t)"
)
"""The functions of sealing.c, with ``struct direction`` as seven numbers of 64 bits."""

_NULL = ffi.NULL

_COUNTER = 6
"""The index of the counter in them."""


class SealingError(Exception):
    """The compiled helper was requested, and is unusable."""


def choose(environ: Mapping[str, str] = os.environ, path: Path | None = None) -> Sealing:
    """Return the sealing that the environment selects, with the helper in ``path`` (default: the installed one).

    Raises `SealingError` if the helper is requested and unusable, and for an unknown value.
    """
    asked = environ.get(VARIABLE, "")
    if asked not in ("", "python", "compiled"):
        raise SealingError(f"{VARIABLE} is python or compiled, not {asked}")
    if asked != "python":
        try:
            return CompiledSealing(path or helper_path("sealing"))
        except SealingError as error:
            if asked:
                raise
            return PythonSealing(SODIUM, str(error))
    return PythonSealing(SODIUM)


def _direction(key: bytes, prefix: bytes, counter: int) -> Any:
    """Create a ``struct direction`` of sealing.c."""
    direction = ffi.new("uint64_t[7]")
    ffi.buffer(direction)[:48] = key + prefix
    direction[_COUNTER] = counter
    return direction


class CompiledEncoder:
    """Encoder of one connection."""

    __slots__ = ("_sealing", "alone", "direction")

    def __init__(self, sealing: CompiledSealing, direction: Any) -> None:
        self._sealing = sealing
        self.direction = direction
        self.alone = ffi.new("uint64_t *[]", [direction])
        """The argument of sealing.c for this connection alone, kept since a message for one is the common case."""

    def message(self, frames: Sequence[bytes]) -> bytes:
        """See `Encoder`."""
        return self._sealing.seal_one(self, plain.message(frames), len(frames))

    def command(self, name: bytes, data: bytes) -> bytes:
        """See `Encoder`."""
        return self._sealing.seal_one(self, plain.command(name, data), 1)


class CompiledDecoder(CurveDecoder):
    """Decoder of one connection. The helper opens most frames; `CurveDecoder` handles the others."""

    __slots__ = ("_direction", "_sealing")

    def __init__(self, sealing: CompiledSealing, limits: FrameLimits, key: bytes, prefix: bytes, counter: int) -> None:
        super().__init__(limits, SODIUM, key, prefix, counter)
        self._sealing = sealing
        self._direction = _direction(key, prefix, counter)

    def feed(self, data: bytes) -> Iterator[Decoded]:
        """See `Decoder`."""
        if self._partial is not None:
            data = self._collect(data)
            if self._missing:
                return
            yield self._alone(self._collected)
        elif self._rest:
            data = self._rest + data
        self._rest = b""
        position, end = 0, len(data)
        open_all, longest, direction = self._sealing.open, self._limits.frame, self._direction
        most_cost, most_frames = self._limits.message, self._limits.frames
        while position < end:
            position, content, table = open_all(direction, data, position, end, longest)
            if table:
                frames, cost = self._frames, self._cost
                rows = iter(table)
                for flags, start, stop in zip(rows, rows, rows, strict=True):
                    if flags > MORE:
                        yield self._boxed_command(flags, content[start:stop])
                        continue
                    frames.append(content[start:stop])
                    cost += stop - start + FRAME_COST
                    if cost > most_cost or len(frames) > most_frames:
                        self._refuse(len(frames))
                    if not flags:
                        complete, frames, cost = frames, [], 0
                        self._frames, self._cost = frames, 0
                        yield complete
                self._frames, self._cost = frames, cost
                # A full table: the read has more frames. The caller may end its quantum here.
                if len(table) == 3 * BATCH:
                    yield None
                    continue
            if position < end:
                position, found = self._next(data, position, end)
                if found is None:
                    return
                yield self._alone(self._boxed, found)

    def _alone(self, take: Callable[..., Decoded], *box: bytes) -> Decoded:
        """Decode a box that the helper has not opened. Returns the message or command that it completes."""
        # The counter is kept in the helper's struct; `CurveDecoder` works on a copy.
        self._counter = self._direction[_COUNTER]
        decoded = take(*box)
        self._direction[_COUNTER] = self._counter
        return decoded


class CompiledSealing:
    """The compiled implementation: one call for all frames of a read, and for all receivers of a message.

    Not reentrant: the reactor thread alone uses its buffers.
    """

    name = "compiled"
    reason = ""

    def __init__(self, path: Path | None) -> None:
        if path is None:
            raise SealingError(NOT_BUILT)
        try:
            self._library = ctypes.CDLL(str(path))
            self._open = ffi.cast(_OPEN, self._address("elkobroker_open"))
            self._seal = ffi.cast(_SEAL, self._address("elkobroker_seal"))
        except (OSError, AttributeError) as error:
            raise SealingError(f"{path} cannot be loaded: {error}") from error
        self._box_open = ffi.cast("void *", open_address)
        self._box_seal = ffi.cast("void *", seal_address)
        allocate = ffi.new_allocator(should_clear_after_alloc=False)
        self._allocate = allocate
        self._content = allocate("unsigned char[]", ROOM)
        self._content_view = ffi.buffer(self._content)
        self._table = allocate("uint32_t[]", 3 * BATCH)
        self._table_view = memoryview(ffi.buffer(self._table)).cast("B").cast("I")
        self._position = ffi.new("uint64_t *")
        self._output = allocate("unsigned char[]", OUTPUT)
        self._output_view = ffi.buffer(self._output)

    def _address(self, name: str) -> int:
        address = ctypes.cast(getattr(self._library, name), ctypes.c_void_p).value
        assert address is not None
        return address

    def decoder(self, limits: FrameLimits, key: bytes, prefix: bytes, counter: int) -> CompiledDecoder:
        """See `Sealing`."""
        return CompiledDecoder(self, limits, key, prefix, counter)

    def encoder(self, key: bytes, prefix: bytes, counter: int) -> CompiledEncoder:
        """See `Sealing`."""
        return CompiledEncoder(self, _direction(key, prefix, counter))

    def seal_all(self, encoders: Sequence[Encoder], frames: Sequence[bytes]) -> list[bytes]:
        """See `Sealing`."""
        message = plain.message(frames)
        if len(encoders) == 1:
            return [self.seal_one(encoders[0], message, len(frames))]  # type: ignore[arg-type]
        return self.seal(encoders, message, len(frames))

    def seal_each(
        self, encoders: Sequence[Encoder], frame: bytes, at: int, numbers: Sequence[int], body: bytes
    ) -> list[bytes]:
        """See `Sealing`."""
        check_numbers(encoders, frame, at, numbers)
        return self.seal(encoders, plain.message((frame, body)), 2, numbers, at)

    def open(self, direction: Any, data: bytes, position: int, end: int, longest: int) -> tuple[int, bytes, list[int]]:
        """Open frames of ``data`` from ``position`` on. Returns the position after them, their content, and a table.

        The table has three numbers for each frame: flags, start and end in the content.
        """
        self._position[0] = position
        count = self._open(
            self._box_open, direction, data, self._position, end, longest, self._content, ROOM, self._table, BATCH
        )
        if not count:
            return position, b"", []
        table = self._table_view[: 3 * count].tolist()
        return self._position[0], self._content_view[: table[-1]], table

    def seal_one(self, encoder: CompiledEncoder, message: bytes, frames: int) -> bytes:
        """Seal a message in NULL encoding for one connection. Raises as `seal`."""
        size = len(message)
        stride = size + frames * GROWTH
        if stride > OUTPUT:
            return self.seal((encoder,), message, frames)[0]
        written = self._seal(self._box_seal, encoder.alone, 1, message, size, frames, _NULL, 0, self._output, stride)
        if written < 0:
            raise _exhausted()
        sealed: bytes = self._output_view[:written]
        return sealed

    def seal(
        self, encoders: Sequence[Encoder], message: bytes, frames: int, numbers: Sequence[int] = (), at: int = 0
    ) -> list[bytes]:
        """Seal a message in NULL encoding, of so many frames. Raises OverflowError if a counter is exhausted."""
        size = len(message)
        stride = size + frames * GROWTH
        output, view = self._output, self._output_view
        each = OUTPUT // stride
        if not each:
            each = 1
            output = self._allocate("unsigned char[]", stride)
            view = ffi.buffer(output)
        sealed: list[bytes] = []
        for first in range(0, len(encoders), each):
            part = encoders[first : first + each]
            count = len(part)
            directions = ffi.new("uint64_t *[]", [encoder.direction for encoder in part])  # type: ignore[attr-defined]
            own = ffi.new("uint64_t[]", numbers[first : first + each]) if numbers else _NULL
            written = self._seal(self._box_seal, directions, count, message, size, frames, own, at, output, stride)
            if written < 0:
                raise _exhausted()
            sealed += [view[start : start + written] for start in range(0, count * stride, stride)]
        return sealed


def _exhausted() -> OverflowError:
    return OverflowError("the counter of a connection is used up")
