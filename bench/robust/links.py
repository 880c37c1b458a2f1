"""A link between two brokers beside a thousand hostile connections to the listener of one of them.

The two brokers send a message to and fro every 10 ms; the goal is the share that is back within 50 ms, as for peers
of the wires. The hostile peers are those of `bench.robust.zmtp_attacks`, and some that begin the handshake of CURVE.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import repeat

from bench import zmtp as peer
from bench.harness import Figure, Scenario, at_least, exactly
from bench.processes import NICENESS, InProcess, own_reactor
from bench.robust import zmtp_attacks
from bench.robust.measure import ANSWERED_WITHIN, SHARE_THERE
from bench.robust.swarm import SOURCES, Attack, swarm
from bench.rows.links import PORT, SECRETS, connect_links, listen

EVERY = 0.010
"""Seconds between two messages."""

COUNT = 900
"""Hostile connections: less than the limit of the listener, so that it goes on accepting."""

START = 3.0
"""Seconds for the link to open before the attack."""

BROAD = 60.0


def hello(number: int) -> Iterator[bytes]:
    """A greeting and the HELLO of CURVE, with a box that the broker has to open; then nothing."""
    from broker import curve_keys
    from broker.cluster.links.link_wire import LinkKey

    yield peer.greeting(b"CURVE") + peer.frame(
        peer.COMMAND, peer.Curve(curve_keys.decode(LinkKey.of(SECRETS["b"]).public)).hello()
    )


def noise(number: int) -> Iterator[bytes]:
    """A greeting of CURVE, and random commands without end."""
    yield peer.greeting(b"CURVE")
    yield from repeat(peer.frame(peer.COMMAND, b"\x05HELLO" + bytes(194)) * 100)


KINDS: dict[str, tuple[str, Callable[[int], Iterator[bytes]]]] = {
    "greeting": ("silence in the greeting", zmtp_attacks.in_greeting),
    "handshake": ("half handshakes", zmtp_attacks.half_handshakes),
    "garbage": ("random bytes", zmtp_attacks.garbage),
    "endless": ("messages without end, without CURVE", zmtp_attacks.endless),
    "hello": ("handshakes of CURVE that are only begun", hello),
    "noise": ("commands of CURVE that nobody can open", noise),
}


def good(seconds: float) -> tuple[int, int, int]:
    """The connecting broker. Returns the messages sent, those back in time, and the times that the link was lost."""
    reactor = own_reactor()
    end = time.perf_counter() + seconds
    sent = back = 0
    lost = -1  # the first `up` is none

    class Receiver:
        def up(self, broker: str) -> None:
            nonlocal lost
            lost += 1

        def down(self, broker: str) -> None:
            pass

        def receive(self, broker: str, frames: Sequence[bytes]) -> None:
            nonlocal back
            back += time.perf_counter() - float(frames[1]) <= ANSWERED_WITHIN

    def ask() -> None:
        nonlocal sent
        now = time.perf_counter()
        if now >= end:
            reactor.callLater(0.2, reactor.stop)
            return
        sent += lost >= 0
        links.send("b", "bench", [b"trip", b"%f" % now])
        reactor.callLater(EVERY, ask)

    links = connect_links("a", 0, Receiver())
    ask()
    reactor.run()
    return sent, back, lost


def attacked(pieces: Callable[[int], Iterator[bytes]], seconds: float) -> list[Figure]:
    """Run one scenario."""
    there = InProcess(listen)
    here = InProcess(good, seconds + START)
    time.sleep(START)
    hostile = InProcess(swarm, Attack(pieces), PORT, COUNT, SOURCES, seconds, niceness=NICENESS)
    try:
        seen = hostile.result(BROAD)
        sent, back, lost = here.result(BROAD)
    finally:
        for process in (hostile, here, there):
            process.stop()
    return [
        Figure("hostile connections", f"{seen.connects:,}"),
        at_least("messages back within 50 ms", back / max(sent, 1), SHARE_THERE, "{:.1%}"),
        exactly("links lost", lost, 0),
    ]


SCENARIOS = {f"link-{name}": Scenario(title, 8.0, partial(attacked, pieces)) for name, (title, pieces) in KINDS.items()}
