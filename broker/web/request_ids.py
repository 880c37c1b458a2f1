"""Ids of requests: that of the client, or one of the listener's own.

A request has one id, which its answer, its log lines and its line of the audit log have as well. A client, or a proxy
before the listener, gives one by ``X-Request-ID`` to find its own request in the log. The alphabet and the length are
bounded, since the id is written into headers and logs.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Sequence

HEADER = "X-Request-ID"

RAW_HEADER = HEADER.encode()

MAX_ID = 64
"""Characters of a client's id: a UUID has 36, the id of a trace 55."""

PATTERN = rf"[A-Za-z0-9._-]{{1,{MAX_ID}}}"
"""A well-formed id, as a regular expression: it needs no escape in headers, JSON and lines of the log."""

_GIVEN = re.compile(PATTERN.encode())


START_BYTES = 4
"""Random bytes of `RequestIds.fresh`: of a thousand starts, two are alike in one case of 8,600."""


class RequestIds:
    """Ids of one listener. ``start`` distinguishes them from those of other listeners, brokers and starts.

    They are that word and a number: a random id for each request would cost several times as much.
    """

    def __init__(self, start: str) -> None:
        self._start = start
        self._made = 0

    @classmethod
    def fresh(cls) -> RequestIds:
        """Return the ids of a listener that starts now, with a random word."""
        return cls(secrets.token_hex(START_BYTES))

    def choose(self, given: Sequence[bytes] | None) -> str:
        """Return the id of a request whose field ``X-Request-ID`` has these values.

        A malformed id, or a second one, is ignored: it is for diagnosis only, and no reason for a refusal.
        """
        if given and len(given) == 1 and _GIVEN.fullmatch(given[0]):
            return given[0].decode("ascii")
        self._made += 1
        return f"{self._start}-{self._made}"
