"""One row of the robustness table: good peers and newcomers on all listeners, beside hostile peers on one of them.

`measure` starts a fresh broker with every listener. One good peer on each pings alone, and then beside the attack; in
the attack, newcomers connect to the attacked listener and to another one.
"""

from __future__ import annotations

import re
import socket
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from select import EPOLLIN, epoll
from tempfile import TemporaryDirectory
from typing import Any

import attrs

from bench import machine, servers, traffic
from bench.harness import MIB
from bench.peers import elko as messages
from bench.processes import NICENESS, InProcess
from bench.robust import zmtp_good_peers as zmtp_good
from bench.robust.good_peers import (
    ApiPeer,
    ConsolePeer,
    DnsPeer,
    DnsUdpPeer,
    ElkoPeer,
    Good,
    HttpPeer,
    RtcpPeer,
    TlsPeer,
    WebPeer,
)
from bench.robust.swarm import SOURCES, Seen
from bench.robust.visits import visitors
from bench.servers import Server, await_log, spawn, twistd
from tests.integration.configurations import every_listener

SHARE_ELSEWHERE, SHARE_THERE, SHARE_OF_VISITS = 0.95, 0.85, 0.80
"""The part of its share of answers in time that a good peer keeps, on the other listeners and on the attacked one; and
the share of newcomers that are answered."""

ANSWERED_WITHIN = 0.050
"""Seconds in which every good peer is to be answered."""

ANSWER_WITHIN = 5.0
"""Seconds that good peers wait for their last answers."""

ALONE = 3.0
"""Seconds in which the good peers are alone."""

GIVEN_BACK_WITHIN = 30.0
"""Seconds in which the memory is to be given back after the attack, once the broker has handled what the kernel still
had of it: up to some megabytes for each connection."""

HANDLED_WITHIN = 120.0
"""Seconds in which the broker is to have handled that."""

IDLE = 0.3
"""Share of a core below which it has."""

ONE_STRANGER = 64 * MIB
"""Bytes by which the broker may grow for one address, and that it may keep after the attack of any number beside what
they have registered."""

RUNAWAY = 1 << 30
"""Bytes of growth at which the hostile peers are ended, since other programs need memory, too."""

LOOK_EVERY = 0.05
"""Seconds between two looks at the broker's memory."""

GOOD: dict[str, Callable[[Mapping[str, int]], Good]] = {
    "elko": lambda ports: ElkoPeer(ports["elko"]),
    "tls": lambda ports: TlsPeer(ports["tls"]),
    "director": lambda ports: ElkoPeer(ports["director"], "director"),
    "websocket": lambda ports: WebPeer(ports["websocket"]),
    "http": lambda ports: HttpPeer(ports["http"]),
    "rtcp": lambda ports: RtcpPeer(ports["rtcp"]),
    "console": lambda ports: ConsolePeer(ports["console"]),
    "mc0": zmtp_good.mc0_peer,
    "dbp": zmtp_good.dbp_peer,
    "mtl": zmtp_good.mtl_peer,
    "mtl-data": zmtp_good.MtlDataPeer,
    "api": lambda ports: ApiPeer(ports["api"]),
    "dns": lambda ports: DnsPeer(ports["dns"]),
    "dns-udp": lambda ports: DnsUdpPeer(ports["dns-udp"]),
}
"""The good peer of each listener."""


@attrs.frozen
class Door:
    """One attack on one listener.

    ``hostile`` attacks the port with so many peers from so many addresses, for so many seconds. ``count`` is the number
    of peers where the command line does not decide it, ``bound`` the most bytes by which the broker may grow, and
    ``stored`` those of them that stay, since the peers register something. With ``descriptors`` the broker may have
    only so many open. With ``changes`` services come and go meanwhile, for attacks that watch them. ``lossy``:
    datagrams may be lost in the kernel's queue, so that the attacked wire has no goals.
    """

    name: str
    wire: str
    title: str
    hostile: Callable[[int, int, int, float], Seen]
    count: int | None = None
    bound: int | None = None
    stored: int = 0
    descriptors: int | None = None
    changes: bool = False
    lossy: bool = False


@attrs.frozen
class Shares:
    """The outcome of one row: shares of pings answered within 50 ms, by listener."""

    door: Door
    alone: dict[str, float]
    beside: dict[str, float]
    visits: dict[str, float]
    """The share of newcomers that were answered, by listener."""
    waited: float
    """The share of the time in which the broker could have run, and others had the cores."""
    used: float
    """The share of a core that it took."""
    grown: int
    """The most bytes of memory by which it grew in the attack."""
    kept_memory: int
    """Bytes by which it was still larger some time after the attack: see `GIVEN_BACK_WITHIN`."""
    bound: int
    """The most bytes by which it may grow."""
    unexpected: list[str]
    """Log lines that are those of a defect."""
    seen: Seen | None
    """None if the hostile peers were ended before their time."""

    def kept(self, wire: str) -> float:
        """The part of its share that a good peer keeps."""
        return self.beside[wire] / self.alone[wire] if self.alone[wire] else 0.0

    @property
    def worst(self) -> str:
        """The listener beside the attacked one whose good peer keeps least."""
        return min((wire for wire in self.alone if wire != self.door.wire), key=self.kept)

    def misses(self) -> list[str]:
        """The goals that were missed."""
        wire = self.door.wire
        missed = [
            f"{each} kept {self.kept(each):.0%}"
            for each in self.alone
            if self.kept(each) < (SHARE_THERE if each == wire else SHARE_ELSEWHERE)
            and not (self.door.lossy and each == wire)
        ]
        missed += [
            f"newcomers to {each} {share:.0%}"
            for each, share in self.visits.items()
            if share < SHARE_OF_VISITS and not (self.door.lossy and each == wire)
        ]
        if self.grown > self.bound:
            missed.append(f"memory: {self.grown // MIB} of {self.bound // MIB} MiB")
        if self.kept_memory > ONE_STRANGER + self.door.stored:
            missed.append(f"{self.kept_memory // MIB} MiB are kept")
        return missed + ["defect"] * bool(self.unexpected)

    def cells(self) -> list[str]:
        """The row of the table."""
        wire, seen = self.door.wire, self.seen
        return [
            self.door.name,
            f"{self.alone[wire]:.0%} / {self.beside[wire]:.0%}",
            f"{self.worst}: {self.alone[self.worst]:.0%} / {self.beside[self.worst]:.0%}",
            *(f"{share:.0%}" for share in self.visits.values()),
            f"{self.waited:.0%}",
            f"{self.used:.0%}",
            f"{self.grown / MIB:.0f}",
            f"{self.kept_memory / MIB:.0f}",
            "ended" if seen is None else f"{seen.connects:,}",
            "ended" if seen is None else f"{seen.sent / 1e6:.0f}",
            ", ".join(self.misses()) or "met",
        ]


HEADINGS = [
    "row",
    "share there, alone / beside",
    "least elsewhere",
    "newcomers there",
    "elsewhere",
    "no core",
    "CPU",
    "MiB more",
    "kept",
    "connects",
    "MB sent",
    "goals",
]

_PORT = re.compile(r"(?:listener '(\w+)'|(console)) on \S*?:(\d+)")
_DEFECT = re.compile(r"Traceback|Unhandled|made the broker fail|failed at revision|a connection failed|MemoryError")


def measure(door: Door, count: int, seconds: float, sources: int = SOURCES) -> Shares:
    """Attack a fresh broker through one door, from so many addresses."""
    elsewhere = "elko" if door.wire != "elko" else "api"
    with ExitStack() as stack:
        directory = Path(stack.enter_context(TemporaryDirectory(prefix="elkobroker-bench-")))
        server = _start(directory, door.descriptors)
        stack.callback(server.stop)
        ports = await_log(server, _ports)

        def started(function: Callable[..., Any], *arguments: Any, niceness: int = 0) -> InProcess:
            process = InProcess(function, *arguments, niceness=niceness)
            stack.callback(process.stop)
            return process

        good = started(good_peers, ports, ALONE, seconds)
        changing = started(come_and_go, ports["elko"], ALONE + seconds) if door.changes else None
        time.sleep(ALONE + 0.2)  # so long they are alone; their processes take a moment to start
        before = server.resident()
        machine.forget_peak(server.pid)
        waited, used, start = machine.waited_seconds(server.pid), server.cpu(), time.monotonic()
        number = count if door.count is None else door.count
        hostile = started(door.hostile, ports[door.wire], number, sources, seconds, niceness=NICENESS)
        visiting = {wire: started(visitors, wire, ports[wire], seconds) for wire in (door.wire, elsewhere)}
        ended = _watched(server, good, hostile, before + RUNAWAY, ALONE + seconds + 60)
        took = time.monotonic() - start
        waited, used = (machine.waited_seconds(server.pid) - waited) / took, (server.cpu() - used) / took
        shares = good.result(1)
        seen = None if ended else hostile.result(30)
        visits = {wire: process.result(30) for wire, process in visiting.items()}
        if changing is not None:
            changing.result(30)
        grown = machine.peak_resident(server.pid) - before
        hostile.stop()
        kept = _given_back(server, before + door.stored) + door.stored
        log = server.log.read_text(errors="replace").splitlines()
    return Shares(
        door=door,
        alone=shares[0],
        beside=shares[1],
        visits=visits,
        waited=waited,
        used=used,
        grown=grown,
        kept_memory=kept,
        bound=ONE_STRANGER if sources == 1 else RUNAWAY if door.bound is None else door.bound,
        unexpected=[line[:300] for line in log if _DEFECT.search(line)][:5],
        seen=seen,
    )


def good_peers(ports: Mapping[str, int], alone: float, beside: float) -> tuple[dict[str, float], dict[str, float]]:
    """One good peer on each listener pings. Returns the shares answered within 50 ms, before and in the attack.

    A ping counts from when it was due, so that one that cannot be sent in time counts as late.
    """
    peers = {wire: make(ports) for wire, make in GOOD.items()}
    poll = epoll()
    owners: dict[int, tuple[Good, socket.socket]] = {}
    for peer in peers.values():
        peer.pongs = 0
        for sock in peer.sockets:
            sock.settimeout(traffic.STUCK)
            owners[sock.fileno()] = peer, sock
            poll.register(sock.fileno(), EPOLLIN)
    start = time.perf_counter()
    change, end = start + alone, start + alone + beside
    dues: dict[Good, list[float]] = {peer: [] for peer in peers.values()}
    took: dict[Good, list[float]] = {peer: [] for peer in peers.values()}
    due = dict.fromkeys(peers.values(), start)
    while True:
        now = time.perf_counter()
        if now < end:
            for peer, at in due.items():
                number = 0
                while at <= now:
                    dues[peer].append(at)
                    at += peer.every
                    number += 1
                if number:
                    due[peer] = at
                    _ping(peer, number)
        elif now >= end + ANSWER_WITHIN or all(len(took[peer]) == len(dues[peer]) for peer in dues):
            break
        for fd, _ in poll.poll(max(min(due.values()) - time.perf_counter(), 0) if now < end else 0.1):
            peer, sock = owners[fd]
            if not _read(peer, sock):
                poll.unregister(fd)
            now = time.perf_counter()
            times = took[peer]
            while len(times) < min(peer.pongs, len(dues[peer])):
                times.append(now - dues[peer][len(times)])

    def share(peer: Good, first: float, last: float) -> float:
        pairs = enumerate(at for at in dues[peer] if first <= at < last)
        skipped = sum(at < first for at in dues[peer])
        within = [t <= ANSWERED_WITHIN for t in took[peer][skipped:]]
        return sum(within[i] for i, _ in pairs if i < len(within)) / sum(first <= at < last for at in dues[peer])

    return (
        {wire: share(peer, start, change) for wire, peer in peers.items()},
        {wire: share(peer, change, end) for wire, peer in peers.items()},
    )


def _ping(peer: Good, number: int) -> None:
    """Ping, unless the broker closed the connection: the pings are late then."""
    try:
        peer.ping(number)
    except OSError:
        return


def _read(peer: Good, sock: socket.socket) -> bool:
    try:
        return peer.read(sock)
    except OSError:
        return False


def come_and_go(port: int, seconds: float) -> int:
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


def _watched(server: Server, good: InProcess, hostile: InProcess, most: int, within: float) -> bool:
    """Wait for the good peers. Returns True if the hostile ones were ended, since the broker had taken too much."""
    ended = False
    end = time.monotonic() + within
    while not good.done(LOOK_EVERY):
        if time.monotonic() > end:
            raise TimeoutError(f"the good peers did not end within {within:g} s")
        if not ended and server.resident() > most:
            hostile.stop()
            ended = True
    return ended


def _given_back(server: Server, before: int) -> int:
    """Wait until the memory is given back. Returns the bytes that are kept after `GIVEN_BACK_WITHIN`."""
    end = time.monotonic() + HANDLED_WITHIN
    used = 1.0
    while used > IDLE and time.monotonic() < end:
        used = server.cpu()
        time.sleep(1.0)
        used = server.cpu() - used
    end = time.monotonic() + GIVEN_BACK_WITHIN
    while (kept := server.resident() - before) > ONE_STRANGER and time.monotonic() < end:
        time.sleep(LOOK_EVERY)
    return kept


def _start(directory: Path, descriptors: int | None) -> Server:
    """A broker with all listeners."""
    log = directory / "log"
    command = twistd(*every_listener(directory), f"--state={directory}")
    return Server(spawn(command, log, descriptors=descriptors), 0, True, log)


def _ports(log: str) -> dict[str, int] | None:
    """The ports of all listeners, once the log has them."""
    ports = {name or console: int(port) for name, console, port in _PORT.findall(log)}
    for wires, listens in _LISTENS.items():
        if said := listens.search(log):
            ports |= zip(wires, [int(port) for port in said.groups()] * len(wires), strict=False)
    return ports if GOOD.keys() <= ports.keys() else None


_LISTENS = {
    ("elko",): re.compile(r"elko listener 'main' on \S*?:(\d+)"),
    ("mc0",): servers.MC0_LISTENS,
    ("dbp",): servers.DBP_LISTENS,
    ("mtl", "mtl-data"): servers.MTL_LISTENS,
    ("api",): servers.HTTP_LISTENS,
    ("dns", "dns-udp"): re.compile(r"dns on 127\.0\.0\.1:(\d+) \(udp and tcp\)"),
}
"""The log line of an open wire, and the names of the ports in it."""
