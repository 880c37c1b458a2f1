"""One history: brokers, servers and faults by chance from a seed, with all invariants; see `History.run`.

The file is longer than others: the steps of a history share one state, that of its farm.
"""

from __future__ import annotations

import gc
import random
from collections import deque
from collections.abc import Callable
from itertools import accumulate
from typing import Any

import attrs
from twisted.logger import LogLevel, globalLogPublisher

from broker.cluster.etcd.etcd_interface import Delete
from broker.cluster.settings import ClusterSettings
from broker.core.cluster.cluster_interfaces import Key, key_of
from broker.core.errors import Refusal
from broker.core.model import ANONYMOUS, NOBODY, Check, CheckState, LoadDetails, Owner, Policy, Rights, Service
from tests.cluster.client_histories import Found, Histories, Session
from tests.cluster.simulation.fake_etcd import MEMBERS, FakeEtcd
from tests.cluster.simulation.invariants import KEYS, Broken, Invariants
from tests.cluster.simulation.node import GRACE, Node, short_steps
from tests.cluster.simulation.timeline import Timeline

TTL = 5

SETTLE = 2 * TTL + 3 + GRACE + 8.0
"""Seconds without faults after which all registries are equal: the entries of a dead broker go within 2 TTL + 3 s at
most, remembered ones after the grace, and a back-off, a renewal or a cut connection takes some seconds before."""

BRIEF = 0.2
"""Seconds, less than a round trip of a write and the watches: a session that ends so soon has no standby behind it."""

TRACE = 150
"""Lines of the trace that a failure shows."""

NAMES = ("chat", "map", "store")
PROTOCOLS = ("tcp", "udp")
WIRES = ("elko", "mtl", "dbp")

RIGHTS = Rights()


@attrs.define(eq=False)
class Server:
    """A server that registers itself. ``homes`` are the nodes with its ids, the present one last."""

    number: int
    wire: str
    label: str
    hostport: str
    wanted: bool = True
    services: dict[tuple[str, str], str] = attrs.field(factory=dict)
    """Info by name and protocol."""
    homes: dict[Node, int] = attrs.field(factory=dict)
    load: float = 0.0
    since: float = 0.0
    """Time of the last change of its registrations."""
    doubled: bool = False
    """True if it had another session when it registered last: then the older one may count."""
    brief: float = -1.0
    """Time at which a session of it ended that had begun less than `BRIEF` seconds before."""
    abandoned: dict[int, None] = attrs.field(factory=dict)
    """Its ids at brokers that ended."""
    former: dict[Node, None] = attrs.field(factory=dict)
    """Brokers at which it had a session before."""

    @property
    def owner(self) -> Owner:
        """The owner of its providers: names of DBP belong to one service."""
        return Owner(entry=f"name{self.number}") if self.wire == "dbp" else NOBODY

    def key(self, service: tuple[str, str]) -> Key:
        """Return the key of the registration of a service."""
        return key_of(self.wire, Service(service[0], self.hostport, 0, service[1]), self.owner)

    @property
    def protocols(self) -> tuple[str, ...]:
        """The protocols that it may use."""
        return PROTOCOLS[:1] if self.wire == "dbp" else PROTOCOLS


class History:
    """A history from a seed: ``steps`` actions, then a time without faults, then equality."""

    def __init__(self, seed: int, steps: int = 40, faults: bool = True, strangers: bool = False) -> None:
        self.seed = seed
        self.rng = rng = random.Random(seed)
        self.steps = steps
        self.faults = faults
        self.strangers = strangers
        self.timeline = Timeline()
        self.clock = self.timeline.clock()
        self.lines: deque[tuple[Any, ...]] = deque(maxlen=TRACE)
        self.etcd = FakeEtcd(self.clock, random.Random(f"{seed}/etcd"), self.trace)
        self.nodes = [self._node(number) for number in range(rng.choice((2, 3, 3, 4)))]
        for node in self.nodes:
            node.alive = lambda: [each.name for each in self.nodes if each.alive_at_links]
        self.servers: list[Server] = []
        self.calm = True
        """False while faults are under way."""
        self.invariants = Invariants(self)
        self.clients = Histories()
        self._acts: dict[tuple[Node, int, Key], Session] = {}
        """Registrations of living sessions."""
        self._entered: dict[int, float] = {}
        """Times of the registrations, by provider."""
        self._errors: list[Any] = []
        self._wiped = self._forgot = False
        self._disturbed = 0.0
        """Time of the last fault of etcd."""
        actions = self._all_actions()
        self._actions, self._weights = list(actions), list(accumulate(actions.values()))

    def trace(self, *what: Any) -> None:
        """Note something that happened."""
        self.lines.append((self.timeline.now, *what))

    @short_steps()
    def run(self) -> None:
        """Run it. Raises `Broken` with the trace."""
        globalLogPublisher.addObserver(self._logged)  # type: ignore[arg-type]
        # A history lasts some hundredths of a second; the collector would take a third of that.
        collects = gc.isenabled()
        gc.disable()
        try:
            self._run()
        except Exception as error:
            raise Broken(f"seed {self.seed}: {error}\n{self.report()}") from error
        finally:
            globalLogPublisher.removeObserver(self._logged)  # type: ignore[arg-type]
            for node in self.nodes:
                if node.running:
                    node.crash()
            if collects:
                gc.enable()

    def report(self) -> str:
        """Return the last lines of the trace."""
        return "\n".join(_line(each) for each in self.lines)

    def advance(self, seconds: float) -> None:
        """Let time pass; the invariants are checked after each event."""
        self.timeline.run(self.timeline.now + seconds, self._after)

    # internal

    @short_steps()
    def run_to_calm(self) -> None:
        """Run the actions, and let time pass until all is settled; without the checks of the end."""
        for node in self.nodes:
            node.start()
            self.advance(self.rng.choice((0, 0.5)))
        self.advance(3)
        for number in range(self.rng.randint(3, 8)):
            self._new_server(number)
        for _ in range(self.steps):
            self._act()
            self.advance(self.rng.choice((0.0, 0.01, 0.05, 0.3, 1.0, 2.5)))
        self._heal()
        self.advance(SETTLE)

    def _run(self) -> None:
        self.run_to_calm()
        self.invariants.settled()
        self.clients.watches = {each.name: each.seen for each in self.nodes}
        for fault in self.clients.faults([(each.name, each.listed()) for each in self.nodes if each.running]):
            raise Broken(fault)

    def _after(self) -> None:
        if self._errors:
            raise Broken(f"an error was logged: {self._errors[0]}")
        self.invariants.check()

    def _logged(self, event: dict[str, Any]) -> None:
        if event.get("log_level") in (LogLevel.critical, LogLevel.error) or "log_failure" in event:
            failure = event.get("log_failure")
            self._errors.append(failure.getTraceback() if failure else event.get("log_format"))

    def _node(self, number: int) -> Node:
        settings = ClusterSettings(f"b{number}", ttl=TTL)
        return Node(f"b{number}", self.timeline, self.etcd, str(self.seed), settings, self.rng.random() < 0.3)

    def _act(self) -> None:
        [action] = self.rng.choices(self._actions, cum_weights=self._weights)
        action()
        self._after()

    def _all_actions(self) -> dict[Callable[[], None], float]:
        """Return the actions with their weights."""
        actions: dict[Callable[[], None], float] = {
            self._register: 4,
            self._move: 4,
            self._leave: 2,
            self._offer: 3,
            self._withdraw: 2,
            self._amend: 2,
            self._report: 4,
            self._check: 2,
            self._claim: 2,
            self._release: 1,
            self._find: 4,
        }
        if self.strangers:
            actions[self._stranger] = 4
        if self.faults:
            actions |= {
                self._crash: 1,
                self._stop: 0.5,
                self._start: 2,
                self._pause: 1,
                self._cut: 1,
                self._connect: 1.5,
                self._loss: 1,
                self._member: 2,
                self._etcd_fault: 1,
                self._outage: 0.5,
            }
        return actions

    # servers

    def _new_server(self, number: int) -> None:
        rng = self.rng
        labels = (f"server{number}", "shared", ANONYMOUS)
        server = Server(number, rng.choice(WIRES), rng.choices(labels, (6, 1, 1))[0], f"host{number}:80")
        for _ in range(rng.choice((1, 1, 2, 3))):
            server.services[rng.choice(NAMES), rng.choice(server.protocols)] = "{}"
        self.servers.append(server)
        node = self._open_node()
        if node is not None:
            self._enter(server, node)

    def _open_node(self, *others: Node) -> Node | None:
        nodes = [node for node in self.nodes if node.serving and not node.paused and node not in others]
        return self.rng.choice(nodes) if nodes else None

    def _enter(self, server: Server, node: Node) -> None:
        """Register a server at a broker."""
        now = self.timeline.now
        try:
            id = node.registry.join(server.label, server.wire, f"{server.hostport}0", server.owner)
        except Refusal as refusal:
            self.trace("refused", node.name, str(refusal))
            return
        self.trace("joins", node.name, server.number, id)
        self.invariants.issued(id)
        node.sessions[id] = server
        server.doubled = bool(server.homes)
        server.homes.pop(node, None)
        server.homes[node] = id
        server.since = self._entered[id] = now
        split = self.rng.random() < 0.2
        services = [self._service(server, id, key) for key in server.services]
        for some in [services[:1], services[1:]] if split else [services]:
            node.registry.offer(some, RIGHTS)
        for key in server.services:
            self.invariants.acted(server, key, node)
            self._began(server, node, key)
        if server.load:
            node.registry.load(id, server.load)

    def _service(self, server: Server, id: int, key: tuple[str, str]) -> Service:
        return Service(key[0], server.hostport, id, key[1], info=server.services[key], lasting=server.wire == "dbp")

    def _exit(self, server: Server, node: Node) -> None:
        """End a session of a server."""
        id = server.homes.pop(node)
        server.former[node] = None
        self.trace("leaves", node.name, server.number, id)
        del node.sessions[id]
        server.since = now = self.timeline.now
        if now - self._entered[id] < BRIEF:
            server.brief = now
        node.registry.leave(id)
        self._ended(node, lambda each: each[1] == id)
        self.invariants.left(server)

    def _lost_sessions(self, node: Node, servers: list[Server]) -> None:
        """Servers whose broker ended come back through another one, after a moment."""
        self._ended(node, lambda _: True, confirmed=False)
        for server in servers:
            id = server.homes.pop(node, None)
            if id is not None:
                server.abandoned[id] = None
                server.former[node] = None
            server.since = self.timeline.now
            if KEYS.member(node.name) not in self.etcd.keys:
                # The others hold its entries, until it is back without them.
                self.invariants.left(server)
            self.clock.callLater(self.rng.choice((0.05, 0.5, 2.0, 7.0)), self._return, server)

    def _return(self, server: Server) -> None:
        if server.homes or not server.wanted:
            return
        node = self._open_node()
        if node is not None:
            self._enter(server, node)
        if not server.homes:
            self.clock.callLater(1.0, self._return, server)

    def _some(self, live: bool = True) -> tuple[Server, Node] | None:
        """Return a server with the broker of its last session, which can be reached."""
        found = [
            (server, node)
            for server in self.servers
            if server.homes and not (node := list(server.homes)[-1]).paused and node.serving
        ]
        return self.rng.choice(found) if found else None

    def _register(self) -> None:
        away = [server for server in self.servers if not server.homes]
        if away and self.rng.random() < 0.7:
            server = self.rng.choice(away)
            server.wanted = True
            self._return(server)
        elif len(self.servers) < 12:
            self._new_server(len(self.servers))

    def _move(self) -> None:
        some = self._some()
        if some is None:
            return
        server, node = some
        other = self._open_node(node)
        if other is None or other in server.homes:
            return
        how = self.rng.choice(("after", "before", "half open", "both"))
        self.trace("moves", server.number, how)
        if how == "before":
            self._exit(server, node)
            self._enter(server, other)
            return
        self._enter(server, other)
        if how == "after" and other in server.homes:
            self.clock.callLater(self.rng.choice((0.0, 0.02, 0.3)), self._close, server, node)
        elif how == "half open":
            self.clock.callLater(self.rng.choice((1.0, 5.0)), self._close, server, node)

    def _close(self, server: Server, node: Node) -> None:
        """End the older session of a server, if there is another one."""
        if len(server.homes) > 1 and node in server.homes and list(server.homes)[-1] is not node:
            if node.paused:
                self.clock.callLater(1.0, self._close, server, node)
            else:
                self._exit(server, node)

    def _leave(self) -> None:
        some = self._some()
        if some is not None:
            server, _ = some
            if any(node.paused for node in server.homes):
                return
            server.wanted = False
            for node in list(server.homes):
                self._exit(server, node)

    def _offer(self) -> None:
        some = self._some()
        if some is None or len(some[0].homes) > 1:
            return
        server, node = some
        key = (self.rng.choice(NAMES), self.rng.choice(server.protocols))
        if key not in server.services:
            self.trace("offers", node.name, server.number, key)
            server.services[key] = "{}"
            server.since = self.timeline.now
            node.registry.offer([self._service(server, server.homes[node], key)], RIGHTS)
            self.invariants.acted(server, key, node)
            self._began(server, node, key)

    def _withdraw(self) -> None:
        some = self._some()
        if some is None or len(some[0].homes) > 1:
            return
        server, node = some
        names = {name for name, _ in server.services}
        if len(names) > 1:
            name = self.rng.choice(sorted(names))
            self.trace("withdraws", node.name, server.number, name)
            server.services = {key: info for key, info in server.services.items() if key[0] != name}
            self.invariants.withdrawn(server, name)
            server.since = self.timeline.now
            id = server.homes[node]
            node.registry.withdraw(id, [name])
            self._ended(node, lambda each: each[1] == id and each[2][1] == name)

    def _amend(self) -> None:
        some = self._some()
        if some is None or len(some[0].homes) > 1:
            return
        server, node = some
        key = self.rng.choice(list(server.services))
        server.services[key] = f'{{"n":{self.rng.randrange(1000)}}}'
        self.trace("amends", node.name, server.number, key)
        node.registry.amend(self._service(server, server.homes[node], key))
        self.invariants.acted(server, key, node)

    def _report(self) -> None:
        for server in self.servers:
            if self.rng.random() < 0.5 and server.homes:
                node = list(server.homes)[-1]
                if node.serving and not node.paused:
                    server.load = float(self.rng.randrange(1, 100))
                    details = LoadDetails(requests=self.rng.randrange(9)) if self.rng.random() < 0.3 else None
                    node.registry.load(server.homes[node], server.load, details)

    def _check(self) -> None:
        """A health check of a service has a result. Its policy changes no find, so that these are known."""
        some = self._some()
        services = some and some[1].registry.services_of(some[0].homes[some[1]])
        if some is None or not services:
            return
        state = self.rng.choice((CheckState.FAILING, CheckState.FAILING, CheckState.PASSING))
        check = Check(state, f"status {self.rng.randrange(500, 504)}", some[1].clock.seconds())
        self.trace("checks", some[1].name, some[0].number, check.state, check.reason)
        some[1].registry.set_check(self.rng.choice(services), check, Policy.SHOW)

    # what clients are promised

    def _steady(self, node: Node) -> bool:
        """Return True if nothing has happened lately that makes an act at a broker a restore, or ends its lease."""
        since = self.timeline.now - 2 * TTL - 3
        return node.is_member and (node.trouble_since or 0.0) <= since and self._disturbed <= since

    def _began(self, server: Server, node: Node, key: tuple[str, str]) -> None:
        """Record an act, which is confirmed when it is written."""
        id, where = server.homes[node], server.key(key)
        session = self.clients.begin(str(where), str(id), self.timeline.now, node.name)
        self._acts[node, id, where] = session

        def written(_: object) -> None:
            if self._steady(node):
                session.answer = self.timeline.now
                self._find_at(self._open_node(node), server, key)

        if self._steady(node):
            node.cluster.written().addCallbacks(written, _refused)

    def _ended(self, node: Node, which: Callable[[tuple[Node, int, Key]], bool], confirmed: bool = True) -> None:
        """Record the end of registrations at a broker. Without confirmation it may happen at any time from now on."""
        ended = [each for each in self._acts if each[0] is node and which(each)]
        sessions = [self._acts.pop(each) for each in ended]

        def written(_: object) -> None:
            if self._steady(node):
                for each in sessions:
                    each.end_answer = self.timeline.now
                self._find()

        for each in sessions:
            each.end_call = min(each.end_call, self.timeline.now)
        if confirmed and self._steady(node):
            node.cluster.written().addCallbacks(written, _refused)

    def _find(self) -> None:
        servers = [each for each in self.servers if each.services]
        if servers:
            server = self.rng.choice(servers)
            self._find_at(self._open_node(), server, self.rng.choice(sorted(server.services)))

    def _find_at(self, node: Node | None, server: Server, key: tuple[str, str]) -> None:
        """A client finds what was confirmed before."""
        if node is None:
            return
        begun = self.timeline.now

        def caught_up(_: object) -> None:
            found = [str(each.provider) for each in node.registry.find(*key) if each.hostport == server.hostport]
            table = node.cluster._parts.shared.table
            entry = table.entries.get(server.key(key))
            if entry is not None and table.is_held(entry) and [str(entry.provider)] == found:
                return  # a registration that ended before its holder's lease did is held, too
            self.clients.finds.append(Found(node.name, str(server.key(key)), begun, self.timeline.now, found))

        node.cluster.caught_up().addCallbacks(caught_up, _refused)

    # queues

    def _claim(self) -> None:
        node = self._open_node()
        if node is None:
            return
        queue = ("space", f"queue{self.rng.randrange(2)}")

        def claimed(result: Any) -> None:
            self.trace("claimed", node.name, queue, result)

        node.cluster.claim(*queue).addCallback(claimed).addErrback(_refused)

    def _release(self) -> None:
        owners = [node for node in self.nodes if node.serving and node.owned and not node.paused]
        if owners:
            node = self.rng.choice(owners)
            queue = self.rng.choice(sorted(node.owned))
            self.trace("releases", node.name, queue)
            node.owned.discard(queue)
            node.cluster.release(*queue).addErrback(_refused)

    # faults of brokers

    def _troubled(self, node: Node) -> None:
        node.trouble_since = self.timeline.now
        for (at, _, _), session in self._acts.items():
            if at is node:
                session.end_call = min(session.end_call, self.timeline.now)

    def _disturb(self) -> None:
        """A fault of etcd begins or ends."""
        self._disturbed = self.timeline.now
        self.invariants.disturbed()
        for session in self._acts.values():
            session.end_call = min(session.end_call, self.timeline.now)

    def _running(self) -> Node | None:
        nodes = [node for node in self.nodes if node.running and node.serving and not node.paused]
        return self.rng.choice(nodes) if nodes else None

    def _crash(self) -> None:
        nodes = [node for node in self.nodes if node.running]
        if nodes:
            node = self.rng.choice(nodes)
            self._troubled(node)
            if node.paused:
                node.clock.resume()
            # Of wiped data of etcd and a lost disk together, the ids that were issued remain nowhere.
            forget = self.rng.random() < 0.15 and not self._wiped
            self._forgot = self._forgot or forget
            self._lost_sessions(node, node.crash(forget))

    def _stop(self) -> None:
        node = self._running()
        if node is not None:
            self._troubled(node)
            self._lost_sessions(node, node.stop(keep=self.rng.random() < 0.5))

    def _start(self) -> None:
        nodes = [node for node in self.nodes if not node.running]
        if nodes:
            node = self.rng.choice(nodes)
            self._troubled(node)
            node.start()

    def _pause(self) -> None:
        node = self._running()
        if node is not None:
            self.trace("broker paused", node.name)
            self._troubled(node)
            node.clock.pause()
            self.clock.callLater(self.rng.choice((0.2, 2.0, 4.0, 9.0, 20.0)), self._resume, node, node.clock)

    def _resume(self, node: Node, clock: Any) -> None:
        if clock.paused and node.clock is clock:
            self.trace("broker resumes", node.name)
            self._troubled(node)
            clock.resume()

    def _cut(self) -> None:
        node = self._running()
        if node is not None and node.cut is None:
            self._troubled(node)
            node.cut = tuple(self.rng.sample(range(MEMBERS), self.rng.choice((1, 3, 3))))
            node.client.disconnect(*node.cut)

    def _connect(self) -> None:
        nodes = [node for node in self.nodes if node.cut is not None]
        if nodes:
            self._reconnect(self.rng.choice(nodes))

    def _reconnect(self, node: Node) -> None:
        self._troubled(node)
        node.cut = None
        if node.running:
            node.client.connect()

    def _outage(self) -> None:
        """No broker reaches etcd for a while, in which one may be started; they come back one after the other."""
        for node in self.nodes:
            if node.cut is None:
                self._troubled(node)
                node.cut = tuple(range(MEMBERS))
                if node.running:
                    node.client.disconnect(*node.cut)
        if self.rng.random() < 0.6:
            node = self.rng.choice(self.nodes)
            if node.running and not node.paused:
                self._troubled(node)
                self._lost_sessions(node, node.crash())
                node.start()
        lasts = self.rng.choice((2.0, 8.0, 20.0))
        for node in self.nodes:
            self.clock.callLater(lasts + self.rng.choice((0.0, 0.5, 3.0)), self._connect_again, node)

    def _connect_again(self, node: Node) -> None:
        if node.cut is not None:
            self._reconnect(node)

    def _loss(self) -> None:
        node = self.rng.choice(self.nodes)
        self._troubled(node)
        chances = node.chances
        if chances.lost or chances.late:
            chances.lost = chances.unanswered = chances.late = chances.broken = 0.0
        else:
            chances.lost, chances.unanswered = self.rng.choice((0.02, 0.2)), self.rng.choice((0.02, 0.2))
            chances.late, chances.broken = self.rng.choice((0.0, 0.1)), self.rng.choice((0.0, 0.1))
        self.trace("chances", node.name, chances)

    # faults of etcd

    def _member(self) -> None:
        """A member of etcd fails, or comes back."""
        number = self.rng.randrange(MEMBERS)
        member, etcd = self.etcd.members[number], self.etcd
        self._disturb()
        if not member.up:
            etcd.restart(number)
        elif member.paused:
            etcd.resume(number)
        elif member.isolated:
            etcd.rejoin(number)
        else:
            self.rng.choice((etcd.kill, etcd.pause, etcd.isolate))(number)

    def _etcd_fault(self) -> None:
        etcd, rng = self.etcd, self.rng
        self._disturb()
        what = rng.choice(("leader", "compact", "compact", "wipe", "quota", "all", "vanish"))
        if what == "leader":
            etcd.lose_leader()
        elif what == "compact":
            etcd.compact(etcd.revision)
        elif what == "wipe" and not self._forgot:
            self._wiped = True
            etcd.wipe()
            self.invariants.wiped()
        elif what == "quota":
            if etcd.alarm:
                etcd.drain_alarm()
            else:
                etcd.fill()
        elif what == "all":
            for number in range(MEMBERS):
                etcd.kill(number)
            self.clock.callLater(rng.choice((0.5, 3.0, 10.0)), self._restart_etcd)
        elif what == "vanish" and etcd.leases:
            for lease in rng.sample(sorted(etcd.leases), rng.randint(1, len(etcd.leases))):
                etcd.vanish(lease)

    def _stranger(self) -> None:
        """Another program deletes a key of the farm: any but loads, which come back with the next report."""
        keys = [each for each in self.etcd.keys if not each.startswith(KEYS.prefix + b"l/")]
        if keys:
            self._disturb()
            self.invariants.meddled()
            self.etcd.txn([], [Delete(self.rng.choice(keys))])

    def _restart_etcd(self) -> None:
        self._disturb()
        for number, member in enumerate(self.etcd.members):
            if not member.up:
                self.etcd.restart(number)

    def _heal(self) -> None:
        """End all faults."""
        self.trace("all faults end")
        self._disturb()
        for number, member in enumerate(self.etcd.members):
            if not member.up:
                self.etcd.restart(number)
            if member.paused:
                self.etcd.resume(number)
            if member.isolated:
                self.etcd.rejoin(number)
        if self.etcd.alarm:
            self.etcd.drain_alarm()
        for node in self.nodes:
            chances = node.chances
            chances.lost = chances.unanswered = chances.late = chances.broken = 0.0
            if node.cut is not None:
                self._reconnect(node)
            if node.paused:
                self._resume(node, node.clock)
        # A broker that failed because its name was taken, or is down, is started again, as operators do. Its name is
        # free after that time, if it has lost its disk.
        self._revive()
        self.clock.callLater(2 * TTL + 3, self._revive)

    def _revive(self) -> None:
        for node in self.nodes:
            if node.running and (node.failure is not None or node.stopping):
                self._lost_sessions(node, node.crash())
            if not node.running:
                node.start()
        for server in self.servers:
            if server.wanted and not server.homes:
                self._return(server)


def _refused(failure: Any) -> None:
    failure.trap(Refusal)


def _line(what: tuple[Any, ...]) -> str:
    time, kind, *details = what
    if kind == "applied":
        revision, events = details
        changes = [
            f"{each.key.decode().removeprefix('/elkobroker/default/')}"
            + ("-" if each.value is None else f"={each.value.value.decode()[:150]} [{each.value.lease % 10000}]")
            for each in events
        ]
        return f"{time:9.3f}  {revision} {'; '.join(changes)}"
    return f"{time:9.3f}  {kind} {' '.join(map(str, details))}"
