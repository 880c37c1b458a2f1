"""Windows: what an answer is the first one for, and when there is room.

Tests are named after the rows of tests/contract/test_mtl_conformance.py.
"""

from __future__ import annotations

import attrs
from hypothesis import given
from hypothesis import strategies as st

from broker.wires.mtl.sessions.profile_interface import SendWindow


@attrs.frozen(eq=False)
class Thing:
    size: int = 1


def window_of(*sequences: int, most: int = 100, most_bytes: int = 1_000) -> tuple[SendWindow[Thing], dict[int, Thing]]:
    window: SendWindow[Thing] = SendWindow(most, most_bytes)
    things = {sequence: Thing() for sequence in sequences}
    for sequence, thing in things.items():
        window.add(sequence, thing)
    return window, things


def test_K04_an_answer_is_for_one_or_for_all_up_to_it() -> None:
    window, things = window_of(*range(1, 21))
    assert window.answered(3, False) == [things[3]]
    assert window.answered(10, True) == [things[n] for n in (1, 2, 4, 5, 6, 7, 8, 9, 10)]
    assert window.answered(20, True) == [things[n] for n in range(11, 21)]
    assert (len(window), window.bytes) == (0, 0)


def test_K07_the_first_answer_counts() -> None:
    window, things = window_of(1, 2, 3)
    assert window.answered(2, False) == [things[2]]
    assert window.answered(2, False) == []
    assert window.answered(2, True) == [things[1]]
    assert window.answered(2, True) == []
    assert len(window) == 1


def test_K02_answers_to_what_was_never_sent_are_for_nothing() -> None:
    window, things = window_of(5, 7)
    for sequence in (0, 1, 6, 8, 2**64 - 1):
        assert window.answered(sequence, False) == []
    assert window.answered(0, True) == []
    assert window.answered(8, True) == []
    assert window.answered(2**64 - 1, True) == []
    assert window.answered(6, True) == [things[5]]  # a number that was used up by what could not be sent
    assert window.answered(7, True) == [things[7]]


def test_K10_there_is_room_until_so_many_are_outstanding() -> None:
    window: SendWindow[Thing] = SendWindow(2, 1_000)
    assert window.room
    assert window.add(1, Thing())
    assert not window.add(2, Thing())
    assert not window.room
    window.answered(1, False)
    assert window.room


def test_K10_there_is_room_until_there_are_so_many_bytes() -> None:
    window: SendWindow[Thing] = SendWindow(100, 1_000)
    assert window.add(1, Thing(999))
    assert not window.add(2, Thing(5_000))
    window.answered(1, False)
    assert not window.room
    window.answered(2, False)
    assert window.room
    assert window.bytes == 0


def test_in_the_end_all_that_is_outstanding_comes_back_in_order() -> None:
    window, things = window_of(1, 2, 5, 9)
    window.answered(2, False)
    assert window.clear() == [things[1], things[5], things[9]]
    assert window.room
    assert window.clear() == []
    assert window.answered(9, True) == []


@given(st.lists(st.tuples(st.sampled_from(["add", "skip", "one", "many"]), st.integers(0, 30)), max_size=60))
def test_windows_do_as_a_plain_list_would(steps: list[tuple[str, int]]) -> None:
    window: SendWindow[Thing] = SendWindow(5, 20)
    plain: dict[int, Thing] = {}
    sequence = last = 0
    for what, number in steps:
        covered: list[int] = []
        if what == "add" and window.room:
            sequence = last = sequence + 1
            plain[sequence] = Thing(number)
            assert window.add(sequence, plain[sequence]) == window.room
        elif what == "skip":
            sequence += 1
        elif what == "one":
            covered = [each for each in plain if each == number]
        elif what == "many" and number <= last:
            covered = [each for each in plain if each <= number]
        expected = [plain.pop(each) for each in covered]
        if what in ("one", "many"):
            assert window.answered(number, what == "many") == expected
        assert len(window) == len(plain)
        assert window.bytes == sum(thing.size for thing in plain.values())
        assert window.room == (len(plain) < 5 and window.bytes < 20)
