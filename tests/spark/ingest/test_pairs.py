"""Pairs: what the last records of registrations tell, beside a loop over the records."""

import random
from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from spark.capacity.ingest.runs import pairs_of
from spark.capacity.ingest.sorted_files import BRONZE
from tests.examples import examples
from tests.spark.farm import DAY, clock

NAMES = ("broker", "boot", "service", "instance")

KEY = ("date", *NAMES[:3], "provider", "instance")


def bronze(records: Sequence[dict[str, Any]]) -> pa.Table:
    """Make rows of bronze as a task holds them: each column of one piece, names as numbers."""
    rows = pa.Table.from_pylist(list(records), BRONZE).combine_chunks()
    columns = [
        pa.array(column.combine_chunks().dictionary_encode()) if pa.types.is_string(column.type) else column
        for column in rows.columns
    ]
    return pa.table(columns, BRONZE.names)


def told(records: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the pairs of records, by a loop."""
    found: dict[tuple[Any, ...], dict[str, Any]] = {}
    nothing = dict.fromkeys(("interval", "interval_seq", "load", "load_seq", "full_load", "full_load_seq"))
    for record in sorted(records, key=lambda record: record["seq"]):
        if record["event"] in ("alive", "drop"):
            continue
        row = found.setdefault(tuple(record[name] for name in KEY), {"records": 0, **nothing})
        row["records"] += 1
        row["seq"], row["at"] = record["seq"], int(record["ts"].timestamp()) * 1_000_000
        closed, withdrawn = record["event"] in ("unregister", "expire"), record.get("why") == "withdrawn"
        row["ended"] = None if not closed else 3 if withdrawn and record["event"] == "unregister" else 0
        for name, value in (
            ("interval", max(record.get("interval_ms") or 0, 0) * 1000 or None),
            ("load", record.get("load")),
            ("full_load", record.get("full_load")),
        ):
            if value is not None:
                row[name], row[f"{name}_seq"] = value, record["seq"]
    return [{**dict(zip(KEY, key, strict=True)), **row} for key, row in found.items()]


def any_record(chance: random.Random, seq: int) -> dict[str, Any]:
    event = chance.choice(["hb", "hb", "load", "register", "unregister", "expire", "alive", "drop"])
    record: dict[str, Any] = {
        "date": DAY, "ts": clock(f"10:{chance.randrange(60):02}"), "seq": seq, "event": event,
        "broker": chance.choice("ab"), "boot": chance.choice(["one", "two"]),
        "service": chance.choice("st"), "provider": chance.randrange(3), "instance": chance.choice("xyz"),
    }  # fmt: skip
    if chance.random() < 0.3:
        record["load"] = chance.choice([0.0, 1.0, 2.5])
    if chance.random() < 0.2:
        record["full_load"] = chance.choice([10.0, 20.0])
    if chance.random() < 0.3:
        record["interval_ms"] = chance.choice([-5, 0, 1000, 30_000])
    if chance.random() < 0.5:
        record["why"] = chance.choice(["withdrawn", "left"])
    return record


def in_order(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    return sorted(rows, key=lambda row: [str(row[name]) for name in KEY])


def test_pairs_tell_the_last_of_their_records_whatever_the_order() -> None:
    for seed in range(examples(30)):
        chance = random.Random(seed)
        records = [any_record(chance, seq) for seq in range(1, chance.choice([2, 10, 300]))]
        chance.shuffle(records)
        assert in_order(pairs_of(bronze(records)).to_pylist()) == in_order(told(records))


def test_records_of_brokers_alone_are_of_no_pair() -> None:
    alive = {"date": DAY, "ts": clock("10:00"), "seq": 1, "event": "alive", "broker": "b", "boot": "one"}
    assert pairs_of(bronze([alive])).num_rows == 0
