"""The users file: its users, credentials and rights, and the report of its mistakes."""

from __future__ import annotations

import math
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.access import users_document
from broker.access.rights import Right
from broker.access.users_document import MAX_PROBLEMS, UserDirectory, parse
from broker.access.users_file import BadUsers
from tests.access.users import ANN, FILE, KEY, TOKEN


def problems(text: str) -> list[str]:
    with pytest.raises(BadUsers) as bad:
        parse("users.toml", text)
    return [str(sentence) for sentence in bad.value.args]


def test_a_file_has_users_by_each_credential_and_rights() -> None:
    found = parse("users.toml", FILE)
    assert set(found.users) == {"ann", "bob"}
    assert found.users["ann"].passwords == (ANN,)
    assert found.certificates == {"ann.example": "ann"}
    assert found.keys == {KEY: "ann"}
    token = found.tokens[users_document.token_hash(TOKEN)]
    assert (token.user, token.label, token.expires) == ("ann", "ci", 1000.0)
    assert found.rights[0] == Right(("ann",), ("*",))


def test_an_empty_file_has_no_users_and_no_rights() -> None:
    assert parse("users.toml", "") == UserDirectory()


def test_a_token_without_expiry_stays_valid() -> None:
    text = FILE.replace('expires = "1970-01-01T00:16:40Z"\n', "")
    assert parse("x", text).tokens[users_document.token_hash(TOKEN)].expires == math.inf


@pytest.mark.parametrize(
    ("old", "new", "line", "why"),
    [
        ('name = "ann"', 'name = "a*n"', 3, "is no name for a user"),
        ('name = "bob"', 'name = "ann"', 13, "is the same as users\\[0\\].name"),
        (ANN.text(), "pencil", 4, "is not of the form SCRAM-SHA-256"),
        (KEY, "short", 6, "is no CURVE public key"),
        (users_document.token_hash(TOKEN), TOKEN, 9, "is not of the form sha256:"),
        ("1970-01-01T00:16:40Z", "1970-01-01", 10, "has no time zone"),
        ("1970-01-01T00:16:40Z", "soon", 10, "is no time of RFC 3339"),
        ('operations = ["*"]', 'operations = ["veiw"]', 18, "matches no operation; there are login, find, offer"),
        ('operations = ["*"]', "operations = []", 18, "is empty"),
        ('listeners = ["elko*"', 'listener = ["elko*"', 23, "unknown key; did you mean"),
        ('certificates = ["Ann.example"]', 'certificates = ["Ann.example", "ann.EXAMPLE"]', 5, "is the same as"),
        ('name = "ann"', 'name = "anonymous"', 3, "stands for peers without a credential"),
        ('users = ["anonymous"]', 'users = [""]', 27, 'peers without a credential are "anonymous"'),
        ('names = ["public-*"]', 'names = ["queue:"]', 29, 'has no name after the colon; "queue:\\*" matches all'),
    ],
)
def test_a_mistake_is_reported_with_its_line_and_without_secrets(old: str, new: str, line: int, why: str) -> None:
    assert old in FILE
    [first, *_] = problems(FILE.replace(old, new, 1))
    assert re.match(rf"users.toml, line {line}: .*{why}", first), first
    assert TOKEN not in first
    assert ANN.text()[30:] not in first


def test_the_number_of_reported_mistakes_is_bounded() -> None:
    found = problems('[[rights]]\nusers = []\noperations = ["x"]\n' * MAX_PROBLEMS)
    assert len(found) == MAX_PROBLEMS + 1
    assert found[-1] == f"users.toml has {MAX_PROBLEMS} more mistakes"


@given(st.text())
def test_any_text_is_users_or_a_problem(text: str) -> None:
    try:
        parse("users.toml", text)
    except BadUsers as bad:
        assert bad.args


@given(st.integers(0, len(FILE) - 1), st.text(max_size=3))
def test_any_change_of_a_file_is_users_or_a_problem(at: int, text: str) -> None:
    try:
        parse("users.toml", FILE[:at] + text + FILE[at + 1 :])
    except BadUsers as bad:
        assert bad.args


@given(st.floats(0, 4e9))
def test_an_expiry_is_read_as_it_is_written(seconds: float) -> None:
    assert users_document.expiry(users_document.expiry_text(seconds)) == int(seconds)
