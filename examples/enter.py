"""A small game client: requests a reservation for a context from the director, and prints the server with it.

python examples/enter.py context-inn --user user-joe
"""

from __future__ import annotations

import argparse
import json
import socket
import sys
from collections.abc import Sequence
from typing import Any

PATIENCE = 5.0
"""Seconds after which the next server is asked."""


def ask(hostport: str, to: str, **message: Any) -> Any:
    """Authenticate to a server, send it a message, and return the answer."""
    host, _, port = hostport.rpartition(":")
    with socket.create_connection((host, int(port)), timeout=PATIENCE) as server:
        for each in ({"to": to, "op": "auth", "label": "enter.py"}, {"to": to, **message}):
            server.sendall(json.dumps(each).encode() + b"\n\n")
        with server.makefile(encoding="utf-8") as answers:
            for line in filter(str.strip, answers):
                return json.loads(line)
    raise ConnectionError(f"{hostport} closed the connection")


def first(places: Sequence[str], to: str, **message: Any) -> Any:
    """Return the answer of the first server that gives one."""
    for place in places[:-1]:
        try:
            return ask(place, to, **message)
        except OSError:
            continue
    return ask(places[-1], to, **message)


def main() -> int:
    """Find a director and request a reservation. The exit status is 1 if it is denied."""
    arguments = argparse.ArgumentParser(description="Get a reservation for a context.")
    arguments.add_argument("context")
    arguments.add_argument("--user", help="name of the user [anonymous]")
    arguments.add_argument("--protocol", default="tcp", help="protocol of the server [%(default)s]")
    arguments.add_argument(
        "--broker", default="127.0.0.1:9000", help="host:port of the broker, or A,B,... [%(default)s]"
    )
    options = arguments.parse_args()

    # The directors of all brokers of a cluster are found at each.
    directors = first(options.broker.split(","), "client", op="find", service="director-user")["desc"]
    if "failure" in directors[0]:
        print(f"director-user: {directors[0]['failure']}", file=sys.stderr)
        return 1
    places = [each["hostport"] for each in directors]
    user = {} if options.user is None else {"user": options.user}
    answer = first(places, "director", op="reserve", protocol=options.protocol, context=options.context, **user)
    if "deny" in answer:
        print(f"{answer['context']}: {answer['deny']}", file=sys.stderr)
        return 1
    print(f"{answer['context']} at {answer['hostport']}, reservation {answer['reservation']}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
