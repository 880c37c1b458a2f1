"""Directors of three brokers over real links: one decides for all, and a link that ends stops nobody."""

from __future__ import annotations

from random import Random
from typing import Any

from twisted.internet.defer import Deferred, maybeDeferred

from broker.core.director.director_interfaces import DirectorSettings, DoReserve, Granted, IContextServer, Request
from broker.core.director.linked_director import LinkedDirector
from tests.cluster.links.rig import LinksRig, Members, Node
from tests.core.director.linked import Claims, Owners
from tests.net.waiting import reactor, until


class Server:
    """A Context Server, which is connected to several directors."""

    def __init__(self, label: str, *directors: LinkedDirector) -> None:
        self.heard: list[tuple[LinkedDirector, Any]] = []
        self.links: list[IContextServer] = []
        for director in directors:
            link = director.join(label, Line(self, director))
            link.address("tcp", f"{label}:1")
            link.will_serve("context", -1, False)
            self.links.append(link)


class Line:
    def __init__(self, server: Server, director: LinkedDirector) -> None:
        self.server, self.director = server, director

    def receive(self, order: object) -> None:
        self.server.heard.append((self.director, order))


class Directors(LinksRig):
    def director(self, name: str) -> tuple[Node, LinkedDirector]:
        node = self.node(name, join=False)
        settings = DirectorSettings(reservation_seconds=0.5)
        members = Members(name, self.table)
        director = LinkedDirector(reactor, settings, members, self.owners(name), node.links, lambda: None)
        self.addCleanup(director.stop)
        return node, director

    def owners(self, name: str) -> Owners:
        if not hasattr(self, "claims"):
            self.claims = Claims(reactor, Random(1), 0.0)
        return Owners(self.claims, name)

    def ask(self, director: LinkedDirector, context: str, user: str) -> Deferred[Granted]:
        answer: Deferred[Any] = maybeDeferred(director.reserve, Request(user, "tcp", context, user, False, 10))  # type: ignore[call-overload]
        return answer

    async def test_one_director_decides_for_all_and_its_end_stops_nobody(self) -> None:
        (a, first), (b, second), (c, third) = (self.director(name) for name in "abc")
        server = Server("cs1", first, second, third)
        self.join(a, b, c)
        await until(lambda: [each.decider for each in (first, second, third)] == ["a", "a", "a"])
        granted = await self.ask(third, "context-inn", "user-joe")
        self.assertEqual(server.heard, [(first, DoReserve("context-inn", "user-joe", granted.reservation))])
        for link in server.links:
            link.opened("context-inn", link is server.links[0], -1, -1, False)
            link.entered("context-inn", "user-joe-1")
        # The links of the first one end; the other two agree on one of them.
        await a.links.stop()
        await until(lambda: [each.decider for each in (second, third)] == ["b", "b"])
        server.heard.clear()
        granted = await self.ask(third, "context-inn", "user-ann")
        self.assertEqual(server.heard, [(second, DoReserve("context-inn", "user-ann", granted.reservation))])
        self.assertTrue(third.find_user("user-joe").on)
        # The first one is alone.
        self.assertEqual(first.decider, "a")
        self.assertEqual((await self.ask(first, "context-inn", "user-tom")).hostport, "cs1:1")
        # The timers of the reservations, which were not used.
        await until(lambda: not any(each.counts()["reservations"] for each in (first, second, third)))

    async def test_many_requests_at_once_are_answered_in_one_place(self) -> None:
        (a, first), (b, second) = (self.director(name) for name in "ab")
        servers = [Server(f"cs{number}", first, second) for number in range(3)]
        self.join(a, b)
        await until(lambda: second.decider == "a")
        answers = [self.ask(second, f"context-r{number % 50}", f"user-{number}") for number in range(500)]
        granted = [await answer for answer in answers]
        self.assertEqual(len({(each.context, each.hostport) for each in granted}), 50)
        self.assertEqual(sum(len(each.heard) for each in servers), 500)
        self.assertTrue(all(told[0] is first for each in servers for told in each.heard))
        await until(lambda: not any(each.counts()["reservations"] for each in (first, second)))


class DirectorsWithoutKeys(Directors):
    curve = False
