"""State machine of the journal: its table of transitions."""

from __future__ import annotations

import pytest
from twisted.internet.defer import Deferred
from twisted.internet.task import Clock

from broker.export.journal import STOPPING, TRANSITIONS, Journal
from broker.export.journal import JournalEvent as Event
from broker.export.journal import JournalState as State
from broker.export.segments import JournalLimits, Segments


def test_every_state_but_the_first_is_reached_from_another_and_closed_is_the_end() -> None:
    assert {after for (before, _), after in TRANSITIONS.items() if after is not before} == set(State) - {State.NEW}
    assert {after for (before, _), after in TRANSITIONS.items() if before is State.CLOSED} == {State.CLOSED}


def test_no_way_leads_back_from_a_stop() -> None:
    assert all(after in STOPPING for (before, _), after in TRANSITIONS.items() if before in STOPPING)


def test_a_stop_and_its_timeout_are_possible_wherever_they_can_come() -> None:
    assert {before for before, event in TRANSITIONS if event is Event.STOP} == set(State) - STOPPING
    assert {before for before, event in TRANSITIONS if event is Event.TIMEOUT} == STOPPING - {State.CLOSED}


def test_an_event_that_cannot_come_is_a_defect(tmp_path: object) -> None:
    segments = Segments(str(tmp_path), "a", "b", JournalLimits())
    journal = Journal(Clock(), lambda *job: Deferred(), segments)
    journal.start()
    with pytest.raises(KeyError):
        journal.start()
    segments.close()
