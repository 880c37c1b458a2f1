"""Actions over HTTP: what each does, and its line in the audit log."""

from __future__ import annotations

import json
from typing import Any

import pytest
from twisted.internet.defer import CancelledError

from broker.access.rights import EVERYTHING
from broker.app.configuration import Config
from broker.app.reloading import Reloader
from broker.config.daemon_settings import Broker as Settings
from broker.core.errors import Refusal
from broker.core.model import Launcher
from broker.operate import action_endpoints
from broker.operate.action_parameters import Reload
from broker.operate.actions import BY_NAME
from broker.rest.problem import Problem, problem_of
from tests.operate.calls import BOB, Log, Site, content
from tests.recording.operations import operations
from tests.threads import Thread
from tests.wires.elko.director_recording import DirectorFarm, opens
from tests.wires.recording import ElkoFarm, desc


class Broker:
    """A broker, its director and its actions."""

    def __init__(self) -> None:
        launchers = [Launcher("web", "run web"), Launcher("bad", "missing")]
        self.farm = ElkoFarm(launchers=launchers, missing={"missing"})
        self.director = DirectorFarm()
        self.log = Log()
        self.ended: list[bool] = []
        wires = {"elko": {"reinit": self.farm.wiring.reinit}, "director": {"say": self.director.director.say}}
        self.open(wires)

    def open(self, wires: dict[str, Any]) -> None:
        """Have these wires open."""
        farm = self.farm
        control = operations(wires, farm.registry, farm.launchers, shut=self.ended.append)
        self.site = Site(action_endpoints.action_endpoints(action_endpoints.Actions(control, self.log, "http")))

    def refused(self, action: str, **body: Any) -> int:
        try:
            self.site.post(f"/v1/actions/{action}", **body)
        except Problem as problem:
            return problem.status
        except Refusal as refusal:
            return problem_of(refusal).status
        raise AssertionError(f"{action} was carried out")


@pytest.fixture
def broker() -> Broker:
    return Broker()


@pytest.mark.parametrize("kill", [False, True])
def test_a_shutdown_ends_the_process(broker: Broker, kill: bool) -> None:
    response = broker.site.response("POST", "/v1/actions/shutdown", {"kill": kill})
    assert response.status == 202
    assert broker.ended == [kill]
    assert broker.log.lines == [("http", "admin.shutdown", f"kill={kill}", "done")]


def test_a_launch_starts_a_program(broker: Broker) -> None:
    assert broker.site.post("/v1/actions/launch", name="web") == {"text": "start web"}
    assert broker.farm.spawned == [("web", ["run", "web"])]
    assert (broker.refused("launch", name="bad"), broker.refused("launch", name="none")) == (409, 404)
    with pytest.raises(Refusal, match="the launcher 'bad' failed: cannot run missing"):
        broker.site.post("/v1/actions/launch", name="bad")
    assert [line[2:] for line in broker.log.lines] == [
        ("name=web", "done"),
        ("name=bad", "refused: failed"),
        ("name=none", "refused: unknown-target"),
        ("name=bad", "refused: failed"),
    ]


def test_a_withdrawal_takes_services_of_a_provider(broker: Broker) -> None:
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


def test_the_own_services_of_the_broker_cannot_be_withdrawn(broker: Broker) -> None:
    assert broker.refused("withdraw", provider=0) == 400


def test_a_reinit_reaches_the_servers(broker: Broker) -> None:
    one, other = broker.farm.client("one"), broker.farm.client("other")
    one.offer(desc("one"))
    other.offer(desc("other"))
    broker.site.post("/v1/actions/reinit", server="one")
    assert ([message["op"] for message in one.take()], other.take()) == (["reinit"], [])
    broker.site.post("/v1/actions/reinit")
    assert [message["op"] for message in one.take() + other.take()] == ["reinit", "reinit"]
    assert broker.refused("reinit", server="nobody") == 400
    assert [line[2:] for line in broker.log.lines] == [
        ("server=one", "done"),
        ("server=all", "done"),
        ("server=nobody", "refused: not-registered"),
    ]


def test_a_text_reaches_the_context(broker: Broker) -> None:
    server = broker.director.server("cs-1")
    opens(server, "context-inn")
    broker.site.post("/v1/actions/say", text="Hello there =)", context="context-inn")
    [said] = server.take()
    assert (said["op"], said["context"], said["text"]) == ("say", "context-inn", "Hello there =)")
    assert broker.refused("say", text="Hello", context="context-none") >= 400
    assert broker.refused("say", text="Hello") == 400
    assert "Hello" not in str(broker.log.lines)


def test_an_order_of_a_wire_that_is_not_open_is_not_found(broker: Broker) -> None:
    broker.open({})
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
def test_a_wrong_body_is_refused_and_does_nothing(broker: Broker, action: str, body: dict[str, Any]) -> None:
    assert broker.refused(action, **body) == 400
    assert broker.log.lines == []
    assert broker.farm.spawned == []


def test_a_wrong_parameter_in_a_path_is_refused_and_audited(broker: Broker) -> None:
    with pytest.raises(Problem, match="address"):
        broker.site.response("PUT", f"/v1/trace/{'a' * 1_025}")
    assert broker.log.lines == [("http", "admin.log", "", "refused: parameter")]
    assert broker.site.get("/v1/trace") == {"traces": []}


class Manager:
    """A service manager, and what it was sent."""

    def __init__(self) -> None:
        self.sent: list[str] = []

    def reloading(self) -> None:
        self.sent.append("reloading")

    def ready(self) -> None:
        self.sent.append("ready")


def test_a_reload_goes_on_if_its_caller_goes() -> None:
    thread, manager, log, used = Thread(), Manager(), Log(), list[Config]()
    reloader = Reloader(Config, lambda: Config(broker=Settings(grace=1.0)), lambda: (), used.append, thread)
    actions = action_endpoints.Actions(operations(reloader=reloader, notifier=manager), log, "http")
    answer = actions.perform(BY_NAME["reload"], Reload(), BOB, EVERYTHING)
    answer.addErrback(lambda failure: failure.trap(CancelledError))
    answer.cancel()
    thread.work()
    assert [each.broker.grace for each in used] == [1.0]
    assert manager.sent == ["reloading", "ready"]
    assert log.lines == [("http", "admin.reload", "", "done")]


def test_states_are_read_and_changed_by_the_paths_that_clients_know(broker: Broker) -> None:
    site = broker.site
    assert site.get("/v1/drain")["state"] == "off"
    assert site.post("/v1/actions/drain", deadline=5)["state"] == "drained"
    assert site.post("/v1/actions/drain", undo=True)["state"] == "off"
    levels = {"level": "warn", "modules": {"mtl": "debug"}}
    assert json.loads(content(site.response("PUT", "/v1/log", levels))) == levels
    assert (
        site.post("/v1/actions/log", modules={"mtl": None}) == site.get("/v1/log") == {"level": "warn", "modules": {}}
    )
    assert json.loads(content(site.response("PUT", "/v1/trace/10.0.0.7", {"seconds": 30})))["seconds"] == 30.0
    assert site.post("/v1/actions/trace", address="h:1")["seconds"] == 60.0
    assert [each["address"] for each in site.get("/v1/trace")["traces"]] == ["10.0.0.7", "h:1"]
    assert site.response("DELETE", "/v1/trace/10.0.0.7").status == 204
    assert site.post("/v1/actions/trace", address="h:1", off=True)["seconds"] == 0.0
    assert site.get("/v1/trace") == {"traces": []}
    assert broker.refused("trace", address="h:1", off=True) == 404
    assert {line[1] for line in broker.log.lines} == {"admin.drain", "admin.log"}
