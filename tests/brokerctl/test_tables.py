"""Tables on terminals: the widths of columns."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from broker.brokerctl.output import NARROWEST, Column, chosen, fitted, table


@pytest.mark.parametrize(
    ("widths", "room", "cut"),
    [
        ([], 80, []),
        ([10, 20], 80, [10, 20]),
        ([10, 170], 80, [10, 70]),
        ([57, 10, 170], 104, [47, 10, 47]),
        ([50, 50], 80, [40, 40]),
        ([50, 50], 10, [NARROWEST, NARROWEST]),
    ],
)
def test_the_widest_columns_are_cut_and_narrow_ones_stay(widths: list[int], room: int, cut: list[int]) -> None:
    assert fitted(widths, room) == cut


def test_a_short_value_is_shown_beside_a_long_one() -> None:
    rows = [{"key": "http.hosts", "reloadable": True, "value": "x" * 500}, {"key": "k", "reloadable": False}]
    columns = [Column("key"), Column("reloadable"), Column("value")]
    to = io.StringIO()
    Console(file=to, width=80).print(table(rows, chosen(rows, columns, False, 80), False, 80))
    head, first, second = (line.split() for line in to.getvalue().splitlines())
    assert head == ["KEY", "RELOADABLE", "VALUE"]
    assert (first[:2], first[2][-1]) == (["http.hosts", "yes"], "…")
    assert second[:2] == ["k", "no"]
    assert all(len(line) <= 80 for line in to.getvalue().splitlines())
