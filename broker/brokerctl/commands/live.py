"""The command ``top``: the farm as it is now, sortable."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from typing import Any

import attrs
import click
from twisted.internet.defer import CancelledError, Deferred

from broker.brokerctl.commands.lists import LARGEST_PAGE, LISTINGS
from broker.brokerctl.failures import Exit, Failure
from broker.brokerctl.http.answers import mapping, rows
from broker.brokerctl.http.client import Client
from broker.brokerctl.options import remote, session_of, usage
from broker.brokerctl.top.model import TABLES, Top
from broker.brokerctl.top.screen import Seen, capacity, columns_of, screen
from broker.brokerctl.top.terminal import terminal


@click.command()
@click.argument("table", type=click.Choice(TABLES), default=TABLES[0])
@click.option("-i", "--interval", type=click.FloatRange(0.1, 3_600), default=2.0, show_default=True, help="Seconds.")
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
        """Return the changes of the registry in a second since the answer before."""
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
