"""Requests whose resources a profile has to prepare: order of replies, refusals, and sessions that end meanwhile."""

from __future__ import annotations

from broker.core.errors import Elsewhere, Reason, Refusal
from tests.wires.mtl.control_recording import ControlFarm, ControlPeer


def working() -> tuple[ControlFarm, ControlPeer]:
    farm = ControlFarm()
    return farm, farm.peer().opened().working("shelf")


def test_a_lease_is_issued_when_its_resource_is_ready_and_later_requests_wait() -> None:
    farm, peer = working()
    peer.say("Reader", {"resources": ["late one"]})
    peer.say("Profile", {"profile": "test"})
    peer.say("Reader", {"resources": ["resource"]})
    other = farm.peer().opened()
    assert peer.take() == []
    assert other.profile("test")[0] == 200
    farm.shelf.preparing[0].callback(None)
    assert [code for code, _ in peer.take()] == [202, 200, 202]


def test_a_request_behind_another_one_is_prepared_too() -> None:
    farm, peer = working()
    for name in ("late one", "late two"):
        peer.say("Writer", {"resources": [name]})
    assert len(farm.shelf.preparing) == 1
    farm.shelf.preparing[0].callback(None)
    assert [code for code, _ in peer.take()] == [202]
    farm.shelf.preparing[1].callback(None)
    assert [code for code, _ in peer.take()] == [202]


def test_a_resource_of_another_broker_is_refused_with_its_endpoint() -> None:
    farm, peer = working()
    peer.say("Reader", {"resources": ["late one"]})
    farm.shelf.preparing[0].errback(Elsewhere("it belongs to broker-b", "broker-b", "tcp://b:5975"))
    assert peer.take() == [
        (
            421,
            {
                "status": "Misdirected Request",
                "reason": "it belongs to broker-b",
                "owner": "broker-b",
                "endpoint": "tcp://b:5975",
            },
        )
    ]


def test_a_resource_that_cannot_be_prepared_now_is_refused_by_503() -> None:
    farm, peer = working()
    peer.say("Reader", {"resources": ["late one"]})
    farm.shelf.preparing[0].errback(Refusal(Reason.UNAVAILABLE, "etcd is away"))
    assert peer.take() == [(503, {"status": "Unavailable", "reason": "etcd is away"})]


def test_a_session_that_ends_meanwhile_gets_no_lease() -> None:
    farm, peer = working()
    peer.say("Reader", {"resources": ["late one"]})
    peer.close()
    farm.shelf.preparing[0].callback(None)
    assert farm.shelf.grants == []
    assert farm.data.counts().get("mtl_leases.issued", 0) == 0


def test_a_drain_answers_what_waits() -> None:
    farm, peer = working()
    peer.say("Reader", {"resources": ["late one"]})
    farm.control.drain()
    assert [code for code, _ in peer.take()] == [503]
    farm.shelf.preparing[0].callback(None)
    assert peer.take() == []
    assert farm.shelf.grants == []
