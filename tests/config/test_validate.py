"""Values of the right types that make no sense, and what follows from those that do."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.app.configuration import Config, problems
from broker.config import endpoint
from broker.config.daemon_settings import Console, LauncherEntry, Launchers
from broker.config.key import declared
from broker.config.key_checks import hostport
from broker.wires.elko.elko_settings import (
    BrokerLimits,
    BrokerListener,
    Director,
    DirectorLimits,
    DirectorListener,
    Elko,
)
from broker.wires.mc0.mc0_settings import Mc0
from tests.config.bad_values import assert_one_problem
from tests.config.certificates import certificate

SECRET = "JTKVSB%%)wK0E.X)V>+}o?pNmC{O&4W4b!Ni{Lh6"

LISTENER = "[[elko.listeners]]\n\n"

BAD = [
    ("[broker]\ngrace = -1", 2, "broker.grace", "must be between 0 and 86400, not -1"),
    ("[broker]\ngrace = nan", 2, "broker.grace", "must be between"),
    ("[broker]\ngrace = inf", 2, "broker.grace", "must be between"),
    ("[broker]\nservice = ''", 2, "broker.service", "is empty"),
    ('[broker]\nservice = "a\\n"', 2, "broker.service", "cannot be printed"),
    (f'[broker]\nservice = "{"a" * 201}"', 2, "broker.service", "more than 200 characters"),
    ("[broker]\nstate = ''", 2, "broker.state", "is no path"),
    ("[[elko.listeners]]\nname = ''", 2, "elko.listeners[0].name", "is empty"),
    ("[[elko.listeners]]\nname = 'a]b'", 2, "elko.listeners[0].name", "letters, digits"),
    (
        '[[elko.listeners]]\n[[elko.listeners]]\nendpoint="unix:x"\nname = "main"',
        4,
        "elko.listeners[1].name",
        'the name "main" is that of elko.listeners[0] too',
    ),
    (
        '[[elko.listeners]]\nname = "a"\n[[elko.listeners]]\n',
        3,
        "elko.listeners[1].endpoint",
        "127.0.0.1:9000 is taken by elko.listeners[0].endpoint",
    ),
    ('[console]\nendpoint = "tcp:9000:interface=127.0.0.1"', 2, "console.endpoint", "is taken by elko.listeners[0]"),
    (
        '[[elko.listeners]]\nendpoint = "tcp:9001:interface=127.0.0.1"',
        2,
        "console.endpoint",
        "127.0.0.1:9001 is taken by elko.listeners[0].endpoint",
    ),
    ('[[elko.listeners]]\nendpoint = "tcp:x"', 2, "elko.listeners[0].endpoint", "port must be a number"),
    ('[console]\nendpoint = "tpc:9001"', 2, "console.endpoint", "'tpc' is no kind of endpoint"),
    ("[[elko.listeners]]\nallow = []", 2, "elko.listeners[0].allow", "allows no role"),
    (
        '[[elko.listeners]]\nendpoint = "systemd:domain=INET:name=elko"',
        2,
        "elko.listeners[0].endpoint",
        "systemd socket elko can be reached from other machines: this needs a users file",
    ),
    (LISTENER + 'publish = "host"', 3, "elko.listeners[0].publish", "must be host:port with a port from 1 to 65535"),
    (LISTENER + 'publish = "host:0"', 3, "elko.listeners[0].publish", "a port from 1 to 65535"),
    (LISTENER + 'publish = "host:65536"', 3, "elko.listeners[0].publish", "a port from 1 to 65535"),
    (LISTENER + 'publish = "::1:9000"', 3, "elko.listeners[0].publish", "an IPv6 address goes in brackets"),
    (LISTENER + f'publish = "{"a" * 1024}:1"', 3, "elko.listeners[0].publish", "more than 1024 characters"),
    (LISTENER + 'label = " "', 3, "elko.listeners[0].label", "is empty"),
    ('[mc0]\nendpoint = "tcp:61616"', 2, "mc0.endpoint", "'tcp:61616' is no ZeroMQ endpoint"),
    ('[mc0]\nendpoint = "tcp://eth0:61616"', 2, "mc0.endpoint", "names of hosts and of network interfaces"),
    ('[mc0]\nendpoint = "tcp://127.0.0.1:9000"', 2, "mc0.endpoint", "is taken by elko.listeners[0].endpoint"),
    (
        '[[elko.listeners]]\nendpoint = "tcp:61616:interface=127.0.0.1"',
        2,
        "mc0.endpoint",
        "127.0.0.1:61616 is taken by elko.listeners[0].endpoint",
    ),
    ('[mc0]\nendpoint = "tcp://*:61616"', 2, "mc0.endpoint", "0.0.0.0:61616 can be reached from other machines"),
    ('[mc0]\nendpoint = "systemd:domain=INET:index=0"', 2, "mc0.endpoint", "socket 0 can be reached from other"),
    ('[mtl]\nendpoint = "tcp://[::1]:1"\ndata_port = 70000', 3, "mtl.data_port", "must be between"),
    ("[mc0]\nsecret_key = ''", 2, "mc0.secret_key", "is no CURVE key, which has 40 Z85 characters"),
    (f"[mc0]\nsecret_key = '{SECRET}0'", 2, "mc0.secret_key", "is no CURVE key"),
    (f"[mc0]\nsecret_key = '{SECRET[1:]} '", 2, "mc0.secret_key", "is no CURVE key"),
    (f"[mc0]\nsecret_key = '{SECRET[1:]}é'", 2, "mc0.secret_key", "is no CURVE key"),
    (f"[mc0]\nsecret_key = '{SECRET[5:]}#####'", 2, "mc0.secret_key", "is no CURVE key"),
    ('[[launchers.table]]\nname = ""\nscript = "x"', 2, "launchers.table[0].name", "is empty"),
    ('[[launchers.table]]\nname = "x"\nscript = " "', 3, "launchers.table[0].script", "is empty"),
    ('[[launchers.table]]\nname = "x"\nscript = "\'\'"', 3, "launchers.table[0].script", "names no program"),
    ('[[launchers.table]]\nname = "x"\nscript = "a \'b"', 3, "launchers.table[0].script", "no closing quotation"),
    (
        '[[launchers.table]]\nname = "x"\nscript = "a"\n[[launchers.table]]\nscript = "a"\nname = "x"',
        6,
        "launchers.table[1].name",
        'the name "x" is that of launchers.table[0] too',
    ),
]


@pytest.mark.parametrize(("text", "line", "key", "why"), BAD)
def test_bad_values(text: str, line: int, key: str, why: str) -> None:
    assert_one_problem(text, line, key, why)


def test_the_defaults_are_good() -> None:
    assert problems(Config()) == []


DEFAULTS = Config()


def with_section(name: str) -> Callable[[Any], Config]:
    return lambda section: attrs.evolve(DEFAULTS, **{name: section})


TABLES: dict[str, tuple[Any, Callable[[Any], Config]]] = {
    **{name: (getattr(DEFAULTS, name), with_section(name)) for name in attrs.fields_dict(type(DEFAULTS))},
    "elko.listeners[0].limits": (BrokerLimits(), lambda limits: Config(elko=Elko((BrokerListener(limits=limits),)))),
    "director.listeners[0].limits": (
        DirectorLimits(),
        lambda limits: Config(director=Director(listeners=(DirectorListener(limits=limits),))),
    ),
}
"""Tables with the values of their keys, and a configuration with such a table."""


@pytest.mark.parametrize(
    ("table", "name", "least", "most"),
    [
        (table, each.name, *each.key.within)
        for table, (default, _) in TABLES.items()
        for each in declared(type(default))
        if each.key.within and each.key.within[1] < math.inf
    ],
)
def test_the_ends_of_each_range(table: str, name: str, least: float, most: float) -> None:
    default, configuration = TABLES[table]

    def is_in_range(value: float) -> bool:
        found = problems(configuration(attrs.evolve(default, **{name: value})))
        return not any(key == f"{table}.{name}" and why.startswith("must be between ") for key, why in found)

    assert is_in_range(least)
    assert is_in_range(most)
    for value in (math.nextafter(least, -math.inf), math.nextafter(most, math.inf), math.nan, math.inf, -1):
        assert not is_in_range(value)


@pytest.mark.parametrize(
    "config",
    [
        Config(mc0=Mc0(enabled=False, endpoint="tcp://*:9000")),
        Config(mc0=Mc0(endpoint="ipc://@mc0", secret_key=SECRET)),
        Config(elko=Elko(())),
        Config(console=Console(enabled=False, endpoint="tcp:9000")),
        Config(elko=Elko((BrokerListener(), BrokerListener("b", "unix:/tmp/elko", publish="[::1]:1")))),
        Config(launchers=Launchers(table=(LauncherEntry("a b", "sh -c 'x y'"),))),
    ],
)
def test_good_values(config: Config) -> None:
    assert problems(config) == []


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("a.example:1", ("a.example", 1)),
        ("[::1]:65535", ("::1", 65_535)),
        ("127.0.0.1:9000", ("127.0.0.1", 9_000)),
        ("[a]:1", None),
        (":1", None),
        ("a b:1", None),
        ("a:1\n", None),
        ("a:+1", None),
    ],
)
def test_hostport(text: str, parts: tuple[str, int] | None) -> None:
    assert hostport(text) == parts


# TLS


def tls(*files: Path) -> list[tuple[str, str]]:
    """The problems of a TLS listener with these files: a certificate, its key, and perhaps a CA."""
    named = ":".join(f"{name}={path}" for name, path in zip(("certificate", "key", "ca"), files, strict=False))
    listener = BrokerListener(endpoint=f"tls:9000:{named}:interface=127.0.0.1")
    return problems(Config(elko=Elko((listener,))))


def test_tls_files(tmp_path: Path) -> None:
    cert, key = certificate(tmp_path, "one")
    _, other = certificate(tmp_path, "two")
    _, locked = certificate(tmp_path, "locked", passphrase=b"x")
    junk = tmp_path / "junk.pem"
    junk.write_bytes(b"\xff\0 nothing")
    missing = tmp_path / "none.pem"

    assert tls(cert, key) == tls(cert, key, cert) == []
    for files, why in [
        ((missing, key), f"{missing} cannot be read: No such file or directory"),
        ((cert, missing), f"{missing} cannot be read: No such file or directory"),
        ((cert, key, missing), f"{missing} cannot be read: No such file or directory"),
        ((cert, tmp_path), f"{tmp_path} is no regular file"),
        ((cert, other), f"the private key in {other} does not belong to the certificate in {cert}"),
        ((junk, key), f"{junk} has no certificate in PEM form"),
        ((cert, junk), f"{junk} has no private key in PEM form"),
        ((cert, locked), f"the private key in {locked} has a passphrase: passphrase_file must name a file"),
        ((cert, key, junk), f"{junk} has no certificate in PEM form"),
        ((cert, Path("/a\0b")), "cannot be read: a zero byte in its name"),
    ]:
        ((found_key, found),) = tls(*files)
        assert found_key == "elko.listeners[0].endpoint"
        assert why in found


@given(
    st.builds(
        BrokerListener,
        name=st.text(max_size=4),
        endpoint=st.one_of(st.text(max_size=20), st.sampled_from(["tcp:1", "unix:x", "systemd:domain=INET:index=1"])),
        publish=st.one_of(st.none(), st.text(max_size=10)),
        label=st.one_of(st.none(), st.text(max_size=4)),
    ),
    st.builds(LauncherEntry, st.text(max_size=4), st.text(max_size=10)),
)
def test_any_values_are_judged(listener: BrokerListener, entry: LauncherEntry) -> None:
    config = Config(elko=Elko((listener,)), launchers=Launchers(table=(entry,)))
    if not problems(config):
        assert endpoint.parse(listener.endpoint).loopback


@given(
    st.builds(
        Mc0,
        enabled=st.booleans(),
        endpoint=st.one_of(st.text(max_size=20), st.sampled_from(["tcp://*:1", "ipc://x", "tcp://[::1]:0"])),
        secret_key=st.one_of(st.none(), st.text(max_size=41), st.just(SECRET)),
    )
)
def test_any_values_of_mc0_are_judged(mc0: Mc0) -> None:
    if not problems(Config(mc0=mc0)):
        assert not mc0.enabled or endpoint.parse_zmq(mc0.endpoint).loopback
        assert mc0.secret_key in (None, SECRET)
