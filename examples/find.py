"""A small client: finds a service, and can wait until it is registered.

python examples/find.py bank --wait 10
"""

from __future__ import annotations

import argparse
import json
import socket
import sys
from collections.abc import Sequence
from typing import Any

CONNECT = 2.0
"""Seconds after which the next broker is tried."""


def main() -> int:
    """Send a find and print the services. The exit status is 1 if there are none."""
    arguments = argparse.ArgumentParser(description="Find a service of the farm.")
    arguments.add_argument("service")
    arguments.add_argument(
        "--broker", default="127.0.0.1:9000", help="host:port of the broker, or A,B,... [%(default)s]"
    )
    arguments.add_argument("--wait", type=int, default=0, help="seconds to wait for it; -1 is no limit [%(default)s]")
    options = arguments.parse_args()

    reply = ask(options.broker.split(","), options.service, options.wait)
    for found in reply["desc"]:
        if "failure" in found:
            print(f"{options.service}: {found['failure']}", file=sys.stderr)
            return 1
        print(f"{found['service']} at {found['hostport']} (provider {found['provider']})")
    return 0


def ask(brokers: Sequence[str], service: str, wait: int) -> Any:
    """Return the answer of the first broker that gives one."""
    for number, broker in enumerate(brokers, 1):
        host, _, port = broker.rpartition(":")
        try:
            with socket.create_connection((host, int(port)), timeout=CONNECT) as connection:
                connection.settimeout(None)  # a find may wait
                for message in (
                    {"to": "client", "op": "auth", "label": "find.py"},
                    {"to": "client", "op": "find", "service": service, "wait": wait},
                ):
                    connection.sendall(json.dumps(message).encode() + b"\n\n")
                with connection.makefile(encoding="utf-8") as answers:
                    for line in filter(str.strip, answers):
                        return json.loads(line)
            raise ConnectionError(f"{broker} closed the connection")
        except OSError:
            if number == len(brokers):
                raise


if __name__ == "__main__":
    sys.exit(main())
