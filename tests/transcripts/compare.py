"""Our broker's messages, compared with those of the original.

Two messages are the same if they have the same members in the same order, with the same values, and strings written in
the same way (an escape is not the character that it stands for). Not compared are white space, the spelling of numbers
and, since the original has no order there, the order in some arrays and of the notices of one withdrawal; nor
reservations, which both draw at random.

The time must be the same too: what ours says comes at once, so it is at most `PROMPT` before the original's, and never
after it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from functools import lru_cache
from itertools import groupby

import attrs

from tests.transcripts.recordings import Recording
from tests.transcripts.replay import ABORTED, CLOSED, Said
from tests.transcripts.shown import shown

PROMPT = 0.1
"""Seconds that the original may take for what ours does in none. The recordings' clients waited as long for silence."""

EARLY = 1.0
"""Seconds that a message of ours may be early and still be taken for the original's."""

HANGING_UP = 0.01
"""Seconds before it closes in which a client reads nothing any more."""


UNORDERED = ("desc", "clones", "contexts", "users", "serving")
"""Arrays that are sets to the original."""


@attrs.frozen
class Difference:
    """The actions of the original on one connection, and of ours, each with its time; None is nothing."""

    recording: str
    conn: str
    original: str | None
    ours: str | None

    def __str__(self) -> str:
        sides = (("-", self.original), ("+", self.ours))
        return "\n".join([f"{self.recording} {self.conn}", *(f"  {sign} {text}" for sign, text in sides if text)])


def differences(recording: Recording, ours: Iterable[Said]) -> list[Difference]:
    """All differences between the original and ``ours``, connection by connection."""
    ours = list(ours)
    found = []
    for conn in dict.fromkeys(event.conn for event in recording.events if event.kind == "open"):
        theirs = [said for said in original(recording) if said.conn == conn]
        hung_up = [event.at for event in recording.events if event.conn == conn and event.kind == "close"]
        for one, other in _aligned(theirs, [said for said in ours if said.conn == conn]):
            if one is not None and other is not None and _cost(one, other) == 0:
                continue
            if one is None and other is not None and any(0 <= at - other.at <= HANGING_UP for at in hung_up):
                continue
            found.append(Difference(recording.short, conn, _side(one), _side(other)))
    return found


def original(recording: Recording) -> list[Said]:
    """The messages of the original in a recording."""
    said = []
    for step, event in enumerate(recording.events):
        if event.kind == "<":
            *texts, rest = event.data.decode("utf-8").split("\n\n")
            assert not rest, event
            said += [Said(event.at, step, event.conn, text) for text in texts]
        elif event.closed_by_broker:
            said.append(Said(event.at, step, event.conn, CLOSED))
    return said


def _side(said: Said | None) -> str | None:
    return None if said is None else f"{said.at:.3f} {shown(said.text)}"


# When two messages are the same


def same(one: str, other: str) -> bool:
    """True if two messages, or ends of a connection, are the same."""
    return _form(one) == _form(other)


@lru_cache(maxsize=4096)
def _form(text: str) -> str:
    """Equal for messages that are the same."""
    if text in (CLOSED, ABORTED):
        return text
    # With its backslashes doubled, a string has its own spelling as its value.
    spelled = re.sub(r"\\([^\"])", lambda match: match[0].replace("\\", "\\\\"), text)
    return repr(json.loads(spelled, object_pairs_hook=_members, strict=False))


def _members(pairs: list[tuple[str, object]]) -> object:
    return [
        (name, "" if name == "reservation" else _unordered(value) if name in UNORDERED else value)
        for name, value in pairs
    ]


def _unordered(value: object) -> object:
    return sorted(value, key=repr) if isinstance(value, list) else value


def _withdrawals_sorted(said: Iterable[Said]) -> list[Said]:
    """The same, with the notices that several services went at one time in an order of our own."""

    def withdrawal(one: Said) -> tuple[float, bool]:
        return one.at, one.text.replace(" ", "").endswith('"on":false}')

    def form(one: Said) -> str:
        return _form(one.text)

    ordered: list[Said] = []
    for (_, gone), together in groupby(said, key=withdrawal):
        notices = list(together)
        ordered += sorted(notices, key=form) if gone else notices
    return ordered


# Which belong together


def _aligned(theirs: Sequence[Said], ours: Sequence[Said]) -> list[tuple[Said | None, Said | None]]:
    """Pairs of what belongs together, in order, with as few differences as there can be."""
    theirs, ours = _withdrawals_sorted(theirs), _withdrawals_sorted(ours)
    costs = [[0.0] * (len(ours) + 1) for _ in range(len(theirs) + 1)]
    for i in reversed(range(len(theirs) + 1)):
        for j in reversed(range(len(ours) + 1)):
            costs[i][j] = min((cost for *_, cost in _steps(theirs, ours, costs, i, j)), default=0.0)
    pairs: list[tuple[Said | None, Said | None]] = []
    i = j = 0
    while i < len(theirs) or j < len(ours):
        down, right, _ = min(_steps(theirs, ours, costs, i, j), key=lambda step: step[2])
        pairs.append((theirs[i] if down else None, ours[j] if right else None))
        i, j = i + down, j + right
    return pairs


def _steps(
    theirs: Sequence[Said], ours: Sequence[Said], costs: list[list[float]], i: int, j: int
) -> list[tuple[int, int, float]]:
    """The ways on from a place in both: pair the next two, or leave one alone; each with what the whole rest costs."""
    steps = []
    if i < len(theirs) and j < len(ours):
        steps.append((1, 1, _cost(theirs[i], ours[j]) + costs[i + 1][j + 1]))
    if i < len(theirs):
        steps.append((1, 0, 1 + costs[i + 1][j]))
    if j < len(ours):
        steps.append((0, 1, 1 + costs[i][j + 1]))
    return steps


def _cost(original: Said, ours: Said) -> float:
    """0 if they agree in content and time; more than two left alone if they cannot belong together."""
    early = original.at - ours.at
    if not 0 <= early <= EARLY:
        return 3
    return (0 if same(original.text, ours.text) else 1) + (0 if early <= PROMPT else 0.5)
