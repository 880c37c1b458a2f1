"""The data flow of MTL from outside: leases, Summon and Dismiss, Contents, encodings, and the profile "test".

The file is longer than others: its tests share one daemon, which is expensive to start.
"""

from __future__ import annotations

import struct
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.integration.daemon import Daemon
from tests.integration.mc0_clients import counters, shown
from tests.integration.mtl_peers import (
    CONFIRM,
    CONTENT,
    DISMISS,
    LEASE,
    PING,
    PONG,
    REJECT,
    RESPONSE,
    SUMMON,
    Content,
    Control,
    Flow,
    Peers,
    Reject,
    Response,
    head,
    peers_of,
    short,
    tail,
)
from tests.patience import takes_less_than, until

EMPTY = bytes(4)
"""The table without entries."""

NUMBERS = [0, 1, 2**31, 2**32, 2**53 + 1, 2**63, 2**64 - 1]


@pytest.fixture
def test(peers: Peers) -> Control:
    """A peer of the control flow, in the profile "test"."""
    return peers.control().opened("test")


@pytest.fixture
def reader(peers: Peers) -> Flow:
    """A reader of the profile "test" that has summoned its resource."""
    return peers.reader("test", "resource")


@pytest.fixture
def writer(peers: Peers) -> Flow:
    """A writer of the profile "test"."""
    return peers.writer("test", "resource")


@contextmanager
def writing(daemon: Daemon, body: bytes = b"x") -> Iterator[None]:
    """Somebody writes to the profile "test" all the while."""
    over = threading.Event()

    def write() -> None:
        with peers_of(daemon) as peers:
            writer = peers.writer("test", "resource")
            while not over.wait(0.0005):
                writer.write(body)

    thread = threading.Thread(target=write)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


# Lease and Response


def test_D01_D03_a_flow_begins_with_a_lease(peers: Peers, test: Control) -> None:
    flow = peers.flow()
    flow.say(head(LEASE, 7, short(test.token("Reader"))), b"")
    assert flow.socket.recv_multipart() == [b"\x02" + bytes(7) + b"\x07", b"200"]
    assert flow.heard() == []


@pytest.mark.parametrize("lease", ["", "nonsense", "x" * 255, "é" * 127, "Aa-_" * 8])
def test_D02_a_lease_that_is_none_is_forbidden(peers: Peers, lease: str) -> None:
    assert peers.flow().lease(lease) == "403"
    assert peers.writer("test").lease(lease) == "403", "also to who has another one"


@pytest.mark.parametrize("number", NUMBERS)
def test_D04_F01_sequences_come_back_bit_for_bit(peers: Peers, test: Control, number: int) -> None:
    flow = peers.flow()
    for kind, rest, code in [
        (LEASE, short("no"), "403"),
        (LEASE, short(test.token("Reader")), "200"),
        (SUMMON, short("resource"), "200"),
        (DISMISS, short("resource"), "200"),
        (CONTENT, tail("resource"), "403"),
    ]:
        flow.send(kind, rest, b"", number)
        assert flow.receive() == Response(number, code)


def test_D05_commands_may_be_pipelined(peers: Peers, test: Control) -> None:
    flow, token = peers.flow(), test.token("Reader", "resource")
    rest = short("resource")
    sent = [flow.send(LEASE, short(token)), *(flow.send(kind, rest) for kind in (SUMMON, DISMISS, SUMMON, SUMMON))]
    codes = ["200", "200", "200", "200", "400"]
    assert [flow.receive() for _ in sent] == list(map(Response, sent, codes))


def test_D06_nothing_goes_without_a_lease(peers: Peers, reader: Flow) -> None:
    flow = peers.flow()
    assert [flow.ask(kind, short("resource")) for kind in (SUMMON, DISMISS)] == ["403", "403"]
    sequence = flow.write(b"x", "resource")
    assert flow.receive() == Response(sequence, "403")
    assert reader.heard() == []


def test_D07_a_lease_in_use_is_for_nobody_else(peers: Peers, test: Control, writer: Flow) -> None:
    token = test.token("Reader", "resource")
    reader, thief = peers.flow(), peers.flow()
    assert reader.lease(token) == reader.summon("resource") == "200"
    assert thief.lease(token) == thief.summon("resource") == "403"
    writer.write(b"x")
    assert reader.content().body == b"x"
    reader.close()
    until(lambda: thief.lease(test.token("Writer")) == "200")
    assert thief.lease(token) == "403", "nor when its flow is over"


def test_D08_one_dealer_may_read_and_write(peers: Peers, test: Control) -> None:
    flow = peers.flow()
    assert [flow.lease(test.token(side)) for side in ("Reader", "Writer")] == ["200", "200"]
    assert flow.summon("resource") == "200"
    flow.write(b"x")
    assert flow.content().body == b"x"
    assert [flow.lease(test.token(side)) for side in ("Reader", "Writer")] == ["403", "403"]
    flow.write(b"y")
    assert flow.content().body == b"y"


def test_D10_the_same_lease_again_is_no_mistake(peers: Peers, test: Control, writer: Flow) -> None:
    token = test.token("Reader")
    reader = peers.flow()
    assert reader.lease(token) == reader.summon("resource") == reader.lease(token) == "200"
    writer.write(b"x")
    assert reader.content().body == b"x"


# Summon and Dismiss


def test_S01_S08_what_is_summoned_can_be_dismissed_and_summoned_again(peers: Peers, writer: Flow) -> None:
    witness, reader = peers.reader("test", "resource"), peers.reader("test", "resource")
    writer.write(b"1")
    assert (reader.content().body, witness.content().body) == (b"1", b"1")
    assert reader.dismiss("resource") == "200"
    writer.write(b"2")
    assert witness.content().body == b"2"
    assert reader.heard() == []
    assert reader.summon("resource") == "200"
    writer.write(b"3")
    assert reader.content() == Content(2, "resource", EMPTY, b"3")


@pytest.mark.parametrize("name", ["nonsense", "", "Resource", "x" * 255, "resource "])
def test_S02_S10_what_is_not_in_the_lease_cannot_be_summoned_or_dismissed(peers: Peers, name: str) -> None:
    for resources in (["resource"], []):
        reader = peers.leased("test", "Reader", *resources)
        assert [reader.summon(name), reader.dismiss(name)] == ["400", "400"]
        assert reader.summon("resource") == "200"
        assert [reader.summon(name), reader.dismiss(name)] == ["400", "400"]
    topic = peers.leased("topic", "Reader", "in the lease")
    assert topic.summon(name) == "400"


def test_S03_a_second_summon_is_refused_and_doubles_nothing(reader: Flow, writer: Flow) -> None:
    assert reader.summon("resource") == "400"
    sent = [writer.write(b"x") for _ in range(3)]
    assert [reader.content().sequence for _ in sent] == [1, 2, 3]
    assert reader.heard() == []


def test_S04_what_is_not_summoned_cannot_be_dismissed(peers: Peers) -> None:
    reader = peers.leased("test", "Reader", "resource")
    assert reader.dismiss("resource") == "400"
    assert reader.summon("resource") == "200"
    assert [reader.dismiss("resource"), reader.dismiss("resource")] == ["200", "400"]


def test_S05_there_is_no_content_before_a_summon(peers: Peers, reader: Flow, writer: Flow) -> None:
    quiet = peers.leased("test", "Reader", "resource")
    writer.write(b"x")
    assert reader.content().body == b"x"
    assert quiet.heard() == []


def test_S06_S07_contents_come_between_the_two_answers_only(mtl: Daemon, peers: Peers, reader: Flow) -> None:
    one = peers.leased("test", "Reader", "resource")
    with writing(mtl):
        last = 0
        for _ in range(20):
            assert one.summon("resource") == "200", "before any Content"
            for content in one.contents(3):
                last += 1
                assert content.sequence == last
            dismissal = one.send(DISMISS, short("resource"))
            while isinstance(command := one.receive(), Content):
                last += 1
                assert command.sequence == last
            assert command == Response(dismissal, "200")
            reader.heard()
            reader.contents(2)  # which the other one is not sent
            assert one.heard() == []


def test_S09_a_writer_cannot_summon(writer: Flow) -> None:
    assert [writer.summon("resource"), writer.dismiss("resource")] == ["400", "400"]


def test_S10_a_lease_for_all_is_for_each_by_name(peers: Peers) -> None:
    assert peers.leased("test", "Reader").summon("resource") == "200"
    registry = peers.leased("registry", "Reader")
    assert [registry.ask(SUMMON, short(name)) for name in ("nonsense", "service/", "")] == ["400"] * 3
    assert registry.summon("load/of nobody") == "200"


# Contents


def test_W01_F01_contents_have_the_same_form_both_ways(reader: Flow, writer: Flow) -> None:
    properties = bytes.fromhex("0000000f 01 74 74 01 01 6e 6c fffffffffffffffe".replace(" ", ""))
    writer.say(b"\x05" + bytes(7) + b"\x2a" + b"\x08resource" + properties, b"body")
    assert reader.socket.recv_multipart() == [b"\x05" + bytes(7) + b"\x01" + b"\x08resource" + properties, b"body"]


@pytest.mark.parametrize(
    "body", [b"", bytes(range(256)), b"\0", b"x" * 256, b"\xff" * (1 << 20)], ids=["empty", "all", "0", "256", "1 MiB"]
)
def test_W02_bodies_are_opaque(reader: Flow, writer: Flow, body: bytes) -> None:
    writer.write(body)
    assert reader.content().body == body


@pytest.mark.parametrize("resources", [[], ["resource"]])
def test_W03_the_name_may_be_left_out_where_there_is_one_resource(
    peers: Peers, reader: Flow, resources: list[str]
) -> None:
    writer = peers.writer("test", *resources)
    writer.write(b"x", "")
    writer.write(b"x", "resource")
    assert [content.resource for content in reader.contents(2)] == ["resource", "resource"]
    assert writer.heard() == []


def test_W04_the_name_is_required_where_there_are_several(peers: Peers) -> None:
    reader = peers.reader("topic", "several 1", "several 2")
    for resources in (["several 1", "several 2"], []):
        writer = peers.writer("topic", *resources, confirm="none")
        sequence = writer.write(b"x", "")
        assert writer.receive() == Response(sequence, "400")
        writer = peers.writer("topic", *resources, confirm="full")
        sequence = writer.write(b"x", "")
        assert writer.receive() == Reject(sequence, multiple=False, recycle=False)
    one = peers.writer("topic", "several 2")
    one.write(b"y", "")
    assert reader.content().body == b"y"


def test_W05_the_server_says_which_of_several_it_is(peers: Peers) -> None:
    reader = peers.reader("topic", "says 1", "says 2")
    writer = peers.writer("topic")
    for name in ("says 1", "says 2", "says 1"):
        writer.write(b"x", name)
    assert [content.resource for content in reader.contents(3)] == ["says 1", "says 2", "says 1"]


def test_W06_contents_outside_of_the_lease_are_refused(peers: Peers) -> None:
    reader = peers.reader("topic", "inside", "outside")
    writer = peers.writer("topic", "inside", confirm="none")
    sequence = writer.write(b"x", "outside")
    assert writer.receive() == Response(sequence, "400")
    confirmed = peers.writer("topic", "inside", confirm="full")
    sequence = confirmed.write(b"x", "outside")
    assert confirmed.receive() == Reject(sequence, multiple=False, recycle=False)
    writer.write(b"y", "inside")
    assert reader.content().body == b"y"
    nowhere = peers.writer("test")
    sequence = nowhere.write(b"x", "nonsense")
    assert nowhere.receive() == Response(sequence, "400")


def test_W07_readers_do_not_write(reader: Flow) -> None:
    sequence = reader.write(b"x")
    assert reader.receive() == Response(sequence, "403")
    assert reader.heard() == []


ALL_TYPES = {
    b"t": b"\1",
    b"b": b"\x80",
    b"B": b"\xff",
    b"s": b"\x80\0",
    b"u": b"\xff\xff",
    b"I": b"\x80\0\0\0",
    b"i": b"\xff\xff\xff\xff",
    b"l": b"\x80" + bytes(7),
    b"L": b"\xff" * 8,
    b"f": struct.pack(">f", 0.1),
    b"d": struct.pack(">d", -0.0),
    b"D": b"\x02\0\0\x04\xe2",
    b"T": bytes(6) + b"\1\0",
    b"S": b"\0\0\0\3\xe2\x82\xac",
    b"x": b"\0\0\0\2\0\xff",
    b"V": b"",
    b"F": b"\0\0\0\3\1kV",
    b"A": b"\0\0\0\2t\0",
}
"""A value of each."""


def entries(*values: bytes, key: bytes = b"key") -> bytes:
    """A table of values with their tags, of which each has a key of its own."""
    data = b"".join(short(key + b"%d" % number) + value for number, value in enumerate(values))
    return len(data).to_bytes(4) + data


def test_W08_properties_of_every_type_arrive_unchanged(reader: Flow, writer: Flow) -> None:
    assert len(ALL_TYPES) == 18
    tables = [entries(tag + value) for tag, value in ALL_TYPES.items()]
    tables.append(entries(*(tag + value for tag, value in ALL_TYPES.items())))
    tables.append(entries(b"V", key="clé €".encode()))
    for properties in tables:
        writer.send(CONTENT, short("resource") + properties, b"x")
        assert reader.content().table == properties


def test_W09_W10_what_one_writes_arrives_in_order_and_numbered(reader: Flow, writer: Flow) -> None:
    number = 0
    for _ in range(20):
        for _ in range(100):
            number += 1
            writer.write(b"%d" % number)
        for content in reader.contents(100):
            assert (content.sequence, content.body) == (int(content.body), content.body)
    assert (number, reader.heard()) == (2000, [])


def nested(depth: int) -> bytes:
    """A value of tables in each other."""
    value = b"V"
    for _ in range(depth):
        data = b"\1k" + value
        value = b"F" + len(data).to_bytes(4) + data
    return value


BAD_TABLES = {
    "too short": b"\0\0\0",
    "longer than it says": EMPTY + b"\1kV",
    "shorter than it says": b"\0\0\0\4\1kV",
    "unknown type": entries(b"?"),
    "value cut": b"\0\0\0\7\1kl\0\0\0\0",
    "text beyond the end": entries(b"S\0\0\1\0x"),
    "Boolean of 2": entries(b"t\2"),
    "empty key": b"\0\0\0\2\0V",
    "key without a value": b"\0\0\0\4\3key",
    "key twice": b"\0\0\0\6\1kV\1kV",
    "text that is not UTF-8": entries(b"S\0\0\0\1\xff"),
    "key that is not UTF-8": b"\0\0\0\3\1\xffV",
    "too deep": entries(nested(9)),
    "list cut": entries(b"A\0\0\0\1l"),
    "too large": entries(*[b"S\0\0\x40\0" + b"x" * 16_384] * 4),
}


@pytest.mark.parametrize("properties", BAD_TABLES.values(), ids=BAD_TABLES)
def test_W11_contents_with_a_bad_table_are_dropped(reader: Flow, writer: Flow, properties: bytes) -> None:
    writer.send(CONTENT, short("resource") + properties, b"bad")
    assert writer.heard() == []
    writer.send(CONTENT, short("resource") + entries(nested(8)), b"good")
    assert reader.content().body == b"good"


# heartbeats


def test_H01_H04_a_ping_is_answered_by_a_pong(reader: Flow) -> None:
    for body in (b"", b"anybody there?"):
        reader.say(b"\x08", body)
        assert reader.socket.recv_multipart() == [b"\x09", b""]


def test_H02_each_ping_has_its_pong(reader: Flow, writer: Flow) -> None:
    for flow in (reader, writer):
        for _ in range(200):
            flow.say(b"\x08", b"")
        assert [flow.socket.recv_multipart() for _ in range(200)] == [[b"\x09", b""]] * 200


def test_H03_a_pong_that_nobody_asked_for_is_nothing(peers: Peers, reader: Flow) -> None:
    for _ in range(3):
        reader.say(b"\x09", b"")
    assert reader.heard() == []
    stranger = peers.flow()
    stranger.say(b"\x09", b"")
    assert stranger.lease("no") == "403"


def test_H05_a_ping_without_a_lease_is_forbidden(peers: Peers) -> None:
    """So a client of a broker that was started again notices."""
    flow = peers.flow()
    flow.say(b"\x08", b"")
    assert flow.receive() == Response(0, "403")
    assert flow.lease("no") == "403"


# encodings, and commands that are none


def test_F01_short_strings_have_0_to_255_bytes(peers: Peers) -> None:
    name = "é" * 127 + "x"
    reader, writer = peers.reader("topic", name), peers.writer("topic", name)
    writer.write(b"1", name)
    writer.write(b"2", "")
    assert [(each.resource, each.body) for each in reader.contents(2)] == [(name, b"1"), (name, b"2")]


@pytest.mark.parametrize("name", [b"\n", b"a\0", b"\x7f", b"\xff", b"\xc2\x85", b"\xed\xa0\x80", b"\xe2\x80\xa8"])
def test_F02_short_strings_are_printable(mtl: Daemon, reader: Flow, writer: Flow, name: bytes) -> None:
    before = counters(mtl)["mtl_ill_formed.string"]
    for kind in (LEASE, SUMMON, DISMISS):
        reader.send(kind, short(name))
    assert reader.heard() == []
    writer.send(CONTENT, short(name) + EMPTY, b"x")
    assert writer.heard() == []
    assert counters(mtl)["mtl_ill_formed.string"] == before + 4


@pytest.mark.parametrize("value", [2, 0x31, 0xFF])
def test_F03_booleans_are_0_or_1(peers: Peers, value: int) -> None:
    name = f"booleans {value}"
    reader, writer = peers.reader("queue", name), peers.writer("queue", name)
    writer.write(b"x")
    sequence = reader.content().sequence
    for booleans in ([value], [value, 0], [0, value]):
        reader.send(CONFIRM if len(booleans) == 1 else REJECT, bytes(booleans), b"", sequence)
    assert reader.heard() == []
    reader.close()
    assert peers.reader("queue", name).content().body == b"x", "it was not settled"


@pytest.mark.parametrize(
    "frames",
    [
        [b"\x08"],
        [b"\x08", b"", b""],
        [b"", b"\x08", b""],
        [b"\x08", *[b""] * 100],
        [b"", b""],
        [b"", b"\x08"],
        [b""],
    ],
    ids=["one", "three", "a delimiter", "many", "empty", "empty header", "nothing"],
)
def test_X01_other_frames_are_dropped(reader: Flow, writer: Flow, frames: list[bytes]) -> None:
    for flow in (reader, writer):
        flow.say(*frames)
        assert flow.heard() == []
    writer.write(b"x")
    assert reader.content().body == b"x"


def test_X02_types_that_there_are_not_are_dropped(mtl: Daemon, reader: Flow) -> None:
    before = counters(mtl)["mtl_ill_formed.type"]
    for kind in (0, *range(10, 256)):
        reader.say(bytes([kind]), b"")
        reader.send(kind, short("resource"))
    assert reader.heard() == []
    assert counters(mtl)["mtl_ill_formed.type"] == before + 2 * 247


COMMANDS = [
    head(LEASE, 1, short("lease")),
    head(SUMMON, 1, short("resource")),
    head(DISMISS, 1, short("resource")),
    head(CONTENT, 1, tail("resource", {"a": "b"})),
    head(CONFIRM, 1, b"\0"),
    head(REJECT, 1, b"\0\1"),
]


def test_X03_fields_that_are_cut_are_dropped(peers: Peers) -> None:
    flow = peers.reader("test", "resource")
    for side in (flow, peers.writer("test", "resource"), peers.reader("queue", "cut")):
        for command in COMMANDS:
            for size in range(len(command)):
                side.say(command[:size], b"")
        assert side.heard() == []
    assert flow.dismiss("resource") == "200"


def test_X04_so_are_bytes_behind_the_last_field(reader: Flow) -> None:
    for command in [*COMMANDS, b"\x08", b"\x09", head(RESPONSE, 1)]:
        for more in (b"\0", b"\1", b"more"):
            reader.say(command + more, b"200")
    assert reader.heard() == []


def test_X05_a_response_from_a_client_is_dropped(mtl: Daemon, peers: Peers, reader: Flow) -> None:
    before = counters(mtl)["mtl_ignored.response"]
    for body in (b"200", b"403", b"", b"no!"):
        reader.send(RESPONSE, b"", body)
    assert reader.heard() == []
    assert counters(mtl)["mtl_ignored.response"] == before + 2, "the other two are ill-formed"
    stranger = peers.flow()
    stranger.send(RESPONSE, b"", b"200")
    assert stranger.lease("no") == "403"


def test_X06_a_body_where_none_is_used_does_not_matter(peers: Peers, test: Control, writer: Flow) -> None:
    reader = peers.flow()
    named = [(kind, "resource") for kind in (SUMMON, DISMISS, SUMMON)]
    for kind, text in [(LEASE, test.token("Reader")), *named]:
        sequence = reader.send(kind, short(text), b"a body")
        assert reader.receive() == Response(sequence, "200")
    writer.write(b"x")
    reader.contents(1)
    queue = peers.reader("queue", "bodies")
    peers.writer("queue", "bodies").write(b"x")
    queue.send(CONFIRM, b"\0", b"a body", queue.content().sequence)
    assert queue.heard() == []


# the profile "test"


def test_T01_T02_there_is_one_resource(peers: Peers, test: Control) -> None:
    reader = peers.flow()
    assert reader.lease(test.token("Reader")) == "200"
    assert reader.summon("Resource") == reader.summon("resources") == "400"
    assert reader.summon("resource") == "200"
    assert test.lease("Writer", "Resource").code == "400"


def test_T03_each_content_goes_to_every_reader_once(peers: Peers) -> None:
    readers = [peers.reader("test", "resource") for _ in range(5)]
    writers = [peers.writer("test", "resource") for _ in range(3)]
    for number in range(100):
        for who, writer in enumerate(writers):
            writer.write(b"%d %d" % (who, number))
    for reader in readers:
        contents = reader.contents(300)
        assert [content.sequence for content in contents] == list(range(1, 301))
        for who in range(3):
            own = [content.body for content in contents if content.body.startswith(b"%d" % who)]
            assert own == [b"%d %d" % (who, number) for number in range(100)]
    assert all(reader.heard() == [] for reader in readers)


def test_T04_nothing_is_kept_for_who_comes_later(peers: Peers, reader: Flow, writer: Flow) -> None:
    writer.write(b"early")
    assert reader.content().body == b"early"
    late = peers.reader("test", "resource")
    writer.write(b"late")
    assert late.content() == Content(1, "resource", EMPTY, b"late")


def test_T05_who_leaves_does_not_stop_the_others(peers: Peers, mtl: Daemon, writer: Flow) -> None:
    dismissed, vanished, other = (peers.reader("test", "resource") for _ in range(3))
    assert dismissed.dismiss("resource") == "200"
    before = counters(mtl)["mtl_flows.closed"]
    vanished.close()
    writer.write(b"1")
    until(lambda: counters(mtl)["mtl_flows.closed"] + counters(mtl)["mtl_flows.gone"] > before)
    writer.write(b"2")
    assert other.bodies(2) == [b"1", b"2"]


def test_T06_nor_does_one_that_does_not_read(mtl: Daemon, peers: Peers, writer: Flow) -> None:
    """Contents that it does not take are dropped; meanwhile others get every Content."""
    lazy = peers.flow(rcvhwm=1, rcvbuf=8_192)
    assert lazy.lease(peers.control().opened("test").token("Reader")) == lazy.summon("resource") == "200"
    readers = [peers.reader("test", "resource") for _ in range(2)]
    before = counters(mtl)
    body = b"x" * 1_024
    for _ in range(40):
        for _ in range(200):
            writer.write(body)
        for reader in readers:
            assert reader.bodies(200) == [body] * 200
    after = counters(mtl)
    assert sum(after[f"mtl_dropped.{why}"] - before[f"mtl_dropped.{why}"] for why in ("full", "held")) > 0
    assert [reader.heard() for reader in readers] == [[], []]


def test_virtual_hosts_have_nothing_to_do_with_each_other(peers: Peers) -> None:
    for profile, name in (("test", "resource"), ("topic", "hosts"), ("queue", "hosts")):
        here, there = (peers.reader(profile, name, host=host) for host in ("/", "elsewhere"))
        peers.writer(profile, name, host="elsewhere").write(b"there")
        assert there.content().body == b"there"
        assert here.heard() == []


# both flows on one socket, and what else depends on the connection


def test_a_frame_that_is_too_large_closes_its_connection_and_no_other(peers: Peers, reader: Flow, writer: Flow) -> None:
    large = peers.writer("test", "resource")
    large.write(b"x" * 2_000_001)

    def answered() -> bool:
        large.say(bytes([PING]), b"")  # which may be lost with the connection
        return not large.hears_nothing(0.2)

    until(answered)
    assert large.receive() == Response(0, "403"), "it is another connection now"
    writer.write(b"x")
    assert reader.content().body == b"x"


def test_a_client_that_chose_its_identity_does_not_inherit_a_flow(mtl: Daemon, peers: Peers) -> None:
    control, name = peers.control().opened("topic"), "of a chosen identity"

    def is_over() -> bool:
        return not any(name in flow.get("summoned", ()) for flow in shown(mtl, "mtl flows topic"))

    flow = peers.flow(routing_id=b"chosen")
    assert flow.lease(control.token("Reader")) == flow.summon(name) == "200"
    assert not is_over()
    flow.close()
    until(is_over)
    again = peers.flow(routing_id=b"chosen")
    again.say(bytes([PING]), b"")
    assert again.receive() == Response(0, "403")
    assert again.lease(control.token("Writer")) == "200"
    assert again.summon(name) == "400"


def test_a_flow_that_is_over_hears_403_and_may_lease_again(mtl: Daemon, peers: Peers, test: Control) -> None:
    flow = peers.flow()
    assert flow.lease(test.token("Reader")) == flow.summon("resource") == "200"

    def again() -> float:
        flow.socket.disconnect(flow.address)
        before = time.monotonic()
        flow.socket.connect(flow.address)
        flow.say(bytes([PONG]), b"")
        flow.say(bytes([PING]), b"")
        assert flow.receive() == Response(0, "403")
        assert flow.lease(test.token("Reader")) == flow.summon("resource") == "200"
        return time.monotonic() - before

    takes_less_than(5, again)
