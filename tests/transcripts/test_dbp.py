"""Our broker and the recorded nodes of Hermes, the original of DBP: what it answers them, and what it says by itself.

The recordings are in `dbp/`, one event on each line. ``->B`` is what the original broker received and ``B->`` what it
sent, ``P->`` and ``->P`` the same of a tester's own DEALER socket; all other peers are real nodes. Times are compared
by their length: nobody reads them.

The file is longer than others: all recordings are replayed by the same player.
"""

from __future__ import annotations

import json
from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import Any

import attrs
import pytest

from broker.core.model import Rights, Service
from broker.wires.dbp.dbp_settings import Dbp
from broker.wires.dbp.sessions.outbound import EVERY
from tests.wires.dbp.recording import BEACON_PORT, HERE, THERE, DbpFarm, DbpPeer, T

RECORDINGS = Path(__file__).parent / "dbp"

DIALOGUES = ("02_registration", "03_info_request", "04_update")

EVERYWHERE = "255.255.255.255"

NO_REPLY = "no reply within "
"""The beginning of a recording's remark that the original did not answer."""

PROBED = 5247
"""The port of the recorded service's own ROUTER."""


@attrs.frozen
class Event:
    """One line of a recording."""

    kind: str
    frames: tuple[bytes, ...]
    peer: str
    socket: str
    note: str
    result: dict[str, Any]
    udp: bool


def load(name: str) -> list[Event]:
    """The events of one recording."""
    events: list[Event] = []
    for text in (RECORDINGS / f"{name}.jsonl").read_text("utf-8").splitlines():
        line = json.loads(text)
        events.append(
            Event(
                line["dir"],
                tuple(bytes.fromhex(frame) for frame in line["frames_hex"]),
                line.get("peer", ""),
                line.get("socket", ""),
                line.get("note", ""),
                line.get("result", {}),
                line["transport"] == "udp",
            )
        )
    return events


# the dialogues


@attrs.define
class Exchange:
    """One message of a peer, and what the original sent it in answer."""

    peer: str
    asked: tuple[bytes, ...]
    answers: list[tuple[bytes, ...]] = attrs.field(factory=list)


def exchanges(events: list[Event]) -> list[Exchange]:
    """The conversation of a recording. The original answers each peer in order, if at all."""
    found: list[Exchange] = []
    waiting: list[Exchange] = []
    for event in events:
        if event.kind == "->B":
            found.append(Exchange(event.peer, event.frames))
            waiting.append(found[-1])
        elif event.kind == "B->" and not event.udp:
            answered = next(each for each in waiting if each.peer == event.peer)
            answered.answers.append(event.frames)
            waiting.remove(answered)
        elif event.note.startswith(NO_REPLY):
            waiting.clear()
    assert waiting == []
    return found


def shown(frames: list[bytes] | tuple[bytes, ...]) -> str:
    """Frames for people: between bars, without the empty one; of a time only its length."""
    assert frames[0] == b""
    command, time, *rest = frames[1:]
    return "|".join([command.decode(), f"T{len(time)}", *(frame.decode("utf-8", "backslashreplace") for frame in rest)])


class Replay:
    """The peers of a recording at our broker: real nodes have a REQ socket, the tester a DEALER."""

    def __init__(self, events: list[Event]) -> None:
        self.farm = DbpFarm(beacon=[EVERYWHERE])
        self._testers_words = {event.frames for event in events if event.kind == "P->"}
        self._peers: dict[str, DbpPeer] = {}

    def say(self, exchange: Exchange) -> list[str]:
        """Return the answers of our broker. A peer that is dismissed comes again on a new connection, as nodes of the
        document do."""
        peer = self._peers.get(exchange.peer)
        if peer is None:
            tester = exchange.asked in self._testers_words
            peer = self.farm.dealer(HERE) if tester else self.farm.hermes(HERE)
            self._peers[exchange.peer] = peer
        answers = self._ask(peer, exchange)
        if any(answer.startswith("</3|") for answer in answers):
            peer.close()
            peer.connect()
            answers += ["(on a new connection)", *self._ask(peer, exchange)]
        return answers

    def _ask(self, peer: DbpPeer, exchange: Exchange) -> list[str]:
        peer.send_raw(*exchange.asked)
        return [shown([b"", *frames]) for frames in peer.take()]


@attrs.frozen
class Difference:
    """A message that our broker answers otherwise than the original did, with what, and why."""

    recording: str
    asked: str
    ours: list[str]
    why: str = attrs.field(eq=False)


AGREED = 'OwO|T4|{"heartbeat": 1000, "liveness": 3}||'
"""The approval of a registration of the document, in six frames."""

ANEW = ["</3|T4", "(on a new connection)"]
"""The outcome of a second registration on one connection, and the node's reaction."""

SIX_FRAMES = "An approval of the document has six frames or more, the first of them with what was agreed."
ONCE = "The document has one registration on each connection, so that one is told to come again on a new one."
A_REASON = "Who registers or updates in vain is told why; in the original a thread died in silence, and the node hung."

ROHAN_AND_MORDOR = (
    'o_O|T4|{"Rohan": {"interfaces": {"router": {"ip": "127.0.0.1", "port": 5247}}, '
    '"reg_time": "Sat Nov 21 07:37:15 2026", "topics": null}, '
    '"Mordor": {"interfaces": {"router": {"ip": "127.0.0.1", "port": 5247}}, '
    '"reg_time": "Sat Nov 21 07:37:16 2026", "topics": null}}'
)

ROHAN_AND_DOCS = (
    'o_O|T4|{"Rohan": {"interfaces": {"router": {"ip": "127.0.0.1", "port": 5247}}, '
    '"reg_time": "Sat Nov 21 07:37:03 2026", "topics": null}, "doc2": {}, "doc": {}}'
)

DIFFERENCES = [
    Difference(
        "02_registration",
        'UwU|T4|{"name": "doc", "ip": "127.0.0.1", "port": 6000, "function": "demo", "heartbeat": 1000}',
        [AGREED],
        SIX_FRAMES,
    ),
    Difference("02_registration", 'UwU|T4|{"name": "doc2"}|extra frame', [*ANEW, AGREED], ONCE),
    Difference("02_registration", 'UwU|T4|{"port": 1}', ["(O_O)|T4|the service information has no name"], A_REASON),
    Difference("02_registration", "UwU|T4|not json", ["(O_O)|T4|the service information is no JSON object"], A_REASON),
    Difference("02_registration", 'UwU|T4|["a"]', ["(O_O)|T4|the service information is no JSON object"], A_REASON),
    Difference(
        "02_registration",
        'UwU|T4|{"name": ""}',
        ["(O_O)|T4|the name of the service is empty"],
        "An empty name in a request means all services, so that nobody could ask for this one.",
    ),
    Difference(
        "02_registration",
        'UwU|T4|{"name": 7}',
        ["(O_O)|T4|the name of the service is no text"],
        "The original listed it as another service, called by the digit.",
    ),
    Difference("02_registration", 'UwU|T4|{"name": "doc"}', [*ANEW, AGREED], ONCE),
    Difference(
        "02_registration",
        "u_U|T4|",
        [ROHAN_AND_DOCS],
        "Two of the names were denied; and a service that registers again is at the end of the list.",
    ),
    Difference(
        "03_info_request",
        "u_U|T4|Rohan|Mordor",
        [ROHAN_AND_MORDOR],
        "The original ignores a second name; who asks for one service sees no difference.",
    ),
    Difference(
        "03_info_request",
        "u_U|T4|\\xff\\xfe",
        [r'o_O|T4|{"Error": "No Registered Service With the Name \\xff\\xfe"}'],
        "A request is answered whatever it asks for: nodes of the original wait for ever.",
    ),
    Difference(
        "04_update", 'UoU|T4|{"name": "nobody", "x": 1}', ["(O_O)|T4|the service nobody is not registered"], A_REASON
    ),
    Difference("04_update", 'UoU|T4|{"x": 1}', ["(O_O)|T4|the service of this connection is not registered"], A_REASON),
    Difference(
        "04_update",
        'UoU|T4|{"name": "Rohan", "topics": null}',
        ["u.u|T4"],
        "An acknowledgement of the document has three frames; only real nodes of the original need a fourth.",
    ),
]


def differences(name: str) -> list[Difference]:
    """The answers that differ from a recording."""
    events = load(name)
    replay = Replay(events)
    found: list[Difference] = []
    for exchange in exchanges(events):
        ours = replay.say(exchange)
        if ours != [shown(frames) for frames in exchange.answers]:
            found.append(Difference(name, shown(exchange.asked), ours, ""))
    return found


@pytest.mark.parametrize("name", DIALOGUES)
def test_the_recorded_dialogue_is_answered_as_by_the_original_but_for_what_is_listed(name: str) -> None:
    assert differences(name) == [each for each in DIFFERENCES if each.recording == name]


@pytest.mark.parametrize("name", DIALOGUES)
def test_no_real_node_sees_a_difference(name: str) -> None:
    testers = [shown(event.frames) for event in load(name) if event.kind == "P->"]
    assert all(each.asked in testers for each in differences(name))


def test_all_kinds_of_messages_of_the_original_are_in_the_dialogues() -> None:
    asked = [exchange for name in DIALOGUES for exchange in exchanges(load(name))]
    assert len(asked) == 31
    assert {each.asked[1] for each in asked} == {b"u_U", b"UwU", b"UoU"}


# the beacon


def test_the_beacon_is_that_of_the_original() -> None:
    recorded = [event.frames for event in load("01_beacon") if event.kind == "B->"]
    farm = DbpFarm(beacon=[EVERYWHERE])
    farm.wait((len(recorded) - 1) * EVERY)
    assert [(beacon,) for beacon in farm.udp.take((EVERYWHERE, BEACON_PORT))] == recorded


@pytest.mark.parametrize("name", DIALOGUES)
def test_nothing_else_goes_to_the_port_of_the_beacon(name: str) -> None:
    events = load(name)
    replay = Replay(events)
    for exchange in exchanges(events):
        replay.say(exchange)
        replay.farm.wait(0.5)
    [beacon] = {event.frames[0] for event in events if event.udp}
    to_nodes = [data for data, (_, port) in replay.farm.udp.sent if port == BEACON_PORT]
    assert len(to_nodes) > 2
    assert set(to_nodes) == {beacon}


# what services are asked


def answered_by_the_service() -> list[tuple[str, str]]:
    """The questions to the recorded service's own ROUTER in four frames, and its answer."""
    events = [event for event in load("05_service_ping") if event.kind in ("P->", "->P")]
    return [
        (shown(asked.frames), shown(answer.frames))
        for asked, answer in pairwise(events)
        if (asked.kind, answer.kind) == ("P->", "->P") and len(asked.frames) == 4
    ]


@pytest.mark.parametrize(
    ("dbp", "update"),
    [
        pytest.param(Dbp(probe=1.0), {}, id="from time to time"),
        pytest.param(Dbp(), {"liveliness": 1000}, id="after a missed heartbeat"),
    ],
)
def test_a_probe_is_what_the_recorded_service_answers_with_its_name(dbp: Dbp, update: dict[str, int]) -> None:
    farm = DbpFarm(dbp)
    [registration] = [event for event in load("05_service_ping") if event.frames[1:2] == (b"UwU",)]
    farm.hermes().send_raw(*registration.frames)
    if update:
        assert farm.hermes().ask("UoU", T, {"name": "Rohan", **update})[0][0] == b"u.u"
    farm.wait(2.0)
    probe = farm.probes.asked[0]
    assert probe.place == (HERE, PROBED)
    assert (shown(probe.frames), "pong|T4|Rohan") in answered_by_the_service()


def test_a_client_that_takes_the_broker_for_a_service_gets_an_answer_of_the_same_shape() -> None:
    events = load("05_service_ping")
    [ping] = [event for event in events if event.kind == "C->" and event.frames[1] == b"ping"]
    [pong] = [event for event in events if event.kind == "->C" and event.frames[1:2] == (b"pong",)]
    peer = DbpFarm().hermes()
    peer.send_raw(*ping.frames)
    [ours] = peer.take()
    assert shown([b"", *ours]) == shown(pong.frames).replace("Rohan", "elkobroker")


# what real nodes make of replies


@attrs.frozen
class Shape:
    """The visible properties of the replies to one of its messages."""

    asked: str
    replies: tuple[str, ...]


def shape(asked: tuple[bytes, ...], replies: list[tuple[bytes, ...]]) -> Shape:
    """The shape of replies. ``asked`` is the node's message, whose body decides what a listing must have."""
    command, body = asked[1].decode(), asked[3].decode()
    every = command == "u_U" and not body
    return Shape(f"{command} all" if every else command, tuple(_reply(frames, body) for frames in replies))


def _reply(frames: tuple[bytes, ...], wanted: str) -> str:
    if frames[0] != b"":
        return "no delimiter"
    command, time, *bodies = frames[1:]
    words = [command.decode(), f"T{len(time)}"]
    if not bodies:
        return " ".join([*words, "no body"])
    if command == b"o_O":
        words.append(_listing(bodies[0], wanted))
    return " ".join(words)


def _listing(body: bytes, wanted: str) -> str:
    try:
        found = json.loads(body)
    except ValueError:
        return "no JSON"
    if not isinstance(found, dict):
        return "no object"
    if "Error" in found:
        return "an error"
    return "what was asked for" if wanted == "" or wanted in found else "something else"


GOOD, REFUSED, BAD = "good", "refused", "bad"

REFUSALS = (Shape("UwU", ("OmO T4",)), Shape("UoU", ("OmO T4",)), Shape("UoU", ("(O_O) T4",)))
"""The replies that a real node takes for a refusal: a registration ends with the reason in its log; an update with
a new search for a broker, whatever it is refused with."""


def verdicts() -> dict[Shape, str]:
    """The effect of each recorded reply on a real node."""
    found: dict[Shape, str] = {}
    asked: tuple[bytes, ...] | None = None
    replies: list[tuple[bytes, ...]] = []
    for event in load("10_reply_variants"):
        if event.note.startswith("----"):
            asked, replies = None, []
        elif event.kind == "->B" and asked is None:
            asked = event.frames
        elif event.kind == "B->":
            replies.append(event.frames)
        elif event.note.startswith("RESULT"):
            assert asked is not None
            of = shape(asked, replies)
            verdict = _verdict(of, event.result)
            assert found.setdefault(of, verdict) == verdict, event.note
    return found


def _verdict(of: Shape, result: dict[str, Any]) -> str:
    lines = str(result["out"]).splitlines()
    said = json.loads(lines[-1]) if lines else {}
    if result["rc"] == 0:
        # A list that is none is no good: the node had asked for all.
        return BAD if said["what"] == "list" and said["result"] is None else GOOD
    return REFUSED if of in REFUSALS else BAD


HERMES_INFO: dict[str, object] = {
    "interfaces": {"router": {"ip": "127.0.0.1", "port": PROBED}},
    "reg_time": "Sat Nov 21 07:37:01 2026",
    "topics": None,
}


def farm_of_all_kinds() -> DbpFarm:
    """Services of real nodes, of nodes of the document and of another wire, live and gone. None may begin with x."""
    farm = DbpFarm(rights=Rights(("[!x]*", "")))
    farm.hermes().registered("Rohan", **HERMES_INFO)
    farm.dealer(THERE).registered("doc", ip=THERE, port=6000, heartbeat=1000)
    farm.dealer(THERE).registered("gone", ip=THERE, port=6001).send("</3", T)
    provider = farm.registry.join("a server of Elko", "elko", THERE)
    for name in ("bank", "Error"):
        farm.registry.offer([Service(name, "h:1", provider)], Rights())
    return farm


def registering(name: object) -> tuple[Any, ...]:
    """The registration of a real node."""
    return "UwU", T, {"name": name, **HERMES_INFO}


def updating(**changes: object) -> tuple[Any, ...]:
    """The update of a real node, which is up to its programmer."""
    return "UoU", T, changes


SAID = [
    pytest.param(registering("Eowyn"), GOOD, id="a new service"),
    pytest.param(registering("Rohan"), GOOD, id="a service that starts again"),
    pytest.param(registering("doc"), REFUSED, id="a name of another machine's"),
    pytest.param(registering("xyz"), REFUSED, id="a name that is not allowed"),
    pytest.param(registering("elkobroker"), REFUSED, id="the broker's own name"),
    pytest.param(registering("Error"), REFUSED, id="the name that means failure"),
    pytest.param(registering(""), REFUSED, id="an empty name"),
    pytest.param(registering(7), REFUSED, id="a name that is no text"),
    pytest.param(registering("n" * 300), REFUSED, id="a long name"),
    pytest.param(updating(name="Rohan", topics=["a"]), GOOD, id="an update"),
    pytest.param(updating(name="Rohan", liveliness=500), GOOD, id="an update that is a contract"),
    pytest.param(updating(name="nobody"), REFUSED, id="an update of nobody"),
    pytest.param(updating(name="doc"), REFUSED, id="an update of another machine's"),
    pytest.param(updating(topics=["a"]), REFUSED, id="an update without a name"),
    pytest.param(("u_U", T, ""), GOOD, id="all services"),
    pytest.param(("u_U", T, "Rohan"), GOOD, id="one service"),
    pytest.param(("u_U", T, "bank"), GOOD, id="one of another wire"),
    pytest.param(("u_U", T, "nobody"), GOOD, id="an unknown one"),
    pytest.param(("u_U", T, "gone"), GOOD, id="one that is gone"),
    pytest.param(("u_U", T, "Error"), GOOD, id="one called as a failure"),
    pytest.param(("u_U", T, "Th\u00e9oden"), GOOD, id="one in another script"),
    pytest.param(("u_U", T, "n" * 300), GOOD, id="one with a long name"),
]
"""The messages of real nodes, and their outcome."""


@pytest.mark.parametrize(("frames", "expected"), SAID)
def test_no_reply_is_one_that_killed_or_confused_a_real_node(frames: tuple[Any, ...], expected: str) -> None:
    farm = farm_of_all_kinds()
    node = farm.hermes()
    node.send(*frames)
    farm.wait(5.0)  # in which the broker says by itself what it has to say
    body = json.dumps(frames[2]) if isinstance(frames[2], dict) else frames[2]
    asked = (b"", frames[0].encode(), b"", body.encode())
    assert verdicts()[shape(asked, [(b"", *reply) for reply in node.take()])] == expected


def test_there_are_verdicts_of_all_kinds() -> None:
    found = verdicts()
    assert Counter(found.values()) == {GOOD: 6, REFUSED: 3, BAD: 23}
    assert found[Shape("UwU", ("OwO T17",))] == BAD
    assert found[Shape("u_U all", ("o_O T4 an error",))] == BAD
    assert found[Shape("UwU", ())] == BAD
    assert all(found[refusal] == REFUSED for refusal in REFUSALS)
