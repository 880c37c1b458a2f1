"""The schedule of checks: intervals, timeouts, concurrency, stalls, and the registry that follows from them."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from typing import Any

import attrs
import pytest
from twisted.internet.task import Clock

from broker.app.health_checks import settings_of
from broker.config.checks_settings import Checks
from broker.core.checks.check_rules import GIVE_UP, CheckKind, CheckRule, CheckSettings, Outcome, Question
from broker.core.checks.check_schedule import Schedule
from broker.core.checks.registered_checks import STEP, RegisteredChecks
from broker.core.cluster.cluster_interfaces import Registration, key_of
from broker.core.cluster.cluster_registry import ClusterRegistry
from broker.core.liveness import Leases
from broker.core.model import NOBODY, CheckState, Policy, Provider, Rights, Service
from broker.core.registered_services import Restored
from broker.core.registry import Registry
from broker.core.turns import SHARE, Turns
from tests.ticking_clock import TickingClock

PING = CheckRule(("*",), CheckKind.PING, interval=10.0, timeout=2.0, up=1, down=2, policy=Policy.HIDE)
TCP = attrs.evolve(PING, kind=CheckKind.TCP)


class RecordingAsker:
    """Asker that records its questions. The test answers them."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.asked: list[tuple[float, Question, Callable[[Outcome], None]]] = []
        self.vanished = False
        self.ended = 0
        self.possible = True
        self.answer: Callable[[Question], Outcome | None] = lambda question: None

    def ask(self, question: Question, answered: Callable[[Outcome], None]) -> Callable[[], None] | None:
        if not self.possible:
            return None
        self.asked.append((self.clock.seconds(), question, answered))
        outcome = self.answer(question)
        if outcome is not None:
            self.clock.callLater(0.01, answered, outcome)

        def end() -> None:
            self.ended += 1

        return end

    def unreachable(self, question: Question) -> bool:
        return self.vanished

    def pings(self, wire: str) -> bool:
        return wire == "elko"

    @property
    def numbers(self) -> list[int]:
        return [question.number for _, question, _ in self.asked]


class Rig:
    begin_after = 0.0
    """Seconds from an offer to the supervision."""

    make: Callable[..., Registry] = Registry

    def __init__(self, *rules: CheckRule, **settings: Any) -> None:
        self.clock = TickingClock()
        self.leases = Leases(self.clock)
        self.asker = RecordingAsker(self.clock)
        self.registry = self.make(self.clock, count(1).__next__, Restored((), 0.0, self.clock, lambda ids: None))
        self.settings = CheckSettings(rules, **settings)
        self.schedule = Schedule(self.clock, self.leases, self.asker, lambda: 0.5, self.settings)
        self.checks = RegisteredChecks(
            self.registry, self.schedule, self.clock, Turns(self.clock), self.leases, self.begin_after
        )

    def offer(self, *names: str, wire: str = "elko", address: str = "192.0.2.1") -> list[Service]:
        provider = self.registry.join("p", wire, address)
        services = [Service(name, f"{name}:1", provider) for name in names]
        self.registry.offer(services, Rights())
        self.clock.advance(0)  # the supervision begins
        return services

    def run(self, seconds: float) -> None:
        self.clock.pump([0.01] * round(seconds / 0.01))

    def state(self, service: Service) -> str | None:
        check = self.registry.check_of(service)
        return None if check is None else check.state.value

    def passing(self) -> None:
        self.asker.answer = lambda question: Outcome(True, "answered")

    def silent(self) -> None:
        self.asker.answer = lambda question: None


def test_a_ping_checks_all_services_of_a_provider_at_once():
    rig = Rig(PING)
    services = rig.offer("inn", "bank")
    assert [rig.state(service) for service in services] == ["untested", "untested"]
    rig.passing()
    rig.run(9)
    assert rig.asker.asked == []
    rig.run(2)
    assert rig.asker.numbers == [services[0].provider]
    assert [rig.state(service) for service in services] == ["passing", "passing"]
    rig.silent()
    rig.run(20 + 2.5)
    assert [rig.state(service) for service in services] == ["failing", "failing"]
    check = rig.registry.check_of(services[0])
    assert check is not None
    assert check.reason == "no answer to a ping within 2 s"
    rig.passing()
    rig.run(11)
    assert rig.state(services[0]) == "passing"


def test_a_peer_that_answers_no_ping_is_not_failing_and_is_left_alone():
    rig = Rig(PING)
    (service,) = rig.offer("inn")
    rig.run(200)
    assert rig.state(service) == "untested"
    assert len(rig.asker.asked) == GIVE_UP


def test_a_server_that_hangs_is_doubtful_first_and_failing_within_45_seconds_by_default():
    rig = Rig(*settings_of(Checks()).rules)
    rig.schedule._random = lambda: 1.0  # the longest interval
    (service,) = rig.offer("inn")
    rig.passing()
    rig.run(26)
    assert rig.state(service) == "passing"
    rig.silent()  # just after an answer
    seen: dict[str | None, int] = {}
    for second in range(1, 60):
        rig.run(1)
        seen.setdefault(rig.state(service), second)
    assert list(seen) == ["passing", "doubtful", "failing"]
    assert seen["doubtful"] <= 31
    assert seen["failing"] <= 45


def test_a_doubt_ends_with_the_next_answer_and_puts_the_service_last_meanwhile():
    rig = Rig(PING)
    first, second = rig.offer("inn")[0], Service("inn", "h:2", rig.registry.join("q", "mtl", ""))
    rig.registry.offer([second], Rights())
    rig.passing()
    rig.run(11)
    rig.silent()
    rig.run(13)
    assert rig.state(first) == "doubtful"
    assert rig.registry.find("inn", "tcp") == (second, first)
    rig.asker.asked[-1][2](Outcome(True, "answered"))
    assert rig.state(first) == "passing"
    assert rig.registry.find("inn", "tcp") == (first, second)


def test_a_missed_load_report_brings_the_next_ping_forward():
    rig = Rig(PING)
    (service,) = rig.offer("inn")
    rig.passing()
    rig.run(11)
    for _ in range(4):
        rig.run(1.5)
        rig.registry.load(service.provider, 0.5)
    asked = len(rig.asker.asked)
    rig.run(1.8)
    assert len(rig.asker.asked) == asked
    rig.run(1)
    assert len(rig.asker.asked) == asked + 1
    rig.run(8)  # a server that has stopped to report is pinged as any other
    assert len(rig.asker.asked) == asked + 1


def test_a_peer_whose_host_acknowledges_no_ping_is_doubtful_though_it_never_answered_one():
    rig = Rig(PING)
    (service,) = rig.offer("inn")
    rig.asker.vanished = True
    rig.run(12.5)
    assert rig.state(service) == "doubtful"
    rig.run(5)
    assert rig.state(service) == "failing"
    check = rig.registry.check_of(service)
    assert check is not None
    assert check.reason == "its host did not acknowledge a ping within 2 s"
    rig.asker.vanished = False
    rig.run(12)  # reached again, and as little known of it as before
    assert rig.state(service) == "untested"


def test_an_answer_after_the_timeout_has_no_effect():
    rig = Rig(PING)
    (service,) = rig.offer("inn")
    rig.run(13)
    rig.asker.asked[0][2](Outcome(True, "answered"))
    assert rig.state(service) == "untested"
    rig.run(10)
    assert len(rig.asker.asked) == 2


def test_a_stall_of_the_broker_lets_no_check_fail():
    rig = Rig(attrs.evolve(PING, down=1))
    (service,) = rig.offer("inn")
    rig.passing()
    rig.run(12)
    rig.silent()
    rig.run(9)
    assert len(rig.asker.asked) == 2
    # The answer has arrived, but the broker stands still for a minute, and its timers run before it reads.
    rig.clock.advance(60)
    assert rig.state(service) == "passing"
    rig.asker.asked[1][2](Outcome(True, "answered"))
    rig.run(3)
    assert rig.state(service) == "passing"


def test_connections_are_bounded_and_queue_in_order():
    rig = Rig(TCP, concurrency=2)
    services = [rig.offer(f"inn{n}")[0] for n in range(5)]
    rig.run(6)
    assert [question.hostport for _, question, _ in rig.asker.asked] == ["inn0:1", "inn1:1"]
    assert rig.schedule.counts()["checks.waiting"] == 3
    rig.asker.asked[0][2](Outcome(True, "connected"))
    assert [question.hostport for _, question, _ in rig.asker.asked] == ["inn0:1", "inn1:1", "inn2:1"]
    rig.registry.leave(services[3].provider)
    rig.run(2)
    assert [question.hostport for _, question, _ in rig.asker.asked[3:]] == ["inn4:1"]
    assert rig.state(services[0]) == "passing"
    rig.run(2.5)
    assert rig.schedule.counts()["checks.running"] == 0
    assert rig.schedule.counts()["checks.waiting"] == 0


def test_pings_do_not_queue():
    rig = Rig(PING, concurrency=1)
    for n in range(3):
        rig.offer(f"inn{n}")
    rig.run(10.5)
    assert len(rig.asker.asked) == 3


def test_services_at_one_place_are_checked_once():
    rig = Rig(TCP)
    first, second = rig.offer("inn"), rig.offer("inn")
    rig.passing()
    rig.run(6)
    assert len(rig.asker.asked) == 1
    assert rig.state(first[0]) == rig.state(second[0]) == "passing"
    third = rig.offer("inn")
    assert rig.state(third[0]) == "passing"
    # A peer of this machine is another question: it may name places that only this machine reaches.
    local = rig.offer("inn", address="127.0.0.1")
    assert rig.state(local[0]) == "untested"


def test_the_first_matching_rule_counts_and_pings_only_on_wires_with_one():
    rules = (attrs.evolve(PING, services=("inn*",)), attrs.evolve(TCP, services=("inn*",), wires=("dbp",)))
    rig = Rig(*rules)
    elko, dbp, mtl = rig.offer("inn1"), rig.offer("inn2", wire="dbp"), rig.offer("inn3", wire="mtl")
    other = rig.offer("bank")
    kinds = {info.subjects[0]: info.question.rule.kind.value for info in rig.schedule.targets()}
    assert kinds == {"inn1": "ping", "inn2": "tcp"}
    assert rig.state(elko[0]) == rig.state(dbp[0]) == "untested"
    assert rig.state(mtl[0]) is None
    assert rig.state(other[0]) is None


def test_a_new_configuration_keeps_the_state_of_what_stays():
    rig = Rig(PING)
    (service,) = rig.offer("inn")
    rig.passing()
    rig.run(11)
    rig.checks.use(CheckSettings((PING,), concurrency=7))
    assert rig.state(service) == "passing"
    rig.checks.use(CheckSettings((attrs.evolve(PING, interval=20.0),)))
    assert rig.state(service) == "untested"
    rig.checks.use(CheckSettings(()))
    assert rig.state(service) is None
    assert rig.schedule.counts()["checks.targets"] == 0
    asked = len(rig.asker.asked)
    rig.run(60)
    assert len(rig.asker.asked) == asked
    assert rig.clock.getDelayedCalls() == []


class LaterRig(Rig):
    """A rig in which supervision begins a second after an offer."""

    begin_after = 1.0


def test_supervision_begins_a_while_after_the_offer():
    rig = LaterRig(PING)
    [service] = rig.offer("inn")
    assert (rig.state(service), list(rig.schedule.targets())) == (None, [])
    rig.run(1.0)
    assert (rig.state(service), len(list(rig.schedule.targets()))) == ("untested", 1)


def test_a_service_that_is_withdrawn_before_that_is_never_supervised():
    rig = LaterRig(PING)
    gone, stays = rig.offer("inn"), rig.offer("bank", "shop")
    rig.registry.leave(gone[0].provider)
    rig.registry.withdraw(stays[0].provider, ["shop"])
    rig.run(1.0)
    assert [info.subjects for info in rig.schedule.targets()] == [("bank",)]


def test_a_service_that_is_amended_before_that_is_supervised_as_amended():
    rig = LaterRig(PING)
    [service] = rig.offer("inn")
    amended = attrs.evolve(service, info="{}")
    rig.registry.amend(amended)
    rig.run(1.0)
    [present] = rig.registry.services("inn")
    assert (present, rig.state(present)) == (amended, "untested")


def test_supervision_begins_of_more_services_than_one_turn_takes():
    rig = LaterRig(PING)
    services = [rig.offer(f"inn-{number}")[0] for number in range(100)]
    rig.clock.tick = SHARE / 5
    rig.clock.rightNow += 1.0
    rig.clock.turn()
    supervised = [service for service in services if rig.state(service) == "untested"]
    assert supervised == services[: len(supervised)]
    assert 0 < len(supervised) < len(services)
    rig.run(1.0)
    assert {rig.state(service) for service in services} == {"untested"}


@pytest.mark.parametrize("each", [STEP // 2, 20 * STEP])
def test_other_rules_apply_to_a_part_of_the_services_in_each_turn(each: int):
    rig = Rig()
    providers = 40 * STEP // each
    services = [service for _ in range(providers) for service in rig.offer(*(f"inn-{n}" for n in range(each)))]
    rig.clock.tick = SHARE / 5
    rig.checks.use(CheckSettings((PING,)))
    rig.clock.tick = 0.0
    supervised = [service for service in services if rig.state(service) == "untested"]
    assert supervised == services[: len(supervised)]
    assert min(each, STEP) <= len(supervised) <= 5 * STEP
    found = rig.registry.find("inn-0", "tcp")
    assert set(found) == {service for service in services if service.name == "inn-0"}
    left = services[-1].provider
    rig.registry.leave(left)
    rig.checks.use(CheckSettings())
    rig.checks.use(CheckSettings((PING,)))
    rig.clock.advance(0)
    assert {rig.state(service) for service in services if service.provider != left} == {"untested"}
    assert len(list(rig.schedule.targets())) == providers - 1


def test_services_that_move_up_before_their_turn_are_supervised():
    rig = LaterRig(PING)
    services = rig.offer(*(f"inn-{n}" for n in range(STEP + 10)))
    rig.clock.tick = SHARE
    before = []

    def withdraw() -> None:
        before.append(rig.state(services[-1]))
        rig.registry.withdraw(services[0].provider, [f"inn-{n}" for n in range(20)])

    rig.clock.callLater(rig.begin_after, withdraw)  # between the first part and the rest
    rig.clock.advance(rig.begin_after)
    assert before == [None]
    assert {rig.state(service) for service in services[20:]} == {"untested"}


def test_a_service_that_returns_to_its_place_among_those_that_had_their_turn_is_supervised():
    """As one does that another broker of the cluster had for a while."""

    class MemberRig(LaterRig):
        make = ClusterRegistry

    rig = MemberRig(PING)
    services = rig.offer(*(f"inn-{n}" for n in range(STEP + 10)))
    registry = rig.registry
    assert isinstance(registry, ClusterRegistry)
    key = key_of("elko", services[0], NOBODY)
    theirs = Provider(1_000, "p", "elko", "", 0.0, 0.0, (), broker="b")
    there = Registration(key, theirs, attrs.evolve(services[0], provider=1_000), 0)
    registry.mirror([there], superseded=[key])
    rig.clock.tick = SHARE
    before: list[str | None] = []

    def give_back() -> None:
        before.extend((rig.state(services[STEP]), rig.state(services[-1])))
        registry.mirror(gone=[(key, "left")])

    rig.clock.callLater(rig.begin_after, give_back)  # between the first part and the rest
    rig.clock.advance(rig.begin_after)
    assert before == ["untested", None]
    assert {rig.state(service) for service in services} == {"untested"}


def test_nothing_is_supervised_after_the_stop():
    rig = LaterRig(PING)
    rig.offer("inn")
    rig.checks.stop()
    rig.schedule.stop()
    assert rig.clock.getDelayedCalls() == []


def test_an_amended_service_stays_checked():
    rig = Rig(PING)
    (service,) = rig.offer("inn")
    rig.passing()
    rig.run(11)
    rig.registry.amend(attrs.evolve(service, info="{}"))
    present = rig.registry.services("inn", "tcp")[0]
    assert rig.state(present) == "passing"
    rig.silent()
    rig.run(25)
    assert rig.state(present) == "failing"
    rig.registry.leave(service.provider)
    assert rig.schedule.counts()["checks.targets"] == 0


def test_what_cannot_be_asked_is_tried_again_soon():
    rig = Rig(TCP)
    (service,) = rig.offer("inn")
    rig.asker.possible = False
    rig.run(6)
    rig.asker.possible = True
    rig.passing()
    rig.run(2)
    assert rig.state(service) == "passing"
    assert rig.schedule.counts()["check_results.impossible"] >= 1


def test_a_provider_that_leaves_ends_its_check():
    rig = Rig(TCP)
    (service,) = rig.offer("inn")
    rig.run(6)
    assert len(rig.asker.asked) == 1
    rig.registry.leave(service.provider)
    assert rig.asker.ended == 1
    assert rig.schedule.counts()["checks.running"] == 0
    rig.asker.asked[0][2](Outcome(True, "connected"))  # too late: nothing happens
    assert rig.clock.getDelayedCalls() == []


def test_a_stop_ends_everything():
    rig = Rig(TCP)
    rig.offer("inn")
    rig.offer("bank")
    rig.run(6)
    rig.schedule.stop()
    assert rig.asker.ended == 2
    assert rig.clock.getDelayedCalls() == []


def test_the_state_since_is_that_of_the_clock():
    rig = Rig(PING)
    (service,) = rig.offer("inn")
    rig.passing()
    rig.run(11)
    check = rig.registry.check_of(service)
    assert check is not None
    assert check.state is CheckState.PASSING
    assert 10.0 <= check.since <= 10.2
