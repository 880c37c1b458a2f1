"""Conditional requests: entity tags by epoch and revision, and 304 (RFC 9110, 13.1.2)."""

from __future__ import annotations

from broker.web.messages import Request, Response


def entity_tag(epoch: int, revision: int, variant: str = "") -> str:
    """Return the entity tag of a representation of the registry at that revision.

    ``variant`` distinguishes representations that differ without a revision.
    """
    return f'"{epoch}-{revision}{"-" if variant else ""}{variant}"'


def is_current(request: Request, tag: str) -> bool:
    """Return True if the client's copy has that tag: the answer is `not_modified`."""
    given = request.headers.get("if-none-match")
    if given is None:
        return False
    if given.strip() == "*":
        return True
    # The comparison is the weak one: W/ does not count.
    return any(each.strip().removeprefix("W/") == tag for each in given.split(","))


def not_modified(tag: str) -> Response:
    """Return the answer to a client with a current copy."""
    return Response(304, headers=[("ETag", tag), CACHE])


CACHE = ("Cache-Control", "no-cache")
"""The header of representations with an entity tag: a copy may be kept, and is revalidated at each use."""
