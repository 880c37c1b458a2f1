"""mc0 sessions: whatever peers say, however they read, come and go, and whatever time and the operator do.

A model of a few peers goes along. Invariants at each step:

- nothing fails, and nothing is sent that the real connector could not read (an empty header value, above all);
- every command that is to be answered is answered once, in order, and at once; only a peer that does not read, and for
  which so many answers wait as may, gets none;
- a message comes to those who are subscribed and have room, to nobody else, and in the order of its publisher;
- a session with a TTL ends when its peer was silent for too long, and not before; one without a TTL when its connection
  ends, or later if it has subscriptions; then nothing comes any more;
- no connection with another key gets an identity that is bound, or a message.

In the end nothing is left of any of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack

import attrs
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from broker.core.liveness import SLACK
from broker.net.peer_interfaces import envelope_size
from broker.wires.common.registry_topics import TopicRights, rights_of
from broker.wires.mc0.codec import mc0_messages as wire
from broker.wires.mc0.sessions.conversation import CONNECTOR
from broker.wires.mc0.sessions.mc0_session import EXPIRES
from broker.wires.mc0.sessions.session_table import CHECKS_PER_TTL, MIN_TTL, RECONNECT_WITHIN
from tests.fuzz.test_mc0 import frame_lists
from tests.recording.farm import STEP
from tests.recording.logs import nothing_fails
from tests.wires.mc0.codec.examples import read_as_the_connector
from tests.wires.mc0.recording import Mc0Farm, Mc0Peer, Rule
from tests.wires.mc0.recording import rule as topic_rule

KEYS = {"K0": "web1", "K1": "web2", "K2": "operator"}

OWNERS = ["K0", "K0", "K1", "K2", ""]
"""The keys of the peers. (A broker has keys for all or for none, but that is nothing to the sessions.)"""

TOPICS = [b"t", b"mcollective nodes web1", b"for operator", b"\0\xff", b"elkobroker.load"]

TABLES: list[tuple[Rule, ...]] = [
    (),
    (topic_rule("*", "*", "*"),),
    (topic_rule("operator anonymous", "*", "t*"), topic_rule("web*", "t", "*")),
    (topic_rule("web1"), topic_rule("*", "mco* t", "t elkobroker.*")),
]

MARK = b"\0numbered"
"""Begins the bodies that have a publisher and a number."""

peers = st.integers(0, len(OWNERS) - 1)
topics = st.sampled_from(TOPICS)
ids = st.booleans()


@attrs.frozen
class Owed:
    """The answer that is to come to a message."""

    verb: bytes
    id: bytes | None


class Model:
    """The expected state of one peer."""

    def __init__(self, number: int, peer: Mc0Peer) -> None:
        self.number = number
        self.peer = peer
        self.sent = 0
        self.numbers: dict[bytes, int] = {}
        self.bound = False
        self.end()

    def end(self) -> None:
        """It has no session any more."""
        self.session = False
        self.version: bytes | None = None
        self.ttl = 0.0
        self.heard = 0.0
        self.heard_through: object = None
        self.topics: set[bytes] = set()
        self.refused: set[bytes] = set()

    @property
    def room(self) -> bool:
        """True if it is connected, and a message for it finds room."""
        return self.peer.line is not None and self.peer.connected and self.peer.line.room != 0

    @property
    def lasts(self) -> bool:
        """True if its session is kept by its connection."""
        return not self.ttl and self.peer.connected and self.heard_through is self.peer.line


class Conversations(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.stack = ExitStack()
        self.stack.enter_context(nothing_fails())
        self.farm = Mc0Farm(keys=KEYS, subscriptions=1_000)
        self.table: tuple[Rule, ...] = ()
        self.step = 0
        self.models: list[Model] = []

    @initialize()
    def connect_all(self) -> None:
        for number, key in enumerate(OWNERS):
            self.models.append(Model(number, self.farm.peer(f"P{number}", key)))
            self.subscribe(number, b"SUB", True, TOPICS[:number])

    # what peers say

    def say(self, model: Model, frames: Sequence[bytes]) -> None:
        """A peer sends frames: see what comes of it."""
        self.step += 1
        if not model.peer.connected:
            self.connect(model)
        line = model.peer.line
        assert line is not None
        before = {each: set(each.topics) for each in self.models}
        room = {each for each in self.models if each.room}
        answers = line.replies
        published, owed = self.expect(model, list(frames))
        model.peer.send(*frames)
        for each in self.models:
            got, answered = self.take(each, before[each])
            subscribed = each.session and published in before[each]
            assert got == ([published] if subscribed and each in room else [])
            if each is not model or owed is None:
                assert answered is None
            elif answers or line.room != 0:
                assert answered == owed
            else:
                assert answered in (owed, None), "the messages may have taken the room"

    def expect(self, model: Model, frames: list[bytes]) -> tuple[bytes | None, Owed | None]:
        """Have the model take a message. Returns the topic on which it is published, if it is, and the answer."""
        if model.peer.sender.key not in (*self.farm.keys, ""):
            return None, None
        model.bound = model.session = True
        model.heard = self.farm.clock.seconds()
        model.heard_through = model.peer.line
        try:
            message = wire.parse(frames)
        except wire.TooShort:
            return None, None
        except wire.BadMessage as malformed:
            return None, Owed(b"ERROR", malformed.id)
        return self.expect_message(model, message)

    def expect_message(self, model: Model, message: wire.Message) -> tuple[bytes | None, Owed | None]:
        rights = self.rights(model)
        refused = False
        published = None
        match message:
            case wire.Connect():
                model.version = message.version or b""
                if message.ttl is not None:
                    model.ttl = max(MIN_TTL, message.ttl / 1000) if message.ttl else 0.0
            case wire.Disconnect():
                model.end()
            case wire.Sub():
                wanted = set(message.topics)
                forbidden = {topic for topic in wanted - model.topics if not rights.may_subscribe(topic)}
                refused = bool(forbidden) and model.version != CONNECTOR
                if not refused:
                    model.topics |= wanted - forbidden
                    model.refused |= forbidden
            case wire.Unsub():
                model.topics -= set(message.topics)
                model.refused -= set(message.topics)
            case wire.Put():
                refused = not rights.may_publish(message.topic)
                published = None if refused else message.topic
        if not refused:
            return published, None if message.id is None else Owed(b"OK", message.id)
        if message.id is not None or model.version not in (None, CONNECTOR):
            return None, Owed(b"ERROR", message.id)
        return None, None

    def rights(self, model: Model) -> TopicRights:
        return rights_of(self.farm.grants(self.farm.keys.get(model.peer.sender.key, "")))

    # what peers are sent

    def take_noops(self) -> None:
        """Look at all that came, which may be NOOPs only."""
        for each in self.models:
            assert self.take(each, set()) == ([], None)

    def take(self, model: Model, subscribed: set[bytes]) -> tuple[list[bytes], Owed | None]:
        """Look at what came to a peer. Returns the topics of the messages, and the answer."""
        got: list[bytes] = []
        answered: Owed | None = None
        for frames in model.peer.take_frames():
            verb, headers, body = read_as_the_connector(frames)
            assert answered is None, "the answer to a command comes last of all that it causes"
            if verb in (b"OK", b"ERROR"):
                answered = Owed(verb, headers.get(b"ID"))
            elif verb == b"NOOP":
                assert frames == [b"", b"NOOP"]
                assert model.ttl or not model.lasts
            else:
                assert verb == b"MESSAGE"
                got.append(headers[b"TOPIC"])
                assert got[-1] in subscribed
                if body[:1] == [MARK]:
                    publisher, number = body[1], int(body[2])
                    assert number > model.numbers.get(publisher, -1)
                    model.numbers[publisher] = number
        return got, answered

    # rules

    # Clients behind proxies are peers of their own: tests/wires/common/test_routes.py.
    @rule(
        number=peers,
        frames=frame_lists.filter(lambda frames: not frames or not frames[0] or envelope_size(frames) == 0),
    )
    def say_anything(self, number: int, frames: list[bytes]) -> None:
        self.say(self.models[number], frames)

    @rule(
        number=peers,
        verb=st.sampled_from([b"SUB", b"SUB", b"UNSUB"]),
        asks=ids,
        some=st.lists(topics, max_size=4),
    )
    def subscribe(self, number: int, verb: bytes, asks: bool, some: list[bytes]) -> None:
        self.say(self.models[number], [b"", verb, *self.id(asks), b"", *some])

    @rule(number=peers, topic=topics, asks=ids, header=st.booleans())
    def publish(self, number: int, topic: bytes, asks: bool, header: bool) -> None:
        model = self.models[number]
        model.sent += 1
        headers = [b"X-REPLY-TO", b"r"] if header else []
        body = [MARK, b"%d" % number, b"%d" % model.sent]
        self.say(model, [b"", b"PUT", b"TOPIC", topic, *headers, *self.id(asks), b"", *body])

    @rule(
        number=peers,
        ttl=st.sampled_from([b"", b"0", b"1", b"500", b"1000", b"1500", b"30000"]),
        version=st.sampled_from([b"", b"0.2", b"0.2", b"0.3"]),
        asks=ids,
    )
    def connect_session(self, number: int, ttl: bytes, version: bytes, asks: bool) -> None:
        pairs = [b"TTL", ttl] * bool(ttl) + [b"VERSION", version] * bool(version)
        self.say(self.models[number], [b"", b"CONNECT", *self.id(asks), *pairs])

    @rule(number=peers, verb=st.sampled_from([b"NOOP", b"NOOP", b"NOOP", b"DISCONNECT", b"PING"]), asks=ids)
    def say_one_word(self, number: int, verb: bytes, asks: bool) -> None:
        self.say(self.models[number], [b"", verb, *self.id(asks)])

    def id(self, asks: bool) -> list[bytes]:
        return [b"ID", b"id %d" % self.step] if asks else []

    # connections

    @rule(number=peers, room=st.integers(0, 3))
    def stop_reading(self, number: int, room: int) -> None:
        self.models[number].peer.stop_reading(room)

    @rule(number=peers, verb=st.sampled_from([b"NOOP", b"SUB", b"PING"]))
    def read_on_while_an_answer_waits(self, number: int, verb: bytes) -> None:
        self.models[number].peer.stop_reading()
        self.say(self.models[number], [b"", verb, *self.id(True)])
        self.models[number].peer.read_on()

    @rule(number=peers)
    def read_on(self, number: int) -> None:
        self.models[number].peer.read_on()

    @rule(number=peers)
    def drop(self, number: int) -> None:
        model = self.models[number]
        if model.peer.connected:
            model.peer.drop()
            self.closed(model)

    @rule(number=peers)
    def connect_again(self, number: int) -> None:
        self.connect(self.models[number])

    def connect(self, model: Model) -> None:
        if model.peer.connected:
            model.peer.connect()
            self.closed(model)
        else:
            model.peer.connect()
        assert model.peer.connected

    def closed(self, model: Model) -> None:
        """The connection that it had ended."""
        if model.heard_through is not None and not model.ttl and not model.topics | model.refused:
            model.end()
        model.heard_through = None

    @rule(number=peers, key=st.sampled_from(list(KEYS)))
    def use_the_identity_of_another(self, number: int, key: str) -> None:
        model = self.models[number]
        if model.peer.sender.key in (key, "") or not (model.bound or model.peer.connected):
            return
        thief = self.farm.peer(model.peer.identity, key)
        assert not thief.connected
        self.take_noops()

    # time and the operator

    @rule(seconds=st.sampled_from([0.05, 0.1, 0.3, 0.5, 1.0, 2.0]))
    def let_time_pass(self, seconds: float) -> None:
        self.step += 1
        self.farm.wait(seconds)
        self.take_noops()
        for model in self.models:
            self.notice_the_end(model)

    def notice_the_end(self, model: Model) -> None:
        if not model.session:
            return
        ended = self.farm.session(model.peer) is None
        silence = self.farm.clock.seconds() - model.heard
        if model.ttl:
            assert not ended or silence > EXPIRES * model.ttl
            assert ended or silence < (EXPIRES + 1 / CHECKS_PER_TTL) * model.ttl + SLACK + 4 * STEP
        else:
            assert not ended or not model.lasts
        if ended:
            model.end()

    @rule(table=st.sampled_from(TABLES))
    def change_the_rules(self, table: tuple[Rule, ...]) -> None:
        self.table = table
        self.farm.use(*table)
        for model in self.models:
            if model.session:
                asked = model.topics | model.refused
                rights = self.rights(model)
                model.topics = {topic for topic in asked if rights.may_subscribe(topic)}
                model.refused = asked - model.topics

    @rule(key=st.sampled_from(list(KEYS)))
    def revoke(self, key: str) -> None:
        if key in self.farm.keys:
            self.farm.revoke(key)
            for model in self.models:
                if model.peer.sender.key == key:
                    model.end()
                    model.bound = False

    @precondition(lambda self: len(self.farm.keys) < len(KEYS))
    @rule()
    def allow_all_keys(self) -> None:
        self.farm.keys.update(KEYS)

    # what always holds

    @invariant()
    def the_broker_knows_what_the_model_knows(self) -> None:
        assert {model.peer.identity for model in self.models if model.session} == {
            session.identity for session in self.farm.wire.table
        }
        for model in self.models:
            session = self.farm.session(model.peer)
            if session is not None:
                assert set(session.topics) == model.topics
                assert set(session.refused) == model.refused
                assert (session.version is None) == (model.version is None)
                assert (session.version == CONNECTOR) == (model.version == CONNECTOR)
                assert session.ttl == model.ttl
        counts: dict[bytes, int] = {}
        for model in self.models:
            for topic in model.topics:
                counts[topic] = counts.get(topic, 0) + 1
        assert self.farm.subscribers() == counts

    def teardown(self) -> None:
        with self.stack:
            if not self.models:
                return
            self.farm.keys.update(KEYS)
            self.farm.use()
            for model in self.models:
                model.peer.read_on()
                self.change_the_rules(())
                self.say(model, [b"", b"CONNECT", b"TTL", b"1000" if model.number % 2 else b"0"])
                self.say(model, [b"", b"NOOP", b"ID", b"last"])
                if model.number == 0:
                    self.say(model, [b"", b"DISCONNECT", b"ID", b"really"])
            for model in self.models:
                model.peer.drop()
            self.farm.wait(RECONNECT_WITHIN + 1)
            assert list(self.farm.wire.table) == []
            assert self.farm.subscribers() == {}
            assert self.farm.topics.subscriptions == 0
            assert len(self.farm.leases) == 0
            assert self.farm.clock.getDelayedCalls() == []


TestConversations = Conversations.TestCase
TestConversations.settings = settings(settings(), stateful_step_count=60)
