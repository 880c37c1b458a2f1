"""The sections of the daemon's own parts: keys, checks, and the lines of ``--check``.

The file is longer than others: most sections are a few keys. Each wire has a file of its own.
"""

from __future__ import annotations

import math
import re
import shlex
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Literal
from urllib.parse import urlsplit

import attrs

from broker.access import users_document
from broker.access.identity import ANONYMOUS
from broker.access.principal import OPERATIONS
from broker.access.users_file import BadUsers, read
from broker.config import endpoint, key_checks
from broker.config.bridge_settings import BRIDGES
from broker.config.checks_settings import CHECKS
from broker.config.cluster_settings import CLUSTER
from broker.config.endpoint import Endpoint
from broker.config.journal_settings import JOURNAL
from broker.config.key import (
    REQUIRED,
    Binding,
    PortOption,
    Resolves,
    Section,
    Settings,
    bytes_key,
    key,
    moved,
    seconds_key,
)
from broker.config.key_checks import MAX_LABEL, MAX_SUFFIX, Problem

VERSION = 1
"""Version of the format of configuration files. A change that older files do not fit raises it."""

MAX_URL = 2_000
"""Characters of a URL, as browsers and proxies take them."""

SOON = 7 * 86_400.0
"""Seconds before the expiry of a token in which ``--check`` warns of it."""

OPEN_FILE = str(Path(__file__).with_name("users-open.toml"))
"""The shipped users file by which every peer may do everything."""

FIRST_OR_LAST = "a users file comes or goes at a restart only: until then, all listeners check rights as before"
"""The reason why a reload does not take the first users file, or give up the last one."""

Level = Literal["debug", "info", "warn", "error"]

EventName = Literal[
    "service-gone",
    "service-back",
    "service-doubtful",
    "service-failing",
    "service-passing",
    "short-of-capacity",
    "listener-not-ready",
    "listener-ready",
    "listener-full",
    "listener-has-room",
    "store-degraded",
    "store-restored",
    "state-damaged",
    "member-gone",
    "member-back",
    "cluster-degraded",
    "cluster-restored",
]
"""Events; `broker.core.model.EVENTS` has their meaning."""

_MODULE = re.compile(r"[A-Za-z][A-Za-z0-9_-]*(?:\.[A-Za-z0-9_-]+)*")
_RULE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")


def _version(here: str, version: int) -> Iterator[Problem]:
    if version > VERSION:
        yield Problem(here, f"the file has version {version}, and this broker reads version {VERSION}: upgrade it")


def _log_size(here: str, size: int) -> Iterator[Problem]:
    # A smaller file would be rotated several times a second on the level debug; more is a mistake in the unit.
    if size:
        yield from key_checks.in_range(here, size, 100_000, 2**40)


@attrs.frozen
class Broker(Settings):
    """The daemon itself."""

    version: int = key(
        1,
        "Version of this file's format: a broker refuses a file of a later version than it reads.",
        within=(1, math.inf),
        check=_version,
        reload=True,
    )
    service: str | None = key(
        None,
        "Suffix of the names under which the broker registers its own listeners: broker-client-SUFFIX, "
        "broker-admin-SUFFIX.",
        check=partial(key_checks.printable, most=MAX_SUFFIX),
        reload=True,
        example="east",
    )
    state: str | None = key(
        None,
        "State directory, relative to this file, where neither the environment (STATE_DIRECTORY) nor the command line "
        "(--state) names one.",
        path=True,
        example="/var/lib/elkobroker",
    )
    grace: float = seconds_key(
        60.0,
        "Time for which finds are also answered from the record of the time before a restart. Real servers come back "
        "within 15 s.",
        within=(0, 86_400),
    )
    last_values: bool = key(
        False,
        "Keep the newest message of every topic, and send it first to later subscribers: up to 10,000 topics and "
        "64 MiB, of which those published first go. Without it, only messages that MTL's publishers retain are kept.",
        reload=True,
    )
    store_last_values: bool = key(
        False,
        "Keep last values over a restart, those that MTL's publishers retain too: in the state directory, as far as "
        "they were published a second or so before a kill.",
    )
    diagnostics: bool = key(True, "Send peers the reason when a message is refused.", reload=True)
    strict_listeners: bool = key(
        False,
        "Fail the start if any listener cannot be opened. Otherwise only the first Elko listener is required; all "
        "others are tried again until they can be opened.",
    )
    trusted_proxies: tuple[str, ...] = key(
        (),
        "Networks of proxies, whose clients then count by their own addresses: by a header of the PROXY protocol on "
        "any stream listener, and by Forwarded or X-Forwarded-For over HTTP.",
        check=key_checks.networks,
        reload=True,
    )
    # The largest that was measured is a million; the tables of ten million would take 20 GB.
    services: int = key(
        200_000,
        "Services of all peers together, and of other members of a cluster. Further ones are refused; those that are "
        "there stay if a reload sets less.",
        within=(1, 10_000_000),
        reload=True,
    )
    # With less, single messages of ordinary size would not fit; more is a mistake in the unit.
    memory: int = bytes_key(
        256 * 1024**2,
        "Memory that all peers together may make the broker hold: unfinished messages, output that is not read, "
        "sessions. Beyond them peers are disconnected: first those of the address with most of it, and those without"
        " authentication.",
        within=(2**20, 2**50),
    )
    memory_per_address: int = bytes_key(
        36 * 1024**2,
        "The same for the peers of one address (of an IPv6 /64). The process grows by up to twice that.",
        within=(2**20, 2**50),
    )


@attrs.frozen
class LogLevel(Settings):
    """Level of one wire, or of a module with all below it."""

    name: str = key(REQUIRED, "The wire, or the module.", example="mtl")
    level: Level = key(REQUIRED, "Lowest level that is logged.", example="debug")


@attrs.frozen
class Log(Settings):
    """The log: format, levels, and the rotation of its file."""

    format: Literal["text", "json"] = key(
        "text",
        '"text", or "json" with one object a line. Text goes to the journal of systemd by its own protocol, with '
        "fields, if the standard output is connected to it.",
        reload=True,
    )
    level: Level = key("info", "Lowest level that is logged.", reload=True)
    levels: tuple[LogLevel, ...] = key((), reload=True)
    file_bytes: int = bytes_key(
        10_000_000,
        "Size at which the file of twistd's --logfile is rotated; 0 leaves that to another program, which sends "
        "SIGUSR1 after it has renamed the file.",
        check=_log_size,
    )
    files: int = key(10, "Rotated files FILE.1, FILE.2 and so on that are kept.", within=(0, 1_000), reload=True)
    collect: bool = key(
        False,
        "Collect messages of the topics log.NODE, which nodes publish on any wire, in collected.jsonl in the state "
        "directory.",
        reload=True,
    )

    def problems(self, here: str) -> Iterator[Problem]:
        """Yield names that are none, or that have a level already."""
        names: set[str] = set()
        for index, entry in enumerate(self.levels):
            place = f"{here}.levels[{index}].name"
            if _MODULE.fullmatch(entry.name) is None:
                yield Problem(place, f"{entry.name[:80]!r} is neither a wire nor a module")
            elif entry.name in names:
                yield Problem(place, f'"{entry.name}" has a level already')
            names.add(entry.name)


@attrs.frozen
class Console(Settings):
    """The operators' console."""

    enabled: bool = key(True, "Enables the console.")
    endpoint: str = key(
        "tcp:9001:interface=127.0.0.1", "Endpoint, in the form of an Elko listener's.", check=key_checks.listens
    )

    @property
    def place(self) -> Endpoint:
        """The address. Raises `BadEndpoint`."""
        return endpoint.parse(self.endpoint)

    def bindings(self) -> Iterator[Binding]:
        """Yield the socket."""
        if self.enabled:
            yield Binding("console.endpoint", "console", self.place)

    def summary(self) -> Iterator[str]:
        """Yield a line."""
        if not self.enabled:
            yield "console: off"
            return
        yield f"console: bound to {self.place.shown}"


def _script(here: str, script: str) -> Iterator[Problem]:
    try:
        words = shlex.split(script)
    except ValueError as error:
        yield Problem(here, f"is no command line: {str(error).lower()}")
    else:
        if not words or not words[0] or "\0" in script:
            yield Problem(here, "is empty" if not script.strip() else "names no program")


@attrs.frozen
class LauncherEntry(Settings):
    """A program that administrators may start."""

    name: str = key(
        REQUIRED, "Name for administrators.", check=partial(key_checks.printable, most=MAX_LABEL), example="chat"
    )
    script: str = key(
        REQUIRED,
        "Command line, split into words as a shell does, but run without a shell.",
        check=_script,
        secret=True,
        example="/usr/local/bin/chat --port 9100",
    )
    initial: bool = key(False, "Start it with the broker.")
    on: bool = key(False, "Initial position of its switch, until an administrator uses it.")


@attrs.frozen
class Launchers(Settings):
    """The programs that administrators may start."""

    start: Literal["initial", "recover", "restart"] = key(
        "initial",
        'Programs that are started with the broker: "initial" is those marked initial or switched on, "recover" and '
        '"restart" those switched on.',
        reload=True,
    )
    table: tuple[LauncherEntry, ...] = key((), reload=True)

    def problems(self, here: str) -> Iterator[Problem]:
        """Yield names that are there twice."""
        names: dict[str, str] = {}
        for index, entry in enumerate(self.table):
            place = f"{here}.table[{index}]"
            if entry.name in names:
                other = names[entry.name]
                yield Problem(f"{place}.name", f'the name "{entry.name}" is that of {other} too', other)
            names.setdefault(entry.name, place)

    def summary(self) -> Iterator[str]:
        """Yield a line."""
        names = ", ".join(entry.name for entry in self.table) or "none"
        yield f"launchers: {names}, start {self.start}"


@attrs.frozen
class Access(Settings):
    """Users and their rights, for all listeners, and the audit log. docs/security.md describes the users file."""

    file: str | None = key(
        None,
        "File with users and rights, relative to this file. Changes take effect at once. Without it, peers of this "
        "machine may do everything, and no other machine can connect. A reload takes another file; the first one, or "
        "none, is taken at a start.",
        replaceable=FIRST_OR_LAST,
        path=True,
        secret_file=True,
        example="users.toml",
    )
    audit: str | None = key(
        None,
        'Audit log of administrative acts, relative to this file. By default "audit.jsonl" in the state directory.',
        path=True,
        reload=True,
        example="/var/log/elkobroker/audit.jsonl",
    )
    # One act must fit, which has a few kilobytes at most.
    audit_bytes: int = bytes_key(16 * 1024**2, "Size at which the audit log is rotated.", within=(65_536, 1024**4))
    requests_per_address: float = key(
        0.0,
        "Requests a second of one address, over HTTP, at the console and at Elko listeners; 0 is no limit.",
        within=(0, 1_000_000),
        reload=True,
    )
    requests_per_user: float = key(
        0.0, "Requests a second of one user, at the same listeners; 0 is no limit.", within=(0, 1_000_000), reload=True
    )
    # With 0 no request could be made.
    requests_burst: int = key(
        1_000,
        "Requests that an address or a user may make at once before these rates apply.",
        within=(1, 1_000_000),
        reload=True,
    )

    def problems(self, here: str) -> Iterator[Problem]:
        """Yield the problems of the users file."""
        if self.file:
            try:
                users_document.parse(self.file, read(self.file))
            except BadUsers as error:
                for sentence in error.args:
                    yield Problem(f"{here}.file", str(sentence))

    def summary(self) -> Iterator[str]:
        """Yield a line about the users file."""
        if self.file is None:
            return
        try:
            found = users_document.parse(self.file, read(self.file))
        except BadUsers as error:
            yield f"access: {error}"
            return
        yield (
            f"access: {self.file}: {len(found.users)} users, {len(found.tokens)} tokens, {len(found.keys)} keys, "
            f"{len(found.certificates)} certificates, {len(found.rights)} rights"
        )

    def warnings(self, resolves: Resolves) -> Iterator[str]:
        """Yield a file by which every peer may do everything, and tokens that have expired, or expire soon."""
        if self.file is None:
            return
        try:
            found = users_document.parse(self.file, read(self.file))
        except BadUsers:
            return
        if where := opened(found):
            yield f"access.file: {self.file} lets every peer do everything at the listeners {where}"
        now = time.time()
        for token in found.tokens.values():
            if token.expires <= now:
                yield f"access.file: the token {token.label!r} of {token.user} has expired"
            elif token.expires <= now + SOON:
                days = math.ceil((token.expires - now) / 86_400)
                yield f"access.file: the token {token.label!r} of {token.user} expires within {days} days"


def opened(users: users_document.UserDirectory) -> str:
    """Return the patterns of listeners at which peers without a credential may do everything, or an empty text."""
    everything = OPERATIONS.keys()
    rights = (
        right for right in users.rights if ANONYMOUS in right.users and set(right.operations_meant()) == everything
    )
    return ", ".join(sorted({listener for right in rights for listener in right.listeners}))


@attrs.frozen
class Plan(Settings):
    """The capacity plan, for operators. docs/operations.md describes the jobs that make it."""

    file: str | None = key(
        None,
        "The plan.json of the jobs, relative to this file. It is read when it changes. By default no plan is shown.",
        path=True,
        reload=True,
        example="/var/lib/elkobroker/plan/plan.json",
    )

    def summary(self) -> Iterator[str]:
        """Yield a line."""
        # A missing file is no problem of the configuration: the jobs write it later.
        if self.file is not None:
            yield f"plan: {self.file}"


def _events(here: str, events: tuple[EventName, ...]) -> Iterator[Problem]:
    if not events:
        yield Problem(here, "is empty")


def _rule_name(here: str, name: str) -> Iterator[Problem]:
    if _RULE_NAME.fullmatch(name) is None:
        yield Problem(here, "must have 1 to 64 letters, digits, dots, hyphens and underscores")


def _url(here: str, url: str) -> Iterator[Problem]:
    try:
        parts = urlsplit(url)
        good = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        good = False
    if not good or not url.isascii() or not url.isprintable() or " " in url or len(url) > MAX_URL:
        yield Problem(here, "is no URL: http://HOST[:PORT]/PATH or https://...")


def _command(here: str, command: tuple[str, ...]) -> Iterator[Problem]:
    if any("\0" in word for word in command) or (command and not command[0]):
        yield Problem(here, "names no program")


@attrs.frozen
class NotifyRule(Settings):
    """A webhook (`url`) or a command that is called for the events that it lists; one of the two is given."""

    name: str = key(
        REQUIRED, 'Name in the log and in the view "broker notifications".', check=_rule_name, example="pager"
    )
    events: tuple[EventName, ...] = key(
        (
            "service-gone",
            "service-doubtful",
            "service-failing",
            "short-of-capacity",
            "listener-not-ready",
            "listener-full",
            "store-degraded",
            "state-damaged",
            "member-gone",
            "cluster-degraded",
        ),
        "Events: service-gone, service-back, service-doubtful, service-failing, service-passing, short-of-capacity, "
        "listener-not-ready, listener-ready, listener-full, listener-has-room, store-degraded, store-restored, "
        "state-damaged, member-gone, member-back, cluster-degraded, cluster-restored.",
        check=_events,
        example=(
            "service-gone",
            "member-gone",
        ),
    )
    pattern: str = key(
        "*",
        "Names of services, listeners or brokers, as a pattern (*, ?, [...]).",
        check=partial(key_checks.printable, most=1_024),
    )
    url: str | None = key(
        None, "URL that gets each event by POST, as JSON.", check=_url, secret=True, example="https://example.org/hook"
    )
    secret: str | None = key(
        None,
        "Secret that signs the requests: X-Elkobroker-Signature has the HMAC-SHA256 of X-Elkobroker-Timestamp, a dot"
        " and the body.",
        check=key_checks.secret,
        secret=True,
        example="change me",
    )
    secret_file: str | None = key(
        None,
        "File that has the secret on its only line, relative to this file.",
        holds="secret",
        example="pager.secret",
    )
    command: tuple[str, ...] = key(
        (),
        "Program and arguments, run without a shell; the event is on its standard input.",
        check=_command,
        secret=True,
        example=(
            "/usr/local/bin/page",
            "--now",
        ),
    )
    # A webhook that answers later than a minute holds up the next notification of its rule for too long.
    timeout: float = key(10.0, "Time for one attempt.", unit="s", within=(0.1, 60))
    attempts: int = key(8, "Attempts, with pauses that double from one second to a minute.", within=(1, 100))
    per_minute: float = key(30.0, "Notifications a minute; further ones are dropped and counted.", within=(1, 6_000))

    def problems(self, here: str) -> Iterator[Problem]:
        """Yield a problem unless the rule has either a URL or a command."""
        if (self.url is None) == (not self.command):
            yield Problem(here, "needs url or command, one of them")


@attrs.frozen
class Notify(Settings):
    """Webhooks and commands that are called on events. docs/operations.md has the form of an event."""

    settle: float = seconds_key(
        5.0,
        "Time for which a service must be gone before that is an event: a server that reconnects at once is not gone.",
        within=(0, 3_600),
    )
    rules: tuple[NotifyRule, ...] = key((), check=key_checks.rules, reload=True)

    def problems(self, here: str) -> Iterator[Problem]:
        """Yield names that are there twice."""
        names: set[str] = set()
        for index, rule in enumerate(self.rules):
            if rule.name in names:
                place = f"{here}.rules[{index}].name"
                yield Problem(place, f'the name "{rule.name}" is that of another rule too')
            names.add(rule.name)

    def summary(self) -> Iterator[str]:
        """Yield a line with the rules."""
        ways = ", ".join(f"{rule.name} ({'webhook' if rule.url else 'command'})" for rule in self.rules)
        if ways:
            yield f"notify: {ways}"


BEFORE = (Section("broker", Broker()), Section("log", Log()))
"""The sections before those of the wires."""

AFTER = (
    CLUSTER,
    BRIDGES,
    Section("access", Access()),
    Section("plan", Plan()),
    Section("notify", Notify()),
    CHECKS,
    JOURNAL,
    Section(
        "console",
        Console(),
        PortOption(
            "console-port",
            "Port of the console on 127.0.0.1, or 'off' [default: 9001]",
            moved("tcp:{}:interface=127.0.0.1"),
        ),
    ),
    Section("launchers", Launchers()),
)
"""The sections after those of the wires."""
