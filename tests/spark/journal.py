"""Segments written by hand, for the tests of what reads them."""

import gzip
import json
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

START = datetime(2026, 3, 2, 10, tzinfo=UTC)
"""The time of the first records of these tests."""

TODAY = date(2026, 3, 5)
"""The UTC date of the wall clock, some days later."""


def record(seq: int, event: str = "hb", **members: Any) -> dict[str, Any]:
    """Make a good record: one each second."""
    made: dict[str, Any] = {
        "v": 1,
        "ts": int((START + timedelta(seconds=seq)).timestamp()) * 1_000_000,
        "broker": "b",
        "boot": "one",
        "seq": seq,
        "event": event,
        "wire": "dbp",
    }
    if event not in ("alive", "drop"):
        made |= {"service": "mail", "provider": 1, "endpoint": "10.0.0.1:25"}
    return made | members


def lines(*records: Any) -> bytes:
    """Make the text of a segment; text is taken as it is."""
    return "".join((one if isinstance(one, str) else json.dumps(one)) + "\n" for one in records).encode()


def segment(journal: Path, name: str, text: bytes, cut: int = 0, day: str = "2026-03-02") -> str:
    """Write a segment, and return its name; `cut` bytes are missing at its end."""
    path = journal / "segments" / f"date={day}" / "hour=10" / f"{name}.jsonl.gz"
    path.parent.mkdir(parents=True, exist_ok=True)
    packed = gzip.compress(text)
    path.write_bytes(packed[: len(packed) - cut])
    return path.relative_to(journal / "segments").as_posix()
