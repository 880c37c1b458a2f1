"""Context Servers for real daemons, which say what a real one said in a recording, in the same order.

They behave as *Java servers as clients* do: they look for `director-provider` at one broker with `monitor`, open a
connection to each one that is announced, without a look at those they have, and do not reconnect one that they lose.
A context is reported to the director whose reservation opened it first.
"""

from __future__ import annotations

import json
import re
import socket
import threading
from contextlib import suppress
from types import TracebackType
from typing import Any

from tests.integration.daemon import Daemon, Peer
from tests.patience import PATIENCE
from tests.transcripts.recordings import HERE

_EVENTS = [
    json.loads(line) for line in (HERE / "elko" / "c01_startup_any_order.jsonl").read_text("utf-8").splitlines()[1:]
]


def _beginning(conn: str) -> str:
    """All that the server said on a connection before its first report of a load, or the first answer."""
    said = [each for each in _EVENTS if each["conn"] == conn and each["dir"] in "<>"]
    first = next(number for number, each in enumerate(said) if each["dir"] == "<" or '"op":"load"' in each["bytes"])
    return "".join(each["bytes"] for each in said[:first])


AT_BROKER = _beginning("context1->broker#1")
"""The registration of the server, and its search for directors."""

AT_DIRECTOR = _beginning("ctx->dir1#1")
"""The first messages to each director."""


class ContextServer:
    """A Context Server that is connected to one broker, and to all directors that this announces."""

    def __init__(self, broker: Daemon, label: str, hostport: str) -> None:
        self.label = label
        self.hostport = hostport
        self.lost = 0
        """Connections to directors that ended."""
        self.opened: list[str] = []
        """The contexts that it opened, in order."""
        self.duplicates: list[str] = []
        """Those that a director made it close since they are open elsewhere."""
        self._lock = threading.RLock()
        self._told = threading.Condition(self._lock)
        self._directors: list[Peer] = []
        self._rooms: dict[str, list[str]] = {}
        self._admits: dict[str, tuple[dict[str, Any], Peer]] = {}
        self._visits = 0
        self._closed = False
        self._broker = broker.connect(None)
        self._say(self._broker, AT_BROKER)
        self._run(self._follow)

    def __enter__(self) -> ContextServer:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._closed = True
        for peer in (self._broker, *self._directors):
            peer.sock.close()

    @property
    def directors(self) -> int:
        """The number of its connections to directors."""
        return len(self._directors)

    def enter(self, granted: dict[str, Any]) -> str:
        """A user arrives with a granted reservation. Returns the name under which the user is reported."""
        with self._told:
            known = self._told.wait_for(lambda: granted["reservation"] in self._admits, PATIENCE)
            assert known, f"{self.label} does not know the reservation {granted}"
            asked, opener = self._admits.pop(granted["reservation"])
            room = asked["context"]
            assert room == granted["context"]
            if room not in self._rooms:
                self.opened.append(room)
                self._rooms[room] = []
                for peer in sorted(self._directors, key=lambda each: each is not opener):
                    self._report(peer, op="context", context=room, open=True, yours=peer is opener)
            self._visits += 1
            user = f"{asked.get('user', 'user-anon')}-{self._visits}{hash(self.label) % 10**9}"
            self._rooms[room].append(user)
            for peer in self._directors:
                self._report(peer, op="user", context=room, user=user, on=True)
            return user

    def _say(self, peer: Peer, recorded: str) -> None:
        text = recorded.replace('"context1"', f'"{self.label}"').replace("127.0.0.1:19811", self.hostport)
        text = re.sub(r"127\.0\.0\.1:(\d+)", rf"{self.hostport.partition(':')[0]}:\1", text)
        peer.sock.sendall(text.encode())

    def _report(self, peer: Peer, **message: Any) -> None:
        with suppress(OSError):  # its broker may have died
            peer.send(to="provider", **message)

    def _run(self, target: Any, *arguments: Any) -> None:
        threading.Thread(target=target, args=arguments, daemon=True).start()

    def _follow(self) -> None:
        """Connect to each director that the broker announces."""
        for found in self._messages(self._broker):
            for each in found.get("desc", ()):
                host, _, port = str(each.get("hostport", "")).rpartition(":")
                try:
                    peer = Peer(socket.create_connection((host, int(port)), PATIENCE))
                except OSError:
                    continue
                with self._lock:
                    self._directors.append(peer)
                    self._say(peer, AT_DIRECTOR)
                    for room, users in self._rooms.items():
                        self._report(peer, op="context", context=room, open=True, yours=False)
                        for user in users:
                            self._report(peer, op="user", context=room, user=user, on=True)
                self._run(self._serve, peer)

    def _serve(self, peer: Peer) -> None:
        peer.sock.settimeout(None)
        for message in self._messages(peer):
            with self._told:
                if message["op"] == "doreserve":
                    self._admits[message["reservation"]] = message, peer
                    self._told.notify_all()
                elif message["op"] == "ping":
                    peer.send(to="provider", op="pong", tag=message["tag"])
                elif message["op"] == "close" and message.get("dup"):
                    self.duplicates.append(message["context"])
                    if self._rooms.pop(message["context"], None) is not None:
                        for each in self._directors:
                            self._report(each, op="context", context=message["context"], open=False, yours=False)
        with self._lock:
            self._directors.remove(peer)
            self.lost += not self._closed

    def _messages(self, peer: Peer) -> Any:
        peer.sock.settimeout(None)
        while True:
            try:
                yield peer.receive()
            except (EOFError, OSError, json.JSONDecodeError):
                return
