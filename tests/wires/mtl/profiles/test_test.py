"""The profile "test" of MTL: who gets what.

Tests are named after the rows of tests/contract/test_mtl_conformance.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from decimal import Decimal

import pytest

from broker.core.errors import Reason, Refusal
from broker.wires.mtl.codec import data_messages as wire
from broker.wires.mtl.codec import field_table
from broker.wires.mtl.codec.data_messages import Response
from broker.wires.mtl.profiles.topic_profile import RESOURCE
from broker.wires.mtl.sessions.access_policy import ConfirmMode, Side
from tests.recording.logs import nothing_fails
from tests.wires.mtl.data_recording import MtlFarm

EVERY_TYPE = (
    b"\1at\1" b"\1bb\xff" b"\1cB\xff" b"\1ds\xff\xfe" b"\1eu\xff\xfe" b"\1fI\xff\0\0\1" b"\1gi\xff\0\0\1"
    b"\1hl\xff\0\0\0\0\0\0\1" b"\1iL\xff\0\0\0\0\0\0\1" b"\1jf\x3f\x80\0\0" b"\1kd\x3f\xf0\0\0\0\0\0\0"
    b"\1lD\2\0\0\4\xd2" b"\1mT\0\0\1\x9a\xa0\0\0\0" b"\1nS\0\0\0\2\xc3\xa9" b"\1ox\0\0\0\2\xff\0" b"\1pV"
    b"\1qF\0\0\0\3\1aV" b"\1rA\0\0\0\3Vt\0"
)  # fmt: skip
"""One entry of each of the 18 types."""


@pytest.fixture
def farm() -> Iterator[MtlFarm]:
    with nothing_fails():
        yield MtlFarm()


def test_T02_there_is_exactly_one_resource(farm: MtlFarm) -> None:
    somebody = farm.principal()
    for side in Side:
        farm.test.check(somebody, side, RESOURCE)
        for name in ("Resource", "RESOURCE", "other", "resource2"):
            with pytest.raises(Refusal) as caught:
                farm.test.check(somebody, side, name)
            assert caught.value.reason is Reason.PARAMETER
    reader, writer = farm.reader(), farm.writer()
    assert reader.ask(*wire.summon(5, "Resource")) == [Response(5, b"400")]
    writer.put(5, resource="Resource")
    assert writer.take() == [Response(5, b"400")]
    writer.put(6, resource="")
    assert reader.bodies() == [b"x"]


def test_T03_what_any_writer_sends_goes_to_all_readers_once(farm: MtlFarm) -> None:
    readers = [farm.reader() for _ in range(5)]
    writers = [farm.writer() for _ in range(3)]
    sent = []
    for number in range(100):
        for name, writer in enumerate(writers):
            sent.append(b"%d %d" % (name, number))
            writer.put(number, sent[-1])
    for reader in readers:
        assert reader.bodies() == sent


def test_T03_each_virtual_host_is_for_itself(farm: MtlFarm) -> None:
    here, there = ({"principal": farm.principal(host=host)} for host in ("/here", "/there"))
    readers = [farm.reader(RESOURCE, **lease) for lease in (here, there)]
    for reader in readers:
        reader.say(*wire.summon(2, RESOURCE))
        reader.take()
    farm.writer(**here).put(1)
    assert [reader.bodies() for reader in readers] == [[b"x"], []]


def test_T04_nothing_is_kept_for_late_readers(farm: MtlFarm) -> None:
    writer = farm.writer()
    writer.put(1, b"early")
    reader = farm.reader()
    writer.put(2, b"late")
    assert reader.bodies() == [b"late"]


def test_T05_a_reader_that_dismissed_or_vanished_does_not_stop_the_others(farm: MtlFarm) -> None:
    readers = [farm.reader() for _ in range(5)]
    writer = farm.writer()
    readers[0].say(*wire.dismiss(5, RESOURCE))
    readers[1].drop()
    for number in range(3):
        writer.put(number)
        farm.wait(0.1)
    assert [len(reader.bodies()) for reader in readers[2:]] == [3, 3, 3]
    assert readers[0].take() == [Response(5, b"200")]
    assert len(farm.data) == 5
    assert farm.counted("mtl_dropped.gone") == 0, "its flow ended with its connection"


def test_T07_nothing_is_ever_confirmed(farm: MtlFarm) -> None:
    assert farm.test.confirms == {Side.READER: (ConfirmMode.NONE,), Side.WRITER: (ConfirmMode.NONE,)}


def test_W01_a_content_is_a_header_and_a_body_both_ways(farm: MtlFarm) -> None:
    reader, writer = farm.reader(), farm.writer()
    writer.say(b"\x05\0\0\0\0\0\0\0\x63\x08resource\0\0\0\0", b"body")
    assert reader.take_frames() == [(b"\x05\0\0\0\0\0\0\0\1\x08resource\0\0\0\0", b"body")]


@pytest.mark.parametrize("body", [b"", bytes(range(256)), bytes(1024 * 1024), b"\x05" * 300])
def test_W02_a_body_may_be_anything(farm: MtlFarm, body: bytes) -> None:
    reader, writer = farm.reader(), farm.writer()
    writer.put(1, body)
    assert reader.bodies() == [body]


@pytest.mark.parametrize("named", [True, False])
def test_W05_readers_are_always_told_the_resource(farm: MtlFarm, named: bool) -> None:
    reader, writer = farm.reader(), farm.writer()
    properties = field_table.encode({"a": "bc"})
    writer.put(1, resource=RESOURCE if named else "", table=properties)
    [content] = reader.take()
    assert isinstance(content, wire.Content)
    assert (content.resource, content.table) == (RESOURCE, properties)


def test_W08_properties_of_every_type_are_passed_on_as_they_are(farm: MtlFarm) -> None:
    properties = len(EVERY_TYPE).to_bytes(4) + EVERY_TYPE
    assert len(field_table.decode(properties)) == 18
    assert field_table.decode(properties)["l"] == Decimal("12.34")
    reader, writer = farm.reader(), farm.writer()
    for each in (properties, field_table.encode({"user-id": "mallory"}), field_table.EMPTY):
        writer.put(1, table=each)
        [content] = reader.take()
        assert isinstance(content, wire.Content)
        assert content.table == each


def test_when_nobody_reads_nothing_is_sent_and_nothing_kept(farm: MtlFarm) -> None:
    writer = farm.writer()
    for number in range(10):
        writer.put(number)
    assert writer.take() == []
    assert farm.counted("mtl_contents.received") == 10
    assert farm.counted("mtl_contents.delivered") == 0
