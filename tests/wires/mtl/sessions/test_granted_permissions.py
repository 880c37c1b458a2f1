"""Permissions of MTL that both the access rules and the grants of the users file give."""

from __future__ import annotations

import pytest

from broker.access.grants import Grants, Right, grants_of
from broker.wires.mtl.sessions.access_rules import AccessPolicy, AccessRule
from broker.wires.mtl.sessions.principals import Side

RIGHTS = [
    Right(("ann",), ("publish",), names=("news.*",)),
    Right(("ann",), ("subscribe",), names=("*",)),
    Right(("ann",), ("offer",), names=("ann-*",)),
    Right(("ann",), ("find",), names=("bank",)),
]

R, W = Side.READER, Side.WRITER


def grants(user: str) -> Grants:
    return grants_of(user, "mtl", RIGHTS)


@pytest.mark.parametrize(
    ("side", "profile", "resource", "permitted"),
    [
        (W, "topic", "news.sport", True),
        (W, "topic", "weather", False),
        (R, "queue", "weather", True),
        (W, "registry", "service/ann-shop", True),
        (W, "registry", "service/bank", False),
        (R, "registry", "service/bank", True),
        (R, "registry", "services", True),
        (R, "registry", "load", True),
        (W, "registry", "load", True),
        (R, "service", "service/ann-shop", True),
        (R, "service", "service/bank", False),
        (W, "service", "service/bank", True),
        (R, "service", "reply", True),
    ],
)
def test_a_side_of_a_profile_is_an_operation_on_a_name(
    side: Side, profile: str, resource: str, permitted: bool
) -> None:
    policy = AccessPolicy(["/"], grants=grants)
    assert policy.allowed("ann", "/").may(side, profile, resource) is permitted
    assert not policy.allowed("bob", "/").may(side, profile, resource)


def test_rules_and_grants_must_both_permit() -> None:
    rule = AccessRule(("*",), ("*",), read=(), write=("topic:news.world",), offer=("*-shop",))
    allowed = AccessPolicy(["/"], [rule], grants).allowed("ann", "/")
    assert allowed.may(W, "topic", "news.world")
    assert not allowed.may(W, "topic", "news.sport")
    assert [allowed.offers.permits(name) for name in ("ann-shop", "ann-bank", "bob-shop")] == [True, False, False]


def test_equal_rules_and_grants_are_equal_permissions() -> None:
    assert AccessPolicy(["/"], grants=grants).allowed("ann", "/") == AccessPolicy(["/"], grants=grants).allowed(
        "ann", "/"
    )
    assert AccessPolicy(["/"], grants=grants).allowed("ann", "/") != AccessPolicy(["/"]).allowed("ann", "/")
