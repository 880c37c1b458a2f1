"""A bare Twisted protocol over HTTP: it finds the end of a request's head, and sends bytes that it has.

python -m bench.references.http

They have the length of the broker's answer to a find of one service. A body is read to its end, and not looked at.
"""

from __future__ import annotations

import re

from twisted.internet.protocol import Factory, Protocol

from bench.references.elko import serve

BODY = (
    b'{"name":"bank","services":[{"hostport":"192.0.2.1:9000","protocol":"tcp","provider":1795684550428201,'
    b'"label":null,"load":0.0,"restored":false}]}'
)

ANSWER = (
    b"HTTP/1.1 200 OK\r\nX-Content-Type-Options: nosniff\r\nCross-Origin-Resource-Policy: same-origin\r\n"
    b"X-Request-ID: 8f3a2c11-100000\r\nDate: Thu, 26 Nov 2026 09:00:00 GMT\r\nCache-Control: no-store\r\n"
    b"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n%b" % (len(BODY), BODY)
)

LENGTH = re.compile(rb"\r\nContent-Length: (\d+)\r\n")


class Answer(Protocol):
    """Answers each request, one read after the other."""

    data = b""

    def dataReceived(self, data: bytes) -> None:
        data = self.data + data
        head = data.find(b"\r\n\r\n") + 4
        length = LENGTH.search(data, 0, head)
        if head < 4 or len(data) < head + (0 if length is None else int(length[1])):
            self.data = data
            return
        self.data = b""
        assert self.transport is not None
        self.transport.write(ANSWER)


if __name__ == "__main__":
    serve(Factory.forProtocol(Answer))
