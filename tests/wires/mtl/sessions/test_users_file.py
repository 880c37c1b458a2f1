"""The users file: what stands in it, and what is noticed while it changes."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from twisted.internet.defer import Deferred, maybeDeferred
from twisted.internet.task import Clock
from twisted.logger import LogLevel, capturedLogs, formatEvent

from broker.access.password_verifiers import PasswordVerifier
from broker.wires.mtl.sessions import users_file
from broker.wires.mtl.sessions.users_file import CHECK, MAX_FILE, MAX_PROBLEMS, BadUsers, UsersFile, parse

A, B, C = (PasswordVerifier(4_096 + number, bytes(16), bytes([number]) * 32, bytes(32)) for number in range(3))

NAME_RULE = "a user's name has letters, digits and _ . @ + = : , - only"


def text(**users: PasswordVerifier) -> str:
    return "".join(f"{name} {kept.text()}\n" for name, kept in users.items())


def put(path: Path, content: str | bytes, mode: int = 0o600) -> None:
    """As careful tools do: whole, under another name, then renamed."""
    temporary = path.with_suffix(".new")
    temporary.write_bytes(content if isinstance(content, bytes) else content.encode())
    temporary.chmod(mode)
    temporary.rename(path)


# the text


def test_a_line_has_a_name_and_what_is_kept_of_the_password() -> None:
    assert parse("") == {}
    assert parse(text(anna=A, bert=B)) == {"anna": A, "bert": B}


def test_comments_and_white_space_are_no_users() -> None:
    lines = f"# the users\n\n  \t\n  # anna x\n\tanna\t {A.text()}  \r\n#\nb {B.text()}"
    assert parse(lines) == {"anna": A, "b": B}


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("anna", "a line has a user's name and what is kept of the password, and no more"),
        (f"anna {A.text()} # the best", "a line has a user's name"),
        (f"anna smith {A.text()}", "a line has a user's name"),
        (A.text(), "a line has a user's name"),
        (f"an*na {A.text()}", NAME_RULE),
        (f"\xe9 {A.text()}", NAME_RULE),
        (f"{A.text()} anna", NAME_RULE),
        ("anna pencil", "what is kept of the password of anna is not of the form SCRAM-SHA-256$"),
        (f"anna {A.text()[:-1]}", "what is kept of the password of anna has a part that is not BASE64"),
        (f"anna {A.text().replace('4096', '1')}", "what is kept of the password of anna has not 4096 to "),
        (f"first {B.text()}", "the user first is in line 2 already"),
    ],
)
def test_a_mistake_is_told_with_its_line(line: str, why: str) -> None:
    with pytest.raises(BadUsers) as bad:
        parse(f"# users\nfirst {A.text()}\n\n{line}\nlast {C.text()}\n")
    (sentence,) = bad.value.args
    assert sentence.startswith(f"line 4: {why}")
    assert A.text()[20:] not in sentence
    assert "pencil" not in sentence


def test_all_mistakes_are_told_but_not_too_many() -> None:
    with pytest.raises(BadUsers) as bad:
        parse("x\n" * (MAX_PROBLEMS + 5))
    assert len(bad.value.args) == MAX_PROBLEMS + 1
    assert [sentence.split(":")[0] for sentence in bad.value.args[:3]] == ["line 1", "line 2", "line 3"]
    assert bad.value.args[-1] == "there is more of this kind: 5 lines"
    assert str(bad.value).count("; ") == MAX_PROBLEMS


LINES = st.sampled_from(
    ["anna", "bert ", "# ", " ", "\n", "\r\n", "\x0b", "\u2028", A.text(), B.text()[:-1], "\0", "\ufeff"]
)


@given(st.lists(LINES | st.text(max_size=3), max_size=12).map("".join))
def test_any_text_is_users_or_mistakes(content: str) -> None:
    try:
        users = parse(content)
    except BadUsers as bad:
        assert bad.args
        return
    assert parse(text(**users)) == users
    assert set(users) <= {word for line in content.split("\n") for word in line.split()}


@given(
    st.dictionaries(st.from_regex(r"[A-Za-z0-9_][A-Za-z0-9_.@+=:,-]{0,9}", fullmatch=True), st.sampled_from([A, B, C]))
)
def test_what_is_written_is_read_as_it_was(users: dict[str, PasswordVerifier]) -> None:
    assert parse(text(**users)) == users


# the file


class Noticed:
    """Accounts over a clock, and what they told."""

    def __init__(self, path: Path, in_thread: Callable[..., Deferred[Any]] = maybeDeferred) -> None:
        self.clock = Clock()
        self.accounts = UsersFile(str(path), self.clock, in_thread)
        self.gone: list[frozenset[str]] = []
        self.accounts.changed.append(self.gone.append)

    def users(self) -> dict[str, PasswordVerifier | None]:
        return {name: self.accounts.find(name) for name in self.accounts}

    def check(self, times: int = 1) -> list[str]:
        """Let it look so many times. Returns what it logged of warnings and worse."""
        with capturedLogs() as events:
            for _ in range(times):
                self.clock.advance(CHECK)
        return [formatEvent(event) for event in events if event["log_level"] >= LogLevel.warn]

    def refresh(self) -> list[str]:
        """Let it read the file now. Returns the same."""
        done: list[None] = []
        with capturedLogs() as events:
            self.accounts.refresh().addCallback(done.append)
        assert done == [None]
        return [formatEvent(event) for event in events if event["log_level"] >= LogLevel.warn]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    file = tmp_path / "users"
    put(file, text(anna=A, bert=B))
    return file


def test_the_users_are_known_from_the_start(path: Path) -> None:
    found = Noticed(path).accounts
    assert (found.find("anna"), found.find("bert"), found.find("carl"), found.find("")) == (A, B, None, None)
    assert len(found) == 2
    assert list(found.shapes) == [(4096, 16), (4097, 16)]


def test_a_byte_order_mark_is_no_part_of_the_first_name(path: Path) -> None:
    put(path, "\ufeff" + text(anna=A))
    assert Noticed(path).users() == {"anna": A}


def unusable(path: Path) -> str:
    with pytest.raises(BadUsers) as bad:
        Noticed(path)
    return str(bad.value)


def test_a_file_that_cannot_be_used_is_an_error_at_the_start(path: Path, tmp_path: Path) -> None:
    none = tmp_path / "none"
    assert unusable(none) == f"{none} cannot be read: No such file or directory"
    assert unusable(tmp_path) == f"{tmp_path} is no regular file"
    assert unusable(path / "x") == f"{path / 'x'} cannot be read: Not a directory"
    os.mkfifo(none)
    assert unusable(none) == f"{none} is no regular file"
    put(path, f"anna {A.text()}\nbert\nanna {A.text()}")
    assert unusable(path) == (
        f"{path}, line 2: a line has a user's name and what is kept of the password, and no more; "
        f"{path}, line 3: the user anna is in line 1 already"
    )
    put(path, text(anna=A).encode() + b"\n\xff")
    assert unusable(path) == f"{path} is not UTF-8: line 3 has the byte 0xff"
    put(path, b"#" * (MAX_FILE + 1))
    assert unusable(path) == f"{path} is larger than {MAX_FILE} bytes"


def test_the_largest_file_is_read(path: Path) -> None:
    put(path, b"#" * MAX_FILE)
    assert Noticed(path).users() == {}


@pytest.mark.parametrize("mode", [0o604, 0o602, 0o601, 0o620, 0o644, 0o666, 0o660])
def test_a_file_that_others_may_read_or_write_is_not_used(path: Path, mode: int) -> None:
    put(path, text(anna=A), mode)
    assert unusable(path) == (
        f"{path} has the mode 0{mode:o}: only its owner may write it, and only its group may read it"
    )


@pytest.mark.parametrize("mode", [0o600, 0o640, 0o400, 0o440, 0o700])
def test_a_file_that_the_brokers_group_may_read_is_used(path: Path, mode: int) -> None:
    put(path, text(anna=A), mode)
    assert Noticed(path).users() == {"anna": A}


# while it changes


def test_a_new_user_gets_in_when_two_looks_found_the_same_file(path: Path) -> None:
    noticed = Noticed(path)
    noticed.check(5)
    put(path, text(anna=A, bert=B, carl=C))
    assert noticed.check() == []
    assert noticed.users() == {"anna": A, "bert": B}
    assert noticed.check() == []
    assert noticed.users() == {"anna": A, "bert": B, "carl": C}
    assert noticed.gone == [frozenset()]


def test_users_who_are_gone_or_have_another_password_are_told_of(path: Path) -> None:
    noticed = Noticed(path)
    put(path, text(anna=C, carl=C))
    noticed.check(3)
    assert noticed.users() == {"anna": C, "carl": C}
    assert noticed.gone == [frozenset(["anna", "bert"])]
    assert list(noticed.accounts.shapes) == [(4098, 16), (4098, 16)]
    put(path, text(anna=C))
    noticed.check(3)
    assert noticed.gone == [frozenset(["anna", "bert"]), frozenset(["carl"])]


def test_a_file_that_is_still_being_written_is_not_read(path: Path) -> None:
    noticed = Noticed(path)
    noticed.check(3)
    whole = text(anna=A, bert=B, carl=C)
    with path.open("w") as file:
        for at in range(0, len(whole), 20):
            file.write(whole[at : at + 20])
            file.flush()
            assert noticed.check() == []
            assert noticed.users() == {"anna": A, "bert": B}
    assert noticed.check(2) == []
    assert noticed.users() == {"anna": A, "bert": B, "carl": C}
    assert noticed.gone == [frozenset()]


def test_a_change_that_the_stamp_does_not_show_is_found_by_the_second_reading(path: Path) -> None:
    """The stamp is coarse: the file may be written over right after it was read at the start."""
    noticed = Noticed(path)
    before = path.stat()
    with path.open("r+") as file:
        file.write(text(anna=C, bert=B))
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    noticed.check(3)
    assert noticed.users() == {"anna": C, "bert": B}


def test_a_file_that_did_not_change_is_not_read_again(path: Path) -> None:
    noticed = Noticed(path)
    noticed.check(2)
    seen = users_file.first(str(path))
    sure = users_file.look(str(path), seen, now=False)
    assert sure.sure
    assert users_file.look(str(path), sure, now=False) is sure
    assert noticed.gone == []


def test_a_file_that_was_only_touched_changes_nothing(path: Path) -> None:
    noticed = Noticed(path)
    noticed.check(2)
    put(path, "# the same users\n" + text(bert=B, anna=A))
    assert noticed.check(5) == []
    assert noticed.gone == []
    assert noticed.users() == {"anna": A, "bert": B}


def test_a_broken_file_keeps_the_last_good_users_and_is_logged_once(path: Path) -> None:
    noticed = Noticed(path)
    noticed.check(2)
    put(path, text(carl=C) + "bert\n")
    assert noticed.check(9) == [
        f"the users known so far stay: {path}, line 2: a line has a user's name and what is kept of the password, "
        "and no more"
    ]
    assert noticed.users() == {"anna": A, "bert": B}
    put(path, text(carl=C) + "\nbert\n")
    assert len(noticed.check(9)) == 1
    put(path, text(anna=A, bert=B))
    assert noticed.check(9) == []
    assert noticed.gone == []
    put(path, text(carl=C))
    assert noticed.check(9) == []
    assert noticed.users() == {"carl": C}
    assert noticed.gone == [frozenset(["anna", "bert"])]


def test_a_file_that_is_gone_keeps_the_last_users_until_it_is_back(path: Path) -> None:
    noticed = Noticed(path)
    path.unlink()
    assert noticed.check(9) == [f"the users known so far stay: {path} cannot be read: No such file or directory"]
    assert noticed.users() == {"anna": A, "bert": B}
    path.mkdir()
    assert noticed.check(9) == [f"the users known so far stay: {path} is no regular file"]
    path.rmdir()
    put(path, text(anna=A), 0o644)
    (line,) = noticed.check(9)
    assert "has the mode 0644" in line
    path.chmod(0o600)
    assert noticed.check(9) == []
    assert noticed.users() == {"anna": A}
    assert noticed.gone == [frozenset(["bert"])]


def test_the_log_says_what_changed_and_when_it_is_well_again(path: Path) -> None:
    with capturedLogs() as events:
        noticed = Noticed(path)
        put(path, "bad")
        noticed.check(3)
        put(path, text(anna=C, carl=C, dora=C))
        noticed.check(3)
    assert [formatEvent(event) for event in events if event["log_level"] is LogLevel.info] == [
        f"2 users are in {path}",
        f"the users in {path} can be read again",
        f"the users in {path} changed: 2 were known, 3 are; 2 are gone or have another password",
    ]


def test_a_refresh_reads_the_file_at_once(path: Path) -> None:
    noticed = Noticed(path)
    put(path, text(carl=C))
    assert noticed.refresh() == []
    assert noticed.users() == {"carl": C}
    assert noticed.gone == [frozenset(["anna", "bert"])]
    put(path, "bad")
    assert len(noticed.refresh()) == 1
    assert noticed.refresh() == []
    assert noticed.users() == {"carl": C}
    assert noticed.check(9) == []
    put(path, text(anna=A))
    noticed.check(2)
    assert noticed.users() == {"anna": A}


def test_who_asks_during_a_look_waits_for_the_next_one(path: Path) -> None:
    calls: list[tuple[Deferred[Any], Callable[..., Any], tuple[Any, ...]]] = []

    def in_thread(function: Callable[..., Any], *arguments: Any) -> Deferred[Any]:
        done: Deferred[Any] = Deferred()
        calls.append((done, function, arguments))
        return done

    def finish() -> None:
        done, function, arguments = calls.pop(0)
        done.callback(function(*arguments))

    noticed = Noticed(path, in_thread)
    noticed.clock.advance(CHECK)
    (_,) = calls
    done: list[str] = []
    noticed.accounts.refresh().addCallback(lambda _: done.append("one"))
    noticed.accounts.refresh().addCallback(lambda _: done.append("two"))
    assert len(calls) == 1
    finish()
    assert done == []
    put(path, text(carl=C))
    finish()
    assert sorted(done) == ["one", "two"]
    assert noticed.users() == {"carl": C}
    assert calls == []
    noticed.clock.advance(CHECK)
    assert len(calls) == 1


def test_after_a_stop_nothing_is_read_and_nobody_waits(path: Path) -> None:
    calls: list[Deferred[Any]] = []

    def in_thread(*_: object) -> Deferred[Any]:
        calls.append(Deferred())
        return calls[-1]

    noticed = Noticed(path, in_thread)
    noticed.clock.advance(CHECK)
    done: list[None] = []
    noticed.accounts.refresh().addCallback(done.append)
    noticed.accounts.stop()
    assert done == [None]
    noticed.accounts.refresh().addCallback(done.append)
    put(path, text(carl=C))
    calls[0].callback(users_file.first(str(path)))
    assert noticed.users() == {"anna": A, "bert": B}
    noticed.accounts.refresh().addCallback(done.append)
    assert done == [None, None, None]
    assert len(calls) == 1
    assert noticed.clock.getDelayedCalls() == []


def test_who_waits_for_the_look_that_goes_on_is_told_at_a_stop(path: Path) -> None:
    noticed = Noticed(path, lambda *_: Deferred())
    done: list[None] = []
    noticed.accounts.refresh().addCallback(done.append)
    assert done == []
    noticed.accounts.stop()
    assert done == [None]


def test_a_stop_between_two_looks_ends_the_timer(path: Path) -> None:
    noticed = Noticed(path)
    noticed.check()
    noticed.accounts.stop()
    assert noticed.clock.getDelayedCalls() == []


def test_one_who_is_told_and_fails_keeps_nothing_from_the_others(path: Path) -> None:
    noticed = Noticed(path)
    noticed.accounts.changed.insert(0, lambda gone: 1 / 0)
    put(path, text(anna=A))
    assert noticed.check(3) == ["what was to be done after the users changed failed"]
    assert noticed.gone == [frozenset(["bert"])]
    put(path, text(bert=B))
    noticed.check(3)
    assert noticed.users() == {"bert": B}


@pytest.mark.parametrize("emptied", ["", "# all of them moved\n"])
def test_a_file_without_users_replaces_one_with_users_only_if_it_says_so(path: Path, emptied: str) -> None:
    noticed = Noticed(path)
    path.write_text(emptied)
    noticed.check(3)
    assert noticed.users() == {"anna": A, "bert": B}
    path.write_text(emptied + "nobody\n")
    noticed.check(3)
    assert noticed.users() == {}
    assert noticed.gone == [frozenset({"anna", "bert"})]
