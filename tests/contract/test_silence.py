"""Silent peers, on every wire: hosts that vanish, servers that hang, and many that fall silent at once."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import ExitStack, suppress

import pytest

from broker.net.silent_hosts import GONE_WITHIN, KEEPALIVE_IDLE, KEEPALIVE_INTERVAL, USER_TIMEOUT
from tests.contract.wires import WIRES
from tests.integration.configurations import PORTS_OF_EVERY_LISTENER, every_listener
from tests.integration.daemon import Daemon
from tests.integration.process_sockets import sockets_of
from tests.patience import PATIENCE, until
from tests.wires.recording import ElkoFarm


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    directory = tmp_path_factory.mktemp("silence")
    with Daemon(directory, *every_listener(directory)) as running:
        yield running


def ports_of(daemon: Daemon) -> list[int]:
    """The ports of all listening sockets of a daemon."""
    with sockets_of(daemon.process.pid) as found:
        listening = [each for each in found if each.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)]
        return [each.getsockname()[1] for each in listening]


def _accepted(daemon: Daemon, name: tuple[str, int]) -> list[int]:
    """The options of the connection to the peer of that address, once the daemon has accepted it."""
    with sockets_of(daemon.process.pid) as found:
        for each in found:
            try:
                peer = each.getpeername()
            except OSError:
                continue
            if peer[:2] == name:
                tcp = socket.IPPROTO_TCP
                return [
                    each.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE),
                    each.getsockopt(tcp, socket.TCP_KEEPIDLE),
                    each.getsockopt(tcp, socket.TCP_KEEPINTVL),
                    each.getsockopt(tcp, socket.TCP_USER_TIMEOUT),
                ]
    return []


def test_the_kernel_ends_the_connections_of_a_vanished_host_at_every_door(daemon: Daemon) -> None:
    ports = until(lambda: found if len(found := ports_of(daemon)) >= PORTS_OF_EVERY_LISTENER else [])
    with ExitStack() as stack:
        for port in ports:
            peer = stack.enter_context(socket.create_connection(("127.0.0.1", port), PATIENCE))
            options = until(lambda peer=peer: _accepted(daemon, peer.getsockname()))  # type: ignore[misc]
            assert options == [1, KEEPALIVE_IDLE, KEEPALIVE_INTERVAL, USER_TIMEOUT * 1_000], port


@pytest.mark.parametrize("wire", WIRES)
def test_a_doubtful_service_comes_last_and_is_not_withdrawn_on_every_wire(wire: str) -> None:
    farm = ElkoFarm()
    seeker = WIRES[wire](farm).seeker()
    providers = [WIRES["elko"](farm).provider(label) for label in ("first", "second")]
    for number, provider in enumerate(providers, 1):
        provider.offer("bank", f"h:{number}")
    with suppress(pytest.skip.Exception):
        seeker.watch()
    first = farm.registry.find("bank", "tcp")[0]
    farm.registry.doubt(first.provider, "it is silent")
    assert seeker.find("bank") == ["h:2", "h:1"]
    with suppress(pytest.skip.Exception):
        assert False not in [up for _, up in seeker.heard()]
    farm.registry.doubt(first.provider, None)
    assert seeker.find("bank") == ["h:1", "h:2"]


def test_the_times_of_the_kernel_together_keep_the_promise() -> None:
    idle = KEEPALIVE_IDLE
    while idle < USER_TIMEOUT:
        idle += KEEPALIVE_INTERVAL
    # The last probe may see a time that is not quite over.
    assert idle + KEEPALIVE_INTERVAL + USER_TIMEOUT < GONE_WITHIN
