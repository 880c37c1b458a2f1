"""Actions over HTTP: what each does, and its line in the audit log."""

from __future__ import annotations

from typing import Any

import pytest

from broker.access.principal import OPERATIONS, Act
from broker.core.errors import Refusal
from broker.core.model import Launcher
from broker.operate import action_endpoints
from broker.operate.action_endpoints import Orders
from broker.rest.problem import Problem, problem_of
from broker.wires.dialect import Dialect
from broker.wires.elko.console_commands import broker_dialect, director_dialect
from tests.operate.calls import BOB, Site
from tests.wires.elko.director_recording import DirectorFarm, opens
from tests.wires.recording import ElkoFarm, desc


class Log:
    """An audit log in memory."""

    def __init__(self) -> None:
        self.acts: list[Act] = []

    def record(self, act: Act) -> None:
        self.acts.append(act)

    @property
    def lines(self) -> list[tuple[str, str, str, str]]:
        assert all(act.principal == BOB for act in self.acts)
        return [(act.listener, act.operation, act.object, act.result) for act in self.acts]


class Actions:
    """A broker, its director and its actions."""

    def __init__(self) -> None:
        launchers = [Launcher("web", "run web"), Launcher("bad", "missing")]
        self.farm = ElkoFarm(launchers=launchers, missing={"missing"})
        self.director = DirectorFarm()
        self.log = Log()
        self.dialects: list[Dialect] = [
            broker_dialect(self.farm.wiring, audit=self.log),
            director_dialect(self.director.wiring, audit=self.log),
        ]
        farm = self.farm
        orders = Orders(lambda: self.dialects, "http")
        found = action_endpoints.action_endpoints(farm.registry, farm.control, farm.launchers, orders, self.log, "http")
        assert all(each.writes and each.operation in OPERATIONS for each in found)
        self.site = Site(found)

    def refused(self, action: str, **body: Any) -> int:
        try:
            self.site.post(f"/v1/actions/{action}", **body)
        except Problem as problem:
            return problem.status
        except Refusal as refusal:
            return problem_of(refusal).status
        raise AssertionError(f"{action} was carried out")


@pytest.fixture
def broker() -> Actions:
    return Actions()


@pytest.mark.parametrize("kill", [False, True])
def test_a_shutdown_ends_the_process(broker: Actions, kill: bool) -> None:
    response = broker.site.response("POST", "/v1/actions/shutdown", {"kill": kill})
    assert response.status == 202
    assert broker.farm.control.calls == [("shut_down", kill)]
    assert broker.log.lines == [("http", "admin.shutdown", f"kill={kill}", "done")]


def test_a_launch_starts_a_program(broker: Actions) -> None:
    assert broker.site.post("/v1/actions/launch", name="web") == {"text": "start web"}
    assert broker.farm.spawned == [("web", ["run", "web"])]
    assert (broker.refused("launch", name="bad"), broker.refused("launch", name="none")) == (409, 404)
    with pytest.raises(Problem, match="the launcher 'bad' failed: cannot run missing"):
        broker.site.post("/v1/actions/launch", name="bad")
    assert [line[2:] for line in broker.log.lines] == [
        ("name=web", "done"),
        ("name=bad", "refused: parameter"),
        ("name=none", "refused: unknown-target"),
        ("name=bad", "refused: parameter"),
    ]


def test_a_withdrawal_takes_services_of_a_provider(broker: Actions) -> None:
    peer = broker.farm.client("bank-1")
    peer.offer(desc("bank"), desc("mint"), desc("shop"))
    assert broker.site.post("/v1/actions/withdraw", provider=1, name="mint") == {"services": 1}
    assert [service.name for service in broker.farm.registry.services()] == ["bank", "shop"]
    assert broker.site.post("/v1/actions/withdraw", provider=1) == {"services": 2}
    assert broker.farm.registry.services() == []
    assert broker.refused("withdraw", provider=1) == broker.refused("withdraw", provider=9) == 404
    assert broker.log.lines[0] == ("http", "admin.withdraw", "provider=1 name=mint", "done")
    # The peer goes on: it may offer and leave as before.
    peer.offer(desc("bank"))
    peer.say("broker", "load", factor=0.5)
    assert [service.name for service in broker.farm.registry.services()] == ["bank"]
    peer.drop()
    assert broker.farm.registry.services() == []


def test_the_own_services_of_the_broker_cannot_be_withdrawn(broker: Actions) -> None:
    assert broker.refused("withdraw", provider=0) == 400


def test_a_reinit_reaches_the_servers(broker: Actions) -> None:
    one, other = broker.farm.client("one"), broker.farm.client("other")
    one.offer(desc("one"))
    other.offer(desc("other"))
    broker.site.post("/v1/actions/reinit", server="one")
    assert ([message["op"] for message in one.take()], other.take()) == (["reinit"], [])
    broker.site.post("/v1/actions/reinit")
    assert [message["op"] for message in one.take() + other.take()] == ["reinit", "reinit"]
    assert broker.refused("reinit", server="nobody") == 400
    assert [line[0] for line in broker.log.lines] == ["http"] * 3, "each is recorded once"
    assert broker.farm.control.calls == []


def test_a_text_reaches_the_context(broker: Actions) -> None:
    server = broker.director.server("cs-1")
    opens(server, "context-inn")
    broker.site.post("/v1/actions/say", text="Hello there =)", context="context-inn")
    [said] = server.take()
    assert (said["op"], said["context"], said["text"]) == ("say", "context-inn", "Hello there =)")
    assert broker.refused("say", text="Hello", context="context-none") >= 400
    assert broker.refused("say", text="Hello") == 400
    assert "Hello" not in str(broker.log.lines)


def test_an_order_of_a_wire_that_is_not_open_is_not_found(broker: Actions) -> None:
    broker.dialects.clear()
    assert broker.refused("say", text="Hello", context="context-inn") == 404


@pytest.mark.parametrize(
    ("action", "body"),
    [
        ("launch", {}),
        ("launch", {"name": ""}),
        ("launch", {"name": "web", "more": 1}),
        ("withdraw", {"provider": "1"}),
        ("withdraw", {"provider": -1}),
        ("shutdown", {"kill": "yes"}),
        ("say", {"text": "x" * 10_001, "user": "u"}),
    ],
)
def test_a_wrong_body_is_refused_and_does_nothing(broker: Actions, action: str, body: dict[str, Any]) -> None:
    assert broker.refused(action, **body) == 400
    assert broker.log.lines == []
    assert broker.farm.spawned == []
