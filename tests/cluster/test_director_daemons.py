"""Directors of two real daemons with a real etcd: users, contexts and reservations are those of the whole farm."""

from __future__ import annotations

import signal
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.real_etcd import Etcd
from tests.integration.daemon import Daemon, Peer
from tests.patience import PATIENCE

OPTIONS = ("--director-port", "0", "--mc0-port", "off", "--mtl-port", "off", "--dbp-port", "off")


@pytest.fixture(scope="module")
def etcd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Etcd]:
    with Etcd(tmp_path_factory.mktemp("etcd")) as running:
        yield running


def broker(directory: Path, etcd: Etcd, name: str) -> Daemon:
    home = directory / name
    home.mkdir(exist_ok=True)
    return Daemon(home, *OPTIONS, "--cluster", etcd.url, "--name", name)


def connect(daemon: Daemon, role: str, label: str = "tester") -> Peer:
    port = int(daemon.wait_for(r"director listener 'main' on \S+:(\d+) ").group(1))
    peer = Peer(socket.create_connection(("127.0.0.1", port), PATIENCE))
    peer.send(to=role, op="auth", label=label)
    return peer


def server(daemon: Daemon, label: str) -> Peer:
    peer = connect(daemon, "provider", label)
    peer.send(to="provider", op="address", protocol="tcp", hostport=f"{label}:1")
    peer.send(to="provider", op="willserve", context="context")
    return peer


def until(ask: Callable[[], Any], wanted: Any) -> None:
    """Ask again until the answer is the wanted one."""
    end = time.monotonic() + PATIENCE
    while (answer := ask()) != wanted:
        assert time.monotonic() < end, answer
        time.sleep(0.05)


def where(admin: Peer, user: str) -> Any:
    return admin.ask(to="admin", op="find", user=user).get("contexts")


def providers(admin: Peer) -> Any:
    return sorted(admin.ask(to="admin", op="listproviders")["providers"])


def test_two_directors_are_one_farm(tmp_path: Path, etcd: Etcd) -> None:
    with (
        broker(tmp_path, etcd, "a") as a,
        broker(tmp_path, etcd, "b") as b,
        server(a, "cs1") as one,
        connect(b, "admin") as admin,
        connect(b, "director") as user,
    ):
        until(lambda: providers(admin), ["cs1"])
        answer = user.ask(to="director", op="reserve", protocol="tcp", context="context-inn", user="user-joe")
        assert answer["hostport"] == "cs1:1"
        told = one.receive()
        assert (told["op"], told["reservation"]) == ("doreserve", answer["reservation"])
        one.send(to="provider", op="context", context="context-inn", open=True, yours=True)
        one.send(to="provider", op="user", context="context-inn", user="user-joe-1", on=True)
        until(lambda: where(admin, "user-joe"), ["context-inn"])
        admin.send(to="admin", op="say", context="context-inn", text="hello")
        assert one.receive()["text"] == "hello"
        # The same server at the other broker, too: it is one, and receives each message once.
        with server(b, "cs1") as again:
            again.send(to="provider", op="context", context="context-inn", open=True, yours=False)
            again.send(to="provider", op="user", context="context-inn", user="user-joe-1", on=True)
            with connect(a, "admin") as other:
                until(lambda: other.ask(to="admin", op="dump", depth=0)["numusers"], 1)
                assert providers(other) == ["cs1"]
                other.send(to="admin", op="say", user="user-joe", text="once")
                assert one.receive()["text"] == "once"
            # The broker of the first connection dies: the user is found through the second one.
            a.process.send_signal(signal.SIGKILL)
            a.process.wait()
            answer = None
            until(lambda: where(admin, "user-joe"), ["context-inn"])
            assert providers(admin) == ["cs1"]
            answer = user.ask(to="director", op="reserve", protocol="tcp", context="context-inn", user="user-ann")
            assert answer["hostport"] == "cs1:1"


def test_a_director_that_restarts_has_its_reservations(tmp_path: Path, etcd: Etcd) -> None:
    with (
        broker(tmp_path, etcd, "c") as b,
        broker(tmp_path, etcd, "d") as a,
        server(b, "cs2") as there,
        connect(a, "director") as user,
        connect(a, "admin") as admin,
    ):
        there.send(to="provider", op="context", context="context-cell", open=True, yours=False, maxcap=1)
        until(lambda: admin.ask(to="admin", op="find", context="context-cell")["open"], True)
        answer = user.ask(to="director", op="reserve", protocol="tcp", context="context-cell", user="user-joe")
        assert "reservation" in answer
        a.signal(signal.SIGTERM)
        a.ended()
        with broker(tmp_path, etcd, "d") as back, connect(back, "admin") as admin:
            until(lambda: admin.ask(to="admin", op="find", context="context-cell")["open"], True)
            with connect(back, "director") as user:
                denied = user.ask(to="director", op="reserve", protocol="tcp", context="context-cell", user="user-ann")
                assert denied["deny"] == "requested context full"
