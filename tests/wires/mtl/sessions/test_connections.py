"""The connections of MTL's data flows, by number: each flow ends with its own connection, and with no other."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from broker.wires.mtl.codec import data_messages as wire
from broker.wires.mtl.codec.data_messages import Pong, Response
from broker.wires.mtl.sessions.access_policy import ConfirmMode, Side
from tests.recording.logs import nothing_fails
from tests.wires.mtl.data_recording import MtlFarm, MtlPeer


@pytest.fixture
def farm() -> Iterator[MtlFarm]:
    with nothing_fails():
        yield MtlFarm()


def chosen(farm: MtlFarm, token: str | None = None) -> MtlPeer:
    """A reader that chose its identity."""
    peer = farm.peer(b"chosen")
    peer.lease(token or farm.lease(Side.READER, "a", profile=farm.keeping))
    return peer


def test_a_flow_ends_at_once_with_its_connection(farm: MtlFarm) -> None:
    peer = farm.reader("a", profile=farm.keeping)
    peer.lease(farm.lease(Side.WRITER, "a", profile=farm.keeping, confirm=ConfirmMode.FULL))
    peer.say(*wire.summon(2, "a"))
    peer.drop()
    assert len(farm.data) == 0
    assert farm.ends() == {"closed": 2}
    assert farm.keeping.calls[-2:] == [("left", "reader"), ("left", "writer")]
    assert len(farm.data_leases) == 0


def test_the_end_of_one_connection_is_not_that_of_the_next(farm: MtlFarm) -> None:
    first = farm.reader()
    first.drop()
    second = farm.reader()
    farm.data.closed(first.line.number)
    assert second.client is not None
    second.drop()
    assert len(farm.data) == 0


def test_connections_without_flows_end_too(farm: MtlFarm) -> None:
    peer = farm.peer()
    peer.say(*wire.PING)
    peer.drop()
    assert len(farm.data) == 0


def test_an_identity_that_comes_back_has_to_begin_again(farm: MtlFarm) -> None:
    """Messages on the way to it are lost, so that a reader would wait for them, and the broker for its answers."""
    token = farm.lease(Side.READER, "a", profile=farm.keeping)
    peer = chosen(farm, token)
    peer.drop()
    peer.connect()
    assert peer.ask(*wire.PING) == [Response(0, b"403")]
    assert peer.ask(*wire.lease(1, token)) == [Response(1, b"403")]
    assert len(farm.data_leases) == 0


def test_a_connection_that_takes_over_an_identity_has_none_of_the_flows_of_the_other(farm: MtlFarm) -> None:
    token = farm.lease(Side.READER, "a", profile=farm.keeping)
    former = chosen(farm, token)
    former.say(*wire.summon(2, "a"))
    latter = farm.peer(b"chosen")
    assert len(farm.data) == 0, "the former is over before the latter says anything"
    farm.keeping.give("a", b"for the former")
    assert latter.take() == []
    assert latter.ask(*wire.lease(1, token)) == [Response(1, b"403")]
    latter.lease(farm.lease(Side.READER, "a", profile=farm.keeping))
    farm.data.closed(former.line.number)
    assert latter.ask(*wire.PING) == [Pong()]


def test_room_is_that_of_the_flow_that_had_none(farm: MtlFarm) -> None:
    farm.keeping.one_by_one = True
    former = chosen(farm)
    former.say(*wire.summon(2, "a"))
    former.stop_reading()
    farm.keeping.give("a", b"x")
    latter = chosen(farm)
    farm.data.room(b"chosen")
    assert ("room",) not in farm.keeping.calls
    latter.say(*wire.summon(2, "a"))
    latter.stop_reading()
    farm.keeping.give("a", b"x")
    latter.read_on()
    assert farm.keeping.calls.count(("room",)) == 1
