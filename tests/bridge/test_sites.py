"""Bridges between real daemons."""

from __future__ import annotations

import signal
import socket
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from urllib.parse import quote

import attrs
import pytest

from broker.address_faults import address_fault
from tests.bridge.sites import EVERY, Site, bridge
from tests.brokerctl.server import ctl
from tests.cluster.real_etcd import Etcd
from tests.console_blocks import as_shown, command_of
from tests.integration.configurations import ROUTERS, listener
from tests.integration.http_api import ask
from tests.integration.mc0_clients import clients_of
from tests.integration.mtl_peers import peers_of
from tests.net.process import script
from tests.patience import PATIENCE, until
from tests.ports import free_port

ANYBODY = '[[rights]]\nusers = ["anonymous"]\noperations = ["*"]\nlisteners = ["http", "elko*", "mc0", "mtl", "dbp"]\n'
"""Everything for peers without a user, but not over bridges."""


@pytest.fixture
def running() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


@pytest.fixture
def west(tmp_path: Path) -> Site:
    return Site.of("west", tmp_path)


@pytest.fixture
def east(tmp_path: Path) -> Site:
    return Site.of("east", tmp_path)


def test_chosen_services_travel_one_way_with_their_labels_and_without_secrets(
    west: Site, east: Site, running: ExitStack
) -> None:
    running.enter_context(west.start(bridge(east, send_services=["bank*"], receive_services=[])))
    labels: dict[str, Any] = {"zone": "z1", "tags": ["v2"], "meta": {"team": "blue"}, "label": "Bank"}
    west.offer("bank", **labels, load=3.5)
    west.offer("shop")
    peer = running.enter_context(west.daemon.connect())
    auth = {"mode": "password", "code": "hush"}
    peer.send(to="client", op="willserve", services=[{"service": "bank-2", "hostport": "192.0.2.2:1", "auth": auth}])
    running.enter_context(east.start(bridge(west, connect=True, receive_services=["*"], send_services=["*"])))
    east.offer("depot")
    until(lambda: {"bank", "bank-2"} <= set(east.services()))
    row = east.services()["bank"]
    path = row["meta"].pop("elkobroker.path")
    assert path.split()[1:] == ["west"]
    assert {key: row.get(key) for key in labels} == labels
    assert row["hostport"] == "192.0.2.1:80"
    until(lambda: {each["load"] for each in ask(east.daemon, "GET", "/v1/loads")[1]["rows"]} == {0.0, 3.5})
    with east.daemon.connect() as client:
        [found] = client.ask(to="client", op="find", service="bank-2")["desc"]
        assert found["auth"] == {"type": "auth", "mode": "password"}
    west.offer("bank-3", "192.0.2.3:80")
    west.withdraw("bank")
    until(lambda: set(east.services()) == {"bank-2", "bank-3", "depot"})
    assert set(west.services()) == {"shop", "bank-2", "bank-3"}
    assert (east.bridge("west")["services_in"], west.bridge("east")["services_out"]) == (2, 2)


def test_both_ways_with_a_prefix(west: Site, east: Site, running: ExitStack) -> None:
    running.enter_context(west.start(bridge(east, **EVERY, prefix="east.")))
    running.enter_context(east.start(bridge(west, connect=True, **EVERY, prefix="west.")))
    west.offer("bank")
    east.offer("bank", "192.0.2.9:80")
    until(lambda: set(west.services()) == {"bank", "east.bank"} and set(east.services()) == {"bank", "west.bank"})


@pytest.mark.long
def test_a_member_of_a_cluster_carries_what_all_of_its_cluster_has(
    tmp_path: Path, east: Site, running: ExitStack
) -> None:
    etcd = running.enter_context(Etcd(tmp_path / "etcd"))
    first, second = (Site.of("west", tmp_path / name) for name in "ab")
    section = '[cluster]\netcd = ["{}"]\nname = "{}"\nttl = 5\nlink = "tcp://127.0.0.1:0"\n'
    running.enter_context(east.start(bridge(first, **EVERY)))
    member = bridge(east, connect=True, **EVERY | {"send_topics": ["news"]}), section.format(etcd.url, "a")
    running.enter_context(first.start(member[0], more=member[1]))
    running.enter_context(second.start(more=section.format(etcd.url, "b")))
    second.offer("bank")
    east.offer("shop", "192.0.2.9:80")
    until(lambda: set(east.services()) == set(first.services()) == set(second.services()) == {"bank", "shop"})
    assert second.services()["shop"]["broker"] == "a"
    assert east.services()["bank"]["meta"]["elkobroker.path"].split()[1:] == ["west"]
    # Messages: of the other member, and to it.
    here, there = (running.enter_context(clients_of(each.daemon)) for each in (second, east))
    for receiver, sender, topic in ((there.new(), here.new(), "news"), (here.new(), there.new(), "orders")):
        assert receiver.ask(f"SUB|ID|s||{topic}") == "OK|ID|s"
        count = iter(range(10_000))

        def arrived(sender: Any = sender, receiver: Any = receiver, topic: str = topic, count: Any = count) -> bool:
            # Until the other side has said what it receives, messages stay here.
            sender.ask(f"PUT|TOPIC|{topic}|ID|{next(count)}||sun")
            return bool(receiver.socket.poll(100))

        until(arrived)
    # The member with the bridge dies, and comes back: what it brought is away meanwhile.
    first.daemon.process.kill()
    first.daemon.process.wait()
    until(lambda: set(second.services()) == {"bank"})
    running.enter_context(first.start(member[0], more=member[1]))
    until(lambda: set(first.services()) == set(second.services()) == set(east.services()) == {"bank", "shop"})
    second.withdraw("bank")
    east.withdraw("shop")
    until(lambda: not (first.services() or second.services() or east.services()))


def test_a_dead_broker_leaves_doubtful_services_for_a_while(west: Site, east: Site, running: ExitStack) -> None:
    running.enter_context(west.start(bridge(east, **EVERY)))
    running.enter_context(east.start(bridge(west, connect=True, **EVERY, keep=1)))
    west.offer("bank")
    until(lambda: "bank" in east.services())
    west.daemon.process.kill()
    until(lambda: east.services().get("bank", {}).get("check") == "doubtful" or "bank" not in east.services())
    until(lambda: "bank" not in east.services())
    assert ask(east.daemon, "GET", "/readyz")[1]["degraded"][0]["what"] == "bridge west"
    west.daemon.process.wait()
    running.enter_context(west.start(bridge(east, **EVERY)))
    west.offer("bank")
    until(lambda: east.services().get("bank", {}).get("check") != "doubtful" and "bank" in east.services())
    until(lambda: not ask(east.daemon, "GET", "/readyz")[1].get("degraded"))


def test_messages_of_topics_travel_between_wires_both_ways(west: Site, east: Site, running: ExitStack) -> None:
    running.enter_context(west.start(bridge(east, send_topics=["news.*"], receive_topics=["orders"])))
    running.enter_context(east.start(bridge(west, connect=True, receive_topics=["*"], send_topics=["*"])))
    until(lambda: (west.bridge("east")["state"], east.bridge("west")["state"]) == ("up", "up"))
    here, there = (running.enter_context(clients_of(each.daemon)) for each in (west, east))
    subscriber, publisher = there.new(), here.new()
    assert subscriber.ask("SUB|ID|s||news.a|orders") == "OK|ID|s"
    reader = running.enter_context(peers_of(east.daemon)).reader("topic", "news.a")
    count = iter(range(1_000))

    def arrived() -> bool:
        # Until the other side has said what it receives, messages stay here.
        publisher.ask(f"PUT|TOPIC|news.a|X-Unit|m|ID|{next(count)}||sun")
        return bool(east.bridge("west")["messages_in"])

    until(arrived)
    assert "||sun" in subscriber.hear()
    content = reader.content()
    assert (content.body, content.properties["X-Unit"]) == (b"sun", "m")
    assert content.properties["X-Elkobroker-Path"].split()[1:] == ["west"]
    publisher.ask("PUT|TOPIC|other|ID|o||x")
    back = here.new()
    assert back.ask("SUB|ID|s||orders") == "OK|ID|s"
    there.new().ask("PUT|TOPIC|orders|ID|p||two")
    assert back.hear().endswith("||two")
    assert east.bridge("west")["messages_out"] == 1
    _, *words = command_of("docs/bridges.md", "brokerctl bridges").split()
    shown = ctl("--url", f"http://127.0.0.1:{east.daemon.http_port()}", *words).stdout
    assert as_shown("docs/bridges.md", "brokerctl bridges", shown, ("west.example.org", "127.0.0.1")), shown


def test_three_brokers_in_a_ring(west: Site, east: Site, tmp_path: Path, running: ExitStack) -> None:
    south = Site.of("south", tmp_path)
    keys = {**EVERY, "hops": 3}
    running.enter_context(west.start(bridge(east, **keys), bridge(south, **keys)))
    running.enter_context(east.start(bridge(west, connect=True, **keys), bridge(south, **keys)))
    running.enter_context(south.start(bridge(west, connect=True, **keys), bridge(east, connect=True, **keys)))
    for site in (west, east, south):
        site.offer(f"of-{site.name}")
    names = {"of-west", "of-east", "of-south"}
    until(lambda: all(set(site.services()) == names for site in (west, east, south)))

    def path(site: Site) -> list[str]:
        return str(site.services()["of-west"]["meta"]["elkobroker.path"]).split()[1:]

    until(lambda: path(east) == path(south) == ["west"])
    with ExitStack() as held:
        clients = {site.name: held.enter_context(clients_of(site.daemon)) for site in (west, east, south)}
        subscribers = {name: each.new() for name, each in clients.items()}
        for each in subscribers.values():
            assert each.ask("SUB|ID|s||t") == "OK|ID|s"
        publisher = clients["west"].new()
        assert publisher.ask("PUT|TOPIC|t|ID|1||once") == "OK|ID|1"
        assert publisher.ask("PUT|TOPIC|t|ID|2||last") == "OK|ID|2"
        for name, each in subscribers.items():
            assert [each.hear().rpartition("||")[2] for _ in range(2)] == ["once", "last"], name
        until(lambda: sum(row_of(site)["messages_in"] for site in (east, south)) == 4)


def test_the_name_of_a_refused_service_is_shown_to_who_may_find_all(west: Site, east: Site, running: ExitStack) -> None:
    may = (
        '[[rights]]\nusers = ["anonymous"]\noperations = ["view"]\nlisteners = ["http"]\n'
        '[[rights]]\nusers = ["anonymous"]\noperations = ["find"]\nlisteners = ["http"]\nnames = ["shop*"]\n'
    )
    (east.folder / "users.toml").write_text(may)
    (east.folder / "users.toml").chmod(0o600)
    running.enter_context(west.start(bridge(east, **EVERY)))
    west.offer("hidden-bank")
    running.enter_context(east.start(bridge(west, connect=True, **EVERY), more='[access]\nfile = "users.toml"\n'))
    row = until(lambda: (found := east.bridge("west"))["refused"] and found)
    assert "error" not in row
    for query in ("where=error=service 'hidden-bank' is not taken: no pattern or right permits it", "sort=error"):
        answer = ask(east.daemon, "GET", f"/v1/views/broker/bridges?{quote(query, safe='=')}")[1]
        assert "hidden-bank" not in str(answer["rows"])
        assert answer["total"] == (1 if query == "sort=error" else 0)
    (east.folder / "users.toml").write_text(may.replace("shop*", "*"))
    until(lambda: "hidden-bank" in east.bridge("west").get("error", ""))


def row_of(site: Site) -> dict[str, Any]:
    """The sums of the bridges of a site."""
    rows = ask(site.daemon, "GET", "/v1/views/broker/bridges")[1]["rows"]
    return {name: sum(row[name] for row in rows) for name in ("messages_in", "messages_out")}


def test_a_stopped_broker_is_noticed_and_continues(west: Site, east: Site, running: ExitStack) -> None:
    running.enter_context(west.start(bridge(east, **EVERY)))
    running.enter_context(east.start(bridge(west, connect=True, **EVERY)))
    west.offer("bank")
    until(lambda: "bank" in east.services())
    west.daemon.process.send_signal(signal.SIGSTOP)
    until(lambda: east.services()["bank"].get("check") == "doubtful")
    assert east.bridge("west")["lost"] == 1
    west.daemon.process.send_signal(signal.SIGCONT)
    until(lambda: east.services()["bank"].get("check") is None)


def test_the_rights_of_the_key_bound_what_travels(west: Site, east: Site, running: ExitStack) -> None:
    users = west.folder / "users.toml"

    def permit(*names: str) -> None:
        text = f"[[users]]\nname = \"east\"\nkeys = ['{east.public}']\n" + ANYBODY
        for operation, pattern in zip(("find", "offer", "subscribe", "publish"), (*names, "go", "come"), strict=True):
            text += f'[[rights]]\nusers = ["east"]\nlisteners = ["bridges"]\noperations = ["{operation}"]\n'
            text += f'names = ["{pattern}"]\n'
        users.write_text(text)
        users.chmod(0o600)

    permit("bank", "none")
    running.enter_context(west.start(bridge(east, **EVERY), more='[access]\nfile = "users.toml"\n'))
    running.enter_context(east.start(bridge(west, connect=True, **EVERY)))
    west.offer("bank")
    west.offer("shop")
    east.offer("depot")
    until(lambda: west.bridge("east")["refused"] and "bank" in east.services())
    assert set(east.services()) == {"bank", "depot"}
    row = west.bridge("east")
    assert row["error"] == "service 'depot' is not taken: no pattern or right permits it"
    url = f"http://127.0.0.1:{west.daemon.http_port()}"
    assert "1 were refused, the last one because service 'depot'" in ctl("--url", url, "doctor").stdout
    with clients_of(west.daemon) as here, clients_of(east.daemon) as there:
        readers = here.new(), there.new()
        for reader in readers:
            assert reader.ask("SUB|ID|s||go|come|stay") == "OK|ID|s"
        for topic in ("stay", "come", "go"):
            here.new().ask(f"PUT|TOPIC|{topic}|ID|p||from west")
        assert [readers[0].hear().rpartition("||")[2] for _ in range(3)] == ["from west"] * 3
        assert "TOPIC|go|" in readers[1].hear()
        for topic in ("stay", "go", "come"):
            there.new().ask(f"PUT|TOPIC|{topic}|ID|p||from east")
        assert [readers[1].hear().rpartition("||")[2] for _ in range(3)] == ["from east"] * 3
        assert "TOPIC|come|" in readers[0].hear()
        until(lambda: west.bridge("east")["dropped"] == 2)
    permit("shop", "depot")
    until(lambda: "depot" in west.services() and "shop" in east.services())
    assert east.services()["bank"].get("check") == "doubtful"


@pytest.mark.long
def test_a_wrong_key_and_a_program_that_is_no_broker_are_shown(west: Site, east: Site, running: ExitStack) -> None:
    stranger = Site.of("stranger", east.folder)
    running.enter_context(west.start(bridge(attrs.evolve(east, public=stranger.public), **EVERY)))
    south = Site("south", east.folder, stranger.public, port=west.daemon.http_port())
    running.enter_context(
        east.start(bridge(west, connect=True, **EVERY), bridge(south, connect=True, send_services=["*"]))
    )
    # As --check tries it.
    assert address_fault(f"tcp://127.0.0.1:{west.port}", True, PATIENCE) == ""
    fault = address_fault(f"tcp://127.0.0.1:{west.daemon.http_port()}", True, PATIENCE)
    assert fault == "an HTTP server answers there"
    west.offer("bank")
    why = "the handshake failed: no broker is there, or a key does not fit (its log may say why)"
    until(lambda: east.bridge("west").get("error") == why and east.bridge("south").get("error") == why)
    degraded = {each["what"]: each["reason"] for each in ask(east.daemon, "GET", "/readyz")[1]["degraded"]}
    assert degraded["bridge west"] == why
    west.daemon.wait_for("this client key is not allowed")
    assert "bank" not in east.services()


PROGRAM = """
import socket, sys
from contextlib import closing
from twisted.internet import epollreactor
epollreactor.install()
from twisted.internet import reactor
from broker.app.daemon import StartFailed
from broker.tap import Options, makeService
options = Options()
options.parent = {"nodaemon": True}
options.parseOptions(sys.argv[2:])
try:
    makeService(options).startService()
except StartFailed as error:
    print("failed:", error)

def look():
    with closing(socket.socket()) as peer:
        print("listens:", not peer.connect_ex(("127.0.0.1", int(sys.argv[1]))))
    reactor.stop()

reactor.callLater(0.1, look)
reactor.run()
"""
"""A program around the daemon, which goes on after a failed start."""


@pytest.mark.long
def test_a_failed_start_leaves_no_listener_of_bridges(west: Site, east: Site, tmp_path: Path) -> None:
    path, port = west.folder / "elkobroker.toml", free_port()
    path.write_text(
        f"[broker]\nstrict_listeners = true\n[http]\nenabled = false\n{ROUTERS}{listener('main')}"
        f'[bridges]\nsite = "west"\nsecret_key_file = "west.private"\nlisten = "tcp://127.0.0.1:{port}"\n{bridge(east)}'
    )
    with socket.create_server(("127.0.0.1", 0)) as taken:
        console = str(taken.getsockname()[1])
        options = "--config", str(path), "--state", str(tmp_path / "state"), "--console-port", console
        told = script(PROGRAM, str(port), *options)
    assert f"failed: console: cannot listen on 127.0.0.1:{console}" in told
    assert "listens: False" in told
