"""Our broker and our director hold the conversations of the original, but for the differences that are meant.

`pytest tests/transcripts --rewrite-transcripts` rewrites the golden conversations. The lists of differences,
`differences.txt` and `differences_director.txt`, are edited by hand, since each needs a reason.
"""

from __future__ import annotations

import json
from collections import Counter

import pytest

from tests.transcripts.compare import differences, original
from tests.transcripts.golden import conversation
from tests.transcripts.listed import assert_meant, listed
from tests.transcripts.recordings import HERE, OF_BROKER, OF_DIRECTOR, OF_FARM, load, names
from tests.transcripts.replay import CLOSED, replay

GOLDEN = ("golden", "golden_director")
LISTS = ("differences.txt", "differences_director.txt")
NAMES = (names(), [*names(OF_DIRECTOR), *names(OF_FARM)])
"""The recordings of the broker, and of the director."""

every_name = pytest.mark.parametrize("name", [*NAMES[0], *NAMES[1]])
every_part = pytest.mark.parametrize("part", [0, 1], ids=["broker", "director"])


@every_name
def test_differs_from_the_original_only_where_it_is_meant_to(name: str) -> None:
    recording = load(name)
    assert_meant(
        differences(recording, replay(recording)), listed(LISTS[not name.startswith(OF_BROKER)]), recording.short
    )


@every_name
def test_says_what_it_is_known_to_say(name: str, rewrite: bool) -> None:
    recording = load(name)
    path = HERE / GOLDEN[not name.startswith(OF_BROKER)] / f"{recording.short}.txt"
    said = conversation(recording, replay(recording))
    if rewrite:
        path.write_text(said, "utf-8")
    assert said == path.read_text("utf-8")


@pytest.mark.parametrize("name", NAMES[0])
def test_says_the_same_each_time(name: str) -> None:
    recording = load(name)
    assert replay(recording) == replay(recording)


@pytest.mark.parametrize("name", NAMES[1])
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


@every_part
def test_every_recording_has_something_to_compare(part: int) -> None:
    assert {name for name in NAMES[part] if len(original(load(name))) == 0} == set()
    assert {path.stem for path in (HERE / GOLDEN[part]).iterdir()} == {name[:3] for name in NAMES[part]}


@every_part
def test_every_listed_difference_has_a_recording_and_an_explained_reason(part: int) -> None:
    listed(LISTS[part]).check(NAMES[part])
