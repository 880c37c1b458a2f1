"""Random and mutated messages for both flows of MTL, and what must be answered of them.

RFC 11 decides here which messages are well-formed, apart from the broker. A message whose case it leaves open
(properties, JSON that is no object) may be answered or not.
"""

from __future__ import annotations

import json
import random
import struct
from collections import Counter
from collections.abc import Callable, Sequence

import attrs
import zmq

from bench.common.traffic import Stuck
from bench.mtl import peers as mtl_peers
from bench.mtl.peers import (
    CONFIRM,
    CONTENT,
    DISMISS,
    HEAD,
    LEASE,
    OPEN,
    PING,
    REJECT,
    RESOURCE,
    RESPONSE,
    SUMMON,
    Control,
    Socket,
    request,
    short,
)
from bench.mtl.servers import MtlServer

BATCH = 50
"""Messages between two that are good for sure: whose answer shows that all before it are done."""

CANARY = 1 << 63
"""Sequences of those on data flows, from here on."""

Frames = list[bytes]


@attrs.define
class Verdict:
    """The outcome of all messages."""

    sent: int = 0
    well_formed: int = 0
    unanswered: list[str] = attrs.field(factory=list)
    """Well-formed ones that had no answer."""
    answered: list[str] = attrs.field(factory=list)
    """Answers to what is ill-formed, or more than one to the same."""
    malformed: list[str] = attrs.field(factory=list)
    """Answers that are none."""


# mutations


def mutated(source: random.Random, frames: Sequence[bytes]) -> Frames:
    """The same with something wrong, most of the time."""
    own = list(frames)
    for _ in range(source.choice((0, 0, 1, 1, 1, 2, 4))):
        if not own:
            own.append(b"")
        at = source.randrange(len(own))
        frame = bytearray(own[at])
        kind = source.randrange(8)
        if kind < 2 and frame:
            frame[source.randrange(len(frame))] ^= 1 << source.randrange(8)
        elif kind == 2 and frame:
            del frame[source.randrange(len(frame)) :]
        elif kind == 3:
            frame += source.randbytes(source.randint(1, 20))
        elif kind == 4 and frame:
            del frame[source.randrange(len(frame))]
        elif kind == 5:
            start = source.randint(0, len(frame))
            frame[start:start] = source.choice((b"\0", b"\xff", b"null", b"[[", b'"', b"-1", b"{}", b"\xed\xa0\x80"))
        elif kind == 6:
            own.insert(at, source.randbytes(source.randint(0, 9)))
            continue
        else:
            del own[at]
            continue
        own[at] = bytes(frame)
    return own or [b""]


def noise(source: random.Random) -> Frames:
    """Nothing but chance."""
    return [source.randbytes(source.choice((0, 1, 5, 9, 10, 60))) for _ in range(source.randint(1, 5))]


# the control flow


REQUESTS = [
    OPEN,
    request("Authorize", mechanism="PLAIN", response="AGEAYg=="),
    request("Profile", profile="test"),
    request("Profile", profile="QUEUE"),
    request("Reader", resources=[RESOURCE], confirm="none"),
    request("Writer", resources=[], confirm="full"),
    request("Reader", resources=["a", "b"], confirm="full", window=7),
    request("Nonsense", members=[1, 2.5, None, True, {"a": "b"}]),
]


def _replied(frames: Frames) -> tuple[int, int]:
    """The least and the greatest number of replies to a request."""
    if b"" not in frames:
        return 0, 0
    rest = frames[frames.index(b"") + 1 :]
    if len(rest) != 2:
        return 0, 0
    try:
        text = rest[1].decode()
        value = json.loads(text, parse_constant=_refuse)
    except ValueError:
        return 0, 0
    if isinstance(value, dict | list) and "\\ud" not in text.lower():
        return 1, 1
    return 0, 1


def _refuse(name: str) -> None:
    raise ValueError(f"{name} is no JSON")


def control(server: MtlServer, count: int, seed: int) -> Verdict:
    """So many messages on the control flow."""
    source = random.Random(seed)
    verdict = Verdict()
    at = mtl_peers.context()
    session = mtl_peers.dealer(at, server, server.port)
    while verdict.sent < count:
        least = most = 0
        batch: list[Frames] = []
        for _ in range(min(BATCH, count - verdict.sent)):
            frames = noise(source) if source.random() < 0.2 else mutated(source, source.choice(REQUESTS))
            session.send_multipart(frames)
            batch.append(frames)
            certain, possible = _replied(frames)
            least += certain
            most += possible
        verdict.sent += len(batch)
        verdict.well_formed += least
        session.send_multipart([b"canary", *OPEN])
        replies = 0
        while (reply := _received(session)) is not None and reply[:2] != [b"canary", b""]:
            replies += 1
            if not _is_reply(reply):
                verdict.malformed.append(f"{reply!r:.200}")
        if reply is None:
            raise Stuck(f"the control flow does not answer any more, after {batch!r:.200}")
        if replies < least:
            verdict.unanswered.append(f"{least - replies} of {batch!r:.200}")
        if replies > most:
            verdict.answered.append(f"{replies - most} of {batch!r:.200}")
    return verdict


def _is_reply(frames: Frames) -> bool:
    """True if a message is a well-formed reply."""
    try:
        *_, empty, code, body = frames
        value = json.loads(body)
        return empty == b"" and len(code) == 3 and 200 <= int(code) < 600 and isinstance(value["status"], str)
    except (ValueError, KeyError, TypeError):
        return False


# the data flow


PROPERTIES: dict[bytes, bytes] = {
    b"t": b"\1",
    b"b": b"\x80",
    b"s": b"\x80\0",
    b"I": b"\0\0\0\1",
    b"l": bytes(8),
    b"d": struct.pack(">d", 2.5),
    b"D": b"\2\0\0\1\0",
    b"S": b"\0\0\0\3abc",
    b"T": bytes(8),
    b"x": b"\0\0\0\2\0\xff",
    b"V": b"",
    b"F": b"\0\0\0\4\1kt\1",
    b"A": b"\0\0\0\3t\1V",
}
"""A value for each kind of property, by its tag."""


def _command(source: random.Random, sequence: int) -> Frames:
    """One in good form."""
    kind = source.choice((LEASE, SUMMON, DISMISS, CONTENT, CONTENT, CONFIRM, REJECT, RESPONSE, 8, 9))
    if kind in (LEASE, SUMMON, DISMISS):
        return mtl_peers.command(kind, sequence, source.choice((RESOURCE, "fuzz", "other", "", "x" * 255)))
    if kind == CONTENT:
        tags = source.sample(sorted(PROPERTIES), source.randint(0, 4))
        table = b"".join(short(f"k{i}") + tag + PROPERTIES[tag] for i, tag in enumerate(tags))
        name = source.choice((RESOURCE, "fuzz", ""))
        return [HEAD.pack(kind, sequence) + short(name) + len(table).to_bytes(4) + table, source.randbytes(20)]
    if kind == RESPONSE:
        return [HEAD.pack(kind, sequence), b"200"]
    if kind in (CONFIRM, REJECT):
        return [HEAD.pack(kind, source.randint(0, 200)) + bytes((kind == CONFIRM,)) + bytes(kind - CONFIRM), b""]
    return [bytes((kind,)), b""]


def _responded(frames: Frames) -> tuple[int, int, int] | None:
    """The sequence of the Response to a command, and how many there are at least and at most; -1 stands for a Pong.

    Contents are answered in ways that depend on the flow: nothing is certain of them.
    """
    if len(frames) != 2:
        return None
    header = frames[0]
    if header == PING:
        return -1, 1, 1
    if len(header) < HEAD.size:
        return None
    kind, sequence = HEAD.unpack_from(header)
    if kind == CONTENT:
        return sequence, 0, 1
    if kind not in (LEASE, SUMMON, DISMISS) or len(header) < 10 or len(header) != 10 + header[9]:
        return None
    try:
        well_formed = header[10:].decode().isprintable()
    except UnicodeDecodeError:
        well_formed = False
    return (sequence, 1, 1) if well_formed else None


def data(server: MtlServer, count: int, seed: int) -> Verdict:
    """So many messages on data flows, on each of several kinds in turn."""
    source = random.Random(seed)
    verdict = Verdict()
    at = mtl_peers.context()
    flows = _flows(at, server)
    number = 0
    while verdict.sent < count:
        sock, leased = flows[verdict.sent // BATCH % len(flows)]
        least: Counter[int] = Counter()
        most: Counter[int] = Counter()
        batch: list[Frames] = []
        for _ in range(min(BATCH, count - verdict.sent)):
            number += 1
            frames = noise(source) if source.random() < 0.2 else mutated(source, _command(source, number))
            sock.send_multipart(frames)
            batch.append(frames)
            expected = _responded(frames)
            if expected is not None:
                answer = expected[0] if leased or expected[0] >= 0 else 0  # a Ping without a lease is refused
                least[answer] += expected[1]
                most[answer] += expected[2]
        verdict.sent += len(batch)
        verdict.well_formed += least.total()
        canary = CANARY + verdict.sent
        sock.send_multipart(mtl_peers.command(DISMISS, canary, "canary"))
        came: Counter[int] = Counter()
        while (answer_ := _received(sock)) is not None:
            sequence = _answer(answer_, verdict)
            if sequence == canary:
                break
            if sequence is not None:
                came[sequence] += 1
        else:
            raise Stuck(f"a data flow does not answer any more, after {batch!r:.200}")
        if missing := least - came:
            verdict.unanswered.append(f"{missing} of {batch!r:.200}")
        if more := came - most:
            verdict.answered.append(f"{more} of {batch!r:.200}")
    return verdict


def _flows(at: zmq.Context[Socket], server: MtlServer) -> list[tuple[Socket, bool]]:
    """DEALERs, and whether they have leases: none, those of the test profile, those of the queues."""
    flows = [(mtl_peers.dealer(at, server, server.data), False)]
    for profile, resources, confirm in (("test", [RESOURCE], "none"), ("queue", [], "full")):
        control = Control(at, server, profile)
        sock = mtl_peers.flow(at, server, control.lease("Reader", resources, confirm))
        mtl_peers.say(sock, LEASE, control.lease("Writer", resources, confirm))
        flows.append((sock, True))
    return flows


def _answer(frames: Frames, verdict: Verdict) -> int | None:
    """The sequence of a Response, -1 for a Pong; None for everything else that a server may send."""
    header = frames[0]
    if len(frames) == 2:
        if header == mtl_peers.PONG:
            return -1
        if header == PING:
            return None
        if len(header) >= HEAD.size:
            kind, sequence = HEAD.unpack_from(header)
            if kind == RESPONSE and len(header) == HEAD.size and len(frames[1]) == 3 and frames[1].isdigit():
                return int(sequence)
            if kind in (CONTENT, CONFIRM, REJECT):
                return None
    verdict.malformed.append(f"{frames!r:.200}")
    return None


def _received(sock: Socket) -> Frames | None:
    """The next message, or None if none comes for too long."""
    try:
        return sock.recv_multipart()
    except zmq.Again:
        return None


PARTS: dict[str, Callable[[MtlServer, int, int], Verdict]] = {"control": control, "data": data}
