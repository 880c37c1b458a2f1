"""Events of brokers that go and come back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import attrs
from zope.interface import implementer

from broker.app.event_sources import MAX_GONE_MEMBERS, MemberEvents
from broker.core.cluster.cluster_interfaces import Member
from broker.core.interfaces import INotifications
from broker.core.model import EVENTS
from tests.operate.members import Members, two

B = Member("b", "i2", version="1.1", draining=True)


@implementer(INotifications)
class Recorded:
    def __init__(self) -> None:
        self.events: list[tuple[str, str, dict[str, Any]]] = []

    def event(self, kind: str, name: str, about: Mapping[str, object] | None = None) -> None:
        assert kind in EVENTS
        self.events.append((kind, name, dict(about or {})))


def started() -> tuple[Members, Recorded, MemberEvents]:
    members, recorded = two(), Recorded()
    events = MemberEvents(recorded, members)
    events.start()
    return members, recorded, events


def test_a_member_that_goes_and_comes_back_makes_an_event_each() -> None:
    members, recorded, _ = started()
    members.changed("b", None)
    assert recorded.events == [("member-gone", "b", {"version": "1.1", "draining": True})]
    members.changed("b", attrs.evolve(B, instance="i3", version="1.2", draining=False))
    assert recorded.events[1:] == [("member-back", "b", {"version": "1.2", "draining": False})]


def test_neither_a_new_member_nor_a_change_of_one_nor_this_broker_is_an_event() -> None:
    members, recorded, _ = started()
    members.changed("c", Member("c", "i9"))
    members.changed("b", attrs.evolve(B, draining=False))
    members.changed("a", None)
    members.changed("x", None)
    assert recorded.events == []


def test_the_newest_value_of_a_member_is_reported() -> None:
    members, recorded, _ = started()
    members.changed("b", attrs.evolve(B, draining=False))
    members.changed("b", None)
    assert recorded.events == [("member-gone", "b", {"version": "1.1", "draining": False})]


def test_the_oldest_of_very_many_names_is_forgotten() -> None:
    members, recorded, _ = started()
    for number in range(MAX_GONE_MEMBERS + 1):
        members.changed(f"m{number}", Member(f"m{number}", "i"))
        members.changed(f"m{number}", None)
    recorded.events.clear()
    members.changed("m0", Member("m0", "i"))
    assert recorded.events == []
    members.changed("m1", Member("m1", "i"))
    assert [event[:2] for event in recorded.events] == [("member-back", "m1")]


def test_after_the_stop_there_are_no_events() -> None:
    members, recorded, events = started()
    events.stop()
    events.stop()
    assert members.watchers == []
    assert recorded.events == []
