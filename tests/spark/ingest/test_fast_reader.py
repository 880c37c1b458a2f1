"""Whole segments: what is taken at once is just what Spark takes line by line, and nothing that it would put aside."""

import gzip
import json
from datetime import timedelta
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from broker.core.model import MAX_COUNT, LoadDetails
from broker.export.journal_records import Record, common, encode, with_details
from spark.capacity.ingest import fast_reader
from spark.capacity.ingest.fast_reader import PIECE, read, take
from spark.capacity.ingest.line_reader import EARLIEST, FUTURE, NOTHING, STAGED, micros, stage
from spark.capacity.ingest.segments import Digested
from spark.capacity.tables.schema import BRONZE_RECORDS
from spark.capacity.tables.store import url
from tests.spark.journal import START, lines, record, segment

pytestmark = pytest.mark.long

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
    b'"seq": 1.0', b'"seq": 1e1', b'"seq": 01', b'"seq": -1', b'"seq": 9223372036854775807',
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


@pytest.fixture(scope="module")
def by_lines(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[list[Any], int]]:
    """Result of Spark for all texts, line by line: of each the good rows and the number of bad lines."""
    place = tmp_path_factory.mktemp("lines")
    paths = {name: place / "segments" / segment(place, name, text) for name, text in TEXTS.items()}
    stage(spark, list(paths.values()), LATEST, place / "out")
    staged = spark.read.schema(STAGED).parquet(url(place / "out"))
    good = staged.where(F.col("reason").isNull()).select(*BRONZE_RECORDS.schema.names, "row").orderBy("row").collect()
    bad = staged.where(F.col("date") == F.lit(NOTHING)).select("segment").collect()
    return {
        name: (
            [row[:-1] for row in good if row["segment"].endswith(f"/{name}.jsonl.gz")],
            sum(row["segment"].endswith(f"/{name}.jsonl.gz") for row in bad),
        )
        for name in TEXTS
    }


@pytest.mark.parametrize("piece", [PIECE, 700, 200, 1])
def test_what_is_whole_is_just_what_spark_reads_line_by_line(
    spark: SparkSession,
    tmp_path: Path,
    by_lines: dict[str, tuple[list[Any], int]],
    monkeypatch: pytest.MonkeyPatch,
    piece: int,
) -> None:
    monkeypatch.setattr(fast_reader, "PIECE", piece)
    names = [segment(tmp_path, name, text) for name, text in TEXTS.items()]
    taken = take([(name, str(tmp_path / "segments" / name)) for name in names], str(tmp_path / "out"), *LIMITS)
    assert [seen.name for seen in taken.seen] == names
    whole = {name for name, seen in zip(TEXTS, taken.seen, strict=True) if seen.look is None}
    assert {"good", "again", "backwards"} < whole
    # Most of the rest is none; which of them is is only a question of time.
    assert len(whole) < len(TEXTS) / 2
    assert taken.files
    rows = spark.read.schema(BRONZE_RECORDS.schema).parquet(url(tmp_path / "out" / BRONZE_RECORDS.name))
    held = rows.select(*BRONZE_RECORDS.schema.names).collect()
    for name in TEXTS:
        mine = [tuple(row) for row in held if row["segment"].endswith(f"/{name}.jsonl.gz")]
        if name in whole:
            assert by_lines[name][1] == 0, name
            assert sorted(mine, key=repr) == sorted(map(tuple, by_lines[name][0]), key=repr), name
        else:
            assert not mine, name


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


def test_the_most_that_a_provider_may_report_is_read() -> None:
    plain = Record(micros(START), "load", "elko", "bank", 3, load=0.0)
    most = with_details(plain, LoadDetails(MAX_COUNT, MAX_COUNT, MAX_COUNT, MAX_COUNT))
    [row] = read_text(encode(most, common("b", "one"), 1)).to_pylist()
    assert row["requests"] == row["errors"] == row["in_flight"] == row["latency_ms"] == MAX_COUNT


def test_a_segment_over_the_limit_is_left_to_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    text = lines(*(record(seq) for seq in range(1, 9)))
    monkeypatch.setattr(fast_reader, "PIECE", 300)
    monkeypatch.setattr(fast_reader, "LARGEST", len(text))
    assert len(read_text(text)) == 8
    monkeypatch.setattr(fast_reader, "LARGEST", len(text) - 1)
    assert read_text(text) is None
