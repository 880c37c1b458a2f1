"""The commands of clients: housekeeping, offering, finding, waiting, monitoring, and going away.

The file is longer than others: it has the operations of one object, in the order of the document.
"""

from __future__ import annotations

import gc
import tracemalloc
from typing import Any

import pytest

from broker.core.model import MAX_NAME, MAX_TEXT, Auth, Rights, Service
from broker.core.watches import MAX_WAITS, PIECE
from broker.wires.elko.sessions import broker_session
from broker.wires.elko.sessions.authentication import Policy
from broker.wires.elko.sessions.broker_session import IN_A_TURN, MAX_PROBLEMS_SHOWN, MAX_WAIT, STANDING
from tests.access.memory import MemoryAccess
from tests.wires.recording import Client, ElkoFarm, desc, found, nothing, remembered, told

SECRET = {"type": "auth", "mode": "password", "code": "sesame"}


@pytest.fixture
def farm() -> ElkoFarm:
    return ElkoFarm()


# common to all objects


@pytest.mark.parametrize("to", ["broker", "client", "admin", "error"])
def test_ping_is_answered_in_the_name_that_it_used(farm: ElkoFarm, to: str) -> None:
    client = farm.client()
    assert client.ask(to, "ping") == [{"to": to, "op": "pong"}]
    assert client.ask(to, "ping", tag="x1") == [{"to": to, "op": "pong", "tag": "x1"}]
    assert client.ask(to, "ping", tag="") == [{"to": to, "op": "pong", "tag": ""}]
    assert client.ask(to, "ping", tag=None) == [{"to": to, "op": "pong"}]


@pytest.mark.parametrize("to", ["broker", "client", "admin", "error"])
def test_pong_and_debug_are_not_answered(farm: ElkoFarm, to: str) -> None:
    for policy, logged in ((Policy(), []), (Policy(log_debug=True), [("me", "a line")])):
        client = farm.client("me", policy=policy)
        assert client.ask(to, "pong", tag="x") == []
        assert client.ask(to, "debug", msg="a line") == []
        assert client.peer.debugs == logged
        assert client.peer.refusals == []


@pytest.mark.parametrize("to", ["broker", "client", "admin", "error"])
def test_disconnect_closes_without_a_word(farm: ElkoFarm, to: str) -> None:
    client = farm.client()
    client.offer(desc("bank"))
    client.say(to, "disconnect")
    assert client.closed
    assert client.take() == []
    assert farm.registry.providers() == []


@pytest.mark.parametrize("invalid", [-1, "many", [1], {"a": {}}, 1e300, True])
def test_a_load_with_invalid_details_counts_without_them(farm: ElkoFarm, invalid: object) -> None:
    client = farm.client("one")
    client.say("broker", "load", factor=0.25, requests=7)
    [diagnostic] = client.ask("broker", "load", factor=0.5, requests=8, errors=invalid)
    assert diagnostic["msg"].startswith("load: errors is a whole number")
    [load] = farm.registry.loads()
    assert (load.load, load.details) == (0.5, None)


def test_what_was_answered_before_a_disconnect_is_delivered_and_nothing_after_it(farm: ElkoFarm) -> None:
    client = farm.client()
    client.send(b'{"to":"broker","op":"ping"}\n{"to":"broker","op":"disconnect"}\n{"to":"broker","op":"ping"}\n')
    assert client.take() == [{"to": "broker", "op": "pong"}]


# providers


def test_each_client_is_a_provider_with_the_next_id(farm: ElkoFarm) -> None:
    clients = [farm.client(label) for label in ("a", "b")]
    farm.admin("c")
    assert [(p.id, p.label, p.wire) for p in farm.registry.providers()] == [(1, "a", "elko"), (2, "b", "elko")]
    clients[0].drop()
    farm.client()
    assert [(p.id, p.label) for p in farm.registry.providers()] == [(2, "b"), (3, "<anonymous>")]


def test_a_load_below_zero_is_none(farm: ElkoFarm) -> None:
    client = farm.client("a")
    for factor, load in ((0.25, 0.25), (3, 3.0), (-1, 0.0), (-1e-9, 0.0)):
        assert client.ask("broker", "load", factor=factor) == []
        assert [each.load for each in farm.registry.loads()] == [load]


# offering


def test_what_is_offered_is_found(farm: ElkoFarm) -> None:
    provider, finder = farm.client("one"), farm.client()
    auth = {"type": "auth", "mode": "password", "code": "c", "id": "i"}
    provider.offer(desc("bank", "h:1", label="The Bank", auth=auth))
    assert provider.take() == []
    [reply] = finder.find("bank", tag="t")
    assert reply == found(told("bank", 1, label="The Bank", auth=auth), tag="t")
    assert list(reply) == ["to", "op", "desc", "tag"]
    assert list(reply["desc"][0]) == ["type", "service", "hostport", "protocol", "label", "auth", "provider"]
    assert list(reply["desc"][0]["auth"]) == ["type", "mode", "id", "code"]


@pytest.mark.parametrize("auth", [{"mode": "open"}, {"mode": "open", "code": "c"}, None])
def test_open_is_not_told(farm: ElkoFarm, auth: Any) -> None:
    provider = farm.client()
    provider.offer(desc("bank", auth=auth))
    assert provider.find("bank") == [found(told("bank", 1))]


def test_a_service_without_protocol_is_tcp(farm: ElkoFarm) -> None:
    client = farm.client()
    client.offer(desc("a"), desc("b", protocol="tcp"), desc("c", protocol="http"), desc("d", protocol=None))
    assert client.find("a", protocol="tcp") == [found(told("a", 1))]
    assert client.find("b") == [found(told("b", 1))]
    assert client.find("c") == [nothing("c")]
    assert client.find("c", protocol="http") == [found(told("c", 1, protocol="http"))]
    assert client.find("d", protocol=None) == [found(told("d", 1))]
    assert client.find("a", protocol="null") == [nothing("a")]


def test_a_find_gets_all_of_that_name_and_protocol_in_one_reply(farm: ElkoFarm) -> None:
    one, two = farm.client(), farm.client()
    one.offer(desc("bank", "h:1"), desc("bank", "h:2", protocol="http"), desc("shop", "h:3"))
    two.offer(desc("bank", "h:4"), desc("bank", "h:4"))
    assert two.find("bank") == [found(told("bank", 1, "h:1"), told("bank", 2, "h:4"), told("bank", 2, "h:4"))]


def test_descriptors_with_failure_are_skipped(farm: ElkoFarm) -> None:
    client = farm.client()
    client.offer(desc("a", None, failure=""), desc("b", failure="no"), desc("c", failure=""), desc("d"))
    assert [service.name for service in farm.registry.services()] == ["d"]
    assert client.peer.refusals == []


@pytest.mark.parametrize("misspelt", [{}, {"hostPort": "h:2"}, {"hostport": None}])
def test_a_descriptor_without_hostport_is_left_out_with_a_diagnostic(farm: ElkoFarm, misspelt: dict[str, Any]) -> None:
    client = farm.client()
    client.offer(desc("a"), {"service": "b", **misspelt}, desc("c"))
    assert [service.name for service in farm.registry.services()] == ["a", "c"]
    [diagnostic] = client.take()
    assert diagnostic["msg"] == "willserve: service 'b' has no hostport"
    assert client.reasons == ["parameter"]
    assert not client.closed


@pytest.mark.parametrize("op", ["willserve", "wontserve"])
@pytest.mark.parametrize("services", [[], None])
def test_an_offer_of_nothing_is_nothing(farm: ElkoFarm, services: Any, op: str) -> None:
    client = farm.client()
    assert client.ask("broker", op, services=services) == []
    assert client.peer.refusals == []


def test_a_withdrawal_without_services_is_nothing_as_with_the_original(farm: ElkoFarm) -> None:
    client = farm.client()
    assert client.ask("broker", "wontserve") == []
    assert client.peer.refusals == []


@pytest.mark.parametrize("parameters", [{}, {"service": [desc("a")]}, {"Services": [desc("a")]}])
def test_an_offer_with_a_misspelt_parameter_is_answered(farm: ElkoFarm, parameters: dict[str, Any]) -> None:
    client = farm.client()
    client.offer(desc("bank"))
    [diagnostic] = client.ask("broker", "willserve", **parameters)
    assert diagnostic == {"to": "error", "op": "debug", "msg": "willserve: the parameter services is missing"}
    assert client.reasons == ["parameter"]
    assert client.find("bank") == [found(told("bank", 1))]


def test_a_descriptor_without_service_costs_the_whole_offer(farm: ElkoFarm) -> None:
    client = farm.client()
    client.offer(desc("a"), {"hostport": "h:1"})
    assert client.reasons == ["parameter"]
    assert list(farm.registry.services()) == []


def test_the_provider_id_of_a_descriptor_that_was_found_is_ignored(farm: ElkoFarm) -> None:
    client = farm.client()
    client.offer(desc("a"), desc("b", provider=-1), desc("c", provider=7), desc("d"))
    assert [(service.name, service.provider) for service in farm.registry.services()] == [(name, 1) for name in "abcd"]
    assert client.take() == []


def test_wontserve_withdraws_all_protocols_of_the_own_services_only(farm: ElkoFarm) -> None:
    one, two = farm.client(), farm.client()
    one.offer(desc("bank"), desc("bank", protocol="http"), desc("shop"))
    two.offer(desc("bank"))
    assert one.ask("broker", "wontserve", services=["bank", "never"]) == []
    assert [(s.name, s.provider) for s in farm.registry.services()] == [("shop", 1), ("bank", 2)]
    assert one.peer.refusals == []


def test_all_names_may_be_offered_by_default_but_the_brokers_own(farm: ElkoFarm) -> None:
    client = farm.client()
    client.offer(desc("director-provider"), desc("elkobroker.services"), desc("broker-admin"))
    assert [service.name for service in farm.registry.services()] == ["director-provider", "broker-admin"]
    assert client.reasons == ["forbidden"]


def test_names_that_the_listener_does_not_allow_are_left_out_and_named(farm: ElkoFarm) -> None:
    client = farm.client(policy=Policy(rights=Rights(offer=("workshop-*",))))
    client.offer(desc("workshop-1"), desc("director-provider"), desc("workshop-2"))
    assert [service.name for service in farm.registry.services()] == ["workshop-1", "workshop-2"]
    [diagnostic] = client.take()
    assert "'director-provider'" in diagnostic["msg"]
    assert not client.closed


def test_of_many_refused_services_the_first_are_told_and_the_number_of_the_others(farm: ElkoFarm) -> None:
    client = farm.client(policy=Policy(rights=Rights(offer=())))
    client.offer(*(desc(f"s{number}") for number in range(10)))
    [diagnostic] = client.take()
    assert all(f"'s{number}'" in diagnostic["msg"] for number in range(3))
    assert "'s3'" not in diagnostic["msg"]
    assert "7 more" in diagnostic["msg"]
    assert len(client.peer.refusals) == 1


def test_a_peer_has_its_share_of_services(farm: ElkoFarm) -> None:
    client = farm.client(policy=Policy(rights=Rights(services=2)))
    client.offer(desc("a"), desc("b"), desc("c"))
    assert [service.name for service in farm.registry.services()] == ["a", "b"]
    assert client.reasons == ["limit"]
    assert "2" in client.take()[0]["msg"]


# finding at once


@pytest.mark.parametrize("count", [1, 2, 5, 40])
def test_many_of_one_name_come_in_the_order_of_their_offers_and_as_they_are_now(farm: ElkoFarm, count: int) -> None:
    client = farm.client()
    client.offer(*(desc("bank", f"h:{number}", label="\u00e9\U0001f600") for number in range(1, count + 1)))
    client.say("broker", "find", service="bank")
    data = b"".join(client.peer.written)
    assert data.startswith(b'{"to":"broker","op":"find","desc":[{"type":"servicedesc","service":"bank"')
    assert max(data) < 0xF0, "characters that the original cannot read go out as escapes"
    [reply] = client.take()
    descriptors = [told("bank", 1, f"h:{number}", label="\u00e9\U0001f600") for number in range(1, count + 1)]
    assert reply == found(*descriptors)
    client.say("broker", "wontserve", services=["bank"])
    client.offer(*(desc("bank", f"h:{number}") for number in range(1, count + 1)))
    assert client.find("bank") == [found(*(told("bank", 1, f"h:{number}") for number in range(1, count + 1)))]


def test_one_who_may_see_secrets_does_not_show_them_to_the_next(farm: ElkoFarm) -> None:
    provider, stranger = farm.client(), farm.client(local=False)
    provider.offer(desc("bank", auth=SECRET))
    for _ in range(2):
        assert provider.find("bank") == [found(told("bank", 1, auth=SECRET))]
        assert stranger.find("bank") == [found(told("bank", 1))]


@pytest.mark.parametrize("name", ["broker", "client"])
def test_a_find_is_answered_in_the_name_that_it_used(farm: ElkoFarm, name: str) -> None:
    client = farm.client(name="broker")
    client.offer(desc("bank"))
    assert client.ask(name, "find", service="bank") == [found(told("bank", 1), to=name)]
    assert client.ask(name, "find", service="none", tag="t") == [nothing("none", to=name, tag="t")]


@pytest.mark.parametrize(
    "parameters", [{}, {"wait": 0}, {"wait": None}, {"wait": 0.9}, {"wait": -0.9}, {"wait": 0, "monitor": False}]
)
def test_a_find_that_does_not_wait_fails_at_once_and_is_over(farm: ElkoFarm, parameters: dict[str, Any]) -> None:
    finder, provider = farm.client(), farm.client()
    assert finder.find("bank", **parameters) == [nothing("bank")]
    provider.offer(desc("bank"))
    assert finder.take() == []


@pytest.mark.parametrize("parameters", [{}, {"wait": 0}, {"wait": 5}, {"wait": -1}, {"wait": 0, "monitor": False}])
def test_what_is_known_is_the_only_answer_without_monitor(farm: ElkoFarm, parameters: dict[str, Any]) -> None:
    provider, finder = farm.client(), farm.client()
    provider.offer(desc("bank"))
    assert finder.find("bank", **parameters) == [found(told("bank", 1))]
    provider.offer(desc("bank", "h:2"))
    farm.clock.advance(100)
    assert finder.take() == []


@pytest.mark.parametrize("tag", ["", "t", "\U0001f600", "t" * (MAX_TEXT + 1)])
def test_the_tag_comes_back(farm: ElkoFarm, tag: str) -> None:
    client = farm.client()
    assert client.find("bank", tag=tag) == [nothing("bank", tag=tag)]


# waiting


def waits(farm: ElkoFarm, parameters: dict[str, Any]) -> tuple[Client, Client]:
    """A client that waits for the bank, and a provider."""
    finder, provider = farm.client(), farm.client()
    assert finder.find("bank", tag="t", **parameters) == []
    return finder, provider


@pytest.mark.parametrize("wait", [5, -1, 1.9, 10**12, 2**63, 1e300, -1e300])
def test_a_wait_gets_the_first_that_comes_and_is_over(farm: ElkoFarm, wait: float) -> None:
    finder, provider = waits(farm, {"wait": wait})
    provider.offer(desc("shop"))
    assert finder.take() == []
    provider.offer(desc("bank", "h:1"), desc("bank", "h:2"))
    assert finder.take() == [found(told("bank", 2, "h:1"), tag="t")]
    provider.offer(desc("bank", "h:3"))
    farm.clock.advance(10)
    assert finder.take() == []
    assert farm.clock.getDelayedCalls() == []


def test_a_wait_takes_the_service_in_any_protocol(farm: ElkoFarm) -> None:
    finder, provider = waits(farm, {"wait": 5, "protocol": "http"})
    provider.offer(desc("bank"))
    assert finder.take() == [found(told("bank", 2), tag="t")]


@pytest.mark.parametrize(("wait", "seconds"), [(5, 5), (5.9, 5), (1.5, 1)])
@pytest.mark.parametrize("monitor", [False, True])
def test_a_wait_without_answer_fails_when_its_whole_seconds_are_over(
    farm: ElkoFarm, wait: float, seconds: int, monitor: bool
) -> None:
    finder, provider = waits(farm, {"wait": wait, "monitor": monitor})
    farm.clock.advance(seconds - 0.01)
    assert finder.take() == []
    farm.clock.advance(0.02)
    assert finder.take() == [nothing("bank", tag="t")]
    provider.offer(desc("bank"))
    farm.clock.advance(100)
    assert finder.take() == []


@pytest.mark.parametrize("wait", [-1, -1000, -1.5])
def test_a_negative_wait_is_for_ever(farm: ElkoFarm, wait: float) -> None:
    finder, provider = waits(farm, {"wait": wait})
    farm.clock.advance(10**9)
    assert finder.take() == []
    provider.offer(desc("bank"))
    assert finder.take() == [found(told("bank", 2), tag="t")]


# monitoring


@pytest.mark.parametrize("wait", [5, -1])
def test_a_monitor_gets_each_that_comes_in_a_message_of_its_own(farm: ElkoFarm, wait: int) -> None:
    finder, provider = waits(farm, {"wait": wait, "monitor": True})
    provider.offer(desc("bank", "h:1"), desc("shop"), desc("bank", "h:2", protocol="http"))
    assert finder.take() == [
        found(told("bank", 2, "h:1"), tag="t"),
        found(told("bank", 2, "h:2", protocol="http"), tag="t"),
    ]
    provider.offer(desc("bank", "h:1"))
    assert finder.take() == [found(told("bank", 2, "h:1"), tag="t")]


@pytest.mark.parametrize(("wait", "ends"), [(0, False), (-1, False), (5, True), (None, False), (0.5, False)])
def test_a_monitor_of_what_is_known_goes_on(farm: ElkoFarm, wait: float | None, ends: bool) -> None:
    provider, finder = farm.client(), farm.client()
    provider.offer(desc("bank", "h:1"))
    assert finder.find("bank", wait=wait, monitor=True) == [found(told("bank", 1, "h:1"))]
    provider.offer(desc("bank", "h:2"))
    assert finder.take() == [found(told("bank", 1, "h:2"))]
    farm.clock.advance(6)
    assert finder.take() == [], "a monitor that was answered ends without a word"
    provider.offer(desc("bank", "h:3"))
    assert finder.take() == ([] if ends else [found(told("bank", 1, "h:3"))])


def test_a_monitor_of_what_is_known_ends_without_a_word_even_if_nothing_came(farm: ElkoFarm) -> None:
    client = farm.client()
    client.offer(desc("bank"))
    assert client.find("bank", wait=5, monitor=True) == [found(told("bank", 1))]
    farm.clock.advance(10)
    assert client.take() == []


def test_a_monitor_that_does_not_wait_for_what_is_not_known_is_over_at_once(farm: ElkoFarm) -> None:
    finder, provider = farm.client(), farm.client()
    assert finder.find("bank", wait=0, monitor=True) == [nothing("bank")]
    provider.offer(desc("bank"))
    assert finder.take() == []


def test_a_monitor_that_was_answered_ends_without_a_word(farm: ElkoFarm) -> None:
    finder, provider = waits(farm, {"wait": 5, "monitor": True})
    provider.offer(desc("bank"))
    assert len(finder.take()) == 1
    farm.clock.advance(5)
    provider.offer(desc("bank"))
    assert finder.take() == []


def test_a_monitor_hears_nothing_of_withdrawals(farm: ElkoFarm) -> None:
    finder, provider = waits(farm, {"wait": -1, "monitor": True})
    provider.offer(desc("bank"))
    finder.take()
    provider.say("broker", "wontserve", services=["bank"])
    provider.drop()
    assert finder.take() == []


def test_a_monitor_answers_in_the_name_that_the_find_used(farm: ElkoFarm) -> None:
    finder, provider = farm.client(name="broker"), farm.client()
    finder.say("client", "find", service="bank", wait=-1, monitor=True)
    provider.offer(desc("bank"))
    assert finder.take() == [found(told("bank", 2), to="client")]


def test_a_peer_may_find_what_it_offers_itself(farm: ElkoFarm) -> None:
    client = farm.client()
    assert client.find("bank", wait=-1, monitor=True) == []
    client.offer(desc("bank"))
    assert client.take() == [found(told("bank", 1))]


def test_several_finds_of_one_peer_are_answered_each(farm: ElkoFarm) -> None:
    finder, provider = farm.client(), farm.client()
    for tag in ("1", "2", "3"):
        finder.find("bank", wait=-1, tag=tag, monitor=tag == "2")
    provider.offer(desc("bank"), desc("bank", "h:2"))
    assert [(reply["tag"], reply["desc"][0]["hostport"]) for reply in finder.take()] == [
        ("1", "h:1"),
        ("2", "h:1"),
        ("3", "h:1"),
        ("2", "h:2"),
    ]


def test_waits_hear_of_each_service_before_the_watchers_do(farm: ElkoFarm) -> None:
    both = farm.client()
    both.say("admin", "auth")
    both.say("admin", "watch", services=True)
    both.find("a", wait=-1, tag="1")
    both.find("b", wait=-1, tag="2")
    both.take()
    farm.client().offer(desc("a"), desc("b"))
    assert [(reply["op"], reply["desc"][0]["service"]) for reply in both.take()] == [
        ("find", "a"),
        ("servicedesc", "a"),
        ("find", "b"),
        ("servicedesc", "b"),
    ]


# limits of waiting


def test_a_peer_has_its_share_of_waits_and_the_others_are_answered(farm: ElkoFarm) -> None:
    finder = farm.client(policy=Policy(waits=2))
    assert finder.find("a", wait=-1) == []
    assert finder.find("a", wait=5, monitor=True) == []
    [reply] = finder.find("a", wait=-1, tag="t")
    assert (reply["op"], reply["tag"]) == ("find", "t")
    assert "2 waiting finds" in reply["desc"][0]["failure"]
    [reply] = finder.find("a", wait=-1, monitor=True)
    assert "2 waiting finds" in reply["desc"][0]["failure"]
    assert finder.reasons == ["limit", "limit"]
    assert not finder.closed


def test_a_monitor_too_many_of_what_is_known_is_answered_and_then_refused(farm: ElkoFarm) -> None:
    finder = farm.client(policy=Policy(waits=1))
    finder.find("none", wait=-1)
    finder.offer(desc("bank"))
    reply, diagnostic = finder.find("bank", monitor=True)
    assert reply == found(told("bank", 1))
    assert diagnostic["op"] == "debug"
    assert finder.find("bank") == [found(told("bank", 1))]


@pytest.mark.parametrize("monitor", [False, True])
@pytest.mark.parametrize("wait", [-1, 3_600])
def test_a_find_that_stands_takes_no_more_memory_than_is_counted(farm: ElkoFarm, wait: int, monitor: bool) -> None:
    finder = farm.client()
    tracemalloc.start()
    try:
        finder.find("first", wait=wait)
        before, _ = tracemalloc.get_traced_memory()
        for number in range(500):
            finder.find(f"never-{number:03d}", wait=wait, monitor=monitor)
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert after - before < 500 * STANDING


def test_services_that_left_do_not_stay_in_the_cache_of_finds(farm: ElkoFarm) -> None:
    finder = farm.client()
    name = "brief"  # of this test alone: others leave services that no collection has freed yet
    for number in range(300):
        leaving = farm.client()
        leaving.offer(desc(name, f"h{number}:1"))
        finder.find(name)
        leaving.say("broker", "disconnect")
    farm.clock.advance(0)
    held = [each for each in gc.get_objects() if isinstance(each, Service) and each.name == name]
    assert len(held) < 2 * PIECE, "the last changes alone"


def test_a_limit_of_no_waits_allows_none(farm: ElkoFarm) -> None:
    finder = farm.client(policy=Policy(waits=0))
    [reply] = finder.find("bank", wait=-1)
    assert "waiting finds" in reply["desc"][0]["failure"]


@pytest.mark.parametrize("ending", ["answer", "expiry"])
@pytest.mark.parametrize("monitor", [False, True])
def test_a_wait_that_ended_makes_room(farm: ElkoFarm, ending: str, monitor: bool) -> None:
    finder, provider = farm.client(policy=Policy(waits=1)), farm.client()
    finder.find("bank", wait=5, monitor=monitor)
    if ending == "answer":
        provider.offer(desc("bank"))
        provider.drop()
    if ending == "expiry" or monitor:
        farm.clock.advance(5)
    assert len(finder.take()) == 1
    assert finder.find("bank", wait=5) == []
    assert finder.peer.refusals == []


def test_a_wait_with_a_name_or_tag_over_its_limit_is_refused(farm: ElkoFarm) -> None:
    finder = farm.client()
    bad: list[dict[str, Any]] = [
        {"service": "n" * (MAX_NAME + 1), "wait": 5},
        {"service": "n" * (MAX_NAME + 1), "wait": 5, "monitor": True},
        {"service": "n", "tag": "t" * (MAX_TEXT + 1), "wait": 5},
        {"service": "n", "tag": "t" * (MAX_TEXT + 1), "wait": -1, "monitor": True},
    ]
    for parameters in bad:
        [diagnostic] = finder.find(**parameters)
        assert diagnostic["op"] == "debug"
        assert len(diagnostic["msg"]) < 200
    assert finder.reasons == ["parameter"] * 4
    assert farm.clock.getDelayedCalls() == []


@pytest.mark.parametrize("monitor", [False, True])
def test_a_wait_with_a_name_and_a_tag_at_their_limits_is_kept(farm: ElkoFarm, monitor: bool) -> None:
    finder, provider = farm.client(), farm.client()
    name, tag = "n" * MAX_NAME, "t" * MAX_TEXT
    assert finder.find(name, tag=tag, wait=-1, monitor=monitor) == []
    provider.offer(desc(name))
    assert finder.take() == [found(told(name, 2), tag=tag)]
    assert finder.peer.refusals == []


@pytest.mark.parametrize("most", [1, 3])
def test_the_last_wait_of_the_share_is_kept_and_the_next_one_is_not(farm: ElkoFarm, most: int) -> None:
    finder, provider = farm.client(policy=Policy(waits=most)), farm.client()
    for number in range(most):
        assert finder.find(f"bank{number}", wait=-1) == []
    assert "failure" in finder.find("bank", wait=-1)[0]["desc"][0]
    assert finder.reasons == ["limit"]
    provider.offer(*(desc(f"bank{number}") for number in range(most)))
    assert len(finder.take()) == most


@pytest.mark.parametrize(("wait", "timers"), [(MAX_WAIT - 1, 1), (MAX_WAIT, 1), (MAX_WAIT + 1, 0), (MAX_WAIT + 0.9, 1)])
@pytest.mark.parametrize("monitor", [False, True])
def test_only_a_wait_over_the_longest_one_is_for_ever(farm: ElkoFarm, wait: float, timers: int, monitor: bool) -> None:
    finder = farm.client()
    finder.find("bank", wait=wait, monitor=monitor)
    calls = farm.clock.getDelayedCalls()
    assert len(calls) == timers
    assert all(call.getTime() - farm.clock.seconds() == int(wait) for call in calls)


@pytest.mark.parametrize(
    ("refused", "more"),
    [(MAX_PROBLEMS_SHOWN, ""), (MAX_PROBLEMS_SHOWN + 1, "; and 1 more"), (MAX_PROBLEMS_SHOWN + 5, "; and 5 more")],
)
def test_the_first_refused_services_of_an_offer_are_told(farm: ElkoFarm, refused: int, more: str) -> None:
    client = farm.client(policy=Policy(rights=Rights(("good*",))))
    client.offer(desc("good"), *(desc(f"bad{number}") for number in range(refused)))
    text = client.take()[0]["msg"]
    assert text.count("has no right to offer") == MAX_PROBLEMS_SHOWN
    assert text.endswith(more or "' here")
    assert [f"'bad{number}'" in text for number in range(MAX_PROBLEMS_SHOWN + 1)] == [True] * MAX_PROBLEMS_SHOWN + [
        False
    ]


def test_a_long_offer_is_one_message_with_one_refusal(farm: ElkoFarm) -> None:
    client = farm.client(policy=Policy(rights=Rights(("good*",))))
    count = 3 * IN_A_TURN + 1
    bad = {IN_A_TURN: "bad-1", 2 * IN_A_TURN + 1: "bad-2"}
    names = [bad.get(number, f"good-{number}") for number in range(count)]
    client.offer(*map(desc, names))
    good = [name for name in names if name.startswith("good")]
    assert [service.name for service in farm.registry.services() if service.provider] == good
    assert [text["msg"] for text in client.take()] == [
        "willserve: this peer has no right to offer 'bad-1' here; this peer has no right to offer 'bad-2' here"
    ]
    assert len(client.reasons) == 1
    client.say("broker", "wontserve", services=names[1:])
    assert [service.name for service in farm.registry.services() if service.provider] == good[:1]


def test_an_offer_beside_many_watchers_is_handled_in_steps(farm: ElkoFarm, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(broker_session, "NOTICES_IN_A_TURN", 4)
    watchers = [farm.admin() for _ in range(2)]
    for watcher in watchers:
        watcher.say("admin", "watch", services=True)
    client = farm.client()
    client.offer(*map(desc, "abcde"))
    assert client.peer.steps == 3
    client.say("broker", "wontserve", services=["a", "b", "c"])
    assert client.peer.steps == 5
    for watcher in watchers:
        assert len([each for each in watcher.take() if each["op"] == "servicedesc"]) >= 8


def fill_waits(farm: ElkoFarm) -> None:
    for _ in range(MAX_WAITS):
        farm.registry.monitor("other", None, lambda service: None, lambda: None)


@pytest.mark.parametrize("monitor", [False, True])
def test_a_find_that_the_full_broker_cannot_keep_is_answered_and_counted(farm: ElkoFarm, monitor: bool) -> None:
    fill_waits(farm)
    finder = farm.client()
    [reply] = finder.find("bank", wait=5, monitor=monitor)
    assert str(MAX_WAITS) in reply["desc"][0]["failure"]
    assert finder.reasons == ["limit"]


# who sees how to authenticate


@pytest.mark.parametrize(
    ("users", "local", "shown"), [(False, True, True), (False, False, False), (True, False, True), (True, True, True)]
)
@pytest.mark.parametrize("find", ["at once", "wait", "monitor"])
def test_auth_is_shown_to_the_trusted_only(users: bool, local: bool, shown: bool, find: str) -> None:
    farm = ElkoFarm()
    provider = farm.client()
    farm.access = MemoryAccess(tokens={"pw": "server"}) if users else farm.access
    finder = farm.connect(local=local)
    finder.say("broker", "auth", **({"auth": {"mode": "password", "code": "pw"}} if users else {}))
    if find != "at once":
        finder.find("bank", wait=-1, monitor=find == "monitor")
    provider.offer(desc("bank", auth=SECRET))
    [reply] = finder.find("bank") if find == "at once" else finder.take()
    expected = told("bank", 1, auth=SECRET) if shown else told("bank", 1)
    assert reply == found(expected)


# what is remembered from before a restart


def test_a_plain_find_is_answered_from_before_the_restart_and_says_so() -> None:
    farm = ElkoFarm([remembered(3, ("bank", "h:1"))])
    local, remote = farm.client(), farm.client(local=False)
    marked = told("bank", 3, auth={"type": "auth", "mode": "password", "code": "secret"}, restored=True)
    assert local.find("bank") == [found(marked)]
    assert remote.find("bank") == [found(told("bank", 3, restored=True))]
    farm.clock.advance(60)
    assert local.find("bank") == [nothing("bank")]


@pytest.mark.parametrize("parameters", [{"wait": -1}, {"wait": 5}, {"wait": -1, "monitor": True}])
def test_waits_and_monitors_hear_of_what_is_live_only(parameters: dict[str, Any]) -> None:
    farm = ElkoFarm([remembered(3, ("bank", "h:1"))])
    finder, provider = farm.client(), farm.client("old")
    assert finder.find("bank", **parameters) == []
    provider.offer(desc("bank", "h:1"))
    assert finder.take() == [found(told("bank", 2, "h:1"))]


def test_a_monitor_without_wait_is_not_answered_from_before_the_restart() -> None:
    farm = ElkoFarm([remembered(3, ("bank", "h:1"))])
    assert farm.client().find("bank", monitor=True) == [nothing("bank")]


def test_who_is_back_takes_the_place_of_what_was_remembered() -> None:
    farm = ElkoFarm([remembered(3, ("bank", "h:1"), label="old"), remembered(4, ("bank", "h:2"), label="other")])
    finder, provider = farm.client(), farm.client("old")
    provider.offer(desc("bank", "h:99"))
    [reply] = finder.find("bank")
    assert [(each["hostport"], each.get("restored")) for each in reply["desc"]] == [("h:99", None), ("h:2", True)]
    assert farm.forgotten == {3}
    provider.drop()
    [reply] = finder.find("bank")
    assert [service["hostport"] for service in reply["desc"]] == ["h:2"]


def test_listings_and_watches_know_nothing_of_it() -> None:
    farm = ElkoFarm([remembered(3, ("bank", "h:1"))])
    admin = farm.admin()
    assert admin.ask("admin", "servicedesc") == [{"to": "admin", "op": "servicedesc", "desc": [], "on": True}]
    assert admin.ask("admin", "servicedesc", service="bank")[0]["desc"] == []
    assert admin.ask("admin", "loaddesc")[0]["desc"] == []
    assert admin.ask("admin", "loaddesc", service="bank")[0]["desc"] == []
    assert [reply["desc"] for reply in admin.ask("admin", "watch", services=True, load=True)] == [[], []]
    farm.clock.advance(60)
    assert admin.take() == []


# going away


def test_a_lost_connection_takes_its_services_at_once(farm: ElkoFarm) -> None:
    provider, finder = farm.client(), farm.client()
    provider.offer(desc("bank"))
    provider.drop()
    assert finder.find("bank") == [nothing("bank")]
    assert farm.wiring.roster.keys() == {2}
    provider.session.lost()


def test_the_waits_of_a_closed_peer_are_freed(farm: ElkoFarm) -> None:
    finder, provider = farm.client(), farm.client()
    for number in range(100):
        finder.find("bank", wait=5 if number % 2 else -1, monitor=number % 3 == 0)
    finder.drop()
    assert farm.clock.getDelayedCalls() == []
    provider.offer(desc("bank"))
    assert finder.peer.written == []
    assert finder.peer.refusals == []


def test_a_peer_that_closes_hears_nothing_more(farm: ElkoFarm) -> None:
    finder, provider = farm.client(), farm.client()
    finder.find("bank", wait=-1)
    finder.say("broker", "disconnect")
    provider.offer(desc("bank"))
    assert finder.take() == []


# the end of input


def test_without_waits_the_end_of_input_is_the_end(farm: ElkoFarm) -> None:
    client = farm.client()
    client.offer(desc("bank"))
    assert client.session.input_ended() is False
    assert farm.registry.providers() == []


def test_finite_waits_are_still_answered_and_then_it_is_closed(farm: ElkoFarm) -> None:
    finder, provider = farm.client(), farm.client()
    finder.offer(desc("own"))
    finder.find("bank", wait=5, tag="1")
    finder.find("shop", wait=7, tag="2")
    assert finder.session.input_ended() is True
    assert provider.find("own") == [nothing("own")], "a provider that says no more is gone"
    provider.offer(desc("bank"))
    assert finder.take() == [found(told("bank", 2), tag="1")]
    assert not finder.closed
    farm.clock.advance(7)
    assert finder.take() == [nothing("shop", tag="2")]
    assert finder.closed


def test_endless_waits_are_dropped_at_the_end_of_input(farm: ElkoFarm) -> None:
    finder, provider = farm.client(), farm.client()
    for parameters in ({"wait": -1}, {"wait": -1, "monitor": True}, {"wait": 10**12}):
        finder.find("bank", **parameters)
    assert finder.session.input_ended() is False
    provider.offer(desc("bank"))
    assert finder.take() == []


def test_of_both_the_finite_ones_stay(farm: ElkoFarm) -> None:
    finder, provider = farm.client(), farm.client()
    finder.find("bank", wait=-1, tag="endless")
    finder.find("bank", wait=5, tag="finite")
    assert finder.session.input_ended() is True
    provider.offer(desc("bank"))
    assert [reply["tag"] for reply in finder.take()] == ["finite"]
    assert finder.closed


def test_a_finite_monitor_goes_on_to_its_end(farm: ElkoFarm) -> None:
    finder, provider = farm.client(), farm.client()
    finder.find("bank", wait=5, monitor=True)
    assert finder.session.input_ended() is True
    provider.offer(desc("bank"))
    provider.offer(desc("bank"))
    assert len(finder.take()) == 2
    farm.clock.advance(5)
    assert finder.closed


def test_a_half_closed_peer_that_is_lost_is_freed(farm: ElkoFarm) -> None:
    finder = farm.client()
    finder.find("bank", wait=5)
    finder.session.input_ended()
    finder.drop()
    assert farm.clock.getDelayedCalls() == []


def test_the_brokers_own_services_are_found(farm: ElkoFarm) -> None:
    farm.registry.offer_own([Service("broker-client", "h:9000", 0, auth=Auth("password", "pw"))])
    [reply] = farm.client(local=False).find("broker-client")
    assert reply == found(told("broker-client", 0, "h:9000"))
