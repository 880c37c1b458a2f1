"""Confirmation over MTL from outside, with the profile "queue": Confirm and Reject both ways, windows, redelivery."""

from __future__ import annotations

import time
from itertools import chain
from typing import Any

import pytest

from tests.integration.daemon import Daemon
from tests.integration.mc0_clients import console, shown
from tests.integration.mtl_peers import Confirm, Content, Flow, Peers, Reject
from tests.patience import takes_less_than, until

LATEST = 4.0
"""Seconds until everybody knows that a connection was closed: one, and patience with a busy machine. A heartbeat has
five."""

AGAIN = {"redelivered": True, "delivery-count": 2}

FIRST = {"redelivered": False, "delivery-count": 1}


def queue(daemon: Daemon, name: str) -> dict[str, Any]:
    """Return the row of a queue at the console."""
    [found] = shown(daemon, f"mtl queues {name}")
    return found


def put(peers: Peers, name: str, count: int) -> Flow:
    """A writer that has put so many messages into a queue, "1" and so on, and knows that they are there."""
    writer = peers.writer("queue", name)
    assert writer.settled(*(writer.write(b"%d" % number) for number in range(1, count + 1))) == []
    return writer


def numbers(contents: list[Content]) -> list[int]:
    """Return the bodies of messages as numbers."""
    return [int(content.body) for content in contents]


@pytest.mark.parametrize("profile", ["test", "topic", "queue"])
def test_K01_what_is_not_confirmed_is_not_confirmed(peers: Peers, profile: str) -> None:
    name = "resource" if profile == "test" else "K01"
    reader = peers.reader(profile, name, confirm="none")
    writer = peers.writer(profile, name, confirm="none")
    for _ in range(50):
        writer.write(b"x")
    assert len(reader.contents(50)) == 50
    assert writer.heard() == reader.heard() == []


def test_K02_invalid_confirms_and_rejects_are_ignored_without_a_word(mtl: Daemon, peers: Peers) -> None:
    writer = put(peers, "K02", 3)
    reader = peers.reader("queue", "K02")
    reader.contents(3)
    flows = [reader, writer, peers.reader("test", "resource"), peers.writer("test"), peers.reader("topic", "K02")]
    stranger = peers.flow()
    for flow in [*flows, stranger]:
        for sequence in (0, 4, 2**64 - 1):
            for multiple in (False, True):
                flow.confirm(sequence, multiple)
                flow.reject(sequence, multiple, recycle=False)
                flow.reject(sequence, multiple, recycle=True)
    assert [flow.heard() for flow in flows] == [[]] * len(flows)
    assert stranger.lease("no") == "403", "and nothing before"
    assert queue(mtl, "K02")["unconfirmed"] == 3


def test_K03_each_content_of_a_writer_is_confirmed_once(peers: Peers) -> None:
    writer = peers.writer("queue", "K03", confirm="full")
    sent = [writer.write(b"x") for _ in range(500)]
    assert writer.settled(*sent) == []
    assert writer.heard() == []
    late = writer.write(b"x", sequence=10**15)
    assert writer.settled(late) == []
    for sequence in (10**15, 3):
        writer.write(b"x", sequence=sequence)
        assert writer.receive() == Reject(sequence, multiple=False, recycle=False), "sequences rise"
    for profile, name in (("topic", "K03"), ("registry", "load")):
        writer = peers.writer(profile, name, confirm="full")
        sent = [writer.write(b'{"load": 1}') for _ in range(20)]
        assert writer.settled(*sent) == []


def test_K04_confirms_settle_one_or_all_up_to_one(peers: Peers) -> None:
    put(peers, "K04", 20)
    reader = peers.reader("queue", "K04")
    assert [content.sequence for content in reader.contents(20)] == list(range(1, 21))
    reader.confirm(7)
    reader.confirm(5, multiple=True)
    reader.confirm(19)
    assert reader.heard() == []
    reader.close()
    left = peers.reader("queue", "K04").contents(13)
    assert numbers(left) == [6, *range(8, 19), 20]
    assert all(content.properties == AGAIN for content in left)


def test_K05_what_is_rejected_to_be_sent_again_is(peers: Peers) -> None:
    writer = peers.writer("queue", "K05")
    assert writer.settled(writer.write(b"x", "K05", {"type": "order", "n": 1})) == []
    reader = peers.reader("queue", "K05")
    first = reader.content()
    assert (first.sequence, first.properties) == (1, {"type": "order", "n": 1, **FIRST})
    reader.reject(1, recycle=True)
    again = reader.content()
    assert (again.sequence, again.body, again.resource) == (2, b"x", "K05")
    assert again.properties == {"type": "order", "n": 1, **AGAIN}


def test_K05_it_comes_back_to_its_place(mtl: Daemon, peers: Peers) -> None:
    put(peers, "place", 6)
    reader, other = (peers.reader("queue", "place", window=window) for window in (2, 1))
    assert numbers(reader.contents(2)) == [1, 2]
    assert numbers([other.content()]) == [3]
    reader.reject(1, recycle=True)
    assert numbers([reader.content()]) == [4], "not the one that it has just rejected"
    other.confirm(1)
    assert numbers([other.content()]) == [1], "before those that came after it"
    reader.close()
    until(lambda: queue(mtl, "place")["ready"] == 4)
    other.confirm(2)
    assert numbers([other.content()]) == [2]


def test_K06_what_is_rejected_for_good_is_sent_to_nobody(mtl: Daemon, peers: Peers) -> None:
    put(peers, "K06", 3)
    reader, other = peers.reader("queue", "K06"), peers.reader("queue", "K06")
    assert numbers(reader.contents(3)) == [1, 2, 3]
    reader.reject(2)
    reader.reject(3, multiple=True)
    until(lambda: queue(mtl, "K06")["unconfirmed"] == 0)
    assert queue(mtl, "K06")["ready"] == 0
    assert reader.heard() == other.heard() == []
    assert shown(mtl, "mtl queues K06.dead") == []


def test_K07_the_first_answer_counts(mtl: Daemon, peers: Peers) -> None:
    put(peers, "K07", 3)
    reader = peers.reader("queue", "K07")
    reader.contents(3)
    reader.confirm(1)
    reader.reject(1, recycle=True)
    reader.reject(2)
    reader.reject(2, recycle=True)
    reader.reject(3, recycle=True)
    reader.confirm(3)
    again = reader.content()
    assert (again.sequence, again.body) == (4, b"3")
    assert queue(mtl, "K07") | {"ready": 0, "unconfirmed": 1} == queue(mtl, "K07")


def test_K08_each_message_goes_to_one_reader_and_all_have_some(peers: Peers) -> None:
    readers = [peers.reader("queue", "K08") for _ in range(3)]
    put(peers, "K08", 30)
    got = [numbers([each for each in reader.heard() if isinstance(each, Content)]) for reader in readers]
    assert sorted(chain.from_iterable(got)) == list(range(1, 31))
    assert [len(each) for each in got] == [10, 10, 10]


def test_K09_a_dismiss_gives_nothing_back(mtl: Daemon, peers: Peers) -> None:
    writer = put(peers, "K09", 4)
    reader = peers.reader("queue", "K09")
    reader.contents(4)
    assert reader.dismiss("K09") == "200"
    other = peers.reader("queue", "K09")
    assert writer.settled(writer.write(b"5")) == []
    assert numbers([other.content()]) == [5], "the rest is still the first one's"
    reader.confirm(1)
    reader.reject(2, recycle=True)
    assert numbers([other.content()]) == [2]
    assert reader.heard() == []
    reader.close()
    assert numbers(other.contents(2)) == [3, 4]


def test_K10_a_reader_has_a_window(peers: Peers) -> None:
    writer = put(peers, "K10", 20)
    reader = peers.reader("queue", "K10", window=5)
    assert numbers(reader.contents(5)) == [1, 2, 3, 4, 5]
    assert reader.heard() == []
    reader.confirm(3)
    assert numbers([each for each in reader.heard() if isinstance(each, Content)]) == [6]
    reader.confirm(5, multiple=True)
    assert len(reader.contents(4)) == 4
    assert reader.heard() == []
    assert writer.heard() == []


def test_K10_and_one_of_bytes(peers: Peers) -> None:
    writer = peers.writer("queue", "bytes")
    for _ in range(8):
        assert writer.settled(writer.write(b"x" * 1_000_000)) == []
    reader = peers.reader("queue", "bytes")
    assert len(reader.contents(5)) == 5, "the fifth goes beyond 4 MiB"
    assert reader.heard() == []


def test_K11_what_a_reader_had_that_is_gone_goes_to_another(peers: Peers) -> None:
    put(peers, "K11", 5)
    gone = peers.reader("queue", "K11")
    gone.contents(5)
    gone.confirm(2)
    other = peers.reader("queue", "K11")
    gone.close()
    left = other.contents(4)
    assert numbers(left) == [1, 3, 4, 5]
    assert all(content.properties == AGAIN for content in left)


def test_K11_also_if_its_descriptor_was_anothers_a_moment_ago(mtl: Daemon, peers: Peers) -> None:
    control = peers.control().opened("queue")

    def two_go() -> float:
        for _ in range(2):
            reader = peers.flow()
            assert reader.lease(control.token("Reader", "descriptors")) == reader.summon("descriptors") == "200"
            reader.close()
        began = time.monotonic()
        until(lambda: queue(mtl, "descriptors")["readers"] == 0)
        return time.monotonic() - began

    for _ in range(3):
        takes_less_than(LATEST, two_go)


def test_poison_goes_to_the_queue_of_the_dead(mtl: Daemon, peers: Peers) -> None:
    put(peers, "poison-1", 1)
    reader = peers.reader("queue", "poison-1")
    for count in (1, 2):
        content = reader.content()
        assert content.properties["delivery-count"] == count
        reader.reject(content.sequence, recycle=True)
    dead = peers.reader("queue", "poison-1.dead").content()
    assert (dead.resource, dead.body) == ("poison-1.dead", b"1")
    assert dead.properties["death-reason"] == "deliveries"
    assert reader.heard() == []


def test_a_drain_gives_a_message_back_to_its_queue_and_to_no_reader_that_it_ends_too(mtl: Daemon, peers: Peers) -> None:
    put(peers, "poison-2", 1)
    readers = [peers.reader("queue", "poison-2") for _ in range(4)]
    readers[0].content()
    try:
        console(mtl, "drain 60")
        until(lambda: queue(mtl, "poison-2")["readers"] == 0)
        assert queue(mtl, "poison-2")["ready"] == 1
        assert shown(mtl, "mtl queues poison-2.dead") == []
    finally:
        console(mtl, "drain undo")
    content = peers.reader("queue", "poison-2").content()
    assert content.properties == AGAIN


def test_a_full_queue_is_refused_for_now(peers: Peers) -> None:
    writer = put(peers, "tiny-1", 3)
    sequence = writer.write(b"4")
    assert writer.receive() == Reject(sequence, multiple=False, recycle=True)
    unconfirmed = peers.writer("queue", "tiny-1", confirm="none")
    unconfirmed.write(b"5")
    assert unconfirmed.heard() == []
    reader = peers.reader("queue", "tiny-1")
    assert numbers(reader.contents(3)) == [1, 2, 3]
    reader.confirm(1)
    assert reader.heard() == []
    again = writer.write(b"4")
    assert writer.receive() == Confirm(again)
    assert numbers([reader.content()]) == [4]


def test_what_lives_too_long_is_not_delivered(mtl: Daemon, peers: Peers) -> None:
    writer = peers.writer("queue", "ttl")
    sent = [writer.write(b"1", "ttl", {"ttl": 1}), writer.write(b"2", "ttl", {"ttl": 60_000}), writer.write(b"3")]
    assert writer.settled(*sent) == []
    until(lambda: queue(mtl, "ttl")["ready"] == 2)
    assert peers.reader("queue", "ttl").bodies(2) == [b"2", b"3"]


def test_a_durable_message_is_confirmed_and_delivered(peers: Peers) -> None:
    writer = put(peers, "durable-1", 10)
    reader = peers.reader("queue", "durable-1")
    assert numbers(reader.contents(10)) == list(range(1, 11))
    reader.confirm(10, multiple=True)
    assert reader.heard() == writer.heard() == []


def test_what_a_writer_says_in_the_brokers_name_is_not_passed_on(peers: Peers) -> None:
    lies = {"user-id": "root", "delivery-count": 7, "redelivered": True, "death-reason": "old age", "x": "y"}
    writer = peers.writer("queue", "lies")
    writer.write(b"x", "lies", lies)
    assert peers.reader("queue", "lies").content().properties == {"x": "y", **FIRST}


def test_one_that_reads_several_queues_has_one_window(peers: Peers) -> None:
    for name in ("several-1", "several-2"):
        put(peers, name, 5)
    reader = peers.leased("queue", "Reader", "several-1", "several-2", window=6)
    assert reader.summon("several-1") == "200"
    assert numbers(reader.contents(5)) == [1, 2, 3, 4, 5]
    assert reader.summon("several-2") == "200"
    assert numbers([reader.content()]) == [1]
    assert reader.heard() == []
    reader.confirm(6, multiple=True)
    assert numbers(reader.contents(4)) == [2, 3, 4, 5]
