"""Hostile peers of the HTTP listener."""

from __future__ import annotations

import base64
import random
from collections.abc import Iterator
from functools import partial
from itertools import repeat

from bench.harness import MIB
from bench.robust.good_peers import frame, http, upgrade
from bench.robust.measure import Door
from bench.robust.swarm import Attack, forever, swarm

BODY = 1 * MIB
"""Bytes of the largest body, by default."""

FIND = http("GET /v1/services/bank")


def _slow_heads(number: int) -> Iterator[bytes]:
    """A head without an end, in many small lines."""
    yield b"GET /v1/services/bank HTTP/1.1\r\nHost: localhost\r\n"
    for line in range(400):
        yield b"X-%d: y\r\n" % line


def _slow_bodies(number: int) -> Iterator[bytes]:
    """A body that is never completed, or one in the smallest chunks."""
    if number % 2:
        yield http("PUT /v1/services/bank/a", f"Content-Length: {BODY}") + bytes(BODY - 1)
        return
    yield http("PUT /v1/services/bank/a", "Transfer-Encoding: chunked")
    yield from repeat(b"1\r\nx\r\n" * 100)


def _oversized(number: int) -> Iterator[bytes]:
    """A body over the limit, announced or not."""
    if number % 2:
        yield http("PUT /v1/services/bank/a", f"Content-Length: {BODY + 1}")
    else:
        yield http("PUT /v1/services/bank/a", "Transfer-Encoding: chunked")
    yield from repeat(b"10000\r\n" + bytes(65_536) + b"\r\n")


def _malformed(number: int) -> Iterator[bytes]:
    """Requests that are none."""
    source = random.Random(number)
    kinds = (
        b"GET / HTTP/9\r\n\r\n",
        http("POST /", "Transfer-Encoding: chunked", "Content-Length: 5"),
        http("POST /", "Transfer-Encoding: chunked") + b"zz\r\n",
        http("GET /", "X: " + "y" * 15_000),
        source.randbytes(3_000) + b"\r\n",
    )
    yield from repeat(kinds[number % len(kinds)])


def _guesses(number: int) -> Iterator[bytes]:
    """Passwords and tokens that are wrong."""
    for guess in range(1_000_000):
        word = base64.b64encode(b"ann:%d" % (number + guess)).decode()
        yield http("GET /v1/status", f"Authorization: Basic {word}") + http(
            "GET /v1/status", f"Authorization: Bearer {word}"
        )


def _waits(number: int) -> Iterator[bytes]:
    """Finds that wait, one behind the other."""
    yield http(f"GET /v1/services/nothing-{number}?wait=60") * 20


def _registrations(number: int) -> Iterator[bytes]:
    """Instances without end."""
    for instance in range(1_000_000):
        yield http(f"PUT /v1/services/x{number}/{instance}", body=b'{"hostport":"h:1"}')


def _door(kind: str, title: str, attack: Attack, bound: int | None = None) -> Door:
    return Door(f"api-{kind}", "api", title, partial(swarm, attack), bound=bound)


DOORS = [
    _door("finds", "finds without end, pipelined", Attack(forever(b"", FIND * 20))),
    _door("unread", "finds whose answers are not read", Attack(forever(b"", FIND * 20), reads=False)),
    _door("connects", "a connection for each find", Attack(forever(b"", FIND), hangs_up=1)),
    _door("slow-heads", "heads without an end", Attack(_slow_heads)),
    _door("slow-bodies", "bodies without an end", Attack(_slow_bodies), bound=448 * MIB),
    _door("oversized", "bodies over the limit", Attack(_oversized), bound=448 * MIB),
    _door("malformed", "requests that are none", Attack(_malformed)),
    _door("unknown", "paths that do not exist", Attack(forever(b"", http("GET /nothing") * 20))),
    _door("guesses", "guessed passwords and tokens", Attack(_guesses)),
    _door("waits", "finds that wait", Attack(_waits)),
    _door("register", "registrations without end", Attack(_registrations)),
    _door(
        "streams",
        "event streams that are not read",
        Attack(forever(http("GET /v1/watch"), b""), reads=False),
    ),
    _door("pings", "WebSockets with pings without end", Attack(forever(upgrade("/v1/watch"), frame(9, b"") * 500))),
    _door(
        "lists",
        "lists and metrics without end",
        Attack(forever(b"", http("GET /metrics") + http("GET /v1/services"))),
    ),
]
"""All scenarios of the listener."""
