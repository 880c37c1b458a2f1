"""Hostile peers on the ZeroMQ wires: plain sockets that write ZMTP, of one kind or another."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from functools import partial
from itertools import repeat

from bench import zmtp as zmtp_peer
from bench.harness import MIB
from bench.peers import dbp as dbp_peers
from bench.peers import mtl as mtl_peers
from bench.robust.measure import Door
from bench.robust.swarm import Attack, forever, swarm
from bench.zmtp import COMMAND, GREETING, LARGE, MORE, Frames, frame
from broker.core.memory_budget import BY_ALL
from broker.core.model import INFO_COPIES

BESIDE = 48 * MIB
"""Bytes by which the broker may grow beside its budget: a thousand connections, buffers that grow, what the allocator
keeps. Unfinished frames took 10 and 21 MiB more than the budget."""

INFO = 15_900
"""Bytes of the description of a service: nearly the most that DBP takes."""

LONG = 1_000_000
"""Bytes of a long frame, which every wire takes."""

LISTED = 1_000 * INFO_COPIES * (INFO + 1_000)
"""Bytes of the services of `unread_lists`, which stay."""

DESCRIPTORS, HOLDERS = 512, 400
"""Descriptors that the broker may have, and the connections that take them all."""

OPENING = zmtp_peer.opening()

MESSAGES: dict[str, Frames] = {
    "mc0": [b"", b"PUT", b"TOPIC", b"nobody", b"", b"x" * 20],
    "dbp": dbp_peers.request("nothing"),
    "mtl": mtl_peers.OPEN,
    "mtl-data": [mtl_peers.PING, b""],
}
"""A valid one for each wire."""


def in_greeting(number: int) -> Iterator[bytes]:
    """Nothing, or the beginning of the greeting; then silence until the broker closes."""
    if number % 2:
        yield OPENING[: number % GREETING]


def half_handshakes(number: int) -> Iterator[bytes]:
    """A greeting and half of a handshake, then silence; or all of it, a byte at a time."""
    if number % 2:
        yield OPENING[: GREETING + (len(OPENING) - GREETING) // 2]
        return
    for byte in OPENING:
        yield bytes((byte,))


def garbage(number: int) -> Iterator[bytes]:
    """Random bytes: at once, after the greeting, or after the handshake."""
    source = random.Random(number)
    yield OPENING[: (0, GREETING, len(OPENING))[number % 3]]
    while True:
        yield source.randbytes(source.randint(1, 4_096))


def endless(number: int) -> Iterator[bytes]:
    """One message without end, of empty, short or long frames."""
    yield OPENING
    yield from repeat((frame(MORE, b"") * 8_192, frame(MORE, b"x" * 33) * 1_024, frame(MORE, b"x" * LONG))[number % 3])


def unfinished(number: int) -> Iterator[bytes]:
    """A long frame without its last byte."""
    yield OPENING + bytes((LARGE,)) + LONG.to_bytes(8, "big") + b"x" * (LONG - 1)


def commands(number: int) -> Iterator[bytes]:
    """Heartbeats of ZMTP 3.1 without end, each of which is to be answered."""
    yield OPENING
    yield from repeat(frame(COMMAND, b"\x04PING\x00\x64context") * 500)


def _flood(wire: str) -> Attack:
    return Attack(forever(OPENING, dbp_peers.encoded(MESSAGES[wire]) * 50))


def _storm(wire: str) -> Attack:
    """A handshake and a message; it closes when the broker has said all of its half, and comes again."""
    once = OPENING + dbp_peers.encoded(MESSAGES[wire])
    return Attack(lambda number: iter((once,)), hangs_up=dbp_peers.WELCOME)


def _same(pieces: Callable[[int], Iterator[bytes]]) -> Callable[[str], Attack]:
    return lambda wire: Attack(pieces)


def unread_lists(number: int) -> Iterator[bytes]:
    """A DBP service of 16 kB that asks for the list of all, again and again."""
    head, body = dbp_peers.registration(number)[:3], dbp_peers.registration(number)[3]
    yield OPENING + dbp_peers.encoded([*head, body[:-1] + b', "padding": "' + b"x" * INFO + b'"}'])
    yield from repeat(dbp_peers.encoded(dbp_peers.request("")) * 200)


KINDS: dict[str, tuple[str, Callable[[str], Attack]]] = {
    "greeting": ("silence in the greeting", _same(in_greeting)),
    "handshake": ("half handshakes", _same(half_handshakes)),
    "garbage": ("random bytes", _same(garbage)),
    "flood": ("valid messages without end", _flood),
    "storm": ("connections that come and go", _storm),
    "endless": ("messages without end", _same(endless)),
    "unfinished": ("unfinished frames", _same(unfinished)),
    "pings": ("ZMTP heartbeats without end", _same(commands)),
}

DOORS = [
    *(
        Door(f"{wire}-{kind}", wire, title, partial(swarm, attack(wire)), bound=BY_ALL + BESIDE)
        for wire in MESSAGES
        for kind, (title, attack) in KINDS.items()
    ),
    Door(
        "dbp-lists",
        "dbp",
        "lists of services of 16 kB that are not read",
        partial(swarm, Attack(unread_lists, reads=False)),
        bound=BY_ALL + BESIDE,
        stored=LISTED,
    ),
    *(
        Door(
            f"{wire}-descriptors",
            wire,
            f"{HOLDERS} connections, for {DESCRIPTORS} descriptors",
            partial(swarm, Attack(lambda number: iter((OPENING,)))),
            count=HOLDERS,
            descriptors=DESCRIPTORS,
        )
        for wire in MESSAGES
    ),
]
"""All rows of the ZeroMQ wires."""
