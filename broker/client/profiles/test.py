"""Profile "test": each Content of a writer goes to all readers."""

from __future__ import annotations

from broker.client.mtl import Client, Reader, Writer
from broker.client.reader import Receive
from broker.client.settings import OnEvent

PROFILE = "test"
RESOURCE = "resource"
"""The only resource."""


async def reader(client: Client, receive: Receive, on_event: OnEvent | None = None) -> Reader:
    """Receive all Contents."""
    return await client.read(PROFILE, [RESOURCE], receive, confirm="none", on_event=on_event)


async def writer(client: Client, on_event: OnEvent | None = None) -> Writer:
    """Send Contents to all readers. Contents sent while there is no flow fail."""
    return await client.writer(PROFILE, [RESOURCE], on_event=on_event)
