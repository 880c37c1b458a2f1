"""The behaviour common to all wires, in neutral terms: each wire is driven through these two roles.

A wire joins the suite by a class here with `provider` and `seeker`, over the farm's one registry. If it lacks a
behaviour, its role calls `lacking` with the reason.

The file is longer than others: it has the roles of all wires, which are read side by side.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, NoReturn, Protocol

import pytest

from broker.wires.mtl.sessions.access_policy import ConfirmMode, Side
from tests.packages import LACKING
from tests.wires.dbp.recording import DbpFarm, DbpPeer, T
from tests.wires.dns.recording import DnsFarm, code, shown
from tests.wires.http.recording import Answered, HttpFarm
from tests.wires.mc0.recording import Mc0Farm, Mc0Peer
from tests.wires.mtl.data_recording import MtlPeer
from tests.wires.mtl.profiles_recording import Got, ProfilesFarm, confirmed, got, put, rejected, summon
from tests.wires.recording import Client, ElkoFarm, desc


def lacking(reason: str) -> NoReturn:
    """Skip a test of a behaviour that the wire does not have, on any machine."""
    pytest.skip(f"{LACKING}: {reason}")


class Offering(Protocol):
    """A server that offers services."""

    def offer(self, name: str, hostport: str, **labels: object) -> None:
        """Offer a service, with a zone, tags and meta."""

    def offer_again(self, name: str, hostport: str) -> None:
        """Offer a service once more, after an operator has withdrawn it."""

    def relabel(self, name: str, hostport: str, **labels: object) -> None:
        """Change zone, tags and meta of a service that is offered there."""

    def withdraw(self, name: str) -> None: ...
    def load(self, load: float, **details: object) -> None:
        """Report a load, with members of `broker.core.model.LoadDetails`."""

    def offer_nowhere(self, name: str) -> None:
        """Offer a service with an empty hostport, and assert that the wire refuses it in its own words."""

    def load_less_than_nothing(self) -> float:
        """Report a load of -1 after one of 0.25, and assert the answer of the wire. Returns the load it leaves."""

    def die(self) -> None:
        """Go without a word."""


class Seeking(Protocol):
    """A client that looks for services."""

    def find(self, name: str) -> list[str]:
        """The present hostports of that service, in the order of the offers."""

    def described(self, name: str) -> dict[str, object]:
        """The members of the description of the only service of that name."""

    def wait(self, name: str, seconds: int) -> None:
        """Wait for that service."""

    def waited(self) -> list[str] | None:
        """The result of the wait: None while it lasts, an empty list when it was in vain."""

    def loads(self) -> list[float]:
        """The loads of all providers."""

    def watch(self) -> None:
        """Begin to watch services that come and go."""

    def heard(self) -> list[tuple[str, bool]]:
        """Names of services that came (True) or went (False) since the last call."""


class Wire(Protocol):
    """A wire over the farm's registry."""

    def provider(self, label: str) -> Offering: ...
    def seeker(self) -> Seeking: ...


class Elko:
    """The Elko Broker wire."""

    def __init__(self, farm: ElkoFarm) -> None:
        self._farm = farm

    def provider(self, label: str) -> Offering:
        return _ElkoOffering(self._farm.client(label))

    def seeker(self) -> Seeking:
        return _ElkoSeeking(self._farm.client("seeker"), self._farm.admin())


class _ElkoOffering:
    def __init__(self, client: Client) -> None:
        self._client = client

    def offer(self, name: str, hostport: str, **labels: object) -> None:
        self._client.offer(desc(name, hostport, **labels))

    def offer_again(self, name: str, hostport: str) -> None:
        self.offer(name, hostport)

    def relabel(self, name: str, hostport: str, **labels: object) -> NoReturn:
        lacking("in Elko a further offer of a name is a further service")

    def withdraw(self, name: str) -> None:
        self._client.say("client", "wontserve", services=[name])

    def load(self, load: float, **details: object) -> None:
        self._client.say("client", "load", factor=load, **details)

    def offer_nowhere(self, name: str) -> None:
        [diagnostic] = self._client.ask("client", "willserve", services=[desc(name, "")])
        assert "has an empty hostport" in diagnostic["msg"]

    def load_less_than_nothing(self) -> float:
        """As in the original, it counts as 0, and nothing is said."""
        assert self._client.ask("client", "load", factor=-1) == []
        return 0.0

    def die(self) -> None:
        self._client.drop()


class _ElkoSeeking:
    def __init__(self, client: Client, admin: Client) -> None:
        self._client = client
        self._admin = admin

    def find(self, name: str) -> list[str]:
        return _hostports(self._client.find(name))

    def described(self, name: str) -> dict[str, object]:
        [answer] = self._client.find(name)
        [found] = answer["desc"]
        return dict(found)

    def wait(self, name: str, seconds: int) -> None:
        self._client.say("client", "find", service=name, wait=seconds)

    def waited(self) -> list[str] | None:
        answers = self._client.take()
        return _hostports(answers) if answers else None

    def loads(self) -> list[float]:
        [answer] = self._admin.ask("admin", "loaddesc")
        return [each["load"] for each in answer["desc"] if each["label"] != "seeker"]

    def watch(self) -> None:
        self._admin.ask("admin", "watch", services=True)

    def heard(self) -> list[tuple[str, bool]]:
        return [(each["service"], notice["on"]) for notice in self._admin.take() for each in notice["desc"]]


def _hostports(answers: list[dict[str, Any]]) -> list[str]:
    return [each["hostport"] for answer in answers for each in answer["desc"] if "failure" not in each]


class Mc0:
    """The mc0 wire: it has topics, and no services of its own."""

    def __init__(self, farm: ElkoFarm) -> None:
        self._farm = Mc0Farm(clock=farm.clock, registry=farm.registry)

    def provider(self, label: str) -> NoReturn:
        lacking("mc0 has no message with which a service or a load could be reported")

    def seeker(self) -> Seeking:
        return _Mc0Seeking(self._farm.peer("seeker"))


class _Mc0Seeking:
    def __init__(self, peer: Mc0Peer) -> None:
        self._peer = peer

    def find(self, name: str) -> NoReturn:
        _no_questions()

    def described(self, name: str) -> NoReturn:
        _no_questions()

    def wait(self, name: str, seconds: int) -> NoReturn:
        _no_questions()

    def waited(self) -> NoReturn:
        _no_questions()

    def loads(self) -> NoReturn:
        _no_questions()

    def watch(self) -> None:
        assert self._peer.ask("SUB|ID|watch||elkobroker.services") == ["OK|ID|watch"]

    def heard(self) -> list[tuple[str, bool]]:
        notices = [json.loads(frames[-1]) for frames in self._peer.take_frames()]
        return [(notice["service"], notice["on"]) for notice in notices]


def _no_questions() -> NoReturn:
    lacking("mc0 has no message with which the registry could be asked: it tells changes, as they happen")


class Dbp:
    """The DBP wire: each service is a provider of its own, and a name is one service."""

    def __init__(self, farm: ElkoFarm) -> None:
        self._farm = DbpFarm(clock=farm.clock, registry=farm.registry)

    def provider(self, label: str) -> Offering:
        return _DbpOffering(self._farm, label)

    def seeker(self) -> Seeking:
        return _DbpSeeking(self._farm.dealer())


class _DbpOffering:
    """A machine with services that beat, by whose silence it is known to be gone.

    The service registered under its label has no heartbeats, as Hermes' services: it stays in all cases.
    """

    def __init__(self, farm: DbpFarm, label: str) -> None:
        self._farm = farm
        self._label = label
        self._peer = farm.dealer().registered(label)
        self._offered: dict[str, DbpPeer] = {}

    def offer(self, name: str, hostport: str, **labels: object) -> None:
        if name in self._offered:
            lacking("in DBP a name is one service: who registers it again takes its own place")
        host, _, port = hostport.rpartition(":")
        self._offered[name] = self._farm.dealer().registered(name, ip=host, port=int(port), heartbeat=1, **labels)

    def offer_again(self, name: str, hostport: str) -> None:
        """A service that was withdrawn is sent a DISCONNECT, and registers over a new connection."""
        [[command, *_]] = self._offered.pop(name).take()
        assert command == b"</3"
        self.offer(name, hostport)

    def relabel(self, name: str, hostport: str, **labels: object) -> None:
        self._offered[name].send("UoU", T, {"name": name, **labels})

    def withdraw(self, name: str) -> None:
        self._offered.pop(name).send("</3", T)

    def load(self, load: float, **details: object) -> None:
        self._peer.send("UoU", T, {"name": self._label, "load": load, **details})

    def offer_nowhere(self, name: str) -> NoReturn:
        lacking("in DBP a service that says no place is at the address that it registers from")

    def load_less_than_nothing(self) -> float:
        """A value that makes no sense is as good as none: the last one stays."""
        self.load(-1)
        return 0.25

    def die(self) -> None:
        for peer in self._offered.values():
            peer.close()
        self._farm.wait(4)


class _DbpSeeking:
    def __init__(self, peer: DbpPeer) -> None:
        self._peer = peer

    def find(self, name: str) -> list[str]:
        listed = self._peer.find(name)
        if "Error" in listed:
            return []
        return [_place(each) for each in listed[name].get("providers", [listed[name]])]

    def described(self, name: str) -> dict[str, object]:
        return dict(self._peer.find(name)[name])

    def wait(self, name: str, seconds: int) -> NoReturn:
        lacking("DBP has no request that waits: it is answered at once")

    def waited(self) -> NoReturn:
        lacking("DBP has no request that waits: it is answered at once")

    def loads(self) -> NoReturn:
        lacking("DBP reports the load of a provider with its services, and has no request for others")

    def watch(self) -> NoReturn:
        lacking("DBP has no notices of changes: clients ask again")

    def heard(self) -> NoReturn:
        lacking("DBP has no notices of changes: clients ask again")


def _place(listed: dict[str, Any]) -> str:
    """The hostport of a service as it is listed: by its own words, or by a mapping."""
    return f"{listed['ip']}:{listed['port']}"


class Mtl:
    """The MTL wire, with its profile "registry": a flow is a provider, or reads what there is and what changes."""

    def __init__(self, farm: ElkoFarm) -> None:
        self._farm = ProfilesFarm(farm.registry)

    def provider(self, label: str) -> Offering:
        return _MtlOffering(self._farm)

    def seeker(self) -> Seeking:
        return _MtlSeeking(self._farm)


class _MtlOffering:
    """A machine with several flows: each offers a name once. The first one reports the load."""

    def __init__(self, farm: ProfilesFarm) -> None:
        self._farm = farm
        self._sequence = 0
        self._offered: list[tuple[str, MtlPeer]] = []
        self._first = self._flow()
        self.load(0.0)

    def _flow(self) -> MtlPeer:
        peer = self._farm.peer()
        peer.lease(self._farm.lease(Side.WRITER, profile=self._farm.registry, confirm=ConfirmMode.FULL))
        return peer

    def _put(self, peer: MtlPeer, resource: str, body: object, **says: str) -> None:
        self._sequence += 1
        put(peer, self._sequence, resource, body, **says)
        assert peer.take() == confirmed(self._sequence)

    def offer(self, name: str, hostport: str, **labels: object) -> None:
        taken = [peer for offered, peer in self._offered if offered == name]
        peer = self._flow() if self._first in taken else self._first
        self._offered.append((name, peer))
        self._put(peer, f"service/{name}", desc(name, hostport, **labels), type="offer")

    def offer_again(self, name: str, hostport: str) -> None:
        self.relabel(name, hostport)

    def relabel(self, name: str, hostport: str, **labels: object) -> None:
        [flow] = [peer for offered, peer in self._offered if offered == name]
        self._put(flow, f"service/{name}", desc(name, hostport, **labels), type="offer")

    def withdraw(self, name: str) -> None:
        for offered, peer in self._offered:
            if offered == name:
                self._put(peer, f"service/{name}", b"", type="withdraw")

    def load(self, load: float, **details: object) -> None:
        self._put(self._first, "load", {"load": load, **details})

    def offer_nowhere(self, name: str) -> None:
        self._refused(self._first, f"service/{name}", desc(name, ""), type="offer")

    def load_less_than_nothing(self) -> float:
        """It is rejected, and the last one stays."""
        self._refused(self._first, "load", {"load": -1})
        return 0.25

    def _refused(self, peer: MtlPeer, resource: str, body: object, **says: str) -> None:
        self._sequence += 1
        put(peer, self._sequence, resource, body, **says)
        assert peer.take() == rejected(self._sequence)

    def die(self) -> None:
        for peer in {self._first, *(peer for _, peer in self._offered)}:
            peer.drop()
        self._farm.wait(1)


class _MtlSeeking:
    def __init__(self, farm: ProfilesFarm) -> None:
        self._farm = farm
        self._watching: MtlPeer | None = None

    def _snapshot(self, resource: str) -> list[Got]:
        """The present state."""
        peer = self._farm.peer()
        peer.lease(self._farm.lease(Side.READER, resource, profile=self._farm.registry))
        *entries, end = summon(peer, resource)
        assert end.event == "synced"
        return entries

    def find(self, name: str) -> list[str]:
        entries = self._snapshot(f"service/{name}")
        if len(entries) < sum(service.name == name for service in self._farm.core.services()):
            lacking("in MTL a service of one provider is one entry: that which was offered last")
        return [entry.json["hostport"] for entry in entries]

    def described(self, name: str) -> dict[str, object]:
        [entry] = self._snapshot(f"service/{name}")
        return dict(entry.json)

    def wait(self, name: str, seconds: int) -> NoReturn:
        lacking("MTL has no request that waits: who waits for a service summons it, as long as it likes")

    def waited(self) -> NoReturn:
        lacking("MTL has no request that waits: who waits for a service summons it, as long as it likes")

    def loads(self) -> list[float]:
        return [entry.json["load"] for entry in self._snapshot("load") if entry.json["label"] != "seeker"]

    def watch(self) -> None:
        self._watching = self._farm.peer()
        self._watching.lease(self._farm.lease(Side.READER, "services", profile=self._farm.registry))
        summon(self._watching, "services")

    def heard(self) -> list[tuple[str, bool]]:
        assert self._watching is not None
        return [(each.says["service"], each.event == "up") for each in got(self._watching) if each.event != "update"]


class Dns:
    """The DNS wire: it answers questions, and takes no registrations."""

    def __init__(self, farm: ElkoFarm) -> None:
        self._farm = DnsFarm(farm)

    def provider(self, label: str) -> NoReturn:
        lacking("DNS has no message with which a service or a load could be reported")

    def seeker(self) -> Seeking:
        return _DnsSeeking(self._farm)


class _DnsSeeking:
    def __init__(self, farm: DnsFarm) -> None:
        self._farm = farm

    def find(self, name: str) -> list[str]:
        """The places by SRV, which are those of TXT; a name without a place does not exist."""
        found = self._farm.ask(f"{name}.service.elkobroker.", "SRV")
        texts = self._farm.ask(f"{name}.service.elkobroker.", "TXT")
        places = [f"{target.rstrip('.')}:{port}" for _, _, _, port, target in map(str.split, shown(found))]
        assert places == [text.partition("hostport=")[2].partition('"')[0] for text in shown(texts)]
        assert (code(found) == "NXDOMAIN") is (not places)
        return places

    def described(self, name: str) -> NoReturn:
        lacking("DNS shows the address of a service, its label and its protocol")

    def wait(self, name: str, seconds: int) -> NoReturn:
        lacking("DNS has no question that waits: it is answered at once")

    def waited(self) -> NoReturn:
        lacking("DNS has no question that waits: it is answered at once")

    def loads(self) -> NoReturn:
        lacking("DNS shows loads as weights of the places of one name, and as no numbers")

    def watch(self) -> NoReturn:
        lacking("DNS reports no changes: a client asks again when the time of an answer is over")

    def heard(self) -> NoReturn:
        lacking("DNS reports no changes: a client asks again when the time of an answer is over")


class Http:
    """The HTTP wire: each instance is a provider of its own."""

    def __init__(self, farm: ElkoFarm) -> None:
        self._farm = HttpFarm(farm)

    def provider(self, label: str) -> Offering:
        return _HttpOffering(self._farm)

    def seeker(self) -> Seeking:
        return _HttpSeeking(self._farm)


class _HttpOffering:
    def __init__(self, farm: HttpFarm) -> None:
        self._farm = farm
        self._offered: list[tuple[str, str]] = []
        # An instance with the load: without one there is no provider. It outlives `die`.
        assert farm.put("provider", "main", "h:0", ttl=3_600).status == 201

    def offer(self, name: str, hostport: str, **labels: object) -> None:
        instance = str(len(self._offered))
        assert self._farm.put(name, instance, hostport, "192.0.2.7", "", ttl=1, **labels).status == 201
        self._offered.append((name, instance))

    def offer_again(self, name: str, hostport: str) -> None:
        [instance] = [instance for each, instance in self._offered if each == name]
        assert self._farm.put(name, instance, hostport, "192.0.2.7", "", ttl=1).status == 201

    def relabel(self, name: str, hostport: str, **labels: object) -> None:
        [instance] = [instance for each, instance in self._offered if each == name]
        assert self._farm.put(name, instance, hostport, "192.0.2.7", "", ttl=1, **labels).status == 200

    def withdraw(self, name: str) -> None:
        for each, instance in self._offered:
            if each == name:
                assert self._farm.delete(name, instance).status == 204

    def load(self, load: float, **details: Any) -> None:
        assert self._farm.renew("provider", "main", load=load, **details).status == 200

    def offer_nowhere(self, name: str) -> None:
        answered = self._farm.put(name, "nowhere", "")
        assert (answered.status, answered.json["code"]) == (400, "parameter")

    def load_less_than_nothing(self) -> float:
        """It is refused, and the load before it stays."""
        assert self._farm.renew("provider", "main", load=-1).status == 400
        return 0.25

    def die(self) -> None:
        self._farm.wait(1.2)


class _HttpSeeking:
    def __init__(self, farm: HttpFarm) -> None:
        self._farm = farm
        self._waiting: Answered | None = None

    def find(self, name: str) -> list[str]:
        return self._farm.find(name)

    def described(self, name: str) -> dict[str, object]:
        [found] = self._farm.ask("GET", f"/v1/services/{name}").json["services"]
        return dict(found)

    def wait(self, name: str, seconds: int) -> None:
        self._waiting = self._farm.ask("GET", f"/v1/services/{name}", query={"wait": str(seconds)})

    def waited(self) -> list[str] | None:
        waiting = self._waiting
        if waiting is None or not waiting.status:
            return None
        self._waiting = None
        return [] if waiting.status == 404 else [each["hostport"] for each in waiting.json["services"]]

    def loads(self) -> NoReturn:
        lacking("the loads of all providers are in the API of operators, which is no part of the wire")

    def watch(self) -> NoReturn:
        lacking("changes are reported by the API of operators, which is no part of the wire")

    def heard(self) -> NoReturn:
        lacking("changes are reported by the API of operators, which is no part of the wire")


WIRES: dict[str, Callable[[ElkoFarm], Wire]] = {
    "elko": Elko,
    "mc0": Mc0,
    "dbp": Dbp,
    "mtl": Mtl,
    "dns": Dns,
    "http": Http,
}
"""Every wire, by name."""
