"""Routes: clients behind proxies, each a peer of its own to the sessions, over a recording ROUTER."""

from __future__ import annotations

import attrs
import pytest
from twisted.internet.task import Clock

from broker.net.peer_interfaces import MAX_ENVELOPE, MAX_HOPS, Part, Sender, Sent
from broker.net.refusal_log import Counters, RefusalLog
from broker.wires.common.routes import MAX_ALL_ROUTES, MAX_ROUTES, Routes
from tests.recording.router import Line, RecordingRouter

PROXY, DIRECT = b"proxy", b"direct"


class Echo:
    """A wire that answers each message by its own frames, and keeps what it is called with."""

    def __init__(self, routes: Routes) -> None:
        self._routes = routes
        self.received: list[tuple[bytes, int, list[Part], str]] = []
        self.ended: list[int] = []
        self.roomy: list[bytes] = []
        self.needed: set[int] = set()

    def receive(self, identity: bytes, frames: list[Part], connection: int) -> None:
        self.received.append((identity, connection, frames, self._routes.sender().socket_type))
        self._routes.reply(identity, frames)

    def closed(self, connection: int) -> None:
        self.ended.append(connection)

    def needs(self, connection: int) -> bool:
        return connection in self.needed

    def room(self, identity: bytes) -> None:
        self.roomy.append(identity)


class Farm:
    """A wire behind routes, with the connections of a proxy and of a peer."""

    def __init__(self, socket_type: str = "DEALER") -> None:
        self.counters = Counters()
        self.router = RecordingRouter(fan_out=True, max_replies=5)
        refusal_log = RefusalLog(self.counters, Clock())
        self.routes = Routes(self.router, "test", lambda frames: frames[1:2] == [b"VERB"], refusal_log)
        self.wire = Echo(self.routes)
        self.routes.serve(self.wire)
        self.sender = Sender("192.0.2.1", "", socket_type)
        self.lines: dict[bytes, Line] = {}
        for identity in (PROXY, DIRECT):
            line = self.router.connect(identity)
            assert line is not None
            self.lines[identity] = line

    def say(self, *frames: bytes, identity: bytes = PROXY, address: str = "192.0.2.1") -> list[list[bytes]]:
        """Have a message arrive. Returns what the peer of the connection was sent."""
        line = self.lines[identity]
        with self.router.receiving(attrs.evolve(self.sender, address=address)):
            self.routes.receive(identity, list(frames), line.number)
        return line.take()


@pytest.fixture
def farm() -> Farm:
    return Farm()


def test_a_direct_peer_is_passed_on_as_it_is(farm: Farm) -> None:
    assert farm.say(b"", b"hello", identity=DIRECT) == [[b"", b"hello"]]
    assert farm.wire.received == [(DIRECT, 2, [b"", b"hello"], "DEALER")]
    assert len(farm.routes) == 0


def test_the_envelope_goes_back_with_each_answer(farm: Farm) -> None:
    for envelope in ([b"\0abcd"], [b"\0abcd", b"\1\2\3\4"], [b"x"] * MAX_HOPS, [b"x" * MAX_ENVELOPE]):
        assert farm.say(*envelope, b"", b"hello", b"") == [[*envelope, b"", b"hello", b""]]
        assert farm.wire.received[-1][2:] == ([b"", b"hello", b""], "REQ")
    assert len({identity for identity, *_ in farm.wire.received}) == len(farm.routes) == 4


def test_a_client_behind_a_proxy_keeps_its_identity_and_number(farm: Farm) -> None:
    farm.say(b"a", b"", b"1")
    farm.say(b"b", b"", b"2")
    farm.say(b"a", b"", b"3")
    first, second, third = farm.wire.received
    assert first[:2] == third[:2] != second[:2]
    assert first[0].startswith(b"\0")
    assert first[1] < 0


def test_frames_are_not_joined_to_another_route(farm: Farm) -> None:
    farm.say(b"ab", b"c", b"", b"1")
    farm.say(b"a", b"bc", b"", b"1")
    assert farm.wire.received[0][0] != farm.wire.received[1][0]


def test_the_number_of_a_request_is_no_route() -> None:
    farm = Farm("REQ")
    for number in (b"\0\0\0\1", b"\0\0\0\2"):
        assert farm.say(number, b"", b"hello") == [[number, b"", b"hello"]]
    assert [received[:2] for received in farm.wire.received] == [(PROXY, 1)] * 2
    assert len(farm.routes) == 0


def test_a_message_without_an_empty_frame_is_passed_on(farm: Farm) -> None:
    farm.say(b"\x08", b"body")
    farm.say(b"x", b"VERB", b"", b"text")
    assert [received[2] for received in farm.wire.received] == [[b"\x08", b"body"], [b"x", b"VERB", b"", b"text"]]
    assert len(farm.routes) == 0


@pytest.mark.parametrize("envelope", [[b"x"] * (MAX_HOPS + 1), [b"x" * MAX_ENVELOPE, b"y"], [b"x"] * 10_000])
def test_an_envelope_that_is_too_long_is_refused(farm: Farm, envelope: list[bytes]) -> None:
    assert farm.say(*envelope, b"", b"hello") == []
    assert farm.wire.received == []
    assert farm.counters.all() == {"test_refused.parameter": 1}


def test_messages_reach_each_route(farm: Farm) -> None:
    farm.say(b"a", b"", b"1")
    farm.say(b"b", b"", b"1")
    farm.say(b"", b"1", identity=DIRECT)

    class Receiver:
        sent = 0.0

        def __init__(self, identity: bytes) -> None:
            self.identity = identity

    receivers = [Receiver(identity) for identity, *_ in farm.wire.received]
    assert farm.routes.send_all(receivers, [b"", b"news"], 5.0) == []
    assert [each.sent for each in receivers] == [5.0] * 3
    assert farm.lines[PROXY].take() == [[b"a", b"", b"news"], [b"b", b"", b"news"]]
    assert farm.lines[DIRECT].take() == [[b"", b"news"]]
    farm.router.close(PROXY)
    failed = farm.routes.send_all(receivers, [b"", b"news"], 6.0)
    assert [(receiver, sent) for receiver, sent in failed] == [(each, Sent.GONE) for each in receivers[:2]]


def test_routes_end_with_their_connection(farm: Farm) -> None:
    farm.say(b"a", b"", b"1")
    farm.say(b"b", b"", b"1")
    farm.router.close(PROXY)
    assert farm.wire.ended == [-1, -2, 1]
    assert len(farm.routes) == 0
    assert farm.routes.send(farm.wire.received[0][0], [b"", b"late"]) is Sent.GONE


def test_the_least_recently_used_route_makes_room(farm: Farm) -> None:
    for number in range(MAX_ROUTES):
        farm.say(b"%d" % number, b"", b"1")
    farm.say(b"0", b"", b"1")
    farm.say(b"one more", b"", b"1")
    assert farm.wire.ended == [-2]
    assert len(farm.routes) == MAX_ROUTES
    farm.say(b"1", b"", b"1")
    assert farm.wire.ended == [-2, -3]
    assert farm.wire.received[-1][0] == farm.wire.received[1][0], "the identity is that of its envelope"


def fill(farm: Farm, count: int, address: str = "192.0.2.1") -> None:
    """Make so many routes on other connections."""
    for number in range(count):
        identity = b"other %d" % (number // MAX_ROUTES)
        if identity not in farm.lines:
            line = farm.router.connect(identity)
            assert line is not None
            farm.lines[identity] = line
        farm.say(b"%d" % number, b"", b"1", identity=identity, address=address)


def test_routes_of_the_address_with_the_most_make_room(farm: Farm) -> None:
    """A stranger with all routes that there may be ends no idle client behind another address."""
    for number in range(MAX_ROUTES):
        farm.say(b"idle %d" % number, b"", b"1")
    fill(farm, MAX_ALL_ROUTES, "192.0.2.66")
    assert farm.wire.ended == list(range(-MAX_ROUTES - 1, -MAX_ROUTES * 2 - 1, -1))
    farm.say(b"new", b"", b"1", identity=DIRECT, address="192.0.2.7")
    assert farm.wire.ended[MAX_ROUTES:] == [-MAX_ROUTES * 2 - 1]
    assert len(farm.routes) == MAX_ALL_ROUTES


def test_the_least_recently_used_route_of_all_connections_makes_room(farm: Farm) -> None:
    farm.say(b"first", b"", b"1")
    farm.say(b"second", b"", b"1", identity=DIRECT)
    fill(farm, MAX_ALL_ROUTES - 2)
    farm.say(b"first", b"", b"1")
    assert farm.wire.ended == []
    farm.say(b"third", b"", b"1")
    farm.say(b"fourth", b"", b"1")
    assert farm.wire.ended == [-2, -3]
    assert len(farm.routes) == MAX_ALL_ROUTES


def test_the_only_route_of_a_connection_makes_room_for_the_next_one(farm: Farm) -> None:
    farm.say(b"first", b"", b"1")
    fill(farm, MAX_ALL_ROUTES - 1)
    assert farm.say(b"second", b"", b"1") == [[b"second", b"", b"1"]]
    assert farm.wire.ended == [-1]
    farm.router.close(PROXY)
    assert farm.wire.ended == [-1, -MAX_ALL_ROUTES - 1, 1]


def test_a_wire_ends_a_route_alone(farm: Farm) -> None:
    farm.say(b"a", b"", b"1")
    farm.say(b"b", b"", b"1")
    identity, number = farm.wire.received[0][:2]
    farm.routes.end(identity, number)
    farm.routes.end(identity, number)
    assert farm.wire.ended == [number]
    assert PROXY in farm.router.lines
    assert farm.say(b"a", b"", b"again") == [[b"a", b"", b"again"]], "a further message begins another one"
    farm.routes.end(PROXY, 1)
    assert PROXY not in farm.router.lines


def test_room_is_reported_to_each_route(farm: Farm) -> None:
    farm.say(b"a", b"", b"1")
    identity = farm.wire.received[0][0]
    farm.lines[PROXY].have_room(0)
    assert farm.routes.send(identity, [b"", b"news"]) is Sent.FULL
    farm.router.read(PROXY)
    assert farm.wire.roomy == [PROXY, identity]


def test_a_proxy_is_needed_while_one_of_its_clients_is(farm: Farm) -> None:
    farm.say(b"a", b"", b"1")
    farm.say(b"b", b"", b"1")
    assert not farm.routes.needs(1)
    for number in (1, farm.wire.received[1][1]):
        farm.wire.needed = {number}
        assert farm.routes.needs(1)
        assert not farm.routes.needs(2)
