"""Work queue over MTL: puts messages into a queue, or processes the messages of one.

python examples/mtl_jobs.py --broker tcp://127.0.0.1:5975 --queue jobs put "first piece" "second piece"
python examples/mtl_jobs.py --broker tcp://127.0.0.1:5975 --queue jobs work
"""

from __future__ import annotations

import argparse
import contextlib
import os

from broker.client.blocking import Client, Content
from broker.client.credentials import Password


def main() -> None:
    """Put messages, or process messages until interrupted."""
    arguments = argparse.ArgumentParser(description="Put messages into a queue, or process them.")
    arguments.add_argument(
        "--broker",
        default="tcp://127.0.0.1:5975",
        help="endpoint of the broker, or A,B,... [%(default)s]",
    )
    arguments.add_argument("--queue", default="jobs", help="name of the queue [%(default)s]")
    arguments.add_argument("--user", help="user name; the password is taken from the environment variable MTL_PASSWORD")
    commands = arguments.add_subparsers(dest="command", required=True)
    put = commands.add_parser("put", help="put messages")
    put.add_argument("pieces", nargs="+", help="bodies of the messages")
    commands.add_parser("work", help="process messages")
    options = arguments.parse_args()

    credentials = None
    if options.user is not None:
        credentials = Password(options.user, os.environ["MTL_PASSWORD"])
    with Client(options.broker.split(","), credentials) as client:
        if options.command == "put":
            queue = client.write("queue", [options.queue])
            for piece in options.pieces:
                queue.post(piece.encode())
            # After this all messages are queued; in a durable queue they survive a crash of the broker.
            queue.flush()
            print(f"{len(options.pieces)} pieces are in the queue", flush=True)
        else:
            jobs = client.read("queue", [options.queue], confirm="full", window=1)
            print("waiting for work", flush=True)
            jobs.work(work)


def work(piece: Content) -> None:
    """Process one message. It is confirmed when this function returns, and delivered again if it raises."""
    again = " once more" if piece.properties.get("redelivered") else ""
    print(f"working{again} on: {piece.body.decode()}", flush=True)


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        main()
