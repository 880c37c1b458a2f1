"""The policy of MTL: the virtual hosts of a user, and their resources as operations on names."""

from __future__ import annotations

from itertools import product

import pytest

from broker.access.passwords import MIN_ITERATIONS, of
from broker.access.rights import AnonymousAccess, Right
from broker.core.errors import Reason, Refusal
from broker.wires.mtl.sessions.access_policy import AccessPolicy, Side
from tests.access.memory import MemoryAccess

RIGHTS = [
    Right(("ann",), ("publish",), names=("topic:news.*", "queue:{user}")),
    Right(("ann",), ("subscribe",), names=("*",)),
    Right(("ann",), ("offer",), names=("ann-*",)),
    Right(("ann",), ("find",), names=("bank",)),
    Right(("host",), ("find",), listeners=("mtl jobs",)),
    Right(("reader",), ("subscribe",), listeners=("mtl",)),
    Right(("guest",), ("login",)),
]

R, W = Side.READER, Side.WRITER


def policy(*rights: Right, hosts: tuple[str, ...] = ("/", "jobs")) -> AccessPolicy:
    return AccessPolicy(hosts, hosts[0], MemoryAccess(rights=rights or RIGHTS))


@pytest.mark.parametrize(
    ("side", "profile", "resource", "permitted"),
    [
        (W, "topic", "news.sport", True),
        (W, "topic", "weather", False),
        (W, "queue", "news.sport", False),
        (W, "queue", "ann", True),
        (W, "topic", "ann", False),
        (W, "test", "ann", False),
        (R, "test", "ann", True),
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
    assert policy().allowed("ann", "/").may(side, profile, resource) is permitted


def test_services_are_offered_by_name() -> None:
    offers = policy().allowed("ann", "/").offers
    assert [offers.permits(name) for name in ("ann-shop", "bank", "elkobroker.x")] == [True, False, False]


@pytest.mark.parametrize(
    ("user", "host"),
    [("ann", "none"), ("host", "/"), ("reader", "jobs"), ("stranger", "/"), ("guest", "/"), ("", "/"), ("", "none")],
)
def test_a_host_that_is_not_there_is_refused_as_one_where_the_user_may_do_nothing(user: str, host: str) -> None:
    with pytest.raises(Refusal, match="there is no such virtual host for this user") as refused:
        policy().allowed(user, host)
    assert refused.value.reason is Reason.FORBIDDEN


def test_each_further_host_is_a_listener_of_its_own() -> None:
    assert policy().allowed("host", "jobs").may(R, "registry", "services")
    assert policy().allowed("reader", "/").may(R, "topic", "x")


@pytest.mark.parametrize("name", ["elkobroker.services", "elkobroker.load"])
def test_own_topics_are_read_by_those_who_may_find_and_written_by_nobody(name: str) -> None:
    for rights, reads in (([], True), ([Right(("ann",), ("*",))], True), (RIGHTS, True)):
        found = (
            policy(*rights).allowed("ann", "/")
            if rights
            else AccessPolicy(("/",), "/", AnonymousAccess()).allowed("", "/")
        )
        assert found.may(R, "topic", name) is reads
        assert not found.may(W, "topic", name)
    assert not policy().allowed("reader", "/").may(R, "topic", name)


def test_nobody_works_for_the_brokers_own_services_or_offers_them() -> None:
    for found in (
        policy(Right(("ann",), ("*",))).allowed("ann", "/"),
        AccessPolicy("/", "/", AnonymousAccess()).allowed("", "/"),
    ):
        for profile, resource in product(("registry", "service"), ("service/elkobroker.x", "load/elkobroker.x")):
            assert not found.may(W, profile, resource)
            assert found.may(R, profile, resource) is (profile == "registry")
            assert found.may(W, profile, resource.replace("elkobroker", "x"))
        assert not found.may(W, "queue", "elkobroker.x")
        assert not found.offers.permits("elkobroker.x")


def test_clients_are_anonymous_at_once_where_no_user_has_a_password() -> None:
    anybody = Right(("anonymous",), ("find",), ("mtl",))
    kept = {"ann": of("pencil", MIN_ITERATIONS)}
    for access, opens in (
        (AnonymousAccess(), True),
        (MemoryAccess(kept), False),
        (MemoryAccess(kept, [anybody]), True),
        (MemoryAccess(kept, [anybody, Right(("a*",), ("find",), ("mtl",))]), False),
        (MemoryAccess(kept, [anybody, Right(("b*",), ("find",))]), True),
        (MemoryAccess(kept, [Right(("anonymous",), ("login",))]), False),
    ):
        found = AccessPolicy(("/", "jobs"), "/", access)
        assert found.is_open("/") is opens
        assert not found.is_open("none")
        assert found.is_open("jobs") is (opens and not access.users)


def test_hosts_may_be_replaced_and_equal_rights_are_equal_permissions() -> None:
    found = policy(Right(("ann", "bob"), ("find",), ("mtl*",)))
    before = found.allowed("ann", "/")
    found.use(("work",))
    assert found.allowed("ann", "work") == found.allowed("bob", "work") == before
    with pytest.raises(Refusal):
        found.allowed("ann", "jobs")
    # the one that is shared with the other wires stays
    assert found.allowed("ann", "/") == before
