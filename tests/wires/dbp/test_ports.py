"""The choice of a port that is free for both sockets of DBP, where the configuration leaves it to the system."""

from __future__ import annotations

from typing import Any

import pytest
from twisted.internet.error import CannotListenError
from twisted.internet.pollreactor import PollReactor

from broker.net.listeners import CannotListen
from broker.wires.dbp.dbp_settings import Dbp
from broker.wires.dbp.dbp_wire import PORTS_TRIED, OpenDbp, open_dbp
from tests.wires.contexts import context


class BusyReactor(PollReactor):
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


def listener_of(reactor: Any) -> OpenDbp:
    return open_dbp(Dbp(endpoint="tcp://127.0.0.1:0", beacon=()), context(reactor))


def test_another_port_is_taken_where_the_first_is_not_free_for_tcp() -> None:
    reactor = BusyReactor(taken=3)
    listener = listener_of(reactor)
    port = int(listener.bind("dbp").rpartition(":")[2])
    assert len(set(reactor.refused)) == 3
    assert port not in reactor.refused
    assert listener.udp_address == f"127.0.0.1:{port}"
    listener.close()


def test_where_no_port_is_free_the_bind_fails() -> None:
    reactor = BusyReactor(taken=2 * PORTS_TRIED)
    listener = listener_of(reactor)
    with pytest.raises(CannotListen, match="Address already in use"):
        listener.bind("dbp")
    assert len(reactor.refused) == PORTS_TRIED
    assert listener.udp_address == ""
    listener.close()
