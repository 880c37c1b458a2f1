"""The input of one connection, handled in steps by the scheduler (`scheduler.py`).

A transport that is not a line protocol mixes `Scheduled` into its Twisted protocol: `dataReceived` gives the bytes to
`take`, and ``steps`` is a generator that handles them, one request or frame for each value that it yields.

Rules:
- Nothing is handled outside a quantum. After each step the quantum may be over; what is left waits for the next.
- While bytes wait, the transport is not read from, so that a connection holds no more than one read.
- While a connection is *held up* (its peer does not read, or a request waits for its answer) it has no turn.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from broker.net.scheduler import Turns

COSTLY, STRIKES = 0.001, 3
"""Seconds that a quantum of an ordinary peer does not take, and how often that may happen."""

SLICE = 512
"""Bytes given to a parser of another library in one step: a few requests or frames, some 100 µs at most."""


class Scheduled:
    """The input of one connection. The class it is mixed into gives ``host`` and ``abort``; its ``factory``
    has ``turns``, ``complaints`` and ``wire``.
    """

    factory: Any
    host: str
    """The address of the peer."""
    stranger = False
    """The peer has not authenticated: see `Turns.serve`."""

    # Class attributes: most connections never change them, which makes an idle one small.
    _rest: Iterator[Any] | None = None  # what was read and is still to be handled
    _held = b""  # what a transport delivered although it was told to stop reading
    _queued = False  # will be served in the next turns
    _stopped_reading = False
    _strikes = 0  # how often of late serving it took long

    @property
    def turns(self) -> Turns:
        """The scheduler."""
        turns: Turns = self.factory.turns
        return turns

    @property
    def lane(self) -> object:
        """The listener."""
        return self.factory

    def steps(self, data: bytes) -> Iterator[Any]:
        """Handle ``data``, one step for each value that is yielded."""
        raise NotImplementedError

    def held_up(self) -> bool:
        """True if nothing may be handled now; `go_on` is called when that is over."""
        raise NotImplementedError

    def pause_reading(self) -> None:
        """Tell the transport to read no more for now."""
        raise NotImplementedError

    def resume_reading(self) -> None:
        """Tell the transport to read on."""
        raise NotImplementedError

    def failed(self) -> None:
        """A step raised the exception that is being handled: a defect of ours, logged within bounds."""
        self.factory.complaints.failed(self.factory.wire, self.host)

    def done(self) -> None:
        """All that was read has been handled; the transport is read from again."""

    def abort(self) -> None:
        """Close at once."""
        raise NotImplementedError

    def flush(self) -> None:
        """Write what was gathered: a transport that gathers nothing has nothing to do."""

    # from the transport

    def take(self, data: bytes, ordinary: bool = True) -> None:
        """Bytes were read: have them handled in the connection's turn, at once where it may be."""
        if self._rest is not None:
            self._held += data
            self._stop_reading()
            return
        self._rest = self.steps(data)
        if self.held_up():
            self._stop_reading()
            return
        self._queued = True
        self.turns.serve(self, ordinary and self._strikes < STRIKES, self.stranger)
        if self._rest is not None:
            self._stop_reading()

    def go_on(self) -> None:
        """Nothing holds the connection up any more."""
        if self._rest is None:
            self._read_on()
        elif not self._queued:
            self._queued = True
            self.turns.serve_later(self)

    def drop(self) -> None:
        """Handle nothing more of what was read."""
        self._rest = None
        self._held = b""

    # from the scheduler

    def serve(self) -> bool:
        """Handle what was read until the quantum is over. Returns True if there is more that may be handled."""
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
        """Take note of the time of a quantum. Other load may have caused a single long one: only a habit counts."""
        if seconds > COSTLY:
            self._strikes = min(self._strikes + 1, 2 * STRIKES)
        elif self._strikes:
            self._strikes -= 1

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
    """``data`` in pieces of `SLICE` bytes."""
    return (data[at : at + SLICE] for at in range(0, len(data), SLICE))
