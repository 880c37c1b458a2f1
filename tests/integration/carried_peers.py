"""Peers that reach the broker by HTTP and by RTCP, over real sockets, written without our codecs."""

from __future__ import annotations

import json
import socket
import ssl
from collections.abc import Mapping
from http.client import HTTPConnection, HTTPResponse, HTTPSConnection
from types import TracebackType
from typing import Any

from tests.patience import PATIENCE


def encoded(**message: Any) -> bytes:
    """One message."""
    return json.dumps(message).encode()


class Http:
    """Requests to one listener, each over a connection of its own that is kept, from the address ``source``."""

    def __init__(self, port: int, root: str, trusted: ssl.SSLContext | None = None, source: str = "127.0.0.1") -> None:
        self._port = port
        self._source = (source, 0)
        self._root = root
        self._trusted = trusted
        self.connection = self.connect()

    def connect(self) -> HTTPConnection:
        """Another connection."""
        if self._trusted is not None:
            return HTTPSConnection(
                "127.0.0.1", self._port, timeout=PATIENCE, context=self._trusted, source_address=self._source
            )
        return HTTPConnection("127.0.0.1", self._port, timeout=PATIENCE, source_address=self._source)

    def request(
        self, path: str, body: bytes | None = None, headers: Mapping[str, str] | None = None, method: str | None = None
    ) -> tuple[HTTPResponse, bytes]:
        """A request, and its answer."""
        method = method or ("GET" if body is None else "POST")
        self.connection.request(method, self._root + path, body, dict(headers or {}))
        response = self.connection.getresponse()
        return response, response.read()

    def ask(self, path: str, body: bytes | None = None, headers: Mapping[str, str] | None = None) -> Any:
        """A request that is answered in the protocol."""
        response, data = self.request(path, body, headers)
        assert (response.status, response.headers["Content-Type"]) == (200, "text/plain; charset=UTF-8"), data
        return json.loads(data)


class HttpPeer(Http):
    """One session over HTTP."""

    def __init__(self, port: int, root: str, trusted: ssl.SSLContext | None = None, source: str = "127.0.0.1") -> None:
        super().__init__(port, root, trusted, source)
        self.session = self.ask("connect/1234")["sessionid"]
        self.sent = 1
        self.heard = 1

    def send(self, /, **message: Any) -> None:
        """Send one message."""
        answer = self.ask(f"xmit/{self.session}/{self.sent}", encoded(**message))
        self.sent += 1
        assert answer == {"seqnum": str(self.sent)}

    def receive(self) -> list[Any]:
        """Messages, at least one."""
        while True:
            answer = self.ask(f"select/{self.session}/{self.heard}")
            self.heard = int(answer["seqnum"])
            if answer["msgs"] or self.heard == -1:
                return list(answer["msgs"])


class RtcpPeer:
    """One session of RTCP, from the address ``source``."""

    def __init__(self, port: int, trusted: ssl.SSLContext | None = None, source: str = "127.0.0.1") -> None:
        self._port = port
        self._source = (source, 0)
        self._trusted = trusted
        self.sent = 0
        self.heard = 0
        self.connect()
        self.sock.sendall(b"start\n")
        self.session = self.line().removeprefix("start ")

    def __enter__(self) -> RtcpPeer:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._file.close()
        self.sock.close()

    def connect(self) -> None:
        """A new connection."""
        plain = socket.create_connection(("127.0.0.1", self._port), PATIENCE, self._source)
        self.sock = plain if self._trusted is None else self._trusted.wrap_socket(plain)
        self._file = self.sock.makefile("rb")

    def line(self) -> str:
        """The next line."""
        return self._file.readline().decode().rstrip("\n")

    def send(self, /, **message: Any) -> None:
        """Send one message."""
        self.sent += 1
        self.sock.sendall(b"%d %d\n%b\n\n" % (self.sent, self.heard, encoded(**message)))

    def receive(self) -> Any:
        """The next message."""
        line = self.line()
        while line.startswith("ack "):
            line = self.line()
        number, acknowledged = map(int, line.split())
        assert (number, acknowledged <= self.sent) == (self.heard + 1, True)
        self.heard = number
        message = json.loads(self.line())
        assert self.line() == ""
        return message

    def lose(self) -> None:
        """The connection is lost, and all that was not read with it."""
        self._file.close()
        self.sock.close()

    def resume(self) -> int:
        """Go on with the session; returns the number of the last block that the broker has."""
        self.connect()
        self.sock.sendall(f"resume {self.session} {self.heard}\n".encode())
        word, session, last = self.line().split()
        assert (word, session) == ("resume", self.session)
        return int(last)
