"""Faults of an address: the reason why no ZeroMQ peer answers at an endpoint.

libzmq connects in the background and reports none of them: it tries again, without end. The client library asks here
for its broker, and the check of the configuration for the brokers of bridges.
"""

from __future__ import annotations

import socket
import time

from broker.blocking import blocking

GREETING = b"\xff" + bytes(8) + b"\x7f\x03\x01" + b"NULL".ljust(20, b"\0") + bytes(32)
"""The greeting of ZMTP 3.1 (https://rfc.zeromq.org/spec/37): signature, version, mechanism, 32 octets more."""

PROMPT = b"\r\n\r\n"
"""Input to which a server of lines answers, or closes the connection."""


@blocking
def address_fault(endpoint: str, encrypted: bool, seconds: float) -> str:
    """Return the reason why no broker is at an endpoint; empty if a ZeroMQ peer is there, or if no fault was found in
    ``seconds``. ``encrypted`` is True if the caller uses CURVE."""
    end = time.monotonic() + seconds
    scheme, _, where = endpoint.partition("://")
    try:
        if scheme == "ipc":
            connection = socket.socket(socket.AF_UNIX)
            connection.settimeout(seconds)
            connection.connect("\0" + where[1:] if where.startswith("@") else where)
        elif scheme == "tcp":
            host, _, port = where.rpartition(";")[2].rpartition(":")
            connection = socket.create_connection((host.strip("[]"), int(port)), seconds)
        else:
            return ""
    except TimeoutError:
        return f"no answer to the connection in {seconds:g} s"
    except socket.gaierror as error:
        return f"the name of the host cannot be looked up: {error.strerror or error}"
    except (OSError, ValueError, OverflowError) as error:
        return getattr(error, "strerror", None) or str(error)
    with connection:
        return _fault(connection, encrypted, end)


def _fault(connection: socket.socket, encrypted: bool, end: float) -> str:
    received, prompted = b"", False
    half = (end - time.monotonic()) / 2
    try:
        connection.sendall(GREETING)
        while len(received) < len(GREETING):
            connection.settimeout(max(0.01, min(half, end - time.monotonic())))
            try:
                data = connection.recv(len(GREETING))
            except TimeoutError:
                if prompted or received:
                    return _meaning(received, encrypted) if received else ""
                prompted = True
                connection.sendall(PROMPT)
                continue
            if not data:
                break
            received += data
            if not b"\xff".startswith(received[:1]):
                break
    except OSError:
        pass  # it closes the connection
    return _meaning(received, encrypted)


def _meaning(received: bytes, encrypted: bool) -> str:
    """Return the fault that the first bytes of a server stand for, none for a greeting of ZMTP."""
    if not received:
        return "the server closes the connection: it does not speak ZeroMQ, or requires TLS"
    if received.startswith((b"\x15\x03", b"\x16\x03")):
        return "the server requires TLS"
    if received.startswith(b"HTTP/"):
        return "an HTTP server answers there"
    if received[:1] != b"\xff" or (len(received) >= 10 and not received[9] & 1):
        return "the server does not speak ZeroMQ"
    mechanism = received[12:32].rstrip(b"\0")
    if mechanism == b"CURVE" and not encrypted:
        return "the broker requires CURVE keys"
    if mechanism == b"NULL" and encrypted:
        return "the broker has no CURVE key at this endpoint"
    return ""
