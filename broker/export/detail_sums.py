"""Sums of load details: the details of several reports of one provider that coalesce into one record.

Rules:
- Counts of requests and errors add up, so that no request is missing from the journal.
- Requests in flight are a gauge: the newest number counts.
- The mean latency is that of all requests whose latency is known; without such a request, the newest latency counts.
"""

from __future__ import annotations

from broker.core.model import MAX_COUNT, LoadDetails


def add(before: LoadDetails | None, now: LoadDetails | None) -> LoadDetails | None:
    """Return the details of two reports together, ``now`` the newer one; None if neither has any."""
    if before is None or now is None:
        return now if before is None else before
    return LoadDetails(
        requests=_sum(before.requests, now.requests),
        errors=_sum(before.errors, now.errors),
        in_flight=before.in_flight if now.in_flight is None else now.in_flight,
        latency_ms=_mean_latency(before, now),
    )


def _sum(before: int | None, now: int | None) -> int | None:
    if before is None or now is None:
        return now if before is None else before
    return min(before + now, MAX_COUNT)


def _mean_latency(before: LoadDetails, now: LoadDetails) -> float | None:
    if before.latency_ms is None or now.latency_ms is None:
        return before.latency_ms if now.latency_ms is None else now.latency_ms
    of_before, of_now = before.requests or 0, now.requests or 0
    if not of_before + of_now:
        return now.latency_ms
    share = of_now / (of_before + of_now)
    return before.latency_ms * (1 - share) + now.latency_ms * share
