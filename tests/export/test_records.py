"""Records and their lines."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.core.model import LoadDetails
from broker.export.journal_records import (
    MEMBERS,
    DetailedRecord,
    Record,
    boot_name,
    common,
    encode,
    encode_all,
    microseconds,
    with_details,
)

COMMON = common("broker-1", "20260102T030405000Zab")


def test_a_line_begins_with_what_every_record_has():
    line = encode(Record(1_700_000_000_123_456, "alive", "elkobroker"), COMMON, 7)

    assert line == (
        b'{"v":1,"broker":"broker-1","boot":"20260102T030405000Zab","seq":7,'
        b'"ts":1700000000123456,"event":"alive","wire":"elkobroker"}\n'
    )


def test_each_member_has_a_meaning():
    assert set(MEMBERS) == {"v", "broker", "boot", "seq", *DetailedRecord.__struct_fields__}


def test_only_a_record_with_details_has_version_2():
    plain = Record(1, "load", "elko", provider=3, load=0.5)
    detailed = with_details(plain, LoadDetails(requests=7, latency_ms=12.5))
    lines, _ = encode_all([plain, detailed, plain], COMMON, 1)

    assert [json.loads(line)["v"] for line in lines] == [1, 2, 1]
    assert lines[1] == encode(detailed, COMMON, 2)
    assert json.loads(lines[1]) == {
        **json.loads(lines[0]), "v": 2, "seq": 2, "requests": 7, "latency_ms": 12.5
    }  # fmt: skip


def test_a_text_that_utf_8_lacks_costs_a_record_none_of_its_details():
    record = with_details(Record(1, "load", "elko", label="\ud800"), LoadDetails(in_flight=2))
    [line], _ = encode_all([record], COMMON, 1)

    assert (json.loads(line)["label"], json.loads(line)["in_flight"]) == ("?", 2)


def test_a_provider_without_a_load_is_not_one_with_load_zero():
    assert "load" not in json.loads(encode(Record(1, "load", "elko"), COMMON, 1))
    assert json.loads(encode(Record(1, "load", "elko", load=0.0, provider=0), COMMON, 1))["load"] == 0.0


@pytest.mark.parametrize(
    ("record", "member", "written", "changed"),
    [
        (Record(1, "hb", "dbp", label="a\ud800b"), "label", "a?b", 1),
        (Record(1, "hb", "dbp", service="\udfff" * 3), "service", "???", 1),
        (Record(1, "load", "elko", load=float("nan")), "load", None, 0),
        (Record(1, "load", "elko", label="\ud800", load=float("inf")), "load", None, 1),
        (Record(1, "load", "elko", load=10**400), "load", 10**400, 0),
        (Record(1, "hb", "dbp", sent_ts=-(2**70)), "sent_ts", -(2**70), 0),
    ],
)
def test_what_a_line_has_no_room_for_costs_that_member_only(record, member, written, changed):
    records = [Record(1, "alive", "elkobroker"), record, Record(2, "alive", "elkobroker")]
    lines, mended = encode_all(records, COMMON, 5)

    assert [json.loads(line)["seq"] for line in lines] == [5, 6, 7]
    assert json.loads(lines[1]).get(member) == written
    assert mended == changed


@given(
    st.builds(
        Record,
        st.integers(0, 2**63 - 1),
        st.text(),
        st.text(),
        label=st.none() | st.text(st.characters()),
        load=st.none() | st.floats(),
        sent_ts=st.none() | st.integers(),
    )
)
def test_any_record_is_one_line_of_json(record):
    [line], _ = encode_all([record], COMMON, 1)

    assert line.count(b"\n") == 1
    assert line.endswith(b"\n")
    assert json.loads(line)["ts"] == record.ts


@given(st.lists(st.floats(0, 4e9), min_size=2, max_size=2))
def test_names_of_starts_sort_by_time(moments):
    first, second = sorted(moments)

    assert boot_name(first, b"") <= boot_name(second, b"")


def test_two_starts_at_the_same_moment_have_different_names():
    assert boot_name(5.0, b"\x01") != boot_name(5.0, b"\x02")


def test_times_are_microseconds():
    assert microseconds(1_700_000_000.5) == 1_700_000_000_500_000
