"""Writer: a flow of Contents from the client.

Rules:
- Where the lease covers several resources, or all, each Content names its resource, which the lease must cover (else
  ValueError).
- Where Contents are confirmed, `Writer.send` returns a Deferred of the Confirm. It fails with `Rejected`, or with
  `Unsettled` if the flow is lost before: delivery is unknown then. With ``resend`` the client sends the Content again,
  after a delay if the broker had no room, and by the next flow after a loss. So delivery is at least once.
- The number and size of unconfirmed Contents are limited; above the limit Contents are refused (`Full`).
- Without confirmation a Content is settled when the socket has accepted it; while there is no flow it is refused
  (`NotConnected`).
- Confirms and Rejects for Contents that are not outstanding are ignored.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence

from twisted.internet.defer import Deferred, fail, succeed
from twisted.internet.interfaces import IDelayedCall, IReactorTime
from twisted.python.failure import Failure

from broker.client.client_data_flow import Direction
from broker.client.errors import Closed, Full, NotConnected, Refused, Rejected, Unsettled
from broker.client.settings import Event, Settings
from broker.wires.mtl.codec import client_messages as requests
from broker.wires.mtl.codec import data_messages as wire
from broker.wires.mtl.codec import field_table
from broker.wires.mtl.codec.control_messages import Confirm

MAX_FLOWS = 10
"""Flows by which one Content may be sent. A Content that many flows did not survive may be the cause of their losses: a
broker closes the connection over a message that is too large for it."""


class _Content:
    """A Content that is not settled."""

    __slots__ = ("body", "done", "flows", "pause", "rejected", "tail")

    def __init__(self, tail: bytes, body: bytes) -> None:
        self.tail = tail
        self.body = body
        self.done: Deferred[None] = Deferred()
        self.flows = 0
        """Number of flows by which it was sent."""
        self.rejected = 0
        """Number of rejects with recycle."""
        self.pause: IDelayedCall | None = None

    @property
    def size(self) -> int:
        return len(self.tail) + len(self.body)


class Writer(Direction):
    """A flow of Contents to the broker. ``resend``: send unconfirmed Contents again."""

    takes = (wire.Confirm, wire.Reject)

    def __init__(
        self,
        profile: str,
        resources: Sequence[str],
        confirm: Confirm,
        resend: bool,
        clock: IReactorTime,
        settings: Settings,
    ) -> None:
        super().__init__(profile, requests.writer(resources, confirm), resources)
        self._clock = clock
        self._settings = settings
        self._resources = tuple(resources)
        self._confirmed = confirm == "full"
        self._resend = resend
        self._unconfirmed: dict[int, _Content] = {}
        """Sent Contents by sequence, in ascending order."""
        self._waiting: deque[_Content] = deque()
        """Contents to be sent as soon as there is a flow and room in the socket."""
        self._pausing: dict[_Content, None] = {}
        """Contents to be sent after a delay; the values are unused."""
        self._bytes = 0
        self._blocked = False
        """True while the socket has no room."""
        self._room_waiters: list[Deferred[None]] = []
        self._settled_waiters: list[Deferred[None]] = []

    @property
    def outstanding(self) -> int:
        """Number of Contents that are not settled."""
        return len(self._unconfirmed) + len(self._waiting) + len(self._pausing)

    def send(
        self, body: bytes, resource: str = "", properties: Mapping[str, field_table.Value] | None = None
    ) -> Deferred[None]:
        """Send a Content. Fires when it is confirmed, or, without confirmation, when the socket has accepted it.

        Fails with `Rejected`, `Unsettled`, `Refused`, `Full`, `NotConnected` or `Closed`. Raises ValueError for a
        Content that can never be sent, and TypeError for a body of another type.
        """
        # The socket would refuse it each time, and with it all Contents behind it.
        if not isinstance(body, bytes | bytearray | memoryview):
            raise TypeError(f"a body has bytes, not {type(body).__name__}")
        # A copy of what the program may change before it is sent; also of a view that is no contiguous array of bytes.
        body = bytes(body)
        content = _Content(self._tail(resource, properties or {}), body)
        if len(body) > self._settings.max_body:
            raise ValueError(f"the body has {len(body)} bytes, more than {self._settings.max_body}")
        if self.flow.closed:
            return fail(Closed("the flow is closed"))
        if not self._confirmed:
            return self._hand_over(content)
        if not self._has_room():
            return fail(Full(f"{self.outstanding} Contents are unconfirmed"))
        self._bytes += content.size
        self._waiting.append(content)
        self._flush()
        return content.done

    def room(self) -> Deferred[None]:
        """Wait for room for another Content. The room is not reserved."""
        if self.flow.closed:
            return fail(Closed("the flow is closed"))
        if self._has_room():
            return succeed(None)
        waiter: Deferred[None] = Deferred(self._room_waiters.remove)
        self._room_waiters.append(waiter)
        return waiter

    def settled(self) -> Deferred[None]:
        """Wait until all Contents sent so far are settled."""
        if not self.outstanding:
            return succeed(None)
        settled: Deferred[None] = Deferred(self._settled_waiters.remove)
        self._settled_waiters.append(settled)
        return settled

    # output

    def _tail(self, resource: str, properties: Mapping[str, field_table.Value]) -> bytes:
        if not resource and len(self._resources) == 1:
            resource = self._resources[0]
        if not wire.is_name(resource):
            raise ValueError("a Content must name its resource unless the lease covers exactly one")
        if self._resources and resource not in self._resources:
            raise ValueError(f"the lease does not cover {resource!r}")
        return wire.make_tail(resource, field_table.encode(properties))

    def _has_room(self) -> bool:
        if not self._confirmed:
            return self.up and not self._blocked
        return self.outstanding < self._settings.window and self._bytes < self._settings.window_bytes

    def _hand_over(self, content: _Content) -> Deferred[None]:
        """Send a Content without confirmation."""
        if not self.up:
            return fail(NotConnected("there is no flow at the moment"))
        if self._blocked or not self.flow.send((wire.content_header(self.flow.next(), content.tail), content.body)):
            self._blocked = True
            return fail(Full("the broker does not read fast enough"))
        return succeed(None)

    def _flush(self) -> None:
        """Send waiting Contents while there is room."""
        while self.up and self._waiting and not self._blocked:
            content = self._waiting[0]
            sequence = self.flow.next()
            if not self.flow.send((wire.content_header(sequence, content.tail), content.body)):
                self._blocked = True
                return
            self._waiting.popleft()
            content.flows += 1
            self._unconfirmed[sequence] = content

    def on_room(self) -> None:
        self._blocked = False
        self._flush()
        self._grant_room()

    # the flow

    def on_up(self) -> None:
        self._blocked = False
        self._flush()
        self._grant_room()

    def on_down(self) -> None:
        # Unconfirmed Contents go before those that were never sent, so that their order is kept.
        lost, self._unconfirmed = self._unconfirmed, {}
        again = [content for content in lost.values() if self._resend and content.flows < MAX_FLOWS]
        self._waiting.extendleft(reversed(again))
        for content in lost.values():
            if not self._resend or content.flows >= MAX_FLOWS:
                self._settle(content, Unsettled("the flow was lost before the Content was confirmed"))

    def on_end(self, failure: Failure) -> None:
        contents = [*self._unconfirmed.values(), *self._waiting, *self._pausing]
        self._unconfirmed.clear()
        self._waiting.clear()
        self._pausing.clear()
        for content in contents:
            if content.pause is not None:
                content.pause.cancel()
            content.done.errback(failure)
        waiters, self._room_waiters = self._room_waiters, []
        for waiter in waiters:
            waiter.errback(failure)
        self._fire_settled()

    # answers

    def _confirm(self, confirm: wire.Confirm) -> None:
        for content in self._answered(confirm.sequence, confirm.multiple):
            self._settle(content, None)

    def _reject(self, reject: wire.Reject) -> None:
        for content in self._answered(reject.sequence, reject.multiple):
            if reject.recycle and self._resend:
                self._pause(content)
            else:
                self._settle(content, Rejected(reject.recycle))

    def on_refusal(self, sequence: int, code: bytes) -> bool:
        refused = Refused(int(code), "the broker refused the Content")
        if self._confirmed:
            for content in self._answered(sequence, False):
                self._settle(content, refused)
        else:
            self.counts["refused"] += 1
            self.flow.notify(Event.REFUSED, str(refused))
        return True

    def on_command(self, command: wire.Confirm | wire.Reject) -> None:
        if isinstance(command, wire.Confirm):
            self._confirm(command)
        else:
            self._reject(command)

    def _answered(self, sequence: int, multiple: bool) -> list[_Content]:
        """Remove and return the Contents that an answer settles."""
        if multiple:
            numbers = []
            for number in self._unconfirmed:
                if number > sequence:
                    break
                numbers.append(number)
        else:
            numbers = [sequence] if sequence in self._unconfirmed else []
        if not numbers:
            self.counts["answer"] += 1
        return [self._unconfirmed.pop(number) for number in numbers]

    def _pause(self, content: _Content) -> None:
        """Schedule a Content to be sent again after a reject with recycle."""
        settings = self._settings
        pause = min(settings.least_resend_pause * 2**content.rejected, settings.most_resend_pause)
        # The exponent is bounded, or 2**n would grow beyond a float.
        content.rejected = min(content.rejected + 1, 30)
        content.pause = self._clock.callLater(pause, self._resend_now, content)
        self._pausing[content] = None

    def _resend_now(self, content: _Content) -> None:
        content.pause = None
        del self._pausing[content]
        self._waiting.append(content)
        self._flush()

    def _settle(self, content: _Content, error: Exception | None) -> None:
        self._bytes -= content.size
        if error is None:
            content.done.callback(None)
        else:
            content.done.errback(error)
        self._grant_room()
        if not self.outstanding:
            self._fire_settled()

    def _fire_settled(self) -> None:
        waiters, self._settled_waiters = self._settled_waiters, []
        for settled in waiters:
            settled.callback(None)

    def _grant_room(self) -> None:
        """Fire the Deferreds of `room` in order while there is room."""
        while self._room_waiters and self._has_room():
            self._room_waiters.pop(0).callback(None)
