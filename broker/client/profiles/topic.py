"""Profile "topic": publish and subscribe, in one topic space with the broker's other wires.

Rules:
- Delivery is at most once. Only the last value of a topic is retained, if its publisher sets ``retain``: a new
  subscriber receives it first, with the property ``retained``.
- `broker.client.reader.Delivery.missed` is the number of Contents that a slow subscriber lost.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from twisted.internet.defer import Deferred

from broker.client.mtl import Client, Reader, Writer
from broker.client.reader import Receive
from broker.client.settings import OnEvent
from broker.wires.mtl.codec.control_messages import Confirm
from broker.wires.mtl.codec.field_table import Value

PROFILE = "topic"


async def subscribe(client: Client, topics: Sequence[str], receive: Receive, on_event: OnEvent | None = None) -> Reader:
    """Subscribe to topics. After `broker.client.settings.Event.BACK` Contents may be missing."""
    return await client.read(PROFILE, topics, receive, confirm="none", on_event=on_event)


async def publisher(
    client: Client,
    topics: Sequence[str] = (),
    *,
    confirm: Confirm = "none",
    resend: bool = False,
    on_event: OnEvent | None = None,
) -> Writer:
    """Open a writer for these topics, or for any. With ``confirm`` "full" the broker confirms that all present
    subscribers were sent the Content."""
    return await client.writer(PROFILE, topics, confirm=confirm, resend=resend, on_event=on_event)


def publish(
    publisher: Writer,
    topic: str,
    body: bytes,
    properties: Mapping[str, Value] | None = None,
    *,
    retain: bool = False,
) -> Deferred[None]:
    """Publish a Content. ``retain``: keep it as the topic's last value for later subscribers; an empty body removes the
    value."""
    more = {"retain": True} if retain else {}
    return publisher.send(body, topic, {**(properties or {}), **more})
