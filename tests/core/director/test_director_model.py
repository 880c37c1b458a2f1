"""Anything that servers, users and the clock may do, in any order.

The tables agree with each other and with a plain list of what each link reports, and no server is told to close what it
alone has open.
"""

from __future__ import annotations

import pytest
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from broker.core.director import farm_tables
from broker.core.director.director_interfaces import Close, DirectorSettings, Granted
from broker.core.director.farm_state import Reservation
from broker.core.errors import Reason, Refusal
from tests.core.director.rig import Rig, Side, check
from tests.examples import examples

LINKS = st.integers(0, 4)
CONTEXTS = st.sampled_from(["context-a", "context-c-1", "context-c-2", "context-c-3"])
USERS = st.sampled_from(["user-joe", "user-bob-1", "user-bob-2", "user-eve-7"])
CAPACITIES = st.integers(-1, 4)
EACH_USER = 2
"""Reservations that one user may have: less than there are contexts."""


class Model(RuleBasedStateMachine):
    """Three servers: one has three links, of which one gives its address late, as one of the other servers does."""

    ADDRESSES = ("one:1", "one:1", "two:1", "one:1", "three:1")
    LATE = (3, 4)

    def __init__(self) -> None:
        super().__init__()
        self.rig = Rig(DirectorSettings(user_reservations=EACH_USER))
        self.links: list[Side | None] = [None] * 5
        self.addressed = [False] * 5
        self.reports: list[dict[str, set[str]]] = [{} for _ in range(5)]
        self.admin = self.rig.admin()
        for name in ("context-a", "context-c", "context-c-1"):
            self.rig.director.watch_context(self.admin, name)
        for name in ("user-joe", "user-bob", "user-bob-1"):
            self.rig.director.watch_user(self.admin, name)

    def server_of(self, number: int) -> object:
        return self.ADDRESSES[number] if self.addressed[number] else number

    @rule(number=LINKS, capacity=CAPACITIES, restricted=st.booleans())
    def connect(self, number: int, capacity: int, restricted: bool) -> None:
        if self.links[number] is None:
            side = self.links[number] = self.rig.link(self.ADDRESSES[number])
            if number not in self.LATE:
                side.link.address("tcp", self.ADDRESSES[number])
                self.addressed[number] = True
            side.link.will_serve("context", capacity, restricted)

    @rule(number=LINKS)
    def disconnect(self, number: int) -> None:
        side = self.links[number]
        if side is not None:
            side.link.leave()
            self.links[number] = None
            self.addressed[number] = False
            self.reports[number] = {}

    @rule(number=st.sampled_from(LATE))
    def give_the_late_address(self, number: int) -> None:
        side = self.links[number]
        if side is not None:
            side.link.address("tcp", self.ADDRESSES[number])
            self.addressed[number] = True

    @rule(number=LINKS, capacity=CAPACITIES)
    def serve(self, number: int, capacity: int) -> None:
        side = self.links[number]
        if side is not None:
            side.link.will_serve("context", capacity, False)

    @rule(number=LINKS, load=st.sampled_from([0.0, 0.0004, 0.3]))
    def load(self, number: int, load: float) -> None:
        side = self.links[number]
        if side is not None:
            side.link.load(load)

    @rule(number=LINKS, context=CONTEXTS, yours=st.booleans(), maxcap=CAPACITIES, basecap=CAPACITIES)
    def open(self, number: int, context: str, yours: bool, maxcap: int, basecap: int) -> None:
        side = self.links[number]
        if side is not None:
            side.open(context, yours, maxcap, basecap)
            self.reports[number].setdefault(context, set())

    @rule(number=LINKS, context=CONTEXTS, how=st.booleans())
    def gate(self, number: int, context: str, how: bool) -> None:
        self.report(number, context, lambda side: side.link.gate(context, how, None))

    @rule(number=LINKS, context=CONTEXTS)
    def close(self, number: int, context: str) -> None:
        if self.report(number, context, lambda side: side.link.closed(context)):
            del self.reports[number][context]

    @rule(number=LINKS, context=CONTEXTS, user=USERS)
    def enter(self, number: int, context: str, user: str) -> None:
        if self.report(number, context, lambda side: side.enter(context, user)):
            self.reports[number][context].add(user)

    @rule(number=LINKS, context=CONTEXTS, user=USERS)
    def exit(self, number: int, context: str, user: str) -> None:
        if user in self.reports[number].get(context, ()):
            self.reports[number][context].remove(user)
            self.report(number, context, lambda side: side.link.exited(context, user))
        else:
            side = self.links[number]
            if side is not None:
                with pytest.raises(Refusal):
                    side.link.exited(context, user)

    def report(self, number, context: str, say) -> bool:
        """Say something of a context. Returns whether the link reports it; else it must have been refused."""
        side = self.links[number]
        if side is None:
            return False
        if context in self.reports[number]:
            say(side)
            return True
        with pytest.raises(Refusal):
            say(side)
        return False

    @rule(
        context=st.sampled_from(["context-a", "context-c", "context-c-1"]),
        user=st.sampled_from([None, "user-joe", "user-bob"]),
        internal=st.booleans(),
        by=st.sampled_from(["first", "second"]),
        most=st.sampled_from([2, 100]),
    )
    def reserve(self, context: str, user: str | None, internal: bool, by: str, most: int) -> None:
        farm = self.rig.director._farm
        before = self.reservations()
        mine = [each for each in before if each.requester == by]
        of_user = [each for each in before if user is not None and each.user == user]
        if user is None and not internal:
            of_user = [each for each in mine if each.holder == (by,)]
        own = [each for each in of_user if context in (each.asked, each.name)]
        room = {server: server.capacity - server.users - server.reserved for server in farm.servers}
        for each in own:
            if each.place.server in room:
                room[each.place.server] += 1
        seats = {
            name: (each.maxcap, len(each.users) + sum(other not in own for other in each.reservations))
            for name, each in farm.presence.contexts.items()
            if each.server.links
        }
        try:
            answer = self.rig.reserve(context, user, internal=internal, by=by, most=most)
        except Refusal as refusal:
            assert refusal.reason is Reason.LIMIT
            assert self.reservations() == before
            assert (len(mine) >= most and not internal) or sum(each.requester == by for each in of_user) >= EACH_USER
            assert not any(each.requester == by for each in own)
            return
        after = self.reservations()
        gone = [each for each in before if each not in after and each.place.server.links]
        if not isinstance(answer, Granted):
            assert not gone
            assert set(after) <= set(before)
            return
        (new,) = (each for each in after if each not in before)
        assert (new.name, new.user, new.requester) == (answer.context, user, by)
        assert all(each in of_user for each in gone)
        assert not any(each in after for each in own)
        for each in gone:
            assert {each.asked, each.name} & {new.asked, new.name} or each.requester != by
        assert user is None or sum(each.user == user for each in after) <= EACH_USER
        assert sum(each.requester == by for each in after) <= (len(mine) + 1 if internal else max(most, len(mine)))
        (server,) = (server for server in farm.servers if server.addresses.get("tcp") == answer.hostport)
        assert server.capacity < 0 or room[server] > 0
        if answer.context in seats:
            maxcap, taken = seats[answer.context]
            assert maxcap < 0 or taken < maxcap
            if answer.context != context:
                basecap = farm.presence.contexts[answer.context].basecap
                assert basecap < 0 or taken < basecap

    def reservations(self) -> list[Reservation]:
        return list(self.rig.director._reservations)

    @rule(seconds=st.sampled_from([1.0, 10.0, 31.0]))
    def wait(self, seconds: float) -> None:
        self.rig.clock.advance(seconds)

    def settled(self) -> bool:
        """True if no cleanup of departed servers is pending."""
        return not self.rig.director._farm._cleanup._work

    @invariant()
    def the_tables_agree(self) -> None:
        if self.settled():
            check(self.rig.director)

    @invariant()
    def what_is_reported_is_open_and_what_is_not_is_not(self) -> None:
        director = self.rig.director
        if not self.settled():
            return
        assert set(director.contexts()) == {context for report in self.reports for context in report}
        for context in director._farm.presence.contexts.values():
            own = [number for number, side in enumerate(self.links) if side in [s.link for s in context.server.links]]
            assert len({self.server_of(number) for number in own}) == 1
            users = set[str]().union(*(self.reports[number].get(context.name, ()) for number in own))
            assert set(context.users) == users
            for user in users:
                assert context.name in director.find_user(user).contexts

    @invariant()
    def nobody_closes_what_no_other_server_has(self) -> None:
        for number, side in enumerate(self.links):
            for order in side.take() if side is not None else ():
                if isinstance(order, Close):
                    assert order.dup
                    assert any(
                        order.context in report and self.server_of(other) != self.server_of(number)
                        for other, report in enumerate(self.reports)
                    )

    @invariant()
    def who_watches_knows(self) -> None:
        latest = {(type(place), getattr(place, "context", None) or place.user): place for place in self.admin.heard}  # type: ignore[attr-defined]
        for (_, name), place in latest.items():
            if not self.settled():
                return
            find = self.rig.director.find_context if hasattr(place, "context") else self.rig.director.find_user
            now = find(name)
            # The order of clones and of contexts is that of their coming.
            assert now == place


class SlowModel(Model):
    """The same, where what is gone is put away so slowly that everything else happens meanwhile."""

    def __init__(self) -> None:
        self._steps = farm_tables.STEPS_PER_TURN
        farm_tables.STEPS_PER_TURN = 1
        super().__init__()

    def teardown(self) -> None:
        farm_tables.STEPS_PER_TURN = self._steps
        self.rig.clock.advance(0)
        self.the_tables_agree()
        self.what_is_reported_is_open_and_what_is_not_is_not()
        self.who_watches_knows()


SETTINGS = hypothesis_settings(max_examples=examples(60), stateful_step_count=40, deadline=None)
TestModel = Model.TestCase
TestModel.settings = SETTINGS
TestSlowModel = SlowModel.TestCase
TestSlowModel.settings = SETTINGS
