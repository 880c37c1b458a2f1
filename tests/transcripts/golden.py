"""A recording's conversation as our broker holds it, for people to read.

``>`` is what a client sends (newlines as ␊), ``<`` what our broker says (the empty line after each message left out),
``*`` what happens to a connection, ``#`` the recording's own remarks. The times are in seconds.
"""

from __future__ import annotations

from collections.abc import Sequence

from tests.transcripts.recordings import Event, Recording
from tests.transcripts.replay import ABORTED, CLOSED, Said
from tests.transcripts.shown import shown

_ENDS = {CLOSED: "* closed by the broker", ABORTED: "* reset by the broker"}


def conversation(recording: Recording, ours: Sequence[Said]) -> str:
    """The whole conversation."""
    width = max(len(event.conn) for event in recording.events)
    lines = [f"# {recording.name}: {recording.doc}", "# Remarks are the recording's, on what the original did."]
    answered = True
    for step, event in enumerate(recording.events):
        line = _line(event)
        if line is not None:
            if answered:
                lines.append("")
            answered = False
            if event.note and event.kind == ">":
                lines.append(f"# {event.note}")
            lines.append(line if event.kind == "note" else _row(event.at, event.conn, width, line))
        for said in ours:
            if said.step == step + 1:
                answered = True
                lines.append(_row(said.at, said.conn, width, _ENDS.get(said.text) or f"< {shown(said.text)}"))
    return "\n".join(lines) + "\n"


def _row(at: float, conn: str, width: int, what: str) -> str:
    return f"{at:.3f} {conn:<{width}} {what}"


def _line(event: Event) -> str | None:
    """The action of the client; None for one of the original."""
    if event.kind == ">":
        return f"> {shown(event.data.decode('utf-8'))}"
    if event.kind == "open":
        return f"* connected {event.note}"
    if event.kind == "close":
        return "* closed by the client"
    if event.kind == "note" and not event.note.startswith("server process"):
        return f"# {event.note}"
    return None
