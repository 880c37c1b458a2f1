"""The output of a command: tables for people, JSON and CSV for programs.

Text from servers is made safe for terminals: a control character can move the cursor, rename the window or type into
the shell, and a bidirectional override can hide text. Both are shown as escapes instead.
"""

from __future__ import annotations

import codecs
import csv
import io
import math
import os
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from typing import Any

import msgspec
from rich.cells import cell_len
from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from broker.brokerctl.answers import Exit, Failure

# The standard streams in any state: closed, on a full disk, or with an encoding of few characters.

ERRORS = "escapes of JSON"
"""Name of the handling of characters that an encoding lacks: they are written as in JSON, ``\\u00e9``."""


def prepare_streams() -> None:
    """Make the standard streams usable. One that is closed is replaced: its descriptor must not become a socket's."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, open(os.devnull, mode))  # noqa: SIM115
        elif mode == "w" and hasattr(stream, "reconfigure"):
            stream.reconfigure(errors=ERRORS)


def readable_arguments(given: Sequence[str]) -> list[str]:
    """Return arguments as UTF-8, whatever the locale. Raises `Failure` for others."""
    try:
        return [os.fsencode(each).decode() for each in given]
    except UnicodeError:
        raise Failure("an argument is not UTF-8", Exit.USAGE) from None


def _escaped(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    return _json_escapes(error.object[error.start : error.end]), error.end


def _json_escapes(text: str) -> str:
    """Return all characters of a text as escapes of JSON."""
    units = text.encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[at]:02x}{units[at + 1]:02x}" for at in range(0, len(units), 2))


codecs.register_error(ERRORS, _escaped)

# Texts of servers without unprintable characters.

_UNPRINTABLE = re.compile(
    "[\x00-\x1f\x7f-\x9f\u00ad\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb\ud800-\udfff\U000e0000-\U000e007f]"
)
"""Controls of C0 and C1, invisible characters, overrides of the direction, line separators, lone surrogates, tags."""

_IN_JSON = re.compile(_UNPRINTABLE.pattern.replace("\x00-\x1f", ""))


def clean(text: str) -> str:
    """Return a text in one line with its unprintable characters as escapes of Python: ``\\x1b``."""
    return _UNPRINTABLE.sub(lambda m: m[0].encode("unicode_escape", "surrogatepass").decode(), text)


def clean_json(text: str) -> str:
    """Return encoded JSON with its unprintable characters as escapes of JSON; its line ends and its value stay."""
    return _IN_JSON.sub(lambda match: _json_escapes(match[0]), text)


# Values as texts for people: durations, sizes, numbers.

NOTHING = "-"
"""The text of a value that is absent."""

_STEPS = (("d", 86_400), ("h", 3_600), ("m", 60), ("s", 1))


def duration(seconds: float) -> str:
    """Return a duration with its two greatest units: ``3d 4h``; below a minute with a decimal."""
    if not math.isfinite(seconds):
        return str(seconds)
    sign, seconds = ("-", -seconds) if seconds < 0 else ("", seconds)
    if seconds < 59.95:
        return f"{sign}{seconds:.1f}s"
    rest = round(seconds)
    for position, (unit, step) in enumerate(_STEPS):
        if rest >= step:
            count, rest = divmod(rest, step)
            if position + 1 == len(_STEPS) or not rest // _STEPS[position + 1][1]:
                return f"{sign}{count}{unit}"
            below, size = _STEPS[position + 1]
            return f"{sign}{count}{unit} {rest // size}{below}"
    return f"{sign}0s"


def size(count: float) -> str:
    """Return a number of bytes: ``1.5 MiB``."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(count) < 1024:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} TiB"


def number(value: float) -> str:
    """Return a number: integers with commas between thousands, others with at most four significant digits."""
    if isinstance(value, int):
        return f"{value:,}" if abs(value) >= 10_000 else str(value)
    return f"{value:.4g}"


def text(value: object, unit: str = "", name: str = "") -> str:
    """Return any JSON value as a clean text of one line. Ids, ports and revisions are not grouped."""
    if value is None or value == "":
        return NOTHING
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int | float):
        if unit == "seconds":
            return duration(value)
        if unit == "bytes":
            return size(value)
        plain = isinstance(value, int) and (unit == "id" or name in ("provider", "revision", "epoch", "port", "id"))
        return str(value) if plain else number(value)
    if isinstance(value, str):
        return clean(value)
    if isinstance(value, Mapping):
        return " ".join(f"{clean(str(key))}={text(each)}" for key, each in value.items()) or NOTHING
    if isinstance(value, Sequence):
        return ", ".join(text(each) for each in value) or NOTHING
    return clean(str(value))


BARS = "▁▂▃▄▅▆▇█"


def sparkline(values: Sequence[object]) -> str:
    """Return a line of bars, from 0 to the highest value; a gap for a value that is no number."""
    numbers = [float(v) if isinstance(v, int | float) and math.isfinite(v) else None for v in values]
    top = max((n for n in numbers if n is not None), default=0.0)
    return "".join(
        " " if n is None else BARS[0] if top <= 0 else BARS[max(0, min(len(BARS) - 1, int(n / top * len(BARS))))]
        for n in numbers
    )


# Rows as tables that fit the terminal.

Row = Mapping[str, Any]

NARROWEST = 12
"""Width to which a column of text may shrink before a less important column is left out."""

UNBOUNDED = 100_000
"""Width of output that is no terminal, and of the format ``wide``: nothing is cut or left out."""

GAP = 2
"""Spaces between columns."""


class Column(msgspec.Struct, frozen=True):
    """A column. ``wide``: only ``-o wide`` shows it. The first columns are the most important ones."""

    name: str
    unit: str = ""
    wide: bool = False


_STYLES = {
    "passing": "green",
    "failing": "bold red",
    "doubtful": "yellow",
    "untested": "dim",
    "gone": "red",
    "restored": "yellow",
    "enough": "green",
    "short now": "bold red",
    "short in the horizon": "yellow",
    "short by the trend": "yellow",
    "ok": "green",
    "warning": "yellow",
    "error": "bold red",
}
"""Styles of values that are a state."""


def all_columns(rows: Sequence[Row], columns: Sequence[Column]) -> list[Column]:
    """Return the known columns that occur in rows, and after them all others that occur, in their order."""
    occurring = dict.fromkeys(name for row in rows for name in row)
    if not rows:
        return list(columns)
    known = [column for column in columns if column.name in occurring]
    names = {column.name for column in known}
    return known + [Column(name, wide=bool(known)) for name in occurring if name not in names]


def chosen(rows: Sequence[Row], columns: Sequence[Column], wide: bool, width: int) -> list[Column]:
    """Return the columns to show: all for ``wide``, else the important ones that fit."""
    found = all_columns(rows, columns)
    if wide:
        return found
    found = [column for column in found if not column.wide]
    while len(found) > 1 and _least_width(rows, found) > width:
        found.pop()
    return found


def _least_width(rows: Sequence[Row], columns: Sequence[Column]) -> int:
    return sum(min(NARROWEST, width) + GAP for width in _widths(rows, columns))


def _widths(rows: Sequence[Row], columns: Sequence[Column]) -> list[int]:
    """Return the width of each column that shows its values in full."""
    return [max(len(column.name), *(cell_len(_text(row, column)) for row in rows)) for column in columns]


def fitted(widths: Sequence[int], room: int) -> list[int]:
    """Return the widths of columns in ``room``: the widest are cut to a common width, the others stay as they are.

    No column becomes narrower than `NARROWEST` by it, even where there is no room.
    """
    left, at_most = room, max(widths, default=0)
    for count, width in zip(range(len(widths), 0, -1), sorted(widths), strict=True):
        if width * count > left:
            at_most = max(left // count, NARROWEST)
            break
        left -= width
    return [min(width, at_most) for width in widths]


def table(rows: Sequence[Row], columns: Sequence[Column], wide: bool = False, width: int = UNBOUNDED) -> Table:
    """Return a table. Unless ``wide``, long texts are shortened to the ``width`` of the terminal."""
    made = Table(box=None, pad_edge=False, padding=(0, GAP, 0, 0), header_style="bold")
    # Rich would take as much from each column, so that a narrow one beside a long text had no width left.
    room = width - GAP * (len(columns) - 1)
    for column, most in zip(columns, fitted(_widths(rows, columns), room), strict=True):
        numeric = all(is_number(row.get(column.name)) for row in rows)
        made.add_column(
            heading(column.name),
            justify="right" if numeric else "left",
            no_wrap=True,
            overflow="ignore" if wide else "ellipsis",
            max_width=None if wide else most,
        )
    for row in rows:
        made.add_row(*(Text(shown, style_of(shown)) for shown in (_text(row, column) for column in columns)))
    return made


def pairs(value: Mapping[str, Any], columns: Sequence[Column] = ()) -> Table:
    """Return one object as a table of names and values. An object or a list of objects in it is indented."""
    made = Table(box=None, pad_edge=False, padding=(0, GAP, 0, 0), show_header=False)
    made.add_column(style="bold", no_wrap=True)
    made.add_column(overflow="fold")
    by_name = {column.name: column for column in columns}
    _add_pairs(made, value, by_name, "")
    return made


def _add_pairs(made: Table, value: Mapping[str, Any], columns: Mapping[str, Column], indent: str) -> None:
    for name, each in value.items():
        shown = indent + clean(str(name)).replace("_", " ")
        if isinstance(each, dict) and each:
            made.add_row(shown, "")
            _add_pairs(made, each, columns, indent + "  ")
        elif isinstance(each, list) and each and all(isinstance(item, dict) for item in each):
            made.add_row(shown, Text(text(each[0])))
            for item in each[1:]:
                made.add_row("", Text(text(item)))
        else:
            column = columns.get(name, Column(name))
            cell = text(each, column.unit, column.name)
            made.add_row(shown, Text(cell, style_of(cell)))


def heading(name: str) -> Text:
    """Return the heading of a column."""
    return Text(clean(name).replace("_", " ").upper())


def style_of(text: str) -> str:
    """Return the style of a value that is a state, else none."""
    return _STYLES.get(text, "dim" if text == NOTHING else "")


def _text(row: Row, column: Column) -> str:
    return text(row.get(column.name), column.unit, column.name)


def is_number(value: object) -> bool:
    """Return True for a number or an absent value, which a column of numbers may have."""
    return value is None or (isinstance(value, int | float) and not isinstance(value, bool))


# The output of a command: its format, and the terminal that it goes to.


class Format(StrEnum):
    """The formats of output."""

    TABLE = "table"
    WIDE = "wide"
    JSON = "json"
    CSV = "csv"


class Color(StrEnum):
    """Conditions under which output has colours."""

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


class Output(msgspec.Struct, frozen=True, eq=False):
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
            text = text.encode("ascii", ERRORS).decode()  # JSON has no other encoding
        self.console.file.write(text + "\n")
        self.console.file.flush()

    def rows(self, rows: Sequence[Row], columns: Sequence[Column] = (), answer: object = None) -> None:
        """Print rows in the format. ``answer`` is shown as JSON in place of the rows."""
        if self.format is Format.JSON:
            self.json(rows if answer is None else answer)
            return
        wide = self.format is Format.WIDE
        if self.format is Format.CSV:
            self._csv(rows, all_columns(rows, columns))
        elif rows:
            width = UNBOUNDED if wide or not self.console.is_terminal else self.console.width
            made = table(rows, chosen(rows, columns, wide, width), wide, width)
            if wide:
                with self.console.capture() as captured:
                    self.console.print(made, width=UNBOUNDED, soft_wrap=True, crop=False)
                self.console.file.write("".join(line.rstrip() + "\n" for line in captured.get().splitlines()))
                self.console.file.flush()
            else:
                self.print(made)

    def stream(self, columns: Sequence[Column], show: Callable[[Row], None]) -> Callable[[Row], None]:
        """Return the function that prints rows as they come: as lines of JSON, as CSV below one header, or by ``show``,
        for people."""
        if self.format is Format.JSON:
            return lambda row: self.json(row, 0)
        if self.format is Format.CSV:
            self._csv((), columns)
            return lambda row: self._csv([row], columns, header=False)
        return show

    def values(self, value: Mapping[str, Any], columns: Sequence[Column] = ()) -> None:
        """Print one object: a line for each of its values."""
        if self.format is Format.JSON:
            self.json(value)
        elif self.format is Format.CSV:
            self._csv([value], all_columns([value], columns))
        else:
            self.print(pairs(value, columns))

    def _csv(self, rows: Sequence[Row], columns: Sequence[Column], header: bool = True) -> None:
        buffer = io.StringIO()
        writer = csv.writer(buffer, lineterminator="\n")
        # Without rows, a table whose columns are those of its rows has none.
        if header and columns:
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
        cleaned = clean(value)
        return f"'{cleaned}" if cleaned[:1] in ("=", "+", "-", "@") else cleaned
    if isinstance(value, int | float):
        return str(value)
    if isinstance(value, list) and all(isinstance(each, str | int | float) for each in value):
        return "; ".join(text(each) if isinstance(each, str) else str(each) for each in value)
    return clean_json(msgspec.json.encode(value).decode())
