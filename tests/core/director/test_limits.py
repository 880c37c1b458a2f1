"""Every table of the director has an end: what is over it is refused, what was there stays."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from broker.core.director import farm_state
from broker.core.errors import Reason, Refusal
from tests.core.director.rig import Rig, Side, check


def refused(what: Callable[[], object]) -> None:
    with pytest.raises(Refusal) as refusal:
        what()
    assert refusal.value.reason is Reason.LIMIT


@pytest.fixture
def rig() -> Rig:
    return Rig()


@pytest.fixture
def side(rig: Rig) -> Side:
    return rig.server("cs1")


def test_protocols_of_a_server(rig: Rig, side: Side) -> None:
    for number in range(farm_state.MAX_PROTOCOLS - 1):
        side.link.address(f"p{number}", "h:1")
    refused(lambda: side.link.address("more", "h:1"))
    side.link.address("tcp", "h:2")
    check(rig.director)


def test_families_of_a_server(rig: Rig, side: Side) -> None:
    for number in range(farm_state.MAX_FAMILIES - 1):
        side.link.will_serve(f"f{number}", -1, False)
    refused(lambda: side.link.will_serve("more", -1, False))
    side.link.will_serve("context", -1, True)
    check(rig.director)


def test_contexts_of_a_server(rig: Rig, side: Side, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("broker.core.director.server_link.MAX_CONTEXTS", 3)
    other = rig.server("cs2")
    for number in range(3):
        side.open(f"context-{number}")
    refused(lambda: side.open("context-more"))
    side.open("context-0", maxcap=2)
    other.open("context-more")
    side.link.closed("context-0")
    side.open("context-more")
    check(rig.director)


def test_users_of_a_context_and_of_a_server(rig: Rig, side: Side, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("broker.core.director.server_link.MAX_USERS_IN_CONTEXT", 2)
    monkeypatch.setattr("broker.core.director.server_link.MAX_USERS", 3)
    side.open("context-a")
    side.open("context-b")
    side.enter("context-a", "user-1", "user-2", "user-1")
    refused(lambda: side.enter("context-a", "user-3"))
    side.enter("context-b", "user-3")
    refused(lambda: side.enter("context-b", "user-4"))
    side.link.exited("context-a", "user-1")
    side.enter("context-b", "user-4")
    assert rig.count("users") == 3
    check(rig.director)


def test_a_long_label_is_cut(rig: Rig) -> None:
    rig.link("x" * 5_000)
    assert [len(label) for label in rig.director.providers()] == [1_024]


def test_what_a_link_may_have_reported_before_it_turns_out_to_be_of_a_known_server(
    rig: Rig, side: Side, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("broker.core.director.farm.MAX_LATE_REPORTS", 3)
    late = rig.link("cs1")
    late.open("context-a")
    late.enter("context-a", "user-1", "user-2", "user-3")
    with pytest.raises(Refusal) as refusal:
        late.link.address("tcp", "cs1:1")
    assert refusal.value.reason is Reason.TOO_MANY_CONNECTIONS
    check(rig.director)
    late.link.exited("context-a", "user-3")
    late.link.address("tcp", "cs1:1")
    assert rig.director.providers() == ["cs1"]
    check(rig.director)
