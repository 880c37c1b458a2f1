"""The sections of the daemon's own parts: the broker, the log, the journal, the console, the launchers."""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import attrs

from broker.config import endpoint
from broker.config.access import ACCESS
from broker.config.checks import MAX_LABEL, MAX_SUFFIX, listens, networks, parsed, printable, secret, unless_said
from broker.config.cluster import CLUSTER
from broker.config.files import Named as Files
from broker.config.notify import NOTIFY
from broker.config.plan import PLAN
from broker.config.problem import Problem, in_range
from broker.config.section import Binding, PortOption, Resolves, Section
from broker.config.summary import bound
from broker.config.validate_checks import checks_problems, checks_summary, checks_warnings
from broker.config.validate_journal import journal_problems
from broker.config.values import Broker, Checks, Console, Journal, Launchers, Log

VERSION = 1
"""Version of the format of configuration files. A change that older files do not fit raises it."""

MAX_GRACE = 86_400.0
"""Seconds. Services remembered from a day ago are useless."""

LEAST_MEMORY, MOST_MEMORY = 1_048_576, 2**50
"""Bytes. With less, single messages of ordinary size would not fit; more is a mistake in the unit."""

MIN_LOG_BYTES = 100_000
"""Bytes. A smaller log file would be rotated several times a second on the level debug."""

MAX_LOG_BYTES = 2**40
"""Bytes. More is a mistake in the unit."""

MAX_LOG_FILES = 1_000
"""Rotated log files. Each rotation renames all of them."""

_MODULE = re.compile(r"[A-Za-z][A-Za-z0-9_-]*(?:\.[A-Za-z0-9_-]+)*")

_DAY = 86_400
_UNITS = ((1024**4, "TiB"), (1024**3, "GiB"), (1024**2, "MiB"))


def _broker(broker: Broker) -> Iterator[Problem]:
    if broker.version > VERSION:
        yield Problem(
            "broker.version",
            f"the file has version {broker.version}, and this broker reads version {VERSION}: upgrade it",
        )
    yield from in_range("broker.version", broker.version, 1, math.inf)
    yield from printable("broker.service", broker.service, MAX_SUFFIX)
    if broker.state is not None and (not broker.state or "\0" in broker.state):
        yield Problem("broker.state", "is no path")
    yield from in_range("broker.grace", broker.grace, 0, MAX_GRACE)
    yield from networks("broker.trusted_proxies", broker.trusted_proxies)
    for key, value in (("memory", broker.memory), ("memory_per_address", broker.memory_per_address)):
        yield from in_range(f"broker.{key}", value, LEAST_MEMORY, MOST_MEMORY)


def _log(log: Log) -> Iterator[Problem]:
    if log.file_bytes:
        yield from in_range("log.file_bytes", log.file_bytes, MIN_LOG_BYTES, MAX_LOG_BYTES)
    yield from in_range("log.files", log.files, 0, MAX_LOG_FILES)
    names: set[str] = set()
    for index, entry in enumerate(log.levels):
        key = f"log.levels[{index}].name"
        if _MODULE.fullmatch(entry.name) is None:
            yield Problem(key, f"{entry.name[:80]!r} is neither a wire nor a module")
        elif entry.name in names:
            yield Problem(key, f'"{entry.name}" has a level already')
        names.add(entry.name)


def _console(console: Console) -> Iterator[Problem]:
    yield from listens("console.endpoint", console.endpoint)
    if console.password is not None:
        yield from secret("console.password", console.password)
    where = parsed(console.endpoint)
    if console.enabled and console.password is None and console.auth is None:
        yield from unless_said("console.password", where, '; or auth = "users" with access.file')


def _console_bindings(console: Console) -> Iterator[Binding]:
    where = parsed(console.endpoint)
    if console.enabled and where is not None:
        yield Binding("console.endpoint", "console", where)


def _console_summary(console: Console) -> Iterator[str]:
    if not console.enabled:
        yield "console: off"
        return
    where = endpoint.parse(console.endpoint)
    yield f"console: bound to {bound(where)}, {_console_auth(console)}"


def _console_auth(console: Console) -> str:
    if console.auth is not None:
        return console.auth
    return "no password" if console.password is None else "password"


def _console_files(console: Console, files: Files) -> Console:
    password = files.secret("console.password_file", console.password, console.password_file)
    return attrs.evolve(console, password=password)


def _console_port(console: Console, port: int | None) -> Console:
    if port is None:
        return attrs.evolve(console, enabled=False)
    return attrs.evolve(console, enabled=True, endpoint=f"tcp:{port}:interface=127.0.0.1")


def _journal_summary(journal: Journal) -> Iterator[str]:
    if not journal.enabled:
        yield "journal: off"
        return
    days = journal.keep_seconds / _DAY
    size = next(((unit, name) for unit, name in _UNITS if journal.keep_bytes >= unit), _UNITS[-1])
    parts = [
        journal.directory or "in the state directory",
        *(() if journal.name is None else (f"as {journal.name}",)),
        f"kept {days:.4g} {'day' if days == 1 else 'days'}",
        f"{journal.keep_bytes / size[0]:.4g} {size[1]}",
    ]
    yield f"journal: {', '.join(parts)}; full_load {len(journal.full_load) or 'none'}"


def _journal_warnings(journal: Journal, resolves: Resolves) -> Iterator[str]:
    if not journal.enabled:
        return
    if not journal.full_load:
        yield "journal.full_load is empty: nothing will be said about the capacity of any service"
    for_all: str | None = None
    for index, entry in enumerate(journal.full_load):
        here = f"journal.full_load[{index}]"
        if for_all is not None:
            yield f"{here}: never counts, since {for_all} is for every service"
        elif not all(pattern.strip("*") for pattern in entry.services):
            for_all = here


def _journal_files(journal: Journal, files: Files) -> Journal:
    return attrs.evolve(journal, directory=files.absolute(journal.directory))


def _launchers_summary(launchers: Launchers) -> Iterator[str]:
    names = ", ".join(entry.name for entry in launchers.table) or "none"
    yield f"launchers: {names}, start {launchers.start}"


def _launchers(launchers: Launchers) -> Iterator[Problem]:
    names: dict[str, str] = {}
    for index, entry in enumerate(launchers.table):
        here = f"launchers.table[{index}]"
        if entry.name in names:
            other = names[entry.name]
            yield Problem(f"{here}.name", f'the name "{entry.name}" is that of {other} too', other)
        names.setdefault(entry.name, here)
        yield from printable(f"{here}.name", entry.name, MAX_LABEL)
        try:
            words = shlex.split(entry.script)
        except ValueError as error:
            yield Problem(f"{here}.script", f"is no command line: {str(error).lower()}")
        else:
            if not words or not words[0] or "\0" in entry.script:
                yield Problem(f"{here}.script", "is empty" if not entry.script.strip() else "names no program")


_EXAMPLES = Path(__file__).parent

DAEMON_BEFORE = (
    Section(
        "broker",
        Broker,
        Broker(),
        _broker,
        reloadable=("version", "service", "diagnostics", "grace", "trusted_proxies", "memory", "memory_per_address"),
        example=(_EXAMPLES / "head.toml").read_text,
    ),
    Section("log", Log, Log(), _log, reloadable=("*",), named=("levels",)),
)
"""The sections before those of the wires."""

DAEMON_AFTER = (
    CLUSTER,
    ACCESS,
    PLAN,
    NOTIFY,
    Section(
        "checks",
        Checks,
        Checks(),
        checks_problems,
        summary=checks_summary,
        warnings=checks_warnings,
        reloadable=("*",),
        example=(_EXAMPLES / "checks.toml").read_text,
    ),
    Section(
        "journal",
        Journal,
        Journal(),
        journal_problems,
        summary=_journal_summary,
        warnings=_journal_warnings,
        reloadable=("segment_bytes", "segment_seconds", "keep_seconds", "keep_bytes", "full_load"),
        read=_journal_files,
        example=(_EXAMPLES / "tail.toml").read_text,
    ),
    Section(
        "console",
        Console,
        Console(),
        _console,
        _console_bindings,
        _console_summary,
        reloadable=("password", "password_file"),
        wants_users=lambda console: ["console.auth"] if console.enabled and console.auth is not None else [],
        read=_console_files,
        option=PortOption("console-port", "Port of the console on 127.0.0.1, or 'off' [default: 9001]", _console_port),
    ),
    Section(
        "launchers",
        Launchers,
        Launchers(),
        _launchers,
        summary=_launchers_summary,
        reloadable=("*",),
        named=("table",),
    ),
)
"""The sections after those of the wires. The parts of the example file have several sections each."""
