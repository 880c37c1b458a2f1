"""The profile "test": what any writer sends goes to all readers."""

from __future__ import annotations

from broker.client.flow import Told
from broker.client.mtl import Client, Reader, Writer
from broker.client.reader import Receive

PROFILE = "test"
RESOURCE = "resource"
"""The only one."""


async def reader(client: Client, receive: Receive, told: Told | None = None) -> Reader:
    """Have all Contents come."""
    return await client.read(PROFILE, [RESOURCE], receive, confirm="none", told=told)


async def writer(client: Client, told: Told | None = None) -> Writer:
    """Send Contents to all readers. What is sent while there is no flow fails."""
    return await client.writer(PROFILE, [RESOURCE], told=told)
