"""The command ``bench``: a short load test, and its figures with their limits."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any
from urllib.parse import urlsplit

import attrs
import click
from rich.progress import BarColumn, Progress, TextColumn
from twisted.internet import defer
from twisted.internet.defer import Deferred, gatherResults

from broker.brokerctl.bench.elko import connected
from broker.brokerctl.bench.samples import Samples, Summary, cpu_seconds, summary
from broker.brokerctl.failures import Exit, Failure
from broker.brokerctl.http.client import Client, segment
from broker.brokerctl.options import remote, session_of
from broker.brokerctl.output.output import Output
from broker.brokerctl.running import sleep
from broker.brokerctl.session import Session

LONGEST = 60.0
"""Seconds of a test at most: it is to be short."""

MOST = 64
"""Connections at most: more wait in this command rather than in the broker."""

STEP = 0.2
"""Seconds between two states of the progress bar."""

Request = Callable[[], Awaitable[object]]
Open = Callable[[Any, Callable[[], Client]], Coroutine[Any, Any, Request]]


@click.command()
@click.argument("load", type=click.Choice(["find", "ping"]), default="find")
@click.argument("target", required=False)
@click.option("--seconds", type=click.FloatRange(0.1, LONGEST), default=5.0, show_default=True, help="Duration.")
@click.option("--connections", type=click.IntRange(1, MOST), default=4, show_default=True, help="Connections.")
@click.option("--rate", type=click.FloatRange(0, 100_000, min_open=True), help="Requests a second. [default: no limit]")
@remote
@click.pass_context
def bench(
    context: click.Context, load: str, target: str | None, seconds: float, connections: int, rate: float | None
) -> int:
    """Load the broker for a few seconds, and show its rate and latencies.

    bench find NAME finds a service over HTTP (without NAME, the health check is asked). bench ping HOST:PORT pings an
    Elko listener. Each connection sends a request when the answer to the one before has come.

    The test uses the CPU of the broker, of which its real peers have less meanwhile, and of this machine. If this
    command has no CPU time left, the broker may be able to do more, and the latencies include waiting here.
    """
    session = session_of(context)
    found = session.run_many(
        lambda reactor, connect: _measured(reactor, connect, session, load, target, seconds, connections, rate)
    )
    output = session.output
    if output.for_people:
        _report(output, found)
    else:
        output.values(attrs.asdict(found))
    return Exit.OK if found.answered and not found.errors else Exit.FAILED


async def _measured(
    reactor: Any,
    connect: Callable[[], Client],
    session: Session,
    load: str,
    target: str | None,
    seconds: float,
    connections: int,
    rate: float | None,
) -> Summary:
    title, opened = _load(reactor, connect, session, load, target)
    observer = connect()
    requests = [await opened() for _ in range(connections)]
    # The first request of each connection pays for the connection: it is no sample, and shows that all is well.
    for request in requests:
        await _within(reactor, request, session.timeout)
    samples = Samples()
    before = await _broker_cpu(observer)
    own, begun = time.process_time(), reactor.seconds()
    end = begun + seconds
    pause = connections / rate if rate else 0.0

    async def work(request: Request) -> None:
        due = reactor.seconds()
        while not samples.full and (now := reactor.seconds()) < end:
            if pause:
                due = max(due + pause, now)
                if due >= end:
                    return
                await sleep(reactor, due - now)
            sent = reactor.seconds()
            try:
                await _within(reactor, request, session.timeout)
            except Failure as failure:
                samples.failed(str(failure))
                # A broker that refuses is not to be flooded.
                await sleep(reactor, STEP)
            else:
                samples.answered(reactor.seconds() - sent)

    with Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.fields[count]} answers"),
        console=session.output.errors,
        transient=True,
        auto_refresh=False,
        disable=not (session.output.for_people and session.output.errors.is_terminal),
    ) as progress:
        task = progress.add_task(title, total=seconds, count=0)
        working = gatherResults([Deferred.fromCoroutine(work(request)) for request in requests], consumeErrors=True)
        drawing = Deferred.fromCoroutine(_draw(reactor, progress, task, samples, begun))
        try:
            await working
        finally:
            working.cancel()
            drawing.addErrback(lambda failure: None)
            drawing.cancel()
    took, used = reactor.seconds() - begun, time.process_time() - own
    after = await _broker_cpu(observer)
    broker = None if before is None or after is None else after - before
    return summary(title, samples, took, connections, used, broker)


async def _draw(reactor: Any, progress: Progress, task: Any, samples: Samples, begun: float) -> None:
    while True:
        progress.update(task, completed=reactor.seconds() - begun, count=f"{len(samples.latencies):,}")
        progress.refresh()
        await sleep(reactor, STEP)


def _load(
    reactor: Any, connect: Callable[[], Client], session: Session, load: str, target: str | None
) -> tuple[str, Callable[[], Coroutine[Any, Any, Request]]]:
    """Return the title of a load, and a function that opens a connection for it. Raises a usage error."""
    if load == "ping":
        host, port = _address(target or f"{urlsplit(session.chosen()[1].url).hostname}:9000")

        async def pinger() -> Request:
            return (await connected(reactor, host, port, session.timeout)).ping

        return f"Elko pings to {host}:{port}", pinger
    path = "/healthz" if target is None else f"/v1/services/{segment(target)}"

    async def finder() -> Request:
        client = connect()
        return lambda: Deferred.fromCoroutine(client.get(path))

    return f"GET {path}", finder


def _address(target: str) -> tuple[str, int]:
    parts = urlsplit(f"//{target}")
    try:
        host, port = parts.hostname, parts.port
    except ValueError:
        host, port = None, None
    if not host or not port:
        raise click.UsageError(f"{target!r} is no HOST:PORT")
    return host, port


async def _within(reactor: Any, request: Request, seconds: float) -> None:
    answer: Any = request()
    try:
        await answer.addTimeout(seconds, reactor)
    except defer.TimeoutError:
        raise Failure(f"no answer within {seconds:g} s", Exit.UNREACHABLE) from None


async def _broker_cpu(client: Client) -> float | None:
    """Return the CPU time of the broker, None where this user may not see it."""
    try:
        answer = await client.request("GET", "/metrics")
    except Failure:
        return None
    return cpu_seconds(answer.body.decode(errors="replace")) if answer.status == 200 else None


def _report(output: Output, found: Summary) -> None:
    output.say(found.load, "bold")
    output.say(
        f"{found.answered:,} answers in {found.seconds:.1f} s on {found.connections} connections: "
        f"{found.per_second:,.0f} a second"
    )
    if found.p50_ms is not None:
        output.say(
            f"latency: half within {found.p50_ms:.2f} ms, 90 % within {found.p90_ms:.2f} ms, "
            f"99 % within {found.p99_ms:.2f} ms, the slowest {found.max_ms:.2f} ms"
        )
    broker = "unknown" if found.broker_cpu is None else f"{found.broker_cpu:.0%}"
    output.say(f"CPU, of one core: brokerctl {found.client_cpu:.0%}, broker {broker} (with its other work)")
    if found.limited_by_client:
        output.say("brokerctl had no CPU time left: the broker may be faster than this", "yellow")
    for reason, count in found.errors.items():
        output.say(f"{count:,} failed: {reason}", "bold red")
