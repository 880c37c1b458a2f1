"""The conversations that a document shows, and how they are held.

A block marked ``elko`` is a conversation with a fresh server: ``NAME > TEXT`` is a line that a client sends, ``NAME <
TEXT`` one that it receives, ``NAME * TEXT`` an event of its connection, ``* N s later`` time that goes by. The mark may
be followed by settings of the listener. A line that begins with blanks continues the one before it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path

from tests.transcripts.recordings import HERE, Event
from tests.transcripts.replay import CLOSED, Said

DOCUMENTS = Path(HERE).parent.parent / "docs" / "protocols"

_line = re.compile(r"(\w+) ([><*])(?: (.+))?")
_later = re.compile(r"\* ([0-9.]+) s later")

CLOSED_BY_BROKER = "closed by the broker"
SENDS_NO_MORE = "sends no more"
CONNECTS = "connects to the listener "


def blocks(document: str) -> list[tuple[str, str]]:
    """The settings and the text of each conversation."""
    text = (DOCUMENTS / document).read_text("utf-8")
    found = re.findall(r"^```elko *(.*?)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    return [(settings, re.sub(r"\n +", "", block)) for settings, block in found]


def shown(block: str) -> list[str]:
    """The lines of a conversation, without those on connecting and on time."""
    return [line for line in block.splitlines() if CONNECTS not in line and not _later.fullmatch(line)]


def events(block: str) -> list[Event]:
    """The actions of the clients of a block. All that are still connected close in the end."""
    at = 0.0
    found: list[Event] = []
    connected: list[str] = []
    for line in block.splitlines():
        if later := _later.fullmatch(line):
            at += float(later[1])
            continue
        match = _line.fullmatch(line)
        assert match is not None, line
        conn, mark, text = match.groups(default="")
        if conn not in connected:
            connected.append(conn)
            listener = text.removeprefix(CONNECTS) if text.startswith(CONNECTS) else "open"
            found.append(Event(at, conn, "open", b"", f"to listener {listener}"))
        if mark == ">":
            found.append(Event(at, conn, ">", f"{text}\n".encode(), line))
        elif text == SENDS_NO_MORE:
            found.append(Event(at, conn, "halfclose", b"", line))
        else:
            assert mark == "<" or text == CLOSED_BY_BROKER or text.startswith(CONNECTS), line
    return [*found, *(Event(at, conn, "close", b"", "") for conn in connected)]


def held(events: Sequence[Event], play: Callable[[Sequence[Event]], Sequence[Said]]) -> list[str]:
    """The conversation, as lines of a block, without those on connecting and on time."""
    said = play(events)
    lines = [f"{one.conn} < {one.text}" for one in said if one.step == 0]
    for step, event in enumerate(events, 1):
        if event.kind in (">", "halfclose"):
            lines.append(event.note)
        for one in said:
            if one.step == step and event.kind != "close":
                is_end = one.text == CLOSED
                lines.append(f"{one.conn} * {CLOSED_BY_BROKER}" if is_end else f"{one.conn} < {one.text}")
    return lines
