"""Requests over HTTP, one in flight on each of some connections. The answers are counted by their lengths."""

from __future__ import annotations

import json
import re
import time
from base64 import b64encode
from collections.abc import Callable
from contextlib import suppress
from select import EPOLLIN
from typing import Any

from bench.peers.elko import auth, willserve
from bench.servers import Server
from bench.traffic import Poll, Sample, Stuck, connect, opened, received

LENGTH = re.compile(rb"\r\nContent-Length: (\d+)\r\n", re.IGNORECASE)

PLACE = {"hostport": "192.0.2.1:9000", "ttl": 300}
"""The service that is registered."""


def request(method: str, path: str, body: bytes = b"") -> bytes:
    """A request as programs send it."""
    length = f"Content-Length: {len(body)}\r\n" if body else ""
    fields = f"Host: 127.0.0.1:9080\r\nUser-Agent: bench/1.0\r\nAccept: */*\r\n{length}"
    return f"{method} {path} HTTP/1.1\r\n{fields}\r\n".encode() + body


def register(service: str, instance: int) -> bytes:
    """A registration."""
    return request("PUT", f"/v1/services/{service}/{instance}", json.dumps(PLACE).encode())


def put(key: str, value: bytes) -> bytes:
    """The write of a key to etcd."""
    members = {"key": b64encode(key.encode()).decode(), "value": b64encode(value).decode()}
    return request("POST", "/v3/kv/put", json.dumps(members).encode())


def watch(key: str) -> bytes:
    """The request for all changes of a key of etcd."""
    members = {"create_request": {"key": b64encode(key.encode()).decode()}}
    return request("POST", "/v3/watch", json.dumps(members).encode())


FIND = request("GET", "/v1/services/bank")


WATCH = request("GET", "/v1/watch")


class Watchers:
    """Watchers of all changes, and a provider whose load changes; at etcd, of a key, and a client that writes it."""

    def __init__(self, server: Any, number: int) -> None:
        self._server: Server = server
        if server.broker:
            self._provider = opened(server.elko, auth("bench") + willserve(["bank"], "192.0.2.1:9000"), 0)
        else:
            self._provider = connect(server.port)
        self._sockets = [connect(server.port) for _ in range(number)]
        self._poll = Poll()
        self._poll.rest = 0
        for sock in self._sockets:
            sock.sendall(WATCH if server.broker else watch("bank"))
            received(sock)
            self._poll.register(sock.fileno(), EPOLLIN)

    def delays(self, rate: float, seconds: float) -> list[float]:
        """Change ``rate`` times a second, and return the seconds from each change to its arrival at each watcher."""
        found: list[float] = []
        sockets = {sock.fileno(): sock for sock in self._sockets}
        for number in range(1, int(rate * seconds) + 1):
            load = f'"load":{number}.5'.encode() if self._server.broker else b64encode(b"%d.5" % number)
            start = time.perf_counter()
            self._change(number)
            waiting = set(sockets)
            while waiting:
                for fd, _ in self._poll.poll():
                    if load in received(sockets[fd]):
                        waiting.discard(fd)
                        found.append(time.perf_counter() - start)
            time.sleep(max(0.0, start + 1 / rate - time.perf_counter()))
        return found

    def share(self, rate: float, seconds: float) -> float:
        """Change ``rate`` times a second, and return the share of a core that the server takes."""
        before, start = self._server.cpu(), time.perf_counter()
        for number in range(int(rate * seconds)):
            self._change(number + 1)
            for sock in self._sockets:
                sock.setblocking(False)
                with suppress(BlockingIOError):
                    sock.recv(1 << 16)
                sock.setblocking(True)
            time.sleep(max(0.0, start + (number + 1) / rate - time.perf_counter()))
        return (self._server.cpu() - before) / (time.perf_counter() - start)

    def close(self) -> None:
        """Close all connections."""
        for sock in (self._provider, *self._sockets):
            sock.close()
        self._poll.close()

    def _change(self, number: int) -> None:
        if self._server.broker:
            self._provider.sendall(b'{"to":"broker","op":"load","factor":%d.5}\n\n' % number)
        else:
            self._provider.sendall(put("bank", b"%d.5" % number))
            received(self._provider)


class Requests:
    """Connections that each send a request of ``make``, given its number, once the one before is answered."""

    def __init__(self, server: Server, connections: int, make: Callable[[int], bytes]) -> None:
        self._make = make
        self._number = 0
        self._poll = Poll()
        if connections == 1:
            self._poll.rest = 0  # a conversation
        self._open: dict[int, Any] = {}
        for _ in range(connections):
            sock = connect(server.port)
            sock.sendall(register("bank", 1) if server.broker else make(1))
            self._read(received(sock))
            sock.setblocking(False)
            self._poll.register(sock.fileno(), EPOLLIN)
            self._open[sock.fileno()] = sock

    def run(self, seconds: float) -> Sample:
        """Ask for so long. Counts answers."""
        done, waiting = 0, len(self._open)
        for sock in self._open.values():
            self._send(sock)
        start = time.perf_counter()
        end = start + seconds
        while waiting:
            more = time.perf_counter() < end
            for fd, _ in self._poll.poll():
                sock = self._open[fd]
                self._read(sock.recv(1 << 16))
                done += 1
                if more:
                    self._send(sock)
                else:
                    waiting -= 1
        return Sample(done, time.perf_counter() - start)

    def close(self) -> None:
        """Close the connections."""
        for sock in self._open.values():
            sock.close()
        self._poll.close()

    def _send(self, sock: Any) -> None:
        self._number += 1
        sock.send(self._make(self._number))

    def _read(self, data: bytes) -> None:
        """Check that one whole answer of success has come."""
        head = data.find(b"\r\n\r\n") + 4
        length = LENGTH.search(data)
        if data[9:10] != b"2" or length is None or len(data) != head + int(length[1]):
            raise Stuck(f"{data!r:.300} is no answer")
