"""The differences from the original that are meant, as `differences.txt` lists and explains them.

Those of the director are in `differences_director.txt`.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable

import attrs

from tests.transcripts.compare import Difference
from tests.transcripts.recordings import HERE

_reason = re.compile(r"([a-z-]+): (.+)")
_entry = re.compile(r"([bcd]\d\d) (\S+) ([a-z-]+(?: [a-z-]+)*)")
_side = re.compile(r"  ([-+]) (.+)")


@attrs.frozen
class Listed:
    """The whole list: each reason's sentence, and each difference with its reasons."""

    reasons: dict[str, str]
    entries: tuple[tuple[Difference, tuple[str, ...]], ...]

    def of(self, recording: str) -> list[Difference]:
        """The differences of one recording."""
        return [difference for difference, _ in self.entries if difference.recording == recording]

    def check(self, names: Iterable[str]) -> None:
        """Assert that each difference is one of these recordings, and has a reason that is explained."""
        assert {difference.recording for difference, _ in self.entries} <= {name[:3] for name in names}
        assert {reason for _, reasons in self.entries for reason in reasons} == set(self.reasons)
        assert all(difference.original or difference.ours for difference, _ in self.entries)


def assert_meant(differences: Iterable[Difference], known: Listed, recording: str) -> None:
    """Assert that a recording has the differences that are listed of it, and no others."""
    found = Counter(map(str, differences))
    meant = Counter(map(str, known.of(recording)))
    unlisted = "\n".join((found - meant).elements())
    missing = "\n".join((meant - found).elements())
    assert (unlisted, missing) == ("", ""), f"\nnot listed:\n{unlisted}\n\nlisted, but not found:\n{missing}"


def listed(file: str) -> Listed:
    """Read a list. Its head explains the form."""
    return parse((HERE / file).read_text("utf-8"))


def parse(text: str) -> Listed:
    """The same from a text."""
    reasons: dict[str, str] = {}
    entries: list[tuple[Difference, tuple[str, ...]]] = []
    for line in text.split("\n"):
        if not line or line.startswith("#"):
            continue
        if match := _side.fullmatch(line):
            difference, why = entries.pop()
            side = "original" if match[1] == "-" else "ours"
            assert getattr(difference, side) is None, line
            entries.append((attrs.evolve(difference, **{side: match[2]}), why))
        elif line.startswith("  ") and not entries:
            reasons[list(reasons)[-1]] += " " + line.strip()
        elif match := _reason.fullmatch(line):
            reasons[match[1]] = match[2]
        elif match := _entry.fullmatch(line):
            entries.append((Difference(match[1], match[2], None, None), tuple(match[3].split())))
        else:
            raise AssertionError(f"not understood: {line}")
    return Listed(reasons, tuple(entries))
