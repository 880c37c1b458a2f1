"""Links to a broker in another process, which is stopped, continued and killed."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest
from nacl.bindings import crypto_box_keypair

from broker import curve_keys
from broker.cluster.links.link_wire import LinkKey
from broker.core.cluster.cluster_interfaces import Member
from tests.cluster.links.rig import LinksRig, Node
from tests.net.waiting import until


class OtherProcess(LinksRig):
    def other(self, node: Node, name: str) -> subprocess.Popen[str]:
        """Another broker, which is added to the table."""
        key = LinkKey.of(curve_keys.encode(crypto_box_keypair()[1]))
        arguments = [name, key.secret, node.name, node.member.link, node.member.key]
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.cluster.links.other_broker", *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.addCleanup(process.communicate)
        self.addCleanup(process.kill)
        assert process.stdout is not None
        self.table.set(name, Member(name, "1", process.stdout.readline().strip(), key.public))
        return process

    async def echoed(self, node: Node, name: str, body: bytes) -> None:
        assert node.links.send(name, "tight", [body])
        await until(lambda: [body] in node.tight.of(name))

    @pytest.mark.long
    async def test_a_stopped_broker_is_noticed_and_linked_again_when_it_goes_on(self) -> None:
        b = self.node("b")
        for name in ("a", "c"):  # one that connects, and one that listens
            process = self.other(b, name)
            await until(lambda name=name: name in b.links.brokers())  # type: ignore[misc]
            await self.echoed(b, name, b"1")
            process.send_signal(signal.SIGSTOP)
            await until(lambda name=name: b.tight.downs(name) == 1)  # type: ignore[misc]
            self.assertIn("silent", b.neighbour(name).reason)
            process.send_signal(signal.SIGCONT)
            await until(lambda name=name: b.tight.ups(name) == 2)  # type: ignore[misc]
            await self.echoed(b, name, b"2")

    async def test_a_killed_broker_is_noticed(self) -> None:
        b = self.node("b")
        for name in ("a", "c"):
            process = self.other(b, name)
            await until(lambda name=name: name in b.links.brokers())  # type: ignore[misc]
            process.kill()
            await until(lambda name=name: b.tight.downs(name) == 1)  # type: ignore[misc]
