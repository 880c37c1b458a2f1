"""The report on a valid configuration."""

from __future__ import annotations

import pytest

from broker.app.configuration import Config, report
from broker.config.daemon_settings import Console, LauncherEntry, Launchers
from broker.config.journal_settings import FullLoad, Journal
from broker.config.load import resolves
from broker.wires.dbp.dbp_settings import Dbp
from broker.wires.elko.elko_settings import BrokerListener, Elko
from broker.wires.http.http_settings import Http
from broker.wires.mc0.mc0_settings import Mc0
from broker.wires.mtl.mtl_settings import Mtl, MtlQueue

MC0 = "mc0: bound to tcp 127.0.0.1:61616"
MTL = "mtl: bound to tcp 127.0.0.1:5975, data 127.0.0.1:5976, hosts /; queues none"
DBP = "dbp: bound to tcp 127.0.0.1:5246, udp 5246, beacon 127.255.255.255:5245"
HTTP = "http: bound to 127.0.0.1:9080"
JOURNAL = "journal: in the state directory, kept 400 days, 20 GiB; full_load 1"
REST = "\n".join([MC0, DBP, MTL, HTTP, JOURNAL, "console: bound to 127.0.0.1:9001", "launchers: none, start initial"])
FULL = Journal(full_load=(FullLoad(("context-*",), 400.0),))
UNKNOWN = "journal.full_load is empty: plans have no capacity for any service"
ON_SIX = r"tls:1:certificate=/c:key=/k:interface=\:\:1"
SECRET = "JTKVSB%%)wK0E.X)V>+}o?pNmC{O&4W4b!Ni{Lh6"


def lines(*listeners: BrokerListener) -> list[str]:
    """The report on listeners, without the lines on anything else. Names with a dot resolve."""
    shown = report(Config(elko=Elko(listeners), journal=FULL), resolves=lambda host: "." in host).split("\n")
    after = len(listeners)
    assert shown[after : after + 7] == REST.split("\n")
    return shown[:after] + shown[after + 7 :]


def warnings(**keys: object) -> list[str]:
    """The warnings on one listener."""
    found = [line for line in lines(BrokerListener(**keys)) if line.startswith("warning: ")]  # type: ignore[arg-type]
    assert all(line.startswith("warning: elko.listeners[main]: ") for line in found)
    return [line.removeprefix("warning: elko.listeners[main]: ") for line in found]


def test_the_defaults_warn_only_of_the_capacity_that_nobody_knows() -> None:
    assert report(Config()) == report(Config(journal=FULL)).replace("full_load 1", "full_load none") + (
        f"\nwarning: {UNKNOWN}"
    )
    assert report(Config(journal=FULL)) == (
        "listener main: bound to 127.0.0.1:9000, published as 127.0.0.1:9000, allow client admin\n" + REST
    )


def test_a_line_for_each_listener() -> None:
    shown = lines(
        BrokerListener("a", "unix:/run/a"),
        BrokerListener("b", ON_SIX, allow=("admin",), publish="h.x:2"),
        BrokerListener("c", "tcp:9000:interface=192.0.2.1", allow=("client",)),
    )
    assert [line for line in shown if not line.startswith("warning: ")] == [
        "listener a: bound to unix /run/a, published as unix /run/a, allow client admin",
        "listener b: bound to tls [::1]:1, published as h.x:2, allow admin",
        "listener c: bound to 192.0.2.1:9000, published as 192.0.2.1:9000, allow client",
    ]


def test_no_secret_is_shown() -> None:
    config = Config(
        mc0=Mc0(secret_key=SECRET),
        mtl=Mtl(secret_key=SECRET, queue_store="postgresql://u@h/d", queue_store_password="hunter2"),
        journal=FULL,
        launchers=Launchers("recover", (LauncherEntry("a", "x --password hunter2"), LauncherEntry("b", "y"))),
    )
    assert report(config).split("\n")[1:8] == [
        f"{MC0}, curve",
        DBP,
        MTL.replace("hosts /", "curve, hosts /, durable queues in postgresql://u@h/d"),
        HTTP,
        JOURNAL,
        "console: bound to 127.0.0.1:9001",
        "launchers: a, b, start recover",
    ]
    assert "hunter2" not in report(config)
    assert SECRET not in report(config)


def test_without_a_console_or_listeners() -> None:
    assert report(
        Config(
            elko=Elko(()),
            mc0=Mc0(enabled=False),
            dbp=Dbp(enabled=False),
            mtl=Mtl(enabled=False),
            http=Http(enabled=False),
            journal=Journal(enabled=False),
            console=Console(enabled=False),
        )
    ) == (
        "mc0: off\ndbp: off\nmtl: off\nhttp: off\njournal: off\nconsole: off\nlaunchers: none, start initial\n"
        "warning: elko.listeners is empty: no Elko server can connect"
    )


NOBODY = "0.0.0.0:9000 is published, which is not an address that peers can use"
CLEAR = "passwords and tokens cross the network in the clear; tls: would hide them"
TLS = "tls:9000:certificate=/c:key=/k"


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        ({"endpoint": "tcp:9000"}, [f"{NOBODY}; set publish", CLEAR]),
        ({"endpoint": "tcp:9000", "publish": "a.b:1"}, [CLEAR]),
        ({"endpoint": "tcp:9000", "publish": "0.0.0.0:9000"}, [NOBODY, CLEAR]),
        ({"endpoint": "tcp:9000:interface=192.0.2.1"}, [CLEAR]),
        ({"endpoint": TLS, "publish": "a.b:1", "allow_before_auth": True}, []),
        ({"allow_before_auth": True}, []),
        ({"publish": "nowhere:1"}, ["nowhere is published, but does not resolve on this machine"]),
        ({"publish": "[::]:1"}, ["[::]:1 is published, which is not an address that peers can use"]),
    ],
)
def test_warnings(keys: dict[str, object], expected: list[str]) -> None:
    assert warnings(**keys) == expected


def test_what_resolves() -> None:
    assert resolves("127.0.0.1")
    assert resolves("::1")
    assert not resolves("no.such.host.invalid")
    assert not resolves("a" * 300)
    assert not resolves("a..b")


# mc0


def mc0(**keys: object) -> tuple[str, list[str]]:
    """The line on mc0, and the warnings."""
    shown = report(Config(mc0=Mc0(**keys), journal=FULL)).split("\n")  # type: ignore[arg-type]
    return shown[1], [line.removeprefix("warning: ") for line in shown[8:]]


@pytest.mark.parametrize(
    ("keys", "line"),
    [
        ({"endpoint": "ipc://@x"}, "bound to ipc @x"),
        ({"endpoint": "tcp://[::1]:1", "secret_key": SECRET}, "bound to tcp [::1]:1, curve"),
        ({"endpoint": "tcp://*:61616"}, "bound to tcp 0.0.0.0:61616"),
        ({"enabled": False, "endpoint": "tcp://*:61616"}, "off"),
    ],
)
def test_mc0(keys: dict[str, object], line: str) -> None:
    assert mc0(**keys) == (f"mc0: {line}", [])


# DBP


def dbp(**keys: object) -> tuple[str, list[str]]:
    """The line on DBP, and the warnings."""
    shown = report(Config(dbp=Dbp(**keys), journal=FULL)).split("\n")  # type: ignore[arg-type]
    return shown[2], [line.removeprefix("warning: ") for line in shown[8:]]


FOUND = "dbp: no authentication: every peer that reaches 0.0.0.0:5246 is the user anonymous"
FORGED = "dbp.check_address: any peer may end any service, or keep a dead one registered"


@pytest.mark.parametrize(
    ("keys", "line", "expected"),
    [
        (
            {"endpoint": "tcp://127.0.0.2:1", "check_address": False, "probe": 5.0},
            "bound to tcp 127.0.0.2:1, udp 1, beacon 127.255.255.255:5245",
            [],
        ),
        (
            {"udp_port": 7, "beacon": ("127.0.0.1", "127.0.0.2"), "beacon_port": 9},
            "bound to tcp 127.0.0.1:5246, udp 7, beacon 127.0.0.1:9 127.0.0.2:9",
            [],
        ),
        (
            {"endpoint": "tcp://localhost:*", "udp_port": 0, "beacon": ()},
            "bound to tcp 127.0.0.1:0, udp 0, beacon none",
            [],
        ),
        (
            {"endpoint": "tcp://*:5246"},
            "bound to tcp 0.0.0.0:5246, udp 5246, beacon 255.255.255.255:5245",
            [FOUND],
        ),
        (
            {"endpoint": "tcp://*:5246", "check_address": False},
            "bound to tcp 0.0.0.0:5246, udp 5246, beacon 255.255.255.255:5245",
            [FOUND, FORGED],
        ),
        ({"endpoint": "tcp://*:5246", "enabled": False, "check_address": False}, "off", []),
    ],
)
def test_dbp(keys: dict[str, object], line: str, expected: list[str]) -> None:
    assert dbp(**keys) == (f"dbp: {line}", expected)


# MTL


def mtl(**keys: object) -> tuple[str, list[str]]:
    """The line on MTL, and the warnings."""
    shown = report(Config(mtl=Mtl(**keys), journal=FULL)).split("\n")  # type: ignore[arg-type]
    return shown[3], [line.removeprefix("warning: ") for line in shown[8:]]


CLEAR = "mtl: messages cross the network in the clear; a secret_key_file would hide it"


@pytest.mark.parametrize(
    ("keys", "line", "expected"),
    [
        ({}, MTL.removeprefix("mtl: "), []),
        ({"enabled": False, "endpoint": "tcp://*:1"}, "off", []),
        (
            {"endpoint": "ipc:///run/mtl", "hosts": ("/", "test")},
            "bound to ipc /run/mtl, data there too, hosts / test; queues none",
            [],
        ),
        (
            {"endpoint": "tcp://*:1", "data_port": 1, "data_endpoint": "tcp://x:1"},
            "bound to tcp 0.0.0.0:1, data there too, published as tcp://x:1, hosts /; queues none",
            [CLEAR, "mtl.data_endpoint: every client is sent to tcp://x:1, whichever way it came"],
        ),
        (
            {"endpoint": "tcp://*:1", "plain": True, "queues": (MtlQueue(("a",)), MtlQueue(), MtlQueue())},
            "bound to tcp 0.0.0.0:1, data 0.0.0.0:2, hosts /; queues 3",
            [
                "mtl.plain: passwords cross the network in the clear",
                "mtl.queues[2]: never counts, since mtl.queues[1] is for all",
            ],
        ),
        (
            {"endpoint": "tcp://*:1", "plain": True, "secret_key": SECRET},
            "bound to tcp 0.0.0.0:1, data 0.0.0.0:2, curve, hosts /; queues none",
            [],
        ),
    ],
)
def test_mtl(keys: dict[str, object], line: str, expected: list[str]) -> None:
    assert mtl(**keys) == (f"mtl: {line}", expected)


# The journal


def journal(**keys: object) -> tuple[str, list[str]]:
    """The line on the journal, and the warnings."""
    shown = report(Config(journal=Journal(**keys))).split("\n")  # type: ignore[arg-type]
    return shown[5], [line.removeprefix("warning: ") for line in shown[8:]]


CONTEXTS, EVERY = FullLoad(("context-*",), 400.0), FullLoad(("a", "**"), 1.0)


@pytest.mark.parametrize(
    ("keys", "line", "expected"),
    [
        ({}, "in the state directory, kept 400 days, 20 GiB; full_load none", [UNKNOWN]),
        (
            {"directory": "/srv/journal", "name": "east", "full_load": (CONTEXTS, EVERY)},
            "/srv/journal, as east, kept 400 days, 20 GiB; full_load 2",
            [],
        ),
        (
            {"keep_seconds": 86_400.0, "keep_bytes": 1024**2, "full_load": (EVERY,)},
            "in the state directory, kept 1 day, 1 MiB; full_load 1",
            [],
        ),
        (
            {"keep_seconds": 90_000.0, "keep_bytes": 3 * 1024**4 // 2, "full_load": (CONTEXTS, CONTEXTS)},
            "in the state directory, kept 1.042 days, 1.5 TiB; full_load 2",
            [],
        ),
        (
            {"full_load": (CONTEXTS, EVERY, CONTEXTS, EVERY)},
            "in the state directory, kept 400 days, 20 GiB; full_load 4",
            [f"journal.full_load[{n}]: never counts, since journal.full_load[1] is for every service" for n in (2, 3)],
        ),
        ({"enabled": False, "directory": "/srv/journal"}, "off", []),
    ],
)
def test_the_journal(keys: dict[str, object], line: str, expected: list[str]) -> None:
    assert journal(**keys) == (f"journal: {line}", expected)
