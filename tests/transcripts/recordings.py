"""The recordings of the original broker and director, in `elko/`.

The first line of a file says what it shows; each further line is one event on one connection, as the client saw it.
Those that begin with b are of the broker, those with d of the director. Those with c are of a whole farm, with a real
Context Server: what was said on its connections was written down on the way.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path

import attrs

HERE = Path(__file__).parent

BEFORE_AUTH = {"b02", "b03", "b27", "b28"}
"""Recordings that start without `auth`: they need a listener that allows that."""


@attrs.frozen
class Event:
    """The events of one connection.

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
        """True if the original closed the connection: it resets where others end the stream."""
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


OF_BROKER, OF_DIRECTOR, OF_FARM = "b", "d", "c"
"""The prefixes of the names of recordings."""


def names(kind: str = OF_BROKER) -> list[str]:
    """The names of all recordings of a kind."""
    return sorted(path.stem for path in (HERE / "elko").glob(f"{kind}*.jsonl"))


def load(name: str) -> Recording:
    """One recording."""
    head, *lines = (HERE / "elko" / f"{name}.jsonl").read_text("utf-8").splitlines()
    about = json.loads(head)
    return Recording(
        about["scenario"],
        about["doc"],
        about["meta"].get("env", {}).get("DIAG") != "false",
        tuple(_event(json.loads(line)) for line in lines if about["meta"]["kind"] != "cluster")
        or tuple(_at_the_director([json.loads(line) for line in lines])),
    )


def _at_the_director(lines: Sequence[dict[str, str]]) -> Iterator[Event]:
    """The part of a farm's recording that was sent to its director.

    An end is the client's, also if the server made it: the farm's servers were restarted. If the names of connections
    restart with a server, they get a mark.
    """
    open_ones: set[str] = set()
    names: dict[str, str] = {}
    for line in lines:
        conn, kind = line["conn"], line["dir"]
        if conn.startswith("ctx->dir") or conn.endswith("@director") or conn.startswith("dadmin"):
            if kind == "open":
                names[conn] = f"{names[conn]}'" if conn in names else conn
            line = {**line, "conn": names[conn]}
            if kind in (">", "<"):
                yield _event(line)
            elif kind == "open":
                open_ones.add(conn)
                yield _event({**line, "note": "to listener open"})
            elif conn in open_ones:
                open_ones.discard(conn)
                yield _event({**line, "dir": "close", "bytes": "", "note": ""})
        elif kind == "note":
            yield _event(line)


def _event(line: dict[str, str]) -> Event:
    kinds = {"open", ">", "<", "halfclose", "close", "peer-reset", "peer-eof", "note"}
    assert line["dir"] in kinds, line
    return Event(float(line["t"]), line["conn"], line["dir"], line["bytes"].encode("latin-1"), line.get("note", ""))
