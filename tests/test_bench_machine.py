"""CPU time of a session, as the rows of bench count it."""

import subprocess
import sys

from bench.machine import SessionTime

BURN = 0.3
"""Seconds of CPU time that each process of the session takes on request."""

# A parent that ignores SIGCHLD, as the daemon of Spark's workers, has no time of its children among its own.
SESSION = f"""
import os, signal, sys, time
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
def burn():
    end = time.process_time() + {BURN}
    while time.process_time() < end:
        pass
burn()
print("before", flush=True)
sys.stdin.readline()
burn()
ready, done = os.pipe()
if os.fork() == 0:
    burn()
    os.write(done, b".")
    time.sleep(600)
os.read(ready, 1)
print("after", flush=True)
sys.stdin.readline()
os.killpg(0, signal.SIGKILL)
"""


def test_the_time_of_a_session_is_that_of_its_processes_since_the_start() -> None:
    run = subprocess.Popen(
        [sys.executable, "-c", SESSION],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        start_new_session=True,
        text=True,
    )
    with run:
        assert run.stdin
        assert run.stdout
        assert run.stdout.readline() == "before\n"
        took, other = SessionTime(run.pid), SessionTime(-1)
        run.stdin.write("\n")
        run.stdin.flush()
        assert run.stdout.readline() == "after\n"
        # Ticks are hundredths of a second, and the burn before the start does not count.
        assert 2 * BURN - 0.1 < took.stop() < 3 * BURN - 0.05
        assert other.stop() == 0
        run.stdin.close()
