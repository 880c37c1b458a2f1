"""Strangers that make a daemon hold memory: what each of them sends over its connections, on each wire.

A stranger reads nothing. It sends as much as the daemon takes, until all is sent or refused, or the daemon takes
nothing more although it serves others.
"""

from __future__ import annotations

import json
import selectors
import socket
import ssl
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from itertools import chain
from typing import Any

import attrs
import zmq
from zmq.utils import z85

from broker.net.zmtp.curve import CurveClient
from broker.net.zmtp.frames import FrameLimits
from broker.net.zmtp.machine import Claim, Machine, Output
from tests.contract.newcomers import DOORS, answered, elko_message, get
from tests.integration.daemon import Daemon
from tests.integration.http_api import ask
from tests.integration.mtl_peers import CONTENT, LEASE, SUMMON, Control, head, short, tail
from tests.net.zmtp.curve_sides import security
from tests.net.zmtp_peers import greeting, message, part, ready
from tests.patience import PATIENCE
from tests.wires.elko.transports.virtual_links import HANDSHAKE, masked

INFO = 16_000
"""Bytes of the description of a registered service: the most that DBP takes."""

WRITE = 65_536
"""Bytes given to the kernel in one go."""

IN_VAIN = 3
"""Requests that the daemon answers to somebody else while it takes nothing from the stranger, after which it will take
nothing more."""


@attrs.frozen
class Size:
    """The size of an attack: its connections, the bytes that each sends, and the services that are registered."""

    connections: int
    sent: int
    services: int


Piece = bytes | list[bytes]
"""Bytes, or a message over CURVE."""

Payload = Callable[[int, Size], Iterable[Piece]]
"""Returns what the connection of that number sends, in pieces."""


@attrs.frozen
class Attack:
    """The listener that is attacked, and what each connection sends. ``wire`` names its door.

    ``lease`` is the profile of MTL and the side for which each connection uses a data lease first. ``curve`` means that
    each connection completes a handshake of CURVE first, and ``session`` that it has a session of Elko over HTTP, whose
    number takes the place of `SESSION` in the pieces.
    """

    wire: str
    payload: Payload
    lease: tuple[str, str] | None = None
    curve: bool = False
    session: bool = False


SESSION = b"SESSION"

# the daemon


def port(daemon: Daemon, wire: str) -> int:
    """The TCP port of a door, or of the data flows of MTL."""
    if wire == "mtl-data":
        return int(daemon.wait_for(r"mtl on \S+ \(data \S*?:(\d+);").group(1))
    return DOORS[wire].port(daemon)


def register(daemon: Daemon, services: int) -> list[socket.socket]:
    """Register services with long descriptions, and return the connections that keep them."""
    kept = []
    for number in range(services):
        sock = socket.create_connection(("127.0.0.1", port(daemon, "dbp")), PATIENCE)
        about = {"name": f"s{number}", "function": "x" * INFO, "heartbeat_ms": 60_000, "ip": "127.0.0.1", "port": 1}
        sock.sendall(dealer(0) + message(b"", b"UwU", b"1795246621.0", json.dumps(about).encode()))
        kept.append(sock)
    for sock in kept:
        answered(sock, b"", b"OwO")
    offered = [{"service": "many", "protocol": "tcp", "hostport": f"h{number}:1"} for number in range(services)]
    peer = socket.create_connection(("127.0.0.1", port(daemon, "elko")), PATIENCE)
    peer.sendall(
        elko_message({"op": "auth"})
        + b"".join(elko_message({"op": "willserve", "services": [each]}) for each in offered)
    )
    kept.append(peer)
    return kept


# what strangers send


def dealer(number: int, kind: bytes = b"DEALER") -> bytes:
    """The handshake of a client of ZeroMQ."""
    return greeting() + ready({b"Socket-Type": kind, b"Identity": b"stranger%d" % number if number else b""})


def _many(one: bytes, size: Size) -> Iterator[bytes]:
    """Repeat one request."""
    block = one * max(1, WRITE // len(one))
    for _ in range(max(1, size.sent // len(block))):
        yield block


def _long(size: Size) -> Iterator[bytes]:
    """The middle of something long."""
    for _ in range(size.sent // WRITE):
        yield b"x" * WRITE


def _list_requests(number: int, size: Size) -> Iterator[bytes]:
    yield dealer(0)
    yield from _many(message(b"", b"u_U", b"1795246621.0", b""), size)


def _named_requests(number: int, size: Size) -> Iterator[bytes]:
    yield dealer(0)
    names = (b"s%d" % service for service in range(size.services))
    yield from _many(message(b"", b"u_U", b"1795246621.0", *names), size)


def _registrations(number: int, size: Size) -> Iterator[bytes]:
    """Services without a heartbeat, which stay when their connections end."""
    yield dealer(0)
    for service in range(size.sent // INFO):
        about = {"name": f"stranger{number}.{service}", "function": "x" * (INFO - 100), "ip": "127.0.0.1", "port": 1}
        yield message(b"", b"UwU", b"1795246621.0", json.dumps(about).encode())


def _changing_lists(number: int, size: Size) -> Iterator[bytes]:
    """A service that stays, and requests for the list of all, which has changed since the last connection's."""
    yield dealer(0)
    about = {"name": f"changing{number}", "function": "x" * (INFO - 100), "ip": "127.0.0.1", "port": 1}
    yield message(b"", b"UwU", b"1795246621.0", json.dumps(about).encode())
    yield from _many(message(b"", b"u_U", b"1795246621.0", b""), size)


def _long_frame(number: int, size: Size) -> Iterator[bytes]:
    yield dealer(0)
    yield b"\x02" + (size.sent + 1).to_bytes(8, "big")
    yield from _long(size)


def _short_frames(number: int, size: Size) -> Iterator[bytes]:
    yield dealer(0)
    yield from _many(part(b"x" * 200), attrs.evolve(size, sent=min(size.sent, 400_000)))


def _pings(number: int, size: Size) -> Iterator[bytes]:
    yield dealer(0)
    body = b"\x04PING\0\0context of ping"
    yield from _many(bytes((4, len(body))) + body, size)


def _curve_frame(number: int, size: Size) -> Iterator[Piece]:
    """The middle of a sealed frame."""
    yield b"\x02" + (size.sent + 1).to_bytes(8, "big") + b"\x07MESSAGE"
    yield from _long(size)


def _curve_hello(number: int, size: Size) -> Iterator[Piece]:
    """The middle of the first message of a handshake."""
    yield greeting(b"CURVE") + b"\x06" + size.sent.to_bytes(8, "big") + b"\x05HELLO"
    yield from _long(size)


def _curve_own(number: int, size: Size) -> Iterator[Piece]:
    yield [b"", b"SUB", b"ID", b"1", b"", b"news"]
    for _ in range(max(1, size.sent // 30_000)):
        yield [b"", b"PUT", b"TOPIC", b"news", b"", b"x" * 30_000]


def _curve_unanswered(number: int, size: Size) -> Iterator[Piece]:
    """Requests whose answers are not read."""
    for _ in range(size.sent // 100):
        yield [b"", b"NOOP", b"ID", b"x" * 40]


def _own_messages(number: int, size: Size) -> Iterator[bytes]:
    yield dealer(number + 1)
    yield message(b"", b"SUB", b"ID", b"1", b"", b"news")
    yield from _many(message(b"", b"PUT", b"TOPIC", b"news", b"", b"x" * 30_000), size)


def _contents(size: Size, body: int, name: Callable[[int], str], properties: dict[str, Any]) -> Iterator[bytes]:
    """Contents of MTL with bodies of that many bytes; ``name`` returns the resource of each, by its sequence."""
    sent, sequence = 0, 1
    while sent < size.sent:
        sequence += 1
        data = message(head(CONTENT, sequence, tail(name(sequence), properties)), b"x" * body)
        sent += len(data)
        yield data


def _queued(number: int, size: Size) -> Iterator[bytes]:
    yield from _contents(size, 10_000, lambda _: f"queue{number}", {})


def _queued_small(number: int, size: Size) -> Iterator[bytes]:
    yield from _contents(attrs.evolve(size, sent=size.sent // 10), 10, lambda _: f"small{number}", {})


def _queues(number: int, size: Size) -> Iterator[bytes]:
    """A queue for each message."""
    name = f"{number}".rjust(200, "q")
    yield from _contents(attrs.evolve(size, sent=size.sent // 20), 10, lambda sequence: f"{name}.{sequence}", {})


def _delayed(number: int, size: Size) -> Iterator[bytes]:
    yield from _contents(size, 1_000, lambda _: f"delayed{number}", {"delay": 86_400_000})


def _retained(number: int, size: Size) -> Iterator[bytes]:
    yield from _contents(size, 10_000, lambda sequence: f"retained{number}.{sequence}", {"retain": True})


def _service_requests(number: int, size: Size) -> Iterator[bytes]:
    yield from _contents(size, 10_000, lambda _: f"service/nobody{number}", {"ttl": 3_600_000})


def _descriptors(number: int, size: Size) -> Iterator[bytes]:
    """Services in the registry of MTL with long descriptions."""
    for sequence in range(2, max(3, size.sent // INFO)):
        name = f"stranger{number}.{sequence}"
        about = {"service": name, "hostport": "h:1", "info": {"about": "x" * INFO}}
        yield message(head(CONTENT, sequence, tail(f"service/{name}", {"type": "offer"})), json.dumps(about).encode())


def _summons(number: int, size: Size) -> Iterator[bytes]:
    name = f"{number}".rjust(200, "t")
    for sequence in range(1, min(1_000, size.sent // 400)):
        yield message(head(SUMMON, sequence + 1, short(f"{name}.{sequence}")), b"")


def _topics(number: int, size: Size) -> Iterator[bytes]:
    yield dealer(number + 1)
    name = f"{number}".rjust(200, "t")
    for topic in range(min(1_000, size.sent // 400)):
        yield message(b"", b"SUB", b"ID", b"1", b"", f"{name}.{topic}".encode())


def _last_values(number: int, size: Size) -> Iterator[bytes]:
    """Messages that become the last values of topics with the longest names."""
    yield dealer(number + 1)
    name = f"{number}".rjust(4_000, "t")
    for topic in range(size.sent // 4_000):
        yield message(b"", b"PUT", b"TOPIC", f"{name}.{topic}".encode(), b"", b"x")


def _logs(number: int, size: Size) -> Iterator[bytes]:
    """Messages of a log whose bodies have as many objects of JSON as possible."""
    yield dealer(number + 1)
    body = b'{"a":[' + b"[]," * 2_700 + b"[]]}"
    yield from _many(message(b"", b"PUT", b"TOPIC", b"log.stranger", b"", body), size)


def _finds(number: int, size: Size) -> Iterator[bytes]:
    yield elko_message({"op": "auth"})
    yield from _many(elko_message({"op": "find", "service": "many"}), size)


def _waits(number: int, size: Size) -> Iterator[bytes]:
    yield elko_message({"op": "auth"})
    for wait in range(1_000):
        words = {"op": "find", "service": f"{number} {wait} ".ljust(250, "x"), "wait": -1, "tag": "t" * 1_000}
        yield elko_message(words)


def _offers(number: int, size: Size) -> Iterator[bytes]:
    yield elko_message({"op": "auth"})
    label = "l" * 200
    for first in range(0, 1_000, 50):
        names = (f"{number} {each} ".ljust(200, "x") for each in range(first, first + 50))
        offers = [{"service": name, "protocol": "tcp", "hostport": "h:1", "label": label} for name in names]
        yield elko_message({"op": "willserve", "services": offers})


def _puts(number: int, size: Size) -> Iterator[bytes]:
    """Instances over HTTP with long descriptions."""
    body = json.dumps({"hostport": "h:1", "ttl": 86_400, "info": {"about": "x" * INFO}}).encode()
    for each in range(max(1, size.sent // len(body))):
        head = f"PUT /v1/services/stranger/{number}.{each} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}"
        yield f"{head}\r\nContent-Type: application/json\r\n\r\n".encode() + body


def _short_puts(number: int, size: Size) -> Iterator[bytes]:
    body = b'{"hostport": "h:1", "ttl": 86400}'
    for each in range(max(1, size.sent // 1_000)):
        head = f"PUT /v1/services/stranger/{number}.{each} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}"
        yield f"{head}\r\nContent-Type: application/json\r\n\r\n".encode() + body


def _acts(action: str, on: str, number: int, size: Size) -> Iterator[bytes]:
    """Messages for queues or topics, of which most find no room when the first ones have filled the share of the
    address."""
    for each in range(max(1, size.sent // 100_000)):
        body = json.dumps({on: f"s{number}.{each}", "text": "x" * 100_000}).encode()
        head = f"POST /v1/actions/{action} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}"
        yield f"{head}\r\nContent-Type: application/json\r\n\r\n".encode() + body


def _provider(number: int) -> bytes:
    address = {"op": "address", "protocol": "tcp", "hostport": f"h{number}:1"}
    words = ({"op": "auth"}, address, {"op": "willserve", "context": "c", "capacity": -1})
    return b"".join(elko_message({"to": "provider", **each}) for each in words)


def _opened(name: str) -> bytes:
    return elko_message({"to": "provider", "op": "context", "context": name, "open": True, "yours": False})


def _director_contexts(number: int, size: Size) -> Iterator[bytes]:
    """Contexts, each in a clone set of its own and with a closed gate."""
    yield _provider(number)
    for each in range(size.sent // 1_500):
        name = f"c-{number}.{each}-1"
        yield _opened(name)
        yield elko_message({"to": "provider", "op": "gate", "context": name, "open": False, "reason": "r" * 150})


def _director_users(number: int, size: Size) -> Iterator[bytes]:
    yield _provider(number)
    for each in range(size.sent // 500):
        context = f"c-{number}.{each // 5_000}"
        if not each % 5_000:
            yield _opened(context)
        user = f"u-{number}.{each}-1"
        yield elko_message({"to": "provider", "op": "user", "context": context, "user": user, "on": True})


def _director_reservations(number: int, size: Size) -> Iterator[bytes]:
    yield _provider(number)
    for each in range(size.sent // 1_000):
        user = f"{number}.{each}".ljust(200, "u")
        words = {"op": "reserve", "protocol": "tcp", "context": f"c-{number}", "user": user}
        yield elko_message({"to": "provider", **words})


def _director_watches(number: int, size: Size) -> Iterator[bytes]:
    yield elko_message({"to": "admin", "op": "auth"})
    for each in range(size.sent // 3_000):
        yield elko_message({"to": "admin", "op": "watch", "user": f"{number} {each} ".ljust(250, "x")})


def _block(number: int, size: Size) -> Iterator[bytes]:
    yield b'{"to":"client", "op":"auth", "label":"'
    yield from _long(size)


def _web_finds(number: int, size: Size) -> Iterator[bytes]:
    yield HANDSHAKE + masked(0x81, elko_message({"op": "auth"}))
    yield from _many(masked(0x81, elko_message({"op": "find", "service": "many"})), size)


def _fragments(number: int, size: Size) -> Iterator[bytes]:
    yield HANDSHAKE + masked(0x01, b'{"to":"client", "op":"auth", "label":"')
    yield from _many(masked(0x00, b"x" * 1_000), size)


def _web_head(number: int, size: Size) -> Iterator[bytes]:
    yield b"GET / HTTP/1.1\r\n"
    yield from _many(b"X-Header: " + b"x" * 200 + b"\r\n", size)


def _body(number: int, size: Size) -> Iterator[bytes]:
    yield b"POST /v1/services/x/1 HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % (size.sent + 1)
    yield from _long(size)


def _poll_body(number: int, size: Size) -> Iterator[bytes]:
    yield b"POST /xmit/1/1 HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % (size.sent + 1)
    yield from _long(size)


def _chunks(number: int, size: Size) -> Iterator[bytes]:
    yield b"POST /v1/services/x/1 HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"
    yield from _many(b"1\r\nx\r\n", size)


def _pages(number: int, size: Size) -> Iterator[bytes]:
    yield from _many(get("/openapi.json"), size)


def _listings(number: int, size: Size) -> Iterator[bytes]:
    yield from _many(get("/v1/services?limit=1000"), size)


def _events(number: int, size: Size) -> Iterator[bytes]:
    yield get("/v1/watch")
    yield from _long(size)


def _poll_finds(number: int, size: Size) -> Iterator[bytes]:
    """Finds whose answers wait in the session."""
    body = elko_message({"op": "auth"}) + elko_message({"op": "find", "service": "many"}) * 200
    for sequence in range(1, max(2, size.sent // len(body))):
        path = b"POST /xmit/%b/%d HTTP/1.1\r\n" % (SESSION, sequence)
        yield path + b"Host: localhost\r\nContent-Length: %d\r\n\r\n" % len(body) + body


def _sessions(number: int, size: Size) -> Iterator[bytes]:
    yield from _many(get("/connect"), attrs.evolve(size, sent=size.sent // 10))


def _rtcp_finds(number: int, size: Size) -> Iterator[bytes]:
    yield b"start\n"
    yield b"1 0\n" + elko_message({"op": "auth"})
    one = elko_message({"op": "find", "service": "many"})
    sent, block = 0, 2
    while sent < size.sent:
        data = b"%d 0\n" % block + one
        sent += len(data)
        block += 1
        yield data


def _rtcp_out_of_sequence(number: int, size: Size) -> Iterator[bytes]:
    yield b"start\n"
    for block in range(2, 40):
        yield b"%d 0\n" % block + elko_message({"op": "auth", "label": "x" * 10_000})


def _rtcp_block(number: int, size: Size) -> Iterator[bytes]:
    yield b"start\n1 0\n" + b'{"to":"client", "op":"auth", "label":"'
    yield from _long(size)


def _queries(number: int, size: Size) -> Iterator[bytes]:
    name = b"".join(bytes([len(label)]) + label for label in (b"many", b"service", b"elkobroker")) + b"\0"
    query = b"\0\1\1\0\0\1\0\0\0\0\0\0" + name + b"\0\x21\0\1"
    yield from _many(len(query).to_bytes(2, "big") + query, size)


def _query(number: int, size: Size) -> Iterator[bytes]:
    yield b"\x01\xff" + b"\0\1\1\0\0\1\0\0\0\0\0\0" + b"x" * 400


def _hello(number: int, size: Size) -> Iterator[bytes]:
    """The beginning of a handshake of TLS: a record of the longest length, without its end."""
    yield b"\x16\x03\x01\x40\x00\x01\x00\x3f\xfc\x03\x03" + b"x" * 16_000


def _hello_whole(number: int, size: Size) -> Iterator[bytes]:
    """A whole ClientHello, without what follows."""
    context = ssl.create_default_context()
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    tls = context.wrap_bio(incoming, outgoing, server_hostname="localhost")
    with suppress(ssl.SSLWantReadError):
        tls.do_handshake()
    yield outgoing.read()


def _line(number: int, size: Size) -> Iterator[bytes]:
    yield from _long(attrs.evolve(size, sent=WRITE))


ATTACKS = {
    "dbp-lists": Attack("dbp", _list_requests),
    "dbp-changing-lists": Attack("dbp", _changing_lists),
    "dbp-names": Attack("dbp", _named_requests),
    "dbp-services": Attack("dbp", _registrations),
    "dbp-frame": Attack("dbp", _long_frame),
    "dbp-frames": Attack("dbp", _short_frames),
    "dbp-pings": Attack("dbp", _pings),
    "mc0-own": Attack("mc0", _own_messages),
    "mc0-topics": Attack("mc0", _topics),
    "mc0-frame": Attack("mc0", _long_frame),
    "mc0-frames": Attack("mc0", _short_frames),
    "mtl-frame": Attack("mtl", _long_frame),
    "mc0-last-values": Attack("mc0", _last_values),
    "mc0-logs": Attack("mc0", _logs),
    "mtl-frames": Attack("mtl", _short_frames),
    "mtl-pings": Attack("mtl", _pings),
    "mtl-queued": Attack("mtl-data", _queued, ("queue", "Writer")),
    "mtl-queued-small": Attack("mtl-data", _queued_small, ("queue", "Writer")),
    "mtl-delayed": Attack("mtl-data", _delayed, ("queue", "Writer")),
    "mtl-queues": Attack("mtl-data", _queues, ("queue", "Writer")),
    "mtl-retained": Attack("mtl-data", _retained, ("topic", "Writer")),
    "mtl-requests": Attack("mtl-data", _service_requests, ("service", "Writer")),
    "mtl-services": Attack("mtl-data", _descriptors, ("registry", "Writer")),
    "mtl-summons": Attack("mtl-data", _summons, ("topic", "Reader")),
    "elko-finds": Attack("elko", _finds),
    "elko-waits": Attack("elko", _waits),
    "elko-offers": Attack("elko", _offers),
    "elko-block": Attack("elko", _block),
    "director-contexts": Attack("director", _director_contexts),
    "director-users": Attack("director", _director_users),
    "director-reservations": Attack("director", _director_reservations),
    "director-watches": Attack("director", _director_watches),
    "websocket-finds": Attack("websocket", _web_finds),
    "websocket-fragments": Attack("websocket", _fragments),
    "websocket-head": Attack("websocket", _web_head),
    "poll-body": Attack("long poll", _poll_body),
    "poll-finds": Attack("long poll", _poll_finds, session=True),
    "poll-sessions": Attack("long poll", _sessions),
    "rtcp-finds": Attack("rtcp", _rtcp_finds),
    "rtcp-sequence": Attack("rtcp", _rtcp_out_of_sequence),
    "rtcp-block": Attack("rtcp", _rtcp_block),
    "tls-hello": Attack("tls", _hello),
    "tls-whole-hello": Attack("tls", _hello_whole),
    "http-head": Attack("http", _web_head),
    "http-body": Attack("http", _body),
    "http-chunks": Attack("http", _chunks),
    "http-pages": Attack("http", _pages),
    "http-listings": Attack("http", _listings),
    "http-services": Attack("http", _puts),
    "http-short-services": Attack("http", _short_puts),
    "http-queue-puts": Attack("http", partial(_acts, "queue-put", "queue")),
    "http-last-values": Attack("http", partial(_acts, "publish", "topic")),
    "http-events": Attack("http", _events),
    "dns-queries": Attack("dns", _queries),
    "dns-query": Attack("dns", _query),
    "console-line": Attack("console", _line),
}
"""Every attack, by wire and by what it fills."""

CURVE_ATTACKS = {
    "mc0-curve-hello": Attack("mc0", _curve_hello),
    "mc0-curve-frame": Attack("mc0", _curve_frame, curve=True),
    "mc0-curve-own": Attack("mc0", _curve_own, curve=True),
    "mc0-curve-unanswered": Attack("mc0", _curve_unanswered, curve=True),
    "mtl-curve-hello": Attack("mtl", _curve_hello),
    "mtl-curve-frame": Attack("mtl", _curve_frame, curve=True),
}
"""Attacks on listeners with CURVE, which let any key in."""


LEASES = 100
"""Data leases of one session of MTL."""


def leases(daemon: Daemon, profile: str, side: str, count: int) -> tuple[list[str], zmq.Context[Any]]:
    """Return the tokens of data leases for all resources, and the context whose end ends them."""
    context: zmq.Context[Any] = zmq.Context()
    tokens: list[str] = []
    while len(tokens) < count:
        control = Control(context, f"tcp://127.0.0.1:{port(daemon, 'mtl')}", zmq.DEALER, None).opened(profile)
        some = min(LEASES, count - len(tokens))
        tokens += [control.token(side, confirm="none") for _ in range(some)]
    return tokens, context


class Stranger:
    """The connections of one attack, from ``sources``: by default from one address that no other attack uses, since
    what is stored for it stays. Of several addresses, connections use one after the other."""

    def __init__(self, daemon: Daemon, attack: Attack, size: Size, *sources: str) -> None:
        self._daemon = daemon
        self._context: zmq.Context[Any] | None = None
        tokens: list[str] = []
        if attack.lease is not None:
            tokens, self._context = leases(daemon, *attack.lease, size.connections)
        sources = sources or (f"127.0.1.{1 + [*ATTACKS.values(), *CURVE_ATTACKS.values()].index(attack)}",)
        self._selector = selectors.DefaultSelector()
        self._sockets: list[socket.socket] = []
        where = ("127.0.0.1", port(daemon, attack.wire))
        for number in range(size.connections):
            sock = socket.create_connection(where, PATIENCE, (sources[number % len(sources)], 0))
            session = connected_session(sock) if attack.session else b""
            sock.setblocking(False)
            self._sockets.append(sock)
            seal = secured(daemon, sock, b"stranger%d" % number) if attack.curve else None
            first: list[Piece] = [dealer(0) + message(head(LEASE, 1, short(tokens[number])), b"")] if tokens else []
            pieces: Iterator[Piece] = chain(first, attack.payload(number, size))
            if session:
                pieces = (piece.replace(SESSION, session) for piece in pieces if isinstance(piece, bytes))
            self._selector.register(sock, selectors.EVENT_WRITE, [pieces, memoryview(b""), seal])

    def send(self, look: Callable[[], object] = lambda: None) -> None:
        """Send all, as far as the daemon takes it. ``look`` is called now and then."""
        vain = 0
        while self._selector.get_map() and vain < IN_VAIN:
            ready_ones = self._selector.select(0.2)
            for key, _ in ready_ones:
                self._send(key)
            look()
            if not ready_ones:
                vain += 1
                alive(self._daemon)
            else:
                vain = 0
        alive(self._daemon)

    def _send(self, key: selectors.SelectorKey) -> None:
        sock, state = key.fileobj, key.data
        assert isinstance(sock, socket.socket)
        try:
            if not state[1]:
                piece = next(state[0])
                state[1] = memoryview(state[2](piece) if isinstance(piece, list) else piece)
            state[1] = state[1][sock.send(state[1]) :]
        except BlockingIOError:
            pass
        except (StopIteration, ConnectionError):
            self._selector.unregister(sock)

    def close(self) -> None:
        """Close all connections."""
        self._selector.close()
        for sock in self._sockets:
            sock.close()
        if self._context is not None:
            self._context.destroy(linger=0)


def connected_session(sock: socket.socket) -> bytes:
    """Begin a session of Elko over HTTP, and return its number."""
    answer = answered(sock, get("/connect"), b"}")
    session: str = json.loads(answer.partition(b"\r\n\r\n")[2])["sessionid"]
    return session.encode()


def secured(daemon: Daemon, sock: socket.socket, identity: bytes) -> Callable[[Sequence[bytes]], bytes]:
    """Complete a handshake of CURVE with a key of our own, and return the function that seals messages."""
    server = z85.decode((daemon.directory / "keys" / "broker.public").read_bytes().strip())
    client = Machine(CurveClient(security(server=False), server), "DEALER", FrameLimits(), identity)
    sock.setblocking(True)
    sock.sendall(client.begin())
    while client.encoder is None:
        for event in client.feed(sock.recv(WRITE)):
            if isinstance(event, Output):
                sock.sendall(event.data)
            elif isinstance(event, Claim):
                sock.sendall(client.accept())
    sock.setblocking(False)
    return client.encoder.message


def alive(daemon: Daemon) -> None:
    """Return when the daemon has answered a request over HTTP."""
    assert ask(daemon, "GET", "/healthz")[0] == 200
