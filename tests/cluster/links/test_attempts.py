"""Attempts to connect a link that are given up."""

from __future__ import annotations

from typing import Any

import pytest
from twisted.internet.error import ConnectionRefusedError
from twisted.python.failure import Failure

from broker.cluster.links.link_wire import Attempt


class Connector:
    """A connector in a state, which records that it is stopped."""

    def __init__(self, state: str) -> None:
        self.state = state
        self.stopped = False

    def stopConnecting(self) -> None:
        self.stopped = True


@pytest.mark.parametrize("state", ["connecting", "connected", "disconnected"])
def test_an_attempt_that_is_given_up_ends_its_connecting_only_and_reports_nothing(state: str) -> None:
    made: Any = object()
    attempt = Attempt(made, object(), made)
    attempt.stop()  # before it has begun
    connector: Any = Connector(state)
    attempt = Attempt(made, object(), made)
    attempt.connector = connector
    attempt.stop()
    assert connector.stopped == (state == "connecting")
    assert attempt.buildProtocol(None) is None
    attempt.clientConnectionFailed(connector, Failure(ConnectionRefusedError()))
