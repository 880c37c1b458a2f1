"""Names of services: no wire registers one that another wire, or a view in lines, could not show."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from broker.core.errors import Reason, Refusal
from broker.core.model import MAX_NAME, check_service_name
from tests.wires.dbp.recording import DbpFarm, T
from tests.wires.http.recording import HttpFarm
from tests.wires.recording import ElkoFarm, desc

UNFIT = ["a\nb", "a\0", "\x1b[2Jbank", "a\x7f", "a\x85b", "a\u2028b", "a\u202eb", "\ud800"]
"""Names with characters that end a line, steer a terminal, or cannot be encoded."""

STEPS = [".", ".."]
"""Names that HTTP clients resolve in a path."""

FIT = ["bank", "context-user", "Banking Service 2", "größe", "a/b", "...", ".a", "{x}", "銀行", "n" * MAX_NAME]
"""Names as peers have them: those of Elko with hyphens, those of DBP and Consul also with spaces and umlauts."""


@pytest.mark.parametrize("name", FIT, ids=ascii)
def test_a_printable_name_is_fit(name: str) -> None:
    check_service_name("service", name)


@pytest.mark.parametrize("name", ["", "n" * (MAX_NAME + 1), *UNFIT, *STEPS], ids=ascii)
def test_any_other_name_is_refused(name: str) -> None:
    with pytest.raises(Refusal, match="the name of a service ") as refused:
        check_service_name("service", name)
    assert refused.value.reason is Reason.PARAMETER
    assert refused.value.text.isprintable()


def _elko(farm: ElkoFarm, name: str) -> Any:
    [diagnostic] = farm.client("provider").ask("client", "willserve", services=[desc(name)])
    return diagnostic["msg"]


def _dbp(farm: ElkoFarm, name: str) -> Any:
    [answer] = (
        DbpFarm(clock=farm.clock, registry=farm.registry)
        .dealer()
        .ask("UwU", T, {"name": name, "ip": "192.0.2.1", "port": 80})
    )
    return answer


def _http(farm: ElkoFarm, name: str) -> Any:
    answered = HttpFarm(farm).put(name, "1", "h:1")
    assert (answered.status, answered.json["code"]) == (400, "parameter")
    return answered.json["detail"]


REFUSALS: dict[str, Callable[[ElkoFarm, str], Any]] = {"elko": _elko, "dbp": _dbp, "http": _http}
"""The words in which each wire refuses a name. MTL's are those of its codec, where a name is a short string."""


NOT_REGISTERED = {
    **{name: "not printable" for name in UNFIT if name != "\ud800"},
    **dict.fromkeys(STEPS, "a step in a path of HTTP"),
}
"""Names with the reason that each wire gives."""


@pytest.mark.parametrize("name", NOT_REGISTERED, ids=ascii)
@pytest.mark.parametrize("wire", REFUSALS)
def test_no_wire_registers_a_name_that_cannot_be_shown_or_be_part_of_a_path(wire: str, name: str) -> None:
    farm = ElkoFarm()
    said = REFUSALS[wire](farm, name)
    assert NOT_REGISTERED[name] in str(said)
    assert list(farm.registry.names()) == []


@pytest.mark.parametrize("instance", STEPS)
def test_http_registers_no_instance_whose_name_no_path_can_hold(instance: str) -> None:
    farm = ElkoFarm()
    answered = HttpFarm(farm).put("bank", instance, "h:1")
    assert (answered.status, answered.json["code"]) == (400, "parameter")
    assert "a step in a path of HTTP" in answered.json["detail"]
    assert list(farm.registry.names()) == []


@pytest.mark.parametrize("wire", ["elko", "dbp"])  # in HTTP there is no path without a name
def test_no_wire_registers_an_empty_name(wire: str) -> None:
    farm = ElkoFarm()
    said = REFUSALS[wire](farm, "")
    assert "is empty" in str(said)
    assert list(farm.registry.names()) == []


@pytest.mark.parametrize("name", FIT[:-1], ids=ascii)
def test_each_wire_registers_a_fit_name(name: str) -> None:
    farm = ElkoFarm()
    farm.client("provider").offer(desc(name))
    DbpFarm(clock=farm.clock, registry=farm.registry).dealer().registered(name, ip="192.0.2.1", port=80)
    assert HttpFarm(farm).put(name, "1", "h:2").status == 201
    assert [each.hostport for each in farm.registry.find(name, "tcp")] == ["h:1", "192.0.2.1:80", "h:2"]


def test_elko_refuses_a_protocol_that_cannot_be_shown() -> None:
    farm = ElkoFarm()
    [diagnostic] = farm.client("provider").ask("client", "willserve", services=[desc("bank", protocol="t\np")])
    assert "the name of a protocol" in diagnostic["msg"]
    assert list(farm.registry.names()) == []
