"""DBP: the demands of the document (Core Catalog Service), sentence by sentence in its order, numbered D01 and on.

Each docstring quotes its sentence. Sentences that bind the broker are tested as such. Those that bind clients or
services are tested as what the broker does with peers that keep to them, and with those that do not.

Not tested, and why:
- "The broker MAY use a separate socket for each sub-protocol": it uses one, which the same sentence allows.
- "When receiving messages a ROUTER socket shall prepend a message part": that is ZeroMQ's, and quoted from its manual.
- "One service node MUST connect to exactly one broker": a broker cannot see to whom else a service is connected.
- "it MUST close its socket", after a DISCONNECT: binds the service. That the broker ignores the old socket is D28.

Tested in test_rules.py, by the rules that say more: D09 (inactive warnings) by 11, D16 (heartbeats by UDP) and the
invalid datagrams of D31 by 07, D39 (a new conversation) by 21. The first half of D17, questions by TCP, is
tested in test_liveness.py.

The file is longer than others: it follows the document in its order.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any

import pytest

from broker.wires.dbp.dbp_settings import Dbp
from tests.recording.farm import START
from tests.recording.logs import nothing_fails
from tests.wires.dbp.recording import ELSEWHERE, FLOAT32, NAME, TEXT, THERE, DbpFarm, DbpPeer, T

SOURCE = (THERE, 40_000)
INFO: dict[str, Any] = {"ip": "192.0.2.7", "port": 6000, "function": "rides", "heartbeat": 1000}
"""All that the document wants "at a minimum", but for the name."""

ALL = ("192.0.2.255", 5246)


@pytest.fixture
def farm() -> Iterator[DbpFarm]:
    with nothing_fails():
        yield DbpFarm(beacon=(ALL[0],))


def active(farm: DbpFarm) -> list[str]:
    """The services that clients are told of."""
    return list(farm.dealer(ELSEWHERE).find())


def whole(peer: DbpPeer, *frames: Any) -> list[bytes]:
    """The one reply to a message, with its empty frame."""
    peer.send(*frames)
    [reply] = peer.take_raw()
    return reply


def answers(peer: DbpPeer) -> bool:
    """True if a request over this connection is answered."""
    return peer.ask("u_U", T, "") != []


# ROUTER addressing


def test_d01_the_router_is_on_port_5246(farm: DbpFarm) -> None:
    """ "The broker MUST use a ROUTER socket on port 5246 to accept requests from clients, and connections from
    Services." """
    assert Dbp().endpoint.rpartition(":")[2] == "5246"
    assert farm.udp.take((ALL[0], 5245)) == [b"SHALOM 5246"]


def test_d02_one_socket_serves_every_sub_protocol(farm: DbpFarm) -> None:
    """ "... or MAY use a single socket for each sub-protocols." """
    service, client = farm.dealer(), farm.req()
    service.registered("Rohan", **INFO)
    service.send("<3", T, "Rohan")
    assert client.find("Rohan") == {"Rohan": INFO}


# Info request


def test_d03_a_request_and_its_reply_repeat(farm: DbpFarm) -> None:
    """ "DBP/Info Request is a strictly synchronous dialog initiated by the client": one reply for each request, in
    order, and nothing that was not asked for."""
    farm.dealer().registered("Rohan", **INFO)
    for client in (farm.req(), farm.dealer(), farm.hermes()):
        for n in range(5):
            [[command, _, body]] = client.ask("u_U", T, f"service {n}")
            assert command == b"o_O"
            assert f"service {n}" in json.loads(body)["Error"]
        farm.wait(2.0)
        assert client.take() == []
    assert farm.counts()["dbp_requests.answered"] == 15


def test_d03_requests_need_not_wait_for_each_other(farm: DbpFarm) -> None:
    """Over a DEALER a client may send the next before the reply: replies come in the order of the requests."""
    client = farm.dealer()
    for n in range(20):
        client.send("u_U", T, f"service {n}")
    bodies = [json.loads(body)["Error"] for _, _, body in client.take()]
    assert [text.rpartition(" ")[2] for text in bodies] == [str(n) for n in range(20)]


def test_d04_a_request_has_four_or_more_frames(farm: DbpFarm) -> None:
    """ "A REQUEST command consists of a multipart message of 4 or more frames." """
    farm.dealer().registered("Rohan", **INFO)
    assert json.loads(whole(farm.req(), "u_U", T, "Rohan")[3]) == {"Rohan": INFO}
    assert json.loads(whole(farm.req(), "u_U", T, "Rohan", "", "more")[3]) == {"Rohan": INFO}
    short = farm.dealer()
    assert short.ask("u_U", T) == []
    assert not answers(short)


@pytest.mark.parametrize("kind", ["req", "dealer", "hermes"])
@pytest.mark.parametrize("name", ["", "Rohan", "Mordor"])
def test_d05_a_reply_has_five_frames(farm: DbpFarm, kind: str, name: str) -> None:
    """ "A REPLY command consists of a multipart message of 5 or more frames": the first is the address that the ROUTER
    takes off, so four; empty, o_O, a time, a JSON object."""
    farm.dealer().registered("Rohan", **INFO)
    peer = getattr(farm, kind)()
    frames = whole(peer, "u_U", T, name)
    assert frames[:2] == [b"", b"o_O"]
    assert len(frames) == 4
    assert frames[2] == (FLOAT32 if kind == "hermes" else TEXT)
    assert isinstance(json.loads(frames[3]), dict)


def test_d05_the_time_is_the_present(farm: DbpFarm) -> None:
    """ "time (current epoch time)"."""
    farm.wait(100.0)
    [_, _, time, _] = whole(farm.req(), "u_U", T, "")
    assert float(time) == pytest.approx(START + 100, abs=0.1)


def test_d06_clients_use_a_req_or_a_dealer(farm: DbpFarm) -> None:
    """ "Clients SHOULD use a REQ socket ... Clients MAY use a DEALER (XREQ) socket": both are served alike."""
    farm.dealer().registered("Rohan", **INFO)
    assert whole(farm.req(), "u_U", T, "Rohan") == whole(farm.dealer(), "u_U", T, "Rohan")


def test_d07_a_dealer_that_does_not_create_the_empty_frame_is_dropped(farm: DbpFarm) -> None:
    """ "In that case the clients MUST create the empty frame 0 explicitly." """
    client = farm.dealer()
    client.send_raw(b"u_U", TEXT, b"")
    assert client.take() == []
    assert not answers(client)


def test_d08_the_list_is_of_the_services_active_now(farm: DbpFarm) -> None:
    """ "The information request is either a specified services name or a list of currently active services
    available." """
    for name in ("Rohan", "Gondor", "Mordor"):
        farm.dealer().registered(name, **INFO)
    farm.datagram(b" </3 1795246600 Gondor")
    assert farm.req().find("Rohan") == {"Rohan": INFO}
    assert farm.req().find() == {"Rohan": INFO, "Mordor": INFO}
    farm.wait(4.0)
    assert farm.req().find() == {}


# Service registration


@pytest.mark.parametrize("kind", ["dealer", "req", "hermes"])
def test_d10_each_registration_gets_one_reply(farm: DbpFarm, kind: str) -> None:
    """ "DBP/Service Registration is a strictly synchronous request-reply dialog, initiated by the service node":
    approved or denied, never both, never nothing."""
    for n, body in enumerate(['{"name": "Rohan"}', '{"name": "Rohan"}', "{}", "junk", '{"name": "Error"}', ""]):
        [[command, *_]] = getattr(farm, kind)(THERE).ask("UwU", T, body)
        assert command == (b"OwO" if n < 2 else b"(O_O)")


def test_d11_a_registration_has_four_frames(farm: DbpFarm) -> None:
    """ "A REGISTRATION request consists of a multipart message of 4 frames", the last of them "3+"."""
    assert whole(farm.dealer(), "UwU", T, {"name": "Rohan"})[1] == b"OwO"
    assert whole(farm.dealer(), "UwU", T, {"name": "Gondor"}, "", "more")[1] == b"OwO"
    short = farm.dealer()
    assert short.ask("UwU", T) == []
    assert active(farm) == ["Rohan", "Gondor"]


def test_d12_all_that_a_service_says_is_kept(farm: DbpFarm) -> None:
    """ "Service information shall consist of the services name, ip address, port, function, and heartbeat timing at a
    minimum." The broker uses these, and hands all on; it takes services that say less."""
    farm.dealer().registered("Rohan", **INFO, more=[1, {"a": None}])
    farm.dealer().registered("Gondor")
    assert farm.req().find() == {"Rohan": {**INFO, "more": [1, {"a": None}]}, "Gondor": {}}
    assert farm.hostports("Rohan") == ["192.0.2.7:6000"]
    farm.wait(4.0)
    assert active(farm) == ["Gondor"]


@pytest.mark.parametrize("kind", ["dealer", "req", "hermes"])
def test_d13_an_update_changes_values(farm: DbpFarm, kind: str) -> None:
    """ "An UPDATE request consists of a multipart message of 4 frames ... Updated values": others stay as they are."""
    peer: DbpPeer = getattr(farm, kind)(THERE).registered("Rohan", **INFO)
    assert whole(peer, "UoU", T, {"name": "Rohan", "port": 6001, "load": 2})[1] == b"u.u"
    assert farm.req().find("Rohan") == {"Rohan": {**INFO, "port": 6001, "load": 2}}
    assert farm.hostports("Rohan") == ["192.0.2.7:6001"]
    short: DbpPeer = getattr(farm, kind)(THERE)
    assert short.ask("UoU", T) == []
    assert not answers(short)


@pytest.mark.parametrize("kind", ["dealer", "req"])
def test_d14_an_approval_has_six_frames_or_more(farm: DbpFarm, kind: str) -> None:
    """ "An APPROVED reply consists of a multipart message of 6 or more frames ... Optional configuration changes." """
    frames = whole(getattr(farm, kind)(), "UwU", T, {"name": "Rohan", **INFO})
    assert [*frames[:3], *frames[4:]] == [b"", b"OwO", TEXT, b"", b""]
    assert json.loads(frames[3]) == {"heartbeat": 1000, "liveness": 3}


@pytest.mark.parametrize("kind", ["dealer", "req"])
def test_d15_a_denial_has_three_frames_or_more_and_reasons(farm: DbpFarm, kind: str) -> None:
    """ "A DENIED reply consists of a multipart message of 3 or more frames ... Reasons for denial." """
    frames = whole(getattr(farm, kind)(), "UwU", T, {"name": "Error"})
    assert frames[:3] == [b"", b"(O_O)", TEXT]
    [reasons] = frames[3:]
    assert reasons.decode()


@pytest.mark.parametrize("kind", ["dealer", "req"])
def test_d15_who_is_unauthorized_or_unregistered_is_denied(farm: DbpFarm, kind: str) -> None:
    """ "... for unauthorized or unregistered services." """
    farm.dealer(THERE).registered("Rohan", **INFO)
    other: DbpPeer = getattr(farm, kind)(ELSEWHERE)
    assert whole(other, "UwU", T, {"name": "Rohan"})[1] == b"(O_O)"
    assert whole(other, "UoU", T, {"name": "Rohan", "port": 1})[1] == b"(O_O)"
    assert whole(other, "UoU", T, {"name": "Mordor", "port": 1})[1] == b"(O_O)"
    assert farm.req().find() == {"Rohan": INFO}


# Heartbeats


@pytest.mark.parametrize("kind", ["req", "hermes"])
def test_d17_a_service_can_beat_by_req(farm: DbpFarm, kind: str) -> None:
    """The same the other way: a REQ that sends a heartbeat is answered, with AWK."""
    farm.dealer().registered("Rohan", **INFO)
    for _ in range(5):
        farm.wait(1.0)
        peer: DbpPeer = getattr(farm, kind)(THERE)
        assert whole(peer, "<3", T, "Rohan")[1] == b"u.u"
        peer.close()
    assert active(farm) == ["Rohan"]


def test_d18_the_heartbeat_dialog_operates_on_the_same_sockets(farm: DbpFarm) -> None:
    """ "The asynchronous heartbeat dialog operates on the same sockets": over the connection of the registration, and
    by UDP back to where the service's datagrams come from; each side repeats by itself."""
    by_dealer = farm.dealer().registered("Rohan", **INFO)
    farm.dealer().registered("Gondor", **INFO)
    for _ in range(5):
        by_dealer.send("<3", T, "Rohan")
        farm.datagrams.receive(b" <3 1795246600 Gondor", SOURCE)
        farm.wait(1.0)
    over_router, by_udp = by_dealer.take(), farm.udp.take(SOURCE)
    assert 4 <= len(over_router) <= 5
    assert 5 <= len(by_udp) <= 6
    assert {frames[0] for frames in over_router} == {b"<3"}
    assert all(beat.startswith(b" <3 ") for beat in by_udp)


def test_d19_a_heartbeat_has_a_time_and_a_name(farm: DbpFarm) -> None:
    """ "A HEARTBEAT message consists of a multipart message of 3 frames", of which four are listed: empty, <3, time,
    "Service name"."""
    peer = farm.dealer().registered("Rohan", **INFO)
    farm.wait(1.2)
    [beat] = peer.take_raw()
    assert [*beat[:2], *beat[3:]] == [b"", b"<3", NAME.encode()]
    assert float(beat[2]) == pytest.approx(START + 1, abs=0.1)
    for frames in (("<3", T), ("<3", T, ""), ("<3", T, "Rohan"), ("<3", T, "Rohan", "more")):
        farm.wait(1.5)
        peer.send(*frames)
    assert active(farm) == ["Rohan"]


def test_d20_a_disconnect_has_three_frames(farm: DbpFarm) -> None:
    """ "A DISCONNECT command consists of a multipart message of 3 frames": empty, </3, time."""
    for other in (farm.dealer(), farm.req()):
        assert whole(other, "OwO", T, "") == [b"", b"</3", TEXT]
    peer = farm.dealer().registered("Rohan", **INFO)
    assert peer.ask("</3", T) == []
    assert active(farm) == []


def test_d21_an_acknowledgement_has_three_frames(farm: DbpFarm) -> None:
    """ "An AWK command consists of a multipart message of 3 frames": empty, u.u, time."""
    for peer in (farm.dealer().registered("Rohan", **INFO), farm.req().registered("Gondor", **INFO)):
        assert whole(peer, "UoU", T, {"load": 1}) == [b"", b"u.u", TEXT]
        assert peer.ask("u.u", T) == []
        assert answers(peer)


def test_d22_all_begins_with_an_empty_frame(farm: DbpFarm) -> None:
    """ "DBP/Service commands all start with an empty frame", and "every DBP command includes the protocol header": so
    does all that the broker sends."""
    peer = farm.dealer().registered("Rohan", **INFO)
    peer.send("u_U", T, "")
    peer.send("UoU", T, {"name": "Rohan"})
    peer.send("UoU", T, "junk")
    farm.wait(2.5)
    peer.send("OwO", T, "")
    inbox = peer.take_raw()
    assert {frames[1] for frames in inbox} == {b"o_O", b"u.u", b"(O_O)", b"<3", b"</3"}
    assert all(frames[0] == b"" for frames in inbox)
    farm.dealer().registered("Gondor", **INFO)
    farm.wait(2.0)
    assert all(probe.frames[0] == b"" for probe in farm.probes.asked)
    assert farm.probes.asked
    assert all(data.startswith(b" ") for data, to in farm.udp.sent if to[1] != 5245)


# Opening and closing a connection


def test_d23_a_service_uses_one_dealer_or_what_it_likes(farm: DbpFarm) -> None:
    """ "One service node MUST connect to exactly one broker using a single OMQ DEALER (XREQ) socket." Those that use a
    REQ, or another socket for each command, are served too."""
    farm.dealer().registered("Rohan", **INFO)
    farm.req().registered("Gondor", **INFO)
    for name in ("Rohan", "Gondor"):
        for kind in ("dealer", "req"):
            assert whole(getattr(farm, kind)(THERE), "UoU", T, {"name": name, "by": kind})[1] == b"u.u"
    assert active(farm) == ["Rohan", "Gondor"]


def test_d24_a_connection_that_is_made_again_goes_on(farm: DbpFarm) -> None:
    """ "OMQ automatically reconnects peers after a failure": the end of a connection is not the end of a service, whose
    heartbeats may come over the next one."""
    peer = farm.dealer(identity=b"rohan").registered("Rohan", **INFO)
    for _ in range(5):
        peer.close()
        peer.connect()
        assert peer.ask("<3", T, "Rohan") == []
        farm.wait(1.5)
    assert active(farm) == ["Rohan"]
    assert b"<3" in {frames[0] for frames in peer.take()}


def test_d24_heartbeats_follow_the_connection_of_the_last_one(farm: DbpFarm) -> None:
    """A connection whose peer vanished without an end stays open here: messages to it would be lost."""
    old = farm.dealer().registered("Rohan", **INFO)
    new = farm.dealer()
    for _ in range(3):
        new.send("<3", T, "Rohan")
        farm.wait(1.5)
    assert old.take() == []
    assert {frames[0] for frames in new.take()} == {b"<3"}
    farm.wait(4.0)
    assert [frames[0] for frames in new.take()][-1] == b"</3"
    assert (new.closed, old.take()) == (True, [])


def test_d24_the_connection_before_it_still_speaks_for_the_service(farm: DbpFarm) -> None:
    """A service may register on one socket and send its heartbeats over another."""
    first, second = farm.dealer().registered("Rohan", **INFO), farm.dealer()
    assert second.ask("<3", T, "Rohan") == []
    assert first.ask("u.u", T) == []
    assert first.ask("UoU", T, {"x": 1})[0][0] == b"u.u"
    assert first.ask("<3", T) == []
    farm.wait(1.2)
    assert [[frames[0] for frames in each.take()] for each in (first, second)] == [[b"<3"], []]
    first.send("</3", T)
    assert active(farm) == []
    assert second.ask("u.u", T)[0][0] == b"</3"


def test_d25_a_service_opens_by_registering_on_a_new_socket(farm: DbpFarm) -> None:
    """ "The service node opens the connection to the broker by creating a new socket, connecting it, and then sending a
    REGISTER command." """
    for _ in range(3):
        peer = farm.dealer().registered("Rohan", **INFO)
    farm.wait(1.2)
    assert [frames[0] for frames in peer.take()] == [b"<3"]
    assert active(farm) == ["Rohan"]


@pytest.mark.parametrize("kind", ["dealer", "req", "hermes"])
def test_d26_a_further_ready_is_answered_with_disconnect(farm: DbpFarm, kind: str) -> None:
    """ "The service node MUST NOT send a further READY." """
    peer: DbpPeer = getattr(farm, kind)(THERE).registered("Rohan", **INFO)
    assert whole(peer, "UwU", T, {"name": "Gondor"})[1] == b"</3"
    assert active(farm) == ["Rohan"]
    assert not answers(peer)


@pytest.mark.parametrize("kind", ["dealer", "req", "hermes"])
@pytest.mark.parametrize("registered", [False, True])
def test_d27_a_service_may_disconnect_at_any_time(farm: DbpFarm, kind: str, registered: bool) -> None:
    """ "The service node MAY send DISCONNECT at any time, including before READY." """
    peer: DbpPeer = getattr(farm, kind)(THERE)
    if registered:
        peer.registered("Rohan", **INFO)
    assert peer.ask("</3", T) == []
    assert active(farm) == []
    getattr(farm, kind)(THERE).registered("Rohan", **INFO)


AFTER: list[tuple[Any, ...]] = [
    ("<3", T, "Rohan"),
    ("u.u", T),
    ("</3", T),
    ("u_U", T, ""),
    ("UoU", T, {"name": "Rohan"}),
    ("UwU", T, {"name": "Rohan"}),
    ("OwO", T, ""),
    ("ping", T, ""),
]


@pytest.mark.parametrize("kind", ["dealer", "req", "hermes"])
def test_d28_after_a_disconnect_a_service_is_sent_nothing(farm: DbpFarm, kind: str) -> None:
    """ "When the broker receives DISCONNECT from a service node it MUST send no further commands to that service
    node": no heartbeats, no question, no answers over the connection that it came by."""
    peer: DbpPeer = getattr(farm, kind)(THERE).registered("Rohan", **INFO)
    farm.datagrams.receive(b" <3 1795246600 Rohan", SOURCE)
    farm.wait(1.2)
    farm.udp.take(SOURCE)
    peer.take()
    peer.send("</3", T)
    for frames in AFTER:
        peer.send(*frames)
    farm.wait(10.0)
    farm.catalogue.part_all()
    assert peer.take() == []
    assert farm.udp.take(SOURCE) == []
    assert farm.probes.asked == []
    assert active(farm) == []


def test_d28_after_a_disconnect_by_udp_nothing_is_sent_by_itself(farm: DbpFarm) -> None:
    """The same when it said so by UDP: no heartbeats, and no question."""
    peer = farm.dealer().registered("Rohan", **INFO)
    farm.datagrams.receive(b" <3 1795246600 Rohan", SOURCE)
    farm.datagrams.receive(b" </3 1795246600 Rohan", SOURCE)
    farm.wait(10.0)
    farm.catalogue.part_all()
    assert peer.take() == []
    assert farm.udp.take(SOURCE) == []
    assert farm.probes.asked == []


@pytest.mark.parametrize("frames", [("<3", T, "Rohan"), ("u.u", T), ("UoU", T, {"name": "Rohan"}), ("OwO", T, "")])
def test_d28_after_a_disconnect_by_udp_its_connection_is_closed_too(farm: DbpFarm, frames: tuple[Any, ...]) -> None:
    """And what still comes over its connection is not answered: that would be a further command."""
    peer = farm.dealer().registered("Rohan", **INFO)
    farm.datagrams.receive(b" </3 1795246600 Rohan", SOURCE)
    assert peer.ask(*frames) == []


@pytest.mark.parametrize("way", ["udp", "router"])
def test_d28_a_late_heartbeat_of_who_disconnected_is_not_answered(farm: DbpFarm, way: str) -> None:
    """And a heartbeat by UDP that comes a moment after the DISCONNECT is not answered by another one."""
    peer = farm.dealer().registered("Rohan", **INFO)
    farm.datagrams.receive(b" <3 1795246600 Rohan", SOURCE)
    if way == "udp":
        farm.datagrams.receive(b" </3 1795246600 Rohan", SOURCE)
    else:
        peer.send("</3", T)
    assert farm.datagram(b" <3 1795246600 Rohan", SOURCE) == []


def test_d29_the_broker_disconnects_only_whom_it_has_heard(farm: DbpFarm) -> None:
    """ "The broker MAY send DISCONNECT at any time, by definition after it has received at least one command from the
    service node." """
    silent, client = farm.dealer(), farm.dealer()
    client.find()
    service = farm.dealer().registered("Rohan", **INFO)
    farm.wait(5.0)
    farm.catalogue.part_all()
    assert silent.take() == []
    assert client.take() == []
    assert [frames[0] for frames in service.take()].count(b"</3") == 1


UNEXPECTED: list[tuple[Any, ...]] = [
    ("o_O", T, "{}"),
    ("OwO", T, ""),
    ("(O_O)", T, "why"),
    ("OmO", T, "why"),
    ("<3", T, "Rohan"),
    ("<3", T),
    ("u.u", T),
]


@pytest.mark.parametrize("kind", ["dealer", "req", "hermes"])
@pytest.mark.parametrize("frames", UNEXPECTED)
def test_d30_what_is_valid_but_unexpected_is_answered_with_disconnect(
    farm: DbpFarm, kind: str, frames: tuple[Any, ...]
) -> None:
    """ "The broker MUST respond to any valid but unexpected command by sending DISCONNECT and then no further commands
    to that service node." """
    peer: DbpPeer = getattr(farm, kind)(THERE)
    assert whole(peer, *frames)[1] == b"</3"
    for again in (*UNEXPECTED, *AFTER):
        peer.send(*again)
    farm.wait(5.0)
    farm.catalogue.part_all()
    assert peer.take() == []
    assert active(farm) == []
    assert peer.closed
    peer.close()
    peer.connect()
    assert answers(peer)


def test_d30_a_registered_service_too_hears_nothing_more(farm: DbpFarm) -> None:
    """Also the heartbeats over that connection end; the service may come again on a new one."""
    peer = farm.dealer().registered("Rohan", **INFO)
    peer.send("<3", T)
    assert whole(peer, "OwO", T, "")[1] == b"</3"
    farm.wait(5.0)
    assert peer.take() == []
    farm.dealer().registered("Rohan", **INFO)


def test_d30_no_further_commands_by_udp_either(farm: DbpFarm) -> None:
    """ "... no further commands to that service node": by neither way."""
    peer = farm.dealer().registered("Rohan", **INFO)
    farm.datagrams.receive(b" <3 1795246600 Rohan", SOURCE)
    assert whole(peer, "OwO", T, "")[1] == b"</3"
    farm.udp.take(SOURCE)
    farm.wait(5.0)
    assert farm.catalogue.get("Rohan") is None
    assert farm.udp.take(SOURCE) == [], "no DISCONNECT when it expires"


@pytest.mark.parametrize("kind", ["dealer", "req", "hermes"])
@pytest.mark.parametrize(
    "frames",
    [
        (b"", b"junk", T, b""),
        (b"", b"u_U", b"no time", b""),
        (b"", b"u_U", T),
        (b"", b"u_U"),
        (b"", b"</3"),
        (b"", b"<3"),
        (b"", b"u.u"),
        (b"", b"<\\3", T, b""),
        (b"", b"<3", T, b"\xff"),
        (b"x", b"u_U", T, b""),
        (b"u_U", T, b""),
        (),
    ],
)
def test_d31_what_is_invalid_is_dropped_and_its_peer_is_invalid(
    farm: DbpFarm, kind: str, frames: tuple[Any, ...]
) -> None:
    """ "The broker SHOULD respond to invalid messages by dropping them and treating that peer as invalid." """
    peer: DbpPeer = getattr(farm, kind)(THERE)
    peer.send_raw(*(peer.time if frame is T else frame for frame in frames))
    for again in (*UNEXPECTED, *AFTER):
        peer.send(*again)
    farm.wait(5.0)
    assert peer.take() == []
    assert active(farm) == []
    peer.close()
    peer.connect()
    peer.registered("Rohan", **INFO)


def test_d32_who_was_disconnected_registers_again_on_a_new_socket(farm: DbpFarm) -> None:
    """ "When the service node receives DISCONNECT it must send no further commands to the broker; it MUST close its
    socket, and reconnect to the broker on a new socket." What comes over the old one is ignored."""
    old = farm.dealer().registered("Rohan", **INFO)
    farm.wait(4.0)
    assert old.take()[-1][0] == b"</3"
    assert old.register("Rohan", **INFO) == []
    assert active(farm) == []
    new = farm.dealer().registered("Rohan", **INFO)
    farm.wait(1.2)
    assert [frames[0] for frames in new.take()] == [b"<3"]


@pytest.mark.parametrize("way", ["udp", "dealer", "req"])
def test_d33_services_register_again_after_a_broker_failure(way: str) -> None:
    """ "This mechanism allows service nodes to re-register after a broker failure and recovery." """
    old = DbpFarm().dealer(THERE, b"rohan").registered("Rohan", **INFO)
    farm = DbpFarm()
    if way == "udp":
        [told] = farm.datagram(b" <3 1795246600 Rohan")
        assert told.split(b" ")[1] == b"</3"
    else:
        peer = farm.dealer(THERE, old.identity) if way == "dealer" else farm.req(THERE)
        assert whole(peer, "<3", T, "Rohan")[1] == b"</3"
    farm.dealer(THERE).registered("Rohan", **INFO)
    assert active(farm) == ["Rohan"]


# Heartbeating


def test_d34_heartbeats_are_valid_at_any_time_after_a_ready(farm: DbpFarm) -> None:
    """ "HEARTBEAT commands are valid at any time, after a READY command": at once, often, and from who never agreed to
    any."""
    peer = farm.dealer().registered("Rohan")
    for _ in range(20):
        assert peer.ask("<3", T, "Rohan") == []
        assert farm.datagram(b" <3 1795246600 Rohan") == []
    assert answers(peer)
    assert active(farm) == ["Rohan"]


SIGNS: dict[str, Callable[[DbpPeer], object]] = {
    "heartbeat": lambda peer: peer.send("<3", T),
    "request for all": lambda peer: peer.send("u_U", T, ""),
    "request": lambda peer: peer.send("u_U", T, "Mordor"),
    "question": lambda peer: peer.send("u_U", T, "mmi.service", "Mordor"),
    "update": lambda peer: peer.send("UoU", T, {"name": "Rohan", "load": 1}),
    "update of another": lambda peer: peer.send("UoU", T, {"name": "another"}),
    "denied update": lambda peer: peer.send("UoU", T, "junk"),
    "acknowledgement": lambda peer: peer.send("u.u", T),
    "ping": lambda peer: peer.send("ping", T, ""),
}


@pytest.mark.parametrize("sign", SIGNS)
@pytest.mark.parametrize("kind", ["dealer", "req", "hermes"])
def test_d35_any_command_acts_as_a_heartbeat(farm: DbpFarm, kind: str, sign: str) -> None:
    """ "Any received command except DISCONNECT acts as a heartbeat." """
    peer: DbpPeer = getattr(farm, kind)(THERE).registered("Rohan", **INFO)
    for _ in range(4):
        farm.wait(2.0)
        SIGNS[sign](peer)
    assert active(farm) == ["Rohan"]
    farm.wait(3.2)
    assert active(farm) == []


def test_d35_an_update_over_another_connection_acts_as_a_heartbeat(farm: DbpFarm) -> None:
    """Also if it comes by a socket of its own."""
    farm.dealer().registered("Rohan", **INFO)
    for _ in range(4):
        farm.wait(2.0)
        assert whole(farm.req(THERE), "UoU", T, {"name": "Rohan", "load": 1})[1] == b"u.u"
    assert active(farm) == ["Rohan"]


def test_d35_a_disconnect_does_not_act_as_a_heartbeat(farm: DbpFarm) -> None:
    """ "... except DISCONNECT": nor one that is not heeded, from another address."""
    farm.dealer(THERE).registered("Rohan", **INFO)
    for _ in range(4):
        farm.wait(0.8)
        farm.dealer(ELSEWHERE).send("</3", T, "Rohan")
        farm.datagrams.receive(b" </3 1795246600 Rohan", (ELSEWHERE, 40_000))
    assert active(farm) == []


@pytest.mark.parametrize(
    "sign",
    [
        "update",
        "denied update",
        "ping",
        "question",
        "request",
    ],
)
def test_d36_the_broker_sends_no_heartbeats_while_it_sends_other_commands(farm: DbpFarm, sign: str) -> None:
    """ "Peers SHOULD NOT send HEARTBEAT commands while also sending other commands." """
    peer = farm.dealer().registered("Rohan", **INFO)
    for _ in range(12):
        farm.wait(0.5)
        SIGNS[sign](peer)
    commands = [frames[0] for frames in peer.take()]
    assert len([command for command in commands if command != b"<3"]) == 12
    assert b"<3" not in commands


def test_d36_a_service_that_sends_both_is_served(farm: DbpFarm) -> None:
    """A service that does so all the same is not punished."""
    peer = farm.dealer().registered("Rohan", **INFO)
    for _ in range(5):
        peer.send("<3", T)
        assert peer.find("Rohan") == {"Rohan": INFO}
    assert active(farm) == ["Rohan"]


@pytest.mark.parametrize(("heartbeat", "seconds"), [(500, 0.5), (1000, 1.0), (2000, 2.0)])
@pytest.mark.parametrize("way", ["udp", "dealer"])
def test_d37_the_broker_sends_heartbeats_at_the_agreed_interval(
    farm: DbpFarm, way: str, heartbeat: int, seconds: float
) -> None:
    """ "Both broker and worker MUST send heartbeats at regular and agreed-upon intervals." """
    peer = farm.dealer().registered("Rohan", **{**INFO, "heartbeat": heartbeat})
    at: list[float] = []
    for n in range(round(20 * seconds / 0.05)):
        if n % round(seconds / 0.05) == 0:
            if way == "udp":
                farm.datagrams.receive(b" <3 1795246600 Rohan", SOURCE)
            else:
                peer.send("<3", T)
        farm.wait(0.05)
        at += [farm.clock.seconds()] * len(farm.udp.take(SOURCE) if way == "udp" else peer.take())
    assert 19 <= len(at) <= 21
    gaps = [two - one for one, two in pairwise(at)]
    assert max(gaps[1:]) <= seconds + 0.11
    assert min(gaps[1:]) >= seconds - 0.11


@pytest.mark.parametrize(
    ("info", "multiple"), [({}, 3), ({"liveness": 4}, 4), ({"liveness": 5}, 5), ({"liveness": 50}, 5)]
)
def test_d38_a_silent_service_is_disconnected_after_some_intervals(
    farm: DbpFarm, info: dict[str, Any], multiple: int
) -> None:
    """ "A peer MUST consider the other peer "disconnected" if no heartbeat arrives within some multiple of that
    interval (usually 3-5)." """
    farm.dealer().registered("Rohan", **INFO, **info)
    farm.wait(multiple - 0.01)
    assert active(farm) == ["Rohan"]
    farm.wait(0.2)
    assert active(farm) == []
    assert farm.hostports("Rohan") == []


@pytest.mark.parametrize("kind", ["dealer", "req", "hermes"])
def test_d40_a_service_that_disconnected_is_sent_nothing(farm: DbpFarm, kind: str) -> None:
    """ "If the broker detects that the worked has disconnected, it SHOULD stop sending it messages of any type." """
    peer: DbpPeer = getattr(farm, kind)(THERE).registered("Rohan", **INFO)
    farm.datagrams.receive(b" <3 1795246600 Rohan", SOURCE)
    farm.wait(4.0)
    assert active(farm) == []
    asked = len(farm.probes.asked)
    peer.take()
    farm.udp.take(SOURCE)
    farm.wait(20.0)
    farm.catalogue.part_all()
    assert peer.take() == []
    assert farm.udp.take(SOURCE) == []
    assert len(farm.probes.asked) == asked
