"""Changes of the users file by commands: what changes, and what stays."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from broker.access import editing, users_document
from broker.access.users_file import BadUsers, EditFailed
from tests.access.users import BOB, FILE, KEY, OTHER_KEY, put


@pytest.fixture
def path(tmp_path: Path) -> str:
    return put(tmp_path / "users.toml", FILE)


def directory(path: str) -> users_document.UserDirectory:
    return users_document.parse(path, Path(path).read_text())


def kept(path: str) -> list[str]:
    """The lines of the file before that are still there."""
    now = Path(path).read_text().split("\n")
    return [line for line in FILE.split("\n") if line in now]


def test_the_first_user_makes_the_file(tmp_path: Path) -> None:
    path = str(tmp_path / "new.toml")
    editing.add_user(path, "ann")
    assert Path(path).stat().st_mode & 0o777 == 0o600
    editing.set_password(path, "ann", "pencil")
    assert directory(path).users["ann"].passwords[0].check("pencil")


def test_a_password_is_replaced_or_joined_and_all_other_lines_stay(path: str) -> None:
    editing.set_password(path, "bob", "eraser", keep=True)
    passwords = directory(path).users["bob"].passwords
    assert passwords[0].check("eraser")
    assert passwords[1] == BOB
    editing.set_password(path, "bob", "ruler")
    (only,) = directory(path).users["bob"].passwords
    assert only.check("ruler")
    changed = [line for line in FILE.split("\n") if BOB.text() in line]
    assert [line for line in FILE.split("\n") if line not in kept(path)] == changed


def test_a_token_is_returned_once_and_its_hash_is_stored(path: str) -> None:
    token = editing.add_token(path, "bob", "deploy", days=2, now=1000)
    assert token not in Path(path).read_text()
    found = directory(path).tokens[users_document.token_hash(token)]
    assert (found.user, found.label, found.expires) == ("bob", "deploy", 1000 + 2 * 86_400)
    editing.revoke_token(path, "bob", "deploy")
    assert Path(path).read_text() == FILE


def test_a_token_of_an_earlier_user_is_put_into_that_users_table(path: str) -> None:
    token = editing.add_token(path, "ann", "second", days=None)
    assert directory(path).tokens[users_document.token_hash(token)].user == "ann"
    editing.revoke_token(path, "ann", "ci")
    assert [(user, each.label) for user, each in editing.token_list(path)] == [("ann", "second")]


def test_keys_and_certificates_come_and_go(path: str) -> None:
    editing.add_key(path, "bob", OTHER_KEY)
    editing.add_certificate(path, "ann", "second.example")
    found = directory(path)
    assert found.keys == {KEY: "ann", OTHER_KEY: "bob"}
    assert set(found.certificates) == {"ann.example", "second.example"}
    editing.remove_key(path, "bob", OTHER_KEY)
    editing.remove_certificate(path, "ann", "Ann.example")
    assert set(directory(path).certificates) == {"second.example"}
    editing.remove_certificate(path, "ann", "second.example")
    assert "certificates" not in Path(path).read_text()


def test_a_user_goes_with_all_credentials_and_the_next_one_stays(path: str) -> None:
    editing.remove_user(path, "ann")
    found = directory(path)
    assert set(found.users) == {"bob"}
    assert not found.tokens
    assert len(found.rights) == 3


def test_the_file_says_that_there_is_nobody_while_it_is_so(path: str) -> None:
    for name in ("ann", "bob"):
        assert not directory(path).nobody
        editing.remove_user(path, name)
    assert directory(path).nobody
    assert not directory(path).users
    editing.add_user(path, "carl")
    assert not directory(path).nobody
    assert set(directory(path).users) == {"carl"}
    put(Path(path), "nobody = false\n" + Path(path).read_text())
    editing.remove_user(path, "carl")
    assert directory(path).nobody
    put(Path(path), "nobody = true\n" + FILE)
    with pytest.raises(BadUsers, match="line 1: nobody is true, and there are users"):
        directory(path)


def test_an_array_over_several_lines_is_replaced_as_a_whole(path: str) -> None:
    put(Path(path), FILE.replace(f'keys = ["{KEY}"]', f'keys = [\n  # the laptop\n  "{KEY}",\n]'))
    editing.add_key(path, "ann", OTHER_KEY)
    assert directory(path).keys == {KEY: "ann", OTHER_KEY: "ann"}


def test_the_comment_above_the_next_user_stays_there(path: str) -> None:
    commented = FILE.replace('[[users]]\nname = "bob"', '# the night shift\n[[users]]\nname = "bob"')
    put(Path(path), commented)
    editing.add_token(path, "ann", "second")
    assert '\n# the night shift\n[[users]]\nname = "bob"' in Path(path).read_text()
    editing.revoke_token(path, "ann", "second")
    assert Path(path).read_text() == commented


def test_a_file_whose_lines_end_with_carriage_returns_is_changed(path: str) -> None:
    put(Path(path), FILE.replace("\n", "\r\n"))
    editing.add_key(path, "ann", OTHER_KEY)
    assert directory(path).keys == {KEY: "ann", OTHER_KEY: "ann"}


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda path: editing.add_user(path, "ann"), "is a user already"),
        (lambda path: editing.add_user(path, "a b"), "is no name for a user"),
        (lambda path: editing.remove_user(path, "carl"), "there is no user 'carl'"),
        (lambda path: editing.set_password(path, "bob", ""), "the password is empty"),
        (lambda path: editing.add_token(path, "ann", "ci"), "has a token 'ci' already"),
        (lambda path: editing.add_token(path, "bob", "long", days=1e9), r"cannot have a life of 1e\+09 days"),
        (lambda path: editing.add_token(path, "bob", "long", days=float("nan")), "cannot have a life of nan days"),
        (lambda path: editing.add_token(path, "bob", "long", days=float("inf")), "cannot have a life of inf days"),
        (lambda path: editing.revoke_token(path, "bob", "ci"), "has no token 'ci'"),
        (lambda path: editing.add_key(path, "bob", KEY), "is the same as"),
        (lambda path: editing.add_key(path, "bob", "short"), "is no CURVE public key"),
    ],
)
def test_a_wrong_change_leaves_the_file_as_it_is(path: str, change: Callable[[str], Any], why: str) -> None:
    with pytest.raises((EditFailed, BadUsers), match=why):
        change(path)
    assert Path(path).read_text() == FILE


def test_a_file_in_another_form_is_left_to_an_editor(tmp_path: Path) -> None:
    text = 'users = [{name = "ann"}, {name = "bob"}]\n'
    path = put(tmp_path / "users.toml", text)
    for change in (lambda: editing.remove_user(path, "ann"), lambda: editing.add_token(path, "ann", "x")):
        with pytest.raises((EditFailed, BadUsers)):
            change()
    assert Path(path).read_text() == text


def test_the_mode_of_the_file_stays_and_no_temporary_file_is_left(path: str) -> None:
    Path(path).chmod(0o640)
    editing.add_user(path, "carl")
    assert Path(path).stat().st_mode & 0o777 == 0o640
    assert [each.name for each in Path(path).parent.iterdir()] == ["users.toml"]
