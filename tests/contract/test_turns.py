"""An operator's act on very many entries of a wire takes several turns of the reactor."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import attrs
import pytest
from twisted.internet.address import IPv4Address
from twisted.internet.protocol import Factory
from twisted.internet.testing import MemoryReactorClock
from twisted.logger import capturedLogs

from broker import pem
from broker.access.principal import Method, Principal
from broker.access.rights import AnonymousAccess, Grants
from broker.core.model import KnownSession, Snapshot
from broker.core.turns import SHARE, Turns, for_each
from broker.curve_keys import encode
from broker.net.tls import Certificates, TlsFactory
from broker.wires.dbp.codec.dbp_messages import Form
from broker.wires.dbp.dbp_settings import Dbp
from broker.wires.dbp.dbp_wire import OpenDbp, open_dbp
from broker.wires.elko.broker_wire import OpenElko
from broker.wires.elko.elko_settings import BrokerListener, Elko
from broker.wires.http.http_settings import Http
from broker.wires.http.http_wire import open_http
from broker.wires.http.sessions.instances import Offer
from broker.wires.interface import WireContext
from broker.wires.mc0.mc0_settings import Mc0
from broker.wires.mc0.mc0_wire import open_mc0
from tests.config.certificates import certificate
from tests.net.over_tls import over_tls
from tests.net.words import Link
from tests.ticking_clock import TickingClock
from tests.wires.contexts import context
from tests.wires.mc0.recording import SessionRecord

MANY = 40
"""Entries: several times those of one turn."""

IN_TURN = 10
"""Entries at most that are ended in one turn: each takes a tenth of the share, or more."""


class Reactor(TickingClock, MemoryReactorClock):
    """A reactor on which work takes time."""


class Revoking(AnonymousAccess):
    """Access without users, that is taken from all of them at some time."""

    revoked = False

    def stands(self, principal: Principal) -> bool:
        return not self.revoked

    def grants(self, principal: Principal, listener: str) -> Grants:
        return Grants() if self.revoked else super().grants(principal, listener)

    def revoke(self) -> None:
        self.revoked = True
        for call in self.changed:
            call()


@pytest.fixture
def reactor() -> Reactor:
    return Reactor()


def counts(reactor: Reactor, act: Callable[[], object], left: Callable[[], int]) -> list[int]:
    """The entries that are left before an act, and after each turn until there are none."""
    found = [left()]
    reactor.tick = SHARE / IN_TURN
    act()
    found.append(left())
    while found[-1]:
        assert len(found) < 200
        reactor.turn()
        found.append(left())
    reactor.tick = 0.0
    return found


def ends_in_turns(found: list[int]) -> bool:
    return found[0] == MANY and max(before - after for before, after in itertools.pairwise(found)) <= IN_TURN


def dbp(made: WireContext) -> OpenDbp:
    wire = open_dbp(Dbp(beacon=()), made)
    for number in range(MANY):
        wire.catalogue.register(f"s{number}", b'{"ip": "h", "port": 1}', "192.0.2.7", Form.TEXT, None)
    return wire


def test_dbp_sends_its_services_away(reactor: Reactor) -> None:
    wire = dbp(context(reactor))
    assert ends_in_turns(counts(reactor, wire.drain, lambda: len(wire.catalogue)))
    assert wire.listener.router.draining


def test_services_of_dbp_that_are_left_at_the_end_of_a_drain_stay(reactor: Reactor) -> None:
    wire = dbp(context(reactor))
    reactor.tick = SHARE / IN_TURN
    wire.drain()
    wire.undrain()
    left = len(wire.catalogue)
    for _ in range(MANY):
        reactor.turn()
    assert left >= MANY - IN_TURN
    assert len(wire.catalogue) == left


def test_services_of_dbp_that_are_left_at_the_stop_stay_in_the_registry(reactor: Reactor) -> None:
    made = context(reactor)
    wire = dbp(made)
    reactor.tick = SHARE / IN_TURN
    wire.drain()
    wire.close()
    left = len(made.core.registry.names())
    for _ in range(MANY):
        reactor.turn()
    assert len(made.core.registry.names()) == left >= MANY - IN_TURN


def test_http_ends_the_instances_of_revoked_users(reactor: Reactor) -> None:
    access = Revoking()
    wire = open_http(Http(), context(reactor, access=access))
    for number in range(MANY):
        wire.instances.put("bank", f"{number}", Principal("ann", Method.PASSWORD), Offer("h:1", "tcp", {}, None, 10.0))

    assert ends_in_turns(counts(reactor, access.revoke, lambda: len(wire.instances)))
    assert wire.instances.counts["revoked"] == MANY


def test_mc0_applies_other_rights_to_its_sessions(reactor: Reactor) -> None:
    access = Revoking()
    known = tuple(KnownSession(b"%d" % number, "", "192.0.2.7", 10.0, None, (b"a",)) for number in range(MANY))
    made = attrs.evolve(context(reactor, access=access, recorder=SessionRecord()), known=Snapshot(1, (), {}, known))
    wire = open_mc0(Mc0(), made)

    def subscribers() -> int:
        return sum(bool(session.topics) for session in wire.sessions.table)

    assert ends_in_turns(counts(reactor, access.revoke, subscribers))


def test_elko_ends_the_sessions_of_revoked_users(reactor: Reactor) -> None:
    access = Revoking()
    wire = OpenElko(Elko((BrokerListener(),)), context(reactor, access=access))
    listener: Any
    [listener] = wire.connection_factories()
    links = [Link(listener.buildProtocol(IPv4Address("TCP", "192.0.2.1", 4_000 + n)), None) for n in range(MANY)]

    assert ends_in_turns(counts(reactor, access.revoke, lambda: sum(not link.wire.half_closed for link in links)))


def test_one_entry_that_fails_keeps_no_other_one(reactor: Reactor) -> None:
    left = list(range(MANY))

    def end(number: int) -> None:
        if number:
            left.remove(number)
        else:
            raise RuntimeError("a defect")

    with capturedLogs() as logs:
        found = counts(reactor, lambda: Turns(reactor).run(for_each(tuple(left), end)), lambda: len(left) - 1)
    assert found[0] == MANY - 1
    assert left == [0]
    assert [event["log_failure"].getErrorMessage() for event in logs] == ["a defect"]


@attrs.define(eq=False)
class TlsClient:
    """A connection to a factory of TLS by a client whose certificate has this number."""

    factory: TlsFactory
    number: int = 7
    host: str = "192.0.2.1"

    def getPeerCertificate(self) -> TlsClient:
        return self

    def get_serial_number(self) -> int:
        return self.number

    def abort(self) -> None:
        self.factory.unregisterProtocol(self)


def test_tls_ends_the_connections_of_revoked_certificates(reactor: Reactor, tmp_path: Path) -> None:
    certificates = Certificates(pem.Files(*map(str, certificate(tmp_path, "broker"))))
    factory = over_tls(reactor, Factory(), certificates)
    clients = [TlsClient(factory) for _ in range(MANY)]
    another = TlsClient(factory, 8)
    for client in (*clients, another):
        factory.registerProtocol(client)
    identity = attrs.evolve(certificates.read(), revoked=frozenset({7}))
    assert ends_in_turns(counts(reactor, lambda: certificates.use(identity), lambda: len(factory.protocols) - 1))
    assert list(factory.protocols) == [another]


def test_mc0_ends_the_sessions_of_revoked_keys(reactor: Reactor) -> None:
    access = AnonymousAccess()
    keys = [encode(bytes([number]) * 32) for number in range(1, MANY + 1)]
    access.keys = dict.fromkeys(keys, "ann")
    known = tuple(KnownSession(b"%d" % number, key, "192.0.2.7", 10.0, None, ()) for number, key in enumerate(keys))
    wire = open_mc0(
        Mc0(secret_key=encode(b"s" * 32)),
        attrs.evolve(context(reactor, access=access, recorder=SessionRecord()), known=Snapshot(1, (), {}, known)),
    )

    def revoke() -> None:
        access.keys = {}
        for call in access.changed:
            call()

    assert ends_in_turns(counts(reactor, revoke, lambda: len(list(wire.sessions.table))))
