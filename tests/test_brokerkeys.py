"""The command that makes and allows keys."""

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
from broker.curve import MAX_NAME, public_key
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


def test_a_pair_is_made_allowed_listed_and_fits_together(tmp_path: Path) -> None:
    allowed = tmp_path / "allowed"
    allowed.mkdir()
    made = run("new", "web1", cwd=tmp_path)
    assert (made.returncode, made.stderr) == (0, "")
    assert "brokerkeys allow DIR web1.public" in made.stdout
    key = (tmp_path / "web1.public").read_text().removesuffix("\n")
    shown = run("public", "web1.private", cwd=tmp_path)
    assert (shown.returncode, shown.stdout, shown.stderr) == (0, f"{key}\n", "")
    done = run("allow", allowed, "web1.public", cwd=tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (0, "web1 is allowed\n", "")
    listed = run("list", allowed, cwd=tmp_path)
    assert (listed.returncode, listed.stdout, listed.stderr) == (0, f"web1  {key}\n", "")


def test_an_error_is_a_sentence_and_an_exit_code(tmp_path: Path) -> None:
    failed = run("public", "none.private", cwd=tmp_path)
    assert (failed.returncode, failed.stdout) == (1, "")
    assert failed.stderr == "brokerkeys: none.private cannot be read: No such file or directory\n"


def test_output_that_nobody_reads_is_no_failure_with_a_traceback(tmp_path: Path) -> None:
    brokerkeys.new("web1", str(tmp_path), force=False)
    reader, writer = os.pipe()
    os.close(reader)
    process = subprocess.run(
        [sys.executable, "-m", "broker.brokerkeys", "list", str(tmp_path)],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=writer,
        stderr=subprocess.PIPE,
        timeout=PATIENCE,
        check=False,
    )
    os.close(writer)
    assert (process.returncode, process.stderr) == (1, b"")


@pytest.mark.parametrize("arguments", [(), ("new",), ("allow", "."), ("list",), ("nothing",), ("new", "a", "b")])
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


# allow


@pytest.fixture
def allowed(tmp_path: Path) -> Path:
    directory = tmp_path / "allowed"
    directory.mkdir()
    return directory


def made(directory: Path, name: str) -> str:
    """A new pair's file of the public key."""
    directory.mkdir(exist_ok=True)
    return str(brokerkeys.new(name, str(directory), force=False)[1])


def test_a_key_file_of_another_form_is_allowed_as_one_line(tmp_path: Path, allowed: Path) -> None:
    key = Path(made(tmp_path, "web1")).read_bytes()
    other = tmp_path / "web2.public"
    other.write_bytes(b'# comment\nmetadata\ncurve\n    public-key = "' + key.strip() + b'"\n')
    assert brokerkeys.allow(str(allowed), [str(other)], force=False) == ["web2 is allowed"]
    assert contents(allowed) == {"web2.public": key}
    assert mode(allowed / "web2.public") == 0o644


def test_keys_are_allowed_all_or_none(tmp_path: Path, allowed: Path) -> None:
    good = made(tmp_path, "web1")
    bad = tmp_path / "web2.public"
    for content, why in ((b"", "web2.public has no public key"), (b" " * 5_000, "web2.public is larger than")):
        bad.write_bytes(content)
        with pytest.raises(Failed, match=why):
            brokerkeys.allow(str(allowed), [good, str(bad)], force=False)
    for path, why in (
        (str(tmp_path / "none.public"), "none.public cannot be read: No such file or directory"),
        (str(tmp_path / "web1.private"), r"web1.private is no file NAME.public"),
        (str(tmp_path / ".public"), "'' is no name for a key"),
        (str(tmp_path), r"is no file NAME.public"),
    ):
        with pytest.raises(Failed, match=why):
            brokerkeys.allow(str(allowed), [good, path], force=False)
    assert contents(allowed) == {}


def test_a_key_may_be_allowed_twice(tmp_path: Path, allowed: Path) -> None:
    path = made(tmp_path, "web1")
    brokerkeys.allow(str(allowed), [path], force=False)
    assert brokerkeys.allow(str(allowed), [path, path], force=False) == ["web1 was allowed already"]


def test_a_name_does_not_get_another_key_unless_told_so(tmp_path: Path, allowed: Path) -> None:
    old, new = made(tmp_path, "web1"), made(tmp_path / "other", "web1")
    brokerkeys.allow(str(allowed), [old], force=False)
    before = contents(allowed)
    with pytest.raises(Failed, match=r"web1.public is there with another key; --force replaces it"):
        brokerkeys.allow(str(allowed), [made(tmp_path, "web2"), new], force=False)
    assert contents(allowed) == before
    assert brokerkeys.allow(str(allowed), [new], force=True) == ["web1 is allowed, with another key than before"]
    assert contents(allowed) == {"web1.public": Path(new).read_bytes()}
    with pytest.raises(Failed, match=r"there are two files web1.public with different keys"):
        brokerkeys.allow(str(allowed), [old, new], force=True)


def test_the_directory_of_allowed_keys_is_made(tmp_path: Path) -> None:
    brokerkeys.allow(str(tmp_path / "clients"), [made(tmp_path, "web1")], force=False)
    assert os.listdir(tmp_path / "clients") == ["web1.public"]


# public and list


def test_the_public_key_of_a_secret_one(tmp_path: Path) -> None:
    public, secret = zmq.curve_keypair()
    (tmp_path / "web1.private").write_bytes(secret)
    assert brokerkeys.public_of(str(tmp_path / "web1.private")) == public.decode()


def test_a_file_without_a_secret_key_is_refused_without_being_shown(tmp_path: Path) -> None:
    file = tmp_path / "web1.private"
    file.write_text("hush")
    with pytest.raises(Failed) as failed:
        brokerkeys.public_of(str(file))
    assert str(failed.value) == f"{file} has no secret key: its first word must be 40 Z85 characters"


def test_the_list_has_all_keys_and_a_sentence_on_each_file_that_is_none(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made(tmp_path, "web10")
    made(tmp_path, "db1")
    (tmp_path / "bad.public").write_text("bad")
    (tmp_path / "two words.public").touch()
    (tmp_path / ".web1.public").touch()
    assert main(["list", str(tmp_path)]) == 1
    shown = capsys.readouterr()
    lines = [line.split(None, 1) for line in shown.out.splitlines()]
    assert [name for name, _ in lines] == ["db1", "web10"]
    assert [key for _, key in lines] == [(tmp_path / f"{name}.public").read_text().strip() for name in ("db1", "web10")]
    bad, words = shown.err.splitlines()
    assert bad == f"brokerkeys: {tmp_path}/bad.public has no public key: a word of 40 Z85 characters"
    assert words.startswith("brokerkeys: 'two words' is no name for a key")


def test_a_list_may_be_empty(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list", str(tmp_path)]) == 0
    assert capsys.readouterr().out == ""


def test_a_directory_that_cannot_be_listed_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list", str(tmp_path / "none")]) == 1
    assert capsys.readouterr().err == f"brokerkeys: {tmp_path}/none cannot be read: No such file or directory\n"
