"""SRV weights."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from broker.wires.dns.zone import weights

loads = st.floats(min_value=0, allow_nan=False, allow_infinity=False)


def test_examples() -> None:
    assert weights([]) == []
    assert weights([0.0, 0.0]) == [1000, 1000]
    assert weights([3.0, 3.0]) == [500, 500]
    assert weights([0.0, 1.0, 2.0]) == [1000, 500, 333]
    assert weights([0.0, 0.0, 0.0, 4.0]) == [1000, 1000, 1000, 200]
    assert weights([None, None]) == [1, 1]
    assert weights([None, 1.0]) == [1, 500]


@given(st.lists(loads | st.none(), max_size=10))
def test_less_load_never_has_less_weight(loads: list[float | None]) -> None:
    result = weights(loads)
    assert all(1 <= weight <= 1000 for weight in result)
    known = sorted((load, -weight) for load, weight in zip(loads, result, strict=True) if load is not None)
    ordered = [-weight for _, weight in known]
    assert ordered == sorted(ordered, reverse=True)


@given(st.lists(st.floats(0.01, 100), min_size=1, max_size=10), st.sampled_from([1e-3, 1e3, 1e6]))
def test_the_unit_of_loads_does_not_matter(loads: list[float], unit: float) -> None:
    one, other = weights(loads), weights([load * unit for load in loads])
    assert all(abs(a - b) <= 1 for a, b in zip(one, other, strict=True))
