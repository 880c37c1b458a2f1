"""Records of segments: each line is a row or aside, whatever the pieces in which it is read."""

import gzip
import json
import tracemalloc
from datetime import timedelta
from io import BytesIO
from pathlib import Path
from typing import Any

import attrs
import pyarrow.parquet
import pytest

from broker.core.model import MAX_COUNT, LoadDetails
from broker.export.journal_records import Record, common, encode, with_details, with_zone
from spark.capacity.ingest import record_reader
from spark.capacity.ingest.record_reader import (
    EARLIEST,
    FUTURE,
    LINE_LIMIT,
    MEASURES,
    REQUIRED,
    Taken,
    micros,
    read,
    take,
)
from spark.capacity.ingest.segments import MOST_NUMBER, Digested, Reach
from spark.capacity.tables.schema import BRONZE_RECORDS, EVENTS, RECORD
from tests.spark.journal import START, lines, record, segment

LATEST = START + FUTURE
LIMITS = micros(EARLIEST), micros(LATEST)


def text(seq: int, member: str) -> bytes:
    """Make a record's line with one more member, or one in the place of another, written as it is."""
    made = record(seq)
    made.pop(member.split(":")[0].strip(' "'), None)
    return (json.dumps(made)[:-1] + ", " + member + "}\n").encode()


GOOD = [
    record(1, "alive", why="start"),
    record(2, "register", label="a", interval_ms=30_000, full_load=2),
    record(3, "load", load=1, full_load=0.0),
    record(4, "load", load=2.5e-3, rtt_ms=0),
    record(5, hb_seq=0, sent_ts=micros(START), requests=0, errors=3, in_flight=2**40),
    record(6, sent_ts=-5, interval_ms=0, full_load=-0.0),
    record(7, sent_ts=2**62, label='\u00fc\u4f60\U0001f600 "quoted" \\ \n'),
    record(8, endpoint=None),
    record(9, endpoint=None, label="only a label"),
    record(10, "expire", why=""),
    record(11, "unregister", why="withdrawn", protocol="tcp"),
    record(12, "drop", dropped=7, why="queue"),
    record(20, ts=micros(START + timedelta(hours=14))),
    record(21, boot="two", provider=2**62),
]
ODD = [
    b'"seq": 1.0', b'"seq": 1e1', b'"seq": 01', b'"seq": -1', b'"seq": 9223372036854775807', b'"seq": 9007199254740991',
    b'"seq": 9223372036854775808',
    b'"load": 1e400', b'"load": -1e-400', b'"load": 1E2', b'"load": +1', b'"load": .5', b'"load": 5.', b'"load": "1"',
    b'"load": NaN', b'"load": Infinity', b'"load": -Infinity', b'"load": true', b'"load": 0x10', b'"load": -0',
    b'"load": 0.' + b"1" * 400, b'"load": null', b'"label": 5', b'"label": {}', b'"label": []', b'"label": true',
    b'"label": ""', b'"label": "\\u0000"', b'"label": "\\ud800"', b'"label": "\\ud83d\\ude00"', b'"label": "\\x"',
    b'"label": "a\tb"', b'"label": "\xff"', b'"label": "\xc3\xa9"', b"'label': 'a'", b'label: "a"', b'"label": "a",',
    b'"label": "a", "label": "b"', b'"la\\u0062el": "a"', b'"LABEL": "a"', b'"colour": "red"', b'"colour": {"a": [1]}',
    b'"label": "a" /* b */', b'"endpoint": null', b'"provider": null', b'"service": null', b'"wire": null',
    b'"v": 2', b'"v": 3', b'"latency_ms": 1.5', b'"latency_ms": -1', b'"requests": -1', b'"requests": 7',
    b'"v": true', b'"v": null', b'"event": "dance"', b'"event": "load"', b'"event": null', b'"boot": null',
    b'"ts": 5', b'"ts": 99999999999999999', b'"ts": -1', b'"rtt_ms": -1', b'"full_load": -1', b'"full_load": -0.5',
    b'"label": "a"}  ', b'"label": "a"}\r', b'"label": "a"} x', b'"label": "a"}{"v":1', b'"label": "a"\x00',
]  # fmt: skip
LINES = {
    "odd-" + str(number): lines(record(1))
    + text(2, member.decode("latin-1")).decode().encode("latin-1")
    + lines(record(3))
    for number, member in enumerate(ODD)
}
TEXTS = {
    **LINES,
    "empty": b"",
    "newline": b"\n",
    "blank": lines(record(1), "", record(2)),
    "spaces": lines(record(1), "   ", record(2)),
    "no-end": lines(record(1)) + lines(record(2))[:-1],
    "torn": lines(record(1)) + lines(record(2))[:-9],
    "bom": b"\xef\xbb\xbf" + lines(record(1)),
    "two-in-one-and-a-blank": lines(record(1))[:-1] + lines(record(2)) + b"\n",
    "over-two-lines": lines(record(1)).replace(b', "seq"', b',\n"seq"') + lines(record(2))[:-1] + lines(record(3)),
    "array": lines("[" + json.dumps(record(1)) + "]"),
    "wide": "".join(map(chr, lines(record(1)))).encode("utf-16-le"),
    "long": lines(record(1), record(2, label="x" * (1 << 21)), record(3)),
    "zero": lines(record(0)),
    "good": lines(*GOOD),
    "again": lines(record(1), record(1), record(2)),
    "backwards": lines(record(3), record(2), record(1)),
}  # fmt: skip


def whole(value: object) -> bool:
    return type(value) is int and -(2**63) <= value < 2**63


KINDS: dict[str, Any] = {
    "long": whole,
    "double": lambda value: whole(value) or isinstance(value, float),
    "string": lambda value: isinstance(value, str) and "\ud800" not in value,
}


def understood(line: bytes) -> dict[str, Any] | None:
    """Return the members of a line by Python's own reader, if it is an object whose members have their types."""

    def constant(name: str) -> None:
        raise ValueError(name)

    def members(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        if len(dict(pairs)) < len(pairs):
            raise ValueError("a member is there twice")
        return dict(pairs)

    try:
        told = json.loads(line.decode(), parse_constant=constant, object_pairs_hook=members)
    except ValueError:
        return None
    if not isinstance(told, dict) or len(line) > LINE_LIMIT:
        return None
    known = {name: told.get(name) for name in RECORD.names}
    kinds = {column.name: KINDS[COLUMN_KINDS.get(column.dataType.typeName(), "long")] for column in RECORD}
    return known if all(value is None or kinds[name](value) for name, value in known.items()) else None


COLUMN_KINDS = {"double": "double", "string": "string"}


def is_good(line: bytes) -> bool:
    """Tell whether a line is a record, by the rules of docs/export.md."""
    told = understood(line)
    if told is None or any(told[name] is None for name in REQUIRED) or told["v"] not in (1, 2):
        return False
    named = told["event"] in ("alive", "drop") or (told["service"] is not None and told["provider"] is not None)
    measures = [told[name] for name in MEASURES if told[name] is not None]
    return (
        told["event"] in EVENTS
        and named
        and 1 <= told["seq"] <= MOST_NUMBER
        and LIMITS[0] <= told["ts"] <= LIMITS[1]
        and (told["event"] != "load" or told["load"] is not None)
        and all(0 <= value < float("inf") for value in measures)
    )


def taken(place: Path, texts: dict[str, bytes]) -> tuple[Taken, dict[str, list[Any]], dict[str, list[int]]]:
    """Read texts as segments: what a task tells, the rows of each, and the numbers of its bad lines."""
    names = {segment(place, name, text): name for name, text in texts.items()}
    told = take([(name, str(place / "segments" / name)) for name in names], str(place / "out"), *LIMITS, "run")
    rows: dict[str, list[Any]] = {name: [] for name in texts}
    aside: dict[str, list[int]] = {name: [] for name in texts}
    for file in (name for name in told.files if name.startswith(BRONZE_RECORDS.name)):
        for row in pyarrow.parquet.ParquetFile(place / "out" / file).read().to_pylist():
            rows[names[row["segment"]]].append(row)
    for row in pyarrow.parquet.ParquetFile(told.aside).read().to_pylist() if told.aside else ():
        aside[names[row["segment"]]].append(row["line"])
    return told, {name: sorted(mine, key=repr) for name, mine in rows.items()}, aside


@pytest.mark.long
def test_each_line_is_a_record_or_aside_as_another_reader_of_json_says(tmp_path: Path) -> None:
    told, rows, aside = taken(tmp_path, TEXTS)
    for name, text in TEXTS.items():
        own = [line for line in text.split(b"\n") if line.strip()]
        good = [number for number, line in enumerate(own, 1) if is_good(line)]
        assert aside[name] == [number for number in range(1, len(own) + 1) if number not in good], name
        assert len(rows[name]) == len(good), name
    assert {seen.name: (seen.records, seen.bad) for seen in told.seen} == {
        seen.name: (len(mine), len(bad))
        for seen, mine, bad in zip(told.seen, rows.values(), aside.values(), strict=True)
    }


@pytest.mark.long
@pytest.mark.parametrize("piece", [700, 200])
def test_the_size_of_pieces_changes_no_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, piece: int) -> None:
    told, rows, aside = taken(tmp_path / "whole", TEXTS)
    monkeypatch.setattr(record_reader, "PIECE", piece)
    other, its_rows, its_aside = taken(tmp_path / "pieces", TEXTS)
    assert (its_rows, its_aside) == (rows, aside)
    assert [attrs.evolve(seen, digest="") for seen in other.seen] == [
        attrs.evolve(seen, digest="") for seen in told.seen
    ]


def test_members_of_a_later_version_are_counted_and_the_reach_of_bad_lines_told(tmp_path: Path) -> None:
    text = lines(record(1, colour="red"), record(2, colour=None, size=3), "{torn", record(4), "{torn", "", "{torn")
    told, rows, aside = taken(tmp_path, {"b-one-1": text})
    [seen] = told.seen
    assert (seen.unknown, seen.reach) == ({"colour": 2, "size": 1}, Reach("b", "one", 6))
    assert [row["seq"] for row in rows["b-one-1"]] == [1, 2, 4]
    assert aside["b-one-1"] == [3, 5, 6]


def read_text(text: bytes) -> Any:
    return read(Digested(BytesIO(gzip.compress(text))), "a segment", *LIMITS)


def test_records_of_the_broker_are_whole_in_both_versions() -> None:
    plain = Record(micros(START), "load", "elko", "bank", 3, "one", "h:1", "tcp", load=0.5, full_load=2.0)
    details = LoadDetails(requests=120, errors=2, in_flight=3, latency_ms=41.5)
    begin = common("b", "one")
    text = b"".join(encode(each, begin, seq) for seq, each in enumerate((plain, with_details(plain, details)), 1))
    rows = read_text(text).to_pylist()
    assert [row["v"] for row in rows] == [1, 2]
    names = ("load", "full_load", "requests", "errors", "in_flight", "latency_ms")
    assert [tuple(row[name] for name in names) for row in rows] == [
        (0.5, 2.0, None, None, None, None),
        (0.5, 2.0, 120, 2, 3, 41.5),
    ]


def test_the_zone_of_a_service_is_a_known_member(tmp_path: Path) -> None:
    register = with_zone(Record(micros(START), "register", "elko", "bank", 3, endpoint="h:1"), "north")
    text = encode(register, common("b", "one"), 1)
    assert len(read_text(text)) == 1
    told, _, aside = taken(tmp_path, {"b-one-1": text + b"{torn\n"})
    assert ([seen.unknown for seen in told.seen], aside) == ([{}], {"b-one-1": [2]})


def test_the_most_that_a_provider_may_report_is_read() -> None:
    plain = Record(micros(START), "load", "elko", "bank", 3, load=0.0)
    most = with_details(plain, LoadDetails(MAX_COUNT, MAX_COUNT, MAX_COUNT, MAX_COUNT))
    [row] = read_text(encode(most, common("b", "one"), 1)).to_pylist()
    assert row["requests"] == row["errors"] == row["in_flight"] == row["latency_ms"] == MAX_COUNT


def test_of_a_segment_over_the_limit_no_rows_are_held(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = lines(*(record(seq) for seq in range(1, 9)))
    monkeypatch.setattr(record_reader, "PIECE", 300)
    monkeypatch.setattr(record_reader, "LARGEST", len(text))
    assert len(read_text(text)) == 8
    monkeypatch.setattr(record_reader, "LARGEST", len(text) - 1)
    assert read_text(text) is None
    _, rows, aside = taken(tmp_path, {"b-one-1": text})
    assert (len(rows["b-one-1"]), aside["b-one-1"]) == (8, [])


@pytest.mark.long
def test_a_line_of_any_length_is_aside_without_being_held(tmp_path: Path) -> None:
    long = b'{"label": "' + b"x" * (64 << 20) + b"\n"
    text = lines(record(1)) + long + lines(record(2), "{torn", record(3)) + long[:-1]
    segment(tmp_path, "b-one-1", text)
    tracemalloc.start()
    told, rows, aside = taken(tmp_path, {"b-one-1": text})
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert ([row["seq"] for row in rows["b-one-1"]], aside["b-one-1"]) == ([1, 2, 3], [2, 4, 6])
    assert peak < 48 << 20
    assert told.aside is not None
    reasons = pyarrow.parquet.read_table(told.aside)["reason"].to_pylist()
    assert reasons == [record_reader.TOO_LONG, record_reader.UNREADABLE, record_reader.TOO_LONG]
    assert [seen.reach for seen in told.seen] == [Reach("b", "one", 4)]


@pytest.mark.parametrize(
    ("member", "name"),
    [
        (b'"colour": "\xff"', "colour"),
        (b'"la\xe2el": "a"', "la\ufffdel"),
        (b'"colour": ' + b"1" * 5000, "colour"),
        (b'"colour": ' + b"[" * 50_000 + b"]" * 50_000, record_reader.NESTED),
        (b'"colour": [-Inf]', record_reader.INFINITE),
        (b'"colour": NaN', "colour"),
    ],
    ids=["value", "name", "integer", "nested", "infinite", "nan"],
)
def test_a_member_that_is_not_read_may_have_any_octets(tmp_path: Path, member: bytes, name: str) -> None:
    damaged = json.dumps(record(2)).encode()[:-1] + b", " + member + b"}\n"
    of = segment(tmp_path, "b-one-1", lines(record(1)) + damaged + lines(record(3)))
    [seen] = take([(of, str(tmp_path / "segments" / of))], str(tmp_path / "out"), *LIMITS, "run").seen
    # From Python 3.14 on, the depth that can be read depends on the size of the stack.
    unknown = {"colour" if name == record_reader.NESTED and "colour" in seen.unknown else name: 1}
    assert (seen.records, seen.bad, seen.unknown) == (3, 0, unknown)
