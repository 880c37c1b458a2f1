"""Values of DBP of the right types that make no sense, and what follows from those that do."""

from __future__ import annotations

import socket
from ipaddress import IPv4Address

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.app.configuration import Config, problems
from broker.config import endpoint
from broker.config.daemon_settings import OPEN_FILE, Access, Console
from broker.config.endpoint import BadEndpoint
from broker.wires.dbp.dbp_settings import (
    LEAST_PROBE,
    MAX_BEACONS,
    Dbp,
)
from broker.wires.elko.elko_settings import BrokerListener, Elko
from broker.wires.mc0.mc0_settings import Mc0
from tests.config.bad_values import assert_one_problem
from tests.patience import PATIENCE

HERE = "[dbp]\n"
ALL = f'[access]\nfile = "{OPEN_FILE}"\n[dbp]\nendpoint = "tcp://*:5246"\n'
IPV4 = "must be tcp:// with an IPv4 address, * or localhost, since heartbeats and beacons are IPv4 broadcasts"
WAITING = "where peers wait for the beacon"

BAD = [
    (HERE + 'endpoint = "tcp:5246"', 2, "dbp.endpoint", "'tcp:5246' is no ZeroMQ endpoint"),
    (HERE + 'endpoint = "tcp://eth0:5246"', 2, "dbp.endpoint", "names of hosts and of network interfaces"),
    (HERE + 'endpoint = "tcp://[::1]:5246"', 2, "dbp.endpoint", IPV4),
    (HERE + 'endpoint = "tcp://[::]:5246"', 2, "dbp.endpoint", IPV4),
    (HERE + 'endpoint = "ipc:///run/dbp"', 2, "dbp.endpoint", IPV4),
    (
        HERE + 'endpoint = "systemd:domain=INET:name=dbp"',
        2,
        "dbp.endpoint",
        "must be tcp://, not systemd's socket: the UDP port and the beacon go with its address",
    ),
    (HERE + 'endpoint = "tcp://127.0.0.1:9000"', 2, "dbp.endpoint", "is taken by elko.listeners[0].endpoint"),
    (HERE + 'endpoint = "tcp://127.0.0.1:9001"', 2, "console.endpoint", "is taken by dbp.endpoint"),
    ('[console]\nendpoint = "tcp:5246:interface=127.0.0.1"', 2, "console.endpoint", "is taken by dbp.endpoint"),
    (
        HERE + 'endpoint = "tcp://192.0.2.1:5246"',
        2,
        "dbp.endpoint",
        "192.0.2.1:5246 can be reached from other machines: this needs a users file",
    ),
    (HERE + "udp_port = 5245", 2, "dbp.udp_port", f"heartbeats would arrive on UDP port 5245; but that is {WAITING}"),
    (HERE + "udp_port = 5245\nbeacon_port = 5300", 2, "dbp.udp_port", WAITING),
    (HERE + 'endpoint = "tcp://127.0.0.1:5245"', 2, "dbp.endpoint", "UDP port 5245, since there is no udp_port"),
    (
        HERE + "beacon_port = 5246",
        2,
        "dbp.beacon_port",
        f"5246 is the UDP port of heartbeats, and cannot be {WAITING}",
    ),
    (HERE + "udp_port = 7\nbeacon_port = 7", 3, "dbp.beacon_port", "7 is the UDP port of heartbeats"),
    (ALL + 'beacon = ["127.0.0.1", "lan"]', 5, "dbp.beacon[1]", "'lan' is no IPv4 address; names are not taken"),
    (ALL + 'beacon = [""]', 5, "dbp.beacon[0]", "'' is no IPv4 address"),
    (ALL + 'beacon = ["::1"]', 5, "dbp.beacon[0]", "'::1' is no IPv4 address"),
    (ALL + 'beacon = ["192.0.2.0/24"]', 5, "dbp.beacon[0]", "'192.0.2.0/24' is no IPv4 address"),
    (ALL + 'beacon = ["0.0.0.0"]', 5, "dbp.beacon[0]", "0.0.0.0 is no destination; 255.255.255.255 is"),
    (ALL + f"beacon = {['127.0.0.1'] * (MAX_BEACONS + 1)}", 5, "dbp.beacon", "has more than 64 addresses"),
    (
        HERE + 'beacon = ["127.0.0.1", "192.0.2.255"]',
        2,
        "dbp.beacon[1]",
        "is not reached from 127.0.0.1:5246, which is loopback",
    ),
    (HERE + 'beacon_port = 0\nendpoint = "tcp://127.0.0.1:0"', 2, "dbp.beacon_port", "between 1 and 65535, not 0"),
    (HERE + "interval = 0.1", 2, "dbp.interval", "0.1 is less than least_interval, 0.2"),
    (HERE + "least_interval = 2", 1, "dbp.interval", "1 is less than least_interval, 2"),
    (HERE + "interval = 3601", 2, "dbp.interval", "3601 is more than most_interval, 3600"),
    (HERE + "\nmost_interval = 0.1", 1, "dbp.least_interval", "0.2 is more than most_interval, 0.1"),
    (HERE + "least_interval = 5000", 2, "dbp.least_interval", "5000 is more than most_interval, 3600"),
    (HERE + "probe = 0.5", 2, "dbp.probe", "must be 0, for never, or at least 1, not 0.5"),
]


@pytest.mark.parametrize(("text", "line", "key", "why"), BAD)
def test_bad_values(text: str, line: int, key: str, why: str) -> None:
    assert_one_problem(text, line, key, why)


@pytest.mark.parametrize(
    "dbp",
    [
        Dbp(enabled=False, endpoint="tcp://*:9000"),
        Dbp(endpoint="tcp://localhost:0", udp_port=0),
        Dbp(endpoint="tcp://127.0.0.1:5245", udp_port=5246),
        Dbp(endpoint="tcp://[::ffff:127.0.0.1]:5246"),
        Dbp(beacon=("127.255.255.255",) * MAX_BEACONS),
        Dbp(beacon=("127.0.0.1", "127.255.255.255")),
        Dbp(beacon=(), services=0),
        Dbp(interval=0.05, least_interval=0.05, most_interval=0.05),
        Dbp(probe=LEAST_PROBE),
    ],
)
def test_good_values(dbp: Dbp) -> None:
    assert problems(Config(dbp=dbp)) == []


def test_ports_of_what_is_off_are_free() -> None:
    off = Config(elko=Elko((BrokerListener(endpoint="tcp:5246:interface=127.0.0.1"),)), dbp=Dbp(enabled=False))
    assert problems(off) == []
    taken = Dbp(endpoint="tcp://127.0.0.1:9001")
    assert problems(Config(dbp=taken, console=Console(enabled=False))) == []
    taken = Dbp(endpoint="tcp://127.0.0.1:61616")
    assert problems(Config(dbp=taken, mc0=Mc0(enabled=False))) == []


@pytest.mark.parametrize(
    ("dbp", "beacon"),
    [
        (Dbp(), ("127.255.255.255",)),
        (Dbp(endpoint="tcp://localhost:1"), ("127.255.255.255",)),
        (Dbp(endpoint="tcp://127.1.2.3:1"), ("127.255.255.255",)),
        (Dbp(endpoint="tcp://*:1"), ("255.255.255.255",)),
        (Dbp(endpoint="tcp://192.0.2.1:1"), ("255.255.255.255",)),
        (Dbp(endpoint="tcp://*:1", beacon=("192.0.2.255",)), ("192.0.2.255",)),
        (Dbp(beacon=()), ()),
    ],
)
def test_the_destinations_of_the_beacon(dbp: Dbp, beacon: tuple[str, ...]) -> None:
    users = Access(file=OPEN_FILE)
    assert problems(Config(dbp=dbp, access=users)) == []
    assert dbp.beacons == beacon


def test_what_is_no_endpoint_has_no_beacon() -> None:
    with pytest.raises(BadEndpoint):
        _ = Dbp(endpoint="ipc://x").beacons


def test_the_kernel_sends_the_default_beacon_of_loopback_and_none_from_there_to_elsewhere() -> None:
    (beacon,) = Dbp().beacons
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as hearing, socket.socket(type=socket.SOCK_DGRAM) as sending:
        hearing.bind(("", 0))
        hearing.settimeout(PATIENCE)
        sending.setsockopt(socket.SOL_SOCKET, socket.SO_BROADCAST, 1)
        sending.bind(("127.0.0.1", 0))
        sending.sendto(b"SHALOM 5246", (beacon, hearing.getsockname()[1]))
        assert hearing.recvfrom(1_024) == (b"SHALOM 5246", sending.getsockname())
        with pytest.raises(OSError):
            sending.sendto(b"SHALOM 5246", ("192.0.2.255", hearing.getsockname()[1]))


ADDRESSES = st.one_of(
    st.text(max_size=15), st.ip_addresses().map(str), st.sampled_from(["127.0.0.1", "127.255.255.255"])
)


@given(
    st.builds(
        Dbp,
        enabled=st.booleans(),
        endpoint=st.one_of(
            st.text(max_size=20),
            st.sampled_from(["tcp://*:1", "tcp://127.0.0.1:5245", "tcp://[::1]:0", "tcp://localhost:*", "ipc://x"]),
        ),
        udp_port=st.one_of(st.none(), st.sampled_from([0, 7, 5245]), st.integers()),
        beacon=st.one_of(st.none(), st.lists(ADDRESSES, max_size=3).map(tuple)),
        beacon_port=st.sampled_from([1, 7, 5245, 0]),
        interval=st.one_of(st.just(1.0), st.floats()),
        least_interval=st.one_of(st.just(0.5), st.floats()),
        most_interval=st.one_of(st.just(5.0), st.floats()),
        probe=st.one_of(st.just(0.0), st.floats()),
    )
)
def test_any_values_are_judged(dbp: Dbp) -> None:
    if not problems(Config(dbp=dbp)):
        where = endpoint.parse_zmq(dbp.endpoint)
        assert where.kind == "tcp"
        udp_port = where.port if dbp.udp_port is None else dbp.udp_port
        assert udp_port is not None
        assert 0 <= udp_port <= 65_535
        assert udp_port not in (5245, dbp.beacon_port)
        assert where.loopback or not dbp.enabled
        assert all(IPv4Address(each) for each in dbp.beacons)
        assert 0.05 <= dbp.least_interval <= dbp.interval <= dbp.most_interval <= 86_400
        assert dbp.probe == 0 or 1 <= dbp.probe <= 86_400
