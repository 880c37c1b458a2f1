"""Backoff: the range and the growth of delays."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from broker.client.transport import Backoff


def test_pauses_double_up_to_the_most() -> None:
    pauses = Backoff(0.1, 1.0, lambda: 1.0)
    assert [round(pauses.next(), 3) for _ in range(6)] == [0.1, 0.2, 0.4, 0.8, 1.0, 1.0]
    pauses.reset()
    assert pauses.next() == 0.1


@given(st.floats(0.0, 1.0, exclude_max=True), st.integers(0, 2_000))
def test_a_part_of_a_pause_is_chance(fraction: float, attempts: int) -> None:
    pauses = Backoff(0.1, 10.0, lambda: fraction)
    for _ in range(attempts):
        pauses.next()
    whole = min(0.1 * 2 ** min(attempts, 20), 10.0)
    assert whole / 2 <= pauses.next() <= whole


def test_clients_do_not_come_back_together() -> None:
    assert len({Backoff(0.1, 10.0).next() for _ in range(100)}) > 50
