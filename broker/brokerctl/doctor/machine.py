"""This machine: limits of the kernel, disk, clock, interpreter and libraries."""

from __future__ import annotations

import ctypes
import os
import platform
import re
import resource
import shutil
import sys
import time
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

from broker.brokerctl.doctor.finding import Finding, error, ok, warning
from broker.brokerctl.output.units import size

DESCRIPTORS = 65_536
"""Descriptors of the shipped unit: one for each connection."""

FEW_DESCRIPTORS = 4_096
"""Below this many, a farm of some thousand peers is refused connections."""

SOMAXCONN = 1_024
"""Connections that wait in the kernel while the broker is busy: after a restart all peers come at once."""

LITTLE_ROOM, NO_ROOM = 1024**3, 64 * 1024**2
"""Bytes free on the disk of the state: below the first, a journal of a day may not fit; below the second, the broker is
near its reserve of 16 MiB, at which durable queues refuse messages."""

MIN_PYTHON = (3, 11)
UNSYNCHRONIZED = 5
"""TIME_ERROR of adjtimex(2): the kernel's clock is not synchronised."""


def examine(state: Path | None) -> Iterator[Finding]:
    """Yield the findings. ``state`` is the state directory of the broker, None if it is not known."""
    yield from _limits()
    if state is not None:
        yield _disk(state)
    yield from _clock()
    yield from _versions()


def _limits() -> Iterator[Finding]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    about = f"{soft} (at most {hard}) in this shell; the shipped unit of systemd sets {DESCRIPTORS}"
    enough = soft == resource.RLIM_INFINITY or soft >= FEW_DESCRIPTORS
    yield ok("file descriptors", about) if enough else warning("file descriptors", f"{about}; raise it by: ulimit -n")
    try:
        backlog = int(Path("/proc/sys/net/core/somaxconn").read_text())
    except (OSError, ValueError):
        return
    if backlog >= SOMAXCONN:
        yield ok("somaxconn", str(backlog))
    else:
        yield warning("somaxconn", f"{backlog}; raise it by: sysctl net.core.somaxconn={SOMAXCONN}")


def _disk(state: Path) -> Finding:
    what = f"disk of {state}"
    if not state.exists():
        return warning(what, "the state directory does not exist yet; the broker makes it")
    try:
        free = shutil.disk_usage(state).free
    except OSError as problem:
        return error(what, f"cannot be examined: {problem.strerror}")
    if not os.access(state, os.W_OK | os.X_OK):
        return warning(what, f"{size(free)} free; this user cannot write there, which the broker's user must")
    if free < NO_ROOM:
        return error(what, f"{size(free)} free: the broker cannot store its state much longer")
    return warning(what, f"{size(free)} free") if free < LITTLE_ROOM else ok(what, f"{size(free)} free")


def _clock() -> Iterator[Finding]:
    installed = Path(__file__).stat().st_mtime
    if time.time() < installed - 86_400:
        now = time.strftime("%Y-%m-%d", time.gmtime())
        yield error("clock", f"this machine believes that it is {now}, which is before brokerctl was installed")
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
