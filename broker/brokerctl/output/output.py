"""The output of a command: its format, and the terminal that it goes to."""

from __future__ import annotations

import csv
import io
import os
import sys
from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Any

import attrs
import msgspec
from rich.console import Console, RenderableType
from rich.text import Text

from broker.brokerctl.output import streams, tables, units
from broker.brokerctl.output.clean import clean, clean_json
from broker.brokerctl.output.tables import UNBOUNDED, Column

Row = Mapping[str, Any]


class Format(StrEnum):
    """The formats of output."""

    TABLE = "table"
    WIDE = "wide"
    JSON = "json"
    CSV = "csv"


class Color(StrEnum):
    """When output has colours."""

    AUTO = "auto"
    ALWAYS = "always"
    NEVER = "never"


class _Console(Console):
    """A console that reports a closed pipe to the command, instead of ending the process itself."""

    def on_broken_pipe(self) -> None:
        """Raise BrokenPipeError."""
        raise BrokenPipeError


def console(file: Any, color: Color = Color.AUTO) -> Console:
    """Return a console for a file. NO_COLOR and files that are no terminals turn colours off."""
    terminal = bool(file.isatty())
    colored = color is Color.ALWAYS or (
        color is Color.AUTO and terminal and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
    )
    return _Console(
        file=file,
        color_system="standard" if colored else None,
        force_terminal=colored or terminal,
        no_color=not colored,
        width=None if terminal else UNBOUNDED,
        markup=False,
        emoji=False,
        highlight=False,
        soft_wrap=False,
        legacy_windows=False,
    )


@attrs.frozen(eq=False)
class Output:
    """The output of one command."""

    format: Format
    console: Console
    errors: Console

    @classmethod
    def standard(cls, format: Format = Format.TABLE, color: Color = Color.AUTO) -> Output:
        """Return the output of this process."""
        return cls(format, console(sys.stdout, color), console(sys.stderr, color))

    @property
    def for_people(self) -> bool:
        """True for the formats that are no data."""
        return self.format in (Format.TABLE, Format.WIDE)

    def print(self, what: RenderableType) -> None:
        """Print something of rich. A text must be clean."""
        with self.console.capture() as captured:
            self.console.print(what)
        self.console.file.write("".join(line.rstrip() + "\n" for line in captured.get().splitlines()))
        self.console.file.flush()

    def say(self, sentence: str, style: str = "") -> None:
        """Print a sentence, whatever its length, in one line."""
        self.console.print(Text(clean(sentence), style), soft_wrap=True)

    def note(self, sentence: str, style: str = "dim") -> None:
        """Print a remark, to standard error, so that it is no part of the data."""
        self.errors.print(Text(clean(sentence), style), soft_wrap=True)

    def json(self, value: object, indent: int = 2) -> None:
        """Print a value as JSON; in one line without ``indent``."""
        text = msgspec.json.format(msgspec.json.encode(value), indent=indent if indent else -1).decode()
        text = clean_json(text)
        if not self.console.encoding.startswith("utf"):
            text = text.encode("ascii", streams.ERRORS).decode()  # JSON has no other encoding
        self.console.file.write(text + "\n")
        self.console.file.flush()

    def rows(self, rows: Sequence[Row], columns: Sequence[Column] = (), answer: object = None) -> None:
        """Print rows in the format. ``answer`` is what JSON shows instead of the rows alone."""
        if self.format is Format.JSON:
            self.json(rows if answer is None else answer)
            return
        wide = self.format is Format.WIDE
        if self.format is Format.CSV:
            self._csv(rows, tables.all_columns(rows, columns))
        elif rows:
            width = UNBOUNDED if wide or not self.console.is_terminal else self.console.width
            table = tables.table(rows, tables.chosen(rows, columns, wide, width), wide, width)
            if wide:
                with self.console.capture() as captured:
                    self.console.print(table, width=UNBOUNDED, soft_wrap=True, crop=False)
                self.console.file.write("".join(line.rstrip() + "\n" for line in captured.get().splitlines()))
                self.console.file.flush()
            else:
                self.print(table)

    def values(self, value: Mapping[str, Any], columns: Sequence[Column] = ()) -> None:
        """Print one object: a line for each of its values."""
        if self.format is Format.JSON:
            self.json(value)
        elif self.format is Format.CSV:
            self._csv([value], tables.all_columns([value], columns))
        else:
            self.print(tables.pairs(value, columns))

    def _csv(self, rows: Sequence[Row], columns: Sequence[Column]) -> None:
        buffer = io.StringIO()
        writer = csv.writer(buffer, lineterminator="\n")
        writer.writerow([clean(column.name) for column in columns])
        for row in rows:
            writer.writerow([_field(row.get(column.name)) for column in columns])
        self.console.file.write(buffer.getvalue())
        self.console.file.flush()


def _field(value: object) -> str:
    """Return a value for CSV. A text that a spreadsheet takes for a formula begins with an apostrophe."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        text = clean(value)
        return f"'{text}" if text[:1] in ("=", "+", "-", "@") else text
    if isinstance(value, int | float):
        return str(value)
    if isinstance(value, list) and all(isinstance(each, str | int | float) for each in value):
        return "; ".join(units.text(each) if isinstance(each, str) else str(each) for each in value)
    return clean_json(msgspec.json.encode(value).decode())
