"""DNS from outside: dnspython and dig as clients, bad neighbours, the console, a reload, restarts."""

from __future__ import annotations

import signal
import socket
import struct
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import dns.flags
import dns.message
import dns.query
import dns.rcode
import dns.resolver
import pytest
from dns.message import Message

from broker.wires.dns.dns_entry import COUNTERS
from tests.integration.configurations import OFF
from tests.integration.daemon import Daemon, Peer
from tests.integration.mc0_clients import console, counters, run_to_its_end, shown
from tests.integration.mtl_peers import ends_in_order
from tests.packages import program
from tests.patience import PATIENCE, until
from tests.ports import free_port

HERE = "127.0.0.1"
BANK = "bank.service.elkobroker."


def dns_port(daemon: Daemon) -> int:
    """The port of both sockets."""
    return int(daemon.wait_for(r"dns on \S+:(\d+) \(udp and tcp\)").group(1))


def configured(directory: Path, section: str) -> str:
    path = directory / "elkobroker.toml"
    elko = '[[elko.listeners]]\nname = "main"\nendpoint = "tcp:0:interface=127.0.0.1"\n'
    path.write_text(f'[dns]\nenabled = true\nendpoint = "tcp:0:interface=127.0.0.1"\n{section}\n{OFF}{elko}')
    return str(path)


def query(name: str = BANK, kind: str = "A", **options: Any) -> Message:
    return dns.message.make_query(name, kind, **options)


def by_udp(daemon: Daemon, asked: Message) -> Message:
    return dns.query.udp(asked, HERE, PATIENCE, dns_port(daemon))


def by_tcp(daemon: Daemon, asked: Message) -> Message:
    return dns.query.tcp(asked, HERE, PATIENCE, dns_port(daemon))


def records(message: Message) -> list[str]:
    return [rdata.to_text() for rrset in message.answer for rdata in rrset]


def connected(daemon: Daemon) -> socket.socket:
    return socket.create_connection((HERE, dns_port(daemon)), PATIENCE)


def framed(data: bytes) -> bytes:
    return struct.pack("!H", len(data)) + data


def read(stream: socket.socket) -> bytes:
    """The next message; nothing at the end of input."""
    with stream.makefile("rb", buffering=0) as file:
        length = file.read(2)
        return b"" if not length else _exactly(file, struct.unpack("!H", length)[0])


def _exactly(file: Any, length: int) -> bytes:
    data = b""
    while len(data) < length:
        data += file.read(length - len(data))
    return data


def offered(daemon: Daemon, *places: str, name: str = "bank", **auth: Any) -> Peer:
    """A server that offers a service at these places."""
    peer = daemon.connect(**auth)
    peer.send(to="client", op="willserve", services=[{"service": name, "hostport": each} for each in places])
    peer.done()
    return peer


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    with Daemon(tmp_path_factory.mktemp("dns"), "--dns-port", "0") as running:
        dns_port(running)
        yield running
        ends_in_order(running)


def test_a_service_is_found_by_both_ways(daemon: Daemon) -> None:
    with offered(daemon, "192.0.2.1:7000", "db.example.com:7001", label="ctx-1"):
        for ask in (by_udp, by_tcp):
            assert records(ask(daemon, query())) == ["192.0.2.1"]
            assert sorted(records(ask(daemon, query(kind="SRV")))) == [
                "0 1000 7000 c0000201.addr.elkobroker.",
                "0 1000 7001 db.example.com.",
            ]
    assert until(lambda: by_udp(daemon, query()).rcode()) == dns.rcode.NXDOMAIN


def test_a_resolver_goes_to_tcp_where_udp_is_too_short(daemon: Daemon) -> None:
    places = [f"{'host' * 10}-{number}.example.com:80" for number in range(20)]
    with offered(daemon, *places, name="many"):
        cut = by_udp(daemon, query("many.service.elkobroker.", "SRV"))
        assert cut.flags & dns.flags.TC
        resolver = dns.resolver.Resolver(configure=False)
        resolver.nameservers, resolver.port = [HERE], dns_port(daemon)
        found = resolver.resolve("many.service.elkobroker.", "SRV", lifetime=PATIENCE)
        assert len(list(found)) == 20
        resolver.use_edns(0, 0, 4096)
        assert len(list(resolver.resolve("many.service.elkobroker.", "SRV", lifetime=PATIENCE))) == 20


@pytest.mark.parametrize("options", [[], ["+tcp"], ["+noedns"], ["+ignore", "+bufsize=512"], ["+dnssec"]])
def test_dig_finds_it(daemon: Daemon, options: list[str]) -> None:
    with offered(daemon, "192.0.2.1:7000", name="dug"):
        command = [program("dig"), f"@{HERE}", "-p", str(dns_port(daemon)), "+time=20", "+tries=1", *options]
        name = "dUg.service.elkobroker."
        found = subprocess.run([*command, name, "SRV"], capture_output=True, text=True, check=True).stdout
        assert "status: NOERROR" in found
        assert "flags: qr aa rd;" in found
        assert "0 1000 7000 c0000201.addr.elkobroker." in found
        assert "\nc0000201.addr.elkobroker." in found
        assert "WARNING: Message" not in found
        assert f"\n;{name}" in found
        missing = subprocess.run([*command, f"no.{name}", "A"], capture_output=True, text=True, check=True).stdout
        assert "status: NXDOMAIN" in missing
        assert "\nelkobroker.\t\t5\tIN\tSOA" in missing
        for kind, text in (("ANY", '"RFC8482"'), ("TXT", '"hostport=192.0.2.1:7000"'), ("A", "192.0.2.1")):
            assert text in subprocess.run([*command, name, kind], capture_output=True, text=True, check=True).stdout


def test_the_console_shows_names_connections_and_counts(daemon: Daemon) -> None:
    with offered(daemon, "192.0.2.1:7000", name="Shown"), connected(daemon) as stream:
        stream.sendall(framed(query().to_wire()))
        read(stream)
        [row] = shown(daemon, "dns names shown")
        assert row == {
            "name": "shown", "service": "Shown", "protocol": "tcp", "answered": 1, "secret": 0, "textual": 0,
        }  # fmt: skip
        address = "{}:{}".format(*stream.getsockname())
        assert shown(daemon, f"dns connections {address}") == [{"address": address, "queries": 1}]
        assert "dns names" in console(daemon, "help")
        counted = {name: count for name, count in counters(daemon).items() if name.startswith("dns_")}
        assert counted["dns_queries.tcp"] > 0
        assert counted["dns_connections.open"] > 0
        families = {counter.name for counter in COUNTERS}
        assert {name for name in counted if name not in families and name.partition(".")[0] not in families} == set()
        [listener] = shown(daemon, "broker listeners dns")
        assert (listener["where"], listener["ready"]) == (f"{HERE}:{dns_port(daemon)}", True)
        assert f"{HERE}:{dns_port(daemon)}" in console(daemon, "status")


def test_idle_and_begun_connections_end(tmp_path: Path) -> None:
    with Daemon(tmp_path, "--config", configured(tmp_path, "idle = 0.2\nconnections = 100")) as daemon:
        with connected(daemon) as idle, connected(daemon) as begun, connected(daemon) as busy:
            begun.sendall(framed(query().to_wire())[:-1])
            busy.sendall(framed(query().to_wire()))
            assert read(busy) != b""
            assert read(idle) == read(begun) == read(busy) == b""
        assert counters(daemon)["dns_refused.too-slow"] == 1
        ends_in_order(daemon)


def test_an_address_has_its_share_of_connections_and_responses(tmp_path: Path) -> None:
    section = "connections_per_address = 3\nresponse_rate = 1.0\nresponse_burst = 5\nlimit_loopback = true"
    with Daemon(tmp_path, "--config", configured(tmp_path, section)) as daemon, ExitStack() as held:
        kept = [held.enter_context(connected(daemon)) for _ in range(3)]
        for stream in kept:
            stream.sendall(framed(query().to_wire()))
            assert read(stream) != b""
        with connected(daemon) as one_more:
            assert read(one_more) == b""
        with closing(socket.socket(socket.AF_INET, socket.SOCK_DGRAM)) as peer:
            peer.bind(("127.0.0.2", 0))
            peer.settimeout(PATIENCE)
            for _ in range(20):
                peer.sendto(query().to_wire(), (HERE, dns_port(daemon)))
            flags = [dns.message.from_wire(peer.recv(512)).flags & dns.flags.TC for _ in range(12)]
        assert sum(not flag for flag in flags) in (5, 6)
        assert counters(daemon)["dns_limited.dropped"] >= 6


def test_a_reload_changes_domain_and_time(tmp_path: Path) -> None:
    with Daemon(tmp_path, "--config", configured(tmp_path, "")) as daemon, offered(daemon, "192.0.2.1:7000"):
        assert by_udp(daemon, query()).answer[0].ttl == 5
        configured(tmp_path, 'domain = "farm.test"\nttl = 9')
        daemon.signal(signal.SIGHUP)
        daemon.wait_for("the configuration was reloaded")
        assert by_udp(daemon, query("bank.service.farm.test.")).answer[0].ttl == 9
        assert by_udp(daemon, query()).rcode() == dns.rcode.REFUSED
        configured(tmp_path, 'auth = "open"')
        daemon.signal(signal.SIGHUP)
        daemon.wait_for("not reloaded: .*: dns.auth: is no key any more")


def test_after_a_restart_services_are_answered_until_their_servers_are_back(tmp_path: Path) -> None:
    with Daemon(tmp_path, "--dns-port", "0") as daemon, offered(daemon, "192.0.2.1:7000", name="Bank", label="b") as _:
        until(lambda: (tmp_path / "state" / "elkobroker.sqlite3").exists())
        daemon.signal(signal.SIGTERM)
        daemon.ended()
    with Daemon(tmp_path, "--dns-port", "0") as daemon:
        assert records(by_udp(daemon, query(kind="SRV"))) == ["0 1 7000 c0000201.addr.elkobroker."]
        with offered(daemon, "192.0.2.2:7000", name="Bank", label="b"):
            assert records(by_udp(daemon, query(kind="SRV"))) == ["0 1000 7000 c0000202.addr.elkobroker."]
        ends_in_order(daemon)


def test_a_taken_port_is_tried_again(tmp_path: Path) -> None:
    for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM):
        with socket.socket(socket.AF_INET, kind) as taken:
            taken.bind((HERE, free_port()))
            port = taken.getsockname()[1]
            daemon = Daemon(tmp_path, "--dns-port", str(port))
            daemon.wait_for(f"dns: cannot listen on .*127.0.0.1:{port}: Address already in use")
        with daemon:
            assert dns_port(daemon) == port
            assert by_udp(daemon, query()).rcode() == by_tcp(daemon, query()).rcode() == dns.rcode.NXDOMAIN
            ends_in_order(daemon)


def test_ipv6(tmp_path: Path) -> None:
    if not socket.has_ipv6:
        pytest.skip("this machine has no IPv6")
    config = tmp_path / "elkobroker.toml"
    configured(tmp_path, "")
    config.write_text(config.read_text().replace("interface=127.0.0.1", r"interface=\\:\\:1", 1))
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        pytest.skip("this machine has no IPv6 loopback")
    with Daemon(tmp_path, "--config", str(config)) as daemon:
        port = dns_port(daemon)
        asked = query("ns.elkobroker.", "AAAA")
        assert records(dns.query.udp(asked, "::1", PATIENCE, port)) == ["::1"]
        assert records(dns.query.tcp(asked, "::1", PATIENCE, port)) == ["::1"]
        ends_in_order(daemon)


@pytest.mark.long
def test_check_says_where_it_is(tmp_path: Path) -> None:
    assert "\ndns:" not in run_to_its_end(tmp_path, "--check").stdout
    checked = run_to_its_end(tmp_path, "--dns-port", "9053", "--check")
    assert "\ndns: bound to udp and tcp 127.0.0.1:9053, domain elkobroker., ttl 5 s" in checked.stdout
    assert checked.returncode == 0
