"""A director with Context Servers and administrators that record what they are told, and a check of all its tables."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from twisted.internet.task import Clock

from broker.core.director.director import Director
from broker.core.director.director_interfaces import (
    UNLIMITED,
    Denied,
    DirectorSettings,
    Granted,
    IContextServer,
    Request,
)
from broker.core.director.farm_state import context_set, user_set
from broker.core.director.farm_tables import CloneSet


class Peer:
    """A link of a Context Server, or an administrator: it keeps what it is told."""

    def __init__(self, log: list[tuple[str, object]], name: str) -> None:
        self._log = log
        self.name = name
        self.heard: list[object] = []

    def receive(self, news: object) -> None:
        self.heard.append(news)
        self._log.append((self.name, news))

    def take(self) -> list[object]:
        """The notices since the last call."""
        heard, self.heard = self.heard, []
        return heard


class Side(Peer):
    """A Context Server's link, with both its ends."""

    link: IContextServer

    def open(
        self, context: str, yours: bool = False, maxcap: int = UNLIMITED, basecap: int | None = None, **more: bool
    ) -> None:
        self.link.opened(context, yours, maxcap, maxcap if basecap is None else basecap, more.get("restricted", False))

    def enter(self, context: str, *users: str) -> None:
        for user in users:
            self.link.entered(context, user)


class Rig:
    """The director, its clock, and a log of all that was told, in its order."""

    def __init__(self, settings: DirectorSettings | None = None) -> None:
        self.clock = Clock()
        self.director = Director(self.clock, settings)
        self.log: list[tuple[str, object]] = []

    def link(self, label: str) -> Side:
        """A Context Server that has said nothing but its label."""
        side = Side(self.log, label)
        side.link = self.director.join(label, side)
        return side

    def server(
        self,
        label: str,
        families: Iterable[str] = ("context",),
        addresses: dict[str, str] | None = None,
        capacity: int = UNLIMITED,
        restricted: bool = False,
    ) -> Side:
        """One that has said its addresses, by default one of tcp made of its label, and what it serves."""
        side = self.link(label)
        for protocol, hostport in ({"tcp": f"{label}:1"} if addresses is None else addresses).items():
            side.link.address(protocol, hostport)
        for family in families:
            side.link.will_serve(family, capacity, restricted)
        return side

    def admin(self, name: str = "admin") -> Peer:
        return Peer(self.log, name)

    def reserve(
        self,
        context: str,
        user: str | None = None,
        protocol: str = "tcp",
        internal: bool = False,
        by: object = None,
        most: int = 10_000,
    ) -> Granted | Denied:
        """Reserve over the connection ``by``, or a new one. The answer comes at once."""
        try:
            answer = self.director.reserve(
                Request(object() if by is None else by, protocol, context, user, internal, most)
            )
        except Denied as denied:
            return denied
        assert isinstance(answer, Granted), answer
        return answer

    def granted(self, context: str, user: str | None = None, **more: object) -> Granted:
        answer = self.reserve(context, user, **more)  # type: ignore[arg-type]
        assert isinstance(answer, Granted), answer
        return answer

    def denied(self, context: str, user: str | None = None, **more: object) -> str:
        answer = self.reserve(context, user, **more)  # type: ignore[arg-type]
        assert isinstance(answer, Denied), answer
        return answer.text

    def turn(self) -> None:
        """One turn of the reactor: calls that are due now, without those that they schedule."""
        for call in [call for call in self.clock.calls if call.getTime() <= self.clock.seconds()]:
            self.clock.calls.remove(call)
            call.called = 1
            call.func(*call.args, **call.kw)

    def count(self, name: str) -> int:
        return self.director.counts()[name]


def check(director: Director) -> None:
    """Recompute every table from the state of the servers, and compare."""
    farm = director._farm
    presence = farm.presence
    reservations = director._reservations
    waiting = list(reservations)
    shown = {}
    hidden = 0
    present: Counter[str] = Counter()
    for server in farm.servers:
        mask = sum(report.bit for report in server.links)
        assert mask.bit_count() == len(server.links) > 0
        assert server.users == sum(len(context.users) for context in server.contexts.values())
        assert server.reserved == sum(reservation.place.server is server for reservation in waiting)
        visible = [context for context in server.contexts.values() if not context.hidden]
        hidden += len(server.contexts) - len(visible)
        assert server.shown == len(visible)
        assert server.shown_users == sum(len(context.users) for context in visible)
        for context in server.contexts.values():
            assert context.reporters
            assert not context.reporters & ~mask
            assert all(bits and not bits & ~mask for bits in context.users.values())
        for context in visible:
            shown[context.name] = context
            present.update(list(context.users))
        for placement in server.placements.values():
            assert placement.reservations
            assert placement.server is server
        keys = {
            (family, protocol, internal)
            for family, restricted in server.families.items()
            for protocol in server.addresses
            for internal in ((True,) if restricted else (True, False))
        }
        assert {
            key
            for key, queue in farm.selection._queues.items()
            if server in queue._entries or queue in server.room_waiters
        } == keys
        assert server.full or not server.room_waiters
        assert all(server in each._rooms for each in server.room_waiters if isinstance(each, CloneSet))
    assert presence.contexts == shown
    assert set(presence.hidden) <= set(shown)
    assert sum(len(presence.hidden.all(name)) for name in presence.hidden) == hidden
    assert set(presence.users) == set(present)
    assert presence.present == present.total()
    for user in present:
        assert {context.name for context in presence.users.all(user)} == {
            c.name for c in shown.values() if user in c.users
        }
    of_sets: dict[str, Counter[str]] = {}
    for context in shown.values():
        for user in context.users:
            user_base = user_set(user)
            if user_base is not None:
                of_sets.setdefault(user_base, Counter())[context.name] += 1
    assert set(presence._user_sets) == set(of_sets)
    for user_base, places in of_sets.items():
        assert {context.name for context in presence._user_sets.all(user_base)} == set(places)
        assert presence._user_sets.count(user_base) == len(places)
    sets: dict[str, set[str]] = {}
    for name in shown:
        base = context_set(name)
        if base is not None:
            sets.setdefault(base, set()).add(name)
    assert {name: set(clones.clones) for name, clones in presence.sets.items()} == sets
    for clones in presence.sets.values():
        inviting = {context for context in clones.clones.values() if context.inviting}
        assert {context for rooms in clones._rooms.values() for context in rooms} == inviting
        assert set(clones.servers) == {context.server for context in clones.clones.values()}
        for server in clones._rooms:
            assert (server in clones._ready) != (clones in server.room_waiters)
    quotas = reservations.quotas
    assert quotas._requesters == Counter(reservation.requester for reservation in waiting)
    held: dict[object, dict[str, object]] = {}
    for reservation in waiting:
        if reservation.holder is not None:
            for name in {reservation.asked, reservation.name}:
                assert held.setdefault(reservation.holder, {}).setdefault(name, reservation) is reservation
        if reservation.user is None:
            assert reservation in reservations._anonymous.all((reservation.place.server, reservation.name))
    assert quotas._held == held
    assert len(reservations._anonymous) == len({(r.place.server, r.name) for r in waiting if r.user is None})
    for name, placement in reservations.placements.items():
        assert placement.server.placements[name] is placement
    for reservation in waiting:
        assert reservation in reservation.place.reservations
    assert bool(waiting) <= (reservations._timer is not None)
    for line in reservations._lines:
        assert [reservation.due for reservation in line] == sorted(reservation.due for reservation in line)
