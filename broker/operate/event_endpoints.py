"""Events: changes of the registry as operators see them, and the endpoint of the recent ones.

An event never has a secret. ``at`` is its time, RFC 3339 in UTC, by the clock of this broker. Its *place* is
``EPOCH-REVISION``; a client requests the events after the place of the last one that it received.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Annotated, Any, Literal, NamedTuple, Protocol

import attrs
import msgspec
from msgspec import Meta
from twisted.internet.interfaces import IDelayedCall, IReactorTime
from twisted.logger import Logger

from broker.access.rights import EVERY_ENTRY, RegistryReading
from broker.core.errors import Reason, Refusal
from broker.core.interfaces import IRegistry, IWait
from broker.core.model import Change, Kind, Load, Service
from broker.operate.table_endpoints import MAX_LIMIT, MAX_TEXT, PAGE
from broker.rest.http_endpoint import Call, Endpoint
from broker.rest.messages import (
    WRITES,
    KeepAlive,
    Outlet,
    Request,
    Response,
    Stream,
    StreamReader,
    array,
    asks_for_websocket,
    members,
    moment,
    streamed,
)
from broker.rest.problem import Problem
from broker.wires.tables import matcher

PIECE = 250
"""Events that are encoded in one piece: some 5 µs each."""

SEARCHED = 2_000
"""Newest events that are searched for a pattern if no place is given."""

_PLACE = re.compile(r"([0-9]{1,16})-([0-9]{1,16})", re.ASCII)

KindName = Literal[
    "joined", "left", "relabelled", "offered", "withdrawn", "amended", "load", "checked", "hidden", "shown"
]


class EventPosition(NamedTuple):
    """A moment in the life of a registry."""

    epoch: int
    revision: int

    def __str__(self) -> str:
        return f"{self.epoch}-{self.revision}"


@attrs.frozen
class WatchQuery:
    """The query of a watch. The header Last-Event-ID, which a browser sends when it reconnects, precedes ``since``."""

    since: Annotated[
        str, Meta(pattern="^([0-9]{1,16}-[0-9]{1,16})?$", description="`EPOCH-REVISION`: events after that place")
    ] = ""
    kinds: Annotated[tuple[KindName, ...], Meta(max_length=len(Kind), description="kinds of events; repeatable")] = ()
    pattern: Annotated[str, Meta(max_length=MAX_TEXT, description="shell pattern of service names")] = "*"


@attrs.frozen
class EventsQuery(WatchQuery):
    """The query of recent events.

    Without ``since``, the newest events are returned; with a pattern, those of the newest 2,000. ``kinds`` and
    ``pattern`` select events; the pattern matches the name of a service, or for a change of a provider its label.
    """

    limit: Annotated[int, Meta(ge=1, le=MAX_LIMIT, description="events of the answer")] = PAGE


@attrs.frozen
class Events:
    """Recent events, the oldest first.

    ``epoch`` and ``revision`` are the place after them, to be asked for next. ``resync`` is true if events after the
    given place are no longer known: then ``events`` is empty, and the client reads the lists again.
    """

    epoch: int
    revision: int
    resync: bool
    events: list[dict[str, Any]]


@attrs.frozen
class Filter:
    """A selection of events, and what its user is shown of the registry. Equal ones share encoded events."""

    kinds: frozenset[Kind] = frozenset(Kind)
    pattern: str = "*"
    reading: RegistryReading = EVERY_ENTRY

    def matching(self, registry: IRegistry) -> Callable[[Change], bool]:
        """Return the test of a change of that registry."""
        kinds, matches, reading = self.kinds, matcher(self.pattern), self.reading

        def chosen(change: Change) -> bool:
            return change.kind in kinds and (matches is None or matches(_name(change)) is not None)

        if reading.every:
            return chosen
        return lambda change: chosen(change) and _is_shown(change, reading, registry)


def filter_of(kinds: Collection[str], pattern: str, reading: RegistryReading) -> Filter:
    """Return the filter of a query: no kinds are all kinds."""
    return Filter(frozenset(map(Kind, kinds)) or frozenset(Kind), pattern, reading)


def _is_shown(change: Change, reading: RegistryReading, registry: IRegistry) -> bool:
    """Return True if a change is shown: of a provider by the services that it has now."""
    if isinstance(change.subject, Service):
        return reading.shows(change.subject.name)
    return reading.shows_any(service.name for service in registry.services_of(change.provider))


def event(change: Change) -> dict[str, object]:
    """Return a change as an event."""
    about: dict[str, object] = {
        "revision": change.revision,
        "at": moment(change.at, "milliseconds"),
        "kind": change.kind.value,
        "provider": change.provider,
    }
    subject = change.subject
    if isinstance(subject, Service):
        about |= {"service": subject.name, "protocol": subject.protocol, "hostport": subject.hostport}
        if subject.label is not None:
            about["label"] = subject.label
    elif isinstance(subject, Load):
        about |= {"label": subject.label, "load": subject.load}
    elif subject:
        about["label"] = subject
    if change.why:
        about["why"] = change.why
    return about


def encoded(change: Change) -> bytes:
    """Return an event as JSON."""
    return msgspec.json.encode(event(change))


def place_of(text: str) -> EventPosition:
    """Return a place. Raises `Refusal` PARAMETER."""
    match = _PLACE.fullmatch(text)
    if match is None:
        raise Refusal(Reason.PARAMETER, "a place is EPOCH-REVISION, two numbers")
    return EventPosition(int(match[1]), int(match[2]))


def _name(change: Change) -> str:
    subject = change.subject
    if isinstance(subject, Service):
        return subject.name
    return subject.label if isinstance(subject, Load) else subject


def event_endpoints(registry: IRegistry) -> list[Endpoint]:
    """Return the endpoint of recent events."""

    def handle(call: Call) -> Response:
        query: EventsQuery = call.query
        chosen = filter_of(query.kinds, query.pattern, RegistryReading.of(call.grants))
        return streamed(_body(registry, chosen, place_of(query.since) if query.since else None, query.limit))

    return [
        Endpoint(
            "GET",
            "/v1/events",
            "list_events",
            "Lists recent changes of the registry.",
            handle,
            query=EventsQuery,
            answer=Events,
            tag="events",
        )
    ]


def _body(registry: IRegistry, chosen: Filter, since: EventPosition | None, limit: int) -> Iterator[bytes]:
    matches = chosen.matching(registry)
    found: list[Change] = []
    lost = False
    if since is None:
        revision = registry.revision
        searched = limit if chosen.pattern == "*" and chosen.reading.every else SEARCHED
        recent = registry.recent(chosen.kinds, searched)
        for begin in range(0, len(recent), PIECE):
            found += filter(matches, recent[begin : begin + PIECE])
            yield b""
        found = found[-limit:]
    else:
        revision = since.revision
        while len(found) < limit:
            some = registry.changes_since(since.epoch, revision, chosen.kinds, PIECE)
            if not some:
                lost = some is None and not found
                revision = revision if some is None and found else registry.revision
                break
            found += filter(matches, some)
            revision = some[-1].revision
            yield b""
        if len(found) > limit:
            found = found[:limit]
            revision = found[-1].revision
    yield b'{"events":'
    yield from array([event(each) for each in found[n : n + PIECE]] for n in range(0, len(found), PIECE))
    yield b"," + members({"epoch": registry.epoch, "revision": revision, "resync": lost}) + b"}"


# The watchers of the registry's events: one reader of the registry's ring for all of them.
#
# Rules:
# - The hub reads the ring after a change, and sends each watcher what is new: a *flush*. An event is encoded once, and
#   the text of a flush once for each filter and form.
# - The first change after calm is flushed within `GATHER`. The next flush follows after a time that is in proportion to
#   the CPU time of the last one, so that flushes take `SHARE` of a core at most, between `SHORTEST` and `INTERVAL`.
# - In calm the hub watches the registry; while a flush is due, changes cost nothing.
# - All work is done in pieces, one in a turn of the reactor: `PIECE` events or `WRITES` watchers.
# - A watcher whose outlet is behind gets nothing, and nothing is kept for it. Once its outlet has room it gets the
#   events that it lacks from the ring; if the ring has lost some, it gets a `resync` instead, and reads the lists
#   again.
# - A watcher that resumes at a place of an earlier epoch, or at one that the ring has lost, gets a `resync` first.

GATHER = 0.002
"""Seconds from the first change after calm to its flush: those of one cause come together."""

INTERVAL, SHORTEST = 0.25, 0.05
"""Seconds between two flushes, at most and at least. Four a second look alive to a person, whatever they cost; more
than twenty are more than a page can draw."""

SHARE = 0.05
"""The share of a core that flushes may take, where that permits more than one in `INTERVAL`. The kernel takes about as
much for the same messages afterwards."""

MAX_WATCHERS = 1_000
"""Watchers at a time: pages of operators and their tools, at some 5 kB each."""


class Form(Protocol):
    """The form in which events are sent. Forms are compared by identity."""

    def events(self, epoch: int, revision: int, events: Iterable[tuple[int, bytes]]) -> bytes:
        """Return a flush: encoded events with their revisions, up to ``revision``."""

    def place(self, place: EventPosition) -> bytes:
        """Return a message without events, which has the position."""

    def resync(self, place: EventPosition) -> bytes:
        """Return the message that events up to a place were lost."""


class ServerSentEvents:
    """Server-sent events (the HTML standard, 9.2): ``id`` is the place, a resync has the type ``resync``."""

    def events(self, epoch: int, revision: int, events: Iterable[tuple[int, bytes]]) -> bytes:
        """Return an event for each change."""
        return b"".join(b"id: %d-%d\ndata: %b\n\n" % (epoch, number, data) for number, data in events)

    def place(self, place: EventPosition) -> bytes:
        """Return an event without data: a client keeps its id, and dispatches nothing."""
        return b"id: %d-%d\n\n" % place

    def resync(self, place: EventPosition) -> bytes:
        """Return an event of the type resync."""
        return b'event: resync\nid: %d-%d\ndata: {"epoch":%d,"revision":%d}\n\n' % (*place, *place)


class WebSocketMessages:
    """Messages of a WebSocket: one for each flush, in the form of ``/v1/events``."""

    def events(self, epoch: int, revision: int, events: Iterable[tuple[int, bytes]]) -> bytes:
        """Return a message with all events."""
        return self._message(EventPosition(epoch, revision), b",".join(data for _, data in events), b"false")

    def place(self, place: EventPosition) -> bytes:
        """Return a message without events."""
        return self._message(place, b"", b"false")

    def resync(self, place: EventPosition) -> bytes:
        """Return a message without events, with ``resync`` true."""
        return self._message(place, b"", b"true")

    def _message(self, place: EventPosition, events: bytes, resync: bytes) -> bytes:
        return b'{"epoch":%d,"revision":%d,"resync":%b,"events":[%b]}' % (*place, resync, events)


@attrs.define(eq=False)
class StreamWatcher(StreamReader):
    """One watcher. ``revision`` is its place: all events up to it were sent, or left out by its filter."""

    chosen: Filter
    form: Form
    revision: int


class WatchHub:
    """The watchers of ``registry``'s events, on ``clock``, at most `most` at a time."""

    log = Logger()

    def __init__(self, registry: IRegistry, clock: IReactorTime, cpu: Callable[[], float] = time.thread_time) -> None:
        """``cpu`` returns the CPU time of the thread in seconds."""
        self._registry = registry
        self._clock = clock
        self._cpu = cpu
        self.most = MAX_WATCHERS
        self._watchers: dict[StreamWatcher, None] = {}
        self._keep_alive = KeepAlive(clock, self._watchers, self._send_place)
        self._position = 0
        """The revision up to which the ring was read in the last flush."""
        self._call: IDelayedCall | None = None
        """The next flush; None in calm."""
        self._calm: IWait | None = None
        """The watch of the registry in calm."""
        self._due = 0.0
        """The time from which the next flush may begin."""
        self.resyncs = 0
        """Watchers that were asked to read the lists again, since the start."""
        self.sent = 0
        """Messages to watchers."""

    def __len__(self) -> int:
        return len(self._watchers)

    @property
    def full(self) -> bool:
        """True if there is no room for another watcher."""
        return len(self._watchers) >= self.most

    def counts(self) -> Mapping[str, int]:
        """Return the counters of watchers."""
        return {"watch.watchers": len(self), "watch.sent": self.sent, "watch.resyncs": self.resyncs}

    def add(self, outlet: Outlet, chosen: Filter, form: Form, since: EventPosition | None) -> StreamWatcher:
        """Add a watcher, which begins after ``since``, or now. It gets its place, or a resync, at once."""
        registry = self._registry
        here = EventPosition(registry.epoch, registry.revision)
        watcher = StreamWatcher(outlet, self._clock.seconds(), chosen, form, here.revision)
        if since is None:
            self._write(watcher, form.place(here))
        elif registry.changes_since(*since, ()) is None:
            self._resync(watcher)
        else:
            watcher.revision = since.revision
            self._write(watcher, form.place(since))
        if not self._watchers:
            self._position = here.revision
        self._watchers[watcher] = None
        self._keep_alive.start()
        if self._call is None and self._calm is None:
            self._rest(behind=False)
        if self._calm is not None and watcher.revision < here.revision:
            self._changed()
        return watcher

    def remove(self, watcher: StreamWatcher) -> None:
        """Remove a watcher. Idempotent."""
        self._watchers.pop(watcher, None)
        if not self._watchers:
            self._keep_alive.stop()

    def stop(self) -> None:
        """End all streams."""
        if self._call is not None and self._call.active():
            self._call.cancel()
        self._call = None
        self._keep_alive.stop()
        self._end_calm()
        for watcher in list(self._watchers):
            watcher.outlet.close()
        self._watchers.clear()

    # a flush

    def _rest(self, behind: bool) -> None:
        """Wait until the next flush is due, or for a change if nothing waits. ``behind``: a watcher lacks events."""
        if self._registry.revision != self._position:
            wait = self._due - self._clock.seconds()
            self._call = self._clock.callLater(min(max(wait, 0.0), INTERVAL), self._flush)
        else:
            self._calm = self._registry.watch(self._changed)
            self._call = self._clock.callLater(INTERVAL, self._flush) if behind else None

    def _changed(self, change: Change | None = None) -> None:
        """End the calm: the first change is flushed soon."""
        self._end_calm()
        if self._call is not None and self._call.active():
            self._call.cancel()
        self._call = self._clock.callLater(max(GATHER, min(self._due - self._clock.seconds(), INTERVAL)), self._flush)

    def _end_calm(self) -> None:
        calm, self._calm = self._calm, None
        if calm is not None:
            calm.cancel()

    def _flush(self) -> None:
        self._call = None
        self._end_calm()
        if self._watchers:
            self._continue(self._clock.seconds(), 0.0, self._pieces())

    def _continue(self, begun: float, spent: float, pieces: Iterator[None]) -> None:
        """Do one piece of a flush in this turn. ``spent`` is the CPU time of those before."""
        start = self._cpu()
        try:
            for _ in pieces:
                spent += self._cpu() - start
                self._call = self._clock.callLater(0, self._continue, begun, spent, pieces)
                return
        except Exception:
            self.log.failure("a flush of events failed")
        spent += self._cpu() - start
        self._due = begun + min(max(spent / SHARE, SHORTEST), INTERVAL)
        # One that was behind may have room by now, and lacks events until the next flush.
        self._rest(any(watcher.revision < self._position for watcher in self._watchers))

    def _pieces(self) -> Iterator[None]:
        """Send all watchers what is new, and yield after each piece of work."""
        registry = self._registry
        target = registry.revision
        while self._position < target:
            # A part of the changes in each turn; if the ring has lost some, the catch-up reports it to each watcher.
            base = self._position
            changes = registry.changes_since(registry.epoch, base, tuple(Kind), PIECE) or ()
            self._position = min(changes[-1].revision, target) if changes else target
            yield from self._send(base, self._position, [change for change in changes if change.revision <= target])
        for watcher in list(self._watchers):
            if watcher.revision < target and not watcher.outlet.behind:
                yield from self._catch_up(watcher, target)
                yield

    def _send(self, base: int, target: int, changes: Sequence[Change]) -> Iterator[None]:
        """Send changes to all watchers that have everything before them; these have all up to ``target`` then."""
        events = [(change, encoded(change)) for change in changes]
        texts: dict[tuple[Filter, Form], bytes] = {}
        yield
        for number, watcher in enumerate(list(self._watchers), 1):
            if events and watcher.revision == base and not watcher.outlet.behind:
                key = (watcher.chosen, watcher.form)
                if key not in texts:
                    matches = watcher.chosen.matching(self._registry)
                    chosen = [(change.revision, data) for change, data in events if matches(change)]
                    texts[key] = watcher.form.events(self._registry.epoch, target, chosen) if chosen else b""
                    yield
                if texts[key]:
                    self._write(watcher, texts[key])
                watcher.revision = target
            if not number % WRITES:
                yield

    def _catch_up(self, watcher: StreamWatcher, target: int) -> Iterator[None]:
        """Send a watcher that lacks more than the others what the ring still has, or a resync."""
        registry = self._registry
        matches = watcher.chosen.matching(registry)
        while watcher.revision < target and watcher in self._watchers and not watcher.outlet.behind:
            changes = registry.changes_since(registry.epoch, watcher.revision, watcher.chosen.kinds, PIECE)
            if changes is None:
                self._resync(watcher)
                return
            some = [change for change in changes if change.revision <= target]
            events = [(change.revision, encoded(change)) for change in some if matches(change)]
            watcher.revision = some[-1].revision if len(changes) == PIECE and some else target
            if events:
                self._write(watcher, watcher.form.events(registry.epoch, watcher.revision, events))
            yield

    def _resync(self, watcher: StreamWatcher) -> None:
        self.resyncs += 1
        watcher.revision = self._registry.revision
        self._write(watcher, watcher.form.resync(EventPosition(self._registry.epoch, watcher.revision)))

    def _send_place(self, watcher: StreamWatcher) -> None:
        self._write(watcher, watcher.form.place(EventPosition(self._registry.epoch, watcher.revision)))

    def _write(self, watcher: StreamWatcher, data: bytes) -> None:
        self.sent += 1
        watcher.written = self._clock.seconds()
        watcher.outlet.write(data)


# The endpoint of events as they happen: server-sent events, or a WebSocket.

SSE, WEBSOCKET = ServerSentEvents(), WebSocketMessages()

UNKNOWN = EventPosition(0, 0)
"""A position in no registry: a watcher that starts from it begins with a resync."""


def watch_endpoints(hub: WatchHub) -> list[Endpoint]:
    """Return the endpoint of watches."""

    def handle(call: Call) -> Stream:
        query: WatchQuery = call.query
        if hub.full:
            raise Problem(503, f"there are {hub.most} watchers already", Reason.LIMIT, [("Retry-After", "10")])
        form = WEBSOCKET if asks_for_websocket(call.request.headers) else SSE
        # The stream ends when the rights of its user change.
        chosen = filter_of(query.kinds, query.pattern, RegistryReading.of(call.grants))
        since = _since(call.request, query)

        def begin(outlet: Outlet) -> Callable[[], None]:
            return partial(hub.remove, hub.add(outlet, chosen, form, since))

        return Stream(begin, headers=[("Cache-Control", "no-store")], upgrades=True)

    return [
        Endpoint(
            "GET",
            "/v1/watch",
            "watch_events",
            "Sends changes of the registry as they happen, as server-sent events, or over a WebSocket. Each event has "
            "the id `EPOCH-REVISION`. An event of the type `resync` means that earlier ones were lost.",
            handle,
            query=WatchQuery,
            tag="events",
        )
    ]


def _since(request: Request, query: WatchQuery) -> EventPosition | None:
    """Return the position after which events begin; None for now. An invalid Last-Event-ID leads to a resync."""
    last = request.headers.get("last-event-id", "").strip()
    if last:
        with suppress(Refusal):
            return place_of(last)
        return UNKNOWN
    return place_of(query.since) if query.since else None
