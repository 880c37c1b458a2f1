"""Reply inboxes: one for each reader flow that asked for it, with an address that cannot be guessed.

Rules:
- An inbox is open while its reader has summoned it. Replies to any other are refused.
- A reply that finds no room at its reader waits behind those before it: a bounded number of them, and of bytes. Waiting
  replies are lost when the inbox is closed.
- A reply belongs to the oldest unanswered request with its correlation-id.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

from twisted.internet.defer import Deferred

from broker.core.errors import Reason, Refusal
from broker.net.peer_interfaces import Part, Sent
from broker.wires.mtl.codec.data_messages import make_tail
from broker.wires.mtl.codec.field_table import members
from broker.wires.mtl.profiles.request_dispatch import FAILED, ByteBudget, ServiceRequest
from broker.wires.mtl.sessions.access_policy import Principal
from broker.wires.mtl.sessions.profile_interface import Grant, ProfileReader, payer_of

OVERHEAD = 200
"""Bytes that a waiting reply takes beside its own."""


class ReplyInbox:
    """The inbox of a reader. Its address ends with ``token``."""

    def __init__(self, reader: ProfileReader, token: str, store: ByteBudget, max_backlog: int) -> None:
        self._reader = reader
        self._store = store
        self._payer = payer_of(reader)
        self._max_backlog = max_backlog
        self._names: dict[str, None] = {}
        """Names by which its reader has summoned it: ``reply``, the full address, or both."""
        self._backlog: deque[tuple[bytes, Part]] = deque()
        self._expected: dict[str, dict[int, ServiceRequest]] = {}
        """Unanswered requests, by correlation-id and order."""
        self.token = token

    @property
    def principal(self) -> Principal:
        """The owner of the inbox."""
        return self._reader.grant.principal

    def __len__(self) -> int:
        """Return the number of waiting replies."""
        return len(self._backlog)

    @property
    def expecting(self) -> int:
        """The number of requests without a reply yet."""
        return sum(map(len, self._expected.values()))

    def open(self, name: str) -> None:
        """Open the inbox by a name that its reader has summoned."""
        self._names[name] = None

    def close(self, name: str) -> int:
        """Close the inbox by a name. Returns the number of replies lost."""
        self._names.pop(name, None)
        return 0 if self._names else self.clear()

    def clear(self) -> int:
        """Close the inbox by all names. Returns the number of replies lost."""
        lost = len(self._backlog)
        self._names.clear()
        while self._backlog:
            self._shorten()
        return lost

    # replies

    def post(self, properties: bytes, body: Part) -> None:
        """Send a reply, or let it wait. Raises `Refusal`: UNKNOWN_TARGET without reader, LIMIT if too many wait."""
        if not self._names:
            raise Refusal(Reason.UNKNOWN_TARGET, "the address has no reader")
        # Behind waiting replies, even if there is room by now: replies keep their order.
        if not self._backlog and self._send(properties, body):
            return
        if len(self._backlog) >= self._max_backlog or not self._store.take(_size(properties, body), self._payer):
            raise Refusal(Reason.LIMIT, "too many replies wait")
        self._backlog.append((properties, body))

    def flush(self) -> None:
        """Send waiting replies while its reader has room."""
        while self._backlog and self._send(*self._backlog[0]):
            self._shorten()

    def _send(self, properties: bytes, body: Part) -> bool:
        return self._reader.send(make_tail(next(iter(self._names)), properties), body) is Sent.SENT

    def _shorten(self) -> None:
        self._store.give(_size(*self._backlog.popleft()), self._payer)

    # requests

    def expect(self, request: ServiceRequest) -> None:
        """Expect a reply to a request."""
        self._expected.setdefault(request.correlation, {})[request.order] = request

    def forget(self, request: ServiceRequest) -> None:
        """Expect no reply to a request any more. No-op if none was expected."""
        same = self._expected.get(request.correlation)
        if same is not None and same.pop(request.order, None) is not None and not same:
            del self._expected[request.correlation]

    def expected(self, correlation: str) -> ServiceRequest | None:
        """Return the request that a reply with that correlation-id answers, or None."""
        same: dict[int, Any] = self._expected.get(correlation, {})
        return next(iter(same.values()), None)


class OneReply:
    """A reader of one reply, for a request of the broker itself: see `ProfileReader`.

    ``reply`` fires with the body, or fails with a `Refusal` if the broker sends an error in place of a reply.
    """

    identity, sent, sequence = b"", 0.0, 0

    def __init__(self, grant: Grant, address: str, over: Callable[[], object]) -> None:
        """``over`` is called once when ``reply`` has its result, or was cancelled."""
        self.grant = grant
        self.address = address
        self.place: Any = None
        self.reply: Deferred[bytes] = Deferred()
        self.reply.addBoth(self._over, over)

    def send(self, tail: bytes, body: Part) -> Sent:
        """Take the reply, or the error."""
        if not self.reply.called:
            said: dict[str, Any] = {**members(tail[1 + tail[0] :], "event", "code", "reason")}
            if said.get("event") == "error":
                reason = Reason.FAILED if said.get("code") == FAILED else Reason.UNAVAILABLE
                self.reply.errback(Refusal(reason, f"the request failed: {said.get('reason')}"))
            else:
                self.reply.callback(bytes(body))
        return Sent.SENT

    def _over(self, result: Any, over: Callable[[], object]) -> Any:
        over()
        return result


def _size(properties: bytes, body: Part) -> int:
    return len(properties) + len(body) + OVERHEAD
