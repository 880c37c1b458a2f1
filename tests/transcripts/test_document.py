"""The conversations that docs/protocols/elko-broker.md shows are real: our broker holds them so.

A block marked ``elko`` is a conversation with a fresh broker: ``NAME > TEXT`` is a line that a client sends, ``NAME <
TEXT`` what it is told, ``NAME * TEXT`` what happens to its connection, ``* N s later`` time that goes by. The mark may
be followed by settings of the listener: see `_setting`.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from broker.core.model import Launcher, Rights
from broker.session.auth import Policy
from tests.transcripts.recordings import HERE, Event
from tests.transcripts.replay import CLOSED, Setting, play

DOCUMENT = Path(HERE).parent.parent / "docs" / "protocols" / "elko-broker.md"

BLOCKS = re.findall(r"^```elko *(.*?)\n(.*?)^```$", DOCUMENT.read_text("utf-8"), re.MULTILINE | re.DOTALL)

_line = re.compile(r"(\w+) ([><*])(?: (.+))?")
_later = re.compile(r"\* ([0-9.]+) s later")

CLOSED_BY_BROKER = "closed by the broker"
SENDS_NO_MORE = "sends no more"
CONNECTS = "connects to the listener "


def _setting(words: str) -> Setting:
    """``before-auth``, ``offer=PATTERN`` and ``launchers``, which has a table of two."""
    policy = Policy()
    launchers: tuple[Launcher, ...] = ()
    for word in words.split():
        name, _, value = word.partition("=")
        if name == "before-auth":
            policy = Policy(allow_before_auth=True)
        elif name == "offer":
            policy = Policy(rights=Rights(offer=(value,)))
        elif name == "launchers":
            launchers = (Launcher("context", "/srv/elko/context --fast", initial=True), Launcher("chat", "/srv/chat"))
        else:
            raise AssertionError(f"no setting: {word}")
    return Setting(policy, launchers)


def _events(block: str) -> list[Event]:
    """What the clients of a block do. All that are still connected close in the end."""
    at = 0.0
    events: list[Event] = []
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
            events.append(Event(at, conn, "open", b"", f"to listener {listener}"))
        if mark == ">":
            events.append(Event(at, conn, ">", f"{text}\n".encode(), line))
        elif text == SENDS_NO_MORE:
            events.append(Event(at, conn, "halfclose", b"", line))
        else:
            assert mark == "<" or text == CLOSED_BY_BROKER or text.startswith(CONNECTS), line
    return [*events, *(Event(at, conn, "close", b"", "") for conn in connected)]


def _held(events: list[Event], setting: Setting) -> list[str]:
    """The conversation, as lines of a block, without those on connecting and on time."""
    said = play(events, setting)
    lines = [f"{one.conn} < {one.text}" for one in said if one.step == 0]
    for step, event in enumerate(events, 1):
        if event.kind in (">", "halfclose"):
            lines.append(event.note)
        for one in said:
            if one.step == step and event.kind != "close":
                is_end = one.text == CLOSED
                lines.append(f"{one.conn} * {CLOSED_BY_BROKER}" if is_end else f"{one.conn} < {one.text}")
    return lines


@pytest.mark.parametrize(("settings", "block"), BLOCKS)
def test_conversation(settings: str, block: str) -> None:
    shown = [line for line in block.splitlines() if CONNECTS not in line and not _later.fullmatch(line)]
    assert _held(_events(block), _setting(settings)) == shown


def test_there_are_conversations() -> None:
    assert len(BLOCKS) >= 10
