"""Refusals: for the same kind of input each wire has the same words and counter, and one bounded line of the log.

A peer is shown the words as far as its protocol has a place for them: ZMTP and DNS have none in a broken frame.
"""

from __future__ import annotations

import ast
import re
import signal
import socket
from base64 import b64encode
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import pytest

import broker
from broker.access.passwords import MIN_ITERATIONS, of
from tests.config.certificates import unverified
from tests.contract.doors import CONFIG, NAMED, House, open_house
from tests.contract.newcomers import AUTH, DOORS
from tests.contract.strangers import dealer
from tests.generated import key_tables
from tests.integration.carried_peers import HttpPeer, RtcpPeer
from tests.integration.configurations import TCP, every_listener, listener
from tests.integration.daemon import Daemon, Peer
from tests.integration.dbp_nodes import Nodes
from tests.integration.http_api import ask
from tests.integration.mc0_clients import Clients, counters, whole_log
from tests.patience import PATIENCE, until
from tests.wires.elko.transports.virtual_links import HANDSHAKE, masked

TIMES = 5
"""Repetitions of each refused input, which are one line in the log."""

LONGEST = 1_300
"""Characters of a line: a thousand of the text, and what comes before it."""

HUGE = 1 << 40
"""Bytes that an input announces, more than any wire takes."""

LONG = AUTH + b'{"to":"' + b"x" * 1_100_000

WRONG = AUTH + b'{"to":"client",]\n\n'

TOO_LONG = {
    "elko": LONG,
    "tls": LONG,
    "websocket": HANDSHAKE + masked(0x81, AUTH) + masked(0x01, b"x" * 60_000) + masked(0x00, b"x" * 60_000) * 20,
    "rtcp": b"start\n1 0\n" + LONG.replace(AUTH, AUTH + b"2 0\n"),
    "director": LONG.replace(b'"client"', b'"director"'),
    "console": b"x" * 70_000,
    "long poll": b"POST /xmit/1/1 HTTP/1.1\r\nHost: h\r\nContent-Length: %d\r\n\r\n" % HUGE,
    "http": b"PUT /v1/services/x/1 HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: %d\r\n\r\n" % HUGE,
    **dict.fromkeys(("mc0", "dbp", "mtl"), dealer(0) + b"\x02" + HUGE.to_bytes(8, "big")),
    "dns": b"\xff\xff",
}
"""An input that is too long, by door."""

MALFORMED = {
    "elko": WRONG,
    "tls": WRONG,
    "websocket": HANDSHAKE + masked(0x81, WRONG),
    "rtcp": b"start\n1 0\n" + WRONG.replace(AUTH, AUTH + b"2 0\n"),
    "director": WRONG.replace(b'"client"', b'"director"'),
    "console": b'{"to":"client",]\r\n',
    "long poll": b"nonsense\r\n\r\n",
    "http": b"nonsense\r\n\r\n",
    **dict.fromkeys(("mc0", "dbp", "mtl"), b"nonsense, and no greeting of ZMTP, of some length\r\n" * 2),
    "dns": b"\0\x0d" + bytes.fromhex("0001 0100 0001 0000 0000 0000") + b"\x3f",
}
"""An input that is no message of the protocol, by door."""

SILENT = ("mc0", "dbp", "mtl", "dns")
"""Doors whose protocols have no words for these refusals. Nor has RTCP for a block that does not end."""


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    directory = tmp_path_factory.mktemp("refusals")
    with Daemon(directory, *every_listener(directory)) as running:
        yield running
        running.signal(signal.SIGTERM)
        assert "Traceback" not in whole_log(running)


@pytest.fixture(scope="module")
def drained(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    directory = tmp_path_factory.mktemp("drained")
    with Daemon(directory, *every_listener(directory)) as running:
        assert ask(running, "POST", "/v1/actions/drain", {})[0] == 200
        yield running


_SOURCES = (f"127.8.0.{number}" for number in count(1))


def _sent(daemon: Daemon, door: str, source: str, data: bytes) -> str:
    """Return all that the broker sends to a peer that sends that, up to the words of a refusal or the end."""
    plain = socket.create_connection(("127.0.0.1", DOORS[door].port(daemon)), PATIENCE, (source, 0))
    answer = b""
    with unverified().wrap_socket(plain) if door == "tls" else plain as stream:
        with suppress(ConnectionError):  # it is closed while there is more to send
            stream.sendall(data)
            if door in ("http", "long poll"):  # as scripts with netcat do: an answer is no less due
                stream.shutdown(socket.SHUT_WR)
        with suppress(ConnectionError):
            while piece := stream.recv(65_536):
                answer += piece
                # DNS keeps a connection after it has answered.
                if b"has more than" in answer or b" at position " in answer or door == "dns":
                    break
    return answer.decode(errors="replace")


def _refused(daemon: Daemon, door: str, data: bytes, reason: str) -> tuple[str, str]:
    """Send that some times. Returns the answer, and the one line of the log; asserts that each time is counted."""
    wire, source = DOORS[door].wire, next(_SOURCES)
    counter = f"{wire}_refused.{reason}"
    before = counters(daemon)[counter]
    answers = [_sent(daemon, door, source, data) for _ in range(TIMES)]
    until(lambda: counters(daemon)[counter] >= before + TIMES)
    daemon.wait_for(rf"{wire} peer {re.escape(source)}(:\d+)?: {reason}: ")
    [line] = [line for line in daemon.log if f"{wire} peer {source}" in line]
    assert len(line) <= LONGEST
    return answers[0], line


@pytest.mark.parametrize("door", DOORS)
def test_an_input_that_is_too_long_is_refused_in_one_way(daemon: Daemon, door: str) -> None:
    answer, line = _refused(daemon, door, TOO_LONG[door], "too-large")
    assert re.search(r"has more than [\d,]+ bytes", line)
    if door not in (*SILENT, "rtcp"):
        assert re.search(r"has more than [\d,]+ bytes", answer)


@pytest.mark.parametrize("door", DOORS)
def test_an_input_that_is_no_message_is_refused_in_one_way(daemon: Daemon, door: str) -> None:
    reason = "handshake" if door in ("mc0", "dbp", "mtl") else "syntax"
    answer, _ = _refused(daemon, door, MALFORMED[door], reason)
    assert door in SILENT or answer


SLOW = {
    **dict.fromkeys(("elko", "tls", "websocket", "director"), "too-slow-to-authenticate"),
    **dict.fromkeys(("rtcp", "long poll", "http", "dns"), "too-slow"),
    **dict.fromkeys(("mc0", "dbp", "mtl"), "handshake"),
}
"""The reason of a refusal at the deadline of the first message, by door. The console has no such deadline."""


@pytest.mark.long
def test_a_beginning_that_is_not_completed_in_time_is_refused_in_one_way(daemon: Daemon) -> None:
    sources = {door: next(_SOURCES) for door in SLOW}
    with ExitStack() as stack:
        for door, source in sources.items():
            port = DOORS[door].port(daemon)
            peer = stack.enter_context(socket.create_connection(("127.0.0.1", port), PATIENCE, (source, 0)))
            peer.sendall(DOORS[door].sends)
        for door, source in sources.items():
            daemon.wait_for(rf"{DOORS[door].wire} peer {re.escape(source)}(:\d+)?: {SLOW[door]}: ")


@pytest.mark.parametrize("door", ["elko", "tls", "websocket", "director"])
def test_a_newcomer_of_a_draining_broker_is_refused_in_one_way(drained: Daemon, door: str) -> None:
    assert "the broker is draining: connect to another one" in _sent(drained, door, next(_SOURCES), MALFORMED[door])
    drained.wait_for(rf"{DOORS[door].wire} peer \S+: draining: the broker is draining")


# rights and passwords

WITHOUT_RIGHT = f"""
[[users]]
name = "ann"
passwords = ["{of("pencil", MIN_ITERATIONS).text()}"]
[[users]]
name = "bob"
passwords = ["{of("crayon", MIN_ITERATIONS).text()}"]
[[rights]]
users = ["ann"]
operations = ["find", "publish"]
[[rights]]
users = ["bob"]
operations = ["find", "offer", "publish", "subscribe"]
names = ["allowed"]
[[rights]]
users = ["bob"]
operations = ["view"]
[[rights]]
users = ["anonymous"]
operations = ["find", "subscribe"]
names = ["allowed"]
"""

MC0 = """
[mc0]
endpoint = "tcp://127.0.0.1:0"
"""

VALUES = """
[broker]
last_values = true
[log]
collect = true
"""

_ANN = {"Authorization": f"Basic {b64encode(b'ann:pencil').decode()}"}
_BASIC = {"Authorization": f"Basic {b64encode(b'bob:crayon').decode()}"}
BOB = {"mode": "password", "id": "bob", "code": "crayon"}
Asked = Callable[[House, str], str]
"""A request of a peer from an address. Returns the words of the refusal."""

OFFER: dict[str, Any] = {"op": "willserve", "services": [{"service": "bank", "hostport": "h:1"}]}


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> Iterator[House]:
    directory = tmp_path_factory.mktemp("rights")
    config = CONFIG.replace("[mc0]\nenabled = false\n", MC0)
    with open_house(directory, WITHOUT_RIGHT, VALUES, config) as house:
        yield house


def _elko(house: House, source: str) -> str:
    with Peer(socket.create_connection(("127.0.0.1", house.daemon.port()), PATIENCE, (source, 0))) as peer:
        peer.send(to="client", op="auth", auth=BOB)
        return str(peer.ask(to="client", **OFFER)["msg"])


def _rtcp(house: House, source: str) -> str:
    with RtcpPeer(house.daemon.port("rtcp"), source=source) as peer:
        peer.send(to="client", op="auth", auth=BOB)
        peer.send(to="client", **OFFER)
        return str(peer.receive()["msg"])


def _long_poll(house: House, source: str) -> str:
    peer = HttpPeer(house.daemon.port("poll"), "/", source=source)
    try:
        peer.send(to="client", op="auth", auth=BOB)
        peer.send(to="client", **OFFER)
        return str(peer.receive()[0]["msg"])
    finally:
        peer.connection.close()


def _http(method: str, path: str, body: Any = None, **user: str) -> Asked:
    return lambda house, source: str(ask(house.daemon, method, path, body, source, **(user or _BASIC))[1]["detail"])


def _mtl(profile: str, side: str, resource: str) -> Asked:
    def asked(house: House, source: str) -> str:
        control = house.mtl.control(source=source)
        control.open()
        assert control.scram("bob", "crayon").code == "201"
        assert control.profile(profile).code == "200"
        return str(control.lease(side, resource).body)

    return asked


def _mc0(line: str) -> Asked:
    def asked(house: House, source: str) -> str:
        with Clients(f"tcp://{source}:0;127.0.0.1:{house.daemon.mc0_port()}") as clients:
            return clients.new().ask(line)

    return asked


def _dbp(house: House, source: str) -> str:
    with Nodes(house.daemon) as nodes:
        return str(nodes.dealer().ask("UwU", {"name": "bank", "ip": "127.0.0.1", "port": 1}))


LATER = {"queue": "bank", "text": "x"}

FORBIDDEN: dict[tuple[str, str], tuple[Asked, str]] = {
    ("elko", "offer"): (_elko, "bob has no right to offer 'bank' here"),
    ("rtcp", "offer"): (_rtcp, "bob has no right to offer 'bank' here"),
    ("long poll", "offer"): (_long_poll, "bob has no right to offer 'bank' here"),
    ("http", "offer"): (
        _http("PUT", "/v1/services/bank/1", {"hostport": "h:1", "ttl": 60}),
        "bob has no right to offer 'bank' here",
    ),
    ("mtl", "offer"): (_mtl("registry", "Writer", "service/bank"), "bob has no right to offer 'bank' here"),
    ("dbp", "offer"): (_dbp, "a peer without a user has no right to offer 'bank' here"),
    ("http", "publish"): (
        _http("POST", "/v1/actions/publish", {"topic": "bank", "text": "x"}),
        "bob has no right to publish 'bank' here",
    ),
    ("mtl", "publish"): (_mtl("topic", "Writer", "bank"), "bob has no right to publish 'bank' here"),
    ("mc0", "publish"): (_mc0("PUT|TOPIC|bank|ID|p||x"), "a peer without a user has no right to publish 'bank' here"),
    ("http", "put with a delay"): (
        _http("POST", "/v1/actions/queue-put", {**LATER, "delay": 9.0}),
        "bob has no right to publish 'bank' here",
    ),
    ("http", "put for a time"): (
        _http("POST", "/v1/actions/queue-put", {**LATER, "at": "2099-01-01T00:00:00Z"}),
        "bob has no right to publish 'bank' here",
    ),
    # The delay is a property of each message, and the right is checked once, at the lease.
    ("mtl", "put"): (_mtl("queue", "Writer", "bank"), "bob has no right to publish 'bank' here"),
    ("http", "last value"): (
        _http("GET", "/v1/topics/bank/messages"),
        "bob has no right to subscribe 'bank' here",
    ),
    ("mtl", "last value"): (_mtl("topic", "Reader", "bank"), "bob has no right to subscribe 'bank' here"),
    ("mc0", "last value"): (_mc0("SUB|ID|s||bank"), "a peer without a user has no right to subscribe 'bank' here"),
    ("http", "logs"): (_http("GET", "/v1/logs", **_ANN), "ann has no right to subscribe here"),
}
"""The requests by door and act, and the words of the refusal."""


def _forbidden(house: House, wire: str) -> int:
    rows = ask(house.daemon, "GET", f"/v1/counters?pattern={wire}_refused.forbidden", **_BASIC)[1]["rows"]
    return sum(row["value"] for row in rows)


@pytest.mark.parametrize(("door", "act"), FORBIDDEN)
def test_a_right_that_is_missing_is_refused_in_one_way(house: House, door: str, act: str) -> None:
    source, wire = house.source(), DOORS[door].wire
    asked, words = FORBIDDEN[door, act]
    before = _forbidden(house, wire)
    for _ in range(TIMES):
        assert words in asked(house, source)
    assert _forbidden(house, wire) == before + TIMES
    house.daemon.wait_for(rf"{wire} peer \S+: forbidden: .*{re.escape(words)}")


def test_a_value_or_record_that_may_not_be_read_is_like_one_that_is_not_there(house: House) -> None:
    for topic in ("bank", "log.bank"):
        sent = {"topic": topic, "text": "a secret"}
        assert ask(house.daemon, "POST", "/v1/actions/publish", sent, **_ANN)[0] == 200
    with Nodes(house.daemon) as nodes:
        assert nodes.dealer().find("lvc:bank") == {"Error": "No Last Value of the Topic bank"}
    assert ask(house.daemon, "GET", "/v1/logs", **_BASIC)[1]["records"] == []


@pytest.mark.parametrize("door", NAMED)
def test_a_wrong_password_is_refused_in_one_way(house: House, door: str) -> None:
    assert "the user or the password is wrong" in NAMED[door](house, "bob", "guess", house.source())


RARE = "[access]\nrequests_per_address = 0.01\nrequests_burst = 4\n"


def test_too_many_requests_are_refused_in_one_way(tmp_path: Path) -> None:
    words = "this address may make 0.01 requests a second (access.requests_per_address)"

    def refused(house: House, name: str, source: str) -> bool:
        return words in NAMED[name](house, "ann", "pencil", source)

    with open_house(tmp_path, config=CONFIG.replace("[access]\n", RARE)) as house:
        for name in ("elko", "websocket", "rtcp", "long_poll", "director", "console", "basic"):
            until(partial(refused, house, name, house.source()))
        for wire in ("elko", "director", "console", "http"):
            house.daemon.wait_for(rf"{wire} peer \S+: limit: {re.escape(words)}")


def test_messages_and_lines_that_wait_for_a_login_count_once(tmp_path: Path) -> None:
    auth = {"to": "client", "op": "auth", "auth": {"mode": "password", "id": "ann", "code": "pencil"}}
    pings = [{"to": "client", "op": "ping", "tag": str(number)} for number in range(3)]
    with (
        open_house(tmp_path, config=CONFIG.replace("[access]\n", RARE)) as house,
        Peer(socket.create_connection(("127.0.0.1", house.daemon.port()), PATIENCE)) as peer,
    ):
        peer.send_at_once(auth, *pings)
        assert [peer.receive().get("tag") for _ in range(3)] == ["0", "1", "2"]
        there = ("127.0.0.1", house.daemon.console_port())
        with socket.create_connection(there, PATIENCE, (house.source(), 0)) as operator:
            operator.sendall(b"login bob\r\ncrayon\r\nversion\r\nversion\r\n")
            operator.shutdown(socket.SHUT_WR)
            shown = b"".join(iter(partial(operator.recv, 65_536), b""))
        assert (shown.count(b"\nelkobroker 0."), b"error" in shown) == (2, False)


# limits

LIMITED = f"""
[broker]
memory_per_address = 1048576
[http]
endpoint = "{TCP}"
services = 1
max_body = 4096
[director]
enabled = true
[mc0]
endpoint = "tcp://127.0.0.1:0"
subscriptions = 1
[dbp]
endpoint = "tcp://127.0.0.1:0"
beacon = []
services = 1
[mtl]
endpoint = "tcp://127.0.0.1:0"
[[mtl.queues]]
queues = ["short"]
messages = 1
{listener("director", "[director.listeners.limits]", "watches = 1", of="director")}
{listener("main", "[elko.listeners.limits]", "services = 1", "waits = 1")}
"""
"""A configuration in which each limit is 1, as far as that is possible."""


def _elko_says(daemon: Daemon, member: str, **message: Any) -> str:
    with daemon.connect() as peer:
        peer.send(to="client", **message)
        return str(peer.ask(to="client", **message)[member])


def _says(method: str, path: str, *bodies: Any) -> Callable[[Daemon], str]:
    def asked(daemon: Daemon) -> str:
        return str(
            [ask(daemon, method, path.format(number), body) for number, body in enumerate(bodies)][-1][1]["detail"]
        )

    return asked


def _mc0_says(daemon: Daemon) -> str:
    with Clients(f"tcp://127.0.0.1:{daemon.mc0_port()}") as clients:
        return clients.new().ask("SUB|ID|s||a|b")


def _dbp_says(daemon: Daemon) -> str:
    with Nodes(daemon) as nodes:
        return [str(nodes.dealer().ask("UwU", {"name": name, "ip": "127.0.0.1", "port": 1})) for name in "ab"][-1]


def _director_says(daemon: Daemon) -> str:
    with Peer(socket.create_connection(("127.0.0.1", DOORS["director"].port(daemon)), PATIENCE)) as peer:
        peer.send(to="admin", op="auth")
        peer.send(to="admin", op="watch", user="a")
        peer.send(to="admin", op="watch", user="b")
        return str(next(answer["msg"] for answer in iter(peer.receive, None) if "msg" in answer))


OFFERED = {"hostport": "h:1", "ttl": 60}
PUT = {"queue": "short", "text": "x"}

LIMITS: dict[str, Callable[[Daemon], str]] = {
    "elko.listeners.limits.services": partial(_elko_says, member="msg", **OFFER),
    "elko.listeners.limits.waits": lambda daemon: _elko_says(daemon, "desc", op="find", service="none", wait=60),
    "director.listeners.limits.watches": _director_says,
    "mc0.subscriptions": _mc0_says,
    "dbp.services": _dbp_says,
    "mtl.queues.messages": _says("POST", "/v1/actions/queue-put", PUT, PUT),
    "http.services": _says("PUT", "/v1/services/bank/{}", OFFERED, OFFERED),
    "http.max_body": _says("PUT", "/v1/services/bank/{}", {**OFFERED, "label": "x" * 5_000}),
}
"""Requests beyond a limit of the configuration, by its key."""


@pytest.fixture(scope="module")
def limited(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    directory = tmp_path_factory.mktemp("limited")
    (directory / "x.toml").write_text(LIMITED)
    with Daemon(directory, "--config", "x.toml") as running:
        yield running


@pytest.mark.parametrize("key", LIMITS)
def test_a_refusal_beyond_a_limit_names_its_key(limited: Daemon, key: str) -> None:
    assert f"({key})" in LIMITS[key](limited)


def test_the_keys_that_refusals_name_are_declared() -> None:
    section, keys = "", set[str]()
    for head, name in re.findall(r"^(?:### `\[+([\w.]+)\]+`|- `([\w.\[\]]+)`)", key_tables(), re.MULTILINE):
        section = head or section
        keys.add(f"{section}.{name.replace('[]', '')}")
    texts = [path.read_text() for path in Path(broker.__file__).parent.rglob("*.py")]
    constants = dict(re.findall(r'^([A-Z_]+) = "([^"]*)"$', "\n".join(texts), re.MULTILINE))
    nodes = [node for text in texts if "at_limit(" in text for node in ast.walk(ast.parse(text))]
    given = [
        part.value if isinstance(part, ast.Constant) else constants.get(part.id, "")
        for node in nodes
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "at_limit"
        for part in ast.walk(node.args[1])
        if isinstance(part, (ast.Constant, ast.Name))
    ]
    named = {key for text in given if isinstance(text, str) for key in text.split(", ") if "." in key}
    assert len(named) > len(LIMITS)
    assert named <= keys
