"""Our director holds the conversations of the original, but for the differences that are meant.

`differences_director.txt` lists and explains these. ``--rewrite-transcripts`` is as for the broker.
"""

from __future__ import annotations

import json
from collections import Counter

import pytest

from tests.transcripts.compare import differences, original
from tests.transcripts.golden import conversation
from tests.transcripts.listed import listed
from tests.transcripts.recordings import HERE, OF_DIRECTOR, OF_FARM, load, names
from tests.transcripts.replay import CLOSED, replay

NAMES = [*names(OF_DIRECTOR), *names(OF_FARM)]
GOLDEN = HERE / "golden_director"
LIST = "differences_director.txt"


@pytest.mark.parametrize("name", NAMES)
def test_differs_from_the_original_only_where_it_is_meant_to(name: str) -> None:
    recording = load(name)
    found = Counter(map(str, differences(recording, replay(recording))))
    meant = Counter(map(str, listed(LIST).of(recording.short)))
    unlisted = "\n".join((found - meant).elements())
    missing = "\n".join((meant - found).elements())
    assert (unlisted, missing) == ("", ""), f"\nnot listed:\n{unlisted}\n\nlisted, but not found:\n{missing}"


@pytest.mark.parametrize("name", NAMES)
def test_says_what_it_is_known_to_say(name: str, rewrite: bool) -> None:
    recording = load(name)
    path = GOLDEN / f"{recording.short}.txt"
    said = conversation(recording, replay(recording))
    if rewrite:
        path.write_text(said, "utf-8")
    assert said == path.read_text("utf-8")


@pytest.mark.parametrize("name", NAMES)
def test_every_reservation_that_is_given_is_told_to_a_server(name: str) -> None:
    messages = [json.loads(said.text) for said in replay(load(name)) if said.text != CLOSED]
    given = [each["reservation"] for each in messages if each["op"] == "reserve" and "deny" not in each]
    told = [each["reservation"] for each in messages if each["op"] == "doreserve"]
    assert Counter(given) == Counter(told)
    assert len(set(given)) == len(given)


@pytest.mark.parametrize("name", names(OF_FARM))
def test_no_real_server_is_told_to_close_what_it_has_open(name: str) -> None:
    recording = load(name)
    asked = [event.data for event in recording.events if b'op:"close"' in event.data]
    closes = [said.text for said in replay(recording) if '"op":"close"' in said.text]
    assert len(closes) == len(asked), "only an administrator has anything closed"
    assert not any('"dup"' in text for text in closes)


def test_every_recording_has_something_to_compare() -> None:
    assert {name for name in NAMES if len(original(load(name))) == 0} == set()
    assert {path.stem for path in GOLDEN.iterdir()} == {name[:3] for name in NAMES}


def test_every_listed_difference_has_a_recording_and_an_explained_reason() -> None:
    known = listed(LIST)
    assert {difference.recording for difference, _ in known.entries} <= {name[:3] for name in NAMES}
    used = {reason for _, reasons in known.entries for reason in reasons}
    assert used == set(known.reasons)
    assert all(difference.original or difference.ours for difference, _ in known.entries)
