"""Changes for one slow reader: each entry's latest change once, and nothing that is over."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from broker.wires.mtl.profiles.entries import EntryEvent, PendingChanges

Told = tuple[str, str | None, int | None]
"""One event: its kind, the entry, and the entry's state."""

SYNCED = ("synced", None, None)


class Reader:
    """A reader with room for so many events; None for any number. Entries are named by letters, and are numbers."""

    def __init__(self, room: int | None = None, **entries: int) -> None:
        self.room = room
        self.told: list[Told] = []
        self.tried = 0
        self.view: PendingChanges[Any] = PendingChanges(entries.items(), self._shown, self._send)

    def _shown(self, entry: tuple[str, int]) -> EntryEvent[Any]:
        return EntryEvent(entry[0], "snapshot", 0, entry[1])

    def _send(self, event: EntryEvent[Any] | None, complete: bool) -> bool:
        self.tried += 1
        if self.room == 0:
            return False
        if self.room is not None:
            self.room -= 1
        if event is None:
            self.told.append(SYNCED)
        else:
            self.told.append((event.name, str(event.key), None if event.gone else event.subject))
        return True

    def up(self, key: str, value: int) -> None:
        self.view.tell(EntryEvent(key, "up", 1, value, new=True))

    def update(self, key: str, value: int) -> None:
        self.view.tell(EntryEvent(key, "update", 1, value))

    def down(self, key: str) -> None:
        self.view.tell(EntryEvent(key, "down", 1, 0, gone=True))

    def read(self, count: int | None = None, most: int = 1_000_000) -> list[Told]:
        """There is room for so many more, and that is noticed; what was told since the last time."""
        self.room = count
        self.view.serve(most)
        told, self.told = self.told, []
        return told


def test_first_comes_what_there_is_then_a_mark_then_what_changes() -> None:
    reader = Reader(a=1, b=2)
    reader.view.serve(100)
    reader.up("c", 3)
    reader.update("a", 4)
    reader.down("b")
    snapshot = [("snapshot", "a", 1), ("snapshot", "b", 2), SYNCED]
    assert reader.told == [*snapshot, ("up", "c", 3), ("update", "a", 4), ("down", "b", None)]
    assert len(reader.view) == 0


def test_nothing_at_all_is_a_snapshot_too() -> None:
    assert Reader().read() == [SYNCED]


def test_a_snapshot_goes_out_in_pieces_of_the_wanted_size() -> None:
    reader = Reader(a=1, b=2, c=3)
    assert reader.read(most=2) == [("snapshot", "a", 1), ("snapshot", "b", 2)]
    assert not reader.view.blocked
    assert len(reader.view) == 2
    assert reader.read(most=2) == [("snapshot", "c", 3), SYNCED]
    assert len(reader.view) == 0


def test_what_is_next_is_tried_once_for_each_room() -> None:
    reader = Reader(room=0, a=1, b=2)
    reader.view.serve(100)
    assert reader.view.blocked
    for value in range(10):
        reader.update("a", value)
        reader.up("c", value)
        reader.down("c")
    assert reader.tried == 1
    assert reader.read(1) == [("snapshot", "a", 9)]
    assert reader.view.blocked


def test_an_entry_that_changes_before_its_turn_is_told_as_it_is_then() -> None:
    reader = Reader(room=1, a=1, b=2, c=3)
    reader.view.serve(100)
    reader.update("b", 20)
    reader.down("c")
    reader.update("b", 21)
    assert reader.read() == [("snapshot", "a", 1), ("snapshot", "b", 21), SYNCED]


def test_an_entry_that_went_and_came_back_before_its_turn_is_a_part_of_the_snapshot() -> None:
    reader = Reader(room=0, a=1)
    reader.view.serve(100)
    reader.down("a")
    reader.up("a", 2)
    assert reader.read() == [("snapshot", "a", 2), SYNCED]


def test_what_changes_behind_the_snapshot_is_told_after_the_mark() -> None:
    reader = Reader(room=1, a=1, b=2)
    reader.view.serve(100)
    reader.update("a", 10)
    reader.up("c", 3)
    assert reader.read(1) == [("snapshot", "a", 1), ("snapshot", "b", 2)]
    reader.update("c", 4)
    assert reader.read() == [SYNCED, ("update", "a", 10), ("up", "c", 4)]


def test_of_many_changes_the_newest_is_told_and_keeps_the_place_of_the_first() -> None:
    reader = Reader(a=1, b=2)
    reader.read()
    reader.room = 0
    for value in range(5):
        reader.update("a", value)
        reader.update("b", value)
    assert len(reader.view) == 2
    assert reader.read() == [("update", "a", 4), ("update", "b", 4)]


def test_that_an_entry_is_gone_is_told_in_the_place_of_what_waited() -> None:
    reader = Reader(a=1)
    reader.read()
    reader.room = 0
    reader.update("a", 2)
    reader.down("a")
    assert reader.read() == [("down", "a", None)]
    reader.down("x")
    assert reader.read() == [("down", "x", None)]


def test_an_entry_that_came_and_went_meanwhile_is_never_told() -> None:
    reader = Reader(a=1)
    reader.read()
    reader.room = 0
    reader.update("a", 2)
    reader.up("b", 1)
    reader.update("b", 2)
    reader.down("b")
    assert len(reader.view) == 1
    assert reader.read() == [("update", "a", 2)]


def test_an_entry_that_is_known_and_comes_back_is_still_known() -> None:
    reader = Reader(a=1)
    reader.read()
    reader.room = 0
    reader.down("a")
    reader.up("a", 2)
    reader.down("a")
    assert reader.read() == [("down", "a", None)]
    reader.up("a", 3)
    reader.room = 0
    reader.down("a")
    reader.up("a", 4)
    assert reader.read() == [("up", "a", 3), ("up", "a", 4)]


def test_an_entry_that_changes_all_the_time_keeps_no_other_waiting() -> None:
    reader = Reader(a=1, b=1)
    reader.read()
    reader.room = 0
    told = []
    for value in range(10):
        reader.update("a", value)
        reader.update("b", value)
        told += [key for _, key, _ in reader.read(1)]
        reader.room = 0
    assert told.count("a") == told.count("b") == 5


KEYS = st.sampled_from("abcdef")
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("put"), KEYS, st.integers(0, 99)),
        st.tuples(st.just("drop"), KEYS, st.just(0)),
        st.tuples(st.just("read"), st.just(""), st.integers(0, 3)),
        st.tuples(st.just("serve"), st.just(""), st.integers(0, 3)),
    ),
    max_size=60,
)


@given(st.dictionaries(KEYS, st.integers(0, 99)), STEPS)
def test_whatever_happens_a_reader_ends_up_with_what_there_is(
    entries: dict[str, int], steps: Iterable[tuple[str, str, int]]
) -> None:
    now = dict(entries)
    reader = Reader(0, **entries)
    known: dict[str, int] = {}
    synced = False
    for what, key, number in [*steps, ("read", "", 1_000)]:
        if what == "put":
            (reader.update if key in now else reader.up)(key, number)
            now[key] = number
        elif what == "drop" and key in now:
            reader.down(key)
            del now[key]
        elif what in ("read", "serve"):
            told = reader.read(number) if what == "read" else reader.read(1_000, most=number)
            reader.room = 0
            for name, entry, value in told:
                if entry is None:
                    assert not synced
                    synced = True
                elif value is None:
                    assert synced
                    del known[entry]  # which it was told of
                else:
                    assert (name == "snapshot") is not synced
                    assert name in ("snapshot", "up") or entry in known
                    known[entry] = value
        assert len(reader.view) <= len(now.keys() | known.keys() | entries.keys()) + len(entries) + 1
    assert synced
    assert known == now
    assert len(reader.view) == 0
