"""The endpoint of topics: messages as they are published, as server-sent events.

Rules:
- Each message is an event with a JSON object: ``topic``, the body as ``text`` or in ``base64``, and ``headers`` if it
  has any that are text.
- A reader that does not read misses messages; the next one that it gets has their number as ``missed``.
- The topics of the broker itself are not read here: ``/v1/watch`` has the changes of the registry.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from functools import partial

import attrs
import msgspec
from twisted.internet.interfaces import IDelayedCall, IReactorTime

from broker.access.principal import forbidden
from broker.core.control import as_text
from broker.core.errors import Reason, Refusal
from broker.core.interfaces import ITopics
from broker.core.model import MAX_TEXT, is_own
from broker.rest.http_endpoint import Call, Endpoint
from broker.rest.messages import Outlet, Stream
from broker.rest.problem import Problem

MAX_READERS = 1_000
"""Readers of topics over HTTP: as many as watchers of events."""

KEEP_ALIVE = 15.0
"""Seconds between comments to a reader: proxies close connections that are quiet for half a minute or more."""


@attrs.define(eq=False)
class _TopicReader:
    """A reader. ``missed`` is the number of messages that it has not been sent since the last one that it was."""

    outlet: Outlet
    missed: int = 0


class TopicStreams:
    """The readers, as an outlet of topics: see `broker.core.interfaces.Outlet`."""

    def __init__(self, topics: ITopics, clock: IReactorTime) -> None:
        self._topics = topics
        self._clock = clock
        self._readers: dict[_TopicReader, bytes] = {}
        self._call: IDelayedCall | None = None

    def add(self, topic: bytes, payer: str, outlet: Outlet) -> Callable[[], None]:
        """Add a reader. Returns the function that removes it."""
        reader = _TopicReader(outlet)
        try:
            self._readers[reader] = self._topics.subscribe(topic, self, reader, payer)
        except Refusal as refusal:
            # The stream has begun: its status is 200.
            outlet.write(b"event: problem\ndata: %b\n\n" % msgspec.json.encode({"detail": refusal.text}))
            outlet.close()
            return lambda: None
        outlet.write(b":\n\n")
        if self._call is None:
            self._call = self._clock.callLater(KEEP_ALIVE, self._keep_alive)
        return partial(self.remove, reader)

    def remove(self, reader: _TopicReader) -> None:
        """Remove a reader. Idempotent."""
        topic = self._readers.pop(reader, None)
        if topic is not None:
            self._topics.unsubscribe(topic, self, reader)

    @property
    def full(self) -> bool:
        """True if there is no room for another reader."""
        return len(self._readers) >= MAX_READERS

    def stop(self) -> None:
        """End all streams."""
        if self._call is not None:
            self._call.cancel()
            self._call = None
        for reader in list(self._readers):
            self.remove(reader)
            reader.outlet.close()

    def deliver(
        self, subscribers: Collection[_TopicReader], topic: bytes, headers: Sequence[bytes], body: Sequence[bytes]
    ) -> None:
        """Send a message to its readers."""
        about = msgspec.json.encode(_message(topic, headers, b"".join(map(bytes, body))))
        data = b"data: %b\n\n" % about
        for reader in subscribers:
            if reader.outlet.behind:
                reader.missed += 1
            elif reader.missed:
                reader.outlet.write(b'data: {"missed":%d,%b\n\n' % (reader.missed, about[1:]))
                reader.missed = 0
            else:
                reader.outlet.write(data)

    def _keep_alive(self) -> None:
        self._call = self._clock.callLater(KEEP_ALIVE, self._keep_alive) if self._readers else None
        for reader in self._readers:
            if not reader.outlet.behind:
                reader.outlet.write(b":\n\n")


def _message(topic: bytes, headers: Sequence[bytes], body: bytes) -> dict[str, object]:
    text, base64 = as_text(body)
    message: dict[str, object] = {"topic": topic.decode(errors="replace")}
    message |= {"text": text} if text is not None else {"base64": base64}
    pairs = zip(headers[::2], headers[1::2], strict=False)
    shown = {as_text(bytes(name))[0]: as_text(bytes(value))[0] for name, value in pairs}
    found = {name: value for name, value in shown.items() if name is not None and value is not None}
    return {**message, "headers": found} if found else message


def topic_endpoints(streams: TopicStreams) -> list[Endpoint]:
    """Return the endpoint."""

    def read(call: Call) -> Stream:
        name = call.path["topic"]
        topic = name.encode("utf-8", "surrogateescape")
        if len(name) > MAX_TEXT:
            raise Refusal(Reason.PARAMETER, f"the name of a topic has more than {MAX_TEXT} characters")
        if is_own(topic):
            raise Refusal(Reason.FORBIDDEN, "the topic is the broker's own: /v1/watch has the changes of the registry")
        if not call.grants.may("subscribe", name, "topic"):
            raise forbidden(call.principal, "subscribe", name)
        if streams.full:
            raise Problem(503, f"there are {MAX_READERS} readers already", Reason.LIMIT, [("Retry-After", "10")])
        payer = "" if call.principal.name else call.request.address
        return Stream(partial(streams.add, topic, payer), headers=[("Cache-Control", "no-store")])

    return [
        Endpoint(
            "GET",
            "/v1/topics/{topic}/messages",
            "read_topic",
            "Sends the messages of a topic as they are published, as server-sent events.",
            read,
            operation="subscribe",
            by_name=True,
            tag="events",
        )
    ]
