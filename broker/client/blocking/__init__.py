"""Blocking client, for programs without an event loop: each call waits until it is done.

    with Client("tcp://broker.example:5975", Password("worker", "secret")) as client:
        for work in client.read("queue", ["jobs"], confirm="full"):
            process(work.body)
            work.confirm()

Rules:
- The client has a thread of its own for input and output. The thread answers Pings, sends heartbeats and reconnects,
  whatever the program does meanwhile.
- The program's handlers run in the program's threads, so they may block. Any number of threads may use one client.
- Contents wait in the client until the program takes them; where they are confirmed, until the program has answered
  them. Above a limit (the window, or `Settings.pending`) the client stops receiving.
- A call that takes longer than its ``timeout``, in seconds, raises TimeoutError; the default is
  `Settings.call_timeout`. `Client.wait`, methods of a `Writer`, and those that take a message or a change have no
  default. The first call raises `broker.client.errors.Unreachable` where no broker is at the endpoints.
- `Client.wait` makes all functions of `broker.client.mtl` and `broker.client.profiles` available.
"""

from broker.client.blocking.blocking_client import Client
from broker.client.blocking.blocking_profiles import (
    Caller,
    Change,
    Content,
    Offer,
    Reader,
    Request,
    Watch,
    Worker,
    Writer,
)

__all__ = ["Caller", "Change", "Client", "Content", "Offer", "Reader", "Request", "Watch", "Worker", "Writer"]
