"""The news that a connection of the data flow is over, where the next connection has its descriptor at once."""

from __future__ import annotations

import pytest

from broker.session.mtl.data import GRACE
from tests.session.mtl_data_recording import MtlFarm


@pytest.fixture
def farm() -> MtlFarm:
    return MtlFarm()


def test_news_that_came_is_not_awaited_again(farm: MtlFarm) -> None:
    """Or the end of the next one would be taken for it."""
    first = farm.reader()
    first.drop()
    second = farm.reader()  # before the tick with which the first one ends
    assert second.line.descriptor == first.line.descriptor
    second.drop()
    farm.wait(GRACE / 2)
    assert len(farm.data) == 0


def test_news_that_has_not_come_is(farm: MtlFarm) -> None:
    first = farm.reader()
    first.drop(told=False)
    second = farm.reader()
    farm.data.closed(first.line.descriptor)
    farm.wait(2 * GRACE)
    assert len(farm.data) == 1
    second.drop()
    farm.wait(GRACE / 2)
    assert len(farm.data) == 0
