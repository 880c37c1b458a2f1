"""The commands that follow the broker: ``top``, ``watch``, ``events`` and ``logs``."""

from __future__ import annotations

import codecs
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import attrs
import click
import msgspec
from rich.text import Text
from twisted.internet.defer import CancelledError, Deferred

from broker.backoff import Pauses
from broker.brokerctl.answers import Exit, Failure, mapping, rows, usage
from broker.brokerctl.command_session import Number, remote, session_of, sleep
from broker.brokerctl.http_client import Client
from broker.brokerctl.list_commands import LARGEST_PAGE, LISTINGS
from broker.brokerctl.output import Column, Format, Output, clean, text
from broker.brokerctl.plain_client import Query
from broker.brokerctl.top import TABLES, Seen, Top, capacity, columns_of, screen, terminal

# The command ``top``: the farm as it is now, sortable.


@click.command()
@click.argument("table", type=click.Choice(TABLES), default=TABLES[0])
@click.option("-i", "--interval", type=Number(0.1, 3_600), default=2.0, show_default=True, help="Seconds.")
@click.option("-s", "--sort", metavar="COLUMN", help="Sort by a column; -COLUMN for the highest first.")
@click.option("-f", "--filter", "pattern", default="", metavar="PATTERN", help="Part of a name, or a shell pattern.")
@remote
@click.pass_context
def top(context: click.Context, table: str, interval: float, sort: str | None, pattern: str) -> None:
    """Show a table of the farm live, as top does for processes.

    TABLE is services, providers, loads, sessions, queues, topics, listeners or counters. The broker sorts and filters,
    and sends only the rows on the screen. The key ? shows the keys.
    """
    session = session_of(context)
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise usage("top needs a terminal; the lists have the same rows, and --json is for scripts")
    state = Top(table, interval, (sort or "").removeprefix("-"), bool(sort) and str(sort).startswith("-"), pattern)
    console = session.output.console

    async def work(reactor: Any, connect: Callable[[], Client]) -> None:
        live = _Live(reactor, connect(), state)
        # Before the screen is taken, so that a failure is a sentence on the usual one.
        await live.ask(console.width, console.height)
        with terminal(reactor, console, live.pressed, live.draw, live.end) as show:
            live.show = lambda: show(screen(state, live.seen, console.width, console.height))
            live.size = lambda: (console.width, console.height)
            await live.run()

    session.run_many(work)


class _Live:
    """The loop: ask, draw, wait for the interval or a key."""

    def __init__(self, reactor: Any, client: Client, top: Top) -> None:
        self.seen = Seen(where=client.where)
        self.show: Callable[[], None] = lambda: None
        self.size: Callable[[], tuple[int, int]] = lambda: (80, 24)
        self._reactor, self._client, self._top = reactor, client, top
        self._pause: Deferred[None] | None = None
        self._running: Deferred[None] | None = None
        self._counted: dict[str, tuple[float, float]] = {}
        self._revision: tuple[float, int, int] | None = None
        self._wanted = False

    async def run(self) -> None:
        """Run until the key q, or the end of the terminal."""
        self._running = Deferred.fromCoroutine(self._loop())
        try:
            await self._running
        except CancelledError:
            if not self._top.quit:
                raise

    def pressed(self, key: str) -> None:
        """Take a key."""
        if self._top.press(key):
            self._wanted = True
            self.seen = attrs.evolve(self.seen, loading=True)
            if self._pause is not None:
                self._pause.callback(None)
        if self._top.quit:
            self.end()
        else:
            self.draw()

    def end(self) -> None:
        """End the loop, a pending request included."""
        self._top.quit = True
        if self._running is not None and not self._running.called:
            self._running.cancel()

    def draw(self) -> None:
        """Draw the screen."""
        self.show()

    async def ask(self, width: int, height: int) -> None:
        """Get the rows on the screen, and the state of the broker. Raises `Failure`."""
        top = self._top
        top.page = capacity(height)
        table = top.table
        status = mapping(await self._client.get("/v1/status"))
        listeners = rows(mapping(await self._client.get(LISTINGS["listeners"].path, {"limit": LARGEST_PAGE})))
        answer = mapping(await self._client.get(LISTINGS[table].path, top.query()))
        if table != top.table:
            # Another table was chosen in the meantime.
            return
        found = rows(answer)
        if table == "counters":
            found = [self._with_rate(row) for row in found]
        top.received(answer)
        top.columns = [column.name for column in columns_of(top, found, width)]
        self.seen = Seen(status, found, listeners, self._client.where, "", self._changes(answer), False)

    async def _loop(self) -> None:
        first = True
        while True:
            if (not first and not self._top.paused) or self._wanted:
                self._wanted = False
                try:
                    await self.ask(*self.size())
                except Failure as failure:
                    if failure.code is Exit.DENIED:
                        raise
                    # A column that this table lacks: the order of the broker.
                    self._top.sort = "" if failure.code is Exit.FAILED else self._top.sort
                    self.seen = attrs.evolve(self.seen, trouble=str(failure), loading=False)
            first = False
            self.draw()
            if not self._wanted:
                await self._wait()

    async def _wait(self) -> None:
        self._pause = Deferred(lambda _: call.cancel())
        call = self._reactor.callLater(self._top.interval, self._pause.callback, None)
        try:
            await self._pause
        finally:
            self._pause = None
            if call.active():
                call.cancel()

    def _with_rate(self, row: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the row of a counter with its growth in a second."""
        name, value, now = row.get("name"), row.get("value"), self._reactor.seconds()
        if not isinstance(name, str) or not isinstance(value, int | float) or row.get("now") is True:
            return row
        before = self._counted.get(name)
        if len(self._counted) < MAX_COUNTED or before is not None:
            self._counted[name] = (now, value)
        if before is None or now <= before[0]:
            return row
        return {**row, "per_second": round((value - before[1]) / (now - before[0]), 1)}

    def _changes(self, answer: Mapping[str, Any]) -> float | None:
        """Return the changes of the registry per second since the previous answer."""
        epoch, revision, now = answer.get("epoch"), answer.get("revision"), self._reactor.seconds()
        if not isinstance(epoch, int) or not isinstance(revision, int):
            return None
        before, self._revision = self._revision, (now, epoch, revision)
        if before is None or before[1] != epoch or now <= before[0]:
            return None
        rate: float = (revision - before[2]) / (now - before[0])
        return max(0.0, rate)


MAX_COUNTED = 10_000
"""Counters whose growth is computed: a broker has some hundred."""


# Server-sent events (the HTML standard, section 9.2): bytes to events, with bounds.

MAX_EVENT = 4 * 1024 * 1024
"""Characters of one event: a flush of the broker has some hundred changes, of 200 bytes each."""

_LINE_END = re.compile("\r\n|\n|\r")


@attrs.frozen
class Event:
    """One event: its type, and its data."""

    kind: str
    data: str


class Parser:
    """The parser of one stream. ``id`` is that of the last complete event, those without data included."""

    def __init__(self) -> None:
        self.id = ""
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        # The unfinished line: in pieces, so that a long one is not joined for each of them.
        self._pending: list[str] = []
        self._length = 0
        self._after_return = False
        self._data: list[str] = []
        self._size = 0
        self._kind = ""
        self._next_id = ""

    def feed(self, data: bytes) -> Iterator[Event]:
        """Yield the events that are complete with this piece. Raises `Failure` beyond the bound of an event."""
        text = self._decoder.decode(data)
        if self._after_return and text:
            text = text.removeprefix("\n")
            self._after_return = False
        self._after_return = self._after_return or text.endswith("\r")
        first, *others = _LINE_END.split(text)
        self._pending.append(first)
        self._length += len(first)
        if others:
            lines = ["".join(self._pending), *others]
            self._pending, self._length = [lines[-1]], len(lines[-1])
            for line in lines[:-1]:
                event = self._line(line)
                if event is not None:
                    yield event
        if self._length + self._size > MAX_EVENT:
            raise Failure(f"the server sends an event of more than {MAX_EVENT} characters", Exit.UNINTELLIGIBLE)

    def _line(self, line: str) -> Event | None:
        if not line:
            return self._dispatch()
        name, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if name == "data":
            self._data.append(value)
            self._size += len(value) + 1
        elif name == "event":
            self._kind = value
        elif name == "id" and "\0" not in value:
            self._next_id = value
        return None

    def _dispatch(self) -> Event | None:
        data, kind = "\n".join(self._data), self._kind
        self.id, found = self._next_id, bool(self._data)
        self._data, self._size, self._kind = [], 0, ""
        return Event(kind or "message", data) if found else None


# Following the changes of the registry: a stream that is resumed after each interruption.

FIRST_PAUSE = 0.5
LONGEST_PAUSE = 30.0
"""Seconds between attempts to connect."""

Notify = Callable[[str], None]


class Finished(Exception):
    """Raised by a receiver that needs no more changes."""


async def follow(
    client: Client,
    path: str,
    query: Query,
    receive: Callable[[str, Mapping[str, Any]], None],
    notify: Notify,
    since: str = "",
) -> None:
    """Call ``receive`` with the kind and the JSON of each event of a stream, until it raises `Finished`.

    A stream that ends is resumed after its last id, or after ``since`` if none has come yet. ``notify`` gets a sentence
    at each interruption. The first attempt must succeed; `Failure` is raised if it does not, and later for all answers
    that a further attempt would get again.
    """
    last, pauses, reached = since, Pauses(FIRST_PAUSE, LONGEST_PAUSE), False
    while True:
        parser = Parser()

        def received(data: bytes, parser: Parser = parser) -> None:
            nonlocal last, reached
            reached = True
            pauses.reset()
            for event in parser.feed(data):
                receive(event.kind, _decoded(event))
            last = parser.id or last

        try:
            await client.stream(path, query, last, received)
            reason = "the stream has ended"
            reached = True
        except Finished:
            return
        except Failure as failure:
            if failure.code is not Exit.UNREACHABLE or not reached:
                raise
            reason = str(failure)
        wait = pauses.next()
        notify(f"{reason}; the next attempt is in {wait:.1f} s")
        await sleep(client.reactor, wait)


def _decoded(event: Event) -> Mapping[str, Any]:
    try:
        value = msgspec.json.decode(event.data)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        value = None
    if not isinstance(value, dict):
        raise Failure("the server sends events that are no JSON objects", Exit.UNINTELLIGIBLE)
    return value


def changes(value: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
    """Return the changes of one event: those in ``events``, else the event itself."""
    found = value.get("events")
    if found is None:
        return [value] if "kind" in value else []
    if not isinstance(found, list) or not all(isinstance(each, dict) for each in found):
        raise Failure("the server sends events in a form that brokerctl does not know", Exit.UNINTELLIGIBLE)
    return found


# The command ``logs``: the log that the broker collects of its nodes.

LEVELS = ("debug", "info", "warning", "error", "critical")

_LEVEL_STYLES = {"debug": "dim", "warning": "yellow", "error": "red", "critical": "bold red"}

RECORDS = [Column("id"), Column("time"), Column("level"), Column("node"), Column("text"), Column("fields")]

POLL = 1.0
"""Seconds between requests of new records."""


@click.command()
@click.argument("node", default="*")
@click.option("-l", "--level", type=click.Choice(LEVELS), default="debug", help="Lowest level.")
@click.option("-n", "--limit", type=click.IntRange(1, 1_000), default=100, show_default=True, help="Newest records.")
@click.option("-f", "--follow", "following", is_flag=True, help="Go on with new records, until Ctrl-C.")
@remote
@click.pass_context
def logs(context: click.Context, node: str, level: str, limit: int, following: bool) -> None:
    """Show the collected log: what nodes publish on the topics log.NODE and log.NODE.LEVEL.

    NODE is a name or a shell pattern. The broker collects with ``collect = true`` in the section [log].
    """
    session = session_of(context)
    output = session.output
    query: dict[str, Any] = {"node": node, "level": level, "limit": limit}
    show = output.stream(RECORDS, partial(_show_record, output))

    async def work(reactor: Any, connect: Callable[[], Client]) -> None:
        client = connect()
        answer = mapping(await client.get("/v1/logs", query))
        _show_records(output, show, answer)
        pauses, wait = Pauses(FIRST_PAUSE, LONGEST_PAUSE), POLL
        while following:
            await sleep(reactor, wait)
            last = answer.get("last")
            newer = {**query, "after": last, "limit": 1_000} if last else query
            try:
                answer = mapping(await client.get("/v1/logs", newer))
            except Failure as failure:
                if failure.code is not Exit.UNREACHABLE:
                    raise
                wait = pauses.next()
                output.note(f"{failure}; the next attempt is in {wait:.1f} s", "yellow")
                continue
            pauses.reset()
            wait = POLL
            _show_records(output, show, answer)

    session.run_many(work)


def _show_records(output: Output, show: Callable[[Mapping[str, Any]], None], answer: Mapping[str, Any]) -> None:
    if answer.get("missed"):
        output.note(f"{answer['missed']} records are left out: the file of the broker has them", "yellow")
    for record in rows(answer, "records"):
        show(record)
    output.console.file.flush()


def _show_record(output: Output, record: Mapping[str, Any]) -> None:
    level = text(record.get("level"))
    line = Text(f"{text(record.get('time'))} ", "dim")
    line.append(f"{level:<8} ", _LEVEL_STYLES.get(level, ""))
    line.append(f"{clean(text(record.get('node')))} ", "bold").append(clean(text(record.get("text"))))
    for name, value in mapping(record.get("fields") or {}).items():
        line.append(f"  {clean(name)}=", "dim").append(clean(str(value)))
    output.console.print(line, soft_wrap=True)


# The commands ``watch`` and ``events``: changes of the registry as they happen, and the recent ones.

SINCE = re.compile(r"\d+-\d+")
EVENTS = [
    Column("revision"),
    Column("at"),
    Column("kind"),
    Column("service"),
    Column("why"),
    Column("provider"),
    Column("hostport"),
    Column("label"),
    Column("wire"),
    Column("load"),
]

_STYLES = {"joined": "green", "offered": "green", "left": "red", "withdrawn": "red"}
"""Styles of kinds of changes."""


def _since(context: click.Context, parameter: click.Parameter, value: str | None) -> str | None:
    if value is not None and not SINCE.fullmatch(value):
        raise click.BadParameter("has the form EPOCH-REVISION, as events show it")
    return value


since_option = click.option("--since", metavar="EPOCH-REVISION", callback=_since, help="Begin after that revision.")

KINDS = ("joined", "left", "relabelled", "offered", "withdrawn", "amended", "load", "checked", "hidden", "shown")


def selecting_changes(command: Any) -> Any:
    """Add the selection of changes."""
    for option in (
        click.option("-k", "--kind", "kinds", multiple=True, type=click.Choice(KINDS), help="Only these; repeatable."),
        since_option,
        click.argument("pattern", required=False),
    ):
        command = option(command)
    return command


def _query(pattern: str | None, kinds: tuple[str, ...]) -> dict[str, Any]:
    query: dict[str, Any] = {"kinds": list(kinds)} if kinds else {}
    return query if pattern is None else {**query, "pattern": pattern}


@click.command()
@selecting_changes
@click.option("-n", "--limit", type=click.IntRange(1, 1_000), default=100, show_default=True, help="Changes.")
@remote
@click.pass_context
def events(context: click.Context, pattern: str | None, since: str | None, kinds: tuple[str, ...], limit: int) -> None:
    """List the recent changes of the registry, the oldest first.

    PATTERN is a shell pattern for the names of services.
    """
    session = session_of(context)
    query = {**_query(pattern, kinds), "limit": limit, **({"since": since} if since else {})}
    answer = mapping(session.run(lambda client: client.get("/v1/events", query)))
    found = rows(answer, "events")
    output = session.output
    output.rows(found, EVENTS, answer)
    if output.for_people:
        if answer.get("resync") is True:
            output.note("the broker has forgotten the changes after that revision", "yellow")
        elif not found:
            output.note("no changes")


@click.command()
@selecting_changes
@click.option("-n", "--count", type=click.IntRange(1), help="End after that many changes.")
@remote
@click.pass_context
def watch(
    context: click.Context, pattern: str | None, since: str | None, kinds: tuple[str, ...], count: int | None
) -> None:
    """Show the changes of the registry as they happen, until Ctrl-C.

    After an interruption the stream is resumed without a gap. If the broker has no longer all changes since
    then, or has restarted, there is a line about it. With --json, each change is one line of JSON; with -o csv,
    one of CSV below a header.
    """
    session = session_of(context)
    output = session.output
    show = output.stream(EVENTS, partial(_show_change, output))
    left = count

    def receive(kind: str, value: Mapping[str, Any]) -> None:
        nonlocal left
        if kind == "resync" or value.get("resync") is True:
            if output.format is Format.JSON:
                output.json({"kind": "resync", **value}, 0)
            else:
                output.note("resync: changes may be missing here; services lists the present state", "yellow")
        for change in changes(value):
            show(change)
            if left is not None:
                left -= 1
                if left == 0:
                    raise Finished

    def notify(sentence: str) -> None:
        output.note(sentence, "yellow")

    session.run_many(
        lambda _, connect: follow(connect(), "/v1/watch", _query(pattern, kinds), receive, notify, since or "")
    )


def _show_change(output: Output, change: Mapping[str, Any]) -> None:
    kind = text(change.get("kind"))
    line = Text()
    if "at" in change:
        line.append(f"{text(change['at'])} ", "dim")
    line.append(f"{text(change.get('revision'), 'id'):>8} ", "dim")
    line.append(f"{kind:<10} ", _STYLES.get(kind, "cyan"))
    line.append(text(change.get("service", change.get("label"))), "bold")
    for name, value in change.items():
        if name not in ("revision", "at", "kind", "service", "epoch") and value not in (None, ""):
            line.append(f"  {clean(name)}=", "dim").append(text(value, "", name))
    output.console.print(line, soft_wrap=True)
    output.console.file.flush()
