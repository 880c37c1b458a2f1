"""The registry on topics: what is said when services come and go and when loads change, to whom, and what never is."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator
from typing import Any

import pytest

from broker.core.liveness import Leases
from broker.core.topics import Topics
from broker.wires.common.registry_topics import RegistryTopics
from tests.recording.logs import nothing_fails
from tests.wires.mc0.recording import Mc0Farm, Mc0Peer
from tests.wires.recording import CountingRegistry, ElkoFarm, desc

SECRET = {"type": "auth", "mode": "password", "code": "sesame", "id": "user"}


@pytest.fixture
def farm() -> Iterator[ElkoFarm]:
    with nothing_fails():
        yield ElkoFarm()


@pytest.fixture
def listener(farm: ElkoFarm) -> Mc0Peer:
    """A peer on mc0, where the farm's servers speak Elko."""
    return Mc0Farm(clock=farm.clock, registry=farm.registry).peer("listener")


def heard(peer: Mc0Peer) -> list[tuple[str, dict[str, Any]]]:
    """Topics and what was said on them."""
    told = []
    for frames in peer.take_frames():
        delimiter, verb, key, topic, separator, body = frames
        assert (delimiter, verb, key, separator) == (b"", b"MESSAGE", b"TOPIC", b"")
        told.append((topic.decode().removeprefix("elkobroker."), json.loads(body)))
    return told


def said(peer: Mc0Peer) -> list[dict[str, Any]]:
    return [notice for _, notice in heard(peer)]


def test_services_that_come_and_go_are_told_in_their_order(farm: ElkoFarm, listener: Mc0Peer) -> None:
    assert listener.ask("SUB|ID|s||elkobroker.services") == ["OK|ID|s"]
    provider, other = farm.client("provider"), farm.client("other")
    provider.offer(desc("bank", "h:1", protocol="udp", label="a bank"), desc("post", "h:2"))
    other.offer(desc("bank", "h:3"))
    provider.say("client", "wontserve", services=["bank"])
    provider.drop()
    bank = {"service": "bank", "hostport": "h:1", "protocol": "udp", "provider": 1, "label": "a bank"}
    post = {"service": "post", "hostport": "h:2", "protocol": "tcp", "provider": 1}
    third = {"service": "bank", "hostport": "h:3", "protocol": "tcp", "provider": 2}
    told = heard(listener)
    assert {topic for topic, _ in told} == {"services"}
    revisions = [notice.pop("revision") for _, notice in told]
    assert revisions == sorted(set(revisions))
    assert [notice for _, notice in told] == [
        {"on": True, **bank},
        {"on": True, **post},
        {"on": True, **third},
        {"on": False, **bank},
        {"on": False, **post},
    ]
    assert farm.registry.revision >= revisions[-1]


def test_loads_are_told(farm: ElkoFarm, listener: Mc0Peer) -> None:
    assert listener.ask("SUB|ID|s||elkobroker.load") == ["OK|ID|s"]
    provider = farm.client("provider")
    for load in (0.25, 3, -1):
        provider.say("client", "load", factor=load)
    provider.say("client", "load", factor=1, requests=7, latency_ms=2)
    told = heard(listener)
    assert [notice.pop("revision") for _, notice in told] == [2, 3, 4, 5]
    assert told == [("load", {"provider": 1, "label": "provider", "load": load}) for load in (0.25, 3.0, 0.0)] + [
        ("load", {"provider": 1, "label": "provider", "load": 1.0, "requests": 7, "latency_ms": 2.0})
    ]


def test_no_secret_is_told(farm: ElkoFarm, listener: Mc0Peer) -> None:
    listener.say("SUB||elkobroker.services|elkobroker.load")
    provider = farm.client("provider")
    provider.offer(desc("bank", auth=SECRET))
    provider.say("client", "load", factor=0.5)
    provider.drop()
    told = b"".join(frame for frames in listener.take_frames() for frame in frames)
    assert told.count(b"bank") == 2
    for word in (b"sesame", b"user", b"auth", b"password"):
        assert word not in told


@pytest.mark.parametrize("text", ["\u2603 \U0001f600", 'a"b\\c', "\0\x1f\x7f", "x" * 1_000, "\ud800"])
def test_any_text_is_json(farm: ElkoFarm, listener: Mc0Peer, text: str) -> None:
    listener.say("SUB||elkobroker.services")
    farm.client("provider").offer(desc("bank", label=text, protocol="tcp"))
    [notice] = said(listener)
    assert notice["label"] == ("?" if text == "\ud800" else text)


@pytest.mark.parametrize("factor", ["1e308", "1e999", "-1e999", "1e-999"])
def test_every_load_is_a_number(farm: ElkoFarm, listener: Mc0Peer, factor: str) -> None:
    listener.say("SUB||elkobroker.load")
    provider = farm.client("provider")
    provider.send(b'{"to":"client","op":"load","factor":' + factor.encode() + b"}\n\n")
    provider.say("client", "load", factor=1)
    *_, last = notices = said(listener)
    assert last["load"] == 1.0
    assert all(isinstance(notice["load"], int | float) for notice in notices)


def test_the_ok_comes_before_what_is_told(farm: ElkoFarm, listener: Mc0Peer) -> None:
    provider = farm.client("provider")
    provider.offer(desc("before"))
    assert listener.ask("SUB|ID|s||elkobroker.services|elkobroker.load") == ["OK|ID|s"]
    provider.offer(desc("after"))
    assert [notice["service"] for notice in said(listener)] == ["after"]


def test_each_topic_is_told_to_its_subscribers_only(farm: ElkoFarm) -> None:
    mc0 = Mc0Farm(clock=farm.clock, registry=farm.registry)
    listeners = {name: mc0.peer(name) for name in ("services", "load", "elko", "")}
    for name, peer in listeners.items():
        peer.say(f"SUB||elkobroker.{name}")
    provider = farm.client("provider")
    provider.offer(desc("bank"))
    provider.say("client", "load", factor=1)
    assert {name: [topic for topic, _ in heard(peer)] for name, peer in listeners.items()} == {
        "services": ["services"],
        "load": ["load"],
        "elko": [],
        "": [],
    }


def test_the_registry_is_watched_only_while_somebody_is_subscribed() -> None:
    with nothing_fails():
        farm = ElkoFarm()
        registry = CountingRegistry(farm)
        mc0 = Mc0Farm(clock=farm.clock, registry=registry)
        peers = [mc0.peer(f"P{number}") for number in range(3)]
        assert sum(map(len, registry.watches.values())) == 0
        for _ in range(2):
            for peer in peers:
                peer.say("SUB||elkobroker.services|other")
            assert sum(map(len, registry.watches.values())) == 1
            peers[0].say("SUB||elkobroker.load")
            assert sum(map(len, registry.watches.values())) == 2
            peers[0].say("DISCONNECT")
            peers[1].say("UNSUB||elkobroker.services")
            assert sum(map(len, registry.watches.values())) == 1
            peers[2].say("CONNECT|TTL|1000")
            mc0.wait(2)
            assert sum(map(len, registry.watches.values())) == 0


def test_who_was_subscribed_before_the_topics_were_ours_is_told_as_well(farm: ElkoFarm) -> None:
    class Listener:
        def __init__(self) -> None:
            self.told: list[bytes] = []

        def deliver(self, subscribers: Collection[object], topic: bytes, headers: object, body: Any) -> None:
            assert (list(subscribers), topic, list(headers)) == (["me"], b"elkobroker.load", [])  # type: ignore[call-overload]
            self.told += body

    topics, listener = Topics(), Listener()
    topics.subscribe(b"elkobroker.load", listener, "me")
    RegistryTopics(farm.registry, topics, Leases(farm.clock))
    farm.client("provider").say("client", "load", factor=1)
    assert [json.loads(notice)["load"] for notice in listener.told] == [1.0]


def test_a_change_outside_of_a_quantum_takes_the_place_of_a_noop(farm: ElkoFarm, listener: Mc0Peer) -> None:
    assert listener.ask("CONNECT|ID|c|TTL|30000") == ["OK|ID|c"]
    listener.say("SUB||elkobroker.load")
    farm.clock.advance(10.0)
    farm.client("provider").say("client", "load", factor=1)
    assert [topic for topic, _ in heard(listener)] == ["load"]
    assert 14.9 < listener.wait_for("NOOP", 20.0) < 16.0
