"""The interface of a profile in the fake broker, and the two simplest profiles: test and topic."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from broker.wires.mtl.codec import table
from broker.wires.mtl.codec.data import Content

if TYPE_CHECKING:
    from broker.client.testing.connection import Grant, ReaderFlow, WriterFlow


class Refusal(Exception):
    """A request that the broker refuses, with the code of the reply."""

    def __init__(self, code: int, reason: str) -> None:
        super().__init__(reason)
        self.code = code
        self.reason = reason


class Profile:
    """A profile of the fake broker."""

    modes: ClassVar[dict[str, tuple[str, ...]]]
    """The modes of confirmation for "reader" and "writer", the default first."""
    sole = ""
    """The only resource, or an empty string."""

    def check(self, side: str, resource: str) -> None:
        """Check a resource of a lease. Raises `Refusal`."""

    def granted(self, grant: Grant) -> None:
        """Complete a lease."""

    def joined(self, reader: ReaderFlow) -> None:
        """Handle the beginning of a reader."""

    def summon(self, reader: ReaderFlow, resource: str) -> None:
        """Start delivery of a resource."""

    def dismiss(self, reader: ReaderFlow, resource: str) -> None:
        """Stop delivery of a resource."""

    def write(self, writer: WriterFlow, resource: str, content: Content) -> None:
        """Handle a Content, and confirm or reject it."""

    def left(self, flow: Any) -> None:
        """Handle the end of a reader or writer."""

    def reset(self) -> None:
        """Drop all state that does not survive a restart of the broker."""


class Fanout(Profile):
    """Delivery of a Content to all readers of a resource."""

    def __init__(self) -> None:
        self._readers: dict[str, dict[ReaderFlow, None]] = {}

    def summon(self, reader: ReaderFlow, resource: str) -> None:
        """Add a reader."""
        self._readers.setdefault(resource, {})[reader] = None

    def dismiss(self, reader: ReaderFlow, resource: str) -> None:
        """Remove a reader from a resource."""
        self._readers.get(resource, {}).pop(reader, None)

    def left(self, flow: Any) -> None:
        """Remove a reader from all resources."""
        for readers in self._readers.values():
            readers.pop(flow, None)

    def reset(self) -> None:
        """Forget all readers."""
        self._readers.clear()

    def fan_out(self, resource: str, properties: bytes, body: bytes) -> None:
        """Send a Content to all readers of a resource."""
        for reader in self._readers.get(resource, ()):
            reader.give(resource, properties, body)


class TestProfile(Fanout):
    """Profile "test": one resource, no confirmation."""

    __test__ = False  # pytest collects classes with such a name
    modes: ClassVar[dict[str, tuple[str, ...]]] = {"reader": ("none",), "writer": ("none",)}
    sole = "resource"

    def check(self, side: str, resource: str) -> None:
        """Accept the only resource."""
        if resource != self.sole:
            raise Refusal(400, f"the profile has one resource, {self.sole}")

    def write(self, writer: WriterFlow, resource: str, content: Content) -> None:
        """Send the Content to all readers."""
        self.fan_out(resource, content.table, content.body)


class Topics(Fanout):
    """Profile "topic": publish and subscribe, with retained values."""

    modes: ClassVar[dict[str, tuple[str, ...]]] = {"reader": ("none",), "writer": ("none", "full")}

    def __init__(self) -> None:
        super().__init__()
        self._retained: dict[str, tuple[bytes, bytes]] = {}

    def check(self, side: str, resource: str) -> None:
        """Refuse writers of the broker's own topics."""
        if side == "writer" and resource.startswith("elkobroker."):
            raise Refusal(403, "the topic is the broker's own")

    def summon(self, reader: ReaderFlow, resource: str) -> None:
        """Send the retained value, then add the reader."""
        if resource in self._retained:
            reader.give(resource, *self._retained[resource])
        super().summon(reader, resource)

    def write(self, writer: WriterFlow, resource: str, content: Content) -> None:
        """Send the Content to all subscribers, and retain it if its publisher requests that."""
        properties = by_user(writer.grant.user, content.table, "retained")
        self.fan_out(resource, properties, content.body)
        if table.members(content.table, "retain").get("retain") is True:
            if content.body:
                self._retained[resource] = (table.with_members(properties, {"retained": True}), content.body)
            else:
                self._retained.pop(resource, None)
        writer.confirm(content.sequence)

    def reset(self) -> None:
        """Forget subscribers and retained values."""
        super().reset()
        self._retained.clear()


def by_user(user: str, properties: bytes, *unwanted: str) -> bytes:
    """Return properties without those that are the broker's, and with the name of the writer if there is one."""
    kept = table.without_members(properties, "user-id", *unwanted)
    return table.with_members(kept, {"user-id": user}) if user else kept
