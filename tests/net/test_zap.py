"""Answers to ZAP requests, without sockets: who is let in, what is said, what is counted and logged."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import zmq
from broker.net.zap import KEYS_LOGGED, Gate, address_of
from hypothesis import given
from hypothesis import strategies as st
from twisted.internet.defer import maybeDeferred
from twisted.internet.task import Clock
from twisted.logger import capturedLogs

from broker import curve
from broker.core.counters import Counters
from broker.net.allowed import AllowedKeys
from broker.net.limits import COMPLAIN_EVERY, Complaints

KEY = bytes(range(32))
OTHER = bytes(range(1, 33))
WIRE = b"mc0"


class Asked:
    """Answers ``admit`` as it is told, and remembers the addresses."""

    def __init__(self) -> None:
        self.answer = True
        self.addresses: list[str] = []

    def __call__(self, address: str) -> bool:
        self.addresses.append(address)
        return self.answer


class Sent:
    """A socket that remembers what is sent."""

    def __init__(self) -> None:
        self.messages: list[tuple[bytes, list[bytes]]] = []

    def send(self, identity: bytes, frames: Sequence[bytes]) -> None:
        self.messages.append((identity, list(frames)))


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def counters() -> Counters:
    return Counters()


@pytest.fixture
def admit() -> Asked:
    return Asked()


@pytest.fixture
def gate(counters: Counters, clock: Clock, admit: Asked) -> Gate:
    return Gate(Complaints(counters, clock), clock, admit)


@pytest.fixture
def keys(tmp_path: Path, clock: Clock) -> AllowedKeys:
    (tmp_path / "web1.public").write_text(curve.encode(KEY))
    return AllowedKeys(str(tmp_path), clock, maybeDeferred)


def request(
    mechanism: bytes = b"CURVE",
    *credentials: bytes,
    domain: bytes = WIRE,
    address: bytes = b"192.0.2.1",
    version: bytes = b"1.0",
    id: bytes = b"1",
) -> list[Any]:
    return [b"", version, id, domain, address, b"identity", mechanism, *credentials]


def status(answer: list[bytes] | None) -> bytes:
    assert answer is not None
    assert len(answer) == 7
    assert (answer[0], answer[1], answer[6]) == (b"", b"1.0", b"")
    if answer[3] != b"200":
        assert answer[5] == b""
    return answer[3]


# who is let in


def test_an_allowed_key_is_let_in_and_becomes_the_user_id(gate: Gate, keys: AllowedKeys, admit: Asked) -> None:
    gate.domain(WIRE, keys, False)
    answer = gate.answer(request(b"CURVE", KEY, id=b"7"))
    assert answer == [b"", b"1.0", b"7", b"200", b"OK", curve.encode(KEY).encode(), b""]
    assert admit.addresses == ["192.0.2.1"]


def test_an_unknown_key_may_try_again(gate: Gate, keys: AllowedKeys, counters: Counters, admit: Asked) -> None:
    gate.domain(WIRE, keys, False)
    assert gate.answer(request(b"CURVE", OTHER)) == [
        b"",
        b"1.0",
        b"1",
        b"300",
        b"this client key is not allowed",
        b"",
        b"",
    ]
    assert counters.all() == {"mc0_refused.key-not-allowed": 1}
    assert admit.addresses == [], "it is refused already"


def test_any_key_is_let_in_where_that_was_said(gate: Gate, keys: AllowedKeys) -> None:
    gate.domain(WIRE, None, True)
    gate.domain(b"other", keys, True)
    for domain in (WIRE, b"other"):
        answer = gate.answer(request(b"CURVE", OTHER, domain=domain))
        assert status(answer) == b"200"
        assert answer is not None
        assert answer[5] == curve.encode(OTHER).encode()


def test_null_is_let_in_where_there_is_no_curve_and_has_no_user_id(gate: Gate) -> None:
    gate.domain(WIRE, None, False)
    assert gate.answer(request(b"NULL")) == [b"", b"1.0", b"1", b"200", b"OK", b"", b""]


def test_a_peer_too_many_may_try_again(gate: Gate, keys: AllowedKeys, counters: Counters, admit: Asked) -> None:
    gate.domain(WIRE, keys, False)
    gate.domain(b"open", None, False)
    admit.answer = False
    assert status(gate.answer(request(b"CURVE", KEY))) == b"300"
    assert status(gate.answer(request(b"NULL", domain=b"open"))) == b"300"
    assert counters.all() == {"mc0_refused.too-many-connections": 1, "open_refused.too-many-connections": 1}
    admit.answer = True
    assert status(gate.answer(request(b"CURVE", KEY))) == b"200"


def test_a_domain_can_be_defined_anew(gate: Gate, keys: AllowedKeys) -> None:
    gate.domain(WIRE, keys, False)
    assert status(gate.answer(request(b"CURVE", OTHER))) == b"300"
    gate.domain(WIRE, None, True)
    assert status(gate.answer(request(b"CURVE", OTHER))) == b"200"


# what never is


@pytest.mark.parametrize(
    ("domain", "mechanism", "credentials", "text"),
    [
        (WIRE, b"NULL", (), b"another security mechanism than CURVE"),
        (WIRE, b"PLAIN", (b"user", b"password"), b"another security mechanism than CURVE"),
        (WIRE, b"curve", (KEY,), b"another security mechanism than CURVE"),
        (WIRE, b"", (KEY,), b"another security mechanism than CURVE"),
        (WIRE, b"CURVE", (), b"the credentials are not those of the mechanism"),
        (WIRE, b"CURVE", (KEY[:-1],), b"the credentials are not those of the mechanism"),
        (WIRE, b"CURVE", (KEY + b"x",), b"the credentials are not those of the mechanism"),
        (WIRE, b"CURVE", (KEY, b""), b"the credentials are not those of the mechanism"),
        (b"open", b"CURVE", (KEY,), b"another security mechanism than NULL"),
        (b"open", b"NULL", (b"",), b"the credentials are not those of the mechanism"),
        (b"", b"NULL", (), b"a request for a domain that does not exist"),
        (b"mc", b"CURVE", (KEY,), b"a request for a domain that does not exist"),
    ],
)
def test_what_will_never_be_taken_is_refused_for_good(
    gate: Gate,
    keys: AllowedKeys,
    counters: Counters,
    domain: bytes,
    mechanism: bytes,
    credentials: tuple[bytes, ...],
    text: bytes,
) -> None:
    gate.domain(WIRE, keys, False)
    gate.domain(b"open", None, False)
    answer = gate.answer(request(mechanism, *credentials, domain=domain))
    assert status(answer) == b"400"
    assert answer is not None
    assert answer[4] == text
    wire = domain.decode() if domain in (WIRE, b"open") else "zap"
    assert counters.all() == {f"{wire}_refused.handshake": 1}


@pytest.mark.parametrize("frames", [request(b"CURVE", KEY, version=b"2.0"), request()[:-1], [b"", b"1.0", b"1"]])
def test_what_is_no_request_is_refused_for_good_if_it_has_an_id(gate: Gate, frames: list[bytes]) -> None:
    gate.domain(WIRE, None, True)
    answer = gate.answer(frames)
    assert status(answer) == b"400"
    assert answer is not None
    assert answer[2] == b"1"


def test_what_cannot_be_answered_is_dropped_and_counted(gate: Gate, counters: Counters) -> None:
    sent = Sent()
    gate.serve(sent)
    for frames in ([], [b""], [b"", b"1.0"], [b"x", b"1.0", b"1"], [b"", b"1.0", zmq.Frame(b"1" * 300)]):
        gate.receive(b"peer", frames, -1)
    assert sent.messages == []
    assert counters.all() == {"zap.dropped": 5}


def test_requests_from_before_there_is_a_socket_are_dropped(gate: Gate, counters: Counters) -> None:
    sent = Sent()
    gate.domain(WIRE, None, False)
    gate.receive(b"early", request(b"NULL"), -1)
    gate.serve(sent)
    gate.receive(b"peer", request(b"NULL"), -1)
    assert [identity for identity, _ in sent.messages] == [b"peer"]
    assert counters.all() == {"zap.dropped": 1}


long = st.binary(min_size=256, max_size=300).map(zmq.Frame)
frame = (
    st.sampled_from([b"", b"1.0", b"1", WIRE, b"open", b"CURVE", b"NULL", b"PLAIN", KEY, OTHER, b"127.0.0.1"])
    | st.binary(max_size=40)
    | long
)


@given(
    st.lists(frame, max_size=12)
    | st.tuples(st.just(b""), st.just(b"1.0"), frame, st.sampled_from([WIRE, b"open"]), frame, frame, frame, frame).map(
        list
    )
)
def test_any_request_is_answered_or_dropped(frames: list[Any]) -> None:
    counters, clock = Counters(), Clock()
    gate = Gate(Complaints(counters, clock), clock)
    gate.domain(WIRE, None, True)
    gate.domain(b"open", None, False)
    answer = gate.answer(frames)
    if answer is not None:
        assert all(type(part) is bytes for part in answer)
        assert answer[2] == frames[2]
        assert status(answer) in (b"200", b"400")
    assert sum(counters.all().values()) == (answer is not None and answer[3] != b"200")


# what is logged


def refused(gate: Gate, *requests: list[Any]) -> list[str]:
    """What is logged when all of them are refused: the addresses in the lines."""
    with capturedLogs() as events:
        for each in requests:
            assert status(gate.answer(each)) == b"300"
    return [str(event["address"]) for event in events]


def test_each_key_of_each_address_is_logged_once_a_minute(gate: Gate, keys: AllowedKeys, clock: Clock) -> None:
    gate.domain(WIRE, keys, False)
    all = [request(b"CURVE", key, address=address) for key in (OTHER, bytes(32)) for address in (b"192.0.2.1", b"::1")]
    shown = curve.encode(OTHER)
    none = "0" * 40
    lines = [
        f"192.0.2.1 with key {shown}",
        f"::1 with key {shown}",
        f"192.0.2.1 with key {none}",
        f"::1 with key {none}",
    ]
    assert refused(gate, *all) == lines
    assert refused(gate, *all) == []
    clock.advance(COMPLAIN_EVERY - 1)
    assert refused(gate, *all) == []
    clock.advance(1.1)
    assert refused(gate, *all) == lines


def test_an_address_that_shows_ever_new_keys_does_not_fill_the_log(
    gate: Gate, keys: AllowedKeys, clock: Clock, counters: Counters
) -> None:
    gate.domain(WIRE, keys, False)
    made = [number.to_bytes(32, "big") for number in range(200)]
    assert len(refused(gate, *(request(b"CURVE", key) for key in made))) == KEYS_LOGGED
    assert len(refused(gate, request(b"CURVE", made[0], address=b"192.0.2.2"))) == 1, "others are logged"
    assert counters.get("mc0_refused", "key-not-allowed") == 201
    clock.advance(COMPLAIN_EVERY + 1)
    assert len(refused(gate, *(request(b"CURVE", key) for key in made))) == KEYS_LOGGED


def test_a_key_that_tries_again_and_again_keeps_no_other_one_from_the_log(gate: Gate, keys: AllowedKeys) -> None:
    gate.domain(WIRE, keys, False)
    assert len(refused(gate, *[request(b"CURVE", OTHER)] * 200)) == 1
    assert len(refused(gate, request(b"CURVE", bytes(32)))) == 1


@pytest.mark.parametrize(
    ("given", "shown"),
    [
        ("192.0.2.1", "192.0.2.1"),
        ("::ffff:192.0.2.1", "192.0.2.1"),
        ("::ffff", "::ffff"),
        ("2001:db8::1", "2001:db8::1"),
        ("localhost:1000:100:4711", "uid 1000 here"),
        ("", ""),
        ("a\nb\xff", "a\\nb\\xff"),
    ],
)
def test_addresses_are_such_as_the_log_can_be_kept_by(given: str, shown: str) -> None:
    assert address_of(given) == shown
