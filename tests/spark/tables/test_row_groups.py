"""Ranges of row groups: no group that has an instance is left out, whatever its name."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from spark.capacity.tables.column_reader import LONGEST, Row, footer, groups_with

LAST = "\U0010ffff"

NAMES = st.one_of(
    st.text(max_size=3),
    st.sampled_from(["a", "b", LAST, LAST * 2, "a" * LONGEST, "a" * (LONGEST + 1), "a" * LONGEST + LAST, LAST * 300]),
)
NAMED = st.tuples(NAMES, NAMES)
ROWS = st.lists(st.one_of(NAMED, st.tuples(NAMES, st.none())), min_size=1, max_size=30)


class Footer:
    """The part of a file's description that is looked at."""

    def __init__(self, groups: list[list[Row]]) -> None:
        entry = footer((group[0], group[-1]) if group else None for group in groups)
        self.metadata = {key.encode(): value.encode() for key, value in entry.items()}
        self.num_row_groups = len(groups)


def order(row: Row) -> Any:
    return tuple((name is None, name or "") for name in row)


@given(ROWS, st.integers(1, 7), st.lists(NAMED, max_size=5))
def test_all_groups_that_have_an_instance_are_found(rows: list[Row], size: int, wanted: list[tuple[str, str]]) -> None:
    rows = sorted(rows, key=order)
    groups = [rows[begin : begin + size] for begin in range(0, len(rows), size)]
    wanted = sorted({*wanted, *(row for row in rows[::9] if None not in row)})  # type: ignore[arg-type]
    found = groups_with(Footer(groups), wanted)
    assert [n for n, group in enumerate(groups) if set(group) & set(wanted)] == [
        n for n in found if set(groups[n]) & set(wanted)
    ]


def test_short_names_give_the_very_range() -> None:
    file: Any = Footer([[("a", "1"), ("a", "5")], [("a", "7"), ("c", "2")], [("c", "4"), ("c", None)], []])
    assert groups_with(file, [("a", "6")]) == groups_with(file, [("c", "3")]) == []
    assert groups_with(file, [("a", "5"), ("b", "")]) == [0, 1]
    assert groups_with(file, [("c", "4")]) == groups_with(file, [("c", "9")]) == [2]
    assert groups_with(file, [("", ""), ("d", "")]) == []


def test_long_names_are_cut_off() -> None:
    [entry] = footer([(("x" * 10_000, "y" * 10_000), ("x" * 10_000, "y" * 10_000))]).values()
    assert len(entry) < 5 * LONGEST
