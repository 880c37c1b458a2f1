"""A Context Server as real ones are, as far as broker and director see it.

It keeps a link to its broker, finds directors there, and opens one more connection to each director that it is told of,
without looking whether it has one already. A director's link that is lost, it does not open again. It reports all that
is open to every director, and lets users in who bring a reservation.
"""

from __future__ import annotations

import json
import socket
import threading
import time
from collections import Counter
from typing import Any

from tests.integration.daemon import Peer
from tests.patience import PATIENCE

RETRY = 0.2
"""Seconds between attempts to reach the broker; real servers wait 15."""


class ContextServer:
    """One server. ``closes`` is what it was told to close, ``others`` what else it was told."""

    def __init__(self, name: str, broker: int, port: int = 9000) -> None:
        self.name = name
        self.broker = broker
        self.address = f"{name}:{port}"
        self.closes: list[dict[str, Any]] = []
        self.others: list[dict[str, Any]] = []
        self.links: list[Peer] = []
        self._reservations: dict[str, tuple[str, str | None, Peer]] = {}
        self._open: dict[str, set[str]] = {}
        self._changed = threading.Condition()
        self._stopping = False
        self._broker_link: Peer | None = None
        self._thread = threading.Thread(target=self._keep_broker_link, daemon=True)
        self._thread.start()

    def __enter__(self) -> ContextServer:
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping = True
        with self._changed:
            peers = [*self.links, *([self._broker_link] if self._broker_link else [])]
        for peer in peers:
            _end(peer)
        self._thread.join(PATIENCE)
        assert not self._thread.is_alive()

    def wait_for_links(self, count: int) -> None:
        """Return when it has that many links to directors, which know all that it reported."""
        with self._changed:
            assert self._changed.wait_for(lambda: len(self.links) == count, PATIENCE), (
                f"{len(self.links)} links, not {count}"
            )

    def enter(self, token: str, context: str, user: str) -> None:
        """A user comes with a reservation."""
        with self._changed:
            assert self._changed.wait_for(lambda: token in self._reservations, PATIENCE), "no such reservation"
            asked, name, by = self._reservations.pop(token)
            assert (asked, name) == (context, user)
            instance = f"{user}-{len(self._open.get(context, ())) + 1}"
            if context not in self._open:
                self._open[context] = set()
                for link in [by, *(link for link in self.links if link is not by)]:
                    link.send(to="provider", op="context", context=context, open=True, yours=link is by, maxcap=100)
            self._open[context].add(instance)
            for link in self.links:
                link.send(to="provider", op="user", context=context, user=instance, on=True)

    def lose_directors(self) -> None:
        """Lose the connections to directors, and only these."""
        with self._changed:
            links = list(self.links)
        for link in links:
            _end(link)
        self.wait_for_links(0)

    # inside

    def _keep_broker_link(self) -> None:
        while not self._stopping:
            try:
                peer = Peer(socket.create_connection(("127.0.0.1", self.broker), PATIENCE))
            except OSError:
                time.sleep(RETRY)
                continue
            self._broker_link = peer
            peer.sock.settimeout(None)
            try:
                peer.send(to="broker", op="auth", label=self.name)
                peer.send(to="broker", op="find", service="director-provider", wait=-1, monitor=True, tag="0")
                while True:
                    for desc in peer.receive().get("desc", ()):
                        threading.Thread(target=self._keep_director_link, args=(desc,), daemon=True).start()
            except (OSError, EOFError):
                peer.sock.close()

    def _keep_director_link(self, desc: dict[str, Any]) -> None:
        host, _, port = desc["hostport"].rpartition(":")
        try:
            peer = Peer(socket.create_connection((host, int(port)), PATIENCE))
        except OSError:
            return
        peer.sock.settimeout(None)
        try:
            with self._changed:
                self._announce(peer)
                self.links.append(peer)
                self._changed.notify_all()
            while True:
                self._take(peer, peer.receive())
        except (OSError, EOFError):
            peer.sock.close()
        with self._changed:
            if peer in self.links:
                self.links.remove(peer)
            self._changed.notify_all()

    def _announce(self, peer: Peer) -> None:
        peer.send(to="provider", op="auth", label=self.name)
        peer.send(to="provider", op="address", protocol="tcp", hostport=self.address)
        for family in ("c", "ctx", "context"):
            peer.send(to="provider", op="willserve", context=family)
        for context, users in self._open.items():
            peer.send(to="provider", op="context", context=context, open=True, yours=False, maxcap=100)
            for user in users:
                peer.send(to="provider", op="user", context=context, user=user, on=True)
        peer.send(to="provider", op="load", factor=0.0)
        peer.send(to="provider", op="ping")
        while (message := peer.receive())["op"] != "pong":
            self._take(peer, message)

    def _take(self, peer: Peer, message: dict[str, Any]) -> None:
        with self._changed:
            if message["op"] == "doreserve":
                self._reservations[message["reservation"]] = (message["context"], message.get("user"), peer)
            elif message["op"] == "close":
                self.closes.append(message)
            else:
                self.others.append(message)
            self._changed.notify_all()

    def wait_for(self, op: str, count: int = 1) -> list[dict[str, Any]]:
        """Wait until ``count`` messages with that op were received, and return them."""
        with self._changed:
            assert self._changed.wait_for(lambda: Counter(each["op"] for each in self.others)[op] >= count, PATIENCE), (
                f"{count} {op} did not come: {json.dumps(self.others)}"
            )
            return [each for each in self.others if each["op"] == op]


def _end(peer: Peer) -> None:
    try:
        peer.sock.shutdown(socket.SHUT_RDWR)
    except OSError:
        peer.sock.close()
