"""The profile "queue" of MTL: deliveries to readers, and answers to writers.

Tests are named after the rows of tests/contract/test_mtl_conformance.py.

The file is longer than others: it has all tests of `broker.wires.mtl.profiles.queue_profile`.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import attrs
import pytest

from broker.core.database import StateUnusable
from broker.core.disk import RETRY_SECONDS
from broker.core.errors import Reason, Refusal
from broker.core.memory_budget import MemoryLimits
from broker.core.queues import queues as core
from broker.core.queues.queue_messages import DEAD, EXPIRES, Death, QueueRule, QueueSettings
from broker.core.queues.queue_recorder import COMMIT_SECONDS
from broker.core.queues.queues import QUEUE_BYTES
from broker.core.queues.work_queue import FIRST_PAUSE
from broker.wires.mtl.codec import data_messages as wire
from broker.wires.mtl.codec import field_table
from broker.wires.mtl.codec.data_messages import Response
from broker.wires.mtl.codec.field_table import EMPTY, MAX_TABLE, Timestamp
from broker.wires.mtl.mtl_settings import Mtl
from broker.wires.mtl.profiles.queue_profile import MAX_NAME, MOST_AT_ONCE, MOST_PREPARED
from broker.wires.mtl.sessions.access_policy import ConfirmMode, Principal, Side
from broker.wires.mtl.sessions.data_clients import DataClient
from tests.recording.logs import nothing_fails
from tests.wires.mtl.data_recording import MtlPeer
from tests.wires.mtl.profiles_recording import dismiss, put, refused, summon
from tests.wires.mtl.queue_recording import Only, QueueFarm, answers, bodies, got

DURABLE = QueueSettings(durable=True, dead_letters=frozenset(Death))


@pytest.fixture(autouse=True)
def sound() -> Iterator[None]:
    with nothing_fails():
        yield


@pytest.fixture
def farm() -> QueueFarm:
    return QueueFarm()


@pytest.fixture
def durable(tmp_path: Path) -> Iterator[QueueFarm]:
    farm = QueueFarm(DURABLE, str(tmp_path))
    yield farm
    farm.store.close()


def fill(writer: MtlPeer, count: int, queue: str = "q") -> None:
    """Send so many Contents; their bodies are their numbers from 1 on."""
    for number in range(1, count + 1):
        writer.put(number, b"%d" % number, queue)


def confirm(worker: MtlPeer, sequence: int, multiple: bool = False) -> None:
    worker.say(*wire.confirm(sequence, multiple))


def reject(worker: MtlPeer, sequence: int, multiple: bool = False, recycle: bool = True) -> None:
    worker.say(*wire.reject(sequence, multiple, recycle))


def numbers(*values: int) -> list[bytes]:
    return [b"%d" % value for value in values]


# writers


def test_K03_every_content_is_confirmed_once_and_many_together(farm: QueueFarm) -> None:
    writer = farm.sender()
    fill(writer, 3)
    assert answers(writer) == []
    farm.turn()
    assert answers(writer) == [("confirm", 3, True)]
    writer.put(9, resource="q")
    farm.turn()
    assert answers(writer) == [("confirm", 9, False)]
    farm.wait(10)
    assert {type(command) for command in writer.take()} == {wire.Ping}


def test_K03_a_content_of_a_durable_queue_is_confirmed_when_it_is_on_the_disk(durable: QueueFarm) -> None:
    writer = durable.sender()
    fill(writer, 3)
    durable.clock.advance(COMMIT_SECONDS)
    tell = durable.thread.do()
    assert answers(writer) == []
    tell()
    assert answers(writer) == [("confirm", 3, True)]


def test_K03_no_confirm_covers_an_earlier_content_that_is_undecided(tmp_path: Path) -> None:
    farm = QueueFarm(QueueSettings(), str(tmp_path), [QueueRule(("durable",), DURABLE)])
    writer = farm.sender("durable", "memory")
    writer.put(1, resource="memory")
    writer.put(2, resource="memory")
    writer.put(3, resource="durable")
    writer.put(4, resource="memory")
    writer.put(5, resource="durable")
    writer.put(6, resource="memory")
    farm.turn()
    assert answers(writer) == [("confirm", 2, True), ("confirm", 4, False), ("confirm", 6, False)]
    writer.put(7, resource="memory")
    farm.commit()
    assert answers(writer) == [("confirm", 7, False), ("confirm", 5, True)]
    farm.store.close()


def test_K03_what_is_decided_in_one_go_is_confirmed_together_whatever_queue_it_is_for(tmp_path: Path) -> None:
    farm = QueueFarm(QueueSettings(), str(tmp_path), [QueueRule(("durable",), DURABLE)])
    writer = farm.sender("durable", "memory")
    writer.put(1, resource="durable")
    farm.clock.advance(COMMIT_SECONDS)
    writer.put(2, resource="durable")
    writer.put(3, resource="memory")
    writer.put(4, resource="durable")
    farm.thread.work()
    assert answers(writer) == [("confirm", 1, False), ("confirm", 3, False)]
    farm.commit()
    assert answers(writer) == [("confirm", 4, True)]
    farm.store.close()


def test_K01_who_is_not_confirmed_hears_nothing_of_good_contents(durable: QueueFarm) -> None:
    durable.queues.use([QueueRule(("memory",), QueueSettings()), QueueRule(("*",), DURABLE)])
    writer = durable.sender("q", "memory", confirm=ConfirmMode.NONE)
    fill(writer, 3)
    fill(writer, 3, "memory")
    durable.commit()
    durable.turn()
    assert writer.take() == []
    assert [info.ready for info in durable.queues.describe()] == [3, 3]


def test_a_full_queue_is_not_now_and_the_answers_come_in_order() -> None:
    farm = QueueFarm(QueueSettings(max_messages=2))
    writer, worker = farm.sender(), farm.worker(window=1)
    fill(writer, 4)
    farm.turn()
    assert answers(writer) == [("confirm", 2, True), ("reject", 3, True), ("reject", 4, True)]
    confirm(worker, 1)
    writer.put(5, b"5", "q")
    farm.turn()
    assert answers(writer) == [("confirm", 5, False)]
    assert farm.queue.counts()["mtl_queue.refused.full"] == 2


def test_what_finds_no_room_is_lost_and_counted_where_nothing_is_confirmed() -> None:
    farm = QueueFarm(QueueSettings(max_messages=2))
    writer = farm.sender(confirm=ConfirmMode.NONE)
    fill(writer, 5)
    assert writer.take() == []
    assert farm.queue.counts()["mtl_queue.refused.full"] == 3
    assert bodies_of_all(farm) == numbers(1, 2)


def bodies_of_all(farm: QueueFarm, queue: str = "q") -> list[bytes]:
    """The messages of a queue, taken without confirming."""
    peer = farm.peer()
    peer.lease(farm.lease(Side.READER, queue, confirm=ConfirmMode.NONE))
    return [content.body for content in summon(peer, queue)]


def test_what_can_never_be_queued_is_refused_for_good() -> None:
    farm = QueueFarm(QueueSettings(max_bytes=1_000))
    writer, blind = farm.sender(), farm.sender(confirm=ConfirmMode.NONE)
    writer.put(1, bytes(1_000), "q")
    assert answers(writer) == [("reject", 1, False)]
    blind.put(1, bytes(1_000), "q")
    assert blind.take() == refused(1)


def test_a_stranger_queues_up_to_the_limit_of_its_address_and_users_up_to_that_of_the_queue(farm: QueueFarm) -> None:
    farm.memory.limits = MemoryLimits(address=2 * (QUEUE_BYTES + 12_000))
    stranger, ann = farm.sender(principal=farm.principal()), farm.sender("q", "other")
    for number in range(1, 4):
        stranger.put(number, bytes(5_000), "q")
        ann.put(number, bytes(5_000), "q")
    assert answers(stranger) == [("confirm", 2, True), ("reject", 3, True)]
    farm.turn()
    assert answers(ann) == [("confirm", 3, True)]
    assert farm.queues.counts()["refused.address"] == 1
    worker = farm.peer()
    worker.lease(farm.lease(Side.READER, "q"))
    assert len(summon(worker, "q")) == 5
    confirm(worker, 1)
    stranger.put(4, bytes(5_000), "q")
    farm.turn()
    assert answers(stranger) == [("confirm", 4, False)]
    confirm(worker, worker.reading.sequence, multiple=True)
    assert farm.memory.held == QUEUE_BYTES, "its queue is there until it expires"
    worker.say(*wire.dismiss(9, "q"))
    farm.wait(EXPIRES + 10)
    assert farm.memory.held == 0


def test_a_stranger_makes_a_bounded_number_of_queues(farm: QueueFarm) -> None:
    farm.memory.limits = MemoryLimits(address=2 * 3 * QUEUE_BYTES)
    writer = farm.writer(profile=farm.queue, confirm=ConfirmMode.FULL, principal=farm.principal())
    for number in range(1, 4):
        writer.put(number, b"", f"q{number}")
    assert answers(writer) == [("confirm", 2, True), ("reject", 3, True)]


def test_a_dead_letter_counts_for_its_author(farm: QueueFarm) -> None:
    farm.queues.use([QueueRule(("*",), QueueSettings(dead_letters=frozenset({Death.REJECTED})))])
    worker, stranger = farm.worker(), farm.sender(principal=farm.principal())
    stranger.put(1, bytes(5_000), "q")
    worker.take()
    held = farm.memory.held
    reject(worker, 1, recycle=False)
    assert farm.memory.held == held >= 5_000
    assert bodies_of_all(farm, "q.dead") == [bytes(5_000)]
    assert farm.memory.held == 0


def test_a_disk_that_fails_is_not_now_and_the_earlier_confirms_come_first(durable: QueueFarm) -> None:
    durable.queues.use([QueueRule(("memory",), QueueSettings()), QueueRule(("*",), DURABLE)])
    writer = durable.sender("q", "memory")
    worker = durable.worker()
    fill(writer, 3)
    confirm(worker, 2)
    durable.clock.advance(COMMIT_SECONDS)
    durable.thread.fail(StateUnusable("the disk is full"))
    assert answers(writer) == [("confirm", 2, False), ("reject", 1, True), ("reject", 3, True)]
    writer.put(4, resource="memory")
    writer.put(5, resource="q")
    assert answers(writer) == [("confirm", 4, False), ("reject", 5, True)]
    durable.clock.advance(RETRY_SECONDS)
    durable.thread.work()
    writer.put(6, resource="q")
    writer.put(7, resource="q")
    durable.commit()
    assert answers(writer) == [("confirm", 7, True)]


def test_a_writer_that_is_gone_is_told_nothing_and_its_contents_stay(durable: QueueFarm) -> None:
    durable.queues.use([QueueRule(("memory",), QueueSettings()), QueueRule(("*",), DURABLE)])
    writer = durable.sender("q", "memory")
    writer.put(1, b"1", "q")
    writer.put(2, b"2", "memory")
    durable.data.end(writer.writing, "test")
    durable.turn()
    durable.commit()
    assert writer.take() == []
    assert bodies_of_all(durable) == numbers(1)
    assert bodies_of_all(durable, "memory") == numbers(2)


def test_a_client_that_ended_and_its_flows_make_no_cycle(farm: QueueFarm) -> None:
    peers = farm.sender("q"), farm.worker("q")
    clients = [each for each in gc.get_objects() if isinstance(each, DataClient) and not each.over]
    flows = [flow for client in clients for flow in client.flows()]
    for peer in peers:
        peer.drop()
    ended = [flow for flow in flows if flow.client.over]
    assert len(ended) == len(peers)
    assert not any(flow.place or flow.client.flows() for flow in ended)


def test_at_the_end_what_is_due_is_confirmed(farm: QueueFarm) -> None:
    writer = farm.sender()
    fill(writer, 3)
    farm.queue.close()
    assert answers(writer) == [("confirm", 3, True)]
    farm.queue.close()
    farm.turn()
    assert answers(writer) == []


def test_a_duplicate_is_confirmed_and_not_queued() -> None:
    farm = QueueFarm(QueueSettings(duplicates=True))
    writer, worker = farm.sender(), farm.worker()
    other = farm.sender(principal=farm.principal("bob"))
    for number, id in ((1, "x"), (2, "y"), (3, "x")):
        put(writer, number, "q", b"%d" % number, message_id=id)
    put(other, 1, "q", b"bob's", message_id="x")
    farm.turn()
    assert answers(writer) == [("confirm", 3, True)]
    assert bodies(worker) == [b"1", b"2", b"bob's"]
    assert farm.queue.counts()["mtl_queue.duplicates"] == 1


# readers


def test_K05_what_is_rejected_with_recycle_is_sent_again_with_a_new_sequence_and_its_properties(
    farm: QueueFarm,
) -> None:
    writer, worker = farm.sender(), farm.worker()
    put(writer, 1, "q", b"body", content_type="text/plain", x=5)
    [first] = got(worker)
    assert (first.sequence, first.body) == (1, b"body")
    said = {"content-type": "text/plain", "x": 5, "user-id": "ann"}
    assert first.says == {**said, "redelivered": False, "delivery-count": 1}
    for count in (2, 3):
        reject(worker, count - 1)
        assert got(worker) == []
        farm.wait(FIRST_PAUSE * 2 ** (count - 2) + 0.05)
        [again] = got(worker)
        assert (again.sequence, again.resource, again.body) == (count, "q", b"body")
        assert again.says == {**said, "redelivered": True, "delivery-count": count}


def test_K06_it_is_dead_where_that_is_wanted() -> None:
    farm = QueueFarm(QueueSettings(dead_letters=frozenset(Death), max_deliveries=1))
    writer, worker = farm.sender(), farm.worker()
    put(writer, 1, "q", b"1", x=1, death_reason="old age")
    put(writer, 2, "q", b"2")
    assert "death-reason" not in got(worker)[0].says
    reject(worker, 1, recycle=False)
    reject(worker, 2)
    undertaker = farm.peer()
    undertaker.lease(farm.lease(Side.READER, "q" + DEAD))
    first, second = summon(undertaker, "q" + DEAD)
    assert (first.resource, first.body) == ("q.dead", b"1")
    assert first.says == {
        "x": 1, "user-id": "ann", "redelivered": False, "delivery-count": 1, "death-reason": "rejected",
    }  # fmt: skip
    assert (second.body, second.says["death-reason"]) == (b"2", "deliveries")
    reject(undertaker, 1)
    farm.wait(1)
    [again] = got(undertaker)
    assert again.says == {**first.says, "redelivered": True, "delivery-count": 2}


def test_K09_all_can_be_given_back_after_a_dismiss(farm: QueueFarm) -> None:
    writer, one = farm.sender(), farm.worker()
    fill(writer, 3)
    dismissed = bodies(one)
    dismiss(one, "q")
    reject(one, 3, multiple=True)
    assert [content.body for content in summon(farm_reader(farm), "q")] == dismissed


def farm_reader(farm: QueueFarm, *resources: str, **lease: Any) -> MtlPeer:
    """One that has summoned nothing yet."""
    peer = farm.peer()
    peer.lease(farm.lease(Side.READER, *resources, **lease))
    return peer


def test_K10_a_window_has_bytes_too() -> None:
    farm = QueueFarm(config=Mtl(window_bytes=10_000))
    writer, worker = farm.sender(), farm.worker()
    for number in range(1, 5):
        writer.put(number, bytes(6_000), "q")
    assert len(got(worker)) == 2
    confirm(worker, 1)
    assert len(got(worker)) == 1
    writer.put(5, bytes(1_000_000), "q")
    confirm(worker, 3, multiple=True)
    assert [len(content.body) for content in got(worker)] == [6_000, 1_000_000]


def test_a_reader_that_is_not_confirmed_is_given_each_content_once(farm: QueueFarm) -> None:
    writer, worker = farm.sender(), farm.worker(confirm=ConfirmMode.NONE)
    fill(writer, 3)
    assert bodies(worker) == numbers(1, 2, 3)
    worker.drop()
    farm.wait(20)
    assert bodies_of_all(farm) == []
    assert [info.ready + info.out for info in farm.queues.describe()] in ([0], [])


def test_a_reader_that_is_not_confirmed_makes_way_for_others_now_and_then(farm: QueueFarm) -> None:
    writer = farm.sender()
    fill(writer, 2 * MOST_AT_ONCE + 5)
    peer = farm_reader(farm, "q", confirm=ConfirmMode.NONE)
    assert len(summon(peer, "q")) == MOST_AT_ONCE
    farm.turn()  # which for the clock of tests are as many turns as are due
    assert len(got(peer)) == MOST_AT_ONCE + 5
    fill(farm.sender(), 1)
    assert len(got(peer)) == 1


def test_a_reader_that_is_gone_in_a_pause_is_sent_nothing_more(farm: QueueFarm) -> None:
    writer = farm.sender()
    fill(writer, MOST_AT_ONCE + 5)
    peer = farm_reader(farm, "q", confirm=ConfirmMode.NONE)
    summon(peer, "q")
    farm.data.end(peer.reading, "test")
    farm.turn()
    assert got(peer) == []
    assert len(bodies_of_all(farm)) == 5


@pytest.mark.parametrize("how", list(ConfirmMode))
def test_a_slow_reader_keeps_its_place_and_is_sent_more_when_it_reads_again(farm: QueueFarm, how: ConfirmMode) -> None:
    writer, slow = farm.sender(), farm.worker(confirm=how)
    slow.stop_reading(after=2)
    fill(writer, 5)
    assert bodies(slow) == numbers(1, 2)
    assert [(info.ready, info.out) for info in farm.queues.describe()] == [(3, 2 if how is ConfirmMode.FULL else 0)]
    slow.read_on()
    farm.wait(1)
    contents = [each for each in slow.take() if isinstance(each, wire.Content)]
    assert [(content.body, content.sequence) for content in contents] == [(b"3", 4), (b"4", 5), (b"5", 6)]
    assert [field_table.decode(content.table)["delivery-count"] for content in contents] == [1, 1, 1]


def test_a_slow_reader_that_confirms_is_not_tried_before_it_has_room(farm: QueueFarm) -> None:
    writer, slow = farm.sender(), farm.worker()
    slow.stop_reading(after=2)
    fill(writer, 5)
    tried = farm.router.refused
    confirm(slow, 1)
    writer.put(6, b"6", "q")
    assert farm.router.refused == tried
    slow.read_on()
    farm.wait(1)
    contents = [each for each in slow.take() if isinstance(each, wire.Content)]
    assert [content.body for content in contents] == numbers(1, 2, 3, 4, 5, 6)


def test_a_slow_reader_costs_others_nothing(farm: QueueFarm) -> None:
    writer, slow, quick = farm.sender(), farm.worker(), farm.worker()
    slow.stop_reading()
    fill(writer, 20)
    assert bodies(quick) == numbers(*range(1, 21))
    farm.turn()
    assert answers(writer) == [("confirm", 20, True)]


def test_a_reader_whose_answers_wait_is_sent_contents_after_them(farm: QueueFarm) -> None:
    """The answer to its Summon comes first, whatever happens."""
    writer = farm.sender()
    fill(writer, 2)
    peer = farm_reader(farm, "q")
    peer.stop_reading()
    peer.say(*wire.summon(7, "q"))
    peer.read_on()
    farm.wait(1)
    answer, *contents = peer.take()
    assert answer == Response(7, wire.OK)
    assert [each.body for each in contents if isinstance(each, wire.Content)] == numbers(1, 2)


# properties


def test_properties_of_all_types_are_kept(farm: QueueFarm) -> None:
    writer, worker = farm.sender(), farm.worker()
    said: dict[str, Any] = {"t": Timestamp(5), "list": [1, None, b"x"], "table": {"user-id": "kept"}, "f": 1.5}
    put(writer, 1, "q", b"", **said)
    [content] = got(worker)
    assert {name: content.says[name] for name in said} == said
    assert content.says["table"] == {"user-id": "kept"}


def test_the_largest_table_that_may_be_sent_can_be_delivered_again_and_buried() -> None:
    farm = QueueFarm(QueueSettings(dead_letters=frozenset(Death), max_deliveries=2))
    long_name = "u" * 200
    name = "n" * MAX_NAME
    writer = farm.sender(name, principal=farm.principal(long_name))
    worker = farm.worker(name)
    undertaker = farm_reader(farm, name + DEAD)
    worker.tails = undertaker.tails = wire.Tails(field_table.MAX_EXTENDED)
    entry = b"\1a" + b"x" + (MAX_TABLE - 7).to_bytes(4) + bytes(MAX_TABLE - 7)
    writer.put(1, b"", name, len(entry).to_bytes(4) + entry)
    assert len(got(worker)) == 1
    reject(worker, 1)
    farm.wait(0.2)
    assert got(worker)[0].says["delivery-count"] == 2
    reject(worker, 2)
    [letter] = summon(undertaker, name + DEAD)
    assert (letter.resource, letter.says["user-id"]) == (name + DEAD, long_name)


@pytest.mark.parametrize("ttl", [50, 50.0])
def test_a_content_has_its_time_in_milliseconds(farm: QueueFarm, ttl: float) -> None:
    writer = farm.sender()
    put(writer, 1, "q", b"short", ttl=ttl)
    put(writer, 2, "q", b"long", ttl=60_000)
    farm.wait(1)
    contents = summon(farm_reader(farm, "q"), "q")
    assert [(content.body, content.says["ttl"]) for content in contents] == [(b"long", 60_000)]


@pytest.mark.parametrize("said", ["delay", "deliver-at"])
def test_a_content_may_be_delayed(farm: QueueFarm, said: str) -> None:
    due = 2_000 if said == "delay" else (farm.clock.seconds() + 2) * 1000
    writer, reader = farm.sender(), farm_reader(farm, "q")
    put(writer, 1, "q", b"late", **{said: due})
    put(writer, 2, "q", b"now")
    assert [content.body for content in summon(reader, "q")] == [b"now"]
    at = round((farm.clock.seconds() + 2) * 1000)
    farm.wait(2.5)
    [content] = got(reader)
    assert (content.body, content.says["deliver-at"], "delay" in content.says) == (b"late", at, False)


@pytest.mark.parametrize("said", ["delay", "deliver-at"])
@pytest.mark.parametrize("due", [-1, True, "50", None, float("nan"), float("inf"), 2**62, [50]])
def test_what_is_no_delay_is_none(farm: QueueFarm, said: str, due: Any) -> None:
    put(farm.sender(), 1, "q", b"1", **{said: due})
    assert [content.body for content in summon(farm_reader(farm, "q"), "q")] == [b"1"]


@pytest.mark.parametrize("ttl", [-1, True, "50", None, float("nan"), float("inf"), 2**62, [50]])
def test_what_is_no_time_is_none(farm: QueueFarm, ttl: Any) -> None:
    writer = farm.sender()
    put(writer, 1, "q", b"1", ttl=ttl)
    farm.wait(1)
    assert bodies_of_all(farm) == numbers(1)


def test_an_id_that_is_no_text_is_none() -> None:
    farm = QueueFarm(QueueSettings(duplicates=True))
    writer = farm.sender()
    for number in (1, 2):
        put(writer, number, "q", b"%d" % number, message_id=5)
    assert bodies_of_all(farm) == numbers(1, 2)


def test_contents_with_many_different_properties_are_each_sent_with_their_own(farm: QueueFarm) -> None:
    writer, worker = farm.sender(), farm.worker(window=1_000)
    count = 3 * MOST_PREPARED
    for number in range(1, count + 1):
        put(writer, number, "q", b"", n=number % (MOST_PREPARED + 3))
    assert [content.says["n"] for content in got(worker)] == [n % (MOST_PREPARED + 3) for n in range(1, count + 1)]
    assert len(writer.writing.place.prepared) <= MOST_PREPARED


# Rights


def test_queues_are_made_by_who_has_the_right_to_them(farm: QueueFarm) -> None:
    may = Principal("ann", "/", Only(read=["r"], write=["w"]))  # type: ignore[arg-type]
    farm.queue.check(may, Side.READER, "r")
    farm.queue.check(may, Side.WRITER, "w")
    for side, name in ((Side.READER, "w"), (Side.WRITER, "r"), (Side.READER, "other")):
        with pytest.raises(Refusal) as caught:
            farm.queue.check(may, side, name)
        assert caught.value.reason is Reason.FORBIDDEN
    reader = farm_reader(farm, principal=may)
    assert reader.ask(*wire.summon(5, "w")) == [Response(5, b"400")]
    assert summon(reader, "r") == []
    writer = farm.writer(principal=may)
    put(writer, 1, "r")
    assert answers(writer) == [("reject", 1, False)]
    assert [info.name for info in farm.queues.describe()] == ["r"]


def test_a_name_must_leave_room_for_that_of_its_dead(farm: QueueFarm) -> None:
    somebody = farm.principal()
    for name in ("n" * MAX_NAME, "\u00e9" * (MAX_NAME // 2), "n" * MAX_NAME + DEAD):
        farm.queue.check(somebody, Side.READER, name)
    for name in ("n" * (MAX_NAME + 1), "\u00e9" * (MAX_NAME // 2) + "e", "n" * (MAX_NAME + 1) + DEAD):
        with pytest.raises(Refusal) as caught:
            farm.queue.check(somebody, Side.READER, name)
        assert caught.value.reason is Reason.PARAMETER


def test_when_there_are_too_many_queues_writers_wait_and_readers_are_ended(
    farm: QueueFarm, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(core, "MAX_QUEUES", 1)
    writer = farm.sender("a", "b")
    writer.put(1, resource="a")
    writer.put(2, resource="b")
    assert answers(writer) == [("confirm", 1, False), ("reject", 2, True)]
    reader = farm_reader(farm, "a", "b")
    assert len(summon(reader, "a")) == 1
    assert reader.ask(*wire.summon(5, "b")) == [Response(5, wire.OK)]
    assert reader.client is None
    assert farm.ends() == {"limit": 1}
    assert len(bodies_of_all(farm, "a")) == 1


def test_what_is_counted(farm: QueueFarm) -> None:
    writer, worker = farm.sender(), farm.worker()
    fill(writer, 3)
    confirm(worker, 1)
    reject(worker, 2, recycle=False)
    reject(worker, 3)
    assert farm.queue.counts() == {
        "mtl_queue.put": 3,
        "mtl_queue.duplicates": 0,
        "mtl_queue.delivered": 3,
        "mtl_queue.confirmed": 1,
        "mtl_queue.returned": 1,
        "mtl_queue.dead.rejected": 1,
        "mtl_queue.lost.rejected": 1,
    }


def test_after_a_restart_a_durable_queue_goes_on(durable: QueueFarm) -> None:
    writer, worker = durable.sender(), durable.worker(window=2)
    put(writer, 1, "q", b"1", x=1)
    for number in (2, 3):
        writer.put(number, b"%d" % number, "q")
    durable.commit()
    confirm(worker, 2)
    durable.data.end(worker.reading, "test")
    durable.commit()
    durable.store.close()
    durable.start()
    peer = farm_reader(durable, "q")
    first, second = summon(peer, "q")
    assert (first.body, first.says) == (
        b"1",
        {"x": 1, "user-id": "ann", "redelivered": True, "delivery-count": 2},
    )
    assert second.body == b"3"


@pytest.mark.parametrize("due", [float("inf"), 2**62])
def test_what_is_no_time_of_delivery_is_none_after_a_restart_either(durable: QueueFarm, due: float) -> None:
    put(durable.sender(), 1, "q", b"1", **{"deliver-at": due})
    durable.commit()
    durable.store.close()
    durable.start()
    [content] = summon(farm_reader(durable, "q"), "q")
    assert (content.body, "deliver-at" in content.says) == (b"1", False)


def test_after_a_restart_a_message_that_is_still_there_is_not_queued_again(tmp_path: Path) -> None:
    farm = QueueFarm(attrs.evolve(DURABLE, duplicates=True), str(tmp_path))
    writer = farm.sender()
    put(writer, 1, "q", b"1", message_id="x")
    put(writer, 2, "q", b"2")
    farm.commit()
    farm.store.close()
    farm.start()
    writer, other = farm.sender(), farm.sender(principal=farm.principal("bob"))
    put(writer, 1, "q", b"1", message_id="x")
    put(other, 1, "q", b"bob's", message_id="x")
    farm.commit()
    assert [each.body for each in summon(farm_reader(farm, "q"), "q")] == [b"1", b"2", b"bob's"]
    assert farm.queue.counts()["mtl_queue.duplicates"] == 1
    farm.store.close()


def test_a_content_without_properties_gets_those_of_the_broker(farm: QueueFarm) -> None:
    writer, worker = farm.sender(principal=farm.principal("")), farm.worker()
    writer.put(1, b"1", "q", EMPTY)
    assert got(worker)[0].says == {"redelivered": False, "delivery-count": 1}


# outside of a quantum, where life time has not gone on by itself


def test_the_next_reader_of_a_single_queue_begins_with_what_the_former_one_had() -> None:
    farm = QueueFarm(QueueSettings(single=True))
    first, second = farm.worker(window=2), farm.worker(window=3)
    sender = farm.sender()
    for number in range(1, 6):
        sender.put(number, b"%d" % number, "q")
    assert bodies(first) == [b"1", b"2"]
    first.drop()
    assert bodies(second) == [b"1", b"2", b"3"]
    second.say(*wire.confirm(3, True))
    assert bodies(second) == [b"4", b"5"]


def test_a_message_whose_time_passed_does_not_go_from_a_reader_that_is_gone_to_another(farm: QueueFarm) -> None:
    first = farm.worker()
    put(farm.sender(), 1, "q", b"late", ttl=1_000)
    second = farm.worker()
    assert bodies(first) == [b"late"]
    farm.clock.advance(2.0)
    first.drop()
    assert bodies(second) == []


def test_a_reader_that_has_room_again_is_not_sent_a_message_whose_time_passed(farm: QueueFarm) -> None:
    worker, sender = farm.worker(), farm.sender()
    worker.stop_reading()
    put(sender, 1, "q", b"lasting")
    put(sender, 2, "q", b"late", ttl=1_000)
    farm.clock.advance(2.0)
    worker.read_on()
    assert bodies(worker) == [b"lasting"]
