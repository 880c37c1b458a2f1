"""The profile "queue": work, of which each piece is done by one worker, at least once.

Rules:
- A piece of work is safe when the Deferred of `broker.client.writer.Writer.send` fires, and not before. The client
  sends it until then, also over restarts of the broker; so it may be there twice.
- A worker confirms a piece when it is done with it. If it fails, or is gone, another one gets it; what fails again and
  again ends in the queue of the same name with ``.dead``.
- A worker stops by `broker.client.reader.Reader.drain`: it finishes what it has.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from twisted.internet.defer import Deferred

from broker.client.flow import Told
from broker.client.mtl import Client, Reader, Writer
from broker.client.reader import Receive
from broker.wires.mtl.codec.table import Value

PROFILE = "queue"


async def worker(
    client: Client, queues: Sequence[str], work: Receive, *, window: int | None = None, told: Told | None = None
) -> Reader:
    """Do the work of these queues: ``work`` is given one piece after the other, up to ``window`` at once.

    A piece is done when ``work`` returns, or when the Deferred or the coroutine is that it returned. It is not if that
    failed; `broker.client.errors.NotTaken` says that nobody else shall try either.
    """
    return await client.read(PROFILE, queues, work, confirm="full", window=window, told=told)


async def writer(client: Client, queues: Sequence[str] = (), *, again: bool = True, told: Told | None = None) -> Writer:
    """Give work to these queues, or to any."""
    return await client.writer(PROFILE, queues, confirm="full", again=again, told=told)


def put(
    writer: Writer,
    queue: str,
    body: bytes,
    properties: Mapping[str, Value] | None = None,
    *,
    ttl: float | None = None,
    id: str = "",
) -> Deferred[None]:
    """Give one piece of work. Fires when it is safe.

    After ``ttl`` seconds nobody needs to do it any more. By its ``id`` a queue that was told to look for it knows that
    it is the same piece once more.
    """
    more: dict[str, Value] = {}
    if ttl is not None:
        more["ttl"] = round(ttl * 1000)
    if id:
        more["message-id"] = id
    return writer.send(body, queue, {**(properties or {}), **more})
