"""Transports of listeners: what goes with which, and what an operator is told."""

from __future__ import annotations

from typing import Literal

import pytest

from broker.app.configuration import Config, problems, report
from broker.wires.elko.elko_settings import MAX_ORIGINS, MAX_PATH, BrokerListener, Director, DirectorListener, Elko

Transport = Literal["tcp", "websocket", "http", "rtcp"]


def wrong(transport: Transport = "websocket", path: str | None = None, origins: tuple[str, ...] = ()) -> list[str]:
    """The problems of a listener, in short."""
    listener = BrokerListener(transport=transport, path=path, origins=origins)
    return [f"{problem.key}: {problem.text}" for problem in listener.problems("here")]


@pytest.mark.parametrize("transport", ["tcp", "rtcp"])
def test_only_what_browsers_use_has_a_path_and_origins(transport: Transport) -> None:
    why = 'has no effect without transport = "websocket" or "http"'
    assert wrong(transport) == []
    assert wrong(transport, "/", ("*",)) == [f"here.path: {why}", f"here.origins: {why}"]


@pytest.mark.parametrize("path", ["/", "/elko", "/a/b-c_d.e~f/", "/" + "x" * (MAX_PATH - 1)])
def test_good_paths(path: str) -> None:
    assert wrong("http", path) == []


@pytest.mark.parametrize("path", ["", "elko", "/a b", "/a?b", "/a#b", "/ä", "/a\n", "/" + "x" * MAX_PATH])
def test_bad_paths(path: str) -> None:
    [problem] = wrong("http", path)
    assert problem.startswith("here.path: ")


@pytest.mark.parametrize(
    "origin",
    ["*", "null", "https://game.example.org", "http://127.0.0.1:8080", "https://[2001:db8::1]:8443", "app://x"],
)
def test_good_origins(origin: str) -> None:
    assert wrong(origins=(origin,)) == []


@pytest.mark.parametrize(
    "origin",
    ["", "game.example.org", "https://game.example.org/", "https://game.example.org/play", "https://", "https://*.org"],
)
def test_bad_origins(origin: str) -> None:
    [problem] = wrong(origins=("https://good.example.org", origin))
    assert problem.startswith("here.origins[1]: must be an origin such as ")


@pytest.mark.parametrize("origin", ["https://game.example.org:443", "http://game.example.org:80"])
def test_an_origin_that_no_browser_sends(origin: str) -> None:
    assert wrong(origins=(origin,)) == ["here.origins[0]: names the default port of its scheme, which browsers omit"]


def test_too_many_origins() -> None:
    assert wrong(origins=("*",) * MAX_ORIGINS) == []
    assert wrong(origins=("*",) * (MAX_ORIGINS + 1)) == [f"here.origins: has more than {MAX_ORIGINS} entries"]


def test_listeners_of_the_broker_and_of_the_director_are_judged_alike() -> None:
    config = Config(
        elko=Elko((BrokerListener(path="/x"),)),
        director=Director(listeners=(DirectorListener(origins=("*",)),)),
    )
    assert [key for key, _ in problems(config)] == ["elko.listeners[0].path", "director.listeners[0].origins"]


@pytest.mark.parametrize(
    ("listener", "shown"),
    [
        (BrokerListener(transport="rtcp"), "rtcp bound to 127.0.0.1:9000"),
        (BrokerListener(transport="http"), "http at / for no pages, bound to 127.0.0.1:9000"),
        (
            BrokerListener(
                transport="websocket", path="/elko", origins=("https://a.example.org", "https://b.example.org")
            ),
            "websocket at /elko for https://a.example.org https://b.example.org pages, bound to 127.0.0.1:9000",
        ),
    ],
)
def test_the_report_says_what_carries_the_messages(listener: BrokerListener, shown: str) -> None:
    first, *rest = report(Config(elko=Elko((listener,)))).split("\n")
    assert first.startswith(f"listener main: {shown}, published as ")
    assert not any("origins" in line for line in rest)


@pytest.mark.parametrize(("origin", "warned"), [("*", "every page"), ("null", "null is the origin of many pages")])
def test_pages_that_nobody_knows_are_warned_of(origin: str, warned: str) -> None:
    listener = BrokerListener(transport="http", origins=(origin,))
    lines = report(Config(elko=Elko((listener,)))).split("\n")
    assert sum(warned in line for line in lines) == 1
