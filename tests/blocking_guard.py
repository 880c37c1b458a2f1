"""A guard that reports what blocks the thread of a reactor that serves: system calls by audit hooks and wrappers.

`broker.blocking` sees the functions that are marked; the guard sees all that wait, those of libraries too. A daemon of
the tests has it, and a report in its log makes the test fail (`tests.integration.daemon`).
"""

from __future__ import annotations

import os
import stat
import sys
import time
import traceback
from collections.abc import Callable
from functools import partial, wraps
from pathlib import Path
from threading import get_ident, main_thread
from types import FrameType
from typing import Any

from twisted.internet.abstract import isIPAddress, isIPv6Address

from broker import blocking

EVENTS = {
    "open", "os.listdir", "os.scandir", "os.remove", "os.rename", "os.mkdir", "os.rmdir", "os.link", "os.symlink",
    "os.truncate", "os.chmod", "os.chown", "fcntl.flock", "fcntl.lockf", "socket.getaddrinfo", "socket.gethostbyname",
    "socket.gethostbyaddr", "sqlite3.connect",
}  # fmt: skip
"""Audit events of calls that may wait."""

WRAPPED = ("stat", "lstat", "statvfs", "access", "replace")
"""Functions of `os` that may wait for a path and have no audit event, or one that C code does not pass."""

SYNCS = ("fsync", "fdatasync")
"""Functions of `os` that wait for the disk of an open file."""

MEMORY = ("/proc/", "/sys/", "/dev/null", "/dev/urandom", "/dev/fd")
"""Paths of files that are on no disk."""

LIBRARIES = ("<frozen importlib", "/linecache.py", "/tokenize.py", "/twisted/internet/unix.py")
"""Code whose files are not the daemon's: a module that is imported at its first use, the lines of a traceback, and the
file of a unix socket, which goes with the port."""


ROOT = f"{Path(__file__).parents[1]}/"

found: list[str] = []
"""Reports of code of the broker that has blocked the reactor of a test."""


UNANSWERED = ".unanswered"
"""Suffix of a pipe that stands for the file system of the file beside it: while it is open for writing, no opening of
that file returns, as on a network file system that does not answer."""


def install() -> None:
    """Watch this process, a daemon, from now on."""
    _watch(blocking.must_not_block, blocking.report)
    sys.addaudithook(_wait_for_the_file_system)


def _wait_for_the_file_system(event: str, arguments: tuple[Any, ...]) -> None:
    if event == "open" and isinstance(arguments[0], str) and not arguments[0].endswith(UNANSWERED):
        pipe = arguments[0] + UNANSWERED
        if os.path.exists(pipe):
            with open(pipe, "rb") as file:
                file.read()


def fails_a_test() -> None:
    """Watch this process, which runs tests, and collect in `found` what blocks the reactor that a test runs."""

    def served() -> bool:
        reactor = sys.modules.get("twisted.internet.reactor")
        if reactor is None or not reactor.running or get_ident() != main_thread().ident:
            return False
        frame: FrameType | None = sys._getframe(3)
        ours = False
        while frame is not None and frame.f_code.co_name != "mainLoop":
            name = frame.f_code.co_filename
            if name.startswith(f"{ROOT}tests/") or "/twisted/trial/" in name:
                return False  # what a test itself calls, it may wait for
            ours = ours or name.startswith(f"{ROOT}broker/")
            frame = frame.f_back
        return ours and frame is not None

    _watch(served, lambda what: found.append(f"{what}:\n{''.join(traceback.format_stack(limit=16)[:-3])}"))


def _watch(must_not_block: Callable[[], bool], report: Callable[[str], object]) -> None:
    process = os.getpid()

    def blocks(what: str, path: object = None) -> None:
        # A child that is about to become another program has the hook too.
        if os.getpid() == process and must_not_block() and not _permitted(path):
            report(what if path is None else f"{what} {path!r}")

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        if event in EVENTS:
            blocks(event, arguments[0] if event == "open" or event.startswith(("os.", "socket.")) else None)

    def syncs(name: str) -> Callable[[Any], object]:
        return lambda file: blocks(f"os.{name}")

    sys.addaudithook(hook)
    for name in WRAPPED:
        setattr(os, name, _watched(getattr(os, name), partial(blocks, f"os.{name}")))
    for name in SYNCS:
        setattr(os, name, _watched(getattr(os, name), syncs(name)))
    time.sleep = _watched(time.sleep, lambda seconds: blocks("time.sleep"))  # an audit event since Python 3.13
    os.write = _watched(os.write, lambda file: blocks("os.write") if _waits(file) else None)


def _watched(function: Callable[..., Any], seen: Callable[[Any], object]) -> Callable[..., Any]:
    @wraps(function)
    def watched(*args: Any, **kwargs: Any) -> Any:
        seen(args[0] if args else None)
        return function(*args, **kwargs)

    return watched


def _permitted(path: object) -> bool:
    if isinstance(path, int):  # a file that is open
        return True
    if isinstance(path, bytes):
        path = os.fsdecode(path)
    if isinstance(path, str) and (path.startswith(MEMORY) or isIPAddress(path) or isIPv6Address(path)):
        return True  # the resolution of an address asks nobody
    frame: FrameType | None = sys._getframe(3)
    for _ in range(8):
        if frame is None:
            return False
        if frame.f_code.co_filename.startswith(LIBRARIES[0]) or frame.f_code.co_filename.endswith(LIBRARIES[1:]):
            return True
        frame = frame.f_back
    return False


def _waits(file: Any) -> bool:
    """True for a pipe or a terminal that is not non-blocking."""
    mode = os.fstat(file).st_mode
    return (stat.S_ISFIFO(mode) or stat.S_ISCHR(mode)) and os.get_blocking(file)
