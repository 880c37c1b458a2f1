"""Our broker holds the conversations of the original, but for the differences that are meant.

`pytest tests/transcripts --rewrite-transcripts` rewrites the golden conversations. The list of differences is edited
by hand, since each needs a reason.
"""

from __future__ import annotations

from collections import Counter

import pytest

from tests.transcripts.compare import differences, original
from tests.transcripts.golden import conversation
from tests.transcripts.listed import listed
from tests.transcripts.recordings import HERE, load, names
from tests.transcripts.replay import replay

GOLDEN = HERE / "golden"


@pytest.mark.parametrize("name", names())
def test_differs_from_the_original_only_where_it_is_meant_to(name: str) -> None:
    recording = load(name)
    found = Counter(differences(recording, replay(recording)))
    meant = Counter(listed().of(recording.short))
    unlisted = "\n".join(str(difference) for difference in (found - meant).elements())
    missing = "\n".join(str(difference) for difference in (meant - found).elements())
    assert (unlisted, missing) == ("", ""), f"\nnot listed:\n{unlisted}\n\nlisted, but not found:\n{missing}"


@pytest.mark.parametrize("name", names())
def test_says_what_it_is_known_to_say(name: str, rewrite: bool) -> None:
    recording = load(name)
    path = GOLDEN / f"{recording.short}.txt"
    said = conversation(recording, replay(recording))
    if rewrite:
        path.write_text(said, "utf-8")
    assert said == path.read_text("utf-8")


@pytest.mark.parametrize("name", names())
def test_says_the_same_each_time(name: str) -> None:
    recording = load(name)
    assert replay(recording) == replay(recording)


def test_every_recording_has_something_to_compare() -> None:
    assert {name[:3] for name in names() if len(original(load(name))) == 0} == set()
    assert {path.stem for path in GOLDEN.iterdir()} == {name[:3] for name in names()}


def test_every_listed_difference_has_a_recording_and_an_explained_reason() -> None:
    known = listed()
    assert {difference.recording for difference, _ in known.entries} <= {name[:3] for name in names()}
    used = {reason for _, reasons in known.entries for reason in reasons}
    assert used == set(known.reasons)
    assert all(difference.original or difference.ours for difference, _ in known.entries)
