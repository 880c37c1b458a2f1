"""Grants: which rights concern a user, and the names that they allow."""

from __future__ import annotations

import pytest

from broker.access.rights import EVERYTHING, KINDS, OTHER, Grants, Right, grants_of
from broker.access.users_document import parse
from tests.access.users import FILE

RIGHTS = parse("users.toml", FILE).rights


@pytest.mark.parametrize(
    ("user", "listener", "operation", "name", "granted"),
    [
        ("ann", "console", "admin.shutdown", "", True),
        ("bob", "elko listener 'main'", "offer", "bob-bank", True),
        ("bob", "elko listener 'main'", "offer", "shared", True),
        ("bob", "elko listener 'main'", "offer", "ann-bank", False),
        ("bob", "elko listener 'main'", "offer", "Shared", False),
        ("bob", "elko listener 'main'", "view", "", False),
        ("bob", "console", "find", "shared", False),
        # The operation on all names at once.
        ("bob", "http", "find", "", False),
        ("", "http", "find", "public-1", True),
        ("", "http", "find", "bob-bank", False),
        ("", "http", "offer", "public-1", False),
        ("carl", "http", "find", "public-1", False),
    ],
)
def test_a_right_is_of_users_listeners_operations_and_names(
    user: str, listener: str, operation: str, name: str, granted: bool
) -> None:
    assert grants_of(user, listener, RIGHTS).may(operation, name) is granted


@pytest.mark.parametrize("pattern", ["*", "anon*", "anonymou?", ""])
def test_the_anonymous_user_matches_its_name_and_no_pattern(pattern: str) -> None:
    rights = [Right((pattern,), ("find",))]
    assert not grants_of("", "http", rights).may_some("find")
    assert grants_of("", "http", [Right((pattern, "anonymous"), ("find",))]).may("find", "x")


def test_a_pattern_with_a_kind_is_for_names_of_that_kind() -> None:
    rights = [Right(("a",), ("publish", "find"), names=("queue:jobs *", "topic:{user} news", "service:x", "queues:*"))]
    grants = grants_of("a", "mtl", rights)
    allowed = {
        (operation, kind, name)
        for operation in ("publish", "find")
        for kind in (*KINDS, OTHER)
        for name in ("jobs 1", "a news", "x", "queues:1")
        if grants.may(operation, name, kind)
    }
    assert allowed == {
        (operation, kind, name)
        for operation in ("publish", "find")
        for kind, name in [
            ("queue", "jobs 1"),
            ("topic", "a news"),
            ("service", "x"),
            *((kind, "queues:1") for kind in (*KINDS, OTHER)),
        ]
    }
    assert grants.patterns("find") == ("queues:*", "x")


def test_login_alone_is_a_right_that_does_nothing() -> None:
    alone, more = (grants_of("a", "mtl", [Right(("a",), rights)]) for rights in (("login",), ("login", "find")))
    assert [(each.some, each.acts) for each in (Grants(), alone, more, EVERYTHING)] == [
        (False, False),
        (True, False),
        (True, True),
        (True, True),
    ]


def test_a_pattern_with_the_users_name_takes_its_special_characters_literally() -> None:
    rights = [Right(("*", "anonymous"), ("offer",), names=("{user}-*",))]
    assert grants_of("a.b", "http", rights).may("offer", "a.b-1")
    assert not grants_of("a.b", "http", rights).may("offer", "aXb-1")
    # Without a name, the pattern would allow everything.
    assert not grants_of("", "http", rights).may("offer", "-1")


def test_rights_add_up() -> None:
    rights = [Right(("a",), ("find",), names=("x",)), Right(("a",), ("find", "view"), names=("y",))]
    grants = grants_of("a", "http", rights)
    assert grants.may("find", "x")
    assert grants.may("find", "y")
    assert not grants.may("view", "x")
    assert grants.administers


def test_equal_rights_are_equal_grants() -> None:
    one = [Right(("a",), ("find",), names=("x", "y"))]
    other = [Right(("a",), ("find",), names=("y",)), Right(("*",), ("f*",), names=("x",))]
    assert grants_of("a", "http", one) == grants_of("a", "http", other) != Grants()


def test_without_a_users_file_everything_is_granted() -> None:
    assert EVERYTHING.may("admin.shutdown")
    assert EVERYTHING.may_some("offer")
    assert EVERYTHING.unlimited
