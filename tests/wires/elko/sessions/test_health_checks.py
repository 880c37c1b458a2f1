"""Pings of the broker over Elko sessions, and the director's checks of Context Servers."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import attrs
import pytest
from twisted.internet.defer import maybeDeferred

from broker.core.checks.check_rules import CheckKind, CheckRule, CheckSettings, Outcome, Question
from broker.core.checks.check_schedule import Schedule
from broker.core.director.director_interfaces import DirectorSettings
from broker.core.director.farm_record import RecordedServer, encode
from broker.core.liveness import Leases
from broker.core.model import Policy
from broker.wires.elko.server_checks import ServerChecks
from broker.wires.elko.sessions.director_session import DirectorWiring
from tests.wires.elko.director_recording import DirectorFarm, opens, reserve
from tests.wires.recording import Client, ElkoFarm

RULE = CheckRule(("*",), CheckKind.PING, ("director",), interval=10.0, timeout=2.0, up=1, down=2, policy=Policy.HIDE)


def pinged(farm: ElkoFarm, client: Client, name: str = "broker") -> tuple[list[Any], dict[str, Any]]:
    """Ping a client. Returns the list that gets the answer, and the message that the client got."""
    answers: list[Any] = []
    session = next(iter(farm.wiring.roster.values()))
    session.check(answers.append)
    [ping] = client.take()
    return answers, ping


@pytest.mark.parametrize("name", ["broker", "client"])
def test_a_ping_is_in_the_name_of_the_object_that_the_peer_knows(name: str) -> None:
    farm = ElkoFarm()
    client = farm.client("inn", name)
    answers, ping = pinged(farm, client)
    assert ping == {"to": name, "op": "ping", "tag": "check-1"}
    assert list(ping) == ["to", "op", "tag"]
    client.say(name, "pong", tag="check-1")
    assert answers == [True]
    client.say(name, "pong", tag="check-1")
    assert answers == [True]


def test_only_the_answer_to_the_latest_ping_counts() -> None:
    farm = ElkoFarm()
    client = farm.client("inn")
    first, _ = pinged(farm, client)
    second, _ = pinged(farm, client)
    client.say("broker", "pong", tag="check-1")
    client.say("broker", "pong", tag="other")
    assert (first, second) == ([], [])
    client.say("broker", "pong")
    assert (first, second) == ([], [True])
    assert client.reasons == []


def test_recorded_servers_ask_for_the_same_form_of_pong_that_the_broker_takes() -> None:
    """The original answers a ping by the object and the tag of the ping: ``pong`` of either side has one form."""
    recorded = Path(__file__).parents[3] / "transcripts" / "elko" / "b01_auth_ping.jsonl"
    if not recorded.exists():
        pytest.skip("no recording")
    events = [json.loads(line) for line in recorded.read_text().splitlines()[1:]]
    pongs = [
        json.loads(block)
        for event in events
        if event.get("dir") == "<"
        for block in event["bytes"].split("\n\n")
        if '"pong"' in block
    ]
    assert pongs
    farm = ElkoFarm()
    for pong in pongs:
        client = farm.client()
        answers: list[Any] = []
        next(reversed(farm.wiring.roster.values())).check(answers.append)
        client.send(json.dumps({**pong, "tag": "check-1"}).encode() + b"\n\n")
        assert answers == [True]


class PingAsker:
    """Pings over the connections of a director."""

    def __init__(self) -> None:
        self.pinger: ServerChecks | None = None
        self.asked: list[Question] = []

    def ask(self, question: Question, answered: Callable[[Outcome], None]) -> Callable[[], None] | None:
        self.asked.append(question)
        if question.rule.kind is not CheckKind.PING:
            return lambda: None
        assert self.pinger is not None
        sent = self.pinger.ping(question.number, 2.0, lambda alive: answered(Outcome(alive, "a ping")))
        return (lambda: None) if sent else None

    def unreachable(self, question: Question) -> bool:
        return self.pinger is not None and self.pinger.unreachable(question.number)

    def pings(self, wire: str) -> bool:
        return True


class CheckedFarm(DirectorFarm):
    """A director that checks its servers by a rule."""

    def __init__(self, rule: CheckRule = RULE, panic: float = 0.5) -> None:
        super().__init__(DirectorSettings(panic=panic))
        self.asker = PingAsker()
        self.leases = Leases(self.clock)
        self.schedule = Schedule(self.clock, self.leases, self.asker, lambda: 0.5, CheckSettings((rule,)))
        self.checks = self.asker.pinger = ServerChecks(self.schedule, self.leases)
        self.wiring = DirectorWiring.of(self.director, self.control, self.clock, self.checks)

    def run(self, seconds: float, *answering: Client) -> None:
        """Let time pass, in which these servers answer their pings."""
        for _ in range(round(seconds / 0.05)):
            self.clock.advance(0.05)
            for server in answering:
                for message in server.take():
                    if message["op"] == "ping":
                        assert message["to"] == "provider"
                        server.say("provider", "pong", tag=message["tag"])

    def failing(self, policy: Policy = Policy.HIDE) -> tuple[Client, Client]:
        """Two servers, the first of which has stopped to answer."""
        one, two = self.server("one"), self.server("two")
        self.run(11, one, two)
        self.run(25, two)
        assert self.director.counts()["failing"] == (policy is not Policy.SHOW)
        return one, two


def hostport(answer: dict[str, Any]) -> str:
    return str(answer.get("hostport") or answer["deny"])


@pytest.mark.parametrize(
    ("policy", "expected"),
    [(Policy.SHOW, {"one:9000", "two:9000"}), (Policy.LAST, {"two:9000"}), (Policy.HIDE, {"two:9000"})],
)
def test_new_contexts_are_placed_on_servers_that_answer(policy: Policy, expected: set[str]) -> None:
    farm = CheckedFarm(attrs.evolve(RULE, policy=policy))
    farm.failing(policy)
    user = farm.user()
    assert {hostport(reserve(user, f"context-{n}", user=f"u{n}")) for n in range(6)} == expected


def test_a_server_that_answers_again_is_chosen_again() -> None:
    farm = CheckedFarm()
    one, two = farm.failing()
    farm.run(11, one, two)
    user = farm.user()
    found = {hostport(reserve(user, f"context-{n}", user=f"u{n}")) for n in range(6)}
    assert found == {"one:9000", "two:9000"}


@pytest.mark.parametrize(("policy", "expected"), [(Policy.LAST, "one:9000"), (Policy.HIDE, "server does not answer")])
def test_a_context_that_is_open_on_a_failing_server(policy: Policy, expected: str) -> None:
    farm = CheckedFarm(attrs.evolve(RULE, policy=policy))
    one, two = farm.server("one"), farm.server("two")
    opens(one, "context-a")
    farm.run(11, one, two)
    farm.run(25, two)
    assert hostport(reserve(farm.user(), "context-a")) == expected


@pytest.mark.parametrize("policy", [Policy.LAST, Policy.HIDE])
def test_a_context_that_is_not_open_yet_moves_to_a_server_that_answers(policy: Policy) -> None:
    farm = CheckedFarm(attrs.evolve(RULE, policy=policy))
    one, two = farm.server("one"), farm.server("two")
    two.say("provider", "load", factor=0.5)
    farm.run(11, one, two)
    user = farm.user()
    assert hostport(reserve(user, "context-a", user="ann")) == "one:9000"
    farm.run(25, two)
    assert hostport(reserve(user, "context-a", user="ann")) == "two:9000"
    assert hostport(reserve(user, "context-a", user="bob")) == "two:9000"


@pytest.mark.parametrize("policy", [Policy.LAST, Policy.HIDE])
def test_clones_on_a_failing_server_are_the_last_choice(policy: Policy) -> None:
    farm = CheckedFarm(attrs.evolve(RULE, policy=policy))
    one, two = farm.server("one"), farm.server("two")
    opens(one, "context-a-1", maxcap=10, basecap=5)
    farm.run(11, one, two)
    farm.run(25, two)
    user = farm.user()
    assert hostport(reserve(user, "context-a", user="ann")) == "two:9000"
    two.drop()
    farm.clock.advance(1)
    expected = "one:9000" if policy is Policy.LAST else "server does not answer"
    farm.director.use(DirectorSettings(panic=1.0))
    assert hostport(reserve(user, "context-a", user="bob")) == expected


def test_the_only_server_is_chosen_unless_it_is_hidden_without_a_threshold() -> None:
    farm = CheckedFarm(panic=1.0)
    one = farm.server("one")
    farm.run(11, one)
    farm.run(25)
    user = farm.user()
    assert hostport(reserve(user, "context-a", user="ann")) == "unable to find suitable server"
    farm.director.use(DirectorSettings(panic=0.5))
    assert hostport(reserve(user, "context-a", user="ann")) == "one:9000"


def test_a_failure_of_most_servers_hides_none() -> None:
    farm = CheckedFarm()
    servers = [farm.server(f"s{n}") for n in range(3)]
    farm.run(11, *servers)
    farm.run(25, servers[2])
    user = farm.user()
    opened = {hostport(reserve(user, f"context-{n}", user=f"u{n}")) for n in range(4)}
    assert opened == {"s2:9000"}
    servers[2].drop()
    assert {hostport(reserve(user, f"context-{n}", user=f"u{n}")) for n in range(4, 8)} == {"s0:9000", "s1:9000"}


def test_the_newest_connection_of_a_server_decides() -> None:
    farm = CheckedFarm(panic=1.0)
    old = farm.server("one")
    farm.run(11, old)
    farm.run(25)
    assert farm.director.counts()["failing"] == 1
    new = farm.server("one")
    assert farm.director.providers() == ["one"]
    assert farm.director.counts()["failing"] == 0
    new.drop()
    assert farm.director.counts()["failing"] == 1
    old.drop()
    assert farm.director.counts()["failing"] == 0
    assert farm.schedule.counts()["checks.targets"] == 0


def test_a_server_that_knows_no_ping_is_chosen() -> None:
    farm = CheckedFarm()
    farm.server("one")
    farm.run(200)
    assert hostport(reserve(farm.user(), "context-a")) == "one:9000"


def test_messages_of_a_server_that_has_said_disconnect_are_ignored(tmp_path: Path) -> None:
    farm = CheckedFarm()
    recorded = RecordedServer("two", {"tcp": "two:9000"}, {"context": False}, ("context-a",))
    path = tmp_path / "director.json"
    path.write_bytes(encode([recorded], farm.clock.seconds()))
    farm.director.keep_record(farm.clock, maybeDeferred, str(path), 60.0)
    one = farm.server("one")
    farm.run(11)
    assert [message["op"] for message in one.take()] == ["ping"]
    one.say("provider", "reserve", protocol="tcp", context="context-a")
    one.say("provider", "disconnect")
    one.say("provider", "load", factor=0.5)
    one.say("provider", "pong", tag="check-1")
    assert (one.take(), one.reasons, one.closed) == ([], [], False)
    farm.run(60)
    assert ([message["op"] for message in one.take()], one.closed) == (["reserve"], True)


def test_connections_are_checked_at_the_reported_address() -> None:
    farm = CheckedFarm(attrs.evolve(RULE, kind=CheckKind.TCP))
    one = farm.server("one", "one:1")
    assert [info.question.hostport for info in farm.schedule.targets()] == ["one:1"]
    one.say("provider", "address", protocol="tcp", hostport="one:2")
    assert [info.question.hostport for info in farm.schedule.targets()] == ["one:2"]
    farm.schedule.use(CheckSettings(()))
    farm.checks.refresh()
    assert list(farm.schedule.targets()) == []


def test_a_server_that_authenticates_again_with_another_label_is_checked_by_its_rule() -> None:
    farm = CheckedFarm(panic=1.0)
    slow = attrs.evolve(RULE, services=("b-*",), interval=30.0)
    farm.schedule.use(CheckSettings((attrs.evolve(RULE, services=("a-*",)), slow)))
    farm.checks.refresh()
    one = farm.server("a-one")
    farm.run(11, one)
    farm.run(25)
    one.take()
    assert farm.director.counts()["failing"] == 1
    one.say("admin", "auth", label="b-one")
    assert [info.question.rule for info in farm.schedule.targets()] == [slow]
    assert farm.director.counts()["failing"] == 0
    one.say("director", "auth", label="c-one")
    assert list(farm.schedule.targets()) == []
