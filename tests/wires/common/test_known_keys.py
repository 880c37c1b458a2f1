"""Client keys of a directory and of the users file together."""

from __future__ import annotations

from twisted.internet.defer import Deferred, succeed

from broker.access.everyone import Everyone
from broker.wires.common.known_keys import Changed, KnownKeys


class Directory:
    """A key directory without files."""

    def __init__(self, **names: str) -> None:
        self.names = names
        self.changed: list[Changed] = []

    def name_of(self, key: str) -> str | None:
        return self.names.get(key)

    def refresh(self) -> Deferred[None]:
        return succeed(None)

    def stop(self) -> None:
        pass


def known(directory: Directory | None = None, **users: str) -> tuple[KnownKeys, Everyone, list[frozenset[str]]]:
    access = Everyone()
    access.keys = users
    keys = KnownKeys(directory, access)
    gone: list[frozenset[str]] = []
    keys.changed.append(gone.append)
    return keys, access, gone


def change(access: Everyone, **users: str) -> None:
    access.keys = users
    for call in access.changed:
        call()


def test_a_key_has_the_name_of_its_user_before_that_of_its_file() -> None:
    keys, _, _ = known(Directory(a="file-a", b="file-b"), b="bob")
    assert [keys.name_of(key) for key in "abc"] == ["file-a", "bob", None]


def test_a_key_that_is_removed_or_changes_its_user_is_gone() -> None:
    _, access, gone = known(None, a="ann", b="bob", c="carl")
    change(access, b="rob", c="carl", d="dora")
    assert gone == [frozenset("ab")]


def test_a_key_of_a_file_that_gets_another_name_by_a_user_is_gone() -> None:
    _, access, gone = known(Directory(a="file-a", b="bob"))
    change(access, a="ann", b="bob")
    assert gone == [frozenset("a")]


def test_a_key_that_leaves_the_directory_stays_with_its_user() -> None:
    directory = Directory(a="file-a", b="file-b")
    _, _, gone = known(directory, a="ann")
    directory.changed[0](frozenset("ab"))
    assert gone == [frozenset("b")]
