"""Profile "queue": work queues with at-least-once delivery to one worker.

Rules:
- A message is safe when the Deferred of `broker.client.writer.Writer.send` fires, and not before. Until then the client
  sends it again, also across restarts of the broker, so duplicates are possible.
- A worker confirms a message when it is processed. If the worker fails or disconnects, another one receives the
  message; after too many deliveries it goes to the dead-letter queue, whose name has the suffix ``.dead``.
- A worker stops by `broker.client.reader.Reader.drain`: it finishes the messages that it has.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from twisted.internet.defer import Deferred

from broker.client.mtl import Client, Reader, Writer
from broker.client.reader import Receive
from broker.client.settings import OnEvent
from broker.wires.mtl.codec.field_table import Value

PROFILE = "queue"


async def worker(
    client: Client, queues: Sequence[str], work: Receive, *, window: int | None = None, on_event: OnEvent | None = None
) -> Reader:
    """Process messages of these queues: ``work`` is called with one message after the other, up to ``window`` at a
    time.

    A message is processed when ``work`` returns, or when the Deferred or coroutine that it returned succeeds; if that
    fails, the message is delivered again. `broker.client.errors.NotTaken` discards the message.
    """
    return await client.read(PROFILE, queues, work, confirm="full", window=window, on_event=on_event)


async def writer(
    client: Client, queues: Sequence[str] = (), *, resend: bool = True, on_event: OnEvent | None = None
) -> Writer:
    """Open a writer for these queues, or for any."""
    return await client.writer(PROFILE, queues, confirm="full", resend=resend, on_event=on_event)


def put(
    writer: Writer,
    queue: str,
    body: bytes,
    properties: Mapping[str, Value] | None = None,
    *,
    ttl: float | None = None,
    id: str = "",
) -> Deferred[None]:
    """Put one message into a queue. Fires when the broker has confirmed it.

    ``ttl`` is the time in seconds after which the message expires. ``id`` is the message id by which a queue with
    duplicate detection recognises a repeated message.
    """
    more: dict[str, Value] = {}
    if ttl is not None:
        more["ttl"] = round(ttl * 1000)
    if id:
        more["message-id"] = id
    return writer.send(body, queue, {**(properties or {}), **more})
