"""One stranger, whatever it sends and does not read, makes the daemon grow by a bounded amount, which is given back
within 30 s.

The figures are those of the kernel: resident memory at its peak, and afterwards.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import attrs
import pytest

from bench.machine import forget_peak, peak_resident, resident, waited_seconds
from broker.client.blocking import Client
from tests.contract.newcomers import DOORS
from tests.contract.strangers import ATTACKS, CURVE_ATTACKS, Attack, Size, Stranger, alive, port, register
from tests.integration.configurations import curve_listeners, every_listener
from tests.integration.daemon import Daemon
from tests.integration.mc0_clients import whole_log
from tests.patience import PATIENCE, until

MEBIBYTE = 1024 * 1024

SMALL = Size(connections=50, sent=400_000, services=20)
"""An everyday attack: 20 MB, of which the daemon of these tests may hold a fifth."""

SMALL_BUDGET, SMALL_GROWTH = 3 * MEBIBYTE, 10 * MEBIBYTE
"""The budget of an address in these tests, and the growth of the process that is permitted with it: its connections and
the buffers of the kernel's reads come on top."""

TWENTY = tuple(f"127.0.3.{number}" for number in range(1, 21))
TOTAL_BUDGET, TOTAL_GROWTH = 12 * MEBIBYTE, 24 * MEBIBYTE
"""The budget of all addresses together in tests with twenty of them, a fifth of their own budgets, and the growth that
is permitted with it."""

KEEPING = "[log]\ncollect = true\n[broker]\nlast_values = true\n"
"""The configuration that keeps most of what is published."""

LARGE = Size(connections=250, sent=1_000_000, services=60)
GROWTH = 64 * MEBIBYTE
"""With the default budget: the growth of the process for any attack."""

GIVEN_BACK = 30.0
"""Seconds from the end of an attack until its memory is given back. Time in which the daemon was ready to run, but
other processes ran instead, does not count."""

LEFT = 6 * MEBIBYTE
"""Bytes that may stay: heaps are given back in whole pages only, and caches are filled by the first use of a wire."""

LEFT_OF_MANY = 24 * MEBIBYTE
"""The same after a long attack: what is left of small objects takes whole pages, and tables that were large once stay
so."""


def visit(daemon: Daemon, attack: Attack, size: Size, *sources: str) -> None:
    """Send an attack, and close its connections."""
    stranger = Stranger(daemon, attack, size, *sources)
    try:
        stranger.send()
    finally:
        stranger.close()


def warm_up(daemon: Daemon, services: int) -> None:
    """Send each attack once in a small way: what a wire loads and caches at its first use is no growth."""
    for attack in ATTACKS.values():
        visit(daemon, attack, Size(1, 1_000, services))


def gives_back(pid: int, bound: int) -> None:
    """Assert that at most ``bound`` bytes are resident within the permitted time from now on."""
    start = time.monotonic() - waited_seconds(pid)
    until(lambda: resident(pid) <= bound)
    took = time.monotonic() - waited_seconds(pid) - start
    assert took <= GIVEN_BACK


OWN_FILES = 10
"""Files that a daemon may open during an attack for itself, such as that of its journal: far fewer than connections."""


def descriptors(pid: int) -> int:
    """The number of open files of a process, its connections included."""
    return len(list(Path(f"/proc/{pid}/fd").iterdir()))


def attacked(daemon: Daemon, attack: Attack, size: Size, left: int, *sources: str) -> int:
    """Attack a daemon, and assert that at most ``left`` bytes more than before are resident soon after its end.

    Returns by how much it grew at most, the time until its end included: what the kernel holds is read until then.
    """
    pid = daemon.process.pid
    alive(daemon)
    before = resident(pid)
    forget_peak(pid)
    visit(daemon, attack, size, *sources)
    gives_back(pid, before + left)
    return peak_resident(pid) - before


def in_order(daemon: Daemon) -> None:
    """End a daemon, which must have had no failure."""
    daemon.signal(signal.SIGTERM)
    log = whole_log(daemon)
    assert "Traceback" not in log, log[log.index("Traceback") :]
    assert " critical " not in log


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    """A daemon with a small budget for each address."""
    directory = tmp_path_factory.mktemp("small")
    with Daemon(directory, *every_listener(directory, f"{KEEPING}memory_per_address = {SMALL_BUDGET}\n")) as daemon:
        kept = register(daemon, SMALL.services)
        warm_up(daemon, SMALL.services)
        yield daemon
        for each in kept:
            each.close()
        in_order(daemon)


def test_every_door_is_attacked() -> None:
    assert {attack.wire for attack in ATTACKS.values()} == {*DOORS, "mtl-data"}


ONE_OF_EACH = {attack.wire: name for name, attack in reversed(ATTACKS.items())}.values()
"""The first attack on each wire: those that are run each time."""


def attacks(everyday: Iterable[str]) -> list[Any]:
    """Return all attacks as parameters. Those that are not among ``everyday`` are marked long."""
    return [name if name in everyday else pytest.param(name, marks=pytest.mark.long) for name in ATTACKS]


@pytest.mark.parametrize("name", attacks(ONE_OF_EACH))
def test_a_stranger_takes_a_bounded_amount_of_memory_and_leaves_it(small: Daemon, name: str) -> None:
    assert attacked(small, ATTACKS[name], SMALL, LEFT) <= SMALL_GROWTH


@pytest.fixture
def together(tmp_path: Path) -> Iterator[Daemon]:
    """A daemon with a small budget for all addresses together, for one attack: much of it may be stored afterwards."""
    limits = f"{KEEPING}memory_per_address = {SMALL_BUDGET}\nmemory = {TOTAL_BUDGET}\n"
    with Daemon(tmp_path, *every_listener(tmp_path, limits)) as daemon:
        kept = register(daemon, SMALL.services)
        yield daemon
        for each in kept:
            each.close()
        in_order(daemon)


EVERYDAY = ("dbp-lists", "mc0-own", "websocket-fragments", "poll-body")
"""The attacks from many addresses that are run each time."""


@pytest.mark.parametrize("name", attacks(EVERYDAY))
def test_twenty_strangers_together_take_a_bounded_amount_of_memory_and_leave_it(together: Daemon, name: str) -> None:
    size = attrs.evolve(SMALL, connections=5 * len(TWENTY))
    visit(together, ATTACKS[name], Size(1, 1_000, SMALL.services), "127.0.3.99")
    left = (TOTAL_BUDGET if name in STORING else 0) + 2 * LEFT
    assert attacked(together, ATTACKS[name], size, left, *TWENTY) <= TOTAL_GROWTH


@pytest.fixture
def default(tmp_path: Path) -> Iterator[Daemon]:
    """A daemon with the default budget, for one attack: what an earlier one has left in the heap is not its growth."""
    with Daemon(tmp_path, *every_listener(tmp_path, KEEPING)) as daemon:
        kept = register(daemon, LARGE.services)
        yield daemon
        for each in kept:
            each.close()
        in_order(daemon)


LARGEST = (
    *(
        "mc0-frame",
        "mc0-last-values",
        "mc0-logs",
        "mtl-queued",
        "mtl-requests",
        "mtl-summons",
        "elko-waits",
        "elko-offers",
        "elko-block",
    ),
    *("director-contexts", "director-users", "director-reservations", "poll-body", "rtcp-block", "http-queue-puts"),
)
"""The attacks with the largest growth. The others have a third of the bound at most, and are in the sequence only."""


@pytest.mark.long
@pytest.mark.parametrize("name", LARGEST)
def test_a_large_attack_stays_within_64_mebibytes_and_leaves_them(default: Daemon, name: str) -> None:
    assert attacked(default, ATTACKS[name], LARGE, LEFT_OF_MANY) <= GROWTH


STORING = (
    *(
        "dbp-services",
        "dbp-changing-lists",
        "mc0-topics",
        "mc0-last-values",
        "mc0-logs",
        "mtl-queued",
        "mtl-queued-small",
        "mtl-delayed",
        "mtl-queues",
        "mtl-retained",
        "mtl-requests",
    ),
    *("http-services", "http-short-services", "http-queue-puts", "http-last-values"),
)
"""Attacks of which something stays. They come last in a sequence: the others have less room beside it."""

RETAINED = ("mc0-last-values", "http-last-values", "mc0-logs", "mtl-delayed")
"""Attacks on what is kept for later readers: together they would fill its shares, which stay."""

IN_SEQUENCE = tuple(
    name for name in (*(each for each in ATTACKS if each not in STORING), *STORING) if name not in RETAINED
)


@pytest.mark.long
def test_one_stranger_that_makes_all_attacks_in_sequence_leaves_the_memory_each_time(default: Daemon) -> None:
    pid = default.process.pid
    warm_up(default, LARGE.services)
    alive(default)
    idle, open_files = resident(pid), descriptors(pid)
    for name in IN_SEQUENCE:
        visit(default, ATTACKS[name], LARGE, "127.0.2.1")
        gives_back(pid, idle + GROWTH)
        # What the kernel still holds of an attack takes up to 30 s of CPU time, and is none of the next one's.
        until(lambda: descriptors(pid) <= open_files + OWN_FILES)


@pytest.fixture(scope="module")
def curve(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    """A daemon with CURVE."""
    directory = tmp_path_factory.mktemp("curve")
    with Daemon(directory, *curve_listeners(directory)) as daemon:
        for attack in CURVE_ATTACKS.values():
            visit(daemon, attack, Size(1, 1_000, 0))
        yield daemon
        in_order(daemon)


@pytest.mark.long
@pytest.mark.parametrize("name", CURVE_ATTACKS)
def test_a_stranger_over_curve_takes_a_bounded_amount_of_memory_and_leaves_it(curve: Daemon, name: str) -> None:
    assert attacked(curve, CURVE_ATTACKS[name], attrs.evolve(LARGE, connections=100), 2 * LEFT) <= GROWTH


DURABLE = 25_000
"""Durable messages of 10 KiB: 250 MB, which are in memory while they wait."""


@pytest.mark.long
def test_durable_messages_leave_no_memory_when_they_have_been_drained(tmp_path: Path) -> None:
    queue = '[[mtl.queues]]\nqueues = ["jobs"]\ndurable = true\nsize = 1_000_000_000\n'
    with Daemon(tmp_path, *every_listener(tmp_path, queue)) as daemon:
        pid = daemon.process.pid
        alive(daemon)
        before = resident(pid)
        forget_peak(pid)
        with Client(f"tcp://127.0.0.1:{port(daemon, 'mtl')}") as client:
            writer, body = client.write("queue", ["jobs"]), bytes(10 * 1_024)
            for _ in range(DURABLE):
                writer.post(body)
            writer.flush()
            reader = client.read("queue", ["jobs"], confirm="full", window=100)
            for _ in range(DURABLE):
                reader.take(PATIENCE).confirm()
        assert peak_resident(pid) - before > DURABLE * len(body) // 2
        gives_back(pid, before + LEFT_OF_MANY)
        in_order(daemon)
