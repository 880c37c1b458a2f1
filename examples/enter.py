"""A small game client: requests a reservation for a context from the director, and prints the server with it.

python examples/enter.py context-inn --user user-joe
"""

from __future__ import annotations

import argparse
import json
import socket
import sys
from typing import Any


def ask(hostport: str, to: str, **message: Any) -> Any:
    """Authenticate to a server, send it a message, and return the answer."""
    host, _, port = hostport.rpartition(":")
    with socket.create_connection((host, int(port))) as server:
        for each in ({"to": to, "op": "auth", "label": "enter.py"}, {"to": to, **message}):
            server.sendall(json.dumps(each).encode() + b"\n\n")
        with server.makefile(encoding="utf-8") as answers:
            return json.loads(next(line for line in answers if line.strip()))


def main() -> int:
    """Find a director and request a reservation. The exit status is 1 if it is denied."""
    arguments = argparse.ArgumentParser(description="Get a reservation for a context.")
    arguments.add_argument("context")
    arguments.add_argument("--user", help="name of the user [anonymous]")
    arguments.add_argument("--protocol", default="tcp", help="protocol of the server [%(default)s]")
    arguments.add_argument("--broker", default="127.0.0.1:9000", help="host:port of the broker [%(default)s]")
    options = arguments.parse_args()

    director = ask(options.broker, "client", op="find", service="director-user")["desc"][0]
    if "failure" in director:
        print(f"director-user: {director['failure']}", file=sys.stderr)
        return 1
    user = {} if options.user is None else {"user": options.user}
    answer = ask(
        director["hostport"], "director", op="reserve", protocol=options.protocol, context=options.context, **user
    )
    if "deny" in answer:
        print(f"{answer['context']}: {answer['deny']}", file=sys.stderr)
        return 1
    print(f"{answer['context']} at {answer['hostport']}, reservation {answer['reservation']}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
