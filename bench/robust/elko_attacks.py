"""Hostile peers on the text wires: Elko over all of its transports, the director, the console, TLS."""

from __future__ import annotations

import random
import ssl
from collections.abc import Iterator
from functools import partial
from itertools import count, cycle, repeat

from bench.harness import KIB
from bench.peers import elko as messages
from bench.robust.good_peers import HANDSHAKE, frame, http
from bench.robust.measure import Door
from bench.robust.swarm import Attack, forever, swarm

CLIENT = messages.auth("hostile")
ADMIN = messages.auth("hostile", "admin")


def noise(number: int) -> Iterator[bytes]:
    """Random bytes; half of the peers authenticate first."""
    source = random.Random(number)
    if number % 2:
        yield CLIENT
    while True:
        yield source.randbytes(source.randint(1, 4_096))


def half(number: int) -> Iterator[bytes]:
    """Half a message and nothing more; or whole ones, a byte at a time."""
    if number % 2:
        yield CLIENT + messages.PING[: len(messages.PING) // 2]
        return
    whole = CLIENT
    while True:
        for byte in whole:
            yield bytes((byte,))
        whole = messages.PING


def long_lines(number: int) -> Iterator[bytes]:
    """A line of 10 MiB; half of the peers authenticate first, and begin it as a message."""
    if number % 2:
        yield CLIENT + b'{"to":"broker", "op":"debug", "msg":"'
    yield from repeat(b"x" * 64 * KIB, 160)


def waiting_finds(number: int) -> Iterator[bytes]:
    """A hundred finds that wait for ever, each for another service."""
    yield CLIENT + b"".join(messages.find(f"never-{number}-{i}", -1) for i in range(100))


def never_reading(number: int) -> Iterator[bytes]:
    """Pings, or requests for all services, whose answers are not read."""
    if number % 2:
        yield CLIENT
        yield from repeat(messages.PING * 100)
    else:
        yield ADMIN
        yield from repeat(messages.SERVICEDESC * 10)


def tiny_malformed(number: int) -> Iterator[bytes]:
    """Lines of a few bytes that are no messages."""
    yield CLIENT
    yield from cycle([b"}\n" * 500, b"{]\n\n" * 500, b'{"op":7}\n\n' * 500, b"[]\n" * 500])


_PADDING = b'{to:"broker",op:"ping",x:'
_NESTED = _PADDING + b"[" * 500_000 + b"]" * 500_000 + b"}\n\n"
_TOKENS = _PADDING + b"[" + b"1," * 500_000 + b"1]}\n\n"
_MEMBERS = _PADDING + b"{" + b"".join(b"k%d:0," % i for i in range(100_000)) + b"}}\n\n"
_LINES = b'{to:"broker",\n' + b"x:1,\n" * 200_000
_OPEN_STRINGS = b"{x:'\n" + b"'\n" * 500_000


def lenient(number: int) -> Iterator[bytes]:
    """A mebibyte of JSON that is not strict: nested, of many tokens or members, of many lines, of many strings."""
    yield CLIENT
    yield from repeat([_NESTED, _TOKENS, _MEMBERS, _LINES, _OPEN_STRINGS][number % 5])


def watching(number: int) -> Iterator[bytes]:
    """A watch of services, whose notices are not read."""
    yield ADMIN + messages.WATCH_SERVICES


def _blocks(number: int) -> Iterator[bytes]:
    """An RTCP session whose blocks hold pings."""
    yield b"start\n"
    for first in count(1, 40):
        yield b"".join(b"%d %d\n" % (i, i - 1) + messages.PING for i in range(first, first + 40))


def _hello(number: int) -> Iterator[bytes]:
    """The first flight of a TLS handshake, which a real client made."""
    yield CLIENT_HELLO


def _client_hello() -> bytes:
    out, tls = ssl.MemoryBIO(), ssl.create_default_context()
    tls.check_hostname = False
    connection = tls.wrap_bio(ssl.MemoryBIO(), out)
    try:
        connection.do_handshake()
    except ssl.SSLWantReadError:
        return out.read()
    raise AssertionError("a handshake needs an answer")


CLIENT_HELLO = _client_hello()

USER = messages.auth("hostile", "director")
RESERVE = messages.message(
    '{"to":"director", "op":"reserve", "protocol":"tcp", "context":"context-x", "user":"user-x"}'
)


def _out_of_sequence(number: int) -> Iterator[bytes]:
    """An RTCP session whose blocks have numbers far ahead."""
    yield b"start\n"
    for first in count(1_000, 7):
        yield b"%d 0\n" % first + messages.PING


def silent(number: int) -> Iterator[bytes]:
    """Nothing at all."""
    return iter(())


def _door(name: str, title: str, attack: Attack, changes: bool = False) -> Door:
    return Door(name, name.partition("-")[0], title, partial(swarm, attack), changes=changes)


DOORS = [
    _door("elko-silent", "connections that say nothing", Attack(silent)),
    _door("elko-noise", "random bytes", Attack(noise)),
    _door("elko-half", "half messages, or a byte at a time", Attack(half)),
    _door("elko-lines", "lines of 10 MiB", Attack(long_lines)),
    _door("elko-waits", "100 waiting finds each", Attack(waiting_finds, again=False)),
    _door("elko-unread", "answers that are not read", Attack(never_reading, reads=False), changes=True),
    _door("elko-tiny", "storms of tiny malformed lines", Attack(tiny_malformed)),
    _door("elko-lenient", "1 MiB of lenient JSON", Attack(lenient)),
    _door("elko-watchers", "watches that are not read", Attack(watching, reads=False), changes=True),
    _door("elko-pings", "pings without end", Attack(forever(CLIENT, messages.PING * 50))),
    _door("elko-malformed", "lines that are no messages", Attack(forever(CLIENT, b'}\n{]\n\n{"op":7}\n\n' * 100))),
    _door(
        "director-pings",
        "pings without end",
        Attack(forever(USER, messages.PING.replace(b"broker", b"director") * 50)),
    ),
    _door("director-reserve", "reservations that are denied", Attack(forever(USER, RESERVE * 50))),
    _door("websocket-pings", "ping frames without end", Attack(forever(HANDSHAKE, frame(9, b"") * 500))),
    _door("websocket-text", "messages that are none", Attack(forever(HANDSHAKE, frame(1, b"}") * 500))),
    _door("websocket-half", "upgrades that are begun", Attack(lambda number: iter((HANDSHAKE[:-2],)))),
    _door("http-connect", "requests for sessions", Attack(forever(b"", http("GET /connect") * 20))),
    _door("http-unknown", "requests for unknown sessions", Attack(forever(b"", http("GET /select/1/1") * 20))),
    _door("http-noise", "requests that are none", Attack(forever(b"", b"GET / HTTP/9\r\nx\r\n\r\n"))),
    _door("rtcp-blocks", "blocks of pings", Attack(_blocks)),
    _door("rtcp-sequence", "blocks out of sequence", Attack(_out_of_sequence)),
    _door("rtcp-sessions", "sessions that are left", Attack(lambda number: iter((b"start\n",)), hangs_up=1)),
    _door("rtcp-noise", "requests that need a session", Attack(forever(b"", b"ack 0\n" * 100))),
    _door("console-silent", "connections that say nothing", Attack(silent)),
    _door("console-counters", "`counters` without end", Attack(forever(b"", b"counters\n" * 50))),
    _door("console-help", "`help` without end", Attack(forever(b"", b"help\n" * 50))),
    _door("console-errors", "commands that are none", Attack(forever(b"", b"find x\n[\n" * 50))),
    _door("tls-hello", "TLS handshakes that are begun, again and again", Attack(_hello, hangs_up=1)),
    _door("tls-half", "TLS handshakes that are left half open", Attack(_hello)),
]
"""All rows of these listeners."""
