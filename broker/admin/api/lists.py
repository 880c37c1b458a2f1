"""Lists: the common query of all of them, and their answers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Any

import attrs
from msgspec import Meta

from broker.access.registry_reading import RegistryReading
from broker.admin.api.pieces import array, members, streamed
from broker.core.errors import Reason, Refusal
from broker.core.interfaces import IRegistry
from broker.web.http_endpoint import Call
from broker.web.messages import Response, entity_tag, is_current, not_modified
from broker.wires.view_scan import Scan, Selection
from broker.wires.views import AnyView

PAGE = 100
"""Rows of a page by default."""

MOST = 1_000
"""Rows of the largest page: some 3 ms of work, in pieces."""

MAX_TEXT = 255
"""Characters of a pattern or condition: as many as the longest service name."""

MAX_OFFSET = 1_000_000
"""Rows that may be skipped: more than any table has."""

MAX_CONDITIONS = 10
"""Conditions of one query."""


@attrs.frozen
class ListQuery:
    """The common query of lists."""

    pattern: Annotated[str, Meta(max_length=MAX_TEXT, description="shell pattern: `*`, `?`, `[...]`")] = "*"
    sort: Annotated[str, Meta(max_length=MAX_TEXT, description="column to sort by; `-column` for descending order")] = (
        ""
    )
    offset: Annotated[int, Meta(ge=0, le=MAX_OFFSET, description="rows to skip")] = 0
    limit: Annotated[int, Meta(ge=1, le=MOST, description="rows of the page")] = PAGE
    where: Annotated[
        tuple[Annotated[str, Meta(max_length=2 * MAX_TEXT)], ...],
        Meta(max_length=MAX_CONDITIONS, description="`column=value`: rows whose column has that value; repeatable"),
    ] = ()


@attrs.frozen
class Rows:
    """A page of a list.

    ``total`` is the number of rows on all pages. ``epoch`` and ``revision`` are those of the registry at the begin.
    """

    rows: list[dict[str, Any]]
    total: int
    offset: int
    limit: int
    epoch: int
    revision: int


def listing(call: Call, view: AnyView, registry: IRegistry, more: Mapping[str, object] | None = None) -> Response:
    """Return a page of a view as the query of the call selects it; ``more`` are other members of the answer."""
    query: ListQuery = call.query
    conditions = tuple(map(_condition, query.where))
    reading = RegistryReading.of(call.grants)
    scan = Scan(view, Selection(query.pattern, query.sort, conditions, query.offset, query.limit), reading)
    about = {
        "offset": query.offset,
        "limit": query.limit,
        "epoch": registry.epoch,
        "revision": registry.revision,
        **(more or {}),
    }
    # The tag is that of the registry, not that of what a user is shown of it.
    tag = entity_tag(registry.epoch, registry.revision) if view.tagged and reading.every else None
    if tag is not None and is_current(call.request, tag):
        return not_modified(tag)
    return streamed(_body(scan, about), tag)


def _body(scan: Scan, about: Mapping[str, object]) -> Iterator[bytes]:
    yield b'{"rows":'
    yield from array(scan)
    yield b"," + members({"total": scan.total, **about}) + b"}"


def _condition(text: str) -> tuple[str, str]:
    column, equals, value = text.partition("=")
    if not equals:
        raise Refusal(Reason.PARAMETER, "where: a condition has the form column=value")
    return column, value
