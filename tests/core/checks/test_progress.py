"""The state machine of a check, outcome by outcome."""

import pytest

from broker.core.checks.check_rules import GIVE_UP, Outcome, Progress
from broker.core.model import CheckState

PASS, FAIL, UNKNOWN = Outcome(True, "answered"), Outcome(False, "refused"), Outcome(None, "no descriptor")


def states(outcomes, ping=False, up=2, down=3):
    progress = Progress.begin(ping, 0.0)
    seen = []
    for now, outcome in enumerate(outcomes, 1):
        progress = progress.after(outcome, up, down, float(now))
        seen.append(progress.check.state.value)
    return seen, progress


@pytest.mark.parametrize(
    ("outcomes", "last"),
    [
        ([], "untested"),
        ([PASS], "passing"),
        ([FAIL, FAIL], "untested"),
        ([FAIL, FAIL, FAIL], "failing"),
        ([PASS, FAIL], "doubtful"),
        ([PASS, FAIL, FAIL], "doubtful"),
        ([PASS, FAIL, FAIL, PASS], "passing"),
        ([PASS, FAIL, FAIL, FAIL], "failing"),
        ([PASS, FAIL, FAIL, PASS, FAIL, FAIL], "doubtful"),
        ([FAIL, FAIL, FAIL, PASS], "failing"),
        ([FAIL, FAIL, FAIL, PASS, PASS], "passing"),
        ([FAIL, FAIL, FAIL, PASS, FAIL, PASS], "failing"),
        ([PASS, FAIL, FAIL, UNKNOWN, FAIL], "failing"),
        ([PASS, UNKNOWN, UNKNOWN, UNKNOWN, UNKNOWN], "passing"),
    ],
)
def test_thresholds(outcomes, last):
    seen, progress = states(outcomes)
    assert progress.check.state == last
    assert (seen or ["untested"])[-1] == last


def test_the_state_has_its_reason_and_its_time():
    _, progress = states([PASS, FAIL, FAIL, FAIL, FAIL])
    assert progress.check.reason == "refused"
    assert progress.check.since == 4.0


def test_a_peer_that_never_answered_a_ping_is_untested_and_given_up():
    seen, progress = states([FAIL] * GIVE_UP, ping=True)
    assert set(seen) == {"untested"}
    assert progress.hopeless
    assert "has not answered any yet" in progress.check.reason


def test_a_peer_that_answered_a_ping_once_fails_like_any_other():
    seen, progress = states([FAIL, PASS, FAIL, FAIL, FAIL], ping=True)
    assert seen == ["untested", "passing", "doubtful", "doubtful", "failing"]
    assert not progress.hopeless


def test_a_check_that_cannot_be_made_tells_why():
    _, progress = states([UNKNOWN])
    assert progress.check.state is CheckState.UNTESTED
    assert progress.check.reason == "no descriptor"
