"""The profile "service" of MTL: the worker of a request, the way of its reply to the caller, and what callers are told
of requests that come to nothing.

The file is longer than others: it has all tests of `broker.wires.mtl.profiles.service_profile`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import attrs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from broker.core.errors import Reason, Refusal
from broker.core.memory_budget import MemoryLimits
from broker.core.model import Provider, Rights
from broker.wires.mtl.codec import data_messages as wire
from broker.wires.mtl.codec import field_table
from broker.wires.mtl.mtl_settings import Mtl
from broker.wires.mtl.profiles import service_profile
from broker.wires.mtl.profiles.reply_inboxes import OVERHEAD
from broker.wires.mtl.profiles.request_dispatch import ServiceBounds
from broker.wires.mtl.sessions.access_policy import ConfirmMode, Principal, Side
from tests.examples import examples
from tests.recording.logs import nothing_fails
from tests.wires.mtl.data_recording import DEFAULTS, MtlPeer
from tests.wires.mtl.profiles_recording import (
    OTHER,
    Bounds,
    Got,
    Permits,
    ProfilesFarm,
    as_got,
    confirmed,
    dismiss,
    got,
    put,
    refused,
    rejected,
    summon,
)
from tests.wires.recording import ElkoFarm, found

ADDRESS = "192.0.2.7"
"""The address of the peers of these tests."""


class ServiceFarm:
    """MTL, and Elko over the same registry."""

    def __init__(self, config: Mtl = DEFAULTS, **bounds: int) -> None:
        self.elko = ElkoFarm()
        self.core = self.elko.registry
        self.mtl = ProfilesFarm(
            registry=self.core,
            config=config,
            bounds=Bounds(service=ServiceBounds(**bounds)),
        )
        self.profile = self.mtl.service

    def peer(
        self, *, read: str = "", write: str = "", principal: Principal | None = None, **reading: Any
    ) -> tuple[MtlPeer, str]:
        """A client with a lease for these resources on each side, and the address that it was told."""
        peer = self.mtl.peer()
        peer.lease(self.mtl.lease(Side.READER, *read.split(), profile=self.profile, principal=principal, **reading))
        address = self.mtl.told.get("reply", "")
        peer.lease(self.mtl.lease(Side.WRITER, *write.split(), profile=self.profile, principal=principal))
        return peer, address

    def caller(self, principal: Principal | None = None) -> Caller:
        """A client that may send any request, and reads replies."""
        peer, address = self.peer(read="reply", confirm=ConfirmMode.NONE, principal=principal)
        assert summon(peer, "reply") == []
        return Caller(peer, address)

    def worker(
        self,
        *services: str,
        window: int = 100,
        confirm: ConfirmMode = ConfirmMode.FULL,
        principal: Principal | None = None,
    ) -> MtlPeer:
        """A worker of these services that can reply. No request waits for it."""
        peer, _ = self.peer(
            read=" ".join(f"service/{name}" for name in services),
            window=window,
            confirm=confirm,
            principal=principal,
        )
        for name in services:
            assert summon(peer, f"service/{name}") == []
        return peer

    def count(self, name: str) -> int:
        return self.mtl.counted(f"mtl_services.{name}")

    def idle(self) -> bool:
        """True if no state of any request is kept."""
        counts = self.profile.counts()
        open, waiting, kept = (counts[f"mtl_services.{name}"] for name in ("open", "waiting", "kept-bytes"))
        return self.profile.expecting == open == waiting == kept == 0


class Caller:
    """A client that asks."""

    def __init__(self, peer: MtlPeer, address: str) -> None:
        self.peer = peer
        self.address = address
        self._sequence = 0

    def ask(self, name: str, body: bytes = b"", /, **says: Any) -> list[wire.Command]:
        """Send a request with these properties. Returns the answers, and all messages before them."""
        self._sequence += 1
        put(self.peer, self._sequence, f"service/{name}", body, **{"reply-to": self.address, **says})
        return self.peer.take()

    def asked(self, name: str, body: bytes = b"", /, **says: Any) -> None:
        """The same; it is confirmed, and nothing else comes."""
        assert self.ask(name, body, **says) == confirmed(self._sequence)

    def replies(self) -> list[Got]:
        return got(self.peer)

    def errors(self) -> list[tuple[int, str]]:
        """The errors that came since the last time, by code and correlation-id. Nothing else did."""
        told = self.replies()
        assert all(each.event == "error" and each.resource == "reply" and not each.body for each in told)
        return [(each.says["code"], each.says.get("correlation-id", "")) for each in told]


def requests(worker: MtlPeer) -> list[bytes]:
    """The bodies of the requests that came since the last time. Nothing else did."""
    return [each.body for each in got(worker)]


def contents(peer: MtlPeer) -> list[Got]:
    """The Contents that came; Pings and answers do not count."""
    return [as_got(each) for each in peer.take() if type(each) is wire.Content]


def reply(worker: MtlPeer, request: Got, body: bytes = b"", /, sequence: int = 1, **says: Any) -> None:
    """Reply to a request."""
    said = {name: request.says[name] for name in ("reply-to", "correlation-id") if name in request.says}
    put(worker, sequence, "reply", body, **{**said, **says})


@pytest.fixture
def bounded() -> Iterator[Callable[..., ServiceFarm]]:
    """Makes a farm with these bounds."""
    with nothing_fails():
        yield ServiceFarm


@pytest.fixture
def farm(bounded: Callable[..., ServiceFarm]) -> ServiceFarm:
    return bounded()


# requests and replies


def test_a_request_goes_to_a_worker_and_its_reply_to_the_caller(farm: ServiceFarm) -> None:
    worker, caller = farm.worker("sum"), farm.caller()
    caller.asked("sum", b"1+1", correlation_id="c1", type="text")
    [request] = got(worker)
    says = {"reply-to": caller.address, "correlation-id": "c1", "type": "text"}
    assert request == Got("service/sum", {**says, "redelivered": False, "delivery-count": 1}, b"1+1", 1)
    reply(worker, request, b"2", status="fine")
    assert worker.take() == confirmed(1)
    worker.say(*wire.confirm(request.sequence))
    assert caller.replies() == [Got("reply", {"correlation-id": "c1", "status": "fine"}, b"2", 1)]
    assert farm.idle()
    assert farm.count("requests") == farm.count("replies") == 1


def test_the_address_is_one_that_nobody_can_guess(farm: ServiceFarm) -> None:
    addresses = {farm.caller().address for _ in range(20)}
    assert len(addresses) == 20
    assert all(address.startswith("reply/") and len(address) == len("reply/") + 32 for address in addresses)


@pytest.mark.parametrize(
    ("side", "resources", "told"),
    [
        (Side.READER, ["reply"], True),
        (Side.READER, [], True),
        (Side.READER, ["service/a", "reply"], True),
        (Side.READER, ["service/a"], False),
        (Side.WRITER, ["reply"], False),
        (Side.WRITER, [], False),
    ],
)
def test_readers_of_replies_are_told_an_address(
    farm: ServiceFarm, side: Side, resources: list[str], told: bool
) -> None:
    farm.mtl.lease(side, *resources, profile=farm.profile)
    assert ("reply" in farm.mtl.told) is told


def test_addresses_of_leases_that_nobody_uses_are_forgotten(farm: ServiceFarm) -> None:
    for _ in range(20):
        farm.mtl.lease(Side.READER, "reply", profile=farm.profile)
    farm.mtl.wait(31)
    assert farm.profile.addresses == 0
    caller = farm.caller()
    caller.peer.drop()
    farm.mtl.wait(2)
    assert farm.profile.addresses == 0


def test_an_address_can_be_summoned_by_itself_where_the_lease_is_for_all(farm: ServiceFarm) -> None:
    peer, address = farm.peer()
    assert summon(peer, address) == []
    worker, caller = farm.worker("sum"), Caller(peer, address)
    caller.asked("sum")
    reply(worker, got(worker)[0], b"2")
    [content] = caller.replies()
    assert (content.resource, content.body) == (address, b"2")
    assert summon(peer, "reply") == []
    dismiss(peer, address)
    put(worker, 2, "reply", b"3", **{"reply-to": address})
    [content] = caller.replies()
    assert (content.resource, content.body) == ("reply", b"3")
    other, _ = farm.peer()
    assert other.ask(*wire.summon(7, address)) == [wire.Response(7, b"400")]
    assert other.ask(*wire.summon(8, "reply/x")) == [wire.Response(8, b"400")]


def test_somebody_elses_address_of_the_same_user_brings_nothing(farm: ServiceFarm) -> None:
    ann = farm.mtl.principal("ann")
    (one, address), (other, own) = (farm.peer(principal=ann) for _ in range(2))
    assert summon(one, address) == summon(other, address) == []
    put(farm.worker("sum"), 1, "reply", b"2", **{"reply-to": address})
    assert [content.body for content in got(one)] == [b"2"]
    assert got(other) == []
    put(farm.worker("sum"), 1, "reply", b"2", **{"reply-to": own})
    assert got(other) == []
    dismiss(other, address)


def test_a_worker_may_write_to_the_address_itself(farm: ServiceFarm) -> None:
    worker, caller = farm.worker("sum"), farm.caller()
    put(worker, 1, caller.address, b"2", correlation_id="c", reply_to="mine")
    assert worker.take() == confirmed(1)
    assert caller.replies() == [Got("reply", {"correlation-id": "c", "reply-to": "mine"}, b"2", 1)]


def test_a_request_may_have_many_replies(farm: ServiceFarm) -> None:
    worker, caller = farm.worker("sum"), farm.caller()
    caller.asked("sum")
    [request] = got(worker)
    for number in range(5):
        reply(worker, request, b"%d" % number, sequence=number)
    assert [each.body for each in caller.replies()] == [b"0", b"1", b"2", b"3", b"4"]


def test_a_request_without_reply_to_is_one_way(farm: ServiceFarm) -> None:
    worker, (peer, _) = farm.worker("log"), farm.peer()
    put(peer, 1, "service/log", b"line")
    assert peer.take() == confirmed(1)
    [request] = got(worker)
    assert "reply-to" not in request.says
    worker.say(*wire.reject(request.sequence))
    assert farm.count("error-500") == 1
    assert farm.idle()


def test_the_broker_says_who_asks_and_who_replies(farm: ServiceFarm) -> None:
    worker = farm.worker("sum", principal=farm.mtl.principal("will"))
    caller = farm.caller(principal=farm.mtl.principal("carl"))
    caller.asked("sum", user_id="root", redelivered=True, delivery_count=7)
    [request] = got(worker)
    assert (request.says["user-id"], request.says["redelivered"], request.says["delivery-count"]) == ("carl", False, 1)
    reply(worker, request, user_id="root")
    assert worker.take() == confirmed(1)
    assert caller.replies()[0].says == {"user-id": "will"}
    nameless = farm.caller()
    nameless.asked("sum", user_id="root")
    assert "user-id" not in got(worker)[0].says


def test_nobody_but_the_broker_sends_errors(farm: ServiceFarm) -> None:
    worker, caller = farm.worker("sum"), farm.caller()
    caller.asked("sum")
    reply(worker, got(worker)[0], b"no", event="error", code=500)
    assert caller.replies()[0].says == {"code": 500}


# who gets what


def test_the_worker_with_the_fewest_unconfirmed_requests_gets_the_next(farm: ServiceFarm) -> None:
    one, other, caller = farm.worker("a"), farm.worker("a"), farm.caller()
    for number in range(4):
        caller.asked("a", b"%d" % number)
    assert (requests(one), requests(other)) == ([b"0", b"2"], [b"1", b"3"])
    one.say(*wire.confirm(2, multiple=True))
    for number in range(4, 7):
        caller.asked("a", b"%d" % number)
    assert (requests(one), requests(other)) == ([b"4", b"5"], [b"6"])


def test_of_equals_the_one_with_the_lowest_load_gets_it(farm: ServiceFarm) -> None:
    workers, caller = [farm.worker("a") for _ in range(3)], farm.caller()
    for worker, load in zip(workers, (0.5, 0.25, 0.75), strict=True):
        put(worker, 1, "load", {"load": load})
        assert worker.take() == confirmed(1)
    for number in range(3):
        caller.asked("a", b"%d" % number)
    assert [requests(worker) for worker in workers] == [[b"1"], [b"0"], [b"2"]]
    assert sorted(each.load for each in farm.core.providers()) == [0.25, 0.5, 0.75]


def test_equals_take_turns(farm: ServiceFarm) -> None:
    workers, caller = [farm.worker("a") for _ in range(3)], farm.caller()
    for number in range(6):
        caller.asked("a", b"%d" % number)
        for worker in workers:
            worker.say(*wire.confirm(worker.reading.sequence))
    assert [requests(worker) for worker in workers] == [[b"0", b"3"], [b"1", b"4"], [b"2", b"5"]]


def test_a_worker_has_no_more_than_its_window_of_all_its_services(farm: ServiceFarm) -> None:
    worker, caller = farm.worker("a", "b", window=2), farm.caller()
    caller.asked("a", b"1")
    caller.asked("b", b"2")
    assert caller.ask("a", b"3") == rejected(3, recycle=True)
    assert requests(worker) == [b"1", b"2"]
    worker.say(*wire.confirm(2))
    caller.asked("a", b"4")
    assert requests(worker) == [b"4"]


def test_a_window_has_bytes_too(farm: ServiceFarm) -> None:
    worker, caller = farm.worker("a"), farm.caller()
    big = b"x" * (farm.profile.window_bytes + 1)
    caller.asked("a", big)
    assert caller.ask("a", b"small") == rejected(2, recycle=True)
    worker.take()
    worker.say(*wire.confirm(1))
    caller.asked("a", b"small")


def test_a_worker_that_does_not_read_is_passed_by(farm: ServiceFarm) -> None:
    slow, quick, caller = farm.worker("a"), farm.worker("a"), farm.caller()
    slow.stop_reading()
    for number in range(3):
        caller.asked("a", b"%d" % number)
    assert requests(quick) == [b"0", b"1", b"2"]
    slow.read_on()
    farm.mtl.wait(0.3)
    slow.take()
    caller.asked("a", b"3")
    assert requests(slow) == [b"3"]


def test_a_worker_that_confirms_nothing_gets_what_no_other_has_room_for(farm: ServiceFarm) -> None:
    careless, careful = farm.worker("a", confirm=ConfirmMode.NONE), farm.worker("a", window=1)
    caller = farm.caller()
    for number in range(3):
        caller.asked("a", b"%d" % number, retry=True)
    assert (requests(careful), requests(careless)) == ([b"0"], [b"1", b"2"])
    careless.drop()
    farm.mtl.wait(2)
    assert caller.errors() == []
    assert farm.count("open") == 1
    careful.say(*wire.confirm(1))
    assert farm.idle()


def test_services_of_different_hosts_have_nothing_to_do_with_each_other(farm: ServiceFarm) -> None:
    there = farm.mtl.principal(host=OTHER)
    worker, caller, stranger = farm.worker("a", principal=there), farm.caller(), farm.caller(principal=there)
    assert caller.ask("a") == rejected(1, recycle=True)
    stranger.asked("a", b"mine")
    [request] = got(worker)
    here = farm.worker("a")
    reply(here, request, b"forged")
    assert here.take() == rejected(1)
    assert stranger.replies() == []
    assert caller.ask("a", reply_to=stranger.address) == rejected(2)
    reply(worker, request, b"real")
    assert [each.body for each in stranger.replies()] == [b"real"]


# requests that wait


def test_a_request_waits_for_a_worker_for_as_long_as_it_says(farm: ServiceFarm) -> None:
    caller = farm.caller()
    caller.asked("a", b"1", ttl=500, correlation_id="c1")
    caller.asked("a", b"2", ttl=10_000, correlation_id="c2")
    assert farm.count("waiting") == 2
    farm.mtl.wait(0.45)
    assert caller.errors() == []
    farm.mtl.wait(0.15)
    assert caller.errors() == [(504, "c1")]
    worker, _ = farm.peer(read="service/a")
    [request] = summon(worker, "service/a")
    assert (request.body, request.says["delivery-count"]) == (b"2", 1)
    farm.mtl.wait(11)
    assert contents(caller.peer) == []
    assert not farm.idle()
    worker.say(*wire.confirm(1))
    assert farm.idle()
    assert farm.mtl.ends() == {}


def test_an_error_says_what_came_to_nothing_and_why(farm: ServiceFarm) -> None:
    caller = farm.caller()
    caller.asked("a", b"1", ttl=100, correlation_id="c1")
    farm.mtl.wait(0.2)
    [error] = caller.replies()
    says = {"event": "error", "code": 504, "service": "a", "correlation-id": "c1"}
    assert error == Got("reply", {**says, "reason": "no worker had room in time"}, b"", 1)


def test_what_waits_is_given_out_in_order_as_room_comes(farm: ServiceFarm) -> None:
    worker, caller = farm.worker("a", "b", window=1), farm.caller()
    for number in range(6):
        caller.asked("ab"[number % 2], b"%d" % number, ttl=60_000)
    heard = []
    for sequence in range(1, 7):
        heard += requests(worker)
        assert (farm.count("kept-bytes") > 0) is (farm.count("waiting") > 0)
        worker.say(*wire.confirm(sequence))
    assert heard == [b"0", b"1", b"2", b"3", b"4", b"5"]
    assert farm.idle()


def test_what_waits_goes_to_a_worker_that_reads_again(farm: ServiceFarm) -> None:
    worker, caller = farm.worker("a"), farm.caller()
    worker.stop_reading()
    caller.asked("a", b"1", ttl=60_000)
    worker.read_on()
    farm.mtl.wait(0.3)
    assert [each.body for each in contents(worker)] == [b"1"]


def test_who_is_not_confirmed_is_told_by_an_error_that_there_is_no_worker(farm: ServiceFarm) -> None:
    peer = farm.mtl.peer()
    peer.lease(farm.mtl.lease(Side.READER, "reply", profile=farm.profile, confirm=ConfirmMode.NONE))
    address = farm.mtl.told["reply"]
    peer.lease(farm.mtl.lease(Side.WRITER, profile=farm.profile, confirm=ConfirmMode.NONE))
    summon(peer, "reply")
    put(peer, 1, "service/a", b"x", reply_to=address, correlation_id="c")
    [error] = got(peer)
    assert (error.event, error.says["code"], error.says["correlation-id"]) == ("error", 503, "c")
    put(peer, 2, "service/a", b"x")
    assert peer.take() == []
    assert farm.idle()


@pytest.mark.parametrize(("bound", "asked"), [("waiting", {}), ("requests", {}), ("requests", {"retry": True})])
def test_the_number_of_requests_is_bounded(
    bounded: Callable[..., ServiceFarm], bound: str, asked: dict[str, Any]
) -> None:
    farm = bounded(**{bound: 2})
    caller = farm.caller()
    caller.asked("a", ttl=1_000, **asked)
    caller.asked("a", ttl=1_000, **asked)
    assert caller.ask("a", ttl=1_000, **asked) == rejected(3, recycle=True)
    assert farm.count("waiting") == 2
    assert farm.count("limit") == 1
    farm.mtl.wait(2)
    assert len(contents(caller.peer)) == 2
    assert farm.idle()
    caller.asked("a", ttl=1_000, **asked)


@pytest.mark.parametrize("asked", [{"ttl": 1_000}, {"retry": True}, {"ttl": 1_000, "retry": True}])
def test_the_bytes_of_requests_that_are_kept_are_bounded(
    bounded: Callable[..., ServiceFarm], asked: dict[str, Any]
) -> None:
    farm = bounded(kept=3_000)
    worker, caller = farm.worker("a", window=1), farm.caller()
    caller.asked("a", b"x" * 10_000)  # nothing is kept of it
    other = farm.worker("a", window=1) if "retry" in asked else worker
    caller.asked("a", b"x" * 1_500, **asked)
    assert caller.ask("a", b"x" * 1_500, **asked) == rejected(3, recycle=True)
    assert 1_500 < farm.count("kept-bytes") <= 3_000
    for each in (worker, other):
        each.say(*wire.confirm(1))
    worker.say(*wire.confirm(worker.reading.sequence))
    assert farm.idle()


@pytest.mark.parametrize("ttl", [-1, 1.5, "100", True, None])
def test_a_ttl_is_a_number_of_milliseconds(farm: ServiceFarm, ttl: field_table.Value) -> None:
    caller = farm.caller()
    assert caller.ask("a", ttl=ttl) == rejected(1)
    assert farm.count("parameter") == 1


def test_a_ttl_that_is_too_long_is_an_hour(farm: ServiceFarm) -> None:
    caller = farm.caller()
    caller.asked("a", ttl=2**63 - 1)
    assert next(farm.profile.waiting()).ttl == service_profile.MAX_TTL / 1000


@pytest.mark.parametrize(
    "says",
    [
        {"retry": 1},
        {"retry": "yes"},
        {"correlation_id": 7},
        {"correlation_id": b"c"},
        {"correlation_id": "c" * 256},
        {"reply-to": "reply/unknown"},
        {"reply-to": "queue"},
        {"reply-to": ""},
        {"reply-to": 7},
        {"reply-to": None},
    ],
)
def test_a_request_that_makes_no_sense_is_refused_for_good(farm: ServiceFarm, says: dict[str, Any]) -> None:
    worker, caller = farm.worker("a"), farm.caller()
    assert caller.ask("a", ttl=1_000, **says) == rejected(1)
    assert got(worker) == []
    assert farm.idle()


# workers that fail


def test_the_caller_is_told_that_its_worker_is_gone(farm: ServiceFarm) -> None:
    worker, caller = farm.worker("a"), farm.caller()
    caller.asked("a", b"1", correlation_id="c1")
    caller.asked("a", b"2", correlation_id="c2")
    worker.drop()
    farm.mtl.wait(2)
    assert caller.errors() == [(503, "c1"), (503, "c2")]
    assert farm.idle()


def test_the_next_worker_gets_what_may_be_tried_again(farm: ServiceFarm) -> None:
    first, caller = farm.worker("a"), farm.caller()
    second = farm.worker("a")
    caller.asked("a", b"1", correlation_id="c1", retry=True)
    caller.asked("a", b"2", correlation_id="c2", retry=True)
    assert (requests(first), requests(second)) == ([b"1"], [b"2"])
    first.drop()
    farm.mtl.wait(2)
    [request] = got(second)
    assert (request.body, request.says["redelivered"], request.says["delivery-count"]) == (b"1", True, 2)
    reply(second, request, b"done")
    [answer] = caller.replies()
    assert (answer.body, answer.says["correlation-id"]) == (b"done", "c1")
    second.say(*wire.confirm(2, multiple=True))
    assert farm.idle()


def test_what_may_be_tried_again_waits_for_another_worker_if_it_may_wait(farm: ServiceFarm) -> None:
    worker, caller = farm.worker("a"), farm.caller()
    caller.asked("a", b"1", correlation_id="c1", retry=True, ttl=5_000)
    caller.asked("a", b"2", correlation_id="c2", retry=True, ttl=1_000)
    caller.asked("a", b"3", correlation_id="c3", retry=True)
    worker.drop()
    farm.mtl.wait(2)
    assert sorted(caller.errors()) == [(503, "c3"), (504, "c2")]
    other, _ = farm.peer(read="service/a")
    [request] = summon(other, "service/a")
    assert (request.body, request.says["delivery-count"]) == (b"1", 2)


def test_what_was_given_back_is_not_given_to_the_same_worker_again(farm: ServiceFarm) -> None:
    one, caller = farm.worker("a"), farm.caller()
    caller.asked("a", b"1", correlation_id="c1", retry=True, ttl=5_000)
    caller.asked("a", b"2", correlation_id="c2", retry=True)
    assert requests(one) == [b"1", b"2"]
    one.say(*wire.reject(2, multiple=True, recycle=True))
    assert caller.errors() == [(503, "c2")]
    farm.mtl.wait(1)
    assert contents(one) == []
    caller.asked("a", b"3")
    assert requests(one) == [b"3"]
    other, _ = farm.peer(read="service/a")
    assert [each.body for each in summon(other, "service/a")] == [b"1"]


def test_what_came_back_goes_before_what_waits(farm: ServiceFarm) -> None:
    one, caller = farm.worker("a", window=1), farm.caller()
    for number in range(3):
        caller.asked("a", b"%d" % number, retry=True, ttl=60_000)
    assert requests(one) == [b"0"]
    one.say(*wire.reject(1, recycle=True))
    assert requests(one) == [b"1"]
    other, _ = farm.peer(read="service/a", window=1)
    assert [each.body for each in summon(other, "service/a")] == [b"0"]
    other.say(*wire.confirm(1))
    assert requests(other) == [b"2"]


def test_a_worker_is_passed_by_what_it_had_for_what_is_behind(
    bounded: Callable[..., ServiceFarm],
) -> None:
    farm = bounded(look_ahead=3)
    one, caller = farm.worker("a", window=10), farm.caller()
    for number in range(3):
        caller.asked("a", b"%d" % number, retry=True, ttl=60_000)
    one.say(*wire.reject(3, multiple=True, recycle=True))
    assert requests(one) == [b"0", b"1", b"2"]
    assert farm.count("waiting") == 3
    other = farm.worker("b")
    caller.asked("a", b"3", ttl=60_000)
    assert requests(one) == [b"3"]
    assert got(other) == []


def test_a_request_is_tried_a_bounded_number_of_times(bounded: Callable[..., ServiceFarm]) -> None:
    farm = bounded(tries=3)
    caller = farm.caller()
    caller.asked("a", b"poison", retry=True, ttl=60_000)
    for number in range(1, 4):
        worker, _ = farm.peer(read="service/a")
        [request] = summon(worker, "service/a")
        assert request.says["delivery-count"] == number
        worker.say(*wire.reject(1, recycle=True))
    assert caller.errors() == [(503, "")]
    assert farm.idle()


@pytest.mark.parametrize("retry", [True, False])
def test_a_request_that_is_rejected_for_good_is_not_tried_again(farm: ServiceFarm, retry: bool) -> None:
    workers, caller = [farm.worker("a") for _ in range(2)], farm.caller()
    caller.asked("a", b"1", correlation_id="c", retry=retry)
    workers[0].say(*wire.reject(1))
    assert caller.errors() == [(500, "c")]
    assert requests(workers[1]) == []
    assert farm.idle()


@pytest.mark.parametrize("end", ["drop", "give back", "refuse"])
def test_a_caller_with_a_reply_gets_no_error_and_no_second_one(farm: ServiceFarm, end: str) -> None:
    worker, other, caller = farm.worker("a"), farm.worker("a"), farm.caller()
    caller.asked("a", b"1", correlation_id="c", retry=True)
    reply(worker, got(worker)[0], b"done")
    assert len(caller.replies()) == 1
    assert farm.count("kept-bytes") == 0
    if end == "drop":
        worker.drop()
    else:
        worker.say(*wire.reject(1, recycle=end == "give back"))
    farm.mtl.wait(2)
    assert caller.errors() == []
    assert requests(other) == []
    assert farm.idle()


def test_replies_are_matched_by_their_correlation_id(farm: ServiceFarm) -> None:
    worker, caller = farm.worker("a"), farm.caller()
    for name in ("c1", "c2", ""):
        caller.asked("a", correlation_id=name)
    _, second, third = got(worker)
    reply(worker, second, sequence=1)
    reply(worker, third, sequence=2)
    caller.replies()
    worker.drop()
    farm.mtl.wait(2)
    assert caller.errors() == [(503, "c1")]


def test_replies_to_the_same_correlation_id_are_for_one_request_after_the_other(farm: ServiceFarm) -> None:
    worker, caller = farm.worker("a"), farm.caller()
    for _ in range(3):
        caller.asked("a", correlation_id="same")
    for request in got(worker)[:2]:
        reply(worker, request, sequence=request.sequence)
    assert len(caller.replies()) == 2
    worker.drop()
    farm.mtl.wait(2)
    assert caller.errors() == [(503, "same")]


def test_a_confirm_without_a_reply_ends_a_request_too(farm: ServiceFarm) -> None:
    worker, caller = farm.worker("a"), farm.caller()
    caller.asked("a", correlation_id="c", retry=True)
    [request] = got(worker)
    worker.say(*wire.confirm(1))
    assert farm.idle()
    worker.say(*wire.reject(1))
    reply(worker, request, b"late")
    assert [each.body for each in caller.replies()] == [b"late"]


def test_after_a_dismiss_a_worker_gets_nothing_new_and_finishes_what_it_has(farm: ServiceFarm) -> None:
    worker, caller = farm.worker("a", "b"), farm.caller()
    caller.asked("a", b"1", correlation_id="c1")
    caller.asked("a", b"2", correlation_id="c2")
    first, _ = got(worker)
    dismiss(worker, "service/a")
    assert caller.ask("a") == rejected(3, recycle=True)
    caller.asked("b", b"4")
    assert requests(worker) == [b"4"]
    reply(worker, first, b"done")
    assert worker.take() == confirmed(1)
    worker.say(*wire.confirm(1))
    worker.say(*wire.reject(2, recycle=True))
    answer, error = caller.replies()
    assert (answer.body, error.says["code"]) == (b"done", 503)
    assert farm.core.services("a") == []
    assert summon(worker, "service/a") == []
    caller.asked("a", b"5")
    assert requests(worker) == [b"5"]


def test_confirms_that_cover_replies_cover_requests_before_them(farm: ServiceFarm) -> None:
    both, address = farm.peer(read="service/a reply")
    summon(both, "service/a")
    summon(both, "reply")
    caller = farm.caller()
    caller.asked("a", b"1")
    put(farm.worker("b"), 1, "reply", b"for me", **{"reply-to": address})
    assert [each.resource for each in got(both)] == ["service/a", "reply"]
    both.say(*wire.confirm(2))
    assert not farm.idle()
    both.say(*wire.confirm(2, multiple=True))
    assert farm.idle()


# callers that are gone


def test_replies_to_who_is_gone_are_dropped_and_counted(farm: ServiceFarm) -> None:
    worker, caller = farm.worker("a"), farm.caller()
    caller.asked("a", b"1")
    [request] = got(worker)
    caller.peer.drop()
    farm.mtl.wait(2)
    worker.take()
    reply(worker, request)
    assert worker.take() == rejected(1)
    assert farm.count("unknown-target") == 1
    worker.say(*wire.reject(1, recycle=True))
    assert farm.count("error-503") == 1
    assert farm.idle()
    unconfirmed = farm.mtl.writer(profile=farm.profile, confirm=ConfirmMode.NONE)
    reply(unconfirmed, request)
    assert unconfirmed.take() == []


def test_a_request_of_who_is_gone_is_done_for_all_that(farm: ServiceFarm) -> None:
    caller = farm.caller()
    caller.asked("a", b"1", ttl=60_000)
    caller.peer.drop()
    farm.mtl.wait(2)
    worker, _ = farm.peer(read="service/a")
    assert [each.body for each in summon(worker, "service/a")] == [b"1"]


def test_replies_before_the_summon_and_after_the_dismiss_go_nowhere(farm: ServiceFarm) -> None:
    worker, (peer, address) = farm.worker("a"), farm.peer(read="reply")
    put(worker, 1, "reply", b"early", **{"reply-to": address})
    assert worker.take() == rejected(1)
    assert summon(peer, "reply") == []
    put(worker, 2, "reply", b"right", **{"reply-to": address})
    assert [each.body for each in got(peer)] == [b"right"]
    dismiss(peer, "reply")
    put(worker, 3, "reply", b"late", **{"reply-to": address})
    assert worker.take() == [*confirmed(2), *rejected(3)]
    assert got(peer) == []


def test_replies_that_find_no_room_wait_in_their_order(farm: ServiceFarm) -> None:
    worker, caller = farm.worker("a"), farm.caller()
    caller.peer.stop_reading()
    for number in range(5):
        put(worker, number, "reply", b"%d" % number, **{"reply-to": caller.address})
    assert worker.take() == confirmed(0, 1, 2, 3, 4)
    assert farm.count("kept-bytes") > 0
    caller.peer.read_on()  # and nobody has noticed yet
    put(worker, 5, "reply", b"5", **{"reply-to": caller.address})
    farm.mtl.wait(0.3)
    assert [each.body for each in contents(caller.peer)] == [b"0", b"1", b"2", b"3", b"4", b"5"]
    assert farm.idle()


@pytest.mark.parametrize("how", ["dismiss", "drop"])
def test_replies_that_wait_are_lost_with_their_reader(farm: ServiceFarm, how: str) -> None:
    worker, caller = farm.worker("a"), farm.caller()
    caller.peer.stop_reading()
    for number in range(5):
        put(worker, number, "reply", b"x", **{"reply-to": caller.address})
    if how == "drop":
        caller.peer.drop()
    else:
        caller.peer.say(*wire.dismiss(9, "reply"))
        caller.peer.read_on()
    farm.mtl.wait(2)
    if how == "dismiss":
        assert contents(caller.peer) == []
    assert farm.count("lost") == 5
    assert farm.idle()


def test_replies_that_wait_are_bounded(bounded: Callable[..., ServiceFarm]) -> None:
    farm = bounded(backlog=2)
    worker, caller = farm.worker("a"), farm.caller()
    unconfirmed = farm.mtl.writer(profile=farm.profile, confirm=ConfirmMode.NONE)
    caller.peer.stop_reading()
    for number in range(3):
        put(worker, number, "reply", b"%d" % number, **{"reply-to": caller.address})
    put(unconfirmed, 1, "reply", b"x", **{"reply-to": caller.address})
    assert worker.take() == [*confirmed(0, 1), *rejected(2, recycle=True)]
    assert unconfirmed.take() == []


def test_the_bytes_of_replies_that_wait_are_bounded(bounded: Callable[..., ServiceFarm]) -> None:
    farm = bounded(kept=2 * (OVERHEAD + 10_000) + 1_000)
    worker, caller = farm.worker("a"), farm.caller()
    caller.peer.stop_reading()
    for number in range(3):
        put(worker, number, "reply", b"x" * 10_000, **{"reply-to": caller.address})
    assert worker.take() == [*confirmed(0, 1), *rejected(2, recycle=True)]


def test_what_waits_of_a_stranger_is_bounded_by_the_limit_of_its_address(farm: ServiceFarm) -> None:
    memory = farm.mtl.memory
    memory.limits = MemoryLimits(address=2 * 15_000)
    stranger, ann = farm.caller(), farm.caller(farm.mtl.principal("ann"))
    stranger.asked("a", b"x" * 10_000, ttl=1_000)
    assert stranger.ask("a", b"x" * 10_000, ttl=1_000) == rejected(2, recycle=True)
    for _ in range(2):
        ann.asked("a", b"x" * 10_000, ttl=1_000)
    assert 10_000 < memory.held <= 15_000
    farm.mtl.wait(2)
    assert memory.held == 0
    stranger.replies()
    worker = farm.worker("a", principal=farm.mtl.principal("ann"))
    stranger.asked("a", b"x" * 10_000)
    assert 0 < memory.held < 10_000, "no body, which will not be sent again"
    stranger.peer.stop_reading()
    for number in range(2):
        put(worker, number, "reply", b"x" * 10_000, **{"reply-to": stranger.address})
    assert worker.take()[-2:] == [*confirmed(0), *rejected(1, recycle=True)]
    worker.say(*wire.confirm(1))
    stranger.peer.read_on()
    assert memory.held == 0
    assert farm.idle()


@pytest.mark.parametrize("says", [{}, {"reply-to": 7}, {"reply-to": "service/a"}])
def test_a_reply_that_says_not_to_whom_is_refused(farm: ServiceFarm, says: dict[str, Any]) -> None:
    worker, unconfirmed = farm.worker("a"), farm.mtl.writer(profile=farm.profile, confirm=ConfirmMode.NONE)
    for each in (worker, unconfirmed):
        put(each, 1, "reply", b"x", **says)
    assert (worker.take(), unconfirmed.take()) == (rejected(1), refused(1))


# the registry


def test_a_worker_is_a_provider_for_as_long_as_it_works(farm: ServiceFarm) -> None:
    client, watching = farm.elko.client(), farm.mtl.reader(profile=farm.mtl.registry)
    summon(watching, "services")
    worker = farm.worker("sum", principal=farm.mtl.principal("will"))
    [answer] = client.find("sum", protocol="mtl")
    [up] = got(watching)
    one = up.says["provider"]
    described = {"type": "servicedesc", "service": "sum", "hostport": ADDRESS, "protocol": "mtl", "label": "will"}
    assert up.json == {**described, "provider": one}
    assert answer == found(up.json)
    provider = farm.core.provider(one)
    assert provider is not None
    assert (provider.label, provider.wire, provider.address) == ("will", "mtl", ADDRESS)
    worker.drop()
    farm.mtl.wait(2)
    assert [each.event for each in got(watching)] == ["down"]
    assert farm.core.provider(one) is None


def test_a_worker_of_many_services_is_one_provider(farm: ServiceFarm) -> None:
    worker = farm.worker("a", "b")
    [provider] = farm.core.providers()
    assert [each.name for each in provider.services] == ["a", "b"]
    dismiss(worker, "service/a")
    [provider] = farm.core.providers()
    assert [each.name for each in provider.services] == ["b"]


def test_a_wait_of_elko_ends_with_a_worker_of_mtl(farm: ServiceFarm) -> None:
    client = farm.elko.client()
    assert client.find("sum", wait=5, protocol="mtl") == []
    farm.worker("sum")
    assert [each["hostport"] for each in client.take()[0]["desc"]] == [ADDRESS]


def test_the_load_of_a_worker_is_its_providers(farm: ServiceFarm) -> None:
    watching = farm.mtl.reader(profile=farm.mtl.registry)
    worker = farm.worker("sum")
    summon(watching, "load/sum")
    put(worker, 1, "load", {"load": 0.7})
    put(worker, 2, "load", {"load": -1})
    put(worker, 3, "load", {"load": "high"})
    assert worker.take() == [*confirmed(1), *rejected(2), *rejected(3)]
    assert [each.json["load"] for each in got(watching)] == [0.7]
    idle = farm.caller()
    put(idle.peer, 1, "load", {"load": 0.7})
    assert idle.peer.take() == rejected(1)


def test_workers_of_other_hosts_are_not_in_the_registry(farm: ServiceFarm) -> None:
    worker = farm.worker("sum", principal=farm.mtl.principal(host=OTHER))
    assert farm.core.providers() == []
    put(worker, 1, "load", {"load": 0.7})
    assert worker.take() == confirmed(1)
    assert farm.core.providers() == []
    dismiss(worker, "service/sum")


@pytest.mark.parametrize("bound", ["workers", "jobs"])
def test_the_number_of_workers_is_bounded(bounded: Callable[..., ServiceFarm], bound: str) -> None:
    farm = bounded(**{bound: 1})
    farm.worker("a")
    peer, _ = farm.peer(read="service/a")
    assert peer.ask(*wire.summon(5, "service/a")) == [wire.Response(5, b"200")]
    assert peer.ask(*wire.PING) == [wire.Response(0, b"403")]
    assert len(farm.core.services("a")) == 1
    assert farm.mtl.ends() == {"full": 2}  # both of its flows


def test_a_worker_that_the_registry_has_no_room_for_is_ended(farm: ServiceFarm) -> None:
    some = farm.mtl.user("ann", Permits(offers=Rights(services=1)))
    peer, _ = farm.peer(principal=some)
    assert summon(peer, "service/a") == []
    peer.say(*wire.summon(5, "service/b"))
    assert peer.client is None
    assert farm.core.services() == []
    assert farm.profile.jobs == 0


# leases


@pytest.mark.parametrize("resource", ["", "service", "service/", "Reply", "reply/", "services", "other"])
@pytest.mark.parametrize("side", Side)
def test_there_are_no_other_resources(farm: ServiceFarm, side: Side, resource: str) -> None:
    if (side, resource) == (Side.WRITER, "reply/"):
        return
    with pytest.raises(Refusal) as caught:
        farm.profile.check(farm.mtl.principal(), side, resource)
    assert caught.value.reason is Reason.PARAMETER


def test_nobody_reads_loads_here(farm: ServiceFarm) -> None:
    farm.profile.check(farm.mtl.principal(), Side.WRITER, "load")
    with pytest.raises(Refusal) as caught:
        farm.profile.check(farm.mtl.principal(), Side.READER, "load")
    assert caught.value.reason is Reason.PARAMETER


def test_users_work_for_and_call_what_they_may(farm: ServiceFarm) -> None:
    rights = Permits(("service:service/*",), ("service:service/a", "service:reply"), Rights(("a*",)))
    some = farm.mtl.user("ann", rights)
    check = farm.profile.check
    check(some, Side.READER, "service/a")
    check(some, Side.WRITER, "service/a")
    check(some, Side.WRITER, "reply")
    check(some, Side.WRITER, "reply/x")
    for side, resource in (
        (Side.READER, "service/b"),
        (Side.READER, "reply"),
        (Side.WRITER, "service/b"),
        (Side.WRITER, "load"),
    ):
        with pytest.raises(Refusal) as caught:
            check(some, side, resource)
        assert caught.value.reason is Reason.FORBIDDEN
    with pytest.raises(Refusal):
        check(farm.mtl.principal(), Side.READER, "service/elkobroker.x")


def test_a_worker_without_the_right_to_a_name_cannot_summon_it(farm: ServiceFarm) -> None:
    some = farm.mtl.user("ann", Permits(offers=Rights(("a*",))))
    peer, _ = farm.peer(principal=some)
    assert peer.ask(*wire.summon(5, "service/b")) == [wire.Response(5, b"400")]
    assert summon(peer, "service/a") == []


def test_answers_to_nothing_are_ignored(farm: ServiceFarm) -> None:
    peer, address = farm.peer(read="reply")
    summon(peer, "reply")
    put(farm.worker("b"), 1, "reply", b"x", **{"reply-to": address})
    assert len(got(peer)) == 1
    worker = farm.worker("a")
    for each in (peer, worker):
        for sequence in (0, 1, 2**64 - 1):
            each.say(*wire.confirm(sequence))
            each.say(*wire.reject(sequence, multiple=True, recycle=True))
        assert each.take() == []
    assert farm.idle()


def test_after_a_stop_no_time_is_up(farm: ServiceFarm) -> None:
    caller = farm.caller()
    caller.asked("a", ttl=100)
    farm.profile.close()
    farm.mtl.wait(1)
    assert caller.errors() == []


# all together

STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("ask"), st.sampled_from("ab"), st.sampled_from([0, 300, 2_000]), st.booleans()),
        st.tuples(st.just("join"), st.sampled_from(["a", "b", "ab"]), st.integers(1, 3), st.none()),
        st.tuples(
            st.sampled_from(["done", "silent", "give back", "refuse", "leave", "deaf", "drop"]),
            st.integers(0, 3),
            st.none(),
            st.none(),
        ),
        st.tuples(st.just("wait"), st.sampled_from([0.1, 0.5]), st.none(), st.none()),
    ),
    max_size=40,
)


@given(STEPS)
@settings(max_examples=examples(60), deadline=None)
def test_every_request_that_was_confirmed_has_one_outcome_and_no_other(steps: list[tuple[Any, ...]]) -> None:
    with nothing_fails():
        _Play().run(steps)


class _Play:
    """Callers and workers who do as they are told, and remember what they heard."""

    def __init__(self) -> None:
        # Nobody here answers Pings.
        self.farm = ServiceFarm(Mtl(heartbeat=10_000))
        self.caller = self.farm.caller()
        self.workers: list[tuple[MtlPeer, int, dict[int, Got]]] = []
        """With their windows, and what they have."""
        self.given: dict[str, list[MtlPeer]] = {}
        self.retry: dict[str, bool] = {}
        self.outcomes: dict[str, list[str]] = {}
        """Of requests that were confirmed."""
        self.silent: set[str] = set()
        self.sequence = 0

    def run(self, steps: list[tuple[Any, ...]]) -> None:
        for step in steps:
            self.step(*step)
            self.hear()
        while self.workers:
            self.step("drop", 0, None, None)
            self.hear()
        self.step("wait", 4.0, None, None)
        self.hear()
        for name, outcomes in self.outcomes.items():
            assert len(outcomes) == (name not in self.silent), (name, outcomes)
        assert self.farm.idle()
        assert self.farm.core.services() == []

    def step(self, what: str, which: Any, number: Any, retry: Any) -> None:
        if what == "ask":
            self.sequence += 1
            name = str(self.sequence)
            self.retry[name] = retry
            said = {"reply-to": self.caller.address, "correlation-id": name, "ttl": number, "retry": retry}
            put(self.caller.peer, self.sequence, f"service/{which}", name.encode(), **said)
        elif what == "wait":
            self.farm.mtl.wait(which)
        elif what == "join":
            worker, _ = self.farm.peer(window=number)
            self.workers.append((worker, number, {}))
            for service in which:
                worker.say(*wire.summon(1, f"service/{service}"))
        elif which < len(self.workers):
            self.work(what, which)

    def work(self, what: str, which: int) -> None:
        worker, _, has = self.workers[which]
        if what == "drop":
            del self.workers[which]
            worker.drop()
            self.farm.mtl.wait(1.5)
        elif what == "leave":
            for service in "ab":
                worker.say(*wire.dismiss(1, f"service/{service}"))
        elif what == "deaf":
            if worker.line.room == 0:
                worker.read_on()
            else:
                worker.stop_reading()
        elif has:
            sequence = next(iter(has))
            request = has.pop(sequence)
            if what == "done":
                put(
                    worker, sequence, "reply", b"", **{key: request.says[key] for key in ("reply-to", "correlation-id")}
                )
            if what in ("done", "silent"):
                if what == "silent":
                    self.silent.add(request.body.decode())
                worker.say(*wire.confirm(sequence))
            else:
                worker.say(*wire.reject(sequence, recycle=what == "give back"))

    def hear(self) -> None:
        """Everybody reads, but who is deaf."""
        for command in self.caller.peer.take():
            if isinstance(command, wire.Confirm):
                self.outcomes[str(command.sequence)] = []
            elif isinstance(command, wire.Content):
                told = as_got(command)
                self.outcomes[told.says["correlation-id"]].append(str(told.says.get("code", "reply")))
            else:
                assert isinstance(command, wire.Reject | wire.Ping), command
        for worker, window, has in self.workers:
            for request in contents(worker):
                name = request.body.decode()
                before = self.given.setdefault(name, [])
                assert worker not in before
                assert self.retry[name] or not before
                before.append(worker)
                assert (request.says["delivery-count"], request.says["redelivered"]) == (len(before), len(before) > 1)
                has[request.sequence] = request
            assert len(has) <= window


def test_pings_of_a_worker_are_heartbeats_of_its_provider(farm: ServiceFarm) -> None:
    beats: list[int] = []
    farm.core.watch_beats(lambda provider, sent: beats.append(provider))
    worker = farm.worker("sum")
    worker.say(*wire.PING)
    farm.mtl.writer("load", profile=farm.mtl.service).say(*wire.PING)
    [service] = farm.core.services("sum")
    assert beats == [service.provider]


# other brokers


class OfOthers:
    """A registry in which all providers are held by another broker."""

    def __init__(self, registry: Any, broker: str) -> None:
        self._registry = registry
        self._broker = broker

    def __getattr__(self, name: str) -> Any:
        return getattr(self._registry, name)

    def provider(self, provider: int) -> Provider | None:
        found = self._registry.provider(provider)
        return None if found is None else attrs.evolve(found, broker=self._broker)


@pytest.mark.parametrize(
    ("broker", "where"),
    [("broker-b", {"owner": "broker-b", "endpoint": "tcp://192.0.2.2:5975"}), ("broker-c", {"owner": "broker-c"})],
)
def test_a_caller_is_sent_to_the_broker_of_the_workers(broker: str, where: dict[str, str]) -> None:
    there, here = ServiceFarm(), ServiceFarm()
    here.mtl = ProfilesFarm(registry=OfOthers(there.core, broker))  # type: ignore[arg-type]
    here.profile = here.mtl.service
    there.worker("bank")
    caller = here.caller()
    for ttl in ({}, {"ttl": 1_000}):
        caller.ask("bank", b"", **{"correlation-id": "1", **ttl})
    told, *_ = [
        as_got(each) for each in caller.ask("bank", **{"correlation-id": "2"}) if isinstance(each, wire.Content)
    ]
    assert told.says == {
        "event": "error",
        "code": 421,
        "reason": f"the workers of this service are at the broker {broker}",
        "service": "bank",
        "correlation-id": "2",
        **where,
    }
    assert here.count("elsewhere") == here.count("error-421") == 3
    assert here.idle()


def test_a_caller_with_confirmation_gets_a_reject_with_recycle() -> None:
    there, here = ServiceFarm(), ServiceFarm()
    here.mtl = ProfilesFarm(registry=OfOthers(there.core, "broker-b"))  # type: ignore[arg-type]
    here.profile = here.mtl.service
    there.worker("bank")
    peer = here.mtl.writer("service/bank", profile=here.profile, confirm=ConfirmMode.FULL)
    put(peer, 1, "service/bank", b"")
    assert peer.take() == rejected(1, recycle=True)


def test_own_workers_are_preferred_to_those_of_other_brokers() -> None:
    here = ServiceFarm()
    here.mtl = ProfilesFarm(registry=OfOthers(here.core, "broker-b"))  # type: ignore[arg-type]
    here.profile = here.mtl.service
    here.worker("bank")
    here.caller().asked("bank")
