"""Client requests, decoded by the broker's own codec, and the client's decoding of any replies."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.core.errors import Reason
from broker.wires.mtl.codec import client_messages, control_messages
from broker.wires.mtl.codec.client_messages import (
    BadReply,
    Challenged,
    DataLease,
    Error,
    Ok,
    Ready,
    Unauthorized,
    decode,
)
from broker.wires.mtl.codec.control_messages import (
    MAX_REQUEST,
    MAX_RESOURCES,
    AuthorizeRequest,
    OpenRequest,
    ProfileRequest,
    ReaderRequest,
    ReplyStatus,
    WriterRequest,
)

NAMES = st.text(min_size=1, max_size=60).filter(lambda text: text.isprintable() and len(text.encode()) <= 255)


def reply(code: int, /, **members: Any) -> client_messages.Reply:
    named = {name.replace("_", "-"): value for name, value in members.items()}
    return decode(str(code).encode(), json.dumps({"status": "so", **named}).encode())


def bad(code: bytes, body: bytes) -> str:
    with pytest.raises(BadReply) as caught:
        decode(code, body)
    assert caught.value.reason is Reason.SYNTAX
    return caught.value.text


# requests


@pytest.mark.parametrize(
    ("request_", "meaning"),
    [
        (client_messages.opening(), OpenRequest("/")),
        (client_messages.opening("test-env"), OpenRequest("test-env")),
        (client_messages.authorization("PLAIN", b"\0a\0b"), AuthorizeRequest("PLAIN", b"\0a\0b")),
        (client_messages.authorization("EXTERNAL", b""), AuthorizeRequest("EXTERNAL", b"")),
        (client_messages.authorization("ANONYMOUS", None), AuthorizeRequest("ANONYMOUS", None)),
        (client_messages.profile("test"), ProfileRequest("test")),
        (client_messages.reader([]), ReaderRequest((), None, None)),
        (client_messages.reader(["a", "b"], "full", 7), ReaderRequest(("a", "b"), "full", 7)),
        (client_messages.writer(["a"], "none"), WriterRequest(("a",), "none")),
        (client_messages.writer(()), WriterRequest((), None)),
    ],
)
def test_the_broker_reads_what_is_asked(
    request_: client_messages.Request, meaning: control_messages.ControlRequest
) -> None:
    assert control_messages.decode(*request_) == meaning


@given(NAMES, st.lists(NAMES, max_size=5, unique=True), st.integers(1, 2**40), st.binary(max_size=50))
def test_the_broker_reads_whatever_can_be_asked(host: str, names: list[str], window: int, response: bytes) -> None:
    assert control_messages.decode(*client_messages.opening(host)) == OpenRequest(host)
    assert control_messages.decode(*client_messages.reader(names, "none", window)) == ReaderRequest(
        tuple(names), "none", window
    )
    assert control_messages.decode(*client_messages.authorization("X", response)) == AuthorizeRequest("X", response)


@pytest.mark.parametrize("resources", ["jobs", [""], ["a\n"], ["x" * 256], ["é" * 128], ["\ud800"], ["a", "\0"]])
def test_what_can_be_no_resource_is_not_asked_for(resources: Any) -> None:
    for make in (client_messages.reader, client_messages.writer):
        with pytest.raises(ValueError, match="names of resources"):
            make(resources)


def test_what_is_too_much_is_not_asked() -> None:
    with pytest.raises(ValueError, match="at most"):
        client_messages.reader(["a"] * (MAX_RESOURCES + 1))
    with pytest.raises(ValueError, match="at most"):
        client_messages.opening("x" * MAX_REQUEST)
    with pytest.raises(ValueError, match="one Content"):
        client_messages.reader([], window=0)
    with pytest.raises(ValueError, match="surrogates"):
        client_messages.opening("\ud800")


# replies


def test_the_replies_of_the_broker() -> None:
    assert decode(*control_messages.OK) == Ok()
    assert decode(*control_messages.ready(["test", "queue"], {"window": 100})) == Ready(
        ("test", "queue"), {"window": 100}
    )
    assert decode(*control_messages.unauthorized(["PLAIN"], "wrong")) == Unauthorized(("PLAIN",), "wrong")
    assert decode(*control_messages.challenged("PLAIN", b"\0\xff")) == Challenged("PLAIN", b"\0\xff")
    assert decode(*control_messages.data_lease(5976, "x")) == DataLease(5976, "x", None, None, {})
    told = control_messages.data_lease(0, "x", 7, "tcp://192.0.2.7:5976")
    assert decode(*told) == DataLease(0, "x", 7, "tcp://192.0.2.7:5976", {})
    for status in ReplyStatus:
        if status.code[:1] > b"2" and status not in (ReplyStatus.UNAUTHORIZED, ReplyStatus.CHALLENGED):
            assert decode(*control_messages.error(status, "why")) == Error(int(status.code), status.text, "why")


def test_names_are_the_same_in_any_case() -> None:
    assert reply(201, profiles=["TEST", "Queue"]) == Ready(("test", "queue"), {})
    assert reply(401, mechanisms=["plain"]) == Unauthorized(("PLAIN",), "")
    assert reply(402, mechanism="scram-sha-256", challenge="") == Challenged("SCRAM-SHA-256", b"")


def test_who_is_not_known_hears_so() -> None:
    answers = [reply(400, reason="open"), reply(400, reason="Open!"), reply(400), reply(403, reason="open")]
    assert [isinstance(each, Error) and each.not_open for each in answers] == [True, False, False, False]


def test_members_that_are_not_known_do_not_matter() -> None:
    assert reply(200, x=1, status_="?", lease="x") == Ok()
    assert reply(201, profiles=[], limits={"a": 1, "b": "2", "c": True, "d": None}) == Ready((), {"a": 1})
    assert reply(404, reason=7) == Error(404, "so", "")


def test_members_of_ours_count_only_where_they_are_what_we_mean() -> None:
    for members in (
        {"window": "7", "endpoint": 7},
        {"window": 0, "endpoint": ""},
        {"window": True, "endpoint": "a\nb"},
        {"window": 1.5, "endpoint": "\ud800"},
        {"window": None, "endpoint": None},
    ):
        assert reply(202, port=1, lease="x", **members) == DataLease(1, "x", None, None, {})
    told = reply(202, port=1, lease="x", reply="reply/y", number=7)
    assert told == DataLease(1, "x", None, None, {"reply": "reply/y"})


@pytest.mark.parametrize("code", [b"", b"20", b"2000", b"abc", b"199", b"600", b"099", b"-20", b"2\xb30", b"20 "])
def test_codes_are_three_digits_from_200_on(code: bytes) -> None:
    assert bad(code, b'{"status": "OK"}') == "the code is not three digits from 200 to 599"


@pytest.mark.parametrize(
    "body",
    [
        b"", b"{", b"[]", b"7", b"null", b'"OK"', b"\xff", b'\xef\xbb\xbf{"status":"OK"}', b"{}", b'{"status":null}',
        b'{"status":["OK"]}', b'{"status":"OK","x":NaN}', b'{"status":"OK"} x', b"[" * 60_000, b'{"a":' * 10_000,
        b" " * 65_537, b'{"status":"OK","x":' + b"[" * 33 + b"]" * 33 + b"}",
    ],
)  # fmt: skip
def test_what_is_no_reply(body: bytes) -> None:
    for code in (b"200", b"201", b"401", b"500"):
        bad(code, body)


@pytest.mark.parametrize(
    ("code", "members"),
    [
        (201, {}),
        (201, {"profiles": "test"}),
        (201, {"profiles": [1]}),
        (201, {"profiles": None}),
        (202, {}),
        (202, {"port": 1}),
        (202, {"lease": "x"}),
        (202, {"port": "1", "lease": "x"}),
        (202, {"port": -1, "lease": "x"}),
        (202, {"port": 65_536, "lease": "x"}),
        (202, {"port": 1.5, "lease": "x"}),
        (202, {"port": 1, "lease": ""}),
        (202, {"port": 1, "lease": "x" * 256}),
        (202, {"port": 1, "lease": "a\nb"}),
        (202, {"port": 1, "lease": "\ud800"}),
        (401, {}),
        (401, {"mechanisms": {}}),
        (402, {}),
        (402, {"mechanism": "X"}),
        (402, {"mechanism": "X", "challenge": "!"}),
        (402, {"mechanism": "X", "challenge": None}),
    ],
)
def test_members_that_must_be_there(code: int, members: dict[str, Any]) -> None:
    bad(str(code).encode(), json.dumps({"status": "so", **members}).encode())


@given(st.binary(max_size=4), st.binary(max_size=200))
def test_nothing_else_comes_out_of_anything(code: bytes, body: bytes) -> None:
    for digits in (code, b"201", b"202", b"401", b"402", b"403"):
        with suppress(BadReply):
            decode(digits, body)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=10,
)


@given(
    st.sampled_from([200, 201, 202, 401, 402, 403, 500]),
    st.dictionaries(
        st.sampled_from(
            [
                "status",
                "profiles",
                "limits",
                "port",
                "lease",
                "window",
                "mechanisms",
                "mechanism",
                "challenge",
                "reason",
            ]
        ),
        JSON,
    ),
)
def test_nothing_else_comes_out_of_any_members(code: int, members: dict[str, Any]) -> None:
    try:
        told = decode(str(code).encode(), json.dumps(members).encode())
    except BadReply:
        return
    repr(told).encode()
