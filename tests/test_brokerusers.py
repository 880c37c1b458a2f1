"""The command that says who may log in."""

from __future__ import annotations

import fcntl
import os
import pty
import select
import signal
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest

from broker import brokerusers
from broker.access import password_verifiers
from broker.access.password_verifiers import MAX_PASSWORD, PasswordVerifier
from broker.access.replacing import EditFailed as Failed
from broker.brokerusers import INTERRUPTED, add, main, remove, users
from broker.wires.mtl.sessions import users_file
from broker.wires.mtl.sessions.users_file import BadUsers
from tests.patience import PATIENCE, until

pytestmark = pytest.mark.long

ROOT = Path(__file__).parent.parent

KEPT = PasswordVerifier(4_096, bytes(16), bytes(32), bytes(32))

ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT)}


def run(*arguments: str | Path, said: str | bytes = b"", cwd: Path = ROOT) -> subprocess.CompletedProcess[bytes]:
    """The finished command, as a process of its own, which was told that on its standard input."""
    return subprocess.run(
        [sys.executable, "-m", "broker.brokerusers", *(str(argument) for argument in arguments)],
        cwd=cwd,
        env=ENVIRONMENT,
        input=said if isinstance(said, bytes) else said.encode(),
        capture_output=True,
        timeout=PATIENCE,
        check=False,
    )


def result(done: subprocess.CompletedProcess[bytes]) -> tuple[int, str, str]:
    return done.returncode, done.stdout.decode(), done.stderr.decode()


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def put(path: Path, text: str, mode: int = 0o600) -> None:
    path.write_text(text)
    path.chmod(mode)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "users"


# the whole way


def test_a_user_is_added_listed_checked_changed_and_removed(file: Path) -> None:
    assert result(run("add", file, "anna", said="pencil\n")) == (0, "anna is a user\n", "")
    assert mode(file) == 0o600
    assert users(str(file))["anna"].check("pencil")
    assert result(run("add", file, "bert", said="p\xe4per")) == (0, "bert is a user\n", "")
    assert result(run("list", file)) == (0, "anna\nbert\n", "")
    assert result(run("check", file)) == (0, f"{file} is in order: 2 users\n", "")
    failed = run("add", file, "anna", said="other\n")
    assert result(failed) == (
        1, "", f"brokerusers: anna is in {file} already; --force gives another password\n"
    )  # fmt: skip
    assert users(str(file))["anna"].check("pencil")
    assert result(run("add", "--force", file, "anna", said="other\r\nmore")) == (0, "anna has another password\n", "")
    found = users(str(file))
    assert found["anna"].check("other")
    assert found["bert"].check("p\xe4per")
    assert result(run("remove", file, "anna")) == (0, "anna is removed\n", "")
    assert result(run("list", file)) == (0, "bert\n", "")
    assert os.listdir(file.parent) == ["users"]


def test_the_password_is_nowhere_to_be_read(file: Path) -> None:
    done = run("add", file, "anna", said="pencil\n")
    assert "pencil" not in file.read_text() + done.stdout.decode() + done.stderr.decode()


@pytest.mark.parametrize(
    "arguments",
    [
        (),
        ("add",),
        ("add", "f"),
        ("add", "f", "anna", "pencil"),
        ("remove", "f"),
        ("list",),
        ("check", "a", "b"),
        ("x",),
    ],
)
def test_a_command_line_that_makes_no_sense_is_explained(arguments: tuple[str, ...]) -> None:
    with pytest.raises(SystemExit) as exit:
        main(arguments)
    assert exit.value.code == 2


def test_output_that_nobody_reads_is_no_failure_with_a_traceback(file: Path) -> None:
    put(file, f"anna {KEPT.text()}\n")
    reader, writer = os.pipe()
    os.close(reader)
    process = subprocess.run(
        [sys.executable, "-m", "broker.brokerusers", "list", str(file)],
        env=ENVIRONMENT,
        stdout=writer,
        stderr=subprocess.PIPE,
        timeout=PATIENCE,
        check=False,
    )
    os.close(writer)
    assert (process.returncode, process.stderr) == (1, b"")


# a broken file, and no file


def test_what_is_wrong_with_a_file_is_told_line_by_line(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    put(file, f"anna {KEPT.text()}\nbert\nanna {KEPT.text()}\n")
    assert main(["check", str(file)]) == 1
    assert capsys.readouterr() == (
        "",
        f"brokerusers: {file}, line 2: a line has a user's name and what is kept of the password, and no more\n"
        f"brokerusers: {file}, line 3: the user anna is in line 1 already\n",
    )


@pytest.mark.parametrize(
    "arguments", [("add", "{}", "carl"), ("remove", "{}", "anna"), ("list", "{}"), ("check", "{}")]
)
def test_a_broken_file_is_not_touched(
    file: Path, arguments: tuple[str, ...], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(brokerusers, "asked", lambda name: pytest.fail("a password was asked for"))
    text = f"anna {KEPT.text()}\nbert\n"
    for content, permissions, why in ((text, 0o600, "line 2"), (text[:-5], 0o644, "has the mode 0644")):
        put(file, content, permissions)
        assert main([argument.format(file) for argument in arguments]) == 1
        assert why in capsys.readouterr().err
        assert file.read_text() == content
        assert os.listdir(file.parent) == ["users"]


@pytest.mark.parametrize("arguments", [("remove", "{}", "anna"), ("list", "{}"), ("check", "{}")])
def test_a_file_that_is_not_there_is_only_made_for_a_user(
    file: Path, arguments: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([argument.format(file) for argument in arguments]) == 1
    assert f"{file} cannot be read: No such file or directory" in capsys.readouterr().err
    assert os.listdir(file.parent) == []


def test_a_directory_that_is_not_there_is_told_before_a_password_is_asked_for(file: Path) -> None:
    with pytest.raises(Failed, match="would be in no directory"):
        add(str(file / "users"), "anna", lambda: pytest.fail("a password was asked for"), force=False)


def test_who_is_not_there_cannot_be_removed(file: Path) -> None:
    put(file, f"anna {KEPT.text()}\n")
    with pytest.raises(Failed, match="there is no user 'bert' in "):
        remove(str(file), "bert")
    assert users(str(file)) == {"anna": KEPT}


@pytest.mark.parametrize("name", ["", "#anna", "a b", "a*", "\xe9", "-x", "a" * 201, "{user}"])
def test_a_name_that_no_user_may_have_is_refused(file: Path, name: str) -> None:
    with pytest.raises(Failed, match="is no name for a user: a user's name has letters"):
        add(str(file), name, lambda: "pencil", force=False)
    assert not file.exists()


# what stays as it was


def test_comments_and_other_users_stay_as_they_are(file: Path) -> None:
    before = [f"# anna {KEPT.text()}", "", f"  anna\t{KEPT.text()}\r", "# the last one", f"bert {KEPT.text()}"]
    put(file, "\n".join(before))
    add(str(file), "carl", lambda: "pencil", force=False)
    add(str(file), "anna", lambda: "pencil", force=True)
    lines = file.read_text().split("\n")
    carl = f"carl {users(str(file))['carl'].text()}"
    anna = f"anna {users(str(file))['anna'].text()}"
    assert lines == [*before[:2], anna, *before[3:], carl, ""]
    remove(str(file), "anna")
    remove(str(file), "carl")
    assert file.read_text().split("\n") == [*before[:2], *before[3:], ""]


def test_the_file_says_that_there_is_nobody_while_it_is_so(file: Path) -> None:
    add(str(file), "anna", lambda: "pencil", force=False)
    remove(str(file), "anna")
    assert file.read_text() == "nobody\n"
    add(str(file), "bert", lambda: "pencil", force=False)
    assert file.read_text().startswith("bert ")
    assert file.read_text().count("\n") == 1


@pytest.mark.parametrize("permissions", [0o600, 0o640, 0o400])
def test_a_file_keeps_its_mode_and_a_new_one_is_its_owners(file: Path, permissions: int) -> None:
    before = os.umask(0)
    try:
        add(str(file), "anna", lambda: "pencil", force=False)
        assert mode(file) == 0o600
        file.chmod(permissions)
        add(str(file), "bert", lambda: "pencil", force=False)
        assert mode(file) == permissions
    finally:
        os.umask(before)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may give files away")
def test_a_file_keeps_its_owner(file: Path) -> None:
    add(str(file), "anna", lambda: "pencil", force=False)
    os.chown(file, 12_345, 54_321)
    remove(str(file), "anna")
    assert (file.stat().st_uid, file.stat().st_gid, mode(file)) == (12_345, 54_321, 0o600)


def test_a_link_to_the_file_stays_one(file: Path, tmp_path: Path) -> None:
    real = tmp_path / "elsewhere"
    real.mkdir()
    file.symlink_to(real / "users")
    put(real / "users", f"anna {KEPT.text()}\n")
    add(str(file), "bert", lambda: "pencil", force=False)
    assert file.is_symlink()
    assert list(users(str(real / "users"))) == ["anna", "bert"]


def test_a_file_that_cannot_be_written_is_left_whole(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put(file, f"anna {KEPT.text()}\n")

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(Failed, match="users cannot be written: No space left on device"):
        add(str(file), "bert", lambda: "pencil", force=False)
    assert file.read_text() == f"anna {KEPT.text()}\n"
    assert os.listdir(file.parent) == ["users"]


def test_a_file_does_not_become_larger_than_the_broker_reads(file: Path) -> None:
    put(file, "#" * (users_file.MAX_FILE - 10) + "\n")
    with pytest.raises(Failed, match="would become larger than"):
        add(str(file), "anna", lambda: "pencil", force=False)
    assert users(str(file)) == {}
    assert os.listdir(file.parent) == ["users"]


def test_two_who_change_the_file_at_once_do_it_one_after_the_other(file: Path) -> None:
    """While the lock is held the command waits; and it reads what the other one wrote."""
    put(file, f"anna {KEPT.text()}\n")
    lock = os.open(file.parent, os.O_RDONLY)
    fcntl.flock(lock, fcntl.LOCK_EX)
    command = subprocess.Popen(
        [sys.executable, "-m", "broker.brokerusers", "remove", str(file), "anna"], env=ENVIRONMENT, cwd=ROOT
    )
    try:
        waiting = f"{command.pid}"
        deadline = time.monotonic() + PATIENCE
        # The kernel's list of locks shows who waits for one.
        while not any(
            "->" in line and waiting in line.split() for line in Path("/proc/locks").read_text().splitlines()
        ):
            assert command.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.01)
        put(file, f"bert {KEPT.text()}\nanna {KEPT.text()}\n")
    finally:
        os.close(lock)
        assert command.wait(PATIENCE) == 0
    assert users(str(file)) == {"bert": KEPT}


def test_a_user_who_came_while_the_password_was_asked_for_is_not_changed(file: Path) -> None:
    def slow() -> str:
        put(file, f"anna {KEPT.text()}\n")
        return "pencil"

    with pytest.raises(Failed, match="already"):
        add(str(file), "anna", slow, force=False)
    assert users(str(file)) == {"anna": KEPT}


# passwords


@pytest.mark.parametrize(
    ("said", "why"),
    [
        (b"", "no password was given: standard input is at its end"),
        (b"\n", "the password is empty"),
        (b"\r\n", "the password is empty"),
        (b"pencil\xff\n", "the password is not UTF-8, or too long"),
        (b"\xf0\x9f\x94\x92\n", "the password has characters that SASL (RFC 4013) does not allow, or not together"),
        (b"a" * (MAX_PASSWORD + 1), f"the password has more than {MAX_PASSWORD} bytes"),
        (b"a" * 100_000, f"the password has more than {MAX_PASSWORD} bytes"),
        (b"\xc3\xa9" * 100_000, "the password is not UTF-8, or too long"),
    ],
)
def test_a_password_that_cannot_be_used_is_refused(file: Path, said: bytes, why: str) -> None:
    assert result(run("add", file, "anna", said=said)) == (1, "", f"brokerusers: {why}\n")
    assert not file.exists()


def test_the_longest_password_is_taken_with_any_end_of_line(file: Path) -> None:
    assert result(run("add", file, "anna", said=b"a" * MAX_PASSWORD + b"\r\n")) == (0, "anna is a user\n", "")
    assert users(str(file))["anna"].check("a" * MAX_PASSWORD)


def test_a_new_password_takes_its_time_to_check(file: Path) -> None:
    add(str(file), "anna", lambda: "pencil", force=False)
    assert users(str(file))["anna"].iterations == password_verifiers.ITERATIONS == 100_000


def sleeps(pid: int) -> bool:
    """Return True if a process with one thread waits for something."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "S"


def typed(file: Path, *answers: bytes | None) -> tuple[int, str]:
    """The exit code and what a terminal showed, after these answers to the questions; None is Control-C."""
    here, terminal = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "broker.brokerusers", "add", str(file), "anna"],
        cwd=ROOT,
        env=ENVIRONMENT,
        stdin=terminal,
        stdout=terminal,
        stderr=terminal,
        start_new_session=True,
    )
    os.close(terminal)
    shown = b""
    left = list(answers)
    try:
        while True:
            ready, _, _ = select.select([here], [], [], 60)
            assert ready, shown
            try:
                shown += os.read(here, 1_000)
            except OSError:
                # So Linux says that nobody has the terminal any more.
                break
            while left and shown.count(b": ") > len(answers) - len(left):
                answer = left.pop(0)
                if answer is None:
                    # A signal between the prompt and the read would be handled after the read only.
                    until(lambda: sleeps(process.pid))
                    process.send_signal(signal.SIGINT)
                else:
                    os.write(here, answer)
        return process.wait(PATIENCE), shown.decode()
    finally:
        os.close(here)
        process.kill()
        process.wait()


def test_on_a_terminal_the_password_is_asked_for_twice_and_not_shown(file: Path) -> None:
    code, shown = typed(file, b"pencil\n", b"pencil\n")
    assert code == 0
    assert shown.split("\r\n") == ["Password of anna: ", "Once more: ", "anna is a user", ""]
    assert users(str(file))["anna"].check("pencil")


def test_two_different_passwords_are_none(file: Path) -> None:
    code, shown = typed(file, b"pencil\n", b"penicl\n")
    assert code == 1
    assert "these were two different passwords" in shown
    assert not file.exists()


def test_a_terminal_may_be_left_without_a_password(file: Path) -> None:
    code, shown = typed(file, b"\x04")
    assert (code, "no password was given" in shown) == (1, True)
    code, shown = typed(file, None)
    assert code == INTERRUPTED
    assert "Traceback" not in shown
    assert not file.exists()


def test_a_broken_file_is_an_error_of_its_own(file: Path) -> None:
    put(file, "x\n")
    with pytest.raises(BadUsers):
        users(str(file))
