"""The command that makes keys."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest
import zmq

from broker import brokerkeys
from broker.brokerkeys import Failed, main
from broker.config import files
from broker.curve_keys import MAX_NAME, public_key
from tests.patience import PATIENCE

ROOT = Path(__file__).parent.parent


def run(*arguments: str | Path, cwd: Path) -> subprocess.CompletedProcess[str]:
    """The finished command, as a process of its own."""
    return subprocess.run(
        [sys.executable, "-m", "broker.brokerkeys", *(str(argument) for argument in arguments)],
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def contents(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in directory.iterdir()}


# the whole way


def test_a_pair_is_made_and_fits_together(tmp_path: Path) -> None:
    made = run("new", "web1", cwd=tmp_path)
    assert (made.returncode, made.stderr) == (0, "")
    assert 'brokerctl user add web1 --key "$(cat web1.public)"' in made.stdout
    key = (tmp_path / "web1.public").read_text().removesuffix("\n")
    shown = run("public", "web1.private", cwd=tmp_path)
    assert (shown.returncode, shown.stdout, shown.stderr) == (0, f"{key}\n", "")


def test_an_error_is_a_sentence_and_an_exit_code(tmp_path: Path) -> None:
    failed = run("public", "none.private", cwd=tmp_path)
    assert (failed.returncode, failed.stdout) == (1, "")
    assert failed.stderr == "brokerkeys: none.private cannot be read: No such file or directory\n"


def test_output_that_nobody_reads_is_no_failure_with_a_traceback(tmp_path: Path) -> None:
    brokerkeys.new("web1", str(tmp_path), force=False)
    reader, writer = os.pipe()
    os.close(reader)
    process = subprocess.run(
        [sys.executable, "-m", "broker.brokerkeys", "public", str(tmp_path / "web1.private")],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=writer,
        stderr=subprocess.PIPE,
        timeout=PATIENCE,
        check=False,
    )
    os.close(writer)
    assert (process.returncode, process.stderr) == (1, b"")


@pytest.mark.parametrize(
    ("redirected", "code", "sentence"),
    [
        (">&-", 0, ""),
        (">/dev/full", 1, "brokerkeys: the output cannot be written: no space left on device\n"),
        (">/dev/full 2>/dev/full", 1, ""),
    ],
)
def test_output_that_cannot_be_written_is_a_sentence_and_the_keys_are_whole(
    tmp_path: Path, redirected: str, code: int, sentence: str
) -> None:
    process = subprocess.run(
        ["sh", "-c", f'exec "$@" {redirected}', "sh", sys.executable, "-m", "broker.brokerkeys", "new", "web1"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert (process.returncode, process.stderr) == (code, sentence)
    key = brokerkeys.public_of(str(tmp_path / "web1.private"))
    assert (tmp_path / "web1.public").read_text() == f"{key}\n"


@pytest.mark.parametrize("arguments", ["--help", "new --help"])
def test_a_help_text_that_cannot_be_written_is_a_sentence(arguments: str) -> None:
    process = subprocess.run(
        ["sh", "-c", f'exec "$@" {arguments} >/dev/full', "sh", sys.executable, "-m", "broker.brokerkeys"],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stderr=subprocess.PIPE,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert process.returncode == 1
    assert process.stderr.endswith(": the output cannot be written: no space left on device\n")


@pytest.mark.parametrize("arguments", [(), ("new",), ("public",), ("nothing",), ("new", "a", "b")])
def test_a_command_line_that_makes_no_sense_is_explained(arguments: tuple[str, ...]) -> None:
    with pytest.raises(SystemExit) as exit:
        main(arguments)
    assert exit.value.code == 2


# new


def test_the_files_are_what_peers_and_the_broker_expect(tmp_path: Path) -> None:
    private, public = brokerkeys.new("web1", str(tmp_path), force=False)
    assert sorted(contents(tmp_path)) == ["web1.private", "web1.public"]
    for path, wanted in ((private, 0o600), (public, 0o644)):
        assert mode(path) == wanted
        data = path.read_bytes()
        assert (len(data), data[40:]) == (41, b"\n")
    assert zmq.curve_public(files.curve_secret(private).encode()).decode() == public_key(public.read_text())


def test_the_modes_do_not_depend_on_the_umask(tmp_path: Path) -> None:
    before = os.umask(0o077)
    try:
        private, public = brokerkeys.new("web1", str(tmp_path), force=False)
    finally:
        os.umask(before)
    assert (mode(private), mode(public)) == (0o600, 0o644)


@pytest.mark.parametrize("there", ["web1.private", "web1.public"])
def test_a_key_that_is_there_is_not_replaced_unless_told_to(tmp_path: Path, there: str) -> None:
    (tmp_path / there).write_text("precious")
    (tmp_path / there).chmod(0o666)
    with pytest.raises(Failed, match=rf"{there} is there already; --force replaces it"):
        brokerkeys.new("web1", str(tmp_path), force=False)
    assert contents(tmp_path) == {there: b"precious"}
    private, public = brokerkeys.new("web1", str(tmp_path), force=True)
    assert (mode(private), mode(public)) == (0o600, 0o644)
    assert sorted(contents(tmp_path)) == ["web1.private", "web1.public"]
    assert b"precious" not in contents(tmp_path).values()


def test_a_link_that_leads_nowhere_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "web1.private").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(Failed, match="is there already"):
        brokerkeys.new("web1", str(tmp_path), force=False)
    brokerkeys.new("web1", str(tmp_path), force=True)
    assert not (tmp_path / "elsewhere").exists()


def test_of_two_who_write_a_key_at_once_one_fails(tmp_path: Path) -> None:
    path = tmp_path / "web1.private"
    brokerkeys.write(path, b"first", 0o600, force=False)
    with pytest.raises(Failed, match=r"web1.private is there already; --force replaces it"):
        brokerkeys.write(path, b"second", 0o600, force=False)
    assert contents(tmp_path) == {"web1.private": b"first\n"}


@pytest.mark.parametrize("name", ["", ".", "..", "../x", "a/b", "-x", "a b", "é", "x" * (MAX_NAME + 1)])
def test_a_name_that_is_no_safe_file_name_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(Failed, match="is no name for a key"):
        brokerkeys.new(name, str(tmp_path), force=False)
    assert contents(tmp_path) == {}


def test_the_longest_name_fits_a_file_name(tmp_path: Path) -> None:
    brokerkeys.new("x" * MAX_NAME, str(tmp_path), force=False)
    assert len(contents(tmp_path)) == 2


def test_the_directory_of_a_new_pair_is_made_for_its_owner_alone(tmp_path: Path) -> None:
    brokerkeys.new("web1", str(tmp_path / "keys"), force=False)
    assert sorted(os.listdir(tmp_path / "keys")) == ["web1.private", "web1.public"]
    assert stat.S_IMODE(os.stat(tmp_path / "keys").st_mode) == 0o700


def test_a_directory_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(Failed, match=r"file/keys cannot be made: Not a directory"):
        brokerkeys.new("web1", str(tmp_path / "file" / "keys"), force=False)
