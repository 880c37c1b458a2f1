"""Instances of HTTP at two brokers of a cluster: a client that comes to the other one takes its instance along."""

from __future__ import annotations

import attrs
import pytest
from twisted.internet.task import Clock

from broker.access.principal import Principal
from broker.core.errors import Reason, Refusal
from broker.core.liveness import Leases
from broker.core.silent_peers import EndAtOnce
from broker.wires.http.http_settings import Http
from broker.wires.http.sessions.instances import Instances, Offer
from tests.wires.mirroring import Mirrors

HOME = "192.0.2.7"


class Pair:
    def __init__(self) -> None:
        self.clock = Clock()
        self.mirrors = Mirrors(self.clock)
        self.a, self.b = (self.instances(name) for name in ("a", "b"))

    def instances(self, name: str) -> Instances:
        made = Instances(self.mirrors.registries[name], Leases(self.clock), Http(), EndAtOnce())
        made.follow()
        return made

    def found(self) -> list[list[str]]:
        self.clock.pump([0.02] * 3)
        return [
            [each.hostport for each in registry.find("bank", "tcp")] for registry in self.mirrors.registries.values()
        ]


def put(
    instances: Instances, instance: str, hostport: str, address: str = HOME, owner: str = "", label: str = ""
) -> bool:
    _, new = instances.put(
        "bank",
        instance,
        Principal(owner, address=address),
        Offer(hostport, "tcp", {"label": label or None}, None, 30.0),
    )
    return new


@pytest.mark.parametrize(("hostport", "label"), [("h:1", ""), ("h:2", ""), ("h:1", "my bank")])
def test_an_instance_that_is_put_at_another_broker_moves_there(hostport: str, label: str) -> None:
    pair = Pair()
    put(pair.a, "one", "h:1", label=label)
    assert pair.found() == [["h:1"], ["h:1"]]
    assert put(pair.b, "one", hostport, label=label)
    assert pair.found() == [[hostport], [hostport]]
    assert len(pair.a) == 0
    assert pair.a.counts == {"registered": 1, "moved": 1}
    with pytest.raises(Refusal) as refused:
        pair.a.renew("bank", "one", Principal(address=HOME))
    assert refused.value.reason is Reason.NO_SUCH_SERVICE
    # And back.
    assert put(pair.a, "one", "h:1", label=label)
    assert pair.found() == [["h:1"], ["h:1"]]
    assert len(pair.b) == 0
    pair.clock.pump([0.2] * 200)
    assert pair.a.counts["expired"] == 1
    assert pair.b.counts["expired"] == 0
    assert pair.found() == [[], []]


def test_an_instance_that_has_just_moved_takes_another_endpoint() -> None:
    """The broker still has the registration of the former one, which is found as the endpoint changes."""
    pair = Pair()
    put(pair.a, "one", "h:1")
    pair.found()
    assert put(pair.b, "one", "h:2")
    assert not put(pair.b, "one", "h:3")
    assert pair.found() == [["h:3"], ["h:3"]]
    assert (len(pair.a), len(pair.b)) == (0, 1)


@pytest.mark.parametrize("label", ["", "my bank"])
def test_an_instance_that_moved_and_was_withdrawn_does_not_come_back(label: str) -> None:
    pair = Pair()
    put(pair.a, "one", "h:1", label=label)
    pair.found()
    put(pair.b, "one", "h:1", label=label)
    pair.found()
    pair.b.withdraw("bank", "one", Principal(address=HOME))
    assert pair.found() == [[], []]


def test_an_instance_is_withdrawn_where_it_is() -> None:
    pair = Pair()
    put(pair.a, "one", "h:1")
    assert pair.found() == [["h:1"], ["h:1"]]
    for address, reason, said in (
        (HOME, Reason.ELSEWHERE, "is at the broker 'a'"),
        ("192.0.2.99", Reason.NAME_TAKEN, ""),
    ):
        with pytest.raises(Refusal) as refused:
            pair.b.withdraw("bank", "one", Principal(address=address))
        assert refused.value.reason is reason
        assert said in refused.value.text
    assert pair.found() == [["h:1"], ["h:1"]]
    pair.a.withdraw("bank", "one", Principal(address=HOME))
    assert pair.found() == [[], []]
    with pytest.raises(Refusal) as refused:
        pair.b.withdraw("bank", "one", Principal(address=HOME))
    assert refused.value.reason is Reason.NO_SUCH_SERVICE


def test_an_instance_in_the_record_of_another_broker_is_withdrawn_there() -> None:
    pair = Pair()
    put(pair.a, "one", "h:1")
    there, here = pair.mirrors.registries["a"], pair.mirrors.registries["b"]
    pair.mirrors.mirroring = False
    known = there.own(("http", "bank", "", "bank/one"))
    assert known is not None
    here.serve_recorded([attrs.evolve(known, provider=attrs.evolve(known.provider, broker="a"))])
    for address, reason in ((HOME, Reason.ELSEWHERE), ("192.0.2.99", Reason.NAME_TAKEN)):
        with pytest.raises(Refusal) as refused:
            pair.b.withdraw("bank", "one", Principal(address=address))
        assert refused.value.reason is reason
    assert [each.restored for each in here.find("bank", "tcp", restored=True)] == [True]
    here.serve_read()
    with pytest.raises(Refusal) as refused:
        pair.b.withdraw("bank", "one", Principal(address=HOME))
    assert refused.value.reason is Reason.NO_SUCH_SERVICE


def test_other_instances_stay() -> None:
    pair = Pair()
    put(pair.a, "one", "h:1")
    put(pair.b, "two", "h:2")
    assert pair.found() == [["h:1", "h:2"], ["h:1", "h:2"]]
    assert (len(pair.a), len(pair.b)) == (1, 1)


@pytest.mark.parametrize(("owner", "other", "address"), [("", "", "192.0.2.8"), ("anna", "bob", HOME)])
def test_the_instance_of_another_owner_is_not_taken(owner: str, other: str, address: str) -> None:
    pair = Pair()
    put(pair.a, "one", "h:1", owner=owner)
    pair.found()
    with pytest.raises(Refusal) as refused:
        put(pair.b, "one", "h:1", address=address, owner=other)
    assert refused.value.reason is Reason.NAME_TAKEN
    assert len(pair.a) == 1


def test_a_user_may_come_from_another_address() -> None:
    pair = Pair()
    put(pair.a, "one", "h:1", owner="anna")
    pair.found()
    put(pair.b, "one", "h:1", address="192.0.2.8", owner="anna")
    assert pair.found() == [["h:1"], ["h:1"]]
    assert len(pair.a) == 0


def test_another_owner_at_the_same_endpoint_ends_no_instance() -> None:
    pair = Pair()
    put(pair.a, "one", "h:1", owner="anna")
    pair.found()
    put(pair.b, "two", "h:1", owner="bob")
    assert pair.found() == [["h:1", "h:1"]] * 2
    assert (len(pair.a), len(pair.b)) == (1, 1)
