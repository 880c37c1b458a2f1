"""Reading the registry: whatever the way, a user is shown what the right `find` names, and nothing else."""

from __future__ import annotations

import http.client
import json
import re
import socket
from base64 import b64encode
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count

import dns.message
import dns.query
import dns.rcode
import pytest

from tests.contract.doors import USERS, House, open_house
from tests.core.plans import ISSUED, document, service
from tests.integration.configurations import TCP
from tests.integration.daemon import Peer
from tests.integration.dbp_nodes import Nodes
from tests.integration.mtl_peers import Control
from tests.patience import PATIENCE, until

ANN = ("ann", "pencil")
"""May do everything, and has services that begin with "ann-"."""

BOB = ("bob", "crayon")
"""May use every way, and may find what begins with "bob-"."""

RIGHTS = """\
[[rights]]
users = ["ann"]
operations = ["*"]
[[rights]]
users = ["bob"]
operations = ["view", "subscribe", "admin.*"]
[[rights]]
users = ["bob"]
operations = ["find"]
names = ["bob-*"]
[[rights]]
users = ["anonymous"]
operations = ["find"]
listeners = ["dbp", "dns"]
names = ["bob-*"]
[[rights]]
users = ["anonymous"]
operations = ["find"]
listeners = ["http", "mtl", "elko listener 'open'"]
names = ["bob-*"]
[[rights]]
users = ["anonymous"]
operations = ["view", "subscribe"]
listeners = ["http", "mtl", "elko listener 'open'"]
"""

MORE = f"""
[plan]
file = "plan/plan.json"
[dns]
enabled = true
endpoint = "{TCP}"
"""

SECRET = "hunter2"

WITH_SECRET = {"auth": {"mode": "password", "code": SECRET}}

NAME = re.compile(r"(?:ann|bob)-[a-z0-9]+")

_numbers = count()


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> Iterator[House]:
    users = USERS[: USERS.index("[[rights]]")] + RIGHTS
    directory = tmp_path_factory.mktemp("reading")
    (directory / "plan").mkdir()
    (directory / "plan" / "report.html").write_text("ann-bank, bob-bank")
    planned = [service(name, state="overloaded", short_from=ISSUED) for name in ("ann-bank", "bob-bank")]
    (directory / "plan" / "plan.json").write_bytes(document(*planned))
    with (
        open_house(directory, users, MORE) as house,
        server(house, "ann") as ann,
        server(house, "bob") as bob,
    ):
        offer(ann, "ann-bank")
        offer(bob, "bob-bank")
        offer(bob, "bob-safe", **WITH_SECRET)
        for name in ("ann-web", "bob-web"):
            body = json.dumps({"hostport": f"{name}:1", "ttl": 600})
            with request(house, f"/v1/services/{name}/{name}", ANN, "PUT", body) as answer:
                assert answer.status == 201
            for profile in ("registry", "service"):
                # Readers of flows that name a service.
                control = session(house, profile, ANN)
                assert house.mtl.flow().lease(control.token("Reader", f"service/{name}")) == "200"
        yield house


@contextmanager
def server(house: House, label: str) -> Iterator[Peer]:
    """A server of ann, who may offer everything."""
    with Peer(socket.create_connection(("127.0.0.1", house.daemon.port()), PATIENCE)) as peer:
        peer.send(to="client", op="auth", auth={"mode": "password", "id": "ann", "code": "pencil"}, label=label)
        peer.done()
        yield peer


def offer(peer: Peer, *names: str, **more: object) -> None:
    """Offer services, one after the other, and report a load."""
    for name in names:
        peer.send(to="client", op="willserve", services=[{"service": name, "hostport": f"{name}:1", **more}])
    peer.send(to="client", op="load", factor=0.5)
    peer.done()


@contextmanager
def request(
    house: House, path: str, user: tuple[str, str] | None, method: str = "GET", body: str | None = None
) -> Iterator[http.client.HTTPResponse]:
    """The answer to a request."""
    connection = http.client.HTTPConnection("127.0.0.1", house.daemon.http_port(), timeout=PATIENCE)
    try:
        headers = {"Content-Type": "application/json"}
        if user is not None:
            headers["Authorization"] = "Basic " + b64encode(":".join(user).encode()).decode()
        connection.request(method, path, body, headers)
        yield connection.getresponse()
    finally:
        connection.close()


# what there is


def by_http(path: str) -> Callable[[House, tuple[str, str]], str]:
    def read(house: House, user: tuple[str, str]) -> str:
        with request(house, path, user) as answer:
            assert answer.status == 200
            return answer.read().decode()

    return read


def by_console(command: str) -> Callable[[House, tuple[str, str]], str]:
    def read(house: House, user: tuple[str, str]) -> str:
        with socket.create_connection(("127.0.0.1", house.daemon.console_port()), PATIENCE) as sock:
            sock.sendall(f"login {user[0]}\r\n{user[1]}\r\n{command}\r\n".encode())
            sock.shutdown(socket.SHUT_WR)
            return b"".join(iter(lambda: sock.recv(65_536), b"")).decode()

    return read


def by_elko(op: str) -> Callable[[House, tuple[str, str]], str]:
    def read(house: House, user: tuple[str, str]) -> str:
        with elko(house, user) as peer:
            return json.dumps(peer.ask(to="admin", op=op))

    return read


@contextmanager
def elko(house: House, user: tuple[str, str]) -> Iterator[Peer]:
    """An administrator."""
    with Peer(socket.create_connection(("127.0.0.1", house.daemon.port()), PATIENCE)) as peer:
        peer.send(to="admin", op="auth", auth={"mode": "password", "id": user[0], "code": user[1]})
        yield peer


WAYS: dict[str, Callable[[House, tuple[str, str]], str]] = {
    **{
        path: by_http(path)
        for path in (
            "/v1/services",
            "/v1/providers",
            "/v1/loads",
            "/v1/loads/history",
            "/v1/checks",
            "/v1/events",
            "/v1/views/broker/services",
            "/v1/views/broker/plan",
            "/v1/plan",
            "/metrics",
            "/v1/discovery/prometheus",
        )
    },
    **{
        command: by_console(command)
        for command in ("broker services", "broker providers", "broker plan", "servicedesc", "loaddesc")
    },
    **{op: by_elko(op) for op in ("servicedesc", "loaddesc")},
}


@pytest.mark.parametrize("way", WAYS)
def test_tables_and_lists_show_what_the_user_may_find(house: House, way: str) -> None:
    # A label is that of the server: "ann" or "bob".
    assert "ann" not in WAYS[way](house, BOB).replace('"user": "ann"', "")
    if way not in ("/v1/checks",):
        assert "bob" in WAYS[way](house, BOB)
        assert "ann" in WAYS[way](house, ANN)


@pytest.mark.parametrize("path", ["/plan/report.html", "/plan/services/bob-bank.html"])
def test_the_report_of_the_plan_needs_find_of_all_names(house: House, path: str) -> None:
    with request(house, path, BOB) as answer:
        assert answer.status == 403
        assert b"bank" not in answer.read()
    with request(house, path, ANN) as answer:
        assert answer.status == (200 if "report" in path else 404)


def test_single_names_and_providers_need_find(house: House) -> None:
    for path, status in (("/v1/why/ann-bank", 403), ("/v1/why/bob-bank", 200), ("/v1/services/ann-bank", 403)):
        with request(house, path, BOB) as answer:
            assert answer.status == status
    rows = json.loads(WAYS["/v1/providers"](house, ANN))["rows"]
    for row in rows:
        with request(house, f"/v1/providers/{row['provider']}", BOB) as answer:
            assert answer.status == (200 if row["label"].startswith("bob") else 404)


STREAMS = {"/v1/watch", "/v1/topics/{topic}/messages"}
"""Paths of the API without an end."""


def texts_of_the_api(house: House, user: tuple[str, str] | None, name: str) -> dict[str, str]:
    """The answers at the paths of the document and of all views, so that none is forgotten. ``name`` stands where a
    path has a parameter."""
    document = json.loads(by_http("/openapi.json")(house, ANN))
    views = json.loads(by_http("/v1/views")(house, ANN))["rows"]
    paths = [path for path, operations in document["paths"].items() if "get" in operations and path not in STREAMS]
    texts = {}
    for path in paths + [view["path"].replace(" ", "%20") for view in views]:
        with request(house, re.sub(r"\{\w+\}", name, path), user) as answer:
            texts[path] = answer.read().decode()
    return texts


def test_no_path_of_the_api_shows_other_names(house: House) -> None:
    # A refusal repeats the name of its path.
    others = re.compile(r"ann-web|ann-bank[\":]")
    assert not {path for path, text in texts_of_the_api(house, BOB, "ann-bank").items() if others.search(text)}


def test_no_command_of_the_console_shows_other_names(house: House) -> None:
    help = by_console("help")(house, BOB).splitlines()
    tables = [line.split()[0:2] for line in help if line.endswith(" [PATTERN]")]
    read = [*map(" ".join, tables), "servicedesc", "loaddesc", "status", "config", "counters"]
    assert {"broker services", "mtl flows", "http instances", "dbp services"} <= set(read)
    text = by_console("\r\n".join(read))(house, BOB)
    assert "bob-web" in text
    assert "ann-" not in text


def test_no_way_shows_a_secret_to_a_peer_without_a_user(house: House) -> None:
    texts = texts_of_the_api(house, None, "bob-safe")
    for role, op in (("client", "find"), ("admin", "servicedesc"), ("admin", "watch")):
        with Peer(socket.create_connection(("127.0.0.1", house.daemon.port("open")), PATIENCE)) as peer:
            peer.send(to=role, op="auth")
            texts[op] = json.dumps(peer.ask(to=role, op=op, service="bob-safe", services=True))
    with Nodes(house.daemon) as nodes:
        texts["dbp"] = json.dumps(nodes.dealer().find("bob-safe"))
    last = fresh()
    for profile, resource in (("registry", "services"), ("topic", "elkobroker.services")):
        control = session(house, profile, None)
        flow = house.mtl.flow()
        assert flow.lease(control.token("Reader", resource)) == "200"
        assert flow.summon(resource) == "200"
        with request(house, "/v1/watch", None) as stream:
            stream.readline()
            changes(house, f"{profile}{last}", **WITH_SECRET)
            texts["watch"] = texts[profile] = ""
            while f"bob-{profile}{last}" not in texts[profile]:
                texts[profile] += repr(flow.content())
            while f"bob-{profile}{last}" not in texts["watch"]:
                texts["watch"] += stream.readline().decode()
    assert {way for way, text in texts.items() if "bob-" in text} > {"find", "watch", "dbp", "/v1/services/{name}"}
    assert not {way for way, text in texts.items() if SECRET in text}
    with request(house, "/v1/services/bob-safe", BOB) as answer:
        assert SECRET in answer.read().decode(), "it is there"


@pytest.mark.parametrize("ask", [dns.query.udp, dns.query.tcp], ids=["udp", "tcp"])
def test_a_question_of_dns(house: House, ask: Callable[..., dns.message.Message]) -> None:
    port = int(house.daemon.wait_for(r"dns on \S+:(\d+) ").group(1))

    def codes(user: str) -> set[int]:
        names = (f"{user}-bank", f"_{user}-bank._tcp", f"_{user}-bank._{user}")
        questions = [f"{name}.service.elkobroker." for name in names]
        kinds = ("A", "AAAA", "SRV", "TXT", "ANY")
        queries = [dns.message.make_query(name, kind) for name in questions for kind in kinds]
        return {ask(query, "127.0.0.1", PATIENCE, port).rcode() for query in queries}

    assert codes("bob") == {dns.rcode.NOERROR}
    assert codes("ann") == {dns.rcode.NXDOMAIN}


def test_a_request_of_dbp(house: House) -> None:
    with Nodes(house.daemon) as nodes:
        assert sorted(nodes.dealer().find()) == ["bob-bank", "bob-safe", "bob-web"]
        assert list(nodes.dealer().find("bob-bank")) == ["bob-bank"]
        for names in (["ann-bank"], ["bob-bank", "ann-bank"]):
            assert nodes.dealer().find(*names) == {"Error": "not permitted to peers without a user"}


# changes as they happen


def changes(house: House, last: str, **more: object) -> None:
    """Offer services that bob may not find, then one that he may."""
    with server(house, "ann") as ann, server(house, "bob") as bob:
        offer(ann, f"ann-{last}", **more)
        offer(bob, f"bob-{last}", **more)


def fresh() -> str:
    return f"new{next(_numbers)}"


def test_server_sent_events(house: House) -> None:
    last = fresh()
    with request(house, "/v1/watch", BOB) as stream:
        assert stream.status == 200
        stream.readline()  # its place: the watch has begun
        changes(house, last)
        text = ""
        while f"bob-{last}" not in text:
            text += stream.readline().decode()
    assert "ann" not in text


def test_the_watch_of_elko(house: House) -> None:
    last = fresh()
    with elko(house, BOB) as watcher:
        watcher.send(to="admin", op="watch", services=True, load=True)
        for _ in ("services", "loads"):
            watcher.receive()
        changes(house, last)
        text = ""
        while f"bob-{last}" not in text:
            text += json.dumps(watcher.receive())
    assert not any(name.startswith("ann") for name in NAME.findall(text))


def session(house: House, profile: str, user: tuple[str, str] | None = BOB) -> Control:
    """A session over MTL, with a profile."""
    control = house.mtl.control(source=house.source())
    assert control.open().code == "401"
    assert (control.authorize("ANONYMOUS", b"") if user is None else control.plain(*user)).code == "201"
    assert control.profile(profile).code == "200"
    return control


@pytest.mark.parametrize("topic", ["elkobroker.services", "elkobroker.load"])
def test_topics_of_the_registry(house: House, topic: str) -> None:
    last = fresh()
    control = session(house, "topic")
    flow = house.mtl.flow()
    assert flow.lease(control.token("Reader", topic)) == "200"
    assert flow.summon(topic) == "200"
    changes(house, last)
    text = ""
    while (f"bob-{last}" if topic.endswith("services") else '"bob"') not in text:
        text += flow.content().body.decode()
    assert "ann" not in text


def test_the_registry_profile(house: House) -> None:
    control = session(house, "registry")
    codes = [
        control.lease("Reader", name).code
        for name in ("services", "load", "service/ann-bank", "load/ann-bank", "service/bob-bank", "load/bob-bank")
    ]
    assert codes == ["202", "202", "403", "403", "202", "202"]


@pytest.mark.parametrize("resource", ["services", "load"])
def test_the_lists_of_the_registry_profile(house: House, resource: str) -> None:
    last = fresh()
    control = session(house, "registry")
    flow = house.mtl.flow()
    assert flow.lease(control.token("Reader", resource)) == "200"
    assert flow.summon(resource) == "200"
    text = ""
    while "synced" not in text:
        text += repr(flow.content())
    assert "bob" in text
    changes(house, last)
    while (f"bob-{last}" if resource == "services" else "down") not in text:
        text += repr(flow.content())
    assert "ann" not in text


def test_a_stream_ends_with_the_names_that_it_shows(house: House) -> None:
    users = house.daemon.directory / "users.toml"
    before = users.read_text()
    with request(house, "/v1/watch", BOB) as stream:
        stream.readline()
        try:
            users.write_text(before.replace('names = ["bob-*"]', 'names = ["bob-b*"]'))
            stream.read()  # to its end
            users.write_text(before.replace('listeners = ["dbp", "dns"]', 'listeners = ["mtl"]'))
            with Nodes(house.daemon) as nodes:
                until(lambda: "Error" in nodes.dealer().find())
        finally:
            users.write_text(before)
            until(lambda: sum("the users file changed" in line for line in _log(house)) >= 3)


def _log(house: House) -> list[str]:
    house.daemon.wait_for("the users file changed")
    with request(house, "/healthz", BOB) as answer:
        answer.read()
    while not house.daemon._lines.empty():
        line = house.daemon._lines.get()
        assert line is not None
        house.daemon.log.append(line)
    return house.daemon.log
