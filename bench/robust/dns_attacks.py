"""Hostile DNS peers by TCP and by UDP."""

from __future__ import annotations

import random
import struct
from collections.abc import Callable, Iterator
from functools import partial
from itertools import cycle, repeat

from bench.robust.elko_attacks import noise, silent
from bench.robust.good_peers import BANK, framed, query
from bench.robust.measure import Door
from bench.robust.swarm import Attack, flood, swarm

NONE = BANK.replace(b"bank", b"none")


def half(number: int) -> Iterator[bytes]:
    """A query that is never completed, or one byte at a time."""
    whole = framed(query(number))
    if number % 2:
        yield whole[:-1]
        return
    while True:
        for byte in whole:
            yield bytes((byte,))


def long_begun(number: int) -> Iterator[bytes]:
    """All but the last byte of the longest message."""
    yield struct.pack("!H", 4_096) + bytes(4_095)


def pipelined(number: int) -> Iterator[bytes]:
    """Queries without end."""
    yield from repeat(framed(query(number)) * 200)


def malformed(number: int) -> Iterator[bytes]:
    """Queries that cannot be read."""
    bad = [struct.pack("!6H", 1, 0, 1, 0, 0, 16) + BANK, struct.pack("!6H", 1, 0, 65_535, 0, 0, 0), bytes(12)]
    yield from cycle(framed(each) * 50 for each in bad)


def http(number: int) -> Iterator[bytes]:
    """A request of a browser."""
    yield b"GET / HTTP/1.1\r\nHost: broker\r\n\r\n"


def udp_noise(number: int) -> bytes:
    source = random.Random(number)
    return source.randbytes(source.randint(0, 600))


def udp_fuzz(number: int) -> bytes:
    """A query with some bytes changed."""
    source = random.Random(number)
    data = bytearray(query(number))
    for _ in range(source.randint(1, 4)):
        data[source.randrange(len(data))] = source.randrange(256)
    return bytes(data)


def _by_tcp(kind: str, title: str, attack: Attack) -> Door:
    return Door(f"dns-{kind}", "dns", title, partial(swarm, attack))


def _by_udp(kind: str, title: str, make: Callable[[int], bytes]) -> Door:
    return Door(f"dns-udp-{kind}", "dns-udp", title, partial(flood, make), lossy=True)


DOORS = [
    _by_tcp("silent", "connections that send nothing", Attack(silent)),
    _by_tcp("half", "half a query, or a byte at a time", Attack(half)),
    _by_tcp("long", "the longest message without its last byte", Attack(long_begun)),
    _by_tcp("noise", "random bytes", Attack(noise)),
    _by_tcp("http", "a request of HTTP", Attack(http)),
    _by_tcp("malformed", "unreadable queries", Attack(malformed)),
    _by_tcp("pipelined", "queries without end", Attack(pipelined)),
    _by_tcp("unread", "answers that are not read", Attack(pipelined, reads=False)),
    _by_udp("noise", "random bytes", udp_noise),
    _by_udp("fuzz", "damaged queries", udp_fuzz),
    _by_udp("queries", "queries with long answers", query),
    _by_udp("missing", "names that do not exist", partial(query, qname=NONE)),
]
"""All rows of DNS."""
