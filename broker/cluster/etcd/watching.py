"""Watches of etcd: one connection for each, whose lines become calls of the watcher.

A line is one message. The end of a lease deletes all its keys in one revision, in a line of megabytes, which is cut
between two events wherever `PIECE` bytes have come: each piece is a message that is continued by the next one, as its
``fragment`` says. Events are decoded and passed on as background work (`broker.core.turns`); while some wait for the
next turn of the reactor, nothing more is read.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IDelayedCall
from twisted.internet.protocol import Protocol, connectionDone
from twisted.logger import Logger
from twisted.python.failure import Failure
from zope.interface import implementer

from broker.cluster.etcd.codec import Message, Unintelligible, event, message, watch_request
from broker.cluster.etcd.connections import Endpoint
from broker.cluster.etcd.etcd_interface import Denied, Ended, EtcdError, IEtcdWatch, Watcher
from broker.core.turns import Turns

MAX_LINE = 16 * 1024 * 1024
"""Bytes of a line, or a piece of one, that cannot be cut: the largest event has some 2 MiB."""

PIECE = 256 * 1024
"""Bytes of a line after which it is cut: 2,000 deletions, which take half a millisecond to decode."""

EVENTS, BETWEEN = b'"events":[', b"}},{"
"""Octets before the events of a message, and between two of them. None is within one: keys and values are in base64."""

CUT, CONTINUED = b'}}],"fragment":true}}', b'{"result":{"events":[{'
"""End of a piece of a line, and beginning of the next one."""

STEP = 10
"""Events that are passed on together: a millisecond for registrations that are put and mirrored."""

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
        turns: Turns,
        endpoint: Endpoint,
        watched: tuple[bytes, bytes, int],
        watcher: Watcher,
        present: Callable[[], Coroutine[Any, Any, int]],
        finished: Callable[[Watch, bool], object],
    ) -> None:
        self.endpoint = endpoint
        self._reactor = reactor
        self._turns = turns
        self._key, self._end, self._start = watched
        self._watcher = watcher
        self._present = present
        self._finished = finished
        self._over = False
        self._again = False
        """True after a token was refused."""
        self._waiting: deque[bytes] = deque()
        """Lines that follow the present one, as many as one read has had."""
        self._message: Message | None = None
        """The message whose events are passed on, from the one of number `_next`."""
        self._next = 0
        self._slice: IDelayedCall | None = None
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
        self._waiting.append(line)
        if self._slice is None:
            self._work()

    def _work(self) -> None:
        self._slice = None
        try:
            with self._turns:
                while not self._over and (self._message is not None or self._waiting):
                    if self._message is None:
                        self._begin_message(message(self._waiting.popleft()))
                    else:
                        self._pass_on(self._message)
                    if (self._message is not None or self._waiting) and self._turns.over():
                        self._slice = self._reactor.callLater(0, self._work)
                        break
        except Unintelligible as error:
            self._ended(Ended.FAILED, f"{self.endpoint.url} does not answer as etcd does: {error}")
        if self._lines is not None and not self._over:
            self._lines.pause(self._slice is not None)

    def _begin_message(self, message: Message) -> None:
        if message.canceled:
            self._canceled(message)
            return
        if message.created:
            if self._confirmation.active():
                self._confirmation.cancel()
            # Only a start that is later than the next revision is in the future; 0 is the present one.
            if message.revision + 1 < self._start:
                self._run(self._present(), self._check)
        if message.events:
            self._message, self._next = message, 0

    def _pass_on(self, message: Message) -> None:
        """Pass on the next events of a message."""
        first, self._next = self._next, self._next + STEP
        events = tuple(map(event, message.events[first : self._next]))
        more = self._next < len(message.events)
        if not more:
            self._message = None
        # The next one may be of the same revision.
        whole = events[-1].revision - (more or message.fragment)
        self._watcher.events(whole, events)

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
        self._message = None
        self._waiting.clear()
        for timer in (self._begin, self._confirmation, self._slice):
            if timer is not None and timer.active():
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
        self._uncut = 0
        """Bytes of the present line that have no end of an event to cut at."""
        self._over = self._paused = False

    def connectionMade(self) -> None:
        if self._over:
            self._close()

    def dataReceived(self, data: bytes) -> None:
        *complete, rest = data.split(b"\n")
        for line in complete:
            if self._over:
                return
            whole = b"".join([*self._parts, line])
            self._parts, self._size, self._uncut = [], 0, 0
            if whole:
                self._receive(whole)
        if self._over:
            return
        self._size += len(rest)
        if self._size > MAX_LINE:
            self._lost(f"sends a line of more than {MAX_LINE} bytes in a watch")
        elif rest:
            self._parts.append(rest)
            if self._size >= max(PIECE, 2 * self._uncut):
                self._cut()

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        if not self._over:
            self._lost("ended the watch")

    def pause(self, paused: bool) -> None:
        """Read nothing more, or read on. Idempotent."""
        if paused is not self._paused and self.transport is not None:
            self._paused = paused
            self.transport.pauseProducing() if paused else self.transport.resumeProducing()  # type: ignore[attr-defined]

    def _cut(self) -> None:
        """Pass on the events that have come of a long line."""
        text = b"".join(self._parts)
        end = text.rfind(BETWEEN)
        if end < 0 or text.find(EVENTS, 0, end) < 0:
            self._parts, self._uncut = [text], self._size
            return
        rest = CONTINUED + text[end + len(BETWEEN) :]
        self._parts, self._size, self._uncut = [rest], len(rest), 0
        self._receive(text[:end] + CUT)

    def abort(self) -> None:
        """Close the connection; nothing is received any more."""
        self._over = True
        self._parts = []
        self._close()

    def _close(self) -> None:
        if self.transport is not None:
            self.transport.stopProducing()  # type: ignore[attr-defined]
