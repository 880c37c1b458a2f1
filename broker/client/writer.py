"""A flow of Contents from the client.

Rules:
- Where the lease is for several resources, or for all, a Content names one; it names only what the lease is for (else
  ValueError).
- Where Contents are confirmed, `Writer.send` gives a Deferred of the Confirm. It fails with `Rejected`, or with
  `Unsettled` when the flow is lost before: nobody knows then. With ``again`` the client sends the Content once more:
  after a pause when the broker had no room for it, and by the next flow when one is lost. So it may arrive twice.
- A limited number of Contents waits for Confirms, of limited size; when there are so many, no more is taken (`Full`).
- Where they are not confirmed a Content is gone when it is handed over; while there is no flow it is refused (`Down`).
- Confirms and Rejects of what is not outstanding are ignored.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence

from twisted.internet.defer import Deferred, fail, succeed
from twisted.internet.interfaces import IDelayedCall, IReactorTime
from twisted.python.failure import Failure

from broker.client.errors import Closed, Down, Full, Refused, Rejected, Unsettled
from broker.client.flow import Event, Part
from broker.client.settings import Settings
from broker.wires.mtl.codec import client as requests
from broker.wires.mtl.codec import data as wire
from broker.wires.mtl.codec import table
from broker.wires.mtl.codec.control import Confirm

MAX_FLOWS = 10
"""Flows by which one Content may be sent. One that so many flows did not survive may be the cause of that: a broker
cuts the connection over what is too large for it."""


class _Content:
    """A Content that is not settled."""

    __slots__ = ("body", "done", "flows", "pause", "rejected", "tail")

    def __init__(self, tail: bytes, body: bytes) -> None:
        self.tail = tail
        self.body = body
        self.done: Deferred[None] = Deferred()
        self.flows = 0
        """By how many flows it was sent."""
        self.rejected = 0
        """How often there was no room for it."""
        self.pause: IDelayedCall | None = None

    @property
    def size(self) -> int:
        return len(self.tail) + len(self.body)


class Writer(Part):
    """A flow of Contents to the broker. ``again``: what is not confirmed is sent again."""

    takes = (wire.Confirm, wire.Reject)

    def __init__(
        self,
        profile: str,
        resources: Sequence[str],
        confirm: Confirm,
        again: bool,
        clock: IReactorTime,
        settings: Settings,
    ) -> None:
        super().__init__(profile, requests.writer(resources, confirm))
        self._clock = clock
        self._settings = settings
        self._resources = tuple(resources)
        self._confirmed = confirm == "full"
        self._again = again
        self._unconfirmed: dict[int, _Content] = {}
        """What was sent, by its sequence; in that order."""
        self._waiting: deque[_Content] = deque()
        """What is to be sent as soon as there is a flow, and room."""
        self._pausing: dict[_Content, None] = {}
        """What is to be sent after a pause."""
        self._bytes = 0
        self._blocked = False
        """The socket has no room."""
        self._hoping: list[Deferred[None]] = []
        self._settling: list[Deferred[None]] = []

    @property
    def outstanding(self) -> int:
        """How many Contents are not settled."""
        return len(self._unconfirmed) + len(self._waiting) + len(self._pausing)

    def send(
        self, body: bytes, resource: str = "", properties: Mapping[str, table.Value] | None = None
    ) -> Deferred[None]:
        """Send a Content. Fires when it is confirmed, or, where that was not agreed, when it is handed over.

        Fails with `Rejected`, `Unsettled`, `Refused`, `Full`, `Down` or `Closed`. Raises ValueError for what cannot be
        sent at all.
        """
        content = _Content(self._tail(resource, properties or {}), body)
        if len(body) > self._settings.max_body:
            raise ValueError(f"a Content has at most {self._settings.max_body} bytes")
        if self.flow.closed:
            return fail(Closed("the flow is closed"))
        if not self._confirmed:
            return self._hand_over(content)
        if not self._has_room():
            return fail(Full(f"{self.outstanding} Contents are not confirmed yet"))
        self._bytes += content.size
        self._waiting.append(content)
        self._flush()
        return content.done

    def room(self) -> Deferred[None]:
        """Fires when there is room for another Content. That holds until somebody else uses it."""
        if self.flow.closed:
            return fail(Closed("the flow is closed"))
        if self._has_room():
            return succeed(None)
        hope: Deferred[None] = Deferred(self._hoping.remove)
        self._hoping.append(hope)
        return hope

    def settled(self) -> Deferred[None]:
        """Fires when everything is settled that was sent so far, and after."""
        if not self.outstanding:
            return succeed(None)
        settled: Deferred[None] = Deferred(self._settling.remove)
        self._settling.append(settled)
        return settled

    # what is sent

    def _tail(self, resource: str, properties: Mapping[str, table.Value]) -> bytes:
        if not resource and len(self._resources) == 1:
            resource = self._resources[0]
        if not wire.is_name(resource):
            raise ValueError("a Content must name its resource, where the lease is not for one alone")
        if self._resources and resource not in self._resources:
            raise ValueError(f"the lease is not for {resource!r}")
        return wire.make_tail(resource, table.encode(properties))

    def _has_room(self) -> bool:
        if not self._confirmed:
            return self.up and not self._blocked
        return self.outstanding < self._settings.window and self._bytes < self._settings.window_bytes

    def _hand_over(self, content: _Content) -> Deferred[None]:
        """Send what is not confirmed."""
        if not self.up:
            return fail(Down("there is no flow at the moment"))
        if self._blocked or not self.flow.send((wire.content_header(self.flow.next(), content.tail), content.body)):
            self._blocked = True
            return fail(Full("the broker reads too slowly"))
        return succeed(None)

    def _flush(self) -> None:
        """Send what waits, as far as there is room."""
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
        self._hope()

    # the flow

    def on_up(self) -> None:
        self._blocked = False
        self._flush()
        self._hope()

    def on_down(self) -> None:
        lost, self._unconfirmed = self._unconfirmed, {}
        again = [content for content in lost.values() if self._again and content.flows < MAX_FLOWS]
        self._waiting.extendleft(reversed(again))
        for content in lost.values():
            if not self._again or content.flows >= MAX_FLOWS:
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
        hoping, self._hoping = self._hoping, []
        for hope in hoping:
            hope.errback(failure)
        self._tell_settled()

    # answers

    def _confirm(self, confirm: wire.Confirm) -> None:
        for content in self._answered(confirm.sequence, confirm.multiple):
            self._settle(content, None)

    def _reject(self, reject: wire.Reject) -> None:
        for content in self._answered(reject.sequence, reject.multiple):
            if reject.recycle and self._again:
                self._pause(content)
            else:
                self._settle(content, Rejected(reject.recycle))

    def on_refusal(self, sequence: int, code: bytes) -> bool:
        refused = Refused(int(code), "the broker does not take the Content")
        if self._confirmed:
            for content in self._answered(sequence, False):
                self._settle(content, refused)
        else:
            self.counts["refused"] += 1
            self.flow.tell(Event.REFUSED, str(refused))
        return True

    def on_command(self, command: wire.Confirm | wire.Reject) -> None:
        if isinstance(command, wire.Confirm):
            self._confirm(command)
        else:
            self._reject(command)

    def _answered(self, sequence: int, multiple: bool) -> list[_Content]:
        """What that is the answer to."""
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
        """There was no room for it now."""
        settings = self._settings
        pause = min(settings.least_again * 2**content.rejected, settings.most_again)
        # A number that a pause can be computed with, however long it goes on.
        content.rejected = min(content.rejected + 1, 30)
        content.pause = self._clock.callLater(pause, self._once_more, content)
        self._pausing[content] = None

    def _once_more(self, content: _Content) -> None:
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
        self._hope()
        if not self.outstanding:
            self._tell_settled()

    def _tell_settled(self) -> None:
        settling, self._settling = self._settling, []
        for settled in settling:
            settled.callback(None)

    def _hope(self) -> None:
        """Tell those who wait for room, in turn, as long as there is any."""
        while self._hoping and self._has_room():
            self._hoping.pop(0).callback(None)
