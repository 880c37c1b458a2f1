"""The endpoint of events as they happen: server-sent events, or a WebSocket."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Annotated

import attrs
from msgspec import Meta

from broker.access.registry_reading import RegistryReading
from broker.admin.api.events import EventPosition, KindName, filter_of, place_of
from broker.admin.api.lists import MAX_TEXT
from broker.admin.api.watch_hub import ServerSentEvents, WatchHub, WebSocketMessages
from broker.core.errors import Reason, Refusal
from broker.core.model import Kind
from broker.web.http_endpoint import Call, Endpoint
from broker.web.messages import Outlet, Request, Stream
from broker.web.problem import Problem

SSE, WEBSOCKET = ServerSentEvents(), WebSocketMessages()

UNKNOWN = EventPosition(0, 0)
"""A place of no registry: its watcher begins with a resync."""


@attrs.frozen
class WatchQuery:
    """The query of a watch. The header Last-Event-ID, which a browser sends when it reconnects, precedes ``since``."""

    since: Annotated[
        str, Meta(pattern="^([0-9]{1,16}-[0-9]{1,16})?$", description="`EPOCH-REVISION`: events after that place")
    ] = ""
    kinds: Annotated[tuple[KindName, ...], Meta(max_length=len(Kind), description="kinds of events; repeatable")] = ()
    pattern: Annotated[str, Meta(max_length=MAX_TEXT, description="shell pattern of service names")] = "*"


def endpoints(hub: WatchHub) -> list[Endpoint]:
    """Return the endpoint of watches."""

    def handle(call: Call) -> Stream:
        query: WatchQuery = call.query
        if hub.full:
            raise Problem(503, f"there are {hub.most} watchers already", Reason.LIMIT, [("Retry-After", "10")])
        form = WEBSOCKET if call.request.headers.get("upgrade", "").lower() == "websocket" else SSE
        # The stream ends when the rights of its user change.
        chosen = filter_of(query.kinds, query.pattern, RegistryReading.of(call.grants))
        since = _since(call.request, query)

        def begin(outlet: Outlet) -> Callable[[], None]:
            return partial(hub.remove, hub.add(outlet, chosen, form, since))

        return Stream(begin, headers=[("Cache-Control", "no-store")])

    return [
        Endpoint(
            "GET",
            "/v1/watch",
            "watch_events",
            "Sends changes of the registry as they happen, as server-sent events, or over a WebSocket. Each event has "
            "the id `EPOCH-REVISION`. An event of the type `resync` tells that earlier ones were lost.",
            handle,
            query=WatchQuery,
            tag="events",
        )
    ]


def _since(request: Request, query: WatchQuery) -> EventPosition | None:
    """Return the place after which to begin; None for now. An unintelligible Last-Event-ID leads to a resync."""
    last = request.headers.get("last-event-id", "").strip()
    if last:
        with suppress(Refusal):
            return place_of(last)
        return UNKNOWN
    return place_of(query.since) if query.since else None
