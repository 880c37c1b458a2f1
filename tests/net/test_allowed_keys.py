"""Directory of client keys: valid files, and changes while it is watched.

The file is longer than others: it has all tests of `broker.net.allowed_keys`.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import attrs
import pytest
from twisted.internet.defer import Deferred, maybeDeferred
from twisted.internet.task import Clock
from twisted.internet.threads import deferToThread
from twisted.logger import LogLevel, capturedLogs, formatEvent
from twisted.trial.unittest import TestCase

from broker import curve
from broker.net.allowed_keys import CHECK, FULL, REST_MOST, SHARE, AllowedKeys
from broker.net.key_directory import MAX_WARNINGS, look

A, B, C = (curve.encode(bytes([number]) * 32) for number in (1, 2, 3))


def put(directory: Path, name: str, key: str) -> None:
    """As careful tools do: whole, under another name, then renamed."""
    temporary = directory / f".{name}.new"
    temporary.write_text(key + "\n")
    temporary.rename(directory / f"{name}.public")


class Noticed:
    """Keys over a clock, with their notifications."""

    def __init__(self, directory: Path, in_thread: Callable[..., Deferred[Any]] = maybeDeferred) -> None:
        self.clock = Clock()
        self.keys = AllowedKeys(str(directory), self.clock, in_thread)
        self.gone: list[frozenset[str]] = []
        self.refreshed = False
        self.keys.changed.append(self.gone.append)

    def names(self, *keys: str) -> list[str | None]:
        return [self.keys.name_of(key) for key in keys]

    def check(self, times: int = 1) -> list[str]:
        """Let it look so many times. Returns what it logged of warnings and worse."""
        with capturedLogs() as events:
            for _ in range(times):
                self.clock.advance(CHECK)
        return [formatEvent(event) for event in events if event["log_level"] >= LogLevel.warn]


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    keys = tmp_path / "keys"
    keys.mkdir()
    put(keys, "web1", A)
    return keys


# at the start


def test_the_keys_are_known_by_the_names_of_their_files(directory: Path) -> None:
    put(directory, "web2.example.org", B)
    keys = Noticed(directory)
    assert keys.names(A, B, C, "", "web1") == ["web1", "web2.example.org", None, None, None]
    assert len(keys.keys) == 2


def test_a_directory_may_be_empty(tmp_path: Path) -> None:
    assert len(Noticed(tmp_path).keys) == 0


def test_a_directory_that_cannot_be_read_is_an_error(directory: Path) -> None:
    for path, why in (
        (directory / "none", "No such file or directory"),
        (directory / "web1.public", "Not a directory"),
    ):
        with pytest.raises(OSError) as failed:
            Noticed(path)
        assert str(failed.value) == f"the client keys in {path} cannot be read: {why}"


def test_what_is_none_of_ours_is_ignored_in_silence(directory: Path) -> None:
    for name in (".web2.public", ".public", "web2.private", "web2.public~", "README"):
        (directory / name).write_text(B)
    with capturedLogs() as events:
        keys = Noticed(directory)
    assert keys.names(A, B) == ["web1", None]
    assert [event["log_level"] for event in events] == [LogLevel.info]


def bad_files(directory: Path) -> None:
    (directory / "empty.public").touch()
    (directory / "short.public").write_text(A[:-1])
    (directory / "binary.public").write_bytes(bytes(range(256)))
    (directory / "large.public").write_text(B + " " * 5_000)
    (directory / "two words.public").write_text(B)
    (directory / "web*.public").write_text(B)
    (directory / "folder.public").mkdir()
    os.mkfifo(directory / "pipe.public")
    os.symlink("nowhere", directory / "nowhere.public")


BAD = [
    "'binary.public' has no public key: a word of 40 Z85 characters",
    "'empty.public' has no public key: a word of 40 Z85 characters",
    "'folder.public' is no regular file",
    "'large.public' is larger than 4096 bytes",
    "'pipe.public' is no regular file",
    "'short.public' has no public key: a word of 40 Z85 characters",
    "'two words.public' has a name that no key may have",
    "'web*.public' has a name that no key may have",
]


def test_bad_files_are_left_out_and_logged_once(directory: Path) -> None:
    bad_files(directory)
    with capturedLogs() as events:
        keys = Noticed(directory)
    warnings = [formatEvent(event) for event in events if event["log_level"] is LogLevel.warn]
    assert warnings == [f"client keys in {directory}: {text}" for text in BAD]
    assert keys.names(A, B) == ["web1", None]
    assert keys.check(30) == []


def test_bad_files_that_come_later_are_logged_once_too_and_again_when_they_change(directory: Path) -> None:
    keys = Noticed(directory)
    keys.check(3)
    bad_files(directory)
    assert keys.check(30) == [f"client keys in {directory}: {text}" for text in BAD]
    (directory / "short.public").write_text("still no key")
    assert keys.check(30) == [f"client keys in {directory}: {BAD[5]}"]
    put(directory, "short", B)
    assert keys.check(30) == []
    assert keys.names(A, B) == ["web1", "short"]


def test_a_directory_full_of_other_files_does_not_fill_the_log(directory: Path) -> None:
    for number in range(MAX_WARNINGS + 5):
        (directory / f"x{number:02}.public").touch()
    with capturedLogs() as events:
        Noticed(directory)
    lines = [event["text"] for event in events if event["log_level"] is LogLevel.warn]
    assert len(lines) == MAX_WARNINGS + 1
    assert lines[-1] == "there is more of this kind: 5 files"


def test_two_names_with_one_key_are_the_first_of_them(directory: Path) -> None:
    put(directory, "web1.b", A)
    put(directory, "web0", A)
    with capturedLogs() as events:
        keys = Noticed(directory)
    assert [event["text"] for event in events if event["log_level"] is LogLevel.warn] == [
        "'web1' has the same key as 'web0', and is taken for it",
        "'web1.b' has the same key as 'web0', and is taken for it",
    ]
    assert keys.names(A) == ["web0"]
    assert keys.check(15) == []
    (directory / "web0.public").unlink()
    assert len(keys.check(2)) == 1
    assert keys.names(A) == ["web1"]


def test_no_more_files_are_taken_than_the_limit(directory: Path) -> None:
    put(directory, "a", B)
    put(directory, "z", C)
    seen = look(str(directory), None, full=True, most=2)
    assert seen.names == {B: "a", A: "web1"}
    assert seen.warnings == ("there are more than 2 files, and those after 'web1' are left out",)
    assert look(str(directory), seen, full=True, most=2).warnings == ()
    assert look(str(directory), None, full=True, most=3).warnings == ()


# while it changes


def test_a_new_key_is_noticed_at_the_next_check(directory: Path) -> None:
    keys = Noticed(directory)
    keys.check(5)
    put(directory, "web2", B)
    assert keys.names(A, B) == ["web1", None]
    assert keys.check() == []
    assert keys.names(A, B) == ["web1", "web2"]
    assert keys.gone == [frozenset()]


def test_a_key_is_taken_away_when_two_checks_do_not_find_it(directory: Path) -> None:
    keys = Noticed(directory)
    keys.check(5)
    (directory / "web1.public").unlink()
    keys.check()
    assert keys.names(A) == ["web1"]
    assert keys.gone == []
    keys.check()
    assert keys.names(A) == [None]
    assert keys.gone == [frozenset([A])]
    keys.check(15)
    assert keys.gone == [frozenset([A])]


@pytest.mark.parametrize("gone", ["removed", "empty"])
def test_a_file_that_is_being_exchanged_keeps_its_key(directory: Path, gone: str) -> None:
    keys = Noticed(directory)
    keys.check(5)
    file = directory / "web1.public"
    for _ in range(3):
        if gone == "removed":
            file.unlink()
        else:
            file.write_text("")
            put(directory, "web2", B)  # so that the directory has changed
        assert keys.check() == []
        file.write_text(A + "\n")
        put(directory, "web3", C)
        assert keys.check(3) == []
    assert keys.names(A) == ["web1"]
    assert frozenset([A]) not in keys.gone


def test_another_key_replaces_the_old_one_at_once(directory: Path) -> None:
    keys = Noticed(directory)
    keys.check(5)
    put(directory, "web1", B)
    keys.check()
    assert keys.names(A, B) == [None, "web1"]
    assert keys.gone == [frozenset([A])]


def test_a_file_that_is_written_over_is_noticed_when_all_files_are_looked_at(directory: Path) -> None:
    keys = Noticed(directory)
    keys.check(5)
    (directory / "web1.public").write_text(B + "\n")
    keys.check(int(FULL / CHECK))
    assert keys.names(A, B) == [None, "web1"]


def test_what_changes_within_the_grain_of_the_stamps_is_noticed(directory: Path) -> None:
    """The file is written again after it was read, and its stamp is still the same."""
    read = look(str(directory), None, full=True)
    (directory / "web1.public").write_text(B + "\n")
    stamp = look(str(directory), None, full=True).files["web1"].stamp
    first = attrs.evolve(read, files={"web1": attrs.evolve(read.files["web1"], stamp=stamp)})
    second = look(str(directory), first, full=False)
    assert second.names == {B: "web1"}
    assert second.gone == frozenset([A])


def test_a_file_that_is_met_while_it_is_written_is_not_complained_of(directory: Path) -> None:
    keys = Noticed(directory)
    keys.check(5)
    file = directory / "web2.public"
    file.touch()
    assert keys.check() == []
    file.write_text(B[:20])
    assert keys.check() == []
    file.write_text(B)
    assert keys.check(30) == []
    assert keys.names(B) == ["web2"]


def test_a_file_that_stays_without_a_key_loses_the_one_it_had(directory: Path) -> None:
    keys = Noticed(directory)
    keys.check(5)
    put(directory, "web1", "")
    assert keys.check() == []
    assert keys.names(A) == ["web1"]
    assert keys.check() == [f"client keys in {directory}: 'web1.public' has no public key: a word of 40 Z85 characters"]
    assert keys.names(A) == [None]


@pytest.mark.parametrize("name", ["db1", "web2"])
def test_a_renamed_key_has_its_new_name_at_once_and_is_told_as_gone(directory: Path, name: str) -> None:
    keys = Noticed(directory)
    keys.check(5)
    (directory / "web1.public").rename(directory / f"{name}.public")
    assert keys.check() == []
    assert keys.names(A) == [name]
    assert keys.check(15) == []
    assert keys.names(A) == [name]
    assert keys.gone == [frozenset([A])]


def test_keys_behind_links_are_followed(directory: Path, tmp_path: Path) -> None:
    (tmp_path / "old").mkdir()
    (tmp_path / "new").mkdir()
    put(tmp_path / "old", "key", B)
    put(tmp_path / "new", "key", C)
    (directory / "web2.public").symlink_to(tmp_path / "current" / "key.public")
    (tmp_path / "current").symlink_to("old")
    keys = Noticed(directory)
    assert keys.names(B, C) == ["web2", None]
    (tmp_path / "next").symlink_to("new")
    (tmp_path / "next").rename(tmp_path / "current")
    keys.check(int(FULL / CHECK))
    assert keys.names(B, C) == [None, "web2"]


def test_a_whole_directory_may_be_exchanged(directory: Path, tmp_path: Path) -> None:
    keys = Noticed(directory)
    keys.check(5)
    (tmp_path / "new").mkdir()
    put(tmp_path / "new", "web2", B)
    directory.rename(tmp_path / "old")
    (tmp_path / "new").rename(directory)
    keys.check(2)
    assert keys.names(A, B) == [None, "web2"]


def test_while_the_directory_cannot_be_read_what_was_known_stays(directory: Path) -> None:
    keys = Noticed(directory)
    away = directory.with_name("away")
    directory.rename(away)
    assert keys.check(30) == [
        f"the client keys in {directory} cannot be read: No such file or directory. Those known so far stay allowed"
    ]
    assert keys.names(A) == ["web1"]
    put(away, "web2", B)
    away.rename(directory)
    assert keys.check() == []
    assert keys.names(A, B) == ["web1", "web2"]
    directory.rename(away)
    assert len(keys.check(3)) == 1
    assert keys.gone == [frozenset()]


def test_a_file_that_the_system_fails_to_read_keeps_its_key(directory: Path) -> None:
    keys = Noticed(directory)
    keys.check(5)
    file = directory / "web1.public"
    file.unlink()
    file.symlink_to("web1.public")
    [line] = keys.check(30)
    assert line == f"client keys in {directory}: 'web1.public' cannot be read: Too many levels of symbolic links"
    assert keys.names(A) == ["web1"]
    put(directory, "web1", B)
    assert keys.check() == []
    assert keys.names(A, B) == [None, "web1"]


def test_a_file_that_may_not_be_read_loses_its_key(directory: Path) -> None:
    keys = Noticed(directory)
    keys.check(5)
    (directory / "web1.public").chmod(0)
    if os.access(directory / "web1.public", os.R_OK):
        pytest.skip("this user may read every file")
    assert keys.check(15) == [f"client keys in {directory}: 'web1.public' may not be read by the broker"]
    assert keys.names(A) == [None]


def test_what_did_not_change_is_not_read_again(directory: Path) -> None:
    first = look(str(directory), None, full=True)
    second = look(str(directory), first, full=False)
    assert second is not first
    assert second.names is first.names
    for full in (False, True):
        assert look(str(directory), second, full) is second
    put(directory, "web2", B)
    third = look(str(directory), second, full=False)
    assert third.names == {A: "web1", B: "web2"}
    assert third.files["web1"] is second.files["web1"]


def test_a_directory_settles_after_other_files_have_come_and_gone(directory: Path) -> None:
    seen = look(str(directory), look(str(directory), None, full=True), full=True)
    for change in ((directory / "README").touch, (directory / "README").unlink):
        change()
        changed = look(str(directory), seen, full=False)
        assert not changed.settled
        seen = look(str(directory), changed, full=False)
        assert seen.settled
        assert look(str(directory), seen, full=False) is seen


# when it looks


class Held:
    """Runs a function on demand."""

    def __init__(self, clock: Clock | None = None) -> None:
        self.clock = clock
        self.calls: list[tuple[Deferred[Any], Callable[..., Any], tuple[Any, ...]]] = []

    def __call__(self, function: Callable[..., Any], *arguments: Any) -> Deferred[Any]:
        result: Deferred[Any] = Deferred()
        self.calls.append((result, function, arguments))
        return result

    def run(self) -> None:
        result, function, arguments = self.calls.pop(0)
        maybeDeferred(function, *arguments).chainDeferred(result)


def test_a_refresh_looks_at_every_file_now(directory: Path) -> None:
    keys = Noticed(directory)
    keys.check(5)
    (directory / "web1.public").write_text(B + "\n")
    done: list[None] = []
    keys.keys.refresh().addCallback(done.append)
    assert done == [None]
    assert keys.names(A, B) == [None, "web1"]


def test_a_refresh_during_a_pass_is_a_pass_of_its_own(directory: Path) -> None:
    held = Held()
    keys = Noticed(directory, held)
    keys.check()
    done: list[str] = []
    keys.keys.refresh().addCallback(lambda _: done.append("first"))
    keys.keys.refresh().addCallback(lambda _: done.append("second"))
    assert len(held.calls) == 1, "one at a time"
    held.run()
    assert done == []
    put(directory, "web1", B)
    held.run()
    assert done == ["first", "second"]
    assert keys.names(A, B) == [None, "web1"]
    assert held.calls == []
    keys.check()
    assert len(held.calls) == 1, "it goes on"


def test_a_refresh_asked_for_when_another_ends_does_not_double_the_checks(directory: Path) -> None:
    held = Held()
    keys = Noticed(directory, lambda *call: held(*call) if not keys.refreshed else maybeDeferred(*call))

    def refresh(_: None) -> None:
        keys.refreshed = True
        keys.keys.refresh()

    keys.keys.refresh().addCallback(refresh)
    held.run()
    assert keys.refreshed
    assert len(keys.clock.getDelayedCalls()) == 1


def test_all_files_are_looked_at_now_and_then_and_the_directory_in_between(directory: Path) -> None:
    full: list[bool] = []

    def in_thread(function: Callable[..., Any], *arguments: Any) -> Deferred[Any]:
        full.append(arguments[2])
        return maybeDeferred(function, *arguments)

    keys = Noticed(directory, in_thread)
    keys.check(35)
    assert full == ([False] * 10 + [True] + [False] * 9 + [True] + [False] * 9 + [True] + [False] * 9)[:35]


def test_after_the_stop_nothing_happens(directory: Path) -> None:
    held = Held()
    keys = Noticed(directory, held)
    done: list[None] = []
    for _ in range(2):
        keys.keys.refresh().addCallback(done.append)
    put(directory, "web1", B)
    keys.keys.stop()
    assert done == [None, None]
    held.run()
    keys.keys.refresh().addCallback(done.append)
    assert done == [None, None, None]
    assert (held.calls, keys.clock.getDelayedCalls(), keys.gone) == ([], [], [])
    keys.keys.stop()


def test_a_long_pass_is_followed_by_a_long_rest(directory: Path) -> None:
    held = Held()
    keys = Noticed(directory, held)
    keys.check()
    keys.clock.advance(2)
    held.run()
    keys.check(int(2 * SHARE / CHECK) - 1)
    assert held.calls == []
    keys.check(2)
    assert len(held.calls) == 1


def test_a_clock_that_is_set_does_not_stop_the_checks(directory: Path) -> None:
    held = Held()
    keys = Noticed(directory, held)
    keys.check()
    keys.clock.advance(86_400)
    held.run()
    keys.check(int(REST_MOST / CHECK) + 1)
    assert len(held.calls) == 1
    keys.clock.advance(2)
    held.run()
    keys.clock.rightNow -= 3_600
    for call in keys.clock.getDelayedCalls():
        call.reset(CHECK)  # real timers follow the clock
    keys.check()
    assert [arguments[2] for _, _, arguments in held.calls] == [True], "all files are looked at"


def test_a_defect_in_a_pass_is_logged_and_the_checks_go_on(directory: Path) -> None:
    failing = [True]

    def in_thread(function: Callable[..., Any], *arguments: Any) -> Deferred[Any]:
        return maybeDeferred(divmod, 1, 0) if failing[0] else maybeDeferred(function, *arguments)

    keys = Noticed(directory, in_thread)
    put(directory, "web2", B)
    [line] = keys.check()
    assert line == "reading the client keys raised an unexpected exception"
    failing[0] = False
    assert keys.check() == []
    assert keys.names(B) == ["web2"]


def test_who_fails_to_hear_of_a_change_keeps_nobody_from_it(directory: Path) -> None:
    keys = Noticed(directory)
    keys.keys.changed.insert(0, lambda gone: divmod(1, 0))
    put(directory, "web1", B)
    assert keys.check() == ["a callback for changed client keys raised an exception"]
    assert keys.gone == [frozenset([A])]


class ThreadTests(TestCase):
    async def test_a_pass_in_a_thread(self) -> None:
        directory = Path(tempfile.mkdtemp())
        self.addCleanup(shutil.rmtree, directory)
        keys = Noticed(directory, deferToThread)
        self.addCleanup(keys.keys.stop)
        put(directory, "web1", A)
        await keys.keys.refresh()
        assert keys.names(A) == ["web1"]
