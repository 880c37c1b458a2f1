"""A good client of the HTTP listener: it finds a service, one request at a time on one connection."""

from __future__ import annotations

import socket

from bench.elko.good_peers import Good, connected

REGISTER = b'{"hostport":"192.0.2.1:80","ttl":3600}'


def http(line: str, *headers: str, body: bytes = b"") -> bytes:
    """One request. ``line`` is its method and path."""
    head = [f"{line} HTTP/1.1", "Host: localhost", *headers]
    if body:
        head.append(f"Content-Length: {len(body)}")
    return "\r\n".join([*head, "", ""]).encode() + body


class ApiPeer(Good):
    """A client of the API, which sends a request when the one before is answered, as HTTP clients do.

    An answer counts for all pings that were due when its request was sent.
    """

    def __init__(self, port: int) -> None:
        super().__init__(connected(port))
        self._due = 0
        self._asked = 1
        self.say(http("PUT /v1/services/bank/good", body=REGISTER))

    def ping(self, number: int) -> None:
        """Note so many pings, and send a request unless one is unanswered."""
        self._due += number
        if not self._asked:
            self._ask()

    def came(self, sock: socket.socket, data: bytes) -> None:
        """Count the answer, if it is complete: it has a provider."""
        whole = self._tail.get(sock, b"") + data
        self._tail[sock] = whole[-10:]
        if b'"provider":' in whole:
            self._tail[sock] = b""
            self.pongs += self._asked
            self._asked = 0
            if self._due:
                self._ask()

    def _ask(self) -> None:
        self._asked, self._due = self._due, 0
        self.sock.sendall(http("GET /v1/services/bank"))
