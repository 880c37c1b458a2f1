"""NaCl boxes by libsodium, through PyNaCl.

The handshake uses PyNaCl's public functions. A box of traffic takes 2.3 to 3.5 µs with them, and 1.2 with the
extension's own function, which has a private name: pyproject.toml bounds the versions, and the import fails if a name
is missing.
"""

from __future__ import annotations

import os

import nacl
from nacl import _sodium
from nacl.bindings import crypto_box_beforenm, crypto_box_keypair

from broker.net.zmtp.curve_frames import MAC, Boxes

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
