"""Hosts made of network namespaces on one machine: a bridge, a host for each name, and cuts between hosts.

The machine itself has an address on the bridge, so that a test reaches every host.
"""

from __future__ import annotations

import os
import random
import subprocess
from collections import Counter
from types import TracebackType

from tests.packages import need_namespaces, program

RULES = """
table inet cut {
    set hosts { type ipv4_addr; }
    chain input { type filter hook input priority 0; ip saddr @hosts drop; }
}
"""
"""Rules of each host: input from the hosts of the set is dropped. Output is not: the kernel would tell the program."""


class Host:
    """One host. ``runner`` is the beginning of a command line for it."""

    def __init__(self, name: str, namespace: str, address: str) -> None:
        self.name = name
        self.address = address
        self.namespace = namespace
        self.runner = [program("ip"), "netns", "exec", namespace]


class Network:
    """Hosts with these names. Skips the test where the kernel refuses namespaces."""

    def __init__(self, names: list[str]) -> None:
        need_namespaces()
        self._tag = f"{os.getpid() % 100_000:05}{random.randrange(100):02}"
        self._net = f"10.{random.randrange(64, 250)}.{random.randrange(256)}"
        self._ip = program("ip")
        self._nft = program("nft")
        self._bridge = f"eb{self._tag}"
        self.hosts = {
            name: Host(name, f"elko{self._tag}-{name}", f"{self._net}.{number}") for number, name in enumerate(names, 1)
        }
        self._cuts: Counter[frozenset[str]] = Counter()
        """Cuts of each pair of hosts."""

    def __enter__(self) -> Network:
        try:
            self._run(self._ip, "link", "add", self._bridge, "type", "bridge")
            self._run(self._ip, "address", "add", f"{self._net}.254/24", "dev", self._bridge)
            self._run(self._ip, "link", "set", self._bridge, "up")
            for number, host in enumerate(self.hosts.values()):
                outer, inner = f"ev{self._tag}{number}", f"ew{self._tag}{number}"
                self._run(self._ip, "netns", "add", host.namespace)
                self._run(self._ip, "link", "add", outer, "type", "veth", "peer", "name", inner)
                self._run(self._ip, "link", "set", inner, "netns", host.namespace, "name", "eth0")
                self._run(self._ip, "link", "set", outer, "master", self._bridge, "up")
                self._run(*host.runner, self._ip, "link", "set", "lo", "up")
                self._run(*host.runner, self._ip, "address", "add", f"{host.address}/24", "dev", "eth0")
                self._run(*host.runner, self._ip, "link", "set", "eth0", "up")
                self._run(*host.runner, self._nft, "-f", "-", given=RULES)
        except BaseException:
            self._remove()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._remove()

    def cut(self, one: str, other: str) -> None:
        """Drop everything between two hosts, until each cut of them has ended."""
        self._cuts[frozenset((one, other))] += 1
        if self._cuts[frozenset((one, other))] == 1:
            self._change("add", one, other)

    def heal(self, one: str, other: str) -> None:
        """End a cut."""
        self._cuts[frozenset((one, other))] -= 1
        if not self._cuts[frozenset((one, other))]:
            self._change("delete", one, other)

    def _change(self, verb: str, one: str, other: str) -> None:
        for host, peer in ((self.hosts[one], self.hosts[other]), (self.hosts[other], self.hosts[one])):
            element = f"{verb} element inet cut hosts {{ {peer.address} }}"
            self._run(*host.runner, self._nft, element)

    def _remove(self) -> None:
        for number, host in enumerate(self.hosts.values()):
            # A namespace whose sockets linger would keep its cable.
            subprocess.run([self._ip, "link", "delete", f"ev{self._tag}{number}"], capture_output=True)
            subprocess.run([self._ip, "netns", "delete", host.namespace], capture_output=True)
        subprocess.run([self._ip, "link", "delete", self._bridge], capture_output=True)

    def _run(self, *command: str, given: str | None = None) -> None:
        ended = subprocess.run(command, input=given, capture_output=True, text=True)
        assert ended.returncode == 0, (command, ended.stderr)
