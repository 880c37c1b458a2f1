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
from itertools import chain

import attrs
import msgspec
from twisted.internet.interfaces import IReactorTime

from broker.access.principal import forbidden
from broker.core.errors import Reason, Refusal
from broker.core.interfaces import ITopics
from broker.core.model import check_text, is_own
from broker.core.operator_interfaces import topic_message
from broker.rest.http_endpoint import Call, Endpoint
from broker.rest.messages import PIECE, KeepAlive, Outlet, Stream, StreamReader, in_steps
from broker.rest.problem import Problem

MAX_READERS = 1_000
"""Readers of topics over HTTP: as many as watchers of events."""


@attrs.define(eq=False)
class _TopicReader(StreamReader):
    """A reader. ``missed`` is the number of messages that were not sent to it since the last one that was."""

    missed: int = 0

    def send(self, message: dict[str, object], about: bytes, size: int) -> None:
        """Send a message: ``about``, or b"" for a long one, of that size, which is encoded in steps."""
        if about:
            self.outlet.write(b"data: %b\n\n" % about)
        else:
            self.outlet.write_in_steps(chain((b"data: ",), in_steps(message), (b"\n\n",)), size)


class TopicStreams:
    """The readers, as an outlet of topics: see `broker.core.interfaces.Outlet`."""

    def __init__(self, topics: ITopics, clock: IReactorTime) -> None:
        self._topics = topics
        self._clock = clock
        self._readers: dict[_TopicReader, bytes] = {}
        self._keep_alive = KeepAlive(clock, self._readers, lambda reader: reader.outlet.write(b":\n\n"))

    def add(self, topic: bytes, payer: str, outlet: Outlet) -> Callable[[], None]:
        """Add a reader. Returns the function that removes it."""
        reader = _TopicReader(outlet, self._clock.seconds())
        try:
            self._readers[reader] = self._topics.subscribe(topic, self, reader, payer)
        except Refusal as refusal:
            # The stream has begun: its status is 200.
            outlet.write(b"event: problem\ndata: %b\n\n" % msgspec.json.encode({"detail": refusal.text}))
            outlet.close()
            return lambda: None
        last = self._topics.last(topic)
        if last is None:
            outlet.write(b":\n\n")
        else:
            message = {**topic_message(topic, last.headers, b"".join(last.body)), "retained": True}
            reader.send(message, *_encoded(message, last.headers, last.body))
        self._keep_alive.start()
        return partial(self.remove, reader)

    def remove(self, reader: _TopicReader) -> None:
        """Remove a reader. Idempotent."""
        topic = self._readers.pop(reader, None)
        if topic is not None:
            self._topics.unsubscribe(topic, self, reader)
        if not self._readers:
            self._keep_alive.stop()

    @property
    def full(self) -> bool:
        """True if there is no room for another reader."""
        return len(self._readers) >= MAX_READERS

    def stop(self) -> None:
        """End all streams."""
        for reader in list(self._readers):
            self.remove(reader)
            reader.outlet.close()

    def deliver(
        self, subscribers: Collection[_TopicReader], topic: bytes, headers: Sequence[bytes], body: Sequence[bytes]
    ) -> None:
        """Send a message to its readers."""
        message = topic_message(topic, headers, b"".join(map(bytes, body)))
        about, size = _encoded(message, headers, body)
        now = self._clock.seconds()
        for reader in subscribers:
            if reader.outlet.behind:
                reader.missed += 1
                continue
            reader.written = now
            missed, reader.missed = reader.missed, 0
            if missed:
                shown = about and b'{"missed":%d,%b' % (missed, about[1:])
                reader.send({"missed": missed, **message}, shown, size)
            else:
                reader.send(message, about, size)


def _encoded(message: dict[str, object], headers: Sequence[bytes], body: Sequence[bytes]) -> tuple[bytes, int]:
    """Return the text of a message, b"" for a long one, and its size."""
    size = sum(map(len, headers)) + sum(map(len, body))
    return b"" if size > PIECE else msgspec.json.encode(message), size


def topic_endpoints(streams: TopicStreams) -> list[Endpoint]:
    """Return the endpoint."""

    def read(call: Call) -> Stream:
        name = call.path["topic"]
        topic = name.encode("utf-8", "surrogateescape")
        check_text("the name of a topic", name)
        if is_own(topic):
            raise Refusal(Reason.FORBIDDEN, "the topic is the broker's own: /v1/watch has the changes of the registry")
        if not call.grants.may("subscribe", name, "topic"):
            raise forbidden(call.principal, "subscribe", name)
        if streams.full:
            raise Problem(503, f"there are {MAX_READERS} readers already", Reason.LIMIT, [("Retry-After", "10")])
        return Stream(partial(streams.add, topic, call.principal.payer), headers=[("Cache-Control", "no-store")])

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
