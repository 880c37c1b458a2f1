"""Examinations of this machine, of the files of a broker, and of a running broker."""

from __future__ import annotations

import ctypes
import email.utils
import os
import platform
import re
import resource
import shutil
import socket
import stat
import sys
import time
import tomllib
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from enum import StrEnum
from importlib import metadata
from pathlib import Path
from typing import Any

import attrs
from cryptography import x509

from broker.brokerctl.answers import Answer, Exit, Failure, mapping, rows
from broker.brokerctl.contexts import Context, expanded
from broker.brokerctl.output import size, text
from broker.brokerctl.plain_client import ApiClient

# A finding of an examination.


class Level(StrEnum):
    """The weight of a finding. An error needs a remedy; a warning will, or may under load."""

    OK = "ok"
    WARNING = "warning"
    ERROR = "error"


@attrs.frozen
class Finding:
    """A finding: the thing examined, and a sentence with the remedy if there is one."""

    level: Level
    what: str
    text: str


def ok(what: str, text: str) -> Finding:
    """Return a finding without a fault."""
    return Finding(Level.OK, what, text)


def warning(what: str, text: str) -> Finding:
    """Return a finding that may become a fault."""
    return Finding(Level.WARNING, what, text)


def error(what: str, text: str) -> Finding:
    """Return a fault."""
    return Finding(Level.ERROR, what, text)


# This machine: limits of the kernel, disk, clock, interpreter and libraries.

DESCRIPTORS = 65_536
"""Descriptors of the shipped unit: one for each connection."""

DESCRIPTOR = "file descriptors"
"""The thing examined, for this machine or for that of the broker."""

FEW_DESCRIPTORS = 4_096
"""Below this many, a farm of some thousand peers is refused connections."""

FULL = 0.8
"""Share of the descriptors that a broker has open from which on it is a warning."""

SOMAXCONN = 1_024
"""Connections that wait in the kernel while the broker is busy: after a restart all peers come at once."""

LITTLE_ROOM, LAST_ROOM, NO_ROOM = 1024**3, 64 * 1024**2, 64 * 1024
"""Bytes free on the disk of the state: below the first, a journal of a day may not fit; below the second, the broker is
near its reserve of 16 MiB, at which durable queues refuse messages; below the third, SQLite cannot write."""

MIN_PYTHON = (3, 11)
UNSYNCHRONIZED = 5
"""TIME_ERROR of adjtimex(2): the kernel's clock is not synchronised."""


def examine_machine() -> Iterator[Finding]:
    """Yield the findings about the clock and the libraries of this machine."""
    yield from _clock()
    yield from _versions()


def examine_limits(state: Path | None) -> Iterator[Finding]:
    """Yield the findings about limits and disk of this machine, for a broker that is here and does not run. ``state``
    is its state directory, None if it is not known."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    about = f"{soft} (at most {hard}) in this shell; the shipped unit of systemd sets {DESCRIPTORS}"
    yield _descriptors(soft == resource.RLIM_INFINITY or soft >= FEW_DESCRIPTORS, about)
    with suppress(OSError, ValueError):
        yield _backlog(int(Path("/proc/sys/net/core/somaxconn").read_text()))
    if state is not None:
        yield _disk_of(state)


def _descriptors(enough: bool, about: str) -> Finding:
    return ok(DESCRIPTOR, about) if enough else warning(DESCRIPTOR, f"{about}; raise it by: ulimit -n")


def _backlog(backlog: int) -> Finding:
    if backlog >= SOMAXCONN:
        return ok("somaxconn", str(backlog))
    return warning("somaxconn", f"{backlog}; raise it by: sysctl net.core.somaxconn={SOMAXCONN}")


def _disk_of(state: Path) -> Finding:
    what = f"disk of {state}"
    if not state.exists():
        return warning(what, "the state directory does not exist yet; the broker makes it")
    try:
        free = shutil.disk_usage(state).free
    except OSError as problem:
        return error(what, f"cannot be examined: {problem.strerror}")
    if not os.access(state, os.W_OK | os.X_OK):
        return warning(what, f"{size(free)} free; this user cannot write there, which the broker's user must")
    return _disk(what, free)


def _disk(what: str, free: int) -> Finding:
    if free < LAST_ROOM:
        until = "" if free < NO_ROOM else " much longer"
        return error(what, f"{size(free)} free: the broker cannot store its state{until}")
    return warning(what, f"{size(free)} free") if free < LITTLE_ROOM else ok(what, f"{size(free)} free")


def _clock() -> Iterator[Finding]:
    installed = Path(__file__).stat().st_mtime
    if time.time() < installed - 86_400:
        now = time.strftime("%Y-%m-%d", time.gmtime())
        yield error("clock", f"the clock of this machine shows {now}, which is before the installation of brokerctl")
        return
    try:
        # A zeroed struct timex asks and changes nothing; it has 208 bytes at most.
        state = ctypes.CDLL(None).adjtimex(ctypes.create_string_buffer(1024))
    except (AttributeError, OSError):
        return
    if state == UNSYNCHRONIZED:
        yield warning("clock", "no time service synchronises it; certificates and tokens expire by it")
    else:
        yield ok("clock", "synchronised")


def _versions() -> Iterator[Finding]:
    version = platform.python_version()
    if sys.version_info < MIN_PYTHON:
        yield error("Python", f"{version}; 3.11 or later is needed")
    else:
        yield ok("Python", version)
    try:
        needed = metadata.requires("elkobroker") or []
        ours = metadata.version("elkobroker")
    except metadata.PackageNotFoundError:
        yield warning("elkobroker", "this is a checkout without installation: the libraries are not compared")
        return
    found, missing = [], []
    for requirement in needed:
        extra = re.search(r"extra == ['\"](\w+)['\"]", requirement)
        name = re.match(r"[\w.-]+", requirement)
        if name is None or name[0] == "elkobroker" or (extra is not None and extra[1] not in ("ctl", "daemon")):
            continue
        try:
            found.append(f"{name[0]} {metadata.version(name[0])}")
        except metadata.PackageNotFoundError:
            missing.append(name[0])
    yield ok(f"elkobroker {ours}", ", ".join(sorted(set(found))))
    if missing:
        names = ", ".join(sorted(set(missing)))
        yield warning("libraries", f"missing: {names}; the daemon needs all of 'elkobroker[daemon]'")


# Files of a configuration or a context: secrets that others can read, certificates that expire.

SOON = 30 * 86_400
"""Seconds before the expiry of a certificate from which on it is a warning: time to get another one."""

MAX_FILE = 4 * 1024 * 1024
"""Bytes of a file that is read."""

SECRETS = (
    *("password_file", "queue_store_password_file", "passphrase_file", "secret_file", "secret_key_file"),
    *("access.file", "cluster.key", "key"),
)
"""Keys whose files are secrets, and may not be read by all users of the machine. ``key`` is that of an endpoint.

`broker.config.key.secret_files` yields them from their declarations, which a program without the daemon lacks: a test
compares the two.
"""

CERTIFICATES = ("certificate", "cluster.ca")
"""Keys whose files are certificates."""

INLINE = (
    *("mc0.secret_key", "mtl.secret_key", "bridges.secret_key", "mtl.queue_store_password", "cluster.password"),
    *("rules.url", "rules.secret", "rules.command", "table.script"),
)
"""Keys, by their last two parts, whose values are secrets: those of `broker.config.key.Key.secret`. A configuration
with one is a secret itself."""

_PART = re.compile(r"(certificate|key|ca|passphrase_file)=((?:\\.|[^:\\])+)")
_PEM = re.compile(rb"-----BEGIN CERTIFICATE-----.+?-----END CERTIFICATE-----", re.DOTALL)


def examine_configuration(path: Path) -> Iterator[Finding]:
    """Yield the findings about the files that a configuration names, and about its own mode if it has secrets."""
    try:
        with path.open("rb") as file:
            content = tomllib.loads(file.read(MAX_FILE).decode())
    except OSError as problem:
        yield error(str(path), f"cannot be read: {problem.strerror}")
        return
    except (ValueError, RecursionError) as problem:
        yield error(str(path), f"is no TOML: {problem}")
        return
    if any(value and f"{section}.{key}" in INLINE for section, key, value in _texts(content)):
        yield from _secret(path)
    for key, name in dict.fromkeys(_files(content)):
        yield from _file(key, path.parent / name)


def examine_context(context: Context, contexts: Path) -> Iterator[Finding]:
    """Yield the findings about the files of a context, and about the contexts file."""
    if contexts.exists():
        yield from _secret(contexts)
    for key in ("token_file", "password_file", "key"):
        if name := getattr(context, key):
            yield from _secret(expanded(name))
    for name in (context.cert, context.ca):
        if name:
            yield from certificates(expanded(name))


def _texts(value: Any, section: str = "", key: str = "") -> Iterator[tuple[str, str, str]]:
    """Yield the texts in a configuration, each behind the last two parts of its key."""
    if isinstance(value, dict):
        for name, each in value.items():
            yield from _texts(each, key, name)
    elif isinstance(value, list):
        for each in value:
            yield from _texts(each, section, key)
    elif isinstance(value, str):
        yield section, key, value


def _files(content: Any) -> Iterator[tuple[str, str]]:
    """Yield the files in a configuration, each with the last part of its key, or with both where another section has
    such a key for something else."""
    for section, last, value in _texts(content):
        both = f"{section}.{last}"
        key = both if both in (*SECRETS, *CERTIFICATES) else last
        if (key in SECRETS and key != "key") or key in CERTIFICATES:
            yield key, value
        elif value.startswith(("tls:", "ssl:")):
            for part, name in _PART.findall(value):
                yield part, re.sub(r"\\(.)", r"\1", name)


def _file(key: str, path: Path) -> Iterator[Finding]:
    if key in SECRETS:
        yield from _secret(path)
    else:
        yield from certificates(path)


def _secret(path: Path) -> Iterator[Finding]:
    try:
        about = path.stat()
    except OSError as problem:
        yield error(str(path), f"cannot be examined: {problem.strerror}")
        return
    mode = stat.S_IMODE(about.st_mode)
    if mode & 0o007:
        yield error(str(path), f"mode {mode:04o}: all users of this machine can use it; run: chmod o= {path}")
    elif mode & 0o020:
        yield warning(str(path), f"mode {mode:04o}: its group can change it")
    elif about.st_uid not in (0, os.geteuid()):
        yield ok(str(path), f"mode {mode:04o}, of the user with the id {about.st_uid}")
    else:
        yield ok(str(path), f"mode {mode:04o}")


def certificates(path: Path) -> Iterator[Finding]:
    """Yield the findings about the certificates in a PEM file: the one that expires first."""
    try:
        with path.open("rb") as file:
            data = file.read(MAX_FILE)
    except OSError as problem:
        yield error(str(path), f"cannot be read: {problem.strerror}")
        return
    try:
        ends = [x509.load_pem_x509_certificate(pem).not_valid_after_utc.timestamp() for pem in _PEM.findall(data)]
    except ValueError as problem:
        yield error(str(path), f"has a certificate that cannot be read: {problem}")
        return
    if ends:
        yield expiry(str(path), min(ends), time.time())
    else:
        yield error(str(path), "has no certificate in PEM")


def expiry(what: str, ends: float, now: float) -> Finding:
    """Return the finding about a certificate that ends at a time, in seconds since the epoch."""
    day = time.strftime("%Y-%m-%d", time.gmtime(ends))
    if ends <= now:
        return error(what, f"expired on {day}")
    if ends - now < SOON:
        return warning(what, f"expires on {day}, in {(ends - now) / 86_400:.0f} days")
    return ok(what, f"valid until {day}")


# The running broker: its answers, its readiness, its clock.

SKEW, FAR = 5.0, 60.0
"""Seconds by which two clocks may differ before it is a warning, and an error: tokens expire by the second, and
times in logs of several machines are compared."""

VERIFY_SECONDS = 900.0
"""Limit of time of a verification, in seconds: a store in PostgreSQL may have some gigabytes."""

SHOWN = 5
"""Damaged rows of one store that are named."""


async def examine_broker(client: ApiClient, verify: bool = False) -> Sequence[Finding]:
    """Return the findings. The first one is an error if the broker does not answer. ``verify``: also those about the
    rows of its stores."""
    try:
        begun = time.time()
        health = await client.request("GET", "/healthz")
        health.value()
    except Failure as failure:
        return [error("broker", str(failure))]
    took = time.time() - begun
    found = [ok("broker", f"{client.where} answers in {1000 * took:.0f} ms")]
    if client.certificate_ends is not None:
        found.append(expiry(f"certificate of {client.where}", client.certificate_ends, time.time()))
    found += _skew(health, begun + took / 2)
    try:
        answer = await client.request("GET", "/readyz")
        ready = mapping(answer.json() if answer.status in (200, 503) else answer.value())
    except Failure as failure:
        return [*found, error("readiness", str(failure))]
    for key, weight in (("reasons", error), ("degraded", warning)):
        reasons = ready.get(key)
        found += [
            weight(text(reason.get("what")), text(reason.get("reason")))
            for reason in (reasons if isinstance(reasons, list) else [])
            if isinstance(reason, dict)
        ]
    if ready.get("ready") is True:
        found.append(ok("readiness", "ready: all listeners are open, and the state is stored"))
    try:
        about = mapping(await client.get("/v1/status"))
        found.append(ok("version", f"elkobroker {text(about.get('version'))}"))
    except Failure as failure:
        weight = warning if failure.code is Exit.DENIED else error
        found.append(weight("status", str(failure)))
    found += await _machine(client)
    found += await _addresses(client)
    found += await _cluster(client)
    found += await _bridges(client)
    if verify:
        found += await _verified(client)
    return found


async def _machine(client: ApiClient) -> Sequence[Finding]:
    """Return the findings about limits and disk of the broker's machine."""
    try:
        about = mapping(await client.get("/v1/machine"))
    except Failure:
        return []  # an older broker, or one that does not permit it
    limit, used, backlog, free = (about.get(each) for each in ("descriptors", "open", "somaxconn", "free"))
    found = []
    if isinstance(limit, int):
        enough = limit >= FEW_DESCRIPTORS and (not isinstance(used, int) or used < FULL * limit)
        found.append(_descriptors(enough, f"{text(used)} of {limit} are open at the broker"))
    if isinstance(backlog, int):
        found.append(_backlog(backlog))
    if isinstance(free, int):
        found.append(_disk(f"disk of {text(about.get('disk'))}", free))
    return found


async def _cluster(client: ApiClient) -> Sequence[Finding]:
    """Return the findings about the brokers and the members of etcd of a cluster; none for a broker alone."""
    try:
        about = mapping(await client.get("/v1/cluster"))
        if about.get("clustered") is not True:
            return []
        etcd = rows(await client.get("/v1/views/cluster/etcd"))
    except Failure:
        return []  # an older broker, or one that does not permit it: the readiness has the faults
    members = rows(about, "members")
    apart = [text(each.get("member")) for each in members if not (each.get("here") or each.get("linked"))]
    if apart:
        found = [warning("cluster", f"no link is open to {', '.join(apart)}: messages of topics do not pass")]
    else:
        found = [ok("cluster", f"{len(members)} brokers, with open links")]
    for each in etcd:
        what, clock = f"etcd {text(each.get('endpoint'))}", each.get("clock")
        if isinstance(clock, int | float) and abs(clock) > SKEW:
            found.append(
                warning(what, f"its clock is {clock:+.0f} s from that of the broker: certificates expire by it")
            )
        if each.get("defragment") is True:
            found.append(warning(what, "less than half of its database is in use: run etcdctl defrag at it"))
        if each.get("state") == "healthy":
            found.append(ok(what, "healthy"))
    return found


async def _bridges(client: ApiClient) -> Sequence[Finding]:
    """Return the findings about the bridges that are up; the readiness has those that are not."""
    try:
        bridges = rows(await client.get("/v1/views/broker/bridges"))
    except Failure:
        return []  # an older broker, or one that does not permit it
    found = []
    for each in (each for each in bridges if each.get("state") == "up"):
        sides = f"{text(each.get('services_in'))} services come, {text(each.get('services_out'))} go"
        refused = f"{text(each.get('refused'))} were refused, the last one because {text(each.get('error'))}"
        weight = warning if each.get("refused") else ok
        found.append(
            weight(f"bridge {text(each.get('name'))}", f"{sides}; {refused}" if each.get("refused") else sides)
        )
    return found


ADDRESSES = 1_000
"""Services whose addresses are examined: one answer."""


TRIED, TRIERS = 200, 20
"""Services to which a connection is tried, and those at a time: ten seconds if none answers."""

CONNECT = 1.0
"""Seconds for a connection to a service."""


def _unreachable(hostport: str) -> str:
    """Return the reason why this machine cannot connect to a service, as a remark; empty if it can, or gets no answer:
    a service behind a firewall may serve others."""
    host, _, port = hostport.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), CONNECT).close()
    except (socket.gaierror, UnicodeError):
        return "the name of its host cannot be looked up at this machine"
    except ConnectionRefusedError:
        return "nothing listens on its port: the connection is refused"
    except (OSError, ValueError, OverflowError):
        pass
    return ""


async def _addresses(client: ApiClient) -> Sequence[Finding]:
    """Return the findings about addresses of services that do not serve every client: one for each remark."""
    try:
        services = rows(await client.get("/v1/services", {"limit": ADDRESSES, "sort": "service"}))
    except Failure:
        # A user who may not see them: the state itself has been reported.
        return []
    marked = [each for each in services if isinstance(each.get("remark"), str)]
    # Those of the broker itself, provider 0, are its listeners: a connection to a full one would displace a peer.
    others = [
        each
        for each in services
        if "remark" not in each and each.get("protocol") == "tcp" and each.get("provider") != 0
    ][:TRIED]
    with ThreadPoolExecutor(TRIERS) as pool:
        causes = pool.map(_unreachable, [text(each.get("hostport")) for each in others])
        marked += [{**each, "remark": cause} for each, cause in zip(others, causes, strict=True) if cause]
    first = {each["remark"]: each for each in reversed(marked)}
    counts = Counter(each["remark"] for each in marked)
    return [
        warning(
            "addresses",
            f"{text(first[remark].get('service'))} at {text(first[remark].get('hostport'))}"
            f"{f' and {count - 1} more' if count > 1 else ''}: {text(remark)}",
        )
        for remark, count in counts.items()
    ]


async def _verified(client: ApiClient) -> Sequence[Finding]:
    """Return the findings about the checksums of the broker's stores."""
    try:
        answer = await client.request("GET", "/v1/verification", timeout=VERIFY_SECONDS)
        stores = mapping(answer.value()).get("stores")
    except Failure as failure:
        return [error("verification", str(failure))]
    found = []
    for each in stores if isinstance(stores, list) else []:
        store = mapping(each)
        what = f"verification of {text(store.get('store'))}"
        rows, damaged, named = store.get("rows"), store.get("damaged"), store.get("named")
        if damaged == 0:
            found.append(ok(what, f"{text(rows)} rows match their checksums"))
        else:
            first = ", ".join(map(text, named[:SHOWN])) if isinstance(named, list) else ""
            more = ", ..." if isinstance(named, list) and len(named) > SHOWN else ""
            told = f"{text(damaged)} of {text(rows)} rows were changed on the disk ({first}{more})"
            found.append(error(what, f"{told}. The next start does not use them; examine the disk and the memory"))
        if aside := store.get("aside"):
            found.append(warning(what, f"{text(aside)} damaged rows are kept in its table damaged"))
    return found


def _skew(answer: Answer, now: float) -> list[Finding]:
    try:
        there = email.utils.parsedate_to_datetime(answer.headers.get("date", "")).timestamp()
    except (ValueError, TypeError, OverflowError):
        return []
    # The field has whole seconds, without the rest.
    skew = max(0.0, abs(there + 0.5 - now) - 0.5)
    if skew > FAR:
        return [error("clocks", f"that of the broker differs from that of this machine by {skew:.0f} s")]
    if skew > SKEW:
        return [warning("clocks", f"that of the broker differs from that of this machine by {skew:.0f} s")]
    return [ok("clocks", "the broker has the time of this machine")]
