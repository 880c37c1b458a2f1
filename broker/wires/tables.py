"""The operator's side of a wire: tables of its state, counters, and commands of the console.

Views are tables for the console, the HTTP API and the command line alike.

A view names its columns and yields its rows in a stable order, by age if its items have one. A row is a JSON object; a
column that does not apply to a row is absent from it.

Scans of views: selection, order and pages of rows, in pieces of bounded work.

A scan is an iterator over many turns of the reactor, so that a table of 100,000 rows delays no peer. Its snapshot is
that of `View.items`: rows of items that began after the scan are absent, rows of items that ended may be, and each row
shows the state at the moment when it is read. A sort reads all rows, in sorted runs that are merged lazily.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from fnmatch import translate
from heapq import merge
from itertools import chain, islice
from typing import Any, Generic, Protocol, TypeVar

import attrs
import msgspec

from broker.access.principal import Principal
from broker.access.rights import EVERY_ENTRY, RegistryReading
from broker.core.errors import Reason, Refusal
from broker.net.peer_interfaces import Peer, PeerSession

MAX_ROWS = 1_000
"""Rows of one page: more than a person reads, and a few milliseconds of the reactor's time."""

ID = "id"
"""The unit of numbers that name something, such as ids: they are written without separators."""

Item = TypeVar("Item")
Row = Mapping[str, object]


@attrs.frozen
class Column:
    """A column: its ``name`` in rows, its meaning, and the ``unit`` of numbers ("" for a plain number or a text)."""

    name: str
    help: str
    unit: str = ""


@attrs.frozen(eq=False)
class View(Generic[Item]):
    """A table.

    - ``name``: its name in commands: ``dbp services``. ``help``: a sentence.
    - ``columns``: all columns, in order.
    - ``items``: the items, one for each row. The iteration may last many turns of the reactor, in which the state
      changes: it goes over a copy of the references that were there at its start, or skips what has ended.
    - ``row``: returns the row of an item.
    - ``keys``: returns the texts of an item that a shell pattern is matched against.
    - ``order``: the column by which rows are sorted unless another one is asked for; "" for the order of the items.
    - ``sums``: columns whose sum over all rows is a metric.
    - ``tagged``: True if the rows change with the registry only: with its revision, or the number of changes without.
    - ``shown``: True if an item is shown to a user with that reading of the registry; None for tables that show nothing
      of the registry.
    - ``naming``: columns whose texts may name services; only a user who is shown all services gets them.
    - ``filter``: returns the condition on items in the text of a filter; it may raise `Refusal`. None: takes no filter.
    - ``title``: its name as a heading, with the wire as people write it: ``DBP services``. By default the name with a
      capital letter.
    """

    name: str
    help: str
    columns: Sequence[Column]
    items: Callable[[], Iterable[Item]]
    row: Callable[[Item], Row]
    keys: Callable[[Item], Iterable[str]]
    order: str = ""
    sums: Sequence[str] = ()
    tagged: bool = False
    shown: Callable[[RegistryReading, Item], bool] | None = attrs.field(default=None, kw_only=True)
    naming: Collection[str] = attrs.field(default=(), kw_only=True)
    filter: Callable[[str], Callable[[Item], bool]] | None = attrs.field(default=None, kw_only=True)
    title: str = attrs.field(
        default=attrs.Factory(lambda view: view.name[:1].upper() + view.name[1:], takes_self=True), kw_only=True
    )

    @property
    def table(self) -> str:
        """The last word of the name: ``sessions``."""
        return self.name.rpartition(" ")[2]

    @property
    def wire(self) -> str:
        """The first word of the name: ``mc0``."""
        return self.name.partition(" ")[0]


AnyView = View[Any]


def join(name: str, help: str, views: Sequence[AnyView]) -> View[tuple[AnyView, Any]]:
    """Return the rows of several views as one view, with the name of each view's wire in the column ``wire``."""
    columns = {"wire": Column("wire", "Wire of the row")}
    for column in chain.from_iterable(view.columns for view in views):
        columns.setdefault(column.name, column)
    return View(
        name,
        help,
        tuple(columns.values()),
        lambda: ((view, item) for view in views for item in view.items()),
        lambda pair: {"wire": pair[0].wire, **pair[0].row(pair[1])},
        lambda pair: pair[0].keys(pair[1]),
        shown=lambda reading, pair: pair[0].shown is None or pair[0].shown(reading, pair[1]),
    )


ITEMS = 300
"""Items of one piece that are only counted or matched: some 1 ms where each is made for the scan."""

ROWS = 100
"""Rows of one piece: some 3 µs each, at most ten times as much."""

RUN = 1_000
"""Rows that are added to a sorted run before it is sorted again: some 1 ms."""

Pair = tuple[object, Any]
"""The value of a row by which it is sorted, and its item."""


@attrs.frozen
class Selection:
    """The rows that are asked for.

    ``pattern`` is a shell pattern for `View.keys`, and ``search`` a text for `searcher`; both must match. ``sort`` is a
    column (``-column`` for descending order; "" for the view's own order). ``where`` has columns with the text that
    each must have, as `text_of` gives it; a float is compared by its value, and of a list, one element must have the
    text. ``filter`` is the text for `View.filter`, empty for none. ``offset`` rows are skipped, and at most ``limit``
    are returned.
    """

    pattern: str = "*"
    sort: str = ""
    where: Sequence[tuple[str, str]] = ()
    offset: int = 0
    limit: int = MAX_ROWS
    filter: str = ""
    search: str = ""


class Scan:
    """One scan of a view, of the rows that ``reading`` shows. Iteration yields sequences of rows, empty ones for work
    without a result.

    ``total`` is the number of rows that the selection has on all pages, valid at the end of the iteration. Raises
    `Refusal` PARAMETER for a column that the view does not have. A scan is iterated over once.
    """

    def __init__(self, view: AnyView, selection: Selection, reading: RegistryReading) -> None:
        known = [column.name for column in view.columns]
        sort = selection.sort or view.order
        self._column = sort.removeprefix("-")
        self._descending = sort.startswith("-")
        for column in (*([self._column] if sort else []), *(name for name, _ in selection.where)):
            if column not in known:
                raise Refusal(Reason.PARAMETER, f"{view.name} has no column {column[:40]!r}, but {', '.join(known)}")
        if selection.filter and view.filter is None:
            raise Refusal(Reason.PARAMETER, f"{view.name} takes no filter")
        self._chosen = view.filter(selection.filter) if selection.filter and view.filter is not None else None
        self.total = 0
        self._view = view
        self._row = view.row if reading.every or not view.naming else self._without_names
        self._selection = selection
        self._reading = reading
        self._end = selection.offset + min(selection.limit, MAX_ROWS)
        # Here, not at the first piece: the snapshot is that of the moment at which the scan begins.
        self._items: Iterator[Any] = iter(view.items())

    def __iter__(self) -> Iterator[Sequence[Row]]:
        return self._sorted() if self._column else self._unsorted()

    def _without_names(self, item: Any) -> Row:
        return {name: value for name, value in self._view.row(item).items() if name not in self._view.naming}

    def _unsorted(self) -> Iterator[Sequence[Row]]:
        """Yield the rows of the page, and count all others."""
        start = self._selection.offset
        for items in self._matching():
            first = self.total
            self.total += len(items)
            wanted = items[max(0, start - first) : max(0, self._end - first)]
            for begin in range(0, len(wanted), ROWS):
                yield [self._row(item) for item in wanted[begin : begin + ROWS]]
            yield ()

    def _sorted(self) -> Iterator[Sequence[Row]]:
        """Sort runs of rows, each cut to what the page can have of it, and yield the page of the merged runs."""
        column, row = self._column, self._row
        # Values and items of a run are in two lists: pairs would be objects that the garbage collector has to visit.
        runs: list[tuple[list[object], list[Any]]] = []
        run: list[Pair] = []
        for items in self._matching():
            for begin in range(0, len(items), ROWS):
                run += ((row(item).get(column), item) for item in items[begin : begin + ROWS])
                yield ()
            self.total += len(items)
            if len(run) >= 2 * RUN:
                self._cut(run)
                if len(run) > RUN:
                    runs.append(_unzipped(run))
                    run = []
                yield ()
        self._cut(run)
        runs.append(_unzipped(run))
        pairs: Iterable[Iterable[Pair]] = (zip(*each, strict=True) for each in runs)
        merged = merge(*pairs, key=self._key, reverse=self._descending)
        start = self._selection.offset
        for begin in range(0, min(start, self.total), ROWS):
            for _ in islice(merged, min(ROWS, start - begin)):
                pass
            yield ()
        for begin in range(start, min(self._end, self.total), ROWS):
            yield [row(item) for _, item in islice(merged, min(ROWS, self._end - begin))]
        del merged
        while runs:
            # Freeing 100,000 items at once takes several milliseconds.
            runs.pop()
            yield ()

    def _cut(self, run: list[Pair]) -> None:
        """Sort a run, and cut it to what the page can have of it. The rest of a short page goes on in the same run."""
        run.sort(key=self._key, reverse=self._descending)
        del run[self._end :]

    def _key(self, pair: Pair) -> tuple[int, Any]:
        """Return the place of a value in the order: numbers, texts, everything else by its text. None is the last."""
        value = pair[0]
        if isinstance(value, int | float):
            return (0, value)
        if isinstance(value, str):
            return (1, value)
        if value is None:
            return (-1, 0) if self._descending else (3, 0)
        return (2, text_of(value))

    def _matching(self) -> Iterator[list[Any]]:
        """Yield the items that are selected, in lists of at most `ITEMS`."""
        view = self._view
        where, row, keys = self._selection.where, self._row, view.keys
        tests = [test for test in (matcher(self._selection.pattern), searcher(self._selection.search)) if test]
        shown = None if self._reading.every else view.shown
        items = self._items
        size = ROWS if where else ITEMS
        while some := list(islice(items, size)):
            if shown is not None:
                some = [item for item in some if shown(self._reading, item)]
            for matches in tests:
                some = [item for item in some if any(map(matches, keys(item)))]
            if self._chosen is not None:
                some = list(filter(self._chosen, some))
            if where:
                some = [item for item in some if _selected(row(item), where)]
            yield some


def _unzipped(run: list[Pair]) -> tuple[list[object], list[Any]]:
    return [value for value, _ in run], [item for _, item in run]


def matcher(pattern: str) -> Callable[[str], object] | None:
    """Return the match of a shell pattern, case-sensitive; None for one that everything matches."""
    return None if pattern == "*" else re.compile(translate(pattern)).match


_ADDRESS = re.compile(r"\[[0-9a-f:.]*:[0-9a-f:.]*(%|\]|$)", re.IGNORECASE)
"""The beginning of an IPv6 address in brackets, which is no set of characters."""


def searcher(typed: str) -> Callable[[str], object] | None:
    """Return the match of what a person typed: a part of a text, in either case, or with ``*``, ``?`` or ``[`` a shell
    pattern. Return None for one that everything matches."""
    text = typed.strip()
    if "*" in text or "?" in text or ("[" in text and not _ADDRESS.match(text)):
        return matcher(text)
    part = text.lower()
    return (lambda name: part in name.lower()) if part else None


def page(view: AnyView, pattern: str = "*", offset: int = 0, limit: int = MAX_ROWS) -> list[Row]:
    """Return one page in the view's own order, at once, of all rows."""
    selection = Selection(pattern, offset=offset, limit=limit)
    return [row for rows in Scan(view, selection, EVERY_ENTRY) for row in rows]


def text_of(value: object) -> str:
    """Return the text of a value in a selection: a string as it is, anything else in JSON."""
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()


def _selected(row: Row, where: Iterable[tuple[str, str]]) -> bool:
    return all(_has(row.get(column), text) for column, text in where)


def _has(value: object, text: str) -> bool:
    if isinstance(value, list | tuple):
        return any(_has(each, text) for each in value)
    if isinstance(value, float):
        # A load is 0.0 where people write 0. Ids are integers, and compare as texts: a float would not have all digits.
        with suppress(ValueError):
            return float(text) == value
    return (value is None and text == "") or text_of(value) == text


# The documentation of counters: what each counts, in which unit.


@attrs.frozen
class Counter:
    """A counter ``NAME.REASON``, or where ``name`` has no dot, the family of all counters ``NAME.ANYTHING``.

    ``help`` names the counted things; ``unit`` is their unit in the plural. A ``gauge`` is a present number,
    other counters only grow.
    """

    name: str
    help: str
    unit: str = ""
    gauge: bool = False


class Documentation:
    """The documentation of all counters of a daemon."""

    def __init__(self, counters: Iterable[Counter]) -> None:
        self._counters: Mapping[str, Counter] = {each.name: each for each in counters}

    def __iter__(self) -> Iterator[Counter]:
        return iter(self._counters.values())

    def of(self, name: str) -> Counter | None:
        """Return the documentation of a counter: its own, or else that of its family."""
        return self._counters.get(name) or self._counters.get(name.partition(".")[0])


# Counters of connections, the same for each wire that listens.


def connection_counters(wire: str) -> tuple[Counter, ...]:
    """Return the counters of the connections of ``wire``, a wire's name."""
    return (
        Counter(f"{wire}_connections", "Connections: accepted, closed; of links also opened", "connections"),
        Counter(f"{wire}_accept", "New peers of a full listener: refused, or displaced another peer", "peers"),
        Counter(f"{wire}_refused", "Refused connections and messages", "refusals"),
    )


def datagram_counters(wire: str) -> tuple[Counter, ...]:
    """Return the counters of the datagrams of ``wire``, a wire's name."""
    return (
        Counter(
            f"{wire}_datagrams",
            "Datagrams: received; sent; dropped by the kernel for lack of room; oversized; failed (a defect of the "
            "broker); beacon; of-broker (heartbeats with this broker's own name); unsent",
            "datagrams",
        ),
        Counter(
            f"{wire}_unsent",
            "Datagrams that the system did not send, by error: ENETUNREACH (no route, as for a broadcast without a "
            "default route)",
            "datagrams",
        ),
    )


# Dialects: the commands of a wire that operators type at the console, besides views.


class Dialogue(Protocol):
    """One operator's conversation in one dialect. Answers are written to the peer of the conversation."""

    @property
    def session(self) -> PeerSession:
        """The session of the wire behind the conversation."""

    def review(self) -> None:
        """Take the rights of the operator again after a change of the users file."""

    def say(self, message: Any) -> None:
        """Carry out a message that `Dialect.messages` or `Dialect.typed` returned."""


class Dialect(Protocol):
    """The commands of one protocol."""

    @property
    def prefix(self) -> str:
        """The word before each command; empty for the commands that need none."""

    @property
    def ops(self) -> Collection[str]:
        """The commands, without the prefix."""

    def messages(self, text: str) -> Sequence[Any]:
        """Return the messages that were typed as JSON. Raises `broker.core.errors.Malformed`."""

    def typed(self, op: str, words: Sequence[str]) -> Any:
        """Return the message that was typed as words. Raises `broker.core.errors.Malformed`."""

    def list(self) -> Sequence[str]:
        """Return all commands with their parameters, a line each."""

    def help(self, op: str) -> str:
        """Return the parameters of a command, and its effect."""

    def converse(self, peer: Peer, principal: Principal) -> Dialogue:
        """Begin the conversation of an operator, who is authenticated as that user."""
