"""The commands that change the users file."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from broker.access import users_document
from broker.access.users_document import parse
from broker.brokerctl.cli import cli
from tests.access.users import FILE, put
from tests.console_blocks import as_shown


@pytest.fixture
def path(tmp_path: Path) -> str:
    return put(tmp_path / "users.toml", FILE)


def run(*words: str, typed: str = "") -> Result:
    return CliRunner().invoke(cli, words, input=typed)


def test_the_first_password_makes_user_and_file(tmp_path: Path) -> None:
    path = str(tmp_path / "users.toml")
    said = run("passwd", "ann", "--file", path, "--add", typed="pencil\n")
    assert said.output == "ann is a user\n"
    assert parse(path, Path(path).read_text()).users["ann"].passwords[0].check("pencil")


def test_a_password_of_an_unknown_user_is_refused_without_a_prompt(path: str) -> None:
    result = run("passwd", "carl", "--file", path, typed="pencil\n")
    assert result.exit_code != 0
    assert Path(path).read_text() == FILE


def test_a_token_is_printed_once_listed_and_revoked(path: str) -> None:
    said = run("token", "add", "bob", "deploy", "--file", path, "--forever").output
    token = said.strip()
    assert parse(path, Path(path).read_text()).tokens[users_document.token_hash(token)].user == "bob"
    listed = run("token", "list", "--file", path).output
    assert "bob\tdeploy\tnever expires\n" in listed
    assert token not in listed
    assert run("token", "revoke", "bob", "deploy", "--file", path).exit_code == 0
    assert Path(path).read_text() == FILE


def test_a_file_without_tokens_says_so(tmp_path: Path) -> None:
    path = put(tmp_path / "other.toml", '[[users]]\nname = "ann"\n')
    listed = run("token", "list", "--file", path)
    assert (listed.stdout, listed.stderr) == ("", "no tokens\n")


def test_users_come_and_go_with_their_credentials(path: str) -> None:
    assert run("user", "add", "carl", "--certificate", "carl.example", "--file", path).output == "carl is a user\n"
    assert "carl\t1 certificates\n" in run("user", "list", "--file", path).output
    assert run("user", "remove", "carl", "--file", path).output == "carl is removed\n"
    assert "carl" not in run("user", "list", "--file", path).output


def test_an_import_writes_both_files_and_says_what_is_left(tmp_path: Path) -> None:
    old = put(tmp_path / "old.toml", '[[elko.listeners]]\nauth = "password"\ncode = "figleaf"\n')
    result = run("user", "import", old)
    assert (result.exit_code, result.stderr) == (0, "")
    users = tmp_path / "users.toml"
    names = ("users.toml", str(users)), ("elkobroker.toml.new", f"{old}.new")
    assert as_shown("docs/security.md", "brokerctl user import elkobroker.toml", result.output, *names)
    assert parse(str(users), users.read_text()).tokens[users_document.token_hash("figleaf")].user == "elko-main"
    assert "figleaf" not in (tmp_path / "old.toml.new").read_text()


def test_an_import_that_cannot_carry_a_rule_over_fails_with_the_file_written(tmp_path: Path) -> None:
    rules = '[[mtl.rules]]\nusers = ["a"]\n[[mtl.rules]]\nread = ["*"]\n[[mtl.rules]]\nread = ["test:x"]\n'
    old = put(tmp_path / "old.toml", f'[mtl]\nauth = "open"\n{rules}')
    result = run("user", "import", old, "--to", str(tmp_path / "other.toml"))
    assert result.exit_code == 1
    assert "not carried over: mtl.rules[1] may give more than mtl.rules[0]" in result.stderr
    assert "# mtl.rules[1]: not in force" in (tmp_path / "other.toml").read_text()
