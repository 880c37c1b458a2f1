"""A kill of the Elko broker, and what is known after the next start."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory

from bench.common import servers, traffic
from bench.common.figures import Figure, Scenario, at_least, at_most
from bench.common.servers import Server
from bench.elko import messages

SNAPSHOT_WITHIN = 1.0
"""Seconds from the start until a find is answered from the snapshot."""

PROVIDERS = 1_000


def kill_and_restart(_: float) -> list[Figure]:
    """Kill a broker that has a thousand providers, start it again, and ask the new one for their services."""
    names = [f"server-{i:04d}" for i in range(PROVIDERS)]
    queries = [messages.find(name) for name in names]
    with TemporaryDirectory(prefix="elkobroker-bench-") as directory, ExitStack() as stack:
        old = servers.start_broker(Path(directory))
        stack.callback(old.stop)
        for i, name in enumerate(names):
            opening = messages.auth(name) + messages.willserve([name], f"10.0.0.1:{10_000 + i}", name) + messages.PING
            stack.enter_context(traffic.opened(old.port, opening, 1))
        ids = _providers(_ask(old, queries))
        time.sleep(2.0)  # what was heard within the last half second may be lost by a kill
        old.kill()
        start = time.perf_counter()
        new = servers.start_broker(Path(directory), wait=False)
        stack.callback(new.stop)
        servers.wait_for(new, poll=0.002)
        listening = time.perf_counter() - start
        _ask(new, queries[:1])
        answered = time.perf_counter() - start
        restored = _providers(_ask(new, queries))
        opening = messages.auth("newcomer") + messages.willserve(["newcomer"]) + messages.PING
        stack.enter_context(traffic.opened(new.port, opening, 1))
        newcomer = _providers(_ask(new, [messages.find("newcomer")]))
    return [
        Figure("seconds until it listens", f"{listening:.2f}"),
        at_most("seconds until a find is answered", answered, SNAPSHOT_WITHIN, "{:.2f}"),
        at_least(f"services known, of {len(ids)}", len(restored & ids), len(ids), "{}"),
        at_least(f"the next provider id, after {max(ids)}", max(newcomer), max(ids) + 1, "{}"),
    ]


def _ask(server: Server, queries: Sequence[bytes]) -> bytes:
    with traffic.opened(server.port, messages.auth("asker") + messages.PING, 1) as sock:
        sock.sendall(b"".join(queries))
        return traffic.await_replies(sock, len(queries))


def _providers(answers: bytes) -> set[int]:
    """The ids in the descriptors of these answers."""
    blocks = (json.loads(block) for block in answers.decode().split("\n\n") if block)
    return {desc["provider"] for block in blocks for desc in block["desc"] if "failure" not in desc}


SCENARIOS = {"restart": Scenario("kill -9, and what is known after the next start", 0.0, kill_and_restart)}
