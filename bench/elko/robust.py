"""The effect of hostile peers on the broker and on peers beside them; then a kill, and the state after it.

    python -m bench.elko.robust [--scenarios PATTERN,...] [--connections N] [--seconds S] [--json FILE] [--list]

bench/README.md says what the scenarios are. The exit status is 1 if a goal was missed.
"""

from __future__ import annotations

import json
import random
import re
import statistics
import sys
import time
from argparse import ArgumentParser
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from itertools import cycle, repeat
from math import inf
from pathlib import Path
from tempfile import TemporaryDirectory

import attrs

from bench.common import all_listeners as doors
from bench.common import command, machine, servers, traffic
from bench.common.all_listeners import ANSWERED_WITHIN
from bench.common.figures import KIB, MIB
from bench.common.processes import NICENESS, InProcess
from bench.common.report import table
from bench.common.servers import Server
from bench.common.swarm import Attack, Seen, good_peer, swarm
from bench.elko import messages
from bench.http import hostile_peers as http_doors
from bench.zmtp import hostile_peers as zmtp_doors

INPUT_LIMIT = MIB * 9 // 8 + 192 * KIB
"""Bytes that the unfinished input of a connection may cost: the limit of a line, an eighth more by which a buffer that
grows can be too large, two reads, and small things."""

OUTPUT_LIMIT = 4 * MIB
"""Bytes of output that may wait for a peer that does not read, by default."""

HEAD_START = 1.0
"""Seconds in which the good peer is alone: what it measures then is the machine, not the attack."""

ALONE = 3.0
"""Seconds in which the good peers on all wires are alone."""

SNAPSHOT_WITHIN = 1.0
"""Seconds from the start until a find is answered from the snapshot."""

PROVIDERS = 1_000

DOORS = [*doors.DOORS, *zmtp_doors.DOORS, *http_doors.DOORS]
"""Every costly input that a wire takes."""

CLIENT = messages.auth("hostile")
ADMIN = messages.auth("hostile", "admin")


@attrs.frozen
class Scenario:
    """One kind of hostile peers. ``background`` lets services come and go meanwhile."""

    name: str
    title: str
    attack: Attack
    background: bool = False

    @property
    def each(self) -> int:
        """Bytes of memory that one of them may cost: what the broker's limits for a connection allow."""
        return INPUT_LIMIT if self.attack.reads else INPUT_LIMIT + OUTPUT_LIMIT


# what they send


def noise(number: int) -> Iterator[bytes]:
    """Random bytes; half of the peers authenticate first."""
    source = random.Random(number)
    if number % 2:
        yield CLIENT
    while True:
        yield source.randbytes(source.randint(1, 4_096))


def half(number: int) -> Iterator[bytes]:
    """Half a message and nothing more; or whole ones, a byte at a time."""
    if number % 2:
        yield CLIENT + messages.PING[: len(messages.PING) // 2]
        return
    whole = CLIENT
    while True:
        for byte in whole:
            yield bytes((byte,))
        whole = messages.PING


def long_lines(number: int) -> Iterator[bytes]:
    """A line of 10 MiB; half of the peers authenticate first, and begin it as a message."""
    if number % 2:
        yield CLIENT + b'{"to":"broker", "op":"debug", "msg":"'
    yield from repeat(b"x" * 64 * KIB, 160)


def waiting_finds(number: int) -> Iterator[bytes]:
    """A hundred finds that wait for ever, each for another service."""
    yield CLIENT + b"".join(messages.find(f"never-{number}-{i}", -1) for i in range(100))


def never_reading(number: int) -> Iterator[bytes]:
    """Pings, or requests for all services, whose answers nobody reads."""
    if number % 2:
        yield CLIENT
        yield from repeat(messages.PING * 100)
    else:
        yield ADMIN
        yield from repeat(messages.SERVICEDESC * 10)


def tiny_malformed(number: int) -> Iterator[bytes]:
    """Lines of a few bytes that are no messages."""
    yield CLIENT
    yield from cycle([b"}\n" * 500, b"{]\n\n" * 500, b'{"op":7}\n\n' * 500, b"[]\n" * 500])


_PADDING = b'{to:"broker",op:"ping",x:'
_NESTED = _PADDING + b"[" * 500_000 + b"]" * 500_000 + b"}\n\n"
_TOKENS = _PADDING + b"[" + b"1," * 500_000 + b"1]}\n\n"
_MEMBERS = _PADDING + b"{" + b"".join(b"k%d:0," % i for i in range(100_000)) + b"}}\n\n"
_LINES = b'{to:"broker",\n' + b"x:1,\n" * 200_000
_OPEN_STRINGS = b"{x:'\n" + b"'\n" * 500_000


def lenient(number: int) -> Iterator[bytes]:
    """A mebibyte of JSON that is not strict: nested, of many tokens or members, of many lines, of many strings."""
    yield CLIENT
    yield from repeat([_NESTED, _TOKENS, _MEMBERS, _LINES, _OPEN_STRINGS][number % 5])


def watching(number: int) -> Iterator[bytes]:
    """A watch of services, whose notices nobody reads."""
    yield ADMIN + messages.WATCH_SERVICES


SCENARIOS = [
    Scenario("noise", "random bytes", Attack(noise)),
    Scenario("half", "half messages, or a byte at a time", Attack(half)),
    Scenario("lines", "lines of 10 MiB", Attack(long_lines)),
    Scenario("waits", "100 waiting finds each", Attack(waiting_finds, again=False)),
    Scenario("unread", "never read what they asked for", Attack(never_reading, reads=False), background=True),
    Scenario("malformed", "storms of tiny malformed lines", Attack(tiny_malformed)),
    Scenario("lenient", "1 MiB of lenient JSON", Attack(lenient)),
    Scenario("watchers", "watch services and never read", Attack(watching, reads=False), background=True),
]


def coming_and_going(port: int, seconds: float) -> int:
    """A provider whose thousand services stay, and one whose ten come and go 20 times a second, with long labels."""
    stays = [f"stays-{i:04d}" for i in range(1_000)]
    comes = [f"comes-{i}" for i in range(10)]
    rounds = 0
    with ExitStack() as stack:
        opening = messages.auth("stays") + messages.willserve(stays) + messages.PING
        stack.enter_context(traffic.opened(port, opening, 1))
        sock = stack.enter_context(traffic.opened(port, messages.auth("comes") + messages.PING, 1))
        turn = messages.willserve(comes, label="x" * 1_000) + messages.wontserve(comes) + messages.PING
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            sock.sendall(turn)
            traffic.await_replies(sock, 1)
            rounds += 1
            time.sleep(0.05)
    return rounds


# what is measured


@attrs.frozen
class Outcome:
    """One scenario. Times in seconds, memory in bytes, log lines a minute."""

    scenario: str
    title: str
    median: float
    p99: float
    longest: float
    late: float
    """The share of pings that took over 50 ms."""
    alone_p99: float
    alone_longest: float
    waited: float
    """The share of the time in which the broker could have run, and others had the cores."""
    before: int
    peak: int
    bound: int
    count: int
    lines: float
    repeated: int
    """Log lines beyond one a minute for a peer's address and reason."""
    unexpected: list[str]
    """Log lines that tell of a defect."""
    seen: Seen

    def misses(self) -> list[str]:
        """The goals that were missed."""
        missed = []
        if self.longest > ANSWERED_WITHIN:
            missed.append("slow")
        if self.peak > self.bound:
            missed.append("memory")
        if self.repeated:
            missed.append("log")
        if self.unexpected:
            missed.append("defect")
        return missed

    def cells(self) -> list[str]:
        return [
            self.title,
            *("never" if t == inf else f"{1e3 * t:.1f}" for t in (self.median, self.p99, self.longest)),
            f"{100 * self.late:.1f} %",
            f"{1e3 * self.alone_longest:.1f}",
            f"{100 * self.waited:.0f} %",
            f"{self.before / MIB:.0f}",
            f"{self.peak / MIB:.0f}",
            f"{self.bound / MIB:.0f}",
            f"{(self.peak - self.before) / self.count / KIB:.0f}",
            f"{self.lines:.0f}",
            str(self.seen.connects),
            str(self.seen.disconnects),
            ", ".join(self.misses()) or "met",
        ]


HEADINGS = [
    "hostile peers",
    "median",
    "99 %",
    "longest",
    "over 50 ms",
    "longest alone",
    "no core",
    "MiB before",
    "peak",
    "bound",
    "KiB each",
    "log lines a minute",
    "connects",
    "disconnects",
    "goals",
]

_COMPLAINT = re.compile(r" peer (\S+): ([a-z-]+): ")
_DEFECT = re.compile(r"Traceback|Unhandled|made the broker fail|failed at revision|MemoryError")


def run(scenario: Scenario, count: int, seconds: float) -> Outcome:
    """Attack a fresh broker."""
    with ExitStack() as stack:
        server = stack.enter_context(servers.broker())
        background = None
        if scenario.background:
            background = _started(stack, InProcess(coming_and_going, server.port, HEAD_START + seconds + 1))
        alone = _started(stack, InProcess(good_peer, server.port, HEAD_START)).result(HEAD_START + 30)
        before = server.resident()
        good = _started(stack, InProcess(good_peer, server.port, seconds))
        waited, start = machine.waited_seconds(server.pid), time.monotonic()
        hostile = _started(stack, InProcess(swarm, server.port, scenario.attack, count, seconds, niceness=NICENESS))
        took = good.result(seconds + 30)
        waited = (machine.waited_seconds(server.pid) - waited) / (time.monotonic() - start)
        seen = hostile.result(30)
        if background is not None:
            background.result(30)
        peak = machine.peak_resident(server.pid)
        log = server.log.read_text(errors="replace").splitlines()
    complaints = Counter(match.groups() for line in log if (match := _COMPLAINT.search(line)))
    took.sort()
    return Outcome(
        scenario=scenario.name,
        title=scenario.title,
        median=statistics.median(took),
        p99=took[len(took) * 99 // 100],
        longest=took[-1],
        late=sum(t > ANSWERED_WITHIN for t in took) / len(took),
        alone_p99=sorted(alone)[len(alone) * 99 // 100],
        alone_longest=max(alone),
        waited=waited,
        before=before,
        peak=peak,
        bound=before + count * scenario.each,
        count=count,
        lines=len(log) * 60 / seconds,
        repeated=sum(n - 1 for n in complaints.values()),
        unexpected=[line[:300] for line in log if _DEFECT.search(line)][:5],
        seen=seen,
    )


def _started(stack: ExitStack, process: InProcess) -> InProcess:
    stack.callback(process.stop)
    return process


# kill and restart


@attrs.frozen
class Restart:
    """The state after a kill. Times in seconds from the start of the new process."""

    listening: float
    answered: float
    found: int
    of: int
    last_id: int
    new_id: int

    def misses(self) -> list[str]:
        """The goals that were missed."""
        missed = []
        if self.answered > SNAPSHOT_WITHIN:
            missed.append(f"a find was answered after {self.answered:.2f} s")
        if self.found < self.of:
            missed.append(f"{self.of - self.found} services were forgotten")
        if self.new_id <= self.last_id:
            missed.append(f"provider id {self.new_id} was given before")
        return missed


def kill_and_restart() -> Restart:
    """Kill a broker that has a thousand providers, start it again, and ask the new one for their services."""
    names = [f"server-{i:04d}" for i in range(PROVIDERS)]
    queries = [messages.find(name) for name in names]
    with TemporaryDirectory(prefix="elkobroker-bench-") as directory, ExitStack() as stack:
        old = servers.start_broker(Path(directory))
        stack.callback(old.stop)
        for i, name in enumerate(names):
            opening = messages.auth(name) + messages.willserve([name], f"10.0.0.1:{10_000 + i}", name) + messages.PING
            stack.enter_context(traffic.opened(old.port, opening, 1))
        ids = _providers(_ask(old, queries))
        time.sleep(2.0)  # what was heard within the last half second may be lost by a kill
        old.kill()
        start = time.perf_counter()
        new = servers.start_broker(Path(directory), wait=False)
        stack.callback(new.stop)
        servers.wait_for(new, poll=0.002)
        listening = time.perf_counter() - start
        _ask(new, queries[:1])
        answered = time.perf_counter() - start
        restored = _providers(_ask(new, queries))
        opening = messages.auth("newcomer") + messages.willserve(["newcomer"]) + messages.PING
        stack.enter_context(traffic.opened(new.port, opening, 1))
        newcomer = _providers(_ask(new, [messages.find("newcomer")]))
        return Restart(listening, answered, len(restored & ids), len(ids), max(ids), max(newcomer))


def _ask(server: Server, queries: Sequence[bytes]) -> bytes:
    with traffic.opened(server.port, messages.auth("asker") + messages.PING, 1) as sock:
        sock.sendall(b"".join(queries))
        return traffic.await_replies(sock, len(queries))


def _providers(answers: bytes) -> set[int]:
    """The ids in the descriptors of these answers."""
    blocks = (json.loads(block) for block in answers.decode().split("\n\n") if block)
    return {desc["provider"] for block in blocks for desc in block["desc"] if "failure" not in desc}


def main() -> int:
    arguments = ArgumentParser(description="The Elko broker under hostile peers, and after a kill.")
    arguments.add_argument("--connections", type=int, default=1_000, help="hostile connections at once")
    arguments.add_argument("--seconds", type=float, default=10.0, help="of each scenario")
    titles = {scenario.name: scenario.title for scenario in SCENARIOS}
    titles |= {door.name: f"{door.wire}: {door.title}" for door in DOORS}
    titles["restart"] = "kill -9, and what is known after the next start"
    options, names = command.parsed(arguments, "scenarios", titles)
    about = command.begin()
    outcomes = []
    for scenario in SCENARIOS:
        if scenario.name in names:
            print(f"{scenario.name} ...", file=sys.stderr, flush=True)
            outcomes.append(run(scenario, options.connections, options.seconds))
    shares = []
    for door in DOORS:
        if door.name in names:
            print(f"{door.name} ...", file=sys.stderr, flush=True)
            shares.append(doors.measure(door, options.connections, options.seconds, ALONE))
    restart = None
    if "restart" in names:
        print("restart ...", file=sys.stderr, flush=True)
        restart = kill_and_restart()
    print(f"load average at the end: {machine.load_average()}\n")
    if outcomes:
        print("Milliseconds that a good peer's pings took; memory in MiB.\n")
        print(table(HEADINGS, [outcome.cells() for outcome in outcomes]))
        for outcome in outcomes:
            for line in outcome.unexpected:
                print(f"{outcome.scenario}: log: {line}")
    if shares:
        print("\nOf its share of pings answered within 50 ms, what a good peer on each wire keeps beside the attack.\n")
        print(table(doors.HEADINGS, [each.cells() for each in shares]))
        for each in shares:
            for line in each.unexpected:
                print(f"{each.door.name}: log: {line}")
    if restart is not None:
        print(
            f"\nAfter kill -9 with {restart.of} providers: listening after {restart.listening:.2f} s, a find answered "
            f"after {restart.answered:.2f} s, {restart.found} services known, next provider id {restart.new_id} "
            f"(last before: {restart.last_id}): {'; '.join(restart.misses()) or 'met'}"
        )
    command.write(
        options.json,
        about,
        scenarios=[attrs.asdict(o) for o in outcomes],
        # Without the functions that make the peers: they have no form in JSON.
        doors=[
            attrs.asdict(each, filter=lambda _, value: not callable(value)) | {"kept": each.kept} for each in shares
        ],
        restart=restart and attrs.asdict(restart),
    )
    missed = [each.misses() for each in outcomes] + [each.misses() for each in shares]
    if restart is not None:
        missed.append(restart.misses())
    return 1 if any(missed) else 0


if __name__ == "__main__":
    sys.exit(main())
