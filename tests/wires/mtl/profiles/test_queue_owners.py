"""The queue profile at two brokers of a cluster: leases, Summons and Contents for queues that are elsewhere or move."""

from __future__ import annotations

from typing import Any

import pytest
from twisted.python.failure import Failure

from broker.access.rights import AnonymousAccess
from broker.core.errors import Elsewhere, Reason, Refusal
from broker.core.memory_budget import MemoryLimits
from broker.core.operator_interfaces import MovedMessages
from broker.core.queues.ownership import WAIT_BYTES, QueueOwnership
from broker.core.queues.queue_messages import EXPIRES, QueueRule, QueueSettings
from broker.core.queues.queue_recorder import QueueRecorder
from broker.core.queues.queues import QUEUE_BYTES, Queues
from broker.core.queues.sqlite_store import QueueStore
from broker.wires.mtl.codec import data_messages as wire
from broker.wires.mtl.profiles.queue_profile import QueueProfile
from broker.wires.mtl.queue_actions import SLICE, QueueActs
from broker.wires.mtl.sessions import data_flow
from broker.wires.mtl.sessions.access_policy import AccessPolicy, ConfirmMode, Side
from tests.core.queues.owners import Claims, Owners
from tests.threads import immediately
from tests.wires.mtl.data_recording import MtlPeer
from tests.wires.mtl.queue_recording import QueueFarm, answers, bodies


class Member(QueueFarm):
    """A broker of a cluster. Its queues are in memory."""

    def __init__(self, claims: Claims, name: str) -> None:
        self.claims = claims
        self.name = name
        super().__init__()

    def start(self) -> None:
        super().start()
        recorder = QueueRecorder(QueueStore("/nonexistent"), self.leases, self.clock, immediately)  # type: ignore[arg-type]
        self.queues = Queues(self.leases, [QueueRule(("*",), QueueSettings())], recorder)
        self.ownership = QueueOwnership(
            self.queues, recorder, Owners(self.claims, self.name), self.name, self.clock, immediately
        )
        self.queue = QueueProfile(self.queues, self.data, self.clock, self.config.window_bytes, self.ownership)

    def prepared(self, side: Side, *resources: str) -> Any:
        """Prepare a lease as the control flow does. Returns None, or the refusal."""
        waits = self.queue.prepare(self.principal("ann"), side, resources, "")
        found: list[Any] = [None]
        if waits is not None:
            waits.addErrback(lambda failure: found.append(failure.value))
        return found[-1]


def cluster() -> tuple[Claims, Member, Member]:
    claims = Claims()
    return claims, Member(claims, "a"), Member(claims, "b")


def moved(claims: Claims, here: Member, there: Member, name: str) -> None:
    """The lease of the owner ends without its knowledge; another broker takes the queue; then the owner is notified."""
    claims.away.add(here.name)
    claims.expire(here.name)
    assert there.prepared(Side.READER, name) is None
    claims.back(here.name)


def test_a_lease_at_the_owner_and_a_refusal_elsewhere() -> None:
    _, a, b = cluster()
    assert a.prepared(Side.WRITER, "q") is None
    for name in ("q", "q.dead"):
        refusal = b.prepared(Side.READER, "other", name)
        assert isinstance(refusal, Elsewhere)
        assert refusal.endpoint == "tcp://a:5975"
    sender, worker = a.sender("q"), a.worker("q")
    sender.put(1, b"x", "q")
    a.turn()
    assert answers(sender) == [("confirm", 1, False)]
    assert bodies(worker) == [b"x"]


def test_the_flows_of_a_queue_that_moves_end_and_are_notified() -> None:
    claims, a, b = cluster()
    for name in ("q", "other"):
        assert a.prepared(Side.WRITER, name) is None
    sender, worker, bystander = a.sender("q"), a.worker("q"), a.worker("other")
    idle = a.worker("q.dead")
    claims.owners["/", "other"] = "a"
    claims.lasting.add(("/", "other"))
    moved(claims, a, b, "q")
    for peer in (sender, worker, idle):
        assert peer.take() == [wire.Response(0, wire.FORBIDDEN)]
        assert peer.client is None
    assert bystander.take() == []
    assert bystander.client is not None
    assert a.ends() == {"moved": 3}
    # a message of the former owner's reader that comes too late has no effect
    worker.say(*wire.confirm(1))
    assert isinstance(a.prepared(Side.READER, "q"), Elsewhere)


def test_both_flows_of_a_client_end_when_a_queue_moves() -> None:
    claims, a, b = cluster()
    assert a.prepared(Side.WRITER, "q") is None
    both = a.sender("q")
    both.lease(a.lease(Side.READER), 2)
    both.take()
    later = a.sender("q")
    moved(claims, a, b, "q")
    for peer in (both, later):
        assert peer.take() == [wire.Response(0, wire.FORBIDDEN)]
        assert peer.client is None
    assert isinstance(a.prepared(Side.READER, "q"), Elsewhere), "it is not kept in release"


def test_readers_of_all_queues_end_when_one_moves_that_they_have_summoned() -> None:
    claims, a, b = cluster()
    for name in ("q", "other"):
        assert a.prepared(Side.READER, name) is None
    claims.lasting.add(("/", "other"))
    readers = [a.peer() for _ in range(4)]
    for reader, names in zip(readers, (["q"], ["q.dead", "other"], ["other"], ["q"]), strict=True):
        reader.lease(a.lease(Side.READER))
        for number, name in enumerate(names):
            reader.say(*wire.summon(number, name))
    readers[3].say(*wire.dismiss(9, "q"))
    for reader in readers:
        reader.take()
    moved(claims, a, b, "q")
    ended = [[wire.Response(0, wire.FORBIDDEN)]] * 2
    assert [reader.take() for reader in readers] == [*ended, [], []]


def strangers(*, claimed: bool) -> tuple[Claims, Member]:
    """A broker where the address of a stranger may have two queues, and whose claims pass at once, or wait."""
    claims, a, _ = cluster()
    a.queues.memory.limits = MemoryLimits(address=2 * 3 * QUEUE_BYTES)  # type: ignore[attr-defined]
    claims.waiting = None if claimed else []
    return claims, a


def test_a_stranger_makes_a_bounded_number_of_queues_in_a_cluster_too() -> None:
    _, a = strangers(claimed=True)
    writer = a.writer(profile=a.queue, confirm=ConfirmMode.FULL, principal=a.principal())
    for number in range(1, 5):
        writer.put(number, b"", f"q{number}")
    assert answers(writer)[-1] == ("reject", 4, True)
    reader = a.peer()
    reader.lease(a.lease(Side.READER, principal=a.principal()))
    reader.take()
    assert reader.ask(*wire.summon(7, "r")) == [wire.Response(7, wire.UNAVAILABLE)]
    with pytest.raises(Refusal) as refused:
        a.queues.open("/", "r", "192.0.2.7")
    assert refused.value.reason is Reason.LIMIT


def test_a_stranger_claims_a_bounded_number_of_queues_by_leases() -> None:
    claims, a = strangers(claimed=False)
    memory = a.queues.memory
    refused: list[Any] = []
    waits = a.queue.prepare(a.principal(), Side.WRITER, ["q1", "q2", "q3", "q4"], "192.0.2.7")
    assert waits is not None
    waits.addBoth(refused.append)
    assert refused[0].value.reason is Reason.LIMIT
    assert len(claims.waiting or ()) == 2, "their requests count, too"
    assert memory.may_store("192.0.2.8", 1)
    answer(claims, Refusal(Reason.UNAVAILABLE, "etcd is away"))
    assert memory.held == 0, "nothing was claimed"  # type: ignore[attr-defined]
    assert a.queue.prepare(a.principal(), Side.WRITER, ["q1", "q2"], "192.0.2.7") is None
    assert memory.held == 2 * QUEUE_BYTES  # type: ignore[attr-defined]
    moved(claims, a, Member(claims, "c"), "q1")
    assert memory.held == QUEUE_BYTES  # type: ignore[attr-defined]
    a.wait(EXPIRES + 10)
    assert memory.held == 0  # type: ignore[attr-defined]


def test_requests_of_a_stranger_that_wait_for_a_claim_are_bounded() -> None:
    claims, a = strangers(claimed=False)
    memory = a.queues.memory
    refused: list[Reason] = []

    def note(failure: Failure) -> None:
        assert isinstance(failure.value, Refusal)
        refused.append(failure.value.reason)

    for _ in range(100):
        waits = a.queue.prepare(a.principal(), Side.READER, ["q1"], "192.0.2.7")
        assert waits is not None
        waits.addErrback(note)
    waiting = 100 - len(refused)
    assert 2 <= waiting < 20
    assert set(refused) == {Reason.LIMIT}
    assert memory.held == QUEUE_BYTES + waiting * WAIT_BYTES  # type: ignore[attr-defined]
    answer(claims)
    assert memory.held == QUEUE_BYTES, "nothing waits"  # type: ignore[attr-defined]
    assert a.queue.prepare(a.principal(), Side.READER, ["q1"], "192.0.2.7") is None


def test_contents_to_a_queue_that_is_being_claimed_leave_nothing_behind() -> None:
    claims, a, _ = cluster()
    claims.waiting = []
    writer = a.writer()
    calls = []
    for number in range(1, 101):
        writer.put(number, b"x", "q")
        calls.append(len(a.clock.getDelayedCalls()))
    assert calls[-1] == calls[0]
    answer(claims)
    writer.put(101, b"x", "q")
    a.turn()
    assert answers(writer)[-1] == ("confirm", 101, False)


def test_a_reader_of_all_queues_summons_those_of_its_broker() -> None:
    _, a, b = cluster()
    assert a.prepared(Side.WRITER, "q") is None
    reader = b.peer()
    reader.lease(b.lease(Side.READER))
    reader.take()
    assert reader.ask(*wire.summon(7, "q")) == [wire.Response(7, wire.MISDIRECTED)]
    assert reader.ask(*wire.summon(8, "free")) == [wire.Response(8, wire.OK)]
    assert reader.ask(*wire.summon(9, "q")) == [wire.Response(9, wire.MISDIRECTED)], "it was not summoned"
    assert reader.ask(*wire.dismiss(10, "free")) == [wire.Response(10, wire.OK)]


def test_a_summon_may_be_repeated_after_a_failed_claim() -> None:
    claims, _, b = cluster()
    claims.away.add("b")
    reader = b.peer()
    reader.lease(b.lease(Side.READER))
    reader.take()
    assert reader.ask(*wire.summon(7, "free")) == [wire.Response(7, wire.UNAVAILABLE)]
    claims.away.clear()
    assert reader.ask(*wire.summon(8, "free")) == [wire.Response(8, wire.OK)]


def summoned_before_the_claim() -> tuple[Claims, Member, MtlPeer]:
    """A reader whose Summon 7 of the queue "q" waits for the claim."""
    claims, _, b = cluster()
    claims.waiting = []
    reader = b.peer()
    reader.lease(b.lease(Side.READER))
    assert reader.ask(*wire.summon(7, "q")) == []
    return claims, b, reader


def answer(claims: Claims, error: Exception | None = None) -> None:
    """Answer the claims that wait, and all further ones at once."""
    waiting, claims.waiting = claims.waiting, None
    for each in waiting or ():
        each.callback(None) if error is None else each.errback(error)


def test_a_summon_that_waits_for_the_claim_may_be_dismissed() -> None:
    claims, b, reader = summoned_before_the_claim()
    assert reader.ask(*wire.dismiss(8, "q")) == [wire.Response(7, wire.OK), wire.Response(8, wire.OK)]
    answer(claims)
    assert reader.take() == []
    b.sender("q").put(1, b"x", "q")
    assert reader.take() == []


def test_a_summon_behind_such_a_dismiss_is_the_only_one() -> None:
    claims, b, reader = summoned_before_the_claim()
    reader.ask(*wire.dismiss(8, "q"))
    assert reader.ask(*wire.summon(9, "q")) == []
    answer(claims)
    assert reader.take() == [wire.Response(9, wire.OK)]
    assert reader.ask(*wire.dismiss(10, "q")) == [wire.Response(10, wire.OK)]
    other = b.worker("q")
    b.sender("q").put(1, b"x", "q")
    assert (reader.take(), bodies(other)) == ([], [b"x"])


def test_a_summon_behind_such_a_dismiss_is_told_that_the_claim_failed() -> None:
    claims, _, reader = summoned_before_the_claim()
    reader.ask(*wire.dismiss(8, "q"))
    reader.ask(*wire.summon(9, "q"))
    answer(claims, Refusal(Reason.UNAVAILABLE, "etcd is away"))
    assert reader.take() == [wire.Response(9, wire.UNAVAILABLE)]


def test_dismissed_summons_that_wait_for_the_claim_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(data_flow, "MAX_SUMMONED", 3)
    claims, _, reader = summoned_before_the_claim()
    for number in (10, 20):
        assert reader.ask(*wire.dismiss(number, "q"))[-1] == wire.Response(number, wire.OK)
        assert reader.ask(*wire.summon(number + 1, "q")) == []
    reader.ask(*wire.dismiss(30, "q"))
    assert reader.ask(*wire.summon(31, "q")) == [wire.Response(31, wire.BAD_REQUEST)]
    answer(claims)
    assert reader.ask(*wire.summon(32, "q")) == [wire.Response(32, wire.OK)]


def test_a_writer_to_all_queues_is_told_which_contents_belong_elsewhere() -> None:
    claims, a, b = cluster()
    assert a.prepared(Side.WRITER, "q") is None
    writer = b.writer()
    writer.put(1, b"x", "free")
    b.turn()
    writer.put(2, b"x", "q")
    got = writer.take()
    assert got[-1] == wire.Response(2, wire.MISDIRECTED)
    claims.away.add("b")
    writer.put(3, b"x", "unknown")
    assert writer.take() == [wire.Reject(3, False, True)], "later perhaps"


def test_a_queue_that_no_one_may_use_is_not_claimed() -> None:
    claims, a, _ = cluster()
    waits = a.queue.prepare(a.principal("ann"), Side.READER, ["fine"], "")
    assert waits is None
    try:
        a.queue.prepare(a.principal("ann"), Side.READER, ["fine two", "x" * 251], "")
    except Exception as refusal:
        assert "more than 250 bytes" in str(refusal)
    assert set(claims.owners) == {("/", "fine")}


@pytest.mark.parametrize(
    ("taken", "why"),
    [("other", "the queue other belongs to the broker b"), ("q", "another broker has taken the queue")],
)
def test_an_operators_move_over_a_takeover_says_how_many_messages_were_moved(taken: str, why: str) -> None:
    claims, a, b = cluster()
    for name in ("q", "other"):
        assert a.prepared(Side.WRITER, name) is None
        claims.lasting.add(("/", name))
    for _ in range(2 * SLICE):
        a.queues.open("/", "q").put(b"\0", b"x")
    acts = QueueActs(a.queues, a.ownership, AccessPolicy(("/",), "/", AnonymousAccess()), "/", a.clock)
    results: list[object] = []
    acts.move("q", "other", None, None).addBoth(results.append)
    claims.lasting.discard(("/", taken))
    moved(claims, a, b, taken)
    a.clock.advance(0)
    assert results == [MovedMessages(SLICE, why)]
