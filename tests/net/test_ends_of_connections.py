"""Many connections that end at once: each turn handles some of the ends, and other connections are served meanwhile."""

from __future__ import annotations

import select
import socket
from collections.abc import Iterator
from typing import Any

import pytest
from twisted.internet.error import ConnectionDone
from twisted.internet.main import CONNECTION_DONE
from twisted.internet.task import Clock
from twisted.python.failure import Failure

from broker.net.epoll_streams import END_SECONDS, Streams
from broker.net.reactor import EVENTS

AN_END = 0.6 * END_SECONDS
"""CPU time that one end takes here: a turn handles two of them."""


class Member:
    """One end of a pair of sockets, which keeps what it read."""

    def __init__(self, farm: Farm) -> None:
        self.farm = farm
        self.peer, self.socket = socket.socketpair()
        self.read: list[bytes] = []
        self.connected = True
        self.reason: Any = None
        self.fileno = self.socket.fileno

    def doRead(self) -> Any:
        data = self.socket.recv(100)
        if not data:
            return CONNECTION_DONE
        self.read.append(data)
        return None

    def readConnectionLost(self, reason: Any) -> None:
        self.connectionLost(reason)

    def connectionLost(self, reason: Any) -> None:
        self.farm.clock.advance(AN_END)
        self.farm.streams.forget(self)
        self.connected = False
        self.reason = type(reason.value).__name__
        self.socket.close()
        self.farm.ended.append(self)


class Farm:
    """Streams over a real epoll set, whose CPU time is a clock."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.epoll = select.epoll()
        self.streams = Streams(self.epoll, self.clock.callLater, self.clock.seconds)
        self.ended: list[Member] = []
        self.members: list[Member] = []

    def join(self) -> Member:
        member = Member(self)
        self.members.append(member)
        self.streams.addReader(member)
        return member

    def turn(self) -> None:
        self.streams.dispatch(self.epoll.poll(0, EVENTS), lambda fd, event: False)

    def close(self) -> None:
        for member in self.members:
            member.peer.close()
            member.socket.close()
        self.epoll.close()


@pytest.fixture
def farm() -> Iterator[Farm]:
    farm = Farm()
    yield farm
    farm.close()


def test_a_turn_handles_as_many_ends_as_its_time_permits(farm: Farm) -> None:
    going, staying = [farm.join() for _ in range(5)], farm.join()
    for member in going:
        member.peer.close()
    ended = []
    for number in range(3):
        staying.peer.send(b"%d" % number)
        farm.turn()
        ended.append(len(farm.ended))
    assert ended == [2, 4, 5]
    assert staying.read == [b"0", b"1", b"2"]
    assert {member.reason for member in going} == {"ConnectionDone"}


def test_input_before_an_end_that_waits_is_read_and_not_reset(farm: Farm) -> None:
    first = [farm.join() for _ in range(2)]
    last = farm.join()
    for member in first:
        member.peer.close()
    last.peer.send(b"last words")
    last.peer.close()
    for _ in range(4):
        farm.turn()
    assert last.read == [b"last words"]
    assert (last.reason, len(farm.ended)) == ("ConnectionDone", 3)


def test_peers_among_more_ends_than_the_poll_returns_are_served_in_the_next_turns(farm: Farm) -> None:
    going = [farm.join() for _ in range(2 * EVENTS)]
    for member in going:
        member.peer.close()
    staying = farm.join()
    staying.peer.send(b"here")
    for _ in range(3):
        farm.turn()
    assert staying.read == [b"here"]
    assert 0 < len(farm.ended) <= 6
    while len(farm.ended) < len(going):
        assert farm.streams.ends_wait, "the reactor does not wait while ends do"
        farm.turn()
    assert farm.ended == going, "in their order"


def test_a_connection_whose_end_waits_may_change_its_events_and_leave(farm: Farm) -> None:
    going = [farm.join() for _ in range(5)]
    for member in going:
        member.peer.close()
    farm.turn()
    first, second, third = (member for member in going if member not in farm.ended)
    farm.streams.removeReader(first)
    farm.streams.removeReader(second)
    farm.streams.addReader(second)
    farm.streams.addWriter(third)
    farm.streams.removeWriter(third)
    for _ in range(3):
        farm.turn()
    assert first.reason is None
    assert first not in farm.streams.getReaders()
    assert {second.reason, third.reason} == {"ConnectionDone"}


def test_aborts_and_other_ends_share_the_time_of_a_turn_in_their_order(farm: Farm) -> None:
    aborted, closed, staying = [farm.join() for _ in range(4)], farm.join(), farm.join()
    for member in aborted:
        member.peer.send(b"never read")
        farm.streams.abort(member)
    closed.peer.close()
    assert not farm.ended, "the caller may still use it"
    ended = []
    for number in range(3):
        staying.peer.send(b"%d" % number)
        farm.turn()
        ended.append(len(farm.ended))
    assert ended == [2, 4, 5]
    assert farm.ended == [*aborted, closed]
    assert not farm.streams.ends_wait
    assert staying.read == [b"0", b"1", b"2"]
    assert [member.reason for member in farm.ended] == 4 * ["ConnectionAborted"] + ["ConnectionDone"]
    assert not any(member.read for member in aborted)


def test_an_aborted_connection_that_is_closed_meanwhile_ends_once(farm: Farm) -> None:
    aborted = [farm.join() for _ in range(3)]
    for member in aborted:
        farm.streams.abort(member)
    aborted[1].connectionLost(Failure(ConnectionDone()))
    for _ in range(2):
        farm.turn()
    assert sorted(map(id, farm.ended)) == sorted(map(id, aborted))


def test_an_end_that_waits_is_aborted_once(farm: Farm) -> None:
    going = [farm.join() for _ in range(4)]
    for member in going:
        member.peer.close()
    farm.turn()
    waiting = [member for member in going if member not in farm.ended]
    for member in waiting:
        farm.streams.abort(member)
    farm.turn()
    assert {member.reason for member in waiting} == {"ConnectionAborted"}
    assert len(farm.ended) == 4
