"""Sums of the details of loads, where several reports of a provider become one."""

from __future__ import annotations

import attrs

from broker.core.model import MAX_COUNT, LoadDetails


def add_details(before: LoadDetails | None, now: LoadDetails | None) -> LoadDetails | None:
    """Return the details of two reports of a provider together, ``now`` the newer one; None if neither has any.

    - Counts of requests and errors add up, so that no request is missing.
    - Requests in flight are a gauge: the newest number counts.
    - The mean latency is that of all requests whose latency is known; without such a request, the newest latency
      counts.
    """
    if before is None or now is None:
        return now if before is None else before
    return LoadDetails(
        requests=_sum(before.requests, now.requests),
        errors=_sum(before.errors, now.errors),
        in_flight=before.in_flight if now.in_flight is None else now.in_flight,
        latency_ms=_mean_latency(before, now),
    )


def without_counts(details: LoadDetails | None) -> LoadDetails | None:
    """Return details without the numbers of requests and errors: those of a report that was counted already."""
    return details and attrs.evolve(details, requests=None, errors=None)


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
