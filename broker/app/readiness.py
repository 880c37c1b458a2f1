"""Readiness: the reasons for which the daemon is not ready to serve, and those for which it is degraded.

The readiness probe over HTTP, the console, metrics and notifications ask here. A part that is off by its configuration
is no obstacle. A *degraded* daemon serves its peers, and so is ready: the reason, such as an etcd that is away,
concerns all brokers of a cluster alike, and a load balancer must not take all of them out of service.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

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
