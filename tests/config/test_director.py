"""The configuration of the director: its listeners, its faults, and the lines of --check."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from broker.app.configuration import Config, changes, parse, refused, report
from broker.config.journal_settings import FullLoad, Journal
from broker.config.key_checks import BadConfig
from broker.wires.elko.elko_settings import Director, DirectorListener
from tests.config.command_line import configured

OPEN = "[[director.listeners]]\n"


def test_without_its_table_there_is_none() -> None:
    assert not Config().director.enabled
    assert not parse("[broker]\n", "x").director.enabled
    assert "\ndirector" not in report(Config())


@pytest.mark.parametrize("text", ["[director]\n", "[[director.listeners]]\n"])
def test_its_table_makes_one(text: str) -> None:
    assert parse(text, "x").director == Director()
    assert Director().enabled
    assert not parse("[director]\nenabled = false\n", "x").director.enabled


BAD = [
    ('[director]\nservice = " "', 2, "director.service", "is empty"),
    ('[director]\nport = "9010"', 2, "director.port", "unknown key"),
    (OPEN + "allow = []", 2, "director.listeners[0].allow", "allows no role; name user, provider or admin"),
    (OPEN + 'allow = ["client"]', 2, "director.listeners[0].allow[0]", 'must be "user" or "provider" or "admin"'),
    (OPEN + 'offer = ["*"]', 2, "director.listeners[0].offer", "unknown key"),
    (OPEN + "limits = { waits = 1 }", 2, "director.listeners[0].limits.waits", "unknown key"),
    (OPEN + "limits = { watches = 1001 }", 2, "director.listeners[0].limits.watches", "must be between 0 and 1000"),
    (
        OPEN + "limits = { reservations = 0 }",
        2,
        "director.listeners[0].limits.reservations",
        "must be between 1 and 10000",
    ),
    (OPEN + 'name = "a b"', 2, "director.listeners[0].name", "letters, digits"),
    (
        OPEN + 'endpoint = "tcp:9010"',
        2,
        "director.listeners[0].endpoint",
        "0.0.0.0:9010 can be reached from other machines",
    ),
    (OPEN + 'publish = "host"', 2, "director.listeners[0].publish", "must be host:port"),
    (OPEN + 'endpoint = "tcp:9000:interface=127.0.0.1"', 2, "director.listeners[0].endpoint", "is taken by"),
    (
        OPEN + 'endpoint = "tcp:9001:interface=127.0.0.1"',
        2,
        "console.endpoint",
        "taken by director.listeners[0].endpoint",
    ),
    (OPEN + OPEN + 'endpoint = "unix:/d"', 2, "director.listeners[1].name", "is that of director.listeners[0] too"),
]


@pytest.mark.parametrize(("text", "line", "key", "why"), BAD)
def test_what_is_wrong_is_told_with_its_place(text: str, line: int, key: str, why: str) -> None:
    with pytest.raises(BadConfig) as caught:
        parse(text, "x.toml")
    told = str(caught.value)
    assert told.startswith(f"x.toml:{line}: {key}: ")
    assert why in told


def test_where_a_director_that_is_off_would_be_does_not_matter() -> None:
    place = '[[director.listeners]]\nendpoint = "tcp:9000:interface=127.0.0.1"\n'
    assert not parse("[director]\nenabled = false\n" + place, "x").director.enabled


@pytest.mark.parametrize(
    ("port", "director"),
    [
        ("7000", Director(listeners=(DirectorListener(endpoint="tcp:7000:interface=127.0.0.1"),))),
        ("0", Director(listeners=(DirectorListener(endpoint="tcp:0:interface=127.0.0.1"),))),
        ("off", Director(enabled=False)),
    ],
)
def test_the_port_on_the_command_line(port: str, director: Director) -> None:
    assert configured("--director-port", port) == Config(director=director)


def test_the_port_goes_before_the_file_which_keeps_the_rest(tmp_path: Path) -> None:
    file = tmp_path / "x.toml"
    file.write_text("[director]\nenabled = false\nproviders = 5\n")
    given = configured("--config", str(file), "--director-port", "2").director
    assert given == Director(providers=5, listeners=(DirectorListener(endpoint="tcp:2:interface=127.0.0.1"),))


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("--director-port", "x"), "command line: --director-port: 'x' is no port, nor 'off'\n"),
        (
            ("--director-port", "9001"),
            "command line: console.endpoint: 127.0.0.1:9001 is taken by director.listeners[0].endpoint\n",
        ),
    ],
)
def test_a_bad_port_is_told(capsys: pytest.CaptureFixture[str], words: tuple[str, ...], told: str) -> None:
    with pytest.raises(SystemExit):
        configured(*words)
    assert capsys.readouterr().err == told


def test_a_port_does_not_replace_listeners_of_the_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "x.toml"
    file.write_text('[[director.listeners]]\nname = "a"\n')
    with pytest.raises(SystemExit):
        configured("--config", str(file), "--director-port", "7000")
    assert "the configuration file has director listeners of its own" in capsys.readouterr().err


def shown(*listeners: DirectorListener) -> list[str]:
    """The report on these, as an operator reads it. Names with a dot resolve."""
    config = Config(director=Director(listeners=listeners), journal=Journal(full_load=(FullLoad(("*",), 1.0),)))
    lines = report(config, resolves=lambda host: "." in host).split("\n")
    told = [line.removeprefix("warning: ") for line in lines]
    return [line for line in told if line.startswith("director")]


def test_a_line_for_each_listener() -> None:
    assert shown(
        DirectorListener(),
        DirectorListener("b", endpoint="unix:/run/b", allow=("user",), publish="h.x:2"),
    ) == [
        "director listener main: bound to 127.0.0.1:9010, published as 127.0.0.1:9010, allow user provider admin",
        "director listener b: bound to unix /run/b, published as h.x:2, allow user",
    ]


HERE = "director.listeners[main]: "
CLEAR = "passwords and tokens cross the network in the clear; tls: would hide them"


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        ({}, [CLEAR]),
        ({"endpoint": "tls:9010:certificate=/c:key=/k"}, []),
        ({"endpoint": "unix:/run/director"}, []),
        ({"publish": "nowhere:1"}, ["nowhere is published, but does not resolve on this machine", CLEAR]),
        (
            {"publish": None},
            ["0.0.0.0:9010 is published, which is not an address that peers can use; set publish", CLEAR],
        ),
    ],
)
def test_warnings(keys: dict[str, Any], expected: list[str]) -> None:
    _, *warnings = shown(DirectorListener(**{"endpoint": "tcp:9010", "publish": "h.x:1", **keys}))
    assert warnings == [HERE + text for text in expected]


def test_without_listeners() -> None:
    assert shown() == ["director.listeners is empty: no peer can connect to the director"]


def test_listeners_are_compared_by_name() -> None:
    a, b = DirectorListener("a"), DirectorListener("b", endpoint="unix:/b")
    old, new = Config(director=Director(listeners=(a, b))), Config(director=Director(listeners=(b,)))
    assert changes(old, new) == refused(old, new) == ["director.listeners[a]"]
    assert changes(old, Config(director=Director(listeners=(b, a)))) == []


def test_a_director_more_or_fewer_needs_a_restart() -> None:
    assert refused(Config(), Config(director=Director())) == ["director.enabled"]
