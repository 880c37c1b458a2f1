"""Endpoints of listeners as other machines reach them."""

from __future__ import annotations

import pytest

from broker.app.cluster_parts import endpoints
from broker.core.model import Listening


@pytest.mark.parametrize(
    ("where", "advertise", "endpoint"),
    [
        ("127.0.0.1:9000", None, "tcp://127.0.0.1:9000"),
        ("localhost:9000", None, "tcp://localhost:9000"),
        ("127.0.0.1:9000", "127.0.0.1", "tcp://127.0.0.1:9000"),
        ("127.0.0.1:9000", "b.example.org", None),
        ("[::1]:9000", "10.0.0.1", None),
        ("tcp://127.0.0.1:61616", None, "tcp://127.0.0.1:61616"),
        ("0.0.0.0:9000", None, "tcp://here:9000"),
        ("tcp://0.0.0.0:9000", "b.example.org", "tcp://b.example.org:9000"),
        ("[::]:9000", "2001:db8::1", "tcp://[2001:db8::1]:9000"),
        ("[::]:9000", "[2001:db8::1]", "tcp://[2001:db8::1]:9000"),
        ("10.0.0.1:9000", None, "tcp://10.0.0.1:9000"),
        ("10.0.0.1:9000", "b.example.org", "tcp://b.example.org:9000"),
        ("[2001:db8::1]:9000", None, "tcp://[2001:db8::1]:9000"),
        ("/run/broker.sock", None, None),
        ("systemd socket 0", None, None),
    ],
)
def test_the_endpoint_of_a_listener(where: str, advertise: str | None, endpoint: str | None) -> None:
    found = endpoints([Listening("main", where, 0.0)], advertise, "here")
    assert found == ({} if endpoint is None else {"main": endpoint})


def test_a_listener_that_is_not_open_is_not_advertised() -> None:
    states = [Listening("main", "127.0.0.1:1", 0.0, "in use"), Listening("mtl", "127.0.0.1:2", 0.0)]
    assert endpoints(states, None, "here") == {"mtl": "tcp://127.0.0.1:2"}
