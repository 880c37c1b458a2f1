"""Following the changes of the registry: a stream that is resumed after each interruption."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from broker.brokerctl.failures import Exit, Failure
from broker.brokerctl.http.client import Client, Query
from broker.brokerctl.http.events import Event, Parser
from broker.brokerctl.running import sleep

FIRST_PAUSE = 0.5
LONGEST_PAUSE = 30.0
"""Seconds between attempts to connect: doubled each time, with jitter, lest all watchers of a restarted broker come
back at once."""

Notify = Callable[[str], None]


class Finished(Exception):
    """Raised by a receiver that needs no more changes."""


async def follow(
    client: Client,
    path: str,
    query: Query,
    receive: Callable[[str, Mapping[str, Any]], None],
    notify: Notify,
    since: str = "",
) -> None:
    """Call ``receive`` with the kind and the JSON of each event of a stream, until it raises `Finished`.

    A stream that ends is resumed after its last id, or after ``since`` if none has come yet. ``notify`` gets a sentence
    at each interruption. The first attempt must succeed; `Failure` is raised if it does not, and later for all answers
    that a further attempt would get again.
    """
    last, pause, reached = since, FIRST_PAUSE, False
    while True:
        parser = Parser()

        def received(data: bytes, parser: Parser = parser) -> None:
            nonlocal last, pause, reached
            reached, pause = True, FIRST_PAUSE
            for event in parser.feed(data):
                receive(event.kind, _decoded(event))
            last = parser.id or last

        try:
            await client.stream(path, query, last, received)
            reason = "the stream has ended"
            reached = True
        except Finished:
            return
        except Failure as failure:
            if failure.code is not Exit.UNREACHABLE or not reached:
                raise
            reason = str(failure)
        wait = pause * random.uniform(0.5, 1.0)
        notify(f"{reason}; the next attempt is in {wait:.1f} s")
        await sleep(client.reactor, wait)
        pause = min(2 * pause, LONGEST_PAUSE)


def _decoded(event: Event) -> Mapping[str, Any]:
    try:
        value = msgspec.json.decode(event.data)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        value = None
    if not isinstance(value, dict):
        raise Failure("the server sends events that are no JSON objects", Exit.UNINTELLIGIBLE)
    return value


def changes(value: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
    """Return the changes of one event: those in ``events``, else the event itself."""
    found = value.get("events")
    if found is None:
        return [value] if "kind" in value else []
    if not isinstance(found, list) or not all(isinstance(each, dict) for each in found):
        raise Failure("the server sends events in a form that brokerctl does not know", Exit.UNINTELLIGIBLE)
    return found
