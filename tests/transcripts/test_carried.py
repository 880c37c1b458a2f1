"""The original over HTTP and RTCP: ours says the same to the same clients, but for the differences that are meant.

`carried/differences.txt` lists those; both it and a failing test print them in the same form.
"""

from __future__ import annotations

from difflib import SequenceMatcher

import pytest

from tests.transcripts.carried_replay import Answer, original, replay
from tests.transcripts.compare import Difference
from tests.transcripts.listed import Listed, assert_meant, parse
from tests.transcripts.recordings import HERE, Recording, load
from tests.transcripts.shown import shown

CARRIED = HERE / "carried"

PROMPT = 0.1
"""Seconds that the original may take for what ours does in none."""

LATE = -1.0
"""Seconds of the original before ours, for what only a deadline causes: those are looked at once a second."""

NAMES = ("b38_http", "b39_rtcp")


def recording(name: str) -> Recording:
    return load(f"../{CARRIED.name}/{name}")


def known() -> Listed:
    return parse((CARRIED / "differences.txt").read_text("utf-8"))


def differences(recorded: Recording, http: bool) -> list[Difference]:
    """All differences, connection by connection."""
    theirs, ours = original(recorded, http), replay(recorded, http)
    found = []
    for conn in dict.fromkeys(answer.conn for answer in theirs + ours):
        one = [answer for answer in theirs if answer.conn == conn]
        other = [answer for answer in ours if answer.conn == conn]
        matcher = SequenceMatcher(None, [_form(each) for each in one], [_form(each) for each in other], autojunk=False)
        for kind, a, b, c, d in matcher.get_opcodes():
            if kind == "equal":
                for early, late in zip(other[c:d], one[a:b], strict=True):
                    assert (LATE if '"msgs": []' in early.text else 0) <= late.at - early.at <= PROMPT, (late, early)
                continue
            left, right = [_form(each) for each in one[a:b]], [_form(each) for each in other[c:d]]
            for number in range(max(len(left), len(right))):
                pair = [side[number] if number < len(side) else None for side in (left, right)]
                found.append(Difference(recorded.short, conn, *pair))
    return found


def _form(answer: Answer) -> str:
    return shown(answer.text)


@pytest.mark.parametrize("name", NAMES)
def test_differs_from_the_original_only_where_it_is_meant_to(name: str) -> None:
    recorded = recording(name)
    assert_meant(differences(recorded, http="http" in name), known(), recorded.short)


@pytest.mark.parametrize("name", NAMES)
def test_most_of_what_the_original_says_is_said_by_ours_too(name: str) -> None:
    recorded = recording(name)
    said = len(original(recorded, http="http" in name))
    assert len([each for each in known().of(recorded.short) if each.original]) < said / 2


def test_every_listed_difference_has_an_explained_reason() -> None:
    known().check(NAMES)
