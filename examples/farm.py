"""A small client of mc0: prints the services of the farm as they are registered and withdrawn, and their loads.

python examples/farm.py --broker tcp://127.0.0.1:61616
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import os

import zmq

TTL = 30_000
"""Milliseconds after which the broker ends the session of a silent client."""

TOPICS = (b"elkobroker.services", b"elkobroker.load")


def main() -> None:
    """Watch until interrupted, also over the loss of a broker where there are several."""
    arguments = argparse.ArgumentParser(description="Watch the farm.")
    arguments.add_argument(
        "--broker",
        default="tcp://127.0.0.1:61616",
        help="endpoint of the broker, or A,B,... [%(default)s]",
    )
    options = arguments.parse_args()

    brokers = options.broker.split(",")
    for broker in itertools.cycle(brokers):
        watch(broker)
        if len(brokers) == 1:
            raise SystemExit("the broker does not answer")
        print(f"{broker} does not answer", flush=True)


def watch(broker: str) -> None:
    """Subscribe at a broker, and print each publication, until it is silent."""
    socket: zmq.Socket[bytes] = zmq.Context.instance().socket(zmq.DEALER)
    socket.identity = f"farm.py {os.getpid()}".encode()
    socket.linger = 0
    socket.connect(broker)
    socket.send_multipart([b"", b"CONNECT", b"TTL", str(TTL).encode(), b"ID", b"connect"])
    socket.send_multipart([b"", b"SUB", b"ID", b"subscribe", b"", *TOPICS])
    while True:
        if not socket.poll(TTL):
            # A broker that runs sends at least two messages in this time.
            socket.close()
            return
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
