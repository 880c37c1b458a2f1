"""Real brokers with a real etcd: what operators and clients see."""

from __future__ import annotations

import base64
import json
import signal
import socket
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.cluster.brokers import Brokers
from tests.patience import until


@pytest.fixture
def brokers(tmp_path: Path) -> Iterator[Brokers]:
    with Brokers(tmp_path, "a", "b") as brokers:
        yield brokers


def test_a_service_of_one_broker_is_found_at_the_other_and_goes_with_a_killed_one(brokers: Brokers) -> None:
    with brokers["a"].server("bank-1", "bank", "10.0.0.1:80"):
        brokers.see("bank", "10.0.0.1:80")
        [row] = brokers["b"].get("/v1/services?pattern=bank")["rows"]
        assert row["broker"] == "a"
        [entry] = brokers["b"].get("/v1/why/bank")["entries"]
        assert entry["broker"] == "a"
        lease = brokers.etcd.get("/elkobroker/default/b/a")["lease"]
        brokers.kill("a")
        until(lambda: brokers["b"].found("bank") == [], "the entry of the dead broker goes")
        # Not sooner: a broker that is started again within its lease keeps its services.
        assert int(brokers.etcd.ask("lease/timetolive", {"ID": lease}).get("TTL", 0)) <= 0
        until(lambda: brokers["b"].members() == ["b"], "the dead broker is no member")


def test_finds_miss_nothing_when_etcd_revokes_the_lease_of_a_live_broker(tmp_path: Path) -> None:
    """As a former leader that returns from a partition may do."""
    # Beats of a busy machine are late: half of this TTL is long enough for them.
    with Brokers(tmp_path, "a", "b", ttl=20) as brokers:

        def restored() -> str:
            """The lease of the broker once it has restored its registrations."""
            found = brokers.etcd.get("/elkobroker/default/b/a")
            return found["lease"] if b"restored" in base64.b64decode(found.get("value", "")) else ""

        with brokers["a"].server("bank-1", "bank", "10.0.0.1:80"):
            brokers.see("bank", "10.0.0.1:80")
            b = brokers["b"]
            until(lambda: any(each["linked"] for each in b.get("/v1/cluster")["members"]), "the link is open")
            before = until(restored, "its lease")
            beat = brokers.etcd.get("/elkobroker/default/beat/a")
            until(
                lambda: brokers.etcd.get("/elkobroker/default/beat/a") != beat,
                "a beat that is an event for the other broker",
            )
            b.get("/v1/services/bank?consistent=true")
            brokers.etcd.ask("lease/revoke", {"ID": before})
            looks: list[list[str]] = []

            def returned() -> bool:
                looks.append(b.found("bank"))
                return restored() not in ("", before)

            until(returned, "another lease")
            looks += [b.found("bank") for _ in range(20)]
            assert set(map(tuple, looks)) == {("10.0.0.1:80",)}
        until(lambda: b.found("bank") == [], "an end after it counts")


@pytest.mark.long
def test_a_broker_without_etcd_waits_with_closed_listeners(tmp_path: Path) -> None:
    with Brokers(tmp_path) as brokers:
        brokers.etcd.members[0].stop()
        broker = brokers.launch("a")
        broker.wait_for("the listeners open once this broker has joined")
        assert not any("console on" in line for line in broker.log)
        brokers.etcd.members[0].start()
        broker.wait_for("console on")
        broker.process.terminate()
        assert broker.ended() == -signal.SIGTERM


@pytest.mark.parametrize(
    ("number", "status"),
    [(signal.SIGTERM, -signal.SIGTERM), (signal.SIGINT, -signal.SIGINT), (signal.SIGQUIT, 0)],
    ids=["SIGTERM", "SIGINT", "SIGQUIT"],
)
def test_a_broker_that_waits_stops_in_order(tmp_path: Path, number: signal.Signals, status: int) -> None:
    with Brokers(tmp_path) as brokers:
        brokers.etcd.members[0].stop()
        broker = brokers.launch("a")
        broker.wait_for("joins the farm")
        broker.signal(number)
        assert broker.ended() == status
        broker.wait_for("stopped")
        assert not any("Traceback" in line or " critical " in line for line in broker.log)


def test_a_broker_whose_etcd_goes_away_is_degraded_and_serves(brokers: Brokers) -> None:
    with brokers["a"].server("bank-1", "bank", "10.0.0.1:80"):
        brokers.see("bank", "10.0.0.1:80")
        brokers.etcd.members[0].stop()
        b = brokers["b"]
        until(lambda: b.degraded(), "the broker is degraded")
        assert b.get("/readyz")["ready"]
        assert b.found("bank") == ["10.0.0.1:80"]
        b.offer("mint", "10.0.0.2:80")
        assert b.found("mint") == ["10.0.0.2:80"]
        brokers.etcd.members[0].start()
        until(lambda: not b.degraded(), "the broker is whole again")
        brokers.see("mint", "10.0.0.2:80")
        brokers.see("bank", "10.0.0.1:80")


def test_a_drain_is_visible_at_the_other_broker(brokers: Brokers) -> None:
    def draining() -> list[str]:
        return [each["member"] for each in brokers["b"].get("/v1/cluster")["members"] if each["draining"]]

    status, _ = brokers["a"].call("POST", "/v1/actions/drain", {"deadline": 5})
    assert status == 200
    until(lambda: draining() == ["a"], "the drain is visible")
    brokers["a"].call("POST", "/v1/actions/drain", {"undo": True})
    until(lambda: draining() == [], "the end of the drain is visible")


@pytest.mark.long
def test_a_service_that_fails_at_its_holder_is_hidden_at_the_other_broker(tmp_path: Path) -> None:
    checks = (
        '[checks]\nnetworks = ["127.0.0.0/8"]\n[[checks.rules]]\nservices = ["bank"]\nkind = "tcp"\n'
        'interval = 1.0\ntimeout = 1.0\ndown = 1\nup = 1\npolicy = "hide"\n'
    )
    with Brokers(tmp_path) as brokers, ExitStack() as servers:
        brokers.start("a", config=checks)
        brokers.start("b")
        ports = [socket.create_server(("127.0.0.1", 0)) for _ in range(3)]
        places = [f"127.0.0.1:{port.getsockname()[1]}" for port in ports]
        for number, (port, place) in enumerate(zip(ports, places, strict=True)):
            servers.enter_context(port)
            servers.enter_context(brokers["a"].server(f"bank-{number}", "bank", place))
        brokers.see("bank", *places)
        ports[0].close()
        brokers.see("bank", *places[1:])
        rows = brokers["b"].get("/v1/services?pattern=bank")["rows"]
        assert {row["hostport"]: row.get("check") for row in rows}[places[0]] == "failing"
        servers.enter_context(socket.create_server(("127.0.0.1", int(places[0].rpartition(":")[2]))))
        brokers.see("bank", *places)


def test_members_have_links_and_listeners(brokers: Brokers) -> None:
    def rows() -> dict[str, dict[str, object]]:
        return {each["member"]: each for each in brokers["b"].get("/v1/cluster")["members"]}

    until(lambda: rows()["a"]["linked"], "the link is open")
    elko = f"elko listener 'main' tcp://127.0.0.1:{brokers['a'].port()}"
    until(lambda: elko in rows()["a"]["listeners"], "the listeners are published")  # type: ignore[operator]
    assert rows()["b"]["here"]
    assert isinstance(rows()["b"]["lag_ms"], float)
    assert json.dumps(rows())


def test_a_broker_ends_where_the_layout_is_newer_than_it_knows(tmp_path: Path) -> None:
    with Brokers(tmp_path) as brokers:
        key, value = b"/elkobroker/default/meta", json.dumps({"layout": 99, "epoch": "x"}).encode()
        put = {"key": base64.b64encode(key).decode(), "value": base64.b64encode(value).decode()}
        brokers.etcd.members[0].ask("kv/put", put)
        broker = brokers.launch("a")
        assert broker.ended() == 1
        broker.wait_for("elkobroker ends: .*99")
        assert not any("Traceback" in line for line in broker.log)


def test_a_reload_of_the_grace_applies_to_what_the_other_brokers_find(tmp_path: Path) -> None:
    """The services that a broker remembers from before its restart end with the new grace period."""
    grace = "[broker]\ngrace = {}\n"
    with Brokers(tmp_path, "b", ttl=20) as farm:
        a = farm.start("a", config=grace.format(600))
        with a.server("bank-1", "bank", "h:1"):
            farm.see("bank", "h:1")
            farm.kill("a")
        a = farm.start("a", config=grace.format(600))
        assert farm["b"].found("bank") == ["h:1"]
        file = tmp_path / "a" / "broker.toml"
        file.write_text(file.read_text().replace(grace.format(600), grace.format(0.1)))
        a.signal(signal.SIGHUP)
        farm.see("bank")
