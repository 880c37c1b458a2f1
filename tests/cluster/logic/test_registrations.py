"""The table of the states of a registration, and the page that shows it."""

from __future__ import annotations

import re

from broker.cluster.registrations import TRANSITIONS, Happens, State
from tests.integration.daemon import ROOT

PAGE = (ROOT / "docs" / "cluster.md").read_text().partition("## The life of a registration")[2].partition("\n## ")[0]


def test_the_page_has_the_states_of_the_table() -> None:
    assert re.findall(r"^\| \*(\w+)\*", PAGE, re.M) == [
        each.value
        for each in (
            State.CLAIMED,
            State.HELD,
            State.SUPERSEDED,
            State.VACANT,
            State.DEPARTED,
            State.ENDED,
            State.REMEMBERED,
        )
    ]
    assert set(TRANSITIONS) == set(State) - {State.GONE}


def test_each_arrow_of_the_diagram_is_a_transition() -> None:
    made = {(before.value, after.value) for before, ways in TRANSITIONS.items() for after in ways.values()}
    arrows = re.findall(r"^    (\S+) --> (\S+):? ?", PAGE, re.M)
    assert len(arrows) > 10
    for before, after in arrows:
        assert before == "[*]" or (before, after.replace("[*]", "gone").rstrip(":")) in made, (before, after)


def test_a_session_ends_in_the_states_that_have_one() -> None:
    """In the others there is none, also during a stop; what is read in a new session with etcd concerns all states."""
    living = {State.CLAIMED, State.HELD, State.SUPERSEDED, State.VACANT}
    for event in (Happens.ENDS, Happens.DEPARTS):
        assert {state for state, ways in TRANSITIONS.items() if event in ways} == living
    for event in (Happens.ACT, Happens.READ_OURS, Happens.READ_THEIRS, Happens.READ_NOTHING):
        assert {state for state, ways in TRANSITIONS.items() if event in ways} == set(TRANSITIONS)
    assert {ways[Happens.ACT] for ways in TRANSITIONS.values()} == {State.CLAIMED}
