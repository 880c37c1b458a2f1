"""Invariants at every moment of a history, and after it has settled."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import msgspec

from broker.cluster import layout, registrations
from broker.cluster.etcd.etcd_interface import Event
from broker.cluster.layout import Keys
from broker.cluster.member_sessions import State
from broker.core.model import CheckState, Service
from tests.cluster.simulation.fake_etcd import MEMBERS

if TYPE_CHECKING:
    from tests.cluster.simulation.history import History, Server
    from tests.cluster.simulation.node import Node

PREFIX = len(b"/elkobroker/default/")
"""Length of the prefix of all keys."""

SPREAD = 2.0
"""Seconds from a change at one broker until it is found at the others, without a fault."""

RECOVERY = 30.0
"""Seconds after a fault for which `SPREAD` is not required."""

HELD = 80.0
"""Seconds after the end of a lease for which a broker has to hold entries, ten times the TTL and `RECOVERY`."""

INTERRUPTED = 0.6
"""Share of the TTL without a renewal after which a broker holds the entries of others whose leases end."""

DOUBT = 2
"""TTLs after its return for which it does so."""

QUIET = 10.0
"""Seconds without a fault after which a broker reads all beats of the others by its watch."""

BEATEN = 2.0
"""Seconds after a beat within which such a broker holds the entries of a member whose lease ends."""

GAP = 0.2
"""Seconds after the end of a brief session of a server for which it may be missing, without a fault: a round trip."""

RECORDED = 5.0
"""Seconds from a change at another broker until the record of a broker without faults has it."""

KEYS = Keys("default")


class Broken(AssertionError):
    """An invariant does not hold."""


class Invariants:
    """Invariants of one history."""

    def __init__(self, history: History) -> None:
        self._history = history
        self._issued: set[int] = set()
        self._revisions: dict[Node, tuple[object, int]] = {}
        """Registry and revision of each running broker at its last check."""
        self._seen: dict[Node, dict[tuple[int, tuple[str, str]], bool]] = {}
        """Services of servers that each broker has found, as number of the server, name and protocol; True if another
        session of the server has its key in etcd, too: then it is found when the first one ends."""
        self._recorded: dict[Node, dict[tuple[int, tuple[str, str]], bool]] = {}
        """The same of each broker that is not running, as far as its record must have it."""
        self._first: dict[tuple[Node, tuple[int, tuple[str, str]]], tuple[int, float]] = {}
        """Provider by which each broker finds a service, and the time since when."""
        self._well: dict[Node, float] = {}
        """Time at which each broker was a member in touch with etcd last."""
        self._withdrawn: dict[tuple[int, str], float] = {}
        """Time at which a server withdrew its services of a name last."""
        self._unclaimed: dict[tuple[str, str], float] = {}
        self._beats: dict[str, float] = {}
        """Time of the last beat of each member that has not left."""
        self._disturbed = self._disturbed_before = 0.0
        self._wiped = -RECOVERY
        """Time at which etcd lost its data."""
        self._ended: dict[str, float] = {}
        """Time at which the lease of a member ended last."""
        self._witnessed: dict[tuple[str, str], float] = {}
        """Time at which a member in touch with etcd could see the end of the lease of another one."""
        self._leased: dict[tuple[str, str], int] = {}
        """Lease of a member, 0 without one, when that of another one ended."""
        self._acts: dict[tuple[int, tuple[str, str]], tuple[Node, int, float]] = {}
        """The newest act of a server on a service at a broker without faults: broker, provider and time."""
        self._meddled = -RECOVERY
        """Time at which another program deleted a key."""
        self._next_slow = 0.0
        history.etcd.applied.append(self._applied)

    def disturbed(self) -> None:
        """A fault of etcd begins or ends."""
        now = self._history.timeline.now
        self._disturbed_before, self._disturbed = self._disturbed, now
        if now - self._wiped < RECOVERY:
            self._leases_ended()

    def meddled(self) -> None:
        """Another program deletes a key: what it is about may be missing until it is written again."""
        self._meddled = self._history.timeline.now

    def wiped(self) -> None:
        """Etcd has lost its data, and all leases. The others hold the entries of a broker for a while, which suffices
        for its return if etcd has no other fault in that time."""
        self._wiped = self._history.timeline.now
        if not all(each.healthy for each in self._history.etcd.members):
            self._leases_ended()

    def _leases_ended(self) -> None:
        for node in self._history.nodes:
            self._lease_ended(node.name)

    def _lease_ended(self, name: str) -> None:
        now = self._history.timeline.now
        self._ended[name] = now
        for node in self._history.nodes:
            if node.running and (self._was_interrupted(node, now) or self._sees_early_end(node, name)):
                # It holds what ends now, or as soon as it reads of it.
                self._leased[node.name, name] = 0
                continue
            self._leased[node.name, name] = self._lease(node.name)
            # With a watch that has ended a moment ago, or without space for a lease, it reads of it all the same.
            if node.running and len(node.cut or ()) < MEMBERS and not node.paused:
                self._witnessed[node.name, name] = now

    def _was_interrupted(self, node: Node, now: float) -> bool:
        """Return True if a broker is, or was `DOUBT` TTLs ago at most, without a renewal for that part of the TTL."""
        times, ttl = [*node.client.renewals, now], node.settings.ttl
        return any(
            after - before > INTERRUPTED * ttl and now - after < DOUBT * ttl for before, after in pairwise(times)
        )

    def _sees_early_end(self, node: Node, name: str) -> bool:
        """Return True if a broker has to know that a lease ends which was renewed a moment ago."""
        etcd, now = self._history.etcd, self._history.timeline.now
        return (
            now - self._beats.get(name, -BEATEN) < BEATEN
            and now - self._disturbed_before > QUIET
            and not etcd.alarm
            and all(each.healthy for each in etcd.members)
            and node.serving
            and not node.paused
            and node.cut is None
            and not node.chances.lost
            and (node.trouble_since is None or now - node.trouble_since > QUIET)
        )

    def _lease(self, name: str) -> int:
        """Return the lease of a member, 0 without one."""
        kv = self._history.etcd.keys.get(KEYS.member(name))
        return 0 if kv is None else kv.lease

    def acted(self, server: Server, key: tuple[str, str], node: Node) -> None:
        """A server has offered or amended a service at a broker."""
        mark = (server.number, key)
        self._acts.pop(mark, None)
        if node in self._healthy():
            self._acts[mark] = node, server.homes[node], self._history.timeline.now

    def issued(self, id: int) -> None:
        """A registry has issued an id."""
        if id in self._issued:
            raise Broken(f"the provider id {id} was issued twice")
        self._issued.add(id)

    def check(self) -> None:
        """Check after an event."""
        history, revisions = self._history, self._revisions
        for node in history.nodes:
            before = revisions.get(node)
            if before is not None and not (node.running and before[0] is node.registry):
                before = None
                del revisions[node]
                self._recorded[node] = self._record(node, self._seen.pop(node, {}))
            if not node.running:
                continue
            if node.failure is not None and node.cluster.counts()["cluster.sessions"]:
                raise Broken(f"{node.name} was a member, nobody else has its name, and it fails: {node.failure}")
            if node.serving and node in self._recorded:
                recorded = self._recorded.pop(node)
                if node.cluster._parts.record.serving:
                    # It has not read the keys yet.
                    self._seen[node] = recorded
                    before = None
            registry = node.registry
            revision = registry.revision
            # After most events nothing has changed.
            if before is not None and before[1] == revision:
                continue
            revisions[node] = registry, revision
            self._check_node(node)
        now = history.timeline.now
        if now >= self._next_slow:
            self._next_slow = now + 0.25
            self._check_times()

    # each moment

    def _applied(self, revision: int, events: Sequence[Event]) -> None:
        """Nothing of a dead lease is written, and nothing of a broker without its lease."""
        keys = self._history.etcd.keys
        for event in events:
            kind, _, rest = event.key[PREFIX:].partition(b"/")
            if event.value is None:
                if kind == b"b":
                    self._lease_ended(rest.decode())
                elif kind == b"beat":
                    self._beats.pop(rest.decode(), None)
                continue
            if kind == b"beat":
                self._beats[rest.decode()] = self._history.timeline.now
            if kind in (b"meta", b"ids"):
                if event.value.lease:
                    raise Broken(f"{event.key!r} has a lease")
                continue
            if kind in (b"b", b"beat", b"l"):
                name = rest.partition(b"/")[0]
            else:
                # Not the values of the others: these are most writes, and each member of the farm decodes them.
                value = msgspec.json.decode(event.value.value)
                name = (value.get("broker") or value.get("owner")).encode()
            member = keys.get(b"/elkobroker/default/b/" + name)
            if member is None or member.lease != event.value.lease or not member.lease:
                raise Broken(f"{event.key!r} was written under another lease than that of {name!r}")

    def _record(self, node: Node, seen: dict[tuple[int, tuple[str, str]], bool]) -> dict[Any, bool]:
        """Return what the record of a broker that has ended must have: registrations at others of some seconds ago."""
        end = self._well.get(node, 0.0)
        first = {mark: at for (each, mark), (_, at) in self._first.items() if each is node}
        self._first = {each: at for each, at in self._first.items() if each[0] is not node}
        return {
            (number, key): False
            for number, key in seen
            if node not in (server := self._history.servers[number]).homes
            and server.homes
            and end - max(server.since, first.get((number, key), 0.0)) > RECORDED
            and node.disk.load_record() is not None
        }

    def _check_node(self, node: Node) -> None:
        found = self._found(node)
        for id, server in node.sessions.items():
            # One that has registered twice may be superseded. An own one has no holder but this broker.
            if not server.doubled and node.registry.holder(id) != "":
                raise Broken(f"{node.name} has lost its own provider {id}")
        seen = self._seen.setdefault(node, {})
        for server in self._history.servers:
            for key in server.services:
                mark = (server.number, key)
                ids = [each.provider for each in found.get(key, ()) if each.hostport == server.hostport]
                if ids:
                    if self._first.get((node, mark), (0, 0.0))[0] != ids[0]:
                        self._first[node, mark] = ids[0], self._history.timeline.now
                    if self._lasts(server, key, ids[0], node):
                        seen[mark] = self._has_standby(server, key, ids[0], node)
                    else:
                        seen.pop(mark, None)
                    continue
                last, _ = self._first.pop((node, mark), (0, 0.0))
                if node in server.homes and not server.doubled:
                    raise Broken(f"{node.name} does not find {key} of its own server {server.number}")
                recorded = node.registry.find(*key, True) if mark in seen and node.cluster._parts.record.serving else ()
                if any(each.hostport == server.hostport for each in recorded):
                    continue
                if mark in seen:
                    standby = seen.pop(mark)
                    unread = node.cluster._parts.feed.revision < self._history.etcd.revision
                    if last in server.abandoned and (unread or not self._lasts(server, key, last, node)):
                        # It has come to a broker that could not write it by the revision that this one has read.
                        continue
                    if self._is_between(node, server.key(key)):
                        continue
                    # A broker whose watch is behind sees a withdrawal late, before the next offer.
                    withdrawn = self._withdrawn.get((server.number, key[0]), -RECOVERY)
                    behind = RECOVERY if node not in self._healthy() else SPREAD
                    if self._continuous(node, server, standby) and self._history.timeline.now - withdrawn > behind:
                        raise Broken(f"{node.name} does not find {key} of server {server.number} any more")

    def _is_between(self, node: Node, key: Any) -> bool:
        """Return True if a broker reads its own value of a session that has ended meanwhile, while the holder before
        has not written its standby yet: it restores the key a round trip after that value is deleted."""
        parts = node.cluster._parts
        table = parts.shared.table
        entry = table.entries.get(key)
        ended = entry is not None and entry.broker == node.name and parts.own.state(key) is registrations.State.ENDED
        return ended and table.standby(key, node.name) is None

    def _lasts(self, server: Server, key: tuple[str, str], id: int, node: Node) -> bool:
        """Return whether a service that a broker finds now must be found from now on: its session lives, or has ended
        with its broker after the next one was written. A broker whose watch is behind also finds one that another
        session has replaced in etcd: it will read that, and the end of the other."""
        if id in server.homes.values():
            return id in node.sessions or id in self._written(server, key)
        return id in server.abandoned and bool(self._written(server, key) & set(server.homes.values()))

    def _has_standby(self, server: Server, key: tuple[str, str], id: int, node: Node) -> bool:
        """Return whether etcd has the registration of a provider, and that of another session of its server.

        Then a broker reads of the other one before it reads the end of the first one: apart from the holder of that."""
        if id in node.sessions or len(server.homes) < 2:
            return False
        written = self._written(server, key)
        return id in written and bool(written & (set(server.homes.values()) - {id}))

    def _written(self, server: Server, key: tuple[str, str]) -> set[int]:
        """Return the providers whose registration of a service is in etcd, as that of its key or as a standby."""
        keys, where = self._history.etcd.keys, server.key(key)
        names = [KEYS.registration(where), *(KEYS.standby(where, node.name) for node in self._history.nodes)]
        return {msgspec.json.decode(keys[each].value)["provider"] for each in names if each in keys}

    def left(self, server: Server) -> None:
        """A session of a server has ended: a service may be missing where no other session with it is known."""
        for node, seen in self._seen.items():
            if not node.running:
                continue
            known = {
                (each.name, each.protocol) for id in server.homes.values() for each in node.registry.services_of(id)
            }
            for mark in [mark for mark in seen if mark[0] == server.number and mark[1] not in known]:
                if not (seen[mark] and self._written(server, mark[1]) & set(server.homes.values())):
                    del seen[mark]
        for recorded in self._recorded.values():
            for mark in [mark for mark in recorded if mark[0] == server.number]:
                del recorded[mark]

    def withdrawn(self, server: Server, name: str) -> None:
        """A server has withdrawn its services of a name."""
        self._withdrawn[server.number, name] = self._history.timeline.now
        for seen in (*self._seen.values(), *self._recorded.values()):
            for mark in [mark for mark in seen if mark[0] == server.number and mark[1][0] == name]:
                del seen[mark]

    def _found(self, node: Node) -> dict[tuple[str, str], tuple[Service, ...]]:
        """Return the finds of a broker; each is in order, and has no server twice."""
        found = {}
        for name in ("chat", "map", "store"):
            for protocol in ("tcp", "udp"):
                services = found[name, protocol] = node.registry.find(name, protocol)
                ids = [each.provider for each in services]
                if ids != sorted(set(ids)):
                    raise Broken(f"{node.name} finds {name} {protocol} in the order {ids}")
                places = [each.hostport for each in services]
                if len(places) > len(set(places)):
                    raise Broken(f"{node.name} finds {name} {protocol} twice at one of {places}")
        return found

    def _continuous(self, at: Node, server: Server, standby: bool) -> bool:
        """Return True if nothing has happened that permits that a broker misses a server for a moment: the leases of
        its brokers did not end, or did while this broker had no touch with etcd, and lost its own lease. With a
        ``standby`` only the server's present brokers count."""
        now = self._history.timeline.now
        if not server.homes or now - server.brief < GAP or now - self._meddled < RECOVERY:
            return False
        for node in server.homes:
            if not node.alive_at_links:
                return False
            ended = self._ended.get(node.name)
            if ended is None or now - ended >= HELD:
                continue
            if now - self._witnessed.get((at.name, node.name), -RECOVERY) < RECOVERY:
                return False
            if server.former and server.since > ended:
                return False  # another session has replaced the held entry, and has ended
            leased = self._leased.get((at.name, node.name), 0)
            if (leased and leased == self._lease(at.name)) or now - ended > HELD - RECOVERY:
                return False
            if at.trouble_since is not None and now - at.trouble_since > HELD - RECOVERY:
                return False
        if standby or now - server.since > RECOVERY:
            return True
        # A home before may have lost its lease.
        return all(now - self._ended.get(node.name, -RECOVERY) > RECOVERY for node in server.former)

    # what may last for a moment

    def _healthy(self) -> list[Node]:
        """Return the brokers that have been without a fault for a while; none if etcd has not."""
        etcd, now = self._history.etcd, self._history.timeline.now
        if now - self._disturbed <= RECOVERY or etcd.alarm or not all(each.healthy for each in etcd.members):
            return []
        return [
            node
            for node in self._history.nodes
            if node.running
            and node.serving
            and not node.paused
            and node.cut is None
            and not node.chances.lost
            and (node.trouble_since is None or now - node.trouble_since > RECOVERY)
        ]

    def _check_times(self) -> None:
        now = self._history.timeline.now
        for node in self._history.nodes:
            if node.serving and not node.paused and node.cut is None and node.cluster.state is State.MEMBER:
                self._well[node] = now
        healthy = self._healthy()
        if not healthy:
            return
        for node in healthy:
            if node.cluster.state is not State.MEMBER:
                raise Broken(f"{node.name} is no member, but {node.cluster.state}: {node.cluster.degradations()}")
        for server in self._history.servers:
            if server.homes and now - server.since > SPREAD and all(home in healthy for home in server.homes):
                for node in healthy:
                    for name, protocol in server.services:
                        found = [
                            each.provider
                            for each in node.registry.find(name, protocol)
                            if each.hostport == server.hostport
                        ]
                        if not found:
                            raise Broken(f"{node.name} does not find {name} of server {server.number} after a while")
                        self._check_newest(node, server, (name, protocol), found)
        for queue in (("space", "queue0"), ("space", "queue1")):
            owners = [node.name for node in healthy if queue in node.owned]
            if len(owners) > 1:
                raise Broken(f"{queue} has the owners {owners}")

    def _check_newest(self, node: Node, server: Server, key: tuple[str, str], found: list[int]) -> None:
        """Of several sessions of a server, a broker finds the one of the newest act, if that was one without faults."""
        home, id, at = self._acts.get((server.number, key), (None, 0, 0.0))
        if home is None or server.homes.get(home) != id or self._disturbed > at:
            return
        if (
            self._history.timeline.now - at > SPREAD
            and all(each.trouble_since is None or each.trouble_since < at for each in server.homes)
            and found != [id]
        ):
            raise Broken(f"{node.name} finds {key} of server {server.number} by {found}, the newest act is {id}")

    # the end

    def settled(self) -> None:
        """All registries are equal; nothing live is missing, nothing dead remains."""
        history = self._history
        views = {}
        for node in history.nodes:
            if node.failure is not None or not node.running:
                raise Broken(f"{node.name} has failed: {node.failure}")
            if node.cluster.state is not State.MEMBER or node.cluster.degradations():
                raise Broken(f"{node.name} is no member, but {node.cluster.state}: {node.cluster.degradations()}")
            if node.cluster.counts()["cluster.bad-values"]:
                raise Broken(f"{node.name} has read a value that is not of the layout")
            views[node.name] = self._view(node)
        first = views[history.nodes[0].name]
        expected = {
            (key, server.hostport, server.services[key])
            for server in history.servers
            if server.homes
            for key in server.services
        }
        for name, view in views.items():
            places = sorted((key, each[5], each[6]) for key, rows in view.items() for each in rows)
            if places != sorted(expected):
                missing, more = sorted(expected - set(places)), sorted(set(places) - expected)
                raise Broken(f"{name} misses {missing}, and finds {more}; {len(places)} of {len(expected)}")
            for key, rows in view.items():
                if rows != first[key]:
                    raise Broken(f"{name} and {history.nodes[0].name} differ in {key}: {_only(rows, first[key])}")
        for node in history.nodes:
            others = {(row[0], row[5]) for rows in views[node.name].values() for row in rows if row[4] != node.name}
            _, record = node.disk.load_record() or (0.0, {})
            keys = {name: layout.registration_of(name.encode()) for name in record}
            recorded = [layout.registration(key, record[name].encode()) for name, key in keys.items()]
            written = {(each.provider.id, each.service.hostport) for each in recorded}
            if written != others:
                raise Broken(f"the record of {node.name} lacks {others - written}, and has {written - others}")
        self._settled_etcd(views[history.nodes[0].name])

    def _view(self, node: Node) -> dict[tuple[str, str], list[tuple[Any, ...]]]:
        """Return what a broker finds, with holders, loads, and the reasons of failing checks."""
        view = {}
        for key, services in self._found(node).items():
            rows = []
            for each in services:
                provider = node.registry.provider(each.provider)
                holder = provider.broker or node.name
                details = provider.details
                check = node.registry.check_of(each)
                failing = check is not None and check.state is CheckState.FAILING
                rows.append(
                    (
                        provider.id,
                        provider.label,
                        provider.wire,
                        provider.address,
                        holder,
                        each.hostport,
                        each.info,
                        each.lasting,
                        provider.load,
                        details and details.requests,
                        check.reason if failing else None,
                    )
                )
            view[key] = rows
        return view

    def _settled_etcd(self, view: dict[tuple[str, str], list[tuple[Any, ...]]]) -> None:
        """The keys in etcd are those of what is found."""
        history = self._history
        found = {row[0] for rows in view.values() for row in rows}
        kinds: dict[str, list[str]] = {}
        for key in history.etcd.keys:
            kind, _, rest = key.decode().removeprefix("/elkobroker/default/").partition("/")
            kinds.setdefault(kind, []).append(rest)
        main = {
            history_key: history.etcd.keys[b"/elkobroker/default/s/" + history_key.encode()]
            for history_key in kinds.get("s", [])
        }
        providers = {msgspec.json.decode(each.value)["provider"] for each in main.values()}
        if providers != found or len(main) != sum(len(rows) for rows in view.values()):
            raise Broken(f"etcd has {sorted(main)} of {sorted(providers)}, and {sorted(found)} are found")
        for rest in kinds.get("t", []):
            value = msgspec.json.decode(history.etcd.keys[b"/elkobroker/default/t/" + rest.encode()].value)
            if value["provider"] not in {id for node in history.nodes for id in node.sessions}:
                raise Broken(f"etcd has the standby {rest}, which has no session")
        names = sorted(node.name for node in history.nodes)
        if sorted(kinds.get("b", [])) != names or sorted(kinds.get("beat", [])) != names:
            raise Broken(f"etcd has the members {kinds.get('b')}")
        owners: dict[tuple[str, str], list[str]] = {}
        for node in history.nodes:
            stale = set(node.registry.mirrored()) - found
            if stale:
                raise Broken(f"{node.name} still mirrors {sorted(stale)}")
            for queue in node.owned:
                owners.setdefault(queue, []).append(node.name)
        for queue, several in owners.items():
            if len(several) > 1:
                raise Broken(f"{queue} has the owners {several}")
        claims = {
            (node.cluster.claim_of("space", name), name) for node in history.nodes for name in ("queue0", "queue1")
        }
        if len({(claim and claim.owner, name) for claim, name in claims}) > 2:
            raise Broken(f"the brokers differ in the owners of queues: {claims}")


def _only(rows: list[tuple[Any, ...]], others: list[tuple[Any, ...]]) -> str:
    """Return the rows that only one of two lists has."""
    return f"{[row for row in rows if row not in others]} {[row for row in others if row not in rows]}"
