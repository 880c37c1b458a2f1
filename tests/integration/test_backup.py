"""`brokerctl backup` beside a running daemon, and `brokerctl restore` for the next one."""

from __future__ import annotations

import bz2
import contextlib
import errno
import gzip
import io
import lzma
import os
import random
import re
import signal
import sqlite3
import subprocess
import sys
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from broker.brokerctl.backup_commands import MANIFEST
from broker.brokerctl.cli import cli
from tests.integration.conftest import OTHERS
from tests.integration.daemon import Daemon, environment
from tests.integration.mtl_peers import configured, peers_of
from tests.integration.test_damage import BODIES, QUEUES, written
from tests.integration.test_lifecycle import find
from tests.patience import PATIENCE, until


def run(command: str, archive: Path, state: Path) -> Result:
    return CliRunner().invoke(cli, (command, str(archive), "--state", str(state)))


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with the archive of a running daemon, whose queue has been read since."""
    where = tmp_path_factory.mktemp("made")
    options = written(where)
    (where / "state" / "journal" / "open").mkdir(exist_ok=True)
    (where / "state" / "journal" / "open" / "now").write_bytes(b"changes")
    with Daemon(where, *options) as daemon, peers_of(daemon) as peers:
        reader = peers.reader("queue", "durable-q")
        done = run("backup", where / "state.tar.gz", where / "state")
        assert done.exit_code == 0, done.output
        assert reader.bodies(3) == BODIES
    return where


def test_a_backup_is_for_its_owner_and_holds_no_file_of_a_process(made: Path) -> None:
    assert (made / "state.tar.gz").stat().st_mode & 0o777 == 0o600
    with tarfile.open(made / "state.tar.gz") as archive:
        names = archive.getnames()
    assert names[-1] == MANIFEST
    assert {"elkobroker.sqlite3", "queues.sqlite3", "mtl.secret"} <= set(names)
    assert not {"lock", "reserve", "journal/lock", "journal/open/now"} & set(names)
    assert not [name for name in names if name.endswith(("-wal", "-shm"))]
    assert not list(made.glob("*.part")) + list(made.glob(".elkobroker-backup-*"))


def test_sigterm_leaves_nothing_beside_the_archive(tmp_path: Path) -> None:
    state, place = tmp_path / "state", tmp_path / "place"
    state.mkdir()
    place.mkdir()
    command = [sys.executable, "-m", "broker.brokerctl", "backup", str(place / "state.tar"), "--state", str(state)]
    with contextlib.closing(sqlite3.connect(state / "elkobroker.sqlite3", isolation_level=None)) as database:
        database.execute("CREATE TABLE t (x)")
        # The copy waits for the end of this transaction.
        database.execute("BEGIN EXCLUSIVE")
        with subprocess.Popen(command, env=environment(), stderr=subprocess.PIPE, text=True) as process:
            until(lambda: list(place.glob(".elkobroker-backup-*")), "the copy of the database begins")
            # Twice, as `timeout` does.
            process.terminate()
            process.terminate()
            _, errors = process.communicate(timeout=PATIENCE)
    # The second one ends the process at once if it comes after the cleaning. A shell shows both as 143.
    assert process.returncode in (128 + signal.SIGTERM, -signal.SIGTERM)
    assert errors == ""
    assert list(place.iterdir()) == []


STOPPED_AT_ONCE = """
import os, signal, sys
from broker.brokerctl.cli import cli

function, prefix = sys.argv[1:3]
make = getattr(os, function)

def stopped(path, *rest, **named):
    made = make(path, *rest, **named)
    if os.path.basename(path).startswith(prefix):
        os.kill(os.getpid(), signal.SIGTERM)
    return made

setattr(os, function, stopped)
cli(sys.argv[3:])
"""
"""The command, which gets a signal as soon as a function of `os` has made what has a name with that prefix."""


@pytest.mark.parametrize(("function", "prefix"), [("mkdir", ".elkobroker-backup-"), ("open", ".state.tar.")])
def test_a_signal_as_soon_as_something_temporary_is_made_leaves_none(
    tmp_path: Path, function: str, prefix: str
) -> None:
    state, place = tmp_path / "state", tmp_path / "place"
    state.mkdir()
    place.mkdir()
    with contextlib.closing(sqlite3.connect(state / "elkobroker.sqlite3")) as database:
        database.execute("CREATE TABLE t (x)")
    arguments = [function, prefix, "backup", str(place / "state.tar"), "--state", str(state)]
    done = subprocess.run(
        [sys.executable, "-c", STOPPED_AT_ONCE, *arguments], env=environment(), capture_output=True, check=False
    )
    assert (done.returncode, done.stderr) == (128 + signal.SIGTERM, b"")
    assert list(place.iterdir()) == []


LARGE = 256 * 1024 * 1024
"""Bytes of a database whose copy takes a while."""


def test_a_signal_ends_the_copy_of_a_large_database_in_the_middle(tmp_path: Path) -> None:
    state, place = tmp_path / "state", tmp_path / "place"
    state.mkdir()
    place.mkdir()
    command = [sys.executable, "-m", "broker.brokerctl", "backup", str(place / "state.tar"), "--state", str(state)]
    with contextlib.closing(sqlite3.connect(state / "elkobroker.sqlite3", isolation_level=None)) as database:
        database.execute("PRAGMA synchronous = OFF")
        database.execute("CREATE TABLE t (x)")
        database.execute("INSERT INTO t VALUES (zeroblob(?))", (LARGE,))

    def copied() -> int:
        with contextlib.suppress(FileNotFoundError):
            return sum(each.stat().st_size for each in place.glob(".elkobroker-backup-*/copy"))
        return 0

    def stopped_in_the_middle() -> bool:
        with subprocess.Popen(command, env=environment(), stderr=subprocess.PIPE) as process:
            sizes = [until(copied, "the copy of the database grows")]
            process.send_signal(signal.SIGSTOP)
            sizes.append(copied())
            process.terminate()
            process.send_signal(signal.SIGCONT)
            while process.poll() is None:
                sizes.append(copied())
        if sizes[1] > LARGE / 2:  # the machine was too busy to look in time
            return False
        assert process.returncode == 128 + signal.SIGTERM
        assert max(sizes) < LARGE
        return True

    until(stopped_in_the_middle, "a signal in the middle of the copy")
    assert list(place.iterdir()) == []


def test_a_broker_goes_on_from_a_restored_state(made: Path, tmp_path: Path) -> None:
    state = tmp_path / "state"
    state.mkdir(mode=0o700)
    (state / "elkobroker.sqlite3").write_bytes(b"former")
    done = run("restore", made / "state.tar.gz", state)
    assert done.exit_code == 0, done.output
    (former,) = state.glob("before-restore-*")
    assert str(former) in done.output
    assert (former / "elkobroker.sqlite3").read_bytes() == b"former"
    with Daemon(tmp_path, "--config", configured(tmp_path, QUEUES, OTHERS)) as daemon, peers_of(daemon) as peers:
        assert find(daemon, "bank")["hostport"] == "h:1"
        assert peers.reader("queue", "durable-q").bodies(3) == BODIES
        # What an earlier restore has left is no part of the next backup.
        assert run("backup", tmp_path / "again.tar", state).exit_code == 0
    with tarfile.open(tmp_path / "again.tar") as archive:
        assert not [name for name in archive.getnames() if name.startswith("before-restore-")]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files to other users")
def test_restored_files_belong_to_the_owner_of_the_directory(made: Path, tmp_path: Path) -> None:
    # As under systemd: a link, to a directory of a user of the unit's own.
    real, state = tmp_path / "private", tmp_path / "state"
    real.mkdir(mode=0o700)
    os.chown(real, 64_123, 64_124)
    state.symlink_to(real)
    assert run("restore", made / "state.tar.gz", state).exit_code == 0
    assert state.is_symlink()
    owners = {(path.stat().st_uid, path.stat().st_gid) for path in real.rglob("*")}
    assert owners == {(64_123, 64_124)}


def test_a_running_broker_keeps_its_state(made: Path, tmp_path: Path) -> None:
    with Daemon(tmp_path) as daemon:
        daemon.port()
        done = run("restore", made / "state.tar.gz", tmp_path / "state")
        assert done.exit_code == 1
        assert f"(process {daemon.process.pid}): stop it first" in done.output
    assert not list((tmp_path / "state").glob("before-restore-*"))


def altered(archive: Path, target: Path, change: Callable[[tarfile.TarInfo, bytes], bytes | None]) -> None:
    """Write an archive with the members of another that ``change`` returns."""
    with tarfile.open(archive) as source, tarfile.open(target, "w") as copy:
        for member in source:
            file = source.extractfile(member)
            assert file is not None
            data = change(member, file.read())
            if data is not None:
                member.size = len(data)
                copy.addfile(member, io.BytesIO(data))


def _flipped(member: tarfile.TarInfo, data: bytes) -> bytes:
    return data[:-1] + bytes([data[-1] ^ 1]) if member.name == "mtl.secret" else data


def _without_end(member: tarfile.TarInfo, data: bytes) -> bytes | None:
    return None if member.name == MANIFEST else data


def _without_key(member: tarfile.TarInfo, data: bytes) -> bytes | None:
    return None if member.name == "mtl.secret" else data


def _outside(member: tarfile.TarInfo, data: bytes) -> bytes:
    member.name = "../" + member.name
    return data


def _of_a_later_layout(member: tarfile.TarInfo, data: bytes) -> bytes:
    return data.replace(b'"version": 1', b'"version": 2') if member.name == MANIFEST else data


def _without_files(member: tarfile.TarInfo, data: bytes) -> bytes:
    return b'{"version": 1}' if member.name == MANIFEST else data


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (_flipped, "is damaged: mtl.secret is not as it was written"),
        (_without_key, "is damaged: mtl.secret is not as it was written"),
        (_without_end, "is incomplete, or no backup of elkobroker"),
        (_outside, "is no backup of elkobroker: it has the member ../"),
        (_of_a_later_layout, "has layout 2: this brokerctl restores layout 1"),
        (_without_files, "is damaged, or no backup of elkobroker"),
    ],
)
def test_a_bad_archive_replaces_nothing(
    made: Path, tmp_path: Path, change: Callable[[tarfile.TarInfo, bytes], bytes | None], sentence: str
) -> None:
    altered(made / "state.tar.gz", tmp_path / "bad.tar", change)
    state = tmp_path / "state"
    state.mkdir()
    (state / "elkobroker.sqlite3").write_bytes(b"present")
    done = run("restore", tmp_path / "bad.tar", state)
    assert done.exit_code == 1
    assert sentence in done.output
    assert sorted(path.name for path in state.iterdir()) == ["elkobroker.sqlite3", "lock"]
    assert not (tmp_path / "elkobroker.sqlite3").exists()


def test_a_restore_that_cannot_move_a_file_moves_the_others_back(made: Path, tmp_path: Path) -> None:
    def renamed(member: tarfile.TarInfo, data: bytes) -> bytes:
        if member.name == "mtl.secret":
            member.name = "etcd"
        return data.replace(b'"mtl.secret"', b'"etcd"') if member.name == MANIFEST else data

    altered(made / "state.tar.gz", tmp_path / "other.tar", renamed)
    state = tmp_path / "state"
    (state / "etcd" / "member").mkdir(parents=True)
    (state / "lost+found").mkdir()
    for name in ("elkobroker.sqlite3", "queues.sqlite3", "mtl.secret"):
        (state / name).write_bytes(b"present")
    before = {path: path.is_dir() or path.read_bytes() for path in state.rglob("*")}
    done = run("restore", tmp_path / "other.tar", state)
    assert done.exit_code == 1
    assert "/etcd cannot be moved, and nothing is replaced: Is a directory" in done.output
    (state / "lock").unlink()
    assert {path: path.is_dir() or path.read_bytes() for path in state.rglob("*")} == before
    # The directory of a file system of its own stays in its place.
    assert run("restore", made / "state.tar.gz", state).exit_code == 0
    assert (state / "lost+found").is_dir()


def test_an_archive_that_was_cut_off_replaces_nothing(made: Path, tmp_path: Path) -> None:
    whole = (made / "state.tar.gz").read_bytes()
    (tmp_path / "cut.tar.gz").write_bytes(whole[: len(whole) // 2])
    done = run("restore", tmp_path / "cut.tar.gz", tmp_path / "state")
    assert done.exit_code == 1
    assert "is damaged, or no backup of elkobroker" in done.output
    assert [path.name for path in (tmp_path / "state").iterdir()] == ["lock"]


@pytest.mark.parametrize("packed", [bytes, gzip.compress, lambda data: bz2.compress(data, 1), lzma.compress])
def test_an_archive_that_is_damaged_anywhere_replaces_nothing(
    made: Path, tmp_path: Path, packed: Callable[[bytes], bytes]
) -> None:
    noise = random.Random(0).randbytes(1_024)  # more than the padding of a member, which nothing reads
    altered(made / "state.tar.gz", tmp_path / "plain.tar", lambda _, data: data)
    whole = packed((tmp_path / "plain.tar").read_bytes())
    end = len(whole) - (tarfile.RECORDSIZE if packed is bytes else 0)  # of a tar archive: the zeros after its end
    for part in range(8):
        at = end * part // 8
        (tmp_path / "bad").write_bytes(whole[:at] + noise + whole[at + len(noise) :])
        done = run("restore", tmp_path / "bad", tmp_path / "state")
        assert done.exit_code == 1
        assert re.match("brokerctl: .*/bad is (damaged|incomplete)", done.output), (at, done.output, done.exception)
    assert [path.name for path in (tmp_path / "state").iterdir()] == ["lock"]


def test_what_the_broker_has_on_another_disk_is_in_a_backup(tmp_path: Path) -> None:
    """The broker follows links to databases and to the journal, but none inside of that."""
    state, disk, restored = tmp_path / "state", tmp_path / "disk", tmp_path / "restored"
    (disk / "journal" / "segments").mkdir(parents=True)
    (disk / "journal" / "segments" / "one").write_bytes(b"loads")
    (disk / "journal" / "segments" / "others").symlink_to(disk)
    state.mkdir()
    for name in ("elkobroker.sqlite3", "queues.sqlite3"):
        with contextlib.closing(sqlite3.connect(disk / name)) as database:
            database.execute("CREATE TABLE kept AS SELECT 'message' AS content")
            database.commit()
    for name in ("elkobroker.sqlite3", "queues.sqlite3", "journal"):
        (state / name).symlink_to(disk / name)
    (state / "notes").symlink_to(tmp_path)
    (state / "nowhere").symlink_to("none")
    assert run("backup", tmp_path / "state.tar", state).exit_code == 0
    assert "is inside the state directory" in run("backup", disk / "journal" / "state.tar", state).output
    assert run("restore", tmp_path / "state.tar", restored).exit_code == 0
    files = {str(path.relative_to(restored)) for path in restored.rglob("*") if path.is_file()}
    assert files == {"elkobroker.sqlite3", "queues.sqlite3", "journal/segments/one", "lock"}
    with contextlib.closing(sqlite3.connect(restored / "queues.sqlite3")) as database:
        assert database.execute("SELECT content FROM kept").fetchall() == [("message",)]


def test_an_archive_inside_the_state_directory_is_refused(made: Path) -> None:
    (made / "link").symlink_to(made / "state")
    (made / "state" / "state.tar").symlink_to(made / "outside.tar")
    for where in (made / "state" / "journal", made / "link"):
        done = run("backup", where / "state.tar", made / "state")
        assert (done.exit_code, "is inside the state directory" in done.output) == (1, True)
        assert not (where / "state.tar").exists()


def test_an_archive_takes_the_place_of_regular_files_alone(made: Path, tmp_path: Path) -> None:
    """Root could replace /dev/null, or the link /dev/stdout, by a file."""
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "stdout").symlink_to("pipe")
    for name in ("pipe", "stdout"):
        done = run("backup", tmp_path / name, made / "state")
        assert (done.exit_code, "is no regular file" in done.output) == (1, True)
    assert (tmp_path / "pipe").is_fifo()
    (tmp_path / "monday.tar").write_bytes(b"the former one")
    (tmp_path / "last.tar").symlink_to("monday.tar")
    assert run("backup", tmp_path / "last.tar", made / "state").exit_code == 0
    assert (tmp_path / "stdout").is_symlink()
    assert (tmp_path / "last.tar").is_symlink()
    assert tarfile.is_tarfile(tmp_path / "monday.tar")


@pytest.mark.parametrize("name", ["journal", "mtl.secret"])
def test_what_cannot_be_read_ends_a_backup(
    made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """As for a user who may not read it; the system permits the superuser all."""
    unreadable = made / "state" / name
    scandir, opened = os.scandir, Path.open

    def refused(path: object) -> None:
        if str(path) == str(unreadable):
            raise PermissionError(errno.EACCES, "Permission denied", str(path))

    def scanned(path: Any = ".") -> Any:
        refused(path)
        return scandir(path)

    def open_file(path: Path, *arguments: Any, **named: Any) -> Any:
        refused(path)
        return opened(path, *arguments, **named)

    monkeypatch.setattr(os, "scandir", scanned)
    monkeypatch.setattr(Path, "open", open_file)
    result = run("backup", tmp_path / "state.tar", made / "state")
    assert (result.exit_code, list(tmp_path.iterdir())) == (1, [])
    assert result.output == f"brokerctl: {unreadable} cannot be read: Permission denied\n"


def test_a_failed_backup_leaves_the_former_one(made: Path, tmp_path: Path) -> None:
    archive = tmp_path / "state.tar"
    archive.write_bytes(b"the former one")
    state = tmp_path / "state"
    state.mkdir()
    assert "has no database: --state names the state directory" in run("backup", archive, state).output
    (state / "elkobroker.sqlite3").write_bytes(b"no database" * 1_000)
    done = run("backup", archive, state)
    assert done.exit_code == 1
    assert "elkobroker.sqlite3 cannot be copied: file is not a database" in done.output
    assert "is no directory" in run("backup", archive, tmp_path / "none").output
    assert archive.read_bytes() == b"the former one"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["state", "state.tar"]
