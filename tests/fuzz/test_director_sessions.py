"""Director sessions: whatever peers say, in whatever order, however they come and go.

A model of what each connection of each server has reported goes along. Invariants at each step:

- nothing fails, and all that is sent is a message of the protocol;
- the director's state of contexts and users is that of the model: each user is found at their server;
- a reservation that is given has been told to the server at its address, and no other;
- nobody is told to close a context: no two servers of the model have one of the same name;
- no server is disconnected.
"""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from broker.wires.elko.codec.director_messages import VOCABULARY
from tests.examples import examples
from tests.wires.elko.director_recording import DirectorFarm
from tests.wires.recording import Client

pytestmark = pytest.mark.long

SERVERS, LINKS = 2, 3
"""Servers, and connections that each may have."""

CONTEXTS = ["context-a", "context-c-1", "context-c-2", "other-x"]
USERS = ["user-bob-1", "user-bob-2", "user-eve", "anon"]

servers = st.integers(0, SERVERS - 1)
links = st.integers(0, LINKS - 1)
contexts = st.sampled_from(CONTEXTS)
users = st.sampled_from(USERS)
NAMES = [*CONTEXTS, *USERS, "context-s0a", "context-s1c", "user-bob", "", "-", "--", "x" * 300, "\U0001f600"]
names = st.sampled_from(NAMES)
values: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | st.floats(allow_nan=False, allow_infinity=False) | names,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(names, inner, max_size=2),
    max_leaves=4,
)
OPS = [str(each.__struct_config__.tag) for each in VOCABULARY.messages]
FIELDS = sorted({field for each in VOCABULARY.messages for field in each.__struct_encode_fields__} - {"to", "op"})
HARMLESS = sorted(set(OPS) - {"auth", "disconnect", "address", "context", "user", "willserve", "load", "gate"})
"""Messages of any peer that change nothing in the model."""

TO_PROVIDERS = {"doreserve", "say", "relay", "close", "reinit", "shutdown", "reserve", "pong", "debug"}


class Link:
    """One connection of a server, and what it has reported."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self.open: dict[str, set[str]] = {}


class Directed(RuleBasedStateMachine):
    """See the head of this file."""

    @initialize()
    def begin(self) -> None:
        self.farm = DirectorFarm()
        self.links: dict[tuple[int, int], Link] = {}
        self.admin = self.farm.admin()
        self.watcher = self.farm.admin()
        self.user = self.farm.user()
        for server, link in ((0, 0), (0, 1), (1, 0)):
            self.connect(server, link)
            self.report_context(server, link, CONTEXTS[0], on=True, yours=False, cap=-1)
            self.report_context(server, link, CONTEXTS[1], on=True, yours=True, cap=2)
            self.enter_somewhere(link, USERS[link])

    def context(self, server: int, context: str) -> str:
        """A name of that server's own; a clone's remains one."""
        family, rest = context.split("-", 1)
        return f"{family}-s{server}{rest}"

    @rule(server=servers, link=links)
    def connect(self, server: int, link: int) -> None:
        if (server, link) not in self.links:
            self.links[server, link] = Link(self.farm.server(f"cs{server}"))

    @rule(server=servers, link=links, orderly=st.booleans())
    def leave(self, server: int, link: int, orderly: bool) -> None:
        gone = self.links.pop((server, link), None)
        if gone is None:
            return
        if orderly:
            gone.client.say("provider", "disconnect")
            assert gone.client.closed
        else:
            gone.client.drop()

    @rule(server=servers, link=links, context=contexts, on=st.booleans(), yours=st.booleans(), cap=st.integers(-1, 3))
    def report_context(self, server: int, link: int, context: str, on: bool, yours: bool, cap: int) -> None:
        if said := self.links.get((server, link)):
            name = self.context(server, context)
            said.client.say("provider", "context", context=name, open=on, yours=yours, maxcap=cap)
            if on:
                said.open.setdefault(name, set())
            else:
                said.open.pop(name, None)

    @rule(server=servers, link=links, context=contexts, user=users, on=st.booleans())
    def report_user(self, server: int, link: int, context: str, user: str, on: bool) -> None:
        if said := self.links.get((server, link)):
            name = self.context(server, context)
            said.client.say("session", "user", context=name, user=user, on=on)
            if name in said.open:
                (said.open[name].add if on else said.open[name].discard)(user)

    @rule(pick=st.integers(0, 1_000), user=users)
    def enter_somewhere(self, pick: int, user: str) -> None:
        there = [(link, context) for link in self.links.values() for context in link.open]
        if there:
            link, context = there[pick % len(there)]
            link.client.say("provider", "user", context=context, user=user, on=True)
            link.open[context].add(user)

    @rule(pick=st.integers(0, 1_000))
    def exit_somewhere(self, pick: int) -> None:
        there = [(link, context, user) for link in self.links.values() for context in link.open for user in USERS]
        there = [(link, context, user) for link, context, user in there if user in link.open[context]]
        if there:
            link, context, user = there[pick % len(there)]
            link.client.say("provider", "user", context=context, user=user, on=False)
            link.open[context].discard(user)

    @rule(server=servers, link=links, load=st.floats(-1, 2), gate=st.booleans(), context=contexts)
    def report_more(self, server: int, link: int, load: float, gate: bool, context: str) -> None:
        if said := self.links.get((server, link)):
            said.client.say("provider", "load", factor=load)
            said.client.say("provider", "gate", context=self.context(server, context), open=gate)

    @rule(server=servers, context=contexts, user=st.none() | users, exact=st.booleans())
    def reserve(self, server: int, context: str, user: str | None, exact: bool) -> None:
        self.hear()
        name = self.context(server, context) if exact else context.rpartition("-")[0]
        self.user.say("director", "reserve", protocol="tcp", context=name, user=user)
        [answer] = self.user.take()
        told = [
            (key[0], order)
            for key, link in self.links.items()
            for order in link.client.take()
            if order["op"] == "doreserve"
        ]
        if "deny" in answer:
            assert told == []
            return
        [(chosen, order)] = told
        assert answer["hostport"] == f"cs{chosen}:9000"
        for member in ("context", "user", "reservation"):
            assert order.get(member) == answer.get(member)

    @rule(name=names, context=st.booleans(), on=st.booleans())
    def watch(self, name: str, context: bool, on: bool) -> None:
        self.watcher.say("admin", "watch" if on else "unwatch", **{"context" if context else "user": name})

    @rule(seconds=st.sampled_from([0.1, 10.0, 31.0]))
    def wait(self, seconds: float) -> None:
        self.farm.clock.advance(seconds)

    @rule(
        to=st.sampled_from(["director", "provider", "session", "admin", "error", "x"]),
        op=st.sampled_from(HARMLESS),
        parameters=st.dictionaries(st.sampled_from(FIELDS), values, max_size=3),
        who=st.integers(0, 2),
    )
    def say_anything(self, to: str, op: str, parameters: dict[str, Any], who: int) -> None:
        """Of a provider, an administrator or a user that has nothing; who may be closed for it."""
        client = self.farm.authenticated(["provider", "admin", "director"][who], "any")
        client.say(to, op, **parameters)
        self.farm.settle()
        client.take()
        if not client.closed:
            client.drop()

    @rule(data=st.binary(max_size=30), server=servers, link=links)
    def send_anything(self, data: bytes, server: int, link: int) -> None:
        said = self.links.get((server, link))
        if said is not None and all(byte < 0x80 for byte in data):
            said.client.send(data + b"\n\n")

    def hear(self) -> None:
        """All notices are as the model predicts."""
        for link in self.links.values():
            for told in link.client.take():
                assert told["op"] in TO_PROVIDERS
                assert not (told["op"] == "close" and "dup" in told)
        for told in self.watcher.take():
            assert told["op"] in ("context", "user", "debug")

    @invariant()
    def no_server_is_disconnected(self) -> None:
        assert not any(link.client.closed for link in self.links.values())
        assert not self.watcher.closed
        self.hear()

    @invariant()
    def the_director_knows_what_is_there(self) -> None:
        there: dict[str, set[str]] = {}
        for link in self.links.values():
            for context, inside in link.open.items():
                there.setdefault(context, set()).update(inside)
        [dump] = self.admin.ask("admin", "dump", depth=3)
        alive = {server for server, _ in self.links}
        assert dump["numproviders"] == len(alive)
        shown = {
            context["context"]: set(context["users"])
            for provider in dump.get("providers", ())
            for context in provider.get("contexts", ())
        }
        assert shown == there
        assert dump["numcontexts"] == len(there)
        assert dump["numusers"] == sum(map(len, there.values()))
        [listed] = self.admin.ask("admin", "listusers")
        assert sorted(listed["users"]) == sorted(set().union(*there.values()))
        for user in USERS:
            [found] = self.admin.ask("admin", "find", user=user)
            assert set(found.get("contexts", ())) == {context for context, inside in there.items() if user in inside}
            assert found["on"] is bool(found.get("contexts"))
        json.dumps(dump)


Directed.TestCase.settings = settings(max_examples=examples(100), stateful_step_count=40, deadline=None)
TestDirected = Directed.TestCase
