"""A server as a process of its own, which a test can stop: it registers with a broker, and answers pings.

Arguments: the broker's port, the director's port or 0, a label, and the hostport of its service ``inn``.
"""

import json
import select
import socket
import sys


def main() -> None:
    """Serve until the broker ends a connection."""
    broker, director, label, hostport = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4]
    links = {}
    first = socket.create_connection(("127.0.0.1", broker))
    links[first] = b""
    say(first, to="broker", op="auth", label=label)
    say(first, to="broker", op="willserve", services=[{"type": "servicedesc", "service": "inn", "hostport": hostport}])
    if director:
        second = socket.create_connection(("127.0.0.1", director))
        links[second] = b""
        say(second, to="provider", op="auth", label=label)
        say(second, to="provider", op="address", protocol="tcp", hostport=hostport)
        say(second, to="provider", op="willserve", context="inn")
    print("ready", flush=True)
    while True:
        for link in select.select(links, [], [])[0]:
            data = link.recv(65_536)
            if not data:
                return
            *blocks, links[link] = (links[link] + data).split(b"\n\n")
            for block in blocks:
                message = json.loads(block)
                if message["op"] == "ping":
                    say(link, to=message["to"], op="pong", tag=message["tag"])


def say(link: socket.socket, **message: object) -> None:
    """Send one message."""
    link.sendall(json.dumps(message).encode() + b"\n\n")


if __name__ == "__main__":
    main()
