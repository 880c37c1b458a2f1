"""Sums of the details of loads whose reports coalesce."""

from __future__ import annotations

import pytest

from broker.core.detail_sums import add_details
from broker.core.model import MAX_COUNT, LoadDetails


@pytest.mark.parametrize(
    ("before", "now", "both"),
    [
        (None, None, None),
        (LoadDetails(1), None, LoadDetails(1)),
        (None, LoadDetails(1), LoadDetails(1)),
        (LoadDetails(1, 1, 9), LoadDetails(2, None, 4), LoadDetails(3, 1, 4)),
        (LoadDetails(in_flight=9), LoadDetails(errors=0), LoadDetails(None, 0, 9)),
        (LoadDetails(30, latency_ms=10), LoadDetails(10, latency_ms=50), LoadDetails(40, latency_ms=20)),
        (LoadDetails(30, latency_ms=10), LoadDetails(10), LoadDetails(40, latency_ms=10)),
        (LoadDetails(0, latency_ms=10), LoadDetails(0, latency_ms=50), LoadDetails(0, latency_ms=50)),
        (LoadDetails(latency_ms=10), LoadDetails(latency_ms=50), LoadDetails(latency_ms=50)),
        (LoadDetails(MAX_COUNT), LoadDetails(MAX_COUNT), LoadDetails(MAX_COUNT)),
    ],
)
def test_two_reports_together(before: LoadDetails | None, now: LoadDetails | None, both: LoadDetails | None) -> None:
    assert add_details(before, now) == both
