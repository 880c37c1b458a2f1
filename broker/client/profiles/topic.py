"""The profile "topic": publish and subscribe, in one space with the other wires of the broker.

Rules:
- Nothing is kept for who is away, but the last value of a topic where its publisher wants that (``retain``): it comes
  first, with the property ``retained``.
- `broker.client.reader.Delivery.missed` tells how many Contents a slow subscriber did not get.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from twisted.internet.defer import Deferred

from broker.client.flow import Told
from broker.client.mtl import Client, Reader, Writer
from broker.client.reader import Receive
from broker.wires.mtl.codec.control import Confirm
from broker.wires.mtl.codec.table import Value

PROFILE = "topic"


async def subscribe(client: Client, topics: Sequence[str], receive: Receive, told: Told | None = None) -> Reader:
    """Have the Contents of these topics come. After `broker.client.flow.Event.BACK` some may be missing."""
    return await client.read(PROFILE, topics, receive, confirm="none", told=told)


async def publisher(
    client: Client,
    topics: Sequence[str] = (),
    *,
    confirm: Confirm = "none",
    again: bool = False,
    told: Told | None = None,
) -> Writer:
    """Publish on these topics, or on any. With ``confirm`` "full" it is said that who was there has got it."""
    return await client.writer(PROFILE, topics, confirm=confirm, again=again, told=told)


def publish(
    publisher: Writer,
    topic: str,
    body: bytes,
    properties: Mapping[str, Value] | None = None,
    *,
    retain: bool = False,
) -> Deferred[None]:
    """Publish. ``retain``: whoever subscribes later gets it first; an empty body ends that."""
    more = {"retain": True} if retain else {}
    return publisher.send(body, topic, {**(properties or {}), **more})
