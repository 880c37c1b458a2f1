"""A host that loses power while its providers are registered: no FIN and no RST, in two network namespaces."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from broker.net.silent_hosts import GONE_WITHIN
from tests.access.users import OPEN
from tests.cluster.farm.network import Host, Network
from tests.integration.configurations import OFF, listener
from tests.integration.daemon import Daemon
from tests.patience import until

pytestmark = pytest.mark.long

ANY = "tcp:0:interface=0.0.0.0"

CONFIG = f"""{OFF}
[http]
endpoint = "{ANY}"
{OPEN}""" + "".join(
    listener(name, f'transport = "{transport}"', endpoint=ANY)
    for name, transport in (("main", "tcp"), ("rtcp", "rtcp"), ("poll", "http"))
)

PROVIDERS = '''
"""Providers over three transports, and a reader of a stream: each says what is to be said and nothing more."""
import json, re, socket, sys, threading, urllib.request
host, own, main, rtcp, poll, http = *sys.argv[1:3], *map(int, sys.argv[3:])
def messages(name):
    offered = [{"type": "servicedesc", "service": name, "hostport": own + ":5", "protocol": "tcp"}]
    yield {"to": "client", "op": "auth", "label": name}
    yield {"to": "client", "op": "willserve", "services": offered}
def blocks(name):
    return "".join(json.dumps(each) + "\\n\\n" for each in messages(name)).encode()
line = socket.create_connection((host, main))
line.sendall(blocks("over-tcp"))
session = socket.create_connection((host, rtcp))
session.sendall(b"start\\n")
session.recv(1000)
session.sendall(b"1 0\\n" + json.dumps(next(messages("over-rtcp"))).encode() + b"\\n\\n")
session.sendall(b"2 0\\n" + json.dumps(list(messages("over-rtcp"))[1]).encode() + b"\\n\\n")
base = f"http://{host}:{poll}"
id = json.load(urllib.request.urlopen(base + "/connect"))["sessionid"]
plain = {"Content-Type": "text/plain"}
urllib.request.urlopen(urllib.request.Request(base + f"/xmit/{id}/1", blocks("over-poll"), plain)).read()
def select():
    urllib.request.urlopen(base + f"/select/{id}/1").read()
threading.Thread(target=select, daemon=True).start()
stream = urllib.request.urlopen(f"http://{host}:{http}/v1/watch")
print("ready", flush=True)
threading.Event().wait()
'''


@pytest.fixture
def network() -> Iterator[Network]:
    """The hosts of the broker and of its peers."""
    with Network(["broker", "peers"]) as network:
        yield network


def _link(host: Host, state: str) -> None:
    """Set the only link of a host: a host without power answers nothing, not even at its address."""
    subprocess.run([*host.runner, "ip", "link", "set", "eth0", state], check=True)


def _get(host: Host, port: int, path: str) -> Any:
    """The answer of the API, read inside the namespace of the broker."""
    code = f"import urllib.request as r; print(r.urlopen('http://127.0.0.1:{port}{path}', timeout=60).read().decode())"
    run = subprocess.run([*host.runner, sys.executable, "-c", code], capture_output=True, text=True)
    return json.loads(run.stdout)


def _connections(host: Host, other: Host) -> str:
    """The TCP connections to the other host, as the kernel lists them."""
    command = [*host.runner, "ss", "-Htn", "dst", other.address]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def test_its_services_and_connections_are_gone_in_time(network: Network, tmp_path: Path) -> None:
    here, there = network.hosts.values()
    config = tmp_path / "elkobroker.toml"
    config.write_text(CONFIG)
    with ExitStack() as stack:
        daemon = stack.enter_context(Daemon(tmp_path, "--config", str(config), runner=here.runner))
        ports = [daemon.port("main"), daemon.port("rtcp"), daemon.port("poll"), daemon.http_port()]
        command = [*there.runner, sys.executable, "-c", PROVIDERS, here.address, there.address, *map(str, ports)]
        providers = stack.enter_context(subprocess.Popen(command, stdout=subprocess.PIPE, text=True))
        stack.callback(providers.kill)
        assert providers.stdout is not None
        assert providers.stdout.readline() == "ready\n"
        names = ["over-tcp", "over-rtcp", "over-poll"]

        def found() -> list[str]:
            return [name for name in names if _get(here, ports[-1], f"/v1/services/{name}")["services"]]

        until(lambda: found() == names)
        assert _connections(here, there)
        began = time.monotonic()
        _link(there, "down")
        took: dict[str, float] = {}
        doubtful = False
        while len(took) < len(names) + 1 and time.monotonic() - began < 3 * GONE_WITHIN:
            time.sleep(1)
            services = _get(here, ports[-1], "/v1/services/over-tcp")["services"]
            doubtful = doubtful or any(each.get("check", {}).get("state") == "doubtful" for each in services)
            left = {*found(), *(["connections"] if _connections(here, there) else [])}
            for name in {*names, "connections"} - left - took.keys():
                took[name] = time.monotonic() - began
        print(took)
        assert took.keys() == {*names, "connections"}
        # Its host acknowledged no ping, though it has never answered any.
        assert doubtful
        # Not the services alone: the reader of a stream leaves as well. Five seconds for a look on a busy machine.
        assert max(took.values()) < GONE_WITHIN + 5, took


FARM = '''
"""Providers that answer pings, report loads, and connect again when their connection breaks, as real servers do."""
import json, socket, sys, threading, time
host, own, port, count = *sys.argv[1:3], int(sys.argv[3]), int(sys.argv[4])
def serve(number):
    offered = [{"type": "servicedesc", "service": "farm", "hostport": f"{own}:{number}", "protocol": "tcp"}]
    while True:
        try:
            with socket.create_connection((host, port), 5) as sock:
                def send(**message):
                    sock.sendall(json.dumps(message).encode() + b"\\n\\n")
                sock.settimeout(1)
                send(to="broker", op="auth", label=f"p{number}")
                send(to="broker", op="willserve", services=offered)
                data = b""
                while True:
                    try:
                        more = sock.recv(65536)
                        if not more:
                            break
                        data += more
                    except TimeoutError:
                        send(to="broker", op="load", factor=0.5)
                    while b"\\n\\n" in data:
                        block, _, data = data.partition(b"\\n\\n")
                        message = json.loads(block)
                        if message["op"] == "ping":
                            send(to="broker", op="pong", tag=message.get("tag"))
        except OSError:
            time.sleep(1)
for number in range(1, count + 1):
    threading.Thread(target=serve, args=(number,), daemon=True).start()
threading.Event().wait()
'''

MANY = 8


def test_a_farm_behind_a_cut_network_is_found_until_it_is_back(network: Network, tmp_path: Path) -> None:
    here, there = network.hosts.values()
    config = tmp_path / "elkobroker.toml"
    config.write_text(CONFIG)
    with ExitStack() as stack:
        daemon = stack.enter_context(Daemon(tmp_path, "--config", str(config), runner=here.runner))
        port = daemon.http_port()
        numbers = [str(daemon.port("main")), str(MANY)]
        command = [*there.runner, sys.executable, "-c", FARM, here.address, there.address, *numbers]
        providers = stack.enter_context(subprocess.Popen(command))
        stack.callback(providers.kill)

        def states() -> list[str]:
            found = _get(here, port, "/v1/services/farm")["services"]
            return [each.get("check", {}).get("state", "") for each in found]

        until(lambda: states() == ["passing"] * MANY)
        _link(there, "down")
        began = time.monotonic()
        while _connections(here, there):
            assert time.monotonic() - began < GONE_WITHIN + 5
            assert len(states()) == MANY
            time.sleep(1)
        # All connections are gone, and no service is.
        assert states() == ["failing"] * MANY
        _link(there, "up")
        until(lambda: len(states()) == MANY and "failing" not in states())
