"""Every wire's sessions, with all that is behind them: whatever a peer sends, nothing is raised, and no failure logged.

The shapes are those of the codecs' own fuzz tests. Here they reach real sessions, registry, topics and leases. Another
peer of the wire is served afterwards as if nothing had been.
"""

from __future__ import annotations

import json
from contextlib import suppress
from tempfile import TemporaryDirectory
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from broker.core.model import PublishedHeaders
from broker.core.recorder import ValueRecorder
from broker.core.store import Store
from broker.operate.collected_log import CollectedLog
from broker.wires.elko.codec.broker_messages import VOCABULARY
from broker.wires.mtl.codec import data_messages, field_table
from broker.wires.mtl.sessions.access_policy import ConfirmMode, Side
from tests.fuzz import test_dbp as dbp
from tests.fuzz import test_mc0 as mc0
from tests.fuzz import test_mtl as mtl
from tests.recording.logs import nothing_fails
from tests.threads import TimedThread, immediately
from tests.wires.dbp.recording import DbpFarm, T
from tests.wires.mc0.recording import Mc0Farm
from tests.wires.mtl.control_recording import ControlFarm, Users
from tests.wires.mtl.profiles_recording import ProfilesFarm, put, summon
from tests.wires.mtl.queue_recording import QueueFarm
from tests.wires.recording import ElkoFarm, desc

# Elko

OPS = [str(each.__struct_config__.tag) for each in VOCABULARY.messages]
FIELDS = sorted({field for each in VOCABULARY.messages for field in each.__struct_encode_fields__} - {"to", "op"})
NAMES = ["bank", "", "elkobroker.x", "x" * 300, "\ud800", "*", "client", "admin", "h:1"]

names = st.sampled_from(NAMES)
scalars = st.none() | st.booleans() | st.integers() | st.floats() | names
descriptors = st.dictionaries(
    st.sampled_from(["service", "hostport", "protocol", "label", "provider", "failure", "type"]), scalars, max_size=5
)
values: st.SearchStrategy[Any] = st.one_of(
    scalars, st.lists(st.one_of(scalars, descriptors), max_size=3), descriptors, st.dictionaries(names, scalars)
)
elko_messages = st.builds(
    lambda to, op, fields: json.dumps({"to": to, "op": op, **fields}).encode(),
    st.sampled_from(["client", "admin", "broker", "error", "session", "?"]),
    st.one_of(st.sampled_from(OPS), st.sampled_from(["willserve", "load", "find", "watch"]), names),
    st.dictionaries(st.sampled_from(FIELDS), values, max_size=5),
)
elko_blocks = st.one_of(elko_messages, elko_messages, mtl.spoilt(elko_messages), st.binary(max_size=30))


@given(st.lists(elko_blocks, max_size=8), st.sampled_from(["client", "admin", None]))
def test_elko(blocks: list[bytes], role: str | None) -> None:
    with nothing_fails():
        farm = ElkoFarm()
        peer = farm.connect() if role is None else farm.client(name=role)
        for block in blocks:
            if not peer.closed:
                peer.send(block + b"\n\n")
            farm.clock.advance(1)
        if not peer.closed:
            peer.drop()
        provider = farm.client("provider")
        provider.offer(desc("peace"))
        assert [each["desc"][0]["hostport"] for each in farm.client().find("peace")] == ["h:1"]


# mc0


@given(st.lists(mc0.frame_lists, max_size=8))
def test_mc0(messages: list[list[bytes]]) -> None:
    with nothing_fails():
        farm = Mc0Farm()
        peer, bystander = farm.peer(), farm.peer("bystander")
        for frames in messages:
            peer.send(*frames)
            farm.wait(0.2)
        farm.restart(farm.record.known())
        assert bystander.ask("PUT|TOPIC|peace|ID|p||x") == ["OK|ID|p"]


# DBP


@given(st.lists(st.one_of(dbp.frame_lists, dbp.any_datagram), max_size=8))
def test_dbp(messages: list[list[bytes] | bytes]) -> None:
    with nothing_fails():
        farm = DbpFarm()
        peer = farm.dealer()
        for message in messages:
            if isinstance(message, bytes):
                farm.datagram(message)
            else:
                peer.send_raw(*message)
            farm.wait(0.2)
        farm.dealer().registered("peace")
        assert "peace" in farm.dealer().find("peace")


# MTL


@given(st.lists(st.tuples(mtl.commands, mtl.request_bodies), max_size=8), st.booleans())
def test_mtl_control(requests: list[tuple[bytes, bytes]], users: bool) -> None:
    with nothing_fails():
        farm = ControlFarm(Users(alice="secret") if users else None)
        peer = farm.peer()
        for command, body in requests:
            peer.send(b"", command, body)
            farm.threads.run()
            farm.wait(0.2)
        code, _ = farm.peer().open()
        assert code == (401 if users else 201)


reports = st.one_of(
    st.fixed_dictionaries({"load": scalars}), descriptors, st.fixed_dictionaries({"service": names, "hostport": names})
).map(lambda report: json.dumps(report).encode())
types = st.sampled_from(
    [field_table.EMPTY, field_table.encode({"type": "offer"}), field_table.encode({"type": "withdraw"})]
)
contents = st.builds(
    lambda sequence, resource, properties, body: data_messages.content(sequence, resource, properties, body),
    mtl.sequences,
    st.sampled_from(["service/bank", "service/elkobroker.x", "load", "load/bank", "services", "news"]),
    st.one_of(types, mtl.tables.filter(mtl.taken)),
    st.one_of(reports, st.binary(max_size=10)),
)
anything = st.one_of(contents, st.tuples(mtl.headers, mtl.bodies_of_data), st.lists(mtl.headers, max_size=3).map(tuple))


@given(st.lists(anything, max_size=8), st.sampled_from(["registry", "topic", "service"]), st.sampled_from(list(Side)))
def test_mtl_data(messages: list[tuple[Any, ...]], profile: str, side: Side) -> None:
    with nothing_fails():
        farm = ProfilesFarm()
        peer = farm.peer()
        peer.lease(farm.lease(side, profile=getattr(farm, profile), confirm=ConfirmMode.NONE))
        for message in messages:
            if peer.connected:
                peer.say(*message)
            farm.wait(0.2)
        writer = farm.peer()
        writer.lease(farm.lease(Side.WRITER, profile=farm.registry, confirm=ConfirmMode.FULL))
        body = json.dumps(desc("peace")).encode()
        [confirmed] = writer.ask(
            *data_messages.content(1, "service/peace", field_table.encode({"type": "offer"}), body)
        )
        assert isinstance(confirmed, data_messages.Confirm)


# last values, the collected log, and delayed messages

topics = st.one_of(
    st.sampled_from(
        [b"log.rohan", b"log.", b"log..", b"log.rohan.error", b"log.\xff", b"t", b"\xff", b"elkobroker.x", b""]
    ),
    st.binary(max_size=6).map(lambda tail: b"log." + tail),
)
headers_of_topics = st.lists(
    st.one_of(st.sampled_from([b"X-Level", b"fatal", b"X-\xff"]), st.binary(max_size=4)), max_size=6
)
bodies_of_topics = st.one_of(
    st.binary(max_size=20),
    st.dictionaries(st.sampled_from(["level", "message", "n", "time"]), values).map(
        lambda body: json.dumps(body).encode()
    ),
    st.sampled_from([b"", b"{", b"[" * 2_000, b'{"level":' + b"[" * 2_000, b"x" * 20_000]),
)
messages_of_topics = st.tuples(topics, headers_of_topics, st.lists(bodies_of_topics, max_size=3), st.booleans())


@given(st.lists(messages_of_topics, max_size=8))
def test_messages_that_are_kept_are_read_from_the_log_the_store_and_by_dbp(messages: list[Any]) -> None:
    with nothing_fails(), TemporaryDirectory() as directory:
        farm = DbpFarm()
        log = CollectedLog(f"{directory}/collected.jsonl", farm.clock, immediately)
        farm.topics.observer = log.publish
        farm.topics.last_values.every = True
        store = Store(f"{directory}/state")
        store.open()
        recorder = ValueRecorder(store, farm.clock, TimedThread(farm.clock, immediately))
        recorder.restore({}, farm.topics.last_values)
        for topic, said, body, retain in messages:
            headers = PublishedHeaders(said)
            headers.retain = retain
            farm.topics.publish(topic, headers, tuple(body), wire="mc0")
            farm.wait(0.2)
            farm.dealer().ask("u_U", T, b"lvc:" + topic)
            peer = farm.dealer()
            assert peer.ask("u_U", T, b"lvc:" + topic, b"lvc:none")
        lines, _ = log.records(0, lambda record: True, 1_000)[:2]
        assert all(json.loads(line) for line in lines)
        assert recorder.stop().called
        store.close(1)
        kept = store.open().last_values
        store.close(1)
        assert kept.keys() == {("", topic) for topic, *_ in messages if farm.topics.last(topic) is not None}
        assert all(value == farm.topics.last(topic) for (_, topic), value in kept.items())


times = st.one_of(scalars, st.sampled_from([0, 1, 50, 10**12, 2**53, -(2**31)]), st.just([50])).filter(
    lambda value: not isinstance(value, int) or abs(value) < 2**63
)


@given(st.lists(st.dictionaries(st.sampled_from(["delay", "deliver_at", "ttl", "message_id"]), times), max_size=8))
def test_delayed_messages(messages: list[dict[str, Any]]) -> None:
    with nothing_fails():
        farm = QueueFarm()
        writer = farm.sender()
        for sequence, said in enumerate(messages, 1):
            with suppress(ValueError, OverflowError, TypeError, UnicodeEncodeError):
                put(writer, sequence, "q", b"x", **said)
            farm.wait(0.2)
        assert writer.connected
        put(writer, 100, "q", b"peace")
        reader = farm.peer()
        reader.lease(farm.lease(Side.READER))
        assert b"peace" in [each.body for each in summon(reader, "q")]
