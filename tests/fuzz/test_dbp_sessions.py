"""DBP sessions: whatever peers say by either way, however they come and go, whatever time and the operator do.

Invariants at each step:

- nothing fails;
- the registry has exactly the services that the catalogue has, each once, as the catalogue knows it;
- a service and its connection know each other, and no service has a connection that is closed;
- every lease belongs to a registered service, and every service that must be checked has one;
- a peer that was sent away is sent nothing any more until it connects again;
- a REQ socket is sent one message for a request at the most, and nothing between; a node of Hermes can read it;
- nothing but beacons goes to the port of the beacon, and no datagram is too long;
- a service that beats in time stays, and one that is silent for too long is removed.

In the end nothing is left of any of them.
"""

from __future__ import annotations

import json
from contextlib import ExitStack
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from broker.core.liveness import TICK, Lease
from broker.core.model import Rights
from broker.wires.dbp.codec.listings import ERROR
from broker.wires.dbp.dbp_settings import Dbp
from broker.wires.dbp.sessions.service_state import ServiceEntry, hostport
from tests.examples import examples
from tests.fuzz.test_dbp import frame_lists
from tests.recording.logs import nothing_fails
from tests.wires.dbp.recording import BEACON_PORT, ELSEWHERE, FLOAT32, HERE, TEXT, THERE, DbpFarm, DbpPeer, T

pytestmark = pytest.mark.long

NAMES = ["Rohan", "Gondor"] * 4 + ["Mordor", "elkobroker", "Error", "no\x00", "n" * 255]

SOURCES = [(THERE, 40_000), (THERE, 40_001), (ELSEWHERE, 40_000), (HERE, 7), (THERE, BEACON_PORT)]

HERMES = {"interfaces": {"router": {"ip": "127.0.0.1", "port": 5247}}, "reg_time": "Sat Nov 21 07:37:01 2026"}

SETTINGS = [
    Dbp(),
    Dbp(check_address=False),
    Dbp(fall_back=False, interval=0.3, liveness=5),
    Dbp(probe=0.5),
    Dbp(services=2),
    Dbp(probe=0.2, least_interval=0.5, check_address=False),
]

LONGEST = 5 * 2.0
"""Seconds in which every service that is under a contract here is found to be silent."""

peers = st.integers(0, 6)
names = st.sampled_from(NAMES)
sources = st.sampled_from(SOURCES)
infos = st.fixed_dictionaries(
    {},
    optional={
        "heartbeat": st.sampled_from([0.01, 0.2, 0.5, 0.5, 1.0, 2.0, -1, "x"]),
        "liveness": st.sampled_from([1, 3, 5]),
        "port": st.sampled_from([0, 6000, 6001, "x"]),
        "ip": st.sampled_from(["127.0.0.1", THERE, "0.0.0.0", "::1", "rohan.example", "\x00"]),
        "load": st.sampled_from([0, 0.5, -1, "x"]),
        "interfaces": st.sampled_from([HERMES["interfaces"], {}, []]),
        "reg_time": st.just("now"),
    },
)


class Conversations(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.stack = ExitStack()
        self.stack.enter_context(nothing_fails())
        self.farm = DbpFarm(beacon=["127.255.255.255"])
        self.peers: list[DbpPeer] = []
        self.faithful = self.farm.dealer("192.0.2.99", b"faithful")
        """One that beats in time, whatever the others do. Nobody else has its address."""

    @initialize()
    def connect_all(self) -> None:
        farm = self.farm
        self.peers = [
            farm.dealer(THERE),
            farm.dealer(THERE, b"chosen"),
            farm.dealer(ELSEWHERE, time=FLOAT32),
            farm.req(THERE),
            farm.req(ELSEWHERE),
            farm.hermes(HERE),
            farm.hermes(THERE),
        ]
        self.faithful.registered("faithful", heartbeat=0.5)

    # what peers say

    def say(self, number: int, *frames: Any, raw: bool = False) -> None:
        peer = self.peers[number]
        self.look_at_replies()
        if peer.identity not in self.farm.open:
            self.connect_again(number)
        if raw:
            peer.send_raw(*frames)
        else:
            peer.send(*frames)
        if peer.socket_type == "REQ":
            replies = peer.take_raw()
            assert len(replies) <= 1
            for reply in replies:
                assert len(reply) >= 3
                sent = frames[2] if raw else peer.time
                if sent == FLOAT32:
                    # A node of Hermes dies of another time, and answers a reply without a body with nonsense.
                    assert len(reply) >= 4
                    assert len(reply[2]) == 4
                if reply[1] == b"o_O":
                    assert isinstance(json.loads(reply[3]), dict)
        self.look_at_replies()

    @rule(number=peers, frames=frame_lists)
    def say_anything(self, number: int, frames: list[bytes]) -> None:
        self.say(number, *frames, raw=True)

    @rule(number=peers, name=names, info=infos)
    def register(self, number: int, name: str, info: dict[str, Any]) -> None:
        self.say(number, "UwU", T, {**info, "name": name})

    @rule(number=peers, name=names | st.none(), info=infos)
    def update(self, number: int, name: str | None, info: dict[str, Any]) -> None:
        self.say(number, "UoU", T, info if name is None else {**info, "name": name})

    @rule(number=peers, source=sources, name=names, info=infos, ways=st.sampled_from(["", "u", "r", "ur"]))
    def serve(self, number: int, source: tuple[str, int], name: str, info: dict[str, Any], ways: str) -> None:
        """Register, and begin to beat."""
        self.connect_again(number)
        self.register(number, name, info)
        if "u" in ways:
            self.send_a_datagram((self.peers[number].address, source[1]), name, "<3")
        if "r" in ways:
            self.say_one_word(number, name, "<3")

    @rule(number=peers, name=names, command=st.sampled_from(["<3", "<3", "<3", "</3", "u_U", "ping", "u.u"]))
    def say_one_word(self, number: int, name: str, command: str) -> None:
        self.say(number, command, T, name)

    @rule(number=peers, command=st.sampled_from(["<3", "<3", "</3", "u.u", "OwO"]))
    def say_one_word_without_a_name(self, number: int, command: str) -> None:
        self.say(number, command, T)

    @rule(number=peers)
    def list_all(self, number: int) -> None:
        self.say(number, "u_U", T, "")

    # datagrams

    @rule(source=sources, name=names | st.just("faithful"), command=st.sampled_from(["<3", "<3", "<3", "</3", "u.u"]))
    def send_a_datagram(self, source: tuple[str, int], name: str, command: str) -> None:
        if name == "faithful" and not self.farm.catalogue.dbp.check_address:
            return
        self.farm.datagrams.receive(f" {command} 1795246600.000000 {name}".encode(), source)

    @rule(source=sources, command=st.sampled_from(["<3", "</3", "u.u"]))
    def send_a_datagram_without_a_name(self, source: tuple[str, int], command: str) -> None:
        self.farm.datagrams.receive(f" {command} 1795246600.000000".encode(), source)

    @rule(source=sources, data=st.binary(max_size=80) | st.sampled_from([b"SHALOM 1", b"Rohan <3", b"x" * 70_000]))
    def send_any_datagram(self, source: tuple[str, int], data: bytes) -> None:
        self.farm.datagrams.receive(data, source)

    # connections

    @rule(number=peers)
    def close(self, number: int) -> None:
        self.look_at_replies()
        peer = self.peers[number]
        peer.close()

    @rule(number=peers)
    def connect_again(self, number: int) -> None:
        """Connect, and replace the connection that is open, if one is."""
        self.look_at_replies()
        peer = self.peers[number]
        peer.connect()

    @rule(number=peers, entirely=st.booleans())
    def stop_reading(self, number: int, entirely: bool) -> None:
        peer = self.peers[number]
        if peer.identity in self.farm.open:
            peer.stop_reading(answers=not entirely)

    @rule()
    def read_on(self) -> None:
        for peer in self.peers:
            if peer.identity in self.farm.open:
                peer.read_on()

    # time and the operator

    @rule(steps=st.sampled_from([1, 3, 10, 30, 100]), step=st.sampled_from([0.005, 0.025, 0.04, 0.1]))
    def let_time_pass(self, steps: int, step: float) -> None:
        for number in range(steps):
            self.farm.clock.advance(step)
            if number % 3 == 0:
                self.farm.datagrams.receive(b" <3 %b faithful" % TEXT, ("192.0.2.99", 9))
                self.faithful.take()
                self.look_at_replies()

    @rule(seconds=st.sampled_from([5.0, -3_600.0]))
    def upset_the_clock(self, seconds: float) -> None:
        self.farm.clock.advance(seconds)
        self.farm.datagrams.receive(b" <3 %b faithful" % TEXT, ("192.0.2.99", 9))

    @rule(dbp=st.sampled_from(SETTINGS), rights=st.sampled_from([Rights(), Rights(("R*", "faithful"))]))
    def change_the_settings(self, dbp: Dbp, rights: Rights) -> None:
        self.farm.use(dbp, rights)
        assert all(rights.permits(entry.name) for entry in self.farm.catalogue)

    @rule(alive=st.sets(st.sampled_from([(THERE, 6000), (HERE, 5247), (THERE, 5247), (ELSEWHERE, 6001)])))
    def let_some_answer(self, alive: set[tuple[str, int]]) -> None:
        self.farm.probes.alive = alive

    # what always holds

    def look_at_replies(self) -> None:
        """Look at what came without being asked for."""
        for peer in self.peers:
            unasked = peer.take_raw() if peer.identity in self.farm.open else []
            if peer.socket_type == "REQ":
                assert unasked == []
            for frames in unasked:
                assert b"" in frames, "an envelope ends with an empty frame, also one of several frames"

    @invariant()
    def peers_get_nothing_that_they_may_not(self) -> None:
        self.look_at_replies()
        for data, to in self.farm.udp.sent:
            assert to[1] != BEACON_PORT or data == b"SHALOM 5246"
        self.farm.udp.sent.clear()

    @invariant()
    def the_registry_has_what_the_catalogue_has(self) -> None:
        farm = self.farm
        entries = list(farm.catalogue)
        assert [farm.catalogue.get(entry.name) for entry in entries] == entries
        assert len(farm.catalogue) == len(entries)
        providers = {provider.id: provider for provider in farm.registry.providers()}
        assert sorted(providers) == sorted(entry.provider for entry in entries)
        for entry in entries:
            provider = providers[entry.provider]
            assert (provider.label, provider.wire, provider.address) == (entry.name, "dbp", entry.address)
            [service] = provider.services
            assert (service.name, service.hostport) == (entry.name, hostport(entry.details, entry.address))
            assert (service.info, service.lasting) == (entry.info.decode(), not entry.contract)
            assert [each.provider for each in farm.registry.find(entry.name, "tcp")] == [entry.provider]
        listed = json.loads(farm.listing.all())
        assert listed.keys() == {entry.name for entry in entries}
        assert ERROR not in listed
        for entry in entries:
            assert json.loads(entry.info) == listed[entry.name]

    @invariant()
    def services_and_connections_know_each_other(self) -> None:
        farm = self.farm
        known = farm.commands.connections()
        for entry in farm.catalogue:
            connection = entry.connection
            if connection is not None:
                assert connection.entry is entry
                assert known[connection.number] is connection
        for number, connection in known.items():
            assert number == connection.number == farm.open[connection.identity]
            if connection.entry is not None:
                assert connection.entry.connection is connection
                assert farm.catalogue.get(connection.entry.name) is connection.entry
        places = {source: set(farm.catalogue.at(source)) for source in farm.catalogue.sources()}
        assert places == {
            source: {entry for entry in farm.catalogue if entry.source == source}
            for source in {entry.source for entry in farm.catalogue if entry.source is not None}
        }

    @invariant()
    def leases_are_of_services_that_are_there(self) -> None:
        leases: list[Lease] = list(self.farm.leases)
        held: set[ServiceEntry] = set()
        for lease in leases:
            entry = lease.leased
            assert isinstance(entry, ServiceEntry)
            assert self.farm.catalogue.get(entry.name) is entry
            assert entry.lease is lease
            held.add(entry)
        assert len(held) == len(leases) == len(self.farm.leases)
        assert {entry for entry in self.farm.catalogue if entry.contract} <= held

    @invariant()
    def who_beats_in_time_stays(self) -> None:
        assert self.farm.catalogue.get("faithful") is not None

    def teardown(self) -> None:
        with self.stack:
            if not self.peers:
                return
            farm = self.farm
            farm.use(Dbp())
            farm.probes.alive.clear()
            self.read_on()
            silent = [entry for entry in farm.catalogue if entry.contract]
            farm.wait(LONGEST + 1, 2 * TICK)
            assert not any(farm.catalogue.get(entry.name) is entry and entry.interval <= 2 for entry in silent)
            for number in range(len(self.peers)):
                self.close(number)
            self.faithful.close()
            assert len(farm.commands) == 0
            for entry in list(farm.catalogue):
                farm.datagrams.receive(b" </3 %b %b" % (TEXT, entry.name.encode()), (entry.address, 9))
            assert len(farm.catalogue) == 0
            assert farm.registry.providers() == []
            assert farm.listing.all() == b"{}"
            assert len(farm.leases) == 0
            farm.beacon.stop()
            farm.clock.advance(100_000_000)  # it may have been set back, often
            assert farm.clock.getDelayedCalls() == []


TestConversations = Conversations.TestCase
TestConversations.settings = settings(max_examples=examples(40), stateful_step_count=60)
