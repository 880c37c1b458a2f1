"""Watches of etcd: one connection for each, whose lines become calls of the watcher.

A line is one message. A message whose ``fragment`` is True is continued by the next one: then the events of its last
revision are held back, since the next message may have more of that revision.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from twisted.internet.defer import Deferred
from twisted.internet.protocol import Protocol, connectionDone
from twisted.logger import Logger
from twisted.python.failure import Failure
from zope.interface import implementer

from broker.cluster.etcd.codec import Message, Unintelligible, message, watch_request
from broker.cluster.etcd.connections import Endpoint
from broker.cluster.etcd.etcd_interface import Denied, Ended, EtcdError, Event, IEtcdWatch, Watcher

MAX_LINE = 16 * 1024 * 1024
"""Bytes of one line. etcd begins a new fragment at 2 MiB of events, which may be 3 MiB of JSON, and the last event of
one may have 1.5 MiB more."""

MAX_HELD = 1_000_000
"""Events of one revision that are held back until it is complete: the end of a lease deletes all its keys in one
revision, and a cluster of brokers has fewer keys."""

CREATED = 3.0
"""Seconds within which etcd confirms a watch: it does so at once."""

NO_TOKEN = ("Unauthenticated", "user name is empty")
"""Parts of the reasons with which etcd cancels a watch for want of a valid token; the HTTP status is 200."""

T = TypeVar("T")


@implementer(IEtcdWatch)
class Watch:
    """One watch at an endpoint.

    ``present`` returns the present revision of etcd, by a linearizable read: it is asked when the endpoint is behind
    the start revision, since etcd accepts a revision of the future and says nothing then. ``finished`` is called once,
    before `Watcher.ended`, with this watch, and with True if the endpoint failed.
    """

    log = Logger()

    def __init__(
        self,
        reactor: Any,
        endpoint: Endpoint,
        watched: tuple[bytes, bytes, int],
        watcher: Watcher,
        present: Callable[[], Coroutine[Any, Any, int]],
        finished: Callable[[Watch, bool], object],
    ) -> None:
        self.endpoint = endpoint
        self._key, self._end, self._start = watched
        self._watcher = watcher
        self._present = present
        self._finished = finished
        self._over = False
        self._again = False
        """True after a token was refused."""
        self._held: list[Event] = []
        self._confirmation = reactor.callLater(CREATED, self._silent)
        self._tasks: list[Deferred[Any]] = []
        self._lines: _Lines | None = None
        # Not before the caller has this object.
        self._begin = reactor.callLater(0, self._open)

    def cancel(self) -> None:
        """End the watch; the watcher is not called any more. Idempotent."""
        self._finish(failed=False)

    def fail(self, text: str) -> None:
        """End the watch, as a failed one."""
        self._ended(Ended.FAILED, text)

    def _open(self) -> None:
        self._lines = lines = _Lines(self._line, self._lost)
        request = watch_request(self._key, self._end, self._start)
        self._run(self.endpoint.stream(request), lambda response: response.deliverBody(lines))

    def _line(self, line: bytes) -> None:
        try:
            self._message(message(line))
        except Unintelligible as error:
            self._ended(Ended.FAILED, f"{self.endpoint.url} does not answer as etcd does: {error}")

    def _message(self, message: Message) -> None:
        if message.canceled:
            self._canceled(message)
            return
        if message.created:
            if self._confirmation.active():
                self._confirmation.cancel()
            # Only a start that is later than the next revision is in the future; 0 is the present one.
            if message.revision + 1 < self._start:
                self._run(self._present(), self._check)
        events = [*self._held, *message.events]
        self._held = []
        if message.fragment and events:
            first = len(events)
            while first and events[first - 1].revision == events[-1].revision:
                first -= 1
            self._held = events[first:]
            if len(self._held) > MAX_HELD:
                self._ended(Ended.FAILED, f"{self.endpoint.url} sends more than {MAX_HELD} events of one revision")
                return
            events = events[:first]
        if events:
            self._watcher.events(events[-1].revision, events)

    def _canceled(self, message: Message) -> None:
        if message.compacted:
            text = f"revision {self._start} was compacted by etcd, which has those from {message.compacted} on"
            self._ended(Ended.COMPACTED, text)
        elif any(each in message.reason for each in NO_TOKEN) and self.endpoint.forget_token() and not self._again:
            self._again = True
            if self._lines is not None:
                self._lines.abort()
            self._open()
        elif any(each in message.reason for each in ("PermissionDenied", *NO_TOKEN)):
            self._ended(Ended.DENIED, f"etcd at {self.endpoint.url} refuses the watch: {message.reason}")
        else:
            text = message.reason or "without a reason"
            self._ended(Ended.FAILED, f"etcd at {self.endpoint.url} canceled the watch: {text}")

    def _check(self, present: int) -> None:
        """End the watch if its start is in the future of the whole cluster, and not only of a member that is behind."""
        if present + 1 < self._start:
            text = f"revision {self._start} is in the future of etcd, which is at {present}: its data were replaced"
            self._ended(Ended.COMPACTED, text)

    def _silent(self) -> None:
        self._ended(Ended.FAILED, f"etcd at {self.endpoint.url} does not confirm the watch within {CREATED:g} s")

    def _lost(self, text: str) -> None:
        self._ended(Ended.FAILED, f"{self.endpoint.url} {text}")

    def _ended(self, reason: Ended, text: str) -> None:
        if not self._over:
            self._finish(failed=reason is Ended.FAILED)
            self._watcher.ended(reason, text)

    def _finish(self, failed: bool) -> None:
        if self._over:
            return
        self._over = True
        self._held = []
        for timer in (self._begin, self._confirmation):
            if timer.active():
                timer.cancel()
        # After `canceled` etcd keeps the connection, silent: it is closed here.
        if self._lines is not None:
            self._lines.abort()
        for each in list(self._tasks):
            each.cancel()
        self._finished(self, failed)

    def _run(self, request: Coroutine[Any, Any, T], then: Callable[[T], object]) -> None:
        """Call ``then`` with the result of a request, unless the watch has ended by then."""
        running = Deferred.fromCoroutine(request)
        self._tasks.append(running)

        def done(result: T | Failure) -> None:
            self._tasks.remove(running)
            if self._over:
                return
            if not isinstance(result, Failure):
                then(result)
            elif isinstance(result.value, Denied):
                self._ended(Ended.DENIED, str(result.value))
            elif isinstance(result.value, EtcdError):
                self._ended(Ended.FAILED, str(result.value))
            else:
                self.log.failure("a request of a watch failed", result)
                self._ended(Ended.FAILED, "a request of the watch failed by a defect, which the log has")

        running.addBoth(done)


class _Lines(Protocol):
    """The body of a watch, split into lines. The parts of a line are kept in a list: it may have megabytes."""

    def __init__(self, receive: Callable[[bytes], object], lost: Callable[[str], object]) -> None:
        self._receive, self._lost = receive, lost
        self._parts: list[bytes] = []
        self._size = 0
        self._over = False

    def connectionMade(self) -> None:
        if self._over:
            self._close()

    def dataReceived(self, data: bytes) -> None:
        *complete, rest = data.split(b"\n")
        for line in complete:
            if self._over:
                return
            whole = b"".join([*self._parts, line])
            self._parts, self._size = [], 0
            if whole:
                self._receive(whole)
        if self._over:
            return
        self._size += len(rest)
        if self._size > MAX_LINE:
            self._lost(f"sends a line of more than {MAX_LINE} bytes in a watch")
        elif rest:
            self._parts.append(rest)

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        if not self._over:
            self._lost("ended the watch")

    def abort(self) -> None:
        """Close the connection; nothing is received any more."""
        self._over = True
        self._parts = []
        self._close()

    def _close(self) -> None:
        if self.transport is not None:
            self.transport.stopProducing()  # type: ignore[attr-defined]
