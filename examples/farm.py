"""mc0 client: prints the services of the farm and their loads as they change.

python examples/farm.py --broker tcp://127.0.0.1:61616
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os

import zmq

TTL = 30_000
"""Silence after which the broker ends the session, in milliseconds."""

TOPICS = (b"elkobroker.services", b"elkobroker.load")


def main() -> None:
    """Subscribe, and print each change."""
    arguments = argparse.ArgumentParser(description="Watch the farm.")
    arguments.add_argument("--broker", default="tcp://127.0.0.1:61616", help="endpoint of the broker [%(default)s]")
    options = arguments.parse_args()

    socket = zmq.Context().socket(zmq.DEALER)
    socket.identity = f"farm.py {os.getpid()}".encode()
    socket.linger = 0
    socket.connect(options.broker)
    socket.send_multipart([b"", b"CONNECT", b"TTL", str(TTL).encode(), b"ID", b"connect"])
    socket.send_multipart([b"", b"SUB", b"ID", b"subscribe", b"", *TOPICS])
    while True:
        if not socket.poll(TTL):
            # A live broker sends at least two messages in this time: NOOP is its heartbeat.
            raise SystemExit("the broker does not respond")
        _, verb, *rest = socket.recv_multipart()
        if verb == b"MESSAGE":
            print(shown(json.loads(rest[-1])), flush=True)
        elif verb == b"NOOP":
            socket.send_multipart([b"", b"NOOP"])
        elif verb == b"ERROR":
            raise SystemExit(f"the broker refused: {rest[1].decode()}")
        elif rest[-1] == b"subscribe":
            print("watching the farm", flush=True)


def shown(change: dict[str, object]) -> str:
    """Format one change."""
    if "load" in change:
        return f"load of {change['label']} (provider {change['provider']}): {change['load']}"
    return f"{'+' if change['on'] else '-'} {change['service']} at {change['hostport']} (provider {change['provider']})"


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        main()
