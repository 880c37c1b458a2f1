"""A small client: finds a service, and can wait until it is registered.

python examples/find.py bank --wait 10
"""

from __future__ import annotations

import argparse
import json
import socket
import sys


def main() -> int:
    """Send a find and print the services. The exit status is 1 if there are none."""
    arguments = argparse.ArgumentParser(description="Find a service of the farm.")
    arguments.add_argument("service")
    arguments.add_argument("--broker", default="127.0.0.1:9000", help="host:port of the broker [%(default)s]")
    arguments.add_argument("--wait", type=int, default=0, help="seconds to wait for it; -1 is no limit [%(default)s]")
    options = arguments.parse_args()

    host, _, port = options.broker.rpartition(":")
    with socket.create_connection((host, int(port))) as broker:
        for message in (
            {"to": "client", "op": "auth", "label": "find.py"},
            {"to": "client", "op": "find", "service": options.service, "wait": options.wait},
        ):
            broker.sendall(json.dumps(message).encode() + b"\n\n")
        with broker.makefile(encoding="utf-8") as answers:
            reply = json.loads(next(line for line in answers if line.strip()))
    for found in reply["desc"]:
        if "failure" in found:
            print(f"{options.service}: {found['failure']}", file=sys.stderr)
            return 1
        print(f"{found['service']} at {found['hostport']} (provider {found['provider']})")
    return 0


if __name__ == "__main__":
    sys.exit(main())
