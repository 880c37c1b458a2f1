"""The control flow of MTL from outside: framing, sessions, profiles, leases, and requests that are none.

The file is longer than others: its tests share one daemon, which is expensive to start.
"""

from __future__ import annotations

import json
import socket
import struct
import threading
from collections.abc import Iterator
from typing import Any

import pytest
import zmq

from tests.integration.daemon import Daemon
from tests.integration.mc0_clients import counters
from tests.integration.mtl_peers import CANARY, MTL, Control, Peers, Reply
from tests.patience import PATIENCE, until

OPENING = {"protocol": MTL}

SCALARS = [b"42", b'"text"', b"true", b"null", b"-0.5e3"]


@pytest.fixture
def control(peers: Peers) -> Control:
    """A peer that is let in, in the profile "test"."""
    return peers.control().opened("test")


# framing and routing


def _exactly(sock: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        more = sock.recv(size - len(data))
        assert more
        data += more
    return data


def ready_of(address: str) -> dict[bytes, bytes]:
    """The metadata of the socket at the other side, by ZeroMQ's handshake (ZMTP 3.0, NULL)."""
    host, _, port = address.removeprefix("tcp://").partition(":")
    with socket.create_connection((host, int(port)), PATIENCE) as sock:
        sock.sendall(b"\xff" + bytes(8) + b"\x7f\x03\x00NULL" + bytes(16) + b"\0" + bytes(31))
        greeting = _exactly(sock, 64)
        assert (greeting[:1], greeting[9:10], greeting[12:16]) == (b"\xff", b"\x7f", b"NULL")
        mine = b"\x05READY\x0bSocket-Type\0\0\0\x06DEALER"
        sock.sendall(b"\x04" + len(mine).to_bytes(1) + mine)
        flags, size = _exactly(sock, 2)
        assert flags == 4
        command = _exactly(sock, size)
    assert command.startswith(b"\x05READY")
    metadata, at = {}, 6
    while at < len(command):
        name = command[at + 1 : at + 1 + command[at]]
        at += 1 + command[at]
        [length] = struct.unpack_from(">I", command, at)
        metadata[name] = command[at + 4 : at + 4 + length]
        at += 4 + length
    return metadata


def test_G01_the_control_socket_is_a_router(peers: Peers) -> None:
    assert ready_of(peers.address)[b"Socket-Type"] == b"ROUTER"


def test_G02_D11_the_data_socket_is_a_router_of_its_own(peers: Peers, control: Control) -> None:
    port = control.lease("Reader").body["port"]
    assert peers.data == f"tcp://127.0.0.1:{port}" != peers.address
    assert ready_of(peers.data)[b"Socket-Type"] == b"ROUTER"


def test_G03_a_req_socket_gets_a_code_and_an_object(peers: Peers) -> None:
    req = peers.control(zmq.REQ)
    assert req.open().code == "201"
    assert req.profile("test") == Reply("200", {"status": "OK"})
    assert req.ask("Connection.Profile", {"profile": "nonsense"}).code == "400"
    req.socket.send_multipart([b"Connection.Profile", b'{"profile": "test"}'])
    assert req.socket.recv_multipart() == [b"200", b'{"status":"OK"}']


def test_G04_a_dealer_gets_its_delimiter_back(control: Control) -> None:
    control.socket.send_multipart([b"", b"Connection.Profile", b'{"profile": "test"}'])
    assert control.socket.recv_multipart() == [b"", b"200", b'{"status":"OK"}']


def test_G05_there_is_one_reply_to_each_request_and_none_without_one(peers: Peers, control: Control) -> None:
    for _ in range(3):
        assert control.profile("test").code == "200"
    assert control.heard() == []
    assert peers.control().hears_nothing(0.1)


def test_G06_E07_every_reply_is_an_object_with_a_status(peers: Peers) -> None:
    control = peers.control()
    replies = [control.profile("test"), control.open(), control.profile("nonsense"), control.profile("test")]
    replies += [control.lease("Reader"), control.lease("Reader", confirm="full"), control.ask(CANARY, {})]
    replies += [control.open("nowhere"), control.ask("x" * 65, {})]
    assert [(reply.code, reply.body["status"]) for reply in replies] == [
        ("400", "Bad Request"),
        ("201", "Ready"),
        ("400", "Bad Request"),
        ("200", "OK"),
        ("202", "Data Lease"),
        ("501", "Not implemented"),
        ("501", "Not implemented"),
        ("403", "Forbidden"),
        ("413", "Payload Too Large"),
    ]


@pytest.mark.parametrize("name", ["connection.open", "CONNECTION.OPEN", "cOnNeCtIoN.oPeN"])
def test_G07_names_of_commands_have_no_case(peers: Peers, name: str) -> None:
    assert peers.control().ask(name, OPENING).code == "201"


def test_G08_a_session_belongs_to_one_peer(peers: Peers, control: Control) -> None:
    other = peers.control()
    assert other.lease("Reader").body == {"status": "Bad Request", "reason": "open"}
    assert other.open().code == "201"
    assert other.lease("Reader").code == "400"  # it has no profile
    assert control.lease("Reader").code == "202"


def test_G08_who_comes_later_has_none_with_the_same_identity(mtl: Daemon, peers: Peers) -> None:
    one = peers.control(routing_id=b"chosen").opened("test")
    before = counters(mtl)["mtl_sessions.ended"]
    one.close()
    until(lambda: counters(mtl)["mtl_sessions.ended"] > before)
    assert peers.control(routing_id=b"chosen").lease("Reader").body["reason"] == "open"


def test_G09_the_whole_envelope_comes_back(peers: Peers) -> None:
    """The REQ adds a number to each request, and does not take a reply with another one."""
    req = peers.control(zmq.REQ, req_relaxed=1, req_correlate=1)
    assert req.open().code == "201"
    req.send("Connection.Profile", b"this is not JSON")
    assert req.profile("test").code == "200"
    dealer = peers.control()
    dealer.socket.send_multipart([b"one", b"\0two", b"", b"Connection.Open", json.dumps(OPENING).encode()])
    assert dealer.socket.recv_multipart()[:4] == [b"one", b"\0two", b"", b"201"]


class Proxy:
    """A ROUTER and a DEALER before the broker, in a thread."""

    def __init__(self, address: str) -> None:
        self._context: zmq.Context[Any] = zmq.Context()
        front, back = self._context.socket(zmq.ROUTER), self._context.socket(zmq.DEALER)
        front.linger = back.linger = 0
        self.address = f"tcp://127.0.0.1:{front.bind_to_random_port('tcp://127.0.0.1')}"
        back.connect(address)
        self._thread = threading.Thread(target=self._run, args=(front, back), daemon=True)
        self._thread.start()

    def _run(self, *sockets: zmq.Socket[bytes]) -> None:
        try:
            zmq.proxy(*sockets)
        except zmq.ContextTerminated:
            for each in sockets:
                each.close()

    def close(self) -> None:
        """End it."""
        self._context.term()
        self._thread.join()


@pytest.fixture
def proxied(peers: Peers) -> Iterator[Peers]:
    """Peers behind a proxy."""
    proxy = Proxy(peers.address)
    with Peers(proxy.address, peers.data) as proxied:
        yield proxied
    proxy.close()


def test_G10_clients_behind_a_proxy_have_a_session_each(peers: Peers, proxied: Peers) -> None:
    one, other, req = proxied.control(), proxied.control(), proxied.control(zmq.REQ)
    assert one.opened("test").lease("Reader").code == "202"
    assert other.lease("Reader").body["reason"] == "open"
    assert req.opened("topic").lease("Writer", "t").code == "202"
    flow = peers.flow()
    assert flow.lease(one.token("Reader")) == "200"


def test_G11_requests_may_be_pipelined_and_are_answered_in_order(control: Control) -> None:
    kinds = [
        ("200", "Connection.Profile", {"profile": "test"}),
        ("400", "Connection.Profile", {}),
        ("202", "Connection.Writer", {"resources": []}),
        ("501", "Connection.Reader", {"resources": [], "confirm": "full"}),
        ("501", CANARY, {}),
        ("413", "x" * 100, {}),
    ]
    sent = [kinds[number * number % 17 % len(kinds)] for number in range(64)]
    for _, command, body in sent:
        control.send(command, body)
    assert [control.receive().code for _ in sent] == [code for code, _, _ in sent]
    assert control.heard() == []


# Connection.Open


@pytest.mark.parametrize(
    ("command", "body"),
    [
        ("Connection.Profile", {"profile": "test"}),
        ("Connection.Reader", {"resources": [], "confirm": "none"}),
        ("Connection.Writer", {"resources": [], "confirm": "none"}),
        ("Connection.Authorize", {"mechanism": "ANONYMOUS", "response": ""}),
    ],
)
def test_A01_L01_open_comes_first(peers: Peers, command: str, body: object) -> None:
    assert peers.control().ask(command, body) == Reply("400", {"status": "Bad Request", "reason": "open"})


def test_A02_A03_A22_who_need_not_say_who_it_is_is_ready_at_once(peers: Peers) -> None:
    reply = peers.control().open()
    assert (reply.code, reply.body["status"]) == ("201", "Ready")
    assert set(reply.body["profiles"]) == {"test", "registry", "topic", "queue", "service"}
    assert all(isinstance(name, str) for name in reply.body["profiles"])
    assert reply.body["limits"] | {"window": 100, "heartbeat": 5000, "body": 2_000_000} == reply.body["limits"]


@pytest.mark.parametrize(
    ("code", "protocol"),
    [
        ("400", {}),
        ("400", {"protocol": None}),
        ("400", {"protocol": "MTL"}),
        ("400", {"protocol": {"name": "MTL"}}),
        ("400", {"protocol": {"name": "mtl", "version": 1}}),
        ("400", {"protocol": {"name": "AMQP", "version": 1}}),
        ("400", {"protocol": {"name": "MTL", "version": "1"}}),
        ("400", {"protocol": {"name": "MTL", "version": True}}),
        ("501", {"protocol": {"name": "MTL", "version": 2}}),
        ("501", {"protocol": {"name": "MTL", "version": 0}}),
    ],
)
def test_A14_another_protocol_is_not_spoken(peers: Peers, code: str, protocol: dict[str, Any]) -> None:
    control = peers.control()
    reply = control.ask("Connection.Open", protocol)
    assert reply.code == code
    assert code == "400" or reply.body["protocol"] == MTL
    assert control.profile("test").body["reason"] == "open"


@pytest.mark.parametrize("host", [None, 1, [], {}, True])
def test_A15_a_virtual_host_is_text(peers: Peers, host: object) -> None:
    assert peers.control().ask("Connection.Open", {**OPENING, "virtual-host": host}).code == "400"


@pytest.mark.parametrize("host", ["nowhere", "", "//", "Elsewhere", "x" * 300, "/\n"])
def test_A16_a_virtual_host_that_is_not_there_is_forbidden(peers: Peers, host: str) -> None:
    control = peers.control()
    reply = control.open(host)
    assert (reply.code, reply.body["status"]) == ("403", "Forbidden")
    assert control.profile("test").body["reason"] == "open"
    assert control.open("elsewhere").code == "201"


def test_A17_members_that_are_not_known_do_not_matter(peers: Peers) -> None:
    more = {"locale": "en", "": None, "deep": [{"er": 1}]}
    control = peers.control()
    assert control.ask("Connection.Open", {"protocol": {**MTL, **more}, **more}).code == "201"
    assert control.ask("Connection.Profile", {"profile": "test", **more}).code == "200"
    assert control.ask("Connection.Reader", {"resources": [], "confirm": "none", **more}).code == "202"


def test_A18_a_second_open_starts_over_and_data_flows_go_on(peers: Peers, control: Control) -> None:
    reader, writer = peers.flow(), peers.flow()
    assert reader.lease(control.token("Reader")) == reader.summon("resource") == "200"
    assert writer.lease(control.token("Writer")) == "200"
    assert control.open().code == "201"
    assert control.lease("Reader").code == "400"
    writer.write(b"x")
    assert reader.content().body == b"x"
    assert control.opened("test").lease("Reader").code == "202"


def test_A20_an_authorize_where_nobody_has_to_say_who_it_is_is_refused(control: Control) -> None:
    assert control.authorize("SCRAM-SHA-256", b"n,,n=user,r=nonce").code == "400"
    assert control.lease("Reader").code == "202"


# Connection.Profile


def test_P01_P04_every_profile_that_is_listed_can_be_chosen(peers: Peers) -> None:
    control = peers.control()
    for name in control.open().body["profiles"]:
        assert control.profile(name) == Reply("200", {"status": "OK"})


def test_P02_P06_another_one_is_a_bad_request_and_the_earlier_one_stays(control: Control) -> None:
    for name in ("nonsense", "", "test ", "\u212a"):
        reply = control.profile(name)
        assert (reply.code, reply.body["status"]) == ("400", "Bad Request")
    assert control.lease("Reader").code == "202"


@pytest.mark.parametrize("name", ["TEST", "Test", "tEsT"])
def test_P03_names_of_profiles_have_no_case(peers: Peers, name: str) -> None:
    control = peers.control().opened(name)
    assert control.lease("Reader", "resource").code == "202"


@pytest.mark.parametrize("body", [{}, {"profile": None}, {"profile": 1}, {"profile": ["test"]}, {"Profile": "test"}])
def test_P05_a_profile_is_text(control: Control, body: object) -> None:
    assert control.ask("Connection.Profile", body).code == "400"


def test_the_registry_is_in_the_first_virtual_host_only(peers: Peers) -> None:
    control = peers.control()
    assert "registry" not in control.open("elsewhere").body["profiles"]
    assert control.profile("registry").code == "400"


# data leases


@pytest.mark.parametrize("side", ["Reader", "Writer"])
def test_L01_a_lease_needs_a_profile(peers: Peers, side: str) -> None:
    control = peers.control()
    assert control.open().code == "201"
    assert control.lease(side).code == "400"


@pytest.mark.parametrize("side", ["Reader", "Writer"])
def test_L02_L03_a_lease_is_a_short_string_and_a_port(control: Control, side: str) -> None:
    reply = control.lease(side, "resource", confirm="none")
    assert reply.code == "202"
    assert reply.body.keys() == {"status", "port", "lease"}
    assert reply.body["status"] == "Data Lease"
    assert type(reply.body["port"]) is int
    assert 0 < reply.body["port"] < 65536
    lease = reply.body["lease"]
    assert 1 <= len(lease.encode()) <= 255
    assert lease.isprintable()


@pytest.mark.parametrize("profile", ["test", "registry", "topic", "queue", "service"])
def test_L04_no_resources_are_all_of_them(peers: Peers, profile: str) -> None:
    control = peers.control().opened(profile)
    assert [control.lease(side).code for side in ("Reader", "Writer")] == ["202", "202"]


@pytest.mark.parametrize(
    ("profile", "side"), [("test", "Reader"), ("test", "Writer"), ("registry", "Reader"), ("topic", "Reader")]
)
def test_L05_T07_confirmation_is_not_implemented_where_there_is_none(peers: Peers, profile: str, side: str) -> None:
    control = peers.control().opened(profile)
    assert control.lease(side, confirm="full") == Reply("501", {"status": "Not implemented"})


@pytest.mark.parametrize("confirm", ["", "some", "FULL", "none | full", None, True, 1, ["none"]])
def test_L06_confirmation_is_none_or_full(control: Control, confirm: object) -> None:
    for side in ("Reader", "Writer"):
        assert control.lease(side, confirm=confirm).code == "400"


@pytest.mark.parametrize(
    "body", [{}, {"resources": None}, {"resources": "resource"}, {"resources": [1]}, {"resources": [None]}]
)
def test_L07_resources_are_a_list_of_texts(control: Control, body: dict[str, Any]) -> None:
    for side in ("Reader", "Writer"):
        assert control.ask(f"Connection.{side}", {"confirm": "none", **body}).code == "400"


@pytest.mark.parametrize("name", ["", "x" * 256, "é" * 128, "a\0b", "a\nb", "\x7f", "\ud800"])
def test_L08_a_resource_has_a_name_that_fits_a_short_string(peers: Peers, name: str) -> None:
    control = peers.control().opened("topic")
    for side in ("Reader", "Writer"):
        assert control.lease(side, "good", name, confirm="none").code == "400"
        assert control.lease(side, "x" * 255, "é" * 127).code == "202"


def test_L09_leases_differ_and_cannot_be_guessed(control: Control) -> None:
    leases = {control.token("Reader") for _ in range(20)}
    assert len(leases) == 20
    assert all(len(lease) >= 22 for lease in leases)
    assert len({lease[:4] for lease in leases}) > 15


def test_L10_confirmation_that_is_left_out_is_the_profiles_own(peers: Peers) -> None:
    reader, writer = peers.reader("queue", "own confirmation"), peers.writer("queue", "own confirmation")
    assert writer.settled(writer.write(b"x")) == []
    [content] = reader.contents(1)
    assert content.properties["delivery-count"] == 1
    test = peers.writer("test", "resource")
    test.write(b"x")
    assert test.heard() == []


def test_L11_a_resource_that_cannot_be_is_a_bad_request(peers: Peers) -> None:
    for profile in ("test", "registry"):
        assert peers.control().opened(profile).lease("Reader", "nonsense").code == "400"


def test_the_window_that_a_reader_gets_is_told(peers: Peers) -> None:
    control = peers.control().opened("queue")
    assert (
        control.lease("Reader", "q").body["window"] == control.lease("Reader", "q", window=None).body["window"] == 100
    )
    assert control.lease("Reader", "q", window=7).body["window"] == 7
    assert control.lease("Reader", "q", window=10**9).body["window"] == 1000
    for side, confirm in (("Reader", "none"), ("Writer", "full")):
        assert "window" not in control.lease(side, "q", window=7, confirm=confirm).body
    for window in (0, -1, 1.5, "7"):
        assert control.lease("Reader", "q", window=window).code == "400"


def test_a_lease_has_a_limited_number_of_resources(peers: Peers) -> None:
    control = peers.control().opened("topic")
    assert control.lease("Reader", *(f"t{number}" for number in range(1_000))).code == "202"
    assert control.lease("Reader", *(f"t{number}" for number in range(1_001))).code == "413"


def test_a_session_has_a_limited_number_of_leases(peers: Peers) -> None:
    control = peers.control().opened("test")
    for _ in range(100):
        control.token("Reader")
    reply = control.lease("Reader")
    assert (reply.code, reply.body["status"]) == ("429", "Too Many Requests")


# requests that are none


def dropped(mtl: Daemon, control: Control, fault: str, *messages: list[bytes]) -> None:
    """Each of these messages is dropped for that fault."""
    before = counters(mtl)[f"mtl_ill_formed.{fault}"]
    for frames in messages:
        control.socket.send_multipart(frames)
    assert control.heard() == []
    assert counters(mtl)[f"mtl_ill_formed.{fault}"] == before + len(messages)


def test_E01_another_number_of_frames_is_dropped(mtl: Daemon, control: Control) -> None:
    dropped(mtl, control, "frames", *([b"", *[b"{}"] * count] for count in (0, 1, 3, 200)))


@pytest.mark.parametrize(
    ("fault", "body"),
    [
        *[("json", body) for body in (b"", b"{", b"nonsense", b"{'profile': 'test'}", b'{"profile": "test",}')],
        *[("json", body) for body in (b"{} {}", b"\0", b'{"a": 01}', b'{"a": "\n"}')],
        *[("encoding", body) for body in (b"\xff", b'{"profile": "\xe9"}', '{"profile": "test"}'.encode("utf-16"))],
        *[("json", body) for body in (b"NaN", b'{"profile": NaN}', b'{"a": Infinity}', b'{"a": [-Infinity]}')],
    ],
)
def test_E02_E03_E04_a_body_that_is_not_json_is_dropped(mtl: Daemon, control: Control, fault: str, body: bytes) -> None:
    dropped(mtl, control, fault, *([b"", command, body] for command in (b"Connection.Profile", CANARY.encode())))


@pytest.mark.parametrize("body", [b"[]", b"[{}]", *SCALARS])
def test_E05_json_that_is_no_object_is_a_bad_request(control: Control, body: bytes) -> None:
    for command in ("Open", "Authorize", "Profile", "Reader", "Writer"):
        assert control.ask(f"Connection.{command}", body).code == "400"
    assert control.lease("Reader").code == "202"


@pytest.mark.parametrize(
    "command", ["Connection.Close", "connection.", "Open", "Connection.Open ", "Connection\u2024Open"]
)
def test_E06_an_unknown_command_is_not_implemented(peers: Peers, command: str) -> None:
    reply = peers.control().ask(command, OPENING)
    assert (reply.code, reply.body["status"]) == ("501", "Not implemented")


@pytest.mark.parametrize(
    ("code", "body"),
    [
        ("413", b'{"profile": %b1%b}' % (b"[" * 30_000, b"]" * 30_000)),
        ("", b'{"profile": ' + b"[" * 60_000),
        ("413", b'{"a":' * 9_000 + b"1" + b"}" * 9_000),
        ("400", b'{"profile": %b}' % (b"9" * 5_000)),
        ("200", b'{"profile": "test", "n": -%b.%be-%b}' % ((b"9" * 5_000,) * 3)),
        ("400", b'{"profile": "\\ud800"}'),
        ("400", b'{"profile": "test", "\\udfff": 1}'),
        ("200", b'{"profile": "nonsense", "profile": "test"}'),
        ("400", b'{"profile": "test", "profile": "nonsense"}'),
        ("", b'\xef\xbb\xbf{"profile": "test"}'),
    ],
    ids=["deep", "deep and cut", "deep objects", "digits", "long numbers", "surrogate", "in a key", "twice",
         "twice wrong", "byte order mark"],
)  # fmt: skip
def test_E08_what_breaks_readers_of_json_is_answered_or_dropped(control: Control, code: str, body: bytes) -> None:
    control.send("Connection.Profile", body)
    assert [reply.code for reply in control.heard()] == ([code] if code else [])
    assert control.profile("test").code == "200"


@pytest.mark.parametrize(
    ("code", "command"),
    [("501", b""), ("501", bytes(range(64))), ("501", b"\xff"), ("413", b"x" * 65_536), ("413", b"\0" * 1_000_000)],
    ids=["empty", "binary", "no UTF-8", "64 KiB", "a megabyte"],
)
def test_E09_commands_may_be_any_bytes(peers: Peers, code: str, command: bytes) -> None:
    control = peers.control()
    assert control.ask(command, OPENING).code == code
    assert control.open().code == "201"


def test_E10_what_has_no_delimiter_is_dropped(mtl: Daemon, control: Control) -> None:
    request = [b"Connection.Profile", b'{"profile": "test"}']
    dropped(mtl, control, "delimiter", request, [b"x", *request])


def test_E11_a_request_that_is_too_large_is_refused_or_its_connection_closed(peers: Peers, control: Control) -> None:
    large = peers.control()
    assert large.ask("Connection.Open", json.dumps({**OPENING, "x": "x" * 70_000}).encode()).code == "413"
    assert large.open().code == "201"
    large.send("Connection.Open", b" " * (8 << 20))
    assert control.lease("Reader").code == "202"

    def answered() -> bool:
        large.send("Connection.Profile", {"profile": "test"})  # which may be lost with the connection
        return not large.hears_nothing(0.2)

    until(answered)
    assert large.receive().body["reason"] == "open", "it is another connection now"


def test_too_many_routing_frames_are_dropped(mtl: Daemon, control: Control) -> None:
    opening = [b"", b"Connection.Open", json.dumps(OPENING).encode()]
    dropped(mtl, control, "envelope", [*[b"hop"] * 17, *opening], [b"x" * 1_025, *opening])
    control.socket.send_multipart([*[b"hop"] * 16, *opening])
    assert control.socket.recv_multipart()[:18] == [*[b"hop"] * 16, b"", b"201"]
