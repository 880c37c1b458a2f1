"""Details of a load as values of JSON: which are valid, and the reason for which others are refused."""

from __future__ import annotations

import pytest

from broker.core.errors import Reason, Refusal
from broker.core.model import MAX_COUNT, LoadDetails, load_details


@pytest.mark.parametrize(
    ("given", "made"),
    [
        ((None, None, None, None), None),
        ((0, None, None, None), LoadDetails(requests=0)),
        ((3.0, MAX_COUNT, 2, 1), LoadDetails(3, MAX_COUNT, 2, 1.0)),
        ((None, None, None, 0.25), LoadDetails(latency_ms=0.25)),
    ],
)
def test_valid_values_are_taken(given: tuple[object, ...], made: LoadDetails | None) -> None:
    assert load_details(*given) == made


@pytest.mark.parametrize("place", range(4))
@pytest.mark.parametrize("value", [-1, True, "7", [], {}, float("nan"), float("inf"), 10**400, MAX_COUNT + 1])
def test_other_values_are_refused_by_their_name(place: int, value: object) -> None:
    values: list[object] = [None] * 4
    values[place] = value
    with pytest.raises(Refusal, match=("requests", "errors", "in_flight", "latency_ms")[place]) as refused:
        load_details(*values)
    assert refused.value.reason is Reason.PARAMETER


def test_a_count_has_no_fraction() -> None:
    with pytest.raises(Refusal):
        load_details(0.5, None, None, None)
