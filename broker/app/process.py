"""The process: file descriptors, lag of the reactor, counters, state for operators, addresses in use.

Lag of the reactor: the lateness of a timer, measured all the time.

A loop that is busy for a second calls its timers a second late; every peer waits as long. The clock is monotonic, since
the wall clock may be set.

Check of the addresses of a configuration: the listeners that could not be opened now.

Every address is bound by a plain socket and released. An address that is free now may be taken at the start; sockets
passed by systemd are unknown here.
"""

from __future__ import annotations

import errno
import os
import resource
import socket
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack
from datetime import UTC, datetime
from functools import cache, partial
from importlib import metadata
from pathlib import Path

from twisted.internet.interfaces import IDelayedCall, IReactorTime

from broker.app.configuration import SCHEMA
from broker.app.core_parts import Core, JournalWriter
from broker.app.health_checks import connections_of
from broker.app.wires import WIRES, descriptors, streams
from broker.blocking import blocking
from broker.config.endpoint import Endpoint
from broker.config.load import Config, bindings
from broker.core.place_table import CLOSING, Pool
from broker.core.plan import PlanFile
from broker.net.listeners import check_path_free
from broker.operate.daemon_endpoints import Machine
from broker.wires.tables import Counter, Documentation, connection_counters

# File descriptors of the process: its limit, and the connections for which they suffice.

WANTED = 65_536
"""File descriptors requested, within the limit of the system: one for each connection, and some more."""

SPARE = 150
"""Descriptors besides those of connections: store, listeners, pipes of launched programs, outgoing connections."""


def raise_limit() -> int:
    """Raise the limit on file descriptors as far as allowed and needed. Returns the limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = WANTED if hard == resource.RLIM_INFINITY else min(WANTED, hard)
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return WANTED if soft == resource.RLIM_INFINITY else soft
    resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    return wanted


FOR_CLOSING = 4
"""Divisor: at most a quarter of the descriptors for connections are kept for those that are closing."""


def pool(config: Config, limit: int) -> Pool:
    """Return the descriptors for the connections of all listeners together, out of the ``limit`` of the process."""
    listeners = streams(config) + config.console.enabled
    left = max(1, limit - SPARE - descriptors(config, limit) - connections_of(config.checks))
    closing = min(CLOSING, left // FOR_CLOSING // max(listeners, 1))
    return Pool(left - closing * listeners, closing)


@blocking
def machine(state: str) -> Machine:
    """Return the resources of the machine for this process, whose state directory is ``state``."""

    def read(found: Callable[[], int]) -> int | None:
        try:
            return found()
        except (OSError, ValueError):
            return None

    def free() -> int:
        disk = os.statvfs(state)
        return disk.f_bavail * disk.f_frsize

    return Machine(
        resource.getrlimit(resource.RLIMIT_NOFILE)[0],
        read(lambda: len(os.listdir("/proc/self/fd"))),
        read(lambda: int(Path("/proc/sys/net/core/somaxconn").read_text())),
        state,
        read(free),
    )


INTERVAL = 0.1
"""Seconds between two measurements: ten a second cost less than a thousandth of a core, and find each stall that is
longer than twice that time."""

WINDOW = 10.0
"""Seconds for which a lag counts as recent."""


class LoopLag:
    """Measurement of the lag on ``clock``. ``monotonic`` returns seconds, and is never set back.

    ``measured`` is a list of functions that are called with each lag in seconds, 0.0 or more.
    """

    def __init__(self, clock: IReactorTime, monotonic: Callable[[], float]) -> None:
        self._clock = clock
        self._monotonic = monotonic
        self._due = 0.0
        self._call: IDelayedCall | None = None
        self._recent: deque[tuple[float, float]] = deque()
        """Times and lags of the window, with falling lags: the first one is the largest."""
        self.measured: list[Callable[[float], object]] = []

    def start(self) -> None:
        """Measure until `stop`."""
        self._next()

    def stop(self) -> None:
        """End the measurement. No-op if it does not run."""
        if self._call is not None:
            self._call.cancel()
            self._call = None

    @property
    def recent(self) -> float:
        """The largest lag of the last `WINDOW` seconds, in seconds."""
        self._forget(self._monotonic())
        return self._recent[0][1] if self._recent else 0.0

    def _next(self) -> None:
        self._due = self._monotonic() + INTERVAL
        self._call = self._clock.callLater(INTERVAL, self._measure)

    def _measure(self) -> None:
        now = self._monotonic()
        lag = max(0.0, now - self._due)
        # A smaller lag that is older than this one can never be the largest again.
        while self._recent and self._recent[-1][1] <= lag:
            self._recent.pop()
        self._recent.append((now, lag))
        self._forget(now)
        self._next()
        for measured in self.measured:
            measured(lag)

    def _forget(self, now: float) -> None:
        while self._recent and now - self._recent[0][0] > WINDOW:
            self._recent.popleft()


# The documentation of all counters of the daemon: those of the wires, and those of its own parts.

DAEMON = (
    *connection_counters("console"),
    Counter("log_dropped", "Lines of the log that its destination did not take", "lines"),
    Counter(
        "notifications",
        "Notifications: events; sent; failed (attempts); dropped_attempts, dropped_full, dropped_rate",
        "notifications",
    ),
    Counter("notifications.waiting", "Notifications that wait", "notifications", gauge=True),
    Counter("console_dropped", "Answers to operators who do not read", "messages"),
    Counter("console_debug", "Debug lines of peers beyond the rate that is logged", "lines"),
    Counter(
        "checks",
        "Targets of health checks: targets (all), passing, doubtful, failing, untested",
        "targets",
        gauge=True,
    ),
    Counter("checks.running", "Health checks that await an answer", "checks", gauge=True),
    Counter("checks.waiting", "Health checks that wait for a free connection", "checks", gauge=True),
    Counter(
        "check_results",
        "Health checks: passed; failed (a wrong answer or a refusal); timed_out; unproven; impossible (could not be "
        "made, or not permitted); delayed (repeated soon); beyond_limit (services that are not checked since there are"
        " too many)",
        "checks",
    ),
    Counter(
        "silent_peers",
        "Peers that became doubtful; their outcome: heard (a message), proved (an accepted connection), refused, ended",
        "peers",
    ),
    Counter("silence.doubtful", "Peers that are doubtful, since they have missed signs of life", "peers", gauge=True),
    Counter(
        "checks_refused",
        "Connections of checks and probes, by address: network (outside checks.networks), special (link-local,"
        " multicast, broadcast or reserved), loopback (of a provider elsewhere), own-listener, no-address",
        "connections",
    ),
    Counter("access_logins", "Authenticated users: password, token, certificate, curve", "logins"),
    Counter("access_refused", "Refused passwords and tokens", "attempts"),
    Counter("audit", "Lines of the audit log: written; lost since the disk failed for long", "lines"),
    Counter("audit.errors", "Writes of the audit log that failed", "errors"),
    Counter("audit.waiting", "Lines of the audit log that wait", "lines", gauge=True),
    Counter(
        "collected",
        "Lines of the collected log: written; lost as those of the audit log; beyond 2,000 in a second, which are not "
        "collected",
        "lines",
    ),
    Counter("collected.errors", "Writes of the collected log that failed", "errors"),
    Counter("collected.waiting", "Lines of the collected log that wait", "lines", gauge=True),
    Counter("watch.watchers", "Watchers of events over HTTP", "watchers", gauge=True),
    Counter("watch.sent", "Messages sent to watchers of events", "messages"),
    Counter("watch.resyncs", "Watchers that had to read the lists again, since they had lost events", "times"),
    Counter("plan_services", "Services of the plan by verdict", "services", gauge=True),
    Counter("plan_readings", "Readings of the plan's file: read, failed", "readings"),
    Counter("state_damaged", "Damaged rows and files of the state", "findings"),
    Counter(
        "registry",
        "Entries: providers and services of all wires, the broker's own included; waits (finds that wait or monitor)",
        gauge=True,
    ),
    Counter("memory", "Shares of the memory budget: input, output, sessions, stored", "bytes", gauge=True),
    Counter(
        "memory_entries",
        "Entries of the fixed shares of memory: logins, journal; their bounds: logins_bound, journal_bound",
        gauge=True,
    ),
    Counter("memory_evicted", "Peers disconnected because the memory budget was full, by share", "peers"),
    Counter(
        "memory_full",
        "Times that the memory budget was full: refused (messages for slow peers); stored (registrations, "
        "subscriptions and messages of an address that has stored too much)",
        "messages",
    ),
    Counter(
        "journal_records",
        "Records of the metrics journal: written; dropped; coalesced (beyond a provider's rate: newer ones stand for "
        "them)",
        "records",
    ),
    Counter("journal_segments", "Segments of the metrics journal: sealed, deleted", "segments"),
    Counter("journal_errors", "Failed operations of the journal's disk: write, seal, retain", "errors"),
    Counter("journal_clock", "Times that the system clock was set back", "times"),
)
"""The counters of the console, users, the plan, the registry and the journal."""

COUNTERS = Documentation([*DAEMON, *(counter for wire in WIRES for counter in wire.counters)])
"""The documentation of every counter that the daemon has."""


# The state of the daemon in one value, for operators.


@cache
@blocking
def version() -> str:
    """Return the version of the installed package, "unknown" in a checkout that is not installed."""
    try:
        return metadata.version("elkobroker")
    except metadata.PackageNotFoundError:
        return "unknown"


def status(
    core: Core,
    journal: JournalWriter | None,
    plan: PlanFile,
    started: float,
    now: float,
    listeners: Iterable[Mapping[str, object]],
) -> dict[str, object]:
    """Return the daemon's state. ``started`` and ``now`` are seconds since the epoch, ``listeners`` their state.

    ``failures`` are writes that failed in a row: 0 is good. ``pending`` are providers still to be written to
    the store.
    """
    about: dict[str, object] = {
        "version": version(),
        "started": datetime.fromtimestamp(started, UTC).isoformat(timespec="seconds"),
        "uptime": round(max(0.0, now - started)),
        "listeners": list(listeners),
        "registry": {"revision": core.registry.revision, **core.registry.sizes()},
        "store": {"failures": core.recorder.failures, "pending": core.recorder.pending},
    }
    if core.cluster.members.clustered:
        about["member"] = core.cluster.members.name
    if journal is not None:
        counts = journal.counts()
        about["journal"] = {
            "directory": journal.where,
            "failures": journal.journal.failures,
            "written": counts["journal_records.written"],
            "dropped": counts["journal_records.dropped"],
        }
    current = plan.current()
    if plan.path is not None:
        about["plan"] = {
            "file": plan.path,
            **({} if current is None else {"age": round(plan.age() or 0.0), "services": len(current.services)}),
            **({} if plan.problem() is None else {"problem": plan.problem()}),
        }
    return about


Trial = tuple[str, str, Callable[[ExitStack], None]]
"""The name of a listener, its address, and a function that binds it until the stack is closed, or raises OSError."""


def obstacles(config: Config) -> list[str]:
    """Return a sentence for each listener of ``config`` that cannot be bound. All are bound at the same time."""
    found = []
    with ExitStack() as bound:
        for name, where, bind in _trials(config):
            try:
                bind(bound)
            except OSError as error:
                found.append(f"{name}: cannot listen on {where}: {error.strerror or error}")
    return found


def _trials(config: Config) -> Iterator[Trial]:
    for binding in bindings(config, SCHEMA):
        where = binding.where
        if binding.datagrams:
            host, port = where.interface or "0.0.0.0", where.port or 0
            yield binding.title, f"udp {where.where}", partial(_inet, socket.SOCK_DGRAM, host, port)
        else:
            yield _stream(binding.title, where)


def _stream(name: str, where: Endpoint) -> Trial:
    if where.kind == "systemd":
        return name, where.where, lambda bound: None
    if where.path is not None:
        return name, where.where, partial(_unix, where.path)
    return name, where.where, partial(_inet, socket.SOCK_STREAM, where.interface or "0.0.0.0", where.port or 0)


def _inet(kind: socket.SocketKind, host: str, port: int, bound: ExitStack) -> None:
    family, _, _, _, address = socket.getaddrinfo(host, port, type=kind)[0]
    opened = bound.enter_context(socket.socket(family, kind))
    if kind == socket.SOCK_STREAM:
        opened.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as the listeners do
    opened.bind(address)
    if kind == socket.SOCK_STREAM:
        opened.listen()


def _unix(path: str, bound: ExitStack) -> None:
    if path.startswith("\0"):
        bound.enter_context(socket.socket(socket.AF_UNIX)).bind(path)
        return
    check_path_free(path)
    folder = os.path.dirname(os.path.abspath(path))
    if not os.path.isdir(folder):
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), folder)
    if not os.access(folder, os.W_OK | os.X_OK):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), folder)
