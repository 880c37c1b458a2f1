"""Our broker answers the recorded clients of mc0 as the original did, times and the order of headers aside.

The recordings are in `mc0/`, one event on each line: ``>`` is what a client sent, ``<`` what it was sent, ``#`` a
remark.
"""

from __future__ import annotations

import json
from pathlib import Path

import attrs
import pytest

from broker.wires.mc0.sessions.session_table import NOOP_AFTER
from tests.recording.logs import nothing_fails
from tests.wires.mc0.codec.examples import read_as_the_connector
from tests.wires.mc0.recording import Mc0Farm, Mc0Peer

HERE = Path(__file__).parent / "mc0"

NAMES = sorted(path.stem for path in HERE.glob("*.jsonl"))

NOT_SPELLED_OUT = b"\xa5" * 1_048_576
"""A body that a recording has only in words."""

IN_WORDS = "<1048576 bytes, all a5: True>"
SENT_IN_WORDS = "A sends PUT with a 1048576 byte body of 0xa5 (not spelled out)"

LONGEST_SILENCE = 30.0 * NOOP_AFTER + 1.0
"""Seconds: the recordings' clients have a TTL of 30 s."""


@attrs.frozen
class Event:
    """The messages to and from one client."""

    client: str
    sent: bool
    frames: tuple[bytes, ...]


def load(name: str) -> list[Event]:
    """The events of one recording."""
    events: list[Event] = []
    topic = b""
    for line in (HERE / f"{name}.jsonl").read_text("utf-8").splitlines():
        event = json.loads(line)
        if event["dir"] == "#":
            if event["note"] == SENT_IN_WORDS:
                events.append(Event("A", True, (b"", b"PUT", b"TOPIC", topic, b"", NOT_SPELLED_OUT)))
            continue
        frames = tuple(NOT_SPELLED_OUT if each == IN_WORDS else bytes.fromhex(each) for each in event["frames_hex"])
        if b"TOPIC" in frames:
            topic = frames[frames.index(b"TOPIC") + 1]
        events.append(Event(event["client"], event["dir"] == ">", frames))
    return events


class Replay:
    """The clients of a recording, at our broker."""

    def __init__(self) -> None:
        self.farm = Mc0Farm()
        self.clients: dict[str, Mc0Peer] = {}
        self.heard: dict[str, list[list[bytes]]] = {}

    def take(self, event: Event) -> None:
        """Do what a client did; or compare what it was sent with what ours has sent, or sends when time goes on."""
        if event.client not in self.clients:
            self.clients[event.client] = self.farm.peer(event.client)
        if event.sent:
            self.clients[event.client].send(*event.frames)
        else:
            assert read_as_the_connector(self.next_of(event.client)) == read_as_the_connector(list(event.frames))

    def next_of(self, name: str) -> list[bytes]:
        heard = self.heard.setdefault(name, [])
        heard += self.clients[name].take_frames()
        waited = 0.0
        while not heard and waited < LONGEST_SILENCE:
            self.farm.wait(0.5)
            waited += 0.5
            heard += self.clients[name].take_frames()
        assert heard, f"{name} is sent nothing"
        return heard.pop(0)

    def rest(self) -> list[list[bytes]]:
        """The messages that only ours has sent."""
        return [each for heard in self.heard.values() for each in heard] + [
            frames for client in self.clients.values() for frames in client.take_frames()
        ]


@pytest.mark.parametrize("name", NAMES)
def test_is_answered_as_by_the_original(name: str) -> None:
    with nothing_fails() as warnings:
        replay = Replay()
        for event in load(name):
            replay.take(event)
        assert replay.rest() == []
        assert warnings == []


@pytest.mark.parametrize("name", NAMES)
def test_no_answer_but_a_noop_takes_time(name: str) -> None:
    replay = Replay()
    start = replay.farm.clock.seconds()
    for event in load(name):
        if event.frames != (b"", b"NOOP") or event.sent:
            replay.take(event)
    assert replay.farm.clock.seconds() == start


def test_there_are_recordings_of_all_commands() -> None:
    assert len(NAMES) == 12
    sent = {event.frames[1] for name in NAMES for event in load(name) if event.sent}
    assert sent == {b"CONNECT", b"DISCONNECT", b"SUB", b"UNSUB", b"PUT", b"NOOP"}
    assert all(any(not event.sent for event in load(name)) for name in NAMES)
