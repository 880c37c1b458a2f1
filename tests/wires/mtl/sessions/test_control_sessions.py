"""Sessions of the control flow: their peers, number, waiting requests, and what is left of those that are over.

Each test is named after the row of the conformance list that it is for, if there is one.

The file is longer than others: it has all tests of `broker.wires.mtl.sessions.control_sessions`.
"""

from __future__ import annotations

import gc
import json
import tracemalloc
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from broker.net.peer_interfaces import MAX_ENVELOPE, MAX_HOPS, Sender
from broker.wires.mtl.mtl_settings import Mtl
from broker.wires.mtl.sessions import control_flow
from broker.wires.mtl.sessions.control_flow import MAX_BEHIND
from broker.wires.mtl.sessions.control_sessions import SHARE, key_of
from broker.wires.mtl.sessions.sasl import SCRAM
from tests.examples import examples
from tests.garbage import set_aside
from tests.recording.logs import nothing_fails
from tests.wires.mtl.control_recording import (
    HERE,
    KEY,
    PROTOCOL,
    THERE,
    ControlFarm,
    ControlPeer,
    Users,
    authorize,
    plain,
)
from tests.wires.mtl.data_recording import REPLIES

OPEN = (400, {"status": "Bad Request", "reason": "open"})
OPENING = [b"", b"Connection.Open", json.dumps({"protocol": PROTOCOL}).encode()]


@pytest.fixture(autouse=True)
def _no_failures() -> Iterator[None]:
    with nothing_fails(collect=True):
        yield


def closed_farm(sessions: int = 100, **settings: Any) -> ControlFarm:
    """A farm whose users must log in."""
    return ControlFarm(Users(alice="pencil", bob="rubber"), sessions=sessions, **settings)


def waiting(farm: ControlFarm | None = None) -> ControlPeer:
    """A peer whose password is being checked."""
    peer = (farm or closed_farm()).peer(HERE)
    peer.open()
    peer.say("Authorize", plain("alice", "pencil"))
    return peer


def codes(peer: ControlPeer) -> list[int]:
    return [code for code, _ in peer.take()]


# envelopes


def test_G09_requests_of_a_req_socket_are_of_one_session_though_each_has_another_number() -> None:
    farm = ControlFarm()
    peer = farm.peer(socket_type="REQ")
    peer.send(b"\0\0\0\1", b"", b"Connection.Open", b"nonsense")
    for number, (command, body) in enumerate(
        [("Open", {"protocol": PROTOCOL}), ("Profile", {"profile": "test"}), ("Reader", {"resources": []})], 2
    ):
        peer.routing = (number.to_bytes(4),)
        assert peer.ask(command, body)[0] == (201, 200, 202)[number - 2]
    assert len(farm.control) == 1


def test_G10_as_many_hops_are_kept_as_an_envelope_may_have() -> None:
    farm = ControlFarm()
    client = farm.peer().behind(*[b"\0abcd"] * MAX_HOPS)
    assert client.open()[0] == 201
    long = farm.peer().behind(b"x" * (MAX_ENVELOPE // 2), b"y" * (MAX_ENVELOPE // 2))
    assert long.open()[0] == 201
    assert long.profile("test")[0] == 200
    assert farm.peer().behind(b"x" * (MAX_ENVELOPE // 2), b"z" * (MAX_ENVELOPE // 2)).profile("test") == OPEN


@given(st.lists(st.lists(st.binary(min_size=1, max_size=200), min_size=1, max_size=5), min_size=2, max_size=2))
def test_different_envelopes_have_different_keys(envelopes: list[list[bytes]]) -> None:
    sender = Sender(THERE, "", "DEALER")
    one, other = (key_of(7, (*frames, b""), sender) for frames in envelopes)
    assert (one == other) == (envelopes[0] == envelopes[1])
    assert key_of(8, (*envelopes[0], b""), sender) != one
    assert len(one) <= 128


# pipelines


def test_G11_requests_behind_a_login_wait_for_it_and_are_answered_in_order() -> None:
    peer = waiting()
    for routing in ((), (), ()):
        peer.routing = routing
        peer.say("Profile", {"profile": "test"})
        peer.say("Reader", {"resources": ["resource"]})
        peer.say(b"no such command", {})
    peer.say("Authorize", plain("bob", "rubber"))
    peer.say("Reader", {"resources": []})
    peer.say("Open", {"protocol": PROTOCOL})
    peer.say("Authorize", plain("bob", "wrong"))
    peer.say("Profile", {"profile": "test"})
    assert peer.take() == []
    peer.farm.threads.run()
    assert codes(peer) == [201] + 3 * [200, 202, 501] + [201, 400, 401, 401, 401]
    assert peer.profile("test")[0] == 401


def test_G11_a_pipelined_login_by_scram_goes_step_by_step() -> None:
    peer = waiting()
    peer.say("Authorize", authorize(SCRAM, None))
    peer.say("Authorize", authorize(SCRAM, b"n,,n=alice,r=abcdef"))
    peer.say("Authorize", authorize(SCRAM, b"nonsense"))
    peer.say("Profile", {"profile": "test"})
    peer.farm.threads.run()
    assert codes(peer) == [201, 402, 402, 401, 401]


def test_replies_go_behind_the_envelopes_of_their_own_requests() -> None:
    farm = closed_farm()
    peer = farm.peer(HERE, socket_type="REQ")
    peer.open()
    for number, (command, body) in enumerate(
        [("Authorize", plain("alice", "pencil")), ("Profile", {"profile": "test"})]
    ):
        peer.routing = (b"%04d" % number,)
        peer.say(command, body)
    farm.threads.run()
    assert [frames[:3] for frames in peer.take_frames()] == [(b"0000", b"", b"201"), (b"0001", b"", b"200")]


def test_other_sessions_do_not_wait_for_a_login_nor_do_those_behind_the_same_proxy() -> None:
    farm = closed_farm()
    peer = waiting(farm)
    for other in (farm.peer(HERE), peer.behind(b"\0abcd")):
        assert other.open()[0] == 401
        assert other.scram("bob", "rubber")[0] == 201
        assert other.profile("test")[0] == 200
    farm.threads.run()
    assert codes(peer) == [201]


def test_so_many_requests_may_wait_and_more_are_dropped() -> None:
    peer = waiting()
    for _ in range(MAX_BEHIND + 7):
        peer.say("Profile", {"profile": "test"})
    assert peer.farm.counted("mtl_dropped.behind") == 7
    peer.farm.threads.run()
    assert codes(peer) == [201] + [200] * MAX_BEHIND
    assert peer.profile("test")[0] == 200


def test_the_requests_that_wait_have_a_bounded_size_in_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(control_flow, "MAX_BEHIND_BYTES", 200_000)
    farm = closed_farm()
    peers = [waiting(farm) for _ in range(2)]
    for peer in peers:
        for _ in range(3):
            peer.say("Profile", {"profile": "test", "more": "x" * 60_000})
    assert farm.counted("mtl_dropped.behind") == 3
    farm.threads.run()
    assert [codes(peer) for peer in peers] == [[201, 200, 200, 200], [201]]
    again = waiting(farm)
    again.say("Profile", {"profile": "test", "more": "x" * 60_000})
    farm.threads.run()
    assert codes(again) == [201, 200]


def test_what_is_ill_formed_is_dropped_also_while_others_wait() -> None:
    peer = waiting()
    peer.send(b"", b"Connection.Profile", b"nonsense")
    peer.say("Profile", {"profile": "test"})
    peer.farm.threads.run()
    assert codes(peer) == [201, 200]


# who has which


def test_G08_nor_by_a_connection_that_replaces_another() -> None:
    farm = closed_farm()
    mine = waiting(farm)
    mine.say("Profile", {"profile": "test"})
    former = mine.line
    other = farm.peer(HERE, identity=mine.identity)
    assert len(farm.control) == 0
    farm.threads.run()
    assert (former.inbox, other.take()) == ([], []), "there is no reply to what the former asked"
    assert farm.counted("mtl_dropped.gone") == 2
    assert other.profile("test") == OPEN
    assert other.logged_in("alice", "pencil").profile("test")[0] == 200
    farm.control.closed(former.number)
    assert other.reader()[0] == 202


def test_all_sessions_of_a_connection_end_with_it() -> None:
    farm = ControlFarm()
    proxy, other = farm.peer(), farm.peer().opened()
    for number in range(5):
        proxy.behind(b"%05d" % number).opened()
    proxy.close()
    assert len(farm.control) == 1
    assert other.profile("test")[0] == 200


def test_the_leases_of_a_session_outlive_it() -> None:
    farm = ControlFarm()
    peer = farm.peer().opened().working("shelf")
    used, unused = peer.used_lease(), peer.lease()
    peer.close()
    assert farm.data.take(used, b"data", "") is not None
    assert farm.data.take(unused, b"data", "") is not None
    assert farm.ended == []


# how many


def test_the_session_that_was_silent_for_longest_makes_room() -> None:
    farm = ControlFarm(sessions=3)
    one, two, three = (farm.peer().opened() for _ in range(3))
    one.working("test")
    four = farm.peer().opened()
    assert len(farm.control) == 3
    assert two.profile("test") == OPEN
    for peer in (one, three, four):
        assert peer.profile("test")[0] == 200
    assert two.opened().profile("test")[0] == 200
    assert one.reader() == OPEN
    assert (farm.counted("mtl_sessions.begun"), farm.counted("mtl_sessions.ended")) == (5, 2)


def test_those_without_access_make_room_first() -> None:
    farm = closed_farm(sessions=3)
    mine = farm.peer(HERE).logged_in("alice", "pencil")
    for _ in range(100):
        farm.peer().open()
    assert mine.profile("test")[0] == 200
    assert len(farm.control) == 3
    farm.control.revoke_users(["alice"])
    for _ in range(3):
        farm.peer().open()
    assert mine.profile("test") == OPEN


def test_who_makes_up_routing_frames_ends_its_own_sessions() -> None:
    farm = ControlFarm(sessions=30)
    others = [farm.peer().opened() for _ in range(27)]
    proxy = farm.peer()
    clients = [proxy.behind(b"%05d" % number).opened() for number in range(100)]
    assert len(farm.control) == 30
    assert all(other.profile("test")[0] == 200 for other in others)
    assert [number for number, client in enumerate(clients) if client.profile("test")[0] == 200] == [97, 98, 99]
    assert clients[97].profile("test")[0] == 200
    clients[0].opened()
    assert [clients[number].profile("test")[0] for number in (97, 98, 99)] == [200, 400, 200]
    assert len(farm.control) == 27 + 30 // SHARE


def test_who_makes_room_while_it_waits_is_told_so_once_for_each_request() -> None:
    farm = closed_farm(sessions=1)
    peer = waiting(farm)
    peer.say("Profile", {"profile": "test"})
    peer.say(b"no such command", {})
    farm.peer().open()
    assert peer.take() == [OPEN] * 3
    farm.threads.run()
    assert peer.take() == []
    assert peer.profile("test") == OPEN
    assert len(farm.leases) == 0 or len(farm.control) == 1


def test_a_smaller_number_of_sessions_counts_from_the_next_one_on() -> None:
    farm = ControlFarm(sessions=30)
    peers = [farm.peer().opened() for _ in range(30)]
    farm.control.use(Mtl(sessions=3))
    farm.peer().opened()
    assert len(farm.control) == 3
    assert [peer.profile("test")[0] for peer in peers[-3:]] == [400, 200, 200]


@pytest.mark.long
@pytest.mark.parametrize("routing", [(), (b"x" * 1_000,)])
@pytest.mark.parametrize(("state", "most"), [("refused", 1024), ("at work", 1024), ("in an exchange", 5120)])
def test_a_session_takes_less_than_a_kibibyte_and_its_exchange_four_more(
    routing: tuple[bytes, ...], state: str, most: int
) -> None:
    def act(peer: ControlPeer) -> None:
        if state == "at work":
            peer.opened().working("shelf")
        else:
            peer.open("x" * 60_000)
            if state == "in an exchange":
                assert peer.authorize(SCRAM, b"n,,n=alice,r=" + b"x" * 490)[0] == 402

    count = 500
    users = Users(alice="pencil")
    farm = ControlFarm(users, keys={KEY: "carol"}, sessions=10 * count)
    peers = []
    for number in range(count + 1):
        identity = b"%0255d" % number if routing else None
        peer = farm.peer(key=KEY if state == "at work" else "", identity=identity)
        peer.routing = routing
        peers.append(peer)
    act(peers.pop())
    set_aside()
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        for peer in peers:
            act(peer)
        gc.collect()
        kept = (tracemalloc.get_traced_memory()[0] - before) / count
    finally:
        tracemalloc.stop()
    assert kept < most
    assert len(farm.control) == count + 1


def test_nothing_is_left_of_sessions_that_are_over() -> None:
    farm = closed_farm(sessions=20)
    peers = [farm.peer(HERE) for _ in range(50)]
    for number, peer in enumerate(peers):
        peer.open()
        if number % 3 == 0:
            peer.say("Authorize", plain("alice", "pencil"))
            peer.say("Profile", {"profile": "test"})
        elif number % 3 == 1:
            peer.say("Authorize", authorize(SCRAM, None))
        else:
            peer.scram("alice", "pencil")
    for peer in peers:
        peer.close()
    farm.threads.run()
    assert len(farm.control) == 0
    assert len(farm.leases) == 0
    assert farm.control._behind == 0
    sessions = vars(farm.control._sessions)
    assert not any(sessions[name] for name in ("_strangers", "_ready", "_of_connection"))


# replies that find no room


def test_replies_that_find_no_room_wait_and_come_in_order() -> None:
    farm = ControlFarm()
    peer, other = farm.peer(), farm.peer()
    peer.line.have_room(1)
    peer.say("Open", {"protocol": PROTOCOL})
    peer.say("Profile", {"profile": "test"})
    peer.say("Profile", {"profile": "none"})
    assert codes(peer) == [201]
    assert other.opened().profile("test")[0] == 200
    peer.line.have_room(None)
    peer.say("Reader", {"resources": []})
    assert codes(peer) == [200, 400, 202]
    assert farm.data.unused == 1


def test_replies_to_a_peer_that_does_not_read_at_all_are_dropped() -> None:
    farm = ControlFarm()
    peer = farm.peer().opened()
    peer.line.have_room(0)
    for _ in range(REPLIES + 5):
        peer.say("Profile", {"profile": "test"})
    assert farm.counted("mtl_dropped.full") == 5
    peer.line.have_room(None)
    assert codes(peer) == [200] * REPLIES
    assert peer.profile("test")[0] == 200
    assert len(farm.leases) == 0


def test_room_is_nothing_to_the_control_flow() -> None:
    farm = ControlFarm()
    peer = farm.peer().opened()
    farm.control.room(peer.identity)
    assert peer.take() == []


# anything at all


frames = st.lists(
    st.one_of(
        st.sampled_from(
            [b"", b"\0abcd", *OPENING, b"Connection.Profile", b'{"profile": "test"}', b"connection.READER"]
        ),
        st.sampled_from([b'{"resources": []}', b"Connection.Authorize", json.dumps(plain("alice", "pencil")).encode()]),
        st.binary(max_size=20),
    ),
    max_size=6,
)


@settings(max_examples=examples(50), deadline=None)
@given(st.lists(st.tuples(st.integers(0, 3), frames, st.booleans()), max_size=30))
def test_whatever_comes_each_wellformed_request_has_one_reply_and_nothing_else_has(
    messages: list[tuple[int, list[bytes], bool]],
) -> None:
    farm = closed_farm(sessions=3)
    peers = [farm.peer(HERE) for _ in range(4)]
    expected = 0
    for number, each, checked in messages:
        before = sum(
            value for name, value in farm.counters.all().items() if name.startswith(("mtl_dropped", "mtl_ill_formed"))
        )
        peers[number].send(*each)
        after = sum(
            value for name, value in farm.counters.all().items() if name.startswith(("mtl_dropped", "mtl_ill_formed"))
        )
        expected += 1 - (after - before)
        if checked:
            farm.threads.run()
    farm.threads.run()
    farm.wait(10)
    farm.threads.run()
    assert sum(len(peer.take_frames()) for peer in peers) == expected == farm.counted("mtl_requests.answered")
    assert len(farm.control) <= 3
