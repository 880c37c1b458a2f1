"""Readiness: the reasons for which the daemon is not ready to serve, and those for which it is degraded; and the drain.

The readiness probe over HTTP, the console, metrics and notifications ask here. A part that is off by its configuration
is no obstacle. A *degraded* daemon serves its peers, and so is ready: the reason, such as an etcd that is away,
concerns all brokers of a cluster alike, and a load balancer must not take all of them out of service.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from twisted.internet.interfaces import IDelayedCall, IReactorTime
from twisted.logger import Logger

from broker.core.control import Drain, DrainState
from broker.core.errors import Reason, Refusal
from broker.core.model import Listening, NotReady

STALLED = 1.0
"""Lag of the reactor in seconds, within the last ten, from which the loop counts as stalled: peers that may wait for
50 ms waited twenty times as long."""


class Readiness:
    """The sources of reasons. Each is asked at each call of `reasons`, in the order in which they were added."""

    def __init__(self) -> None:
        self._sources: list[Callable[[], Iterable[NotReady]]] = []
        self._degrading: list[Callable[[], Iterable[NotReady]]] = []

    def add(self, *sources: Callable[[], Iterable[NotReady]]) -> None:
        """Add sources."""
        self._sources += sources

    def add_degrading(self, *sources: Callable[[], Iterable[NotReady]]) -> None:
        """Add sources of reasons for which the daemon is degraded, but ready."""
        self._degrading += sources

    def degraded(self) -> Sequence[NotReady]:
        """Return all present reasons for which the daemon is degraded."""
        return [reason for source in self._degrading for reason in source()]

    def reasons(self) -> Sequence[NotReady]:
        """Return all present reasons; none if the daemon is ready."""
        return [reason for source in self._sources for reason in source()]


def listeners(states: Callable[[], Iterable[Listening]]) -> Iterator[NotReady]:
    """Yield the listeners that are not open."""
    for each in states():
        if each.reason is not None:
            yield NotReady(f"listener {each.name}", each.reason)


def refusing(rows: Iterable[Mapping[str, object]]) -> Iterator[NotReady]:
    """Yield the listeners that refuse new peers, since no peer gives way. ``rows`` are `OpenWire.listener_rows`."""
    return _full(rows, refuses=True)


def crowded(rows: Iterable[Mapping[str, object]]) -> Iterator[NotReady]:
    """Yield the listeners whose idle peers give way to new ones. These are served: it is no obstacle."""
    return _full(rows, refuses=False)


def _full(rows: Iterable[Mapping[str, object]], refuses: bool) -> Iterator[NotReady]:
    for each in rows:
        if "trouble" in each and each["refuses"] is refuses:
            name = " ".join(dict.fromkeys(str(each[key]) for key in ("wire", "name") if each.get(key)))
            yield NotReady(f"listener {name}", f"it is full: {each['trouble']}")


def written(what: str, trouble: str) -> Iterator[NotReady]:
    """Yield the reason for which ``what`` cannot be written to its disk; nothing if ``trouble`` is empty."""
    if trouble:
        yield NotReady(what, trouble)


def loop(lag: float) -> Iterator[NotReady]:
    """Yield the recent stall of the reactor, if there was one of at least `STALLED` seconds."""
    if lag >= STALLED:
        yield NotReady("reactor", f"the loop stalled for {lag:.1f} s within the last ten seconds")


def certificates(expiries: Iterable[tuple[str, float | None]], now: float) -> Iterator[NotReady]:
    """Yield the certificates that have expired. Times are in seconds since the epoch; None is unknown."""
    for name, expires in expiries:
        if expires is not None and expires <= now:
            yield NotReady(f"certificate {name}", "it has expired")


def draining(state: str) -> Iterator[NotReady]:
    """Yield the drain, if there is one."""
    if state != "off":
        yield NotReady("drain", f"the broker sends its peers away, and is {state}")


# The drain: new peers are refused, present ones are sent away, and the daemon waits until all have gone.
#
# States of a drain, and the events that change them:
#
#     state      meaning                                  event: state that follows
#     off        everybody is served                      drain: draining
#     draining   peers were asked to leave                none left: drained; deadline: overdue; undrain: off
#     drained    no peer is left                          undrain: off; drain: draining, with a new deadline
#     overdue    some peers are left after the deadline   none left: drained; undrain: off; drain: draining
#
# Rules:
# - A drain changes nothing else: listeners stay open, the registry and the journal go on, operators are served.
# - A further `drain` sends away those that are left again, and begins the time again.
# - A stop of the daemon during a drain closes the remaining connections as any stop does.

CHECK = 0.5
"""Seconds between two counts of the remaining peers: a count costs a step for each connection."""

MOST_SECONDS = 86_400.0
"""Longest time of a drain, in seconds."""


class Draining:
    """The drain of the wires. ``away`` sends all peers away, ``back`` ends that, ``remaining`` counts them by wire.

    ``changed`` is called at the begin and at the end of a drain.
    """

    log = Logger()

    def __init__(
        self,
        clock: IReactorTime,
        away: Callable[[], object],
        back: Callable[[], object],
        remaining: Callable[[], Mapping[str, int]],
        changed: Callable[[], object] = lambda: None,
    ) -> None:
        self._clock = clock
        self._away = away
        self._back = back
        self._remaining = remaining
        self._changed = changed
        self.state: DrainState = "off"
        self._deadline = 0.0
        self._timer: IDelayedCall | None = None

    def drain(self, seconds: float) -> Drain:
        """Begin, or begin again. Raises `Refusal` PARAMETER for a time out of range."""
        if not 0 <= seconds <= MOST_SECONDS:
            raise Refusal(Reason.PARAMETER, f"the deadline is between 0 and {MOST_SECONDS:g} seconds")
        self._cancel()
        self.log.info(
            "drain: new peers are refused, and present ones are sent away, within {seconds:g} s", seconds=seconds
        )
        self.state = "draining"
        self._deadline = self._clock.seconds() + seconds
        # Before the peers leave: the brokers to which they go must know already that this one drains.
        self._changed()
        self._away()
        self._check()
        return self.describe()

    def undrain(self) -> Drain:
        """End the drain. No-op without one."""
        if self.state != "off":
            self._cancel()
            self.state = "off"
            self._back()
            self._changed()
            self.log.info("drain: undone, all peers are served again")
        return self.describe()

    def describe(self) -> Drain:
        """Return the state."""
        left = max(0.0, self._deadline - self._clock.seconds()) if self.state == "draining" else 0.0
        return Drain(self.state, round(left, 3), {} if self.state == "off" else self._remaining())

    def stop(self) -> None:
        """Stop counting: the daemon stops."""
        self._cancel()

    def _check(self) -> None:
        self._timer = None
        remaining = self._remaining()
        if not remaining:
            self.state = "drained"
            self.log.info("drain: all peers have left")
            return
        if self.state == "draining" and self._clock.seconds() >= self._deadline:
            self.state = "overdue"
            left = ", ".join(f"{wire} {count}" for wire, count in remaining.items())
            self.log.warn("drain: the deadline has passed, and peers are left: {left}", left=left)
        self._timer = self._clock.callLater(CHECK, self._check)

    def _cancel(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
