"""A work queue over MTL: gives work to a queue, or does the work of one.

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
    """Put, or work until interrupted."""
    arguments = argparse.ArgumentParser(description="Give work to a queue, or do it.")
    arguments.add_argument("--broker", default="tcp://127.0.0.1:5975", help="where the broker is [%(default)s]")
    arguments.add_argument("--queue", default="jobs", help="the queue [%(default)s]")
    arguments.add_argument("--user", help="who this is; the password is in the environment, as MTL_PASSWORD")
    commands = arguments.add_subparsers(dest="command", required=True)
    put = commands.add_parser("put", help="give work")
    put.add_argument("pieces", nargs="+", help="the pieces of work")
    commands.add_parser("work", help="do the work")
    options = arguments.parse_args()

    credentials = None
    if options.user is not None:
        credentials = Password(options.user, os.environ["MTL_PASSWORD"])
    with Client(options.broker, credentials) as client:
        if options.command == "put":
            queue = client.write("queue", [options.queue])
            for piece in options.pieces:
                queue.post(piece.encode())
            # When this returns all of it is safe, whatever happens to this program, or, if durable, to the broker.
            queue.flush()
            print(f"{len(options.pieces)} pieces are in the queue", flush=True)
        else:
            jobs = client.read("queue", [options.queue], confirm="full", window=1)
            print("waiting for work", flush=True)
            jobs.work(work)


def work(piece: Content) -> None:
    """Do one piece. It is done when this returns; if it raises, somebody else gets it."""
    again = " once more" if piece.properties.get("redelivered") else ""
    print(f"working{again} on: {piece.body.decode()}", flush=True)


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        main()
