"""Events: changes of the registry as operators see them, and the endpoint of the recent ones.

An event never has a secret. ``at`` is its time, RFC 3339 in UTC, by the clock of this broker. Its *place* is
``EPOCH-REVISION``; a client that knows the place of the last event that it has seen asks for those after it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator
from typing import Annotated, Any, Literal, NamedTuple

import attrs
import msgspec
from msgspec import Meta

from broker.access.registry_reading import EVERY_ENTRY, RegistryReading
from broker.admin.api.lists import MAX_TEXT, MOST, PAGE
from broker.admin.api.pieces import array, members, moment, streamed
from broker.core.errors import Reason, Refusal
from broker.core.interfaces import IRegistry
from broker.core.model import Change, Kind, Load, Service
from broker.web.http_endpoint import Call, Endpoint
from broker.web.messages import Response
from broker.wires.view_scan import matcher

PIECE = 250
"""Events that are encoded in one piece: some 5 µs each."""

SEARCHED = 2_000
"""Newest events that are searched for a pattern if no place is given."""

_PLACE = re.compile(r"([0-9]{1,16})-([0-9]{1,16})", re.ASCII)

KindName = Literal["joined", "left", "offered", "withdrawn", "amended", "load", "checked", "hidden", "shown"]


class EventPosition(NamedTuple):
    """A moment in the life of a registry."""

    epoch: int
    revision: int

    def __str__(self) -> str:
        return f"{self.epoch}-{self.revision}"


@attrs.frozen
class EventsQuery:
    """The query of recent events.

    Without ``since``, the newest events are returned; with a pattern, those of the newest 2,000. ``kinds`` and
    ``pattern`` select events; the pattern matches the name of a service, or the label of a provider that joins, leaves
    or reports a load.
    """

    since: Annotated[
        str, Meta(pattern="^([0-9]{1,16}-[0-9]{1,16})?$", description="`EPOCH-REVISION`: events after that place")
    ] = ""
    kinds: Annotated[tuple[KindName, ...], Meta(max_length=len(Kind), description="kinds of events; repeatable")] = ()
    pattern: Annotated[str, Meta(max_length=MAX_TEXT, description="shell pattern of service names")] = "*"
    limit: Annotated[int, Meta(ge=1, le=MOST, description="events of the answer")] = PAGE


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


def endpoints(registry: IRegistry) -> list[Endpoint]:
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
