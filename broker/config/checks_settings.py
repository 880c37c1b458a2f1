"""The sections ``[checks]`` and ``[journal]``: keys, checks, and the lines of ``--check``."""

from __future__ import annotations

import re
from collections.abc import Iterator
from ipaddress import ip_network
from typing import Literal

import attrs

from broker.config import key_checks
from broker.config.key import REQUIRED, Resolves, Section, Settings, key
from broker.config.key_checks import Problem

CHECKED_WIRES = ("elko", "director", "dbp", "mtl", "http")
"""The wires on which services or servers register."""

PINGED_WIRES = ("elko", "director", "dbp")
"""The wires with a ping. On the others, silent peers are ended by the wire itself."""

MAX_NAME = 64
"""Characters of a broker's name in the journal: with the rest of a file's name it must stay under 255 bytes."""

UNNAMED = "broker"
"""Name of a broker on a host without a name."""

LEAST_LOAD = 1e-9
"""A smaller one measures nothing: a reported load, divided by it, must stay a readable number."""

MOST_LOAD = 1e15
"""Sums over all providers must stay exact: integers of a float are exact up to nine times that."""

_PATH = re.compile(r"/[!-~]{0,1000}")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_UNFIT = re.compile(r"[^A-Za-z0-9._-]+")
_HIDDEN = "._"
"""First characters of the file names that readers of the journal skip."""
_NOT_FIRST = _HIDDEN + "-"
"""A hyphen as well: for shell commands such a name would be an option."""
_DAY = 86_400
_UNITS = ((1024**4, "TiB"), (1024**3, "GiB"), (1024**2, "MiB"))


def _services(here: str, services: tuple[str, ...]) -> Iterator[Problem]:
    if not services:
        yield Problem(here, 'is for no service; "*" is every one')
    yield from key_checks.patterns(here, services)


def _path(here: str, path: str) -> Iterator[Problem]:
    if not _PATH.fullmatch(path):
        yield Problem(here, "must begin with / and have up to 1000 more visible ASCII characters")


def _statuses(here: str, statuses: tuple[int, ...]) -> Iterator[Problem]:
    if len(statuses) != 2:
        yield Problem(here, "must be two numbers, the least and the greatest status")
    else:
        least, most = statuses
        yield from key_checks.in_range(f"{here}[0]", least, 100, 599)
        yield from key_checks.in_range(f"{here}[1]", most, least, 599)


@attrs.frozen
class CheckRule(Settings):
    """A rule. The first one that matches a service applies. Without any, Elko's providers and the director's servers
    are sent a ping every 20 seconds; a section replaces that rule."""

    services: tuple[str, ...] = key(
        REQUIRED,
        'Names of services, as patterns (*, ?, [...]); on the wire "director", labels of Context Servers.',
        check=_services,
        example=("*",),
    )
    kind: Literal["ping", "tcp", "http"] = key(
        REQUIRED,
        '"ping" is that of the wire itself (elko, director, dbp); "tcp" a connection; "http" a GET request.',
        example="ping",
    )
    wires: tuple[str, ...] = key(
        (),
        "Wires on which the service is registered: elko, director, dbp, mtl, http. By default all of them. A ping "
        "counts on the wires that have one.",
        example=(
            "elko",
            "director",
        ),
    )
    protocols: tuple[str, ...] = key((), "Protocols of the service. By default all.", example=("tcp",))
    # Shorter intervals would cost more than the service itself; a day is as good as never.
    interval: float = key(
        30.0,
        "Time between two checks, with a random deviation of up to a quarter.",
        unit="s",
        within=(1, 86_400),
        example=20.0,
    )
    timeout: float = key(5.0, "Time for the answer, no longer than the interval.", unit="s", within=(0.1, 600))
    up: int = key(
        2,
        "Successes in a row after which a failing service passes.",
        within=(1, 100),
    )
    down: int = key(3, "Failures in a row after which a service fails.", within=(1, 100))
    policy: Literal["show", "last", "hide"] = key(
        "last",
        'Place of a failing service in finds and in the director\'s choice: "show" leaves it where it is, "last" puts'
        ' it behind all others, "hide" leaves it out.',
    )
    path: str = key("/", "Path of an HTTP request.", check=_path)
    statuses: tuple[int, ...] = key(
        (200, 399), "Least and greatest status of an HTTP response that is a success.", check=_statuses
    )

    def problems(self, here: str) -> Iterator[Problem]:
        """Yield wires without services or pings, and a timeout that is longer than the interval."""
        known = PINGED_WIRES if self.kind == "ping" else CHECKED_WIRES
        for number, wire in enumerate(self.wires):
            if wire not in known:
                what = "no wire with a ping" if wire in CHECKED_WIRES else "no wire with services"
                yield Problem(f"{here}.wires[{number}]", f'"{wire[:40]}" is {what}: {", ".join(known)}')
        if self.timeout > self.interval:
            text = f"{self.timeout:.15g} is longer than interval, {self.interval:.15g}"
            yield Problem(f"{here}.timeout", text, f"{here}.interval")


PINGS = CheckRule(services=("*",), kind="ping", wires=("elko", "director"), interval=20.0, up=1)
"""The default rule: servers that hang keep their connection, and Elko servers answer a ping. With the deviation of the
interval, and three timeouts, one that hangs is failing within 41 s."""


@attrs.frozen
class Checks(Settings):
    """Health checks of services. A server that hangs keeps its connection; checks find out that it does not answer.
    docs/checks.md has the details."""

    enabled: bool = key(True, "Enables the checks.", reload=True)
    rules: tuple[CheckRule, ...] = key((PINGS,), check=key_checks.rules, reload=True)
    concurrency: int = key(50, "Connections for checks at one time. Pings need none.", within=(1, 1_000), reload=True)
    panic: float = key(
        0.5,
        "Share of failing services of one name, above which none of them is hidden: they come last instead. With 1.0"
        " even the only service of a name is hidden.",
        within=(0, 1),
        reload=True,
    )
    silent_share: float = key(
        0.2,
        "Share of silent peers among all with a lease (DBP, HTTP, mc0, MTL), above which peers are verified before "
        "they end: they stay doubtful, last in finds, and are checked by connections. 1.0 switches that off.",
        within=(0, 1),
        reload=True,
    )
    networks: tuple[str, ...] = key(
        ("127.0.0.0/8", "::1/128", "10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "fc00::/7"),
        "Networks in which services are checked by connections, DBP services by probes. Peers choose the addresses "
        "of their services. Link-local and multicast addresses and the broker's own listeners are refused in any "
        "case.",
        check=key_checks.networks,
        reload=True,
    )

    def summary(self) -> Iterator[str]:
        """Yield a line; none for the default, which every broker has."""
        if self == Checks():
            return
        if not self.enabled or not self.rules:
            yield "checks: off"
            return
        shown = (
            f"{rule.kind} of {', '.join(rule.services)} every {rule.interval:g} s ({rule.policy})"
            for rule in self.rules
        )
        yield f"checks: {'; '.join(shown)}"

    def warnings(self, resolves: Resolves) -> Iterator[str]:
        """Yield networks that are refused in any case, and rules that never apply."""
        for index, text in enumerate(self.networks):
            network = ip_network(text)
            if network.is_link_local or network.is_multicast:
                yield f"checks.networks[{index}]: {text} is never connected to: link-local and multicast are refused"
        for_all: str | None = None
        for index, rule in enumerate(self.rules if self.enabled else ()):
            here = f"checks.rules[{index}]"
            if for_all is not None:
                yield f"{here}: never counts, since {for_all} is for every service"
            elif (
                rule.kind != "ping"
                and not rule.wires
                and not rule.protocols
                and not all(pattern.strip("*") for pattern in rule.services)
            ):
                for_all = here


def _load(here: str, load: float) -> Iterator[Problem]:
    if load <= 0:
        yield Problem(here, f"must be above 0, not {load:.15g}")
    else:
        yield from key_checks.in_range(here, load, LEAST_LOAD, MOST_LOAD)


def _name(here: str, name: str) -> Iterator[Problem]:
    if not name:
        yield Problem(here, "is empty")
    elif name.startswith(tuple(_HIDDEN)):
        yield Problem(here, "begins with a dot or an underscore: readers do not look at such files")
    elif len(name) > MAX_NAME or not _NAME.fullmatch(name):
        text = (
            f"may have up to {MAX_NAME} letters, digits, dots, hyphens and underscores, the first a letter or digit, "
            "as a part of file names"
        )
        yield Problem(here, text)


@attrs.frozen
class FullLoad(Settings):
    """Load at which a provider is full, for some services. The first entry with a matching pattern applies. Plans have
    no capacity for services that match none."""

    services: tuple[str, ...] = key(
        REQUIRED, "Names of services, as patterns (*, ?, [...]).", check=_services, example=("context-*",)
    )
    load: float = key(REQUIRED, "In the measure of their reports, above 0.", check=_load, example=400.0)


@attrs.frozen
class Journal(Settings):
    """The metrics journal: recorded loads and signs of life in files, for capacity planning. docs/export.md has its
    format."""

    enabled: bool = key(True, "Enables the journal.")
    directory: str | None = key(
        None,
        'Directory, relative to this file. By default "journal" in the state directory.',
        path=True,
        example="/var/lib/elkobroker/journal",
    )
    name: str | None = key(
        None,
        "Name of this broker in the journal: up to 64 letters, digits, dots, hyphens, underscores; a letter or digit"
        " first. By default the name of the host. Brokers whose journals are read together need different names.",
        check=_name,
        example="east",
    )
    # Each segment is a file, which costs its readers as much as some thousand records; one core compresses it, and one
    # core reads it.
    segment_bytes: int = key(
        64 * 1024**2,
        "Size of a file's records, before compression, at which it is sealed.",
        unit="bytes",
        within=(65_536, 1024**3),
        reload=True,
    )
    # Only sealed segments are read: a longer one would delay capacity plans by more than a day.
    segment_seconds: float = key(
        3600.0,
        "Time after which a file is sealed in any case. Only sealed files are read.",
        unit="s",
        within=(1, 86_400),
        reload=True,
    )
    # The capacity jobs run once a day; the upper bound is a century.
    keep_seconds: float = key(
        400 * 86_400.0,
        "Time for which sealed files are kept. Loads have yearly seasons: this is a year and a month.",
        unit="s",
        within=(86_400, 36_525 * 86_400),
        reload=True,
    )
    # The lower bound is under an hour of a small farm, the upper one a hundred years of the busiest.
    keep_bytes: int = key(
        20 * 1024**3,
        "Size of all sealed files that are kept; beyond them, the oldest are deleted.",
        unit="bytes",
        within=(1024**2, 100 * 1024**4),
        reload=True,
    )
    full_load: tuple[FullLoad, ...] = key((), reload=True)

    def problems(self, here: str) -> Iterator[Problem]:
        """Yield room for less than one segment."""
        if self.keep_bytes < self.segment_bytes:
            text = f"{self.keep_bytes} is less than segment_bytes, {self.segment_bytes}"
            yield Problem(f"{here}.keep_bytes", text, f"{here}.segment_bytes")

    def effective_name(self, host: str) -> str:
        """Return the name of the broker in the journal: the given one, else the valid part of ``host``, the host's
        name."""
        if self.name is not None:
            return self.name
        return _UNFIT.sub("-", host).lstrip(_NOT_FIRST)[:MAX_NAME] or UNNAMED

    def summary(self) -> Iterator[str]:
        """Yield a line."""
        if not self.enabled:
            yield "journal: off"
            return
        days = self.keep_seconds / _DAY
        size = next(((unit, name) for unit, name in _UNITS if self.keep_bytes >= unit), _UNITS[-1])
        parts = [
            self.directory or "in the state directory",
            *(() if self.name is None else (f"as {self.name}",)),
            f"kept {days:.4g} {'day' if days == 1 else 'days'}",
            f"{self.keep_bytes / size[0]:.4g} {size[1]}",
        ]
        yield f"journal: {', '.join(parts)}; full_load {len(self.full_load) or 'none'}"

    def warnings(self, resolves: Resolves) -> Iterator[str]:
        """Yield the lack of full loads, and entries that never apply."""
        if not self.enabled:
            return
        if not self.full_load:
            yield "journal.full_load is empty: plans have no capacity for any service"
        for_all: str | None = None
        for index, entry in enumerate(self.full_load):
            here = f"journal.full_load[{index}]"
            if for_all is not None:
                yield f"{here}: never counts, since {for_all} is for every service"
            elif not all(pattern.strip("*") for pattern in entry.services):
                for_all = here


CHECKS = Section("checks", Checks())
JOURNAL = Section("journal", Journal())
"""The two sections."""
