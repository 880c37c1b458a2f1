"""The section of HTTP: its checks, what --check prints, and the command-line option."""

from __future__ import annotations

import pytest

from broker.wires.http.http_settings import SECTION, Http

OUTSIDE = "tcp:80:interface=0.0.0.0"


@pytest.mark.parametrize(
    ("http", "keys"),
    [
        (Http(), []),
        (Http(endpoint=OUTSIDE), []),
        (Http(endpoint="unix:/run/http"), []),
        (Http(endpoint="http:80"), ["http.endpoint"]),
        (Http(hosts=("broker.example.com", "*", "localhost")), []),
        (Http(hosts=("ok", "Upper.example", "a:80", "")), ["http.hosts[1]", "http.hosts[2]", "http.hosts[3]"]),
        (Http(connections=0, max_body=1), ["http.connections", "http.max_body"]),
        (Http(waiting=-1), ["http.waiting"]),
    ],
)
def test_problems(http: Http, keys: list[str]) -> None:
    assert [problem.key for problem in SECTION.problems(http)] == keys


def test_warnings() -> None:
    def found(http: Http) -> list[str]:
        return [warning.split(":")[0] for warning in http.warnings(lambda host: True)]

    assert found(Http()) == []
    assert found(Http(enabled=False, endpoint=OUTSIDE, hosts=("*",))) == []
    assert found(Http(hosts=("*",))) == ["http.hosts"]
    assert found(Http(endpoint=OUTSIDE)) == ["http"]
    assert found(Http(endpoint="tls:443:certificate=/c:key=/k")) == []


def test_the_option_moves_the_listener_or_switches_it_off() -> None:
    assert SECTION.option is not None
    assert SECTION.option.name == "http-port"
    assert not SECTION.option.use(Http(), None).enabled
    moved = SECTION.option.use(Http(enabled=False, endpoint=OUTSIDE), 81)
    assert (moved.enabled, moved.endpoint) == (True, "tcp:81:interface=127.0.0.1")


def test_the_binding_is_not_required_for_the_start() -> None:
    [binding] = SECTION.bindings(Http())
    assert (binding.title, binding.where.where, binding.required) == ("http", "127.0.0.1:9080", False)
    assert list(SECTION.bindings(Http(enabled=False))) == []
