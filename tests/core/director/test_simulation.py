"""An hour of a farm, see `simulated_farm`: the director does nearly as well as who knows everything."""

from __future__ import annotations

import pytest

from tests.core.director.rig import check
from tests.core.director.simulated_farm import USERS, Directed, Oracle, World

WORST = 1.1
"""The permitted excess of the director's highest load over the oracle's."""


@pytest.mark.long
@pytest.mark.parametrize("seed", [2, 3])
def test_an_hour_of_fifty_servers_and_twenty_thousand_users(seed: int) -> None:
    # The worlds themselves assert that no capacity is exceeded, and that each user is found at their server.
    world = World(seed, Directed)
    world.run()
    oracle = World(seed, Oracle)
    oracle.run()
    assert world.visits > USERS
    assert world.deaths > 30
    assert world.highest <= WORST * oracle.highest
    assert world.entries >= 0.97 * oracle.entries
    assert isinstance(world.placing, Directed)
    director = world.placing.director
    check(director)
    counts = director.counts()
    assert counts["granted"] == counts["used"] + sum(
        counts[end] for end in ("expired", "lost", "replaced", "reservations")
    )
    assert counts["replaced"] > 0.1 * USERS
    assert counts["hidden_contexts"] == 0
    assert counts["links"] == 2 * counts["providers"]
