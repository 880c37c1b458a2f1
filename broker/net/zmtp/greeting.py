"""Greeting codec: the version of ZMTP and the security mechanism of a peer (RFC 23, "The Greeting").

Octets of a greeting of version 3: 0 is FF, 1 to 8 are padding, 9 is 7F, 10 the major version, 11 the minor version, 12
to 31 the mechanism, 32 the as-server flag, 33 to 63 zeros. libzmq sends the first 10, then 1, then the rest as the
other side answers: so neither side may wait for more than the signature before it sends its own version.

ZMTP 2.0 has a revision of 1 (2 in some releases) at octet 10, then the socket type in one octet, then the identity as a
frame. ZMTP 1.0 has no signature: its first octet is the length of a frame.
"""

from __future__ import annotations

import attrs

from broker.net.zmtp.errors import Fault, ZmtpError

SIZE = 64
SIGNATURE = 10
VERSION = 11
"""Octets up to the end of the major version: both sides send them unconditionally."""

OPENING = b"\xff\0\0\0\0\0\0\0\x01\x7f\x03"
"""The broker's signature and major version. The length 1 in the padding is that of an empty identity in ZMTP 1.0."""

MINOR = 1
"""ZMTP 3.1."""

SOCKET_TYPES = ("PAIR", "PUB", "SUB", "REQ", "REP", "DEALER", "ROUTER", "PULL", "PUSH", "XPUB", "XSUB")
"""By their numbers in ZMTP 2.0."""


@attrs.frozen
class Greeting:
    """The greeting of a peer. ``mechanism`` is empty in ZMTP 2.0, which has none."""

    major: int
    minor: int
    mechanism: bytes = b""
    as_server: bool = False


def rest(mechanism: bytes, as_server: bool) -> bytes:
    """Return the rest of the broker's greeting after `OPENING`, for a peer of version 3."""
    return bytes((MINOR,)) + mechanism.ljust(20, b"\0") + bytes((as_server,)) + bytes(31)


def version(data: bytes) -> int:
    """Return the major version of the greeting that begins with ``data``: 2 or 3, and 0 while it is unknown.

    Later versions count as 3: their peers must downgrade. Raises `ZmtpError` as soon as it is no greeting.
    """
    if data[:1] not in (b"", b"\xff") or data[9:10] not in (b"", b"\x7f"):
        raise ZmtpError(Fault.GREETING, f"no greeting of ZMTP 2 or 3: the connection begins with {_shown(data)}")
    if len(data) < VERSION:
        return 0
    major = data[SIGNATURE]
    if major == 0:
        raise ZmtpError(Fault.GREETING, "version 1.0 of ZMTP is not spoken")
    return 2 if major in (1, 2) else 3


def parse(data: bytes) -> tuple[Greeting, bytes] | None:
    """Return the greeting at the beginning of ``data``, and the octets after it; None while it is incomplete.

    Raises `ZmtpError` as soon as it is invalid.
    """
    major = version(data)
    if major == 2:
        return Greeting(2, 0), data[VERSION:]
    if not major or len(data) < SIZE:
        return None
    mechanism = data[12:32].rstrip(b"\0")
    minor = data[VERSION] if data[SIGNATURE] == 3 else MINOR
    return Greeting(3, minor, mechanism, data[32:33] == b"\x01"), data[SIZE:]


def _shown(data: bytes) -> str:
    return repr(bytes(data[:12]))[1:]
