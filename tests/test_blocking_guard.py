"""The guard of the tests itself: each call that waits is reported, in the thread of a reactor that serves."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.integration.daemon import ROOT, environment
from tests.patience import PATIENCE

CALLS = {
    "open": "open('/etc/hostname')",
    "os.listdir": "os.listdir('/')",
    "os.rename": "os.rename('a', 'b')",
    "os.remove": "os.remove('b')",
    "socket.getaddrinfo": "socket.getaddrinfo('localhost', 80)",
    "os.fsync": "os.fsync(file)",
    "os.fdatasync": "os.fdatasync(file)",
    "os.stat": "os.stat('/etc')",
    "sqlite3.connect": "sqlite3.connect('x')",
    "time.sleep": "time.sleep(0)",
    "os.write": "os.write(pipe, b'x')",
}
"""Calls that wait, by the name under which they are reported."""

PERMITTED = (
    "open('/proc/self/stat')",
    "socket.getaddrinfo('127.0.0.1', 80)",
    "os.write(unblocked, b'x')",
    "os.write(file, b'x')",
    "open(os.dup(file))",
)

REACTOR = """
import os, socket, sqlite3, sys, threading, time
from twisted.internet import reactor
from broker import blocking
from tests import blocking_guard

blocking_guard.install()
file = os.open("a", os.O_RDWR | os.O_CREAT)
(_, pipe), (_, unblocked) = os.pipe(), os.pipe()
os.set_blocking(unblocked, False)
calls, seen = sys.argv[1:], []

def call(text):
    try:
        eval(text)
    except OSError:
        pass

def serve():
    blocking.serve(lambda what, stack: seen.append(what))
    for text in calls:
        del seen[:]
        thread = threading.Thread(target=call, args=(text,))
        thread.start()
        thread.join()
        assert not seen, f"{seen} in another thread"
        call(text)
        sys.stderr.write(f"{seen[0].split()[0] if seen else None}\\n")
    blocking.ended()
    del seen[:]
    time.sleep(0)
    assert not seen, "after the end"
    reactor.stop()

reactor.callWhenRunning(serve)
reactor.run()
"""
"""Writes the first report of each call to the standard error."""


def reported(directory: Path, *calls: str) -> list[str]:
    run = subprocess.run(
        [sys.executable, "-c", REACTOR, *calls],
        cwd=directory,
        env=environment(PYTHONPATH=str(ROOT)),
        stderr=subprocess.PIPE,
        text=True,
        timeout=PATIENCE,
        check=True,
    )
    return run.stderr.splitlines()


def test_each_call_that_waits_is_reported_in_the_thread_of_the_reactor_alone(tmp_path: Path) -> None:
    assert reported(tmp_path, *CALLS.values()) == list(CALLS)


def test_calls_that_wait_for_nothing_are_permitted(tmp_path: Path) -> None:
    assert reported(tmp_path, *PERMITTED) == ["None"] * len(PERMITTED)
