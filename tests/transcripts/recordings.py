"""The recordings of the original broker, in `elko/`.

The first line of a file says what it shows; each further line is one event on one connection, as the client saw it.
"""

from __future__ import annotations

import json
from pathlib import Path

import attrs

HERE = Path(__file__).parent

BEFORE_AUTH = {"b02", "b03", "b27", "b28"}
"""Recordings that start without `auth`: they need a listener that allows that."""


@attrs.frozen
class Event:
    """What happened on one connection.

    ``kind`` is ``open``, ``>`` (the client sent ``data``), ``<`` (the original did), ``halfclose`` (the client sends no
    more), ``close`` (the client closed), ``peer-reset`` or ``peer-eof`` (the original closed), or ``note``. ``at`` is
    in seconds from the start.
    """

    at: float
    conn: str
    kind: str
    data: bytes
    note: str

    @property
    def closed_by_broker(self) -> bool:
        """Whether the original closed the connection: it resets where others end the stream."""
        return self.kind in ("peer-reset", "peer-eof")


@attrs.frozen
class Recording:
    """One recording. ``name`` is its file's, ``short`` what that begins with, as b08."""

    name: str
    doc: str
    diagnostics: bool
    events: tuple[Event, ...]

    @property
    def short(self) -> str:
        return self.name.partition("_")[0]


def names() -> list[str]:
    """The names of all recordings."""
    return sorted(path.stem for path in (HERE / "elko").glob("*.jsonl"))


def load(name: str) -> Recording:
    """One recording."""
    head, *lines = (HERE / "elko" / f"{name}.jsonl").read_text("utf-8").splitlines()
    about = json.loads(head)
    return Recording(
        about["scenario"],
        about["doc"],
        about["meta"]["env"].get("DIAG") != "false",
        tuple(_event(json.loads(line)) for line in lines),
    )


def _event(line: dict[str, str]) -> Event:
    kinds = {"open", ">", "<", "halfclose", "close", "peer-reset", "peer-eof", "note"}
    assert line["dir"] in kinds, line
    return Event(float(line["t"]), line["conn"], line["dir"], line["bytes"].encode("latin-1"), line.get("note", ""))
