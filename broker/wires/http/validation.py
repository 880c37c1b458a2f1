"""Checks of the values of HTTP, and the values that follow from them."""

from __future__ import annotations

import re
from collections.abc import Iterator

from broker.config.checks import unless_said
from broker.config.endpoint import BadEndpoint, Endpoint, parse
from broker.config.problem import Problem, in_ranges
from broker.wires.http.config import Http

RANGES: dict[str, tuple[float, float]] = {
    "services": (0, 100_000),
    # 0 is no limit
    "services_per_user": (0, 100_000),
    # as those of a listener
    "connections": (1, 1_000_000),
    "connections_per_address": (0, 1_000_000),
    "rate": (0, 1_000_000),
    "burst": (1, 1_000_000),
    # 0 refuses each answer that would wait
    "waiting": (0, 1_000_000),
    "waiting_per_address": (0, 1_000_000),
    # a registration of ordinary size must fit; the account of unfinished input bounds all bodies together
    "max_body": (4_096, 64 * 1024 * 1024),
    # a request takes a round trip, and some more in chunks
    "request_within": (0.1, 3_600),
    "kept_open": (0.1, 3_600),
    "write_buffer": (65_536, 1024 * 1024 * 1024),
    "stalled_after": (0.1, 86_400),
}
"""The least and the most of each number, in the units of `Http`."""

_HOST = re.compile(r"\*|[a-z0-9_]([a-z0-9_.-]*[a-z0-9_])?")


def http_place(http: Http) -> Endpoint | None:
    """Return the endpoint, or None if it is invalid."""
    try:
        return parse(http.endpoint)
    except BadEndpoint:
        return None


def effective_offer(http: Http) -> tuple[str, ...]:
    """Return the patterns of service names that may be registered: the configured ones, else all on loopback, and none
    elsewhere."""
    if http.offer is not None:
        return http.offer
    where = http_place(http)
    return ("*",) if where is not None and where.loopback else ()


def http_problems(http: Http) -> Iterator[Problem]:
    """Yield what is wrong with the values of HTTP."""
    try:
        where = parse(http.endpoint)
    except BadEndpoint as error:
        yield Problem("http.endpoint", str(error))
    else:
        if http.enabled and http.auth is None:
            yield from unless_said(
                "http.auth",
                where,
                ': "users", which needs a users file, or "open", which serves every program that reaches it',
            )
    for index, host in enumerate(http.hosts):
        if not _HOST.fullmatch(host):
            yield Problem(f"http.hosts[{index}]", f'{host!r} is no host name in lower case, nor "*"')
    yield from in_ranges("http", http, RANGES)
