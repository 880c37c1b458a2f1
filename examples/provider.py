"""A small provider: offers one service, reports its load, and stays until interrupted.

python examples/provider.py --service bank --hostport bank.example.com:7000 --load 0.25
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import select
import socket
import time

CONNECT = 2.0
"""Seconds after which the next broker is tried."""

PAUSE = 0.2
"""Seconds before the next broker is tried."""


def main() -> None:
    """Stay registered until interrupted: at the next broker where there are several."""
    arguments = argparse.ArgumentParser(description="Offer a service to the farm.")
    arguments.add_argument(
        "--broker", default="127.0.0.1:9000", help="host:port of the broker, or A,B,... [%(default)s]"
    )
    arguments.add_argument("--service", default="bank", help="name of the service offered [%(default)s]")
    arguments.add_argument("--hostport", default="127.0.0.1:7000", help="host:port of the service [%(default)s]")
    arguments.add_argument("--label", default="example provider", help="label of the provider [%(default)s]")
    arguments.add_argument("--load", type=float, default=0.25, help="the load to report [%(default)s]")
    arguments.add_argument("--every", type=float, default=30.0, help="seconds between reports [%(default)s]")
    options = arguments.parse_args()

    brokers = options.broker.split(",")
    for broker in itertools.cycle(brokers):
        try:
            serve(broker, options)
        except OSError as error:
            if len(brokers) == 1:
                raise
            print(f"{broker} is lost: {error}", flush=True)
        if len(brokers) == 1:
            return
        time.sleep(PAUSE)


def serve(broker_at: str, options: argparse.Namespace) -> None:
    """Register, report, and answer the pings of a broker, until it closes the connection."""
    host, _, port = broker_at.rpartition(":")
    with socket.create_connection((host, int(port)), timeout=CONNECT) as broker:

        def send(**message: object) -> None:
            broker.sendall(json.dumps({"to": "client", **message}).encode() + b"\n\n")

        send(op="auth", label=options.label)
        send(
            op="willserve", services=[{"type": "servicedesc", "service": options.service, "hostport": options.hostport}]
        )
        print(f"offering {options.service} at {options.hostport}", flush=True)
        due = time.monotonic()
        received = b""
        while True:
            if time.monotonic() >= due:
                send(op="load", factor=options.load)
                due += options.every
            if not select.select([broker], [], [], max(0.0, due - time.monotonic()))[0]:
                continue
            data = broker.recv(65536)
            if not data:
                print("the broker closed the connection", flush=True)
                return
            *lines, received = (received + data).split(b"\n")
            for message in map(json.loads, filter(None, lines)):
                if message["op"] == "ping":
                    tag = {"tag": message["tag"]} if "tag" in message else {}
                    send(op="pong", **tag)
                else:
                    print(f"the broker says: {json.dumps(message)}", flush=True)


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        main()
