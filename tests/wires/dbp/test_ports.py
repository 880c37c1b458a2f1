"""The choice of a port that is free for both sockets of DBP, where the configuration leaves it to the system."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from twisted.internet.error import CannotListenError
from twisted.internet.selectreactor import SelectReactor

from broker.config.values import Dbp
from broker.core.counters import Counters
from broker.core.liveness import Leases
from broker.core.registry import Registry
from broker.core.restored_services import Restored
from broker.net.endpoints import CannotListen
from broker.net.rate_limits import Complaints
from broker.net.scheduler import Turns
from broker.wires.dbp.open import PORTS_TRIED, DbpListener, make_dbp


class BusyReactor(SelectReactor):
    """A reactor on a machine where the first ports that are asked for are taken by TCP connections."""

    def __init__(self, taken: int) -> None:
        super().__init__()
        self.refused: list[int] = []
        self._taken = taken

    def listenTCP(self, port: int, *more: Any, **options: Any) -> Any:
        if len(self.refused) < self._taken:
            self.refused.append(port)
            raise CannotListenError("127.0.0.1", port, OSError(98, "Address already in use"))
        return super().listenTCP(port, *more, **options)


def listener_of(reactor: Any) -> DbpListener:
    registry = Registry(reactor, lambda: 1, Restored([], 0, reactor, lambda ids: None))
    parts: Any = SimpleNamespace(
        registry=registry,
        leases=Leases(reactor),
        complaints=Complaints(Counters(), reactor),
        turns=Turns(reactor),
    )
    return make_dbp(Dbp(endpoint="tcp://127.0.0.1:0", beacon=()), [], None, None, parts, reactor, 100)


def test_another_port_is_taken_where_the_first_is_not_free_for_tcp() -> None:
    reactor = BusyReactor(taken=3)
    listener = listener_of(reactor)
    port = int(listener.bind().rpartition(":")[2])
    assert len(set(reactor.refused)) == 3
    assert port not in reactor.refused
    assert listener.udp_address == f"127.0.0.1:{port}"
    listener.close()


def test_where_no_port_is_free_the_bind_fails() -> None:
    reactor = BusyReactor(taken=2 * PORTS_TRIED)
    listener = listener_of(reactor)
    with pytest.raises(CannotListen, match="Address already in use"):
        listener.bind()
    assert len(reactor.refused) == PORTS_TRIED
    assert listener.udp_address == ""
    listener.close()
