"""Report of a load: the body of the Content by which a provider or a worker reports its load."""

from __future__ import annotations

import msgspec


class LoadReport(msgspec.Struct, frozen=True, omit_defaults=True):
    """A load, and optional details for capacity plans; None for those that are not reported.

    ``requests`` and ``errors`` are the numbers of requests completed, and of those that failed, since the report
    before; ``in_flight`` is the number of requests being handled now; ``latency_ms`` is the mean time, in milliseconds,
    for which one of ``requests`` was handled.
    """

    load: float
    requests: int | None = None
    errors: int | None = None
    in_flight: int | None = None
    latency_ms: float | None = None


encode = msgspec.json.Encoder().encode
"""Encodes a report."""
