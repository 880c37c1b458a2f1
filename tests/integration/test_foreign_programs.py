"""Third-party programs beside the broker: each is started as it is shipped, and does one real thing.

`PROGRAMS` is the list of all, those that other files try included. This module, run as a program, writes it into
docs/programs.md, with the versions on this machine.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import random
import re
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

import attrs
import dns.resolver
import pytest
import zmq

from tests.integration.configurations import DNS, ROUTERS, listener
from tests.integration.daemon import ROOT, Daemon
from tests.integration.http_api import ask
from tests.packages import MISSING, REFUSED, program
from tests.patience import PATIENCE, until
from tests.ports import free_port

pytestmark = pytest.mark.long

PAGE = ROOT / "docs" / "programs.md"
BEGIN, END = "<!-- programs -->\n", "<!-- end of programs -->\n"
"""The marks around the table in `PAGE`."""

NODE_MODULES = ROOT / ".venv" / "share" / "zeromq" / "node_modules"
"""The folder into which `etc/setup.sh test` installs the package zeromq of npm."""
JEROMQ = Path("/usr/share/java/jeromq.jar")

CONFIG = listener("main") + ROUTERS + DNS


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    """A broker with the services that the programs look for: an HTTP server is its own."""
    directory = tmp_path_factory.mktemp("foreign")
    (directory / "x.toml").write_text(CONFIG)
    with Daemon(directory, "--config", "x.toml") as running:
        for name, hostport, protocol in (("bank", "192.0.2.1:7000", "tcp"), ("web", own(running), "http")):
            body = {"hostport": hostport, "protocol": protocol, "ttl": 600}
            assert ask(running, "PUT", f"/v1/services/{name}/1", body)[0] < 300
        yield running


def own(daemon: Daemon) -> str:
    """The address of the broker's HTTP."""
    return f"127.0.0.1:{daemon.http_port()}"


def dns_port(daemon: Daemon) -> int:
    return int(daemon.wait_for(r"dns on 127\.0\.0\.1:(\d+)")[1])


@contextmanager
def running(*command: str | Path, cwd: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Run a program in the foreground, with its output in a file of the directory."""
    with (cwd / "output").open("wb") as output:
        process = subprocess.Popen(list(map(str, command)), cwd=cwd, stdout=output, stderr=subprocess.STDOUT)
        try:
            yield process
        finally:
            process.terminate()
            process.wait(PATIENCE)


def requests(daemon: Daemon) -> list[tuple[int, list[str], str]]:
    """A port of each wire over ZeroMQ, with a request and a part of its answer."""
    mtl = int(daemon.wait_for(r"mtl on tcp://127\.0\.0\.1:(\d+)")[1])
    return [
        (daemon.mc0_port(), ["", "NOOP", "ID", "1"], "OK"),
        (daemon.dbp_port(), ["", "ping", "1795246621.35", "x"], "pong"),
        (mtl, ["", "Connection.Open", '{"protocol":{"name":"MTL","version":1}}'], "Ready"),
    ]


NODE = """
const zmq = require("zeromq")
async function main() {
  const socket = new zmq.Dealer({linger: 0})
  socket.connect("tcp://127.0.0.1:" + process.argv[1])
  await socket.send(JSON.parse(process.argv[2]))
  const frames = await socket.receive()
  console.log(frames.map(String).join(" "))
  process.exit(0)
}
main()
"""


def node_asks_each_wire(daemon: Daemon, tmp_path: Path) -> None:
    if not NODE_MODULES.exists():
        pytest.skip(f"{MISSING}: npm-zeromq (the package zeromq of npm)")
    for port, request, answer in requests(daemon):
        command = [program("node"), "-e", NODE, str(port), json.dumps(request)]
        done = subprocess.run(command, cwd=NODE_MODULES, capture_output=True, text=True, check=False, timeout=PATIENCE)
        assert answer in done.stdout, done.stderr


def jeromq_asks_each_wire(daemon: Daemon, tmp_path: Path) -> None:
    from py4j.java_gateway import GatewayParameters, JavaGateway, launch_gateway

    if not JEROMQ.exists():
        pytest.skip(f"{MISSING}: libjeromq-java ({JEROMQ})")
    [jar] = Path(importlib.metadata.distribution("pyspark").locate_file("pyspark/jars")).glob("py4j-*.jar")  # type: ignore[arg-type]
    port = launch_gateway(classpath=str(JEROMQ), jarpath=str(jar), die_on_exit=True, java_path=java())
    gateway = JavaGateway(gateway_parameters=GatewayParameters(port=port, auto_convert=True))
    try:
        context = gateway.jvm.org.zeromq.ZMQ.context(1)
        for number, request, answer in requests(daemon):
            socket = context.socket(zmq.DEALER)
            socket.setReceiveTimeOut(int(PATIENCE * 1_000))
            socket.setLinger(0)
            socket.connect(f"tcp://127.0.0.1:{number}")
            for frame in request[:-1]:
                socket.sendMore(frame)
            socket.send(request[-1])
            frames = [socket.recvStr()]
            while socket.hasReceiveMore():
                frames.append(socket.recvStr())
            socket.close()
            assert any(answer in str(frame) for frame in frames)
    finally:
        gateway.shutdown()


def java() -> str:
    """The Java of the capacity jobs."""
    bundled = ROOT / ".venv" / "java" / "bin" / "java"
    return str(bundled) if bundled.exists() else program("java")


UNBOUND = """
server:
  interface: 127.0.0.1@{port}
  username: ""
  chroot: ""
  directory: "{directory}"
  pidfile: ""
  use-syslog: no
  do-not-query-localhost: no
  domain-insecure: "elkobroker."
  module-config: "iterator"
  local-zone: "elkobroker." nodefault
stub-zone:
  name: "elkobroker."
  stub-addr: 127.0.0.1@{dns}
remote-control:
  control-enable: no
"""


def resolved(port: int) -> list[str]:
    """The places of the service `bank` as a name server has them."""
    resolver = dns.resolver.Resolver(configure=False)
    resolver.nameservers, resolver.port, resolver.lifetime = ["127.0.0.1"], port, 5.0
    try:
        return [f"{each.target} {each.port}" for each in resolver.resolve("bank.service.elkobroker.", "SRV")]
    except (dns.resolver.NoNameservers, dns.resolver.LifetimeTimeout):
        return []


def unbound_forwards_the_domain(daemon: Daemon, tmp_path: Path) -> None:
    port = free_port()
    file = tmp_path / "unbound.conf"
    file.write_text(UNBOUND.format(port=port, directory=tmp_path, dns=dns_port(daemon)))
    with running(program("unbound"), "-d", "-c", file, cwd=tmp_path):
        until(lambda: resolved(port) == ["c0000201.addr.elkobroker. 7000"])


def dnsmasq(daemon: Daemon, host: str, port: int, cwd: Path) -> AbstractContextManager[subprocess.Popen[bytes]]:
    options = ["--no-resolv", "--no-hosts", "--conf-file=/dev/null", "--pid-file=", "--user=", "--bind-interfaces"]
    places = [f"--port={port}", f"--listen-address={host}", f"--server=/elkobroker/127.0.0.1#{dns_port(daemon)}"]
    return running(program("dnsmasq"), "--keep-in-foreground", *options, *places, cwd=cwd)


def dnsmasq_forwards_the_domain(daemon: Daemon, tmp_path: Path) -> None:
    port = free_port()
    with dnsmasq(daemon, "127.0.0.1", port, tmp_path):
        until(lambda: resolved(port) == ["c0000201.addr.elkobroker. 7000"])


PROMETHEUS = """
rule_files: ["{rules}"]
scrape_configs:
  - job_name: broker
    scrape_interval: 1s
    static_configs: [{{targets: ["{http}"]}}]
  - job_name: farm
    scrape_interval: 1s
    http_sd_configs: [{{url: "http://{http}/v1/discovery/prometheus?protocol=http", refresh_interval: 1s}}]
    relabel_configs: [{{source_labels: [__meta_elkobroker_service], target_label: service}}]
  - job_name: by-dns
    scrape_interval: 1s
    dns_sd_configs: [{{names: [watcher.service.elkobroker.], type: SRV, refresh_interval: 1s}}]
"""


def prometheus_finds_services_and_evaluates_the_alerts(daemon: Daemon, tmp_path: Path) -> None:
    port = free_port()
    rules = ROOT / "etc/prometheus/elkobroker.rules.yml"
    (tmp_path / "prometheus.yml").write_text(PROMETHEUS.format(http=own(daemon), rules=rules))
    options = ["--config.file=prometheus.yml", f"--web.listen-address=127.0.0.1:{port}", "--storage.tsdb.path=data"]
    # It asks the name servers of the system, at port 53: here one that it alone sees.
    if os.geteuid() != 0:
        pytest.skip(f"{REFUSED}: a name server at port 53, and a file over /etc/resolv.conf")
    host = f"127.{random.randrange(1, 255)}.{random.randrange(255)}.53"
    (tmp_path / "resolv.conf").write_text(f"nameserver {host}\n")
    own_file = f'mount --bind {tmp_path}/resolv.conf /etc/resolv.conf && exec "$@"'
    command = ["unshare", "--mount", "sh", "-c", own_file, "sh", program("prometheus"), *options]
    body = {"hostport": f"127.0.0.1:{port}", "ttl": 600}
    assert ask(daemon, "PUT", "/v1/services/watcher/1", body)[0] == 201

    def answer(path: str) -> Any:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/api/v1/{path}", timeout=PATIENCE) as response:
                return json.load(response)["data"]
        except OSError:
            return None

    def scraped() -> set[str]:
        data = answer("targets?state=active")
        up = [each for each in data["activeTargets"] if each["health"] == "up"] if data else []
        return {each["labels"].get("service", each["labels"]["job"]) for each in up}

    with dnsmasq(daemon, host, 53, tmp_path), running(*command, cwd=tmp_path):
        until(lambda: scraped() == {"broker", "web", "by-dns"})
        assert answer("query?query=" + quote('{job="broker",__name__=~"elkobroker_.*"}'))["result"]
        groups = answer("rules")["groups"]
        assert groups
        until(lambda: all(rule["health"] == "ok" for group in answer("rules")["groups"] for rule in group["rules"]))


def curl_offers_finds_and_follows(daemon: Daemon, tmp_path: Path) -> None:
    def curl(*words: str) -> str:
        command = [program("curl"), "--silent", "--fail", "--max-time", str(PATIENCE), *words]
        return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True).stdout

    url = f"http://{own(daemon)}/v1/services/curled"
    with running(program("curl"), "--silent", "--no-buffer", f"http://{own(daemon)}/v1/watch?since=1-0", cwd=tmp_path):
        until(lambda: (tmp_path / "output").stat().st_size > 0)
        curl("-X", "PUT", f"{url}/1", "-d", '{"hostport": "192.0.2.2:80", "ttl": 60}')
        assert json.loads(curl(url))["services"][0]["hostport"] == "192.0.2.2:80"
        until(lambda: "curled" in (tmp_path / "output").read_text())
        curl("-X", "DELETE", f"{url}/1")


Check = Callable[[Daemon, Path], None]


@attrs.frozen
class Program:
    """A program: the command that prints its version, what it does, and the function or file that tries it."""

    name: str
    version: Sequence[str]
    does: str
    tried: Check | str


def library(name: str) -> list[str]:
    return [sys.executable, "-c", f"from importlib.metadata import version; print(version({name!r}))"]


PROGRAMS = [
    Program("libzmq, through pyzmq", [sys.executable, "-c", "import zmq; print(zmq.zmq_version())"],
            "every type of socket and each option, at mc0, DBP and MTL", "integration/test_libzmq_peers.py"),
    Program("zeromq for Node.js", ["node", "-p", f"require('{NODE_MODULES}/zeromq/package.json').version"],
            "a DEALER sends requests to mc0, DBP and MTL", node_asks_each_wire),
    Program("JeroMQ, without libzmq", ["dpkg-query", "-W", "-f", "${Version}", "libjeromq-java"],
            "a DEALER sends requests to mc0, DBP and MTL", jeromq_asks_each_wire),
    Program("HAProxy", ["haproxy", "-v"], "forwards TCP, TLS, HTTP and WebSocket, with PROXY or HTTP fields",
            "integration/test_proxies.py"),
    Program("nginx", ["nginx", "-v"], "HTTP, long polls and WebSocket, at / and below a path",
            "integration/test_http_behind_proxies.py"),
    Program("unbound", ["unbound", "-V"], "answers for the broker's domain", unbound_forwards_the_domain),
    Program("dnsmasq", ["dnsmasq", "--version"], "answers for the broker's domain", dnsmasq_forwards_the_domain),
    Program("dnspython", library("dnspython"), "resolves services", "integration/test_dns.py"),
    Program("Prometheus", ["prometheus", "--version"],
            "finds targets by `http_sd` and `dns_sd`, and evaluates the alerts",
            prometheus_finds_services_and_evaluates_the_alerts),
    Program("promtool", ["promtool", "--version"], "tests the alerts", "integration/test_monitoring.py"),
    Program("curl", ["curl", "--version"], "offers, finds, and follows the events", curl_offers_finds_and_follows),
    Program("websockets for Python", library("websockets"), "Elko and the events of HTTP over WebSocket",
            "integration/test_transports.py"),
    Program("etcd", ["etcd", "--version"], "holds the registry of a cluster", "cluster/test_embedded_etcd.py"),
    Program("PostgreSQL", ["psql", "--version"], "holds durable queues", "cluster/test_queue_takeover.py"),
    Program("systemd", ["systemctl", "--version"], "starts, reloads, watches and stops the broker",
            "install/test_debian_package.py"),
    Program("podman, podman-compose", ["podman", "--version"], "three brokers by the compose file",
            "install/test_container.py"),
    Program("Chromium", ["chromium", "--version"], "shows the page", "page"),
]  # fmt: skip

OWN = [each for each in PROGRAMS if not isinstance(each.tried, str)]


@pytest.mark.parametrize("tried", OWN, ids=lambda each: each.name)
def test_a_foreign_program_does_its_work_with_the_broker(daemon: Daemon, tmp_path: Path, tried: Program) -> None:
    assert not isinstance(tried.tried, str)
    tried.tried(daemon, tmp_path)


def rows(version_of: Callable[[Program], str]) -> str:
    """The table of the page."""
    head = "\n| program | version | what it does |\n|---|---|---|\n"
    return head + "".join(f"| {each.name} | {version_of(each)} | {each.does} |\n" for each in PROGRAMS) + "\n"


def installed(tried: Program) -> str:
    """The version on this machine, "-" if it is missing."""
    name, *words = tried.version
    try:
        command = [name if "/" in name else program(name), *words]
    except pytest.skip.Exception:
        return "-"
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    found = re.search(r"\d+(\.\d+)*", done.stdout + done.stderr)
    return found[0] if found else "-"


def test_the_page_has_all_programs_and_each_has_its_test() -> None:
    for each in PROGRAMS:
        assert not isinstance(each.tried, str) or (ROOT / "tests" / each.tried).exists()
    shown = PAGE.read_text().partition(BEGIN)[2].partition(END)[0]
    versions = dict(re.findall(r"^\| ([^|]+) \| (\d\S*) \|", shown, re.MULTILINE))
    sentence = "write it again: python -m tests.integration.test_foreign_programs"
    assert shown == rows(lambda each: versions.get(each.name, "")), sentence


def main() -> None:
    """Write the table, with the versions on this machine."""
    before, _, rest = PAGE.read_text().partition(BEGIN)
    PAGE.write_text(before + BEGIN + rows(installed) + rest[rest.index(END) :])


if __name__ == "__main__":
    main()
