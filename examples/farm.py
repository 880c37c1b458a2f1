"""A small client of mc0: prints the services of the farm as they are registered and withdrawn, and their loads.

python examples/farm.py --broker tcp://127.0.0.1:61616
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os

import zmq

TTL = 30_000
"""Milliseconds after which the broker ends the session of a silent client."""

TOPICS = (b"elkobroker.services", b"elkobroker.load")


def main() -> None:
    """Subscribe, and print each publication."""
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
            # A broker that runs sends at least two messages in this time.
            raise SystemExit("the broker does not answer")
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
    """Format one change as a line of text."""
    if "load" in change:
        return f"load of {change['label']} (provider {change['provider']}): {change['load']}"
    return f"{'+' if change['on'] else '-'} {change['service']} at {change['hostport']} (provider {change['provider']})"


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        main()
