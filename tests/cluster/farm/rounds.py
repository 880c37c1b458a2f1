"""Rounds of faults on a farm of three brokers and three members of etcd, each on a host of its own, under load.

    python -m tests.cluster.farm.rounds --seed 1 --rounds 100 --providers 1000

Half of the rounds have an outage of etcd for all brokers. During the faults, finds at each broker must not miss a
provider that is registered and whose broker is in touch, nor, in an outage, one that was registered before it. After
them, within the settling time, all registries must be equal, with every live provider and no other. Confirmed messages
of queues are accounted for, and messages of a topic keep their order and arrive again everywhere. It prints one line of
JSON for each round, and exits with status 1 if anything was wrong.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

from twisted.internet import reactor as _reactor
from twisted.internet.defer import Deferred, gatherResults
from twisted.internet.task import deferLater
from twisted.internet.threads import deferToThread

from tests.cluster.farm.faults import Fault, Round, schedule, upgrade
from tests.cluster.farm.finders import Finder
from tests.cluster.farm.history_clients import HistoryClients
from tests.cluster.farm.hosts import Hosts
from tests.cluster.farm.providers import Provider, providers
from tests.cluster.farm.traffic import QueueTraffic, TopicTraffic
from tests.cluster.queue_load import QUEUES
from tests.cluster.real_etcd import Member
from tests.packages import program

reactor: Any = _reactor

FRESH = 3.0
"""Seconds after which a registration must be known everywhere, and a broker that was started must know all others. In a
healthy farm it takes less than a tenth of a second; a transaction may wait for etcd's leader."""

LATE = 0.5
"""Seconds by which this process may be late: where it is later, the machine has too much to do for the times here."""

MARGIN = 2.5
"""Seconds before the end of the TTL from which on entries of a broker out of touch may be gone: its last renewal of the
lease was up to a quarter of the TTL before, and the clients' own detection takes as long."""

NOTICE = 2.0
"""Seconds within which a provider notices the end of its session."""

ELECTION = 4.0
"""Seconds after which etcd has a leader again, and brokers that had lost it are members again."""

MOVING = 0.2
"""Share of the providers that change their broker in a round."""

LOOK = 0.25
"""Seconds between two looks at what is waited for."""

START = 240.0
"""Seconds for the start of the farm: three brokers and a thousand providers on two cores that have other work too."""


class Farm:
    """The farm of the rounds."""

    def __init__(self, hosts: Hosts, count: int, seed: int, ttl: float) -> None:
        self.hosts = hosts
        self.ttl = ttl
        brokers = list(hosts.brokers.values())
        self.providers = providers(count, brokers, random.Random(seed))
        self._rng = random.Random(seed)
        self.by_place = {(each.name, each.place): each for each in self.providers}
        names = dict.fromkeys(each.name for each in self.providers)
        self.finders = [Finder(each, names, self.check) for each in brokers]
        self.queues = QueueTraffic(brokers)
        self.topic = TopicTraffic(brokers)
        self.clients = HistoryClients(brokers, seed, 2 * ttl + 3.0)
        self.missed: list[str] = []
        self.looks = self.given_up = 0
        self.required: list[int] = []
        """Number of the providers that each look had to see, of those that could be judged."""
        self._out: dict[str, float] = {}
        """Brokers that are out of touch with etcd now, with the time since when."""
        self._cuts: dict[str, tuple[float, float]] = {}
        """Begin and end of the last time for which a broker was out of touch: what registers then is known later."""
        self._back: dict[str, float] = {}
        """Brokers that were out of touch for about the TTL or longer, with the time of their return."""
        self._killed: dict[str, float] = {}
        """Brokers that were killed or stopped, with the last time of that."""
        self._late = 0.0
        """Time at which this process was late for the last time."""
        self._unsure = 0.0
        """Time until which etcd may be away, or have no leader: then nothing new is known anywhere. Infinite during a
        fault of etcd."""
        self._unsure_from = 0.0
        """Begin of the last fault of etcd: registrations since then wait for a leader, and for their broker."""

    async def start(self) -> None:
        """Start etcd, the brokers and the providers; returns when all registries are equal and complete."""
        self._measure(time.monotonic())
        members = list(self.hosts.etcds.values())
        for member in members:
            member.start()
        await wait(lambda: all(each.healthy() for each in members), START, "etcd", threaded=True)
        for broker in self.hosts.brokers.values():
            broker.start()
        for finder in self.finders:
            finder.start()

        def answer() -> bool:
            ended = [name for name, each in self.hosts.brokers.items() if not each.running]
            assert not ended, f"brokers ended at the start: {ended}"
            return all(finder.looks for finder in self.finders)

        await wait(answer, START, "the brokers")
        for number, each in enumerate(self.providers):
            reactor.callLater(number * 0.01, each.start)
        await wait(lambda: not self.differences(), START + 0.05 * len(self.providers), self.differences)
        self.topic.start()
        await deferToThread(self.queues.start)
        self.clients.start()

    async def stop(self) -> None:
        """End the traffic, the finders and the providers."""
        await deferToThread(self.clients.stop)
        await deferToThread(self.queues.stop)
        if self.topic.is_alive():
            await deferToThread(self.topic.stop)
        for finder in self.finders:
            finder.stop()
        for each in self.providers:
            each.stop()
        await deferLater(reactor, 1.0)

    # what must be

    def differences(self) -> str:
        """Return "" if all registries are equal and have all providers and no other; otherwise a sentence."""
        now = time.monotonic()
        unregistered = [each for each in self.providers if each.holder is None]
        if unregistered:
            return f"{len(unregistered)} providers are not registered, such as {_named(unregistered[0])}"
        live = set(self.by_place)
        for finder in self.finders:
            if finder.up == 0.0 or now - finder.seen > 2.0:
                return f"{finder.broker.name} does not answer"
            found = Counter((name, place) for name, place, _ in finder.services)
            if missing := live - set(found):
                return f"{finder.broker.name} misses {len(missing)}, such as {sorted(missing)[:3]}"
            if dead := set(found) - live:
                return f"{finder.broker.name} has {len(dead)} that are dead, such as {sorted(dead)[:3]}"
            if twice := [each for each, count in found.items() if count > 1]:
                return f"{finder.broker.name} has {len(twice)} twice, such as {sorted(twice)[:3]}"
            if finder.found != live:
                return f"{finder.broker.name} finds {sorted(finder.found ^ live)[:3]} not as they are"
        first = self.finders[0]
        for finder in self.finders[1:]:
            if finder.services != first.services:
                pairs = zip(finder.services, first.services, strict=False)
                unlike = [each for each in pairs if each[0] != each[1]]
                return f"{finder.broker.name} and {first.broker.name} differ, such as {unlike[:3]}"
        return self.queues.waiting() or (self.topic.waiting() if self.topic.is_alive() else "")

    def _measure(self, due: float) -> None:
        """Note whether this process is late."""
        now = time.monotonic()
        if now - due > LATE:
            self._late = now
            self.clients.fault(False)
        reactor.callLater(LATE, self._measure, now + LATE)

    def check(self, finder: Finder) -> None:
        """Note what a finder misses that it must see.

        The answer is of a moment between the request and its arrival: a broker that is paused answers later.
        """
        self.looks += 1
        asked, seen = finder.asked, finder.seen
        name = finder.broker.name
        if seen - self._late < FRESH + NOTICE:
            return
        if asked - finder.up < FRESH or not (self._in_touch(name, asked) and self._in_touch(name, seen)):
            return
        found = finder.found
        required = [
            (key, each)
            for key, each in self.by_place.items()
            if self._required(each, asked, name) and self._required(each, seen, name)
        ]
        missing = [each for key, each in required if key not in found]
        for each in missing:
            reactor.callLater(NOTICE, self._confirm, finder, each, asked, seen)
        self.required.append(len(required))

    def _confirm(self, finder: Finder, each: Provider, asked: float, seen: float) -> None:
        """Count a miss, unless the provider has noticed by now that its broker had ended its session at that time.

        While its broker is dead, it may have been registered at another one, and have left that before the answer: then
        the entry of the dead broker has been replaced, and the provider has withdrawn itself. These count apart.
        """
        name = finder.broker.name
        if not (self._required(each, asked, name) and self._required(each, seen, name)):
            return
        settled = each.holder is not None and each.since <= asked - FRESH
        if not settled and each.lost < each.unanswered:
            self.given_up += 1
        else:
            self.missed.append(f"{finder.broker.name} misses {_named(each)} at {asked:.2f}")

    def _required(self, each: Provider, now: float, finder: str) -> bool:
        """True if a broker that is in touch must know a provider."""
        if each.first == 0.0 or now - each.first < FRESH:
            return False
        for broker in (each.holder, finder):
            begin, end = self._cuts.get(broker or "", (0.0, 0.0))
            if each.since > begin - FRESH and now < end + ELECTION:
                return False
        if now < self._unsure + FRESH and (each.holder is None or each.since > self._unsure_from - FRESH):
            return False
        if each.holder is None or each.since > now - FRESH:
            if each.left or each.held < FRESH:
                return False  # it ended its session itself, or that may not have been published before the kill
            # A session that ends at a living broker takes its services along. If its broker was killed, they stay until
            # the lease ends, and the provider is back before.
            killed = self._killed.get(each.last_holder if each.holder is None else each.previous_holder, -1e9)
            return abs(each.lost - killed) < 2 * NOTICE and killed < now < killed + self.ttl - MARGIN
        return self._in_touch(each.holder, now)

    def _in_touch(self, broker: str, now: float) -> bool:
        """True unless a broker is out of touch for so long that the others may have dropped its entries, or was."""
        if now - self._out.get(broker, now) > self.ttl - MARGIN - 2.0:
            return False
        return now - self._back.get(broker, -1e9) > 2 * self.ttl

    # faults

    async def run(self, round: Round) -> dict[str, Any]:
        """Run a round; returns its line of the report."""
        self.missed = []
        self.looks = self.given_up = 0
        self.required = []
        began = time.monotonic()
        moves = sum(each.moves for each in self.providers)
        stolen, ticks = processors()
        # After a fault the providers of its broker are at the others: some change their broker in each round.
        for each in self.providers:
            if self._rng.random() < MOVING:
                reactor.callLater(self._rng.uniform(0.0, 3.0), each.leave)
        self.clients.fault(True)
        await gatherResults([Deferred.fromCoroutine(self._fault(each)) for each in round.faults])
        self.clients.fault(False)
        faults_end = time.monotonic()
        self.queues.mark()
        limit = 2 * self.ttl + 3.0 + 15.0
        trouble = last = ""

        def equal() -> bool:
            nonlocal last
            last = self.differences() or last
            return not self.differences()

        try:
            await wait(equal, limit, self.differences)
        except AssertionError as error:
            trouble = str(error)
        stolen, ticks = (now - start for now, start in zip(processors(), (stolen, ticks), strict=True))
        return {
            "round": round.number,
            "faults": [
                f"{each.kind} {each.target} at {each.at} for {each.lasts}".replace("  ", " ") for each in round.faults
            ],
            "seconds": round_to(time.monotonic() - began),
            "stolen": round_to(stolen / ticks, 2),
            "settled": round_to(time.monotonic() - faults_end),
            "waited for": last,
            "moves": sum(each.moves for each in self.providers) - moves,
            "looks": self.looks,
            "judged": len(self.required),
            "pairs": sum(self.required),
            "required": [min(self.required, default=0), round_to(median(self.required or [0]), 0)],
            "missed": len(self.missed),
            "examples": self.missed[:5],
            "given up": self.given_up,
            "trouble": trouble,
            "confirmed": self.queues.counts()[0],
            "again": self.queues.counts()[1],
            "received": self.topic.received,
            "messages": (self.queues.defects() + self.topic.disorder)[:5],
            "consistent": self.clients.finds(),
            "histories": self.clients.defects()[:5],
            "ended": [name for name, each in self.hosts.brokers.items() if not each.running],
        }

    async def _fault(self, fault: Fault) -> None:
        await deferLater(reactor, fault.at)
        begin, end = self._faults(fault)
        broker = fault.target if fault.kind.endswith(" broker") else ""
        if broker:
            self._out[broker] = time.monotonic()
            self._cuts[broker] = self._out[broker], math.inf
        if fault.kind in ("kill broker", "restart broker", "start without etcd"):
            self._killed[fault.target] = time.monotonic()
        of_etcd = "etcd" in fault.kind or fault.kind == "kill leader"
        if of_etcd:
            self._unsure_from = time.monotonic()
            self._unsure = math.inf  # its begin and its end may take long
        await deferToThread(begin)
        await deferLater(reactor, fault.lasts)
        await deferToThread(end)
        if broker:
            now = time.monotonic()
            self._cuts[broker] = self._cuts[broker][0], now
            if now - self._out.pop(broker) > self.ttl - MARGIN - 2.0:
                self._back[broker] = now
        if of_etcd:
            await wait(self._quorum, START, "a quorum of etcd", threaded=True)
            self._unsure = time.monotonic() + ELECTION

    def _quorum(self) -> bool:
        """Return True if most members of etcd have a leader."""
        healthy = 0
        for member in self.hosts.etcds.values():
            with suppress(AssertionError):  # another fault has killed it
                healthy += member.healthy()
        return 2 * healthy > len(self.hosts.etcds)

    def _faults(self, fault: Fault) -> tuple[Callable[[], object], Callable[[], object]]:
        """Return the functions that begin and end a fault."""
        hosts, network = self.hosts, self.hosts.network
        match fault.kind:
            case "kill broker":
                broker = hosts.brokers[fault.target]
                return broker.kill, broker.start
            case "restart broker":
                broker = hosts.brokers[fault.target]
                return broker.stop, broker.start
            case "pause broker":
                broker = hosts.brokers[fault.target]
                return lambda: broker.signal(signal.SIGSTOP), lambda: broker.signal(signal.SIGCONT)
            case "kill etcd":
                member = hosts.etcds[fault.target]
                return member.kill, member.start
            case "pause etcd":
                member = hosts.etcds[fault.target]
                return member.pause, member.resume
            case "kill leader":
                killed: list[Member] = []

                def kill() -> None:
                    killed.append(leader(list(hosts.etcds.values())))
                    killed[0].kill()

                return kill, lambda: killed[0].start()
            case "pause all etcd":
                return partial(each_of, hosts.etcds.values(), Member.pause), partial(
                    each_of, hosts.etcds.values(), Member.resume
                )
            case "cut all etcd" | "start without etcd":
                pairs = [(one, other) for one in hosts.brokers for other in hosts.etcds]

                def outage() -> None:
                    each_of(pairs, lambda pair: network.cut(*pair))
                    if fault.target:
                        hosts.brokers[fault.target].kill()
                        hosts.brokers[fault.target].start()

                return outage, lambda: each_of(pairs, lambda pair: network.heal(*pair))
            case "kill all etcd":
                return partial(each_of, hosts.etcds.values(), Member.kill), partial(
                    each_of, hosts.etcds.values(), Member.start
                )
            case "cut broker":
                others = [name for name in network.hosts if name != fault.target]
            case "split brokers":
                others = [name for name in hosts.brokers if name != fault.target]
            case "cut etcd":
                others = [name for name in hosts.etcds if name != fault.target]
        return partial(each_of, others, partial(network.cut, fault.target)), partial(
            each_of, others, partial(network.heal, fault.target)
        )


def each_of(values: Iterable[Any], call: Callable[[Any], object]) -> None:
    """Call a function with each value."""
    for each in values:
        call(each)


def leader(members: Sequence[Member]) -> Member:
    """Return the member of etcd that leads, the first one if none does at the moment."""
    for each in members:
        try:
            status = each.ask("maintenance/status")
        except OSError:
            continue
        if status.get("leader") == status["header"]["member_id"]:
            return each
    return members[0]


async def wait(
    condition: Callable[[], Any], seconds: float, what: str | Callable[[], str], threaded: bool = False
) -> None:
    """Return when a condition is true, which is asked four times a second. Raises AssertionError after that time.

    The time is counted by looks: on a machine with too much to do, they come late, and so does what is waited for.
    """
    looks = math.ceil(seconds / LOOK)
    while not (await deferToThread(condition) if threaded else condition()):
        if not looks:
            raise AssertionError(what if isinstance(what, str) else what())
        looks -= 1
        await deferLater(reactor, LOOK)


def faketime(offset: str) -> tuple[str, ...]:
    """Return the beginning of a command line for a process with another clock of the day.

    Its monotonic clock runs as fast as that, from now on.
    """
    program("faketime")
    # Not the program itself: it waits for a child, which outlives a SIGKILL. The loader replaces $LIB.
    return ("env", "LD_PRELOAD=/usr/$LIB/faketime/libfaketime.so.1", f"FAKETIME={offset}")


def processors() -> tuple[int, int]:
    """Return the ticks of all processors that a hypervisor took, and all ticks, since the system was started.

    A round on a virtual machine that is throttled is too slow for reasons that are not the farm's.
    """
    ticks = [int(field) for field in Path("/proc/stat").read_text().split()[1:9]]
    return ticks[7], sum(ticks)


def round_to(number: float, digits: int = 1) -> float:
    return round(number, digits)


def _named(each: Provider) -> str:
    where = each.holder or f"none, lost at {each.last_holder} at {each.lost:.2f}"
    return f"{each.name} {each.place} (holder {where}, since {each.since:.2f})"


async def main(options: argparse.Namespace, hosts: Hosts) -> int:
    """Run the rounds. Returns the exit status."""
    farm = Farm(hosts, options.providers, options.seed, options.ttl)
    bad = 0
    try:
        began = time.monotonic()
        await farm.start()
        print(json.dumps({"started": round_to(time.monotonic() - began)}), flush=True)
        if options.upgrade:
            rounds = upgrade(list(hosts.brokers), options.ttl)
        else:
            rounds = schedule(options.seed, options.rounds, list(hosts.brokers), list(hosts.etcds), options.ttl)
        for each in rounds[options.first - 1 :]:
            if time.monotonic() - began > 60 * options.minutes:
                break
            result = await farm.run(each)
            bad += bool(any(result[each] for each in ("missed", "trouble", "ended", "messages", "histories")))
            print(json.dumps(result), flush=True)
            if result["ended"]:
                break
        lost = await deferToThread(farm.queues.finish)
        if lost:
            print(json.dumps({"lost": lost[:5]}), flush=True)
            bad += 1
    except AssertionError as error:
        print(json.dumps({"failed": str(error)}), flush=True)
        bad += 1
    finally:
        await farm.stop()
    for broker in hosts.brokers.values():
        for line in broker.defects()[:3]:
            print(json.dumps({"defect": f"{broker.name}: {line}"}), flush=True)
            bad += 1
    return 1 if bad else 0


def command_line() -> None:
    """Read the options, and run."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--first", type=int, default=1, help="begin with this round")
    parser.add_argument("--providers", type=int, default=100)
    parser.add_argument("--upgrade", action="store_true", help="restart the brokers one by one, instead of faults")
    parser.add_argument("--minutes", type=float, default=600.0, help="after which no further round begins")
    parser.add_argument("--ttl", type=int, default=6)
    parser.add_argument("--skew", action="store_true", help="the brokers' clocks are hours apart, and differ in speed")
    parser.add_argument("--directory", default="", help="where the logs stay; by default a temporary one")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="elkobroker-farm-") as temporary:
        directory = Path(options.directory or temporary).resolve()  # programs run in folders below it
        directory.mkdir(parents=True, exist_ok=True)
        status = 1

        def done(result: Any) -> None:
            nonlocal status
            status = result if isinstance(result, int) else 1
            if not isinstance(result, int):
                print(result, file=sys.stderr)
            reactor.stop()

        skew = {"b": faketime("+3h x1.1"), "c": faketime("-2d")} if options.skew else {}
        with Hosts(directory, ttl=options.ttl, queues=QUEUES, before=skew) as hosts:
            reactor.callWhenRunning(lambda: Deferred.fromCoroutine(main(options, hosts)).addBoth(done))
            reactor.run()
    sys.exit(status)


if __name__ == "__main__":
    command_line()
