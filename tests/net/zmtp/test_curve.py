"""The handshake of CURVE: both of our sides, and what a server or a client must refuse."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import attrs
import pytest
from nacl.bindings import crypto_box_keypair

from broker.net.zmtp import frames
from broker.net.zmtp.curve import COOKIE_LIFE, Cookies, CurveClient, CurveServer, Security
from broker.net.zmtp.frames import Command, Fault, FrameLimits, ZmtpError
from broker.net.zmtp.machine import Output, ZmtpState, error
from broker.net.zmtp.sealing import SODIUM
from tests.net.zmtp.curve_sides import (
    CLIENT,
    CLIENT_SECRET,
    SERVER,
    SERVER_SECRET,
    client_side,
    command_of,
    connect,
    fixed_boxes,
    received,
    sealing_of,
    security,
    server_side,
)

OURS = frames.own_metadata("ROUTER")
THEIRS = frames.own_metadata("DEALER", b"me")


class Now:
    """A clock that is set by hand."""

    def __init__(self) -> None:
        self.seconds = 1000.0

    def __call__(self) -> float:
        return self.seconds


class Handshake:
    """A server and a client of which each command is passed on by hand."""

    def __init__(self, cookies: Cookies | None = None, client: CurveClient | None = None) -> None:
        self.server = CurveServer(security(), cookies or Cookies(SODIUM, Now()))
        self.client = client or CurveClient(security(server=False), SERVER)
        self.server.begin(OURS)
        self.hello = command_of(self.client.begin(THEIRS))

    def welcome(self) -> Command:
        return command_of(self.server.take(self.hello).output)

    def initiate(self) -> Command:
        return command_of(self.client.take(self.welcome()).output)

    def ready(self) -> Command:
        assert self.server.take(self.initiate()).claim is not None
        return command_of(self.server.accept())


def refused(side: CurveServer | CurveClient, command: Command) -> str:
    """The reason why a command is refused."""
    with pytest.raises(ZmtpError) as caught:
        side.take(command)
    assert caught.value.fault is Fault.HANDSHAKE
    return caught.value.text


def altered(command: Command, at: int) -> Command:
    """The command with one bit changed."""
    data = bytearray(command.data)
    data[at] ^= 1
    return Command(command.name, bytes(data))


def impostor(**changes) -> CurveClient:
    """A client that makes its boxes in another way."""
    keys = {"public": CLIENT, "secret": CLIENT_SECRET} | changes
    return CurveClient(Security(SODIUM, sealing_of("python"), **keys), SERVER)


# both sides


def test_each_side_learns_the_key_and_the_metadata_of_the_other():
    claimed, proved = connect(server_side(), client_side())
    assert claimed.key == CLIENT
    assert claimed.properties == {"socket-type": b"DEALER", "identity": b"me"}
    assert proved.key == SERVER
    assert proved.properties["socket-type"] == b"ROUTER"


def test_a_handshake_may_come_byte_by_byte():
    server, client = server_side(), client_side()
    connect(server, client, lambda data: [data[at : at + 1] for at in range(len(data))])
    assert server.state is client.state is ZmtpState.TRAFFIC


def split_at(at: int) -> Callable[[bytes], Sequence[bytes]]:
    """A way of delivering bytes in two pieces."""
    return lambda data: [data[:at], data[at:]]


def test_a_handshake_may_be_split_at_every_position():
    cookies = Cookies(SODIUM, Now())
    for at in range(1, 600):
        server, client = server_side(cookies=cookies), client_side()
        connect(server, client, split_at(at))
        assert server.state is client.state is ZmtpState.TRAFFIC


def test_messages_pass_behind_the_handshake():
    server, client = server_side(), client_side()
    connect(server, client)
    assert client.encoder is not None
    assert received(server, client.encoder.message([b"a", b"b"])) == [[b"a", b"b"]]


def test_commands_have_the_layout_of_the_specification():
    boxes = fixed_boxes()
    server = CurveServer(security(boxes=boxes), Cookies(boxes, Now()))
    client = CurveClient(security(server=False, boxes=boxes), SERVER)
    server.begin(OURS)
    hello = client.begin(THEIRS)
    assert len(hello) == 2 + 200
    assert hello[:10] == b"\x04\xc8\x05HELLO\x01\x00"
    assert hello[10:82] == bytes(72)
    transient = hello[82:114]
    assert hello[114:122] == (1).to_bytes(8, "big")
    shared = SODIUM.shared(transient, SERVER_SECRET)
    assert SODIUM.open(hello[122:], b"CurveZMQHELLO---" + hello[114:122], shared) == bytes(64)

    welcome = server.take(command_of(hello)).output
    assert len(welcome) == 2 + 168
    data = command_of(welcome).data
    opened = SODIUM.open(data[16:], b"WELCOME-" + data[:16], shared)
    assert len(opened) == 32 + 96

    initiate = command_of(client.take(command_of(welcome)).output)
    assert initiate.data[:96] == opened[32:]
    assert initiate.data[96:104] == (2).to_bytes(8, "big")
    assert len(initiate.data) == 248 + len(THEIRS)


# the server


@pytest.mark.parametrize("length", [0, 1, 193, 195])
def test_a_hello_of_another_length_is_refused(length):
    handshake = Handshake()
    data = (handshake.hello.data + b"\0")[:length]
    assert refused(handshake.server, Command(b"HELLO", data)) == f"a HELLO of {length} bytes"


@pytest.mark.parametrize("name", [b"INITIATE", b"READY", b"WELCOME", b"hello"])
def test_another_command_in_place_of_hello_is_refused(name):
    handshake = Handshake()
    assert "instead of HELLO" in refused(handshake.server, Command(name, handshake.hello.data))


def test_another_version_is_refused():
    handshake = Handshake()
    assert refused(handshake.server, altered(handshake.hello, 0)) == "version 0 of CURVE"


@pytest.mark.parametrize("at", [74, 106, 113, 114, 193])
def test_an_altered_hello_is_refused(at):
    handshake = Handshake()
    assert refused(handshake.server, altered(handshake.hello, at)) == "the box of HELLO does not open"


def test_a_client_that_has_another_key_for_the_server_is_refused():
    other, _ = crypto_box_keypair()
    handshake = Handshake(client=CurveClient(security(server=False), other))
    assert refused(handshake.server, handshake.hello) == "the box of HELLO does not open"


def test_a_key_of_zeros_is_refused():
    handshake = Handshake()
    data = handshake.hello.data[:74] + bytes(32) + handshake.hello.data[106:]
    assert refused(handshake.server, Command(b"HELLO", data)) == "a key that is no key"


def test_a_hello_that_comes_twice_is_refused():
    handshake = Handshake()
    handshake.welcome()
    assert "instead of INITIATE" in refused(handshake.server, handshake.hello)


@pytest.mark.parametrize("at", [0, 20, 95])
def test_an_altered_cookie_is_refused(at):
    handshake = Handshake()
    assert "the cookie" in refused(handshake.server, altered(handshake.initiate(), at))


@pytest.mark.parametrize("at", [96, 103, 104, 200, -1])
def test_an_altered_initiate_is_refused(at):
    handshake = Handshake()
    assert refused(handshake.server, altered(handshake.initiate(), at)) == "the box of INITIATE does not open"


def test_a_truncated_initiate_is_refused():
    handshake = Handshake()
    data = handshake.initiate().data
    assert "INITIATE" in refused(handshake.server, Command(b"INITIATE", data[:247]))
    assert "INITIATE" in refused(handshake.server, Command(b"INITIATE", data[:-1]))


def test_an_initiate_cannot_be_played_to_another_connection():
    cookies = Cookies(SODIUM, Now())
    recorded = Handshake(cookies)
    initiate = recorded.initiate()
    assert recorded.server.take(initiate).claim is not None
    # The whole connection is played once more: the same HELLO is welcome, the INITIATE is not.
    again = CurveServer(security(), cookies)
    again.begin(OURS)
    again.take(recorded.hello)
    assert "the cookie is not that of this connection" in refused(again, initiate)


def test_the_cookie_of_another_client_is_refused():
    cookies = Cookies(SODIUM, Now())
    one, other = Handshake(cookies), Handshake(cookies)
    taken, initiate = one.initiate(), other.initiate()
    mixed = Command(b"INITIATE", taken.data[:96] + initiate.data[96:])
    assert "the cookie is not that of this connection" in refused(other.server, mixed)


def test_a_cookie_of_another_process_is_refused():
    handshake = Handshake(Cookies(fixed_boxes(), Now()))
    initiate = handshake.initiate()
    handshake.server._cookies = Cookies(SODIUM, Now())
    assert "the cookie is not that of this connection" in refused(handshake.server, initiate)


@pytest.mark.parametrize(("age", "valid"), [(0.0, True), (COOKIE_LIFE * 1.9, True), (COOKIE_LIFE * 2.1, False)])
def test_a_cookie_is_valid_until_its_key_is_replaced_twice(age, valid):
    now = Now()
    cookies = Cookies(SODIUM, now)
    cookie = cookies.seal(bytes(64))
    for _ in range(4):
        now.seconds += age / 4
        cookies.seal(b"of another connection")
    if valid:
        assert cookies.open(cookie) == bytes(64)
    else:
        with pytest.raises(ValueError, match="open"):
            cookies.open(cookie)


def test_a_cookie_is_too_old_also_where_nothing_happened_meanwhile():
    now = Now()
    cookies = Cookies(SODIUM, now)
    cookie = cookies.seal(bytes(64))
    now.seconds += COOKIE_LIFE * 2
    with pytest.raises(ValueError, match="open"):
        cookies.open(cookie)


def test_a_counter_that_does_not_grow_from_hello_to_initiate_is_refused():
    client = CurveClient(security(server=False), SERVER)
    client._counter = 5
    handshake = Handshake(client=client)
    welcome = handshake.welcome()
    client._counter = 5
    initiate = command_of(client.take(welcome).output)
    assert refused(handshake.server, initiate) == "a counter that does not grow"


def test_a_key_without_its_secret_is_refused():
    _, secret = crypto_box_keypair()
    handshake = Handshake(client=impostor(secret=secret))
    assert refused(handshake.server, handshake.initiate()) == "the vouch does not open"


def test_a_key_that_is_not_the_one_of_the_vouch_is_refused():
    public, _ = crypto_box_keypair()
    handshake = Handshake(client=impostor(public=public))
    assert refused(handshake.server, handshake.initiate()) == "the vouch does not open"


@pytest.mark.parametrize("part", ["connection", "server"])
def test_a_vouch_for_something_else_is_refused(part):
    """A server that a client trusts could else present itself as that client to another server."""
    handshake = Handshake()
    welcome = handshake.welcome()
    other, _ = crypto_box_keypair()
    real = SODIUM.seal

    def seal(content: bytes, nonce: bytes, key: bytes) -> bytes:
        if nonce.startswith(b"VOUCH---"):
            content = other + content[32:] if part == "connection" else content[:32] + other
        return real(content, nonce, key)

    client = handshake.client
    client._security = attrs.evolve(client._security, boxes=attrs.evolve(SODIUM, seal=seal))
    initiate = command_of(client.take(welcome).output)
    assert refused(handshake.server, initiate) == "the vouch is for another connection or another server"


def test_malformed_metadata_are_refused():
    handshake = Handshake()
    handshake.client._metadata = b"\x05abc"
    assert refused(handshake.server, handshake.initiate()) == "malformed metadata"


# the client


@pytest.mark.parametrize("at", [0, 15, 16, -1])
def test_an_altered_welcome_is_refused(at):
    handshake = Handshake()
    assert refused(handshake.client, altered(handshake.welcome(), at)) == "the box of WELCOME does not open"


def test_the_welcome_of_a_server_with_another_key_is_refused():
    handshake = Handshake()
    public, secret = crypto_box_keypair()
    other = CurveServer(Security(SODIUM, sealing_of("python"), public, secret), Cookies(SODIUM, Now()))
    stranger = CurveClient(security(server=False), public)
    welcome = command_of(other.take(command_of(stranger.begin(THEIRS))).output)
    assert refused(handshake.client, welcome) == "the box of WELCOME does not open"


def test_a_welcome_of_another_length_is_refused():
    handshake = Handshake()
    data = handshake.welcome().data
    assert "a WELCOME of" in refused(handshake.client, Command(b"WELCOME", data[:-1]))
    assert "a WELCOME of" in refused(handshake.client, Command(b"WELCOME", data + b"\0"))


@pytest.mark.parametrize("at", [0, 7, 8, -1])
def test_an_altered_ready_is_refused(at):
    handshake = Handshake()
    assert refused(handshake.client, altered(handshake.ready(), at)) == "the box of READY does not open"


def test_a_ready_without_a_box_is_refused():
    handshake = Handshake()
    handshake.ready()
    assert refused(handshake.client, Command(b"READY", bytes(23))) == "a READY of 23 bytes"


def test_the_reason_of_a_server_that_refuses_is_given():
    client = client_side()
    server = server_side()
    list(client.feed(server.begin()))
    [output] = [event for event in server.feed(client.begin()) if isinstance(event, Output)]
    list(client.feed(output.data))
    with pytest.raises(ZmtpError, match="this key is not allowed") as caught:
        list(client.feed(error("this key is not allowed")))
    assert caught.value.fault is Fault.REFUSED


# what is kept


def test_secrets_are_not_kept_behind_the_handshake():
    handshake = Handshake()
    ready = handshake.ready()
    handshake.client.take(ready)
    for side in (handshake.server, handshake.client):
        side.decoder(FrameLimits())
        side.encoder()
        assert side._key == b""
    assert handshake.client._secret == b""
