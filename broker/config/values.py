"""The configuration of the daemon itself as frozen values, with their defaults. Each wire has its own: `config.py`."""

from __future__ import annotations

from typing import Literal

import attrs


@attrs.frozen
class Broker:
    """The daemon itself."""

    version: int = 1
    """Version of the file's format. A broker refuses a later one than it reads."""
    service: str | None = None
    """Suffix of the broker's own service names: ``broker-client-SUFFIX``."""
    state: str | None = None
    """State directory, where neither the environment nor the command line names one."""
    grace: float = 60.0
    """Seconds for which finds are answered with services from before a restart. Real servers retry every 15 s."""
    diagnostics: bool = True
    """Send peers the reason of a refusal."""
    strict_listeners: bool = False
    """Fail the start if any listener cannot be opened; else all but the first Elko listener may be opened later."""
    trusted_proxies: tuple[str, ...] = ()
    """Networks of trusted proxies, whose clients have their own addresses: see `broker.net.proxies`."""
    memory: int = 256 * 1024 * 1024
    """Bytes that all peers together may make the broker hold: see `broker.core.memory_budget`."""
    memory_per_address: int = 36 * 1024 * 1024
    """The same for the peers of one address."""


@attrs.frozen
class LogLevel:
    """The log level of a wire, or of a module with all modules below it."""

    name: str
    """``mtl``, or ``broker.net``."""
    level: Literal["debug", "info", "warn", "error"]


@attrs.frozen
class Log:
    """Format and levels of the log."""

    format: Literal["text", "json"] = "text"
    level: Literal["debug", "info", "warn", "error"] = "info"
    levels: tuple[LogLevel, ...] = ()
    """Exceptions to ``level``."""
    file_bytes: int = 10_000_000
    """Bytes at which the log file is rotated; 0 leaves rotation to another program."""
    files: int = 10
    """Rotated log files that are kept."""


@attrs.frozen
class Console:
    """The operators' console. Outside loopback it needs a password."""

    enabled: bool = True
    endpoint: str = "tcp:9001:interface=127.0.0.1"
    """As a listener's."""
    auth: Literal["users"] | None = None
    """With "users", operators log in as users of the users file; so they do wherever there is one."""
    password: str | None = attrs.field(default=None, repr=False)
    """The password of operators; None: every connection is an administrator's."""
    password_file: str | None = None
    """A file that holds ``password`` instead, as ``code_file`` does for a listener."""


@attrs.frozen
class LauncherEntry:
    """A program that administrators may start."""

    name: str
    script: str = attrs.field(repr=False)
    """The command line, which is not shown: its arguments often are secrets."""
    initial: bool = False
    on: bool = False


@attrs.frozen
class Launchers:
    """The launcher table, and its programs that start with the broker."""

    start: Literal["initial", "recover", "restart"] = "initial"
    """``initial``: those with ``initial`` or switched on; ``recover`` and ``restart``: those switched on."""
    table: tuple[LauncherEntry, ...] = ()


@attrs.frozen
class CheckRule:
    """A rule of health checks. The first one that matches a service counts. Times in seconds."""

    services: tuple[str, ...]
    """Shell patterns of service names; on the wire ``director``, of the labels of Context Servers."""
    kind: Literal["ping", "tcp", "http"]
    wires: tuple[str, ...] = ()
    """Wires on which the service is registered, and ``director``; empty: all."""
    protocols: tuple[str, ...] = ()
    """Protocols of the service; empty: all."""
    interval: float = 30.0
    timeout: float = 5.0
    up: int = 2
    """Successes in a row after which a failing service passes."""
    down: int = 3
    """Failures in a row after which a service fails."""
    policy: Literal["show", "last", "hide"] = "last"
    path: str = "/"
    statuses: tuple[int, ...] = (200, 399)
    """Least and greatest status of an HTTP response that is a success."""


PINGS = CheckRule(services=("*",), kind="ping", wires=("elko", "director"), interval=20.0, up=1)
"""The default rule: servers that hang keep their connection, and Elko servers answer a ping. With the deviation of the
interval, and three timeouts, one that hangs is failing within 41 s."""


@attrs.frozen
class Checks:
    """Health checks of services."""

    enabled: bool = True
    rules: tuple[CheckRule, ...] = (PINGS,)
    concurrency: int = 50
    """Connections for checks at one time."""
    panic: float = 0.5
    """Share of failing services of one name above which none of them is hidden."""
    silent_share: float = 0.2
    """Share of silent peers above which they are verified before they end; 1.0 switches that off."""
    silent_ttls: float = 5.0
    """Leases after which a peer that is verified ends in any case."""
    networks: tuple[str, ...] = (
        "127.0.0.0/8",
        "::1/128",
        "10.0.0.0/8",
        "172.16.0.0/12",
        "192.168.0.0/16",
        "fc00::/7",
    )
    """Networks in which services are checked by connections or probed: peers choose the addresses of services."""


@attrs.frozen
class FullLoad:
    """The load at which a provider of some services is full. The first entry whose ``services`` match counts."""

    services: tuple[str, ...]
    """Shell patterns of service names."""
    load: float
    """In the unit of the reported loads; above 0."""


@attrs.frozen
class Journal:
    """The metrics journal: reported loads and heartbeats, for capacity planning. Sizes in bytes, times in
    seconds."""

    enabled: bool = True
    directory: str | None = None
    """None: ``journal`` in the state directory. Relative to the configuration file; reading that makes it absolute."""
    name: str | None = None
    """Name of this broker in the journal and in its file names; None: the host's name."""
    segment_bytes: int = 64 * 1024 * 1024
    """Size of a segment, before it is compressed; then it is sealed."""
    segment_seconds: float = 3_600.0
    """Time since a segment's first record; then it is sealed, whatever its size."""
    keep_seconds: float = 400 * 86_400.0
    """Sealed segments that are older are deleted. A year and a month, since some loads have yearly seasons."""
    keep_bytes: int = 20 * 1024**3
    """Total size of sealed segments; beyond it the oldest are deleted."""
    full_load: tuple[FullLoad, ...] = ()
    """Empty: capacity plans make no claim about capacity."""
