"""The conversations that the documents on the protocols of Elko show are real: broker and director hold them."""

from __future__ import annotations

import re

import pytest

from broker.core.model import Launcher, Rights
from broker.wires.elko.sessions.authentication import Policy
from tests.transcripts.document import blocks, events, held, shown
from tests.transcripts.replay import Director, Setting, play, play_at

BROKER = blocks("elko-broker.md")
DIRECTOR = blocks("elko-director.md")

_reservation = re.compile(r'"reservation":"[0-9]{30,39}"')


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


@pytest.mark.parametrize(("settings", "block"), BROKER)
def test_conversation_with_the_broker(settings: str, block: str) -> None:
    assert held(events(block), lambda done: play(done, _setting(settings))) == shown(block)


@pytest.mark.parametrize(("settings", "block"), DIRECTOR)
def test_conversation_with_the_director(settings: str, block: str) -> None:
    assert settings == ""
    lines = held(events(block), lambda done: play_at(Director(), done))
    assert [_reservation.sub("", line) for line in lines] == [_reservation.sub("", line) for line in shown(block)]


def test_there_are_conversations() -> None:
    assert len(BROKER) >= 10
    assert len(DIRECTOR) >= 6
