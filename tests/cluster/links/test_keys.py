"""Keys of links: the file with the key of this broker, and the allowed keys of members."""

from __future__ import annotations

import stat
from collections.abc import Collection
from pathlib import Path

import pytest

from broker.cluster.links.link_wire import KEY_FILE, LinkKey, MemberKeys, kept_key
from broker.config.files import is_curve_key
from broker.core.cluster.cluster_interfaces import Member


def test_a_key_is_created_once_and_readable_by_its_owner_only(tmp_path: Path) -> None:
    path = tmp_path / KEY_FILE
    key = kept_key(str(path))
    assert is_curve_key(key.public)
    assert is_curve_key(key.secret)
    assert key.secret not in repr(key)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert kept_key(str(path)) == key == LinkKey.of(path.read_text().strip())
    assert [each.name for each in tmp_path.iterdir()] == [KEY_FILE]


@pytest.mark.parametrize("text", ["", "no key", "x" * 41])
def test_a_file_without_a_key_is_an_error_and_stays(tmp_path: Path, text: str) -> None:
    path = tmp_path / KEY_FILE
    path.write_text(text)
    with pytest.raises(OSError, match="has no secret key"):
        kept_key(str(path))
    assert path.read_text() == text


def test_a_directory_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="cannot be created: No such file"):
        kept_key(str(tmp_path / "missing" / KEY_FILE))


class TestMemberKeys:
    def test_the_keys_of_present_members_are_allowed(self) -> None:
        keys = MemberKeys()
        gone: list[Collection[str]] = []
        keys.changed.append(gone.append)
        keys.set("a", Member("a", "1", key="K1"))
        assert (keys.name_of("K1"), keys.name_of("K2"), keys.name_of("")) == ("a", None, None)
        keys.set("a", Member("a", "2", key="K1"))
        assert gone == []
        keys.set("a", Member("a", "3", key="K2"))
        assert (keys.name_of("K1"), keys.name_of("K2")) == (None, "a")
        keys.set("a", None)
        assert keys.name_of("K2") is None
        assert gone == [frozenset(["K1"]), frozenset(["K2"])]

    def test_a_key_of_two_members_is_allowed_until_both_are_gone(self) -> None:
        keys = MemberKeys()
        gone: list[Collection[str]] = []
        keys.changed.append(gone.append)
        for name in "ab":
            keys.set(name, Member(name, "1", key="K"))
        keys.set("a", None)
        assert (keys.name_of("K"), gone) == ("b", [])
        keys.set("b", None)
        assert (keys.name_of("K"), gone) == (None, [frozenset(["K"])])

    def test_a_member_without_a_key_allows_none(self) -> None:
        keys = MemberKeys()
        keys.set("a", Member("a", "1"))
        keys.set("a", None)
        assert keys.name_of("") is None
