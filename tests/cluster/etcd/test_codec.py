"""The codec of etcd's gateway: requests in etcd's form, and answers of any bytes."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.cluster.etcd import codec
from broker.cluster.etcd.codec import Unintelligible
from broker.cluster.etcd.etcd_interface import Compare, Delete, Event, Get, KeyValue, Nested, Put

DECODERS: list[Callable[[bytes], Any]] = [
    codec.range_result,
    codec.txn_result,
    codec.granted,
    codec.renewed,
    codec.time_to_live,
    codec.nothing,
    codec.status,
    codec.token,
    lambda data: [codec.event(each) for each in codec.message(data).events],
]


def b64(data: bytes) -> str:
    return base64.b64encode(data).decode()


def test_a_range_and_its_answer() -> None:
    request = codec.range_request(b"/a\xff", b"/b", 500, 7)
    assert request.path == "kv/range"
    assert json.loads(request.body) == {"key": b64(b"/a\xff"), "range_end": b64(b"/b"), "limit": 500, "revision": 7}
    assert json.loads(codec.range_request(b"/a", None, 0, 0).body) == {"key": b64(b"/a")}
    kv = {
        "key": b64(b"/a"),
        "create_revision": "3",
        "mod_revision": "4",
        "version": "2",
        "value": b64(b"v"),
        "lease": "9",
    }
    answer = {
        "header": {"cluster_id": "1", "revision": "12"},
        "kvs": [kv, {"key": b64(b"/b")}],
        "more": True,
        "count": "5",
    }
    found = codec.range_result(json.dumps(answer).encode())
    assert found.keys == (KeyValue(b"/a", b"v", 3, 4, 9), KeyValue(b"/b", b"", 0, 0, 0))
    assert (found.revision, found.more, found.count) == (12, True, 5)


def test_a_transaction() -> None:
    request = codec.txn_request(
        [Compare("CREATE", b"a", 0), Compare("MOD", b"b", 5), Compare("LEASE", b"c", 7)],
        [Put(b"a", b"v", 7), Delete(b"b"), Delete(b"c", b"d"), Get(b"e")],
        [Get(b"a", b"b")],
    )
    assert request.writes
    assert not request.repeatable
    assert json.loads(request.body) == {
        "compare": [
            {"target": "CREATE", "result": "EQUAL", "key": b64(b"a"), "create_revision": 0},
            {"target": "MOD", "result": "EQUAL", "key": b64(b"b"), "mod_revision": 5},
            {"target": "LEASE", "result": "EQUAL", "key": b64(b"c"), "lease": 7},
        ],
        "success": [
            {"request_put": {"key": b64(b"a"), "value": b64(b"v"), "lease": 7}},
            {"request_delete_range": {"key": b64(b"b")}},
            {"request_delete_range": {"key": b64(b"c"), "range_end": b64(b"d")}},
            {"request_range": {"key": b64(b"e")}},
        ],
        "failure": [{"request_range": {"key": b64(b"a"), "range_end": b64(b"b")}}],
    }
    reading = codec.txn_request([], [Get(b"a")], [])
    assert (reading.writes, reading.repeatable) == (False, True)


def test_a_nested_transaction_has_a_condition_and_a_result_of_its_own() -> None:
    nested = Nested(Compare("LEASE", b"c", 7), Delete(b"c"))
    request = codec.txn_request(
        [], [Nested(Compare("MOD", b"a", 3), Put(b"a", b"v", 7)), Put(b"b", b"", 7), nested], []
    )
    assert (request.writes, request.repeatable) == (True, False)
    first, _, second = json.loads(request.body)["success"]
    assert first == {
        "request_txn": {
            "compare": [{"target": "MOD", "result": "EQUAL", "key": b64(b"a"), "mod_revision": 3}],
            "success": [{"request_put": {"key": b64(b"a"), "value": b64(b"v"), "lease": 7}}],
        }
    }
    assert second["request_txn"]["success"] == [{"request_delete_range": {"key": b64(b"c")}}]
    # A condition that does not hold is left out.
    responses = b'{"response_txn": {"succeeded": true}}, {"response_put": {}}, {"response_txn": {"header": {}}}'
    result = codec.txn_result(b'{"header": {"revision": "3"}, "succeeded": true, "responses": [%s]}' % responses)
    assert (result.succeeded, result.nested) == (True, (True, False))


def test_what_etcd_leaves_out() -> None:
    lost = codec.txn_result(
        b'{"header": {"revision": "3"}, "responses": [{"response_put": {}}, {"response_range": {}}]}'
    )
    assert (lost.succeeded, lost.revision, lost.found) == (False, 3, ((),))
    assert codec.renewed(b'{"result": {"header": {"revision": "3"}, "ID": "77"}}\n') == 0
    assert codec.renewed(b'{"result": {"header": {"revision": "3"}, "ID": "77", "TTL": "5"}}\n') == 5
    assert codec.time_to_live(b'{"header": {"revision": "3"}, "ID": "77", "TTL": "-1"}') == -1
    assert codec.range_result(b'{"header": {"revision": "3"}}').keys == ()


def test_messages_of_a_watch() -> None:
    line = {
        "result": {
            "header": {"revision": "13"},
            "events": [
                {"kv": {"key": b64(b"a"), "value": b64(b"v"), "create_revision": "2", "mod_revision": "12"}},
                {"type": "DELETE", "kv": {"key": b64(b"b"), "mod_revision": "13"}},
            ],
            "fragment": True,
        }
    }
    found = codec.message(json.dumps(line).encode())
    assert tuple(map(codec.event, found.events)) == (
        Event(b"a", KeyValue(b"a", b"v", 2, 12), 12),
        Event(b"b", None, 13),
    )
    assert (found.revision, found.fragment, found.created, found.canceled) == (13, True, False, False)
    compacted = codec.message(b'{"result": {"header": {}, "canceled": true, "compact_revision": "25"}}')
    assert (compacted.canceled, compacted.compacted) == (True, 25)


@pytest.mark.parametrize("decode", DECODERS)
@given(
    data=st.binary()
    | st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
        lambda inner: (
            st.lists(inner)
            | st.dictionaries(
                st.sampled_from(
                    [
                        "header",
                        "result",
                        "kvs",
                        "events",
                        "kv",
                        "key",
                        "type",
                        "revision",
                        "ID",
                        "TTL",
                        "token",
                        "responses",
                        "response_range",
                        "error",
                        "canceled",
                        "errors",
                    ]
                )
                | st.text(),
                inner,
            )
        ),
    ).map(lambda value: json.dumps(value).encode())
)
def test_any_bytes_are_a_value_or_unintelligible(decode: Callable[[bytes], Any], data: bytes) -> None:
    try:
        decode(data)
    except Unintelligible as error:
        assert "\n" not in str(error)


@given(st.binary(max_size=3000))
def test_any_bytes_are_a_problem_of_one_printable_line(body: bytes) -> None:
    found = codec.problem(body)
    assert found.text == "" or found.text.isprintable()
    assert len(found.text) <= codec.TEXT


def test_depth_is_no_traceback() -> None:
    for decode in DECODERS:
        with pytest.raises(Unintelligible):
            decode(b'{"result":' * 50_000)
    assert codec.problem(b'{"error":' * 50_000).code == 0
