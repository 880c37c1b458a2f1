"""The model of clients' histories finds what it is made for."""

from __future__ import annotations

import pytest

from tests.cluster.client_histories import NEVER, Found, Histories, Session, queue_faults


def history(*sessions: Session) -> Histories:
    made = Histories()
    for each in sessions:
        made.sessions.setdefault(each.key, []).append(each)
    return made


@pytest.mark.parametrize(
    ("sessions", "values", "fault"),
    [
        ([("a", 1, 2, NEVER, NEVER)], ["a"], ""),
        ([("a", 1, 2, NEVER, NEVER)], [], "nothing beside"),
        ([("a", 1, NEVER, NEVER, NEVER)], [], ""),  # it was not confirmed
        ([("a", 1, NEVER, NEVER, NEVER)], ["a"], ""),
        ([("a", 10.5, NEVER, NEVER, NEVER)], ["a"], ""),  # an act during the find
        ([("a", 12, 13, NEVER, NEVER)], ["a"], "not there"),
        ([("a", 1, 2, 3, 4)], ["a"], "not there"),
        ([("a", 1, 2, 3, NEVER)], ["a"], ""),  # its end was not confirmed
        ([("a", 1, 2, 10.5, 12)], [], ""),  # an end during the find
        ([], ["x"], "not there"),
        ([("a", 1, 2, NEVER, NEVER), ("b", 3, 4, NEVER, NEVER)], ["b"], ""),
        ([("a", 1, 2, NEVER, NEVER), ("b", 3, 4, NEVER, NEVER)], ["a"], "beside the successor"),
        ([("a", 1, 2, NEVER, NEVER), ("b", 3, 4, NEVER, NEVER)], ["a", "b"], "together"),
        ([("a", 1, 5, NEVER, NEVER), ("b", 3, 4, NEVER, NEVER)], ["a"], ""),  # at the same time
        ([("a", 1, 2, NEVER, NEVER), ("b", 3, 4, 5, 6)], ["a"], ""),  # a standby
        ([("a", 1, 2, NEVER, NEVER), ("b", 3, 4, NEVER, NEVER), ("c", 5, 6, 7, 8)], ["a"], ""),  # one of two
        ([("a", 1, 2, NEVER, NEVER), ("b", 3, NEVER, NEVER, NEVER)], ["a"], ""),
    ],
)
def test_a_consistent_find_returns_what_the_model_permits(
    sessions: list[tuple[str, float, float, float, float]], values: list[str], fault: str
) -> None:
    made = history(*(Session("key", *each) for each in sessions))
    made.finds.append(Found("broker", "key", 10, 11, values))
    found = made.faults()
    assert len(found) == bool(fault)
    assert fault in "".join(found)


@pytest.mark.parametrize(
    ("seen", "fault"),
    [
        ([(True, "a"), (True, "b"), (False, "a")], ""),
        ([(True, "b"), (True, "b")], "begin twice"),
        ([(False, "b")], "end twice"),
        ([(True, "a"), (True, "b")], "wrong"),
    ],
)
def test_a_watcher_ends_with_what_is_found(seen: list[tuple[bool, str]], fault: str) -> None:
    made = Histories(watches={"watcher": seen})
    found = made.faults([("watcher", ["b"])])
    assert len(found) == bool(fault)
    assert fault in "".join(found)


def test_an_id_is_issued_once() -> None:
    assert Histories([1, 2, 1]).faults() == ["the id 1 was issued 2 times"]


@pytest.mark.parametrize(
    ("read", "lost", "over", "fault"),
    [
        ([(1.0, "a"), (2.0, "b")], [], True, ""),
        ([(1.0, "a"), (2.0, "b"), (3.0, "c")], [], True, ""),  # its Confirm was lost
        ([(1.0, "a")], [], False, ""),
        ([(1.0, "a")], [], True, "lost"),
        ([(1.0, "a"), (2.0, "b"), (3.0, "d")], [], True, "not confirmed"),
        ([(1.0, "a"), (2.0, "b"), (9.0, "a")], [3.0], True, ""),
        ([(1.0, "a"), (2.0, "b"), (9.0, "a")], [0.5], True, ""),  # it had come before the loss
        ([(1.0, "a"), (2.0, "b"), (9.0, "a")], [5.0], True, "long before the loss"),
        ([(1.0, "a"), (2.0, "b"), (9.0, "a"), (10.0, "a")], [3.0], True, "same flow"),
        ([(1.0, "a"), (2.0, "b"), (9.0, "a"), (19.0, "a")], [3.0, 11.0], True, ""),
        ([(1.0, "a"), (2.0, "b"), (9.0, "a")], [], True, "same flow"),
    ],
)
def test_a_message_is_read_as_the_queue_promises(
    read: list[tuple[float, str]], lost: list[float], over: bool, fault: str
) -> None:
    found = queue_faults("jobs", ["a", "b"], ["c"], read, lost, 1.0, 2.0, over)
    assert len(found) == bool(fault)
    assert fault in "".join(found)
