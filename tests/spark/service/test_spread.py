"""The spread of values."""

import numpy as np
import pytest

from spark.capacity.service.balance import spread

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
def test_the_spread_is_that_of_the_textbook_formulas(name):
    values = SHAPES[name]
    assert spread(values) == pytest.approx(spread_of_all(values), abs=1e-6)


def spread_of_all(values):
    """The spread by its textbook formulas."""
    ordered, count = np.sort(values), len(values)
    ranked = (np.arange(1, count + 1) * ordered).sum()
    return {
        "cov": values.std() / values.mean(),
        "max_mean": values.max() / values.mean(),
        "gini": 2 * ranked / (count * values.sum()) - (count + 1) / count,
    }
