"""The places where a ROUTER listens, and the addresses of its peers there."""

from __future__ import annotations

import os
from typing import Any

from broker import curve_keys
from broker.config import endpoint
from broker.net.peer_interfaces import Sender
from tests.net.process import script
from tests.net.router.rig import OWN, Rig, Server, senders
from tests.net.waiting import there_are, until


class Places(Rig):
    async def test_a_peer_at_a_unix_socket_is_known_by_its_user(self) -> None:
        path = f"{self.folder()}/socket"
        server = self.serve(f"ipc://{path}")
        self.assertEqual(server.address, f"ipc://{path}")
        await self.has_sender(server, f"uid {os.getuid()} here")

    async def test_a_unix_socket_without_a_file(self) -> None:
        server = self.serve(f"ipc://@elkobroker-test-{os.getpid()}-{self.form}")
        await self.has_sender(server, f"uid {os.getuid()} here")

    async def test_peers_at_a_unix_socket_take_over_what_the_same_user_has(self) -> None:
        server = self.serve(f"ipc://{self.folder()}/socket")
        for number in range(2):
            self.peer(server, b"same").send(b"%d" % number)
            await until(lambda: [b"%d" % number] in server.messages)  # noqa: B023 (it is called in this round)
        self.assertEqual(server.ends, [1])

    async def test_an_address_of_ipv6(self) -> None:
        server = self.serve("tcp://[::1]:*")
        await self.has_sender(server, "::1", ipv6=1)

    async def test_an_ipv4_address_is_the_same_at_a_socket_for_both(self) -> None:
        server = self.serve("tcp://[::]:*")
        server.address = server.address.replace("[::]", "127.0.0.1")
        await self.has_sender(server, "127.0.0.1")
        server.address = server.address.replace("127.0.0.1", "[::1]")
        await self.has_sender(server, "::1", ipv6=1)

    async def test_loopback_addresses_are_one_host(self) -> None:
        server = self.serve("tcp://[::]:*")
        for number, host in enumerate(("127.0.0.1", "[::1]")):
            server.address = f"tcp://{host}:{server.port}"
            self.peer(server, b"same", ipv6=1).send(b"%d" % number)
            await until(lambda: [b"%d" % number] in server.messages)  # noqa: B023 (it is called in this round)
        self.assertEqual(server.ends, [1])

    async def test_a_socket_that_is_bound_is_refused(self) -> None:
        server = self.serve()
        other = self.serve()
        for address in (server.address, "ipc:///no/such/directory/socket"):
            other.listener.unbind()
            with self.assertRaisesRegex(Exception, "cannot listen on"):
                other.listener.bind(endpoint.parse_zmq(address))
        await self.answers(server)

    async def has_sender(self, server: Server, address: str, **options: Any) -> None:
        seen = senders(server)
        self.peer(server, **options).send(b"x")
        await until(there_are(1, seen))
        key = curve_keys.encode(OWN.public) if self.form else ""
        self.assertEqual(seen, [Sender(address, key, "DEALER")])
        await self.answers(server, **options)


class PlacesCurve(Places):
    form = "python"


PASSED = """
import os, socket, sys, unittest

listening = socket.create_server(("127.0.0.1", 0))
port = listening.getsockname()[1]
os.dup2(listening.fileno(), 3)
os.environ.update(LISTEN_PID=str(os.getpid()), LISTEN_FDS="1", LISTEN_FDNAMES="mc0")

from tests.net.router.rig import Rig

class Passed(Rig):
    async def test(self):
        server = self.serve("systemd:domain=INET:name=mc0")
        self.assertEqual(server.address, f"tcp://127.0.0.1:{port}")
        await self.answers(server)
        print("served", flush=True)
        os._exit(0)

result = unittest.TestResult()
Passed("test").run(result)
for _, text in result.errors + result.failures:
    print(text)
"""


def test_a_socket_that_systemd_passes() -> None:
    assert script(PASSED) == "served\n"
