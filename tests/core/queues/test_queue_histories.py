"""Histories of queues in a cluster: no message that an author was confirmed is lost, memory and store agree."""

import pytest

from tests.core.queues.queue_history import QueueHistory


@pytest.mark.parametrize("seed", range(10))
def test_confirmed_messages_survive_faults_and_moves(seed: int) -> None:
    QueueHistory(seed).run()


@pytest.mark.long
@pytest.mark.parametrize("first", range(1_000, 3_000, 100))
def test_confirmed_messages_survive_faults_and_moves_in_many_histories(first: int) -> None:
    for seed in range(first, first + 100):
        QueueHistory(seed).run()
