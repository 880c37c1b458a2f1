"""The spread of values, of some and of more than are kept."""

import numpy as np
import pytest

from spark.capacity.service.balance import Spread, spread

CHANCE = np.random.default_rng(7)

SHAPES = {
    "even": CHANCE.normal(100.0, 5.0, 60_000),
    "skewed": CHANCE.lognormal(0.0, 1.5, 60_000),
    "two kinds": np.repeat([1.0, 50.0], 30_000),
    "one outlier": np.append(CHANCE.normal(10.0, 1.0, 59_999), 10_000.0),
    "in order": np.arange(60_000.0),
}


def test_the_spread_of_zeros_and_of_nothing_is_unknown():
    unknown = {"cov": None, "max_mean": None, "gini": None}
    assert spread(np.array([0.0, 0.0])) == spread(np.array([])) == unknown
    assert spread(np.array([4.0])) == {"cov": 0.0, "max_mean": 1.0, "gini": 0.0}


@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize("step", [7_000, 60_000])
def test_the_spread_of_more_values_than_are_kept_is_nearly_that_of_all(name, step):
    values = SHAPES[name]
    made = Spread(1_000)
    for begin in range(0, len(values), step):
        made.add(values[begin : begin + step])
    whole, merged = spread_of_all(values), made.told()
    assert merged["cov"] == pytest.approx(whole["cov"], rel=1e-6, abs=1e-6)
    assert merged["max_mean"] == pytest.approx(whole["max_mean"], rel=1e-6, abs=1e-6)
    assert merged["gini"] == pytest.approx(whole["gini"], abs=1e-6 + 1e-5 * whole["max_mean"])


def test_of_many_values_few_are_kept():
    made = Spread(100)
    for _ in range(50):
        made.add(CHANCE.random(90))
        assert made.kept <= 100
    assert made.count == 50 * 90


def spread_of_all(values):
    """The spread by its textbook formulas."""
    ordered, count = np.sort(values), len(values)
    ranked = (np.arange(1, count + 1) * ordered).sum()
    return {
        "cov": values.std() / values.mean(),
        "max_mean": values.max() / values.mean(),
        "gini": 2 * ranked / (count * values.sum()) - (count + 1) / count,
    }
