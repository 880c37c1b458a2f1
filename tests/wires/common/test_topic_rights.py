"""Rights to topics by the users file."""

from __future__ import annotations

import pytest

from broker.access.rights import EVERYTHING, Right, grants_of
from broker.wires.common.registry_topics import TopicRights, rights_of

RIGHTS = (
    Right(("*", "anonymous"), ("publish",), ("mc0",), ("topic:t*", "queue:q", "free")),
    Right(("*",), ("subscribe",), ("mc0",), ("*",)),
    Right(("reader",), ("find",), ("mc0",), ("bank",)),
)


def of(user: str) -> TopicRights:
    return rights_of(grants_of(user, "mc0", RIGHTS))


@pytest.mark.parametrize(
    ("topic", "may"),
    [(b"t", True), (b"t\n\xff\0", True), (b"free", True), (b"q", False), (b"T", False), (b"", False)],
)
def test_a_topic_may_be_published_on_by_its_name(topic: bytes, may: bool) -> None:
    assert of("a").may_publish(topic) is of("").may_publish(topic) is may


def test_own_topics_are_read_by_those_who_may_find_and_written_by_nobody() -> None:
    own = b"elkobroker.services"
    assert [of(user).may_subscribe(own) for user in ("reader", "a", "")] == [True, False, False]
    assert [of("reader").reading.shows(name) for name in ("bank", "shop")] == [True, False]
    assert rights_of(EVERYTHING).may_subscribe(own)
    assert not rights_of(EVERYTHING).may_publish(own)
    assert not rights_of(grants_of("a", "mc0", [Right(("a",), ("*",))])).may_publish(own)


def test_without_a_users_file_every_topic_is_free() -> None:
    assert rights_of(EVERYTHING).may_publish(b"\xff")
    assert rights_of(EVERYTHING).may_subscribe(b"")
    assert rights_of(EVERYTHING).reading.every
