"""Scheduled input of one connection: handled in steps by the scheduler (`scheduler.py`).

A transport other than a line protocol mixes `Scheduled` into its Twisted protocol: `dataReceived` passes the bytes to
`take`, and ``steps`` is a generator that handles them and yields after each request or frame.

Rules:
- Input is handled within a quantum only. The quantum may end after each step; the rest waits for the next one.
- Backpressure: while bytes wait, the transport is paused, so that a connection holds at most one read.
- A connection is *held up* while its peer does not read, or a request waits for its answer. It is not served then.

Taps: copies of the messages of one connection, for a trace.

A tap replaces the reader and the output list of a connection by ones that report what passes. For a connection without
a tap there is neither a check nor a call, so that it costs nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, Literal

from broker.net.peer_interfaces import MessageReader
from broker.net.scheduler import Scheduler

Direction = Literal["in", "out"]

Seen = Callable[[Direction, Any], object]
"""Called with each item: one that the reader decoded, or the octets of one message that is sent."""


class TappedReader:
    """A reader that reports each item of ``inner`` before it is handled."""

    def __init__(self, inner: MessageReader, seen: Seen) -> None:
        self.inner = inner
        self._seen = seen

    @property
    def pending(self) -> int:
        """See `MessageReader`."""
        return self.inner.pending

    def feed(self, data: bytes) -> Iterator[Any]:
        """See `MessageReader`."""
        for item in self.inner.feed(data):
            if item is not None:
                self._seen("in", item)
            yield item


class TappedOutput(list[bytes]):
    """A list of output that reports each message that is appended."""

    def __init__(self, output: Iterable[bytes], seen: Seen) -> None:
        super().__init__(output)
        self._seen = seen

    def append(self, data: bytes) -> None:
        """Append a message."""
        self._seen("out", data)
        super().append(data)


COSTLY, STRIKES = 0.001, 3
"""Seconds beyond which a quantum of an ordinary peer counts as a strike, and the number of strikes that end that
status."""

SLICE = 512
"""Bytes per step for a third-party parser: a few requests or frames, some 100 µs at most."""


class Scheduled:
    """Scheduled input of one connection. The concrete class provides ``host`` and ``abort``; its ``factory`` has
    ``turns``, ``refusal_log`` and ``wire``."""

    factory: Any
    host: str
    """The address of the peer."""
    costly = COSTLY
    """Seconds beyond which a quantum is a strike."""
    # Class attributes as defaults: an idle connection has no instance entries for them, which saves memory.
    _rest: Iterator[Any] | None = None  # the unfinished iterator of the last read
    _held = b""  # bytes that a transport delivered after its pause
    _queued = False  # in a queue of the scheduler
    _stopped_reading = False
    strikes = 0
    """Recent quanta that took long; see `took`."""
    served = False
    """True once a whole message or request of the peer was handled."""
    _number = 0  # of the conversation, once something is logged about it

    @property
    def conversation(self) -> str:
        """The id of the conversation in log lines: the wire, and a number that no other connection of the process has.

        It is made when it is first needed: most connections are never logged about.
        """
        if not self._number:
            self._number = self.turns.number_conversation()
        return f"{self.factory.wire}-{self._number}"

    @property
    def turns(self) -> Scheduler:
        """The scheduler."""
        turns: Scheduler = self.factory.turns
        return turns

    @property
    def stranger(self) -> bool:
        """True before the first message or request, and before authentication where there is one: see
        `Scheduler.serve`."""
        return not self.served

    @property
    def lane(self) -> object:
        """The listener."""
        return self.factory

    def steps(self, data: bytes) -> Iterator[Any]:
        """Handle ``data``, and yield after each step."""
        raise NotImplementedError

    def held_up(self) -> bool:
        """Return True while no input may be handled; the subclass calls `go_on` afterwards."""
        raise NotImplementedError

    def pause_reading(self) -> None:
        """Pause the transport's reads."""
        raise NotImplementedError

    def resume_reading(self) -> None:
        """Resume the transport's reads."""
        raise NotImplementedError

    def failed(self) -> None:
        """Log the current exception of a step, within the rate limit."""
        self.factory.refusal_log.failed(self.factory.wire, self.host, self)

    def done(self) -> None:
        """Hook: all input was handled, and the transport is read from again."""

    def abort(self) -> None:
        """Close at once."""
        raise NotImplementedError

    def flush(self) -> None:
        """Write gathered output. No-op here: nothing is gathered."""

    # from a trace

    def tap(self, seen: Seen) -> None:
        """Report all input to ``seen`` until `untap`. Idempotent. A protocol with messages reports those instead.

        The tap shadows `steps` in this one object: without it, input costs nothing more.
        """

        def steps(data: bytes) -> Iterator[Any]:
            seen("in", data)
            return type(self).steps(self, data)

        self.__dict__["steps"] = steps

    def untap(self) -> None:
        """Stop the reports. No-op without a tap."""
        self.__dict__.pop("steps", None)

    # from the transport

    def take(self, data: bytes, ordinary: bool = True) -> None:
        """Accept bytes from the transport, and handle them in the connection's turn, which may be now."""
        if self._rest is not None:
            self._held += data
            self._stop_reading()
            return
        self._rest = self.steps(data)
        if self.held_up():
            self._stop_reading()
            return
        self._queued = True
        self.turns.serve(self, ordinary and self.strikes < STRIKES, self.stranger)
        if self._rest is not None:
            self._stop_reading()

    def go_on(self) -> None:
        """Continue after a hold-up."""
        if self._rest is None:
            self._read_on()
        elif not self._queued:
            self._queued = True
            self.turns.serve_later(self)

    def drop(self) -> None:
        """Discard all unhandled input."""
        self._rest = None
        self._held = b""

    # from the scheduler

    def serve(self) -> bool:
        """Handle input until the quantum ends. Returns True if more may be handled."""
        rest = self._rest
        if rest is None or self.held_up():
            self._queued = False
            return False
        over = self.turns.over
        try:
            for _ in rest:
                if self._rest is None or self.held_up() or over():
                    break
            else:
                self._rest = self.steps(self._held) if self._held else None
                self._held = b""
        except Exception:
            self.drop()
            self._queued = False
            self.failed()
            self.abort()
            return False
        if self._rest is None:
            self._queued = False
            self._read_on()
            self.done()
            return False
        self._stop_reading()
        self._queued = not self.held_up()
        return self._queued

    def took(self, seconds: float) -> None:
        """Record the duration of a quantum: its CPU time, as far as it is measured (`Scheduler`).

        Other load may have caused a single long one: only repetition counts.
        """
        if seconds > self.costly:
            self.strikes = min(self.strikes + 1, 2 * STRIKES)
        elif self.strikes:
            self.strikes -= 1

    # inside

    def _stop_reading(self) -> None:
        if not self._stopped_reading:
            self._stopped_reading = True
            self.pause_reading()

    def _read_on(self) -> None:
        if self._stopped_reading:
            self._stopped_reading = False
            self.resume_reading()


def sliced(data: bytes) -> Iterator[bytes]:
    """Return ``data`` in pieces of `SLICE` bytes."""
    return (data[at : at + SLICE] for at in range(0, len(data), SLICE))
