"""The command ``bench``: a short load test, and its figures with their limits."""

from __future__ import annotations

import math
import time
from array import array
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any
from urllib.parse import urlsplit

import attrs
import click
from rich.progress import BarColumn, Progress, TextColumn
from twisted.internet import defer, error
from twisted.internet.defer import Deferred, gatherResults
from twisted.internet.endpoints import HostnameEndpoint, connectProtocol
from twisted.internet.protocol import Protocol, connectionDone
from twisted.python.failure import Failure as TwistedFailure

from broker.access.identity import joined
from broker.brokerctl.answers import Exit, Failure
from broker.brokerctl.command_session import Number, Session, remote, session_of, sleep
from broker.brokerctl.http_client import Client
from broker.brokerctl.output import Output
from broker.brokerctl.plain_client import segment

# The load of pings over the Elko Broker protocol: one that waits for its answer on each connection.

AUTH = b'{"to":"client","op":"auth","label":"brokerctl"}\n\n'
PING = b'{"to":"client","op":"ping"}\n\n'
END = b"\n\n"

MAX_ANSWER = 64 * 1024
"""Bytes of an answer to a ping: it has forty."""


class Pinger(Protocol):
    """A connection that pings."""

    def __init__(self) -> None:
        self._buffer = b""
        self._answer: Deferred[None] | None = None
        self._over = ""

    def ping(self) -> Deferred[None]:
        """Send a ping. Returns a Deferred that fires with the answer, or fails with `Failure`."""
        answer: Deferred[None] = Deferred()
        if self._over or self.transport is None:
            answer.errback(Failure(self._over, Exit.UNREACHABLE))
            return answer
        self._answer = answer
        self.transport.write(PING)
        return answer

    def connectionMade(self) -> None:
        """Authenticate: the first message at an open listener, too."""
        assert self.transport is not None
        self.transport.write(AUTH)

    def dataReceived(self, data: bytes) -> None:
        """Take output of the broker."""
        self._buffer += data
        while END in self._buffer:
            message, _, self._buffer = self._buffer.partition(END)
            answer, self._answer = self._answer, None
            if answer is not None and b'"pong"' in message:
                answer.callback(None)
            elif answer is not None:
                answer.errback(Failure("no answer to a ping: the server requires a password, or is no Elko Broker"))
        if len(self._buffer) > MAX_ANSWER:
            self._end("the server sends too much")

    def connectionLost(self, reason: TwistedFailure = connectionDone) -> None:
        """Fail the pending ping."""
        self._end("the server closes the connection")

    def close(self) -> None:
        """Close the connection."""
        self._over = "closed"
        if self.transport is not None:
            self.transport.loseConnection()

    def _end(self, why: str) -> None:
        self._over = self._over or why
        answer, self._answer = self._answer, None
        if self.transport is not None:
            self.transport.loseConnection()
        if answer is not None:
            answer.errback(Failure(why, Exit.UNREACHABLE))


async def connected(reactor: Any, host: str, port: int, timeout: float) -> Pinger:
    """Return a connection to an Elko listener. Raises `Failure`."""
    endpoint = HostnameEndpoint(reactor, host, port, timeout=timeout)
    try:
        found: Pinger = await connectProtocol(endpoint, Pinger())
    except (error.ConnectError, error.DNSLookupError) as problem:
        reason = problem.args[-1] if problem.args else problem
        raise Failure(f"{joined(host, port)} cannot be reached: {reason}", Exit.UNREACHABLE) from None
    return found


# Latencies of a load test, and their meaning. Pure.

MAX_SAMPLES = 2_000_000
"""Latencies that are kept, of 8 bytes each: more requests than a minute has."""

MAX_REASONS = 20
"""Different errors that are kept."""


class Samples:
    """The latencies of the answered requests in seconds, and the errors by their text."""

    def __init__(self) -> None:
        self.latencies = array("d")
        self.errors: Counter[str] = Counter()

    @property
    def full(self) -> bool:
        """True if no more samples are kept; the test ends then."""
        return len(self.latencies) >= MAX_SAMPLES

    def answered(self, seconds: float) -> None:
        """Add a request that was answered as it should be."""
        self.latencies.append(seconds)

    def failed(self, reason: str) -> None:
        """Add a request without a good answer."""
        known = reason in self.errors or len(self.errors) < MAX_REASONS
        self.errors[reason if known else "others"] += 1


@attrs.frozen
class Summary:
    """The result. Latencies are in milliseconds; the CPU times are fractions of one core."""

    load: str
    seconds: float
    connections: int
    answered: int
    errors: dict[str, int]
    per_second: float
    p50_ms: float | None
    p90_ms: float | None
    p99_ms: float | None
    max_ms: float | None
    client_cpu: float
    broker_cpu: float | None

    @property
    def limited_by_client(self) -> bool:
        """True if this command had no more time for more requests, so that the broker may be able to do more."""
        return self.client_cpu >= 0.9


def summary(
    load: str, samples: Samples, seconds: float, connections: int, client: float, broker: float | None
) -> Summary:
    """Return the result of a test. ``client`` and ``broker`` are seconds of CPU time."""
    ordered = sorted(samples.latencies)

    def percentile(part: float) -> float | None:
        """Return the nearest rank: that part of the answers took at most as long."""
        return round(1000 * ordered[max(0, math.ceil(part * len(ordered)) - 1)], 3) if ordered else None

    return Summary(
        load,
        round(seconds, 3),
        connections,
        len(ordered),
        dict(samples.errors),
        round(len(ordered) / seconds, 1) if seconds else 0.0,
        percentile(0.5),
        percentile(0.9),
        percentile(0.99),
        percentile(1.0),
        round(client / seconds, 3) if seconds else 0.0,
        None if broker is None or not seconds else round(broker / seconds, 3),
    )


def cpu_seconds(metrics: str) -> float | None:
    """Return the CPU time of a process from its metrics in the text format of Prometheus, None without that."""
    for line in metrics.splitlines():
        name, _, value = line.partition(" ")
        if name == "process_cpu_seconds_total":
            try:
                return float(value.split()[0])
            except (ValueError, IndexError):
                return None
    return None


# The command.

ELKO_PORT = 9_000
"""Port of an Elko listener by default."""

LONGEST = 60.0
"""Seconds of a test at most: it is to be short."""

MOST = 64
"""Connections at most: more wait in this command rather than in the broker."""

STEP = 0.2
"""Seconds between two states of the progress bar."""

Request = Callable[[], Awaitable[object]]


@click.command()
@click.argument("load", type=click.Choice(["find", "ping"]), default="find")
@click.argument("target", required=False)
@click.option("--seconds", type=Number(0.1, LONGEST), default=5.0, show_default=True, help="Duration.")
@click.option("--connections", type=click.IntRange(1, MOST), default=4, show_default=True, help="Connections.")
@click.option("--rate", type=Number(0, 100_000, min_open=True), help="Requests a second. [default: no limit]")
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
        host, port = (
            (urlsplit(session.chosen()[1].url).hostname or "", ELKO_PORT) if target is None else _address(target)
        )

        async def pinger() -> Request:
            return (await connected(reactor, host, port, session.timeout)).ping

        return f"Elko pings to {joined(host, port)}", pinger
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
            f"latency: 50 % within {found.p50_ms:.2f} ms, 90 % within {found.p90_ms:.2f} ms, "
            f"99 % within {found.p99_ms:.2f} ms, the slowest {found.max_ms:.2f} ms"
        )
    broker = "unknown" if found.broker_cpu is None else f"{found.broker_cpu:.0%}"
    output.say(f"CPU, of one core: brokerctl {found.client_cpu:.0%}, broker {broker} (with its other work)")
    if found.limited_by_client:
        output.say("brokerctl had no CPU time left: the broker may be faster than this", "yellow")
    for reason, count in found.errors.items():
        output.say(f"{count:,} failed: {reason}", "bold red")
