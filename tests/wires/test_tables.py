"""Scans of views: selection, order and pages, in pieces of bounded work."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.access.rights import EVERY_ENTRY
from broker.core.errors import Refusal
from broker.wires.tables import ITEMS, ROWS, Column, Row, Scan, Selection, View, join, page

Thing = dict[str, Any]


def view(things: Sequence[Thing], name: str = "zoo animals", **more: Any) -> View[Thing]:
    return View(
        name,
        "Shows animals.",
        (Column("name", "Its name"), Column("size", "Its size", "metres"), Column("tags", "Its tags")),
        lambda: list(things),
        dict,
        lambda thing: (thing["name"],),
        **more,
    )


def rows(view: View[Any], **selection: Any) -> list[Row]:
    return [row for rows in Scan(view, Selection(**selection), EVERY_ENTRY) for row in rows]


ANIMALS: list[Thing] = [
    {"name": "ant", "size": 0.01, "tags": ["small", "red"]},
    {"name": "bear", "size": 2},
    {"name": "auk", "size": 0.4, "tags": []},
    {"name": "bat"},
]

LOADS: list[Thing] = [
    {"name": "idle", "size": 0.0},
    {"name": "half", "size": 0.5},
    {"name": "none", "size": None},
    {"name": "full", "size": 2**60},
]


def names(found: Sequence[Row]) -> list[object]:
    return [row["name"] for row in found]


def test_without_a_selection_all_rows_come_in_the_order_of_the_view() -> None:
    assert rows(view(ANIMALS)) == ANIMALS
    assert page(view(ANIMALS), offset=1, limit=2) == ANIMALS[1:3]


def test_a_pattern_selects_keys() -> None:
    assert names(rows(view(ANIMALS), pattern="a*")) == ["ant", "auk"]
    assert names(rows(view(ANIMALS), pattern="b*", offset=1)) == ["bat"]


def test_rows_without_the_column_come_last_in_either_order() -> None:
    assert names(rows(view(ANIMALS), sort="size")) == ["ant", "auk", "bear", "bat"]
    assert names(rows(view(ANIMALS), sort="-size")) == ["bear", "auk", "ant", "bat"]
    assert names(rows(view(ANIMALS), sort="-name", limit=2)) == ["bear", "bat"]


def test_a_view_may_have_an_order_of_its_own() -> None:
    assert names(rows(view(ANIMALS, order="name"))) == ["ant", "auk", "bat", "bear"]
    assert names(rows(view(ANIMALS, order="name"), sort="-name")) == ["bear", "bat", "auk", "ant"]


@pytest.mark.parametrize(
    ("condition", "found"),
    [
        (("name", "bat"), ["bat"]),
        (("size", "2"), ["bear"]),
        (("size", "0.4"), ["auk"]),
        (("size", ""), ["bat"]),
        (("tags", "red"), ["ant"]),
        (("tags", "r"), []),
    ],
)
def test_conditions_compare_the_text_of_a_value(condition: tuple[str, str], found: list[str]) -> None:
    assert names(rows(view(ANIMALS), where=[condition])) == found


@pytest.mark.parametrize(
    ("condition", "found"),
    [
        (("size", "0"), ["idle"]),
        (("size", "0.0"), ["idle"]),
        (("size", ".50"), ["half"]),
        (("size", "5e-1"), ["half"]),
        (("size", "low"), []),
        (("size", ""), ["none"]),
        (("size", f"{2**60}"), ["full"]),
        (("size", f"{2**60 + 1}"), []),
    ],
)
def test_conditions_compare_the_value_of_a_float(condition: tuple[str, str], found: list[str]) -> None:
    assert names(rows(view(LOADS), where=[condition])) == found


def test_all_conditions_hold_at_once() -> None:
    assert names(rows(view(ANIMALS), where=[("tags", "red"), ("size", "0.01")])) == ["ant"]
    assert names(rows(view(ANIMALS), where=[("tags", "red"), ("size", "2")])) == []


@pytest.mark.parametrize("selection", [{"sort": "weight"}, {"sort": "-weight"}, {"where": [("weight", "1")]}])
def test_an_unknown_column_is_refused_before_any_work(selection: dict[str, Any]) -> None:
    with pytest.raises(Refusal, match="no column 'weight'"):
        Scan(view(ANIMALS), Selection(**selection), EVERY_ENTRY)


@given(
    st.lists(st.one_of(st.integers(-5, 5), st.text(max_size=2), st.booleans(), st.none())),
    st.integers(0, 12),
    st.integers(1, 12),
    st.booleans(),
)
def test_a_page_of_a_sort_is_the_page_of_the_whole_sort(
    sizes: list[object], offset: int, limit: int, descending: bool
) -> None:
    things: list[Thing] = [{"name": str(n), "size": size} for n, size in enumerate(sizes)]
    sort = "-size" if descending else "size"
    whole = rows(view(things), sort=sort)
    assert sorted(map(str, names(whole))) == sorted(str(n) for n in range(len(sizes)))
    scan = Scan(view(things), Selection(sort=sort, offset=offset, limit=limit), EVERY_ENTRY)
    assert [row for some in scan for row in some] == whole[offset : offset + limit]
    assert scan.total == len(things)


def test_a_large_table_is_sorted_in_small_pieces() -> None:
    count, made = 10 * ITEMS + 7, 0

    def row(item: int) -> Row:
        nonlocal made
        made += 1
        return {"name": str(item), "size": (item * 7919) % count}

    large: View[int] = View("zoo ants", "", (Column("size", ""),), lambda: range(count), row, lambda item: (str(item),))
    scan = Scan(large, Selection(sort="size", offset=2 * ITEMS, limit=250), EVERY_ENTRY)
    found: list[Row] = []
    for some in scan:
        assert made <= ROWS
        made = 0
        found += some
    assert not some, "what was sorted is freed in pieces, too"
    assert [each["size"] for each in found] == list(range(2 * ITEMS, 2 * ITEMS + 250))
    assert scan.total == count


def test_a_long_page_without_a_sort_comes_in_small_pieces() -> None:
    things: list[Thing] = [{"name": str(n)} for n in range(3 * ITEMS)]
    scan = Scan(view(things), Selection(offset=ITEMS - 50, limit=ITEMS), EVERY_ENTRY)
    pieces = list(scan)
    assert max(map(len, pieces)) == ROWS
    assert names([row for some in pieces for row in some]) == [str(n) for n in range(ITEMS - 50, 2 * ITEMS - 50)]
    assert scan.total == len(things)


def test_views_of_several_wires_are_joined_with_the_wire_in_a_column() -> None:
    other: View[Thing] = View(
        "farm animals", "", (Column("name", ""), Column("milk", "")), lambda: [{"name": "cow", "milk": True}], dict,
        lambda thing: (thing["name"],),
    )  # fmt: skip
    joined = join("broker animals", "Shows all animals.", [view(ANIMALS[:1]), other])
    assert [column.name for column in joined.columns] == ["wire", "name", "size", "tags", "milk"]
    assert rows(joined, sort="-name") == [
        {"wire": "farm", "name": "cow", "milk": True},
        {"wire": "zoo", **ANIMALS[0]},
    ]
    assert names(rows(joined, where=[("wire", "zoo")])) == ["ant"]


@pytest.mark.long
def test_the_items_are_read_lazily() -> None:
    seen = 0

    def items() -> Iterator[Thing]:
        nonlocal seen
        for seen in range(1, 3 * ITEMS + 1):
            yield {"name": str(seen)}

    scan = iter(
        Scan(View("zoo ants", "", (), items, dict, lambda thing: (thing["name"],)), Selection(limit=1), EVERY_ENTRY)
    )
    next(scan)
    assert seen == ITEMS
