"""The commands of administrators: see services and loads, watch them, steer the servers, and start programs."""

from __future__ import annotations

from typing import Any

import pytest

from broker.core.model import BROKER, Auth, Launcher, Service
from tests.access.memory import MemoryAccess
from tests.wires.recording import Client, ElkoFarm, desc, told

SECRET = {"type": "auth", "mode": "password", "code": "sesame"}


@pytest.fixture
def farm() -> ElkoFarm:
    return ElkoFarm()


def services(*descriptors: dict[str, Any], on: bool = True) -> dict[str, Any]:
    return {"to": "admin", "op": "servicedesc", "desc": list(descriptors), "on": on}


def loads(*descriptors: tuple[str, float, int]) -> dict[str, Any]:
    desc = [{"type": "loaddesc", "label": label, "load": load, "provider": id} for label, load, id in descriptors]
    return {"to": "admin", "op": "loaddesc", "desc": desc}


# servicedesc


def test_servicedesc_tells_all_services_the_brokers_own_included(farm: ElkoFarm) -> None:
    farm.registry.offer_own([Service("broker-admin", "h:9000", BROKER)])
    admin, one, two = farm.admin(), farm.client(), farm.client()
    one.offer(desc("bank", "h:1"), desc("bank", "h:2", protocol="http"))
    two.offer(desc("shop", "h:3", label="l", auth=SECRET))
    [reply] = admin.ask("admin", "servicedesc")
    assert list(reply) == ["to", "op", "desc", "on"]
    expected = services(
        told("broker-admin", 0, "h:9000"),
        told("bank", 1, "h:1"),
        told("bank", 1, "h:2", "http"),
        told("shop", 2, "h:3", label="l", auth=SECRET),
    )
    assert reply == expected
    assert admin.ask("admin", "servicedesc", protocol="http") == [expected], "protocol counts with a service only"


def test_servicedesc_of_one_service(farm: ElkoFarm) -> None:
    admin, client = farm.admin(), farm.client()
    client.offer(desc("bank", "h:1"), desc("bank", "h:2", protocol="http"), desc("shop", "h:3"))
    assert admin.ask("admin", "servicedesc", service="bank") == [services(told("bank", 1, "h:1"))]
    assert admin.ask("admin", "servicedesc", service="bank", protocol="http") == [
        services(told("bank", 1, "h:2", "http"))
    ]
    assert admin.ask("admin", "servicedesc", service="none") == [services()]
    assert admin.ask("admin", "servicedesc", service="bank", protocol="rtcp") == [services()]


@pytest.mark.parametrize(("local", "users", "shown"), [(True, False, True), (False, False, False), (False, True, True)])
def test_secrets_are_shown_to_the_trusted_only(local: bool, users: bool, shown: bool) -> None:
    farm = ElkoFarm()
    farm.registry.offer_own([Service("broker-admin", "h:9000", BROKER, auth=Auth("password", "sesame"))])
    farm.access = MemoryAccess(tokens={"pw": "operator"}) if users else farm.access
    admin = farm.connect(local=local)
    admin.say("admin", "auth", **({"auth": {"mode": "password", "code": "pw"}} if users else {}))
    [reply] = admin.ask("admin", "servicedesc")
    expected = told("broker-admin", 0, "h:9000")
    assert reply["desc"] == [expected if not shown else told("broker-admin", 0, "h:9000", auth=SECRET)]


# loaddesc


@pytest.fixture
def servers(farm: ElkoFarm) -> dict[str, Client]:
    """Four servers: two of the same label, one that is named like another's id, and one that offers nothing."""
    clients = {name: farm.client(label) for name, label in {"a": "twin", "b": "twin", "c": "1", "d": "idle"}.items()}
    clients["a"].offer(desc("bank", "h:1"), desc("bank", "h:1"), desc("shop", "h:2", protocol="http"))
    clients["b"].offer(desc("bank", "h:3", protocol="http"))
    clients["c"].offer(desc("shop", "h:1"))
    for load, client in enumerate(clients.values()):
        client.say("broker", "load", factor=load)
    return clients


def test_loaddesc_has_all_providers_also_those_without_services(farm: ElkoFarm, servers: dict[str, Client]) -> None:
    farm.client("new")
    expected = loads(("twin", 0.0, 1), ("twin", 1.0, 2), ("1", 2.0, 3), ("idle", 3.0, 4), ("new", 0.0, 5))
    assert farm.admin().ask("admin", "loaddesc") == [expected]


@pytest.mark.parametrize(
    ("server", "ids"),
    [("twin", [1, 2]), ("idle", [4]), ("h:1", [1, 3]), ("h:3", [2]), ("2", [2]), ("1", [1, 3]), ("0", []), ("all", [])],
)
def test_loaddesc_by_server_is_by_label_hostport_or_id(
    farm: ElkoFarm, servers: dict[str, Client], server: str, ids: list[int]
) -> None:
    [reply] = farm.admin().ask("admin", "loaddesc", server=server)
    assert [each["provider"] for each in reply["desc"]] == ids


@pytest.mark.parametrize(("service", "ids"), [("bank", [1, 2]), ("shop", [1, 3]), ("none", []), ("twin", [])])
def test_loaddesc_by_service_is_in_every_protocol(
    farm: ElkoFarm, servers: dict[str, Client], service: str, ids: list[int]
) -> None:
    [reply] = farm.admin().ask("admin", "loaddesc", service=service)
    assert [each["provider"] for each in reply["desc"]] == ids


def test_loaddesc_by_both_is_by_both(farm: ElkoFarm, servers: dict[str, Client]) -> None:
    [reply] = farm.admin().ask("admin", "loaddesc", service="shop", server="twin")
    assert [each["provider"] for each in reply["desc"]] == [1]


# watch


def test_watching_services_begins_with_all_of_them_and_goes_on_with_each(farm: ElkoFarm) -> None:
    admin, client = farm.admin(), farm.client()
    client.offer(desc("bank", "h:1"))
    assert admin.ask("admin", "watch", services=True) == [services(told("bank", 1, "h:1"))]
    client.offer(desc("shop", "h:2"), desc("shop", "h:3"))
    assert admin.take() == [services(told("shop", 1, "h:2")), services(told("shop", 1, "h:3"))]
    client.say("broker", "wontserve", services=["shop", "never"])
    assert admin.take() == [services(told("shop", 1, "h:2"), on=False), services(told("shop", 1, "h:3"), on=False)]
    client.drop()
    assert admin.take() == [services(told("bank", 1, "h:1"), on=False)]


def test_watching_loads_begins_with_all_of_them_and_goes_on_with_each(farm: ElkoFarm) -> None:
    admin, client = farm.admin(), farm.client("one")
    assert admin.ask("admin", "watch", load=True) == [loads(("one", 0.0, 1))]
    client.say("broker", "load", factor=0.5)
    client.say("broker", "load", factor=-3)
    assert admin.take() == [loads(("one", 0.5, 1)), loads(("one", 0.0, 1))]
    client.drop()
    assert admin.take() == [], "a load that goes is not told"


def test_services_are_told_before_loads(farm: ElkoFarm) -> None:
    farm.client("one").offer(desc("bank"))
    assert farm.admin().ask("admin", "watch", load=True, services=True) == [
        services(told("bank", 1)),
        loads(("one", 0.0, 1)),
    ]


def test_watching_again_tells_all_again_and_each_change_once(farm: ElkoFarm) -> None:
    admin, client = farm.admin(), farm.client("one")
    for _ in range(3):
        assert len(admin.ask("admin", "watch", services=True, load=True)) == 2
    client.offer(desc("bank"))
    client.say("broker", "load", factor=1)
    assert admin.take() == [services(told("bank", 1)), loads(("one", 1.0, 1))]


def test_each_kind_is_unwatched_alone_and_what_is_not_said_stays(farm: ElkoFarm) -> None:
    admin, client = farm.admin(), farm.client("one")
    admin.ask("admin", "watch", services=True, load=True)
    assert admin.ask("admin", "watch", services=False) == []
    client.offer(desc("bank"))
    client.say("broker", "load", factor=1)
    assert admin.take() == [loads(("one", 1.0, 1))]
    assert admin.ask("admin", "watch") == []
    assert admin.ask("admin", "watch", services=None, load=None) == []
    client.say("broker", "load", factor=2)
    assert admin.take() == [loads(("one", 2.0, 1))]
    assert admin.ask("admin", "watch", load=False) == []
    assert admin.ask("admin", "watch", load=False, services=False) == []
    client.say("broker", "load", factor=3)
    assert admin.take() == []


def test_an_unwatch_is_the_own_one_only(farm: ElkoFarm) -> None:
    stays, goes, client = farm.admin(), farm.admin(), farm.client("one")
    for admin in (stays, goes):
        admin.ask("admin", "watch", services=True, load=True)
    goes.say("admin", "watch", services=False, load=False)
    goes.say("admin", "watch", services=False, load=False)
    client.offer(desc("bank"))
    client.say("broker", "load", factor=1)
    assert goes.take() == []
    assert len(stays.take()) == 2


def test_an_administrator_hears_of_its_own_doings(farm: ElkoFarm) -> None:
    both = farm.client("both")
    both.say("admin", "auth", label="both")
    both.ask("admin", "watch", services=True, load=True)
    both.offer(desc("bank"))
    both.say("client", "load", factor=1)
    assert both.take() == [services(told("bank", 1)), loads(("both", 1.0, 1))]


@pytest.mark.parametrize("goodbye", ["drop", "disconnect", "end of input"])
def test_a_watcher_that_goes_is_told_nothing_more(farm: ElkoFarm, goodbye: str) -> None:
    admin, client = farm.admin(), farm.client("one")
    admin.ask("admin", "watch", services=True, load=True)
    if goodbye == "drop":
        admin.session.lost()
    elif goodbye == "disconnect":
        admin.say("admin", "disconnect")
    else:
        admin.session.input_ended()
    client.offer(desc("bank"))
    client.say("broker", "load", factor=1)
    assert admin.take() == []


def test_each_watcher_is_told_what_it_may_see(farm: ElkoFarm) -> None:
    trusted, stranger, again = farm.admin(), farm.admin(local=False), farm.admin()
    for admin in (trusted, stranger, again):
        admin.ask("admin", "watch", services=True)
    client = farm.client()
    client.offer(desc("bank", auth=SECRET), desc("shop"))
    client.say("broker", "wontserve", services=["bank"])
    for admin in (trusted, again):
        secret = told("bank", 1, auth=SECRET)
        assert admin.take() == [services(secret), services(told("shop", 1)), services(secret, on=False)]
    assert stranger.take() == [
        services(told("bank", 1)),
        services(told("shop", 1)),
        services(told("bank", 1), on=False),
    ]


def test_a_notice_is_encoded_once_for_all_who_may_see_the_same(farm: ElkoFarm) -> None:
    admins = [farm.admin(local=number % 2 == 0) for number in range(6)]
    for admin in admins:
        admin.ask("admin", "watch", services=True, load=True)
    client = farm.client()
    client.offer(desc("bank", auth=SECRET), desc("shop"))
    client.say("broker", "load", factor=1)
    sent = [admin.peer.written for admin in admins]
    for number, ways in enumerate((2, 1, 1)):  # the secret, no secret, the load
        assert len({id(written[number]) for written in sent}) == ways


# reinit and shutdown


def asked(servers: dict[str, Client]) -> dict[str, list[dict[str, Any]]]:
    """The messages by receiver, without receivers of none."""
    return {name: told for name, client in servers.items() if (told := client.take())}


@pytest.mark.parametrize(
    ("server", "names"),
    [
        ("twin", "ab"),
        ("idle", "d"),
        ("h:1", "ac"),
        ("2", "b"),
        ("1", "ac"),
        ("all", "abcd"),
        ("none", ""),
        ("0", ""),
        ("ALL", ""),
        (None, ""),
        ("", ""),
    ],
)
@pytest.mark.parametrize("op", ["reinit", "shutdown"])
def test_the_servers_that_are_meant_are_told_and_the_administrator_is_not(
    farm: ElkoFarm, servers: dict[str, Client], op: str, server: str | None, names: str
) -> None:
    admin = farm.admin()
    assert admin.ask("admin", op, server=server) == []
    assert asked(servers) == {name: [{"to": "broker", "op": op}] for name in names}
    assert farm.control.calls == []


def test_servers_are_told_in_the_name_that_they_authenticated_to(farm: ElkoFarm) -> None:
    servers = {name: farm.client(name=name) for name in ("broker", "client")}
    servers["broker"].ask("client", "ping")
    admin = farm.admin()
    admin.say("admin", "reinit", server="all")
    admin.say("admin", "shutdown", server="all", kill=True)
    assert asked(servers) == {
        name: [{"to": name, "op": "reinit"}, {"to": name, "op": "shutdown", "kill": True}] for name in servers
    }


def test_a_server_with_both_roles_is_told_as_a_client(farm: ElkoFarm) -> None:
    both = farm.admin("both")
    both.say("client", "auth", label="both")
    both.say("admin", "reinit", server="both")
    assert both.take() == [{"to": "client", "op": "reinit"}]


@pytest.mark.parametrize("kill", [True, False, None])
def test_kill_is_told_where_it_is_meant(farm: ElkoFarm, servers: dict[str, Client], kill: bool | None) -> None:
    farm.admin().say("admin", "shutdown", server="idle", kill=kill)
    expected = {"to": "broker", "op": "shutdown", **({"kill": True} if kill else {})}
    assert asked(servers) == {"d": [expected]}


def test_servers_that_are_gone_are_not_told(farm: ElkoFarm, servers: dict[str, Client]) -> None:
    servers["d"].drop()
    servers["a"].session.input_ended()
    servers["a"].take()
    farm.admin().say("admin", "reinit", server="all")
    assert asked(servers).keys() == {"b", "c"}


@pytest.mark.parametrize(
    ("op", "parameters", "calls"),
    [
        ("reinit", {"self_": True}, [("reload", None)]),
        ("reinit", {"self_": False}, []),
        ("shutdown", {"self_": True}, [("shutdown", False)]),
        ("shutdown", {"self_": True, "kill": True}, [("shutdown", True)]),
        ("shutdown", {"self_": True, "kill": True, "server": "none"}, [("shutdown", False)]),
        ("shutdown", {"self_": True, "kill": True, "server": "all"}, [("shutdown", False)]),
        ("shutdown", {"kill": True}, []),
        ("shutdown", {}, []),
    ],
)
def test_the_broker_itself(farm: ElkoFarm, op: str, parameters: dict[str, Any], calls: list[Any]) -> None:
    assert farm.admin().ask("admin", op, **parameters) == []
    assert farm.control.calls == calls


@pytest.mark.parametrize("op", ["reinit", "shutdown"])
def test_the_broker_comes_after_the_servers(farm: ElkoFarm, servers: dict[str, Client], op: str) -> None:
    told: list[str] = []
    farm.control.then = lambda: told.extend(asked(servers))
    farm.admin().say("admin", op, server="all", self_=True)
    assert told == ["a", "b", "c", "d"]


# launchers


TABLE = [
    Launcher("twin", "run twin", on=True),
    Launcher("idle", "run idle --now", initial=True, on=True),
    Launcher("h:3", "run it", on=True),
    Launcher("all", "run all", on=True),
    Launcher("missing", "nowhere"),
]


@pytest.fixture
def launching() -> ElkoFarm:
    farm = ElkoFarm(launchers=TABLE, missing=["nowhere"])
    for label in ("twin", "idle"):
        farm.client(label).offer(desc("x", f"{label}:1"))
    return farm


def switched_on(farm: ElkoFarm) -> list[str]:
    [reply] = farm.admin().ask("admin", "launcherdesc")
    return [launcher["name"] for launcher in reply["launchers"] if launcher["on"]]


def test_the_table_is_told_in_full(launching: ElkoFarm) -> None:
    [reply] = launching.admin().ask("admin", "launcherdesc")
    assert (reply["to"], reply["op"], list(reply)[2:]) == ("admin", "launcherdesc", ["launchers"])
    assert reply["launchers"][0] == {"type": "launcher", "name": "twin", "script": "run twin", "on": True}
    assert list(reply["launchers"][1].items()) == [
        ("type", "launcher"),
        ("name", "idle"),
        ("script", "run idle --now"),
        ("on", True),
        ("initial", True),
    ]
    assert reply["launchers"][4]["on"] is False


def test_without_launchers_the_table_is_empty(farm: ElkoFarm) -> None:
    assert farm.admin().ask("admin", "launcherdesc") == [{"to": "admin", "op": "launcherdesc", "launchers": []}]


def test_launching(launching: ElkoFarm) -> None:
    admin = launching.admin()
    assert admin.ask("admin", "launch", name="idle") == [{"to": "admin", "op": "launch", "status": "start idle"}]
    assert launching.spawned == [("idle", ["run", "idle", "--now"])]
    assert admin.ask("admin", "launch", name="none")[0]["status"] == "fail none not found"
    [reply] = admin.ask("admin", "launch", name="missing")
    assert reply["status"].startswith("fail missing ")
    assert "No such file or directory" in reply["status"]
    assert "missing" in switched_on(launching), "it is wanted, even if it failed"


@pytest.mark.parametrize(
    ("parameters", "off"),
    [
        ({"server": "twin"}, ["twin"]),
        ({"server": "twin", "kill": True}, ["twin"]),
        ({"server": "twin", "cluster": False}, ["twin"]),
        ({"server": "twin", "cluster": True}, []),
        ({"server": "missing"}, []),
        ({"server": "1"}, []),
        ({"server": "twin:1"}, []),
        ({"self_": True}, []),
        ({}, []),
        ({"server": "all"}, []),
    ],
)
def test_a_shutdown_switches_the_launcher_of_that_name_off(
    launching: ElkoFarm, parameters: dict[str, Any], off: list[str]
) -> None:
    before = switched_on(launching)
    launching.admin().say("admin", "shutdown", **parameters)
    assert [name for name in before if name not in switched_on(launching)] == off
    assert launching.switched == [(name, False) for name in off]


def test_a_reinit_switches_nothing_off(launching: ElkoFarm) -> None:
    launching.admin().say("admin", "reinit", server="twin")
    assert launching.switched == []


def test_the_names_of_ops_are_case_sensitive(farm: ElkoFarm) -> None:
    admin = farm.admin()
    [diagnostic] = admin.ask("admin", "ServiceDesc")
    assert diagnostic["op"] == "debug"
    assert admin.reasons == ["unknown-op"]
