"""Bodies of answers in JSON: whole ones, and lists that are rendered in pieces of bounded work."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime

import msgspec

from broker.web.messages import Response

_UNCACHED = ("Cache-Control", "no-store")
"""The header of answers without an entity tag: they change at any time, and an old one misleads."""


def answer(value: object, status: int = 200) -> Response:
    """Return a small value as an answer."""
    return Response(status, msgspec.json.encode(value), headers=[_UNCACHED])


def streamed(body: Iterator[bytes], tag: str | None = None) -> Response:
    """Return an answer whose body is rendered in pieces, with its entity tag if it has one."""
    headers = [_UNCACHED] if tag is None else [("ETag", tag), ("Cache-Control", "no-cache")]
    return Response(body=body, headers=headers)


def array(rows: Iterable[Sequence[object]]) -> Iterator[bytes]:
    """Yield a JSON array with the elements of all ``rows``, one piece for each sequence, empty ones included."""
    yield b"["
    separator = b""
    for some in rows:
        if some:
            yield separator + msgspec.json.encode(some)[1:-1]
            separator = b","
        else:
            yield b""
    yield b"]"


def members(about: Mapping[str, object]) -> bytes:
    """Return the members of an object, without its braces."""
    return msgspec.json.encode(about)[1:-1]


def moment(seconds: float, precision: str = "seconds") -> str:
    """Return a time in seconds of the epoch as text by RFC 3339, in UTC, to the ``precision`` of a timespec."""
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec=precision).replace("+00:00", "Z")
