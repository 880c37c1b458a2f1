"""Partitioning of a date."""

import pytest

from spark.capacity.rollup import partitioning
from spark.capacity.rollup.date_survey import Pair
from spark.capacity.rollup.partitioning import ROWS, SMALL, Part, divide, in_tasks


def pair(provider: int, instance: str, service: str = "s", boot: str = "one") -> Pair:
    return Pair("b", boot, service, provider, instance)


def test_what_shares_a_registration_or_an_instance_stays_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(partitioning, "SMALL", 1)
    renamed = [pair(1, "a:1"), pair(1, "b:1"), pair(2, "b:1"), pair(9, "b:1", boot="two")]
    alone = [pair(3, "c:1"), pair(3, "c:1", service="other")]
    made = divide(dict.fromkeys([*renamed, *alone], 1), 100)
    assert sorted(sorted(part.pairs) for part in made) == sorted([sorted(renamed), *([one] for one in alone)])


def test_parts_are_of_about_the_same_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(partitioning, "SMALL", 1)
    monkeypatch.setattr(partitioning, "LARGE", 10_000_000)
    sizes = {pair(number, f"{number}:1"): number * 1000 for number in range(100)}
    made = divide(sizes, 4)
    filled = [sum(sizes[one] + ROWS for one in part.pairs) for part in made]
    assert filled == [part.size for part in made]
    assert len(made) == 4
    assert max(filled) - min(filled) < 100_000
    assert sorted(one for part in made for one in part.pairs) == sorted(sizes)


def test_a_part_is_never_larger_than_fits_into_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(partitioning, "LARGE", 10 * ROWS)
    made = divide({pair(number, f"{number}:1"): 0 for number in range(95)}, 1)
    assert max(len(part.pairs) for part in made) == 10


def test_little_is_one_part_and_nothing_is_none() -> None:
    assert divide({pair(1, "a:1"): 5, pair(2, "b:1"): 5}, 8) == [Part([pair(1, "a:1"), pair(2, "b:1")], 10 + 2 * ROWS)]
    assert divide({}, 8) == []


def test_small_parts_share_a_task_and_large_ones_have_their_own() -> None:
    half, much = SMALL // 2, 10 * SMALL
    assert in_tasks([(half, "a"), (half, "b"), (half, "c"), (much, "d"), (much, "e"), (0, "f")]) == [
        ["a", "b"], ["c", "d"], ["e"], ["f"],
    ]  # fmt: skip
    assert in_tasks([]) == []
