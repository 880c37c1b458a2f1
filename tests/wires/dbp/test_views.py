"""The views of DBP for operators: its services, found by pattern, with the state of their contracts."""

from __future__ import annotations

import json
import unicodedata
from collections.abc import Iterator
from typing import Any

import pytest

from broker.wires.dbp.dbp_settings import Dbp
from broker.wires.dbp.dbp_wire import dbp_views
from tests.operate.test_console import Operator, enter
from tests.recording.logs import nothing_fails
from tests.wires.contexts import page
from tests.wires.dbp.recording import HERE, TEXT, THERE, DbpFarm, T
from tests.wires.recording import ElkoFarm

HERMES = {"interfaces": {"router": {"ip": "127.0.0.1", "port": 5247}}, "reg_time": "Sat Nov 21 07:37:01 2026"}


@pytest.fixture
def farm() -> Iterator[DbpFarm]:
    with nothing_fails():
        yield DbpFarm()


@pytest.fixture
def operator(farm: DbpFarm) -> Operator:
    operator = enter(ElkoFarm(), views={each.name: each for each in dbp_views(farm.catalogue, farm.leases)})
    operator.read()
    return operator


def shown(farm: DbpFarm, pattern: str = "*") -> list[dict[str, object]]:
    return [dict(row) for row in page(dbp_views(farm.catalogue, farm.leases), "dbp services", pattern)]


def names(shown: list[dict[str, Any]]) -> list[object]:
    return [each["service"] for each in shown]


def test_a_service_under_contract_is_shown_with_what_was_agreed_and_how_it_is_kept(
    farm: DbpFarm, operator: Operator
) -> None:
    farm.dealer().registered("Rohan", ip="198.51.100.9", port=6000, heartbeat=2, liveness=4)
    farm.datagram(b" <3 %b Rohan" % TEXT, (THERE, 7))
    farm.wait(1.25)
    [row] = shown(farm)
    assert row.pop("heard") == pytest.approx(1.25, abs=0.06)
    assert row == {
        "service": "Rohan",
        "provider": 1,
        "hostport": "198.51.100.9:6000",
        "address": THERE,
        "contract": True,
        "interval": 2.0,
        "liveness": 4,
        "udp": f"{THERE}:7",
        "connected": True,
    }
    text = operator.type("dbp services")
    [read] = json.loads(text)
    assert list(read) == [
        "service", "provider", "hostport", "address", "contract", "interval", "liveness", "heard", "udp", "connected",
    ]  # fmt: skip


def test_a_service_without_one_is_shown_without(farm: DbpFarm, operator: Operator) -> None:
    farm.hermes().registered("Rohan", **HERMES).close()
    assert operator.type("dbp services") == json.dumps(shown(farm), indent=2) + "\n"
    assert shown(farm) == [
        {
            "service": "Rohan",
            "provider": 1,
            "hostport": "127.0.0.1:5247",
            "address": HERE,
            "contract": False,
            "connected": False,
        }
    ]


def test_questions_that_were_not_answered_are_shown(farm: DbpFarm) -> None:
    farm.use(Dbp(probe=1.0))
    farm.hermes().registered("Rohan", **HERMES)
    farm.probes.alive.add((HERE, 5247))
    farm.wait(1.5)
    assert "unanswered" not in shown(farm)[0]
    farm.probes.alive.clear()
    farm.wait(2)
    assert shown(farm)[0]["unanswered"] in (1, 2)


def test_what_is_shown_follows_what_happens(farm: DbpFarm) -> None:
    peer = farm.dealer().registered("Rohan", port=6000)
    peer.send("UoU", T, {"port": 7000, "heartbeat": 0.001})
    [row] = shown(farm)
    assert (row["hostport"], row["contract"], row["interval"]) == (f"{THERE}:7000", True, 0.2)
    peer.close()
    assert shown(farm)[0]["connected"] is False
    farm.wait(1)
    assert shown(farm) == []


@pytest.mark.parametrize(
    ("pattern", "found"),
    [
        ("*", ["rohan-1", "rohan-2", "Gondor"]),
        ("", []),
        ("rohan*", ["rohan-1", "rohan-2"]),
        ("rohan-?", ["rohan-1", "rohan-2"]),
        ("*[2-9]", ["rohan-2"]),
        ("ROHAN*", []),
        ("rohan", []),
        ("G*r", ["Gondor"]),
        ("[", []),
    ],
)
def test_services_are_found_by_name_the_oldest_first(
    farm: DbpFarm, operator: Operator, pattern: str, found: list[str]
) -> None:
    for name in ("rohan-1", "rohan-2", "Gondor"):
        farm.dealer().registered(name)
    assert names(shown(farm, pattern)) == found
    assert names(json.loads(operator.type(f"dbp services '{pattern}'"))) == found


@pytest.mark.parametrize("name", ["\u2603", "n" * 255, "{}", "' "])
def test_any_name_can_be_shown(farm: DbpFarm, operator: Operator, name: str) -> None:
    farm.dealer().registered(name, ip="\u202e", port=6000, heartbeat=1)
    text = operator.type("dbp services")
    assert all(unicodedata.category(character) != "Cc" for character in text.replace("\n", ""))
    [row] = json.loads(text)
    assert row["service"]
    assert row["interval"] == 1.0


def test_no_more_than_an_operator_needs_is_shown(farm: DbpFarm, operator: Operator) -> None:
    """The info of a service may be long, and may hold secrets."""
    farm.dealer().registered("Rohan", token="sesame")
    assert "sesame" not in operator.type("dbp services")
