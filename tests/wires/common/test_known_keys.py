"""Client keys that a ROUTER admits: those of users, and others while the anonymous user has a right."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

import pytest
from twisted.internet.defer import maybeDeferred
from twisted.internet.task import Clock

from broker.access.logins import Logins
from broker.access.rights import AnonymousAccess
from broker.access.users_access import UsersAccess
from broker.wires.common.router_listener import KnownKeys
from tests.access.users import KEY, OTHER_KEY, put, right, user

ANN, BOB, STRANGER = KEY, OTHER_KEY, "0" * 40


def users(**keys: str) -> str:
    return "nobody = true\n" * (not keys) + "".join(user(name, f'keys = ["{key}"]') for name, key in keys.items())


def anonymous(operation: str = "find", listener: str = "mc0") -> str:
    return right("anonymous", operation, listener)


class Rig:
    """Keys by a users file that changes."""

    def __init__(self, path: Path, text: str) -> None:
        self.path = path
        put(path, text)
        clock = Clock()
        logins = Logins.open(clock.seconds, maybeDeferred)
        self.access = UsersAccess(str(path), clock, maybeDeferred, logins, lambda family, reason: None)
        self.keys = KnownKeys(self.access, "mc0", "mc0 more")
        self.gone: list[Collection[str]] = []
        self.keys.changed.append(self.gone.append)

    def change(self, text: str) -> set[str]:
        """Change the file. Returns those of three keys that are gone."""
        self.gone.clear()
        put(self.path, text)
        self.access.refresh()
        return {key for key in (ANN, BOB, STRANGER) for gone in self.gone if key in gone}


@pytest.mark.parametrize(
    ("rights", "stranger"),
    [
        ("", None),
        (anonymous(), ""),
        (anonymous("login"), ""),
        (anonymous(listener="mc0?more"), ""),
        (anonymous(listener="mtl"), None),
    ],
)
def test_a_key_without_a_user_is_admitted_while_the_anonymous_user_has_a_right(
    tmp_path: Path, rights: str, stranger: str | None
) -> None:
    keys = Rig(tmp_path / "users.toml", users(ann=ANN) + rights).keys
    assert [keys.name_of(key) for key in (ANN, STRANGER)] == ["ann", stranger]


def test_without_a_users_file_every_key_is_that_of_the_anonymous_user() -> None:
    assert KnownKeys(AnonymousAccess(), "mc0").name_of(STRANGER) == ""


@pytest.mark.parametrize(
    ("before", "after", "gone"),
    [
        (users(ann=ANN, bob=BOB), users(ann=ANN), {BOB}),
        (users(ann=ANN), users(bob=ANN), {ANN}),
        (users(ann=ANN), users(ann=ANN, bob=BOB), set()),
        (users(ann=ANN) + anonymous(), users(ann=ANN), {BOB, STRANGER}),
        (users(ann=ANN) + anonymous(), users(ann=ANN, bob=BOB) + anonymous(), {BOB}),
        (users(ann=ANN), users(ann=ANN) + anonymous(), set()),
        (users(ann=ANN) + anonymous("find"), users(ann=ANN) + anonymous("login"), set()),
    ],
)
def test_keys_are_gone_that_are_no_longer_admitted_or_have_another_user(
    tmp_path: Path, before: str, after: str, gone: set[str]
) -> None:
    rig = Rig(tmp_path / "users.toml", before)
    assert rig.change(after) == gone
    assert all(set(each) <= gone for each in rig.gone)


def test_other_listeners_admit_other_keys(tmp_path: Path) -> None:
    rig = Rig(tmp_path / "users.toml", users(ann=ANN) + anonymous(listener="mc0?guests"))
    rig.keys.use("mc0", "mc0 guests")
    assert rig.keys.name_of(STRANGER) == ""
    rig.keys.use("mc0")
    assert rig.keys.name_of(STRANGER) is None
    assert [[key in gone for key in (ANN, STRANGER)] for gone in rig.gone] == [[False, False], [False, True]]
