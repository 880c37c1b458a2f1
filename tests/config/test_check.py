"""The report on a valid configuration."""

from __future__ import annotations

from pathlib import Path

import pytest

from broker.app.configuration import Config, report
from broker.config.check import resolves
from broker.config.checks_settings import FullLoad, Journal
from broker.config.daemon_settings import Console, LauncherEntry, Launchers
from broker.wires.dbp.dbp_settings import Dbp
from broker.wires.elko.config import BrokerListener, Elko
from broker.wires.http.http_settings import Http
from broker.wires.mc0.config import Mc0, Mc0Rule
from broker.wires.mtl.config import Mtl, MtlQueue, MtlRule

MC0 = "mc0: bound to tcp 127.0.0.1:61616, auth open, rules none"
MTL = "mtl: bound to tcp 127.0.0.1:5975, data 127.0.0.1:5976, auth open, hosts /; rules none; queues none"
DBP = "dbp: bound to tcp 127.0.0.1:5246, udp 5246, beacon 127.255.255.255:5245, offer *"
HTTP = "http: bound to 127.0.0.1:9080, auth open, offer *"
JOURNAL = "journal: in the state directory, kept 400 days, 20 GiB; full_load 1"
REST = "\n".join(
    [MC0, DBP, MTL, HTTP, JOURNAL, "console: bound to 127.0.0.1:9001, no password", "launchers: none, start initial"]
)
FULL = Journal(full_load=(FullLoad(("context-*",), 400.0),))
UNKNOWN = "journal.full_load is empty: nothing will be said about the capacity of any service"
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
        "listener main: bound to 127.0.0.1:9000, published as 127.0.0.1:9000, allow client admin, auth open, offer *\n"
        + REST
    )


def test_a_line_for_each_listener() -> None:
    shown = lines(
        BrokerListener("a", "unix:/run/a"),
        BrokerListener("b", ON_SIX, allow=("admin",), auth="password", code="x", publish="h.x:2"),
        BrokerListener("c", "tcp:9000:interface=192.0.2.1", allow=("client",), auth="open"),
        BrokerListener("d", offer=("x-*", "y")),
        BrokerListener("e", offer=(), allow=("client",)),
    )
    assert [line for line in shown if not line.startswith("warning: ")] == [
        "listener a: bound to unix /run/a, published as unix /run/a, allow client admin, auth open, offer *",
        "listener b: bound to tls [::1]:1, published as h.x:2, allow admin, auth password, offer *",
        "listener c: bound to 192.0.2.1:9000, published as 192.0.2.1:9000, allow client, auth open, offer nothing",
        "listener d: bound to 127.0.0.1:9000, published as 127.0.0.1:9000, allow client admin, auth open, offer x-* y",
        "listener e: bound to 127.0.0.1:9000, published as 127.0.0.1:9000, allow client, auth open, offer nothing",
    ]


def test_no_secret_is_shown() -> None:
    config = Config(
        elko=Elko((BrokerListener(auth="password", code="hunter2"),)),
        mc0=Mc0(auth="curve", secret_key=SECRET, any_key=True),
        mtl=Mtl(secret_key=SECRET, any_key=True, users="/u"),
        journal=FULL,
        console=Console(endpoint="tcp:9001", password="hunter2"),
        launchers=Launchers("recover", (LauncherEntry("a", "x --password hunter2"), LauncherEntry("b", "y"))),
    )
    assert report(config).split("\n")[1:8] == [
        "mc0: bound to tcp 127.0.0.1:61616, auth curve, client keys any, rules none",
        DBP,
        MTL.replace("open", "sasl over curve, users /u"),
        HTTP,
        JOURNAL,
        "console: bound to 0.0.0.0:9001, password",
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


STEER = "open: any peer that reaches 0.0.0.0:9000 may find every service"
ADMIN = ", and may watch, steer and shut down all of them, since admin is allowed"
NOBODY = "0.0.0.0:9000 is published, which is not an address that peers can use"
ANY = "open: any peer may offer a service of any name, and receive the messages of its clients"
CLEAR = "the password crosses the network in the clear; tls: would hide it"
TLS = "tls:9000:certificate=/c:key=/k"


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        ({"endpoint": "tcp:9000", "auth": "open"}, [f"{NOBODY}; set publish", STEER + ADMIN]),
        ({"endpoint": "tcp:9000", "auth": "open", "publish": "a.b:1", "allow": ("client",)}, [STEER]),
        ({"endpoint": "tcp:9000", "auth": "open", "publish": "0.0.0.0:9000"}, [NOBODY, STEER + ADMIN]),
        (
            {"endpoint": "tcp:9000", "auth": "open", "publish": "a.b:1", "offer": ("a", "*"), "allow": ("client",)},
            [STEER, ANY],
        ),
        ({"endpoint": "tcp:9000:interface=192.0.2.1", "auth": "password", "code": "x"}, [CLEAR]),
        ({"endpoint": TLS, "auth": "password", "code": "x", "publish": "a.b:1"}, []),
        (
            {"endpoint": TLS, "auth": "password", "code": "x", "publish": "a.b:1", "allow_before_auth": True},
            ["allow_before_auth: any peer that reaches it may find services without the password"],
        ),
        ({"auth": "password", "code": "x", "allow_before_auth": True}, []),
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


EVERYBODY = Mc0Rule(publish=("*",))
NODES = Mc0Rule(("web-*",))
REACH = "mc0: open: any client that reaches 0.0.0.0:61616 may "


@pytest.mark.parametrize(
    ("keys", "line", "expected"),
    [
        ({"endpoint": "ipc://@x"}, "bound to ipc @x, auth open, rules none", []),
        ({"endpoint": "tcp://[::1]:1", "rules": (EVERYBODY,)}, "bound to tcp [::1]:1, auth open, rules 1", []),
        (
            {"endpoint": "tcp://*:61616", "auth": "open"},
            "bound to tcp 0.0.0.0:61616, auth open, rules none",
            [REACH + "read and write every topic"],
        ),
        (
            {"endpoint": "tcp://*:61616", "auth": "open", "rules": (EVERYBODY,)},
            "bound to tcp 0.0.0.0:61616, auth open, rules 1",
            [REACH + "do what mc0.rules allow to peers without a key"],
        ),
        (
            {"secret_key": SECRET, "any_key": True},
            "bound to tcp 127.0.0.1:61616, auth curve, client keys any, rules none",
            ["mc0.any_key: any client key is allowed, also one that was just made"],
        ),
        ({"enabled": False, "endpoint": "tcp://*:61616", "auth": "open", "rules": (NODES,)}, "off", []),
    ],
)
def test_mc0(keys: dict[str, object], line: str, expected: list[str]) -> None:
    assert mc0(**keys) == (f"mc0: {line}", expected)


def test_client_keys(tmp_path: Path) -> None:
    keys = {"secret_key": SECRET, "client_keys": str(tmp_path)}
    line = f"mc0: bound to tcp 127.0.0.1:61616, auth curve, client keys {tmp_path}, rules none"
    nobody = f"mc0.client_keys: {tmp_path} has no file NAME.public yet: no client can connect"
    assert mc0(**keys) == (line, [nobody])
    (tmp_path / ".a.public").touch()
    (tmp_path / "a.private").touch()
    assert mc0(**keys) == (line, [nobody])
    (tmp_path / "a.public").touch()
    assert mc0(**keys) == (line, [])
    assert mc0(**{**keys, "client_keys": "/a\0b"})[1] == [
        "mc0.client_keys: /a\0b has no file NAME.public yet: no client can connect"
    ]


CURVE = {"secret_key": SECRET, "any_key": True}


@pytest.mark.parametrize(
    ("rules", "open_", "curve"),
    [
        ((), [], []),
        ((NODES, EVERYBODY), ["mc0.rules[0]: never counts, since no client has a key where auth is open"], []),
        (
            (EVERYBODY, NODES, EVERYBODY),
            [f"mc0.rules[{n}]: never counts, since mc0.rules[0] matches every client" for n in (1, 2)],
            [f"mc0.rules[{n}]: never counts, since mc0.rules[0] matches every client" for n in (1, 2)],
        ),
        (
            (Mc0Rule(("a", "**")), Mc0Rule(("b",))),
            ["mc0.rules[1]: never counts, since mc0.rules[0] matches every client"],
            ["mc0.rules[1]: never counts, since mc0.rules[0] matches every client"],
        ),
        (
            (NODES, NODES),
            [f"mc0.rules[{n}]: never counts, since no client has a key where auth is open" for n in (0, 1)],
            [],
        ),
    ],
)
def test_rules_that_never_count(rules: tuple[Mc0Rule, ...], open_: list[str], curve: list[str]) -> None:
    assert mc0(rules=rules)[1] == open_
    assert mc0(**CURVE, rules=rules)[1][1:] == curve


# DBP


def dbp(**keys: object) -> tuple[str, list[str]]:
    """The line on DBP, and the warnings."""
    shown = report(Config(dbp=Dbp(**keys), journal=FULL)).split("\n")  # type: ignore[arg-type]
    return shown[2], [line.removeprefix("warning: ") for line in shown[8:]]


ALL = {"endpoint": "tcp://*:5246", "auth": "open"}
FOUND = "dbp: open: any client that reaches 0.0.0.0:5246 may find every service"
ANY_NAME = "dbp: open: any peer may register a service of any name, and receive the data of its clients"
SOME = "dbp: open: any peer may register what dbp.offer allows, and receive the data of its clients"
NOTHING = "dbp.offer: nothing may be registered"
FORGED = "dbp.check_address: any peer may end any service, or keep a dead one registered"


@pytest.mark.parametrize(
    ("keys", "line", "expected"),
    [
        (
            {"endpoint": "tcp://127.0.0.2:1", "auth": "open", "check_address": False, "probe": 5.0},
            "bound to tcp 127.0.0.2:1, udp 1, beacon 127.255.255.255:5245, offer *",
            [],
        ),
        (
            {"udp_port": 7, "beacon": ("127.0.0.1", "127.0.0.2"), "beacon_port": 9, "offer": ("a", "b-*")},
            "bound to tcp 127.0.0.1:5246, udp 7, beacon 127.0.0.1:9 127.0.0.2:9, offer a b-*",
            [],
        ),
        (
            {"endpoint": "tcp://localhost:*", "udp_port": 0, "beacon": (), "offer": ()},
            "bound to tcp 127.0.0.1:0, udp 0, beacon none, offer nothing",
            [NOTHING],
        ),
        (
            ALL,
            "bound to tcp 0.0.0.0:5246, udp 5246, beacon 255.255.255.255:5245, offer nothing",
            [FOUND, NOTHING + "; by default, since 0.0.0.0:5246 can be reached from elsewhere"],
        ),
        (
            {**ALL, "offer": (), "check_address": False},
            "bound to tcp 0.0.0.0:5246, udp 5246, beacon 255.255.255.255:5245, offer nothing",
            [FOUND, FORGED, NOTHING],
        ),
        (
            {**ALL, "offer": ("a", "*-b"), "beacon": ("192.0.2.255",)},
            "bound to tcp 0.0.0.0:5246, udp 5246, beacon 192.0.2.255:5245, offer a *-b",
            [FOUND, ANY_NAME],
        ),
        (
            {**ALL, "offer": ("a-*",)},
            "bound to tcp 0.0.0.0:5246, udp 5246, beacon 255.255.255.255:5245, offer a-*",
            [FOUND, SOME],
        ),
        ({**ALL, "enabled": False, "check_address": False, "offer": ()}, "off", []),
    ],
)
def test_dbp(keys: dict[str, object], line: str, expected: list[str]) -> None:
    assert dbp(**keys) == (f"dbp: {line}", expected)


# MTL


def mtl(**keys: object) -> tuple[str, list[str]]:
    """The line on MTL, and the warnings."""
    shown = report(Config(mtl=Mtl(**keys), journal=FULL)).split("\n")  # type: ignore[arg-type]
    return shown[3], [line.removeprefix("warning: ") for line in shown[8:]]


ALL_USERS = MtlRule(("*",))
REACHED = "mtl: open: anybody who reaches 0.0.0.0:1 may"
CLEAR = "mtl: what is read and written crosses the network in the clear; a secret_key_file would hide it"


@pytest.mark.parametrize(
    ("keys", "line", "expected"),
    [
        ({}, MTL.removeprefix("mtl: "), []),
        ({"enabled": False, "auth": "open", "endpoint": "tcp://*:1"}, "off", []),
        (
            {"endpoint": "ipc:///run/mtl", "hosts": ("/", "test")},
            "bound to ipc /run/mtl, data there too, auth open, hosts / test; rules none; queues none",
            [],
        ),
        (
            {"endpoint": "tcp://*:1", "auth": "open", "data_port": 1, "data_endpoint": "tcp://x:1"},
            "bound to tcp 0.0.0.0:1, data there too, told as tcp://x:1, auth open, hosts /; rules none; queues none",
            [
                f"{REACHED} read and write everything",
                "mtl.data_endpoint: every client is sent to tcp://x:1, whichever way it came",
            ],
        ),
        (
            {"endpoint": "tcp://*:1", "users": "/u", "anonymous": True, "rules": (ALL_USERS, ALL_USERS)},
            "bound to tcp 0.0.0.0:1, data 0.0.0.0:2, auth sasl, users /u, hosts /; rules 2; queues none",
            [
                f"{REACHED} do what mtl.rules allow to users without a name",
                CLEAR,
                "mtl.rules[1]: never counts, since mtl.rules[0] is for all",
            ],
        ),
        (
            {
                "endpoint": "tcp://*:1",
                "users": "/u",
                "plain": True,
                "queues": (MtlQueue(("a",)), MtlQueue(), MtlQueue()),
            },
            "bound to tcp 0.0.0.0:1, data 0.0.0.0:2, auth sasl, users /u, hosts /; rules none; queues 3",
            [
                "mtl.plain: passwords cross the network in the clear",
                "mtl.queues[2]: never counts, since mtl.queues[1] is for all",
            ],
        ),
        (
            {"endpoint": "tcp://*:1", "users": "/u", "plain": True, "secret_key": SECRET, "any_key": True},
            "bound to tcp 0.0.0.0:1, data 0.0.0.0:2, auth sasl over curve, users /u, hosts /; rules none; queues none",
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
