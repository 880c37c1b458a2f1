"""Metadata codec: the properties that both sides exchange in the handshake (RFC 23, "The READY Command")."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from broker.net.zmtp.errors import Fault, ZmtpError
from broker.net.zmtp.limits import MAX_PROPERTIES

SOCKET_TYPE = "socket-type"
IDENTITY = "identity"


def encode(properties: Iterable[tuple[bytes, bytes]]) -> bytes:
    """Return the octets of properties."""
    return b"".join(bytes((len(name),)) + name + len(value).to_bytes(4, "big") + value for name, value in properties)


def own(socket_type: str, identity: bytes = b"") -> bytes:
    """Return the metadata that a socket sends."""
    properties = [(b"Socket-Type", socket_type.encode())]
    if socket_type in ("REQ", "DEALER", "ROUTER"):
        properties.append((b"Identity", identity))
    return encode(properties)


def parse(data: bytes) -> Mapping[str, bytes]:
    """Return the properties in metadata by lower-case name, since names are case-insensitive. Raises `ZmtpError`."""
    properties: dict[str, bytes] = {}
    at = 0
    while at < len(data):
        start = at + 1 + data[at]
        stop = start + 4 + int.from_bytes(data[start : start + 4], "big")
        if start == at + 1 or start + 4 > len(data) or stop > len(data):
            raise ZmtpError(Fault.HANDSHAKE, "malformed metadata")
        if len(properties) >= MAX_PROPERTIES:
            raise ZmtpError(Fault.HANDSHAKE, f"more than {MAX_PROPERTIES} properties in the metadata")
        name = data[at + 1 : start].decode("latin-1").lower()
        if name in properties:  # otherwise two decoders could read two identities from the same octets
            raise ZmtpError(Fault.HANDSHAKE, "a property comes twice in the metadata")
        properties[name] = data[start + 4 : stop]
        at = stop
    return properties
