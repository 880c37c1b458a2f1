"""Servers behind one address that come back all at once, alone and beside a stranger at the same address that guesses.

The stranger has as many connections as `GUESSERS`, each of which guesses passwords of names that do not log in here,
or tokens, and connects again. Servers connect one after the other, as fast as the broker accepts them, and are back
when the broker has answered the ping behind their offer.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from bench.harness import Figure, Scenario
from bench.machine import raise_descriptor_limit
from bench.peers import elko as messages
from bench.servers import HTTP_LISTENS, WireServer, broker_with
from bench.traffic import NEWLINES, Stuck, connect, received
from broker.access import users_document
from broker.access.passwords import of

SERVERS = 1_000

GUESSERS = 20
"""Connections that guess: their address has one place in the queue for the threads that check passwords."""

ADDRESS = 7
"""Number of the address of all."""

MOST = 1.5
"""The goal: seconds beside guesses as a ratio to those alone. The guesses take a share of both cores."""

TOKEN, PASSWORD = users_document.new_token(), "a long password"

USERS = f"""
[[users]]
name = "farm"
passwords = ["{of(PASSWORD).text()}"]
[[users.tokens]]
label = "servers"
hash = "{users_document.token_hash(TOKEN)}"
[[users]]
name = "operator"
passwords = ["{of("another").text()}"]
[[rights]]
users = ["farm"]
operations = ["offer", "find"]
"""

CONFIG = """
[http]
endpoint = "tcp:0:interface=127.0.0.1"
[access]
file = "{file}"
"""

WAYS = {"tokens": {"code": TOKEN}, "one password": {"id": "farm", "code": PASSWORD}}


def _auth(about: dict[str, str]) -> bytes:
    return messages.message(json.dumps({"to": "broker", "op": "auth", "auth": {"mode": "password", **about}}))


def _come_back(port: int, about: dict[str, str], servers: int = SERVERS) -> tuple[float, int]:
    """Let servers log in and offer. Returns the seconds until all have an answer, and the number that is back."""
    opening, back = _auth(about) + messages.willserve(["bank"]) + messages.PING, 0
    with ExitStack() as stack:
        began = time.monotonic()
        streams = []
        for _ in range(servers):
            streams.append(stack.enter_context(connect(port, ADDRESS)))
            streams[-1].sendall(opening)
        for stream in streams:
            stream.settimeout(60.0)
            data = b""
            try:
                while data.count(b"\n") < NEWLINES:
                    data += received(stream, data)
            except (Stuck, OSError):
                continue
            back += b'"pong"' in data
        return time.monotonic() - began, back


@contextmanager
def _guesses(port: int) -> Iterator[list[int]]:
    """Guess meanwhile. The list has the number of answers to guesses."""
    over, answers = threading.Event(), [0]

    def guess(number: int) -> None:
        others = [{"code": f"guess {number}"}, *({"id": name, "code": "guess"} for name in ("operator", "nobody"))]
        while not over.is_set():
            for about in others:
                try:
                    with connect(port, ADDRESS) as stranger:
                        stranger.settimeout(10.0)
                        stranger.sendall(_auth(about))
                        answers[0] += bool(stranger.recv(1_000))
                except OSError:
                    continue

    threads = [threading.Thread(target=guess, args=(number,)) for number in range(GUESSERS)]
    for each in threads:
        each.start()
    try:
        yield answers
    finally:
        over.set()
        for each in threads:
            each.join()


def farm(seconds: float) -> list[Figure]:
    """Measure each way to log in, alone and beside guesses, with a fresh broker for each."""
    raise_descriptor_limit()
    figures = []
    for way, about in WAYS.items():
        took = []
        for guessing in (False, True):
            with TemporaryDirectory(prefix="elkobroker-bench-") as name, ExitStack() as stack:
                users = Path(name) / "users.toml"
                users.write_text(USERS)
                users.chmod(0o600)
                config = CONFIG.format(file=users)
                server, _ = stack.enter_context(broker_with(WireServer, "http", config, HTTP_LISTENS, Path(name)))
                _come_back(server.elko, about, 1)  # the name is known at the address, as after a restart
                beside = "beside guesses" if guessing else "alone"
                answers = stack.enter_context(_guesses(server.elko)) if guessing else [0]
                if guessing:
                    end = time.monotonic() + seconds
                    while time.monotonic() < end:
                        time.sleep(0.1)
                long, back = _come_back(server.elko, about)
                took.append(long)
                figures.append(Figure(f"{way}, {beside}: back", f"{back}", f"{SERVERS}", back == SERVERS))
                figures.append(Figure(f"{way}, {beside}: time", f"{long:.2f} s, {answers[0]} guesses answered"))
        ratio = took[1] / took[0]
        figures.append(Figure(f"{way}: beside / alone", f"{ratio:.2f}", f"at most {MOST:g}", ratio <= MOST))
    return figures


SCENARIOS = {"logins-farm": Scenario(f"{SERVERS:,} servers behind one address come back beside guesses", 3.0, farm)}
