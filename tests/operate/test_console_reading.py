"""Long tables at the console: read in turns of the reactor, with the operator's other commands in order."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable

import pytest

from broker.operate.console_input import MAX_HELD_COMMANDS
from broker.wires.tables import ITEMS, MAX_ROWS
from tests.operate.test_console import Operator, enter, listed
from tests.wires.recording import ElkoFarm

COUNT = 5 * ITEMS


class Turns:
    """The turns of a reactor, run by hand."""

    def __init__(self) -> None:
        self.steps: deque[Callable[[], None]] = deque()
        farm = ElkoFarm()
        view = listed(lambda: [f"name-{number:04}" for number in range(COUNT)])
        self.operator: Operator = enter(farm, views={"farm names": view}, later=self.steps.append, version="1.2")
        self.operator.read()

    def run(self) -> int:
        """Run all turns. Returns their number."""
        count = 0
        while self.steps:
            self.steps.popleft()()
            count += 1
        return count


@pytest.fixture
def turns() -> Turns:
    return Turns()


def test_a_long_table_is_read_in_many_turns(turns: Turns) -> None:
    assert turns.operator.type("farm names *-0042") == ""
    assert turns.run() > COUNT / ITEMS
    assert json.loads(turns.operator.read()) == [{"name": "name-0042"}]


def test_the_reading_ends_with_the_last_row_that_is_shown(turns: Turns) -> None:
    turns.operator.type("farm names")
    turns.run()
    assert len(json.loads(turns.operator.read())) == MAX_ROWS


def test_commands_that_are_typed_meanwhile_are_answered_afterwards_in_order(turns: Turns) -> None:
    assert turns.operator.type("farm names *-0042", "version", "farm names *-0007", "nonsense") == ""
    turns.run()
    text = turns.operator.read()
    places = [text.index(each) for each in ("0042", "elkobroker 1.2", "0007", "error: ")]
    assert places == sorted(places)


def test_the_number_of_held_commands_is_bounded(turns: Turns) -> None:
    turns.operator.type("farm names *-0042")
    assert turns.operator.type(*["version"] * MAX_HELD_COMMANDS) == ""
    assert "wait already" in turns.operator.type("version")
    turns.run()
    assert turns.operator.read().count("elkobroker 1.2") == MAX_HELD_COMMANDS


def test_the_last_answers_are_printed_after_the_end_of_input(turns: Turns) -> None:
    turns.operator.type("farm names *-0042", "version")
    assert turns.operator.session.input_ended()
    assert not turns.operator.closed
    turns.run()
    assert "elkobroker 1.2" in turns.operator.read()
    assert turns.operator.closed


def test_the_reading_stops_with_the_connection(turns: Turns) -> None:
    turns.operator.type("farm names *-0042")
    turns.operator.drop()
    assert turns.run() <= 1
